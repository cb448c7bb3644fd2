"""Export a store to flat Parquet files, a row for each position or draft, for tools that know no lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from markov_spec.arrays import Array, Rollouts, cells_inside
from markov_spec.sources.exchange.exporter import export_folder
from markov_spec.store import Store, open_store

GROUP_ROWS = 200_000


def export_parquet(
    store: Store | str | Path,
    out: str | Path,
    *,
    drafters: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a store as flat Parquet: ``rollouts.parquet``, and ``drafts-NAME.parquet`` for each drafter.

    ``rollouts`` has a row for each position: ``rollout_id``, ``prompt_id``, ``benchmark``, ``turn``, ``position``,
    ``token``, ``log_p`` (nats). Drafts of an autoregressive drafter have one, too; those of a block drafter have one
    for each ``start`` and ``depth`` that does not pass the end, and ``position = start + depth - 1``. Each has
    ``rollout_id``, ``position``, ``token`` and ``log_p`` of the rollout, ``log_q``, and ``rank`` and ``drafted`` if
    recorded. All have the columns of their part ``divergence``. For reading only: nothing imports it.

    Parameters
    ----------
    store : Store or path
    out : path
        The folder to write; it appears whole or not at all.
    drafters : sequence of str, optional
        All by default.
    overwrite : bool
        Replace an earlier export.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    RequestError
        If ``out`` exists, or holds what no export wrote.
    ValueError
        If there is no such drafter, or the store is damaged.

    Examples
    --------
    >>> import tempfile, numpy as np, polars as pl, markov_spec as ms
    >>> drafts = ms.Drafts("block", "block", "rejection", np.log([[.5, .25], [.8, .9]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6]),
    ...         indptr=[0, 2], log_p=np.log([.5, .9]), drafters={"block": drafts})
    ...     out = ms.export_parquet(store, f"{folder}/flat")
    ...     pl.read_parquet(out / "drafts-block.parquet").select("rollout_id", "start", "depth", "position").rows()
    [('a', 0, 1, 0), ('a', 0, 2, 1), ('a', 1, 1, 1)]
    """
    opened = store if isinstance(store, Store) else open_store(store)
    names = opened.drafters if drafters is None else tuple(drafters)
    with export_folder(out, "parquet", overwrite) as folder:
        _write(folder / "rollouts.parquet", opened, GROUP_ROWS, _rollouts)
        for name in names:
            rows = GROUP_ROWS // max(opened.batch(0, 0).drafter(name).depth or 1, 1)
            _write(folder / f"drafts-{name}.parquet", opened, rows, partial(_drafts, name))
    return Path(out)


def _write(path: Path, store: Store, positions: int, table: Callable[[Store], Any]) -> None:
    """Write a row group for each range of rollouts."""
    with pq.ParquetWriter(path, table(store.batch(0, 0)).schema, compression="zstd") as writer:
        for some in store.batches(max(positions, 1)):
            rows = table(some)
            writer.write_table(rows, row_group_size=max(rows.num_rows, 1))


def _rollouts(store: Store) -> Any:
    rollouts = store.rollouts()
    turns = np.array(rollouts.turns, dtype=np.int32)
    return pa.table(
        {
            "rollout_id": _repeated(rollouts.ids, rollouts),
            "prompt_id": _repeated(rollouts.prompt_ids, rollouts),
            "benchmark": _repeated(rollouts.benchmarks, rollouts),
            "turn": np.repeat(turns, np.diff(rollouts.indptr)),
            "position": _positions(rollouts),
            "token": rollouts.tokens,
            "log_p": rollouts.log_p,
            **(store.part("divergence") if "divergence" in store.parts else {}),
        }
    )


def _drafts(name: str, store: Store) -> Any:
    rollouts, cells = store.rollouts(), dict(store.drafter_part(name, "law"))
    if "divergence" in store.drafter_parts(name):
        cells |= store.drafter_part(name, "divergence")
    ids, starts = _repeated(rollouts.ids, rollouts), _positions(rollouts)
    depth = cells["log_q"].shape[1] if cells["log_q"].ndim == 2 else None
    if depth is None:
        own = {"position": starts, "token": rollouts.tokens, "log_p": rollouts.log_p}
        return pa.table({"rollout_id": ids, **own, **cells})
    row, k = np.nonzero(cells_inside(rollouts.indptr, depth))
    return pa.table(
        {
            "rollout_id": ids.take(pa.array(row)),
            "start": starts[row],
            "depth": (k + 1).astype(np.int32),
            "position": (starts[row] + k).astype(np.int32),
            "token": rollouts.tokens[row + k],
            "log_p": rollouts.log_p[row + k],
            **{column: values[row, k] if values.ndim == 2 else values[row] for column, values in cells.items()},
        }
    )


def _repeated(names: Sequence[str], rollouts: Rollouts) -> Any:
    """A rollout's own name at each of its positions."""
    lengths = np.diff(rollouts.indptr)
    return pa.array(names, pa.large_string()).take(pa.array(np.repeat(np.arange(lengths.size), lengths)))


def _positions(rollouts: Rollouts) -> Array:
    positions = np.arange(rollouts.tokens.size, dtype=np.int32)
    return positions - np.repeat(rollouts.indptr[:-1], np.diff(rollouts.indptr)).astype(np.int32)
