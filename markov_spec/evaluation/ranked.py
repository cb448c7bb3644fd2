"""Where rollouts' tokens stand in a contender's trees, from what a store has of the drafter: ranks, lists or beams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from markov_spec.arrays import ABSENT, Array, RequestError, Rollouts
from markov_spec.drafting import BestFirst, Builder, Chain, TreeRanks, beam_ranks, next_tokens, node_values, tree_ranks
from markov_spec.evaluation.contender import Contender
from markov_spec.evaluation.lists import DraftLists, lists_of, ranges, read_lists, recorded
from markov_spec.store import Store

RANKS, BEAM = "tree-rank", "beam"
KEPT = "tree_rank"  # among a drafter's metadata: of which trees the part of that name tells


@dataclass(frozen=True, eq=False)
class Ranked:
    """Ranks of a range of rollouts, and of what is recorded of the drafter's probabilities its lists or beams.

    ``beam`` holds the log-probability of each path, (N, D, W): ``-inf`` where there is none, NaN if it is not recorded.
    """

    rollouts: Rollouts
    ranks: TreeRanks
    lists: DraftLists | None = None
    beam: Array | None = None

    @property
    def depth(self) -> int:
        """The largest depth of a tree."""
        return int(self.ranks.rank.shape[1])

    @property
    def contexts(self) -> Array:
        """Tokens before each start, those of the prompt included, (N,)."""
        offsets = self.rollouts.indptr
        prompts = np.array([len(prompt) for prompt in self.rollouts.prompt_tokens], dtype=np.int64)
        start: Array = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - prompts, np.diff(offsets))
        return start

    @property
    def left(self) -> Array:
        """Tokens of the rollout from each start on, (N,)."""
        offsets = self.rollouts.indptr
        remaining: Array = np.repeat(offsets[1:], np.diff(offsets)) - np.arange(offsets[-1])
        return remaining


def ranked(
    store: Store, contender: Contender, max_budget: int, *, cells: int = 64, fresh: bool = False
) -> Iterator[Ranked]:
    """Rank the tokens of all rollouts in the trees of a settled contender, range by range.

    Parameters
    ----------
    store : Store
    contender : Contender
        Its tree is a builder.
    max_budget : int
    cells : int
        Values of 8 bytes that the caller makes of each start.
    fresh : bool
        Whether to leave ranks that are kept aside.

    Raises
    ------
    RequestError
        If the store has nothing that tells of such trees.
    ValueError
        If the store is damaged, or lists are too short for the builder.
    """
    builder: Any = contender.tree
    if not fresh and kept_ranks(store, contender):
        yield from _kept(store, contender, max_budget, cells)
    elif recorded(store, contender)["depth"] is None:
        yield from _beams(store, contender, max_budget, cells)
    else:
        for lists in read_lists(store, contender, cells=cells):
            yield Ranked(lists.rollouts, ranks_of(lists, builder, max_budget), lists)


def kept_ranks(store: Store, contender: Contender) -> int:
    """Up to how many nodes a store keeps the ranks of these trees; 0 if it does not."""
    facts = recorded(store, contender)
    told = facts.get(KEPT)
    if RANKS not in facts["parts"] or not isinstance(told, dict) or not isinstance(contender.tree, BestFirst):
        return 0
    same = told.get("tree") == BestFirst.name and contender.draft_length in (None, told.get("depth"))
    return int(told["max_budget"]) if same else 0


def ranks_of(lists: DraftLists, builder: Builder, max_budget: int) -> TreeRanks:
    """Rank the rollouts' tokens in the trees of a builder."""
    return tree_ranks(
        lists.ids, lists.log_q, lists.tokens, max_budget=max_budget, builder=builder, complete=lists.complete
    )


