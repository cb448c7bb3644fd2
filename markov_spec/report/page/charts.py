"""Charts of the page, as Vega-Lite specifications without colours of the page's light or dark mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from markov_spec.comparison import Comparison
from markov_spec.comparison.cells import unit
from markov_spec.evaluation import Evaluation

# Legible on white and on black, and told apart by most colour-blind eyes.
PALETTE = ("#2f7fc1", "#e07b39", "#2fa36b", "#b65fb5", "#a8952a", "#d0524e", "#3aa6b0", "#8a7fd6")
VERDICTS = {"better": "#2fa36b", "worse": "#d0524e", "near-tie": "#a8952a", "equivalent": "#a8952a"}
UNDECIDED = "#8a8f98"
MOST_PAIRS = 12
ROW = 38  # pixels of a pair in the forest plot


def forest(found: Comparison) -> dict[str, Any] | None:
    """Draw the ratio of the first twelve pairs with its interval, the primary pair first; None if none has one."""
    import altair as alt

    own = found.own("pairs").head(MOST_PAIRS).drop_nulls(["ratio", "ratio_low"])
    rows = own.select(
        "ratio", "verdict", pair=pl.col("contender") + " against " + pl.col("baseline"), low="ratio_low",
        high="ratio_high",
    )  # fmt: skip
    if rows.is_empty():
        return None
    ends = float(min(rows["low"].min(), 1)), float(max(rows["high"].max(), 1))  # type: ignore[type-var, arg-type] # numbers
    x = (
        alt.X("low:Q")
        .title(f"ratio of {unit(found)}")
        .scale(type="log", domain=ends, nice=False, padding=12)
        .axis(values=_ticks(*ends), grid=False, labelExpr="datum.value", labelOverlap="greedy")
    )
    names = list(dict.fromkeys(rows["verdict"]))
    color = alt.Color("verdict:N").scale(domain=names, range=[VERDICTS.get(name, UNDECIDED) for name in names])
    tips = [alt.Tooltip("pair:N"), *(alt.Tooltip(f"{name}:Q", format=".4f") for name in ("ratio", "low", "high"))]
    base = alt.Chart(rows).encode(y=alt.Y("pair:N").sort(None).axis(None), tooltip=[*tips, alt.Tooltip("verdict:N")])
    return _spec(
        alt.layer(
            base.mark_tick(thickness=1.5, size=16, opacity=0.6, color="currentColor").encode(x=alt.datum(1)),
            base.mark_rule(strokeWidth=2).encode(x=x, x2="high:Q", color=color.legend(None)),
            base.mark_point(filled=True, size=70, opacity=1).encode(x="ratio:Q", color=color.legend(None)),
            base.mark_text(align="left", dy=-16, color="currentColor", limit=330).encode(x=alt.value(0), text="pair:N"),
        ),
        "Ratio of each pair of contenders with its interval; 1 means no difference",
        height=ROW * len(rows),
    )


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two ratios, some eight at most: the coarsest step that gives three or more."""
    for step in (5.0, 2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005):
        values = np.round(np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step, 6)
        if len(values) >= 3:
            return sorted({1.0, *values[values > 0].tolist()})
    return [1.0]


def depths(shown: Sequence[Evaluation], colors: Mapping[str, str]) -> dict[str, Any]:
    """Draw the acceptance of each depth, of the rounds that tested it."""
    import altair as alt

    rows = [
        {"contender": result.contender, "depth": depth, "rate": rate}
        for result in shown
        for depth, rate in enumerate(result.results()[0]["acceptance_by_depth"]["conditional"], 1)
        if rate is not None
    ]
    frame = pl.DataFrame(rows, schema={"contender": pl.String, "depth": pl.Int64, "rate": pl.Float64})
    chart = (
        alt.Chart(frame)
        .mark_line(point=True)
        .encode(
            alt.X("depth:O").title("depth").axis(labelAngle=0, labelOverlap=True),
            alt.Y("rate:Q").title("acceptance").scale(domain=[0, 1]).axis(format="%", tickCount=5),
            _color(colors),
            tooltip=["contender:N", "depth:O", alt.Tooltip("rate:Q", format=".2%")],
        )
    )
    return _spec(chart, "Acceptance of each depth among the rounds that tested it, by contender")


