"""Lossy rules: they accept drafts that the target did not choose, so what they emit does not follow the target.

The draft ``d`` is the drafter's most probable token, fixed before the target speaks. ``p`` is the target's distribution
where ``d`` would stand, ``p_1 >= p_2`` its two largest probabilities, ``H`` its entropy (nats). Accepted is

    typical         p(d) > min(epsilon, delta exp(-H))
    additive        p(d) >= p_1 - t
    multiplicative  p(d) >= alpha p_1
    top-m           a d whose rank in p is at most m
    margin          the best token, and the second best where p_1 - p_2 <= margin

and ``S[s,k] = prod_{i<=k} 1{the draft at (s,i) is accepted}``.

Why the law is teacher-forced and no more. It reads every decision at the rollout's own contexts. An accepted ``d`` that
is not the rollout's token leaves the rollout: the literal decoder goes on from ``d``, in contexts that no record holds,
while this law goes on from the rollout's token as if that had been drafted. So the rounds that follow are neither those
of the lossy decoder nor a bound on them, on either side. What is exact is each decision at its context, which is what a
certificate promises. For the same reason there is no literal decision to compare with: ``simulate_decoding`` refuses
these rules.

``p`` is whatever the given columns come from. Those of a store are of the distribution that the target decodes with; of
a greedy target it has one token, and every rule becomes a match (but for ``t = 1``, ``alpha = 0`` and a ``typical`` of
which no threshold is below 1). To relax a greedy target, give columns of its plain softmax. Probabilities are compared
in float64 as recorded, without a tolerance.

Needs ``hit``, made by the function of the rule. Sources: ``typical`` is Medusa's, Cai et al. 2024 (arXiv 2401.10774);
``additive``, ``multiplicative`` and ``top-m`` as stated with their certificates in arXiv 2606.30265. ``margin`` is the
kind of rule of MARS, Song et al. 2026 (arXiv 2601.15498), not its form: MARS accepts the second best where the ratio of
the two largest LOGITS exceeds ``theta`` (.9 there), which is no function of ``p``, as a constant added to all logits
changes it. No margin in probability is equivalent to a ``theta``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec.acceptance import match
from markov_spec.acceptance.inputs import Inputs, Rule, bad_cell
from markov_spec.arrays import (
    ABSENT,
    LOG_TOLERANCE,
    Array,
    RoundLaw,
    as_float,
    cells_inside,
    check_indptr,
    check_integer,
    locate,
)

Accepted = npt.NDArray[np.bool_]
ENTROPY_TOLERANCE = 1e-4  # of a sum over a vocabulary in float32


def typical(draft_log_p: Any, entropy: Any, indptr: Any, *, epsilon: float = 0.09, delta: float = 0.3) -> Accepted:
    """Tell which drafts typical acceptance accepts: ``p(d) > min(epsilon, delta exp(-H))``.

    Parameters
    ----------
    draft_log_p : array of float, (N, K) or (N,)
        Target's log-probability (nats) of the draft at depth ``k`` begun at ``s``, which would stand at ``s+k-1``, or
        of the draft for each position. NaN where nothing is drafted; cells past a rollout's end are ignored.
    entropy : array of float, (N,)
        Of the target's distribution at each position, in nats.
    indptr : array of int, (R+1,)
        Rollout ``i`` owns rows ``indptr[i]:indptr[i+1]``.
    epsilon : float
        From 0 to 1.
    delta : float
        0 or more.

    Returns
    -------
    ndarray of bool
        In the shape of the drafts; False where nothing is drafted and past the ends.

    Raises
    ------
    ValueError
        If shapes disagree, or a value or threshold is not allowed; the message names the rollout and position.

    Notes
    -----
    ``O(N K)``. Source: Cai et al. 2024, Medusa (arXiv 2401.10774), whose thresholds the defaults are.

    Examples
    --------
    >>> import numpy as np
    >>> typical(np.log([.5, .05, .05]), [.7, .7, 3.0], [0, 3])
    array([ True, False,  True])
    """
    _check_threshold("epsilon", epsilon, 0, 1)
    _check_threshold("delta", delta, 0, np.inf)
    offsets = check_indptr(indptr)
    log_p = _draft_log_probs(draft_log_p, offsets)
    spread = _by_position(entropy, "entropy", offsets, -ENTROPY_TOLERANCE, np.inf, "a finite number >= 0")
    least = np.minimum(epsilon, delta * np.exp(-spread))
    return np.exp(log_p) > _at_drafts(least, log_p)


def additive(draft_log_p: Any, top_log_p: Any, indptr: Any, *, t: float) -> Accepted:
    """Tell which drafts are at most ``t`` less probable than the target's best token: ``p(d) >= p_1 - t``.

    Parameters
    ----------
    draft_log_p : array of float, (N, K) or (N,)
        As in `typical`.
    top_log_p : array of float, (N,)
        Target's largest log-probability (nats) at each position.
    indptr : array of int, (R+1,)
    t : float
        From 0 to 1. At 0 a greedy target's token alone, and its equals.

    Returns
    -------
    ndarray of bool
        As `typical`; errors too.

    Notes
    -----
    ``O(N K)``. Source: arXiv 2606.30265.

    Examples
    --------
    >>> import numpy as np
    >>> additive(np.log([.5, .35, .2]), np.log([.5, .5, .5]), [0, 3], t=.2)
    array([ True,  True, False])
    """
    _check_threshold("t", t, 0, 1)
    offsets = check_indptr(indptr)
    log_p = _draft_log_probs(draft_log_p, offsets)
    return np.exp(log_p) >= _at_drafts(np.exp(_top(top_log_p, offsets)) - t, log_p)


def multiplicative(draft_log_p: Any, top_log_p: Any, indptr: Any, *, alpha: float) -> Accepted:
    """Tell which drafts have at least a share of the best token's probability: ``p(d) >= alpha p_1``.

    Parameters
    ----------
    draft_log_p : array of float, (N, K) or (N,)
        As in `typical`.
    top_log_p : array of float, (N,)
        As in `additive`.
    indptr : array of int, (R+1,)
    alpha : float
        From 0 to 1. At 1 a greedy target's token alone, and its equals.

    Returns
    -------
    ndarray of bool
        As `typical`; errors too.

    Notes
    -----
    ``O(N K)``; compared in logarithms. Source: arXiv 2606.30265.

    Examples
    --------
    >>> import numpy as np
    >>> multiplicative(np.log([[.5, .1], [.2, .1]]), np.log([.5, .3]), [0, 2], alpha=.3)
    array([[ True,  True],
           [ True, False]])
    """
    _check_threshold("alpha", alpha, 0, 1)
    offsets = check_indptr(indptr)
    log_p = _draft_log_probs(draft_log_p, offsets)
    with np.errstate(divide="ignore"):
        least = np.log(alpha) + _top(top_log_p, offsets)
    return log_p >= _at_drafts(least, log_p)


def top_m(draft_rank: Any, indptr: Any, *, m: int) -> Accepted:
    """Tell which drafts are among the target's ``m`` best tokens.

    Parameters
    ----------
    draft_rank : array of int, (N, K) or (N,)
        Rank in the target's distribution, 1 for its best token, of the draft at depth ``k`` begun at ``s``, or of the
        draft for each position; ``ABSENT`` where nothing is drafted. Cells past a rollout's end are ignored.
    indptr : array of int, (R+1,)
    m : int
        1 or more. At 1 a greedy target's token alone.

    Returns
    -------
    ndarray of bool
        As `typical`; errors too.

    Notes
    -----
    ``O(N K)``. Source: arXiv 2606.30265.

    Examples
    --------
    >>> top_m([1, 3, 2], [0, 3], m=2)
    array([ True, False,  True])
    """
    check_integer(m, "m", 1)
    ranks = _ranks(draft_rank, check_indptr(indptr))
    accepted: Accepted = (ranks <= m) & (ranks != ABSENT)
    return accepted


def margin(draft_rank: Any, top_log_p: Any, second_log_p: Any, indptr: Any, *, margin: float) -> Accepted:
    """Tell which drafts are the target's best token, or its second best where that is close: ``p_1 - p_2 <= margin``.

    Parameters
    ----------
    draft_rank : array of int, (N, K) or (N,)
        As in `top_m`.
    top_log_p, second_log_p : array of float, (N,)
        Target's two largest log-probabilities (nats) at each position; the second ``-inf`` where it has one token.
    indptr : array of int, (R+1,)
    margin : float
        From -1 to 1. Below 0 a greedy target's token alone.

    Returns
    -------
    ndarray of bool
        As `typical`; errors too.

    Notes
    -----
    ``O(N K)``. MARS (arXiv 2601.15498) compares logits instead: see the module.

    Examples
    --------
    >>> import numpy as np
    >>> margin([1, 2, 2], np.log([.8, .8, .4]), np.log([.1, .1, .35]), [0, 3], margin=.1)
    array([ True, False,  True])
    """
    _check_threshold("margin", margin, -1, 1)
    offsets = check_indptr(indptr)
    ranks, top = _ranks(draft_rank, offsets), _top(top_log_p, offsets)
    allowed = "at most top_log_p there, or -inf"
    second = _by_position(second_log_p, "second_log_p", offsets, -np.inf, top + LOG_TOLERANCE, allowed)
    close = _at_drafts(np.exp(top) - np.exp(second) <= margin, ranks)
    accepted: Accepted = (ranks == 1) | ((ranks == 2) & close)
    return accepted


@dataclass(frozen=True)
class Lossy:
    """A lossy rule: how its ``hit`` is made from recorded columns.

    Parameters
    ----------
    name : str
        In the registry of rules.
    function : callable
        Takes the columns that it ``reads``, in this order, then ``indptr``, then the thresholds by name.
    reads : tuple of str
        The drafter's column, of its part ``relaxed``, and the target's, of its part ``divergence``.
    thresholds : mapping of str to float or None
        Names and defaults; None means that it must be given.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> columns = {"draft_log_p": np.log([.5, .3]), "top_log_p": np.log([.5, .4])}
    >>> rule = LOSSY["additive"]
    >>> hit = rule.function(*[columns[name] for name in rule.reads], [0, 2], t=.2)
    >>> ms.round_law(None, None, [0, 2], rule=rule.name, hit=hit, draft_length=1)
    RoundLaw(positions, K=1, 1 rollout, 2 starts, teacher-forced)
    """

    name: str
    function: Callable[..., Accepted]
    reads: tuple[str, ...]
    thresholds: Mapping[str, float | None]


LOSSY: dict[str, Lossy] = {
    entry.name: entry
    for entry in (
        Lossy("typical", typical, ("draft_log_p", "entropy"), {"epsilon": 0.09, "delta": 0.3}),
        Lossy("additive", additive, ("draft_log_p", "top_log_p"), {"t": None}),
        Lossy("multiplicative", multiplicative, ("draft_log_p", "top_log_p"), {"alpha": None}),
        Lossy("top-m", top_m, ("draft_rank",), {"m": None}),
        Lossy("margin", margin, ("draft_rank", "top_log_p", "second_log_p"), {"margin": None}),
    )
}


def law(inputs: Inputs) -> RoundLaw:
    """Make the teacher-forced law of the given decisions."""
    inputs.hits()  # a one-hot log_q says which drafts are the rollout's tokens, not which are accepted
    return replace(match.law(inputs), exactness="teacher-forced")


RULES = tuple(Rule(name, "lossy", ("hit",), "teacher-forced", law) for name in LOSSY)


def _check_threshold(name: str, value: Any, low: float, high: float) -> None:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not low <= value <= high or value == np.inf:
        raise ValueError(f"{name}: found {value!r}; allowed: a number from {low} to {high}")


def _check_drafts(values: Array, name: str, offsets: Array, allowed: str, bad: Accepted) -> None:
    if values.ndim == 2:
        bad &= cells_inside(offsets, values.shape[1])
    if bad.any():
        row, column = divmod(int(np.argmax(bad)), values.shape[1] if values.ndim == 2 else 1)
        raise bad_cell(offsets, values, name, row, column + 1, allowed)


def _check_shape(values: Array, name: str, offsets: Array) -> None:
    rows = int(offsets[-1])
    if values.ndim not in (1, 2) or len(values) != rows:
        raise ValueError(f"{name}: found shape {values.shape}; allowed: ({rows}, K) or ({rows},), a row a position")


def _draft_log_probs(given: Any, offsets: Array) -> Array:
    """Give the drafts' log-probabilities in float64; NaN, which no comparison accepts, past the ends."""
    values = as_float(given, "draft_log_p").astype(np.float64, copy=False)
    _check_shape(values, "draft_log_p", offsets)
    allowed = f"at most {LOG_TOLERANCE}, -inf, or NaN where nothing is drafted"
    _check_drafts(values, "draft_log_p", offsets, allowed, values > LOG_TOLERANCE)
    return np.where(cells_inside(offsets, values.shape[1]), values, np.nan) if values.ndim == 2 else values


