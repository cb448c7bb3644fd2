"""The verb on stores, against the engine on the same arrays and against hand-made answers."""

import json

import numpy as np
import polars as pl
import pytest

import markov_spec as ms
from markov_spec.evaluation import laws
from markov_spec.latency import Affine

INDPTR = np.array([0, 4, 9, 9, 10])
N, K = 10, 3


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(2)
    log_p = np.log(rng.uniform(0.1, 1, N)).astype(np.float32)
    block = np.log(rng.uniform(0.05, 1, (N, K))).astype(np.float32)
    rank = rng.integers(1, 4, (N, K))
    hit = rng.random((N, K)) < 0.6
    drafted = rng.integers(0, K + 1, N)
    drafters = {
        "auto": ms.Drafts(
            "auto", "autoregressive", "rejection", np.log(rng.uniform(0.05, 1, N)), rng.integers(1, 3, N)
        ),
        "block": ms.Drafts("block", "block", "rejection", block, rank),
        "greedy": ms.Drafts("greedy", "block", "match", block, rank),
        "soft": ms.Drafts("soft", "block", "rejection", block),
        "lookup": ms.Drafts("lookup", "block", "match", np.where(hit, 0, -np.inf), drafted=drafted),
    }
    return ms.write_store(
        tmp_path / "run", rollout_ids=list("abcd"), prompt_ids=list("ppqq"), benchmarks=["x", "x", "y", "y"],
        tokens=rng.integers(0, 9, N), indptr=INDPTR, log_p=log_p, drafters=drafters,
    )  # fmt: skip


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize(
    ("contender", "rule", "depth"),
    [
        ("auto", "rejection", 5),
        ("auto:K=2", "rejection", 2),
        ("auto:K=2,rule=block", "block", 2),
        ("auto:K=4,rule=match", "match", 4),
        ("auto:K=3,rule=independent", "independent", 3),
        ("block", "rejection", 3),
        ("block:K=2,rule=block", "block", 2),
        ("block:rule=match", "match", 3),
        ("block:rule=none", "none", 0),
        ("greedy:rule=rejection", "match", 3),
        ("lookup:rule=block", "match", 3),
        ("lookup:K=2", "match", 2),
        ("lookup:rule=none", "none", 0),
    ],
)
def test_evaluate_against_reference(store, contender, rule, depth, first_start):
    found = ms.evaluate(store, contender, first_start=first_start)
    assert (found.rule, found.draft_length, found.exactness) == (rule, depth, "exact")
    drafts, rollouts = store.drafter(contender.split(":")[0]), store.rollouts()
    length = depth if drafts.drafted is None else np.minimum(drafts.drafted, depth)
    hit = None
    if rule == "match":
        hit = drafts.log_q == 0 if drafts.rank is None else drafts.rank == 1
    law = ms.round_law(rollouts.log_p, drafts.log_q, INDPTR, rule=rule, draft_length=length, hit=hit)
    rounds = ms.solve(law, first_start=first_start)
    for mine, theirs in (
        (found.rounds, rounds.expected), (found.variance, rounds.variance), (found.committed, rounds.committed),
        (found.drafted, rounds.drafted), (found.accepted_histogram, rounds.accepted_histogram[:, : depth + 1]),
        (found.tested, rounds.tested[:, :depth]),
    ):  # fmt: skip
        np.testing.assert_array_equal(mine, theirs)


def test_starts_that_draft_less_keep_the_width_invariant(tmp_path, monkeypatch):
    drafted = np.repeat([3, 2], 6)
    drafts = ms.Drafts("auto", "autoregressive", "rejection", np.full(12, -0.5), drafted=drafted)
    words = {
        "rollout_ids": ["a", "b"],
        "prompt_ids": ["p", "q"],
        "tokens": np.ones(12, dtype=int),
        "indptr": [0, 6, 12],
    }
    store = ms.write_store(tmp_path / "run", **words, log_p=np.full(12, -0.2), drafters={"auto": drafts})
    monkeypatch.setattr(laws, "CHUNK_BYTES", 8 * 5 * 6)
    for rule in ("rejection", "block"):
        found = ms.evaluate(store, f"auto:K=5,rule={rule}")
        assert found.accepted_histogram.shape == (2, 6) and found.tested.shape == (2, 5)
        assert len(found.results()[0]["acceptance_by_depth"]["conditional"]) == 5
        whole = ms.round_law(
            np.full(12, -0.2), np.full(12, -0.5), [0, 6, 12], rule=rule, draft_length=np.minimum(drafted, 5)
        )
        np.testing.assert_allclose(found.rounds, ms.solve(whole).expected, rtol=1e-6)


