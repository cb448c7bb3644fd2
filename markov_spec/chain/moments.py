"""The moments of the rounds of every rollout, and how their kernels are chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec._jit import split_rollouts
from markov_spec.arrays import Array, RoundLaw, TensorLaw, as_float, check_first_start, locate
from markov_spec.chain import _eight, _numba
from markov_spec.chain._lanes import WIDTH
from markov_spec.chain.quadrature import mean_ratio, one_token

Floats = npt.NDArray[np.float64]
Priced = tuple[Array, int, int, Floats, Floats]  # prices, their layout, expectation and variance to be filled

SCRATCH_BYTES = 1 << 25  # most that the cells of eight rollouts side by side may take in each thread
WORTH = 3  # eight rollouts at once take as long as about this many of their length one after the other


@dataclass(frozen=True, eq=False, repr=False)
class Rounds:
    """Exact expectations over the decoding rounds of each rollout, all float64. Made by ``solve``.

    Of a law of tensors they are tensors, and ``(N,)`` stands for ``(B, T)`` if it is padded.

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
    price_variance : ndarray, (R,), or None
        Variance of the price, in its unit squared; None if no price was given.
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
    price_variance: Floats | None = None
    expected_inverse: Floats | None = None

    def __repr__(self) -> str:
        count, total = len(self.expected), float(self.expected.sum())
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


def _side_by_side(law: RoundLaw, first: int, last: int, every: int = 1) -> tuple[Array, list[tuple[int, int]]]:
    # Groups of eight rollouts of about equal length, (G, 8), and ranges of those that are better done one by one. The
    # last group is filled up with its last rollout.
    if isinstance(law.draft_length, np.ndarray):
        alone = [(first, last)] if every == 1 else [(i, i + 1) for i in range(first, last, every)]
        return np.empty((0, WIDTH), np.int64), alone
    sizes = np.diff(law.indptr)
    order = first + every * np.argsort(sizes[first:last:every], kind="stable")
    groups = np.concatenate((order, np.repeat(order[-1:], -order.size % WIDTH))).reshape(-1, WIDTH)
    own = np.arange(groups.size).reshape(-1, WIDTH) < order.size
    longest = sizes[groups].max(axis=1)
    nbytes = longest * (law.layout()[1] * WIDTH * law.accept.itemsize)
    together = ((sizes[groups] * own).sum(axis=1) >= WORTH * longest) & (nbytes <= SCRATCH_BYTES)
    return groups[together], [(i, i + 1) for i in groups[own & ~together[:, None]].tolist()]


def _fill(law: RoundLaw, first: int, last: int, every: int, start: int, out: Rounds, priced: Priced | None) -> None:
    common = law.layout()
    backward = out.value, out.variance
    forward = out.occupancy, out.accepted_histogram, out.tested, out.drafted
    groups, alone = _side_by_side(law, first, last, every)
    if groups.size:
        _eight.moments_of_eight(*common, groups, start, *backward, *forward)
        if priced is not None:
            _eight.priced_of_eight(*common, groups, start, *priced)
    for i, j in alone:
        _numba.backward(*common, i, j, start, *backward)
        _numba.forward(*common, i, j, start, *forward)
        if priced is not None:
            _numba.priced(*common, i, j, start, *priced)


