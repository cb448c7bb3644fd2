"""The command compare with --where and --report."""

import json
from pathlib import Path

import numpy as np
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
    told = capsys.readouterr().err
    assert "allowed" in told or "does not exist" in told


def test_report_never_overwrites_what_is_read_invariant(capsys, tmp_path):
    log_q = np.log(np.full((4, 2), 0.4))
    drafters = {name: ms.Drafts(name, "block", "rejection", log_q) for name in "xy"}
    store = ms.write_store(
        tmp_path / "store.html", rollout_ids=["a", "b"], prompt_ids=["p", "q"], tokens=[1, 2, 3, 4], indptr=[0, 2, 4],
        log_p=np.log([0.5] * 4), drafters=drafters,
    )  # fmt: skip
    before = {path: path.read_bytes() for path in store.path.rglob("*") if path.is_file()}
    (tmp_path / "price.html").write_text("tokens,ms\n")
    for path in (store.path / "page.html", store.path, tmp_path / "price.html"):
        assert main(["compare", str(store.path), "--price", str(tmp_path / "price.html"), "--report", str(path)]) == 2
        assert "--report" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in store.path.rglob("*") if path.is_file()} == before
