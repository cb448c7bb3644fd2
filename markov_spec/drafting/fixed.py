"""Trees of fixed rank paths, the same from every start: what ``static``, ``medusa`` and ``sequoia`` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from markov_spec.arrays import ABSENT, Array
from markov_spec.drafting import _fixed
from markov_spec.drafting.inputs import Lists, Path, split_starts
from markov_spec.drafting.ranks import TreeRanks, check_budget


def check_paths(paths: Any) -> tuple[Path, ...]:
    """Give rank paths as tuples.

    Raises
    ------
    ValueError
        If these are no sequences, a place is no integer from 0 to below ``ABSENT``, a path comes twice, or its parent
        does not stand before it.
    """
    seen: set[Path] = {()}
    out: list[Path] = []
    for i, given in enumerate(_sequence(paths, "paths", "rank paths")):
        path = _sequence(given, f"paths: path {i}", "places")
        for place in path:
            check_budget(place, f"paths: path {i}")
        path = tuple(int(place) for place in path)
        if path in seen:
            raise ValueError(f"paths: path {i}: found {path} again; allowed: each path once, none empty")
        if path[:-1] not in seen:
            raise ValueError(f"paths: path {i}: found {path} before its parent; allowed: a parent before its children")
        seen.add(path)
        out.append(path)
    return tuple(out)


def _sequence(given: Any, name: str, what: str) -> tuple[Any, ...]:
    try:
        return tuple(given)
    except TypeError:
        raise ValueError(f"{name}: found {given!r}; allowed: a sequence of {what}") from None


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
    """Give the ranks of a tree of rank paths, numbered in its own order, and which of its nodes each start has.

    A node exists if its parent does and its place is listed with a probability above 0. Where a place lies after a list
    that may go on, or the depth is not recorded, that is not known: ``exact_to`` ends before the first such node.

    Parameters
    ----------
    paths : sequence of tuple of int
        As ``check_paths`` gives them.
    lists : Lists
    budget : int
    least : int
        The smallest budget whose tree is the first nodes of these.

    Raises
    ------
    ValueError
        If a path is deeper than the lists.
    """
    rows, threads = len(lists.hit), lists.threads
    ranks = path_ranks(paths, lists.hit, lists.log_q.shape[2], budget, threads=threads)
    tree = paths[:budget]
    number = {path: i for i, path in enumerate(tree, start=1)}
    parent, depth, place = np.zeros((3, len(tree) + 1), np.int64)
    parent[1:] = [number.get(path[:-1], 0) for path in tree]
    depth[1:], place[1:] = [len(path) - 1 for path in tree], [path[-1] for path in tree]
    furthest = np.zeros(int(depth.max()) + 1 if tree else 0, np.int64)
    np.maximum.at(furthest, depth[1:], place[1:])
    shape = parent, depth, place, furthest, lists.log_q, lists.recorded, lists.complete, budget
    reach, sure, nodes = np.array(ranks.reach), np.empty(rows, np.int32), np.empty(rows, np.int32)
    gaps = np.empty((rows, 0), np.int32)
    widths: list[int] = []

    def run(first: int, last: int) -> None:
        widths.append(_fixed.existing(*shape, first, last, reach, sure, nodes, gaps))

    split_starts(run, rows, threads, lists.log_q.nbytes)
    most = max(widths, default=0) if least < budget else 0
    if most:
        gaps = np.full((rows, most), ABSENT, np.int32)
        split_starts(run, rows, threads, lists.log_q.nbytes)
    return TreeRanks(
        ranks.rank, max_budget=budget, min_budget=least, exact_to=sure, nodes=nodes, reach=reach,
        gaps=gaps if most else None,
    )  # fmt: skip


def path_ranks(paths: Sequence[Path], hit: Array, listed: int, budget: int, *, threads: int | None = None) -> TreeRanks:
    """Give the ranks of a tree of rank paths from the places of the rollout's tokens alone, as if all nodes existed.

    Parameters
    ----------
    paths : sequence of tuple of int
        As ``check_paths`` gives them.
    hit : ndarray of int32, (N, D)
        As in ``Lists``.
    listed : int
        Places below this one are listed.
    budget : int
    threads : int, optional

    Raises
    ------
    ValueError
        If a path is deeper than ``D``.
    """
    _check_depth(paths, hit.shape[1])
    tree = paths[:budget]
    child = np.zeros((len(tree) + 1, min(1 + max((max(path) for path in tree), default=0), listed)), np.int32)
    number: dict[Path, int] = {(): 0}
    first = np.full(hit.shape[1], ABSENT)
    for i, path in enumerate(tree, start=1):
        number[path] = i
        first[len(path) - 1] = min(first[len(path) - 1], i)
        if path[-1] < listed:
            child[number[path[:-1]], path[-1]] = i
    rank = np.empty(hit.shape, np.int32)

    def run(first: int, last: int) -> None:
        _fixed.ranks(child, hit, first, last, rank)

    split_starts(run, len(hit), threads, rank.nbytes)
    nodes, reach = np.full(len(hit), len(tree)), np.broadcast_to(first, hit.shape)
    return TreeRanks(rank, max_budget=budget, nodes=nodes, reach=reach)


def _check_depth(paths: Sequence[Path], depths: int) -> None:
    deepest = max(paths, key=len, default=())
    if len(deepest) > depths:
        raise ValueError(f"paths: found {deepest}; allowed: at most {depths} places, the depths that have lists")
