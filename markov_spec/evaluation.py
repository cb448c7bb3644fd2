"""The verb ``evaluate``: read a drafter from a store, make its round law, solve, aggregate."""

from __future__ import annotations

import math
import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from markov_spec.acceptance import RULES, round_law
from markov_spec.arrays import Array, Drafts, Exactness, RequestError, Rollouts, RoundLaw, rollout_spans
from markov_spec.chain import solve
from markov_spec.metrics import conditional_rates, pooled_length, unconditional_rates
from markov_spec.store import Store, open_store

DEFAULT_DRAFT_LENGTH = 5
LONGEST_DRAFT = 1024
# The others need numbers of the full distributions; round_law takes them as arrays.
STORED_RULES = tuple(name for name, rule in RULES.items() if set(rule.needs) <= {"log_p", "log_q", "hit"})
CHUNK_BYTES = 64 << 20


@dataclass(frozen=True)
class Contender:
    """What is evaluated: a drafter with a way of drafting and verifying.

    Parameters
    ----------
    drafter : str
        Name in the store.
    rule : str, optional
        Acceptance rule; the drafter's own by default. A deterministic drafter's is ``"match"`` whatever is asked for.
    draft_length : int, optional
        ``K``; by default what was recorded for a block drafter, 5 for an autoregressive one.

    Examples
    --------
    >>> import markov_spec as ms
    >>> ms.Contender.parse("block:K=7,rule=block")
    Contender(drafter='block', rule='block', draft_length=7)
    """

    drafter: str
    _: KW_ONLY
    rule: str | None = None
    draft_length: int | None = None

    def __post_init__(self) -> None:
        if self.rule is not None and self.rule not in STORED_RULES:
            raise RequestError(f"contender {self}: found rule {self.rule!r}; allowed: {', '.join(STORED_RULES)}")
        if self.draft_length is not None and not 0 <= self.draft_length <= LONGEST_DRAFT:
            raise RequestError(
                f"contender {self}: found draft length {self.draft_length}; allowed: 0 to {LONGEST_DRAFT}"
            )

    @classmethod
    def parse(cls, text: str) -> Contender:
        """Read ``NAME`` or ``NAME:K=7,rule=block``.

        Parameters
        ----------
        text : str

        Returns
        -------
        Contender

        Raises
        ------
        RequestError
            Saying which setting was not understood.
        """
        name, _, rest = text.partition(":")
        settings: dict[str, Any] = {}
        for item in rest.split(",") if rest else []:
            key, _, value = item.partition("=")
            if key == "K" and "draft_length" not in settings and value.isascii() and value.isdigit():
                settings["draft_length"] = int(value)
            elif key == "rule" and "rule" not in settings and value:
                settings["rule"] = value
            else:
                raise RequestError(f"contender {text!r}: found {item!r}; allowed: NAME, or NAME:K=7,rule=block")
        return cls(name, **settings)

    @classmethod
    def parse_all(cls, text: str) -> list[Contender]:
        """Read ``NAME``, ``NAME:K=7,rule=block`` or a range of draft lengths, ``NAME:K=1-8``.

        Parameters
        ----------
        text : str

        Returns
        -------
        list of Contender
            One for each draft length of a range, else one.

        Raises
        ------
        RequestError
            Saying which setting was not understood.

        Examples
        --------
        >>> import markov_spec as ms
        >>> [str(contender) for contender in ms.Contender.parse_all("block:K=2-4,rule=match")]
        ['block:K=2,rule=match', 'block:K=3,rule=match', 'block:K=4,rule=match']
        """
        found = re.search(r"(?<=[:,]K=)(\d{1,4})-(\d{1,4})(?=,|$)", text)
        if found is None:
            return [cls.parse(text)]
        first, last = int(found[1]), int(found[2])
        if first > last:
            raise RequestError(f"contender {text!r}: found K={found[0]}; allowed: a range that rises, such as K=1-8")
        return [cls.parse(f"{text[: found.start()]}{k}{text[found.end() :]}") for k in range(first, last + 1)]

    def __str__(self) -> str:
        settings = {"K": self.draft_length, "rule": self.rule}
        given = ",".join(f"{key}={value}" for key, value in settings.items() if value is not None)
        return f"{self.drafter}:{given}" if given else self.drafter


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Expected decoding rounds of one contender on every rollout of a store.

    Parameters
    ----------
    contender : str
    drafter : str
    rule : str
        The rule that decided; ``"match"`` for a deterministic drafter.
    draft_length : int
    exactness : {"exact", "bound", "heuristic", "teacher-forced"}
    first_start : int
    ids, prompt_ids, benchmarks : tuple of str, (R,)
    committed : ndarray, (R,)
        Tokens to decode.
    rounds : ndarray, (R,)
        Expected rounds.
    variance : ndarray, (R,)
        Variance of the rounds given the rollout: decoding luck.
    drafted : ndarray, (R,)
        Expected drafts proposed.
    accepted_histogram : ndarray, (R, K+1)
        Expected rounds that accept exactly ``k`` drafts, an accepted end token counted.
    tested : ndarray, (R, K)
        Expected rounds that test depth ``k``.
    """

    contender: str
    drafter: str
    rule: str
    draft_length: int
    exactness: Exactness
    first_start: int
    ids: tuple[str, ...]
    prompt_ids: tuple[str, ...]
    benchmarks: tuple[str, ...]
    committed: Array
    rounds: Array
    variance: Array
    drafted: Array
    accepted_histogram: Array
    tested: Array

    @property
    def pooled_length(self) -> float | None:
        """Committed tokens per round over all rollouts, the target's own token included."""
        return pooled_length(self.committed, self.rounds)

    def to_frame(self) -> pl.DataFrame:
        """Give one row per rollout.

        Returns
        -------
        polars.DataFrame
            contender, rollout, prompt, benchmark, committed_tokens, expected_rounds, variance, drafted,
            accepted_histogram.
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
                "drafted": self.drafted,
                "accepted_histogram": pl.Series(self.accepted_histogram.tolist(), dtype=pl.List(pl.Float64)),
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
            first_start.
        """
        if by not in (None, "benchmark"):
            raise RequestError(f"by: found {by!r}; allowed: None or 'benchmark'")
        if by is None:
            return [self._result(np.ones(len(self.ids), dtype=bool), {})]
        names = np.array(self.benchmarks, dtype=object)
        return [self._result(names == name, {"benchmark": name}) for name in dict.fromkeys(self.benchmarks)]

    def _result(self, chosen: Array, group: dict[str, str]) -> dict[str, Any]:
        histogram = self.accepted_histogram[chosen].sum(0)
        return {
            "contender": self.contender,
            "drafter": self.drafter,
            "rule": self.rule,
            "draft_length": self.draft_length,
            "exactness": self.exactness,
            **group,
            "rollouts": int(chosen.sum()),
            "committed_tokens": int(self.committed[chosen].sum()),
            "expected_rounds": math.fsum(self.rounds[chosen]),
            "pooled_length": pooled_length(self.committed[chosen], self.rounds[chosen]),
            "acceptance_by_depth": {
                "unconditional": unconditional_rates(histogram),
                "conditional": conditional_rates(histogram, self.tested[chosen].sum(0)),
            },
            "accepted_histogram": histogram.tolist(),
            "first_start": self.first_start,
        }

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
        rows = []
        for result in self.results(by=by):
            rates = result.pop("acceptance_by_depth")
            rows.append({**result, **rates})
        lists = {name: pl.List(pl.Float64) for name in ("unconditional", "conditional", "accepted_histogram")}
        return pl.DataFrame(rows, schema_overrides={"pooled_length": pl.Float64, **lists})

    def __repr__(self) -> str:
        length = "no rounds" if self.pooled_length is None else f"{self.pooled_length:.4f} tokens per round"
        return (
            f"Evaluation({self.contender}: {length} ({self.exactness}; rule {self.rule}, K={self.draft_length}, "
            f"{int(self.committed.sum())} tokens in {self.rounds.sum():.2f} expected rounds, "
            f"{len(self.ids)} rollout{'s' * (len(self.ids) != 1)}))"
        )

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def evaluate(store: Store | str | Path, contender: Contender | str, *, first_start: int = 0) -> Evaluation:
    """Compute the exact expected decoding rounds of a contender on every rollout of a store.

    Parameters
    ----------
    store : Store or path
    contender : Contender or str
        A drafter's name, ``"block:K=7"``, ``"quant5:K=4,rule=block"``, or a `Contender`.
    first_start : int
        0: the first token is drafted too; 1: the prefill emits it.

    Returns
    -------
    Evaluation

    Raises
    ------
    RequestError
        If the store has no such drafter, or its record is shorter than the draft length.
    ValueError
        If the store is damaged.

    Notes
    -----
    ``O(N K)``; laws are made for chunks of rollouts of at most 64 MB.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> drafts = ms.Drafts("quant5", "autoregressive", "rejection", np.log([.25, .9, .4]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6, 7]),
    ...         indptr=[0, 3], log_p=np.log([.5, .9, .4]), drafters={"quant5": drafts})
    ...     ms.evaluate(store, "quant5:K=2")
    Evaluation(quant5:K=2: 2.0000 tokens per round (exact; rule rejection, K=2, 3 tokens in 1.50 expected rounds,
    1 rollout))
    """
    store = store if isinstance(store, Store) else open_store(store)
    if not isinstance(contender, str | Contender):
        raise RequestError(f"contender: found {contender!r}; allowed: one name, 'block:K=7' or a Contender")
    chosen = contender if isinstance(contender, Contender) else Contender.parse(contender)
    if chosen.drafter not in store.drafters:
        allowed = ", ".join(store.drafters) or "none, the store holds no drafter"
        raise RequestError(f"contender {chosen}: found drafter {chosen.drafter!r}; allowed: {allowed}")
    rollouts, drafts = store.rollouts(), store.drafter(chosen.drafter)
    rule, depth = _settle(chosen, drafts)
    solved = [
        solve(_law(rollouts, drafts, rule, depth, first, last), first_start=first_start)
        for first, last in _chunks(rollouts, depth)
    ]

    def stack(name: str, width: int | None = None) -> Array:
        parts = [getattr(rounds, name) for rounds in solved]
        if width is not None:  # a chunk whose starts all draft less has fewer depths
            parts = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts]
        return np.concatenate(parts)

    return Evaluation(
        contender=str(chosen),
        drafter=chosen.drafter,
        rule=rule,
        draft_length=depth,
        exactness=RULES[rule].exactness,
        first_start=first_start,
        ids=tuple(rollouts.ids),
        prompt_ids=tuple(rollouts.prompt_ids),
        benchmarks=tuple(rollouts.benchmarks),
        committed=stack("committed"),
        rounds=stack("expected"),
        variance=stack("variance"),
        drafted=stack("drafted"),
        accepted_histogram=stack("accepted_histogram", depth + 1),
        tested=stack("tested", depth),
    )


