"""Expected rounds between two numbers, where acceptances are not known but lie in intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from markov_spec.acceptance.lossy import LOSSY
from markov_spec.arrays import Array, RequestError
from markov_spec.chain import Bounds, bound_rounds, bound_rounds_block, solve
from markov_spec.comparison.cells import Cells, html_lines, html_table
from markov_spec.evaluation.contender import Contender, as_contender
from markov_spec.evaluation.laws import Plan, plans
from markov_spec.evaluation.lists import recorded
from markov_spec.evaluation.uncertainty import UNCERTAIN, Interval, Uncertainty, combined
from markov_spec.evaluation.uncertainty.interval import unrecorded
from markov_spec.metrics import pooled_length
from markov_spec.store import Store, open_store

Kind = Literal["exact", "outer"]
ROUNDING = 1e-12
BOUNDED = ("rejection", "block", "independent", "match")


@dataclass(frozen=True, eq=False, repr=False)
class BoundedEvaluation:
    """Bounds of the expected rounds of a contender on every rollout. Made by ``evaluate_bounds``.

    Parameters
    ----------
    contender, rule, source : str
        The source says what is uncertain, in words.
    ids, prompt_ids, benchmarks : tuple of str, (R,)
    committed : ndarray, (R,)
    low, high : ndarray of float64, (R,)
        Bounds of the expected rounds.
    exact : ndarray of float64, (R,), or None
        Expected rounds by what is recorded, where the source only sets it aside; None if it is not known, as where
        the drafter's ``log_q`` was recorded of listed tokens alone.
    open_drafts, drafts : ndarray of int, (R,)
        Drafts inside each rollout whose acceptance is not known, and all.
    draft_length, first_start : int
    kind : {"exact", "outer"}
        Whether all bounds are attained within the intervals.
    """

    contender: str
    rule: str
    source: str
    ids: tuple[str, ...]
    prompt_ids: tuple[str, ...]
    benchmarks: tuple[str, ...]
    committed: Array
    low: Array
    high: Array
    exact: Array | None
    open_drafts: Array
    drafts: Array
    draft_length: int
    first_start: int
    kind: Kind

    @property
    def uncertain(self) -> float:
        """Share of the drafts whose acceptance is not known."""
        return self._uncertain(np.ones(len(self.ids), dtype=bool))

    def _uncertain(self, chosen: Array) -> float:
        count = int(self.drafts[chosen].sum())
        return int(self.open_drafts[chosen].sum()) / count if count else 0.0

    @property
    def pooled_length(self) -> tuple[float, float] | None:
        """Committed tokens per round over all rollouts, between these two numbers."""
        return self._lengths(np.ones(len(self.ids), dtype=bool))

    def _lengths(self, chosen: Array) -> tuple[float, float] | None:
        tokens = self.committed[chosen]
        low, high = (pooled_length(tokens, rounds[chosen]) for rounds in (self.high, self.low))
        return None if low is None or high is None else (low, high)

    def results(self, *, by: Literal["benchmark"] | None = None) -> list[dict[str, Any]]:
        """Give the aggregates as plain values, ready for JSON: one, or one for each benchmark."""
        if by not in (None, "benchmark"):
            raise RequestError(f"by: found {by!r}; allowed: None or 'benchmark'")
        names = np.array(self.benchmarks, dtype=object)
        groups: dict[str | None, Array] = {None: np.ones(len(self.ids), dtype=bool)}
        if by is not None:
            groups = {name: names == name for name in dict.fromkeys(self.benchmarks)}
        rows = []
        for name, chosen in groups.items():
            length = self._lengths(chosen)
            own = None if self.exact is None else self.exact[chosen]
            rows.append(
                {
                    "contender": self.contender,
                    "rule": self.rule,
                    "draft_length": self.draft_length,
                    "first_start": self.first_start,
                    "source": self.source,
                    **({} if name is None else {"benchmark": name}),
                    "rollouts": int(chosen.sum()),
                    "committed_tokens": int(self.committed[chosen].sum()),
                    "rounds_low": math.fsum(self.low[chosen]),
                    "rounds_high": math.fsum(self.high[chosen]),
                    "pooled_length_low": None if length is None else length[0],
                    "pooled_length_high": None if length is None else length[1],
                    "pooled_length": None if own is None else pooled_length(self.committed[chosen], own),
                    "uncertain_share": self._uncertain(chosen),
                    "kind": self.kind,
                }
            )
        return rows

    def to_frame(self) -> pl.DataFrame:
        """Give one row per rollout, with rounds_low, rounds_high, and expected_rounds as recorded."""
        return pl.DataFrame(
            {
                "contender": [self.contender] * len(self.ids),
                "rollout": self.ids,
                "prompt": self.prompt_ids,
                "benchmark": self.benchmarks,
                "committed_tokens": self.committed.astype(np.int64),
                "rounds_low": self.low,
                "rounds_high": self.high,
                "expected_rounds": np.full(len(self.ids), None) if self.exact is None else self.exact,
            },
            schema_overrides={"expected_rounds": pl.Float64},
        )

    def __repr__(self) -> str:
        length = self.pooled_length
        told = "no rounds" if length is None else f"{length[0]:.4f} to {length[1]:.4f} tokens per round"
        own = None if self.exact is None else pooled_length(self.committed, self.exact)
        beside = "" if own is None else f", {own:.4f} as recorded"
        count = len(self.ids)
        return (
            f"BoundedEvaluation({self.contender}: {told} ({self.kind}{beside}; {self.source}, {self.uncertain:.1%} of "
            f"drafts uncertain, {count} rollout{'s' * (count != 1)}))"
        )

    def _repr_html_(self) -> str:
        rows: list[tuple[str, ...]] = []
        for row in self.results(by="benchmark"):
            ends = [(row[f"{name}_low"], row[f"{name}_high"]) for name in ("rounds", "pooled_length")]
            rounds, length = ("-" if low is None else f"{low:.4f} to {high:.4f}" for low, high in ends)
            own = "-" if row["pooled_length"] is None else f"{row['pooled_length']:.4f}"
            rows.append((row["benchmark"], rounds, length, own, f"{row['uncertain_share']:.1%}"))
        titles = ("benchmark", "rounds", "pooled length", "as recorded", "uncertain drafts")
        return html_lines([repr(self)]) + html_table(Cells(titles, "lrrrr", rows))


def evaluate_bounds(
    store: Store | str | Path, contender: Contender | str, source: Uncertainty | str, *, first_start: int = 0
) -> BoundedEvaluation:
    """Bound the expected decoding rounds of a contender where its acceptances are not known exactly.

    Parameters
    ----------
    store : Store or path
    contender : Contender or str
        ``"quant5"``, ``"block:rule=block"``: a chain, of rule ``rejection``, ``independent``, ``block`` or ``match``.
    source : Uncertainty or str
        What is not known: ``"lists:top=5"``, the drafter's probability of the realised token beyond its five likeliest;
        ``"target-lists:top=5"``, the target's alike, and both as ``"lists:top=5+target-lists:top=5"``;
        ``"tolerance:nats=0.01"``, every log-probability up to so much; ``"half:dtype=bfloat16"``, their rounding;
        ``"transport:m=2"``, what optimal transport of 2 drafts accepts (recorded by ``--scalars``). Of a greedy target:
        ``"certificates"``, all drafts that the recorded KL does not certify, or KL up to ``kl=``, for the drafter's
        ``m=`` best at each depth, ``tolerance=`` nats to spare; ``"ties"``, matches where its two best tokens are
        equal, or within ``nats=``. See ``evaluation.UNCERTAIN``.
    first_start : int
        0 when the first token is drafted too, 1 when the prefill emits it.

    Returns
    -------
    BoundedEvaluation
        ``"exact"`` if each bound is attained within the intervals; ``"outer"`` if it holds, but need not be.

    Raises
    ------
    RequestError
        If the source does not tell of this rule, the rule is lossy, or the store lacks what is read.
    ValueError
        If the store is damaged.

    Notes
    -----
    ``O(N K)``, range by range as `evaluate`. A lossy rule's accepted draft may leave the rollout, so intervals of
    acceptance along it bound no rounds. Source: MATH of robust dynamic programming in ``chain.intervals``.

    Examples
    --------
    >>> import markov_spec as ms
    >>> found = ms.evaluate_bounds("data/demo", "quant5:K=4", "lists:top=5")
    >>> low, high = found.pooled_length
    >>> bool(low <= ms.evaluate("data/demo", "quant5:K=4").pooled_length <= high), found.kind
    (True, 'exact')
    """
    opened, wanted = store if isinstance(store, Store) else open_store(store), as_contender(contender)
    unknown = _source(source)
    rule = wanted.rule or recorded(opened, wanted)["rule"]
    if rule in LOSSY:
        raise RequestError(
            f"contender {wanted}: found lossy rule {rule!r}; allowed: {', '.join(BOUNDED)}: what a lossy rule accepts "
            "may leave the rollout, so intervals along it bound no rounds (its figures are teacher-forced)"
        )
    parts = list(_solved(opened, wanted, unknown, first_start))
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    kinds, counts = set(columns.pop("kind").tolist()), columns.pop("counts")
    (depth, *_) = columns.pop("draft_length").tolist()
    columns |= {name: tuple(columns[name].tolist()) for name in ("ids", "prompt_ids", "benchmarks")}
    (told, *_), known = columns.pop("rule").tolist(), columns.pop("exact")
    return BoundedEvaluation(
        contender=str(wanted),
        rule=told,
        source=str(unknown),
        **columns,
        exact=None if np.isnan(known).any() else known,
        open_drafts=counts[:, 0],
        drafts=counts[:, 1],
        draft_length=depth,
        first_start=first_start,
        kind="outer" if "outer" in kinds else "exact",
    )


def _source(given: Uncertainty | str) -> Uncertainty:
    if not isinstance(given, str):
        return given
    made = [_parsed(text) for text in re.split(r"\+(?!\d)", given)]  # not in 1e+2
    return made[0] if len(made) == 1 else combined(made)


def _parsed(given: str) -> Uncertainty:
    name, _, rest = given.partition(":")
    if name not in UNCERTAIN:
        raise RequestError(f"bounds: found {given!r}; allowed: {', '.join(UNCERTAIN)}, such as lists:top=5")
    options: dict[str, Any] = {}
    for item in rest.split(",") if rest else []:
        key, _, value = item.partition("=")
        if key in options:
            raise RequestError(f"bounds: found {given!r}, {key} more than once; allowed: each setting once")
        try:
            options[key] = int(value) if value.isdigit() else float(value)
        except ValueError:
            options[key] = value
    try:
        made: Uncertainty = UNCERTAIN[name](**options)
        return made
    except TypeError:
        allowed = ", ".join(field.name for field in fields(UNCERTAIN[name])) or "none"
        raise RequestError(f"bounds: found {given!r}; allowed settings of {name}: {allowed}") from None


def _solved(store: Store, wanted: Contender, unknown: Uncertainty, first_start: int) -> Iterator[Mapping[str, Array]]:
    for chosen in plans(store, wanted):
        interval = unknown.interval(chosen)
        bounds = _bounded(chosen, interval, first_start)
        rollouts = chosen.rollouts
        whole = interval.known and (chosen.rule == "match" or not unrecorded(chosen))
        solved = _recorded(chosen, bounds, first_start) if whole else None
        count, met = len(rollouts), bool((bounds.low == bounds.high).all())
        kind = bounds.kind if interval.independent or met else "outer"
        yield {
            "ids": np.array(rollouts.ids, dtype=object),
            "prompt_ids": np.array(rollouts.prompt_ids, dtype=object),
            "benchmarks": np.array(rollouts.benchmarks, dtype=object),
            "rule": np.array([chosen.rule if interval.known else unknown.name], dtype=object),
            "draft_length": np.array([chosen.draft_length]),
            "committed": np.maximum(np.diff(rollouts.indptr) - first_start, 0),
            "low": bounds.low,
            "high": bounds.high,
            "exact": np.full(count, np.nan) if solved is None else solved,
            "kind": np.array([kind], dtype=object),
            "counts": interval.uncertain(rollouts.indptr, chosen.lengths(slice(None))),
        }


def _recorded(chosen: Plan, bounds: Bounds, first_start: int) -> Array:
    """Give the expected rounds by what is recorded, of acceptances as precise as the ends of their intervals."""
    drafts = replace(chosen.drafts, log_q=chosen.drafts.log_q.astype(np.float64))
    law = replace(chosen, drafts=drafts).law(0, len(chosen.rollouts))
    found = solve(law, first_start=first_start).expected
    # Sums in another order may end a rounding outside.
    inside = np.clip(found, bounds.low, bounds.high)
    return np.where(np.isclose(inside, found, rtol=ROUNDING, atol=0), inside, found)


def _bounded(chosen: Plan, interval: Interval, first_start: int) -> Bounds:
    verb = bound_rounds_block if interval.block else bound_rounds
    length: Any = chosen.lengths(slice(None))
    return verb(interval.low, interval.high, chosen.rollouts.indptr, draft_length=length, first_start=first_start)
