"""Literal speculative decoding on tiny vocabularies, every draft, decision and output enumerated with its probability.

Nothing here is shared with the package: no survival, no ratio along a rollout, no recursion over starts. A *history* is
what happened in one run: a tuple of rounds ``(start, accepted)``, in which drafts past the end are not counted.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from scipy.optimize import brentq

KINDS = ("autoregressive", "block", "semi-autoregressive")
Tokens = tuple[int, ...]
Outcome = tuple[float, int, Tokens]  # probability, accepted drafts, committed tokens before any cut at the end
Decision = tuple[float, bool, int]  # probability, whether a draft is accepted, the token committed at this depth


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


def _draws(q: np.ndarray, drafts: int) -> Iterator[tuple[Tokens, float]]:
    for draws in itertools.product(_drawn(q), repeat=drafts):
        yield tuple(x for x, _ in draws), float(np.prod([mass for _, mass in draws]))


def independent_node(p: np.ndarray, q: np.ndarray, drafts: int) -> Iterator[Decision]:
    """Draw the drafts; the target draws for itself."""
    for candidates, drawn in _draws(q, drafts):
        yield from ((drawn * mass, v in candidates, v) for v, mass in _drawn(p))


def recursive_node(p: np.ndarray, q: np.ndarray, drafts: int) -> Iterator[Decision]:
    """SpecInfer's verification: rejection sampling again and again, each time from what the last one left."""
    for candidates, left in _draws(q, drafts):
        residual = p
        for x in candidates:
            accepted = min(1.0, residual[x] / q[x])
            yield left * accepted, True, x
            left *= 1 - accepted
            rest = np.maximum(residual - q, 0)
            if not rest.any():  # then every draft is accepted, but for rounding
                break
            residual = _normalised(rest)
        else:
            yield from ((left * mass, False, v) for v, mass in _drawn(residual))


def without_replacement_node(p: np.ndarray, q: np.ndarray, drafts: int) -> Iterator[Decision]:
    """Sequoia's verification: as the recursive one, but a rejected token is never drafted again."""
    if drafts == 0 or not q.any():
        yield from ((mass, False, v) for v, mass in _drawn(p))
        return
    for x, drawn in _drawn(q):
        accepted = min(1.0, p[x] / q[x])
        yield drawn * accepted, True, x
        rest = np.maximum(p - q, 0)
        if accepted < 1 and rest.any():
            others = np.where(np.arange(q.size) == x, 0, q)
            others = _normalised(others) if others.any() else others
            for mass, *decision in without_replacement_node(_normalised(rest), others, drafts - 1):
                yield drawn * (1 - accepted) * mass, *decision


def k_seq_node(p: np.ndarray, q: np.ndarray, drafts: int) -> Iterator[Decision]:
    """SpecTr's verification: each draft passes its own coin; what the coins leave of p is the residual."""

    def unbalanced(rho: float) -> float:
        return float(np.maximum(q - p / rho, 0).sum() ** drafts - np.maximum(p - rho * q, 0).sum())

    overlap = bool(np.minimum(p, q).any())
    rho = brentq(unbalanced, 1.0, drafts, xtol=1e-15, rtol=1e-15) if overlap else 1.0
    passes = np.minimum(q, p / rho)
    chance = passes.sum()
    tries = (1 - (1 - chance) ** drafts) / chance if overlap else 0.0
    residual = np.maximum(p - passes * tries, 0)
    for candidates, left in _draws(q, drafts):
        for x in candidates:
            accepted = min(1.0, p[x] / (rho * q[x]))
            yield left * accepted, True, x
            left *= 1 - accepted
        if left > 0 and residual.any():  # none is left where every draft is accepted, but for rounding
            yield from ((left * mass, False, v) for v, mass in _drawn(_normalised(residual)))


NODES: dict[str, Callable[[np.ndarray, np.ndarray, int], Iterator[Decision]]] = {
    "independent": independent_node,
    "node-recursive": recursive_node,
    "node-k-seq": k_seq_node,
    "recorded": without_replacement_node,
}


def acceptance_of_each_token(rule: str, p: np.ndarray, q: np.ndarray, drafts: int) -> np.ndarray:
    """Probability that a draft was accepted at a node given the token committed there."""
    accepted = np.zeros(p.size)
    for mass, decision, v in NODES[rule](p, q, drafts):
        accepted[v] += mass * decision
    return np.divide(accepted, p, out=np.zeros(p.size), where=p > 0)


def node_round(rule: str, drafts: int, world: World, prefix: Tokens, length: int) -> Iterator[Outcome]:
    """Draw all drafts at each depth, decide, and go on from the accepted one."""
    running = [(1.0, ())]
    while running:
        reached, accepted = running.pop()
        p = world.p(prefix + accepted)
        if len(accepted) == length:
            yield from ((reached * mass, length, (*accepted, v)) for v, mass in _drawn(p))
            continue
        masses: dict[tuple[bool, int], float] = defaultdict(float)
        for mass, *decision in NODES[rule](p, world.q(prefix, accepted), drafts):
            masses[tuple(decision)] += mass
        for (goes_on, v), mass in masses.items():
            if goes_on and mass > 0:
                running.append((reached * mass, (*accepted, v)))
            elif mass > 0:
                yield reached * mass, len(accepted), (*accepted, v)


ROUNDS: dict[str, Callable[[World, Tokens, int], Iterator[Outcome]]] = {
    "rejection": rejection_round,
    "block": block_round,
    "match": match_round,
    "none": plain_round,
}
# Rules that draw several drafts at each depth, and how many are tried.
DRAFTS = {"independent": (1, 2), "node-recursive": (1, 2, 3), "node-k-seq": (2, 3), "recorded": (2, 3)}


def _cut(tokens: Tokens, cap: int, stop: int | None) -> Tokens:
    ends = [i + 1 for i, v in enumerate(tokens) if v == stop]
    return tokens[: min([cap, *ends])]


def _ended(tokens: Tokens, cap: int, stop: int | None) -> bool:
    return len(tokens) >= cap or stop in tokens


def decode(
    world: World, rule: str, lengths: tuple[int, ...], cap: int, *, first_start: int, stop: int | None, drafts: int = 1
) -> dict[Tokens, dict[tuple, float]]:
    """Run every possible decoding; give the joint probability of each output and history.

    ``lengths[s]`` depths are drafted from start ``s``, ``drafts`` tokens at each by the rules of ``NODES``; the output
    ends with the stop token or after ``cap`` tokens.
    """
    play = partial(node_round, rule, drafts) if rule in NODES else ROUNDS[rule]
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
            outcomes[prefix] = list(play(world, prefix, lengths[start]))
        for mass, accepted, tokens in outcomes[prefix]:
            output = _cut(prefix + tokens, cap, stop)
            running[output, (*history, (start, min(accepted, len(output) - start)))] += probability * mass
    return done


def target_probability(world: World, output: Tokens) -> float:
    """Probability that the target alone generates ``output``."""
    return float(np.prod([world.p(output[:t])[v] for t, v in enumerate(output)]))
