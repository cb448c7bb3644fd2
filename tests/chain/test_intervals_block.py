"""Bounds of block verification from intervals of its ratios: fine grids, wider bounds, rejection where it is that."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.chain import bound_rounds, bound_rounds_block
from tests import strategies
from tests.chain.test_intervals import CLOSE, cells_of, drawn_intervals, rounds_of_all

RATIOS = np.array([0.0, 0.25, 0.5, 0.9, 1.5, 2.0, 3.0])


def block_accept(log_ratio, lengths):
    """Block verification's acceptance for a stack of log-ratios (B, T, K), as quotients of its survival."""
    products = np.exp(np.cumsum(log_ratio, axis=-1))
    survival = np.minimum(1, np.minimum.accumulate(products, axis=-1))
    before = np.concatenate((np.ones_like(survival[..., :1]), survival[..., :-1]), axis=-1)
    return np.divide(survival, before, out=np.zeros_like(survival), where=before > 0)


def width_of_survival_bounds(low, high, lengths):
    """The wider bounds: S any non-increasing sequence between its ends, as the level-by-level choice of N."""
    tokens, out = len(low), []
    ends = [np.cumprod(block_accept(x[None], lengths)[0], axis=-1) for x in (low, high)]
    for best in (min, max):
        V = np.zeros(tokens + 2)
        for s in reversed(range(tokens)):
            depth = min(int(lengths[s]), tokens - s)
            levels = np.unique(np.concatenate(([0, 1], *(end[s, :depth] for end in ends))))
            V[s] = 1
            for below, above in itertools.pairwise(levels):
                fewest, most = (int((end[s, :depth] >= above).sum()) for end in ends)
                V[s] += (above - below) * best(V[min(s + n + 1, tokens)] for n in range(fewest, most + 1))
        out.append(V[0])
    return out


@pytest.mark.parametrize("form", ["cells", "positions"])
@pytest.mark.parametrize("seed", range(3))
def test_block_bounds_against_enumeration(form, seed, capsys):
    """A grid of 9 values of each of up to 4 uncertain ratios, 0 and above 1 among them, lies within the bounds."""
    rng = np.random.default_rng(seed)
    slack, gain, exact = [], [], 0
    for _ in range(100):
        tokens, depth = int(rng.integers(1, 8)), int(rng.integers(1, 5))
        shape = (tokens, depth) if form == "cells" else (tokens,)
        low, high = drawn_intervals(rng, shape, 4, RATIOS, rows=1 if form == "cells" else None)
        lengths = rng.integers(0, depth + 1, tokens) if rng.random() < 0.5 else np.full(tokens, depth)
        free = np.flatnonzero((low < high).ravel())
        grid = np.repeat(low.reshape(1, -1), 9**free.size, axis=0)
        for j, at in enumerate(free):
            share = np.arange(len(grid)) // 9**j % 9 / 8
            grid[:, at] = low.ravel()[at] + share * (high.ravel()[at] - low.ravel()[at])
        with np.errstate(divide="ignore"):
            logs = np.array([cells_of(x, tokens, depth) for x in np.log(grid.reshape(-1, *shape))])
            ends = np.log(low), np.log(high)
        every = rounds_of_all(block_accept(logs, lengths), lengths)
        found = bound_rounds_block(*ends, [0, tokens], draft_length=lengths)
        assert found.low[0] <= every.min() + 1e-12 and every.max() <= found.high[0] + 1e-12
        wide = width_of_survival_bounds(*(cells_of(x, tokens, depth) for x in ends), lengths)
        assert wide[0] <= found.low[0] + 1e-12 and found.high[0] <= wide[1] + 1e-12
        for bound, law in ((found.low, found.low_law), (found.high, found.high_law)):
            np.testing.assert_allclose(ms.solve(law).expected, bound, **CLOSE)
        if found.kind == "exact":
            exact += found.low[0] < found.high[0]
            np.testing.assert_allclose([found.low[0], found.high[0]], [every.min(), every.max()], **CLOSE)
        elif np.ptp(every) > 1e-6:
            slack.append((found.high[0] - found.low[0]) / np.ptp(every))
            gain.append((wide[1] - wide[0]) / np.ptp(every))
    assert exact > 3 and len(slack) > 10
    with capsys.disabled():
        print(
            f"\nblock, {form}: outer / attained width, median {np.median(slack):.3f}, max {max(slack):.3f}; "
            f"with S alone bounded {np.median(gain):.3f}, {max(gain):.3f}"
        )


