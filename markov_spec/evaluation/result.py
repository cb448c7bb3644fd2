"""Expected decoding rounds of one contender on every rollout, and the aggregates over them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from markov_spec.acceptance import RULES
from markov_spec.arrays import Array, Exactness, RequestError
from markov_spec.comparison.cells import Cells, html_lines, html_table
from markov_spec.evaluation.contender import Setting
from markov_spec.evaluation.workload import REPETITIVE, workload_warnings
from markov_spec.metrics import (
    Interval,
    RolloutCounts,
    conditional_rates,
    convention_length,
    draft_acceptance,
    drafts_only_length,
    left_out,
    length_weighted_mean,
    macro_mean,
    overshoot,
    plug_in_request_mean,
    pooled_length,
    request_mean,
    unconditional_rates,
    untrimmed_length,
)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Expected decoding rounds of one contender on every rollout of a store.

    Parameters
    ----------
    contender : str
    drafter : str
    rule : str
        The rule that decided; ``"match"`` for a deterministic drafter.
    settings : mapping of str to str, int or float
        What the rule was told beside the record, defaults filled in.
    draft_length : int
    first_start : int
    ids, prompt_ids, benchmarks : tuple of str, (R,)
    committed : ndarray, (R,)
        Tokens to decode.
    rounds : ndarray, (R,)
        Expected rounds.
    variance : ndarray, (R,)
        Variance of the rounds given the rollout: decoding luck.
    inverse : ndarray, (R,)
        ``E[1/R]``; NaN where there is nothing to decode.
    drafted : ndarray, (R,)
        Expected drafts proposed: nodes, if they are a tree.
    depths : ndarray, (R,)
        Expected depths proposed, up to the end of the rollout; the same as ``drafted`` of a chain.
    accepted_histogram : ndarray, (R, K+1)
        Expected rounds that accept exactly ``k`` drafts, an accepted end token counted.
    tested : ndarray, (R, K)
        Expected rounds that test depth ``k``.
    repeated : ndarray, (R,)
        Share of the rollout's 4-grams that occurred in it before.
    price, price_variance : ndarray, (R,), or None
        Expected price of the rounds and its variance given the rollout; None if no price was given.
    uncertain : ndarray, (R,), or None
        Of a tree: expected rounds from starts whose lists are too short to tell its nodes.
    notes : tuple of str
        Warnings about the contender.
    convention : str or None
        Whose acceptance length `length` is.
    counts : RolloutCounts or None
        What the convention counts; None without one.
    """

    contender: str
    drafter: str
    rule: str
    settings: Mapping[str, Setting]
    draft_length: int
    first_start: int
    ids: tuple[str, ...]
    prompt_ids: tuple[str, ...]
    benchmarks: tuple[str, ...]
    committed: Array
    rounds: Array
    variance: Array
    inverse: Array
    drafted: Array
    depths: Array
    accepted_histogram: Array
    tested: Array
    repeated: Array
    price: Array | None = None
    price_variance: Array | None = None
    uncertain: Array | None = None
    notes: tuple[str, ...] = ()
    convention: str | None = None
    counts: RolloutCounts | None = None

    @property
    def repetitive(self) -> Array:
        """Rollouts that mostly repeat themselves, (R,) of bool: more than 0.9 of their 4-grams occurred before."""
        return self.repeated > REPETITIVE

    @property
    def pooled_length(self) -> float | None:
        """Committed tokens per round over all rollouts, the target's own token included."""
        return pooled_length(self.committed, self.rounds)

    @property
    def exactness(self) -> Exactness:
        """Of `length`: that of the rule, or ``"bound"`` where the convention leaves an interval."""
        return self._exactness(np.ones(len(self.ids), dtype=bool))

    def _exactness(self, chosen: Array) -> Exactness:
        own = RULES[self.rule].exactness
        if self.uncertain is not None and self.uncertain[chosen].any():
            own = "bound"
        return own if self.convention is None or own != "exact" else self._interval(chosen).exactness

    @property
    def length(self) -> float | tuple[float, float] | None:
        """Acceptance length of the convention, an interval if the record leaves it open; else the pooled length."""
        if self.convention is None:
            return self.pooled_length
        interval = self._interval(np.ones(len(self.ids), dtype=bool))
        if interval.low is None or interval.high is None:
            return None
        return interval.low if interval.low == interval.high else (interval.low, interval.high)

    def _interval(self, chosen: Array) -> Interval:
        if self.convention is None or self.counts is None:
            raise ValueError("convention: found None; allowed: an evaluation under a convention")
        return convention_length(self.convention, self.counts, chosen)

    def to_frame(self) -> pl.DataFrame:
        """Give one row per rollout.

        Returns
        -------
        polars.DataFrame
            contender, rollout, prompt, benchmark, committed_tokens, expected_rounds, variance, expected_inverse,
            drafted, accepted_histogram, repeated.
        """
        return pl.DataFrame(
            {
                "contender": [self.contender] * len(self.ids),
                "rollout": self.ids,
                "prompt": self.prompt_ids,
                "benchmark": self.benchmarks,
                "committed_tokens": self.committed.astype(np.int64),
                "expected_rounds": self.rounds,
                "variance": self.variance,
                "expected_inverse": self.inverse,
                "drafted": self.drafted,
                "accepted_histogram": pl.Series(self.accepted_histogram.tolist(), dtype=pl.List(pl.Float64)),
                "repeated": self.repeated,
            },
            schema_overrides={name: pl.String for name in ("contender", "rollout", "prompt", "benchmark")},
        )

    def results(self, *, by: Literal["benchmark"] | None = None) -> list[dict[str, Any]]:
        """Give the aggregates as plain values, ready for JSON.

        Parameters
        ----------
        by : {"benchmark"}, optional
            One result for each benchmark, in order of appearance, rather than one over all rollouts.

        Returns
        -------
        list of dict
            contender, drafter, rule, draft_length, exactness, [benchmark,] rollouts, committed_tokens,
            expected_rounds, pooled_length, acceptance_by_depth (unconditional, conditional), accepted_histogram,
            first_start, the figure of the convention, the other aggregates of ``metrics``, prices, and warnings.
        """
        if by not in (None, "benchmark"):
            raise RequestError(f"by: found {by!r}; allowed: None or 'benchmark'")
        if by is None:
            return [self._result(np.ones(len(self.ids), dtype=bool), {})]
        names = np.array(self.benchmarks, dtype=object)
        return [self._result(names == name, {"benchmark": name}) for name in dict.fromkeys(self.benchmarks)]

    def _result(self, chosen: Array, group: dict[str, str]) -> dict[str, Any]:
        tokens, rounds, inverse = self.committed[chosen], self.rounds[chosen], self.inverse[chosen]
        histograms = self.accepted_histogram[chosen]
        histogram, tested = histograms.sum(0), self.tested[chosen].sum(0)
        interval = None if self.convention is None else self._interval(chosen)
        return {
            "contender": self.contender,
            "drafter": self.drafter,
            "rule": self.rule,
            "draft_length": self.draft_length,
            "exactness": self._exactness(chosen),
            **group,
            "rollouts": len(tokens),
            "committed_tokens": int(tokens.sum()),
            "expected_rounds": math.fsum(rounds),
            "pooled_length": pooled_length(tokens, rounds),
            "acceptance_by_depth": {
                "unconditional": unconditional_rates(histogram),
                "conditional": conditional_rates(histogram, tested),
            },
            "accepted_histogram": histogram.tolist(),
            "first_start": self.first_start,
            "convention": self.convention,
            "convention_length": None if interval is None else [interval.low, interval.high],
            "settings": dict(self.settings),
            "tested_by_depth": tested.tolist(),
            "request_mean": request_mean(tokens, inverse),
            "plug_in_request_mean": plug_in_request_mean(tokens, rounds),
            "length_weighted_mean": length_weighted_mean(tokens, inverse),
            "rollouts_without_rounds": left_out(rounds),
            "macro_mean": macro_mean(self._pooled(chosen)),
            "drafts_only_length": drafts_only_length(tokens, rounds),
            "untrimmed_length": untrimmed_length(tokens, rounds, overshoot(histograms, tokens)),
            "proposed_drafts": math.fsum(self.drafted[chosen]),
            "draft_acceptance": draft_acceptance(
                float(histogram @ np.arange(histogram.size)), proposed=math.fsum(self.drafted[chosen])
            ),
            "proposed_depths": math.fsum(self.depths[chosen]),
            "depth_acceptance": draft_acceptance(
                float(histogram @ np.arange(histogram.size)), proposed=math.fsum(self.depths[chosen])
            ),
            "uncertain_rounds": None if self.uncertain is None else math.fsum(self.uncertain[chosen]),
            "repetitive_rollouts": int(self.repetitive[chosen].sum()),
            "pooled_length_without_repetitive": pooled_length(
                self.committed[chosen & ~self.repetitive], self.rounds[chosen & ~self.repetitive]
            ),
            **self._priced(chosen),
            "warnings": self._warnings(chosen),
        }

    def _warnings(self, chosen: Array) -> list[str]:
        prompts = [prompt for prompt, own in zip(self.prompt_ids, chosen, strict=True) if own]
        found = workload_warnings(self.committed[chosen], self.rounds[chosen], prompts, self.repetitive[chosen])
        return [*self.notes, *found]

    def _priced(self, chosen: Array) -> dict[str, float | None]:
        if self.price is None:
            return {"expected_price": None, "price_per_token": None}
        total, tokens = math.fsum(self.price[chosen]), float(self.committed[chosen].sum())
        return {"expected_price": total, "price_per_token": total / tokens if tokens else None}

    def _pooled(self, chosen: Array) -> list[float | None]:
        names = np.array(self.benchmarks, dtype=object)
        masks = [chosen & (names == name) for name in dict.fromkeys(self.benchmarks)]
        return [pooled_length(self.committed[mask], self.rounds[mask]) for mask in masks]

    def summary(self, *, by: Literal["benchmark"] | None = None) -> pl.DataFrame:
        """Give the aggregates as one row, or one row per benchmark.

        Parameters
        ----------
        by : {"benchmark"}, optional

        Returns
        -------
        polars.DataFrame
            As `results`, with the rates in the list columns ``unconditional`` and ``conditional``.
        """
        found, rows = self.results(by=by), []
        # Without a benchmark, an empty result gives the columns.
        for result in found or [self._result(np.zeros(len(self.ids), dtype=bool), {"benchmark": ""})]:
            rates, settings = result.pop("acceptance_by_depth"), result.pop("settings")
            rows.append({**result, "settings": ",".join(f"{k}={v}" for k, v in settings.items()), **rates})
        kinds: dict[str, Any] = {name: pl.Float64 for row in rows for name, value in row.items() if value is None}
        lists = ("unconditional", "conditional", "accepted_histogram", "tested_by_depth", "convention_length")
        kinds |= {name: pl.List(pl.Float64) for name in lists}
        kinds |= {"warnings": pl.List(pl.String), "convention": pl.String}
        frame = pl.DataFrame(rows, schema_overrides=kinds)
        return frame if found else frame.clear()

    def __repr__(self) -> str:
        length = self.length
        if length is None:
            told = "no rounds"
        elif isinstance(length, tuple):
            told = f"{length[0]:.4f} to {length[1]:.4f} tokens per round"
        else:
            told = f"{length:.4f} tokens per round"
        whose = "" if self.convention is None else f" as {self.convention} counts"
        warned = "".join(f"\nwarning: {warning}" for warning in self._warnings(np.ones(len(self.ids), dtype=bool)))
        return (
            f"Evaluation({self.contender}: {told}{whose} ({self.exactness}; rule {self.rule}, K={self.draft_length}, "
            f"{int(self.committed.sum())} tokens in {self.rounds.sum():.2f} expected rounds, "
            f"{len(self.ids)} rollout{'s' * (len(self.ids) != 1)})){warned}"
        )

    def _repr_html_(self) -> str:
        length = "pooled length" if self.convention is None else f"{self.convention} length"
        titles = ("benchmark", "rollouts", "tokens", "expected rounds", length, "draft acceptance")
        rows: list[tuple[str, ...]] = []
        for row in self.results(by="benchmark"):
            ends = [row["pooled_length"]] if self.convention is None else row["convention_length"]
            shown = " to ".join(dict.fromkeys("-" if end is None else f"{end:.4f}" for end in ends))
            kept = "-" if row["draft_acceptance"] is None else f"{row['draft_acceptance']:.4f}"
            counts = str(row["rollouts"]), str(row["committed_tokens"]), f"{row['expected_rounds']:.2f}"
            rows.append((row["benchmark"], *counts, shown, kept))
        return html_lines(repr(self).splitlines()) + html_table(Cells(titles, "lrrrrr", rows))
