"""Stores whose tokens are drawn from the distributions recorded for them, with code of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import markov_spec as ms

VOCAB, DEPTH = 60, 3
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
LARGE: dict[str, Any] = {"rollouts": 60, "length": 100}
Array = np.ndarray


def log_softmax(values: Array) -> Array:
    top = values.max(-1, keepdims=True)
    return values - top - np.log(np.exp(values - top).sum(-1, keepdims=True))


def decoded(
    raw: Array,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    last: bool = False,
    min_p: float = 0.0,
    joint: bool = False,
) -> Array:
    """Log-probabilities after temperature (or that ``last``), top-k, top-p and min-p, or these ``joint``; by row."""
    out = np.full(raw.shape, -np.inf)
    for row, own in zip(out, raw, strict=True):
        order = np.argsort(-own, kind="stable")
        if temperature == 0:
            row[order[0]] = 0
            continue
        first = len(order) if joint else top_k or len(order)
        p = np.exp(log_softmax(own[order[:first]] / (1.0 if last else temperature)))
        count = 1 + int(np.count_nonzero(np.cumsum(p)[:-1] < top_p))
        count = min(count, int(np.count_nonzero(p >= min_p * p[0])), top_k or len(order))
        row[order[:count]] = log_softmax(own[order[:count]] / temperature)
    return out


def cold(temperature: float, top_k: int = 0, top_p: float = 1.0) -> dict[str, Any]:
    """A setting that says all of this."""
    return {"temperature": temperature, "top_k": top_k, "top_p": top_p}


def spread(log_p: Array) -> tuple[Array, Array]:
    """Entropy and varentropy of each row."""
    known = np.where(log_p > -np.inf, log_p, 0)
    p = np.exp(log_p)
    entropy = -(p * known).sum(-1)
    return entropy, (p * (known + entropy[:, None]) ** 2).sum(-1)


def lists(raw: Array, width: int, log: str) -> dict[str, Array]:
    ids = np.argsort(-raw, axis=-1, kind="stable")[..., :width]
    logs = np.take_along_axis(raw, ids, -1)
    return {"ids": ids.astype(np.int32), log: logs, "tail_mass": np.clip(1 - np.exp(logs).sum(-1), 0, 1)}


def draw(rng: np.random.Generator, log_p: Array) -> Array:
    return (np.exp(log_p).cumsum(-1) > rng.random((len(log_p), 1)) * np.exp(log_p).sum(-1, keepdims=True)).argmax(-1)


def given(
    seed: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    rollouts: int = 8,
    length: int = 40,
    width: int = 12,
    last: bool = False,
    joint: bool = False,
    processed: bool = False,
    said: dict[str, Any] | None = None,
    scored: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments of ``write_store``.

    Tokens are drawn at the given setting; ``said`` is the setting that the metadata tell, ``scored`` the one of the
    log-probabilities and entropies; both are the true one by default. Lists are of the plain softmax, or ``processed``.
    """
    rng = np.random.default_rng(seed)
    own = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "last": last, "joint": joint}
    lengths = rng.integers(1, 2 * length, rollouts)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    rows = int(indptr[-1])
    logits = rng.normal(size=(rows, VOCAB)) * rng.choice([0.5, 2.0, 5.0], (rows, 1))
    raw = log_softmax(logits)
    tokens = draw(rng, decoded(raw, **own))
    scores = decoded(raw, **(scored or own))
    log_p = scores[np.arange(rows), tokens]
    entropy, varentropy = spread(scores)
    raw_entropy, raw_varentropy = spread(raw)
    told = {key: value for key, value in (said or own).items() if key not in ("last", "joint")}
    filters = ["joint"] if (said or own).get("joint") else ["top_k", "top_p", "min_p"]
    told["order"] = [*filters, "temperature"] if (said or own).get("last") else ["temperature", *filters]
    return {
        "rollout_ids": [f"r{i}" for i in range(rollouts)],
        "prompt_ids": [f"p{i // 2}" for i in range(rollouts)],
        "prompt_tokens": [np.array([i // 2, 7, 9]) for i in range(rollouts)],
        "tokens": tokens,
        "indptr": indptr,
        "log_p": log_p,
        "drafters": drafters(rng, logits, tokens, indptr, temperature),
        "parts": {
            "divergence": {
                "entropy": entropy,
                "varentropy": varentropy,
                "raw_entropy": raw_entropy,
                "raw_varentropy": raw_varentropy,
            },
            "lists": lists(scores if processed else raw, width, "log_p"),
        },
        "metadata": {"vocab_size": VOCAB, "sampling": told, "logprob_space": "processed"},
    }


def drafters(
    rng: np.random.Generator, logits: Array, tokens: Array, indptr: Array, temperature: float
) -> dict[str, ms.Drafts]:
    """One of each sort: sampled, a block, greedy, and one that proposes now and then."""
    rows, every = len(tokens), np.arange(len(tokens))
    q = log_softmax(logits + rng.normal(size=logits.shape))
    rank = 1 + (q > q[every, tokens][:, None]).sum(-1)
    drawn = decoded(q, temperature or 1.0)
    soft = ms.Drafts(
        "soft",
        "autoregressive",
        "rejection",
        drawn[every, tokens],
        rank,
        parts={"lists": lists(q, 5, "log_q")},
        metadata={"sampling": {"temperature": temperature or 1.0}},
    )
    greedy = ms.Drafts(
        "greedy",
        "autoregressive",
        "match",
        np.where(rank == 1, 0, -np.inf),
        np.where(rank == 1, 1, 2**31 - 1),
        parts={"lists": lists(q, 1, "log_q") | {"log_q": np.zeros((rows, 1)), "tail_mass": np.zeros(rows)}},
    )
    at = np.minimum(every[:, None] + np.arange(DEPTH), rows - 1)
    deep = log_softmax(logits[at] + rng.normal(size=(rows, DEPTH, VOCAB)) * [[[1], [2], [3]]])
    own = np.take_along_axis(deep, tokens[at][..., None], -1)[..., 0]
    block = ms.Drafts(
        "block",
        "block",
        "rejection",
        own,
        parts={"lists": lists(deep, 4, "log_q")},
        metadata={"sampling": {"temperature": 1.0}},
    )
    proposed = np.where(rng.random((rows, DEPTH)) < 0.3, tokens[at], rng.integers(0, VOCAB, (rows, DEPTH)))
    drafted = rng.integers(0, DEPTH + 1, rows)
    given_ = np.arange(DEPTH) < drafted[:, None]
    hit = (proposed == tokens[at]) & given_
    lookup = ms.Drafts(
        "lookup",
        "block",
        "match",
        np.where(hit, 0, -np.inf),
        np.where(hit, 1, 2**31 - 1),
        drafted,
        parts={
            "lists": {
                "ids": np.where(given_, proposed, -1).astype(np.int32)[..., None],
                "log_q": np.where(given_, 0, -np.inf)[..., None],
            }
        },
    )
    return {drafts.name: drafts for drafts in (soft, greedy, block, lookup)}


def findings(path: Path, arguments: dict[str, Any]) -> list[ms.store.Finding]:
    """What a check finds in the store of these arguments, its notes left out."""
    store = ms.write_store(path, **arguments, overwrite=True)
    return [found for found in ms.store.check_integrity(store.path) if found.severity != "note"]


def alarm(path: Path, arguments: dict[str, Any]) -> str:
    """The one warning of a check of the store of these arguments."""
    (finding,) = findings(path, arguments)
    assert finding.severity == "warning"
    return f"{finding.where}: {finding.message}"
