"""The command line: parse, one public call, print. Exit codes: 0, 1 (data at fault), 2 (usage), 130 (interrupted)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from markov_spec.arrays import RequestError
from markov_spec.cli import certify, compare, evaluate, exchange, record, store, trees
from markov_spec.cli.interruption import Interrupted
from markov_spec.cli.output import app

__all__ = ["app", "certify", "compare", "evaluate", "exchange", "main", "record", "store", "trees"]

INTERRUPTED = 130


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"markov-spec {version('markov-spec')}")
        raise typer.Exit()


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
    shown: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Exact, offline answers about LLM speculative decoding, from one record of a target and its drafters.

    Start with: markov-spec evaluate STORE
    """  # main reads --debug itself, wherever it stands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process by default.

    Returns
    -------
    int
        0, 1 (data at fault), 2 (usage) or 130 (interrupted).
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=[word for word in words if word != "--debug"], prog_name="markov-spec", standalone_mode=True)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            typer.echo("interrupted", err=True)
        return int(end.code or 0)
    except Interrupted as error:
        typer.echo(f"interrupted: {error}", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # the reader of our output has gone
        return 1
    except Exception as error:
        if "--debug" in words:
            raise
        told = str(error) or type(error).__name__
        if not isinstance(error, ValueError | OSError):
            told = f"{type(error).__name__}: {told} (a fault of markov-spec; --debug shows where)"
        told = told.encode(errors="backslashreplace").decode()  # a path need not be UTF-8
        Console(stderr=True).print(Text.assemble(("error: ", "red"), told), soft_wrap=True)
        return 2 if isinstance(error, RequestError) else 1
    return 0
