"""Figures, verdicts and refusals of a comparison, against closed forms and brute force."""

import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import scipy.stats
from polars.testing import assert_frame_equal

from markov_spec.comparison import compare_vectors, ratio_interval
from markov_spec.comparison.cells import basis
from tests.comparison.studies import study, vectors

FRAMES = ("pairs", "contenders", "benchmarks", "winners", "variance_account")


def winners(found, measure="tokens_per_round"):
    rows = found.winners.filter(measure=measure).to_dicts()
    return {row["benchmark"] if row["by"] == "benchmark" else row["by"]: row["winner"] for row in rows}


def test_case_08_pooling_changes_the_winner_against_closed_form():
    found = compare_vectors(vectors({"D1": [10, 100], "D2": [16, 80]}, tokens=[40, 200]))
    rows = {row["contender"]: row for row in found.contenders.to_dicts()}
    assert rows["D1"]["pooled"] == pytest.approx(2.1818, abs=5e-5) and rows["D2"]["pooled"] == 2.5
    assert rows["D1"]["plug_in_request_mean"] == 3.0 and rows["D2"]["plug_in_request_mean"] == 2.5
    assert rows["D1"]["request_mean"] is None
    assert winners(found) == {"pooled": "D2", "macro mean": "D2", "request mean": "D1", "": "D2"}
    assert found.primary == ("D2", "D1") and "the winner depends on pooling: pooled D2, request mean D1" in repr(found)


def test_case_28_rates_do_not_rank_against_closed_form():
    found = compare_vectors(vectors({"sure": [54], "bold": [52]}, tokens=[192]), baseline="sure")
    row = found.pair("bold", "sure")
    assert (row["baseline_value"], row["value"]) == pytest.approx((3.556, 3.692), abs=5e-4)
    assert winners(found)["pooled"] == "bold"
    assert (row["p"], row["ratio_low"], row["ratio_bca_low"], row["verdict"]) == (None, None, None, "undecided")
    assert found.headline.endswith("(no interval), not tested: one prompt") and row["p_holm"] is None
    assert "one prompt: nothing tells how others would differ, and nothing is tested" in found.notes
    assert basis(found) == "tokens per round; 1 rollout of 1 prompt, so nothing is resampled and nothing tested."
    assert "so nothing is resampled" in found._repr_html_() and "which are resampled" not in found._repr_html_()


def test_case_92_longer_yet_dearer_against_closed_form():
    names = {"none": (1.0, 1.0), "K=2": (2.22, 2.377), "K=4": (2.56, 3.568), "K=6": (2.55, 4.228)}
    tokens = np.full(20, 100.0)
    rounds = {name: tokens / length for name, (length, _) in names.items()}
    price = {name: rounds[name] * cost for name, (_, cost) in names.items()}
    frame = vectors(rounds, tokens=tokens, price=price)
    assert compare_vectors(frame, baseline="none").primary == ("K=4", "none")
    found = compare_vectors(frame, baseline="none", unit="price")
    assert found.primary == ("K=2", "none") and found.pair("K=2", "none")["verdict"] == "worse"
    assert winners(found, "price_per_token")["pooled"] == "none" and winners(found)["pooled"] == "K=4"
    assert found.pair("K=2", "none")["ratio"] == pytest.approx(2.377 / 2.22)
    leads = found.winners.filter(by="pooled")["lead"].to_list()
    assert leads == pytest.approx([2.56 / 2.55 - 1, 2.377 / 2.22 - 1])
    told = compare_vectors(frame.with_columns(plain_price=pl.col("tokens") * 1.0), baseline="none", unit="price")
    assert "no speculation is the best choice: K=2 comes nearest, speed-up 0.9340" in told.notes
    alone = compare_vectors(
        vectors({"none": tokens, "still none": tokens}, tokens=tokens, price=tokens, plain_price=tokens), unit="price"
    )
    assert "no speculation is the best choice" in alone.notes
    fast = dict(told.contenders.filter(measure="price_per_token").select("contender", "speedup").rows())
    assert fast == pytest.approx({name: length / cost for name, (length, cost) in names.items()})
    assert found.headline.startswith("K=2 is worse than none: 1.071 against 1.000 price per token, +7.1 %")


