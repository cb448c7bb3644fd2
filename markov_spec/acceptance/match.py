"""Match (A2, A8): ``S[s,k] = prod_{i<=k} 1{x[s+i-1] is among the candidates}``.

The draft (A2), or the set of candidates at each depth (A8), is fixed before the target draws; the target draws its own
token ``x ~ p`` and the draft is accepted if it is that token, or one of the candidates is.

Proof. The output is the target's own draw, so the rule is lossless; given the rollout the draw is known, and acceptance
is the event that it was a candidate: probability 0 or 1.

Needs ``hit``: whether the realised token was a candidate. A one-hot ``log_q`` (0 or ``-inf``) says the same.
Source: Leviathan et al. 2023 (arXiv 2211.17192), greedy drafts; Miao et al. 2024, SpecInfer (arXiv 2305.09781), trees.
"""

from __future__ import annotations

import numpy as np

from markov_spec.acceptance.inputs import Inputs, Rule, bad_cell
from markov_spec.acceptance.literal import Round, Tokens, decide_by_depth
from markov_spec.arrays import Array, RoundLaw, cells_inside


def law(inputs: Inputs) -> RoundLaw:
    """Make the round law of matching."""
    if inputs.hit is None and inputs.log_q is not None:
        accept, length = _one_hot(inputs)
    else:
        hit = inputs.hits()
        accept, length = hit.astype(np.float32), inputs.lengths(hit)
    if accept.ndim == 2 and isinstance(length, int):
        accept = accept[:, :length]
    return RoundLaw.trusted(accept, inputs.indptr, length, RULE.exactness)


def _one_hot(inputs: Inputs) -> tuple[Array, int | Array]:
    log_q = inputs.log_probs()
    length = inputs.lengths(log_q)
    bad = ~((log_q == 0) | (log_q == -np.inf))
    if log_q.ndim == 2:
        bad &= cells_inside(inputs.indptr, log_q.shape[1], length)
    if bad.any():
        row, column = divmod(int(np.argmax(bad)), log_q.shape[1] if log_q.ndim == 2 else 1)
        allowed = "0 or -inf, a draft fixed beforehand; rule 'match' needs hit"
        raise bad_cell(inputs.indptr, log_q, "log_q", row, column + 1, allowed)
    return (log_q == 0).astype(log_q.dtype), length


def verify(this: Round) -> Tokens:
    """Play a round: the candidates are the drafter's most probable tokens, the lower id first among equals."""
    return decide_by_depth(this, _decide)


def _decide(this: Round, p: Array, q: Array) -> tuple[int, bool]:
    candidates = np.argsort(-q, kind="stable")[: this.drafts]
    x = this.draw(p)
    return x, x in candidates


RULE = Rule("match", "A2, A8", ("hit",), "exact", law, verify=verify, several=True)
