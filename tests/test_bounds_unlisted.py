"""Drafters whose log q is known of listed tokens alone, as an API gives it: bounds, and nothing that seems exact."""

import json
import re

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.cli import main

DEMO = "data/demo"
V = 9


def unlisted(store, name, top):
    """A drafter of the demo as its lists of the ``top`` likeliest tokens tell it."""
    drafts, part, tokens = store.drafter(name), store.drafter_part(name, "lists"), store.rollouts().tokens
    ids = part["ids"][..., :top]
    places = np.arange(tokens.size)
    if ids.ndim == 3:
        places = np.minimum(places[:, None] + np.arange(ids.shape[1]), tokens.size - 1)
    log_q = np.where((ids == tokens[places][..., None]).any(axis=-1), drafts.log_q, np.nan)
    lists = {"ids": ids, "log_q": part["log_q"][..., :top]}
    return ms.Drafts(name, drafts.kind, "rejection", log_q, parts={"lists": lists}, metadata=drafts.metadata)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    demo = ms.open_store(DEMO)
    rollouts, path = demo.rollouts(), tmp_path_factory.mktemp("known") / "run"
    return ms.write_store(
        path, rollout_ids=rollouts.ids, prompt_ids=rollouts.prompt_ids, tokens=rollouts.tokens,
        indptr=rollouts.indptr, log_p=rollouts.log_p, prompt_tokens=rollouts.prompt_tokens, metadata=demo.metadata,
        parts={"lists": demo.part("lists")}, drafters={name: unlisted(demo, name, 5) for name in ("quant5", "block")},
    )  # fmt: skip


@pytest.mark.parametrize("contender", ["quant5:K=4", "block", "block:rule=block", "quant5:rule=independent"])
@pytest.mark.parametrize("source", ["lists", "lists+target-lists:top=5"])
def test_bounds_are_those_of_the_whole_record_against_reference(known, contender, source):
    found = ms.evaluate_bounds(known, contender, source)
    whole = ms.evaluate_bounds(DEMO, contender, source.replace("lists", "lists:top=5", 1))
    assert found.low.tolist() == whole.low.tolist() and found.high.tolist() == whole.high.tolist()
    assert found.kind == whole.kind and found.uncertain == whole.uncertain and found.rule == whole.rule
    assert found.exact is None and found.results()[0]["pooled_length"] is None


@pytest.mark.parametrize("name", ["quant5", "block"])
def test_nothing_that_needs_log_q_is_computed_invariant(known, name):
    asked = (
        lambda: ms.evaluate(known, name),
        lambda: ms.proxies(known, name),
        lambda: ms.compare(known),
        lambda: ms.law_of(known, f"{name}:K=2"),
    )
    for one in asked:
        with pytest.raises(ms.RequestError, match=r"log_q: rollout '.*', position \d+.*: not recorded, as of a token"):
            one()
    for source in ("tolerance:nats=0.1", "half", "target-lists"):
        with pytest.raises(ms.RequestError, match="drafts was not recorded; allowed: bounds by lists"):
            ms.evaluate_bounds(known, name, source)
    assert ms.evaluate(known, f"{name}:rule=none").pooled_length == 1


def test_the_record_is_found_sound_and_survives_exchange_against_reference(known, tmp_path):
    assert all(finding.severity == "note" for finding in ms.store.check_integrity(known.path))
    out = ms.export_jsonl(known, tmp_path / "lines")
    again = ms.import_jsonl(
        out / "rollouts.jsonl", [out / f"drafts-{n}.jsonl" for n in known.drafters], tmp_path / "in"
    )
    for name in known.drafters:
        for part in ("law", "lists"):
            mine, its = known.drafter_part(name, part), again.store.drafter_part(name, part)
            assert all(values.tobytes() == its[key].tobytes() for key, values in mine.items())
    assert np.isnan(known.drafter("quant5").log_q).mean() > 0.1


