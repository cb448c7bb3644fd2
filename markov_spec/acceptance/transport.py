"""Acceptance of several drafts at one depth where it hangs on the full distributions; numpy arrays and torch tensors.

**Optimal transport (A10).** ``m`` drafts are sampled from ``q`` with replacement and coupled with ``y ~ p`` so that
``y`` is among them as often as can be. The least cut of this flow is the acceptance averaged over ``y``:

    alpha* = min_H [p(H) + 1 - q(H)^m],

``H`` a set of tokens. The bracket is concave in fractional memberships, so an ``H`` that minimises it minimises
``sum_H (p - b q)`` for some ``b`` as well: it is a prefix in increasing ``p/q``. What optimal couplings accept at each
token are the maximal points of ``f(S) = min_{H in S} [p(H) + 1 - q(H + S')^m]``, ``S'`` the tokens outside ``S``, which
bounds what is accepted in ``S`` and is submodular. Hence given the realised ``x`` the acceptance runs, over all optimal
couplings, exactly from

    (alpha* - f(all but x)) / p(x),  f(all but x) = min_{H without x} [p(H) + 1 - q(H + x)^m],
    to f(x) / p(x) = min(1, (1 - (1 - q(x))^m) / p(x)).

Some optimal coupling attains each end, but not always for two tokens at once. Source: Sun et al. 2023, SpecTr
(arXiv 2310.15141), for the transport; Hu et al. 2025 (arXiv 2502.18779) for the prefixes.

**Without replacement.** ``k`` children are drawn from ``q``, each from what those before leave of it, and tested in
turn: child ``c`` is accepted with probability ``min(1, p'(c)/q'(c))``, where ``p'`` is ``p`` at first and the
normalised ``(p' - q')_+`` after each rejection, and ``q'`` is ``q`` without the rejected children, normalised. If none
is accepted, or ``q'`` has no mass left as fewer than ``k`` tokens have any, the target's token is drawn from the last
``p'``.

Proof that it is lossless. A test accepts ``c`` with probability ``min(p', q')`` at ``c`` and else leaves the normalised
``(p' - q')_+`` to what follows, whichever child was rejected; by induction from the last test on, what follows outputs
that distribution, and ``min(p', q') + (p' - q')_+ = p'``. Child ``c`` is rejected with probability
``(q'(c) - p'(c))_+``, so given ``x`` the second test accepts with probability
``sum_c (q(c) - p(c))_+ min(p_2(x), q(x)/(1 - q(c))) / p(x)``, ``p_2`` the residual of ``p``. From the third test on
``p'`` depends on which children were rejected. Source: Chen et al. 2024, Sequoia (arXiv 2402.12374); Jeon et al. 2024,
RSD (arXiv 2402.14160).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import device

from markov_spec.acceptance.scalars import as_float64, beside_token, positive
from markov_spec.arrays import check_integer


def transport_bounds(p: Any, q: Any, x: Any, m: int) -> tuple[Any, Any, Any]:
    """Compute the acceptance of optimal transport of ``m`` drafts, and what it can be for the realised token (A10).

    Parameters
    ----------
    p, q : array of float, (..., V)
        Probabilities.
    x : array of int, (...)
        The realised token; all three shapes broadcast.
    m : int
        Number of drafts, sampled from ``q`` with replacement.

    Returns
    -------
    alpha : array of float64, (...)
        Acceptance averaged over tokens from ``p``; no factor of a survival.
    low, high : array of float64, (...)
        Least and most probability, over all optimal couplings, that a draft was accepted given ``x``. Each is attained
        by one. Where ``p(x)`` is 0 both are 1 if ``q(x)`` is not, else 0.

    Raises
    ------
    ValueError
        If ``m`` is not an integer of at least 1.

    Notes
    -----
    ``O(V log V)``. ``alpha``, and the two bounds times ``p(x)``, to an absolute 1e-12.

    Examples
    --------
    >>> import numpy as np
    >>> alpha, low, high = transport_bounds(np.array([.5, .3, .2]), np.array([.2, .2, .6]), np.array([0, 1, 2]), 2)
    >>> alpha.round(6), low.round(6), high.round(6)
    (array([0.84, 0.84, 0.84]), array([0.68    , 0.933333, 1.      ]), array([0.72, 1.  , 1.  ]))
    """
    xp, p, q = as_float64(p=p, q=q)
    check_integer(m, "m", 1)
    p, q, at = beside_token(xp, p, q, x)
    p_x, q_x = xp.take_along_axis(p, at, axis=-1), xp.take_along_axis(q, at, axis=-1)
    # Increasing in p/q. Where that rounds to 1 it is above m: no such token belongs to H.
    order = xp.argsort(_ratio(xp, p, p + q), axis=-1)
    own = order == at
    p_h, q_h = (xp.where(own, 0 * p, xp.take_along_axis(values, order, axis=-1)) for values in (p, q))
    p_h, q_h = (xp.concat([0 * p_x, xp.cumulative_sum(values, axis=-1)], axis=-1) for values in (p_h, q_h))
    without, with_x = p_h + 1 - q_h**m, p_h + 1 - (q_h + q_x) ** m
    first, second = (xp.argmin(values, axis=-1, keepdims=True) for values in (without, with_x))
    least, least_x = xp.take_along_axis(without, first, axis=-1), xp.take_along_axis(with_x, second, axis=-1)
    # Their difference lies between those at either minimum, which do not cancel.
    at_first, at_second = (_power_gap(xp.take_along_axis(q_h, at_h, axis=-1), q_x, m) for at_h in (first, second))
    gain = xp.minimum(xp.maximum(least - least_x, at_first), at_second)
    most = xp.minimum(p_x, _power_gap(1 - q_x, q_x, m))
    low, high = (_given(xp, accepted, p_x, q_x) for accepted in (xp.minimum(gain, most), most))
    return xp.minimum(least, p_x + least_x)[..., 0], low[..., 0], high[..., 0]


def without_replacement(
    p: Any, q: Any, x: Any, k: int, *, rng: np.random.Generator | None = None, samples: int = 64
) -> Any:
    """Compute the acceptance of the realised token by recursive rejection of children without replacement.

    Parameters
    ----------
    p, q : array of float, (..., V)
        Probabilities.
    x : array of int, (...)
        The realised token; all three shapes broadcast.
    k : int
        Number of children.
    rng : numpy.random.Generator, optional
        Needed for ``k > 2``; the same state gives the same estimate.
    samples : int
        Paths of rejected children that ``k > 2`` is estimated from.

    Returns
    -------
    array of float64, (...)
        Probability that a child was accepted given ``x``: exact for ``k <= 2``. For more it is an estimate without
        bias, whose first two tests are exact, and which may exceed 1. Where ``p(x)`` is 0 it is 1 if ``q(x)`` is not,
        else 0.

    Raises
    ------
    ValueError
        If ``k`` or ``samples`` is not an integer of at least 1, or ``k > 2`` without ``rng``.

    Notes
    -----
    ``O(V)`` for ``k <= 2``, else ``O(samples k V)``: test ``t`` sums over the child rejected last, given sampled ones
    before it.

    Examples
    --------
    >>> import numpy as np
    >>> without_replacement(np.array([.5, .3, .2]), np.array([.2, .2, .6]), np.array([0, 1, 2]), 2).round(6)
    array([0.8, 1. , 1. ])
    """
    xp, p, q = as_float64(p=p, q=q)
    check_integer(k, "k", 1)
    check_integer(samples, "samples", 1)
    if k > 2 and not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng: found {type(rng).__name__}; allowed: numpy.random.Generator, as k = {k} is sampled")
    p, q, at = beside_token(xp, p, q, x)
    p_x, q_x = xp.take_along_axis(p, at, axis=-1), xp.take_along_axis(q, at, axis=-1)
    accepted = xp.minimum(p_x, q_x)
    if k > 1:
        accepted = accepted + _second_test(xp, p, q, at)
    if k > 2 and rng is not None:
        later = 0 * accepted
        for _ in range(samples):
            uniforms = xp.asarray(rng.random((k - 2, *accepted.shape)), device=device(p))
            later = later + _later_tests(xp, p, q, at, uniforms)
        accepted = accepted + later / samples
    return _given(xp, accepted, p_x, q_x)[..., 0]


def _later_tests(xp: Any, p: Any, q: Any, at: Any, uniforms: Any) -> Any:
    """Sample a path of rejected children; give what its tests from the third on accept at ``x``."""
    reached, accepted = xp.ones_like(p[..., :1]), xp.zeros_like(p[..., :1])
    ids = xp.arange(p.shape[-1], device=device(p))
    for i in range(uniforms.shape[0]):
        sums = xp.cumulative_sum(positive(xp, q - p), axis=-1)
        total = sums[..., -1:]
        child = xp.sum(xp.astype(sums <= uniforms[i, ...] * total, xp.int64), axis=-1, keepdims=True)
        reached = reached * total
        gone = ids == child
        rest = xp.take_along_axis(_others(xp, q), xp.clip(child, 0, p.shape[-1] - 1), axis=-1)
        p, q = _residual(xp, p, q), _ratio(xp, xp.where(gone, 0 * q, q), rest)
        accepted = accepted + reached * _second_test(xp, p, q, at)
    return accepted


def _second_test(xp: Any, p: Any, q: Any, at: Any) -> Any:
    """Compute the probability that the second test accepts ``x``, summed over the first child."""
    p_x = xp.take_along_axis(_residual(xp, p, q), at, axis=-1)
    others = _others(xp, q)
    q_x = _ratio(xp, xp.minimum(xp.take_along_axis(q, at, axis=-1), others), others)
    return xp.sum(positive(xp, q - p) * xp.minimum(p_x, q_x), axis=-1, keepdims=True)


def _residual(xp: Any, p: Any, q: Any) -> Any:
    """Normalise ``(p - q)_+``; 0 where nothing is left."""
    rest = positive(xp, p - q)
    return _ratio(xp, rest, xp.sum(rest, axis=-1, keepdims=True))


def _others(xp: Any, q: Any) -> Any:
    """Compute the mass beside each token, that beside the likeliest without a difference from 1."""
    top = xp.arange(q.shape[-1], device=device(q)) == xp.argmax(q, axis=-1, keepdims=True)
    return xp.sum(xp.where(top, 0 * q, q), axis=-1, keepdims=True) + (xp.max(q, axis=-1, keepdims=True) - q)


def _ratio(xp: Any, a: Any, b: Any) -> Any:
    """Divide; 0 where the divisor is 0."""
    return xp.where(b > 0, a / xp.where(b > 0, b, xp.ones_like(b)), 0 * a)


def _power_gap(low: Any, step: Any, m: int) -> Any:
    """Compute ``(low + step)^m - low^m`` without a difference."""
    total, power = 0 * step, 1 + 0 * step
    for _ in range(m):
        total, power = total * low + power, power * (low + step)
    return step * total


def _given(xp: Any, accepted: Any, p_x: Any, q_x: Any) -> Any:
    """Divide what is accepted at ``x`` by ``p(x)``; the limit where that is 0."""
    limit = xp.astype(q_x > 0, xp.float64)
    return xp.where(p_x > 0, accepted / xp.where(p_x > 0, p_x, xp.ones_like(p_x)), limit)
