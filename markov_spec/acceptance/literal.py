"""One round decoded literally: what a rule's ``verify`` is given, and the loop of the rules that decide by depth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from markov_spec.arrays import Array

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Round:
    """A round about to be played, after some committed tokens.

    A rule's ``verify`` takes one, drafts, decides, and returns the committed tokens: the accepted drafts and one more.

    Parameters
    ----------
    target : callable
        From a tuple of this round's first drafts to the target's probabilities (V,) after them.
    drafter : callable
        From the same to the drafter's probabilities (V,) of the next draft.
    length : int
        Depths to draft.
    uniform : callable
        Gives the next uniform of [0, 1).
    drafts : int
        Drafts at each depth.

    Examples
    --------
    >>> import numpy as np
    >>> from markov_spec.acceptance import RULES
    >>> p, q = np.array([.5, .5]), np.array([1., 0.])
    >>> for uniforms in ([.2, .4, .6, .7], [.2, .6, .6]):
    ...     print(RULES["rejection"].verify(Round(lambda _: p, lambda _: q, 1, iter(uniforms).__next__)))
    (0, 1)
    (1,)
    """

    target: Callable[[Tokens], Array]
    drafter: Callable[[Tokens], Array]
    length: int
    uniform: Callable[[], float]
    drafts: int = 1

    def draw(self, weights: Array) -> int:
        """Draw a token with a probability proportional to its weight, never one of weight 0."""
        sums = np.cumsum(weights)
        return int(np.searchsorted(sums, self.uniform() * sums[-1], side="right"))

    def draw_all(self, weights: Array) -> Tokens:
        """Draw the drafts of one depth, with replacement."""
        return tuple(self.draw(weights) for _ in range(self.drafts))


def decide_by_depth(this: Round, decide: Callable[[Round, Array, Array], tuple[int, bool]]) -> Tokens:
    """Play a round in which each depth is decided alone, its drafts drawn after those accepted.

    Parameters
    ----------
    this : Round
    decide : callable
        From the round and the probabilities ``p`` and ``q`` to the token committed and whether it is a draft.

    Returns
    -------
    tuple of int
    """
    tokens: Tokens = ()
    while len(tokens) < this.length:
        token, accepted = decide(this, this.target(tokens), this.drafter(tokens))
        tokens = (*tokens, token)
        if not accepted:
            return tokens
    return (*tokens, this.draw(this.target(tokens)))


def excess(p: Array, q: Array) -> Array:
    """Compute ``(p - q)_+``; ``p`` where nothing is left, which only rounding can bring a rule to draw from."""
    rest = np.maximum(p - q, 0)
    return rest if rest.any() else p
