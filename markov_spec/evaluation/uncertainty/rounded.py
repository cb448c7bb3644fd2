"""Log-probabilities that are not known to the last digit.

tolerance   log p and log q each off by up to a number of nats: log r by up to twice as many
half        log-probabilities rounded to a type of 16 bits: off by half a unit in the last place of the power of two
            above them
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from markov_spec.arrays import Array, RequestError
from markov_spec.evaluation.laws import Plan
from markov_spec.evaluation.uncertainty.interval import Interval, log_p_of, log_q_of, matched, of_ratios

# Relative and least absolute error of rounding to the nearest.
UNITS = {"bfloat16": (2.0**-8, 0.0), "float16": (2.0**-11, 2.0**-25)}


def check_nats(nats: object, name: str = "nats") -> None:
    """Refuse what is no distance in nats."""
    if isinstance(nats, bool) or not isinstance(nats, int | float) or not 0 <= nats < np.inf:
        raise RequestError(f"bounds: found {name}={nats!r}; allowed: a finite number >= 0, in nats")


@dataclass(frozen=True)
class Tolerance:
    """Every log-probability, of the target and of the drafter, may be off by ``nats``."""

    nats: float

    name: ClassVar[str] = "tolerance"

    def __post_init__(self) -> None:
        check_nats(self.nats)

    def __str__(self) -> str:
        return f"log-probabilities up to {self.nats:g} nats"

    def interval(self, plan: Plan) -> Interval:
        """See ``Uncertainty``."""
        if (known := matched(plan)) is not None:
            return known
        log_p, log_q = log_p_of(plan), log_q_of(plan)
        return _moved(
            plan, log_p, log_q, np.full(log_p.shape, float(self.nats)), np.full(log_q.shape, float(self.nats))
        )


@dataclass(frozen=True)
class Half:
    """Log-probabilities were rounded to a type of 16 bits, ``bfloat16`` or ``float16``."""

    dtype: str = "bfloat16"

    name: ClassVar[str] = "half"

    def __post_init__(self) -> None:
        if self.dtype not in UNITS:
            raise RequestError(f"bounds: found dtype={self.dtype!r}; allowed: {', '.join(UNITS)}")

    def __str__(self) -> str:
        return f"log-probabilities rounded to {self.dtype}"

    def interval(self, plan: Plan) -> Interval:
        """See ``Uncertainty``."""
        if (known := matched(plan)) is not None:
            return known
        log_p, log_q = log_p_of(plan), log_q_of(plan)
        unit, least = UNITS[self.dtype]
        return _moved(plan, log_p, log_q, *(np.maximum(np.abs(values) * unit, least) for values in (log_p, log_q)))


def _moved(plan: Plan, log_p: Array, log_q: Array, of_p: Array, of_q: Array) -> Interval:
    none = np.isinf(log_q)
    of_q = np.where(none, 0, of_q)
    # Probabilities end at 1, and what is impossible stays so.
    q_ends = (np.minimum(log_q + sign * of_q, 0) for sign in (-1, 1))
    p_ends = (np.minimum(log_p + sign * of_p, 0) for sign in (1, -1))
    low, high = (q_end - p_end for q_end, p_end in zip(q_ends, p_ends, strict=True))
    # One position of the target stands in many cells, so these do not vary by themselves.
    return of_ratios(plan, low, high, independent=log_q.ndim == 1)
