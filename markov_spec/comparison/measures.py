"""Quotients of sums over prompts, what they owe to each prompt, and the errors that follow.

With sums ``x_g`` and ``y_g`` over the rollouts of prompt ``g = 1..P``, a contender's value is ``v = sum x / sum y``,
and ``v(-g)`` that without prompt ``g``. An estimate ``t`` is moved by a prompt by

    u_g = (P-1)/P (mean of t(-1..P) - t(-g)),    Var t = P / (P-1) sum_g u_g^2

For a mean this is the usual error. For ``t = log v`` it is the delta method's ``x_g / sum x - y_g / sum y`` to first
order, but long prompts, whose residuals that takes for smaller than they are, count in full: intervals hold more often.
What two contenders owe to the same prompt cancels before it is squared: that is what pairing gains. The macro mean over
``M`` benchmarks moves by ``u_g / M`` within a benchmark, whose prompts vary by themselves: variances of benchmarks add
up, and Student's degrees of freedom are Satterthwaite's.
Source: Royall and Cumberland, JASA 76 (1981), variances of the ratio estimator; Satterthwaite, Biometrics Bulletin 2
(1946).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import fsum
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from scipy.special import stdtrit

from markov_spec.comparison.vectors import Array, Vectors

LENGTH: Final = "tokens_per_round"
PRICE: Final = "price_per_token"
Name = Literal["tokens_per_round", "price_per_token"]


class Estimate(NamedTuple):
    """An error and its degrees of freedom; NaN where there is none."""

    error: float
    freedom: float

    def reach(self, level: float) -> float:
        """Half of the interval's width."""
        return float(stdtrit(self.freedom, (1 + level) / 2)) * self.error


@dataclass(frozen=True, eq=False)
class Measure:
    """A figure of each contender, ``sum top / sum bottom``: tokens per round, or price per token.

    Parameters
    ----------
    name : {"tokens_per_round", "price_per_token"}
    sign : int
        1 where more is better, -1 where less is.
    top, bottom : ndarray, (C, R)
    prompt : ndarray of int, (R,)
    benchmark : ndarray of int, (P,)
    request_mean, plug_in_request_mean : ndarray, (C,)
        Means over rollouts; NaN where the vectors do not tell.
    luck : ndarray, (C,)
        Relative variance of a figure that decoding luck alone would make on these rollouts; NaN where unknown.
    plain : ndarray, (C, R), or None
        Price of the rollouts without speculation.
    """

    name: Name
    sign: int
    top: Array
    bottom: Array
    prompt: Array
    benchmark: Array
    request_mean: Array
    plug_in_request_mean: Array
    luck: Array
    plain: Array | None = None

    @cached_property
    def sums(self) -> tuple[Array, Array]:
        """Sums of top and bottom by prompt, (C, P) each."""
        count = len(self.benchmark)
        top, bottom = ([np.bincount(self.prompt, row, count) for row in rows] for rows in (self.top, self.bottom))
        return np.array(top), np.array(bottom)

    def values(self, chosen: Array | slice = slice(None)) -> Array:
        """Quotient of sums over the chosen prompts, (C,); NaN where nothing is divided."""
        top, bottom = (rows[:, chosen].sum(1) for rows in self.sums)
        return divided(top, bottom)

    def left_out(self, chosen: Array | slice = slice(None)) -> Array:
        """Values of the chosen prompts without each of them in turn, (C, P)."""
        top, bottom = (others(rows[:, chosen]) for rows in self.sums)
        return divided(top, bottom)

    @cached_property
    def _parts(self) -> list[Array]:
        # Prompts of each benchmark in which every contender has a value.
        masks = [self.benchmark == b for b in np.unique(self.benchmark)]
        return [own for own in masks if np.isfinite(self.values(own)).all()]

    @cached_property
    def macro(self) -> tuple[Array, Array]:
        """Macro mean over benchmarks, (C,), and what each prompt moves it by, (C, P); see `apart`."""
        moved = np.zeros(self.sums[0].shape)
        count = len(self._parts)
        if not count:
            return np.full(len(moved), np.nan), moved
        for own in self._parts:
            moved[:, own] = moves(self.left_out(own)) / count
        columns = np.array([self.values(own) for own in self._parts]).T
        return np.array([fsum(column) / count for column in columns]), moved

    def apart(self, moved: Array) -> Estimate:
        """Error of an estimate that prompts move within their benchmarks, each of which varies by itself."""
        if not self._parts:
            return Estimate(np.nan, np.nan)
        errors, freedoms = np.array([varied(moved[own]) for own in self._parts]).T
        variance, spread = fsum(errors**2), fsum(errors**4 / freedoms)
        return Estimate(float(np.sqrt(variance)), fsum(freedoms) if spread == 0 else variance**2 / spread)