def solve(
    law: RoundLaw | TensorLaw,
    *,
    first_start: int = 0,
    price: Any = None,
    inverse: bool = False,
    threads: int | None = None,
) -> Rounds:
    """Compute the expected rounds of every rollout, their variance, and what the rounds accept and draft.

    Parameters
    ----------
    law : RoundLaw or TensorLaw
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
        Of a ``TensorLaw`` in float64 tensors on its device, without gradient; what has a number for each start has the
        shape of its rows.

    Raises
    ------
    ValueError
        If ``first_start`` is negative, ``threads`` below 1, or the price has another shape or is not finite; or if the
        inverse is asked for of tensors that are not on the CPU.

    Notes
    -----
    ``O(N K)`` time, ``O(N + R K)`` memory. Acceptance is read as it is stored, sums are float64. With one draft length
    for all starts, eight rollouts of similar length are worked through at once, on copies of their cells that take at
    most 32 MB in each thread; the results are the same. Tensors on the CPU are read where they lie. Those on a device
    stay there, in ``O(N K)`` memory; as nothing is waited for, wrong lengths, offsets and prices are not found. A
    rollout with ``T <= first_start`` has 0 rounds. The recursion is that of a Markov reward process on the starts of
    one rollout.

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
    if isinstance(law, TensorLaw):
        from markov_spec.chain import _torch_solve

        return _torch_solve.solve(law, first_start, price, inverse, threads)
    out = solve_every(law, 1, first_start=first_start, price=price, threads=threads)
    if not inverse:
        return out
    start, once = check_first_start(first_start, law.accept.shape[0]), one_token(law.indptr.size - 1)
    return replace(out, expected_inverse=mean_ratio(law, out.expected, start, once, threads))


def solve_every(
    law: RoundLaw, every: int, *, first_start: int, price: Any = None, threads: int | None = None
) -> Rounds:
    """Do what ``solve`` does for one rollout out of every so many, the first of them; of the others all is 0."""
    rollouts, rows, depth = law.indptr.size - 1, law.accept.shape[0], law.depth
    start = check_first_start(first_start, rows)
    priced = None if price is None else (*_price_layout(price, law), np.zeros(rollouts), np.zeros(rollouts))
    committed = np.zeros(rollouts)
    committed[::every] = np.maximum(np.diff(law.indptr)[::every] - start, 0)
    out = Rounds(
        expected=np.zeros(rollouts),
        variance=np.zeros(rollouts),
        value=np.zeros(rows),
        occupancy=np.zeros(rows),
        accepted_histogram=np.zeros((rollouts, depth + 1)),
        tested=np.zeros((rollouts, depth)),
        drafted=np.zeros(rollouts),
        committed=committed,
        price=None if priced is None else priced[-2],
        price_variance=None if priced is None else priced[-1],
    )

    def run(first: int, last: int) -> None:
        _fill(law, every * first, every * last, every, start, out, priced)

    split_rollouts(run, law.indptr[::every], threads=threads, nbytes=law.accept.nbytes)
    left = committed > 0
    out.expected[left] = out.value[law.indptr[:-1][left] + start]
    return out


def end_accepted(law: RoundLaw, occupancy: Any) -> Floats:
    """Compute how often the last round of a decoding accepted the end token as its ``j``-th draft.

    Parameters
    ----------
    law : RoundLaw
    occupancy : array_like of float, (N,)
        ``o[s]``: probability that a round starts at ``s``, of ``solve``.

    Returns
    -------
    ndarray of float64, (R, K)
        ``o[T-j] S[T-j,j]`` at ``[i, j-1]``: probability that the last round began ``j`` tokens before the end and
        accepted ``j`` drafts, so that the target adds a token past the end. 0 where so many are not drafted.

    Raises
    ------
    ValueError
        If the occupancy has another shape.

    Notes
    -----
    ``O(R K^2)`` time. The sum over ``j`` is the overshoot: the tokens that an engine counts beyond the rollout.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> from markov_spec.chain import end_accepted
    >>> law = ms.RoundLaw.from_acceptance(np.full((5, 2), .5), [0, 5])
    >>> end_accepted(law, ms.solve(law).occupancy)
    array([[0.28125, 0.15625]])
    """
    if np.shape(occupancy) != law.accept.shape[:1]:
        raise ValueError(f"occupancy: found shape {np.shape(occupancy)}; allowed: ({law.accept.shape[0]},)")
    starts = as_float(occupancy, "occupancy")
    accept, row, length, step, indptr = law.layout()
    out = np.zeros((indptr.size - 1, law.depth))
    for j in range(1, law.depth + 1):
        rollouts = np.flatnonzero(np.diff(indptr) >= j)
        rollouts = rollouts[length[(indptr[rollouts + 1] - j) * step] >= j]
        at = indptr[rollouts + 1] - j
        cells = accept[at[:, None] * row + np.arange(j)]
        out[rollouts, j - 1] = starts[at] * np.prod(cells, axis=1, dtype=np.float64)
    return out
