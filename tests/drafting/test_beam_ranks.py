"""Trees of drafters that depend on the path, against every path of small ones."""

import itertools

import numpy as np
import pytest

from markov_spec.arrays import ABSENT
from markov_spec.drafting import beam_ranks, beam_tree, tree_ranks

D, V = 3, 4


def drafter(rng, *, ties=False, zeros=False):
    """Log-probabilities after every path of up to D - 1 tokens."""
    table = {}
    for depth in range(D):
        for path in itertools.product(range(V), repeat=depth):
            weights = rng.gamma(0.5, size=V) + 1e-6
            log_q = np.log(weights / weights.sum())
            if ties:
                log_q = np.round(2 * log_q) / 2
            if zeros:
                log_q[rng.random(V) < 0.3] = -np.inf
            table[path] = log_q.astype(np.float32)
    return table


def nodes(table):
    """Every path of probability above 0: minus its value, its ranks among its parents' children, its tokens."""
    found, ranks = [], {(): ()}
    values = {(): 0.0}
    for path in (p for depth in range(1, D + 1) for p in itertools.product(range(V), repeat=depth)):
        own = table[path[:-1]]
        order = sorted(range(V), key=lambda v: (-own[v], v))
        if path[:-1] not in values or own[path[-1]] == -np.inf:
            continue
        values[path] = values[path[:-1]] + float(own[path[-1]])
        ranks[path] = (*ranks[path[:-1]], order.index(path[-1]))
        found.append((-values[path], ranks[path], path))
    return sorted(found)


def beam(table, width):
    """The beam's columns, (D, W)."""
    token, parent = np.full((D, width), -1), np.full((D, width), -1)
    log_q, held = np.full((D, width), -np.inf, np.float32), [()]
    every = {path: (cost, ranks) for cost, ranks, path in nodes(table)}
    for d in range(D):
        children = [path for path in every if len(path) == d + 1 and path[:-1] in held]
        kept = sorted(children, key=lambda path: every[path])[:width]
        for w, path in enumerate(kept):
            token[d, w], parent[d, w] = path[-1], held.index(path[:-1]) if d else -1
            log_q[d, w] = table[path[:-1]][path[-1]]
        held = kept
    return token, parent, log_q


@pytest.mark.parametrize("width", [1, 2, 5, 9, 16, 65])
@pytest.mark.parametrize("options", [{}, {"ties": True}, {"zeros": True}, {"ties": True, "zeros": True}])
def test_ranks_against_enumeration(width, options):
    rng = np.random.default_rng(width)
    certain = 0
    for _ in range(30):
        table = drafter(rng, **options)
        order = [path for _, _, path in nodes(table)]
        columns, cap = beam(table, width), len(order) + 3
        for _ in range(4):
            words = rng.integers(0, V, D)
            words[rng.integers(1, D + 1) :] = -1
            ranks = beam_ranks(*(c[None] for c in columns), words[None], max_budget=cap)
            prefixes = [tuple(words[: k + 1].tolist()) for k in range(D)]
            true = [order.index(p) + 1 if p in order else ABSENT for p in prefixes]
            sure = int(ranks.exact_to[0])
            certain += sure
            for n in range(min(sure, cap) + 1):
                assert ranks.accepted(n)[0] == sum(rank <= n for rank in true), (n, true, ranks.rank, sure)
            assert sure >= min(width, cap)
            if width > V**D:
                assert sure == cap and ranks.nodes[0] == len(order)
    assert certain > 0


@pytest.mark.parametrize("width", [2, 9, 65])
def test_depths_that_are_not_recorded_against_enumeration(width):
    rng = np.random.default_rng(width)
    certain = 0
    for _ in range(60):
        table = drafter(rng, ties=bool(rng.integers(2)))
        order = [path for _, _, path in nodes(table)]
        token, parent, log_q = beam(table, width)
        known = int(rng.integers(0, D))
        token[known:], parent[known:], log_q[known:] = -1, -1, np.nan
        words = rng.integers(0, V, D)
        words[known:] = -1
        ranks = beam_ranks(token[None], parent[None], log_q[None], words[None], max_budget=30)
        prefixes = [tuple(words[: k + 1].tolist()) for k in range(known)]
        true = [order.index(p) + 1 if p in order else ABSENT for p in prefixes]
        certain += int(ranks.exact_to[0])
        assert ranks.exact_to[0] <= (token[:known] >= 0).sum()
        for n in range(int(ranks.exact_to[0]) + 1):
            assert ranks.accepted(n)[0] == sum(rank <= n for rank in true)
            assert ranks.drafted(n)[0] == min(n, len(order))
    assert certain > 60


