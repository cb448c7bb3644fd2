"""Speed of the bounds on rounds as a ratio to ``solve`` in the same run; 1000 rollouts of 1024 tokens, K = 15, float32.

``pytest tests/benchmarks/test_intervals.py -s`` prints the figures.
"""

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.chain import bound_rounds, bound_rounds_block
from tests.benchmarks.test_engine import DEPTH, INDPTR, ROLLOUTS, TOKENS, ratio, tell


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    low = rng.uniform(0.05, 0.9, (ROLLOUTS * TOKENS, DEPTH)).astype(np.float32)
    return low, low + np.float32(0.1)


def test_bound_rounds_against_solve(data):
    law = ms.RoundLaw(data[0], INDPTR)
    for threads in (1, 2):
        found = ratio(
            lambda threads=threads: bound_rounds(*data, INDPTR, threads=threads),
            lambda threads=threads: ms.solve(law, threads=threads),
            rounds=20,
        )
        tell(f"bound_rounds / solve, threads {threads} (at most 3)", found)
        assert found <= 3


def test_other_bounds_against_solve(data):
    """Lengths that vary by start, the patterns, and block verification, which is spent in exponentials."""
    law = ms.RoundLaw(data[0], INDPTR)
    logs = [np.log(end) + np.float32(0.2) for end in data]
    lengths = np.random.default_rng(1).integers(0, DEPTH + 1, ROLLOUTS * TOKENS)
    for name, run in (
        ("varying lengths", lambda: bound_rounds(*data, INDPTR, draft_length=lengths, threads=1)),
        ("and a pattern", lambda: bound_rounds(*data, INDPTR, threads=1).low_pattern),
        ("block verification", lambda: bound_rounds_block(*logs, INDPTR, threads=1)),
    ):
        tell(f"bound_rounds, {name} / solve", ratio(run, lambda: ms.solve(law, threads=1), rounds=3))
