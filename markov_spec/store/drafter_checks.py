"""What is wrong with a drafter though each of its values may be: padding, shifted rows, marks of other models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from markov_spec.arrays import ABSENT, Array, Rollouts, cells_inside
from markov_spec.store.findings import Report
from markov_spec.store.law_checks import Drawn, Piece, check_law
from markov_spec.store.reader import Store
from markov_spec.store.sampled import covered_rows, sample, unlikely
from markov_spec.store.schema import NO_TOKEN
from markov_spec.store.shifts import Neighbours, chance_shift, id_shift, neighbours
from markov_spec.store.value_checks import MASS_TOLERANCE

# A drafter that is right once in 100 has a hit among so many drafts but for a chance of 1e-7.
FEWEST_DRAFTS = 1600
# One that proposes the same id in a share of all rounds is right more often: once in 4.
PADDED_SHARE, RIGHT_SHARE = 0.1, 0.25
# One that copies its last token has its id after that id; padding has it after this share of other tokens at least.
COPIED_SHARE = 0.5
# Rounds of zeros only, by several drafts each, where no rollout has a zero.
FEWEST_ZEROS = 5
# Softmax drafters give every token some probability; what does so nearly everywhere and not at all beyond some context
# length was skipped there.
RARELY, FEWEST_SKIPPED = 0.01, 20
_PADDING = "rounds without drafts, padded? Record drafted 0 where nothing was drafted"


def check_drafter(
    store: Store, name: str, where: Mapping[str, str], metadata: Mapping[str, Any], report: Report
) -> None:
    """Report what is wrong with a drafter.

    Parameters
    ----------
    store : Store
        With this drafter.
    name : str
    where : mapping
        Its sound parts, with the file of each.
    metadata : mapping
        The target's.
    report : Report
    """
    own = store.facts()["drafters"][name]
    for mark in ("target_fingerprint", "tokenizer_fingerprint"):
        found, wanted = own.get(mark), metadata.get(mark)
        if found is not None and wanted is not None and found != wanted:
            report.add(
                "warning",
                f"drafters/{name}/manifest.json",
                f"{mark}: found {found!r}; the store's is {wanted!r}: drafted for another "
                f"{'target' if mark.startswith('target') else 'tokenizer, so that ids mean other tokens'}",
            )
    if "law" not in where:
        return
    listed = "lists" in where and store._drafters[name].sizes("lists")["ids"][-1] > 0
    seen = _look(store, name, own["rule"], listed)
    told = check_law(seen.pieces, Drawn(own["rule"], own, metadata)) if seen.pieces else None
    if told is None:
        _check_shifts(seen, where, report)
    likely = seen.padding() or seen.skipped()
    if likely is not None:
        report.add("warning", where["law"], likely)
    for part, message, named in told or ():
        if named or likely is None:
            report.add("warning", where[part], message)


def _check_shifts(seen: _Seen, where: Mapping[str, str], report: Report) -> None:
    """Judge by the tokens alone where the law and the lists stand; a drafter may repeat its last token, though."""
    shift = chance_shift(seen.chances)
    if shift is not None:
        report.add("warning", where["law"], f"log_q {shift}, by its correlation with log_p; record it again in place")
    shift = id_shift(seen.likeliest)
    if shift is not None:
        report.add("warning", where["lists"], f"the lists {shift}; record them again in place")


class _Alike(NamedTuple):
    """Starts (n,) whose drafts are all one id.

    Whether the first draft is right, there are several, and they follow the id itself; ``log_q`` is what the lists give
    the first one.
    """

    ids: Array
    right: Array
    several: Array
    copied: Array
    log_q: Array


@dataclass(eq=False)
class _Seen:
    """What a sample of a drafter's starts shows."""

    drafts: int = 0
    hits: int = 0
    listed: int = 0
    copied: int = 0
    zero_tokens: int = 0
    alike: list[_Alike] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    live: int = 0
    longest: int = -1
    dead: list[Array] = field(default_factory=list)
    chances: list[Neighbours] = field(default_factory=list)
    likeliest: list[Neighbours] = field(default_factory=list)

    def add_law(self, proposed: Array, hit: Array, context: Array) -> None:
        """Count drafts (N, K), by the tokens ``context`` (N,) before their start."""
        some, right = proposed.any(axis=1), hit.any(axis=1)
        self.drafts += int(np.count_nonzero(proposed))
        self.hits += int(np.count_nonzero(hit))
        self.live += int(np.count_nonzero(right))
        self.longest = max(self.longest, int(context[right].max(initial=-1)))
        self.dead.append(context[some & ~right])

    def add_lists(self, piece: Piece, hit: Array) -> None:
        """Look at the likeliest ids of starts that have lists, and keep all lists to judge the law by."""
        self.pieces.append(piece)
        ids = np.where(piece.proposed, piece.ids[..., 0], NO_TOKEN)
        some = np.flatnonzero((ids >= 0).any(axis=1))
        ids, proposed = ids[some], piece.proposed[some]
        least = np.where(proposed, ids, ABSENT).min(axis=1, initial=ABSENT)
        same = (least >= 0) & (ids.max(axis=1, initial=NO_TOKEN) == least)
        before = np.where(np.diff(piece.number, prepend=-1) == 0, np.roll(piece.tokens, 1), NO_TOKEN)[some]
        self.listed += some.size
        self.copied += int(np.count_nonzero(ids[:, 0] == before))
        self.zero_tokens += int(np.count_nonzero(piece.tokens == 0))
        own = (least, hit[some, 0], proposed.sum(axis=1) > 1, before == least, piece.logs[some, 0, 0])
        self.alike.append(_Alike(*(values[same] for values in own)))

    def padding(self) -> str | None:
        """Say which drafts stand for none."""
        alike = [np.concatenate(values) for values in zip(*self.alike, strict=True)]
        ids, counts = np.unique(alike[0] if alike else [], return_counts=True)
        often = counts >= PADDED_SHARE * self.listed
        for id_ in ids[often | (ids == 0)].tolist():
            some = alike[0] == id_
            if not often[ids == id_].any():  # id 0 is known to fill whole rounds, however few
                some &= alike[2]
            told = self._padded(id_, _Alike(*(values[some] for values in alike))) if some.any() else None
            if told is not None:
                return told
        if self.drafts >= FEWEST_DRAFTS and not self.hits and self.copied <= COPIED_SHARE * self.listed:
            return (
                f"none of {self.drafts} drafts is right: ids of another vocabulary, padding, or drafts of other "
                "rollouts; record them again"
            )
        return None

    def _padded(self, id_: int, alike: _Alike) -> str | None:
        """Say that drafts of one id stand for none, if they are not drafts that are seldom right."""
        starts, right = alike.ids.size, int(alike.right.sum())
        if alike.copied.sum() > COPIED_SHARE * starts or alike.log_q.min() < alike.log_q.max():
            return None
        if id_ == 0 and not self.zero_tokens and alike.several.sum() >= FEWEST_ZEROS:
            return f"{starts} starts have drafts of id 0 only, which is in no rollout: {_PADDING}"
        if right >= RIGHT_SHARE * starts or not unlikely(right, starts, RIGHT_SHARE):
            return None
        how = f"{right} of them are" if right else "none is"
        return f"{starts} of {self.listed} starts have drafts of id {id_} only, and {how} right: {_PADDING}"

    def skipped(self) -> str | None:
        """Say from what context length on the drafter gave nothing."""
        dead = np.concatenate([np.zeros(0, dtype=np.int64), *self.dead])
        beyond = int(np.count_nonzero(dead > self.longest))
        if beyond < FEWEST_SKIPPED or self.live < 1 / RARELY or dead.size - beyond > RARELY * self.live:
            return None
        return (
            f"all {beyond} starts after more than {self.longest} tokens have drafts of probability 0, hardly any "
            f"before: {_PADDING}"
        )