def test_case_111_error_of_its_own_estimator_against_closed_form():
    # Alternating about the mean, which gives the error told: d^2 / (n-1) = se^2.
    lengths = np.concatenate(
        [np.where(np.arange(n) % 2, 1, -1) * se * np.sqrt(n - 1) + m for n, m, se in ((10, 4, 0.5), (1000, 2, 0.02))]
    )
    frame = vectors({"a": np.ones(1010), "b": np.ones(1010)}, tokens=lengths, benchmark=["one"] * 10 + ["two"] * 1000)
    found = compare_vectors(frame, resamples=10)
    row = found.contenders.row(0, named=True)
    assert found.benchmarks.filter(contender="a")["pooled_error"].to_list() == pytest.approx([0.5, 0.02])
    assert (row["macro_mean"], row["macro_error"]) == pytest.approx((3.0, 0.2502), abs=5e-5)
    assert row["pooled"] == pytest.approx(2.0198, abs=5e-5)
    # Prompts as they come, benchmarks mixed: more than the .0204 of fixed shares, 12 times less than the macro mean's.
    assert row["pooled_error"] == pytest.approx(scipy.stats.sem(lengths)) == pytest.approx(0.0213, abs=1e-4)
    factor = scipy.stats.t.ppf(0.975, 0.2502**4 / (0.25**4 / 9 + 0.01**4 / 999))
    assert row["macro_high"] - 3 == pytest.approx(factor * 0.25020, rel=1e-3)


def test_case_114_one_prompt_dominates_against_closed_form():
    tokens, rounds = [23] * 10 + [3660], np.array([10.0] * 10 + [100])
    found = compare_vectors(vectors({"copy": rounds, "other": rounds * 1.1}, tokens=tokens))
    row = found.contenders.row(0, named=True)
    assert (row["pooled"], row["plug_in_request_mean"]) == pytest.approx((19.45, 5.418), abs=5e-4)
    assert row["largest_prompt"] == row["leave_one_out_prompt"] == "r0010"
    assert row["largest_share"] == pytest.approx(0.94, abs=1e-3) and row["leave_one_out_low"] == pytest.approx(2.3)
    (told,) = [note for note in found.notes if note.startswith("few prompts decide: prompt 'r0010' holds 94%")]
    assert "copy 2.3 to 20.35 (all prompts 19.45)" in told


def test_case_115_same_texts_are_paired_against_closed_form():
    tokens, rounds = [20, 40, 80, 160], {"A": [10, 20, 40, 80], "B": [9, 18, 37, 74]}
    row = compare_vectors(vectors(rounds, tokens=tokens), baseline="A").pair("B", "A")
    assert (row["baseline_value"], row["value"]) == pytest.approx((2.0, 2.1739), abs=5e-5)
    assert (row["saved"], row["saved_error"]) == pytest.approx((3.0, 1.08), abs=5e-3)
    assert np.log(row["geometric_ratio"]) == pytest.approx(0.0917, abs=5e-5)
    assert row["geometric_log_error"] == pytest.approx(0.0079, abs=5e-5) and row["p"] == 2 / 2**4
    frame = vectors(rounds, tokens=tokens).with_columns(tokens=pl.Series([*tokens, 20, 41, 80, 160]))
    with pytest.raises(ValueError, match=r"'B' has another tokens in 1 rollout \('r0001': 40, 41\); .*texts='own'"):
        compare_vectors(frame)
    assert compare_vectors(frame, texts="own").pair("B", "A")["saved"] is None
    told = vectors(rounds, tokens=tokens, text={"A": list("wxyz"), "B": list("wxyq")})
    with pytest.raises(ValueError, match=r"'B' has another text in 1 rollout \('r0003': 'z', 'q'\)"):
        compare_vectors(told)


