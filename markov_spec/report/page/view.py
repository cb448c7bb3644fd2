"""What stands on the page: tables and figures of a study, as text and numbers for its template."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from markov_spec.comparison.cells import unit
from markov_spec.evaluation import Evaluation, Study
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


def seen(text: str) -> str:
    """Show control characters, but for tabs and ends of lines, as their pictures."""
    return "".join(chr(0x2400 + ord(one)) if ord(one) < 32 and one not in "\t\n" else one for one in text)


def named(text: str) -> Cell:
    """Show a name."""
    return Cell(seen(text), seen(text), "named")


def contenders(found: Study) -> Table:
    """A row for each contender, with what each benchmark gives."""
    compared = found.comparison
    parts = compared.own("benchmarks")
    benchmarks = parts["benchmark"].unique(maintain_order=True).to_list()
    pooled = dict(zip(parts.select("contender", "benchmark").iter_rows(), parts["pooled"], strict=True))
    results = {result.contender: result for result in found.evaluations}
    priced = compared.measure != "tokens_per_round"
    form = ".4g" if priced else ".4f"
    rows = []
    for row in compared.own("contenders").to_dicts():
        result = results[row["contender"]]
        figures = [number(row[name], form) for name in ("macro_mean", "request_mean")]
        if priced:
            figures += [number(row["speedup"]), between(row["speedup_low"], row["speedup_high"])]
            figures.append(number(result.pooled_length))
        rows.append(
            [
                named(row["contender"]), Cell(_rule(result)), number(result.draft_length, "d"),
                number(row["pooled"], form), between(row["pooled_low"], row["pooled_high"], form), *figures,
                *(number(pooled[row["contender"], name], form) for name in benchmarks), Cell(result.exactness),
            ]
        )  # fmt: skip
    numbers = ["K", unit(compared) if priced else "pooled", "interval", "macro mean", "request mean"]
    numbers += ["speed-up", "interval", "tokens per round"] * priced + benchmarks
    columns = (("contender", False), ("rule", False), *((name, True) for name in numbers), ("figures are", False))
    return Table(columns, rows)


def _rule(result: Evaluation) -> str:
    return " ".join([result.rule, *(f"{name}={value}" for name, value in result.settings.items())])


def benchmarks(found: Study) -> Table:
    """A row for each benchmark and contender that charts show, with the ratio to the pair's baseline."""
    compared = found.comparison
    form = ".4f" if compared.measure == "tokens_per_round" else ".4g"
    own = compared.own("benchmarks").filter(pl.col("contender").is_in(found.shown))
    rows = [
        [
            named(row["benchmark"]), named(row["contender"]), number(row["prompts"], "d"), number(row["pooled"], form),
            between(row["pooled_low"], row["pooled_high"], form), number(row["ratio"]),
            between(row["ratio_low"], row["ratio_high"]),
        ]
        for row in own.to_dicts()
    ]  # fmt: skip
    titles = ("prompts", "figure", "interval", f"ratio to {compared.primary[1]}", "interval")
    return Table((("benchmark", False), ("contender", False), *((title, True) for title in titles)), rows)


def pairs(found: Study) -> Table:
    """A row for each pair."""
    compared = found.comparison
    own = compared.own("pairs").head(MOST_ROWS)
    alike = [] if compared.margin is None else ["p of equivalence"]
    titles = ("ratio", "interval", "bootstrap", "p", "corrected", *alike, "without one prompt")
    columns = (("contender", False), ("against", False), ("verdict", False), *((title, True) for title in titles))
    rows = [
        [
            named(row["contender"]), named(row["baseline"]), Cell(row["verdict"]), number(row["ratio"]),
            between(row["ratio_low"], row["ratio_high"]), between(row["ratio_bca_low"], row["ratio_bca_high"]),
            number(row["p"], ".2g"), number(row["p_holm"], ".2g"),
            *(number(row["p_equivalence"], ".2g") for _ in alike),
            between(row["leave_one_out_low"], row["leave_one_out_high"]),
        ]
        for row in own.to_dicts()
    ]  # fmt: skip
    return Table(columns, rows)


