"""The commands that compute from a store: evaluate, proxies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import polars as pl
import typer

from markov_spec.acceptance import RULES
from markov_spec.cli.output import (
    PLAIN_ENDINGS,
    AnyForm,
    StorePath,
    any_form_of,
    app,
    form_by_name,
    refuse_overwriting,
    show,
    show_frame,
)
from markov_spec.evaluation import Contender, evaluate, evaluate_bounds, proxies_frame
from markov_spec.metrics import CONVENTIONS
from markov_spec.report import (
    bounds_table,
    evaluation_frame,
    evaluation_json,
    evaluation_latex,
    evaluation_markdown,
    evaluation_table,
    proxies_table,
)
from markov_spec.store import Store, open_store

FIRST_START = "0: the first token is drafted too; 1: the prefill emits it."
Contenders = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONTENDER]...",
        help="Drafters to evaluate, all by default: [b]NAME[/b]; with settings [b]NAME:K=7,rule=block[/b]; every "
        "draft length of a range [b]NAME:K=1-8[/b].",
    ),
]
RuleOption = Annotated[
    str | None,
    typer.Option(
        metavar="RULE[,SETTING=...]",
        help=f"One of {', '.join(RULES)}, with its settings; each drafter's own by default.",
    ),
]
DraftLength = Annotated[
    int | None, typer.Option(min=0, help="Drafts per round, K; by default the recorded K, or 5 if autoregressive.")
]
By = Annotated[Literal["benchmark"] | None, typer.Option(help="One row for each benchmark.")]
Form = Annotated[
    Literal["table", "json", "csv"] | None,
    typer.Option(help="How to print; table by default, or what the name of --out ends in."),
]
Out = Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")]


@app.command(
    "evaluate",
    epilog="\n\n".join(
        ["Conventions, and who counts so:", *(f"[b]{name}[/b]  {c.summary}" for name, c in CONVENTIONS.items())]
    ),
)
def evaluate_command(
    store: StorePath,
    contenders: Contenders = None,
    rule: RuleOption = None,
    draft_length: DraftLength = None,
    first_start: Annotated[Literal["0", "1"] | None, typer.Option(help=f"{FIRST_START} 0 by default.")] = None,
    convention: Annotated[
        str | None,
        typer.Option(help=f"Give the acceptance length as counted by one of {', '.join(CONVENTIONS)}; see below."),
    ] = None,
    bounds: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Give bounds where something is not known: [b]lists:top=5[/b], q of tokens outside a drafter's top 5; "
            "[b]target-lists:top=5[/b], p alike; [b]lists:top=5+target-lists:top=5[/b], both; "
            "[b]tolerance:nats=0.01[/b], every log-probability; [b]half:dtype=bfloat16[/b], their rounding; "
            "[b]transport:m=2[/b], which optimal transport of 2 drafts. Of greedy rollouts: [b]certificates[/b], "
            "[b]certificates:kl=0.1,m=2[/b], all that KL does not certify; [b]ties:nats=0.01[/b], matches where the "
            "target's two best tokens are tied.",
        ),
    ] = None,
    by: By = None,
    format: AnyForm = None,
    out: Out = None,
) -> None:
    """Print the exact expected decoding rounds of each contender.

    [b]rule[/b]  [b]rejection[/b]: a sampled draft is kept with probability min(1, p/q);
    [b]block[/b]: block verification; [b]match[/b]: a deterministic draft is kept if it is
    the target's own token; [b]independent[/b]: a sampled one if it is; [b]none[/b].
    From a store recorded with --scalars also m drafts at each depth, [b]node-recursive,m=4[/b]
    and [b]node-k-seq,m=4[/b] (m of 2, 4, 8), a recorded acceptance, [b]recorded,of=coupling[/b],
    and the lossy rules [b]typical[/b], [b]additive,t=.1[/b], [b]multiplicative,alpha=.5[/b],
    [b]top-m,m=2[/b] and [b]margin,margin=.1[/b], whose figures are teacher-forced.

    [b]K[/b]  drafts per round.

    [b]tokens[/b]  committed over all rollouts, without the first under --first-start
    1. A rollout ends at its last recorded token; no round commits beyond it.

    [b]expected rounds[/b]  verification passes of the target, given these tokens.

    [b]pooled length[/b]  tokens per expected round, the target's own included.

    [b]acceptance[/b]  conditional: of the rounds that tested a depth, the share that
    accepted it; - where no round tested it. JSON and CSV also give the
    unconditional rates (of all rounds) and the histogram of accepted drafts.

    For example:

    markov-spec evaluate data/demo

    markov-spec evaluate data/demo block:K=1-8 quant5:K=4,rule=block --by benchmark --format json
    """
    form = any_form_of(format, out)
    refuse_overwriting(out, store)
    opened = open_store(store)
    chosen = chosen_contenders(opened, contenders, rule, draft_length)
    start = None if first_start is None else int(first_start)
    if bounds is not None:
        if convention is not None:
            raise typer.BadParameter("found with --convention; allowed: one of them", param_hint="--bounds")
        found = [evaluate_bounds(opened, contender, bounds, first_start=start or 0) for contender in chosen]
        rows = [row for one in found for row in one.results(by=by)]
        if form == "json":
            show(json.dumps({"store": str(store), "bounds": rows}, indent=2) + "\n", out)
        elif form in ("csv", "parquet"):
            show_frame(pl.DataFrame(rows), form, out)
        elif form in ("latex", "markdown"):
            raise typer.BadParameter(
                f"found {form} with --bounds; allowed: table, json, csv, parquet", param_hint="--format"
            )
        else:
            show(bounds_table(rows), out)
        return
    results = [evaluate(opened, contender, first_start=start, convention=convention) for contender in chosen]
    if form == "json":
        show(evaluation_json(store, results, by), out)
    elif form in ("csv", "parquet"):
        show_frame(evaluation_frame(results, by), form, out)
    elif form == "latex":
        show(evaluation_latex(results, by), out)
    elif form == "markdown":
        show(evaluation_markdown(store, results, by), out)
    else:
        show(evaluation_table(store, results, by), out)


@app.command("proxies")
def proxies_command(
    store: StorePath,
    contenders: Contenders = None,
    rule: RuleOption = None,
    draft_length: DraftLength = None,
    first_start: Annotated[Literal["0", "1"], typer.Option(help=FIRST_START)] = "0",
    by: By = None,
    format: Form = None,
    out: Out = None,
) -> None:
    """Print what other tools' formulas give for each contender, beside the exact figure.

    [b]eal[/b] of speculators and SpecForge, [b]tau[/b] of DeepSpec, products of mean acceptances,
    means over uniform starts, iid formulas. [b]error[/b]: proxy / exact - 1 in the same counting;
    [b]bonus[/b]: whether that counts the target's own token.

    For example:

    markov-spec proxies data/demo block:K=1-8 --by benchmark
    """
    form = form_of(format, out)
    refuse_overwriting(out, store)
    opened = open_store(store)
    chosen = chosen_contenders(opened, contenders, rule, draft_length)
    frame = proxies_frame(opened, chosen, by=by, first_start=int(first_start))
    if form == "json":
        show(json.dumps({"store": str(store), "proxies": frame.to_dicts()}, indent=2) + "\n", out)
    elif form == "csv":
        show(frame.write_csv(), out)
    else:
        show(proxies_table(frame), out)


def form_of(format: str | None, out: Path | None) -> str:
    """Settle how to print: as asked, as the name of the file ends, or a table."""
    return form_by_name(format, out, PLAIN_ENDINGS)


def chosen_contenders(
    store: Store, texts: Sequence[str] | None, rule: str | None, draft_length: int | None
) -> list[Contender]:
    """Read what contenders are asked for, all drafters by default; a rule and a length hold where a text has none."""
    chosen = []
    for text in texts or store.drafters:
        bare = text.rstrip(":")
        named = text if rule is None or "rule=" in text else f"{bare}{',' if ':' in bare else ':'}rule={rule}"
        for given in Contender.parse_all(named):
            length = draft_length if given.draft_length is None else given.draft_length
            chosen.append(replace(given, draft_length=length))
    return chosen
