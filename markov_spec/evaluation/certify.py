"""Which drafts of a store must be accepted, by the divergence of target and drafter alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from markov_spec.arrays import Array, RequestError, cells_inside
from markov_spec.certificates import RULES, kl_to_reject
from markov_spec.evaluation.certificates import ROUNDING, Certificates
from markov_spec.evaluation.contender import Contender, as_contender
from markov_spec.evaluation.laws import DEFAULT_DRAFT_LENGTH
from markov_spec.evaluation.lists import ranges, recorded
from markov_spec.store import Store, open_store

DIVERGENCE, COLUMN = "divergence", "raw_kl_pq"


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
    ``O(N (K + M))``. A certificate is about the context of the rollout: target and drafter read its own tokens. Of
    plain softmaxes, not of those that tokens are drawn from.
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
    facts = recorded(opened, wanted)
    if (
        facts["rule"] == "match"
        and "lists" in facts["parts"]
        and opened._drafter(wanted.drafter).sizes("lists")["ids"][-1] == 1
    ):
        raise RequestError(f"contender {wanted}: found drafts without a distribution; allowed: a drafter that has one")
    if "lists" not in opened.parts:
        raise RequestError(
            f"{opened.path}: certificates need part 'lists' of the target; record --target-top 32 records it"
        )
    divergent = DIVERGENCE in facts["parts"] and COLUMN in opened._drafter(wanted.drafter).sizes(DIVERGENCE)
    if kl is None and not divergent:
        raise RequestError(
            f"contender {wanted}: needs {COLUMN} in part {DIVERGENCE!r}, which was not recorded (record --divergence), "
            "or kl=, a bound on it"
        )
    parts = list(_parts(opened, wanted, rule, kl, tolerance, thresholds))
    frame = pl.concat([part for part, _ in parts])
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([lengths for _, lengths in parts]))])
    by_position = facts["depth"] is None
    depth = DEFAULT_DRAFT_LENGTH if by_position else facts["depth"]
    length = depth if wanted.draft_length is None else wanted.draft_length
    greedy = (opened.metadata.get("sampling") or {}).get("temperature") == 0
    given = {**thresholds, **({} if kl is None else {"kl": kl}), **({"tolerance": tolerance} if tolerance else {})}
    notes = tuple(_notes(frame.drop("recorded"), frame["recorded"], kl, greedy))
    return Certificates(str(wanted), rule, frame.drop("recorded"), offsets, length, by_position, greedy, given, notes)


def _notes(frame: pl.DataFrame, kept: pl.Series, kl: float | None, greedy: bool) -> Iterator[str]:
    if kl is not None:
        beyond = int((kept > kl).sum())
        if beyond:
            yield f"KL is assumed to be at most {kl:g}, but {beyond} of {len(frame)} recorded ones exceed it"
        wrong = int((frame["certified"] & ~frame["accepted"].fill_null(True)).sum())
        if wrong:
            yield f"{wrong} certified drafts were rejected: the assumed bound on KL does not hold"
    endless = int(frame["kl"].is_infinite().sum())
    if endless:
        yield (
            f"KL is infinite at {endless} of {len(frame)} drafts: the drafter gives probability 0 to tokens that the "
            "target does not, as one of a smaller vocabulary, and no KL certifies there"
        )
    if not greedy:
        yield "the rollouts are not recorded as greedy: accepted is what a greedy target would accept at their contexts"
    parted = int((~frame["followed"]).sum())
    if greedy and parted:
        yield (
            f"{parted} drafts stand where the rollout's token is not the target's only best one by its list: "
            "nothing is promised of rounds there"
        )


def _parts(
    store: Store, wanted: Contender, rule: str, kl: float | None, tolerance: float, options: dict[str, Any]
) -> Iterator[tuple[pl.DataFrame, Array]]:
    facts = recorded(store, wanted)
    depth = facts["depth"] if wanted.draft_length is None else wanted.draft_length
    depth = 1 if facts["depth"] is None else depth
    if facts["depth"] is not None and not 1 <= depth <= facts["depth"]:
        raise RequestError(f"contender {wanted}: found K={depth}; allowed: 1 to {facts['depth']}, recorded")
    width = store._target.sizes("lists")["ids"][0]
    own = store._drafter(wanted.drafter).sizes("lists")["ids"][-1] if "lists" in facts["parts"] else 0
    for batch in ranges(store, width + depth * (own + 8)):
        rollouts, target = batch.rollouts(), batch.part("lists", complete=True)
        p = np.exp(target["log_p"].astype(np.float64))
        tail = target["tail_mass"] if "tail_mass" in target else np.clip(1 - p.sum(axis=1), 0, None)
        spread = (
            batch.part("divergence").get("raw_entropy") if rule == "typical" and "divergence" in batch.parts else None
        )
        found = kl_to_reject(p, rule=rule, tail_mass=tail, entropy=spread, **options)
        offsets, rows = rollouts.indptr, len(p)
        at = np.minimum(np.arange(rows)[:, None] + np.arange(depth), max(rows - 1, 0))
        inside = cells_inside(offsets, depth, None)
        kept = np.full((rows, depth), np.nan)
        values = batch.drafter_part(wanted.drafter, DIVERGENCE).get(COLUMN) if DIVERGENCE in facts["parts"] else None
        if values is not None:
            kept = (values[:, None] if values.ndim == 1 else values[:, :depth]).astype(np.float64)
        apart = kept if kl is None else np.full((rows, depth), float(kl))
        threshold, made = found.value[at], inside
        drafted = batch.drafter(wanted.drafter).drafted
        if drafted is not None:
            made = inside & (np.arange(1, depth + 1) <= drafted[:, None])
        accepted = _accepted(batch, wanted, rule, options, target["ids"], p, at, depth, spread) if own else None
        start = np.arange(rows) - np.repeat(offsets[:-1], np.diff(offsets))
        rollout = np.repeat(np.arange(len(rollouts)), np.diff(offsets))
        which = np.broadcast_to(rollout[:, None], inside.shape)[inside]
        names = {"rollout": rollouts.ids, "prompt": rollouts.prompt_ids, "benchmark": rollouts.benchmarks}
        depths = np.broadcast_to(np.arange(1, depth + 1), inside.shape)[inside]
        begin = np.broadcast_to(start[:, None], inside.shape)[inside]
        second = p[:, 1] if p.shape[1] > 1 else np.minimum(tail, p[:, 0])
        columns: dict[str, Any] = {
            **{name: pl.Series(list(values), dtype=pl.String).gather(which) for name, values in names.items()},
            "start": begin,
            "depth": depths,
            "position": begin + depths - 1,
            "margin": (p[:, 0] - second)[at][inside],
            "threshold": threshold[inside],
            "threshold_exact": found.exact[at][inside],
            "kl": apart[inside],
            "certified": (((apart + tolerance + ROUNDING < threshold) | np.isinf(threshold)) & made)[inside],
            "accepted": None
            if accepted is None
            else pl.Series(np.where(made, accepted, 0)[inside], dtype=pl.Int8).replace(-1, None).cast(pl.Boolean),
            "followed": ((target["ids"][:, 0] == rollouts.tokens) & (p[:, 0] > second))[at][inside],
            "proposed": made[inside],
            "recorded": kept[inside],
        }
        yield pl.DataFrame(columns, schema_overrides={"accepted": pl.Boolean}), np.diff(offsets)


def _accepted(
    batch: Store,
    wanted: Contender,
    rule: str,
    options: dict[str, Any],
    names: Array,
    p: Array,
    at: Array,
    depth: int,
    spread: Array | None,
) -> Array:
    """Whether the rule accepts the drafter's likeliest token at each cell: 1, 0, or -1 where lists do not tell."""
    part = batch.drafter_part(wanted.drafter, "lists", complete=True)
    ids = part["ids"] if part["ids"].ndim == 3 else part["ids"][:, None]
    ids, best = ids[:, :depth], names[at, 0]
    tied = p[at, 0] == (p[at, 1] if p.shape[1] > 1 else -1.0)
    if rule == "tree":
        m = options["m"]
        found = (ids[..., :m] == best[..., None]).any(axis=-1)
        return np.where(found, 1, 0 if ids.shape[-1] >= m else -1)
    draft = ids[..., 0]
    if rule == "strict":
        return np.where(draft == best, np.where(tied, 0, 1), 0)
    match = names[at] == draft[..., None]
    listed = match.any(axis=-1)
    if rule == "top-m":
        m = options["m"]
        return np.where(listed, np.argmax(match, axis=-1) < m, 0 if names.shape[1] >= m else -1).astype(np.int64)
    value = (p[at] * match).sum(axis=-1)
    if rule == "additive":
        bar = p[at, 0] - options["t"]
    elif rule == "multiplicative":
        bar = options["alpha"] * p[at, 0]
    elif spread is None:
        return np.full(draft.shape, -1)
    else:  # typical: what equals the bar is rejected
        given = {**RULES[rule], **options}
        bar = np.nextafter(np.minimum(given["epsilon"], given["delta"] * np.exp(-spread.astype(np.float64))), np.inf)[
            at
        ]
    unlisted = np.where(bar <= 0, 1, np.where(p[at, -1] < bar, 0, -1))
    return np.where(listed, value >= bar, unlisted).astype(np.int64)
