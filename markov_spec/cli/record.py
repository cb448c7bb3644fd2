"""The commands that run models."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from markov_spec.arrays import RequestError
from markov_spec.cli.interruption import interruptible
from markov_spec.cli.output import app

Target = Annotated[str, typer.Option(help="[b]hf:PATH[/b], a model folder or GGUF file on disk.")]
DraftTemperature = Annotated[
    float | None, typer.Option(min=0, help="Of the drafters; the target's by default. 0: their likeliest token.")
]
DrafterTop = Annotated[int, typer.Option(min=0, help="Keep each drafter's n likeliest tokens.")]
WithDivergence = Annotated[bool, typer.Option("--divergence", help="Keep overlap and KL of each drafter.")]
WithScalars = Annotated[
    bool,
    typer.Option(
        "--scalars", help="Keep every scalar, for rules of several drafts and lossy rules too; takes far longer."
    ),
]
Beams = Annotated[
    str | None,
    typer.Option(
        metavar="DEPTH,WIDTH,EVERY", help="Keep beams of autoregressive drafters, for trees, at every n-th start."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where a run of the same request was interrupted.")]


@app.command("record")
def record_command(
    target: Target,
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
    min_p: Annotated[float, typer.Option(help="Keep tokens of this share of the likeliest's; 0 keeps all.")] = 0.0,
    order: Annotated[
        str, typer.Option(help="Of these four; [b]joint[/b] stands for the filters all measured on one distribution.")
    ] = "temperature,top_k,top_p,min_p",
    draft_temperature: DraftTemperature = None,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256,
    stop_id: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Token that ends a rollout. May be given often; the model's own by default."),
    ] = None,
    rollouts_per_prompt: Annotated[int, typer.Option(min=1)] = 1,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 16,
    target_top: Annotated[int, typer.Option(min=0, help="Keep the target's n likeliest tokens; 0 keeps none.")] = 0,
    drafter_top: DrafterTop = 0,
    divergence: WithDivergence = False,
    scalars: WithScalars = False,
    candidates: Beams = None,
    resume: Resume = False,
) -> None:
    """Record a target's rollouts and what each drafter would have drafted. Needs the [b]hf[/b] extra.

    SPEC of a drafter:

    [b]hf:PATH[/b]              a model of the same vocabulary

    [b]hf:PATH?d2t=offsets[/b]  a model whose head is of a part of it, told by its tensor d2t; or [b]d2t=absolute[/b]

    [b]hf:PATH?pad=128[/b]      a model whose vocabulary differs by up to so many columns of padding

    [b]skip:10,14,18[/b]        the target without these layers

    [b]round:5[/b]              the target with its linear weights rounded to 5 bits

    [b]ngram:3[/b], [b]ngram:3,10[/b]   prompt lookup of up to 3 tokens, proposing up to 10

    [b]py:module:object[/b]     a BlockDrafter of your own, or a callable that makes one from the target

    For example:

    markov-spec record --target hf:my-model --drafter small=hf:my-drafter --prompts prompts.jsonl --out store
    """
    _need_models()
    from markov_spec.sources import record
    from markov_spec.sources.recorder import RECORDING

    specs, beams = _specs(drafter), _numbers(candidates)
    with interruptible(_kept(out, RECORDING)):
        store = record(
            target,
            specs,
            prompts,
            out,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            order=order.split(","),
            draft_temperature=draft_temperature,
            max_new_tokens=max_new_tokens,
            stop_ids=stop_id,
            rollouts_per_prompt=rollouts_per_prompt,
            seed=seed,
            batch_size=batch_size,
            target_top=target_top,
            drafter_top=drafter_top,
            divergence=divergence,
            scalars=scalars,
            candidates=beams,
            resume=resume,
        )
    typer.echo(f"{out}: {store.rollouts()!r}, drafters: {', '.join(store.drafters) or 'none'}")


@app.command("record-drafters")
def record_drafters_command(
    store: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="A store that record wrote.")],
    target: Target,
    drafter: Annotated[list[str], typer.Option(metavar="NAME=SPEC", help="May be given often; as in record.")],
    draft_temperature: DraftTemperature = None,
    drafter_top: DrafterTop = 0,
    divergence: WithDivergence = False,
    scalars: WithScalars = False,
    candidates: Beams = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace drafters of these names.")] = False,
    resume: Resume = False,
) -> None:
    """Record more drafters on the rollouts of a store. Needs the [b]hf[/b] extra.

    Nothing is generated again: the target must be the store's own, and how it sampled is read from the store.

    For example:

    markov-spec record-drafters store --target hf:my-model --drafter lookup=ngram:3
    """
    _need_models()
    from markov_spec.sources import record_drafters
    from markov_spec.sources.rescore import SCORING

    specs, beams = _specs(drafter), _numbers(candidates)
    with interruptible(_kept(store, SCORING)):
        found = record_drafters(
            store,
            target,
            specs,
            draft_temperature=draft_temperature,
            drafter_top=drafter_top,
            divergence=divergence,
            scalars=scalars,
            candidates=beams,
            overwrite=overwrite,
            resume=resume,
        )
    typer.echo(f"{store}: drafters: {', '.join(found.drafters)}")


def _need_models() -> None:
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None:
            raise RequestError(f"recording needs {module}: pip install 'markov-spec[hf]'")
    from transformers.utils import logging

    logging.disable_progress_bar()


def _kept(out: Path, kind: str) -> Callable[[], str]:
    """Give what tells the finished work that an interrupted run left beside a store."""
    from markov_spec.sources.resume import CHUNKS, work_path

    folder = work_path(out, kind)

    def told() -> str:
        count = len(list(folder.glob(CHUNKS)))
        if not count:
            return "no work was finished, and none is kept"
        return f"{count} chunk{'s' * (count > 1)} of finished work kept in {folder}; --resume goes on with it"

    return told


def _specs(given: list[str] | None) -> dict[str, Any]:
    specs: dict[str, Any] = {}
    for text in given or []:
        name, _, spec = text.partition("=")
        if not name or not spec or name in specs:
            raise typer.BadParameter(f"found {text!r}; allowed: NAME=SPEC, each name once", param_hint="--drafter")
        specs[name] = spec
    return specs


def _numbers(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    words = text.split(",")
    if len(words) != 3 or not all(word.isdecimal() for word in words):
        raise typer.BadParameter(f"found {text!r}; allowed: DEPTH,WIDTH,EVERY, 5,10,1", param_hint="--candidates")
    depth, width, every = map(int, words)
    return depth, width, every
