"""A comparison in texts that people read: titles and rows of its tables, in its own measure; and tables of HTML."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from markov_spec.comparison.measures import LENGTH, Name

if TYPE_CHECKING:
    from markov_spec.comparison.result import Comparison

NONE = "-"
MOST_PAIRS = 10


class Cells(NamedTuple):
    """Texts of a table.

    ``align`` has l or r for each column, or + for one to the right that belongs to the one before it. The leading l say
    what a row is about.
    """

    titles: tuple[str, ...]
    align: str
    rows: list[tuple[str, ...]]


def contender_cells(found: Comparison, *, benchmarks: bool = True) -> Cells:
    """Give a row for each contender: its figure and interval, the macro mean, and its figures on the benchmarks."""
    figures = found.own("benchmarks").select("contender", "benchmark", "pooled").rows()
    names = list(dict.fromkeys(name for _, name, _ in figures))
    each = {(contender, name): figure(value, found.measure) for contender, name, value in figures}
    named = names if benchmarks and len(names) > 1 else []
    length = found.measure == LENGTH
    lengths = dict(found.contenders.filter(measure=LENGTH).select("contender", "pooled").rows())
    fast = found.contenders["speedup"].null_count() < len(found.contenders) and not length
    titles = ["contender", "pooled" if length else "price", _interval(found)]
    titles += ["speed-up", _interval(found)] * fast + ["tokens per round"] * (bool(lengths) and not length)
    titles += ["macro mean"] * (len(names) > 1) + named
    rows = []
    for row in found.own("contenders").to_dicts():
        cells = [row["contender"], figure(row["pooled"], found.measure), _ends(row, "pooled", found.measure)]
        cells += [figure(row["speedup"]), _ends(row, "speedup")] * fast
        cells += [figure(lengths.get(row["contender"]))] * (bool(lengths) and not length)
        cells += [figure(row["macro_mean"], found.measure)] * (len(names) > 1)
        rows.append((*cells, *(each[row["contender"], name] for name in named)))
    align = "lr+" + "r+" * fast + "r" * (len(titles) - 3 - 2 * fast)
    return Cells(tuple(titles), align, rows)


def pair_cells(found: Comparison, most: int) -> Cells:
    """Give a row for each of the first pairs: ratio, interval, chance and verdict."""
    alike = found.margin is not None
    titles = ("contender", "against", "ratio", _interval(found), "p", "corrected", *(["p of equivalence"] * alike))
    rows = []
    for row in found.own("pairs").head(most).to_dicts():
        chances = ("p", "p_holm", *(["p_equivalence"] * alike))
        ratio = figure(row["ratio"]), _ends(row, "ratio")
        rows.append(
            (row["contender"], row["baseline"], *ratio, *(_chance(row[name]) for name in chances), row["verdict"])
        )
    return Cells((*titles, "verdict"), "llr+r+" + "r" * alike + "l", rows)


def benchmark_cells(found: Comparison) -> Cells:
    """Give a row for each benchmark and contender: its figure, and its ratio to the baseline of the primary pair."""
    what = "pooled" if found.measure == LENGTH else "price"
    titles = "benchmark", "contender", "prompts", what, _interval(found), "ratio", _interval(found)
    rows: list[tuple[str, ...]] = []
    for row in found.own("benchmarks").to_dicts():
        own = figure(row["pooled"], found.measure), _ends(row, "pooled", found.measure)
        ratio = figure(row["ratio"]), _ends(row, "ratio")
        rows.append((row["benchmark"], row["contender"], str(row["prompts"]), *own, *ratio))
    return Cells(titles, "llrr+r+", rows)


def basis(found: Comparison) -> str:
    """Say what the figures are, and of what."""
    counts = (f"{count} {what}{'s' * (count != 1)}" for count, what in _counts(found))
    drawn = "which are resampled" if found.prompts > 1 else "so nothing is resampled and nothing tested"
    return f"{unit(found)}; {' of '.join(counts)}, {drawn}."


def unit(found: Comparison) -> str:
    """Say what a figure is: tokens per round, or the price of a token in its unit, if that is known."""
    if found.measure == LENGTH or found.price_unit is None:
        return found.measure.replace("_", " ")
    return f"{found.price_unit} per token"


def figure(value: float | None, measure: Name = LENGTH) -> str:
    """Write a figure of a measure, or a ratio."""
    if value is None:
        return NONE
    return f"{value:.4f}" if measure == LENGTH else f"{value:#.4g}".rstrip(".")


def html_lines(lines: Iterable[str]) -> str:
    """Give a paragraph of HTML for each line."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def html_table(cells: Cells) -> str:
    """Give a table of HTML, which scrolls where it is too wide."""
    styles = [f"text-align: {'left' if side == 'l' else 'right'}; white-space: nowrap" for side in cells.align]
    rows = [
        "".join(f'<{tag} style="{style}">{escape(one)}</{tag}>' for style, one in zip(styles, row, strict=True))
        for tag, row in [("th", cells.titles), *(("td", row) for row in cells.rows)]
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows[1:])
    table = f'<table class="dataframe"><thead><tr>{rows[0]}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div style="overflow-x: auto">{table}</div>'


def _counts(found: Comparison) -> tuple[tuple[int, str], ...]:
    return (found.rollouts, "rollout"), (found.prompts, "prompt")


def _interval(found: Comparison) -> str:
    return f"{100 * found.level:g} % interval"


def _ends(row: dict[str, Any], name: str, measure: Name = LENGTH) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return NONE if low is None or high is None else f"{figure(low, measure)} to {figure(high, measure)}"


def _chance(value: float | None) -> str:
    return NONE if value is None else f"{value:.2g}"
