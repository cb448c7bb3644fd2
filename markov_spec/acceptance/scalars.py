"""Scalars of two full distributions, to be recorded while they are at hand; for numpy arrays and torch tensors alike.

``p`` is the distribution that the target decodes with, ``q`` that of the draft, over ``V`` tokens on the last axis:

    overlap   sum_v min(p, q)
    (A5)      coupling: q(x) / sum_v max(p(v) q(x), q(v) p(x)) for the realised x
    (A6)      c_1 = 1, c_{i+1} = c_i + sum_v (p - c_i q)_+
    (A7)      rho in [1, m] solves (sum_v (q - p/rho)_+)^m = sum_v (p - rho q)_+; 0 without overlap
    (cost)    sum_{v not in Z} (p - q)_+ / (1 - p(Z)), Z the stop tokens; 0 if the denominator is 0
    (KL)      sum_v p log(p/q), summed as sum_v (p log(p/q) - p + q), whose terms are never negative
    (H)       entropy sum_v -p log p, and varentropy, the variance of -log p

All is computed in float64 on the inputs' device. Small residuals are summed as differences and not taken from 1, which
would lose them. Half precision is refused: as a probability it loses every token below about 6e-8. That the
distributions sum to 1 is the caller's to see to. Two more scalars stand in ``acceptance.transport``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from markov_spec.arrays import check_integer

TOLERANCE = 1e-15
CLOSE = 4e-3


def overlap(p: Any, q: Any) -> Any:
    """Compute the probability that rejection sampling accepts a draft, over drafts: 1 less the total variation.

    Parameters
    ----------
    p, q : array of float, (..., V)
        Probabilities, of shapes that broadcast.

    Returns
    -------
    array of float64, (...)

    Examples
    --------
    >>> import numpy as np
    >>> float(overlap(np.array([.5, .3, .2]), np.array([.2, .8, .0])))
    0.5
    """
    xp, p, q = as_float64(p=p, q=q)
    return xp.sum(xp.minimum(p, q), axis=-1)


def coupling(p: Any, q: Any, x: Any) -> Any:
    """Compute the acceptance of the realised token when target and drafter draw with the same noise (A5).

    Both take ``argmin_v E_v / p(v)``, or ``/ q(v)``, of the same independent exponential times ``E``, which is the
    Gumbel-max draw. Given that the target's is ``x``, the drafter's is ``x`` with this probability: both are iff
    ``E_v >= E_x max(p(v)/p(x), q(v)/q(x))`` for all ``v``.

    Parameters
    ----------
    p, q : array of float, (..., V)
        Probabilities.
    x : array of int, (...)
        The realised token; all three shapes broadcast.

    Returns
    -------
    array of float64, (...)
        0 where ``q(x)`` is 0.

    Notes
    -----
    Source: Daliri et al. 2025 (arXiv 2408.07978).

    Examples
    --------
    >>> import numpy as np
    >>> coupling(np.array([.5, .5]), np.array([.25, .75]), np.array([0, 1]))
    array([0.5, 1. ])
    """
    xp, p, q = as_float64(p=p, q=q)
    p, q, at = beside_token(xp, p, q, x)
    p_x, q_x = xp.take_along_axis(p, at, axis=-1), xp.take_along_axis(q, at, axis=-1)
    # Divided by the larger of the two, so that products of small probabilities do not underflow.
    larger = xp.maximum(p_x, q_x)
    larger = xp.where(larger > 0, larger, xp.ones_like(larger))
    p_x, q_x = p_x / larger, q_x / larger
    total = xp.sum(xp.maximum(p * q_x, q * p_x), axis=-1)
    return q_x[..., 0] / xp.where(total > 0, total, xp.ones_like(total))


def recursive_scale(p: Any, q: Any, m: int) -> Any:
    """Compute ``c_m`` of recursive rejection with ``m`` drafts at a node (A6).

    Parameters
    ----------
    p, q : array of float, (..., V)
        Probabilities, of shapes that broadcast.
    m : int
        Number of drafts.

    Returns
    -------
    array of float64, (...)
        From 1 to ``m``.

    Raises
    ------
    ValueError
        If ``m`` is not an integer of at least 1.

    Notes
    -----
    ``O(m V)``. Source: see rule ``"node-recursive"``.

    Examples
    --------
    >>> import numpy as np
    >>> float(recursive_scale(np.array([.5, .5]), np.array([.25, .75]), 2))
    1.25
    """
    xp, p, q = as_float64(p=p, q=q)
    check_integer(m, "m", 1)
    scale = xp.ones_like((p + q)[..., 0])
    for _ in range(m - 1):
        scale = scale + xp.sum(positive(xp, p - scale[..., None] * q), axis=-1)
    return scale


def k_seq_scale(p: Any, q: Any, m: int) -> Any:
    """Compute ``rho`` of K-SEQ with ``m`` drafts at a node (A7), to a relative 1e-12.

    Parameters
    ----------
    p, q : array of float, (..., V)
        Probabilities, of shapes that broadcast.
    m : int
        Number of drafts.

    Returns
    -------
    array of float64, (...)
        From 1 to ``m``; 0 where ``p`` and ``q`` share no token.

    Raises
    ------
    ValueError
        If ``m`` is not an integer of at least 1.

    Notes
    -----
    Newton's method inside a bracket, halved where that is too slow; ``O(V)`` for each of some 10 steps. The difference
    of the two sides never rises in ``rho``, and falls where there is overlap, so the solution is unique. Source: see
    rule ``"node-k-seq"``.

    Examples
    --------
    >>> import numpy as np
    >>> float(k_seq_scale(np.array([.5, .5]), np.array([.25, .75]), 2))
    1.390388203202
    """
    xp, p, q = as_float64(p=p, q=q)
    check_integer(m, "m", 1)
    rho = low = xp.ones_like((p + q)[..., 0])
    high, move, before = m * low, (m - 1) * low, (m - 1) * low
    while bool(xp.any(xp.abs(move) > TOLERANCE * rho)):
        gap, slope = _k_seq_gap(xp, p, q, m, rho)
        low, high = xp.where(gap > 0, rho, low), xp.where(gap > 0, high, rho)
        newton = gap / xp.where(slope > 0, slope, xp.ones_like(slope))
        usable = (slope > 0) & (rho + newton >= low) & (rho + newton <= high) & (2 * xp.abs(newton) <= xp.abs(before))
        step = xp.where(usable, newton, (low + high) / 2 - rho)
        settled = xp.abs(move) <= TOLERANCE * rho
        move, before = xp.where(settled, 0 * rho, step), move
        rho = rho + move
    return xp.where(xp.sum(xp.minimum(p, q), axis=-1) > 0, rho, 0 * rho)


def _k_seq_gap(xp: Any, p: Any, q: Any, m: int, rho: Any) -> tuple[Any, Any]:
    """Compute ``sum_v (p - rho q)_+ - (sum_v (q - p/rho)_+)^m`` and how fast it falls."""
    excess = p - rho[..., None] * q
    left = xp.sum(positive(xp, excess), axis=-1)
    missed = xp.sum(positive(xp, -excess), axis=-1) / rho
    above, below = (xp.astype(side > 0, xp.float64) for side in (excess, -excess))
    left_in = xp.sum(above * p, axis=-1)
    shared = xp.sum(xp.minimum(q, p / rho[..., None]), axis=-1)
    # The sides are 1 - rho b and (1-b)^m as well, b what is shared: better told apart by b where it is little.
    little = (shared < 0.5) & (rho * shared < left_in + missed**m)
    shared = xp.where(little, shared, 0 * shared)
    gap = xp.where(little, -xp.expm1(m * xp.log1p(-shared)) - rho * shared, left - missed**m)
    slope = xp.sum(above * q, axis=-1) + m * missed ** (m - 1) * xp.sum(below * p, axis=-1) / rho**2
    return gap, slope


def stop_aware_cost(p: Any, q: Any, stops: Sequence[int]) -> Any:
    """Compute the cost ``c`` of rejecting before a stop token, of the stop-aware form of expected rounds.

    Parameters
    ----------
    p, q : array of float, (..., V)
        Probabilities, of shapes that broadcast.
    stops : sequence of int
        Token ids that end a rollout, ``Z``.

    Returns
    -------
    array of float64, (...)
        ``sum_{v not in Z} (p(v) - q(v))_+ / (1 - p(Z))``, the denominator summed as ``sum_{v not in Z} p(v)``; 0 where
        that is 0.

    Raises
    ------
    ValueError
        If a stop token is not in the vocabulary.

    Notes
    -----
    Source: arXiv 2610.10411.

    Examples
    --------
    >>> import numpy as np
    >>> float(stop_aware_cost(np.array([.5, .3, .2]), np.array([.2, .8, .0]), [2]))
    0.375
    """
    xp, p, q = as_float64(p=p, q=q)
    size = p.shape[-1]
    wrong = [v for v in stops if not isinstance(v, int | np.integer) or not 0 <= v < size]
    if wrong:
        raise ValueError(f"stops: found {wrong[0]}; allowed: token ids 0 to {size - 1}")
    ordinary = np.ones(size)
    ordinary[list(stops)] = 0
    keep = xp.asarray(ordinary, device=device(p))
    ends = xp.sum(keep * p, axis=-1)
    return xp.sum(keep * positive(xp, p - q), axis=-1) / xp.where(ends > 0, ends, xp.ones_like(ends))


def kl(p: Any, q: Any, *, log: bool = False) -> Any:
    """Compute the Kullback-Leibler divergence ``KL(p || q)``.

    Parameters
    ----------
    p, q : array of float, (..., V)
        Probabilities, of shapes that broadcast.
    log : bool
        ``p`` and ``q`` are log-probabilities (nats), which do not underflow.

    Returns
    -------
    array of float64, (...)
        Nats, at least 0, to a relative 1e-12 however close ``p`` and ``q`` are; infinite where ``q`` lacks a token of
        ``p``.

    Examples
    --------
    >>> import numpy as np
    >>> float(kl(np.array([.5, .5]), np.array([.25, .75])).round(6))
    0.143841
    >>> float(kl(np.array([.5, .5]), np.array([1., .0])))
    inf
    """
    xp, p, q = as_float64(p=p, q=q)
    (p, log_p, in_p), (q, log_q, in_q) = _with_log(xp, p, log), _with_log(xp, q, log)
    ratio = log_p - log_q
    if not log:  # a difference of logs loses what tells two close probabilities apart
        close = in_p & in_q & (xp.abs(p - q) <= q / 2)
        ratio = xp.where(close, xp.log1p(xp.where(close, p - q, 0 * q) / xp.where(close, q, xp.ones_like(q))), ratio)
    d = xp.clip(ratio, -1.0, 1.0)
    # d + exp(-d) - 1, by its series where that would cancel
    series = d**2 * (1 / 2 - d * (1 / 6 - d * (1 / 24 - d * (1 / 120 - d / 720))))
    bracket = xp.where(xp.abs(d) < CLOSE, series, d + xp.expm1(-d))
    terms = xp.where(xp.abs(ratio) <= 1, p * bracket, p * ratio - (p - q))
    terms = xp.where(in_q, terms, xp.full_like(terms, xp.inf))
    return xp.sum(xp.where(in_p, terms, q), axis=-1)


def entropy(p: Any, *, log: bool = False) -> Any:
    """Compute the entropy.

    Parameters
    ----------
    p : array of float, (..., V)
        Probabilities.
    log : bool
        ``p`` are log-probabilities (nats).

    Returns
    -------
    array of float64, (...)
        Nats.

    Examples
    --------
    >>> import numpy as np
    >>> float(entropy(np.array([.5, .5, .0])).round(6))
    0.693147
    """
    xp, p = as_float64(p=p)
    p, log_p, _ = _with_log(xp, p, log)
    return 0 - xp.sum(p * log_p, axis=-1)


def varentropy(p: Any, *, log: bool = False) -> Any:
    """Compute the variance of ``-log p``.

    Parameters
    ----------
    p : array of float, (..., V)
        Probabilities.
    log : bool
        ``p`` are log-probabilities (nats).

    Returns
    -------
    array of float64, (...)
        Nats squared.

    Examples
    --------
    >>> import numpy as np
    >>> float(varentropy(np.array([.2, .8])).round(6))
    0.30749
    """
    xp, p = as_float64(p=p)
    p, log_p, _ = _with_log(xp, p, log)
    mean = xp.sum(p * log_p, axis=-1, keepdims=True)
    return xp.sum(p * (log_p - mean) ** 2, axis=-1)


def _with_log(xp: Any, p: Any, log: bool) -> tuple[Any, Any, Any]:
    """Give probabilities, their logs (0 where they are 0), and which are not 0."""
    if log:
        some = p > -xp.inf
        return xp.exp(p), xp.where(some, p, xp.zeros_like(p)), some
    some = p > 0
    return p, xp.log(xp.where(some, p, xp.ones_like(p))), some


def positive(xp: Any, values: Any) -> Any:
    """Compute the positive part."""
    return xp.maximum(values, xp.zeros_like(values))


def as_float64(**given: Any) -> tuple[Any, ...]:
    """Check distributions by name; give their namespace and them in float64."""
    xp = array_namespace(*given.values())
    for name, values in given.items():
        if values.dtype not in (xp.float32, xp.float64):
            raise ValueError(f"{name}: found dtype {values.dtype}; allowed: float64, float32")
    shapes = [tuple(values.shape) for values in given.values()]
    if () in shapes or len({shape[-1] for shape in shapes}) > 1:
        raise ValueError(f"{', '.join(given)}: found shapes {', '.join(map(str, shapes))}; allowed: (..., V) of one V")
    return xp, *(xp.astype(values, xp.float64, copy=False) for values in given.values())


def beside_token(xp: Any, p: Any, q: Any, x: Any) -> tuple[Any, Any, Any]:
    """Broadcast distributions (..., V) and realised tokens, which become (..., 1)."""
    given = xp.asarray(x, device=device(p))
    if not xp.isdtype(given.dtype, "integral") or bool(xp.any((given < 0) | (given >= p.shape[-1]))):
        raise ValueError(f"x: found {x}; allowed: token ids 0 to {p.shape[-1] - 1}")
    at = xp.astype(given, xp.int64)
    p, q, at = xp.broadcast_arrays(p, q, at[..., None])
    return p, q, at[..., :1]
