"""Medusa: one tree for every start, grown greedily from how often each rank of each depth is right.

The value of a node is the product of the accuracies on its path. From the empty tree on, the best neighbour is added:
the next sibling of a node, or its first child. Where accuracies do not rise with the rank, this is the tree of the
largest sum of values, the expected accepted drafts if depths were independent; trees of growing budget are nested.

Source: Cai et al. 2024, Medusa (arXiv 2401.10774). ``rank_accuracy`` measures the table.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, ClassVar

from markov_spec.arrays import Array
from markov_spec.drafting.fixed import existing, fixed_ranks
from markov_spec.drafting.inputs import Lists, Path
from markov_spec.drafting.measured import check_rates
from markov_spec.drafting.ranks import TreeRanks


@dataclass(frozen=True, eq=False)
class Medusa:
    """Add the neighbour of the largest product of accuracies; of equal ones the smaller rank path.

    Parameters
    ----------
    accuracy : array of float, (D, R)
        Probability that the candidate of rank ``r = 0, 1, ...`` at depth ``d = 1..D`` is right, at ``[d-1, r]``. Nodes
        of probability 0 are not added.

    Raises
    ------
    ValueError
        If a value is outside [0, 1], or those of a depth sum to more than 1.

    Examples
    --------
    >>> from markov_spec.drafting import Medusa
    >>> Medusa([[.6, .2], [.4, .3]]).order(4)
    [(0,), (0, 0), (1,), (0, 1)]
    """

    accuracy: Any

    name: ClassVar[str] = "medusa"

    def __post_init__(self) -> None:
        object.__setattr__(self, "accuracy", check_rates(self.accuracy, "accuracy", 2))

    def order(self, budget: int) -> list[Path]:
        """Give the tree of at most ``budget`` nodes in the order they are added, ``O(budget log budget)``."""
        table: list[list[float]] = self.accuracy.tolist()
        waiting: list[tuple[float, Path, float]] = [(-table[0][0], (0,), 1.0)]
        nodes: list[Path] = []
        while waiting and len(nodes) < budget and waiting[0][0] < 0:
            value, path, above = heapq.heappop(waiting)
            nodes.append(path)
            depth, place = len(path), path[-1] + 1
            if place < len(table[0]):
                heapq.heappush(waiting, (-above * table[depth - 1][place], (*path[:-1], place), above))
            if depth < len(table):
                heapq.heappush(waiting, (value * table[depth][0], (*path, 0), -value))
        return nodes

    def paths(self, log_q: Array, budget: int) -> list[Path]:
        """See ``Builder``."""
        return existing(self.order(budget), log_q)

    def ranks(self, lists: Lists, budget: int) -> TreeRanks:
        """See ``Builder``; ``O(N D)``, and ``O(n)`` more for each start whose lists are short."""
        return fixed_ranks(self.order(budget), lists, budget)
