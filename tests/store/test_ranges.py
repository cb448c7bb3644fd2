"""Reading a store by ranges of its rollouts."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import markov_spec as ms
from markov_spec.store import files
from markov_spec.store import folder as folder_module
from tests.store.sample import IDS, INDPTR, N, build, same_bits, troubles

RANGES = [(first, last) for first in range(5) for last in range(first, 5)]


def _everything(store: ms.Store) -> dict[str, Any]:
    """All that is read row by row, and all that is read for each rollout."""
    rollouts = store.rollouts()
    rows: dict[str, Any] = {"tokens": rollouts.tokens, "log_p": rollouts.log_p}
    for name in store.parts:
        rows.update({f"{name}.{column}": values for column, values in store.part(name).items()})
    for name in store.drafters:
        drafts = store.drafter(name)
        assert drafts.ids == rollouts.ids and same_bits(drafts.indptr, rollouts.indptr)
        rows[f"{name}.log_q"] = drafts.log_q
        for part in store.drafter_parts(name):
            columns = store.drafter_part(name, part)
            rows.update({f"{name}.{part}.{column}": values for column, values in columns.items()})
    lists = (rollouts.ids, rollouts.prompt_ids, rollouts.benchmarks, rollouts.finish_reasons, rollouts.turns)
    prompts = [tuple(p.tolist()) for p in rollouts.prompt_tokens]
    return {"rows": rows, "rollouts": [*map(list, lists), prompts], "lengths": np.diff(rollouts.indptr)}


@pytest.mark.parametrize("group_bytes", [1, 600, files.GROUP_BYTES])
@pytest.mark.parametrize("piece_bytes", [1, files.PIECE_BYTES])
def test_batch_is_a_slice_of_the_whole_against_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_bytes: int, piece_bytes: int
) -> None:
    monkeypatch.setattr(files, "GROUP_BYTES", group_bytes)
    monkeypatch.setattr(files, "PIECE_BYTES", piece_bytes)
    store = build(tmp_path / "s")
    whole = _everything(store)
    assert [len(whole["rows"]), len(whole["rows"]["tokens"])] == [24, N]
    for first, last in RANGES:
        batch = store.batch(first, last)
        found, own = _everything(batch), slice(INDPTR[first], INDPTR[last])
        assert found["rows"].keys() == whole["rows"].keys()
        for name, values in found["rows"].items():
            assert same_bits(values, whole["rows"][name][own]), name
        assert found["rollouts"] == [column[first:last] for column in whole["rollouts"]]
        assert (found["lengths"] == whole["lengths"][first:last]).all()
        assert batch.index[0] == tuple(IDS[first:last]) and len(batch) == last - first
        assert same_bits(batch.index[1], INDPTR[first : last + 1] - INDPTR[first])
    inner = store.batch(1, 4).batch(1, 3)
    assert inner.index[0] == ("empty", "d") and _everything(inner)["rows"]["tokens"].size == 5
    assert (inner.metadata, inner.vocab(), inner.fingerprint) == (store.metadata, store.vocab(), store.fingerprint)


def test_batch_says_which_rollouts_it_holds_against_closed_form(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    path = str(tmp_path / "s")
    assert (
        repr(store.batch(1, 3)) == f"Store({path!r}, 2 from number 1 on of 4 rollouts, 9 tokens, drafters: auto, block)"
    )
    for first, last in ((3, 5), (0, 9)):
        with pytest.raises(ms.RequestError, match=f"found rollouts {first} to {last - 1}; allowed: 0 to 3"):
            store.batch(first, last)
    for first, last in ((-1, 2), (2, 1), (0, 1.0), (True, 2)):
        with pytest.raises(ValueError, match=r"(first|last): found .*; allowed: an integer >= "):
            store.batch(first, last)
    with pytest.raises(ms.RequestError, match="found rollouts 0 to 2; allowed: 0 to 1"):
        store.batch(1, 3).batch(0, 3)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(
    ("positions", "wanted"),
    [(1, ["a", "b empty", "d"]), (4, ["a b empty", "d"]), (5, ["a b empty", "d"]), (9, ["a b empty d"])],
)
def test_batches_hold_so_many_positions_against_closed_form(
    tmp_path: Path, positions: int, wanted: list[str], used: bool
) -> None:
    store = build(tmp_path / "s")
    if used:
        assert store.index[1][-1] == N
    batches = list(store.batches(positions=positions))
    assert [" ".join(batch.rollouts().ids) for batch in batches] == wanted
    read = np.concatenate([batch.drafter("block").log_q for batch in batches])
    assert same_bits(read, store.drafter("block").log_q)
    inner = list(store.batch(1, 4).batches(positions=positions))
    assert [name for batch in inner for name in batch.index[0]] == IDS[1:]
    assert list(build(tmp_path / "t").batch(2, 2).batches()) == []
    with pytest.raises(ValueError, match="positions: found 0; allowed: an integer >= 1"):
        next(store.batches(positions=0))


def test_locate_gives_the_numbers_of_rollouts_against_closed_form(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    assert store.locate(["d", "a", "d"]).tolist() == [3, 0, 3] and store.locate([]).tolist() == []
    assert store.batch(1, 4).locate(["d", "b"]).tolist() == [2, 0]
    with pytest.raises(ms.RequestError, match="found no rollout 'a'; allowed: one of its 3"):
        store.batch(1, 4).locate(["a"])


def test_row_groups_without_the_range_are_not_read_invariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "GROUP_BYTES", 1)
    store = build(tmp_path / "s")
    read: list[tuple[str, int]] = []

    class Spy(pq.ParquetFile):
        def iter_batches(self, size: int, row_groups: list[int], *args: Any, **settings: Any) -> Any:
            read.extend((self.schema_arrow.names[-1], group) for group in row_groups)
            return super().iter_batches(size, row_groups, *args, **settings)

    monkeypatch.setattr(files.pq, "ParquetFile", Spy)
    batch = store.batch(1, 3)
    batch.rollouts(), batch.drafter("auto"), batch.part("lists"), batch.drafter_part("block", "tree-rank")
    assert {name for name, _ in read} == {"finish_reason", "log_q", "tail_mass", "rank"}
    assert {group for _, group in read} == {1, 2}


def _damaged_page(store: ms.Store, file: str, column: int) -> ms.Store:
    path = store.path / file
    place = pq.ParquetFile(path).metadata.row_group(0).column(column)
    assert place.path_in_schema.startswith(("tokens", "log_q"))
    data = bytearray(path.read_bytes())
    data[place.data_page_offset + place.total_compressed_size - 1] ^= 1  # in the last bytes of its last page
    path.write_bytes(data)
    return ms.open_store(store.path)


@pytest.mark.parametrize(
    ("file", "column", "read"),
    [
        ("rollouts/part-00000.parquet", 6, lambda store: store.rollouts()),
        ("drafters/auto/law-00000.parquet", 1, lambda store: store.drafter("auto")),
    ],
)
def test_small_files_are_hashed_and_pages_checked_when_read_by_range_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, column: int, read: Callable
) -> None:
    store = _damaged_page(build(tmp_path / "s"), file, column)
    with pytest.raises(ValueError, match=f"{file}: found SHA-256 .* the file is damaged"):
        read(store.batch(0, 1))
    monkeypatch.setattr(folder_module, "RANGE_HASHED_BYTES", 10)
    with pytest.raises(ValueError, match=rf"{file}: cannot be read as Parquet, .*(checksum|CRC)"):
        read(store.batch(0, 1))
    assert store.batch(0, 1).locate(["a"]).tolist() == [0]  # of other pages
    for whole in (lambda: store, lambda: next(store.batches())):
        with pytest.raises(ValueError, match=f"{file}: found SHA-256"):
            read(whole())


BIG = 5_000, 32
READING = """
import json, sys, markov_spec as ms
from tests.store.memory import bytes_read, resident
def one(path):
    store = ms.open_store(path)
    (row,) = store.locate([f"r{len(store) // 2}"])
    batch = store.batch(row, row + 1)
    return batch.rollouts().tokens, batch.drafter("d").log_q
