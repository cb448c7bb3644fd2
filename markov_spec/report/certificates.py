"""Tables and the chart of certificates."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from markov_spec.arrays import RequestError
from markov_spec.evaluation import Certificates
from markov_spec.evaluation.certificates import PROMISES
from markov_spec.report.tables import fitted, titled

CURVE_POINTS = 200
LOOSEST = 5


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
        lines.append(f"Guaranteed at this KL: {length:.4f} tokens per round (bound).")
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
    notes = [Text(f"note: {note}", style="yellow") for note in found.notes]
    return Group(*parts, *(Text(line, style="dim") for line in lines), *notes)


def _floored(value: float) -> str:
    """Give a number to four digits, rounded down: what is promised below it must hold."""
    step = 10.0 ** (math.floor(math.log10(value)) - 3) if value > 0 else 1.0
    return f"{math.floor(value / step) * step:.4g}"


def certificates_plot(found: Certificates, path: Path) -> None:
    """Write a self-contained page: certified and accepted share of the drafts against their divergence.

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
    import altair as alt

    finite = found.frame.filter(pl.col("kl").is_finite())
    top = float(finite["kl"].quantile(0.99) or 1.0)
    grid = np.linspace(0, max(top, 1e-6), CURVE_POINTS)
    curve = pl.DataFrame(
        {"kl": grid, "share": found.share_at(grid), "what": ["guaranteed at this KL everywhere"] * grid.size}
    )
    bins = finite.with_columns(kl=(pl.col("kl") / top * 20).floor().clip(0, 19) * top / 20 + top / 40)
    means = bins.group_by("kl").agg(pl.col("certified").mean(), pl.col("accepted").mean()).sort("kl")
    measured = means.unpivot(index="kl", variable_name="what", value_name="share")
    lines = pl.concat([curve.select("kl", "what", "share"), measured.select("kl", "what", "share")]).drop_nulls()
    chart = (
        alt.Chart(lines)
        .mark_line()
        .encode(
            alt.X("kl:Q").title("KL(target || drafter), nats"),
            alt.Y("share:Q").title("share of the drafts").axis(format="%"),
            alt.Color("what:N").title(None),
        )
        .properties(width=520, height=320, title=f"{found.contender}, rule {found.rule}")
    )
    path.write_text(chart.to_html(inline=True), encoding="utf-8")
