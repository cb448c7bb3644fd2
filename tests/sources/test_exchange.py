from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.arrays import ABSENT
from markov_spec.sources.exchange import LineError
from tests.sources.exchange_files import assert_equal, drafter, read, rollout, target, without, write

TWO = [target(), rollout()]


def fault(folder: Path, *files: Any, **how: Any) -> tuple[str, int | None, str | None, str]:
    """What a strict import says: the file, line, field and message; nothing is written."""
    with pytest.raises(LineError) as told:
        read(folder, *files, **how)
    assert not (folder / "store").exists()
    assert not [path for path in folder.iterdir() if path.suffix != ".jsonl"]
    found = told.value.fault
    return Path(found.file).name, found.line, found.field, found.message


def test_case_07_usage_counter_against_closed_form(tmp_path: Path) -> None:
    six = {"tokens": [1, 2, 3, 4, 5, 6], "log_p": [-1] * 6}
    report = read(tmp_path, [target(), rollout(**six, completion_tokens=8), rollout("b", completion_tokens=2)])
    assert report.store.rollouts().indptr.tolist() == [0, 6, 8] and report.tokens == 8
    what = "line whose completion_tokens is not the number of tokens, which counts"
    assert report.notes == (f"{tmp_path / 'rollouts.jsonl'}: 1 {what}, the first at line 2",)


def test_case_16_turns_keep_their_order_against_closed_form(tmp_path: Path) -> None:
    report = read(tmp_path, [target(), rollout("a/0", turn=0), rollout("a/1", turn=1), rollout("b/0")])
    rollouts = report.store.rollouts()
    assert rollouts.ids == ("a/0", "a/1", "b/0") and rollouts.turns == (0, 1, 0)


def test_case_31_logprob_space_against_closed_form(tmp_path: Path) -> None:
    logits = np.array([1.0, 0, -1, -2])
    raw, tempered = (np.exp(logits / t) / np.exp(logits / t).sum() for t in (1, 0.5))
    np.testing.assert_allclose(raw, [0.6439, 0.2369, 0.0871, 0.0321], atol=5e-5)
    np.testing.assert_allclose(tempered, [0.8650, 0.1171, 0.0158, 0.0021], atol=5e-5)
    for i, space in enumerate(["processed", "raw", None]):
        folder = tmp_path / str(i)
        folder.mkdir()
        values = tempered if space == "processed" else raw
        line = rollout(tokens=[0, 1], log_p=np.log(values[:2]).tolist())
        first = target(logprob_space=space, sampling={"temperature": 0.5})
        report = read(folder, [first, line], [drafter(), {"id": "a", "log_q": [np.log(0.5)] * 2}])
        if space == "processed":  # two tokens, one draft: a second round unless the first draft is accepted
            rounds = ms.evaluate(report.store, "d:K=1").rounds
            np.testing.assert_allclose(rounds, 2 - 0.5 / tempered[0], rtol=1e-6)
            assert report.notes == ()
        else:
            assert "figures that need the ratio of probabilities are refused" in report.notes[0]
            with pytest.raises(ValueError, match="found logprob_space"):
                ms.evaluate(report.store, "d:K=1")


def test_case_31_drafts_of_another_space_invariant(tmp_path: Path) -> None:
    cold = [target(sampling={"temperature": 0.5}), rollout()]
    line = {"id": "a", "log_q": [-1, -1]}
    for space in ("raw", None):
        where = fault(tmp_path, cold, [drafter(logprob_space=space), line])
        assert where[:3] == ("drafts-0.jsonl", 1, "logprob_space")
    own = drafter(logprob_space="raw", sampling={"temperature": 1})
    assert read(tmp_path, cold, [own, line]).store.drafter("d").metadata["logprob_space"] == "raw"


