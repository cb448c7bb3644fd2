"""Parquet files of a part: written in row groups of bounded size, read without threads."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from markov_spec.arrays import Array

# The format promises row groups of 8 MB uncompressed; list levels and page headers take part of it.
GROUP_BYTES = 7_000_000
# What reading decodes at once.
PIECE_BYTES = 250_000
# Column chunks are read through buffers of this size, so that they are not in memory whole.
BUFFER_BYTES = 65_536


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


class GroupFile:
    """A Parquet file below ``root`` that is filled bit by bit; its row groups do not depend on the bits.

    Rows wait until a row group is full, so that no more than one is in memory.
    """

    def __init__(self, root: Path, name: str, schema: Any) -> None:
        self._path, self._name, self._rows = root / name, name, 0
        self._waiting: list[Any] = []
        self._bytes = 0
        text = [field.name for field in schema if field.type == pa.large_string()]
        self._file = _arrow_file(self._path, "wb")
        self._writer = pq.ParquetWriter(
            self._file, schema, compression="zstd", use_dictionary=text, write_page_checksum=True
        )

    def write(self, sizes: Array, encode: Callable[[int, int], Any]) -> None:
        """Append rows of ``sizes`` bytes; ``encode(first, last)`` gives the table of some, in memory of its own."""
        first = 0
        for i, size in enumerate(sizes.tolist()):
            if self._bytes + size > GROUP_BYTES and (i > first or self._waiting):
                self._append(first, i, encode)
                self._write_group()
                first = i
            self._bytes += size
        self._append(first, len(sizes), encode)

    def _append(self, first: int, last: int, encode: Callable[[int, int], Any]) -> None:
        if first < last:
            self._waiting.append(encode(first, last))

    def _write_group(self) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting).combine_chunks()
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._rows += table.num_rows
        self._waiting, self._bytes = [], 0

    def finish(self) -> dict[str, Any]:
        """Write what waits, and the footer; give the file's entry for the manifest."""
        self._write_group()
        self.close()
        sync(self._path)
        size = self._path.stat().st_size
        return {"path": self._name, "bytes": size, "rows": self._rows, "sha256": file_hash(self._path)}

    def close(self) -> None:
        """Let go of the file, finished or given up."""
        with self._file:
            self._writer.close()


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


def _arrow_file(path: Path, mode: str) -> Any:
    # As bytes: pyarrow encodes text as UTF-8, which a path need not be.
    return pa.OSFile(os.fsencode(path), mode)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a Parquet file; a damaged one is a ValueError that names it."""
    try:
        reading = {"memory_map": False, "pre_buffer": False, "buffer_size": BUFFER_BYTES}
        with _arrow_file(path, "rb") as own, pq.ParquetFile(own, page_checksum_verification=True, **reading) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as Parquet, truncated or damaged: {error}") from error


def _overlaps(file: Any, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Number of each row group that overlaps rows ``first..last-1`` of a file, and which of its own rows do."""
    row = 0
    for i in range(file.num_row_groups):
        rows = file.metadata.row_group(i).num_rows
        low, high = max(first - row, 0), min(last - row, rows)
        if low < high:
            yield i, low, high
        row += rows


def pieces(path: Path, columns: Sequence[str], first: int, last: int) -> Iterator[Any]:
    """Rows ``first..last-1`` of a file, in tables of about ``PIECE_BYTES``; row groups without them are not read.

    Read in this thread only, so that forked workers cannot hang.
    """
    with opened(path) as file:
        for i, low, high in _overlaps(file, first, last):
            group, row = file.metadata.row_group(i), 0
            size = max(1, group.num_rows * PIECE_BYTES // max(group.total_byte_size, 1))
            for batch in file.iter_batches(size, [i], list(columns), use_threads=False):
                here, row = row, row + batch.num_rows
                if low < row and here < high:
                    start = max(low - here, 0)
                    piece = pa.Table.from_batches([batch]).slice(start, min(high, row) - here - start)
                    piece.validate(full=True)  # text that is no UTF-8
                    yield piece
                if row >= high:
                    break


def value_counts(path: Path, first: int, last: int) -> dict[str, int]:
    """Values of each column in the row groups that hold rows ``first..last-1``, an empty list counted as one."""
    with opened(path) as file:
        groups = [file.metadata.row_group(i) for i, _, _ in _overlaps(file, first, last)]
        return {name: sum(g.column(i).num_values for g in groups) for i, name in enumerate(file.schema_arrow.names)}


def list_lengths(column: Any, where: str) -> Array:
    """Length of each list of a column."""
    if column.null_count:
        raise ValueError(f"{where}: found {column.null_count} null lists; allowed: none")
    return np.concatenate([np.zeros(0, np.int64), *(np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks)])


def list_values(column: Any, where: str) -> tuple[Array, Array]:
    """Flat values and the length of each list of a column."""
    lengths = list_lengths(column, where)
    return np.concatenate([chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]), lengths
