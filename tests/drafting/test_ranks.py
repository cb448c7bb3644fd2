"""Ranks of the rollout's prefixes, for all budgets and with truncated lists."""

import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from markov_spec.arrays import ABSENT, RequestError
from markov_spec.drafting import (
    AllChildren,
    BestFirst,
    Chain,
    Eagle2,
    Sequoia,
    Static,
    TreeRanks,
    _numba,
    _reference,
    build_tree,
    tree_ranks,
)
from markov_spec.drafting.inputs import Lists
from tests.drafting.samples import FAMILY, NESTED, lists, rollout, sorted_paths, values


def closed_trees(depths, width, most):
    """All sets of at most ``most`` nodes that hold each node's parent, as sets of rank paths."""
    layer, found = {frozenset()}, [frozenset()]
    for _ in range(most):
        grown = set()
        for tree in layer:
            for path in (*tree, ()):
                if len(path) < depths:
                    grown |= {tree | {(*path, i)} for i in range(width)} - {tree}
        layer = grown
        found += layer
    return found


def test_best_tree_against_enumeration():
    """Of all trees of up to 7 nodes the first n nodes are worth most, in accepted drafts that the drafter expects."""
    rng = np.random.default_rng(0)
    trees = closed_trees(3, 3, 7)
    assert len(trees) > 8000
    nodes = sorted(set().union(*trees))
    inside = np.array([[path in tree for path in nodes] for tree in trees])
    sizes = inside.sum(axis=1)
    for ties in (False, True):
        ids, log_q = lists(rng, 10, 3, 3, ties=ties)
        for s in range(len(ids)):
            worth = values(log_q[s])
            totals = inside @ np.exp([worth[path] for path in nodes])
            for n in range(1, 8):
                tree = build_tree(ids[s], log_q[s], budget=n)
                assert np.exp(tree.log_values).sum() == pytest.approx(totals[sizes <= n].max(), rel=1e-12)


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_ranks_against_enumeration(seed, ties, zeros):
    """Every node of the whole tree with its value, sorted; all rollouts of listed tokens."""
    rng = np.random.default_rng(seed)
    ids, log_q = lists(rng, 1, 3, 3, ties=ties, zeros=zeros, dtype=rng.choice([np.float32, np.float64]))
    order = sorted_paths(log_q[0])
    all_paths = np.array(list(itertools.product(range(3), repeat=3)))
    tokens = ids[0][np.arange(3), all_paths]
    many = [np.repeat(part, len(tokens), axis=0) for part in (ids, log_q)]
    for cap in (0, 1, 5, 20, 100):
        ranks = tree_ranks(*many, tokens, max_budget=cap, complete=True)
        for path, row in zip(all_paths.tolist(), ranks.rank, strict=True):
            for k in range(1, 4):
                wanted = order.index(tuple(path[:k])) + 1 if tuple(path[:k]) in order else ABSENT
                assert row[k - 1] == (wanted if wanted <= cap else ABSENT)
        assert (ranks.nodes == min(cap, len(order))).all() and (ranks.exact_to == cap).all()


def test_expected_accepted_against_enumeration():
    """Averaged over rollouts drawn from the drafter, a tree accepts the sum of its values."""
    ids, log_q = lists(np.random.default_rng(3), 1, 3, 4)
    paths = np.array(list(itertools.product(range(4), repeat=3)))
    mass = np.exp(log_q[0][np.arange(3), paths].sum(axis=1))
    many = [np.repeat(part, len(paths), axis=0) for part in (ids, log_q)]
    ranks = tree_ranks(*many, ids[0][np.arange(3), paths], max_budget=84)
    for n in range(85):
        worth = np.exp(build_tree(ids[0], log_q[0], budget=n).log_values).sum()
        assert mass @ ranks.accepted(n) == pytest.approx(worth, rel=1e-12)


def heap_order(log_q, count):
    """Pop order of a heap that is given both a node's next sibling and its first child: the peer's rule restated."""
    heap, popped = [(-np.float64(log_q[0, 0]), (0,))], []
    while heap and len(popped) < count:
        _, ranks = heapq.heappop(heap)
        popped.append(ranks)
        candidates = [(*ranks[:-1], ranks[-1] + 1)] * (ranks[-1] + 1 < log_q.shape[1])
        candidates += [(*ranks, 0)] * (len(ranks) < len(log_q))
        for path in candidates:
            total = np.float64(0)
            for depth, place in enumerate(path):
                total = total + log_q[depth, place]
            heapq.heappush(heap, (-total, path))
    return popped


