"""Literal speculative decoding on tiny vocabularies, every draft, decision and output enumerated with its probability.

Nothing here is shared with the package: no survival, no ratio along a rollout, no recursion over starts. A *history* is
what happened in one run: a tuple of rounds ``(start, accepted)``, in which drafts past the end are not counted.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np

KINDS = ("autoregressive", "block", "semi-autoregressive")
Tokens = tuple[int, ...]
Outcome = tuple[float, int, Tokens]  # probability, accepted drafts, committed tokens before any cut at the end


class World:
    """A random target and a random drafter of one kind, with zeros, ties and equal distributions among their rows."""

    def __init__(self, seed: int, vocabulary: int, kind: str) -> None:
        self.vocabulary, self.kind = vocabulary, kind
        self._random = np.random.default_rng(seed)
        self._rows: dict[object, np.ndarray] = {}

    def _row(self, key: object) -> np.ndarray:
        if key not in self._rows:
            weights = self._random.choice([0.0, 1.0, 1.0, 2.0, 5.0, self._random.random()], self.vocabulary)
            if not weights.any():
                weights[self._random.integers(self.vocabulary)] = 1.0
            self._rows[key] = weights / weights.sum()
        return self._rows[key]

    def p(self, context: Tokens) -> np.ndarray:
        return self._row(("p", context))

    def q(self, prefix: Tokens, drafts: Tokens) -> np.ndarray:
        """Distribution of the next draft of the block begun after ``prefix``."""
        key: dict[str, object] = {
            "autoregressive": prefix + drafts,
            "block": (prefix, len(drafts)),
            "semi-autoregressive": (prefix, drafts),
        }
        return self._row(("q", key[self.kind]))


def _drawn(distribution: np.ndarray) -> Iterator[tuple[int, float]]:
    return ((v, float(mass)) for v, mass in enumerate(distribution) if mass > 0)


def _normalised(positive_part: np.ndarray) -> np.ndarray:
    return positive_part / positive_part.sum()


def rejection_round(world: World, prefix: Tokens, length: int, drafts: Tokens = ()) -> Iterator[Outcome]:
    """Draft, test and, at the first rejection, draw from the normalised (p - q)+."""
    p = world.p(prefix + drafts)
    if len(drafts) == length:
        yield from ((mass, length, (*drafts, v)) for v, mass in _drawn(p))
        return
    q = world.q(prefix, drafts)
    for x, drawn in _drawn(q):
        accepted = min(1.0, p[x] / q[x])
        if accepted > 0:
            for mass, count, tokens in rejection_round(world, prefix, length, (*drafts, x)):
                yield drawn * accepted * mass, count, tokens
        if accepted < 1:
            for v, mass in _drawn(_normalised(np.maximum(p - q, 0))):
                yield drawn * (1 - accepted) * mass, len(drafts), (*drafts, v)


def block_round(world: World, prefix: Tokens, length: int) -> Iterator[Outcome]:
    """Algorithm 2 of Sun et al. 2025: each prefix of the drafted block passes its own coin; the longest one is kept."""
    for drafts in itertools.product(range(world.vocabulary), repeat=length):
        drawn, weights, heads = 1.0, [1.0], []
        for k in range(length):
            q, p = world.q(prefix, drafts[:k]), world.p(prefix + drafts[:k])
            drawn *= float(q[drafts[k]])
            if drawn == 0:
                break
            weights.append(min(1.0, weights[-1] * p[drafts[k]] / q[drafts[k]]))
        if drawn == 0:
            continue
        residuals = []
        for k in range(length):
            residuals.append(np.maximum(weights[k] * world.p(prefix + drafts[:k]) - world.q(prefix, drafts[:k]), 0))
            below = residuals[k].sum() + (1 - weights[k])
            heads.append(residuals[k].sum() / below if below > 0 else 1.0)
        heads.append(weights[length])
        longer_fail = 1.0
        for k in range(length, -1, -1):
            chosen = drawn * longer_fail * (heads[k] if k > 0 else 1.0)
            longer_fail *= 1 - heads[k]
            if chosen > 0:
                last = world.p(prefix + drafts) if k == length else _normalised(residuals[k])
                for v, mass in _drawn(last):
                    yield chosen * mass, k, (*drafts[:k], v)


def match_round(world: World, prefix: Tokens, length: int) -> Iterator[Outcome]:
    """Draft the argmax; the target draws for itself, and the round goes on while it draws the draft."""
    drafts: Tokens = ()
    for _ in range(length):
        drafts = (*drafts, int(np.argmax(world.q(prefix, drafts))))
    reached = 1.0
    for k in range(length + 1):
        p = world.p(prefix + drafts[:k])
        for v, mass in _drawn(p):
            if k == length or v != drafts[k]:
                yield reached * mass, k, (*drafts[:k], v)
        if k < length:
            reached *= float(p[drafts[k]])
        if reached == 0:
            return


def plain_round(world: World, prefix: Tokens, length: int) -> Iterator[Outcome]:
    """Draw one token from the target."""
    yield from ((mass, 0, (v,)) for v, mass in _drawn(world.p(prefix)))


ROUNDS: dict[str, Callable[[World, Tokens, int], Iterator[Outcome]]] = {
    "rejection": rejection_round,
    "block": block_round,
    "match": match_round,
    "none": plain_round,
}


def _cut(tokens: Tokens, cap: int, stop: int | None) -> Tokens:
    ends = [i + 1 for i, v in enumerate(tokens) if v == stop]
    return tokens[: min([cap, *ends])]


def _ended(tokens: Tokens, cap: int, stop: int | None) -> bool:
    return len(tokens) >= cap or stop in tokens


def decode(
    world: World, rule: str, lengths: tuple[int, ...], cap: int, *, first_start: int, stop: int | None
) -> dict[Tokens, dict[tuple, float]]:
    """Run every possible decoding; give the joint probability of each output and history.

    ``lengths[s]`` drafts are proposed from start ``s``; the output ends with the stop token or after ``cap`` tokens.
    """
    running: dict[tuple, float] = defaultdict(float)
    if first_start == 0:
        running[(), ()] = 1.0
    else:
        running.update({((v,), ()): mass for v, mass in _drawn(world.p(()))})
    done: dict[Tokens, dict[tuple, float]] = defaultdict(lambda: defaultdict(float))
    outcomes: dict[Tokens, list[Outcome]] = {}
    while running:
        (prefix, history), probability = running.popitem()
        if _ended(prefix, cap, stop):
            done[prefix][history] += probability
            continue
        start = len(prefix)
        if prefix not in outcomes:
            outcomes[prefix] = list(ROUNDS[rule](world, prefix, lengths[start]))
        for mass, accepted, tokens in outcomes[prefix]:
            output = _cut(prefix + tokens, cap, stop)
            running[output, (*history, (start, min(accepted, len(output) - start)))] += probability * mass
    return done


def target_probability(world: World, output: Tokens) -> float:
    """Probability that the target alone generates ``output``."""
    return float(np.prod([world.p(output[:t])[v] for t, v in enumerate(output)]))
