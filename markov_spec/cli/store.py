"""The commands on a store as such: info, check."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from markov_spec.acceptance import RULES
from markov_spec.cli.output import StorePath, app, show
from markov_spec.report import facts_table, findings_table
from markov_spec.store import Finding, check_integrity, open_store


@app.command("info")
def info_command(
    store: StorePath, format: Annotated[Literal["table", "json"], typer.Option(help="How to print.")] = "table"
) -> None:
    """Print what a store holds: target, sampling, rollouts, drafters and their parts."""
    facts = open_store(store).facts()
    show(json.dumps(facts, indent=2) + "\n" if format == "json" else facts_table(facts))


@app.command("check")
def check_command(
    store: StorePath,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean", help="Remove what interrupted writes left; move an old folder back that is the only copy."
        ),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="End with code 1 on warnings, too.")] = False,
    format: Annotated[Literal["table", "json"], typer.Option(help="How to print.")] = "table",
) -> None:
    """Verify hashes, shapes, alignment and values, and test whether the rollouts fit their distribution (z-statistic).

    Names likely causes: another temperature, filters, sentinels, repeated
    rollouts, padded drafts, rows that are shifted by one. Ends with code 1 if
    something is wrong with the data; warnings (but for --strict) and notes
    leave it 0.
    """
    findings = [*check_integrity(store, clean=clean), *_unknown_rules(store)]
    counts = {kind: sum(finding.severity == kind for finding in findings) for kind in ("error", "warning", "note")}
    if format == "json":
        told = {"store": str(store), "counts": counts, "findings": [asdict(finding) for finding in findings]}
        show(json.dumps(told, indent=2) + "\n")
    else:
        if findings:
            show(findings_table(findings))
        faults = [f"{counts[kind]} {kind}{'s' * (counts[kind] > 1)}" for kind in ("error", "warning") if counts[kind]]
        show(f"{store}: {', '.join(faults) or 'sound'}\n")
    if counts["error"] or (strict and counts["warning"]):
        raise typer.Exit(1)


def _unknown_rules(store: Path) -> list[Finding]:
    """Warn of drafters whose own rule is none; the store keeps any name, so that it need not know the rules."""
    with suppress(ValueError):  # what cannot be opened is among the findings
        return [
            Finding(
                "warning",
                f"drafters/{name}/manifest.json",
                f"rule: found {own['rule']!r}; allowed: {', '.join(RULES)}; evaluate refuses it unless --rule names "
                "another",
            )
            for name, own in open_store(store).facts()["drafters"].items()
            if own["rule"] not in RULES
        ]
    return []
