"""The objectives as their formulas stand, cell by cell, with autograd's tape through everything; and random inputs.

Nothing here is shared with the package. ``held`` are logits that what a formula holds constant is computed from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Batch:
    """Logits and rollouts; ``starts`` None means every start."""

    draft: Tensor
    target: Tensor
    tokens: Tensor
    lengths: Tensor
    starts: Tensor | None = None
    mask: Tensor | None = None
    temperature: float = 1.0

    def blocks(self, draft: Tensor | None = None) -> list[tuple[int, list[Cell]]]:
        """The valid cells of every block, and whose rollout it is of."""
        out = []
        logits = self.draft if draft is None else draft
        rows, count, depth, _ = logits.shape
        for b in range(rows):
            for m in range(count):
                s = m if self.starts is None else int(self.starts[b, m])
                cells = []
                for k in range(1, depth + 1):
                    t = s + k - 1
                    if s < 0 or t >= int(self.lengths[b]) or (self.mask is not None and not self.mask[b, t]):
                        continue
                    q = torch.softmax(logits[b, m, k - 1] / self.temperature, -1)
                    p = torch.softmax(self.target[b, t] / self.temperature, -1)
                    cells.append(Cell(k, p, q, int(self.tokens[b, t])))
                out.append((b, cells))
        return out


@dataclass
class Cell:
    depth: int
    p: Tensor
    q: Tensor
    x: int

    @property
    def overlap(self) -> Tensor:
        return torch.minimum(self.p, self.q).sum()


def batch(
    seed: int, *, rows=3, size=5, depth=3, vocabulary=6, dtype=torch.float64, lengths=None, temperature=1.0
) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    draft = torch.randn(rows, size, depth, vocabulary, generator=rng, dtype=torch.float64) * 1.5
    target = torch.randn(rows, size, vocabulary, generator=rng, dtype=torch.float64) * 1.5
    tokens = torch.randint(0, vocabulary, (rows, size), generator=rng)
    if lengths is None:
        lengths = [size, max(size - 2, 0), 0, *range(1, rows)][:rows]
    return Batch(
        draft.to(dtype), target.to(dtype), tokens, torch.tensor(lengths, dtype=torch.int64), temperature=temperature
    )


def kl(p: Tensor, q: Tensor) -> Tensor:
    return sum(a * (a / b).log() for a, b in zip(p, q, strict=True) if a > 0)


def cross_entropy(cells, held):
    return [(-c.q[c.x].log(), 1.0) for c in cells]


def dflash_decay(cells, held):
    return [(-c.q[c.x].log(), math.exp(-(c.depth - 1) / 4)) for c in cells]


def d_pace(cells, held):
    lifted = [0.5 * float(c.q[c.x]) + 0.5 for c in held]
    return [
        (-c.q[c.x].log(), sum(math.prod(lifted[: j + 1]) for j in range(i, len(cells)))) for i, c in enumerate(cells)
    ]


def auf(cells, held):
    out, right = [], True
    for c in cells:
        out.append((-c.q[c.x].log(), float(right)))
        right = right and int(c.q.argmax()) == c.x
    return out


def chain(cells, held):
    return [(-torch.stack([c.q[c.x] for c in cells[: i + 1]]).prod(), 1.0) for i in range(len(cells))]


def e2e_tv(cells, held):
    return [(1 - torch.stack([c.overlap for c in cells[: i + 1]]).prod(), 1.0) for i in range(len(cells))]


def lk_lambda(cells, held):
    out = []
    for c, fixed in zip(cells, held, strict=True):
        lam = math.exp(-3 * float(fixed.overlap))
        out.append((lam * kl(c.p, c.q) + (1 - lam) * (1 - c.overlap), 1.0))
    return out


def top_m_kl(cells, held, m=4):
    out = []
    for c in cells:
        best = c.p.topk(m).indices
        out.append((kl(c.p[best] / c.p[best].sum(), c.q[best] / c.q[best].sum()), 1.0))
    return out


def jsd(cells, held):
    return [((kl(c.p, (c.p + c.q) / 2) + kl(c.q, (c.p + c.q) / 2)) / 2, 1.0) for c in cells]


CELLS: dict[str, Callable] = {
    "cross-entropy": cross_entropy,
    "dflash-decay": dflash_decay,
    "d-pace": d_pace,
    "auf": auf,
    "chain": chain,
    "e2e-tv": e2e_tv,
    "tv": lambda cells, held: [(1 - c.overlap, 1.0) for c in cells],
    "lk-alpha": lambda cells, held: [(-c.overlap.log(), 1.0) for c in cells],
    "lk-lambda": lk_lambda,
    "forward-kl": lambda cells, held: [(kl(c.p, c.q), 1.0) for c in cells],
    "reverse-kl": lambda cells, held: [(kl(c.q, c.p), 1.0) for c in cells],
    "jsd": jsd,
    "top-m-kl": top_m_kl,
}
PAPER = {"dflash-decay": "weight-mean", "d-pace": "batch-mean", "auf": "weight-mean", "chain": "block-mean",
         "e2e-tv": "block-mean"}  # fmt: skip


def baseline(name: str, given: Batch, draft: Tensor, *, held: Tensor | None = None, reduction: str = "paper") -> Tensor:
    """A baseline's loss of ``draft``, ``given`` but for it."""
    constant = given.blocks(draft.detach() if held is None else held)
    blocks = [
        (b, CELLS[name](cells, fixed))
        for (b, cells), (_, fixed) in zip(given.blocks(draft), constant, strict=True)
    ]  # fmt: skip
    chosen = PAPER.get(name, "token-mean") if reduction == "paper" else reduction
    every = [(w, loss) for _, cells in blocks for loss, w in cells]
    total = sum((w * loss for w, loss in every), torch.zeros((), dtype=draft.dtype))
    if chosen == "block-mean":
        means = [sum(w * loss for loss, w in cells) / len(cells) for _, cells in blocks if cells]
        return sum(means) / len(means)
    if chosen == "row-mean":
        rows = [[pair for b, cells in blocks if b == row for pair in cells] for row in range(draft.shape[0])]
        means = [sum(w * loss for loss, w in row) / len(row) for row in rows if row]
        return sum(means) / len(means)
    below = {
        "token-mean": len(every), "weight-mean": sum(w for w, _ in every), "batch-mean": draft.shape[0],
        "padded-mean": draft[..., 0].numel(), "sum": 1,
    }  # fmt: skip
    return total / below[chosen]


