from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.store import encode, install, writer
from tests.store.sample import N, build, same_bits, troubles

AUTO = ms.Drafts("auto", "autoregressive", "rejection", np.full(N, -3.0))


def _tree(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def _failing(call: Callable, at: int, error: type[BaseException]) -> Callable:
    count = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            raise error("cut off")
        return call(*args, **kwargs)

    return wrapped


STEPS = [
    (encode, "write_file", 1),
    (encode, "write_file", 4),
    (encode, "write_manifest", 1),
    (writer, "write_manifest", 1),
]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize(("module", "name", "at"), [*STEPS, (install.Path, "rename", 1), (install.Path, "rename", 2)])
def test_interrupted_replacement_leaves_the_old_store_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, at: int, error: type[BaseException]
) -> None:
    build(tmp_path / "s")
    before = _tree(tmp_path)
    with monkeypatch.context() as patch, pytest.raises(error, match="cut off"):
        patch.setattr(module, name, _failing(getattr(module, name), at, error))
        build(tmp_path / "s", turns=None, overwrite=True)
    assert _tree(tmp_path) == before and [p.name for p in tmp_path.iterdir()] == ["s"]
    assert troubles(tmp_path / "s") == []


@pytest.mark.parametrize(("module", "name", "at"), [*STEPS, (install.Path, "rename", 1)])
def test_interrupted_write_leaves_nothing_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, at: int
) -> None:
    monkeypatch.setattr(module, name, _failing(getattr(module, name), at, OSError))
    with pytest.raises(OSError, match="cut off"):
        build(tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "name", "at"),
    [
        (encode, "write_file", 1),
        (encode, "write_manifest", 1),
        (install.Path, "rename", 1),
        (install.Path, "rename", 2),
    ],
)
def test_interrupted_drafter_leaves_the_old_one_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, at: int
) -> None:
    store = build(tmp_path / "s")
    before = _tree(tmp_path)
    monkeypatch.setattr(module, name, _failing(getattr(module, name), at, OSError))
    with pytest.raises(OSError, match="cut off"):
        ms.add_drafter(store.path, AUTO, overwrite=True)
    assert _tree(tmp_path) == before


def _killed_at(call: str, work: Callable[[], object]) -> None:
    """Run ``work`` in a forked process that is killed at the given rename, without a chance to clean up."""
    child = os.fork()
    if child == 0:
        count, wanted = 0, int(call)

        def rename(self: Path, target: Path) -> Path:
            nonlocal count
            count += 1
            if count == wanted:
                os.kill(os.getpid(), signal.SIGKILL)
            os.rename(self, target)
            return target

        install.Path.rename = rename  # type: ignore[method-assign]
        work()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_killed_writes_are_ignored_and_noted_invariant(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    before = store.drafter("auto")
    _killed_at("1", lambda: build(tmp_path / "s", overwrite=True))
    _killed_at("1", lambda: ms.add_drafter(store.path, ms.Drafts("new", "autoregressive", "match", np.zeros(N))))
    again = ms.open_store(store.path, verify=True)
    assert again.drafters == ("auto", "block") and same_bits(again.drafter("auto").log_q, before.log_q)
    findings = troubles(store.path)
    assert [f.severity for f in findings] == ["note", "note"]
    assert all("left by an interrupted write (half written)" in f.message for f in findings)
    assert {Path(f.where).name.split(".tmp-")[0] for f in findings} == {".s", ".new"}


def test_killed_between_the_renames_keeps_the_old_store_beside_invariant(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    before = _tree(store.path)
    _killed_at("2", lambda: build(tmp_path / "s", turns=None, overwrite=True))
    with pytest.raises(ValueError, match=r"an interrupted replacement left the old one at .*/\.s\.old-\d+-") as caught:
        ms.open_store(store.path)
    old = Path(str(caught.value).rsplit(" at ", 1)[1])
    assert _tree(old) == before
    findings = troubles(store.path)
    assert [f.severity for f in findings].count("error") == 1
    old.rename(store.path)
    assert ms.open_store(store.path, verify=True).drafters == ("auto", "block")


def test_existing_path_is_refused_invariant(tmp_path: Path) -> None:
    build(tmp_path / "s")
    before = _tree(tmp_path)
    with pytest.raises(ValueError, match="exists; pass overwrite=True"):
        build(tmp_path / "s", turns=None)
    assert _tree(tmp_path) == before
    replaced = build(tmp_path / "s", drafters={}, overwrite=True)
    assert replaced.drafters == () and [p.name for p in tmp_path.iterdir()] == ["s"]


def test_a_folder_that_is_no_store_is_never_replaced_invariant(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match="exists and is no store"):
        build(tmp_path / "home", overwrite=True)
    assert (tmp_path / "home" / "thesis.txt").read_text() == "x"
