"""Best-first: the nodes of the largest probability along their path.

The value of a node is the product of its path's probabilities. A child's value never exceeds its parent's, so the ``n``
best nodes are a tree, and of all trees of ``n`` nodes it has the largest sum of values: the expected accepted drafts if
each token were as probable as the drafter says. Trees of growing budget are nested.

Source: DDTree (arXiv 2604.12989), on the marginals of a block drafter.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np

from markov_spec.arrays import Array
from markov_spec.drafting import _numba
from markov_spec.drafting.inputs import Lists, Path
from markov_spec.drafting.ranks import TreeRanks

MOST_ROOM = 1 << 14  # values of nodes that a thread holds at a time


@dataclass(frozen=True)
class BestFirst:
    """Take the most probable nodes first; of equal ones the smaller rank path."""

    name: ClassVar[str] = "best-first"

    def paths(self, log_q: Array, budget: int) -> list[Path]:
        """See ``Builder``; a heap, ``O(budget log budget)``."""
        return list(islice(in_order(log_q), budget))

    def ranks(self, lists: Lists, budget: int) -> TreeRanks:
        """See ``Builder``; counts what precedes each prefix, without a heap."""
        return lists.fill(_numba.best_first, lists.complete, min(4 * budget + 1, MOST_ROOM), budget=budget)


def in_order(log_q: Array) -> Iterator[Path]:
    """Give the nodes of all listed tokens, (D, M), best first."""
    rows = np.asarray(log_q, np.float64).tolist()
    # Of each node: minus its value, its path, minus its parent's value.
    waiting: list[tuple[float, Path, float]] = [(-rows[0][0], (0,), 0.0)]
    while waiting and waiting[0][0] < np.inf:
        cost, path, above = heapq.heappop(waiting)
        yield path
        depth, place = len(path), path[-1] + 1
        if place < len(rows[0]):
            heapq.heappush(waiting, (above - rows[depth - 1][place], (*path[:-1], place), above))
        if depth < len(rows):
            heapq.heappush(waiting, (cost - rows[depth][0], (*path, 0), cost))
