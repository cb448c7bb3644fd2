"""Which rows of a drafter belong to which rollout: by id, never by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from markov_spec.arrays import Array, Drafts

_SHOWN = 5


def _names(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(repr(i) for i in ids[:_SHOWN]) + more


def _check_same_ids(found: Sequence[str], wanted: Sequence[str], who: str) -> None:
    have, want = set(found), set(wanted)
    if len(have) < len(found):
        seen: set[str] = set()
        twice = [i for i in found if i in seen or seen.add(i)]  # type: ignore[func-returns-value] # its None is false
        raise ValueError(f"{who}: rollout ids given twice: {_names(twice)}")
    missing, extra = [i for i in wanted if i not in have], [i for i in found if i not in want]
    if missing or extra:
        parts = [f"missing rollouts: {_names(missing)}"] * bool(missing)
        parts += [f"rollouts that the store lacks: {_names(extra)}"] * bool(extra)
        raise ValueError(f"{who}: {'; '.join(parts)}")


def source_starts(drafts: Drafts, ids: Sequence[str], indptr: Array) -> Array | None:
    """First source row of each of the store's rollouts; None where the order is the store's own.

    Raises
    ------
    ValueError
        Naming rollouts that are missing, unknown or doubled, or whose lengths differ.
    """
    who = f"drafter {drafts.name!r}"
    rows, lengths = drafts.log_q.shape[0], np.diff(indptr)
    order = ids if drafts.ids is None else drafts.ids
    _check_same_ids(order, ids, who)
    place = {name: i for i, name in enumerate(ids)}
    into = np.array([place[name] for name in order], dtype=np.int64)
    if drafts.indptr is None:
        found = lengths[into]
    else:
        found = np.diff(np.asarray(drafts.indptr))
        if found.size != len(order):
            raise ValueError(f"{who}: indptr: found {found.size} rollouts; allowed: {len(order)}")
        wrong = np.flatnonzero(found != lengths[into])
        if wrong.size:
            i = int(wrong[0])
            raise ValueError(
                f"{who}: rollout {order[i]!r}: found {found[i]} positions; allowed: {lengths[into[i]]}, as in the store"
            )
    if found.sum() != rows:
        raise ValueError(f"{who}: found {rows} positions; allowed: {found.sum()}, as in the store")
    if (into == np.arange(into.size)).all():
        return None
    starts = np.empty(into.size, dtype=np.int64)
    starts[into] = np.cumsum(found) - found
    return starts
