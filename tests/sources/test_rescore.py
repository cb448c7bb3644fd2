"""Drafters recorded later on the rollouts of a store, against those recorded at once; and by hand."""

import numpy as np
import pytest
import torch

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.sources import record, record_drafters
from markov_spec.sources.models import CausalLM
from tests.sources.test_draft_temperature import FIRST, WORDS, constant
from tests.sources.test_recorder import Hydra

SETTINGS = {
    "plain": {},
    "llama.cpp order": {"temperature": 0.7, "top_p": 0.9, "min_p": 0.02, "order": ["top_p", "min_p", "temperature"]},
    "greedy": {"temperature": 0},
}
KEPT = {"drafter_top": 5, "divergence": True}


def all_drafters(target):
    return {"round4": "round:4", "hydra": Hydra(target), "lookup": "ngram:3,4"}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("draft_temperature", [None, 0.6])
def test_later_is_the_same_as_at_once_against_reference(target, prompts_path, tmp_path, name, draft_temperature):
    settings = {**SETTINGS[name], "max_new_tokens": 9, "seed": 3, "progress": False}
    own = {**KEPT, "draft_temperature": draft_temperature}
    drafters = all_drafters(target)
    at_once = record(target, drafters, prompts_path, tmp_path / "at-once", **settings, **own)
    old = record(target, {}, prompts_path, tmp_path / "old", **settings)
    first = record_drafters(old.path, target, {"round4": "round:4"}, **own, progress=False)
    assert first.drafters == ("round4",)
    later = record_drafters(
        old.path, target, {name: drafters[name] for name in ("hydra", "lookup")}, **own, progress=False
    )
    assert later.fingerprint == at_once.fingerprint == old.fingerprint
    assert later.drafters == at_once.drafters
    for drafter in drafters:
        assert later.drafter(drafter).rule == at_once.drafter(drafter).rule
        assert later.drafter_parts(drafter) == at_once.drafter_parts(drafter)
        for part in at_once.drafter_parts(drafter):
            for column, values in at_once.drafter_part(drafter, part).items():
                np.testing.assert_array_equal(later.drafter_part(drafter, part)[column], values)
        facts = {
            key: value for key, value in later.facts()["drafters"][drafter].items() if not key.startswith("scored")
        }
        assert facts == at_once.facts()["drafters"][drafter]
    assert max(later.facts()["drafters"]["hydra"]["scored_apart"], at_once.metadata["scored_apart"]) < 1e-6
    assert not [f for f in ms.store.check_integrity(later.path) if f.severity == "error"]


def test_old_stores_name_no_min_p_invariant(target, prompts_path, tmp_path):
    new = record(target, {}, prompts_path, tmp_path / "new", top_k=5, max_new_tokens=4, progress=False)
    facts, rollouts = new.metadata, new.rollouts()
    del facts["sampling"]["min_p"]
    facts["sampling"]["order"] = ["temperature", "top_k", "top_p"]
    old = ms.write_store(
        tmp_path / "old", rollout_ids=rollouts.ids, prompt_ids=rollouts.prompt_ids, tokens=rollouts.tokens,
        indptr=rollouts.indptr, log_p=rollouts.log_p, prompt_tokens=rollouts.prompt_tokens, metadata=facts,
    )  # fmt: skip
    stores = [record_drafters(s.path, target, {"d": "round:4"}, progress=False) for s in (new, old)]
    np.testing.assert_array_equal(stores[0].drafter("d").log_q, stores[1].drafter("d").log_q)
    assert np.isinf(stores[1].drafter("d").log_q).any()


def written(tmp_path, target, tokens, *, prompt=(7, 8), **changes):
    """A store of one rollout, given token by token."""
    facts = {"target_fingerprint": target.fingerprint(), "sampling": {"temperature": 1.0}, "logprob_space": "processed"}
    return ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array(tokens), indptr=[0, len(tokens)],
        log_p=np.full(len(tokens), -1.0), prompt_tokens=[np.array(prompt, dtype=np.int32)],
        metadata={key: value for key, value in {**facts, **changes}.items() if value is not None},
    )  # fmt: skip


class Echo:
    """A block drafter of one depth that says the same after every text, in its own number type."""

    depth, hidden_layers = 1, ()

    def __init__(self, row):
        self.row = row

    def log_probs(self, tokens, hidden, starts):
        return self.row.expand(*starts.shape, 1, len(self.row))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_case_54_small_probabilities_in_half_precision_against_closed_form(target, tmp_path, dtype):
    """p = 2e-8 and q = 1e-9, which as a probability in float16 is 0: the ratio .05 comes from logs."""
    model = constant(target, [0, np.log(2e-8), -40])
    row = torch.full((WORDS,), -torch.inf, dtype=torch.float64)
    row[FIRST], row[FIRST + 1] = -1e-9, np.log(1e-9)
    assert float(row.exp()[FIRST + 1].to(torch.float16)) == 0
    store = written(tmp_path, model, [FIRST, FIRST + 1, FIRST + 2])
    store = record_drafters(
        store.path, model, {"half": Echo(row.to(dtype)), "model": constant(target, [0, np.log(1e-9), -50])},
        divergence=True, progress=False,
    )  # fmt: skip
    for name, exact in (("half", float(row.to(dtype)[FIRST + 1])), ("model", np.log(1e-9))):
        log_q = store.drafter(name).log_q.ravel()
        assert log_q[1] == pytest.approx(exact, rel=1e-6)
        assert np.exp(log_q[1] - np.log(2e-8)) == pytest.approx(0.05, rel=0.05 if dtype == torch.bfloat16 else 0.02)
        assert np.isfinite(store.drafter_part(name, "divergence")["raw_kl_qp"]).all()
    assert store.drafter("half").log_q[2, 0] == -np.inf
    assert store.drafter("model").log_q[2] == pytest.approx(-50, abs=1e-4)


