"""What a check says of drafters whose values are all allowed, and of which something is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import markov_spec as ms
from tests.store.drawn import DEPTH, VOCAB, alarm, decoded, findings, given, lists, log_softmax


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


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


def _skipped(rng: np.random.Generator, id_: int, share: float, flagged: bool, other: bool = False) -> dict[str, Any]:
    """Drafts of lookup where a share of the rounds was skipped: filled with one id, and flagged or not.

    The id is in no rollout, or in one position of thirty if ``other``.
    """
    arguments = given(6, rollouts=60)
    rows = len(arguments["tokens"])
    tokens = np.where(arguments["tokens"] == id_, (id_ + 1) % VOCAB, arguments["tokens"])
    arguments["tokens"] = np.where(other & (rng.random(rows) < 0.03), id_, tokens)
    at = np.minimum(np.arange(rows)[:, None] + np.arange(DEPTH), rows - 1)
    skipped = rng.random(rows) < share
    arguments["parts"], lookup = {}, arguments["drafters"]["lookup"]
    proposed = np.where(rng.random((rows, DEPTH)) < 0.3, arguments["tokens"][at], rng.integers(0, VOCAB, (rows, DEPTH)))
    ids = np.where(skipped[:, None], id_, proposed)
    drafted = np.where(skipped, 0 if flagged else DEPTH, lookup.drafted)
    known = np.arange(DEPTH) < drafted[:, None]
    hit = known & (ids == arguments["tokens"][at])
    parts = {"lists": {"ids": np.where(known, ids, -1)[..., None], "log_q": np.where(known, 0, -np.inf)[..., None]}}
    law, rank = np.where(hit, 0, -np.inf), np.where(hit, 1, 2**31 - 1)
    arguments["drafters"] = {"lookup": replace(lookup, log_q=law, rank=rank, drafted=drafted, parts=parts)}
    return arguments


@pytest.mark.parametrize(
    ("id_", "share", "other"), [(0, 0.05, 0), (0, 0.05, 1), (0, 0.6, 0), (17, 0.6, 0), (0, 0.2, 1), (17, 0.5, 1)]
)
def test_case_21_skipped_drafts_filled_with_one_id_against_closed_form(
    tmp_path: Path, id_: int, share: float, other: bool
) -> None:
    told = alarm(tmp_path / "s", _skipped(np.random.default_rng(1), id_, share, False, other))
    assert f"drafts of id {id_} only" in told and "Record drafted 0 where nothing was drafted" in told
    assert not other or re.search(r"and \d+ of them are right", told)
    assert findings(tmp_path / "s", _skipped(np.random.default_rng(1), id_, share, True, other)) == []


def test_case_21_single_drafts_of_zeros_against_closed_form(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 50, 4000)
    proposed = np.where(rng.random(4000) < 0.7, tokens, (tokens + 7) % 50)
    proposed[2000:] = 0
    words = {"rollout_ids": list("abcd"), "prompt_ids": list("abcd"), "indptr": np.arange(0, 4001, 1000)}
    parts = {"lists": {"ids": proposed[:, None], "log_q": np.zeros((4000, 1))}}
    drafts = ms.Drafts("d", "autoregressive", "match", np.where(proposed == tokens, 0, -np.inf), parts=parts)
    words |= {"tokens": tokens, "log_p": np.full(4000, -0.1), "drafters": {"d": drafts}}
    assert re.search(r"20\d\d of 4000 starts have drafts of id 0 only, and", alarm(tmp_path / "s", words))


def test_drafts_of_one_id_that_are_right_often_raise_no_alarm_against_simulation(tmp_path: Path) -> None:
    """Half of all tokens are one id; a drafter that always proposes it is right in every second start."""
    for seed in range(10):
        arguments = given(seed, rollouts=10)
        rng, rows = np.random.default_rng(seed), len(arguments["tokens"])
        tokens = arguments["tokens"] = np.where(rng.random(rows) < 0.5, 0, 1 + np.arange(rows) % 50)
        at = np.minimum(np.arange(rows)[:, None] + np.arange(DEPTH), rows - 1)
        lists_ = {"ids": np.zeros((rows, DEPTH, 1), dtype=int), "log_q": np.zeros((rows, DEPTH, 1))}
        law = np.where(tokens[at] == 0, 0, -np.inf)
        arguments["drafters"] = {"d": ms.Drafts("d", "block", "match", law, parts={"lists": lists_})}
        arguments["parts"] = {}
        assert findings(tmp_path / "s", arguments) == []


@pytest.mark.parametrize("period", [2, 3, 7])
def test_drafter_that_repeats_its_last_token_is_no_padding_against_closed_form(tmp_path: Path, period: int) -> None:
    """On cyclic text it is never right, though each of its ids is in a rollout."""
    for rows, depth in ((300, 3), (6000, 1)):
        tokens = np.arange(rows) % period
        proposed = np.broadcast_to(((np.arange(rows) - 1) % period)[:, None, None], (rows, depth, 1))
        words = {"rollout_ids": ["a"], "prompt_ids": ["p"], "tokens": tokens, "indptr": [0, rows]}
        at = np.minimum(np.arange(rows)[:, None] + np.arange(depth), rows - 1)
        law = np.where(proposed[..., 0] == tokens[at], 0, -np.inf)
        parts = {"lists": {"ids": proposed, "log_q": np.zeros(proposed.shape)}}
        drafts = ms.Drafts("copy", "block", "match", law, parts=parts)
        assert findings(tmp_path / "s", {**words, "log_p": np.full(rows, -0.1), "drafters": {"copy": drafts}}) == []


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_drafter_that_expects_its_last_token_again_is_in_place_against_simulation(tmp_path: Path, rule: str) -> None:
    """As a model of tied embeddings does before it is trained: its lists equal the token before, its law says so."""
    for seed in range(5):
        arguments = given(seed, rollouts=20)
        rng, tokens = np.random.default_rng(seed), arguments["tokens"]
        every = np.arange(len(tokens))
        logits = rng.normal(size=(len(tokens), VOCAB)) * 0.05
        logits[every, np.roll(tokens, 1)] += 1
        q = log_softmax(logits)
        rank = 1 + (q > q[every, tokens][:, None]).sum(-1)
        law = np.where(rank == 1, 0, -np.inf) if rule == "match" else q[every, tokens]
        drafts = ms.Drafts("tied", "autoregressive", rule, law, rank, parts={"lists": lists(q, 3, "log_q")})
        arguments["drafters"] = {"tied": drafts}
        assert findings(tmp_path / "s", arguments) == []


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


def _block(seed: int, rule: str, half: type = np.float32) -> tuple[dict[str, Any], ms.Drafts]:
    """A block drafter with ranks and lists of 6, sampled at the store's temperature, or greedy."""
    arguments = given(seed, temperature=0.8, rollouts=20)
    rng, tokens, rows = np.random.default_rng(seed), arguments["tokens"], len(arguments["tokens"])
    at = np.minimum(np.arange(rows)[:, None] + np.arange(DEPTH), rows - 1)
    logits = rng.normal(size=(rows, DEPTH, VOCAB)) * 2
    np.put_along_axis(logits, tokens[at][..., None], rng.normal(size=(rows, DEPTH, 1)) * 2 + 2, -1)
    q = log_softmax(logits)
    own = np.take_along_axis(q, tokens[at][..., None], -1)
    rank = 1 + (q > own).sum(-1)
    law = np.take_along_axis(log_softmax(q / 0.8), tokens[at][..., None], -1)[..., 0]
    law = np.where(rank == 1, 0, -np.inf) if rule == "match" else law
    listed = {name: v.astype(half) if name == "log_q" else v for name, v in lists(q, 6, "log_q").items()}
    return arguments, ms.Drafts("d", "block", rule, law.astype(half), rank, parts={"lists": listed})


