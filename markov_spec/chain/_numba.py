"""Kernels of the chain: one rollout after the other, ``O(K)`` for each start.

``accept`` is flat: the acceptance of depth ``k`` from row ``s`` stands at ``s * row + k - 1``, with ``row = K`` for
cells and ``row = 1`` for positions. The draft length of row ``s`` is ``length[s * step]``, with ``step = 0`` for a
constant. Prices stand at ``s * price_row + N * price_step``. Offsets are int64, sums float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from markov_spec._jit import kernel
from markov_spec.arrays import Array, RoundLaw


@kernel
def backward(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    value: Array, variance: Array,
) -> None:  # fmt: skip
    """Fill the expected rounds from every start, and the variance of the rounds from ``first_start``."""
    longest = 0
    for i in range(first, last):
        longest = max(longest, indptr[i + 1] - indptr[i])
    ahead = np.empty(longest + 2)
    spread = np.empty(longest + 2)
    for i in range(first, last):
        begin = indptr[i]
        size = indptr[i + 1] - begin
        ahead[size : size + 2] = 0.0
        spread[size : size + 2] = 0.0
        for s in range(size - 1, -1, -1):
            depth = min(np.int64(length[(begin + s) * step]), size - s)
            at = (begin + s) * row
            cells = accept[at : at + depth]
            value_after = ahead[s + 1 : s + depth + 2]
            variance_after = spread[s + 1 : s + depth + 2]
            # Mean and variance of the later rounds given k accepted drafts: a mixture at each depth, so that nothing
            # cancels and the variance cannot fall below 0.
            mean = value_after[depth]
            vary = variance_after[depth]
            for k in range(depth - 1, -1, -1):
                a = np.float64(cells[k])
                gap = mean - value_after[k]
                vary = a * vary + (1.0 - a) * (variance_after[k] + a * gap * gap)
                mean = a * mean + (1.0 - a) * value_after[k]
            ahead[s] = 1.0 + mean
            spread[s] = vary
        value[begin : begin + size] = ahead[:size]
        variance[i] = spread[min(first_start, size)]


ONE, TWO, THREE, FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)  # unsigned indices need no sign check


@kernel
def backward_four(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    value: Array, variance: Array,
) -> None:  # fmt: skip
    """As ``backward`` for a constant draft length, operation by operation, with four rollouts in flight.

    They are aligned at their ends, ``left`` tokens before them; lane ``b`` of ``left`` stands at ``4 (left + 1) + b``.
    A rollout shorter than its neighbours goes on with values that nothing reads.
    """
    longest = 0
    for i in range(first, last):
        longest = max(longest, indptr[i + 1] - indptr[i])
    ahead = np.zeros(4 * (longest + 2))
    spread = np.zeros(4 * (longest + 2))
    begin = np.empty(4, np.int64)
    end = np.empty(4, np.int64)
    cells = np.empty(4, np.uint64)
    for group in range(first, last, 4):
        size = 0
        for b in range(4):
            begin[b] = indptr[min(group + b, last - 1)]
            end[b] = indptr[min(group + b, last - 1) + 1]
            size = max(size, int(end[b] - begin[b]))
        for left in range(1, size + 1):
            depth = min(int(length[0]), left)
            for b in range(4):
                at = min(max(end[b] - left, begin[b]) * row, accept.size - depth)
                cells[b] = np.uint64(at + depth - 1)
            c0, c1, c2, c3 = cells[0], cells[1], cells[2], cells[3]
            t = np.uint64(4 * (left - depth))
            m0, m1, m2, m3 = ahead[t], ahead[t + ONE], ahead[t + TWO], ahead[t + THREE]
            v0, v1, v2, v3 = spread[t], spread[t + ONE], spread[t + TWO], spread[t + THREE]
            for j in range(np.uint64(depth)):
                t += FOUR
                a, x = np.float64(accept[c0 - j]), ahead[t]
                v0 = a * v0 + (1.0 - a) * (spread[t] + a * (m0 - x) * (m0 - x))
                m0 = a * m0 + (1.0 - a) * x
                a, x = np.float64(accept[c1 - j]), ahead[t + ONE]
                v1 = a * v1 + (1.0 - a) * (spread[t + ONE] + a * (m1 - x) * (m1 - x))
                m1 = a * m1 + (1.0 - a) * x
                a, x = np.float64(accept[c2 - j]), ahead[t + TWO]
                v2 = a * v2 + (1.0 - a) * (spread[t + TWO] + a * (m2 - x) * (m2 - x))
                m2 = a * m2 + (1.0 - a) * x
                a, x = np.float64(accept[c3 - j]), ahead[t + THREE]
                v3 = a * v3 + (1.0 - a) * (spread[t + THREE] + a * (m3 - x) * (m3 - x))
                m3 = a * m3 + (1.0 - a) * x
            t = np.uint64(4 * (left + 1))
            ahead[t], ahead[t + ONE], ahead[t + TWO], ahead[t + THREE] = 1.0 + m0, 1.0 + m1, 1.0 + m2, 1.0 + m3
            spread[t], spread[t + ONE], spread[t + TWO], spread[t + THREE] = v0, v1, v2, v3
        for b in range(min(4, last - group)):
            for left in range(1, end[b] - begin[b] + 1):
                value[end[b] - left] = ahead[4 * (left + 1) + b]
            variance[group + b] = spread[4 * (max(end[b] - begin[b] - first_start, 0) + 1) + b]


def backward_of(law: RoundLaw) -> Callable[..., None]:
    """Give the faster of the two backward kernels that can read the law."""
    return backward if isinstance(law.draft_length, np.ndarray) else backward_four


@kernel
def forward(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    occupancy: Array, histogram: Array, tested: Array, drafted: Array,
) -> None:  # fmt: skip
    """Fill the occupancy, and what the rounds weighted by it accept, test and draft."""
    width = tested.shape[1]
    longest = 0
    for i in range(first, last):
        longest = max(longest, indptr[i + 1] - indptr[i])
    reach = np.empty(longest + 2)
    rejected = np.empty(width + 1)
    complete = np.empty(width + 1)
    for i in range(first, last):
        begin = indptr[i]
        size = indptr[i + 1] - begin
        start = min(first_start, size)
        reach[: size + 2] = 0.0
        reach[start] = 1.0
        rejected[:] = 0.0
        complete[:] = 0.0
        proposed = 0.0
        for s in range(start, size):
            flow = reach[s]
            if flow == 0.0:
                continue
            depth = min(np.int64(length[(begin + s) * step]), size - s)
            at = (begin + s) * row
            cells = accept[at : at + depth]
            after = reach[s + 1 : s + depth + 2]
            for k in range(depth):
                passed = flow * np.float64(cells[k])
                rejected[k] += flow - passed
                after[k] += flow - passed
                flow = passed
            complete[depth] += flow
            after[depth] += flow
            proposed += reach[s] * depth
        occupancy[begin : begin + size] = reach[:size]
        histogram[i] = rejected + complete
        drafted[i] = proposed
        # A draft that was tested was rejected, or was the last one and accepted, or the next one was tested.
        testing = 0.0
        for k in range(width - 1, -1, -1):
            testing += rejected[k] + complete[k + 1]
            tested[i, k] = testing


@kernel
def priced(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    price: Array, price_row: int, price_step: int, total: Array,
) -> None:  # fmt: skip
    """Fill the expected price of the rounds from ``first_start``."""
    longest = 0
    for i in range(first, last):
        longest = max(longest, indptr[i + 1] - indptr[i])
    ahead = np.empty(longest + 2)
    for i in range(first, last):
        begin = indptr[i]
        size = indptr[i + 1] - begin
        ahead[size : size + 2] = 0.0
        for s in range(size - 1, -1, -1):
            at = (begin + s) * row - 1
            cost = (begin + s) * price_row
            depth = min(np.int64(length[(begin + s) * step]), size - s)
            mean = price[cost + depth * price_step] + ahead[s + depth + 1]
            for k in range(depth, 0, -1):
                a = np.float64(accept[at + k])
                mean = a * mean + (1.0 - a) * (price[cost + (k - 1) * price_step] + ahead[s + k])
            ahead[s] = mean
        total[i] = ahead[min(first_start, size)]


LANES = 8  # nodes that one pass of `inverse` carries


@kernel
def distribution(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    deepest: int, offsets: Array, mass: Array,
) -> None:  # fmt: skip
    """Fill ``P(R = r)`` at ``mass[offsets[i] + r]``, ``r = 0..T - first_start``; ``deepest`` bounds the lengths."""
    longest = np.int64(0)
    for i in range(first, last):
        longest = max(longest, indptr[i + 1] - indptr[i])
    # Row t % ring holds the rounds from start t, positive from lowest to highest only.
    ring = min(np.int64(deepest), longest) + 2
    later = np.empty((ring, longest + 1))
    lowest = np.empty(ring, np.int64)
    highest = np.empty(ring, np.int64)
    law = np.empty(ring)
    for i in range(first, last):
        begin = indptr[i]
        size = indptr[i + 1] - begin
        start = min(first_start, size)
        later[size % ring, 0] = 1.0
        lowest[size % ring] = 0
        highest[size % ring] = 0
        for s in range(size - 1, start - 1, -1):
            depth = min(np.int64(length[(begin + s) * step]), size - s)
            at = (begin + s) * row
            flow = 1.0
            low = size
            high = np.int64(0)
            for k in range(depth + 1):
                a = np.float64(accept[at + k]) if k < depth else 0.0
                law[k] = flow * (1.0 - a)
                flow *= a
                if law[k] > 0.0:
                    after = min(s + k + 1, size) % ring
                    low = min(low, lowest[after] + 1)
                    high = max(high, highest[after] + 1)
            here = later[s % ring]
            here[low : high + 1] = 0.0
            for k in range(depth + 1):
                weight = law[k]
                if weight > 0.0:
                    after = min(s + k + 1, size) % ring
                    least = lowest[after]
                    rounds = highest[after] - least + 1
                    source = later[after, least : least + rounds]
                    target = here[least + 1 : least + 1 + rounds]
                    for r in range(rounds):
                        target[r] += weight * source[r]
            while here[low] == 0.0 and low < high:
                low += 1
            while here[high] == 0.0 and low < high:
                high -= 1
            lowest[s % ring] = low
            highest[s % ring] = high
        out = mass[offsets[i] : offsets[i] + size - start + 1]
        low = lowest[start % ring]
        high = highest[start % ring]
        out[:] = 0.0
        out[low : high + 1] = later[start % ring, low : high + 1]


@kernel
def inverse(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    active: Array, mean: Array, nodes: Array, weights: Array, out: Array,
) -> None:  # fmt: skip
    """Fill ``sum_j weights[j] E[exp(-nodes[j] R / mean)] / mean`` of the active rollouts; a multiple of LANES nodes."""
    longest = 0
    for i in range(first, last):
        if active[i]:
            longest = max(longest, indptr[i + 1] - indptr[i])
    ahead = np.empty((longest + 2, LANES))
    shrink = np.empty(LANES)
    later = np.empty(LANES)
    for i in range(first, last):
        if not active[i]:
            continue
        begin = indptr[i]
        size = indptr[i + 1] - begin
        start = min(first_start, size)
        total = 0.0
        for block in range(0, nodes.size, LANES):
            for j in range(LANES):
                shrink[j] = np.expm1(-nodes[block + j] / mean[i])
            ahead[size : size + 2] = 1.0
            for s in range(size - 1, start - 1, -1):
                depth = min(np.int64(length[(begin + s) * step]), size - s)
                at = (begin + s) * row
                after = ahead[s + 1 : s + depth + 2]
                later[:] = after[depth]
                for k in range(depth - 1, -1, -1):
                    a = np.float64(accept[at + k])
                    b = 1.0 - a
                    for j in range(LANES):
                        later[j] = a * later[j] + b * after[k, j]
                for j in range(LANES):
                    # Not z * later: the rounding of z would add up over the rounds.
                    ahead[s, j] = later[j] + shrink[j] * later[j]
            for j in range(LANES):
                total += weights[block + j] * ahead[start, j]
        out[i] = total / mean[i]
