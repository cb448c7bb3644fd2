"""The verb compare on stores, against the same vectors and evaluations."""

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import markov_spec as ms
from markov_spec import _jit
from markov_spec.comparison.cells import basis
from markov_spec.latency import Affine, Table
from tests.comparison.studies import vectors

DEMO = "data/demo"


def test_compare_against_reference():
    names, price = ["quant5", "block:K=2", "block:tree=best-first,budget=16"], Affine(1.0, per_draft=0.05)
    found = ms.compare(DEMO, names, baseline="drop1:K=3", price=price, resamples=200)
    rows, plain = [], ms.evaluate(DEMO, "quant5:rule=none", price=price).price
    for name in ("drop1:K=3", *names):
        one = ms.evaluate(DEMO, name, price=price)
        rows.append(
            pl.DataFrame(
                {
                    "contender": [name] * len(one.ids), "rollout": one.ids, "prompt": one.prompt_ids,
                    "benchmark": one.benchmarks, "tokens": one.committed, "rounds": one.rounds,
                    "variance": one.variance, "price": one.price, "price_variance": one.price_variance,
                    "expected_inverse": one.inverse, "plain_price": plain, "exactness": one.exactness,
                }
            )
        )  # fmt: skip
    expected = ms.compare_vectors(pl.concat(rows), baseline="drop1:K=3", unit="price", resamples=200)
    assert (
        found.measure == "price_per_token"
        and found.pairs.equals(expected.pairs)
        and found.contenders.equals(expected.contenders)
    )
    by_rounds = ms.compare(DEMO, names, baseline="drop1:K=3", price=price, unit="rounds", resamples=200)
    assert by_rounds.measure == "tokens_per_round" and by_rounds.contenders.equals(found.contenders)
    first = found.contenders.filter(measure="tokens_per_round")
    lengths = dict(first.select("contender", "pooled").rows())
    assert lengths["quant5"] == pytest.approx(ms.evaluate(DEMO, "quant5").pooled_length)


def test_quant5_and_drop1_are_a_near_tie_against_reference():
    found = ms.compare(DEMO, ["quant5", "drop1"], resamples=999)
    assert (found.pairs["verdict"] == "near-tie").all() and found.headline.startswith("Near-tie of drop1 and quant5")


def test_all_drafters_by_default_and_refusals_invariant():
    found = ms.compare(DEMO, resamples=99)
    assert set(found.contenders["contender"]) == set(ms.open_store(DEMO).drafters)
    with pytest.raises(ValueError, match="found drafter 'nobody'"):
        ms.compare(DEMO, ["nobody"])
    with pytest.raises(ms.RequestError, match=r"found drop1; allowed: two or more, .*drop1:K=1-8 .*drop1:rule=none"):
        ms.compare(DEMO, ["drop1"])
    for wrong in ("drop1", ms.Contender("drop1"), 5):
        with pytest.raises(ms.RequestError, match=r"contenders: found .*; allowed: a list of them, such as \['quant5'"):
            ms.compare(DEMO, wrong)
    assert np.isfinite(ms.required_prompts(found)["prompts"].to_numpy()).any()


def test_best_is_compared_with_another_drafter_against_reference():
    lengths = [f"{name}:K={k}" for name in ("drop1", "quant5") for k in (7, 8)]
    found = ms.compare(DEMO, lengths, resamples=9)
    assert found.primary == ("drop1:K=8", "quant5:K=8") and found.benchmarks["baseline"].drop_nulls()[0] == "quant5:K=8"
    assert ms.compare(DEMO, lengths[:2], resamples=9).primary == ("drop1:K=8", "drop1:K=7")


class InMilliseconds:
    unit = "milliseconds"

    def of(self, depth, drafted, context):
        return 20.0 + 0.5 * drafted + 0 * context


def test_unit_of_a_price_is_told_against_closed_form():
    found = ms.compare(DEMO, ["quant5:K=2", "drop1:K=2"], price=InMilliseconds(), resamples=9)
    assert found.price_unit == "milliseconds" and " milliseconds per token, " in found.headline
    assert basis(found).startswith("milliseconds per token; 128 rollouts of 64 prompts")
    lengths = ms.compare(DEMO, ["quant5:K=2", "drop1:K=2"], price=InMilliseconds(), unit="rounds", resamples=9)
    assert basis(lengths).startswith("tokens per round; ") and " tokens per round, " in lengths.headline
    assert basis(ms.compare(DEMO, ["block:K=2", "block"], price=Affine(1.0), resamples=9)).startswith(
        "price per token; "
    )


