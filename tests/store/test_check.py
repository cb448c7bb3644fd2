"""What a check says of stores whose values are all allowed, and of which something is wrong."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.store import sampled
from tests.store.drawn import LARGE, PLAIN, VOCAB, alarm, cold, findings, given, lists, log_softmax, spread
from tests.store.memory import resident

SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.6},
    {"top_k": 5},
    {"top_k": 30},
    {"top_p": 0.9},
    {"temperature": 0.6, "top_p": 0.8},
    {"temperature": 0.0},
    {"temperature": 0.3, "top_k": 20, "top_p": 0.95},
    {"temperature": 0.5, "top_p": 0.8, "last": True},
    {"temperature": 0.5, "top_p": 0.5},
    {"temperature": 2.0, "top_k": 13, "top_p": 0.5},
    {"top_k": 2, "top_p": 0.5},
    {"min_p": 0.1},
    {"temperature": 0.6, "top_k": 20, "min_p": 0.02},
    {"temperature": 2.0, "min_p": 0.2, "last": True},
    {"top_p": 0.9, "min_p": 0.05},
    {"top_k": 5, "top_p": 0.7, "joint": True},
    {"temperature": 0.7, "top_p": 0.8, "last": True, "joint": True},
    {"temperature": 0.7, "top_k": 8, "top_p": 0.8, "min_p": 0.05, "joint": True},
    {"temperature": 1.4, "top_k": 5, "top_p": 0.7, "min_p": 0.1, "last": True, "joint": True},
]
WIDTHS = (12, 1, 5, 30, VOCAB)


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("first", range(0, 200, 40))
def test_sound_stores_raise_no_alarm_invariant(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 40):
        shape = {"width": WIDTHS[seed % len(WIDTHS)], "processed": seed % 3 == 0}
        arguments = given(seed, **SETTINGS[seed % len(SETTINGS)], **shape)
        name = list(arguments["drafters"])[seed // len(SETTINGS) % 4]
        arguments["drafters"] = {name: arguments["drafters"][name]}
        assert findings(tmp_path / "s", arguments) == [], (seed, name)


@pytest.mark.parametrize("width", [5, 12])
@pytest.mark.parametrize("setting", SETTINGS)
def test_large_sound_store_raises_no_alarm_invariant(tmp_path: Path, setting: dict, width: int) -> None:
    assert findings(tmp_path / "s", given(7, **setting, **LARGE, width=width)) == []


@pytest.mark.parametrize(
    ("drawn", "temperature", "filters"),
    [
        (cold(0.7), 0.7, ""),
        (cold(1.5), 1.5, ""),
        (cold(1.0, top_k=5), 1.0, ", top_k 5"),
        (cold(1.0, top_k=12), 1.0, ", top_k 12"),  # all that the lists hold
        (cold(0.7, top_k=5), 0.7, ", top_k 5"),
        (cold(1.0, top_p=0.9), 1.0, ", top_p 0.9"),
        (cold(0.7, top_p=0.9), 0.7, ", top_p 0.9"),
    ],
)
def test_setting_that_tokens_look_like_against_simulation(
    tmp_path: Path, drawn: dict, temperature: float, filters: str
) -> None:
    told = alarm(tmp_path / "s", given(1, **drawn, **LARGE, said=PLAIN, scored=PLAIN))
    assert told.startswith("rollouts/divergence-00000.parquet: z-statistic -" if temperature <= 1 else "rollouts/div")
    found = re.search(r"these look like T = ([\d.]+) \(([\d.]+) to ([\d.]+)\)(.*?), and log_p are those of", told)
    assert found is not None and found[4].startswith(filters) and bool(filters) == bool(found[4])
    near, low, high = (float(found[i]) for i in (1, 2, 3))
    assert low - 0.02 <= temperature <= high + 0.02 and abs(near - temperature) < 0.06 * temperature
    assert "log_p are those of temperature 1; correct the recorded sampling" in told


def test_greedy_tokens_look_greedy_against_simulation(tmp_path: Path) -> None:
    told = alarm(tmp_path / "s", given(1, temperature=0.0, said=PLAIN, scored=PLAIN))
    assert "these look greedy (T = 0), and log_p are those of temperature 1" in told
    told = alarm(tmp_path / "s", given(1, **LARGE, said=cold(0.0), scored=PLAIN))
    assert "though temperature 0 is recorded: these look like T = 1.0" in told


@pytest.mark.parametrize("value", [-100.0, -9999.0, -1e10, -3.4028234663852886e38])
def test_case_38_sentinels_among_log_probs_against_closed_form(tmp_path: Path, value: float) -> None:
    arguments = given(1)
    del arguments["parts"]["lists"]
    arguments["log_p"][5] = value
    (finding,) = findings(tmp_path / "s", arguments)
    assert (finding.severity, finding.where) == ("error", "rollouts/part-00000.parquet")
    assert f"found {np.float32(value):.8g}, 1 time, a sentinel for log 0" in finding.message
    arguments = given(1)
    soft = arguments["drafters"]["block"]
    soft.log_q[[3, 4], 0] = value
    told = alarm(tmp_path / "s", arguments)
    assert told.startswith("drafters/block/law-00000.parquet: log_q: rollout 'r0', position 3: found")
    assert "2 times" in told and "store -inf" in told


def test_values_as_low_as_a_sentinel_are_none_where_others_are_near_invariant(tmp_path: Path) -> None:
    arguments = given(1)
    soft = arguments["drafters"]["soft"]
    soft.log_q[[3, 4, 5]] = -100, -97.3, -64.2
    assert findings(tmp_path / "s", arguments) == []


@pytest.mark.parametrize("tail", [0.0, 0.2])
def test_mass_that_is_cut_off_against_closed_form(tmp_path: Path, tail: float) -> None:
    arguments = given(1)
    block = arguments["drafters"]["block"].parts["lists"]
    block["tail_mass"] = np.full_like(block["tail_mass"], tail)
    told = alarm(tmp_path / "s", arguments)
    assert told.startswith("drafters/block/lists-00000.parquet: lists: rollout 'r0', position 0, depth ")
    assert f"and tail_mass {tail:g}; together 1 is right" in told


def test_repeated_rollouts_against_closed_form(tmp_path: Path) -> None:
    """Two equal rollouts are one in exp(sum of log_p) draws: 1e-9 is refused, 1e-3 may happen."""
    words = {"rollout_ids": ["a", "b", "c"], "prompt_ids": ["p", "p", "p"], "indptr": [0, 9, 18, 27]}
    words |= {"tokens": np.tile(np.arange(9), 3), "metadata": {"sampling": PLAIN}}
    told = alarm(tmp_path / "s", {**words, "log_p": np.full(27, np.log(0.1))})
    assert "rollouts 'a' and 'b', 'a' and 'c' have the same prompt and the same tokens" in told
    for chance in (1e-3, 5e-8):  # three pairs: below 3.3e-8 it is no chance
        assert findings(tmp_path / "s", {**words, "log_p": np.full(27, np.log(chance) / 9)}) == []
    for changes in (
        {"prompt_ids": ["p", "q", "r"]},
        {"turns": [0, 1, 2]},
        {"metadata": {"sampling": cold(0.0)}},
        {"metadata": {}},
    ):
        assert findings(tmp_path / "s", {**words, "log_p": np.full(27, np.log(0.1)), **changes}) == []


def test_prompts_that_are_equal_under_different_ids_against_closed_form(tmp_path: Path) -> None:
    arguments = given(1)
    arguments["prompt_tokens"][4] = arguments["prompt_tokens"][5] = arguments["prompt_tokens"][0]
    assert "prompts 'p0' and 'p2' are the same tokens under different ids" in alarm(tmp_path / "s", arguments)
    arguments["turns"] = [0, 0, 0, 0, 1, 1, 0, 0]
    assert findings(tmp_path / "s", arguments) == []


def test_log_probs_that_are_all_zero_against_closed_form(tmp_path: Path) -> None:
    for parts in ({}, given(1)["parts"]):
        arguments = given(1) | {"parts": parts}
        arguments["log_p"] = np.zeros_like(arguments["log_p"])
        assert "every log-probability is 0 though temperature 1 is recorded" in alarm(tmp_path / "s", arguments)
    certain = given(1, top_k=2, top_p=0.3)  # the first token is all that top-p leaves of two
    assert not certain["log_p"].any() and findings(tmp_path / "s", certain) == []
    arguments = given(1)
    arguments["drafters"] = {"soft": replace(arguments["drafters"]["soft"], log_q=np.zeros(len(arguments["tokens"])))}
    told = alarm(tmp_path / "s", arguments)
    assert told.startswith("drafters/soft/law-00000.parquet: every log_q is 0, though drafts are sampled")


@pytest.mark.parametrize("columns", [("entropy", "varentropy"), ("varentropy",)])
@pytest.mark.parametrize("some", [1, 3])
def test_entropies_that_are_zero_beside_random_tokens_against_closed_form(
    tmp_path: Path, columns: tuple[str, ...], some: int
) -> None:
    for seed, setting in enumerate(({}, {"temperature": 0.7}, {"top_k": 5})):
        arguments = given(seed, **setting)
        for column in columns:
            arguments["parts"]["divergence"][column][::some] = 0
        told = alarm(tmp_path / "s", arguments)
        count = len(arguments["tokens"][::some])
        assert told.startswith("rollouts/divergence-00000.parquet: varentropy is 0 at ") and "-log_p differs" in told
        assert count <= int(re.search(r"0 at (\d+) positions", told)[1]) < 1.2 * count + 5


def test_entropies_that_are_zero_in_half_precision_raise_no_alarm_invariant(tmp_path: Path) -> None:
    for seed in range(20):
        arguments = given(seed, temperature=0.1, rollouts=30)
        for column, values in arguments["parts"]["divergence"].items():
            arguments["parts"]["divergence"][column] = values.astype(np.float16).astype(np.float32)
        assert (arguments["parts"]["divergence"]["varentropy"] == 0).mean() > 0.05
        assert findings(tmp_path / "s", arguments) == []


@pytest.mark.parametrize(("rare", "alarms"), [(10, 0), (45, 1)])
def test_z_statistic_of_rare_surprises_is_not_normal_against_closed_form(
    tmp_path: Path, rare: int, alarms: int
) -> None:
    """Of 200 tokens of probability .99 or .01, some 2 are rare: normal tables alarm at 10, once in 20 000 stores."""
    chances = np.array([0.99, 0.01])
    entropy, varentropy = spread(np.log(chances)[None])
    log_p = np.log(np.where(np.arange(200) < rare, *chances[::-1]))
    words = {"rollout_ids": ["a"], "prompt_ids": ["p"], "indptr": [0, 200], "tokens": np.arange(200), "log_p": log_p}
    parts = {"divergence": {"entropy": np.repeat(entropy, 200), "varentropy": np.repeat(varentropy, 200)}}
    z = (-log_p.sum() - 200 * entropy[0]) / np.sqrt(200 * varentropy[0])
    assert z > 5 and len(findings(tmp_path / "s", {**words, "parts": parts})) == alarms


def test_bound_of_deviations_against_simulation() -> None:
    """The bound holds where sums of rare terms are least normal, and is about 5.7 standard deviations elsewhere."""
    rng = np.random.default_rng(2)
    for count, chance, scale in ((200, 0.01, 4.6), (1000, 1e-3, 6.9), (50, 0.3, 1.0)):
        sums = scale * (rng.binomial(count, chance, 1_000_000) - count * chance)
        assert np.abs(sums).max() < sampled.allowed_deviation(count * chance * (1 - chance) * scale**2, scale)
    assert sampled.allowed_deviation(1e8, 5.0) == pytest.approx(5.68e4, rel=0.01)


@pytest.mark.parametrize(("total", "rate"), [(56, 0.25), (300, 0.05), (40, 0.5), (9, 0.1)])
def test_bound_of_rates_against_enumeration(total: int, rate: float) -> None:
    chances = np.array([math.comb(total, n) * rate**n * (1 - rate) ** (total - n) for n in range(total + 1)])
    for count in range(total + 1):
        beyond = chances[: count + 1].sum() if count < rate * total else chances[count:].sum()
        if sampled.unlikely(count, total, rate):
            assert beyond < sampled.RARE
        else:
            assert beyond > sampled.RARE / 100
    assert not sampled.unlikely(0, 0, rate)


def test_command_prints_findings_as_table_and_json_invariant(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    root = ms.write_store(tmp_path / "s", **given(1, temperature=0.7, said=PLAIN)).path
    assert main(["check", str(root)]) == 0
    told = capsys.readouterr().out
    assert "warning" in told and told.endswith(f"{root}: 1 warning\n")
    assert main(["check", str(root), "--format", "json"]) == 0
    severities = [finding["severity"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert severities.count("warning") == 1 and "error" not in severities


def test_check_of_a_large_store_takes_little_memory_invariant(tmp_path: Path) -> None:
    """60 MB of arrays, of which a range and a sample are in memory at a time."""
    rng = np.random.default_rng(1)
    raw = log_softmax(rng.normal(size=(20_000, VOCAB)))
    listed, rank = lists(raw, 16, "log_p"), np.arange(20_000)
    with ms.StoreWriter(tmp_path / "s", metadata={"sampling": PLAIN}) as writer:
        for i in range(20):
            tokens = listed["ids"][rank, rng.integers(0, 16, 20_000)]
            log_p = raw[rank, tokens]
            indptr = np.arange(0, 20_001, 100)
            names = [f"{i}/{j}" for j in range(200)]
            writer.add_rollouts(
                rollout_ids=names, prompt_ids=names, tokens=tokens, indptr=indptr, log_p=log_p, parts={"lists": listed}
            )
            writer.add_drafts(ms.Drafts("d", "block", "rejection", np.repeat(log_p[:, None], 8, axis=1)))
    ms.store.check_integrity(ms.write_store(tmp_path / "t", **given(1)).path)
    before = resident()[1]
    assert [f.severity for f in ms.store.check_integrity(tmp_path / "s")] == ["warning"]  # tokens drawn uniformly
    assert resident()[1] - before < 80


@pytest.mark.parametrize("rollouts", [100, 10])
def test_sample_is_spread_and_bounded_invariant(tmp_path: Path, rollouts: int) -> None:
    arguments = given(1, rollouts=rollouts, length=20)
    store = ms.write_store(tmp_path / "s", **arguments)
    rows = int(arguments["indptr"][-1])
    every = [(first, len(some)) for first, some in sampled.sample(store, 1)]
    assert every == [(0, rollouts)]
    some = [(first, first + len(part)) for first, part in sampled.sample(store, 10 * sampled.SAMPLE_CELLS // rows)]
    assert len(some) == min(sampled.SAMPLE_PLACES, rollouts) and all(a < b for a, b in some)
    assert all(one[1] <= other[0] for one, other in pairwise(some))
    taken = sum(int(arguments["indptr"][b] - arguments["indptr"][a]) for a, b in some)
    assert (taken < rows / 3 or rollouts < sampled.SAMPLE_PLACES) and some[-1][0] > 0.85 * rollouts
