"""Which drafts of a store must be accepted, by the divergence of target and drafter alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from markov_spec.arrays import Array, RequestError, Rollouts, cells_inside
from markov_spec.certificates import RULES, kl_to_reject
from markov_spec.evaluation.certificates import PROMISES, ROUNDING, Certificates
from markov_spec.evaluation.contender import Contender, as_contender
from markov_spec.evaluation.laws import DEFAULT_DRAFT_LENGTH
from markov_spec.evaluation.lists import ranges, recorded
from markov_spec.store import Store, open_store

DIVERGENCE, COLUMN = "divergence", "raw_kl_pq"
ACCEPTED, REJECTED, UNKNOWN = 1, 0, -1
NAMES = ("ids", "prompt_ids", "benchmarks")
COLUMNS = ("lengths", "margin", "threshold", "exact", "followed", "certified", "accepted")
CELL_VALUES = 8  # of 8 bytes, made for each draft beside its lists


def certify(
    store: Store | str | Path,
    contender: Contender | str,
    *,
    rule: str = "strict",
    kl: float | None = None,
    tolerance: float = 0.0,
    **thresholds: Any,
) -> Certificates:
    """Certify which drafts a greedy target must accept, by the divergence of the two models at each position.

    Parameters
    ----------
    store : Store or path
        With the target's lists; of the drafter ``raw_kl_pq`` in part ``divergence``, unless ``kl`` is given, and its
        lists, which tell what is accepted.
    contender : Contender or str
        A drafter, with a draft length perhaps: ``"quant5"``, ``"block:K=4"``.
    rule : str
        One of ``certificates.RULES``: ``"strict"`` (greedy), the lossy rules with their thresholds (``t=``, ``alpha=``,
        ``m=``, ``epsilon=`` and ``delta=``), or ``"tree"`` (``m=``): the drafter's ``m`` best tokens at each depth.
    kl : float, optional
        A bound on KL(p||q) at every position, in nats, in place of what is recorded.
    tolerance : float
        Nats by which recorded divergences may be too small, as of log-probabilities in half precision.

    Returns
    -------
    Certificates

    Raises
    ------
    RequestError
        If the store lacks what is read, or the rule or a threshold is unknown.
    ValueError
        If the store is damaged.

    Notes
    -----
    ``O(N (K + M))``. The store is read range by range; what is kept takes 22 bytes for each position and 6 for each
    draft. A certificate is about the context of the rollout: target and drafter read its own tokens. Of plain
    softmaxes, not of those that tokens are drawn from.
    Source: see ``certificates.thresholds``.

    Examples
    --------
    >>> import markov_spec as ms
    >>> found = ms.certify("data/demo-greedy", "quant5")
    >>> shares = found.summary("depth").select("certified", "accepted").row(0)
    >>> bool(shares[0] < shares[1])  # a certificate is sufficient, not necessary
    True
    """
    opened, wanted = store if isinstance(store, Store) else open_store(store), as_contender(contender)
    facts = _check(opened, wanted, rule, kl, tolerance, thresholds)
    width, own = opened._target.sizes("lists")["ids"][0], 0
    if "lists" in facts["parts"]:
        own = opened._drafter(wanted.drafter).sizes("lists")["ids"][-1]
    parts: list[dict[str, Array]] = []
    tally: Counter[str] = Counter()  # of what notes tell
    for batch in ranges(opened, width + _depth(facts, wanted) * (own + width + CELL_VALUES)):
        part = certify_range(batch, wanted, rule=rule, kl=kl, tolerance=tolerance, **thresholds)
        tally.update(_tally(part, np.inf if kl is None else kl))
        parts.append(_kept(part))
    columns: dict[str, Any] = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
    if kl is not None:  # one number, at no cost
        columns["kl"] = np.broadcast_to(float(kl), columns["certified"].shape)
    columns |= {name: tuple(columns[name].tolist()) for name in NAMES}
    greedy = (opened.metadata.get("sampling") or {}).get("temperature") == 0
    given = {**thresholds, **({} if kl is None else {"kl": kl}), **({"tolerance": tolerance} if tolerance else {})}
    return Certificates(
        contender=str(wanted),
        rule=rule,
        indptr=np.concatenate([[0], np.cumsum(columns.pop("sizes"))]),
        **columns,
        draft_length=_draft_length(facts, wanted),
        by_position=facts["depth"] is None,
        greedy=greedy,
        settings=given,
        notes=tuple(_notes(tally, kl, greedy)),
    )


@dataclass(frozen=True, eq=False)
class CertifiedRange:
    """What is certain of the drafts of a range of rollouts. Made by ``certify_range``.

    ``D`` is the draft length, or 1 for an autoregressive drafter, whose draft depends on its position alone. The cell
    ``[s, k-1]`` is the draft of depth ``k`` from start ``s``, of the token at ``s + k - 1``.

    Parameters
    ----------
    rollouts : Rollouts
    lengths : ndarray of int32, (N,)
        Drafts made from each start, ends of rollouts aside.
    margin, threshold : ndarray of float64, (N,)
        At each position: the target's best probability less its second, and the divergence (nats) below which every
        draft of it is accepted.
    exact : ndarray of bool, (N,)
        Whether the threshold is the least divergence that allows a rejection; otherwise a lower bound of it.
    followed : ndarray of bool, (N,)
        Whether the rollout's token is the target's only best one.
    recorded, kl : ndarray of float, (N, D)
        Recorded divergence (nats), NaN where there is none, and the one that is certified by.
    certified : ndarray of bool, (N, D)
        Whether a draft made there is certain to be accepted; False past the end.
    accepted : ndarray of int8, (N, D)
        Whether it is: 1, 0, or -1 where the lists do not tell.
    """

    rollouts: Rollouts
    lengths: Array
    margin: Array
    threshold: Array
    exact: Array
    followed: Array
    recorded: Array
    kl: Array
    certified: Array
    accepted: Array

    @property
    def inside(self) -> npt.NDArray[np.bool_]:
        """Cells that are not past a rollout's end, (N, D)."""
        return cells_inside(self.rollouts.indptr, self.certified.shape[1])

    @property
    def promised(self) -> npt.NDArray[np.bool_]:
        """Drafts that are certain to be accepted and are the rollout's own token, (N, D).

        Of rules strict and tree on greedy rollouts: there the acceptance of the rollout's token is 1.
        """
        return self.certified & self.followed[_places(*self.certified.shape)]


