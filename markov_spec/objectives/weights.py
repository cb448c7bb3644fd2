"""The derivative of the expected rounds in the drafter's log-probabilities: weights of starts and depths.

With ``o`` the occupancy, ``V`` the value and ``S`` the survival of the chain (`markov_spec.chain`), ``r = q/p`` at the
rollout's token and ``a = min(1, r)``::

    rejection   dE[R]/dlog q[s,k] = o[s] S[s,k-1] (U[s,k] - V[s+k]) a[s,k] 1{r < 1}
                U[s,K] = V[s+K+1],  U[s,k-1] = a[s,k] U[s,k] + (1 - a[s,k]) V[s+k]
    block       dE[R]/dS[s,k] = o[s] (V[s+k+1] - V[s+k]),  S[s,k] = min_{l<=k} prod_{i<=l} r[s,i]
                dE[R]/dlog q[s,i] = sum_{k: l*(k) >= i} S[s,k] dE[R]/dS[s,k],  l*(k) the first l of the minimum
    cost        EDR = 1 + Y[s0] of the stop-aware cost form, with derivatives in a and in the cost c

Only depths that still bind have a weight: where the drafter gives the token more than the target does, more would not
be accepted more often. Occupancies and values are not held constant by assumption: these are the whole derivatives,
of which each start needs only its own. Source: arXiv 2610.10411 for rejection and cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from markov_spec.arrays import LOG_TOLERANCE, RequestError, check_integer
from markov_spec.chain import _torch
from markov_spec.objectives._tiles import positions
from markov_spec.objectives.checks import check_devices, check_float, readable, refuse
from markov_spec.objectives.inputs import check_lengths, check_log_q

Rule = Literal["rejection", "block"]
RULES = ("rejection", "block")
SAID = "finite, at most 0; -inf is of a token that the target rules out, as a filter (top-k, top-p) does"
TOLERANCE = 1e-5  # of sums of probabilities in float32


@dataclass(frozen=True, eq=False, repr=False)
class EDRWeights:
    """Derivatives of the expected rounds of each rollout, float64.

    Parameters
    ----------
    rounds : Tensor, (B,)
        Expected rounds, exact given the rollout.
    value : Tensor, (B,)
        What is differentiated: these, or the cost form, which equals them on average over rollouts.
    occupancy : Tensor, (B, T)
        Probability that a round starts at ``s``.
    log_q : Tensor, (B, T, K)
        Derivative in ``log q`` of the rollout's token. Its negative is the weight of a cross-entropy.
    cost : Tensor, (B, T, K), or None
        Derivative in the cost; None of the rollout form.
    """

    rounds: Tensor
    value: Tensor
    occupancy: Tensor
    log_q: Tensor
    cost: Tensor | None

    def __repr__(self) -> str:
        rows, size, depth = self.log_q.shape
        form = "rollout" if self.cost is None else "cost"
        return f"EDRWeights({rows} rollouts, T = {size}, K = {depth}, {form} form)"


def edr_weights(
    log_p: Tensor, log_q: Tensor, lengths: Tensor, *, cost: Tensor | None = None, rule: Rule = "rejection",
    first_start: int = 0,
) -> EDRWeights:  # fmt: skip
    """Compute what each start and depth contributes to the gradient of the expected rounds, for loops of one's own.

    ``(weights.log_q * log_q).sum()`` has the gradient of the batch's expected rounds, whatever makes the
    log-probabilities.

    Parameters
    ----------
    log_p : Tensor, (B, T)
        Target's log-probability (nats) of each token, as it decodes.
    log_q : Tensor, (B, T, K)
        Drafter's, at ``[b, s, k-1]`` of the token at ``s+k-1``, from every start in order. Cells past an end are
        ignored whatever they hold.
    lengths : Tensor of int, (B,)
        Tokens of each rollout.
    cost : Tensor, (B, T, K), optional
        ``c`` of the cost form (`score_cells`); with it, that form is differentiated.
    rule : {"rejection", "block"}
        How drafts are verified; the cost form is of the former.
    first_start : int
        ``s0``.

    Returns
    -------
    EDRWeights
        No gradient goes into the arguments.

    Raises
    ------
    ValueError
        If shapes or types disagree, the rule is unknown, or, on the CPU, the target rules out a rollout's token, a
        log-probability is NaN or above 0, or a cost not in 0 to 1.

    Notes
    -----
    ``O(B T K)``.

    Examples
    --------
    >>> import torch, markov_spec as ms
    >>> log_p, log_q = torch.tensor([[.5, .8, .5, .9]]).log(), torch.tensor([[.4, .8, .2, .9]]).log()
    >>> weights = ms.edr_weights(log_p, log_q[..., None], torch.tensor([4]))
    >>> weights.rounds
    tensor([2.6800], dtype=torch.float64)
    >>> weights.log_q[0, :, 0]
    tensor([-0.3200, -0.0000, -0.3200, -0.0000], dtype=torch.float64)
    """
    check_float(log_p, "log_p", 2, "(B, T)")
    check_float(log_q, "log_q", 3, "(B, T, K)")
    if tuple(log_q.shape[:2]) != tuple(log_p.shape):
        raise ValueError(f"log_q: found shape {tuple(log_q.shape)}; allowed: {tuple(log_p.shape)} and K, as log_p")
    lengths = check_lengths(lengths, *log_p.shape)
    check_rule(rule, "rollout" if cost is None else "cost")
    check_integer(first_start, "first_start", 0)
    if cost is not None:
        check_float(cost, "cost", 3, "(B, T, K)")
        if tuple(cost.shape) != tuple(log_q.shape):
            raise ValueError(f"cost: found shape {tuple(cost.shape)}; allowed: {tuple(log_q.shape)}, that of log_q")
    check_devices(log_p=log_p, log_q=log_q, lengths=lengths, cost=cost)
    _, valid = positions(None, tuple(log_q.shape), lengths, log_p.shape[1])
    check_log_q(log_q, valid, "log_q")
    if cost is not None and readable(cost):
        refuse(valid & ~((cost >= 0) & (cost <= 1 + TOLERANCE)), cost, "cost", "a probability, 0 to 1")
    return weigh(log_p, log_q, lengths, cost, rule, int(first_start))


def check_rule(rule: str, form: str) -> None:
    """Refuse rules that are unknown, or of which there is no such form."""
    if rule not in RULES:
        raise RequestError(f"rule: found {rule!r}; allowed: {', '.join(RULES)}")
    if form not in ("cost", "rollout"):
        raise RequestError(f"form: found {form!r}; allowed: cost, rollout")
    if form == "cost" and rule != "rejection":
        raise RequestError(f"form: found 'cost' for rule {rule!r}; allowed: 'rollout', the cost form is of rejection")


@torch.no_grad()
def weigh(
    log_p: Tensor, log_q: Tensor, lengths: Tensor, cost: Tensor | None, rule: Rule, first_start: int
) -> EDRWeights:
    """Compute the weights of checked arguments."""
    ratio, valid = log_ratio(log_p, log_q, lengths)
    accept = acceptance(ratio, valid, rule)
    occupancy, ahead = _torch.recursions(accept, lengths, first_start=first_start)
    rounds = occupancy.sum(1)
    if rule == "block":
        return EDRWeights(rounds, rounds, occupancy, _block_slope(ratio, valid, occupancy, ahead), None)
    # With a rejection as its own cost, the cost form is the rollout form.
    price = 1 - accept if cost is None else cost.double().where(valid, 0)
    value, on_accept, on_cost = _torch.cost_recursions(accept, price, lengths, first_start=first_start)
    on_log_q = accept * (ratio < 0)
    if cost is None:
        return EDRWeights(rounds, rounds, occupancy, (on_accept - on_cost) * on_log_q, None)
    return EDRWeights(rounds, value, occupancy, on_accept * on_log_q, on_cost)


def acceptance(ratio: Tensor, valid: Tensor, rule: Rule) -> Tensor:
    """Give the conditional acceptance ``a``, 0 past the ends."""
    if rule == "rejection":
        return ratio.clamp(max=0).exp().where(valid, 0)
    survival = running_minimum(ratio).exp()
    before = torch.cat([torch.ones_like(survival[..., :1]), survival[..., :-1]], -1)
    return (survival / before.where(before > 0, 1)).where(valid, 0)


def log_ratio(log_p: Tensor, log_q: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Give ``log q/p`` of every start and depth in float64, 0 past the ends, and which cells are not."""
    at, valid = positions(None, tuple(log_q.shape), lengths, log_p.shape[1])
    if readable(log_p):
        inside = torch.arange(log_p.shape[1]) < lengths[:, None]
        refuse(inside & ~(log_p <= LOG_TOLERANCE) | inside & log_p.isinf(), log_p, "log_p", SAID)
    target = torch.gather(log_p.double(), 1, at.flatten(1)).view(at.shape)
    return (log_q.double() - target).where(valid, 0), valid


