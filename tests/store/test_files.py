from __future__ import annotations

import hashlib
import multiprocessing
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import markov_spec as ms
from markov_spec.store import files
from tests.store.sample import INDPTR, N, arguments, build, same_bits, troubles

ROLLOUT_TYPES = {
    "rollout_id": pa.large_string(),
    "prompt_id": pa.large_string(),
    "prompt_hash": pa.large_string(),
    "prompt_tokens": pa.large_list(pa.int32()),
    "turn": pa.int32(),
    "benchmark": pa.large_string(),
    "tokens": pa.large_list(pa.int32()),
    "log_p": pa.large_list(pa.float32()),
    "finish_reason": pa.large_string(),
}


def _schemas(root: Path) -> dict[str, pa.Schema]:
    return {str(p.relative_to(root)): pq.ParquetFile(p).schema_arrow for p in root.rglob("*.parquet")}


def test_case_102_lists_have_64_bit_offsets_against_closed_form(tmp_path: Path) -> None:
    schemas = _schemas(build(tmp_path / "s").path)
    rollouts = schemas.pop("rollouts/part-00000.parquet")
    assert dict(zip(rollouts.names, rollouts.types, strict=True)) == ROLLOUT_TYPES
    schemas.pop("vocab.parquet")
    assert len(schemas) == 9
    for schema in schemas.values():
        assert schema.names[0] == "rollout_id"
        for field in list(schema)[1:]:
            integer = field.name in ("ids", "rank", "draft_rank", "drafted")
            assert field.type == pa.large_list(pa.int32() if integer else pa.float32())