def test_case_55_wide_rows_of_half_precision_against_closed_form(target, tmp_path):
    """512 entries of 1/256 sum to 2: refused. Rows rounded to bfloat16: divided by their sum, and noted."""
    store = written(tmp_path, target, [3, 4])
    uniform = torch.full((WORDS,), 1 / 20, dtype=torch.float64).log()
    with pytest.raises(ValueError, match=r"drafter 'd'.*sum of probabilities: found 0.693; allowed: 0 within 0.01"):
        record_drafters(store.path, target, {"d": Echo(uniform)}, progress=False)
    torch.manual_seed(1)
    rounded = torch.softmax(torch.randn(WORDS, dtype=torch.float64), -1).bfloat16()
    total = float(rounded.double().sum())
    assert 1e-4 < abs(total - 1) < 0.01
    store = record_drafters(store.path, target, {"d": Echo(rounded.double().log())}, progress=False)
    wanted = rounded.double() / total
    np.testing.assert_allclose(store.drafter("d").log_q[:, 0], wanted.log()[[3, 4]], atol=1e-6)
    assert store.facts()["drafters"]["d"]["sums_apart"] == pytest.approx(abs(np.log(total)), rel=1e-3)


def test_token_that_the_scored_target_cannot_say_is_counted_invariant(target, tmp_path):
    """At a filter's edge another order of sums may remove a generated token; the record says so and stays finite."""
    model = constant(target, [3, 2, 1])
    store = written(tmp_path, model, [FIRST, FIRST + 1, FIRST], sampling={"temperature": 1.0, "top_k": 1})
    store = record_drafters(store.path, model, {"d": "round:8"}, progress=False)
    facts = store.facts()["drafters"]["d"]
    assert (facts["scored_impossible"], facts["scored_apart"]) == (1, 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"target_fingerprint": "0123456789abcdef"},
            r"found fingerprint [0-9a-f]{12}...; allowed: 0123456789ab..., that of",
        ),
        ({"target_fingerprint": None}, "allowed: none is recorded, that of"),
        ({"sampling": None}, "found no sampling"),
        ({"sampling": {"temperature": 0.5}, "logprob_space": "raw"}, "found logprob_space 'raw'; allowed: 'processed'"),
        ({"prompt": ()}, "rollout 'a': found no prompt tokens"),
    ],
)
def test_stores_that_lack_what_is_needed_are_refused_invariant(target, tmp_path, changes, message):
    store = written(tmp_path, target, [3, 4], **changes)
    with pytest.raises(ms.RequestError, match=message):
        record_drafters(store.path, target, {"d": "ngram:2"}, progress=False)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_another_model_and_taken_names_are_refused_invariant(target, tmp_path):
    store = written(tmp_path, target, [3, 4, 3, 4])
    for other in (
        constant(target, [1, 2, 3]),
        CausalLM("half", constant(target, [1, 2, 3]).model.half(), target.tokenizer),
    ):
        with pytest.raises(ms.RequestError, match="another model has not said"):
            record_drafters(store.path, other, {"d": "ngram:2"}, progress=False)
    record_drafters(store.path, target, {"d": "ngram:2,3"}, progress=False)
    with pytest.raises(ms.RequestError, match="drafter 'd' exists; allowed: another name, or overwrite=True"):
        record_drafters(store.path, "hf:/nowhere", {"d": "ngram:1"}, progress=False)
    store = record_drafters(store.path, target, {"d": "ngram:1,2"}, overwrite=True, progress=False)
    assert store.drafter("d").log_q.shape == (4, 2)
    with pytest.raises(ms.RequestError, match="drafters: found none"):
        record_drafters(store.path, target, {}, progress=False)
    with pytest.raises(ms.RequestError, match="drafter name"):
        record_drafters(store.path, target, {"../x": "ngram:1"}, progress=False)


def test_command_line_records_drafters_later_invariant(target_path, prompts_path, tmp_path, capsys):
    words = ["record", "--target", f"hf:{target_path}", "--prompts", str(prompts_path), "--out", str(tmp_path / "run")]
    words += ["--max-new-tokens", "4", "--top-p", ".9", "--min-p", ".01", "--order", "joint,temperature", "--resume"]
    assert main(words) == 0
    sampling = ms.open_store(tmp_path / "run").metadata["sampling"]
    assert (sampling["min_p"], sampling["order"]) == (0.01, ["joint", "temperature"])
    words = ["record-drafters", str(tmp_path / "run"), "--target", f"hf:{target_path}", "--drafter", "d=round:4"]
    assert main([*words, "--divergence", "--drafter-top", "3"]) == 0
    assert capsys.readouterr().out.endswith("run: drafters: d\n")
    store = ms.open_store(tmp_path / "run")
    assert store.drafter_parts("d") == ("divergence", "law", "lists")
    assert store.facts()["drafters"]["d"]["sampling"] == sampling
    assert main(words) == 2
    assert main([*words, "--overwrite"]) == 0
    assert ms.open_store(tmp_path / "run").drafter_parts("d") == ("law",)
    words = ["record", "--target", "hf:x", "--prompts", str(prompts_path), "--out", str(tmp_path / "x")]
    assert main([*words, "--order", "magic"]) == 2
    assert "order: found magic; allowed: temperature, top_k" in capsys.readouterr().err
