"""What is wrong with a file, and where: an error names file, line and field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from markov_spec.arrays import RequestError

Mode = Literal["strict", "lenient"]
_SHOWN = 60


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a file of JSON lines.

    Parameters
    ----------
    file : str
    line : int or None
        1-based; None if no single line is at fault.
    field : str or None
        None if the line, or the file, cannot be read at all.
    message : str
        What was found and what is allowed.

    Examples
    --------
    >>> str(Fault("rollouts.jsonl", 101, "log_p", "position 3: found NaN; allowed: a number"))
    'rollouts.jsonl, line 101: log_p: position 3: found NaN; allowed: a number'
    """

    file: str
    line: int | None
    field: str | None
    message: str

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        return f"{self.file}{line}: {'' if self.field is None else f'{self.field}: '}{self.message}"


class LineError(ValueError):
    """A file of JSON lines is wrong; ``fault`` says where."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Log:
    """What was wrong or worth knowing in one import: a fault is raised if ``strict``, else kept."""

    def __init__(self, mode: Mode) -> None:
        if mode not in get_args(Mode):
            raise RequestError(f"mode: found {mode!r}; allowed: {', '.join(get_args(Mode))}")
        self.strict = mode == "strict"
        self.faults: list[Fault] = []
        self._notes: list[str] = []
        self._tallies: dict[tuple[str, str], tuple[int, int]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What was said once, then what was counted."""
        counted = (
            f"{file}: {count} {what}, the first at line {line}" for (file, what), (count, line) in self._tallies.items()
        )
        return (*self._notes, *counted)

    def error(self, error: LineError) -> None:
        """Raise an error, or keep its fault."""
        if self.strict:
            raise error
        self.faults.append(error.fault)

    def note(self, text: str) -> None:
        """Keep a remark."""
        self._notes.append(text)

    def tally(self, file: str, line: int, what: str, count: int = 1) -> None:
        """Count what may stand on many lines."""
        found, first = self._tallies.get((file, what), (0, line))
        self._tallies[file, what] = (found + count, first)

    def faulty(self, file: str) -> bool:
        """Whether something was wrong with a file."""
        return any(fault.file == file for fault in self.faults)


def shown(value: Any) -> str:
    """Write a value of JSON for an error, cut where it is long."""
    text = "null" if value is None else repr(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
