"""Rounds of many budgets by a walk, against the engine on each budget's law and a literal loop."""

import itertools

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.arrays import ABSENT
from markov_spec.drafting import TreeRanks, tree_law, tree_rounds

LENGTHS = [6, 0, 1, 9, 4]
INDPTR = np.concatenate([[0], np.cumsum(LENGTHS)])
N = int(INDPTR[-1])


def some_ranks(seed, depths=3, most=12):
    rng = np.random.default_rng(seed)
    rank = np.sort(rng.choice(np.arange(1, 30), (N, depths)), axis=1) + np.arange(depths)
    left = np.repeat(INDPTR[1:], LENGTHS) - np.arange(N)
    rank = np.where((rank > most) | (np.arange(depths) >= left[:, None]), ABSENT, rank)
    counts = {name: rng.integers(0, most + 1, N) for name in ("exact_to", "nodes")}
    gaps = np.array([np.sort(rng.permutation(most)[:3]) + 1 for _ in range(N)])
    return TreeRanks(rank, max_budget=most, **counts, gaps=gaps if seed % 2 else None)


@pytest.mark.parametrize("first_start", [0, 1, 5])
@pytest.mark.parametrize("seed", range(4))
def test_budgets_against_reference(seed, first_start):
    ranks, budgets = some_ranks(seed), np.array([0, 1, 2, 5, 12])
    prices = np.random.default_rng(seed).uniform(0, 2, (N, budgets.size))
    found = tree_rounds(ranks, INDPTR, budgets=budgets, prices=prices, first_start=first_start, threads=2)
    for b, n in enumerate(budgets.tolist()):
        solved = ms.solve(tree_law(ranks, INDPTR, budget=n), first_start=first_start, price=prices[:, b])
        assert found.rounds[:, b].tolist() == solved.expected.tolist()
        assert np.allclose(found.price[:, b], solved.price, atol=1e-12)
        at = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
        for values, own in ((found.drafted, ranks.drafted(n)), (found.uncertain, ranks.exact_to < n)):
            assert np.allclose(values[:, b], np.bincount(at, solved.occupancy * own, minlength=len(LENGTHS)))


def test_budgets_by_start_against_simulation():
    ranks, rng = some_ranks(9), np.random.default_rng(9)
    budgets = rng.integers(0, 13, (N, 2))
    found = tree_rounds(ranks, INDPTR, budgets=budgets, prices=[1.0, 2.5])
    for i, (a, b) in enumerate(itertools.pairwise(INDPTR)):
        for column in range(2):
            s, count = a, 0
            while s < b:
                s, count = s + 1 + int((ranks.rank[s] <= budgets[s, column]).sum()), count + 1
            assert found.rounds[i, column] == count
    assert np.allclose(found.price, found.rounds * [1.0, 2.5])
    doubted = rng.random((N, 2)) < 0.5
    unsure = tree_rounds(ranks, INDPTR, budgets=budgets, doubted=doubted).uncertain
    none = TreeRanks(ranks.rank, max_budget=12, exact_to=np.where(doubted[:, 1], 0, ranks.exact_to))
    one = tree_rounds(none, INDPTR, budgets=np.maximum(budgets[:, 1:], 1))
    positive = tree_rounds(ranks, INDPTR, budgets=np.maximum(budgets[:, 1:], 1), doubted=doubted[:, 1:])
    assert (one.uncertain == positive.uncertain).all() and (unsure >= found.uncertain).all()
    alone = tree_rounds(ranks, INDPTR, budgets=budgets)
    assert alone.price is None and (alone.rounds == found.rounds).all() and "2 budgets" in repr(alone)


def test_bad_arguments_are_refused_invariant():
    ranks = some_ranks(0)
    for budgets in ([13], [-1], [1.5], np.zeros((3, 1), int)):
        with pytest.raises(ms.RequestError, match="budgets: found"):
            tree_rounds(ranks, INDPTR, budgets=budgets)
    for prices in ([1.0, 2.0], [np.nan]):
        with pytest.raises(ValueError, match="prices: found"):
            tree_rounds(ranks, INDPTR, budgets=[1], prices=prices)
    with pytest.raises(ValueError, match="doubted: found"):
        tree_rounds(ranks, INDPTR, budgets=[1], doubted=[[1]])
    with pytest.raises(ms.RequestError, match="allowed: 0 and 5 to 12"):
        tree_rounds(TreeRanks(ranks.rank, max_budget=12, min_budget=5), INDPTR, budgets=[0, 4])