def test_what_a_table_does_not_price_is_told_invariant():
    told = (
        "the price has no per_depth, so drafting costs the same whatever the drafter and K; FILE?per_depth=0.006 adds "
    )
    flat = Table([1, 9], [1.0, 1.2], between="stair")
    deep = Table([1, 9], [1.0, 1.2], between="stair", per_depth=0.1)
    for names, price, wanted in (
        (["quant5:K=2", "quant5:K=3"], flat, True),
        (["block", "lookup:K=2"], flat, True),
        (["block", "block:K=2"], flat, False),
        (["block", "lookup:rule=none"], flat, False),
        (["quant5:K=2", "block"], deep, False),
        (["quant5:K=2", "block"], Affine(1.0), False),
        (["quant5:K=2", "block"], None, False),
    ):
        found = ms.compare(DEMO, names, price=price, resamples=9)
        assert any(note.startswith(told) for note in found.notes) == wanted
    message = r"contender block: option price: drafted \+ 1: found 9; allowed: 1 to 5, as the table lists"
    with pytest.raises(ms.RequestError, match=message):
        ms.compare(DEMO, ["block:K=4", "block"], price=Table([1, 5], [1.0, 1.2], between="stair"))


def test_one_figure_has_one_interval_against_reference():
    price = Affine(1.0, per_depth=0.2)
    found = ms.compare(DEMO, ["quant5:K=2", "quant5:K=3"], price=price, resamples=9).contenders
    curve = ms.length_curve(DEMO, "quant5", longest=3, price=price)
    lengths = found.filter(measure="tokens_per_round").select("pooled", "pooled_low", "pooled_high")
    speeds = found.filter(measure="price_per_token").select("speedup", "speedup_low", "speedup_high")
    wanted = curve.filter(pl.col("draft_length") >= 2)
    assert lengths.to_numpy() == pytest.approx(wanted.select("pooled_length", "pooled_low", "pooled_high").to_numpy())
    assert speeds.to_numpy() == pytest.approx(wanted.select("speedup", "speedup_low", "speedup_high").to_numpy())
    none = ms.compare(DEMO, ["quant5:rule=none", "quant5:K=2"], price=price, resamples=9)
    assert none.pair("quant5:K=2", "quant5:rule=none")["ratio"] == pytest.approx(1 / speeds["speedup"][0])


def write(path, tokens, log_q, **options):
    """A store of two rollouts whose drafter ``d`` has these probabilities; the target's are 0.5 each."""
    size = len(tokens) // 2
    return ms.write_store(
        path, rollout_ids=["r0", "r1"], prompt_ids=["p0", "p1"], tokens=np.asarray(tokens),
        indptr=[0, size, 2 * size], log_p=np.full(2 * size, np.log(0.5)), **options,
        drafters={"d": ms.Drafts("d", "block", "rejection", np.asarray(log_q, dtype=float))},
    )  # fmt: skip


def test_case_19_longer_drafts_win_at_a_lower_rate_against_closed_form(tmp_path):
    tokens = np.random.default_rng(0).integers(0, 50_000, 8000)
    store = write(tmp_path / "run", tokens, np.full((8000, 5), np.log(0.4)))
    found = ms.compare(store, ["d:K=3", "d:K=5"])
    lengths = dict(found.contenders.select("contender", "pooled").rows())
    rates = {name: ms.evaluate(store, name).results()[0]["draft_acceptance"] for name in lengths}
    assert lengths == pytest.approx({"d:K=3": 2.952, "d:K=5": 3.689}, abs=5e-3)
    assert rates == pytest.approx({"d:K=3": 0.6507, "d:K=5": 0.5379}, abs=1e-3)
    assert found.primary == ("d:K=5", "d:K=3")


