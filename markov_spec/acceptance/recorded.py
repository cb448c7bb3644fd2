"""Recorded acceptance: ``S[s,k] = prod_{i<=k} exp(log_accept[s,i])``.

For rules whose acceptance of the realised token is no function of ``p`` and ``q`` at that token, computed when the full
distributions were at hand: the shared-noise coupling (A5, ``scalars.coupling``), drafts without replacement.

Proof. The product of the conditional acceptances of a round's depths is its survival, whatever the rule. It is exact if
what was recorded is: the probability, given the rollout, that depth ``k`` is accepted after the depths before it, of a
lossless rule that draws afresh each round.

Needs ``log_accept`` alone; ``-inf`` is probability 0. One number for each position where the start does not matter.
Source: Daliri et al. 2025 (arXiv 2408.07978), shared noise; Chen et al. 2024, Sequoia (arXiv 2402.12374), without
replacement.
"""

from __future__ import annotations

from markov_spec.acceptance.inputs import Inputs, Rule
from markov_spec.acceptance.product import product_law
from markov_spec.arrays import RoundLaw


def law(inputs: Inputs) -> RoundLaw:
    """Make the round law of recorded acceptances."""
    return product_law(inputs, RULE.exactness, name="log_accept")


RULE = Rule("recorded", "A5", ("log_accept",), "exact", law)
