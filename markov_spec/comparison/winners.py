"""Who wins, by which pooling and on which benchmark, and what a reader should know of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from markov_spec.comparison.measures import LENGTH, Measure, divided, logs, moves, varied
from markov_spec.comparison.pairs import Asked, positive_around
from markov_spec.comparison.vectors import Array, Vectors

TIED = 1e-12  # relative, so that rounding makes no winner
FEW_PROMPTS = 10
DOMINANT = 0.5  # share of the tokens
SHIFT = 0.1  # relative change of a figure when one prompt is left out

WINNERS = {
    "measure": pl.String,
    "by": pl.String,
    "benchmark": pl.String,
    "winner": pl.String,
    "value": pl.Float64,
    "runner_up": pl.String,
    "lead": pl.Float64,
}
BENCHMARKS = {
    "measure": pl.String,
    "benchmark": pl.String,
    "contender": pl.String,
    "prompts": pl.Int64,
    "rollouts": pl.Int64,
    "pooled": pl.Float64,
    "pooled_low": pl.Float64,
    "pooled_high": pl.Float64,
    "pooled_error": pl.Float64,
    "baseline": pl.String,
    "ratio": pl.Float64,
    "ratio_low": pl.Float64,
    "ratio_high": pl.Float64,
}


def benchmark_rows(measure: Measure, vectors: Vectors, asked: Asked, baseline: int) -> list[dict[str, Any]]:
    """Give the figures of each benchmark and contender, and its ratio to the baseline."""
    rows = []
    for b, benchmark in enumerate(vectors.benchmarks):
        own = measure.benchmark == b
        values, left = measure.values(own), measure.left_out(own)
        rollouts = int(np.sum(own[measure.prompt]))
        for c, name in enumerate(asked.names):
            reach = varied(moves(left[c]))
            apart = varied(moves(logs(divided(left[c], left[baseline]))))
            ratio = values[c] / values[baseline]
            factor = np.exp(apart.reach(asked.level))
            row: dict[str, Any] = {
                "measure": measure.name,
                "benchmark": benchmark,
                "contender": name,
                "prompts": int(own.sum()),
            }
            row |= {"rollouts": rollouts} | positive_around("pooled", values[c], reach, asked.level)
            if c != baseline:
                row |= {"baseline": asked.names[baseline], "ratio": ratio}
                row |= {"ratio_low": ratio / factor, "ratio_high": ratio * factor}
            rows.append(row)
    return rows


def winner_rows(measure: Measure, vectors: Vectors) -> list[dict[str, Any]]:
    """Give the winner by each pooling and on each benchmark; none where the two best are equal."""
    plain = measure.request_mean if np.isfinite(measure.request_mean).all() else measure.plug_in_request_mean
    found: list[tuple[str, str | None, Array]] = [
        ("pooled", None, measure.values()),
        ("macro mean", None, measure.macro[0]),
        ("request mean", None, plain),
    ]
    found += [("benchmark", name, measure.values(measure.benchmark == b)) for b, name in enumerate(vectors.benchmarks)]
    rows = []
    for by, benchmark, values in found:
        order = ranked(values, measure.sign)
        row: dict[str, Any] = {"measure": measure.name, "by": by, "benchmark": benchmark}
        if len(order) > 1:
            first, second = order[:2]
            lead = (values[first] / values[second]) ** measure.sign - 1
            row |= {"value": values[first], "lead": lead}
            if lead > TIED:
                row |= {"winner": vectors.contenders[first], "runner_up": vectors.contenders[second]}
        rows.append(row)
    return rows


def ranked(values: Array, sign: int) -> list[int]:
    """Order contenders from the best one; those without a value are left out."""
    order = np.argsort(-sign * values, kind="stable")
    return [int(c) for c in order if np.isfinite(values[c])]


def notes(
    measure: Measure,
    vectors: Vectors,
    asked: Asked,
    rows: dict[str, list[dict[str, Any]]],
    primary: tuple[str, str],
) -> tuple[str, ...]:
    """Tell what the figures of the comparison's own measure do not say by themselves."""
    told, count = [], len(vectors.prompts)
    if vectors.texts == "own":
        told.append("each contender generated its own texts: their sampling is in the intervals")
    if vectors.idle:
        told.append(f"{vectors.idle} prompt{'s' * (vectors.idle != 1)} without a token to decode left out")
    if count == 1:
        told.append("one prompt: nothing tells how others would differ, and nothing is tested")
    elif count < FEW_PROMPTS:
        least = 2.0 ** (1 - count)
        flips = f", and sign flips give no p below {least:.2g}" if least > 1 - asked.level else ""
        left = any(not row["pooled_low"] > 0 for row in rows["contenders"] if row["measure"] == measure.name)
        gone = ", and left out where they would reach 0" if left else ""
        told.append(f"{count} prompts: intervals from so few are rough{gone}{flips}")
    told += _coarse([row for row in rows["pairs"] if row["measure"] == measure.name], asked)
    told += _labels(vectors) + _slower(rows["contenders"])
    told += _dominance([row for row in rows["contenders"] if row["measure"] == measure.name])
    told += [
        f"prompt {row['decisive_prompt']!r} decides between {row['contender']} and {row['baseline']}: without it their "
        f"ratio is {_without(measure, vectors, row):.4f} in place of {row['ratio']:.4f}"
        for row in rows["pairs"]
        if (row["measure"], row["contender"], row["baseline"]) == (measure.name, *primary) and row["decisive_prompt"]
    ]
    return tuple(
        told + _pooling([row for row in rows["winners"] if row["measure"] == measure.name], len(vectors.benchmarks))
    )


