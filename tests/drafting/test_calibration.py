"""What trees promise by the drafter's probabilities, and what re-estimating these is worth."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.arrays import RequestError
from markov_spec.drafting import (
    BestFirst,
    Eagle2,
    build_tree,
    next_tokens,
    reestimate,
    surrogate_calibration,
    tree_law,
    tree_ranks,
)
from tests.drafting.samples import FAMILY, lists, rollout

DATA = Path(__file__).parents[2] / "data"
KINDS = ("uniform", "occupied")


def walked(ids, log_q, tokens, indptr, first_start, builder, n):
    """Build every tree, walk it, and decode from tree to tree: promised, kept and existing depths by kind of weight."""
    depths = ids.shape[1]
    sums = {kind: np.zeros((3, depths)) for kind in KINDS}
    counts, committed = dict.fromkeys(KINDS, 0), 0
    empty = np.isnan(log_q)
    ids, log_q = np.where(empty, -1, ids), np.where(empty, -np.inf, log_q)
    for begin, end in itertools.pairwise(indptr):
        here = begin + first_start
        committed += max(end - here, 0)
        for s in range(begin + first_start, end):
            tree = build_tree(ids[s], log_q[s], budget=n, builder=builder)
            left, kept = min(end - s, depths), tree.accepted(tokens[s])
            promised = np.bincount(tree.depths - 1, np.exp(tree.log_values), depths)[:depths] if len(tree) else 0
            cells = np.stack([promised * np.ones(depths), np.arange(depths) < kept, np.ones(depths)])
            cells[:, left:] = 0
            for kind in KINDS[: 1 + (s == here)]:
                sums[kind] += cells
                counts[kind] += 1
            if s == here:
                here += kept + 1
    return sums, counts, committed


@pytest.mark.parametrize("ends", [False, True])
def test_figures_against_enumeration(ends):
    """For every builder; some lists past the end missing, a rollout of one token, and one that has no start left."""
    rng = np.random.default_rng(4)
    indptr, budgets = [0, 9, 10, 16], [0, 1, 3, 4, 9, 40]
    ids, log_q = lists(rng, 16, 3, 5, zeros=ends)
    tokens = next_tokens(rollout(rng, ids, log_q)[:, 0], indptr, 3)
    if ends:
        log_q[tokens < 0], ids[tokens < 0] = np.nan, -1
    for builder, first_start in itertools.product(FAMILY, (0, 1)):
        found = surrogate_calibration(
            ids, log_q, tokens, indptr, budgets=budgets, builder=builder, first_start=first_start, complete=True
        )
        assert found.by_budget["budget"].to_list() == budgets and len(found.by_depth) == 3 * len(budgets)
        assert (found.builder, found.rollouts) == (builder.name, 3)
        for row in found.by_budget.iter_rows(named=True):
            n = row["budget"]
            sums, counts, committed = walked(ids, log_q, tokens, indptr, first_start, builder, n)
            ranks = tree_ranks(ids, log_q, tokens, max_budget=n, builder=builder, complete=True)
            after = np.concatenate([np.arange(size) >= first_start for size in np.diff(indptr)])
            assert row["certain"] == (ranks.exact_to >= n)[after].mean()
            assert row["expected_rounds"] == counts["occupied"]
            assert row["pooled_length"] == committed / counts["occupied"]
            layers = found.by_depth.filter(budget=n)
            assert layers["depth"].to_list() == [1, 2, 3]
            np.testing.assert_array_equal(layers["starts"], sums["uniform"][2])
            np.testing.assert_array_equal(layers["rounds"], sums["occupied"][2])
            for kind in KINDS:
                for i, name in enumerate(("expected", "realised")):
                    wanted = sums[kind][i].sum() / counts[kind]
                    assert row[f"{name}_{kind}"] == pytest.approx(wanted, rel=1e-12)
                    shares = [part / whole if whole else None for part, whole in zip(*sums[kind][[i, 2]], strict=True)]
                    assert layers[f"{name}_{kind}"].to_list() == pytest.approx(shares, rel=1e-12)


def all_outputs(probabilities, vocabulary, depths):
    """Rollouts whose tokens are independent, each as often as it is probable, and a drafter that knows that.

    ``probabilities`` (T, V), falling, in quarters: 4 to the T rollouts, sorted lists for each of their starts.
    """
    length = len(probabilities)
    names = np.array([np.roll(np.arange(vocabulary), t) for t in range(length)])
    words = [np.repeat(names[t], np.round(4 * probabilities[t]).astype(int)) for t in range(length)]
    tokens = np.array(list(itertools.product(*words)))
    many = len(tokens)
    at = np.minimum(np.arange(length)[:, None] + np.arange(depths), length - 1)
    with np.errstate(divide="ignore"):
        log_q = np.log(probabilities[at])
    indptr = np.arange(many + 1) * length
    ids, log_q = (np.tile(part, (many, 1, 1)) for part in (names[at], log_q))
    return ids, log_q, next_tokens(tokens.ravel(), indptr, depths), indptr


PROBABILITIES = np.array([[2, 1, 1], [3, 1, 0], [2, 1, 1], [2, 2, 0]]) / 4


@pytest.mark.parametrize("builder", FAMILY, ids=lambda builder: f"{builder.name}")
def test_right_probabilities_against_closed_form(builder):
    """All outputs of a target that the drafter knows: every promise is kept to the digit, where rounds begin too."""
    found = surrogate_calibration(
        *all_outputs(PROBABILITIES, 3, 3), budgets=[0, 1, 2, 3, 5, 8, 20], builder=builder, complete=True
    )
    for frame in (found.by_budget, found.by_depth):
        for kind in KINDS:
            np.testing.assert_allclose(frame[f"expected_{kind}"], frame[f"realised_{kind}"], rtol=1e-12, atol=1e-15)
    assert found.by_budget["realised_uniform"].max() > 0.5


def drawn(rng, rollouts, length, depths, vocabulary, *, twisted=False):
    """Random targets whose tokens are independent, and a drafter that knows them, or has the best two swapped."""
    shape = (rollouts, length + depths - 1, vocabulary)
    ids, log_q = (part.reshape(shape) for part in lists(rng, rollouts * shape[1], 1, vocabulary))
    places = (np.exp(log_q).cumsum(-1) < rng.random(shape[:2])[..., None]).sum(-1).clip(max=vocabulary - 1)
    words = np.take_along_axis(ids, places[..., None], -1)[..., 0]
    if twisted:
        ids = np.concatenate([ids[..., [1, 0]], ids[..., 2:]], axis=-1)
    at = np.arange(length)[:, None] + np.arange(depths)
    indptr = np.arange(rollouts + 1) * length
    tokens = next_tokens(words[:, :length].ravel(), indptr, depths)
    flat = (ids[:, at], log_q[:, at])
    return *(part.reshape(rollouts * length, depths, vocabulary) for part in flat), tokens, indptr


@pytest.mark.parametrize("builder", [BestFirst(), Eagle2(beam=3)])
def test_right_probabilities_against_simulation(builder):
    """Expected less realised figures of 300 rollouts, each an independent trial, are 0 within 4.5 standard errors."""
    ids, log_q, tokens, indptr = drawn(np.random.default_rng(0), 300, 12, 4, 6)
    apart = []
    for first, last in itertools.pairwise(indptr):
        rows = slice(first, last)
        found = surrogate_calibration(
            ids[rows], log_q[rows], tokens[rows], [0, last - first], budgets=[2, 6, 15], builder=builder, complete=True
        )
        one = found.by_budget
        # Sums over the rounds, not means: their number depends on the outcome.
        occupied = (one["expected_occupied"] - one["realised_occupied"]) * one["expected_rounds"]
        apart.append(np.concatenate([one["expected_uniform"] - one["realised_uniform"], occupied]))
    mean, error = np.mean(apart, axis=0), np.std(apart, axis=0, ddof=1) / np.sqrt(len(apart))
    assert (error > 0).all() and (np.abs(mean) <= 4.5 * error).all()
    assert (error[:3] < 0.03).all()


def halves(rollouts):
    return np.arange(rollouts) % 2 == 0


def test_reestimates_against_closed_form():
    """Two bins of one rank: 60 starts of .8, right in 30; 60 of .2, right in 24; the second token always .1."""
    q = np.repeat([0.8, 0.2], 60)
    ids, log_q = np.tile([[[7, 8]]], (120, 1, 1)), np.log(np.stack([q, np.full(120, 0.1)], axis=1))[:, None]
    tokens = np.full((120, 1), 9)
    tokens[:30], tokens[60:84] = 7, 7
    train = np.ones(120, bool)
    new_ids, new = reestimate(ids, log_q, tokens, train=train, bins=2)
    second = 0.1 * 8 / (120 * 0.1 + 8)  # all of one bin, as all are equal
    for rows, first in ((slice(60), 0.8 * 38 / (48 + 8)), (slice(60, 120), 0.2 * 32 / (12 + 8))):
        np.testing.assert_allclose(np.exp(new[rows, 0]), [[first, second]] * 60, rtol=1e-12)
    assert (new_ids == ids).all()
    _, one = reestimate(ids, log_q, tokens, train=train, bins=1)
    np.testing.assert_allclose(np.exp(one[..., 0, 0]), q * 62 / 68, rtol=1e-12)
    # What no start of training tells is left as it was.
    _, none = reestimate(ids, log_q, tokens, train=~train, bins=3)
    np.testing.assert_allclose(none, log_q, rtol=1e-12)


def test_edges_of_bins_against_closed_form():
    """Of .2, .5 and .8, as often each, the middle one is the edge of two bins, and in the upper one; all are right."""
    q = np.repeat([0.2, 0.5, 0.8], 20)
    train, ids = np.ones(60, bool), [[[7]]] * 60
    _, new = reestimate(ids, np.log(q)[:, None, None], [[7]] * 60, train=train, bins=2)
    factors = np.repeat([28 / (4 + 8), 48 / (26 + 8), 48 / (26 + 8)], 20)
    np.testing.assert_allclose(np.exp(new[:, 0, 0]), np.minimum(q * factors, 1), rtol=1e-12)


def test_tested_starts_alone_are_learnt_from_against_closed_form():
    """At depth 2 only the starts whose first token is listed count: 20 of 40, 15 of them right; the end does not."""
    ids = np.tile([[[7], [5]]], (60, 1, 1))
    log_q = np.log(np.tile([[[0.5], [0.5]]], (60, 1, 1)))
    tokens = np.array([[7, 5]] * 15 + [[7, 6]] * 5 + [[1, 5]] * 20 + [[7, -1]] * 20)
    _, new = reestimate(ids, log_q, tokens, train=np.ones(60, bool), bins=1)
    np.testing.assert_allclose(np.exp(new[0, :, 0]), [0.5 * 48 / 38, 0.5 * 23 / 18], rtol=1e-12)


def test_sums_zeros_and_missing_lists_against_closed_form():
    """Estimates that sum to more than 1 are divided by it; no token stays none, and a missing list missing."""
    ids = np.array([[[7, 8, -1], [5, 6, 4]]] * 30 + [[[7, 8, -1], [-1, -1, -1]]])
    log_q = np.log([[[0.6, 0.3, 1e-300], [0.5, 0.25, 0.25]]] * 31)
    log_q[:, 0, 2], log_q[:, 1, 2], log_q[30, 1] = -np.inf, -np.inf, np.nan
    tokens = np.array([[7, 6]] * 30 + [[8, -1]])
    new_ids, new = reestimate(ids, log_q, tokens, train=np.arange(31) < 30, bins=1)
    first, second = 0.6 * 38 / 26, 0.3 * 8 / 17
    np.testing.assert_allclose(np.exp(new[:, 0, :2]), [[1, second / first] / np.array(1 + second / first)] * 31)
    first, second = 0.25 * 38 / 15.5, 0.5 * 8 / 23
    np.testing.assert_allclose(np.exp(new[:30, 1, :2]), [[first, second]] * 30)
    np.testing.assert_array_equal(new_ids[:30, 1], [[6, 5, 4]] * 30)
    assert (new[:30, :, 2] == -np.inf).all() and np.isnan(new[30, 1]).all() and (new_ids[30, 1] == -1).all()
    tree_ranks(new_ids, new, tokens, max_budget=9, complete=True)


@pytest.mark.parametrize("bins", [1, 3, 10])
def test_reestimates_are_lists_invariant(bins):
    """They hold the same tokens, never rise and sum to at most 1; a cell's estimates are its share, in narrow bins."""
    rng = np.random.default_rng(5)
    ids, log_q = lists(rng, 400, 3, 6, zeros=True, dtype=np.float32)
    tokens = rollout(rng, ids, log_q, ends=True)
    log_q[tokens < 0], ids[tokens < 0] = np.nan, -1
    new_ids, new = reestimate(ids, log_q, tokens, train=np.arange(400) < 300, bins=bins)
    np.testing.assert_array_equal(np.sort(new_ids), np.sort(ids))
    there = ~np.isnan(log_q)
    np.testing.assert_array_equal(np.isnan(new), ~there)
    assert (np.diff(np.exp(new))[there[..., 1:]] <= 0).all() and (np.exp(new).sum(-1)[there[..., 0]] <= 1 + 1e-12).all()
    assert ((new == -np.inf).sum(-1) == (log_q == -np.inf).sum(-1)).all()
    tree_ranks(new_ids, new, tokens, max_budget=20, complete=True)


