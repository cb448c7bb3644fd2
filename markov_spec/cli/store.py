"""The commands on a store as such: info, check."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from markov_spec.cli.output import StorePath, app, show
from markov_spec.report import facts_table, findings_table
from markov_spec.store import check_integrity, open_store
from markov_spec.store.install import leftovers


@app.command("info")
def info_command(
    store: StorePath, format: Annotated[Literal["table", "json"], typer.Option(help="How to print.")] = "table"
) -> None:
    """Print what a store holds: target, sampling, rollouts, drafters and their parts."""
    facts = open_store(store).facts()
    show(json.dumps(facts, indent=2) + "\n" if format == "json" else facts_table(facts))


@app.command("check")
def check_command(
    store: Annotated[Path, typer.Argument(metavar="STORE", file_okay=False, help="Folder of a store.")],
    clean: Annotated[
        bool,
        typer.Option(
            "--clean", help="Remove what interrupted writes left; move an old folder back that is the only copy."
        ),
    ] = False,
    format: Annotated[Literal["table", "json"], typer.Option(help="How to print.")] = "table",
) -> None:
    """Verify hashes, shapes, alignment and values, and test whether the rollouts fit their distribution (z-statistic).

    Names likely causes: another temperature, filters, sentinels, repeated
    rollouts, padded drafts, rows that are shifted by one. Ends with code 1 if
    something is wrong with the data; warnings and notes leave it 0.
    """
    if not store.exists() and not leftovers(store.parent, store.name):
        raise typer.BadParameter(f"Directory '{store}' does not exist.", param_hint="'STORE'")
    findings = check_integrity(store, clean=clean)
    errors, warnings = (sum(finding.severity == kind for finding in findings) for kind in ("error", "warning"))
    if format == "json":
        show(json.dumps({"store": str(store), "findings": [asdict(f) for f in findings]}, indent=2) + "\n")
    else:
        if findings:
            show(findings_table(findings))
        counts = [f"{n} {kind}{'s' * (n > 1)}" for n, kind in ((errors, "error"), (warnings, "warning")) if n]
        show(f"{store}: {', '.join(counts) or 'sound'}\n")
    if errors:
        raise typer.Exit(1)
