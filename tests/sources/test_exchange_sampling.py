"""What files of JSON lines say of sampling: nothing is inferred, and what is not known is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.sources.exchange import LineError
from tests.sources.exchange_files import drafter, read, rollout, target

ALLOWED = "temperature, top_k, top_p, min_p, order, or an engine's own (repetition_penalty, ...)"
LINE = {"id": "a", "log_q": [-1, -2]}
WRONG: list[tuple[dict[str, Any], str, str]] = [
    (
        {"temp": 0.7},
        "sampling.temp",
        f"found an unknown setting; allowed: {ALLOWED}; nearest: temperature",
    ),
    ({"temprature": 0.7}, "sampling.temprature", f"found an unknown setting; allowed: {ALLOWED}; nearest"),
    ({"Top_P": 0.7}, "sampling.Top_P", f"found an unknown setting; allowed: {ALLOWED}; nearest: top_p"),
    (
        {"repitition_penalty": 2},
        "sampling.repitition_penalty",
        f"found an unknown setting; allowed: {ALLOWED}; near",
    ),
    ({"q": 1}, "sampling.q", f"found an unknown setting; allowed: {ALLOWED}"),
]
DISORDERED: list[tuple[dict[str, Any], str]] = [
    ({"order": ["top_p", "temp"]}, "found 'top_p', 'temp'; allowed: temperature, top_k, top_p, min_p, each once"),
    ({"order": ["top_p", "top_p"]}, "found 'top_p', 'top_p'; allowed"),
    ({"order": ["joint", "min_p"]}, "found 'joint', 'min_p'; allowed"),
    ({"order": ["repetition_penalty"]}, "found 'repetition_penalty'; allowed"),
    ({"temperature": 0.7, "top_p": 0.9, "order": ["temperature"]}, "found 'temperature'; allowed"),
    ({"top_k": 5, "order": []}, "found nothing; allowed"),
]


@pytest.mark.parametrize(("sampling", "field", "message"), WRONG, ids=lambda value: str(value)[:20])
def test_unknown_settings_invariant(tmp_path: Path, sampling: dict[str, Any], field: str, message: str) -> None:
    for files in (
        ([target(sampling=sampling), rollout()],),
        ([target(), rollout()], [drafter(sampling=sampling), LINE]),
    ):
        with pytest.raises(LineError) as told:
            read(tmp_path, *files)
        assert (told.value.fault.line, told.value.fault.field) == (1, field)
        assert told.value.fault.message.startswith(message), told.value.fault
        report = read(tmp_path, *files, mode="lenient", overwrite=True)
        assert report.errors == () and report.rollouts == 1
        (note,) = report.notes
        assert f"unknown setting '{field.partition('.')[2]}'" in note and "kept though no check knows it" in note
        (tmp_path / "store").rename(tmp_path / f"store{len(files)}")


@pytest.mark.parametrize(("sampling", "message"), DISORDERED, ids=lambda value: str(value)[:30])
def test_order_invariant(tmp_path: Path, sampling: dict[str, Any], message: str) -> None:
    for mode in ("strict", "lenient"):
        with pytest.raises(LineError) as told:
            read(tmp_path, [target(sampling=sampling), rollout()], mode=mode)
        assert told.value.fault.field == "sampling.order" and told.value.fault.message.startswith(message)
    named = {"order": ["top_p", "temp"]}
    with pytest.raises(LineError, match="nearest to 'temp': temperature"):
        read(tmp_path, [target(sampling=named), rollout()])


def test_settings_that_engines_have_are_noted_invariant(tmp_path: Path) -> None:
    known = {"temperature": 0.7, "top_k": None, "top_p": 0.9, "min_p": 0.1, "order": ["joint", "temperature"]}
    assert read(tmp_path, [target(sampling=known), rollout()]).notes == ()
    known |= {"repetition_penalty": 1.1, "xtc_threshold": None, "order": ["repetition_penalty", "joint", "temperature"]}
    report = read(tmp_path, [target(sampling=known), rollout()], overwrite=True)
    assert report.notes == (
        f"{tmp_path / 'rollouts.jsonl'}: sampling has repetition_penalty 1.1: no check knows it, so none tests it",
    )
    assert report.store.metadata["sampling"] == known


def test_nothing_known_is_noted_and_kept_invariant(tmp_path: Path) -> None:
    unknown = {"logprob_space": None, "sampling": None}
    rows = [rollout()], [LINE]
    cases = [
        (target(**unknown), drafter(), 1),
        (target(**unknown), drafter(**unknown), 2),
        (target(sampling=None), drafter(**unknown), 2),
        (target(), drafter(**unknown), 0),  # drawn from the plain softmax, in either space
        (target(**unknown), drafter(**unknown, rule="match", columns={"log_q": [], "rank": []}), 1),
    ]
    for i, (first, drafts, count) in enumerate(cases):
        folder = tmp_path / str(i)
        folder.mkdir()
        line = {**LINE, "rank": [1, 2]} if "rank" in drafts["columns"] else LINE
        report = read(folder, [first, *rows[0]], [drafts, line])
        assert len(report.notes) == count, report.notes
        metadata, own = report.store.metadata, report.store.drafter("d").metadata
        assert ("logprob_space" in metadata, metadata.get("logprob_space")) == (True, first["logprob_space"])
        assert own == ({"logprob_space": None} if count == 2 else {})
        again = ms.import_jsonl(
            ms.export_jsonl(report.store, folder / "files") / "rollouts.jsonl",
            [folder / "files" / "drafts-d.jsonl"],
            folder / "again",
            progress=False,
        )
        assert again.store.metadata == metadata and again.store.drafter("d").metadata == own


def test_store_of_arrays_is_exported_as_processed_invariant(tmp_path: Path) -> None:
    store = ms.write_store(
        tmp_path / "s", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5]), indptr=[0, 1], log_p=np.zeros(1)
    )
    files = ms.export_jsonl(store, tmp_path / "files")
    report = ms.import_jsonl(files / "rollouts.jsonl", [], tmp_path / "again", progress=False)
    assert report.store.metadata == {"logprob_space": "processed"}
