"""Coverage of the intervals of a comparison: ``python tests/benchmarks/coverage.py [STUDIES]``.

Draws synthetic studies with clustered prompts and known figures (2000 of each kind unless told), compares two
contenders in each and prints in how many of them each 95 % interval holds the truth. Two standard errors are 1 % of
2000.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.pop(0)  # this folder, in which numba would take this file for the package coverage
sys.path.insert(0, str(Path(__file__).parents[2]))
from markov_spec.comparison import compare_vectors
from tests.comparison.studies import study

INTERVALS = ("ratio", "ratio_bca", "difference", "difference_bca", "geometric_ratio", "macro_difference")
KINDS = {
    "20 prompts x 1": {"prompts": 20, "rollouts": 1},
    "20 prompts x 4": {"prompts": 20, "rollouts": 4},
    "80 prompts x 2": {"prompts": 80, "rollouts": 2},
    "80 prompts x 2, long-tailed": {"prompts": 80, "rollouts": 2, "spread": 1.0},
    "80 prompts x 2, alike": {"prompts": 80, "rollouts": 2, "own": 0.03, "noise": 0.03},
    "300 prompts x 1": {"prompts": 300, "rollouts": 1},
}


def covered(kind, studies, resamples=999):
    """Share of the studies in which each interval holds the truth, of pooled figures too."""
    rng, inside = np.random.default_rng(0), np.zeros(len(INTERVALS) + 2)
    for _ in range(studies):
        frame, truth = study(rng, benchmarks=2, **kind)
        found = compare_vectors(frame, baseline="a", resamples=resamples, rng=rng)
        true = {"ratio": truth["b"] / truth["a"], "difference": truth["b"] - truth["a"]}
        row, own = found.pair("b", "a"), found.contenders.row(0, named=True)
        held = [
            row[f"{name}_low"] < true["ratio" if "ratio" in name else "difference"] < row[f"{name}_high"]
            for name in INTERVALS
        ]
        held += [own[f"{name}_low"] < truth["a"] < own[f"{name}_high"] for name in ("pooled", "pooled_bca")]
        inside += held
    return inside / studies


def main(studies):
    """Print a row for each kind of study."""
    names = (*INTERVALS, "pooled", "pooled_bca")
    print(" " * 28, *(f"{name:>16}" for name in names))
    for told, kind in KINDS.items():
        print(f"{told:28}", *(f"{share:16.1%}" for share in covered(kind, studies)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
