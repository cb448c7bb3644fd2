"""Between which two numbers the expected rounds lie when acceptances are known to lie in intervals.

From start ``s`` draft ``k`` is accepted, given the drafts before it, with a probability ``a[s,k]`` in
``[lo[s,k], hi[s,k]]``; the ends of all rounds are at ``V[T] = 0``, indices clipped at ``T``, and ``c[s] = 1``, or the
price of a round::

    (robust)  V[s] = c[s] + U[s,0],  U[s,L] = V[s+L+1],  U[s,k-1] = V[s+k] + max_a a (U[s,k] - V[s+k])

and ``min`` for the least. The maximum over an interval is at one of its ends.

*Cells that vary independently: exact.* ``U[s,k-1]`` rises with ``U[s,k]`` and with every later ``V``, so induction
from the end shows that no choice of acceptances exceeds it; the ends chosen reach it, from all starts at once. Taking
one end everywhere is no bound: rounds may rise with acceptance, which can skip a start from which much is accepted.

*Acceptance of positions, the same from every start.* A walk tests a position once at most, so it may draw all hits
beforehand: the next start is ``n(s) = min(m, s+L[s]) + 1``, ``m`` the first miss from ``s`` on. If ``s+L[s]`` never
falls, ``n`` never falls in ``s``, nor in the hits; a walk that is ahead stays ahead, and more hits never make more
rounds. Both ends of the rounds are at one end of all acceptances, and the program gives just these: having passed
draft ``k`` is to be ahead of the start ``s+k`` after one round more, so that ``U[s,k] <= V[s+k]`` everywhere. With
other lengths, or prices that differ by start, the program lets a position vary from start to start: an outer bound.

*Block verification.* ``S[k]`` is the running minimum of 1 and the products ``P[k]`` of ``r = q/p``. With
``Q = P / S``::

    (block)  a[k] = S[k] / S[k-1] = min(1, Q[k-1] r[k]),  Q[k] = max(1, Q[k-1] r[k]),  Q[0] = 1

for ``P[k] = P[k-1] r[k]`` and ``S[k] = min(S[k-1], P[k])``. Both rise with every ratio, so ``a`` lies between its
values at the two ends of all ratios and the program bounds the rounds; it is outer, because acceptances of one round
then do not vary independently. Where the ends agree on ``Q[k-1]`` for every tested ``k``, as when no ratio exceeds 1,
they do, and it is exact. These bounds lie within those that let ``S`` be any non-increasing sequence between its two
ends, since such acceptances make such an ``S``.

Source: robust dynamic programming with rectangular sets: Iyengar, Robust Dynamic Programming, Mathematics of Operations
Research 30 (2005); Nilim and El Ghaoui, Operations Research 53 (2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from markov_spec._jit import split_rollouts
from markov_spec.arrays import (
    LOG_TOLERANCE,
    RoundLaw,
    as_float,
    check_first_start,
    check_indptr,
    locate,
    rollout_spans,
)
from markov_spec.chain import _intervals
from markov_spec.chain._lanes import WIDTH

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
CHUNK_CELLS = 1 << 16


@dataclass(frozen=True, eq=False, repr=False)
class Bounds:
    """Least and largest expected rounds, or price, of each rollout. Made by ``bound_rounds``, ``bound_rounds_block``.

    Parameters
    ----------
    low, high : ndarray of float64, (R,)
        Bounds of the expected rounds, or of the expected price in its unit; 0 where nothing is left to decode. Their
        sums bound the sum over rollouts.
    low_value, high_value : ndarray of float64, (N,)
        The same from every start, also before ``first_start``.
    kind : {"exact", "outer"}
        ``"exact"`` if both bounds are attained within the intervals, all independent of each other; ``"outer"`` if
        they hold, but need not be attained.
    of : {"rounds", "price"}
    lower, upper : RoundLaw
        All acceptances at their lower and at their upper ends; neither need attain a bound.
    """

    low: Floats
    high: Floats
    low_value: Floats
    high_value: Floats
    kind: Literal["exact", "outer"]
    of: Literal["rounds", "price"]
    lower: RoundLaw
    upper: RoundLaw

    def __repr__(self) -> str:
        count, low, high = self.low.size, float(self.low.sum()), float(self.high.sum())
        return f"Bounds({count} rollout{'s' * (count != 1)}, {low:.6g} to {high:.6g} expected {self.of}, {self.kind})"

    @cached_property
    def low_pattern(self) -> Bools:
        """Whether each acceptance takes its upper end in ``low``: (N, K), or (N,) for positions that attain it."""
        return self._pattern(self.low_value, -1.0)

    @cached_property
    def high_pattern(self) -> Bools:
        """Whether each acceptance takes its upper end in ``high``: (N, K), or (N,) for positions that attain it."""
        return self._pattern(self.high_value, 1.0)

    @cached_property
    def low_law(self) -> RoundLaw:
        """The law of ``low_pattern``, whose expectation is ``low``; within the intervals if the kind is exact."""
        return self._law(self.low_pattern)

    @cached_property
    def high_law(self) -> RoundLaw:
        """The law of ``high_pattern``, whose expectation is ``high``; within the intervals if the kind is exact."""
        return self._law(self.high_pattern)

    def _pattern(self, value: Floats, sign: float) -> Bools:
        if self.kind == "exact" and self.lower.form == "positions":
            return np.full(value.size, sign < 0)
        lower, row, length, step, indptr = self.lower.layout()
        upper = self.upper.layout()[0]
        pattern = np.zeros((value.size, row if self.lower.form == "cells" else _deepest(self.lower)), bool)

        def run(first: int, last: int) -> None:
            _intervals.ends(lower, upper, row, length, step, indptr, first, last, value, sign, pattern)

        split_rollouts(run, indptr, threads=None, nbytes=pattern.nbytes)
        return pattern

    def _law(self, pattern: Bools) -> RoundLaw:
        lower, upper, length = self.lower.accept, self.upper.accept, np.asarray(self.lower.draft_length)
        if pattern.ndim > lower.ndim:
            at = np.minimum(np.arange(len(pattern))[:, None] + np.arange(pattern.shape[1]), len(pattern) - 1)
            lower, upper, length = lower[at], upper[at], np.minimum(length, pattern.shape[1])
        return RoundLaw.trusted(np.where(pattern, upper, lower), self.lower.indptr, length, "bound")


def bound_rounds(
    accept_lo: Any,
    accept_hi: Any,
    indptr: Any,
    *,
    draft_length: Any = None,
    first_start: int = 0,
    price: Any = None,
    threads: int | None = None,
) -> Bounds:
    """Compute the least and the largest expected rounds that acceptances within intervals allow.

    Parameters
    ----------
    accept_lo, accept_hi : array of float, (N, K) or (N,)
        Interval of the conditional acceptance of depth ``k`` of the round begun at ``s``; or of each position, the same
        from every start, as product rules of an autoregressive drafter have it. Cells past a rollout's end or deeper
        than ``draft_length`` are ignored.
    indptr : array of int, (R+1,)
    draft_length : int or array of int, (N,), optional
        ``L[s]``: drafts proposed from each start. Required for (N,) acceptances; absent means ``K`` for cells.
    first_start : int
        ``s0``: 0 when the first token is drafted too, 1 when the prefill emits it.
    price : float or array of float, (N,), optional
        Price of a round, constant or by start; any unit. The bounds are of the expected price then.
    threads : int, optional
        None means the cores that this process may use. Results are bit-equal for every number.

    Returns
    -------
    Bounds
        ``"exact"`` for cells; for positions if ``s + L[s]`` never falls before the end, as for a constant length, and
        any price is a constant of 0 or more. Also where both bounds are the same. Otherwise ``"outer"``.

    Raises
    ------
    ValueError
        If shapes disagree, an acceptance that counts is NaN or outside [0, 1], a lower end exceeds the upper one, or a
        price is not finite; the message names the rollout and position.

    Notes
    -----
    ``O(N K)``, about twice the time of ``solve``. Exact means attained if each acceptance may lie anywhere in its
    interval whatever the others are. Intervals with a common cause, such as an unknown probability of the target at a
    position that many starts reach, give bounds that hold, but may not be attained.

    Source: see the module, which has the proofs.

    Examples
    --------
    Only the second draft from the start is unknown. Accepted, it ends the round beyond start 2, from which all is:

    >>> import numpy as np, markov_spec as ms
    >>> from markov_spec.chain import bound_rounds
    >>> low = np.zeros((6, 2))
    >>> low[0, 0] = low[2] = 1
    >>> high = low.copy()
    >>> high[0, 1] = 1
    >>> bounds = bound_rounds(low, high, [0, 6])
    >>> bounds
    Bounds(1 rollout, 3 to 4 expected rounds, exact)
    >>> bounds.high_pattern[0]
    array([False,  True])
    >>> ms.solve(bounds.low_law).expected
    array([3.])
    """
    lower, upper = _interval_laws(accept_lo, accept_hi, "accept_lo", "accept_hi", indptr, draft_length)
    _refuse_bad(lower, upper, ("accept_lo", "accept_hi"), 0.0, 1 + LOG_TOLERANCE, "0 <= lo <= hi <= 1", threads)
    return _bounds(lower, upper, lower.form == "cells", first_start, price, threads)


def bound_rounds_block(
    log_ratio_lo: Any,
    log_ratio_hi: Any,
    indptr: Any,
    *,
    draft_length: Any = None,
    first_start: int = 0,
    price: Any = None,
    threads: int | None = None,
) -> Bounds:
    """Bound the expected rounds of block verification from intervals of ``log r = log q - log p``.

    Parameters
    ----------
    log_ratio_lo, log_ratio_hi : array of float, (N, K) or (N,)
        Interval of the log-ratio (nats) of the realised token, drafter's probability by target's: of depth ``k`` of
        the round begun at ``s``, or of each position. ``-inf`` where the drafter cannot propose it, ``inf`` for an
        upper end without bound. Cells past a rollout's end or deeper than ``draft_length`` are ignored.
    indptr, draft_length, first_start, price, threads
        As in ``bound_rounds``.

    Returns
    -------
    Bounds
        ``"outer"``; ``"exact"`` for cells if no draft follows one whose products of ratios leave open how far they
        exceed 1, and for positions if no ratio can exceed 1 and ``bound_rounds`` would be exact. Patterns and laws are
        of acceptances, not of ratios, and in cells unless no ratio can exceed 1.

    Raises
    ------
    ValueError
        If shapes disagree, a log-ratio that counts is NaN, a lower end exceeds the upper one, or a price is not finite;
        the message names the rollout and position.

    Notes
    -----
    ``O(N K)``; takes two arrays of ``N K`` acceptances. Both ends plugged in are no bounds even for positions and a
    constant length: with ``K = 2`` and ratios .9, x, 2, .9, 2 rounds rise from 2.1 at ``x = 0`` to 2.19 at ``x = 2``.

    Source: see the module, which has the proofs.

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.chain import bound_rounds_block
    >>> ratio = np.array([.9, .5, 2, .9, 2])
    >>> with np.errstate(divide="ignore"):
    ...     low, high = np.log(ratio * [1, 0, 1, 1, 1]), np.log(ratio * [1, 4, 1, 1, 1])
    >>> bound_rounds_block(low, high, [0, 5], draft_length=2)
    Bounds(1 rollout, 2.1 to 2.19 expected rounds, outer)
    """
    names = "log_ratio_lo", "log_ratio_hi"
    below, above = _interval_laws(log_ratio_lo, log_ratio_hi, *names, indptr, draft_length)
    _refuse_bad(below, above, names, -np.inf, np.inf, "lo <= hi", threads)
    if above.form == "positions" and (above.accept <= 0).all():
        with np.errstate(under="ignore"):
            lower, upper = (
                RoundLaw.trusted(np.exp(x.accept), x.indptr, x.draft_length, "bound") for x in (below, above)
            )
        return _bounds(lower, upper, False, first_start, price, threads)
    lower, upper, settled = _block_laws(below, above, threads)
    return _bounds(lower, upper, settled and above.form == "cells", first_start, price, threads)


def _interval_laws(
    low: Any, high: Any, low_name: str, high_name: str, indptr: Any, draft_length: Any
) -> tuple[RoundLaw, RoundLaw]:
    # Both ends in the layout of laws, their values yet to be checked.
    lower, upper = as_float(low, low_name), as_float(high, high_name)
    if lower.ndim not in (1, 2) or np.shape(low) != lower.shape:
        raise ValueError(f"{low_name}: found shape {np.shape(low)}; allowed: (N, K) or (N,)")
    if np.shape(high) != lower.shape:
        raise ValueError(f"{high_name}: found shape {np.shape(high)}; allowed: {lower.shape}, that of {low_name}")
    offsets = check_indptr(indptr, lower.shape[0])
    below = RoundLaw.trusted(lower, offsets, draft_length, "bound")
    return below, RoundLaw.trusted(upper, offsets, below.draft_length, "bound")


def _deepest(law: RoundLaw) -> int:
    # The most drafts of any round: a length given with positions may exceed every rollout.
    return min(law.depth, int(np.diff(law.indptr).max(initial=0)))


def _refuse_bad(
    below: RoundLaw,
    above: RoundLaw,
    names: tuple[str, str],
    least: float,
    most: float,
    allowed: str,
    threads: int | None,
) -> None:
    lower, row, length, step, indptr = below.layout()
    upper = above.layout()[0]
    if below.form == "positions":  # each once, and none if nothing is drafted
        length, step = np.array([min(below.depth, 1)], np.int32), 0
    bad: list[int] = []
    ends = lower.dtype.type(least), upper.dtype.type(most)

    def run(first: int, last: int) -> None:
        found = _intervals.first_bad(lower, upper, *ends, row, length, step, indptr, first, last)
        if found >= 0:
            bad.append(found)

    split_rollouts(run, indptr, threads=threads, nbytes=below.accept.nbytes)
    if bad:
        at = min(bad)
        where = locate(indptr, at // row) + (f", depth {at % row + 1}" if below.form == "cells" else "")
        raise ValueError(f"{names[0]}, {names[1]}: {where}: found {lower[at]} and {upper[at]}; allowed: {allowed}")


def _block_laws(below: RoundLaw, above: RoundLaw, threads: int | None) -> tuple[RoundLaw, RoundLaw, bool]:
    # The acceptances at both ends, in cells, and whether the ends agree on every Q that multiplies a ratio.
    lower, row, length, step, indptr = below.layout()
    upper, rows = above.layout()[0], below.accept.shape[0]
    width = row if below.form == "cells" else _deepest(below)
    accept = tuple(np.empty((rows, width), law.accept.dtype) for law in (below, above))
    settled: list[bool] = []

    def run(first: int, last: int) -> None:
        for i, j in rollout_spans(indptr, first, last, CHUNK_CELLS // max(width, 1)):
            at = slice(int(indptr[i]), int(indptr[j]))
            logs = np.empty((2, at.stop - at.start, width))
            settled.append(bool(_intervals.block(lower, upper, row, length, step, indptr, i, j, *logs)))
            for log, out in zip(logs, accept, strict=True):
                np.exp(log, out=out[at], casting="same_kind")

    split_rollouts(run, indptr, threads=threads, nbytes=accept[0].nbytes)
    own = np.minimum(np.asarray(below.draft_length), width)
    first, second = (RoundLaw.trusted(cells, indptr, own, "bound") for cells in accept)
    return first, second, all(settled)


def _bounds(
    lower: RoundLaw, upper: RoundLaw, independent: bool, first_start: int, price: Any, threads: int | None
) -> Bounds:
    indptr, rows = lower.indptr, lower.accept.shape[0]
    start = check_first_start(first_start, rows)
    cost = np.ones(1) if price is None else _checked_price(price, indptr)
    price_step, low_value, high_value = int(np.ndim(price) == 1), np.empty(rows), np.empty(rows)
    below, row, length, step, _ = lower.layout()
    above, sizes = upper.layout()[0], np.diff(indptr)

    def run(first: int, last: int) -> None:
        order = first + np.argsort(sizes[first:last], kind="stable")
        groups = np.concatenate((order, np.repeat(order[-1:], -order.size % WIDTH))).reshape(-1, WIDTH)
        common = below, above, row, length, step, indptr, groups
        _intervals.program(*common, cost, price_step, low_value, high_value)

    split_rollouts(run, indptr, threads=threads, nbytes=lower.accept.nbytes)
    left = sizes > start
    low, high = np.zeros((2, sizes.size))
    low[left], high[left] = (value[indptr[:-1][left] + start] for value in (low_value, high_value))
    if lower.form == "positions":
        independent = np.ndim(price) == 0 and float(cost[0]) >= 0 and _reach_never_falls(lower)
    exact = independent or np.array_equal(low, high)
    of: Literal["rounds", "price"] = "rounds" if price is None else "price"
    return Bounds(low, high, low_value, high_value, "exact" if exact else "outer", of, lower, upper)


def _reach_never_falls(law: RoundLaw) -> bool:
    # A round that reaches the last token ends the rollout, by a draft or by the target's own token.
    if isinstance(law.draft_length, int):
        return True
    last = np.repeat(law.indptr[1:] - 1, np.diff(law.indptr))
    reach = np.minimum(np.arange(last.size) + np.asarray(law.draft_length), last)
    return bool(np.all(np.diff(reach) >= 0))


def _checked_price(price: Any, indptr: npt.NDArray[np.int64]) -> Floats:
    rows = int(indptr[-1])
    if np.shape(price) not in ((), (rows,)):
        raise ValueError(f"price: found shape {np.shape(price)}; allowed: a number or ({rows},)")
    values = as_float(price, "price").astype(np.float64, copy=False).reshape(-1)
    bad = ~np.isfinite(values)
    if bad.any():
        at = int(np.argmax(bad))
        where = f"{locate(indptr, at)}: " if np.ndim(price) else ""
        raise ValueError(f"price: {where}found {values[at]}; allowed: finite numbers")
    return values
