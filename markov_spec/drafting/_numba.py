"""Kernels of draft trees: for each start, where the rollout's next tokens stand in the order of a tree's nodes.

``log_q`` is (N, D, M): row ``d`` lists the tokens of depth ``d + 1``, best first, never rising, ``-inf`` where there is
none. ``hit`` is (N, D): the place of the rollout's token in its list from 0, `UNLISTED` or `NEVER`. Only the first
``recorded[s]`` depths of a start are known. The value of a node is the sum of its path's logarithms, added from the
root down in float64: so a child is never above its parent, nor a sibling above the one before it, in the arithmetic
itself, and equal values are equal bits. Of equal values the lexicographically smaller path of places goes first, the
shorter one before what continues it.

Kernels write ``rank`` (N, D), 1 for the first node, `ABSENT` if the prefix is no node or its rank is above ``cap``;
``sure`` (N,), the largest budget up to ``cap`` of which the ranks are certain, and that its nodes exist; and ``nodes``
(N,), the nodes that the tree of ``cap`` has, ``cap`` where tokens or depths are missing.
"""

from __future__ import annotations

import numpy as np

from markov_spec._jit import kernel
from markov_spec.arrays import ABSENT, LOG_TOLERANCE, Array

UNLISTED = -1  # a token that may have a place after the list
NEVER = -2  # past the end, or of probability 0: no tree has it


@kernel
def find(ids: Array, tokens: Array, first: int, last: int, hit: Array) -> None:
    """Fill the place of each token in its list: `UNLISTED` if it is not there, `NEVER` past the end."""
    width = ids.shape[2]
    for s in range(first, last):
        for d in range(ids.shape[1]):
            token = tokens[s, d]
            hit[s, d] = NEVER if token < 0 else UNLISTED
            if token >= 0:
                for m in range(width):
                    if ids[s, d, m] == token:
                        hit[s, d] = m
                        break


@kernel
def settle(
    ids: Array, log_q: Array, tokens: Array, complete: bool, first: int, last: int, hit: Array, recorded: Array
) -> int:
    """Fill the recorded depths, and turn hits of probability 0 into `NEVER`.

    A list that starts with NaN past the end is not recorded, nor are those after it. Returns the flat index of the
    first list that is wrong, or -1.
    """
    depths, width = log_q.shape[1], log_q.shape[2]
    for s in range(first, last):
        recorded[s] = depths
        for d in range(depths):
            row, names = log_q[s, d], ids[s, d]
            if np.isnan(row[0]) and tokens[s, d] < 0:
                recorded[s] = d
                break
            wrong = not row[0] <= LOG_TOLERANCE
            for m in range(1, width):
                wrong |= not row[m] <= row[m - 1]
            for m in range(width):
                wrong |= (names[m] < 0) & (row[m] > -np.inf)
            if wrong:
                return int(s * depths + d)
            m = hit[s, d]
            if (m >= 0 and row[m] == -np.inf) or (m == UNLISTED and (complete or row[width - 1] == -np.inf)):
                hit[s, d] = NEVER
    return -1


@kernel
def _first(index: Array, size: int, path: Array, target: int) -> bool:
    # Whether the path index[:size] precedes path[:target] where both are worth the same.
    for j in range(min(size, target)):
        if index[j] != path[j]:
            return bool(index[j] < path[j])
    return size < target


@kernel
def _before(
    log_q: Array, depths: int, width: int, weight: Array, value: float, path: Array, target: int, cap: int,
    index: Array, above: Array,
) -> int:  # fmt: skip
    # Sum of weight[d] over the nodes of depth d + 1 that precede the node path[:target] of this value; stops at cap.
    # What precedes holds with a node its parent and its earlier siblings, hence the first failure ends a list.
    count: int = 0
    d, i, base = 0, 0, 0.0
    while True:
        if i < width:
            here = base + log_q[d, i]
            index[d] = i
            if here > value or (here == value and _first(index, d + 1, path, target)):
                count += weight[d]
                if count >= cap:
                    return count
                if d + 1 < depths and here + log_q[d + 1, 0] >= value:
                    above[d] = base
                    base = here
                    d += 1
                    i = 0
                else:
                    i += 1
                continue
        if d == 0:
            return count
        d -= 1
        base = above[d]
        i = index[d] + 1


