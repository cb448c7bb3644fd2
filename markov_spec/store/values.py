"""Types, shapes and ranges of a part's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from markov_spec.arrays import ABSENT, Array, as_float, locate
from markov_spec.store.schema import DRAFTER_PARTS, FLOAT, NO_TOKEN, Column, Part

Columns = Mapping[str, Any]
# Parts that may lack rollouts, and the key that tells which of them they hold.
PARTIAL_PARTS = frozenset({"lists"})
COVERED = "covered"


@dataclass(frozen=True)
class Rows:
    """Rollouts ``first..last-1`` of some in the store's order, and where their source rows lie.

    ``order[i]`` is the number of rollout ``i`` in the source; None: the source is in the store's order.
    ``depth`` is the recorded ``K`` of a block drafter, else None. ``vocab_size`` bounds list ids; None: no bound, as
    a drafter's vocabulary may be padded wider than the target's. ``one_hot``: ``log_q`` of the law decides a match, so
    it is 0 or ``-inf``. ``unlisted``: it may be NaN, not recorded, as the drafter has lists. ``owner`` is named in
    errors.
    """

    owner: str
    ids: Sequence[str]
    indptr: Array
    depth: int | None
    first: int
    last: int
    order: Array | None = None
    vocab_size: int | None = None
    one_hot: bool = False
    unlisted: bool = False

    @cached_property
    def starts(self) -> Array:
        """First source row of each rollout."""
        if self.order is None:
            return self.indptr[:-1]
        lengths = np.empty(self.order.size, dtype=np.int64)
        lengths[self.order] = np.diff(self.indptr)
        starts: Array = (np.cumsum(lengths) - lengths)[self.order]
        return starts

    def only(self, covered: Array) -> Rows:
        """Those rollouts that are ``covered`` (R,), in the source's order, which holds no rows of the others."""
        kept = covered if self.order is None else covered[self.order]
        order = None if self.order is None else (np.cumsum(covered) - 1)[self.order[kept]]
        ids = [name for name, keep in zip(self.ids, kept.tolist(), strict=True) if keep]
        indptr = np.concatenate([[0], np.cumsum(np.diff(self.indptr)[kept])]).astype(np.int64)
        return replace(self, ids=ids, indptr=indptr, first=0, last=len(ids), order=order)

    @property
    def offsets(self) -> Array:
        """Positions of these rollouts, counted over the store."""
        return self.indptr[self.first : self.last + 1]

    def take(self, values: Any) -> Any:
        """Source rows of these rollouts, in the store's order."""
        low, high = int(self.offsets[0]), int(self.offsets[-1])
        if self.order is None:
            return values[low:high]
        shift = self.starts[self.first : self.last] - self.offsets[:-1]
        return values[np.arange(low, high) + np.repeat(shift, np.diff(self.offsets))]

    def inside(self, column: Column, shape: tuple[int, ...]) -> Array:
        """Which cells lie inside their rollout, broadcastable to ``shape``."""
        axes = column.trailing_axes(self.depth)
        if not axes or axes[0] == "entry" or column.past_end:
            return np.ones((1,) * len(shape), dtype=bool)
        left = np.repeat(self.offsets[1:], np.diff(self.offsets)) - np.arange(self.offsets[0], self.offsets[-1])
        mask: Array = np.arange(1, shape[1] + 1) <= left[:, None]
        return mask.reshape(mask.shape + (1,) * (len(shape) - 2))

    def refuse(self, bad: Array, values: Array, column: Column, where: str, allowed: str) -> None:
        """Raise for the first bad cell, named by rollout, position, depth and entry."""
        if not bad.any():
            return
        cell = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
        at = [locate(self.indptr, int(self.offsets[0]) + cell[0], self.ids)]
        for axis, i in zip(column.trailing_axes(self.depth), cell[1:], strict=False):
            at.append(f"{'entry' if axis == 'entry' else 'depth'} {i + 1}")
        raise ValueError(f"{where}: {', '.join(at)}: found {values[cell]}; allowed: {allowed}")


def check_covered(covered: Any, count: int, where: str) -> Array:
    """Refuse what does not tell, for each rollout, whether a part covers it."""
    found = np.asarray(covered)
    if found.shape != (count,) or found.dtype != bool:
        raise ValueError(
            f"{where}: {COVERED}: found shape {found.shape}, dtype {found.dtype}; allowed: ({count},) bools, one for "
            "each rollout"
        )
    return found


def trailing_sizes(
    part: Part, shapes: Mapping[str, tuple[int, ...]], rows: int, depth: int | None, where: str
) -> dict[str, list[int]]:
    """Check shapes against the part's axes; give each column's sizes after the position."""
    sizes: dict[str, list[int]] = {}
    known = {} if depth is None else {"block": depth}
    for name, found in shapes.items():
        axes = part[name].trailing_axes(depth)
        wanted = (rows, *(known.get(axis, -1) for axis in axes))
        if len(found) != len(wanted) or any(w not in (-1, n) for n, w in zip(found, wanted, strict=True)):
            letters = ", ".join(str(known.get(axis, "M" if axis == "entry" else "K")) for axis in axes)
            raise ValueError(f"{where}: {name}: found shape {found}; allowed: ({rows}, {letters}), a row per position")
        known.update(zip(axes, found[1:], strict=True))
        sizes[name] = list(found[1:])
    return sizes


