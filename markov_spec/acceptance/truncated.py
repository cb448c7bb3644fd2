"""What lists of the most probable tokens can say of whole distributions: bounds, never renormalised lists.

A list holds the log-probabilities of a distribution's ``M`` most probable tokens, best first; its *tail* is the mass of
all others, none of which exceeds the last one listed, ``c``. (A token appended below the cut is no part of the list.)

    (temper)   p_T(v) = p(v)^b / (sum_listed p^b + Z),  b = 1/T,  Z = sum_tail u^b
    (overlap)  known + 0  <=  sum_v min(p, q)  <=  known + min(q_tail + B, p_tail + A)
    (bucket)   sum_shared p log(p/q) + P log(P/Q)  <=  KL(p||q)
    (unlisted) max(0, m - (V-M-1) c)  <=  p(x)  <=  min(c, m),  m the tail's mass, V the tokens in all

*Temper.* The tail ``u`` has ``n`` tokens in ``[0, c]`` that sum to ``m``. Every such ``u`` majorises ``m/n`` repeated
(spread), and is majorised by as many ``c`` as fit and one token with the rest (packed): its ``j`` largest sum to at
least ``j m/n`` and to at most ``min(j c, m)``. ``sum u^b`` is Schur-convex for ``b >= 1``, Schur-concave for ``b <= 1``
(Karamata). So ``Z`` lies between its values at the two, packed being the larger for ``T < 1`` and the smaller for
``T > 1``, and both are attained. With ``n`` unknown it may be as large as one likes: the spread value tends to 0 for
``T < 1`` and to infinity for ``T > 1``. All bounds of one list are attained together.

*Overlap.* ``known`` sums ``min(p, q)`` over the tokens in both lists. A token that only p lists takes at most
``min(p, c_q)`` of q's tail: ``A`` sums these, at most q's tail; ``B`` alike. Tokens in neither list share at most what
the tails have left, ``min(q_tail - A, p_tail - B)``: in all ``A + B +`` that, which rises in ``A`` and ``B``. Tails on
different tokens share nothing. Both ends are attained if the vocabulary is large enough, and hold in any.

*Bucket.* ``P`` and ``Q`` are what is left of 1 outside the shared tokens. By the log-sum inequality merging tokens
never raises a divergence. The sum over shared tokens alone is no divergence: it may be negative.

*Unlisted.* Of the tail's ``V-M`` tokens none exceeds ``c``: the others hold at most ``(V-M-1) c`` of ``m``, and what
is left is on ``x``. Shorter lists give wider intervals: ``c`` does not fall, and ``m`` grows by what they leave out.

Inputs are taken as exact; each list and its tail must sum to 1 within 1e-4. Source of the inequalities: Marshall, Olkin
and Arnold, Inequalities (2011), chapters 1 and 3; Cover and Thomas, Elements of Information Theory, theorem 2.7.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from markov_spec.arrays import ABSENT, LOG_TOLERANCE, Array, as_float, check_integer

SUM_TOLERANCE = 1e-4
WHOLE = 1e-12  # a remainder this small against a whole token is rounding
MASS_ROUNDING = 1e-6  # of the sum of a list in single precision


def temper_bounds(top_log_p: Any, *, tail_mass: Any, entries: Any, temperature: float) -> tuple[Array, Array]:
    """Bound the probabilities that listed tokens have after a temperature, from those before it.

    Parameters
    ----------
    top_log_p : array of float, (..., M)
        Log-probabilities (nats) of the ``M >= 2`` most probable tokens at temperature 1, best first.
    tail_mass : array of float, (...)
        Probability of all other tokens.
    entries : int, array of int, (...), or None
        How many tokens share the tail, ``V - M``; None if unknown. Then even a tail of the size of rounding may be
        many tokens, which weighs above temperature 1.
    temperature : float
        Above 0.

    Returns
    -------
    low, high : ndarray of float64, (..., M)
        Each attained by some tail, but for the end that ``entries=None`` leaves open: ``high`` below temperature 1,
        ``low`` above it.

    Raises
    ------
    ValueError
        If a list has one token, which may be any token, not the best; if it rises, or does not sum to 1 with its tail,
        or its tail does not fit into ``entries`` tokens of at most the last one listed; the message names the list.

    Notes
    -----
    ``O(M)`` for each list. See the module for the proof.

    Examples
    --------
    >>> import numpy as np
    >>> temper_bounds(np.log([.5, .3]), tail_mass=.2, entries=None, temperature=.5)
    (array([0.65789474, 0.23684211]), array([0.73529412, 0.26470588]))
    >>> temper_bounds(np.log([.5, .3]), tail_mass=.2, entries=1, temperature=.5)
    (array([0.65789474, 0.23684211]), array([0.65789474, 0.23684211]))
    """
    if isinstance(temperature, bool) or not 0 < temperature < np.inf:
        raise ValueError(f"temperature: found {temperature!r}; allowed: a finite number above 0")
    logs, tail = _check_list(top_log_p, tail_mass, "top_log_p", "tail_mass")
    if logs.shape[-1] < 2:
        raise ValueError(
            "top_log_p: found a list of 1 token; allowed: 2 or more, the most probable ones: the probability of one "
            "token alone says nothing of how the others share the rest"
        )
    count, tail = _check_entries(entries, tail, logs[..., -1])
    power = 1 / temperature
    ends = _tail_weights(logs[..., -1] - logs[..., 0], tail / np.exp(logs[..., 0]), count, power)
    weights = np.exp(power * (logs - logs[..., :1]))
    listed = weights.sum(axis=-1)
    low, high = (weights / (listed + most)[..., None] for most in (np.maximum(*ends), np.minimum(*ends)))
    return low, high


def _check_entries(entries: Any, tail: Array, last: Array) -> tuple[Array, Array]:
    """Give the number of tokens in the tail, infinite where unknown, and the tail without what rounding added to it."""
    count = np.asarray(np.inf if entries is None else entries)
    if entries is not None and (count.dtype.kind not in "iu" or count.shape not in ((), tail.shape)):
        raise ValueError(
            f"entries: found shape {count.shape}, dtype {count.dtype}; allowed: None, an integer or {tail.shape}"
        )
    _refuse(count < 0, count, "entries", "0 or more")
    count = np.broadcast_to(count, tail.shape).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.exp(np.log(np.minimum(count, ABSENT)) + last)  # token ids are 32-bit
    _refuse(tail > room + SUM_TOLERANCE, tail, "tail_mass", "what its entries hold, none above the last one listed")
    return count, np.minimum(tail, room)


def _tail_weights(last: Array, tail: Array, count: Array, power: float) -> tuple[Array, Array]:
    """Give ``sum u^power`` of the packed and of the spread tail, the most probable token being 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        fit = np.where(tail > 0, np.exp(np.log(tail) - last), 0.0)
        full = np.floor(fit)
        rest = np.where(fit - full <= WHOLE * fit, 0.0, fit - full)
        packed = np.exp(np.log(full) + power * last) + np.exp(power * (np.log(rest) + last))
        if power == 1:
            return packed, packed
        spread = np.exp((1 - power) * np.log(count) + power * np.log(tail))
    return packed, np.where(tail > 0, spread, 0.0)


