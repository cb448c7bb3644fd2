"""Speed of thresholds: 10 million lists of the 20 most probable tokens, float32.

``pytest tests/benchmarks/test_certificates.py -s`` prints the figures.
"""

import time

import numpy as np
import pytest

from markov_spec.certificates import kl_to_reject, kl_to_reject_margin
from tests.benchmarks.test_engine import tell

ROWS, LISTED = 10_000_000, 20
SETTINGS = [
    ("strict", {}), ("additive", {"t": 0.3}), ("multiplicative", {"alpha": 0.1}), ("top-m", {"m": 4}),
    ("typical", {}), ("tree", {"m": 2}), ("tree", {"m": 8}),
]  # fmt: skip


@pytest.fixture(scope="module")
def data():
    """Noisy Zipf lists and their tails; a million different ones, ten times."""
    rng = np.random.default_rng(0)
    slope = np.maximum(rng.normal(2, 0.8, (ROWS // 10, 1)), 1.05)
    logs = -slope * np.log(np.arange(1, LISTED + 1)) + rng.normal(0, 0.5, (ROWS // 10, LISTED))
    logs = -np.sort(-logs, axis=1)
    p = np.exp(logs - logs[:, :1])
    p = np.tile((p * 0.97 / p.sum(axis=1, keepdims=True)).astype(np.float32), (10, 1))
    return p, 1 - p.sum(axis=1, dtype=np.float64)


def told(name, run):
    """Print the least seconds of three runs after one that compiles, on a busy machine above what the cores spend."""
    run()
    times = []
    for _ in range(3):
        begin = time.perf_counter(), time.process_time()
        run()
        times.append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
    seconds, spent = map(min, zip(*times, strict=True))
    tell(f"{name}, seconds", seconds)
    tell("  seconds of all cores together", spent)
    tell("  million rows a second", ROWS / seconds / 1e6)


@pytest.mark.parametrize(("rule", "given"), SETTINGS)
def test_ten_million_lists(data, rule, given):
    p, tail = data
    for divergence in ("kl", "tv", "reverse-kl"):
        told(
            f"{rule} {given}, {divergence}",
            lambda name=divergence: kl_to_reject(p, rule=rule, tail_mass=tail, divergence=name, **given),
        )


def test_ten_million_margins(data):
    p, _ = data
    margins = p[:, 0] - p[:, 8]
    told("margins", lambda: kl_to_reject_margin(margins, rule="tree", m=8))
