"""The acceptance length that an engine or a script would print of these rollouts: one entry for each convention.

``T`` tokens of a rollout are recorded, ``R`` rounds give those from the first start on: the first token too, or the
ones after it where the prefill emits it. A round that accepts the end token as its ``j``-th draft commits no token
past it, but an engine that does not cut this round counts one more at least, the target's own, and ``L+1-j`` at most,
if the other drafts are accepted too. What follows an end is in no record, so such a figure is a bound; a target that
goes on without a further draft, or with all of them, attains its ends::

    last[j]  = o[T-j] S[T-j,j]                   probability that the last round accepts the end token as draft j
    surplus  = sum_j last[j] x[j],  1 <= x[j] <= L[T-j]+1-j             expected tokens past the end

    edr             sum T / sum E[R]                                    first token drafted
    deepspec        sum (T-1 + surplus at the length cap) / sum E[R]
    vllm            1 + sum (T-1 + surplus - E[R]) / sum E[R with a draft]
    sglang          sum T / sum E[R]
    specforge       mean T E[1/R]
    dflash, ddtree  mean E[(T-1 + surplus) / R]
    speculators     sum (T-1) / sum E[R] - 1

A round gives its accepted drafts and one token, so ``T-1 + surplus - E[R]`` drafts are accepted. A quotient of sums is
that of their expectations: what the engine prints over ever more runs which emit these very tokens.

An engine is taken to stop once it has ``T`` tokens. The loops of DeepSpec, DFlash and DDTree pass their cap by one:
``T`` tokens that the cap ended are their run with ``max_new_tokens = T-1``. DFlash and DDTree also play a round after a
stop token of the prefill, which no record knows: it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from markov_spec.metrics.aggregates import ROUNDING, Array, ratio

Terms = tuple[Array, Array, Array]  # of each rollout: what is counted, at least and at most, and what it is divided by


@dataclass(frozen=True, eq=False)
class RolloutCounts:
    """Expectations over the rounds of each rollout, from one first start. Measured rounds may stand for them.

    Parameters
    ----------
    tokens : array_like of float, (R,)
        ``T``: recorded tokens, those before the first start too.
    rounds : array_like of float, (R,)
        ``E[R]``.
    first_start : int
        Tokens of a rollout that no round gives.
    drafted_rounds : array_like of float, (R,), optional
        Expected rounds that propose a draft.
    surplus_least, surplus_most : array_like of float, (R,), optional
        Expected tokens that the last round gives past the end: one if it accepts the end token, or ``L+1-j``.
    finish : sequence of str, (R,), optional
        ``"stop"`` or ``"length"``; any other reason may be either.
    inverse : array_like of float, (R,), optional
        ``E[1/R]``.
    ratio_low, ratio_high : array_like of float, (R,), optional
        ``E[(T - first_start + surplus) / R]`` with the least and the most surplus.

    Raises
    ------
    ValueError
        If shapes differ, a number is negative or not finite (of a mean over rounds: in a rollout that has rounds), or
        what is least is above what is most.

    Examples
    --------
    >>> RolloutCounts([5, 3], [2, 1.5], first_start=1).committed
    array([4., 2.])
    """

    tokens: Any
    rounds: Any
    _: KW_ONLY
    first_start: int
    drafted_rounds: Any = None
    surplus_least: Any = None
    surplus_most: Any = None
    finish: Sequence[str] | None = None
    inverse: Any = None
    ratio_low: Any = None
    ratio_high: Any = None

    def __post_init__(self) -> None:
        for name in ("tokens", "rounds", "drafted_rounds", "surplus_least", "surplus_most"):
            self._settle(name)
        for name in ("inverse", "ratio_low", "ratio_high"):
            self._settle(name, where=self.rounds > 0)
        for low, high in (("surplus_least", "surplus_most"), ("ratio_low", "ratio_high")):
            least, most = getattr(self, low), getattr(self, high)
            if least is None or most is None:
                continue
            self._refuse(least > most + ROUNDING * np.maximum(most, 1), low, least, f"at most {high}")
            object.__setattr__(self, high, np.maximum(least, most))
        if self.finish is not None:
            object.__setattr__(self, "finish", self._shaped("finish", np.asarray(self.finish, dtype=np.str_)))

    @property
    def committed(self) -> Array:
        """Tokens that the rounds commit, float64 (R,)."""
        left: Array = np.maximum(self.tokens - self.first_start, 0.0)
        return left

    def _settle(self, name: str, where: Any = True) -> None:
        value = getattr(self, name)
        if value is None:
            return
        values = self._shaped(name, np.asarray(value, dtype=np.float64))
        self._refuse(~((values >= 0) & (values < np.inf)) & where, name, values, "finite numbers >= 0")
        object.__setattr__(self, name, values)

    def _shaped(self, name: str, values: Array) -> Array:
        count = np.size(self.tokens)
        if values.shape != (count,):
            raise ValueError(f"{name}: found shape {values.shape}; allowed: ({count},), one entry for each rollout")
        return values

    @staticmethod
    def _refuse(bad: Array, name: str, values: Array, allowed: str) -> None:
        if bad.any():
            i = int(np.argmax(bad))
            raise ValueError(f"{name}: rollout {i}: found {values[i]:g}; allowed: {allowed}")


@dataclass(frozen=True)
class Interval:
    """What a figure is, or lies between. Made by `convention_length`.

    Parameters
    ----------
    low, high : float or None
        Tokens per round; None if nothing is left to divide by.
    left_out : int
        Rollouts that add nothing to the figure: those without a round, or without one that the engine counts.
    """

    low: float | None
    high: float | None
    left_out: int

    @property
    def exactness(self) -> Literal["exact", "bound"]:
        """``"exact"`` if both ends are equal."""
        return "exact" if self.low == self.high else "bound"


@dataclass(frozen=True)
class Convention:
    """How an engine or a script counts an acceptance length. The entries of ``CONVENTIONS``.

    Parameters
    ----------
    name : str
    engine : str
        Who prints it, and as what.
    first_start : {0, 1}
        0: the first token is drafted; 1: the prefill emits it, before all rounds.
    pooling : {"rounds", "requests"}
        A quotient of sums over all rollouts, or the unweighted mean of each rollout's own.
    first_token, last_round, bonus : str
        What becomes of the first token, of the last round's tokens past the end, and of the target's own tokens.
    needs : tuple of str
        What it reads of `RolloutCounts` beside tokens and rounds.
    terms : callable
        From the counts and what it needs to each rollout's terms: the least and the most in the numerator, and the
        denominator.
    """

    name: str
    engine: str
    first_start: Literal[0, 1]
    pooling: Literal["rounds", "requests"]
    first_token: str
    last_round: str
    bonus: str
    needs: tuple[str, ...]
    terms: Callable[..., Terms]

    @property
    def summary(self) -> str:
        """Say in a line or two who prints it and how it counts."""
        pooled = {"rounds": "pooled over all rounds", "requests": "mean over requests, unweighted"}[self.pooling]
        return (
            f"{self.engine}: {pooled}; first token {self.first_token}; last round {self.last_round}; "
            f"target's own token {self.bonus}."
        )


def _all_tokens(counts: RolloutCounts) -> Terms:
    return counts.tokens, counts.tokens, counts.rounds


def _cut_at_stop(counts: RolloutCounts, finish: Array, least: Array, most: Array) -> Terms:
    low = counts.committed + np.where(finish == "length", least, 0.0)
    return low, counts.committed + np.where(finish == "stop", 0.0, most), counts.rounds


def _drafted_rounds(counts: RolloutCounts, drafted: Array, least: Array, most: Array) -> Terms:
    own = drafted + counts.committed - counts.rounds
    return own + least, own + most, drafted


def _request_means(counts: RolloutCounts, low: Array, high: Array) -> Terms:
    decoded = counts.rounds > 0
    return np.where(decoded, low, 0.0), np.where(decoded, high, 0.0), decoded


def _completions(counts: RolloutCounts, inverse: Array) -> Terms:
    return _request_means(counts, counts.tokens * inverse, counts.tokens * inverse)


def _committed_drafts(counts: RolloutCounts) -> Terms:
    drafts = counts.committed - counts.rounds
    return drafts, drafts, counts.rounds


_SURPLUS = ("surplus_least", "surplus_most")
_RATIOS = ("ratio_low", "ratio_high")
_ENTRIES = (
    Convention(
        name="edr",
        engine="AngelSpec-EDR, mean acceptance length of its offline evaluator",
        first_start=0,
        pooling="rounds",
        first_token="drafted",
        last_round="cut at the end",
        bonus="counted",
        needs=(),
        terms=_all_tokens,
    ),
    Convention(
        name="deepspec",
        engine="DeepSpec, accept_len of deepspec/eval/base_evaluator.py",
        first_start=1,
        pooling="rounds",
        first_token="from the prefill, not counted",
        last_round="cut at a stop token, not at the length cap",
        bonus="counted, but not after a stop token",
        needs=("finish", *_SURPLUS),
        terms=_cut_at_stop,
    ),
    Convention(
        name="vllm",
        engine="vLLM, mean acceptance length of vllm/v1/spec_decode/metrics.py, rounds without a draft left out",
        first_start=1,
        pooling="rounds",
        first_token="from the prefill, not counted",
        last_round="not cut",
        bonus="counted",
        needs=("drafted_rounds", *_SURPLUS),
        terms=_drafted_rounds,
    ),
    Convention(
        name="sglang",
        engine="SGLang, completion_tokens / spec_verify_ct, summed over requests as bench_eagle3.py of SpecForge does",
        first_start=1,
        pooling="rounds",
        first_token="from the prefill, counted",
        last_round="cut at the end",
        bonus="counted",
        needs=(),
        terms=_all_tokens,
    ),
    Convention(
        name="specforge",
        engine="SpecForge, average_acceptance_length of specforge/benchmarks/sglang.py",
        first_start=1,
        pooling="requests",
        first_token="from the prefill, counted",
        last_round="cut at the end",
        bonus="counted",
        needs=("inverse",),
        terms=_completions,
    ),
    Convention(
        name="dflash",
        engine="DFlash, average acceptance length of its benchmark as published (later versions cut the last round)",
        first_start=1,
        pooling="requests",
        first_token="from the prefill, not counted",
        last_round="not cut",
        bonus="counted",
        needs=_RATIOS,
        terms=_request_means,
    ),
    Convention(
        name="ddtree",
        engine="DDTree, tau of make_latex_table.py",
        first_start=1,
        pooling="requests",
        first_token="from the prefill, not counted",
        last_round="not cut",
        bonus="counted",
        needs=_RATIOS,
        terms=_request_means,
    ),
    Convention(
        name="speculators",
        engine="speculators, drafts alone as its training metric EAL counts (evaluate.py prints vLLM's figure)",
        first_start=1,
        pooling="rounds",
        first_token="from the prefill, not counted",
        last_round="cut at the end",
        bonus="left out, the end token as one",
        needs=(),
        terms=_committed_drafts,
    ),
)
CONVENTIONS: dict[str, Convention] = {entry.name: entry for entry in _ENTRIES}


def convention_length(name: str, counts: RolloutCounts, chosen: Any = None) -> Interval:
    """Compute the acceptance length that an engine or a script would print of these rollouts.

    Parameters
    ----------
    name : str
        Key of ``CONVENTIONS``.
    counts : RolloutCounts
        From the first start of the convention, with all that it needs.
    chosen : array_like of bool, (R,), optional
        Rollouts to count; all by default.

    Returns
    -------
    Interval
        Tokens per round. Exact given exact counts, unless the end of the record leaves the last round open: then both
        ends are attained.

    Raises
    ------
    ValueError
        If there is no such convention, the counts begin at another first start or lack what it needs, or ``chosen`` is
        no mask of the rollouts.

    Notes
    -----
    ``O(R)``. Sources are named by the entries.

    Examples
    --------
    >>> counts = RolloutCounts([10, 4], [4, 2], first_start=1, finish=["stop", "length"], surplus_least=[1, 1],
    ...     surplus_most=[3, 3])
    >>> convention_length("sglang", counts)
    Interval(low=2.3333333333333335, high=2.3333333333333335, left_out=0)
    >>> convention_length("deepspec", counts)
    Interval(low=2.1666666666666665, high=2.5, left_out=0)
    """
    if name not in CONVENTIONS:
        raise ValueError(f"convention: found {name!r}; allowed: {', '.join(CONVENTIONS)}")
    convention = CONVENTIONS[name]
    if counts.first_start != convention.first_start:
        raise ValueError(
            f"convention {name!r}: found counts from first start {counts.first_start}; "
            f"allowed: {convention.first_start}"
        )
    given = [getattr(counts, need) for need in convention.needs]
    missing = [need for need, values in zip(convention.needs, given, strict=True) if values is None]
    if missing:
        raise ValueError(f"convention {name!r}: found no {', '.join(missing)}; allowed: counts with them")
    mask = np.ones(len(counts.tokens), dtype=bool) if chosen is None else np.asarray(chosen)
    if mask.dtype != bool or mask.shape != counts.tokens.shape:
        raise ValueError(f"chosen: found {mask.dtype} {mask.shape}; allowed: bool {counts.tokens.shape}")
    least, most, per = (part[mask] for part in convention.terms(counts, *given))
    whole = float(np.sum(per))
    return Interval(
        ratio(float(np.sum(least)), whole),
        ratio(float(np.sum(most)), whole),
        int(np.sum((most == 0) & (per == 0))),
    )
