"""Train the heads of the ``block`` drafter on the target's own text, so that the target accepts them.

Each start of a rollout gives a row; depth ``k`` learns the distribution that the target had ``k`` rows later. After a
first part on cross-entropy the loss is ``-log sum_v min(p(v), q(v))`` (LK-alpha, arXiv 2602.23881), where a cell weighs
what its start's survival is: the probability that the depths before it were accepted. The output head stays frozen and
is cut to the most frequent token ids of the text.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from block_drafter import BlockHeads
from safetensors.torch import load_file, save_file
from torch import Tensor

import markov_spec as ms
from markov_spec.metrics import conditional_rates
from markov_spec.sources.models import CausalLM

DEPTH, TRUNK, RANK, MATCH = 8, 256, 56, 64
EPOCHS, ROLLOUTS, RATE = 6, 12, 3e-3
IDS = 8192


@dataclass(frozen=True)
class Text:
    """Features of sequences, one after the other, ``L - 1`` rows for ``L`` tokens of prompt and rollout.

    Row ``i`` holds the last hidden state after token ``i`` and token ``i+1``: the state is that token's own
    distribution, and both are known at start ``i+2``. ``log_z`` normalises the logits of the state; ``firsts`` counts
    the rows before the one whose start is the rollout's first token.
    """

    states: Tensor
    tokens: Tensor
    log_z: Tensor
    firsts: Tensor
    offsets: Tensor


@torch.inference_mode()
def features(target: CausalLM, texts: Sequence[dict[str, list[int]]], out: Path) -> None:
    """Save what training reads of the target along texts."""
    head = target.model.get_output_embeddings().weight
    rows: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    texts = sorted(texts, key=lambda text: len(text["prompt"]) + len(text["tokens"]))
    for at in range(0, len(texts), 20):
        batch = [text["prompt"] + text["tokens"] for text in texts[at : at + 20]]
        ids = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.int64)
        for row, sequence in enumerate(batch):
            ids[row, : len(sequence)] = torch.tensor(sequence)
        hidden = target.model.base_model(ids, use_cache=False).last_hidden_state
        for row, text in enumerate(texts[at : at + 20]):
            first, end = len(text["prompt"]) - 2, len(batch[row])
            states = hidden[row, : end - 1]
            log_z = torch.zeros(end - 1)
            log_z[first:] = (states[first:] @ head.T).float().logsumexp(-1)
            rows.append((states.half(), ids[row, 1:end].int(), log_z, torch.tensor([first])))
    sizes = torch.tensor([len(tokens) for _, tokens, _, _ in rows])
    columns = dict(zip(("states", "tokens", "log_z", "firsts"), map(torch.cat, zip(*rows, strict=True)), strict=True))
    save_file({**columns, "sizes": sizes}, out)


def load(paths: Sequence[Path]) -> Text:
    """Read the features of several shards as one text."""
    shards = [load_file(path) for path in paths]
    columns = {name: torch.cat([shard[name] for shard in shards]) for name in shards[0]}
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), columns.pop("sizes").cumsum(0)])
    return Text(**columns, offsets=offsets)


def train(target: CausalLM, text: Text, held_out: Text, out: Path, *, epochs: int = EPOCHS) -> list[float | None]:
    """Train the heads, save them in half precision, and give their held-out conditional acceptance by depth."""
    torch.manual_seed(0)
    embeddings = target.model.get_input_embeddings().weight.detach().float()
    counts = torch.bincount(text.tokens[text.log_z != 0], minlength=len(embeddings))
    ids = counts.topk(min(IDS, int((counts > 0).sum()))).indices.sort().values
    cut = target.model.get_output_embeddings().weight.detach().float()[ids]
    narrow, place = cut.bfloat16(), _places(ids, len(embeddings))
    heads = BlockHeads(cut.shape[1], DEPTH, TRUNK, RANK, MATCH)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    each = (len(text.offsets) - 1) // ROLLOUTS
    steps = epochs * each
    for step in range(steps):
        if step % each == 0:
            batches = torch.randperm(len(text.offsets) - 1)[: each * ROLLOUTS].view(each, ROLLOUTS)
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))
        loss = _loss(heads, text, batches[step % each], embeddings, narrow, place, overlap=step > 0.3 * steps)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
        optimizer.step()
        if step % each == each - 1:
            rates = acceptance(heads, held_out, embeddings, cut, ids)
            shown = " ".join(f"{rate or 0:.3f}" for rate in rates)
            print(
                f"train: step {step + 1} of {steps}, held-out acceptance by depth {shown}", file=sys.stderr, flush=True
            )
    save_file({name: value.detach().half() for name, value in heads.state_dict().items()} | {"ids": ids.int()}, out)
    return acceptance(heads, held_out, embeddings, cut, ids)


def _sequence(text: Text, which: int, embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """States, embeddings, tokens and log-normalisers of one sequence, and its first row."""
    rows = slice(int(text.offsets[which]), int(text.offsets[which + 1]))
    states, tokens = text.states[rows].float(), text.tokens[rows].long()
    return states, embeddings[tokens], tokens, text.log_z[rows], int(text.firsts[which])


def _loss(
    heads: BlockHeads, text: Text, chosen: Tensor, embeddings: Tensor, cut: Tensor, place: Tensor, *, overlap: bool
) -> Tensor:
    """Loss (nats) of some rollouts, a mean over the depths; matrix products in bfloat16."""
    wanted, tokens, begin = [], [], 0
    drafted: list[list[Tensor]] = [[] for _ in range(DEPTH)]
    begun: list[list[Tensor]] = [[] for _ in range(DEPTH)]
    for which in chosen.tolist():
        states, embedded, own, log_z, first = _sequence(text, which, embeddings)
        rows = torch.arange(first, len(states) - 1)
        blocks = heads(states, embedded, rows)
        wanted.append(((states[first:].bfloat16() @ cut.T).float() - log_z[first:, None]).exp())
        tokens.append(place[own[first:]])
        for k in range(min(DEPTH, len(rows))):
            drafted[k].append(blocks[k, : len(rows) - k].bfloat16())
            begun[k].append(begin + torch.arange(len(rows) - k))
        begin += len(states) - first
    known, realised = torch.cat(wanted), torch.cat(tokens)
    reached, losses = torch.ones(begin), []
    for k in range(DEPTH):
        starts = torch.cat(begun[k])
        p = known[starts + k + 1]
        log_q = torch.log_softmax((torch.cat(drafted[k]) @ cut.T).float(), -1)
        if overlap:
            cells = -torch.minimum(p, log_q.exp()).sum(-1).clamp_min(1e-6).log()
        else:
            cells = -(p * log_q).sum(-1)
        weights = reached[starts] if overlap else torch.ones(len(starts))
        losses.append((weights * cells).sum() / weights.sum().clamp_min(1.0))
        token = realised[starts + k + 1, None]
        at = token.clamp_min(0)
        ratio = log_q.detach().gather(-1, at).exp() / p.gather(-1, at).clamp_min(1e-30)
        reached[starts] *= torch.where(token < 0, 0.0, ratio.clamp_max(1.0))[:, 0]
    return torch.stack(losses).mean()


def _places(ids: Tensor, size: int) -> Tensor:
    """Column of each token id among ``ids``, -1 for others."""
    place = torch.full((size,), -1)
    place[ids] = torch.arange(len(ids))
    return place


@torch.inference_mode()
def acceptance(heads: BlockHeads, text: Text, embeddings: Tensor, cut: Tensor, ids: Tensor) -> list[float | None]:
    """Conditional acceptance by depth on rollouts, rejection sampling at temperature 1."""
    place = _places(ids, len(embeddings))
    log_q, log_p, lengths = [], [], []
    for which in range(len(text.offsets) - 1):
        states, embedded, tokens, log_z, first = _sequence(text, which, embeddings)
        length = len(states) - 1 - first
        known = torch.log_softmax(heads(states, embedded, torch.arange(first, len(states) - 1)) @ cut.T, -1)
        realised = tokens[first + 1 :]
        cells = torch.full((length, DEPTH), -torch.inf)
        for k in range(min(DEPTH, length)):
            at = place[realised[k:]]
            values = known[k, : length - k].gather(-1, at[:, None].clamp_min(0))[:, 0]
            cells[: length - k, k] = torch.where(at >= 0, values, -torch.inf)
        log_q.append(cells.numpy())
        log_p.append(((states[first + 1 :] * embeddings[realised]).sum(-1) - log_z[first + 1 :]).clamp_max(0).numpy())
        lengths.append(length)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    rounds = ms.solve(ms.round_law(np.concatenate(log_p), np.concatenate(log_q), indptr, rule="rejection"))
    return conditional_rates(rounds.accepted_histogram.sum(0), rounds.tested.sum(0))
