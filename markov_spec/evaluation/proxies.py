"""Peers' proxies for the pooled length, computed from the same record as the exact figure and set beside it.

A proxy reads starts, not rounds: all from ``first_start`` on, each with the depths up to its rollout's end. A depth
that a start has but does not draft (``k > L[s]``) counts as rejected there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from markov_spec.acceptance import RULES
from markov_spec.arrays import Array, Exactness, RequestError, cells_inside, check_first_start
from markov_spec.chain import solve
from markov_spec.comparison.cells import Cells, html_lines, html_table
from markov_spec.evaluation.contender import Contender
from markov_spec.evaluation.laws import Plan, plans
from markov_spec.metrics import drafts_only_length, eal, iid_length, marginal_length, pooled_length, start_lengths
from markov_spec.metrics.aggregates import ratio
from markov_spec.store import Store, open_store

# What the starts add up to: by depth (K,) or over all.
Totals = Mapping[str, Any]


def _by_depth(formula: Callable[[Any, Any], float | None], of: str) -> Callable[[Totals], float | None]:
    return lambda totals: formula(totals[of], totals["observed"])


def _over_starts(of: str) -> Callable[[Totals], float | None]:
    return lambda totals: ratio(float(totals[of]), float(totals["starts"]))


def _iid(of: str) -> Callable[[Totals], float | None]:
    def value(totals: Totals) -> float | None:
        depths = slice(totals["alpha_depths"])
        alpha = ratio(fsum(totals[of][depths]), fsum(totals["observed"][depths]))
        return None if alpha is None else iid_length(alpha, len(totals[of]))

    return value


@dataclass(frozen=True)
class _Proxy:
    # ``assumes``: the rule whose acceptance the peer's figure is, where that is not the contender's own.
    name: str
    peer: str
    bonus: bool
    reads: str
    value: Callable[[Totals], float | None]
    assumes: str | None = None


PROXIES = (
    _Proxy("eal", "speculators; SpecForge simulated_acc_len", False, "hits", _by_depth(eal, "hits"), "match"),
    _Proxy(
        "tau",
        "DeepSpec tau_probabilistic; speculators accept_len",
        True,
        "overlap_lengths",
        _over_starts("overlap_lengths"),
        "rejection",
    ),
    _Proxy("marginal_length", "accept_rate@k, multiplied", True, "accepted", _by_depth(marginal_length, "accepted")),
    _Proxy(
        "uniform_start_length",
        "DeepSpec tau_greedy; SpecForge accept_len",
        True,
        "accepted_lengths",
        _over_starts("accepted_lengths"),
    ),
    _Proxy("iid_overlap", "calculators, alpha = mean overlap", True, "overlap", _iid("overlap"), "rejection"),
    _Proxy("iid_acceptance", "DSI, alpha = mean acceptance", True, "accepted", _iid("accepted")),
)


@dataclass(frozen=True, eq=False, repr=False)
class Proxies:
    """Peers' proxies of one contender beside its exact figure. Made by ``proxies``.

    Parameters
    ----------
    contender : str
    rule : str
        The rule that decided.
    draft_length : int
    exactness : {"exact", "bound", "heuristic", "teacher-forced"}
        Of the exact figure.
    first_start : int
    ids, benchmarks : tuple of str, (R,)
    committed, rounds : ndarray, (R,)
        Tokens to decode and expected rounds.
    sums : mapping of str to ndarray
        What the proxies are made of, summed over the starts of each rollout: ``observed``, ``accepted`` and, where
        recorded, ``hits`` and ``overlap``, by depth (R, K); ``starts`` and the `metrics.start_lengths` of these three,
        ``accepted_lengths`` and so on (R,).
    alpha_depths : int
        Depths that a mean acceptance is over: 1 for an autoregressive drafter, whose acceptance at depth 1 is that of
        the position, else ``K``.
    missing : mapping of str to str
        Sums that the record does not give, and why.
    assumed : tuple of str
        Rules whose acceptance is the contender's own.
    """

    contender: str
    rule: str
    draft_length: int
    exactness: Exactness
    first_start: int
    ids: tuple[str, ...]
    benchmarks: tuple[str, ...]
    committed: Array
    rounds: Array
    sums: Mapping[str, Array]
    alpha_depths: int
    missing: Mapping[str, str]
    assumed: tuple[str, ...]

    def to_frame(self, *, by: Literal["benchmark"] | None = None) -> pl.DataFrame:
        """Give one row per proxy.

        Parameters
        ----------
        by : {"benchmark"}, optional
            One row for each benchmark and proxy.

        Returns
        -------
        polars.DataFrame
            contender, [benchmark,] proxy, peer, bonus (whether the target's own token counts), value, exact (in the
            same counting), error (``value / exact - 1``), exactness, note. A proxy that needs what was not recorded is
            null, and the note says why; it also names the rule that a proxy assumes where another one decides.

        Raises
        ------
        RequestError
            If ``by`` is unknown.
        """
        if by not in (None, "benchmark"):
            raise RequestError(f"by: found {by!r}; allowed: None or 'benchmark'")
        if by is None:
            return pl.DataFrame(self._rows(np.ones(len(self.ids), dtype=bool)), schema=_schema(by))
        names = np.array(self.benchmarks, dtype=object)
        rows = [
            {"benchmark": name, **row} for name in dict.fromkeys(self.benchmarks) for row in self._rows(names == name)
        ]
        return pl.DataFrame(rows, schema=_schema(by))

    def _rows(self, chosen: npt.NDArray[np.bool_]) -> list[dict[str, Any]]:
        totals: dict[str, Any] = {name: values[chosen].sum(0) for name, values in self.sums.items()}
        totals["alpha_depths"] = self.alpha_depths
        tokens, rounds = self.committed[chosen], self.rounds[chosen]
        rows = []
        for proxy in PROXIES:
            value = None if proxy.reads in self.missing else proxy.value(totals)
            exact = pooled_length(tokens, rounds) if proxy.bonus else drafts_only_length(tokens, rounds)
            rows.append(
                {
                    "contender": self.contender,
                    "proxy": proxy.name,
                    "peer": proxy.peer,
                    "bonus": proxy.bonus,
                    "value": value,
                    "exact": exact,
                    "error": value / exact - 1 if value is not None and exact else None,
                    "exactness": self.exactness,
                    "note": self._note(proxy, value, totals),
                }
            )
        return rows

    def _note(self, proxy: _Proxy, value: float | None, totals: Totals) -> str | None:
        if proxy.reads in self.missing:
            return self.missing[proxy.reads]
        if value is None:
            unseen = np.flatnonzero(totals["observed"] == 0)
            depth = f"depth {unseen[0] + 1}" if unseen.size else "a draft"
            return f"{depth} was seen from 0 of {int(totals['starts'])} starts"
        if proxy.assumes is not None and proxy.assumes not in self.assumed:
            return f"assumes rule {proxy.assumes}; rule {self.rule} decides"
        return None

    def __repr__(self) -> str:
        length = pooled_length(self.committed, self.rounds)
        shown = "no rounds" if length is None else f"{length:.4f} tokens per round"
        errors = [
            f"{row['proxy']} {'null' if row['error'] is None else format(row['error'], '+.1%')}"
            for row in self._rows(np.ones(len(self.ids), dtype=bool))
        ]
        return (
            f"Proxies({self.contender}: {shown} ({self.exactness}; rule {self.rule}, K={self.draft_length}); "
            f"{', '.join(errors)})"
        )

    def _repr_html_(self) -> str:
        rows = self._rows(np.ones(len(self.ids), dtype=bool))
        shown = [
            (
                row["proxy"],
                row["peer"],
                "yes" if row["bonus"] else "no",
                *("-" if row[name] is None else f"{row[name]:.4f}" for name in ("value", "exact")),
                "-" if row["error"] is None else f"{row['error']:+.1%}",
            )
            for row in rows
        ]
        told = f"{self.contender}: rule {self.rule}, K={self.draft_length}, {self.exactness}"
        table = html_table(Cells(("proxy", "of", "bonus", "value", "exact", "error"), "lllrrr", shown))
        return html_lines([told]) + table + html_lines(f"{row['proxy']}: {row['note']}" for row in rows if row["note"])


def proxies(store: Store | str | Path, contender: Contender | str, *, first_start: int = 0) -> Proxies:
    """Compute what peers would print for a contender, beside the exact figure.

    Parameters
    ----------
    store : Store or path
    contender : Contender or str
        A drafter's name, ``"block:K=7"``, ``"quant5:K=4,rule=block"``, or a `Contender`.
    first_start : int
        0: the first token is drafted too; 1: the prefill emits it, and no proxy reads the start before it.

    Returns
    -------
    Proxies
        ``metrics.proxies`` tells what each one is, whose it is and what it gets wrong.

    Raises
    ------
    RequestError
        If the store has no such drafter, its record is shorter than the draft length, or it lacks what the rule needs.
    ValueError
        If the store is damaged.

    Notes
    -----
    ``O(N K)``; laws and cells are made for chunks of rollouts of at most 64 MB each.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> drafts = ms.Drafts("d", "autoregressive", "rejection", np.log(np.full(5, .25)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.arange(5),
    ...         indptr=[0, 5], log_p=np.log(np.full(5, .5)), drafters={"d": drafts})
    ...     ms.proxies(store, "d:K=2")
    Proxies(d:K=2: 1.5686 tokens per round (exact; rule rejection, K=2); eal null, tau null, marginal_length +11.6%,
    uniform_start_length +8.4%, iid_overlap null, iid_acceptance +11.6%)
    """
    store = store if isinstance(store, Store) else open_store(store)
    chunks: list[dict[str, Array]] = []
    for chosen in plans(store, contender):
        start = check_first_start(first_start, len(chosen.rollouts.tokens))
        columns, missing = _columns(chosen)
        names = {name: np.array(getattr(chosen.rollouts, name), dtype=object) for name in ("ids", "benchmarks")}
        parts = [_sums(chosen, columns, first, last, start) for first, last in chosen.chunks()]
        chunks.append({name: np.concatenate([part[name] for part in parts]) for name in parts[0]} | names)
    sums = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    return Proxies(
        contender=str(chosen.contender),
        rule=chosen.rule,
        draft_length=chosen.draft_length,
        exactness=RULES[chosen.rule].exactness,
        first_start=first_start,
        ids=tuple(sums.pop("ids").tolist()),
        benchmarks=tuple(sums.pop("benchmarks").tolist()),
        committed=sums.pop("committed"),
        rounds=sums.pop("rounds"),
        sums=sums,
        alpha_depths=1 if chosen.drafts.kind == "autoregressive" else chosen.draft_length,
        missing=missing,
        # The overlap with a one-hot draft is the chance that the target draws it.
        assumed=(chosen.rule, "rejection") if chosen.drafts.rule == "match" else (chosen.rule,),
    )


def proxies_frame(
    store: Store | str | Path,
    contenders: Iterable[Contender | str],
    *,
    by: Literal["benchmark"] | None = None,
    first_start: int = 0,
) -> pl.DataFrame:
    """Give the proxies of several contenders, one row for each contender and proxy.

    Parameters
    ----------
    store : Store or path
    contenders : iterable of Contender or str
    by : {"benchmark"}, optional
        One row for each contender, benchmark and proxy.
    first_start : int
        As in `proxies`.

    Returns
    -------
    polars.DataFrame
        As from ``Proxies.to_frame``.

    Raises
    ------
    RequestError, ValueError
        As `proxies`.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> drafts = ms.Drafts("d", "autoregressive", "rejection", np.log(np.full(5, .25)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.arange(5),
    ...         indptr=[0, 5], log_p=np.log(np.full(5, .5)), drafters={"d": drafts})
    ...     frame = proxies_frame(store, ["d:K=1", "d:K=2"])
    >>> frame.filter(frame["proxy"] == "marginal_length")["value"].to_list()
    [1.5, 1.75]
    """
    store = store if isinstance(store, Store) else open_store(store)
    frames = [proxies(store, contender, first_start=first_start).to_frame(by=by) for contender in contenders]
    return pl.concat(frames) if frames else pl.DataFrame(schema=_schema(by))


def _columns(chosen: Plan) -> tuple[dict[str, Array], dict[str, str]]:
    """Read what proxies need beside the law, and tell what they lack."""
    store, drafts, name = chosen.store, chosen.drafts, chosen.drafts.name
    columns: dict[str, Array] = {}
    missing: dict[str, str] = {}
    if drafts.rank is not None:
        columns["hits"] = drafts.rank == 1
    elif drafts.rule == "match":
        columns["hits"] = drafts.log_q == 0
    else:
        missing["hits"] = f"needs the rank of drafter {name!r}, which was not recorded"
    parts = store.drafter_part(name, "divergence") if "divergence" in store.drafter_parts(name) else {}
    if "overlap" in parts:
        columns["overlap"] = parts["overlap"]
    else:
        why = f"needs the overlap of drafter {name!r}, which was not recorded"
        missing |= {"overlap": why, "overlap_lengths": why}
    if chosen.rule == "block":
        missing["accepted"] = "rule block judges a depth together with those before it: no acceptance by depth"
    return columns, missing


def _sums(chosen: Plan, columns: Mapping[str, Array], first: int, last: int, first_start: int) -> dict[str, Array]:
    """Sum over the starts of each rollout of a range."""
    offsets = chosen.rollouts.indptr[first : last + 1]
    rows = slice(int(offsets[0]), int(offsets[-1]))
    indptr, width = offsets - offsets[0], chosen.draft_length
    begun = np.arange(indptr[-1]) - np.repeat(indptr[:-1], np.diff(indptr)) >= first_start
    observed = cells_inside(indptr, width) & begun[:, None]
    drafted = cells_inside(indptr, width, chosen.lengths(rows)) & begun[:, None]
    law = chosen.law(first, last)
    solved = solve(law, first_start=first_start)
    sums = {"committed": solved.committed, "rounds": solved.expected}
    sums |= {"starts": _rollout_sums(begun, indptr), "observed": _rollout_sums(observed, indptr)}
    recorded = {name: values[rows] for name, values in columns.items()}
    for name, values in {"accepted": law.accept, **recorded}.items():
        # A sum over a vocabulary may end a little above 1.
        cells = np.where(drafted, np.minimum(_by_start(values, width), 1), 0)
        sums[name] = _rollout_sums(cells, indptr)
        sums[f"{name}_lengths"] = _rollout_sums(np.where(begun, start_lengths(cells), 0), indptr)
    return sums


def _schema(by: str | None) -> dict[str, Any]:
    texts = ("contender", *([by] if by else []), "proxy", "peer")
    figures = {"bonus": pl.Boolean, "value": pl.Float64, "exact": pl.Float64, "error": pl.Float64}
    return {**dict.fromkeys(texts, pl.String), **figures, "exactness": pl.String, "note": pl.String}


def _by_start(values: Array, width: int) -> Array:
    # Depth k from start s is at position s+k-1 where a value belongs to a position.
    if values.ndim == 1:
        at = np.arange(len(values))[:, None] + np.arange(width)
        wide: Array = values[np.minimum(at, max(len(values) - 1, 0))]
        return wide
    return np.pad(values[:, :width], ((0, 0), (0, max(width - values.shape[1], 0))))


def _rollout_sums(values: Array, indptr: Array) -> npt.NDArray[np.float64]:
    out = np.zeros((indptr.size - 1, *values.shape[1:]))
    filled = np.diff(indptr) > 0
    if filled.any():
        out[filled] = np.add.reduceat(values, indptr[:-1][filled], axis=0, dtype=np.float64)
    return out
