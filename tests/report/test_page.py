"""The page says what the study says, escapes what it is given, stays small, and asks for nothing."""

import html
import re
import subprocess
import sys

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.latency import Affine, Table

NASTY = "<script>alert(1)</script>&\"'"


def store_of(folder, *, drafters, benchmarks, prompts=3, length=24):
    rng = np.random.default_rng(0)
    count = benchmarks * prompts * 2
    indptr = np.arange(count + 1) * length
    tokens = rng.integers(0, 7, indptr[-1])
    log_p = np.log(rng.uniform(0.2, 1, indptr[-1]))
    rows = np.arange(count)
    made = {}
    for i in range(drafters):
        log_q = log_p[:, None] + rng.normal(-i / 20, 0.3, (1, 4)).clip(-5, 0)
        made[f"drafter-{i}"] = ms.Drafts(f"drafter-{i}", "block", "rejection", log_q)
    vocabulary = {i: f"{NASTY}\n" if i == 0 else f"w{i} " for i in range(7)}
    return ms.write_store(
        folder / "store", rollout_ids=[f"r{i}{NASTY}" for i in rows], prompt_ids=[f"p{i // 2}" for i in rows],
        benchmarks=[f"bench {i % benchmarks} <b>" for i in rows // 2], tokens=tokens, indptr=indptr, log_p=log_p,
        drafters=made, vocab=vocabulary, metadata={"target": NASTY},
    )  # fmt: skip


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    found = ms.study("data/demo", ["quant5", "drop1", "block:tree=best-first,budget=16"])
    page = ms.write_report(found, tmp_path_factory.mktemp("page") / "report.html", command="markov-spec compare <demo>")
    return found, page.read_text(encoding="utf-8")


def body(page):
    return page[: page.index("<footer>")]


def test_page_shows_the_study_against_reference(demo):
    found, page = demo
    own = html.unescape(body(page))
    assert found.comparison.headline in own and found.attribution.headline in own
    for row in found.comparison.contenders.to_dicts():
        assert f"{row['pooled']:.4f}" in own and f"{row['pooled_low']:.4f} to {row['pooled_high']:.4f}" in own
    for row in found.comparison.pairs.to_dicts():
        assert f"{row['ratio']:.4f}" in own and row["verdict"] in own
    assert found.facts["fingerprint"] in own and "markov-spec compare <demo>" in own
    assert page.count("<td>exact</td>") == len(found.evaluations)


def test_tokens_of_the_traces_sum_to_the_rounds_invariant(demo):
    found, page = demo
    for name, frames in found.traces.items():
        row = found.attribution.rollouts.filter(rollout=name).row(0, named=True)
        for frame, key in zip(frames, ("rounds_a", "rounds_b"), strict=True):
            assert frame["start"].sum() == pytest.approx(row[key], abs=1e-9)
    assert page.count('<div class="trace"') == 2 * len(found.traces) == 12


def test_spread_is_a_distribution_against_reference(demo):
    found, _ = demo
    assert found.spread_rollouts == 128
    for name, own in found.spread.partition_by("contender", as_dict=True).items():
        assert own["share"].sum() == pytest.approx(1, abs=1e-4)
        result = next(one for one in found.evaluations if one.contender == name[0])
        mean = float(np.mean(100 * result.rounds / result.committed))
        binned = float((own["share"] * (own["rounds_per_100"] + 1)).sum())
        assert binned == pytest.approx(mean, abs=1.01)  # the middle of a bin is one round away at most


def test_page_asks_for_nothing_invariant(demo):
    _, page = demo
    own = body(page)
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", own) and "@import" not in own and "url(" not in own
    assert page.count("</script>") == page.count("<script") == 7  # five charts, the bundle, the page's own


def test_text_is_escaped_invariant(tmp_path):
    store = store_of(tmp_path, drafters=2, benchmarks=2)
    page = ms.write_report(ms.study(store, resamples=99), tmp_path / "page.html", command=NASTY).read_text("utf-8")
    assert "<script>alert" not in page and "bench 0 <b>" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;&amp;") > 20 and "bench 0 &lt;b&gt;" in page


def test_twenty_contenders_stay_small_invariant(tmp_path):
    store = store_of(tmp_path, drafters=20, benchmarks=10)
    found = ms.study(store, resamples=99, price=Affine(1.0, per_draft=0.1))
    page = ms.write_report(found, tmp_path / "page.html")
    assert page.stat().st_size < 3_000_000
    assert len(found.shown) == 8 and len(found.evaluations) == 20


def test_without_the_extra_the_error_names_it_invariant(tmp_path):
    code = """import sys
sys.modules["vl_convert"] = None
import markov_spec as ms
found = ms.study("data/demo", ["quant5", "drop1"], resamples=99)
try:
    ms.write_report(found, sys.argv[1])
except ms.RequestError as error:
    print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "page.html")], capture_output=True, text=True, check=True
    )
    assert (
        told.stdout.strip() == "a report needs vl_convert: pip install 'markov-spec[report]', or '.[report]' in a clone"
    )


@pytest.mark.parametrize(
    ("place", "told"),
    [("none/page.html", "does not exist"), ("", "a file that ends in"), ("page.pdf", "a file that ends in")],
)
def test_a_path_that_cannot_be_written_is_told_invariant(demo, tmp_path, place, told):
    with pytest.raises(ms.RequestError, match=f"report: .*{told}"):
        ms.write_report(demo[0], tmp_path / place)


def test_what_stood_there_stays_when_writing_fails_invariant(demo, tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("old")

    def full(part, *given, **options):
        part.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(ms.RequestError, match="No space left"):
        ms.write_report(demo[0], page)
    assert page.read_bytes() == b"old" and list(tmp_path.iterdir()) == [page]


def test_only_a_study_is_written_invariant(demo, tmp_path):
    with pytest.raises(ms.RequestError, match=r"found a Comparison; allowed: a Study, from ms\.study"):
        ms.write_report(demo[0].comparison, tmp_path / "page.html")


def test_lengths_without_a_price_leave_the_speed_ups_out_invariant(tmp_path):
    store = ms.open_store("data/demo")
    price = Table([1, 2, 3, 4], [1.0, 1.1, 1.2, 1.3])
    found = ms.study(store, ["quant5:K=3", "drop1:K=2"], price=price, resamples=99)
    assert len(found.sweep_notes) == 2 and found.sweeps["speedup"].null_count() == len(found.sweeps) == 18
    page = ms.write_report(found, tmp_path / "page.html").read_text("utf-8")
    assert "not every draft length has a price" in page


def test_names_that_no_utf_8_says_are_written_invariant(demo, tmp_path):
    page = ms.write_report(demo[0], tmp_path / "page.html", command="markov-spec compare \udcff")
    assert "compare \\udcff" in page.read_text("utf-8")
