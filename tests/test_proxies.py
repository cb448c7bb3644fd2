"""Peers' proxies, against their own definitions written out start by start, and against what they should have said."""

import re
from math import prod
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import markov_spec as ms
from markov_spec import metrics
from markov_spec.evaluation import laws, proxies_frame

ROOT = Path(__file__).parents[1]
INDPTR = np.array([0, 5, 11, 11, 12, 15])
N, K = 15, 3


def one_drafter(path, log_p, log_q, indptr, kind="autoregressive", rule="rejection", **rest):
    drafts = ms.Drafts("d", kind, rule, log_q, **rest)
    ids = [f"r{i}" for i in range(len(indptr) - 1)]
    return ms.write_store(
        path, rollout_ids=ids, prompt_ids=ids, tokens=np.ones(len(log_p), dtype=int), indptr=indptr, log_p=log_p,
        drafters={"d": drafts},
    )  # fmt: skip


def figures(found, column="value", by=None):
    frame = found.to_frame(by=by)
    return dict(zip(frame["proxy"], frame[column], strict=True))


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(5)
    log_p = np.log(rng.uniform(0.1, 1, N))
    drafters = {}
    for name, kind, shape in (("auto", "autoregressive", (N,)), ("block", "block", (N, K))):
        overlap = {"divergence": {"overlap": rng.uniform(0, 1, shape).astype(np.float32)}}
        log_q = np.log(rng.uniform(0.05, 1, shape))
        drafters[name] = ms.Drafts(name, kind, "rejection", log_q, rng.integers(1, 3, shape), parts=overlap)
    hit = rng.random((N, K)) < 0.6
    drafted = rng.integers(0, K + 1, N)
    drafters["lookup"] = ms.Drafts("lookup", "block", "match", np.where(hit, 0, -np.inf), drafted=drafted)
    drafters["bare"] = ms.Drafts("bare", "block", "rejection", np.log(rng.uniform(0.05, 1, (N, K))))
    return ms.write_store(
        tmp_path / "run", rollout_ids=list("abcde"), prompt_ids=list("ppqqr"), benchmarks=list("xxyyy"),
        tokens=rng.integers(0, 9, N), indptr=INDPTR, log_p=log_p, drafters=drafters,
    )  # fmt: skip


class Written:
    """The definitions, start by start and depth by depth, from the record and nothing else."""

    def __init__(self, store, name, rule, depth, first_start, rollouts):
        self.drafts, self.log_p = store.drafter(name), store.rollouts().log_p.astype(float)
        self.rule, self.depth = rule, depth
        self.starts = [(s, INDPTR[i + 1]) for i in rollouts for s in range(INDPTR[i] + first_start, INDPTR[i + 1])]
        parts = store.drafter_parts(name)
        self.overlaps = store.drafter_part(name, "divergence")["overlap"] if "divergence" in parts else None

    def at(self, values, s, k):
        return float(values[s, k - 1] if values.ndim == 2 else values[s + k - 1])

    def drafted(self, s, k):
        return k <= (self.depth if self.drafts.drafted is None else self.drafts.drafted[s])

    def hit(self, s, k):
        if not self.drafted(s, k):
            return 0.0
        at_rank = self.drafts.log_q == 0 if self.drafts.rank is None else self.drafts.rank == 1
        return self.at(at_rank, s, k)

    def accept(self, s, k):
        if self.rule == "match" or not self.drafted(s, k):
            return self.hit(s, k)
        chance = np.exp(self.at(self.drafts.log_q.astype(float), s, k))
        return min(1.0, chance / (1 if self.rule == "independent" else np.exp(self.log_p[s + k - 1])))

    def overlap(self, s, k):
        return self.at(self.overlaps, s, k) if self.drafted(s, k) else 0.0

    def marginal(self, cell):
        means = []
        for k in range(1, self.depth + 1):
            cells = [cell(s, k) for s, end in self.starts if s + k <= end]
            means.append(sum(cells) / len(cells))
        return sum(prod(means[:k]) for k in range(1, self.depth + 1))

    def uniform(self, cell):
        lengths = []
        for s, end in self.starts:
            depths = range(1, min(self.depth, end - s) + 1)
            lengths.append(1 + sum(prod(cell(s, i) for i in range(1, k + 1)) for k in depths))
        return sum(lengths) / len(lengths)

    def iid(self, cell):
        depths = range(1, (1 if self.drafts.kind == "autoregressive" else self.depth) + 1)
        cells = [cell(s, k) for s, end in self.starts for k in depths if s + k <= end]
        alpha = sum(cells) / len(cells)
        return (1 - alpha ** (self.depth + 1)) / (1 - alpha)


