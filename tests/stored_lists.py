"""A small store whose block drafter has lists of whole distributions, and its trees built and walked."""

import itertools

import numpy as np

import markov_spec as ms
from tests.drafting.samples import lists, rollout

LENGTHS = [7, 1, 0, 12, 5]
INDPTR = np.concatenate([[0], np.cumsum(LENGTHS)])
N, D, V = int(INDPTR[-1]), 4, 6
PROMPTS = [3, 3, 4, 4, 9]


def recorded():
    """Lists of every start, the rollouts' tokens, and the law's columns, NaN and ABSENT past the ends."""
    rng = np.random.default_rng(4)
    ids, log_q = lists(rng, N, D, V)
    tokens = rollout(rng, ids[:, :1], log_q[:, :1])[:, 0]
    ends = np.repeat(INDPTR[1:], LENGTHS)
    past = np.arange(N)[:, None] + np.arange(D) >= ends[:, None]
    own = np.take(tokens, np.minimum(np.arange(N)[:, None] + np.arange(D), N - 1))
    place = (ids == own[..., None]).argmax(-1)
    law = np.take_along_axis(log_q, place[..., None], -1)[..., 0]
    return ids, log_q, tokens, np.where(past, np.nan, law), np.where(past, 2**31 - 1, place + 1)


def write(path, given, width=V):
    """The store, of lists of ``width`` tokens; drafters without lists stand beside."""
    ids, log_q, tokens, law, rank = given
    part = {"ids": ids[..., :width], "log_q": log_q[..., :width]}
    drafters = {
        "block": ms.Drafts("block", "block", "rejection", law, rank, parts={"lists": part}),
        "bare": ms.Drafts("bare", "block", "rejection", law, rank),
        "auto": ms.Drafts("auto", "autoregressive", "rejection", law[:, 0], rank[:, 0]),
    }
    return ms.write_store(
        path, rollout_ids=list("abcde"), prompt_ids=list("ppqqr"), tokens=tokens, indptr=INDPTR,
        prompt_tokens=[[1] * n for n in PROMPTS], log_p=np.full(N, -1.0), drafters=drafters,
        metadata={"vocab_size": V},
    )  # fmt: skip


def walked(given, builder, budget, depth=D):
    """Accepted drafts and nodes from every start, of trees that are built and walked from the root."""
    ids, log_q, tokens, _, _ = given
    accepted, nodes = np.zeros(N, int), np.zeros(N, int)
    for a, b in itertools.pairwise(INDPTR):
        for s in range(a, b):
            tree = ms.build_tree(ids[s, :depth], log_q[s, :depth], budget=budget, builder=builder)
            children = {(int(p), int(x)): i for i, (p, x) in enumerate(zip(tree.parents, tree.tokens, strict=True))}
            at, nodes[s] = -1, len(tree.tokens)
            while s + accepted[s] < b and (at, int(tokens[s + accepted[s]])) in children:
                at = children[at, int(tokens[s + accepted[s]])]
                accepted[s] += 1
    return accepted, nodes


def decoded(accepted, first_start=0):
    """Rounds of each rollout, and all starts, of literal decoding."""
    rounds, starts = [], []
    for a, b in itertools.pairwise(INDPTR):
        s, count = a + first_start, 0
        while s < b:
            starts.append(s)
            s, count = s + accepted[s] + 1, count + 1
        rounds.append(count)
    return np.array(rounds), starts