def test_chunks_of_rollouts_change_nothing_invariant(store, monkeypatch):
    whole = ms.evaluate(store, "auto:K=3,rule=block")
    monkeypatch.setattr(laws, "CHUNK_BYTES", 8 * 3 * 4)
    parts = ms.evaluate(store, "auto:K=3,rule=block")
    np.testing.assert_array_equal(whole.rounds, parts.rounds)
    np.testing.assert_array_equal(whole.accepted_histogram, parts.accepted_histogram)


def test_results_and_frames_agree_against_reference(store):
    found = ms.evaluate(store.path, "block")
    (row,) = found.results()
    assert row["committed_tokens"] == 10 and row["rollouts"] == 4
    assert row["expected_rounds"] == pytest.approx(found.rounds.sum(), abs=1e-12)
    assert row["pooled_length"] == pytest.approx(10 / found.rounds.sum(), abs=1e-12)
    histogram = found.accepted_histogram.sum(0)
    at_least = histogram[::-1].cumsum()[::-1]
    rates = row["acceptance_by_depth"]
    assert rates["unconditional"] == pytest.approx((at_least[1:] / at_least[0]).tolist())
    assert rates["conditional"] == pytest.approx((at_least[1:] / found.tested.sum(0)).tolist())
    frame = found.to_frame()
    assert frame["rollout"].to_list() == list("abcd")
    assert frame["expected_rounds"].to_numpy() == pytest.approx(found.rounds)
    assert found.summary().shape[0] == 1
    split = found.results(by="benchmark")
    assert [r["benchmark"] for r in split] == ["x", "y"]
    assert sum(r["expected_rounds"] for r in split) == pytest.approx(row["expected_rounds"])
    json.dumps(split)
    assert found.summary(by="benchmark").filter(pl.col("benchmark") == "y")["committed_tokens"].item() == 1
    assert "tokens per round" in repr(found) and "<table" in found._repr_html_()


def test_store_without_rollouts_gives_null_invariant(tmp_path):
    drafts = ms.Drafts("d", "block", "rejection", np.zeros((0, 2)))
    empty = ms.write_store(
        tmp_path / "run", rollout_ids=[], prompt_ids=[], tokens=np.zeros(0, dtype=int), indptr=[0], log_p=np.zeros(0),
        drafters={"d": drafts},
    )  # fmt: skip
    found = ms.evaluate(empty, "d")
    assert found.pooled_length is None and found.to_frame().shape[0] == 0
    assert found.results()[0]["pooled_length"] is None
    assert found.summary()["unconditional"].to_list() == [[None, None]]


@pytest.mark.parametrize(
    ("contender", "message"),
    [
        ("nobody", "found drafter 'nobody'; allowed: auto, block, greedy, lookup, soft"),
        ("block:K=9", "found draft length 9; allowed: at most the recorded 3"),
        ("soft:rule=match", "rule 'match' needs the drafter's rank"),
        ("block:rule=node-recursive", "rule 'node-recursive' needs m; allowed: m=2"),
        ("block:rule=node-recursive,m=4", "needs 'c_4' in part 'multi' of drafter 'block'.*--scalars"),
        ("block:rule=node-recursive,m=0", "found m=0; allowed: an integer >= 1"),
        (
            "block:rule=block,m=4",
            "found setting 'm' with rule block; rules independent, node-recursive",
        ),
        ("block:rule=recorded,of=3", "found of=3; allowed: coupling or without_replacement_2"),
        ("block:rule=magic", "found rule 'magic'; allowed: rejection"),
        ("auto:K=1000000000", "allowed: 0 to 1024"),
        ("block:K=x", "found 'K=x'; allowed: NAME"),
        ("block:depth=3", "found setting 'depth' with rule None; no rule uses it"),
    ],
)
def test_bad_contenders_are_refused_invariant(store, contender, message):
    with pytest.raises(ms.RequestError, match=message):
        ms.evaluate(store, contender)


