"""Aggregates over rollouts and rounds: one name per number.

::

    pooled length        sum_i tokens_i / sum_i E[R_i]
    unconditional rate k E[#rounds with N >= k] / E[#rounds]
    conditional rate k   E[#rounds with N >= k] / E[#rounds with N >= k-1 that proposed depth k]
    draft acceptance     accepted / proposed drafts

A ratio of nothing to nothing is None, never 0. `surprise_z` tests whether rollouts come from their recorded
distribution.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def pooled_length(committed: Any, rounds: Any) -> float | None:
    """Committed tokens per round, pooled over rollouts: the headline figure.

    Parameters
    ----------
    committed : array_like of float, (R,)
        Tokens that each rollout commits.
    rounds : array_like of float, (R,)
        Its (expected) rounds.

    Returns
    -------
    float or None
        Tokens per round, the target's own token included; None without rounds.

    Examples
    --------
    >>> pooled_length([40, 200], [10, 100])
    2.1818181818181817
    """
    return _ratio(float(np.sum(committed)), float(np.sum(rounds)))


def unconditional_rates(histogram: Array) -> list[float | None]:
    """Share of rounds that accept at least ``k`` drafts, for ``k = 1..K``.

    Parameters
    ----------
    histogram : ndarray of float, (K+1,)
        (Expected) rounds that accept exactly 0..K drafts.

    Returns
    -------
    list of float or None, K entries

    Examples
    --------
    >>> unconditional_rates(np.array([2., 1., 1., 4.]))
    [0.75, 0.625, 0.5]
    """
    at_least = np.cumsum(histogram[::-1])[::-1]
    return [_ratio(float(n), float(at_least[0])) for n in at_least[1:]]


def conditional_rates(histogram: Array, tested: Array) -> list[float | None]:
    """Share of the rounds that tested depth ``k`` which accept it, for ``k = 1..K``.

    Parameters
    ----------
    histogram : ndarray of float, (K+1,)
        (Expected) rounds that accept exactly 0..K drafts.
    tested : ndarray of float, (K,)
        (Expected) rounds that accept ``k-1`` drafts and proposed depth ``k``.

    Returns
    -------
    list of float or None, K entries
        None where depth ``k`` was never tested.

    Examples
    --------
    >>> conditional_rates(np.array([2., 1., 1., 4.]), np.array([8., 6., 5.]))
    [0.75, 0.8333333333333334, 0.8]
    """
    at_least = np.cumsum(histogram[::-1])[::-1]
    return [_ratio(float(n), float(m)) for n, m in zip(at_least[1:], tested, strict=True)]


def draft_acceptance(accepted: float, *, proposed: float) -> float | None:
    """Accepted drafts per proposed draft.

    Parameters
    ----------
    accepted : float
        Accepted drafts, the target's own tokens left out.
    proposed : float
        Proposed drafts. For a tree there are two figures, and a report must say which: rounds times *depth* gives the
        rate per depth, rounds times *nodes* (the root not counted) the rate per node.

    Returns
    -------
    float or None
        None if nothing was proposed.

    Raises
    ------
    ValueError
        If more were accepted than proposed: target tokens were counted as drafts.

    Examples
    --------
    >>> draft_acceptance(20, proposed=10 * 15), draft_acceptance(20, proposed=10 * 3)
    (0.13333333333333333, 0.6666666666666666)
    """
    if accepted > proposed * (1 + 1e-9):
        raise ValueError(f"accepted: found {accepted} of {proposed} proposed drafts; allowed: at most all of them")
    return _ratio(float(accepted), float(proposed))


def surprise_z(log_p: Array, entropy: Array, varentropy: Array) -> float | None:
    """Standardised total surprise of rollouts under the distribution they are said to come from.

    Parameters
    ----------
    log_p : ndarray of float, (N,)
        Log-probability (nats) of each realised token.
    entropy, varentropy : ndarray of float, (N,)
        Mean and variance of ``-log p`` of each position's distribution, nats and nats squared.

    Returns
    -------
    float or None
        About standard normal if every token was drawn from its distribution and no rollout was selected; None where
        nothing was random (no tokens, or greedy decoding).

    Examples
    --------
    >>> surprise_z(np.array([-.7, -1.5]), np.array([1.0, .8]), np.array([.01, .03]))
    2.0
    """
    spread = float(np.sum(varentropy, dtype=np.float64))
    if spread == 0:
        return None
    surplus = -float(np.sum(log_p, dtype=np.float64)) - float(np.sum(entropy, dtype=np.float64))
    return surplus / math.sqrt(spread)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
