"""The command compare: what it prints is what ``ms.compare`` gives."""

import io
import json
from pathlib import Path

import polars as pl
import pytest

import markov_spec as ms
from markov_spec.cli import main

DEMO = str(Path(__file__).parents[1] / "data" / "demo")
WORDS = ["compare", DEMO, "quant5", "drop1:K=3", "--resamples", "99", "--seed", "4"]


@pytest.fixture
def found():
    return ms.compare(DEMO, ["quant5", "drop1:K=3"], resamples=99, rng=4)


def test_table_has_every_contender_pair_and_note_against_reference(capsys, found):
    assert main(WORDS) == 0
    words = capsys.readouterr().out.split()
    assert " ".join(words).startswith(found.headline)
    for row in found.contenders.to_dicts():
        at = words.index("macro") + words[words.index("macro") :].index(row["contender"])
        assert words[at + 1] == f"{row['pooled']:.4f}" and words[at + 5] == f"{row['macro_mean']:.4f}"
    for row in found.benchmarks.to_dicts():
        assert f"{row['pooled']:.4f}" in words
    (pair,) = found.pairs.to_dicts()
    told = " ".join(words)
    assert (
        f"{pair['ratio']:.4f} {pair['ratio_low']:.4f} to {pair['ratio_high']:.4f}" in told and pair["verdict"] in words
    )
    assert all(note in told for note in found.notes)


def test_json_and_csv_against_reference(capsys, tmp_path, found):
    assert main([*WORDS, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["headline"] == found.headline and told["primary"] == list(found.primary)
    for name in ("pairs", "contenders", "benchmarks", "winners", "variance_account"):
        assert told[name] == json.loads(json.dumps(getattr(found, name).to_dicts()))
    assert main([*WORDS, "--out", str(tmp_path / "pairs.csv")]) == 0
    read = pl.read_csv(io.BytesIO((tmp_path / "pairs.csv").read_bytes()))
    assert read["ratio"].to_list() == pytest.approx(found.pairs["ratio"].to_list(), rel=1e-12)


def test_baseline_is_added_and_many_pairs_are_counted_invariant(capsys):
    assert main(["compare", DEMO, "block", "--baseline", "drop3", "--resamples", "99"]) == 0
    assert "block is worse than drop3" in capsys.readouterr().out
    assert main(["compare", DEMO, "quant5:K=1-6", "--resamples", "9"]) == 0
    assert "5 more pairs in JSON and CSV." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quant5"], "contenders: found quant5; allowed: two or more"),
        (["quant5", "nobody"], "found drafter 'nobody'"),
        (["quant5", "drop1", "--level", "2"], "--level"),
        (["quant5", "drop1", "--margin", "0"], "--margin"),
        (["quant5", "--baseline", "nobody"], "found drafter 'nobody'"),
    ],
)
def test_what_cannot_be_compared_is_refused_invariant(capsys, words, message):
    assert main(["compare", DEMO, *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
