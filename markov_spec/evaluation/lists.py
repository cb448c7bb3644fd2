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


@dataclass(frozen=True, eq=False)
class DraftLists:
    """Lists of a range of rollouts.

    Parameters
    ----------
    rollouts : Rollouts
    ids, log_q : ndarray, (N, D, M)
    tokens : ndarray of int32, (N, D)
        The rollout's next tokens, -1 past its end.
    vocab_size : int or None
        Tokens of the target.
    """

    rollouts: Rollouts
    ids: Array
    log_q: Array
    tokens: Array
    vocab_size: int | None

    @property
    def complete(self) -> bool:
        """Whether nothing beyond the lists is ever drafted: they hold the vocabulary, or one token that is certain.

        That a list's probabilities sum to 1 up to rounding says nothing: trees of many nodes draft what is left.
        """
        if self.ids.shape[2] > 1:
            size = self.vocab_size
            return size is not None and self.ids.shape[2] >= size and int(self.ids.max(initial=-1)) < size
        only = self.log_q[..., 0]
        return bool((np.isnan(only) | (only == 0) | (only == -np.inf)).all())


@dataclass(frozen=True, eq=False)
class Places:
    """Where the rollouts' tokens stand in the lists: ``hit`` (N, D), list length, and row offsets (R+1,)."""

    hit: Array
    listed: int
    indptr: Array


def recorded(store: Store, contender: Contender) -> dict[str, Any]:
    """Give what the store tells of a contender's drafter: its metadata, kind, rule, depth and parts.

    Raises
    ------
    RequestError
        If the store has no such drafter.
    """
    facts: dict[str, Any] | None = store.facts()["drafters"].get(contender.drafter)
    if facts is None:
        allowed = ", ".join(store.drafters) or "none, the store holds no drafter"
        raise RequestError(f"contender {contender}: found drafter {contender.drafter!r}; allowed: {allowed}")
    return facts


def _list_depth(store: Store, contender: Contender) -> int:
    facts = recorded(store, contender)
    if facts["depth"] is None:
        raise RequestError(
            f"contender {contender}: found an autoregressive drafter, whose lists along the rollout tell of no other "
            "path; allowed: a block drafter"
        )
    if "lists" not in facts["parts"] and "tree-rank" in facts["parts"]:
        raise RequestError(
            f"contender {contender}: such trees need part 'lists' of drafter {contender.drafter!r}, which is not "
            f"there; kept are ranks of {facts.get('tree_rank')}"
        )
    if "lists" not in facts["parts"]:
        raise RequestError(
            f"contender {contender}: such trees need part 'lists' of drafter {contender.drafter!r}, which was not "
            f"recorded; found: {', '.join(facts['parts'])}; markov-spec record --drafter-top 64 records it"
        )
    depth: int = facts["depth"]
    if contender.draft_length is None:
        return depth
    if not 1 <= contender.draft_length <= depth:
        raise RequestError(f"contender {contender}: found K={contender.draft_length}; allowed: 1 to {depth}, recorded")
    return contender.draft_length


def ranges(store: Store, cells: int) -> Iterator[Store]:
    """Go through a store in ranges whose starts, of ``cells`` values of 8 bytes each, take some 32 MB; one at least."""
    return store.batches(max(1, RANGE_BYTES // (8 * cells))) if len(store) else iter((store,))


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
        If the store has no lists of each depth, or fewer depths than the contender asks for.
    ValueError
        If the store is damaged, or the lists lack rollouts.
    """
    depth = _list_depth(store, contender)
    width = store._drafter(contender.drafter).sizes("lists")["ids"][-1]
    for batch in ranges(store, depth * width + cells):
        yield lists_of(batch, contender, depth)


def lists_of(batch: Store, contender: Contender, depth: int) -> DraftLists:
    """Read the lists of all rollouts of a store at once."""
    part, rollouts = batch.drafter_part(contender.drafter, "lists", complete=True), batch.rollouts()
    ids, log_q = (np.ascontiguousarray(part[name][:, :depth]) for name in ("ids", "log_q"))
    words = next_tokens(rollouts.tokens, rollouts.indptr, depth)
    return DraftLists(rollouts, ids, log_q, words, batch.metadata.get("vocab_size"))


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


def held_out(store: Store, share: float, seed: int) -> Array:
    """Choose rollouts to be held out, (R,) of bool: those of a share of the prompts.

    Raises
    ------
    RequestError
        If it leaves no prompt on a side; 0 holds out none.
    """
    if not isinstance(share, int | float) or not 0 <= share < 1:
        raise RequestError(f"holdout: found {share}; allowed: 0 up to below 1, a share of the prompts")
    check_integer(seed, "seed", 0)
    prompts = [name for batch in store.batches() for name in batch.rollouts().prompt_ids]
    names = list(dict.fromkeys(prompts))
    count = round(share * len(names))
    if share and not 0 < count < len(names):
        raise RequestError(f"holdout: found {share} of {len(names)} prompts; allowed: one held out and one kept")
    held = {names[i] for i in np.random.default_rng(seed).permutation(len(names))[:count].tolist()}
    return np.array([prompt in held for prompt in prompts], dtype=bool)


def check_budget(contender: Contender) -> int:
    """Give the budget of a contender that must have one."""
    if contender.budget is None:
        raise RequestError(f"contender {contender}: a tree needs a budget, such as budget=64 nodes")
    check_integer(contender.budget, "budget", 0)
    return contender.budget
