"""Distributions over tokens in rows, reduced to numbers in float64, a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from markov_spec.arrays import ABSENT, Array
from markov_spec.sources.sampling import Sampling, argmax, log_probs, rank, top_list
from markov_spec.store.schema import NO_TOKEN

CHUNK_BYTES = 64 << 20
ROW_ARRAYS = 32  # of float64 over the vocabulary that the reduction of a chunk holds at a time
GPU_TIMES = 32  # so much larger are the chunks of a device that a few rows do not fill


@dataclass(frozen=True, eq=False)
class Rows:
    """Distributions over tokens, divided by their sums when they are read.

    Parameters
    ----------
    logits : Tensor of float32, (n, D)
        As the model gave them.
    ids : Tensor of int64, (D,), optional
        Token of each column, rising; all others are impossible. ``0..D-1`` by default.
    """

    logits: Tensor
    ids: Tensor | None = None

    @cached_property
    def sums(self) -> Tensor:
        """Log of the sum of each row in float64, ``(n, 1)``; in float32 it would be off by up to about 1e-5."""
        chunks = [self.logits[rows].double().logsumexp(-1, keepdim=True) for rows in self.chunks()]
        return torch.cat(chunks)

    def chunks(self) -> Iterator[slice]:
        """Cut the rows into chunks whose reduction takes little memory, a row at least."""
        return chunked(len(self.logits), self.logits)

    def decoded(self, sampling: Sampling) -> Rows:
        """From the plain softmax to the distributions that ``sampling`` draws from; itself if these are the same."""
        return self if sampling.plain else Rows(log_probs(self.logits, sampling), self.ids)

    def log(self, rows: slice, ids: Tensor | None = None) -> Tensor:
        """Give log-probabilities of some rows.

        Parameters
        ----------
        rows : slice
        ids : Tensor of int64, (M,), optional
            Of rows that have all tokens: the tokens, rising; ``-inf`` for one beyond them.

        Returns
        -------
        Tensor of float64, (rows, D) or (rows, M)
        """
        some = self.logits[rows]
        if ids is not None:
            inside = int((ids < some.shape[-1]).sum())
            some = pad(some[:, ids[:inside]], (0, len(ids) - inside), value=-torch.inf)
        return some.double() - self.sums[rows]

    def widened(self, rows: slice, size: int) -> Tensor:
        """Give log-probabilities of some rows over the tokens ``0..size-1``, or those that it has beyond."""
        own = self.log(rows)
        if self.ids is None:
            return pad(own, (0, max(0, size - own.shape[-1])), value=-torch.inf)
        full = own.new_full((len(own), max(size, int(self.ids[-1]) + 1)), -torch.inf)
        full[:, self.ids] = own
        return full

    def columns_of(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Column of each token, and whether it has one."""
        if self.ids is None:
            there = tokens < self.logits.shape[-1]
            return tokens.where(there, 0), there
        columns = torch.searchsorted(self.ids, tokens).clamp_max(len(self.ids) - 1)
        return columns, self.ids[columns] == tokens

    def of(self, tokens: Tensor) -> Tensor:
        """Log-probability of a token in each row, float64 ``(n,)``."""
        columns, there = self.columns_of(tokens)
        values = self.logits.gather(-1, columns[:, None]).double() - self.sums
        return values[:, 0].masked_fill(~there, -torch.inf)

    def ranks_of(self, tokens: Tensor) -> Tensor:
        """1-based rank of a token in each row, by value down and id up; ``ABSENT`` where it is impossible."""
        columns, there = self.columns_of(tokens)
        possible = there & (self.logits.gather(-1, columns[:, None])[:, 0] > -torch.inf)
        return torch.where(possible, rank(self.logits, columns), ABSENT)

    def best(self, rows: slice) -> Tensor:
        """Likeliest token of some rows, the lowest id of equals."""
        columns = argmax(self.logits[rows])
        return columns if self.ids is None else self.ids[columns]

    def lists(self, count: int, name: str) -> dict[str, Array]:
        """Ids and log-probabilities (``name``) of the likeliest tokens of each row, and the mass of all others.

        Where fewer than ``count`` tokens are possible, the rest of a list is no entry.
        """
        columns, logits = top_list(self.logits, count)
        found = columns if self.ids is None else self.ids[columns]
        values = logits.double() - self.sums
        tail = (1 - values.exp().sum(-1)).clamp(0, 1)
        short = (0, count - found.shape[-1])
        found = pad(found.masked_fill(values == -torch.inf, NO_TOKEN), short, value=NO_TOKEN)
        return {"ids": host(found), name: host(pad(values, short, value=-torch.inf)), "tail_mass": host(tail)}

    def mass_from(self, first: int) -> float:
        """Largest probability of a row on tokens from ``first`` on."""
        column = first if self.ids is None else int((self.ids < first).sum())
        return float((self.logits[:, column:].double() - self.sums).exp().sum(-1).amax())


def chunked(count: int, like: Tensor) -> Iterator[slice]:
    """Cut so many rows, as wide as those of ``like``, into chunks whose reduction takes little memory."""
    budget = CHUNK_BYTES * (1 if like.device.type == "cpu" else GPU_TIMES)
    step = max(1, budget // (8 * ROW_ARRAYS * like.shape[-1]))
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))


def host(values: Tensor) -> Array:
    """Move to the host in the types of the store."""
    array: Array = (values.float() if values.is_floating_point() else values.int()).cpu().numpy()
    return array
