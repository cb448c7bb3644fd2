"""Bounds from intervals of acceptances against all end patterns, plain recursions and points within."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.chain import bound_rounds, bound_rounds_block
from tests import strategies

VALUES = np.array([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


@st.composite
def intervals(draw):
    """Both ends of acceptances in both forms, offsets, a length, and no price, a constant or one by start."""
    indptr = draw(strategies.offsets())
    rows, depth, dtype = int(indptr[-1]), draw(st.integers(0, 9)), draw(strategies.FLOATS)
    shape = (rows, depth) if draw(st.booleans()) else (rows,)
    one, two = (strategies.filled(draw, strategies.PROBABILITIES, shape, dtype) for _ in range(2))
    price = draw(st.sampled_from(["none", "constant", "by start"]))
    costs = {"none": None, "constant": 1.5, "by start": strategies.filled(draw, st.floats(-1, 3), (rows,), np.float64)}
    return np.minimum(one, two), np.maximum(one, two), indptr, strategies.lengths(draw, rows, depth), costs[price]


def cells_of(values, tokens, depth):
    """Acceptances of a rollout in cells; those of positions are read at ``s+k-1``."""
    if np.ndim(values) == 2:
        return values
    at = np.arange(tokens)[:, None] + np.arange(depth)
    return values[np.minimum(at, max(tokens - 1, 0))]


def by_recursion(low, high, indptr, length, price=None):
    """The robust recursion cell by cell: least and most from every start."""
    rows = int(indptr[-1])
    lengths, costs = np.broadcast_to(length, rows), np.broadcast_to(1.0 if price is None else price, rows)
    out = np.zeros((2, rows))
    for value, best in zip(out, (min, max), strict=True):
        for first, last in itertools.pairwise(indptr):
            V = np.append(np.zeros(last - first), [0.0, 0.0])
            ends = [cells_of(x[first:last], last - first, int(max(lengths, default=0))) for x in (low, high)]
            for s in reversed(range(last - first)):
                depth = min(int(lengths[first + s]), last - first - s)
                U = V[s + depth + 1]
                for k in range(depth, 0, -1):
                    U = best(a * U + (1 - a) * V[s + k] for a in (float(end[s, k - 1]) for end in ends))
                V[s] = costs[first + s] + U
            value[first:last] = V[: last - first]
    return out


def rounds_of_all(cells, lengths, price=None):
    """Expected rounds of one rollout for a stack of acceptances (B, T, K), by the law of N."""
    count, tokens, _ = cells.shape
    V = np.zeros((count, tokens + 1))
    for s in reversed(range(tokens)):
        reach, total = np.ones(count), np.full(count, 1.0 if price is None else price[s])
        for k in range(min(int(lengths[s]), tokens - s)):
            total += reach * (1 - cells[:, s, k]) * V[:, s + k + 1]
            reach = reach * cells[:, s, k]
        V[:, s] = total + reach * V[:, min(s + min(int(lengths[s]), tokens - s) + 1, tokens)]
    return V[:, 0]


def all_ends(low, high):
    """Every choice of ends of the entries that have two, (2^n, ...)."""
    free = np.flatnonzero((low < high).ravel())
    out = np.repeat(low.reshape(1, low.size), 1 << free.size, axis=0)
    for j, at in enumerate(free):
        out[(np.arange(len(out)) >> j) & 1 == 1, at] = high.ravel()[at]
    return out.reshape(len(out), *low.shape)


def drawn_intervals(rng, shape, free, values=VALUES, rows=None):
    """Random ends, ties and certainties among them, at most ``free`` of which differ, in the first ``rows`` rows."""
    low = rng.choice(values, shape) if rng.random() < 0.7 else rng.random(shape)
    high = np.maximum(low, rng.choice(values, shape) if rng.random() < 0.7 else rng.random(shape))
    if rows is not None:
        high[rows:] = low[rows:]
    wide = np.flatnonzero((low < high).ravel())
    fixed = rng.permutation(wide)[free:]
    high.ravel()[fixed] = low.ravel()[fixed]
    return low, high


@pytest.mark.parametrize("seed", range(10))
def test_all_end_patterns_against_enumeration(seed):
    """300 problems of up to 12 uncertain cells each, with lengths, prices and first starts."""
    rng = np.random.default_rng(seed)
    for _ in range(300):
        tokens, depth = int(rng.integers(1, 9)), int(rng.integers(0, 5))
        low, high = drawn_intervals(rng, (tokens, depth), int(rng.choice([3, 6, 8, 12], p=[0.3, 0.4, 0.2, 0.1])))
        lengths = rng.integers(0, depth + 1, tokens) if rng.random() < 0.5 else np.full(tokens, depth)
        price = rng.normal(1, 0.5, tokens) if rng.random() < 0.3 else None
        start = int(rng.integers(0, 2))
        found = bound_rounds(low, high, [0, tokens], draft_length=lengths, first_start=start, price=price)
        every = rounds_of_all(all_ends(low, high)[:, start:], lengths[start:], None if price is None else price[start:])
        np.testing.assert_allclose([found.low[0], found.high[0]], [every.min(), every.max()], **CLOSE)
        assert found.kind == "exact"


@given(intervals(), st.integers(0, 3))
def test_values_and_laws_against_reference(problem, first_start):
    low, high, indptr, length, price = problem
    found = bound_rounds(low, high, indptr, draft_length=length, first_start=first_start, price=price)
    wanted = by_recursion(low, high, indptr, length, price)
    np.testing.assert_allclose([found.low_value, found.high_value], wanted, **CLOSE)
    for value, bound in zip(wanted, (found.low, found.high), strict=True):
        for i, (begin, end) in enumerate(itertools.pairwise(indptr)):
            assert bound[i] == pytest.approx(value[begin + first_start] if begin + first_start < end else 0, abs=1e-12)
    for bound, law in ((found.low, found.low_law), (found.high, found.high_law)):
        rounds = ms.solve(law, first_start=first_start, price=price)
        np.testing.assert_allclose(rounds.expected if price is None else rounds.price, bound, **CLOSE)
    assert low.ndim == 1 or found.kind == "exact"


@given(strategies.laws(), st.integers(0, 3))
def test_nothing_uncertain_against_reference(law, first_start):
    """Both bounds are what ``solve`` gives, and are called exact, whatever the form and the lengths."""
    options = {"draft_length": law.draft_length, "first_start": first_start}
    found = bound_rounds(law.accept, law.accept, law.indptr, **options)
    rounds = ms.solve(law, first_start=first_start)
    np.testing.assert_allclose(found.low, rounds.expected, **CLOSE)
    np.testing.assert_allclose([found.low_value, found.high_value], [rounds.value] * 2, **CLOSE)
    assert found.low.tolist() == found.high.tolist() and found.kind == "exact"


@pytest.mark.parametrize("form", ["cells", "positions"])
@pytest.mark.parametrize("varying", [False, True])
def test_points_within_against_reference(form, varying):
    """1000 random points within the intervals, decoded as so many rollouts, stay within the bounds."""
    rng = np.random.default_rng(4)
    tokens, depth = 30, 4
    low, high = drawn_intervals(rng, (tokens, depth) if form == "cells" else (tokens,), 999)
    lengths = rng.integers(0, depth + 1, tokens) if varying else depth
    found = bound_rounds(low, high, [0, tokens], draft_length=lengths)
    assert found.kind == ("outer" if varying and form == "positions" else "exact")
    points = low + (high - low) * rng.choice([0.0, 1.0, 0.5, 0.3], (1000, *low.shape))
    law = ms.RoundLaw(
        points.reshape(-1, *low.shape[1:]),
        np.arange(0, 1000 * tokens + 1, tokens),
        np.tile(lengths, 1000) if varying else depth,
    )
    rounds = ms.solve(law).expected
    assert found.low[0] <= rounds.min() + 1e-12 and rounds.max() - 1e-12 <= found.high[0]


def test_more_acceptance_more_rounds_against_closed_form():
    """All 0 but a[2,.] = 1 and a[0,1] = 1: with a[0,2] = 1 the round skips start 2, from which all is accepted."""
    low = np.zeros((6, 2))
    low[0, 0] = low[2] = 1
    high = low.copy()
    high[0, 1] = 1
    found = bound_rounds(low, high, [0, 6])
    assert found.low.tolist() == [3] and found.high.tolist() == [4]
    assert found.high_pattern.tolist() == [[False, True], *[[False, False]] * 5] and not found.low_pattern.any()
    assert ms.solve(found.upper).expected.tolist() == [4]
    assert repr(found) == "Bounds(1 rollout, 3 to 4 expected rounds, exact)"
    assert repr(bound_rounds(low, low, [0, 6], price=2)) == "Bounds(1 rollout, 6 to 6 expected price, exact)"


@pytest.mark.parametrize("seed", range(5))
def test_positions_against_enumeration(seed, capsys):
    """All ends of up to 8 positions: attained where ``s + L[s]`` never falls, contained where it does."""
    rng = np.random.default_rng(seed)
    slack, outer = [], 0
    for _ in range(100):
        tokens, depth = int(rng.integers(1, 12)), int(rng.integers(0, 5))
        low, high = drawn_intervals(rng, (tokens,), 8)
        kind = rng.choice(["constant", "rising reach", "any", "any"])
        lengths = rng.integers(0, depth + 1, tokens)
        if kind == "rising reach":
            lengths = np.maximum.accumulate(np.arange(tokens) + lengths) - np.arange(tokens)
        length = depth if kind == "constant" else lengths
        found = bound_rounds(low, high, [0, tokens], draft_length=length)
        lengths = np.broadcast_to(length, tokens)
        ends = np.array([cells_of(x, tokens, int(lengths.max())) for x in all_ends(low, high)])
        every = rounds_of_all(ends, lengths)
        assert found.kind == "exact" or kind == "any"
        if found.kind == "exact":
            np.testing.assert_allclose([found.low[0], found.high[0]], [every.min(), every.max()], **CLOSE)
            np.testing.assert_allclose([found.low[0], found.high[0]], every[[-1, 0]], **CLOSE)
            assert found.low_law.form == "positions" and found.low_pattern.all() and not found.high_pattern.any()
            continue
        outer += 1
        assert found.low[0] <= every.min() + 1e-12 and every.max() <= found.high[0] + 1e-12
        slack.append((found.high[0] - found.low[0]) / max(np.ptp(every), 1e-9))
    assert outer > 5 and min(slack) > 1 - 1e-9
    with capsys.disabled():
        print(
            f"\npositions, varying lengths: outer / attained width, median {np.median(slack):.3f}, max {max(slack):.3f}"
        )


def test_positions_with_varying_lengths_may_be_outer_against_closed_form():
    """Whatever position 1 accepts, 3 rounds are expected: it is good for one start as much as it is bad for another."""
    lengths, line = np.array([3, 1, 2, 0, 2]), np.array([0.5, 0, 1, 0.5, 0.5])
    for x in (0, 0.3, 1):
        line[1] = x
        assert ms.solve(ms.RoundLaw(line, [0, 5], lengths)).expected == pytest.approx([3], rel=1e-12)
    found = bound_rounds(np.where(np.arange(5) == 1, 0, line), line, [0, 5], draft_length=lengths)
    assert (found.kind, found.low.tolist(), found.high.tolist()) == ("outer", [2.75], [3.25])
    assert found.low_pattern.shape == (5, 3)


def test_price_by_start_of_positions_is_outer_against_enumeration():
    """A dear start that an acceptance leads to: the least price is at neither end, and the bounds hold."""
    low, high, price = np.zeros(5), np.ones(5), np.array([1.0, 1, 9, 1, 1])
    found = bound_rounds(low, high, [0, 5], draft_length=1, price=price)
    every = rounds_of_all(np.array([cells_of(x, 5, 1) for x in all_ends(low, high)]), np.ones(5), price)
    assert found.kind == "outer" and every.min() == 3 and every[-1] == 11
    assert found.low[0] <= every.min() and every.max() <= found.high[0]
    constant = bound_rounds(low, high, [0, 5], draft_length=1, price=2)
    rounds = bound_rounds(low, high, [0, 5], draft_length=1)
    assert constant.kind == rounds.kind == "exact" and constant.high.tolist() == (2 * rounds.high).tolist()
    negative = bound_rounds(low, high, [0, 5], draft_length=1, price=-1)
    assert (negative.kind, negative.low.tolist(), negative.high.tolist()) == ("outer", [-5], [-3])


def test_case_69_tolerance_on_log_probs_against_reference():
    """Two launches of the same 64 tokens, .134 nats apart at most: with that tolerance, either bounds the other."""
    rng = np.random.default_rng(69)
    one = np.log(rng.uniform(0.2, 0.8, 64))
    one[0] = -0.156
    two = one + rng.uniform(-0.134, 0.134, 64)
    two[0] = -0.022
    log_q, indptr, tolerance = np.log(rng.uniform(0.1, 0.9, 64)), [0, 64], 0.134 + 1e-12
    for rule, bound in (("rejection", bound_rounds), ("block", bound_rounds_block)):
        for log_p in (one, two):
            ends = log_q - log_p - tolerance, log_q - log_p + tolerance
            if rule == "rejection":
                ends = tuple(np.exp(np.minimum(end, 0)) for end in ends)
            found = bound(*ends, indptr, draft_length=5)
            assert found.kind == ("exact" if rule == "rejection" else "outer")
            for other in (one, two):
                rounds = ms.solve(ms.round_law(other, log_q, indptr, rule=rule, draft_length=5)).expected[0]
                assert found.low[0] < rounds < found.high[0] and found.high[0] - found.low[0] < 12
    known = bound_rounds(*(np.exp(np.minimum(log_q - two, 0)),) * 2, indptr, draft_length=5)
    assert known.low.tolist() == known.high.tolist()


def test_edges_against_closed_form():
    """No rollouts, empty ones and ones of a token, no depth, all before the first start, lengths past every end."""
    for bound, low in ((bound_rounds, 0.0), (bound_rounds_block, -np.inf)):
        nothing = bound(np.zeros((0, 2)), np.zeros((0, 2)), [0])
        assert nothing.low.shape == nothing.low_value.shape == (0,) and nothing.kind == "exact"
        assert repr(nothing) == "Bounds(0 rollouts, 0 to 0 expected rounds, exact)"
        high = low + 1 if low == 0 else 0.0
        found = bound(np.full((3, 4), low), np.full((3, 4), high), [0, 0, 1, 3])
        assert found.low.tolist() == [0, 1, 1] and found.high.tolist() == [0, 1, 2]
        assert found.low_value.tolist() == [1, 1, 1] and found.high_value.tolist() == [1, 2, 1]
        later = bound(np.full((3, 4), low), np.full((3, 4), high), [0, 0, 1, 3], first_start=1)
        assert later.low.tolist() == later.high.tolist() == [0, 0, 1]
        past = bound(np.full((3, 4), low), np.full((3, 4), high), [0, 0, 1, 3], first_start=10**12)
        assert past.low.tolist() == past.high.tolist() == [0, 0, 0]
        plain = bound(np.full((3, 0), low), np.full((3, 0), high), [0, 3])
        assert plain.low.tolist() == plain.high.tolist() == [3] and plain.low_pattern.shape == (3, 0)
        none = bound(np.full(3, np.nan), np.full(3, np.nan), [0, 3], draft_length=0)
        assert none.low.tolist() == none.high.tolist() == [3]
        long = bound(np.full(3, low), np.full(3, high), [0, 3], draft_length=2**31 - 1)
        assert (long.low.tolist(), long.high.tolist(), long.kind) == ([1], [3], "exact")
        fall = bound(np.full(3, low), np.full(3, high), [0, 3], draft_length=[2**31 - 1, 0, 0])
        assert (fall.low.tolist(), fall.high.tolist(), fall.kind) == ([1], [3], "outer")
    long = bound_rounds_block(np.full(3, -1.0), np.full(3, 0.5), [0, 3], draft_length=2**31 - 1)
    assert long.kind == "outer" and long.low.tolist() == [1] and long.high_pattern.shape == (3, 3)


def test_numbers_past_the_ends_are_ignored_invariant():
    """NaN past an end or deeper than the length changes nothing, in a mixture of lengths and of float types."""
    rng = np.random.default_rng(7)
    indptr = np.concatenate(([0], np.cumsum(rng.integers(0, 50, 37))))
    rows = int(indptr[-1])
    low, high = drawn_intervals(rng, (rows, 6), 10**9)
    left = np.repeat(indptr[1:], np.diff(indptr)) - np.arange(rows)
    for length in (6, 4, rng.integers(0, 7, rows)):
        dirty = np.arange(1, 7) > np.minimum(left, length)[:, None]
        clean = bound_rounds(np.where(dirty, 0, low), np.where(dirty, 1, high), indptr, draft_length=length)
        found = bound_rounds(np.where(dirty, np.nan, low), np.where(dirty, -7, high), indptr, draft_length=length)
        np.testing.assert_array_equal([found.low_value, found.high_value], [clean.low_value, clean.high_value])
        np.testing.assert_allclose(
            [found.low_value, found.high_value], by_recursion(low, high, indptr, length), rtol=1e-12
        )
        assert not found.high_pattern[dirty].any()
        block = bound_rounds_block(np.where(dirty, np.nan, low - 1), high - 1, indptr, draft_length=length)
        assert np.isfinite(block.high_value).all()
    mixed = bound_rounds(low.astype(np.float32) * np.float32(0.9), high, indptr)
    wanted = by_recursion(low.astype(np.float32) * np.float32(0.9), high, indptr, 6)
    np.testing.assert_allclose([mixed.low_value, mixed.high_value], wanted, rtol=1e-12)


@pytest.mark.parametrize("form", ["cells", "positions"])
def test_threads_invariant(form):
    rng = np.random.default_rng(8)
    indptr = np.concatenate(([0], np.cumsum(rng.integers(0, 3000, 200))))
    rows = int(indptr[-1])
    low, high = np.sort(rng.random((2, rows, 5) if form == "cells" else (2, rows)), axis=0)
    for bound, length in ((bound_rounds, 5), (bound_rounds_block, 3), (bound_rounds, rng.integers(0, 6, rows))):
        one, two = (bound(low, high, indptr, draft_length=length, threads=n) for n in (1, 2))
        for name in ("low", "high", "low_value", "high_value"):
            assert getattr(one, name).tolist() == getattr(two, name).tolist()
        assert one.kind == two.kind


def test_refusals_invariant():
    good, offsets = np.full((3, 2), 0.5), [0, 1, 3]

    def but(value, at=(1, 0)):
        changed = good.copy()
        changed[at] = value
        return changed

    place = "accept_lo, accept_hi: rollout 1, position 0, depth 1: found"
    for low, high, found in (
        (but(0.75), good, "0.75 and 0.5"),
        (but(np.nan), good, "nan and 0.5"),
        (good, but(np.nan), "0.5 and nan"),
        (but(-0.25), good, "-0.25 and 0.5"),
        (good, but(1.5), "0.5 and 1.5"),
    ):
        with pytest.raises(ValueError, match=f"{place} {found}; allowed: 0 <= lo <= hi <= 1"):
            bound_rounds(low, high, offsets)
    with pytest.raises(
        ValueError, match=r"log_ratio_lo, log_ratio_hi: rollout 1, position 0, depth 1: found 0\.75 and"
    ):
        bound_rounds_block(but(0.75), good, offsets)
    with pytest.raises(ValueError, match=r"accept_lo, accept_hi: rollout 1, position 1: found nan and 0\.5"):
        bound_rounds([0.5, 0.5, np.nan], [0.5] * 3, offsets, draft_length=1)
    with pytest.raises(ValueError, match=r"accept_hi: found shape \(3,\); allowed: \(3, 2\), that of accept_lo"):
        bound_rounds(good, good[:, 0], offsets)
    with pytest.raises(ValueError, match=r"accept_lo: found shape \(\); allowed: \(N, K\) or \(N,\)"):
        bound_rounds(0.5, good, offsets)
    with pytest.raises(ValueError, match="draft_length: absent"):
        bound_rounds(good[:, 0], good[:, 0], offsets)
    with pytest.raises(ValueError, match="draft_length: found 3; allowed: 0 to the recorded 2"):
        bound_rounds(good, good, offsets, draft_length=3)
    with pytest.raises(ValueError, match="indptr"):
        bound_rounds(good, good, [0, 2])
    with pytest.raises(ValueError, match=r"price: found shape \(3, 3\); allowed: a number or \(3,\)"):
        bound_rounds(good, good, offsets, price=np.ones((3, 3)))
    with pytest.raises(ValueError, match="price: rollout 1, position 1: found inf; allowed: finite numbers"):
        bound_rounds(good, good, offsets, price=[1, 1, np.inf])
    with pytest.raises(ValueError, match="first_start"):
        bound_rounds(good, good, offsets, first_start=-1)
    with pytest.raises(ValueError, match="threads"):
        bound_rounds(good, good, offsets, threads=0)
