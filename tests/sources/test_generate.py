"""Generation in padded batches against plain passes, one prompt at a time; and what is wrong is named."""

import copy
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from markov_spec.sources import record
from markov_spec.sources.generate import generate
from markov_spec.sources.models import CausalLM
from markov_spec.sources.prompts import known_ids, read_prompts
from markov_spec.sources.sampling import Sampling, draw
from tests.sources.test_recorder import plain_log_probs
from tests.tiny_model import WORDS

CAP = 17
TOLERANCE = {torch.float64: 2e-6, torch.float32: 2e-4}  # nats


def prompts(count):
    rng = np.random.default_rng(3)
    return [rng.integers(3, WORDS, size).tolist() for size in rng.integers(1, 30, count)]


def with_stops(target, stops, dtype=torch.float64):
    model = copy.deepcopy(target.model).to(dtype)
    model.generation_config.eos_token_id = stops
    return replace(target, model=model)


def by_hand(model, prompt, seed, stops):
    """Tokens and log-probabilities by passes over the whole text, no cache, no batch."""
    stream, tokens, log_p = np.random.default_rng(list(seed)), [], []
    while len(tokens) < CAP and not (tokens and tokens[-1] in stops):
        row = plain_log_probs(model, prompt + tokens).double()[None]
        token = int(draw(row, torch.tensor([stream.random()], dtype=torch.float64)))
        log_p.append(float(row[0, token]))
        tokens.append(token)
    return tokens, log_p


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_left_padding_changes_no_number_against_reference(target, dtype):
    stops = [2, 7, 19]
    own, asked = with_stops(target, stops, dtype), prompts(24)
    seeds = [(5, i) for i in range(len(asked))]
    settings = {"seeds": seeds, "sampling": Sampling(), "max_new_tokens": CAP}
    made = {size: list(generate(own, asked, batch_size=size, **settings)) for size in (1, 5, 24)}
    ends = set()
    for i, prompt in enumerate(asked):
        tokens, log_p = by_hand(own.model, prompt, seeds[i], stops)
        for rollouts in made.values():
            found = rollouts[i]
            assert found.tokens == tokens
            np.testing.assert_allclose(found.log_p, log_p, atol=TOLERANCE[dtype])
            assert found.finish_reason == ("stop" if tokens[-1] in stops else "length")
        ends.add(tokens[-1] if tokens[-1] in stops else len(tokens))
    assert ends == {*stops, CAP}


def test_stop_ids_of_settings_and_tokenizer_end_a_rollout_invariant(target):
    assert with_stops(target, [7, 19]).stop_ids == (2, 7, 19)
    assert with_stops(target, 7).stop_ids == (2, 7)
    assert with_stops(target, None).stop_ids == (2,)


def broken(target, at):
    """A model whose logits are NaN once so many tokens were read."""
    model = copy.deepcopy(target.model)
    plain = model.forward

    def forward(*args, **given):
        out = plain(*args, **given)
        read = given["position_ids"][:, -1] + 1 if given.get("position_ids") is not None else None
        if read is None:
            out.logits[:, at - given["logits_to_keep"][0] - 1 :] = torch.nan
        else:
            out.logits[read >= at] = torch.nan
        return out

    model.forward = forward
    return CausalLM("broken", model, target.tokenizer)


