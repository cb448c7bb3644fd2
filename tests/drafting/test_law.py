"""The round law of a tree against literal decoding, the chain evaluator, and cases from the field."""

import itertools

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.drafting import (
    BestFirst,
    Chain,
    Eagle2,
    Medusa,
    Sequoia,
    Static,
    TreeRanks,
    build_tree,
    next_tokens,
    tree_law,
    tree_ranks,
)
from markov_spec.metrics import draft_acceptance, unconditional_rates
from tests import oracles
from tests.drafting.samples import FAMILY, lists

DEPTHS = 3
RUNS = 25


def drafter_lists(world, prefix):
    """All that the drafter of a world says of the block begun after ``prefix``: ids and log-probabilities, sorted."""
    q = np.array([world.q(prefix, (0,) * d) for d in range(DEPTHS)])
    ids = np.argsort(-q, axis=1, kind="stable")
    with np.errstate(divide="ignore"):
        return ids, np.log(np.take_along_axis(q, ids, axis=1))


def sampled_walk(world, prefix, tree):
    """The target samples at each node and goes to the child that it drew; with none it ends the round."""
    children = {(int(p), int(x)): i for i, (p, x) in enumerate(zip(tree.parents, tree.tokens, strict=True))}
    running = [(1.0, -1, ())]
    while running:
        reached, node, drafts = running.pop()
        for v, p in enumerate(world.p(prefix + drafts)):
            if p > 0 and (node, v) in children:
                running.append((reached * p, children[node, v], (*drafts, v)))
            elif p > 0:
                yield reached * p, len(drafts), (*drafts, v)


def sibling_walk(world, prefix, tree):
    """Each child is tried in turn with draft probability 1, its mass taken out of p after a rejection: EAGLE's loop."""
    running = [(1.0, -1, ())]
    while running:
        reached, node, drafts = running.pop()
        p = np.array(world.p(prefix + drafts))
        for i in np.flatnonzero(tree.parents == node):
            x = int(tree.tokens[i])
            if p[x] > 0:
                running.append((reached * p[x], int(i), (*drafts, x)))
            reached *= 1 - p[x]
            p[x] = 0
            if p.sum() < 1e-12:
                reached = 0.0
                break
            p /= p.sum()
        for v in np.flatnonzero(p):
            if reached > 0:
                yield reached * p[v], len(drafts), (*drafts, int(v))


@pytest.mark.parametrize("walk", [sampled_walk, sibling_walk])
@pytest.mark.parametrize("budgets", [(4, 4, 4, 4), (2, 0, 7, 3)])
def test_expected_rounds_against_enumeration(monkeypatch, walk, budgets):
    """Mean and variance of the rounds given each output; for every builder."""
    for seed, builder in enumerate(FAMILY):
        if isinstance(builder, Sequoia) and len(set(budgets)) > 1:
            continue
        world = oracles.World(seed, 3, "block")

        def play(world, prefix, budget, builder=builder):
            ids, log_q = drafter_lists(world, prefix)
            return walk(world, prefix, build_tree(ids, log_q, budget=budget, builder=builder))

        monkeypatch.setitem(oracles.ROUNDS, "tree", play)
        outputs = oracles.decode(world, "tree", budgets, 4, first_start=0, stop=0)
        assert sum(sum(runs.values()) for runs in outputs.values()) == pytest.approx(1, abs=1e-12)
        indptr = np.cumsum([0, *map(len, outputs)])
        words = next_tokens(np.concatenate(list(outputs)), indptr, DEPTHS)
        starts = [drafter_lists(world, output[:s]) for output in outputs for s in range(len(output))]
        ids, log_q = (np.array(part) for part in zip(*starts, strict=True))
        ranks = tree_ranks(ids, log_q, words, max_budget=max(budgets), builder=builder, complete=True)
        budget = np.concatenate([budgets[: len(output)] for output in outputs])
        rounds = ms.solve(tree_law(ranks, indptr, budget=budget))
        for i, (output, runs) in enumerate(outputs.items()):
            total = sum(runs.values())
            assert total == pytest.approx(oracles.target_probability(world, output), abs=1e-12)
            mean = sum(mass * len(history) for history, mass in runs.items()) / total
            second = sum(mass * len(history) ** 2 for history, mass in runs.items()) / total
            assert rounds.expected[i] == pytest.approx(mean, abs=1e-12)
            assert rounds.variance[i] == pytest.approx(second - mean**2, abs=1e-9)