def test_case_97_lengths_from_one_record_against_closed_form(tmp_path):
    match = np.array([1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 1, 1] * 2)
    ahead = np.arange(24)[:, None] + np.arange(4)
    log_q = np.where(match[ahead % 24] == 1, 0.0, -np.inf)
    drafts = ms.Drafts("d", "block", "match", log_q)
    store = ms.write_store(
        tmp_path / "run", rollout_ids=["r0", "r1"], prompt_ids=["p0", "p1"], tokens=np.arange(24),
        indptr=[0, 12, 24], log_p=np.zeros(24), drafters={"d": drafts},
    )  # fmt: skip
    found = ms.compare(store, ["d:K=4", "d:K=2"])
    assert dict(found.contenders.select("contender", "total").rows()) == {"d:K=4": 2 * 3, "d:K=2": 2 * 5}
    with pytest.raises(ms.RequestError, match="at most the recorded 4"):
        ms.compare(store, ["d:K=4", "d:K=5"])


def test_case_113_repetitive_rollouts_are_told_against_closed_form(tmp_path):
    rng = np.random.default_rng(0)
    rollouts = [*(rng.permutation(1000)[:100] for _ in range(18)), np.full(500, 7), np.arange(500) % 2]
    sizes = [len(tokens) for tokens in rollouts]
    # One draft each, which is right in the repetitive ones alone.
    log_q = np.repeat([-np.inf] * 18 + [0.0, 0.0], sizes)[:, None]
    ids = [f"r{i}" for i in range(20)]
    store = ms.write_store(
        tmp_path / "run", rollout_ids=ids, prompt_ids=ids, tokens=np.concatenate(rollouts),
        indptr=np.cumsum([0, *sizes]), log_p=np.full(sum(sizes), -0.5),
        drafters={"d": ms.Drafts("d", "block", "match", log_q)},
    )  # fmt: skip
    found = ms.compare(store, ["d", "d:K=0"], resamples=9)
    assert dict(found.contenders.select("contender", "pooled").rows()) == {"d": 2800 / 2300, "d:K=0": 1.0}
    (told,) = [note for note in found.notes if "repetitive" in note]
    assert told.startswith("2 of 20 rollouts are repetitive") and told.endswith("without: d 1.0000, d:K=0 1.0000")


def test_notes_of_contenders_are_kept_against_reference():
    names = ["block:tree=static,budget=8", "drop1", "block:tree=static,budget=4"]
    found, (note,) = ms.compare(DEMO, names, resamples=99), ms.evaluate(DEMO, names[0]).notes
    assert f"{names[0]}, {names[2]}: {note}" in found.notes
    labels = dict(found.contenders.select("contender", "exactness").rows())
    assert labels == {name: ms.evaluate(DEMO, name).exactness for name in names}


def test_other_stores_are_refused_with_what_differs_invariant(tmp_path):
    texts, log_q = np.random.default_rng(0).integers(0, 99, (2, 40)), np.full((40, 2), np.log(0.4))
    frames = []
    for i, tokens in enumerate(texts):
        metadata = {"sampling": {"temperature": 1.0 + i}, "logprob_space": "processed"}
        store = write(tmp_path / f"run{i}", tokens, log_q, metadata=metadata)
        rows = ms.evaluate(store, "d").to_frame().rename({"committed_tokens": "tokens", "expected_rounds": "rounds"})
        words = [str(part.tolist()) for part in np.split(tokens, 2)]
        setting = str(store.metadata["sampling"]["temperature"])
        frames.append(rows.with_columns(contender=pl.lit(f"d{i}"), text=pl.Series(words), setting=pl.lit(setting)))
    frame = pl.concat(frames)
    with pytest.raises(ValueError) as told:
        ms.compare_vectors(frame)
    assert "'d1' has another setting in 2 rollouts ('r0': '1.0', '2.0', 'r1': '1.0', '2.0')" in str(told.value)
    assert "'d1' has another text in 2 rollouts ('r0': '[" in str(told.value)
    with pytest.raises(ValueError, match="another setting"):
        ms.compare_vectors(frame, texts="own")
    assert ms.compare_vectors(frame.drop("setting"), texts="own").prompts == 2


def test_luck_against_simulation():
    found = ms.compare(DEMO, ["quant5", "drop1"], resamples=9).variance_account
    totals = {
        name: ms.simulate(ms.law_of(DEMO, name), replicates=600, rng=np.random.default_rng(0)).sum(1)
        for name in ("quant5", "drop1")
    }
    rows = {(row["contender"], row["baseline"]): row for row in found.to_dicts()}
    logs = {name: np.log(total) for name, total in totals.items()}
    # Six hundred runs tell a variance to 6 %.
    for name, own in logs.items():
        assert rows[name, None]["luck"] == pytest.approx(own.var(), rel=0.2)
    assert rows["drop1", "quant5"]["luck"] == pytest.approx(logs["quant5"].var() + logs["drop1"].var(), rel=0.2)


