"""A quotient of sums and its interval, the prompt being what varies.

With sums ``x_g`` and ``y_g`` over the rollouts of prompt ``g = 1..G``, ``ratio = sum x / sum y`` varies by the delta
method as ``sum_g (x_g - ratio y_g)^2 G / (G-1) / (sum y)^2``; its interval is Student's with ``G - 1`` degrees of
freedom. Pooled lengths and speed-ups are such quotients.
Source: Cochran, Sampling Techniques (1977), the ratio estimator of cluster samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit


class RatioInterval(NamedTuple):
    """A quotient of sums, and the ends of its interval; None where there is none: no denominator, or one prompt."""

    ratio: float | None
    low: float | None
    high: float | None


def ratio_interval(
    numerator: Any, denominator: Any, prompt_ids: Sequence[Any], *, level: float = 0.95
) -> RatioInterval:
    """Compute a quotient of sums and its interval by the delta method over prompts.

    Parameters
    ----------
    numerator, denominator : array of float, (R,)
        Of each rollout, such as its tokens and its expected rounds.
    prompt_ids : sequence, (R,)
        Rollouts of one prompt vary together.
    level : float
        Of confidence, above 0 and below 1.

    Returns
    -------
    RatioInterval

    Raises
    ------
    ValueError
        If lengths disagree, a value is not finite, or the level is not between 0 and 1.

    Notes
    -----
    ``O(R log R)``. The interval is of what other prompts of this kind would give; decoding luck is not in it where the
    vectors are expectations. It is too narrow for a few prompts of which one decides.

    Examples
    --------
    >>> from markov_spec.comparison import ratio_interval
    >>> found = ratio_interval([10, 12, 30, 9], [5, 6, 10, 4], ["p", "p", "q", "r"])
    >>> [round(value, 3) for value in found]
    [2.44, 0.872, 4.008]
    """
    x, y = (np.asarray(values, dtype=np.float64) for values in (numerator, denominator))
    if x.ndim != 1 or x.shape != y.shape or len(prompt_ids) != x.size:
        raise ValueError(
            f"numerator, denominator, prompt_ids: found shapes {x.shape}, {y.shape}, ({len(prompt_ids)},); allowed: "
            "(R,) each"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("numerator, denominator: found a value that is not finite; allowed: finite numbers")
    if not 0 < level < 1:
        raise ValueError(f"level: found {level}; allowed: above 0 and below 1")
    total = float(y.sum())
    if total == 0:
        return RatioInterval(None, None, None)
    ratio = float(x.sum()) / total
    names = {name: g for g, name in enumerate(dict.fromkeys(prompt_ids))}
    count = len(names)
    if count < 2:
        return RatioInterval(ratio, None, None)
    apart = np.bincount([names[name] for name in prompt_ids], x - ratio * y)
    error = float(np.sqrt(np.sum(apart**2) * count / (count - 1))) / abs(total)
    reach = float(stdtrit(count - 1, (1 + level) / 2)) * error
    return RatioInterval(ratio, ratio - reach, ratio + reach)
