"""The command line: parse, one public call, print. Exit codes: 0, 1 (data at fault), 2 (usage)."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.text import Text

from markov_spec.acceptance import RULES
from markov_spec.arrays import RequestError
from markov_spec.evaluation import Contender, evaluate
from markov_spec.report import evaluation_csv, evaluation_json, evaluation_table, facts_table, findings_table
from markov_spec.store import check_integrity, open_store

app = typer.Typer(
    name="markov-spec",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)

StorePath = Annotated[Path, typer.Argument(metavar="STORE", exists=True, file_okay=False, help="Folder of a store.")]


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


@app.command("evaluate")
def evaluate_command(
    store: StorePath,
    contenders: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONTENDER]...",
            help="Drafters to evaluate, all by default: [b]NAME[/b]; with settings [b]NAME:K=7,rule=block[/b]; every "
            "draft length of a range [b]NAME:K=1-8[/b].",
        ),
    ] = None,
    rule: Annotated[str | None, typer.Option(help=f"One of {', '.join(RULES)}; each drafter's own by default.")] = None,
    draft_length: Annotated[
        int | None, typer.Option(min=0, help="Drafts per round, K; by default the recorded K, or 5 if autoregressive.")
    ] = None,
    first_start: Annotated[
        Literal["0", "1"], typer.Option(help="0: the first token is drafted too; 1: the prefill emits it.")
    ] = "0",
    by: Annotated[Literal["benchmark"] | None, typer.Option(help="One row for each benchmark.")] = None,
    format: Annotated[
        Literal["table", "json", "csv"] | None,
        typer.Option(help="How to print; table by default, or what the name of --out ends in."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of the terminal.")] = None,
) -> None:
    """Print the exact expected decoding rounds of each contender.

    [b]rule[/b]  [b]rejection[/b]: a sampled draft is kept with probability min(1, p/q);
    [b]block[/b]: block verification; [b]match[/b]: a deterministic draft is kept if it is
    the target's own token; [b]independent[/b]: a sampled one if it is; [b]none[/b].

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
    if out is not None and not out.parent.is_dir():
        raise typer.BadParameter(f"folder {out.parent} does not exist", param_hint="--out")
    form = format or {".json": "json", ".csv": "csv"}.get("" if out is None else out.suffix, "table")
    opened = open_store(store)
    chosen = [
        _settled(contender, rule, draft_length)
        for text in contenders or opened.drafters
        for contender in Contender.parse_all(text)
    ]
    results = [evaluate(opened, contender, first_start=int(first_start)) for contender in chosen]
    if form == "json":
        _print(evaluation_json(store, results, by), out)
    elif form == "csv":
        _print(evaluation_csv(results, by), out)
    else:
        _print(evaluation_table(store, results, by), out)


def _settled(given: Contender, rule: str | None, draft_length: int | None) -> Contender:
    return Contender(
        given.drafter,
        rule=given.rule or rule,
        draft_length=draft_length if given.draft_length is None else given.draft_length,
    )


def _print(content: RenderableType | str, out: Path | None = None) -> None:
    if isinstance(content, str):
        sys.stdout.write(content) if out is None else out.write_text(content, encoding="utf-8")
        return
    with nullcontext(sys.stdout) if out is None else out.open("w", encoding="utf-8") as file:
        console = Console(file=file)
        # A terminal too narrow for the columns wraps the lines itself; a file or pipe gets them at full length.
        wanted = Measurement.get(console, console.options.update(max_width=10_000), content)
        console.width = max(console.width, wanted.minimum if console.is_terminal else wanted.maximum)
        console.print(content)


@app.command("record")
def record_command(
    target: Annotated[str, typer.Option(help="[b]hf:PATH[/b], a model folder or GGUF file on disk.")],
    prompts: Annotated[
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="JSON lines: [b]messages[/b], [b]prompt[/b] or [b]prompt_tokens[/b]; optional id and benchmark.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new store.")],
    drafter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SPEC", help="May be given often; see below.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Keep the k likeliest tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens up to this probability; 1 keeps all.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256,
    rollouts_per_prompt: Annotated[int, typer.Option(min=1)] = 1,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 16,
    target_top: Annotated[int, typer.Option(min=0, help="Keep the target's n likeliest tokens; 0 keeps none.")] = 0,
    drafter_top: Annotated[int, typer.Option(min=0, help="Keep each drafter's n likeliest tokens.")] = 0,
    divergence: Annotated[bool, typer.Option("--divergence", help="Keep overlap and KL of each drafter.")] = False,
) -> None:
    """Record a target's rollouts and what each drafter would have drafted. Needs the [b]hf[/b] extra.

    SPEC of a drafter:

    [b]hf:PATH[/b]              a model of the same vocabulary

    [b]skip:10,14,18[/b]        the target without these layers

    [b]round:5[/b]              the target with its linear weights rounded to 5 bits

    [b]ngram:3[/b], [b]ngram:3,10[/b]   prompt lookup of up to 3 tokens, proposing up to 10

    [b]py:module:object[/b]     a BlockDrafter of your own, or a callable that makes one from the target

    For example:

    markov-spec record --target hf:my-model --drafter small=hf:my-drafter --prompts prompts.jsonl --out store
    """
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None:
            raise RequestError(f"recording needs {module}: pip install 'markov-spec[hf]'")
    from transformers.utils import logging

    from markov_spec.sources import record

    logging.disable_progress_bar()
    specs: dict[str, Any] = {}
    for text in drafter or []:
        name, _, spec = text.partition("=")
        if not name or not spec or name in specs:
            raise typer.BadParameter(f"found {text!r}; allowed: NAME=SPEC, each name once", param_hint="--drafter")
        specs[name] = spec
    store = record(
        target,
        specs,
        prompts,
        out,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        rollouts_per_prompt=rollouts_per_prompt,
        seed=seed,
        batch_size=batch_size,
        target_top=target_top,
        drafter_top=drafter_top,
        divergence=divergence,
    )
    typer.echo(f"{out}: {store.rollouts()!r}, drafters: {', '.join(store.drafters) or 'none'}")


@app.command("info")
def info_command(
    store: StorePath, format: Annotated[Literal["table", "json"], typer.Option(help="How to print.")] = "table"
) -> None:
    """Print what a store holds: target, sampling, rollouts, drafters and their parts."""
    facts = open_store(store).facts()
    _print(json.dumps(facts, indent=2) + "\n" if format == "json" else facts_table(facts))


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
        _print(json.dumps({"store": str(store), "findings": [asdict(f) for f in findings]}, indent=2) + "\n")
    else:
        if findings:
            _print(findings_table(findings))
        _print(f"{store}: {'sound' if not errors else f'{errors} error' + 's' * (errors > 1)}\n")
    if errors:
        raise typer.Exit(1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process by default.

    Returns
    -------
    int
        0, 1 (data at fault) or 2 (usage).
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=[word for word in words if word != "--debug"], prog_name="markov-spec", standalone_mode=True)
    except SystemExit as end:
        return int(end.code or 0)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # the reader of our output has gone
        return 1
    except Exception as error:
        if "--debug" in words:
            raise
        told = str(error) or type(error).__name__
        if not isinstance(error, ValueError | OSError):
            told = f"{type(error).__name__}: {told} (a fault of markov-spec; --debug shows where)"
        Console(stderr=True).print(Text.assemble(("error: ", "red"), told), soft_wrap=True)
        return 2 if isinstance(error, RequestError) else 1
    return 0
