"""The command certify: which drafts must be accepted, by the divergence of the models alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from markov_spec.arrays import RequestError
from markov_spec.certificates import RULES
from markov_spec.cli.evaluate import Form, Out, form_of
from markov_spec.cli.output import StorePath, app, refuse_overwriting, show
from markov_spec.evaluation import certify
from markov_spec.report.certificates import certificates_csv, certificates_plot, certificates_table, write_drafts


def _check_ending(path: Path | None) -> Path | None:
    if path is not None and path.suffix not in (".parquet", ".csv"):
        raise typer.BadParameter(f"found {path.name}; allowed: a name that ends in .parquet or .csv")
    return path


@app.command("certify")
def certify_command(
    store: StorePath,
    contender: Annotated[
        str, typer.Argument(metavar="CONTENDER", help="A drafter: [b]quant5[/b] or [b]block:K=4[/b].")
    ],
    rule: Annotated[
        str,
        typer.Option(
            metavar="RULE[,SETTING=...]",
            help=f"One of {', '.join(RULES)}, with its thresholds: [b]additive,t=.3[/b], [b]tree,m=4[/b].",
        ),
    ] = "strict",
    kl: Annotated[
        float | None, typer.Option(min=0, help="A bound on KL(target || drafter) at every position, in nats.")
    ] = None,
    tolerance: Annotated[float, typer.Option(min=0, help="Nats by which recorded divergences may be too small.")] = 0.0,
    target_length: Annotated[
        float | None, typer.Option(min=1, help="Tell which KL at every position would guarantee this pooled length.")
    ] = None,
    by: Annotated[
        Literal["benchmark", "margin", "depth"] | None, typer.Option(help="One table; benchmark and margin by default.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="F.html",
            help="Draw certified and accepted share against KL, and the promise.",
        ),
    ] = None,
    positions: Annotated[
        Path | None,
        typer.Option(
            metavar="F.parquet",
            callback=_check_ending,
            help="Write a row for each draft, as Parquet or CSV, at its position.",
        ),
    ] = None,
    format: Form = None,
    out: Out = None,
) -> None:
    """Print which drafts a greedy target must accept, whatever else the two models say.

    Where KL(target || drafter), of the plain softmaxes, is below a threshold that the
    target's distribution sets, the drafter's likeliest token is accepted: it is
    [b]certified[/b]. [b]accepted[/b] is the share that is; certificates are sufficient, not
    necessary. [b]strict[/b] is greedy decoding, [b]tree[/b] the drafter's m best tokens at each
    depth; the lossy rules promise acceptance at the rollout's own contexts, and bound no rounds.

    CSV has a row for each group of the tables, JSON also what stands below them.

    For example:

    markov-spec certify data/demo-greedy quant5 --target-length 1.5
    """
    form = form_of(format, out)
    refuse_overwriting(out, store, plot, positions)
    refuse_overwriting(plot, store, positions, option="--plot")
    refuse_overwriting(positions, store, option="--positions")
    name, *items = rule.split(",")
    settings: dict[str, Any] = {}
    for item in items:
        key, _, value = item.partition("=")
        try:
            settings[key] = int(value) if value.isdigit() else float(value)
        except ValueError:
            raise RequestError(f"--rule: found {item!r}; allowed: a threshold and its number, such as t=.3") from None
    found = certify(store, contender, rule=name, kl=kl, tolerance=tolerance, **settings)
    needed = None if target_length is None else found.kl_for_length(target_length)
    groups = ["benchmark", "margin"] if by is None else [by]
    if plot is not None:
        certificates_plot(found, plot)
    if positions is not None:
        write_drafts(found, positions)
    if form == "json":
        told: dict[str, Any] = {group: found.summary(group).to_dicts() for group in groups}
        told |= {"store": str(store), "contender": contender, "rule": name, "settings": dict(found.settings)}
        told |= {"draft_length": found.draft_length, "run_length": found.run_length(), "notes": list(found.notes)}
        told |= {"target_length": target_length, "kl_for_length": needed, "loosest": found.loosest().to_dicts()}
        show(json.dumps(told, indent=2) + "\n", out)
    elif form == "csv":
        show(certificates_csv(found, groups), out)
    else:
        show(certificates_table(found, groups, target_length, needed), out)
