"""What the commands share: the application, the argument STORE, and printing."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.measure import Measurement

app = typer.Typer(
    name="markov-spec",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)

StorePath = Annotated[Path, typer.Argument(metavar="STORE", exists=True, file_okay=False, help="Folder of a store.")]


def show(content: RenderableType | str, out: Path | None = None) -> None:
    """Print text as it is, anything else as wide as it needs; to a file if one is given."""
    if isinstance(content, str):
        sys.stdout.write(content) if out is None else out.write_text(content, encoding="utf-8")
        return
    with nullcontext(sys.stdout) if out is None else out.open("w", encoding="utf-8") as file:
        console = Console(file=file)
        # A terminal too narrow for the columns wraps the lines itself; a file or pipe gets them at full length.
        wanted = Measurement.get(console, console.options.update(max_width=10_000), content)
        console.width = max(console.width, wanted.minimum if console.is_terminal else wanted.maximum)
        console.print(content)
