"""Choices among laws against all choices, plain recursions and literal walks."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.chain import choose, control, optimal_choice
from tests import strategies

PRICES = st.sampled_from([0.0, 0.1, 0.25, 1.0, 1.5, 3.0])


@st.composite
def problems(draw, longest=7):
    """Laws of both forms and float types on the same rollouts, and prices by start or constant."""
    indptr = draw(strategies.offsets())
    indptr = np.concatenate(([0], np.cumsum(np.minimum(np.diff(indptr), longest))))
    rows, laws, prices = int(indptr[-1]), [], []
    for _ in range(draw(st.integers(1, 4))):
        depth = draw(st.integers(0, 4))
        shape = (rows, depth) if draw(st.booleans()) else (rows,)
        accept = strategies.filled(draw, strategies.PROBABILITIES, shape, draw(strategies.FLOATS))
        laws.append(ms.RoundLaw(accept, indptr, strategies.lengths(draw, rows, depth)))
        prices.append(strategies.filled(draw, PRICES, (rows,), np.float64) if draw(st.booleans()) else draw(PRICES))
    return laws, prices


def by_recursion(laws, prices):
    """C* and the first best law of every start, from materialised survivals."""
    indptr, rows = laws[0].indptr, laws[0].accept.shape[0]
    survivals = [np.pad(law.survival(), ((0, 0), (1, 1)), constant_values=((0, 0), (1, 0))) for law in laws]
    least, choice = np.zeros(rows), np.zeros(rows, np.int64)
    for first, last in itertools.pairwise(indptr):
        after = np.zeros(last - first + 20)
        for s in range(last - 1, first - 1, -1):
            costs = []
            for survival, price in zip(survivals, prices, strict=True):
                law = survival[s, :-1] - survival[s, 1:]
                costs.append(np.broadcast_to(price, rows)[s] + law @ after[s - first + 1 :][: law.size])
            choice[s] = np.argmin(costs)
            least[s] = after[s - first] = costs[choice[s]]
    return least, choice


def cost_of(laws, prices, index, first_start=0):
    """Expected price of the rollouts if each start follows the law that the index names, by ``solve``."""
    rows = laws[0].accept.shape[0]
    price = np.array([np.broadcast_to(price, rows) for price in prices])[index, np.arange(rows)]
    return ms.solve(choose(laws, index), first_start=first_start, price=price).price


@given(problems(), st.integers(0, 3))
def test_value_and_choice_against_reference(problem, first_start):
    laws, prices = problem
    indptr, rows = laws[0].indptr, laws[0].accept.shape[0]
    found = optimal_choice(laws, prices, first_start=first_start)
    least, choice = by_recursion(laws, prices)
    starts = np.minimum(indptr[:-1] + first_start, indptr[1:])
    wanted = [least[s] if s < end else 0 for s, end in zip(starts, indptr[1:], strict=True)]
    np.testing.assert_allclose(found.value, wanted, rtol=1e-12, atol=1e-12)
    assert found.choice.dtype == np.int32 and found.choice.shape == (rows,)
    differ = found.choice != choice  # only where rounding decides between equals
    if differ.any():
        for index in (found.choice, choice):
            np.testing.assert_allclose(cost_of(laws, prices, index), cost_of(laws, prices, choice), rtol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_least_of_all_choices_against_enumeration(seed):
    """Each law at each start of up to 6: no choice is cheaper, and the value is that of the choice returned."""
    rng = np.random.default_rng(seed)
    tokens, count = int(rng.integers(1, 7)), int(rng.integers(1, 4))
    depths = rng.integers(0, 4, count)
    laws = [ms.RoundLaw(rng.choice([0.0, 0.3, 0.9, 1.0], (tokens, depth)), [0, tokens]) for depth in depths]
    prices = [rng.random(tokens) + 0.2 * depth for depth in depths]
    first_start = seed % 2
    found = optimal_choice(laws, prices, first_start=first_start)
    every = [
        float(cost_of(laws, prices, np.array(index), first_start)[0])
        for index in itertools.product(range(count), repeat=tokens)
    ]
    assert found.value[0] == pytest.approx(min(every), rel=1e-12, abs=1e-12)
    assert cost_of(laws, prices, found.choice, first_start)[0] == pytest.approx(found.value[0], rel=1e-12, abs=1e-12)


@given(problems(), st.data())
def test_no_choice_is_cheaper_invariant(problem, data):
    """Not one law throughout, nor any choice by the start; a further law never raises the value."""
    laws, prices = problem
    rows = laws[0].accept.shape[0]
    value = optimal_choice(laws, prices).value
    indices = [np.full(rows, j) for j in range(len(laws))]
    indices.append(np.array(data.draw(st.lists(st.integers(0, len(laws) - 1), min_size=rows, max_size=rows)), int))
    for index in indices:
        assert (value <= cost_of(laws, prices, index) + 1e-12).all()
    for j, (law, price) in enumerate(zip(laws, prices, strict=True)):
        alone = ms.solve(law, price=price).price
        np.testing.assert_allclose(cost_of(laws, prices, np.full(rows, j)), alone, rtol=1e-12, atol=1e-12)
    assert (value <= optimal_choice(laws[:-1] or laws, prices[:-1] or prices).value + 1e-12).all()


def test_value_against_simulation():
    """A literal walk, coin by coin, that looks the law up and pays the price at every start."""
    rng = np.random.default_rng(0)
    tokens, depths, runs = 12, (0, 2, 5), 20_000
    accept = [rng.random((tokens, depth)) for depth in depths]
    prices = [rng.random(tokens) + 0.3 * depth for depth in depths]
    laws = [ms.RoundLaw(cells, [0, tokens]) for cells in accept]
    found = optimal_choice(laws, prices)
    assert len(set(found.choice.tolist())) == 3
    paid = np.zeros(runs)
    for run in range(runs):
        s = 0
        while s < tokens:
            j, passed = found.choice[s], 0
            paid[run] += prices[j][s]
            while passed < min(depths[j], tokens - s) and rng.random() < accept[j][s, passed]:
                passed += 1
            s += passed + 1
    error = paid.std() / np.sqrt(runs)
    assert abs(paid.mean() - found.value[0]) < 4.5 * error


@given(problems(), st.data())
def test_chosen_law_against_reference(problem, data):
    laws, _ = problem
    rows = laws[0].accept.shape[0]
    index = np.array(data.draw(st.lists(st.integers(0, len(laws) - 1), min_size=rows, max_size=rows)), int)
    law = choose(laws, index)
    assert law.form == "cells" and law.depth == max(one.depth for one in laws)
    survival = law.survival()
    for s, j in enumerate(index):
        wanted = laws[j].survival()[s]
        assert survival[s, : wanted.size].tolist() == wanted.tolist() and not survival[s, wanted.size :].any()
        assert law.draft_length[s] == np.broadcast_to(laws[j].draft_length, rows)[s]


def test_exactness_is_the_weakest_invariant():
    """Of all that there is to choose from; of a law that was chosen, of those chosen."""
    labels = ["exact", "bound", "heuristic", "teacher-forced"]
    laws = [ms.RoundLaw(np.full((2, 1), 0.5), [0, 2], None, label) for label in labels]
    for count, label in enumerate(labels, start=1):
        assert optimal_choice(laws[:count], range(count)).exactness == label
        assert choose(laws, [0, count - 1]).exactness == choose(laws[:count][::-1], [count - 1, 0]).exactness == label
    assert choose([ms.RoundLaw(np.empty((0, 1)), [0], None, "bound")], np.empty(0, int)).exactness == "exact"


def test_per_round_oracle_is_no_bound_against_closed_form():
    """Most accepted in every round: 3 rounds where 2 do, in counts and in prices; it exceeds the clairvoyant."""
    longest = np.array([2, 0, 2, 0, 0])
    hit = np.arange(2) < longest[:, None]
    laws = [ms.round_law(None, None, [0, 5], rule="match", hit=hit, draft_length=k) for k in range(3)]
    greedy = cost_of(laws, [1, 1, 1], longest)  # drafts all that is accepted, and no more: 0 -> 3 -> 4 -> 5
    clairvoyant = optimal_choice(laws, [1, 1, 1])
    assert greedy.tolist() == [3] and clairvoyant.value.tolist() == [2]
    assert clairvoyant.choice.tolist() == [1, 0, 2, 0, 0]  # 0 -> 2 -> 5
    per_token = [1, 1.2, 1.5]  # tokens per price: 1, 1.67, 2
    assert cost_of(laws, per_token, longest) == pytest.approx([3.5], rel=1e-12)
    assert optimal_choice(laws, per_token).value == pytest.approx([2.7], rel=1e-12)


def test_several_drafters_against_closed_form():
    """One is right on the first half, the other on the second: each is used where it is, and neither beyond the end."""
    first = np.repeat([1.0, 0.0], 8)
    laws = [
        ms.RoundLaw(np.zeros(16), [0, 16], 0), ms.RoundLaw(first, [0, 16], 3),
        ms.RoundLaw(np.tile(1 - first[:, None], (1, 3)), [0, 16], 3),
    ]  # fmt: skip
    found = optimal_choice(laws, [1, 1.5, 2.0])
    assert found.value.tolist() == [2 * 1.5 + 2 * 2]
    assert found.choice[[0, 4, 8, 12]].tolist() == [1, 1, 2, 2] and found.choice[15] == 0
    assert repr(found) == "Control(1 rollout, least expected price 7, exact)"


def test_case_92_no_speculation_is_best_against_closed_form():
    """Lengths 2.22, 2.56 and 2.55 for 2.377, 3.568 and 4.228 plain steps: at no start is a draft worth its price."""
    shares = {2: (0.7, 0.52), 4: (0.7, 0.52, 0.2, 0.14), 6: (0.7, 0.52, 0.19, 0.1, 0.03, 0.01)}
    tokens, prices = 400, [1, 2.377, 3.568, 4.228]
    laws = [ms.round_law(None, None, [0, tokens], rule="none")]
    laws += [ms.RoundLaw.from_survival(np.tile(share, (tokens, 1)), [0, tokens]) for share in shares.values()]
    for law, length in zip(laws[1:], (2.22, 2.56, 2.55), strict=True):
        assert 1 + law.survival()[0].sum() == pytest.approx(length)
    found = optimal_choice(laws, prices)
    assert not found.choice.any() and found.value.tolist() == [tokens]
    assert optimal_choice(laws[1:], prices[1:]).value[0] > 1.05 * tokens


def test_ties_go_to_the_earlier_law_invariant():
    """The same law at the same price, a longer one that accepts no more, and rounds that cost nothing."""
    rng = np.random.default_rng(1)
    cells = rng.random((9, 3))
    more = np.concatenate((cells, np.zeros((9, 2))), axis=1)
    laws = [ms.RoundLaw(one, [0, 4, 4, 9]) for one in (cells, more, cells)]
    found = optimal_choice(laws, [0.1, 0.1, 0.1])
    assert not found.choice.any()
    np.testing.assert_allclose(found.value, 0.1 * ms.solve(laws[0]).expected, rtol=1e-12)
    better = [ms.RoundLaw(np.zeros((9, 0)), [0, 4, 4, 9]), laws[0]]
    assert not optimal_choice(better, [0, 0]).choice.any() and not optimal_choice(better, [0, 0]).value.any()


def test_edges_against_closed_form():
    """No rollouts, empty ones and ones of a token, no depth, all before the first start, prices below 0."""
    nothing = optimal_choice([ms.RoundLaw(np.zeros((0, 2)), [0])], [1])
    assert nothing.value.shape == nothing.choice.shape == (0,)
    assert repr(nothing) == "Control(0 rollouts, least expected price 0, exact)"
    indptr = [0, 0, 1, 3]
    laws = [ms.RoundLaw(np.ones((3, 0)), indptr), ms.RoundLaw(np.full((3, 4), 1.0), indptr)]
    assert optimal_choice(laws, [1, 1.5]).value.tolist() == [0, 1, 1.5]
    assert optimal_choice(laws, [1, 1.5]).choice.tolist() == [0, 1, 0]
    assert optimal_choice(laws, [1, 1.5], first_start=1).value.tolist() == [0, 0, 1]
    assert optimal_choice(laws, [1, 1.5], first_start=9).value.tolist() == [0, 0, 0]
    assert optimal_choice(laws[:1], [[-1, 2, 3]]).value.tolist() == [0, -1, 5]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_spans_invariant(threads, monkeypatch):
    rng = np.random.default_rng(2)
    indptr = np.concatenate(([0], np.cumsum(rng.integers(0, 90, 400)))).astype(np.int64)
    rows = int(indptr[-1])
    laws = [
        ms.RoundLaw(rng.random((rows, 12), np.float32), indptr),
        ms.RoundLaw(rng.random(rows), indptr, rng.integers(0, 9, rows)),
    ]
    prices = [rng.random(rows, np.float32), rng.random(rows)]
    whole = optimal_choice(laws, prices, threads=1)
    monkeypatch.setattr(control, "SPAN_BYTES", 20_000)
    found = optimal_choice(laws, prices, threads=threads)
    assert found.value.tolist() == whole.value.tolist() and found.choice.tolist() == whole.choice.tolist()
    least, choice = by_recursion(laws, prices)
    assert found.choice.tolist() == choice.tolist()
    full = np.diff(indptr) > 0
    np.testing.assert_allclose(found.value[full], least[indptr[:-1][full]], rtol=1e-12)


def test_refusals_invariant():
    law = ms.RoundLaw(np.full((3, 1), 0.5), [0, 1, 3])
    other = ms.RoundLaw(np.full((3, 1), 0.5), [0, 2, 3])
    for call in (lambda laws: choose(laws, [0, 0, 0]), lambda laws: optimal_choice(laws, [1] * len(laws))):
        with pytest.raises(ms.RequestError, match="laws: found none; allowed: one or more"):
            call([])
        with pytest.raises(ms.RequestError, match="laws: law 1: found other offsets"):
            call([law, other])
    with pytest.raises(ValueError, match=r"index: found shape \(2,\), dtype int64; allowed: \(3,\) integers"):
        choose([law], [0, 0])
    with pytest.raises(ValueError, match=r"index: found shape \(3,\), dtype float64"):
        choose([law], [0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="index: rollout 1, position 1: found 2; allowed: 0 to 1"):
        choose([law, law], [0, 1, 2])
    with pytest.raises(ValueError, match="index: rollout 0, position 0: found -1"):
        choose([law], [-1, 0, 0])
    with pytest.raises(ms.RequestError, match="prices: found 1; allowed: 2, one for each law"):
        optimal_choice([law, law], [1])
    with pytest.raises(ValueError, match=r"prices: law 1: found shape \(2,\); allowed: a number or \(3,\)"):
        optimal_choice([law, law], [1, [1, 2]])
    with pytest.raises(ValueError, match="prices: law 0: rollout 1, position 0: found nan; allowed: finite numbers"):
        optimal_choice([law], [[1, np.nan, 2]])
    with pytest.raises(ValueError, match="prices: law 0: found inf"):
        optimal_choice([law], [np.inf])
    with pytest.raises(ValueError, match="first_start"):
        optimal_choice([law], [1], first_start=-1)
    with pytest.raises(ValueError, match="threads"):
        optimal_choice([law], [1], threads=0)
