"""Recursive rejection at each node (A6): ``S[s,k] = prod_{i<=k} min(1, c_m[s,i] r[s,i])``, ``r = q/p``.

At each depth, after the accepted prefix, ``m`` drafts are sampled from ``q``, one after another and with replacement.
They are tested in turn: draft ``x`` is accepted with probability ``min(1, p'(x)/q(x))``, where ``p'`` is ``p`` at first
and the normalised ``(p' - q)_+`` after each rejection. The first accepted one extends the prefix; if there is none, the
target's token is drawn from the last ``p'``.

Proof. Let ``c_0 = 0``, ``W_i = sum_v (p(v) - c_i q(v))_+`` and ``c_{i+1} = c_i + W_i``, so ``c_1 = 1``. By induction
test ``i+1`` is reached with probability ``W_i`` and there ``p' = (p - c_i q)_+ / W_i``. It accepts ``x`` with
probability ``W_i min(p', q) = min(p, c_{i+1} q) - min(p, c_i q)`` at ``x``; over all ``m`` tests that is
``min(p, c_m q)``. The last ``p'`` adds ``(p - c_m q)_+``: together ``p``, so the rule is lossless, and given the
rollout's ``x`` a draft was accepted with probability ``min(1, c_m q(x)/p(x))``. One draft is rejection sampling.

It is NOT a rule for ``m`` parallel sequences (SpecTr's own setting): there only the sequences that agree so far draft
the next depth, and the number still alive belongs to the state beside the depth. This rule does not describe that
process, whatever ``scale``: here ``m`` fresh drafts follow every accepted token.

Needs ``p`` and ``q`` at the realised token, and ``scale``: ``c_m``, from 1 to ``m``, which ``scalars.recursive_scale``
computes from the full distributions. Source: Miao et al. 2024, SpecInfer (arXiv 2305.09781), multi-step speculative
sampling.
"""

from __future__ import annotations

from markov_spec.acceptance.inputs import Inputs, Rule
from markov_spec.acceptance.literal import Round, Tokens, decide_by_depth, excess
from markov_spec.acceptance.product import scaled_law
from markov_spec.arrays import Array, RoundLaw


def law(inputs: Inputs) -> RoundLaw:
    """Make the round law of recursive rejection."""
    return scaled_law(inputs, RULE.exactness)


def verify(this: Round) -> Tokens:
    """Play a round: rejection sampling again and again, each time from what the last one left."""
    return decide_by_depth(this, _decide)


def _decide(this: Round, p: Array, q: Array) -> tuple[int, bool]:
    for x in this.draw_all(q):
        if this.uniform() < p[x] / q[x]:
            return x, True
        p = excess(p, q)
        p = p / p.sum()
    return this.draw(p), False


RULE = Rule("node-recursive", "A6", ("log_p", "log_q", "scale"), "exact", law, verify=verify, several=True)