def test_decoding_against_simulation():
    """Engine-like decoding: trees built as they are needed, the target drawing at random; rounds of each output."""
    rng = np.random.default_rng(5)
    vocabulary, cap, budget = 12, 30, 9
    p = rng.dirichlet(np.full(vocabulary, 0.3), size=(cap,))
    ids, log_q = lists(rng, cap, 4, vocabulary)
    outputs, counted = [], []
    for _ in range(RUNS):
        tokens, count = [], 0
        while len(tokens) < cap:
            tree = build_tree(ids[len(tokens)], log_q[len(tokens)], budget=budget, builder=Eagle2(beam=3))
            node, count = -1, count + 1
            while len(tokens) < cap:
                tokens.append(int(rng.choice(vocabulary, p=p[len(tokens)])))
                children = np.flatnonzero((tree.parents == node) & (tree.tokens == tokens[-1]))
                if not children.size:
                    break
                node = int(children[0])
        outputs.append(tokens)
        counted.append(count)
    words = next_tokens(np.concatenate(outputs), np.arange(0, RUNS * cap + 1, cap), 4)
    ranks = tree_ranks(
        np.tile(ids, (RUNS, 1, 1)), np.tile(log_q, (RUNS, 1, 1)), words, max_budget=budget, builder=Eagle2(3)
    )
    rounds = ms.solve(tree_law(ranks, np.arange(0, RUNS * cap + 1, cap), budget=budget))
    np.testing.assert_array_equal(rounds.expected, counted)
    assert (rounds.variance == 0).all() and len(set(counted)) > 5


def test_case_13_nodes_and_depth_against_closed_form():
    """10 rounds of 15 nodes on 3 depths accept 20: two figures, and one length."""
    accepted = [3, 3, 3, 3, 3, 1, 1, 1, 1, 1]
    rank = np.full((30, 3), 2**31 - 1)
    for s, n in zip(np.cumsum([0, *(n + 1 for n in accepted[:-1])]), accepted, strict=True):
        rank[s, :n] = [1, 2, 15][:n]
    ranks = TreeRanks(rank, max_budget=15)
    rounds = ms.solve(tree_law(ranks, [0, 30], budget=15))
    count = float(rounds.expected[0])
    total = float(rounds.accepted_histogram[0] @ np.arange(4))
    nodes = float(rounds.occupancy @ ranks.drafted(15))
    assert (count, total, 30 / count) == (10, 20, 3.0)
    assert draft_acceptance(total, proposed=nodes) == pytest.approx(20 / 150)
    assert draft_acceptance(total, proposed=count * 3) == pytest.approx(20 / 30)
    assert rounds.drafted[0] == 29  # depths past the end are not counted there: the last round has two left


@pytest.mark.parametrize(
    ("p", "width", "wanted"),
    [((0.5, 0.3, 0.2), 2, 0.8), ((0.5, 0.3, 0.2), 1, 0.5), ((0.51, 0.49), 1, 0.51), ((0.51, 0.49), 2, 1.0)],
)
def test_case_88_fixed_siblings_against_enumeration(p, width, wanted):
    """Acceptance averaged over what the target draws is the mass of the siblings, whatever q says of them."""
    count = len(p)
    ids, log_q = np.tile(np.arange(count), (count, 1, 1)), np.tile(np.log(p), (count, 1, 1))
    ranks = tree_ranks(ids, log_q, np.arange(count)[:, None], max_budget=width)
    assert np.dot(p, ranks.accepted(width)) == pytest.approx(wanted, abs=1e-12)
    world = oracles.World(0, count, "block")
    world._row = lambda key: np.array(p)
    for walk in (sampled_walk, sibling_walk):
        outcomes = walk(world, (), build_tree(ids[0], log_q[0], budget=width))
        assert sum(mass for mass, n, _ in outcomes if n) == pytest.approx(wanted, abs=1e-12)


def test_case_88_sampled_siblings_against_enumeration():
    """Two siblings drawn without replacement from q = p and tested with it: another rule, which accepts always."""
    p = np.array([0.5, 0.3, 0.2])
    decisions = oracles.without_replacement_node(p, p, 2)
    assert sum(mass for mass, accepted, _ in decisions if accepted) == pytest.approx(1)


CHAINS = {
    "chain": Chain(),
    "static": Static([[0], [0, 0], [0, 0, 0]]),
    "medusa": Medusa([[0.9], [0.9], [0.9]]),
    "sequoia": Sequoia([0.9], depth=3),
    "eagle2": Eagle2(beam=1, depth=2),
}


@pytest.mark.parametrize("name", CHAINS)
def test_case_91_chain_against_closed_form(name):
    """A chain is a tree: rounds, lengths and rates by depth of the chain evaluator, in both countings of the start."""
    rng = np.random.default_rng(1)
    indptr = np.array([0, 17, 18, 18, 60])
    ids, log_q = lists(rng, 60, 5, 4)
    tokens = rng.integers(0, 4, 60)
    words = next_tokens(tokens, indptr, 5)
    chain = ms.round_law(None, None, indptr, rule="match", draft_length=3, hit=words == ids[..., 0])
    law = tree_law(tree_ranks(ids, log_q, words, max_budget=3, builder=CHAINS[name]), indptr, budget=3)
    assert law.depth == 3 and law.exactness == "exact"
    for start in (0, 1):
        wanted, found = (ms.solve(one, first_start=start) for one in (chain, law))
        for field in ("expected", "variance", "value", "occupancy", "accepted_histogram", "tested", "drafted"):
            np.testing.assert_allclose(getattr(found, field), getattr(wanted, field), rtol=1e-12, atol=1e-12)
        rates = (unconditional_rates(one.accepted_histogram.sum(axis=0)) for one in (wanted, found))
        np.testing.assert_allclose(*rates, rtol=1e-12)


