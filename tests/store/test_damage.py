from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import markov_spec as ms
from markov_spec.store import folder as folder_module
from markov_spec.store import reader
from tests.store.sample import N, build, rewrite_manifest, rewrite_part, troubles

LAW = "drafters/auto/law-00000.parquet"
FILES = [
    "manifest.json",
    "vocab.parquet",
    "rollouts/part-00000.parquet",
    "rollouts/divergence-00000.parquet",
    "rollouts/lists-00000.parquet",
    "drafters/auto/manifest.json",
    "drafters/auto/law-00000.parquet",
    "drafters/block/manifest.json",
    "drafters/block/law-00000.parquet",
    "drafters/block/lists-00000.parquet",
    "drafters/block/divergence-00000.parquet",
    "drafters/block/multi-00000.parquet",
    "drafters/block/relaxed-00000.parquet",
    "drafters/block/tree-rank-00000.parquet",
]


def _read_all(path: Path) -> None:
    store = ms.open_store(path)
    store.rollouts(), store.vocab()
    for name in store.parts:
        store.part(name)
    for name in store.drafters:
        for part in store.drafter_parts(name):
            store.drafter_part(name, part)


def _cut(data: bytes) -> bytes:
    return data[:-9]


def _flip(at: float) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        i = min(int(at * len(data)), len(data) - 1)
        return data[:i] + bytes([data[i] ^ 0x04]) + data[i + 1 :]

    return flip


def _errors(path: Path) -> list[str]:
    return [f.where for f in troubles(path) if f.severity == "error"]


def test_layout_against_closed_form(tmp_path: Path) -> None:
    root = build(tmp_path / "s").path
    assert sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()) == sorted(FILES)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [_cut, _flip(0.01), _flip(0.3), _flip(0.7), _flip(1), lambda _: b""])
def test_damaged_file_is_found_and_refused_invariant(tmp_path: Path, file: str, damage: Callable) -> None:
    root = build(tmp_path / "s").path
    (root / file).write_bytes(damage((root / file).read_bytes()))
    (error,) = _errors(root)
    assert error == file
    for read in (_read_all, lambda p: ms.open_store(p, verify=True)):
        with pytest.raises(ValueError, match=str(root)):
            read(root)


@pytest.mark.parametrize("file", FILES)
def test_missing_file_is_found_and_refused_at_opening_invariant(tmp_path: Path, file: str) -> None:
    root = build(tmp_path / "s").path
    (root / file).unlink()
    assert len(_errors(root)) == 1
    with pytest.raises(ValueError, match="missing"):
        ms.open_store(root)


@pytest.mark.parametrize("file", [f for f in FILES if f.endswith("parquet")])
def test_truncated_footer_is_refused_at_opening_invariant(tmp_path: Path, file: str) -> None:
    root = build(tmp_path / "s").path
    data = (root / file).read_bytes()
    (root / file).write_bytes(data[:-9] + bytes(9))  # the size is right, the footer is gone
    with pytest.raises(ValueError, match=f"{file}: cannot be read as Parquet, truncated or damaged"):
        ms.open_store(root)
    (root / file).write_bytes(data[:-9])
    with pytest.raises(ValueError, match=rf"{file}: found {len(data) - 9} bytes; allowed: {len(data)}"):
        ms.open_store(root)


def test_large_parts_are_hashed_on_demand_only_invariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = build(tmp_path / "s")
    monkeypatch.setattr(folder_module, "HASHED_BYTES", 10)
    monkeypatch.setattr(folder_module, "file_hash", lambda path: "0")
    store.rollouts()
    with pytest.raises(ValueError, match="found SHA-256 0"):
        ms.open_store(store.path, verify=True)


@pytest.mark.parametrize(("tick", "times"), [(10**12, 3), (-1, 1)])
def test_file_is_hashed_once_unless_it_was_just_written_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tick: int, times: int
) -> None:
    store, hashed, file_hash = build(tmp_path / "s", drafters={}), [], folder_module.file_hash
    monkeypatch.setattr(folder_module, "CLOCK_TICK", tick)
    monkeypatch.setattr(folder_module, "file_hash", lambda path: hashed.append(path) or file_hash(path))
    for _ in range(3):
        store.rollouts()
    assert len(hashed) == times