def _coarse(pairs: list[dict[str, Any]], asked: Asked) -> list[str]:
    """Tell that too few draws were made for any pair to be shown to differ."""
    count = len(pairs) if asked.baseline is None else len(asked.names) - 1
    least = count / (1 + asked.resamples)
    if least <= 1 - asked.level or any(row["p_exact"] for row in pairs):
        return []
    return [f"{asked.resamples} draws give no p below {least:.2g} corrected for {count} pairs: too few to show any"]


def _labels(vectors: Vectors) -> list[str]:
    """Tell whose figures are not exact."""
    named: dict[str, list[str]] = {}
    for name, label in zip(vectors.contenders, vectors.exactness or (), strict=False):
        named.setdefault(label, []).append(name)
    return [f"{label}, not exact: {', '.join(names)}" for label, names in named.items() if label != "exact"]


def _slower(rows: list[dict[str, Any]]) -> list[str]:
    """Tell that no speculation is the best choice."""
    fast = [row for row in rows if row.get("speedup") is not None]
    best = max(fast, key=lambda row: row["speedup"], default=None)
    if best is None or best["speedup"] > 1 + TIED:
        return []
    slower = [row for row in fast if row["speedup"] < 1 - TIED]
    nearest = max(slower, key=lambda row: row["speedup"], default=None)
    told = "no speculation is the best choice"
    if nearest is not None:
        told += f": {nearest['contender']} comes nearest, speed-up {nearest['speedup']:.4f}"
    return [told]


def _without(measure: Measure, vectors: Vectors, row: dict[str, Any]) -> float:
    a, b = (vectors.contenders.index(row[name]) for name in ("contender", "baseline"))
    left = measure.left_out()[:, vectors.prompts.index(row["decisive_prompt"])]
    return float(left[a] / left[b])


def _dominance(rows: list[dict[str, Any]]) -> list[str]:
    unit = "tokens per round" if rows[0]["measure"] == LENGTH else "price per token"
    told = []
    for row in rows:
        low, high = row["leave_one_out_low"], row["leave_one_out_high"]
        if low is None:
            continue
        if row["largest_share"] > DOMINANT or max(row["pooled"] - low, high - row["pooled"]) > SHIFT * row["pooled"]:
            told.append(f"{row['contender']} {low:.4g} to {high:.4g} (all prompts {row['pooled']:.4g})")
    if not told:
        return []
    largest = max(rows, key=lambda row: row["largest_share"])
    share = largest["largest_share"]
    holds = f"prompt {largest['largest_prompt']!r} holds {share:.0%} of the tokens, and " if share > DOMINANT else ""
    return [f"few prompts decide: {holds}leaving one prompt out gives {unit} of {'; '.join(told)}"]


def _pooling(rows: list[dict[str, Any]], benchmarks: int) -> list[str]:
    told = []
    overall = [row for row in rows if row["by"] != "benchmark" and (row["by"] != "macro mean" or benchmarks > 1)]
    if len({row.get("winner") for row in overall}) > 1:
        shown = ", ".join(f"{row['by']} {row.get('winner', 'none, a tie')}" for row in overall)
        told.append(f"the winner depends on pooling: {shown}")
    winner = overall[0].get("winner")
    others = [row for row in rows if row["by"] == "benchmark" and row.get("winner") not in (None, winner)]
    if others and winner is not None:
        shown = ", ".join(f"{row['benchmark']} ({row['winner']})" for row in others)
        told.append(f"{winner} does not win on {len(others)} of {benchmarks} benchmarks: {shown}")
    return told
