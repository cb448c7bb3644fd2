"""The interval of a quotient of sums, against its formula, its coverage and degenerate inputs."""

import numpy as np
import pytest
import scipy.stats

from markov_spec.comparison import ratio_interval


def test_interval_against_closed_form():
    x, y, prompts = np.array([10.0, 12, 30, 9, 4]), np.array([5.0, 6, 10, 4, 3]), ["a", "b", "a", "c", "b"]
    ratio = x.sum() / y.sum()
    apart = [(x - ratio * y)[[p == g for p in prompts]].sum() for g in "abc"]
    error = np.sqrt(sum(a * a for a in apart) * 3 / 2) / y.sum()
    reach = scipy.stats.t.ppf(0.95, 2) * error
    found = ratio_interval(x, y, prompts, level=0.9)
    assert found == pytest.approx((ratio, ratio - reach, ratio + reach), abs=1e-12)


def test_one_rollout_a_prompt_is_the_mean_against_peer():
    x = np.random.default_rng(0).normal(3, 1, 40)
    found = ratio_interval(x, np.ones(40), range(40))
    low, high = scipy.stats.t.interval(0.95, 39, x.mean(), scipy.stats.sem(x))
    assert found == pytest.approx((x.mean(), low, high), abs=1e-12)


def test_coverage_against_simulation():
    rng = np.random.default_rng(1)
    inside, runs = 0, 2000
    for _ in range(runs):
        effect = rng.normal(0, 0.3, 30)
        y = rng.uniform(5, 15, (30, 2))
        x = y * (2 + effect[:, None]) + rng.normal(0, 1, (30, 2))
        found = ratio_interval(x.ravel(), y.ravel(), np.repeat(np.arange(30), 2))
        inside += found.low < 2 < found.high
    assert abs(inside / runs - 0.95) < 0.02  # four standard errors; rollouts taken as independent give 0.84


def test_what_has_no_interval_against_closed_form():
    assert ratio_interval([], [], []) == (None, None, None)
    assert ratio_interval([1.0], [0.0], ["p"]) == (None, None, None)
    assert ratio_interval([1.0, 2.0], [1.0, 1.0], ["p", "p"]) == (1.5, None, None)
    assert ratio_interval([2.0, 4.0], [1.0, 2.0], ["p", "q"]) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [1.0, 2.0], ["p"]), r"found shapes \(1,\), \(2,\), \(1,\)"),
        (([np.nan], [1.0], ["p"]), "not finite"),
        (([1.0], [1.0], ["p"], 1.0), "level: found 1.0"),
    ],
)
def test_bad_arguments_are_refused_invariant(arguments, message):
    *given, level = arguments if len(arguments) == 4 else (*arguments, 0.95)
    with pytest.raises(ValueError, match=message):
        ratio_interval(*given, level=level)
