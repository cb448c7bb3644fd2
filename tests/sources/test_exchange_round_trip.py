"""Export and import: every bit comes back, and damage is told or harmless."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.arrays import ABSENT
from markov_spec.sources.exchange import LineError, building, exporter
from markov_spec.store.schema import DRAFTER_PARTS, FLOAT, TARGET_PARTS, Column
from tests.sources.exchange_files import assert_equal, columns, drafter, read, rollout, target, write
from tests.store.sample import build, past_end

ROOT = Path(__file__).parents[2]
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
EDGES = [-100.0, -9999.0, -1e-45, -3.4028234663852886e38, -0.0, 0.0, -0.1]
OWN = {"a": 0.1, "b": "é"}
COUNTS = st.integers(0, 4)


def column(rng: np.random.Generator, spec: Column, shape: tuple[int, ...]) -> np.ndarray:
    """Values of a column's whole range, its edges among them."""
    if spec.type != FLOAT:
        return rng.choice([int(spec.low), 1, 2, int(min(spec.high, ABSENT))], shape)
    if spec.low == -np.inf:
        values = rng.choice([*EDGES, -np.inf, *-rng.exponential(9, 20)], shape)
    else:
        high = [spec.high] if spec.high <= 1 or spec.high == np.inf else [9.0, 3.4e38]
        values = spec.low + rng.choice([0.0, 1e-45, 0.1, *high, *rng.random(9)], shape)
    return values.astype(np.float32)


def lists(rng: np.random.Generator, shape: tuple[int, ...], log: str) -> dict[str, np.ndarray]:
    """Lists of up to as many entries, some of probability 0, with a mass below 1."""
    ids = np.argsort(rng.random((*shape[:-1], 50)), axis=-1)[..., : shape[-1]].astype(np.int32)
    logs = -np.sort(rng.exponential(2, shape) + np.log(max(shape[-1], 1)), axis=-1)
    logs[..., 2:][rng.random(logs[..., 2:].shape) < 0.2] = -np.inf
    logs = -np.sort(-logs, axis=-1)
    none = np.arange(shape[-1]) >= rng.integers(0, shape[-1] + 1, shape[:-1])[..., None]
    return {"ids": np.where(none, -1, ids).astype(np.int32), log: np.where(none, -np.inf, logs).astype(np.float32)}


def random_store(path: Path, seed: int, lengths: list[int], names: list[str], depth: int, entries: int) -> ms.Store:
    rng = np.random.default_rng(seed)
    indptr = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    rows, count = int(indptr[-1]), len(lengths)

    def parts(specs: Any, kind: int | None) -> dict[str, dict[str, np.ndarray]]:
        out: dict[str, dict[str, np.ndarray]] = {}
        for part, own in specs.items():
            if part == "law":
                continue
            trailing = {"block": depth, "depth": 3, "entry": entries, "path": 2}
            shapes = {n: (rows, *(trailing[a] for a in c.trailing_axes(kind))) for n, c in own.items()}
            out[part] = {n: column(rng, c, shapes[n]) for n, c in own.items() if c.axes[-1:] != ("entry",)}
            if part == "lists":
                covered = rng.random(count) < 0.7
                log = "log_p" if specs is TARGET_PARTS else "log_q"
                out[part] |= lists(rng, shapes["ids"], log)
                if kind is not None:
                    none = past_end(indptr, depth) & (np.arange(depth) >= rng.integers(0, depth + 1, (rows, 1)))
                    for name, fill in (("ids", -1), ("log_q", np.nan), ("tail_mass", np.nan)):
                        out[part][name][none | (past_end(indptr, depth) & (entries == 0))] = fill
                out[part] = {n: v[np.repeat(covered, lengths)] for n, v in out[part].items()}
                out[part]["covered"] = covered
        return out

    law = DRAFTER_PARTS["law"]
    drafters = {
        "block": ms.Drafts(
            "block",
            "block",
            "block",
            column(rng, law["log_q"], (rows, depth)),
            rank=rng.choice([1, 5, ABSENT], (rows, depth)),
            drafted=rng.integers(0, depth + 1, rows),
            parts=parts(DRAFTER_PARTS, depth),
            metadata={"source": "x", "own": [1, None, "é"], "sampling": {"temperature": 0.7, "logit_bias": {"é": 1}}},
        ),
        "auto": ms.Drafts("auto", "autoregressive", "rejection", column(rng, law["log_q"], (rows,))),
        "hit": ms.Drafts("hit", "autoregressive", "match", rng.choice([0, -np.inf], rows)),
    }
    return ms.write_store(
        path,
        rollout_ids=names,
        prompt_ids=names,
        tokens=rng.integers(0, 50, rows),
        indptr=indptr,
        log_p=rng.choice([*EDGES, *-rng.random(5)], rows),
        prompt_tokens=[rng.integers(0, 2**31, rng.integers(0, 4)) for _ in names],
        benchmarks=names,
        turns=rng.integers(0, 9, count).tolist(),
        finish_reasons=names,
        drafters=drafters,
        parts=parts(TARGET_PARTS, None),
        metadata={"stop_ids": [2], "logprob_space": "raw", "sampling": {"temperature": 1}, "own": OWN},
    )


