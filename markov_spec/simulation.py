"""Monte-Carlo decoding: rounds walked one after the other, every acceptance drawn.

From start ``s`` the drafts at positions ``s, s+1, ...`` are tested in turn, at most ``min(L[s], T-s)`` of them, until
one fails; ``N`` passed, and the next round starts at ``min(s+N+1, T)``. A walk tests no position twice, since the
position of a failed draft gets the target's token: one uniform for each position is enough. The module shares nothing
with the engine, whose results it is a witness for.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from markov_spec._jit import kernel
from markov_spec.arrays import Array, RoundLaw, check_first_start

__all__ = ["simulate"]

CHUNK = 1 << 20  # uniforms held at a time, or those of one rollout


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


def _spans(indptr: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    # Ranges of rollouts of at most CHUNK positions, or of one rollout.
    first, rollouts = 0, indptr.size - 1
    while first < rollouts:
        last = max(int(np.searchsorted(indptr, indptr[first] + CHUNK, side="right")) - 1, first + 1)
        yield first, last
        first = last


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
    if isinstance(replicates, bool) or not isinstance(replicates, int | np.integer) or replicates < 1:
        raise ValueError(f"replicates: found {replicates!r}; allowed: an integer >= 1")
    rows, indptr = law.accept.shape[0], law.indptr
    first_start = check_first_start(first_start, rows)
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng: found {type(rng).__name__}; allowed: numpy.random.Generator")
    rounds = np.empty((int(replicates), indptr.size - 1), np.int64)
    batch = max(1, CHUNK // max(rows, 1))  # more than 1 only if there is one span
    for begin in range(0, rounds.shape[0], batch):
        part = rounds[begin : begin + batch]
        for first, last in _spans(indptr):
            uniforms = rng.random((part.shape[0], int(indptr[last] - indptr[first])))
            _walk(*law.layout(), first, last, first_start, uniforms, part)
    return rounds