@kernel
def _above(
    log_q: Array, depths: int, width: int, value: float, cap: int, layer: Array, below: Array
) -> tuple[int, int]:
    # How many nodes are worth more than this value, stopping at cap, and how many exactly as much, -1 if they are too
    # many. Layer by layer: who has an i-th child that is good enough may have another one, who has not is dropped.
    count, equal, size = 0, 0, 1
    layer[0] = 0.0
    for d in range(depths):
        found = 0
        for i in range(width):
            if size == 0:
                break
            if found + size > below.size:
                return count, -1
            log, kept, ties = np.float64(log_q[d, i]), 0, 0
            for j in range(size):
                here = layer[j] + log
                below[found + kept] = here
                layer[kept] = layer[j]
                ties += here == value
                kept += here >= value
            found += kept
            equal += ties
            count += kept - ties
            size = kept
            if count >= cap:
                return count, equal
        layer, below, size = below, layer, found
    return count, equal


@kernel
def _size(log_q: Array, depths: int, known: int, width: int, complete: bool, cap: int) -> tuple[int, bool]:
    # Nodes of the tree of all listed tokens, up to cap, and whether it may have others: tokens or depths are missing.
    total, layer, others = 0, 1, False
    for d in range(depths):
        if d >= known:
            return total, True
        listed = width
        if log_q[d, width - 1] == -np.inf:
            listed = 0
            while log_q[d, listed] > -np.inf:
                listed += 1
        elif not complete:
            others = True
        layer *= listed
        total += layer
        if total >= cap:
            return cap, others
        if layer == 0:
            break
    return total, others


@kernel
def best_first(
    log_q: Array, hit: Array, recorded: Array, complete: bool, room: int, cap: int, first: int, last: int,
    rank: Array, sure: Array, nodes: Array,
) -> None:  # fmt: skip
    """Fill the ranks in order of value (T1); ``room`` is the length of scratch, which does not change them."""
    depths, width = log_q.shape[1], log_q.shape[2]
    index, above, weight = np.empty(depths + 1, np.int64), np.empty(depths + 1), np.ones(depths, np.int64)
    layer, below = np.empty(room), np.empty(room)
    for s in range(first, last):
        rows, path, known = log_q[s], hit[s], recorded[s]
        rank[s] = ABSENT
        listed, others = _size(rows, depths, known, width, complete, cap)
        nodes[s] = cap if others else listed
        sure[s] = listed if others else cap
        # No node of an unlisted token is worth more than `unlisted`, none of an unrecorded depth more than `deeper`.
        chain, unlisted = 0.0, -np.inf
        for d in range(known):
            if not complete:
                unlisted = max(unlisted, chain + rows[d, width - 1])
            chain += rows[d, 0]
        deeper = -np.inf if known == depths else chain
        value, before, box, corner, straight = 0.0, 0, 0, 1, True
        certain = True
        for k in range(known):
            m = path[k]
            if m == NEVER:
                break
            if m == UNLISTED:
                if certain:
                    count = before + width
                    if count < cap:
                        edge = value + rows[k, width - 1]
                        better, equal = _above(rows, known, width, edge, cap, layer, below)
                        if equal < 0:
                            better = _before(rows, known, width, weight, edge, path, 0, cap, index, above)
                        count = max(count, better)
                    sure[s] = min(cap, count)
                break
            value += rows[k, m]
            straight = straight and m == 0
            corner *= m + 1
            box += corner  # the nodes whose places are nowhere after the prefix's own, itself among them
            if box > cap:
                break
            better, equal = _above(rows, known, width, value, cap, layer, below)
            if better < cap and equal != 1:  # others than the node itself are worth as much
                better = _before(rows, known, width, weight, value, path, k + 1, cap, index, above)
            before = better + 1
            if before > cap:
                break
            rank[s, k] = before
            within = before <= width or value > unlisted
            if certain and not (within and (straight or value > deeper)):
                sure[s] = before - 1
                certain = False


