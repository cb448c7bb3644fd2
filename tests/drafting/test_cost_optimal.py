"""Node budgets: the cheapest choice against all choices, and what nodes are worth against trees."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.chain import choose, optimal_choice
from markov_spec.drafting import (
    BUDGET_RULES,
    Sequoia,
    TreeRanks,
    build_tree,
    clairvoyant_budgets,
    next_tokens,
    node_values,
    tree_law,
    tree_ranks,
)
from tests import strategies
from tests.drafting.samples import lists, rollout, sorted_paths, values

ABSENT = 2**31 - 1
PRICES = st.sampled_from([0.0, 0.1, 0.25, 1.0, 1.5, 3.0])
SETTINGS = {"marginal": {"lam": 1.1}}  # of the rules that need some


@st.composite
def problems(draw):
    """Ranks of ragged rollouts, also past their ends and absent, rising budgets, and prices in both forms."""
    indptr = draw(strategies.offsets())
    rows, depths = int(indptr[-1]), draw(st.integers(0, 4))
    steps = strategies.filled(draw, st.sampled_from([1, 1, 2, 5, ABSENT]), (rows, depths), np.int64)
    rank = np.minimum(np.cumsum(steps, axis=1), ABSENT)
    budgets = np.array([0, *sorted(draw(st.sets(st.integers(1, 12), max_size=6)))])
    shape = (rows, budgets.size) if draw(st.booleans()) else (budgets.size,)
    prices = strategies.filled(draw, PRICES, shape, draw(strategies.FLOATS))
    return TreeRanks(rank, max_budget=12), indptr, budgets, prices


def of_budget(prices, j):
    """The price of one budget, by start or constant."""
    return prices[:, j] if prices.ndim == 2 else float(prices[j])


def cost_of(ranks, indptr, budgets, prices, choice, first_start=0):
    """Price of every rollout if its rounds draft the chosen budgets: a walk."""
    accepted, paid = ranks.accepted(budgets[choice]), []
    for first, last in itertools.pairwise(indptr):
        s, total = first + first_start, 0.0
        while s < last:
            total += float(prices[s, choice[s]] if prices.ndim == 2 else prices[choice[s]])
            s += accepted[s] + 1
        paid.append(total)
    return np.array(paid)


@given(problems(), st.integers(0, 2))
def test_value_against_control_of_laws(problem, first_start):
    ranks, indptr, budgets, prices = problem
    found = clairvoyant_budgets(ranks, indptr, budgets=budgets, prices=prices, first_start=first_start)
    laws = [tree_law(ranks, indptr, budget=int(n)) for n in budgets]
    costs = [of_budget(prices, j) for j in range(budgets.size)]
    wanted = optimal_choice(laws, costs, first_start=first_start)
    np.testing.assert_allclose(found.value, wanted.value, rtol=1e-12, atol=1e-12)
    assert found.choice.dtype == np.int32 and found.exactness == "exact"
    paid = cost_of(ranks, indptr, budgets, prices, found.choice, first_start)
    np.testing.assert_allclose(found.value, paid, rtol=1e-12, atol=1e-12)
    by_start = np.broadcast_to(prices, (len(ranks.rank), budgets.size))
    again = clairvoyant_budgets(ranks, indptr, budgets=budgets, prices=by_start, first_start=first_start)
    assert again.value.tolist() == found.value.tolist() and again.choice.tolist() == found.choice.tolist()
    price = np.array([np.broadcast_to(cost, len(ranks.rank)) for cost in costs])
    chosen = price[found.choice, np.arange(len(ranks.rank))]
    solved = ms.solve(choose(laws, found.choice), first_start=first_start, price=chosen)
    np.testing.assert_allclose(solved.price, found.value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_least_of_all_budgets_against_enumeration(seed):
    """Each budget at each start of up to 6, trees built and walked; of equal choices the smallest budgets."""
    rng = np.random.default_rng(seed)
    tokens, depths = int(rng.integers(1, 7)), 3
    ids, log_q = lists(rng, tokens, depths, 3, ties=bool(seed % 2))
    words = next_tokens(rollout(rng, ids, log_q)[:, 0], [0, tokens], depths)
    budgets = np.sort(np.concatenate(([0], rng.choice(np.arange(1, 20), 2, replace=False))))
    prices = rng.choice([1.0, 1.5, 2.0], (tokens, 3)) + 0.25 * np.arange(3)
    walks = [[build_tree(ids[s], log_q[s], budget=n).accepted(words[s]) for n in budgets] for s in range(tokens)]
    paid = {}
    for choice in itertools.product(range(3), repeat=tokens):
        s, total = 0, 0.0
        while s < tokens:
            total += prices[s, choice[s]]
            s += walks[s][choice[s]] + 1
        paid[choice] = total
    ranks = tree_ranks(ids, log_q, words, max_budget=int(budgets[-1]))
    found = clairvoyant_budgets(ranks, [0, tokens], budgets=budgets, prices=prices)
    least = min(paid.values())
    assert found.value[0] == pytest.approx(least, rel=1e-12)
    assert paid[tuple(found.choice.tolist())] == pytest.approx(least, rel=1e-12)
    for start in range(tokens):  # also of what is left from every later start
        part = TreeRanks(ranks.rank[start:], max_budget=ranks.max_budget)
        kept = clairvoyant_budgets(part, [0, tokens - start], budgets=budgets, prices=prices[start:])
        assert kept.choice.tolist() == found.choice[start:].tolist()


def price_of(prices, choice):
    """The price of every start's round."""
    rows = len(choice)
    return np.broadcast_to(prices, (rows, np.shape(prices)[-1]))[np.arange(rows), choice]


