import numpy as np
import pytest

import markov_spec as ms
from markov_spec import metrics


def test_pooled_length_against_closed_form():
    assert metrics.pooled_length([40, 200], [10, 100]) == pytest.approx(240 / 110)
    assert metrics.pooled_length([], []) is None


def test_rates_by_depth_against_closed_form():
    accepted = [3, 3, 0, 1, 2, 0, 3, 1]
    histogram = np.bincount(accepted, minlength=4).astype(float)
    tested = np.array([sum(n >= k for n in accepted) for k in range(3)], dtype=float)
    assert metrics.unconditional_rates(histogram) == pytest.approx([0.75, 0.5, 0.375])
    assert metrics.conditional_rates(histogram, tested) == pytest.approx([0.75, 2 / 3, 0.75])


def test_rates_of_nothing_are_none_invariant():
    assert metrics.unconditional_rates(np.zeros(3)) == [None, None]
    assert metrics.conditional_rates(np.array([2.0, 0.0, 0.0]), np.array([2.0, 0.0])) == [0.0, None]


def test_case_13_nodes_against_depth_against_closed_form():
    rounds, accepted, depth, nodes = 10, 20, 3, 15
    assert metrics.draft_acceptance(accepted, proposed=rounds * nodes) == pytest.approx(0.1333, abs=5e-5)
    assert metrics.draft_acceptance(accepted, proposed=rounds * depth) == pytest.approx(0.6667, abs=5e-5)
    assert metrics.pooled_length([accepted + rounds], [rounds]) == 3.0
    with pytest.raises(ValueError, match="found 40 of 30"):
        metrics.draft_acceptance(accepted + 2 * rounds, proposed=rounds * depth)
    assert metrics.draft_acceptance(0, proposed=0) is None


def test_surprise_z_against_simulation():
    rng = np.random.default_rng(4)
    p = rng.dirichlet(np.full(8, 0.5), size=4000)
    with np.errstate(divide="ignore"):
        log_p = np.where(p > 0, np.log(p), 0.0)
    entropy = -(p * log_p).sum(1)
    varentropy = (p * (log_p + entropy[:, None]) ** 2).sum(1)
    drawn = np.array([log_p[i, rng.choice(8, p=p[i])] for i in range(4000)])
    assert abs(metrics.surprise_z(drawn, entropy, varentropy)) < 3
    likeliest = log_p.max(1)
    assert metrics.surprise_z(likeliest, entropy, varentropy) < -10
    assert metrics.surprise_z(np.zeros(3), np.zeros(3), np.zeros(3)) is None


def test_case_30_three_lengths_of_a_finite_rollout_against_closed_form():
    rounds = ms.solve(ms.RoundLaw.from_acceptance(np.full((5, 2), 0.5), [0, 5]))
    assert metrics.pooled_length(rounds.committed, rounds.expected) == pytest.approx(1.5686, abs=5e-5)
