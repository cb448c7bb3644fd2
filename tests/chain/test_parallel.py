"""Kernels in forked workers, in threads, and where nothing can be cached."""

import os
import shutil
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

COUNT_WARNINGS = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import numpy as np
    import markov_spec as ms
    law = ms.round_law(np.zeros(3), np.log(np.full((3, 2), .5)), [0, 3], rule="rejection")
    print(ms.solve(law).expected.tolist(), [str(w.message) for w in caught if w.category is RuntimeWarning])
"""


def _run(code, folder, **environment):
    inherited = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder, env=inherited | environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_case_99_forked_workers_and_threads_invariant():
    assert _run(FORK, ROOT) == "equal"


def _copy_without_cache(folder):
    shutil.copytree(ROOT / "markov_spec", folder / "markov_spec", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "markov_spec" / "__pycache__").write_text("")  # a file: unwritable as a directory even for root


def test_nowhere_to_cache_invariant(tmp_path):
    _copy_without_cache(tmp_path)
    found = _run(COUNT_WARNINGS, tmp_path, HOME="/dev/null/none")
    assert found.startswith("[2.0] ['markov_spec: no cache directory is writable")
    assert found.count("no cache directory") == 1


def test_cache_location_holds_the_version_invariant(tmp_path):
    _copy_without_cache(tmp_path)
    assert _run(COUNT_WARNINGS, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == "[2.0] []"
    assert [folder.name.startswith("markov_spec-") for folder in (tmp_path / "cache").iterdir()] == [True]
    assert list((tmp_path / "cache").rglob("*.nbi"))