def test_store_at_a_path_that_is_no_utf_8_against_reference(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xfe")
    build(path, drafters={})
    store = ms.add_drafter(path, arguments()["drafters"]["block"])
    build(tmp_path / "s", drafters={})
    other = ms.add_drafter(tmp_path / "s", arguments()["drafters"]["block"])
    for name, part in (("block", "law"), ("block", "lists")):
        own, wanted = store.drafter_part(name, part), other.drafter_part(name, part)
        assert all(same_bits(own[column], wanted[column]) for column in wanted)
    assert same_bits(store.rollouts().log_p, other.rollouts().log_p) and store.vocab() == other.vocab()
    assert ms.open_store(path, verify=True).drafters == ("block",)
    assert troubles(path) == []
    frame = store.scan("law", drafter="block")
    for _ in range(2):
        assert frame.collect().equals(other.scan("law", drafter="block").collect())
    assert store.batch(1, 4).scan().collect().equals(other.batch(1, 4).scan().collect())


def test_case_102_offsets_past_two_to_the_31_against_closed_form() -> None:
    size = 2**31 + 10
    values = np.zeros(size, np.int8)  # never touched, so it takes no memory
    whole = files.list_array(values, np.array([0, size]))
    assert whole.value_lengths()[0].as_py() == size
    half = pa.LargeListArray.from_arrays(pa.array([0, size // 2], pa.int64()), pa.nulls(size // 2))
    halves = [pa.table({"tokens": half})] * 2
    joined = pa.concat_tables(halves).combine_chunks()["tokens"]  # as rows that waited become one row group
    assert joined.num_chunks == 1 and joined.chunk(0).offsets.to_numpy()[-1] == size
    for column in (joined, pa.concat_tables(halves)["tokens"], pa.chunked_array([whole])):
        assert np.cumsum(files.list_lengths(column, ""))[-1] == size


def test_case_109_schema_does_not_depend_on_the_first_rows_invariant(tmp_path: Path) -> None:
    def write(name: str, lengths: list[int]) -> Path:
        rows, ids = sum(lengths), [str(i) for i in range(len(lengths))]
        drafts = ms.Drafts("d", "block", "match", np.zeros((rows, 1)), np.ones((rows, 1), int), np.ones(rows, int))
        indptr = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        return ms.write_store(
            tmp_path / name,
            rollout_ids=ids,
            prompt_ids=ids,
            tokens=np.full(rows, 5),
            indptr=indptr,
            log_p=np.zeros(rows),
            drafters={"d": drafts},
            vocab={},
        ).path

    late, empty, none, full = (
        write("late", [0] * 3000 + [1]),
        write("empty", [0] * 5),
        write("none", []),
        write("full", [3]),
    )
    assert _schemas(late) == _schemas(empty) == _schemas(none) == _schemas(full)
    assert ms.open_store(late).rollouts().tokens.tolist() == [5] and len(ms.open_store(late)) == 3001
    assert ms.open_store(none).drafter("d").log_q.shape == (0, 1)


def test_row_groups_stay_below_8_megabytes_invariant(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    indptr = np.concatenate(([0], np.cumsum(rng.integers(0, 9000, 60))))
    rows, ids = int(indptr[-1]), [str(i) for i in range(60)]
    log_q = -rng.random((rows, 16), dtype=np.float32)
    store = ms.write_store(
        tmp_path / "s",
        rollout_ids=ids,
        prompt_ids=ids,
        tokens=rng.integers(0, 1000, rows),
        indptr=indptr,
        log_p=-rng.random(rows),
        prompt_tokens=[rng.integers(0, 9, 60_000) for _ in ids],
        drafters={"d": ms.Drafts("d", "block", "rejection", log_q, rng.integers(1, 9, (rows, 16)))},
    )
    for path in store.path.rglob("*0.parquet"):
        metadata = pq.ParquetFile(path).metadata
        sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
        assert len(sizes) >= 3 and max(sizes) <= 8_000_000
    read = store.drafter("d").log_q
    assert same_bits(read[~np.isnan(read)], log_q[~np.isnan(read)]) and np.isnan(read).sum() < 60 * 16 * 16
    assert troubles(store.path) == []


def test_answers_do_not_depend_on_row_groups_invariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = build(tmp_path / "one")
    monkeypatch.setattr(files, "GROUP_BYTES", 1)
    many = build(tmp_path / "many")
    for path in many.path.rglob("*0.parquet"):
        assert pq.ParquetFile(path).metadata.num_row_groups == 4
    assert many.fingerprint == one.fingerprint and same_bits(many.rollouts().tokens, one.rollouts().tokens)
    for name in one.drafters:
        for part in one.drafter_parts(name):
            a, b = one.drafter_part(name, part), many.drafter_part(name, part)
            assert a.keys() == b.keys() and all(same_bits(a[column], b[column]) for column in a)
    assert troubles(many.path) == []
    log_q = np.zeros((N, 2))
    log_q[6, 1] = np.nan
    with pytest.raises(ValueError, match="rollout 'd', position 2, depth 2: found nan"):
        ms.add_drafter(many.path, ms.Drafts("d", "block", "match", log_q))


def test_every_file_reads_in_polars_against_reference(tmp_path: Path) -> None:
    given = arguments()
    root = build(tmp_path / "s").path
    frame = pl.read_parquet(root / "rollouts" / "part-00000.parquet")
    wanted = [given["tokens"][a:b].tolist() for a, b in pairwise(INDPTR)]
    assert frame["tokens"].to_list() == wanted
    assert frame["prompt_hash"][0] == hashlib.sha256(np.array([1, 2], "<i4").tobytes()).hexdigest()
    assert frame["prompt_hash"][2] == frame["prompt_hash"][3] != frame["prompt_hash"][1]
    law = pl.read_parquet(root / "drafters" / "block" / "law-00000.parquet")
    flat = given["drafters"]["block"].log_q.reshape(-1)
    assert law["log_q"].list.len().to_list() == [6, 2, 0, 10]
    assert law["log_q"].explode(empty_as_null=False).head(5).to_list() == flat[:5].tolist()


def _totals(path: Path) -> list[float]:
    store = ms.open_store(path)
    arrays = [store.rollouts().log_p, store.drafter("auto").log_q, store.part("lists")["log_p"]]
    return [float(a.sum()) for a in arrays]


@pytest.mark.parametrize("query", [False, True])
def test_case_101_forked_workers_read_the_same_against_reference(tmp_path: Path, query: bool) -> None:
    path = build(tmp_path / "s").path
    expected = _totals(path)
    if query:
        frame = pl.scan_parquet(path / "rollouts" / "part-00000.parquet").select(pl.col("log_p").list.sum().sum())
        assert frame.collect().item() == pytest.approx(expected[0], rel=1e-6)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        results = pool.map_async(_totals, [path] * 8).get(timeout=60)
        pool.close()
        pool.join()
    assert results == [expected] * 8 and N == 9
