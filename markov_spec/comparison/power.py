"""How many prompts a wanted resolution needs."""

from __future__ import annotations

import numpy as np
import polars as pl
from scipy.special import nctdtr, stdtrit

from markov_spec.comparison.result import Comparison

MOST = 10**9
SCHEMA = {
    "measure": pl.String,
    "contender": pl.String,
    "baseline": pl.String,
    "prompts": pl.Int64,
    "prompts_of_runs": pl.Int64,
}


def required_prompts(comparison: Comparison, *, detect: float = 0.01, power: float = 0.8) -> pl.DataFrame:
    """Compute how many prompts would tell a pair apart that differs by a given share.

    Parameters
    ----------
    comparison : Comparison
        Its pairs vary by prompt as future ones will; its level is that of the test.
    detect : float
        Relative difference to be found: 0.01 is a ratio of 1.01.
    power : float
        Probability of finding it, above 0 and below 1.

    Returns
    -------
    polars.DataFrame
        A row for each measure and pair: measure, contender, baseline, prompts (of as many rollouts each), and
        prompts_of_runs, how many engines that run by themselves would need, each with its own texts and luck; null
        where the variance of rounds, or of rollouts of one prompt, is not known.

    Raises
    ------
    ValueError
        If ``detect`` or ``power`` is out of range.

    Notes
    -----
    The least number at which a two-sided t-test of the log ratio has this power, by the noncentral t-distribution.
    Source: Cohen, Statistical Power Analysis (1988).

    Examples
    --------
    >>> import polars as pl
    >>> from markov_spec.comparison import compare_vectors, required_prompts
    >>> rows = {"contender": ["a"] * 4 + ["b"] * 4, "rollout": list("wxyz") * 2, "prompt": list("wxyz") * 2}
    >>> rounds = [10, 20, 40, 80, 9, 18, 37, 74]
    >>> found = compare_vectors(pl.DataFrame(rows | {"tokens": [20, 40, 80, 160] * 2, "rounds": rounds}))
    >>> required_prompts(found, detect=0.02)["prompts"].item()
    6
    """
    if not 0 < detect < np.inf:
        raise ValueError(f"detect: found {detect}; allowed: a finite number above 0")
    if not 0 < power < 1:
        raise ValueError(f"power: found {power}; allowed: above 0 and below 1")
    effect, size = float(np.log1p(detect)), 1 - comparison.level
    runs = {
        (row["measure"], row["contender"], row["baseline"]): row["one_run"]
        for row in comparison.variance_account.to_dicts()
    }
    rows = []
    for row in comparison.pairs.to_dicts():
        pair = row["measure"], row["contender"], row["baseline"]
        variances = None if row["log_error"] is None else row["log_error"] ** 2, runs[pair]
        needed = [
            None if variance is None else _prompts(effect, np.sqrt(variance * comparison.prompts), size, power)
            for variance in variances
        ]
        rows.append([*pair, *needed])
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _prompts(effect: float, spread: float, size: float, power: float) -> int | None:
    """Least number of prompts, 2 or more; None above a billion."""
    if spread == 0 or _power(2, effect, spread, size) >= power:
        return 2
    low, high = 2, 4
    while _power(high, effect, spread, size) < power:
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(middle, effect, spread, size) >= power else (middle, high)
    return high


def _power(count: int, effect: float, spread: float, size: float) -> float:
    shift, limit = effect / spread * np.sqrt(count), stdtrit(count - 1, 1 - size / 2)
    return float(1 - nctdtr(count - 1, shift, limit) + nctdtr(count - 1, shift, -limit))
