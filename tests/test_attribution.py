"""Attribution on stores: against switching one draft at a time, brute-force sums, and evaluations."""

import itertools
from collections import Counter, defaultdict

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import markov_spec as ms
from markov_spec.evaluation import attributed, tracing
from tests import stored_lists
from tests.stored_classes import BENCHMARKS, IDS, PAIRS, VOCAB, classes_of, contents, write
from tests.stored_lists import INDPTR, N


@pytest.fixture
def store(tmp_path):
    return write(tmp_path / "run")


def cells_of(store, a, b, first_start):
    """What each draft of each rollout changes when it follows the other law, one draft after the other."""
    laws = [ms.law_of(store, name).conditional() for name in (a, b)]
    depth = max(law.shape[1] for law in laws)
    one, other = (np.pad(law, ((0, 0), (0, depth - law.shape[1]))) for law in laws)
    out = np.zeros((N, depth))
    for low, high in itertools.pairwise(INDPTR):
        out[low:high] = telescope(one[low:high], other[low:high], first_start) / 2
        out[low:high] -= telescope(other[low:high], one[low:high], first_start) / 2
    return out


def telescope(before, after, first_start):
    cells, terms = before.copy(), np.zeros_like(before)
    last = rounds(cells, first_start)
    for cell in reversed(list(np.ndindex(before.shape))):
        cells[cell] = after[cell]
        terms[cell], last = rounds(cells, first_start) - last, rounds(cells, first_start)
    return terms


def rounds(cells, first_start):
    return ms.solve(ms.RoundLaw(cells, [0, len(cells)]), first_start=first_start).expected[0]


def drafts():
    """Every draft inside its rollout: rollout, start and depth (from 1), and row of its token."""
    for i, (low, high) in enumerate(itertools.pairwise(INDPTR)):
        for s in range(low, high):
            for k in range(1, high - s + 1):
                yield i, s, k, s + k - 1


def summed(frame, *names):
    return {row[:-1] if len(names) > 1 else row[0]: row[-1] for row in frame.select(*names, "attributed").iter_rows()}


@pytest.mark.parametrize("first_start", [0, 1, 6])
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_frames_against_enumeration(store, a, b, first_start):
    found, cells = ms.attribute(store, a, b, first_start=first_start, count=100), cells_of(store, a, b, first_start)
    sums = defaultdict(lambda: defaultdict(float))
    for i, s, k, row in drafts():
        if k <= cells.shape[1]:
            own = cells[s, k - 1]
            for name, key in [("depth", k), ("benchmark", BENCHMARKS[i]), ("start", (IDS[i], s - INDPTR[i]))]:
                sums[name][key] += own
            for kind, name in classes_of(row, row - INDPTR[i]).items():
                sums["class"][kind, name] += own
    for frame, names in [("by_depth", ["depth"]), ("by_benchmark", ["benchmark"]), ("by_class", ["kind", "class"])]:
        told = summed(getattr(found, frame), *names)
        expected = sums[frame.removeprefix("by_")]
        # Classes whose tokens are all the prefill's are left out; nothing is attributed to them.
        assert set(told) >= {key for key, value in expected.items() if abs(value) > 1e-12}
        assert told == pytest.approx({key: expected[key] for key in told}, abs=1e-9)
    costs = {key: value for key, value in sums["start"].items() if value > 1e-9}
    assert [key for key in sorted(costs, key=costs.get, reverse=True)] == [
        row for row in found.starts.filter(pl.col("attributed") > 1e-9).select("rollout", "position").iter_rows()
    ]
    assert summed(found.starts, "rollout", "position") == pytest.approx(
        {key: sums["start"][key] for key in found.starts.select("rollout", "position").iter_rows()}, abs=1e-9
    )


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_figures_against_reference(store, a, b, first_start):
    found = ms.attribute(store, a, b, first_start=first_start, count=3)
    one, other = (ms.evaluate(store, name, first_start=first_start) for name in (a, b))
    assert found.rounds == pytest.approx((one.rounds.sum(), other.rounds.sum()), abs=1e-9)
    assert found.difference == pytest.approx(other.rounds.sum() - one.rounds.sum(), abs=1e-9)
    assert found.contenders == (a, b) and found.tokens == one.committed.sum() and found.exactness == "exact"
    sums = [found.by_depth, found.by_benchmark, *found.by_class.partition_by("kind")]
    assert [frame["attributed"].sum() for frame in sums] == pytest.approx([found.difference] * 6, abs=1e-9)
    assert [frame["share"].sum() for frame in sums] == pytest.approx([1.0] * 6, abs=1e-9)
    for own, side in ((one, "a"), (other, "b")):
        result = own.results()[0]
        assert found.per_rollout[f"rounds_{side}"].to_list() == pytest.approx(own.rounds.tolist(), abs=1e-12)
        depth = own.draft_length
        assert found.by_depth[f"tested_{side}"].to_list()[:depth] == pytest.approx(result["tested_by_depth"])
        rates = result["acceptance_by_depth"]["conditional"]
        assert found.by_depth[f"acceptance_{side}"].to_list()[:depth] == pytest.approx(rates)
        assert found.by_depth[f"tested_{side}"].to_list()[depth:] == [0] * (len(found.by_depth) - depth)
        assert found.by_benchmark[f"rounds_{side}"].to_list() == pytest.approx(
            [row["expected_rounds"] for row in own.results(by="benchmark")]
        )
    gaps = other.rounds - one.rounds
    assert found.per_rollout["difference"].to_list() == pytest.approx(gaps.tolist(), abs=1e-12)
    order = sorted(range(5), key=lambda i: -abs(gaps[i]))[:3]
    assert found.rollouts["rollout"].to_list() == [IDS[i] for i in order if gaps[i]]
    assert found.by_benchmark["tokens"].to_list() == [
        sum(int(n) for n, name in zip(one.committed, BENCHMARKS, strict=True) if name == own)
        for own in dict.fromkeys(BENCHMARKS)
    ]
    assert found.to_frame() is found.per_rollout


