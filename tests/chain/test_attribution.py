"""Attribution of a difference of rounds, against changing one acceptance at a time and against the gradient."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.chain import attribute_rounds

INDPTR = np.array([0, 4, 4, 5, 12])


def random_law(rng, depth, form):
    if form == "cells":
        return ms.RoundLaw(rng.choice([0.0, 1.0, 0.3, 0.7, 0.55], (12, depth)), INDPTR)
    if form == "lengths":
        return ms.RoundLaw(rng.random((12, depth)), INDPTR, rng.integers(0, depth + 1, 12))
    return ms.RoundLaw(rng.random(12), INDPTR, depth)


@given(seed=st.integers(0, 10**6), first_start=st.sampled_from([0, 1, 3]))
def test_sum_is_the_difference_against_reference(seed, first_start):
    rng = np.random.default_rng(seed)
    forms = rng.choice(["cells", "lengths", "positions"], 2)
    one, other = (random_law(rng, int(rng.integers(0, 5)), form) for form in forms)
    found = attribute_rounds(one, other, first_start=first_start)
    sums = np.array([found[a:b].sum() for a, b in itertools.pairwise(INDPTR)])
    difference = ms.solve(other, first_start=first_start).expected - ms.solve(one, first_start=first_start).expected
    assert np.allclose(sums, difference, atol=1e-9)
    assert np.allclose(attribute_rounds(other, one, first_start=first_start), -found, atol=1e-12)
    assert np.allclose(attribute_rounds(one, one), 0)


def test_terms_are_switches_of_one_draft_against_enumeration():
    """Each order of the terms is the change when one more draft follows the other law, in the order of testing."""
    rng = np.random.default_rng(3)
    a, b = rng.random((5, 2)), rng.random((5, 2))
    order = [(s, k) for s in range(5) for k in range(2)]

    def rounds(switched, before, after):
        cells = before.copy()
        for cell in switched:
            cells[cell] = after[cell]
        return ms.solve(ms.RoundLaw(cells, [0, 5])).expected[0]

    def telescope(before, after):
        # From the last draft back, so that what comes later follows `after` and what comes earlier `before`.
        terms = np.zeros((5, 2))
        for i, cell in enumerate(order):
            terms[cell] = rounds(order[i:], before, after) - rounds(order[i + 1 :], before, after)
        return terms

    expected = (telescope(a, b) - telescope(b, a)) / 2
    found = attribute_rounds(ms.RoundLaw(a, [0, 5]), ms.RoundLaw(b, [0, 5]))
    assert np.allclose(found, expected, atol=1e-12)


def test_small_differences_are_the_gradient_against_closed_form():
    rng = np.random.default_rng(5)
    a, step = rng.uniform(0.2, 0.8, (12, 3)), 1e-6 * rng.normal(size=(12, 3))
    found = attribute_rounds(ms.RoundLaw(a, INDPTR), ms.RoundLaw(a + step, INDPTR))
    for cell in [(0, 0), (2, 1), (6, 2), (11, 0)]:
        changed = [a.copy(), a.copy()]
        changed[0][cell] -= 1e-5
        changed[1][cell] += 1e-5
        low, high = (ms.solve(ms.RoundLaw(c, INDPTR)).expected.sum() for c in changed)
        assert found[cell] == pytest.approx((high - low) / 2e-5 * step[cell], rel=1e-3, abs=1e-12)


def test_other_rollouts_are_refused_invariant():
    with pytest.raises(ms.RequestError, match="found other offsets"):
        attribute_rounds(ms.RoundLaw(np.ones((3, 1)), [0, 3]), ms.RoundLaw(np.ones((3, 1)), [0, 1, 3]))
