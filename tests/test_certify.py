"""Certificates on stores, against whole distributions and literal greedy acceptance."""

import itertools
import json

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import markov_spec as ms
from markov_spec.certificates import kl_to_reject
from markov_spec.cli import main
from markov_spec.evaluation import certificates as results
from markov_spec.evaluation import lists as reading
from markov_spec.evaluation.certify import certify_range
from markov_spec.report.certificates import BINS, certificates_chart
from tests.certificates.stores import INDPTR, K, N, cells, literal, write, write_small

RULES = [
    ("strict", {}),
    ("tree", {"m": 2}),
    ("additive", {"t": 0.2}),
    ("multiplicative", {"alpha": 0.5}),
    ("top-m", {"m": 2}),
    ("typical", {"epsilon": 0.2, "delta": 0.6}),
]


@pytest.fixture
def world(tmp_path):
    return write(tmp_path / "run")


@pytest.fixture
def small(tmp_path):
    return write_small(tmp_path / "small")


@pytest.mark.parametrize(("rule", "settings"), RULES)
@pytest.mark.parametrize("name", ["auto", "block"])
def test_certified_and_accepted_against_enumeration(world, name, rule, settings):
    store, p, *_ = world
    found = ms.certify(store, name, rule=rule, **settings)
    own, at, inside = cells(world, name)
    value = kl_to_reject(-np.sort(-p, axis=1), rule=rule, complete=False, **settings).value[at][inside]
    kl = (p[at] * np.log(p[at] / own)).sum(-1)[inside]
    frame = found.to_frame()
    margin = -np.diff(-np.sort(-p, axis=1)[:, :2])[:, 0][at][inside]
    assert np.allclose(frame["margin"], margin, atol=1e-5) and frame["threshold_exact"].all()
    assert (frame["certified"].to_numpy() == (kl < value - 1e-6)).all()
    assert np.allclose(frame["threshold"], value, atol=1e-5) and np.allclose(frame["kl"], kl, atol=1e-5)
    assert frame["accepted"].to_list() == literal(rule, settings, p[at], own)[inside].tolist()
    assert (frame["accepted"] | ~frame["certified"]).all() and frame["certified"].any()
    for by in ("benchmark", "margin", "depth"):
        summary = found.summary(by)
        assert summary["drafts"].sum() == len(frame)
        assert (summary["certified"] * summary["drafts"]).sum() == pytest.approx(frame["certified"].sum())
        assert (summary["gap"] >= 0).all()
    wary = ms.certify(store, name, rule=rule, tolerance=0.2, **settings).to_frame()["certified"].to_numpy()
    assert (wary == (kl + 0.2 < value - 1e-6)).all() and wary.sum() < frame["certified"].sum()
    assert ms.certify(store, name, rule=rule, kl=0.0, **settings).to_frame()["certified"].sum() == (value > 0).sum()


def runs(right, first, last):
    """Lengths of the rounds of a rollout decoded literally, given which drafts are right from each start."""
    start, found = first, []
    while start < last:
        run = list(itertools.takewhile(bool, right[start][: last - start]))
        found.append(len(run) + 1)
        start += len(run) + 1
    return found


@pytest.mark.parametrize(("rule", "settings"), [("strict", {}), ("tree", {"m": 2})])
@pytest.mark.parametrize("name", ["auto:K=3", "block"])
def test_guaranteed_length_against_literal_decoding(world, name, rule, settings):
    store, p, *_ = world
    found = ms.certify(store, name, rule=rule, **settings)
    worst = float(found.to_frame()["kl"].max())
    own, at, _ = cells(world, name.split(":")[0])
    right = literal(rule, settings, p[at], own)
    value = kl_to_reject(-np.sort(-p, axis=1), rule=rule, **settings).value[at]
    by_start = np.lib.stride_tricks.sliding_window_view
    if name.startswith("auto"):
        right, value = (by_start(np.append(values, [0] * (K - 1)), K) for values in (right, value))
    rounds = sum(len(runs(right, *span)) for span in itertools.pairwise(INDPTR))
    assert found.guaranteed_length(worst) <= N / rounds + 1e-9 and (rule == "tree" or N / rounds > 1.5)
    for kl in (0.0, 0.01, 0.05, 0.2):  # the robust programme on the cells themselves
        most = ms.bound_rounds((value > kl).astype(float), np.ones(value.shape), INDPTR).high.sum()
        assert found.guaranteed_length(kl) == pytest.approx(N / most, rel=1e-12)
    lengths = [found.guaranteed_length(kl) for kl in (0, 0.1, 0.3, 0.6, 1.0, 1.2)]
    assert lengths == sorted(lengths, reverse=True) and lengths[-1] == 1 and lengths[0] > 1.5
    for length in (1.2, 1.6):
        kl = found.kl_for_length(length)
        assert found.guaranteed_length(np.nextafter(kl, 0)) >= length > found.guaranteed_length(kl + 1e-9)
    assert found.kl_for_length(50.0) is None


