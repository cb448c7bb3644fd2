"""Each builder's own rule: small trees by hand, best trees by enumeration, and settings that are refused."""

import itertools

import numpy as np
import pytest

from markov_spec.arrays import ABSENT
from markov_spec.drafting import (
    BUILDERS,
    AllChildren,
    BestFirst,
    Builder,
    Eagle2,
    Medusa,
    Sequoia,
    Static,
    build_tree,
    positional_values,
    rank_acceptance,
    rank_accuracy,
    tree_ranks,
)
from tests.drafting.samples import FAMILY, lists, rollout
from tests.drafting.test_ranks import closed_trees


def test_registry_invariant():
    assert {builder.name for builder in FAMILY} == set(BUILDERS)
    assert all(isinstance(builder, Builder) and type(builder) is BUILDERS[builder.name] for builder in FAMILY)


def test_all_children_against_closed_form():
    """Values .7 .2 .1 and .5 .4 .1: the root, then .7, then its child .35 is expanded before .2."""
    ids, log_q = [[1, 2, 3]] * 3, np.log([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.6, 0.3, 0.1]])
    tree = build_tree(ids, log_q, budget=11, builder=AllChildren(width=3))
    assert tree.rank_path == (
        (0,), (1,), (2,), (0, 0), (0, 1), (0, 2), (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1),
    )  # fmt: skip
    assert build_tree(ids, log_q, budget=5, builder=AllChildren(width=3)).rank_path == tree.rank_path[:5]


def test_all_children_falls_below_the_chain_against_closed_form():
    """Seven children a time: 15 nodes reach depth 3, a chain of a sure drafter 15."""
    ids, log_q = np.tile(np.arange(7), (15, 1)), np.log(np.tile([0.9, *[0.1 / 6] * 6], (15, 1)))
    wide, chain, best = (
        np.exp(build_tree(ids, log_q, budget=15, builder=builder).log_values).sum()
        for builder in (AllChildren(), "chain", "best-first")
    )
    assert wide == pytest.approx(1 + 0.9 + 0.9**3, rel=1e-12)
    assert chain == pytest.approx(sum(0.9**k for k in range(1, 16)), rel=1e-12)
    assert wide < chain <= best


def test_eagle2_against_closed_form():
    """Beam 2: of .6 .4 and .6 .4 the second layer has .36 .24 .24 .16; only .36 and the first .24 go on."""
    ids, log_q = [[1, 2]] * 3, np.log([[0.6, 0.4]] * 3)
    paths = build_tree(ids, log_q, budget=99, builder=Eagle2(beam=2)).rank_path
    assert len(paths) == 2 + 2 * 2**2
    assert {path for path in paths if len(path) == 3} == {(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)}
    assert len(build_tree(ids, log_q, budget=99, builder=Eagle2(beam=2, depth=1))) == 2 + 2**2


def test_wide_beam_against_enumeration():
    """A beam that drops nothing gives the best trees; a narrow one never better ones."""
    rng = np.random.default_rng(0)
    ids, log_q = lists(rng, 20, 3, 3)
    for s, n in itertools.product(range(20), (1, 4, 9, 20)):
        best, wide, narrow = (
            build_tree(ids[s], log_q[s], budget=n, builder=builder)
            for builder in (BestFirst(), Eagle2(beam=27), Eagle2(beam=2))
        )
        assert best.rank_path == wide.rank_path
        assert np.exp(narrow.log_values).sum() <= np.exp(best.log_values).sum() + 1e-12


def test_medusa_against_enumeration():
    """Of all trees of up to 7 nodes the one of the largest sum of products of accuracies."""
    rng = np.random.default_rng(1)
    trees = closed_trees(3, 3, 7)
    for _ in range(5):
        accuracy = -np.sort(-rng.dirichlet(np.ones(4), 3), axis=1)[:, :3]
        worth = {
            path: np.prod(accuracy[range(len(path)), path])
            for depth in (1, 2, 3)
            for path in itertools.product(range(3), repeat=depth)
        }
        totals = [(len(tree), sum(worth[path] for path in tree)) for tree in trees]
        for n in range(1, 8):
            best = max(total for size, total in totals if size <= n)
            assert sum(worth[path] for path in Medusa(accuracy).order(n)) == pytest.approx(best, rel=1e-12)


