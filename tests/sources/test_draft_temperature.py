"""Target and drafters with temperatures of their own, against literal decoding."""

import copy

import numpy as np
import pytest
import torch

import markov_spec as ms
from markov_spec.sources import record
from markov_spec.sources.models import CausalLM
from tests.sources.test_recorder import Hydra

WORDS = 40
FIRST = 3  # the three tokens that can occur are 3, 4 and 5


def constant(target, logits):
    """A model that says the same after every text."""
    model = copy.deepcopy(target.model)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.fill_(1)
        model.model.norm.weight.fill_(1)
        model.lm_head.weight.fill_(-1e4 / model.config.hidden_size)
        for i, logit in enumerate(logits):
            model.lm_head.weight[FIRST + i] = logit / model.config.hidden_size
    return CausalLM("constant", model, target.tokenizer)


def softmax(logits, temperature):
    """Of the three tokens, 0 elsewhere."""
    values = np.zeros(WORDS)
    logits = np.array(logits, dtype=float)
    if temperature == 0:
        values[FIRST + int(np.argmax(logits))] = 1
        return values
    values[FIRST : FIRST + 3] = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    return values


@pytest.fixture
def prompt_path(tmp_path):
    path = tmp_path / "prompt.jsonl"
    path.write_text('{"id": "a", "prompt_tokens": [7, 8]}')
    return path


@pytest.mark.parametrize(("draft_temperature", "overlap"), [(None, 1.0), (0.5, 1.0), (1.0, 0.7984)])
def test_case_64_draft_temperature_against_closed_form(target, prompt_path, tmp_path, draft_temperature, overlap):
    model = constant(target, [2, 1, 0])
    store = record(
        model, {"same": model}, prompt_path, tmp_path / "run", temperature=0.5, draft_temperature=draft_temperature,
        max_new_tokens=8, rollouts_per_prompt=4, divergence=True, progress=False,
    )  # fmt: skip
    tokens = store.rollouts().tokens
    p = [0.8668, 0.1173, 0.0159]
    q = [0.6652, 0.2447, 0.0900] if draft_temperature == 1 else p
    np.testing.assert_allclose(np.exp(store.rollouts().log_p), np.take(p, tokens - FIRST), atol=5e-5)
    np.testing.assert_allclose(np.exp(store.drafter("same").log_q), np.take(q, tokens - FIRST), atol=5e-5)
    np.testing.assert_allclose(store.drafter_part("same", "divergence")["overlap"], overlap, atol=5e-5)
    assert store.metadata["sampling"]["temperature"] == 0.5
    drawn = store.facts()["drafters"]["same"]["sampling"]
    assert drawn["temperature"] == (0.5 if draft_temperature is None else draft_temperature)
    assert store.drafter("same").rule == "rejection"


def _literal(p, q, rule, runs, tokens):
    rng = np.random.default_rng(2)
    for _ in range(runs):
        yield ms.simulate_decoding(
            lambda prefix: p, lambda prefix, drafts: q, rule=rule, draft_length=2, max_tokens=tokens, rng=rng
        )


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_sampled_target_with_greedy_drafts_against_simulation(target, prompt_path, tmp_path, rule):
    theirs, ours = [1.0, 0.6, 0.1], [0.2, 0.9, 0.1]
    store = record(
        constant(target, theirs), {"d": constant(target, ours)}, prompt_path, tmp_path / "run", temperature=1.3,
        draft_temperature=0, max_new_tokens=4, rollouts_per_prompt=150, progress=False,
    )  # fmt: skip
    rollouts, drafts = store.rollouts(), store.drafter("d")
    assert drafts.rule == ms.evaluate(store, "d:K=2").rule == "match"
    assert set(drafts.log_q.tolist()) == {0.0, -np.inf}
    np.testing.assert_array_equal(drafts.rank == 1, drafts.log_q == 0)
    law = ms.round_law(rollouts.log_p, drafts.log_q, rollouts.indptr, rule=rule, draft_length=2)
    wanted = ms.solve(law).expected
    np.testing.assert_array_equal(wanted, ms.evaluate(store, "d:K=2").rounds)
    known = {
        tuple(rollouts.tokens[slice(*rollouts.indptr[i : i + 2])].tolist()): wanted[i] for i in range(len(rollouts))
    }
    seen = set()
    for tokens, rounds in _literal(softmax(theirs, 1.3), softmax(ours, 0), rule, 600, 4):
        if tokens in known:
            assert rounds == known[tokens]
            seen.add(tokens)
    assert len(seen) > 40 and len({known[tokens] for tokens in seen}) == 3