@pytest.mark.parametrize("ties", [False, True])
def test_ranks_of_long_lists_against_reference(ties):
    rng = np.random.default_rng(7)
    ids, log_q = lists(rng, 12, 8, 30, ties=ties, dtype=np.float32)
    tokens = rollout(rng, ids, log_q)
    ranks = tree_ranks(ids, log_q, tokens, max_budget=400, complete=True)
    hit = np.argmax(ids == tokens[..., None], axis=-1)
    for s in range(12):
        place = {path: i + 1 for i, path in enumerate(heap_order(log_q[s], 400))}
        assert ranks.rank[s].tolist() == [place.get(tuple(hit[s, :k]), ABSENT) for k in range(1, 9)]
    assert (ranks.rank < ABSENT).sum() > 20


def test_ranks_do_not_depend_on_scratch_invariant():
    """Where the values of a layer find no room, nodes are counted one by one."""
    rng = np.random.default_rng(8)
    for ties in (False, True):
        ids, log_q = lists(rng, 40, 6, 12, ties=ties)
        tokens = rollout(rng, ids, log_q)
        read = Lists.read(ids[..., :4], log_q[..., :4], tokens, complete=False, threads=1)
        found = []
        for room in (1, 7, 60, 10_000):
            out = np.empty((40, 6), np.int32), np.empty(40, np.int32), np.empty(40, np.int32)
            _numba.best_first(read.log_q, read.hit, read.recorded, False, room, 200, 0, 40, *out)
            found.append(out)
        for out in found[:-1]:
            for part, wanted in zip(out, found[-1], strict=True):
                np.testing.assert_array_equal(part, wanted)


@given(st.integers(0, 2**32))
def test_budgets_against_reference(seed):
    """Each budget's tree is built and the rollout looked up in it; for every builder."""
    rng = np.random.default_rng(seed)
    ties, zeros, ends = rng.random(3) < 0.5
    ids, log_q = lists(rng, 4, int(rng.integers(3, 5)), 4, ties=ties, zeros=zeros)
    read = Lists.read(ids, log_q, rollout(rng, ids, log_q, ends=ends), complete=True, threads=1)
    cap = int(rng.integers(1, 30))
    for builder in FAMILY:
        ranks = builder.ranks(read, cap)
        for n in range(ranks.min_budget, cap + 1):
            np.testing.assert_array_equal(ranks.accepted(n), _reference.accepted(builder, read, n))
            trees = [builder.paths(log_q, n) for log_q in read.log_q]
            assert ranks.drafted(n).tolist() == [len(tree) for tree in trees]
            assert ranks.depths(n).tolist() == [max(map(len, tree), default=0) for tree in trees]


def test_walks_against_reference():
    """10 000 pairs of a start and a budget: N from ranks, and the tree built and walked by token; for every builder."""
    rng = np.random.default_rng(11)
    starts = 100
    ids, log_q = lists(rng, starts, 4, 12, dtype=np.float32)
    tokens = rollout(rng, ids, log_q, ends=True)
    for builder in FAMILY:
        fixed = isinstance(builder, Sequoia)
        for n in range(20, 120) if not fixed else range(1, 4):
            ranks = tree_ranks(ids, log_q, tokens, max_budget=n if fixed else 120, builder=builder, complete=True)
            accepted = ranks.accepted(n)
            for s in rng.integers(0, starts, 10 if not fixed else 340):
                tree = build_tree(ids[s], log_q[s], budget=n, builder=builder)
                assert tree.accepted(tokens[s]) == accepted[s]
                assert len(tree) == ranks.drafted(n)[s]


