"""Recording on the command line: what it says when it is interrupted, resumed or misread."""

import json

import pytest

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.sources import recorder, resume, session

ENOUGH = ["--max-new-tokens", "4", "--batch-size", "1"]


@pytest.fixture
def words(target_path, prompts_path, tmp_path):
    return ["record", "--target", f"hf:{target_path}", "--prompts", str(prompts_path), "--out", str(tmp_path / "run")]


def interrupted_at(patch, number):
    """Let the chunk of this number be interrupted before it is kept."""
    save = resume.Work.save

    def wrapped(self, at, content):
        if at == number:
            raise KeyboardInterrupt
        save(self, at, content)

    patch.setattr(resume.Work, "save", wrapped)


def test_interrupted_recording_says_what_is_kept_invariant(words, tmp_path, capsys):
    folder = tmp_path / ".run.recording"
    for number, told in (
        (0, "interrupted: no work was finished, and none is kept"),
        (2, f"interrupted: 2 chunks of finished work kept in {folder}; --resume goes on with it"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            interrupted_at(patch, number)
            assert main([*words, *ENOUGH]) == 130
        assert capsys.readouterr().err.strip().endswith(told)
        assert len(list(folder.glob("chunk-*"))) == number
    assert main([*words, *ENOUGH]) == 2 and "--resume" in capsys.readouterr().err
    assert main([*words, *ENOUGH, "--resume"]) == 0
    assert not folder.exists()
    later = ["record-drafters", str(tmp_path / "run"), *words[1:3], "--drafter", "look=ngram:2"]
    with pytest.MonkeyPatch.context() as patch:
        interrupted_at(patch, 0)
        assert main(later) == 130
    assert "no work was finished" in capsys.readouterr().err
    assert main(later) == 0
    assert main(later) == 2 and "(--overwrite)" in capsys.readouterr().err


def test_resuming_with_other_settings_says_what_to_do_invariant(words, tmp_path, capsys, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        interrupted_at(patch, 1)
        assert main([*words, *ENOUGH, "--temperature", "0.7"]) == 130
    capsys.readouterr()
    for module in (session, recorder):
        monkeypatch.setattr(module, "open_session" if module is recorder else "load_hf", None)  # no model is loaded
    folder = tmp_path / ".run.recording"
    for more, told in (
        (["--temperature", "0.8"], "sampling.temperature: found 0.8; allowed: 0.7, with which"),
        (["--temperature", "0.7", "--seed", "3"], "seed: found 3; allowed: 0, with which"),
        (["--temperature", "0.7", "--divergence"], "kept.divergence: found True; allowed: False, with which"),
    ):
        assert main([*words, *ENOUGH, *more, "--resume"]) == 2
        shown = capsys.readouterr().err
        assert told in shown and f"{folder} began; to begin anew, remove that folder or choose another name" in shown
    assert len(list(folder.glob("chunk-*"))) == 1


def test_prompts_with_a_mark_and_with_a_slip_invariant(words, tmp_path, capsys):
    path = tmp_path / "p.jsonl"
    words[words.index("--prompts") + 1] = str(path)
    for row, told in (
        (
            {"id": "a", "promt": "w3"},
            "line 1: found id, promt; allowed: exactly one of messages, prompt, prompt_tokens",
        ),
        ({"prompt": "w3", "messages": []}, "found messages, prompt; allowed: exactly one"),
        ({}, "found no field; allowed"),
    ):
        path.write_text(json.dumps(row))
        assert main([*words, *ENOUGH]) == 1
        assert told in capsys.readouterr().err
    path.write_text("\ufeff" + json.dumps({"prompt": "w3"}))
    assert main([*words, *ENOUGH]) == 0
    assert len(ms.open_store(tmp_path / "run")) == 1
