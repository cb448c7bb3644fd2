"""Block verification (A4): ``S[s,k] = min_{0<=l<=k} prod_{i<=l} r[s,i]``, ``r[s,k] = q[s,k] / p[s+k-1]``.

All drafts of a block are judged together. With ``w[0] = 1``, ``w[k] = min(1, w[k-1] p(x_k)/q(x_k))``, prefix
``k < K`` passes its test with probability ``h[k] = m / (m + 1 - w[k])``, ``m = sum_v (w[k] p(v) - q(v))_+`` at the next
depth, and ``h[K] = w[K]``. The longest prefix that passes is kept; then the target's token is drawn from the normalised
``(w[k] p - q)_+``, or from ``p`` if ``k = K``. So at least ``k`` drafts are kept with probability ``w[k]`` given the
first ``k``: the most that a lossless rule can keep.

Proof. Unrolled, ``w[k] = min_{0<=l<=k} prod_{l<i<=k} p_i/q_i``. The drafts begin with ``x_1..x_k`` and at least ``k``
are kept with probability ``w[k] prod_{i<=k} q_i``; the output begins with them with probability ``prod_{i<=k} p_i``.
The quotient is ``min_l prod_{i<=k} (q_i/p_i) prod_{l<i<=k} (p_i/q_i) = min_l prod_{i<=l} r_i``. The acceptance is
``a[k] = S[k] / S[k-1]``, 0 once ``S`` is 0; it depends on the start even when ``q`` does not.

Needs ``p`` and ``q`` at the realised token. Products are sums of logarithms, so long blocks do not underflow.
Source: Sun et al. 2025, Block Verification Accelerates Speculative Decoding (arXiv 2403.10444).
"""

from __future__ import annotations

import numpy as np

from markov_spec.acceptance import _numba
from markov_spec.acceptance.inputs import Inputs, Rule, ratio_cells
from markov_spec.acceptance.literal import Round, Tokens, excess
from markov_spec.arrays import RoundLaw


def law(inputs: Inputs) -> RoundLaw:
    """Make the round law of block verification."""
    log_q = inputs.log_probs()
    length = inputs.lengths(log_q)
    if isinstance(length, int):
        depth = length
    else:
        depth = log_q.shape[1] if log_q.ndim == 2 else int(np.max(length, initial=0))
    accept = ratio_cells(_numba.block, inputs, log_q, length, depth, log_p=inputs.target_log_probs)
    return RoundLaw.trusted(accept, inputs.indptr, length, RULE.exactness)


def verify(this: Round) -> Tokens:
    """Play a round: draft all, let every prefix pass or fail its own test, and keep the longest that passes."""
    drafts: Tokens = ()
    rows = []
    for _ in range(this.length):
        rows.append(this.drafter(drafts))
        drafts = (*drafts, this.draw(rows[-1]))
    w, kept, left = 1.0, 0, np.zeros(0)
    for k, q in enumerate(rows):
        p = this.target(drafts[:k])
        m = float(np.maximum(w * p - q, 0).sum())
        if k == 0 or (m > 0 and this.uniform() < m / (m + (1 - w))):
            kept, left = k, excess(w * p, q)
        w = min(1.0, w * p[drafts[k]] / q[drafts[k]])
    if this.length == 0 or this.uniform() < w:
        kept, left = this.length, this.target(drafts)
    return (*drafts[:kept], this.draw(left))


RULE = Rule("block", "A4", ("log_p", "log_q"), "exact", law, verify=verify)
