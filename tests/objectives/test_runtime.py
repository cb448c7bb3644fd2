"""The objectives under compilation, autocast, no_grad, two processes and forked loader workers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

import markov_spec as ms
from markov_spec import objectives
from markov_spec.objectives import OBJECTIVES
from tests.objectives import distributed, oracle

OWN = {"top-m-kl": {"m": 3}}


def loss_and_gradient(function, given, **options):
    draft = given.draft.clone().requires_grad_()
    result = function(draft, given.target, given.tokens, given.lengths, **options)
    result.loss.backward()
    return result.loss.detach(), draft.grad


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_compiled_against_reference(name, fresh_dynamo):
    """One graph, without a break."""
    given = oracle.batch(0, dtype=torch.float32)
    function = OBJECTIVES[name].function

    def loss(draft, target, tokens, lengths):
        return function(draft, target, tokens, lengths, **OWN.get(name, {})).loss

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    draft = given.draft.clone().requires_grad_()
    found = compiled(draft, given.target, given.tokens, given.lengths)
    found.backward()
    expected, gradient = loss_and_gradient(function, given, **OWN.get(name, {}))
    torch.testing.assert_close(found.detach(), expected)
    torch.testing.assert_close(draft.grad, gradient)


@pytest.mark.parametrize(("form", "rule"), [("cost", "rejection"), ("rollout", "block")])
def test_compiled_by_inductor_against_reference(form, rule, fresh_dynamo):
    """The forms of ``edr`` through the default compiler, twice, for batches of two shapes."""
    compiled = torch.compile(
        lambda *arrays: objectives.edr(*arrays, form=form, rule=rule, stop_ids=(1,) * (form == "cost")).loss,
        fullgraph=True,
    )
    for seed, size in ((0, 5), (1, 8)):
        given = oracle.batch(seed, size=size, dtype=torch.float32)
        draft = given.draft.clone().requires_grad_()
        found = compiled(draft, given.target, given.tokens, given.lengths)
        found.backward()
        expected, gradient = loss_and_gradient(
            objectives.edr, given, form=form, rule=rule, stop_ids=(1,) * (form == "cost")
        )
        torch.testing.assert_close(found.detach(), expected)
        torch.testing.assert_close(draft.grad, gradient)


def test_operators_are_sound_invariant():
    """Torch's own checks: schemas, fake implementations, and what autograd is told."""
    given = oracle.batch(0)
    for starts in (None, torch.tensor([[0, 1, 2, -1, 3]] * 3)):
        arguments = given.draft, given.target, given.tokens, given.lengths, starts, [1], 0.7, "rejected jsd", True
        torch.library.opcheck(torch.ops.markov_spec.cells.default, arguments)


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_autocast_and_no_grad_invariant(name):
    given = oracle.batch(1, dtype=torch.float32)
    function = OBJECTIVES[name].function
    expected, gradient = loss_and_gradient(function, given, **OWN.get(name, {}))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, same = loss_and_gradient(function, given, **OWN.get(name, {}))
    assert found == expected and found.dtype == torch.float32 and torch.equal(same, gradient)
    with torch.no_grad():
        draft = given.draft.clone().requires_grad_()
        bare = function(draft, given.target, given.tokens, given.lengths, **OWN.get(name, {}))
    assert bare.loss == expected and not bare.loss.requires_grad
    with torch.inference_mode():
        assert function(given.draft, given.target, given.tokens, given.lengths, **OWN.get(name, {})).loss == expected


def test_two_processes_against_reference(tmp_path):
    """Under DDP each process has the loss of its rows, and gradients are their mean; the meter's sums are added up."""
    address = tmp_path / "meeting"
    torch.multiprocessing.spawn(distributed.run, (str(address), str(tmp_path)), nprocs=2)
    (found, sums), (same, others) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    given = oracle.batch(0, rows=4, size=6, lengths=[6, 4, 5, 2])
    assert torch.equal(sums, others)
    for (name, form), gradient in found.items():
        assert torch.equal(gradient, same[name, form])
        model = distributed.Table(3, 6)
        halves = []
        for rows in (slice(0, 2), slice(2, 4)):
            rule = dict(distributed.FORMS).get(form)
            options = {"m": 3} if name == "top-m-kl" else {"form": form, "rule": rule} if name == "edr" else {}
            tokens = given.tokens[rows]
            halves.append(
                OBJECTIVES[name]
                .function(model(tokens), given.target[rows], tokens, given.lengths[rows], **options)
                .loss
            )
        (sum(halves) / 2).backward()
        torch.testing.assert_close(gradient, model.rows.grad, rtol=1e-12, atol=1e-15)
    meter = objectives.AcceptanceMeter(3)
    model = distributed.Table(3, 6)
    meter.update(objectives.score_cells(model(given.tokens).detach(), given.target, given.tokens, given.lengths))
    torch.testing.assert_close(sums, meter.sums, rtol=1e-12, atol=0)


class Weighed(Dataset):
    """Weights and sampled starts of a rollout, computed by the loader's worker."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i):
        given = oracle.batch(i, rows=1, lengths=[5])
        scores = objectives.score_cells(given.draft, given.target, given.tokens, given.lengths)
        rng = torch.Generator().manual_seed(i)
        starts, weights, _ = objectives.sample_starts(scores.log_p, scores.log_q, given.lengths, count=2, rng=rng)
        return ms.edr_weights(scores.log_p, scores.log_q, given.lengths).log_q[0], starts[0], weights[0]


def test_forked_workers_against_reference():
    data = Weighed()
    expected = [data[i] for i in range(len(data))]  # the kernels have run here before the fork
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork")
    for found, wanted in zip(loader, expected, strict=True):
        for one, other in zip(found, wanted, strict=True):
            assert torch.equal(one, other)


def test_import_is_lazy_invariant():
    """``import markov_spec`` brings no torch; its names that need it do, when they are used."""
    code = (
        "import sys; from markov_spec import *; import markov_spec as ms; assert 'torch' not in sys.modules;"
        "assert ms.edr_weights and ms.replay_starts and ms.objectives.edr and 'torch' in sys.modules\n"
        "try: ms.no_such_name\nexcept AttributeError as error: print(error)"
    )
    root = Path(ms.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "module 'markov_spec' has no attribute 'no_such_name'"


def test_without_torch_invariant():
    """What needs torch says how to get it, and is absent for ``hasattr``; laws of arrays need none."""
    code = """
import sys
sys.modules["torch"] = None
import numpy as np
import markov_spec as ms
law = ms.round_law(np.log([.5, .5]), np.log([.5, .25]), [0, 2], rule="rejection", draft_length=1)
print(ms.solve(law).expected, hasattr(ms, "objectives"), hasattr(ms, "edr_weights"))
for use in ("ms.objectives.edr", "ms.replay_starts", "from markov_spec import objectives"):
    try:
        exec(use)
    except (ImportError, AttributeError) as error:
        print(error)
"""
    root = Path(ms.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    needs = "markov_spec.objectives needs torch: pip install 'markov-spec[torch]'"
    absent = "module 'markov_spec' has no attribute {!r} here: " + needs
    said = [absent.format("objectives"), absent.format("replay_starts"), needs]
    assert done.stdout.splitlines() == ["[1.] False False", *said]
