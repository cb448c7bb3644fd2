"""Fields of a line that hold a value for each token, start, depth or list entry, checked one by one.

The leaves of nested lists are read in their order. Rows of a start ``s`` hold ``min(K, T - s)`` values: cells past the
end do not exist, but for a block drafter's lists and for beams, of which a row may hold up to ``K``. Errors name the
place: position from 0, depth and entry from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from markov_spec.arrays import Array
from markov_spec.sources.exchange.faults import LineError, Log, counted, shown
from markov_spec.sources.exchange.lines import Line
from markov_spec.store.schema import FLOAT, NO_TOKEN, SUM_TOLERANCE, Column

# What engines write for log 0, which JSON does not have: vLLM's clamp, and the floor that other servers use.
CLAMP, FLOOR = -9999.0, -100.0
_FARTHEST = 2**63
PAST_END = ("lists", "beam")  # parts of a drafter whose cells past the end may hold data
_NAMES = {"block": "depth", "depth": "depth", "entry": "entry", "path": "path"}


class Zeros:
    """What a file writes for the logarithm of 0: one declared value, or else -9999 and -100, which are counted."""

    def __init__(self, declared: float | None, log: Log | None = None) -> None:
        self.declared = declared
        self.log = log

    def read(self, values: Array, leaves: Leaves) -> Array:
        """Put ``-inf`` where a value stands for log 0; refuse what is too low to be a log-probability."""
        if self.declared is not None:
            leaves.refuse(
                np.isneginf(_rounded(values)) & (values != self.declared),
                f"a log-probability, or {self.declared:g} for probability 0, as the first line declares (log_zero)",
            )
            return np.where(values == self.declared, -np.inf, values)
        leaves.refuse(
            values < CLAMP,
            f"a log-probability above {CLAMP:g}, which like {FLOOR:g} means probability 0 unless the first line "
            "declares log_zero",
        )
        for sentinel in (CLAMP, FLOOR):
            count = int(np.count_nonzero(values == sentinel))
            if count and self.log is not None:
                rest = f"of {sentinel:g} in {leaves.field}, read as probability 0"
                self.log.tally(leaves.line.file, leaves.line.number, "value", rest, count)
        return np.where((values == CLAMP) | (values == FLOOR), -np.inf, values)


class Leaves:
    """The values of one field, flat, and how many each list on the way holds.

    Parameters
    ----------
    line : Line
    field : str
    column : Column
        Its axes, after the position, and its range.
    sizes : sequence of int
        One for each axis.
    rows : int
        Tokens of the rollout.
    each : str
        What ``rows`` counts, for errors.
    beyond : bool
        Whether depths may pass the end.

    Raises
    ------
    LineError
        If a list is none, or of another length.
    """

    def __init__(
        self,
        line: Line,
        field: str,
        column: Column,
        sizes: Sequence[int],
        rows: int,
        each: str = "tokens",
        *,
        beyond: bool = False,
    ) -> None:
        self.line, self.field, self.column = line, field, column
        self.axes = ("position", *column.axes[len(column.axes) - len(sizes) :])
        self.counts: list[Array] = []
        self.values: list[Any] = [line.required(field)]
        for axis, size in zip(self.axes, (rows, *sizes), strict=True):
            self.of_type("a list", list)
            lengths = np.fromiter(map(len, self.values), np.int64, len(self.values))
            least = most = np.full(lengths.size, size)
            if axis == "position":
                told = f"one for each of the {each}"
            elif axis == "entry":
                least, told = np.zeros(lengths.size, dtype=np.int64), "and the generated token"
            elif axis == "path":
                told = "one for each path of a beam"
            elif column.past_end:
                told = "one for each depth, past the end, too"
            else:
                least, told = np.minimum(size, rows - np.arange(rows)), f"depths up to {size} that do not pass the end"
                if beyond:
                    told = f"depths up to {size}, those past the end as far as there are lists"
                else:
                    most = least
            bad = (lengths < least) | (lengths > most + (axis == "entry"))
            if bad.any():
                i = int(np.argmax(bad))
                some = f"{least[i]} to {most[i]}" if beyond and least[i] < most[i] and axis != "entry" else f"{most[i]}"
                found = counted(lengths[i], "value")
                raise line.error(field, f"{self.place(i)}found {found}; allowed: {some}, {told}")
            self.values = list(chain.from_iterable(self.values))
            self.counts.append(lengths)

    def place(self, i: int, level: int | None = None) -> str:
        """Name the place of value ``i`` of a level, the deepest by default."""
        level = len(self.counts) if level is None else level
        names: list[str] = []
        for axis, lengths in reversed(list(zip(self.axes, self.counts, strict=False))[:level]):
            ends = np.cumsum(lengths)
            parent = int(np.searchsorted(ends, i, side="right"))
            inner = i - int(ends[parent] - lengths[parent])
            names.insert(0, f"position {inner}" if axis == "position" else f"{_NAMES[axis]} {inner + 1}")
            i = parent
        return ", ".join(names) + ": " * bool(names)

    def error(self, i: int, allowed: str) -> LineError:
        """Make an error of one value."""
        return self.line.error(self.field, f"{self.place(i)}found {shown(self.values[i])}; allowed: {allowed}")

    def refuse(self, bad: Array, allowed: str) -> None:
        """Raise for the first bad value."""
        if bad.any():
            raise self.error(int(np.argmax(bad)), allowed)

    def of_type(self, allowed: str, *types: type) -> None:
        """Refuse a value of another type; true and false are no numbers."""
        if not set(map(type, self.values)) <= set(types):
            raise self.error(next(i for i, value in enumerate(self.values) if type(value) not in types), allowed)

    def numbers(self, zeros: Zeros, *, nulls: bool = False) -> Array:
        """Give the values in the type of the column and in its range; null as NaN if ``nulls``."""
        column = self.column
        logs, whole = column.low == -np.inf, column.type != FLOAT
        allowed = f"{'an integer' if whole else 'a number'}, {column.low:.10g} to {column.high:.10g}"
        if logs:
            allowed = "a log-probability, a number <= 0"
        none = (type(None),) if nulls else ()
        self.of_type(allowed, *((int,) if whole else (int, float)), *none)
        try:
            values = np.array(self.values, dtype=np.int64 if whole else np.float64)
        except OverflowError:
            far = next(i for i, value in enumerate(self.values) if type(value) is int and abs(value) >= _FARTHEST)
            raise self.error(far, allowed) from None
        if logs:
            values = zeros.read(values, self)
        if not whole:
            values = _rounded(values)
        good = (values >= column.low - column.slack) & (values <= column.high + column.slack)
        self.refuse(~good & ~np.isnan(values), allowed)
        return values.astype(np.int32) if whole else values


def _rounded(values: Array) -> Array:
    """To float32; what is beyond it is infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def padded(values: Array, counts: Array, width: int, fill: float) -> Array:
    """Lay rows of varying length one below the other, ``(rows, width)``, or ``(rows, width, W)`` of cells ``(W,)``."""
    out = np.full((counts.size, width, *values.shape[1:]), fill, dtype=values.dtype)
    out[np.arange(width) < counts[:, None]] = values
    return out


