"""Rules of node budgets against literal schedulers and all budgets."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from markov_spec.drafting import BUDGET_RULES, build_tree, node_values
from tests.drafting.samples import lists
from tests.drafting.test_cost_optimal import SETTINGS, price_of


def heap_budget(log_q, price, most):
    """CaDDTree's loop of one start: pop the best node, keep it if the throughput rises strictly, else stop."""
    heap, expected, taken = [(-log_q[0, 0], (0,))], 1.0, 0
    while heap and taken < most:
        cost, path = heapq.heappop(heap)
        if not (expected + np.exp(-cost)) / price[taken + 1] > expected / price[taken]:
            break
        expected, taken = expected + np.exp(-cost), taken + 1
        depth, m = len(path), path[-1]
        if m + 1 < log_q.shape[1]:
            heapq.heappush(heap, (cost + log_q[depth - 1, m] - log_q[depth - 1, m + 1], (*path[:-1], m + 1)))
        if depth < log_q.shape[0]:
            heapq.heappush(heap, (cost - log_q[depth, 0], (*path, 0)))
    return taken


@pytest.mark.parametrize("by_start", [False, True])
def test_first_drop_against_reference(by_start):
    rng = np.random.default_rng(5)
    _, log_q = lists(rng, 200, 3, 5)
    prices = 1 + np.cumsum(rng.choice([0.001, 0.02, 0.1], (200 if by_start else 1, 41)), axis=1)
    found = BUDGET_RULES["first-drop"](node_values(log_q, max_budget=40), prices if by_start else prices[0])
    wanted = [heap_budget(log_q[s], prices[s % len(prices)], 40) for s in range(200)]
    assert found.tolist() == wanted and len(set(wanted)) > 3


@pytest.mark.parametrize("by_start", [False, True])
def test_full_scan_against_enumeration(by_start):
    """The trees of all budgets, the best by throughput; of equal ones the smallest, and none that lacks nodes."""
    rng = np.random.default_rng(6)
    ids, log_q = lists(rng, 60, 2, 3, zeros=True)
    prices = rng.uniform(0.8, 1, (60 if by_start else 1, 16)).round(1) + 0.05 * np.arange(16)
    found = BUDGET_RULES["full-scan"](node_values(log_q, max_budget=15), prices if by_start else prices[0])
    for s in range(60):
        trees = [build_tree(ids[s], log_q[s], budget=n) for n in range(16)]
        price = prices[s % len(prices)]
        rates = [(1 + np.exp(tree.log_values).sum()) / price[n] for n, tree in enumerate(trees) if len(tree) == n]
        assert found[s] == max(range(len(rates)), key=lambda n: (round(rates[n], 12), -n))
    assert len(set(found.tolist())) > 4


def scheduled(worth, price, batch):
    """DSpark's scheduler of a batch of equal requests: a heap of what each would admit next; stop at the first drop."""
    heap = [(-worth[0], r) for r in range(batch)]
    expected, admitted, count = float(batch), 0, [0] * batch
    while heap:
        value, r = heapq.heappop(heap)
        if (expected - value) / price[admitted + 1] < expected / price[admitted]:
            break
        expected, admitted, count[r] = expected - value, admitted + 1, count[r] + 1
        if count[r] < len(worth) and worth[count[r]] > 0:
            heapq.heappush(heap, (-worth[count[r]], r))
    return min(count)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_prefix_against_reference(batch):
    rng = np.random.default_rng(7)
    worth = np.cumprod(rng.uniform(0.3, 1, (300, 6)), axis=1)
    price = 1 + np.cumsum(rng.choice([0, 0.1, 0.3], 6 * batch + 1)) / batch
    wanted = [scheduled(row, price, batch) for row in worth]
    assert BUDGET_RULES["prefix"](worth, price, batch=batch).tolist() == wanted
    own = np.tile(price, (300, 1))
    assert BUDGET_RULES["prefix"](worth, own, batch=batch).tolist() == wanted and len(set(wanted)) > 1


