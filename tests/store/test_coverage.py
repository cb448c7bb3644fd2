"""Lists of some of the rollouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import markov_spec as ms
from markov_spec.store import files
from tests.store.sample import (
    IDS,
    INDPTR,
    K,
    M,
    N,
    arguments,
    build,
    lists,
    rewrite_manifest,
    same_bits,
    troubles,
)

COVERED = np.array([True, False, True, True])
LENGTHS = np.diff(INDPTR)
ROWS = np.repeat(COVERED, LENGTHS)


def _lists(log: str = "log_q", shape: tuple[int, ...] = (N, K), rows: np.ndarray = ROWS) -> dict[str, np.ndarray]:
    return {name: values[rows] for name, values in lists(np.random.default_rng(3), shape, log).items()}


def _store(path: Path, **changes: Any) -> ms.Store:
    drafts = ms.Drafts("d", "block", "rejection", np.zeros((N, K)), parts={"lists": {**_lists(), "covered": COVERED}})
    target = {**_lists("log_p", (N,)), "covered": COVERED}
    return build(path, **{"drafters": {"d": drafts}, "parts": {"lists": target}, "vocab": None, **changes})


def _manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())["parts"]["lists"]


@pytest.mark.parametrize("group_bytes", [1, files.GROUP_BYTES])
def test_lists_of_some_rollouts_round_trip_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_bytes: int
) -> None:
    monkeypatch.setattr(files, "GROUP_BYTES", group_bytes)
    store = _store(tmp_path / "s")
    assert _manifest(store.path)["covers"] == _manifest(store.path / "drafters" / "d")["covers"] == 3
    assert _manifest(store.path)["files"][0]["rows"] == 3
    wanted, found = _lists("log_p", (N,)), store.part("lists")
    assert found.keys() == {"ids", "log_p", "tail_mass", "covered"} and same_bits(found["covered"], COVERED)
    assert all(same_bits(found[name], values) for name, values in wanted.items())
    wanted, found = _lists(), store.drafter_part("d", "lists")
    assert same_bits(found["covered"], COVERED) and found["ids"].shape == (8, K, M)
    assert all(same_bits(found[name], values) for name, values in wanted.items())
    assert troubles(store.path) == []
    again = ms.Drafts("again", "block", "rejection", np.zeros((N, K)), parts={"lists": found})
    read = ms.add_drafter(store.path, again).drafter_part("again", "lists")
    assert all(same_bits(read[name], values) for name, values in found.items())


@pytest.mark.parametrize("group_bytes", [1, files.GROUP_BYTES])
def test_batch_of_lists_of_some_rollouts_against_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_bytes: int
) -> None:
    monkeypatch.setattr(files, "GROUP_BYTES", group_bytes)
    store = _store(tmp_path / "s")
    whole = store.drafter_part("d", "lists")
    for first in range(5):
        for last in range(first, 5):
            own = np.zeros(4, dtype=bool)
            own[first:last] = True
            rows = np.repeat(own, LENGTHS)[ROWS]
            found = store.batch(first, last).drafter_part("d", "lists")
            assert same_bits(found.pop("covered"), COVERED[first:last])
            assert all(same_bits(values, whole[name][rows]) for name, values in found.items())


@pytest.mark.parametrize("order", [[3, 0, 2, 1], [1, 2, 0, 3]])
def test_covered_follows_the_order_of_the_given_ids_against_closed_form(tmp_path: Path, order: list[int]) -> None:
    tail = np.arange(1.0, 1 + N)[:, None] / 100
    values = {"ids": np.ones((N, 1, 1), int), "log_q": np.log1p(-tail)[..., None], "tail_mass": tail}
    pieces = [np.arange(INDPTR[i], INDPTR[i + 1]) for i in order if COVERED[i]]
    part = {name: column[np.concatenate(pieces)] for name, column in values.items()}
    drafts = ms.Drafts(
        "d",
        "block",
        "rejection",
        np.zeros((N, 1)),
        ids=[IDS[i] for i in order],
        parts={"lists": {**part, "covered": COVERED[order]}},
    )
    found = build(tmp_path / "s", drafters={"d": drafts}).drafter_part("d", "lists")
    assert same_bits(found["covered"], COVERED) and same_bits(found["tail_mass"], tail[ROWS].astype(np.float32))
    assert troubles(tmp_path / "s") == []


def test_lists_of_all_rollouts_tell_no_coverage_invariant(tmp_path: Path) -> None:
    everything = np.ones(4, dtype=bool)
    whole = {**_lists(rows=np.ones(N, bool)), "covered": everything}
    drafts = ms.Drafts("d", "block", "rejection", np.zeros((N, K)), parts={"lists": whole})
    store = _store(tmp_path / "s", drafters={"d": drafts})
    assert "covers" not in _manifest(store.path / "drafters" / "d")
    assert store.drafter_part("d", "lists", complete=True).keys() == {"ids", "log_q", "tail_mass"}


def test_complete_lists_are_asked_for_by_name_invariant(tmp_path: Path) -> None:
    store = _store(tmp_path / "s")
    with pytest.raises(ValueError, match="drafter 'd': part 'lists' covers 3 of 4 rollouts; allowed: all of them"):
        store.drafter_part("d", "lists", complete=True)
    with pytest.raises(ValueError, match="target: part 'lists' covers 1 of 2 rollouts; allowed: all of them"):
        store.batch(0, 2).part("lists", complete=True)
    assert store.batch(2, 4).drafter_part("d", "lists", complete=True)["covered"].tolist() == [True, True]
    assert store.drafter_part("d", "law", complete=True).keys() == {"log_q"}


def test_batches_of_a_writer_cover_what_they_like_against_reference(tmp_path: Path) -> None:
    wanted = _store(tmp_path / "one").drafter_part("d", "lists")
    given, part = arguments(), _lists()
    with ms.StoreWriter(tmp_path / "s") as writer:
        for i in range(4):
            rows = slice(INDPTR[i], INDPTR[i + 1])
            writer.add_rollouts(
                rollout_ids=[IDS[i]],
                prompt_ids=["p"],
                tokens=given["tokens"][rows],
                indptr=[0, LENGTHS[i]],
                log_p=given["log_p"][rows],
            )
            own = np.flatnonzero(np.repeat(np.arange(4), LENGTHS)[ROWS] == i)
            columns = {**{name: values[own] for name, values in part.items()}, "covered": COVERED[i : i + 1]}
            writer.add_drafts(
                ms.Drafts("d", "block", "rejection", np.zeros((LENGTHS[i], K)), ids=[IDS[i]], parts={"lists": columns})
            )
    found = ms.open_store(tmp_path / "s").drafter_part("d", "lists")
    assert all(same_bits(found[name], values) for name, values in wanted.items())


@pytest.mark.parametrize(
    ("covered", "message"),
    [
        (np.ones(3, bool), r"drafter 'd': lists: covered: found shape \(3,\), dtype bool; allowed: \(4,\) bools"),
        (np.ones(4, int), r"lists: covered: found shape \(4,\), dtype int64; allowed: \(4,\) bools"),
        (np.ones(4, bool), r"lists: ids: found shape \(8, 2, 3\); allowed: \(9, 2, M\), a row per position"),
    ],
)
def test_wrong_coverage_is_refused_invariant(tmp_path: Path, covered: np.ndarray, message: str) -> None:
    store = build(tmp_path / "s", drafters={})
    part = {**_lists(), "covered": covered}
    with pytest.raises(ValueError, match=message):
        ms.add_drafter(store.path, ms.Drafts("d", "block", "rejection", np.zeros((N, K)), parts={"lists": part}))
    spread = {"overlap": np.zeros((8, K)), "covered": COVERED}
    with pytest.raises(ValueError, match="part 'divergence': found column 'covered'; allowed: overlap"):
        ms.add_drafter(store.path, ms.Drafts("d", "block", "rejection", np.zeros((N, K)), parts={"divergence": spread}))
    assert ms.open_store(store.path).drafters == ()


@pytest.mark.parametrize(
    ("part", "covers", "message"),
    [
        ("lists", 4, "part 'lists': found covers 4; allowed: 3, the rows of its files"),
        ("lists", "3", "part 'lists': found covers '3'; allowed: 3"),
        ("lists", None, "part 'lists': found covers None; allowed: 3"),
        ("law", 4, "drafter 'd': part 'law': found covers; allowed: in lists only"),
    ],
)
def test_impossible_coverage_is_found_and_refused_invariant(
    tmp_path: Path, part: str, covers: Any, message: str
) -> None:
    folder = _store(tmp_path / "s").path / "drafters" / "d"
    parts = json.loads((folder / "manifest.json").read_text())["parts"]
    parts[part]["covers"] = covers
    rewrite_manifest(folder, parts=parts)
    with pytest.raises(ValueError, match=message):
        ms.open_store(tmp_path / "s")
    (finding,) = troubles(tmp_path / "s")
    assert finding.severity == "error" and message in finding.message


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "d", "empty"], "part 'lists': rollout ids stand in another order than the store's"),
        (["a", "x", "d"], "rollout ids stand in another order"),
        (["a", "b", "x"], "part 'lists': found 3 rollouts; allowed: 2, those that the store has"),
        (["a", "a", "d"], "part 'lists': found 3 rollouts, 2 different ones; allowed: each once"),
        (["a", "b", "empty"], "lists-00000.parquet: ids: rollout 'b': found 0 values; allowed: 6"),
    ],
)
def test_lists_of_other_rollouts_are_found_and_refused_invariant(tmp_path: Path, ids: list[str], message: str) -> None:
    """As another tool may write them, hash and size right."""
    folder = _store(tmp_path / "s").path / "drafters" / "d"
    path = folder / "lists-00000.parquet"
    table = pq.ParquetFile(path).read(use_threads=False)
    pq.write_table(table.set_column(0, "rollout_id", pa.array(ids, pa.large_string())), path)
    parts = json.loads((folder / "manifest.json").read_text())["parts"]
    parts["lists"]["files"][0].update({"bytes": path.stat().st_size, "sha256": files.file_hash(path)})
    rewrite_manifest(folder, parts=parts)
    with pytest.raises(ValueError, match=message):
        ms.open_store(tmp_path / "s").drafter_part("d", "lists")
    (finding,) = troubles(tmp_path / "s")
    assert finding.severity == "error" and message in finding.message
