"""Record a target and its drafters: generate, score every drafter teacher-forced, write the store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from markov_spec.arrays import Array, RequestError
from markov_spec.sources.beam import Candidates
from markov_spec.sources.drafters import Drafter, check_spec
from markov_spec.sources.generate import Generated, generate
from markov_spec.sources.models import CausalLM
from markov_spec.sources.progress import progress_bars
from markov_spec.sources.prompts import Prompt, read_prompts
from markov_spec.sources.reduce import NOTES, Kept
from markov_spec.sources.resume import ASKED, Work, begun, check_work, clear, digest, work_folder
from markov_spec.sources.sampling import ORDER, Sampling
from markov_spec.sources.session import (
    CAUSALITY_CHECKS,
    TARGET,
    Rollout,
    Session,
    Texts,
    check_drafters,
    drafting_as,
    open_session,
)
from markov_spec.store import Store, StoreWriter, open_store

RECORDING = "recording"
OWN = "rollouts"
BARS = ("rollouts", "drafters")


def record(
    target: str | CausalLM,
    drafters: Mapping[str, str | Drafter],
    prompts: str | Path,
    out: str | Path,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    order: Sequence[str] = ORDER,
    draft_temperature: float | None = None,
    max_new_tokens: int = 256,
    stop_ids: Sequence[int] | None = None,
    rollouts_per_prompt: int = 1,
    seed: int = 0,
    batch_size: int = 16,
    target_top: int = 0,
    drafter_top: int = 0,
    divergence: bool = False,
    scalars: bool = False,
    candidates: tuple[int, int, int] | None = None,
    resume: bool = False,
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
        The store to write; must not exist, unless ``resume`` finds it finished.
    temperature, top_k, top_p, min_p : float, int, float, float
        Sampling of target and drafters alike; temperature 0 is greedy.
    order : sequence of str
        In which order these act; see `markov_spec.sources.sampling.Sampling`.
    draft_temperature : float, optional
        The drafters' own temperature: what they draw with and are tested with. At 0 their drafts are deterministic, and
        matched, whatever the target does; above 0 they are sampled, and tested by rejection.
    max_new_tokens : int
    stop_ids : sequence of int, optional
        Tokens that end a rollout; drafts do not pass them, either. By default those of the target's generation settings
        and of its tokenizer; none if empty.
    rollouts_per_prompt : int
    seed : int
        Every rollout's draws depend on (seed, prompt, repetition) alone.
    batch_size : int
        Rollouts decoded together, and kept together as a chunk of finished work.
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
    candidates : (int, int, int), optional
        Keep beams of autoregressive drafters, for trees: their depth, their width, and how many starts lie from one
        beam to the next; part ``beam``. Every beam takes that depth of passes of the drafter.
    resume : bool
        Go on with a recording of the same request that was interrupted; begin where there is none; where it was
        finished, give its store. Chunks of finished work lie in the hidden folder ``.NAME.recording`` beside ``out``
        until the store is whole. Of a request, a `BlockDrafter` is told by its class alone; a recording with one is
        taken as finished only while its chunks are there.
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
        On prompts that are not understood, models that give no numbers, drafters whose vocabulary is not the target's,
        and block drafters that read the future or give no distribution.

    Warns
    -----
    UserWarning
        Of drafters whose ids stand for other texts, or that put probability on ids that the tokenizer does not have.

    Notes
    -----
    Memory holds one chunk. The store of a run that was interrupted and resumed is that of one that was not, to the bit
    where a model gives the same bits again.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, tuple(order))
    drafting = drafting_as(sampling, draft_temperature)
    kept = Kept(target_top, drafter_top, divergence, scalars, candidates and Candidates(*candidates))
    counts = {
        "max_new_tokens": (max_new_tokens, 1),
        "rollouts_per_prompt": (rollouts_per_prompt, 1),
        "batch_size": (batch_size, 1),
        "seed": (seed, 0),
        "target_top": (target_top, 0),
        "drafter_top": (drafter_top, 0),
    }
    known = {"sampling": sampling.to_metadata(), "kept": asdict(kept), **{name: n for name, (n, _) in counts.items()}}
    _check_request(out, target, drafters, resume, counts)
    check_work(out, RECORDING, resume, {} if Path(out).exists() else known)
    if sampling.greedy and rollouts_per_prompt > 1:
        raise RequestError(
            f"rollouts_per_prompt: found {rollouts_per_prompt} at temperature 0, where all are equal; allowed: 1"
        )
    session = open_session(target, drafters, sampling, drafting, kept, stop_ids)
    _check_stops(stop_ids or (), session.target)
    asked = read_prompts(prompts, session.target.tokenizer)
    session.check_drafters(list(max(asked, key=lambda prompt: len(prompt.tokens)).tokens))
    runs = [_Run(prompt, (seed, i, j)) for i, prompt in enumerate(asked) for j in range(rollouts_per_prompt)]
    facts = session.target_metadata()
    told = digest([(prompt.id, prompt.benchmark, prompt.tokens) for prompt in asked])
    request = {**facts, **session.request(), "prompts": told, **{name: count for name, (count, _) in counts.items()}}
    if Path(out).exists():
        return _finished(out, session, request)
    chunks = [runs[first : first + batch_size] for first in range(0, len(runs), batch_size)]
    facts |= {"max_new_tokens": max_new_tokens, "seed": seed, ASKED: digest(request)}
    with work_folder(out, RECORDING, request, resume) as work:
        _record_chunks(session, work, chunks, max_new_tokens, progress)
        _write(out, session, work, chunks, facts)
    return open_store(out)


def _asked(out: str | Path) -> Any:
    """The digest of what a store was asked for; None where none is told, or no store stands."""
    with suppress(ValueError):
        return open_store(out).metadata.get(ASKED)
    return None


def _finished(out: str | Path, session: Session, request: Mapping[str, Any]) -> Store:
    """Give the store of this very request, and remove the work that a killed run left of it."""
    left = begun(out, RECORDING, request)
    if _asked(out) != digest(request) or not (left or all(map(session.is_told, session.drafters))):
        raise RequestError(f"{out}: already exists, and is not known to be of this request; allowed: a new folder")
    if left:
        clear(out, RECORDING)
    return open_store(out)


@dataclass(frozen=True)
class _Run:
    """A rollout to generate: its prompt, and its own seed, which ends in the number of the repetition."""

    prompt: Prompt
    seed: tuple[int, int, int]

    @property
    def id(self) -> str:
        return f"{self.prompt.id}/{self.seed[-1]}"


def _record_chunks(
    session: Session, work: Work, chunks: Sequence[list[_Run]], max_new_tokens: int, progress: bool
) -> None:
    """Generate and score the chunks that are not there; each is a batch of its own."""
    todo = [number for number in range(len(chunks)) if not work.done(number)]
    runs = [run for number in todo for run in chunks[number]]
    total = sum(map(len, chunks))
    checks = CAUSALITY_CHECKS
    with progress_bars(progress) as bars:
        made, scored = (bars.add_task(name, total=total, completed=total - len(runs)) for name in BARS)
        rollouts = iter(
            generate(
                session.target,
                [run.prompt.tokens for run in runs],
                seeds=[run.seed for run in runs],
                sampling=session.sampling,
                max_new_tokens=max_new_tokens,
                batch_size=max(map(len, chunks)),
                names=[run.id for run in runs],
                advance=lambda count: bars.advance(made, count),
            )
        )
        for number in todo:
            own = list(islice(rollouts, len(chunks[number])))
            given = [
                Rollout(run.id, list(run.prompt.tokens), rollout.tokens, rollout.log_p)
                for run, rollout in zip(chunks[number], own, strict=True)
            ]
            content = session.score(given, checks, lambda: bars.advance(scored))
            content[TARGET][OWN] = _columns(own)
            work.save(number, content)
            checks = max(0, checks - len(own))


def _columns(rollouts: Sequence[Generated]) -> dict[str, Array]:
    return {
        "tokens": np.array([t for r in rollouts for t in r.tokens], dtype=np.int32),
        "log_p": np.array([v for r in rollouts for v in r.log_p], dtype=np.float32),
        "lengths": np.array([len(r.tokens) for r in rollouts], dtype=np.int64),
        "stopped": np.array([r.finish_reason == "stop" for r in rollouts]),
    }


def _write(
    out: str | Path, session: Session, work: Work, chunks: Sequence[list[_Run]], facts: Mapping[str, Any]
) -> None:
    """Write the store, a chunk at a time."""
    notes = session.notes(work, len(chunks))
    with StoreWriter(out, metadata={**facts, **notes[TARGET]}, vocab=Texts(session.target)) as writer:
        for number, runs in enumerate(chunks):
            content = work.load(number)
            columns = content.pop(TARGET)
            own = columns.pop(OWN)
            writer.add_rollouts(
                rollout_ids=[run.id for run in runs],
                prompt_ids=[run.prompt.id for run in runs],
                benchmarks=[run.prompt.benchmark for run in runs],
                prompt_tokens=[np.array(run.prompt.tokens, dtype=np.int32) for run in runs],
                tokens=own["tokens"],
                indptr=np.concatenate([[0], np.cumsum(own["lengths"])]),
                log_p=own["log_p"],
                finish_reasons=["stop" if stopped else "length" for stopped in own["stopped"]],
                parts={name: part for name, part in columns.items() if name != NOTES},
            )
            for name, drafted in content.items():
                writer.add_drafts(session.drafts(name, drafted, notes[name]))


def _check_request(
    out: str | Path,
    target: str | CausalLM,
    drafters: Mapping[str, str | Drafter],
    resume: bool,
    counts: Mapping[str, tuple[int, int]],
) -> None:
    """Refuse what cannot work before any model is loaded."""
    if Path(out).exists() and not (resume and _asked(out)):
        raise RequestError(f"{out}: already exists; allowed: a new folder")
    for setting, (found, least) in counts.items():
        if not isinstance(found, int) or found < least:
            raise RequestError(f"{setting}: found {found}; allowed: {least} or more")
    if isinstance(target, str):
        check_spec(target, target=True)
    check_drafters(drafters)
    parent = Path(out).resolve().parent
    parent.mkdir(parents=True, exist_ok=True)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise RequestError(f"{out}: {parent} cannot be written")


def _check_stops(stop_ids: Sequence[int], target: CausalLM) -> None:
    for token in stop_ids:
        if not 0 <= token < target.vocab_size:
            raise RequestError(f"stop_ids: found {token}; allowed: token ids 0 to {target.vocab_size - 1}")
