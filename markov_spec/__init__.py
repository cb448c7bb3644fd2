"""Exact, offline answers about LLM speculative decoding from one record of the target and its drafters."""

from markov_spec.arrays import Drafts, Rollouts, RoundLaw

__all__ = ["Drafts", "Rollouts", "RoundLaw"]