def test_case_116_winner_differs_by_benchmark_and_pooling_against_closed_form():
    frame = vectors({"A": [100, 1500], "B": [95, 1600]}, tokens=[300, 3000], benchmark=["1", "2"])
    found = compare_vectors(frame)
    rows = {row["contender"]: row for row in found.contenders.to_dicts()}
    assert [rows[name]["pooled"] for name in "AB"] == pytest.approx([2.0625, 1.9469], abs=5e-5)
    assert [rows[name]["macro_mean"] for name in "AB"] == pytest.approx([2.5, 2.5164], abs=5e-5)
    pooled = found.benchmarks.select("benchmark", "contender", "pooled").rows()
    assert {(b, c): round(v, 3) for b, c, v in pooled} == {
        ("1", "A"): 3.0, ("1", "B"): 3.158, ("2", "A"): 2.0, ("2", "B"): 1.875,
    }  # fmt: skip
    assert winners(found) == {"pooled": "A", "macro mean": "B", "request mean": "B", "1": "B", "2": "A"}
    assert found.primary == ("A", "B")
    assert "the winner depends on pooling: pooled A, macro mean B, request mean B" in found.notes
    assert "A does not win on 1 of 2 benchmarks: 1 (B)" in found.notes


def test_leaving_prompts_out_against_reference():
    frame, _ = study(np.random.default_rng(0), prompts=11, rollouts=2)
    found = compare_vectors(frame, baseline="a")
    row, own = found.pair("b", "a"), found.contenders.row(1, named=True)
    lengths = []
    for prompt in frame["prompt"].unique(maintain_order=True):
        rest = (
            frame.filter(pl.col("prompt") != prompt)
            .group_by("contender")
            .agg(pl.col("tokens", "rounds").sum())
            .sort("contender")
        )
        lengths.append((rest["tokens"] / rest["rounds"]).to_list())
    first, second = np.array(lengths).T
    ratios = second / first
    assert (row["leave_one_out_low"], row["leave_one_out_high"]) == pytest.approx((ratios.min(), ratios.max()))
    assert row["leave_one_out_prompt"] == f"p{np.argmax(abs(np.log(ratios / row['ratio']))):04}"
    for figure, left in (("log", np.log(ratios)), ("difference", second - first)):
        error = np.sqrt(10 / 11 * np.sum((left - left.mean()) ** 2))
        assert row[f"{figure}_error"] == pytest.approx(error, rel=1e-9)
    assert own["pooled_error"] == pytest.approx(np.sqrt(10 / 11 * np.sum((second - second.mean()) ** 2)), rel=1e-9)


def test_many_prompts_are_the_delta_method_against_closed_form():
    frame, _ = study(np.random.default_rng(1), prompts=2000, rollouts=2)
    found = compare_vectors(frame, baseline="a", resamples=10)
    row, own = found.pair("b", "a"), found.contenders.row(0, named=True)
    first, second = (frame.filter(contender=name) for name in "ab")
    prompts = np.unique(first["prompt"], return_inverse=True)[1]

    def moved(x, y):
        x, y = (np.bincount(prompts, values) for values in (x, y))
        return x / x.sum() - y / y.sum()

    def error(moves):
        return np.sqrt(np.sum(moves**2) * 2000 / 1999)

    first, second = ((part["tokens"].to_numpy(), part["rounds"].to_numpy()) for part in (first, second))
    assert row["log_error"] == pytest.approx(error(moved(*second) - moved(*first)), rel=2e-3)
    assert own["pooled_error"] == pytest.approx(own["pooled"] * error(moved(*first)), rel=5e-3)


def test_benchmarks_by_themselves_against_reference():
    frame, _ = study(np.random.default_rng(2), prompts=30, rollouts=2, benchmarks=3)
    found = compare_vectors(frame, baseline="a")
    variances, apart, freedom = [], [], 0.0
    for name in ("bench 0", "bench 1", "bench 2"):
        alone = compare_vectors(frame.filter(benchmark=name), baseline="a")
        row = alone.pair("b", "a")
        own = found.benchmarks.filter(benchmark=name, contender="b").row(0, named=True)
        for column in ("ratio", "ratio_low", "ratio_high"):
            assert own[column] == pytest.approx(row[column], rel=1e-12)
        assert own["pooled_low"] == pytest.approx(alone.contenders["pooled_low"][1], rel=1e-12)
        variances.append(row["difference_error"] ** 2)
        apart.append(row["difference"])
        freedom += variances[-1] ** 2 / 9
    row = found.pair("b", "a")
    error = np.sqrt(sum(variances)) / 3
    assert row["macro_difference"] == pytest.approx(np.mean(apart), rel=1e-10)
    assert row["macro_difference_error"] == pytest.approx(error, rel=1e-10)
    reach = scipy.stats.t.ppf(0.975, sum(variances) ** 2 / freedom) * error
    assert row["macro_difference_high"] == pytest.approx(np.mean(apart) + reach, rel=1e-10)


