from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.store import encode, files, install, streaming, writer
from tests.store.sample import N, build, rewrite_manifest, same_bits, troubles

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
    (files.GroupFile, "finish", 1),
    (files.GroupFile, "finish", 4),
    (encode, "write_manifest", 1),
    (streaming, "write_manifest", 1),
]


EXCHANGED = [(install.Path, "rename", 1, True), (install, "_exchange", 1, True)]
# 1: onto the old one, refused; 2: the old one aside; 3: the new one into place
RENAMED = [(install.Path, "rename", at, False) for at in (1, 2, 3)]


def _no_exchange(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(install, "_exchange", lambda one, other: False)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("module", "name", "at", "exchange"), [*((*step, True) for step in STEPS), *EXCHANGED, *RENAMED]
)
def test_interrupted_replacement_leaves_the_old_store_invariant(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    at: int,
    exchange: bool,
    error: type[BaseException],
) -> None:
    build(tmp_path / "s")
    if not exchange:
        _no_exchange(monkeypatch)
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
    ("module", "name", "at", "exchange"),
    [(files.GroupFile, "finish", 1, True), (encode, "write_manifest", 1, True), *EXCHANGED, *RENAMED],
)
def test_interrupted_drafter_leaves_the_old_one_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, at: int, exchange: bool
) -> None:
    store = build(tmp_path / "s")
    before = _tree(tmp_path)
    if not exchange:
        _no_exchange(monkeypatch)
    monkeypatch.setattr(module, name, _failing(getattr(module, name), at, OSError))
    with pytest.raises(OSError, match="cut off"):
        ms.add_drafter(store.path, AUTO, overwrite=True)
    assert _tree(tmp_path) == before


def _killed(module: Any, name: str, at: int, work: Callable[[], object], after: bool = False) -> None:
    """Run ``work`` in a forked process that is killed at a call of ``name``, without a chance to clean up."""
    count, call = 0, getattr(module, name)
    child = os.fork()
    if child == 0:

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            out = call(*args, **kwargs) if count < at or after else None
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return out

        try:
            setattr(module, name, wrapped)
            work()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def _replace_store(path: Path) -> None:
    build(path, turns=None, overwrite=True)


def _replace_auto(path: Path) -> None:
    ms.add_drafter(path, AUTO, overwrite=True)


