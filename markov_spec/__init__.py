"""Exact, offline answers about LLM speculative decoding from one record of the target and its drafters."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from markov_spec.acceptance import round_law
from markov_spec.arrays import Drafts, RequestError, Rollouts, RoundLaw, TensorLaw
from markov_spec.certificates import Thresholds, kl_to_reject, kl_to_reject_margin
from markov_spec.chain import (
    Bounds,
    RoundDistribution,
    Rounds,
    bound_rounds,
    bound_rounds_block,
    expected_inverse,
    round_distribution,
    solve,
)
from markov_spec.comparison import Comparison, compare_vectors, required_prompts
from markov_spec.drafting import DraftTree, TreeRanks, build_tree, next_tokens, tree_law, tree_ranks
from markov_spec.evaluation import (
    Attribution,
    BoundedEvaluation,
    BudgetOptimum,
    Certificates,
    Clairvoyant,
    Contender,
    Evaluation,
    Proxies,
    Study,
    attribute,
    budget_curve,
    certify,
    clairvoyant,
    compare,
    draft_tree,
    evaluate,
    evaluate_bounds,
    fit_static_tree,
    keep_tree_ranks,
    law_of,
    length_curve,
    optimal_budget,
    proxies,
    study,
    trace_rollout,
    tree_calibration,
)
from markov_spec.report import write_report
from markov_spec.simulation import simulate, simulate_decoding
from markov_spec.sources import (
    ImportReport,
    compare_scores,
    export_jsonl,
    export_parquet,
    first_divergence,
    import_jsonl,
)
from markov_spec.store import Store, StoreWriter, add_drafter, open_store, write_store

if TYPE_CHECKING:  # not in __all__: a star import is for those without torch, too
    from markov_spec import objectives as objectives
    from markov_spec.objectives import edr_weights as edr_weights
    from markov_spec.objectives import replay_starts as replay_starts

__all__ = [
    "Attribution",
    "BoundedEvaluation",
    "Bounds",
    "BudgetOptimum",
    "Certificates",
    "Clairvoyant",
    "Comparison",
    "Contender",
    "DraftTree",
    "Drafts",
    "Evaluation",
    "ImportReport",
    "Proxies",
    "RequestError",
    "Rollouts",
    "RoundDistribution",
    "RoundLaw",
    "Rounds",
    "Store",
    "StoreWriter",
    "Study",
    "TensorLaw",
    "Thresholds",
    "TreeRanks",
    "add_drafter",
    "attribute",
    "bound_rounds",
    "bound_rounds_block",
    "budget_curve",
    "build_tree",
    "certify",
    "clairvoyant",
    "compare",
    "compare_scores",
    "compare_vectors",
    "draft_tree",
    "evaluate",
    "evaluate_bounds",
    "expected_inverse",
    "export_jsonl",
    "export_parquet",
    "first_divergence",
    "fit_static_tree",
    "import_jsonl",
    "keep_tree_ranks",
    "kl_to_reject",
    "kl_to_reject_margin",
    "law_of",
    "length_curve",
    "next_tokens",
    "open_store",
    "optimal_budget",
    "proxies",
    "required_prompts",
    "round_distribution",
    "round_law",
    "simulate",
    "simulate_decoding",
    "solve",
    "study",
    "trace_rollout",
    "tree_calibration",
    "tree_law",
    "tree_ranks",
    "write_report",
    "write_store",
]

_NEED_TORCH = ("objectives", "edr_weights", "replay_starts")


def __getattr__(name: str) -> Any:
    if name not in _NEED_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        objectives = import_module("markov_spec.objectives")
    except ImportError as error:  # so that hasattr and getattr with a default are answered
        raise AttributeError(f"module {__name__!r} has no attribute {name!r} here: {error}") from error
    return objectives if name == "objectives" else getattr(objectives, name)


def __dir__() -> list[str]:
    return sorted({*__all__, "objectives", *_NEED_TORCH})
