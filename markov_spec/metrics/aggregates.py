"""Aggregates over rollouts, by name: pure functions of per-rollout vectors, and of histograms of rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ROUNDING = 1e-9


def pooled_length(committed: Any, rounds: Any) -> float | None:
    """Committed tokens per round, pooled over rollouts: the headline figure.

    Parameters
    ----------
    committed : array_like of float, (R,)
        Tokens that each rollout commits.
    rounds : array_like of float, (R,)
        Its (expected) rounds.

    Returns
    -------
    float or None
        Tokens per round, the target's own token included; None without rounds.

    Examples
    --------
    >>> pooled_length([40, 200], [10, 100])
    2.1818181818181817
    """
    tokens, expected = _pair(committed, rounds)
    return ratio(float(np.sum(tokens)), float(np.sum(expected)))


def request_mean(tokens: Any, expected_inverse: Any) -> float | None:
    """Mean over rollouts of the expected tokens per round, ``tokens E[1/R]``.

    Parameters
    ----------
    tokens : array_like of float, (R,)
        Tokens that each rollout commits.
    expected_inverse : array_like of float, (R,)
        ``E[1/R]``, or one over the measured rounds; NaN without rounds.

    Returns
    -------
    float or None
        Tokens per round; rollouts without rounds are left out, None if that leaves none.

    Raises
    ------
    ValueError
        If an inverse is outside (0, 1], or a rollout has tokens without rounds.

    Examples
    --------
    >>> request_mean([40, 200, 0], [1 / 10, 1 / 100, float("nan")])
    3.0
    """
    lengths, _ = _request_lengths(tokens, expected_inverse)
    return ratio(math.fsum(lengths), lengths.size)


def length_weighted_mean(tokens: Any, expected_inverse: Any) -> float | None:
    """Mean over rollouts of ``tokens E[1/R]``, weighted by their tokens.

    Parameters
    ----------
    tokens, expected_inverse : array_like of float, (R,)
        As in `request_mean`; errors too.

    Returns
    -------
    float or None
        Tokens per round; None if no rollout has rounds.

    Examples
    --------
    >>> length_weighted_mean([40, 200], [1 / 10, 1 / 100])
    2.3333333333333335
    """
    lengths, weights = _request_lengths(tokens, expected_inverse)
    return ratio(math.fsum(lengths * weights), math.fsum(weights))


def plug_in_request_mean(tokens: Any, rounds: Any) -> float | None:
    """Mean over rollouts of ``tokens / E[R]``: below `request_mean` unless the rounds are certain.

    Parameters
    ----------
    tokens : array_like of float, (R,)
        Tokens that each rollout commits.
    rounds : array_like of float, (R,)
        Its (expected) rounds.

    Returns
    -------
    float or None
        Tokens per round; rollouts without rounds are left out, None if that leaves none.

    Raises
    ------
    ValueError
        If rounds are negative, or a rollout has tokens without rounds.

    Examples
    --------
    >>> plug_in_request_mean([40, 200, 0], [10, 100, 0])
    3.0
    """
    committed, expected = _vectors(tokens, rounds, "rounds")
    _refuse(~((expected >= 0) & (expected < np.inf)), "rounds", expected, "finite numbers >= 0")
    chosen = expected > 0
    _refuse(~chosen & (committed > 0), "tokens", committed, "0, since it has no rounds")
    return ratio(math.fsum(committed[chosen] / expected[chosen]), int(chosen.sum()))


def left_out(rounds: Any) -> int:
    """Count the rollouts without a round, which means over rollouts leave out.

    Parameters
    ----------
    rounds : array_like of float, (R,)
        (Expected) rounds of each rollout.

    Returns
    -------
    int

    Examples
    --------
    >>> left_out([10, 0, 100])
    1
    """
    return int(np.sum(np.asarray(rounds) == 0))


def drafts_only_length(tokens: Any, rounds: Any) -> float | None:
    """Committed tokens per round without the target's own: pooled length less 1.

    Parameters
    ----------
    tokens, rounds : array_like of float, (R,)
        As in `pooled_length`.

    Returns
    -------
    float or None
        Drafts per round, a rollout's last token being the target's own; None without rounds.

    Examples
    --------
    >>> drafts_only_length([40, 200], [10, 100])
    1.1818181818181817
    """
    pooled = pooled_length(tokens, rounds)
    return None if pooled is None else pooled - 1


def untrimmed_length(tokens: Any, rounds: Any, overshoot: Any) -> float | None:
    """Tokens per round where the last round of a rollout is not trimmed: ``1 + accepted / rounds``.

    Parameters
    ----------
    tokens, rounds : array_like of float, (R,)
        As in `pooled_length`.
    overshoot : array_like of float, (R,)
        (Expected) tokens past the end, see `overshoot`.

    Returns
    -------
    float or None
        Tokens per round; None without rounds.

    Examples
    --------
    >>> untrimmed_length([5, 5], [2, 2], [1, 0])
    2.75
    """
    committed, expected = _pair(tokens, rounds)
    _pair(tokens, overshoot, "overshoot")
    return ratio(float(np.sum(committed)) + float(np.sum(overshoot)), float(np.sum(expected)))


def overshoot(histogram: Any, committed: Any) -> Array:
    """Tokens that rounds would commit past the end: ``sum_k (k+1) h[k] - tokens``.

    Parameters
    ----------
    histogram : array_like of float, (R, K+1)
        (Expected) rounds of each rollout that accept exactly 0..K drafts, an accepted end token counted.
    committed : array_like of float, (R,)
        Tokens that each rollout commits.

    Returns
    -------
    ndarray of float, (R,)
        Probability that the end token was an accepted draft, since the target would add a token to it.

    Raises
    ------
    ValueError
        If a rollout commits more than its rounds give, beyond rounding.

    Examples
    --------
    >>> overshoot([[1.0, 0.0, 1.0]], [3])
    array([1.])
    """
    rounds, tokens = np.asarray(histogram, dtype=np.float64), np.asarray(committed, dtype=np.float64)
    if rounds.ndim != 2 or tokens.shape != rounds.shape[:1]:
        raise ValueError(f"histogram: found shapes {rounds.shape}, {tokens.shape}; allowed: (R, K+1) and (R,)")
    surplus = rounds @ np.arange(1, rounds.shape[1] + 1) - tokens
    _refuse(~(surplus >= -ROUNDING * np.maximum(tokens, 1)), "committed", tokens, "no more than its rounds give")
    return np.maximum(surplus, 0.0)


def macro_mean(lengths: Iterable[float | None]) -> float | None:
    """Unweighted mean over benchmarks of the pooled length.

    Parameters
    ----------
    lengths : iterable of float or None
        Pooled length of each benchmark; None where it has no rounds.

    Returns
    -------
    float or None
        Tokens per round; benchmarks without rounds are left out, None if that leaves none.

    Examples
    --------
    >>> macro_mean([3.0, 2.0, None])
    2.5
    """
    defined = [length for length in lengths if length is not None]
    return ratio(math.fsum(defined), len(defined))


def leave_one_out(committed: Any, rounds: Any, groups: Sequence[str]) -> dict[str, float]:
    """Pooled length without each group of rollouts in turn, such as without each prompt.

    Parameters
    ----------
    committed, rounds : array_like of float, (R,)
        As in `pooled_length`.
    groups : sequence of str, (R,)
        Group of each rollout.

    Returns
    -------
    dict of str to float
        By group in the order of first appearance; groups without which no round is left are left out.

    Examples
    --------
    >>> leave_one_out([40, 200, 60], [10, 100, 10], ["a", "b", "a"])
    {'a': 2.0, 'b': 5.0}
    """
    tokens, expected = _sums(committed, groups), _sums(rounds, groups)
    total, whole = math.fsum(expected.values()), math.fsum(tokens.values())
    rest = {group: total - expected[group] for group in tokens}
    return {group: (whole - tokens[group]) / left for group, left in rest.items() if left > ROUNDING * total}


def largest_share(committed: Any, groups: Sequence[str]) -> tuple[str, float]:
    """Find the group that holds the most tokens, and its share of them.

    Parameters
    ----------
    committed : array_like of float, (R,)
        Tokens of each rollout; some must be above 0.
    groups : sequence of str, (R,)

    Returns
    -------
    tuple of str and float

    Examples
    --------
    >>> largest_share([40, 200, 60], ["a", "b", "a"])
    ('b', 0.6666666666666666)
    """
    tokens = _sums(committed, groups)
    if not any(tokens.values()):
        raise ValueError(f"committed: found no token in {len(groups)} rollouts; allowed: some above 0")
    group = max(tokens, key=lambda name: tokens[name])
    return group, tokens[group] / math.fsum(tokens.values())


def _sums(values: Any, groups: Sequence[str]) -> dict[str, float]:
    sums = dict.fromkeys(groups, 0.0)
    if np.shape(values) != (len(groups),):
        raise ValueError(f"groups: found {len(groups)} for values of shape {np.shape(values)}; allowed: one for each")
    for group, value in zip(groups, np.asarray(values, dtype=np.float64).tolist(), strict=True):
        sums[group] += value
    return sums


def surprise_z(log_p: Array, entropy: Array, varentropy: Array) -> float | None:
    """Standardised total surprise of rollouts under the distribution they are said to come from.

    Parameters
    ----------
    log_p : ndarray of float, (N,)
        Log-probability (nats) of each realised token.
    entropy, varentropy : ndarray of float, (N,)
        Mean and variance of ``-log p`` of each position's distribution, nats and nats squared.

    Returns
    -------
    float or None
        About standard normal if every token was drawn from its distribution and no rollout was selected; None where
        nothing was random (no tokens, or greedy decoding).

    Examples
    --------
    >>> surprise_z(np.array([-.7, -1.5]), np.array([1.0, .8]), np.array([.01, .03]))
    2.0
    """
    spread = float(np.sum(varentropy, dtype=np.float64))
    if spread == 0:
        return None
    surplus = -float(np.sum(log_p, dtype=np.float64)) - float(np.sum(entropy, dtype=np.float64))
    return surplus / math.sqrt(spread)


def _pair(tokens: Any, other: Any, name: str = "rounds") -> tuple[Array, Array]:
    # Vectors, or the sums of a whole log.
    committed, values = np.asarray(tokens, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if committed.shape != values.shape:
        raise ValueError(f"{name}: found shape {values.shape} for tokens {committed.shape}; allowed: the same")
    for what, given in (("tokens", committed), (name, values)):
        _refuse(np.atleast_1d(~((given >= 0) & (given < np.inf))), what, np.atleast_1d(given), "finite numbers >= 0")
    return committed, values


def _vectors(tokens: Any, other: Any, name: str) -> tuple[Array, Array]:
    committed, values = np.asarray(tokens, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if committed.ndim != 1 or committed.shape != values.shape:
        raise ValueError(f"{name}: found shape {values.shape} for {committed.shape} tokens; allowed: both (R,)")
    _refuse(~((committed >= 0) & (committed < np.inf)), "tokens", committed, "finite numbers >= 0")
    return committed, values


def _refuse(bad: Array, name: str, values: Array, allowed: str) -> None:
    if bad.any():
        i = int(np.argmax(bad))
        raise ValueError(f"{name}: rollout {i}: found {values[i]:g}; allowed: {allowed}")


def _request_lengths(tokens: Any, expected_inverse: Any) -> tuple[Array, Array]:
    committed, inverse = _vectors(tokens, expected_inverse, "expected_inverse")
    bare = np.isnan(inverse)
    _refuse(bare & (committed > 0), "tokens", committed, "0, since it has no rounds")
    outside = ~((inverse > 0) & (inverse <= 1 + ROUNDING)) & ~bare
    _refuse(outside, "expected_inverse", inverse, "above 0, at most 1; NaN without rounds")
    return (committed * inverse)[~bare], committed[~bare]


def ratio(part: float, whole: float) -> float | None:
    """Divide; None where there is nothing to divide by."""
    return part / whole if whole else None