def certify_range(
    store: Store,
    contender: Contender,
    *,
    rule: str = "strict",
    kl: float | None = None,
    tolerance: float = 0.0,
    **thresholds: Any,
) -> CertifiedRange:
    """Certify the drafts of all rollouts of a store at once, such as a range of ``Store.batches``.

    Parameters
    ----------
    store, contender, rule, kl, tolerance, thresholds
        As in `certify`; errors too.

    Returns
    -------
    CertifiedRange

    Notes
    -----
    ``O(N (K + M))`` time and memory.
    """
    facts = _check(store, contender, rule, kl, tolerance, thresholds)
    rollouts, target, drafter = store.rollouts(), _target(store, rule), contender.drafter
    found = kl_to_reject(target.p, rule=rule, tail_mass=target.tail, entropy=target.entropy, **thresholds)
    shape = rows, depth = len(target.p), _depth(facts, contender)
    at, kept = _places(rows, depth), np.full(shape, np.nan, dtype=np.float32)
    if _divergent(store, contender, facts):
        values = store.drafter_part(drafter, DIVERGENCE, complete=True)[COLUMN]
        kept = values[:, None] if values.ndim == 1 else values[:, :depth]
    apart = kept if kl is None else np.broadcast_to(float(kl), shape)
    level = found.value[at]
    certain = (apart.astype(np.float64) + tolerance + ROUNDING < level) | np.isinf(level)
    accepted = np.full(shape, UNKNOWN)
    if "lists" in facts["parts"]:
        ids = store.drafter_part(drafter, "lists", complete=True)["ids"]
        ids = ids[:, None] if ids.ndim == 2 else ids[:, :depth]
        accepted = (_covered if rule in PROMISES else _relaxed)(ids, target, at, rule, thresholds)
    length, drafted = _draft_length(facts, contender), store.drafter(drafter).drafted
    lengths = np.full(rows, length) if drafted is None else np.minimum(drafted, length)
    return CertifiedRange(
        rollouts=rollouts,
        lengths=lengths.astype(np.int32),
        margin=target.margin,
        threshold=found.value,
        exact=found.exact,
        followed=(target.ids[:, 0] == rollouts.tokens) & (target.margin > 0),
        recorded=kept,
        kl=apart,
        certified=certain & cells_inside(rollouts.indptr, depth),
        accepted=accepted.astype(np.int8),
    )