def imported(files: Path, out: Path, **how: Any) -> ms.ImportReport:
    return ms.import_jsonl(files / "rollouts.jsonl", sorted(files.glob("drafts-*")), out, progress=False, **how)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 6), max_size=5), COUNTS, COUNTS, st.data())
def test_round_trip_invariant(seed: int, lengths: list[int], depth: int, entries: int, data: st.DataObject) -> None:
    count = len(lengths)
    names = data.draw(st.lists(TEXT, min_size=count, max_size=count, unique=True))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        root = Path(folder)
        for module in (building, exporter):
            patch.setattr(module, "BATCH_POSITIONS", data.draw(st.sampled_from([1, 5, 10**6])))
        store = random_store(root / "one", seed, lengths, names, depth, entries)
        report = imported(ms.export_jsonl(store, root / "files"), root / "two")
        assert report.errors == () and all("logit_bias" in note for note in report.notes) and report.rollouts == count
        assert_equal(store, report.store)
        assert ms.store.check_integrity(report.store.path) == ms.store.check_integrity(store.path)


@pytest.mark.parametrize("demo", ["demo", "demo-greedy"])
def test_demo_round_trip_invariant(tmp_path: Path, demo: str) -> None:
    store = ms.open_store(ROOT / "data" / demo)
    names = ["quant5", "lookup"]
    files = ms.export_jsonl(store.path, tmp_path / "files", drafters=names)
    report = imported(files, tmp_path / "store")
    assert report.store.fingerprint == store.fingerprint and report.store.drafters == tuple(sorted(names))
    mine, its = columns(report.store), columns(store)
    for key, values in mine.items():
        assert values.tobytes() == its[key].tobytes(), key
    for name in names:
        assert ms.evaluate(report.store, name).rounds.tolist() == ms.evaluate(store, name).rounds.tolist()


@pytest.mark.parametrize(("seed", "beyond"), [(5, 0), (7, 1)])
def test_exported_lines_against_reference(tmp_path: Path, seed: int, beyond: int) -> None:
    """Read by what the format says, with nothing but json and loops."""
    store = random_store(tmp_path / "s", seed, [3, 0, 5], ["a", "b", "c"], 2, 3)
    files = ms.export_jsonl(store, tmp_path / "files")
    first, *lines = map(json.loads, (files / "rollouts.jsonl").read_text().splitlines())
    assert (first["fingerprint"], first["rollouts"], first["metadata"]) == (store.fingerprint, 3, {"own": OWN})
    assert (first["sampling"], first["stop_ids"], first["logprob_space"]) == ({"temperature": 1}, [2], "raw")
    rollouts, zero = store.rollouts(), first["log_zero"]
    entropy, at = store.part("divergence")["entropy"], 0
    for i, line in enumerate(lines):
        assert (line["id"], line["turn"]) == (rollouts.ids[i], rollouts.turns[i])
        assert len(line["tokens"]) == len(line["log_p"]) == len(line["divergence.entropy"])
        for t, token in enumerate(line["tokens"]):
            assert token == rollouts.tokens[at + t]
            assert np.float32(line["log_p"][t]) == rollouts.log_p[at + t]
            assert np.float32(line["divergence.entropy"][t]) == entropy[at + t]
        at += len(line["tokens"])
    first, *lines = map(json.loads, (files / "drafts-block.jsonl").read_text().splitlines())
    assert first["columns"]["log_q"] == [2] and first["rollouts_fingerprint"] == store.fingerprint
    drafts, part, at, listed = store.drafter("block"), store.drafter_part("block", "lists"), 0, 0
    past = 0
    for i, line in enumerate(lines):
        length = len(line["log_q"])
        for s in range(length):
            for k in range(1, 3):
                if part["covered"][i]:
                    ids = part["ids"][listed + s, k - 1]
                    none = np.isnan(part["log_q"][listed + s, k - 1, 0])
                    assert (len(line["lists.ids"][s]) < k) == (len(line["lists.tail_mass"][s]) < k) == none
                    assert none or line["lists.ids"][s][k - 1] == [v for v in ids if v >= 0]
                    past += s + k > length and not none
                if s + k > length:
                    assert len(line["log_q"][s]) < k and np.isnan(drafts.log_q[at + s, k - 1])
                    continue
                value = line["log_q"][s][k - 1]
                assert np.float32(-np.inf if value == zero else value) == drafts.log_q[at + s, k - 1]
                assert line["rank"][s][k - 1] == drafts.rank[at + s, k - 1]
            assert line["drafted"][s] == drafts.drafted[at + s]
        assert ("lists.ids" in line) == bool(part["covered"][i])
        at += length
        listed += length * int(part["covered"][i])
    assert past == beyond


