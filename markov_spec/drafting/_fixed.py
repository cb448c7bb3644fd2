"""Kernels of trees of fixed places: ranks of the rollout's prefixes, and which of the nodes a start has.

Nodes are numbered from 1 in the order of the tree, the root is 0. ``log_q``, ``hit`` and ``recorded`` are those of
``_numba``.
"""

from __future__ import annotations

import numpy as np

from markov_spec._jit import kernel
from markov_spec.arrays import ABSENT, Array

NOT, PERHAPS, SURELY = 0, 1, 2


@kernel
def ranks(child: Array, hit: Array, first: int, last: int, rank: Array) -> None:
    """Fill the ranks: the ``i``-th child of node ``u`` is ``child[u, i]``, 0 if there is none."""
    for s in range(first, last):
        rank[s] = ABSENT
        node = 0
        for k in range(hit.shape[1]):
            m = hit[s, k]
            if m < 0 or m >= child.shape[1]:
                break
            node = child[node, m]
            if node == 0:
                break
            rank[s, k] = node


@kernel
def existing(
    parent: Array, depth: Array, place: Array, furthest: Array, log_q: Array, recorded: Array, complete: bool, cap: int,
    first: int, last: int, reach: Array, sure: Array, nodes: Array, gaps: Array,
) -> int:  # fmt: skip
    """Count the nodes of each start; returns the most that are missing before one that is there.

    Node ``i`` is child ``place[i]`` of ``parent[i]``, at ``depth[i]`` from 0, and ``furthest`` holds the largest place
    of each depth. Fills ``nodes`` (N,), those that may exist; ``sure`` (N,), up to which number that is known, ``cap``
    for all; ``reach`` (N, D), the first of each depth, which holds those of the whole tree before; and ``gaps`` (N, H)
    with as many missing numbers as it has room for.
    """
    size, width = parent.size, log_q.shape[2]
    there = np.empty(size, np.int8)
    there[0] = SURELY
    most: int = 0
    for s in range(first, last):
        sure[s] = cap
        nodes[s] = size - 1
        whole = recorded[s] >= furthest.size
        for d in range(furthest.size):
            whole = whole and furthest[d] < width and log_q[s, d, furthest[d]] > -np.inf
        if whole:
            continue
        reach[s] = ABSENT
        count, missing = 0, 0
        for i in range(1, size):
            here, d = there[parent[i]], depth[i]
            if here != NOT:
                if d >= recorded[s]:
                    here = PERHAPS
                elif log_q[s, d, min(place[i], width - 1)] == -np.inf or (place[i] >= width and complete):
                    here = NOT
                elif place[i] >= width:
                    here = PERHAPS
            there[i] = here
            if here == NOT:
                if missing < gaps.shape[1]:
                    gaps[s, missing] = i
                missing += 1
                continue
            count += 1
            reach[s, d] = min(reach[s, d], i)
            most = max(most, missing)
            if here == PERHAPS:
                sure[s] = min(sure[s], i - 1)
        nodes[s] = count
    return most