def test_right_probabilities_change_little_against_closed_form():
    ids, log_q, tokens, indptr = drawn(np.random.default_rng(1), 1500, 12, 3, 5)
    train = halves(1500)
    new_ids, new = reestimate(ids, log_q, tokens, train=np.repeat(train, 12), bins=4)
    back = np.take_along_axis(new, np.argsort(new_ids), -1), np.take_along_axis(log_q, np.argsort(ids), -1)
    assert np.abs(np.exp(back[0]) - np.exp(back[1])).max() < 0.04
    found = surrogate_calibration(
        ids, log_q, tokens, indptr, budgets=[3, 10], train=train, complete=True
    ).by_budget.partition_by("marginals")
    np.testing.assert_allclose(found[1]["pooled_length"], found[0]["pooled_length"], rtol=5e-3)
    np.testing.assert_allclose(found[1]["expected_uniform"], found[0]["expected_uniform"], rtol=2e-2)


def test_wrong_order_is_found_against_reference():
    """A drafter that takes the best two tokens for each other promises far too much; re-estimates put them in order.

    On held-out rollouts they win back nearly all that the right order is worth, and promise less than they keep: what
    a cell gives in proportion to the wrong probabilities is cut off where a list sums to more than 1.
    """
    budgets = [3, 10]
    ids, log_q, tokens, indptr = drawn(np.random.default_rng(2), 1500, 12, 3, 5, twisted=True)
    train = halves(1500)
    found = surrogate_calibration(ids, log_q, tokens, indptr, budgets=budgets, train=train, complete=True, bins=10)
    assert found.rollouts == 750
    own, new = found.by_budget.partition_by("marginals")
    assert (own["expected_uniform"] > 1.5 * own["realised_uniform"]).all()
    np.testing.assert_allclose(new["expected_uniform"] / new["realised_uniform"], 0.85, rtol=0.05)
    right_ids = np.concatenate([ids[..., [1, 0]], ids[..., 2:]], axis=-1)
    held = np.repeat(~train, 12)
    for n, before, after in zip(budgets, own["pooled_length"], new["pooled_length"], strict=True):
        ranks = tree_ranks(right_ids[held], log_q[held], tokens[held], max_budget=n, complete=True)
        best = 9000 / ms.solve(tree_law(ranks, np.arange(751) * 12, budget=n)).expected.sum()
        assert 0.9 * best + 0.1 * before < after < best
    new_ids, _ = reestimate(ids, log_q, tokens, train=np.repeat(train, 12), bins=10)
    clear = log_q[..., 0] > np.log(2) + log_q[..., 1]
    assert clear.mean() > 0.5 and (new_ids[..., 0] == right_ids[..., 0])[clear].mean() > 0.97