def test_order_of_drafts_does_not_matter_invariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "BATCH_POSITIONS", 2)
    store = random_store(tmp_path / "one", 5, [2, 4, 1, 3], list("abcd"), 2, 2)
    files = ms.export_jsonl(store, tmp_path / "files")
    for path in files.glob("drafts-*"):
        first, *lines = path.read_text().splitlines()
        path.write_text("\n".join([first, *lines[::-1]]))
    assert_equal(store, imported(files, tmp_path / "two").store)


def test_export_of_a_range_against_reference(tmp_path: Path) -> None:
    store = random_store(tmp_path / "one", 5, [2, 4, 1], list("abc"), 2, 2)
    report = imported(ms.export_jsonl(store.batch(1, 3), tmp_path / "files"), tmp_path / "two")
    assert report.store.rollouts().ids == ("b", "c") and report.errors == ()
    whole = store.drafter("block").log_q[2:]
    assert report.store.drafter("block").log_q.tobytes() == whole.tobytes()


def test_export_replaces_only_exports_invariant(tmp_path: Path) -> None:
    store = build(tmp_path / "s", parts={}, drafters={})
    for export, suffix in ((ms.export_jsonl, "jsonl"), (ms.export_parquet, "parquet")):
        out = export(store, tmp_path / suffix)
        with pytest.raises(ms.RequestError, match="exists; pass overwrite=True"):
            export(store, out)
        export(store, out, overwrite=True)
        (out / "notes.txt").write_text("mine")
        with pytest.raises(ms.RequestError, match=r"found notes.txt, which no export wrote"):
            export(store, out, overwrite=True)
        assert (out / "notes.txt").read_text() == "mine"
        with pytest.raises(ValueError, match="found no drafter 'x'"):
            export(store, tmp_path / "new", drafters=["x"])
        assert not (tmp_path / "new").exists()
        with pytest.raises(ms.RequestError, match=r"found notes.txt, which"):
            export(store, out / "notes.txt", overwrite=True)


def test_flat_tables_against_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("markov_spec.sources.exchange.flat.GROUP_ROWS", 4)
    lengths = [3, 0, 5]
    store = random_store(tmp_path / "s", 7, lengths, ["a", "b", "c"], 2, 2)
    out = ms.export_parquet(store, tmp_path / "flat")
    rollouts, divergence = store.rollouts(), store.part("divergence")
    frame = pl.read_parquet(out / "rollouts.parquet")
    places = [(i, t) for i, length in enumerate(lengths) for t in range(length)]
    assert frame["rollout_id"].to_list() == ["abc"[i] for i, _ in places]
    assert frame["position"].to_list() == [t for _, t in places]
    for name, values in {"token": rollouts.tokens, "log_p": rollouts.log_p, **divergence}.items():
        assert frame[name].to_list() == values.tolist(), name
    drafts, overlap = store.drafter("block"), store.drafter_part("block", "divergence")["overlap"]
    rows = []
    for i, t in places:
        for k in (1, 2):
            if t + k <= lengths[i]:
                row = int(rollouts.indptr[i]) + t
                at = row + k - 1
                own = (rollouts.tokens[at], rollouts.log_p[at], drafts.log_q[row, k - 1], drafts.rank[row, k - 1])
                rows.append(("abc"[i], t, k, t + k - 1, *own, drafts.drafted[row], overlap[row, k - 1]))
    names = ["rollout_id", "start", "depth", "position", "token", "log_p", "log_q", "rank", "drafted", "overlap"]
    assert pl.read_parquet(out / "drafts-block.parquet").select(names).rows() == rows
    flat = pl.read_parquet(out / "drafts-auto.parquet")
    assert flat.columns == ["rollout_id", "position", "token", "log_p", "log_q"]
    assert flat["log_q"].to_list() == store.drafter("auto").log_q.tolist()


