"""Tables of a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from markov_spec.comparison import Comparison
from markov_spec.report.tables import fitted, titled

FRAMES = ("contenders", "pairs", "benchmarks", "winners", "variance_account")
MOST_PAIRS = 10


def comparison_table(found: Comparison) -> Group:
    """Lay a comparison out for a terminal: the headline, contenders with their benchmarks, and pairs.

    Parameters
    ----------
    found : Comparison

    Returns
    -------
    rich.console.Group
        Of pairs the first ten, the best contenders' first.
    """
    own = {name: getattr(found, name).filter(pl.col("measure") == found.measure) for name in FRAMES[:3]}
    names = own["benchmarks"]["benchmark"].unique(maintain_order=True).to_list()
    table = titled("contender")
    for title in ("pooled", f"{100 * found.level:g} % interval", "macro mean", *names):
        table.add_column(escape(title), justify="right", no_wrap=True)
    parts = {row[:2]: row[2] for row in own["benchmarks"].select("contender", "benchmark", "pooled").iter_rows()}
    for row in own["contenders"].to_dicts():
        each = [f"{parts[row['contender'], name]:.4f}" for name in names]
        table.add_row(
            escape(row["contender"]), f"{row['pooled']:.4f}", _ends(row["pooled_low"], row["pooled_high"]),
            f"{row['macro_mean']:.4f}", *each,
        )  # fmt: skip
    pairs = titled("contender", "against")
    for title in ("ratio", f"{100 * found.level:g} % interval", "p", "corrected"):
        pairs.add_column(title, justify="right", no_wrap=True)
    pairs.add_column("verdict", no_wrap=True)
    for row in own["pairs"].head(MOST_PAIRS).to_dicts():
        pairs.add_row(
            escape(row["contender"]), escape(row["baseline"]), f"{row['ratio']:.4f}",
            _ends(row["ratio_low"], row["ratio_high"]), _chance(row["p"]), _chance(row["p_holm"]), row["verdict"],
        )  # fmt: skip
    left = len(own["pairs"]) - MOST_PAIRS
    told = (
        f"{found.measure.replace('_', ' ')}; {found.rollouts} rollouts of {found.prompts} prompts, which are resampled."
    )
    lines = [told] + [f"{left} more pairs in JSON and CSV."] * (left > 0)
    notes = [Text(f"note: {note}", style="yellow") for note in found.notes]
    shown: list[RenderableType] = [Text(found.headline, style="bold"), "", fitted(table), "", fitted(pairs), ""]
    return Group(*shown, *(Text(line, style="dim") for line in lines), *notes)


def comparison_json(store: Path, found: Comparison) -> str:
    """Give a comparison as one JSON object: ``headline``, ``notes`` and each frame as a list of rows.

    Parameters
    ----------
    store : Path
    found : Comparison

    Returns
    -------
    str
    """
    told: dict[str, Any] = {"store": str(store), "headline": found.headline, "notes": list(found.notes)}
    told |= {name: getattr(found, name) for name in ("measure", "primary", "baseline", "prompts", "rollouts")}
    told |= {"level": found.level, "margin": found.margin}
    told |= {name: getattr(found, name).to_dicts() for name in FRAMES}
    return json.dumps(told, indent=2) + "\n"


def _ends(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"{low:.4f} to {high:.4f}"


def _chance(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
