"""One folder with a manifest, the target's or a drafter's: its files checked and its parts read."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from markov_spec.arrays import Array
from markov_spec.store.files import file_hash, list_values, opened, row_groups, value_counts
from markov_spec.store.manifest import MANIFEST, Manifest, replaced
from markov_spec.store.schema import FIXED_SCHEMAS, Part, find_part, part_schema
from markov_spec.store.values import trailing_sizes

# Parts up to this size are hashed when first read; larger ones only on demand.
HASHED_BYTES = 256_000_000


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
        self._hashed: set[Path] = set()
        self._check_sizes()

    def _check_sizes(self) -> None:
        rows = (self.target or self).manifest["positions"]
        for name in self.names:
            if self.target is None and name in FIXED_SCHEMAS:
                continue
            sizes, where = self.sizes(name), f"{self.root / MANIFEST}: {self.owner}"
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
            self._check_there(path, name)
            size = path.stat().st_size
            if size != entry["bytes"]:
                raise ValueError(f"{path}: found {size} bytes; allowed: {entry['bytes']}, by the manifest")
            with opened(path) as file:
                if not file.schema_arrow.equals(self.schema(name)):
                    raise ValueError(f"{path}: found schema {file.schema_arrow}; allowed: {self.schema(name)}")
                if file.metadata.num_rows != entry["rows"]:
                    raise ValueError(f"{path}: found {file.metadata.num_rows} rows; allowed: {entry['rows']}")

    def check_hashes(self, name: str, limit: float = float("inf")) -> None:
        """Compare the SHA-256 of a part's files up to ``limit`` bytes with the manifest, once."""
        with self.reading():
            self._check_hashes(name, limit)

    def _check_hashes(self, name: str, limit: float) -> None:
        for path, entry in self.files(name):
            if path in self._hashed or entry["bytes"] > limit:
                continue
            self._check_there(path, name)
            found = file_hash(path)
            if found != entry["sha256"]:
                raise ValueError(f"{path}: found SHA-256 {found}; allowed: {entry['sha256']}: the file is damaged")
            self._hashed.add(path)

    def _check_there(self, path: Path, name: str) -> None:
        if not os.path.isfile(path):
            raise ValueError(f"{path}: missing; the manifest lists it in part {name!r} of the {self.owner}")

    def tables(self, name: str, columns: Sequence[str]) -> Any:
        """Row groups of a part as one Arrow table."""
        schema = pa.schema([self.schema(name).field(column) for column in columns])
        with self.reading():
            self._check_hashes(name, HASHED_BYTES)
            groups = [group for path, _ in self.files(name) for group in row_groups(path, columns)]
            return pa.concat_tables([schema.empty_table(), *groups])

    def chunks(self, name: str, ids: Sequence[str], indptr: Array) -> Iterator[tuple[int, int, dict[str, Array]]]:
        """First rollout, last rollout + 1 and columns of each row group of a part.

        Raises
        ------
        ValueError
            If a hash, an id or a length differs from the store's.
        """
        with self.reading():
            yield from self._chunks(name, ids, indptr)

    def _chunks(self, name: str, ids: Sequence[str], indptr: Array) -> Iterator[tuple[int, int, dict[str, Array]]]:
        self._check_hashes(name, HASHED_BYTES)
        sizes, lengths, row = self.sizes(name), np.diff(indptr), 0
        for path, _ in self.files(name):
            for group in row_groups(path, ["rollout_id", *sizes]):
                last = row + group.num_rows
                if group["rollout_id"].to_pylist() != list(ids[row:last]):
                    raise ValueError(f"{path}: rollout ids differ from the store's at rows {row} to {last - 1}")
                columns = {}
                for column, trailing in sizes.items():
                    flat, found = list_values(group[column], f"{path}: {column}")
                    wanted = lengths[row:last] * int(np.prod(trailing, dtype=np.int64))
                    if (found != wanted).any():
                        i = int(np.argmax(found != wanted))
                        raise ValueError(
                            f"{path}: {column}: rollout {ids[row + i]!r}: found {found[i]} values; allowed: {wanted[i]}"
                        )
                    columns[column] = flat.reshape(int(lengths[row:last].sum()), *trailing)
                yield row, last, columns
                row = last
        self._check_rollouts(name, row, len(ids))

    def _check_rollouts(self, name: str, found: int, wanted: int) -> None:
        if found != wanted:
            raise ValueError(f"{self.root}: part {name!r}: found {found} rollouts; allowed: {wanted}")

    def arrays(self, name: str, ids: Sequence[str], indptr: Array) -> dict[str, Array]:
        """Columns of a part with a row per position of the store."""
        with self.reading():
            self._check_counts(name, ids, int(indptr[-1]))
        out = {}
        for column, trailing in self.sizes(name).items():
            out[column] = np.empty((int(indptr[-1]), *trailing), self.parts[name][column].type.to_pandas_dtype())
        for first, last, columns in self.chunks(name, ids, indptr):
            for column, values in columns.items():
                out[column][indptr[first] : indptr[last]] = values
        return out

    def _check_counts(self, name: str, ids: Sequence[str], rows: int) -> None:
        """Compare the sizes with the footers before memory is taken for them."""
        self._check_hashes(name, HASHED_BYTES)
        counts = [value_counts(path) for path, _ in self.files(name)]
        self._check_rollouts(name, sum(count["rollout_id"] for count in counts), len(ids))
        for column, trailing in self.sizes(name).items():
            found, wanted = sum(count.get(column, 0) for count in counts), rows * math.prod(trailing)
            if found < wanted:
                raise ValueError(
                    f"{self.root}: part {name!r}: {column}: found {found} values; allowed: {wanted}, {rows} positions "
                    f"of sizes {trailing} by the manifest"
                )
