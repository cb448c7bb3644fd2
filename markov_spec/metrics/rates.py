"""Acceptance rates by depth: of counted rounds, and such as a trainer prints, which must say what kind they are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import fsum
from operator import mul
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from markov_spec.metrics.aggregates import ROUNDING, ratio

Array = npt.NDArray[Any]

Kind = Literal["unconditional", "conditional"]


def prefix_rates(rates: Sequence[float], *, kind: Kind) -> list[float]:
    """Give the unconditional rates: the chance that a round accepts at least ``k`` drafts, ``k = 1..K``.

    Parameters
    ----------
    rates : sequence of float, (K,)
        Acceptance rate of each depth.
    kind : {"unconditional", "conditional"}
        Whether a rate is the chance that all drafts up to this depth are accepted, or that this one is when those
        before it were.

    Returns
    -------
    list of float, (K,)

    Raises
    ------
    ValueError
        If a rate is outside [0, 1], or unconditional rates rise.

    Examples
    --------
    >>> prefix_rates([0.75, 0.5], kind="conditional")
    [0.75, 0.375]
    """
    if kind not in ("unconditional", "conditional"):
        raise ValueError(f"kind: found {kind!r}; allowed: 'unconditional', 'conditional'")
    values = [float(rate) for rate in rates]
    for k, rate in enumerate(values, start=1):
        if not 0 <= rate <= 1:
            raise ValueError(f"rates: depth {k}: found {rate}; allowed: 0 to 1")
        if kind == "unconditional" and k > 1 and rate > values[k - 2] + ROUNDING:
            raise ValueError(
                f"rates: depth {k}: found {rate}; allowed: at most the {values[k - 2]} of the depth before"
            )
    return values if kind == "unconditional" else list(accumulate(values, mul))


def infinite_horizon_length(rates: Sequence[float], *, kind: Kind) -> float:
    """Tokens per round if no rollout ever ended and each round accepted at these rates: ``1 + sum_k rate k``.

    Parameters
    ----------
    rates, kind
        As in `prefix_rates`; errors too.

    Returns
    -------
    float
        In [1, K+1], the target's own token included.

    Examples
    --------
    >>> infinite_horizon_length([0.5, 0.5], kind="conditional")
    1.75
    """
    return 1 + fsum(prefix_rates(rates, kind=kind))


def mean_rate(rates: Sequence[float], *, kind: Kind) -> float | None:
    """Accepted share of ``K`` drafts at these rates; falls as ``K`` grows, so it ranks nothing across ``K``.

    Parameters
    ----------
    rates, kind
        As in `prefix_rates`; errors too.

    Returns
    -------
    float or None
        None for ``K = 0``.

    Examples
    --------
    >>> mean_rate([0.5, 0.5], kind="conditional")
    0.375
    """
    prefix = prefix_rates(rates, kind=kind)
    return fsum(prefix) / len(prefix) if prefix else None


def least_variance_rates(length: float, draft_length: int) -> list[float]:
    """Give the unconditional rates of this infinite-horizon length whose accepted drafts vary least.

    Parameters
    ----------
    length : float
        Tokens per round, the target's own included, in [1, K+1].
    draft_length : int
        ``K``.

    Returns
    -------
    list of float, (K,)
        1 up to the whole part of ``length - 1``, then its fraction, then 0.

    Raises
    ------
    ValueError
        If the length is outside [1, K+1].

    Examples
    --------
    >>> least_variance_rates(2.75, 3)
    [1.0, 0.75, 0.0]
    """
    if not 1 <= length <= draft_length + 1:
        raise ValueError(f"length: found {length} with {draft_length} drafts a round; allowed: 1 to {draft_length + 1}")
    return [min(max(length - 1 - k, 0.0), 1.0) for k in range(draft_length)]


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
    return [ratio(float(n), float(at_least[0])) for n in at_least[1:]]


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
    return [ratio(float(n), float(m)) for n, m in zip(at_least[1:], tested, strict=True)]


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
    if not 0 <= accepted <= proposed * (1 + ROUNDING):
        raise ValueError(f"accepted: found {accepted} of {proposed} proposed drafts; allowed: 0 up to all of them")
    return ratio(float(accepted), float(proposed))