@pytest.mark.parametrize("rows", [100, 6])
@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize(
    ("name", "rule", "depth"),
    [
        ("auto", "rejection", 3),
        ("auto", "independent", 2),
        ("auto", "match", 4),
        ("block", "rejection", 3),
        ("block", "match", 2),
        ("lookup", "match", 3),
        ("lookup", "match", 2),
    ],
)
def test_proxies_against_reference(store, monkeypatch, name, rule, depth, first_start, rows):
    monkeypatch.setattr(laws, "CHUNK_BYTES", 8 * depth * rows)
    found = ms.proxies(store, f"{name}:K={depth},rule={rule}", first_start=first_start)
    written = Written(store, name, rule, depth, first_start, range(5))
    wanted = {
        "eal": written.marginal(written.hit),
        "marginal_length": 1 + written.marginal(written.accept),
        "uniform_start_length": written.uniform(written.accept),
        "iid_acceptance": written.iid(written.accept),
    }
    if written.overlaps is not None:
        wanted |= {"tau": written.uniform(written.overlap), "iid_overlap": written.iid(written.overlap)}
    known = {proxy: value for proxy, value in figures(found).items() if value is not None}
    assert known == pytest.approx(wanted, rel=1e-6)
    length = ms.evaluate(store, f"{name}:K={depth},rule={rule}", first_start=first_start).pooled_length
    exact = figures(found, "exact")
    assert exact.pop("eal") == pytest.approx(length - 1) and set(exact.values()) == {length}
    for row in found.to_frame().iter_rows(named=True):
        if row["value"] is not None:
            assert row["error"] == pytest.approx((row["value"] - row["exact"]) / row["exact"])


def test_benchmarks_apart_against_reference(store):
    frame = ms.proxies(store, "block").to_frame(by="benchmark")
    assert frame["benchmark"].unique(maintain_order=True).to_list() == ["x", "y"]
    for benchmark, rollouts in (("x", (0, 1)), ("y", (2, 3, 4))):
        written = Written(store, "block", "rejection", K, 0, rollouts)
        part = frame.filter(pl.col("benchmark") == benchmark)
        found = dict(zip(part["proxy"], part["value"], strict=True))
        assert found["eal"] == pytest.approx(written.marginal(written.hit))
        assert found["tau"] == pytest.approx(written.uniform(written.overlap))
        assert found["iid_acceptance"] == pytest.approx(written.iid(written.accept))
        (exact,) = [
            row["pooled_length"]
            for row in ms.evaluate(store, "block").results(by="benchmark")
            if row["benchmark"] == benchmark
        ]
        assert part.filter(pl.col("bonus"))["exact"].to_list() == [exact] * 5


def test_block_verification_keeps_its_own_survival_against_reference(store):
    found = ms.proxies(store, "auto:K=3,rule=block")
    survival = ms.round_law(
        store.rollouts().log_p, store.drafter("auto").log_q, INDPTR, rule="block", draft_length=3
    ).survival()
    assert figures(found)["uniform_start_length"] == pytest.approx(1 + survival.sum() / N, rel=1e-6)
    notes = figures(found, "note")
    for name in ("marginal_length", "iid_acceptance"):
        assert figures(found)[name] is None and notes[name].startswith("rule block judges a depth together with")
    assert notes["tau"] == "assumes rule rejection; rule block decides"
    assert notes["eal"] == "assumes rule match; rule block decides"


def test_case_81_product_of_average_accuracies_against_closed_form(tmp_path):
    assert metrics.eal([50, 50, 50], [100, 100, 100]) == 0.875
    blocks = np.repeat([[1.0, 1, 1], [0, 0, 0]], 50, axis=0)
    assert metrics.eal(blocks.sum(0), [100] * 3) == 0.875
    assert metrics.start_lengths(blocks).mean() - 1 == 1.5
    # Of two rollouts of equal length one is all hits: accuracy 1/2 at each depth that is seen.
    log_q = np.repeat([0.0, -np.inf], 4)
    store = one_drafter(tmp_path / "run", np.full(8, -0.5), log_q, [0, 4, 8], rule="match")
    assert figures(ms.proxies(store, "d:K=3"))["eal"] == 0.875
    assert figures(ms.proxies(store, "d:K=4"))["eal"] == 0.9375
    unseen = ms.proxies(store, "d:K=6")
    for name in ("eal", "marginal_length"):
        assert figures(unseen)[name] is None
        assert figures(unseen, "note")[name] == "depth 5 was seen from 0 of 8 starts"
    assert metrics.eal([50, 0, 0], [100, 0, 0]) is metrics.marginal_length([50, 0], [100, 0]) is None
    assert figures(unseen)["uniform_start_length"] == (5 + 4 + 3 + 2 + 4 * 1) / 8


