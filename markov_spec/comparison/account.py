"""Where the variance of a run of real decoding comes from, and how much of it an exact evaluation has not.

All variances are relative, of the logarithm of a pooled figure or of a ratio of two. With what each rollout moves it by
to first order, ``h_i = x_i / sum x - y_i / sum y``, ``m_g`` rollouts of prompt ``g``, and ``V`` the variance found over
prompts::

    rollouts = sum_g m_g s_g^2,  s_g^2 the variance of h_i within prompt g        other texts of these prompts
    prompts  = V - rollouts, at least 0                                            other prompts
    luck     = sum_i Var[R_i] / (sum_i E[R_i])^2                                   other drafts of these texts, (M)

Two engines that run by themselves share prompts only: their texts and luck vary apart, and their variances add up. Two
contenders evaluated on the same rollouts share those too, and have no luck. ``n`` runs over the same prompts have
``prompts + (rollouts + luck) / n``; the evaluation is worth the ``n`` at which that is its own variance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from markov_spec.comparison.measures import Measure, divided, logs, moves, varied
from markov_spec.comparison.vectors import Array, Texts

SCHEMA = {
    "measure": pl.String,
    "contender": pl.String,
    "baseline": pl.String,
    "prompts": pl.Float64,
    "rollouts": pl.Float64,
    "rollouts_apart": pl.Float64,
    "luck": pl.Float64,
    "evaluated": pl.Float64,
    "one_run": pl.Float64,
    "removed": pl.Float64,
    "equivalent_runs": pl.Float64,
}


def account(
    measure: Measure, names: tuple[str, ...], pairs: list[tuple[int, int]], texts: Texts
) -> list[dict[str, Any]]:
    """Split the variance of each contender's figure and of each pair's ratio; a row for each."""
    top, bottom = measure.top, measure.bottom
    each = top / top.sum(1, keepdims=True) - bottom / bottom.sum(1, keepdims=True)
    own = [_within(row, measure.prompt) for row in each]
    sums = moves(logs(measure.left_out()))
    shared: dict[str, Any] = {"measure": measure.name}
    rows = [
        shared | {"contender": name, "baseline": None} | _split(sums[c], own[c], own[c], measure.luck[c])
        for c, name in enumerate(names)
    ]
    for a, b in pairs:
        apart = own[a] + own[b]
        within = _within(each[a] - each[b], measure.prompt) if texts == "same" else apart
        found = _split(sums[a] - sums[b], within, apart, measure.luck[a] + measure.luck[b])
        rows.append(shared | {"contender": names[a], "baseline": names[b]} | found)
    return rows


def _split(moved: Array, within: float, apart: float, luck: float) -> dict[str, float | None]:
    prompts = float(np.maximum(varied(moved).error ** 2 - within, 0))
    evaluated, run = prompts + within, prompts + apart + luck
    return {
        "prompts": prompts,
        "rollouts": within,
        "rollouts_apart": apart,
        "luck": float(luck),
        "evaluated": evaluated,
        "one_run": run,
        "removed": float(1 - divided(evaluated, run)),
        "equivalent_runs": float(divided(apart + luck, within)),
    }


def _within(moved: Array, prompt: Array) -> float:
    """Variance that the rollouts of each prompt make; NaN where a prompt has one only."""
    count = np.bincount(prompt)
    if count.min(initial=2) < 2:
        return np.nan
    apart = moved - (np.bincount(prompt, moved) / count)[prompt]
    return float(np.sum(np.bincount(prompt, apart**2) * count / (count - 1)))
