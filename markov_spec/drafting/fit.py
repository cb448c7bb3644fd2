"""The static tree that accepts most on given rollouts.

For fixed weights of the starts the weighted accepted drafts of a tree are the sum over its nodes of the weighted number
of starts whose rollout goes through the node. A node's number never exceeds its parent's, so the nodes of the ``n``
largest ones are the best tree of ``n``. If the weights are to be the occupancy, how often a round begins at each start,
they depend on the tree: trees and weights are then computed in turn. That may cycle, or stop at a tree that is not the
best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from markov_spec.arrays import Array, Exactness, check_first_start, check_indptr, check_integer
from markov_spec.chain import solve
from markov_spec.drafting.fixed import path_ranks
from markov_spec.drafting.inputs import Path, check_tokens, places
from markov_spec.drafting.measured import Floats, check_weights
from markov_spec.drafting.ranks import tree_law
from markov_spec.drafting.static import Static

MOST_TREES = 32


@dataclass(frozen=True, eq=False)
class StaticFit:
    """A learned static tree. Made by ``fit_static_tree``.

    Parameters
    ----------
    builder : Static
        Its nodes are in order of their weighted hits.
    exactness : {"exact", "heuristic"}
        Whether no other tree of listed places and of this size does better.
    accepted : float
        Weighted accepted drafts of all starts, with the weights that the tree was made from.
    expected_rounds : float or None
        Expected rounds of all rollouts with this tree; None for fixed weights.
    tried : int
        Trees that were compared.
    """

    builder: Static
    exactness: Exactness
    accepted: float
    expected_rounds: float | None
    tried: int


def fit_static_tree(
    top_ids: Any,
    tokens: Any,
    *,
    budget: int,
    weights: Any = None,
    indptr: Any = None,
    first_start: int = 0,
    threads: int | None = None,
) -> StaticFit:
    """Learn the static tree of the most accepted drafts, or of the fewest rounds.

    Parameters
    ----------
    top_ids : array of int, (N, D, M)
        Lists of each start and depth, best first.
    tokens : array of int, (N, D)
        The rollout's next tokens, -1 past the end (``next_tokens``).
    budget : int
        Nodes, the root not counted; fewer are taken if no others are ever hit.
    weights : array of float, (N,), optional
        Fixed weights of the starts, 1 by default: the most accepted drafts.
    indptr : array of int, (R+1,), optional
        Instead of weights: the fewest expected rounds of these rollouts.
    first_start : int
        ``s0``, for the rounds.
    threads : int, optional

    Returns
    -------
    StaticFit
        ``"exact"`` for fixed weights. For rounds ``"heuristic"``: the best tree found when weights 1, then the
        occupancy of each tree, gave the next one, until one came again or 32 were tried.

    Raises
    ------
    ValueError
        If both weights and offsets are given, or an argument is not as described.

    Notes
    -----
    ``O(N D)`` for each tree. Fit on other rollouts than those that judge the tree.

    Examples
    --------
    >>> from markov_spec.drafting import fit_static_tree
    >>> ids = [[[7, 8], [5, 6]]] * 3
    >>> fit_static_tree(ids, [[8, 5], [7, 6], [8, 5]], budget=2).builder.tree
    ((1,), (1, 0))
    """
    if weights is not None and indptr is not None:
        raise ValueError("weights: given beside indptr; allowed: one of them")
    ids, words = check_tokens(top_ids, tokens)
    hit, weight = places(ids, words, threads), check_weights(weights, len(ids))
    return fit_paths(hit, ids.shape[2], budget, weight, indptr=indptr, first_start=first_start, threads=threads)


def fit_paths(
    hit: Array,
    listed: int,
    budget: int,
    weight: Floats | None = None,
    *,
    indptr: Any = None,
    first_start: int = 0,
    threads: int | None = None,
) -> StaticFit:
    """Do what ``fit_static_tree`` does, from the places of the rollout's tokens in lists of ``listed`` tokens.

    Parameters
    ----------
    hit : ndarray of int32, (N, D)
        As ``inputs.places`` gives it.
    listed, budget : int
    weight : ndarray of float64, (N,), optional
        1 by default.
    indptr, first_start, threads
        As in ``fit_static_tree``; errors too.
    """
    check_integer(budget, "budget", 0)
    weight = np.ones(len(hit)) if weight is None else weight
    if indptr is None:
        tree, accepted = _best_tree(hit, weight, budget)
        return StaticFit(Static(tree), "exact", accepted, None, 1)
    offsets, start = check_indptr(indptr, len(hit)), check_first_start(first_start, len(hit))
    found: list[tuple[float, float, tuple[Path, ...]]] = []
    seen: set[frozenset[Path]] = set()
    while len(found) < MOST_TREES:
        tree, accepted = _best_tree(hit, weight, budget)
        if frozenset(tree) in seen:
            break
        seen.add(frozenset(tree))
        law = tree_law(path_ranks(tree, hit, listed, len(tree), threads=threads), offsets, budget=len(tree))
        rounds = solve(law, first_start=start, threads=threads)
        weight = rounds.occupancy
        found.append((float(rounds.expected.sum()), accepted, tree))
    total, accepted, tree = min(found, key=lambda one: one[0])
    return StaticFit(Static(tree), "heuristic", accepted, total, len(found))


def _best_tree(hit: Array, weight: Floats, budget: int) -> tuple[tuple[Path, ...], float]:
    # Layer by layer: of each at most `budget` nodes can be chosen, so that no others need to be followed further.
    width = int(hit.max(initial=0)) + 1
    nodes: list[tuple[float, Path]] = []
    layer: list[Path] = [()]
    here = np.zeros(len(hit), np.int64)  # the node of the last layer that each rollout goes through, -1 if it left
    for column in hit.T:
        on = np.flatnonzero((here >= 0) & (column >= 0))
        keys, which = np.unique(here[on] * width + column[on], return_inverse=True)
        sums = np.bincount(which, weights=weight[on], minlength=keys.size).tolist()
        paths = [(*layer[key // width], key % width) for key in keys.tolist()]
        order = sorted((i for i in range(len(paths)) if sums[i] > 0), key=lambda i: (-sums[i], paths[i]))[:budget]
        nodes += [(-sums[i], paths[i]) for i in order]
        layer = [paths[i] for i in order]
        renamed = np.full(keys.size, -1)
        renamed[order] = np.arange(len(order))
        here = np.full(len(hit), -1)
        here[on] = renamed[which]
    chosen = sorted(nodes)[:budget]
    return tuple(path for _, path in chosen), -sum(value for value, _ in chosen)
