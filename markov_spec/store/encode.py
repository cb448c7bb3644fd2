"""Arrays to Parquet files, batch by batch: rollouts, parts, the vocabulary and one drafter's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from markov_spec.arrays import Array, Drafts, Rollouts
from markov_spec.store.align import Lengths, check_complete, count_rollouts, source_order
from markov_spec.store.files import GroupFile, list_array, text_array
from markov_spec.store.manifest import write_manifest
from markov_spec.store.metadata import plain
from markov_spec.store.schema import (
    DRAFTER_FORMAT,
    DRAFTER_PARTS,
    ROLLOUTS_SCHEMA,
    TARGET_PARTS,
    VOCAB_SCHEMA,
    Part,
    find_part,
    part_schema,
)
from markov_spec.store.values import (
    COVERED,
    PARTIAL_PARTS,
    Columns,
    Rows,
    check_columns,
    check_covered,
    trailing_sizes,
)


def _prompt_hash(prompt: Array) -> str:
    return hashlib.sha256(prompt.astype("<i4").tobytes()).hexdigest()


def _own_lists(values: Array, offsets: Array) -> Any:
    # The caller may fill its arrays anew while these rows wait for their row group to be full.
    return list_array(np.array(values), offsets)


def _open(root: Path, name: str, schema: Any, files: ExitStack) -> GroupFile:
    file = GroupFile(root, name, schema)
    files.callback(file.close)
    return file


def _write_rollouts(file: GroupFile, rollouts: Rollouts) -> None:
    reasons, turns = rollouts.finish_reasons or (), rollouts.turns or ()
    prompts = np.cumsum([0, *(p.size for p in rollouts.prompt_tokens)])
    sizes = 8 * np.diff(rollouts.indptr) + 4 * np.diff(prompts) + 128
    for column in (rollouts.ids, rollouts.prompt_ids, rollouts.benchmarks, reasons):
        sizes += np.array([4 * len(value) for value in column], dtype=np.int64)

    def encode(first: int, last: int) -> Any:
        offsets = rollouts.indptr[first : last + 1]
        own, read = slice(int(offsets[0]), int(offsets[-1])), rollouts.prompt_tokens[first:last]
        columns = {
            "rollout_id": text_array(rollouts.ids[first:last], "rollout id"),
            "prompt_id": text_array(rollouts.prompt_ids[first:last], "prompt id"),
            "prompt_hash": text_array([_prompt_hash(p) for p in read], "prompt hash"),
            "prompt_tokens": list_array(np.concatenate(read), prompts[first : last + 1] - prompts[first]),
            "turn": pa.array(turns[first:last], pa.int32()),
            "benchmark": text_array(rollouts.benchmarks[first:last], "benchmark"),
            "tokens": _own_lists(rollouts.tokens[own], offsets - offsets[0]),
            "log_p": _own_lists(rollouts.log_p[own], offsets - offsets[0]),
            "finish_reason": text_array(reasons[first:last], "finish reason"),
        }
        return pa.table(columns, schema=ROLLOUTS_SCHEMA)

    file.write(sizes, encode)


class _PartFile:
    """One part; its first batch settles columns and sizes."""

    def __init__(self, root: Path, path: str, name: str, spec: Part, columns: Columns, files: ExitStack) -> None:
        self._name, self._spec = name, spec
        self._schema = part_schema(spec, list(columns))
        self._file = _open(root, path, self._schema, files)
        self._sizes: dict[str, list[int]] | None = None
        self._rollouts = self._covered = 0

    def add(self, columns: dict[str, Any], covered: Any, rows: Rows) -> None:
        where, self._rollouts = f"{rows.owner}: {self._name}", self._rollouts + len(rows.ids)
        if covered is not None:
            rows = rows.only(check_covered(covered, len(rows.ids), where))
        self._covered += len(rows.ids)
        shapes = {key: tuple(int(n) for n in value.shape) for key, value in columns.items()}
        sizes = trailing_sizes(self._spec, shapes, int(rows.indptr[-1]), rows.depth, where)
        if self._sizes is None:
            self._sizes = sizes
        elif sizes != self._sizes:
            raise ValueError(f"{where}: found sizes {sizes}; allowed: {self._sizes}, as in the first batch")

        def encode(first: int, last: int) -> Any:
            some = replace(rows, first=first, last=last)
            taken = {key: some.take(value) for key, value in columns.items()}
            offsets, table = some.offsets - some.offsets[0], {}
            for key, values in check_columns(taken, self._spec, some, where).items():
                table[key] = _own_lists(values, offsets * int(np.prod(values.shape[1:], dtype=np.int64)))
            return pa.table(
                {"rollout_id": text_array(rows.ids[first:last], "rollout id"), **table}, schema=self._schema
            )

        width = sum(int(np.prod(trailing, dtype=np.int64)) for trailing in sizes.values())
        self._file.write(4 * width * np.diff(rows.indptr) + 64, encode)

    def finish(self) -> dict[str, Any]:
        entry = {"columns": self._sizes, "files": [self._file.finish()]}
        return entry if self._covered == self._rollouts else {**entry, "covers": self._covered}


class PartFiles:
    """The parts of one folder, filled batch by batch; ``prefix`` leads to their files below ``root``."""

    def __init__(self, root: Path, prefix: str, specs: Mapping[str, Part], files: ExitStack) -> None:
        self._root, self._prefix, self._specs, self._files = root, prefix, specs, files
        self._parts: dict[str, _PartFile] = {}
        self._begun = False

    def add(self, given: Mapping[str, Columns], rows: Rows) -> None:
        """Append the rows of a batch.

        Raises
        ------
        ValueError
            If its parts, columns or sizes are not those of the first one, or a value is out of range.
        """
        if self._begun and given.keys() != self._parts.keys():
            found, allowed = (", ".join(names) or "none" for names in (given, self._parts))
            raise ValueError(f"{rows.owner}: found parts {found}; allowed: {allowed}, as in the first batch")
        for name, values in given.items():
            columns = {key: value if hasattr(value, "dtype") else np.asarray(value) for key, value in values.items()}
            covered = columns.pop(COVERED, None) if name in PARTIAL_PARTS else None
            spec = find_part(self._specs, name, list(columns), rows.owner)
            if not self._begun:
                path = f"{self._prefix}{name}-00000.parquet"
                self._parts[name] = _PartFile(self._root, path, name, spec, columns, self._files)
            self._parts[name].add(columns, covered, rows)
        self._begun = True

    def finish(self) -> dict[str, Any]:
        """Give the parts' entries for the manifest."""
        return {name: part.finish() for name, part in self._parts.items()}


