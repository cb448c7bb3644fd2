"""Small files of JSON lines, and what two stores of them have in common."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import markov_spec as ms

Lines = Sequence[dict[str, Any] | str]


def target(**changes: Any) -> dict[str, Any]:
    given = {"format": "markov_spec rollouts", "version": 1, "logprob_space": "processed"}
    return {**given, "sampling": {"temperature": 1.0}, **changes}


def drafter(**changes: Any) -> dict[str, Any]:
    given = {"format": "markov_spec drafts", "version": 1, "name": "d", "kind": "autoregressive", "rule": "rejection"}
    return {**given, "logprob_space": "processed", "sampling": None, "columns": {"log_q": []}, **changes}


def rollout(name: str = "a", **changes: Any) -> dict[str, Any]:
    return {"id": name, "prompt_id": "p", "tokens": [7, 9], "log_p": [-0.5, -0.25], **changes}


def without(line: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in fields}


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read(folder: Path, rollouts: Lines, *drafts: Lines, **how: Any) -> ms.ImportReport:
    """Import these lines; the store is ``folder/store``."""
    source = write(folder / "rollouts.jsonl", *rollouts)
    paths = [write(folder / f"drafts-{i}.jsonl", *lines) for i, lines in enumerate(drafts)]
    return ms.import_jsonl(source, paths, folder / "store", progress=False, **how)


def columns(store: ms.Store) -> dict[tuple[str, str, str], np.ndarray]:
    """Every array of a store."""
    own = {("", part, name): v for part in store.parts for name, v in store.part(part).items()}
    rollouts = store.rollouts()
    own |= {("", "", name): getattr(rollouts, name) for name in ("tokens", "log_p", "indptr")}
    for drafts in store.drafters:
        for part in store.drafter_parts(drafts):
            own |= {(drafts, part, name): v for name, v in store.drafter_part(drafts, part).items()}
    return own


def assert_equal(one: ms.Store, other: ms.Store) -> None:
    """Every bit but the text of tokens."""
    assert one.fingerprint == other.fingerprint and one.metadata == other.metadata
    mine, its = one.rollouts(), other.rollouts()
    for name in ("ids", "prompt_ids", "benchmarks", "finish_reasons", "turns"):
        assert getattr(mine, name) == getattr(its, name), name
    assert [p.tolist() for p in mine.prompt_tokens] == [p.tolist() for p in its.prompt_tokens]
    assert one.drafters == other.drafters
    for name in one.drafters:
        facts = [(d.kind, d.rule, d.depth, d.metadata) for d in (one.drafter(name), other.drafter(name))]
        assert facts[0] == facts[1]
    first, second = columns(one), columns(other)
    assert first.keys() == second.keys()
    for key, values in first.items():
        assert (values.dtype, values.shape) == (second[key].dtype, second[key].shape), key
        assert values.tobytes() == second[key].tobytes(), key