@given(st.integers(0, 10_000), st.lists(st.floats(-0.4, 1), min_size=8, max_size=8), st.booleans())
def test_no_rule_is_cheaper_invariant(seed, steps, by_start):
    """Nor any fixed budget; prices rise, fall and stay."""
    rng = np.random.default_rng(seed)
    indptr, budgets = np.array([0, 9, 10, 10, 30]), np.arange(9)
    ids, log_q = lists(rng, 30, 5, 8)
    ranks = tree_ranks(ids, log_q, next_tokens(rollout(rng, ids, log_q)[:, 0], indptr, 5), max_budget=8)
    prices = np.maximum(np.cumsum([1.0, *steps]), 0) * (rng.uniform(0.5, 2, (30, 1)) if by_start else 1)
    least = clairvoyant_budgets(ranks, indptr, budgets=budgets, prices=prices).value
    worth = node_values(log_q, max_budget=8)
    choices = [rule(worth, prices, **SETTINGS.get(name, {})) for name, rule in BUDGET_RULES.items()]
    for choice in choices + [np.full(30, n) for n in budgets]:
        assert choice.shape == (30,) and ((choice >= 0) & (choice <= 8)).all()
        paid = cost_of(ranks, indptr, budgets, prices, choice)
        assert (least <= paid + 1e-12).all()
        solved = ms.solve(tree_law(ranks, indptr, budget=choice), price=price_of(prices, choice))
        np.testing.assert_allclose(solved.price, paid, rtol=1e-12, atol=1e-12)