@pytest.mark.parametrize("name", ["auto:K=2", "auto:K=7", "block"])
def test_run_length_against_enumeration(world, name):
    found = ms.certify(world[0], name)
    frame, length = found.to_frame(), 0
    certain = {(row["rollout"], row["start"], row["depth"]): row["certified"] for row in frame.to_dicts()}
    for (i, rollout), start in itertools.product(enumerate("abcd"), range(N)):
        for k in range(1, found.draft_length + 1):
            place = (rollout, start + k - 1, 1) if found.by_position else (rollout, start, k)
            if not certain.get(place, False) or start + k > INDPTR[i + 1] - INDPTR[i]:
                break
            length += 1
    assert found.run_length() == length / N and length > N / 2


@pytest.mark.parametrize(("rule", "settings"), [*RULES, ("tree", {"m": 3}), ("top-m", {"m": 3}), ("typical", {})])
@pytest.mark.parametrize("top", [1, 2])
def test_truncated_lists_against_enumeration(tmp_path, rule, settings, top):
    """What short lists do not tell is not known, and what they certify is accepted."""
    world = write(tmp_path / "run", top, 2)
    store, p, *_ = world
    own, at, inside = cells(world, "block")
    true = literal(rule, {**settings, "epsilon": 0.09, "delta": 0.3} | settings, p[at], own)[inside]
    whole = kl_to_reject(-np.sort(-p, axis=1), rule=rule, complete=False, **settings).value[at][inside]
    frame = ms.certify(store, "block", rule=rule, **settings).to_frame()
    known = frame["accepted"].is_not_null().to_numpy()
    assert known.all() or top < settings.get("m", 2) or rule in ("additive", "multiplicative", "typical")
    assert known.any() and (frame["accepted"].to_numpy()[known] == true[known]).all()
    assert true[frame["certified"].to_numpy()].all() and (frame["threshold"].to_numpy() <= whole + 1e-6).all()
    exact = frame["threshold_exact"].to_numpy()
    assert np.allclose(frame["threshold"].to_numpy()[exact], whole[exact], atol=1e-5)


def test_loosest_are_accepted_far_above_the_threshold_invariant(world):
    found = ms.certify(world[0], "block")
    loose = found.loosest(5)
    assert len(loose) <= 5 and loose["accepted"].all() and not loose["certified"].any()
    assert (loose["kl"] - loose["threshold"]).is_sorted(descending=True)
    assert "certified" in repr(found)


def test_lossy_rules_and_random_rollouts_bound_no_rounds_invariant(world):
    with pytest.raises(ms.RequestError, match="a lossy rule's accepted draft may leave"):
        ms.certify(world[0], "block", rule="additive", t=0.2).guaranteed_length(0.1)
    with pytest.raises(ms.RequestError, match="drawn at random"):
        ms.certify("data/demo", "quant5").guaranteed_length(0.1)


