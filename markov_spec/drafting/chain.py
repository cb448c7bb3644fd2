"""Chain: the most probable token of each depth and nothing beside it, ``rank[k] = k`` while the rollout follows it.

With ``K`` nodes it is the greedy chain of draft length ``K`` verified by matching (A2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from markov_spec.arrays import ABSENT, Array
from markov_spec.drafting.inputs import Lists, Path
from markov_spec.drafting.ranks import TreeRanks


@dataclass(frozen=True)
class Chain:
    """Take the first token of each list."""

    name: ClassVar[str] = "chain"

    def paths(self, log_q: Array, budget: int) -> list[Path]:
        """See ``Builder``."""
        listed = int(np.argmin(np.append(log_q[:, 0] > -np.inf, False)))
        return [(0,) * k for k in range(1, min(budget, listed) + 1)]

    def ranks(self, lists: Lists, budget: int) -> TreeRanks:
        """See ``Builder``; ``O(N D)``."""
        depths = np.arange(1, lists.hit.shape[1] + 1)
        along = np.logical_and.accumulate(lists.hit == 0, axis=1) & (depths <= budget)
        missing = depths > lists.recorded[:, None]
        drafted = np.logical_and.accumulate(missing | (lists.log_q[..., 0] > -np.inf), axis=1)
        nodes = np.minimum(drafted.sum(axis=1), budget)
        sure = np.where((drafted & missing).any(axis=1), np.minimum(lists.recorded, budget), budget)
        rank, reach = (np.where(taken, depths, ABSENT) for taken in (along, drafted & (depths <= budget)))
        return TreeRanks(rank, max_budget=budget, exact_to=sure, nodes=nodes, reach=reach)