def test_path_of_trees_against_simulation():
    """The clairvoyant's decoding, tree by tree: each is built, looked into and paid."""
    rng = np.random.default_rng(8)
    indptr, budgets = np.array([0, 60, 61, 100]), np.array([0, 2, 5, 16, 40])
    ids, log_q = lists(rng, 100, 4, 8)
    words = next_tokens(rollout(rng, ids, log_q)[:, 0], indptr, 4)
    prices = np.array([1, 1.3, 1.2, 1.9, 2.4]) + 0.01 * rng.random((100, 1))
    ranks = tree_ranks(ids, log_q, words, max_budget=40)
    for first_start in (0, 1):
        found = clairvoyant_budgets(ranks, indptr, budgets=budgets, prices=prices, first_start=first_start)
        for i, (first, last) in enumerate(itertools.pairwise(indptr)):
            s, paid = first + first_start, 0.0
            while s < last:
                j = found.choice[s]
                paid += prices[s, j]
                s += build_tree(ids[s], log_q[s], budget=int(budgets[j])).accepted(words[s]) + 1
            assert found.value[i] == pytest.approx(paid, rel=1e-12, abs=1e-12)
    assert len(set(found.choice.tolist())) >= 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [{}, {"ties": True}, {"zeros": True}])
def test_node_values_against_trees(kind, dtype):
    rng = np.random.default_rng(3)
    ids, log_q = lists(rng, 40, 3, 4, dtype=dtype, **kind)
    for budget in (0, 1, 7, 90):
        found = node_values(log_q, max_budget=budget)
        assert found.shape == (40, budget) and found.dtype == np.float64
        for s in range(40):
            tree = build_tree(ids[s], log_q[s], budget=budget)
            np.testing.assert_allclose(found[s, : len(tree)], np.exp(tree.log_values), rtol=1e-14)
            assert not found[s, len(tree) :].any()


def test_node_values_against_enumeration():
    """All paths, sorted by what they are worth; among several threads as in one."""
    rng = np.random.default_rng(4)
    _, log_q = lists(rng, 6, 4, 5, ties=True)
    found = node_values(log_q, max_budget=780)
    for s in range(6):
        every = values(log_q[s])
        wanted = np.exp([every[path] for path in sorted_paths(log_q[s])])
        np.testing.assert_allclose(found[s], wanted, rtol=1e-14)
    _, log_q = lists(rng, 3000, 4, 8)
    assert (node_values(log_q, max_budget=30, threads=1) == node_values(log_q, max_budget=30, threads=3)).all()


def test_node_values_of_missing_lists_against_closed_form():
    """Lists that were not recorded, as past an end, hold no nodes, nor do those after them."""
    log_q = np.log([[[0.7, 0.2], [0.5, 0.4]]] * 3)
    log_q[1, 1], log_q[2, 0] = np.nan, np.nan
    wanted = [[0.7, 0.35, 0.28, 0.2, 0.1, 0.08], [0.7, 0.2, 0, 0, 0, 0], [0] * 6]
    np.testing.assert_allclose(node_values(log_q, max_budget=6), wanted, rtol=1e-12)
    assert node_values(np.full((1, 1, 1), 1e-7), max_budget=2).tolist() == [[1, 0]]
    assert node_values(np.zeros((0, 2, 3)), max_budget=5).shape == (0, 5)


def test_stairs_against_closed_form():
    """A stair after 2 nodes, flat behind it: the first drop stops there, the scan and the clairvoyant take all 6."""
    price = np.array([1, 1.0, 1.0, 1.5, 1.5, 1.5, 1.5])
    log_q = np.log(np.full((21, 6, 1), 0.9))
    worth = node_values(log_q, max_budget=6)
    words = next_tokens(np.zeros(21, int), [0, 21], 6)
    ranks = tree_ranks(np.zeros((21, 6, 1), int), log_q, words, max_budget=6, complete=True)
    paid = {}
    for name, budget in (("first-drop", 2), ("full-scan", 6)):
        choice = BUDGET_RULES[name](worth, price)
        assert (choice == budget).all()
        paid[name] = float(cost_of(ranks, [0, 21], np.arange(7), price, choice)[0])
    assert paid == {"first-drop": 7.0, "full-scan": 4.5}
    assert clairvoyant_budgets(ranks, [0, 21], budgets=np.arange(7), prices=price).value.tolist() == [4.5]


