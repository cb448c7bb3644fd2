"""The command compare: which contender is better, by how much, and whether it is luck."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from markov_spec.cli.evaluate import FIRST_START, Contenders, Form, Out, chosen_contenders, form_of
from markov_spec.cli.output import StorePath, app, show
from markov_spec.evaluation import compare
from markov_spec.report import comparison_json, comparison_table
from markov_spec.store import open_store


@app.command("compare")
def compare_command(
    store: StorePath,
    contenders: Contenders = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="CONTENDER", help="What the others are compared with; else the best with the runner-up."),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(min=1e-9, help="Relative difference that does not matter, 0.01 for 1 %: tests equivalence."),
    ] = None,
    level: Annotated[float, typer.Option(min=0.01, max=0.9999, help="Confidence of the intervals.")] = 0.95,
    resamples: Annotated[int, typer.Option(min=1, help="Draws of the bootstrap and of sign flips.")] = 9999,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws; equal seeds give equal results.")] = 0,
    first_start: Annotated[Literal["0", "1"], typer.Option(help=FIRST_START)] = "0",
    format: Form = None,
    out: Out = None,
) -> None:
    """Compare contenders on the same rollouts, prompt by prompt.

    [b]pooled[/b] is tokens per expected round; its interval, and that of the [b]ratio[/b],
    says what other prompts of this kind would give. [b]p[/b] is by sign flips of whole
    prompts, [b]corrected[/b] by Holm over the pairs with the baseline, else over all.
    [b]verdict[/b]: better, worse, near-tie, equivalent (under --margin) or undecided.
    JSON and CSV add macro and request means, bootstrap intervals and what one prompt moves.

    For example:

    markov-spec compare data/demo

    markov-spec compare data/demo block:tree=best-first,budget=64 drop3 --baseline drop3
    """
    form = form_of(format, out)
    opened = open_store(store)
    chosen = chosen_contenders(opened, contenders, None, None)
    found = compare(
        opened, chosen, baseline=baseline, margin=margin, level=level, resamples=resamples, rng=seed,
        first_start=int(first_start),
    )  # fmt: skip
    if form == "json":
        show(comparison_json(store, found), out)
    elif form == "csv":
        show(found.pairs.write_csv(), out)
    else:
        show(comparison_table(found), out)
