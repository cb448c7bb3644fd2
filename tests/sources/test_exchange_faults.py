"""What is no sound file: each fault names file, line and field, and nothing is written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.sources.exchange import Fault, LineError
from markov_spec.sources.exchange.faults import grouped
from tests.sources.exchange_files import drafter, read, rollout, target, without, write

BLOCK = drafter(kind="block", columns={"log_q": [2], "drafted": []})
LISTS = {"lists.ids": [2], "lists.log_p": [2]}
CELLS = {"id": "a", "log_q": [[-1, -2], [-1]]}


def fault(folder: Path, *files: Any, **how: Any) -> Any:
    with pytest.raises(LineError) as told:
        read(folder, *files, **how)
    assert {path.suffix for path in folder.iterdir()} == {".jsonl"}
    assert str(told.value) == str(told.value.fault)
    return told.value.fault


@pytest.mark.parametrize(
    ("first", "field", "message"),
    [
        (rollout(), "format", "found nothing; allowed: a first line {"),
        (target(format="markov_spec store"), "format", "found 'markov_spec store'; allowed"),
        (target(version=2), "version", "found 2; allowed: an integer, 1 to 1"),
        (without(target(), "version"), "version", "found nothing; allowed: 1"),
        (without(target(), "logprob_space"), "logprob_space", "found nothing; allowed: its value, or null"),
        (without(target(), "sampling"), "sampling", "found nothing"),
        (target(logprob_space="log"), "logprob_space", "found 'log'; allowed: 'raw' or 'processed'"),
        (target(sampling={"temperature": -1}), "sampling.temperature", "found -1; allowed: a number >= 0"),
        (target(vocab_size=0), "vocab_size", "found 0; allowed: an integer >= 1"),
        (target(vocabulary=5), "vocabulary", "found an unknown field; allowed: format, version"),
        (target(metadata=[]), "metadata", "found []; allowed: an object"),
        (target(metadata={"stop_ids": [2]}), "metadata", "found 'stop_ids' in it; allowed: outside"),
        (json.dumps(target(metadata={"seed": 5})).replace("5}", "NaN}"), "seed", "found NaN"),
        (target(log_zero=0), "log_zero", "found 0; allowed: a number below 0, down to -1e+300"),
        (target(log_zero="-inf"), "log_zero", "found '-inf'"),
        (target(columns=["log_p"]), "columns", "found ['log_p']; allowed: an object"),
        (target(columns={"log_q": []}), "columns", "found 'log_q'; allowed: divergence.entropy"),
        (target(columns={"lists.ids": [2]}), "columns", "found lists.ids, not lists.log_p; allowed: both"),
        (target(columns={**LISTS, "lists.ids": [3]}), "columns", "lists.ids: found [3]; allowed: [2]"),
        (target(columns={**LISTS, "lists.tail_mass": [2]}), "columns", "lists.tail_mass: found [2]; allowed: []"),
        (target(columns={"divergence.entropy": 1}), "columns", "divergence.entropy: found 1; allowed: a list"),
        (target(columns={"divergence.entropy": [-1]}), "columns", "divergence.entropy: found [-1]; allowed: a list"),
        (target(rollouts=2), "rollouts", "found 1 line; allowed: 2, by the first line"),
        (target(rollouts=True), "rollouts", "found true; allowed: an integer"),
        (target(fingerprint="0" * 64), "fingerprint", f"found {'0' * 64}; the rollouts give "),
        ("[1]", None, "found [1]; allowed: one JSON object"),
        ("{", None, "found no JSON: Expecting property name"),
        ("", None, "found no JSON"),
    ],
)
def test_first_line_of_rollouts_invariant(tmp_path: Path, first: Any, field: str | None, message: str) -> None:
    found = fault(tmp_path, [first or "x", rollout()])
    assert (Path(found.file).name, found.field) == ("rollouts.jsonl", field)
    assert found.line == (None if "1 line;" in message else 1) and found.message.startswith(message), found
    if found.line is not None and field not in ("vocabulary", "fingerprint"):  # no mode makes sense of it
        assert fault(tmp_path, [first or "x", rollout()], mode="lenient") == found


@pytest.mark.parametrize(
    ("first", "field", "message"),
    [
        (target(), "format", "found 'markov_spec rollouts'; allowed: a first line"),
        (without(drafter(), "name"), "name", "found nothing; the line has: format"),
        (drafter(name="../x"), "name", "drafter name: found '../x'; allowed: 1 to 64 letters"),
        (drafter(kind="tree"), "kind", "found 'tree'; allowed: autoregressive, block"),
        (drafter(rule="guess"), "rule", "found 'guess'; allowed: "),
        (without(drafter(), "columns"), "columns", "found nothing"),
        (drafter(columns={}), "columns", "found none; allowed: log_q or hit, one of them"),
        (drafter(columns={"log_q": [], "hit": []}), "columns", "found log_q, hit; allowed: log_q or hit"),
        (drafter(columns={"hit": []}), "columns", "found hit with rule 'rejection'; allowed: log_q"),
        (drafter(columns={"log_q": [2]}), "columns", "log_q: found [2]; allowed: []"),
        (drafter(kind="block"), "columns", "log_q: found []; allowed: [K]"),
        (drafter(kind="block", columns={"log_q": [2], "rank": [3]}), "columns", "rank: found [3]; allowed: [2]"),
        (drafter(columns={"log_q": [], "lists.tail_mass": []}), "columns", "found lists.tail_mass, not lists.ids"),
    ],
)
def test_first_line_of_drafts_invariant(tmp_path: Path, first: Any, field: str, message: str) -> None:
    found = fault(tmp_path, [target(), rollout()], [first, {"id": "a", "log_q": [-1, -1]}])
    assert (Path(found.file).name, found.line, found.field) == ("drafts-0.jsonl", 1, field)
    assert found.message.startswith(message), found


@pytest.mark.parametrize(
    ("line", "field", "message"),
    [
        (without(rollout(), "id"), "id", "found nothing; the line has: prompt_id, tokens, log_p"),
        (rollout(id=""), "id", "found ''; allowed: a text that is not empty"),
        (rollout(id=3), "id", "found 3; allowed: a text"),
        (rollout(id="\ud800"), "id", "found '\\ud800'; allowed: text without lone surrogates"),
        (without(rollout(), "prompt_id"), "prompt_id", "found nothing"),
        (without(rollout(), "tokens"), "tokens", "found nothing"),
        (rollout(tokens=5), "tokens", "found 5; allowed: a list"),
        (rollout(tokens=[7, 9.0]), "tokens", "position 1: found 9.0; allowed: an integer, 0 to 9"),
        (rollout(tokens=[7, True]), "tokens", "position 1: found true; allowed: an integer, 0 to 9"),
        (rollout(tokens=[7, 10]), "tokens", "position 1: found 10; allowed: an integer, 0 to 9"),
        (rollout(tokens=[-1, 9]), "tokens", "position 0: found -1; allowed: an integer, 0 to 9"),
        (rollout(tokens=[7, 10**30]), "tokens", "position 1: found 1000"),
        (rollout(prompt_tokens=[11]), "prompt_tokens", "position 0: found 11; allowed: an integer, 0 to 9"),
        (without(rollout(), "log_p"), "log_p", "found nothing; the line has: id, prompt_id, tokens; allowed: log_p or"),
        (rollout(logprobs=[-1, -1]), "log_p", "found log_p and logprobs; allowed: log_p or logprobs, one"),
        (rollout(log_p=[-0.5]), "log_p", "found 1 value; allowed: 2, one for each of the tokens"),
        (rollout(log_p=[-0.5, -(10**400)]), "log_p", "position 1: found -1000"),
        (rollout(benchmark=None), "benchmark", "found null; allowed: a text that is not empty"),
        (rollout(turn=-1), "turn", "found -1; allowed: an integer, 0 to 2147483647"),
        (rollout(turn=1.0), "turn", "found 1.0; allowed: an integer"),
        (rollout(completion_tokens="2"), "completion_tokens", "found '2'; allowed: an integer"),
        (rollout(note="x"), "note", "found an unknown field; allowed: id, prompt_id"),
        (json.dumps(rollout())[:-2], None, "found no JSON"),
        (json.dumps(rollout())[:-1] + ', "id": "a"}', None, "found no JSON: field 'id' stands twice; allowed: one"),
        ("[" * 100_000, None, "found no JSON: maximum recursion depth"),
        (json.dumps(rollout()) * 2, None, "found no JSON: Extra data"),
        ('"a"', None, "found 'a'; allowed: one JSON object"),
        (rollout(crc32=5), "crc32", "found 5; the line gives "),
        (json.dumps(rollout(crc32=5) | {"turn": 0}), "crc32", "found 5; allowed: an integer, the last field"),
    ],
)
def test_line_of_rollouts_invariant(tmp_path: Path, line: Any, field: str | None, message: str) -> None:
    lines = [target(vocab_size=10), rollout("first"), line, rollout("last")]
    found = fault(tmp_path, lines)
    assert (Path(found.file).name, found.line, found.field) == ("rollouts.jsonl", 3, field)
    assert found.message.startswith(message), found
    report = read(tmp_path, lines, mode="lenient")
    if field == "note":
        assert report.rollouts == 3 and report.errors == () and "unknown field 'note'" in report.notes[0]
    else:
        assert report.errors == (found,) and report.store.rollouts().ids == ("first", "last")


@pytest.mark.parametrize(
    ("line", "field", "message"),
    [
        ({**CELLS, "id": "b"}, "id", "found 'b'; allowed: an id of "),
        (without(CELLS, "log_q"), "log_q", "found nothing; the line has: id"),
        ({**CELLS, "log_q": [-1, -1]}, "log_q", "position 0: found -1; allowed: a list"),
        ({**CELLS, "log_q": [[-1, -2], [-1, -1]]}, "log_q", "position 1: found 2 values; allowed: 1, depths up to 2"),
        ({**CELLS, "log_q": [[-1], [-1]]}, "log_q", "position 0: found 1 value; allowed: 2, depths up to 2 that do"),
        ({**CELLS, "log_q": [[-1, "x"], [-1]]}, "log_q", "position 0, depth 2: found 'x'; allowed: a log-probability"),
        ({**CELLS, "drafted": [1, 3]}, "drafted", "position 1: found 3; allowed: an integer, 0 to 2"),
        ({**CELLS, "rank": [[1, 2], [1]]}, "rank", "found an undeclared column; allowed: those in columns"),
        ({**CELLS, "hit": [[True, True], [True]]}, "hit", "found an undeclared column"),
        ({**CELLS, "prompt_hash": 5}, "prompt_hash", "found 5; allowed: a text"),
    ],
)
def test_line_of_drafts_invariant(tmp_path: Path, line: Any, field: str, message: str) -> None:
    found = fault(tmp_path, [target(), rollout()], [BLOCK, line])
    assert (Path(found.file).name, found.line, found.field) == ("drafts-0.jsonl", 2, field)
    assert found.message.startswith(message), found


def test_missing_and_unknown_rollouts_invariant(tmp_path: Path) -> None:
    three = [target(), *(rollout(name) for name in "abc")]
    lines = [drafter(), *({"id": name, "log_q": [-1, -2]} for name in "ca")]
    found = fault(tmp_path, three, lines)
    assert (found.line, found.field) == (None, "id")
    assert found.message == "found no sound line for 1 rollout: 'b'; allowed: a line for each rollout"
    report = read(tmp_path, three, lines, mode="lenient")
    assert report.errors == (found,) and report.left_out == ("b",) and report.store.rollouts().ids == ("a", "c")
    assert report.store.drafter("d").ids == ("a", "c")
    with pytest.raises(LineError, match="found no sound line for 3 rollouts"):
        read(tmp_path, three, [drafter()], mode="lenient", overwrite=True)
    with pytest.raises(LineError, match=r"found 'd' again; allowed: another than of .*drafts-0\.jsonl"):
        read(tmp_path, three, [drafter(), *lines[1:], {"id": "b", "log_q": [0, 0]}], [drafter()], overwrite=True)
    assert len(ms.open_store(tmp_path / "store")) == 2


def test_requests_that_cannot_work_invariant(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", target(), rollout())
    (tmp_path / "store").mkdir()
    asked: list[tuple[dict[str, Any], str]] = [
        ({"mode": "loose"}, "mode: found 'loose'; allowed: strict, lenient"),
        ({"duplicates": "drop"}, "duplicates: found 'drop'; allowed: error, first, last, suffix"),
        ({}, "exists; allowed: a new folder, or overwrite=True"),
    ]
    for how, message in asked:
        with pytest.raises(ms.RequestError, match=message):
            ms.import_jsonl(path, [], tmp_path / "store", progress=False, **how)
    with pytest.raises(ValueError, match="is no store"):
        ms.import_jsonl(path, [], tmp_path / "store", progress=False, overwrite=True)
    with pytest.raises(FileNotFoundError):
        ms.import_jsonl(tmp_path / "none", [], tmp_path / "new", progress=False)
    with pytest.raises(LineError, match="found no line; allowed: a header"):
        ms.import_jsonl(write(tmp_path / "empty"), [], tmp_path / "new", progress=False)


def test_names_of_drafters_against_closed_form(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", target(), rollout())
    own = write(tmp_path / "d.jsonl", drafter(), {"id": "a", "log_q": [-1, -2]})
    for drafts, name in (({"x": own}, "x"), ([own], "d"), (own, "d"), (str(own), "d")):
        report = ms.import_jsonl(path, drafts, tmp_path / "store", progress=False, overwrite=True)
        assert report.store.drafters == (name,)


def test_damaged_gzip_invariant(tmp_path: Path) -> None:
    names = [f"r{i}" for i in range(400)]
    rng = np.random.default_rng(1)
    rows = [rollout(n, log_p=(-rng.random(2)).tolist()) for n in names]
    data = gzip.compress("\n".join(map(json.dumps, [target(), *rows])).encode())
    for i, bad in enumerate([data[: len(data) // 2], data[:-8] + bytes(8)]):
        (tmp_path / "r.jsonl.gz").write_bytes(bad)
        with pytest.raises(LineError, match="cannot be read from here on"):
            ms.import_jsonl(tmp_path / "r.jsonl.gz", [], tmp_path / "store", progress=False)
        report = ms.import_jsonl(tmp_path / "r.jsonl.gz", [], tmp_path / f"s{i}", mode="lenient", progress=False)
        (found,) = report.errors
        assert found.line == report.rollouts + 2 and "cannot be read from here on" in found.message
        for name, row in zip(report.store.rollouts().ids, rows, strict=False):
            assert name == row["id"]


def test_file_that_changes_while_it_is_read_invariant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "r.jsonl", target(), rollout(), rollout("b"))
    from markov_spec.sources.exchange import importer

    build = importer.build

    def late(*given: Any, **how: Any) -> ms.Store:
        write(path, target(), rollout())
        return build(*given, **how)

    monkeypatch.setattr(importer, "build", late)
    with pytest.raises(ValueError, match="line 3: changed while it was read"):
        ms.import_jsonl(path, [], tmp_path / "store", progress=False)
    assert [p.name for p in tmp_path.iterdir()] == ["r.jsonl"]


def test_byte_order_mark_and_line_ends_against_reference(tmp_path: Path) -> None:
    plain = read(tmp_path, [target(), rollout()])
    text = (tmp_path / "rollouts.jsonl").read_bytes()
    for i, data in enumerate([text, gzip.compress(b"\xef\xbb\xbf" + text), b"\xef\xbb\xbf\r\n" + text]):
        path = tmp_path / f"r{i}.jsonl{'.gz' * (i == 1)}"
        path.write_bytes(data)
        report = ms.import_jsonl(path, [], tmp_path / f"s{i}", progress=False)
        assert report.store.fingerprint == plain.store.fingerprint
        assert report.notes == (f"{path}: begins with a byte order mark, which was skipped",) * (i > 0)
    (tmp_path / "r.jsonl").write_bytes(text.replace(b"\n", b"\n\xef\xbb\xbf", 1))
    with pytest.raises(LineError, match="line 2: found no JSON"):
        ms.import_jsonl(tmp_path / "r.jsonl", [], tmp_path / "s", progress=False)


def test_last_line_that_is_cut_off_invariant(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", target(), rollout(), rollout("b"))
    path.write_bytes(path.read_bytes()[:-5])
    told = "the file ends in this line, without a line end: was it cut off?"
    with pytest.raises(LineError, match="line 3: found no JSON") as error:
        ms.import_jsonl(path, [], tmp_path / "s", progress=False)
    assert error.value.fault.message.endswith(told)
    report = ms.import_jsonl(path, [], tmp_path / "s", mode="lenient", progress=False)
    assert (report.rollouts, report.left_out) == (1, ("line 3",))


def test_the_same_line_twice_is_read_once_against_reference(tmp_path: Path) -> None:
    lines = [target(), rollout(), rollout("b"), rollout()]
    drafts = [drafter(), {"id": "b", "log_q": [-1, -2]}, *[{"id": "a", "log_q": [-1, -2]}] * 3]
    plain = read(tmp_path, lines[:3], drafts[:3])
    for mode in ("strict", "lenient"):
        report = read(tmp_path, lines, drafts, mode=mode, overwrite=True)
        assert report.store.fingerprint == plain.store.fingerprint
        assert (report.errors, report.left_out) == ((), ())
        assert report.notes == (
            f"{tmp_path / 'rollouts.jsonl'}: 1 line equal to an earlier one, read once, the first at line 4",
            f"{tmp_path / 'drafts-0.jsonl'}: 2 lines equal to an earlier one, read once, the first at line 4",
        )
    lines[3] = rollout(turn=0)  # says the same in other bytes: which is meant is for the user to say
    (tmp_path / "other").mkdir()
    assert fault(tmp_path / "other", lines).field == "id"


def test_rollouts_left_out_are_counted_whoever_is_at_fault_against_closed_form(tmp_path: Path) -> None:
    bad = rollout("c", log_p=[-0.5, 1])
    lines: list[Any] = [target(), rollout(), rollout("b"), bad, "{", without(rollout(), "id"), rollout("b", turn=1)]
    lines += [rollout("d"), rollout("e")]
    drafts = [drafter(), *({"id": name, "log_q": [-1, -2]} for name in "abcd"), {"id": "e", "log_q": [-1, 2]}]
    report = read(tmp_path, lines, drafts, mode="lenient")
    assert report.left_out == ("b", "c", "line 5", "line 6", "e")
    assert report.store.rollouts().ids == ("a", "d")
    assert repr(report).endswith("5 errors, 2 notes, 5 rollouts left out)")
    assert len(report.errors) == 5
    report = read(
        tmp_path, [target(), rollout(log_p=[1, 1]), rollout()], mode="lenient", duplicates="last", overwrite=1
    )
    assert report.left_out == () and report.rollouts == 1


def test_like_faults_are_told_once_against_closed_form() -> None:
    faults = [
        Fault("r", i, "log_p", f"position {i}: found {v}; allowed: x") for i, v in enumerate(["NaN", "-1e-5", "'a'"])
    ]
    other = [Fault("r", 9, "log_p", "found 2 values; allowed: 3"), Fault("s", 9, "log_p", faults[0].message)]
    assert grouped([*faults, *other]) == [f"{faults[0]} (and 2 like it, the last at line 2)", *map(str, other)]