def test_nine_cheaper_than_eight_against_closed_form():
    """A table that falls: a budget of 9 is never worse than 8 if it costs less, and rules take the ninth node."""
    price = np.array([1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4, 2.97, 2.38])
    worth = np.full((1, 9), 0.95)
    assert BUDGET_RULES["full-scan"](worth, price).tolist() == [9]
    assert BUDGET_RULES["first-drop"](worth, price).tolist() == [7]
    assert BUDGET_RULES["marginal"](worth, price, lam=2).tolist() == [7]
    rank = np.arange(1, 10) + np.zeros((9, 1), int)
    found = clairvoyant_budgets(TreeRanks(rank, max_budget=9), [0, 9], budgets=[0, 8, 9], prices=price[[0, 8, 9]])
    assert found.choice.tolist() == [2] * 7 + [0, 0]  # 8 tokens in one round for 2.38; the last ones one by one
    assert found.value.tolist() == [2.38]
    found = clairvoyant_budgets(TreeRanks(rank, max_budget=9), [0, 9], budgets=[0, 7, 8], prices=price[[0, 7, 8]])
    assert found.value.tolist() == [2.97] and found.choice[:3].tolist() == [2, 1, 1]


def test_case_92_no_speculation_is_best_against_closed_form():
    """Drafts that are accepted, but not worth their price, by the record and by what the drafter promises."""
    price = np.array([1, 1.9, 2.377, 3.2, 3.568, 4.0, 4.228])
    rank = np.full((60, 6), ABSENT)
    rank[::2, 0] = 1  # one draft is right at every other start
    found = clairvoyant_budgets(TreeRanks(rank, max_budget=6), [0, 60], budgets=np.arange(7), prices=price * 1.1)
    assert found.value[0] == pytest.approx(30 * 1.9 * 1.1, rel=1e-12)  # a draft a round: just cheaper than none
    dear = np.where(np.arange(7) == 1, 2.1, price)
    found = clairvoyant_budgets(TreeRanks(rank, max_budget=6), [0, 60], budgets=np.arange(7), prices=dear)
    assert not found.choice.any() and found.value.tolist() == [60]
    worth = np.tile(np.cumprod([0.7, 0.74, 0.3, 0.5, 0.1, 0.1]), (2, 1))
    for name, rule in BUDGET_RULES.items():
        assert rule(worth, price, **SETTINGS.get(name, {})).tolist() == [0, 0]


def test_case_95_fewer_nodes_against_closed_form():
    """A drafter that is sure and right: 4 nodes do what 16 do, at any price that does not fall, and the gain is 0."""
    ids, log_q = np.tile([7, 8], (20, 4, 1)), np.log(np.tile([0.999, 0.001], (20, 4, 1)))
    ranks = tree_ranks(ids, log_q, next_tokens([7] * 20, [0, 20], 4), max_budget=16)
    for price in ([1, 1, 1], [1, 1.3, 1.3], [1, 1.3, 1.71]):
        found = clairvoyant_budgets(ranks, [0, 20], budgets=[0, 4, 16], prices=price)
        chain = clairvoyant_budgets(ranks, [0, 20], budgets=[0, 4], prices=price[:2])
        assert found.value.tolist() == chain.value.tolist() == [pytest.approx(4 * price[1])]
        assert 2 not in found.choice and found.choice[0] == 1
    worth = node_values(log_q, max_budget=16)
    for name, rule in BUDGET_RULES.items():
        assert (rule(worth, 1 + 0.1 * np.arange(17), **SETTINGS.get(name, {})) == 4).all()


