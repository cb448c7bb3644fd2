"""What a check found, gathered without stopping at the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

T = TypeVar("T")
Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing, about a store.

    Parameters
    ----------
    severity : {"error", "warning", "note"}
        ``error``: a reader refuses it or would give wrong numbers; ``warning``: probably a mistake of the recording.
    where : str
        The file or folder, relative to the store.
    message : str
        What was found, its likely cause and what to do.
    """

    severity: Severity
    where: str
    message: str


class Cause(NamedTuple):
    """What may lie behind a finding, and whether it is one by itself."""

    message: str
    certain: bool


class Report:
    """Findings so far, in their order."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def add(self, severity: Severity, where: str, message: str) -> None:
        """Note one thing, in text that can be printed: a folder's name may be no UTF-8."""
        shown = (text.encode(errors="backslashreplace").decode() for text in (where, message))
        self.findings.append(Finding(severity, *shown))

    def run(self, where: str, step: Callable[[], T]) -> T | None:
        """Do one step; whatever it raises is a finding."""
        try:
            return step()
        except Exception as error:
            self.add("error", where, str(error) or repr(error))
            return None