def test_held_out_rollouts_alone_are_judged_against_reference():
    ids, log_q, tokens, indptr = drawn(np.random.default_rng(3), 30, 6, 3, 5)
    train = np.random.default_rng(0).random(30) < 0.5
    found = surrogate_calibration(ids, log_q, tokens, indptr, budgets=[2, 5], train=train, complete=True, bins=2)
    held = np.repeat(~train, 6)
    rest = np.arange((~train).sum() + 1) * 6
    wanted = surrogate_calibration(ids[held], log_q[held], tokens[held], rest, budgets=[2, 5], complete=True)
    new_ids, new = reestimate(ids, log_q, tokens, train=~held, bins=2)
    again = surrogate_calibration(new_ids[held], new[held], tokens[held], rest, budgets=[2, 5], complete=True)
    for name in ("by_budget", "by_depth"):
        parts = getattr(found, name).partition_by("marginals", include_key=False)
        for part, one in zip(parts, (wanted, again), strict=True):
            assert part.equals(getattr(one, name).drop("marginals"))
    assert repr(found) == (
        f"Calibration(best-first, {len(rest) - 1} rollouts, marginals of drafter and re-estimated, budgets 2, 5)"
    )


def test_truncated_lists_against_reference():
    """``certain`` counts the starts whose rank is sure; re-estimated trees draft listed tokens only, so all are."""
    rng = np.random.default_rng(6)
    ids, log_q = lists(rng, 40, 3, 8)
    tokens = rollout(rng, ids, log_q)
    ids, log_q = ids[..., :3], log_q[..., :3]
    found = surrogate_calibration(ids, log_q, tokens, [0, 20, 40], budgets=[2, 12], train=[True, False])
    ranks = tree_ranks(ids[20:], log_q[20:], tokens[20:], max_budget=12)
    assert found.by_budget["certain"].to_list() == [1, (ranks.exact_to >= 12).mean(), 1, 1]
    assert 0 < found.by_budget["certain"][1] < 1


