"""Speed of the engine as ratios to baselines measured in the same run.

``pytest tests/benchmarks -s`` prints them; 1000 rollouts of 1024 tokens, K = 15, float32. Each figure is the least of
several rounds in which baseline and candidate take turns, so that a drift of the machine hits both.
"""

import time

import numba
import numpy as np
import pytest

import markov_spec as ms

ROLLOUTS, TOKENS, DEPTH = 1000, 1024, 15
INDPTR = np.arange(0, ROLLOUTS * TOKENS + 1, TOKENS)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    log_p = np.log(rng.uniform(0.2, 1, ROLLOUTS * TOKENS)).astype(np.float32)
    log_q = np.log(rng.uniform(0.1, 1, (ROLLOUTS * TOKENS, DEPTH))).astype(np.float32)
    return log_p, log_q, ms.round_law(log_p, log_q, INDPTR, rule="rejection")


@numba.njit
def plain_recursion(accept, indptr):
    """Expected rounds, every in-round state ``U[s,k]`` stored, as published implementations do."""
    depth = accept.shape[1]
    total = 0.0
    for i in range(indptr.size - 1):
        size = indptr[i + 1] - indptr[i]
        V = np.zeros(size + depth + 2)
        U = np.zeros((size, depth + 1))
        for s in range(size - 1, -1, -1):
            last = min(depth, size - s)
            U[s, last] = V[s + last + 1]
            for k in range(last, 0, -1):
                a = accept[indptr[i] + s, k - 1]
                U[s, k - 1] = a * U[s, k] + (1 - a) * V[s + k]
            V[s] = 1 + U[s, 0]
        total += V[0]
    return total


@numba.njit
def monte_carlo(accept, indptr, replicates):
    """Mean rounds over literal walks."""
    depth = accept.shape[1]
    total = 0
    for i in range(indptr.size - 1):
        size = indptr[i + 1] - indptr[i]
        for _ in range(replicates):
            s = 0
            while s < size:
                n = 0
                while n < min(depth, size - s) and np.random.random() < accept[indptr[i] + s, n]:  # noqa: NPY002 (inside numba)
                    n += 1
                s += n + 1
                total += 1
    return total / replicates


def ratio(candidate, baseline, rounds=7):
    """Least time of the candidate over the least of the baseline, in turns after a warm-up."""
    candidate(), baseline()
    best = [float("inf")] * 2
    for _ in range(rounds):
        for i, run in enumerate((candidate, baseline)):
            begin = time.perf_counter()
            run()
            best[i] = min(best[i], time.perf_counter() - begin)
    return best[0] / best[1]


def tell(name, found):
    print(f"\n{name}: {found:.2f}")


def test_solve_against_sum(data, benchmark):
    _, _, law = data
    benchmark.pedantic(lambda: ms.solve(law, threads=1), rounds=5, warmup_rounds=1)
    tell("solve / numpy.sum", ratio(lambda: ms.solve(law, threads=1), lambda: np.sum(law.accept)))


def test_solve_against_plain_recursion(data):
    _, _, law = data
    found = ratio(lambda: plain_recursion(law.accept, INDPTR), lambda: ms.solve(law, threads=1), rounds=4)
    tell("plain recursion with stored states / solve", found)


def test_solve_against_monte_carlo(data):
    _, _, law = data
    found = ratio(lambda: monte_carlo(law.accept, INDPTR, 100), lambda: ms.solve(law, threads=1), rounds=2)
    tell("Monte Carlo of 100 replicates / solve", found)


def test_two_threads(data):
    _, _, law = data
    found = ratio(lambda: ms.solve(law, threads=1), lambda: ms.solve(law, threads=2))
    tell("one thread / two threads", found)


def test_round_law_against_sum(data):
    log_p, log_q, law = data
    found = ratio(lambda: ms.round_law(log_p, log_q, INDPTR, rule="rejection"), lambda: np.sum(law.accept))
    tell("round_law / numpy.sum", found)
