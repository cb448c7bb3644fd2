"""Speed of draft trees: the order of all budgets up to 1024 of a start, and Sequoia's programme.

``pytest tests/benchmarks/test_trees.py -s`` prints the figures; noisy Zipf lists of 15 depths, about as peaked as those
of a block drafter: the chain of first tokens is worth 3, the best 256 nodes 6.
"""

import heapq
import time
from pathlib import Path

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.drafting import BestFirst, Sequoia, tree_ranks
from markov_spec.drafting.inputs import Lists
from markov_spec.latency import Affine
from tests.benchmarks.test_engine import ratio, tell

DEPTHS, LISTED, BUDGET = 15, 256, 1024
DEMO = Path(__file__).parents[2] / "data/demo"


def peaked(rng, starts):
    """Lists of ``starts`` starts and the rollout's tokens, drawn from them."""
    shape = (starts, DEPTHS, LISTED)
    slope = rng.normal(3.2, 0.9, (starts, DEPTHS, 1)) - 0.05 * np.arange(DEPTHS)[:, None]
    weights = -np.maximum(slope, 1.05) * np.log(np.arange(1, LISTED + 1)) + rng.normal(0, 0.5, shape)
    log_q = -np.sort(-weights, axis=-1)
    log_q -= log_q[..., :1]
    log_q -= np.log(np.exp(log_q).sum(axis=-1, keepdims=True) / 0.98)
    ids = np.argsort(rng.random(shape, dtype=np.float32), axis=-1).astype(np.int32)
    places = (np.cumsum(np.exp(log_q), axis=-1) < rng.random((starts, DEPTHS, 1))).sum(axis=-1)
    listed = np.take_along_axis(ids, np.minimum(places, LISTED - 1)[..., None], axis=-1)[..., 0]
    return ids, log_q.astype(np.float32), np.where(places < LISTED, listed, LISTED).astype(np.int32)


@pytest.fixture(scope="module")
def data():
    return peaked(np.random.default_rng(0), 2000)


def least(run, rounds=9):
    """Least seconds of a run, after one that compiles."""
    run()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def heap_walk(ids, log_q, tokens, budget):
    """Build the tree of one start by a heap, as lists of tokens and parents, and follow the rollout through it."""
    names, rows = ids.tolist(), log_q.tolist()
    heap, words, parents, depths = [(-rows[0][0], (0,), -1, rows[0][0])], [], [], []
    while heap and len(words) < budget:
        _, path, parent, value = heapq.heappop(heap)
        node, depth, place = len(words), len(path), path[-1]
        words.append(names[depth - 1][place])
        parents.append(parent)
        depths.append(depth)
        if place + 1 < len(rows[0]):
            sibling = value - rows[depth - 1][place] + rows[depth - 1][place + 1]
            heapq.heappush(heap, (-sibling, (*path[:-1], place + 1), parent, sibling))
        if depth < len(rows):
            child = value + rows[depth][0]
            heapq.heappush(heap, (-child, (*path, 0), node, child))
    children = {pair: i for i, pair in enumerate(zip(parents, words, strict=True))}
    node, accepted = -1, 0
    for token in tokens.tolist():
        if (node, token) not in children:
            break
        node, accepted = children[node, token], accepted + 1
    return accepted


def test_ranks_of_a_start(data):
    """From checked arrays to ranks, and the ranks alone."""
    whole = least(lambda: tree_ranks(*data, max_budget=BUDGET, threads=1))
    read = Lists.read(*data, complete=False, threads=1)
    alone = least(lambda: BestFirst().ranks(read, BUDGET))
    tell("all budgets up to 1024, microseconds a start", whole / len(data[0]) * 1e6)
    tell("the ranks alone", alone / len(data[0]) * 1e6)


def test_ranks_against_heap(data):
    """One budget of 256, a tree built and walked for each start."""
    ids, log_q, tokens = (part[:300] for part in data)
    read = Lists.read(ids, log_q, tokens, complete=False, threads=1)
    wanted = BestFirst().ranks(read, 256).accepted(256)
    assert [heap_walk(*one, 256) for one in zip(ids, log_q, tokens, strict=True)] == wanted.tolist()
    found = ratio(
        lambda: [heap_walk(*one, 256) for one in zip(ids, log_q, tokens, strict=True)],
        lambda: BestFirst().ranks(read, 256),
        rounds=4,
    )
    tell("a heap in Python, budget 256 / ranks up to 256", found)


def test_one_million_starts(data):
    """Streamed 2000 at a time."""
    begin = time.perf_counter()
    for _ in range(500):
        tree_ranks(*data, max_budget=BUDGET)
    tell("one million starts, seconds", time.perf_counter() - begin)


def test_builders(data):
    for builder in ("chain", "all-children", "eagle2"):
        seconds = least(lambda builder=builder: tree_ranks(*data, max_budget=BUDGET, builder=builder, threads=1), 3)
        tell(f"{builder}, microseconds a start", seconds / len(data[0]) * 1e6)


def test_sequoia():
    acceptance = 0.7 * 0.5 ** np.arange(32) / np.sum(0.5 ** np.arange(32))
    seconds = least(lambda: Sequoia(acceptance, depth=9).order(511))
    tell("Sequoia, 512 nodes, 10 levels, 32 branches, milliseconds", seconds * 1e3)


def test_curve_of_the_demo():
    """Eleven budgets of the demo store's block drafter, from an open store to the frame."""
    store = ms.open_store(DEMO)
    budgets = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    seconds = least(lambda: ms.budget_curve(store, "block", budgets=budgets, price=Affine(1.0, per_draft=0.001)), 5)
    again = least(lambda: [ms.evaluate(store, f"block:tree=best-first,budget={n}") for n in budgets], 3)
    tell("curve of data/demo over 11 budgets, seconds", seconds)
    tell("an evaluation for each budget / the curve", again / seconds)