@pytest.mark.parametrize("first_start", [0, 1])
def test_nothing_to_judge_invariant(first_start):
    """No start at all, or none that counts: same columns and types, no figures."""
    one = [[[1]]], [[[0.0]]], [[1]], [0, 1]
    nothing = np.empty((0, 2, 3), np.int32), np.empty((0, 2, 3)), np.empty((0, 2), np.int32), [0]
    some = surrogate_calibration(*one, budgets=[2])
    found = surrogate_calibration(*(one if first_start else nothing), budgets=[2], first_start=first_start)
    row = found.by_budget.row(0, named=True)
    assert (row.pop("marginals"), row.pop("budget"), row.pop("expected_rounds")) == ("drafter", 2, 0)
    assert set(row.values()) == {None} and found.by_depth["starts"].sum() == 0
    assert found.by_budget.schema == some.by_budget.schema and found.by_depth.schema == some.by_depth.schema


def test_block_of_the_demo_promises_too_much_invariant():
    """It keeps some three fifths of what it promises; re-estimates keep it, and buy about a hundredth."""
    store = ms.open_store(DATA / "demo")
    listed, rollouts = store.drafter_part("block", "lists"), store.rollouts()
    names = np.unique(rollouts.prompt_ids)
    train = np.isin(rollouts.prompt_ids, names[::2])
    tokens = next_tokens(rollouts.tokens, rollouts.indptr, 8)
    found = surrogate_calibration(listed["ids"], listed["log_q"], tokens, rollouts.indptr, budgets=[16], train=train)
    own, new = found.by_budget.iter_rows(named=True)
    assert 0.55 < own["realised_occupied"] / own["expected_occupied"] < 0.7
    assert 0.9 < new["realised_occupied"] / new["expected_occupied"] < 1.1
    assert 1 < new["pooled_length"] / own["pooled_length"] < 1.03


