"""Tokens per round of single decodings, averaged over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec.arrays import RoundLaw, as_float, check_first_start, locate
from markov_spec.chain.moments import solve
from markov_spec.chain.quadrature import Committed, mean_ratio, one_token

Floats = npt.NDArray[np.float64]


def _non_negative(values: Any, size: int, name: str, law: RoundLaw) -> Floats:
    if np.shape(values) != (size,):
        raise ValueError(f"{name}: found shape {np.shape(values)}; allowed: ({size},)")
    given = as_float(values, name)
    bad = ~((given >= 0) & (given < np.inf))
    if bad.any():
        at = int(np.argmax(bad))
        where = f"rollout {at}" if name == "tokens" else locate(law.indptr, at)
        raise ValueError(f"{name}: {where}: found {given[at]}; allowed: finite numbers >= 0")
    return given.astype(np.float64, copy=False)


def expected_inverse(law: RoundLaw, *, first_start: int = 0, threads: int | None = None) -> Floats:
    """Compute ``E[1/R]`` of every rollout: its tokens times this is the mean of tokens per round over single decodings.

    Parameters
    ----------
    law : RoundLaw
    first_start : int
        ``s0``: 0 when the first token is drafted too, 1 when the prefill emits it.
    threads : int, optional
        None means the cores that this process may use. Results are bit-equal for every number.

    Returns
    -------
    ndarray of float64, (R,)
        NaN where nothing is left to decode, so that ``R = 0``.

    Raises
    ------
    ValueError
        If ``first_start`` is negative or ``threads`` below 1.

    Notes
    -----
    ``O(N K)`` for each node of the Gauss-Laguerre rule: 4 nodes at first, doubled until two rules agree to a relative
    1e-12, which bounds the error of the finer one up to rounding. Where 64 nodes are not enough the distribution is
    summed, ``O(T^2 K)``: rollouts with a small chance of far fewer rounds than their mean.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> law = ms.RoundLaw.from_acceptance(np.full((5, 2), .5), [0, 5])
    >>> 5 * ms.expected_inverse(law)
    array([1.67708333])
    """
    start = check_first_start(first_start, law.accept.shape[0])
    mean = solve(law, first_start=start, threads=threads).expected
    return mean_ratio(law, mean, start, one_token(mean.size), threads)


def expected_ratio(
    law: RoundLaw, *, tokens: Any, surplus: Any, first_start: int = 0, threads: int | None = None
) -> Floats:
    """Compute ``E[(tokens_i + X_i) / R_i]`` of every rollout, ``X_i`` the surplus of an accepted end token.

    ``X_i`` is ``surplus[s]`` if the last round of the rollout began at ``s`` and accepted all ``T-s`` drafts, so that
    the end token was one of them, and 0 otherwise. With a surplus of 1 this is the mean over single decodings of the
    tokens per round that an engine counts which does not trim the target's token after the end token.

    Parameters
    ----------
    law : RoundLaw
    tokens : array_like of float, (R,)
        What is counted in every decoding, not negative.
    surplus : array_like of float, (N,)
        What is counted on top, by the start of the last round, not negative; read at the last ``K`` starts only.
    first_start : int
        ``s0``: 0 when the first token is drafted too, 1 when the prefill emits it.
    threads : int, optional
        None means the cores that this process may use. Results are bit-equal for every number.

    Returns
    -------
    ndarray of float64, (R,)
        NaN where nothing is left to decode, so that ``R = 0``.

    Raises
    ------
    ValueError
        If ``first_start`` is negative, ``threads`` below 1, or ``tokens`` or ``surplus`` has another shape or is not
        finite and at least 0.

    Notes
    -----
    Method, time and error are those of ``expected_inverse``, the case of one token and no surplus.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> from markov_spec.chain import expected_ratio
    >>> law = ms.RoundLaw.from_acceptance(np.full((5, 2), .5), [0, 5])
    >>> expected_ratio(law, tokens=[5], surplus=np.zeros(5))
    array([1.67708333])
    >>> expected_ratio(law, tokens=[5], surplus=np.ones(5))
    array([1.81875])
    """
    start = check_first_start(first_start, law.accept.shape[0])
    committed = Committed(
        _non_negative(tokens, law.indptr.size - 1, "tokens", law),
        _non_negative(surplus, law.accept.shape[0], "surplus", law),
        step=1,
    )
    mean = solve(law, first_start=start, threads=threads).expected
    return mean_ratio(law, mean, start, committed, threads)
