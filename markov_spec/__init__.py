"""Exact, offline answers about LLM speculative decoding from one record of the target and its drafters."""

from markov_spec.acceptance import round_law
from markov_spec.arrays import Drafts, RequestError, Rollouts, RoundLaw
from markov_spec.chain import RoundDistribution, Rounds, expected_inverse, round_distribution, solve
from markov_spec.drafting import DraftTree, TreeRanks, build_tree, next_tokens, tree_law, tree_ranks
from markov_spec.evaluation import (
    BudgetOptimum,
    Clairvoyant,
    Contender,
    Evaluation,
    Proxies,
    budget_curve,
    clairvoyant,
    draft_tree,
    evaluate,
    fit_static_tree,
    law_of,
    optimal_budget,
    proxies,
)
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

__all__ = [
    "BudgetOptimum",
    "Clairvoyant",
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
    "TreeRanks",
    "add_drafter",
    "budget_curve",
    "build_tree",
    "clairvoyant",
    "compare_scores",
    "draft_tree",
    "evaluate",
    "expected_inverse",
    "export_jsonl",
    "export_parquet",
    "first_divergence",
    "fit_static_tree",
    "import_jsonl",
    "law_of",
    "next_tokens",
    "open_store",
    "optimal_budget",
    "proxies",
    "round_distribution",
    "round_law",
    "simulate",
    "simulate_decoding",
    "solve",
    "tree_law",
    "tree_ranks",
    "write_store",
]
