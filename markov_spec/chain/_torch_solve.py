"""The moments of the rounds of a law of tensors.

On the CPU they are those of the law's arrays, one operator under ``torch.compile``. On a device, with ``o``, ``V`` and
``A`` of ``markov_spec.chain``, what a round accepts and drafts is summed over starts by ``o``. So is the variance, by
the law of total variance::

    (M)  Var[R] = sum_s o[s] sum_k A[s,k] (V[s+k+1] - V[s] + 1)^2
    (C)  C[s] = sum_k A[s,k] (c[s,k] + C[s+k+1]), its variance as (M) with C for V and c[s,k] for 1
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import torch

from markov_spec.arrays import RoundLaw, TensorLaw, check_first_start
from markov_spec.chain._torch import kernels, padded_offsets
from markov_spec.chain._torch_rows import Rows, ahead, counted, first, round_law, survival
from markov_spec.chain.moments import Rounds, solve_every
from markov_spec.chain.ratio import expected_inverse

BY_ROW, PRICED = ("value", "occupancy"), ("price", "price_variance")
FIELDS = tuple(field.name for field in fields(Rounds) if field.name != "expected_inverse")


def solve(law: TensorLaw, first_start: int, price: Any, inverse: bool, threads: int | None) -> Rounds:
    """Do what ``markov_spec.chain.solve`` does, in tensors on the law's device."""
    start = check_first_start(first_start, law.rows[-1])
    gain = None if price is None else _prices(price, law)
    if law.accept.device.type != "cpu":
        if inverse:
            raise ValueError(f"inverse: asked for on {law.accept.device}; allowed: for ms.solve(law.numpy())")
        return moments(law, start, gain)
    length = law.draft_length
    constant, each = (length, None) if isinstance(length, int) else (law.depth, length)
    values = _on_cpu(
        law.accept.detach(), law.lengths, law.indptr, each, constant, start, gain, inverse, threads
    )  # fmt: skip
    names = [name for name in FIELDS if gain is not None or name not in PRICED]
    found: Any = dict(zip(names + ["expected_inverse"] * inverse, values, strict=True))
    return Rounds(**found)


def _prices(price: Any, law: TensorLaw) -> torch.Tensor:
    # (), (N,) or (N, K+1), of flat rows, 0 in padding.
    if not isinstance(price, torch.Tensor) and not np.shape(price):
        return torch.full((), float(price), dtype=torch.float64, device=law.accept.device)
    values = torch.as_tensor(price, dtype=torch.float64, device=law.accept.device).detach()
    each = (*law.rows, law.depth + 1)
    if tuple(values.shape) not in ((), law.rows, each):
        raise ValueError(f"price: found shape {tuple(values.shape)}; allowed: a number, {law.rows} or {each}")
    if not values.dim():
        return values
    values = values.flatten(0, len(law.rows) - 1)
    if law.lengths is None:
        return values
    left = Rows.padded(law.lengths, law.rows[1]).left > 0
    return torch.where(left if values.dim() == 1 else left[:, None], values, 0.0)


@torch.library.custom_op("markov_spec::moments", mutates_args=())
def _on_cpu(
    accept: torch.Tensor, lengths: torch.Tensor | None, indptr: torch.Tensor | None, each: torch.Tensor | None,
    draft_length: int, first_start: int, price: torch.Tensor | None, inverse: bool, threads: int | None,
) -> list[torch.Tensor]:  # fmt: skip
    law = TensorLaw(accept, lengths, indptr, draft_length if each is None else each)
    padded, length = law.lengths is not None, law.draft_length
    offsets = padded_offsets(law.lengths, law.rows[1]) if padded else law.indptr.numpy()
    flat = law.accept.flatten(0, -2).numpy()
    arrays = RoundLaw.trusted(flat, offsets, length if isinstance(length, int) else length.flatten().numpy())
    every = 1 + padded
    given = None if price is None else price.numpy()
    rounds = solve_every(arrays, every, first_start=first_start, price=given, threads=threads)
    found: list[torch.Tensor] = []
    for name in FIELDS:
        values = getattr(rounds, name)
        if values is not None:
            values = values.reshape(law.rows) if name in BY_ROW else np.ascontiguousarray(values[::every])
            found.append(torch.from_numpy(values))
    if inverse:
        found.append(torch.from_numpy(expected_inverse(law.numpy(), first_start=first_start, threads=threads)))
    return found


@_on_cpu.register_fake
def _(accept, lengths, indptr, each, draft_length, first_start, price, inverse, threads):  # type: ignore[no-untyped-def] # as `_on_cpu`
    rollouts, depth = indptr.shape[0] - 1 if lengths is None else lengths.shape[0], accept.shape[-1]
    shapes = {"accepted_histogram": (rollouts, depth + 1), "tested": (rollouts, depth)}
    shapes |= dict.fromkeys(BY_ROW, accept.shape[:-1])
    names = [name for name in FIELDS if price is not None or name not in PRICED] + ["expected_inverse"] * inverse
    return [accept.new_empty(shapes.get(name, (rollouts,)), dtype=torch.float64) for name in names]


def moments(law: TensorLaw, start: int, price: torch.Tensor | None) -> Rounds:
    """Compute them by the recursions of the law's device, which nothing here waits for."""
    accept, run = law.accept.detach().flatten(0, -2), kernels(law.accept.device)
    padded = law.lengths is not None
    rows = Rows.padded(law.lengths, law.rows[1]) if padded else Rows.ragged(law.indptr, law.rows[0])
    drafted = torch.minimum(law.proposed().flatten(), rows.left).clamp(min=0)
    cells = counted(accept, drafted)
    S, o = survival(cells), run.occupancy(cells, rows, start)
    A = round_law(S)

    def over_starts(values: torch.Tensor) -> Any:
        weighted = (o if values.dim() == 1 else o[:, None]) * values
        if padded:
            return weighted.view(*law.rows, *values.shape[1:]).sum(1)
        offsets = torch.cat((rows.begin, rows.begin[-1:] + rows.size[-1:]))
        # Unlike index_add, summed in the same order in every run.
        return torch.segment_reduce(weighted, "sum", offsets=offsets, unsafe=True, initial=0)

    def priced(gain: torch.Tensor) -> tuple[torch.Tensor, Any]:
        # Expected price from every start, and its variance; the gain is (N, 1) or (N, K+1).
        expected = run.value(cells, gain[:, 0] if gain.shape[1] == 1 else (A * gain).sum(1), rows)
        later = torch.stack([ahead(expected, rows, k + 1) for k in range(A.shape[1])], 1)
        return expected, over_starts((A * (later - expected[:, None] + gain) ** 2).sum(1))

    one = o.new_ones(o.numel(), 1)
    value, variance = priced(one)
    total = spread = None
    if price is not None:
        expected, spread = priced(price if price.dim() == 2 else price.expand(o.shape)[:, None])
        total = first(expected, rows, start)
    depths = torch.arange(1, cells.shape[1] + 1, device=o.device)
    found: Any = {
        "expected": first(value, rows, start), "variance": variance,
        "value": value.view(law.rows), "occupancy": o.view(law.rows),
        "accepted_histogram": over_starts(A), "tested": over_starts(S[:, :-1] * (depths <= drafted[:, None])),
        "drafted": over_starts(drafted), "committed": (rows.size - start).clamp(min=0).double(),
        "price": total, "price_variance": spread,
    }  # fmt: skip
    return Rounds(**found)