def accepted(shown: Sequence[Evaluation], colors: Mapping[str, str]) -> dict[str, Any]:
    """Draw the share of the rounds that accept exactly so many drafts."""
    import altair as alt

    rows = []
    for result in shown:
        counts = result.accepted_histogram.sum(axis=0)
        total = float(counts.sum())
        rows += [
            {"contender": result.contender, "drafts": k, "share": float(count) / total}
            for k, count in enumerate(counts)
            if total
        ]
    frame = pl.DataFrame(rows, schema={"contender": pl.String, "drafts": pl.Int64, "share": pl.Float64})
    order = [result.contender for result in shown]
    chart = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            alt.X("drafts:O").title("accepted drafts of a round").axis(labelAngle=0, labelOverlap=True),
            alt.Y("share:Q").title("share of the rounds").axis(format="%", tickCount=5),
            alt.XOffset("contender:N").sort(order),
            _color(colors),
            tooltip=["contender:N", "drafts:O", alt.Tooltip("share:Q", format=".2%")],
        )
    )
    return _spec(chart, "Histogram of the accepted length: share of the rounds that accept exactly so many drafts")


def spread(rows: pl.DataFrame, colors: Mapping[str, str]) -> dict[str, Any]:
    """Draw how the rounds that 100 tokens take are distributed over runs of decoding."""
    import altair as alt

    chart = (
        alt.Chart(rows)
        .mark_line(interpolate="step-after")
        .encode(
            alt.X("rounds_per_100:Q").title("rounds for 100 tokens").scale(zero=False, nice=False),
            alt.Y("share:Q").title("share of the runs").axis(format="%", tickCount=5),
            _color(colors),
            tooltip=["contender:N", alt.Tooltip("rounds_per_100:Q"), alt.Tooltip("share:Q", format=".2%")],
        )
    )
    return _spec(chart, "Distribution of the rounds that a run of decoding takes for 100 tokens, by contender")


def sweep(rows: pl.DataFrame, colors: Mapping[str, str], ringed: pl.DataFrame) -> dict[str, Any]:
    """Draw every draft length: speed-up if there is a price, else pooled length, with intervals."""
    import altair as alt

    stem, title = ("speedup", "speed-up") if _priced(rows) else ("pooled", "tokens per round")
    value = "speedup" if stem == "speedup" else "pooled_length"
    x = alt.X("draft_length:Q").title("draft length").axis(tickMinStep=1, format="d")
    y = alt.Y(f"{value}:Q").title(title).scale(zero=False)
    tips = ["contender:N", "draft_length:Q", alt.Tooltip(f"{value}:Q", format=".4f")]
    band = alt.Chart(rows.drop_nulls(f"{stem}_low")).mark_area(opacity=0.15).encode(
        x, alt.Y(f"{stem}_low:Q").title(title), alt.Y2(f"{stem}_high:Q"), _color(colors)
    )  # fmt: skip
    line = alt.Chart(rows).mark_line(point=True).encode(x, y, _color(colors), tooltip=tips)
    marked = alt.Chart(ringed).mark_point(size=160, strokeWidth=2).encode(x, y, _color(colors), tooltip=tips)
    return _spec(alt.layer(band, line, marked), f"{title} by draft length".capitalize())


def _priced(rows: pl.DataFrame) -> bool:
    return rows["speedup"].null_count() < len(rows)


def _color(colors: Mapping[str, str]) -> Any:
    import altair as alt

    return alt.Color("contender:N").scale(domain=list(colors), range=list(colors.values())).legend(None)


def _spec(chart: Any, told: str, height: int = 260) -> dict[str, Any]:
    ink = {"labelColor": "currentColor", "titleColor": "currentColor"}
    axis = {**ink, "gridColor": "#8888", "gridOpacity": 0.35, "domainColor": "#888", "tickColor": "#888"}
    spec: dict[str, Any] = (
        chart.properties(width="container", height=height, description=told, background="transparent")
        .configure(font="inherit", autosize={"type": "fit-x", "contains": "padding"})
        .configure_axis(**axis, labelFontSize=12, titleFontSize=12, titleFontWeight="normal")
        .configure_view(stroke=None)
        .to_dict()
    )
    return spec
