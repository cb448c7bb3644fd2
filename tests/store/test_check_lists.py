"""What a check says of a target's lists beside its tokens and log-probabilities."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

import markov_spec as ms
from tests.store.drawn import LARGE, PLAIN, VOCAB, alarm, cold, findings, given, lists, log_softmax


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_case_31_log_probs_before_temperature_against_simulation(tmp_path: Path) -> None:
    arguments = given(1, temperature=0.5, **LARGE, scored=PLAIN)
    told = alarm(tmp_path / "s", arguments)
    assert "these look like T = 0.5" in told and "as recorded, but log_p are those of the plain softmax" in told
    arguments["metadata"] = {**arguments["metadata"], "logprob_space": "raw"}
    assert findings(tmp_path / "s", arguments) == []


def test_log_probs_before_min_p_against_simulation(tmp_path: Path) -> None:
    arguments = given(3, min_p=0.1, **LARGE, scored=PLAIN)
    told = alarm(tmp_path / "s", arguments)
    assert "min_p 0.1, as recorded, but log_p are those of the plain softmax" in told
    arguments["metadata"] = {**arguments["metadata"], "logprob_space": "raw"}
    assert findings(tmp_path / "s", arguments) == []
    arguments["metadata"]["sampling"] = {"temperature": 1.0, "xtc": 0.5}  # a filter that nothing is known of
    assert findings(tmp_path / "s", arguments) == []
    notes = [found.message for found in ms.store.check_integrity(tmp_path / "s")]
    assert any("the lists judge no temperature" in note for note in notes)


@pytest.mark.parametrize(("said", "width"), [({"top_k": 2}, 10), ({"top_k": 3}, 3), ({"min_p": 0.3}, 10)])
@pytest.mark.parametrize("space", ["processed", "raw"])
def test_filters_that_tokens_pass_by_are_no_filters_against_simulation(
    tmp_path: Path, said: dict, width: int, space: str
) -> None:
    """Tokens, log-probabilities and lists of the plain softmax, which no reading of the recorded filter allows."""
    arguments = given(2, **LARGE, width=width, said={"temperature": 1.0, **said}, scored=PLAIN)
    arguments["metadata"]["logprob_space"] = space
    told = alarm(tmp_path / "s", arguments)
    assert told.startswith("rollouts/lists-00000.parquet: by the lists") and "these look like T = 1.0" in told
    assert re.search(r"\d+ of \d+ tokens are beyond temperature 1, (top_k [23]|min_p 0.3), these look", told)
    assert "and log_p are those of temperature 1; correct the recorded sampling" in told


def test_log_probs_of_another_temperature_are_named_against_closed_form(tmp_path: Path) -> None:
    """Few tokens tell nothing of how they were drawn, but each log-probability is known to rounding."""
    told = alarm(tmp_path / "s", given(1, temperature=0.7, said=PLAIN))
    assert told.startswith("rollouts/lists-00000.parquet: log_p are not those that the lists give at temperature 1")
    assert "but of temperature 0.7; correct the recorded sampling" in told


def test_case_35_order_of_temperature_and_top_p_against_simulation(tmp_path: Path) -> None:
    setting = {"temperature": 0.5, "top_p": 0.8}
    assert findings(tmp_path / "s", given(2, **setting, last=True, **LARGE)) == []
    told = findings(tmp_path / "s", given(2, **setting, last=True, said=setting, **LARGE))
    assert [finding.severity for finding in told] == ["warning"]


def test_lists_of_the_decoding_distribution_raise_no_alarm_invariant(tmp_path: Path) -> None:
    settings = cold(0.7), cold(1.0, top_k=5), cold(0.6, top_p=0.9), cold(0.0), cold(1.0, top_k=12, top_p=0.95)
    for seed, setting in enumerate(settings):
        for width in (12, VOCAB):
            arguments = given(seed, **setting, rollouts=40, length=20, width=width, processed=True)
            assert findings(tmp_path / "s", arguments) == []


def test_lists_of_some_rollouts_are_judged_invariant(tmp_path: Path) -> None:
    covered = np.arange(60) % 3 > 0
    for said, temperature, alarms in ((PLAIN, 1.0, 0), (PLAIN, 0.7, 1)):
        arguments = given(1, temperature=temperature, **LARGE, said=said, scored=said)
        rows = np.repeat(covered, np.diff(arguments["indptr"]))
        listed = arguments["parts"]["lists"]
        arguments["parts"] = {"lists": {name: values[rows] for name, values in listed.items()} | {"covered": covered}}
        assert len(findings(tmp_path / "s", arguments)) == alarms


def test_case_61_corrupt_log_probs_of_one_request_against_closed_form(tmp_path: Path) -> None:
    arguments = given(4, rollouts=8, length=40)
    low, high = arguments["indptr"][3:5]
    arguments["log_p"] = arguments["log_p"].copy()
    arguments["log_p"][low:high] -= 5
    told = {finding.where: finding.message for finding in findings(tmp_path / "s", arguments)}
    assert "log_p of rollouts 'r3' are up to 5 nats a token from the lists" in told["rollouts/lists-00000.parquet"]


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_case_69_noise_of_another_pass_raises_no_alarm_invariant(tmp_path: Path, noise: float) -> None:
    rng = np.random.default_rng(1)
    for seed in range(4):
        arguments = given(seed, **LARGE)
        arguments["log_p"] = np.minimum(arguments["log_p"] + rng.normal(0, noise, len(arguments["log_p"])), 0)
        assert findings(tmp_path / "s", arguments) == []


def test_case_68_ties_of_greedy_tokens_raise_no_alarm_against_closed_form(tmp_path: Path) -> None:
    for gap, alarms in ((0.3, 0), (0.7, 1)):
        arguments = given(5, temperature=0.0, **LARGE)
        listed = arguments["parts"]["lists"]
        pair = listed["log_p"][:, :2]
        even = np.logaddexp(*pair.T)[:, None] - np.logaddexp(0, -gap) - [[0, gap]]
        rows = np.flatnonzero(even[:, 1] > listed["log_p"][:, 2])
        arguments["tokens"][rows], pair[rows] = listed["ids"][rows, 1], even[rows]
        found = [f for f in findings(tmp_path / "s", arguments) if f.where.startswith("rollouts")]
        assert len(found) == alarms


def test_target_that_expects_its_last_token_again_is_in_place_against_simulation(tmp_path: Path) -> None:
    """Its likeliest token equals the one before nearly always, its own token seldom; log_p tell that it is in place."""
    rng = np.random.default_rng(1)
    tokens, chosen = np.empty(2000, dtype=int), np.empty(2000)
    raw = np.zeros((2000, VOCAB))
    for t in range(2000):
        raw[t, tokens[t - 1] if t else 0] = 2
        row = log_softmax(raw[t])
        tokens[t] = rng.choice(VOCAB, p=np.exp(row))
        chosen[t] = row[tokens[t]]
    words = {"rollout_ids": list("abcd"), "prompt_ids": list("abcd"), "tokens": tokens, "log_p": chosen}
    words |= {"indptr": np.arange(0, 2001, 500), "metadata": {"vocab_size": VOCAB, "sampling": PLAIN}}
    listed = lists(log_softmax(raw), 12, "log_p")
    assert findings(tmp_path / "s", {**words, "parts": {"lists": listed}}) == []
    moved = {name: np.roll(values, 1, axis=0) for name, values in listed.items()}
    assert "lists" in alarm(tmp_path / "s", {**words, "parts": {"lists": moved}})


def test_target_lists_that_are_shifted_are_named_against_simulation(tmp_path: Path) -> None:
    arguments = given(3, rollouts=40, length=40)
    listed = arguments["parts"]["lists"]
    arguments["parts"]["lists"] = {name: np.roll(values, 1, axis=0) for name, values in listed.items()}
    told = alarm(tmp_path / "s", arguments)
    assert told.startswith("rollouts/lists-00000.parquet: the lists stand one position too late")
