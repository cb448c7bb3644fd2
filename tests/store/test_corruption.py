"""Single bytes that are damaged anywhere in a store, and files that are not what a store holds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.store.manifest import LARGEST_MANIFEST
from tests.store.memory import resident
from tests.store.sample import N, build, rewrite_manifest, rewrite_part

FLIPS = 2000


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def _numbers(path: Path) -> dict[str, Any]:
    """All that a verified store gives."""
    store = ms.open_store(path, verify=True)
    rollouts = store.rollouts()
    out: dict[str, Any] = {"ids": rollouts.ids, "prompts": rollouts.prompt_ids, "facts": json.dumps(store.facts())}
    out |= {"tokens": rollouts.tokens.tobytes(), "log_p": rollouts.log_p.tobytes(), "vocab": store.vocab()}
    out |= {part: {name: v.tobytes() for name, v in store.part(part).items()} for part in store.parts}
    for drafter in store.drafters:
        for part in store.drafter_parts(drafter):
            columns = store.drafter_part(drafter, part).items()
            out[f"{drafter}/{part}"] = {name: values.tobytes() for name, values in columns}
    return out


def _flip(path: Path, rng: np.random.Generator) -> bytes:
    """Change one byte to another value; give what was there."""
    data = path.read_bytes()
    at = int(rng.integers(len(data)))
    path.write_bytes(data[:at] + bytes([data[at] ^ int(rng.integers(1, 256))]) + data[at + 1 :])
    return data


def test_every_flipped_byte_is_found_and_gives_no_wrong_number_invariant(tmp_path: Path) -> None:
    """Parts are damaged together; a manifest, which hides what is below it, with other parts only."""
    rng = np.random.default_rng(8)
    root = build(tmp_path / "s").path
    whole = _numbers(root)
    files = _files(root)
    parts = [path for path in files if path.suffix == ".parquet"]
    below = [path for path in files if path.parent.parent.name == "drafters" and path.name == "manifest.json"]
    groups = [parts, [*below, *(path for path in parts if path.parent.name == "rollouts")], [root / "manifest.json"]]
    flips = 0
    while flips < FLIPS:
        for group in groups:
            before = {path: _flip(path, rng) for path in group}
            found = {finding.where for finding in ms.store.check_integrity(root)}
            assert {str(path.relative_to(root)) for path in group} <= found
            try:
                assert _numbers(root) == whole  # white space of a manifest
                assert all(path.name == "manifest.json" for path in group)
            except ValueError as error:
                assert str(root) in str(error)
            for path, data in before.items():
                path.write_bytes(data)
            flips += len(group)
    assert ms.store.check_integrity(root) != [] and _numbers(root) == whole


def test_byte_that_is_flipped_after_the_store_was_verified_is_refused_invariant(tmp_path: Path) -> None:
    """In a forked process, since reading a damaged Parquet file may end it."""
    root = build(tmp_path / "s", vocab=None).path
    child = os.fork()
    if child == 0:
        silent, rng = 0, np.random.default_rng(9)
        try:
            for path in [path for path in _files(root) if path.suffix == ".parquet"] * 20:
                store = ms.open_store(root, verify=True)
                before = _flip(path, rng)
                name, part = path.parent.name, path.name.removesuffix("-00000.parquet")
                try:
                    if name != "rollouts":
                        store.drafter_part(name, part)
                    else:
                        store.rollouts() if part == "part" else store.part(part)
                    silent += 1
                except ValueError:
                    path.write_bytes(before)
            os._exit(silent > 0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("folder", ["", "drafters/auto"])
@pytest.mark.parametrize("other", [b"\t", b"\n", b"\r"])
def test_white_space_of_a_manifest_is_found_invariant(tmp_path: Path, folder: str, other: bytes) -> None:
    root = build(tmp_path / "s").path
    whole, path = _numbers(root), root / folder / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b" ", other, 1))
    (finding,) = [f for f in ms.store.check_integrity(root) if "z-statistic" not in f.message]
    assert (finding.severity, finding.where) == ("note", str(path.relative_to(root))) and _numbers(root) == whole


def _errors(path: Path) -> list[str]:
    return [f"{f.where}: {f.message}" for f in ms.store.check_integrity(path) if f.severity == "error"]


def _column(name: str, values: pa.Array) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.schema.get_field_index(name), name, values)


def _bytes(*values: bytes) -> pa.Array:
    """Text that is not checked to be some."""
    return pa.array(values, pa.large_binary()).view(pa.large_string())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_column("rollout_id", pa.array(["a", "b", "a", "d"], pa.large_string())), "'a' stands at 0 and again at 2"),
        (_column("rollout_id", _bytes(b"a", b"b\xff", b"c", b"d")), "truncated or damaged: .*UTF8"),
        (_column("benchmark", _bytes(b"a", b"b\xff", b"c", b"d")), "truncated or damaged: .*UTF8"),
        (_column("log_p", pa.array([[0.1] * n for n in (3, 1, 0, 5)], pa.large_list(pa.float32()))), "found 0.1"),
        (_column("turn", pa.array([0, None, 0, 0], pa.int32())), "/s: rollouts: turns: entry 1: found None; allowed"),
        (_column("prompt_id", pa.array(["p", None, "p", "q"], pa.large_string())), "/s: rollouts: prompt ids: entry 1"),
        (lambda table: pa.table({"text": ["hello"] * 4, "label": [1, 2, 3, 4]}), "found schema text: string"),
    ],
)
def test_rollouts_of_another_tool_are_found_and_refused_invariant(
    tmp_path: Path, change: Callable, message: str
) -> None:
    root = build(tmp_path / "s", drafters={}, parts={}).path
    rewrite_part(root, "rollouts", change)
    with pytest.raises(ValueError, match=message):
        ms.open_store(root).rollouts()
    (error,) = _errors(root)
    assert error.startswith("rollouts/part-00000.parquet: ")
    with pytest.raises(ValueError, match=message):
        raise ValueError(error)


def test_foreign_parquet_in_the_place_of_a_part_is_refused_invariant(tmp_path: Path) -> None:
    root = build(tmp_path / "s").path
    rewrite_part(root, "lists", lambda table: pa.table({"x": [1.5, 2.5]}))
    with pytest.raises(ValueError, match=r"rollouts/lists-00000\.parquet: found schema x: double"):
        ms.open_store(root)
    assert len(_errors(root)) == 1


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff\xfe", "caf\u00e9".encode(), b"a b"])
def test_drafter_folder_with_any_name_is_told_in_plain_text_invariant(
    tmp_path: Path, capsys: pytest.CaptureFixture, name: bytes
) -> None:
    root = build(tmp_path / "s").path
    os.mkdir(os.fsencode(root / "drafters") + b"/" + name)
    with pytest.raises(ValueError, match=f"{root}/drafters: drafter name: found .*; allowed: 1 to 64 letters"):
        ms.open_store(root)
    assert main(["evaluate", str(root)]) == 1
    assert "drafter name: found" in capsys.readouterr().err
    for form in ("table", "json"):
        assert main(["check", str(root), "--format", form]) == 1
        assert "drafter name: found" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../x", "..", ".hidden", "a/b", "a\\b", "", "\ud800", "n" * 65, "C:x"])
def test_drafter_name_that_is_a_path_is_refused_invariant(tmp_path: Path, name: str) -> None:
    root = build(tmp_path / "s", drafters={}).path
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=r"drafter name: found .*; allowed: 1 to 64 letters"):
        ms.add_drafter(root, ms.Drafts(name, "autoregressive", "match", np.zeros(N)))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("path", ["../x.parquet", "/x.parquet", "..\\x.parquet", "C:\\x.parquet", "a/../../x.parquet"])
def test_path_out_of_the_folder_is_refused_invariant(tmp_path: Path, path: str) -> None:
    root = build(tmp_path / "s").path
    folder = root / "drafters" / "auto"
    parts = json.loads((folder / "manifest.json").read_text())["parts"]
    parts["law"]["files"][0]["path"] = path
    rewrite_manifest(folder, parts=parts)
    with pytest.raises(ValueError, match=r"part 'law': found path .*; allowed: a path inside the folder"):
        ms.open_store(root)
    assert len(_errors(root)) == 1


def test_manifest_of_100_megabytes_is_refused_unread_invariant(tmp_path: Path) -> None:
    root = build(tmp_path / "s").path
    with (root / "manifest.json").open("wb") as file:
        file.truncate(100_000_000)
    (before, _), started = resident(), time.perf_counter()
    for _ in range(3):
        with pytest.raises(
            ValueError, match=f"found 100000000 bytes; allowed: {LARGEST_MANIFEST}: this is no manifest"
        ):
            ms.open_store(root)
    assert len(_errors(root)) == 1
    assert resident()[0] - before < 50 and time.perf_counter() - started < 5


def test_manifest_that_no_reader_takes_is_not_written_invariant(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"found \d+ bytes; allowed: 16000000: the metadata are too large"):
        build(tmp_path / "s", metadata={"notes": "x" * LARGEST_MANIFEST})
    assert list(tmp_path.iterdir()) == []
    assert build(tmp_path / "s", metadata={"notes": "x" * (LARGEST_MANIFEST // 2)}).facts()["rollouts"] == 4


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_manifest_that_is_no_file_is_refused_invariant(tmp_path: Path, make: Callable) -> None:
    root = build(tmp_path / "s").path
    (root / "manifest.json").unlink()
    make(root / "manifest.json")
    with pytest.raises(ValueError, match=r"manifest\.json: found no regular file; allowed: a manifest"):
        ms.open_store(root)
    assert len(_errors(root)) == 1


@pytest.mark.parametrize("data", [b"\xff\xfe{}", b'{"format": "\xe9"}', b"\0" * 50, b"[" * 200_000, b'{"a":' * 100_000])
def test_manifest_that_is_no_json_is_refused_invariant(tmp_path: Path, data: bytes) -> None:
    root = build(tmp_path / "s").path
    (root / "manifest.json").write_bytes(data)
    with pytest.raises(ValueError, match=r"manifest\.json: no valid JSON"):
        ms.open_store(root)
    assert len(_errors(root)) == 1
