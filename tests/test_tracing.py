"""A rollout's trace, against every literal decoding that emits it and against walks of the law."""

import numpy as np
import pytest

import markov_spec as ms
from tests import oracles, stored_lists

STOP, CAP, K = 0, 4, 2


def world_store(path, world, outputs):
    """A store of some outputs of a world; its drafter's kind is the world's."""
    log_p = np.concatenate([[np.log(world.p(x[:t])[v]) for t, v in enumerate(x)] for x in outputs])
    cells = []
    for x in outputs:
        for s in range(len(x)):
            row = [world.q(x[:s], x[s : s + k])[x[s + k]] if s + k < len(x) else np.nan for k in range(K)]
            cells.append(row)
    with np.errstate(divide="ignore"):
        log_q = np.log(np.array(cells))
    log_q = log_q[:, 0] if world.kind == "autoregressive" else log_q
    names = ["".join(map(str, x)) for x in outputs]
    return ms.write_store(
        path, rollout_ids=names, prompt_ids=names, tokens=np.concatenate(outputs), log_p=log_p,
        indptr=np.concatenate([[0], np.cumsum([len(x) for x in outputs])]),
        drafters={"small": ms.Drafts("small", "block" if log_q.ndim == 2 else "autoregressive", "rejection", log_q)},
    )  # fmt: skip


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize("rule", ["rejection", "block", "none"])
@pytest.mark.parametrize("kind", oracles.KINDS)
def test_trace_against_enumeration(tmp_path, kind, rule, first_start):
    world = oracles.World(7, 3, kind)
    lengths = (0 if rule == "none" else K,) * CAP
    runs = oracles.decode(world, rule, lengths, CAP, first_start=first_start, stop=STOP)
    outputs = sorted(x for x in runs if oracles.target_probability(world, x) > 0)
    store = world_store(tmp_path / "run", world, outputs)
    for x in outputs:
        found = ms.trace_rollout(store, f"small:K={K},rule={rule}", "".join(map(str, x)), first_start=first_start)
        start, drafted, kept = np.zeros(len(x)), np.zeros(len(x)), np.zeros(len(x))
        total = sum(runs[x].values())
        for history, probability in runs[x].items():
            for s, accepted in history:
                start[s] += probability / total
                kept[s] += accepted * probability / total
                drafted[s : s + accepted] += probability / total
        assert np.allclose(found["start"], start, atol=1e-6)
        assert np.allclose(found["drafted"], drafted, atol=1e-6)
        assert np.allclose(found["start"] * found["accepted"], kept, atol=1e-6)
        assert found["start"].sum() == pytest.approx(ms.evaluate(
            store, f"small:K={K},rule={rule}", first_start=first_start
        ).rounds[outputs.index(x)], abs=1e-12)  # fmt: skip
        assert found["token"].to_list() == list(x) and found["position"].to_list() == list(range(len(x)))


@pytest.mark.parametrize("contender", ["block", "auto:K=3", "block:tree=best-first,budget=5"])
def test_trace_against_simulation(tmp_path, contender):
    store = stored_lists.write(tmp_path / "run", stored_lists.recorded())
    found = ms.trace_rollout(store, contender, "d")
    low, high = int(stored_lists.INDPTR[3]), int(stored_lists.INDPTR[4])
    accept, rng, runs = ms.law_of(store, contender).conditional()[low:high], np.random.default_rng(3), 4000
    starts, drafted, kept = (np.zeros(high - low) for _ in range(3))
    for _ in range(runs):
        s = 0
        while s < high - low:
            starts[s] += 1
            passed = rng.random(accept.shape[1]) < accept[s]
            n = int(np.cumprod(passed).sum())
            drafted[s : s + n] += 1
            kept[s] += n
            s += n + 1
    error = 4.5 * 0.5 / runs**0.5
    assert np.abs(found["start"] - starts / runs).max() < error
    assert np.abs(found["drafted"] - drafted / runs).max() < error
    assert np.abs(found["start"] * found["accepted"] - kept / runs).max() < 4 * error
    law = ms.law_of(store.batch(3, 4), contender)
    played = ms.simulate(law, replicates=runs, rng=rng)
    assert found["start"].sum() == pytest.approx(played.mean(), abs=5 * played.std() / runs**0.5 + 1e-9)


def test_texts_and_probabilities_against_reference(tmp_path):
    drafts = ms.Drafts("auto", "autoregressive", "rejection", np.log([0.25, 0.9, 0.2]))
    given = {"rollout_ids": ["a", "b"], "prompt_ids": ["p", "p"], "tokens": np.array([5, 6, 7]), "indptr": [0, 1, 3]}
    given |= {"log_p": np.log([0.5, 0.9, 0.4]), "drafters": {"auto": drafts}}
    parts = {"divergence": {"entropy": np.array([0.5, 0.25, 1.0]), "raw_entropy": np.array([1.0, 2.0, 3.0])}}
    full = ms.write_store(tmp_path / "full", **given, parts=parts, vocab={6: " <b>"})
    found = ms.trace_rollout(str(tmp_path / "full"), "auto", "b")
    assert found["text"].to_list() == [" <b>", None] and found["entropy"].to_list() == [0.25, 1.0]
    assert np.allclose(found["log_p"], np.log([0.9, 0.4]), atol=1e-6)
    bare = ms.trace_rollout(ms.write_store(tmp_path / "bare", **given), "auto", "b")
    assert bare["text"].to_list() == [None, None] and bare["entropy"].to_list() == [None, None]
    assert bare.schema == found.schema
    cold = {"sampling": {"temperature": 0}, "logprob_space": "processed"}
    greedy = ms.write_store(tmp_path / "cold", **given, parts=parts, metadata=cold)
    assert ms.trace_rollout(greedy, "auto", "b")["entropy"].to_list() == [2.0, 3.0]
    late = ms.trace_rollout(full, "auto", "b", first_start=2)
    assert late["start"].sum() == late["drafted"].sum() == 0 and late["accepted"][0] > 0
    with pytest.raises(ms.RequestError, match="found no rollout 'c'"):
        ms.trace_rollout(full, "auto", "c")
    with pytest.raises(ms.RequestError, match="found drafter 'nobody'"):
        ms.trace_rollout(full, "nobody", "a")


def test_learned_tree_is_that_of_the_whole_store_against_reference(tmp_path):
    store = stored_lists.write(tmp_path / "run", stored_lists.recorded())
    found = ms.evaluate(store, "block:tree=static,budget=3")
    for name, rounds in zip(found.ids, found.rounds, strict=True):
        assert ms.trace_rollout(store, "block:tree=static,budget=3", name)["start"].sum() == rounds
