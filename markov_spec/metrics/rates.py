"""Acceptance rates by depth that stand alone, such as a trainer prints: what kind they are, and what they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import fsum
from operator import mul
from typing import Literal

Kind = Literal["unconditional", "conditional"]
ROUNDING = 1e-9


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
