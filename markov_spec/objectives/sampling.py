"""Starts that stand for all: sampled with known chances, so that weighted sums over them are right on average.

``pi[s] = min(1, lam m[s])`` with ``sum pi = M``, for masses ``m`` of which more than ``M`` are above 0; else ``pi = 1``
wherever ``m > 0``. Sampled systematically: one uniform number for each rollout, ``M`` equally spaced points. A sum over
starts is estimated by the sampled ones over their ``pi`` (Horvitz and Thompson 1952), whose mean is that sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from markov_spec.arrays import RequestError, check_integer
from markov_spec.objectives.checks import check_float, readable, refuse
from markov_spec.objectives.inputs import check_stops, check_temperature
from markov_spec.objectives.weights import Rule, acceptance, edr_weights, log_ratio


@dataclass(frozen=True, eq=False, repr=False)
class SampledStarts:
    """What ``edr`` needs of the starts that were not sampled. Made by ``sample_starts``.

    Parameters
    ----------
    form, rule : str
        What was weighed.
    rounds, value : Tensor of float64, (B,)
        As of `EDRWeights`, of all starts.
    log_q : Tensor of float64, (B, M, K)
        Derivatives at the sampled starts; 0 where there is none.
    cost : Tensor of float64, (B, M, K), or None
    first_start : int
    starts : Tensor of int64, (B, M)
    weights : Tensor of float64, (B, M)
        The sampled starts, and one over the probability of each.
    temperature : float
    stop_ids : tuple of int
        Of the scores; ``edr`` refuses others.
    """

    form: Literal["cost", "rollout"]
    rule: Rule
    rounds: Tensor
    value: Tensor
    log_q: Tensor
    cost: Tensor | None
    first_start: int
    starts: Tensor
    weights: Tensor
    temperature: float
    stop_ids: tuple[int, ...]

    def __repr__(self) -> str:
        rows, count, depth = self.log_q.shape
        return f"SampledStarts({rows} rollouts, M = {count}, K = {depth}, {self.form} form, {self.rule})"


def inclusion_probabilities(mass: Tensor, count: int) -> Tensor:
    """Compute with which probability each start is sampled.

    Parameters
    ----------
    mass : Tensor, (B, T)
        Finite, at least 0.
    count : int
        ``M``: starts to sample from each rollout.

    Returns
    -------
    Tensor of float64, (B, T)
        ``min(1, lam m)``, of sum ``M`` or the number of starts with ``m > 0``, whichever is less.

    Raises
    ------
    ValueError
        If ``count`` is below 1, or the mass has another shape, is negative or not finite.

    Notes
    -----
    ``O(B T log T)``.

    Examples
    --------
    >>> import torch
    >>> inclusion_probabilities(torch.tensor([[.5, .25, .125, .125]]), 2).tolist()
    [[1.0, 0.5, 0.25, 0.25]]
    """
    check_integer(count, "count", 1)
    check_float(mass, "mass", 2, "(B, T)")
    if readable(mass):
        refuse(~((mass >= 0) & (mass < torch.inf)), mass, "mass", "finite, at least 0")
    wide = mass.double()
    if wide.shape[1] == 0:
        return wide
    order = wide.sort(1, descending=True).values
    rest = order.flip(1).cumsum(1).flip(1)  # mass of the j-th largest and all below, j = 0..
    left = count - torch.arange(order.shape[1], device=mass.device)
    lam = left / rest.where(rest > 0, 1)
    # The j largest are certain for the least j that leaves the next one at most so.
    fits = (lam * order <= 1) & (left > 0)
    chosen = lam.gather(1, fits.int().argmax(1, keepdim=True))
    inclusion = (chosen * wide).clamp(max=1)
    few = (wide > 0).sum(1, keepdim=True) <= count
    return torch.where(few, (wide > 0).double(), inclusion)


def _draw(inclusion: Tensor, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    # Sampled starts (B, M) in their order, then -1, and 1 / pi, then 0.
    if not isinstance(rng, torch.Generator):
        raise RequestError(f"rng: found {rng!r}; allowed: a torch.Generator")
    rows, size = inclusion.shape
    uniform = torch.rand(rows, 1, generator=rng, dtype=torch.float64, device=rng.device).to(inclusion.device)
    ends = inclusion.cumsum(1)
    # The sum is a whole number but for rounding, which may not add or lose a start.
    whole = ends[:, -1:].round() if size else ends
    ends = torch.where(inclusion.flip(1).cumsum(1).flip(1) - inclusion <= 0, whole, ends)
    passed = (ends - uniform).ceil()  # points u, u+1, ... below the end
    before = torch.cat([torch.zeros_like(passed[:, :1]), passed[:, :-1]], 1)
    taken = passed > before
    places = torch.arange(size, device=inclusion.device).expand(rows, size)
    order = torch.where(taken, places, size).sort(1).values[:, :count]
    order = torch.nn.functional.pad(order, (0, count - order.shape[1]), value=size)
    some = order < size
    at = order.clamp(max=max(size - 1, 0))
    weights = torch.where(some, 1 / inclusion.gather(1, at).where(some, 1), 0) if size else order.double() * 0
    return torch.where(some, order, -1), weights


def sample_starts(
    log_p: Tensor, log_q: Tensor, lengths: Tensor, *, count: int, rng: torch.Generator, cost: Tensor | None = None,
    rule: Rule = "rejection", first_start: int = 0, stop_ids: Sequence[int] = (), temperature: float = 1.0,
) -> tuple[Tensor, Tensor, SampledStarts]:  # fmt: skip
    """Sample the starts whose blocks are worth a gradient, from a pass without one over all starts.

    Parameters
    ----------
    log_p : Tensor, (B, T)
        Target's log-probability (nats) of each token.
    log_q : Tensor, (B, T, K)
        Drafter's, from every start.
    lengths : Tensor of int, (B,)
        Tokens of each rollout.
    count : int
        ``M``: starts of each rollout.
    rng : torch.Generator
        The only source of randomness.
    cost : Tensor, (B, T, K), optional
        ``c`` from every start (`score_cells`): for the cost form.
    rule, first_start
        As of `edr_weights`.
    stop_ids, temperature
        With which ``score_cells`` made the scores, which keep them: noted, for ``edr`` to refuse others.

    Returns
    -------
    starts : Tensor of int64, (B, M)
        Rising; -1 where a rollout has fewer starts of positive occupancy.
    weights : Tensor of float64, (B, M)
        One over the probability that the start was sampled; 0 for none.
    aux : SampledStarts
        The value of the objective, which is exact, and the derivatives. All three go to ``edr``.

    Raises
    ------
    ValueError
        As of `edr_weights`, and if ``count`` is below 1, ``rng`` no generator, or stop_ids or temperature are not such.

    Notes
    -----
    Starts are sampled in proportion to their occupancy. The gradient of ``edr`` with them has that with all starts for
    its mean. Source: arXiv 2610.10411.

    Examples
    --------
    A step on three starts of each rollout, of a drafter that reads the newest token:

    >>> import torch
    >>> from markov_spec import objectives
    >>> rng = torch.Generator().manual_seed(0)
    >>> target, tokens = torch.randn(2, 6, 5, generator=rng), torch.randint(5, (2, 6), generator=rng)
    >>> drafter = torch.nn.Embedding.from_pretrained(torch.randn(6, 2 * 5, generator=rng), freeze=False)
    >>> newest = torch.nn.functional.pad(tokens[:, :-1], (1, 0), value=5)
    >>> lengths, settings = torch.tensor([6, 2]), {"temperature": .8, "stop_ids": (4,)}
    >>> with torch.no_grad():  # all starts, some at a time and `CellScores.join` where they are too many
    ...     scores = objectives.score_cells(drafter(newest).unflatten(-1, (2, 5)), target, tokens, lengths, **settings)
    >>> starts, weights, aux = objectives.sample_starts(
    ...     scores.log_p, scores.log_q, lengths, count=3, rng=rng, cost=scores.cost, **settings)
    >>> context = newest.gather(1, starts.clamp(min=0))  # where there is no start, -1, anything will do
    >>> blocks = drafter(context).unflatten(-1, (2, 5))
    >>> result = objectives.edr(
    ...     blocks, target, tokens, lengths, starts=starts, weights=weights, aux=aux, **settings)
    >>> result.loss.backward()
    >>> tuple(blocks.shape), starts[1].tolist(), bool(drafter.weight.grad.any())
    ((2, 3, 2, 5), [0, -1, -1], True)
    """
    stops, temperature = check_stops(stop_ids), check_temperature(temperature)
    weighed = edr_weights(log_p, log_q, lengths, cost=cost, rule=rule, first_start=first_start)
    starts, weights = _draw(inclusion_probabilities(weighed.occupancy, count), count, rng)
    aux = SampledStarts(
        "rollout" if cost is None else "cost", rule, weighed.rounds, weighed.value, _at(weighed.log_q, starts),
        None if weighed.cost is None else _at(weighed.cost, starts), int(first_start),
        starts, weights, temperature, stops,
    )  # fmt: skip
    return starts, weights, aux


def _at(values: Tensor, starts: Tensor) -> Tensor:
    if values.shape[1] == 0:
        return values.new_zeros(*starts.shape, values.shape[2])
    index = starts.clamp(min=0)[..., None].expand(*starts.shape, values.shape[2])
    return values.gather(1, index).where(starts[..., None] >= 0, 0)


def replay_starts(
    log_p: Tensor, log_q: Tensor, lengths: Tensor, *, count: int, rng: torch.Generator,
    by: Literal["occupancy", "rejection"] = "rejection", rule: Rule = "rejection", first_start: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sample starts to draft from again: where rounds begin, or where drafts are rejected.

    Parameters
    ----------
    log_p, log_q, lengths, count, rng, rule, first_start
        As of `sample_starts`.
    by : {"occupancy", "rejection"}
        ``"occupancy"``: the probability that a round starts at ``s``; ``"rejection"``: that a draft of token ``s`` is
        rejected, so that the block begun there drafts this token first.

    Returns
    -------
    starts : Tensor of int64, (B, M)
        Rising; -1 where a rollout has fewer.
    weights : Tensor of float64, (B, M)
        One over the probability that the start was sampled; 0 for none.

    Raises
    ------
    ValueError
        As of `sample_starts`, and if ``by`` is another.

    Notes
    -----
    Draft-OPD (arXiv 2605.29343) replays from the rejections of one decoding; these are the expected numbers over all
    decodings of the rollout.

    Examples
    --------
    >>> import torch, markov_spec as ms
    >>> log_p, log_q = torch.tensor([[.5, .5, .5]]).log(), torch.tensor([[.5, .5, .1]]).log()
    >>> rng = torch.Generator().manual_seed(0)
    >>> ms.replay_starts(log_p, log_q[..., None], torch.tensor([3]), count=1, rng=rng)[0].tolist()
    [[2]]
    """
    if by not in ("occupancy", "rejection"):
        raise RequestError(f"by: found {by!r}; allowed: occupancy, rejection")
    occupancy = edr_weights(log_p, log_q, lengths, rule=rule, first_start=first_start).occupancy
    mass = occupancy if by == "occupancy" else _rejections(log_p, log_q, lengths, occupancy, rule)
    return _draw(inclusion_probabilities(mass, count), count, rng)


@torch.no_grad()
def _rejections(log_p: Tensor, log_q: Tensor, lengths: Tensor, occupancy: Tensor, rule: Rule) -> Tensor:
    # sum over s + k - 1 = t of o[s] (S[s,k-1] - S[s,k])
    ratio, valid = log_ratio(log_p, log_q, lengths)
    accept = acceptance(ratio, valid, rule)
    reached = torch.cat([torch.ones_like(accept[..., :1]), accept[..., :-1]], -1).cumprod(-1)
    lost = (occupancy[..., None] * reached * (1 - accept)).where(valid, 0)
    size = occupancy.shape[1]
    mass = torch.zeros_like(occupancy)
    for k in range(min(lost.shape[2], size)):
        mass[:, k:] += lost[:, : size - k, k]
    return mass