def test_other_schema_version_is_refused_invariant(tmp_path: Path) -> None:
    root = build(tmp_path / "s").path
    for folder in (root / "drafters" / "auto", root):
        rewrite_manifest(folder, schema_version=2)
        with pytest.raises(ValueError, match=f"{folder}/manifest.json: found schema_version 2; allowed: 1"):
            ms.open_store(root)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "no valid JSON"),
        ("[1]", "found format 'list'; allowed: 'markov_spec store'"),
        ("{}", "found format None"),
        ('{"format": "markov_spec drafter"}', "found format 'markov_spec drafter'"),
        ('{"format": "markov_spec store", "schema_version": 1}', "checksum: found nothing; allowed: the SHA-256"),
    ],
)
def test_broken_manifest_is_refused_invariant(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        ms.open_store(tmp_path)
    assert _errors(tmp_path) == ["manifest.json"]


@pytest.mark.parametrize("path", ["../x.parquet", "/etc/passwd"])
def test_manifest_cannot_point_outside_invariant(tmp_path: Path, path: str) -> None:
    root = build(tmp_path / "s").path
    parts = json.loads((root / "manifest.json").read_text())["parts"]
    parts["lists"]["files"][0]["path"] = path
    rewrite_manifest(root, parts=parts)
    with pytest.raises(ValueError, match=f"part 'lists': found path '{path}'; allowed: a path inside the folder"):
        ms.open_store(root)


@pytest.mark.parametrize("changes", [{"parts": {"lists": {}}}, {"parts": []}, {"rollouts": "4"}])
def test_incomplete_manifest_is_refused_invariant(tmp_path: Path, changes: dict) -> None:
    root = build(tmp_path / "s").path
    rewrite_manifest(root, **changes)
    with pytest.raises(ValueError, match=r"incomplete entry|parts: found|rollouts: found '4'"):
        ms.open_store(root)
    assert _errors(root) == ["manifest.json"]


def test_path_without_a_store_is_refused_invariant(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="absent: does not exist; allowed: the folder of a markov_spec store"):
        ms.open_store(tmp_path / "absent")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(ValueError, match=str(path)):
            ms.open_store(path)
        assert _errors(path) == ["manifest.json"]


def test_drafter_of_another_target_is_refused_invariant(tmp_path: Path) -> None:
    first = build(tmp_path / "first").path
    second = build(tmp_path / "second", log_p=np.zeros(N), drafters={}).path
    shutil.copytree(first / "drafters" / "auto", second / "drafters" / "auto")
    with pytest.raises(ValueError, match="drafter 'auto' was recorded against other rollouts"):
        ms.open_store(second)
    assert _errors(second) == ["drafters/auto/manifest.json"]
    auto = ms.Drafts("auto", "autoregressive", "match", np.zeros(N))
    assert ms.add_drafter(second, auto, overwrite=True).drafters == ("auto",)


def test_renamed_drafter_folder_is_refused_invariant(tmp_path: Path) -> None:
    root = build(tmp_path / "s").path
    (root / "drafters" / "auto").rename(root / "drafters" / "other")
    with pytest.raises(ValueError, match="found name 'auto'; allowed: 'other', as the folder"):
        ms.open_store(root)


def _rewrite_law(root: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    rewrite_part(root / "drafters" / "auto", "law", change)


def _with_values(values: list[list[float]]) -> Callable[[pa.Table], pa.Table]:
    return lambda t: t.set_column(1, t.schema.field(1), pa.array(values, pa.large_list(pa.float32())))


@pytest.mark.parametrize(
    ("change", "message", "opens"),
    [
        (lambda t: t.take([1, 0, 2, 3]), "rollout ids differ from the store's at rows 0 to 3", True),
        (lambda t: t.slice(0, 3), r"found 3 rollouts; allowed: 4", True),
        (lambda t: t.slice(0, 0), r"found 0 rollouts; allowed: 4", True),
        (_with_values([[-1.0] * n for n in (3, 2, 0, 4)]), "log_q: rollout 'b': found 2 values; allowed: 1", True),
        (_with_values([[-1.0] * 3, None, [], [-1.0] * 5]), "found 1 null lists; allowed: none", True),
        (lambda t: t.select(["rollout_id"]), "found schema rollout_id: large_string", False),
        (lambda t: t.set_column(1, "log_q", t["log_q"].cast(pa.list_(pa.float32()))), "found schema", False),
    ],
)
def test_law_rewritten_by_another_tool_is_refused_invariant(
    tmp_path: Path, change: Callable, message: str, opens: bool
) -> None:
    root = build(tmp_path / "s").path
    _rewrite_law(root, change)
    with pytest.raises(ValueError, match=message):
        ms.open_store(root, verify=True).drafter("auto")
    if opens:
        ms.open_store(root, verify=True)
    (finding,) = troubles(root)
    assert (finding.severity, finding.where) == ("error", LAW)
    assert re.search(message, finding.message)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.5])
