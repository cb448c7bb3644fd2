"""Generate rollouts with the target, in batches, so that each depends on its own seed and prompt alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import DynamicCache

from markov_spec.sources.models import CausalLM, fault
from markov_spec.sources.rows import Rows
from markov_spec.sources.sampling import Sampling, draw


@dataclass(frozen=True)
class Generated:
    """One rollout: token ids, the log-probability (nats) each was drawn with, and ``"stop"`` or ``"length"``."""

    tokens: list[int]
    log_p: list[float]
    finish_reason: str


def generate(
    target: CausalLM,
    prompts: Sequence[Sequence[int]],
    *,
    seeds: Sequence[Sequence[int]],
    sampling: Sampling,
    max_new_tokens: int,
    batch_size: int,
    names: Sequence[str] | None = None,
    advance: Callable[[int], object] = lambda count: None,
) -> Iterator[Generated]:
    """Generate one rollout for each prompt, a batch at a time when its first rollout is asked for.

    Parameters
    ----------
    target : CausalLM
    prompts : sequence of sequences of int, (R,)
    seeds : sequence of sequences of int, (R,)
        Each rollout's own stream of uniforms is seeded by its entry, so that batching changes no draw.
    sampling : Sampling
    max_new_tokens : int
    batch_size : int
        Prompts decoded together, left-padded; rows that have ended leave the batch.
    names : sequence of str, (R,), optional
        Of the rollouts, for errors; their numbers by default.
    advance : callable
        Told the number of rollouts that have just ended.

    Yields
    ------
    Generated
        In the order of the prompts.

    Raises
    ------
    ValueError
        On logits that are no numbers, naming the rollout and the position.
    """
    called = [str(i) for i in range(len(prompts))] if names is None else names
    for first in range(0, len(prompts), batch_size):
        rows = slice(first, first + batch_size)
        streams = [np.random.default_rng(list(seed)) for seed in seeds[rows]]
        yield from _batch(target, prompts[rows], streams, called[rows], sampling, max_new_tokens, advance)


@torch.inference_mode()
def _batch(
    target: CausalLM,
    prompts: Sequence[Sequence[int]],
    streams: list[np.random.Generator],
    names: Sequence[str],
    sampling: Sampling,
    max_new_tokens: int,
    advance: Callable[[int], object],
) -> list[Generated]:
    stop_ids = set(target.stop_ids)
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    ids, mask = ids.to(target.device), mask.to(target.device)
    cache = DynamicCache(config=target.model.config)
    place = (mask.cumsum(-1) - 1).clamp_min(0)
    rollouts = [Generated([], [], "length") for _ in prompts]
    alive = list(range(len(prompts)))
    for step in range(max_new_tokens):
        out = target.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=place,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        if (wrong := fault(out.logits[:, -1])) is not None:
            raise ValueError(f"rollout {names[alive[wrong[0]]]!r}, position {step}: {wrong[1]}")
        log_p = Rows(out.logits[:, -1].float()).decoded(sampling).log(slice(None))
        uniforms = torch.tensor([streams[i].random() for i in alive], dtype=torch.float64, device=log_p.device)
        drawn = draw(log_p, uniforms)
        chances = log_p.gather(-1, drawn[:, None])[:, 0]
        staying = []
        for row, (i, token, chance) in enumerate(zip(alive, drawn.tolist(), chances.tolist(), strict=True)):
            rollouts[i].tokens.append(token)
            rollouts[i].log_p.append(min(chance, 0.0))
            if token in stop_ids:
                rollouts[i] = Generated(rollouts[i].tokens, rollouts[i].log_p, "stop")
            elif step + 1 < max_new_tokens:
                staying.append(row)
        advance(len(alive) - len(staying))
        if not staying:
            break
        if len(staying) < len(alive):
            keep = torch.tensor(staying, device=mask.device)
            cache.batch_select_indices(keep)
            mask, place, drawn = mask[keep], place[keep], drawn[keep]
            alive = [alive[row] for row in staying]
        ids = drawn[:, None]
        mask = torch.cat([mask, torch.ones_like(ids)], dim=-1)
        place = place[:, -1:] + 1
    return rollouts