def running_minimum(ratio: Tensor) -> Tensor:
    """Give the logarithm of the survival of block verification."""
    return ratio.cumsum(-1).clamp(max=0).cummin(-1).values


def _block_slope(ratio: Tensor, valid: Tensor, occupancy: Tensor, value: Tensor) -> Tensor:
    lowest, after = running_minimum(ratio), _after(value, ratio.shape[-1])
    before = torch.cat([torch.zeros_like(lowest[..., :1]), lowest[..., :-1]], -1)
    per_depth = occupancy[..., None] * (after[..., 1:] - after[..., :-1]) * lowest.exp().where(valid, 0)
    # The depth, less 1, where the minimum was reached first; -1 if that is the start, on which nothing depends.
    depth = torch.arange(ratio.shape[-1], device=ratio.device)
    binds = torch.where(lowest < before, depth, -1).cummax(-1).values
    at_binding = torch.zeros_like(per_depth).scatter_add(-1, binds.clamp(min=0), per_depth.where(binds >= 0, 0))
    return at_binding.flip(-1).cumsum(-1).flip(-1)


def _after(value: Tensor, depth: int) -> Tensor:
    # V[s+k] at [.., s, k-1], k = 1..K+1, 0 past the end
    padded = torch.nn.functional.pad(value, (0, depth + 1))
    return padded.unfold(1, depth + 1, 1)[:, 1 : value.shape[1] + 1]
