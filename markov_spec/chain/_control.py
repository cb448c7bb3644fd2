"""Kernel of the control: from each start the cheapest of several laws, given what the rounds after it cost.

``accept`` joins the rows of the laws for rollouts ``first <= i < last``: that of law ``j`` for depth ``k`` from row
``s``, counted from the first row of these rollouts, stands at ``begin[j] + s * row[j] + k - 1``, with ``row = K`` for
cells and ``row = 1`` for positions. ``length`` and ``price`` are (J, rows), ``value`` is (R,) and ``choice`` (N,).
"""

from __future__ import annotations

import numpy as np

from markov_spec._jit import kernel
from markov_spec.arrays import Array


@kernel
def cheapest(
    accept: Array, begin: Array, row: Array, length: Array, price: Array, indptr: Array, first: int, last: int,
    first_start: int, value: Array, choice: Array,
) -> None:  # fmt: skip
    """Fill the least expected price from ``first_start``, and the law that is chosen from every start."""
    longest = 0
    for i in range(first, last):
        longest = max(longest, indptr[i + 1] - indptr[i])
    ahead = np.empty(longest + 2)
    for i in range(first, last):
        size = indptr[i + 1] - indptr[i]
        ahead[size : size + 2] = 0.0
        for s in range(size - 1, -1, -1):
            here = indptr[i] - indptr[first] + s
            least, best = np.inf, 0
            for j in range(row.size):
                depth = min(np.int64(length[j, here]), size - s)
                at = begin[j] + here * row[j]
                cells = accept[at : at + depth]
                after = ahead[s + 1 : s + depth + 2]
                mean = after[depth]
                for k in range(depth - 1, -1, -1):
                    mean = after[k] + np.float64(cells[k]) * (mean - after[k])
                mean += price[j, here]
                if mean < least:
                    least, best = mean, j
            ahead[s] = least
            choice[indptr[i] + s] = best
        value[i] = ahead[min(first_start, size)]