def test_command_against_reference(world, capsys):
    path = str(world[0].path)
    assert main(["certify", path, "auto", "--rule", "tree,m=2", "--format", "json", "--target-length", "1.2"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = ms.certify(world[0], "auto", rule="tree", m=2)
    assert told["benchmark"] == found.summary().to_dicts() and told["kl_for_length"] == found.kl_for_length(1.2)
    assert main(["certify", path, "auto", "--target-length", "1.2"]) == 0
    assert "guaranteed" in capsys.readouterr().out
    assert main(["certify", path, "auto", "--rule", "tree,m=2", "--format", "csv"]) == 0
    rows = pl.read_csv(capsys.readouterr().out.encode())
    assert rows["by"].to_list() == ["benchmark"] * 2 + ["margin"] * len(found.summary("margin"))
    assert rows.filter(by="margin")["certified"].to_list() == found.summary("margin")["certified"].to_list()
    assert main(["certify", path, "auto", "--by", "depth", "--format", "csv"]) == 0
    assert pl.read_csv(capsys.readouterr().out.encode())["by"].to_list() == ["depth"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["auto", "--rule", "magic"], "found 'magic'; allowed: strict"),
        (["auto", "--rule", "tree,m=x"], "found 'm=x'"),
        (["auto", "--rule", "tree"], "m"),
        (["auto:rule=match"], "found a rule or a tree"),
        (["nobody"], "found drafter 'nobody'"),
        (["block:K=9"], "found K=9; allowed: 1 to 3"),
        (["auto", "--positions", "drafts.txt"], "allowed: a name that ends in .parquet or .csv"),
        (["auto", "--plot", "nowhere/f.html"], "folder nowhere does not exist"),
    ],
)
def test_what_cannot_be_certified_is_refused_invariant(world, capsys, words, message):
    assert main(["certify", str(world[0].path), *words]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_frame_has_nothing_where_nothing_is_drafted_invariant(world):
    frame = ms.certify(world[0], "block").to_frame()
    assert frame.filter(pl.col("rollout") == "b").is_empty()
    assert frame.filter(pl.col("rollout") == "c")["depth"].to_list() == [1]


def test_nothing_is_promised_where_the_rollout_leaves_the_target_against_closed_form(small):
    found = ms.certify(small, "auto:K=1")
    assert found.to_frame()["followed"].to_list() == [True, True, False, True, False]
    assert found.guaranteed_length(0.0) == 5 / 3  # rounds from 0, 2 and 3: the draft at 0 and that at 3 are certain
    assert any("2 drafts stand where" in note for note in found.notes)
    assert found.kl_for_length(1.0) == np.inf
    few = ms.certify(small, "few")
    assert few.to_frame()["proposed"].to_list() == [False, True, True, True, True]
    assert few.to_frame()["certified"].to_list() == [False, True, True, False, False]
    assert few.to_frame()["accepted"][0] is False
    assert few.guaranteed_length(0.0) == 5 / 3  # rounds from 0, 1 and 3


def test_what_the_figures_leave_unsaid_is_a_note_invariant(small):
    assert any("infinite at 1 of 5 drafts" in note for note in ms.certify(small, "auto").notes)
    assumed = ms.certify(small, "auto", kl=0.01)
    assert any("but 1 of 5 recorded ones exceed it" in note for note in assumed.notes) and assumed.settings == {
        "kl": 0.01
    }


@pytest.mark.parametrize("name", ["auto:K=2", "block:K=2"])
@pytest.mark.parametrize("rule", [("strict", {}), ("tree", {"m": 2})])
def test_ranges_of_rollouts_invariant(world, monkeypatch, name, rule):
    """Reading and summing range by range gives what one range does, in 22 bytes a position and 6 a draft."""
    rule, settings = rule
    whole = ms.certify(world[0], name, rule=rule, **settings)
    told = [whole.summary(by) for by in ("benchmark", "margin", "depth")]
    frame, kls = whole.to_frame(), [0.0, 0.05, 0.2]
    figures = [whole.run_length(), *whole.share_at(kls), *map(whole.guaranteed_length, kls), whole.kl_for_length(1.3)]
    loosest = whole.loosest(4)
    assert len(list(whole.frames())) == 1
    monkeypatch.setattr(reading, "RANGE_BYTES", 1)
    monkeypatch.setattr(results, "FRAME_ROWS", 1)
    ranged = ms.certify(world[0], name, rule=rule, **settings)
    assert len(list(ranged.frames())) == 3  # one rollout has no token
    assert_frame_equal(ranged.to_frame(), frame)
    for by, wanted in zip(("benchmark", "margin", "depth"), told, strict=True):
        assert_frame_equal(ranged.summary(by), wanted)
    assert_frame_equal(ranged.loosest(4), loosest)
    again = [ranged.run_length(), *ranged.share_at(kls), *map(ranged.guaranteed_length, kls), ranged.kl_for_length(1.3)]
    assert again == pytest.approx(figures, rel=1e-14)
    assert_frame_equal(whole.to_frame(["d", "a"]), pl.concat([frame.filter(rollout=name) for name in "da"]))
    assert whole.to_frame([]).is_empty() and whole.to_frame([]).schema == frame.schema
    with pytest.raises(ms.RequestError, match="found 'e'; allowed: the 4 ids"):
        whole.to_frame(["a", "e"])
    arrays = [value for value in vars(ranged).values() if isinstance(value, np.ndarray)]
    drafts = ranged.certified.size
    assert sum(values.nbytes for values in arrays) == 22 * N + 6 * drafts + INDPTR.nbytes


@pytest.mark.parametrize("name", ["auto", "block"])
def test_range_against_enumeration(world, name):
    """Certified cells whose token is the target's best are drafts of the rollout's own token."""
    store, p, *_ = world
    own, at, inside = cells(world, name)
    found = certify_range(store, ms.Contender(name), kl=0.05)
    value = kl_to_reject(-np.sort(-p, axis=1), rule="strict").value
    assert (found.inside == inside).all() and np.allclose(found.threshold, value, atol=1e-5) and found.exact.all()
    assert (found.promised == (inside & (value > 0.05)[at])).all() and found.promised.any()
    recorded = certify_range(store, ms.Contender(name))
    drawn = own.argmax(-1) == store.rollouts().tokens[at]
    assert drawn[recorded.promised].all() and recorded.promised.sum() > 5
    np.testing.assert_array_equal(found.recorded, recorded.kl)
    assert (found.kl == 0.05).all()


@pytest.mark.parametrize("kl", [0.0, 0.03, 0.2, 0.7])
def test_share_at_a_divergence_against_reference(world, small, kl):
    for store, name in ((world[0], "auto"), (world[0], "block"), (small, "few"), (small, "some")):
        assumed = ms.certify(store, name, kl=kl).to_frame()["certified"].mean()
        found = ms.certify(store, name)
        assert found.share_at(kl) == pytest.approx(assumed)
        frame = found.to_frame()
        level = frame["threshold"].max()  # at a threshold itself nothing is certain
        share = frame.select(((pl.col("threshold") > level) & pl.col("proposed")).mean()).item()
        assert found.share_at(level - results.ROUNDING) == share


def test_nothing_is_promised_of_other_tokens_in_a_range_against_closed_form(small):
    found = certify_range(small, ms.Contender("deep"))
    assert found.certified.tolist() == [[True, True], [True, True], [True, True], [True, False], [False, False]]
    assert found.promised.tolist() == [[True, True], [True, False], [False, True], [True, False], [False, False]]
    assert (found.accepted == -1).all()  # no lists tell


def test_lengths_that_vary_against_enumeration(small):
    """A draft that is not made is certain of nothing, whatever its position promises to another start."""
    found = ms.certify(small, "some:K=3")
    assert found.to_frame()["proposed"].to_list() == [True, False, True, True, False]
    drafted, sure, most = [1, 0, 3, 1, 0], [True, True, False, True, False], 0
    for free in itertools.product((False, True), repeat=5):
        accepted, rounds, start = [a or b for a, b in zip(sure, free, strict=True)], 0, 0
        while start < 5:
            run = list(itertools.takewhile(bool, accepted[start : start + drafted[start]]))
            start, rounds = start + len(run) + 1, rounds + 1
        most = max(most, rounds)
    assert found.guaranteed_length(0.0) == 5 / most == 5 / 3
    assert found.run_length() == (1 + 0 + 1 + 0 + 0) / 5  # KL is infinite at 3


def drawn(found, key, without="-"):
    """The rows of the chart's data that have one column and not another."""
    sets = certificates_chart(found).to_dict()["datasets"].values()
    return next(data for data in sets if key in data[0] and without not in data[0])


def test_chart_against_enumeration(small):
    """Each bin has its drafts, the last one all beyond, the infinite ones too; the curve is what is promised."""
    found = ms.certify("data/demo-greedy", "quant5")
    frame, bins = found.to_frame(), drawn(found, "low")
    assert sum(row["drafts"] for row in bins) == len(frame)
    for row in bins:
        below = pl.lit(True) if row["beyond"] else pl.col("kl") < row["high"]
        inside = frame.filter(pl.col("kl") >= row["low"], below)
        assert row["drafts"] == len(inside) and row["certified"] == pytest.approx(inside["certified"].mean())
        assert row["accepted"] == pytest.approx(inside["accepted"].mean())
    assert [row["range"].endswith("and beyond") for row in bins] == [*[False] * (len(bins) - 1), True]
    assert bins[-1]["drafts"] <= 0.01 * len(frame) and bins[-1]["low"] == pytest.approx(BINS * bins[0]["high"])
    curve = drawn(found, "share", without="range")
    assert [row["share"] for row in curve] == found.share_at([row["kl"] for row in curve]).tolist()
    few, assumed = (drawn(ms.certify(small, "auto", **options), "low") for options in ({}, {"kl": 0.1}))
    assert [(row["range"], row["drafts"]) for row in few] == [("0 to 0.1", 4), ("2 and beyond", 1)]
    assert [(row["range"], row["drafts"]) for row in assumed] == [("0.1 to 0.11", 5)]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_positions_file_against_reference(world, tmp_path, capsys, monkeypatch, ending):
    monkeypatch.setattr(results, "FRAME_ROWS", 1)
    file = tmp_path / f"drafts.{ending}"
    assert main(["certify", str(world[0].path), "block", "--positions", str(file)]) == 0
    found = pl.read_csv(file) if ending == "csv" else pl.read_parquet(file)
    assert_frame_equal(found, ms.certify(world[0], "block").to_frame())


def test_a_bound_that_the_record_exceeds_guarantees_nothing_invariant(capsys):
    words = ["certify", "data/demo-greedy", "quant5"]
    assert main([*words, "--kl", "0.5"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Guaranteed at this KL" not in told and "Would be guaranteed at this KL, if it held:" in told
    assert main([*words, "--kl", "5"]) == 0
    assert "Guaranteed at this KL:" in " ".join(capsys.readouterr().out.split())
