"""The recorder against plain token-by-token passes of the model, without cache, padding or batches."""

import json

import numpy as np
import pytest
import torch

import markov_spec as ms
from markov_spec.arrays import ABSENT
from markov_spec.sources import record, recorder
from markov_spec.sources.drafters import Lookup, parse_drafter
from markov_spec.sources.prompts import read_prompts

SPECS = {"round4": "round:4", "skip12": "skip:1,2", "lookup": "ngram:3,4"}


class Hydra:
    """A block drafter that reads what it may: the hidden state before the start and the drafts before each depth."""

    depth = 3
    hidden_layers = (2, -1)

    def __init__(self, target):
        torch.manual_seed(3)
        self.vocab, width = target.vocab_size, target.model.config.hidden_size
        self.map = torch.randn(2 * width, self.vocab) * 0.2
        self.bigram = torch.randn(self.vocab, self.vocab)

    def log_probs(self, tokens, hidden, starts):
        blocks = []
        for k in range(self.depth):
            state = hidden[:, starts[0] - 1].float()
            before = tokens[:, (starts[0] + k - 1).clamp_max(tokens.shape[1] - 1)]
            blocks.append(torch.log_softmax(state @ self.map + self.bigram[before], -1))
        return torch.stack(blocks, 2)


def plain_log_probs(model, sequence):
    """Distribution of the token after ``sequence``, float64."""
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([sequence])).logits[0, -1], -1)


