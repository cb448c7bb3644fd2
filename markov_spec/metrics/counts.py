"""Rounds that an engine logged: validated counts, and every figure under its own name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from markov_spec.metrics.aggregates import pooled_length
from markov_spec.metrics.rates import conditional_rates, draft_acceptance, unconditional_rates

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class RoundCounts:
    """Counts of measured rounds. Made by ``from_accepted`` or ``from_histogram``.

    Parameters
    ----------
    histogram : ndarray of int64, (K+1,)
        Rounds that accept exactly 0..K drafts.
    committed : int
        Tokens that the rounds deliver.
    proposed : int or None
        Drafts that were verified; None if the log does not say.
    drafted : int or None
        Drafts that were made: those proposed and those dropped unverified.
    drafted_rounds : int or None
        Rounds with a verified draft.
    tested : ndarray of int64, (K,), or None
        Rounds that propose depth ``k`` and accept the ``k-1`` drafts before it: what a conditional rate rests on.
    turns : tuple of tuple of int
        Accepted drafts by turn and round, in order; empty if only a histogram was given.
    findings : tuple of str
        What looks wrong in the log though it is possible.
    """

    histogram: Integers
    committed: int
    proposed: int | None = None
    drafted: int | None = None
    drafted_rounds: int | None = None
    tested: Integers | None = None
    turns: tuple[tuple[int, ...], ...] = ()
    findings: tuple[str, ...] = ()

    @classmethod
    def from_accepted(
        cls,
        accepted: Sequence[Any],
        proposed: Any = None,
        *,
        bonus: Literal["excluded", "included"],
        skipped: Sequence[Any] | None = None,
        dropped: Sequence[Any] | None = None,
        draft_tokens: Sequence[Any] | None = None,
        committed: Sequence[Any] | None = None,
        end_token: Literal["accepted", "target"] = "accepted",
    ) -> RoundCounts:
        """Count rounds given one by one, as a flat list or as one list for each turn.

        Parameters
        ----------
        accepted : sequence of int, or of such sequences
            For each round its accepted drafts, or its length with the target's own token: see ``bonus``.
        proposed : int, or as ``accepted``, optional
            Drafts of each round; by default as many as it has draft tokens, else unknown.
        bonus : {"excluded", "included"}
            Whether ``accepted`` holds the target's own token.
        skipped, dropped : as ``accepted``, of bool, optional
            Rounds whose drafter did not run, and rounds whose drafts were made but not verified.
        draft_tokens : as ``accepted``, of sequences of int, optional
            Token ids of the drafts. A round of zeros, none accepted, is a finding: it may be padding.
        committed : as ``accepted``, optional
            Tokens that each round delivers, see `committed_lengths`. A round cut at the end of the rollout counts no
            draft past it, neither as accepted nor as proposed.
        end_token : {"accepted", "target"}
            Whether the last token of a cut round counts as an accepted draft or as the target's own.

        Returns
        -------
        RoundCounts

        Raises
        ------
        ValueError
            Naming the round whose numbers are impossible: a length of 0 with the target's token, more accepted than
            proposed, an accepted draft in a skipped or dropped round.

        Examples
        --------
        >>> counts = RoundCounts.from_accepted([3, 1, 1, 0], [3, 1, 3, 0], bonus="excluded")
        >>> counts.length, counts.conditional, counts.tested
        (2.25, [1.0, 0.5, 1.0], array([3, 2, 1]))
        """
        for name, value, allowed in (
            ("bonus", bonus, ("excluded", "included")),
            ("end_token", end_token, ("accepted", "target")),
        ):
            if value not in allowed:
                raise ValueError(f"{name}: found {value!r}; allowed: {allowed[0]!r}, {allowed[1]!r}")
        shape = _Shape(accepted)
        own = int(bonus == "included")
        taken = shape.integers("accepted", accepted, least=own, why=" with the target's token" * own) - own
        ids = None if draft_tokens is None else shape.flat("draft_tokens", draft_tokens)
        made = _made(shape, proposed, ids)
        passed, lost = (shape.flags(name, flags) for name, flags in (("skipped", skipped), ("dropped", dropped)))
        findings = () if ids is None else _zero_drafts(ids, taken, passed)
        shape.refuse((passed | lost) & (taken > 0), "accepted", taken, "0 in a skipped or dropped round")
        if made is not None:
            made = np.where(passed, 0, made)
            shape.refuse(taken > np.where(lost, 0, made), "accepted", taken, "at most the drafts proposed", made)
        delivered = taken + 1
        if committed is not None:
            delivered = shape.integers("committed", committed, least=1)
            shape.refuse(delivered > taken + 1, "committed", delivered, "at most the accepted drafts and one")
            cut = delivered <= taken
            shape.refuse(cut & ~shape.last(), "committed", delivered, "all of a round that is not the last of its turn")
            taken = np.where(cut, delivered - (end_token == "target"), taken)
            made = None if made is None else np.where(cut, taken, made)
        return _count(taken, made, lost, int(delivered.sum()), shape.turns(taken), findings)

    @classmethod
    def from_histogram(
        cls,
        histogram: Sequence[int] | Integers,
        *,
        draft_length: int,
        completion: int | None = None,
        accepted: int | None = None,
        proposed: int | None = None,
        rounds: int | None = None,
    ) -> RoundCounts:
        """Take a histogram of rounds that all propose ``draft_length`` drafts, and check the counters beside it.

        Parameters
        ----------
        histogram : sequence of int, (K+1,)
            Rounds that accept exactly 0..K drafts.
        draft_length : int
            ``K``.
        completion, accepted, proposed, rounds : int, optional
            Counters of the same rounds: tokens (none from the prefill, none cut off), accepted drafts, proposed
            drafts, rounds.

        Returns
        -------
        RoundCounts

        Raises
        ------
        ValueError
            If the histogram is no histogram of ``K`` drafts, or naming each counter that differs from it.

        Examples
        --------
        >>> RoundCounts.from_histogram([11, 14, 11, 4, 0, 3], draft_length=5, completion=106)
        RoundCounts(43 rounds, 63 of 215 drafts accepted, 2.465116 tokens per round)
        """
        found = np.asarray(histogram)
        if found.shape != (draft_length + 1,) or found.dtype.kind not in "iu" or (found < 0).any():
            raise ValueError(f"histogram: found {histogram}; allowed: {draft_length + 1} integers >= 0")
        found = found.astype(np.int64)
        count, total = int(found.sum()), int(found @ np.arange(draft_length + 1))
        identities = {
            "rounds": (rounds, count, "the sum of the histogram"),
            "accepted": (accepted, total, "the sum of k times the histogram"),
            "proposed": (proposed, count * draft_length, f"{draft_length} drafts in each round"),
            "completion": (completion, total + count, "accepted drafts and one token for each round"),
        }
        wrong = [
            f"{name}: found {given}; allowed: {right}, {why}"
            for name, (given, right, why) in identities.items()
            if given not in (None, right)
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        return cls(
            found,
            total + count,
            proposed=count * draft_length,
            drafted=count * draft_length,
            drafted_rounds=count if draft_length else 0,
            tested=np.cumsum(found[::-1])[::-1][:-1],
        )

    @property
    def rounds(self) -> int:
        """Rounds, those without drafts too."""
        return int(self.histogram.sum())

    @property
    def accepted(self) -> int:
        """Accepted drafts."""
        return int(self.histogram @ np.arange(self.histogram.size))

    @property
    def length(self) -> float | None:
        """Pooled length: tokens delivered per round, over all rounds."""
        return pooled_length(self.committed, self.rounds)

    @property
    def untrimmed_length(self) -> float | None:
        """``1 + accepted / rounds``."""
        return pooled_length(self.accepted + self.rounds, self.rounds)

    @property
    def drafted_length(self) -> float | None:
        """Tokens delivered per round with a verified draft, over these rounds; None if the log does not say."""
        if self.drafted_rounds is None:
            return None
        return pooled_length(self.committed - (self.rounds - self.drafted_rounds), self.drafted_rounds)

    @property
    def draft_acceptance(self) -> float | None:
        """Accepted drafts per verified draft; None if none was, or the log does not say."""
        return None if self.proposed is None else draft_acceptance(self.accepted, proposed=self.proposed)

    @property
    def drafted_acceptance(self) -> float | None:
        """Accepted drafts per draft made, dropped ones included; None if none was, or the log does not say."""
        return None if self.drafted is None else draft_acceptance(self.accepted, proposed=self.drafted)

    @property
    def unconditional(self) -> list[float | None]:
        """Share of all rounds that accept at least ``k`` drafts, ``k = 1..K``."""
        return unconditional_rates(self.histogram)

    @property
    def conditional(self) -> list[float | None]:
        """Share of the ``tested`` rounds that accept depth ``k``, ``k = 1..K``; None where there are none."""
        if self.tested is None:
            return [None] * (self.histogram.size - 1)
        return conditional_rates(self.histogram, self.tested)

    def __repr__(self) -> str:
        of = "" if self.proposed is None else f" of {self.proposed}"
        length = "no length" if self.length is None else f"{self.length:.6f} tokens per round"
        return f"RoundCounts({self.rounds} rounds, {self.accepted}{of} drafts accepted, {length})"


class _Shape:
    # Reads what is given by round, flat or by turn, as one flat vector; errors name turn and round.
    def __init__(self, given: Sequence[Any]) -> None:
        self.by_turn = len(given) > 0 and all(isinstance(turn, Sequence | np.ndarray) for turn in given)
        self.sizes = [len(turn) for turn in given] if self.by_turn else [len(given)]

    def last(self) -> npt.NDArray[np.bool_]:
        ends = np.cumsum(self.sizes)[np.array(self.sizes) > 0] - 1
        return np.isin(np.arange(sum(self.sizes)), ends)

    def where(self, i: int) -> str:
        if not self.by_turn:
            return f"round {i}"
        last = np.cumsum(self.sizes)
        turn = int(np.searchsorted(last, i, side="right"))
        return f"turn {turn}, round {i - int(last[turn]) + self.sizes[turn]}"

    def flat(self, name: str, given: Sequence[Any]) -> list[Any]:
        turns = given if self.by_turn else [given]
        sizes = [len(turn) for turn in turns]
        if sizes != self.sizes:
            raise ValueError(f"{name}: found {sizes} rounds by turn; allowed: the {self.sizes} of accepted")
        return [value for turn in turns for value in turn]

    def integers(self, name: str, given: Sequence[Any], *, least: int = 0, why: str = "") -> Integers:
        values = self.flat(name, given)
        for i, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name}: {self.where(i)}: found {value!r}; allowed: integers >= {least}{why}")
        return np.array(values, dtype=np.int64)

    def flags(self, name: str, given: Sequence[Any] | None) -> npt.NDArray[np.bool_]:
        return np.array([False] * sum(self.sizes) if given is None else self.flat(name, given), dtype=bool)

    def refuse(self, bad: Any, name: str, values: Integers, allowed: str, limit: Integers | None = None) -> None:
        if np.any(bad):
            i = int(np.argmax(bad))
            most = "" if limit is None else f", {limit[i]}"
            raise ValueError(f"{name}: {self.where(i)}: found {values[i]}; allowed: {allowed}{most}")

    def turns(self, values: Integers) -> tuple[tuple[int, ...], ...]:
        parts = np.split(values, np.cumsum(self.sizes)[:-1])
        return tuple(tuple(part.tolist()) for part in parts)


def _made(shape: _Shape, proposed: Any, ids: list[Any] | None) -> Integers | None:
    sizes = None if ids is None else np.array([len(tokens) for tokens in ids], dtype=np.int64)
    if proposed is None:
        return sizes
    if isinstance(proposed, int | np.integer):
        proposed = [[proposed] * size for size in shape.sizes] if shape.by_turn else [proposed] * shape.sizes[0]
    made = shape.integers("proposed", proposed)
    if sizes is not None:
        shape.refuse(made != sizes, "proposed", made, "as many as there are draft tokens", sizes)
    return made


def _zero_drafts(ids: list[Any], taken: Integers, passed: npt.NDArray[np.bool_]) -> tuple[str, ...]:
    zeros = [len(tokens) > 0 and not any(tokens) for tokens in ids]
    count = int(np.sum(np.array(zeros, dtype=bool) & (taken == 0) & ~passed))
    if not count:
        return ()
    return (
        f"draft_tokens: {count} rounds of all-zero drafts, none accepted; if the drafter did not run, flag as skipped",
    )


def _count(
    taken: Integers,
    made: Integers | None,
    lost: npt.NDArray[np.bool_],
    committed: int,
    turns: tuple[tuple[int, ...], ...],
    findings: tuple[str, ...],
) -> RoundCounts:
    verified = None if made is None else np.where(lost, 0, made)
    depth = max([0, *taken.tolist(), *([] if verified is None else verified.tolist())])
    histogram = np.bincount(taken, minlength=depth + 1).astype(np.int64)
    if made is None or verified is None:
        return RoundCounts(histogram, committed, turns=turns, findings=findings)
    tested = [int(np.sum((verified >= k) & (taken >= k - 1))) for k in range(1, depth + 1)]
    return RoundCounts(
        histogram,
        committed,
        proposed=int(verified.sum()),
        drafted=int(made.sum()),
        drafted_rounds=int(np.sum(verified > 0)),
        tested=np.array(tested, dtype=np.int64),
        turns=turns,
        findings=findings,
    )