def test_per_round_oracle_is_no_bound_against_closed_form():
    """The budget that is accepted furthest lands on starts where nothing is: 3 rounds, the shortest path takes 2."""
    rank = np.array([[1, 2], [9, 10], [1, 2], [9, 10], [9, 10]])
    ranks, budgets, prices = TreeRanks(rank, max_budget=10), np.array([0, 1, 2]), np.ones(3)
    furthest = np.argmax([ranks.accepted(int(n)) for n in budgets], axis=0)
    assert cost_of(ranks, [0, 5], budgets, prices, furthest).tolist() == [3]
    found = clairvoyant_budgets(ranks, [0, 5], budgets=budgets, prices=prices)
    assert found.value.tolist() == [2] and found.choice.tolist() == [1, 0, 2, 0, 0]


def test_edges_against_closed_form():
    """No rollouts, empty ones, ones of a token, no depth, absent ranks, equal prices, prices of 0, no nodes."""
    nothing = clairvoyant_budgets(TreeRanks(np.empty((0, 3), int), max_budget=4), [0], budgets=[0, 4], prices=[1, 2])
    assert nothing.value.shape == nothing.choice.shape == (0,)
    rank = np.array([[1, 2], [1, ABSENT], [ABSENT, ABSENT], [1, 2]])
    ranks, indptr = TreeRanks(rank, max_budget=4), [0, 0, 3, 4]
    for prices, value, choice in (
        ([1, 1, 1], [0, 1, 1], [2, 1, 0, 0]),
        ([0, 0, 0], [0, 0, 0], [0, 0, 0, 0]),
        ([2, 1, 3], [0, 2, 1], [1, 1, 1, 1]),
    ):
        found = clairvoyant_budgets(ranks, indptr, budgets=[0, 1, 4], prices=prices)
        assert (found.value.tolist(), found.choice.tolist()) == (value, choice)
    late = clairvoyant_budgets(ranks, indptr, budgets=[0, 4], prices=[1, 2], first_start=2)
    assert late.value.tolist() == [0, 1, 0]
    flat = clairvoyant_budgets(TreeRanks(np.empty((3, 0), int), max_budget=4), [0, 3], budgets=[0, 4], prices=[2, 1])
    assert flat.value.tolist() == [3] and flat.choice.tolist() == [1, 1, 1]
    for name, rule in BUDGET_RULES.items():
        more = SETTINGS.get(name, {})
        assert rule(np.empty((2, 0)), [1.0], **more).tolist() == [0, 0]
        assert rule(np.empty((0, 3)), np.ones(4), **more).tolist() == []
        assert rule(np.zeros((2, 3)), [3, 2, 1, 0], **more).tolist() == [0, 0]  # nodes that do not exist
        assert rule([[1, 1, 0.5]], np.ones(4), **more).tolist() == [3]  # nodes that cost nothing
    free = np.zeros(4)
    found = {name: int(rule([[0.9, 0.5, 0]], free, **SETTINGS.get(name, {}))[0]) for name, rule in BUDGET_RULES.items()}
    assert found == {"first-drop": 0, "full-scan": 0, "marginal": 2, "prefix": 2}


def test_exactness_and_static_trees_invariant():
    """Uncertain as soon as the largest budget is; a tree of one size goes with no speculation."""
    ranks = TreeRanks([[1, 2], [2, 3]], max_budget=8, exact_to=[8, 5])
    for most, wanted in ((5, "exact"), (6, "bound")):
        assert clairvoyant_budgets(ranks, [0, 2], budgets=[0, most], prices=[1, 2]).exactness == wanted
    ids, log_q = lists(np.random.default_rng(0), 9, 3, 4)
    whole = tree_ranks(ids, log_q, ids[..., 0], max_budget=8, builder=Sequoia([0.6, 0.2], depth=3), complete=True)
    found = clairvoyant_budgets(whole, [0, 9], budgets=[0, 8], prices=[1, 1.5])
    assert found.value.tolist() == [2 * 1.5 + 1] and found.choice[[1, 8]].tolist() == [1, 0]
    with pytest.raises(ms.RequestError, match="budgets: found 4; allowed: 0 and 8 to 8"):
        clairvoyant_budgets(whole, [0, 9], budgets=[0, 4, 8], prices=[1, 1, 1])


