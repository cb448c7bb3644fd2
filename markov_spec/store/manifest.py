"""Manifests: what a folder holds, with sizes, hashes and fingerprints."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, get_args

import numpy as np

from markov_spec.arrays import ABSENT, Kind, Rollouts
from markov_spec.store.files import sync
from markov_spec.store.metadata import checked_metadata, plain
from markov_spec.store.schema import DRAFTER_FORMAT, SCHEMA_VERSION, STORE_FORMAT

MANIFEST = "manifest.json"
Manifest = dict[str, Any]

# A manifest takes some kilobytes; what is larger is none, and is not parsed.
LARGEST_MANIFEST = 16_000_000
_LARGEST = 2**63 - 1
_KEYS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    STORE_FORMAT: {
        "fingerprint": (str,),
        "rollouts": (int,),
        "positions": (int,),
        "metadata": (dict,),
        "parts": (dict,),
    },
    DRAFTER_FORMAT: {
        "name": (str,),
        "kind": (str,),
        "rule": (str,),
        "depth": (int, type(None)),
        "target_fingerprint": (str,),
        "metadata": (dict,),
        "parts": (dict,),
    },
}
_TYPES = {str: "text", int: f"an integer, 0 to {_LARGEST}", dict: "a mapping", type(None): "null"}
_NEEDED = {STORE_FORMAT: "rollouts", DRAFTER_FORMAT: "law"}


class Fingerprint:
    """SHA-256 over the digests of ids, offsets, tokens and log-probabilities of rollouts that come batch by batch."""

    def __init__(self) -> None:
        self._ids, self._offsets, self._tokens, self._log_p = (hashlib.sha256() for _ in range(4))
        self._rows = 0

    def add(self, rollouts: Rollouts) -> None:
        """Go on with these rollouts."""
        for name in rollouts.ids:
            data = name.encode()
            self._ids.update(len(data).to_bytes(8, "little") + data)
        offsets = self._rows + rollouts.indptr[1:]
        for digest, values, kind in (
            (self._offsets, offsets, "<i8"),
            (self._tokens, rollouts.tokens, "<i4"),
            (self._log_p, rollouts.log_p, "<f4"),
        ):
            digest.update(np.ascontiguousarray(values, kind).data)
        self._rows += rollouts.tokens.size

    def hexdigest(self) -> str:
        """Of what came so far, in hexadecimal."""
        digests = (self._ids, self._offsets, self._tokens, self._log_p)
        return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


def fingerprint(rollouts: Rollouts) -> str:
    """Give the fingerprint of a store's rollouts: what a drafter was recorded against."""
    whole = Fingerprint()
    whole.add(rollouts)
    return whole.hexdigest()


def _checksum(manifest: Manifest) -> str:
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def manifest_bytes(manifest: Manifest) -> bytes:
    """Give a manifest as its file holds it."""
    return (json.dumps(manifest, indent=1) + "\n").encode()


def write_manifest(folder: Path, form: str, body: Mapping[str, Any]) -> None:
    """Write a folder's manifest, with a checksum of its own; the caller has written everything else.

    Raises
    ------
    ValueError
        If it takes more bytes than a reader accepts.
    """
    manifest = {"format": form, "schema_version": SCHEMA_VERSION, **body}
    manifest["checksum"] = _checksum(manifest)
    path, data = folder / MANIFEST, manifest_bytes(manifest)
    if len(data) > LARGEST_MANIFEST:
        raise ValueError(f"{path}: found {len(data)} bytes; allowed: {LARGEST_MANIFEST}: the metadata are too large")
    path.write_bytes(data)
    sync(path)


def read_manifest(folder: Path, form: str) -> Manifest:
    """Read and check a folder's manifest.

    Raises
    ------
    ValueError
        If it is absent, no JSON, of another format or schema version, edited, damaged, incomplete or impossible.
    """
    path = folder / MANIFEST
    try:
        manifest = _load(path)
        _check_form(manifest, form, path)
        _check_facts(manifest, form, path)
    except FileNotFoundError:
        if not os.path.lexists(folder):
            raise ValueError(f"{folder}: does not exist; allowed: the folder of a {form}") from None
        raise ValueError(f"{folder}: no {form}: {MANIFEST} is missing") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: no valid JSON: {error}") from error
    checked: Manifest = manifest
    return checked