def test_case_38_sentinels_against_closed_form(tmp_path: Path) -> None:
    three = rollout(tokens=[1, 2, 3], log_p=[-0.5, -0.5, -0.5])
    report = read(tmp_path, [target(), three], [drafter(), {"id": "a", "log_q": [-0.5, -9999.0, -0.5]}])
    log_q = report.store.drafter("d").log_q
    assert log_q.tolist() == [-0.5, -np.inf, -0.5] and log_q.sum() == -np.inf
    file = tmp_path / "drafts-0.jsonl"
    told = "of {} in log_q, read as probability 0, the first at line 2"
    assert report.notes == (f"{file}: 1 value {told.format(-9999)}",)
    lines = [drafter(), {"id": "a", "log_q": [-100, -99.5, -100.0]}]
    report = read(tmp_path, [target(), three], lines, overwrite=True)
    assert report.store.drafter("d").log_q.tolist() == [-np.inf, -99.5, -np.inf]
    assert report.notes == (f"{file}: 2 values {told.format(-100)}",)
    declared = [drafter(log_zero=-1e4), {"id": "a", "log_q": [-100, -9999, -1e4]}]
    report = read(tmp_path, [target(), three], declared, overwrite=True)
    assert report.store.drafter("d").log_q.tolist() == [-100, -9999, -np.inf] and report.notes == ()


@pytest.mark.parametrize("text", ["null", "NaN", "-Infinity", '"-Infinity"', "true", "0.5", "-1e999", "-10000", "[]"])
def test_case_38_no_log_probability_invariant(tmp_path: Path, text: str) -> None:
    for field, value in (("log_p", "[-0.25, {}]"), ("log_q", "[-0.25, {}]")):
        bad = json.dumps(rollout("b")).replace("[-0.5, -0.25]", value.format(text))
        line = f'{{"id": "a", "log_q": {value.format(text)}}}'
        files = ([target(), rollout(), bad],) if field == "log_p" else (TWO, [drafter(), "", line])
        where = fault(tmp_path, *files)
        assert where[1:3] == (3, field)
        assert re.match(r"position 1: found \S+; allowed: a log-probability", where[3]), where[3]


@pytest.mark.parametrize("value", [-9999.0, -100])
def test_case_38_generated_token_of_probability_zero_invariant(tmp_path: Path, value: float) -> None:
    where = fault(tmp_path, [target(), rollout(log_p=[-0.5, value])])
    assert where[1:3] == (2, "log_p") and f"position 1: found {value}" in where[3] and "generated" in where[3]


def test_case_39_nan_line_against_closed_form(tmp_path: Path) -> None:
    lines: list[Any] = [target(), *(rollout(f"r{i}") for i in range(201))]
    lines[101] = json.dumps(rollout("r100")).replace("-0.25", "NaN")  # the first line is line 1
    drafts = [drafter(), *({"id": f"r{i}", "log_q": [-1, -2]} for i in range(201))]
    report = read(tmp_path, lines, drafts, mode="lenient")
    assert report.store.rollouts().ids == tuple(f"r{i}" for i in range(201) if i != 100)
    assert [(f.line, f.field) for f in report.errors] == [(102, "log_p")]
    assert report.rollouts == 200 and report.left_out == ("r100",)
    what = f"1 line of a rollout that was not read from {tmp_path / 'rollouts.jsonl'}, the first at line 102"
    assert report.notes == (f"{tmp_path / 'drafts-0.jsonl'}: {what}",)
    with pytest.raises(LineError, match=r"line 102: log_p: position 1: found NaN"):
        read(tmp_path, lines, drafts, overwrite=True)
    assert len(ms.open_store(tmp_path / "store")) == 200  # a strict import that fails leaves what stood there
    (tmp_path / "drafts").mkdir()
    drafts[101] = '{"id": "r100", "log_q": [-1, NaN]}'
    lines[101] = rollout("r100")
    report = read(tmp_path / "drafts", lines, drafts, mode="lenient")
    assert report.rollouts == 200 and report.left_out == ("r100",) and len(report.errors) == 1
    (tmp_path / "strict").mkdir()
    assert fault(tmp_path / "strict", lines, drafts)[:3] == ("drafts-0.jsonl", 102, "log_q")


