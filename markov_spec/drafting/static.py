"""Static: one tree of rank paths for every start, given or learned from rollouts by ``fit_static_tree``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from markov_spec.arrays import Array
from markov_spec.drafting.fixed import check_paths, existing, fixed_ranks
from markov_spec.drafting.inputs import Lists, Path
from markov_spec.drafting.ranks import TreeRanks


@dataclass(frozen=True)
class Static:
    """Take the nodes of a given tree, in its order.

    Parameters
    ----------
    tree : sequence of sequence of int
        Rank paths: places from 0 in the lists of depths 1, 2, ...; a parent before its children. A smaller budget takes
        the first ones, without those that a start has no token for.

    Raises
    ------
    ValueError
        If a place is no integer from 0 to below ``ABSENT``, a path comes twice, or its parent does not stand before it.

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.drafting import Static, build_tree
    >>> tree = build_tree([[7, 8], [5, 6]], np.log([[.7, .2], [.5, .4]]), budget=3, builder=Static([[0], [0, 0], [1]]))
    >>> tree.tokens
    array([7, 5, 8], dtype=int32)
    """

    tree: Any

    name: ClassVar[str] = "static"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", check_paths(self.tree))

    def paths(self, log_q: Array, budget: int) -> list[Path]:
        """See ``Builder``."""
        return existing(self.tree[:budget], log_q)

    def ranks(self, lists: Lists, budget: int) -> TreeRanks:
        """See ``Builder``; ``O(N D)``, and ``O(n)`` more for each start whose lists are short."""
        return fixed_ranks(self.tree, lists, budget)
