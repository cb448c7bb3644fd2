"""What each of two processes does in ``test_runtime``; a module of its own, which a fresh process can import."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from markov_spec import objectives
from tests.objectives import oracle

FORMS = (("cost", "rejection"), ("rollout", "block"))


class Table(torch.nn.Module):
    """A drafter that is a table of logits by depth and last token."""

    def __init__(self, depth: int, vocabulary: int) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(0)
        self.rows = torch.nn.Parameter(torch.randn(vocabulary, depth, vocabulary, generator=rng, dtype=torch.float64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        before = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1)
        return self.rows[before]


def run(rank: int, address: str, folder: str) -> None:
    """Train a step on one half of the batch, and meter it."""
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=2)
    given = oracle.batch(0, rows=4, size=6, lengths=[6, 4, 5, 2])
    mine = slice(2 * rank, 2 * rank + 2)
    arrays = given.target[mine], given.tokens[mine], given.lengths[mine]
    model = DistributedDataParallel(Table(3, 6))
    found = {}
    for name in objectives.OBJECTIVES:
        for form, rule in FORMS if name == "edr" else [(None, None)]:
            options = {"m": 3} if name == "top-m-kl" else {"form": form, "rule": rule} if name == "edr" else {}
            model.zero_grad()
            result = objectives.OBJECTIVES[name].function(model(arrays[1]), *arrays, **options)
            result.loss.backward()
            found[name, form] = model.module.rows.grad.clone()
    meter = objectives.AcceptanceMeter(3)
    meter.update(objectives.score_cells(model(arrays[1]).detach(), *arrays))
    meter.reduce()
    torch.save((found, meter.sums), f"{folder}/{rank}.pt")
    dist.destroy_process_group()
