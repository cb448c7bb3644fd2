"""Record a target and its drafters: generate, score every drafter teacher-forced, write the store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from markov_spec.arrays import Array, Drafts, RequestError
from markov_spec.sources.drafters import BlockDrafter, Drafter, Lookup, check_spec, find_object, parse_drafter
from markov_spec.sources.generate import generate
from markov_spec.sources.models import CausalLM, load_hf, read_prompts
from markov_spec.sources.reduce import (
    Columns,
    Kept,
    Pile,
    check_blocks,
    drafter_columns,
    named,
    score_target,
    target_columns,
)
from markov_spec.sources.sampling import Sampling
from markov_spec.store import Store, check_name, write_store

CAUSALITY_CHECKS = 3
SHORT = 3


def record(
    target: str | CausalLM,
    drafters: Mapping[str, str | Drafter],
    prompts: str | Path,
    out: str | Path,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    draft_temperature: float | None = None,
    max_new_tokens: int = 256,
    rollouts_per_prompt: int = 1,
    seed: int = 0,
    batch_size: int = 16,
    target_top: int = 0,
    drafter_top: int = 0,
    divergence: bool = False,
    scalars: bool = False,
    progress: bool = True,
) -> Store:
    """Generate the target's rollouts, score every drafter on them and write a store.

    Parameters
    ----------
    target : str or CausalLM
        ``hf:PATH``, or a loaded model.
    drafters : mapping of str to str, CausalLM, Lookup or BlockDrafter
        Name -> spec (see ``markov-spec record --help``) or the drafter itself.
    prompts : path
        JSON lines, each with ``messages``, ``prompt`` or ``prompt_tokens``; optional ``id`` and ``benchmark``.
    out : path
        The store to write; must not exist.
    temperature, top_k, top_p : float, int, float
        Sampling of target and drafters alike, applied in this order; temperature 0 is greedy.
    draft_temperature : float, optional
        The drafters' own temperature: what they draw with and are tested with. At 0 their drafts are deterministic, and
        matched, whatever the target does; above 0 they are sampled, and tested by rejection.
    max_new_tokens : int
    rollouts_per_prompt : int
    seed : int
        Every rollout's draws depend on (seed, prompt, repetition) alone.
    batch_size : int
        Prompts decoded together.
    target_top, drafter_top : int
        Keep lists of that many likeliest tokens of the plain softmax at each position (each depth for a block drafter).
    divergence : bool
        Keep each drafter's overlap with the target (of the decoding distributions), and the Kullback-Leibler
        divergences both ways and entropy of the plain softmax, in nats.
    scalars : bool
        Keep these and every other scalar of ``markov_spec.acceptance.scalars`` and ``.transport``, of the decoding
        distributions: the whole parts ``divergence``, ``multi`` (for several drafts at a depth) and ``relaxed`` (for
        lossy rules) of ``markov_spec.store.schema``. Lookup has overlap, cost and ``relaxed`` only. Takes far longer
        than the rest of scoring: some 50 ms for each position, depth and drafter at 50 000 tokens on a CPU core.
    progress : bool
        Show progress bars on stderr.

    Returns
    -------
    Store

    Raises
    ------
    RequestError
        On specs or settings that cannot work, before any model is loaded where that can be known.
    ValueError
        On prompts that are not understood, and block drafters that read the future or give no distribution.
    """
    sampling = Sampling(temperature, top_k, top_p)
    drafting = _drafting(sampling, draft_temperature)
    kept = Kept(target_top, drafter_top, divergence, scalars)
    counts = {
        "max_new_tokens": (max_new_tokens, 1),
        "rollouts_per_prompt": (rollouts_per_prompt, 1),
        "batch_size": (batch_size, 1),
        "seed": (seed, 0),
        "target_top": (target_top, 0),
        "drafter_top": (drafter_top, 0),
    }
    _check_request(out, target, drafters, sampling, counts)
    model = load_hf(check_spec(target, target=True)[1]) if isinstance(target, str) else target
    chosen = {name: parse_drafter(d, model) if isinstance(d, str) else d for name, d in drafters.items()}
    for name, drafter in chosen.items():
        if isinstance(drafter, CausalLM) and drafter.vocab_size != model.vocab_size:
            raise ValueError(
                f"drafter {name!r}: found {drafter.vocab_size} token ids; allowed: the target's {model.vocab_size}"
            )
    asked = read_prompts(prompts, model.tokenizer)
    reads_hidden = any(isinstance(d, BlockDrafter) and d.hidden_layers for d in chosen.values())
    probe = max(asked, key=lambda prompt: len(prompt.tokens)).tokens
    if len(probe) > SHORT:  # faults of a drafter are told before hours of decoding
        halves = probe[: len(probe) // 2], probe[len(probe) // 2 :]
        check_blocks(chosen, score_target(model, *halves, sampling, hidden=reads_hidden))
    runs = [(prompt, i, j) for i, prompt in enumerate(asked) for j in range(rollouts_per_prompt)]
    with _bars(progress) as bars:
        task = bars.add_task("rollouts", total=len(runs))
        rollouts = generate(
            model,
            [prompt.tokens for prompt, _, _ in runs],
            seeds=[(seed, i, j) for _, i, j in runs],
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            advance=lambda count: bars.advance(task, count),
        )
        task = bars.add_task("drafters", total=len(runs))
        piles = {name: Pile() for name in chosen}
        own, apart, unchecked = Pile(), 0.0, CAUSALITY_CHECKS
        for (prompt, _, _), rollout in zip(runs, rollouts, strict=True):
            scored = score_target(model, prompt.tokens, rollout.tokens, sampling, hidden=reads_hidden)
            if unchecked:
                check_blocks(chosen, scored)
                unchecked -= 1
            own.add(target_columns(scored, kept))
            apart = max(apart, scored.apart_from(rollout.log_p))
            for name, drafter in chosen.items():
                with named(name):
                    piles[name].add(drafter_columns(drafter, scored, kept, drafting))
            bars.advance(task)
    drafts = {name: _drafts(name, chosen[name], piles[name].stacked(), drafting) for name in chosen}
    run = {"max_new_tokens": max_new_tokens, "seed": seed, "scored_apart": apart}
    lengths = [len(r.tokens) for r in rollouts]
    tokens = np.array([t for r in rollouts for t in r.tokens], dtype=np.int32)
    parts = own.stacked()
    listed = [d.parts["lists"]["ids"] for d in drafts.values() if "lists" in d.parts]
    listed += [parts["lists"]["ids"]] if "lists" in parts else []
    return write_store(
        out,
        rollout_ids=[f"{prompt.id}/{j}" for prompt, _, j in runs],
        prompt_ids=[prompt.id for prompt, _, _ in runs],
        benchmarks=[prompt.benchmark for prompt, _, _ in runs],
        prompt_tokens=[np.array(prompt.tokens, dtype=np.int32) for prompt, _, _ in runs],
        tokens=tokens,
        indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        log_p=np.array([v for r in rollouts for v in r.log_p], dtype=np.float32),
        finish_reasons=[r.finish_reason for r in rollouts],
        drafters=drafts,
        metadata={**_target_metadata(model, sampling), **run},
        parts=parts,
        vocab=_vocab(model, [tokens, *(np.array(p.tokens) for p in asked), *listed]),
    )


def _drafting(sampling: Sampling, temperature: float | None) -> Sampling:
    """How drafts are drawn: as the target's tokens, but for a temperature of their own."""
    try:
        return sampling if temperature is None else replace(sampling, temperature=temperature)
    except RequestError as error:
        raise RequestError(f"draft_{error}") from None