def test_unknown_recorded_rule_names_the_drafter_invariant(store):
    ms.add_drafter(store.path, ms.Drafts("odd", "autoregressive", "greedy", np.full(N, -1.0)))
    with pytest.raises(ValueError, match="drafter 'odd': recorded with rule 'greedy'; allowed: rejection"):
        ms.evaluate(store.path, "odd")
    with pytest.raises(ms.RequestError, match="allowed: one name"):
        ms.evaluate(store, ["auto", "block"])


def test_ranges_of_draft_lengths_against_reference(store):
    lengths = [ms.evaluate(store, contender).rounds.sum() for contender in ms.Contender.parse_all("block:K=0-3")]
    assert lengths == [ms.evaluate(store, f"block:K={k}").rounds.sum() for k in range(4)]
    assert lengths[0] == 10
    assert [str(c) for c in ms.Contender.parse_all("a:rule=match,K=9-11")] == [
        f"a:K={k},rule=match" for k in (9, 10, 11)
    ]
    assert [str(c) for c in ms.Contender.parse_all("K=1-3")] == ["K=1-3"]
    for text in ("block:K=3-1", "block:K=1-", "block:K=-2", "block:K=1-2-3", "block:K=1-9999"):
        with pytest.raises(ms.RequestError):
            ms.Contender.parse_all(text)


def test_unknown_grouping_is_refused_invariant(store):
    with pytest.raises(ms.RequestError, match="by: found 'prompt'"):
        ms.evaluate(store, "block").summary(by="prompt")


def test_contender_text_round_trip_invariant():
    for text in ("block", "block:K=7", "block:K=7,rule=match", "block:rule=none"):
        assert str(ms.Contender.parse(text)) == text


def test_ranges_of_a_store_change_nothing_invariant(store, monkeypatch):
    price = Affine(1.0, per_draft=0.1, per_context=0.01)
    words = {"price": price, "convention": "dflash"}
    for contender in ("auto:K=3", "block:rule=block", "lookup"):
        whole = ms.evaluate(store, contender, **words)
        seen = ms.proxies(store, contender).to_frame()
        monkeypatch.setattr(laws, "CHUNK_BYTES", 8 * 3 * 4)
        parts = ms.evaluate(store, contender, **words)
        assert parts.results(by="benchmark") == whole.results(by="benchmark")
        assert parts.to_frame().equals(whole.to_frame())
        assert ms.proxies(store, contender).to_frame().equals(seen)
        monkeypatch.undo()


def test_log_probabilities_of_which_nothing_is_known_are_warned_of_invariant(tmp_path):
    plain = np.log([0.5, 0.8])
    unknown = {"logprob_space": None}
    cases = [({}, {}, 0), (unknown, {}, 1), (unknown, unknown, 2), ({"logprob_space": "processed"}, unknown, 1)]
    cases += [({"sampling": {"temperature": 1}}, unknown, 0), (unknown, {"sampling": {"temperature": 0.7}}, 1)]
    for i, (metadata, own, count) in enumerate(cases):
        drafters = {
            "d": ms.Drafts("d", "autoregressive", "rejection", plain, np.ones(2, dtype=int), metadata=own),
        }
        store = ms.write_store(
            tmp_path / str(i), rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6]), indptr=[0, 2],
            log_p=plain, drafters=drafters, metadata=metadata,
        )  # fmt: skip
        found = ms.evaluate(store, "d:K=1")
        assert len(found.notes) == count and repr(found).count("recorded as not known") == count
        assert found.results()[0]["warnings"][:count] == list(found.notes)
        assert ms.evaluate(store, "d:K=1,rule=match").notes == ()
    with pytest.raises(ms.RequestError, match=r"contender: found none; allowed: a drafter of the store \(d\)"):
        ms.evaluate(store)