def _load(path: Path) -> Any:
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{path}: found no regular file; allowed: a manifest")
    if facts.st_size > LARGEST_MANIFEST:
        raise ValueError(f"{path}: found {facts.st_size} bytes; allowed: {LARGEST_MANIFEST}: this is no manifest")
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: no valid JSON: {error}") from error


def replaced(folder: Path, manifest: Manifest) -> bool:
    """Whether another sound manifest has taken the place of ``manifest``."""
    try:
        return bool(read_manifest(folder, manifest["format"])["checksum"] != manifest["checksum"])
    except ValueError:
        return False


def _check_form(manifest: Any, form: str, path: Path) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != form:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise ValueError(f"{path}: found format {found!r}; allowed: {form!r}")
    found = manifest.get("schema_version")
    if not _whole(found) or found != SCHEMA_VERSION:
        raise ValueError(f"{path}: found schema_version {found!r}; allowed: {SCHEMA_VERSION}")
    if "checksum" not in manifest:
        raise ValueError(f"{path}: checksum: found nothing; allowed: the SHA-256 of the rest, as data/README.md says")
    if manifest["checksum"] != _checksum(manifest):
        raise ValueError(f"{path}: its checksum differs from its content: damaged, or edited by hand")


def _check_facts(manifest: Manifest, form: str, path: Path) -> None:
    for key, kinds in _KEYS[form].items():
        value = manifest.get(key)
        if key not in manifest or type(value) not in kinds or (type(value) is int and not _whole(value)):
            found = repr(value) if key in manifest else "nothing"
            raise ValueError(f"{path}: {key}: found {found}; allowed: {' or '.join(_TYPES[kind] for kind in kinds)}")
    if form == DRAFTER_FORMAT:
        _check_kind(manifest["kind"], manifest["depth"], path)
        plain(manifest["metadata"], f"{path}: metadata")
    else:
        checked_metadata(manifest["metadata"], f"{path}: metadata")
    for name, entry in manifest["parts"].items():
        _check_entry(entry, f"{path}: part {name!r}")
    if _NEEDED[form] not in manifest["parts"]:
        raise ValueError(f"{path}: part {_NEEDED[form]!r} is missing")


def _whole(value: Any, largest: int = _LARGEST) -> bool:
    return type(value) is int and 0 <= value <= largest


def _check_kind(kind: str, depth: int | None, path: Path) -> None:
    if kind not in get_args(Kind):
        raise ValueError(f"{path}: found kind {kind!r}; allowed: {', '.join(get_args(Kind))}")
    if (depth is None) != (kind == "autoregressive"):
        allowed = "null" if kind == "autoregressive" else "an integer >= 0"
        raise ValueError(f"{path}: found depth {depth!r} of kind {kind!r}; allowed: {allowed}")


def _check_entry(entry: Any, where: str) -> None:
    try:
        for name, sizes in entry["columns"].items():
            if type(sizes) is not list or not all(_whole(n, ABSENT) for n in sizes) or math.prod(sizes) > ABSENT:
                raise ValueError(
                    f"{where}: {name}: found sizes {sizes!r}; allowed: a list of integers >= 0, at most {ABSENT} "
                    "values for each position"
                )
        if not entry["files"]:
            raise ValueError(f"{where}: found no files; allowed: one or more")
        for file in entry["files"]:
            kinds = PurePosixPath(file["path"]), PureWindowsPath(file["path"])
            if any(path.anchor or ".." in path.parts for path in kinds):
                raise ValueError(f"{where}: found path {file['path']!r}; allowed: a path inside the folder")
            if not (_whole(file["bytes"]) and _whole(file["rows"]) and type(file["sha256"]) is str):
                raise ValueError(f"{where}: found file entry {file!r}; allowed: bytes, rows, sha256")
        covers, rows = entry.get("covers"), sum(file["rows"] for file in entry["files"])
        if "covers" in entry and not (_whole(covers) and covers == rows):
            raise ValueError(f"{where}: found covers {covers!r}; allowed: {rows}, the rows of its files")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{where}: incomplete entry: {error!r}") from error
