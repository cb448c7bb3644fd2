"""Lists that the recorder keeps of block drafters past the end of a rollout, against passes of the model."""

import numpy as np
import pytest
import torch

import markov_spec as ms
from markov_spec.sources import drafters, record
from tests.sources.test_recorder import Hydra, each_rollout


def state_after(target, known):
    """The hidden states that a block begun after these tokens reads."""
    with torch.inference_mode():
        states = target.model(torch.tensor([known]), output_hidden_states=True).hidden_states
    return torch.cat([states[2][0, -1], states[-1][0, -1]]).float()


class Heads(Hydra):
    """A block drafter whose depths read no drafts, so that it has a list at every depth, past the end too."""

    def log_probs(self, tokens, hidden, starts):
        state = hidden[:, starts[0] - 1].float() @ self.map
        return torch.stack([torch.log_softmax((k + 1) * state.roll(k, -1), -1) for k in range(self.depth)], 2)


class Shy(Heads):
    """Gives past the end, by the start, NaN at depth 2 only, or at depth 3 nothing or too much."""

    def log_probs(self, tokens, hidden, starts):
        blocks = super().log_probs(tokens, hidden, starts)
        for depth, wrong, some in ((1, torch.nan, (0, 2)), (2, -torch.inf, (1,)), (2, 0.0, (3,))):
            late = (starts[0] + depth >= tokens.shape[1]) & torch.isin(starts[0] % 4, torch.tensor(some))
            blocks[:, late, depth] = wrong
        return blocks


@pytest.mark.parametrize("cells", [1, drafters.CELL_BYTES])
def test_lists_past_the_end_against_reference(target, prompts_path, tmp_path, monkeypatch, cells):
    monkeypatch.setattr(drafters, "CELL_BYTES", cells)  # starts that are asked for at a time
    store = record(
        target, {"heads": Heads(target), "shy": Shy(target)}, prompts_path, tmp_path / "run", max_new_tokens=6,
        rollouts_per_prompt=2, drafter_top=5, divergence=True, progress=False,
    )  # fmt: skip
    heads, rollouts = Heads(target), store.rollouts()
    found, shy = store.drafter_part("heads", "lists"), store.drafter_part("shy", "lists")
    gone = 0
    for rows, prompt, _ in each_rollout(store):
        tokens = rollouts.tokens[rows].tolist()
        for s in range(len(tokens)):
            logits, row = state_after(target, prompt + tokens[:s]) @ heads.map, rows.start + s
            for k in range(heads.depth):
                log_q = torch.log_softmax((k + 1) * logits.roll(k), -1).numpy()
                order = np.argsort(-log_q, kind="stable")[:5]
                assert found["ids"][row, k].tolist() == order.tolist()
                np.testing.assert_allclose(found["log_q"][row, k], log_q[order], atol=2e-4)
                assert found["tail_mass"][row, k] == pytest.approx(1 - np.exp(log_q[order]).sum(), abs=1e-4)
                first = 1 if (len(prompt) + s) % 2 == 0 else 2
                none = k >= first and s + first >= len(tokens)
                assert np.isnan(shy["log_q"][row, k]).all() == np.isnan(shy["tail_mass"][row, k]) == none
                assert shy["ids"][row, k].tolist() == ([-1] * 5 if none else order.tolist())
                gone += none
    assert gone > 5 and np.isnan(store.drafter_part("heads", "divergence")["overlap"]).sum() == 3 * len(rollouts.ids)
    for part in ("law", "divergence"):
        one, other = store.drafter_part("heads", part), store.drafter_part("shy", part)
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert [f for f in ms.store.check_integrity(store.path) if f.severity != "note"] == []


def test_trees_of_recorded_lists_are_exact_invariant(target, prompts_path, tmp_path):
    store = record(
        target, {"heads": Heads(target), "shy": Shy(target), "lookup": "ngram:2,4"}, prompts_path, tmp_path / "run",
        max_new_tokens=8, rollouts_per_prompt=2, drafter_top=40, progress=False,
    )  # fmt: skip
    kept, open_, lookup = (
        ms.evaluate(store, f"{name}:tree=best-first,budget=20") for name in ("heads", "shy", "lookup")
    )
    assert (kept.exactness, open_.exactness, lookup.exactness) == ("exact", "bound", "exact")
    sure = open_.uncertain == 0
    assert (open_.rounds[sure] == kept.rounds[sure]).all()
