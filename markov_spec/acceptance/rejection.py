"""Rejection sampling (A1): ``S[s,k] = prod_{i<=k} min(1, r[s,i])``, ``r[s,k] = q[s,k] / p[s+k-1]``.

The draft ``x ~ q`` is accepted with probability ``min(1, p(x)/q(x))``; after a rejection the target's token is drawn
from the normalised ``(p - q)_+``, after ``K`` acceptances from ``p``.

Proof. The token at a tested depth is drafted, accepted and equal to ``x`` with probability
``q(x) min(1, p(x)/q(x)) = min(p(x), q(x))``, and the output is ``x`` with probability ``p(x)``. Hence given the
rollout's ``x`` the draft was accepted with probability ``min(1, q(x)/p(x))``; the tests of a round are independent
given the prefix.

Needs ``p`` and ``q`` at the realised token. An autoregressive drafter's law stays one number for each position.
Source: Leviathan et al. 2023 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318).
"""

from __future__ import annotations

from markov_spec.acceptance.inputs import Inputs, Rule
from markov_spec.acceptance.literal import Round, Tokens, decide_by_depth, excess
from markov_spec.acceptance.product import product_law
from markov_spec.arrays import Array, RoundLaw


def law(inputs: Inputs) -> RoundLaw:
    """Make the round law of rejection sampling."""
    return product_law(inputs, RULE.exactness, log_p=inputs.target_log_probs)


def verify(this: Round) -> Tokens:
    """Play a round: accept a draft with probability ``min(1, p/q)``, or draw from the residual."""
    return decide_by_depth(this, _decide)


def _decide(this: Round, p: Array, q: Array) -> tuple[int, bool]:
    x = this.draw(q)
    if this.uniform() < p[x] / q[x]:
        return x, True
    return this.draw(excess(p, q)), False


RULE = Rule("rejection", "A1", ("log_p", "log_q"), "exact", law, verify=verify)
