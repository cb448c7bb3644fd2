"""Kernel of rounds that accept what ranks tell: no chance is left, so that a rollout is walked through."""

from __future__ import annotations

from markov_spec._jit import kernel
from markov_spec.arrays import Array


@kernel
def walk(
    rank: Array,
    exact_to: Array,
    nodes: Array,
    gaps: Array,
    budgets: Array,
    prices: Array,
    doubted: Array,
    indptr: Array,
    first_start: int,
    first: int,
    last: int,
    rounds: Array,
    drafted: Array,
    uncertain: Array,
    price: Array,
) -> None:
    """Decode rollouts with each column of ``budgets``, ``prices`` and ``doubted``, of a row for all starts or each."""
    depths = rank.shape[1]
    for i in range(first, last):
        begin, end = indptr[i], indptr[i + 1]
        for b in range(budgets.shape[1]):
            count, made, unsure, paid = 0, 0, 0, 0.0
            s = begin + first_start
            while s < end:
                n = budgets[s if budgets.shape[0] > 1 else 0, b]
                count += 1
                skipped = 0
                while skipped < gaps.shape[1] and gaps[s, skipped] <= n:
                    skipped += 1
                made += min(n - skipped, nodes[s])
                unsure += exact_to[s] < n or doubted[s if doubted.shape[0] > 1 else 0, b]
                paid += prices[s if prices.shape[0] > 1 else 0, b]
                k = 0
                while k < depths and rank[s, k] <= n:
                    k += 1
                s += k + 1
            rounds[i, b], drafted[i, b], uncertain[i, b], price[i, b] = count, made, unsure, paid
