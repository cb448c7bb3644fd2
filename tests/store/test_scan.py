"""Parts as lazy polars frames."""

from __future__ import annotations

import multiprocessing
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import markov_spec as ms
from tests.store.sample import IDS, INDPTR, K, M, build

PARTS = [(None, "divergence"), (None, "lists"), ("auto", "law")]
PARTS += [("block", name) for name in ("law", "lists", "divergence", "multi", "relaxed", "tree-rank")]


def _same(column: pl.Series, values: np.ndarray) -> bool:
    """Whether a column's lists hold the rows of an array, rollout by rollout; NaN equals itself."""
    found = [np.array(own, dtype=values.dtype).reshape(-1, *values.shape[1:]) for own in column.to_list()]
    return np.array_equal(np.concatenate(found), values, equal_nan=values.dtype.kind == "f")


@pytest.mark.parametrize(("drafter", "part"), PARTS)
def test_scan_gives_what_the_readers_give_against_reference(tmp_path: Path, drafter: str | None, part: str) -> None:
    store = build(tmp_path / "s")
    for some in (store, store.batch(1, 4), store.batch(2, 3)):
        read = some.part(part) if drafter is None else some.drafter_part(drafter, part)
        frame = some.scan(part, drafter=drafter)
        assert isinstance(frame, pl.LazyFrame)
        found = frame.collect()
        assert found["rollout_id"].to_list() == list(some.index[0])
        assert found.columns == ["rollout_id", *read] and all(_same(found[name], read[name]) for name in read)


def test_scan_of_rollouts_and_vocabulary_against_reference(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    rollouts, frame = store.rollouts(), store.scan().collect()
    assert frame["rollout_id"].to_list() == IDS and frame["prompt_id"].to_list() == ["p", "p", "q", "q"]
    assert _same(frame["tokens"], rollouts.tokens) and _same(frame["log_p"], rollouts.log_p)
    assert frame["prompt_tokens"].to_list() == [p.tolist() for p in rollouts.prompt_tokens]
    vocab = store.batch(1, 2).scan("vocab").collect()
    assert dict(vocab.iter_rows()) == store.vocab()


def test_scan_has_a_value_for_each_position_and_its_axes_invariant(tmp_path: Path) -> None:
    lists = build(tmp_path / "s").scan("lists", drafter="block")
    assert lists.collect_schema()["ids"] == pl.List(pl.Array(pl.Int32, (K, M)))
    rows = lists.explode("ids", "log_q", "tail_mass").filter(pl.col("ids").is_not_null()).collect()
    assert len(rows) == INDPTR[-1] and rows["ids"].dtype == pl.Array(pl.Int32, (K, M))
    lengths = lists.select(pl.col("ids").list.len()).collect()["ids"].to_list()
    assert lengths == [b - a for a, b in pairwise(INDPTR)]


def test_scan_of_a_part_that_covers_some_rollouts_against_reference(tmp_path: Path) -> None:
    covered = np.array([True, False, True, True])
    given = build(tmp_path / "t").part("lists")
    rows = np.repeat(covered, np.diff(INDPTR))
    part = {name: values[rows] for name, values in given.items()} | {"covered": covered}
    store = build(tmp_path / "s", parts={"lists": part}, drafters={})
    assert store.scan("lists").collect()["rollout_id"].to_list() == ["a", "empty", "d"]
    assert store.batch(1, 4).scan("lists").collect()["rollout_id"].to_list() == ["empty", "d"]
    assert store.batch(1, 2).scan("lists").collect().is_empty()


def test_scan_reads_when_it_is_collected_and_after_its_file_was_hashed_invariant(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    path = store.path / "drafters" / "block" / "law-00000.parquet"
    frame, data = store.scan("law", drafter="block"), path.read_bytes()
    path.unlink()
    with pytest.raises(OSError, match="law-00000"):
        frame.collect()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(ValueError, match="the file is damaged"):
        ms.open_store(store.path).scan("law", drafter="block")


@pytest.mark.parametrize(
    ("drafter", "part", "message"),
    [
        (None, "law", "the target has no part 'law'; found: divergence, lists; record it by write_store"),
        ("auto", "lists", r"drafter 'auto' has no part 'lists'; found: law; record it by Drafts\("),
        ("nobody", "law", "found no drafter 'nobody'; allowed: auto, block"),
        ("auto", "rollouts", "drafter 'auto' has no part 'rollouts'"),
    ],
)
def test_scan_of_what_is_not_there_is_refused_invariant(
    tmp_path: Path, drafter: str | None, part: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(tmp_path / "s").scan(part, drafter=drafter)


def test_scan_at_a_path_that_is_a_pattern_too_against_reference(tmp_path: Path) -> None:
    for i, name in enumerate(("run1", "run[1]", "run", "run*", "ru?")):
        build(tmp_path / name, rollout_ids=[f"{i}{own}" for own in IDS], drafters={})
    for i, name in enumerate(("run1", "run[1]", "run", "run*", "ru?")):
        store = ms.open_store(tmp_path / name)
        assert store.scan().collect()["rollout_id"].to_list() == [f"{i}{own}" for own in IDS] == list(store.index[0])


def _refused(path: Path) -> str:
    try:
        ms.open_store(path).scan()
    except ms.RequestError as error:
        return str(error)
    return ""


def _sum(store: ms.Store) -> float:
    return float(store.rollouts().log_p.sum()) + float(store.drafter("auto").log_q.sum())


def test_case_101_scan_in_a_forked_worker_raises_and_readers_finish_against_reference(tmp_path: Path) -> None:
    """Opened and queried in the parent, then used by four forked workers."""
    store = build(tmp_path / "s")
    assert store.scan().select(pl.col("log_p").list.sum().sum()).collect().item() < 0
    with multiprocessing.get_context("fork").Pool(4) as pool:
        told = pool.map_async(_refused, [store.path] * 8).get(timeout=60)
        sums = pool.map_async(_sum, [store] * 8).get(timeout=60)
    assert all("scan in a forked process" in text and "'spawn'" in text and "rollouts()" in text for text in told)
    assert sums == [_sum(store)] * 8
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map_async(_refused, [store.path]).get(timeout=120) == [""]
