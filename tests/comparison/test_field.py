"""Measured logs of real systems, compared as they are."""

import gzip
import json
import os
from pathlib import Path

import polars as pl
import pytest

from markov_spec.comparison import compare_vectors

FIELD = Path(os.environ.get("MARKOV_SPEC_FIELD_DATA", "absent"))
pytestmark = pytest.mark.skipif(not FIELD.is_dir(), reason="MARKOV_SPEC_FIELD_DATA names no folder of recorded runs")


def lines(path):
    with gzip.open(FIELD / path, "rt") as file:
        return [json.loads(line) for line in file]


def eagle(gpu):
    rows = []
    for name, file in (
        ("EAGLE", "eagle__llama38b2_40-temperature-1.0_ea"),
        ("HSD", "HSD__llama38b2_40-temperature-1.0_ea_hsd"),
    ):
        for i, request in enumerate(lines(f"hsd_eagle3/{gpu}_{file}_info.jsonl.gz")):
            accepted = [n for turn in request["accept_length"] for n in turn]
            counts = {"tokens": sum(accepted) + len(accepted), "rounds": len(accepted)}
            rows.append({"contender": name, "rollout": i, "prompt": i, "price": sum(request["generate_time"])} | counts)
    return pl.DataFrame(rows)


def test_hsd_verifier_against_reference():
    frame = eagle("h100")
    with pytest.raises(ValueError, match=r"'HSD' has another tokens in .* rollouts"):
        compare_vectors(frame)
    found = compare_vectors(frame, baseline="EAGLE", texts="own")
    row = found.pair("HSD", "EAGLE")
    assert (row["baseline_value"], row["value"]) == pytest.approx((4.217, 4.608), abs=5e-4)
    assert found.contenders.filter(measure="tokens_per_round")["total"].to_list() == [3858, 3608]
    assert found.prompts == found.rollouts == 80
    assert (row["ratio_low"], row["ratio_high"]) == pytest.approx((0.954, 1.252), abs=1e-3)
    assert 0.2 < row["p"] < 0.24 and row["verdict"] == "undecided"
    # The same rounds on another machine, at another price.
    other = compare_vectors(eagle("h200"), baseline="EAGLE", texts="own")
    assert other.pair("HSD", "EAGLE") == row
    prices = [f.pairs.filter(measure="price_per_token")["value"].item() for f in (found, other)]
    assert prices[1] < prices[0]


def test_speculation_by_seconds_against_reference():
    runs = json.loads((FIELD / "inventivehq/speculative-decoding/results.json").read_text())["runs"]
    rows = [
        {"contender": run["method"], "rollout": own["id"], "prompt": own["id"], "benchmark": own["category"]}
        | {"tokens": own["predicted_n"], "price": own["predicted_ms"] / 1000, "text": own["out_hash"]}
        for run in runs
        if run["backend"] == "cuda"
        for own in run["records"]
    ]
    with pytest.raises(ValueError, match=r"'draft_0_5b' has another text in .* rollouts"):
        compare_vectors(pl.DataFrame(rows))
    found = compare_vectors(pl.DataFrame(rows), baseline="baseline", texts="own")
    assert found.measure == "price_per_token" and found.prompts == 12
    tokens, seconds = (
        {row["prompt"]: row[name] for row in rows if row["contender"] == "ngram"} for name in ("tokens", "price")
    )
    row = found.pair("ngram", "baseline")
    assert row["value"] == pytest.approx(sum(seconds.values()) / sum(tokens.values()))
    # Two in five more seconds a token, all of it lost on one prompt of twelve.
    assert row["ratio"] == pytest.approx(1.419, abs=1e-3) and row["verdict"] == "undecided"
    assert row["decisive_prompt"] == "reason_plan" and row["leave_one_out_low"] == pytest.approx(1.0003, abs=1e-4)
    other = found.pair("draft_0_5b", "baseline")
    assert other["verdict"] == "worse" and other["decisive_prompt"] is None
