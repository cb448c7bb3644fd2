"""Whether the law of a drafter is what its own lists give, cell by cell, and how it was made if not.

A token that is entry ``r`` of the list of its start and depth has rank ``r``, one that is not has a rank beyond the
list; its ``log_q`` follows from the list and from how drafts are drawn. Entries that are nearly equal may have changed
places, and passes in half precision differ, so that some cells may be off; a larger share is no accident. Then law,
lists or both are put to where they would belong after each of the usual mistakes, and the one that explains them is
named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from markov_spec.arrays import ABSENT, Array
from markov_spec.store.listed import UNKNOWN_VOCABULARY, Listed
from markov_spec.store.sampled import unlikely
from markov_spec.store.setting import Setting
from markov_spec.store.shifts import WHERE

# Nats by which passes in half precision over the same tokens differ, in units of the temperature.
ROOM = 0.1
# Log-probabilities below are lost where probabilities are kept in half precision.
LOWEST = -14.0
# Of sound cells fewer are off. Fewer cells than the second are not judged.
OFF_SHARE, FEWEST_CELLS = 0.05, 50
# How far multiples of the lists' log-probabilities may be apart, where these are not small.
SCALE_TOLERANCE, SCALED_FROM = 0.02, -0.3
SMALLEST_SCALE = 0.1
GREEDY = Setting(top_k=1)
IN_PLACE_AGAIN = "record them again in place"
NAMES = {"rank": "ranks", "log_q": "log_q"}
TOGETHER = "record law and lists again, in one pass"
CORRECT = "correct the recorded sampling, or store log_q of the distribution that drafts are drawn from"


class Piece(NamedTuple):
    """Drafts of some rollouts, ``K`` of each of ``N`` starts.

    ``ids`` and ``logs`` are lists (N, K, M), ``tail`` (N, K) is the probability outside, ``whole`` (N, K) whether there
    is a list of a distribution. ``proposed`` (N, K) tells the drafts, ``log_q`` (N, K) is NaN past a rollout's end, and
    so is no ``rank`` (N, K) there. ``tokens`` (N,) are the rollouts', ``number`` (N,) tells these apart.
    """

    ids: Array
    logs: Array
    tail: Array
    whole: Array
    proposed: Array
    log_q: Array
    rank: Array | None
    tokens: Array
    number: Array


class Move(NamedTuple):
    """How many rows, rows for each depth before it, and depths a mistake moves what belongs to a start and depth."""

    rows: int = 0
    by_depth: int = 0
    depths: int = 0
    words: str = ""


IN_PLACE = Move()
MOVES = (
    Move(rows=1, words=WHERE[-1]),
    Move(rows=-1, words=WHERE[1]),
    Move(by_depth=1, words="stand by token instead of start: row t holds at each depth what belongs to token t"),
    Move(depths=1, words="stand one depth too deep: depth k holds what belongs to depth k-1"),
    Move(depths=-1, words="stand one depth too early: depth k holds what belongs to depth k+1"),
)


class Cells(NamedTuple):
    """Drafts (n,) with the list beside each, whose ``log_p`` is their ``log_q``, and their rank."""

    listed: Listed
    rank: Array | None


class Off(NamedTuple):
    """Which cells (n,) are off, and which can be judged."""

    off: Array
    judged: Array

    @property
    def share(self) -> float:
        """Of those that can be judged."""
        return float(self.off.sum() / max(self.judged.sum(), 1))

    @property
    def sound(self) -> bool:
        """Whether no more are off than in sound data."""
        off, judged = int(self.off.sum()), int(self.judged.sum())
        return self.share <= OFF_SHARE or not unlikely(off, judged, OFF_SHARE)


Judge = Callable[[Cells], Off]


class Told(NamedTuple):
    """What is wrong, of which part, and whether its cause is known."""

    part: Literal["law", "lists"]
    message: str
    named: bool


@dataclass(frozen=True)
class Drawn:
    """How the metadata of a drafter and of its target say that drafts are drawn, and the drafter's rule."""

    rule: str
    own: Mapping[str, Any]
    target: Mapping[str, Any]

    @property
    def known(self) -> bool:
        """Whether anything is said; a drafter that says nothing draws as the target does."""
        return any(facts.get("sampling") is not None for facts in (self.own, self.target))

    @property
    def vocab_size(self) -> int:
        """The target's, where it is told."""
        return int(self.target.get("vocab_size") or UNKNOWN_VOCABULARY)

    def readings(self, listed: Listed) -> list[Setting]:
        """Settings at which lists may give ``log_q``; none where there are others that settings do not describe.

        Lists are of the plain softmax, or of the distribution that drafts are drawn from.
        """
        told = self.own.get("sampling") is not None
        setting = Setting.of(self.own if told else self.target)
        if setting.other:
            return []
        drawn = setting if setting.random else GREEDY
        out = [GREEDY, drawn] if self.rule == "match" else [drawn]
        if not told and setting.random:  # only the temperature may be the target's
            out.append(Setting(setting.temperature))
        raw = (self.own.get("logprob_space") or self.target.get("logprob_space")) == "raw"
        if self.rule == "match" or raw or not told or listed.may_be_decoded(drawn):
            out.append(Setting())
        return list(dict.fromkeys(out))


