"""Independent match (A3): ``S[s,k] = prod_{i<=k} a[s,i]``, ``a = 1 - (1-q)^m``, which is ``q`` for one draft.

At each depth ``m`` drafts are sampled from ``q``, one after another and with replacement; the target draws its own
token, or takes its argmax, without looking at them, and the round goes on from it if it is among the drafts.

Proof. The output is the target's own token ``x``, so the rule is lossless. The drafts do not depend on it: each misses
it with probability ``1 - q(x)``, and all miss it with probability ``(1 - q(x))^m``.

Needs ``q`` at the realised token. An autoregressive drafter's law stays one number for each position.
Source: the naive sampling that SpecInfer is compared with, Miao et al. 2024 (arXiv 2305.09781), section 4.3.
"""

from __future__ import annotations

import numpy as np

from markov_spec.acceptance.inputs import Inputs, Rule, exponential
from markov_spec.acceptance.literal import Round, Tokens, decide_by_depth
from markov_spec.acceptance.product import product_law
from markov_spec.arrays import Array, RoundLaw


def law(inputs: Inputs) -> RoundLaw:
    """Make the round law of independent matching."""
    drafts = inputs.draft_count()

    def finish(logs: Array, rows: slice, out: Array) -> None:
        with np.errstate(divide="ignore"):
            missed = drafts * np.log1p(-np.exp(logs))
        np.negative(np.expm1(missed), out=out, casting="same_kind")

    return product_law(inputs, RULE.exactness, finish=exponential if drafts == 1 else finish)


def verify(this: Round) -> Tokens:
    """Play a round: the target draws for itself, and goes on while its token is among the drafts."""
    return decide_by_depth(this, _decide)


def _decide(this: Round, p: Array, q: Array) -> tuple[int, bool]:
    candidates = this.draw_all(q)
    x = this.draw(p)
    return x, x in candidates


RULE = Rule("independent", "A3", ("log_q",), "exact", law, takes=("drafts",), verify=verify, several=True)
