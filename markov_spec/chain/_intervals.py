"""Kernels of the bounds: the robust program on eight rollouts at once, its ends, and block verification's intervals.

``lower`` and ``upper`` are flat: the interval of depth ``k`` from row ``s`` stands at ``s * row + k - 1``, with
``row = K`` for cells and ``row = 1`` for positions. The draft length of row ``s`` is ``length[s * step]``, with
``step = 0`` for a constant. Offsets are int64, sums float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import intrinsic

from markov_spec._jit import kernel
from markov_spec.arrays import Array
from markov_spec.chain._lanes import LANES, WIDTH, load, store


def _chosen(comparison: str) -> Callable[..., Any]:
    def choose(_typing: Any, x: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.select(builder.fcmp_ordered(comparison, *arguments), *arguments)

        return LANES(LANES, LANES), generate

    made: Callable[..., Any] = intrinsic(choose)
    return made


STARTS = 64  # copied to the lanes at a time; with a length of its own each start is copied alone
_smaller = _chosen("<")
_larger = _chosen(">")


@kernel
def first_bad(
    lower: Array, upper: Array, least: float, most: float, row: int, length: Array, step: int, indptr: Array,
    first: int, last: int,
) -> int:  # fmt: skip
    """Give where the first interval stands that is not ``least <= lower <= upper <= most``, or -1."""
    low = lower[indptr[first] * row : indptr[last] * row]
    high = upper[indptr[first] * row : indptr[last] * row]
    wrong = 0
    for j in range(low.size):
        wrong += not ((low[j] >= least) & (low[j] <= high[j]) & (high[j] <= most))
    if wrong == 0:  # even past the ends
        return -1
    for i in range(first, last):
        end = indptr[i + 1]
        for s in range(indptr[i], end):
            for j in range(s * row, s * row + min(np.int64(length[s * step]), end - s)):
                if not (lower[j] >= least and lower[j] <= upper[j] and upper[j] <= most):
                    return int(j)
    return -1


@kernel
def _gather(accept: Array, row: int, indptr: Array, group: Array, left: int, count: int, cells: Array) -> None:
    """Copy ``count`` numbers of eight rollouts to the lanes, from ``left`` starts before their ends on.

    What a shorter rollout gets for starts that it does not have is any number.
    """
    at = np.empty(WIDTH, np.int64)
    for b in range(WIDTH):
        at[b] = (indptr[group[b] + 1] - left) * row
    if at.min() < 0:
        for b in range(WIDTH):
            for j in range(count):
                cells[WIDTH * j + b] = accept[max(at[b] + j, 0)]
        return
    # Unsigned indices, and all lanes in one loop: this compiles to loads of vectors and their transposition.
    a0, a1, a2, a3 = np.uint64(at[0]), np.uint64(at[1]), np.uint64(at[2]), np.uint64(at[3])
    a4, a5, a6, a7 = np.uint64(at[4]), np.uint64(at[5]), np.uint64(at[6]), np.uint64(at[7])
    to = np.uint64(0)
    for j in range(np.uint64(count)):
        cells[to] = accept[a0 + j]
        cells[to + np.uint64(1)] = accept[a1 + j]
        cells[to + np.uint64(2)] = accept[a2 + j]
        cells[to + np.uint64(3)] = accept[a3 + j]
        cells[to + np.uint64(4)] = accept[a4 + j]
        cells[to + np.uint64(5)] = accept[a5 + j]
        cells[to + np.uint64(6)] = accept[a6 + j]
        cells[to + np.uint64(7)] = accept[a7 + j]
        to += np.uint64(WIDTH)


@kernel
def _lengths(length: Array, step: int, indptr: Array, group: Array, left: int, own: Array) -> int:
    """Fill the drafts from the starts ``left`` before the ends of eight rollouts, where they are; give the most."""
    own[:] = 0
    for b in range(WIDTH):
        at = indptr[group[b] + 1] - left
        if at >= indptr[group[b]]:
            own[b] = min(np.int64(length[at * step]), left)
    return int(own.max())


@kernel
def _pass_back(low: Array, high: Array, at: int, depth: int, s: int, cost: Array, least: Array, most: Array) -> None:
    """Do the round from a start: ``depth`` drafts, whose intervals stand in the lanes from ``at`` on."""
    t = WIDTH * (s + depth + 1)
    fewest = load(least, t)
    largest = load(most, t)
    for k in range(WIDTH * (at + depth - 1), WIDTH * (at - 1), -WIDTH):
        t -= WIDTH
        below = load(low, k)
        above = load(high, k)
        after = load(least, t)
        gap = fewest - after
        fewest = after + _smaller(below * gap, above * gap)
        after = load(most, t)
        gap = largest - after
        largest = after + _larger(below * gap, above * gap)
    store(least, WIDTH * s, load(cost, 0) + fewest)
    store(most, WIDTH * s, load(cost, 0) + largest)


@kernel
def program(
    lower: Array, upper: Array, row: int, length: Array, step: int, indptr: Array, groups: Array,
    price: Array, price_step: int, least_price: Array, most_price: Array,
) -> None:  # fmt: skip
    """Fill the least and the largest expected price of the rounds from every start.

    A rollout is a lane; the eight of a group, (G, 8), are aligned at their ends, and one may stand there twice. Lanes
    of starts that a shorter rollout does not have hold what no other lane reads.
    """
    longest = np.int64(0)
    for i in groups.flat:
        longest = max(longest, indptr[i + 1] - indptr[i])
    block = 1 if step else STARTS
    low = np.empty(WIDTH * (block * row + longest), lower.dtype)
    high = np.empty(WIDTH * (block * row + longest), upper.dtype)
    least, most = np.empty((2, WIDTH * (longest + 2)))
    cost = np.full(WIDTH, price[0]) if price_step == 0 else np.zeros(WIDTH)
    own = np.empty(WIDTH, np.int64)
    for group in groups:
        size = 0
        for i in group:
            size = max(size, indptr[i + 1] - indptr[i])
        least[WIDTH * size : WIDTH * (size + 2)] = 0.0
        most[WIDTH * size : WIDTH * (size + 2)] = 0.0
        for stop in range(size, 0, -block):
            start = max(stop - block, 0)
            deepest = _lengths(length, step, indptr, group, size - start, own)
            count = (stop - 1 - start) * row + min(deepest, size - stop + 1)
            _gather(lower, row, indptr, group, size - start, count, low)
            _gather(upper, row, indptr, group, size - start, count, high)
            if step:  # a draft that is surely rejected is as good as none
                for b in range(WIDTH):
                    for k in range(own[b], deepest):
                        low[WIDTH * k + b] = 0.0
                        high[WIDTH * k + b] = 0.0
            for s in range(stop - 1, start - 1, -1):
                if price_step:
                    for b in range(WIDTH):
                        cost[b] = price[max(indptr[group[b] + 1] - size + s, 0)]
                _pass_back(low, high, (s - start) * row, min(deepest, size - s), s, cost, least, most)
        for b in range(WIDTH):
            end = indptr[group[b] + 1]
            for s in range(indptr[group[b]], end):
                least_price[s] = least[WIDTH * (s + size - end) + b]
                most_price[s] = most[WIDTH * (s + size - end) + b]


@kernel
def ends(
    lower: Array, upper: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int,
    value: Array, sign: float, pattern: Array,
) -> None:  # fmt: skip
    """Mark the cells whose upper end makes ``sign * value`` large, given that of every start."""
    for i in range(first, last):
        end = indptr[i + 1]
        for s in range(indptr[i], end):
            depth = min(np.int64(length[s * step]), end - s)
            later = value[s + depth + 1] if s + depth + 1 < end else 0.0
            for k in range(depth - 1, -1, -1):
                after = value[s + k + 1] if s + k + 1 < end else 0.0
                low, high = np.float64(lower[s * row + k]), np.float64(upper[s * row + k])
                gap = later - after
                up = sign * gap > 0.0 and high > low
                later = after + (high if up else low) * gap
                pattern[s, k] = up


@kernel
def block(
    lower: Array, upper: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int,
    low: Array, high: Array,
) -> bool:  # fmt: skip
    """Fill the log of ``a[k] = min(1, Q[k-1] r[k])``, ``Q[k] = max(1, Q[k-1] r[k])`` at both ends of ``log r``.

    ``low`` and ``high`` have a row for each position of these rollouts and get ``-inf`` past an end and beyond the
    length. Tells whether both ends agree on every ``Q`` that multiplies a ratio.
    """
    base = indptr[first]
    settled = True
    for i in range(first, last):
        end = indptr[i + 1]
        for s in range(indptr[i], end):
            depth = min(np.int64(length[s * step]), end - s)
            spare_low = spare_high = 0.0
            for k in range(depth):
                settled &= spare_low == spare_high
                x, y = np.float64(lower[s * row + k]), np.float64(upper[s * row + k])
                # Without the test a surely rejected draft after a ratio without bound would give NaN.
                x = x + spare_low if x > -np.inf else x
                y = y + spare_high if y > -np.inf else y
                low[s - base, k], spare_low = min(x, 0.0), max(x, 0.0)
                high[s - base, k], spare_high = min(y, 0.0), max(y, 0.0)
            low[s - base, depth:] = -np.inf
            high[s - base, depth:] = -np.inf
    return settled