one(sys.argv[1])  # a small store: what the libraries take at first use
before, read = resident()[1], bytes_read()
one(sys.argv[2])
growth, read = resident()[1] - before, (bytes_read() - read) / 1e6
whole = ms.open_store(sys.argv[2]).drafter("d").log_q
print(json.dumps([growth, read, resident()[1] - before, whole.nbytes / 1e6]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_case_103_one_rollout_of_a_big_store_against_reference(tmp_path: Path) -> None:
    rng, (rows, depth) = np.random.default_rng(0), BIG
    for name, rollouts in (("small", 1), ("big", 100)):
        with ms.StoreWriter(tmp_path / name) as writer:
            for i in range(rollouts):
                writer.add_rollouts(
                    rollout_ids=[f"r{i}"],
                    prompt_ids=["p"],
                    tokens=rng.integers(0, 1000, rows),
                    indptr=[0, rows],
                    log_p=-rng.random(rows),
                )
                writer.add_drafts(ms.Drafts("d", "block", "rejection", -rng.random((rows, depth), np.float32)))
    words = [sys.executable, "-c", READING, str(tmp_path / "small"), str(tmp_path / "big")]
    told = subprocess.run(words, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    growth, read, whole_growth, whole = json.loads(told.stdout)
    assert whole == 64.0 and whole_growth > whole  # which shows that growth would be seen
    assert growth < 20 and read < 20


def _add(path: Path, name: str, barrier: Any) -> None:
    barrier.wait(60)
    ms.add_drafter(path, ms.Drafts(name, "autoregressive", "rejection", np.full(N, -float(len(name)))))


def _watch(path: Path, stop: Any, seen: Any) -> None:
    """Put what a reader sees of ``auto`` while it is replaced, again and again."""
    values: set[float] = set()
    while not (stop.is_set() and values):
        store = ms.open_store(path)
        try:
            values |= {float(v) for v in store.batch(0, 4).drafter("auto").log_q}
        except ValueError as error:
            assert "the store was replaced since it was opened" in str(error)
    seen.put(values)


def test_two_processes_add_two_drafters_at_once_invariant(tmp_path: Path) -> None:
    path = build(tmp_path / "s", drafters={}).path
    context, names = multiprocessing.get_context("fork"), [f"d{'x' * i}" for i in range(6)]
    barrier = context.Barrier(len(names))
    workers = [context.Process(target=_add, args=(path, name, barrier)) for name in names]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 6
    store = ms.open_store(path, verify=True)
    assert list(store.drafters) == names and troubles(path) == []
    assert [float(store.drafter(name).log_q[0]) for name in names] == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]


def test_readers_during_replacements_see_old_or_new_invariant(tmp_path: Path) -> None:
    path = build(tmp_path / "s", drafters={}).path
    values = [-float(i) for i in range(1, 31)]

    def put(value: float, **settings: Any) -> None:
        log_q = np.array([value] * 4 + [value - 100] * 5)  # a mixture of two would show
        ms.add_drafter(path, ms.Drafts("auto", "autoregressive", "rejection", log_q), **settings)

    put(values[0])
    context = multiprocessing.get_context("fork")
    stop, seen = context.Event(), context.Queue()
    readers = [context.Process(target=_watch, args=(path, stop, seen)) for _ in range(2)]
    for reader in readers:
        reader.start()
    for value in values[1:]:
        put(value, overwrite=True)
    stop.set()
    for _ in readers:
        found = seen.get(timeout=60)
        assert found and {value for value in found if value > -100} == {v + 100 for v in found if v < -100}
        assert {value for value in found if value > -100} <= set(values)
    for reader in readers:
        reader.join(60)
    assert [reader.exitcode for reader in readers] == [0, 0]
    assert ms.open_store(path, verify=True).drafter("auto").log_q[0] == values[-1] and troubles(path) == []