def overlap_bounds(
    p_ids: Any, p_log: Any, p_tail: Any, q_ids: Any, q_log: Any, q_tail: Any
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Bound ``sum_v min(p, q)``, the acceptance of rejection sampling over drafts, from two lists.

    Parameters
    ----------
    p_ids, q_ids : array of int, (..., M)
        Token ids of the most probable tokens, best first; the two lists may differ in length.
    p_log, q_log : array of float, (..., M)
        Their log-probabilities (nats).
    p_tail, q_tail : array of float, (...)
        Probability of all other tokens.

    Returns
    -------
    low, high : ndarray of float64, (...)

    Raises
    ------
    ValueError
        If a list holds an id twice or a negative one, rises, or does not sum to 1 with its tail; if shapes disagree.

    Notes
    -----
    ``O(M log M)`` for each pair. See the module for the proof.

    Examples
    --------
    >>> import numpy as np
    >>> low, high = overlap_bounds([0, 1], np.log([.6, .3]), .1, [0, 1], np.log([.5, .45]), .05)
    >>> round(float(low), 12), round(float(high), 12)
    (0.8, 0.85)
    """
    pair = _merge(p_ids, p_log, p_tail, q_ids, q_log, q_tail)
    known = np.where(pair.shared, np.minimum(pair.p, pair.q), 0.0).sum(axis=-1)
    # An unlisted probability stands as 0, so each sum takes the tokens of one list alone.
    of_q_tail, of_p_tail = (
        np.minimum(np.where(pair.shared, 0.0, np.minimum(mass, last[..., None])).sum(axis=-1), rest)
        for mass, last, rest in ((pair.p, pair.q_last, pair.q_tail), (pair.q, pair.p_last, pair.p_tail))
    )
    return known, known + np.minimum(pair.q_tail + of_p_tail, pair.p_tail + of_q_tail)


def list_bounds(ids: Any, log_p: Any, tokens: Any, *, vocab_size: int) -> tuple[Array, Array]:
    """Bound the probability of tokens by lists of the most probable ones.

    Parameters
    ----------
    ids : array of int, (..., M)
        The ``M`` most probable tokens, best first; -1 where there are no more.
    log_p : array of float, (..., M)
        Their log-probabilities (nats); ignored where the id is -1.
    tokens : array of int, (...)
        The token that is asked for, of each list.
    vocab_size : int
        ``V``: tokens that may have a probability. Where a list shows that more have, as of a padded vocabulary, nothing
        below is known.

    Returns
    -------
    low, high : ndarray of float64, (...)
        Attained by some distribution with this list, up to 1e-6 that its sum may be off in single precision; equal
        where the token is listed.

    Raises
    ------
    ValueError
        If shapes disagree, ids or tokens are no integers, ``vocab_size`` is below 1, or a log-probability is NaN or
        above 0.

    Notes
    -----
    ``O(M)`` for each list. See the module for the proof.

    Examples
    --------
    Of 0.2 beyond the two best, no token has more than the second best; of three tokens it is all the third's:

    >>> import numpy as np
    >>> low, high = list_bounds([[7, 4]], np.log([[.7, .1]]), [3], vocab_size=10)
    >>> low.round(6), high.round(6)
    (array([0.]), array([0.1]))
    >>> low, high = list_bounds([[1, 0]], np.log([[.6, .3]]), [2], vocab_size=3)
    >>> low.round(5), high.round(5)
    (array([0.1]), array([0.1]))
    """
    logs, names, own = as_float(log_p, "log_p"), np.asarray(ids), np.asarray(tokens)
    check_integer(vocab_size, "vocab_size", 1)
    if np.ndim(log_p) == 0 or logs.shape[-1] == 0:
        raise ValueError(f"log_p: found shape {np.shape(log_p)}; allowed: (..., M), M >= 1")
    for name, found, shape in (("ids", names, logs.shape), ("tokens", own, logs.shape[:-1])):
        if found.shape != shape or (found.dtype.kind not in "iu" and found.size):
            raise ValueError(f"{name}: found shape {found.shape}, dtype {found.dtype}; allowed: integers, {shape}")
    logs = np.where(names >= 0, logs.astype(np.float64, copy=False), -np.inf)
    _refuse(~(logs <= LOG_TOLERANCE), logs, "log_p", f"at most {LOG_TOLERANCE}, or -inf")
    named, p = names == own[..., None], np.exp(logs)
    missing, last = np.clip(1 - p.sum(axis=-1), 0, None), p[..., -1]
    others = max(int(vocab_size) - names.shape[-1] - 1, 0)
    low = np.maximum(missing - MASS_ROUNDING - others * last, 0)
    high = np.minimum(last, missing + MASS_ROUNDING)
    more = (names >= vocab_size).any(axis=-1) | (missing > (others + 1) * last + MASS_ROUNDING)
    low = np.where(more, 0.0, np.minimum(low, high))
    known, listed = (p * named).sum(axis=-1), named.any(axis=-1)
    return np.where(listed, known, low), np.where(listed, known, high)


def tail_bucket_kl(p_ids: Any, p_log: Any, p_tail: Any, q_ids: Any, q_log: Any, q_tail: Any) -> Array:
    """Compute the divergence ``KL(p||q)`` of what two lists tell apart: a lower bound of the whole one.

    Parameters
    ----------
    p_ids, p_log, p_tail, q_ids, q_log, q_tail
        As in `overlap_bounds`; errors too.

    Returns
    -------
    ndarray of float64, (...)
        In nats, at least 0; ``inf`` where p has mass, be it rounding in its tail, that q has not.

    Notes
    -----
    ``O(M log M)`` for each pair. Summed as ``p log(p/q) - p + q``, which is the same where both sum to 1 and never
    negative where rounding keeps them from it.

    Examples
    --------
    >>> import numpy as np
    >>> float(tail_bucket_kl([0, 1], np.log([.6, .3]), .1, [0, 1], np.log([.5, .45]), .05))
    0.0570681
    """
    pair = _merge(p_ids, p_log, p_tail, q_ids, q_log, q_tail)
    p, q = (
        np.concatenate(
            (
                np.where(pair.shared, mass, 0.0),
                (tail + np.where(pair.shared, 0.0, mass).sum(axis=-1))[..., None],
            ),
            axis=-1,
        )
        for mass, tail in ((pair.p, pair.p_tail), (pair.q, pair.q_tail))
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p > 0, p * np.log(p / q), 0.0) - p + q
    return np.asarray(terms.sum(axis=-1))


class _Pair(NamedTuple):
    """Two lists over the tokens of both: probabilities, 0 where unlisted; which are in both; tails; last ones."""

    p: Array
    q: Array
    shared: npt.NDArray[np.bool_]
    p_tail: Array
    q_tail: Array
    p_last: Array
    q_last: Array


def _merge(p_ids: Any, p_log: Any, p_tail: Any, q_ids: Any, q_log: Any, q_tail: Any) -> _Pair:
    p, p_tail = _check_list(p_log, p_tail, "p_log", "p_tail")
    q, q_tail = _check_list(q_log, q_tail, "q_log", "q_tail")
    if p_tail.shape != q_tail.shape:
        raise ValueError(f"q_log: found lists of shape {q_tail.shape}; allowed: {p_tail.shape}, as those of p_log")
    ids = np.concatenate((_check_ids(p_ids, p, "p_ids"), _check_ids(q_ids, q, "q_ids")), axis=-1)
    order = np.argsort(ids, axis=-1, kind="stable")  # of a token in both lists, p's entry comes first
    p, q = np.exp(p), np.exp(q)
    entries = ids, np.concatenate((p, np.zeros_like(q)), axis=-1), np.concatenate((np.zeros_like(p), q), axis=-1)
    p_last, q_last = p[..., -1], q[..., -1]
    ids, p, q = (np.take_along_axis(values, order, axis=-1) for values in entries)
    twin = ids[..., 1:] == ids[..., :-1]
    none = np.zeros_like(twin[..., :1])
    shared, again = np.concatenate((twin, none), axis=-1), np.concatenate((none, twin), axis=-1)
    q = np.where(shared, np.roll(q, -1, axis=-1), np.where(again, 0.0, q))
    return _Pair(p, q, shared, p_tail, q_tail, p_last, q_last)


def _check_ids(given: Any, logs: Array, name: str) -> Array:
    ids = np.asarray(given)
    if ids.dtype.kind not in "iu" or ids.shape != logs.shape:
        raise ValueError(f"{name}: found shape {ids.shape}, dtype {ids.dtype}; allowed: integers, {logs.shape}")
    _refuse(ids < 0, ids, name, "token ids, 0 or more")
    ranked = np.sort(ids, axis=-1)
    twice = ranked[..., 1:] == ranked[..., :-1]
    if twice.any():
        at = np.unravel_index(int(np.argmax(twice)), twice.shape)
        raise ValueError(f"{name}{_index(at[:-1])}: found {ranked[at]} twice; allowed: each id once in a list")
    return ids.astype(np.int64)


def _check_list(given: Any, tail: Any, log_name: str, tail_name: str) -> tuple[Array, Array]:
    """Give the log-probabilities and the tails of lists in float64."""
    logs = as_float(given, log_name).astype(np.float64, copy=False)
    mass = as_float(tail, tail_name).astype(np.float64, copy=False).reshape(np.shape(tail))
    if np.ndim(given) == 0 or logs.shape[-1] == 0:
        raise ValueError(f"{log_name}: found shape {np.shape(given)}; allowed: (..., M), M >= 1")
    if mass.shape != logs.shape[:-1]:
        raise ValueError(f"{tail_name}: found shape {mass.shape}; allowed: {logs.shape[:-1]}, one for each list")
    _refuse(~(logs <= LOG_TOLERANCE), logs, log_name, f"at most {LOG_TOLERANCE}, or -inf")
    before = np.concatenate((np.full_like(logs[..., :1], np.inf), logs[..., :-1]), axis=-1)
    _refuse(logs > before + LOG_TOLERANCE, logs, log_name, "at most the one before it, the most probable token first")
    _refuse(~(mass >= -SUM_TOLERANCE), mass, tail_name, "0 to 1")
    total = np.exp(logs).sum(axis=-1) + mass
    _refuse(~(np.abs(total - 1) <= SUM_TOLERANCE), total, f"{log_name}, {tail_name}: sum", "1 within 1e-4")
    return logs, np.maximum(mass, 0.0)


def _index(at: Sequence[Any]) -> str:
    return str([int(i) for i in at]) if at else ""


def _refuse(bad: Array, values: Array, name: str, allowed: str) -> None:
    if np.any(bad):
        at = np.unravel_index(int(np.argmax(bad)), np.shape(bad))
        raise ValueError(f"{name}{_index(at)}: found {values[at]}; allowed: {allowed}")