@pytest.mark.parametrize("first_start", [0, 2])
def test_tests_of_classes_against_simulation(store, first_start):
    """Trees are followed through with certainty: the tokens that a decoding tests are counted."""
    names = ["block:tree=best-first,budget=4", "block:tree=all-children,budget=9"]
    found = ms.attribute(store, *names, first_start=first_start)
    tests, kept = ([Counter(), Counter()] for _ in range(2))
    recorded = stored_lists.recorded()
    for which, (name, budget) in enumerate([("best-first", 4), ("all-children", 9)]):
        builder = ms.drafting.BUILDERS[name]()
        accepted, _ = stored_lists.walked(recorded, builder, budget)
        _, starts = stored_lists.decoded(accepted, first_start)
        ids, log_q, *_ = recorded
        for s in starts:
            i = int(np.searchsorted(INDPTR, s, side="right")) - 1
            deepest = int(ms.build_tree(ids[s], log_q[s], budget=budget, builder=builder).depths.max())
            for k in range(1, min(accepted[s] + 1, deepest, INDPTR[i + 1] - s) + 1):
                for key in classes_of(s + k - 1, s + k - 1 - INDPTR[i]).items():
                    tests[which][key] += 1
                    kept[which][key] += k <= accepted[s]
    tokens = Counter()
    for i, (low, high) in enumerate(itertools.pairwise(INDPTR)):
        for row in range(low + first_start, high):
            tokens.update(classes_of(row, row - INDPTR[i]).items())
    for row in found.by_class.to_dicts():
        key = row["kind"], row["class"]
        assert row["tokens"] == tokens.pop(key)
        for which, side in enumerate("ab"):
            assert row[f"tested_{side}"] == pytest.approx(tests[which][key], abs=1e-9)
            rate = kept[which][key] / tests[which][key] if tests[which][key] else None
            assert row[f"acceptance_{side}"] == (None if rate is None else pytest.approx(rate, abs=1e-9))
    assert not tokens


