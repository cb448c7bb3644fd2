"""Import and export on the command line."""

import numpy as np
import polars as pl
import pytest

import markov_spec as ms
from markov_spec.cli import main


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(8)
    drafters = {
        "auto": ms.Drafts("auto", "autoregressive", "rejection", np.log(rng.uniform(0.1, 1, 9)), np.ones(9, dtype=int)),
        "block": ms.Drafts("block", "block", "rejection", np.log(rng.uniform(0.1, 1, (9, 3)))),
    }
    return ms.write_store(
        tmp_path / "run", rollout_ids=["a", "b"], prompt_ids=["p", "q"], tokens=rng.integers(0, 9, 9),
        indptr=[0, 5, 9], log_p=np.log(rng.uniform(0.1, 1, 9)), drafters=drafters,
        metadata={"sampling": {"temperature": 1.0}, "logprob_space": "processed"},
    )  # fmt: skip


def test_export_and_import_give_the_same_store_invariant(store, tmp_path, capsys):
    files, back = tmp_path / "files", tmp_path / "back"
    assert main(["export", str(store.path), "--out", str(files)]) == 0
    told = capsys.readouterr().out
    assert f"drafts-auto.jsonl: {(files / 'drafts-auto.jsonl').stat().st_size} bytes" in told
    assert main(["export", str(store.path), "--out", str(files)]) == 2
    assert "overwrite=True (--overwrite)" in capsys.readouterr().err
    words = ["import", str(files / "rollouts.jsonl"), "--out", str(back)]
    for name in store.drafters:
        words += ["--drafter", str(files / f"drafts-{name}.jsonl")]
    assert main(words) == 0
    assert "2 rollouts, 9 tokens, drafters: auto, block; 0 errors" in capsys.readouterr().out
    again = ms.open_store(back)
    assert again.fingerprint == store.fingerprint
    for name in store.drafters:
        np.testing.assert_array_equal(ms.evaluate(again, name).rounds, ms.evaluate(store, name).rounds)
    assert main(words) == 2 and "overwrite=True (--overwrite)" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0


def test_flat_parquet_has_a_row_for_each_position_invariant(store, tmp_path):
    words = ["export", str(store.path), "--out", str(tmp_path / "flat"), "--format", "parquet", "--drafter", "auto"]
    assert main(words) == 0
    frame = pl.read_parquet(tmp_path / "flat" / "drafts-auto.parquet")
    np.testing.assert_array_equal(frame["log_q"].to_numpy(), store.drafter("auto").log_q)
    assert not (tmp_path / "flat" / "drafts-block.parquet").exists()


def test_faults_are_listed_and_end_with_one_invariant(store, tmp_path, capsys):
    files = tmp_path / "files"
    assert main(["export", str(store.path), "--out", str(files), "--drafter", "auto"]) == 0
    path = files / "rollouts.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1].replace('"id":"a"', '"id":NaN'), *lines[2:]]) + "\n")
    words = ["import", str(path), "--drafter", f"small={files / 'drafts-auto.jsonl'}", "--out", str(tmp_path / "s")]
    assert main(words) == 1
    assert "rollouts.jsonl" in capsys.readouterr().err and not (tmp_path / "s").exists()
    assert main([*words, "--lenient"]) == 1
    told = capsys.readouterr()
    assert "line 2" in told.err and "1 rollout," in told.out
    assert ms.open_store(tmp_path / "s").drafters == ("small",)
    assert main([*words[:2], "--out", str(tmp_path / "t"), "--drafter", "x=missing.jsonl"]) == 2


def test_like_faults_and_doubled_ids_in_few_words_invariant(store, tmp_path, capsys):
    files = tmp_path / "files"
    assert main(["export", str(store.path), "--out", str(files), "--drafter", "auto"]) == 0
    head, *lines = (files / "rollouts.jsonl").read_text().splitlines()
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join([head, *lines, lines[0].replace('"turn":0', '"turn":1')]))
    words = ["import", str(path), "--out", str(tmp_path / "s")]
    assert main(words) == 1 and "crc32" in capsys.readouterr().err
    plain = [line.rpartition(',"crc32"')[0] + "}" for line in (head.replace('"rollouts":2,', ""), *lines)]
    path.write_text("\n".join([*plain, plain[1].replace('"turn":0', '"turn":1')]))
    assert main(words) == 1
    assert "or duplicates='first', 'last' or 'suffix' (--duplicates)" in capsys.readouterr().err
    rows = [plain[1].replace('"id":"a"', f'"id":"a{i}"').replace('"turn":0', f'"turn":-{i}') for i in range(1, 900)]
    path.write_text("\n".join([plain[0], plain[2], *rows]))
    capsys.readouterr()
    assert main([*words, "--lenient"]) == 1
    told = capsys.readouterr()
    errors = [line for line in told.err.splitlines() if line.startswith("error")]
    assert len(errors) == 1 and errors[0].endswith("(and 898 like it, the last at line 901)")
    assert "line 3: turn: found -1" in errors[0] and "899 errors" in told.out and "899 rollouts left out" in told.out


def test_interrupted_exchange_says_so_invariant(store, tmp_path, capsys, monkeypatch):
    files = tmp_path / "files"
    assert main(["export", str(store.path), "--out", str(files)]) == 0
    capsys.readouterr()

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("markov_spec.sources.exchange.importer.build", interrupt)
    monkeypatch.setattr("markov_spec.sources.exchange.exporter._write_rollouts", interrupt)
    monkeypatch.setattr("markov_spec.cli.store.open_store", interrupt)
    for words, told in (
        (["import", str(files / "rollouts.jsonl"), "--out", str(tmp_path / "s")], "interrupted: nothing was written\n"),
        (["export", str(store.path), "--out", str(tmp_path / "f")], "interrupted: nothing was written\n"),
        (["info", str(store.path)], "interrupted\n"),
    ):
        assert main(words) == 130
        assert capsys.readouterr().err.endswith(told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files", "run"]


def test_an_error_leaves_no_bar_invariant(store, tmp_path, capsys):
    files = tmp_path / "files"
    assert main(["export", str(store.path), "--out", str(files), "--drafter", "auto"]) == 0
    capsys.readouterr()
    path = files / "rollouts.jsonl"
    words = ["import", str(path), "--out", str(tmp_path / "s")]
    assert main(words) == 0
    assert "rollouts.jsonl" in capsys.readouterr().err  # the bar, full
    path.write_text(path.read_text() + "{")
    assert main([*words, "--overwrite"]) == 1
    told = capsys.readouterr().err.strip()
    assert told.startswith("error: ") and len(told.splitlines()) == 1


def test_export_never_writes_into_the_store_it_reads_invariant(store, capsys):
    inside = store.path / "drafters" / "x"
    assert main(["export", str(store.path), "--out", str(inside)]) == 2
    assert "inside the store that is read" in capsys.readouterr().err and not inside.exists()