@pytest.mark.parametrize("length", [0, 1, 3, 5])
def test_chain_of_any_length_against_closed_form(length):
    rng = np.random.default_rng(2)
    ids, log_q = lists(rng, 50, 5, 4)
    words = next_tokens(rng.integers(0, 4, 50), [0, 50], 5)
    chain = ms.round_law(None, None, [0, 50], rule="match", draft_length=length, hit=words == ids[..., 0])
    law = tree_law(tree_ranks(ids, log_q, words, max_budget=9, builder="chain"), [0, 50], budget=length)
    np.testing.assert_array_equal(ms.solve(law).value, ms.solve(chain).value)


def test_case_91_best_tree_no_worse_than_chain_against_enumeration():
    """In accepted drafts that the drafter expects; of one round, not of every rollout."""
    ids, log_q = lists(np.random.default_rng(4), 30, 4, 4)
    for s, n in itertools.product(range(30), range(1, 5)):
        tree, chain = (build_tree(ids[s], log_q[s], budget=n, builder=one) for one in (BestFirst(), Chain()))
        assert np.exp(tree.log_values).sum() >= np.exp(chain.log_values).sum() - 1e-12


def test_case_95_sure_drafter_against_closed_form():
    """Top-1 probability 1 everywhere and right: siblings never matter, and no node of probability 0 is drafted."""
    ids, log_q = [[[7, 8]] * 4] * 20, [[[0.0, -np.inf]] * 4] * 20
    ranks = tree_ranks(ids, log_q, next_tokens([7] * 20, [0, 20], 4), max_budget=16)
    small, large = (ms.solve(tree_law(ranks, [0, 20], budget=n)).expected[0] for n in (4, 16))
    assert small == large == 4
    assert (ranks.drafted(16) == 4).all() and (ranks.exact_to == 16).all()
    wide = tree_ranks(ids, np.log([[[0.999, 0.001]] * 4] * 20), next_tokens([7] * 20, [0, 20], 4), max_budget=16)
    assert ms.solve(tree_law(wide, [0, 20], budget=16)).expected[0] == 4 and (wide.drafted(16) == 16).all()


def test_case_96_wider_or_deeper_against_enumeration():
    for second, wanted, best in ((0.5, ((0,), (0, 0)), 1.05), (0.2, ((0,), (1,)), 0.9)):
        q = np.array([[0.7, 0.2], [second, 0.1]])
        tree = build_tree([[1, 2], [3, 4]], np.log(q), budget=2)
        assert tree.rank_path == wanted
        assert np.exp(tree.log_values).sum() == pytest.approx(best, rel=1e-12)


def test_case_97_lengths_from_one_record_against_closed_form():
    """Drafts exist at every start, so one record gives every K; what was not drafted is refused, not guessed."""
    match = np.array([1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1], bool)
    tokens = np.where(match, 7, 9)
    ids, log_q = np.full((12, 4, 1), 7), np.zeros((12, 4, 1))
    words = next_tokens(tokens, [0, 12], 4)
    ranks = tree_ranks(ids, log_q, words, max_budget=4, builder="chain")
    for K, rounds, begun in ((4, 3, [0, 5, 8]), (2, 5, [0, 3, 5, 8, 11])):
        solved = ms.solve(tree_law(ranks, [0, 12], budget=K))
        assert solved.expected[0] == rounds and np.flatnonzero(solved.occupancy).tolist() == begun
    log_q[np.isin(np.arange(12), [0, 5, 8], invert=True)] = np.nan
    with pytest.raises(ValueError, match="start 1, depth 1, entry 0: found nan"):
        tree_ranks(ids, log_q, words, max_budget=4, builder="chain")


def test_exactness_of_laws_invariant():
    """A law is a bound as soon as one start's budget is above what its ranks are certain of."""
    ranks = TreeRanks([[1, 2], [2, 3]], max_budget=8, exact_to=[8, 5])
    for budget, wanted in ((5, "exact"), (6, "bound"), ([8, 5], "exact"), ([8, 6], "bound")):
        assert tree_law(ranks, [0, 2], budget=budget).exactness == wanted
    assert tree_law(ranks, [0, 2], budget=[0, 8]).draft_length.tolist() == [0, 2]
    assert ms.solve(tree_law(ranks, [0, 2], budget=0)).expected[0] == 2
    with pytest.raises(ValueError, match="indptr: the last rollout"):
        tree_law(ranks, [0, 3], budget=1)


def test_next_tokens_against_closed_form():
    np.testing.assert_array_equal(
        next_tokens([5, 6, 7, 8], [0, 3, 3, 4], 3), [[5, 6, 7], [6, 7, -1], [7, -1, -1], [8, -1, -1]]
    )
    assert next_tokens([], [0], 2).shape == (0, 2)
    with pytest.raises(ValueError, match="depth: found 0"):
        next_tokens([5], [0, 1], 0)
