"""One small store with every part, for tests that damage, refuse or reread it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import markov_spec as ms
from markov_spec.store.files import file_hash
from markov_spec.store.manifest import MANIFEST, write_manifest


def troubles(path: Path) -> list[ms.store.Finding]:
    """What a check finds, the z-statistic left out."""
    return [f for f in ms.store.check_integrity(path) if "z-statistic" not in f.message]


IDS = ["a", "b", "empty", "d"]
INDPTR = np.array([0, 3, 4, 4, 9])
N, K, M = 9, 2, 3


def lists(rng: np.random.Generator, shape: tuple[int, ...], log: str) -> dict[str, np.ndarray]:
    ids = np.argsort(rng.random((*shape, 20)), axis=-1)[..., :M].astype(np.int32)
    chances = rng.dirichlet(np.ones(M + 1), shape)
    logs = np.log(-np.sort(-chances[..., :M], axis=-1)).astype(np.float32)
    return {"ids": ids, log: logs, "tail_mass": chances[..., M].astype(np.float32)}


def arguments() -> dict[str, Any]:
    rng = np.random.default_rng(5)

    def logs(*shape: int) -> np.ndarray:
        return -rng.random(shape, dtype=np.float32)

    block = ms.Drafts(
        "block",
        "block",
        "rejection",
        logs(N, K),
        rank=rng.integers(1, 9, (N, K)),
        drafted=rng.integers(0, K + 1, N),
        parts={
            "lists": lists(rng, (N, K), "log_q"),
            "divergence": {"overlap": rng.random((N, K)), "kl_pq": rng.random((N, K)), "entropy": rng.random((N, K))},
            "multi": {"c_4": 1 + rng.random((N, K)), "coupling": rng.random((N, K))},
            "relaxed": {"draft_log_p": logs(N, K), "draft_rank": rng.integers(1, 9, (N, K))},
            "tree-rank": {"rank": rng.integers(1, 99, (N, 5))},
        },
    )
    return {
        "rollout_ids": IDS,
        "prompt_ids": ["p", "p", "q", "q"],
        "tokens": rng.integers(0, 20, N),
        "indptr": INDPTR,
        "log_p": logs(N),
        "prompt_tokens": [np.array([1, 2]), np.array([], dtype=int), np.array([3]), np.array([3])],
        "benchmarks": ["chat", "chat", "math", "math"],
        "finish_reasons": ["stop", "length", "stop", "stop"],
        "turns": [0, 1, 0, 0],
        "drafters": {"block": block, "auto": ms.Drafts("auto", "autoregressive", "rejection", logs(N))},
        "parts": {
            "divergence": {"entropy": rng.random(N), "varentropy": rng.random(N)},
            "lists": lists(rng, (N,), "log_p"),
        },
        "vocab": {i: f"t{i}" for i in range(30)},
        "metadata": {"vocab_size": 20, "sampling": {"temperature": 1.0, "order": ["temperature", "top_k"]}},
    }


def build(path: Path, **changes: Any) -> ms.Store:
    return ms.write_store(path, **{**arguments(), **changes})


def rewrite_manifest(folder: Path, **changes: Any) -> None:
    """Change a manifest as another tool would, its checksum right."""
    manifest = json.loads((folder / MANIFEST).read_text())
    form = manifest.pop("format")
    write_manifest(folder, form, {**manifest, **changes})


def rewrite_part(folder: Path, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace a part as another tool might, hash and size right."""
    parts = json.loads((folder / MANIFEST).read_text())["parts"]
    entry = parts[name]["files"][0]
    path = folder / entry["path"]
    table = change(pq.ParquetFile(path).read(use_threads=False))
    pq.write_table(table, path)
    entry.update({"bytes": path.stat().st_size, "sha256": file_hash(path), "rows": table.num_rows})
    rewrite_manifest(folder, parts=parts)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def past_end(indptr: np.ndarray, depth: int) -> np.ndarray:
    """Cells past the ends, counted by hand."""
    ends = [end for start, end in pairwise(indptr) for _ in range(start, end)]
    cells = [[s + k > ends[s] for k in range(1, depth + 1)] for s in range(int(indptr[-1]))]
    return np.array(cells, dtype=bool).reshape(int(indptr[-1]), depth)
