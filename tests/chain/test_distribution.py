"""The distribution of the rounds, and E[1/R]."""

import itertools
import zlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.chain import _reference, distribution
from tests import oracles, strategies

FIRST_STARTS = st.integers(0, 3)
#           vocabulary, cap, draft length from each start, stop token
SETTINGS = {
    "two tokens": (2, 5, (3, 3, 3, 3, 3), None),
    "stop token": (3, 4, (3, 3, 3, 3), 0),
    "varying length": (2, 5, (2, 0, 3, 1, 2), 1),
    "one token": (3, 1, (3,), None),
}
CASE_30 = ms.RoundLaw.from_acceptance(np.full((5, 2), 0.5), [0, 5])


def _sizes(law, first_start):
    return np.maximum(np.diff(law.indptr) - first_start, 0)


def _mean_inverse(found, i):
    mass = found.pmf(i)
    return np.sum(mass[1:] / np.arange(1, mass.size)) if mass.size > 1 else np.nan


def _one_long_draft(size, chance):
    # Everything is accepted at once from the first start with this chance, otherwise a round commits one token.
    accept, length = np.ones(size), np.zeros(size, int)
    accept[0], length[0] = chance, size - 1
    return ms.RoundLaw(accept, [0, size], length)


def test_case_30_distribution_against_closed_form():
    found = ms.round_distribution(CASE_30)
    assert found.pmf(0).tolist() == [0, 0, 0.1875, 0.5, 0.25, 0.0625]
    assert found.cdf(0).tolist() == [0, 0, 0.1875, 0.6875, 0.9375, 1]
    assert found.mean.tolist() == [3.1875]
    levels = (0, 0.1875, 0.1876, 0.6875, 0.7, 1)
    assert [found.quantile(q).tolist() for q in levels] == [[2], [2], [3], [3], [4], [5]]
    np.testing.assert_allclose(5 * ms.expected_inverse(CASE_30), [1.6771], atol=5e-5)
    np.testing.assert_allclose(ms.expected_inverse(CASE_30), [0.1875 / 2 + 0.5 / 3 + 0.25 / 4 + 0.0625 / 5], rtol=1e-12)


@given(strategies.laws(), FIRST_STARTS)
def test_distribution_against_reference(law, first_start):
    found, rollouts = ms.round_distribution(law, first_start=first_start), law.indptr.size - 1
    common = (*law.layout(), 0, rollouts, first_start)
    wanted = np.full(found.mass.size, np.nan)
    _reference.distribution(*common, law.depth, found.indptr, wanted)
    np.testing.assert_allclose(found.mass, wanted, rtol=1e-12, atol=1e-15)
    assert np.diff(found.indptr).tolist() == (_sizes(law, first_start) + 1).tolist()


