"""Reading a store."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from markov_spec.arrays import Array, Drafts, RequestError, Rollouts, check_integer, rollout_spans
from markov_spec.store.contents import check_recorded, read_vocab, scan_part, store_facts
from markov_spec.store.decode import Index, read_index, read_part, read_places, read_rollouts
from markov_spec.store.folder import Folder, ReplacedError
from markov_spec.store.opening import drafter_folder, drafter_names, target_folder
from markov_spec.store.schema import FIXED_SCHEMAS
from markov_spec.store.shown import store_html, store_line

# Another process may replace what is being opened; that it does so each time is unlikely.
OPENING_TRIES = 3


class Store:
    """A store on disk: what the target said, and what each drafter would have said. Opened by ``open_store``.

    Nothing is read before it is asked for. Reading uses no thread pool, so forked workers may read, too. What is read
    is of the folders that were opened: once they were replaced, reading is a ValueError that says so.

    A store of any size is read range by range: ``batch`` and ``batches`` give stores of some of its rollouts, whose
    ``rollouts``, ``drafter``, parts and ``index`` are those of that range; all else is the whole store's. Row groups
    (up to 8 MB of a part) that hold none of the range are not read. Pages carry checksums, which reading compares;
    files up to 256 MB are compared with their SHA-256, too, when they are first read whole, at once or by ``batches``,
    and files up to 4 MB when they are first read by ``batch``.

    A part ``lists`` may cover some of the rollouts: its values then have rows for the positions of those only, one
    after the other, and beside the columns stands ``covered`` (R,) bool, which tells them. It is written so, too: with
    ``covered`` among the columns, in the order of the given rollouts.
    """

    def __init__(
        self, target: Folder, drafters: dict[str, Folder], span: tuple[int, int] | None = None, *, whole: bool = True
    ) -> None:
        self._target = target
        self._drafters = drafters
        self._span = span
        self._whole = whole

    @property
    def path(self) -> Path:
        """The store's folder."""
        return self._target.root

    @property
    def metadata(self) -> dict[str, Any]:
        """What was recorded of model, tokenizer and sampling; a copy."""
        metadata: dict[str, Any] = copy.deepcopy(self._target.manifest["metadata"])
        return metadata

    @property
    def fingerprint(self) -> str:
        """SHA-256 over ids, offsets, tokens and log-probabilities."""
        return str(self._target.manifest["fingerprint"])

    @property
    def drafters(self) -> tuple[str, ...]:
        """Names of the drafters, sorted."""
        return tuple(sorted(self._drafters))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the target's optional parts, sorted."""
        return tuple(name for name in self._target.names if name not in FIXED_SCHEMAS)

    @cached_property
    def index(self) -> Index:
        """Rollout ids (R,) and row offsets (R+1,) int64."""
        self._target.check_before_reading("rollouts", whole=self._whole)
        return read_index(self._target, *self._rows)

    def batch(self, first: int, last: int) -> Store:
        """Give the store of rollouts ``first..last-1``; see the class.

        Parameters
        ----------
        first, last : int
            Numbers of rollouts, ``0 <= first <= last <= len(self)``.

        Returns
        -------
        Store

        Raises
        ------
        RequestError
            If there are no such rollouts.

        Examples
        --------
        >>> import tempfile, numpy as np, markov_spec as ms
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a", "b", "c"], prompt_ids=["p", "p", "q"],
        ...         tokens=np.array([5, 6, 7]), indptr=[0, 1, 2, 3], log_p=np.log([.5, .9, .4]))
        ...     (row,) = store.locate(["b"])
        ...     store.batch(row, row + 1).rollouts().tokens
        array([6], dtype=int32)
        """
        return self._batch(first, last, whole=False)

    def _batch(self, first: int, last: int, *, whole: bool) -> Store:
        check_integer(first, "first", 0)
        check_integer(last, "last", first)
        if last > len(self):
            raise RequestError(f"{self.path}: found rollouts {first} to {last - 1}; allowed: 0 to {len(self) - 1}")
        start = self._rows[0]
        return Store(self._target, self._drafters, (start + int(first), start + int(last)), whole=whole)

    def batches(self, positions: int = 1 << 20) -> Iterator[Store]:
        """Go through the rollouts, in stores of at most so many positions, of one rollout at least.

        Parameters
        ----------
        positions : int
            A block drafter's ``law`` of ``K = 16`` with ranks takes 128 MB at the default.

        Yields
        ------
        Store
            None where there are no rollouts.

        Raises
        ------
        ValueError
            If ``positions`` is no integer of 1 or more.

        Examples
        --------
        >>> import tempfile, numpy as np, markov_spec as ms
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a", "b", "c"], prompt_ids=["p", "p", "q"],
        ...         tokens=np.array([5, 6, 7]), indptr=[0, 1, 2, 3], log_p=np.log([.5, .9, .4]))
        ...     [batch.rollouts().ids for batch in store.batches(positions=2)]
        [('a', 'b'), ('c',)]
        """
        check_integer(positions, "positions", 1)
        ids, indptr = self.index
        for first, last in rollout_spans(indptr, 0, len(ids), positions):
            some = self._batch(first, last, whole=self._whole)
            some.index = ids[first:last], indptr[first : last + 1] - indptr[first]
            yield some

    def locate(self, ids: Sequence[str]) -> Array:
        """Give the numbers of rollouts, for ``batch``; only the ids are read.

        Parameters
        ----------
        ids : sequence of str

        Returns
        -------
        ndarray of int64

        Raises
        ------
        RequestError
            If the store has no such rollout.
        """
        self._target.check_before_reading("rollouts", whole=False)
        places = read_places(self._target, *self._rows)
        for name in ids:
            if name not in places:
                raise RequestError(f"{self.path}: found no rollout {name!r}; allowed: one of its {len(self)}")
        return np.array([places[name] for name in ids], dtype=np.int64)

    def rollouts(self) -> Rollouts:
        """Read the rollouts.

        Returns
        -------
        Rollouts
            In the store's order; ``log_p`` is float32.

        Raises
        ------
        ValueError
            If the file is damaged.
        """
        self._target.check_before_reading("rollouts", whole=self._whole)
        return read_rollouts(self._target, *self._rows)

    def part(self, name: str, *, complete: bool = False) -> dict[str, Array]:
        """Read one of the target's optional parts.

        Parameters
        ----------
        name : {"divergence", "lists"}
        complete : bool
            Refuse a part that lacks rollouts of this store.

        Returns
        -------
        dict of str to ndarray
            Column name -> (N,) or (N, M) values, float32 or int32; of the ``covered`` rollouts only where that key is.

        Raises
        ------
        ValueError
            If the part was not recorded, is damaged, or lacks rollouts though ``complete``.
        """
        return self._arrays(self._target, name, complete)

    def drafter(self, name: str) -> Drafts:
        """Read what a drafter would have drafted.

        Parameters
        ----------
        name : str
            One of ``drafters``.

        Returns
        -------
        Drafts
            Rows in the store's order, float32, with ``ids`` and ``indptr``; NaN (``ABSENT`` in ``rank``) past the ends
            of the rollouts. Optional parts are read by ``drafter_part``.

        Raises
        ------
        ValueError
            If there is no such drafter, or its file is damaged.
        """
        law = self.drafter_part(name, "law")
        facts = self._drafter(name).manifest
        ids, indptr = self.index
        rank, drafted = law.get("rank"), law.get("drafted")
        return Drafts(
            name, facts["kind"], facts["rule"], law["log_q"], rank, drafted, ids, indptr, metadata=facts["metadata"]
        )

    def drafter_parts(self, name: str) -> tuple[str, ...]:
        """Names of the parts recorded of a drafter, sorted; ``law`` is always there."""
        return self._drafter(name).names

    def drafter_part(self, name: str, part: str, *, complete: bool = False) -> dict[str, Array]:
        """Read one part of a drafter.

        Parameters
        ----------
        name : str
            One of ``drafters``.
        part : {"law", "divergence", "multi", "relaxed", "lists", "beam", "tree-rank"}
        complete : bool
            Refuse a part that lacks rollouts of this store.

        Returns
        -------
        dict of str to ndarray
            Column name -> values with a row per position: (N,) or (N, K), and a last axis M in lists; of the
            ``covered`` rollouts only where that key is.

        Raises
        ------
        ValueError
            If there is no such drafter, the part was not recorded, is damaged, or lacks rollouts though ``complete``.
        """
        return self._arrays(self._drafter(name), part, complete)

    def _arrays(self, folder: Folder, part: str, complete: bool) -> dict[str, Array]:
        check_recorded(folder, part)
        index = self.index
        folder.check_before_reading(part, whole=self._whole)
        return read_part(folder, part, index, self._rows[0], complete)

    def scan(self, part: str = "rollouts", *, drafter: str | None = None) -> pl.LazyFrame:
        """Give a part as a lazy polars frame, a row for each rollout; it is read when it is collected.

        Parameters
        ----------
        part : {"rollouts", "vocab"} or one of ``parts``, or of a drafter's ``drafter_parts``
        drafter : str, optional
            One of ``drafters``.

        Returns
        -------
        polars.LazyFrame
            An entry for each position in the columns' lists, of ``(K,)`` or ``(K, M)`` values where these axes are.

        Raises
        ------
        RequestError
            In a forked process, where polars hangs.
        ValueError
            If there is no such drafter or part, or its file is damaged.

        Examples
        --------
        >>> import tempfile, numpy as np, markov_spec as ms
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6]),
        ...         indptr=[0, 2], log_p=np.log([.5, .9]))
        ...     store.scan().select("rollout_id", "tokens").explode("tokens").collect().rows()
        [('a', 5), ('a', 6)]
        """
        folder = self._target if drafter is None else self._drafter(drafter)
        return scan_part(folder, part, self.index[0], self._rows[0], whole=self._whole)

    def facts(self) -> dict[str, Any]:
        """Give what the manifests say, ready for JSON: target, sampling, sizes, drafters and parts.

        Returns
        -------
        dict
        """
        return store_facts(self._target, self._drafters)

    def vocab(self) -> dict[int, str]:
        """Text of the token ids that occur; empty if none was recorded."""
        return read_vocab(self._target)

    def _drafter(self, name: str) -> Folder:
        if name not in self._drafters:
            allowed = ", ".join(self.drafters) or "none, since none is recorded"
            raise ValueError(f"{self.path}: found no drafter {name!r}; allowed: {allowed}")
        return self._drafters[name]

    @property
    def _rows(self) -> tuple[int, int]:
        return (0, self._target.rows("rollouts")) if self._span is None else self._span

    def __len__(self) -> int:
        first, last = self._rows
        return last - first

    def __repr__(self) -> str:
        return store_line(self)

    def _repr_html_(self) -> str:
        return store_html(self)