def damaged(data: bytes, draw: Any) -> bytes:
    """One thing that disks, editors and transfers do."""
    at, lines = draw(st.integers(0, len(data) - 1)), data.splitlines(keepends=True)
    i, j = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    kind = draw(st.sampled_from(["flip", "delete", "insert", "digit", "cut", "drop", "double", "swap"]))
    if kind == "flip":
        return data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
    if kind == "delete":
        return data[:at] + data[at + draw(st.integers(1, 9)) :]
    if kind == "insert":
        return data[:at] + draw(st.binary(min_size=1, max_size=3)) + data[at:]
    if kind == "digit":
        spots = [i for i, byte in enumerate(data) if chr(byte).isdigit()]
        at = draw(st.sampled_from(spots))
        return data[:at] + str(draw(st.integers(0, 9))).encode() + data[at + 1 :]
    if kind == "cut":
        return data[:at]
    if kind == "drop":
        return b"".join(lines[:i] + lines[i + 1 :])
    if kind == "double":
        return b"".join([*lines[:j], lines[i], *lines[j:]])
    lines[i], lines[j] = lines[j], lines[i]
    return b"".join(lines)


def cells(store: ms.Store) -> dict[tuple[str, ...], bytes]:
    """What is recorded of each rollout, by its id."""
    ids, indptr = store.index
    found: dict[tuple[str, ...], bytes] = {}
    for first, name in enumerate(ids):
        some = store.batch(first, first + 1)
        assert some.index[1][-1] == indptr[first + 1] - indptr[first]
        prompt = some.rollouts().prompt_tokens[0]
        found |= {(name, *key): values.tobytes() for key, values in columns(some).items()}
        found[name, "prompt"] = prompt.tobytes()
    return found


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damage_is_told_or_harmless_invariant(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store = random_store(root / "one", data.draw(st.integers(0, 9)), [2, 1, 3], ["a", "b", "c"], 2, 2)
        files = ms.export_jsonl(store, root / "files", drafters=["block", "hit"])
        wanted = {key: value for key, value in cells(store).items() if "auto" not in key}
        path = files / data.draw(st.sampled_from(["rollouts.jsonl", "drafts-block.jsonl", "drafts-hit.jsonl"]))
        path.write_bytes(damaged(path.read_bytes(), data.draw))
        for mode in ("strict", "lenient"):
            try:
                report = imported(files, root / mode, mode=mode)
            except ValueError as error:
                assert isinstance(error, LineError) and error.fault.file == str(path), error
                continue
            kept = cells(report.store)
            assert kept.items() <= wanted.items()
            assert len(kept) == len(wanted) or report.errors
            assert all(found.file == str(path) for found in report.errors)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_without_checksums_stays_on_its_line_invariant(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, names = Path(folder), [f"r{i}" for i in range(5)]
        rows = [rollout(name, log_p=[-0.5, -i / 8]) for i, name in enumerate(names)]
        path = write(root / "r.jsonl", target(), *rows)
        lines = path.read_bytes().splitlines(keepends=True)
        hurt = data.draw(st.integers(1, 5))
        lines[hurt] = damaged(lines[hurt].rstrip(b"\n"), data.draw).replace(b"\n", b"") + b"\n"
        path.write_bytes(b"".join(lines))
        report = ms.import_jsonl(path, [], root / "s", mode="lenient", progress=False)
        found = report.store.rollouts()
        # A changed id may be another's, which makes both unknown.
        told = [fault.message for fault in report.errors]
        lost = {names[hurt - 1]} | {name for name in names if any(f"found {name!r} again" in text for text in told)}
        for i, name in enumerate(names):
            if name not in lost:
                row = found.ids.index(name)
                assert found.log_p[2 * row : 2 * row + 2].tolist() == [-0.5, -i / 8]


def test_format_in_the_readme_against_closed_form(tmp_path: Path) -> None:
    text = (ROOT / "data" / "README.md").read_text().partition("## JSON lines")[2]
    blocks = [block.partition("```")[0] for block in text.split("```json\n")[1:]]
    assert len(blocks) == 2
    store = read(tmp_path, blocks[0].splitlines(), blocks[1].splitlines()).store
    assert store.drafters == ("small",) and store.rollouts().tokens.tolist() == [7, 9, 2, 7, 2]
    log_q = [[-0.5, -np.inf], [-0.3, -0.3], [-0.2, np.nan], [-0.5, -0.1], [-0.2, np.nan]]
    np.testing.assert_allclose(store.drafter("small").log_q, log_q, rtol=1e-6)
    for part in (TARGET_PARTS["lists"], TARGET_PARTS["divergence"], DRAFTER_PARTS["law"]):
        assert all(f"{name}`" in text or f".{name}`" in text for name in list(part)[:1])
    assert "hit" in text and drafter()["format"] in text
