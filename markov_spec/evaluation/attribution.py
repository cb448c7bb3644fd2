"""Where the difference of two contenders' rounds comes from: depths, benchmarks, tokens, starts and rollouts.

``chain.attribution`` splits the difference of expected rounds over starts ``s`` and depths ``k``; its cells are summed
here. A cell belongs to the token that is drafted there, at position ``s+k-1``, and in ``starts`` to the start of the
round, ``s``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from markov_spec.acceptance import RULES
from markov_spec.arrays import Exactness, check_integer
from markov_spec.comparison.cells import NONE, Cells, html_lines, html_table
from markov_spec.evaluation.attributed import AttributedSums
from markov_spec.evaluation.contender import Contender, as_contender
from markov_spec.evaluation.laws import space_notes
from markov_spec.evaluation.learned import LEARNED_HERE, is_learned
from markov_spec.evaluation.tracing import range_law, range_rows, settled_on
from markov_spec.store import Store, open_store

FRAMES = ("by_depth", "by_benchmark", "by_class", "starts", "rollouts")


@dataclass(frozen=True, eq=False, repr=False)
class Attribution:
    """Where the difference of the expected rounds of two contenders comes from. Made by ``attribute``.

    Rounds of the second contender, ``b``, less those of the first, ``a``: what is positive costs ``b`` more.

    Parameters
    ----------
    contenders : tuple of str
        ``a`` and ``b``.
    rounds : tuple of float
        Expected rounds of each.
    difference : float
    tokens : int
        Committed in rounds.
    first_start : int
    exactness : {"exact", "bound", "heuristic", "teacher-forced"}
        The weaker of the two contenders' figures.
    per_rollout : polars.DataFrame
        A row for each rollout: rollout, prompt, benchmark, tokens, rounds_a, rounds_b, difference.
    by_depth : polars.DataFrame
        depth, tested_a, tested_b (expected rounds that test it), acceptance_a, acceptance_b (share of these that accept
        it, null without any), attributed (rounds), share (of the difference, null if there is none).
    by_benchmark : polars.DataFrame
        benchmark, rollouts, tokens, rounds_a, rounds_b, attributed, share.
    by_class : polars.DataFrame
        Classes of the drafted tokens: kind, class, tokens, and as ``by_depth``, tests at all depths. Kinds are
        ``"position"`` in the rollout, ``"entropy"`` of the target (nats; of a greedy one that of the plain softmax),
        ``"margin"``, its largest probability less the second (plain softmax, where lists are recorded), and ``"text"``.
    starts : polars.DataFrame
        Where ``b`` loses most: rollout, benchmark, position, before, after (text), occupancy_a, occupancy_b
        (probability that a round starts there), accepted_a, accepted_b (expected accepted drafts of a round from
        there), attributed.
    rollouts : polars.DataFrame
        Those that differ most either way: columns of ``per_rollout``, and text, their beginning.
    notes : tuple of str
        What was not recorded, and warnings.

    Notes
    -----
    ``attributed`` sums to the difference in ``by_depth``, ``by_benchmark`` and each kind of ``by_class``.
    """

    contenders: tuple[str, str]
    rounds: tuple[float, float]
    difference: float
    tokens: int
    first_start: int
    exactness: Exactness
    per_rollout: pl.DataFrame
    by_depth: pl.DataFrame
    by_benchmark: pl.DataFrame
    by_class: pl.DataFrame
    starts: pl.DataFrame
    rollouts: pl.DataFrame
    notes: tuple[str, ...]

    @property
    def headline(self) -> str:
        """What the difference is, and where most of it comes from."""
        (a, b), (less, more) = self.contenders, self.rounds
        told = f"{more:.2f} against {less:.2f}, {self.exactness}"
        if round(self.difference, 2) == 0:
            return f"{b} takes as many rounds as {a} ({told})"
        way = "more" if self.difference > 0 else "fewer"
        return f"{b} takes {abs(self.difference):.2f} rounds {way} than {a} ({told}){self._most()}"

    def _most(self) -> str:
        texts, way = self.by_class.filter(pl.col("kind") == "text"), math.copysign(1, self.difference)
        groups = [(self.by_depth, "depth", "at depth {}"), (self.by_benchmark, "benchmark", "in {}")]
        told = []
        for frame, name, words in [*groups, (texts, "class", "on tokens of class {}")]:
            if len(frame) > 1:
                top = frame.sort(pl.col("attributed") * way, descending=True).row(0, named=True)
                told.append(f"{words.format(top[name])} ({top['attributed']:+.2f})")
        return "; most " + ", ".join(told) if told else ""

    def to_frame(self) -> pl.DataFrame:
        """Give one row per rollout: ``per_rollout``."""
        return self.per_rollout

    def __repr__(self) -> str:
        return f"Attribution({self.headline})"

    def _repr_html_(self) -> str:
        parts = [html_lines([self.headline])]
        for name in FRAMES:
            parts.append(f"<h4>{name.replace('_', ' ')}</h4>{html_table(self._cells(getattr(self, name)))}")
        return "".join(parts) + html_lines(f"note: {note}" for note in self.notes)

    def _cells(self, frame: pl.DataFrame) -> Cells:
        """Give a frame with the contenders' names in the heads of their columns, and its figures rounded."""
        named = {"_a": self.contenders[0], "_b": self.contenders[1]}
        titles = [
            f"{name[:-2]}, {named[name[-2:]]}" if name[-2:] in named else name.replace("attributed", "difference")
            for name in frame.columns
        ]
        sides = "".join("r" if kind.is_numeric() else "l" for kind in frame.dtypes)
        rows = [tuple(map(_shown, frame.columns, row)) for row in frame.rows()]
        return Cells(tuple(titles), sides, rows)