def test_bad_value_in_range_is_found_against_closed_form(tmp_path: Path, value: float) -> None:
    root = build(tmp_path / "s").path
    _rewrite_law(root, _with_values([[-1.0] * 3, [-1.0], [], [-1.0, -1.0, value, -1.0, -1.0]]))
    (finding,) = troubles(root)
    assert (finding.severity, finding.where) == ("error", LAW)
    assert f"drafter 'auto': law: log_q: rollout 'd', position 2: found {value}" in finding.message


def test_wrong_fingerprint_and_counts_are_found_invariant(tmp_path: Path) -> None:
    root = build(tmp_path / "s", drafters={}).path
    rewrite_manifest(root, fingerprint="0" * 64, positions=8, rollouts=5)
    findings = troubles(root)
    assert [f.message.split(":")[0] for f in findings] == ["rollouts", "positions", "fingerprint"]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [({"temperature": 0.7}, ["warning"]), ({"temperature": 0}, []), ({"temperature": 1, "top_k": 1}, []), ({}, [])],
)
def test_zero_log_probs_of_a_sampled_store_against_closed_form(tmp_path: Path, sampling: dict, expected: list) -> None:
    parts = {"divergence": {"entropy": np.ones(N), "varentropy": np.ones(N)}}
    root = build(tmp_path / "s", log_p=np.zeros(N), metadata={"sampling": sampling}, parts=parts).path
    assert [f.severity for f in troubles(root)] == expected


def test_damage_in_many_places_is_listed_whole_invariant(tmp_path: Path) -> None:
    root = build(tmp_path / "s").path
    damaged = ["rollouts/part-00000.parquet", "drafters/auto/manifest.json", "drafters/block/lists-00000.parquet"]
    for file in damaged:
        (root / file).write_bytes(b"x" + (root / file).read_bytes()[1:])
    assert _errors(root) == damaged


def test_z_statistic_tells_a_fitting_record_from_a_wrong_one_against_closed_form(tmp_path):
    log_p = np.log(np.array([0.5, 0.25] * 150))
    spread = {"entropy": np.full(300, 1.04), "varentropy": np.full(300, 0.12)}
    words = {"rollout_ids": ["a"], "prompt_ids": ["p"], "tokens": np.ones(300, dtype=int), "indptr": [0, 300]}
    for name, scale, severity, told in (("fits", 1.0, "note", "z-statistic -0.01"), ("cold", 0.7, "warning", "-15.6")):
        store = ms.write_store(tmp_path / name, **words, log_p=scale * log_p, parts={"divergence": spread})
        (finding,) = ms.store.check_integrity(store.path)
        assert finding.severity == severity and told in finding.message


@pytest.mark.parametrize(("count", "scale", "severity"), [(60, 0.7, "note"), (120, 0.7, "warning"), (120, 1, "note")])
def test_z_statistic_of_few_tokens_judges_nothing_against_closed_form(
    tmp_path: Path, count: int, scale: float, severity: str
) -> None:
    log_p = np.log(np.resize([0.5, 0.25], count))
    spread = {"entropy": np.full(count + 50, 1.04), "varentropy": np.full(count + 50, 0.12)}
    spread["entropy"][count:] = spread["varentropy"][count:] = 0  # these were not random
    store = ms.write_store(
        tmp_path / "s",
        rollout_ids=["a"],
        prompt_ids=["p"],
        tokens=np.ones(count + 50, dtype=int),
        indptr=[0, count + 50],
        log_p=np.append(scale * log_p, np.zeros(50)),
        parts={"divergence": spread},
    )
    (finding,) = ms.store.check_integrity(store.path)
    assert finding.severity == severity and "z-statistic" in finding.message


