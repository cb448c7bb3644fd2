"""The command compare: which contender is better, by how much, and whether it is luck."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console, Group
from rich.text import Text

from markov_spec.cli.evaluate import FIRST_START, Contenders, Out, chosen_contenders
from markov_spec.cli.output import AnyForm, StorePath, any_form_of, app, price_of, refuse_overwriting, show, show_frame
from markov_spec.comparison.compare import MOST_RESAMPLES
from markov_spec.evaluation import attribute, compare, study
from markov_spec.report import (
    attribution_json,
    attribution_table,
    check_report,
    comparison_json,
    comparison_latex,
    comparison_markdown,
    comparison_table,
    write_report,
)
from markov_spec.store import open_store


def _check_margin(margin: float | None) -> float | None:
    if margin is not None and not 0 < margin < 1:
        raise typer.BadParameter(f"found {margin:g}; allowed: above 0 and below 1, 0.01 for 1 %")
    return margin


@app.command("compare")
def compare_command(
    store: StorePath,
    contenders: Contenders = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="CONTENDER",
            help="What the others are compared with; else the best with the best of another drafter.",
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Prices of a round, CSV or JSON, as of [b]trees[/b]: who is cheapest is best. "
            "[b]FILE?per_depth=0.006[/b] adds 6 ms (or .006 of the price's unit) for each depth, as for the passes "
            "of an autoregressive drafter.",
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            callback=_check_margin,
            help="Relative difference that does not matter, 0.01 for 1 %: tests equivalence, and moves near-ties.",
        ),
    ] = None,
    level: Annotated[float, typer.Option(min=0.01, max=0.9999, help="Confidence of the intervals.")] = 0.95,
    resamples: Annotated[
        int, typer.Option(min=1, max=MOST_RESAMPLES, help="Draws of the bootstrap and of sign flips.")
    ] = 9999,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws; equal seeds give equal results.")] = 0,
    first_start: Annotated[Literal["0", "1"], typer.Option(help=FIRST_START)] = "0",
    by: Annotated[
        Literal["benchmark"] | None, typer.Option(help="Give each benchmark its intervals and ratios.")
    ] = None,
    where: Annotated[
        bool, typer.Option("--where", help="Tell where the difference of the pair of the headline comes from.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write all of it as one HTML page, with texts of rollouts; it needs a browser and no network.",
        ),
    ] = None,
    format: AnyForm = None,
    out: Out = None,
) -> None:
    """Compare contenders on the same rollouts, prompt by prompt.

    [b]pooled[/b] is tokens per expected round; its interval, and that of the [b]ratio[/b],
    says what other prompts of this kind would give. [b]p[/b] is by sign flips of whole
    prompts, [b]corrected[/b] by Holm over the pairs with the baseline, else over all.
    [b]verdict[/b]: [b]near-tie[/b] if the interval of the ratio comes within 1 % of 1 (within
    --margin, if given) and goes no farther than 10 %: the difference may be too
    small to matter, whether or not it is shown; [b]equivalent[/b] if certainly within
    --margin; [b]better[/b] or [b]worse[/b] if interval and corrected p both say so; else
    [b]undecided[/b].

    JSON and CSV add macro and request means, bootstrap intervals and what one
    prompt moves. CSV and Parquet are of pairs (of benchmarks with [b]--by benchmark[/b]),
    LaTeX of contenders (or benchmarks) and pairs.

    With [b]--price[/b] figures are the expected [b]price[/b] of a token, and less is better;
    [b]speed-up[/b] is the price of no speculation over it. Times are read as seconds.

    For example:

    markov-spec compare data/demo

    markov-spec compare data/demo block:tree=best-first,budget=64 drop3 --baseline drop3

    markov-spec compare data/demo drop1 quant5 --where --report report.html

    markov-spec compare data/demo quant5:K=1-8 --price cost.csv --format markdown
    """
    form = any_form_of(format, out)
    refuse_overwriting(out, store, price, report)
    refuse_overwriting(report, store, price, option="--report")
    opened = open_store(store)
    chosen = chosen_contenders(opened, contenders, None, None)
    options: dict[str, Any] = {
        "baseline": baseline, "price": price_of(price), "margin": margin, "level": level, "resamples": resamples,
        "rng": seed, "first_start": int(first_start),
    }  # fmt: skip
    if where and form not in ("table", "json"):
        raise typer.BadParameter(f"found {form}; allowed with --where: table, json", param_hint="--format")
    why = None
    if report is None:
        found = compare(opened, chosen, **options)
        if where:
            why = attribute(opened, *found.primary, first_start=int(first_start))
    else:
        check_report(report)
        with Console(stderr=True).status("opening") as shown:
            gathered = study(opened, chosen, on_step=shown.update, **options)
            shown.update("writing the page")
            write_report(gathered, report, command=shlex.join(["markov-spec", *sys.argv[1:]]))
        Console(stderr=True).print(f"wrote {report}", style="dim", highlight=False, markup=False)
        found, why = gathered.comparison, gathered.attribution if where else None
    if form == "json":
        told = json.loads(comparison_json(store, found))
        if why is not None:
            told["attribution"] = json.loads(attribution_json(store, why))
        show(json.dumps(told, indent=2) + "\n", out)
    elif form in ("csv", "parquet"):
        show_frame(found.pairs if by is None else found.benchmarks, form, out)
    elif form == "latex":
        show(comparison_latex(found, by), out)
    elif form == "markdown":
        show(comparison_markdown(found, by), out)
    else:
        table = comparison_table(found, by)
        rounds_alone = "" if price is None else Text("In rounds, not in price:", style="dim")
        show(table if why is None else Group(table, rounds_alone, attribution_table(why)), out)
