"""Which drafts are certain to be accepted: shares, and what they guarantee of rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from markov_spec.arrays import Array, RequestError, cells_inside
from markov_spec.chain import bound_rounds

BREAKS = (0.1, 0.25, 0.5, 0.75, 0.9)
LABELS = [f"{low:g} to {high:g}" for low, high in pairwise((0, *BREAKS, 1))]
# Nats by which divergences and thresholds of values stored in single precision may be off.
ROUNDING = 1e-6
LARGEST = 1e300
PROMISES = ("strict", "tree")  # rules whose accepted drafts are the rollout of a greedy target


@dataclass(frozen=True, eq=False, repr=False)
class Certificates:
    """Which drafts are certain to be accepted, and which were. Made by ``certify``.

    Parameters
    ----------
    contender, rule : str
    frame : polars.DataFrame
        A row for each draft inside its rollout: rollout, prompt, benchmark, start, depth, position (of the token
        proposed, from 0), margin (target's best probability less its second), threshold (nats), threshold_exact, kl
        (nats), certified, accepted (null where it is not known), followed (whether the rollout's token is the target's
        only best one), proposed (whether the drafter makes this draft).
    indptr : ndarray of int64, (R+1,)
        Row offsets of the rollouts' starts.
    draft_length : int
    by_position : bool
        Whether a draft depends on its position alone, as an autoregressive drafter's does: the frame has each once, at
        depth 1.
    greedy : bool
        Whether the rollouts are a greedy target's, so that an accepted draft is the rollout's own.
    settings : mapping
        Thresholds of the rule, and what was assumed.
    notes : tuple of str
        What the figures do not say by themselves.
    """

    contender: str
    rule: str
    frame: pl.DataFrame
    indptr: Array
    draft_length: int
    by_position: bool
    greedy: bool
    settings: Mapping[str, Any]
    notes: tuple[str, ...]

    def summary(self, by: str = "benchmark") -> pl.DataFrame:
        """Give certified and accepted shares.

        Parameters
        ----------
        by : {"benchmark", "margin", "depth"}
            Margins in buckets from 0, .1, .25, .5, .75 and .9 on.

        Returns
        -------
        polars.DataFrame
            The group, drafts, mean_kl, mean_threshold, certified (share), accepted (share of those that are known),
            known (share), gap (accepted less certified, where all are known).
        """
        if by not in ("benchmark", "margin", "depth"):
            raise RequestError(f"by: found {by!r}; allowed: 'benchmark', 'margin', 'depth'")
        frame = self.frame
        if by == "margin":
            frame = frame.with_columns(
                margin=pl.col("margin").cut(BREAKS, labels=LABELS, left_closed=True).cast(pl.String)
            )
        found = frame.group_by(by, maintain_order=by == "benchmark").agg(
            drafts=pl.len(),
            mean_kl=pl.col("kl").mean(),
            mean_threshold=pl.col("threshold").filter(pl.col("threshold").is_finite()).mean(),
            certified=pl.col("certified").mean(),
            accepted=pl.col("accepted").mean(),
            known=pl.col("accepted").is_not_null().mean(),
        )
        gap = pl.when(pl.col("known") == 1).then(pl.col("accepted") - pl.col("certified"))
        return (found if by == "benchmark" else found.sort(by)).with_columns(gap=gap)

    def loosest(self, count: int = 10) -> pl.DataFrame:
        """Give the accepted drafts whose divergence exceeds the threshold by most: where the promise falls short."""
        missed = self.frame.filter(pl.col("accepted") & ~pl.col("certified"))
        return missed.sort(pl.col("kl") - pl.col("threshold"), descending=True).head(count)

    def run_length(self) -> float | None:
        """Give the mean number of drafts from a start that are certified one after the other, at most the draft length.

        None without drafts.
        """
        if not len(self.frame):
            return None
        certain = self._cells(self.frame["certified"].to_numpy())
        if certain.ndim == 1:
            inside = cells_inside(self.indptr, self.draft_length, None)
            at = np.arange(len(certain))[:, None] + np.arange(self.draft_length)
            certain = inside & certain[np.minimum(at, len(certain) - 1)]
        return float(np.logical_and.accumulate(certain, axis=1).sum(axis=1).mean())

    def share_at(self, kl: Any) -> Array:
        """Give the share of the drafts that are certified if no divergence exceeds ``kl`` nats, of any shape."""
        if not (np.asarray(kl) >= 0).all():
            raise RequestError(f"kl: found {kl}; allowed: numbers >= 0, in nats")
        thresholds = np.sort(self.frame["threshold"].to_numpy())
        share: Array = 1 - np.searchsorted(thresholds, kl, side="right") / max(thresholds.size, 1)
        return share

    def guaranteed_length(self, kl: float) -> float:
        """Give the pooled length that is certain if no divergence exceeds ``kl`` nats.

        Where the rollout's token is not the target's best one by the record, nothing is.

        Raises
        ------
        RequestError
            If the rollouts are not greedy, or the rule is lossy: its promise is of acceptance at a context of the
            rollout, which such a rule leaves.
        """
        if not self.greedy:
            raise RequestError(
                "guaranteed length: found rollouts that were drawn at random; allowed: those of a greedy target "
                "(temperature 0), whose own tokens are the accepted drafts"
            )
        if self.rule not in PROMISES:
            raise RequestError(
                f"rule: found {self.rule!r}; allowed: {', '.join(PROMISES)}: a lossy rule's accepted draft may leave "
                "the rollout, so certificates along it bound no rounds"
            )
        if not kl >= 0:
            raise RequestError(f"kl: found {kl}; allowed: a number >= 0, in nats")
        sure = self.frame["threshold"] - ROUNDING > kl  # infinite thresholds too
        low = self._cells((sure & self.frame["followed"] & self.frame["proposed"]).to_numpy()).astype(np.float32)
        bounds = bound_rounds(low, np.ones_like(low), self.indptr, draft_length=self.draft_length)
        rounds = math.fsum(bounds.high)
        return float(self.indptr[-1]) / rounds if rounds else 0.0

    def kl_for_length(self, length: float) -> float | None:
        """Give the divergence below which, at every position, a pooled length is certain; None if there is none.

        The bound is open: at the value itself the length need not be certain. Infinite if it always is.
        """
        if not 1 <= length < np.inf:
            raise RequestError(f"length: found {length}; allowed: a number >= 1")
        if self.guaranteed_length(0.0) < length:
            return None
        if self.guaranteed_length(LARGEST) >= length:
            return math.inf
        values = np.unique(np.maximum(self.frame["threshold"].to_numpy() - ROUNDING, 0))
        first, last = 0, values.size
        while first < last:  # guaranteed_length falls as kl grows
            middle = (first + last) // 2
            if self.guaranteed_length(float(values[middle])) >= length:
                first = middle + 1
            else:
                last = middle
        return float(values[min(first, values.size - 1)])

    def _cells(self, values: Array) -> Array:
        """Lay a column of the frame out as acceptances are: (N,) if each position is one draft, else (N, K)."""
        if self.by_position:
            return values
        cells: Array = np.zeros((int(self.indptr[-1]), self.draft_length), dtype=values.dtype)
        cells[cells_inside(self.indptr, self.draft_length, None)] = values
        return cells

    def __repr__(self) -> str:
        shares = self.frame.select(pl.col("certified").mean(), pl.col("accepted").mean()).row(0)
        told = [
            f"{name} {share:.1%}"
            for name, share in zip(("certified", "accepted"), shares, strict=True)
            if share is not None
        ]
        return f"Certificates({self.contender}, rule {self.rule}: {len(self.frame)} drafts, {', '.join(told)})"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()