def test_prefix_stops_where_a_scan_goes_on_against_closed_form():
    """1, .5 and .45 steps a second for 1, 2 and 3 tokens: .9 tokens a second is a drop, 1.17 behind it is the best."""
    worth, price = [[0.8, 0.8]], [1, 2, 1 / 0.45]
    assert BUDGET_RULES["prefix"](worth, price).tolist() == BUDGET_RULES["first-drop"](worth, price).tolist() == [0]
    assert BUDGET_RULES["full-scan"](worth, price).tolist() == [2]
    # An equal throughput is no drop, and no rise: 1, 1, 1.25 tokens.
    worth, price = [[0.5, 0.5]], [1, 1.5, 1.6]
    assert [int(BUDGET_RULES[name](worth, price)[0]) for name in ("prefix", "first-drop", "full-scan")] == [2, 0, 2]
    # A batch of two shares the price of what it admits: 2, 2.8 / 1.25, 3.6 / 2.1 tokens; only one request gets a node.
    assert BUDGET_RULES["prefix"]([[0.8]], [1, 1.25, 2.1], batch=2).tolist() == [0]
    assert BUDGET_RULES["prefix"]([[0.8]], [1, 1.25, 1.5], batch=2).tolist() == [1]


@given(st.integers(0, 10_000))
def test_first_drop_is_marginal_at_the_throughput_so_far_invariant(seed):
    """Theta rises from n - 1 to n nodes if and only if v_n is above theta(n-1) times the price it adds."""
    rng = np.random.default_rng(seed)
    worth, price = rng.choice([0.1, 0.25, 0.5, 0.7], (1, 6)), rng.choice([0.5, 1, 1.25, 1.3, 2], 7)
    theta = np.concatenate(([1], 1 + np.cumsum(worth[0]))) / price
    taken = 0
    for n in range(1, 7):
        step = BUDGET_RULES["marginal"](worth[:, n - 1 : n], price[n - 1 : n + 1], lam=theta[n - 1])[0]
        close = abs(theta[n] - theta[n - 1]) < 1e-12
        assert close or step == (theta[n] > theta[n - 1])
        taken += int(taken == n - 1 and theta[n] > theta[n - 1])
    assert BUDGET_RULES["first-drop"](worth, price)[0] == taken


@given(st.integers(0, 10_000))
def test_convex_prices_have_one_peak_invariant(seed):
    """Values that fall and a convex price: first drop, full scan and the marginal rule at the peak's theta are one."""
    rng = np.random.default_rng(seed)
    worth = -np.sort(-rng.random((1, 12)), axis=1)
    price = 1 + np.cumsum(np.concatenate(([0], np.sort(rng.random(12)) * rng.choice([0.1, 0.5, 2]))))
    best = BUDGET_RULES["full-scan"](worth, price)
    assert BUDGET_RULES["first-drop"](worth, price).tolist() == best.tolist()
    theta = (1 + worth[0, : best[0]].sum()) / price[best[0]]
    assert BUDGET_RULES["marginal"](worth, price, lam=theta).tolist() in ([best[0]], [max(best[0] - 1, 0)])
    assert BUDGET_RULES["marginal"](worth, price, lam=theta * (1 - 1e-9)).tolist() == best.tolist()


def test_marginal_against_closed_form():
    worth, price = [[0.9, 0.5, 0.2, 0], [0.9, 0.1, 0.1, 0.1]], [1, 1.4, 1.8, 1.7, 1.7]
    found = {lam: BUDGET_RULES["marginal"](worth, price, lam=lam).tolist() for lam in (0, 0.2, 1, 1.5, 3)}
    # What makes the round cheaper is taken at any lam, a node that does not exist at none.
    assert found == {0: [3, 4], 0.2: [3, 4], 1: [3, 1], 1.5: [1, 1], 3: [0, 0]}
    assert BUDGET_RULES["marginal"]([[0.5, 0.5]], [1, 1.5, 1.75], lam=1).tolist() == [0]  # worth as much as it costs


