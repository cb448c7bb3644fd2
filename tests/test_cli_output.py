"""Where the command line writes, and what it refuses to write over."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.cli import main

DATA = Path(__file__).parents[1] / "data"
PRICES = "tokens,ms\n1,30\n6,33\n65,40\n"
INSIDE = "inside the store that is read; allowed: a place outside of it"


@pytest.fixture
def place(tmp_path, monkeypatch):
    shutil.copytree(DATA / "demo-greedy", tmp_path / "S")
    (tmp_path / "prices.csv").write_text(PRICES)
    (tmp_path / "link").symlink_to(tmp_path / "S")
    (tmp_path / "manifest.csv").symlink_to(tmp_path / "S" / "manifest.json")
    os.link(tmp_path / "prices.csv", tmp_path / "hard.csv")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["evaluate", "S", "--out", "S/manifest.json"], INSIDE),
        (["evaluate", "link", "--out", "S/new.json"], INSIDE),
        (["evaluate", "S", "--out", "link/drafters/quant5/manifest.json"], INSIDE),
        (["evaluate", "S/", "--out", "manifest.csv"], INSIDE),
        (["evaluate", "S", "--bounds", "ties", "--out", "S/../S/manifest.json"], INSIDE),
        (["proxies", "S", "--out", "S/manifest.json"], INSIDE),
        (["compare", "S", "--out", "S/manifest.json"], INSIDE),
        (["trees", "S", "quant5", "--out", "S/manifest.json"], INSIDE),
        (["trees", "calibrate", "S", "quant5", "--out", "S/manifest.json"], INSIDE),
        (["certify", "S", "quant5", "--out", "S/manifest.json"], INSIDE),
        (["certify", "S", "quant5", "--plot", "S/page.html"], INSIDE),
        (["certify", "S", "quant5", "--positions", "S/drafts.parquet"], INSIDE),
        (["certify", "S", "quant5", "--out", "a.csv", "--positions", "./a.csv"], "read or written, too"),
        (["compare", "S", "--price", "prices.csv", "--out", "prices.csv"], "read or written, too"),
        (["compare", "S", "--price", "prices.csv?per_depth=1", "--out", "hard.csv"], "read or written, too"),
        (["trees", "S", "quant5", "--price", "prices.csv", "--out", "./prices.csv"], "read or written, too"),
        (["evaluate", "S", "--out", "a.xyz"], "ends in '.xyz'; allowed: .json, .csv, .parquet, .tex, .md, .txt"),
        (["compare", "S", "--out", "a.html"], "ends in '.html'; allowed: .json, .csv, .parquet, .tex, .md, .txt"),
        (["proxies", "S", "--out", "a.parquet"], "ends in '.parquet'; allowed: .json, .csv, .txt"),
        (["evaluate", "S", "--out", "nowhere/a.csv"], "folder nowhere does not exist"),
        (["evaluate", "S", "--out", "."], "a folder; allowed: a file"),
    ],
)
def test_nothing_that_is_read_is_written_over_invariant(place, capsys, words, told):
    before = contents(place)
    assert main(words) == 2
    assert told in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert contents(place) == before


@pytest.mark.parametrize("name", ["a.txt", "a", "a.JSON", "S2.json"])
def test_files_beside_the_store_are_written_against_reference(place, capsys, name):
    form = "json" if name.lower().endswith("json") else "table"
    assert (
        main(["evaluate", "S", "quant5", "--out", name]) == 0
        and main(["evaluate", "S", "quant5", "--format", form]) == 0
    )
    assert (place / name).read_text() == capsys.readouterr().out
    assert main(["evaluate", "S", "quant5", "--format", "csv", "--out", "a.xyz"]) == 0


def test_control_characters_of_a_store_are_shown_against_closed_form(tmp_path, capsys):
    benchmark, target = "b\x1b[31m\n\r", "model\x1b]0;x\x07"
    tokens = np.zeros(40, dtype=int)
    store = ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p\x1b"], benchmarks=[benchmark], tokens=tokens,
        indptr=[0, 40], log_p=np.full(40, -0.5), metadata={"target": target},
        drafters={"d": ms.Drafts("d", "block", "match", np.zeros((40, 2)))},
    )  # fmt: skip
    place = str(store.path)
    commands = [
        ["evaluate", place, "--by", "benchmark"],
        ["evaluate", place, "--by", "benchmark", "--format", "markdown"],
        ["evaluate", place, "--by", "benchmark", "--format", "latex"],
        ["evaluate", place, "--by", "benchmark", "--bounds", "tolerance:nats=0"],
        ["proxies", place, "--by", "benchmark"],
        ["compare", place, "d", "d:K=1", "--by", "benchmark", "--where", "--resamples", "9"],
    ]
    for words in commands:
        assert main(words) == 0
        told = capsys.readouterr().out
        assert all(char.isprintable() or char == "\n" for char in told)
        assert r"b\x1b[31m\n\r" in told.replace(r"\textbackslash{}", "\\").replace("\\\\", "\\").replace(r"\[", "[")
    assert main(["info", place]) == 0
    told = capsys.readouterr().out
    assert r"model\x1b]0;x\x07" in told and all(char.isprintable() or char == "\n" for char in told)