def test_case_82_overlaps_along_the_data_path_against_enumeration():
    p, q = {"a": 0.5, "b": 0.5}, {"a": 0.9, "b": 0.1}
    agree = {"a": 1.0, "b": 0.0}  # overlap of the second step: equal or disjoint distributions
    literal = sum(q[x] * min(1, p[x] / q[x]) * (1 + agree[x]) for x in p)
    assert 1 + literal == pytest.approx(2.1)
    overlap = sum(min(p[x], q[x]) for x in p)
    # p-rollouts by their first token, which is equally likely to be either.
    assert metrics.tau([[overlap, agree["a"]], [overlap, agree["b"]]]) == pytest.approx(1.9)
    ratios = [[min(1, q[x] / p[x]), agree[x]] for x in p]
    assert metrics.uniform_start_length(ratios) == pytest.approx(1 + literal)
    assert np.prod(ratios, axis=1).mean() == pytest.approx(0.5)


def test_case_17_prefix_rates_multiplied_again_against_closed_form():
    printed = [0.70112, 0.36951, 0.20591, 0.12546, 0.08118]  # EAGLE issue 191, which the case rounds
    assert metrics.marginal_length(printed, [1] * 5) == pytest.approx(1 + 1.0208, abs=5e-5)
    accepted = np.array([3, 3, 0, 1, 2, 0, 3, 1])
    blocks = (np.arange(3) < accepted[:, None]).astype(float)
    assert metrics.uniform_start_length(blocks) == pytest.approx(1 + 1.625)
    assert metrics.eal(blocks.sum(0), [8] * 3) == pytest.approx(0.75 + 0.75 * 0.5 + 0.75 * 0.5 * 0.375)


def test_case_30_no_proxy_knows_the_end_against_closed_form(tmp_path):
    store = one_drafter(tmp_path / "run", np.log(np.full(5, 0.8)), np.log(np.full(5, 0.4)), [0, 5])
    found = ms.proxies(store, "d:K=2")
    assert figures(found, "exact")["marginal_length"] == pytest.approx(1.5686, abs=5e-5)
    assert figures(found)["marginal_length"] == pytest.approx(1.75)
    assert figures(found)["iid_acceptance"] == pytest.approx(1.75)
    assert figures(found)["uniform_start_length"] == pytest.approx((4 * 1.75 + 1.5) / 5)
    assert metrics.iid_length(0.5, 2) == 1.75 and metrics.iid_length(1, 7) == 8 and metrics.iid_length(0.3, 0) == 1


@pytest.mark.parametrize(
    ("easy", "hard", "exact", "uniform", "marginal"),
    [(0.98, 0.50, 3.15, 4.73, 3.50), (0.95, 0.60, 3.60, 4.60, 3.87), (0.85, 0.75, 4.13, 4.23, 4.16)],
)
def test_easy_and_hard_halves_against_closed_form(tmp_path, easy, hard, exact, uniform, marginal):
    size, depth = 20_000, 7
    log_q = np.log(np.repeat([easy, hard], size))
    store = one_drafter(tmp_path / "run", np.zeros(2 * size), log_q, [0, size, 2 * size])
    found = ms.proxies(store, f"d:K={depth}")
    lengths = [sum(a**k for k in range(depth + 1)) for a in (easy, hard)]
    mean = (easy + hard) / 2
    assert figures(found, "exact")["tau"] == pytest.approx(2 / sum(1 / length for length in lengths), rel=1e-3)
    assert figures(found)["uniform_start_length"] == pytest.approx(sum(lengths) / 2, rel=1e-3)
    assert figures(found)["marginal_length"] == pytest.approx(sum(mean**k for k in range(depth + 1)), rel=1e-3)
    assert figures(found, "exact")["tau"] == pytest.approx(exact, abs=0.01)
    assert figures(found)["uniform_start_length"] == pytest.approx(uniform, abs=0.01)
    assert figures(found)["marginal_length"] == pytest.approx(marginal, abs=0.01)


def test_greedy_record_makes_proxies_meet_invariant():
    for contender in ("quant5:K=4", "block", "lookup"):
        found = ms.proxies(ROOT / "data/demo-greedy", contender)
        values, notes = figures(found), figures(found, "note")
        assert values["eal"] + 1 == pytest.approx(values["marginal_length"])
        assert values["tau"] == pytest.approx(values["uniform_start_length"])
        assert values["iid_overlap"] == pytest.approx(values["iid_acceptance"])
        assert set(notes.values()) == {None}