def read_column(
    line: Line,
    field: str,
    column: Column,
    sizes: Sequence[int],
    rows: int,
    zeros: Zeros,
    each: str = "tokens",
    *,
    beyond: bool = False,
    nulls: bool = False,
) -> Array:
    """Read a field without list entries, ``(rows,)``, ``(rows, K)`` or ``(rows, K, W)``; see `Leaves`.

    Raises
    ------
    LineError
        Naming the first value that is none, or the first list of another length.
    """
    leaves = Leaves(line, field, column, sizes, rows, each, beyond=beyond)
    values = leaves.numbers(zeros, nulls=nulls)
    return padded(values.reshape(-1, *sizes[1:]), leaves.counts[1], sizes[0], column.fill) if sizes else values


def read_lists(
    line: Line,
    fields: Sequence[str],
    columns: Sequence[Column],
    sizes: Sequence[int],
    tokens: Array,
    zeros: Zeros,
) -> tuple[Array, Array]:
    """Read lists of ids and of their log-probabilities, ``(T, M)`` or ``(T, K, M)``, largest first.

    Depths past the end that a row does not hold are not recorded: id -1 and NaN.

    A list of ``M + 1`` entries holds the generated token besides the ``M`` likeliest. Its entry is not kept: it is no
    part of the cut at ``M``, and ``log_p`` or ``log_q`` has its value.

    Raises
    ------
    LineError
        If an id stands twice, the mass of a list is above 1, or an entry is too many.
    """
    rows, most = tokens.size, sizes[-1]
    ids, logs = (Leaves(line, f, column, sizes, rows, beyond=True) for f, column in zip(fields, columns, strict=True))
    counts, cell = ids.counts[-1], len(sizes)

    def refuse(bad: Array, field: str, message: str, level: int = cell) -> None:
        if bad.any():
            raise line.error(field, f"{ids.place(int(np.argmax(bad)), level)}{message}")

    for level in range(1, cell + 1):
        what = f"found another number of {'entries' if level == cell else 'depths'} than in {fields[0]}"
        refuse(ids.counts[level] != logs.counts[level], fields[1], what, level)
    named = padded(ids.numbers(zeros), counts, most + 1, NO_TOKEN)
    valued = padded(logs.numbers(zeros), counts, most + 1, -np.inf)
    ordered = np.sort(named, axis=1)
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_TOKEN)).any(axis=1)
    refuse(twice, fields[0], "found an id twice; allowed: each id once in a list")
    mass = np.exp(valued.astype(np.float64)).sum(axis=1)
    refuse(mass > 1 + SUM_TOLERANCE, fields[1], "found a mass above 1; allowed: log-probabilities of one distribution")

    own = named == _generated(tokens, ids.counts)[:, None]
    lowest = np.where(np.isneginf(valued) & (named == NO_TOKEN), np.inf, valued).min(axis=1)
    besides = (counts == most + 1) & (np.where(own, valued, np.inf).min(axis=1) <= lowest)
    refuse(
        (counts > most) & ~besides,
        fields[0],
        f"found {most + 1} entr{'ies' if most else 'y'}; allowed: the {most} likeliest, and the generated token if it "
        "is less likely",
    )
    named[own & besides[:, None]] = NO_TOKEN
    order = np.lexsort((-valued, named == NO_TOKEN), axis=-1)[:, :most]
    named, valued = np.take_along_axis(named, order, axis=1), np.take_along_axis(valued, order, axis=1)
    if cell == 1:
        return named, valued
    out = tuple(np.full((rows, *sizes), fill, dtype=v.dtype) for v, fill in ((named, NO_TOKEN), (valued, np.nan)))
    inside = np.arange(sizes[0]) < ids.counts[1][:, None]
    out[0][inside], out[1][inside] = named, valued
    return out[0], out[1]


def _generated(tokens: Array, counts: Sequence[Array]) -> Array:
    """The rollout's own token at each list, of its position, or of the start's position and the depth; -2 for none."""
    if len(counts) == 2:
        return tokens
    depths = counts[1]
    first = np.cumsum(depths) - depths
    at = np.repeat(np.arange(tokens.size) - first, depths) + np.arange(depths.sum())
    own: Array = np.where(at < tokens.size, tokens[np.minimum(at, tokens.size - 1)], -2)
    return own


def listed_depths(log_q: Array) -> Array:
    """Count the depths of each start of a rollout that have a list, of ``(T, K, M)``: those inside, at least."""
    inside = np.minimum(log_q.shape[1], len(log_q) - np.arange(len(log_q)))
    counts: Array = np.maximum(inside, (~np.isnan(log_q[..., :1])).any(axis=-1).sum(axis=1))
    return counts