def check_law(pieces: Sequence[Piece], drawn: Drawn) -> list[Told] | None:
    """Say what is wrong with a drafter's law beside its lists; None where the two cannot be compared."""
    cells = _cells(pieces, IN_PLACE, IN_PLACE, drawn.vocab_size)
    if len(cells.listed.place) < FEWEST_CELLS:
        return None
    settings = drawn.readings(cells.listed)
    judges: dict[str, Judge] = {} if cells.rank is None else {"rank": _off_rank}
    # A law that is zero throughout is told elsewhere.
    if settings and (drawn.rule == "match" or cells.listed.log_p.any()):
        judges["log_q"] = lambda own: _off_log_q(own, settings)
    found = {name: judge(cells) for name, judge in judges.items()}
    moved: dict[tuple[str, ...], list[str]] = {}
    told: list[Told] = []
    for name, off in found.items():
        if off.sound:
            continue
        cause = _moved(pieces, drawn.vocab_size, judges[name], off)
        if cause is not None:
            moved.setdefault(cause, []).append(NAMES[name])
        elif name == "rank" or drawn.known:
            told.append(_other(cells, off, name, settings, drawn.rule))
    for (part, subject, words), names in moved.items():
        what = subject.format(" and ".join(names[::-1]))
        told.append(Told("lists" if part == "lists" else "law", f"{what} {words}; {IN_PLACE_AGAIN}", True))
    judged = any(off.judged.sum() >= FEWEST_CELLS and off.sound for off in found.values())
    return told if told or judged else None


def _cells(pieces: Sequence[Piece], law: Move, lists: Move, vocab_size: int) -> Cells:
    """Gather drafts, the law and the lists of each taken from where a mistake has put them."""
    parts = [_taken(piece, law, lists) for piece in pieces]
    logs, tail, place, log_q, rank = (np.concatenate(values) for values in zip(*parts, strict=True))
    listed = Listed(logs, tail, place, log_q, np.zeros(len(place), dtype=np.int64), vocab_size)
    return Cells(listed, rank if pieces[0].rank is not None else None)


def _taken(piece: Piece, law: Move, lists: Move) -> tuple[Array, ...]:
    rows, depths = np.nonzero(piece.proposed)
    good = np.ones(rows.size, dtype=bool)
    places = []
    for move in (law, lists):
        row, depth = rows + move.rows + move.by_depth * depths, depths + move.depths
        good &= (row >= 0) & (row < len(piece.tokens)) & (depth >= 0) & (depth < piece.log_q.shape[1])
        row, depth = np.where(good, row, 0), np.where(good, depth, 0)
        good &= (piece.number[row] == piece.number[rows]) & ~np.isnan(piece.log_q[row, depth])
        places.append((row, depth))
    good &= piece.whole[places[1]]
    (own, beside), tokens = [(row[good], depth[good]) for row, depth in places], piece.tokens[(rows + depths)[good]]
    found = piece.ids[beside] == tokens[:, None]
    place = np.where(found.any(axis=1), found.argmax(axis=1), found.shape[1])
    rank = np.zeros(0, dtype=np.int32) if piece.rank is None else piece.rank[own]
    return piece.logs[beside].astype(np.float64), piece.tail[beside], place, piece.log_q[own].astype(np.float64), rank


