"""One folder with a manifest, the target's or a drafter's: its files checked and its parts read."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from markov_spec.arrays import Array
from markov_spec.store.files import file_hash, list_values, opened, pieces, value_counts
from markov_spec.store.manifest import MANIFEST, Manifest, replaced
from markov_spec.store.schema import FIXED_SCHEMAS, Part, find_part, part_schema
from markov_spec.store.values import PARTIAL_PARTS, trailing_sizes

# Files up to this size are hashed when first read; larger ones only on demand.
HASHED_BYTES = 256_000_000
# The same where only some rollouts are read: hashing more would cost more than reading them.
RANGE_HASHED_BYTES = 4_000_000


# Nanoseconds; the coarsest clock of a file system ticks every two seconds.
CLOCK_TICK = 2_000_000_000


class ReplacedError(ValueError):
    """Another folder has taken the place of the one that was opened."""


class Folder:
    """Parts of one manifest.

    ``parts`` holds the columns that each part may have; a drafter has a ``target``. ``owner`` is named in errors.

    Raises
    ------
    ValueError
        If the manifest has a part or column that is none, or sizes that disagree with the axes.
    """

    def __init__(
        self, root: Path, manifest: Manifest, parts: Mapping[str, Part], owner: str, target: Folder | None = None
    ) -> None:
        self.root = root
        self.manifest = manifest
        self.parts = parts
        self.owner = owner
        self.target = target
        self._hashed: dict[Path, tuple[int, ...] | None] = {}
        self._places: dict[str, dict[str, int]] = {}
        self._check_sizes()

    def _check_sizes(self) -> None:
        rows = (self.target or self).manifest["positions"]
        for name in self.names:
            sizes, where = self.sizes(name), f"{self.root / MANIFEST}: {self.owner}"
            if self.partial(name) and name not in PARTIAL_PARTS:
                allowed = ", ".join(sorted(PARTIAL_PARTS))
                raise ValueError(f"{where}: part {name!r}: found covers; allowed: in {allowed} only")
            if self.target is None and name in FIXED_SCHEMAS:
                continue
            part = find_part(self.parts, name, list(sizes), where)
            shapes = {column: (rows, *trailing) for column, trailing in sizes.items()}
            trailing_sizes(part, shapes, rows, self.manifest.get("depth"), f"{where}: {name}")

    def check_current(self) -> None:
        """Refuse to go on if another folder has taken the place of the one that was opened."""
        if replaced(self.root, self.manifest):
            what = "" if self.target is None else f"{self.owner} of "
            raise ReplacedError(f"{self.root}: {what}the store was replaced since it was opened; open it again")
        if self.target is not None:
            self.target.check_current()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What is read is of the folder that was opened; an error of reading is a ValueError."""
        try:
            yield
        except (OSError, ValueError) as error:
            self.check_current()
            if isinstance(error, ValueError):
                raise
            raise ValueError(f"{self.root}: cannot be read: {error}") from error
        self.check_current()

    @property
    def names(self) -> tuple[str, ...]:
        """Parts that the manifest lists, sorted."""
        return tuple(sorted(self.manifest["parts"]))

    @property
    def bytes(self) -> int:
        """Size of all parts together, by the manifest."""
        return sum(int(entry["bytes"]) for name in self.names for _, entry in self.files(name))

    def sizes(self, name: str) -> dict[str, list[int]]:
        """Columns of a part with their sizes after the position."""
        sizes: dict[str, list[int]] = self.manifest["parts"][name]["columns"]
        return sizes

    def schema(self, name: str) -> Any:
        """Arrow schema that the part's files must have."""
        if name in FIXED_SCHEMAS:
            return FIXED_SCHEMAS[name]
        columns = list(self.sizes(name))
        return part_schema(find_part(self.parts, name, columns, self.owner), columns)

    def files(self, name: str) -> list[tuple[Path, Manifest]]:
        """Files of a part with their manifest entries."""
        return [(self.root / file["path"], file) for file in self.manifest["parts"][name]["files"]]

    def check_files(self, name: str) -> None:
        """Compare sizes, footers, schemas and row counts of a part with the manifest."""
        with self.reading():
            self._check_files(name)

    def _check_files(self, name: str) -> None:
        for path, entry in self.files(name):
            self._check_there(path, entry, name)
            with opened(path) as file:
                if not file.schema_arrow.equals(self.schema(name)):
                    raise ValueError(f"{path}: found schema {file.schema_arrow}; allowed: {self.schema(name)}")
                if file.metadata.num_rows != entry["rows"]:
                    raise ValueError(f"{path}: found {file.metadata.num_rows} rows; allowed: {entry['rows']}")

    def check_hashes(self, name: str, limit: float = float("inf")) -> None:
        """Compare the SHA-256 of a part's files up to ``limit`` bytes with the manifest, once; again if one changed."""
        with self.reading():
            for path, entry in self.files(name):
                if path not in self._hashed and entry["bytes"] > limit:
                    continue
                facts, now = self._check_there(path, entry, name), time.time_ns()
                mark = facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino
                if self._hashed.get(path) == mark:
                    continue
                found = file_hash(path)
                if found != entry["sha256"]:
                    raise ValueError(f"{path}: found SHA-256 {found}; allowed: {entry['sha256']}: the file is damaged")
                # A file may change again within the tick of the clock that its times are taken from.
                self._hashed[path] = mark if now - max(mark[:2]) > CLOCK_TICK else None

    def check_before_reading(self, name: str, *, whole: bool) -> None:
        """Compare the SHA-256 of files that are small enough, by whether all rollouts are to be read or some."""
        self.check_hashes(name, HASHED_BYTES if whole else RANGE_HASHED_BYTES)

    def _check_there(self, path: Path, entry: Manifest, name: str) -> os.stat_result:
        if not os.path.isfile(path):
            raise ValueError(f"{path}: missing; the manifest lists it in part {name!r} of the {self.owner}")
        facts = path.stat()
        if facts.st_size != entry["bytes"]:
            raise ValueError(f"{path}: found {facts.st_size} bytes; allowed: {entry['bytes']}, by the manifest")
        return facts

    def rows(self, name: str) -> int:
        """Rollouts of a part, by the manifest, which agrees with the footers."""
        return sum(int(entry["rows"]) for _, entry in self.files(name))

    def partial(self, name: str) -> bool:
        """Whether a part may lack rollouts."""
        return "covers" in self.manifest["parts"][name]

    def pieces(self, name: str, columns: Sequence[str], first: int = 0, last: int | None = None) -> Iterator[Any]:
        """Rows ``first..last-1`` of a part in small Arrow tables; row groups without them are not read."""
        with self.reading():
            for _, _, piece in self._pieces(name, columns, first, self.rows(name) if last is None else last):
                yield piece

    def _pieces(self, name: str, columns: Sequence[str], first: int, last: int) -> Iterator[tuple[Path, int, Any]]:
        for path, low, high, row in self._spans(name, first, last):
            for piece in pieces(path, columns, low, high):
                yield path, row, piece
                row += piece.num_rows

    def _spans(self, name: str, first: int, last: int) -> Iterator[tuple[Path, int, int, int]]:
        """Files that hold rows ``first..last-1`` of a part, which of their rows do, and the part's row of the first."""
        row = 0
        for path, entry in self.files(name):
            low, high = max(first - row, 0), min(last - row, entry["rows"])
            if low < high:
                yield path, low, high, row + low
            row += entry["rows"]

    def tables(self, name: str, columns: Sequence[str], first: int = 0, last: int | None = None) -> Any:
        """Rows ``first..last-1`` of a part as one Arrow table."""
        schema = pa.schema([self.schema(name).field(column) for column in columns])
        return pa.concat_tables([schema.empty_table(), *self.pieces(name, columns, first, last)])

    def covered(self, name: str, ids: Sequence[str]) -> tuple[Array, int]:
        """Which of consecutive rollouts of the store a partial part holds, and its row of the first of them.

        Raises
        ------
        ValueError
            If the part holds them in another order, or (where ``ids`` are all) others.
        """
        where, rows = f"{self.root}: part {name!r}", self.rows(name)
        if name not in self._places:
            read = (piece["rollout_id"].to_pylist() for piece in self.pieces(name, ["rollout_id"]))
            self._places[name] = {rollout: row for row, rollout in enumerate(chain.from_iterable(read))}
        places = self._places[name]
        if len(places) < rows:
            raise ValueError(f"{where}: found {rows} rollouts, {len(places)} different ones; allowed: each once")
        found = np.array([places.get(rollout, -1) for rollout in ids], dtype=np.int64)
        kept = found >= 0
        count, first = int(kept.sum()), int(found[kept][0]) if kept.any() else 0
        if (found[kept] != np.arange(first, first + count)).any():
            raise ValueError(f"{where}: rollout ids stand in another order than the store's")
        if len(ids) == self._store_rows and count < rows:
            raise ValueError(f"{where}: found {rows} rollouts; allowed: {count}, those that the store has")
        return kept, first

    @property
    def _store_rows(self) -> int:
        return (self.target or self).rows("rollouts")

    def chunks(
        self, name: str, ids: Sequence[str], indptr: Array, start: int = 0
    ) -> Iterator[tuple[int, int, dict[str, Array]]]:
        """First and last + 1 of rollouts ``ids``, and their columns, for each piece of a part.

        ``ids`` stand from row ``start`` of the part on.

        Raises
        ------
        ValueError
            If an id or a length differs from the store's.
        """
        with self.reading():
            self._check_rollouts(name)
            yield from self._chunks(name, ids, indptr, start)

    def _chunks(
        self, name: str, ids: Sequence[str], indptr: Array, start: int
    ) -> Iterator[tuple[int, int, dict[str, Array]]]:
        sizes, lengths = self.sizes(name), np.diff(indptr)
        for path, row, piece in self._pieces(name, ["rollout_id", *sizes], start, start + len(ids)):
            first, last = row - start, row - start + piece.num_rows
            if piece["rollout_id"].to_pylist() != list(ids[first:last]):
                raise ValueError(f"{path}: rollout ids differ from the store's at rows {row} to {start + last - 1}")
            columns = {}
            for column, trailing in sizes.items():
                flat, found = list_values(piece[column], f"{path}: {column}")
                wanted = lengths[first:last] * int(np.prod(trailing, dtype=np.int64))
                if (found != wanted).any():
                    i = int(np.argmax(found != wanted))
                    raise ValueError(
                        f"{path}: {column}: rollout {ids[first + i]!r}: found {found[i]} values; allowed: {wanted[i]}"
                    )
                columns[column] = flat.reshape(int(lengths[first:last].sum()), *trailing)
            yield first, last, columns

    def _check_rollouts(self, name: str) -> None:
        found, wanted = self.rows(name), self._store_rows
        if found != wanted and not self.partial(name):
            raise ValueError(f"{self.root}: part {name!r}: found {found} rollouts; allowed: {wanted}")

    def arrays(self, name: str, ids: Sequence[str], indptr: Array, start: int = 0) -> dict[str, Array]:
        """Columns of a part with a row per position of rollouts ``ids``, which stand from its row ``start`` on."""
        with self.reading():
            self._check_rollouts(name)
            self._check_counts(name, start, start + len(ids), int(indptr[-1]))
        out = {}
        for column, trailing in self.sizes(name).items():
            out[column] = np.empty((int(indptr[-1]), *trailing), self.parts[name][column].type.to_pandas_dtype())
        for first, last, columns in self.chunks(name, ids, indptr, start):
            for column, values in columns.items():
                out[column][indptr[first] : indptr[last]] = values
        return out

    def _check_counts(self, name: str, first: int, last: int, rows: int) -> None:
        """Compare the sizes with the footers before memory is taken for them."""
        counts = [value_counts(path, low, high) for path, low, high, _ in self._spans(name, first, last)]
        for column, trailing in self.sizes(name).items():
            found, wanted = sum(count.get(column, 0) for count in counts), rows * math.prod(trailing)
            if found < wanted:
                raise ValueError(
                    f"{self.root}: part {name!r}: {column}: found {found} values; allowed: {wanted}, {rows} positions "
                    f"of sizes {trailing} by the manifest"
                )
