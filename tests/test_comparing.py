"""The verb compare on stores, against the same vectors and evaluations."""

import numpy as np
import polars as pl
import pytest

import markov_spec as ms
from markov_spec.latency import Affine

DEMO = "data/demo"


def test_compare_against_reference():
    names, price = ["quant5", "block:K=2", "block:tree=best-first,budget=16"], Affine(1.0, per_draft=0.05)
    found = ms.compare(DEMO, names, baseline="drop1:K=3", price=price, resamples=200)
    rows = []
    for name in ("drop1:K=3", *names):
        one = ms.evaluate(DEMO, name, price=price)
        rows.append(
            pl.DataFrame(
                {
                    "contender": [name] * len(one.ids), "rollout": one.ids, "prompt": one.prompt_ids,
                    "benchmark": one.benchmarks, "tokens": one.committed, "rounds": one.rounds,
                    "variance": one.variance, "price": one.price, "price_variance": one.price_variance,
                    "expected_inverse": one.inverse,
                }
            )
        )  # fmt: skip
    expected = ms.compare_vectors(pl.concat(rows), baseline="drop1:K=3", resamples=200)
    assert found.pairs.equals(expected.pairs) and found.contenders.equals(expected.contenders)
    first = found.contenders.filter(pl.col("measure") == found.contenders["measure"][0])
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
    assert np.isfinite(ms.required_prompts(found)["prompts"].to_numpy()).any()
