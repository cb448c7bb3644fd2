"""Tables and the chart of certificates."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from rich.console import Group, RenderableType
from rich.text import Text

from markov_spec.arrays import RequestError
from markov_spec.evaluation import Certificates
from markov_spec.evaluation.certificates import PROMISES
from markov_spec.report.sheet import plain
from markov_spec.report.tables import escape, fitted, titled

CURVE_POINTS = 200
LOOSEST = 5
BINS, WITHIN = 20, 0.99  # of a plot, and the share of the drafts that they hold, the last one aside
COLORS = {"guaranteed at this KL everywhere": "#8a8f98", "certified": "#3b8bd4", "accepted": "#e08214"}
WIDTH = 560
INK = "currentColor"  # of the page, light or dark


def certificates_table(
    found: Certificates, groups: Sequence[str], target_length: float | None, needed: float | None
) -> Group:
    """Lay certificates out for a terminal.

    Parameters
    ----------
    found : Certificates
    groups : sequence of {"benchmark", "margin", "depth"}
        A table for each.
    target_length, needed : float, optional
        The pooled length that was asked for, and the divergence that guarantees it.

    Returns
    -------
    rich.console.Group
    """
    parts: list[RenderableType] = []
    for group in groups:
        table = titled(group)
        assumed = "kl" in found.settings
        titles = ["drafts", "assumed KL" if assumed else "mean KL", "mean threshold", "certified", "accepted"]
        partly = bool((found.summary(group)["known"] < 1).any())
        for title in titles + ["accepted known of"] * partly:
            table.add_column(title, justify="right", no_wrap=True)
        for row in found.summary(group).to_dicts():
            shares = ["-" if row[name] is None else f"{row[name]:.1%}" for name in ("certified", "accepted")]
            means = ["-" if row[name] is None else f"{row[name]:.4f}" for name in ("mean_kl", "mean_threshold")]
            table.add_row(
                escape(str(row[group])), str(row["drafts"]), *means, *shares, *([f"{row['known']:.1%}"] * partly)
            )
        parts += [fitted(table), ""]
    run = found.run_length() if found.rule in PROMISES and found.greedy else None
    rule = ", ".join([found.rule, *(f"{name}={value:g}" for name, value in found.settings.items())])
    lines = [f"rule {rule}; KL(target || drafter) and thresholds in nats; certified: KL below the threshold."]
    if run is not None:
        lines.append(
            f"On average {run:.2f} of the {found.draft_length} drafts from a start are certified one after the other."
        )
    if "kl" in found.settings and found.greedy and found.rule in PROMISES:
        length = found.guaranteed_length(float(found.settings["kl"]))
        exceeded = any(note.startswith("KL is assumed") for note in found.notes)
        held = "Would be guaranteed at this KL, if it held" if exceeded else "Guaranteed at this KL"
        lines.append(f"{held}: {length:.4f} tokens per round (bound).")
    if target_length is not None:
        told = "no divergence guarantees it"
        if needed is not None:
            told = (
                "always certain"
                if math.isinf(needed)
                else f"guaranteed where KL < {_floored(needed)} at every position"
            )
        lines.append(f"A pooled length of {target_length:g} (K = {found.draft_length}): {told} (bound).")
    missed = found.loosest(LOOSEST).to_dicts()
    if missed:
        places = ", ".join(
            f"{row['rollout']} at {row['position']}, depth {row['depth']} (KL {row['kl']:.3g})" for row in missed
        )
        lines.append(f"Loosest, accepted above the threshold: {places}.")
    notes = [Text(plain(f"note: {note}"), style="yellow") for note in found.notes]
    return Group(*parts, *(Text(plain(line), style="dim") for line in lines), *notes)


def _floored(value: float) -> str:
    """Give a number to four digits, rounded down: what is promised below it must hold."""
    step = 10.0 ** (math.floor(math.log10(value)) - 3) if value > 0 else 1.0
    return f"{math.floor(value / step) * step:.4g}"


def certificates_csv(found: Certificates, groups: Sequence[str]) -> str:
    """Give the figures of ``Certificates.summary`` as CSV: a row for each group, with ``by`` and ``group`` first."""
    frames = []
    for by in groups:
        frame = found.summary(by)
        frames.append(frame.select(pl.lit(by).alias("by"), pl.col(by).cast(pl.String).alias("group"), pl.exclude(by)))
    return pl.concat(frames).write_csv()


def write_drafts(found: Certificates, path: Path) -> None:
    """Write the rows of ``Certificates.to_frame`` range by range: as CSV if the path ends in ``.csv``, else Parquet."""
    frames = found.frames()
    first = next(frames)
    if path.suffix == ".csv":
        with path.open("wb") as file:
            first.write_csv(file)
            for frame in frames:
                frame.write_csv(file, include_header=False)
        return
    table = first.to_arrow()
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        for frame in frames:
            writer.write_table(frame.to_arrow())


def certificates_plot(found: Certificates, path: Path) -> None:
    """Write a self-contained page: certified and accepted share of the drafts against their divergence, and how many.

    Parameters
    ----------
    found : Certificates
    path : Path

    Raises
    ------
    RequestError
        If the extra ``report`` is not installed.
    """
    if any(importlib.util.find_spec(name) is None for name in ("altair", "vl_convert")):
        raise RequestError("a plot needs altair and vl-convert: pip install '.[report]'")
    page = certificates_chart(found).to_html(inline=True, embed_options={"renderer": "svg"})
    page = page.replace("<head>", '<head>\n  <meta name="color-scheme" content="light dark">', 1)
    path.write_text(page, encoding="utf-8")


def _bins(found: Certificates) -> tuple[pl.DataFrame, float]:
    """Count and average drafts by divergence, in bins of a round width; the last has all beyond, if there are any.

    Gives a row for each bin that has any, ``low``, ``range`` in words, ``drafts``, ``certified`` and ``accepted``, and
    the width.
    """
    divergences = pl.concat([frame["kl"] for frame in found.frames()])
    finite = divergences.filter(divergences.is_finite())
    least = float(finite.quantile(WITHIN, "higher") or 1.0) / BINS
    scale = 10.0 ** math.floor(math.log10(least))
    width = next(step * scale for step in (1, 2, 2.5, 5, 10) if step * scale > least)
    sums = [
        frame.group_by(bin=(pl.col("kl") / width).clip(0, BINS).cast(pl.Int64)).agg(
            pl.len().alias("drafts"),
            pl.col("certified").sum(),
            pl.col("accepted").sum(),
            pl.col("accepted").count().alias("known"),
        )
        for frame in found.frames()
    ]
    total = pl.concat(sums).group_by("bin").sum().sort("bin")
    low = [width * i for i in total["bin"]]
    told = [f"{at:g} to {at + width:g}" if at < width * BINS else f"{at:g} and beyond" for at in low]
    bins = total.select(
        pl.Series("low", low), pl.Series("range", told), "drafts", certified=pl.col("certified") / pl.col("drafts"),
        accepted=pl.when(pl.col("known") > 0).then(pl.col("accepted") / pl.col("known")),
    )  # fmt: skip
    return bins, width


def certificates_chart(found: Certificates) -> Any:
    """Draw the promise as a curve, the shares of each bin as points, and below them how many drafts a bin has.

    Parameters
    ----------
    found : Certificates

    Returns
    -------
    altair.VConcatChart
        In the colour of the text around it, on no background.
    """
    import altair as alt

    bins, width = _bins(found)
    end, told, values = BINS * width, "KL(target || drafter), nats", [width * i for i in range(0, BINS, BINS // 5)]
    bins = bins.with_columns(kl=pl.col("low") + width / 2, high=pl.col("low") + width, beyond=pl.col("low") >= end)
    beyond = bool(bins["beyond"].any())
    axis: dict[str, Any] = {"format": "~g", "values": values + [end + width / 2] * beyond}
    if beyond:
        told += f"; more: {end:g} and beyond, in one bin"
        axis["labelExpr"] = f"datum.value > {end} ? 'more' : datum.label"
    scale = alt.Scale(domain=[0, end + width * beyond], nice=False)
    above = _shares(
        found, bins, alt.X("kl:Q", axis=alt.Axis(**{**axis, "labels": False}), scale=scale, title=None), end
    )
    below = _counts(bins, alt.X("low:Q", axis=alt.Axis(**axis), scale=scale, title=told))
    title = f"{found.contender}, rule {found.rule}"
    return (
        alt.vconcat(above, below, title=title, background="transparent", spacing=8)
        .configure_axis(labelColor=INK, titleColor=INK, tickColor=INK, domainColor=INK, gridColor=INK, gridOpacity=0.15)
        .configure_title(color=INK, anchor="start")
        .configure_legend(labelColor=INK)
        .configure_view(stroke=None)
    )


def _shares(found: Certificates, bins: pl.DataFrame, x: Any, end: float) -> Any:
    import altair as alt

    promise, *measured = COLORS
    grid = np.linspace(0, end, CURVE_POINTS)
    curve = pl.DataFrame({"kl": grid, "share": found.share_at(grid), "what": [promise] * grid.size})
    index = ["kl", "beyond", "drafts", "range"]
    points = bins.unpivot(measured, index=index, variable_name="what", value_name="share")
    colors = alt.Scale(domain=list(COLORS), range=list(COLORS.values()))
    encoded = {
        "x": x,
        "y": alt.Y("share:Q", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]), title="share of the drafts"),
        "color": alt.Color("what:N", scale=colors, legend=alt.Legend(title=None, orient="top", labelLimit=300)),
    }
    line, dots = alt.Chart(curve).mark_line(strokeDash=[6, 4]), alt.Chart(points).mark_line(point={"size": 40})
    shown = dots.encode(**encoded, detail="beyond:N", tooltip=["range:N", "drafts:Q", "what:N", "share:Q"])
    return alt.layer(line.encode(**encoded), shown).properties(width=WIDTH, height=300)


def _counts(bins: pl.DataFrame, x: Any) -> Any:
    import altair as alt

    none = alt.Axis(labels=False, ticks=False, grid=False)  # each bar has its number
    y = alt.Y("drafts:Q", axis=none, scale=alt.Scale(type="symlog"), title="drafts (log)")
    bars = alt.Chart(bins).encode(x, alt.X2("high:Q"), y, alt.Y2(datum=0), tooltip=["range:N", "drafts:Q"])
    told = alt.Chart(bins).mark_text(dy=-7, fontSize=9, color=INK)
    numbers = told.encode(alt.X("kl:Q"), y, alt.Text("drafts:Q", format=".2~s"))
    return (bars.mark_bar(color=COLORS["certified"], opacity=0.6) + numbers).properties(width=WIDTH, height=110)
