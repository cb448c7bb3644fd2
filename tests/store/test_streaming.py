"""Writing a store batch by batch."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow.parquet as pq
import pytest

import markov_spec as ms
from markov_spec.store import files
from tests.store.sample import IDS, INDPTR, K, N, arguments, build, same_bits, troubles

CUTS = [[0, 4], [0, 1, 2, 3, 4], [0, 2, 2, 4], [0, 3, 4]]


def _tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def _some(values: Any, first: int, last: int) -> Any:
    """Rows of rollouts ``first..last-1`` in whatever holds arrays with a row per position."""
    if isinstance(values, dict):
        return {key: _some(value, first, last) for key, value in values.items()}
    return values[INDPTR[first] : INDPTR[last]]


def _rollouts(given: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    batch: dict[str, Any] = {"indptr": INDPTR[first : last + 1] - INDPTR[first]}
    for key in ("rollout_ids", "prompt_ids", "prompt_tokens", "benchmarks", "finish_reasons", "turns"):
        batch[key] = given[key][first:last]
    for key in ("tokens", "log_p", "parts"):
        batch[key] = _some(given[key], first, last)
    return batch


def _drafts(drafts: ms.Drafts, first: int, last: int, **changes: Any) -> ms.Drafts:
    rows = {
        name: None if getattr(drafts, name) is None else _some(getattr(drafts, name), first, last)
        for name in ("log_q", "rank", "drafted")
    }
    return replace(drafts, **{**rows, "parts": _some(dict(drafts.parts), first, last), **changes})


def _stream(path: Path, rollout_cuts: Sequence[int], draft_cuts: Sequence[int], **settings: Any) -> None:
    given = arguments()
    with ms.StoreWriter(path, metadata=given["metadata"], vocab=given["vocab"], **settings) as writer:
        for first, last in pairwise(rollout_cuts):
            writer.add_rollouts(**_rollouts(given, first, last))
        for drafts in given["drafters"].values():
            for first, last in pairwise(draft_cuts):
                writer.add_drafts(_drafts(drafts, first, last))


@pytest.mark.parametrize("group_bytes", [1, 600, files.GROUP_BYTES])
@pytest.mark.parametrize("rollout_cuts", CUTS)
@pytest.mark.parametrize("draft_cuts", CUTS)
def test_batches_give_the_bytes_of_one_write_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_bytes: int, rollout_cuts: list, draft_cuts: list
) -> None:
    monkeypatch.setattr(files, "GROUP_BYTES", group_bytes)
    build(tmp_path / "one")
    _stream(tmp_path / "many", rollout_cuts, draft_cuts)
    assert _tree(tmp_path / "many") == _tree(tmp_path / "one")
    assert troubles(tmp_path / "many") == []


@pytest.mark.parametrize("named", [True, False])
def test_drafts_lag_behind_and_align_by_id_against_closed_form(tmp_path: Path, named: bool) -> None:
    given = arguments()
    wanted = given["drafters"]["auto"].log_q
    pieces = [wanted[a:b] for a, b in pairwise(INDPTR)]

    def auto(*order: int) -> ms.Drafts:
        order = order if named else tuple(sorted(order))
        ids = [IDS[i] for i in order] if named else None
        return ms.Drafts("auto", "autoregressive", "rejection", np.concatenate([pieces[i] for i in order]), ids=ids)

    with ms.StoreWriter(tmp_path / "s") as writer:
        writer.add_rollouts(**_rollouts(given, 0, 2))
        writer.add_drafts(auto(0))
        writer.add_rollouts(**_rollouts(given, 2, 3))
        writer.add_rollouts(**_rollouts(given, 3, 4))
        writer.add_drafts(auto(2, 1))
        writer.add_drafts(auto(3))
    assert same_bits(ms.open_store(tmp_path / "s").drafter("auto").log_q, wanted)


def test_arrays_may_be_filled_anew_between_batches_invariant(tmp_path: Path) -> None:
    tokens, log_p, log_q = np.zeros(5, np.int32), np.zeros(5, np.float32), np.zeros((5, K), np.float32)
    with ms.StoreWriter(tmp_path / "s") as writer:
        for i in range(3):
            tokens[:], log_p[:], log_q[:] = i, -i, -i
            writer.add_rollouts(rollout_ids=[str(i)], prompt_ids=["p"], tokens=tokens, indptr=[0, 5], log_p=log_p)
            writer.add_drafts(ms.Drafts("d", "block", "rejection", log_q))
    store = ms.open_store(tmp_path / "s")
    wanted = np.repeat(np.arange(3), 5)
    assert (store.rollouts().tokens == wanted).all() and (store.rollouts().log_p == -wanted).all()
    assert (store.drafter("d").log_q[:, 0] == -wanted).all()


def test_fingerprint_is_that_of_four_digests_against_reference(tmp_path: Path) -> None:
    given = arguments()
    wanted = hashlib.sha256(
        b"".join(
            hashlib.sha256(data).digest()
            for data in (
                b"".join(len(name).to_bytes(8, "little") + name.encode() for name in IDS),
                np.array([3, 4, 4, 9], "<i8").tobytes(),
                given["tokens"].astype("<i4").tobytes(),
                given["log_p"].astype("<f4").tobytes(),
            )
        )
    ).hexdigest()
    for i, cuts in enumerate(CUTS):
        _stream(tmp_path / str(i), cuts, cuts)
        assert ms.open_store(tmp_path / str(i)).fingerprint == wanted


def _refused(path: Path, message: str, *adding: Any, drafts: Sequence[ms.Drafts] = ()) -> None:
    """One of some batches is refused, and nothing is left."""
    with pytest.raises(ValueError, match=message), ms.StoreWriter(path) as writer:
        for batch in adding:
            writer.add_rollouts(**batch)
        for batch in drafts:
            writer.add_drafts(batch)
    assert list(path.parent.iterdir()) == []


def test_case_42_doubled_id_names_both_places_against_closed_form(tmp_path: Path) -> None:
    given = arguments()
    first, again = _rollouts(given, 0, 3), {**_rollouts(given, 3, 4), "rollout_ids": ["b"]}
    _refused(tmp_path / "s", "rollout ids: 'b' stands at 1 and again at 3; ids are unique", first, again)
    within = {**_rollouts(given, 1, 4), "rollout_ids": ["x", "y", "x"]}
    _refused(tmp_path / "s", "'x' stands at 1 and again at 3", _rollouts(given, 0, 1), within)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": {}}, "target: found parts none; allowed: divergence, lists, as in the first batch"),
        ({"parts": {"divergence": {"entropy": np.zeros(5)}}}, "found parts divergence; allowed: divergence, lists"),
        ({"turns": None}, "rollouts: found prompt_tokens, benchmarks, finish_reasons; allowed: prompt_tokens, .*turns"),
        ({"log_p": np.full(5, np.nan)}, "log_p: rollout 'd', position 0: found nan"),
    ],
)
def test_batch_unlike_the_first_is_refused_invariant(tmp_path: Path, changes: dict, message: str) -> None:
    given = arguments()
    _refused(tmp_path / "s", message, _rollouts(given, 0, 3), {**_rollouts(given, 3, 4), **changes})


def test_sizes_and_columns_of_later_batches_are_the_first_ones_invariant(tmp_path: Path) -> None:
    given = arguments()
    first, last = _rollouts(given, 0, 3), _rollouts(given, 3, 4)
    spread = {"entropy": last["parts"]["divergence"]["entropy"]}
    message = r"divergence: found sizes {'entropy': \[\]}; allowed: {.*'varentropy': \[\]}, as in the first"
    _refused(tmp_path / "s", message, first, {**last, "parts": {**last["parts"], "divergence": spread}})
    short = {key: value[:, :2] if value.ndim == 2 else value for key, value in last["parts"]["lists"].items()}
    message = r"lists: found sizes {'ids': \[2\].*; allowed: {'ids': \[3\]"
    _refused(tmp_path / "s", message, first, {**last, "parts": {**last["parts"], "lists": short}})


@pytest.mark.parametrize(
    ("first", "last", "changes", "message"),
    [
        (2, 4, {"metadata": {"x": 1}}, "drafter 'block': metadata: found {'x': 1}; allowed: {}, as in the first batch"),
        (2, 4, {"rule": "match"}, "rule: found 'match'; allowed: 'rejection', as in the first batch"),
        (2, 4, {"rank": None}, r"law: found sizes {'log_q': \[2\], 'drafted': \[\]}; allowed: {.*'rank'"),
        (2, 3, {}, "drafter 'block': missing rollouts: 'd'"),
        (1, 4, {"ids": IDS[1:]}, "found drafts of 3 rollouts; allowed: 2, those that have none of this drafter yet"),
        (3, 4, {"ids": IDS[3:]}, "missing rollouts: 'empty'; rollouts that do not come next: 'd'"),
        (2, 4, {"indptr": [0, 1, 5]}, "rollout 'empty': found 1 positions; allowed: 0, as in the store"),
        (1, 2, {}, "drafter 'block': found 1 positions; allowed: 0 or 5, where the store's rollouts end"),
        (0, 4, {}, "drafter 'block': found 9 positions; allowed: 5, where the store's rollouts end"),
    ],
)
def test_drafts_of_other_rollouts_or_kinds_are_refused_invariant(
    tmp_path: Path, first: int, last: int, changes: dict, message: str
) -> None:
    given = arguments()
    block = given["drafters"]["block"]
    batches = [_drafts(block, 0, 2, ids=IDS[:2]), _drafts(block, first, last, **changes)]
    _refused(tmp_path / "s", message, _rollouts(given, 0, 4), drafts=batches)


def test_refused_batch_cannot_be_passed_over_invariant(tmp_path: Path) -> None:
    given = arguments()
    with pytest.raises(ValueError, match="not written, since a batch was refused: log_p: rollout 'd'"):
        with ms.StoreWriter(tmp_path / "s") as writer:
            writer.add_rollouts(**_rollouts(given, 0, 3))
            with pytest.raises(ValueError, match="found nan"):
                writer.add_rollouts(**{**_rollouts(given, 3, 4), "log_p": np.full(5, np.nan)})
    assert list(tmp_path.iterdir()) == []


def test_writer_is_used_once_and_inside_its_block_invariant(tmp_path: Path) -> None:
    batch = _rollouts(arguments(), 0, 4)
    writer = ms.StoreWriter(tmp_path / "s")
    with pytest.raises(ms.RequestError, match="whose with block has not begun; allowed: adding inside it"):
        writer.add_rollouts(**batch)
    with writer:
        writer.add_rollouts(**batch)
    with pytest.raises(ms.RequestError, match="whose with block has ended"):
        writer.add_rollouts(**batch)
    with pytest.raises(ms.RequestError, match="this writer was used before"), writer:
        pass
    with pytest.raises(ValueError, match="exists; pass overwrite=True"):
        ms.StoreWriter(tmp_path / "s")
    assert len(ms.open_store(tmp_path / "s")) == 4 and troubles(tmp_path / "s") == []


def test_no_batch_is_an_empty_store_invariant(tmp_path: Path) -> None:
    with ms.StoreWriter(tmp_path / "s"):
        pass
    store = ms.open_store(tmp_path / "s", verify=True)
    assert len(store) == 0 and store.drafters == () and store.rollouts().tokens.size == 0


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("end", ["raise", "kill"])
def test_block_that_does_not_end_leaves_what_was_invariant(tmp_path: Path, overwrite: bool, end: str) -> None:
    given = arguments()
    if overwrite:
        build(tmp_path / "s", turns=None)
    before = _tree(tmp_path)

    def work() -> None:
        with ms.StoreWriter(tmp_path / "s", overwrite=overwrite) as writer:
            writer.add_rollouts(**_rollouts(given, 0, 3))
            if end == "raise":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGKILL)

    if end == "raise":
        with pytest.raises(KeyboardInterrupt):
            work()
        assert _tree(tmp_path) == before
        return
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert {p: b for p, b in _tree(tmp_path).items() if not p.startswith(".s.tmp-")} == before
    _stream(tmp_path / "s", CUTS[1], CUTS[1], overwrite=overwrite)
    assert [f.severity for f in troubles(tmp_path / "s")] == ["note"]


def test_drafter_is_added_batch_by_batch_invariant(tmp_path: Path) -> None:
    block = arguments()["drafters"]["block"]
    one, many = build(tmp_path / "one").path, build(tmp_path / "many", drafters={}).path
    alive: list[weakref.ref] = []

    def batches() -> Iterator[ms.Drafts]:
        for first, last in pairwise(CUTS[1]):
            drafts = _drafts(block, first, last)
            gc.collect()
            assert sum(ref() is not None for ref in alive) <= 2  # the first one, and the one before
            alive.append(weakref.ref(drafts))
            yield drafts

    ms.add_drafter(many, batches())
    assert _tree(many / "drafters" / "block") == _tree(one / "drafters" / "block")
    before = _tree(many)
    with pytest.raises(ValueError, match="drafter 'block': missing rollouts: 'empty', 'd'"):
        ms.add_drafter(many, [_drafts(block, 0, 2, ids=IDS[:2])], overwrite=True)
    with pytest.raises(ValueError, match="found no batch; allowed: one Drafts, or batches"):
        ms.add_drafter(many, [])
    with pytest.raises(ValueError, match="name: found 'auto'; allowed: 'block', as in the first batch"):
        ms.add_drafter(many, [_drafts(block, 0, 2), _drafts(block, 2, 4, name="auto")], overwrite=True)
    assert _tree(many) == before


def test_case_109_empty_batches_settle_the_types_invariant(tmp_path: Path) -> None:
    def write(name: str, sizes: Sequence[int]) -> Path:
        with ms.StoreWriter(tmp_path / name, vocab={}) as writer:
            for i, size in enumerate(sizes):
                ids, rows = [f"{i}-{j}" for j in range(1000)], np.full(size, 5)
                indptr = np.array([0] * 1000 + [size])
                writer.add_rollouts(rollout_ids=ids, prompt_ids=ids, tokens=rows, indptr=indptr, log_p=np.zeros(size))
                writer.add_drafts(ms.Drafts("d", "block", "match", np.zeros((size, 1)), np.ones((size, 1), int)))
        return tmp_path / name

    late, empty = write("late", [0, 0, 0, 1]), write("empty", [0])
    schemas = [{p.name: pq.read_schema(p) for p in path.rglob("*.parquet")} for path in (late, empty)]
    assert schemas[0] == schemas[1]
    assert str(schemas[0]["law-00000.parquet"].field("rank").type) == "large_list<element: int32>"
    assert ms.open_store(late).drafter("d").rank.tolist() == [[1]] and len(ms.open_store(late)) == 4000


def test_case_104_bfloat16_batches_against_closed_form(tmp_path: Path) -> None:
    bits = np.array([0xC8C8, 0xBF81, 0xFF80], dtype=np.uint16)  # -409600, -1.0078125, -inf
    values = bits.view(ml_dtypes.bfloat16)
    spread = {"entropy": (-values[:2]).repeat([2, 1])}
    with ms.StoreWriter(tmp_path / "s") as writer:
        for name in "ab":
            writer.add_rollouts(
                rollout_ids=[name],
                prompt_ids=["p"],
                tokens=np.arange(3),
                indptr=[0, 3],
                log_p=values[[0, 1, 1]],
                parts={"divergence": spread},
            )
            writer.add_drafts(ms.Drafts("d", "autoregressive", "rejection", values))
    store = ms.open_store(tmp_path / "s")
    assert same_bits(store.drafter("d").log_q.astype(ml_dtypes.bfloat16).view(np.uint16), np.tile(bits, 2))
    assert same_bits(store.drafter("d").log_q, np.tile(np.array([-409600, -1.0078125, -np.inf], np.float32), 2))
    assert store.rollouts().log_p.tolist() == [-409600.0, -1.0078125, -1.0078125] * 2
    assert store.part("divergence")["entropy"].tolist() == [409600.0, 409600.0, 1.0078125] * 2 and N == 9


WRITING = """
import sys, numpy as np, markov_spec as ms
from tests.store.memory import resident
rng, rows = np.random.default_rng(0), 20_000
with ms.StoreWriter(sys.argv[1]) as writer:
    for i in range(36):
        writer.add_rollouts(rollout_ids=[str(i)], prompt_ids=["p"], tokens=np.zeros(rows, int), indptr=[0, rows],
            log_p=np.zeros(rows))
        writer.add_drafts(ms.Drafts("d", "block", "rejection", -rng.random((rows, 64), np.float32)))
        if i == 11:
            before = resident()[1]
print(resident()[1] - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_writing_does_not_grow_invariant(tmp_path: Path) -> None:
    """The last two thirds of a store of 180 MB, on top of the peak of the first third."""
    words = [sys.executable, "-c", WRITING, str(tmp_path / "s")]
    told = subprocess.run(words, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert float(told.stdout) < 40
    assert sum(p.stat().st_size for p in tmp_path.rglob("*.parquet")) > 160e6