class TargetFiles:
    """The rollouts and the target's parts, filled batch by batch."""

    def __init__(self, root: Path, vocab_size: int | None, files: ExitStack) -> None:
        (root / "rollouts").mkdir()
        self._vocab_size = vocab_size
        self._rollouts = _open(root, "rollouts/part-00000.parquet", ROLLOUTS_SCHEMA, files)
        self._parts = PartFiles(root, "rollouts/", TARGET_PARTS, files)

    def add(self, rollouts: Rollouts, parts: Mapping[str, Columns]) -> None:
        """Append a batch."""
        _write_rollouts(self._rollouts, rollouts)
        rows = Rows("target", rollouts.ids, rollouts.indptr, None, 0, len(rollouts), vocab_size=self._vocab_size)
        self._parts.add(parts, rows)

    def finish(self) -> dict[str, Any]:
        """Give the entries for the manifest."""
        return {"rollouts": {"columns": {}, "files": [self._rollouts.finish()]}, **self._parts.finish()}


def write_vocab(root: Path, vocab: Mapping[int, str], occurring: set[int]) -> dict[str, Any]:
    """Write the text of the tokens that occur; give the manifest entry."""
    ids = sorted(occurring & vocab.keys())
    text = text_array([vocab[i] for i in ids], "vocab: token", ids)
    table = pa.table({"token_id": pa.array(ids, pa.int32()), "text": text}, schema=VOCAB_SCHEMA)
    with ExitStack() as files:
        file = _open(root, "vocab.parquet", VOCAB_SCHEMA, files)
        file.write(np.full(len(ids), 64), lambda first, last: table.slice(first, last - first))
        return {"columns": {}, "files": [file.finish()]}


class DrafterFiles:
    """One drafter's folder, filled batch by batch in the store's order."""

    def __init__(self, folder: Path, name: str, files: ExitStack) -> None:
        self._folder, self._owner = folder, f"drafter {name!r}"
        self._parts = PartFiles(folder, "", DRAFTER_PARTS, files)
        self._facts: dict[str, Any] | None = None
        self._rollouts = 0

    def add(self, drafts: Drafts, ids: Sequence[str], lengths: Lengths, *, whole: bool) -> None:
        """Append the drafts of the next of these rollouts, of all of them where ``whole``.

        Raises
        ------
        ValueError
            If these are no drafts of the next rollouts, or unlike the first batch.
        """
        if "law" in drafts.parts:
            raise ValueError(
                f"{self._owner}: found part 'law' in parts; allowed: log_q, rank and drafted of the Drafts"
            )
        self._check_facts(drafts)
        first = self._rollouts
        count = len(ids) if whole else count_rollouts(drafts, lengths, first)
        own = ids[first : first + count]
        indptr = np.concatenate([[0], np.cumsum(lengths[first : first + count])]).astype(np.int64)
        order = source_order(drafts, own, indptr, "the store lacks" if whole else "do not come next")
        one_hot = drafts.rule == "match" and drafts.rank is None
        unlisted = "lists" in drafts.parts
        rows = Rows(self._owner, own, indptr, drafts.depth, 0, count, order, one_hot=one_hot, unlisted=unlisted)
        law = {"log_q": drafts.log_q, "rank": drafts.rank, "drafted": drafts.drafted}
        self._parts.add({"law": {key: v for key, v in law.items() if v is not None}, **drafts.parts}, rows)
        self._rollouts += count

    def _check_facts(self, drafts: Drafts) -> None:
        facts = {"name": drafts.name, "kind": drafts.kind, "rule": drafts.rule, "depth": drafts.depth}
        facts["metadata"] = plain(drafts.metadata, f"{self._owner}: metadata")
        if self._facts is None:
            self._facts = facts
        for key, allowed in self._facts.items():
            if facts[key] != allowed:
                raise ValueError(
                    f"{self._owner}: {key}: found {facts[key]!r}; allowed: {allowed!r}, as in the first batch"
                )

    def finish(self, ids: Sequence[str], target: str) -> None:
        """Write the manifest, which names the ``target`` fingerprint; all rollouts ``ids`` must be there."""
        check_complete(ids[self._rollouts :], self._owner)
        write_manifest(
            self._folder,
            DRAFTER_FORMAT,
            {**(self._facts or {}), "target_fingerprint": target, "parts": self._parts.finish()},
        )


def write_drafter(
    folder: Path, name: str, batches: Iterable[Drafts], whole: bool, ids: Sequence[str], lengths: Lengths, target: str
) -> None:
    """Fill a drafter's folder, from one batch of all rollouts (``whole``) or from several."""
    with ExitStack() as files:
        drafter = DrafterFiles(folder, name, files)
        for drafts in batches:
            drafter.add(drafts, ids, lengths, whole=whole)
        drafter.finish(ids, target)
