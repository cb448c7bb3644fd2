"""Kernels of the chain: one rollout after the other, ``O(K)`` for each start.

``accept`` is flat: the acceptance of depth ``k`` from row ``s`` stands at ``s * row + k - 1``, with ``row = K`` for
cells and ``row = 1`` for positions. The draft length of row ``s`` is ``length[s * step]``, with ``step = 0`` for a
constant. Prices stand at ``s * price_row + N * price_step``. Offsets are int64, sums float64.
"""

from __future__ import annotations

import numpy as np

from markov_spec._jit import kernel
from markov_spec.arrays import Array
from markov_spec.chain._lanes import WIDTH, load, same, store


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
                move = a * gap
                vary = a * vary + (1.0 - a) * (variance_after[k] + move * gap)
                mean = value_after[k] + move
            ahead[s] = 1.0 + mean
            spread[s] = vary
        value[begin : begin + size] = ahead[:size]
        variance[i] = spread[min(first_start, size)]


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
    price: Array, price_row: int, price_step: int, total: Array, variance: Array,
) -> None:  # fmt: skip
    """Fill the expected price of the rounds from ``first_start``, and its variance; as ``backward``."""
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
            cost = (begin + s) * price_row
            cells = accept[at : at + depth]
            price_after = ahead[s + 1 : s + depth + 2]
            variance_after = spread[s + 1 : s + depth + 2]
            mean = price[cost + depth * price_step] + price_after[depth]
            vary = variance_after[depth]
            for k in range(depth - 1, -1, -1):
                a = np.float64(cells[k])
                other = price[cost + k * price_step] + price_after[k]
                gap = mean - other
                move = a * gap
                vary = a * vary + (1.0 - a) * (variance_after[k] + move * gap)
                mean = other + move
            ahead[s] = mean
            spread[s] = vary
        total[i] = ahead[min(first_start, size)]
        variance[i] = spread[min(first_start, size)]


@kernel
def distribution(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    deepest: int, tokens: Array, surplus: Array, surplus_step: int, offsets: Array, mass: Array,
) -> None:  # fmt: skip
    """Fill ``E[tokens + X; R = r]`` at ``mass[offsets[i] + r]``, ``r = 0..T - first_start``.

    ``X`` is the surplus, at ``s * surplus_step``, of the last round if that accepted the end token, else 0; with 1
    token and no surplus this is ``P(R = r)``. ``deepest`` bounds the draft lengths.
    """
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
        later[size % ring, 0] = tokens[i]
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
            if depth == size - s:
                here[1] += law[depth] * surplus[(begin + s) * surplus_step]
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
def ratio(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    active: Array, mean: Array, nodes: Array, weights: Array, tokens: Array, surplus: Array, surplus_step: int,
    out: Array,
) -> None:  # fmt: skip
    """Fill ``sum_j weights[j] E[(tokens + X) exp(-nodes[j] R / mean)] / mean`` of the active rollouts.

    ``X`` is as in ``distribution``. Nodes are carried eight at a time; their number is a multiple of that.
    """
    longest = 0
    for i in range(first, last):
        if active[i]:
            longest = max(longest, indptr[i + 1] - indptr[i])
    ahead = np.empty(WIDTH * (longest + 2))
    shrink = np.empty(WIDTH)
    for i in range(first, last):
        if not active[i]:
            continue
        begin = indptr[i]
        size = indptr[i + 1] - begin
        start = min(first_start, size)
        total = 0.0
        for block in range(0, nodes.size, WIDTH):
            for j in range(WIDTH):
                shrink[j] = np.expm1(-nodes[block + j] / mean[i])
            less = load(shrink, 0)
            store(ahead, WIDTH * size, same(tokens[i]))
            for s in range(size - 1, start - 1, -1):
                depth = min(np.int64(length[(begin + s) * step]), size - s)
                if depth == size - s:
                    store(ahead, WIDTH * (size + 1), same(tokens[i] + surplus[(begin + s) * surplus_step]))
                at = (begin + s) * row
                cells = accept[at : at + depth]
                later = load(ahead, WIDTH * (s + depth + 1))
                for k in range(depth - 1, -1, -1):
                    a = np.float64(cells[k])
                    later = same(a) * later + same(1.0 - a) * load(ahead, WIDTH * (s + k + 1))
                # Not the product with exp(-node / mean): its rounding would add up over the rounds.
                store(ahead, WIDTH * s, later + less * later)
            for j in range(WIDTH):
                total += weights[block + j] * ahead[WIDTH * start + j]
        out[i] = total / mean[i]
