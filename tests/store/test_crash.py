"""Writers killed at random moments: what stood there stays, or what was written stands there whole."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.store import install

KILLS = 50
# Between any two of these calls, and within those that take time, a writer can die.
MOMENTS: list[tuple[Any, str]] = [
    (os, "fsync"),
    (os, "open"),
    (os, "unlink"),
    (os, "rmdir"),
    (Path, "mkdir"),
    (Path, "rename"),
    (Path, "write_bytes"),
    (pq.ParquetWriter, "write_table"),
    (pq.ParquetWriter, "close"),
    (install, "_exchange"),
]
LEFT = re.compile(r"\.(s|auto|new)\.(tmp|old)-\d+-[0-9a-f]{8}")
Tree = dict[str, bytes]


def _words(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    log_p = -rng.random(7)
    return {
        "rollout_ids": ["a", "b"],
        "prompt_ids": ["p", "q"],
        "tokens": rng.integers(0, 9, 7),
        "indptr": [0, 3, 7],
        "log_p": log_p,
        "drafters": {"auto": ms.Drafts("auto", "autoregressive", "rejection", log_p - 0.1)},
    }


def _replaced(path: Path) -> None:
    ms.write_store(path, **_words(1), overwrite=True)


def _streamed(path: Path) -> None:
    words = _words(2)
    drafts = words.pop("drafters")["auto"]
    with ms.StoreWriter(path, overwrite=True) as writer:
        writer.add_rollouts(**words)
        writer.add_drafts(drafts)


def _auto(path: Path) -> None:
    ms.add_drafter(path, ms.Drafts("auto", "autoregressive", "match", np.zeros(7)), overwrite=True)


def _new(path: Path) -> None:
    ms.add_drafter(path, ms.Drafts("new", "block", "match", np.zeros((7, 2))))


WORKS: dict[str, tuple[bool, bool, Callable[[Path], None]]] = {
    # whether a store stands there, and whether the system can exchange folders
    "written": (False, True, _replaced),
    "replaced": (True, True, _replaced),
    "replaced by renames": (True, False, _streamed),
    "drafter added": (True, True, _new),
    "drafter replaced": (True, True, _auto),
    "drafter replaced by renames": (True, False, _auto),
}


def _tree(root: Path) -> Tree | None:
    """Files of a store, leftovers in it left out; None if there is none."""
    if not root.exists():
        return None
    files = {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
    return {name: data for name, data in files.items() if not any(LEFT.fullmatch(part) for part in Path(name).parts)}


def _counted(work: Callable[[], None], at: float) -> int:
    """Do ``work`` and count its moments; die at number ``at``, before the call if that is whole, else after it."""
    count = 0

    def wrap(call: Callable) -> Callable:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            here, count = count, count + 1
            if here == at:
                os.kill(os.getpid(), signal.SIGKILL)
            out = None if call is FSYNC else call(*args, **kwargs)  # no disk dies here
            if here + 0.5 == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return out

        return wrapped

    for owner, name in MOMENTS:
        setattr(owner, name, wrap(getattr(owner, name)))
    work()
    return count


FSYNC = os.fsync


def _forked(work: Callable[[], int], delay: float | None = None) -> tuple[int, int]:
    """Work in a forked process, killed after ``delay`` seconds if one is given; give its number and how it ended."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(min(work(), 255))
        finally:
            os._exit(255)
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)


def _leftovers(parent: Path) -> list[Path]:
    return [path for path in sorted(parent.rglob(".*")) if LEFT.fullmatch(path.name) and path.is_dir()]


def _judge(root: Path, old: Tree | None, new: Tree | None, by_command: bool) -> str:
    findings = ms.store.check_integrity(root)
    errors = [found.message for found in findings if found.severity == "error"]
    left, told = _leftovers(root.parent), " ".join(f"{found.where} {found.message}" for found in findings)
    assert all(str(path) in told for path in left)
    gone = old is not None and "an interrupted replacement left the old one at" in told
    if gone or (old is None and _tree(root) is None):
        assert len(errors) == 1
        with pytest.raises(ValueError, match=r"does not exist"):
            ms.open_store(root)
    else:
        assert errors == [] and _tree(root) in (old, new)
        ms.open_store(root, verify=True)
    if by_command:
        main(["check", str(root), "--clean"])
    else:
        ms.store.check_integrity(root, clean=True)
    assert _leftovers(root.parent) == []
    assert _tree(root) == old if gone else _tree(root) in (old, new)
    if _tree(root) is not None:
        assert ms.store.check_integrity(root) == []
    return "gone" if gone else "old" if _tree(root) == old else "new"