def _check_request(
    out: str | Path,
    target: str | CausalLM,
    drafters: Mapping[str, str | Drafter],
    sampling: Sampling,
    counts: Mapping[str, tuple[int, int]],
) -> None:
    """Refuse what cannot work before any model is loaded."""
    if Path(out).exists():
        raise RequestError(f"{out}: already exists; allowed: a new folder")
    for setting, (found, least) in counts.items():
        if not isinstance(found, int) or found < least:
            raise RequestError(f"{setting}: found {found}; allowed: {least} or more")
    repeats, _ = counts["rollouts_per_prompt"]
    if sampling.greedy and repeats > 1:
        raise RequestError(f"rollouts_per_prompt: found {repeats} at temperature 0, where all are equal; allowed: 1")
    if isinstance(target, str):
        check_spec(target, target=True)
    for name, drafter in drafters.items():
        try:
            check_name(name)
        except ValueError as error:
            raise RequestError(str(error)) from None
        if isinstance(drafter, str):
            kind, rest = check_spec(drafter)
            if kind == "py":
                find_object(*rest.split(":", 1))
    parent = Path(out).resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise RequestError(f"{out}: {parent} cannot be written")


@contextmanager
def _bars(shown: bool) -> Iterator[Progress]:
    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=not shown) as bars:
        yield bars


def _target_metadata(model: CausalLM, sampling: Sampling) -> dict[str, Any]:
    return {
        "target": model.name,
        "target_fingerprint": model.fingerprint(),
        "tokenizer": type(model.tokenizer).__name__,
        "tokenizer_fingerprint": model.tokenizer_fingerprint(),
        "vocab_size": model.vocab_size,
        "stop_ids": list(model.stop_ids),
        "sampling": sampling.to_metadata(),
        "logprob_space": "processed",
    }


def _drafts(name: str, drafter: Drafter, columns: Columns, drafting: Sampling) -> Drafts:
    law = columns.pop("law")
    deterministic = drafting.greedy or isinstance(drafter, Lookup)
    return Drafts(
        name,
        "autoregressive" if isinstance(drafter, CausalLM) else "block",
        "match" if deterministic else "rejection",
        law["log_q"],
        law["rank"],
        law.get("drafted"),
        parts=columns,
        metadata=_drafter_metadata(drafter, drafting),
    )


def _drafter_metadata(drafter: Drafter, drafting: Sampling) -> dict[str, Any]:
    if isinstance(drafter, Lookup):
        return {"source": f"ngram:{drafter.ngram},{drafter.depth}"}
    if isinstance(drafter, CausalLM):
        return {"source": drafter.name, "fingerprint": drafter.fingerprint(), "sampling": drafting.to_metadata()}
    return {"source": f"py:{type(drafter).__module__}:{type(drafter).__name__}", "sampling": drafting.to_metadata()}


def _vocab(target: CausalLM, ids: Sequence[Array]) -> dict[int, str]:
    occurring = sorted({int(i) for array in ids for i in np.unique(array) if i >= 0})
    texts = target.tokenizer.batch_decode([[i] for i in occurring])
    return dict(zip(occurring, texts, strict=True))