def luck(found: Study) -> Table:
    """What the variance of a run of real decoding is made of, and how many runs the evaluation is worth."""
    compared = found.comparison
    own = compared.own("variance_account").drop_nulls("luck")
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
    """The best draft length of each drafter under the price, no speculation included; without one the longest."""
    priced = found.price is not None
    titles = ["best K" if priced else "longest K", "tokens per round", "interval", "wasted drafts a round"]
    rows = []
    for row in best_lengths(found.sweeps).to_dicts():
        wasted = row["wasted"] / row["rounds"] if row["rounds"] else None
        cells = [named(row["contender"]), number(row["draft_length"], "d"), number(row["pooled_length"])]
        cells += [between(row["pooled_low"], row["pooled_high"]), number(wasted, ".2f")]
        if priced:
            cells += [number(row["speedup"]), between(row["speedup_low"], row["speedup_high"])]
        rows.append(cells)
    titles += ["speed-up", "interval"] * priced
    return Table((("drafter", False), *((title, True) for title in titles)), rows)


def best_lengths(sweeps: pl.DataFrame) -> pl.DataFrame:
    """Give the row of the best draft length of each drafter by speed-up, of equals the smaller; else the longest."""
    priced = sweeps["speedup"].null_count() < len(sweeps)
    by = ["speedup", "draft_length"] if priced else ["draft_length"]
    ranked = sweeps.sort(by, descending=[True, False] if priced else True, nulls_last=True)
    return ranked.unique("contender", keep="first", maintain_order=True)


def compared_lengths(found: Study) -> pl.DataFrame:
    """Give the rows of a sweep at which its drafters are compared."""
    lengths = {result.contender: result.draft_length for result in found.evaluations}
    wanted = {"contender": list(found.sweep_of.values()), "draft_length": [lengths[name] for name in found.sweep_of]}
    own = pl.DataFrame(wanted, schema={"contender": pl.String, "draft_length": pl.Int64})
    return found.sweeps.join(own.unique(), on=["contender", "draft_length"], how="semi")


def classes(found: Study) -> list[tuple[str, Table]]:
    """The attribution by each kind of token class, under its title."""
    titles = {
        "position": "By position in the rollout (tokens)",
        "entropy": "By entropy of the target (nats)",
        "margin": "By margin of the target: its best probability less its second",
        "text": "By text of the token",
    }
    kinds = found.attribution.by_class.partition_by("kind", maintain_order=True)
    return [(titles[own["kind"][0]], attributed(found, own, ("class",))) for own in kinds]


def attributed(found: Study, frame: pl.DataFrame, group: Sequence[str]) -> Table:
    """A frame of the attribution: where the baseline takes more rounds than the contender."""
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
    rows = found.attribution.starts.to_dicts()
    return [{key: seen(value) if isinstance(value, str) else value for key, value in row.items()} for row in rows]


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
    text = f"<{row['token']}>" if row["text"] is None else seen(row["text"]).replace("\n", "\u21b5\n")
    return {"text": text, "a": f"{row['drafted']:.2f}", "s": f"{row['start']:.2f}"}


def colors(found: Study) -> dict[str, str]:
    """A colour for each contender that charts show."""
    return dict(zip(found.shown, charts.PALETTE, strict=False))


def sweep_colors(found: Study) -> dict[str, str]:
    """A colour for each drafter of the sweep: that of its first contender."""
    own, chosen = colors(found), dict[str, str]()
    for name, sweep in found.sweep_of.items():
        chosen.setdefault(sweep, own[name])
    return chosen


def figures(found: Study) -> dict[str, dict[str, Any]]:
    """The charts, by name."""
    own = colors(found)
    results = {result.contender: result for result in found.evaluations}
    shown = [results[name] for name in found.shown]
    made: dict[str, Any] = {
        "forest": charts.forest(found.comparison),
        "depths": charts.depths(shown, own),
        "accepted": charts.accepted(shown, own),
        "spread": charts.spread(found.spread, own) if len(found.spread) else None,
    }
    if len(found.sweeps):
        ringed = compared_lengths(found) if found.price is None else best_lengths(found.sweeps)
        made["sweep"] = charts.sweep(found.sweeps, sweep_colors(found), ringed)
    return {name: spec for name, spec in made.items() if spec is not None}