@pytest.mark.parametrize("name", WORKS)
def test_kill_at_any_moment_leaves_old_or_new_whole_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    there, exchange, work = WORKS[name]
    if not exchange:
        monkeypatch.setattr(install, "_exchange", lambda one, other: False)
    rng = np.random.default_rng(len(name))
    before = tmp_path / "before"
    before.mkdir()
    if there:
        ms.write_store(before / "s", **_words(0))
    (before / ".t.tmp-1-00000000").mkdir()  # of another store
    (before / ".s.tmp-1-0000000").mkdir()  # a name that no writer gives
    (before / ".s.old-1-00000000").write_text("a file")
    shutil.copytree(before, tmp_path / "after")
    started = time.perf_counter()
    work(tmp_path / "after" / "s")
    took = time.perf_counter() - started
    old, new = _tree(before / "s"), _tree(tmp_path / "after" / "s")
    shutil.copytree(before, tmp_path / "dry")
    _, status = _forked(lambda: _counted(lambda: work(tmp_path / "dry" / "s"), -1))
    moments = os.waitstatus_to_exitcode(status)
    assert 10 < moments < 255
    seen, killed = set(), 0
    for i in range(KILLS):
        home = tmp_path / f"{i}"
        shutil.copytree(before, home)
        at = int(rng.integers(0, 2 * moments)) / 2
        if i % 2:
            _, status = _forked(lambda at=at, home=home: _counted(lambda: work(home / "s"), at))
        else:
            _, status = _forked(lambda home=home: work(home / "s") or 0, delay=float(rng.uniform(0, took)))
        ended = os.waitstatus_to_exitcode(status)
        assert ended != 255
        killed += ended == -signal.SIGKILL
        seen.add(_judge(home / "s", old, new, by_command=i % 10 == 0))
        assert {p.name for p in home.iterdir()} - {"s"} == {p.name for p in before.iterdir()} - {"s"}
        shutil.rmtree(home)
    assert {"old", "new"} <= seen and killed >= KILLS // 2


def _notes(path: Path, clean: bool = True) -> list[str]:
    return [found.message for found in ms.store.check_integrity(path, clean=clean) if found.severity == "note"]


def test_folder_that_is_being_written_stays_invariant(tmp_path: Path) -> None:
    words = _words(0)
    words.pop("drafters")
    with ms.StoreWriter(tmp_path / "s") as writer:
        _, status = _forked(lambda: ["another process may be writing it; it stays"] != _notes(tmp_path / "s"))
        assert os.waitstatus_to_exitcode(status) == 0
        writer.add_rollouts(**words)
    assert _notes(tmp_path / "s") == [] and ms.open_store(tmp_path / "s", verify=True).drafters == ()


def test_only_copy_is_moved_back_and_one_of_several_is_not_invariant(tmp_path: Path) -> None:
    whole = ms.write_store(tmp_path / "s", **_words(0)).path
    olds = [tmp_path / f".s.old-{i}-0000000{i}" for i in (1, 2)]
    shutil.copytree(whole, olds[0])
    whole.rename(olds[1])
    told = _notes(whole)
    assert len(told) == 2 and all("one of several old folders" in message for message in told)
    assert all(path.is_dir() for path in olds) and not whole.exists()
    shutil.rmtree(olds[0])
    assert main(["check", str(whole), "--clean"]) == 0
    assert ms.open_store(whole, verify=True).drafters == ("auto",) and not olds[1].exists()


def test_old_folder_beside_the_new_one_goes_invariant(tmp_path: Path) -> None:
    whole = ms.write_store(tmp_path / "s", **_words(0)).path
    shutil.copytree(whole, tmp_path / ".s.old-1-00000001")
    (tmp_path / "precious").mkdir()
    (tmp_path / ".s.tmp-1-00000001").symlink_to(tmp_path / "precious")
    assert _notes(whole) == ["removed: left by an interrupted write"] * 2
    assert {path.name for path in tmp_path.iterdir()} == {"s", "precious"}


def test_where_nothing_can_be_locked_nothing_is_removed_invariant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ms.write_store(tmp_path / "s", **_words(0)).path
    (tmp_path / ".s.tmp-1-00000001").mkdir()
    monkeypatch.setattr(install, "fcntl", None)
    assert _notes(whole) == ["another process may be writing it; it stays"]
    ms.write_store(whole, **_words(1), overwrite=True)
    assert (tmp_path / ".s.tmp-1-00000001").is_dir()


def test_command_names_a_folder_that_is_none_invariant(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["check", str(tmp_path / "absent")]) == 2
    assert "Invalid value for 'STORE'" in capsys.readouterr().err
