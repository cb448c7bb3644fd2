"""Where intervals of acceptance come from: what a record does not say, or says only up to something.

A source is an entry of ``UNCERTAIN`` with its settings; ``interval.py`` has what all of them make.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markov_spec.evaluation.uncertainty.greedy import Certified, Ties
from markov_spec.evaluation.uncertainty.interval import Interval, Uncertainty
from markov_spec.evaluation.uncertainty.listed import BothLists, Lists, TargetLists, combined
from markov_spec.evaluation.uncertainty.rounded import UNITS, Half, Tolerance
from markov_spec.evaluation.uncertainty.transport import Transport

__all__ = [
    "UNCERTAIN",
    "UNITS",
    "BothLists",
    "Certified",
    "Half",
    "Interval",
    "Lists",
    "TargetLists",
    "Ties",
    "Tolerance",
    "Transport",
    "Uncertainty",
    "combined",
]

UNCERTAIN: Mapping[str, Any] = {
    entry.name: entry for entry in (Lists, TargetLists, Tolerance, Half, Transport, Certified, Ties)
}
