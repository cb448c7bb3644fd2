"""The engine: a round law in, exact moments of the decoding rounds out.

From start ``s`` a round accepts ``k`` drafts with probability ``A[s,k]`` and the next one starts at ``s+k+1``, clipped
at the end ``T`` where everything is 0. Sums over ``k`` run from 0 to ``min(L[s], T-s)``; ``s0`` is the first start::

    (V)  V[s] = 1 + sum_k A[s,k] V[s+k+1]                  expected rounds from s
    (O)  o[s0] = 1,  o[t] = sum_{s<t} o[s] A[s,t-s-1]      probability that a round starts at t
    (E)  E[R] = V[s0] = sum_s o[s]
    (M)  Var[s] = sum_k A[s,k] (Var[s+k+1] + (V[s+k+1] - V[s] + 1)^2)
    (H)  h[k] = sum_s o[s] A[s,k]                          expected rounds that accept exactly k drafts
    (C)  C[s] = sum_k A[s,k] (c[s,k] + C[s+k+1])           expected price

(M) is the law of total variance, equal to the second moment less ``V^2`` and free of its cancellation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec._jit import split_rollouts
from markov_spec.arrays import Array, RoundLaw, as_float, check_first_start, locate
from markov_spec.chain import _numba
from markov_spec.chain.distribution import RoundDistribution, expected_inverse, round_distribution

Floats = npt.NDArray[np.float64]

__all__ = ["RoundDistribution", "Rounds", "expected_inverse", "round_distribution", "solve"]


@dataclass(frozen=True, eq=False, repr=False)
class Rounds:
    """Exact expectations over the decoding rounds of each rollout, all float64. Made by ``solve``.

    Parameters
    ----------
    expected : ndarray, (R,)
        Expected decoding rounds ``E[R]``; 0 where nothing is left to decode.
    variance : ndarray, (R,)
        Variance of the rounds.
    value : ndarray, (N,)
        ``V[s]``: expected rounds from every start, also before ``first_start``.
    occupancy : ndarray, (N,)
        ``o[s]``: probability that a round starts at ``s``; 0 before ``first_start``.
    accepted_histogram : ndarray, (R, K+1)
        ``h[k]``: expected rounds that accept exactly ``k`` drafts, an accepted end token counted.
    tested : ndarray, (R, K)
        Expected rounds that propose depth ``k`` (``k <= min(L[s], T-s)``) and accept the ``k-1`` drafts before it.
    drafted : ndarray, (R,)
        Expected drafts proposed, ``sum_s o[s] min(L[s], T-s)``.
    committed : ndarray, (R,)
        Tokens to decode, ``max(T - first_start, 0)``.
    price : ndarray, (R,), or None
        Expected price; None if no price was given.
    expected_inverse : ndarray, (R,), or None
        ``E[1/R]``, NaN where nothing is left to decode; None if it was not asked for.
    """

    expected: Floats
    variance: Floats
    value: Floats
    occupancy: Floats
    accepted_histogram: Floats
    tested: Floats
    drafted: Floats
    committed: Floats
    price: Floats | None = None
    expected_inverse: Floats | None = None

    def __repr__(self) -> str:
        count, total = self.expected.size, float(self.expected.sum())
        tokens = int(self.committed.sum())
        return f"Rounds({count} rollout{'s' * (count != 1)}, {tokens} tokens in {total:.6g} expected rounds)"


def _price_layout(price: Any, law: RoundLaw) -> tuple[Array, int, int]:
    # The price of a round from row s that accepts n drafts stands at s * row_step + n * draft_step.
    rows, width = law.accept.shape[0], law.depth + 1
    shape = tuple(np.shape(price))
    if shape not in ((), (rows,), (rows, width)):
        raise ValueError(f"price: found shape {shape}; allowed: a number, ({rows},) or ({rows}, {width})")
    values = as_float(price, "price")
    bad = ~np.isfinite(values.reshape(-1 if shape else 1))
    if bad.any():
        at = int(np.argmax(bad))
        row = at // width if len(shape) == 2 else at
        where = f"{locate(law.indptr, row)}: " if shape else ""
        raise ValueError(f"price: {where}found {values.reshape(-1)[at]}; allowed: finite numbers")
    flat = values.astype(np.float64, copy=False).reshape(-1)
    return flat, (0, 1, width)[len(shape)], int(len(shape) == 2)


def solve(
    law: RoundLaw, *, first_start: int = 0, price: Any = None, inverse: bool = False, threads: int | None = None
) -> Rounds:
    """Compute the expected rounds of every rollout, their variance, and what the rounds accept and draft.

    Parameters
    ----------
    law : RoundLaw
        How many drafts a round accepts from every start.
    first_start : int
        ``s0``: 0 when the first token is drafted too, 1 when the prefill emits it.
    price : float or array of float, (N,) or (N, K+1), optional
        Price of a round: constant, by start, or by start and accepted drafts; any unit.
    inverse : bool
        Whether to compute ``E[1/R]`` as well (see ``expected_inverse``); it takes several times as long as the rest.
    threads : int, optional
        None means the cores that this process may use. Results are bit-equal for every number.

    Returns
    -------
    Rounds

    Raises
    ------
    ValueError
        If ``first_start`` is negative, ``threads`` below 1, or the price has another shape or is not finite.

    Notes
    -----
    ``O(N K)`` time, ``O(N + R K)`` memory. Acceptance is read as it is stored, sums are float64. A rollout with
    ``T <= first_start`` has 0 rounds. The recursion is that of a Markov reward process on the starts of one rollout.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> law = ms.RoundLaw.from_acceptance(np.full((5, 2), .5), [0, 5])
    >>> rounds = ms.solve(law)
    >>> rounds.value
    array([3.1875, 2.625 , 2.    , 1.5   , 1.    ])
    >>> rounds
    Rounds(1 rollout, 5 tokens in 3.1875 expected rounds)
    """
    rollouts, rows, depth = law.indptr.size - 1, law.accept.shape[0], law.depth
    first_start = check_first_start(first_start, rows)
    out = Rounds(
        expected=np.empty(rollouts),
        variance=np.empty(rollouts),
        value=np.empty(rows),
        occupancy=np.empty(rows),
        accepted_histogram=np.empty((rollouts, depth + 1)),
        tested=np.empty((rollouts, depth)),
        drafted=np.empty(rollouts),
        committed=np.maximum(np.diff(law.indptr) - first_start, 0).astype(np.float64),
        price=None if price is None else np.empty(rollouts),
        expected_inverse=expected_inverse(law, first_start=first_start, threads=threads) if inverse else None,
    )
    common = law.layout()
    backward = _numba.backward_of(law)
    prices = None if price is None else _price_layout(price, law)

    def run(first: int, last: int) -> None:
        backward(*common, first, last, first_start, out.value, out.variance)
        _numba.forward(
            *common, first, last, first_start, out.occupancy, out.accepted_histogram, out.tested, out.drafted
        )
        if prices is not None and out.price is not None:
            _numba.priced(*common, first, last, first_start, *prices, out.price)

    split_rollouts(run, law.indptr, threads=threads, nbytes=law.accept.nbytes)
    left = out.committed > 0
    out.expected[:] = 0.0
    out.expected[left] = out.value[law.indptr[:-1][left] + first_start]
    return out
