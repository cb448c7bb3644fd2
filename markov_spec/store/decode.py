"""Parquet files to arrays: the rollouts, their index and a part, of some rollouts of the store."""

from __future__ import annotations

import numpy as np

from markov_spec.arrays import Array, Rollouts
from markov_spec.store.files import list_lengths, list_values
from markov_spec.store.folder import Folder
from markov_spec.store.schema import FIXED_SCHEMAS
from markov_spec.store.values import COVERED, Rows

Index = tuple[tuple[str, ...], Array]


def read_places(target: Folder, first: int, last: int) -> dict[str, int]:
    """Number of each of rollouts ``first..last-1``, by its id."""
    pieces = target.pieces("rollouts", ["rollout_id"], first, last)
    ids = [name for piece in pieces for name in piece["rollout_id"].to_pylist()]
    places = {name: i for i, name in enumerate(ids)}
    if len(places) < len(ids):
        twice = next(name for i, name in enumerate(ids) if places[name] != i)
        raise ValueError(f"{target.root}: rollouts: found id {twice!r} again; allowed: each once")
    return places


def read_index(target: Folder, first: int, last: int) -> Index:
    """Ids and row offsets of rollouts ``first..last-1``; no more than a piece of the tokens is in memory."""
    ids: list[str] = []
    lengths = [np.zeros(1, dtype=np.int64)]
    for piece in target.pieces("rollouts", ["rollout_id", "tokens"], first, last):
        ids += piece["rollout_id"].to_pylist()
        lengths.append(list_lengths(piece["tokens"], f"{target.root}: tokens"))
    return tuple(ids), np.cumsum(np.concatenate(lengths))


def read_rollouts(target: Folder, first: int, last: int) -> Rollouts:
    """Rollouts ``first..last-1``."""
    table = target.tables("rollouts", FIXED_SCHEMAS["rollouts"].names, first, last)
    where = f"{target.root}: rollouts"
    prompts, sizes = list_values(table["prompt_tokens"], where)
    tokens, lengths = list_values(table["tokens"], where)
    log_p, _ = list_values(table["log_p"], where)
    text = ("rollout_id", "prompt_id", "benchmark", "finish_reason", "turn")
    ids, prompt_ids, benchmarks, reasons, turns = (table[name].to_pylist() for name in text)
    read = np.split(prompts, np.cumsum(sizes)[:-1]) if ids else []
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    try:
        return Rollouts(ids, prompt_ids, benchmarks, read, tokens, log_p, indptr, reasons, turns)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def read_part(folder: Folder, name: str, index: Index, first: int, complete: bool) -> dict[str, Array]:
    """Columns of a part, of the rollouts of ``index``, which stand from number ``first`` on in the store.

    Of a part that may lack rollouts, ``covered`` tells those that it has; with ``complete`` it lacks none.
    """
    ids, indptr = index
    if not folder.partial(name):
        return folder.arrays(name, ids, indptr, first)
    covered, start = folder.covered(name, ids)
    if complete and not covered.all():
        raise ValueError(
            f"{folder.root}: {folder.owner}: part {name!r} covers {covered.sum()} of {covered.size} rollouts; "
            "allowed: all of them, for what was asked"
        )
    rows = Rows(folder.owner, ids, indptr, None, 0, len(ids)).only(covered)
    return {**folder.arrays(name, rows.ids, rows.indptr, start), COVERED: covered}
