"""Kernel of trees whose nodes depend on their path: ranks among the paths of a recorded beam."""

from __future__ import annotations

import numpy as np

from markov_spec._jit import kernel
from markov_spec.arrays import ABSENT, Array


@kernel
def _read(
    token: Array, parent: Array, log_q: Array, known: int, value: Array, place: Array, size: Array, path: Array
) -> int:
    # Values, rank paths and number of each depth's nodes; the flat index of the first entry that is wrong, or -1.
    width = token.shape[1]
    size[:] = 0
    for d in range(known):
        for w in range(width):
            if token[d, w] < 0:
                if log_q[d, w] > -np.inf or parent[d, w] >= 0:
                    return int(d * width + w)
                continue
            above = parent[d, w]
            good = w == size[d] and log_q[d, w] <= 0 and log_q[d, w] > -np.inf
            good &= above == -1 if d == 0 else 0 <= above < size[d - 1]
            if not good:
                return int(d * width + w)
            value[d, w] = log_q[d, w] + (value[d - 1, above] if d else 0.0)
            place[d, w] = 0
            for other in range(w):
                place[d, w] += parent[d, other] == above
            if d:
                path[d, w, :d] = path[d - 1, above, :d]
            path[d, w, d] = place[d, w]
            if w and value[d, w] > value[d, w - 1] + 1e-5:
                return int(d * width + w)
            size[d] += 1
    return -1


@kernel
def _precedes(one: Array, depth: int, other: Array, target: int) -> bool:
    for j in range(min(depth, target)):
        if one[j] != other[j]:
            return bool(one[j] < other[j])
    return depth < target


@kernel
def _rank(value: Array, size: Array, path: Array, k: int, w: int) -> int:
    # How many nodes precede a path of the beams, and itself.
    count, here = 1, value[k, w]
    for d in range(size.size):
        for other in range(size[d]):
            if (d, other) != (k, w):
                count += value[d, other] > here or (
                    value[d, other] == here and _precedes(path[d, other], d + 1, path[k, w], k + 1)
                )
    return count


@kernel
def _leads(value: Array, size: Array, path: Array, k: int, w: int) -> bool:
    # Whether no other path of its depth precedes one.
    for other in range(size[k]):
        if value[k, other] > value[k, w] or (
            value[k, other] == value[k, w] and _precedes(path[k, other], k + 1, path[k, w], k + 1)
        ):
            return False
    return True


@kernel
def beam_ranks(
    token: Array, parent: Array, log_q: Array, tokens: Array, cap: int, first: int, last: int,
    rank: Array, reach: Array, sure: Array, nodes: Array,
) -> int:  # fmt: skip
    """Fill ranks in order of value among the beams' paths, and what is certain; the first wrong entry's index, or -1.

    No path outside a beam that is full is worth more than its last one, and none of a depth that is not recorded, whose
    first entry is NaN past the end, more than the best one of the depth before; nor does one of these precede a path
    that is the first of its depth.
    """
    depths, width = token.shape[1:]
    value, place = np.empty((depths, width)), np.empty((depths, width), np.int64)
    size, path = np.empty(depths, np.int64), np.empty((depths, width, depths), np.int64)
    for s in range(first, last):
        known = depths
        for d in range(depths - 1, -1, -1):
            if np.isnan(log_q[s, d, 0]) and tokens[s, d] < 0:
                known = d
        wrong = _read(token[s], parent[s], log_q[s], known, value, place, size, path)
        if wrong >= 0:
            return int(s * depths * width + wrong)
        rank[s] = ABSENT
        reach[s] = ABSENT
        for d in range(depths):
            if d >= known:
                reach[s, d] = min(reach[s, d - 1] if d else 0, ABSENT - 1) + 1
            elif size[d]:
                count = _rank(value, size, path, d, 0)
                if count <= cap:
                    reach[s, d] = count
        total, outside = 0, -np.inf
        for d in range(depths):
            total += size[d]
            if size[d] == width:
                outside = max(outside, value[d, width - 1])
        deeper = -np.inf
        if known < depths and (known == 0 or size[known - 1]):
            deeper = value[known - 1, : size[known - 1]].max() if known else 0.0
        others = outside > -np.inf or deeper > -np.inf
        nodes[s] = cap if others else min(cap, total)
        sure[s] = min(cap, total) if others else cap
        at, before, certain = -1, 0, True
        for k in range(depths):
            if tokens[s, k] < 0:
                break
            found = -1
            for w in range(size[k]):
                if token[s, k, w] == tokens[s, k] and parent[s, k, w] == at:
                    found = w
            if found < 0:
                # A full beam may have left it out; then `width` nodes of its depth come first, and its parent.
                if certain and size[k] == width:
                    sure[s] = min(cap, max(before, width))
                break
            at, here, count = found, value[k, found], _rank(value, size, path, k, found)
            leads = deeper == -np.inf or here > deeper or _leads(value, size, path, k, found)
            if certain and not (leads and (here > outside or count <= width)):
                sure[s] = min(cap, max(count - 1, width if known == depths else 0))
                certain = False
            before = count
            if count > cap:
                break
            rank[s, k] = count
    return -1
