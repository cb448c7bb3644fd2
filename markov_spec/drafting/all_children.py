"""All children: the best node gets its ``width`` most probable children at once, until the budget is spent.

Nodes are expanded in order of their value, the root first, and each expansion adds ``width`` nodes in order of
probability, the last one as many as the budget has left. Low siblings enter before better nodes further down, so the
tree is not the best of its size; it may be worse than a chain. Trees of growing budget are nested.

A prefix therefore has rank ``width e + i + 1``: its last token has place ``i`` among its siblings, and ``e`` nodes are
expanded before its parent, namely the root and the nodes that precede the parent in order of value. Where a list has
fewer than ``width`` tokens, its expansions count what it has.

Source: JetSpec (arXiv 2606.18394), its accumulated log-probability rule.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from markov_spec.arrays import Array, check_integer
from markov_spec.drafting import _numba
from markov_spec.drafting.inputs import Lists, Path
from markov_spec.drafting.ranks import TreeRanks


@dataclass(frozen=True)
class AllChildren:
    """Add all ``width`` children of the best node at once; of equal nodes the smaller rank path is expanded first.

    Parameters
    ----------
    width : int
        Children of a node.
    """

    width: int = 7

    name: ClassVar[str] = "all-children"

    def __post_init__(self) -> None:
        check_integer(self.width, "width", 1)

    def paths(self, log_q: Array, budget: int) -> list[Path]:
        """See ``Builder``; a heap, ``O(budget log budget)``."""
        rows = np.asarray(log_q, np.float64).tolist()
        waiting: list[tuple[float, Path]] = [(0.0, ())]
        nodes: list[Path] = []
        while waiting and len(nodes) < budget:
            cost, path = heapq.heappop(waiting)
            if len(path) == len(rows):
                continue
            children = [
                (cost - log, (*path, place)) for place, log in enumerate(rows[len(path)][: self.width]) if log > -np.inf
            ]
            nodes += [child for _, child in children]
            for child in children:
                heapq.heappush(waiting, child)
        return nodes[:budget]

    def ranks(self, lists: Lists, budget: int) -> TreeRanks:
        """See ``Builder``; counts what is expanded before each prefix, without a heap."""
        return lists.fill(_numba.all_children, lists.width(self.width, "width"), budget=budget)