def test_block_ends_plugged_in_are_no_bounds_against_closed_form():
    """Positions and a constant length: rounds rise from 2.1 to 2.19 with the second ratio, from 0 to 2."""
    ratios = np.array([[0.9, x, 2, 0.9, 2] for x in (0.0, 2.0)])
    with np.errstate(divide="ignore"):
        low, high = np.log(ratios)
    plugged = [
        ms.solve(ms.round_law(np.zeros(5) - 9, x - 9, [0, 5], rule="block", draft_length=2)) for x in (low, high)
    ]
    np.testing.assert_allclose([x.expected[0] for x in plugged], [2.1, 2.19], rtol=1e-12)
    found = bound_rounds_block(low, high, [0, 5], draft_length=2)
    np.testing.assert_allclose([found.low[0], found.high[0]], [2.1, 2.19], rtol=1e-12)
    assert found.kind == "outer" and found.low_law.form == "cells"


@given(strategies.drafts(), st.integers(0, 3))
def test_block_with_nothing_uncertain_against_reference(drafts, first_start):
    log_p, log_q, indptr, length = drafts
    at = (
        np.minimum(np.arange(len(log_p))[:, None] + np.arange(log_q.shape[1]), len(log_p) - 1)
        if log_q.ndim > 1
        else ...
    )
    ratio = log_q.astype(np.float64) - log_p.astype(np.float64)[at]
    law = ms.round_law(log_p.astype(np.float64), log_q.astype(np.float64), indptr, rule="block", draft_length=length)
    found = bound_rounds_block(ratio, ratio, indptr, draft_length=length, first_start=first_start)
    np.testing.assert_allclose(found.high, ms.solve(law, first_start=first_start).expected, rtol=1e-10, atol=1e-12)
    assert found.kind == "exact" and found.low.tolist() == found.high.tolist()


def test_block_without_ratios_above_one_is_rejection_against_reference():
    rng = np.random.default_rng(5)
    low, high = drawn_intervals(rng, (40, 3), 999)
    line, above = drawn_intervals(rng, (40,), 999)
    with np.errstate(divide="ignore"):
        for ends in ((low, high), (line, above)):
            wanted = bound_rounds(*ends, [0, 17, 40], draft_length=3, first_start=1)
            found = bound_rounds_block(*np.log(ends), [0, 17, 40], draft_length=3, first_start=1)
            np.testing.assert_allclose([found.low, found.high], [wanted.low, wanted.high], rtol=1e-12)
            assert found.kind == wanted.kind == "exact" and found.lower.form == wanted.lower.form
            assert found.high_pattern.shape == wanted.high_pattern.shape


def test_block_kind_against_closed_form():
    """A ratio that may exceed 1 by an open factor makes a bound outer only if another draft is tested after it."""
    zero = np.zeros((3, 2))
    for column, kind in ((0, "outer"), (1, "exact")):
        high, low = zero.copy(), zero.copy()
        high[0, column], low[0, 1 - column], low[1, 0] = 1, -2, -1
        assert bound_rounds_block(low, high, [0, 3]).kind == kind
        assert bound_rounds_block(low, high, [0, 3], draft_length=1).kind == "exact"
    without_bound = bound_rounds_block(np.log([[0.5, 0.5], [0.5, 1]]), np.array([[np.inf, -0.5], [0, 0]]), [0, 2])
    assert without_bound.lower.accept[0].tolist() == [0.5, 0.5] and without_bound.upper.accept[0].tolist() == [1, 1]
    never = bound_rounds_block(np.full((3, 2), -np.inf), np.array([[np.inf, -np.inf], [0, 0], [0, 0]]), [0, 3])
    assert never.upper.accept[0].tolist() == [1, 0]