def varied(moved: Array) -> Estimate:
    """Error of an estimate that each prompt moves by so much."""
    count = moved.size
    if count < 2:
        return Estimate(np.nan, np.nan)
    return Estimate(float(np.sqrt(np.sum(moved**2) * count / (count - 1))), float(count - 1))


def moves(left_out: Array) -> Array:
    """What each prompt moves an estimate by, of the estimates without each, (..., P)."""
    count = left_out.shape[-1]
    found: Array = (left_out.mean(-1, keepdims=True) - left_out) * ((count - 1) / count)
    return found


def logs(values: Array) -> Array:
    """Logarithms; NaN where there is none."""
    found: Array = np.log(values, out=np.full(np.shape(values), np.nan), where=values > 0)
    return found


def divided(top: Any, bottom: Any) -> Array:
    """Quotients; NaN where there is nothing to divide by."""
    found: Array = np.divide(top, bottom, out=np.full(np.broadcast(top, bottom).shape, np.nan), where=bottom != 0)
    return found


def others(rows: Array) -> Array:
    """Sums over the prompts but each in turn, (..., P)."""
    # Of those before and those after: the whole less one would be rounding beside a dominant prompt.
    none = np.zeros((len(rows), 1))
    before = np.cumsum(np.concatenate((none, rows[:, :-1]), axis=1), axis=1)
    after = np.cumsum(np.concatenate((none, rows[:, :0:-1]), axis=1), axis=1)[:, ::-1]
    found: Array = before + after
    return found


def measures(vectors: Vectors) -> list[Measure]:
    """Make a measure of each quantity that was counted."""
    found: list[Measure] = []
    shared = {"prompt": vectors.prompt, "benchmark": vectors.benchmark}
    if vectors.rounds is not None:
        plain = _mean(divided(vectors.tokens, vectors.rounds))
        inverse = vectors.expected_inverse
        unknown = np.full(len(plain), np.nan)
        found.append(
            Measure(
                LENGTH, 1, vectors.tokens, vectors.rounds, **shared,
                request_mean=unknown if inverse is None else _mean(vectors.tokens * inverse),
                plug_in_request_mean=plain,
                luck=_luck(vectors.variance, vectors.rounds),
            )
        )  # fmt: skip
    if vectors.price is not None:
        plain = _mean(divided(vectors.price, vectors.tokens))
        luck = _luck(vectors.price_variance, vectors.price)
        found.append(
            Measure(
                PRICE, -1, vectors.price, vectors.tokens, **shared,
                request_mean=plain,
                plug_in_request_mean=plain,
                luck=luck,
                plain=vectors.plain_price,
            )
        )  # fmt: skip
    return found


def _mean(rows: Array) -> Array:
    return np.array([fsum(row[~np.isnan(row)]) / max(int(np.sum(~np.isnan(row))), 1) for row in rows])


def _luck(variance: Array | None, quantity: Array) -> Array:
    if variance is None:
        return np.full(len(quantity), np.nan)
    found: Array = variance.sum(1) / quantity.sum(1) ** 2
    return found