def _convert(values: Any, column: Column, where: str) -> Array:
    if column.type == FLOAT:
        # A log-probability below -3e38 rounds to -inf; the range check that follows judges it.
        with np.errstate(over="ignore"):
            return as_float(values, where).astype(np.float32, copy=False)
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{where}: found dtype {array.dtype}; allowed: integers")
    return array


def _check_lists(columns: Mapping[str, Array], part: Part, rows: Rows, where: str) -> None:
    ids, name = columns["ids"], "log_p" if "log_p" in columns else "log_q"
    logs, column = columns[name], part[name]
    ordered = np.sort(ids, axis=-1)
    twice = ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] != NO_TOKEN)).any(axis=-1)
    rows.refuse(twice, ids, column, f"{where}: ids", "each id once in a list")
    rises = np.zeros(ids.shape, dtype=bool)
    rises[..., 1:] = logs[..., 1:] > logs[..., :-1]
    rows.refuse(rises, logs, column, f"{where}: {name}", "no more than the entry before it")
    orphans = (ids == NO_TOKEN) & (logs > -np.inf)
    rows.refuse(orphans, logs, column, f"{where}: {name}", f"-inf where the id is {NO_TOKEN}")


def _with_ties_by_id(ids: Array, logs: Array) -> Array:
    """Give ``ids`` (..., M) with equal values of ``logs`` in rising order of id, whatever a device's top-k gave."""
    tied = logs[..., 1:] == logs[..., :-1]
    wrong = (tied & (ids[..., 1:] < ids[..., :-1]) & (ids[..., 1:] != NO_TOKEN)).any(axis=-1)
    if not wrong.any():
        return ids
    fixed = ids.copy()
    key = np.where(ids[wrong] == NO_TOKEN, ABSENT, ids[wrong])
    fixed[wrong] = np.take_along_axis(ids[wrong], np.lexsort((key, -logs[wrong])), axis=-1)
    return fixed


def _recorded_lists(given: Mapping[str, Array], part: Part, rows: Rows, where: str) -> Array:
    """Tell which depths have a block drafter's list, or a beam (n, K): those inside, and those recorded past the end.

    Past the end NaN in the first entry of ``log_q`` says that there is none; then none stands at a larger depth.
    """
    logs, column = given["log_q"], part["log_q"]
    recorded: Array = rows.inside(column, logs.shape)[..., 0] | ~np.isnan(logs[..., :1]).all(axis=-1)
    for name, values in given.items():
        fill, rest = part[name].fill, values[~recorded]
        if ((rest != fill) & ~np.isnan(rest)).any():
            left = (values != fill) & ~np.isnan(values)
            left &= ~recorded.reshape(recorded.shape + (1,) * (values.ndim - 2))
            allowed = f"{fill}, as the first entry of log_q is nan: past the end, no list is recorded"
            rows.refuse(left, values, part[name], f"{where}: {name}", allowed)
    gaps = recorded[:, 1:] & ~recorded[:, :-1]
    if gaps.any():
        late = np.zeros(logs.shape, dtype=bool)
        late[:, 1:, 0] = gaps
        allowed = "nan, as past the end no list is recorded at the depth before"
        rows.refuse(late, logs, column, f"{where}: log_q", allowed)
    return recorded


def check_columns(columns: Columns, part: Part, rows: Rows, where: str) -> dict[str, Array]:
    """Validate the values of some rollouts and give them in the types of the schema, filled where there are no data."""
    given = {name: _convert(values, part[name], f"{where}: {name}") for name, values in columns.items()}
    listed = None
    if part is DRAFTER_PARTS["beam"] or (part is DRAFTER_PARTS["lists"] and rows.depth is not None):
        listed = _recorded_lists(given, part, rows, where)
    out: dict[str, Array] = {}
    for name, values in given.items():
        column, what = part[name], f"{where}: {name}"
        high = column.high
        if name == "drafted" and rows.depth is not None:
            high = rows.depth
        elif name == "ids" and rows.vocab_size is not None:
            high = rows.vocab_size - 1
        inside = rows.inside(column, values.shape)
        if listed is not None:
            inside = listed.reshape(listed.shape + (1,) * (values.ndim - 2))
        bad = ~((values >= column.low - column.slack) & (values <= high + column.slack)) & inside
        if rows.unlisted and part is DRAFTER_PARTS["law"] and name == "log_q":
            bad &= ~np.isnan(values)
        rows.refuse(bad, values, column, what, f"{column.low:.10g} to {high:.10g}")
        typed = np.ascontiguousarray(values, dtype=column.type.to_pandas_dtype())
        out[name] = typed if inside.all() else np.where(inside, typed, typed.dtype.type(column.fill))
        if rows.one_hot and part is DRAFTER_PARTS["law"] and name == "log_q":
            soft = (typed != 0) & (typed != -np.inf) & inside
            allowed = "0 or -inf, a draft fixed beforehand, as rule 'match' finds no rank: record rank"
            rows.refuse(soft, typed, column, what, allowed)
    if "ids" in out:
        _check_lists(out, part, rows, where)
        out["ids"] = _with_ties_by_id(out["ids"], out["log_p" if "log_p" in out else "log_q"])
    return out