def test_case_40_field_first_seen_late_against_closed_form(tmp_path: Path) -> None:
    rollouts = [target(), *(rollout(f"r{i}", **({"turn": 3} if i >= 100 else {})) for i in range(1000))]
    lines = [
        {"id": f"r{i}", "log_q": [[-1, -2], [-1]], **({"drafted": [1, 0]} if i >= 100 else {})} for i in range(1000)
    ]
    head = drafter(kind="block", columns={"log_q": [2], "drafted": []})
    store = read(tmp_path, rollouts, [head, *lines]).store
    drafted = store.drafter("d").drafted
    assert drafted is not None and drafted.tolist() == [2] * 200 + [1, 0] * 900
    assert store.rollouts().turns == (0,) * 100 + (3,) * 900
    undeclared = [drafter(kind="block", columns={"log_q": [2]}), *lines]
    (tmp_path / "again").mkdir()
    where = fault(tmp_path / "again", rollouts, undeclared)
    assert where[1:] == (102, "drafted", "found an undeclared column; allowed: those in columns of the first line")


def test_case_42_doubled_ids_against_closed_form(tmp_path: Path) -> None:
    lines = [target(), rollout(tokens=[1, 2]), rollout("b"), rollout(tokens=[3, 4])]
    drafts = [drafter(), {"id": "a", "log_q": [-1, -1]}, {"id": "a", "log_q": [-3, -3]}, {"id": "b", "log_q": [-2, -2]}]
    where = fault(tmp_path, lines, drafts)
    assert where[1:3] == (4, "id") and "found 'a' again, first on line 2" in where[3]
    wanted = {
        "first": (("a", "b"), [1, 2, 7, 9], [-1, -1, -2, -2]),
        "last": (("b", "a"), [7, 9, 3, 4], [-2, -2, -3, -3]),
        "suffix": (("a", "b", "a#2"), [1, 2, 7, 9, 3, 4], [-1, -1, -2, -2, -3, -3]),
    }
    for policy, (ids, tokens, log_q) in wanted.items():
        report = read(tmp_path, lines, drafts, duplicates=policy, overwrite=True)
        rollouts = report.store.rollouts()
        assert rollouts.ids == ids and rollouts.tokens.tolist() == tokens, policy
        assert report.store.drafter("d").log_q.tolist() == log_q, policy  # a row for each rollout, no 2 x 2 join
        assert len(report.notes) == 2 and f"duplicates='{policy}'" in report.notes[0]
    report = read(tmp_path, lines, drafts, mode="lenient", overwrite=True)
    assert report.store.rollouts().ids == ("b",)  # which 'a' is meant is not known
    assert [(f.line, f.field) for f in report.errors] == [(4, "id"), (3, "id")]
    lines[3] = rollout(tokens=[3, None])
    report = read(tmp_path, lines, drafts, mode="lenient", duplicates="last", overwrite=True)
    assert report.store.rollouts().ids == ("b",)  # the last 'a' is at fault; the first is not what was asked for


def test_case_57_doubled_first_id_against_closed_form(tmp_path: Path) -> None:
    rollouts = [target(), rollout(prompt_tokens=[1, 1, 5, 6])]
    for given, word in (([1, 5, 6], "there"), ([1, 1, 1, 5, 6], "here")):
        where = fault(tmp_path, rollouts, [drafter(), {"id": "a", "log_q": [-1, -1], "prompt_tokens": given}])
        assert where[:3] == ("drafts-0.jsonl", 2, "prompt_tokens")
        assert f"found {len(given)} tokens, {given}" in where[3] and where[3].endswith(
            f"{word} the first id 1 is doubled"
        )
    marks = [ms.sources.exchange.rows.prompt_hash(np.array(p)) for p in ([1, 5, 6], [1, 1, 5, 6])]
    where = fault(tmp_path, rollouts, [drafter(), {"id": "a", "log_q": [-1, -1], "prompt_hash": marks[0]}])
    assert where[2] == "prompt_hash" and "the first id 1 is doubled" in where[3]
    other = fault(tmp_path, rollouts, [drafter(), {"id": "a", "prompt_tokens": [5], "log_q": [0, 0]}])
    assert other[2] == "prompt_tokens" and "is doubled" not in other[3]
    read(tmp_path, rollouts, [drafter(), {"id": "a", "log_q": [-1, -1], "prompt_hash": marks[1]}])


