"""Random lists, rollouts and builders for the tests of draft trees."""

from __future__ import annotations

import itertools

import numpy as np

from markov_spec.drafting import AllChildren, BestFirst, Chain, Eagle2, Medusa, Sequoia, Static

ACCURACY = np.array([[0.5, 0.2, 0.1], [0.4, 0.2, 0.2], [0.3, 0.3, 0.1]])
# One of each entry of BUILDERS at least, for lists of three depths or more.
FAMILY = [
    BestFirst(), Chain(), Eagle2(), Eagle2(beam=2), Eagle2(beam=3, depth=1), AllChildren(), AllChildren(width=2),
    Static(((0,), (2,), (0, 0), (0, 1), (0, 0, 0), (1,), (2, 0))), Medusa(ACCURACY), Sequoia([0.6, 0.2, 0.1], depth=3),
]  # fmt: skip
NESTED = [builder for builder in FAMILY if not isinstance(builder, Sequoia)]


def lists(rng, starts, depths, vocabulary, *, ties=False, zeros=False, dtype=np.float64):
    """Whole distributions of every start and depth, sorted: ids and log-probabilities, (starts, depths, vocabulary).

    ``ties`` rounds the logarithms, so that many values are equal, sums of them too; ``zeros`` makes the last ones 0.
    """
    shape = (starts, depths, vocabulary)
    weights = rng.gamma(1.0 if ties else 0.3, size=shape) + 1e-9
    log_q = -np.sort(-np.log(weights / weights.sum(axis=-1, keepdims=True)), axis=-1)
    if ties:
        log_q = np.round(log_q)
    if zeros:
        log_q[np.arange(vocabulary) >= rng.integers(0, vocabulary + 1, (starts, depths, 1))] = -np.inf
    return np.argsort(rng.random(shape), axis=-1).astype(np.int32), log_q.astype(dtype)


def rollout(rng, ids, log_q, *, ends=False):
    """Tokens (starts, depths), likely ones more often; ``ends`` puts ends among them."""
    starts, depths, vocabulary = ids.shape
    places = np.minimum(rng.geometric(0.4, (starts, depths)) - 1, vocabulary - 1)
    tokens = np.take_along_axis(ids, places[..., None], axis=-1)[..., 0]
    if ends:
        tokens[np.arange(depths) >= rng.integers(0, depths + 1, (starts, 1))] = -1
    return tokens


def values(log_q):
    """Every node of the listed tokens of one start with its value, added from the root down."""
    depths, width = log_q.shape
    found = {}
    for depth in range(1, depths + 1):
        for path in itertools.product(range(width), repeat=depth):
            total = np.float64(0)
            for d, place in enumerate(path):
                total = total + np.float64(log_q[d, place])
            if total > -np.inf:
                found[path] = total
    return found


def sorted_paths(log_q):
    """All nodes of one start in the order of (T1)."""
    return [path for path, _ in sorted(values(log_q).items(), key=lambda item: (-item[1], item[0]))]