@pytest.mark.parametrize("form", ["by budget", "by start"])
def test_threads_and_many_budgets_invariant(form):
    """All budgets to 1024; what is looked up by blocks is what a scan finds."""
    rng = np.random.default_rng(10)
    indptr = np.concatenate(([0], np.cumsum(rng.integers(0, 200, 300))))
    rows = int(indptr[-1])
    rank = np.cumsum(rng.integers(1, 300, (rows, 12)) ** rng.choice([0, 1], (rows, 12)), axis=1)
    prices = rng.uniform(1, 1.2, 1025).round(3) + np.arange(1025) / 1000
    ranks = TreeRanks(rank, max_budget=4000)
    settings = {"budgets": np.arange(1025), "prices": prices}
    whole = clairvoyant_budgets(ranks, indptr, threads=1, **settings)
    if form == "by start":
        indptr, rank = indptr[:20], rank[: indptr[19]]
        ranks, settings["prices"] = TreeRanks(rank, max_budget=4000), np.tile(prices, (len(rank), 1))
    found = clairvoyant_budgets(ranks, indptr, threads=3, **settings)
    assert found.value.tolist() == whole.value[: indptr.size - 1].tolist()
    assert found.choice.tolist() == whole.choice[: len(rank)].tolist()


def test_refusals_invariant():
    ranks = TreeRanks([[1, 2], [2, 3]], max_budget=8)
    for budgets, told in (
        ([1, 2], "budgets: found 1 first; allowed: 0, as no speculation is always a choice"),
        ([0, 4, 4], "budgets: found 4 after 4; allowed: budgets that rise"),
        ([0, 9], "budgets: found 9; allowed: 0 and 1 to 8, what the ranks tell of"),
        ([0.0, 1.0], r"budgets: found shape \(2,\), dtype float64"),
        ([], "budgets: found shape"),
    ):
        with pytest.raises(ms.RequestError, match=told):
            clairvoyant_budgets(ranks, [0, 2], budgets=budgets, prices=np.ones(len(budgets)))
    for prices, told in (
        ([1, 2, 3], r"prices: found shape \(3,\); allowed: \(2,\) or \(2, 2\)"),
        ([1, np.nan], r"prices\[1\]: found nan; allowed: finite numbers"),
        ([[1, 2], [np.inf, 1]], r"prices\[1, 0\]: found inf"),
    ):
        with pytest.raises(ValueError, match=told):
            clairvoyant_budgets(ranks, [0, 2], budgets=[0, 3], prices=prices)
    with pytest.raises(ValueError, match="indptr"):
        clairvoyant_budgets(ranks, [0, 3], budgets=[0, 3], prices=[1, 1])
    for log_q, told in (
        ([[[0.0, -1.0], [-2.0, -1.0]]], r"start 0, depth 2: found \[-2.0, -1.0\]; allowed: at most 0 and never rising"),
        ([[[-1.0, np.nan]]], "start 0, depth 1"),
        ([[[0.1]]], "start 0, depth 1"),
        ([[0.0]], r"top_log_q: found shape \(1, 1\); allowed: \(N, D, M\)"),
    ):
        with pytest.raises(ValueError, match=told):
            node_values(log_q, max_budget=3)
    with pytest.raises(ValueError, match="max_budget: found 2147483646; allowed: at most 268435456"):
        node_values(np.zeros((1, 1, 1)), max_budget=2**31 - 2)
    most = TreeRanks([[2**31 - 1]], max_budget=2**31 - 2)
    with pytest.raises(ms.RequestError, match="budgets: found 2147483646; allowed: at most 268435454"):
        clairvoyant_budgets(most, [0, 1], budgets=[0, 2**31 - 2], prices=[1, 1])
    with pytest.raises(ValueError, match="max_budget: found -1"):
        node_values(np.zeros((1, 1, 1)), max_budget=-1)
