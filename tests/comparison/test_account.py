"""Where the variance of real runs comes from, and how many prompts a resolution needs, against simulated runs."""

import numpy as np
import polars as pl
import pytest
import scipy.stats

from markov_spec.comparison import compare_vectors, required_prompts
from tests.comparison.studies import study, vectors

PROMPTS, ROLLOUTS = 40, 3


def drawn(rng, ease, likes):
    """Expected rounds of fresh texts of given prompts, which both contenders share, and their variance."""
    prompt = np.repeat(np.arange(len(ease)), ROLLOUTS)
    text = rng.normal(0, 0.2, prompt.size)
    rounds = {
        name: 40 * np.exp(ease[prompt] + likes[c][prompt] + text + rng.normal(0, 0.1, prompt.size))
        for c, name in enumerate("ab")
    }
    return prompt, rounds, {name: 0.6 * values for name, values in rounds.items()}


def relative(rng, luck):
    """Log ratio and log length of one run of real decoding, and the log ratio on texts that both share."""
    ease, likes = rng.normal(0, 0.2, PROMPTS), rng.normal(0, 0.1, (2, PROMPTS))
    runs = [drawn(rng, ease, likes) for _ in "ab"]
    a, b, shared = runs[0][1]["a"], runs[1][1]["b"], runs[0][1]["b"]
    a, b = (rounds + luck * rng.normal(0, np.sqrt(0.6 * rounds)) for rounds in (a, b))
    return np.log(b.sum() / a.sum()), -np.log(a.sum()), np.log(shared.sum() / a.sum())


def test_variance_of_real_runs_against_simulation():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        prompt, rounds, variance = drawn(rng, rng.normal(0, 0.2, PROMPTS), rng.normal(0, 0.1, (2, PROMPTS)))
        frame = vectors(rounds, tokens=[100] * len(prompt), prompts=[f"p{g}" for g in prompt], variance=variance)
        account = compare_vectors(frame, baseline="a", resamples=10).variance_account
        found.append(
            account.filter((pl.col("contender") == "a") | pl.col("baseline").is_not_null()).drop("measure", "baseline")
        )
    mean = pl.concat(found).group_by("contender", maintain_order=True).mean()
    single, pair = mean.row(0, named=True), mean.row(1, named=True)
    lucky, unlucky = (np.array([relative(rng, luck) for _ in range(6000)]).var(0) for luck in (1, 0))
    # Six thousand runs tell a variance to 2 %, 300 studies to a little less.
    assert pair["one_run"] == pytest.approx(lucky[0], rel=0.08)
    assert single["one_run"] == pytest.approx(lucky[1], rel=0.08)
    assert pair["luck"] == pytest.approx(2 * 0.6 / (40 * np.exp(0.05)) / (PROMPTS * ROLLOUTS), rel=0.05)
    assert pair["one_run"] - pair["luck"] == pytest.approx(unlucky[0], rel=0.08)
    assert pair["evaluated"] == pytest.approx(unlucky[2], rel=0.08)
    assert single["evaluated"] == pytest.approx(unlucky[1], rel=0.08)


def test_account_adds_up_invariant():
    frame, _ = study(np.random.default_rng(1), prompts=30, rollouts=2)
    frame = frame.with_columns(variance=pl.col("rounds") * 0.5)
    found = compare_vectors(frame, baseline="a")
    for row in found.variance_account.to_dicts():
        assert row["evaluated"] == pytest.approx(row["prompts"] + row["rollouts"])
        assert row["one_run"] == pytest.approx(row["prompts"] + row["rollouts_apart"] + row["luck"])
        assert row["removed"] == pytest.approx(1 - row["evaluated"] / row["one_run"])
        # That many runs over the same prompts are as good.
        runs = row["prompts"] + (row["rollouts_apart"] + row["luck"]) / row["equivalent_runs"]
        assert runs == pytest.approx(row["evaluated"])
    single, pair = found.variance_account.row(0, named=True), found.variance_account.row(2, named=True)
    rounds = frame.filter(contender="a")["rounds"]
    assert single["luck"] == pytest.approx(0.5 * rounds.sum() / rounds.sum() ** 2)
    assert single["rollouts"] == single["rollouts_apart"] and pair["baseline"] == "a"
    error = found.pair("b", "a")["log_error"]
    assert pair["prompts"] == 0 or pair["evaluated"] == pytest.approx(error**2)


def test_what_is_not_known_is_null_against_closed_form():
    frame, _ = study(np.random.default_rng(2), prompts=12, rollouts=1)
    account = compare_vectors(frame.with_columns(variance=pl.col("rounds"))).variance_account
    assert account["rollouts"].null_count() == account["equivalent_runs"].null_count() == len(account) == 3
    assert account["luck"].null_count() == 0
    frame, _ = study(np.random.default_rng(2), prompts=12, rollouts=2)
    found = compare_vectors(frame)
    assert found.variance_account["luck"].null_count() == 3 and found.variance_account["rollouts"].null_count() == 0
    assert required_prompts(found)["prompts_of_runs"].to_list() == [None]


def test_required_prompts_against_closed_form():
    frame, _ = study(np.random.default_rng(3), prompts=30, rollouts=2)
    found = compare_vectors(frame.with_columns(variance=pl.col("rounds") * 0.5), baseline="a")
    row = required_prompts(found, detect=0.05, power=0.9).row(0, named=True)
    run = found.variance_account.row(2, named=True)["one_run"]
    for column, variance in (("prompts", found.pair("b", "a")["log_error"] ** 2), ("prompts_of_runs", run)):

        def power(count, variance=variance):
            shift, limit = np.log(1.05) / np.sqrt(30 * variance / count), scipy.stats.t.ppf(0.975, count - 1)
            return scipy.stats.nct.sf(limit, count - 1, shift) + scipy.stats.nct.cdf(-limit, count - 1, shift)

        assert power(row[column]) >= 0.9 > power(row[column] - 1)
    assert row["prompts"] < row["prompts_of_runs"]


def test_required_prompts_suffice_against_simulation():
    rng = np.random.default_rng(4)
    base = rng.uniform(20, 40, 400)
    known = compare_vectors(vectors({"a": base, "b": base * np.exp(rng.normal(0, 0.1, 400))}, tokens=[90] * 400))
    count = required_prompts(known, detect=0.04)["prompts"].item()
    hits = 0
    for _ in range(400):
        base = rng.uniform(20, 40, count)
        rounds = {"a": base, "b": base / 1.04 * np.exp(rng.normal(-0.005, 0.1, count))}
        hits += (
            compare_vectors(vectors(rounds, tokens=[90] * count), baseline="a", resamples=199).pair("b", "a")["p"]
            <= 0.05
        )
    assert 0.74 < hits / 400 < 0.86


def test_required_prompts_at_the_edges_invariant():
    rounds = np.arange(20.0, 40)
    same = compare_vectors(vectors({"a": rounds, "b": rounds}, tokens=[60] * 20))
    assert required_prompts(same)["prompts"].to_list() == [2]
    wild = compare_vectors(vectors({"a": rounds, "b": rounds[::-1]}, tokens=[60] * 20))
    assert required_prompts(wild, detect=1e-6)["prompts"].to_list() == [None]
    alone = compare_vectors(vectors({"a": [5.0], "b": [6.0]}, tokens=[9]))
    assert required_prompts(alone)["prompts"].to_list() == [None]
    for options in ({"detect": 0.0}, {"power": 1.0}):
        with pytest.raises(ValueError, match=r"found [01]\.0; allowed"):
            required_prompts(same, **options)
