"""Where intervals of acceptance come from: what a record does not say, or says only up to something.

With ``r = q/p`` the realised token's ratio, a product rule's acceptance is a function that rises with ``r``, or with
``q`` (``independent``), so an interval of these is one of it.

    lists       q(x) of a token outside the list lies in [max(0, missing - (V-M-1) last), min(last, missing)]:
                the mass that is missing, spread over V-M tokens of at most the last one listed
    tolerance   log p and log q each off by up to a number of nats: log r by up to twice as many
    half        log-probabilities rounded to a type of 16 bits: off by half a unit in the last place of the power of two
                above them
    transport   optimal transport of m drafts accepts a given token with a probability between two recorded ends (A10)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from markov_spec.arrays import Array, RequestError, cells_inside
from markov_spec.evaluation.laws import Plan
from markov_spec.store.metadata import drawn_as_recorded
from markov_spec.store.schema import MULTI_DRAFTS

# Relative and least absolute error of rounding to the nearest.
UNITS = {"bfloat16": (2.0**-8, 0.0), "float16": (2.0**-11, 2.0**-25)}


@dataclass(frozen=True, eq=False)
class Interval:
    """Ends of every acceptance, or of every log-ratio if ``block``, (N, K) or (N,).

    ``independent`` tells whether each may lie anywhere in its interval whatever the others are, ``known`` whether the
    record has the acceptances themselves.
    """

    low: Array
    high: Array
    block: bool
    independent: bool
    known: bool

    def uncertain(self, indptr: Array) -> Array:
        """Count the drafts inside each rollout whose acceptance is not known, and all: (R, 2)."""
        cells = self.low.ndim == 2
        inside = cells_inside(indptr, self.low.shape[1], None) if cells else np.ones(self.low.shape, dtype=bool)
        low, high = (np.minimum(end, 0) for end in (self.low, self.high)) if self.block else (self.low, self.high)
        with np.errstate(invalid="ignore"):
            counts = [(values if cells else values[:, None]).sum(axis=1) for values in ((high > low) & inside, inside)]
        at = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
        return np.stack([np.bincount(at, own, minlength=indptr.size - 1) for own in counts], axis=1)


class Uncertainty(Protocol):
    """What is not known: an entry of ``UNCERTAIN``, with its settings."""

    name: ClassVar[str]

    def interval(self, plan: Plan) -> Interval:
        """Give the intervals of a range of rollouts.

        Raises
        ------
        RequestError
            If the rule has none of this kind, or the store lacks what they need.
        """


def _log_p(plan: Plan) -> Array:
    """Give log p of each draft's token, in the shape of ``log_q`` as it is evaluated."""
    log_p: Array = plan.rollouts.log_p.astype(np.float64)
    if plan.drafts.log_q.ndim == 1:
        return log_p
    return _by_cell(log_p, plan.draft_length)


def _by_cell(values: Array, depth: int) -> Array:
    """Give the value of the position of each cell, (N, K), from (N,)."""
    at = np.arange(values.size)[:, None] + np.arange(depth)
    cells: Array = values[np.minimum(at, max(values.size - 1, 0))]
    return cells


def _log_q(plan: Plan) -> Array:
    log_q = plan.drafts.log_q
    return (log_q if log_q.ndim == 1 else log_q[:, : plan.draft_length]).astype(np.float64)


def _of_ratios(plan: Plan, low: Array, high: Array, *, independent: bool) -> Interval:
    """Make intervals of acceptance from those of log q - log p."""
    if plan.rule == "block":
        return Interval(low, high, True, independent, True)
    if plan.rule == "rejection":
        return Interval(np.exp(np.minimum(low, 0)), np.exp(np.minimum(high, 0)), False, independent, True)
    raise RequestError(f"contender {plan.contender}: found rule {plan.rule!r}; allowed: rejection, block, match")


def _matched(plan: Plan) -> Interval | None:
    """Give the known acceptances of a draft that is fixed beforehand; None of others."""
    if plan.rule != "match":
        return None
    rank = plan.drafts.rank
    hit = _log_q(plan) == 0 if rank is None else (rank if rank.ndim == 1 else rank[:, : plan.draft_length]) == 1
    return Interval(hit.astype(np.float64), hit.astype(np.float64), False, True, True)


@dataclass(frozen=True)
class Lists:
    """The drafter's probability of a token is known only among its ``top`` likeliest; by default all listed."""

    top: int | None = None

    name: ClassVar[str] = "lists"

    def __str__(self) -> str:
        return "q known in its lists alone" if self.top is None else f"q known in its top {self.top} alone"

    def interval(self, plan: Plan) -> Interval:
        """See ``Uncertainty``."""
        if (known := _matched(plan)) is not None:
            return known
        low, high = self._probabilities(plan)
        if plan.rule == "independent":
            m = int(plan.settings["m"])
            return Interval(1 - (1 - low) ** m, 1 - (1 - high) ** m, False, True, True)
        with np.errstate(divide="ignore"):
            log_p = _log_p(plan)
            return _of_ratios(plan, np.log(low) - log_p, np.log(high) - log_p, independent=True)

    def _probabilities(self, plan: Plan) -> tuple[Array, Array]:
        store, drafts = plan.store, plan.drafts
        vocabulary = store.metadata.get("vocab_size")
        drawn = drafts.metadata.get("sampling") or store.metadata.get("sampling")
        if not drawn_as_recorded({}, drawn):
            raise RequestError(
                f"contender {plan.contender}: drafts are drawn with {drawn}; allowed: temperature 1 and no filter, as "
                "lists are of the plain softmax"
            )
        if "lists" not in store.drafter_parts(drafts.name) or vocabulary is None:
            what = "part 'lists'" if vocabulary is not None else "metadata vocab_size"
            raise RequestError(f"contender {plan.contender}: bounds by lists need {what}, which was not recorded")
        part = store.drafter_part(drafts.name, "lists", complete=True)
        ids, log_q = part["ids"], part["log_q"].astype(np.float64)
        if drafts.log_q.ndim == 2:
            ids, log_q = ids[:, : plan.draft_length], log_q[:, : plan.draft_length]
        top = ids.shape[-1] if self.top is None else self.top
        if not isinstance(top, int) or not 1 <= top <= ids.shape[-1]:
            raise RequestError(f"bounds: found top={top}; allowed: 1 to {ids.shape[-1]}, the tokens of each list")
        tokens = plan.rollouts.tokens
        own = tokens if ids.ndim == 2 else _by_cell(tokens, plan.draft_length)
        return list_bounds(ids[..., :top], log_q[..., :top], own, vocabulary)


