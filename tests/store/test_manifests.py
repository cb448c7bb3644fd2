"""Manifests that another tool edited, their checksums right."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import markov_spec as ms
from tests.store.sample import N, build, rewrite_manifest, troubles

AUTO, BLOCK = "drafters/auto", "drafters/block"
VALUES = [None, True, -1, 1.5, 10**12, 10**30, "x", "\ud800", "a\0b", "n" * 300, [], [True], [10**12], {}, {"x": 1}]


def _errors(path: Path) -> list[str]:
    return [f.message for f in troubles(path) if f.severity == "error"]


def _read_all(path: Path) -> None:
    store = ms.open_store(path)
    store.rollouts(), store.vocab(), store.facts(), len(store), repr(store)
    for name in store.parts:
        store.part(name)
    for name in store.drafters:
        store.drafter(name)
        for part in store.drafter_parts(name):
            store.drafter_part(name, part)


def _edit(folder: Path, keys: tuple, value: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = manifest
    for key in keys[:-1]:
        entry = entry[key]
    entry[keys[-1]] = value
    rewrite_manifest(folder, **{key: v for key, v in manifest.items() if key not in ("format", "checksum")})


LAW = ("parts", "law", "columns", "log_q")
EDITS = [
    (AUTO, ("kind",), "tree", "found kind 'tree'; allowed: autoregressive, block"),
    (AUTO, ("kind",), "block", "found depth None of kind 'block'; allowed: an integer >= 0"),
    (BLOCK, ("kind",), "autoregressive", "found depth 2 of kind 'autoregressive'; allowed: null"),
    (AUTO, LAW, [2], r"drafter 'auto': law: log_q: found shape \(9, 2\); allowed: \(9, \)"),
    (BLOCK, LAW, [], r"drafter 'block': law: log_q: found shape \(9,\); allowed: \(9, 2\)"),
    (BLOCK, ("depth",), 3, r"drafter 'block': divergence: overlap: found shape \(9, 2\); allowed: \(9, 3\)"),
    (BLOCK, ("depth",), True, "depth: found True; allowed: an integer"),
    (BLOCK, LAW, [10**12], r"part 'law': log_q: found sizes \[1000000000000\]; allowed: a list of integers"),
    (BLOCK, LAW, [True], r"part 'law': log_q: found sizes \[True\]"),
    (BLOCK, ("parts", "lists", "columns", "ids"), [2**17, 2**17], "at most 2147483647 values for each position"),
    (BLOCK, ("parts", "tree-rank", "columns", "rank"), [10**9], "rank: .*found .* values; allowed: "),
    (
        "",
        ("parts", "lists", "columns"),
        {"ids": [10**9], "log_p": [10**9], "tail_mass": []},
        "found .* values; allowed: ",
    ),
    ("", ("parts",), {}, "part 'rollouts' is missing"),
    (AUTO, ("parts", "rollouts"), {"columns": {}, "files": [{}]}, "incomplete entry"),
    ("", ("metadata", "sampling"), [1], r"manifest.json: metadata.sampling: found \[1\]; allowed: a mapping"),
    ("", ("metadata", "sampling"), {"temperature": "x"}, "sampling.temperature: found 'x'; allowed: a number >= 0"),
    ("", ("metadata", "vocab_size"), "20", "metadata.vocab_size: found '20'"),
    (AUTO, ("metadata", "x"), float("nan"), "manifest.json: metadata.x: found nan"),
    ("", ("schema_version",), True, "found schema_version True; allowed: 1"),
    (AUTO, ("schema_version",), 1.0, "found schema_version 1.0; allowed: 1"),
    ("", ("rollouts",), -4, "rollouts: found -4; allowed: an integer, 0 to"),
]


@pytest.mark.parametrize(("folder", "keys", "value", "message"), EDITS)
def test_impossible_manifest_is_found_and_refused_invariant(
    tmp_path: Path, folder: str, keys: tuple, value: Any, message: str
) -> None:
    root = build(tmp_path / "s").path
    _edit(root / folder, keys, value)
    assert _errors(root) and all(re.search(message, error) for error in _errors(root))
    with pytest.raises(ValueError, match=message):
        _read_all(root)


def test_drafters_that_is_a_file_is_found_and_refused_invariant(tmp_path: Path) -> None:
    root = build(tmp_path / "s", drafters={}).path
    (root / "drafters").rmdir()
    (root / "drafters").write_text("x")
    auto = ms.Drafts("auto", "autoregressive", "match", np.zeros(N))
    for work in (ms.open_store, lambda path: ms.add_drafter(path, auto)):
        with pytest.raises(ValueError, match=f"{root}/drafters: is no folder"):
            work(root)
    assert len(_errors(root)) == 1


def test_deeply_nested_manifest_is_refused_invariant(tmp_path: Path) -> None:
    root = build(tmp_path / "s").path
    for depth in (400, 100_000):
        (root / "manifest.json").write_text('{"metadata":' * depth + "{}" + "}" * depth)
        with pytest.raises(ValueError, match=r"manifest\.json: "):
            ms.open_store(root)
        assert len(_errors(root)) == 1


def _paths(entry: Any, at: tuple = ()) -> Iterator[tuple]:
    items = entry.items() if isinstance(entry, dict) else enumerate(entry) if isinstance(entry, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from _paths(value, (*at, key))


@pytest.mark.parametrize("folder", ["", AUTO])
@pytest.mark.parametrize("change", [*(lambda entry, key, v=v: entry.__setitem__(key, v) for v in VALUES), dict.pop])
def test_whatever_an_edit_breaks_is_found_invariant(tmp_path: Path, folder: str, change: Callable) -> None:
    """No edit raises in a check, or anything but a ValueError in a reader; what a reader refuses is an error."""
    sound = build(tmp_path / "sound").path
    shutil.rmtree(sound / "drafters" / "block")
    manifest = json.loads((sound / folder / "manifest.json").read_text())
    manifest = {key: value for key, value in manifest.items() if key not in ("format", "checksum")}
    for keys in _paths(manifest):
        edited = copy.deepcopy(manifest)
        entry = edited
        for key in keys[:-1]:
            entry = entry[key]
        if change is dict.pop and isinstance(entry, list):
            continue
        change(entry, keys[-1])
        (sound / folder / "manifest.json").unlink()
        form = "markov_spec drafter" if folder else "markov_spec store"
        ms.store.manifest.write_manifest(sound / folder, form, edited)
        errors = _errors(sound)
        try:
            _read_all(sound)
        except ValueError as error:
            assert errors, (keys, error)
