"""Kernels of the chain that work on eight rollouts at once, for a constant draft length.

A rollout is a lane. All are aligned at their ends and counted from the first start of the longest, ``size`` starts in
all: ``row`` numbers of each start ``s``, flat in a rollout, stand at ``8 (s row + j) + b`` in lane ``b``, and those of
starts that a shorter rollout does not have are 0. ``groups`` is (G, 8); a rollout may stand in its group twice. The
results are those of ``_numba``, operation by operation and so bit by bit.
"""

from __future__ import annotations

import numpy as np

from markov_spec._jit import kernel
from markov_spec.arrays import Array
from markov_spec.chain._lanes import WIDTH, load, same, store


@kernel
def _shared(indptr: Array, group: Array) -> int:
    """Give the length of the shortest of eight rollouts."""
    shared = indptr[group[0] + 1] - indptr[group[0]]
    for i in group:
        shared = min(shared, indptr[i + 1] - indptr[i])
    return int(shared)


@kernel
def _side_by_side(accept: Array, row: int, indptr: Array, group: Array, size: int, cells: Array) -> None:
    """Copy ``row`` numbers of each start of eight rollouts to the lanes."""
    shared = _shared(indptr, group)
    for b in range(WIDTH):
        begin = indptr[group[b]] * row
        idle = (size - (indptr[group[b] + 1] - indptr[group[b]])) * row
        for j in range(idle):
            cells[WIDTH * j + b] = 0.0
        for j in range(idle, (size - shared) * row):
            cells[WIDTH * j + b] = accept[begin + j - idle]
    # Unsigned indices, and all lanes in one loop: this compiles to loads of vectors and their transposition.
    at = np.empty(WIDTH, np.uint64)
    for b in range(WIDTH):
        at[b] = np.uint64((indptr[group[b] + 1] - shared) * row)
    a0, a1, a2, a3, a4, a5, a6, a7 = at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]
    to = np.uint64(WIDTH * (size - shared) * row)
    for j in range(np.uint64(shared * row)):
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
def _one_by_one(lanes: Array, indptr: Array, group: Array, size: int, out: Array) -> None:
    """Copy one number of each start from the lanes to the rollouts."""
    shared = _shared(indptr, group)
    at = np.empty(WIDTH, np.uint64)
    for b in range(WIDTH):
        begin = indptr[group[b]]
        end = indptr[group[b] + 1]
        at[b] = np.uint64(end - shared)
        for i in range(begin, end - shared):
            out[i] = lanes[WIDTH * (i + size - end) + b]
    a0, a1, a2, a3, a4, a5, a6, a7 = at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]
    of = np.uint64(WIDTH * (size - shared))
    for s in range(np.uint64(shared)):
        out[a0 + s] = lanes[of]
        out[a1 + s] = lanes[of + np.uint64(1)]
        out[a2 + s] = lanes[of + np.uint64(2)]
        out[a3 + s] = lanes[of + np.uint64(3)]
        out[a4 + s] = lanes[of + np.uint64(4)]
        out[a5 + s] = lanes[of + np.uint64(5)]
        out[a6 + s] = lanes[of + np.uint64(6)]
        out[a7 + s] = lanes[of + np.uint64(7)]
        of += np.uint64(WIDTH)


@kernel
def _backward_eight(cells: Array, row: int, deepest: int, size: int, ahead: Array, spread: Array) -> None:
    """Do what ``backward`` does in each lane."""
    ahead[WIDTH * size : WIDTH * (size + 2)] = 0.0
    spread[WIDTH * size : WIDTH * (size + 2)] = 0.0
    for s in range(size - 1, -1, -1):
        depth = min(deepest, size - s)
        at = WIDTH * (s * row + depth)
        t = WIDTH * (s + depth + 1)
        mean = load(ahead, t)
        vary = load(spread, t)
        for _ in range(depth):
            at -= WIDTH
            t -= WIDTH
            a = load(cells, at)
            value_after = load(ahead, t)
            gap = mean - value_after
            move = a * gap
            vary = a * vary + (same(1.0) - a) * (load(spread, t) + move * gap)
            mean = value_after + move
        store(ahead, WIDTH * s, same(1.0) + mean)
        store(spread, WIDTH * s, vary)


@kernel
def _forward_eight(
    cells: Array, row: int, deepest: int, size: int,
    reach: Array, rejected: Array, complete: Array, proposed: Array,
) -> None:  # fmt: skip
    """Do what ``forward`` does in each lane."""
    for s in range(size):
        depth = min(deepest, size - s)
        at = WIDTH * s * row
        t = WIDTH * s
        flow = load(reach, t)
        store(proposed, 0, load(proposed, 0) + flow * same(float(depth)))
        for k in range(0, WIDTH * depth, WIDTH):
            t += WIDTH
            passed = flow * load(cells, at + k)
            failed = flow - passed
            store(rejected, k, load(rejected, k) + failed)
            store(reach, t, load(reach, t) + failed)
            flow = passed
        store(reach, t + WIDTH, load(reach, t + WIDTH) + flow)
        store(complete, WIDTH * depth, load(complete, WIDTH * depth) + flow)


