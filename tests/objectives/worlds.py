"""A toy target and a toy block drafter whose logits are tensors, enumerated by ``tests.oracles``."""

from __future__ import annotations

import numpy as np
import torch

from tests import oracles


class TensorWorld:
    """A drafter with a row of logits for each prefix and depth; ``q`` may be shifted along a direction."""

    def __init__(self, seed: int, vocabulary: int, cap: int, depth: int) -> None:
        self.vocabulary, self.cap, self.depth = vocabulary, cap, depth
        self.rng = torch.Generator().manual_seed(seed)
        self.rows: dict[object, torch.Tensor] = {}
        self.shift = 0.0

    def _logits(self, key: object) -> torch.Tensor:
        if key not in self.rows:
            self.rows[key] = torch.randn(self.vocabulary, generator=self.rng, dtype=torch.float64) * 1.2
        return self.rows[key]

    def logits_p(self, prefix: tuple) -> torch.Tensor:
        return self._logits(("p", prefix))

    def logits_q(self, prefix: tuple, depth: int) -> torch.Tensor:
        return self._logits(("q", prefix, depth)) + self.shift * self._logits(("way", prefix, depth))

    def p(self, context: tuple) -> np.ndarray:
        return torch.softmax(self.logits_p(context), -1).numpy()

    def q(self, prefix: tuple, drafts: tuple) -> np.ndarray:
        return torch.softmax(self.logits_q(prefix, len(drafts)), -1).numpy()

    def enumerated(self, rule: str, first_start: int, stop: int | None) -> dict:
        """Every output with the probabilities of its histories, at the present shift."""
        return oracles.decode(
            self, rule, (self.depth,) * self.cap, self.cap, first_start=first_start, stop=stop
        )  # fmt: skip


def expected_rounds(outcomes: dict) -> float:
    """Rounds of literal decoding, averaged over outputs and histories."""
    return sum(mass * len(history) for histories in outcomes.values() for history, mass in histories.items())


def as_batch(world, outputs: list[tuple], depth: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draft logits, target logits, tokens and lengths of rollouts; padding is NaN."""
    size, vocabulary = max(map(len, outputs)), world.vocabulary
    draft = torch.full((len(outputs), size, depth, vocabulary), torch.nan, dtype=torch.float64)
    target = torch.full((len(outputs), size, vocabulary), torch.nan, dtype=torch.float64)
    tokens = torch.full((len(outputs), size), -100)
    for b, output in enumerate(outputs):
        tokens[b, : len(output)] = torch.tensor(output)
        for t in range(len(output)):
            target[b, t] = torch.tensor(world.p(output[:t])).log()
            for k in range(1, min(depth, len(output) - t) + 1):
                draft[b, t, k - 1] = torch.tensor(world.q(output[:t], output[t : t + k - 1])).log()
    return draft, target, tokens, torch.tensor([len(output) for output in outputs])