def _shown(name: str, value: Any) -> str:
    if value is None:
        return NONE
    if not isinstance(value, float):
        return str(value)
    form = {"share": ".1%", "attributed": "+.3f", "difference": "+.3f"}.get(name, ".4f" if "accept" in name else ".2f")
    return format(value, form)


def attribute(
    store: Store | str | Path,
    a: Contender | str,
    b: Contender | str,
    *,
    first_start: int = 0,
    count: int = 20,
) -> Attribution:
    """Tell where the difference of two contenders' expected rounds comes from.

    Parameters
    ----------
    store : Store or path
    a, b : Contender or str
        Chains, lengths, rules and trees mixed freely, as in `evaluate`.
    first_start : int
        0 when the first token is drafted too, 1 when the prefill emits it.
    count : int
        Starts and rollouts to show at most.

    Returns
    -------
    Attribution

    Raises
    ------
    RequestError, ValueError
        As `evaluate`; if ``count`` is no integer of 0 or more.

    Notes
    -----
    ``O(N K)`` time. The store is read range by range, some 64 MB of drafts at a time, so memory grows with the number
    of rollouts and not with their tokens. Along the telescoping sum of ``chain.attribution``: decode by one law up to
    some draft and by the other from then on, in both orders, and take the mean. Contenders that change places change
    its sign. Source: as there.

    Examples
    --------
    >>> import markov_spec as ms
    >>> found = ms.attribute("data/demo", "drop1", "quant5")
    >>> print(found)
    Attribution(quant5 takes 88.17 rounds more than drop1 (2793.75 against 2705.58, exact); most at depth 2 (+29.59),
    in chat (+52.88), on tokens of class word (+72.24))
    >>> abs(found.by_depth["attributed"].sum() - found.difference) < 1e-9
    True
    """
    opened = store if isinstance(store, Store) else open_store(store)
    check_integer(count, "count", 0)
    given = as_contender(a), as_contender(b)
    pair = [settled_on(opened, one) for one in given]
    sums, rows = AttributedSums(opened, first_start, count), range_rows(opened, pair)
    for batch in opened.batches(rows) if len(opened) else (opened,):
        sums.add(batch, [range_law(batch, one) for one in pair])
    per_rollout = sums.per_rollout
    less, more = (math.fsum(per_rollout[name]) for name in ("rounds_a", "rounds_b"))
    difference = math.fsum(per_rollout["difference"])
    notes = [f"{one}: {note}" for i, one in enumerate(given) for note in _notes(opened, one, sums, i)]
    return Attribution(
        contenders=(str(given[0]), str(given[1])),
        rounds=(less, more),
        difference=difference,
        tokens=int(per_rollout["tokens"].sum()),
        first_start=first_start,
        exactness=sums.exactness,
        per_rollout=per_rollout,
        by_depth=sums.by_depth(difference),
        by_benchmark=sums.by_benchmark(difference),
        by_class=sums.by_class(difference),
        starts=sums.starts,
        rollouts=sums.rollouts,
        notes=(*dict.fromkeys(notes), *sums.classes.notes()),
    )


def _notes(store: Store, contender: Contender, sums: AttributedSums, which: int) -> Iterator[str]:
    rule, unsure = sums.rules[which], sums.unsure[which]
    yield from space_notes(store, contender.drafter, rule)
    if is_learned(contender):
        yield LEARNED_HERE
    if unsure:
        yield f"lists are too short to tell the tree of {unsure:.2f} expected rounds"
    if RULES[rule].exactness == "teacher-forced":
        yield "teacher-forced, as its rule accepts drafts that the target did not choose"
