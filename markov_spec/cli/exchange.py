"""The commands that exchange stores with other tools: import, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.filesize import decimal

from markov_spec.cli.interruption import interruptible
from markov_spec.cli.output import StorePath, app, refuse_inside
from markov_spec.sources import export_jsonl, export_parquet, import_jsonl
from markov_spec.sources.exchange.faults import grouped

NOTHING = "nothing was written"


@app.command("import")
def import_command(
    rollouts: Annotated[
        Path, typer.Argument(metavar="ROLLOUTS", exists=True, dir_okay=False, help="JSON lines of the target.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new store.")],
    drafter: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]FILE", help="JSON lines of a drafter, under its own name or this one."),
    ] = None,
    lenient: Annotated[
        bool,
        typer.Option("--lenient", help="Leave lines at fault out and tell them by kind, instead of stopping at one."),
    ] = False,
    duplicates: Annotated[
        Literal["error", "first", "last", "suffix"], typer.Option(help="What becomes of lines with one id.")
    ] = "error",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the store at --out.")] = False,
) -> None:
    """Make a store from JSON lines of rollouts and of what drafters would have said.

    The format is in data/README.md; export writes it. Files may end in .gz.
    Ends with code 1 if a line was at fault.

    For example:

    markov-spec import rollouts.jsonl --drafter small=drafts.jsonl --out store
    """
    named: dict[str, Path] = {}
    own: list[Path] = []
    for text in drafter or []:
        name, found, path = text.partition("=")
        if found and not Path(text).exists():
            if name in named:
                raise typer.BadParameter(f"found {name!r} twice; allowed: each name once", param_hint="--drafter")
            named[name] = Path(path)
        else:
            own.append(Path(text))
    if named and own:
        raise typer.BadParameter("found files with and without a name; allowed: all or none", param_hint="--drafter")
    for given in (*named.values(), *own):
        if not given.is_file():
            raise typer.BadParameter(f"file {given} does not exist", param_hint="--drafter")
    mode: Literal["strict", "lenient"] = "lenient" if lenient else "strict"
    with interruptible(lambda: NOTHING):
        report = import_jsonl(rollouts, named or own, out, mode=mode, duplicates=duplicates, overwrite=overwrite)
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)
    for fault in grouped(report.errors):
        typer.echo(f"error: {fault}", err=True)
    typer.echo(f"{out}: {report}")
    if report.errors:
        raise typer.Exit(1)


@app.command("export")
def export_command(
    store: StorePath,
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    format: Annotated[
        Literal["jsonl", "parquet"], typer.Option(help="JSON lines, which import reads, or flat Parquet for reading.")
    ] = "jsonl",
    drafter: Annotated[list[str] | None, typer.Option(help="May be given often; all by default.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
) -> None:
    """Write a store as JSON lines, or as flat Parquet with a row for each position.

    For example:

    markov-spec export data/demo --out files --format parquet
    """
    refuse_inside(out, store)
    write = export_jsonl if format == "jsonl" else export_parquet
    with interruptible(lambda: NOTHING):
        folder = write(store, out, drafters=drafter, overwrite=overwrite)
    for path in sorted(folder.iterdir()):
        typer.echo(f"{path}: {decimal(path.stat().st_size)}")