def test_equivalence_and_verdicts_against_closed_form():
    rng = np.random.default_rng(3)
    base = rng.uniform(20, 40, 50)

    def row(factor, noise, margin=None):
        rounds = {"a": base, "b": base / factor * np.exp(rng.normal(0, noise, 50))}
        return compare_vectors(vectors(rounds, tokens=[90] * 50), baseline="a", margin=margin).pair("b", "a")

    found = row(1.004, 0.02, margin=0.02)
    theta, error = np.log(found["ratio"]), found["log_error"]
    tests = [scipy.stats.t.sf((np.log(1.02) + sign * theta) / error, 49) for sign in (1, -1)]
    assert found["p_equivalence"] == pytest.approx(max(tests), rel=1e-9) and found["verdict"] == "equivalent"
    assert row(1.05, 0.02, margin=0.01)["p_equivalence"] > 0.5
    assert row(1.0, 0.0, margin=0.01)["p_equivalence"] == 0.0
    assert row(1.01, 0.05)["verdict"] == "near-tie" and row(1.0, 0.01)["verdict"] == "near-tie"
    assert row(1.5, 0.1)["verdict"] == "better" and row(0.7, 0.1)["verdict"] == "worse"
    assert row(np.exp(0.32), 0.8)["verdict"] == "undecided"


def test_near_ties_come_within_the_margin_against_closed_form():
    rng = np.random.default_rng(3)
    rounds = rng.uniform(20, 40, 50)
    frame = vectors({"a": rounds, "b": rounds / 1.04 * np.exp(rng.normal(0, 0.02, 50))}, tokens=[90] * 50)
    found = compare_vectors(frame, baseline="a").pair("b", "a")
    low, high = found["ratio_low"], found["ratio_high"]
    assert 1.02 < low < 1.05 < high < 1.06 and found["p"] < 0.001
    for margin, verdict in ((None, "better"), (low - 1.001, "better"), (low - 0.999, "near-tie"), (0.2, "equivalent")):
        one = compare_vectors(frame, baseline="a", margin=margin)
        assert one.pair("b", "a")["verdict"] == verdict
        told = f"Near-tie of b and a (may be below {100 * (margin or 0.01):.2g} %): "
        assert one.headline.startswith(told) == (verdict == "near-tie")
    near = vectors({"a": rounds, "b": rounds / 1.011 * np.exp(rng.normal(0, 0.02, 50))}, tokens=[90] * 50)
    found = compare_vectors(near, baseline="a")
    assert 1 < found.pair("b", "a")["ratio_low"] < 1.01 and found.pair("b", "a")["p"] < 0.05
    assert found.headline.startswith("Near-tie of b and a (may be below 1 %): ")


def test_best_is_compared_with_another_family_against_closed_form():
    lengths = {"x:K=1": 2.0, "x:K=2": 3.0, "x:K=3": 4.0, "y:K=1": 1.5, "y:K=2": 2.5}
    tokens = np.linspace(50, 90, 20)
    frame = vectors({name: tokens / length for name, length in lengths.items()}, tokens=tokens)
    assert compare_vectors(frame).primary == ("x:K=3", "x:K=2")
    grouped = frame.with_columns(family=pl.col("contender").str.head(1))
    found = compare_vectors(grouped)
    assert found.primary == ("x:K=3", "y:K=2") and found.headline.startswith("x:K=3 is better than y:K=2: 4.0000 ")
    assert set(found.benchmarks["baseline"].drop_nulls()) == {"y:K=2"}
    assert_frame_equal(found.pairs, compare_vectors(frame).pairs)
    assert compare_vectors(grouped, baseline="x:K=1").primary == ("x:K=3", "x:K=1")
    own = grouped.filter(family="x")
    assert compare_vectors(own).primary == ("x:K=3", "x:K=2")
    priced = grouped.with_columns(price=1 / pl.col("rounds"))
    assert compare_vectors(priced, unit="price").primary == ("y:K=1", "x:K=1")


