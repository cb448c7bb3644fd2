"""Exact, offline answers about LLM speculative decoding from one record of the target and its drafters."""

from markov_spec.acceptance import round_law
from markov_spec.arrays import Drafts, RequestError, Rollouts, RoundLaw
from markov_spec.chain import RoundDistribution, Rounds, expected_inverse, round_distribution, solve
from markov_spec.evaluation import Contender, Evaluation, evaluate
from markov_spec.simulation import simulate, simulate_decoding
from markov_spec.store import Store, add_drafter, open_store, write_store

__all__ = [
    "Contender",
    "Drafts",
    "Evaluation",
    "RequestError",
    "Rollouts",
    "RoundDistribution",
    "RoundLaw",
    "Rounds",
    "Store",
    "add_drafter",
    "evaluate",
    "expected_inverse",
    "open_store",
    "round_distribution",
    "round_law",
    "simulate",
    "simulate_decoding",
    "solve",
    "write_store",
]
