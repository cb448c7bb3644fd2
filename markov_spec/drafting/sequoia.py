"""Sequoia: the best tree for every start if acceptance depended on the place among siblings only.

``P[b]`` is the probability that the ``b``-th child is the accepted one, at any node. Of trees of ``m`` nodes, the root
counted, on ``l`` levels, whose root has ``b`` children, the largest expected number of committed tokens is::

    T[1,l,0] = 1,  T[m,l,b] = max_{1<=y<m} T[y,l,b-1] + P[b] max_b' T[m-y,l-1,b']

and ``-inf`` where no such tree is: its last child has a tree of ``m-y`` nodes of its own, which is reached with
probability ``P[b]``. A larger budget may have another tree altogether, so ranks tell of one budget only.

Source: Chen et al. 2024, Sequoia (arXiv 2402.12374). ``rank_acceptance`` measures ``P``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from markov_spec._jit import kernel
from markov_spec.arrays import Array, check_integer
from markov_spec.drafting.fixed import existing, fixed_ranks
from markov_spec.drafting.inputs import Lists, Path, check_cells
from markov_spec.drafting.measured import check_rates
from markov_spec.drafting.ranks import TreeRanks

Floats = npt.NDArray[np.float64]


@kernel
def _positional(acceptance: Array, best: Array, table: Array) -> None:
    """Fill the values of the best trees whose ``b``-th child is accepted with probability ``acceptance[b - 1]``.

    ``table`` is (L+1, B+1, M+1): of trees of ``m`` nodes, the root counted, on at most ``l`` levels whose root has
    ``b`` children, ``-inf`` where there is none; ``best`` (L+1, M+1) is its maximum over ``b``.
    """
    table[:] = -np.inf
    best[:] = -np.inf
    scaled = np.empty(best.shape[1])
    for level in range(1, table.shape[0]):
        table[level, 0, 1] = 1.0
        best[level, 1] = 1.0
        for b in range(1, table.shape[1]):
            for m in range(best.shape[1]):
                below = best[level - 1, m]
                scaled[m] = acceptance[b - 1] * below if below > -np.inf else -np.inf  # 0 times -inf is NaN
            out = table[level, b]
            for y in range(1, out.size):
                value = table[level, b - 1, y]
                if value == -np.inf:
                    continue
                rest = out[y:]
                for x in range(rest.size):
                    rest[x] = max(rest[x], value + scaled[x])
            for m in range(out.size):
                best[level, m] = max(best[level, m], out[m])


@dataclass(frozen=True, eq=False)
class Sequoia:
    """Take the tree of the budget that is best by place.

    Parameters
    ----------
    acceptance : array of float, (B,)
        Probability that the child of place ``b = 0, 1, ...`` is the accepted one; a node has up to ``B`` children.
    depth : int
        Depths below the root, at most.

    Raises
    ------
    ValueError
        If a probability is outside [0, 1] or they sum to more than 1, or the depth is below 1.

    Examples
    --------
    >>> from markov_spec.drafting import Sequoia
    >>> Sequoia([.7, .2], depth=2).order(3)
    [(0,), (1,), (0, 0)]
    """

    acceptance: Any
    depth: int

    name: ClassVar[str] = "sequoia"

    def __post_init__(self) -> None:
        check_integer(self.depth, "depth", 1)
        object.__setattr__(self, "acceptance", check_rates(self.acceptance, "acceptance", 1))

    def order(self, budget: int) -> list[Path]:
        """Give the tree of ``budget`` nodes, layer by layer; of as many as there are places for if these are fewer.

        Of equal trees, the one whose root has the fewest children, and the last of these the most nodes.

        Raises
        ------
        RequestError
            If the table of ``(depth + 2) (B + 1) (budget + 2)`` numbers would have more than 2**28.
        """
        best, table = _tables(self.acceptance, budget, self.depth)
        most = int(np.flatnonzero(best[-1] > -np.inf)[-1])
        nodes: list[Path] = []
        open_nodes: list[tuple[Path, int, int]] = [((), most, self.depth + 1)]
        while open_nodes:
            path, m, level = open_nodes.pop()
            for b in range(int(np.argmax(table[level, :, m])), 0, -1):
                below = best[level - 1, m - 1 : 0 : -1]
                gain = np.where(below > -np.inf, self.acceptance[b - 1] * np.maximum(below, 0), -np.inf)
                y = 1 + int(np.argmax(table[level, b - 1, 1:m] + gain))
                open_nodes.append(((*path, b - 1), m - y, level - 1))
                nodes.append((*path, b - 1))
                m = y
        return sorted(nodes, key=lambda path: (len(path), path))

    def paths(self, log_q: Array, budget: int) -> list[Path]:
        """See ``Builder``; ``O(budget^2 depth B)``."""
        return existing(self.order(budget), log_q)

    def ranks(self, lists: Lists, budget: int) -> TreeRanks:
        """See ``Builder``; ``O(budget^2 depth B + N D)``."""
        return fixed_ranks(self.order(budget), lists, budget, least=budget)


def positional_values(acceptance: Any, *, budget: int, depth: int) -> Floats:
    """Compute the expected tokens of a round with the best trees by place, of every size and depth.

    Parameters
    ----------
    acceptance : array of float, (B,)
        As in `Sequoia`; errors too, and those of its ``order``.
    budget : int
        Largest number of drafted nodes.
    depth : int
        Largest depth.

    Returns
    -------
    ndarray of float64, (budget+1, depth+1)
        Of exactly ``n`` nodes on at most ``d`` depths at ``[n, d]``, the target's own token included; ``-inf`` where
        there are not so many places. Divided into what such rounds cost, it says which size and depth are best.

    Notes
    -----
    ``O(budget^2 depth B)`` time, ``O(budget depth B)`` memory.

    Examples
    --------
    >>> from markov_spec.drafting import positional_values
    >>> positional_values([.7, .2], budget=2, depth=2)
    array([[1.  , 1.  , 1.  ],
           [-inf, 1.7 , 1.7 ],
           [-inf, 1.9 , 2.19]])
    """
    check_integer(depth, "depth", 0)
    best, _ = _tables(check_rates(acceptance, "acceptance", 1), budget, depth)
    return best[1:, 1:].T.copy()


def _tables(acceptance: Floats, budget: int, depth: int) -> tuple[Floats, Floats]:
    check_integer(budget, "budget", 0)
    children = acceptance.size + 1
    check_cells(depth, "depth", 2 * children, 2)
    check_cells(budget, "budget", (int(depth) + 2) * children, 2)
    best = np.empty((depth + 2, budget + 2))
    table = np.empty((depth + 2, children, budget + 2))
    _positional(acceptance, best, table)
    return best, table