def test_medusa_of_one_distribution_against_reference():
    """With a start's own probabilities as accuracies it is best-first."""
    ids, log_q = lists(np.random.default_rng(2), 5, 3, 4)
    for s in range(5):
        tree = build_tree(ids[s], log_q[s], budget=30)
        assert Medusa(np.exp(log_q[s])).order(30) == list(tree.rank_path)


def test_static_order_against_closed_form():
    """Smaller budgets take the first nodes; a token of probability 0 is no node, nor is what follows it."""
    builder = Static([[1], [0], [0, 0], [1, 0]])
    ids, log_q = [[1, 2], [3, 4]], [[-0.5, -np.inf], [-0.1, -3.0]]
    assert build_tree(ids, log_q, budget=9, builder=builder).rank_path == ((0,), (0, 0))
    log_q[0][1] = -1.0
    assert build_tree(ids, log_q, budget=3, builder=builder).rank_path == ((1,), (0,), (0, 0))
    ranks = tree_ranks([ids] * 2, [log_q] * 2, [[2, 3], [1, 3]], max_budget=9, builder=builder)
    np.testing.assert_array_equal(ranks.rank, [[1, 4], [2, 3]])
    assert (ranks.nodes == 4).all()


def test_static_beyond_the_lists_against_closed_form():
    """Two tokens are listed and the tree has a third child, its second node, which may exist or not."""
    builder = Static([[0], [2], [0, 0]])
    ids, log_q = [[[1, 2], [3, 4]]] * 3, [[[-0.5, -1.5], [-0.5, -1.5]]] * 3
    ranks = tree_ranks(ids, log_q, [[9, 3], [1, 9], [2, 3]], max_budget=5, builder=builder)
    np.testing.assert_array_equal(ranks.exact_to, [1, 1, 1])
    np.testing.assert_array_equal(ranks.nodes, [3, 3, 3])
    whole = tree_ranks(ids, log_q, [[9, 3], [1, 9], [2, 3]], max_budget=5, builder=builder, complete=True)
    np.testing.assert_array_equal(whole.exact_to, [5, 5, 5])
    np.testing.assert_array_equal([whole.drafted(n)[0] for n in range(6)], [0, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal([whole.depths(n)[0] for n in range(6)], [0, 1, 1, 2, 2, 2])


def test_static_nodes_against_closed_form():
    """Tree (0) (1) (1,0) (0,0) (0,1) (2): both tokens; one at depth 1; one at depth 2; depth 2 missing; nothing."""
    builder, inf, nan = Static([[0], [1], [1, 0], [0, 0], [0, 1], [2]]), -np.inf, np.nan
    log_q = [
        [[-1.0, -2.0], [-1.0, -2.0]], [[-1.0, inf], [-1.0, -2.0]], [[-1.0, -2.0], [-1.0, inf]],
        [[-1.0, -2.0], [nan, nan]], [[inf, inf], [nan, nan]],
    ]  # fmt: skip
    ids = np.where(np.asarray(log_q) == inf, -1, [1, 2])
    ranks = tree_ranks(ids, log_q, [[1, 2]] * 3 + [[1, -1], [3, -1]], max_budget=9, builder=builder)
    counts = np.stack([ranks.drafted(n) for n in range(10)], axis=1)
    np.testing.assert_array_equal(
        counts,
        [
            [0, 1, 2, 3, 4, 5, 6, 6, 6, 6], [0, 1, 1, 1, 2, 3, 3, 3, 3, 3], [0, 1, 2, 3, 4, 4, 5, 5, 5, 5],
            [0, 1, 2, 3, 4, 5, 6, 6, 6, 6], [0] * 10,
        ],
    )  # fmt: skip
    # A third token may stand after two listed ones; (1, 0) is the first node of a depth that is not recorded.
    np.testing.assert_array_equal(ranks.exact_to, [5, 9, 5, 2, 9])
    np.testing.assert_array_equal(ranks.reach, [[1, 3], [1, 4], [1, 3], [1, 3], [ABSENT] * 2])
    np.testing.assert_array_equal(ranks.rank, [[1, 5], [1, 5], [1, ABSENT], [1, ABSENT], [ABSENT] * 2])


def test_sizes_beyond_all_lists_against_closed_form():
    """Places after the lists take no room, and a tree of a huge budget is that of all nodes."""
    far = Static([[0], [2**31 - 2], [2**31 - 2, 0]])
    ranks = tree_ranks([[[1], [3]]], [[[-0.5], [-0.5]]], [[1, 3]], max_budget=9, builder=far)
    assert ranks.nodes.tolist() == [3] and ranks.exact_to.tolist() == [1]
    whole = tree_ranks([[[1], [3]]], [[[-0.5], [-0.5]]], [[1, 3]], max_budget=9, builder=far, complete=True)
    assert whole.nodes.tolist() == [1] and whole.exact_to.tolist() == [9]
    wide = Eagle2(beam=10**12)
    ranks = tree_ranks([[[1], [3]]], [[[-0.5], [-0.5]]], [[1, 3]], max_budget=9, builder=wide, complete=True)
    assert ranks.nodes.tolist() == [2] and ranks.rank.tolist() == [[1, 2]]


def positional_trees(nodes, depth, children, acceptance):
    """Expected accepted drafts of every tree of so many nodes by place: all ways to share them among a root's children.

    A node has its first children only, as a later place without an earlier one never helps.
    """
    if nodes == 0:
        return [0.0]
    if depth == 0 or children == 0:
        return []
    found = []
    for first in range(1, nodes + 1):
        for below in positional_trees(first - 1, depth - 1, len(acceptance), acceptance):
            for rest in positional_siblings(nodes - first, depth, 1, acceptance):
                found.append(acceptance[0] * (1 + below) + rest)
    return found


def positional_siblings(nodes, depth, place, acceptance):
    if nodes == 0:
        return [0.0]
    if place == len(acceptance):
        return []
    found = []
    for first in range(1, nodes + 1):
        for below in positional_trees(first - 1, depth - 1, len(acceptance), acceptance):
            for rest in positional_siblings(nodes - first, depth, place + 1, acceptance):
                found.append(acceptance[place] * (1 + below) + rest)
    return found


@pytest.mark.parametrize("acceptance", [[0.6, 0.2, 0.1], [0.3, 0.3, 0.3], [0.5, 0.0, 0.2], [0.9], [0.4, 0.35]])
def test_sequoia_against_enumeration(acceptance):
    """All trees of up to 8 nodes by place."""
    for depth in (1, 2, 3, 8):
        table = positional_values(acceptance, budget=8, depth=depth)
        assert table.shape == (9, depth + 1)
        for n in range(9):
            trees = positional_trees(n, depth, len(acceptance), acceptance)
            best = 1 + max(trees, default=-np.inf)
            assert table[n, depth] == pytest.approx(best, rel=1e-12)
            order = Sequoia(acceptance, depth=depth).order(n)
            worth = 1 + sum(np.prod(np.take(acceptance, path)) for path in order)
            if trees:
                assert len(order) == n and worth == pytest.approx(best, rel=1e-12)
            else:
                assert len(order) < n and worth == pytest.approx(table[len(order), depth], rel=1e-12)
            assert all(len(path) <= depth and max(path) < len(acceptance) for path in order)
            assert all(path[:-1] in {(), *order[:i]} for i, path in enumerate(order))


SHIPPED = [
    .634183, .107946, .056972, .022489, .01949, .014993, .004498, .002999, .011994, .004498, .007496, .004498, .005997,
    .002999, .001499, .002999, .001499, .002999, 0, .002999, .002999, .002999, 0, .001499, 0, .001499, 0, 0, 0, .001499,
    .001499, .001499,
]  # fmt: skip


def test_sequoia_against_peer():
    """Values of its tree search at full budget, and its choice by time per token; its nodes and levels count the root.

    The acceptances are known to six places, which moves the values in the sixth.
    """
    table = positional_values(SHIPPED, budget=127, depth=9)
    assert table[63, 9] == pytest.approx(3.852309, abs=1e-5)
    assert table[127, 9] == pytest.approx(4.192108, abs=1e-5)
    for n in (63, 127):
        order = Sequoia(SHIPPED, depth=9).order(n)
        assert 1 + sum(np.prod(np.take(SHIPPED, path)) for path in order) == pytest.approx(table[n, 9], rel=1e-12)
    prices = {1: 10, 2: 10, 4: 10, 8: 12, 16: 14, 32: 18, 64: 20, 128: 24}
    per_token = {
        (m, level): (0.3 * level + price) / table[m - 1, level - 1]
        for m, price in prices.items()
        for level in range(1, 11)
        if table[m - 1, level - 1] > -np.inf
    }
    best = min(per_token, key=per_token.get)
    assert best == (4, 4)
    assert per_token[best] == pytest.approx(4.8878, abs=5e-5)
    assert prices[1] / per_token[best] == pytest.approx(2.0459, abs=5e-5)


def test_rank_accuracy_against_reference():
    rng = np.random.default_rng(3)
    ids, log_q = lists(rng, 200, 3, 6)
    tokens, weights = rollout(rng, ids, log_q, ends=True), rng.random(200)
    ids = ids[..., :4]
    for weight in (None, weights):
        found, vector = (measure(ids, tokens, weights=weight) for measure in (rank_accuracy, rank_acceptance))
        w = np.ones(200) if weight is None else weight
        hits, counted, nodes, right = np.zeros((3, 4)), np.zeros(3), 0.0, np.zeros(4)
        for s in range(200):
            on_path = True
            for d in range(3):
                if tokens[s, d] < 0:
                    break
                counted[d] += w[s]
                nodes += w[s] * on_path
                places = [m for m in range(4) if ids[s, d, m] == tokens[s, d]]
                for m in places:
                    hits[d, m] += w[s]
                    right[m] += w[s] * on_path
                on_path = on_path and bool(places)
        np.testing.assert_allclose(found, hits / counted[:, None], rtol=1e-12)
        np.testing.assert_allclose(vector, right / nodes, rtol=1e-12)
    assert (rank_accuracy(ids, np.full((200, 3), -1)) == 0).all()
    assert (rank_acceptance(ids, np.full((200, 3), -1)) == 0).all()


REFUSED = {
    "width: found 0": lambda: AllChildren(width=0),
    "beam: found 2.0": lambda: Eagle2(beam=2.0),
    "depth: found -1": lambda: Eagle2(depth=-1),
    "paths: path 1: found .0, 0. before its parent": lambda: Static([[1], [0, 0]]),
    "paths: path 1: found .0,. again": lambda: Static([[0], [0]]),
    "paths: path 0: found .. again; allowed: each path once, none empty": lambda: Static([[]]),
    "paths: path 0: found -1": lambda: Static([[-1]]),
    "accuracy: found shape": lambda: Medusa([0.5]),
    r"accuracy\[0, 1\]: found 1.5; allowed: 0 to 1": lambda: Medusa([[0.5, 1.5]]),
    "accuracy: found a sum of 1.1": lambda: Medusa([[0.5, 0.6]]),
    r"acceptance\[0\]: found nan": lambda: Sequoia([np.nan], depth=2),
    "acceptance: found shape": lambda: Sequoia([], depth=2),
    "depth: found 0; allowed: an integer >= 1": lambda: Sequoia([0.5], depth=0),
    "budget: found -1": lambda: positional_values([0.5], budget=-1, depth=2),
    "weights: start 1: found -1.0": lambda: rank_accuracy([[[1]]] * 2, [[1]] * 2, weights=[1, -1]),
    r"weights: found shape \(1,\); allowed: \(2,\)": lambda: rank_acceptance([[[1]]] * 2, [[1]] * 2, weights=[1]),
    "paths: found .0, 0.; allowed: at most 1 places": lambda: tree_ranks(
        [[[1]]], [[[0.0]]], [[1]], max_budget=2, builder=Static([[0], [0, 0]])
    ),
    "paths: found .0, 0.; allowed: at most 1 places,": lambda: build_tree(
        [[1]], [[0.0]], budget=2, builder=Static([[0], [0, 0]])
    ),
    "paths: found 5; allowed: a sequence of rank paths": lambda: Static(5),
    "paths: path 0: found 5; allowed: a sequence of places": lambda: Static([5]),
    "paths: path 0: found 8589934592; allowed: 0 to 2147483646": lambda: Static([[2**33]]),
    "budget: found 2147483646; allowed: at most 22369619 here": lambda: Sequoia([0.5, 0.2], depth=2).order(2**31 - 2),
    "budget: found 1073741824; allowed: at most": lambda: positional_values([0.5], budget=2**30, depth=2),
    "depth: found 1099511627776; allowed: at most": lambda: Sequoia([0.5], depth=2**40).order(1),
    "budget: found -2": lambda: build_tree([[1]], [[0.0]], budget=-2),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_invariant(message):
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()
