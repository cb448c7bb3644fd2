"""What is said of a pair of contenders, and of each contender by itself."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import Any, Literal

import numpy as np
import polars as pl
from scipy.special import stdtr

from markov_spec.comparison.measures import LENGTH, Estimate, Measure, divided, logs, moves, varied
from markov_spec.comparison.ratio import around
from markov_spec.comparison.resampling import bca_interval, holm, sign_flip_p
from markov_spec.comparison.vectors import Array, Texts

NEAR, FAR = 0.01, 0.1  # an interval that comes so near to equality, or within a margin, and no farther is a near-tie
DECISIVE = 0.5  # share of the squared moves that is one prompt's
Verdict = Literal["better", "worse", "near-tie", "equivalent", "undecided"]

PAIRS = {
    "measure": pl.String, "contender": pl.String, "baseline": pl.String, "verdict": pl.String,
    "value": pl.Float64, "baseline_value": pl.Float64,
    "ratio": pl.Float64, "ratio_low": pl.Float64, "ratio_high": pl.Float64, "log_error": pl.Float64,
    "ratio_bca_low": pl.Float64, "ratio_bca_high": pl.Float64,
    "difference": pl.Float64, "difference_low": pl.Float64, "difference_high": pl.Float64,
    "difference_error": pl.Float64, "difference_bca_low": pl.Float64, "difference_bca_high": pl.Float64,
    "p": pl.Float64, "p_exact": pl.Boolean, "p_holm": pl.Float64, "p_equivalence": pl.Float64,
    "macro_difference": pl.Float64, "macro_difference_low": pl.Float64, "macro_difference_high": pl.Float64,
    "macro_difference_error": pl.Float64,
    "geometric_ratio": pl.Float64, "geometric_ratio_low": pl.Float64, "geometric_ratio_high": pl.Float64,
    "geometric_log_error": pl.Float64,
    "saved": pl.Float64, "saved_error": pl.Float64,
    "leave_one_out_low": pl.Float64, "leave_one_out_high": pl.Float64, "leave_one_out_prompt": pl.String,
    "decisive_prompt": pl.String,
}  # fmt: skip
CONTENDERS = {
    "measure": pl.String, "contender": pl.String, "tokens": pl.Float64, "total": pl.Float64,
    "pooled": pl.Float64, "pooled_low": pl.Float64, "pooled_high": pl.Float64, "pooled_error": pl.Float64,
    "pooled_bca_low": pl.Float64, "pooled_bca_high": pl.Float64,
    "macro_mean": pl.Float64, "macro_low": pl.Float64, "macro_high": pl.Float64, "macro_error": pl.Float64,
    "request_mean": pl.Float64, "plug_in_request_mean": pl.Float64,
    "leave_one_out_low": pl.Float64, "leave_one_out_high": pl.Float64, "leave_one_out_prompt": pl.String,
    "largest_prompt": pl.String, "largest_share": pl.Float64,
    "speedup": pl.Float64, "speedup_low": pl.Float64, "speedup_high": pl.Float64, "exactness": pl.String,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Drawn:
    """Sums of a measure, (C, B) each: over prompts drawn again, and over prompts with random signs."""

    bootstrap: tuple[Array, Array]
    flipped: tuple[Array, Array]


@dataclass(frozen=True, eq=False)
class Asked:
    """What was asked of a comparison: see ``compare_vectors``."""

    names: tuple[str, ...]
    prompts: tuple[str, ...]
    baseline: int | None
    texts: Texts
    level: float
    margin: float | None
    resamples: int
    exactness: tuple[str, ...] | None


def contender_rows(measure: Measure, drawn: Drawn, asked: Asked) -> list[dict[str, Any]]:
    """Give the figures of each contender and their intervals, by leaving prompts out and by the bootstrap."""
    values, left = measure.values(), measure.left_out()
    macro, moved = measure.macro
    again = divided(*drawn.bootstrap)
    length = measure.name == LENGTH
    tokens, totals = (measure.top, measure.bottom) if length else (measure.bottom, measure.top)
    by_prompt = measure.sums[0 if length else 1]
    rows = []
    for c, name in enumerate(asked.names):
        error, spread = varied(moves(left[c])), measure.apart(moved[c])
        largest = int(np.argmax(by_prompt[c]))
        rows.append(
            {"measure": measure.name, "contender": name, "tokens": fsum(tokens[c]), "total": fsum(totals[c])}
            | positive_around("pooled", values[c], error, asked.level)
            | _bca("pooled", again[c], values[c], left[c], asked)
            | {"macro_mean": macro[c]}
            | {k: value for k, value in positive_around("macro", macro[c], spread, asked.level).items() if k != "macro"}
            | {"request_mean": measure.request_mean[c], "plug_in_request_mean": measure.plug_in_request_mean[c]}
            | _left_out(left[c], values[c], asked)
            | {
                "largest_prompt": asked.prompts[largest],
                "largest_share": by_prompt[c][largest] / fsum(by_prompt[c]),
            }
            | _speedup(measure, c, asked.level)
            | {"exactness": None if asked.exactness is None else asked.exactness[c]}
        )
    return rows


def _speedup(measure: Measure, c: int, level: float) -> dict[str, float | None]:
    """Price without speculation over that of a contender."""
    if measure.plain is None:
        return {}
    own = measure.sums[0][c]
    plain = np.bincount(measure.prompt, measure.plain[c], own.size)
    ratio = fsum(plain) / fsum(own)
    low, high = around(ratio, plain, own, level)
    return {"speedup": ratio, "speedup_low": low, "speedup_high": high}


def pair_rows(measure: Measure, pairs: list[tuple[int, int]], drawn: Drawn, asked: Asked) -> list[dict[str, Any]]:
    """Give what is said of each pair, Holm's correction and the verdict included.

    Comparisons with a declared baseline are a family of their own; other pairs are corrected over all of them.
    """
    left = measure.left_out()
    rows = [_pair(measure, a, b, left, drawn, asked) for a, b in pairs]
    found = np.array([row["p"] for row in rows])
    corrected = found if len(asked.prompts) < 2 else holm(found)
    if asked.baseline is not None and len(asked.prompts) > 1:
        family = np.array([asked.baseline in pair for pair in pairs])
        corrected[family] = holm(found[family])
    for (a, b), row, p in zip(pairs, rows, corrected.tolist(), strict=True):
        row["p_holm"] = p
        row["verdict"] = _verdict(row, measure.sign, asked)
        row["decisive_prompt"] = _decisive(divided(left[a], left[b]), row, asked)
    return rows


def _pair(measure: Measure, a: int, b: int, left: Array, drawn: Drawn, asked: Asked) -> dict[str, Any]:
    values = measure.values()
    ratio, apart = float(values[a] / values[b]), values[a] - values[b]
    left_ratio = divided(left[a], left[b])
    error = varied(moves(logs(left_ratio)))
    macro, macro_moved = measure.macro
    again = divided(*drawn.bootstrap)
    top, bottom = measure.sums
    flips, flops = drawn.flipped
    p, exact = sign_flip_p((top[a], top[b]), (bottom[a], bottom[b]), (flips[a], flips[b], flops[a], flops[b]))
    p = p if len(asked.prompts) > 1 else np.nan  # an exchange of all prompts tells nothing
    spread = measure.apart(macro_moved[a] - macro_moved[b])
    return (
        {"measure": measure.name, "contender": asked.names[a], "baseline": asked.names[b]}
        | {"value": values[a], "baseline_value": values[b]}
        | _about("ratio", ratio, error, asked.level)
        | {"log_error": error.error}
        | _bca("ratio", divided(again[a], again[b]), ratio, left_ratio, asked)
        | _around("difference", apart, varied(moves(left[a] - left[b])), asked.level)
        | _bca("difference", again[a] - again[b], apart, left[a] - left[b], asked)
        | {"p": p, "p_exact": exact, "p_equivalence": _equivalence(ratio, error, asked.margin)}
        | _around("macro_difference", macro[a] - macro[b], spread, asked.level)
        | _geometric(measure, a, b, asked.level)
        | _saved(measure, a, b, asked.texts)
        | _left_out(left_ratio, ratio, asked)
    )


def _around(name: str, value: float, estimate: Estimate, level: float) -> dict[str, float]:
    reach = estimate.reach(level)
    return {name: value, f"{name}_low": value - reach, f"{name}_high": value + reach, f"{name}_error": estimate.error}


def positive_around(name: str, value: float, estimate: Estimate, level: float) -> dict[str, float]:
    """Give a figure, its error and the ends of its interval, NaN where that would reach 0, which no figure does."""
    found = _around(name, value, estimate, level)
    return found if found[f"{name}_low"] > 0 else found | {f"{name}_low": np.nan, f"{name}_high": np.nan}


def _about(name: str, ratio: float, estimate: Estimate, level: float) -> dict[str, float]:
    # On the logarithm, so that it says the same of a against b and of b against a.
    factor = float(np.exp(estimate.reach(level)))
    return {name: ratio, f"{name}_low": ratio / factor, f"{name}_high": ratio * factor}


def _bca(name: str, drawn: Array, found: float, left_out: Array, asked: Asked) -> dict[str, float]:
    low, high = (np.nan, np.nan) if left_out.size < 2 else bca_interval(drawn, found, left_out, asked.level)
    return {f"{name}_bca_low": low, f"{name}_bca_high": high}


def _equivalence(ratio: float, estimate: Estimate, margin: float | None) -> float | None:
    """Two one-sided tests of a log ratio within ``log(1+margin)`` of 0: the larger p-value."""
    if margin is None or np.isnan(estimate.error):
        return None
    room = np.log1p(margin) - abs(np.log(ratio))
    if estimate.error == 0:
        return float(room <= 0)
    return float(stdtr(estimate.freedom, -room / estimate.error))


def _geometric(measure: Measure, a: int, b: int, level: float) -> dict[str, float]:
    """Geometric mean over prompts of their ratios: each prompt counts the same, however long."""
    top, bottom = measure.sums
    sides = np.stack((top[a], bottom[a], top[b], bottom[b]))
    x_a, y_a, x_b, y_b = np.log(sides[:, (sides > 0).all(0)])
    ratios = x_a - y_a - x_b + y_b
    mean = fsum(ratios) / ratios.size if ratios.size else np.nan
    estimate = varied((ratios - mean) / max(ratios.size, 1))
    found = _about("geometric_ratio", float(np.exp(mean)), estimate, level)
    return found | {"geometric_log_error": estimate.error}


def _saved(measure: Measure, a: int, b: int, texts: Texts) -> dict[str, float]:
    """Rounds, or price, that a prompt takes less; of texts of different lengths it would say nothing."""
    quantity = measure.sums[1 if measure.name == LENGTH else 0]
    saved = quantity[b] - quantity[a]
    mean = fsum(saved) / saved.size if texts == "same" else np.nan
    return {"saved": mean, "saved_error": varied((saved - mean) / saved.size).error}


def _left_out(left: Array, value: float, asked: Asked) -> dict[str, Any]:
    if not np.isfinite(left).any():
        return {"leave_one_out_low": None, "leave_one_out_high": None, "leave_one_out_prompt": None}
    most = int(np.nanargmax(np.abs(logs(left / value))))
    return {
        "leave_one_out_low": float(np.nanmin(left)),
        "leave_one_out_high": float(np.nanmax(left)),
        "leave_one_out_prompt": asked.prompts[most],
    }


def _decisive(left: Array, row: dict[str, Any], asked: Asked) -> str | None:
    """Find the prompt that most of a difference's variance comes from, be it shown or hidden by it."""
    if row["verdict"] in ("near-tie", "equivalent") or left.size < 2 or not (left > 0).all():
        return None
    squares = moves(np.log(left)) ** 2
    most = int(np.argmax(squares))
    return asked.prompts[most] if squares[most] > DECISIVE * squares.sum() else None


def _verdict(row: dict[str, Any], sign: int, asked: Asked) -> Verdict:
    if row["p_equivalence"] is not None and row["p_equivalence"] <= 1 - asked.level:
        return "equivalent"
    ends = row["ratio_low"], row["ratio_high"]
    if np.isnan(ends).any():
        return "undecided"
    nearest = 0.0 if ends[0] <= 1 <= ends[1] else min(abs(np.log(ends)))
    if nearest <= np.log1p(asked.margin or NEAR) and max(abs(np.log(ends))) <= np.log1p(FAR):
        return "near-tie"
    if row["p_holm"] > 1 - asked.level or nearest == 0:
        return "undecided"
    return "better" if (row["ratio"] > 1) == (sign > 0) else "worse"
