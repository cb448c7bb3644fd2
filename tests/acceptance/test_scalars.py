"""Scalars of full distributions, on numpy and torch."""

import decimal

import numpy as np
import pytest
import torch

import markov_spec as ms
from markov_spec.acceptance import scalars
from tests import oracles

RNG = np.random.default_rng(0)
EDGES = [
    ([0.5, 0.5], [0.5, 0.5]), ([1.0, 0.0], [1.0, 0.0]), ([1.0, 0.0], [0.0, 1.0]), ([0.4, 0.6], [1.0, 0.0]),
    ([0.5, 0.5, 0.0], [0.0, 0.0, 1.0]), ([0.5, 0.25, 0.25], [0.5, 0.5, 0.0]),
]  # fmt: skip
RANDOM = [tuple(RNG.dirichlet(np.full(v, a), size=2)) for v in (2, 3, 7) for a in (0.05, 0.3, 1, 10) for _ in range(4)]


def _exact(distribution):
    """Round to multiples of 2^-50, so that the sum is 1 without an error."""
    counts = np.round(np.array(distribution) * 2**50).astype(np.int64)
    counts[np.argmax(counts)] += 2**50 - counts.sum()
    return counts / 2**50


PAIRS = [(_exact(p), _exact(q)) for p, q in EDGES + RANDOM]
FUNCTIONS = {
    "overlap": scalars.overlap,
    "coupling": lambda p, q: scalars.coupling(p, q, np.arange(12).reshape(4, 3) % p.shape[-1]),
    "recursive_scale": lambda p, q: scalars.recursive_scale(p, q, 4),
    "k_seq_scale": lambda p, q: scalars.k_seq_scale(p, q, 4),
    "stop_aware_cost": lambda p, q: scalars.stop_aware_cost(p, q, [1, 4]),
    "kl": scalars.kl,
    "kl of logs": lambda p, q: scalars.kl(-30 * p, -300 * q, log=True),
    "entropy": lambda p, q: scalars.entropy(p * q),
    "varentropy of logs": lambda p, q: scalars.varentropy(-30 * p * q, log=True),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_against_numpy(name, dtype):
    p = RNG.dirichlet(np.full(9, 0.2), size=(4, 1)).astype(dtype)
    q = RNG.dirichlet(np.full(9, 0.2), size=(4, 3)).astype(dtype)
    given = torch.tensor(p), torch.tensor(q)
    found, wanted = FUNCTIONS[name](*given), FUNCTIONS[name](p, q)
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float64
    assert isinstance(wanted, np.ndarray)
    assert wanted.dtype == np.float64
    assert wanted.shape == (4, 3)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_scales_against_enumeration(m):
    for p, q in PAIRS[:30]:
        for rule, scale in (
            ("node-recursive", scalars.recursive_scale(p, q, m)),
            ("node-k-seq", scalars.k_seq_scale(p, q, m)),
        ):
            if rule == "node-k-seq" and m == 1:
                continue
            ratio = np.divide(q, p, out=np.zeros(p.size), where=p > 0)
            wanted = oracles.acceptance_of_each_token(rule, p, q, m)
            np.testing.assert_allclose(np.minimum(1, scale * ratio), wanted, rtol=1e-9, atol=1e-12)


def _k_seq_scale_of_60_digits(p, q, m):
    decimal.getcontext().prec = 60
    p, q = ([decimal.Decimal(v) for v in w.tolist()] for w in (p, q))
    low, high = decimal.Decimal(1), decimal.Decimal(m)
    for _ in range(80):
        rho = (low + high) / 2
        left = sum(max(b - a / rho, 0) for a, b in zip(p, q, strict=True)) ** m
        right = sum(max(a - rho * b, 0) for a, b in zip(p, q, strict=True))
        low, high = (rho, high) if left < right else (low, rho)
    return float(low)


@pytest.mark.parametrize("m", [2, 3, 8, 64])
def test_k_seq_scale_against_bisection(m):
    found = [scalars.k_seq_scale(p, q, m) for p, q in PAIRS]
    wanted = [_k_seq_scale_of_60_digits(p, q, m) if np.minimum(p, q).any() else 0 for p, q in PAIRS]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    for size in (2, 3, 7):
        same = [i for i, (p, _) in enumerate(PAIRS) if p.size == size]
        p, q = (np.array([PAIRS[i][j] for i in same]) for j in (0, 1))
        np.testing.assert_allclose(scalars.k_seq_scale(p, q, m), np.array(wanted)[same], rtol=1e-12)


def test_k_seq_scale_of_many_nodes_takes_few_steps_invariant(monkeypatch):
    p, q = RNG.dirichlet(np.full(9, 0.3), size=(2, 3000))
    steps, gap = [], scalars._k_seq_gap
    monkeypatch.setattr(scalars, "_k_seq_gap", lambda *arguments: (steps.append(1), gap(*arguments))[1])
    scalars.k_seq_scale(p, q, 4)
    assert len(steps) <= 20


def test_scales_bounds_invariant():
    for p, q in PAIRS:
        c = np.array([scalars.recursive_scale(p, q, m) for m in range(1, 9)])
        rho = np.array([scalars.k_seq_scale(p, q, m) for m in range(1, 9)])
        assert c[0] == 1
        assert rho[0] == (1 if np.minimum(p, q).any() else 0)
        for scale in (c, rho):
            assert (scale <= np.arange(1, 9)).all()
            assert (np.diff(scale) >= -1e-12).all()
        assert (np.diff(np.diff(c)) <= 1e-12).all()


def test_equal_distributions_against_closed_form():
    p = RNG.dirichlet(np.ones(50), size=5)
    for m in (1, 2, 8):
        assert (scalars.recursive_scale(p, p, m) == 1).all()
        assert (scalars.k_seq_scale(p, p, m) == 1).all()
    np.testing.assert_allclose(scalars.overlap(p, p), 1, rtol=1e-15)
    np.testing.assert_allclose(scalars.coupling(p, p, np.arange(5)), 1, rtol=1e-15)
    assert (scalars.stop_aware_cost(p, p, [3]) == 0).all()


def test_coupling_against_simulation():
    rng = np.random.default_rng(1)
    for p, q in PAIRS[::4]:
        times = rng.exponential(size=(100_000, p.size))
        with np.errstate(divide="ignore"):
            target, drafter = np.argmin(times / p, axis=1), np.argmin(times / q, axis=1)
        for x in range(p.size):
            drawn = np.sum(target == x)
            accepted = np.sum(drafter[target == x] == x)
            a = scalars.coupling(p, q, x)
            assert abs(accepted - a * drawn) <= 4.5 * np.sqrt(max(a * (1 - a), 0) * drawn) + 1e-9


def test_small_probabilities_do_not_underflow_against_closed_form():
    p, q = np.array([1e-200, 1.0]), np.array([1e-180, 1.0])
    np.testing.assert_allclose(scalars.coupling(p, q, 0), 1, rtol=1e-14)
    np.testing.assert_allclose(scalars.coupling(q, p, 0), 1e-20, rtol=1e-14)


def test_sums_against_loops():
    for p, q in PAIRS:
        np.testing.assert_allclose(scalars.overlap(p, q), sum(map(min, p, q)), rtol=1e-14)
        for stops in ([], [0], [1, 0], list(range(p.size))):
            ordinary = [v for v in range(p.size) if v not in stops]
            ends, cost = sum(p[v] for v in ordinary), sum(max(p[v] - q[v], 0) for v in ordinary)
            found = scalars.stop_aware_cost(p, q, stops)
            np.testing.assert_allclose(found, cost / ends if ends > 0 else 0, rtol=1e-14)


def _digits(values):
    decimal.getcontext().prec = 60
    return [decimal.Decimal(v) for v in np.ravel(values).tolist()]


def _kl_of_60_digits(p, q):
    """Divergence less what the sums differ from each other."""
    p, q = _digits(p), _digits(q)
    if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return np.inf
    return float(sum(a * (a / b).ln() if a else 0 for a, b in zip(p, q, strict=True)) - sum(p) + sum(q))


def _surprise_of_60_digits(p):
    p = [v for v in _digits(p) if v]
    mean = sum(-v * v.ln() for v in p)
    return float(mean), float(sum(v * (-v.ln() - mean) ** 2 for v in p))


def test_divergence_and_entropies_of_60_digits_against_reference():
    for p, q in PAIRS:
        for a, b in ((p, q), (q, p)):
            np.testing.assert_allclose(scalars.kl(a, b), _kl_of_60_digits(a, b), rtol=1e-12)
        found = scalars.entropy(p), scalars.varentropy(p)
        np.testing.assert_allclose(found, _surprise_of_60_digits(p), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("distance", [1e-1, 1e-2, 3e-3, 1e-4, 1e-8, 1e-12])
def test_divergence_of_close_distributions_of_60_digits_against_reference(distance):
    p = RNG.dirichlet(np.ones(40), size=6)
    q = p * (1 + distance * RNG.uniform(-1, 1, p.shape))
    q /= q.sum(-1, keepdims=True)
    wanted = [_kl_of_60_digits(a, b) for a, b in zip(p, q, strict=True)]
    np.testing.assert_allclose(scalars.kl(p, q), wanted, rtol=1e-12)
    assert (scalars.kl(p, p) == 0).all()


def test_zeros_and_certainty_against_closed_form():
    one, half = np.array([1.0, 0.0, 0.0]), np.array([0.5, 0.5, 0.0])
    for log in (False, True):
        with np.errstate(divide="ignore"):
            sure, even = (np.log(one), np.log(half)) if log else (one, half)
        assert scalars.kl(sure, even, log=log) == pytest.approx(np.log(2), rel=1e-15)
        assert scalars.kl(even, sure, log=log) == np.inf
        assert scalars.kl(sure, sure, log=log) == 0
        assert scalars.entropy(sure, log=log) == 0 and not np.signbit(scalars.entropy(sure, log=log))
        assert scalars.entropy(even, log=log) == pytest.approx(np.log(2), rel=1e-15)
        assert scalars.varentropy(sure, log=log) == scalars.varentropy(even, log=log) == 0


def test_logs_do_not_underflow_against_closed_form():
    p, q = np.array([np.log(0.5), np.log(0.5), -2000.0]), np.array([0.0, -2000.0, -3000.0])
    assert scalars.kl(p, q, log=True) == pytest.approx(0.5 * np.log(0.5) + 0.5 * (np.log(0.5) + 2000), rel=1e-15)
    assert scalars.kl(np.exp(p), np.exp(q)) == np.inf
    for a, b in PAIRS:
        if a.all() and b.all():
            np.testing.assert_allclose(scalars.kl(np.log(a), np.log(b), log=True), scalars.kl(a, b), rtol=1e-9)
            for measure in (scalars.entropy, scalars.varentropy):
                np.testing.assert_allclose(measure(np.log(a), log=True), measure(a), rtol=1e-12)


def test_case_33_whole_distributions_against_closed_form():
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.5, 0.45, 0.05])
    assert scalars.overlap(p, q) == pytest.approx(0.85, abs=1e-15)
    assert scalars.kl(p, q) == pytest.approx(0.05707, abs=5e-6)
    assert float(np.sum(p[:2] * np.log(p[:2] / q[:2]))) == pytest.approx(-0.01225, abs=5e-6)


