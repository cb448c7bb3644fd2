"""Kernels in forked workers and in threads."""

import subprocess
import sys
from pathlib import Path

import markov_spec

ROOT = Path(markov_spec.__file__).parents[1]

FORK = """
import threading
import numpy as np
import torch
import markov_spec as ms

law = ms.RoundLaw.from_acceptance(np.random.default_rng(0).random((40_000, 15), dtype=np.float32), [0, 15_000, 40_000])

class Once(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return ms.solve(law, threads=2).expected

expected = ms.solve(law, threads=2).expected
loader = torch.utils.data.DataLoader(Once(), batch_size=None, num_workers=2, multiprocessing_context="fork")
found = [np.asarray(batch) for batch in loader]
threads = [threading.Thread(target=lambda: found.append(ms.solve(law, threads=2).expected)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 6 and all((f == expected).all() for f in found), found
print("equal")
"""


def test_case_99_forked_workers_and_threads_invariant():
    done = subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "equal"
