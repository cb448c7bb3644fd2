"""What stands on the page: tables and figures of a study, as text and numbers for its template."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from markov_spec.evaluation import Evaluation, Study
from markov_spec.evaluation.contender import as_contender
from markov_spec.evaluation.study import SPREAD_WIDTH
from markov_spec.report.page import charts

LONGEST_TRACE = 400  # tokens of a rollout that are shown
MOST_ROWS = 60  # of pairs, of which there are many for many contenders


@dataclass(frozen=True)
class Cell:
    """A figure as it is shown and as it sorts."""

    shown: str
    value: float | str | None = None
    kind: str = ""


@dataclass(frozen=True)
class Table:
    """Columns, each with whether it is of numbers, and rows of cells."""

    columns: tuple[tuple[str, bool], ...]
    rows: list[list[Cell]]


def number(value: float | None, form: str = ".4f") -> Cell:
    """Show a number; a dash if there is none."""
    return Cell("-", None, "number") if value is None else Cell(format(value, form), value, "number")


def between(low: float | None, high: float | None, form: str = ".4f") -> Cell:
    """Show an interval, which sorts by its lower end."""
    return (
        Cell("-", None, "number")
        if low is None or high is None
        else Cell(f"{low:{form}} to {high:{form}}", low, "number")
    )


def named(text: str) -> Cell:
    """Show a name."""
    return Cell(text, text, "named")


def contenders(found: Study) -> Table:
    """A row for each contender, with what each benchmark gives."""
    compared = found.comparison
    own = pl.col("measure") == compared.measure
    parts = compared.benchmarks.filter(own)
    benchmarks = parts["benchmark"].unique(maintain_order=True).to_list()
    pooled = dict(zip(parts.select("contender", "benchmark").iter_rows(), parts["pooled"], strict=True))
    results = {result.contender: result for result in found.evaluations}
    form = ".4f" if compared.measure == "tokens_per_round" else ".4g"
    rows = []
    for row in compared.contenders.filter(own).to_dicts():
        result = results[row["contender"]]
        figures = [number(row[name], form) for name in ("macro_mean", "request_mean")]
        rows.append(
            [
                named(row["contender"]), Cell(_rule(result)), number(result.draft_length, "d"),
                number(row["pooled"], form), between(row["pooled_low"], row["pooled_high"], form), *figures,
                *(number(pooled[row["contender"], name], form) for name in benchmarks), Cell(result.exactness),
            ]
        )  # fmt: skip
    numbers = ("K", "pooled", "interval", "macro mean", "request mean", *benchmarks)
    columns = (("contender", False), ("rule", False), *((name, True) for name in numbers), ("figures are", False))
    return Table(columns, rows)


def _rule(result: Evaluation) -> str:
    return " ".join([result.rule, *(f"{name}={value}" for name, value in result.settings.items())])


def pairs(found: Study) -> Table:
    """A row for each pair."""
    compared = found.comparison
    own = compared.pairs.filter(pl.col("measure") == compared.measure).head(MOST_ROWS)
    columns = (
        ("contender", False), ("against", False), ("ratio", True), ("interval", True), ("bootstrap", True), ("p", True),
        ("corrected", True), ("verdict", False), ("without one prompt", True),
    )  # fmt: skip
    rows = [
        [
            named(row["contender"]), named(row["baseline"]), number(row["ratio"]),
            between(row["ratio_low"], row["ratio_high"]), between(row["ratio_bca_low"], row["ratio_bca_high"]),
            number(row["p"], ".2g"), number(row["p_holm"], ".2g"), Cell(row["verdict"]),
            between(row["leave_one_out_low"], row["leave_one_out_high"]),
        ]
        for row in own.to_dicts()
    ]  # fmt: skip
    return Table(columns, rows)


def luck(found: Study) -> Table:
    """What the variance of a run of real decoding is made of, and how many runs the evaluation is worth."""
    compared = found.comparison
    own = compared.variance_account.filter((pl.col("measure") == compared.measure) & pl.col("luck").is_not_null())
    rows = [
        [
            named(row["contender"]), named(row["baseline"] or "-"),
            *(number(_percent(row[name]), ".2f") for name in ("evaluated", "one_run")),
            number(row["removed"], ".0%"), number(row["equivalent_runs"], ".1f"),
        ]
        for row in own.to_dicts()
    ]  # fmt: skip
    columns = (
        ("contender", False), ("against", False), ("error here, %", True), ("of one run, %", True),
        ("variance removed", True), ("worth runs", True),
    )  # fmt: skip
    return Table(columns, rows)


def _percent(variance: float | None) -> float | None:
    return None if variance is None else 100 * math.sqrt(variance)


def sweep(found: Study) -> Table:
    """The best draft length of each drafter, no speculation included."""
    names, rows = ("pooled_length", "pooled_low", "pooled_high"), []
    titles = ["best K", "tokens per round", "interval", "wasted drafts a round"]
    if found.price is not None:
        titles += ["speed-up", "interval"]
    for row in best_lengths(found.sweeps).to_dicts():
        length, low, high = (row[name] for name in names)
        wasted = row["wasted"] / row["rounds"] if row["rounds"] else None
        cells = [named(row["contender"]), number(row["draft_length"], "d"), number(length), between(low, high)]
        cells.append(number(wasted, ".2f"))
        if found.price is not None:
            cells += [number(row["speedup"]), between(row["speedup_low"], row["speedup_high"])]
        rows.append(cells)
    return Table((("drafter", False), *((title, True) for title in titles)), rows)


def best_lengths(sweeps: pl.DataFrame) -> pl.DataFrame:
    """Give the row of the best draft length of each contender of a sweep; of equals the smaller."""
    by = "speedup" if sweeps["speedup"].null_count() < len(sweeps) else "pooled_length"
    ranked = sweeps.sort(by, "draft_length", descending=[True, False], nulls_last=True)
    return ranked.unique("contender", keep="first", maintain_order=True)


def attributed(found: Study, name: str, group: Sequence[str]) -> Table:
    """A frame of the attribution: where the baseline takes more rounds than the contender."""
    frame: pl.DataFrame = getattr(found.attribution, name)
    a, b = found.attribution.contenders
    titles = {"acceptance_a": f"acceptance, {a}", "acceptance_b": f"acceptance, {b}"}
    titles |= {"rounds_a": f"rounds, {a}", "rounds_b": f"rounds, {b}"}
    figures = {key: title for key, title in titles.items() if key in frame.columns}
    counted = {title: frame.schema[title].is_numeric() for title in group}
    rows = []
    for row in frame.to_dicts():
        cells = [number(row[title], "d") if is_number else named(row[title]) for title, is_number in counted.items()]
        cells += [number(row[key], ".1%" if key.startswith("acceptance") else ".2f") for key in figures]
        rows.append([*cells, number(row["attributed"], "+.2f"), number(row["share"], ".1%")])
    numbers = [(title, True) for title in (*figures.values(), "rounds more", "share")]
    return Table((*counted.items(), *numbers), rows)


def starts(found: Study) -> list[dict[str, Any]]:
    """The starts that cost the baseline most, with the text around them."""
    rows: list[dict[str, Any]] = found.attribution.starts.to_dicts()
    return rows


def traces(found: Study) -> list[dict[str, Any]]:
    """The rollouts in which the pair differs most, token by token."""
    rows = {row["rollout"]: row for row in found.attribution.rollouts.to_dicts()}
    told = []
    for name, frames in found.traces.items():
        row = rows[name]
        figures = zip(found.attribution.contenders, (row["rounds_a"], row["rounds_b"]), frames, strict=True)
        shown = [
            {
                "contender": own,
                "rounds": rounds,
                "tokens": [_token(row) for row in frame.head(LONGEST_TRACE).to_dicts()],
            }
            for own, rounds, frame in figures
        ]
        told.append(row | {"shown": shown, "left": max(len(frames[0]) - LONGEST_TRACE, 0)})
    return told


def _token(row: Mapping[str, Any]) -> dict[str, str]:
    text = f"<{row['token']}>" if row["text"] is None else row["text"].replace("\n", "\u21b5\n")
    return {"text": text, "a": f"{row['drafted']:.2f}", "s": f"{row['start']:.2f}"}


def colors(found: Study) -> dict[str, str]:
    """A colour for each contender that charts show."""
    return dict(zip(found.shown, charts.PALETTE, strict=False))


def sweep_colors(found: Study) -> dict[str, str]:
    """A colour for each drafter of the sweep: that of its first contender."""
    own: dict[str, str] = {}
    trees = {result.contender for result in found.evaluations if "tree" in result.settings}
    for name, color in colors(found).items():
        if name not in trees:
            own.setdefault(str(replace(as_contender(name), draft_length=None)), color)
    return own


def figures(found: Study) -> dict[str, dict[str, Any]]:
    """The charts, by name."""
    own = colors(found)
    results = {result.contender: result for result in found.evaluations}
    shown = [results[name] for name in found.shown]
    made = {
        "forest": charts.forest(found.comparison),
        "depths": charts.depths(shown, own),
        "accepted": charts.accepted(shown, own),
        "spread": charts.spread(found.spread, own, SPREAD_WIDTH),
    }
    if len(found.sweeps):
        made["sweep"] = charts.sweep(found.sweeps, sweep_colors(found), best_lengths(found.sweeps))
    return made