def _look(store: Store, name: str, rule: str, listed: bool) -> _Seen:
    seen, folder = _Seen(), store._drafters[name]
    sizes = [sizes for part in ("law", "lists")[: 1 + listed] for sizes in folder.sizes(part).values()]
    for first, some in sample(store, max(math.prod(own) for own in sizes)):
        rollouts, law = some.rollouts(), some.drafter_part(name, "law")
        log_q = law["log_q"].reshape(len(law["log_q"]), -1)
        proposed = cells_inside(rollouts.indptr, log_q.shape[1], law.get("drafted") if law["log_q"].ndim == 2 else None)
        rank = law["rank"].reshape(log_q.shape) if "rank" in law else None
        right = rank == 1 if rule == "match" and rank is not None else log_q != -np.inf  # not recorded, it may be
        hit = proposed & right
        seen.add_law(proposed, hit, _contexts(rollouts))
        if not log_q.shape[1]:
            continue
        chances, known = np.exp(rollouts.log_p.astype(np.float64)), proposed[:, 0] & ~np.isnan(log_q[:, 0])
        drawn = np.exp(np.where(known, log_q[:, 0], -np.inf).astype(np.float64))
        seen.chances.append(neighbours(drawn, chances, known, rollouts.indptr, first))
        if listed:
            piece = _piece(some.drafter_part(name, "lists"), rollouts, proposed, log_q, rank)
            seen.add_lists(piece, hit)
            ids = piece.ids[:, 0, 0]
            seen.likeliest.append(neighbours(ids, rollouts.tokens, proposed[:, 0] & (ids >= 0), rollouts.indptr, first))
    return seen


def _contexts(rollouts: Rollouts) -> Array:
    """Tokens before each position, those of the prompt included."""
    lengths = np.diff(rollouts.indptr)
    shift = np.array([prompt.size for prompt in rollouts.prompt_tokens], dtype=np.int64) - rollouts.indptr[:-1]
    out: Array = np.arange(rollouts.indptr[-1]) + np.repeat(shift, lengths)
    return out


def _piece(part: dict[str, Array], rollouts: Rollouts, proposed: Array, log_q: Array, rank: Array | None) -> Piece:
    """The lists of each draft beside its law; rollouts without lists have no entries."""
    rows, width = covered_rows(part, rollouts.indptr), part["ids"].shape[-1]
    count = int(rows.sum())
    ids = np.full((*proposed.shape, width), NO_TOKEN, dtype=np.int32)
    logs = np.full(ids.shape, -np.inf, dtype=np.float32)
    ids[rows] = part["ids"].reshape(count, *ids.shape[1:])
    logs[rows] = part["log_q"].reshape(count, *ids.shape[1:])
    mass = np.exp(logs, dtype=np.float64).sum(axis=-1)
    tail = np.clip(1 - mass, 0, 1)
    if "tail_mass" in part:
        tail[rows] = part["tail_mass"].reshape(count, -1)
    whole = (logs[..., 0] > -np.inf) & (np.abs(mass + tail - 1) <= MASS_TOLERANCE)
    number = np.repeat(np.arange(len(rollouts)), np.diff(rollouts.indptr))
    return Piece(ids, logs, tail, whole, proposed, log_q, rank, rollouts.tokens, number)
