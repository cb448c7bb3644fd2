"""The commands on a store as such: info, check."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from markov_spec.cli.output import StorePath, app, show
from markov_spec.report import facts_table, findings_table
from markov_spec.store import check_integrity, open_store


@app.command("info")
def info_command(
    store: StorePath, format: Annotated[Literal["table", "json"], typer.Option(help="How to print.")] = "table"
) -> None:
    """Print what a store holds: target, sampling, rollouts, drafters and their parts."""
    facts = open_store(store).facts()
    show(json.dumps(facts, indent=2) + "\n" if format == "json" else facts_table(facts))


@app.command("check")
def check_command(
    store: StorePath, format: Annotated[Literal["table", "json"], typer.Option(help="How to print.")] = "table"
) -> None:
    """Verify hashes, shapes, alignment and values, and test whether the rollouts fit their distribution (z-statistic).

    Ends with code 1 if something is wrong with the data.
    """
    findings = check_integrity(store)
    errors = sum(finding.severity == "error" for finding in findings)
    if format == "json":
        show(json.dumps({"store": str(store), "findings": [asdict(f) for f in findings]}, indent=2) + "\n")
    else:
        if findings:
            show(findings_table(findings))
        show(f"{store}: {'sound' if not errors else f'{errors} error' + 's' * (errors > 1)}\n")
    if errors:
        raise typer.Exit(1)