@dataclass(frozen=True, eq=False)
class _Target:
    """The target's lists: ids and probabilities (N, M), what is beyond them (N,), and the entropy (N,) if told."""

    ids: Array
    p: Array
    tail: Array
    entropy: Array | None

    @property
    def margin(self) -> Array:
        """Best probability less the second, or less what may be the second of lists of one, (N,)."""
        second = self.p[:, 1] if self.p.shape[1] > 1 else np.minimum(self.tail, self.p[:, 0])
        margin: Array = self.p[:, 0] - second
        return margin


def _target(store: Store, rule: str) -> _Target:
    part = store.part("lists", complete=True)
    p = np.exp(part["log_p"].astype(np.float64))
    tail = part["tail_mass"] if "tail_mass" in part else np.clip(1 - p.sum(axis=1), 0, None)
    entropy = None
    if rule == "typical" and "divergence" in store.parts:
        entropy = store.part("divergence", complete=True).get("raw_entropy")
    return _Target(part["ids"], p, tail, entropy)


def _check(
    store: Store, wanted: Contender, rule: str, kl: float | None, tolerance: float, thresholds: Mapping[str, Any]
) -> dict[str, Any]:
    """Refuse what cannot be certified; give what the store tells of the drafter."""
    if wanted.tree is not None or wanted.rule is not None:
        raise RequestError(
            f"contender {wanted}: found a rule or a tree; allowed: neither, as rule= tells what is certified"
        )
    if rule not in RULES:
        raise RequestError(f"rule: found {rule!r}; allowed: {', '.join(RULES)}")
    for name in thresholds:
        if name not in RULES[rule]:
            allowed = ", ".join(RULES[rule]) or "none"
            raise RequestError(f"rule {rule!r}: found threshold {name!r}; allowed: {allowed}")
    for name, value in (("kl", kl), ("tolerance", tolerance)):
        if value is not None and not 0 <= value < np.inf:
            raise RequestError(f"{name}: found {value}; allowed: a finite number >= 0, in nats")
    facts = recorded(store, wanted)
    listed = "lists" in facts["parts"]
    if facts["rule"] == "match" and listed and store._drafter(wanted.drafter).sizes("lists")["ids"][-1] == 1:
        raise RequestError(f"contender {wanted}: found drafts without a distribution; allowed: a drafter that has one")
    if "lists" not in store.parts:
        raise RequestError(
            f"{store.path}: certificates need part 'lists' of the target; record --target-top 32 records it"
        )
    if kl is None and not _divergent(store, wanted, facts):
        raise RequestError(
            f"contender {wanted}: needs {COLUMN} in part {DIVERGENCE!r}, which was not recorded (record --divergence), "
            "or kl=, a bound on it"
        )
    depth, length = facts["depth"], wanted.draft_length
    if depth is not None and length is not None and not 1 <= length <= depth:
        raise RequestError(f"contender {wanted}: found K={length}; allowed: 1 to {depth}, recorded")
    return facts


def _divergent(store: Store, wanted: Contender, facts: Mapping[str, Any]) -> bool:
    return DIVERGENCE in facts["parts"] and COLUMN in store._drafter(wanted.drafter).sizes(DIVERGENCE)


def _draft_length(facts: Mapping[str, Any], wanted: Contender) -> int:
    usual = DEFAULT_DRAFT_LENGTH if facts["depth"] is None else facts["depth"]
    return int(usual if wanted.draft_length is None else wanted.draft_length)


def _depth(facts: Mapping[str, Any], wanted: Contender) -> int:
    """Give the drafts that are told apart at each start."""
    return 1 if facts["depth"] is None else _draft_length(facts, wanted)


def _places(rows: int, depth: int) -> Array:
    """Give the position of the draft of each cell, (rows, depth), the last one beyond the end."""
    places: Array = np.minimum(np.arange(rows)[:, None] + np.arange(depth), max(rows - 1, 0))
    return places


