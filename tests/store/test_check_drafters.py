"""What a check says of drafters whose values are all allowed, and of which something is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import markov_spec as ms
from tests.store.drawn import DEPTH, VOCAB, alarm, findings, given


def _moved(drafts: ms.Drafts, by: int, part: str) -> ms.Drafts:
    if part == "lists":
        return replace(drafts, parts={"lists": {n: np.roll(v, by, axis=0) for n, v in drafts.parts["lists"].items()}})
    return replace(drafts, log_q=np.roll(drafts.log_q, by, axis=0), rank=None)


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize(
    ("name", "part"), [("soft", "law"), ("block", "law"), ("greedy", "law"), ("soft", "lists"), ("lookup", "lists")]
)
def test_rows_that_are_shifted_by_one_are_named_against_simulation(
    tmp_path: Path, name: str, part: str, by: int
) -> None:
    arguments = given(3, rollouts=40, length=40)
    arguments["drafters"] = {name: _moved(arguments["drafters"][name], by, part)}
    told = alarm(tmp_path / "s", arguments)
    way = "late: row t holds what belongs to token t-1" if by > 0 else "early: row t holds what belongs to token t+1"
    assert told.startswith(f"drafters/{name}/{part}-00000.parquet") and f"stand one position too {way}" in told


def _skipped(rng: np.random.Generator, id_: int, share: float, flagged: bool) -> dict[str, Any]:
    """Drafts of lookup where a share of the rounds was skipped: filled with one id, and flagged or not."""
    arguments = given(6)
    rows = len(arguments["tokens"])
    arguments["tokens"] = np.where(arguments["tokens"] == id_, (id_ + 1) % VOCAB, arguments["tokens"])
    skipped = rng.random(rows) < share
    arguments["parts"], lookup = {}, arguments["drafters"]["lookup"]
    ids = np.where(skipped[:, None, None], id_, lookup.parts["lists"]["ids"])
    log_q = np.where(skipped[:, None], -np.inf, lookup.log_q)
    drafted = np.where(skipped, 0 if flagged else DEPTH, lookup.drafted)
    known = np.arange(DEPTH) < drafted[:, None]
    parts = {"lists": {"ids": np.where(known[..., None], ids, -1), "log_q": np.where(known, 0, -np.inf)[..., None]}}
    rank = np.where(log_q == 0, 1, 2**31 - 1)
    arguments["drafters"] = {"lookup": replace(lookup, log_q=log_q, rank=rank, drafted=drafted, parts=parts)}
    return arguments


@pytest.mark.parametrize(("id_", "share"), [(0, 0.05), (0, 0.6), (17, 0.6)])
def test_case_21_skipped_drafts_filled_with_one_id_against_closed_form(tmp_path: Path, id_: int, share: float) -> None:
    told = alarm(tmp_path / "s", _skipped(np.random.default_rng(1), id_, share, False))
    assert f"drafts of id {id_} only" in told and "Record drafted 0 where nothing was drafted" in told
    assert findings(tmp_path / "s", _skipped(np.random.default_rng(1), id_, share, True)) == []


def test_case_21_drafter_skipped_beyond_its_context_against_closed_form(tmp_path: Path) -> None:
    arguments = given(6, rollouts=20)
    soft = arguments["drafters"]["soft"]
    at = np.concatenate([np.arange(n) for n in np.diff(arguments["indptr"])])
    soft.log_q[at >= 47] = -np.inf  # 3 prompt tokens before them
    arguments["drafters"] = {"soft": soft}
    told = alarm(tmp_path / "s", arguments)
    assert f"all {np.count_nonzero(at >= 47)} starts after more than 49 tokens have drafts of probability 0" in told


def test_drafter_that_is_never_right_against_closed_form(tmp_path: Path) -> None:
    arguments = given(6, rollouts=8, length=120)
    rows = len(arguments["tokens"])
    for log_q, alarms in ((np.full((rows, 4), -np.inf), 1), (np.where(np.arange(rows)[:, None] == 9, 0, -np.inf), 0)):
        arguments["drafters"] = {"d": ms.Drafts("d", "block", "match", np.broadcast_to(log_q, (rows, 4)))}
        found = findings(tmp_path / "s", arguments)
        assert len(found) == alarms and all("none of 3" in finding.message for finding in found)


def test_few_drafts_that_are_never_right_raise_no_alarm_invariant(tmp_path: Path) -> None:
    arguments = given(6, rollouts=8, length=40)
    rows = len(arguments["tokens"])
    for right in (0, 50):
        log_q = np.where(np.arange(rows) < right, 0, -np.inf)
        arguments["drafters"] = {"d": ms.Drafts("d", "autoregressive", "match", log_q)}
        assert findings(tmp_path / "s", arguments) == []


@pytest.mark.parametrize(
    ("mark", "word"), [("target_fingerprint", "another target"), ("tokenizer_fingerprint", "another tokenizer")]
)
def test_marks_of_another_model_are_told_against_closed_form(tmp_path: Path, mark: str, word: str) -> None:
    arguments = given(1)
    arguments["metadata"][mark] = "one"
    soft = arguments["drafters"]["soft"]
    for found, alarms in (("one", 0), ("two", 1), (None, 0)):
        arguments["drafters"] = {"soft": replace(soft, metadata={} if found is None else {mark: found})}
        told = findings(tmp_path / "s", arguments)
        assert len(told) == alarms and all(word in finding.message for finding in told)