def acceptances(given: Batch, draft: Tensor, b: int, stops=()) -> tuple[dict, dict, dict]:
    """``a``, ``r`` and ``c`` of one rollout by (start, depth)."""
    a, r, c = {}, {}, {}
    for s in range(int(given.lengths[b])):
        for k in range(1, draft.shape[2] + 1):
            t = s + k - 1
            if t >= int(given.lengths[b]):
                continue
            q = torch.softmax(draft[b, s, k - 1] / given.temperature, -1)
            p = torch.softmax(given.target[b, t] / given.temperature, -1)
            r[s, k] = q[given.tokens[b, t]] / p[given.tokens[b, t]]
            a[s, k] = torch.clamp(r[s, k], max=1)
            ordinary = [v for v in range(p.numel()) if v not in stops]
            mass = p[ordinary].sum()
            c[s, k] = torch.relu(p - q)[ordinary].sum() / mass if mass > 0 else mass
    return a, r, c


def rollout_rounds(survive: dict, size: int, depth: int, first_start: int) -> Tensor:
    """Equation (V), sums over the law of N written out."""
    value = [torch.zeros((), dtype=torch.float64) for _ in range(size + depth + 2)]
    for s in reversed(range(size)):
        value[s] = torch.ones((), dtype=torch.float64)
        deepest = min(depth, size - s)
        for n in range(deepest + 1):
            mass = (survive[s, n] if n else 1.0) - (survive[s, n + 1] if n < deepest else 0.0)
            value[s] = value[s] + mass * value[min(s + n + 1, size)]
    return value[first_start] if first_start < size else torch.zeros((), dtype=torch.float64)


def edr(given: Batch, draft: Tensor, *, form="cost", rule="rejection", stops=(), first_start=0) -> list[Tensor]:
    """The objective of each rollout."""
    out, depth = [], draft.shape[2]
    for b in range(draft.shape[0]):
        size = int(given.lengths[b])
        a, r, c = acceptances(given, draft, b, stops)
        if form == "cost":
            out.append(cost_rounds(a, c, size, depth, first_start))
            continue
        survive = {}
        for s, k in a:
            if rule == "rejection":
                survive[s, k] = torch.stack([a[s, i] for i in range(1, k + 1)]).prod()
            else:
                ratios = torch.stack([torch.ones((), dtype=torch.float64), *(r[s, i] for i in range(1, k + 1))])
                survive[s, k] = ratios.cumprod(0).min()
        out.append(rollout_rounds(survive, size, depth, first_start))
    return out


def cost_rounds(a: dict, c: dict, size: int, depth: int, first_start: int) -> Tensor:
    """The stop-aware cost form by its definition, from the state before each draft."""
    last = size - 1
    if size <= first_start:
        return torch.zeros((), dtype=torch.float64)

    memory: dict = {}

    def before(s, k):  # X[s, k]
        if (s, k) not in memory:
            if k < depth and s + k < last:
                cont = before(s, k + 1)
            elif k == depth and s + k + 1 <= last:
                cont = 1 + start(s + k + 1)
            else:
                cont = torch.zeros((), dtype=torch.float64)
            memory[s, k] = c[s, k] + a[s, k] * cont + (1 - a[s, k]) * start(s + k)
        return memory[s, k]

    def start(s):  # Y[s]
        return before(s, 1) if s < last else torch.zeros((), dtype=torch.float64)

    return 1 + start(first_start)