def test_first_path_past_the_end_against_closed_form():
    """Nothing below precedes the best path of a depth; below it something may precede the second one."""
    token, log_q = [[[0, 1], [-1, -1]]] * 2, [[np.log([0.9, 0.1]), [np.nan, np.nan]]] * 2
    ranks = beam_ranks(token, np.full((2, 2, 2), -1), log_q, [[0, -1], [1, -1]], max_budget=4)
    assert ranks.rank.tolist() == [[1, ABSENT], [2, ABSENT]] and ranks.exact_to.tolist() == [2, 1]


@pytest.mark.parametrize("width", [3, 8])
def test_trees_against_enumeration(width):
    rng = np.random.default_rng(width)
    for _ in range(20):
        table = drafter(rng, ties=bool(rng.integers(2)))
        order = nodes(table)
        for n in range(width + 1):
            tree = beam_tree(*beam(table, width), budget=n)
            assert list(tree.rank_path) == [ranks for _, ranks, _ in order[:n]]
            assert np.allclose(tree.log_values, [-cost for cost, _, _ in order[:n]])
            words = rng.integers(0, V, D)
            ranks = beam_ranks(*(c[None] for c in beam(table, width)), words[None], max_budget=width)
            assert tree.accepted(words) == ranks.accepted(n)[0]


def test_drafter_without_paths_is_best_first_on_lists_against_reference():
    rng = np.random.default_rng(0)
    rows = [np.log(rng.dirichlet(np.ones(V))).astype(np.float32) for _ in range(D)]
    table = {path: rows[len(path)] for d in range(D) for path in itertools.product(range(V), repeat=d)}
    columns = [c[None] for c in beam(table, V**D)]
    ids = np.array([np.argsort(-row, kind="stable") for row in rows])
    log_q = np.take_along_axis(np.array(rows), ids, axis=1)
    for words in itertools.product(range(V), repeat=D):
        expected = tree_ranks(ids[None], log_q[None], [words], max_budget=90, complete=True)
        found = beam_ranks(*columns, [words], max_budget=90)
        assert (found.rank == expected.rank).all()
        known = sum(words) % D  # what is missing past an end leaves as much open
        ended = np.where(np.arange(D) < known, words, -1)[None]
        lists = log_q[None].astype(np.float64)
        lists[:, known:] = np.nan
        beams = [np.pad(column.astype(float), ((0, 0), (0, 0), (0, 1)), constant_values=-1) for column in columns]
        beams[2][..., -1] = -np.inf
        beams[0][:, known:], beams[1][:, known:], beams[2][:, known:] = -1, -1, np.nan
        expected = tree_ranks(ids[None], lists, ended, max_budget=90, complete=True)
        found = beam_ranks(*(beam.astype(int) for beam in beams[:2]), beams[2], ended, max_budget=90)
        for name in ("rank", "exact_to", "nodes"):
            assert (getattr(found, name) == getattr(expected, name)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("token", (0, 1, 0), -1), "start 0, depth 2, path 1"),
        (("parent", (0, 0, 0), 0), "start 0, depth 1, path 1: found token"),
        (("parent", (0, 1, 1), 7), "parent 7"),
        (("log_q", (0, 0, 1), 0.5), "log_q 0.5"),
        (("log_q", (0, 2, 0), -np.inf), "log_q -inf"),
        (("log_q", (0, 0, 0), -30.0), "depth 1, path 2"),
    ],
)
def test_wrong_beams_are_refused_invariant(change, message):
    given = dict(
        zip(("token", "parent", "log_q"), (c[None] for c in beam(drafter(np.random.default_rng(1)), 4)), strict=True)
    )
    name, at, value = change
    given[name][at] = value
    with pytest.raises(ValueError, match=message):
        beam_ranks(*given.values(), [[0, 0, 0]], max_budget=4)
    with pytest.raises(ValueError, match="found shape"):
        beam_ranks(given["token"][0], given["parent"], given["log_q"], [[0, 0, 0]], max_budget=4)
    with pytest.raises(ValueError, match="tokens: found shape"):
        beam_ranks(*given.values(), [[0, 0]], max_budget=4)
    big = 1 << 32  # would wrap to what is right
    for name in ("token", "parent"):
        with pytest.raises(ValueError, match=f"{name}: found .*allowed: -1 to {ABSENT}"):
            beam_ranks(*{**given, name: given[name].astype(np.int64) + big}.values(), [[0, 0, 0]], max_budget=4)
    with pytest.raises(ValueError, match="tokens: found"):
        beam_ranks(*given.values(), [[big, big, big]], max_budget=4)
    for most in (ABSENT, big):
        with pytest.raises(ValueError, match=f"max_budget: found {most}; allowed: 0 to {ABSENT - 1}"):
            beam_ranks(*given.values(), [[0, 0, 0]], max_budget=most)
