"""Speed of the engine as ratios to baselines measured in the same run.

``pytest tests/benchmarks -s`` prints them; 1000 rollouts of 1024 tokens, K = 15, float32. Each figure is the least of
several rounds in which baseline and candidate take turns, so that a drift of the machine hits both.
"""

import subprocess
import sys
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
    """Expected rounds, second moments and occupancy, every in-round state ``(s, k)`` of them stored, float64."""
    rows, depth = accept.shape
    U, W, flow = np.zeros((rows, depth + 1)), np.zeros((rows, depth + 1)), np.zeros((rows, depth + 1))
    V, second, o = np.zeros(rows + depth + 2), np.zeros(rows + depth + 2), np.zeros(rows + depth + 2)
    histogram = np.zeros((indptr.size - 1, depth + 1))
    for i in range(indptr.size - 1):
        first, end = indptr[i], indptr[i + 1]
        for s in range(end - 1, first - 1, -1):
            last = min(depth, end - s)
            after = s + last + 1
            U[s, last] = V[after] if after < end else 0.0
            W[s, last] = second[after] if after < end else 0.0
            for k in range(last, 0, -1):
                a = accept[s, k - 1]
                v, w = (V[s + k], second[s + k]) if s + k < end else (0.0, 0.0)
                U[s, k - 1] = a * U[s, k] + (1 - a) * v
                W[s, k - 1] = a * W[s, k] + (1 - a) * w
            V[s] = 1 + U[s, 0]
            second[s] = 1 + 2 * U[s, 0] + W[s, 0]
        o[first] = 1.0
        for s in range(first, end):
            last = min(depth, end - s)
            flow[s, 0] = o[s]
            for k in range(1, last + 1):
                a = accept[s, k - 1]
                flow[s, k] = flow[s, k - 1] * a
                histogram[i, k - 1] += flow[s, k - 1] - flow[s, k]
                if s + k < end:
                    o[s + k] += flow[s, k - 1] * (1 - a)
            histogram[i, last] += flow[s, last]
            if s + last + 1 < end:
                o[s + last + 1] += flow[s, last]
    return V, second, o, histogram


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
    """Least time of the candidate over the least of the baseline; each runs for 50 ms or once in its turn."""
    candidate(), baseline()
    best = [float("inf")] * 2
    for _ in range(rounds):
        for i, run in enumerate((candidate, baseline)):
            turn = time.perf_counter()
            while (begin := time.perf_counter()) < turn + 0.05:
                run()
                best[i] = min(best[i], time.perf_counter() - begin)
    return best[0] / best[1]


def tell(name, found):
    print(f"\n{name}: {found:.2f}")


def test_solve_against_sum(data, benchmark):
    _, _, law = data
    benchmark.pedantic(lambda: ms.solve(law, threads=1), rounds=5, warmup_rounds=1)
    tell("solve / numpy.sum", ratio(lambda: ms.solve(law, threads=1), lambda: np.sum(law.accept)))


def test_solve_with_price_against_sum(data):
    _, _, law = data
    prices = np.random.default_rng(1).random((ROLLOUTS * TOKENS, DEPTH + 1))
    for name, price in (("one price", 1.0), ("a price for each start and number", prices)):
        found = ratio(lambda price=price: ms.solve(law, price=price, threads=1), lambda: np.sum(law.accept))
        tell(f"solve with {name} / numpy.sum", found)


def test_expected_inverse_against_solve(data):
    _, _, law = data
    found = ratio(lambda: ms.expected_inverse(law, threads=1), lambda: ms.solve(law, threads=1), rounds=4)
    tell("E[1/R] / solve", found)


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


def test_import():
    code = "import time; begin = time.perf_counter(); import markov_spec; print(time.perf_counter() - begin)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(5)]
    tell("import of the package, seconds", min(float(run.stdout) for run in runs))
