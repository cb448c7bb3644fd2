"""The engine on a GPU: the same numbers as on the CPU, nothing waited for, and its speed; in under three minutes.

``python -m tests.gpu.check_cuda`` from the repository's root prints a table and ends with code 1 if a line of it fails.
With ``TRITON_INTERPRET=1`` the same kernels run on the CPU, in small sizes; times then mean nothing.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

import markov_spec as ms
from markov_spec.arrays import TensorLaw
from markov_spec.chain import _torch, _torch_solve, _triton
from markov_spec.chain._torch import cost_recursions, recursions
from markov_spec.chain._torch_rows import Rows

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
PARITY = [(5, 12, 3), (3, 9, 0), (4, 5, 9)] if INTERPRETED else [(64, 700, 7), (33, 257, 15), (9, 64, 40), (5, 30, 0)]
SPEED = (4, 16, 3) if INTERPRETED else (256, 2048, 16)
LOGITS = (64, 100) if INTERPRETED else (4096, 32_000)  # those of 512 starts at 8 depths
NEAR = {torch.float32: 2e-6, torch.float64: 1e-11}


@contextmanager
def nothing_waited_for() -> Iterator[None]:
    """Let torch raise an error wherever the host would wait for the GPU."""
    if INTERPRETED:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def batch(shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Acceptances, costs and lengths on the CPU."""
    rng = np.random.default_rng(0)
    accept, cost = (torch.tensor(cells, dtype=dtype) for cells in rng.random((2, *shape)))
    return accept, cost, torch.tensor(rng.integers(0, shape[1] + 1, shape[0]))


def on_device(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.to(DEVICE) for tensor in tensors]


def recursions_there(accept: torch.Tensor, lengths: torch.Tensor, first_start: int = 0) -> tuple:
    if not INTERPRETED:
        return recursions(accept, lengths, first_start=first_start)
    found = _torch.on_device(accept.flatten(0, 1), Rows.padded(lengths, accept.shape[1]), first_start)
    return tuple(rows.view(accept.shape[:2]) for rows in found)


def cost_recursions_there(accept: torch.Tensor, cost: torch.Tensor, lengths: torch.Tensor) -> tuple:
    if not INTERPRETED:
        return cost_recursions(accept, cost, lengths)
    rows = Rows.padded(lengths, accept.shape[1])
    edr, *slopes = _torch.cost_on_device(accept.flatten(0, 1), cost.flatten(0, 1), rows, 0)
    return edr, *(cells.view(accept.shape) for cells in slopes)


def solve_there(law: TensorLaw) -> tuple:
    there = _torch_solve.moments(law, 0, torch.tensor(2.0).double()) if INTERPRETED else ms.solve(law, price=2.0)
    return tuple(vars(there).values())


def farthest(found: tuple, wanted: tuple) -> float:
    """Give the largest difference of all tensors of two results, relative where they are above 1."""
    gaps = [
        (a.cpu() - b.cpu()).abs() / b.cpu().abs().clamp(min=1)
        for a, b in zip(found, wanted, strict=True)
        if b is not None
    ]
    return float(np.max([float(gap.max()) for gap in gaps if gap.numel()], initial=0))