def test_case_58_text_round_trip_against_closed_form(tmp_path: Path) -> None:
    rollouts = [target(), rollout(tokens=[1, 2])]
    where = fault(tmp_path, rollouts, [drafter(), {"id": "a", "log_q": [-1]}])
    named = f"tokens of rollout 'a' ({tmp_path / 'rollouts.jsonl'}, line 2)"
    assert where[2:] == ("log_q", f"found 1 value; allowed: 2, one for each of the {named}")
    where = fault(tmp_path, rollouts, [drafter(), {"id": "a", "tokens": [3], "log_q": [-1]}])
    assert where[2] == "tokens" and "found 1; allowed: the 2 tokens of" in where[3] and "made from text" in where[3]
    where = fault(tmp_path, rollouts, [drafter(), {"id": "a", "tokens": [1, 3], "log_q": [-1, -1]}])
    assert "position 1: found 3; allowed: 2" in where[3]
    where = fault(tmp_path, [target(), {**without(rollout(), "tokens"), "text": "hello"}])
    assert where[1:3] == (2, "text") and "may give others" in where[3]


def test_case_61_scores_of_one_request_against_closed_form(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    names = [f"r{i}" for i in range(8)]
    log_p = -1 - rng.random((8, 4))
    other = log_p + rng.uniform(-0.04, 0.04, log_p.shape)
    other[5] -= 5
    one, two = (
        write(
            tmp_path / f"{i}.jsonl",
            target(),
            *(rollout(n, tokens=[1, 2, 3, 4], log_p=row.tolist()) for n, row in zip(names, values, strict=True)),
        )
        for i, values in enumerate([log_p, other])
    )
    scores = ms.compare_scores(one, two)
    assert scores.differing == ("r5",) and scores.ids == tuple(names)
    np.testing.assert_allclose(scores.largest, np.abs(log_p - other).max(axis=1), rtol=1e-5)
    np.testing.assert_allclose(scores.mean, np.abs(log_p - other).mean(axis=1), rtol=1e-4)
    np.testing.assert_allclose(scores.mean[5], 5, atol=0.04)
    assert ms.compare_scores(one, two, tolerance=6).differing == ()
    store = ms.import_jsonl(two, [], tmp_path / "store", progress=False).store
    assert ms.compare_scores(one, store).differing == ("r5",)
    assert ms.compare_scores(store.path, store).largest_difference == 0
    assert scores.to_frame().filter("differs")["rollout_id"].to_list() == ["r5"]


def test_case_61_other_rollouts_are_refused_invariant(tmp_path: Path) -> None:
    one = write(tmp_path / "one", target(), rollout(), rollout("b"))
    with pytest.raises(ValueError, match=r"rollout 'b': found in .*one only"):
        ms.compare_scores(one, write(tmp_path / "two", target(), rollout()))
    with pytest.raises(ValueError, match=r"rollout 'b': found in .*one only"):
        ms.compare_scores(write(tmp_path / "two", target(), rollout()), one)
    with pytest.raises(ValueError, match=r"rollout 'b': tokens differ from position 1 on"):
        ms.compare_scores(one, write(tmp_path / "two", target(), rollout(), rollout("b", tokens=[7, 8])))
    with pytest.raises(ValueError, match=r"tolerance: found nan"):
        ms.compare_scores(one, one, tolerance=float("nan"))


def test_case_62_sampled_token_besides_against_closed_form(tmp_path: Path) -> None:
    head = target(columns={"lists.ids": [2], "lists.log_p": [2]})
    lists = {
        "lists.ids": [[7, 3], [7, 3, 9], [9, 3, 7], [3, 7], [9, 7, 3], [4]],
        "lists.log_p": [[-0.4, -1.2], [-0.4, -1.2, -4.0], [-4.0, -1.2, -0.4], [-1.2, -0.4], [-2, -0.4, -2], [-0.1]],
    }
    line = rollout(tokens=[7, 9, 9, 7, 9, 4], log_p=[-0.4, -4, -4, -0.4, -2, -0.1], **lists)
    part = read(tmp_path, [head, line]).store.part("lists")
    assert part["ids"].tolist() == [[7, 3], [7, 3], [7, 3], [7, 3], [7, 3], [4, -1]]
    logs = [[-0.4, -1.2]] * 4 + [[-0.4, -2], [-0.1, -np.inf]]
    np.testing.assert_allclose(part["log_p"], logs, rtol=1e-6)
    mass = np.exp(part["log_p"].astype(float)).sum(axis=1)
    np.testing.assert_allclose(mass[:4], np.exp(-0.4) + np.exp(-1.2), rtol=1e-6)  # each id once, the cut alone


def test_case_62_realised_token_in_lists_of_a_block_against_closed_form(tmp_path: Path) -> None:
    head = drafter(kind="block", columns={"log_q": [2], "lists.ids": [2, 1], "lists.log_q": [2, 1]})
    ids = [[[3, 7], [4, 9]], [[9, 3], [6, 5]], [[5]]]  # starts, depths: the tokens are 7 9, 9 5 and 5
    logs = [[[-0.5, -2], [-0.5, -3]], [[-4, -0.5], [-0.5, -5]], [[-0.5]]]
    line = {"id": "a", "log_q": [[-2, -3], [-4, -5], [-0.5]], "lists.ids": ids, "lists.log_q": logs}
    three = rollout(tokens=[7, 9, 5], log_p=[-1, -1, -1])
    part = read(tmp_path, [target(), three], [head, line]).store.drafter_part("d", "lists")
    assert part["ids"][..., 0].tolist() == [[3, 4], [3, 6], [5, -1]]
    np.testing.assert_array_equal(part["log_q"][..., 0], [[-0.5, -0.5], [-0.5, -0.5], [-0.5, np.nan]])
    line["lists.ids"] = [[[3, 7], [4, 9]], [[9, 3], [6, 9]], [[5]]]
    (tmp_path / "wrong").mkdir()
    where = fault(tmp_path / "wrong", [target(), three], [head, line])
    assert where[2] == "lists.ids" and where[3].startswith("position 1, depth 2: found 2 entries; allowed: the 1 likel")


@pytest.mark.parametrize(
    ("ids", "logs", "field", "message"),
    [
        ([7, 7], [-0.4, -1.2], "lists.ids", "position 1: found an id twice"),
        ([7, 3, 9], [-0.4, -1.2, -4.0], "lists.ids", "position 1: found 3 entries; allowed: the 2 likeliest, and the"),
        ([7, 3, 5], [-0.9, -2.2, -1.9], "lists.ids", "position 1: found 3 entries"),
        ([7, 3, 4, 5], [-1, -2, -3, -4], "lists.ids", "position 1: found 4 values; allowed: 2, and the generated"),
        ([7, 3], [-0.1, -0.1], "lists.log_p", "position 1: found a mass above 1"),
        ([7], [-0.4, -1.2], "lists.log_p", "position 1: found another number of entries"),
        ([7, -1], [-0.4, -1.2], "lists.ids", "position 1, entry 2: found -1; allowed: an integer, 0 to 2147483647"),
        ([7, 3], [-0.4, None], "lists.log_p", "position 1, entry 2: found null; allowed: a log-probability"),
        (7, [-0.4], "lists.ids", "position 1: found 7; allowed: a list"),
    ],
)
def test_case_62_wrong_lists_invariant(tmp_path: Path, ids: Any, logs: Any, field: str, message: str) -> None:
    head = target(columns={"lists.ids": [2], "lists.log_p": [2]})
    lists = {"lists.ids": [[7], ids], "lists.log_p": [[-0.4], logs]}
    where = fault(tmp_path, [head, rollout(tokens=[7, 5], **lists)])
    assert where[1:3] == (2, field) and where[3].startswith(message), where[3]


def test_case_68_ties_and_real_divergences_against_closed_form() -> None:
    one = np.arange(40)
    other = np.where(one < 30, one, 99)
    for gap, kind in ((0.0, "tie"), (0.5, "real"), (0.05, "tie")):
        gaps = np.full(40, 9.0)
        gaps[30] = gap
        found = ms.first_divergence(one, other, gaps)
        assert found is not None and (found.position, found.kind, found.gap) == (30, kind, gap)
    assert ms.first_divergence(one, other, np.full(40, 0.5), threshold=0.5).kind == "tie"
    assert ms.first_divergence(one, one, []) is None
    end = ms.first_divergence(one, one[:12], [])
    assert end is not None and (end.position, end.kind, end.gap) == (12, "end", None)
    for gaps in ([1.0] * 30, [1.0] * 30 + [np.nan], [1.0] * 30 + [-1.0]):
        with pytest.raises(ValueError, match="gaps: position 30"):
            ms.first_divergence(one, other, gaps)


def test_case_69_two_launches_against_closed_form(tmp_path: Path) -> None:
    one = write(tmp_path / "one", target(), rollout(log_p=[-0.156, -5.5]))
    other = write(tmp_path / "other", target(), rollout(log_p=[-0.022, -0.25]))
    scores = ms.compare_scores(one, other)
    np.testing.assert_allclose(scores.largest_difference, 5.25, rtol=1e-6)
    assert "1 of 1 rollouts differ by more than 0.05 nats: 'a'; largest difference 5.25" in repr(scores)
    # A drafter recorded against the one file is not read against the other.
    marks = []
    for i, path in enumerate([one, other]):
        store = ms.import_jsonl(path, [], tmp_path / f"s{i}", progress=False).store
        marks.append(store.fingerprint)
    lines = [{"id": "a", "log_q": [-1, -1]}]
    folder = tmp_path / "pair"
    folder.mkdir()
    rollouts = [target(), rollout(log_p=[-0.156, -5.5])]
    for first in (rollouts[0], target(fingerprint=marks[0])):
        where = fault(folder, [first, rollouts[1]], [drafter(rollouts_fingerprint=marks[1]), *lines])
        assert where[:3] == ("drafts-0.jsonl", 1, "rollouts_fingerprint")
    read(folder, [target(fingerprint=marks[0]), rollouts[1]], [drafter(rollouts_fingerprint=marks[0]), *lines])


def test_hits_ranks_and_lengths_against_closed_form(tmp_path: Path) -> None:
    rollouts = [target(sampling={"temperature": 0}), rollout()]
    hits = [drafter(rule="match", kind="block", columns={"hit": [2]}), {"id": "a", "hit": [[True, False], [True]]}]
    rank = drafter(name="r", rule="match", columns={"log_q": [], "rank": [], "drafted": []})
    ranks = [rank, {"id": "a", "log_q": [-0.5, -9999], "rank": [1, ABSENT]}]
    store = read(tmp_path, rollouts, hits, ranks).store
    np.testing.assert_array_equal(store.drafter("d").log_q, [[0, -np.inf], [0, np.nan]])
    own = store.drafter("r")
    assert own.rank.tolist() == [1, ABSENT] and own.drafted.tolist() == [ABSENT, ABSENT]
    assert ms.evaluate(store, "d").rounds.tolist() == [1]  # one draft is right, and the target adds the second
    soft = [drafter(rule="match", kind="block", columns={"log_q": [2]}), {"id": "a", "log_q": [[0, -1], [0]]}]
    (tmp_path / "soft").mkdir()
    assert fault(tmp_path / "soft", rollouts, soft)[3].startswith("position 0, depth 2: found -1.0; allowed: 0 or")


def test_logprobs_gz_and_blank_lines_against_reference(tmp_path: Path) -> None:
    text = "\n".join(
        ["", json.dumps(target()), "  ", json.dumps(without(rollout(), "log_p") | {"logprobs": [-0.5, -0.25]})]
    )
    (tmp_path / "r.jsonl.gz").write_bytes(gzip.compress(text.replace("\n", "\r\n").encode()))
    plain = read(tmp_path, TWO).store
    packed = ms.import_jsonl(tmp_path / "r.jsonl.gz", [], tmp_path / "packed", progress=False).store
    assert_equal(plain, packed)


def test_import_needs_no_torch_invariant(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", *TWO)
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; import markov_spec as ms; "
        f"print(ms.import_jsonl({str(path)!r}, [], {str(tmp_path / 's')!r}, progress=False))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert told.stdout == "ImportReport(1 rollout, 2 tokens, drafters: none; 0 errors, 0 notes, 0 rollouts left out)\n"
