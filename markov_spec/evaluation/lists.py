"""A drafter's lists of likely tokens in a store, as trees read them, a range of rollouts at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from markov_spec.arrays import Array, RequestError, Rollouts, check_integer
from markov_spec.drafting import next_tokens
from markov_spec.drafting.inputs import places
from markov_spec.evaluation.contender import Contender
from markov_spec.store import Store

RANGE_BYTES = 32 << 20
LEAST_CELLS = 64
COMPLETE = 1 - 1e-5  # of a list's probability, beside rounding


@dataclass(frozen=True, eq=False)
class DraftLists:
    """Lists of a range of rollouts.

    Parameters
    ----------
    rollouts : Rollouts
    ids, log_q : ndarray, (N, D, M)
    tokens : ndarray of int32, (N, D)
        The rollout's next tokens, -1 past its end.
    """

    rollouts: Rollouts
    ids: Array
    log_q: Array
    tokens: Array

    @property
    def complete(self) -> bool:
        """Whether nothing beyond the lists is ever drafted: each has all of the probability, or no token."""
        mass = np.exp(self.log_q[self.tokens >= 0].astype(np.float64)).sum(axis=-1)
        return bool(((mass >= COMPLETE) | (mass == 0)).all())


@dataclass(frozen=True, eq=False)
class Places:
    """Where the rollouts' tokens stand in the lists: ``hit`` (N, D), list length, and row offsets (R+1,)."""

    hit: Array
    listed: int
    indptr: Array


def tree_depth(store: Store, contender: Contender) -> int:
    """Give the depth ``D`` of a contender's trees.

    Raises
    ------
    RequestError
        If the store has no lists of each depth, or the contender asks for more depths than were recorded.
    """
    facts = store.facts()["drafters"].get(contender.drafter)
    if facts is None:
        allowed = ", ".join(store.drafters) or "none, the store holds no drafter"
        raise RequestError(f"contender {contender}: found drafter {contender.drafter!r}; allowed: {allowed}")
    if facts["depth"] is None:
        raise RequestError(
            f"contender {contender}: an autoregressive drafter's tree needs its own continuations of every path, which "
            "lists along the rollout do not hold; allowed: a block drafter"
        )
    if "lists" not in facts["parts"]:
        raise RequestError(
            f"contender {contender}: a tree needs part 'lists' of drafter {contender.drafter!r}, which was not "
            f"recorded; found: {', '.join(facts['parts'])}; markov-spec record --drafter-top 64 records it"
        )
    depth: int = facts["depth"]
    if contender.draft_length is None:
        return depth
    if not 1 <= contender.draft_length <= depth:
        raise RequestError(f"contender {contender}: found K={contender.draft_length}; allowed: 1 to {depth}, recorded")
    return contender.draft_length


def read_lists(store: Store, contender: Contender, *, cells: int = LEAST_CELLS) -> Iterator[DraftLists]:
    """Read a drafter's lists range by range; of no rollouts once where there are none.

    Parameters
    ----------
    store : Store
    contender : Contender
    cells : int
        Values of 8 bytes that are made of each start beside its lists.

    Raises
    ------
    RequestError
        As `tree_depth`, or if the lists lack rollouts.
    ValueError
        If the store is damaged.
    """
    depth = tree_depth(store, contender)
    width = store._drafter(contender.drafter).sizes("lists")["ids"][-1]
    positions = max(1, RANGE_BYTES // (8 * (depth * width + cells)))
    for batch in store.batches(positions) if len(store) else (store,):
        part, rollouts = batch.drafter_part(contender.drafter, "lists", complete=True), batch.rollouts()
        ids, log_q = (np.ascontiguousarray(part[name][:, :depth]) for name in ("ids", "log_q"))
        yield DraftLists(rollouts, ids, log_q, next_tokens(rollouts.tokens, rollouts.indptr, depth))


def read_places(store: Store, contender: Contender, rollouts: Any = None) -> Places:
    """Find where the tokens of some rollouts, (R,) of bool, stand in a drafter's lists; of all by default."""
    chosen = check_rollouts(store, rollouts)
    found, lengths, listed, first = [], [], 0, 0
    for lists in read_lists(store, contender):
        own = chosen[first : first + len(lists.rollouts)]
        sizes, first = np.diff(lists.rollouts.indptr), first + len(lists.rollouts)
        rows, listed = np.repeat(own, sizes), lists.ids.shape[2]
        found.append(places(lists.ids[rows], lists.tokens[rows], None))
        lengths.append(sizes[own])
    return Places(np.concatenate(found), listed, np.concatenate([[0], np.cumsum(np.concatenate(lengths))]))


def check_rollouts(store: Store, given: Any) -> Array:
    """Give which rollouts are chosen, (R,) of bool; all of them if none are given."""
    chosen = np.ones(len(store), dtype=bool) if given is None else np.asarray(given)
    if chosen.shape != (len(store),) or chosen.dtype != bool:
        raise RequestError(
            f"rollouts: found shape {chosen.shape}, dtype {chosen.dtype}; allowed: ({len(store)},) bools, one for each"
        )
    return chosen


def check_budget(contender: Contender) -> int:
    """Give the budget of a contender that must have one."""
    if contender.budget is None:
        raise RequestError(f"contender {contender}: a tree needs a budget, such as budget=64 nodes")
    check_integer(contender.budget, "budget", 0)
    return contender.budget