def list_bounds(ids: Array, log_q: Array, tokens: Array, vocab_size: int) -> tuple[Array, Array]:
    """Bound the probability of tokens by lists of the most probable ones, whose mass is known.

    Parameters
    ----------
    ids : array of int, (..., M)
        The ``M`` most probable tokens, best first; -1 where there are no more.
    log_q : array of float, (..., M)
        Their log-probabilities (nats).
    tokens : array of int, (...)
    vocab_size : int
        ``V``: tokens that may have a probability.

    Returns
    -------
    low, high : ndarray of float64, (...)
        Attained by some distribution with this list; equal where the token is listed.
    """
    named = ids == tokens[..., None]
    q = np.exp(np.where(ids >= 0, log_q, -np.inf))
    missing = np.clip(1 - q.sum(axis=-1), 0, None)
    last, others = q[..., -1], max(vocab_size - ids.shape[-1] - 1, 0)
    low, high = np.maximum(missing - others * last, 0), np.minimum(last, missing)
    # A drafter that has more tokens than the target, as one of a padded vocabulary, may have its mass on those.
    more = (ids >= vocab_size).any(axis=-1) | (missing > (others + 1) * last + 1e-6)
    low = np.where(more, 0.0, low)
    own = (q * named).sum(axis=-1)
    listed = named.any(axis=-1)
    return np.where(listed, own, np.minimum(low, high)), np.where(listed, own, high)


@dataclass(frozen=True)
class Tolerance:
    """Every log-probability, of the target and of the drafter, may be off by ``nats``."""

    nats: float

    name: ClassVar[str] = "tolerance"

    def __post_init__(self) -> None:
        if not isinstance(self.nats, int | float) or not 0 <= self.nats < np.inf:
            raise RequestError(f"bounds: found nats={self.nats!r}; allowed: a finite number >= 0")

    def __str__(self) -> str:
        return f"log-probabilities up to {self.nats:g} nats"

    def interval(self, plan: Plan) -> Interval:
        """See ``Uncertainty``."""
        if (known := _matched(plan)) is not None:
            return known
        log_p, log_q = _log_p(plan), _log_q(plan)
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
        if (known := _matched(plan)) is not None:
            return known
        log_p, log_q = _log_p(plan), _log_q(plan)
        unit, least = UNITS[self.dtype]
        return _moved(plan, log_p, log_q, *(np.maximum(np.abs(values) * unit, least) for values in (log_p, log_q)))


def _moved(plan: Plan, log_p: Array, log_q: Array, of_p: Array, of_q: Array) -> Interval:
    none = np.isinf(log_q)
    # Probabilities end at 1, and what is impossible stays so.
    q_ends = (np.where(none, log_q, np.minimum(log_q + sign * of_q, 0)) for sign in (-1, 1))
    p_ends = (np.minimum(log_p + sign * of_p, 0) for sign in (1, -1))
    low, high = (q_end - p_end for q_end, p_end in zip(q_ends, p_ends, strict=True))
    # One position of the target stands in many cells, so these do not vary by themselves.
    return _of_ratios(plan, low, high, independent=log_q.ndim == 1)


@dataclass(frozen=True)
class Transport:
    """What optimal transport of ``m`` drafts at each depth accepts, which depends on the solver (A10)."""

    m: int

    name: ClassVar[str] = "transport"

    def __str__(self) -> str:
        return f"any optimal transport of {self.m} drafts at each depth"

    def interval(self, plan: Plan) -> Interval:
        """See ``Uncertainty``."""
        store, name = plan.store, plan.drafts.name
        columns: Mapping[str, Array] = {}
        if "multi" in store.drafter_parts(name):
            columns = store.drafter_part(name, "multi")
        ends = [f"transport_{self.m}_{end}" for end in ("low", "high")]
        if self.m not in MULTI_DRAFTS:
            raise RequestError(f"bounds: found m={self.m!r}; allowed: {', '.join(map(str, MULTI_DRAFTS))}")
        if not columns.keys() >= set(ends) or plan.drafts.rule == "match":
            raise RequestError(
                f"contender {plan.contender}: needs transport_{self.m}_low and _high in part 'multi' of drafter "
                f"{name!r}, which was not recorded; markov-spec record --scalars records m = 2, 4, 8"
            )
        if plan.contender.rule is not None:
            raise RequestError(f"contender {plan.contender}: found a rule; allowed: none, as transport decides")
        found = [columns[end].astype(np.float64) for end in ends]
        low, high = (np.clip(values[:, : plan.draft_length] if values.ndim == 2 else values, 0, 1) for values in found)
        return Interval(low, np.maximum(low, high), False, True, False)


UNCERTAIN: Mapping[str, Any] = {entry.name: entry for entry in (Lists, Tolerance, Half, Transport)}