def computations(shape: tuple[int, int, int], dtype: torch.dtype) -> Iterator[tuple[str, Callable, Callable]]:
    """Name what is computed, how on the device, and how on the CPU."""
    accept, cost, lengths = batch(shape, dtype)
    there = on_device(accept, cost, lengths)
    yield (
        "recursions",
        lambda: recursions_there(there[0], there[2], 1),
        lambda: recursions(accept, lengths, first_start=1),
    )
    yield "cost form", lambda: cost_recursions_there(*there), lambda: cost_recursions(accept, cost, lengths)
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)))
    flat = accept.flatten(0, 1)[: int(offsets[-1])]
    ragged = on_device(flat, offsets)
    for name, law, by_cpu in (
        ("padded", TensorLaw(there[0], lengths=there[2]), TensorLaw(accept, lengths=lengths)),
        ("ragged", TensorLaw(ragged[0], indptr=ragged[1]), TensorLaw(flat, indptr=offsets)),
    ):
        wanted = tuple(vars(ms.solve(by_cpu, price=2.0)).values())
        yield f"moments, {name}", lambda law=law: solve_there(law), lambda wanted=wanted: wanted
    logs = -2 * cost[..., 0] if shape[2] else torch.zeros(shape[:2], dtype=dtype), -2 * accept
    logs_there = on_device(*logs)
    for rule in ("rejection", "block"):

        def law_of(log_p: torch.Tensor, log_q: torch.Tensor, sizes: torch.Tensor, rule: str = rule) -> tuple:
            return (ms.round_law(log_p, log_q, lengths=sizes, rule=rule).survival(),)

        yield (
            f"round law, {rule}",
            lambda law_of=law_of: law_of(*logs_there, there[2]),
            lambda law_of=law_of: law_of(*logs, lengths),
        )


def milliseconds(run: Callable) -> float:
    """Give the median time of a call on the device, of 20 after 3."""
    times = []
    for _ in range(1 if INTERPRETED else 23):
        if INTERPRETED:
            begin = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - begin))
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return float(np.median(times[3:] or times))


def parity() -> Iterator[tuple[str, float, float]]:
    """Give the largest difference of each computation over shapes and types, and its limit."""
    worst: dict[str, tuple[float, float]] = {}
    for shape in PARITY:
        for dtype, limit in NEAR.items():
            for name, run, by_cpu in computations(shape, dtype):
                found = run()  # the first call compiles
                with nothing_waited_for():
                    again = run()
                gap = farthest(found, by_cpu()) if farthest(again, found) == 0 else float("inf")
                key = f"{name}, {str(dtype).removeprefix('torch.')}"
                worst[key] = float(np.maximum(gap, worst.get(key, (0.0,))[0])), limit
    for key, (gap, limit) in worst.items():
        yield key, gap, limit


def speed() -> Iterator[tuple[str, float, float]]:
    """Give milliseconds and their limits."""
    accept, cost, _ = on_device(*batch(SPEED, torch.float32))
    lengths = torch.full(SPEED[:1], SPEED[1], device=DEVICE)
    yield (
        f"recursions of {' x '.join(map(str, SPEED))}, ms",
        milliseconds(lambda: recursions_there(accept, lengths)),
        1.0,
    )
    yield "the cost form of them, ms", milliseconds(lambda: cost_recursions_there(accept, cost, lengths)), float("inf")
    yield "all moments of them, ms", milliseconds(lambda: solve_there(TensorLaw(accept, lengths=lengths))), float("inf")
    logits = torch.randn(LOGITS, device=DEVICE, requires_grad=True)
    tokens = torch.randint(LOGITS[1], LOGITS[:1], device=DEVICE)

    def cross_entropy() -> None:
        logits.grad = None
        torch.nn.functional.cross_entropy(logits, tokens).backward()

    one, one_cost = accept[:1, : LOGITS[0] // 8, :8].contiguous(), cost[:1, : LOGITS[0] // 8, :8].contiguous()
    size = torch.full((1,), one.shape[1], device=DEVICE)
    share = milliseconds(lambda: cost_recursions_there(one, one_cost, size)) / milliseconds(cross_entropy)
    yield f"cost form / cross-entropy of {' x '.join(map(str, LOGITS))}", share, float("inf")


def main() -> int:
    if INTERPRETED:
        _torch.kernels = _torch_solve.kernels = lambda device: _triton  # type: ignore[assignment] # for the CPU
    print(f"torch {torch.__version__}, {'interpreted' if INTERPRETED else torch.cuda.get_device_name()}")
    print(f"{'':48} {'found':>10} {'allowed':>10}")
    failed = 0
    for check in (parity, speed):
        for name, found, limit in check():
            wrong = not found <= limit and not (check is speed and INTERPRETED)
            failed += wrong
            print(f"{name:48} {found:10.3g} {limit:10.3g}{' FAILED' * wrong}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
