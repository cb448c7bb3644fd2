"""Static trees learned from rollouts."""

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.drafting import Static, fit_static_tree, next_tokens, tree_law, tree_ranks
from tests.drafting.samples import lists, rollout
from tests.drafting.test_ranks import closed_trees


def rounds_of(tree, ids, log_q, tokens, indptr):
    ranks = tree_ranks(ids, log_q, tokens, max_budget=len(tree), builder=Static(tree), complete=True)
    return float(ms.solve(tree_law(ranks, indptr, budget=len(tree))).expected.sum())


@pytest.mark.parametrize("weighted", [False, True])
def test_fixed_weights_against_enumeration(weighted):
    """Of all trees of up to 6 nodes none accepts more."""
    rng = np.random.default_rng(0)
    trees = [sorted(tree, key=lambda path: (len(path), path)) for tree in closed_trees(3, 3, 6)]
    ids, log_q = lists(rng, 40, 3, 4)
    tokens = rollout(rng, ids, log_q, ends=True)
    weights = rng.random(40) if weighted else None
    w = np.ones(40) if weights is None else weights
    short = ids[..., :3]
    accepted = {}
    for tree in trees:
        if tree:
            ranks = tree_ranks(short, log_q[..., :3], tokens, max_budget=len(tree), builder=Static(tree))
            accepted[tuple(tree)] = float(w @ ranks.accepted(len(tree)))
    for n in range(1, 7):
        fit = fit_static_tree(short, tokens, budget=n, weights=weights)
        assert fit.exactness == "exact" and fit.tried == 1 and fit.expected_rounds is None
        best = max(value for tree, value in accepted.items() if len(tree) <= n)
        assert fit.accepted == pytest.approx(best, rel=1e-12)
        found = tuple(sorted(fit.builder.tree, key=lambda path: (len(path), path)))
        assert accepted[found] == pytest.approx(best, rel=1e-12)


def test_order_is_that_of_smaller_trees_invariant():
    rng = np.random.default_rng(1)
    ids, log_q = lists(rng, 60, 4, 5)
    tokens = rollout(rng, ids, log_q)
    trees = [fit_static_tree(ids, tokens, budget=n).builder.tree for n in range(15)]
    assert all(trees[-1][: len(tree)] == tree for tree in trees)
    assert trees[0] == () and len(trees[-1]) == 14


def test_rounds_against_enumeration():
    """The best iterate is no better than the best tree, mostly as good, and never worse than unit weights."""
    rng = np.random.default_rng(2)
    trees = [sorted(tree, key=lambda path: (len(path), path)) for tree in closed_trees(2, 3, 3)]
    indptr = np.array([0, 12, 13, 30])
    reached, several = 0, 0
    for _ in range(30):
        ids, log_q = lists(rng, 30, 2, 3)
        tokens = rollout(rng, ids, log_q)[:, 0]
        words = next_tokens(tokens, indptr, 2)
        best = min(rounds_of(tree, ids, log_q, words, indptr) for tree in trees if tree)
        fit = fit_static_tree(ids, words, budget=3, indptr=indptr)
        assert fit.exactness == "heuristic"
        assert fit.expected_rounds == rounds_of(fit.builder.tree, ids, log_q, words, indptr)
        first = fit_static_tree(ids, words, budget=3).builder.tree
        assert best <= fit.expected_rounds <= rounds_of(first, ids, log_q, words, indptr)
        reached += fit.expected_rounds == best
        several += fit.tried > 1
    assert reached >= 20 and several >= 10


def test_start_after_the_first_token_against_reference():
    rng = np.random.default_rng(3)
    ids, log_q = lists(rng, 20, 2, 3)
    words = next_tokens(rollout(rng, ids, log_q)[:, 0], [0, 20], 2)
    fit = fit_static_tree(ids, words, budget=2, indptr=[0, 20], first_start=1)
    ranks = tree_ranks(ids, log_q, words, max_budget=2, builder=fit.builder)
    assert fit.expected_rounds == ms.solve(tree_law(ranks, [0, 20], budget=2), first_start=1).expected[0]


def test_nothing_is_ever_hit_against_closed_form():
    assert fit_static_tree([[[1]]] * 3, [[2]] * 3, budget=4).builder.tree == ()
    fit = fit_static_tree([[[1]]] * 3, [[2]] * 3, budget=4, indptr=[0, 3])
    assert fit.builder.tree == () and fit.expected_rounds == 3


@pytest.mark.parametrize(
    ("message", "options"),
    {
        "weights: given beside indptr": {"weights": [1.0], "indptr": [0, 1]},
        "budget: found -1": {"budget": -1},
        "indptr: the last rollout": {"indptr": [0, 2]},
        "first_start: found -1": {"indptr": [0, 1], "first_start": -1},
    }.items(),
)
def test_refusals_invariant(message, options):
    with pytest.raises(ValueError, match=message):
        fit_static_tree([[[1]]], [[1]], **{"budget": 1, **options})
