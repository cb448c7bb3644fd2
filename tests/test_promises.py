"""What drafters promise, on stores, against the same on arrays."""

import json

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.drafting import BestFirst, surrogate_calibration
from markov_spec.evaluation import lists as lists_module
from tests import stored_lists
from tests.stored_lists import INDPTR, D, write

BUDGETS = [2, 5]


@pytest.fixture
def store(tmp_path):
    return write(tmp_path / "run", stored_lists.recorded())


@pytest.mark.parametrize("name", ["best-first", "eagle2", "static"])
def test_calibration_against_reference(store, monkeypatch, name):
    ids, log_q, tokens, _, _ = stored_lists.recorded()
    words = ms.next_tokens(tokens, INDPTR, D)
    builder = ms.fit_static_tree(store, "block", 5).builder if name == "static" else name
    expected = surrogate_calibration(
        ids, log_q.astype(np.float32), words, INDPTR, budgets=BUDGETS, builder=builder, complete=True
    )
    monkeypatch.setattr(lists_module, "RANGE_BYTES", 1)
    found = ms.tree_calibration(store, f"block:tree={name}", budgets=BUDGETS)
    assert found.by_budget.equals(expected.by_budget) and found.by_depth.equals(expected.by_depth)


def test_holdout_re_estimates_on_the_other_prompts_against_reference(store):
    ids, log_q, tokens, _, _ = stored_lists.recorded()
    held = {"pqr"[i] for i in np.random.default_rng(1).permutation(3)[:1]}
    train = np.array([prompt not in held for prompt in "ppqqr"])
    expected = surrogate_calibration(
        ids, log_q.astype(np.float32), ms.next_tokens(tokens, INDPTR, D), INDPTR, budgets=BUDGETS, builder=BestFirst(),
        train=train, complete=True,
    )  # fmt: skip
    found = ms.tree_calibration(store, "block", budgets=BUDGETS, holdout=0.4, seed=1)
    assert found.by_budget.equals(expected.by_budget) and found.rollouts == expected.rollouts


def test_command_against_reference(store, capsys):
    words = ["trees", "calibrate", str(store.path), "block", "--budgets", "2,5", "--holdout", "0.4"]
    found = ms.tree_calibration(store, "block", budgets=BUDGETS, holdout=0.4)
    assert main([*words, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["by_budget"] == found.by_budget.to_dicts() and told["by_depth"] == found.by_depth.to_dicts()
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "re-estimated" in shown and f"{found.by_budget['expected_occupied'][0]:.3f}" in shown
    assert main([*words, "--format", "csv"]) == 0
    assert main(["trees", "calibrate", str(store.path), "block:tree=chain,budget=2"]) == 2
