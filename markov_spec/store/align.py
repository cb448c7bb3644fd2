"""Which rows of a drafter belong to which rollout: by id, never by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from markov_spec.arrays import Array, Drafts

# A list of lengths that still grows, or one that is whole.
Lengths = Sequence[int] | Array
_SHOWN = 5


def _names(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(repr(i) for i in ids[:_SHOWN]) + more


def _check_same_ids(found: Sequence[str], wanted: Sequence[str], who: str, others: str) -> None:
    have, want = set(found), set(wanted)
    if len(have) < len(found):
        seen: set[str] = set()
        twice = [i for i in found if i in seen or seen.add(i)]  # type: ignore[func-returns-value] # its None is false
        raise ValueError(f"{who}: rollout ids given twice: {_names(twice)}")
    missing, extra = [i for i in wanted if i not in have], [i for i in found if i not in want]
    if missing or extra:
        parts = [f"missing rollouts: {_names(missing)}"] * bool(missing)
        parts += [f"rollouts that {others}: {_names(extra)}"] * bool(extra)
        raise ValueError(f"{who}: {'; '.join(parts)}")


def check_complete(missing: Sequence[str], who: str) -> None:
    """Refuse a drafter whose batches ended before the rollouts did."""
    if missing:
        raise ValueError(f"{who}: missing rollouts: {_names(missing)}")


def count_rollouts(drafts: Drafts, lengths: Lengths, first: int) -> int:
    """Give the number of rollouts that a batch holds, the first one ``first``; without ids their ``lengths`` decide.

    Raises
    ------
    ValueError
        If there are fewer, or the batch ends within one.
    """
    who, rows, left = f"drafter {drafts.name!r}", drafts.log_q.shape[0], len(lengths) - first
    if drafts.ids is not None:
        count = len(drafts.ids)
    elif drafts.indptr is not None:
        count = len(drafts.indptr) - 1
    else:
        ends = np.cumsum(lengths[first:], dtype=np.int64)
        count = int(np.searchsorted(ends, rows, side="right"))
        found = int(ends[count - 1]) if count else 0
        if found != rows:
            more = f" or {ends[count]}" if count < left else ""
            raise ValueError(f"{who}: found {rows} positions; allowed: {found}{more}, where the store's rollouts end")
    if count > left:
        raise ValueError(
            f"{who}: found drafts of {count} rollouts; allowed: {left}, those that have none of this drafter yet"
        )
    return count


def source_order(drafts: Drafts, ids: Sequence[str], indptr: Array, others: str) -> Array | None:
    """Number in the source of each of some of the store's rollouts; None where the order is the store's own.

    ``others`` says what rollouts are that are not among them.

    Raises
    ------
    ValueError
        Naming rollouts that are missing, unknown or doubled, or whose lengths differ.
    """
    who = f"drafter {drafts.name!r}"
    rows, lengths = drafts.log_q.shape[0], np.diff(indptr)
    given = ids if drafts.ids is None else drafts.ids
    _check_same_ids(given, ids, who, others)
    place = {name: i for i, name in enumerate(ids)}
    into = np.array([place[name] for name in given], dtype=np.int64)
    if drafts.indptr is None:
        found = lengths[into]
    else:
        found = np.diff(np.asarray(drafts.indptr))
        if found.size != len(given):
            raise ValueError(f"{who}: indptr: found {found.size} rollouts; allowed: {len(given)}")
        wrong = np.flatnonzero(found != lengths[into])
        if wrong.size:
            i = int(wrong[0])
            raise ValueError(
                f"{who}: rollout {given[i]!r}: found {found[i]} positions; allowed: {lengths[into[i]]}, as in the store"
            )
    if found.sum() != rows:
        raise ValueError(f"{who}: found {rows} positions; allowed: {found.sum()}, as in the store")
    if (into == np.arange(into.size)).all():
        return None
    order = np.empty(into.size, dtype=np.int64)
    order[into] = np.arange(into.size)
    return order
