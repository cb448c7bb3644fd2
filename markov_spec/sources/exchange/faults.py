"""What is wrong with a file, and where: an error names file, line and field."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from markov_spec.arrays import RequestError

Mode = Literal["strict", "lenient"]
_SHOWN = 60
_VALUE = re.compile(r"'(?:[^'\\]|\\.)*'|[-+]?\d[\w.+-]*|-?Infinity|NaN|null|true|false")


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
        self._tallies: dict[tuple[str, str, str], tuple[int, int]] = {}
        self._left_out: dict[tuple[str, int], str] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What was said once, then what was counted."""
        tallies = (
            f"{file}: {counted(count, noun)} {rest}, the first at line {line}"
            for (file, noun, rest), (count, line) in self._tallies.items()
        )
        return (*self._notes, *tallies)

    def error(self, error: LineError) -> None:
        """Raise an error, or keep its fault."""
        if self.strict:
            raise error
        self.faults.append(error.fault)

    def note(self, text: str) -> None:
        """Keep a remark."""
        self._notes.append(text)

    def tally(self, file: str, line: int, noun: str, rest: str, count: int = 1) -> None:
        """Count what may stand on many lines; the noun is in the singular."""
        found, first = self._tallies.get((file, noun, rest), (0, line))
        self._tallies[file, noun, rest] = (found + count, first)

    def leave_out(self, file: str, line: int, name: str | None = None) -> None:
        """Keep that a line was not read, under its id or, without one, its number."""
        self._left_out[file, line] = f"line {line}" if name is None else name

    def left_out(self, file: str) -> tuple[str, ...]:
        """Ids on lines of a file that were not read, each once, in the order of the lines."""
        return tuple(dict.fromkeys(name for (own, _), name in sorted(self._left_out.items()) if own == file))

    def faulty(self, file: str) -> bool:
        """Whether something was wrong with a file."""
        return any(fault.file == file for fault in self.faults)


def shown(value: Any) -> str:
    """Write a value of JSON for an error, cut where it is long."""
    text = "null" if value is None else repr(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def counted(count: int, noun: str) -> str:
    """Write a number of things."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def grouped(faults: Iterable[Fault]) -> list[str]:
    """Write faults; those of one file and field whose messages differ in values alone once, with their number.

    Examples
    --------
    >>> grouped([Fault("r.jsonl", i, "id", f"found {i}; allowed: a text that is not empty") for i in (3, 4, 9)])
    ['r.jsonl, line 3: id: found 3; allowed: a text that is not empty (and 2 like it, the last at line 9)']
    """
    groups: dict[tuple[str, str | None, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.file, fault.field, _VALUE.sub("#", fault.message)), []).append(fault)
    return [
        f"{first} (and {len(more)} like it, the last at line {more[-1].line})" if more else str(first)
        for first, *more in groups.values()
    ]
