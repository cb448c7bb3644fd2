"""Parquet files of a part: written in row groups of bounded size, read without threads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from markov_spec.arrays import Array

# The format promises row groups of 8 MB uncompressed; list levels and page headers take part of it.
GROUP_BYTES = 7_000_000


def check_text(values: Sequence[str], where: str, keys: Sequence[Any] | None = None) -> None:
    """Refuse what is no text or what UTF-8 cannot hold, named by its key (or number)."""
    for i, value in enumerate(values):
        try:
            value.encode()
        except (AttributeError, UnicodeEncodeError):
            key = i if keys is None else keys[i]
            raise ValueError(f"{where} {key}: found {value!r}; allowed: text without lone surrogates") from None


def text_array(values: Sequence[str], where: str, keys: Sequence[Any] | None = None) -> Any:
    """Arrow strings, checked."""
    check_text(values, where, keys)
    return pa.array(values, pa.large_string())


def list_array(values: Array, offsets: Array) -> Any:
    """Arrow lists over flat values, 64-bit offsets, without a copy."""
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(values.reshape(-1)))


def write_file(root: Path, name: str, schema: Any, tables: Iterable[Any]) -> dict[str, Any]:
    """Write one Parquet file below ``root``, a row group per table; give its entry for the manifest."""
    path = root / name
    text = [field.name for field in schema if field.type == pa.large_string()]
    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=text) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
            rows += table.num_rows
    sync(path)
    return {"path": name, "bytes": path.stat().st_size, "rows": rows, "sha256": file_hash(path)}


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file, or (where the system can) a folder's entries, to the disk."""
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a Parquet file; a damaged one is a ValueError that names it."""
    try:
        with pq.ParquetFile(path, memory_map=False, pre_buffer=False) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: cannot be read as Parquet, truncated or damaged: {error}") from error


def row_groups(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    """Tables of a file's row groups, read in this thread only, so that forked workers cannot hang."""
    with opened(path) as file:
        for i in range(file.num_row_groups):
            yield file.read_row_group(i, columns=list(columns), use_threads=False)


def value_counts(path: Path) -> dict[str, int]:
    """Values of each column of a file by its footer, an empty list counted as one."""
    with opened(path) as file:
        groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
        return {name: sum(g.column(i).num_values for g in groups) for i, name in enumerate(file.schema_arrow.names)}


def list_values(column: Any, where: str) -> tuple[Array, Array]:
    """Flat values and the length of each list of a column."""
    if column.null_count:
        raise ValueError(f"{where}: found {column.null_count} null lists; allowed: none")
    chunks = column.chunks
    values = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in chunks]
    lengths = [np.diff(chunk.offsets.to_numpy()) for chunk in chunks]
    return np.concatenate(values), np.concatenate(lengths)
