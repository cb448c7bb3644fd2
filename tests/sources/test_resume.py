"""Recordings that were killed, and resumed, against one that was not."""

import os
import signal
import time
import tracemalloc

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.sources import record, record_drafters, recorder, resume
from markov_spec.store import StoreWriter, files
from tests.sources.test_recorder import Hydra

SETTINGS = {
    "max_new_tokens": 8,
    "rollouts_per_prompt": 3,
    "seed": 7,
    "batch_size": 2,
    "drafter_top": 4,
    "divergence": True,
}
CHUNKS = 5  # of 3 prompts, 3 rollouts each


def start(target, prompts_path, out, **settings):
    drafters = {"round4": "round:4", "hydra": Hydra(target), "lookup": "ngram:3,4"}
    return record(target, drafters, prompts_path, out, progress=False, **{**SETTINGS, **settings})


def tree(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def forked(work):
    """Run ``work`` in a process of its own; its id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


@pytest.fixture(scope="module")
def whole(target, prompts_path, tmp_path_factory):
    begun = time.monotonic()
    store = start(target, prompts_path, tmp_path_factory.mktemp("whole") / "run")
    return store, time.monotonic() - begun


def check_same(store, whole, folder):
    assert store.fingerprint == whole.fingerprint
    assert tree(store.path) == tree(whole.path)
    assert not (folder / ".run.recording").exists()


def suicidal(patch, owner, name, at, *, after):
    """Let the process kill itself before or after a call of ``owner.name``."""
    call, count = getattr(owner, name), 0

    def wrapped(*args, **given):
        nonlocal count
        count += 1
        if count == at and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        out = call(*args, **given)
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return out

    patch.setattr(owner, name, wrapped)


MOMENTS = [
    (resume.Work, "save", 1, False, 0),
    (resume.Work, "save", 1, True, 1),
    (resume.Path, "rename", 1, False, 0),  # of the request
    (resume.Path, "rename", 4, False, 2),  # of the third chunk
    (resume.Work, "save", CHUNKS, True, CHUNKS),
    (StoreWriter, "add_rollouts", 3, False, CHUNKS),
    (resume, "discard", 1, False, CHUNKS),  # the store is whole
]


@pytest.mark.parametrize(("owner", "name", "at", "after", "chunks"), MOMENTS)
def test_killed_at_a_step_and_resumed_invariant(
    target, prompts_path, whole, tmp_path, monkeypatch, owner, name, at, after, chunks
):
    out = tmp_path / "run"

    def work():
        suicidal(monkeypatch, owner, name, at, after=after)
        start(target, prompts_path, out)

    assert os.waitpid(forked(work), 0)[1] == signal.SIGKILL
    assert len(list((tmp_path / ".run.recording").glob("chunk-*"))) == chunks
    made, generate = [], recorder.generate

    def counted(*args, **given):
        for rollout in generate(*args, **given):
            made.append(rollout)
            yield rollout

    monkeypatch.setattr(recorder, "generate", counted)
    check_same(start(target, prompts_path, out, resume=True), whole[0], tmp_path)
    assert len(made) == 9 - min(9, 2 * chunks)


def test_killed_at_random_moments_and_resumed_invariant(target, prompts_path, whole, tmp_path):
    store, took = whole
    rng, kills = np.random.default_rng(), 0
    for run in range(4):
        folder = tmp_path / str(run)
        folder.mkdir()
        out = folder / "run"
        for _ in range(4):
            child = forked(lambda out=out: start(target, prompts_path, out, resume=True))
            time.sleep(rng.uniform(0, took))
            os.kill(child, signal.SIGKILL)
            kills += os.waitpid(child, 0)[1] == signal.SIGKILL
        finished = ms.open_store(out) if out.exists() and not (folder / ".run.recording").exists() else None
        check_same(finished or start(target, prompts_path, out, resume=True), store, folder)
    assert kills > 0


def test_interrupted_work_is_not_begun_anew_nor_mixed_invariant(target, prompts_path, whole, tmp_path, monkeypatch):
    out, save, saved = tmp_path / "run", resume.Work.save, []

    def interrupted(work, number, content):
        if len(saved) == 3:
            raise KeyboardInterrupt
        saved.append(number)
        save(work, number, content)

    with monkeypatch.context() as patch:
        patch.setattr(resume.Work, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start(target, prompts_path, out)
    with pytest.raises(
        ms.RequestError, match=r"found interrupted work of 3 chunks in .*recording; allowed: resume=True"
    ):
        start(target, prompts_path, out)
    other = tmp_path / "other.jsonl"
    other.write_text('{"prompt_tokens": [5, 6]}')
    for name, change in (
        ("seed", {"seed": 8}),
        ("batch_size", {"batch_size": 3}),
        ("kept.scalars", {"scalars": True}),
        ("drafters.hydra.sampling.temperature", {"draft_temperature": 0.5}),
        ("sampling.min_p", {"min_p": 0.1}),
    ):
        with pytest.raises(
            ms.RequestError, match=rf"^{name}: found .*; allowed: .*, with which .*\.run\.recording began"
        ):
            start(target, prompts_path, out, resume=True, **change)
    with pytest.raises(ms.RequestError, match="prompts: found"):
        start(target, other, out, resume=True)
    check_same(start(target, prompts_path, out, resume=True), whole[0], tmp_path)
    with pytest.raises(ms.RequestError, match="is not known to be of this request"):  # of Hydra's weights, none knows
        start(target, prompts_path, out, resume=True)


def test_failure_before_the_first_chunk_leaves_nothing_invariant(target, prompts_path, tmp_path, monkeypatch):
    def failing(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(resume.Work, "save", failing)
    with pytest.raises(OSError, match="no space left"):
        start(target, prompts_path, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_memory_does_not_grow_with_the_rollouts_invariant(target, prompts_path, tmp_path, monkeypatch):
    """Chunks of two rollouts each: 8 times as many take little more memory, though the store is 8 times as large."""
    monkeypatch.setattr(files, "GROUP_BYTES", 50_000)
    peaks, sizes = [], []
    for count in (1, 2, 16):
        tracemalloc.start()
        out = tmp_path / str(count)
        store = start(target, prompts_path, out, rollouts_per_prompt=count, drafter_top=40, max_new_tokens=60)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        parts = [store.drafter_part(name, part) for name in store.drafters for part in store.drafter_parts(name)]
        sizes.append(sum(values.nbytes for part in parts for values in part.values()))
    assert sizes[2] > 6 * sizes[1]
    assert peaks[2] - peaks[1] < (sizes[2] - sizes[1]) / 2


def test_drafters_recorded_later_are_resumed_too_invariant(target, prompts_path, tmp_path, monkeypatch):
    drafters = {"a": "round:4", "b": Hydra(target)}
    stores = [record(target, {}, prompts_path, tmp_path / name, progress=False, **SETTINGS) for name in ("run", "same")]
    monkeypatch.setattr("markov_spec.sources.rescore.POSITIONS", 20)
    whole = record_drafters(stores[1].path, target, drafters, progress=False)
    later = "markov_spec.sources.rescore"
    for owner, name, at, after in ((resume.Work, "save", 2, True), (None, "add_drafter", 2, False)):

        def work(owner=owner, name=name, at=at, after=after):
            suicidal(monkeypatch, owner or __import__(later, fromlist=["x"]), name, at, after=after)
            record_drafters(stores[0].path, target, drafters, resume=True, progress=False)

        assert os.waitpid(forked(work), 0)[1] == signal.SIGKILL
    assert len(list((tmp_path / ".run.scoring").glob("chunk-*"))) > 2
    with pytest.raises(ms.RequestError, match="found interrupted work"):
        record_drafters(stores[0].path, target, drafters, progress=False)
    assert ms.open_store(stores[0].path).drafters == ("a",)
    record_drafters(stores[0].path, target, drafters, resume=True, progress=False)
    assert tree(stores[0].path) == tree(whole.path)
    assert not (tmp_path / ".run.scoring").exists()