PROMPTS, TEXTS, LENGTH = 10, 2, 20


def decoded(rng, studies):
    """Expected rounds, their variance and those of one run, (studies, rollouts), of both contenders on fresh texts."""
    count = studies * PROMPTS * TEXTS
    ease = np.tile(np.linspace(-0.5, 1.5, PROMPTS), studies)[:, None, None]
    texts = ease + rng.normal(0, 0.7, (PROMPTS * studies, TEXTS, 1))
    found = {}
    for name, likes in (("a", 0.3), ("b", 0.0)):
        logits = texts + likes + rng.normal(0, 1, (PROMPTS * studies, TEXTS, LENGTH))
        accept = 1 / (1 + np.exp(-logits.ravel()))
        ahead = np.minimum(np.arange(accept.size)[:, None] + np.arange(3), accept.size - 1)
        law = ms.RoundLaw.from_acceptance(accept[ahead], np.arange(count + 1) * LENGTH)
        rounds = ms.solve(law)
        run = ms.simulate(law, replicates=1, rng=rng)[0]
        found[name] = [values.reshape(studies, -1) for values in (rounds.expected, rounds.variance, run)]
    return found


def test_equivalent_runs_against_simulation():
    rng = np.random.default_rng(5)
    accounts = []
    for _ in range(150):
        (a, var_a, _), (b, var_b, _) = ([values[0] for values in own] for own in decoded(rng, 1).values())
        frame = vectors(
            {"a": a, "b": b}, tokens=[LENGTH] * a.size, variance={"a": var_a, "b": var_b},
            prompts=[f"p{i // TEXTS}" for i in range(a.size)],
        )  # fmt: skip
        accounts.append(ms.compare_vectors(frame, baseline="b", resamples=9).variance_account.row(2, named=True))
    mean = {name: np.mean([row[name] for row in accounts]) for name in ("rollouts", "rollouts_apart", "luck")}
    runs = (mean["rollouts_apart"] + mean["luck"]) / mean["rollouts"]
    many, other = decoded(rng, 6000), decoded(rng, 6000)

    def spread(first, second, times=1):
        """Variance of the log ratio of total rounds, each of several runs of the same prompts."""
        first, second = (total.sum(1).reshape(-1, times).sum(1) for total in (first, second))
        return np.var(np.log(first / second))

    evaluated = spread(many["a"][0], many["b"][0])
    assert mean["rollouts"] == pytest.approx(evaluated, rel=0.1)
    assert spread(many["a"][2], other["b"][2]) / evaluated == pytest.approx(runs, rel=0.1)
    # So many runs are as good as the evaluation, half of them are not.
    times = round(runs)
    assert times > 3
    whole = spread(many["a"][2][: 6000 // times * times], other["b"][2][: 6000 // times * times], times)
    assert whole / evaluated == pytest.approx(runs / times, rel=0.15)


@pytest.mark.parametrize("cores", [2, 8])
def test_number_of_threads_invariant(monkeypatch, cores):
    monkeypatch.setattr(_jit, "INLINE_BYTES", 1)
    names = ["quant5", "block", "block:tree=best-first,budget=4"]
    found = []
    for count in (1, cores):
        monkeypatch.setattr(_jit, "_available_cores", lambda count=count: count)
        found.append(ms.compare(DEMO, names, price=Affine(1.0, per_draft=0.05), resamples=99, rng=2))
    for name in ("pairs", "contenders", "benchmarks", "winners", "variance_account"):
        assert_frame_equal(getattr(found[0], name), getattr(found[1], name), check_exact=True)


def test_a_block_drafter_charged_for_depths_is_told_invariant():
    price = Table([1, 16], [1.0, 1.1], between="linear", per_depth=0.2)
    told = ms.compare("data/demo", ["block", "lookup", "quant5"], price=price, resamples=9).notes
    assert any(note.startswith("block, lookup: charged per_depth for each depth") for note in told)
    told = ms.compare("data/demo", ["quant5", "drop1"], price=price, resamples=9).notes
    assert not any("per_depth" in note for note in told)