@given(st.integers(0, 2**32))
def test_exact_to_against_reference(seed):
    """Up to ``exact_to`` truncated lists, some of them missing past the end, give what whole lists give."""
    rng = np.random.default_rng(seed)
    ties, zeros, ends, wiped = rng.random(4) < 0.5
    ids, log_q = lists(rng, 60, int(rng.integers(3, 5)), 5, ties=ties, zeros=zeros)
    tokens = rollout(rng, ids, log_q, ends=ends)
    listed, cap = int(rng.integers(1, 6)), int(rng.integers(1, 40))
    short_ids, short = ids[..., :listed].copy(), log_q[..., :listed].copy()
    if wiped:
        short_ids[tokens < 0], short[tokens < 0] = -1, np.nan
    for builder in FAMILY:
        whole = tree_ranks(ids, log_q, tokens, max_budget=cap, builder=builder, complete=True)
        try:
            ranks = tree_ranks(short_ids, short, tokens, max_budget=cap, builder=builder)
        except ValueError as error:
            assert f"at most the {listed} tokens" in str(error)
            continue
        for n in range(ranks.min_budget, cap + 1):
            certain = ranks.exact_to >= n
            np.testing.assert_array_equal(ranks.accepted(n)[certain], whole.accepted(n)[certain])
            np.testing.assert_array_equal(ranks.drafted(n)[certain], whole.drafted(n)[certain])
        least = np.minimum(ranks.nodes, whole.nodes)
        np.testing.assert_array_equal(least, whole.nodes)


def test_exact_to_against_closed_form():
    """Two listed of each depth: .7 .2 and .5 .4, so that unlisted nodes are worth up to .28."""
    ids, log_q = [[[7, 8], [5, 6]]] * 5, np.log([[[0.7, 0.2], [0.5, 0.4]]] * 5)
    tokens = [[7, 5], [7, 6], [8, 5], [1, 5], [7, 1]]
    ranks = tree_ranks(ids, log_q, tokens, max_budget=9)
    none = ABSENT
    np.testing.assert_array_equal(ranks.rank, [[1, 2], [1, 3], [4, 5], [none, none], [1, none]])
    # .35 and .7 are sure. .28 is not: an unlisted child of 7 may be worth .28 too; at most .2 neither, with rank 4. An
    # unlisted first token is worth at most .2, below .7 .35 .28; an unlisted child of 7 at most .28, below .7 .35.
    # No more than the six listed nodes are certain to exist.
    np.testing.assert_array_equal(ranks.exact_to, [6, 2, 3, 3, 3])
    assert (ranks.nodes == 9).all()
    whole = tree_ranks(ids, log_q, tokens, max_budget=9, complete=True)
    assert (whole.exact_to == 9).all() and (whole.nodes == 6).all()


def test_exact_to_past_the_end_against_closed_form():
    """One token is left, so deeper lists are missing: a node below the best first token may precede the second.

    Two nodes are listed, and no others are certain to exist.
    """
    ids, log_q = [[[7, 8], [-1, -1]]] * 2, [[np.log([0.7, 0.2]), [np.nan, np.nan]]] * 2
    ranks = tree_ranks(ids, log_q, [[7, -1], [8, -1]], max_budget=9, complete=True)
    np.testing.assert_array_equal(ranks.rank, [[1, ABSENT], [2, ABSENT]])
    np.testing.assert_array_equal(ranks.exact_to, [2, 1])
    children = tree_ranks(ids, log_q, [[7, -1], [8, -1]], max_budget=9, builder=AllChildren(2))
    np.testing.assert_array_equal(children.exact_to, [2, 2])  # all first tokens come before any other


@pytest.mark.parametrize(
    "builder", [BestFirst(), Chain(), AllChildren(1), Eagle2(1), Static([(0,) * k for k in (1, 2, 3, 4)])]
)
def test_nodes_of_missing_lists_against_closed_form(builder):
    """A sure token at each of four depths, two tokens left: four nodes if lists go on past the end, else two or one."""
    ids, log_q, tokens = np.full((2, 4, 1), 7), np.zeros((2, 4, 1)), [[7, 7, -1, -1], [7, -1, -1, -1]]
    whole = tree_ranks(ids, log_q, tokens, max_budget=64, builder=builder, complete=True)
    assert whole.drafted(64).tolist() == [4, 4] and whole.exact_to.tolist() == [64, 64]
    log_q[0, 2:], log_q[1, 1:] = np.nan, np.nan
    short = tree_ranks(ids, log_q, tokens, max_budget=64, builder=builder, complete=True)
    assert short.exact_to.tolist() == [2, 1] and short.rank.tolist() == whole.rank.tolist()
    assert short.drafted(short.exact_to).tolist() == [2, 1] and (short.drafted(64) >= 4).all()


