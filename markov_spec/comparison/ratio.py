"""A quotient of sums and its interval, the prompt being what varies.

``ratio = sum x / sum y`` over the rollouts of all prompts varies by what leaving each prompt out does to it, as stated
in ``comparison.measures``; its interval is Student's, with a degree of freedom less than there are prompts. Pooled
lengths and speed-ups are such quotients, and the figures of a comparison have this interval, too; a ratio of two
contenders' figures has it on its logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from markov_spec.comparison.measures import divided, moves, others, varied
from markov_spec.comparison.vectors import Array


class RatioInterval(NamedTuple):
    """A quotient of sums, and the ends of its interval; None where there is none.

    Without a denominator there is no quotient. There is no interval of one prompt, where one has the whole denominator,
    or where that of values of 0 or more would reach 0, as of two unlike prompts.
    """

    ratio: float | None
    low: float | None
    high: float | None


def ratio_interval(
    numerator: Any, denominator: Any, prompt_ids: Sequence[Any], *, level: float = 0.95
) -> RatioInterval:
    """Compute a quotient of sums and its interval, by leaving each prompt out in turn.

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
    vectors are expectations. It is that of ``compare_vectors`` for a contender's own figure. The delta method's
    variance, ``sum_g (x_g - ratio y_g)^2 G / (G-1) / (sum y)^2`` over the sums of ``G`` prompts, is the same to first
    order, but takes what a long prompt owes for less than it is. The interval is too narrow for a few prompts of which
    one decides.

    Examples
    --------
    >>> from markov_spec.comparison import ratio_interval
    >>> found = ratio_interval([10, 12, 30, 9], [5, 6, 10, 4], ["p", "p", "q", "r"])
    >>> [round(value, 3) for value in found]
    [2.44, 0.648, 4.232]
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
    index = [names[name] for name in prompt_ids]
    sums = np.array([np.bincount(index, values, len(names)) for values in (x, y)])
    top, bottom = sums[:, (sums != 0).any(0)]
    low, high = around(ratio, top, bottom, level)
    return RatioInterval(ratio, low, high)


def around(ratio: float, top: Array, bottom: Array, level: float) -> tuple[float | None, float | None]:
    """Give the ends of a quotient's interval of sums by prompt, (G,) each; None where there is none."""
    left_out = divided(*others(np.stack((top, bottom))))
    if left_out.size < 2 or not np.isfinite(left_out).all():
        return None, None
    reach = varied(moves(left_out)).reach(level)
    if min(top.min(), bottom.min()) >= 0 and reach >= ratio > 0:
        return None, None  # no such quotient is 0 or less
    return ratio - reach, ratio + reach