@pytest.mark.parametrize(
    ("message", "options"),
    {
        r"budgets: found \[\]": {"budgets": []},
        "budgets: found 5; allowed: rising": {"budgets": 5},
        r"budgets: found \[2, 2\]; allowed: rising": {"budgets": [2, 2]},
        "budgets: found -1": {"budgets": [-1]},
        "builder: found 'best'": {"builder": "best"},
        r"train: found shape \(2,\), dtype bool; allowed: \(1,\) booleans, one for each rollout": {"train": [True] * 2},
        "train: found .*dtype int": {"train": [1]},
        "bins: found 0": {"train": [True], "bins": 0},
        "indptr: the last rollout": {"indptr": [0, 2]},
        "first_start: found -1": {"first_start": -1},
        "tokens: found shape": {"tokens": [1]},
        "top_log_q: start 0, depth 1, entry 0: found 1.0": {"top_log_q": [[[1.0]]]},
    }.items(),
)
def test_refusals_invariant(message, options):
    arguments = {"top_ids": [[[1]]], "top_log_q": [[[0.0]]], "tokens": [[1]], "indptr": [0, 1], "budgets": [1]}
    with pytest.raises(ValueError, match=message) as caught:
        surrogate_calibration(**{**arguments, **options})
    assert isinstance(caught.value, RequestError) or "budgets: found [" not in message


def test_refusals_of_reestimates_invariant():
    with pytest.raises(ValueError, match=r"train: found .*one for each start"):
        reestimate([[[1]]], [[[0.0]]], [[1]], train=[True, True])
