"""K-SEQ at each node (A7): ``S[s,k] = prod_{i<=k} min(1, rho[s,i] r[s,i])``, ``r = q/p``.

At each depth, after the accepted prefix, ``m`` drafts are sampled from ``q``, one after another and with replacement.
They are tested in turn, each accepted with probability ``min(1, p(x)/(rho q(x)))``. The first accepted one extends the
prefix; if there is none, the target's token is drawn from the normalised ``(p - rho q)_+``.

Proof. A test accepts with probability ``b = sum_v min(q(v), p(v)/rho)``, and one of ``m`` accepts ``x`` with
probability ``min(q, p/rho) (1 - (1-b)^m) / b`` at ``x``. ``rho`` is the solution in ``[1, m]`` of
``1 - (1-b)^m = rho b``, which is ``(sum_v (q - p/rho)_+)^m = sum_v (p - rho q)_+``; so that is ``min(p, rho q)``, and
the draw after the tests adds ``(p - rho q)_+``: together ``p``, so the rule is lossless, and given the rollout's ``x``
a draft was accepted with probability ``min(1, rho q(x)/p(x))``. One draft is rejection sampling.

It is NOT a rule for ``m`` parallel sequences (SpecTr's own setting): there only the sequences that agree so far draft
the next depth, and the number still alive belongs to the state beside the depth. This rule does not describe that
process, whatever ``scale``: here ``m`` fresh drafts follow every accepted token.

Needs ``p`` and ``q`` at the realised token, and ``scale``: ``rho``, which ``scalars.k_seq_scale`` computes from the
full distributions. Where they share no token every ``rho`` solves the equation and nothing is accepted: ``scale`` is 0.
Source: Sun et al. 2023, SpecTr (arXiv 2310.15141), algorithm K-SEQ.
"""

from __future__ import annotations

from markov_spec.acceptance import scalars
from markov_spec.acceptance.inputs import Inputs, Rule
from markov_spec.acceptance.literal import Round, Tokens, decide_by_depth, excess
from markov_spec.acceptance.product import scaled_law
from markov_spec.arrays import Array, RoundLaw


def law(inputs: Inputs) -> RoundLaw:
    """Make the round law of K-SEQ."""
    return scaled_law(inputs, RULE.exactness, zero=True)


def verify(this: Round) -> Tokens:
    """Play a round: each draft has the same test; if none passes, draw from the residual."""
    return decide_by_depth(this, _decide)


def _decide(this: Round, p: Array, q: Array) -> tuple[int, bool]:
    rho = float(scalars.k_seq_scale(p, q, this.drafts)) or 1.0  # any, where p and q share no token
    for x in this.draw_all(q):
        if this.uniform() < p[x] / (rho * q[x]):
            return x, True
    return this.draw(excess(p, rho * q)), False


RULE = Rule("node-k-seq", "A7", ("log_p", "log_q", "scale"), "exact", law, verify=verify, several=True)
