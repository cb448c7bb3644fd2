"""A store written by another tool from data/README.md alone: pyarrow, json and hashlib, no code of the package."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import markov_spec as ms

TEXT, INTS, FLOATS = pa.large_string(), pa.large_list(pa.int32()), pa.large_list(pa.float32())
NONE, INF = float("nan"), float("inf")
IDS, TOKENS = ["é/0", "b/0", "b/1"], [[7, 9, 2], [5], [7, 2]]
LOG_P = [[-0.5, -0.25, -1.0], [-0.125], [-0.5, -2.0]]
PROMPTS: list[list[int]] = [[1, 4], [], [1]]


def entry(root: Path, name: str, columns: dict[str, list[int]], *tables: pa.Table) -> dict[str, Any]:
    """Write the files of a part; give its entry."""
    files = []
    for i, table in enumerate(tables):
        path = root / f"{name}-{i:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        data = path.read_bytes()
        files.append(
            {
                "path": f"{name}-{i:05d}.parquet",
                "bytes": len(data),
                "rows": table.num_rows,
                "sha256": hashlib.sha256(data).hexdigest(),
            }
        )
    return {"columns": columns, "files": files}


def seal(folder: Path, body: dict[str, Any]) -> None:
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**body, "checksum": checksum}))


def fingerprint() -> str:
    ends = [sum(map(len, TOKENS[: i + 1])) for i in range(len(TOKENS))]
    flat = [token for own in TOKENS for token in own], [value for own in LOG_P for value in own]
    parts = [
        b"".join(struct.pack("<q", len(name.encode())) + name.encode() for name in IDS),
        struct.pack(f"<{len(ends)}q", *ends),
        struct.pack(f"<{len(flat[0])}i", *flat[0]),
        struct.pack(f"<{len(flat[1])}f", *flat[1]),
    ]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def rollouts(first: int, last: int) -> pa.Table:
    hashes = [hashlib.sha256(struct.pack(f"<{len(p)}i", *p)).hexdigest() for p in PROMPTS]
    columns = {
        "rollout_id": (TEXT, IDS),
        "prompt_id": (TEXT, ["é", "b", "b"]),
        "prompt_hash": (TEXT, hashes),
        "prompt_tokens": (INTS, PROMPTS),
        "turn": (pa.int32(), [0, 0, 0]),
        "benchmark": (TEXT, ["all"] * 3),
        "tokens": (INTS, TOKENS),
        "log_p": (FLOATS, LOG_P),
        "finish_reason": (TEXT, ["stop", "length", "stop"]),
    }
    return pa.table({name: pa.array(values[first:last], kind) for name, (kind, values) in columns.items()})


def rows(kinds: dict[str, Any], names: list[str], /, **columns: list[list[float]]) -> pa.Table:
    """Build the table of a part: the ids, and a flat list for each of them in every column."""
    own = {name: pa.array(values, kinds[name]) for name, values in columns.items()}
    return pa.table({"rollout_id": pa.array(names, TEXT), **own})


LAW = {"log_q": FLOATS, "rank": INTS, "drafted": INTS}
LISTS = {"ids": INTS, "log_p": FLOATS}
PAST = 2**31 - 1


def write(root: Path) -> None:
    lists = rows(
        LISTS, ["é/0", "b/1"], ids=[[7, 3, 9, 7, 2, -1], [7, 2, 7, 2]],
        log_p=[[-0.5, -2, -0.25, -2, -1, -INF], [-0.5, -1, -0.25, -2]],
    )  # fmt: skip
    vocab = pa.table({"token_id": pa.array([2, 5, 7, 9], pa.int32()), "text": pa.array(["</s>", "a", "b", "c"], TEXT)})
    body = {
        "format": "markov_spec store",
        "schema_version": 1,
        "fingerprint": fingerprint(),
        "rollouts": 3,
        "positions": 6,
        "metadata": {"logprob_space": "processed", "sampling": {"temperature": 1.0}, "vocab_size": 10, "who": "é"},
        "parts": {
            "rollouts": entry(root, "rollouts/part", {}, rollouts(0, 2), rollouts(2, 3)),
            "lists": {**entry(root, "rollouts/lists", {"ids": [2], "log_p": [2]}, lists), "covers": 2},
            "vocab": entry(root, "vocab", {}, vocab),
        },
    }
    seal(root, body)
    law = rows(
        LAW, IDS, log_q=[[-1, -0.5, -0.125, -3, -1, NONE], [-1, NONE], [-0.25, -1, -2, NONE]],
        rank=[[1, 1, 1, 4, 2, PAST], [3, PAST], [1, 2, 5, PAST]], drafted=[[2, 1, 2], [2], [2, 0]],
    )  # fmt: skip
    folder = root / "drafters" / "block"
    shared = {"format": "markov_spec drafter", "schema_version": 1, "target_fingerprint": fingerprint()}
    parts = {"law": entry(folder, "law", {"log_q": [2], "rank": [2], "drafted": []}, law)}
    own = {"name": "block", "kind": "block", "rule": "rejection", "depth": 2, "metadata": {}}
    seal(folder, {**shared, **own, "parts": parts})
    law = rows(LAW, IDS, log_q=[[-1, -0.5, -1], [-INF], [-0.25, -2]])
    folder = root / "drafters" / "small"
    own = {"name": "small", "kind": "autoregressive", "rule": "rejection", "depth": None, "metadata": {}}
    seal(folder, {**shared, **own, "parts": {"law": entry(folder, "law", {"log_q": []}, law)}})


def test_store_of_another_writer_against_closed_form(tmp_path: Path) -> None:
    write(tmp_path / "run")
    store = ms.open_store(tmp_path / "run", verify=True)
    assert [f for f in ms.store.check_integrity(store.path) if f.severity != "note"] == []
    assert store.drafters == ("block", "small") and store.fingerprint == fingerprint()
    found = store.rollouts()
    assert (found.ids, found.tokens.tolist()) == (tuple(IDS), [token for own in TOKENS for token in own])
    np.testing.assert_array_equal(found.log_p, np.float32([value for own in LOG_P for value in own]))
    assert store.part("lists")["covered"].tolist() == [True, False, True]
    # Given a token its draft was right with probability q / p, a and b in the first rollout, and is surely in the last.
    a, b = np.exp(-0.5), np.exp(-0.25)
    np.testing.assert_allclose(ms.evaluate(store, "small:K=1").rounds, [1 + a + (1 - a) * (2 - b), 1, 1], rtol=1e-6)
    # Two drafts from the first token; from the second, one that is surely right.
    np.testing.assert_allclose(ms.evaluate(store, "block").rounds, [2 - a * b, 1, 1], rtol=1e-6)
    again = ms.write_store(
        tmp_path / "own", rollout_ids=IDS, prompt_ids=["é", "b", "b"], tokens=found.tokens, indptr=found.indptr,
        log_p=found.log_p,
    )  # fmt: skip
    assert again.fingerprint == store.fingerprint