def test_starts_and_texts_against_reference(store):
    found = ms.attribute(store, "auto", "lookup", count=4)
    tokens, *_ = contents()
    assert len(found.starts) == 4 and found.starts["attributed"].is_sorted(descending=True)
    for row in found.starts.to_dicts():
        i = IDS.index(row["rollout"])
        low, high, s = INDPTR[i], INDPTR[i + 1], INDPTR[i] + row["position"]
        assert row["benchmark"] == BENCHMARKS[i]
        assert row["before"] == "".join(VOCAB[t] for t in tokens[max(low, s - 12) : s].tolist())
        assert row["after"] == "".join(VOCAB[t] for t in tokens[s : min(high, s + 12)].tolist())
        for side, name in zip("ab", found.contenders, strict=True):
            traced = ms.trace_rollout(store, name, row["rollout"])
            assert row[f"occupancy_{side}"] == pytest.approx(traced["start"][row["position"]])
            assert row[f"accepted_{side}"] == pytest.approx(traced["accepted"][row["position"]])
    for row in found.rollouts.to_dicts():
        i = IDS.index(row["rollout"])
        assert row["text"] == "".join(VOCAB[t] for t in tokens[INDPTR[i] : INDPTR[i + 1]].tolist())
    assert found.rollouts["difference"].abs().is_sorted(descending=True)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_places_changed_change_the_sign_invariant(store, a, b):
    there, back = ms.attribute(store, a, b), ms.attribute(store, b, a)
    assert there.difference == -back.difference and there.rounds == back.rounds[::-1]
    for name in ("by_depth", "by_benchmark", "by_class"):
        one, other = getattr(there, name), getattr(back, name)
        assert np.allclose(one["attributed"], -other["attributed"], atol=1e-12)
        assert np.allclose(one["share"], other["share"], atol=1e-9)
    assert there.rollouts["rollout"].to_list() == back.rollouts["rollout"].to_list()


def test_equal_contenders_have_nothing_to_attribute_invariant(store):
    found = ms.attribute(store, "block", "block:K=4,rule=rejection")
    assert found.difference == 0 and len(found.starts) == len(found.rollouts) == 0
    for frame in (found.by_depth, found.by_benchmark, found.by_class):
        assert (frame["attributed"] == 0).all() and frame["share"].is_null().all() and len(frame)
    assert found.headline.startswith("block:K=4,rule=rejection takes as many rounds as block (")


def test_one_changed_draft_takes_all_against_closed_form(tmp_path):
    """Depth 2 from start 1 of four tokens: the difference is o S (b - a) (U - V), and all of it is there."""
    p, q = np.full(4, 0.5), np.full((4, 2), 0.25)
    other = q.copy()
    other[1, 1] = 0.5
    drafters = {
        name: ms.Drafts(name, "block", "rejection", np.log(values)) for name, values in (("one", q), ("other", other))
    }
    store = ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.arange(4), indptr=[0, 4], log_p=np.log(p),
        drafters=drafters, vocab={2: "!"},
    )  # fmt: skip
    found = ms.attribute(store, "one", "other")
    # A round starts at 1 after a rejection at 0, .5; it tests depth 2 after an acceptance, .5. Accepted, it ends the
    # rollout; rejected, a round from 3 follows.
    assert found.difference == pytest.approx(0.5 * 0.5 * 0.5 * (0 - 1), abs=1e-7)
    assert found.by_depth["attributed"].to_list() == pytest.approx([0, found.difference], abs=1e-12)
    text = found.by_class.filter(pl.col("kind") == "text")
    assert summed(text, "class") == pytest.approx({"punctuation": found.difference, "other": 0}, abs=1e-12)
    assert len(found.starts) == 0
    back = ms.attribute(store, "other", "one").starts
    assert back.select("rollout", "position", "before", "after").rows() == [("a", 1, "�", "�!�")]
    assert back["attributed"].item() == pytest.approx(-found.difference, abs=1e-12)


def test_ranges_change_nothing_invariant(store, monkeypatch):
    pairs = [*PAIRS, ("lookup:K=2", "block:tree=best-first,budget=2")]
    whole = [ms.attribute(store, *pair, first_start=1, count=5) for pair in pairs]
    for owner, name in [(tracing, "CHUNK_BYTES"), (attributed, "CELLS")]:
        with monkeypatch.context() as small:
            small.setattr(owner, name, 1)
            found = [ms.attribute(store, *pair, first_start=1, count=5) for pair in pairs]
        for parts, one in zip(found, whole, strict=True):
            for frame in ("per_rollout", "by_depth", "by_benchmark", "by_class", "starts", "rollouts"):
                assert_frame_equal(getattr(parts, frame), getattr(one, frame), abs_tol=1e-12)
            assert repr(parts) == repr(one)


def test_ranges_of_lists_of_one_contender_invariant(store, monkeypatch):
    pair = ("block:tree=best-first,budget=3", "auto")
    whole = ms.attribute(store, *pair)
    monkeypatch.setattr("markov_spec.evaluation.lists.RANGE_BYTES", 1)
    parts = ms.attribute(store, *pair)
    assert_frame_equal(parts.by_class, whole.by_class, abs_tol=1e-12)
    assert_frame_equal(parts.by_depth, whole.by_depth, abs_tol=1e-12)