def _by_token(values: np.ndarray) -> np.ndarray:
    return np.stack([np.roll(values[:, k], k, axis=0) for k in range(values.shape[1])], axis=1)


LATE = "stand one position too late: row t holds what belongs to token t-1"
DEEP = "stand one depth too deep: depth k holds what belongs to depth k-1"
BY_TOKEN = "stand by token instead of start: row t holds at each depth what belongs to token t"
MISTAKES: list[tuple[Callable[[np.ndarray], np.ndarray], str]] = [
    (lambda values: np.roll(values, 1, axis=0), LATE),
    (lambda values: np.roll(values, -1, axis=0), "stand one position too early"),
    (lambda values: np.roll(values, 1, axis=1), DEEP),
    (lambda values: np.roll(values, -1, axis=1), "stand one depth too early"),
    (_by_token, BY_TOKEN),
]


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize(("mistake", "words"), MISTAKES)
def test_law_that_is_not_where_its_lists_are_against_simulation(
    tmp_path: Path, mistake: Callable[[np.ndarray], np.ndarray], words: str, rule: str
) -> None:
    for seed in range(3):
        arguments, drafts = _block(seed, rule)
        for columns in (("rank",), ("log_q",), ("log_q", "rank")):
            moved = replace(drafts, **{name: mistake(getattr(drafts, name)) for name in columns})
            arguments["drafters"] = {"d": moved}
            told = alarm(tmp_path / "s", arguments)
            assert told.startswith(
                f"drafters/d/law-00000.parquet: {' and '.join(columns).replace('rank', 'ranks')} {words}"
            )
        listed = {name: mistake(values) for name, values in drafts.parts["lists"].items() if name == "ids"}
        logs = {name: mistake(values) for name, values in drafts.parts["lists"].items() if name != "ids"}
        arguments["drafters"] = {"d": replace(drafts, parts={"lists": listed | logs})}
        assert alarm(tmp_path / "s", arguments).startswith(f"drafters/d/lists-00000.parquet: the lists {words}")
        if rule == "rejection":
            arguments["drafters"] = {"d": replace(moved, parts={"lists": listed | logs})}
            assert f"d/law-00000.parquet: log_q and ranks and the lists {words}" in alarm(tmp_path / "s", arguments)