def test_stairs_of_tiles_invariant():
    """25 ms and 1.5 for each 64 verified tokens: the first drop mostly stops where a tile is full, and loses."""
    rng = np.random.default_rng(9)
    shape = (64, 15, 128)
    slope = rng.normal(3.2, 0.9, (64, 15, 1)) - 0.05 * np.arange(15)[:, None]
    weights = -np.maximum(slope, 1.05) * np.log(np.arange(1, 129)) + rng.normal(0, 0.5, shape)
    log_q = -np.sort(-(weights - np.log(np.exp(weights).sum(axis=-1, keepdims=True))), axis=-1)
    worth = node_values(log_q, max_budget=1024)
    verified = np.arange(1, 1026)
    theta = 1 + np.concatenate((np.zeros((64, 1)), np.cumsum(worth, axis=1)), axis=1)
    lost = {}
    for name, price in (("stairs", 25 + 1.5 * np.ceil(verified / 64)), ("convex", 25 + 0.02 * verified)):
        stop, scan = (BUDGET_RULES[rule](worth, price) for rule in ("first-drop", "full-scan"))
        lost[name] = price_of(theta / price, stop) / price_of(theta / price, scan)
        assert (lost[name] <= 1).all()
        if name == "stairs":
            assert np.median(stop) == 63 and (scan >= stop).all()
    assert (lost["convex"] == 1).all() and lost["stairs"].mean() < 0.99 and lost["stairs"].min() < 0.95


def test_case_96_wider_or_deeper_against_enumeration():
    for second, best in ((0.5, 1.05), (0.2, 0.9)):
        worth = node_values(np.log([[[0.7, 0.2], [second, 0.1]]]), max_budget=2)
        assert worth.sum() == pytest.approx(best, rel=1e-12)
        price = np.array([1, 1.3, 1.3 + 0.3 * (best - 0.7)])
        for name, rule in BUDGET_RULES.items():
            assert rule(worth, price, **SETTINGS.get(name, {})).tolist() == [2]


@pytest.mark.parametrize("name", BUDGET_RULES)
def test_refusals_of_rules_invariant(name):
    for worth, price, told in (
        ([0.5], [1, 1], r"values: found shape \(1,\); allowed: \(N, n\)"),
        ([[0.5, 1.1]], [1, 1, 1], "values: start 0, node 2: found 1.1; allowed: 0 to 1"),
        ([[0.5, np.nan]], [1, 1, 1], "values: start 0, node 2: found nan"),
        ([[0.5]], [1, 1, 1], r"prices: found shape \(3,\); allowed: \(2,\) or \(1, 2\)"),
        ([[0.5]], [1, -1], r"prices\[1\]: found -1.0; allowed: finite numbers >= 0"),
        ([[0.5]], [[1, np.nan]], r"prices\[0, 1\]: found nan"),
    ):
        with pytest.raises(ValueError, match=told):
            BUDGET_RULES[name](worth, price, **SETTINGS.get(name, {}))


def test_refusals_of_settings_invariant():
    with pytest.raises(ValueError, match="lam: found -1; allowed: a finite number >= 0"):
        BUDGET_RULES["marginal"]([[0.5]], [1, 1], lam=-1)
    for lam in ("x", None, [1.0], np.nan):
        with pytest.raises(ValueError, match=r"lam: found .*; allowed: a finite number >= 0"):
            BUDGET_RULES["marginal"]([[0.5]], [1, 1], lam=lam)
    with pytest.raises(ValueError, match="batch: found 0"):
        BUDGET_RULES["prefix"]([[0.5]], [1, 1], batch=0)
    with pytest.raises(ValueError, match=r"values: start 0, node 2: found 0\.5 after 0\.2; none may rise"):
        BUDGET_RULES["prefix"]([[0.2, 0.5]], [1, 1, 1])
