"""Monte-Carlo decoding: rounds played one after the other, from a law or from full distributions.

``simulate`` walks a law. From start ``s`` the drafts at positions ``s, s+1, ...`` are tested in turn, at most
``min(L[s], T-s)`` of them, until one fails; ``N`` passed, and the next round starts at ``min(s+N+1, T)``. A walk tests
no position twice, since the position of a failed draft gets the target's token: one uniform for each position is
enough. ``simulate_decoding`` knows no law: it drafts, decides by a rule's ``verify`` and commits, as an engine does.
The module shares nothing with ``chain``, whose results it is a witness for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec._jit import kernel
from markov_spec.acceptance import RULES, Round, Tokens
from markov_spec.arrays import Array, RoundLaw, as_float, check_first_start, check_integer, rollout_spans

__all__ = ["simulate", "simulate_decoding"]

CHUNK = 1 << 20  # uniforms held at a time, or those of one rollout
SUM_TOLERANCE = 0.01  # how far from 1 probabilities may sum, as those that were half precision do


@kernel
def _walk(
    accept: Array, row: int, length: Array, step: int, indptr: Array, first: int, last: int, first_start: int,
    uniforms: Array, rounds: Array,
) -> None:  # fmt: skip
    """Count the rounds of each replicate; ``uniforms`` is (replicates, positions of the range)."""
    base = indptr[first]
    for replicate in range(uniforms.shape[0]):
        for i in range(first, last):
            s, end, count = indptr[i] + first_start, indptr[i + 1], 0
            while s < end:
                drafted = min(np.int64(length[s * step]), end - s)
                passed = 0
                while passed < drafted and uniforms[replicate, s + passed - base] < accept[s * row + passed]:
                    passed += 1
                s += passed + 1
                count += 1
            rounds[replicate, i] = count


def simulate(
    law: RoundLaw, *, replicates: int, rng: np.random.Generator, first_start: int = 0
) -> npt.NDArray[np.int64]:
    """Decode every rollout again and again, drawing each acceptance, and count the rounds.

    Parameters
    ----------
    law : RoundLaw
    replicates : int
        Decodings of each rollout.
    rng : numpy.random.Generator
        Source of the uniforms: one for each position and replicate, replicate by replicate. The same state gives the
        same rounds.
    first_start : int
        ``s0``: 0 when the first token is drafted too, 1 when the prefill emits it.

    Returns
    -------
    ndarray of int64, (replicates, R)
        Decoding rounds; 0 where nothing is left to decode.

    Raises
    ------
    ValueError
        If ``replicates`` is below 1, ``first_start`` is negative or ``rng`` is not a Generator.

    Notes
    -----
    ``O(N)`` time for each replicate; 8 MB of uniforms at a time, or those of the longest rollout.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> law = ms.RoundLaw.from_acceptance(np.ones((5, 2)), [0, 5])
    >>> ms.simulate(law, replicates=3, rng=np.random.default_rng(0))
    array([[2],
           [2],
           [2]])
    """
    check_integer(replicates, "replicates", 1)
    rows, indptr = law.accept.shape[0], law.indptr
    first_start = check_first_start(first_start, rows)
    _check_generator(rng)
    rounds = np.empty((int(replicates), indptr.size - 1), np.int64)
    batch = max(1, CHUNK // max(rows, 1))  # more than 1 only if there is one span
    for begin in range(0, rounds.shape[0], batch):
        part = rounds[begin : begin + batch]
        for first, last in rollout_spans(indptr, 0, indptr.size - 1, CHUNK):
            uniforms = rng.random((part.shape[0], int(indptr[last] - indptr[first])))
            _walk(*law.layout(), first, last, first_start, uniforms, part)
    return rounds


def simulate_decoding(
    target: Callable[[Tokens], Any],
    drafter: Callable[[Tokens, Tokens], Any],
    *,
    rule: str,
    draft_length: int | Callable[[int], int],
    max_tokens: int,
    stop_ids: Iterable[int] = (),
    rng: np.random.Generator,
    prompt: Iterable[int] = (),
    drafts: int = 1,
    first_start: int = 0,
) -> tuple[Tokens, int]:
    """Decode once by literal speculative decoding, and count the rounds.

    Parameters
    ----------
    target : callable
        From a prefix, the prompt's tokens and those committed, to probabilities (V,) that the target decodes with.
    drafter : callable
        From a prefix and the drafts after it that this round has so far, to probabilities (V,) of the next draft.
    rule : {"rejection", "block", "match", "independent", "node-recursive", "node-k-seq", "none"}
        ``"match"`` drafts the most probable tokens of ``drafter``, the others sample.
    draft_length : int or callable
        Depths drafted in a round, or a function from the number of tokens committed before it to them.
    max_tokens : int
        Tokens to decode at most, those before the first round among them.
    stop_ids : iterable of int
        Tokens that end the decoding; each is the last one kept.
    rng : numpy.random.Generator
        The same state gives the same decoding.
    prompt : iterable of int
    drafts : int
        Drafts at each depth; more than 1 only for ``"match"``, ``"independent"``, ``"node-recursive"`` and
        ``"node-k-seq"``.
    first_start : int
        ``s0``, the tokens that the target alone decodes before the first round.

    Returns
    -------
    tokens : tuple of int
        Without the prompt; cut after a stop token and at ``max_tokens``.
    rounds : int

    Raises
    ------
    ValueError
        If an option is not as above, or the callables give anything but probabilities (V,), V the same throughout,
        with a sum of 1 within 0.01. They are divided by their sum.

    Notes
    -----
    A round does not know where the decoding will end: the callables are asked beyond a stop token and ``max_tokens``.

    Examples
    --------
    >>> import numpy as np, markov_spec as ms
    >>> target = lambda prefix: np.eye(4)[len(prefix) % 4]  # 0 1 2 3 0 1 2 3 ...
    >>> drafter = lambda prefix, drafts: target(prefix + drafts)
    >>> ms.simulate_decoding(
    ...     target, drafter, rule="block", draft_length=3, max_tokens=10, rng=np.random.default_rng(0)
    ... )
    ((0, 1, 2, 3, 0, 1, 2, 3, 0, 1), 3)
    """
    verify = _decision(rule, drafts)
    check_integer(max_tokens, "max_tokens", 1)
    _check_generator(rng)
    first_start = check_first_start(first_start, max_tokens)
    before = tuple(prompt)
    size = np.size(target(before))
    stops = _check_tokens(stop_ids, size)
    tokens: Tokens = ()
    rounds = 0
    while len(tokens) < max_tokens and not stops.intersection(tokens[-1:]):
        prefill = len(tokens) < first_start
        length = draft_length(len(tokens)) if callable(draft_length) else draft_length
        check_integer(length, "draft_length", 0)
        this = _round(target, drafter, before + tokens, size, 0 if prefill else length, drafts, rng)
        committed = verify(this)  # without drafts, one token of the target's
        end = next((i for i, v in enumerate(committed, 1) if v in stops), len(committed))
        tokens += committed[: min(end, max_tokens - len(tokens))]
        rounds += not prefill
    return tokens, rounds


def _round(
    target: Callable[[Tokens], Any],
    drafter: Callable[[Tokens, Tokens], Any],
    prefix: Tokens,
    size: int,
    length: int,
    drafts: int,
    rng: np.random.Generator,
) -> Round:
    """Make the round after ``prefix``, its distributions checked when they are asked for."""
    return Round(
        lambda tokens: _probabilities(target(prefix + tokens), "target", prefix, tokens, size),
        lambda tokens: _probabilities(drafter(prefix, tokens), "drafter", prefix, tokens, size),
        length,
        rng.random,
        drafts,
    )


def _probabilities(values: Any, name: str, prefix: Tokens, tokens: Tokens, size: int) -> Array:
    found = as_float(values, name).astype(np.float64, copy=False).reshape(np.shape(values))
    total = float(found.sum())
    if found.shape != (size,) or not abs(total - 1) <= SUM_TOLERANCE or found.min() < 0:
        raise ValueError(
            f"{name}: after {len(prefix)} tokens and drafts {tokens}: found shape {found.shape}, sum {total:.6g}, "
            f"least {found.min(initial=1):.3g}; allowed: ({size},), each at least 0, sum 1 within {SUM_TOLERANCE}"
        )
    return found / total


def _decision(rule: str, drafts: int) -> Callable[[Round], Tokens]:
    decisions = {entry.name: entry.verify for entry in RULES.values() if entry.verify}
    if rule not in decisions:
        raise ValueError(f"rule: found {rule!r}; allowed: {', '.join(decisions)}")
    check_integer(drafts, "drafts", 1)
    if drafts > 1 and not RULES[rule].several:
        several = ", ".join(entry.name for entry in RULES.values() if entry.several)
        raise ValueError(f"drafts: found {drafts}, but rule {rule!r} has one at each depth; more only for: {several}")
    return decisions[rule]


def _check_generator(rng: Any) -> None:
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng: found {type(rng).__name__}; allowed: numpy.random.Generator")


def _check_tokens(stop_ids: Iterable[int], size: int) -> set[int]:
    stops = set(stop_ids)
    wrong = [v for v in stops if isinstance(v, bool) or not isinstance(v, int | np.integer) or not 0 <= v < size]
    if wrong:
        raise ValueError(f"stop_ids: found {wrong[0]!r}; allowed: token ids 0 to {size - 1}")
    return stops
