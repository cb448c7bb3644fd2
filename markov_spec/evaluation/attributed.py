"""The cells of an attribution, summed range by range of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import polars as pl

from markov_spec.acceptance import RULES
from markov_spec.arrays import Array, Exactness, Rollouts, RoundLaw, cells_inside, rollout_spans
from markov_spec.chain import solve
from markov_spec.chain.attribution import attribute_solved
from markov_spec.evaluation.token_classes import CLASSES, TokenClasses
from markov_spec.evaluation.tracing import RangeLaw, text_of
from markov_spec.store import Store

CELLS = 1 << 20  # starts times depths that are attributed at a time, in some ten arrays of 8 MB
ROUNDING = 1e-9  # rounds that a difference of equal sums may be off
AROUND, BEGINNING = 12, 24  # tokens of text on each side of a start, and of a rollout's beginning
TESTS = ("tested_a", "tested_b", "kept_a", "kept_b", "attributed")
SHOWN = ("tested_a", "tested_b", "acceptance_a", "acceptance_b", "attributed", "share")
STARTS = ("occupancy_a", "occupancy_b", "accepted_a", "accepted_b", "attributed")
ROLLOUT: dict[str, Any] = {
    **dict.fromkeys(("rollout", "prompt", "benchmark"), pl.String),
    "tokens": pl.Int64,
    **dict.fromkeys(("rounds_a", "rounds_b", "difference"), pl.Float64),
}
START: dict[str, Any] = {
    **dict.fromkeys(("rollout", "benchmark"), pl.String),
    "position": pl.Int64,
    **dict.fromkeys(("before", "after"), pl.String),
    **dict.fromkeys(STARTS, pl.Float64),
}


class AttributedSums:
    """What is known of an attribution after some ranges of a store.

    Parameters
    ----------
    store : Store
    first_start : int
    count : int
        Starts and rollouts to keep.
    """

    def __init__(self, store: Store, first_start: int, count: int) -> None:
        self.vocab = store.vocab()
        self.classes = TokenClasses(store, self.vocab)
        self.rules: list[str] = []
        self.unsure = np.zeros(2)  # expected rounds whose tree the lists leave open
        self.starts, self.rollouts = pl.DataFrame(schema=START), pl.DataFrame(schema={**ROLLOUT, "text": pl.String})
        self._first_start, self._count = first_start, count
        self._depths = np.zeros((len(TESTS), 0))
        self._kinds: dict[str, Array] = {}
        self._rollouts: list[pl.DataFrame] = []

    def add(self, batch: Store, pair: Sequence[RangeLaw]) -> None:
        """Take in a range of the store and both laws on it."""
        rollouts, depth = batch.rollouts(), max(one.depth for one in pair)
        offsets, self.rules = rollouts.indptr, [one.rule for one in pair]
        spans = rollout_spans(offsets, 0, len(rollouts), CELLS // max(depth, 1))
        found = [
            _attributed([_cut(one.law, *span) for one in pair], self._first_start, depth)
            for span in list(spans) or [(0, 0)]
        ]
        by_depth = np.sum([part[0] for part in found], axis=0)
        self._depths = _widened(self._depths, depth) + _widened(by_depth, self._depths.shape[1])
        tokens, starts, rounds = (np.concatenate([part[i] for part in found], axis=1) for i in (1, 2, 3))
        self.unsure += [starts[i] @ one.unsure for i, one in enumerate(pair)]
        position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
        weights = np.concatenate([tokens, [position >= self._first_start]])
        for kind, codes in self.classes.codes(batch, rollouts).items():
            size = len(CLASSES[kind])
            self._kinds[kind] = self._kinds.get(kind, 0) + np.array(
                [np.bincount(codes, own, minlength=size) for own in weights]
            )
        self._keep_starts(rollouts, starts, position)
        self._keep_rollouts(rollouts, rounds)

    def _keep_starts(self, rollouts: Rollouts, starts: Array, position: Array) -> None:
        cost = starts[-1]
        best = np.argsort(-cost, kind="stable")[: self._count]
        best = best[cost[best] > 0]
        which = np.searchsorted(rollouts.indptr, best, side="right") - 1
        begins, ends = rollouts.indptr[which], rollouts.indptr[which + 1]
        new = {
            "rollout": [rollouts.ids[i] for i in which],
            "benchmark": [rollouts.benchmarks[i] for i in which],
            "position": position[best],
            "before": [self._text(rollouts, max(s - AROUND, low), s) for s, low in zip(best, begins, strict=True)],
            "after": [self._text(rollouts, s, min(s + AROUND, high)) for s, high in zip(best, ends, strict=True)],
            **dict(zip(STARTS, starts[:, best], strict=True)),
        }
        joined = pl.concat([self.starts, pl.DataFrame(new, schema=START)])
        self.starts = joined.sort("attributed", descending=True, maintain_order=True).head(self._count)

    def _keep_rollouts(self, rollouts: Rollouts, rounds: Array) -> None:
        offsets = rollouts.indptr
        own = pl.DataFrame(
            {
                "rollout": rollouts.ids,
                "prompt": rollouts.prompt_ids,
                "benchmark": rollouts.benchmarks,
                "tokens": np.maximum(np.diff(offsets) - self._first_start, 0),
                "rounds_a": rounds[0],
                "rounds_b": rounds[1],
                "difference": rounds[1] - rounds[0],
            },
            schema=ROLLOUT,
        )
        self._rollouts.append(own)
        size = pl.col("difference").abs()
        most = own.with_row_index("row").sort(size, descending=True, maintain_order=True).head(self._count)
        most = most.filter(pl.col("difference") != 0)
        texts = [self._text(rollouts, offsets[i], min(offsets[i] + BEGINNING, offsets[i + 1])) for i in most["row"]]
        most = most.drop("row").with_columns(pl.Series("text", texts, dtype=pl.String))
        joined = pl.concat([self.rollouts, most])
        self.rollouts = joined.sort(size, descending=True, maintain_order=True).head(self._count)

    def _text(self, rollouts: Rollouts, first: int, last: int) -> str | None:
        return text_of(rollouts.tokens[first:last], self.vocab)

    @property
    def per_rollout(self) -> pl.DataFrame:
        """A row for each rollout."""
        return pl.concat(self._rollouts)

    @property
    def exactness(self) -> Exactness:
        """The weaker of the two contenders'."""
        order = get_args(Exactness)
        own = [RULES[rule].exactness for rule in self.rules] + ["bound"] * bool(self.unsure.any())
        weakest: Exactness = max(own, key=order.index)
        return weakest

    def by_depth(self, difference: float) -> pl.DataFrame:
        """A row for each depth."""
        depths = pl.Series("depth", np.arange(1, self._depths.shape[1] + 1), dtype=pl.Int64)
        return _shares(pl.DataFrame([depths, *_columns(self._depths)]), difference).select("depth", *SHOWN)

    def by_class(self, difference: float) -> pl.DataFrame:
        """A row for each class of each kind that has tokens."""
        frames = []
        for kind in (name for name in CLASSES if name in self._kinds):
            sums = self._kinds[kind]
            names = [
                pl.Series("kind", [kind] * sums.shape[1], dtype=pl.String),
                pl.Series("class", CLASSES[kind], dtype=pl.String),
                pl.Series("tokens", sums[-1].round(), dtype=pl.Int64),
            ]
            frames.append(pl.DataFrame([*names, *_columns(sums[:-1])]))
        told = _shares(pl.concat(frames), difference).filter(pl.col("tokens") > 0)
        return told.select("kind", "class", "tokens", *SHOWN)

    def by_benchmark(self, difference: float) -> pl.DataFrame:
        """A row for each benchmark, in order of appearance."""
        sums = [pl.col(name).sum() for name in ("tokens", "rounds_a", "rounds_b")]
        found = self.per_rollout.group_by("benchmark", maintain_order=True).agg(
            pl.len().cast(pl.Int64).alias("rollouts"), *sums, pl.col("difference").sum().alias("attributed")
        )
        return found.with_columns(_share(difference))


