"""The stores under ``data/`` hold what their README says."""

from pathlib import Path

import numpy as np
import pytest

import markov_spec as ms

DATA = Path(__file__).parents[1] / "data"
DRAFTERS = ("block", "drop1", "drop3", "lookup", "quant5")
STORES = ("demo", "demo-greedy")


@pytest.mark.parametrize("name", STORES)
def test_stores_are_sound_invariant(name):
    findings = ms.store.check_integrity(DATA / name)
    assert {finding.severity for finding in findings} <= {"note"}, findings
    store = ms.open_store(DATA / name, verify=True)
    assert store.drafters == DRAFTERS
    assert store.parts == ("divergence", "lists")
    assert store.part("lists")["ids"].shape[1] == 32
    for drafter in DRAFTERS:
        assert {"law", "divergence", "lists"} <= set(store.drafter_parts(drafter))


def test_stores_and_weights_stay_small_invariant():
    size = {name: sum(f.stat().st_size for f in (DATA / name).rglob("*") if f.is_file()) for name in STORES}
    assert sum(size.values()) <= 30e6
    assert (DATA / "block.safetensors").stat().st_size <= 2e6


def test_demo_covers_four_benchmarks_twice_invariant():
    rollouts = ms.open_store(DATA / "demo").rollouts()
    assert sorted(set(rollouts.benchmarks)) == ["chat", "code", "extraction", "math"]
    prompts, counts = np.unique(rollouts.prompt_ids, return_counts=True)
    assert len(prompts) >= 64 and set(counts.tolist()) == {2}
    assert np.diff(rollouts.indptr).max() <= 96
    greedy = ms.open_store(DATA / "demo-greedy").rollouts()
    assert len(greedy) == 32 and not greedy.log_p.any()


@pytest.mark.parametrize(("drafter", "overlap"), [("quant5", 0.79), ("drop1", 0.80), ("drop3", 0.57)])
def test_overlap_of_drafters_against_closed_form(drafter, overlap):
    found = ms.open_store(DATA / "demo").drafter_part(drafter, "divergence")["overlap"]
    assert found.mean(dtype=float) == pytest.approx(overlap, abs=0.02)


def test_block_drafter_is_worth_its_depth_invariant():
    rates = ms.evaluate(DATA / "demo", "block").results()[0]["acceptance_by_depth"]["conditional"]
    assert rates[2] >= 0.25


@pytest.mark.parametrize("name", STORES)
def test_trees_of_any_budget_are_exact_invariant(name):
    """Kept ranks agree with the recorded lists wherever these are long enough, and are certain everywhere."""
    store = ms.open_store(DATA / name)
    curve = ms.budget_curve(store, "block", budgets=[4, 64, 1024])
    assert (curve["exactness"] == "exact").all() and curve["rounds"].is_sorted(descending=True)
    part, rollouts = store.drafter_part("block", "lists"), store.rollouts()
    words = ms.next_tokens(rollouts.tokens, rollouts.indptr, 8)
    listed = ms.tree_ranks(part["ids"], part["log_q"], words, max_budget=1024)
    kept = store.drafter_part("block", "tree-rank")
    assert (kept["exact_to"] == 1024).all()
    for n in (1, 8, 20, 64, 512):
        sure = listed.exact_to >= n
        assert ((kept["rank"] <= n).sum(1) == listed.accepted(n))[sure].all() and (sure.mean() > 0.3 or n > 64)


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("contender", ["quant5:K=4", "drop3:K=2", "block:K=3", "lookup"])
def test_expected_rounds_solve_the_linear_system_against_closed_form(name, contender):
    """``V = 1 + P V`` with the transition matrix between starts written out, cell by cell."""
    store = ms.open_store(DATA / name)
    found, rollouts = ms.evaluate(store, contender), store.rollouts()
    drafts = store.drafter(contender.split(":")[0])
    depth = found.draft_length
    for i in range(0, len(rollouts), 9):
        begin, size = int(rollouts.indptr[i]), int(np.diff(rollouts.indptr)[i])
        P = np.zeros((size + 1, size + 1))
        for s in range(size):
            survival = [1.0]
            for k in range(1, min(depth, size - s) + 1):
                row = (begin + s, k - 1) if drafts.kind == "block" else begin + s + k - 1
                ratio = np.exp(float(drafts.log_q[row]) - float(rollouts.log_p[begin + s + k - 1]))
                survival.append(survival[-1] * min(1.0, ratio))
            for k, chance in enumerate(survival):
                P[s, min(s + k + 1, size)] += chance - (survival[k + 1] if k + 1 < len(survival) else 0.0)
        V = np.linalg.solve(np.eye(size) - P[:size, :size], np.ones(size))
        assert found.rounds[i] == pytest.approx(V[0], rel=1e-7)  # laws of float32 records are float32


def test_greedy_rounds_are_certain_against_closed_form():
    store = ms.open_store(DATA / "demo-greedy")
    lengths = np.diff(store.rollouts().indptr)
    for drafter in DRAFTERS:
        found = ms.evaluate(store, drafter)
        assert found.rule == "match"
        np.testing.assert_array_equal(found.rounds, np.round(found.rounds))
        np.testing.assert_array_equal(found.variance, 0)
        assert (found.rounds <= lengths).all() and (found.rounds >= -(-lengths // (found.draft_length + 1))).all()
