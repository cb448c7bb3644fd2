"""Whether two passes over the same tokens agree on their log-probabilities, and where two streams of tokens part.

Serving stacks return other log-probabilities for the same tokens from run to run, and for some requests of a run only;
drafters evaluated on different passes are then not compared on the same target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from markov_spec.arrays import Array
from markov_spec.sources.exchange.faults import Log, counted
from markov_spec.sources.exchange.headers import read_rollouts_header
from markov_spec.sources.exchange.lines import read_lines
from markov_spec.sources.exchange.names import read_named
from markov_spec.sources.exchange.rows import read_rollout
from markov_spec.store import Store, open_store

Scores = Mapping[str, tuple[Array, Array]]


@dataclass(frozen=True, eq=False, repr=False)
class ScoreComparison:
    """How far apart two passes are on each rollout. Made by ``compare_scores``.

    Parameters
    ----------
    ids : tuple of str, (R,)
    largest : ndarray of float64, (R,)
        Largest absolute difference of two log-probabilities of one token, nats; 0 for a rollout without tokens.
    mean : ndarray of float64, (R,)
        Mean absolute difference, nats for each token.
    tolerance : float
    """

    ids: tuple[str, ...]
    largest: npt.NDArray[np.float64]
    mean: npt.NDArray[np.float64]
    tolerance: float

    @property
    def differing(self) -> tuple[str, ...]:
        """Rollouts beyond the tolerance, the farthest first."""
        order = np.argsort(-self.largest, kind="stable")
        return tuple(self.ids[i] for i in order if self.largest[i] > self.tolerance)

    @property
    def largest_difference(self) -> float:
        """Largest absolute difference over all rollouts, nats."""
        return float(self.largest.max(initial=0))

    def to_frame(self) -> pl.DataFrame:
        """Give a row for each rollout."""
        differs = self.largest > self.tolerance
        return pl.DataFrame({"rollout_id": self.ids, "largest": self.largest, "mean": self.mean, "differs": differs})

    def __repr__(self) -> str:
        names = ", ".join(f"{name!r}" for name in self.differing[:5]) + ", ..." * (len(self.differing) > 5)
        return (
            f"ScoreComparison({len(self.differing)} of {len(self.ids)} rollouts differ by more than {self.tolerance:g} "
            f"nats{f': {names}' if names else ''}; largest difference {self.largest_difference:.4g})"
        )


def compare_scores(one: Store | str | Path, other: Store | str | Path, *, tolerance: float = 0.05) -> ScoreComparison:
    """Compare the log-probabilities of two passes over the same rollouts, matched by id.

    Parameters
    ----------
    one, other : Store or path
        Stores, or JSON lines of rollouts as ``import_jsonl`` reads them.
    tolerance : float
        Largest difference of a token's log-probabilities, in nats, that counts as agreement.

    Returns
    -------
    ScoreComparison

    Raises
    ------
    ValueError
        If ids or tokens differ, naming the first: then these are not the same rollouts.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     given = dict(rollout_ids=["a", "b"], prompt_ids=["p", "q"], tokens=np.array([5, 6, 7]), indptr=[0, 1, 3])
    ...     one = ms.write_store(f"{folder}/one", log_p=np.array([-.5, -.2, -.3]), **given)
    ...     other = ms.write_store(f"{folder}/other", log_p=np.array([-.5, -5.2, -5.3]), **given)
    ...     ms.compare_scores(one, other)
    ScoreComparison(1 of 2 rollouts differ by more than 0.05 nats: 'b'; largest difference 5)
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance: found {tolerance}; allowed: 0 nats or more")
    first, second = _scores(one), _scores(other)
    for name in [*first, *second]:
        if name not in first or name not in second:
            where = one if name in first else other
            raise ValueError(f"rollout {name!r}: found in {_name(where)} only; allowed: the same rollouts in both")
    largest, mean = np.zeros(len(first)), np.zeros(len(first))
    for i, (name, (tokens, log_p)) in enumerate(first.items()):
        others, other_log_p = second[name]
        parted = first_divergence(tokens, others, np.zeros(tokens.size))
        if parted is not None:
            raise ValueError(
                f"rollout {name!r}: tokens differ from position {parted.position} on; allowed: the same tokens in both"
            )
        apart = np.abs(log_p.astype(np.float64) - other_log_p)
        largest[i], mean[i] = apart.max(initial=0), apart.mean() if apart.size else 0
    return ScoreComparison(tuple(first), largest, mean, float(tolerance))


def _name(source: Store | str | Path) -> str:
    return str(source.path if isinstance(source, Store) else source)


def _scores(source: Store | str | Path) -> Scores:
    """Tokens and log-probabilities of each rollout."""
    if not isinstance(source, Store) and Path(source).is_file():
        log, lines = Log("strict"), read_lines(Path(source), Log("strict"))
        header = read_rollouts_header(next(lines), log)
        rows = read_named(lines, "error", log, lambda name, line: read_rollout(line, name, header, log))
        return {name: (row.generated.tokens, row.log_p) for name, row in rows.items()}
    rollouts = (source if isinstance(source, Store) else open_store(source)).rollouts()
    cuts = rollouts.indptr[1:-1]
    tokens, log_p = np.split(rollouts.tokens, cuts), np.split(rollouts.log_p, cuts)
    return dict(zip(rollouts.ids, zip(tokens, log_p, strict=True), strict=True)) if rollouts.ids else {}


@dataclass(frozen=True)
class Divergence:
    """Where two streams of tokens part. Made by ``first_divergence``.

    Parameters
    ----------
    position : int
        Tokens that are equal before it.
    kind : {"tie", "real", "end"}
        Whether the two likeliest tokens were about equally likely there; ``"end"``: one stream is the beginning of the
        other.
    gap : float or None
        Top-2 gap there, nats; None at an end.
    """

    position: int
    kind: Literal["tie", "real", "end"]
    gap: float | None


def first_divergence(
    one: Sequence[int] | Array, other: Sequence[int] | Array, gaps: Any, *, threshold: float = 0.05
) -> Divergence | None:
    """Find where two greedy streams of tokens part, and whether a tie can explain it.

    Beyond that position the streams answer different contexts and are not to be paired.

    Parameters
    ----------
    one, other : sequence of int, (T,) and (U,)
    gaps : array of float
        The target's top-2 gap at each position of the common beginning and at the one after it: the log-probability of
        its likeliest token less that of the second, nats.
    threshold : float
        Largest gap, in nats, that rounding may turn over.

    Returns
    -------
    Divergence or None
        None if the streams are equal.

    Raises
    ------
    ValueError
        If there is no gap of 0 or more at the position.

    Examples
    --------
    >>> import markov_spec as ms
    >>> ms.first_divergence([4, 8, 15], [4, 8, 16], [2.0, 1.0, 0.0])
    Divergence(position=2, kind='tie', gap=0.0)
    """
    first, second, spread = np.asarray(one), np.asarray(other), np.asarray(gaps, dtype=np.float64)
    shared = min(first.size, second.size)
    apart = np.flatnonzero(first[:shared] != second[:shared])
    if not apart.size:
        return None if first.size == second.size else Divergence(shared, "end", None)
    position = int(apart[0])
    if position >= spread.size or not spread[position] >= 0:
        found = spread[position] if position < spread.size else counted(spread.size, "gap")
        raise ValueError(f"gaps: position {position}: found {found}; allowed: a top-2 gap of 0 nats or more")
    gap = float(spread[position])
    return Divergence(position, "tie" if gap <= threshold else "real", gap)