def test_lists_that_end_before_the_missing_ones_against_closed_form():
    """A depth without tokens ends every tree, whatever was recorded after it."""
    log_q, tokens = np.array([[[0.0], [-np.inf], [np.nan]]]), [[7, -1, -1]]
    for builder in (BestFirst(), Chain(), AllChildren(1), Eagle2(1), Static([[0], [0, 0], [0, 0, 0]])):
        ranks = tree_ranks([[[7], [-1], [-1]]], log_q, tokens, max_budget=9, builder=builder, complete=True)
        assert ranks.nodes.tolist() == [1] and ranks.exact_to.tolist() == [9]


def test_case_89_ties_against_closed_form():
    """Equal values: the smaller rank path first, so that a parent precedes its child of probability 1."""
    ids, log_q = [[[1, 2], [3, 4]]], [[[-0.7, -0.7], [0.0, -np.inf]]]
    tree = build_tree(ids[0], log_q[0], budget=9)
    assert tree.rank_path == ((0,), (0, 0), (1,), (1, 0))
    ranks = tree_ranks(ids * 2, log_q * 2, [[1, 3], [2, 3]], max_budget=9)
    np.testing.assert_array_equal(ranks.rank, [[1, 2], [3, 4]])


@given(st.integers(0, 2**32))
def test_trees_are_nested_invariant(seed):
    rng = np.random.default_rng(seed)
    _, log_q = lists(rng, 1, 4, 5, ties=bool(rng.integers(2)), zeros=bool(rng.integers(2)))
    for builder in NESTED:
        before = []
        for n in range(25):
            paths = builder.paths(log_q[0], n)
            assert len(paths) <= n and paths[: len(before)] == before
            assert all(path[:-1] in {(), *paths[:i]} for i, path in enumerate(paths))
            before = paths


def test_threads_against_one_thread_invariant():
    rng = np.random.default_rng(2)
    ids, log_q = lists(rng, 3000, 6, 40, dtype=np.float32)
    tokens = rollout(rng, ids, log_q, ends=True)
    assert log_q.nbytes > 1 << 20
    for builder in FAMILY:
        wanted = tree_ranks(ids, log_q, tokens, max_budget=50, builder=builder, threads=1)
        for threads in (2, 5):
            found = tree_ranks(ids, log_q, tokens, max_budget=50, builder=builder, threads=threads)
            for name in ("rank", "exact_to", "nodes", "reach", "gaps"):
                np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))


def test_no_starts_invariant():
    for builder in FAMILY:
        ranks = tree_ranks(
            np.empty((0, 3, 4), int), np.empty((0, 3, 4)), np.empty((0, 3), int), max_budget=4, builder=builder,
            complete=True,
        )  # fmt: skip
        assert ranks.rank.shape == (0, 3) and ranks.accepted(4).shape == (0,)