def test_killed_writes_are_ignored_and_noted_invariant(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    before = store.drafter("auto")
    new = ms.Drafts("new", "autoregressive", "match", np.zeros(N))
    _killed(install.Path, "rename", 1, lambda: build(tmp_path / "s", overwrite=True))
    _killed(install.Path, "rename", 1, lambda: ms.add_drafter(store.path, new))
    again = ms.open_store(store.path, verify=True)
    assert again.drafters == ("auto", "block") and same_bits(again.drafter("auto").log_q, before.log_q)
    findings = troubles(store.path)
    assert [f.severity for f in findings] == ["note", "note"]
    assert all("left by an interrupted write (half written, or replaced)" in f.message for f in findings)
    assert {Path(f.where).name.split(".tmp-")[0] for f in findings} == {".s", ".new"}


@pytest.mark.parametrize("work", [_replace_store, _replace_auto])
@pytest.mark.parametrize(
    ("module", "name", "at", "after", "new"),
    [
        (install, "_exchange", 1, False, False),
        (install, "_exchange", 1, True, True),
        (install, "_remove", 1, False, True),
        (os, "unlink", 1, True, True),  # the old folder is half removed
        (os, "rmdir", 1, False, True),
    ],
)
def test_killed_replacement_leaves_old_or_new_whole_invariant(
    tmp_path: Path, work: Callable, module: Any, name: str, at: int, after: bool, new: bool
) -> None:
    build(tmp_path / "s")
    outcomes = [_tree(tmp_path / "s")]
    work(build(tmp_path / "new" / "s").path)
    outcomes.append(_tree(tmp_path / "new" / "s"))
    _killed(module, name, at, lambda: work(tmp_path / "s"), after)
    left = {p: b for p, b in _tree(tmp_path / "s").items() if not p.startswith("drafters/.")}
    assert left == outcomes[new] != outcomes[not new]
    ms.open_store(tmp_path / "s", verify=True)
    assert [f.severity for f in troubles(tmp_path / "s")] == ["note"]
    work(tmp_path / "s")
    assert ms.open_store(tmp_path / "s").drafters == ("auto", "block")


def test_killed_between_the_renames_keeps_the_old_store_beside_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_exchange(monkeypatch)
    store = build(tmp_path / "s")
    before = _tree(store.path)
    _killed(install.Path, "rename", 3, lambda: _replace_store(tmp_path / "s"))
    with pytest.raises(ValueError, match=r"an interrupted replacement left the old one at .*/\.s\.old-\d+-") as caught:
        ms.open_store(store.path)
    old = Path(str(caught.value).rsplit(" at ", 1)[1])
    assert _tree(old) == before
    findings = troubles(store.path)
    assert [f.severity for f in findings].count("error") == 1
    assert not any(str(old) in f.where for f in findings)  # the only copy is not called removable
    old.rename(store.path)
    assert ms.open_store(store.path, verify=True).drafters == ("auto", "block")


def test_drafter_killed_between_the_renames_is_an_error_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_exchange(monkeypatch)
    store = build(tmp_path / "s")
    before = _tree(store.path / "drafters" / "auto")
    _killed(install.Path, "rename", 3, lambda: _replace_auto(store.path))
    with pytest.raises(
        ValueError, match=r"drafters/auto: does not exist; .* left the old one at .*/\.auto\.old-\d+-"
    ) as caught:
        ms.open_store(store.path)
    old = Path(str(caught.value).rsplit(" at ", 1)[1])
    assert _tree(old) == before
    (error,) = [f for f in troubles(store.path) if f.severity == "error"]
    assert error.where == "drafters/auto/manifest.json" and str(old) in error.message
    assert not any(str(old) in f.where for f in troubles(store.path))
    assert ms.add_drafter(store.path, AUTO).drafter("auto").log_q[0] == -3
    assert [f.severity for f in troubles(store.path)] == ["note", "note"]


def test_exchange_swaps_in_one_step_against_closed_form(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    assert install._exchange(tmp_path / "a", tmp_path / "b") is (sys.platform == "linux")
    swapped = sys.platform == "linux"
    assert [(tmp_path / n / "file").read_text() for n in "ab"] == (["b", "a"] if swapped else ["a", "b"])
    if swapped:
        with pytest.raises(FileNotFoundError):
            install._exchange(tmp_path / "a", tmp_path / "absent")


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_replacement_where_no_exchange_exists_against_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*args: Any) -> int:
        ctypes.set_errno(code)
        return -1

    wanted = _tree(build(tmp_path / "t", turns=None).path)
    build(tmp_path / "s")
    monkeypatch.setattr(install, "_renameat2", lambda: refuse)
    _replace_store(tmp_path / "s")
    assert _tree(tmp_path / "s") == wanted and {p.name for p in tmp_path.iterdir()} == {"s", "t"}


def _meanwhile(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Do ``work``, as another process would, when a folder is about to be put into place."""
    put = install._put

    def late(*args: Any) -> Any:
        monkeypatch.setattr(install, "_put", put)
        work()
        return put(*args)

    monkeypatch.setattr(install, "_put", late)


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_two_writers_of_a_drafter_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool, exchange: bool
) -> None:
    store = build(tmp_path / "s", drafters={})
    if not exchange:
        _no_exchange(monkeypatch)
    first = ms.Drafts("auto", "autoregressive", "rejection", np.full(N, -1.0))
    _meanwhile(monkeypatch, lambda: ms.add_drafter(store.path, first))
    if overwrite:
        assert ms.add_drafter(store.path, AUTO, overwrite=True).drafter("auto").log_q[0] == -3
    else:
        with pytest.raises(ValueError, match="drafter 'auto' exists; pass overwrite=True"):
            ms.add_drafter(store.path, AUTO)
        assert ms.open_store(store.path, verify=True).drafter("auto").log_q[0] == -1
    assert [p.name for p in (store.path / "drafters").iterdir()] == ["auto"]


def test_writer_between_the_renames_of_another_invariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = build(tmp_path / "s")
    _no_exchange(monkeypatch)
    rename = install.Path.rename

    def late(self: Path, target: Path) -> Path:
        out = rename(self, target)
        monkeypatch.setattr(install.Path, "rename", rename)  # the old one is aside: another writer comes first
        ms.add_drafter(store.path, ms.Drafts("auto", "autoregressive", "rejection", np.full(N, -1.0)))
        return out

    monkeypatch.setattr(install.Path, "rename", lambda self, to: (late if self.name == "auto" else rename)(self, to))
    assert ms.add_drafter(store.path, AUTO, overwrite=True).drafter("auto").log_q[0] == -3
    assert sorted(p.name for p in (store.path / "drafters").iterdir()) == ["auto", "block"]


@pytest.mark.parametrize("stands", ["store", "file"])
def test_two_writers_of_a_store_invariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stands: str) -> None:
    path = tmp_path / "s"
    _meanwhile(monkeypatch, lambda: build(path, turns=None) if stands == "store" else path.write_text("x"))
    with pytest.raises(ValueError, match=f"{path}: exists; pass overwrite=True to replace a store"):
        build(path)
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    assert ms.open_store(path).rollouts().turns == (0, 0, 0, 0) if stands == "store" else path.read_text() == "x"


def test_drafter_of_a_store_replaced_meanwhile_is_not_added_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build(tmp_path / "s")
    write = writer.write_drafter

    def late(*args: Any) -> None:
        write(*args)
        monkeypatch.undo()
        rewrite_manifest(store.path, metadata={"target": "another"})

    monkeypatch.setattr(writer, "write_drafter", late)
    with pytest.raises(ValueError, match="the store was replaced since it was opened; open it again"):
        ms.add_drafter(store.path, ms.Drafts("new", "autoregressive", "match", np.zeros(N)))
    assert ms.open_store(store.path).drafters == ("auto", "block") and troubles(store.path) == []


@pytest.mark.parametrize("at", ["write_manifest", "GroupFile", "open_store"])
def test_drafter_whose_folder_goes_with_the_store_says_so_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Replaced by a store that is the same to the bit, whose manifest tells nothing."""
    store = build(tmp_path / "s")
    module = {"write_manifest": encode, "GroupFile": encode, "open_store": install}[at]
    name = {"open_store": "_put"}.get(at, at)
    call = getattr(module, name)

    def late(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.undo()
        build(tmp_path / "s", overwrite=True)
        return call(*args, **kwargs)

    monkeypatch.setattr(module, name, late)
    with pytest.raises(ValueError, match=r"drafters/new: not written, since .*drafters was replaced or removed"):
        ms.add_drafter(store.path, ms.Drafts("new", "autoregressive", "match", np.zeros(N)))
    assert ms.open_store(store.path).drafters == ("auto", "block") and troubles(store.path) == []


def test_missing_file_of_a_callers_own_is_told_as_it_is_invariant(tmp_path: Path) -> None:
    def batches() -> Any:
        yield ms.Drafts("new", "autoregressive", "match", np.zeros(4), indptr=[0, 3, 4])
        raise FileNotFoundError("theirs")

    store = build(tmp_path / "s")
    with pytest.raises(FileNotFoundError, match="theirs"):
        ms.add_drafter(store.path, batches())
    assert troubles(store.path) == []


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
