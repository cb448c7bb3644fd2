"""Accepted drafts as a round finds them: the tree is built, the rollout looked up. Slow; what ranks are tested by."""

from __future__ import annotations

import numpy as np

from markov_spec.arrays import Array
from markov_spec.drafting.inputs import Builder, Lists


def accepted(builder: Builder, lists: Lists, budget: int) -> Array:
    """Give ``N`` from every start, int64 (N,), with trees of ``budget`` nodes on the recorded depths."""
    counts = np.zeros(len(lists.hit), np.int64)
    for s, known in enumerate(lists.recorded):
        nodes = set(builder.paths(lists.log_q[s, :known], budget)) if known else set()
        while counts[s] < known and tuple(lists.hit[s, : counts[s] + 1].tolist()) in nodes:
            counts[s] += 1
    return counts
