"""What the commands share: the application, the argument STORE, and printing."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
import typer
from rich.console import Console, RenderableType
from rich.measure import Measurement

from markov_spec.store.install import leftovers

app = typer.Typer(
    name="markov-spec",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
ENDINGS = {".json": "json", ".csv": "csv", ".parquet": "parquet", ".tex": "latex", ".md": "markdown"}
ESCAPED = "backslashreplace"  # what a path that is no UTF-8 is printed with


def _check_there(store: Path) -> Path:
    """Refuse a path where nothing is; where an interrupted write left something, opening tells what and where."""
    place = Path(os.path.realpath(store))
    if not place.exists() and not leftovers(place.parent, place.name):
        shown = str(store).encode(errors=ESCAPED).decode()
        raise typer.BadParameter(f"Directory '{shown}' does not exist.")
    return store


StorePath = Annotated[
    Path, typer.Argument(metavar="STORE", file_okay=False, callback=_check_there, help="Folder of a store.")
]
AnyForm = Annotated[
    Literal["table", "json", "csv", "parquet", "latex", "markdown"] | None,
    typer.Option(
        help="How to print; table by default, or what the name of --out ends in (.json, .csv, .parquet, .tex, .md)."
    ),
]


def any_form_of(format: str | None, out: Path | None) -> str:
    """Settle how to print: as asked, as the name of the file ends, or a table."""
    if out is not None and not out.parent.is_dir():
        raise typer.BadParameter(f"folder {out.parent} does not exist", param_hint="--out")
    form = format or ENDINGS.get("" if out is None else out.suffix, "table")
    if form == "parquet" and out is None:
        raise typer.BadParameter("found parquet without a file; allowed: with --out FILE", param_hint="--format")
    return form


def show_frame(frame: pl.DataFrame, form: str, out: Path | None) -> None:
    """Print a frame as CSV, or write it as Parquet."""
    if form == "parquet" and out is not None:
        frame.write_parquet(out)
    else:
        show(frame.write_csv(), out)


def show(content: RenderableType | str, out: Path | None = None) -> None:
    """Print text as it is, anything else as wide as it needs; to a file if one is given."""
    if out is None and isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors=ESCAPED)
    with nullcontext(sys.stdout) if out is None else out.open("w", encoding="utf-8", errors=ESCAPED) as file:
        if isinstance(content, str):
            file.write(content)
            return
        console = Console(file=file)
        # A terminal too narrow for the columns wraps the lines itself; a file or pipe gets them at full length.
        wanted = Measurement.get(console, console.options.update(max_width=10_000), content)
        console.width = max(console.width, wanted.minimum if console.is_terminal else wanted.maximum)
        console.print(content)
