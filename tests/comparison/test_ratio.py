"""The interval of a quotient of sums, against its formula, its coverage and degenerate inputs."""

import numpy as np
import polars as pl
import pytest
import scipy.stats

from markov_spec.comparison import compare_vectors, ratio_interval
from tests.comparison.studies import study


def test_interval_against_closed_form():
    x, y, prompts = np.array([10.0, 12, 30, 9, 4]), np.array([5.0, 6, 10, 4, 3]), ["a", "b", "a", "c", "b"]
    ratio = x.sum() / y.sum()
    left = np.array([x[keep].sum() / y[keep].sum() for keep in ([p != g for p in prompts] for g in "abc")])
    error = np.sqrt(2 / 3 * np.sum((left - left.mean()) ** 2))
    reach = scipy.stats.t.ppf(0.95, 2) * error
    found = ratio_interval(x, y, prompts, level=0.9)
    assert found == pytest.approx((ratio, ratio - reach, ratio + reach), abs=1e-12)


def test_many_prompts_are_the_delta_method_against_closed_form():
    rng = np.random.default_rng(2)
    y = rng.uniform(5, 15, 4000)
    x, prompts = y * rng.normal(3, 0.5, 4000), np.repeat(np.arange(2000), 2)
    found = ratio_interval(x, y, prompts)
    apart = np.bincount(prompts, x - found.ratio * y)
    error = np.sqrt(np.sum(apart**2) * 2000 / 1999) / y.sum()
    assert found.high - found.ratio == pytest.approx(scipy.stats.t.ppf(0.975, 1999) * error, rel=1e-3)


def test_one_figure_has_one_interval_against_reference():
    frame, _ = study(np.random.default_rng(3), prompts=15, rollouts=3)
    idle = pl.DataFrame({"contender": ["a", "b"], "rollout": "idle", "prompt": "idle", "tokens": 0, "rounds": 0.0})
    frame = pl.concat([frame, idle.with_columns(benchmark=pl.lit("bench 0"))], how="diagonal_relaxed")
    plain = frame["tokens"] * np.random.default_rng(4).uniform(0.9, 1.1, len(frame))
    found = compare_vectors(frame.with_columns(price=pl.col("rounds") * 2, plain_price=plain), level=0.9).contenders
    for name in "ab":
        own = frame.with_columns(plain=plain).filter(contender=name)
        for measure, stem, top, bottom in (
            ("tokens_per_round", "pooled", own["tokens"], own["rounds"]),
            ("price_per_token", "pooled", own["rounds"] * 2, own["tokens"]),
            ("price_per_token", "speedup", own["plain"], own["rounds"] * 2),
        ):
            row = found.filter(contender=name, measure=measure).row(0, named=True)
            wanted = ratio_interval(top, bottom, own["prompt"].to_list(), level=0.9)
            assert [row[end] for end in (stem, f"{stem}_low", f"{stem}_high")] == pytest.approx(list(wanted), rel=1e-12)


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
    assert ratio_interval([2.0, 4.0, 1.0], [0.0, 2.0, 0.0], ["p", "q", "r"]) == (3.5, None, None)
    # A prompt without anything in it is none.
    assert ratio_interval([2.0, 0.0], [1.0, 0.0], ["p", "q"]) == (2.0, None, None)


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