def test_intervals_that_would_reach_zero_are_left_out_against_closed_form():
    frame = vectors({"a": [20.0, 60], "b": [40.0, 44]}, tokens=[90, 100], price=[1.0, 2])
    found = compare_vectors(frame.with_columns(plain_price=pl.col("price") * 2))
    a, b = found.contenders.filter(measure="tokens_per_round").to_dicts()
    assert a["pooled"] == 190 / 80 and a["pooled_low"] is a["pooled_high"] is a["macro_low"] is None
    reach = scipy.stats.t.ppf(0.975, 1) * b["pooled_error"]
    assert b["pooled_low"] == pytest.approx(b["pooled"] - reach) and b["pooled_low"] > 0
    assert found.benchmarks["pooled_low"][0] is None and found.benchmarks["pooled_low"][1] == b["pooled_low"]
    assert ratio_interval([90, 100], [20.0, 60], ["p", "q"]) == (190 / 80, None, None)
    assert found.notes[0].startswith(
        "2 prompts: intervals from so few are rough, and left out where they would reach 0"
    )
    many = compare_vectors(vectors({"a": [20.0, 21] * 5, "b": [30.0, 29] * 5}, tokens=[90] * 10))
    assert many.contenders["pooled_low"].min() > 2


def test_one_prompt_decides_against_closed_form():
    rounds = np.full(30, 10.0)
    faster = rounds - 0.05 - 0.3 * (np.arange(30) % 2)
    faster[7] = 1.0
    found = compare_vectors(vectors({"a": rounds, "b": faster}, tokens=[30] * 30), baseline="a")
    row = found.pair("b", "a")
    assert row["decisive_prompt"] == "r0007" and row["leave_one_out_prompt"] == "r0007"
    without = 290 / (faster.sum() - 1)
    assert row["leave_one_out_low"] == pytest.approx(without)
    assert f"prompt 'r0007' decides between b and a: without it their ratio is {without:.4f}" in repr(found)


@pytest.mark.parametrize("unit", ["rounds", "price"])
def test_swapped_contenders_invariant(unit):
    frame, _ = study(np.random.default_rng(4), prompts=25, rollouts=1)
    frame = frame.with_columns(price=pl.col("rounds") * 0.02 + pl.col("tokens") * 0.001)
    one, other = (compare_vectors(frame, baseline=name, unit=unit) for name in "ab")
    forth, back = one.pair("b", "a"), other.pair("a", "b")
    assert forth["ratio"] * back["ratio"] == pytest.approx(1, rel=1e-12)
    assert forth["ratio_low"] * back["ratio_high"] == pytest.approx(1, rel=1e-12)
    assert forth["p"] == back["p"] and forth["difference_low"] == pytest.approx(-back["difference_high"], rel=1e-9)
    wanted = frame.group_by("contender").agg(pl.col("tokens", "price").sum()).sort("contender")
    price = (wanted["price"] / wanted["tokens"]).to_list()
    found = one.contenders.filter(measure="price_per_token")["pooled"].to_list()
    assert found == pytest.approx(price, rel=1e-12)


def test_order_of_rows_and_generators_invariant():
    frame, _ = study(np.random.default_rng(5), prompts=25, rollouts=2, lengths=(3.0, 3.1, 2.9), benchmarks=2)
    shuffled = pl.concat([frame.filter(contender=name).sample(fraction=1, shuffle=True, seed=1) for name in "abc"])
    found, again = compare_vectors(frame, rng=3), compare_vectors(shuffled, rng=np.random.default_rng(3))
    for name in ("pairs", "contenders", "variance_account"):
        assert_frame_equal(getattr(found, name), getattr(again, name), check_exact=True)
    order = ["measure", "benchmark", "contender"]
    assert_frame_equal(found.benchmarks.sort(order), again.benchmarks.sort(order), check_exact=True)
    other = compare_vectors(frame, rng=4)
    assert found.pairs["ratio_low"].equals(other.pairs["ratio_low"])
    assert not found.pairs["ratio_bca_low"].equals(other.pairs["ratio_bca_low"])
    # A pair is what it is, whoever else is there.
    two = compare_vectors(frame.filter(pl.col("contender") != "c"), rng=3)
    kept = found.pairs.filter(pl.concat_list("contender", "baseline").list.contains("c").not_()).drop(
        "p_holm", "verdict"
    )
    assert_frame_equal(kept, two.pairs.drop("p_holm", "verdict"), check_exact=True)


