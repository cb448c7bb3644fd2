"""Thresholds of truncated lists: below those of the whole distribution, rising with the list, and attained."""

import numpy as np
import pytest
from scipy import special

from markov_spec.acceptance.truncated import tail_bucket_kl
from markov_spec.certificates import DIVERGENCES, RULES, kl_to_reject

SETTINGS = [
    ("strict", {}), ("additive", {"t": 0.1}), ("additive", {"t": 0.4}), ("multiplicative", {"alpha": 0.05}),
    ("multiplicative", {"alpha": 0.5}), ("top-m", {"m": 1}), ("top-m", {"m": 5}), ("typical", {}),
    ("typical", {"epsilon": 0.3, "delta": 0.8}), ("tree", {"m": 1}), ("tree", {"m": 3}), ("tree", {"m": 8}),
]  # fmt: skip


def lists(p, size):
    """The first tokens of descending distributions, and what is left."""
    return {"p_top": p[:, :size], "tail_mass": p[:, size:].sum(axis=1)}


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize(("rule", "given"), SETTINGS)
def test_longer_lists_tell_more_invariant(rule, given, name):
    assert {rule for rule, _ in SETTINGS} == set(RULES)
    rng = np.random.default_rng(33)
    below = 0
    for spread in (0.1, 0.5, 3):
        p = -np.sort(-rng.dirichlet(np.full(12, spread), 300))
        p[:50, 6:] = 0
        p /= p.sum(axis=1, keepdims=True)
        whole = kl_to_reject(p, rule=rule, divergence=name, complete=True, **given).value
        before = np.zeros(len(p))
        for size in range(1, 13):
            entropies = [None] if rule != "typical" else [None, special.entr(p).sum(axis=1)]
            for entropy in entropies:
                found = kl_to_reject(
                    rule=rule, divergence=name, complete=size == 12, entropy=entropy, **given, **lists(p, size)
                )
                assert (found.value <= whole * (1 + 1e-12) + 1e-15).all()
                np.testing.assert_allclose(found.value[found.exact], whole[found.exact], rtol=1e-11, atol=1e-15)
                if entropy is None:
                    assert (found.value >= before * (1 - 1e-12)).all()
                    before = found.value
                below += (found.value < whole - 1e-6).sum()
        assert found.exact.all()
    assert below > 100 or (rule, given.get("m")) in (("strict", None), ("top-m", 1), ("tree", 1), ("additive", None))


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize(("rule", "given"), SETTINGS)
def test_exact_once_the_rejected_token_is_listed_invariant(rule, given, name):
    p = -np.sort(-np.random.default_rng(34).dirichlet(np.full(12, 0.5), 300))
    entropy = special.entr(p).sum(axis=1) if rule == "typical" else None
    bar = {
        "additive": lambda: p[:, 0] - given["t"],
        "multiplicative": lambda: given["alpha"] * p[:, 0],
        "typical": lambda: np.minimum(given.get("epsilon", 0.09), given.get("delta", 0.3) * np.exp(-entropy)),
    }.get(rule, lambda: np.full(len(p), 1.0))()
    place = np.maximum(given.get("m", 1), (p >= bar[:, None]).sum(axis=1))  # no probability equals its bar
    for size in range(1, 12):
        found = kl_to_reject(rule=rule, divergence=name, entropy=entropy, **given, **lists(p, size))
        np.testing.assert_array_equal(found.exact, (place < size) | (bar <= 0))


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize(("rule", "given", "unlisted"), [
    ("strict", {}, 1), ("top-m", {"m": 4}, 3), ("tree", {"m": 4}, 3), ("tree", {"m": 2}, 1), ("top-m", {"m": 9}, 8),
])  # fmt: skip
def test_bounds_are_attained_against_closed_form(rule, given, unlisted, name):
    for listed in ([0.6, 0.3], [0.5, 0.02], [0.34, 0.33], [0.9, 0.09]):
        head = listed[:1] if rule == "strict" else listed
        tail = 1 - sum(head)
        found = kl_to_reject([head], rule=rule, tail_mass=tail, divergence=name, **given)
        equal = min(head[-1], tail / unlisted)
        dust = tail - unlisted * equal
        p = [*head, *[equal] * unlisted, *[dust / 100_000] * (100_000 if dust > 1e-12 else 0)]
        whole = kl_to_reject([p], rule=rule, divergence=name, complete=True, **given)
        np.testing.assert_allclose(found.value, whole.value, rtol=1e-10)
        assert not found.exact[0] and whole.exact[0]


