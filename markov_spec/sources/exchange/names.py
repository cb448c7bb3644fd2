"""Lines by the ids of their rollouts: each id once, or as a policy says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeVar, get_args

from markov_spec.arrays import RequestError
from markov_spec.sources.exchange.faults import LineError, Log
from markov_spec.sources.exchange.lines import Line, Moved, read_lines

Duplicates = Literal["error", "first", "last", "suffix"]
T = TypeVar("T")


def check_policy(policy: str) -> None:
    """Refuse an unknown policy for doubled ids."""
    if policy not in get_args(Duplicates):
        raise RequestError(f"duplicates: found {policy!r}; allowed: {', '.join(get_args(Duplicates))}")


def read_named(
    lines: Iterable[Line], policy: Duplicates, log: Log, read: Callable[[str, Line], T | None]
) -> dict[str, T]:
    """Read the lines of one file, each to be known by its id.

    Parameters
    ----------
    lines : iterable of Line
    policy : {"error", "first", "last", "suffix"}
        What becomes of an id that an earlier line has: a fault, and neither is read, unless the lines are the same; the
        first or the last one is read; or the later one is known as ``ID#2`` and so on.
    log : Log
    read : callable
        Makes what is kept of a line, or None.

    Returns
    -------
    dict
        By id, in the order of the lines.
    """
    kept: dict[str, T] = {}
    first: dict[str, tuple[int, bytes]] = {}
    times: dict[str, int] = {}
    doubled: set[str] = set()
    for line in lines:
        name = None
        try:
            name = line.text("id")
            if name in first and policy == "error" and first[name][1] == line.digest:
                log.tally(line.file, line.number, "line", "equal to an earlier one, read once")
                continue
            if name in first and policy != "error":
                log.tally(line.file, line.number, "line", f"with the id of an earlier one (duplicates={policy!r})")
                if policy == "first":
                    continue
                if policy == "suffix":
                    times[name] = times.get(name, 1) + 1
                    name = f"{name}#{times[name]}"
            if name in first and policy != "last":
                doubled.add(name)
                log.leave_out(line.file, first[name][0], name)
                raise line.error(
                    "id",
                    f"found {name!r} again, first on line {first[name][0]}; allowed: each id once, or "
                    "duplicates='first', 'last' or 'suffix' (--duplicates)",
                )
            first.setdefault(name, (line.number, line.digest))
            kept.pop(name, None)
            value = read(name, line)
            if value is not None:
                kept[name] = value
        except LineError as error:
            log.error(error)
            log.leave_out(line.file, line.number, name)
    return {name: value for name, value in kept.items() if name not in doubled}


def read_again(path: Path, numbers: Mapping[str, int], moved: Moved) -> Iterator[tuple[str, Line]]:
    """Give the lines of a file that were kept, by their numbers, in the file's order.

    Raises
    ------
    ValueError
        If a line is no longer there.
    """
    names = {number: name for name, number in numbers.items()}
    for line in read_lines(path, Log("lenient"), moved):
        name = names.pop(line.number, None)
        if name is not None:
            yield name, line
    if names:
        raise ValueError(f"{path}: line {min(names)}: changed while it was read")
