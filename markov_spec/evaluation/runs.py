"""What several ways to set a tree's budget take on every rollout, and their aggregates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from markov_spec.arrays import Array
from markov_spec.comparison import ratio_interval
from markov_spec.drafting import TreeRounds, tree_rounds
from markov_spec.evaluation.contender import Contender
from markov_spec.evaluation.ranked import Ranked, ranked, ranks_of
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
        rounds = self.rounds[chosen, column]
        count, unsure = int(rounds.sum()), int(self.uncertain[chosen, column].sum())
        paid = None if self.price is None else (self.price[chosen, column], self.price[chosen, 0])
        return {
            "rounds": count,
            "nodes_per_round": float(self.drafted[chosen, column].sum()) / count if count else None,
            **quotients(self.tokens[chosen], rounds, paid, prompts, level),
            "uncertain_rounds": unsure,
            "exactness": "bound" if unsure else "exact",
        }


def quotients(
    tokens: Array, rounds: Array, paid: tuple[Array, Array] | None, prompts: Sequence[str], level: float
) -> dict[str, float | None]:
    """Give ``LENGTHS`` and ``PRICED`` of rollouts, (R,) each; ``paid`` is their price and that of no speculation."""
    found: dict[str, float | None] = dict(
        zip(LENGTHS, ratio_interval(tokens, rounds, prompts, level=level), strict=True)
    )
    if paid is None:
        return found | dict.fromkeys(PRICED)
    own, none = paid
    per_token, speed = ratio_interval(own, tokens, prompts).ratio, ratio_interval(none, own, prompts, level=level)
    return found | dict(zip(PRICED, (math.fsum(own), per_token, *speed), strict=True))


def gathered(parts: Iterator[tuple[Ranked, TreeRounds]], first_start: int) -> Runs:
    """Put the rollouts of all ranges together."""
    prompts: list[str] = []
    lengths, found = [], []
    for some, rounds in parts:
        prompts += some.rollouts.prompt_ids
        lengths.append(np.diff(some.rollouts.indptr))
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
    store: Store, contender: Contender, sizes: list[int], price: Price | None, first_start: int
) -> Iterator[tuple[Ranked, TreeRounds]]:
    """Decode a settled contender with each of several budgets, range by range; budgets rise from 0."""
    for some in ranked(store, contender, sizes[-1], cells=4 * len(sizes)):
        if some.ranks.min_budget == 0:
            yield some, _decoded(some, sizes, price, first_start)
        else:  # smaller trees are no parts of this one
            builder: Any = contender.tree
            lists: Any = some.lists
            every = [Ranked(some.rollouts, ranks_of(lists, builder, n)) for n in sizes]
            rounds = [_decoded(one, [n], price, first_start) for one, n in zip(every, sizes, strict=True)]
            yield some, _joined(rounds, axis=1)


def _decoded(some: Ranked, sizes: list[int], price: Price | None, first_start: int) -> TreeRounds:
    ranks = some.ranks
    prices = None
    if price is not None:
        none = np.zeros(len(ranks.rank), np.int32)
        nodes = np.stack([ranks.drafted(n) if n else none for n in sizes], axis=1)
        depths = np.stack([ranks.depths(n) if n else none for n in sizes], axis=1)
        prices = price.of(depths, nodes, some.contexts[:, None])
    return tree_rounds(ranks, some.rollouts.indptr, budgets=sizes, prices=prices, first_start=first_start)
