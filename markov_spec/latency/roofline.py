"""A price from what the hardware can do: the slower of arithmetic and memory, and a launch.

A pass of a batch of ``B`` requests verifies ``n = B (D + 1)`` tokens, over a context of ``P + s`` tokens each::

    T = max(flops_per_token tiles(padded(n)) / peak, (weight_bytes + kv_bytes (B (P + s) + n)) / bandwidth) + launch

``padded`` rounds up to the next captured size, ``tiles`` to a multiple of the tile. Both make stairs: while memory is
the slower, drafts are free; past that, a tile more of them costs as much as one. Arithmetic of attention itself, which
grows with the context, is left out, as are activations.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from markov_spec.latency.inputs import Floats, as_rounds, check_count, check_price, counts, drafting, rising


@dataclass(frozen=True, eq=False)
class Roofline:
    """The price in seconds of a pass that is bound by arithmetic or by memory.

    Parameters
    ----------
    peak : float
        Arithmetic that the hardware does, FLOP/s, above 0.
    bandwidth : float
        Memory that it reads, bytes/s, above 0.
    flops_per_token : float
        FLOP of a token: twice the weights that it meets.
    weight_bytes : float
        Bytes of weights that a pass reads.
    kv_bytes : float
        Bytes of keys and values of one token: what a pass reads for each token of the context and of its own.
    launch : float
        Seconds that any pass takes on top.
    tile : int
        Tokens that arithmetic is done in: any part of a tile costs a tile. 1: no tiles.
    captured : array of int, (G,), optional
        Rising numbers of tokens of a whole pass, its batch included, such as those of captured CUDA graphs: a pass is
        padded to the next, and none is larger than the last.
    batch : int
        Requests that a pass serves, each with these drafts and this context.
    per_call : float
        Seconds paid once by a round that drafts anything, such as the pass of a block drafter.
    per_depth : float
        Seconds paid for each depth, such as one pass of an autoregressive drafter.

    Raises
    ------
    ValueError
        If a number is negative or not finite, a rate is 0, sizes do not rise, or the tile or batch is below 1.

    Examples
    --------
    An 8B target in bfloat16 on an H100: 4.8 ms to read the weights, whether for 1 token or 64.

    >>> from markov_spec.latency import Roofline
    >>> h100 = Roofline(peak=9.89e14, bandwidth=3.35e12, flops_per_token=1.6e10, weight_bytes=1.6e10, kv_bytes=131072)
    >>> (1000 * h100.of(1, [0, 63, 319, 320], 1000)).round(2)
    array([4.82, 4.82, 5.18, 6.21])
    """

    _: KW_ONLY
    peak: float
    bandwidth: float
    flops_per_token: float
    weight_bytes: float
    kv_bytes: float = 0.0
    launch: float = 0.0
    tile: int = 64
    captured: Any = None
    batch: int = 1
    per_call: float = 0.0
    per_depth: float = 0.0

    def __post_init__(self) -> None:
        for name in ("peak", "bandwidth"):
            check_price(getattr(self, name), name)
            if getattr(self, name) == 0:
                raise ValueError(f"{name}: found {getattr(self, name)}; allowed: a finite number > 0")
        for name in ("flops_per_token", "weight_bytes", "kv_bytes", "launch", "per_call", "per_depth"):
            check_price(getattr(self, name), name)
        for name in ("tile", "batch"):
            check_count(getattr(self, name), name)
        if self.captured is not None:
            object.__setattr__(self, "captured", rising(self.captured, "captured", 1))

    def of(self, depth: Any, drafted: Any, context: Any) -> Floats:
        """Give the price of rounds, in seconds.

        Parameters
        ----------
        depth, drafted, context : int or array of int
            As for `Affine`.

        Returns
        -------
        ndarray of float64

        Raises
        ------
        ValueError
            If a count is negative or no integer, or a pass is larger than the largest captured one.

        Notes
        -----
        ``O(1)`` each, and ``O(log G)`` for each number of drafts.
        """
        k, d, c = counts(depth, drafted, context)
        tokens = self.batch * (d + 1)
        padded = tokens
        if self.captured is not None and tokens.size:
            if tokens.max() > self.captured[-1]:
                found = f"{tokens.max()} tokens of a pass"
                raise ValueError(f"drafted: found {found}; allowed: up to {self.captured[-1]}, the largest captured")
            padded = self.captured[np.searchsorted(self.captured, tokens)]
        arithmetic = self.flops_per_token / self.peak * self.tile * -(-padded // self.tile)
        # Of what the context and the drafts read, each in its own shape.
        memory = (self.weight_bytes + self.kv_bytes * tokens) / self.bandwidth
        memory = memory + self.kv_bytes * self.batch / self.bandwidth * c
        rest = self.launch + drafting(k, d, self.per_call, self.per_depth)
        return as_rounds(np.asarray(np.maximum(arithmetic, memory) + rest), k, d, c)
