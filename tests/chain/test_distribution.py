"""The distribution of the rounds."""

import itertools
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.chain import _reference
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


def test_case_30_distribution_against_closed_form():
    found = ms.round_distribution(CASE_30)
    assert found.pmf(0).tolist() == [0, 0, 0.1875, 0.5, 0.25, 0.0625]
    assert found.cdf(0).tolist() == [0, 0, 0.1875, 0.6875, 0.9375, 1]
    assert found.mean.tolist() == [3.1875]
    levels = (0, 0.1875, 0.1876, 0.6875, 0.7, 1)
    assert [found.quantile(q).tolist() for q in levels] == [[2], [2], [3], [3], [4], [5]]


@given(strategies.laws(), FIRST_STARTS)
def test_distribution_against_reference(law, first_start):
    found, rollouts = ms.round_distribution(law, first_start=first_start), law.indptr.size - 1
    common = (*law.layout(), 0, rollouts, first_start, law.depth, np.ones(rollouts), np.zeros(1), 0)
    wanted = np.full(found.mass.size, np.nan)
    _reference.distribution(*common, found.indptr, wanted)
    np.testing.assert_allclose(found.mass, wanted, rtol=1e-12, atol=1e-15)
    assert np.diff(found.indptr).tolist() == (_sizes(law, first_start) + 1).tolist()


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
    for i, x in enumerate(outputs):
        wanted = np.zeros(max(len(x) - first_start, 0) + 1)
        for history, probability in runs[x].items():
            wanted[len(history)] += probability / sum(runs[x].values())
        np.testing.assert_allclose(found.pmf(i), wanted, atol=1e-12)


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


def test_nothing_to_decode_against_closed_form():
    law = ms.RoundLaw.from_acceptance(np.full((4, 3), 0.5, dtype=np.float32), [0, 0, 1, 4])
    found = ms.round_distribution(law, first_start=1)
    assert [found.pmf(i).tolist() for i in range(3)] == [[1], [1], [0, 0.5, 0.5]]
    assert repr(found.makespan(["a", "b", "a"])) == "Makespan(2 groups, 1.5 expected rounds)"
    nothing = ms.RoundLaw.from_acceptance(np.zeros((0, 2)), [0])
    assert ms.round_distribution(nothing).variance.shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ms.round_distribution(CASE_30, first_start=-1), "first_start: found -1; allowed"),
        (lambda: ms.round_distribution(CASE_30, threads=0), "threads: found 0; allowed"),
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
