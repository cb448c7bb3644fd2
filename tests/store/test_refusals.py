from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import markov_spec as ms
from tests.store.sample import INDPTR, K, M, N, arguments, build, rewrite_manifest, troubles


def _changed(values: np.ndarray, cell: Any, value: float) -> np.ndarray:
    out = np.array(values)
    out[cell] = value
    return out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout_ids": ["a", "b", "a", "d"]}, "'a' stands at 0 and again at 2"),
        ({"rollout_ids": ["a", "b", "\ud800", "d"], "drafters": {}}, r"allowed: text without lone surrogates"),
        ({"log_p": _changed(np.zeros(N), 4, np.nan)}, "log_p: rollout 'd', position 0: found nan"),
        ({"log_p": _changed(np.zeros(N), 3, 2e-6)}, "log_p: rollout 'b', position 0: found 1.99"),
        ({"log_p": _changed(np.zeros(N), 8, -np.inf)}, "log_p: rollout 'd', position 4: found -inf"),
        ({"log_p": _changed(np.zeros(N), 0, -1e39)}, "log_p: rollout 'a', position 0: found -inf"),
        (
            {"tokens": _changed(np.zeros(N, int), 5, 20)},
            "rollout 'd', position 1: found 20; allowed: below vocab_size 20",
        ),
        ({"tokens": _changed(np.zeros(N, int), 5, 2**31)}, "rollout 'd', position 1: found 2147483648"),
        (
            {"prompt_tokens": [[1], [2], [3, 20], [4]]},
            "rollout 'empty', position 1: found 20; allowed: below vocab_size",
        ),
        ({"prompt_tokens": [[1], [2], [2**31], [4]]}, "prompt_tokens: rollout 2: found 2147483648"),
        ({"prompt_tokens": [[1], [2], [0.5], [4]]}, "prompt_tokens: rollout 2: found shape .* dtype float64"),
        ({"vocab": {int(i): b"x" for i in range(20)}}, r"vocab: token \d+: found b'x'"),
        ({"parts": {"law": {}}}, "target: found part 'law'; allowed: divergence, lists"),
        ({"parts": {"divergence": {}}}, "target: part 'divergence' has no columns; allowed: entropy, varentropy"),
        (
            {"parts": {"divergence": {"kl": np.zeros(N)}}},
            "part 'divergence': found column 'kl'; allowed: entropy, varentropy",
        ),
        ({"parts": {"divergence": {"entropy": np.zeros(8)}}}, r"entropy: found shape \(8,\); allowed: \(9, \)"),
        (
            {"parts": {"divergence": {"entropy": np.full(N, -1.0)}}},
            "rollout 'a', position 0: found -1.0; allowed: 0 to",
        ),
    ],
)
def test_bad_target_is_refused_invariant(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(tmp_path / "s", **changes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_q": _changed(np.zeros((N, K)), (4, 1), np.nan)}, "log_q: rollout 'd', position 0, depth 2: found nan"),
        ({"log_q": _changed(np.zeros((N, K)), (3, 0), np.inf)}, "log_q: rollout 'b', position 0, depth 1: found inf"),
        ({"log_q": _changed(np.zeros((N, K)), (3, 0), 2e-6)}, "log_q: rollout 'b', position 0, depth 1: found 1.99"),
        ({"drafted": _changed(np.zeros(N, int), 5, 3)}, "drafted: rollout 'd', position 1: found 3; allowed: 0 to 2"),
        ({"parts": {"law": {"log_q": np.zeros((N, K))}}}, "found part 'law' in parts"),
        (
            {"parts": {"list": {}}},
            "found part 'list'; allowed: law, divergence, multi, relaxed, lists, beam, tree-rank",
        ),
        (
            {"parts": {"multi": {"c_m": np.ones((N, K, 4))}}},
            "part 'multi': found column 'c_m'; allowed: coupling, without_replacement_2, c_2, c_4, c_8, rho_2, rho_4, "
            "rho_8, transport_2_low, transport_2_high, transport_4_low, transport_4_high, transport_8_low, "
            "transport_8_high",
        ),
        ({"parts": {"multi": {"rho_2": np.full((N, K), -1.0)}}}, "rho_2: .* depth 1: found -1.0; allowed: 0 to"),
        ({"parts": {"multi": {"transport_8_low": np.full((N, K), 1.5)}}}, "low: .*: found 1.5; allowed: 0 to 1"),
        ({"parts": {"relaxed": {"draft_log_p": np.ones((N, K))}}}, "draft_log_p: .*: found 1.0; allowed: -inf to 0"),
        (
            {"parts": {"lists": {"ids": np.zeros((N, K, M), int)}}},
            "part 'lists': column 'log_q' is missing; found: ids",
        ),
        ({"parts": {"divergence": {"overlap": np.zeros(N)}}}, r"overlap: found shape \(9,\); allowed: \(9, 2\)"),
        (
            {"parts": {"divergence": {"overlap": np.full((N, K), 1.5)}}},
            "overlap: rollout 'a', position 0, depth 1: found 1.5",
        ),
        ({"parts": {"tree-rank": {"rank": np.zeros((N, 3), int)}}}, "rank: rollout 'a', position 0, depth 1: found 0"),
        (
            {"parts": {"tree-rank": {"rank": np.ones((N, 3))}}},
            "tree-rank: rank: found dtype float64; allowed: integers",
        ),
    ],
)
def test_bad_drafter_is_refused_invariant(tmp_path: Path, changes: dict, message: str) -> None:
    store = build(tmp_path / "s", drafters={})
    with pytest.raises(ValueError, match=message):
        ms.add_drafter(store.path, ms.Drafts("d", "block", "rejection", **{"log_q": np.zeros((N, K)), **changes}))
    assert list((store.path / "drafters").iterdir()) == []


