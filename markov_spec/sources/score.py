"""The target's distributions along one rollout, while its drafters are scored, and columns as they pile up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from markov_spec.arrays import Array, RequestError
from markov_spec.sources.drafters import BlockDrafter, Drafter, Lookup, check_causal
from markov_spec.sources.models import CausalLM
from markov_spec.sources.rows import Rows
from markov_spec.sources.sampling import Sampling

Columns = dict[str, dict[str, Array]]


@dataclass(frozen=True, eq=False)
class Scored:
    """The target's distributions along one rollout, ``T`` rows: ``raw`` is the plain softmax, ``decode`` drawn from.

    ``known`` is the number of ids that the tokenizer has.
    """

    sequence: list[int]
    first: int
    raw: Rows
    decode: Rows
    hidden: Sequence[Tensor]
    stop_ids: Sequence[int]
    known: int

    @property
    def vocab_size(self) -> int:
        """Columns of the target."""
        return self.raw.logits.shape[-1]

    @cached_property
    def tokens(self) -> Tensor:
        """The rollout's own tokens, (T,)."""
        return torch.tensor(self.sequence[self.first :], device=self.raw.logits.device)

    def hidden_of(self, drafter: BlockDrafter) -> Tensor | None:
        """The hidden states that a block drafter asks for, side by side, ``(L, H * layers)``."""
        layers = drafter.hidden_layers
        for layer in layers:
            if not -len(self.hidden) <= layer < len(self.hidden):
                raise ValueError(f"block drafter: hidden layer: found {layer}; allowed: -1 to {len(self.hidden) - 1}")
        return torch.cat([self.hidden[layer] for layer in layers], -1) if layers else None

    def apart_from(self, log_p: Sequence[float]) -> tuple[float, int]:
        """Compare the scored with the generated log-probabilities, which another order of sums may part.

        Returns
        -------
        float
            Largest distance (nats); at temperature 0 it is 0.
        int
            How many of the generated tokens the scored distributions do not give at all: near-ties at a filter's edge,
            or of the argmax.
        """
        scored = self.decode.of(self.tokens).cpu().numpy()
        possible = scored > -np.inf
        distances = np.abs(scored - np.asarray(log_p))[possible]
        return float(distances.max(initial=0)), int((~possible).sum())


def score_target(
    target: CausalLM, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling, *, hidden: bool
) -> Scored:
    """Read the target's distributions along one rollout, and its hidden states if some drafter reads them."""
    sequence = [*prompt, *tokens]
    logits, states = target.scores(sequence, len(prompt), hidden=hidden)
    raw = Rows(logits.float())
    stop_ids = [v for v in target.stop_ids if v < logits.shape[-1]]  # one beyond the vocabulary never occurs
    return Scored(sequence, len(prompt), raw, raw.decoded(sampling), states, stop_ids, target.known)


@dataclass(eq=False)
class Pile:
    """Columns of one drafter or of the target, rollout after rollout."""

    parts: dict[str, dict[str, list[Array]]] = field(default_factory=dict)

    def add(self, columns: Columns) -> None:
        """Append one rollout's columns."""
        for part, content in columns.items():
            for name, values in content.items():
                self.parts.setdefault(part, {}).setdefault(name, []).append(values)

    def stacked(self) -> Columns:
        """Concatenate the rollouts' rows."""
        return {
            part: {name: np.concatenate(rows) for name, rows in content.items()} for part, content in self.parts.items()
        }


def check_blocks(drafters: Mapping[str, Drafter], scored: Scored) -> None:
    """Refuse block drafters that read what is not known when they draft; see `check_causal`."""
    sequence = torch.tensor(scored.sequence, device=scored.tokens.device)
    for name, drafter in drafters.items():
        if not isinstance(drafter, CausalLM | Lookup):
            with within(f"drafter {name!r}"):
                check_causal(drafter, sequence, scored.first, scored.hidden_of(drafter), scored.vocab_size)


@contextmanager
def within(where: str) -> Iterator[None]:
    """Put before what is wrong where it is."""
    try:
        yield
    except ValueError as error:
        kind = RequestError if isinstance(error, RequestError) else ValueError
        raise kind(f"{where}: {error}") from error
