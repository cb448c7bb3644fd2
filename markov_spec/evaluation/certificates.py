"""Which drafts are certain to be accepted: shares, and what they guarantee of rounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from markov_spec.arrays import Array, RequestError, cells_inside, rollout_spans
from markov_spec.chain import bound_rounds
from markov_spec.comparison.cells import Cells, html_lines, html_table

BREAKS = (0.1, 0.25, 0.5, 0.75, 0.9)
LABELS = [f"{low:g} to {high:g}" for low, high in pairwise((0, *BREAKS, 1))]
# Nats by which divergences and thresholds of values stored in single precision may be off.
ROUNDING = 1e-6
LARGEST = 1e300
PROMISES = ("strict", "tree")  # rules whose accepted drafts are the rollout of a greedy target
FRAME_ROWS = 1 << 18


@dataclass(frozen=True, eq=False, repr=False)
class Certificates:
    """Which drafts are certain to be accepted, and which were. Made by ``certify``.

    ``D`` is the draft length, or 1 if a draft depends on its position alone. The cell ``[s, k-1]`` is the draft of
    depth ``k`` from start ``s``, of the token at ``s + k - 1``; those past a rollout's end mean nothing.

    Parameters
    ----------
    contender, rule : str
    ids, prompt_ids, benchmarks : tuple of str, (R,)
    indptr : ndarray of int64, (R+1,)
        Row offsets of the rollouts' starts.
    lengths : ndarray of int32, (N,)
        Drafts made from each start, ends of rollouts aside.
    margin, threshold : ndarray of float64, (N,)
        At each position: the target's best probability less its second, and the divergence (nats) below which every
        draft of it is accepted.
    exact, followed : ndarray of bool, (N,)
        Whether the threshold is the least that allows a rejection, otherwise a lower bound; whether the rollout's token
        is the target's only best one.
    kl : ndarray of float, (N, D)
        Nats.
    certified : ndarray of bool, (N, D)
        Whether a draft made there is certain to be accepted.
    accepted : ndarray of int8, (N, D)
        Whether it is: 1, 0, or -1 where it is not known.
    draft_length : int
    by_position : bool
        Whether a draft depends on its position alone, as an autoregressive drafter's does: each is there once, at depth
        1.
    greedy : bool
        Whether the rollouts are a greedy target's, so that an accepted draft is the rollout's own.
    settings : mapping
        Thresholds of the rule, and what was assumed.
    notes : tuple of str
        What the figures do not say by themselves.
    """

    contender: str
    rule: str
    ids: tuple[str, ...]
    prompt_ids: tuple[str, ...]
    benchmarks: tuple[str, ...]
    indptr: Array
    lengths: Array
    margin: Array
    threshold: Array
    exact: Array
    followed: Array
    kl: Array
    certified: Array
    accepted: Array
    draft_length: int
    by_position: bool
    greedy: bool
    settings: Mapping[str, Any]
    notes: tuple[str, ...]

    def frames(self) -> Iterator[pl.DataFrame]:
        """Go through `to_frame` in ranges of rollouts of some 260 000 drafts, or of one rollout; one frame at least."""
        yield from (self._frame(first, last) for first, last in self._spans())

    def to_frame(self, rollouts: Sequence[str] | None = None) -> pl.DataFrame:
        """Give a row for each draft inside its rollout.

        Parameters
        ----------
        rollouts : sequence of str, optional
            Ids; all by default, in some 150 bytes for each draft. See ``frames``.

        Returns
        -------
        polars.DataFrame
            rollout, prompt, benchmark, start, depth, position (of the token proposed, from 0), margin, threshold,
            threshold_exact, kl, certified, accepted (null where it is not known), followed, proposed (whether the
            drafter makes this draft; one that is not made is neither certified nor accepted).

        Raises
        ------
        RequestError
            If there is no such rollout.
        """
        if rollouts is None:
            return pl.concat(self.frames())
        places = {name: i for i, name in enumerate(self.ids)}
        for name in rollouts:
            if name not in places:
                raise RequestError(f"rollouts: found {name!r}; allowed: the {len(self.ids)} ids that were certified")
        chosen = [self._frame(places[name], places[name] + 1) for name in rollouts]
        return pl.concat(chosen) if chosen else self._frame(0, 0)

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

        Notes
        -----
        ``O(N K)``.
        """
        if by not in ("benchmark", "margin", "depth"):
            raise RequestError(f"by: found {by!r}; allowed: 'benchmark', 'margin', 'depth'")
        labels, sums = self._sums(by)
        rows = [
            {
                by: label,
                "drafts": int(count),
                "mean_kl": kl / count,
                "mean_threshold": threshold / finite if finite else None,
                "certified": certified / count,
                "accepted": accepted / known if known else None,
                "known": known / count,
                "gap": (accepted - certified) / count if known == count else None,
            }
            for label, (count, kl, threshold, finite, certified, accepted, known) in zip(labels, sums, strict=True)
            if count
        ]
        kinds = dict.fromkeys(("mean_kl", "mean_threshold", "certified", "accepted", "known", "gap"), pl.Float64)
        group = pl.Int64 if by == "depth" else pl.String
        return pl.DataFrame(rows, schema={by: group, "drafts": pl.Int64, **kinds})

    def loosest(self, count: int = 10) -> pl.DataFrame:
        """Give the accepted drafts whose divergence exceeds the threshold by most: where the promise falls short."""
        excess = pl.col("kl") - pl.col("threshold")
        found = self._frame(0, 0)
        for frame in self.frames():
            missed = frame.filter(pl.col("accepted") & ~pl.col("certified"))
            found = pl.concat([found, missed]).sort(excess, descending=True, maintain_order=True).head(count)
        return found

    def run_length(self) -> float | None:
        """Give the mean number of drafts from a start that are certified one after the other, at most the draft length.

        None without drafts.
        """
        total = 0
        for first, last in self._spans():
            offsets, rows = self._range(first, last)
            certain = self.certified[rows]
            if self.by_position:
                at = np.arange(len(certain))[:, None] + np.arange(self.draft_length)
                certain = certain[np.minimum(at, len(certain) - 1), 0]
            certain = certain & cells_inside(offsets, self.draft_length, self.lengths[rows])
            total += int(np.logical_and.accumulate(certain, axis=1).sum())
        return total / len(self.lengths) if len(self.lengths) else None

    def share_at(self, kl: Any) -> Array:
        """Give the share of the drafts that are certified if no divergence exceeds ``kl`` nats, of any shape."""
        if not (np.asarray(kl) >= 0).all():
            raise RequestError(f"kl: found {kl}; allowed: numbers >= 0, in nats")
        made, drafts = np.zeros(len(self.threshold)), 0
        for span in self._spans():
            cells = self._drafts(*span)
            drafts += cells["row"].size
            place = (cells["row"] + cells["depth"] - 1)[cells["proposed"]]
            rows = self._range(*span)[1]
            made[rows] += np.bincount(place - rows.start, minlength=rows.stop - rows.start)
        order = np.argsort(self.threshold)
        beyond = np.append(np.cumsum(made[order][::-1])[::-1], 0)
        share: Array = beyond[np.searchsorted(self.threshold[order] - ROUNDING, kl, side="right")] / max(drafts, 1)
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
        sure = ((self.threshold - ROUNDING > kl) & self.followed).astype(np.float32)  # infinite thresholds too
        rounds = []
        for first, last in self._spans():
            offsets, rows = self._range(first, last)
            low = sure[rows]
            if not self.by_position:
                low = low[np.minimum(np.arange(len(low))[:, None] + np.arange(self.draft_length), len(low) - 1)]
            bounds = bound_rounds(low, np.ones_like(low), offsets, draft_length=self.lengths[rows])
            rounds.append(math.fsum(bounds.high))
        total = math.fsum(rounds)
        return float(self.indptr[-1]) / total if total else 0.0

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
        values = np.unique(np.maximum(self.threshold - ROUNDING, 0))
        first, last = 0, values.size
        while first < last:  # guaranteed_length falls as kl grows
            middle = (first + last) // 2
            if self.guaranteed_length(float(values[middle])) >= length:
                first = middle + 1
            else:
                last = middle
        return float(values[min(first, values.size - 1)])

    def _spans(self) -> list[tuple[int, int]]:
        rows = max(1, FRAME_ROWS // max(self.certified.shape[1], 1))
        return list(rollout_spans(self.indptr, 0, len(self.ids), rows)) or [(0, 0)]

    def _range(self, first: int, last: int) -> tuple[Array, slice]:
        """Give the offsets of a range of rollouts, from 0 on, and its rows."""
        offsets = self.indptr[first : last + 1]
        return offsets - offsets[0], slice(int(offsets[0]), int(offsets[-1]))

    def _drafts(self, first: int, last: int) -> dict[str, Array]:
        """Give the drafts inside a range of rollouts, flat, by rollout, start and depth."""
        offsets, rows = self._range(first, last)
        row, column = np.nonzero(cells_inside(offsets, self.certified.shape[1]))
        place, proposed = row + column, column < self.lengths[rows][row]
        return {
            "rollout": np.repeat(np.arange(first, last), np.diff(offsets))[row],
            "row": row + rows.start,
            "depth": column + 1,
            "margin": self.margin[rows][place],
            "threshold": self.threshold[rows][place],
            "threshold_exact": self.exact[rows][place],
            "kl": self.kl[rows][row, column].astype(np.float64),
            "certified": self.certified[rows][row, column] & proposed,
            "accepted": np.where(proposed, self.accepted[rows][row, column], 0),
            "followed": self.followed[rows][place],
            "proposed": proposed,
        }

    def _frame(self, first: int, last: int) -> pl.DataFrame:
        columns = self._drafts(first, last)
        rollout, row, depth = (columns.pop(name) for name in ("rollout", "row", "depth"))
        names = {
            name: pl.Series(name, values[first:last], dtype=pl.String).gather(rollout - first)
            for name, values in (("rollout", self.ids), ("prompt", self.prompt_ids), ("benchmark", self.benchmarks))
        }
        start = row - self.indptr[rollout]
        known = pl.when(pl.col("accepted") >= 0).then(pl.col("accepted") == 1)
        return pl.DataFrame(
            {
                **names,
                "start": start,
                "depth": depth,
                "position": start + depth - 1,
                **columns,
            }
        ).with_columns(accepted=known)

    def _sums(self, by: str) -> tuple[list[Any], Array]:
        """Sum over the drafts of each group: 1, KL, finite thresholds and their count, certified, accepted, known."""
        groups = {name: i for i, name in enumerate(dict.fromkeys(self.benchmarks))}
        of_rollout = np.array([groups[name] for name in self.benchmarks], dtype=np.int64)
        labels: dict[str, list[Any]] = {
            "benchmark": list(groups), "margin": LABELS, "depth": list(range(1, self.certified.shape[1] + 1))
        }  # fmt: skip
        sums = np.zeros((len(labels[by]), 7))
        for span in self._spans():
            cells = self._drafts(*span)
            if by == "benchmark":
                group = of_rollout[cells["rollout"]]
            else:
                group = cells["depth"] - 1 if by == "depth" else np.searchsorted(BREAKS, cells["margin"], side="right")
            threshold, accepted = cells["threshold"], cells["accepted"]
            finite = np.isfinite(threshold)
            values = (
                np.ones(group.size), cells["kl"], np.where(finite, threshold, 0), finite, cells["certified"],
                accepted == 1, accepted >= 0,
            )  # fmt: skip
            sums += np.stack([np.bincount(group, part, len(sums)) for part in values], axis=1)
        return labels[by], sums

    def __repr__(self) -> str:
        count, *_, certified, accepted, known = self._sums("margin")[1].sum(axis=0)
        shares = (("certified", certified, count), ("accepted", accepted, known))
        told = [f", {name} {part / of:.1%}" for name, part, of in shares if of]
        return f"Certificates({self.contender}, rule {self.rule}: {int(count)} drafts{''.join(told)})"

    def _repr_html_(self) -> str:
        forms = {"drafts": "{}", "mean_kl": "{:.4f}", "mean_threshold": "{:.4f}"}  # all else is a share
        found = self.summary()
        rows = [
            (
                "-" if v is None else v if isinstance(v, str) else forms.get(k, "{:.1%}").format(v)
                for k, v in row.items()
            )
            for row in found.to_dicts()
        ]
        titles = tuple(name.replace("_", " ") for name in found.columns)
        return html_lines([repr(self), *self.notes]) + html_table(
            Cells(titles, "l" + "r" * (len(titles) - 1), list(map(tuple, rows)))
        )