@pytest.fixture(scope="module")
def recorded(target, target_path, prompts_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("stores") / "run"
    drafters = {**SPECS, "hydra": Hydra(target)}
    return record(
        f"hf:{target_path}", drafters, prompts_path, out, max_new_tokens=14, rollouts_per_prompt=3, seed=7,
        batch_size=4, target_top=6, drafter_top=5, divergence=True, progress=False,
    )  # fmt: skip


def each_rollout(store):
    rollouts = store.rollouts()
    for i in range(len(rollouts)):
        yield slice(*rollouts.indptr[i : i + 2]), rollouts.prompt_tokens[i].tolist(), i


def test_target_log_probs_entropy_and_lists_against_reference(recorded, target):
    rollouts, lists, spread = recorded.rollouts(), recorded.part("lists"), recorded.part("divergence")
    for rows, prompt, _ in each_rollout(recorded):
        tokens = rollouts.tokens[rows].tolist()
        for t, token in enumerate(tokens):
            log_p = plain_log_probs(target.model, prompt + tokens[:t]).numpy()
            row = rows.start + t
            assert rollouts.log_p[row] == pytest.approx(log_p[token], abs=2e-5)
            order = np.argsort(-log_p, kind="stable")[:6]
            assert lists["ids"][row].tolist() == order.tolist()
            np.testing.assert_allclose(lists["log_p"][row], log_p[order], atol=2e-5)
            assert lists["tail_mass"][row] == pytest.approx(1 - np.exp(log_p[order]).sum(), abs=1e-5)
            assert spread["entropy"][row] == pytest.approx(-(np.exp(log_p) * log_p).sum(), abs=1e-4)


@pytest.mark.parametrize("name", ["round4", "skip12"])
def test_autoregressive_drafters_against_reference(recorded, target, name):
    drafter = parse_drafter(SPECS[name], target)
    rollouts, drafts, apart = recorded.rollouts(), recorded.drafter(name), recorded.drafter_part(name, "divergence")
    lists = recorded.drafter_part(name, "lists")
    assert (drafts.kind, drafts.rule) == ("autoregressive", "rejection")
    for rows, prompt, _ in each_rollout(recorded):
        tokens = rollouts.tokens[rows].tolist()
        for t, token in enumerate(tokens):
            log_q = plain_log_probs(drafter.model, prompt + tokens[:t]).numpy()
            log_p = plain_log_probs(target.model, prompt + tokens[:t]).numpy()
            row = rows.start + t
            assert drafts.log_q[row] == pytest.approx(log_q[token], abs=2e-5)
            order = np.argsort(-log_q, kind="stable")
            assert drafts.rank[row] == order.tolist().index(token) + 1
            assert lists["ids"][row].tolist() == order[:5].tolist()
            assert apart["overlap"][row] == pytest.approx(np.minimum(np.exp(log_p), np.exp(log_q)).sum(), abs=1e-5)
            assert apart["raw_kl_pq"][row] == pytest.approx((np.exp(log_p) * (log_p - log_q)).sum(), abs=1e-4)
            assert apart["raw_kl_qp"][row] == pytest.approx((np.exp(log_q) * (log_q - log_p)).sum(), abs=1e-4)


def test_block_drafter_against_reference(recorded, target):
    hydra, rollouts, drafts = Hydra(target), recorded.rollouts(), recorded.drafter("hydra")
    for rows, prompt, _ in each_rollout(recorded):
        tokens = rollouts.tokens[rows].tolist()
        for s in range(len(tokens)):
            known = prompt + tokens[:s]
            with torch.inference_mode():
                states = target.model(torch.tensor([known]), output_hidden_states=True).hidden_states
            state = torch.cat([states[2][0, -1], states[-1][0, -1]]).float()
            for k in range(hydra.depth):
                cell = drafts.log_q[rows.start + s, k]
                if s + k >= len(tokens):
                    assert np.isnan(cell)
                    continue
                before = (prompt + tokens)[len(prompt) + s + k - 1]
                log_q = torch.log_softmax(state @ hydra.map + hydra.bigram[before], -1)
                assert cell == pytest.approx(float(log_q[tokens[s + k]]), abs=5e-5)


def test_lookup_against_reference(recorded):
    rollouts, drafts = recorded.rollouts(), recorded.drafter("lookup")
    lists = recorded.drafter_part("lookup", "lists")
    assert (drafts.kind, drafts.rule) == ("block", "match")
    proposed_somewhere = False
    for rows, prompt, _ in each_rollout(recorded):
        tokens = rollouts.tokens[rows].tolist()
        for s in range(len(tokens)):
            context = prompt + tokens[:s]
            draft = []
            for size in (3, 2, 1):
                starts = [i for i in range(len(context) - size) if context[i : i + size] == context[-size:]]
                if len(context) > size and starts:
                    draft = context[starts[0] + size : starts[0] + size + 4]
                    break
            draft = draft[: draft.index(2)] if 2 in draft else draft
            proposed_somewhere |= bool(draft)
            assert drafts.drafted[rows.start + s] == len(draft)
            assert lists["ids"][rows.start + s, :, 0].tolist() == draft + [-1] * (4 - len(draft))
            assert lists["log_q"][rows.start + s, :, 0].tolist() == [0] * len(draft) + [-np.inf] * (4 - len(draft))
            for k in range(min(4, len(tokens) - s)):
                hit = k < len(draft) and draft[k] == tokens[s + k]
                assert drafts.log_q[rows.start + s, k] == (0 if hit else -np.inf)
                assert drafts.rank[rows.start + s, k] == (1 if hit else ABSENT)
    assert proposed_somewhere


def test_batches_and_padding_change_no_number_invariant(recorded, target_path, prompts_path, tmp_path):
    alone = record(
        f"hf:{target_path}", SPECS, prompts_path, tmp_path / "alone", max_new_tokens=14, rollouts_per_prompt=3,
        seed=7, batch_size=1, progress=False,
    )  # fmt: skip
    assert alone.rollouts().tokens.tolist() == recorded.rollouts().tokens.tolist()
    np.testing.assert_allclose(alone.rollouts().log_p, recorded.rollouts().log_p, atol=2e-5)
    assert recorded.metadata["scored_apart"] < 2e-5


def test_metadata_and_vocabulary_invariant(recorded, target):
    facts = recorded.metadata
    assert facts["stop_ids"] == [2]
    assert facts["sampling"] == {
        "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "order": ["temperature", "top_k", "top_p", "min_p"]
    }  # fmt: skip
    assert facts["target_fingerprint"] == target.fingerprint()
    tokens = recorded.rollouts().tokens
    assert set(tokens.tolist()) <= set(recorded.vocab())
    for token in set(tokens.tolist()) - {2}:
        assert recorded.vocab()[token] == target.tokenizer.decode([token])
    reasons = dict(zip(recorded.rollouts().ids, recorded.rollouts().finish_reasons, strict=True))
    for rows, _, i in each_rollout(recorded):
        assert (reasons[recorded.rollouts().ids[i]] == "stop") == (tokens[rows][-1] == 2)


def test_greedy_record_is_one_hot_against_reference(target, target_path, prompts_path, tmp_path):
    store = record(
        f"hf:{target_path}", {"round4": "round:4", "self": "round:16"}, prompts_path, tmp_path / "greedy",
        temperature=0, max_new_tokens=10, progress=False,
    )  # fmt: skip
    rollouts, drafter = store.rollouts(), parse_drafter("round:4", target)
    for rows, prompt, _ in each_rollout(store):
        tokens = rollouts.tokens[rows].tolist()
        for t, token in enumerate(tokens):
            assert token == int(plain_log_probs(target.model, prompt + tokens[:t]).argmax())
            best = int(plain_log_probs(drafter.model, prompt + tokens[:t]).argmax())
            assert store.drafter("round4").log_q[rows.start + t] == (0 if best == token else -np.inf)
    assert rollouts.log_p.tolist() == [0.0] * rollouts.tokens.size
    assert ms.evaluate(store, "self:K=3").rule == "match"
    lengths = np.diff(rollouts.indptr)
    np.testing.assert_array_equal(ms.evaluate(store, "self:K=3").rounds, -(-lengths // 4))


def test_filters_apply_to_target_and_drafters_against_reference(target, target_path, prompts_path, tmp_path):
    store = record(
        f"hf:{target_path}", {"round4": "round:4"}, prompts_path, tmp_path / "filtered",
        temperature=0.7, top_k=5, top_p=0.8, max_new_tokens=8, progress=False,
    )  # fmt: skip
    drafter, rollouts = parse_drafter("round:4", target), store.rollouts()
    for rows, prompt, _ in each_rollout(store):
        tokens = rollouts.tokens[rows].tolist()
        for t, token in enumerate(tokens):
            for model, recorded in (
                (target.model, rollouts.log_p),
                (drafter.model, store.drafter("round4").log_q),
            ):
                logits = plain_log_probs(model, prompt + tokens[:t]) / 0.7
                weights = np.exp(logits.numpy())
                order = np.argsort(-weights, kind="stable")[:5]
                before = np.cumsum(weights[order]) - weights[order]
                kept = order[before < 0.8 * weights[order].sum()]
                wanted = np.log(weights[token] / weights[kept].sum()) if token in kept else -np.inf
                assert recorded[rows.start + t] == pytest.approx(wanted, abs=5e-5)


class Peeking(Hydra):
    """Reads the token it has to propose."""

    def log_probs(self, tokens, hidden, starts):
        shifted = torch.cat([tokens[:, 1:], tokens[:, :1]], 1)
        return super().log_probs(shifted, hidden, starts)


class Unnormalised(Hydra):
    def log_probs(self, tokens, hidden, starts):
        return super().log_probs(tokens, hidden, starts) + 0.1


class LateState(Hydra):
    """Reads the hidden state of the token it has to propose."""

    def log_probs(self, tokens, hidden, starts):
        return super().log_probs(tokens, hidden.roll(-1, 1), starts)


class MiddlePeeking(Hydra):
    """Reads at depth 2 the token that it has to propose there."""

    peeking = 1

    def log_probs(self, tokens, hidden, starts):
        blocks = super().log_probs(tokens, hidden, starts).clone()
        own = tokens.gather(1, (starts + self.peeking).clamp_max(tokens.shape[1] - 1))
        blocks[:, :, self.peeking] = torch.log_softmax(5.0 * torch.nn.functional.one_hot(own, self.vocab), -1)
        return blocks


class LastPeeking(MiddlePeeking):
    peeking = 2


class Crowd(Hydra):
    """Answers otherwise when several starts are asked for."""

    def log_probs(self, tokens, hidden, starts):
        blocks = super().log_probs(tokens, hidden, starts)
        return blocks if starts.shape[1] == 1 else blocks.flip(-1)


class Silent(Hydra):
    def log_probs(self, tokens, hidden, starts):
        return super().log_probs(tokens, hidden, starts) * torch.nan


class Broken(Hydra):
    def log_probs(self, tokens, hidden, starts):
        raise KeyError("weights")


class Narrow(Hydra):
    def log_probs(self, tokens, hidden, starts):
        return super().log_probs(tokens, hidden, starts)[..., :20]


class Nothing(Hydra):
    def log_probs(self, tokens, hidden, starts):
        blocks = super().log_probs(tokens, hidden, starts)
        return torch.full_like(blocks, -torch.inf) if starts.shape[1] > 3 else blocks


class Deep(Hydra):
    hidden_layers = (99,)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Peeking, "depth 1 .* changes with tokens"),
        (LateState, "depth 1 .* with hidden states"),
        (MiddlePeeking, "depth 2 .* changes with tokens"),
        (LastPeeking, "depth 3 .* changes with tokens"),
        (Crowd, "with the other starts asked for"),
        (Unnormalised, "sum of probabilities: found 0.1"),
        (Nothing, "sum of probabilities: found inf"),
        (Silent, "gave NaN"),
        (Broken, "log_probs raised KeyError"),
        (Narrow, r"shape .*, 20\)"),
        (Deep, "hidden layer: found 99"),
    ],
)
def test_block_drafters_that_cheat_are_refused_invariant(target, prompts_path, tmp_path, kind, message):
    with pytest.raises(ValueError, match=f"drafter 'cheat': .*({message})"):
        record(target, {"cheat": kind(target)}, prompts_path, tmp_path / "run", max_new_tokens=6, progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("skip:9", "found layer 9; allowed: 0 to 3"),
        ("skip:x", "allowed: hf:PATH, skip"),
        ("skip:", "allowed: hf:PATH, skip"),
        ("py:json", "allowed: hf:PATH"),
        ("round:0", "allowed: 1 to 16"),
        ("ngram:0", "allowed: hf:PATH"),
        ("hf:/nowhere", "no such folder"),
        ("py:json:nothing", "json:nothing"),
        ("py:json:dumps", "py:json:dumps: called with the target"),
        ("py:builtins:repr", "lacks depth"),
        ("magic", "found 'magic'"),
    ],
)
def test_bad_specs_are_refused_invariant(target, spec, message):
    with pytest.raises(ms.RequestError, match=message):
        parse_drafter(spec, target)


