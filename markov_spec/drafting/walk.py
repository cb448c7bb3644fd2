"""Rounds, nodes and prices of many budgets at once, by walking through the rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec._jit import split_rollouts
from markov_spec.arrays import RequestError, as_float, check_first_start, check_indptr
from markov_spec.drafting import _walk
from markov_spec.drafting.ranks import TreeRanks

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class TreeRounds:
    """What each of several budgets, or rules of budgets, takes to decode each rollout. Made by ``tree_rounds``.

    Parameters
    ----------
    rounds : ndarray of int64, (R, B)
    drafted : ndarray of int64, (R, B)
        Nodes of all its trees.
    uncertain : ndarray of int64, (R, B)
        Rounds whose tree is left open: its budget is above ``exact_to``, or doubted.
    price : ndarray of float64, (R, B), or None
        Of all rounds; None without prices.
    """

    rounds: Integers
    drafted: Integers
    uncertain: Integers
    price: npt.NDArray[np.float64] | None

    def __repr__(self) -> str:
        rows, columns = self.rounds.shape
        return f"TreeRounds({rows} rollout{'s' * (rows != 1)}, {columns} budget{'s' * (columns != 1)})"


def tree_rounds(
    ranks: TreeRanks,
    indptr: Any,
    *,
    budgets: Any,
    prices: Any = None,
    doubted: Any = None,
    first_start: int = 0,
    threads: int | None = None,
) -> TreeRounds:
    """Count the rounds that trees of several budgets take.

    Parameters
    ----------
    ranks : TreeRanks
    indptr : array of int, (R+1,)
        Rollout ``i`` owns rows ``indptr[i]:indptr[i+1]``.
    budgets : array of int, (B,) or (N, B)
        Nodes of every round, the root not counted; or columns of budgets by start, such as a rule's.
    prices : array of float, (B,) or (N, B), optional
        Price of a round, for every start or by start, in any unit.
    doubted : array of bool, (N, B), optional
        Starts whose budget is itself uncertain: their rounds are, too.
    first_start : int
        ``s0``.
    threads : int, optional
        Results are equal for every number.

    Returns
    -------
    TreeRounds

    Raises
    ------
    RequestError
        If the ranks do not tell of a budget.
    ValueError
        If shapes disagree or a price is not finite.

    Notes
    -----
    Given the rollout a tree accepts or does not, so each budget takes a walk of as many steps as it has rounds, and the
    rounds are those that ``solve(tree_law(ranks, indptr, budget=n))`` expects.

    Examples
    --------
    >>> from markov_spec.drafting import TreeRanks, tree_rounds
    >>> ranks = TreeRanks([[1, 4], [2, 3], [1, 2], [9, 10]], max_budget=16)
    >>> found = tree_rounds(ranks, [0, 4], budgets=[0, 2, 4], prices=[1, 1.25, 2])
    >>> found.rounds, found.price
    (array([[4, 2, 2]]), array([[4. , 2.5, 4. ]]))
    """
    rows = len(ranks.rank)
    offsets, start = check_indptr(indptr, rows), check_first_start(first_start, rows)
    sizes = np.asarray(budgets)
    if sizes.dtype.kind not in "iu" or sizes.ndim not in (1, 2) or sizes.shape[:-1] not in ((), (rows,)):
        raise RequestError(f"budgets: found shape {sizes.shape}, dtype {sizes.dtype}; allowed: (B,) or ({rows}, B)")
    bad = (sizes > 0) & ((sizes < ranks.min_budget) | (sizes > ranks.max_budget)) | (sizes < 0)
    if bad.any():
        allowed = f"0 and {max(ranks.min_budget, 1)} to {ranks.max_budget}, what the ranks tell of"
        raise RequestError(f"budgets: found {sizes[bad].flat[0]}; allowed: {allowed}")
    columns = sizes.shape[-1]
    paid = np.zeros(columns) if prices is None else as_float(prices, "prices").reshape(np.shape(prices))
    if paid.shape not in ((columns,), (rows, columns)) or not np.isfinite(paid).all():
        raise ValueError(f"prices: found shape {paid.shape}; allowed: finite, ({columns},) or ({rows}, {columns})")
    open_choices = np.zeros((1, columns), bool) if doubted is None else np.asarray(doubted)
    if open_choices.shape not in ((1, columns), (rows, columns)) or open_choices.dtype != bool:
        raise ValueError(f"doubted: found shape {open_choices.shape}; allowed: ({rows}, {columns}) bools")
    rounds, drafted, uncertain = (np.empty((offsets.size - 1, columns), np.int64) for _ in range(3))
    price = np.empty((offsets.size - 1, columns))
    gaps = np.empty((rows, 0), np.int32) if ranks.gaps is None else ranks.gaps
    known = (np.asarray(ranks.exact_to), np.asarray(ranks.nodes), gaps)
    given = (*known, _rows(sizes, np.int64), _rows(paid, np.float64))
    flags = np.ascontiguousarray(open_choices)

    def run(first: int, last: int) -> None:
        _walk.walk(ranks.rank, *given, flags, offsets, start, first, last, rounds, drafted, uncertain, price)

    split_rollouts(run, offsets, threads=threads, nbytes=ranks.rank.nbytes * columns)
    return TreeRounds(rounds, drafted, uncertain, price if prices is not None else None)


def _rows(values: Any, kind: Any) -> Any:
    return np.ascontiguousarray(np.atleast_2d(values), kind)
