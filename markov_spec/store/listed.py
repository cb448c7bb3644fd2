"""What lists of a target's likeliest tokens tell of how its tokens were drawn.

Drawn at temperature ``T = 1/beta`` from ``p``, a token is distributed over any set of tokens that does not depend on
it as ``p^beta`` normalised over that set. So lists judge the temperature exactly, however short they are, on the
positions whose token they hold: ``sum_t (log p(x_t) - E_beta[log p])`` is a sum of terms of mean 0. It falls with
``beta`` and is 0 at the likeliest temperature.

Filters are seen by what they left out: if tokens of a rank above ``r``, or above a cumulative probability ``c``, were
to be expected ``E`` times and never came, chance does that with probability ``exp(-E)`` at most, also where ``r`` or
``c`` is the largest one seen. What the lists do not hold enters by bounds: of the ``n`` tokens outside, each of at most
the last listed probability ``l``, whose probabilities sum to ``tau``, ``sum p^beta`` lies between ``tau l^(beta-1)``
and ``n^(1-beta) tau^beta``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from markov_spec.arrays import Array
from markov_spec.store.sampled import RARE
from markov_spec.store.setting import Setting

# Temperatures that are told apart; colder is greedy.
COLDEST, HOTTEST = 0.01, 100.0
# A distance beyond says no more: a token that the setting excludes.
FARTHEST = 10.0
# Rounding to bfloat16 moves a cumulative probability by less.
CUMULATIVE_TOLERANCE = 0.01
# Nats by which it moves a difference of two log-probabilities.
LOG_ROUNDING = 0.03
# Temperatures that log-probabilities are compared at; where one is right, most of them agree to rounding.
SCORED_AT = tuple(round(0.05 * i, 2) for i in range(1, 61))
SCORED_TOLERANCE, SCORED_POSITIONS = 0.02, 2000
# A larger share of lists that hold more than a filter leaves are not behind it.
BEYOND_SHARE = 0.1
STEPS = 50
UNKNOWN_VOCABULARY = 1 << 18
# Where a vocabulary size is too small for its lists, bounds mean nothing, but stay finite.
LARGEST_LOG = 700.0


class Score(NamedTuple):
    """Sum of ``log p(x) - E[log p]``, its variance, the largest possible term, and the number of random terms."""

    surplus: float
    variance: float
    largest: float
    terms: int


class Fit(NamedTuple):
    """The likeliest temperature, two standard errors around it, and the inverse of the lower one."""

    temperature: float
    low: float
    high: float
    cold_beta: float


class Kept(NamedTuple):
    """Entries (n, M) that filters keep, whether (n,) they may keep tokens outside, and whether (n,) both are known."""

    keep: Array
    more: Array
    known: Array


class Cut(NamedTuple):
    """The largest rank, and probability before a token, that were seen; how often larger ones were to be expected."""

    rank: int
    by_rank: float
    reached: float
    by_mass: float

    @property
    def kind(self) -> Literal["top_k", "top_p"] | None:
        """The filter that it shows, if chance cannot be the reason."""
        if max(self.by_rank, self.by_mass) < -math.log(RARE):
            return None
        return "top_k" if self.by_rank >= self.by_mass else "top_p"


@dataclass(frozen=True, eq=False)
class Listed:
    """Positions with lists.

    ``logs`` (n, M) fall along a row, ``-inf`` is no entry; ``tail`` (n,) is the probability outside; ``place`` (n,) is
    where the list holds the token, M where it does not; ``log_p`` (n,) is the record's own; ``rollout`` (n,) a number.
    """

    logs: Array
    tail: Array
    place: Array
    log_p: Array
    rollout: Array
    vocab_size: int

    @property
    def width(self) -> int:
        """Entries of a list, M."""
        return int(self.logs.shape[1])

    def first(self, count: int) -> Listed:
        """Give the same of the first positions."""
        some = slice(count)
        logs, tail, place = self.logs[some], self.tail[some], self.place[some]
        return Listed(logs, tail, place, self.log_p[some], self.rollout[some], self.vocab_size)

    def weights(self, beta: float) -> Array:
        """``p^beta`` of the entries, in units of the first one's."""
        out: Array = np.exp(beta * (self.logs - self.logs[:, :1]))
        return out

    def tail_weights(self, beta: float) -> tuple[Array, Array]:
        """Bounds of ``sum p^beta`` over the tokens outside, in units of the first entry's."""
        first, last = self.logs[:, 0], self.last()
        outside = max(self.vocab_size - self.width, 1)
        with np.errstate(divide="ignore"):
            tail = np.log(self.tail)
        alike = np.exp(tail + (beta - 1) * last - beta * first)
        spread = np.exp(np.minimum((1 - beta) * math.log(outside) + beta * (tail - first), LARGEST_LOG))
        return np.minimum(alike, spread), np.maximum(alike, spread)

    def kept(self, setting: Setting) -> Kept:
        """See what a setting's filters keep."""
        every: Array = np.ones(len(self.logs), dtype=bool)
        keep: Array = self.logs > -np.inf
        more, known = every, every
        if setting.top_k:
            keep = keep & (np.arange(self.width) < setting.top_k)
            more = every & (setting.top_k > self.width)
        if setting.top_p < 1:
            beta = 1 / setting.temperature if setting.tempered_first else 1.0
            counted = replace(setting, top_k=setting.top_k if setting.cut_first else 0, top_p=1.0, min_p=0.0)
            weights = self.weights(beta) * (keep if setting.cut_first else 1)
            reached = np.cumsum(weights, axis=1)
            sums = [reached[:, -1] + tail for tail in self._outside(beta, counted, more | (not setting.cut_first))]
            least, most = ((reached - weights) / total[:, None] for total in sums[::-1])
            inside, outside = most < setting.top_p - CUMULATIVE_TOLERANCE, least >= setting.top_p + CUMULATIVE_TOLERANCE
            known = np.all(inside | outside | ~keep, axis=1)
            keep = keep & inside
            more = more & (reached[:, -1] / sums[1] < setting.top_p + CUMULATIVE_TOLERANCE)
        if setting.min_p:
            over = (1 / setting.temperature if setting.min_p_tempered else 1.0) * (self.logs - self.logs[:, :1])
            over = over - math.log(setting.min_p)
            known = known & np.all((np.abs(over) > LOG_ROUNDING) | ~keep, axis=1)
            keep = keep & (over >= 0)
            more = more & (over[:, -1] >= 0)
        return Kept(keep & known[:, None], more & known, known)

    def _outside(self, beta: float, setting: Setting, more: Array) -> tuple[Array, Array]:
        """Bounds of ``sum p^beta`` over the tokens outside that a setting keeps, ``more`` (n,) telling if it may."""
        low, high = self.tail_weights(beta)
        if setting.filtered:  # it ends somewhere outside
            low = np.zeros_like(low)
        if setting.top_k:
            high = np.minimum(high, max(setting.top_k - self.width, 0) * np.exp(beta * (self.last() - self.logs[:, 0])))
        return low * more, high * more

    def score(self, beta: float, keep: Array) -> Score:
        """Judge ``beta`` by the tokens that are kept entries of their list."""
        rows = np.flatnonzero(self.inside(keep))
        logs, keep, place = self.logs[rows], keep[rows], self.place[rows]
        chance = np.where(keep, np.exp(beta * (logs - logs[:, :1])), 0.0)
        chance /= chance.sum(axis=1, keepdims=True)
        known = np.where(keep, logs, 0.0)
        mean = (chance * known).sum(axis=1, keepdims=True)
        apart = known - mean
        variance = (chance * apart**2).sum(axis=1)
        possible = chance >= RARE
        own = np.take_along_axis(apart, place[:, None], axis=1)
        largest = float(np.abs(apart[possible]).max(initial=0))
        return Score(float(own.sum()), float(variance.sum()), largest, int(np.count_nonzero(variance > RARE)))

    def inside(self, keep: Array) -> Array:
        """Which positions (n,) have a token that is a kept entry of their list."""
        place = np.minimum(self.place, self.width - 1)
        found: Array = (self.place < self.width) & np.take_along_axis(keep, place[:, None], axis=1)[:, 0]
        return found

    def fit(self, keep: Array) -> Fit | None:
        """Find the temperature that the tokens look like; None where nothing tells it."""
        low, beta, high = 1 / HOTTEST, 1.0, 1 / COLDEST
        for _ in range(STEPS):
            score = self.score(beta, keep)
            if score.surplus > 0:
                low = beta
            else:
                high = beta
            newton = beta + score.surplus / score.variance if score.variance else math.inf
            last, beta = beta, newton if low < newton < high else math.sqrt(low * high)
            if abs(beta - last) <= RARE * beta:
                break
        variance = self.score(beta, keep).variance
        if not variance:
            return None
        error = 2 / math.sqrt(variance)
        return Fit(1 / beta, 1 / (beta + error), 1 / (beta - error) if error < beta else math.inf, beta + error)

    def cut(self, beta: float, setting: Setting) -> Cut:
        """See what filters left out beside those of ``setting``, at the temperature ``1 / beta``."""
        keep, more, known = self.kept(setting)
        weights = np.where(keep, self.weights(beta), 0.0)[known]
        low, high = (tail[known] for tail in self._outside(beta, setting, more))
        total, place = weights.sum(axis=1) + high, self.place[known]
        chance, outside, listed = weights / total[:, None], low / total, weights.sum(axis=1) / total
        before = np.cumsum(chance, axis=1) - chance
        rank = int(place.max(initial=0)) + 1
        by_rank = float(chance[:, rank:].sum() + outside.sum()) if rank <= self.width else 0.0
        own = np.take_along_axis(np.column_stack([before, listed]), place[:, None], axis=1)
        reached = min(float(own.max(initial=0)) + CUMULATIVE_TOLERANCE, 1.0)
        by_mass = float(chance[before > reached].sum() + outside[listed > reached].sum())
        return Cut(rank, by_rank, reached, by_mass)

    def bounds(self, setting: Setting) -> tuple[Array, Array]:
        """Bounds (n,) of the log-probability that a token has at a setting, nats; NaN where the lists do not tell.

        A token that is left out has ``-inf``, one that rounding may move over a filter's edge has it as lower bound.
        """
        keep, more, known = self.kept(setting)
        beta, own, outside = 1 / setting.temperature, self.own(), self.ceiling()
        weights = np.where(keep, self.weights(beta), 0.0).sum(axis=1)
        low, high = self._outside(beta, setting, more)
        with np.errstate(divide="ignore", invalid="ignore"):
            least, most = (beta * (own - self.logs[:, 0]) - np.log(weights + tail) for tail in (high, low))
        removed = np.where(keep, -np.inf, self.logs).max(axis=1, initial=-np.inf)
        removed = np.maximum(removed, np.where(more, -np.inf, outside))
        edge = np.where(keep, self.logs, np.inf).min(axis=1)
        inside = self.inside(keep)
        least = np.where(inside & (removed < own - LOG_ROUNDING), least, -np.inf)
        possible = inside | ((self.place >= self.width) & more) | (own >= edge - LOG_ROUNDING)
        most = np.where(possible, most, -np.inf)
        return np.where(known, least, np.nan), np.where(known, most, np.nan)

    def excluded(self, setting: Setting) -> Array:
        """Which tokens (n,) a setting leaves out, but for those that rounding may move over the edge of a filter."""
        keep, more, known = self.kept(setting)
        listed = self.place < self.width
        edge = np.where(keep, self.logs, np.inf).min(axis=1)
        out: Array = known & ~self.inside(keep) & np.where(listed, self.own() < edge - LOG_ROUNDING, ~more)
        return out

    def own(self) -> Array:
        """Log-probability (n,) of the token, or of one that is not listed, the most that it can be."""
        place = np.minimum(self.place, self.width - 1)[:, None]
        own = np.take_along_axis(self.logs, place, axis=1)[:, 0]
        out: Array = np.where(self.place < self.width, own, self.ceiling())
        return out

    def ceiling(self) -> Array:
        """Log-probability (n,) that no token outside the lists exceeds."""
        with np.errstate(divide="ignore"):
            out: Array = np.minimum(self.last(), np.log(self.tail))
        return out

    def last(self) -> Array:
        """Log-probability (n,) of the last entry."""
        out: Array = np.where(self.logs > -np.inf, self.logs, 0.0).min(axis=1)
        return out

    def may_be_decoded(self, setting: Setting) -> bool:
        """Whether the lists may be of what a setting draws from: they hold no more than its filters leave."""
        first, beyond = self.logs[:, :1], np.zeros(len(self.logs), dtype=bool)
        some = self.logs > math.log(RARE)
        top_k = setting.top_k if setting.random else 1
        if 0 < top_k <= self.width:
            edge = self.logs[:, top_k - 1 : top_k] - LOG_ROUNDING  # equals may stay
            beyond |= (some & (self.logs < edge))[:, top_k:].any(axis=1) | (self.tail > CUMULATIVE_TOLERANCE)
        if setting.min_p:
            scale = 1 if setting.min_p_tempered or not setting.random else 1 / setting.temperature
            beyond |= (some & (self.logs - first < scale * math.log(setting.min_p) - LOG_ROUNDING)).any(axis=1)
        return bool(beyond.mean() <= BEYOND_SHARE) if beyond.size else True

    def distances(self, setting: Setting) -> Array:
        """How far (n,) the record's ``log_p`` are from what the lists give at a setting, nats; NaN where not listed."""
        least, most = self.bounds(setting)
        with np.errstate(invalid="ignore"):
            apart = np.maximum(np.maximum(self.log_p - most, least - self.log_p), 0)
        apart[self.place >= self.width] = np.nan
        near: Array = np.minimum(apart, FARTHEST)
        return near

    def scored_at(self, filters: Setting) -> float | None:
        """Find the temperature at which the lists give the record's ``log_p``, whatever the tokens look like."""
        some = self.first(SCORED_POSITIONS)
        apart = {t: some.distances(replace(filters, temperature=t)) for t in SCORED_AT}
        known = {t: values[~np.isnan(values)] for t, values in apart.items()}
        near = [t for t, values in known.items() if values.size and np.median(values) <= SCORED_TOLERANCE]
        return min(near, key=lambda t: float(known[t].mean()), default=None)
