"""What an objective gives, and how cells are reduced to one number.

With ``l`` the loss of a cell, ``w`` its weight, ``n`` the number of valid cells of a rollout or block and sums over
valid cells::

    token-mean    sum w l / number of valid cells             row-mean     mean over rollouts of sum w l / n
    weight-mean   sum w l / sum w                             block-mean   mean over blocks of sum w l / n
    batch-mean    sum w l / number of rollouts                padded-mean  sum w l / number of cells, valid or not
    sum           sum w l

Rollouts and blocks without a valid cell are left out of the means over them. A quotient of nothing is 0, its gradient
0, and ``empty`` is set. All is summed in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from markov_spec.arrays import RequestError

REDUCTIONS = ("paper", "token-mean", "weight-mean", "row-mean", "block-mean", "batch-mean", "padded-mean", "sum")
GradientKind = Literal["exact", "surrogate"]


@dataclass(frozen=True, eq=False, repr=False)
class ObjectiveResult:
    """A loss, what it is made of, and what it says about decoding.

    Parameters
    ----------
    loss : Tensor, ()
        To be minimised; float32, or float64 for float64 logits.
    per_rollout : Tensor, (B,)
        Of a baseline, the weighted losses of a rollout's cells added up; of ``edr``, its expected rounds. Both are
        differentiable. Sums over processes divided by their sums of ``count`` are a mean over all of them.
    count : Tensor of float64, (B,)
        Valid cells of each rollout; of ``edr``, tokens to decode.
    empty : Tensor of bool, ()
        Whether there was nothing to learn: then the loss is 0, as its gradient.
    name, reduction : str
        Which objective, and how it was reduced.
    gradient_kind : {"exact", "surrogate"}
        Whether the gradient is the derivative of the loss, or leaves out factors that its source holds constant.
    rounds : Tensor of float64, (B,), or None
        Expected decoding rounds of each rollout, exact given it; None of a baseline.
    accepted_length : Tensor of float64, (), or None
        Tokens by expected rounds over the batch, the target's own tokens included; NaN if there are none.
    """

    loss: Tensor
    per_rollout: Tensor
    count: Tensor
    empty: Tensor
    name: str
    reduction: str
    gradient_kind: GradientKind
    rounds: Tensor | None = None
    accepted_length: Tensor | None = None

    def __repr__(self) -> str:
        length = "" if self.accepted_length is None else f", accepted length {float(self.accepted_length):.4g}"
        return f"ObjectiveResult({self.name}, {self.reduction}: {float(self.loss.detach()):.6g}{length})"


@dataclass(frozen=True)
class Objective:
    """An entry of the registry.

    Parameters
    ----------
    name : str
    function : callable
        Takes ``(draft_logits, target_logits, tokens, lengths, **options)``.
    gradient_kind : {"exact", "surrogate"}
    reduction : str
        What ``"paper"`` stands for.
    reads_target : bool
        Whether ``target_logits`` may not be None.
    source : str
    """

    name: str
    function: Callable[..., ObjectiveResult]
    gradient_kind: GradientKind
    reduction: str
    reads_target: bool
    source: str


def reduce_cells(
    loss: Tensor, weight: Tensor | None, valid: Tensor, *, name: str, paper: str, reduction: str = "paper",
    gradient_kind: GradientKind = "exact",
) -> ObjectiveResult:  # fmt: skip
    """Reduce losses of cells (B, M, K) to a result; weights are held constant."""
    if reduction not in REDUCTIONS:
        raise RequestError(f"reduction: found {reduction!r}; allowed: {', '.join(REDUCTIONS)}")
    chosen = paper if reduction == "paper" else reduction
    ones = torch.ones((), dtype=torch.float64, device=loss.device)
    weights = (ones if weight is None else weight.detach().double()).where(valid, 0)
    terms = weights * loss.double().where(weights != 0, 0)
    total, cells = terms.sum((1, 2)), valid.sum((1, 2), dtype=torch.float64)
    if chosen == "row-mean":
        value = _mean(_quotient(total, cells), cells > 0)
    elif chosen == "block-mean":
        inside = valid.sum(2, dtype=torch.float64)
        value = _mean(_quotient(terms.sum(2), inside), inside > 0)
    else:
        below = {
            "token-mean": cells.sum(),
            "weight-mean": weights.sum(),
            "batch-mean": ones * loss.shape[0],
            "padded-mean": ones * loss.numel(),
            "sum": ones,
        }
        value = _quotient(total.sum(), below[chosen])
    return ObjectiveResult(
        value.to(loss.dtype), total.to(loss.dtype), cells, cells.sum() == 0, name, chosen, gradient_kind
    )


def _quotient(above: Tensor, below: Tensor) -> Tensor:
    return above / torch.where(below > 0, below, 1)


def _mean(values: Tensor, some: Tensor) -> Tensor:
    return _quotient(values.where(some, 0).sum(), some.sum(dtype=torch.float64))
