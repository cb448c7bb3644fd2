"""Draft trees: which nodes are drafted from each start, and how many of them a round accepts.

A tree is never kept. The rollout's next tokens are a path from the root, and a round accepts those of them that are
nodes. Every builder takes nodes in an order of its own, so a tree of ``n`` nodes is the first ``n``, and one integer
for each start and depth tells of all budgets::

    (T1)  rank[s,k] = nodes taken up to and including the rollout's prefix of depth k;  ABSENT if it is never taken
    (T2)  N[s] = max{k : rank[s,k] <= n}, 0 if there is none: acceptance is 0 or 1 given the rollout

A parent is taken before its children, hence ranks rise with the depth. The root is the last committed token and is not
counted: a tree of ``n`` nodes makes the target verify ``n + 1`` tokens.

*Truncated lists.* Lists of M tokens leave nodes out. A node that has an unlisted token at depth d is worth at most
``e_d = (prod_{i<d} top1_i) q_d(last listed)``, and before it come its M listed siblings. So the best-first rank of a
listed prefix is certain if it is at most M, or if the prefix is worth more than ``max_d e_d``; otherwise the drafter's
own rank is this one or larger. The rank of an unlisted token is above its parent's by more than M, and above the number
of listed nodes that are worth more than its parent times the last listed one. Depths past a rollout's end may have no
lists: nodes there precede a prefix only below a node of the last listed depth that precedes it, of which the path of
first places is the first. Nor is it known how many nodes there are: where tokens or depths are missing, a budget is
certain up to the number of listed nodes of recorded depths, as no others need exist.

One module for each builder, with its rule and its source; a new builder is a module and an entry of ``BUILDERS``.
Source of (T1), (T2): the order is that of DDTree (arXiv 2604.12989), whose trees are nested in their budget.
"""

from __future__ import annotations

from markov_spec.drafting.all_children import AllChildren
from markov_spec.drafting.beam import beam_ranks, beam_tree
from markov_spec.drafting.best_first import BestFirst
from markov_spec.drafting.building import BUILDERS, build_tree, tree_ranks
from markov_spec.drafting.calibration import Calibration, reestimate, surrogate_calibration
from markov_spec.drafting.chain import Chain
from markov_spec.drafting.cost_optimal import BUDGET_RULES, clairvoyant_budgets, node_values
from markov_spec.drafting.eagle2 import Eagle2
from markov_spec.drafting.fit import StaticFit, fit_static_tree
from markov_spec.drafting.inputs import Builder, next_tokens
from markov_spec.drafting.measured import rank_acceptance, rank_accuracy
from markov_spec.drafting.medusa import Medusa
from markov_spec.drafting.ranks import TreeRanks, tree_law
from markov_spec.drafting.sequoia import Sequoia, positional_values
from markov_spec.drafting.static import Static
from markov_spec.drafting.tree import DraftTree
from markov_spec.drafting.walk import TreeRounds, tree_rounds

__all__ = [
    "BUDGET_RULES",
    "BUILDERS",
    "AllChildren",
    "BestFirst",
    "Builder",
    "Calibration",
    "Chain",
    "DraftTree",
    "Eagle2",
    "Medusa",
    "Sequoia",
    "Static",
    "StaticFit",
    "TreeRanks",
    "TreeRounds",
    "beam_ranks",
    "beam_tree",
    "build_tree",
    "clairvoyant_budgets",
    "fit_static_tree",
    "next_tokens",
    "node_values",
    "positional_values",
    "rank_acceptance",
    "rank_accuracy",
    "reestimate",
    "surrogate_calibration",
    "tree_law",
    "tree_ranks",
    "tree_rounds",
]
