"""What results and stores show in a notebook."""

import re
from html import unescape

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.latency import Table

DEMO = "data/demo"


def rows_of(html):
    """Cells of every row of every table, tags aside."""
    rows = re.findall("<tr>(.*?)</tr>", html, re.DOTALL)
    return [[unescape(cell) for cell in re.findall("<t[dh][^>]*>(.*?)</t[dh]>", row)] for row in rows]


def paragraphs_of(html):
    return [unescape(text) for text in re.findall("<p>(.*?)</p>", html)]


@pytest.mark.parametrize("convention", [None, "vllm"])
def test_evaluation_against_reference(convention):
    found = ms.evaluate(DEMO, "quant5", convention=convention)
    html = found._repr_html_()
    assert paragraphs_of(html) == repr(found).splitlines()
    head, *rows = rows_of(html)
    length = "pooled length" if convention is None else "vllm length"
    assert head == ["benchmark", "rollouts", "tokens", "expected rounds", length, "draft acceptance"]
    for row, wanted in zip(rows, found.results(by="benchmark"), strict=True):
        assert row[:2] == [wanted["benchmark"], str(wanted["rollouts"])] and row[2] == str(wanted["committed_tokens"])
        ends = [wanted["pooled_length"]] if convention is None else wanted["convention_length"]
        assert float(row[3]) == pytest.approx(wanted["expected_rounds"], abs=0.005)
        assert row[4] == " to ".join(f"{end:.4f}" for end in ends) and len(ends) == (1 if convention is None else 2)
        assert float(row[5]) == pytest.approx(wanted["draft_acceptance"], abs=5e-5)


def test_warnings_stand_apart_and_names_are_escaped_against_closed_form(tmp_path):
    drafts = ms.Drafts("d", "block", "match", np.zeros((40, 2)))
    store = ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], benchmarks=["<i>"], tokens=np.zeros(40, dtype=int),
        indptr=[0, 40], log_p=np.full(40, -0.5), drafters={"d": drafts}, metadata={"target": "<b>"},
    )  # fmt: skip
    html = ms.evaluate(store, "d")._repr_html_()
    first, *warnings = paragraphs_of(html)
    assert first.startswith("Evaluation(d: ") and warnings and all(told.startswith("warning: ") for told in warnings)
    assert "<i>" not in html and rows_of(html)[1][0] == "<i>"
    assert "<b>" not in store._repr_html_() and "target: <b>" in paragraphs_of(store._repr_html_())[1]


def test_attribution_names_the_contenders_against_reference():
    found = ms.attribute(DEMO, "drop1", "quant5:K=3")
    html = found._repr_html_()
    assert paragraphs_of(html) == [found.headline, *(f"note: {note}" for note in found.notes)]
    head, first, *_ = rows_of(html)
    assert head == [
        "depth", "tested, drop1", "tested, quant5:K=3", "acceptance, drop1", "acceptance, quant5:K=3", "difference",
        "share",
    ]  # fmt: skip
    row = found.by_depth.row(0, named=True)
    assert first[:4] == ["1", f"{row['tested_a']:.2f}", f"{row['tested_b']:.2f}", f"{row['acceptance_a']:.4f}"]
    assert first[5:] == [f"{row['attributed']:+.3f}", f"{row['share']:.1%}"]
    assert len(rows_of(html)) == sum(1 + len(getattr(found, name)) for name in FRAMES)


FRAMES = ("by_depth", "by_benchmark", "by_class", "starts", "rollouts")


def test_best_budget_and_its_notes_against_reference():
    price = Table([1, 5, 9], [1.0, 1.2, 2.0], between="stair")
    found = ms.optimal_budget(DEMO, "block", budgets=[4, 8], price=price)
    html = found._repr_html_()
    first, *notes = paragraphs_of(html)
    assert first == "block:tree=best-first: best fixed budget 4" and notes == [f"note: {note}" for note in found.notes]
    head, *rows = rows_of(html)
    assert notes and [row[1] for row in rows] == found.frame["rule"].to_list()
    shown = [float(row[head.index("speedup")]) for row in rows]
    assert shown == pytest.approx(found.frame["speedup"].to_list(), abs=5e-5)


def test_proxies_and_their_notes_against_reference():
    found = ms.proxies(DEMO, "block:rule=block")
    html, frame = found._repr_html_(), found.to_frame()
    first, *notes = paragraphs_of(html)
    assert first == "block:rule=block: rule block, K=8, exact"
    assert notes == [f"{name}: {note}" for name, note in frame.select("proxy", "note").drop_nulls().rows()] and notes
    for row, wanted in zip(rows_of(html)[1:], frame.to_dicts(), strict=True):
        assert row[0] == wanted["proxy"] and row[3] == ("-" if wanted["value"] is None else f"{wanted['value']:.4f}")


def test_store_against_reference():
    store = ms.open_store(DEMO)
    html, facts = store._repr_html_(), store.facts()
    first, target = paragraphs_of(html)
    assert first == repr(store) and target.startswith(f"target: {facts['target']['target']}; ")
    assert "sampling: temperature=1.0" in target and "parts: divergence lists" in target
    head, *rows = rows_of(html)
    assert head == ["drafter", "kind", "rule", "depth", "source", "parts"]
    assert [row[0] for row in rows] == list(store.drafters)
    assert rows[0] == ["block", "block", "rejection", "8", "py:block_drafter:Block", "divergence law lists tree-rank"]
    assert rows[1][3] == "-"
    assert "6 from number 3 on of 128 rollouts" in paragraphs_of(store.batch(3, 9)._repr_html_())[0]


def test_bounds_against_reference():
    found = ms.evaluate_bounds(DEMO, "quant5:K=4", "lists:top=5")
    html = found._repr_html_()
    assert paragraphs_of(html) == [repr(found)]
    head, *rows = rows_of(html)
    assert head == ["benchmark", "rounds", "pooled length", "as recorded", "uncertain drafts"]
    for row, wanted in zip(rows, found.results(by="benchmark"), strict=True):
        assert row[0] == wanted["benchmark"] and row[3] == f"{wanted['pooled_length']:.4f}"
        assert row[2] == f"{wanted['pooled_length_low']:.4f} to {wanted['pooled_length_high']:.4f}"


def test_trees_are_drawn_up_to_sixty_lines_against_closed_form():
    chain = ms.DraftTree(np.arange(70), np.arange(-1, 69))
    html = chain._repr_html_()
    assert paragraphs_of(html) == ["DraftTree(70 nodes, depth 70)"]
    lines = unescape(re.search("<pre>(.*)</pre>", html, re.DOTALL)[1]).splitlines()
    assert lines[:3] == ["root", "+- 0", "   +- 1"] and lines[-1] == "and 11 more nodes" and len(lines) == 61
    assert "more nodes" not in ms.DraftTree([1], [-1])._repr_html_()
    found = ms.tree_calibration(DEMO, "block:tree=best-first", budgets=[4])
    assert paragraphs_of(found._repr_html_()) == [repr(found)]


def test_certificates_against_reference():
    found = ms.certify("data/demo-greedy", "block:K=2")
    html = found._repr_html_()
    assert paragraphs_of(html) == [repr(found), *found.notes] and found.notes
    head, *rows = rows_of(html)
    assert head[:3] == ["benchmark", "drafts", "mean kl"]
    for row, wanted in zip(rows, found.summary().to_dicts(), strict=True):
        assert row[:2] == [wanted["benchmark"], str(wanted["drafts"])]
        assert row[head.index("accepted")] == f"{wanted['accepted']:.1%}"
