from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import markov_spec as ms
from tests.store.sample import IDS, INDPTR, K, N, build, past_end, same_bits, troubles

ORDER = [3, 0, 2, 1]


def _permuted(kind: str = "block", **changes: Any) -> tuple[np.ndarray, ms.Drafts]:
    """Values in the store's order, and the same drafts with their rollouts in another order."""
    values = -np.arange(1.0, 1 + N * K, dtype=np.float32).reshape(N, K)
    values = values if kind == "block" else values[:, 0]
    pieces = [values[INDPTR[i] : INDPTR[i + 1]] for i in ORDER]
    given = {
        "log_q": np.concatenate(pieces),
        "ids": [IDS[i] for i in ORDER],
        "indptr": np.cumsum([0, *(len(p) for p in pieces)]),
        "parts": {"divergence": {"entropy": -np.concatenate(pieces)}},
    }
    return values, ms.Drafts("d", kind, "rejection", **{**given, **changes})  # type: ignore[arg-type] # mixed values


@pytest.mark.parametrize("kind", ["block", "autoregressive"])
@pytest.mark.parametrize("changes", [{}, {"indptr": None}])
def test_permuted_drafter_is_aligned_by_id_against_closed_form(tmp_path: Path, kind: str, changes: dict) -> None:
    values, drafts = _permuted(kind, **changes)
    store = ms.add_drafter(build(tmp_path / "s").path, drafts)
    assert store.drafters == ("auto", "block", "d")
    read, part = store.drafter("d").log_q, store.drafter_part("d", "divergence")["entropy"]
    inside = ~past_end(INDPTR, K) if kind == "block" else np.ones(N, dtype=bool)
    assert same_bits(read[inside], values[inside]) and same_bits(part[inside], -values[inside])
    assert troubles(store.path) == []


def test_write_store_aligns_by_id_against_closed_form(tmp_path: Path) -> None:
    values, drafts = _permuted("autoregressive")
    assert same_bits(build(tmp_path / "s", drafters={"d": drafts}).drafter("d").log_q, values)


def test_drafter_without_ids_stands_in_the_stores_order_against_closed_form(tmp_path: Path) -> None:
    values = -np.arange(1.0, 1 + N, dtype=np.float32)
    for indptr in (None, INDPTR):
        drafts = ms.Drafts("d", "autoregressive", "rejection", values, indptr=indptr)
        store = build(tmp_path / "s", drafters={"d": drafts}, overwrite=True)
        assert same_bits(store.drafter("d").log_q, values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": ["d", "a", "empty", "a"]}, "drafter 'd': rollout ids given twice: 'a'"),
        ({"ids": ["d", "a", "empty", "x"]}, "missing rollouts: 'b'; rollouts that the store lacks: 'x'"),
        ({"ids": ["d", "a", "b"], "indptr": None}, "missing rollouts: 'empty'"),
        ({"indptr": [0, 5, 8, 9]}, "indptr: found 3 rollouts; allowed: 4"),
        ({"indptr": [0, 5, 7, 8, 9]}, "rollout 'a': found 2 positions; allowed: 3, as in the store"),
        ({"ids": None}, "rollout 'a': found 5 positions; allowed: 3"),
        ({"ids": None, "indptr": None, "log_q": np.zeros((8, 2))}, "found 8 positions; allowed: 9"),
        ({"indptr": None, "log_q": np.zeros((10, 2))}, "found 10 positions; allowed: 9"),
    ],
)
def test_misaligned_drafter_is_refused_invariant(tmp_path: Path, changes: dict, message: str) -> None:
    store = build(tmp_path / "s")
    with pytest.raises(ValueError, match=message):
        ms.add_drafter(store.path, _permuted(**{"parts": {}, **changes})[1])
    assert ms.open_store(store.path).drafters == ("auto", "block")


def test_error_in_permuted_rows_names_the_stores_position_against_closed_form(tmp_path: Path) -> None:
    _, drafts = _permuted()
    log_q = drafts.log_q.copy()
    log_q[6, 1] = np.nan  # rollout 'a' begins at source row 5
    with pytest.raises(ValueError, match=r"drafter 'd': law: log_q: rollout 'a', position 1, depth 2: found nan"):
        ms.add_drafter(build(tmp_path / "s").path, _permuted(log_q=log_q)[1])


def test_existing_drafter_is_kept_unless_told_invariant(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    top = (store.path / "manifest.json").read_bytes()
    new = ms.Drafts("auto", "autoregressive", "match", np.full(N, -np.inf))
    with pytest.raises(ValueError, match="drafter 'auto' exists; pass overwrite=True"):
        ms.add_drafter(store.path, new)
    assert store.drafter("auto").rule == "rejection"
    replaced = ms.add_drafter(store.path, new, overwrite=True).drafter("auto")
    assert replaced.rule == "match" and (replaced.log_q == -np.inf).all()
    assert (store.path / "manifest.json").read_bytes() == top
