"""EAGLE-2: a beam grows layer by layer; of all that it looked at, the best nodes are kept.

The first layer has the ``beam`` most probable tokens. Each node of a layer's beam gets ``beam`` children, and the best
``beam`` of these are the next layer's. All of them, ``beam + depth beam^2``, are then ordered by the probability of
their path, and the best ``budget`` are drafted: a tree, as parents are never below their children. Trees of growing
budget are nested for one beam and depth. A beam leaves out good nodes once the budget is large against ``beam^2``.

On lists that depend on the depth only, this is EAGLE-2's rule for a drafter whose tokens do not depend on the path.
Source: Li et al. 2024, EAGLE-2 (arXiv 2406.16858).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from markov_spec.arrays import Array, check_integer
from markov_spec.drafting import _numba
from markov_spec.drafting.inputs import Lists, Path, check_cells
from markov_spec.drafting.ranks import TreeRanks


@dataclass(frozen=True)
class Eagle2:
    """Keep the best of all nodes that a beam has looked at; of equal ones the smaller rank path.

    Parameters
    ----------
    beam : int
        Nodes of each layer that get children, and children of each.
    depth : int, optional
        Expansions after the first layer, so that the tree has up to ``depth + 1``; absent means all that have lists.
    """

    beam: int = 10
    depth: int | None = None

    name: ClassVar[str] = "eagle2"

    def __post_init__(self) -> None:
        check_integer(self.beam, "beam", 1)
        if self.depth is not None:
            check_integer(self.depth, "depth", 0)

    def paths(self, log_q: Array, budget: int) -> list[Path]:
        """See ``Builder``; ``O(depth beam^2 log beam)``."""
        rows = np.asarray(log_q, np.float64).tolist()
        layer: list[tuple[float, Path]] = [(0.0, ())]
        pool: list[tuple[float, Path]] = []
        for row in rows[: self._layers(len(rows))]:
            children = [
                (cost - log, (*path, place))
                for cost, path in layer
                for place, log in enumerate(row[: self.beam])
                if log > -np.inf
            ]
            pool += children
            layer = sorted(children)[: self.beam]
        return [path for _, path in sorted(pool)[:budget]]

    def ranks(self, lists: Lists, budget: int) -> TreeRanks:
        """See ``Builder``; counts what precedes each prefix among the beams' children."""
        width, layers = lists.width(self.beam, "beam"), self._layers(lists.log_q.shape[1])
        beam = min(int(self.beam), width**layers)  # no layer has more nodes
        check_cells(beam, "beam", layers**2)
        return lists.fill(_numba.beamed, beam, width, layers, budget=budget)

    def _layers(self, depths: int) -> int:
        if self.depth is None:
            return depths
        if self.depth >= depths:
            raise ValueError(f"depth: found {self.depth}; allowed: at most {depths - 1}, as {depths} depths have lists")
        return self.depth + 1
