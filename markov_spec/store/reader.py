"""Reading a store."""

from __future__ import annotations

import copy
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from markov_spec.arrays import Array, Drafts, Rollouts
from markov_spec.store.files import list_values
from markov_spec.store.folder import Folder, ReplacedError
from markov_spec.store.opening import drafter_folder, drafter_names, target_folder
from markov_spec.store.schema import FIXED_SCHEMAS

# Another process may replace what is being opened; that it does so each time is unlikely.
OPENING_TRIES = 3


class Store:
    """A store on disk: what the target said, and what each drafter would have said. Opened by ``open_store``.

    Nothing is read before it is asked for. Reading uses no thread pool, so forked workers may read, too. What is read
    is of the folders that were opened: once they were replaced, reading is a ValueError that says so.
    """

    def __init__(self, target: Folder, drafters: dict[str, Folder]) -> None:
        self._target = target
        self._drafters = drafters

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
    def index(self) -> tuple[tuple[str, ...], Array]:
        """Rollout ids (R,) and row offsets (R+1,) int64."""
        table = self._target.tables("rollouts", ["rollout_id", "tokens"])
        _, lengths = list_values(table["tokens"], f"{self.path}: tokens")
        return tuple(table["rollout_id"].to_pylist()), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

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
        names = FIXED_SCHEMAS["rollouts"].names
        table = self._target.tables("rollouts", names)
        where = f"{self.path}: rollouts"
        prompts, sizes = list_values(table["prompt_tokens"], where)
        tokens, lengths = list_values(table["tokens"], where)
        log_p, _ = list_values(table["log_p"], where)
        text = ("rollout_id", "prompt_id", "benchmark", "finish_reason", "turn")
        ids, prompt_ids, benchmarks, reasons, turns = (table[name].to_pylist() for name in text)
        read = np.split(prompts, np.cumsum(sizes)[:-1]) if ids else []
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return Rollouts(ids, prompt_ids, benchmarks, read, tokens, log_p, indptr, reasons, turns)

    def part(self, name: str) -> dict[str, Array]:
        """Read one of the target's optional parts.

        Parameters
        ----------
        name : {"divergence", "lists"}

        Returns
        -------
        dict of str to ndarray
            Column name -> (N,) or (N, M) values, float32 or int32.

        Raises
        ------
        ValueError
            If the part was not recorded, or is damaged.
        """
        if name not in self.parts:
            raise ValueError(
                f"{self.path}: the target has no part {name!r}; found: {', '.join(self.parts) or 'none'}; "
                f"record it by write_store(parts={{{name!r}: ...}})"
            )
        return self._target.arrays(name, *self.index)

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

    def drafter_part(self, name: str, part: str) -> dict[str, Array]:
        """Read one part of a drafter.

        Parameters
        ----------
        name : str
            One of ``drafters``.
        part : {"law", "divergence", "multi", "lists", "tree-rank"}

        Returns
        -------
        dict of str to ndarray
            Column name -> values with a row per position: (N,) or (N, K), and a last axis M in lists.

        Raises
        ------
        ValueError
            If there is no such drafter, the part was not recorded, or it is damaged.
        """
        folder = self._drafter(name)
        if part not in folder.names:
            raise ValueError(
                f"{self.path}: drafter {name!r} has no part {part!r}; found: {', '.join(folder.names)}; "
                f"record it by Drafts(..., parts={{{part!r}: ...}}) and add_drafter(..., overwrite=True)"
            )
        return folder.arrays(part, *self.index)

    def facts(self) -> dict[str, Any]:
        """Give what the manifests say, ready for JSON: target, sampling, sizes, drafters and parts.

        Returns
        -------
        dict
        """
        own = self._target.manifest
        return {
            "store": str(self.path),
            "schema_version": own["schema_version"],
            "fingerprint": own["fingerprint"],
            "rollouts": own["rollouts"],
            "tokens": own["positions"],
            "megabytes": round(sum(f.bytes for f in (self._target, *self._drafters.values())) / 1e6, 3),
            "target": {**self.metadata, "parts": list(self.parts)},
            "drafters": {
                name: {
                    **self._drafters[name].manifest["metadata"],
                    **{key: self._drafters[name].manifest[key] for key in ("kind", "rule", "depth")},
                    "parts": list(self.drafter_parts(name)),
                }
                for name in self.drafters
            },
        }

    def vocab(self) -> dict[int, str]:
        """Text of the token ids that occur; empty if none was recorded."""
        if "vocab" not in self._target.names:
            return {}
        table = self._target.tables("vocab", FIXED_SCHEMAS["vocab"].names)
        return dict(zip(table["token_id"].to_pylist(), table["text"].to_pylist(), strict=True))

    def _drafter(self, name: str) -> Folder:
        if name not in self._drafters:
            allowed = ", ".join(self.drafters) or "none, since none is recorded"
            raise ValueError(f"{self.path}: found no drafter {name!r}; allowed: {allowed}")
        return self._drafters[name]

    def __len__(self) -> int:
        return int(self._target.manifest["rollouts"])

    def __repr__(self) -> str:
        facts = self._target.manifest
        return (
            f"Store({str(self.path)!r}, {facts['rollouts']} rollouts, {facts['positions']} tokens, "
            f"drafters: {', '.join(self.drafters) or 'none'})"
        )


def open_target(path: str | Path) -> Store:
    """Open a store without its drafters, so that a damaged one can be replaced."""
    target = target_folder(path)
    for name in target.names:
        target.check_files(name)
    return Store(target, {})


def open_store(path: str | Path, *, verify: bool = False) -> Store:
    """Open a store: manifests, file sizes and footers are checked.

    Parameters
    ----------
    path : path-like
        The store's folder.
    verify : bool
        Compare the SHA-256 of every file with its manifest now. Otherwise files up to 256 MB are compared when they
        are first read, larger ones are not.

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
    store = open_target(path)
    drafters = {name: drafter_folder(store._target, name) for name in drafter_names(store.path)}
    for folder in drafters.values():
        for name in folder.names:
            folder.check_files(name)
    opened = Store(store._target, drafters)
    if verify:
        for folder in (opened._target, *drafters.values()):
            for name in folder.names:
                folder.check_hashes(name)
    return opened
