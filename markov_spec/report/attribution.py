"""Tables of an attribution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from markov_spec.evaluation import Attribution
from markov_spec.evaluation.attribution import FRAMES
from markov_spec.report.sheet import Sheet, plain

SHOWN = 5  # starts and rollouts in a terminal
WIDTH = 28  # characters of text on each side of a start
FIELDS = ("headline", "contenders", "rounds", "difference", "tokens", "first_start", "exactness", "notes")
# Columns of a frame, their titles and formats.
ROUNDS = {"rounds_a": ("rounds a", "{:.2f}"), "rounds_b": ("rounds b", "{:.2f}")}
TESTS = {
    "tested_a": ("tests a", "{:.0f}"),
    "tested_b": ("tests b", "{:.0f}"),
    "acceptance_a": ("accepted a", "{:.4f}"),
    "acceptance_b": ("accepted b", "{:.4f}"),
}
SHARES = {"attributed": ("difference", "{:+.2f}"), "share": ("share", "{:.1%}")}
STARTS = {
    "position": ("at", "{}"),
    "occupancy_a": ("starts a", "{:.2f}"),
    "occupancy_b": ("starts b", "{:.2f}"),
    "accepted_a": ("drafts a", "{:.2f}"),
    "accepted_b": ("drafts b", "{:.2f}"),
    "attributed": ("difference", "{:+.3f}"),
}
ROLLOUTS = {"tokens": ("tokens", "{}"), **ROUNDS, "difference": ("difference", "{:+.2f}")}
LEGEND = (
    "difference: rounds of b less those of a. tests: expected drafts tested, of which the share accepted. A class is "
    "that of the drafted token. starts: probability that a round starts there, and expected drafts that it accepts."
)


def attribution_table(found: Attribution) -> Group:
    """Lay an attribution out for a terminal: by depth, benchmark and class, and where most of it is.

    Parameters
    ----------
    found : Attribution

    Returns
    -------
    rich.console.Group
        Of starts and rollouts the first five.
    """
    a, b = found.contenders
    shown: list[RenderableType] = [
        Text(plain(found.headline), style="bold"),
        Text(plain(f"a: {a}; b: {b}"), style="dim"),
    ]
    shown += ["", _table(found.by_depth, {"depth": "depth"}, {**TESTS, **SHARES})]
    shown += ["", _table(found.by_benchmark, {"benchmark": "benchmark"}, {**ROUNDS, **SHARES})]
    shown += [
        "",
        _table(found.by_class, {"kind": "class by", "class": ""}, {"tokens": ("tokens", "{}"), **TESTS, **SHARES}),
    ]
    starts = found.starts.head(SHOWN).to_dicts()
    if starts:
        texts = [None if row["before"] is None else _around(row["before"], row["after"]) for row in starts]
        shown += ["", _table(found.starts.head(SHOWN), {"rollout": "b loses most"}, STARTS, texts)]
    if len(found.rollouts):
        texts = [None if text is None else _clipped(plain(text), 2 * WIDTH) for text in found.rollouts["text"][:SHOWN]]
        shown += ["", _table(found.rollouts.head(SHOWN), {"rollout": "differ most"}, ROLLOUTS, texts)]
    notes = [Text(plain(f"note: {note}"), style="yellow") for note in found.notes]
    return Group(*shown, "", Text(LEGEND, style="dim"), *notes)


def attribution_json(store: Path, found: Attribution) -> str:
    """Give an attribution as one JSON object: its fields, and each frame as a list of rows.

    Parameters
    ----------
    store : Path
    found : Attribution

    Returns
    -------
    str
    """
    told: dict[str, Any] = {"store": str(store), **{name: getattr(found, name) for name in FIELDS}}
    told |= {name: getattr(found, name).to_dicts() for name in ("per_rollout", *FRAMES)}
    return json.dumps(told, indent=2) + "\n"


def _table(
    frame: pl.DataFrame,
    names: dict[str, str],
    figures: dict[str, tuple[str, str]],
    texts: list[str | None] | None = None,
) -> Sheet:
    told = texts is not None and any(text is not None for text in texts)
    titles = [*names.values(), *(title for title, _ in figures.values()), *["text"] * told]
    rows, before = [], None
    for i, row in enumerate(frame.to_dicts()):
        # The first name of two is that of a group, which is told once.
        own = [
            "" if len(names) > 1 and j == 0 and row[name] == before else str(row[name]) for j, name in enumerate(names)
        ]
        before = row[next(iter(names))]
        cells = ["-" if row[name] is None else form.format(row[name]) for name, (_, form) in figures.items()]
        rows.append([*own, *cells, *([(texts or [])[i] or ""] if told else [])])
    return Sheet(titles, "l" * len(names) + "r" * len(figures) + "f" * told, rows)


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _around(before: str, after: str) -> str:
    left = plain(before)
    left = left if len(left) <= WIDTH else "..." + left[3 - WIDTH :]
    return f"{left}|{_clipped(plain(after), WIDTH)}"
