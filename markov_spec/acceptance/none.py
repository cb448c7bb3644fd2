"""No speculation (A9): ``K = 0``, so every round commits the target's one token.

``S[s,0] = 1`` alone; ``E[R] = T - s0``. Needs nothing; a draft length has nothing to act on.
"""

from __future__ import annotations

import numpy as np

from markov_spec.acceptance.inputs import Inputs, Rule
from markov_spec.acceptance.literal import Round, Tokens
from markov_spec.arrays import RoundLaw


def law(inputs: Inputs) -> RoundLaw:
    """Make the law of rounds without drafts."""
    accept = np.zeros((int(inputs.indptr[-1]), 0), dtype=np.float32)
    return RoundLaw.trusted(accept, inputs.indptr, None, RULE.exactness)


def verify(this: Round) -> Tokens:
    """Play a round: draw one token from the target."""
    return (this.draw(this.target(())),)


RULE = Rule("none", "A9", (), "exact", law, verify=verify)
