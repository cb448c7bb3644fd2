"""Trees of fixed rank paths, the same from every start: what ``static``, ``medusa`` and ``sequoia`` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from markov_spec.arrays import ABSENT, Array, check_integer
from markov_spec.drafting import _numba
from markov_spec.drafting.inputs import Lists, Path, split_starts
from markov_spec.drafting.ranks import TreeRanks


def check_paths(paths: Any) -> tuple[Path, ...]:
    """Give rank paths as tuples.

    Raises
    ------
    ValueError
        If a place is no integer of 0 or more, a path comes twice, or its parent does not stand before it.
    """
    seen: set[Path] = {()}
    out: list[Path] = []
    for i, given in enumerate(paths):
        path = tuple(given)
        for place in path:
            check_integer(place, f"paths: path {i}", 0)
        path = tuple(int(place) for place in path)
        if path in seen:
            raise ValueError(f"paths: path {i}: found {path} again; allowed: each path once, none empty")
        if path[:-1] not in seen:
            raise ValueError(f"paths: path {i}: found {path} before its parent; allowed: a parent before its children")
        seen.add(path)
        out.append(path)
    return tuple(out)


def existing(paths: Sequence[Path], log_q: Array) -> list[Path]:
    """Give those of the paths whose tokens are listed with a probability above 0.

    Raises
    ------
    ValueError
        If a path is deeper than the lists.
    """
    _check_depth(paths, len(log_q))
    kept: dict[Path, None] = {(): None}
    for path in paths:
        row, place = log_q[len(path) - 1], path[-1]
        if path[:-1] in kept and place < len(row) and row[place] > -np.inf:
            kept[path] = None
    return list(kept)[1:]


def fixed_ranks(paths: Sequence[Path], lists: Lists, budget: int, *, least: int = 0) -> TreeRanks:
    """Give the ranks of a tree of rank paths, numbered in its own order; see ``path_ranks``."""
    return path_ranks(paths, lists.hit, lists.log_q.shape[2], budget, least=least, threads=lists.threads)


def path_ranks(
    paths: Sequence[Path], hit: Array, listed: int, budget: int, *, least: int = 0, threads: int | None = None
) -> TreeRanks:
    """Give the ranks of a tree of rank paths from the places of the rollout's tokens alone.

    Parameters
    ----------
    paths : sequence of tuple of int
        As ``check_paths`` gives them.
    hit : ndarray of int32, (N, D)
        As in ``Lists``.
    listed : int
        Places below this one are listed.
    budget : int
    least : int
        The smallest budget whose tree is the first nodes of these.
    threads : int, optional

    Raises
    ------
    ValueError
        If a path is deeper than ``D``.
    """
    _check_depth(paths, hit.shape[1])
    child = np.zeros((len(paths) + 1, 1 + max((max(path) for path in paths), default=0)), np.int32)
    number: dict[Path, int] = {(): 0}
    for i, path in enumerate(paths, start=1):
        number[path] = i
        child[number[path[:-1]], path[-1]] = i
    rank, sure = np.empty(hit.shape, np.int32), np.empty(len(hit), np.int32)

    def run(first: int, last: int) -> None:
        _numba.fixed(child, hit, listed, budget, first, last, rank, sure)

    split_starts(run, len(hit), threads, rank.nbytes)
    nodes = np.full(len(hit), min(budget, len(paths)))
    first = np.full(hit.shape[1], ABSENT)
    for i, path in enumerate(paths[:budget], start=1):
        first[len(path) - 1] = min(first[len(path) - 1], i)
    reach = np.broadcast_to(first, hit.shape)
    return TreeRanks(rank, max_budget=budget, min_budget=least, exact_to=sure, nodes=nodes, reach=reach)


def _check_depth(paths: Sequence[Path], depths: int) -> None:
    deepest = max(paths, key=len, default=())
    if len(deepest) > depths:
        raise ValueError(f"paths: found {deepest}; allowed: at most {depths} places, the depths that have lists")
