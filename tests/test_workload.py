"""Warnings of degenerate rollouts and of prompts that decide a pooled figure."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.evaluation.workload import repeated_share, workload_warnings
from markov_spec.metrics import largest_share, leave_one_out, pooled_length


def write(path, rollouts, rounds, prompts=None):
    """Write a store whose drafter ``d`` finishes each rollout in certain rounds, as even as can be."""
    drafted = []
    for tokens, count in zip(rollouts, rounds, strict=True):
        lengths = [len(tokens) // count + (i < len(tokens) % count) for i in range(count)]
        drafted += [length - 1 for length in lengths for _ in range(length)]
    depth = max(drafted)
    ids = [f"r{i}" for i in range(len(rollouts))]
    sizes = [len(tokens) for tokens in rollouts]
    drafts = ms.Drafts("d", "block", "match", np.zeros((sum(sizes), depth)), drafted=np.array(drafted))
    return ms.write_store(
        path, rollout_ids=ids, prompt_ids=prompts or ids, tokens=np.concatenate(rollouts),
        indptr=np.cumsum([0, *sizes]), log_p=np.full(sum(sizes), -0.5), drafters={"d": drafts},
    )  # fmt: skip


def test_case_113_repetitive_rollouts_against_closed_form(tmp_path, capsys):
    rng = np.random.default_rng(0)
    plain = [rng.permutation(1000)[:100] for _ in range(18)]
    rollouts = [*plain, np.full(500, 7), np.arange(500) % 2]
    store = write(tmp_path / "run", rollouts, [40] * 18 + [100, 100])
    found = ms.evaluate(store, "d")
    assert found.repetitive.tolist() == [False] * 18 + [True, True]
    (row,) = found.results()
    assert row["repetitive_rollouts"] == 2
    assert row["pooled_length"] == pytest.approx(2800 / 920, abs=1e-12)
    assert row["pooled_length_without_repetitive"] == pytest.approx(2.5, abs=1e-12)
    assert "2 of 20 rollouts are repetitive" in row["warnings"][0]
    assert "2.5000 without them, 3.0435 with" in row["warnings"][0]
    assert main(["evaluate", str(store.path)]) == 0
    assert "warning: d: 2 of 20 rollouts are repetitive" in capsys.readouterr().out


def test_case_114_one_prompt_dominates_against_closed_form(tmp_path):
    rng = np.random.default_rng(0)
    rollouts = [rng.permutation(5000)[:size] for size in [23] * 10 + [3660]]
    (row,) = ms.evaluate(write(tmp_path / "run", rollouts, [10] * 10 + [100]), "d").results()
    assert row["pooled_length"] == pytest.approx(19.45, abs=1e-12)
    assert row["request_mean"] == pytest.approx((10 * 2.3 + 36.6) / 11, abs=1e-9)
    (told,) = row["warnings"]
    assert "prompt 'r10' holds 94% of the tokens" in told and "leaving one prompt out gives 2.3000 to 20." in told


def test_rollouts_of_one_prompt_count_together_against_closed_form(tmp_path):
    rng = np.random.default_rng(0)
    rollouts = [rng.permutation(500)[:size] for size in [20, 20, 20, 20]]
    store = write(tmp_path / "run", rollouts, [10, 10, 2, 2], prompts=["a", "a", "b", "b"])
    (told,) = ms.evaluate(store, "d").results()[0]["warnings"]
    assert "leaving one prompt out gives 2.0000 to 10.0000" in told
    one = write(tmp_path / "one", rollouts, [10, 10, 2, 2], prompts=["a"] * 4)
    assert ms.evaluate(one, "d").results()[0]["warnings"] == []  # nothing can be left out


def test_all_repetitive_or_nothing_to_decode_invariant(tmp_path):
    (row,) = ms.evaluate(write(tmp_path / "run", [np.full(100, 7)], [10]), "d").results()
    assert row["pooled_length_without_repetitive"] is None and "no rollout is left" in row["warnings"][0]
    assert ms.evaluate(tmp_path / "run", "d", first_start=100).results()[0]["warnings"] == []
    assert workload_warnings(np.zeros(2), np.zeros(2), ["a", "b"], np.zeros(2, bool)) == []


@given(st.lists(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 1), max_size=40), max_size=4))
def test_repeated_share_against_reference(rollouts):
    expected = []
    for tokens in rollouts:
        grams = Counter(tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3))
        expected.append(1 - len(grams) / max(len(tokens) - 3, 1) if grams else 0.0)
    flat = [v for tokens in rollouts for v in tokens]
    found = repeated_share(np.array(flat, dtype=np.int64), np.cumsum([0, *map(len, rollouts)]))
    np.testing.assert_allclose(found, expected, atol=1e-15)


def test_leave_one_out_against_reference():
    rng = np.random.default_rng(0)
    tokens, rounds = rng.integers(1, 99, 30), rng.uniform(1, 9, 30)
    groups = [f"p{i}" for i in rng.integers(0, 5, 30)]
    for group, length in leave_one_out(tokens, rounds, groups).items():
        kept = np.array(groups) != group
        assert length == pytest.approx(pooled_length(tokens[kept], rounds[kept]), rel=1e-12)
    assert leave_one_out([3], [1], ["a"]) == {}
    assert largest_share([1, 2, 3], ["a", "b", "a"]) == ("a", 4 / 6)
