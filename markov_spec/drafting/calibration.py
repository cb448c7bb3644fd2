"""How many drafts a tree should accept by the drafter's own probabilities, beside how many it does accept.

Builders weigh nodes by the drafter's probabilities. If these were right and depths independent, a tree ``T`` would do
what it promises, from each start and at each depth::

    Phi = sum_{u in T} v(u) = E[N],    sum_{u in T, depth(u) = k} v(u) = P(N >= k)

What it does is (T2)'s ``N``. Over the starts where rounds begin, too, both agree on average if the drafter is right:
whether a round begins at a start depends on the tokens before it only. Depths past the end of a rollout count on
neither side.

*Re-estimation.* A draft is tested where all drafts before it were right. Of such starts let a cell be those of one
depth, rank and bin of confidence, the drafter's probability ``q`` of that draft; ``hits`` of them have it right. Then::

    q' = q (hits + h) / (sum of q in the cell + h),    h = 8

divided by the list's sum where that is above 1. In a narrow bin this is the share of right drafts; in a wide one it
stays in proportion to ``q``. ``h`` hits that agree with the drafter keep the estimate near it where a cell has seen
little. Trees are rebuilt on ``q'``.

The question is that of TAPS (arXiv 2606.00487), whose own estimator is not known here: what is it worth to know which
probabilities the target accepts with?
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from markov_spec.arrays import Array, RequestError, check_first_start, check_indptr, check_integer
from markov_spec.chain import solve
from markov_spec.drafting.building import resolve
from markov_spec.drafting.inputs import Builder, Lists, Path, check_tokens
from markov_spec.drafting.measured import Floats
from markov_spec.drafting.ranks import TreeRanks, tree_law

PRIOR_HITS = 8.0
OWN, RE_ESTIMATED = "drafter", "re-estimated"
# Which weights of the starts, and which of the cells, a figure is the mean of.
FIGURES = {
    "expected_uniform": (0, 0),
    "realised_uniform": (0, 1),
    "expected_occupied": (1, 0),
    "realised_occupied": (1, 1),
}
Row = dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """What trees promise and what they keep. Made by ``surrogate_calibration``.

    ``expected_`` figures are by the probabilities that the trees were built from, ``realised_`` ones by the rollouts;
    ``_uniform`` is over all starts, ``_occupied`` over the starts of rounds. ``marginals`` is ``"drafter"``, or
    ``"re-estimated"`` for the trees of re-estimated lists.

    Parameters
    ----------
    builder : str
    rollouts : int
        Rollouts that were judged: those held out, or all.
    by_budget : polars.DataFrame
        A row for each kind of marginals and budget: marginals, budget, certain (share of the starts whose ``N`` is
        sure), expected_rounds, pooled_length, and of the accepted drafts of a round expected_uniform, realised_uniform,
        expected_occupied, realised_occupied; null where there is no start.
    by_depth : polars.DataFrame
        A row for each of these and depth: marginals, budget, depth, starts and rounds (how many have that depth before
        the rollout's end), and the same figures, of the probability that a round accepts that depth.
    """

    builder: str
    rollouts: int
    by_budget: pl.DataFrame
    by_depth: pl.DataFrame

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>{self.by_budget._repr_html_()}"

    def __repr__(self) -> str:
        budgets = ", ".join(map(str, self.by_budget["budget"].unique(maintain_order=True)))
        kinds = " and ".join(self.by_budget["marginals"].unique(maintain_order=True))
        return f"Calibration({self.builder}, {self.rollouts} rollouts, marginals of {kinds}, budgets {budgets})"


def surrogate_calibration(
    top_ids: Any,
    top_log_q: Any,
    tokens: Any,
    indptr: Any,
    *,
    budgets: Iterable[int],
    builder: str | Builder = "best-first",
    train: Any = None,
    first_start: int = 0,
    complete: bool = False,
    bins: int = 4,
) -> Calibration:
    """Compare the accepted drafts that the drafter's own probabilities promise with those of the rollouts.

    Parameters
    ----------
    top_ids, top_log_q, tokens, complete
        As in ``tree_ranks``.
    indptr : array of int, (R+1,)
        Rollout ``i`` owns rows ``indptr[i]:indptr[i+1]``.
    budgets : iterable of int
        Nodes, the root not counted; rising.
    builder : str or Builder
        As in ``tree_ranks``.
    train : array of bool, (R,), optional
        Rollouts that the marginals are re-estimated on; the others are judged, with both. Rollouts of one prompt should
        be on one side. Absent: all are judged, with the drafter's own marginals.
    first_start : int
        ``s0``: starts before it count nowhere.
    bins : int
        As in `reestimate`.

    Returns
    -------
    Calibration

    Raises
    ------
    RequestError
        If the builder is unknown or needs settings, or budgets do not rise.
    ValueError
        As ``tree_ranks`` and `reestimate`, or if the offsets do not cover the starts.

    Notes
    -----
    All figures are of trees of listed tokens, re-estimated ones draft no others. Every tree is built, ``O(n log n)`` in
    Python: some 0.1 to 0.4 ms for each start at 64 nodes.

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.drafting import surrogate_calibration
    >>> ids, log_q = [[[7, 8], [5, 6]]] * 3, np.log([[[.7, .2], [.5, .4]]] * 3)
    >>> tokens = [[7, 5], [5, 6], [7, -1]]
    >>> found = surrogate_calibration(ids, log_q, tokens, [0, 3], budgets=[2], complete=True)
    >>> found.by_budget.select("budget", "expected_rounds", "expected_uniform", "realised_uniform").row(0)
    (2, 1.0, 0.933, 1.0)
    >>> found.by_depth.select("depth", "starts", "expected_uniform", "realised_uniform").rows()
    [(1, 3, 0.7, 0.667), (2, 2, 0.35, 0.5)]
    """
    chosen, sizes = resolve(builder), _check_budgets(budgets)
    ids, words = check_tokens(top_ids, tokens)
    offsets, start = check_indptr(indptr, len(ids)), check_first_start(first_start, len(ids))
    lengths = np.diff(offsets)
    judged = np.ones(lengths.size, bool)
    kinds = {OWN: (ids, np.asarray(top_log_q), complete)}
    if train is not None:
        seen = _check_mask(train, lengths.size, "rollout")
        judged = ~seen
        told = reestimate(ids, top_log_q, words, train=np.repeat(seen, lengths), bins=bins)
        kinds[RE_ESTIMATED] = (*told, True)
    rows = np.repeat(judged, lengths)
    held = np.concatenate(([0], np.cumsum(lengths[judged])))
    by_budget, by_depth = [], []
    for kind, (named, log_q, whole) in kinds.items():
        lists = Lists.read(named[rows], log_q[rows], words[rows], complete=whole, threads=None)
        judge = _Judge(lists, words[rows] >= 0, held, start)
        for one, layers in judge.rows(chosen, sizes):
            by_budget.append({"marginals": kind, **one})
            by_depth += [{"marginals": kind, **layer} for layer in layers]
    return Calibration(chosen.name, int(judged.sum()), _frame(by_budget), _frame(by_depth))


@dataclass(frozen=True, eq=False)
class _Judge:
    """Rollouts that are judged: their lists, which cells (N, D) lie before the end, offsets, and the first start."""

    lists: Lists
    inside: Array
    indptr: Array
    first_start: int

    def rows(self, builder: Builder, budgets: Sequence[int]) -> Iterable[tuple[Row, list[Row]]]:
        """Give for each budget the row of ``by_budget`` and those of ``by_depth``."""
        most = builder.ranks(self.lists, budgets[-1])
        nested = most.min_budget <= budgets[0]
        for n in budgets:
            yield self._judged(most if nested else builder.ranks(self.lists, n), n, self._expected(builder, n))

    def _expected(self, builder: Builder, n: int) -> Floats:
        """Sum the values of the nodes of each start's tree by depth, (N, D)."""
        logs = self.lists.log_q.astype(np.float64)
        logs[np.isnan(logs)] = -np.inf
        out = np.zeros(self.inside.shape)
        for s, log_q in enumerate(logs):
            found: dict[Path, float] = {(): 0.0}
            for path in builder.paths(log_q, n):
                found[path] = found[path[:-1]] + float(log_q[len(path) - 1, path[-1]])
                out[s, len(path) - 1] += math.exp(found[path])
        return out

    def _judged(self, ranks: TreeRanks, n: int, expected: Floats) -> tuple[Row, list[Row]]:
        rounds = solve(tree_law(ranks, self.indptr, budget=n), first_start=self.first_start)
        begins = np.repeat(self.indptr[:-1], np.diff(self.indptr))
        after = (np.arange(begins.size) - begins >= self.first_start).astype(np.float64)
        weights, sure = np.stack([after, rounds.occupancy]), np.asarray(ranks.exact_to) >= n
        cells = np.stack([expected * self.inside, ranks.rank <= n, self.inside])
        sums, counts = np.einsum("ws,csd->wcd", weights, cells), weights.sum(axis=1)
        one = {
            "budget": n,
            "certain": _share(after @ sure, counts[0]),
            "expected_rounds": float(rounds.expected.sum()),
            "pooled_length": _share(rounds.committed.sum(), rounds.expected.sum()),
            **{name: _share(sums[w, c].sum(), counts[w]) for name, (w, c) in FIGURES.items()},
        }
        layers = [
            {
                "budget": n,
                "depth": d + 1,
                "starts": round(float(sums[0, 2, d])),
                "rounds": float(sums[1, 2, d]),
                **{name: _share(sums[w, c, d], sums[w, 2, d]) for name, (w, c) in FIGURES.items()},
            }
            for d in range(sums.shape[2])
        ]
        return one, layers


def reestimate(
    top_ids: Any, top_log_q: Any, tokens: Any, *, train: Any, bins: int = 4
) -> tuple[npt.NDArray[np.int32], Floats]:
    """Correct the drafter's probabilities by how often its drafts were right on other rollouts.

    Parameters
    ----------
    top_ids, top_log_q, tokens
        As in ``tree_ranks``.
    train : array of bool, (N,)
        Starts to learn from.
    bins : int
        Bins of confidence for each depth and rank, each with as many of the starts to learn from; a value at the edge
        of two is in the upper one.

    Returns
    -------
    ids : ndarray of int32, (N, D, M)
        The same tokens, best first by the new estimates; equal ones stay in the drafter's order.
    log_q : ndarray of float64, (N, D, M)
        Logarithms of the new estimates, as ``tree_ranks`` takes them: never rising, sums of at most 1, ``-inf`` where
        the drafter has it, NaN where there was no list. They tell of listed tokens alone: pass ``complete=True``.

    Raises
    ------
    ValueError
        As ``tree_ranks``, if ``train`` is no mask of the starts, or ``bins`` is below 1.

    Notes
    -----
    ``O(N D M log N)``. A start whose earlier tokens are not all listed tests nothing at a depth, and is not learnt from
    there.

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.drafting import reestimate
    >>> ids, log_q = [[[7, 8]]] * 40, np.log([[[.6, .3]]] * 40)
    >>> new_ids, new_log_q = reestimate(ids, log_q, [[8]] * 40, train=[True] * 40, bins=1)
    >>> new_ids[0, 0], np.exp(new_log_q[0, 0])  # 8 of 32 hits for token 7, 48 of 20 for token 8
    (array([8, 7], dtype=int32), array([0.72, 0.15]))
    """
    ids, words = check_tokens(top_ids, tokens)
    lists = Lists.read(ids, top_log_q, words, complete=False, threads=None)
    seen = _check_mask(train, len(ids), "start")
    check_integer(bins, "bins", 1)
    q = np.exp(lists.log_q.astype(np.float64))
    tested = (words >= 0) & seen[:, None]
    tested[:, 1:] &= np.logical_and.accumulate(lists.hit >= 0, axis=1)[:, :-1]
    shares = np.arange(1, bins) / bins
    new = np.empty_like(q)
    for d in range(q.shape[1]):
        rows = np.flatnonzero(tested[:, d])
        right = lists.hit[rows, d]
        for m in range(q.shape[2]):
            own = q[:, d, m]
            edges = np.quantile(own[rows], shares) if rows.size else shares[:0]
            cell = np.searchsorted(edges, own, side="right")
            hits = np.bincount(cell[rows][right == m], minlength=bins)
            promised = np.bincount(cell[rows], weights=own[rows], minlength=bins)
            new[:, d, m] = own * ((hits + PRIOR_HITS) / (promised + PRIOR_HITS))[cell]
    new /= np.maximum(new.sum(axis=2, keepdims=True), 1)
    order = np.argsort(-new, axis=2, kind="stable")
    with np.errstate(divide="ignore"):
        log_q = np.log(np.take_along_axis(new, order, axis=2))
    return np.take_along_axis(ids, order, axis=2), np.minimum(log_q, 0)


def _share(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole > 0 else None


def _check_budgets(given: Iterable[int]) -> list[int]:
    try:
        sizes = list(given)
    except TypeError:
        raise RequestError(f"budgets: found {given!r}; allowed: rising integers of 0 or more") from None
    for n in sizes:
        check_integer(n, "budgets", 0)
    if not sizes or any(b <= a for a, b in pairwise(sizes)):
        raise RequestError(f"budgets: found {sizes}; allowed: rising integers of 0 or more")
    return [int(n) for n in sizes]


def _check_mask(given: Any, rows: int, what: str) -> npt.NDArray[np.bool_]:
    mask = np.asarray(given)
    if mask.shape != (rows,) or mask.dtype != bool:
        raise ValueError(
            f"train: found shape {mask.shape}, dtype {mask.dtype}; allowed: ({rows},) booleans, one for each {what}"
        )
    return mask


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    floats = ("certain", "expected_rounds", "pooled_length", "rounds", *FIGURES)
    return pl.DataFrame(rows, schema_overrides={name: pl.Float64 for name in floats if name in rows[0]})
