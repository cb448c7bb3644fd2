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

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn, TypeVar

import torch
from torch import Tensor

from markov_spec.arrays import RequestError

REDUCTIONS = ("paper", "token-mean", "weight-mean", "row-mean", "block-mean", "batch-mean", "padded-mean", "sum")
COMMON = {"starts": None, "mask": None, "mask_frame": None, "reduction": "paper", "temperature": 1.0}
GradientKind = Literal["exact", "surrogate"]
Function = TypeVar("Function", bound="Callable[..., ObjectiveResult]")


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
        exact = ""
        if self.rounds is not None and self.accepted_length is not None:
            below = {"rollout-mean": (self.count > 0).sum(), "token-mean": self.count.sum()}.get(self.reduction)
            rounds = float(self.rounds.sum() if below is None else _quotient(self.rounds.sum(), below))
            exact = f", exact rounds {rounds:.6g}, accepted length {float(self.accepted_length):.4g}"
        return f"ObjectiveResult({self.name}, {self.reduction}: {float(self.loss.detach()):.6g}{exact})"


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

    Examples
    --------
    >>> from markov_spec.objectives import OBJECTIVES
    >>> OBJECTIVES["d-pace"].options
    ('alpha', 'starts', 'mask', 'mask_frame', 'reduction', 'temperature')
    """

    name: str
    function: Callable[..., ObjectiveResult]
    gradient_kind: GradientKind
    reduction: str
    reads_target: bool
    source: str

    @property
    def options(self) -> tuple[str, ...]:
        """What the function takes by name; it refuses all else with a TypeError."""
        return _options(self.function)


class Registry(dict[str, Objective]):
    """Objectives by name; a KeyError for another says which there are."""

    def __missing__(self, name: str) -> NoReturn:
        raise KeyError(f"objective: found {name!r}; allowed: {', '.join(self)}")


def spell_out(function: Function) -> Function:
    """Give a function a signature, for completion, that names what its ``**common`` takes and hides ``**unknown``."""
    signature = inspect.signature(function)
    *own, rest = signature.parameters.values()
    common = COMMON if rest.name == "common" else {}
    named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=one) for name, one in common.items()]
    setattr(function, "__signature__", signature.replace(parameters=[*own, *named]))  # noqa: B010
    return function


def refuse_unknown(
    function: Callable[..., ObjectiveResult], options: Iterable[str], why: Mapping[str, str] | None = None
) -> None:
    """Refuse options that an objective does not take."""
    allowed = _options(function)
    for name in options:
        if name not in allowed:
            reason = f" ({why[name]})" if why and name in why else ""
            raise TypeError(f"{name_of(function)}: {name}: unknown option{reason}; allowed: {', '.join(allowed)}")


def name_of(function: Callable[..., ObjectiveResult]) -> str:
    """Give the name of an objective in the registry."""
    return function.__name__.replace("_", "-")


def _options(function: Callable[..., ObjectiveResult]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(one.name for one in parameters if one.kind == inspect.Parameter.KEYWORD_ONLY)


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
