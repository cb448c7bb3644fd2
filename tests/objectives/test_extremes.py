"""Objectives of logits so far apart that probabilities underflow."""

import pytest
import torch

from markov_spec import objectives
from tests.objectives import oracle

MASKED = torch.finfo(torch.float32).min


def one(function, draft, target, dtype=torch.float32, **options):
    """Loss and gradient of one cell of two tokens."""
    leaf = torch.tensor([[[draft]]], dtype=dtype, requires_grad=True)
    arrays = leaf, torch.tensor([[target]], dtype=dtype), torch.tensor([[0]]), torch.tensor([1])
    loss = function(*arrays, **options).loss
    return loss.item(), torch.autograd.grad(loss, leaf)[0].flatten().tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "draft", "target", "loss", "slopes"),
    [
        ("forward_kl", [0.0, 90.0], [0.0, 0.0], 44.306853, [-0.5, 0.5]),
        ("forward_kl", [0.0, 120.0], [0.0, 0.0], 59.306853, [-0.5, 0.5]),
        ("reverse_kl", [0.0, 0.0], [0.0, 110.0], 54.306853, [27.5, -27.5]),
        ("reverse_kl", [0.0, 110.0], [0.0, 0.0], 0.693147, [0.0, 0.0]),
        ("jsd", [0.0, 110.0], [0.0, 104.0], 0.0, [0.0, 0.0]),
        ("jsd", [0.0, 110.0], [110.0, 0.0], 0.693147, [0.0, 0.0]),
        ("jsd", [0.0, 0.0], [0.0, 110.0], 0.215762, [0.1373265, -0.1373265]),
        ("lk_alpha", [0.0, 92.0], [92.0, 0.0], 91.306853, [-0.5, 0.5]),  # overlap 2 exp(-92), half of it moves
        ("lk_alpha", [0.0, 120.0], [120.0, 120.0], 0.693147, [0.0, 0.0]),
        ("lk_alpha", [0.0, 120.0, 120.0], [130.0, 0.0, 0.0], 120.692966, [-0.9998184, 0.4999092, 0.4999092]),
        ("lk_lambda", [0.0, 120.0], [120.0, 0.0], 120.0, [-1.0, 1.0]),
    ],
)  # fmt: skip
def test_far_apart_against_closed_form(name, draft, target, loss, slopes, dtype):
    found, gradient = one(getattr(objectives, name), draft, target, dtype)
    assert found == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert gradient == pytest.approx(slopes, rel=1e-4 if dtype == torch.float32 else 4e-3, abs=1e-6)


def reference(name, draft, target):
    log_q, log_p = torch.log_softmax(draft, -1), torch.log_softmax(target, -1)
    p, q = log_p.exp(), log_q.exp()
    forward, overlap = (p * (log_p - log_q)).sum(-1), torch.minimum(p, q).sum(-1)
    if name == "lk_lambda":
        lam = (-3 * overlap.detach()).exp()
        return lam * forward + (1 - lam) * (1 - overlap)
    middle = torch.logaddexp(log_p, log_q) - torch.tensor(2.0).double().log()
    return {
        "forward_kl": forward, "tv": 1 - overlap, "reverse_kl": (q * (log_q - log_p)).sum(-1),
        "jsd": (p * (log_p - middle) + q * (log_q - middle)).sum(-1) / 2,
        "lk_alpha": -torch.minimum(log_p, log_q).logsumexp(-1),
    }[name]  # fmt: skip


@pytest.mark.parametrize("name", ["forward_kl", "reverse_kl", "jsd", "lk_alpha", "lk_lambda", "tv"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wide_logits_against_reference(name, dtype):
    """Spreads of 130 nats and more: loss and gradient of the same logits in float64."""
    rng = torch.Generator().manual_seed(0)
    draft, target = (torch.randn(1, 4, *shape, 2000, generator=rng) * 6 for shape in ((2,), ()))
    draft, target = draft.to(dtype), target.to(dtype)
    leaf = draft.clone().requires_grad_()
    tokens, lengths = torch.zeros(1, 4, dtype=torch.int64), torch.tensor([4])
    result = getattr(objectives, name)(leaf, target, tokens, lengths, temperature=0.3, reduction="sum")
    result.loss.backward()
    wide = draft.double().requires_grad_()
    at = torch.arange(4)[:, None] + torch.arange(2)
    cells = reference(name, wide[0] / 0.3, target.double()[0, at.clamp(max=3)] / 0.3)
    expected = (cells * (at < 4)).sum()
    expected.backward()
    assert result.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    eps = 1e-4 if dtype == torch.float32 else 8e-3
    torch.testing.assert_close(leaf.grad.double(), wide.grad, rtol=eps, atol=2e-5)


def test_masked_draft_against_closed_form():
    """A token that a mask all but rules out is still pulled at, with its whole probability."""
    loss, gradient = one(objectives.forward_kl, [MASKED, 0.0, 0.0], [0.0, 0.0, 0.0])
    assert loss == pytest.approx(-MASKED / 3, rel=1e-6)
    assert gradient == pytest.approx([-1 / 3, 1 / 6, 1 / 6], rel=1e-6)
    for function in (objectives.forward_kl, objectives.reverse_kl, objectives.jsd, objectives.lk_alpha):
        loss, gradient = one(function, [MASKED, 0.0, 0.0], [MASKED, 0.0, 0.0])
        assert loss == pytest.approx(0, abs=1e-6) and gradient == pytest.approx([0, 0, 0], abs=1e-6)


def test_all_but_sure_stops_have_a_gradient_invariant():
    """The target's mass outside the stop tokens underflows: the cost's slope is a number."""
    target = torch.tensor([0.0, 92.0, 3.0]).expand(1, 2, 3)
    leaf = torch.tensor([0.0, 100.0, 1.0]).expand(1, 2, 1, 3).clone().requires_grad_()
    result = objectives.edr(leaf, target, torch.tensor([[0, 1]]), torch.tensor([2]), stop_ids=(1,))
    result.loss.backward()
    assert result.loss.isfinite() and leaf.grad.isfinite().all()


@pytest.mark.parametrize("name", list(objectives.OBJECTIVES))
def test_nan_stays_nan_invariant(name):
    given = oracle.batch(0)
    given.draft[0, 0, 0, 2] = torch.nan
    options = {"m": 6} if name == "top-m-kl" else {}
    result = objectives.OBJECTIVES[name].function(given.draft, given.target, given.tokens, given.lengths, **options)
    assert result.loss.isnan()