def test_parent_that_cannot_be_listed_is_a_note_invariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = build(tmp_path / "s").path
    iterdir = Path.iterdir

    def locked(path: Path) -> Iterator[Path]:
        if path == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", locked)
    (finding,) = troubles(root)
    assert finding.severity == "note" and finding.where == str(tmp_path) and "cannot be listed" in finding.message
    with pytest.raises(ValueError, match="absent: does not exist"):
        ms.open_store(tmp_path / "absent")


def test_drafters_that_cannot_be_listed_are_refused_invariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = build(tmp_path / "s").path
    iterdir = Path.iterdir

    def locked(path: Path) -> Iterator[Path]:
        if path.name == "drafters":
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", locked)
    with pytest.raises(ValueError, match=f"{root}/drafters: cannot be listed: .*Permission denied"):
        ms.open_store(root)
    assert _errors(root) == ["drafters"]


def test_stray_file_beside_the_drafters_is_a_note_invariant(tmp_path: Path) -> None:
    root = build(tmp_path / "s").path
    for name in ("notes.txt", ".DS_Store"):
        (root / "drafters" / name).write_text("x")
    assert ms.open_store(root).drafters == ("auto", "block")
    (finding,) = troubles(root)
    assert (finding.severity, finding.where) == ("note", "drafters/notes.txt")
    with pytest.raises(ValueError, match=r"drafters/notes\.txt: exists and is no folder, so it is not replaced"):
        ms.add_drafter(root, ms.Drafts("notes.txt", "autoregressive", "match", np.zeros(N)), overwrite=True)


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("/absent")])
def test_drafter_folder_without_a_manifest_is_found_and_refused_invariant(tmp_path: Path, make: Callable) -> None:
    root = build(tmp_path / "s").path
    make(root / "drafters" / "half")
    with pytest.raises(ValueError, match=r"drafters/half: no markov_spec drafter: manifest\.json is missing"):
        ms.open_store(root)
    assert _errors(root) == ["drafters/half/manifest.json"]
    half = ms.Drafts("half", "autoregressive", "match", np.zeros(N))
    assert ms.add_drafter(root, half, overwrite=True).drafters == ("auto", "block", "half")
    assert [p.name for p in (root / "drafters").iterdir() if p.name.startswith(".")] == []


def _replace_store(root: Path) -> None:
    build(root, log_p=np.full(N, -2.0), overwrite=True)


def _drop_drafters(root: Path) -> None:
    build(root, log_p=np.full(N, -2.0), drafters={}, overwrite=True)


def _replace_auto(root: Path) -> None:
    ms.add_drafter(root, ms.Drafts("auto", "autoregressive", "match", np.zeros(N)), overwrite=True)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(
    ("replace", "read"),
    [
        (_replace_store, lambda s: s.rollouts()),
        (_replace_store, lambda s: s.part("lists")),
        (_replace_store, lambda s: s.drafter("block")),
        (_drop_drafters, lambda s: s.drafter("auto")),
        (_replace_auto, lambda s: s.drafter("auto")),
        (_replace_auto, lambda s: s.drafter_part("auto", "law")),
    ],
)
def test_store_replaced_since_it_was_opened_says_so_invariant(
    tmp_path: Path, replace: Callable, read: Callable, used: bool
) -> None:
    store = build(tmp_path / "s")
    if used:
        read(store)  # its hashes are not compared again
    replace(store.path)
    with pytest.raises(ValueError, match="the store was replaced since it was opened; open it again"):
        read(store)


def test_drafter_added_since_the_store_was_opened_changes_nothing_invariant(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    _replace_auto(store.path)
    assert store.drafter("block").depth == 2 and len(store.rollouts()) == 4


def test_store_replaced_while_it_is_opened_is_opened_again_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = build(tmp_path / "s").path
    names = reader.drafter_names

    def late(path: Path) -> list[str]:
        monkeypatch.undo()
        found = names(path)
        _replace_store(root)
        return found

    monkeypatch.setattr(reader, "drafter_names", late)
    assert ms.open_store(root).rollouts().log_p[0] == -2
