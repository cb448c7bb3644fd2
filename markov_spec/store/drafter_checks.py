"""What is wrong with a drafter though each of its values may be: padding, shifted rows, marks of other models."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from markov_spec.arrays import ABSENT, Array, Rollouts, cells_inside
from markov_spec.store.findings import Report
from markov_spec.store.reader import Store
from markov_spec.store.sampled import covered_rows, sample
from markov_spec.store.schema import NO_TOKEN
from markov_spec.store.shifts import Neighbours, chance_shift, id_shift, neighbours

# A drafter that is right once in 100 has a hit among so many drafts but for a chance of 1e-7.
FEWEST_DRAFTS = 1600
# One that proposes the same id in a share of all rounds is right more often: once in 4 gives a hit among so many.
PADDED_SHARE, FEWEST_PADDED = 0.1, 56
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
    shift = chance_shift(seen.chances)
    if shift is not None:
        report.add("warning", where["law"], f"log_q {shift}, by its correlation with log_p; record it again in place")
    shift = id_shift(seen.likeliest)
    if shift is not None:
        report.add("warning", where["lists"], f"the lists {shift}; record them again in place")
    told = seen.padding() or seen.skipped()
    if told is not None:
        report.add("warning", where["law"], told)


@dataclass(eq=False)
class _Seen:
    """What a sample of a drafter's starts shows: counts of drafts, and of starts whose drafts are all one id."""

    drafts: int = 0
    hits: int = 0
    listed: int = 0
    zeros: int = 0
    zero_tokens: int = 0
    padded: Counter[int] = field(default_factory=Counter)
    right: set[int] = field(default_factory=set)
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

    def add_ids(self, ids: Array, proposed: Array, hit: Array, tokens: Array) -> None:
        """Count starts whose drafts (N, K) are all the same id."""
        some, right = proposed.any(axis=1), hit.any(axis=1)
        least = np.where(proposed, ids, ABSENT).min(axis=1, initial=ABSENT)
        same = some & (least >= 0) & (np.where(proposed, ids, NO_TOKEN).max(axis=1, initial=NO_TOKEN) == least)
        self.listed += int(np.count_nonzero(some))
        self.zero_tokens += int(np.count_nonzero(tokens == 0))
        self.zeros += int(np.count_nonzero(same & ~right & (least == 0) & (proposed.sum(axis=1) > 1)))
        self.padded.update(least[same & ~right].tolist())
        self.right.update(np.unique(least[same & right]).tolist())

    def padding(self) -> str | None:
        """Say which drafts stand for none."""
        if self.zeros >= FEWEST_ZEROS and not self.zero_tokens:
            return f"{self.zeros} starts have drafts of id 0 only, which is in no rollout: {_PADDING}"
        wrong = {id_: count for id_, count in self.padded.items() if id_ not in self.right}
        for id_, count in sorted(wrong.items(), key=lambda item: -item[1])[:1]:
            if count >= max(FEWEST_PADDED, PADDED_SHARE * self.listed):
                return f"{count} of {self.listed} starts have drafts of id {id_} only, and none is right: {_PADDING}"
        if self.drafts >= FEWEST_DRAFTS and not self.hits:
            return (
                f"none of {self.drafts} drafts is right: ids of another vocabulary, padding, or drafts of other "
                "rollouts; record them again"
            )
        return None

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
        right = law["rank"].reshape(log_q.shape) == 1 if rule == "match" and "rank" in law else log_q > -np.inf
        hit = proposed & right
        seen.add_law(proposed, hit, _contexts(rollouts))
        if not log_q.shape[1]:
            continue
        chances = np.exp(rollouts.log_p.astype(np.float64))
        drawn = np.exp(np.where(proposed[:, 0], log_q[:, 0], -np.inf).astype(np.float64))
        seen.chances.append(neighbours(drawn, chances, proposed[:, 0], rollouts.indptr, first))
        if listed:
            ids = _likeliest(some.drafter_part(name, "lists"), rollouts.indptr, log_q.shape)
            seen.likeliest.append(
                neighbours(ids[:, 0], rollouts.tokens, proposed[:, 0] & (ids[:, 0] >= 0), rollouts.indptr, first)
            )
            rows = (ids >= 0).any(axis=1)
            seen.add_ids(ids[rows], proposed[rows], hit[rows], rollouts.tokens)
    return seen


def _contexts(rollouts: Rollouts) -> Array:
    """Tokens before each position, those of the prompt included."""
    lengths = np.diff(rollouts.indptr)
    shift = np.array([prompt.size for prompt in rollouts.prompt_tokens], dtype=np.int64) - rollouts.indptr[:-1]
    out: Array = np.arange(rollouts.indptr[-1]) + np.repeat(shift, lengths)
    return out


def _likeliest(part: dict[str, Array], indptr: Array, shape: tuple[int, ...]) -> Array:
    """The first listed id of each draft (N, K), -1 where there is none."""
    rows = covered_rows(part, indptr)
    out = np.full(shape, NO_TOKEN, dtype=np.int64)
    out[rows] = part["ids"][..., 0].reshape(int(rows.sum()), -1)
    return out
