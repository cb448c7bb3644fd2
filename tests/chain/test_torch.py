"""The recursions on tensors: the numba kernels and the loops of other devices, on the CPU."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import markov_spec
from markov_spec.chain import _reference, _torch, _torch_rows
from markov_spec.chain._torch import cost_recursions, recursions
from markov_spec.chain._torch_rows import Rows
from markov_spec.chain.moments import solve_every
from tests.chain import padded
from tests.chain.padded import Unread

ROOT = Path(markov_spec.__file__).parents[1]
DTYPES = [torch.float64, torch.float32]


def _by_reference(accept, first_start):
    """Occupancy and value of one rollout, (T, K) cells."""
    tokens, depth = accept.shape
    common = (accept.reshape(-1), depth, np.array([depth]), 0, np.array([0, tokens]), 0, 1, first_start)
    value, occupancy, unused = np.zeros(tokens), np.zeros(tokens), np.zeros(1)
    _reference.backward(*common, value, unused)
    _reference.forward(*common, occupancy, np.zeros((1, depth + 1)), np.zeros((1, depth)), unused)
    return occupancy, value


@pytest.mark.parametrize("first_start", [0, 1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", padded.SHAPES)
def test_occupancy_and_value_against_reference(shape, dtype, first_start):
    accept, _, lengths = padded.batch(shape, dtype)
    found = recursions(accept, lengths, first_start=first_start)
    wanted = np.zeros((2, *shape[:2]))
    for b, size in enumerate(lengths.tolist()):
        wanted[:, b, :size] = _by_reference(accept[b, :size].numpy(), first_start)
    for tensor, array in zip(found, wanted, strict=True):
        assert tensor.dtype == torch.float64
        np.testing.assert_allclose(tensor.numpy(), array, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("first_start", [0, 1, 3])
@pytest.mark.parametrize("shape", padded.SHAPES)
def test_cost_form_and_its_slopes_against_reference(shape, first_start):
    accept, cost, lengths = padded.batch(shape, torch.float64)
    edr, grad_accept, grad_cost = cost_recursions(accept, cost, lengths, first_start=first_start)
    wanted = np.zeros((2, *shape))
    for b, size in enumerate(lengths.tolist()):
        a, c = accept[b, :size].numpy(), cost[b, :size].numpy()
        np.testing.assert_allclose(edr[b], padded.rounds_by_cost(a, c, first_start), rtol=1e-13)
        for s in range(first_start, size - 1):
            for k in range(min(shape[2], size - 1 - s)):
                wanted[0, b, s, k] = padded.slope(lambda x, c=c: padded.rounds_by_cost(x, c, first_start), a, s, k)
                wanted[1, b, s, k] = padded.slope(lambda x, a=a: padded.rounds_by_cost(a, x, first_start), c, s, k)
    np.testing.assert_allclose(grad_accept.numpy(), wanted[0], atol=1e-13)
    np.testing.assert_allclose(grad_cost.numpy(), wanted[1], atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", padded.SHAPES)
def test_loops_of_other_devices_against_reference(shape, dtype):
    padded.check_device_path(_torch_rows, shape, dtype)


@pytest.mark.parametrize("first_start", [0, 1])
def test_rollout_form_and_its_slopes_against_reference(first_start):
    """(E) and (G) are the cost form for the cost of any rejection at all."""
    accept, _, lengths = padded.batch((6, 9, 3), torch.float64)
    edr, by_accept, by_cost = cost_recursions(accept, 1 - accept, lengths, first_start=first_start)
    gradient = by_accept - by_cost
    for b, size in enumerate(lengths.tolist()):
        a = accept[b, :size].numpy()

        def expected(cells):
            return _by_reference(cells, first_start)[0].sum()

        np.testing.assert_allclose(edr[b], expected(a), rtol=1e-13)
        for s in range(size):
            for k in range(3):
                wanted = padded.slope(expected, a, s, k) if k < size - s else 0
                np.testing.assert_allclose(gradient[b, s, k], wanted, atol=1e-12)


def test_perfect_drafts_and_costs_against_closed_form():
    sure = torch.ones(1, 17, 7)
    edr, *_ = cost_recursions(sure, torch.zeros_like(sure), torch.tensor([17]))
    assert edr.item() == 3
    assert recursions(sure[:, :16], torch.tensor([16]))[0].nonzero()[:, 1].tolist() == [0, 8]
    assert recursions(sure, torch.tensor([17]))[0].nonzero()[:, 1].tolist() == [0, 8, 16]
    cost = torch.zeros(1, 4, 2)
    edr, *_ = cost_recursions(torch.ones(1, 4, 2), cost, torch.tensor([4]))
    assert edr.item() == 2
    cost[0, 0, 0] = 0.25  # the first draft is rejected for an ordinary token a quarter of the time
    assert cost_recursions(torch.ones(1, 4, 2), cost, torch.tensor([4]))[0].item() == 2.25


def test_no_copy_of_the_cells_invariant(monkeypatch):
    seen = []
    monkeypatch.setattr(_torch, "solve_every", lambda law, *a, **k: seen.append(law) or solve_every(law, *a, **k))
    monkeypatch.setattr(_torch._cost, "cost", lambda accept, cost, *more: seen.extend((accept, cost)))
    accept, cost = torch.full((2, 5, 2), 0.5), torch.zeros(2, 5, 2)
    recursions(accept, torch.tensor([5, 3]))
    cost_recursions(accept, cost, torch.tensor([5, 3]))
    read = [seen[0].accept.ctypes.data, seen[1].ctypes.data, seen[2].ctypes.data]
    assert read == [accept.data_ptr(), accept.data_ptr(), cost.data_ptr()]


def test_nothing_on_a_device_is_waited_for_invariant(monkeypatch):
    """On the meta device there are shapes and types only, so whatever reads a value fails."""
    monkeypatch.setattr(_torch, "kernels", lambda device: Unread)
    accept, cost, lengths = (tensor.to("meta") for tensor in padded.batch((3, 7, 2), torch.float32))
    rows, flat = Rows.padded(lengths, 7), (accept.flatten(0, 1), cost.flatten(0, 1))
    assert [tensor.shape for tensor in _torch.on_device(flat[0], rows, 1)] == [(21,), (21,)]
    assert [tensor.shape for tensor in _torch.cost_on_device(*flat, rows, 1)] == [(3,), (21, 2), (21, 2)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_invariant(dtype):
    """Schema, fake implementation and aliasing are as torch wants them, for strided cells too."""
    accept, cost, lengths = padded.batch((5, 9, 3), dtype)
    strided = accept.transpose(0, 1).contiguous().transpose(0, 1)
    for cells in (accept, strided):
        torch.library.opcheck(torch.ops.markov_spec.recursions.default, (cells, lengths, 1))
        torch.library.opcheck(torch.ops.markov_spec.cost_recursions.default, (cells, cost, lengths, 1))
    assert all(map(torch.equal, cost_recursions(strided, cost, lengths), cost_recursions(accept, cost, lengths)))


def test_compiled_without_a_break_invariant():
    def loss(accept, cost, lengths):
        occupancy, value = recursions(accept * 0.5, lengths, first_start=1)
        edr, by_accept, by_cost = cost_recursions(accept * 0.5, cost, lengths)
        return (edr + (by_accept * accept + by_cost * cost).sum((1, 2)) + (occupancy * value).sum(1)).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for shape in ((5, 9, 3), (7, 12, 4)):
        given = [x.nan_to_num(0.5) for x in padded.batch(shape, torch.float64)]
        for x in given[:2]:
            x.requires_grad_()
        (by_compiled,) = torch.autograd.grad(compiled(*given), given[:1])
        (eager,) = torch.autograd.grad(loss(*given), given[:1])
        torch.testing.assert_close(compiled(*given), loss(*given), rtol=1e-14, atol=0)
        torch.testing.assert_close(by_compiled, eager, rtol=1e-14, atol=0)


def test_autocast_changes_nothing_invariant():
    accept, cost, lengths = padded.batch((5, 9, 3), torch.float32)
    rows, flat = Rows.padded(lengths, 9), (accept.flatten(0, 1), cost.flatten(0, 1))

    def everything():
        yield from (*recursions(accept, lengths, first_start=np.int64(1)), *cost_recursions(accept, cost, lengths))
        yield from (*_torch.on_device(flat[0], rows, 0), *_torch.cost_on_device(*flat, rows, 0))

    expected = list(everything())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for found, wanted in zip(everything(), expected, strict=True):
            assert found.dtype == wanted.dtype and torch.equal(found, wanted)


def test_no_gradient_flows_invariant():
    accept = torch.rand(2, 4, 2, requires_grad=True)
    found = (*recursions(accept, torch.tensor([4, 2])), *cost_recursions(accept, accept, torch.tensor([4, 2])))
    assert not any(tensor.requires_grad for tensor in found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((torch.zeros(2, 3), torch.tensor([1, 1]), 0), r"accept: found shape \(2, 3\), dtype torch.float32; allowed"),
        ((torch.zeros(2, 3, 1).half(), torch.tensor([1, 1]), 0), "accept: found .* torch.float16; allowed"),
        ((torch.zeros(2, 3, 1), torch.tensor([1]), 0), r"lengths: found shape \(1,\), .* allowed: \(2,\) of int64"),
        ((torch.zeros(2, 3, 1), torch.tensor([1, 1]).int(), 0), "lengths: found .* torch.int32"),
        ((torch.zeros(2, 3, 1), torch.tensor([1, 4]), 0), "lengths: rollout 1: found 4; allowed: 0 to 3"),
        ((torch.zeros(2, 3, 1), torch.tensor([-1, 3]), 0), "lengths: rollout 0: found -1; allowed: 0 to 3"),
        ((torch.zeros(2, 3, 1), torch.tensor([1, 1]), -1), "first_start: found -1; allowed"),
    ],
)
def test_refusals_invariant(given, message):
    accept, lengths, first_start = given
    with pytest.raises(ValueError, match=message):
        recursions(accept, lengths, first_start=first_start)
    with pytest.raises(ValueError, match=message):
        cost_recursions(accept, accept, lengths, first_start=first_start)


def test_refused_costs_invariant():
    accept, lengths = torch.zeros(2, 3, 1), torch.tensor([1, 1])
    for cost in (accept.double(), accept[:1]):
        with pytest.raises(ValueError, match=r"cost: found shape, dtype and device \(.*; allowed: those of accept"):
            cost_recursions(accept, cost, lengths)


FORK = """
import numpy as np
import torch
from markov_spec.chain._torch import cost_recursions, recursions
from markov_spec.chain._torch_rows import Rows
from markov_spec.chain.moments import solve_every

accept, lengths = torch.rand(64, 512, 8), torch.arange(64) * 8

class Once(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        found = *recursions(accept, lengths), *cost_recursions(accept, accept, lengths)
        return torch.cat([x.flatten() for x in found])

expected = Once()[0]
loader = torch.utils.data.DataLoader(Once(), batch_size=None, num_workers=2, multiprocessing_context="fork")
found = list(loader)
assert len(found) == 4 and all(torch.equal(batch, expected) for batch in found)
print("equal")
"""


def test_case_99_forked_workers_invariant():
    done = subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "equal"
