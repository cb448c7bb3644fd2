"""The chain's kernels against its equations, and what must hold of every law."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.chain import _numba, _reference
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
        found["price"] = np.zeros(rollouts)
        row_step, draft_step = {0: (0, 0), 1: (1, 0), 2: (depth + 1, 1)}[np.ndim(price)]
        _reference.priced(*common, np.ravel(price), row_step, draft_step, found["price"])
    return found


@given(strategies.laws(), FIRST_STARTS)
def test_every_field_against_reference(law, first_start):
    rounds = ms.solve(law, first_start=first_start)
    for name, wanted in _by_reference(law, first_start).items():
        np.testing.assert_allclose(getattr(rounds, name), wanted, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("rollouts", range(1, 10))
def test_four_at_once_against_one_after_the_other(rollouts):
    """Bit by bit, for every remainder, ragged, with NaN behind the ends and in both forms."""
    rng = np.random.default_rng(rollouts)
    indptr = np.concatenate(([0], np.cumsum(rng.integers(0, 12, rollouts))))
    rows = int(indptr[-1])
    accept = rng.random((rows, 5)).astype(np.float32)
    left = np.repeat(indptr[1:], np.diff(indptr)) - np.arange(rows)
    accept[np.arange(1, 6) > left[:, None]] = np.nan
    for values, depth in ((accept, 5), (accept, 0), (rng.random(rows), 4), (rng.random(rows), 30)):
        law = ms.RoundLaw(values[:, :depth] if values.ndim == 2 else values, indptr, depth)
        found = [(np.empty(rows), np.empty(rollouts)) for _ in range(2)]
        for backward, out in zip((_numba.backward, _numba.backward_four), found, strict=True):
            backward(*law.layout(), 0, rollouts, 1, *out)
        for one, four in zip(*found, strict=True):
            np.testing.assert_array_equal(one, four)


@given(strategies.laws(), FIRST_STARTS, st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_price_against_reference(law, first_start, dimensions, seed):
    shape = (law.accept.shape[0], law.depth + 1)[:dimensions]
    price = np.random.default_rng(seed).normal(size=shape)
    wanted = _by_reference(law, first_start, price)["price"]
    np.testing.assert_allclose(ms.solve(law, first_start=first_start, price=price).price, wanted, atol=1e-11)


@given(strategies.laws(), FIRST_STARTS, st.integers(0, 2**32 - 1))
def test_price_by_occupancy_invariant(law, first_start, seed):
    price = np.random.default_rng(seed).normal(size=law.accept.shape[0])
    rounds = ms.solve(law, first_start=first_start, price=price)
    wanted = [np.sum((rounds.occupancy * price)[b:e]) for b, e in zip(law.indptr, law.indptr[1:], strict=False)]
    np.testing.assert_allclose(rounds.price, wanted, atol=1e-11)
    np.testing.assert_allclose(ms.solve(law, first_start=first_start, price=2).price, 2 * rounds.expected, atol=1e-11)


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