def test_least_entropy_against_enumeration():
    """Tails in 40ths of a list that ends with 4 of them."""
    head, whole = np.array([12, 9, 4]), []
    for first in range(5):
        for second in range(first + 1):
            for third in range(second + 1):
                for fourth in range(third + 1):
                    rest = 15 - first - second - third - fourth
                    if 0 <= rest <= fourth:
                        whole.append(np.array([*head, first, second, third, fourth, rest]) / 40)
    whole = np.array(whole)
    assert len(whole) == 6
    entropies = special.entr(whole).sum(axis=1)
    bite = 0.1 * np.exp((entropies.min() + entropies.max()) / 2)  # the last one listed is rejected in some of them
    edge = 0.999 * head[1] / 40 * np.exp(entropies.min())  # the one before it just not
    for delta in (0.3, bite, 1, edge):
        exact = kl_to_reject(whole, rule="typical", epsilon=0.5, delta=delta).value
        found = kl_to_reject([head / 40], rule="typical", epsilon=0.5, delta=delta, tail_mass=15 / 40)
        assert not found.exact[0] and found.value <= exact.min() * (1 + 1e-12)
        if delta > 0.3:
            np.testing.assert_allclose(found.value, exact.min(), rtol=1e-12)
        assert exact.min() < exact.max() or delta >= 1
    known = kl_to_reject(whole, rule="typical", epsilon=0.2, delta=0.8, entropy=entropies)
    np.testing.assert_array_equal(known.value, kl_to_reject(whole, rule="typical", epsilon=0.2, delta=0.8).value)


def test_case_33_list_without_its_tail_against_closed_form():
    """A list is not the whole: without its tail it is refused, with it the bound holds for what it may be part of."""
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.5, 0.45, 0.05])
    with pytest.raises(ValueError, match=r"p_top, tail_mass: row 0: found sum 0\.89999\d*; allowed: 1 within 0.0001"):
        kl_to_reject([p[:2]], rule="strict")
    strict = kl_to_reject([p[:2]], rule="strict", tail_mass=0.1)
    np.testing.assert_allclose(strict.value, 0.6 * np.log(4 / 3) + 0.3 * np.log(2 / 3))
    told = float(tail_bucket_kl([0, 1], np.log(p[:2]), 0.1, [0, 1], np.log(q[:2]), 0.05))
    np.testing.assert_allclose([told, -0.01225], [0.05707, (p * np.log(p / q))[:2].sum()], atol=5e-6)
    assert strict.exact[0] and told > strict.value[0]  # the truncated sum of -.01225 would have certified this draft


def test_rounded_tails_against_closed_form():
    """What float32 leaves of a tail, or takes from it, changes a threshold by no more than that."""
    p = np.array([[0.7, 0.2, 0.1]], np.float32)
    for tail in (-6e-8, 0.0, 6e-8):
        for name, slack in (("kl", 3e-6), ("tv", 1e-7)):
            found = kl_to_reject(p, rule="tree", m=4, tail_mass=np.float32(tail), divergence=name)
            whole = kl_to_reject([[0.7, 0.2, 0.1, 0, 0]], rule="tree", m=4, divergence=name)
            np.testing.assert_allclose(found.value, whole.value, atol=slack)
            assert found.exact[0] == (tail <= 0)
    zeros = kl_to_reject([[1.0, 0.0]], rule="top-m", m=4, tail_mass=[6e-8])
    np.testing.assert_allclose(zeros.value, np.log(2), atol=1e-12)