def test_logits_that_are_no_numbers_are_named_invariant(target, prompts_path, tmp_path):
    """Prompts a, b, c have 7, 2 and 5 tokens: the first to reach 9 is a, at its third."""
    with pytest.raises(
        ValueError, match="rollout 'a/0', position 2: logits: found nan as the largest; allowed: a number"
    ):
        record(broken(target, 9), {}, prompts_path, tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match="rollout 'a/0': drafter 'd': position 2: logits: found nan"):
        record(target, {"d": broken(target, 9)}, prompts_path, tmp_path / "run", max_new_tokens=6, progress=False)
    infinite = copy.deepcopy(target.model)
    infinite.lm_head.weight[:] = -torch.inf
    with pytest.raises(ValueError, match=r"rollout '0', position 0: logits: found (-inf|nan)"):
        list(
            generate(
                CausalLM("x", infinite, target.tokenizer), [[3]], seeds=[(0,)], sampling=Sampling(), max_new_tokens=1,
                batch_size=1,
            )
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_case_57_doubled_bos_is_refused_against_closed_form(target, tmp_path):
    tokenizer = copy.deepcopy(target.tokenizer)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    path = tmp_path / "prompts.jsonl"
    for line in ('{"prompt_tokens": [1, 1, 5, 6]}', '{"prompt": "<s> <s> w5 w6"}'):
        path.write_text(line)
        with pytest.raises(
            ValueError, match=r"line 1: prompt\w*: found the BOS id 1 twice at the beginning; allowed: once"
        ):
            read_prompts(path, tokenizer)
        assert read_prompts(path, target.tokenizer)  # which has none
    tokenizer.chat_template = "<s> " + tokenizer.chat_template
    path.write_text('{"messages": [{"role": "user", "content": "<s> w5"}]}\n{"prompt": "<s> w5 w6"}\n{"prompt": "w5"}')
    with pytest.raises(ValueError, match="line 1: messages: found the BOS id 1 twice"):
        read_prompts(path, tokenizer)
    path.write_text(path.read_text().split("\n", 1)[1])
    assert [p.tokens for p in read_prompts(path, tokenizer)] == [(1, 5, 6), (5,)]


def test_ids_behind_a_gap_are_known_against_closed_form(target, tmp_path):
    """A tokenizer of 40 words whose ids go to 40, since it leaves out 7."""
    content = json.loads(target.tokenizer.backend_tokenizer.to_str())
    content["model"]["vocab"]["w7"] = 40
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert (len(tokenizer), known_ids(tokenizer)) == (40, 41)
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt_tokens": [40]}\n{"prompt": "w7"}')
    assert [p.tokens for p in read_prompts(path, tokenizer)] == [(40,), (40,)]
    path.write_text('{"prompt_tokens": [41]}')
    with pytest.raises(ValueError, match="token ids from 0 to 40"):
        read_prompts(path, tokenizer)


def test_case_57_drafters_read_the_ids_of_the_target_invariant(target, target_path, prompts_path, tmp_path):
    """A drafter whose own tokenizer would add a BOS drafts as the model itself does."""
    tokenizer = copy.deepcopy(target.tokenizer)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.chat_template = "<s> " + tokenizer.chat_template
    drafter = CausalLM("own bos", target.model, tokenizer)
    store = record(target, {"d": drafter}, prompts_path, tmp_path / "run", max_new_tokens=5, progress=False)
    np.testing.assert_allclose(store.drafter("d").log_q, store.rollouts().log_p, atol=TOLERANCE[torch.float64])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_against_reference(target, prompts_path, tmp_path, dtype):
    """What is recorded is the softmax, in float64, of the half-precision logits."""
    own = replace(target, model=copy.deepcopy(target.model).to(dtype))
    drafters = {"same": own, "full": target}
    store = record(own, drafters, prompts_path, tmp_path / "run", max_new_tokens=9, divergence=True, progress=False)
    assert (store.metadata["dtype"], store.facts()["drafters"]["full"]["dtype"]) == (str(dtype)[6:], "float64")
    rollouts = store.rollouts()
    assert (store.drafter_part("same", "divergence")["overlap"] == 1).all()
    assert (store.drafter_part("full", "divergence")["overlap"] < 1).any()
    for (first, last), prompt in zip(itertools.pairwise(rollouts.indptr), rollouts.prompt_tokens, strict=True):
        tokens = rollouts.tokens[first:last]
        with torch.inference_mode():
            logits = own.model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        assert logits.dtype == dtype
        exact = torch.log_softmax(logits.double(), -1)[range(len(tokens)), tokens]
        np.testing.assert_allclose(store.drafter("same").log_q[first:last], exact, atol=1e-6)
