"""The engine: a round law in, exact moments of the decoding rounds out.

From start ``s`` a round accepts ``k`` drafts with probability ``A[s,k]`` and the next one starts at ``s+k+1``, clipped
at the end ``T`` where everything is 0. Sums over ``k`` run from 0 to ``min(L[s], T-s)``; ``s0`` is the first start::

    (V)  V[s] = 1 + sum_k A[s,k] V[s+k+1]                  expected rounds from s
    (O)  o[s0] = 1,  o[t] = sum_{s<t} o[s] A[s,t-s-1]      probability that a round starts at t
    (E)  E[R] = V[s0] = sum_s o[s]
    (M)  Var[s] = sum_k A[s,k] (Var[s+k+1] + (V[s+k+1] - V[s] + 1)^2)
    (H)  h[k] = sum_s o[s] A[s,k]                          expected rounds that accept exactly k drafts
    (C)  C[s] = sum_k A[s,k] (c[s,k] + C[s+k+1])           expected price, and its variance as (M):
         Var[s] = sum_k A[s,k] (Var[s+k+1] + (C[s+k+1] - C[s] + c[s,k])^2)
    (C*) C*[s] = min_j c_j[s] + sum_k A_j[s,k] C*[s+k+1]   least price of all choices among laws by the start

(M) is the law of total variance, equal to the second moment less ``V^2`` and free of its cancellation.
"""

from markov_spec.chain.attribution import attribute_rounds
from markov_spec.chain.control import Control, choose, optimal_choice
from markov_spec.chain.distribution import RoundDistribution, round_distribution
from markov_spec.chain.intervals import Bounds, bound_rounds, bound_rounds_block
from markov_spec.chain.moments import Rounds, end_accepted, solve
from markov_spec.chain.ratio import expected_inverse, expected_ratio

__all__ = [
    "Bounds",
    "Control",
    "RoundDistribution",
    "Rounds",
    "attribute_rounds",
    "bound_rounds",
    "bound_rounds_block",
    "choose",
    "end_accepted",
    "expected_inverse",
    "expected_ratio",
    "optimal_choice",
    "round_distribution",
    "solve",
]