@pytest.mark.parametrize(("p_x", "q_x", "ratio"), [(1e-9, 2e-8, 0.05), (1e-10, 1e-12, 100)])
def test_case_54_small_probabilities_against_closed_form(p_x, q_x, ratio):
    p, q = np.array([p_x, 1 - p_x]), np.array([q_x, 1 - q_x])
    assert scalars.kl(p, q) == pytest.approx(p_x * np.log(ratio) + (1 - p_x) * np.log1p((q_x - p_x) / (1 - q_x)))
    assert scalars.overlap(p, q) == 1 - abs(p_x - q_x)
    assert scalars.stop_aware_cost(p[:1], q[:1], []) == pytest.approx(max(0, 1 - 1 / ratio))
    with pytest.raises(ValueError, match="found dtype float16"):
        scalars.kl(p.astype(np.float16), q)


def test_case_56_small_residuals_against_closed_form():
    p, q = np.array([0.5, 0.5]), np.array([0.5 - 1e-12, 0.5 + 1e-12])
    step = float(p[0] - q[0])
    assert scalars.stop_aware_cost(p, q, []) == step == pytest.approx(1e-12, rel=1e-4)
    assert scalars.recursive_scale(p, q, 2) - 1 == pytest.approx(step, rel=1e-3)
    assert scalars.kl(p, q) == pytest.approx(2 * step**2, rel=1e-11)


