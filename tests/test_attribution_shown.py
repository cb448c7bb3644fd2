"""Token classes of an attribution, and how it reads: sentences, pages, tables and JSON."""

import json
import math

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from rich.console import Console

import markov_spec as ms
from markov_spec.evaluation.token_classes import text_class
from markov_spec.report.attribution import attribution_json, attribution_table
from tests.stored_classes import SPACE, VOCAB, contents, write
from tests.stored_lists import N


@pytest.fixture
def store(tmp_path):
    return write(tmp_path / "run")


def test_what_is_not_recorded_is_told_invariant(tmp_path):
    found = ms.attribute(write(tmp_path / "bare", parts=(), vocab=None), "auto", "block")
    assert found.by_class["kind"].unique().to_list() == ["position"]
    assert found.starts["before"].is_null().all() and found.rollouts["text"].is_null().all()
    assert [note.split(":")[0] for note in found.notes] == [
        "no classes by entropy", "no classes by margin", "no text and no classes by it",
    ]  # fmt: skip
    assert "on tokens of class" not in repr(found)
    partly = ms.attribute(write(tmp_path / "partly", covered=[True, False, True, False, True]), "auto", "block")
    margins = partly.by_class.filter(pl.col("kind") == "margin")
    unknown = partly.per_rollout.filter(pl.col("rollout").is_in(["b", "d"]))["difference"].sum()
    assert margins["tokens"].sum() == N
    assert margins.filter(pl.col("class") == "not recorded")["attributed"].item() == pytest.approx(unknown)
    assert not partly.notes


def test_margins_and_entropies_of_other_distributions_against_reference(tmp_path):
    whole = ms.attribute(write(tmp_path / "lists"), "auto", "block").by_class
    _, lists, spread, _ = contents()
    top = {"top_log_p": lists["log_p"][:, 0], "second_log_p": lists["log_p"][:, 1]}
    given = {"raw_entropy": spread, "entropy": np.zeros(N), **top}
    options = {"parts": ["divergence"], "divergence": given, "metadata": {"sampling": {"temperature": 0}, **SPACE}}
    found = ms.attribute(write(tmp_path / "top", **options), "auto", "block")
    assert_frame_equal(found.by_class, whole, abs_tol=1e-12)
    assert [note.partition(",")[0] for note in found.notes] == [
        "margins are of the distribution that the target decodes with"
    ]
    warm = ms.attribute(
        write(
            tmp_path / "warm",
            parts=["divergence"],
            divergence=given,
            metadata={"sampling": {"temperature": 1}, **SPACE},
        ),
        "auto",
        "block",
    )
    assert warm.by_class.filter(pl.col("kind") == "entropy")["class"].to_list() == ["0 to 0.1"]


@pytest.mark.parametrize(("a", "b"), [("auto", "lookup"), ("lookup", "auto")])
def test_sentence_names_the_largest_parts_against_reference(store, a, b):
    found = ms.attribute(store, a, b)
    way = math.copysign(1, found.difference)
    text = found.by_class.filter(pl.col("kind") == "text")
    for frame, name in [(found.by_depth, "depth"), (found.by_benchmark, "benchmark"), (text, "class")]:
        top = max(frame.to_dicts(), key=lambda row: way * row["attributed"])
        assert f" {top[name]} ({top['attributed']:+.2f})" in found.headline
    assert repr(found) == f"Attribution({found.headline})"
    words = "more" if a == "auto" else "fewer"
    assert f"{b} takes {abs(found.difference):.2f} rounds {words} than {a} (" in found.headline


def console_text(content, width=200):
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(content)
    return capture.get()


def test_text_is_escaped_against_reference(tmp_path):
    hostile = {**VOCAB, 0: "<script>alert(1)</script>", 1: "[red]", 2: "\x1b[31m", 3: "&"}
    names = ["<i>", "<i>", "<i>[bold]x", "<i>[bold]x", "<i>y"]
    found = ms.attribute(write(tmp_path / "run", vocab=hostile, benchmarks=names), "lookup", "auto")
    assert "<script>" in "".join(found.rollouts["text"]) and "\x1b" in "".join(found.rollouts["text"])
    page = found._repr_html_()
    assert (
        "<script>" not in page
        and "&lt;script&gt;" in page
        and "<b>" not in page
        and "<i>" not in page
        and "by depth" in page
    )
    table = console_text(attribution_table(found))
    assert (
        "\x1b" not in table
        and "\\x1b[31m" in table
        and "[red]" in table
        and "\n<i>[bold]x " in table
        and "\\n" in table
    )
    told = json.loads(attribution_json("run", found))
    assert (
        told["store"] == "run" and told["difference"] == found.difference and told["contenders"] == ["lookup", "auto"]
    )
    for name in ("per_rollout", "by_depth", "by_benchmark", "by_class", "starts", "rollouts"):
        assert told[name] == getattr(found, name).to_dicts()
    assert told["headline"] == found.headline and told["notes"] == []


def test_table_of_equal_contenders_shows_no_starts_invariant(store):
    shown = console_text(attribution_table(ms.attribute(store, "auto", "auto")))
    assert "differ most" not in shown and "b loses most" not in shown and "+0.00" in shown


def test_table_shows_the_figures_against_reference(store, tmp_path):
    found = ms.attribute(store, "auto", "lookup")
    shown = console_text(attribution_table(found))
    for frame in (found.by_depth, found.by_benchmark, found.by_class):
        assert all(f"{row['attributed']:+.2f}" in shown for row in frame.to_dicts())
    assert shown.count("position") == 1 + shown.split("difference:")[1].count("position")
    assert found.starts["rollout"][0] in shown and f"{found.starts['attributed'][0]:+.3f}" in shown
    bare = ms.attribute(write(tmp_path / "bare", parts=(), vocab=None), "auto", "lookup")
    told = console_text(attribution_table(bare))
    assert "note: no classes by margin" in told and " text" not in told.split("note:")[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Word", "word"), ("don't", "word"), ("(the", "word"), ("été", "word"), ("人", "word"), ("\ncat", "word"),
        (" of the", "word"), ("7", "digit"), (" 3.14", "digit"), ("=0", "digit"), ("½", "digit"), ("x1", "code"),
        ("snake_case", "code"), (" {", "code"), ("();", "punctuation"), ("</", "code"), ("<|im_end|>", "code"),
        (" ...", "punctuation"), ("”", "punctuation"), (".\n\n-", "punctuation"), ("\n", "whitespace"),
        ("   ", "whitespace"), ("\xa0", "whitespace"), ("", "other"), ("\ufffd", "other"),
        ("→", "other"), ("😀", "other"),
    ],
)  # fmt: skip
def test_class_of_a_text_against_reference(text, expected):
    assert text_class(text) == expected
