"""The command line as a process, and in-process where that is enough."""

import csv
import io
import json
import os
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.cli import main


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(8)
    drafters = {
        "auto": ms.Drafts("auto", "autoregressive", "rejection", np.log(rng.uniform(0.1, 1, 9)), np.ones(9, dtype=int)),
        "lookup": ms.Drafts("lookup", "block", "match", np.where(rng.random((9, 4)) < 0.5, 0, -np.inf)),
    }
    return ms.write_store(
        tmp_path / "run", rollout_ids=["a", "b"], prompt_ids=["p", "q"], benchmarks=["chat", "[red]math"],
        tokens=rng.integers(0, 9, 9), indptr=[0, 5, 9], log_p=np.log(rng.uniform(0.1, 1, 9)), drafters=drafters,
        metadata={"target": "tiny", "sampling": {"temperature": 1.0}},
    )  # fmt: skip


def test_json_against_reference(store, capsys):
    assert main(["evaluate", str(store.path), "auto:K=3", "lookup", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["store"] == str(store.path)
    expected = [ms.evaluate(store, name).results()[0] for name in ("auto:K=3", "lookup")]
    assert told["results"] == expected
    assert list(told["results"][0]) == [
        "contender", "drafter", "rule", "draft_length", "exactness", "rollouts", "committed_tokens", "expected_rounds",
        "pooled_length", "acceptance_by_depth", "accepted_histogram", "first_start", "convention", "convention_length",
        "settings", "tested_by_depth", "request_mean", "plug_in_request_mean", "length_weighted_mean",
        "rollouts_without_rounds", "macro_mean", "drafts_only_length", "untrimmed_length", "proposed_drafts",
        "draft_acceptance", "proposed_depths", "depth_acceptance", "uncertain_rounds", "repetitive_rollouts",
        "pooled_length_without_repetitive", "expected_price",
        "price_per_token", "warnings",
    ]  # fmt: skip
    assert [row["rule"] for row in told["results"]] == ["rejection", "match"]


@pytest.mark.parametrize("rule", ["rejection", "block", "match"])
def test_deterministic_drafter_is_match_under_any_rule_invariant(store, capsys, rule):
    assert main(["evaluate", str(store.path), "lookup", "--rule", rule, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["rule"] == "match"
    assert row["expected_rounds"] == pytest.approx(ms.evaluate(store, "lookup").rounds.sum(), abs=1e-12)


def test_settings_reach_the_engine_against_reference(store, capsys):
    words = ["--rule", "block", "--draft-length", "2", "--first-start", "1", "--by", "benchmark", "--format", "json"]
    assert main(["evaluate", str(store.path), "auto", *words]) == 0
    told = json.loads(capsys.readouterr().out)["results"]
    expected = ms.evaluate(store, ms.Contender("auto", rule="block", draft_length=2), first_start=1)
    assert told == expected.results(by="benchmark")


def test_csv_and_file_against_reference(store, tmp_path):
    out = tmp_path / "results.csv"
    assert main(["evaluate", str(store.path), "--out", str(out)]) == 0
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["contender"] for row in rows] == ["auto", "lookup"]
    expected = ms.evaluate(store, "lookup").results()[0]
    assert float(rows[1]["pooled_length"]) == expected["pooled_length"]
    for k, rate in enumerate(expected["acceptance_by_depth"]["conditional"], 1):
        assert (float(rows[1][f"conditional_{k}"]) if rows[1][f"conditional_{k}"] else None) == rate
    for k, count in enumerate(expected["accepted_histogram"]):
        assert float(rows[1][f"accepted_histogram_{k}"]) == count


def test_table_shows_every_contender_and_plain_text_invariant(store, capsys):
    assert main(["evaluate", str(store.path), "--by", "benchmark"]) == 0
    told = capsys.readouterr().out
    assert "[red]math" in told and "exact;" in told
    length = ms.evaluate(store, "auto").results(by="benchmark")[0]["pooled_length"]
    assert f"{length:.4f}" in told


def test_info_and_check_invariant(store, capsys):
    assert main(["info", str(store.path), "--format", "json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["rollouts"], facts["tokens"], facts["target"]["target"]) == (2, 9, "tiny")
    assert facts["drafters"]["lookup"]["rule"] == "match"
    assert main(["info", str(store.path)]) == 0
    assert "temperature" in capsys.readouterr().out
    assert main(["check", str(store.path)]) == 0
    assert "sound" in capsys.readouterr().out
    part = store.path / "drafters/auto/law-00000.parquet"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(bytes(data))
    assert main(["check", str(store.path), "--format", "json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["severity"] == "error" and "law-00000.parquet" in finding["where"]
    assert main(["evaluate", str(store.path), "auto"]) == 1
    assert "SHA-256" in capsys.readouterr().err


def test_error_about_a_path_that_is_no_utf8_is_printed_invariant(tmp_path, capsys):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(path)
    assert main(["evaluate", path]) == 1
    assert "udcff: no markov_spec store" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["evaluate", "/nowhere"], 2, "does not exist"),
        (["evaluate", "STORE", "nobody"], 2, "allowed: auto, lookup"),
        (["evaluate", "STORE", "--rule", "magic"], 2, "allowed: rejection"),
        (["evaluate", "STORE", "lookup:K=9"], 2, "at most the recorded 4"),
        (["evaluate", "STORE", "--first-start", "2"], 2, "'0', '1'"),
        (["evaluate", "EMPTY"], 1, "manifest.json is missing"),
        (["check", "EMPTY"], 1, ""),
        (["record"], 2, "Missing option"),
        (["record", "--target", "x:y", "--prompts", "FILE", "--out", "o"], 2, "hf:PATH"),
        (["record", "--target", "hf:x", "--prompts", "FILE", "--out", "o", "--top-p", "2"], 2, "top_p"),
        (["evaluate", "STORE", "lookup:K=1,K=2"], 2, "found 'K=2'"),
        (["record", "--target", "hf:x", "--prompts", "FILE", "--out", "o", "--drafter", "x"], 2, "NAME=SPEC"),
        (["evaluate", "STORE", "--out", "/nowhere/x.csv"], 2, "does not exist"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_exit_codes_without_traceback_invariant(store, tmp_path, capsys, words, code, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.jsonl").write_text('{"prompt": "x"}')
    places = {"STORE": store.path, "EMPTY": tmp_path / "empty", "FILE": tmp_path / "file.jsonl"}
    assert main([str(places.get(word, word)) for word in words]) == code
    told = capsys.readouterr()
    assert "Traceback" not in told.out + told.err
    assert message in " ".join((told.out + told.err).replace("│", " ").split())


def test_version_is_the_package_s_invariant(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"markov-spec {version('markov-spec')}\n"


def test_debug_shows_where_an_error_comes_from_invariant(tmp_path):
    with pytest.raises(ValueError, match="manifest"):
        main(["evaluate", str(tmp_path), "--debug"])


def test_process_ends_with_the_code_invariant(store, tmp_path):
    for words, code in ((["evaluate", str(store.path)], 0), (["evaluate", str(tmp_path)], 1), (["evaluate"], 2)):
        ended = subprocess.run([sys.executable, "-m", "markov_spec", *words], capture_output=True, text=True)
        assert ended.returncode == code, ended.stderr
        assert "Traceback" not in ended.stderr


def test_record_and_evaluate_against_reference(tmp_path, capsys, request):
    target = request.getfixturevalue("target_path")
    (tmp_path / "p.jsonl").write_text('{"prompt": "w3 w4 w5"}\n{"prompt": "w9 w8 w9 w8"}')
    words = ["record", "--target", f"hf:{target}", "--prompts", str(tmp_path / "p.jsonl"), "--out", str(tmp_path / "s")]
    words += [
        "--drafter",
        "same=round:16",
        "--drafter",
        "look=ngram:2,3",
        "--max-new-tokens",
        "7",
        "--temperature",
        "0",
    ]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "drafters: look, same" in told.out
    assert main(["evaluate", str(tmp_path / "s"), "same:K=2", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    lengths = np.diff(ms.open_store(tmp_path / "s").rollouts().indptr)
    assert row["expected_rounds"] == sum(-(-lengths // 3))


def test_rule_with_settings_and_proxies_against_reference(store, capsys):
    words = ["evaluate", str(store.path), "auto:K=2", "auto:rule=match"]
    words += ["--rule", "independent,m=2", "--format", "json"]
    assert main(words) == 0
    first, second = json.loads(capsys.readouterr().out)["results"]
    assert (first["rule"], first["settings"], second["rule"]) == ("independent", {"m": 2}, "match")
    expected = ms.evaluate(store, "auto:K=2,rule=independent,m=2").results()[0]
    assert first == {**expected, "contender": first["contender"]}
    assert main(["proxies", str(store.path), "auto:K=2", "--by", "benchmark", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["proxies"]
    assert told == ms.proxies(store, "auto:K=2").to_frame(by="benchmark").to_dicts()
    assert main(["proxies", str(store.path)]) == 0
    assert "uniform_start_length" in capsys.readouterr().out


def test_empty_store_in_every_form_invariant(tmp_path, capsys):
    drafts = ms.Drafts("d", "block", "rejection", np.zeros((0, 2)))
    ms.write_store(
        tmp_path / "run", rollout_ids=[], prompt_ids=[], tokens=np.zeros(0, dtype=int), indptr=[0], log_p=np.zeros(0),
        drafters={"d": drafts},
    )  # fmt: skip
    for form in ("table", "json", "csv"):
        for by in ([], ["--by", "benchmark"]):
            assert main(["evaluate", str(tmp_path / "run"), "--format", form, *by]) == 0
            assert "contender" in capsys.readouterr().out or by