def test_case_82_overlaps_along_rollouts_are_no_survival_against_closed_form():
    p, q = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    after = [(p, p), (np.array([1.0, 0.0]), np.array([0.0, 1.0]))]  # after a they agree, after b never
    exact = product = weight = 0.0
    for x in (0, 1):
        second, drafted = after[x]
        for y in np.flatnonzero(second):
            chance = p[x] * second[y]
            with np.errstate(divide="ignore"):
                logs = np.log([p[x], second[y]]), np.log([q[x], drafted[y]])
            accepted = ms.round_law(*logs, [0, 2], rule="rejection", draft_length=2).survival()[0]
            exact += chance * accepted.sum()
            weight += chance * accepted[1]
            product += chance * scalars.overlap(p, q) * scalars.overlap(second, drafted)
    assert scalars.overlap(p, q) == pytest.approx(0.6)
    assert 1 + exact == pytest.approx(2.1)
    assert weight == pytest.approx(0.5)
    assert product == pytest.approx(0.3)
    assert 1 + scalars.overlap(p, q) + product == pytest.approx(1.9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: scalars.recursive_scale(p, p, 0), "m: found 0; allowed: an integer >= 1"),
        (lambda p: scalars.k_seq_scale(p, p, 2.0), "m: found 2.0; allowed: an integer >= 1"),
        (lambda p: scalars.k_seq_scale(p, p, True), "m: found True"),
        (lambda p: scalars.stop_aware_cost(p, p, [1, 2]), "stops: found 2; allowed: token ids 0 to 1"),
        (lambda p: scalars.stop_aware_cost(p, p, [-1]), "stops: found -1"),
        (lambda p: scalars.overlap(p, p[:1]), r"p, q: found shapes \(2,\), \(1,\); allowed: \(..., V\) of one V"),
        (lambda p: scalars.overlap(np.array([1, 0]), p), "p: found dtype int64; allowed: float64, float32"),
        (lambda p: scalars.kl(p, p[0]), r"p, q: found shapes \(2,\), \(\); allowed: \(..., V\) of one V"),
        (lambda p: scalars.entropy(p[0]), r"p: found shapes \(\); allowed: \(..., V\)"),
    ],
)
def test_refused_inputs_invariant(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.array([0.5, 0.5]))


@pytest.mark.parametrize("x", [-1, 2, 1.0, np.nan])
def test_tokens_outside_the_vocabulary_are_refused_invariant(x):
    p, q = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    for given in (x, torch.tensor(x)):
        values = (p, q) if given is x else (torch.tensor(p), torch.tensor(q))
        with pytest.raises(ValueError, match=r"x: found .*; allowed: token ids 0 to 1"):
            scalars.coupling(*values, given)
    with pytest.raises(ValueError, match=r"stops: found .*; allowed: token ids 0 to 1"):
        scalars.stop_aware_cost(p, q, [x])
