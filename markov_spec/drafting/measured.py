"""What static builders are made of, measured on rollouts: how often the token of each rank is the right one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec.arrays import LOG_TOLERANCE, Array, as_float
from markov_spec.drafting._numba import NEVER
from markov_spec.drafting.inputs import check_tokens, places

Floats = npt.NDArray[np.float64]


def check_rates(given: Any, name: str, dimensions: int) -> Floats:
    """Give probabilities of alternatives, the last axis, as float64.

    Raises
    ------
    ValueError
        If there are none, a value is outside [0, 1], or the alternatives sum to more than 1.
    """
    values = as_float(given, name).reshape(np.shape(given)).astype(np.float64)
    if values.ndim != dimensions or values.size == 0:
        allowed = {1: "(B,)", 2: "(D, R)"}[dimensions]
        raise ValueError(f"{name}: found shape {values.shape}; allowed: {allowed}, not empty")
    bad = ~((values >= 0) & (values <= 1))
    if bad.any():
        at = np.unravel_index(int(np.argmax(bad)), values.shape)
        raise ValueError(f"{name}{[int(i) for i in at]}: found {values[at]}; allowed: 0 to 1")
    most = float(values.sum(axis=-1).max())
    if most > 1 + LOG_TOLERANCE:
        raise ValueError(f"{name}: found a sum of {most}; allowed: at most 1, as at most one alternative is right")
    return values


def check_weights(given: Any, rows: int) -> Floats:
    """Give a weight for each start, 1 if there are none given.

    Raises
    ------
    ValueError
        If the shape is another, or a weight is negative or not finite.
    """
    if given is None:
        return np.ones(rows)
    values = as_float(given, "weights").astype(np.float64)
    if values.shape != (rows,):
        raise ValueError(f"weights: found shape {values.shape}; allowed: ({rows},), one for each start")
    bad = ~((values >= 0) & (values < np.inf))
    if bad.any():
        s = int(np.argmax(bad))
        raise ValueError(f"weights: start {s}: found {values[s]}; allowed: finite numbers >= 0")
    return values


def rank_accuracy(top_ids: Any, tokens: Any, *, weights: Any = None) -> Floats:
    """Measure how often the token of each rank is right at each depth, whatever came before: Medusa's table.

    Parameters
    ----------
    top_ids : array of int, (N, D, M)
    tokens : array of int, (N, D)
        The rollout's next tokens, -1 past the end (``next_tokens``).
    weights : array of float, (N,), optional
        Weight of each start, such as its occupancy; 1 by default.

    Returns
    -------
    ndarray of float64, (D, M)
        Weighted share of the starts that have a depth whose token there is the one of this rank; 0 where none has.

    Raises
    ------
    ValueError
        As ``tree_ranks``, or if the weights are no finite numbers of 0 or more.

    Examples
    --------
    >>> from markov_spec.drafting import rank_accuracy
    >>> rank_accuracy([[[7, 8], [5, 6]], [[5, 6], [7, 8]]], [[8, 5], [5, -1]])
    array([[0.5, 0.5],
           [1. , 0. ]])
    """
    ids, words = check_tokens(top_ids, tokens)
    return accuracy_of(places(ids, words, None), ids.shape[2], check_weights(weights, len(ids)))


def accuracy_of(hit: Array, listed: int, weight: Floats) -> Floats:
    """Do what `rank_accuracy` does, from the places of the rollout's tokens in lists of ``listed`` tokens."""
    counted = weight @ (hit != NEVER)
    hits = np.stack([weight @ (hit == m) for m in range(listed)], axis=1)
    shares: Floats = np.divide(hits, counted[:, None], out=np.zeros_like(hits), where=counted[:, None] > 0)
    return shares


def rank_acceptance(top_ids: Any, tokens: Any, *, weights: Any = None) -> Floats:
    """Measure how often the child of each rank is the right one, whatever the depth: Sequoia's vector.

    Parameters
    ----------
    top_ids, tokens, weights
        As in `rank_accuracy`; errors too.

    Returns
    -------
    ndarray of float64, (M,)
        Weighted share, among all nodes on the rollout's path through the tree of all listed tokens, of those whose next
        token is the one of this rank; 0 if there are none. A node with no next token left is not counted.

    Examples
    --------
    >>> from markov_spec.drafting import rank_acceptance
    >>> rank_acceptance([[[7, 8], [5, 6]], [[5, 6], [7, 8]]], [[8, 5], [4, 7]])
    array([0.33333333, 0.33333333])
    """
    ids, words = check_tokens(top_ids, tokens)
    return acceptance_of(places(ids, words, None), ids.shape[2], check_weights(weights, len(ids)))


def acceptance_of(hit: Array, listed: int, weight: Floats) -> Floats:
    """Do what `rank_acceptance` does, from the places of the rollout's tokens in lists of ``listed`` tokens."""
    reached = hit != NEVER
    reached[:, 1:] &= np.logical_and.accumulate(hit >= 0, axis=1)[:, :-1]
    counted = float((weight @ reached).sum())
    hits = np.array([float((weight @ (reached & (hit == m))).sum()) for m in range(listed)])
    return hits / counted if counted > 0 else hits
