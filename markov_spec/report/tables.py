"""Tables of evaluations, of a store's facts and of what `check` found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl
from rich.cells import cell_len
from rich.console import Group
from rich.markup import escape as as_markup
from rich.table import Table
from rich.text import Text

from markov_spec.evaluation import Evaluation
from markov_spec.metrics import CONVENTIONS
from markov_spec.report.sheet import MARKDOWN, Sheet, plain
from markov_spec.store import Finding

By = Literal["benchmark"] | None


def evaluation_json(store: Path, results: Sequence[Evaluation], by: By = None) -> str:
    """Give evaluations as one JSON object ``{"store": ..., "results": [...]}``.

    Parameters
    ----------
    store : Path
    results : sequence of Evaluation
    by : {"benchmark"}, optional

    Returns
    -------
    str
    """
    rows = [row for result in results for row in result.results(by=by)]
    return json.dumps({"store": str(store), "results": rows}, indent=2) + "\n"


def evaluation_frame(results: Sequence[Evaluation], by: By = None) -> pl.DataFrame:
    """Give evaluations as a frame for CSV and Parquet, a column for each depth.

    Parameters
    ----------
    results : sequence of Evaluation
    by : {"benchmark"}, optional

    Returns
    -------
    polars.DataFrame
        Rates are ``unconditional_1, ...``; ``accepted_histogram_0, ...`` counts rounds.
    """
    if not results:
        return pl.DataFrame()
    frame = pl.concat([result.summary(by=by) for result in results])
    frame = frame.with_columns(
        pl.col("warnings").list.join("; "),
        pl.col("convention_length").list.get(0, null_on_oob=True).alias("convention_low"),
        pl.col("convention_length").list.get(1, null_on_oob=True).alias("convention_high"),
    ).drop("convention_length")
    for name in [name for name, kind in frame.schema.items() if kind == pl.List]:
        first = int(name != "accepted_histogram")
        width = max(frame[name].list.len().to_list(), default=0)
        spread = [pl.col(name).list.get(i, null_on_oob=True).alias(f"{name}_{i + first}") for i in range(width)]
        frame = frame.with_columns(spread).drop(name)
    return frame


def evaluation_table(store: Path, results: Sequence[Evaluation], by: By = None) -> Group:
    """Lay evaluations out for a terminal, a row for each contender (and benchmark).

    Parameters
    ----------
    store : Path
    results : sequence of Evaluation
    by : {"benchmark"}, optional

    Returns
    -------
    rich.console.Group
    """
    titles, align, rows = _evaluation_cells(results, by)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, side in zip(titles[:-1], align, strict=False):
        table.add_column(title, justify="right" if side == "r" else "left", no_wrap=True)
    table.add_column(titles[-1])
    for row in rows:
        table.add_row(*map(escape, row))
    lines = [Text(plain(f"warning: {told}"), style="yellow") for told in _warned(results, by)]
    return Group(fitted(table), Text(plain(_footnote(store, results)), style="dim"), *lines)


def evaluation_markdown(store: Path, results: Sequence[Evaluation], by: By = None) -> str:
    """Give what `evaluation_table` shows as Markdown.

    Parameters
    ----------
    store : Path
    results : sequence of Evaluation
    by : {"benchmark"}, optional

    Returns
    -------
    str
    """
    warned = "".join(f"- warning: {plain(told).translate(MARKDOWN)}\n" for told in _warned(results, by))
    parts = [
        Sheet(*_evaluation_cells(results, by)).markdown(),
        f"{plain(_footnote(store, results)).translate(MARKDOWN)}\n",
    ]
    return "\n".join([*parts, *([warned] if warned else [])])


def evaluation_latex(results: Sequence[Evaluation], by: By = None) -> str:
    """Give evaluations as a tabular of LaTeX for the package booktabs.

    Parameters
    ----------
    results : sequence of Evaluation
    by : {"benchmark"}, optional

    Returns
    -------
    str
    """
    return Sheet(*_evaluation_cells(results, by)).latex()


def _evaluation_cells(results: Sequence[Evaluation], by: By) -> tuple[list[str], str, list[tuple[str, ...]]]:
    """Give titles, sides and rows of texts."""
    convention = results[0].convention if results else None
    length = "pooled length" if convention is None else f"{convention} length"
    mixed = len({result.exactness for result in results}) > 1
    titles = ["contender", *(["benchmark"] if by else []), "rule", "K", "tokens", "expected rounds", length]
    titles += [*(["exactness"] if mixed else []), "acceptance at depth 1, 2, ..."]
    align = "l" * (3 if by else 2) + "rrrr" + "l" * mixed + "l"
    rows = [
        (
            row["contender"],
            *([row["benchmark"]] if by else []),
            _rule(row),
            str(row["draft_length"]),
            str(row["committed_tokens"]),
            f"{row['expected_rounds']:.2f}",
            _length(row),
            *([row["exactness"]] if mixed else []),
            " ".join(_rate(rate) for rate in row["acceptance_by_depth"]["conditional"]),
        )
        for result in results
        for row in result.results(by=by)
    ]
    return titles, align, rows


def _warned(results: Sequence[Evaluation], by: By) -> list[str]:
    # A contender's benchmarks may share a warning, which is told once.
    rows = (row for result in results for row in result.results(by=by))
    return list(dict.fromkeys(f"{row['contender']}: {told}" for row in rows for told in row["warnings"]))


def bounds_table(rows: Sequence[Mapping[str, Any]]) -> Group:
    """Lay bounds out for a terminal, a row for each contender (and benchmark).

    Parameters
    ----------
    rows : sequence of mapping
        As from ``BoundedEvaluation.results``.

    Returns
    -------
    rich.console.Group
    """
    grouped = any("benchmark" in row for row in rows)
    table = titled("contender", *(["benchmark"] if grouped else []), "rule")
    for title in ("K", "tokens", "rounds", "pooled length", "as recorded", "uncertain drafts"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for row in rows:
        low, high = row["pooled_length_low"], row["pooled_length_high"]
        table.add_row(
            escape(row["contender"]),
            *([escape(row["benchmark"])] if grouped else []),
            row["rule"],
            str(row["draft_length"]),
            str(row["committed_tokens"]),
            f"{row['rounds_low']:.2f} to {row['rounds_high']:.2f}",
            "-" if low is None else f"{low:.4f} to {high:.4f}",
            "-" if row["pooled_length"] is None else f"{row['pooled_length']:.4f}",
            f"{row['uncertain_share']:.1%}",
            row["kind"],
        )
    sources = ", ".join(dict.fromkeys(row["source"] for row in rows))
    line = (
        f"Not known: {sources}. Exact: each bound is attained within the intervals of acceptance; outer: it holds, but "
        "need not be attained."
    )
    return Group(fitted(table), Text(line, style="dim"))


def proxies_table(frame: pl.DataFrame) -> Table:
    """Lay proxies out beside the exact figures, a row for each contender and proxy.

    Parameters
    ----------
    frame : polars.DataFrame
        As from ``proxies_frame``.

    Returns
    -------
    rich.table.Table
    """
    grouped = "benchmark" in frame.columns
    table = titled("contender", *(["benchmark"] if grouped else []), "proxy", "bonus")
    for title in ("value", "exact", "error"):
        table.add_column(title, justify="right", no_wrap=True)
    labels = sorted(set(frame["exactness"]) - {"exact"})
    table.columns[-2].header = f"exact ({', '.join(labels)})" if labels else "exact"
    table.add_column("note", overflow="fold")
    for row in frame.to_dicts():
        table.add_row(
            escape(row["contender"]),
            *([escape(row["benchmark"])] if grouped else []),
            row["proxy"],
            "yes" if row["bonus"] else "no",
            *("-" if row[name] is None else f"{row[name]:.4f}" for name in ("value", "exact")),
            "-" if row["error"] is None else f"{row['error']:+.1%}",
            escape(row["note"] or ""),
        )
    return fitted(table)


def _rule(row: Mapping[str, Any]) -> str:
    return " ".join([row["rule"], *(f"{name}={value}" for name, value in row["settings"].items())])


def _length(row: Mapping[str, Any]) -> str:
    low, high = row["convention_length"] or [row["pooled_length"]] * 2
    if low is None:
        return "-"
    return f"{low:.4f}" if low == high else f"{low:.4f} to {high:.4f}"


def _rate(rate: float | None) -> str:
    return " - " if rate is None else f"{rate:.2f}".removeprefix("0")


def _footnote(store: Path, results: Sequence[Evaluation]) -> str:
    if not results:
        return f"{store} holds no drafter."
    count = len(results[0].ids)
    labels = ", ".join(sorted({result.exactness for result in results}))
    first = "the first token is drafted too" if results[0].first_start == 0 else "the prefill emits the first token"
    convention = results[0].convention
    length = "Pooled length: tokens per expected round, the target's own included."
    if convention is not None:
        length = f"{convention} length: as counted by {CONVENTIONS[convention].summary}"
        if any(isinstance(result.length, tuple) for result in results):
            length += " An interval where the figure depends on what is accepted past the end, which no record holds."
    return (
        f"{labels}; {count} rollout{'s' * (count != 1)}; {first}. {length} "
        "Acceptance: of the rounds that tested a depth, the share that accepted it."
    )


def facts_table(facts: Mapping[str, Any]) -> Table:
    """Lay out what a store holds; nested facts are indented.

    Parameters
    ----------
    facts : mapping
        As from ``Store.facts``.

    Returns
    -------
    rich.table.Table
    """
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")

    def add(content: Mapping[str, Any], indent: str) -> None:
        for key, value in content.items():
            if isinstance(value, Mapping):
                table.add_row(f"{indent}{escape(key)}", "")
                add(value, indent + "  ")
            else:
                shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
                table.add_row(f"{indent}{escape(key)}", escape(shown))

    add(facts, "")
    return table


def findings_table(findings: Sequence[Finding]) -> Table:
    """Lay out what a check found, a row for each finding.

    Parameters
    ----------
    findings : sequence of Finding

    Returns
    -------
    rich.table.Table
    """
    colors = {"error": "red", "warning": "yellow", "note": "dim"}
    table = titled("", "where")
    table.add_column("finding", overflow="fold")
    for finding in findings:
        table.add_row(
            Text(finding.severity, style=colors[finding.severity]), escape(finding.where), escape(finding.message)
        )
    return fitted(table)


def escape(text: str) -> str:
    """Give the markup that shows a text as `plain` does."""
    return as_markup(plain(text))


def fitted(table: Table) -> Table:
    """Ask for the width below which a column would lose text: its longest line, or word where it may wrap."""
    widths = []
    for column in table.columns:
        cells = (column.header, *column.cells)
        texts = [cell if isinstance(cell, Text) else Text.from_markup(str(cell)) for cell in cells]
        plain = [line for text in texts for line in text.plain.splitlines() or [""]]
        words = plain if column.no_wrap else [word for line in plain for word in line.split() or [""]]
        widths.append(max(map(cell_len, words), default=0))
    table.min_width = sum(widths) + 2 * (len(widths) - 1)
    return table


def titled(*names: str) -> Table:
    """Begin a table in the style of all, with columns of text."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=True)
    return table