def _off_rank(cells: Cells) -> Off:
    """See which ranks are not where the lists have the token, or could have it."""
    listed, rank = cells.listed, cells.rank
    own = listed.own()[:, None]
    first = 1 + (listed.logs > own + ROOM).sum(axis=1)
    last = (listed.logs >= own - ROOM).sum(axis=1)
    open_ = (listed.place >= listed.width) | (last >= listed.width)
    off = (rank < first) | ((rank > last) & ~open_)
    # What a filter leaves out has no rank.
    return Off(off & ~((rank == ABSENT) & (listed.log_p == -np.inf)), np.ones(off.size, dtype=bool))


def _off_log_q(cells: Cells, settings: Sequence[Setting]) -> Off:
    """See which log-probabilities the lists do not give, at that of some settings that explains most."""
    return min((_off_at(cells.listed, setting) for setting in settings), key=lambda off: off.share)


def _off_at(listed: Listed, setting: Setting) -> Off:
    low, high = listed.bounds(setting)
    room, log_q = ROOM * max(1.0, 1 / setting.temperature), np.maximum(listed.log_p, LOWEST)
    judged = ~np.isnan(high)
    off = (log_q > np.maximum(high, LOWEST) + room) | (log_q < np.maximum(low, LOWEST) - room)
    return Off(off & judged, judged)


def _moved(pieces: Sequence[Piece], vocab_size: int, judge: Judge, off: Off) -> tuple[str, ...] | None:
    """Name the mistake that explains cells that are off: the part that is moved, its words, and how."""
    best, least = None, off.share / 2
    for move, law, lists in _mistakes(pieces[0].log_q.shape[1]):
        cells = _cells(pieces, law, lists, vocab_size)
        if len(cells.listed.place) < FEWEST_CELLS:
            continue
        found = judge(cells)
        if found.judged.sum() >= FEWEST_CELLS and found.sound and found.share < least:
            least = found.share
            subject = "the lists" if law is IN_PLACE else "{}" if lists is IN_PLACE else "{} and the lists"
            best = ("lists" if law is IN_PLACE else "law", subject, move.words)
    return best


def _mistakes(depth: int) -> Iterator[tuple[Move, Move, Move]]:
    for move in MOVES if depth > 1 else MOVES[:2]:
        yield move, move, IN_PLACE
        yield move, IN_PLACE, move
        yield move, move, move


def _other(cells: Cells, off: Off, name: str, settings: Sequence[Setting], rule: str) -> Told:
    """Say what cells are, that are off and not moved."""
    if name == "log_q":
        likely = _scored(cells, settings, rule)
        if likely is not None:
            return Told("law", f"log_q are not what the lists give at {settings[0]}, but {likely}", True)
    values = (cells.listed.log_p if name == "log_q" or cells.rank is None else cells.rank)[off.off]
    alike = f", all of them {values[0]:g}: filled in" if (values == values[0]).all() else ""
    wanted = "the places that the lists have" if name == "rank" else f"what the lists give at {settings[0]}"
    told = f"{NAMES[name]} of {values.size} of {int(off.judged.sum())} tokens are not {wanted}{alike}; {TOGETHER}"
    return Told("law", told, False)


def _scored(cells: Cells, settings: Sequence[Setting], rule: str) -> str | None:
    """Say of what other distribution ``log_q`` are."""
    listed = cells.listed
    if rule != "match" and _off_at(listed, GREEDY).sound:
        return "those of drafts that are always the likeliest token: record them with rule 'match'"
    scale = _scale(listed)
    if scale is not None:
        base = f", or logarithms of another base than e ({math.exp(1 / scale):.3g})"
        return f"{scale:.3g} times them: divided by a temperature without normalising again{base}; {CORRECT}"
    for filters in dict.fromkeys((*settings, Setting())):
        temperature = listed.scored_at(filters)
        if temperature is not None and _off_at(listed, replace(filters, temperature=temperature)).sound:
            return f"of temperature {temperature:g}; {CORRECT}"
    return None


def _scale(listed: Listed) -> float | None:
    """Find the number, other than 1, that ``log_q`` are times those of the lists."""
    known = (listed.place < listed.width) & (listed.own() < SCALED_FROM) & (listed.log_p > -np.inf)
    scales = listed.log_p[known] / listed.own()[known]
    if scales.size < FEWEST_CELLS:
        return None
    scale = float(np.median(scales))
    alike = np.mean(np.abs(scales - scale) <= SCALE_TOLERANCE * scale) >= 1 - OFF_SHARE
    return scale if alike and scale > SMALLEST_SCALE and abs(scale - 1) > SCALE_TOLERANCE else None