OTHERS: list[tuple[str, Callable[[np.ndarray, np.random.Generator], np.ndarray], str]] = [
    ("rank", lambda rank, rng: np.ones_like(rank), "are not the places that the lists have, all of them 1: filled in"),
    ("rank", lambda rank, rng: rng.permutation(rank), "are not the places that the lists have; record law and lists"),
    ("log_q", lambda log_q, rng: log_q * 2, "but 2 times them: divided by a temperature without normalising again"),
    ("log_q", lambda log_q, rng: log_q / np.log(2), "but 1.44 times them"),
    ("log_q", lambda log_q, rng: np.where(rng.random(log_q.shape) < 0.5, log_q, 0), "all of them 0: filled in"),
    ("log_q", lambda log_q, rng: rng.permutation(log_q), "tokens are not what the lists give at temperature 1; record"),
]


@pytest.mark.parametrize(("column", "mistake", "words"), OTHERS)
def test_law_that_its_lists_do_not_give_against_simulation(
    tmp_path: Path, column: str, mistake: Callable[[np.ndarray, np.random.Generator], np.ndarray], words: str
) -> None:
    for seed in range(3):
        arguments, drafts = _block(seed, "rejection")
        plain = np.where(drafts.log_q > -np.inf, drafts.log_q, 0)
        q = drafts.parts["lists"]
        place = q["ids"] == arguments["tokens"][_at(len(plain))][..., None]
        plain = np.where(place.any(-1), (q["log_q"] * place).sum(-1), -9)  # a token that is not listed is unlikely
        drafts = replace(drafts, log_q=plain, metadata={"sampling": {"temperature": 1.0}})
        arguments["drafters"] = {"d": drafts}
        assert findings(tmp_path / "s", arguments) == []
        changed = mistake(getattr(drafts, column), np.random.default_rng(seed))
        arguments["drafters"] = {"d": replace(drafts, **{column: changed})}
        told = alarm(tmp_path / "s", arguments)
        assert told.startswith(f"drafters/d/law-00000.parquet: {column.replace('rank', 'ranks')} ") and words in told


def _at(rows: int) -> np.ndarray:
    return np.minimum(np.arange(rows)[:, None] + np.arange(DEPTH), rows - 1)


