"""Folders that appear whole or not at all: written beside, then moved into place in one step.

A new folder is renamed into place, which fails where anything stands. An old one is exchanged with the new one in one
step where the system can (Linux); elsewhere by two renames, between which a kill leaves no folder but ``.NAME.old-*``.
A folder that is being written is locked, which ends with its process: what is not locked was left by a write that died.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from markov_spec.store.files import sync

try:
    import fcntl
except ImportError:  # no POSIX: nobody can tell a leftover from a folder that is being written
    fcntl = None  # type: ignore[assignment] # a module elsewhere

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<state>tmp|old)-\d+-[0-9a-f]{8}")
# What a rename onto something says: a folder that holds anything, or a file.
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
_HERE, _RENAME_EXCHANGE = -100, 2


class Leftover(NamedTuple):
    """A folder that an interrupted write left, where it belongs, and its state: ``tmp`` or ``old`` (whole)."""

    path: Path
    place: Path
    state: str


def leftovers(parent: Path, name: str | None = None) -> list[Leftover]:
    """What interrupted writes left in ``parent``, of all folders or of one.

    Raises
    ------
    OSError
        If ``parent`` cannot be listed.
    """
    if not parent.is_dir():
        return []
    matches = ((path, _LEFTOVER.fullmatch(path.name)) for path in sorted(parent.iterdir()))
    found = [Leftover(p, p.with_name(m["name"]), m["state"]) for p, m in matches if m and name in (None, m["name"])]
    return [left for left in found if left.path.is_dir() or left.path.is_symlink()]


def vanished(parent: Path, name: str | None = None) -> dict[Path, Path]:
    """Folders missing since their replacement was cut between its two renames, each with where the old one lies."""
    return {
        left.place: left.path
        for left in leftovers(parent, name)
        if left.state == "old" and not os.path.lexists(left.place)
    }


def clear(left: Leftover) -> str:
    """Remove what an interrupted write left, or move a folder back of which it is the only copy; say what was done.

    No folder that a process is still writing is touched, and no only copy beside another one.
    """
    path, place = left.path, left.place
    only = left.state == "old" and not os.path.lexists(place)
    if only and [one.path for one in leftovers(place.parent, place.name) if one.state == "old"] != [path]:
        return f"one of several old folders of {place}, of which nothing else is left; move back the right one"
    if not only and not _free(path):
        return "another process may be writing it; it stays"
    try:
        if only:
            path.rename(place)
            return f"moved back to {place}: the old folder, whole, which an interrupted write had moved aside"
        _remove(path, strictly=True)
    except OSError as error:
        return f"left by an interrupted write; it stays, since it cannot be removed: {error}"
    return "removed: left by an interrupted write"


def _free(folder: Path) -> bool:
    """Whether nobody holds the lock of a folder; False where that cannot be told."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return folder.is_symlink()  # one that leads nowhere
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock a folder where the file system can."""
    descriptor = None if fcntl is None else os.open(folder, os.O_RDONLY)
    try:
        if descriptor is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _beside(path: Path, state: str) -> Path:
    return path.with_name(f".{path.name}.{state}-{os.getpid()}-{secrets.token_hex(4)}")


@contextmanager
def whole_folder(path: Path, taken: str | None = None) -> Iterator[Path]:
    """Give a folder to fill; on success it takes the place of ``path``, on failure it goes and ``path`` stays.

    Raises
    ------
    ValueError
        With the text ``taken``, if it is given and something stands at ``path``; without, that is replaced. If the
        folder around ``path`` was replaced or removed meanwhile.
    """
    half = _beside(path, "tmp")
    with _staying(path):
        half.mkdir()
        try:
            with _held(half):
                yield half
                for folder in (*half.rglob("*/"), half):
                    sync(folder)
                replaced = _put(half, path, taken)
        except BaseException:
            _remove(half)
            raise
        sync(path.parent)
    if replaced is not None:
        _remove(replaced)


@contextmanager
def _staying(path: Path) -> Iterator[None]:
    """A file that is missing because the folder around ``path`` went is told as that."""
    before = path.parent.stat()
    try:
        yield
    except FileNotFoundError as error:
        if path.parent.exists() and os.path.samestat(before, path.parent.stat()):
            raise
        raise ValueError(f"{path}: not written, since {path.parent} was replaced or removed meanwhile") from error


def discard(folder: Path, place: Path) -> None:
    """Remove a folder beside ``place`` in one step: what a kill leaves of it is a leftover of ``place``."""
    gone = _beside(place, "tmp")
    folder.rename(gone)
    _remove(gone)


def _put(half: Path, path: Path, taken: str | None) -> Path | None:
    """Move ``half`` to ``path``; give where that which stood there now lies."""
    while True:
        try:
            half.rename(path)
            return None
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        if taken is not None:
            raise ValueError(taken)
        try:
            return half if _exchange(half, path) else _rename_twice(half, path)
        except OSError as error:
            if error.errno not in {*_TAKEN, errno.ENOENT}:  # else: another process replaced it meanwhile
                raise


def _rename_twice(half: Path, path: Path) -> Path:
    old = _beside(path, "old")
    try:
        path.rename(old)
        half.rename(path)
    except BaseException:
        if not path.exists():
            with suppress(FileNotFoundError):
                old.rename(path)
        _remove(old)
        raise
    return old


@cache
def _renameat2() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    found: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    typed: Callable[..., int] | None = found
    return typed


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one step; False, with nothing done, where the system or the file system cannot."""
    rename = _renameat2()
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def _remove(path: Path, *, strictly: bool = False) -> None:
    """Remove what is no longer wanted; what cannot be removed is a leftover, or an OSError if ``strictly``."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=not strictly)
