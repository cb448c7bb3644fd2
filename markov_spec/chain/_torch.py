"""The recursions on torch tensors, at home on the tensors' device.

Rollouts are padded: ``accept[b, s, k-1]`` is the acceptance of depth ``k`` of the round begun at ``s`` in rollout ``b``
of ``T = lengths[b]`` tokens, which ends its row early. With the labels of ``markov_spec.chain``::

    (V)  V[s] = 1 + sum_k A[s,k] V[s+k+1]
    (O)  o[s0] = 1,  o[t] = sum_{s<t} o[s] A[s,t-s-1]

The stop-aware cost form takes the end token for given: ``L = T-1`` ordinary tokens precede it, and ``c[s,k]`` is the
probability that depth ``k`` is rejected for an ordinary token. ``X[s,k]`` rounds begin after this one before draft
``k`` is tested, ``Y[s] = X[s,1]``, ``Y[L] = 0``, for ``s+k <= L``::

    (X)  X[s,k] = c[s,k] + a[s,k] cont[s,k] + (1 - a[s,k]) Y[s+k],  EDR = 1 + Y[s0], 0 where T <= s0
         cont[s,k] = X[s,k+1] if k < K and s+k < L;  1 + Y[s+K+1] if k = K and s+K < L;  else 0
    (GX) dEDR = sum_{s,k} o[s] S[s,k-1] (dc[s,k] + (cont[s,k] - Y[s+k]) da[s,k])

Tensors on the CPU go to the kernels of ``_numba``, ``_eight`` and ``_cost`` without a copy, those on CUDA to
``_triton``, others to the loops over starts that stand here. All sums are float64. Only shapes and types of tensors on
a device are checked: nothing waits for it. Source of the cost form: arXiv 2610.10411.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch

from markov_spec._jit import split_rollouts
from markov_spec.arrays import RoundLaw, check_integer
from markov_spec.chain import _cost, _torch_rows
from markov_spec.chain._torch_rows import Rows, ahead, counted, first, survival
from markov_spec.chain.moments import solve_every

Pair = tuple[torch.Tensor, torch.Tensor]
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
FLOATS = (torch.float64, torch.float32)
ARGUMENTS = "(Tensor accept, Tensor lengths, SymInt first_start)"
COST_ARGUMENTS = "(Tensor accept, Tensor cost, Tensor lengths, SymInt first_start)"


def recursions(accept: torch.Tensor, lengths: torch.Tensor, *, first_start: int = 0) -> Pair:
    """Compute occupancy and expected rounds of every start of padded rollouts.

    Parameters
    ----------
    accept : Tensor of float32 or float64, (B, T, K)
        Conditional acceptance. Cells with ``s+k > lengths[b]`` are ignored whatever they hold.
    lengths : Tensor of int64, (B,)
        Tokens of each rollout, 0 to ``T``.
    first_start : int
        ``s0``: 0 when the first token is drafted too, 1 when the prefill emits it.

    Returns
    -------
    occupancy : Tensor of float64, (B, T)
        ``o[s]``: probability that a round starts at ``s``; 0 before ``s0`` and past the end.
    value : Tensor of float64, (B, T)
        ``V[s]``: expected rounds from ``s``, also before ``s0``; 0 past the end.

    Raises
    ------
    ValueError
        If a shape or type is another, or, on the CPU, a length is not in 0 to ``T``; on other devices lengths are
        clipped.

    Notes
    -----
    ``O(B T K)`` time, ``O(B T)`` memory on the CPU. No gradient: both are the constants of (G), ``dE[R]/da[s,k] = o[s]
    S[s,k-1] (U[s,k] - V[s+k])``. One operator under ``torch.compile``. A device must know float64.

    Examples
    --------
    >>> import torch
    >>> occupancy, value = recursions(torch.full((1, 5, 2), .5), torch.tensor([5]))
    >>> value.tolist()
    [[3.1875, 2.625, 2.0, 1.5, 1.0]]
    >>> occupancy.sum(dim=1).tolist()
    [3.1875]
    """
    _check(accept, lengths, first_start)
    occupancy, value = _recursions(accept.detach(), lengths, int(first_start))
    return occupancy, value


def cost_recursions(accept: torch.Tensor, cost: torch.Tensor, lengths: torch.Tensor, *, first_start: int = 0) -> Triple:
    """Compute the stop-aware cost form of the expected rounds, and its gradient.

    Parameters
    ----------
    accept : Tensor of float32 or float64, (B, T, K)
        Conditional acceptance ``a``. Cells with ``s+k >= lengths[b]`` are ignored whatever they hold.
    cost : Tensor, (B, T, K)
        ``c``, in the float type of ``accept``; ignored where that is.
    lengths : Tensor of int64, (B,)
        Tokens of each rollout, its boundary token counted, 0 to ``T``.
    first_start : int
        ``s0``.

    Returns
    -------
    edr : Tensor of float64, (B,)
        ``1 + Y[s0]``; 0 where ``lengths[b] <= s0``.
    grad_accept, grad_cost : Tensor, (B, T, K)
        Derivatives of ``edr``, in the float type of ``accept``; 0 in cells that do not count.

    Raises
    ------
    ValueError
        As ``recursions``; and if the costs are of another shape, type or device than the acceptances.

    Notes
    -----
    ``O(B T K)`` time and memory. With ``cost = 1 - accept`` this is the rollout form: ``edr`` is ``E[R]``, and its
    derivative (G) ``grad_accept - grad_cost``. No gradient flows through the results.

    Examples
    --------
    >>> import torch
    >>> accept = torch.full((1, 5, 2), .5)
    >>> edr, grad_accept, grad_cost = cost_recursions(accept, 1 - accept, torch.tensor([5]))
    >>> edr.item()
    3.1875
    >>> (grad_accept - grad_cost)[0, :3].tolist()
    [[-0.875, -0.25], [-0.375, -0.125], [-0.5, -0.25]]
    """
    _check(accept, lengths, first_start)
    found, wanted = ((tuple(cells.shape), cells.dtype, cells.device) for cells in (cost, accept))
    if found != wanted:
        raise ValueError(f"cost: found shape, dtype and device {found}; allowed: those of accept, {wanted}")
    edr, grad_accept, grad_cost = _cost_recursions(accept.detach(), cost.detach(), lengths, int(first_start))
    return edr, grad_accept, grad_cost


def _check(accept: torch.Tensor, lengths: torch.Tensor, first_start: int) -> None:
    if accept.dim() != 3 or accept.dtype not in FLOATS:
        found = f"shape {tuple(accept.shape)}, dtype {accept.dtype}"
        raise ValueError(f"accept: found {found}; allowed: (B, T, K) of float64 or float32")
    if lengths.shape != accept.shape[:1] or lengths.dtype != torch.int64 or lengths.device != accept.device:
        found = f"shape {tuple(lengths.shape)}, dtype {lengths.dtype} on {lengths.device}"
        raise ValueError(f"lengths: found {found}; allowed: ({accept.shape[0]},) of int64 on {accept.device}")
    check_integer(first_start, "first_start", 0)


def padded_offsets(lengths: torch.Tensor, tokens: int) -> npt.NDArray[np.int64]:
    """Give the offsets of a batch on the CPU whose rollouts alternate with their padding."""
    sizes = lengths.numpy()
    wrong = np.flatnonzero((sizes < 0) | (sizes > tokens))
    if wrong.size:
        raise ValueError(f"lengths: rollout {wrong[0]}: found {sizes[wrong[0]]}; allowed: 0 to {tokens}")
    begin = np.arange(0, sizes.size * tokens + 1, tokens) if tokens else np.zeros(sizes.size + 1, np.int64)
    offsets = np.repeat(begin, 2)[: 2 * sizes.size + 1]
    offsets[1::2] += sizes
    return offsets


def kernels(device: torch.device) -> ModuleType:
    """Give the module whose ``occupancy`` and ``value`` are for a device."""
    if device.type == "cuda":
        from markov_spec.chain import _triton

        return _triton
    return _torch_rows


@torch.library.custom_op("markov_spec::recursions", mutates_args=(), schema=f"{ARGUMENTS} -> (Tensor, Tensor)")
def _recursions(accept: torch.Tensor, lengths: torch.Tensor, first_start: int) -> Pair:
    batch, tokens, depth = accept.shape
    flat = accept.reshape(batch * tokens, depth)
    if accept.device.type == "cpu":
        law = RoundLaw.trusted(flat.numpy(), padded_offsets(lengths, tokens))
        rounds = solve_every(law, 2, first_start=first_start)
        occupancy, value = torch.from_numpy(rounds.occupancy), torch.from_numpy(rounds.value)
    else:
        occupancy, value = on_device(flat, Rows.padded(lengths, tokens), first_start)
    return occupancy.view(batch, tokens), value.view(batch, tokens)


def on_device(accept: torch.Tensor, rows: Rows, first_start: int) -> Pair:
    """Equations (O) and (V) on flat rows."""
    run, cells = kernels(accept.device), counted(accept, rows.left)
    gain = torch.ones(rows.left.shape, dtype=torch.float64, device=accept.device)
    return run.occupancy(cells, rows, first_start), run.value(cells, gain, rows)


@_recursions.register_fake
def _(accept: torch.Tensor, lengths: torch.Tensor, first_start: int) -> Pair:
    occupancy, value = (accept.new_empty(accept.shape[:2], dtype=torch.float64) for _ in range(2))
    return occupancy, value


@torch.library.custom_op(
    "markov_spec::cost_recursions", mutates_args=(), schema=f"{COST_ARGUMENTS} -> (Tensor, Tensor, Tensor)"
)
def _cost_recursions(accept: torch.Tensor, cost: torch.Tensor, lengths: torch.Tensor, first_start: int) -> Triple:
    batch, tokens, depth = accept.shape
    if accept.device.type != "cpu":
        flat = accept.reshape(batch * tokens, depth), cost.reshape(batch * tokens, depth)
        edr, *gradients = cost_on_device(*flat, Rows.padded(lengths, tokens), first_start)
        grad_accept, grad_cost = (cells.to(accept.dtype).view(accept.shape) for cells in gradients)
        return edr, grad_accept, grad_cost
    offsets = padded_offsets(lengths, tokens)
    edr, grad_accept, grad_cost = _empty_costs(accept)
    given = accept.contiguous().numpy(), cost.contiguous().numpy(), lengths.numpy()
    out = edr.numpy(), grad_accept.zero_().numpy(), grad_cost.zero_().numpy()
    split_rollouts(
        lambda first, last: _cost.cost(*given, first, last, first_start, *out),
        offsets[::2], threads=None, nbytes=given[0].nbytes,
    )  # fmt: skip
    return edr, grad_accept, grad_cost


@_cost_recursions.register_fake
def _(accept: torch.Tensor, cost: torch.Tensor, lengths: torch.Tensor, first_start: int) -> Triple:
    return _empty_costs(accept)


def _empty_costs(accept: torch.Tensor) -> Triple:
    edr = accept.new_empty(accept.shape[:1], dtype=torch.float64)
    # Contiguous even if the acceptances are not, as the kernels index them.
    grad_accept, grad_cost = (accept.new_empty(accept.shape) for _ in range(2))
    return edr, grad_accept, grad_cost


def cost_on_device(accept: torch.Tensor, cost: torch.Tensor, rows: Rows, first_start: int) -> Triple:
    """Equations (X) and (GX) on flat rows, a loop over depths beside the kernels for the recursions."""
    run, depth = kernels(accept.device), accept.shape[1]
    ordinary = Rows(rows.begin, (rows.size - 1).clamp(min=0), rows.left - 1)
    cells, prices = counted(accept, ordinary.left), counted(cost, ordinary.left).double()
    S, goes_on = survival(cells), ordinary.left > depth
    later = run.value(cells, (S[:, :-1] * prices).sum(1) + S[:, -1] * goes_on, ordinary)
    weight = counted(run.occupancy(cells, ordinary, first_start)[:, None] * S[:, :-1], ordinary.left)
    cont, gradient = goes_on * (1 + ahead(later, ordinary, depth + 1)), torch.empty_like(weight)
    for k in range(depth, 0, -1):
        rejected = ahead(later, ordinary, k)
        gradient[:, k - 1] = weight[:, k - 1] * (cont - rejected)
        cont = prices[:, k - 1] + rejected + cells[:, k - 1] * (cont - rejected)
    return first(1 + later, rows, first_start), gradient, weight