def test_exactness_is_carried_along_against_reference(tmp_path):
    short = stored_lists.write(tmp_path / "short", stored_lists.recorded(), width=2)
    labels = set()
    for budget in range(1, 12):
        tree = f"block:tree=best-first,budget={budget}"
        found, one = ms.attribute(short, "bare", tree), ms.evaluate(short, tree)
        labels.add(found.exactness)
        assert found.exactness == one.exactness
        told = [note for note in found.notes if "lists are too short" in note]
        assert told == [
            f"{tree}: lists are too short to tell the tree of {one.uncertain.sum():.2f} expected rounds"
        ] * (one.exactness == "bound")
    assert labels == {"exact", "bound"}
    learned = ms.attribute(short, "bare", "block:tree=static,budget=3")
    assert any(note.startswith("block:tree=static,budget=3: the tree is made of") for note in learned.notes)


def test_lossy_rules_are_teacher_forced_invariant(tmp_path):
    relaxed = {"draft_log_p": np.log([0.4, 0.1, 0.5]), "draft_rank": np.array([1, 3, 1])}
    drafts = ms.Drafts("auto", "autoregressive", "rejection", np.log([0.5, 0.4, 0.6]), parts={"relaxed": relaxed})
    store = ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6, 7]), indptr=[0, 3],
        log_p=np.log([0.5, 0.9, 0.4]), drafters={"auto": drafts},
    )  # fmt: skip
    found = ms.attribute(store, "auto", "auto:rule=top-m,m=2")
    assert found.exactness == "teacher-forced" and ms.attribute(store, "auto", "auto:K=1").exactness == "exact"
    assert found.by_depth["attributed"].sum() == pytest.approx(
        ms.evaluate(store, "auto:rule=top-m,m=2").rounds.sum() - ms.evaluate(store, "auto").rounds.sum(), abs=1e-9
    )
    assert found.notes[0].startswith("auto:rule=top-m,m=2: teacher-forced")


def test_edges_and_refusals_invariant(store, tmp_path):
    empty = ms.write_store(
        tmp_path / "empty", rollout_ids=[], prompt_ids=[], tokens=np.zeros(0, int), indptr=[0], log_p=np.zeros(0),
        drafters={"auto": ms.Drafts("auto", "autoregressive", "rejection", np.zeros(0))},
    )  # fmt: skip
    none = ms.attribute(empty, "auto", "auto:K=2")
    assert none.difference == 0 and none.tokens == 0 and len(none.by_class) == len(none.per_rollout) == 0
    assert len(none.by_depth) == 5 and none.by_depth["acceptance_a"].is_null().all()
    assert none.starts.schema == ms.attribute(store, "auto", "block").starts.schema
    plain = ms.attribute(store, "auto:rule=none", "block:K=0", count=0)
    assert len(plain.by_depth) == len(plain.starts) == 0 and plain.rounds == (N, N)
    late = ms.attribute(store, "auto", "block", first_start=40)
    assert late.rounds == (0, 0) and late.tokens == 0
    for options, message in [
        ({"count": -1}, "count: found -1"),
        ({"count": 2.5}, "count: found 2.5"),
        ({"first_start": -1}, "first_start"),
    ]:
        with pytest.raises(ValueError, match=message):
            ms.attribute(store, "auto", "block", **options)
    for name in ("nobody", "nobody:tree=best-first,budget=3"):
        with pytest.raises(ms.RequestError, match="found drafter 'nobody'; allowed: auto, block, lookup"):
            ms.attribute(store, "auto", name)
    with pytest.raises(ms.RequestError, match="a tree needs a budget"):
        ms.attribute(store, "auto", "block:tree=best-first")
    with pytest.raises(ms.RequestError, match="allowed: at most the recorded 4"):
        ms.attribute(store, "block:K=5", "auto")


def test_near_tie_of_the_demo_against_reference():
    found = ms.attribute("data/demo", "drop1", "quant5")
    assert found.rounds == pytest.approx((2705.58, 2793.75), abs=0.005) and found.exactness == "exact"
    assert (
        abs(found.by_class.group_by("kind").agg(pl.col("attributed").sum())["attributed"] - found.difference).max()
        < 1e-9
    )