def test_number_of_threads_invariant():
    code = (
        "import numpy as np; from markov_spec.comparison import compare_vectors; "
        "from tests.comparison.studies import study; "
        "frame, _ = study(np.random.default_rng(0), prompts=300, rollouts=3, lengths=(3, 3.1, 3.2)); "
        "found = compare_vectors(frame); print(found.pairs.hash_rows().to_list(), found.contenders.to_dicts())"
    )
    told = []
    for threads in ("1", "2", "8"):
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS")
        done = subprocess.run(
            ["env", *(f"{name}={threads}" for name in names), sys.executable, "-c", code],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        told.append(done.stdout)
    assert told[0] == told[1] == told[2]


def test_labels_and_few_draws_are_told_invariant():
    frame, _ = study(np.random.default_rng(7), prompts=30, rollouts=1, lengths=(3.0, 3.1, 2.0))
    label = pl.when(contender="b").then(pl.lit("bound")).otherwise(pl.lit("exact"))
    found = compare_vectors(frame.with_columns(exactness=label), resamples=50)
    assert found.contenders["exactness"].to_list() == ["exact", "bound", "exact"]
    assert "bound, not exact: b" in found.notes
    assert "50 draws give no p below 0.059 corrected for 3 pairs: too few to show any" in found.notes
    plain = compare_vectors(frame, resamples=50, baseline="a")
    assert plain.notes == () and plain.contenders["exactness"].null_count() == 3


def test_nothing_to_decode_against_closed_form():
    rounds = {"a": [5.0, 0, 6, 7], "b": [4.0, 0, 6, 5]}
    frame = vectors(
        rounds, tokens=[10, 0, 12, 14], prompts=["p", "q", "r", "s"], expected_inverse=[0.2, np.nan, 0.2, 0.2]
    )
    found = compare_vectors(frame)
    without = compare_vectors(frame.filter(pl.col("prompt") != "q"))
    assert (found.prompts, found.rollouts) == (3, 3) and "1 prompt without a token to decode left out" in found.notes
    for name in FRAMES:
        assert_frame_equal(getattr(found, name), getattr(without, name))
    assert found.contenders["request_mean"].to_list() == pytest.approx([2.4, 2.4])


def test_how_it_reads_invariant():
    frame, _ = study(np.random.default_rng(6), prompts=40, rollouts=1, lengths=(3.0, 3.1, 2.0))
    found = compare_vectors(frame.with_columns(contender=pl.col("contender") + "<&>"), margin=0.5)
    assert found.to_frame() is found.pairs and repr(found).startswith(
        "Comparison(3 contenders, 40 rollouts of 40 prompts"
    )
    assert "equivalent within 50 %" in found.headline and "corrected for 3 pairs, p of equivalence" in found.headline
    assert "<&>" in found.headline and "b<&>" not in found._repr_html_() and "b&lt;&amp;&gt;" in found._repr_html_()
    many, _ = study(np.random.default_rng(6), prompts=12, rollouts=1, lengths=np.linspace(2, 3, 6))
    assert "5 more pairs in .pairs" in compare_vectors(many, resamples=9)._repr_html_()
    with pytest.raises(ValueError, match="pair: found 'x' against 'y'; allowed: 'a<&>' against 'b<&>', "):
        found.pair("x", "y")


GOOD = {"contender": ["a", "a", "b", "b"], "rollout": [1, 2] * 2, "prompt": [1, 2] * 2, "tokens": [5, 6] * 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"contender": ["a"] * 4, "rollout": [1, 2, 3, 4]}, "contender: found a; allowed: two contenders or more"),
        ({"rollout": [1, 1, 1, 2]}, "rollout: contender 'a': found '1' more than once"),
        ({"rollout": [1, 2, 1, 3]}, r"'b' lacks 1 rollout \('2'\); 'b' alone has 1 rollout \('3'\); allowed: the same"),
        ({"setting": ["T=1", "T=1", "T=1", "T=0"]}, r"another setting in 1 rollout \('2': 'T=1', 'T=0'\)"),
        ({"setting": ["T=1"] * 2 + ["T=0"] * 2}, r"another setting in 2 .*; allowed: .* tokens under the same setting"),
        ({"prompt": [1, 2, 1, 3]}, r"beside 'a', found 'b' has another prompt in 1 rollout \('2': '2', '3'\)"),
        ({"tokens": [5, 6, 5, 7]}, r"another tokens in 1 rollout \('2': 6, 7\); allowed: .*texts='own'"),
        ({"benchmark": ["x", "y", "x", "z"]}, r"another benchmark in 1 rollout \('2': 'y', 'z'\)"),
        ({"prompt": [1] * 4, "benchmark": ["x", "y"] * 2}, "prompt '1': found it in benchmarks 'x' and 'y'"),
        ({"rounds": [2, 3, 2, None]}, "rounds: rollout 2 of 'b': found null"),
        ({"rounds": [2, 3, 2, -1]}, "rounds: rollout '2' of 'b': found -1; allowed: a number from 0 to 1e.100"),
        ({"rounds": [2.0, 3.0, 2.0, np.inf]}, "found inf"),
        ({"rounds": [2.0, 3.0, 1e308, 1e308]}, r"found 1e\+308; allowed: a number from 0 to 1e\+100"),
        ({"rounds": None, "seconds": [2, 3, 2, 2]}, r"a time is a price: frame.rename\({'seconds': 'price'}\)"),
        ({"family": ["x", "y", "z", "z"]}, "family: contender 'a': found 'x', 'y'; allowed: one for each contender"),
        ({"rounds": [2, 3, 2, 0]}, "rounds: rollout '2' of 'b': found 0 for 6 tokens"),
        ({"rounds": list("wxyz")}, "rounds: found a column of String; allowed: numbers"),
        ({"price": [0, 0, 1, 1]}, "price: contender 'a': found 0 in all of its rollouts"),
        ({"tokens": None}, "found columns contender, rollout, prompt, rounds, without tokens"),
        ({"rounds": None}, "without rounds or price; allowed: contender, rollout, prompt, tokens, one of"),
    ],
)  # fmt: skip
def test_bad_frames_are_refused_invariant(change, message):
    columns = {
        name: values for name, values in (GOOD | {"rounds": [2, 3, 2, 2]} | change).items() if values is not None
    }
    with pytest.raises(ValueError, match=message):
        compare_vectors(pl.DataFrame(columns))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline": "c"}, "baseline: found 'c'; allowed: 'a', 'b'"),
        ({"unit": "seconds"}, "unit: found 'seconds'; allowed: 'rounds', 'price'"),
        ({"unit": "price"}, "unit: found 'price' for a frame without a column price"),
        ({"texts": "other"}, "texts: found 'other'; allowed: 'same', 'own'"),
        ({"level": 1.0}, "level: found 1.0"),
        ({"level": "95"}, "level: found '95'; allowed: a number above 0 and below 1, 0.95 for 95 %"),
        ({"level": True}, "level: found True"),
        ({"margin": 0.0}, "margin: found 0.0; allowed: None, or a number above 0 and below 1, 0.01 for 1 %"),
        ({"margin": 5}, "margin: found 5"),
        ({"margin": "1%"}, "margin: found '1%'"),
        ({"resamples": 0}, "resamples: found 0"),
        ({"resamples": 10**11}, "resamples: found 100000000000; allowed: an integer from 1 to 1000000"),
        ({"resamples": 99.0}, "resamples: found 99.0"),
        ({"rng": "seed"}, "rng: found 'seed'; allowed: an integer of 0 or more, or a numpy.random.Generator"),
        ({"rng": -1}, "rng: found -1"),
    ],
)
def test_bad_options_are_refused_invariant(options, message):
    with pytest.raises(ValueError, match=message):
        compare_vectors(pl.DataFrame(GOOD | {"rounds": [2, 3, 2, 2]}), **options)
    with pytest.raises(ValueError, match="frame: found dict; allowed: polars"):
        compare_vectors(GOOD)


def test_settings_are_refused_of_own_texts_invariant():
    columns = GOOD | {"rounds": [2, 3, 2, 2], "setting": ["T=1"] * 2 + ["T=0"] * 2}
    with pytest.raises(ValueError, match=r"another setting in 2 rollouts"):
        compare_vectors(pl.DataFrame(columns), texts="own")
