"""Manifests: what a folder holds, with sizes, hashes and fingerprints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from markov_spec.arrays import Rollouts
from markov_spec.store.files import sync
from markov_spec.store.schema import DRAFTER_FORMAT, SCHEMA_VERSION, STORE_FORMAT

MANIFEST = "manifest.json"
Manifest = dict[str, Any]

_KEYS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    STORE_FORMAT: {"fingerprint": str, "rollouts": int, "positions": int, "metadata": dict, "parts": dict},
    DRAFTER_FORMAT: {
        "name": str,
        "kind": str,
        "rule": str,
        "depth": (int, type(None)),
        "target_fingerprint": str,
        "metadata": dict,
        "parts": dict,
    },
}


def fingerprint(rollouts: Rollouts) -> str:
    """SHA-256 over ids, offsets, tokens and log-probabilities: what a drafter was recorded against."""
    digest = hashlib.sha256(len(rollouts).to_bytes(8, "little"))
    for name in rollouts.ids:
        digest.update(len(name.encode()).to_bytes(8, "little") + name.encode())
    for values, kind in ((rollouts.indptr, "<i8"), (rollouts.tokens, "<i4"), (rollouts.log_p, "<f4")):
        digest.update(values.astype(kind).tobytes())
    return digest.hexdigest()


def _checksum(manifest: Manifest) -> str:
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: Path, form: str, body: Mapping[str, Any]) -> None:
    """Write a folder's manifest, with a checksum of its own; the caller has written everything else."""
    manifest = {"format": form, "schema_version": SCHEMA_VERSION, **body}
    manifest["checksum"] = _checksum(manifest)
    path = folder / MANIFEST
    path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    sync(path)


def read_manifest(folder: Path, form: str) -> Manifest:
    """Read and check a folder's manifest.

    Raises
    ------
    ValueError
        If it is absent, no JSON, of another format or schema version, edited, damaged or incomplete.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{folder}: no {form}: {MANIFEST} is missing") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no valid JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != form:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise ValueError(f"{path}: found format {found!r}; allowed: {form!r}")
    if manifest.get("schema_version") != SCHEMA_VERSION:
        found = manifest.get("schema_version")
        raise ValueError(f"{path}: found schema_version {found!r}; allowed: {SCHEMA_VERSION}")
    if manifest.get("checksum") != _checksum(manifest):
        raise ValueError(f"{path}: its checksum differs from its content: damaged, or edited by hand")
    for key, kind in _KEYS[form].items():
        if not isinstance(manifest.get(key), kind):
            raise ValueError(f"{path}: {key}: found {manifest.get(key)!r}; allowed: {kind}")
    for name, entry in manifest["parts"].items():
        _check_entry(entry, f"{path}: part {name!r}")
    return manifest


def _check_entry(entry: Any, where: str) -> None:
    try:
        for sizes in entry["columns"].values():
            if not all(isinstance(n, int) and n >= 0 for n in sizes):
                raise ValueError(f"{where}: found sizes {sizes!r}; allowed: a list of integers >= 0")
        if not entry["files"]:
            raise ValueError(f"{where}: found no files; allowed: one or more")
        for file in entry["files"]:
            path = PurePosixPath(file["path"])
            if path.is_absolute() or ".." in path.parts:
                raise ValueError(f"{where}: found path {file['path']!r}; allowed: a path inside the folder")
            if not all(isinstance(file[key], kind) for key, kind in (("bytes", int), ("rows", int), ("sha256", str))):
                raise ValueError(f"{where}: found file entry {file!r}; allowed: bytes, rows, sha256")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{where}: incomplete entry: {error!r}") from error
