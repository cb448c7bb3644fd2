"""The arrays: what they accept, refuse and compute."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given

import markov_spec as ms
from markov_spec.arrays import ABSENT, as_float, check_draft_length, check_indptr, locate
from tests import strategies

NAN = np.nan


@pytest.mark.parametrize("make", [torch.tensor, lambda v, dtype: np.array(v, dtype=dtype)])
def test_case_104_bfloat16_against_closed_form(make):
    dtype = torch.bfloat16 if make is torch.tensor else ml_dtypes.bfloat16
    found = as_float(make([1.0, 1.0078125, -np.inf], dtype=dtype), "logits")
    assert found.dtype == np.float32
    assert found.tolist() == [1.0, 1.0078125, -np.inf]


@pytest.mark.parametrize("values", [torch.zeros(2).to(torch.float8_e5m2), np.zeros(2, ml_dtypes.float8_e4m3fn)])
def test_case_104_eight_bit_floats_invariant(values):
    with pytest.raises(ValueError, match=r"logits: found dtype float8.*allowed: float64, float32, float16, bfloat16"):
        as_float(values, "logits")


def test_float_types_invariant():
    for dtype, kept in ((np.float64, np.float64), (np.float32, np.float32), (np.float16, np.float32), (int, float)):
        assert as_float(np.ones((2, 2), dtype=dtype)[:, ::2], "x").dtype == kept
    assert as_float(torch.tensor([2.0**-100], dtype=torch.bfloat16), "x").tolist() == [2.0**-100]
    for refused in (np.ones(2, dtype=complex), ["a"]):
        with pytest.raises(ValueError, match="x: found dtype"):
            as_float(refused, "x")


@pytest.mark.parametrize(
    ("indptr", "rows", "message"),
    [
        ([], None, "found shape"),
        ([0.0, 1.0], None, "dtype float64"),
        ([[0, 1]], None, "found shape"),
        ([1, 2], None, "rollout 0 starts at 1"),
        ([0, 3, 2], None, "rollout 1 runs from 3 back to 2"),
        ([0, 3, 4], 5, r"the last rollout \(1\) ends at 4, but there are 5 positions"),
    ],
)
def test_refused_offsets_invariant(indptr, rows, message):
    with pytest.raises(ValueError, match=message):
        check_indptr(indptr, rows)


def test_located_rows_against_closed_form():
    indptr = check_indptr([0, 2, 2, 5])
    assert [locate(indptr, row) for row in range(5)] == [
        "rollout 0, position 0", "rollout 0, position 1",
        "rollout 2, position 0", "rollout 2, position 1", "rollout 2, position 2",
    ]  # fmt: skip
    assert locate(indptr, 4, ["a", "b", "c"]) == "rollout 'c', position 2"


def test_draft_lengths_invariant():
    indptr = check_indptr([0, 1, 3])
    assert check_draft_length(None, indptr, 4) == 4
    assert check_draft_length(np.int64(3), indptr, None) == 3
    found = check_draft_length([1, 0, ABSENT], indptr, None)
    assert found.dtype == np.int32 and found.tolist() == [1, 0, ABSENT]
    for given_length, depth, message in (
        (None, None, "absent"),
        (1.5, 4, "dtype float64"),
        ([1, 2], 4, r"shape \(2,\)"),
        (5, 4, "found 5; allowed: 0 to the recorded 4"),
        ([1, 2, -1], None, "rollout 1, position 1: found -1; allowed: 0 or more"),
    ):
        with pytest.raises(ValueError, match=f"draft_length: .*{message}"):
            check_draft_length(given_length, indptr, depth)


@given(strategies.laws())
def test_survival_against_closed_form(law):
    survival = law.survival()
    assert survival.shape == (law.accept.shape[0], law.depth)
    for begin, end in zip(law.indptr, law.indptr[1:], strict=False):
        for s in range(begin, end):
            length = int(np.broadcast_to(law.draft_length, law.accept.shape[:1])[s])
            for k in range(1, law.depth + 1):
                cells = [law.accept[s, j] if law.form == "cells" else law.accept[min(s + j, end - 1)] for j in range(k)]
                wanted = np.prod(cells, dtype=np.float64) if k <= min(length, end - s) else 0
                np.testing.assert_allclose(survival[s, k - 1], wanted, rtol=1e-12, atol=0)


@given(strategies.laws())
def test_law_of_a_survival_invariant(law):
    again = ms.RoundLaw.from_survival(law.survival(), law.indptr)
    np.testing.assert_allclose(again.survival(), law.survival(), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (ms.RoundLaw.from_acceptance, [[0.5, 0.5], [1.1, 0]], "a: rollout 0, position 1, depth 1: found 1.1"),
        (ms.RoundLaw.from_acceptance, [[0.5, NAN], [1.0, 0]], "a: rollout 0, position 0, depth 2: found nan"),
        (ms.RoundLaw.from_acceptance, [0.5, 0.5], "a: found shape"),
        (ms.RoundLaw.from_survival, [[0.5, 0.6], [1.0, 0]], "S: rollout 0, position 0, depth 2: found 0.6 after 0.5"),
        (ms.RoundLaw.from_survival, [[0.5, 0.5], [-1, 0]], "S: rollout 0, position 1, depth 1: found -1.0"),
        (lambda a, ends: ms.RoundLaw(a, ends), [0.5, 0.5], "draft_length: absent"),
        (lambda a, ends: ms.RoundLaw(a, ends), np.zeros((2, 2, 2)), "accept: found shape"),
    ],
)
def test_refused_laws_invariant(make, values, message):
    with pytest.raises(ValueError, match=message):
        make(np.array(values), [0, 2])


def test_law_ignores_cells_past_the_end_invariant():
    law = ms.RoundLaw.from_acceptance(np.array([[0.5, 0.5], [0.5, NAN]]), [0, 2])
    assert law.survival().tolist() == [[0.5, 0.25], [0.5, 0]]
    assert repr(law) == "RoundLaw(cells, K=2, 1 rollout, 2 starts, exact)"


def _rollouts(**changes):
    fields = {
        "ids": ["a", "b"], "prompt_ids": ["p", "p"], "benchmarks": ["x", "y"], "prompt_tokens": [[1], [1]],
        "tokens": [5, 6, 7], "log_p": [-0.1, -0.2, -0.3], "indptr": [0, 1, 3],
    }  # fmt: skip
    return ms.Rollouts(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": ["a", "a"]}, "rollout ids: 'a' stands at 0 and again at 1"),
        ({"ids": ["a", ""]}, "rollout ids: entry 1: found ''"),
        ({"benchmarks": ["x"]}, "benchmarks: found 1 entries; allowed: 2"),
        ({"log_p": [-0.1, 0.2, -0.3]}, "log_p: rollout 'b', position 0: found 0.2"),
        ({"log_p": [-0.1, -0.2, NAN]}, "log_p: rollout 'b', position 1: found nan"),
        ({"log_p": [-0.1]}, r"log_p: found shape \(1,\); allowed: \(3,\)"),
        ({"tokens": [5, -6, 7]}, "tokens: rollout 'b', position 0: found -6"),
        ({"tokens": [5.0, 6.0, 7.0]}, "tokens: found shape"),
        ({"indptr": [0, 1, 2]}, "ends at 2, but there are 3 positions"),
    ],
)
def test_refused_rollouts_invariant(changes, message):
    assert len(_rollouts()) == 2
    with pytest.raises(ValueError, match=message):
        _rollouts(**changes)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("d", "tree", "match", np.zeros(3)), {}, "found kind 'tree'"),
        (("d", "block", "match", np.zeros(3)), {}, r"allowed for block: \(N, K\)"),
        (
            ("d", "block", "match", np.zeros((3, 2))),
            {"rank": np.zeros((3, 2), int)},
            "rank: found 0 to 0; allowed: 1 to",
        ),
        (("d", "block", "match", np.zeros((3, 2))), {"drafted": np.zeros(2, int)}, "drafted: found shape"),
        (("d", "block", "match", np.zeros((3, 2))), {"indptr": [0, 2]}, "ends at 2, but there are 3 positions"),
    ],
)
def test_refused_drafts_invariant(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        ms.Drafts(*arguments, **options)


@pytest.mark.parametrize("value", [2.0, -1.0, np.nan])
def test_law_from_arrays_is_checked_invariant(value):
    for cells in (np.full((3, 2), value), np.full(3, value)):
        with pytest.raises(ValueError, match=r"accept: rollout 0, position 0.*allowed: 0 to 1"):
            ms.RoundLaw(cells, [0, 1, 3], 2)
        assert ms.RoundLaw(cells, [0, 1, 3], 0).depth >= 0  # nothing counts
    past = np.where(np.array([[0, 1], [0, 0], [0, 1]], dtype=bool), value, 0.5)
    assert ms.RoundLaw(past, [0, 1, 3]).depth == 2
    with pytest.raises(ValueError, match="exactness: found 'foo'; allowed: exact, bound"):
        ms.RoundLaw(np.zeros((3, 2)), [0, 1, 3], exactness="foo")


def test_values_that_do_not_count_may_be_anything_invariant():
    for rule in ("rejection", "independent"):
        law = ms.round_law(np.zeros(3), np.full(3, np.nan), [0, 1, 3], rule=rule, draft_length=0)
        assert ms.solve(law).expected.tolist() == [1, 2]


@pytest.mark.parametrize("turn", [2.9, 2.0, True, None, "1", 2**31, -(2**31) - 1, np.float32(1), np.nan])
def test_turns_that_are_no_integers_of_32_bits_are_refused_invariant(turn):
    given = ["a", "b"], ["p", "p"], ["all"] * 2, [np.zeros(0, int)] * 2, np.arange(2), np.zeros(2), [0, 1, 2], None
    kept = ms.Rollouts(*given, np.array([2**31 - 1, -(2**31)])).turns
    assert kept == (2**31 - 1, -(2**31)) and all(type(own) is int for own in kept)
    with pytest.raises(ValueError, match=r"turns: entry 1: found .*; allowed: an integer, -2147483648 to 2147483647"):
        ms.Rollouts(*given, [0, turn])