def expected(some: Ranked, builder: Any, most: int) -> tuple[Array, Array] | None:
    """Give the drafter's probabilities of the nodes that a tree takes first, (N, most), and how many are sure, (N,).

    None where they are not recorded, and for builders that do not take the most probable node first.
    """
    if isinstance(builder, BestFirst) and some.beam is not None:
        rows, depths, width = some.beam.shape
        worth = np.where(np.isnan(some.beam), -np.inf, some.beam).reshape(rows, depths * width)
        worth = -np.sort(-worth, axis=1)[:, :most]
        values = np.pad(np.exp(worth), ((0, 0), (0, most - worth.shape[1])))
        best = np.concatenate([np.zeros((rows, 1)), some.beam[:, :, 0]], axis=1)
        known = np.argmax(np.isnan(np.pad(best, ((0, 0), (0, 1)), constant_values=np.nan)), axis=1) - 1
        deeper = np.where(known < depths, np.exp(best[np.arange(rows), known]), 0.0)
        return values, np.where(known < depths, np.count_nonzero(values > deeper[:, None], axis=1), width)
    if some.lists is None or not isinstance(builder, BestFirst | Chain):
        return None
    log_q = some.lists.log_q.astype(np.float64)
    best = np.cumsum(np.where(np.isnan(log_q[..., 0]), -np.inf, log_q[..., 0]), axis=1)
    depths, width = log_q.shape[1:]
    if isinstance(builder, Chain):
        values = np.pad(np.exp(best[:, :most]), ((0, 0), (0, max(most - depths, 0))))
        unlisted = np.zeros(len(values))
    else:
        values = node_values(log_q, max_budget=most)
        above = np.pad(best[:, :-1], ((0, 0), (1, 0)))
        ends = above + log_q[..., -1]
        unlisted = np.exp(np.where(np.isnan(ends), -np.inf, ends).max(axis=1))
        if some.lists.complete:
            unlisted[:] = 0
    # A depth that is not recorded has no node worth more than the chain above it.
    known = ~np.isnan(log_q[..., 0])
    deeper = np.where(known.all(axis=1), 0, np.exp(np.where(known, best, 0.0).min(axis=1)))
    edge = np.maximum(unlisted, deeper)
    sure = np.where(edge > 0, np.count_nonzero(values > edge[:, None], axis=1), most)
    return values, np.maximum(sure, np.where(known.all(axis=1), width if isinstance(builder, BestFirst) else most, 0))


def _kept(store: Store, contender: Contender, max_budget: int, cells: int) -> Iterator[Ranked]:
    """Take the ranks that are kept; beyond them, those of lists, if there are any."""
    facts = recorded(store, contender)
    depth, most = facts[KEPT]["depth"], facts[KEPT]["max_budget"]
    listed = facts["depth"] is not None and "lists" in facts["parts"]
    if max_budget > most and not listed:
        raise RequestError(
            f"contender {contender}: found a budget of {max_budget}; allowed: up to {most}, as ranks of larger trees "
            "are not kept, and there are no lists"
        )
    width = store._drafter(contender.drafter).sizes("lists")["ids"][-1] if listed else 0
    for batch in ranges(store, depth * (1 + width) + cells):
        part = batch.drafter_part(contender.drafter, RANKS, complete=True)
        top = min(max_budget, most)
        rank = np.where(part["rank"] > top, ABSENT, part["rank"])
        reach = np.where(part["reach"] > top, ABSENT, part["reach"]) if "reach" in part else None
        sure, nodes = (np.minimum(part[name], max_budget) for name in ("exact_to", "nodes"))
        ranks = TreeRanks(rank, max_budget=max_budget, exact_to=sure, nodes=nodes, reach=reach)
        lists = lists_of(batch, contender, depth) if listed else None
        if lists is not None and max_budget > most:
            ranks = _continued(ranks, ranks_of(lists, BestFirst(), max_budget), most)
        beam = _beam_values(batch, contender, depth) if BEAM in facts["parts"] else None
        yield Ranked(batch.rollouts(), ranks, lists, beam)


