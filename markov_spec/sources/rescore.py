"""Record drafters later: score them on the rollouts of a store, which are not generated again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from markov_spec.arrays import RequestError
from markov_spec.sources.beam import Candidates
from markov_spec.sources.drafters import Drafter
from markov_spec.sources.models import CausalLM
from markov_spec.sources.progress import progress_bars
from markov_spec.sources.reduce import Kept
from markov_spec.sources.resume import ASKED, Work, begun, check_work, clear, work_folder
from markov_spec.sources.sampling import Sampling
from markov_spec.sources.session import (
    CAUSALITY_CHECKS,
    TARGET,
    Rollout,
    Session,
    check_drafters,
    drafting_as,
    open_session,
)
from markov_spec.store import Store, add_drafter, open_store
from markov_spec.store.metadata import drawn_as_recorded

SCORING = "scoring"
POSITIONS = 1 << 14  # of a chunk


def record_drafters(
    store: str | Path,
    target: str | CausalLM,
    drafters: Mapping[str, str | Drafter],
    *,
    draft_temperature: float | None = None,
    drafter_top: int = 0,
    divergence: bool = False,
    scalars: bool = False,
    candidates: tuple[int, int, int] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = True,
) -> Store:
    """Score new drafters on the rollouts of a store, which are not generated again.

    What ends a rollout is as the store says.

    Parameters
    ----------
    store : path
        With the target's fingerprint, its sampling and the prompts, as `record` writes them.
    target : str or CausalLM
        The store's own: a drafter's scalars compare it with the target, and many drafters are made from it.
    drafters : mapping of str to str, CausalLM, Lookup or BlockDrafter
        Name -> spec or the drafter itself, as in `record`.
    draft_temperature : float, optional
    drafter_top : int
    divergence, scalars : bool
    candidates : (int, int, int), optional
        As in `record`. The filters of the drafters, and their temperature by default, are the target's.
    overwrite : bool
        Replace drafters of these names.
    resume : bool
        Go on with a run of the same request that was interrupted; begin where there is none. Drafters that it has
        finished stay; so does one that was recorded before by the same request, unless it is a `BlockDrafter`, which
        a request tells by its class alone.
    progress : bool
        Show a progress bar on stderr.

    Returns
    -------
    Store

    Raises
    ------
    RequestError
        On specs or settings that cannot work, a store that lacks what is needed, or another target than its own.
    ValueError
        As `record`.
    """
    old = open_store(store)
    sampling = _recorded_sampling(old)
    drafting = drafting_as(sampling, draft_temperature)
    kept = Kept(0, drafter_top, divergence, scalars, candidates and Candidates(*candidates))
    check_drafters(drafters)
    if not drafters:
        raise RequestError("drafters: found none; allowed: one or more")
    check_work(store, SCORING, resume, {"store": old.fingerprint, "kept": asdict(kept)})
    facts = {} if overwrite else old.facts()["drafters"]
    taken = {name: facts[name].get(ASKED) for name in drafters if name in facts}
    _check_free(store, [name for name, asked in taken.items() if not (resume and asked)])
    session = open_session(target, drafters, sampling, drafting, kept, old.metadata.get("stop_ids"))
    _check_same_target(old, session)
    request = {"store": old.fingerprint, **session.request()}
    left = begun(store, SCORING, request)
    done = [n for n, asked in taken.items() if asked == session.asked(n) and (left or session.is_told(n))]
    _check_free(store, [name for name in taken if name not in done])
    if len(done) == len(drafters):
        if left:
            clear(store, SCORING)
        return old
    with work_folder(store, SCORING, request, resume) as work:
        count = _score_store(session, work, old, progress)
        notes = session.notes(work, count)
        for name in drafters:
            if name in done:
                continue
            told = {**notes[TARGET], **notes[name]}
            batches = (session.drafts(name, work.load(number)[name], told) for number in range(count))
            add_drafter(store, batches, overwrite=overwrite)
    return open_store(store)


def _check_free(store: str | Path, taken: list[str]) -> None:
    if taken:
        raise RequestError(
            f"{store}: drafter {taken[0]!r} exists; allowed: another name, or overwrite=True (--overwrite)"
        )


def _score_store(session: Session, work: Work, store: Store, progress: bool) -> int:
    """Score the chunks that are not there; give the number of all."""
    checks, count = CAUSALITY_CHECKS, 0
    with progress_bars(progress) as bars:
        task = bars.add_task("drafters", total=len(store))
        for number, batch in enumerate(store.batches(POSITIONS)):
            count += 1
            if work.done(number):
                bars.advance(task, len(batch))
                continue
            content = session.score(_rollouts(batch), checks, lambda: bars.advance(task))
            del content[TARGET]["divergence"]
            work.save(number, content)
            checks = max(0, checks - len(batch))
    return count


def _rollouts(store: Store) -> list[Rollout]:
    given = store.rollouts()
    found = []
    for i, (name, prompt) in enumerate(zip(given.ids, given.prompt_tokens, strict=True)):
        if not prompt.size:
            raise RequestError(f"{store.path}: rollout {name!r}: found no prompt tokens; allowed: those it was given")
        rows = slice(*given.indptr[i : i + 2])
        found.append(Rollout(name, prompt.tolist(), given.tokens[rows].tolist(), given.log_p[rows].tolist()))
    return found


def _recorded_sampling(store: Store) -> Sampling:
    facts = store.metadata
    if facts.get("sampling") is None:
        raise RequestError(f"{store.path}: metadata: found no sampling; allowed: that of the target's tokens")
    sampling = Sampling.from_metadata(facts["sampling"])
    if not drawn_as_recorded(facts, facts["sampling"]):
        raise RequestError(
            f"{store.path}: metadata: found logprob_space {facts.get('logprob_space')!r}; allowed: 'processed', the "
            "log-probabilities of the distributions that tokens are drawn from"
        )
    return sampling


def _check_same_target(store: Store, session: Session) -> None:
    found, allowed = session.target.fingerprint(), store.metadata.get("target_fingerprint")
    if found != allowed:
        raise RequestError(
            f"target {session.target.name}: found fingerprint {found[:12]}...; allowed: "
            f"{'none is recorded' if allowed is None else allowed[:12] + '...'}, that of {store.path}, whose rollouts "
            "another model has not said"
        )