def test_faults_of_a_drafter_are_told_before_decoding_invariant(target, prompts_path, tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "generate", lambda *_, **__: pytest.fail("decoded first"))
    with pytest.raises(ValueError, match="drafter 'broken': block drafter: log_probs raised KeyError"):
        record(target, {"broken": Broken(target)}, prompts_path, tmp_path / "run", progress=False)
    with pytest.raises(ms.RequestError, match="nowhere_at_all"):
        record("hf:/nowhere", {"absent": "py:nowhere_at_all:x"}, prompts_path, tmp_path / "run")


def test_spec_of_a_python_drafter_against_reference(target):
    made = parse_drafter(f"py:{__name__}:Hydra", target)
    assert isinstance(made, Hydra)


def test_shared_weights_are_left_alone_invariant(target):
    before = target.fingerprint()
    assert parse_drafter("round:2", target).fingerprint() != before
    parse_drafter("skip:0", target)
    assert target.fingerprint() == before
    assert len(target.model.model.layers) == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        ('{"prompt": 5}', "line 1: prompt: found 5"),
        ('{"messages": "hi"}', "line 1: messages: found 'hi'"),
        ('{"prompt_tokens": 5}', "token ids from 0 to 39"),
        ('{"id": "", "prompt": "w3"}', "line 1: id: found ''"),
        ('{"benchmark": "\\ud800", "prompt": "w3"}', "line 1: benchmark"),
        ("[1]", "allowed: a JSON object"),
        ('{"id": "a"}', "exactly one"),
        ('{"prompt": "w3", "prompt_tokens": [1]}', "exactly one"),
        ('{"prompt_tokens": [99]}', "token ids from 0 to 39"),
        ('{"id": "a", "prompt": "w3"}\n{"id": "a", "prompt": "w4"}', "line 2: id 'a' already stands at line 1"),
        ("", "found no prompt"),
    ],
)
def test_bad_prompts_are_refused_invariant(target, tmp_path, line, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=message):
        read_prompts(path, target.tokenizer)


