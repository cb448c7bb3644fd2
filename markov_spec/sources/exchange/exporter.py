"""Export a store to JSON lines that ``import_jsonl`` reads back to an equal store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from markov_spec.arrays import Array, RequestError
from markov_spec.sources.exchange.fields import PAST_END, listed_depths
from markov_spec.sources.exchange.headers import (
    DRAFTS_FILE,
    ROLLOUTS_FILE,
    SHARED_FACTS,
    TARGET_FACTS,
    VERSION,
    column_fields,
)
from markov_spec.sources.exchange.lines import checksum
from markov_spec.sources.exchange.rows import prompt_hash
from markov_spec.store import Store, open_store
from markov_spec.store.install import whole_folder
from markov_spec.store.schema import DRAFTER_PARTS, NO_TOKEN, TARGET_PARTS
from markov_spec.store.values import COVERED

# Beyond float32, so no log-probability of a store; its negative stands for an infinite divergence.
LOG_ZERO = -1e39
BATCH_POSITIONS = 16_384

Fields = Mapping[str, Array]


def export_jsonl(
    store: Store | str | Path,
    out: str | Path,
    *,
    drafters: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a store as JSON lines: ``rollouts.jsonl``, and ``drafts-NAME.jsonl`` for each drafter.

    All parts are written, but not the text of tokens (``vocab``). ``import_jsonl`` gives a store of the same
    fingerprint, metadata, drafters and parts. A store that tells neither ``sampling`` nor ``logprob_space`` then tells
    the latter, ``processed``, as ``write_store`` asks for. Each line has a checksum.

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
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> drafts = ms.Drafts("block", "block", "rejection", np.log([[.5, .25], [.8, .9]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6]),
    ...         indptr=[0, 2], log_p=np.log([.5, .9]), drafters={"block": drafts})
    ...     out = ms.export_jsonl(store, f"{folder}/files")
    ...     print((out / "drafts-block.jsonl").read_text().splitlines()[1][-71:])
    ...     sorted(path.name for path in out.iterdir())
    "log_q":[[-0.693147182,-1.38629436],[-0.223143548]],"crc32":4262003560}
    ['drafts-block.jsonl', 'rollouts.jsonl']
    """
    opened = store if isinstance(store, Store) else open_store(store)
    names = opened.drafters if drafters is None else tuple(drafters)
    with export_folder(out, "jsonl", overwrite) as folder:
        with (folder / "rollouts.jsonl").open("wb") as file:
            _write_rollouts(opened, file)
        for name in names:
            with (folder / f"drafts-{name}.jsonl").open("wb") as file:
                _write_drafts(opened, name, file)
    return Path(out)


@contextmanager
def export_folder(out: str | Path, suffix: str, overwrite: bool) -> Iterator[Path]:
    """Give a folder to fill with ``rollouts`` and ``drafts-NAME`` files, which then takes its place whole."""
    root = Path(out).resolve()
    taken = None if overwrite else f"{root}: exists; pass overwrite=True (--overwrite) to replace an export"
    if root.exists():
        if taken is not None:
            raise RequestError(taken)
        held = [root.name] if root.is_file() else [path.name for path in sorted(root.iterdir())]
        other = [n for n in held if n != f"rollouts.{suffix}" and not (n.startswith("drafts-") and n.endswith(suffix))]
        if other or root.is_file():
            raise RequestError(f"{root}: found {other[0]}, which no export wrote; allowed: an earlier export")
    root.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(root, taken) as folder:
        yield folder


def _write_rollouts(store: Store, file: IO[bytes]) -> None:
    facts, marks = store.metadata, {"fingerprint": _mark(store), "rollouts": len(store)}
    if "logprob_space" not in facts and facts.get("sampling") is None:
        facts = {**facts, "logprob_space": "processed"}  # what write_store asks for, unless a store says otherwise
    columns = _by_field({part: store.batch(0, 0).part(part) for part in store.parts})
    _write_line(file, _header(ROLLOUTS_FILE, {}, facts, (*SHARED_FACTS, *TARGET_FACTS), columns, marks))
    for some in store.batches(BATCH_POSITIONS):
        rollouts = some.rollouts()
        indptr, reasons, turns = rollouts.indptr, rollouts.finish_reasons or (), rollouts.turns or ()
        cells = _by_rollout({part: some.part(part) for part in store.parts}, indptr)
        for i, (name, own) in enumerate(zip(rollouts.ids, cells, strict=True)):
            rows = slice(int(indptr[i]), int(indptr[i + 1]))
            line = {
                "id": name,
                "prompt_id": rollouts.prompt_ids[i],
                "benchmark": rollouts.benchmarks[i],
                "turn": turns[i],
                "finish_reason": reasons[i],
                "prompt_tokens": rollouts.prompt_tokens[i].tolist(),
                "tokens": rollouts.tokens[rows].tolist(),
                "log_p": _numbers(rollouts.log_p[rows]),
            }
            _write_line(file, {**line, **_lists(own)})