@kernel
def all_children(
    log_q: Array, hit: Array, recorded: Array, width: int, cap: int, first: int, last: int,
    rank: Array, sure: Array, nodes: Array,
) -> None:  # fmt: skip
    """Fill the ranks where the best node not yet expanded gets its first ``width`` children at once, the root first."""
    depths = log_q.shape[1]
    index, above, weight = np.empty(depths + 1, np.int64), np.empty(depths + 1), np.empty(depths + 1, np.int64)
    for s in range(first, last):
        rows, path, known = log_q[s], hit[s], recorded[s]
        rank[s] = ABSENT
        listed, others = _size(rows, depths, known, width, True, cap)
        nodes[s] = cap if others else listed
        sure[s] = listed if others else cap
        chain = 0.0
        for d in range(depths + 1):
            weight[d] = 0
            if d < known:
                chain += rows[d, 0]
                while weight[d] < width and rows[d, weight[d]] > -np.inf:
                    weight[d] += 1
        value, straight, certain, added = 0.0, True, True, 0
        for k in range(known):
            m = path[k]
            if m < 0 or m >= width:
                break
            if certain and not (known == depths or straight or value > chain):
                sure[s] = min(cap, added + m)
                certain = False
            if added + m + 1 > cap:
                break
            rank[s, k] = added + m + 1
            if k + 1 == known:
                break
            value += rows[k, m]
            straight = straight and m == 0
            # What is added before this node is expanded: the root's children and those of the nodes that precede it.
            # A node of the last known depth has none.
            added = weight[0] + _before(rows, known - 1, width, weight[1:], value, path, k + 1, cap, index, above)


@kernel
def _beams(log_q: Array, layers: int, beam: int, width: int, values: Array, paths: Array, sizes: Array) -> None:
    # The best nodes of each layer, in order, among the first `width` children of those of the layer before.
    following = np.empty(beam, np.int64)
    for layer in range(layers):
        parents = sizes[layer - 1] if layer else 1
        following[:] = 0
        count = 0
        while count < beam:
            best, top = -1, -np.inf
            for p in range(parents):
                if following[p] == width:
                    continue
                here = log_q[layer, following[p]] + (values[layer - 1, p] if layer else 0.0)
                if here > top or (
                    here == top and best >= 0 and _first(paths[layer - 1, p], layer, paths[layer - 1, best], layer)
                ):
                    best, top = p, here
            if best < 0:
                break
            if layer:
                paths[layer, count, :layer] = paths[layer - 1, best, :layer]
            paths[layer, count, layer] = following[best]
            values[layer, count] = top
            following[best] += 1
            count += 1
        sizes[layer] = count


@kernel
def _pooled(
    log_q: Array, layers: int, width: int, values: Array, paths: Array, sizes: Array, value: float, path: Array,
    target: int, index: Array,
) -> int:  # fmt: skip
    # Nodes that precede the node path[:target] among the children of all beams; all of them if the value is -inf.
    count = 0
    for layer in range(layers):
        for p in range(sizes[layer - 1] if layer else 1):
            if layer:
                index[:layer] = paths[layer - 1, p, :layer]
            for i in range(width):
                here = log_q[layer, i] + (values[layer - 1, p] if layer else 0.0)
                index[layer] = i
                if not (here > value or (here == value and _first(index, layer + 1, path, target))):
                    break
                count += 1
    return count


@kernel
def _kept(paths: Array, size: int, path: Array, target: int) -> bool:
    for p in range(size):
        same = 0
        while same < target and paths[p, same] == path[same]:
            same += 1
        if same == target:
            return True
    return False


@kernel
def beamed(
    log_q: Array, hit: Array, recorded: Array, beam: int, width: int, layers: int, cap: int, first: int, last: int,
    rank: Array, sure: Array, nodes: Array,
) -> None:  # fmt: skip
    """Fill the ranks in order of value among the first ``width`` children of each layer's best ``beam`` nodes."""
    index = np.empty(layers, np.int64)
    values, paths = np.empty((layers, beam)), np.empty((layers, beam, layers), np.int64)
    sizes = np.empty(layers, np.int64)
    for s in range(first, last):
        rows, path, known = log_q[s], hit[s], min(layers, recorded[s])
        rank[s] = ABSENT
        _beams(rows, known, beam, width, values, paths, sizes)
        listed = min(cap, _pooled(rows, known, width, values, paths, sizes, -np.inf, path, 0, index))
        others = known < layers and (known == 0 or sizes[known - 1] > 0)
        nodes[s] = cap if others else listed
        sure[s] = listed if others else cap
        chain = 0.0
        for d in range(known):
            chain += rows[d, 0]
        value, straight, certain = 0.0, True, True
        for k in range(known):
            m = path[k]
            if m < 0 or m >= width:
                break
            value += rows[k, m]
            straight = straight and m == 0
            found = 1 + _pooled(rows, known, width, values, paths, sizes, value, path, k + 1, index)
            if certain and not (known == layers or straight or value > chain):
                sure[s] = min(cap, found - 1)
                certain = False
            if found > cap:
                break
            rank[s, k] = found
            if not _kept(paths[k], sizes[k], path, k + 1):
                break