@kernel
def moments_of_eight(
    accept: Array, row: int, length: Array, step: int, indptr: Array, groups: Array, first_start: int,
    value: Array, variance: Array, occupancy: Array, histogram: Array, tested: Array, drafted: Array,
) -> None:  # fmt: skip
    """Do what ``backward`` and ``forward`` do."""
    longest = 0
    for i in groups.flat:
        longest = max(longest, indptr[i + 1] - indptr[i])
    width = tested.shape[1]
    cells = np.empty(WIDTH * longest * row, accept.dtype)
    ahead, spread, reach = np.empty((3, WIDTH * (longest + 2)))
    rejected, complete = np.empty((2, WIDTH * (width + 1)))
    proposed = np.empty(WIDTH)
    for group in groups:
        size = 0
        for i in group:
            size = max(size, indptr[i + 1] - indptr[i])
        _side_by_side(accept, row, indptr, group, size, cells)
        reach[:] = 0.0
        rejected[:] = 0.0
        complete[:] = 0.0
        proposed[:] = 0.0
        for b in range(WIDTH):
            start = indptr[group[b]] + first_start
            if start < indptr[group[b] + 1]:
                reach[WIDTH * (size - (indptr[group[b] + 1] - start)) + b] = 1.0
        _forward_eight(cells, row, length[0], size, reach, rejected, complete, proposed)
        _backward_eight(cells, row, length[0], size, ahead, spread)
        _one_by_one(reach, indptr, group, size, occupancy)
        _one_by_one(ahead, indptr, group, size, value)
        for b in range(WIDTH):
            i = group[b]
            left = max(indptr[i + 1] - indptr[i] - first_start, 0)
            variance[i] = spread[WIDTH * (size - left) + b]
            drafted[i] = proposed[b]
            testing = 0.0
            histogram[i, width] = rejected[WIDTH * width + b] + complete[WIDTH * width + b]
            for k in range(width - 1, -1, -1):
                histogram[i, k] = rejected[WIDTH * k + b] + complete[WIDTH * k + b]
                testing += rejected[WIDTH * k + b] + complete[WIDTH * (k + 1) + b]
                tested[i, k] = testing


@kernel
def _priced_eight(
    cells: Array, row: int, deepest: int, size: int, price: Array, price_row: int, price_step: int,
    ahead: Array, spread: Array,
) -> None:  # fmt: skip
    """Do what ``priced`` does in each lane."""
    ahead[WIDTH * size : WIDTH * (size + 2)] = 0.0
    spread[WIDTH * size : WIDTH * (size + 2)] = 0.0
    for s in range(size - 1, -1, -1):
        depth = min(deepest, size - s)
        at = WIDTH * (s * row + depth)
        t = WIDTH * (s + depth + 1)
        cost = WIDTH * (s * price_row + depth * price_step)
        mean = load(price, cost) + load(ahead, t)
        vary = load(spread, t)
        for _ in range(depth):
            at -= WIDTH
            t -= WIDTH
            cost -= WIDTH * price_step
            a = load(cells, at)
            other = load(price, cost) + load(ahead, t)
            gap = mean - other
            move = a * gap
            vary = a * vary + (same(1.0) - a) * (load(spread, t) + move * gap)
            mean = other + move
        store(ahead, WIDTH * s, mean)
        store(spread, WIDTH * s, vary)


@kernel
def priced_of_eight(
    accept: Array, row: int, length: Array, step: int, indptr: Array, groups: Array, first_start: int,
    price: Array, price_row: int, price_step: int, total: Array, variance: Array,
) -> None:  # fmt: skip
    """Do what ``priced`` does."""
    longest = 0
    for i in groups.flat:
        longest = max(longest, indptr[i + 1] - indptr[i])
    cells = np.empty(WIDTH * longest * row, accept.dtype)
    costs = np.empty(WIDTH * max(longest * price_row, 1))
    ahead, spread = np.empty((2, WIDTH * (longest + 2)))
    for group in groups:
        size = 0
        for i in group:
            size = max(size, indptr[i + 1] - indptr[i])
        _side_by_side(accept, row, indptr, group, size, cells)
        if price_row == 0:
            costs[:WIDTH] = price[0]
        else:
            _side_by_side(price, price_row, indptr, group, size, costs)
        _priced_eight(cells, row, length[0], size, costs, price_row, price_step, ahead, spread)
        for b in range(WIDTH):
            i = group[b]
            at = WIDTH * (size - max(indptr[i + 1] - indptr[i] - first_start, 0)) + b
            total[i] = ahead[at]
            variance[i] = spread[at]
