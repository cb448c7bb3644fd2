"""Certificates: what a bound on the divergence of target and drafter promises about acceptance.

``thresholds`` from distributions or lists of their most probable tokens, ``margins`` from the margin of the best token
alone.
"""

from __future__ import annotations

from markov_spec.certificates.margins import kl_to_reject_margin
from markov_spec.certificates.thresholds import DIVERGENCES, RULES, Thresholds, kl_to_reject

__all__ = ["DIVERGENCES", "RULES", "Thresholds", "kl_to_reject", "kl_to_reject_margin"]
