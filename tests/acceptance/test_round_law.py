"""Acceptance rules: kernels, invariants, known answers and refusals."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given

import markov_spec as ms
from markov_spec.acceptance import RULES, _reference, lossy
from tests import strategies

RATIO_RULES = ["rejection", "block"]
NAN, INF = np.nan, np.inf


def _log(values):
    with np.errstate(divide="ignore"):
        return np.log(values)


def _by_reference(rule, log_p, log_q, indptr, length):
    depth = log_q.shape[1] if log_q.ndim == 2 else int(np.max(length, initial=0))
    logs = np.zeros((log_p.size, depth))
    step = int(np.ndim(length))
    row = log_q.shape[1] if log_q.ndim == 2 else 1
    kernel = getattr(_reference, rule)
    assert kernel(log_p, log_q.reshape(-1), row, np.atleast_1d(length), step, indptr, 0, indptr.size - 1, logs) == -1
    return ms.RoundLaw(np.exp(logs), indptr, length)


@pytest.mark.parametrize("rule", RATIO_RULES)
@given(strategies.drafts())
def test_law_against_reference(rule, drafts):
    log_p, log_q, indptr, length = drafts
    law = ms.round_law(log_p, log_q, indptr, rule=rule, draft_length=length)
    wanted = _by_reference(rule, log_p, log_q, indptr, length).survival()
    assert law.accept.dtype == log_q.dtype
    assert law.exactness == "exact"
    assert law.form == ("positions" if log_q.ndim == 1 and rule == "rejection" else "cells")
    tolerance = 1e-5 if log_q.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(law.survival(), wanted[:, : law.depth], rtol=tolerance, atol=1e-30)
    assert not wanted[:, law.depth :].any()


@given(strategies.drafts())
def test_block_keeps_no_fewer_than_rejection_invariant(drafts):
    log_p, log_q, indptr, length = drafts
    block, rejection = (
        ms.round_law(log_p, log_q.astype(np.float64), indptr, rule=rule, draft_length=length).survival()
        for rule in ("block", "rejection")
    )
    assert (block >= rejection * (1 - 1e-12)).all()


@pytest.mark.parametrize("rule", RATIO_RULES)
@given(strategies.drafts())
def test_ignored_cells_invariant(rule, drafts):
    log_p, log_q, indptr, length = drafts
    if log_q.ndim == 1:
        return
    left = np.repeat(indptr[1:], np.diff(indptr)) - np.arange(log_p.size)
    ignored = np.arange(1, log_q.shape[1] + 1) > np.minimum(left, length)[:, None]
    clean, dirty = np.where(ignored, 0, log_q), np.where(ignored, NAN, log_q)
    one, two = (ms.round_law(log_p, q, indptr, rule=rule, draft_length=length) for q in (clean, dirty))
    assert one.survival().tobytes() == two.survival().tobytes()
    assert np.isfinite(two.accept).all()


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_autoregressive_drafts_as_cells_invariant(rule):
    rng = np.random.default_rng(1)
    log_p, log_q = np.log(rng.random(9)), np.log(rng.random(9))
    indptr, length = [0, 4, 9], np.array([3, 0, 2, 1, 3, 3, 1, 2, 0])
    cells = np.array([[log_q[min(s + k, 8)] for k in range(3)] for s in range(9)])
    positions = ms.round_law(log_p, log_q, indptr, rule=rule, draft_length=length).survival()
    np.testing.assert_array_equal(
        positions, ms.round_law(log_p, cells, indptr, rule=rule, draft_length=length).survival()
    )


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_one_hot_drafts_against_match(rule):
    rng = np.random.default_rng(2)
    hit = rng.random((60, 4)) < 0.6
    log_p, log_q = np.log(rng.random(60)), np.where(hit, 0.0, -INF)
    indptr = [0, 1, 21, 21, 60]
    wanted = ms.round_law(None, None, indptr, rule="match", hit=hit).survival()
    np.testing.assert_array_equal(ms.round_law(log_p, log_q, indptr, rule=rule).survival(), wanted)
    np.testing.assert_array_equal(ms.round_law(None, log_q, indptr, rule="match").survival(), wanted)


def test_small_probabilities_against_closed_form():
    log_p, log_q = np.log([1e-9, 2e-8, 1e-10, 1e-300]), np.log([2e-8, 1e-9, 1e-12, 1e-301])
    law = ms.round_law(log_p, log_q, [0, 4], rule="rejection", draft_length=1)
    np.testing.assert_allclose(law.accept, [1, 0.05, 0.01, 0.1], rtol=1e-12)
    long = ms.round_law(np.zeros(400), np.full(400, -20.0), [0, 400], rule="block", draft_length=400)
    np.testing.assert_allclose(long.accept[0], np.exp(-20), rtol=1e-9)


def test_nothing_is_accepted_after_zero_survival_against_closed_form():
    law = ms.round_law(np.log([0.5] * 4), np.log([[1, 1, 1]] * 4) - [[0, np.inf, 0]], [0, 4], rule="block")
    assert law.accept[0].tolist() == [1, 0, 0]
    law = ms.round_law(np.log([0.5] * 4), np.log([[1, 1, 1]] * 4) - [[0, np.inf, 0]], [0, 4], rule="rejection")
    assert law.accept[0].tolist() == [1, 0, 1]


def test_case_15_leading_run_against_closed_form():
    hit = np.ones((8, 4), dtype=bool)
    hit[0] = 1, 0, 1, 1
    law = ms.round_law(None, None, [0, 8], rule="match", hit=hit)
    assert law.survival()[0].sum() == 1
    hit = np.ones((8, 3), dtype=bool)
    hit[[0, 4]] = [1, 0, 1], [1, 1, 1]
    law = ms.round_law(None, None, [0, 4, 8], rule="match", hit=hit)
    accepted = law.survival()[[0, 4]].sum(axis=1)
    assert accepted.tolist() == [1, 3]
    starts = np.flatnonzero(ms.solve(law).occupancy)
    assert starts.tolist() == [0, 2, 4]  # 2 and 4 committed


def _acceptance_at_each_token(p, q, rule="rejection", hit=None):
    """a(x) for rollouts of the one token x; without the tokens that the target never generates."""
    seen = np.flatnonzero(p)
    log_q = None if q is None else _log(np.asarray(q)[seen])[:, None]
    law = ms.round_law(_log(p[seen]), log_q, np.arange(seen.size + 1), rule=rule, hit=hit)
    a = np.zeros(len(p))
    a[seen] = law.survival()[:, 0]
    return a


def test_case_50_drafting_mode_against_closed_form():
    p = np.exp([2, 1.5, 1, 0.5])
    p /= p.sum()
    np.testing.assert_allclose(p, [0.4551, 0.2760, 0.1674, 0.1015], atol=5e-5)
    np.testing.assert_allclose(np.sum(p * _acceptance_at_each_token(p, p)), 1.0, rtol=1e-14)
    np.testing.assert_allclose(np.sum(p * _acceptance_at_each_token(p, [1, 0, 0, 0])), 0.4551, atol=5e-5)


def test_case_51_greedy_verification_against_closed_form():
    greedy_p, greedy_q = np.array([0.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0])
    assert _acceptance_at_each_token(greedy_p, greedy_q)[1] == 0
    p, q = np.array([0.3, 0.5, 0.2]), np.array([0.2, 0.0, 0.8])
    # Of the draws of token 0 (probability .2) the share that is accepted.
    np.testing.assert_allclose(p[0] * _acceptance_at_each_token(p, q)[0] / q[0], 1.0, rtol=1e-14)


def test_case_88_fixed_siblings_against_closed_form():
    for p, width, wanted in (
        ([0.5, 0.3, 0.2], 2, 0.8), ([0.5, 0.3, 0.2], 1, 0.5), ([0.51, 0.49], 1, 0.51), ([0.51, 0.49], 2, 1.0),
    ):  # fmt: skip
        p = np.array(p)
        a = _acceptance_at_each_token(p, None, "match", hit=(np.arange(len(p)) < width)[:, None])
        np.testing.assert_allclose(np.sum(p * a), wanted, rtol=1e-14)


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_half_precision_against_float32(rule):
    log_p, log_q = -np.arange(1, 7) / 8, -np.arange(12)[::-1].reshape(6, 2) / 4
    wanted = ms.round_law(log_p, log_q.astype(np.float32), [0, 6], rule=rule)
    for given_q in (
        log_q.astype(ml_dtypes.bfloat16),
        log_q.astype(np.float16),
        torch.tensor(log_q, dtype=torch.bfloat16),
        torch.tensor(log_q, dtype=torch.float16, requires_grad=True),
    ):
        law = ms.round_law(torch.tensor(log_p), given_q, [0, 6], rule=rule).numpy()
        assert law.accept.dtype == np.float32
        np.testing.assert_array_equal(law.accept, wanted.accept)


def test_constant_draft_length_narrows_the_law_invariant():
    cells = np.log(np.full((6, 5), 0.5))
    for rule in RATIO_RULES:
        assert ms.round_law(np.zeros(6), cells, [0, 6], rule=rule, draft_length=2).accept.shape == (6, 2)
    assert ms.round_law(None, None, [0, 6], rule="match", hit=cells < 0, draft_length=2).depth == 2
    assert ms.round_law(None, None, [0, 6], rule="none", draft_length=2).depth == 0


P, Q, ENDS = np.log(np.full(5, 0.5)), np.log(np.full((5, 2), 0.5)), [0, 3, 5]


def _with(values, at, value):
    changed = values.copy()
    changed[at] = value
    return changed


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((P, Q, ENDS), {"rule": "greedy"}, "rule: found 'greedy'; allowed: rejection, block, match, .*, none"),
        ((None, Q, ENDS), {"rule": "block"}, "log_p: absent; rule 'block' needs it"),
        ((P, None, ENDS), {"rule": "rejection"}, "log_q: absent; rule 'rejection' needs it"),
        ((P, None, ENDS), {"rule": "match"}, "hit: absent; rule 'match' needs it"),
        ((P, Q, ENDS), {"rule": "match"}, "log_q: rollout 0, position 0, depth 1: found -0.69.*'match' needs hit"),
        ((P, P, ENDS), {"rule": "match", "draft_length": 1}, "log_q: rollout 0, position 0: found -0.69.*needs hit"),
        ((P, None, ENDS), {"rule": "match", "hit": Q}, "hit: found dtype float64; allowed: bool"),
        ((P, P, ENDS), {"rule": "rejection"}, "draft_length: absent"),
        ((P, Q, ENDS), {"rule": "block", "draft_length": 3}, "draft_length: found 3; allowed: 0 to the recorded 2"),
        ((P, Q, ENDS), {"rule": "block", "draft_length": [0, 1, 2, 2, -1]}, "draft_length: rollout 1, position 1"),
        ((P[:4], Q, ENDS), {"rule": "block"}, r"log_p: found shape \(4,\); allowed: \(5,\)"),
        ((P, Q[:4], ENDS), {"rule": "block"}, r"log_q: found shape \(4, 2\); allowed: \(5,\) or \(5, K\)"),
        ((P, Q, [0, 6, 5]), {"rule": "block"}, "indptr: rollout 1 runs from 6 back to 5"),
        ((_with(P, 3, -INF), Q, ENDS), {"rule": "block"}, "log_p: rollout 1, position 0: found -inf"),
        ((_with(P, 4, 2e-6), Q, ENDS), {"rule": "block"}, "log_p: rollout 1, position 1: found 2e-06"),
        ((P, _with(Q, (3, 1), NAN), ENDS), {"rule": "block"}, "log_q: rollout 1, position 0, depth 2: found nan"),
        ((P, _with(Q, (3, 0), INF), ENDS), {"rule": "rejection"}, "log_q: rollout 1, position 0, depth 1: found inf"),
        ((P, _with(Q, (1, 1), 2e-6), ENDS), {"rule": "rejection"}, "rollout 0, position 1, depth 2: found 2e-06"),
        ((P, _with(P, 4, NAN), ENDS), {"rule": "rejection", "draft_length": 2}, "rollout 1, position 1: found nan"),
        ((P, _with(P, 4, NAN), ENDS), {"rule": "block", "draft_length": 2}, "rollout 1, position 1: found nan"),
        ((P, Q.astype("S"), ENDS), {"rule": "block"}, "log_q: found dtype"),
    ],
)
def test_refused_inputs_invariant(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        ms.round_law(*arguments, **options)


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_first_bad_cell_is_named_at_any_size_invariant(rule):
    log_q = np.full((300_000, 2), -1.0, dtype=np.float32)
    log_q[[100_000, 250_000], 1] = NAN
    indptr = np.arange(0, 300_001, 1000)
    with pytest.raises(ValueError, match="rollout 100, position 0, depth 2: found nan"):
        ms.round_law(np.full(300_000, -1.0), log_q, indptr, rule=rule)


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_one_rollout_among_many_invariant(rule):
    rng = np.random.default_rng(4)
    indptr = np.concatenate(([0], np.cumsum(rng.integers(0, 3000, 100))))
    rows = int(indptr[-1])
    log_p, log_q = -rng.exponential(size=rows), -rng.exponential(size=(rows, 3)).astype(np.float32)
    law = ms.round_law(log_p, log_q, indptr, rule=rule)
    for i in range(100):
        own = slice(indptr[i], indptr[i + 1])
        alone = ms.round_law(log_p[own], log_q[own], [0, indptr[i + 1] - indptr[i]], rule=rule)
        np.testing.assert_array_equal(law.accept[own], alone.accept)


def test_registry_invariant():
    for name, rule in RULES.items():
        assert rule.name == name
        assert set(rule.needs + rule.takes) <= {"log_p", "log_q", "hit", "drafts", "scale", "log_accept"}
        if rule.exactness != "exact":
            assert rule in lossy.RULES and rule.verify is None
            continue
        module = __import__(f"markov_spec.acceptance.{name.replace('-', '_')}", fromlist=["RULE"])
        assert module.RULE is rule
        assert "Proof." in module.__doc__ or name == "none"


@pytest.mark.parametrize("rule", ["rejection", "block", "independent", "node-recursive", "node-k-seq", "recorded"])
def test_case_107_runs_of_probability_zero_against_reference(rule):
    indptr = np.array([0, 7, 10])
    log_p = np.log([0.5, 0.3, 0.9, 0.2, 0.6, 0.4, 0.8, 0.5, 0.5, 0.7])
    log_q = np.tile([-0.5, -np.inf, -np.inf, -1.0, -np.inf, -np.inf, -0.25], (10, 1))
    log_q[2], log_q[3], log_q[8] = np.roll(log_q[0], 1), -np.inf, -0.1
    words = {"node-recursive": {"scale": 2.0}, "node-k-seq": {"scale": 2.0}, "recorded": {"log_accept": log_q}}
    law = ms.round_law(log_p, log_q, indptr, rule=rule, **words.get(rule, {}))
    found, rounds, length = law.survival(), ms.solve(law), ms.expected_inverse(law)
    for s in range(10):
        end = indptr[np.searchsorted(indptr, s, side="right")]
        for k in range(7):
            if s + k >= end or not np.isfinite(log_q[s, : k + 1]).all():
                assert found[s, k] == 0  # neither NaN nor what follows a zero
            else:
                assert found[s, k] > 0
    assert np.isfinite(rounds.expected).all() and np.isfinite(rounds.variance).all() and np.isfinite(length).all()
    cells = ms.RoundLaw.from_survival(found, indptr)
    np.testing.assert_allclose(rounds.expected, ms.solve(cells).expected, rtol=1e-13)
