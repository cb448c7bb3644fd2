"""A small store with every kind of token class, and the classes of its tokens by hand."""

import numpy as np

import markov_spec as ms
from tests import stored_lists
from tests.stored_lists import INDPTR, LENGTHS, D, N

IDS, BENCHMARKS = list("abcde"), ["chat", "chat", "code", "code", "math"]
VOCAB = {0: " the", 1: " 42", 2: ".", 3: "+=", 4: "\n", 5: "<b>"}
TEXT = {0: "word", 1: "digit", 2: "punctuation", 3: "code", 4: "whitespace", 5: "end"}
SPACE = {"logprob_space": "processed"}
PAIRS = [
    ("auto", "block"),
    ("auto:K=2", "auto:K=9"),
    ("block:rule=block", "lookup"),
    ("block:tree=best-first,budget=5", "auto:K=3,rule=independent"),
    ("block:tree=eagle2,budget=6", "block:tree=static,budget=1"),
    ("lookup:rule=none", "block:K=2"),
]


def contents():
    """Lists of the target, the entropy of its tokens, and drafters, on the rollouts of `stored_lists`."""
    rng = np.random.default_rng(11)
    ids, log_q, tokens, law, rank = stored_lists.recorded()
    p = -np.sort(-rng.dirichlet(np.full(3, 0.7), N), axis=1)
    p[:2] = [[1, 0, 0], [0.5, 0.5, 0]]
    with np.errstate(divide="ignore"):
        lists = {"ids": np.argsort(rng.random((N, 6)), axis=1)[:, :3], "log_p": np.log(p)}
        lists["ids"][np.isneginf(lists["log_p"])] = -1
    spread = rng.choice([0.0, 0.05, 0.25, 0.5, 1.0, 1.7, 3.0, 4.0, 7.0], N).astype(np.float32)
    past = np.isnan(law)
    hit = np.where(past, np.nan, np.where(rng.random((N, D)) < 0.6, 0, -np.inf))
    drafters = {
        "block": ms.Drafts("block", "block", "rejection", law, rank, parts={"lists": {"ids": ids, "log_q": log_q}}),
        "auto": ms.Drafts("auto", "autoregressive", "rejection", np.log(rng.uniform(0.05, 1, N))),
        "lookup": ms.Drafts("lookup", "block", "match", hit, drafted=rng.integers(0, D + 1, N)),
    }
    return tokens, lists, spread, drafters


def write(
    path,
    *,
    parts=("divergence", "lists"),
    vocab=VOCAB,
    metadata=None,
    covered=None,
    divergence=None,
    benchmarks=BENCHMARKS,
):
    tokens, lists, spread, drafters = contents()
    own = {"divergence": {"entropy": spread} if divergence is None else divergence, "lists": dict(lists)}
    if covered is not None:
        rows = np.repeat(covered, LENGTHS)
        own["lists"] = {name: values[rows] for name, values in lists.items()} | {"covered": np.array(covered)}
    return ms.write_store(
        path, rollout_ids=IDS, prompt_ids=list("ppqqr"), benchmarks=benchmarks, tokens=tokens, indptr=INDPTR,
        log_p=np.full(N, -1.0), drafters=drafters, vocab=vocab, parts={name: own[name] for name in parts},
        metadata={"vocab_size": 6, "stop_ids": [5], **(metadata or {})},
    )  # fmt: skip


def bucket(value, breaks, labels):
    return labels[sum(value >= b for b in breaks)]


def classes_of(row, position):
    tokens, lists, spread, _ = contents()
    top = np.exp(np.asarray(lists["log_p"], np.float32).astype(float))
    entropy = ("0 to 0.1", "0.1 to 0.5", "0.5 to 1", "1 to 2", "2 to 4", "4 on")
    margin = ("0 to 0.1", "0.1 to 0.25", "0.25 to 0.5", "0.5 to 0.75", "0.75 to 0.9", "0.9 to 1")
    return {
        "position": "0 to 7" if position < 8 else "8 to 31",
        "entropy": bucket(spread[row], (0.1, 0.5, 1, 2, 4), entropy),
        "margin": bucket(top[row, 0] - top[row, 1], (0.1, 0.25, 0.5, 0.75, 0.9), margin),
        "text": TEXT[int(tokens[row])],
    }
