"""Tables of a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from markov_spec.comparison import Comparison
from markov_spec.comparison.cells import MOST_PAIRS, basis, benchmark_cells, contender_cells, pair_cells
from markov_spec.report.sheet import MARKDOWN, Sheet, plain

FRAMES = ("contenders", "pairs", "benchmarks", "winners", "variance_account")
By = Literal["benchmark"] | None


def comparison_table(found: Comparison, by: By = None) -> Group:
    """Lay a comparison out for a terminal: the headline, contenders with their benchmarks, and pairs.

    Parameters
    ----------
    found : Comparison
    by : {"benchmark"}, optional
        Show the benchmarks with their intervals and ratios, in a table of their own.

    Returns
    -------
    rich.console.Group
        Of pairs the first ten, the best contenders' first.
    """
    shown: list[RenderableType] = [Text(plain(found.headline), style="bold"), ""]
    for sheet in _sheets(found, by):
        shown += [sheet, ""]
    notes = [Text(plain(f"note: {note}"), style="yellow") for note in found.notes]
    return Group(*shown, *(Text(plain(line), style="dim") for line in _lines(found, by)), *notes)


def comparison_markdown(found: Comparison, by: By = None) -> str:
    """Give what `comparison_table` shows as Markdown.

    Parameters
    ----------
    found : Comparison
    by : {"benchmark"}, optional

    Returns
    -------
    str
    """
    notes = "".join(f"- note: {_markdown(note)}\n" for note in found.notes)
    tables = [sheet.markdown() for sheet in _sheets(found, by)]
    told = _markdown(" ".join(_lines(found, by)))
    parts = [f"**{_markdown(found.headline)}**\n", *tables, f"{told}\n", *([notes] if notes else [])]
    return "\n".join(parts)


def comparison_latex(found: Comparison, by: By = None) -> str:
    """Give the contenders, or the benchmarks, and the pairs as two tabulars of LaTeX for the package booktabs.

    Parameters
    ----------
    found : Comparison
    by : {"benchmark"}, optional

    Returns
    -------
    str
        The headline and the notes stand before them as comments. Of pairs the first ten.
    """
    told = (found.headline, *_lines(found, by), *(f"note: {note}" for note in found.notes))
    cells = contender_cells(found) if by is None else benchmark_cells(found)
    tables = Sheet(*cells).latex(), Sheet(*pair_cells(found, MOST_PAIRS)).latex()
    return "".join(f"% {plain(line)}\n" for line in told) + "\n".join(tables)


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
    told |= {"level": found.level, "margin": found.margin, "price_unit": found.price_unit}
    told |= {name: getattr(found, name).to_dicts() for name in FRAMES}
    return json.dumps(told, indent=2) + "\n"


def _markdown(text: str) -> str:
    return plain(text).translate(MARKDOWN)


def _sheets(found: Comparison, by: By) -> list[Sheet]:
    cells = [contender_cells(found, benchmarks=by is None), pair_cells(found, MOST_PAIRS)]
    return [Sheet(*one) for one in (*cells, *([] if by is None else [benchmark_cells(found)]))]


def _lines(found: Comparison, by: By) -> list[str]:
    left = found.pairs.filter(measure=found.measure).height - MOST_PAIRS
    ratios = [] if by is None else [f"Ratios on a benchmark are to {found.primary[1]}."]
    return [basis(found), *ratios] + [f"{left} more pairs in JSON and CSV."] * (left > 0)