@pytest.mark.parametrize("value", [np.nan, np.inf, 7.0])
def test_cells_past_the_ends_are_ignored_invariant(tmp_path: Path, value: float) -> None:
    log_q = np.zeros((N, K))
    log_q[[2, 3, 8], 1] = value
    store = build(tmp_path / "s", drafters={"d": ms.Drafts("d", "block", "rejection", log_q)})
    read = store.drafter("d").log_q
    assert np.isnan(read[[2, 3, 8], 1]).all() and np.nansum(read) == 0


@pytest.mark.parametrize(
    ("cell", "ids", "logs", "message"),
    [
        (
            (4, 1),
            [3, 5, 3],
            [-1, -2, -3],
            r"ids: rollout 'd', position 0, depth 2: found \[3 5 3\]; allowed: each id once",
        ),
        (
            (4, 1),
            [3, 5, 4],
            [-1, -3, -2],
            "log_q: rollout 'd', position 0, depth 2, entry 3: found -2.0; allowed: no more",
        ),
        ((4, 1), [3, 5, -1], [-1, -2, -3], "depth 2, entry 3: found -3.0; allowed: -inf where the id is -1"),
        ((4, 1), [3, 5, -2], [-1, -2, -3], "ids: rollout 'd', position 0, depth 2, entry 3: found -2; allowed: -1 to"),
        ((4, 1), [3, -1, -1], [-1, -np.inf, -np.inf], None),
        ((4, 1), [-1, -1, -1], [np.nan] * 3, "log_q: rollout 'd', position 0, depth 2, entry 1: found nan; allowed"),
    ],
)
def test_lists_are_sorted_and_name_an_id_once_invariant(
    tmp_path: Path, cell: tuple, ids: list, logs: list, message: str | None
) -> None:
    lists = {key: v.copy() for key, v in arguments()["drafters"]["block"].parts["lists"].items()}
    lists["ids"][cell], lists["log_q"][cell] = ids, logs
    drafts = ms.Drafts("d", "block", "rejection", np.zeros((N, K)), parts={"lists": lists})
    if message is None:
        assert build(tmp_path / "s", drafters={"d": drafts}).drafter_parts("d") == ("law", "lists")
        return
    with pytest.raises(ValueError, match=message):
        build(tmp_path / "s", drafters={"d": drafts})


def test_case_67_list_ties_are_stored_by_id_against_closed_form(tmp_path: Path) -> None:
    lists = {"ids": np.tile([9, 4, 3, 7, -1], (N, 1)), "log_p": np.tile([-1, -1, -2, -2, -np.inf], (N, 1))}
    stored = build(tmp_path / "s", parts={"lists": lists}).part("lists")
    assert (stored["ids"] == [4, 9, 3, 7, -1]).all() and (stored["log_p"] == lists["log_p"]).all()


def test_target_list_ids_stay_below_vocab_size_invariant(tmp_path: Path) -> None:
    lists = {"ids": np.full((N, 1), 20), "log_p": np.zeros((N, 1))}
    with pytest.raises(ValueError, match="lists: ids: rollout 'a', position 0, entry 1: found 20; allowed: -1 to 19"):
        build(tmp_path / "s", parts={"lists": lists})
    wide = {"ids": lists["ids"], "log_q": lists["log_p"]}  # a padded drafter may name ids that the target lacks
    drafts = ms.Drafts("d", "autoregressive", "rejection", np.zeros(N), parts={"lists": wide})
    assert build(tmp_path / "s", drafters={"d": drafts}).drafter_part("d", "lists")["ids"].max() == 20


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", ".hid", "-x", "a\n", "é", "x" * 65])
def test_drafter_names_are_plain_invariant(tmp_path: Path, name: str) -> None:
    drafts = ms.Drafts(name, "autoregressive", "match", np.zeros(N))
    store = build(tmp_path / "s", drafters={})
    with pytest.raises(ValueError, match="drafter name: found"):
        ms.add_drafter(store.path, drafts)
    with pytest.raises(ValueError, match="drafter name: found"):
        build(tmp_path / "t", drafters={name: drafts})
    assert [p.name for p in tmp_path.iterdir()] == ["s"]


