"""Cases with known answers, through the public functions."""

import ml_dtypes
import numpy as np
import pytest

import markov_spec as ms


def test_case_03_end_token_in_every_slot_against_closed_form():
    sizes = np.arange(1, 6)
    indptr = np.concatenate(([0], np.cumsum(sizes)))
    law = ms.round_law(None, None, indptr, rule="match", hit=np.ones(indptr[-1], dtype=bool), draft_length=4)
    rounds = ms.solve(law)
    assert rounds.expected.tolist() == [1, 1, 1, 1, 1]
    assert rounds.committed.tolist() == [1, 2, 3, 4, 5]
    assert rounds.accepted_histogram.argmax(axis=1).tolist() == [1, 2, 3, 4, 4]


def test_case_30_finite_horizon_against_closed_form():
    law = ms.RoundLaw.from_acceptance(np.full((5, 2), 0.5), [0, 5])
    rounds = ms.solve(law)
    np.testing.assert_allclose(rounds.value[::-1], [1, 1.5, 2, 2.625, 3.1875], rtol=1e-14)
    # P(R = 2..5) = .1875, .5, .25, .0625
    np.testing.assert_allclose(rounds.variance, [0.1875 * 4 + 0.5 * 9 + 0.25 * 16 + 0.0625 * 25 - 3.1875**2])
    np.testing.assert_allclose(rounds.committed / rounds.expected, [1.5686], rtol=1e-4)


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_case_70_drafter_equal_to_target_against_closed_form(rule, dtype):
    log_p = np.log(np.random.default_rng(70).random(13)).astype(dtype)
    for length in range(1, 14):
        for depth in range(9):
            law = ms.round_law(log_p[:length], log_p[:length], [0, length], rule=rule, draft_length=depth)
            np.testing.assert_allclose(ms.solve(law).expected, -(-length // (depth + 1)), rtol=1e-12)
    law = ms.round_law(log_p[:10], log_p[:10], [0, 10], rule=rule, draft_length=3)
    np.testing.assert_allclose(ms.solve(law).expected, [3], rtol=1e-12)


def test_case_70_drafter_rounded_to_bfloat16_against_closed_form():
    log_p = np.log(np.random.default_rng(70).random(4000)).astype(np.float32)
    law = ms.round_law(log_p, log_p.astype(ml_dtypes.bfloat16), [0, 4000], rule="rejection", draft_length=3)
    assert 1000 < ms.solve(law).expected[0] < 1010


def test_case_97_draft_length_sweep_against_closed_form():
    pattern = np.array([1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1], dtype=bool)
    for depth, starts, lengths in ((4, [0, 5, 8], [5, 3, 4]), (2, [0, 3, 5, 8, 11], [3, 2, 3, 3, 1])):
        law = ms.round_law(None, None, [0, 12], rule="match", hit=pattern, draft_length=depth)
        rounds = ms.solve(law)
        assert rounds.expected.tolist() == [len(starts)]
        assert rounds.variance.tolist() == [0]
        assert np.flatnonzero(rounds.occupancy).tolist() == starts
        assert np.diff([*starts, 12]).tolist() == lengths


def test_case_106_float64_sums_against_closed_form():
    law = ms.round_law(None, None, [0, 5794], rule="none")
    assert ms.solve(law, price=np.arange(5794, dtype=np.float32)).price.tolist() == [16782321]
    law = ms.round_law(None, None, [0, 200_000], rule="none")
    price = ms.solve(law, price=np.full(200_000, -0.1, dtype=np.float32)).price
    np.testing.assert_allclose(price, [-20000.0003], rtol=1e-9)
    # A block of 200,000 drafts whose ratios are exp(-0.1) each: the cumulative log-ratio of the last is -20000.0003.
    log_p, log_q = np.zeros(2000), np.full(2000, -0.1, dtype=np.float32)
    law = ms.round_law(log_p, log_q, [0, 2000], rule="block", draft_length=2000)
    np.testing.assert_allclose(law.accept[0], np.exp(np.float32(-0.1)), rtol=1e-6)


def test_empty_and_short_rollouts_against_closed_form():
    law = ms.RoundLaw.from_acceptance(np.full((4, 3), 0.5, dtype=np.float32), [0, 0, 1, 4, 4])
    rounds = ms.solve(law, first_start=1)
    assert rounds.expected.tolist() == [0, 0, 1.5, 0]
    assert rounds.committed.tolist() == [0, 0, 2, 0]
    assert rounds.value.tolist() == [1, 2, 1.5, 1]
    assert rounds.occupancy.tolist() == [0, 0, 1, 0.5]
    assert repr(rounds) == "Rounds(4 rollouts, 2 tokens in 1.5 expected rounds)"
    nothing = ms.solve(ms.RoundLaw.from_acceptance(np.zeros((0, 2)), [0]))
    assert nothing.accepted_histogram.shape == (0, 3)


def test_certain_rounds_have_no_variance_against_closed_form():
    sure = (np.random.default_rng(0).random((3000, 15)) < 0.7).astype(np.float32)
    rounds = ms.solve(ms.RoundLaw.from_acceptance(sure, [0, 1000, 3000]))
    assert rounds.variance.tolist() == [0, 0]
    assert (rounds.expected == np.round(rounds.expected)).all()
