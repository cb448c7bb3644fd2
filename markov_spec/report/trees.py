"""Tables of node budgets: the curve, and the rules that set a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from rich.console import Group
from rich.text import Text

from markov_spec.drafting import Calibration
from markov_spec.report.sheet import plain
from markov_spec.report.tables import fitted, titled

MOST_ROWS = 24


def curve_table(frame: pl.DataFrame, notes: Sequence[str] = ()) -> Group:
    """Lay a curve of budgets out for a terminal; of more than 24 budgets the powers of two, the ends and the best.

    Parameters
    ----------
    frame : polars.DataFrame
        As from ``budget_curve``.
    notes : sequence of str

    Returns
    -------
    rich.console.Group
    """
    priced = frame["expected_price"].null_count() == 0
    table = titled("budget")
    names = ["nodes", "rounds", "pooled length", "95% interval"] + [
        "price per token",
        "speed-up",
        "95% interval",
    ] * priced
    for title in names:
        table.add_column(title, justify="right", no_wrap=True)
    table.columns[0].justify = "right"
    open_rounds = bool((frame["uncertain_rounds"] > 0).any())
    if open_rounds:
        table.add_column("open rounds", justify="right", no_wrap=True)
    best = _best(frame, priced)
    for row in frame.to_dicts():
        n = row["budget"]
        if len(frame) > MOST_ROWS and n not in (0, best, frame["budget"][-1]) and n & (n - 1):
            continue
        cells = [
            str(n),
            _number(row["nodes_per_round"], 1),
            str(row["rounds"]),
            *_interval(row, "pooled_length", "pooled"),
        ]
        if priced:
            cells += [_number(row["price_per_token"], 6), *_interval(row, "speedup", "speedup")]
        if open_rounds:
            cells.append(f"{row['uncertain_rounds'] / max(row['rounds'], 1):.1%}")
        table.add_row(*cells, style="bold" if n == best else None)
    told = "exact" if not open_rounds else "bound where rounds are open: lists too short to tell all nodes; else exact"
    line = f"{told}. Nodes are those of a tree, the root not counted; 0 is no speculation. Intervals: other prompts."
    if len(frame) > MOST_ROWS:
        line += f" {table.row_count} of {len(frame)} budgets are shown."
    return Group(fitted(table), Text(line, style="dim"), *_told(notes))


def optimum_table(frame: pl.DataFrame, notes: Sequence[str]) -> Group:
    """Lay rules of budgets out for a terminal.

    Parameters
    ----------
    frame : polars.DataFrame
        As ``BudgetOptimum.frame``.
    notes : sequence of str

    Returns
    -------
    rich.console.Group
    """
    split = frame["rollouts"].n_unique() > 1
    table = titled(*(["rollouts"] if split else []), "rule")
    for title in ("budget", "nodes a round", "pooled length", "price per token", "speed-up", "95% interval", "regret"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in frame.to_dicts():
        table.add_row(
            *([row["rollouts"]] if split else []),
            row["rule"],
            "-" if row["budget"] is None else str(row["budget"]),
            _number(row["nodes_per_round"], 1),
            _number(row["pooled_length"], 4),
            _number(row["price_per_token"], 6),
            *_interval(row, "speedup", "speedup"),
            "-" if row["regret"] is None else f"{row['regret']:.1%}",
            row["exactness"],
        )
    line = (
        "Speed-up over no speculation. Regret: price over that of the best budget from every start (clairvoyant), "
        "which knows the rollout and which no engine attains."
    )
    return Group(fitted(table), Text(line, style="dim"), *_told(notes))


def _told(notes: Sequence[str]) -> list[Text]:
    return [Text(plain(f"note: {note}"), style="yellow") for note in notes]


def calibration_table(found: Calibration) -> Group:
    """Lay out what a drafter promises and what is kept, by budget and depth.

    Parameters
    ----------
    found : Calibration

    Returns
    -------
    rich.console.Group
    """
    table = titled("marginals")
    for title in ("budget", "certain", "pooled length", "promised", "kept"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("promised/kept at depth 1, 2, ...")
    for row in found.by_budget.to_dicts():
        same = (pl.col("marginals") == row["marginals"]) & (pl.col("budget") == row["budget"])
        deep = found.by_depth.filter(same).sort("depth").to_dicts()
        table.add_row(
            row["marginals"],
            str(row["budget"]),
            f"{row['certain']:.0%}",
            _number(row["pooled_length"], 4),
            _number(row["expected_occupied"], 3),
            _number(row["realised_occupied"], 3),
            " ".join(f"{_share(own['expected_occupied'])}/{_share(own['realised_occupied'])}" for own in deep),
        )
    line = (
        f"{found.rollouts} rollouts. Accepted drafts a round: promised by the probabilities of the tree's nodes, and "
        "kept. Certain: starts whose lists tell the drafter's whole tree; the others' is of listed tokens."
    )
    return Group(fitted(table), Text(line, style="dim"))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}".removeprefix("0")


def _best(frame: pl.DataFrame, priced: bool) -> int:
    by = frame["expected_price"] if priced else frame["rounds"].cast(pl.Float64)
    return int(frame["budget"][by.arg_min() or 0])


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _interval(row: dict[str, Any], name: str, stem: str) -> list[str]:
    low, high = row[f"{stem}_low"], row[f"{stem}_high"]
    return [_number(row[name], 4), "-" if low is None else f"{low:.3f} to {high:.3f}"]
