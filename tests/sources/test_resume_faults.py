"""Kills within the removal of finished work, work of other requests, and drafters and stores of others."""

import os
import shutil
import signal

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.sources import record, record_drafters, recorder, rescore, resume
from markov_spec.store import install
from tests.sources.test_recorder import Hydra
from tests.sources.test_resume import forked, suicidal, tree

SETTINGS = {"max_new_tokens": 6, "seed": 3, "batch_size": 2, "progress": False}
DRAFTERS = {"a": "round:4", "b": "ngram:2,3"}


def dying(folder, **_):
    """What a kill within a removal leaves: the request is gone, the chunks are not."""
    for path in folder.glob("*.json"):
        path.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


def killed(work):
    assert os.waitpid(forked(work), 0)[1] == signal.SIGKILL


def killed_removing(monkeypatch, work):
    with monkeypatch.context() as patch:
        patch.setattr(install.shutil, "rmtree", dying)
        killed(work)


def killed_before(monkeypatch, owner, name, work):
    with monkeypatch.context() as patch:
        suicidal(patch, owner, name, 1, after=False)
        killed(work)


def failed(monkeypatch, owner, name, work):
    def failing(*_, **__):
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr(owner, name, failing)
        work()


@pytest.fixture
def old(target, prompts_path, tmp_path):
    return record(target, {}, prompts_path, tmp_path / "run", **SETTINGS)


