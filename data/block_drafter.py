"""The ``block`` drafter of the demo: eight light residual heads over the target's frozen output head.

From start ``s`` it reads what a deployed drafter has at the beginning of a round: the target's last hidden states up to
token ``s-2`` (the state that chose token ``s-1``) and the embeddings of the tokens before ``s``. A shared trunk sees
the newest state and token; each depth adds its own low-rank residual, and the tokens that followed similar places
earlier in the context, found by one small attention. All eight depths are predicted at once, each independent of the
drafts before it, over the ``ids`` that are frequent in the training text.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from markov_spec.sources.models import CausalLM

WEIGHTS = Path(__file__).with_name("block.safetensors")


class BlockHeads(nn.Module):
    """State that the output head reads at each depth: the target's own, with residuals.

    Row ``i`` of a sequence pairs the state after token ``i`` with token ``i+1``: what is known at start ``i+2``.

    Parameters
    ----------
    hidden : int
        Width ``H`` of the target.
    depth : int
        Draft length ``K``.
    trunk, rank, match : int
        Widths of the shared layer, of each depth's own and of the attention.
    """

    def __init__(self, hidden: int, depth: int, trunk: int, rank: int, match: int) -> None:
        super().__init__()
        self.trunk = nn.Linear(2 * hidden, trunk)
        self.down = nn.Parameter(torch.randn(depth, trunk, rank) / trunk**0.5)
        self.up = nn.Parameter(torch.randn(depth, rank, hidden) * (0.1 / rank**0.5))
        self.scale = nn.Parameter(torch.ones(depth, hidden))
        self.bias = nn.Parameter(torch.zeros(depth, hidden))
        self.query = nn.Parameter(torch.randn(2 * hidden, match) / (2 * hidden) ** 0.5)
        self.key = nn.Parameter(self.query.detach().clone())
        self.nothing = nn.Linear(trunk, depth)
        self.copy = nn.Parameter(torch.full((depth,), 3.0))

    def forward(self, states: Tensor, embeddings: Tensor, rows: Tensor) -> Tensor:
        """Map one sequence's ``(n, H)`` states and embeddings to ``(K, M, H)`` for the starts of ``rows (M,)``."""
        normed = [x * x.square().mean(-1, keepdim=True).clamp_min(1e-8).rsqrt() for x in (states, embeddings)]
        known = torch.cat(normed, -1)
        shared = nn.functional.silu(self.trunk(known[rows]))
        own = nn.functional.silu(torch.einsum("mt,ktr->kmr", shared, self.down))
        residual = torch.einsum("kmr,krh->kmh", own, self.up) + self.bias[:, None]
        alike = (known[rows] @ self.query) @ (known @ self.key).T / self.query.shape[1] ** 0.5
        nothing = self.nothing(shared)
        followed = []
        for k in range(1, len(self.copy) + 1):
            # Row j was followed at depth k by the token of row j+k, which must be known at this start.
            earlier = alike[:, : max(len(known) - k, 0)]
            unknown = torch.arange(earlier.shape[1], device=rows.device) + k > rows[:, None]
            scores = torch.cat([earlier.masked_fill(unknown, -torch.inf), nothing[:, k - 1 : k]], -1)
            followed.append(self.copy[k - 1] * scores.softmax(-1)[:, :-1] @ embeddings[k:])
        return states[rows] * self.scale[:, None] + residual + torch.stack(followed)


class Block:
    """The heads as a drafter that can be recorded."""

    hidden_layers = (-1,)

    def __init__(self, target: CausalLM, weights: Path = WEIGHTS) -> None:
        tensors = load_file(weights)
        self.ids = tensors.pop("ids").long()
        depth, trunk, rank = tensors["down"].shape
        head = target.model.get_output_embeddings().weight.detach().float().cpu()
        self.depth = depth
        self.heads = BlockHeads(head.shape[1], depth, trunk, rank, tensors["query"].shape[1])
        self.heads.load_state_dict({name: value.float() for name, value in tensors.items()})
        self.heads.requires_grad_(False)
        self.embeddings = target.model.get_input_embeddings().weight.detach().float().cpu()
        self.head = head[self.ids].contiguous()
        self.vocab_size = head.shape[0]

    def log_probs(self, tokens: Tensor, hidden: Tensor | None, starts: Tensor) -> Tensor:
        """Log-probabilities ``(B, M, K, V)`` of the blocks begun at ``starts (B, M)``."""
        if hidden is None:
            raise ValueError("the block drafter reads the target's last hidden states")
        if starts.min() < 2:
            raise ValueError(f"the block drafter needs two tokens before its first start, found {int(starts.min())}")
        tokens, hidden, starts = tokens.cpu(), hidden.cpu(), starts.cpu()
        full = torch.full((*starts.shape, self.depth, self.vocab_size), -torch.inf)
        for row, (sequence, states) in enumerate(zip(tokens, hidden, strict=True)):
            drafted = self.heads(states[:-1].float(), self.embeddings[sequence[1:]], starts[row] - 2)
            full[row, ..., self.ids] = torch.log_softmax(drafted @ self.head.T, -1).transpose(0, 1)
        return full
