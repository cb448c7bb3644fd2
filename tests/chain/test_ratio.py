"""E[1/R], and tokens per round of single decodings with and without a surplus at the end."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.chain import _numba, _reference, end_accepted, expected_ratio, quadrature
from tests import strategies

FIRST_STARTS = st.integers(0, 3)
SEEDS = st.integers(0, 2**32 - 1)
CASE_30 = ms.RoundLaw.from_acceptance(np.full((5, 2), 0.5), [0, 5])


def _one_long_draft(size, chance):
    # Everything is accepted at once from the first start with this chance, otherwise a round commits one token.
    accept, length = np.ones(size), np.zeros(size, int)
    accept[0], length[0] = chance, size - 1
    return ms.RoundLaw(accept, [0, size], length)


def _counted(law, seed):
    # Zeros among them.
    rng = np.random.default_rng(seed)
    return rng.integers(0, 3, law.indptr.size - 1) * rng.random(), rng.integers(
        0, 3, law.accept.shape[0]
    ) * rng.random()


def _by_reference(law, first_start, tokens, surplus):
    left = np.maximum(np.diff(law.indptr) - first_start, 0)
    offsets = np.concatenate(([0], np.cumsum(left + 1)))
    mass = np.full(offsets[-1], np.nan)
    common = (*law.layout(), 0, left.size, first_start, law.depth)
    _reference.distribution(*common, tokens, surplus, 1, offsets, mass)
    shares = mass / np.maximum(np.arange(mass.size) - np.repeat(offsets[:-1], left + 1), 1)
    return np.where(left > 0, np.add.reduceat(shares, offsets[:-1]), np.nan)


def test_case_30_tokens_per_round_against_closed_form():
    # P(R = 2..5) = .1875, .5, .25, .0625
    inverse = 0.1875 / 2 + 0.5 / 3 + 0.25 / 4 + 0.0625 / 5
    np.testing.assert_allclose(5 * ms.expected_inverse(CASE_30), [1.6771], atol=5e-5)
    np.testing.assert_allclose(ms.expected_inverse(CASE_30), [inverse], rtol=1e-12)
    np.testing.assert_allclose(expected_ratio(CASE_30, tokens=[5], surplus=np.zeros(5)), [5 * inverse], rtol=1e-12)


def test_every_round_of_a_sure_law_against_closed_form(monkeypatch):
    monkeypatch.setattr(quadrature, "by_sums", None)  # not needed
    # Rounds of three tokens; the last one ends with the target's own token, or with an accepted draft at 2 or 1 left.
    law = ms.RoundLaw.from_acceptance(np.ones((15, 2), dtype=np.float32), [0, 6, 11, 15, 15])
    surplus = 100.0 + np.arange(15)
    found = expected_ratio(law, tokens=[6, 5, 4, 9], surplus=surplus)
    np.testing.assert_allclose(found, [6 / 2, (5 + surplus[9]) / 2, (4 + surplus[14]) / 2, np.nan], rtol=1e-13)
    assert end_accepted(law, ms.solve(law).occupancy).tolist() == [[0, 0], [0, 1], [1, 0], [0, 0]]
    only = expected_ratio(law, tokens=np.zeros(4), surplus=surplus)
    np.testing.assert_allclose(only, [0, surplus[9] / 2, surplus[14] / 2, np.nan], rtol=1e-13)
    nothing = expected_ratio(law, tokens=np.zeros(4), surplus=np.zeros(15))
    np.testing.assert_array_equal(nothing, [0, 0, 0, np.nan])


@given(strategies.laws(), FIRST_STARTS, SEEDS)
def test_quadrature_against_reference(law, first_start, seed):
    rollouts = law.indptr.size - 1
    nodes, weights = quadrature.laguerre(16)
    mean, active = 0.5 + np.arange(rollouts), np.arange(rollouts) % 3 != 1
    found, wanted = np.full((2, rollouts), -1.0)
    given = (0, rollouts, first_start, active, mean, nodes, weights, *_counted(law, seed), 1)
    _numba.ratio(*law.layout(), *given, found)
    _reference.ratio(*law.layout(), *given, wanted)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@given(strategies.laws(), FIRST_STARTS, SEEDS)
@example(_one_long_draft(12, 1e-3), 0, 1)
@example(_one_long_draft(12, 1e-9), 0, 1)
@example(_one_long_draft(100, 0.9), 0, 2)
def test_ratio_against_reference(law, first_start, seed):
    tokens, surplus = _counted(law, seed)
    found = expected_ratio(law, tokens=tokens, surplus=surplus, first_start=first_start)
    np.testing.assert_allclose(found, _by_reference(law, first_start, tokens, surplus), rtol=1e-11)


@given(strategies.laws(), FIRST_STARTS, SEEDS)
def test_ratio_by_sums_against_reference(law, first_start, seed):
    tokens, surplus = _counted(law, seed)
    wanted = _by_reference(law, first_start, tokens, surplus)
    committed = quadrature.Committed(tokens, surplus, 1)
    for i in np.flatnonzero(np.diff(law.indptr) > first_start):
        np.testing.assert_allclose(quadrature.by_sums(law, i, first_start, committed), wanted[i], rtol=1e-12)


def _mean_inverse(found, i):
    mass = found.pmf(i)
    return np.sum(mass[1:] / np.arange(1, mass.size)) if mass.size > 1 else np.nan


@given(strategies.laws(), FIRST_STARTS)
@example(_one_long_draft(12, 1e-9), 0)
@example(_one_long_draft(300, 1e-9), 0)
@example(_one_long_draft(300, 0.9), 0)
@example(_one_long_draft(1000, 5e-14), 0)
@example(ms.RoundLaw.from_acceptance(np.ones((64, 9)), [0, 0, 1, 64]), 1)
def test_mean_inverse_against_the_distribution_invariant(law, first_start):
    found = ms.round_distribution(law, first_start=first_start)
    wanted = [_mean_inverse(found, i) for i in range(law.indptr.size - 1)]
    inverse = ms.expected_inverse(law, first_start=first_start)
    np.testing.assert_allclose(inverse, wanted, rtol=1e-11)
    counted = {"tokens": np.ones(inverse.size), "surplus": np.zeros(law.accept.shape[0])}
    np.testing.assert_array_equal(expected_ratio(law, **counted, first_start=first_start), inverse)


@pytest.mark.parametrize("depth", [0, 3, 40])
def test_long_rollouts_invariant(depth):
    rng = np.random.default_rng(11)
    law = ms.RoundLaw.from_acceptance(rng.random((2000, depth)) ** 0.2, [0, 700, 701, 2000])
    found = ms.round_distribution(law, first_start=1)
    wanted = [_mean_inverse(found, i) for i in range(3)]
    np.testing.assert_allclose(ms.expected_inverse(law, first_start=1), wanted, rtol=1e-12)


def test_quadrature_error_against_closed_form():
    # (1/m) integral exp(-x) exp(x - x R/m) dx = 1/R; needed nodes are those from which doubling halves the error.
    for ratio in np.concatenate((np.geomspace(1e-3, 0.9, 40), np.linspace(1.1, 60, 60))):
        errors = []
        for count in quadrature.RULES:
            nodes, weights = quadrature.laguerre(count)
            errors.append(1 - ratio * np.sum(weights * np.exp(-nodes * ratio)))
        assert min(errors) > -1e-12
        needed = quadrature.fewest_nodes(np.array([100.0]), np.array([100 * ratio]), 0)
        for count, coarse, fine in zip(quadrature.RULES, errors, errors[1:], strict=False):
            assert needed[0] > count or fine <= coarse / 2 + 1e-12, (ratio, count)


def test_rollouts_beyond_the_rules_against_closed_form(monkeypatch):
    summed = []
    by_sums = quadrature.by_sums
    monkeypatch.setattr(quadrature, "by_sums", lambda *a: summed.append(a[1]) or by_sums(*a))
    hard = _one_long_draft(300, 1e-6)
    accept, length = (np.concatenate((np.full(30, x), y)) for x, y in ((0.5, hard.accept), (1, hard.draft_length)))
    law = ms.RoundLaw(accept, [0, 30, 330], length)
    found = ms.expected_inverse(law)
    assert summed == [1]
    np.testing.assert_allclose(found[1], 1e-6 + (1 - 1e-6) / 300, rtol=1e-13)


@given(strategies.laws(), FIRST_STARTS)
def test_end_accepted_invariant(law, first_start):
    rounds, survival = ms.solve(law, first_start=first_start), law.survival()
    found = end_accepted(law, rounds.occupancy)
    assert found.shape == rounds.tested.shape
    for i, end in enumerate(law.indptr[1:]):
        for j in range(1, law.depth + 1):
            inside = j <= end - law.indptr[i]
            wanted = rounds.occupancy[end - j] * survival[end - j, j - 1] if inside else 0
            np.testing.assert_allclose(found[i, j - 1], wanted, rtol=1e-13)
    accepted = rounds.accepted_histogram @ (np.arange(law.depth + 1) + 1)
    np.testing.assert_allclose(found.sum(axis=1), accepted - rounds.committed, atol=1e-12)


@pytest.mark.parametrize("form", ["cells", "positions"])
def test_threads_invariant(form):
    rng = np.random.default_rng(3)
    indptr = np.concatenate(([0], np.cumsum(rng.integers(0, 400, 60 if form == "cells" else 700))))
    rows = int(indptr[-1])
    accept = rng.random((rows, 15) if form == "cells" else rows)
    law = ms.RoundLaw(accept, indptr, rng.integers(0, 9, rows))
    assert law.accept.nbytes > 1 << 20
    counted = {"tokens": rng.random(indptr.size - 1), "surplus": rng.random(rows)}
    one, two, eight = (expected_ratio(law, **counted, first_start=1, threads=n).tobytes() for n in (1, 2, 8))
    assert one == two == eight


def test_nothing_to_decode_against_closed_form():
    law = ms.RoundLaw.from_acceptance(np.full((4, 3), 0.5, dtype=np.float32), [0, 0, 1, 4])
    np.testing.assert_allclose(ms.expected_inverse(law, first_start=1), [np.nan, np.nan, 0.75], rtol=1e-12)
    nothing = ms.RoundLaw.from_acceptance(np.zeros((0, 2)), [0])
    assert ms.expected_inverse(nothing).shape == (0,)
    assert end_accepted(nothing, np.zeros(0)).shape == (0, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ms.expected_inverse(CASE_30, first_start=True), "first_start: found True; allowed"),
        (lambda: ms.expected_inverse(CASE_30, threads=0), "threads: found 0; allowed"),
        (lambda: expected_ratio(CASE_30, tokens=5, surplus=np.ones(5)), r"tokens: found shape \(\); allowed: \(1,\)"),
        (lambda: expected_ratio(CASE_30, tokens=[5], surplus=[1.0]), r"surplus: found shape \(1,\); allowed: \(5,\)"),
        (
            lambda: expected_ratio(CASE_30, tokens=[-1.0], surplus=np.ones(5)),
            "tokens: rollout 0: found -1.0; allowed: finite numbers >= 0",
        ),
        (
            lambda: expected_ratio(CASE_30, tokens=[5], surplus=[0, 0, np.nan, 0, np.inf]),
            "surplus: rollout 0, position 2: found nan; allowed: finite numbers >= 0",
        ),
        (lambda: end_accepted(CASE_30, np.ones(4)), r"occupancy: found shape \(4,\); allowed: \(5,\)"),
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
