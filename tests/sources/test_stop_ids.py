"""Rollouts that end at tokens of the user's choice, against longer ones that are cut there."""

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.sources import record, record_drafters
from markov_spec.sources.drafters import Lookup
from tests.sources.test_recorder import each_rollout

SETTINGS = {"max_new_tokens": 14, "rollouts_per_prompt": 3, "seed": 7, "progress": False}
SPECS = {"lookup": "ngram:2,4", "round4": "round:4"}


def cut(store, stop_ids):
    """The tokens of each rollout up to the first of these, and how it ends."""
    found = []
    for rows, _, _ in each_rollout(store):
        tokens = store.rollouts().tokens[rows].tolist()
        ends = [i + 1 for i, token in enumerate(tokens) if token in stop_ids]
        found.append((tokens[: ends[0]], "stop") if ends else (tokens, "length"))
    return found


def rollouts_of(store):
    rollouts = store.rollouts()
    return [(rollouts.tokens[rows].tolist(), rollouts.finish_reasons[i]) for rows, _, i in each_rollout(store)]


@pytest.fixture(scope="module")
def endless(target, prompts_path, tmp_path_factory):
    """Rollouts that nothing but the cap ends."""
    return record(target, {}, prompts_path, tmp_path_factory.mktemp("endless") / "run", stop_ids=[], **SETTINGS)


@pytest.fixture(scope="module")
def stops(endless, target):
    """Two tokens that end most of them early, neither the model's own."""
    counts = np.bincount(endless.rollouts().tokens)
    counts[list(target.stop_ids)] = 0
    return np.argsort(-counts)[:2].tolist()


def test_generation_ends_at_the_stop_ids_against_reference(target, prompts_path, endless, stops, tmp_path):
    assert endless.metadata["stop_ids"] == [] and set(endless.rollouts().finish_reasons) == {"length"}
    store = record(target, {}, prompts_path, tmp_path / "run", stop_ids=stops, **SETTINGS)
    assert store.metadata["stop_ids"] == sorted(stops)
    assert rollouts_of(store) == cut(endless, stops)
    assert {reason for _, reason in rollouts_of(store)} == {"stop", "length"}
    own = record(target, {}, prompts_path, tmp_path / "own", **SETTINGS)
    assert own.metadata["stop_ids"] == list(target.stop_ids)
    assert rollouts_of(own) == cut(endless, target.stop_ids)


def test_drafters_and_scalars_mind_the_stop_ids_against_reference(target, prompts_path, stops, tmp_path):
    given = {**SETTINGS, "scalars": True}
    store = record(target, SPECS, prompts_path, tmp_path / "run", stop_ids=stops, **given)
    drafted, lookup = store.drafter("lookup").drafted, Lookup(2, 4)
    rollouts = store.rollouts()
    for rows, prompt, i in each_rollout(store):
        tokens = rollouts.tokens[rows].tolist()
        wanted = [len(lookup.propose(prompt + tokens[:s], stops)) for s in range(len(tokens))]
        assert drafted[rows].tolist() == wanted, rollouts.ids[i]
    # What is recorded later minds the store's, whatever the model's own are.
    later = record(target, {}, prompts_path, tmp_path / "later", stop_ids=stops, **given)
    later = record_drafters(later.path, target, SPECS, scalars=True, progress=False)
    for name in SPECS:
        for part in store.drafter_parts(name):
            for column, values in store.drafter_part(name, part).items():
                np.testing.assert_array_equal(
                    later.drafter_part(name, part)[column], values, err_msg=f"{name} {column}"
                )


def test_scalars_depend_on_the_stop_ids_invariant(target, prompts_path, endless, tmp_path):
    """The cost of a draft that ends the rollout is not counted, so its column shows which tokens do."""
    costs = []
    for i, stop_ids in enumerate(([], target.stop_ids)):
        store = record(
            target, {"round4": "round:4"}, prompts_path, tmp_path / str(i), stop_ids=stop_ids,
            scalars=True, **{**SETTINGS, "max_new_tokens": 1},
        )  # fmt: skip
        costs.append(store.drafter_part("round4", "divergence")["cost"])
    assert (np.abs(costs[0] - costs[1]) > 1e-6).any()


@pytest.mark.parametrize("stop", [-1, 40])
def test_stop_ids_that_are_no_tokens_invariant(target, prompts_path, tmp_path, stop):
    with pytest.raises(ms.RequestError, match=f"stop_ids: found {stop}; allowed: token ids 0 to 39"):
        record(target, {}, prompts_path, tmp_path / "run", stop_ids=[2, stop], **SETTINGS)
    assert list(tmp_path.iterdir()) == []


def test_option_against_reference(target_path, prompts_path, endless, stops, tmp_path):
    words = ["record", "--target", f"hf:{target_path}", "--prompts", str(prompts_path), "--out", str(tmp_path / "run")]
    words += ["--max-new-tokens", "14", "--rollouts-per-prompt", "3", "--seed", "7"]
    assert main([*words, *(word for stop in stops for word in ("--stop-id", str(stop)))]) == 0
    assert rollouts_of(ms.open_store(tmp_path / "run")) == cut(endless, stops)
