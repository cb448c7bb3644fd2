"""Arrays to Parquet files: rollouts, parts, the vocabulary and one drafter's folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from markov_spec.arrays import Array, Drafts, Rollouts
from markov_spec.store.align import source_starts
from markov_spec.store.files import GROUP_BYTES, list_array, text_array, write_file
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
from markov_spec.store.values import Columns, Rows, check_columns, spans, trailing_sizes


def _prompt_hash(prompt: Array) -> str:
    return hashlib.sha256(prompt.astype("<i4").tobytes()).hexdigest()


def _rollout_tables(rollouts: Rollouts) -> Iterator[Any]:
    reasons, turns = rollouts.finish_reasons or (), rollouts.turns or ()
    prompts = np.cumsum([0, *(p.size for p in rollouts.prompt_tokens)])
    sizes = 8 * np.diff(rollouts.indptr) + 4 * np.diff(prompts) + 128
    for column in (rollouts.ids, rollouts.prompt_ids, rollouts.benchmarks, reasons):
        sizes += np.array([4 * len(value) for value in column], dtype=np.int64)
    for first, last in spans(sizes, GROUP_BYTES):
        offsets = rollouts.indptr[first : last + 1]
        own, read = slice(int(offsets[0]), int(offsets[-1])), rollouts.prompt_tokens[first:last]
        columns = {
            "rollout_id": text_array(rollouts.ids[first:last], "rollout id"),
            "prompt_id": text_array(rollouts.prompt_ids[first:last], "prompt id"),
            "prompt_hash": text_array([_prompt_hash(p) for p in read], "prompt hash"),
            "prompt_tokens": list_array(np.concatenate(read), prompts[first : last + 1] - prompts[first]),
            "turn": pa.array(turns[first:last], pa.int32()),
            "benchmark": text_array(rollouts.benchmarks[first:last], "benchmark"),
            "tokens": list_array(rollouts.tokens[own], offsets - offsets[0]),
            "log_p": list_array(rollouts.log_p[own], offsets - offsets[0]),
            "finish_reason": text_array(reasons[first:last], "finish reason"),
        }
        yield pa.table(columns, schema=ROLLOUTS_SCHEMA)


def _part_tables(
    columns: Columns, part: Part, sizes: Mapping[str, Sequence[int]], rows: Rows, where: str
) -> Iterator[Any]:
    width = sum(int(np.prod(trailing, dtype=np.int64)) for trailing in sizes.values())
    schema = part_schema(part, list(columns))
    for first, last in spans(4 * width * np.diff(rows.indptr) + 64, GROUP_BYTES):
        some = replace(rows, first=first, last=last)
        values = check_columns({name: some.take(v) for name, v in columns.items()}, part, some, where)
        offsets = some.offsets - some.offsets[0]
        lists = {name: list_array(v, offsets * int(np.prod(v.shape[1:], dtype=np.int64))) for name, v in values.items()}
        yield pa.table({"rollout_id": text_array(rows.ids[first:last], "rollout id"), **lists}, schema=schema)


def _write_part(
    root: Path, prefix: str, name: str, given: Columns, parts: Mapping[str, Part], rows: Rows
) -> dict[str, Any]:
    part = find_part(parts, name, list(given), rows.owner)
    columns = {key: value if hasattr(value, "dtype") else np.asarray(value) for key, value in given.items()}
    where = f"{rows.owner}: {name}"
    shapes = {key: tuple(int(n) for n in value.shape) for key, value in columns.items()}
    sizes = trailing_sizes(part, shapes, int(rows.indptr[-1]), rows.depth, where)
    tables = _part_tables(columns, part, sizes, rows, where)
    file = write_file(root, f"{prefix}{name}-00000.parquet", part_schema(part, list(columns)), tables)
    return {"columns": sizes, "files": [file]}


def write_target(
    root: Path, rollouts: Rollouts, parts: Mapping[str, Columns], vocab_size: int | None
) -> dict[str, Any]:
    """Write the rollouts and the target's parts; give their manifest entries."""
    (root / "rollouts").mkdir()
    file = write_file(root, "rollouts/part-00000.parquet", ROLLOUTS_SCHEMA, _rollout_tables(rollouts))
    entries: dict[str, Any] = {"rollouts": {"columns": {}, "files": [file]}}
    rows = Rows("target", rollouts.ids, rollouts.indptr, None, 0, len(rollouts), vocab_size=vocab_size)
    for name, columns in parts.items():
        entries[name] = _write_part(root, "rollouts/", name, columns, TARGET_PARTS, rows)
    return entries


def write_vocab(root: Path, vocab: Mapping[int, str], occurring: set[int]) -> dict[str, Any]:
    """Write the text of the tokens that occur; give the manifest entry."""
    ids = sorted(occurring & vocab.keys())
    text = text_array([vocab[i] for i in ids], "vocab: token", ids)
    table = pa.table({"token_id": pa.array(ids, pa.int32()), "text": text}, schema=VOCAB_SCHEMA)
    return {"columns": {}, "files": [write_file(root, "vocab.parquet", VOCAB_SCHEMA, [table])]}


def write_drafter(folder: Path, drafts: Drafts, ids: Sequence[str], indptr: Array, target: str) -> None:
    """Fill a drafter's folder: its parts, then its manifest, which names the ``target`` fingerprint."""
    owner = f"drafter {drafts.name!r}"
    if "law" in drafts.parts:
        raise ValueError(f"{owner}: found part 'law' in parts; allowed: log_q, rank and drafted of the Drafts")
    starts, one_hot = source_starts(drafts, ids, indptr), drafts.rule == "match" and drafts.rank is None
    rows = Rows(owner, ids, indptr, drafts.depth, 0, len(ids), starts, one_hot=one_hot)
    law = {"log_q": drafts.log_q, "rank": drafts.rank, "drafted": drafts.drafted}
    parts = {"law": {key: value for key, value in law.items() if value is not None}, **drafts.parts}
    entries = {name: _write_part(folder, "", name, columns, DRAFTER_PARTS, rows) for name, columns in parts.items()}
    facts = {"name": drafts.name, "kind": drafts.kind, "rule": drafts.rule, "depth": drafts.depth}
    facts["metadata"] = plain(drafts.metadata, f"{owner}: metadata")
    write_manifest(folder, DRAFTER_FORMAT, {**facts, "target_fingerprint": target, "parts": entries})