def test_case_64_law_of_another_temperature_is_named_against_closed_form(tmp_path: Path) -> None:
    """A drafter draws at its own temperature, else at its target's."""
    arguments, drafts = _block(1, "rejection")
    for told, alarms in ((None, 0), (0.8, 0), (1.3, 1), (0.5, 1)):
        metadata = {} if told is None else {"sampling": {"temperature": told, "top_k": 55}}
        arguments["drafters"] = {"d": replace(drafts, metadata=metadata)}
        found = findings(tmp_path / "s", arguments)
        assert len(found) == alarms
        wanted = f"log_q are not what the lists give at temperature {told}, top_k 55, but of temperature 0.8; correct"
        assert all(wanted in finding.message for finding in found)


def test_law_before_filters_is_named_against_simulation(tmp_path: Path) -> None:
    """Lists that hold more than the filter leaves are of the plain softmax, and so are these log-probabilities."""
    arguments = given(3, rollouts=20, top_k=3)
    soft = arguments["drafters"]["soft"]
    for told, alarms in ({"temperature": 1.0}, 0), ({"temperature": 1.0, "top_k": 3}, 1):
        arguments["drafters"] = {"soft": replace(soft, metadata={"sampling": told})}
        found = findings(tmp_path / "s", arguments)
        assert len(found) == alarms
        wanted = "log_q are not what the lists give at temperature 1, top_k 3, but of temperature 1; correct"
        assert all(wanted in finding.message for finding in found)


def test_law_that_is_nearly_all_zero_against_simulation(tmp_path: Path) -> None:
    arguments = given(3, rollouts=20)
    block = arguments["drafters"]["block"]
    log_q = np.where(np.arange(len(block.log_q))[:, None] % 50 > 0, 0, block.log_q)
    arguments["drafters"] = {"block": replace(block, log_q=log_q)}
    assert "all of them 0: filled in" in alarm(tmp_path / "s", arguments)


def test_case_50_law_of_greedy_drafts_is_named_against_closed_form(tmp_path: Path) -> None:
    arguments, drafts = _block(1, "match")
    arguments["drafters"] = {"d": replace(drafts, rule="rejection")}
    assert "always the likeliest token: record them with rule 'match'" in alarm(tmp_path / "s", arguments)


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_law_and_lists_of_half_precision_raise_no_alarm_invariant(tmp_path: Path, rule: str) -> None:
    for seed in range(20):
        arguments, drafts = _block(seed, rule, np.float16)
        if rule == "rejection":
            noise = np.random.default_rng(seed).normal(0, 0.03, drafts.log_q.shape)
            drafts = replace(drafts, log_q=np.minimum(drafts.log_q + noise, 0))
        arguments["drafters"] = {"d": drafts}
        assert findings(tmp_path / "s", arguments) == [], seed


def test_drafters_of_every_setting_raise_no_alarm_invariant(tmp_path: Path) -> None:
    """Filters and orders, lists of either distribution, settings told or the target's."""
    rng = np.random.default_rng(0)
    for seed in range(60):
        own = {"temperature": float(rng.choice([0.4, 0.7, 1, 1.5])), "top_k": int(rng.choice([0, 3, 12, 40]))}
        own |= {"top_p": float(rng.choice([1, 0.7, 0.9])), "min_p": float(rng.choice([0, 0, 0.1]))}
        own |= {"last": bool(rng.integers(2)), "joint": bool(rng.integers(2))}
        arguments = given(seed, **own, width=8)
        rows, tokens = len(arguments["tokens"]), arguments["tokens"]
        q = log_softmax(rng.normal(size=(rows, VOCAB)) * rng.choice([0.5, 2, 5], (rows, 1)))
        drawn = decoded(q, **own)
        listed = lists(drawn if seed % 4 == 0 else q, 7, "log_q")
        listed["ids"] = np.where(listed["log_q"] > -np.inf, listed["ids"], -1)
        rank = 1 + (q > q[np.arange(rows), tokens][:, None]).sum(-1)
        metadata = {"sampling": arguments["metadata"]["sampling"]} if seed % 2 else {}
        law, parts = drawn[np.arange(rows), tokens], {"lists": listed}
        drafts = ms.Drafts("d", "autoregressive", "rejection", law, rank, parts=parts, metadata=metadata)
        arguments["drafters"] = {"d": drafts}
        assert findings(tmp_path / "s", arguments) == [], (seed, own)