def _write_drafts(store: Store, name: str, file: IO[bytes]) -> None:
    drafts, parts = store.batch(0, 0).drafter(name), store.drafter_parts(name)
    facts = dict(drafts.metadata)
    if "logprob_space" not in facts or (facts.get("sampling") or store.metadata.get("sampling")) is not None:
        facts["logprob_space"] = facts.get("logprob_space") or "processed"
    own = {"name": name, "kind": drafts.kind, "rule": drafts.rule}
    marks = {"rollouts_fingerprint": _mark(store), "rollouts": len(store)}
    columns = _by_field({part: store.batch(0, 0).drafter_part(name, part) for part in parts})
    _write_line(file, _header(DRAFTS_FILE, own, facts, SHARED_FACTS, columns, marks))
    for some in store.batches(BATCH_POSITIONS):
        rollouts = some.rollouts()
        cells = _by_rollout({part: some.drafter_part(name, part) for part in parts}, rollouts.indptr)
        for rollout, prompt, lists in zip(rollouts.ids, rollouts.prompt_tokens, cells, strict=True):
            _write_line(file, {"id": rollout, "prompt_hash": prompt_hash(prompt), **_lists(lists)})


def _mark(store: Store) -> str | None:
    """The fingerprint, unless the store is a range of another one, whose fingerprint it gives."""
    return store.fingerprint if len(store) == store.facts()["rollouts"] else None


def _by_field(parts: Mapping[str, Fields]) -> dict[str, Array]:
    return {
        name if part == "law" else f"{part}.{name}": values
        for part, columns in parts.items()
        for name, values in columns.items()
        if name != COVERED
    }


def _by_rollout(parts: Mapping[str, Fields], indptr: Array) -> Iterator[dict[str, Array]]:
    """Cut the columns of parts into those of each rollout; a part that lacks a rollout gives it none."""
    lengths = np.diff(indptr)
    covered = {part: columns.get(COVERED, np.ones(lengths.size, dtype=bool)) for part, columns in parts.items()}
    offsets = {part: np.concatenate([[0], np.cumsum(lengths * own)]) for part, own in covered.items()}
    for i in range(lengths.size):
        yield _by_field(
            {
                part: {
                    name: values[offsets[part][i] : offsets[part][i + 1]]
                    for name, values in columns.items()
                    if name != COVERED
                }
                for part, columns in parts.items()
                if covered[part][i]
            }
        )


def _header(
    form: str,
    own: Mapping[str, Any],
    facts: Mapping[str, Any],
    flat: Sequence[str],
    columns: Fields,
    marks: Mapping[str, Any],
) -> dict[str, Any]:
    given = {key: facts[key] for key in flat if facts.get(key) is not None}
    return {
        **{"format": form, "version": VERSION, **own},
        **{key: given.get(key) for key in SHARED_FACTS},
        **given,
        "metadata": {key: value for key, value in facts.items() if key not in flat},
        "columns": {field: list(values.shape[1:]) for field, values in columns.items()},
        "log_zero": LOG_ZERO,
        **{key: value for key, value in marks.items() if value is not None},
    }


def _write_line(file: IO[bytes], values: Mapping[str, Any]) -> None:
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    body = text[:-1].encode() + b","
    file.write(b'%b"crc32":%d}\n' % (body, checksum(body)))


def _lists(columns: Fields) -> dict[str, Any]:
    """Nested lists of one rollout's columns."""
    known = column_fields(TARGET_PARTS) | column_fields(DRAFTER_PARTS)
    lists: dict[str, Any] = {}
    for field, values in columns.items():
        axes = known[field].axes[len(known[field].axes) - values.ndim + 1 :]
        rows, depths = len(values), None
        if axes and axes[0] != "entry":
            depths = np.full(rows, values.shape[1])
            if not known[field].past_end:
                depths = np.minimum(depths, rows - np.arange(rows))
            part = field.partition(".")[0]
            if part in PAST_END:
                depths = listed_depths(columns[f"{part}.log_q"])
        lists[field] = _nested(values, depths, axes, columns["lists.ids"] != NO_TOKEN if "entry" in axes else None)
    return lists


def _nested(values: Array, depths: Array | None, axes: Sequence[str], entries: Array | None) -> list[Any]:
    """Nested lists of the ``depths`` that hold data; of list entries only those that are some."""
    groups = []
    if depths is not None:
        inside = np.arange(values.shape[1]) < depths[:, None]
        values, entries = values[inside], None if entries is None else entries[inside]
        groups.append(depths)
    if "path" in axes:
        groups.append(np.full(len(values), values.shape[1]))
        values = values.ravel()
    if entries is not None:
        values = values[entries]
        groups.append(entries.sum(axis=-1))
    nested = _numbers(values)
    for counts in reversed(groups):
        rest = iter(nested)
        nested = [list(islice(rest, count)) for count in counts.tolist()]
    return nested


def _numbers(values: Array) -> list[Any]:
    """Flat values as JSON has them, NaN as null; nine digits give a float32 back."""
    if values.dtype.kind in "iu":
        return list(values.tolist())
    finite = np.nan_to_num(values.astype(np.float64), nan=np.nan, posinf=-LOG_ZERO, neginf=LOG_ZERO)
    return [None if value != value else float(f"{value:.9g}") for value in finite.tolist()]