def _continued(kept: TreeRanks, listed: TreeRanks, most: int) -> TreeRanks:
    """Go on beyond the ranks that are kept, up to ``most``, with those by lists, which may be too small."""
    rank, reach = (
        _onwards(getattr(kept, name), getattr(listed, name), most, listed.max_budget) for name in ("rank", "reach")
    )
    sure = np.maximum(np.asarray(kept.exact_to), np.asarray(listed.exact_to))
    return TreeRanks(rank, max_budget=listed.max_budget, exact_to=sure, nodes=listed.nodes, reach=reach)


def _onwards(kept: Array, listed: Array, most: int, max_budget: int) -> Array:
    out, before = kept.astype(np.int64), np.zeros(len(kept), np.int64)
    for d in range(out.shape[1]):
        beyond = np.maximum(np.maximum(listed[:, d], before + 1), most + 1)
        out[:, d] = before = np.where(out[:, d] <= most, out[:, d], np.minimum(beyond, ABSENT))
    return np.where(out > max_budget, ABSENT, out)


def _beams(store: Store, contender: Contender, max_budget: int, cells: int) -> Iterator[Ranked]:
    depth, width = beam_sizes(store, contender)
    for batch in ranges(store, 2 * depth * width + cells):
        part, rollouts = batch.drafter_part(contender.drafter, BEAM, complete=True), batch.rollouts()
        token, parent, log_q = (part[name][:, :depth] for name in ("token", "parent", "log_q"))
        _check_searched(token, rollouts, contender)
        words = next_tokens(rollouts.tokens, rollouts.indptr, depth)
        ranks = beam_ranks(token, parent, log_q, words, max_budget=max_budget)
        yield Ranked(rollouts, ranks, beam=_beam_values(batch, contender, depth))


def _beam_values(batch: Store, contender: Contender, depth: int) -> Array:
    """Give the log-probability of each path of the beams, (N, D, W): ``-inf`` for none, NaN where none is recorded."""
    part = batch.drafter_part(contender.drafter, BEAM, complete=True)
    parent, values = part["parent"][:, :depth], part["log_q"][:, :depth].astype(np.float64)
    for k in range(1, depth):
        values[:, k] += np.take_along_axis(values[:, k - 1], np.maximum(parent[:, k], 0), axis=1)
    return values


def beam_sizes(store: Store, contender: Contender) -> tuple[int, int]:
    """Give the depth of a contender's trees and the paths of a beam.

    Raises
    ------
    RequestError
        If no beams were recorded, or the contender asks for another tree than they hold.
    """
    facts = recorded(store, contender)
    if BEAM not in facts["parts"]:
        raise RequestError(
            f"contender {contender}: an autoregressive drafter's tree needs part 'beam', its own continuations of "
            f"every path, which was not recorded; found: {', '.join(facts['parts'])}; markov-spec "
            "record-drafters STORE --candidates 5,16,1 --overwrite records it"
        )
    if not isinstance(contender.tree, BestFirst):
        raise RequestError(f"contender {contender}: found another tree; allowed: best-first, of beams")
    depth, width = store._drafter(contender.drafter).sizes(BEAM)["token"]
    if contender.draft_length is None:
        return depth, width
    if not 1 <= contender.draft_length <= depth:
        raise RequestError(f"contender {contender}: found K={contender.draft_length}; allowed: 1 to {depth}, recorded")
    return contender.draft_length, width


def _check_searched(token: Array, rollouts: Rollouts, contender: Contender) -> None:
    empty = token[:, 0, 0] < 0
    if empty.any():
        row = int(np.argmax(empty))
        i = int(np.searchsorted(rollouts.indptr, row, side="right")) - 1
        raise RequestError(
            f"contender {contender}: rollout {rollouts.ids[i]!r}, position {row - rollouts.indptr[i]}: found no beam; "
            "allowed: beams from every start, record --candidates DEPTH,WIDTH,1"
        )
