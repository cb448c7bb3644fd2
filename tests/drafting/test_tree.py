"""The tree itself: depths, mask, paths, picture."""

import itertools

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.drafting import DraftTree, build_tree
from tests.drafting.samples import FAMILY, lists

#        0 -> 0 1;  1;  0,0 -> 0
TOKENS, PARENTS = [7, 8, 5, 6, 4], [-1, -1, 0, 0, 2]


def test_case_89_depths_against_closed_form():
    assert DraftTree([1, 2, 3], [-1, -1, 0]).depths.tolist() == [1, 1, 2]
    assert DraftTree(TOKENS, PARENTS).depths.tolist() == [1, 1, 2, 2, 3]


def test_case_89_order_invariant():
    """Every order that has parents before children gives the same rounds; any other is refused."""
    rollout = np.array([7, 5, 4, 8, 7, 6, 7, 7, 5])

    def rounds(tree):
        accepted = [tree.accepted(rollout[s:]) for s in range(rollout.size)]
        return ms.solve(ms.RoundLaw((np.arange(1, 4) <= np.array(accepted)[:, None]) * 1.0, [0, 9])).expected[0]

    found, refused = set(), 0
    for order in itertools.permutations(range(5)):
        place = {-1: -1} | {node: i for i, node in enumerate(order)}
        tokens, parents = [TOKENS[i] for i in order], [place[PARENTS[i]] for i in order]
        if all(parent < i for i, parent in enumerate(parents)):
            found.add(rounds(DraftTree(tokens, parents)))
        else:
            refused += 1
            with pytest.raises(ValueError, match="allowed: -1 for the root, or a node before it"):
                DraftTree(tokens, parents)
    assert found == {3.0} and refused == 105


def test_mask_and_paths_against_closed_form():
    tree = DraftTree(TOKENS, PARENTS)
    wanted = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 1, 0, 1],
    ]
    np.testing.assert_array_equal(tree.attention_mask(), np.array(wanted, bool))
    np.testing.assert_array_equal(tree.retrieve_indices(), [[0, 2, -1, -1], [0, 1, 4, -1], [0, 1, 3, 5]])
    empty = DraftTree([], [])
    assert empty.attention_mask().tolist() == [[True]] and empty.retrieve_indices().tolist() == [[0]]
    assert len(empty) == 0 and empty.accepted([1]) == 0 and empty.to_text() == "root"


def test_mask_and_paths_agree_invariant():
    """Each row of the paths is what its leaf sees, every node is on one, and verifying row by row is walking."""
    rng = np.random.default_rng(0)
    ids, log_q = lists(rng, 6, 4, 5)
    for builder, s, budget in itertools.product(FAMILY, range(6), (0, 1, 3, 30)):
        tree = build_tree(ids[s], log_q[s], budget=budget, builder=builder)
        mask, paths = tree.attention_mask(), tree.retrieve_indices()
        seen = set()
        for row in paths:
            way = row[row >= 0]
            assert (row[way.size :] == -1).all()
            np.testing.assert_array_equal(np.flatnonzero(mask[way[-1]]), np.sort(way))
            assert tree.depths[way[1:] - 1].tolist() == list(range(1, way.size))
            seen |= set(way.tolist())
        assert seen == set(range(len(tree) + 1))
        words = np.concatenate(([-1], tree.tokens))
        for _ in range(5):
            rollout = ids[s][np.arange(4), np.minimum(rng.geometric(0.5, 4) - 1, 4)]
            matched = [np.cumprod((words[row[1:]] == rollout[: row.size - 1]) & (row[1:] >= 0)).sum() for row in paths]
            assert max(matched) == tree.accepted(rollout)


def test_values_and_names_against_closed_form():
    ids, q = [[7, 8, 9], [5, 6, 4]], np.array([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1]])
    tree = build_tree(ids, np.log(q), budget=5)
    assert tree.rank_path == ((0,), (0, 0), (0, 1), (1,), (1, 0))  # .1 and .1 = (2,) tie with (1, 0): the smaller path
    np.testing.assert_allclose(np.exp(tree.log_values), [0.7, 0.35, 0.28, 0.2, 0.1])
    assert tree.tokens.tolist() == [7, 5, 6, 8, 5] and tree.parents.tolist() == [-1, 0, 0, -1, 3]
    assert repr(tree) == "DraftTree(5 nodes, depth 2)"
    assert tree.to_text().splitlines() == [
        "root", "+- 7  0.7", "|  +- 5  0.35", "|  +- 6  0.28", "+- 8  0.2", "   +- 5  0.1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("message", "arguments"),
    {
        "tokens: found shape": {"tokens": [[1, 2]], "parents": [-1, -1]},
        "tokens: found .*float64; allowed": {"tokens": [1.0], "parents": [-1]},
        r"parents: found shape \(1,\)": {"tokens": [1, 2], "parents": [-1]},
        "parents: node 0: found 0": {"tokens": [1], "parents": [0]},
        "parents: node 0: found 1": {"tokens": [1, 2], "parents": [1, 0]},
        "parents: node 1: found -2": {"tokens": [1, 2], "parents": [-1, -2]},
        "tokens: node 1: found 1, which its parent -1 has": {"tokens": [1, 1], "parents": [-1, -1]},
        "tokens: found 4294967301 to 4294967301; allowed: -1 to": {"tokens": [2**32 + 5], "parents": [-1]},
        "rank_path: found 5; allowed: 1, one for each node": {"tokens": [1], "parents": [-1], "rank_path": 5},
        "log_values: found 1 entries; allowed: 2": {"tokens": [1, 2], "parents": [-1, -1], "log_values": [0.0]},
    }.items(),
)
def test_refusals_invariant(message, arguments):
    with pytest.raises(ValueError, match=message):
        DraftTree(**arguments)
