"""The command compare with --where and --report."""

import json
from pathlib import Path

import pytest

import markov_spec as ms
from markov_spec.cli import main

DEMO = str(Path(__file__).parents[2] / "data" / "demo")
WORDS = ["compare", DEMO, "quant5", "drop1:K=3", "--resamples", "99"]


@pytest.fixture(scope="module")
def why():
    return ms.attribute(DEMO, "quant5", "drop1:K=3")


def test_where_tells_the_headlines_pair_against_reference(capsys, why):
    assert main([*WORDS, "--where"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert " ".join(why.headline.split()) in told
    assert main([*WORDS, "--where", "--format", "json"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["primary"] == ["quant5", "drop1:K=3"] and read["attribution"]["difference"] == why.difference
    assert read["attribution"]["by_depth"] == why.by_depth.to_dicts()


def test_report_is_written_beside_the_table_against_reference(capsys, tmp_path, why):
    page = tmp_path / "page.html"
    assert main([*WORDS, "--report", str(page)]) == 0
    assert "quant5 is better than drop1:K=3" in capsys.readouterr().out
    assert why.headline in page.read_text("utf-8") and "markov-spec" in page.read_text("utf-8")


@pytest.mark.parametrize("rest", [["--where", "--format", "csv"], ["--report", "/nowhere/at/all/page.html"]])
def test_refusals_say_what_is_allowed_invariant(capsys, rest):
    assert main([*WORDS, *rest]) == 2
    assert "allowed" in capsys.readouterr().err
