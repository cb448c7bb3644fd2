"""A price that rises evenly: ``base + per_call [D > 0] + per_depth k + per_draft D + per_context (P + s)``.

Source: Liu et al. 2024, SmartSpec, later TurboSpec (arXiv 2406.14066).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from markov_spec.latency.inputs import Floats, as_rounds, check_price, counts, drafting


@dataclass(frozen=True)
class Affine:
    """A price that rises evenly with the depth, the drafts and the context.

    Parameters
    ----------
    base : float
        Of a round without drafts and context, in any unit; 0 or more, as are the others.
    per_depth : float
        Of each depth, such as one pass of an autoregressive drafter.
    per_draft : float
        Of each drafted token.
    per_context : float
        Of each token of the context.
    per_call : float
        Paid once by a round that drafts anything, such as the pass of a block drafter.

    Raises
    ------
    ValueError
        If a coefficient is negative or not finite.

    Examples
    --------
    >>> from markov_spec.latency import Affine
    >>> Affine(20.0, per_depth=1.5, per_draft=.25, per_call=2.0).of([0, 4], [0, 4], 1000)
    array([20., 29.])
    """

    base: float
    per_depth: float = 0.0
    per_draft: float = 0.0
    per_context: float = 0.0
    per_call: float = 0.0

    def __post_init__(self) -> None:
        for name in ("base", "per_depth", "per_draft", "per_context", "per_call"):
            check_price(getattr(self, name), name)

    def of(self, depth: Any, drafted: Any, context: Any) -> Floats:
        """Give the price of rounds.

        Parameters
        ----------
        depth, drafted, context : int or array of int
            Depths drafted one after another, drafted tokens, and tokens before the round, of shapes that broadcast.

        Returns
        -------
        ndarray of float64

        Raises
        ------
        ValueError
            If a count is negative or no integer.

        Notes
        -----
        ``O(1)`` each.
        """
        k, d, c = counts(depth, drafted, context)
        own = self.base + self.per_draft * d + drafting(k, d, self.per_call, self.per_depth)
        return as_rounds(np.asarray(own + self.per_context * c), k, d, c)
