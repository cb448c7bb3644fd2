"""What the commands share: the application, the argument STORE, and printing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
import typer
from rich.console import Console, RenderableType
from rich.measure import Measurement

from markov_spec.latency import Price, read_price
from markov_spec.store.install import leftovers

app = typer.Typer(
    name="markov-spec",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
ENDINGS = {
    ".json": "json", ".csv": "csv", ".parquet": "parquet", ".tex": "latex", ".md": "markdown", ".txt": "table",
}  # fmt: skip
PLAIN_ENDINGS = {ending: ENDINGS[ending] for ending in (".json", ".csv", ".txt")}
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
        help="How to print; table by default, or what the name of --out ends in (.json, .csv, .parquet, .tex, .md, "
        ".txt for a table)."
    ),
]


def any_form_of(format: str | None, out: Path | None) -> str:
    """Settle how to print: as asked, as the name of the file ends, or a table."""
    form = form_by_name(format, out, ENDINGS)
    if form == "parquet" and out is None:
        raise typer.BadParameter("found parquet without a file; allowed: with --out FILE", param_hint="--format")
    return form


def form_by_name(format: str | None, out: Path | None, endings: Mapping[str, str]) -> str:
    """Settle how to print: as asked, as the name of the file ends, or a table; a name without an ending is one."""
    ending = "" if out is None else out.suffix.lower()
    if format is None and ending and ending not in endings:
        told = f"found a name that ends in {ending!r}; allowed: {', '.join(endings)}, or --format"
        raise typer.BadParameter(told, param_hint="--out")
    return format or endings.get(ending, "table")


def refuse_overwriting(path: Path | None, store: Path, *others: Path | str | None, option: str = "--out") -> None:
    """Refuse to write where the store lies that is read, over another file that is read or written, or in no folder.

    Parameters
    ----------
    path : Path or None
        To be written; None is nothing.
    store : Path
    *others : Path, str or None
        A price may have its keys, as ``FILE?gpu=A100``.
    option : str
        What asked for the path.

    Raises
    ------
    typer.BadParameter
    """
    if path is None:
        return
    refuse_inside(path, store, option=option)
    real, told = Path(os.path.realpath(path)), None
    if any(other is not None and _same_file(real, other) for other in others):
        told = f"found {path}, which is read or written, too; allowed: another file"
    elif not path.parent.is_dir():
        told = f"folder {path.parent} does not exist"
    elif path.is_dir():
        told = f"found {path}, a folder; allowed: a file"
    if told is not None:
        raise typer.BadParameter(told, param_hint=option)


def refuse_inside(path: Path, store: Path, *, option: str = "--out") -> None:
    """Refuse to write where the store lies that is read."""
    real, folder = Path(os.path.realpath(path)), Path(os.path.realpath(store))
    if real == folder or folder in real.parents:
        told = f"found {path}, inside the store that is read; allowed: a place outside of it"
        raise typer.BadParameter(told, param_hint=option)


def _same_file(real: Path, other: Path | str) -> bool:
    named = Path(os.path.realpath(other.partition("?")[0] if isinstance(other, str) else other))
    return real == named or (real.exists() and named.exists() and real.samefile(named))


def price_of(source: str | None) -> Price | None:
    """Read the price that --price names; None is none.

    Raises
    ------
    typer.BadParameter
        If the file cannot be read.
    ValueError
        As `read_price`.
    """
    if source is None:
        return None
    try:
        return read_price(source)
    except OSError as error:
        raise typer.BadParameter(f"{error.filename}: {error.strerror}", param_hint="--price") from error


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