def test_kill_within_the_last_removal_mixes_no_requests_against_reference(target, old, tmp_path, monkeypatch):
    def later(**settings):
        return record_drafters(old.path, target, DRAFTERS, progress=False, **settings)

    killed_removing(monkeypatch, later)
    assert not (tmp_path / ".run.scoring").exists()
    (note,) = (f for f in ms.store.check_integrity(old.path) if "z-stat" not in f.message)
    assert "left by an interrupted write" in note.message
    with pytest.raises(ms.RequestError, match="drafter 'a' exists; allowed: another name, or overwrite=True"):
        later(resume=True, draft_temperature=3.0)
    hot = later(resume=True, draft_temperature=3.0, overwrite=True).drafter("a").log_q
    assert main(["check", str(old.path), "--clean"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    np.testing.assert_array_equal(hot, later(draft_temperature=3.0, overwrite=True).drafter("a").log_q)
    assert (hot != later(overwrite=True).drafter("a").log_q).any()


def test_chunks_without_their_request_are_refused_invariant(target, old, monkeypatch):
    def later():
        return record_drafters(old.path, target, DRAFTERS, resume=True, progress=False)

    failed(monkeypatch, rescore, "add_drafter", later)
    folder = old.path.with_name(".run.scoring")
    (folder / "request.json").rename(folder / "kept")
    with pytest.raises(ms.RequestError, match=r"\.run\.scoring: found chunks without request\.json, which tells"):
        later()
    for text in ("", "{"):
        (folder / "request.json").write_text(text)
        with pytest.raises(ValueError, match=r"\.run\.scoring/request\.json: no valid JSON"):
            later()
    (folder / "kept").replace(folder / "request.json")
    assert later().drafters == ("a", "b")


@pytest.mark.parametrize("size", [0, 10, -30])
def test_truncated_chunk_is_named_and_done_again_against_reference(target, old, prompts_path, monkeypatch, size):
    def start(name):
        return record(target, DRAFTERS, prompts_path, old.path.with_name(name), resume=True, **SETTINGS)

    failed(monkeypatch, recorder, "_write", lambda: start("new"))
    chunk = old.path.with_name(".new.recording") / "chunk-000001.npz"
    os.truncate(chunk, size if size >= 0 else chunk.stat().st_size + size)
    with pytest.raises(ValueError, match=r"\.new\.recording/chunk-000001\.npz: truncated or damaged: .*done again"):
        start("new")
    chunk.unlink()
    assert tree(start("new").path) == tree(start("whole").path)


def test_finished_recording_is_known_by_its_request_invariant(target, prompts_path, tmp_path, monkeypatch):
    def start(**changes):
        return record(target, DRAFTERS, prompts_path, tmp_path / "run", **{**SETTINGS, "resume": True, **changes})

    killed_before(monkeypatch, resume, "discard", start)
    whole, work = tree(tmp_path / "run"), tree(tmp_path / ".run.recording")
    for left in (True, False):
        for change in ({"max_new_tokens": 3}, {"temperature": 0.5}, {"batch_size": 3}, {"divergence": True}):
            with pytest.raises(ms.RequestError, match="run: already exists, and is not known to be of this request"):
                start(**change)
        with pytest.raises(ms.RequestError, match="run: already exists; allowed: a new folder"):
            start(resume=False)
        assert tree(tmp_path / ".run.recording") == (work if left else {})
        assert tree(start().path) == whole
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    killed_removing(monkeypatch, lambda: record(target, {}, prompts_path, tmp_path / "other", **SETTINGS))
    again = record(target, {}, prompts_path, tmp_path / "other", resume=True, **SETTINGS)
    assert again.rollouts().ids == start().rollouts().ids


def test_store_of_another_where_work_waits_is_not_taken_for_it_invariant(
    target, prompts_path, old, tmp_path, monkeypatch
):
    def start(resume=True):
        return record(target, DRAFTERS, prompts_path, tmp_path / "new", resume=resume, **SETTINGS)

    failed(monkeypatch, recorder, "_write", start)
    work = tree(tmp_path / ".new.recording")
    plain = ms.write_store(
        tmp_path / "plain", rollout_ids=["a"], prompt_ids=["p"], tokens=np.arange(2), indptr=[0, 2], log_p=np.zeros(2)
    ).path
    for foreign, words in ((old.path, "is not known to be of this request"), (plain, "exists; allowed: a new folder")):
        shutil.copytree(foreign, tmp_path / "new")
        with pytest.raises(ms.RequestError, match=words):
            start()
        assert tree(tmp_path / "new") == tree(foreign) and tree(tmp_path / ".new.recording") == work
        shutil.rmtree(tmp_path / "new")
    assert start().drafters == ("a", "b") and not (tmp_path / ".new.recording").exists()


def test_drafter_of_another_is_not_replaced_by_work_that_waited_invariant(target, old, monkeypatch):
    def later(**settings):
        return record_drafters(old.path, target, DRAFTERS, progress=False, **settings)

    killed_before(monkeypatch, rescore, "add_drafter", later)
    count = old.index[1][-1]
    ms.add_drafter(old.path, ms.Drafts("b", "autoregressive", "rejection", np.full(count, -7.0)))
    with pytest.raises(ms.RequestError, match="drafter 'b' exists; allowed: another name, or overwrite=True"):
        later(resume=True)
    assert (ms.open_store(old.path).drafter("b").log_q == -7).all()
    store = later(resume=True, overwrite=True)
    assert store.drafter("b").kind == "block" and store.drafters == ("a", "b")


def test_finished_drafters_are_known_by_their_request_invariant(target, prompts_path, old, tmp_path, monkeypatch):
    drafters = {**DRAFTERS, "c": "round:5"}

    def later(own=drafters, **settings):
        return record_drafters(old.path, target, own, progress=False, **settings)

    with monkeypatch.context() as patch:
        suicidal(patch, rescore, "add_drafter", 2, after=True)
        killed(lambda: later(resume=True))
    written = tree(old.path)
    assert ms.open_store(old.path).drafters == ("a", "b")
    killed_removing(monkeypatch, lambda: later(resume=True))
    whole = tree(old.path)
    assert {name: whole[name] for name in written} == written and len(whole) > len(written)
    assert later(resume=True).drafters == ("a", "b", "c") and later({"b": "ngram:2,3"}, resume=True)
    assert tree(old.path) == whole
    others = ({"b": "ngram:2,4"}, {}), ({"a": "round:4"}, {"divergence": True}), ({"a": "round:5"}, {})
    for own, settings in ((drafters, {"resume": False}), *others):
        with pytest.raises(ms.RequestError, match="exists; allowed: another name, or overwrite=True"):
            later(own, **{"resume": True, **settings})
    at_once = record(target, DRAFTERS, prompts_path, tmp_path / "at-once", target_top=2, **SETTINGS)
    before = tree(at_once.path)
    record_drafters(at_once.path, target, DRAFTERS, resume=True, progress=False)
    assert tree(at_once.path) == before


def test_block_drafter_whose_weights_no_request_tells_is_finished_only_while_its_work_is_there_invariant(
    target, old, monkeypatch
):
    def later(**settings):
        return record_drafters(old.path, target, {"h": Hydra(target)}, resume=True, progress=False, **settings)

    killed_before(monkeypatch, resume, "discard", later)
    whole = tree(old.path)
    assert later().drafters == ("h",) and tree(old.path) == whole
    with pytest.raises(ms.RequestError, match="drafter 'h' exists"):
        later()
    assert tree(later(overwrite=True).path) == whole