GOOD = {"top_ids": [[[7, 8], [5, 6]]], "top_log_q": [[[-1.0, -2.0], [-1.0, -1.0]]], "tokens": [[7, 5]]}
WIDE = {
    "top_ids": [[np.arange(1 << 15)] * 2], "top_log_q": [[np.zeros(1 << 15)] * 2], "tokens": [[7, 5]], "complete": True,
}  # fmt: skip
BAD = {
    "top_ids: found shape": {"top_ids": [[7, 8]]},
    "top_ids: found dtype": {"top_ids": [[[7.5, 8], [5, 6]]]},
    "top_log_q: found shape": {"top_log_q": [[[-1.0], [-1.0]]]},
    "tokens: found shape": {"tokens": [[7]]},
    "tokens: found dtype": {"tokens": [[7.0, 5.0]]},
    "tokens: found -2 to 5": {"tokens": [[-2, 5]]},
    "tokens: start 0, depth 2: found 5 after the end": {"tokens": [[-1, 5]]},
    "top_log_q: start 0, depth 2, entry 1: found -0.5 for token 6; allowed: at most -1.0": {
        "top_log_q": [[[-1.0, -2.0], [-1.0, -0.5]]]
    },
    "depth 1, entry 0: found 0.5 .*allowed: at most 0": {"top_log_q": [[[0.5, -2.0], [-1.0, -1.0]]]},
    "depth 2, entry 0: found nan": {"top_log_q": [[[-1.0, -2.0], [np.nan, np.nan]]]},
    "depth 1, entry 1: found nan": {"top_log_q": [[[-1.0, np.nan], [-1.0, -1.0]]]},
    "depth 1, entry 1: found -2.0 for token -1.*-inf where the id is -1": {"top_ids": [[[7, -1], [5, 6]]]},
    "max_budget: found -1": {"max_budget": -1},
    "max_budget: found 2.0": {"max_budget": 2.0},
    "max_budget: found 2147483647": {"max_budget": 2**31 - 1},
    "builder: found 'best'; allowed: a Builder, best-first, chain": {"builder": "best"},
    "builder: found 3": {"builder": 3},
    "builder: found .'chain'.": {"builder": ["chain"]},
    "beam: found 268435456; allowed: at most": {"builder": Eagle2(1 << 28, depth=1), **WIDE},
    "builder 'sequoia': needs acceptance, depth; pass Sequoia": {"builder": "sequoia"},
    "beam: found 10; allowed: at most the 2 tokens": {"builder": "eagle2"},
    "width: found 7; allowed: at most the 2 tokens": {"builder": "all-children"},
    "depth: found 2; allowed: at most 1, as 2 depths have lists": {"builder": Eagle2(beam=2, depth=2)},
    "threads: found 0": {"threads": 0},
}


@pytest.mark.parametrize("message", BAD)
def test_refusals_invariant(message):
    arguments = {**GOOD, "max_budget": 4, **BAD[message]}
    with pytest.raises(ValueError, match=message):
        tree_ranks(**arguments)


def test_values_a_little_above_zero_against_closed_form():
    """What rounding leaves above 0 counts as 0: a child of probability 1 is worth what its parent is."""
    ranks = tree_ranks([[[7], [5]]], [[[1e-7], [1e-7]]], [[7, 5]], max_budget=3)
    np.testing.assert_array_equal(ranks.rank, [[1, 2]])


@pytest.mark.parametrize(
    ("message", "arguments"),
    {
        "rank: found shape": {"rank": np.ones(3, int)},
        "rank: start 0, depth 1: found 0; allowed: 1": {"rank": [[0, 2]]},
        "rank: start 1, depth 2: found 3; allowed: 5": {"rank": [[1, 2], [4, 3]]},
        "rank: start 0, depth 2: found 4; allowed: 2147483647": {"rank": [[ABSENT, 4]]},
        "min_budget: found -1": {"min_budget": -1},
        "max_budget: found 1; allowed: an integer >= 2": {"max_budget": 1, "min_budget": 2},
        r"exact_to: found shape \(2,\)": {"exact_to": [1, 2]},
        "exact_to: start 0: found 5; allowed: 0 to max_budget, 4": {"exact_to": [5]},
        "nodes: start 0: found -1": {"nodes": [-1]},
        "max_budget: found 2147483647; allowed: 0 to 2147483646": {"max_budget": ABSENT},
        "max_budget: found 8589934592": {"max_budget": 2**33},
        r"gaps: found shape \(2, 1\); allowed: \(1, H\)": {"gaps": [[1], [2]]},
        "gaps: start 0, depth 2: found 1": {"gaps": [[1, 1]]},
    }.items(),
)
def test_tree_ranks_refusals_invariant(message, arguments):
    with pytest.raises(ValueError, match=message):
        TreeRanks(**{"rank": [[1, 2]], "max_budget": 4, **arguments})


@pytest.mark.parametrize("budget", [-1, 5, 2.0, [1, 2, 3], [[1]], True])
def test_budgets_refused_invariant(budget):
    ranks = TreeRanks([[1, 2], [2, 3]], max_budget=4)
    with pytest.raises(RequestError, match=r"budget: .*found .*allowed: "):
        ranks.accepted(budget)
    with pytest.raises(RequestError, match="budget: start 1: found 1; allowed: 2 to 4"):
        TreeRanks([[1, 2], [2, 3]], max_budget=4, min_budget=2).accepted([2, 1])
