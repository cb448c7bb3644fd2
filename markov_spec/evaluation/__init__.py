"""The verbs on a store: evaluate, compare, and what they rest on and lead to."""

from markov_spec.evaluation.attribution import Attribution, attribute
from markov_spec.evaluation.bounds import BoundedEvaluation, evaluate_bounds
from markov_spec.evaluation.budgets import BudgetOptimum, budget_curve, optimal_budget
from markov_spec.evaluation.certificates import Certificates
from markov_spec.evaluation.certify import certify
from markov_spec.evaluation.clairvoyant import Clairvoyant, clairvoyant
from markov_spec.evaluation.comparing import compare
from markov_spec.evaluation.contender import RULE_SETTINGS, Contender
from markov_spec.evaluation.evaluating import evaluate, law_of
from markov_spec.evaluation.keeping import keep_tree_ranks
from markov_spec.evaluation.laws import plan
from markov_spec.evaluation.learned import LEARNED_HERE, fit_static_tree, is_learned
from markov_spec.evaluation.lengths import length_curve
from markov_spec.evaluation.promises import tree_calibration
from markov_spec.evaluation.proxies import Proxies, proxies, proxies_frame
from markov_spec.evaluation.result import Evaluation
from markov_spec.evaluation.study import Study, study
from markov_spec.evaluation.tracing import trace_rollout
from markov_spec.evaluation.trees import accepted_at, draft_tree
from markov_spec.evaluation.uncertainty import UNCERTAIN

__all__ = [
    "LEARNED_HERE",
    "RULE_SETTINGS",
    "UNCERTAIN",
    "Attribution",
    "BoundedEvaluation",
    "BudgetOptimum",
    "Certificates",
    "Clairvoyant",
    "Contender",
    "Evaluation",
    "Proxies",
    "Study",
    "accepted_at",
    "attribute",
    "budget_curve",
    "certify",
    "clairvoyant",
    "compare",
    "draft_tree",
    "evaluate",
    "evaluate_bounds",
    "fit_static_tree",
    "is_learned",
    "keep_tree_ranks",
    "law_of",
    "length_curve",
    "optimal_budget",
    "plan",
    "proxies",
    "proxies_frame",
    "study",
    "trace_rollout",
    "tree_calibration",
]