@given(strategies.laws(), FIRST_STARTS)
def test_quadrature_against_reference(law, first_start):
    rollouts = law.indptr.size - 1
    nodes, weights = distribution._laguerre(16)
    common = (*law.layout(), 0, rollouts, first_start)
    mean, active = 0.5 + np.arange(rollouts), np.arange(rollouts) % 3 != 1
    found, wanted = np.full((2, rollouts), -1.0)
    distribution._numba.inverse(*common, active, mean, nodes, weights, found)
    _reference.inverse(*common, active, mean, nodes, weights, wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@given(strategies.laws(), FIRST_STARTS)
def test_moments_and_support_invariant(law, first_start):
    found, rounds = ms.round_distribution(law, first_start=first_start), ms.solve(law, first_start=first_start)
    np.testing.assert_allclose(found.mean, rounds.expected, atol=1e-10)
    np.testing.assert_allclose(found.variance, rounds.variance, atol=1e-10)
    for i, left in enumerate(_sizes(law, first_start)):
        mass = found.pmf(i)
        np.testing.assert_allclose(mass.sum(), 1, atol=1e-14)
        assert mass.size == left + 1
        assert not mass[: -(-left // (law.depth + 1))].any()


@pytest.mark.parametrize("depth", [0, 3, 40])
def test_long_rollouts_invariant(depth):
    rng = np.random.default_rng(11)
    indptr = np.array([0, 700, 701, 2000])
    law = ms.RoundLaw.from_acceptance(rng.random((2000, depth)) ** 0.2, indptr)
    found, rounds = ms.round_distribution(law, first_start=1), ms.solve(law, first_start=1)
    np.testing.assert_allclose(np.add.reduceat(found.mass, found.indptr[:-1]), 1, rtol=1e-12)
    np.testing.assert_allclose(found.mean, rounds.expected, rtol=1e-12)
    np.testing.assert_allclose(found.variance, rounds.variance, rtol=1e-10)
    assert [found.cdf(i)[-1] for i in range(3)] == [1, 1, 1] and found.quantile(1).max() < 2000
    wanted = [_mean_inverse(found, i) for i in range(3)]
    np.testing.assert_allclose(ms.expected_inverse(law, first_start=1), wanted, rtol=1e-12)


def _law_of_histories(runs, outputs, depth):
    # S[s,k] of each output: the weight of its rounds from s that accepted k or more, by the weight of all from s.
    rows, offset = np.zeros((sum(len(x) for x in outputs), depth + 1)), 0
    for x in outputs:
        for history, probability in runs[x].items():
            for start, accepted in history:
                rows[offset + start, : accepted + 1] += probability
        offset += len(x)
    survival = np.divide(rows, rows[:, :1], out=np.zeros_like(rows), where=rows[:, :1] > 0)
    return ms.RoundLaw.from_survival(survival[:, 1:], np.concatenate(([0], np.cumsum([len(x) for x in outputs]))))


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", oracles.KINDS)
@pytest.mark.parametrize("rule", oracles.ROUNDS)
def test_every_output_against_enumeration(rule, kind, setting, first_start):
    vocabulary, cap, lengths, stop = SETTINGS[setting]
    world = oracles.World(zlib.crc32(f"{kind} {setting}".encode()), vocabulary, kind)
    runs = oracles.decode(world, rule, lengths, cap, first_start=first_start, stop=stop)
    outputs = sorted(x for x in runs if oracles.target_probability(world, x) > 0)
    law = _law_of_histories(runs, outputs, max(lengths))
    found = ms.round_distribution(law, first_start=first_start)
    inverse = ms.expected_inverse(law, first_start=first_start)
    for i, x in enumerate(outputs):
        wanted = np.zeros(max(len(x) - first_start, 0) + 1)
        for history, probability in runs[x].items():
            wanted[len(history)] += probability / sum(runs[x].values())
        np.testing.assert_allclose(found.pmf(i), wanted, atol=1e-12)
        per_round = [p / r for r, p in enumerate(wanted) if r] or [np.nan]
        np.testing.assert_allclose(inverse[i], sum(per_round), rtol=1e-11)


@given(strategies.laws(), FIRST_STARTS)
@example(_one_long_draft(12, 1e-3), 0)
@example(_one_long_draft(12, 1e-9), 0)
@example(_one_long_draft(300, 1e-9), 0)
@example(_one_long_draft(300, 0.9), 0)
@example(_one_long_draft(1000, 5e-14), 0)
@example(ms.RoundLaw.from_acceptance(np.ones((64, 9)), [0, 0, 1, 64]), 1)
def test_mean_inverse_against_the_distribution_invariant(law, first_start):
    found = ms.round_distribution(law, first_start=first_start)
    wanted = [_mean_inverse(found, i) for i in range(law.indptr.size - 1)]
    np.testing.assert_allclose(ms.expected_inverse(law, first_start=first_start), wanted, rtol=1e-11)


def test_quadrature_error_against_closed_form():
    # (1/m) integral exp(-x) exp(x - x R/m) dx = 1/R; needed nodes are those from which doubling halves the error.
    for ratio in np.concatenate((np.geomspace(1e-3, 0.9, 40), np.linspace(1.1, 60, 60))):
        errors = []
        for count in distribution.RULES:
            nodes, weights = distribution._laguerre(count)
            errors.append(1 - ratio * np.sum(weights * np.exp(-nodes * ratio)))
        assert min(errors) > -1e-12
        needed = distribution._fewest_nodes(np.array([100.0]), np.array([100 * ratio]), 0)
        for count, coarse, fine in zip(distribution.RULES, errors, errors[1:], strict=False):
            assert needed[0] > count or fine <= coarse / 2 + 1e-12, (ratio, count)


def test_rollouts_beyond_the_rules_against_closed_form(monkeypatch):
    summed = []
    by_sums = distribution._inverse_by_sums
    monkeypatch.setattr(distribution, "_inverse_by_sums", lambda *a: summed.append(a[1]) or by_sums(*a))
    hard = _one_long_draft(300, 1e-6)
    accept, length = (np.concatenate((np.full(30, x), y)) for x, y in ((0.5, hard.accept), (1, hard.draft_length)))
    law = ms.RoundLaw(accept, [0, 30, 330], length)
    found = ms.expected_inverse(law)
    assert summed == [1]
    np.testing.assert_allclose(found[1], 1e-6 + (1 - 1e-6) / 300, rtol=1e-13)


@given(strategies.laws(), FIRST_STARTS, st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)))
def test_quantiles_against_the_cdf_invariant(law, first_start, q):
    found = ms.round_distribution(law, first_start=first_start)
    quantiles = found.quantile(q)
    assert quantiles.dtype == np.int64
    for i, r in enumerate(quantiles):
        cdf = found.cdf(i)
        assert r == np.argmax((cdf >= q) & (cdf > 0))
        assert cdf[-1] == 1 and (np.diff(cdf) >= 0).all()


@given(strategies.laws(), FIRST_STARTS, st.lists(st.sampled_from(["a", "b"]), min_size=4, max_size=4))
def test_makespan_against_enumeration(law, first_start, labels):
    found = ms.round_distribution(law, first_start=first_start)
    labels = labels[: law.indptr.size - 1]
    makespan = found.makespan(np.array(labels))
    assert list(makespan.expected) == list(dict.fromkeys(labels))
    for label in set(labels):
        members = [found.pmf(i) for i, other in enumerate(labels) if other == label]
        wanted = np.zeros(max(m.size for m in members))
        for outcome in itertools.product(*(np.flatnonzero(m) for m in members)):
            wanted[max(outcome)] += np.prod([m[r] for m, r in zip(members, outcome, strict=True)])
        np.testing.assert_allclose(makespan.cdf[label], np.cumsum(wanted), atol=1e-13)
        np.testing.assert_allclose(makespan.expected[label], wanted @ np.arange(wanted.size), atol=1e-12)


@pytest.mark.parametrize("form", ["cells", "positions"])
def test_threads_invariant(form):
    rng = np.random.default_rng(3)
    indptr = np.concatenate(([0], np.cumsum(rng.integers(0, 400, 60 if form == "cells" else 700))))
    rows = int(indptr[-1])
    accept = rng.random((rows, 15) if form == "cells" else rows)
    law = ms.RoundLaw(accept, indptr, rng.integers(0, 9, rows))
    assert law.accept.nbytes > 1 << 20
    one, two, eight = (ms.round_distribution(law, first_start=1, threads=n).mass.tobytes() for n in (1, 2, 8))
    assert one == two == eight
    one, two, eight = (ms.expected_inverse(law, first_start=1, threads=n).tobytes() for n in (1, 2, 8))
    assert one == two == eight


def test_nothing_to_decode_against_closed_form():
    law = ms.RoundLaw.from_acceptance(np.full((4, 3), 0.5, dtype=np.float32), [0, 0, 1, 4])
    found = ms.round_distribution(law, first_start=1)
    assert [found.pmf(i).tolist() for i in range(3)] == [[1], [1], [0, 0.5, 0.5]]
    np.testing.assert_allclose(ms.expected_inverse(law, first_start=1), [np.nan, np.nan, 0.75], rtol=1e-12)
    assert repr(found.makespan(["a", "b", "a"])) == "Makespan(2 groups, 1.5 expected rounds)"
    nothing = ms.RoundLaw.from_acceptance(np.zeros((0, 2)), [0])
    assert ms.round_distribution(nothing).variance.shape == ms.expected_inverse(nothing).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ms.round_distribution(CASE_30, first_start=-1), "first_start: found -1; allowed"),
        (lambda: ms.expected_inverse(CASE_30, first_start=True), "first_start: found True; allowed"),
        (lambda: ms.round_distribution(CASE_30, threads=0), "threads: found 0; allowed"),
        (lambda: ms.expected_inverse(CASE_30, threads=0), "threads: found 0; allowed"),
        (lambda: ms.round_distribution(CASE_30).pmf(1), "i: found 1; allowed: .* < 1"),
        (lambda: ms.round_distribution(CASE_30).cdf(-1), "i: found -1; allowed"),
        (lambda: ms.round_distribution(CASE_30).pmf(0.0), "i: found 0.0; allowed"),
        (lambda: ms.round_distribution(CASE_30).quantile(1.1), "q: found 1.1; allowed: 0 to 1"),
        (lambda: ms.round_distribution(CASE_30).quantile(np.nan), "q: found nan; allowed"),
        (lambda: ms.round_distribution(CASE_30).quantile([0.5]), r"q: found \[0.5\]; allowed"),
        (lambda: ms.round_distribution(CASE_30).makespan(["a", "b"]), "groups: found 2 labels; allowed: 1"),
        (lambda: ms.round_distribution(CASE_30).makespan([["a"]]), r"groups: rollout 0: found \['a'\]; allowed"),
    ],
)
def test_refused_options_invariant(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_solve_gives_the_inverse_when_asked_invariant():
    law = ms.RoundLaw.from_acceptance(np.full((7, 2), 0.5), [0, 5, 5, 7])
    asked = ms.solve(law, inverse=True)
    np.testing.assert_array_equal(asked.expected_inverse, ms.expected_inverse(law))
    assert np.isnan(asked.expected_inverse[1])
    assert ms.solve(law).expected_inverse is None