def test_what_was_not_recorded_is_null_with_the_reason_invariant(store):
    found = ms.proxies(store, "bare")
    notes = figures(found, "note")
    assert notes["eal"] == "needs the rank of drafter 'bare', which was not recorded"
    assert notes["tau"] == notes["iid_overlap"] == "needs the overlap of drafter 'bare', which was not recorded"
    values = figures(found)
    assert values["eal"] is values["tau"] is values["iid_overlap"] is None
    assert values["marginal_length"] > 1 and notes["marginal_length"] is None
    assert figures(found, "error")["tau"] is None


def test_a_sum_a_little_above_one_counts_as_one_invariant(tmp_path):
    overlap = {"divergence": {"overlap": np.full(4, 1.00005, dtype=np.float32)}}
    store = one_drafter(tmp_path / "run", np.full(4, -0.5), np.full(4, -0.5), [0, 4], parts=overlap)
    assert figures(ms.proxies(store, "d:K=1"))["tau"] == 2


def test_nothing_to_draft_and_nothing_recorded_invariant(store, tmp_path):
    found = ms.proxies(store, "auto:rule=none")
    assert figures(found) == {
        "eal": 0, "tau": 1, "marginal_length": 1, "uniform_start_length": 1, "iid_overlap": None,
        "iid_acceptance": None,
    }  # fmt: skip
    assert figures(found, "note")["iid_acceptance"] == "a draft was seen from 0 of 15 starts"
    assert figures(found, "error")["eal"] is None and figures(found, "error")["tau"] == 0
    empty = one_drafter(tmp_path / "empty", np.zeros(0), np.zeros((0, 2)), [0], kind="block")
    assert set(figures(ms.proxies(empty, "d")).values()) == {None}
    assert ms.proxies(empty, "d").to_frame(by="benchmark").height == 0
    past = ms.proxies(store, "block", first_start=9)
    assert set(figures(past).values()) == set(figures(past, "exact").values()) == {None}
    assert "no rounds" in repr(past)


def test_frames_of_many_and_text_against_reference(store):
    names = ["auto:K=2", "lookup"]
    frame = proxies_frame(store, names)
    assert frame.equals(pl.concat([ms.proxies(store, name).to_frame() for name in names]))
    assert proxies_frame(store.path, names, by="benchmark").height == 2 * 2 * 6
    assert proxies_frame(store, [], by="benchmark").columns == proxies_frame(store, names, by="benchmark").columns
    assert frame["bonus"].to_list() == [False, True, True, True, True, True] * 2
    found = ms.proxies(store, "auto:K=2")
    error = figures(found, "error")["tau"]
    assert f"tau {error:+.1%}" in repr(found) and "rule rejection, K=2" in repr(found)
    assert "<table" in found._repr_html_()
    with pytest.raises(ms.RequestError, match="by: found 'prompt'; allowed: None or 'benchmark'"):
        found.to_frame(by="prompt")


def test_products_end_with_the_rollout_against_closed_form():
    cells = [[0.5, np.nan, np.nan], [1, 0.5, np.nan], [1, 1, 0.5]]
    assert metrics.start_lengths(cells).tolist() == [1.5, 2.5, 3.5]
    assert metrics.tau(cells) == metrics.uniform_start_length(cells) == 2.5
    assert metrics.tau(np.zeros((0, 3))) is metrics.uniform_start_length(np.zeros((0, 3))) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.eal([3, 1], [2, 2]), r"depth 1: found 3 of 2 starts; allowed: 0 to all of them"),
        (lambda: metrics.eal([1, float("nan")], [2, 2]), "depth 2: found nan of 2"),
        (lambda: metrics.marginal_length([1], [2, 2]), r"observed: found shape \(2,\) for \(1,\) sums"),
        (lambda: metrics.tau([0.5]), r"accept: found shape \(1,\); allowed: \(N, K\)"),
        (lambda: metrics.tau([[0.5, 1], [0.5, 1.5]]), "accept: start 1, depth 2: found 1.5; allowed: 0 to 1"),
        (lambda: metrics.iid_length(1.5, 2), "found 1.5; allowed: 0 to 1"),
    ],
)
def test_impossible_figures_are_refused_invariant(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_readme_shows_what_happens_against_reference():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"(?:^# .*\n)+(?=```)", text, re.MULTILINE)
    assert shown.replace("# ", "").split() == repr(ms.proxies(ROOT / "data/demo", "lookup")).split()
