"""Folders that appear whole or not at all: written beside, then renamed into place."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from markov_spec.store.files import sync

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<state>tmp|old)-\d+-[0-9a-f]{8}")


def leftovers(parent: Path, name: str | None = None) -> list[tuple[Path, str]]:
    """Folders that interrupted writes left in ``parent``, each with its state: ``tmp`` (half) or ``old`` (whole)."""
    if not parent.is_dir():
        return []
    matches = ((path, _LEFTOVER.fullmatch(path.name)) for path in sorted(parent.iterdir()))
    return [(path, m["state"]) for path, m in matches if m and name in (None, m["name"])]


def _beside(path: Path, state: str) -> Path:
    return path.with_name(f".{path.name}.{state}-{os.getpid()}-{secrets.token_hex(4)}")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill; on success it takes the place of ``path``, on failure it goes and ``path`` stays."""
    half = _beside(path, "tmp")
    half.mkdir()
    try:
        yield half
        for folder in (*half.rglob("*/"), half):
            sync(folder)
        _put(half, path)
    except BaseException:
        shutil.rmtree(half, ignore_errors=True)
        raise
    sync(path.parent)


def _put(half: Path, path: Path) -> None:
    if not path.exists():
        half.rename(path)
        return
    old = _beside(path, "old")
    path.rename(old)
    try:
        half.rename(path)
    except BaseException:
        old.rename(path)
        raise
    shutil.rmtree(old)