def _ranks(given: Any, offsets: Array) -> Array:
    """Give the drafts' ranks; ``ABSENT`` past the ends."""
    values = np.asarray(given)
    if values.dtype.kind not in "iu":
        raise ValueError(f"draft_rank: found dtype {values.dtype}; allowed: integers")
    _check_shape(values, "draft_rank", offsets)
    _check_drafts(values, "draft_rank", offsets, "1 or more", values < 1)
    return np.where(cells_inside(offsets, values.shape[1]), values, ABSENT) if values.ndim == 2 else values


def _by_position(given: Any, name: str, offsets: Array, low: float, high: Any, allowed: str) -> Array:
    values, rows = as_float(given, name).astype(np.float64, copy=False), int(offsets[-1])
    if values.shape != (rows,):
        raise ValueError(f"{name}: found shape {values.shape}; allowed: ({rows},), one for each position")
    bad = ~((values >= low) & (values <= high) & (values < np.inf))
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"{name}: {locate(offsets, row)}: found {values[row]}; allowed: {allowed}")
    return values


def _top(given: Any, offsets: Array) -> Array:
    least = float(np.finfo(np.float64).min)
    return _by_position(given, "top_log_p", offsets, least, LOG_TOLERANCE, "a finite log-probability <= 0")


def _at_drafts(values: Array, drafts: Array) -> Array:
    """Read values by position where each draft would stand: at ``s+k-1`` for depth ``k`` begun at ``s``."""
    if drafts.ndim == 1:
        return values
    at = np.arange(len(drafts))[:, None] + np.arange(drafts.shape[1])
    read: Array = values[np.minimum(at, max(len(drafts) - 1, 0))]
    return read
