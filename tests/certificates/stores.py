"""Small stores of greedy rollouts with whole distributions beside them, and what rules accept by these."""

import numpy as np
from scipy import special

import markov_spec as ms

V, K = 6, 3
INDPTR = np.array([0, 9, 9, 10, 24])
N = int(INDPTR[-1])


def softmax(z):
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def lists(p, width, log):
    ids = np.argsort(-p, axis=-1, kind="stable")[..., :width]
    logs = np.log(np.take_along_axis(p, ids, -1))
    return {"ids": ids, log: logs, "tail_mass": np.clip(1 - np.exp(logs).sum(-1), 0, 1)}


def write(path, target_top=V, own_top=4):
    """Greedy rollouts of a target, with an autoregressive and a block drafter near it; whole distributions beside."""
    rng = np.random.default_rng(6)
    z = rng.normal(size=(N, V)) * rng.choice([1, 4], (N, 1))
    p, q = softmax(z), softmax(z + 0.4 * rng.normal(size=z.shape))
    at = np.minimum(np.arange(N)[:, None] + np.arange(K), N - 1)
    deep = softmax(z[at] + 0.3 * rng.normal(size=(N, K, V)) * np.arange(1, K + 1)[:, None])
    tokens = p.argmax(-1)
    drafters = {}
    for name, kind, own, target in (("auto", "autoregressive", q, p), ("block", "block", deep, p[at])):
        kl = (target * np.log(target / own)).sum(-1)
        rank = 1 + (own > np.take_along_axis(own, tokens[at][..., None] if own.ndim == 3 else tokens[:, None], -1)).sum(
            -1
        )
        parts = {"divergence": {"raw_kl_pq": kl}, "lists": lists(own, own_top, "log_q")}
        hit = np.where(rank == 1, 0, -np.inf)
        drafters[name] = ms.Drafts(name, kind, "match", hit, rank, parts=parts)
    store = ms.write_store(
        path, rollout_ids=list("abcd"), prompt_ids=list("ppqq"), benchmarks=["x", "x", "y", "y"],
        tokens=tokens, indptr=INDPTR, log_p=np.zeros(N), drafters=drafters,
        parts={"lists": lists(p, target_top, "log_p"), "divergence": {"raw_entropy": special.entr(p).sum(-1)}},
        metadata={"sampling": {"temperature": 0.0}, "vocab_size": V},
    )  # fmt: skip
    return store, p, q, deep


def write_small(path):
    """One greedy rollout of five tokens, whose third is not the target's best and whose fifth is tied; KL 0 or more."""
    p = np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.5, 0.5]])
    part = {"divergence": {"raw_kl_pq": np.array([0, 0, 0, np.inf, 0])}, "lists": lists(p, 2, "log_q")}
    drafters = {
        "auto": ms.Drafts("auto", "autoregressive", "rejection", np.full(5, -1.0), parts=part),
        "some": ms.Drafts(
            "some", "autoregressive", "rejection", np.full(5, -1.0), drafted=np.array([1, 0, 3, 1, 0]), parts=part
        ),
        "deep": ms.Drafts(
            "deep", "block", "rejection", np.full((5, 2), -1.0), parts={"divergence": {"raw_kl_pq": np.zeros((5, 2))}}
        ),
        "few": ms.Drafts(
            "few", "block", "rejection", np.full((5, 1), -1.0), drafted=np.array([0, 1, 1, 1, 1]),
            parts={name: {key: value[:, None] for key, value in own.items()} for name, own in part.items()},
        ),
    }  # fmt: skip
    return ms.write_store(
        path, rollout_ids=["a"], prompt_ids=["p"], tokens=[0, 0, 1, 0, 0], indptr=[0, 5],
        drafters=drafters, log_p=np.zeros(5), parts={"lists": lists(p, 2, "log_p")},
        metadata={"sampling": {"temperature": 0.0}},
    )  # fmt: skip


def literal(rule, settings, p, q):
    """Whether the rule accepts what the drafter proposes, from whole distributions."""
    best, draft = p.argmax(-1), q.argmax(-1)
    value, top = np.take_along_axis(p, draft[..., None], -1)[..., 0], p.max(-1)
    if rule == "strict":
        return draft == best
    if rule == "tree":
        return (np.argsort(-q, axis=-1)[..., : settings["m"]] == best[..., None]).any(-1)
    if rule == "additive":
        return value >= top - settings["t"]
    if rule == "multiplicative":
        return value >= settings["alpha"] * top
    if rule == "typical":
        return value > np.minimum(settings["epsilon"], settings["delta"] * np.exp(-special.entr(p).sum(-1)))
    return (p > value[..., None]).sum(-1) < settings["m"]


def cells(world, name):
    """The drafter's distribution of each cell, the position that it is of, and whether it is inside its rollout."""
    _, _, q, deep = world
    own = q[:, None] if name == "auto" else deep
    at = np.minimum(np.arange(N)[:, None] + np.arange(own.shape[1]), N - 1)
    left = np.repeat(INDPTR[1:], np.diff(INDPTR)) - np.arange(N)
    return own, at, np.arange(own.shape[1]) < left[:, None]
