"""Where the command line writes, and what it refuses to write over."""

import os
import shutil
from pathlib import Path

import pytest

from markov_spec.cli import main

DATA = Path(__file__).parents[1] / "data"
PRICES = "tokens,ms\n1,30\n6,33\n65,40\n"
INSIDE = "inside the store that is read; allowed: a file outside of it"


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
