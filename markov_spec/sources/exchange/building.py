"""The second reading of files that were found sound: lines to batches of a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from markov_spec.arrays import Array, Drafts, Rollouts
from markov_spec.sources.exchange.faults import Log
from markov_spec.sources.exchange.headers import Columns, DraftsHeader, Header, column_fields
from markov_spec.sources.exchange.lines import Moved
from markov_spec.sources.exchange.names import read_again
from markov_spec.sources.exchange.rows import Generated, RolloutRow, read_draft, read_rollout
from markov_spec.store import Store, StoreWriter, open_store
from markov_spec.store.manifest import Fingerprint
from markov_spec.store.schema import DRAFTER_PARTS, TARGET_PARTS, Part
from markov_spec.store.values import COVERED

BATCH_POSITIONS = 16_384
T = TypeVar("T")
Row = Mapping[str, Array]


@dataclass(frozen=True)
class DraftsFile:
    """A file of drafts, and the line of each rollout in it."""

    path: Path
    header: DraftsHeader
    lines: Mapping[str, int]


def build(
    out: Path,
    header: Header,
    rollouts: Mapping[str, Generated],
    drafters: Sequence[DraftsFile],
    *,
    whole: bool,
    overwrite: bool,
    log: Log,
    moved: Callable[[Path], Moved],
) -> Store:
    """Write the store of these rollouts, in their order, and of these drafters, which have lines for all of them.

    Raises
    ------
    ValueError
        If a file has changed, or (strict, and the rollouts are ``whole``) is not the one that was exported.
    """
    source = Path(header.line.file)
    with StoreWriter(out, metadata=header.metadata, overwrite=overwrite) as writer:
        mark = Fingerprint()
        for rows in _chunks(_rollouts(source, rollouts, header, moved(source)), lambda row: row.log_p.size):
            batch = _batch(rows)
            mark.add(batch)
            writer.add_rollouts(
                rollout_ids=batch.ids,
                prompt_ids=batch.prompt_ids,
                tokens=batch.tokens,
                indptr=batch.indptr,
                log_p=batch.log_p,
                prompt_tokens=batch.prompt_tokens,
                benchmarks=batch.benchmarks,
                finish_reasons=batch.finish_reasons,
                turns=batch.turns,
                parts=_stacked(header.columns, [row.columns for row in rows], TARGET_PARTS),
            )
        _check_marks(header, drafters, mark.hexdigest(), whole, log)
        for one in drafters:
            for drafts in _drafts(one, rollouts, moved(one.path)):
                writer.add_drafts(drafts)
    return open_store(out)


def _rollouts(path: Path, kept: Mapping[str, Generated], header: Header, moved: Moved) -> Iterator[RolloutRow]:
    told = Log("lenient")  # all was told at the first reading
    for name, line in read_again(path, {name: rollout.line for name, rollout in kept.items()}, moved):
        yield read_rollout(line, name, header, told)


def _drafts(one: DraftsFile, kept: Mapping[str, Generated], moved: Moved) -> Iterator[Drafts]:
    told, header = Log("lenient"), one.header
    lines = read_again(one.path, {name: one.lines[name] for name in kept}, moved)
    rows = ((name, read_draft(line, kept[name], header, told)) for name, line in lines)
    for chunk in _chunks(_in_order(rows, list(kept)), lambda row: kept[row[0]].tokens.size):
        parts = _stacked(header.columns, [columns for _, columns in chunk], DRAFTER_PARTS)
        law = parts.pop("law")
        names = [name for name, _ in chunk]
        indptr = np.cumsum([0, *(kept[name].tokens.size for name in names)])
        yield Drafts(
            header.name,
            header.kind,
            header.rule,
            law["log_q"],
            law.get("rank"),
            law.get("drafted"),
            names,
            indptr,
            parts,
            header.metadata,
        )


def _chunks(rows: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Cut rows into lists of bounded size, one at least."""
    chunk: list[T] = []
    total, some = 0, False
    for row in rows:
        chunk.append(row)
        total += size(row)
        if total >= BATCH_POSITIONS:
            yield chunk
            chunk, total, some = [], 0, True
    if chunk or not some:
        yield chunk


def _in_order(rows: Iterable[tuple[str, T]], order: Sequence[str]) -> Iterator[tuple[str, T]]:
    """Hold rows until those before them have come."""
    waiting: dict[str, T] = {}
    place = 0
    for name, row in rows:
        waiting[name] = row
        while place < len(order) and order[place] in waiting:
            yield order[place], waiting.pop(order[place])
            place += 1


def _batch(rows: Sequence[RolloutRow]) -> Rollouts:
    own = [row.generated for row in rows]
    return Rollouts(
        [g.id for g in own],
        [row.prompt_id for row in rows],
        [row.benchmark for row in rows],
        [g.prompt for g in own],
        np.concatenate([np.zeros(0, np.int32), *(g.tokens for g in own)]),
        np.concatenate([np.zeros(0, np.float32), *(row.log_p for row in rows)]),
        np.cumsum([0, *(g.tokens.size for g in own)]),
        [row.finish_reason for row in rows],
        [row.turn for row in rows],
    )


def _stacked(columns: Columns, rows: Sequence[Row], parts: Mapping[str, Part]) -> dict[str, dict[str, Array]]:
    """Lay the columns of rows one below the other, by part; lists may lack rollouts, and say so."""
    known, stacked = column_fields(parts), dict[str, dict[str, Array]]()
    for given, sizes in columns.items():
        field = "log_q" if given == "hit" else given
        part, _, name = field.rpartition(".")
        none = np.empty((0, *sizes), dtype=known[field].type.to_pandas_dtype())
        values = [row[field] for row in rows if field in row]
        stacked.setdefault(part or "law", {})[name] = np.concatenate([none, *values])
    if "lists" in stacked:
        stacked["lists"][COVERED] = np.array(["lists.ids" in row for row in rows], dtype=bool)
    return stacked


def _check_marks(header: Header, drafters: Sequence[DraftsFile], mark: str, whole: bool, log: Log) -> None:
    """Compare the fingerprint that files state with the rollouts'; drafts were compared with a stated one before."""
    stated = [("rollouts_fingerprint", one.header) for one in drafters]
    for field, own in stated if header.mark is None else [("fingerprint", header)]:
        if own.mark is None or own.mark == mark:
            continue
        if whole:
            log.error(own.line.error(field, f"found {own.mark}; the rollouts give {mark}: edited, or reordered"))
        else:
            log.note(f"{own.line.file}: {field} was not compared, since rollouts were left out")
