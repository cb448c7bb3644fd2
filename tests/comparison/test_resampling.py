"""Intervals and p-values of a comparison, against scipy, brute force and their own promises."""

from itertools import combinations, product

import numpy as np
import polars as pl
import pytest
import scipy.stats

from markov_spec.comparison import compare_vectors
from markov_spec.comparison.resampling import holm
from tests.comparison.studies import study, vectors


def sums(frame, name, column):
    own = frame.filter(contender=name).group_by("prompt").agg(pl.col(column).sum())
    return own.sort("prompt")[column].to_numpy().astype(float)


def log_ratio(first_tokens, first_rounds, second_tokens, second_rounds, axis=-1):
    first = first_tokens.sum(axis) / first_rounds.sum(axis)
    return np.log(first / (second_tokens.sum(axis) / second_rounds.sum(axis)))


def test_bootstrap_against_peer():
    frame, _ = study(np.random.default_rng(3), prompts=30, rollouts=2)
    row = compare_vectors(frame, baseline="a", resamples=2000, rng=7, level=0.9).pair("b", "a")
    data = [sums(frame, name, column) for name in "ba" for column in ("tokens", "rounds")]
    normal = scipy.stats.t.ppf(0.95, 29) * np.sqrt(30 / 29)
    for name, statistic in (
        ("ratio", lambda *x, axis: np.exp(log_ratio(*x, axis=axis))),
        ("difference", lambda a, b, c, d, axis: a.sum(axis) / b.sum(axis) - c.sum(axis) / d.sum(axis)),
    ):
        found = scipy.stats.bootstrap(
            data, statistic, paired=True, vectorized=True, n_resamples=2000, method="BCa",
            confidence_level=2 * scipy.stats.norm.cdf(normal) - 1, rng=np.random.default_rng(7),
        ).confidence_interval  # fmt: skip
        wanted = found.low, found.high
        assert (row[f"{name}_bca_low"], row[f"{name}_bca_high"]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("texts", ["same", "own"])
def test_all_sign_flips_against_peer(texts):
    rng = np.random.default_rng(4)
    tokens = {name: rng.integers(20, 60, 9) if texts == "own" else np.arange(20, 29) for name in "ab"}
    rounds = {"a": rng.uniform(5, 15, 9), "b": rng.uniform(4.6, 14, 9)}
    frame = vectors(rounds, tokens=tokens["a"]).with_columns(tokens=np.concatenate([tokens["a"], tokens["b"]]))
    row = compare_vectors(frame, baseline="a", texts=texts).pair("b", "a")
    data = np.array([[tokens[name], rounds[name]] for name in "ab"], dtype=float)
    found = abs(log_ratio(*data[0], *data[1]))
    reached = sum(
        abs(log_ratio(*np.where(flips, data[::-1], data)[0], *np.where(flips, data[::-1], data)[1])) >= found - 1e-12
        for flips in product([False, True], repeat=9)
    )
    assert row["p_exact"] and row["p"] == reached / 2**9
    if texts == "same":
        peer = scipy.stats.permutation_test(
            (rounds["a"], rounds["b"]),
            lambda a, b, axis: np.log(a.sum(axis) / b.sum(axis)),
            permutation_type="samples",
            vectorized=True,
            n_resamples=np.inf,
        )
        assert row["p"] == pytest.approx(peer.pvalue, abs=1e-12)


def test_sign_flips_of_ranks_against_peer():
    saved = np.array([5.0, -1, 8, 3, -2, 6, 9, 4, -7, 10])
    row = compare_vectors(vectors({"a": 30 + saved, "b": np.full(10, 30.0)}, tokens=[60] * 10)).pair("b", "a")
    assert row["p"] == pytest.approx(scipy.stats.wilcoxon(saved, method="exact").pvalue, abs=1e-12)


def test_means_of_prompts_against_peer():
    frame, _ = study(np.random.default_rng(5), prompts=12, rollouts=3)
    row = compare_vectors(frame, baseline="a", level=0.9).pair("b", "a")
    logs = [np.log(sums(frame, name, "tokens") / sums(frame, name, "rounds")) for name in "ba"]
    found = scipy.stats.ttest_rel(*logs).confidence_interval(0.9)
    ends = row["geometric_ratio_low"], row["geometric_ratio_high"]
    assert ends == pytest.approx((np.exp(found.low), np.exp(found.high)), rel=1e-12)
    apart = sums(frame, "a", "rounds") - sums(frame, "b", "rounds")
    assert (row["saved"], row["saved_error"]) == pytest.approx((apart.mean(), scipy.stats.sem(apart)), rel=1e-10)
    # Of one round a prompt, a pooled length is a mean.
    plain = vectors({"a": np.ones(12), "b": np.full(12, 2.0)}, tokens=np.exp(logs[0]))
    own = compare_vectors(plain, baseline="a", level=0.9).contenders.row(0, named=True)
    wanted = scipy.stats.t.interval(0.9, 11, np.exp(logs[0]).mean(), scipy.stats.sem(np.exp(logs[0])))
    assert (own["pooled_low"], own["pooled_high"]) == pytest.approx(wanted, rel=1e-12)


def test_random_sign_flips_against_enumeration():
    rng = np.random.default_rng(6)
    first = rng.uniform(5, 15, 15)
    second = first - rng.normal(0.6, 1.5, 15)
    few = compare_vectors(vectors({"a": first, "b": second}, tokens=[40] * 15), resamples=20000).pair("b", "a")
    apart = first - second
    signs = np.array(list(product([1, -1], repeat=15)))
    wanted = np.mean(np.abs(signs @ apart) >= abs(apart.sum()) - 1e-9)
    assert not few["p_exact"] and abs(few["p"] - wanted) < 5 * np.sqrt(wanted / 20000)
    # Prompts that do not tell the contenders apart are not in the way of enumerating the others.
    more = vectors({"a": [*first[:14], *[9] * 30], "b": [*second[:14], *[9] * 30]}, tokens=[40] * 44)
    row = compare_vectors(more, resamples=10).pair("b", "a")
    halved = signs[:, :14] @ apart[:14]
    assert row["p_exact"] and row["p"] == pytest.approx(np.mean(np.abs(halved) >= abs(apart[:14].sum()) - 1e-9))


def test_p_is_never_zero_against_closed_form():
    rounds = np.random.default_rng(0).uniform(10, 20, 40)
    row = compare_vectors(vectors({"a": rounds, "b": rounds / 3}, tokens=[50] * 40), resamples=99).pair("b", "a")
    assert row["p"] == 1 / 100 and row["verdict"] == "better"
    row = compare_vectors(vectors({"a": rounds[:8], "b": rounds[:8] / 3}, tokens=[50] * 8)).pair("b", "a")
    assert row["p"] == 2 / 2**8
    row = compare_vectors(vectors({"a": rounds, "b": rounds}, tokens=[50] * 40)).pair("a", "b")
    assert (row["p"], row["ratio"], row["ratio_low"], row["ratio_bca_high"]) == (1, 1, 1, 1)


def test_contenders_that_are_alike_against_simulation():
    rng, found = np.random.default_rng(8), []
    for _ in range(400):
        frame, _ = study(rng, prompts=20, rollouts=2, lengths=(3.0, 3.0))
        found.append(compare_vectors(frame, baseline="a", resamples=499, rng=rng).pair("b", "a")["p"])
    assert scipy.stats.kstest(found, "uniform").pvalue > 0.01


def test_coverage_against_simulation():
    names = ("ratio", "difference", "geometric_ratio", "macro_difference")
    rng, inside, runs = np.random.default_rng(9), dict.fromkeys((*names, "ratio_bca", "pooled"), 0), 800
    for _ in range(runs):
        frame, truth = study(rng, prompts=60, rollouts=2, benchmarks=2)
        found = compare_vectors(frame, baseline="a", resamples=499, rng=rng)
        row, own = found.pair("b", "a"), found.contenders.row(0, named=True)
        for name in (*names, "ratio_bca"):
            true = truth["b"] / truth["a"] if "ratio" in name else truth["b"] - truth["a"]
            inside[name] += row[f"{name}_low"] < true < row[f"{name}_high"]
        inside["pooled"] += own["pooled_low"] < truth["a"] < own["pooled_high"]
    # Two standard errors are 1.5 %; the bootstrap's interval needs more prompts than these.
    assert inside.pop("ratio_bca") / runs > 0.915
    assert {name: count for name, count in inside.items() if not 0.93 <= count / runs <= 0.97} == {}


def test_holm_against_enumeration():
    p = np.array([0.01, 0.04, 0.03, 0.04, 0.6])
    # A hypothesis falls if every group that it is in falls by its smallest p-value times its size.
    groups = [group for size in range(1, 6) for group in combinations(range(5), size)]
    wanted = [max(min(1, len(g) * min(p[list(g)])) for g in groups if i in g) for i in range(5)]
    np.testing.assert_allclose(holm(p), wanted, atol=1e-15)


def test_family_of_the_baseline_against_closed_form():
    frame, _ = study(np.random.default_rng(12), prompts=40, rollouts=1, lengths=(3.0, 3.1, 3.2))
    found, free = (compare_vectors(frame, baseline=name).pairs for name in ("a", None))
    own, other = found.filter(baseline="a"), found.filter(pl.col("baseline") != "a")
    assert own["p_holm"].to_list() == holm(own["p"].to_numpy()).tolist() and len(other) == 1
    everything = holm(found["p"].to_numpy())
    assert other["p_holm"].item() == everything[found["baseline"].to_numpy() != "a"].item()
    assert free["p_holm"].to_list() == holm(free["p"].to_numpy()).tolist()
    assert own["p_holm"].sum() < everything[found["baseline"].to_numpy() == "a"].sum()


def test_case_119_noise_of_repeats_against_simulation():
    rng, alone, corrected = np.random.default_rng(10), 0, 0
    for _ in range(300):
        frame, _ = study(rng, prompts=15, rollouts=1, lengths=(3.0,) * 6)
        found = compare_vectors(frame, baseline="a", resamples=399, rng=rng).pairs.filter(baseline="a")
        assert len(found) == 5
        alone += found["p"].min() <= 0.05
        corrected += found["p_holm"].min() <= 0.05
    # They share a baseline, so that errors come together: below 22.6 %, far above 5 %.
    assert 0.10 < alone / 300 < 0.226 and corrected / 300 < 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)


def test_case_119_interval_shrinks_against_closed_form():
    rng = np.random.default_rng(11)
    rounds = {name: rng.uniform(10, 20, 10) for name in "ab"}
    errors = []
    for repeats in (1, 4):
        frame = vectors({name: np.tile(r, repeats) for name, r in rounds.items()}, tokens=[50] * 10 * repeats)
        errors.append(compare_vectors(frame).contenders["pooled_error"].to_numpy())
    # Four times the prompts: half the error, but for the n - 1.
    np.testing.assert_allclose(errors[1] / errors[0], np.sqrt(9 / 39), rtol=0.02)
