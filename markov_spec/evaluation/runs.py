"""What several ways to set a tree's budget take on every rollout, and their aggregates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from markov_spec.arrays import Array
from markov_spec.comparison import ratio_interval
from markov_spec.drafting import Builder, TreeRounds, tree_rounds
from markov_spec.evaluation.lists import DraftLists, read_lists
from markov_spec.evaluation.trees import contexts, ranks_of
from markov_spec.latency import Price
from markov_spec.store import Store

LENGTHS = ("pooled_length", "pooled_low", "pooled_high")
PRICED = ("expected_price", "price_per_token", "speedup", "speedup_low", "speedup_high")
SCHEMA: dict[str, Any] = {
    "budget": pl.Int64,
    "rounds": pl.Int64,
    "nodes_per_round": pl.Float64,
    **dict.fromkeys((*LENGTHS, *PRICED), pl.Float64),
    "uncertain_rounds": pl.Int64,
    "exactness": pl.String,
}


@dataclass(frozen=True, eq=False)
class Runs:
    """Rounds of every rollout with each of ``B`` ways to set the budget, of which the first is no speculation.

    Parameters
    ----------
    prompt_ids : tuple of str, (R,)
    tokens : ndarray, (R,)
        Committed in rounds.
    rounds, drafted, uncertain : ndarray of int64, (R, B)
    price : ndarray of float64, (R, B), or None
    """

    prompt_ids: tuple[str, ...]
    tokens: Array
    rounds: Array
    drafted: Array
    uncertain: Array
    price: Array | None

    def row(self, column: int, chosen: Array, level: float) -> dict[str, Any]:
        """Aggregate one of the ways over chosen rollouts, (R,) of bool; see ``SCHEMA``."""
        prompts = [prompt for prompt, own in zip(self.prompt_ids, chosen, strict=True) if own]
        tokens, rounds = self.tokens[chosen], self.rounds[chosen, column]
        count, unsure = int(rounds.sum()), int(self.uncertain[chosen, column].sum())
        paid: dict[str, float | None] = dict.fromkeys(PRICED)
        if self.price is not None:
            own = self.price[chosen, column]
            per_token = ratio_interval(own, tokens, prompts).ratio
            speed = ratio_interval(self.price[chosen, 0], own, prompts, level=level)
            paid = dict(zip(PRICED, (math.fsum(own), per_token, *speed), strict=True))
        return {
            "rounds": count,
            "nodes_per_round": float(self.drafted[chosen, column].sum()) / count if count else None,
            **dict(zip(LENGTHS, ratio_interval(tokens, rounds, prompts, level=level), strict=True)),
            **paid,
            "uncertain_rounds": unsure,
            "exactness": "bound" if unsure else "exact",
        }


def gathered(parts: Iterator[tuple[DraftLists, TreeRounds]], first_start: int) -> Runs:
    """Put the rollouts of all ranges together."""
    prompts: list[str] = []
    lengths, found = [], []
    for lists, rounds in parts:
        prompts += lists.rollouts.prompt_ids
        lengths.append(np.diff(lists.rollouts.indptr))
        found.append(rounds)
    joined = _joined(found, axis=0)
    return Runs(
        prompt_ids=tuple(prompts),
        tokens=np.maximum(np.concatenate(lengths) - first_start, 0),
        rounds=joined.rounds,
        drafted=joined.drafted,
        uncertain=joined.uncertain,
        price=joined.price,
    )


def _joined(found: list[TreeRounds], axis: int) -> TreeRounds:
    paid = [own.price for own in found if own.price is not None]
    return TreeRounds(
        rounds=np.concatenate([own.rounds for own in found], axis=axis),
        drafted=np.concatenate([own.drafted for own in found], axis=axis),
        uncertain=np.concatenate([own.uncertain for own in found], axis=axis),
        price=np.concatenate(paid, axis=axis) if paid else None,
    )


def fixed_budgets(
    store: Store, contender: Any, sizes: list[int], price: Price | None, first_start: int
) -> Iterator[tuple[DraftLists, TreeRounds]]:
    """Decode a settled contender with each of several budgets, range by range; budgets rise from 0."""
    for lists in read_lists(store, contender, cells=4 * len(sizes)):
        yield lists, _decoded(lists, contender.tree, sizes, price, first_start)


def _decoded(
    lists: DraftLists, builder: Builder, sizes: list[int], price: Price | None, first_start: int
) -> TreeRounds:
    offsets = lists.rollouts.indptr
    whole = ranks_of(lists, builder, sizes[-1])
    if whole.min_budget == 0:
        made = [(whole, sizes)]
    else:  # smaller trees are no parts of this one
        made = [(ranks_of(lists, builder, n), [n]) for n in sizes]
    found = []
    for ranks, own in made:
        nodes = np.stack([ranks.drafted(n) if n else np.zeros(len(ranks.rank), np.int32) for n in own], axis=1)
        prices = None if price is None else tree_prices(price, lists, nodes)
        found.append(tree_rounds(ranks, offsets, budgets=own, prices=prices, first_start=first_start))
    return _joined(found, axis=1)


def tree_prices(price: Price, lists: DraftLists, nodes: Array) -> Array:
    """Give the price of a round from every start with trees of these nodes, (N, B)."""
    return price.of(np.minimum(nodes, lists.tokens.shape[1]), nodes, contexts(lists.rollouts)[:, None])
