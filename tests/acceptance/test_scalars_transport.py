"""Optimal transport and children without replacement, against linear programs and listed drafts."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from markov_spec.acceptance import scalars, transport
from tests import oracles

RNG = np.random.default_rng(3)
EDGES = [
    ([0.5, 0.5], [0.5, 0.5]), ([1.0, 0.0], [0.0, 1.0]), ([0.4, 0.6], [1.0, 0.0]), ([0.5, 0.25, 0.25], [0.5, 0.5, 0.0]),
    ([0.5, 0.5, 0.0], [0.0, 0.0, 1.0]), ([0.25, 0.25, 0.25, 0.25], [0.5, 0.25, 0.25, 0.0]),
    ([0.2, 0.3, 0.5], [0.5, 0.3, 0.2]), ([0.6, 0.2, 0.2], [0.1, 0.45, 0.45]),
]  # fmt: skip
PAIRS = [(np.array(p), np.array(q)) for p, q in EDGES]
PAIRS += [tuple(RNG.dirichlet(np.full(v, a), size=2)) for v in (2, 3, 4) for a in (0.2, 1, 5) for _ in range(3)]


def _optimal_couplings(p, q, m, x):
    """Largest acceptance, and the least and most at ``x`` among the couplings that reach it, by linear programs."""
    drafts = list(itertools.product(range(p.size), repeat=m))
    edges = [(i, v) for i, tokens in enumerate(drafts) for v in sorted(set(tokens))]
    taken = np.zeros((len(drafts) + p.size, len(edges)))
    for column, (i, v) in enumerate(edges):
        taken[i, column] = taken[len(drafts) + v, column] = 1
    limits = np.concatenate([[np.prod(q[list(tokens)]) for tokens in drafts], p])
    own = np.array([v == x for _, v in edges], float)
    found = []
    for tilt in (-0.01, 0.01):  # too little to give up acceptance for
        exact = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
        flow = linprog(-(1 + tilt * own), A_ub=taken, b_ub=limits, options=exact).x
        found.append((flow.sum(), own @ flow))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-12)
    return found[0][0], found[0][1], found[1][1]


@pytest.mark.parametrize("m", [1, 2, 3])
def test_transport_and_both_ends_are_attained_against_enumeration(m):
    spread = []
    for p, q in PAIRS:
        alpha, low, high = transport.transport_bounds(p, q, np.arange(p.size), m)
        for x in range(p.size):
            wanted = _optimal_couplings(p, q, m, x)
            np.testing.assert_allclose([alpha[x], low[x] * p[x], high[x] * p[x]], wanted, atol=1e-12)
            spread.append(high[x] - low[x])
    assert (max(spread) > 0.1) == (m > 1)


@pytest.mark.parametrize("m", [2, 3, 4])
def test_transport_over_every_subset_against_enumeration(m):
    for p, q in PAIRS:
        subsets = [np.array(h, dtype=bool) for h in itertools.product([0, 1], repeat=p.size)]
        least = min(p[h].sum() + 1 - q[h].sum() ** m for h in subsets)
        alpha, low, _ = transport.transport_bounds(p, q, np.arange(p.size), m)
        np.testing.assert_allclose(alpha, least, atol=1e-14)
        for x in np.flatnonzero(p):
            inner = min(p[h].sum() - p[x] + 1 - q[h].sum() ** m for h in subsets if h[x])
            np.testing.assert_allclose(low[x] * p[x], least - inner, atol=1e-14)


def test_one_draft_is_rejection_and_rules_stay_below_transport_invariant():
    for p, q in PAIRS:
        alpha, low, high = transport.transport_bounds(p, q, np.arange(p.size), 1)
        np.testing.assert_allclose(alpha, scalars.overlap(p, q), atol=1e-15)
        wanted = np.where(q > 0, np.minimum(1, np.divide(q, p, out=np.ones(p.size), where=p > 0)), 0)
        np.testing.assert_allclose(low, wanted, rtol=1e-12)
        np.testing.assert_allclose(high, wanted, rtol=1e-12)
        for m in (2, 4, 8):
            alpha, low, high = transport.transport_bounds(p, q, np.arange(p.size), m)
            assert (low <= high).all() and (low >= 0).all() and (high <= 1).all()
            for scale in (scalars.recursive_scale(p, q, m), scalars.k_seq_scale(p, q, m)):
                accepted = np.minimum(p, scale * q).sum()
                assert (accepted <= alpha + 1e-12).all()


def test_rare_tokens_keep_their_bounds_against_closed_form():
    p, q = np.array([1e-18, 0.3, 0.7]), np.array([1e-20, 0.6, 0.4])
    _, low, high = transport.transport_bounds(p, q, 0, 2)
    np.testing.assert_allclose([low, high], [2 * 0.6 * 1e-2, 2e-2], rtol=1e-12)


def _children_drawn_beforehand(p, q, k):
    """Mass accepted and mass drawn at last, of each token, all ordered draws of children listed."""
    accepted, last = np.zeros(p.size), np.zeros(p.size)
    support = np.flatnonzero(q)
    for children in itertools.permutations(support, min(k, support.size)):
        left, free = 1.0, 1.0
        for c in children:
            left *= q[c] / free
            free = sum(q[v] for v in support if v not in children[: children.index(c) + 1])
        residual, draft = p, q
        for c in children:
            passed = min(1.0, residual[c] / draft[c])
            accepted[c] += left * passed
            left *= 1 - passed
            rest = np.maximum(residual - draft, 0)
            if not rest.any():  # then the test passed, but for rounding
                left = 0.0
                break
            residual, draft = rest / rest.sum(), np.where(np.arange(p.size) == c, 0, draft)
            draft = draft / draft.sum() if draft.any() else draft
        last += left * residual
    return accepted, last


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_without_replacement_loses_nothing_against_enumeration(k):
    for p, q in PAIRS:
        accepted, last = _children_drawn_beforehand(p, q, k)
        np.testing.assert_allclose(accepted + last, p, atol=1e-12)
        given_token = np.divide(accepted, p, out=np.zeros(p.size), where=p > 0)
        np.testing.assert_allclose(oracles.acceptance_of_each_token("recorded", p, q, k), given_token, atol=1e-12)


@pytest.mark.parametrize("k", [1, 2])
def test_without_replacement_of_two_against_enumeration(k):
    for p, q in PAIRS:
        accepted, _ = _children_drawn_beforehand(p, q, k)
        found = transport.without_replacement(p, q, np.arange(p.size), k)
        np.testing.assert_allclose(found * p, accepted, atol=1e-14)
        np.testing.assert_array_equal(found[p == 0], (q > 0)[p == 0])


class Prescribed(np.random.Generator):
    """Gives the uniforms it was made with."""

    def __init__(self, uniforms):
        super().__init__(np.random.PCG64())
        self.uniforms = uniforms

    def random(self, size):
        return self.uniforms.reshape(size)


def test_estimate_of_three_summed_over_its_draws_against_enumeration():
    for p, q in PAIRS:
        rejected = np.cumsum(np.maximum(q - p, 0))
        if rejected[-1] == 0:
            continue
        ends = np.concatenate([[0], rejected / rejected[-1]])
        middles, chances = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
        tokens = np.broadcast_to(np.arange(p.size)[:, None], (p.size, p.size))
        uniforms = np.broadcast_to(middles, tokens.shape)
        found = transport.without_replacement(p, q, tokens, 3, rng=Prescribed(uniforms.copy()), samples=1)
        accepted, _ = _children_drawn_beforehand(p, q, 3)
        np.testing.assert_allclose((found @ chances) * p, accepted, atol=1e-13)


def test_a_uniform_of_zero_rejects_a_child_that_can_be_rejected_against_closed_form():
    p, q = np.array([0.3, 0.2, 0.5]), np.array([0.2, 0.6, 0.2])  # the second alone
    found = [
        transport.without_replacement(p, q, [0, 2], 3, rng=Prescribed(np.full(2, uniform)), samples=1)
        for uniform in (0.0, 0.5, 1 - 2**-53)
    ]
    assert (found[0] == found[1]).all() and (found[1] == found[2]).all()


@pytest.mark.parametrize("k", [3, 4])
def test_estimate_has_no_bias_against_enumeration(k):
    runs = 4000
    for p, q in PAIRS[3::3]:
        accepted, _ = _children_drawn_beforehand(p, q, k)
        tokens = np.flatnonzero(p)
        x = np.broadcast_to(tokens, (runs, tokens.size))
        found = transport.without_replacement(p, q, x, k, rng=np.random.default_rng(k), samples=2)
        error = found.std(axis=0) / np.sqrt(runs)
        wanted = accepted[tokens] / p[tokens]
        assert (np.abs(found.mean(axis=0) - wanted) <= 4.5 * error + 1e-12).all()


def test_more_samples_and_the_seed_invariant():
    p, q = RNG.dirichlet(np.ones(12), size=(2, 300))
    x = np.argmax(p - q, axis=-1)

    def estimate(seed, samples):
        return transport.without_replacement(p, q, x, 4, rng=np.random.default_rng(seed), samples=samples)

    assert (estimate(0, 2) == estimate(0, 2)).all()
    few, many = ((estimate(0, n) - estimate(1, n)).std() for n in (1, 25))
    assert few / many == pytest.approx(5, rel=0.25)
    assert (transport.without_replacement(p, q, x, 2) <= 1 + 1e-12).all()


def test_case_88_siblings_without_replacement_against_closed_form():
    p = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(transport.without_replacement(p, p, np.arange(3), 2), 1)


def test_children_run_out_against_closed_form():
    p, q = np.array([0.5, 0.25, 0.25]), np.array([1.0, 0.0, 0.0])
    for k in (1, 2, 5):
        found = transport.without_replacement(p, q, np.arange(3), k, rng=np.random.default_rng(0))
        assert found.tolist() == [1, 0, 0]
    # The second of two children is sure to be drawn, and tested against the residual.
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.75, 0.0, 0.25])
    for k in (2, 3):
        found = transport.without_replacement(p, q, np.arange(3), k, rng=np.random.default_rng(0))
        assert found.tolist() == [1, 0, 1]


FUNCTIONS = {
    "transport_bounds": lambda p, q, x: transport.transport_bounds(p, q, x, 3),
    "without_replacement 2": lambda p, q, x: (transport.without_replacement(p, q, x, 2),),
    "without_replacement 4": lambda p, q, x: (
        transport.without_replacement(p, q, x, 4, rng=np.random.default_rng(5), samples=3),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_gives_what_numpy_does_invariant(name, dtype):
    p = RNG.dirichlet(np.full(9, 0.2), size=(4, 1)).astype(dtype)
    q = RNG.dirichlet(np.full(9, 0.2), size=(4, 3)).astype(dtype)
    x = np.arange(12).reshape(4, 3) % 9
    found, wanted = FUNCTIONS[name](torch.tensor(p), torch.tensor(q), torch.tensor(x)), FUNCTIONS[name](p, q, x)
    for ours, theirs in zip(found, wanted, strict=True):
        assert isinstance(ours, torch.Tensor) and isinstance(theirs, np.ndarray)
        assert ours.dtype == torch.float64 and theirs.dtype == np.float64
        assert theirs.shape == (4, 3)
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: transport.transport_bounds(p, p, 0, 0), "m: found 0; allowed: an integer >= 1"),
        (lambda p: transport.without_replacement(p, p, 0, 0), "k: found 0; allowed: an integer >= 1"),
        (lambda p: transport.without_replacement(p, p, 0, 2, samples=0), "samples: found 0; allowed"),
        (lambda p: transport.without_replacement(p, p, 0, 3), "rng: found NoneType; allowed: .*Generator, as k = 3"),
        (lambda p: transport.without_replacement(p, p[:1], 0, 2), r"p, q: found shapes \(2,\), \(1,\)"),
    ],
)
def test_refused_inputs_invariant(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.array([0.5, 0.5]))