def open_target(path: str | Path, *, verify: bool = False) -> Store:
    """Open a store without its drafters, so that a damaged one can be replaced."""
    target = target_folder(path)
    _check(target, verify)
    return Store(target, {})


def _check(folder: Folder, verify: bool) -> None:
    for name in folder.names:
        if verify:  # before a footer is read, which a damaged one may not survive
            folder.check_hashes(name)
        folder.check_files(name)


def open_store(path: str | Path, *, verify: bool = False) -> Store:
    """Open a store: manifests, file sizes and footers are checked.

    Parameters
    ----------
    path : path-like
        The store's folder.
    verify : bool
        Compare the SHA-256 of every file with its manifest now. Otherwise files up to 256 MB are compared when they
        are first read whole, larger ones are not.

    Returns
    -------
    Store

    Raises
    ------
    ValueError
        If the folder is no store, of another schema version, incomplete or damaged, a drafter was recorded against
        other rollouts, or its replacement was cut off between two renames.
        ``markov_spec.store.check_integrity`` lists all that is wrong.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6]),
    ...         indptr=[0, 2], log_p=np.log([.5, .9]), metadata={"vocab_size": 8})
    ...     ms.open_store(f"{folder}/run", verify=True).metadata
    {'vocab_size': 8}
    """
    for _ in range(OPENING_TRIES):
        with suppress(ReplacedError):
            return _open(path, verify)
    return _open(path, verify)


def _open(path: str | Path, verify: bool) -> Store:
    store = open_target(path, verify=verify)
    drafters = {name: drafter_folder(store._target, name) for name in drafter_names(store.path)}
    for folder in drafters.values():
        _check(folder, verify)
    return Store(store._target, drafters)