def test_greedy_target_with_sampled_drafts_against_simulation(target, prompt_path, tmp_path):
    theirs, ours, runs = [1.0, 0.6, 0.1], [0.9, 0.8, 0.1], 3000
    store = record(
        constant(target, theirs), {"d": constant(target, ours)}, prompt_path, tmp_path / "run", temperature=0,
        draft_temperature=0.7, max_new_tokens=7, progress=False,
    )  # fmt: skip
    q = softmax(ours, 0.7)
    assert store.rollouts().tokens.tolist() == [FIRST] * 7
    assert (store.rollouts().log_p == 0).all()
    np.testing.assert_allclose(store.drafter("d").log_q, np.log(q[FIRST]), atol=1e-5)
    found = ms.evaluate(store, "d:K=2")
    assert (found.rule, store.drafter("d").rule) == ("rejection", "rejection")
    played = np.array([rounds for _, rounds in _literal(softmax(theirs, 0), q, "rejection", runs, 7)])
    error = np.sqrt(found.variance[0] / runs)
    assert abs(played.mean() - found.rounds[0]) <= 4.5 * error
    assert played.std() == pytest.approx(np.sqrt(found.variance[0]), rel=0.1)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_greedy_drafts_are_the_first_of_their_ranks_invariant(target, prompts_path, tmp_path, temperature):
    drafters = {"round4": "round:4", "hydra": Hydra(target), "lookup": "ngram:2"}
    store = record(
        target, drafters, prompts_path, tmp_path / "run", temperature=temperature, draft_temperature=0,
        max_new_tokens=9, progress=False,
    )  # fmt: skip
    for name in drafters:
        drafts = store.drafter(name)
        assert drafts.rule == "match"
        inside = ~np.isnan(drafts.log_q)
        np.testing.assert_array_equal((drafts.rank == 1)[inside], (drafts.log_q == 0)[inside])
        assert np.isin(drafts.log_q[inside], [0, -np.inf]).all()
    assert "sampling" not in store.facts()["drafters"]["lookup"]


def test_bad_draft_temperature_is_refused_before_any_model_runs_invariant(prompts_path, tmp_path):
    with pytest.raises(ms.RequestError, match=r"^draft_temperature: found -1; allowed: 0 \(greedy\)"):
        record("hf:/nowhere", {}, prompts_path, tmp_path / "run", draft_temperature=-1)


class Fixed:
    """A block drafter of one depth that says the same after every text."""

    depth, hidden_layers = 1, ()

    def __init__(self, probabilities):
        self.row = torch.full((WORDS,), -torch.inf)
        self.row[FIRST : FIRST + len(probabilities)] = torch.tensor(probabilities).log()

    def log_probs(self, tokens, hidden, starts):
        return self.row.expand(*starts.shape, 1, WORDS)


def test_case_55_rows_that_do_not_sum_to_1_against_closed_form(target, prompt_path, tmp_path):
    rounded = torch.full((3,), 1 / 3).bfloat16().float()
    assert float(rounded.sum()) == pytest.approx(1.002, abs=1e-4)
    model = constant(target, [0, 0, 0])
    store = record(
        model, {"d": Fixed(rounded.tolist())}, prompt_path, tmp_path / "run", max_new_tokens=5, scalars=True,
        progress=False,
    )  # fmt: skip
    assert (store.drafter_part("d", "divergence")["overlap"] == 1).all()
    np.testing.assert_allclose(store.drafter("d").log_q[:, 0], np.log(1 / 3), atol=1e-6)
    with pytest.raises(ValueError, match=r"sum of probabilities: found 0.693; allowed: 0 within 0.01"):
        record(model, {"d": Fixed([2 / 3] * 3)}, prompt_path, tmp_path / "other", max_new_tokens=5, progress=False)