def _covered(ids: Array, target: _Target, at: Array, rule: str, given: Mapping[str, Any]) -> Array:
    """Tell whether the drafter proposes the target's best token: its likeliest one, or one of a tree's ``m``."""
    best = target.ids[at, 0]
    if rule == "strict":  # a tie is a rejection, which lists of one do not tell
        tied = REJECTED if target.ids.shape[1] > 1 else UNKNOWN
        return np.where(ids[..., 0] == best, np.where(target.margin > 0, ACCEPTED, tied)[at], REJECTED)
    found = (ids[..., : given["m"]] == best[..., None]).any(axis=-1)
    return np.where(found, ACCEPTED, REJECTED if ids.shape[-1] >= given["m"] else UNKNOWN)


def _relaxed(ids: Array, target: _Target, at: Array, rule: str, given: Mapping[str, Any]) -> Array:
    """Tell whether a lossy rule accepts the drafter's likeliest token, by the target's list at its position."""
    match = target.ids[at] == ids[..., :1]
    listed, width = match.any(axis=-1), match.shape[-1]
    if rule == "top-m":
        m = given["m"]
        return np.where(listed, np.argmax(match, axis=-1) < m, REJECTED if width >= m else UNKNOWN)
    if rule == "typical" and target.entropy is None:
        return np.full(listed.shape, UNKNOWN)
    value, bar = (target.p[at] * match).sum(axis=-1), _bar(target, rule, given)[at]
    unlisted = np.where(bar <= 0, ACCEPTED, np.where(target.p[at, -1] < bar, REJECTED, UNKNOWN))
    return np.where(listed, value >= bar, unlisted)


def _bar(target: _Target, rule: str, given: Mapping[str, Any]) -> Array:
    """Give the probability from which on a lossy rule accepts, (N,)."""
    bar: Array = target.p[:, 0]
    if rule == "additive":
        bar = bar - given["t"]
    elif rule == "multiplicative":
        bar = bar * given["alpha"]
    else:
        limits, entropy = {**RULES[rule], **given}, np.asarray(target.entropy, dtype=np.float64)
        least = np.minimum(limits["epsilon"], limits["delta"] * np.exp(-entropy))
        bar = np.nextafter(least, np.inf)  # what equals it is rejected
    return bar


def _kept(part: CertifiedRange) -> dict[str, Array]:
    """Give what `Certificates` keeps of a range."""
    rollouts = part.rollouts
    names = {name: np.array(getattr(rollouts, name), dtype=object) for name in NAMES}
    columns = {name: getattr(part, name) for name in COLUMNS}
    return {**names, "sizes": np.diff(rollouts.indptr), **columns, "kl": part.recorded}


def _tally(part: CertifiedRange, kl: float) -> dict[str, int]:
    """Count the drafts of a range, and those that a note tells of."""
    inside, depth = part.inside, part.certified.shape[1]
    made = inside & (np.arange(1, depth + 1) <= part.lengths[:, None])
    kinds = {
        "drafts": inside,
        "endless": inside & np.isinf(part.kl),
        "apart": inside & ~part.followed[_places(*inside.shape)],
        "beyond": inside & (part.recorded > kl),
        "wrong": made & part.certified & (part.accepted == REJECTED),
    }
    return {name: int(cells.sum()) for name, cells in kinds.items()}


def _notes(tally: Mapping[str, int], kl: float | None, greedy: bool) -> Iterator[str]:
    drafts = tally["drafts"]
    if kl is not None and tally["beyond"]:
        yield f"KL is assumed to be at most {kl:g}, but {tally['beyond']} of {drafts} recorded ones exceed it"
    if kl is not None and tally["wrong"]:
        yield f"{tally['wrong']} certified drafts were rejected: the assumed bound on KL does not hold"
    if tally["endless"]:
        yield (
            f"KL is infinite at {tally['endless']} of {drafts} drafts: the drafter gives probability 0 to tokens that "
            "the target does not, as one of a smaller vocabulary, and no KL certifies there"
        )
    if not greedy:
        yield "the rollouts are not recorded as greedy: accepted is what a greedy target would accept at their contexts"
    elif tally["apart"]:
        yield (
            f"{tally['apart']} drafts stand where the rollout's token is not the target's only best one by its list: "
            "nothing is promised of rounds there"
        )
