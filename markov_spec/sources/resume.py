"""A recording's work folder: chunks of finished work beside the store, so that a killed run goes on where it stopped.

The folder is hidden, ``.NAME.recording`` (``.NAME.scoring`` for drafters recorded later). A chunk is one file of arrays
that appears whole or not at all; chunks are counted in the order of the rollouts, and what is in each is settled by the
request alone: a run that was interrupted any number of times gives the chunks, and the store, of one that was not.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from markov_spec.arrays import RequestError
from markov_spec.sources.score import Columns
from markov_spec.store.manifest import MANIFEST

REQUEST, CHUNKS = "request.json", "chunk-*.npz"
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
        """Give a chunk, or one part of every owner in it."""
        content: dict[str, Columns] = {}
        with np.load(self._path(number)) as arrays:
            for key in arrays.files:
                owner, own, name = key.split(SEPARATOR)
                if part in (None, own):
                    content.setdefault(owner, {}).setdefault(own, {})[name] = arrays[key]
        return content

    def _path(self, number: int) -> Path:
        return self.folder / f"chunk-{number:06d}.npz"


def work_path(out: str | Path, kind: str) -> Path:
    """Where the work for the store ``out`` lies."""
    place = Path(out).resolve()
    return place.with_name(f".{place.name}.{kind}")


def check_work(out: str | Path, kind: str, resume: bool) -> None:
    """Refuse to begin where interrupted work lies.

    Raises
    ------
    RequestError
        Unless it is to be resumed.
    """
    folder = work_path(out, kind)
    if folder.exists() and not resume:
        count = len(list(folder.glob(CHUNKS)))
        raise RequestError(
            f"{out}: found interrupted work of {count} chunks in {folder}; allowed: resume=True (--resume) to go on "
            "with it, or without that folder"
        )


def clear_finished(out: str | Path, kind: str) -> bool:
    """Whether the store is whole and only its work was not yet removed, which is then done."""
    folder = work_path(out, kind)
    finished = folder.is_dir() and (Path(out) / MANIFEST).is_file()
    if finished:
        shutil.rmtree(folder)
    return finished


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
        If they are, and ``resume`` is not set or they are of another request: naming the settings that differ.
    """
    check_work(out, kind, resume)
    folder = work_path(out, kind)
    told = json.loads(json.dumps(request))
    folder.mkdir(exist_ok=True)
    if (folder / REQUEST).exists():
        _compare(folder, told)
    else:
        half = folder / f"half-{os.getpid()}.json"
        half.write_text(json.dumps(told, indent=1, sort_keys=True))
        half.rename(folder / REQUEST)
    try:
        yield Work(folder)
    except BaseException:
        if not any(folder.glob(CHUNKS)):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder)


def _compare(folder: Path, request: dict[str, Any]) -> None:
    begun = _flat(json.loads((folder / REQUEST).read_text()))
    wanted = _flat(request)
    for key in sorted(begun.keys() | wanted.keys()):
        if begun.get(key) != wanted.get(key):
            raise RequestError(
                f"{folder}: {key}: found {wanted.get(key)!r}; allowed: {begun.get(key)!r}, with which this work began, "
                "or without that folder"
            )


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return flat


def digest(*values: Any) -> str:
    """SHA-256 of what JSON can hold."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
