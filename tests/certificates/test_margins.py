"""What a margin alone promises: attained by some target, exceeded by none."""

import decimal
from decimal import Decimal

import numpy as np
import pytest
from scipy import special

from markov_spec.certificates import kl_to_reject, kl_to_reject_margin


def _extremal(g, m):
    """The target of margin ``g`` that attains K4: its probabilities are ``y, 1, ..., 1, 1/y`` times a factor."""
    kappa = Decimal(1) / (m + 1)
    g = Decimal(float(g))
    root = (g**2 * (1 - 2 * kappa) ** 2 + 4 * kappa**2 * (1 - g**2)).sqrt()
    y = (g * (1 - 2 * kappa) + root) / (2 * kappa * (1 - g))
    p = [y, *[Decimal(1)] * (m - 1), 1 / y]
    return [mass / sum(p) for mass in p]


@pytest.mark.parametrize("m", range(1, 9))
def test_attained_against_closed_form(m):
    margins = np.concatenate((10.0 ** np.arange(-14, 0), np.linspace(0.05, 0.95, 19), 1 - 10.0 ** -np.arange(2, 13)))
    found = kl_to_reject_margin(margins, rule="tree", m=m)
    with decimal.localcontext(prec=80):
        for g, value in zip(margins, found, strict=True):
            p = _extremal(g, m)
            assert abs(p[0] - p[-1] - Decimal(float(g))) < Decimal("1e-60")
            wanted = float(sum(mass * (mass * (m + 1)).ln() for mass in p))  # of a drafter uniform over them
            np.testing.assert_allclose(value, wanted, rtol=1e-12)
            row = np.array(p, float)
            exact = kl_to_reject([row / row.sum()], rule="tree", m=m, complete=True).value[0]
            if 1e-3 < g < 0.999:  # the rounded target has about this margin only
                np.testing.assert_allclose(exact, value, rtol=1e-11)
    assert (np.diff(kl_to_reject_margin(np.linspace(0, 1, 2001), rule="tree", m=m)) > 0).all()


@pytest.mark.parametrize("m", range(1, 9))
def test_never_exceeded_against_simulation(m):
    rng = np.random.default_rng(m)
    for spread in (0.1, 0.4, 1, 5):
        p = -np.sort(-rng.dirichlet(np.full(m + 3, spread), 25_000))
        exact = kl_to_reject(p, rule="tree", m=m).value
        by_margin = kl_to_reject_margin(p[:, 0] - p[:, m], rule="tree", m=m)
        assert (by_margin <= exact * (1 + 1e-13) + 1e-16).all() and (by_margin < exact - 1e-6).any()


def test_expansion_is_no_bound_against_closed_form():
    expansion, bound = 9 * 0.7**2 / 4, kl_to_reject_margin(0.7, rule="tree", m=8)
    np.testing.assert_allclose([expansion, bound], [1.10, 1.00], atol=5e-3)
    with decimal.localcontext(prec=40):
        row = np.array(_extremal(0.7, 8), float)
    drafter = np.full(9, 1 / 9)  # ties with the best token count as a miss
    missed = special.rel_entr(row, drafter).sum()
    np.testing.assert_allclose(row[0] - row[8], 0.7)
    np.testing.assert_allclose(missed, bound)
    assert missed < expansion - 0.09


def test_expansion_exceeds_the_bound_for_six_or_more_against_closed_form():
    g = np.linspace(0.001, 0.999, 999)
    for m in range(1, 21):
        assert ((m + 1) * g**2 / 4 > kl_to_reject_margin(g, rule="tree", m=m)).any() == (m >= 6)


def test_strict_against_closed_form():
    g = np.linspace(0.01, 0.99, 99)
    wanted = ((1 + g) * np.log1p(g) + (1 - g) * np.log1p(-g)) / 2
    np.testing.assert_allclose(kl_to_reject_margin(g), wanted, rtol=1e-12)
    np.testing.assert_array_equal(kl_to_reject_margin(g), kl_to_reject_margin(g, rule="tree", m=1))
    np.testing.assert_allclose(kl_to_reject_margin(1e-9), 5e-19, rtol=1e-12)
    both = np.stack((1 + g, 1 - g), axis=1) / 2
    np.testing.assert_allclose(kl_to_reject(both, rule="strict").value, wanted, rtol=1e-12)


def test_ends_against_closed_form():
    for m in (1, 2, 8, 1000):
        ends = kl_to_reject_margin([[0, 1, 1 + 1e-7]], rule="tree", m=m)
        assert ends.shape == (1, 3)
        np.testing.assert_array_equal(ends, [[0, np.log(m + 1), np.log(m + 1)]])
        np.testing.assert_allclose(kl_to_reject_margin(1 - 1e-16, rule="tree", m=m), np.log(m + 1), atol=1e-12)
    assert kl_to_reject_margin([]).shape == (0,) and kl_to_reject_margin(0.5).shape == ()


@pytest.mark.parametrize(
    ("margin", "options", "message"),
    [
        (0.1, {"rule": "additive"}, "rule: found 'additive'; allowed: strict, tree"),
        (0.1, {"m": 2}, "m: found 2 for rule 'strict'; allowed: 1, or rule 'tree'"),
        (0.1, {"rule": "tree", "m": 0}, "m: found 0; allowed: an integer >= 1"),
        (-0.1, {}, "margin: found -0.1; allowed: 0 to 1"),
        ([[0.1, 1.1]], {}, r"margin\[0, 1\]: found 1.1; allowed: 0 to 1"),
        ([0.1, np.nan], {}, r"margin\[1\]: found nan"),
    ],
)
def test_refused_invariant(margin, options, message):
    with pytest.raises(ValueError, match=message):
        kl_to_reject_margin(margin, **options)