def _attributed(pair: Sequence[RoundLaw], first_start: int, depth: int) -> tuple[Array, Array, Array, Array]:
    """Sum a span by depth (5, K) and by drafted token (5, N), see ``TESTS``; by start (5, N), and rounds (2, R)."""
    solved = [solve(law, first_start=first_start) for law in pair]
    tested = [_tested(law, one.occupancy, depth) for law, one in zip(pair, solved, strict=True)]
    kept = [cells * _widened(law.conditional(), depth) for law, cells in zip(pair, tested, strict=True)]
    cells = [*tested, *kept, _widened(attribute_solved(pair, solved), depth)]
    accepted = [law.survival().sum(axis=1) for law in pair]
    return (
        np.array([values.sum(axis=0) for values in cells]),
        np.array([_by_token(values) for values in cells]),
        np.array([*(one.occupancy for one in solved), *accepted, cells[-1].sum(axis=1)]),
        np.array([one.expected for one in solved]),
    )


def _tested(law: RoundLaw, occupancy: Array, depth: int) -> Array:
    """Give the probability that a round starts at ``s`` and tests depth ``k``, (N, K)."""
    reached = np.ones((len(occupancy), depth))
    reached[:, 1:] = _widened(law.survival(), depth)[:, :-1]
    tested: Array = occupancy[:, None] * reached * cells_inside(law.indptr, depth, law.draft_length)
    return tested


def _by_token(cells: Array) -> Array:
    """Sum cells (N, K), which are 0 past the ends of rollouts, over the starts and depths of each position, (N,)."""
    out = np.zeros(len(cells))
    for k in range(min(cells.shape)):
        out[k:] += cells[: len(cells) - k, k]
    return out


def _cut(law: RoundLaw, first: int, last: int) -> RoundLaw:
    offsets = law.indptr[first : last + 1]
    rows, length = slice(int(offsets[0]), int(offsets[-1])), law.draft_length
    own = length[rows] if isinstance(length, np.ndarray) else length
    return RoundLaw.trusted(law.accept[rows], offsets - offsets[0], own, law.exactness)


def _widened(values: Array, width: int) -> Array:
    return np.pad(values, ((0, 0), (0, max(width - values.shape[1], 0))))


def _columns(sums: Array) -> list[pl.Series]:
    return [pl.Series(name, values, dtype=pl.Float64) for name, values in zip(TESTS, sums, strict=True)]


def _shares(frame: pl.DataFrame, difference: float) -> pl.DataFrame:
    accepted = [
        pl.when(pl.col(f"tested_{one}") > 0).then(pl.col(f"kept_{one}") / pl.col(f"tested_{one}")) for one in ("a", "b")
    ]
    return frame.with_columns(accepted[0].alias("acceptance_a"), accepted[1].alias("acceptance_b"), _share(difference))


def _share(difference: float) -> pl.Expr:
    told = abs(difference) > ROUNDING
    share = pl.col("attributed") / difference if told else pl.lit(None, dtype=pl.Float64)
    return share.alias("share")
