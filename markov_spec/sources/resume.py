"""A recording's work folder: chunks of finished work beside the store, so that a killed run goes on where it stopped.

The folder is hidden, ``.NAME.recording`` (``.NAME.scoring`` for drafters recorded later). A chunk is one file of arrays
that appears whole or not at all; chunks are counted in the order of the rollouts, and what is in each is settled by the
request alone: a run that was interrupted any number of times gives the chunks, and the store, of one that was not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from markov_spec.arrays import RequestError
from markov_spec.sources.score import Columns
from markov_spec.store.files import sync
from markov_spec.store.install import discard

REQUEST, CHUNKS = "request.json", "chunk-*.npz"
ASKED = "request"  # the metadata's: digest of what was asked for
SEPARATOR = "|"


class Work:
    """The chunks of one recording. Opened by `work_folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def done(self, number: int) -> bool:
        """Whether a chunk is there."""
        return self._path(number).exists()

    def save(self, number: int, content: Mapping[str, Columns]) -> None:
        """Keep a chunk: columns by owner and part."""
        flat: dict[str, Any] = {
            SEPARATOR.join((owner, part, name)): values
            for owner, columns in content.items()
            for part, own in columns.items()
            for name, values in own.items()
        }
        half = self.folder / f"half-{os.getpid()}.npz"
        with half.open("wb") as file:
            np.savez(file, **flat)
            file.flush()
            os.fsync(file.fileno())
        half.rename(self._path(number))

    def load(self, number: int, part: str | None = None) -> dict[str, Columns]:
        """Give a chunk, or one part of every owner in it; a damaged one is a ValueError that names it."""
        content: dict[str, Columns] = {}
        path = self._path(number)
        try:
            with path.open("rb") as file, np.load(file) as arrays:
                for key in arrays.files:
                    owner, own, name = key.split(SEPARATOR)
                    if part in (None, own):
                        content.setdefault(owner, {}).setdefault(own, {})[name] = arrays[key]
        except (BadZipFile, EOFError, OSError, ValueError) as error:
            raise ValueError(
                f"{path}: truncated or damaged: {error}; allowed: finished work, or no such file: it is then done again"
            ) from error
        return content

    def _path(self, number: int) -> Path:
        return self.folder / f"chunk-{number:06d}.npz"


def work_path(out: str | Path, kind: str) -> Path:
    """Where the work for the store ``out`` lies."""
    place = Path(out).resolve()
    return place.with_name(f".{place.name}.{kind}")


def check_work(out: str | Path, kind: str, resume: bool, settings: Mapping[str, Any]) -> None:
    """Refuse to begin where interrupted work lies, before any model is loaded.

    Raises
    ------
    RequestError
        Unless it is to be resumed, and began with these of all settings.
    """
    folder = work_path(out, kind)
    if folder.exists() and not resume:
        count = len(list(folder.glob(CHUNKS)))
        raise RequestError(
            f"{out}: found interrupted work of {count} chunks in {folder}; allowed: resume=True (--resume) to go on "
            "with it, or without that folder"
        )
    if (folder / REQUEST).exists():
        _compare(folder, _told(settings), settings.keys())


def begun(out: str | Path, kind: str, request: Mapping[str, Any]) -> bool:
    """Whether work of this very request lies there."""
    folder = work_path(out, kind)
    return (folder / REQUEST).is_file() and _read(folder) == _told(request)


def clear(out: str | Path, kind: str) -> None:
    """Remove the work of a store."""
    place = Path(out).resolve()
    discard(work_path(place, kind), place)


@contextmanager
def work_folder(out: str | Path, kind: str, request: Mapping[str, Any], resume: bool) -> Iterator[Work]:
    """Open a work folder; it goes on success, and stays with its chunks, if it has any, on failure.

    Parameters
    ----------
    out : path
        The store.
    kind : str
        Of work: the end of the folder's name.
    request : mapping
        All that settles what is recorded; JSON.
    resume : bool
        Whether chunks may be there.

    Raises
    ------
    RequestError
        If they are, and ``resume`` is not set, or they are of another request, naming the settings that differ, or of
        none that is known.
    """
    check_work(out, kind, resume, {})
    folder = work_path(out, kind)
    folder.mkdir(exist_ok=True)
    if (folder / REQUEST).exists():
        _compare(folder, _told(request))
    elif any(folder.glob(CHUNKS)):
        raise RequestError(
            f"{folder}: found chunks without {REQUEST}, which tells of what request they are; allowed: both, or "
            "without that folder"
        )
    else:
        _write(folder, _told(request))
    try:
        yield Work(folder)
    except BaseException:
        if not any(folder.glob(CHUNKS)):
            with suppress(OSError):
                clear(out, kind)
        raise
    clear(out, kind)


def _told(request: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(request))
    return told


def _write(folder: Path, request: Mapping[str, Any]) -> None:
    half = folder / f"half-{os.getpid()}.json"
    half.write_text(json.dumps(request, indent=1, sort_keys=True))
    sync(half)
    half.rename(folder / REQUEST)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / REQUEST
    try:
        told: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: no valid JSON: {error}; allowed: a request, or without that folder") from error
    return told


def _compare(folder: Path, request: Mapping[str, Any], names: Collection[str] | None = None) -> None:
    """Refuse another request than the folder's; only ``names`` of both are looked at, if given."""
    old = _flat({key: value for key, value in _read(folder).items() if names is None or key in names})
    wanted = _flat(request)
    for key in sorted(old.keys() | wanted.keys()):
        if old.get(key) != wanted.get(key):
            raise RequestError(
                f"{key}: found {wanted.get(key)!r}; allowed: {old.get(key)!r}, with which the interrupted work in "
                f"{folder} began; to begin anew, remove that folder or choose another name"
            )


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return flat


def digest(*values: Any) -> str:
    """SHA-256 of what JSON can hold; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
