"""Live runs of transformers' own assisted generation, and a store of the very tokens that they gave.

Its loop (``_assisted_decoding`` in ``generation/utils.py``) has no pass for the prefill: the first pass of the target
reads the prompt and verifies drafts, so every pass is a round and the first token is drafted. A round drafts as many
tokens as were asked for, but none past the cap less one, which is left to the target, and none past a drafted end
token; prompt lookup minds the cap at its last token only. Neither changes the rounds: that draft would have ended the
rollout in the same round. Sampled drafts of an assistant are tested by rejection (``_speculative_sampling``) with the
distributions that both draw from; drafts of prompt lookup, and greedy ones, are matched with the target's own token.
"""

import copy
import json
from dataclasses import dataclass

import pytest
import torch
from transformers import LlamaForCausalLM

from markov_spec.sources import recorder
from markov_spec.sources.drafters import Lookup
from markov_spec.sources.generate import Generated
from markov_spec.sources.models import CausalLM


@dataclass(frozen=True, eq=False)
class Run:
    """One live run: its tokens, the log-probabilities ``(T, V)`` that its target decoded with, and its rounds.

    ``starts`` and ``drafted`` have an entry for each pass of the target: the tokens that stood before it, and the
    drafts that it verified; ``last`` is the last token that it read.
    """

    prompt: list[int]
    tokens: list[int]
    finish: str
    log_probs: torch.Tensor
    starts: list[int]
    drafted: list[int]
    last: list[int]

    def generated(self, *, greedy):
        """As the recorder's own generation gives it."""
        rows = self.log_probs[range(len(self.tokens)), self.tokens]
        return Generated(self.tokens, [0.0] * len(self.tokens) if greedy else rows.tolist(), self.finish)


def tiny_pair(target, *, noise):
    """A target of two layers in float64, and an assistant: the same with noise on its weights."""
    config = copy.deepcopy(target.model.config)
    config.num_hidden_layers, config.initializer_range = 2, 0.4
    torch.manual_seed(5)
    model = LlamaForCausalLM(config).double().eval().requires_grad_(False)
    assistant = copy.deepcopy(model)
    for weight in assistant.parameters():
        if weight.ndim > 1:
            weight += noise * weight.std() * torch.randn_like(weight)
    return CausalLM("tiny", model, target.tokenizer), CausalLM("tiny with noise", assistant, target.tokenizer)


def same(model):
    """A drafter that says what the model says, with settings of its own."""
    return CausalLM("same", copy.deepcopy(model.model), model.tokenizer)


def _asked(drafter, draft_length):
    if isinstance(drafter, Lookup):
        assert drafter.depth == draft_length
        return {"prompt_lookup_num_tokens": drafter.depth, "max_matching_ngram_size": drafter.ngram}
    # Read from the assistant's settings alone; by default it drafts 20 and stops where it is not confident.
    drafter.model.generation_config.update(
        num_assistant_tokens=draft_length, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    )
    return {"assistant_model": drafter.model}


def decode(target, drafter, prompt, *, draft_length, max_new_tokens, sampling, seed=0, stop_ids=None):
    """Decode a prompt by transformers, draft with a `CausalLM` or `Lookup`, and watch the target's passes."""
    starts, drafted, last = [], [], []

    def watch(module, positional, given):
        read = given["input_ids"].shape[1]
        drafted.append(read - (1 if starts else len(prompt)))
        starts.append(int(given["position_ids"][0, -1]) + 1 - drafted[-1] - len(prompt))
        last.append(int(given["input_ids"][0, -1]))

    stops = list(target.stop_ids if stop_ids is None else stop_ids)
    settings = {"do_sample": False}
    if not sampling.greedy:
        filters = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
        settings = {"do_sample": True, **filters}
    ids = torch.tensor([prompt])
    torch.manual_seed(seed)
    hook = target.model.register_forward_pre_hook(watch, with_kwargs=True)
    try:
        out = target.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, eos_token_id=stops,
            pad_token_id=stops[0], return_dict_in_generate=True, output_scores=True, **settings,
            **_asked(drafter, draft_length),
        )  # fmt: skip
    finally:
        hook.remove()
    tokens = out.sequences[0, len(prompt) :].tolist()
    finish = "stop" if tokens[-1] in stops else "length"
    scores = torch.log_softmax(torch.cat(out.scores).double(), -1)
    return Run(list(prompt), tokens, finish, scores, starts, drafted, last)


def record_runs(out, target, drafters, runs, *, sampling, **options):
    """Record live runs: the recorder scores their tokens in place of rollouts of its own."""
    prompts = out.with_suffix(".jsonl")
    prompts.write_text("\n".join(json.dumps({"prompt_tokens": run.prompt}) for run in runs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "generate", lambda *_, **__: [run.generated(greedy=sampling.greedy) for run in runs])
        return recorder.record(
            target, drafters, prompts, out, temperature=sampling.temperature, top_k=sampling.top_k,
            top_p=sampling.top_p, progress=False, **options,
        )  # fmt: skip


def gaps(log_probs):
    """Lead of the likeliest token over the second in each row, nats."""
    first, second = log_probs.topk(2, -1).values.unbind(-1)
    return first - second


def parting(tokens, others, lead, *, tie):
    """Where two greedy streams part, and whether at a near-tie: ``lead`` (nats) of the first stream's token there."""
    common = min(len(tokens), len(others))
    at = next((t for t in range(common) if tokens[t] != others[t]), common)
    if at == len(tokens) == len(others):
        return None, "same"
    return at, "tie" if at < common and float(lead[at]) <= tie else "divergence"
