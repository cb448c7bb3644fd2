"""Kernels of node budgets: what the best nodes are worth, and the cheapest budget from every start."""

from __future__ import annotations

import numpy as np

from markov_spec._jit import kernel
from markov_spec.arrays import LOG_TOLERANCE, Array


@kernel
def _wrong(rows: Array, known: int) -> int:
    # The first depth whose list is above 0, holds NaN or rises, or -1.
    for d in range(known):
        wrong = not rows[d, 0] <= LOG_TOLERANCE
        for m in range(1, rows.shape[1]):
            wrong |= not rows[d, m] <= rows[d, m - 1]
        if wrong:
            return int(d)
    return -1


@kernel
def _sink(value: Array, above: Array, cell: Array, size: int) -> None:
    # The first entry of the heap goes down to its place.
    here, parent, name = value[0], above[0], cell[0]
    i, child = 0, 1
    while child < size:
        if child + 1 < size and value[child + 1] > value[child]:
            child += 1
        if value[child] <= here:
            break
        value[i], above[i], cell[i] = value[child], above[child], cell[child]
        i, child = child, 2 * child + 1
    value[i], above[i], cell[i] = here, parent, name


@kernel
def _rise(value: Array, above: Array, cell: Array, i: int) -> None:
    # Entry i goes up to its place.
    here, parent, name = value[i], above[i], cell[i]
    while i > 0 and value[(i - 1) // 2] < here:
        up = (i - 1) // 2
        value[i], above[i], cell[i] = value[up], above[up], cell[up]
        i = up
    value[i], above[i], cell[i] = here, parent, name


@kernel
def best_values(log_q: Array, first: int, last: int, out: Array) -> int:
    """Fill the probabilities of the best nodes, the largest first, 0 where there are no more.

    ``log_q`` is (N, D, M), lists that never rise; one that starts with NaN is not recorded, nor are those after it. As
    in ``_numba``, logarithms are added from the root down in float64. A node waits with its parent's value until it is
    taken; then its next sibling and its first child wait. Returns the flat index of the first list that is wrong, or
    -1.
    """
    depths, width, most = log_q.shape[1], log_q.shape[2], out.shape[1]
    value, above, cell = np.empty(most + 2), np.empty(most + 2), np.empty(most + 2, np.int64)
    for s in range(first, last):
        rows, known = log_q[s], 0
        while known < depths and not np.isnan(rows[known, 0]):
            known += 1
        wrong = _wrong(rows, known)
        if wrong >= 0:
            return int(s * depths + wrong)
        out[s] = 0.0
        size = 0
        if known > 0 and rows[0, 0] > -np.inf:
            value[0], above[0], cell[0], size = min(np.float64(rows[0, 0]), 0.0), 0.0, 0, 1
        for n in range(most):
            if size == 0:
                break
            here, parent, taken = value[0], above[0], cell[0]
            d, m = taken // width, taken % width
            out[s, n] = np.exp(here)
            if d + 1 < known and rows[d + 1, 0] > -np.inf:  # the child takes the place of the node
                value[0], above[0], cell[0] = here + min(np.float64(rows[d + 1, 0]), 0.0), here, (d + 1) * width
            else:
                size -= 1
                value[0], above[0], cell[0] = value[size], above[size], cell[size]
            if size > 0:
                _sink(value, above, cell, size)
            if m + 1 < width and rows[d, m + 1] > -np.inf:
                value[size], above[size], cell[size] = parent + min(np.float64(rows[d, m + 1]), 0.0), parent, taken + 1
                _rise(value, above, cell, size)
                size += 1
    return -1


@kernel
def _least(price: Array, at: int, levels: Array, height: Array, begin: int, end: int) -> int:
    # The first of the least prices begin <= j < end: among all, or by the two overlapping blocks of levels.
    if levels.shape[0] > 0:
        level = height[end - begin]
        left, right = levels[level, begin], levels[level, end - (1 << level)]
        return int(left if price[left] <= price[right] else right)
    best, least = begin, price[at + begin]
    for j in range(begin + 1, end):
        if price[at + j] < least:
            best, least = j, price[at + j]
    return int(best)


@kernel
def cheapest(
    rank: Array, place: Array, price: Array, price_row: int, levels: Array, height: Array, indptr: Array, first: int,
    last: int, first_start: int, value: Array, choice: Array,
) -> None:  # fmt: skip
    """Fill the least price from ``first_start``, and the index of the budget that is chosen from every start.

    ``place[r]`` is the index of the first budget of at least ``r``, their number if there is none or ``r`` lies beyond
    it. The price of budget ``j`` from row ``s`` stands at ``s * price_row + j``; with ``price_row = 0`` the least ones
    of a range are looked up: that of ``2**l`` prices from ``j`` has index ``levels[l, j]``, and ``height[n]`` is the
    largest ``l`` with ``2**l <= n``.
    """
    depths, budgets = rank.shape[1], place[place.size - 1]
    longest = 0
    for i in range(first, last):
        longest = max(longest, indptr[i + 1] - indptr[i])
    ahead = np.empty(longest + 2)
    for i in range(first, last):
        begin = indptr[i]
        size = indptr[i + 1] - begin
        ahead[size : size + 2] = 0.0
        for s in range(size - 1, -1, -1):
            at = (begin + s) * price_row
            most = min(depths, size - s)
            least, best, low, k = np.inf, 0, 0, 0
            while low < budgets:  # budgets low <= j < high accept k drafts
                high = budgets
                if k < most:
                    high = place[min(int(rank[begin + s, k]), place.size - 1)]
                if high > low:
                    j = _least(price, at, levels, height, low, high)
                    total = price[at + j] + ahead[s + k + 1]
                    if total < least:
                        least, best = total, j
                low = high
                k += 1
            ahead[s] = least
            choice[begin + s] = best
        value[i] = ahead[min(first_start, size)]