def test_prompts_are_tokenised_against_closed_form(target, prompts_path):
    assert [p.tokens for p in read_prompts(prompts_path, target.tokenizer)] == [
        (3, 4, 5, 3, 4, 5, 3), (9, 8), (5, 6, 7, 5, 6)
    ]  # fmt: skip


def test_requests_that_cannot_work_are_refused_before_any_model_runs_invariant(prompts_path, tmp_path):
    with pytest.raises(ValueError, match="already exists"):
        record("hf:/nowhere", {}, prompts_path, tmp_path)
    with pytest.raises(ValueError, match="drafter name"):
        record("hf:/nowhere", {"../x": "ngram:3"}, prompts_path, tmp_path / "run")
    for settings, message in (
        ({"temperature": 0, "rollouts_per_prompt": 2}, "at temperature 0"),
        ({"top_p": 2.0}, "top_p"),
        ({"temperature": 1e-38}, "temperature"),
        ({"target_top": -1}, "target_top"),
        ({"batch_size": 0}, "batch_size"),
    ):
        with pytest.raises(ms.RequestError, match=message):
            record("hf:/nowhere", {}, prompts_path, tmp_path / "run", **settings)
    with pytest.raises(ms.RequestError, match="found 'foo:bar'"):
        record("hf:/nowhere", {"x": "foo:bar"}, prompts_path, tmp_path / "run")
    with pytest.raises(ms.RequestError, match="target: found 'skip:1'"):
        record("skip:1", {}, prompts_path, tmp_path / "run")


def test_lookup_stops_before_a_stop_token_against_closed_form():
    assert Lookup(2, 5).propose([4, 5, 6, 2, 7, 4, 5], stop_ids=[2]) == [6]
    assert Lookup(2, 5).propose([4, 5], stop_ids=[2]) == []
    assert json.dumps(Lookup(1, 2).propose([3, 3], stop_ids=[])) == "[3]"
