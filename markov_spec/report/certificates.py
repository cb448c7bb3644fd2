"""Tables and the chart of certificates."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from markov_spec.arrays import RequestError
from markov_spec.evaluation import Certificates
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
        for title in ("drafts", "mean KL", "mean threshold", "certified", "accepted"):
            table.add_column(title, justify="right", no_wrap=True)
        for row in found.summary(group).to_dicts():
            shares = ["-" if row[name] is None else f"{row[name]:.1%}" for name in ("certified", "accepted")]
            means = ["-" if row[name] is None else f"{row[name]:.4f}" for name in ("mean_kl", "mean_threshold")]
            table.add_row(escape(str(row[group])), str(row["drafts"]), *means, *shares)
        parts += [fitted(table), ""]
    run = found.run_length()
    lines = [f"rule {found.rule}; KL(target || drafter) and thresholds in nats; certified: KL below the threshold."]
    if run is not None:
        lines.append(f"On average {run:.2f} drafts after each other are certified from a start.")
    if target_length is not None:
        told = (
            "no divergence guarantees it" if needed is None else f"guaranteed where KL < {needed:.4g} at every position"
        )
        lines.append(f"A pooled length of {target_length:g} (K = {found.draft_length}): {told} (bound).")
    missed = found.loosest(LOOSEST).to_dicts()
    if missed:
        places = ", ".join(f"{row['rollout']} at {row['position']} (KL {row['kl']:.3g})" for row in missed)
        lines.append(f"Loosest, accepted far above the threshold: {places}.")
    return Group(*parts, *(Text(line, style="dim") for line in lines))


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
        raise RequestError("a plot needs altair and vl-convert: pip install 'markov-spec[report]'")
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
