"""The chain's kernels against its equations, and what must hold of every law."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.chain import _numba, _reference, moments
from tests import strategies

FIRST_STARTS = st.integers(0, 3)


def _by_reference(law, first_start, price=None):
    rollouts, rows, depth = law.indptr.size - 1, law.accept.shape[0], law.depth
    row = law.accept.shape[1] if law.form == "cells" else 1
    length = np.atleast_1d(law.draft_length)
    common = (law.accept.reshape(-1), row, length, int(np.ndim(law.draft_length)), law.indptr, 0, rollouts, first_start)
    value, variance, occupancy = np.zeros(rows), np.zeros(rollouts), np.zeros(rows)
    histogram, tested, drafted = np.zeros((rollouts, depth + 1)), np.zeros((rollouts, depth)), np.zeros(rollouts)
    _reference.backward(*common, value, variance)
    _reference.forward(*common, occupancy, histogram, tested, drafted)
    found = {
        "value": value, "variance": variance, "occupancy": occupancy,
        "accepted_histogram": histogram, "tested": tested, "drafted": drafted,
    }  # fmt: skip
    if price is not None:
        found["price"], found["price_variance"] = np.zeros((2, rollouts))
        row_step, draft_step = {0: (0, 0), 1: (1, 0), 2: (depth + 1, 1)}[np.ndim(price)]
        _reference.priced(*common, np.ravel(price), row_step, draft_step, found["price"], found["price_variance"])
    return found


@given(strategies.laws(), FIRST_STARTS, st.sampled_from([0, moments.WORTH, 9]))
def test_every_field_against_reference(law, first_start, worth):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "WORTH", worth)
        rounds = ms.solve(law, first_start=first_start)
    for name, wanted in _by_reference(law, first_start).items():
        np.testing.assert_allclose(getattr(rounds, name), wanted, rtol=1e-10, atol=1e-12, err_msg=name)


def _one_by_one(law, first_start, price):
    rollouts, rows, depth = law.indptr.size - 1, law.accept.shape[0], law.depth
    common = (*law.layout(), 0, rollouts, first_start)
    value, variance, occupancy, drafted = np.empty(rows), np.empty(rollouts), np.empty(rows), np.empty(rollouts)
    histogram, tested = np.empty((rollouts, depth + 1)), np.empty((rollouts, depth))
    _numba.backward(*common, value, variance)
    _numba.forward(*common, occupancy, histogram, tested, drafted)
    total, spread = np.empty((2, rollouts))
    layout = {0: (0, 0), 1: (1, 0), 2: (depth + 1, 1)}[np.ndim(price)]
    _numba.priced(*common, np.ravel(price), *layout, total, spread)
    return {
        "price": total, "price_variance": spread,
        "value": value, "variance": variance, "occupancy": occupancy,
        "accepted_histogram": histogram, "tested": tested, "drafted": drafted,
    }  # fmt: skip


@pytest.mark.parametrize("worth", [0, moments.WORTH])
@pytest.mark.parametrize("rollouts", [1, 2, 3, 7, 8, 9, 11, 16, 21])
def test_eight_at_once_against_one_after_the_other(rollouts, worth, monkeypatch):
    """Bit by bit, for every remainder, ragged, with NaN behind the ends and in both forms."""
    monkeypatch.setattr(moments, "WORTH", worth)
    rng = np.random.default_rng(rollouts)
    indptr = np.concatenate(([0], np.cumsum(rng.integers(0, 12, rollouts))))
    rows = int(indptr[-1])
    left = np.repeat(indptr[1:], np.diff(indptr)) - np.arange(rows)
    for dtype in (np.float32, np.float64):
        accept = rng.random((rows, 5)).astype(dtype)
        accept[np.arange(1, 6) > left[:, None]] = np.nan
        line = rng.random(rows).astype(dtype)
        for values, depth in ((accept, 5), (accept, 3), (accept[:, :0], 0), (line, 4), (line, 30), (line, 0)):
            law = ms.RoundLaw(values, indptr, depth)
            for first_start, shape in ((0, ()), (1, (rows,)), (5, (rows, law.depth + 1))):
                price = rng.normal(size=shape)
                rounds = ms.solve(law, first_start=first_start, price=price)
                for name, wanted in _one_by_one(law, first_start, price).items():
                    np.testing.assert_array_equal(getattr(rounds, name), wanted, err_msg=name)


def test_groups_of_eight_invariant(monkeypatch):
    """Every rollout is worked through once, together with others where that is faster and their cells fit."""
    sizes = np.array([900, 3, 0, 5, 800, 5, 4, 850, 5, 700, 5, 700, 4000, 5, 6, 4, 700, 700])
    law = ms.RoundLaw(np.zeros((sizes.sum(), 2)), np.concatenate(([0], np.cumsum(sizes))), 2)
    whole, lone = moments._side_by_side(law, 0, sizes.size)
    assert sizes[whole].tolist() == [[0, 3, 4, 4, 5, 5, 5, 5], [5, 6, 700, 700, 700, 700, 800, 850]]
    assert sorted(lone) == [(0, 1), (12, 13)]
    even = ms.RoundLaw(np.zeros((1600, 2), dtype=np.float32), np.arange(0, 1601, 100), 2)
    for nbytes, together in ((8 * 100 * 2 * 4, 1), (8 * 100 * 2 * 4 - 1, 0)):
        monkeypatch.setattr(moments, "SCRATCH_BYTES", nbytes)
        whole, lone = moments._side_by_side(even, 4, 12)
        assert whole.tolist() == [list(range(4, 12))] * together
        assert lone == [(i, i + 1) for i in range(4, 12)] * (1 - together)
    ragged = ms.RoundLaw(even.accept, even.indptr, np.full(1600, 2))
    whole, lone = moments._side_by_side(ragged, 4, 12)
    assert whole.size == 0 and lone == [(4, 12)]


@given(strategies.laws(), FIRST_STARTS, st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_price_against_reference(law, first_start, dimensions, seed):
    shape = (law.accept.shape[0], law.depth + 1)[:dimensions]
    price = np.random.default_rng(seed).normal(size=shape)
    wanted = _by_reference(law, first_start, price)
    rounds = ms.solve(law, first_start=first_start, price=price)
    np.testing.assert_allclose(rounds.price, wanted["price"], atol=1e-11)
    np.testing.assert_allclose(rounds.price_variance, wanted["price_variance"], atol=1e-10)
    assert (rounds.price_variance >= 0).all()


@given(strategies.laws(), FIRST_STARTS, st.integers(0, 2**32 - 1))
def test_price_by_occupancy_invariant(law, first_start, seed):
    price = np.random.default_rng(seed).normal(size=law.accept.shape[0])
    rounds = ms.solve(law, first_start=first_start, price=price)
    wanted = [np.sum((rounds.occupancy * price)[b:e]) for b, e in zip(law.indptr, law.indptr[1:], strict=False)]
    np.testing.assert_allclose(rounds.price, wanted, atol=1e-11)
    twice = ms.solve(law, first_start=first_start, price=2)
    np.testing.assert_allclose(twice.price, 2 * rounds.expected, atol=1e-11)
    np.testing.assert_allclose(twice.price_variance, 4 * rounds.variance, atol=1e-11)


@given(strategies.laws(), FIRST_STARTS)
def test_rounds_invariant(law, first_start):
    rounds = ms.solve(law, first_start=first_start)
    survival, drafts = law.survival(), np.arange(law.depth + 1)
    assert (rounds.variance >= 0).all()
    for i, (begin, end) in enumerate(zip(law.indptr, law.indptr[1:], strict=False)):
        left = max(end - begin - first_start, 0)
        occupancy, expected = rounds.occupancy[begin:end], rounds.expected[i]
        assert rounds.committed[i] == left
        assert not occupancy[:first_start].any()
        np.testing.assert_allclose(occupancy.sum(), expected, atol=1e-12)
        np.testing.assert_allclose(rounds.accepted_histogram[i].sum(), expected, atol=1e-12)
        assert -(-left // (law.depth + 1)) - 1e-12 <= expected <= left + 1e-12
        overshoot = sum(
            occupancy[s] * survival[begin + s, end - begin - s - 1]
            for s in range(end - begin)
            if end - begin - s <= law.depth
        )
        np.testing.assert_allclose((rounds.accepted_histogram[i] * (drafts + 1)).sum() - left, overshoot, atol=1e-12)
        reached = np.cumsum(rounds.accepted_histogram[i, ::-1])[::-1][1:]
        assert (reached <= rounds.tested[i] + 1e-12).all()
        np.testing.assert_allclose(rounds.drafted[i], _proposed(law, occupancy, begin, end), atol=1e-12)


def _proposed(law, occupancy, begin, end):
    length = np.broadcast_to(law.draft_length, law.accept.shape[:1])[begin:end]
    return float(occupancy @ np.minimum(length, np.arange(end - begin, 0, -1)))


@given(strategies.laws())
def test_value_of_every_start_invariant(law):
    value = ms.solve(law, first_start=3).value
    for s0 in range(3):
        expected = ms.solve(law, first_start=s0).expected
        for i, (begin, end) in enumerate(zip(law.indptr, law.indptr[1:], strict=False)):
            assert expected[i] == (value[begin + s0] if s0 < end - begin else 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_invariant(dtype):
    rng = np.random.default_rng(3)
    indptr = np.concatenate(([0], np.cumsum(rng.integers(0, 900, 200))))
    rows = int(indptr[-1])
    for law in (
        ms.RoundLaw(rng.random((rows, 7), dtype=dtype), indptr, rng.integers(0, 8, rows)),
        ms.RoundLaw(rng.random(4 * rows, dtype=dtype), indptr * 4, 9),
    ):
        assert law.accept.nbytes > 1 << 20
        price = rng.random((law.accept.shape[0], law.depth + 1))
        one, two, eight = (ms.solve(law, first_start=1, price=price, inverse=True, threads=n) for n in (1, 2, 8))
        for name in vars(one):
            assert getattr(one, name).tobytes() == getattr(two, name).tobytes() == getattr(eight, name).tobytes(), name


def test_case_63_int64_offsets_against_closed_form(tmp_path):
    vocabulary = 152064
    accept = np.memmap(tmp_path / "accept", dtype=np.float32, mode="w+", shape=(14124, vocabulary))
    accept[14121:, 0] = 0.5, 0.25, 1.0
    indptr = np.array([0, 14121, 14124])
    flat, length = accept.reshape(-1), np.array([vocabulary], dtype=np.int32)
    common = (flat, vocabulary, length, 0, indptr, 1, 2, 0)
    value, variance, occupancy = np.zeros(14124), np.zeros(2), np.zeros(14124)
    histogram, tested, drafted = np.zeros((2, vocabulary + 1)), np.zeros((2, vocabulary)), np.zeros(2)
    _numba.backward(*common, value, variance)
    _numba.forward(*common, occupancy, histogram, tested, drafted)
    assert value[14121:].tolist() == [2.375, 1.75, 1.0]
    assert variance[1] == 0.375 * 0.625
    assert occupancy[14121:].tolist() == [1.0, 0.5, 0.875]
    assert histogram[1, :3].tolist() == [0.875, 1.5, 0.0]
    assert drafted[1] == 3 + 0.5 * 2 + 0.875 * 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first_start": -1}, "first_start: found -1; allowed"),
        ({"first_start": 0.5}, "first_start: found 0.5; allowed"),
        ({"threads": 0}, "threads: found 0; allowed"),
        ({"price": np.ones(4)}, r"price: found shape \(4,\); allowed: a number, \(5,\) or \(5, 3\)"),
        ({"price": np.array([1, 2, 3, np.nan, 5])}, "price: rollout 1, position 0: found nan"),
        ({"price": np.where(np.arange(15).reshape(5, 3) == 14, np.inf, 1)}, "price: rollout 1, position 1: found inf"),
        ({"price": np.nan}, "price: found nan"),
    ],
)
def test_refused_options_invariant(options, message):
    law = ms.RoundLaw.from_acceptance(np.full((5, 2), 0.5), [0, 3, 5])
    with pytest.raises(ValueError, match=message):
        ms.solve(law, **options)
