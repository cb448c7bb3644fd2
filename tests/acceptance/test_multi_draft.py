"""Rules of several drafts at each depth, and recorded acceptances: laws, known answers and refusals."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.acceptance import RULES, scalars
from markov_spec.acceptance.lossy import LOSSY
from tests import oracles, strategies

NODE_RULES = ["node-recursive", "node-k-seq"]
NAN, INF = np.nan, np.inf
ONE = np.ones((5, 2))


def _log(values):
    with np.errstate(divide="ignore"):
        return np.log(values)


def _survival(accept, indptr, length, depth):
    """S of acceptances a(t) or a(s,k), cell by cell."""
    S = np.zeros((accept.shape[0], depth))
    for first, end in itertools.pairwise(indptr):
        for s in range(first, end):
            total = 1.0
            for k in range(min(np.broadcast_to(length, accept.shape[:1])[s], end - s)):
                total *= accept[s + k] if accept.ndim == 1 else accept[s, k]
                S[s, k] = total
    return S


def _check(law, accept, indptr, length, dtype, atol=1e-30):
    assert law.accept.dtype == dtype
    assert law.form == ("positions" if accept.ndim == 1 else "cells")
    assert law.exactness == "exact"
    assert np.isfinite(law.accept).all()
    wanted = _survival(accept, indptr, length, law.depth)
    np.testing.assert_allclose(law.survival(), wanted, rtol=1e-5 if dtype == np.float32 else 1e-12, atol=atol)


def _dirty(values, indptr, length):
    """NaN in every cell that a law must not read."""
    if values.ndim == 1:
        return values
    left = np.repeat(indptr[1:], np.diff(indptr)) - np.arange(len(values))
    return np.where(np.arange(1, values.shape[1] + 1) <= np.minimum(length, left)[:, None], values, NAN)


@given(strategies.drafts(), st.sampled_from([None, 1, 2, 5]))
def test_independent_against_closed_form(drafts, count):
    _, log_q, indptr, length = drafts
    log_q = _dirty(log_q, indptr, length).astype(log_q.dtype)
    law = ms.round_law(None, log_q, indptr, rule="independent", draft_length=length, drafts=count)
    missed = [(1 - np.exp(log_q.astype(np.float64))) for _ in range(count or 1)]
    _check(law, 1 - np.prod(missed, axis=0), indptr, length, log_q.dtype, atol=1e-15)


@pytest.mark.parametrize("rule", NODE_RULES)
@given(strategies.drafts(), st.data())
def test_scaled_ratio_against_closed_form(rule, drafts, data):
    log_p, log_q, indptr, length = drafts
    shape = data.draw(st.sampled_from([(), log_p.shape, log_q.shape]))
    values = [1.0, 1.5, 4.0, *([0.0] if rule == "node-k-seq" else [])]
    scale = strategies.filled(data.draw, st.sampled_from(values), shape, np.float32)
    at = np.minimum(np.arange(log_p.size)[:, None] + np.arange(log_q.shape[-1]), log_p.size - 1)
    ratio = log_q.astype(np.float64) - (log_p if log_q.ndim == 1 else log_p[at])
    cells = scale[at] if scale.ndim < log_q.ndim and scale.ndim == 1 else scale
    wanted = np.minimum(1, cells * np.exp(ratio))
    if scale.ndim == 2:
        scale = _dirty(scale, indptr, length)
    law = ms.round_law(log_p, log_q, indptr, rule=rule, draft_length=length, scale=scale)
    _check(law, wanted, indptr, length, log_q.dtype)


@given(strategies.drafts())
def test_recorded_against_closed_form(drafts):
    _, log_a, indptr, length = drafts
    log_a = _dirty(log_a, indptr, length).astype(log_a.dtype)
    law = ms.round_law(None, None, indptr, rule="recorded", draft_length=length, log_accept=log_a)
    _check(law, np.exp(log_a.astype(np.float64)), indptr, length, log_a.dtype)


@pytest.mark.parametrize("rule", NODE_RULES)
@given(strategies.drafts())
def test_one_draft_is_rejection_invariant(rule, drafts):
    log_p, log_q, indptr, length = drafts
    wanted = ms.round_law(log_p, log_q, indptr, rule="rejection", draft_length=length)
    for scale in (1, np.ones(log_q.shape), torch.ones(log_p.shape)):
        law = ms.round_law(log_p, log_q, indptr, rule=rule, draft_length=length, scale=scale)
        np.testing.assert_array_equal(law.survival(), wanted.survival())


def test_many_small_chunks_invariant():
    rng = np.random.default_rng(5)
    indptr = np.arange(0, 300_001, 1000)
    log_p, log_q = np.log(rng.random(300_000)), np.log(rng.random((300_000, 2)))
    at = np.minimum(np.arange(300_000)[:, None] + np.arange(2), 299_999)
    by_position = 1 + rng.random(300_000)
    by_cell = by_position[at]
    inside = ms.round_law(None, np.zeros((300_000, 2)), indptr, rule="independent").accept > 0
    wanted = np.where(inside, np.minimum(1, by_cell * np.exp(log_q - log_p[at])), 0)
    for scale in (by_position, by_cell):
        law = ms.round_law(log_p, log_q, indptr, rule="node-k-seq", scale=scale)
        np.testing.assert_allclose(law.accept, wanted, rtol=1e-13)


def test_torch_inputs_against_numpy():
    log_p, log_q, scale = -np.arange(1, 7) / 8, -np.arange(12).reshape(6, 2) / 4, 1 + np.arange(12).reshape(6, 2) / 8
    for rule, options in (("node-recursive", {"scale": scale}), ("recorded", {"log_accept": log_q})):
        wanted = ms.round_law(log_p, log_q, [0, 6], rule=rule, **options).accept
        tensors = {name: torch.tensor(value, dtype=torch.bfloat16) for name, value in options.items()}
        law = ms.round_law(torch.tensor(log_p), torch.tensor(log_q), [0, 6], rule=rule, **tensors)
        np.testing.assert_allclose(law.accept, wanted, rtol=1e-6)


def _accepted_by_token(rule, p, q, drafts=1):
    """a(x) for rollouts of the one token x, of tokens that the target generates."""
    seen = np.flatnonzero(p)
    options = {
        "independent": {"drafts": drafts},
        "node-recursive": {"scale": scalars.recursive_scale(p, q, drafts)},
        "node-k-seq": {"scale": scalars.k_seq_scale(p, q, drafts)},
        "recorded": {"log_accept": _log(scalars.coupling(p, q, seen))[:, None]},
    }.get(rule, {})
    log_q = None if rule == "recorded" else _log(q[seen])[:, None]
    return ms.round_law(_log(p[seen]), log_q, np.arange(seen.size + 1), rule=rule, **options).survival()[:, 0]


LOSSLESS = ["rejection", "block", "match", "independent", "node-recursive", "node-k-seq", "recorded"]


@pytest.mark.parametrize("rule", LOSSLESS)
@pytest.mark.parametrize("drafts", [1, 3])
def test_case_53_point_mass_against_closed_form(rule, drafts):
    p, q = np.array([0.3, 0.5, 0.2]), np.array([0.0, 1.0, 0.0])
    accepted = _accepted_by_token(rule, p, q, drafts)
    np.testing.assert_allclose(np.sum(p * accepted), 0.5, rtol=1e-14)  # the union of two tests would give .75


@pytest.mark.parametrize("rule", ["rejection", *NODE_RULES])
@pytest.mark.parametrize(("p", "q", "wanted"), [(1e-9, 2e-8, 0.05), (1e-10, 1e-12, 1.0)])
def test_case_54_small_probabilities_against_closed_form(rule, p, q, wanted):
    accepted = _accepted_by_token(rule, np.array([p, 1 - p]), np.array([q, 1 - q]))
    np.testing.assert_allclose(p * accepted[0] / q, wanted, rtol=1e-7)  # of the drafts of token 0
    half = ms.round_law([np.log(p)], np.log([[q]]).astype(np.float16), [0, 1], rule=rule, **_scale(rule)).accept
    np.testing.assert_allclose(p * half[0, 0] / q, wanted, rtol=0.02)


def _scale(rule):
    return {"scale": 1.0} if rule in NODE_RULES else {}


@pytest.mark.parametrize("rule", [*NODE_RULES, "independent"])
def test_case_54_impossible_draft_against_closed_form(rule):
    for values in (np.array([-INF, 0.0]), np.array([[-INF, 0.0]] * 2)):
        law = ms.round_law([-1.0, -1.0], values, [0, 2], rule=rule, draft_length=2, **_scale(rule))
        assert law.survival()[0].tolist() == [0, 0]
        assert law.accept.ravel()[0] == 0


def test_case_54_half_precision_is_refused_invariant():
    q = np.array([2e-8, 1 - 2e-8])
    for half in (q.astype(np.float16), torch.tensor(q, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match=r"q: found dtype .*float16; allowed: float64, float32"):
            scalars.overlap(torch.tensor(q) if isinstance(half, torch.Tensor) else q, half)


def test_case_56_small_probabilities_are_not_taken_from_one_against_closed_form():
    law = ms.round_law(None, np.log([1e-9, 1e-20, 1e-300]), [0, 3], rule="independent", draft_length=1, drafts=2)
    np.testing.assert_allclose(law.accept, [2e-9 - 1e-18, 2e-20, 2e-300], rtol=1e-12)
    p, q = np.array([0.5, 0.5]), np.array([0.5 - 1e-12, 0.5 + 1e-12])
    np.testing.assert_allclose(scalars.stop_aware_cost(p, q, []), 1e-12, rtol=1e-3)
    np.testing.assert_allclose(scalars.recursive_scale(p, q, 2) - 1, 1e-12, rtol=1e-3)
    np.testing.assert_allclose(scalars.stop_aware_cost(np.array([1.0, 1e-20]), np.array([1.0, 0.0]), [0]), 1.0)


def test_no_overlap_against_enumeration():
    p, q = np.array([0.4, 0.6, 0.0]), np.array([0.0, 0.0, 1.0])
    for rule in NODE_RULES:
        assert not _accepted_by_token(rule, p, q, 2).any()
        assert not oracles.acceptance_of_each_token(rule, p, q, 2).any()
    law = ms.round_law([-1.0], [[-1.0]], [0, 1], rule="node-k-seq", scale=0)
    assert law.accept.tolist() == [[0.0]]


P, Q, ENDS = np.log(np.full(5, 0.5)), np.log(np.full((5, 2), 0.5)), [0, 3, 5]


def _with(at, value, others=ONE):
    changed = others.copy()
    changed[at] = value
    return changed


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("node-recursive", {}, "scale: absent; rule 'node-recursive' needs it"),
        ("recorded", {}, "log_accept: absent; rule 'recorded' needs it"),
        ("node-k-seq", {"scale": ONE[:4]}, r"scale: found shape \(4, 2\); allowed: a number, or \(5,\) or \(5, 2\)"),
        ("node-recursive", {"scale": 0}, "scale: found 0.0; allowed: a finite number >= 1$"),
        ("node-k-seq", {"scale": 0.5}, "scale: found 0.5; allowed: a finite number >= 1, or 0 where"),
        ("node-recursive", {"scale": _with((3, 1), 0.0)}, "scale: rollout 1, position 0, depth 2: found 0.0"),
        ("node-k-seq", {"scale": _with((3, 0), NAN)}, "scale: rollout 1, position 0, depth 1: found nan"),
        ("node-k-seq", {"scale": _with((0, 1), INF)}, "scale: rollout 0, position 0, depth 2: found inf"),
        ("node-k-seq", {"scale": _with((4, 0), -1)[:, 0]}, "scale: rollout 1, position 1: found -1.0"),
        ("node-k-seq", {"scale": ONE.astype("S")}, "scale: found dtype"),
        ("independent", {"drafts": 0}, "drafts: found 0; allowed: an integer >= 1"),
        ("independent", {"drafts": 2.0}, "drafts: found 2.0; allowed"),
        ("independent", {"drafts": True}, "drafts: found True; allowed"),
        ("recorded", {"log_accept": _with((1, 1), 2e-6, Q)}, "log_accept: rollout 0, position 1, depth 2: found 2e-06"),
        ("recorded", {"log_accept": _with((1, 0), NAN, Q)}, "log_accept: rollout 0, position 1, depth 1: found nan"),
        ("recorded", {"log_accept": P}, "draft_length: absent"),
        ("recorded", {"log_accept": ONE[:4]}, r"log_accept: found shape \(4, 2\); allowed"),
    ],
)
def test_refused_inputs_invariant(rule, options, message):
    with pytest.raises(ValueError, match=message):
        ms.round_law(P, Q, ENDS, rule=rule, **options)


@pytest.mark.parametrize("rule", RULES)
def test_unused_inputs_are_refused_invariant(rule):
    users = {"hit": ["match", *LOSSY], "drafts": ["independent"], "scale": NODE_RULES, "log_accept": ["recorded"]}
    values = {"hit": ONE == 1, "drafts": 2, "scale": ONE, "log_accept": -ONE}
    own = {name: values[name] for name in values if rule in users[name]}
    ms.round_law(P, Q, ENDS, rule=rule, **own)  # log_p and log_q may always be given
    for name in values.keys() - own.keys():
        only = ", ".join(users[name])
        with pytest.raises(ValueError, match=f"{name}: given, but rule '{rule}' does not use it; only for: {only}$"):
            ms.round_law(P, Q, ENDS, rule=rule, **own, **{name: values[name]})
