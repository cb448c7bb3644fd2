"""Ranks of the rollout's prefixes in a tree, and the round law of the trees of any budget."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from markov_spec.arrays import ABSENT, Array, RequestError, RoundLaw, check_indptr, check_integer


@dataclass(frozen=True, eq=False, repr=False)
class TreeRanks:
    """Where the rollout's prefixes stand in the order in which a tree takes its nodes, from every start (T1).

    Made by ``tree_ranks``, or of ranks that were recorded with the drafts.

    Parameters
    ----------
    rank : array of int32, (N, D)
        Of the prefix of depth ``k`` at ``[s, k-1]``, from 1, the root not counted; ``ABSENT`` (the largest int32) if it
        is in no tree of at most ``max_budget`` nodes.
    max_budget : int
        The largest budget that the ranks tell of, below ``ABSENT``.
    min_budget : int
        The smallest. Above 0 where smaller trees are no parts of this one.
    exact_to : array of int32, (N,), optional
        The largest budget of which a start's ranks are certain, and how many nodes its tree has; absent means
        ``max_budget``. Beyond it ranks are those of a tree of the listed tokens alone: the rank of a listed prefix is
        at least this one in the drafter's tree. Where tokens or depths are missing, only the listed nodes of recorded
        depths are certain to exist, hence ``exact_to`` is no larger than their number.
    nodes : array of int32, (N,), optional
        Nodes of a start's tree of ``max_budget``: fewer than this only if no more exist; absent means ``max_budget``.
        All that may exist are counted, also those that are not certain to.
    reach : array of int32, (N, D), optional
        Nodes taken up to and including the first one of each depth; ``ABSENT`` if there is none up to ``max_budget``.
        Absent means ``k`` at depth ``k``: trees as deep as their nodes allow. Where tokens or depths are missing the
        drafter's own may be larger, never smaller.
    gaps : array of int32, (N, H), optional
        Numbers in the order of nodes that a start has no tokens for: a tree of ``n`` lacks those up to ``n``. Rising,
        ``ABSENT`` after the last; absent means that there are none. Fixed trees on short lists have them.

    Raises
    ------
    ValueError
        If shapes disagree, a rank is below 1 or does not rise with the depth, or another number is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.drafting import TreeRanks
    >>> ranks = TreeRanks(np.array([[1, 4], [3, 2**31 - 1]]), max_budget=4)
    >>> ranks
    TreeRanks(2 starts, 2 depths, budgets 0 to 4, certain to 4)
    >>> ranks.accepted(3)
    array([1, 1])
    """

    rank: Array
    _: KW_ONLY
    max_budget: int
    min_budget: int = 0
    exact_to: Array | None = None
    nodes: Array | None = None
    reach: Array | None = None
    gaps: Array | None = None

    def __post_init__(self) -> None:
        check_budget(self.min_budget, "min_budget")
        check_budget(self.max_budget, "max_budget", self.min_budget)
        rank = _rising(self.rank, "rank")
        object.__setattr__(self, "rank", rank)
        own = np.broadcast_to(np.arange(1, rank.shape[1] + 1), rank.shape) if self.reach is None else self.reach
        reach = _rising(own, "reach")
        if reach.shape != rank.shape:
            raise ValueError(f"reach: found shape {reach.shape}; allowed: {rank.shape}, that of rank")
        object.__setattr__(self, "reach", reach)
        if self.gaps is not None:
            gaps = _rising(self.gaps, "gaps")
            if len(gaps) != len(rank):
                raise ValueError(f"gaps: found shape {gaps.shape}; allowed: ({len(rank)}, H), a row for each start")
            object.__setattr__(self, "gaps", gaps)
        for name in ("exact_to", "nodes"):
            object.__setattr__(self, name, self._counts(name, len(rank)))

    def _counts(self, name: str, rows: int) -> Array:
        given = getattr(self, name)
        values = np.full(rows, self.max_budget) if given is None else np.asarray(given)
        if values.shape != (rows,) or values.dtype.kind not in "iu":
            raise ValueError(f"{name}: found shape {values.shape}, dtype {values.dtype}; allowed: ({rows},) integers")
        bad = (values < 0) | (values > self.max_budget)
        if bad.any():
            s = int(np.argmax(bad))
            raise ValueError(f"{name}: start {s}: found {values[s]}; allowed: 0 to max_budget, {self.max_budget}")
        return np.ascontiguousarray(values, dtype=np.int32)

    def accepted(self, budget: Any) -> Array:
        """Give the drafts that a round accepts with a tree of ``budget`` nodes (T2), int64 (N,).

        Parameters
        ----------
        budget : int or array of int, (N,)

        Raises
        ------
        RequestError
            If the ranks do not tell of a budget.
        """
        count: Array = (self.rank <= _budgets(self, budget)[:, None]).sum(axis=1)
        return count

    def drafted(self, budget: Any) -> Array:
        """Give the nodes that a round drafts with a tree of ``budget`` nodes, int32 (N,); errors as `accepted`."""
        most = _budgets(self, budget)
        if self.gaps is not None:
            most = most - (self.gaps <= most[:, None]).sum(axis=1)
        count: Array = np.minimum(most, np.asarray(self.nodes)).astype(np.int32)
        return count

    def depths(self, budget: Any) -> Array:
        """Give the depth of the deepest node of a tree of ``budget`` nodes, int32 (N,); errors as `accepted`."""
        deepest: Array = (np.asarray(self.reach) <= _budgets(self, budget)[:, None]).sum(axis=1).astype(np.int32)
        return deepest

    def __repr__(self) -> str:
        rows, depths = self.rank.shape
        certain = int(np.min(np.asarray(self.exact_to), initial=self.max_budget))
        return (
            f"TreeRanks({rows} start{'s' * (rows != 1)}, {depths} depth{'s' * (depths != 1)}, "
            f"budgets {self.min_budget} to {self.max_budget}, certain to {certain})"
        )


def check_budget(value: Any, name: str, least: int = 0) -> None:
    """Refuse what is no integer from ``least`` to below ``ABSENT``, which is the rank of what is in no tree.

    Raises
    ------
    ValueError
        Naming the argument, what was found and what is allowed.
    """
    check_integer(value, name, least)
    if value >= ABSENT:
        raise ValueError(f"{name}: found {value}; allowed: {least} to {ABSENT - 1}")


def _rising(given: Any, name: str) -> Array:
    values = np.asarray(given)
    if values.ndim != 2 or values.dtype.kind not in "iu":
        raise ValueError(f"{name}: found shape {values.shape}, dtype {values.dtype}; allowed: (N, D) integers")
    bad = (values < 1) | (values > ABSENT)
    bad[:, 1:] |= (values[:, 1:] <= values[:, :-1]) & (values[:, 1:] < ABSENT)
    if bad.any():
        s, d = divmod(int(np.argmax(bad)), values.shape[1])
        least = min(int(values[s, d - 1]) + 1, ABSENT) if d else 1
        raise ValueError(
            f"{name}: start {s}, depth {d + 1}: found {values[s, d]}; allowed: {least} to {ABSENT}, the last for none"
        )
    return np.ascontiguousarray(values, dtype=np.int32)


def _budgets(ranks: TreeRanks, budget: Any) -> Array:
    rows, found = len(ranks.rank), np.asarray(budget)
    if found.dtype.kind not in "iu" or found.shape not in ((), (rows,)):
        raise RequestError(
            f"budget: found shape {found.shape}, dtype {found.dtype}; allowed: an integer or ({rows},) integers"
        )
    bad = (found < ranks.min_budget) | (found > ranks.max_budget)
    if bad.any():
        where, value = ("", found) if found.ndim == 0 else (f"start {np.argmax(bad)}: ", found[np.argmax(bad)])
        raise RequestError(
            f"budget: {where}found {value}; allowed: {ranks.min_budget} to {ranks.max_budget}, what the ranks tell of"
        )
    return np.broadcast_to(found, (rows,))


def tree_law(ranks: TreeRanks, indptr: Any, *, budget: Any) -> RoundLaw:
    """Make the round law of a tree of a given number of nodes (T2).

    Parameters
    ----------
    ranks : TreeRanks
    indptr : array of int, (R+1,)
        Rollout ``i`` owns rows ``indptr[i]:indptr[i+1]``.
    budget : int or array of int, (N,)
        Drafted nodes of each round, the root not counted, so that the target verifies one token more; 0 drafts nothing.

    Returns
    -------
    RoundLaw
        Acceptance 0 or 1 in cells (N, the deepest tree's depth), each start drafting as deep as its own tree.
        ``"exact"``; ``"bound"`` if the budget is above ``exact_to`` at any start.

    Raises
    ------
    RequestError
        If the ranks do not tell of a budget.
    ValueError
        If the offsets do not cover the starts.

    Notes
    -----
    ``O(N D)``. Exact for every rule that follows the target's own token into the tree: sampled at each node and matched
    with its children, greedy, or sibling after sibling tested with draft probability 1 (EAGLE's loop). A round drafts
    ``ranks.drafted(budget)`` nodes. "bound" does not mean that rounds err to one side: a rank that is too small makes a
    round accept too much, a token that is not listed makes it accept too little, and either may land on a better or a
    worse start.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> from markov_spec.drafting import tree_law, tree_ranks
    >>> ids, log_q = np.array([[[7, 8], [5, 6]]] * 3), np.log([[[.7, .2], [.5, .4]]] * 3)
    >>> ranks = tree_ranks(ids, log_q, [[8, 5], [5, 7], [7, -1]], max_budget=6, complete=True)
    >>> [float(ms.solve(tree_law(ranks, [0, 3], budget=n)).expected[0]) for n in (0, 3, 6)]
    [3.0, 3.0, 1.0]
    """
    offsets, most = check_indptr(indptr, len(ranks.rank)), _budgets(ranks, budget)
    length = ranks.depths(budget)
    deepest = int(length.max(initial=0))
    accept = (ranks.rank[:, :deepest] <= most[:, None]).astype(np.float32)
    certain = bool((most <= np.asarray(ranks.exact_to)).all())
    return RoundLaw(accept, offsets, deepest if (length == deepest).all() else length, "exact" if certain else "bound")