def test_drafter_under_another_name_is_refused_invariant(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="drafters: 'x' holds the drafts of 'd'"):
        build(tmp_path / "s", drafters={"x": ms.Drafts("d", "autoregressive", "match", np.zeros(N))})


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"target": 3}, "metadata.target: found 3; allowed: text"),
        ({"vocab_size": True}, "metadata.vocab_size: found True; allowed: an integer >= 1"),
        ({"stop_ids": 2}, "metadata.stop_ids: found 2; allowed: a list of token ids"),
        ({"logprob_space": "log"}, "metadata.logprob_space: found 'log'; allowed: 'raw' or 'processed'"),
        ({"sampling": {"temperature": -1}}, "metadata.sampling.temperature: found -1; allowed: a number >= 0"),
        ({"sampling": {"top_p": 1.5}}, "metadata.sampling.top_p: found 1.5"),
        ({"sampling": {"order": "top_k"}}, "metadata.sampling.order: found 'top_k'; allowed: a list of text"),
        ({"own": {"x": [1, np.int64(2)]}}, r"metadata.own.x\[1\]: found np.int64\(2\) \(int64\); allowed: what JSON"),
        ({"own": float("nan")}, "metadata.own: found nan"),
        ({"own": json.loads("[" * 500 + "]" * 500)}, r"metadata.own\[0\].*: found more than 64 levels; allowed: 64"),
        ({"own": {1: 2}}, "metadata.own: found key 1; allowed: text"),
    ],
)
def test_bad_metadata_is_refused_invariant(tmp_path: Path, metadata: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(tmp_path / "s", metadata=metadata)


def test_shapes_agree_within_a_part_invariant(tmp_path: Path) -> None:
    lists = {"ids": np.zeros((N, 2), int), "log_p": np.zeros((N, 3)), "tail_mass": np.zeros(N)}
    with pytest.raises(ValueError, match=r"target: lists: log_p: found shape \(9, 3\); allowed: \(9, 2\)"):
        build(tmp_path / "s", parts={"lists": lists})
    assert INDPTR[-1] == N


@pytest.mark.parametrize(
    ("kind", "cell", "place"),
    [
        ("block", (4, 1), "rollout 'd', position 0, depth 2: found -0.5"),
        ("autoregressive", (3,), "rollout 'b', position 0: found -0.5"),
    ],
)
def test_match_without_rank_needs_one_hot_values_against_closed_form(
    tmp_path: Path, kind: Any, cell: tuple, place: str
) -> None:
    shape = (N, K) if kind == "block" else (N,)
    sure = np.where(np.arange(N * len(cell)) % 2, 0, -np.inf).reshape(shape)
    soft = _changed(sure, cell, -0.5)
    store = build(tmp_path / "s", drafters={})
    message = f"drafter 'd': law: log_q: {place}; allowed: 0 or -inf, .*: record rank"
    with pytest.raises(ValueError, match=message):
        ms.add_drafter(store.path, ms.Drafts("d", kind, "match", soft))
    with pytest.raises(ValueError, match=message):
        build(tmp_path / "t", drafters={"d": ms.Drafts("d", kind, "match", soft)})
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    rank = np.ones(shape, int)
    for drafts in (ms.Drafts("d", kind, "match", sure), ms.Drafts("d", kind, "match", soft, rank)):
        assert ms.add_drafter(store.path, drafts, overwrite=True).drafter("d").rule == "match"
    ms.add_drafter(store.path, ms.Drafts("d", kind, "rejection", soft), overwrite=True)
    rewrite_manifest(store.path / "drafters" / "d", rule="match")
    (finding,) = troubles(store.path)
    assert finding.severity == "error" and place in finding.message


def test_match_without_rank_ignores_cells_past_the_ends_invariant(tmp_path: Path) -> None:
    log_q = np.zeros((N, K))
    log_q[[2, 3, 8], 1] = -0.5
    lists = {"ids": np.zeros((N, K, 1), int), "log_q": np.full((N, K, 1), -0.5)}  # lists may be soft
    drafts = ms.Drafts("d", "block", "match", log_q, parts={"lists": lists})
    assert build(tmp_path / "s", drafters={"d": drafts}).drafter("d").rule == "match"