def test_lines_of_an_api_give_bounds_against_closed_form(tmp_path, capsys):
    """Two tokens; of the first the drafter's two likeliest are known, and it is neither."""
    rollouts = [
        {"format": "markov_spec rollouts", "version": 1, "logprob_space": "raw", "sampling": {"temperature": 1},
         "vocab_size": V},
        {"id": "a", "prompt_id": "p", "tokens": [2, 1], "log_p": [float(np.log(0.5)), float(np.log(0.4))]},
    ]  # fmt: skip
    lists = {"lists.ids": [[1, 3], [1, 3]], "lists.log_q": np.log([[0.6, 0.1], [0.25, 0.2]]).tolist()}
    drafts = [
        {"format": "markov_spec drafts", "version": 1, "name": "api", "kind": "autoregressive", "rule": "rejection",
         "logprob_space": "raw", "sampling": {"temperature": 1},
         "columns": {"log_q": [], "lists.ids": [2], "lists.log_q": [2]}},
        {"id": "a", "log_q": [None, float(np.log(0.25))], **lists},
    ]  # fmt: skip
    for name, rows in (("rollouts", rollouts), ("drafts", drafts)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    store = ms.import_jsonl(tmp_path / "rollouts.jsonl", [tmp_path / "drafts.jsonl"], tmp_path / "run").store
    found = ms.evaluate_bounds(store, "api:K=2", "lists")
    # Its q is from 0 (missing are .3, six others hold up to .6) to .1, its p .5; one round if it is accepted, else two.
    assert found.low[0] == pytest.approx(1.8) and found.high[0] == pytest.approx(2)
    assert main(["evaluate", str(store.path), "api:K=1", "--bounds", "lists"]) == 0
    assert "1.80 to 2.00 1.0000 to 1.1111 -" in re.sub(r"\s+", " ", capsys.readouterr().out)
    del drafts[1]["lists.ids"], drafts[1]["lists.log_q"]
    (tmp_path / "drafts.jsonl").write_text("\n".join(map(json.dumps, drafts)) + "\n")
    with pytest.raises(ValueError, match="found null; allowed: a log-probability"):
        ms.import_jsonl(tmp_path / "rollouts.jsonl", [tmp_path / "drafts.jsonl"], tmp_path / "other")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": {}}, "log_q: rollout 'a', position 1: found nan; allowed: -inf to 0"),
        ({"rule": "match"}, "found nan"),
    ],
)
def test_nan_without_lists_is_refused_invariant(tmp_path, options, message):
    part = {"ids": np.array([[1, 3], [1, 3]]), "log_q": np.log([[0.25, 0.2], [0.6, 0.1]])}
    given = {"name": "d", "kind": "autoregressive", "rule": "rejection", "log_q": np.array([0.0, np.nan])}
    drafts = ms.Drafts(**{**given, "parts": {"lists": part}, **options})
    with pytest.raises(ValueError, match=message):
        ms.write_store(
            tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], tokens=[1, 2], indptr=[0, 2],
            log_p=np.full(2, -1.0), drafters={"d": drafts},
        )  # fmt: skip


def test_what_was_not_recorded_is_no_alarm_invariant(tmp_path):
    """Tokens outside the lists after a long context are not drafts of probability 0, as a skipped drafter leaves."""
    rng = np.random.default_rng(1)
    q = rng.dirichlet(np.ones(V), 240)
    ids = np.argsort(-q, axis=1)
    tokens = np.where(np.arange(240) < 200, ids[:, 0], ids[:, 4])
    log_q = np.where(np.arange(240) < 200, np.log(q.max(axis=1)), np.nan)
    part = {"ids": ids[:, :3], "log_q": np.log(np.take_along_axis(q, ids, 1)[:, :3])}
    drafts = ms.Drafts("d", "autoregressive", "rejection", log_q, parts={"lists": part})
    store = ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], tokens=tokens, indptr=[0, 240],
        log_p=np.log(rng.uniform(0.2, 0.9, 240)), drafters={"d": drafts}, metadata={"vocab_size": V},
    )  # fmt: skip
    told = [f.message for f in ms.store.check_integrity(store.path) if f.where.startswith("drafters")]
    assert not told
