"""What a store holds: its facts, its parts by name, its vocabulary, and parts as lazy polars frames."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl

from markov_spec.arrays import RequestError
from markov_spec.store.folder import Folder
from markov_spec.store.schema import FIXED_SCHEMAS

# polars' threads do not survive a fork; a spawned process imports this anew.
_IMPORTED_BY = os.getpid()


def check_recorded(folder: Folder, part: str) -> None:
    """Refuse a part that was not recorded, or that is no array of positions."""
    names = [name for name in folder.names if name not in FIXED_SCHEMAS]
    if part not in names:
        advice = f"write_store(parts={{{part!r}: ...}})"
        if folder.target is not None:
            advice = f"Drafts(..., parts={{{part!r}: ...}}) and add_drafter(..., overwrite=True)"
        raise ValueError(
            f"{(folder.target or folder).root}: {'the ' * (folder.target is None)}{folder.owner} has no part {part!r}; "
            f"found: {', '.join(names) or 'none'}; record it by {advice}"
        )


def store_facts(target: Folder, drafters: dict[str, Folder]) -> dict[str, Any]:
    """Give what the manifests say, ready for JSON."""
    own = target.manifest
    return {
        "store": str(target.root),
        "schema_version": own["schema_version"],
        "fingerprint": own["fingerprint"],
        "rollouts": own["rollouts"],
        "tokens": own["positions"],
        "megabytes": round(sum(folder.bytes for folder in (target, *drafters.values())) / 1e6, 3),
        "target": {**own["metadata"], "parts": [name for name in target.names if name not in FIXED_SCHEMAS]},
        "drafters": {
            name: {
                **folder.manifest["metadata"],
                **{key: folder.manifest[key] for key in ("kind", "rule", "depth")},
                "parts": list(folder.names),
            }
            for name, folder in sorted(drafters.items())
        },
    }


def read_vocab(target: Folder) -> dict[int, str]:
    """Text of the token ids that occur; empty if none was recorded."""
    if "vocab" not in target.names:
        return {}
    target.check_before_reading("vocab", whole=True)
    table = target.tables("vocab", FIXED_SCHEMAS["vocab"].names)
    return dict(zip(table["token_id"].to_pylist(), table["text"].to_pylist(), strict=True))


def _source(path: Path, files: ExitStack) -> Path | BinaryIO:
    """The path, or the open file where the path is no UTF-8, which polars cannot take."""
    try:
        str(path).encode()
        return path
    except UnicodeEncodeError:
        return files.enter_context(path.open("rb"))


def scan_part(folder: Folder, part: str, ids: Sequence[str], first: int, *, whole: bool) -> pl.LazyFrame:
    """Give a part as a lazy frame, of rollouts ``ids``, which stand from number ``first`` on in the store.

    Raises
    ------
    RequestError
        In a process that was forked from one with polars in it.
    ValueError
        If there is no such part, or its file is damaged.
    """
    if os.getpid() != _IMPORTED_BY:
        raise RequestError(
            f"{folder.root}: scan in a forked process, where polars would wait for threads that are gone; allowed: a "
            "process of multiprocessing's 'spawn' context (multiprocessing_context='spawn' of a DataLoader), or the "
            "store's own readers, such as rollouts() and drafter_part(), which work after a fork"
        )
    if part not in folder.names:
        check_recorded(folder, part)
    folder.check_before_reading(part, whole=whole)
    with ExitStack() as files:  # polars takes a handle of its own on what is open
        sources: Any = [_source(path, files) for path, _ in folder.files(part)]
        frame = pl.scan_parquet(sources, glob=False)
    if part != "vocab":
        count = len(ids)
        if folder.partial(part):
            covered, first = folder.covered(part, ids)
            count = int(covered.sum())
        frame = frame.slice(first, count)
    for column, sizes in folder.sizes(part).items():
        if sizes and all(sizes):
            frame = frame.with_columns(pl.col(column).list.eval(pl.element().reshape((-1, *sizes))))
    return frame