def _settle(contender: Contender, drafts: Drafts) -> tuple[str, int]:
    rule = contender.rule or drafts.rule
    if drafts.rule == "match" and rule != "none":
        rule = "match"
    if rule not in STORED_RULES:
        raise ValueError(f"drafter {drafts.name!r}: recorded with rule {rule!r}; allowed: {', '.join(STORED_RULES)}")
    if rule == "none":
        return rule, 0
    if rule == "match" and drafts.rule != "match" and drafts.rank is None:
        raise RequestError(f"contender {contender}: rule 'match' needs the drafter's rank, which was not recorded")
    recorded = drafts.depth
    depth = contender.draft_length
    if depth is None:
        depth = DEFAULT_DRAFT_LENGTH if recorded is None else recorded
    elif recorded is not None and depth > recorded:
        raise RequestError(
            f"contender {contender}: found draft length {depth}; allowed: at most the recorded {recorded}"
        )
    return rule, depth


def _chunks(rollouts: Rollouts, depth: int) -> list[tuple[int, int]]:
    rows = max(1, CHUNK_BYTES // (8 * max(depth, 1)))
    return list(rollout_spans(rollouts.indptr, 0, len(rollouts), rows)) or [(0, 0)]


def _law(rollouts: Rollouts, drafts: Drafts, rule: str, depth: int, first: int, last: int) -> RoundLaw:
    indptr = rollouts.indptr[first : last + 1]
    rows = slice(int(indptr[0]), int(indptr[-1]))
    log_q, rank = (None if v is None else v[rows] for v in (drafts.log_q, drafts.rank))
    if drafts.kind == "block":
        log_q, rank = (None if v is None else v[:, :depth] for v in (log_q, rank))
    length = depth if drafts.drafted is None else np.minimum(drafts.drafted[rows], depth)
    hit = rank == 1 if rule == "match" and rank is not None else None
    return round_law(rollouts.log_p[rows], log_q, indptr - indptr[0], rule=rule, draft_length=length, hit=hit)
