"""Every objective of the registry, its value and gradient."""

import pytest
import torch

from markov_spec import objectives
from markov_spec.objectives import OBJECTIVES, REDUCTIONS
from tests.objectives import oracle

BASELINES = [name for name in OBJECTIVES if name != "edr"]
OWN = {"top-m-kl": {"m": 4}}


def call(name, given, draft, **options):
    if given.mask is not None:
        options |= {"mask": given.mask, "mask_frame": "label"}
    if given.starts is not None:
        options["starts"] = given.starts
    return OBJECTIVES[name].function(
        draft, given.target, given.tokens, given.lengths, temperature=given.temperature, **OWN.get(name, {}), **options
    )


def variants():
    plain = oracle.batch(0)
    yield plain
    sampled = oracle.batch(1, temperature=0.7)
    sampled.starts = torch.tensor([[0, 3], [2, -1], [0, 1]])
    sampled.draft = sampled.draft[:, :2]
    yield sampled
    masked = oracle.batch(2, depth=7)
    masked.mask = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.bool)
    yield masked


def gradient(loss, draft):
    return torch.autograd.grad(loss, draft)[0]


@pytest.mark.parametrize("name", BASELINES)
def test_loss_and_gradient_against_reference(name):
    for given in variants():
        draft = given.draft.clone().requires_grad_()
        for reduction in REDUCTIONS:
            result = call(name, given, draft, reduction=reduction)
            expected = oracle.baseline(name, given, draft, reduction=reduction)
            torch.testing.assert_close(result.loss, expected, rtol=1e-12, atol=1e-13)
            found, wanted = gradient(result.loss, draft), gradient(expected, draft)
            torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-13)
            assert result.per_rollout.sum().item() == pytest.approx(
                oracle.baseline(name, given, draft, reduction="sum").item(), rel=1e-12
            )


@pytest.mark.parametrize("name", BASELINES)
def test_gradient_of_differences_against_reference(name):
    """With what the source holds constant held, where the gradient is a surrogate's."""
    for i, given in enumerate(variants()):
        draft = given.draft.clone().requires_grad_()
        found = gradient(call(name, given, draft).loss, draft)
        kind = OBJECTIVES[name].gradient_kind
        for seed in range(3):
            way = torch.randn(draft.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            step = 1e-5

            def loss(shift, given=given, way=way, kind=kind):
                moved = given.draft + shift * way
                if kind == "surrogate":
                    return oracle.baseline(name, given, moved, held=given.draft).item()
                return call(name, given, moved).loss.item()

            slope = (loss(step) - loss(-step)) / (2 * step)
            assert (found * way).sum().item() == pytest.approx(slope, rel=1e-6, abs=1e-9), (i, seed)


def test_surrogate_gradient_is_not_the_derivative_invariant():
    given = oracle.batch(0)
    for name in BASELINES:
        draft = given.draft.clone().requires_grad_()
        found = gradient(call(name, given, draft, reduction="sum").loss, draft)
        step = 1e-6
        slope = sum(
            sign * call(name, given, given.draft + sign * step * found, reduction="sum").loss.item()
            for sign in (1, -1)
        ) / (2 * step)  # fmt: skip
        exact = abs(slope / (found * found).sum().item() - 1) < 1e-5
        assert exact == (OBJECTIVES[name].gradient_kind == "exact"), name


def test_registry_says_what_is_done_invariant():
    given = oracle.batch(0)
    for name, entry in OBJECTIVES.items():
        result = entry.function(given.draft, given.target, given.tokens, given.lengths, **OWN.get(name, {}))
        assert (result.name, result.reduction, result.gradient_kind) == (name, entry.reduction, entry.gradient_kind)
        assert name.replace("-", "_") == entry.function.__name__
        if not entry.reads_target:
            same = entry.function(given.draft, None, given.tokens, given.lengths, **OWN.get(name, {}))
            assert same.loss == result.loss
        elif name != "edr":
            with pytest.raises(ValueError, match="target_logits: found None"):
                entry.function(given.draft, None, given.tokens, given.lengths, **OWN.get(name, {}))


@pytest.mark.parametrize("name", list(OBJECTIVES))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_logits_against_reference(name, dtype):
    """Half precision is widened before anything is computed: all is as of the widened logits."""
    given = oracle.batch(3, dtype=dtype)
    draft = given.draft.clone().requires_grad_()
    result = OBJECTIVES[name].function(draft, given.target, given.tokens, given.lengths, **OWN.get(name, {}))
    result.loss.backward()
    wide = given.draft.double().requires_grad_()
    exact = OBJECTIVES[name].function(wide, given.target.double(), given.tokens, given.lengths, **OWN.get(name, {}))
    exact.loss.backward()
    assert result.loss.dtype == torch.float32 and draft.grad.dtype == dtype
    torch.testing.assert_close(result.loss.double(), exact.loss, rtol=2e-6, atol=1e-7)
    eps = 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(draft.grad.double(), wide.grad, rtol=eps, atol=1e-6)


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_nothing_to_learn_invariant(name):
    """No rollout, no token, all ends at 0, nothing but padding: value 0, gradient 0, and the flag."""
    for rows, size in ((2, 3), (0, 3), (2, 0)):
        given = oracle.batch(0, rows=rows, size=size, lengths=[0] * rows)
        draft = given.draft.clone().fill_(torch.nan).requires_grad_()
        result = OBJECTIVES[name].function(draft, given.target, given.tokens, given.lengths, **OWN.get(name, {}))
        assert result.loss.item() == 0 and bool(result.empty)
        result.loss.backward()
        assert (draft.grad == 0).all()
    if name != "edr":
        given = oracle.batch(0)
        draft = given.draft.clone().requires_grad_()
        given.mask = torch.zeros(given.tokens.shape, dtype=torch.bool)
        result = call(name, given, draft)
        result.loss.backward()
        assert result.loss.item() == 0 and bool(result.empty) and (draft.grad == 0).all()


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_padding_is_ignored_invariant(name):
    """NaN logits and foreign labels past the ends change nothing; a longer padding neither."""
    given = oracle.batch(4)
    plain = given.draft.clone().requires_grad_()
    expected = OBJECTIVES[name].function(plain, given.target, given.tokens, given.lengths, **OWN.get(name, {}))
    expected.loss.backward()
    draft = torch.full((3, 8, 3, 6), torch.nan, dtype=torch.float64)
    target, tokens = torch.full((3, 8, 6), torch.nan, dtype=torch.float64), torch.full((3, 8), -100)
    for b, n in enumerate(given.lengths.tolist()):
        target[b, :n], tokens[b, :n] = given.target[b, :n], given.tokens[b, :n]
        for s in range(n):
            draft[b, s, : n - s] = given.draft[b, s, : n - s]
    draft.requires_grad_()
    result = OBJECTIVES[name].function(draft, target, tokens, given.lengths, **OWN.get(name, {}))
    result.loss.backward()
    torch.testing.assert_close(result.loss, expected.loss, rtol=1e-14, atol=0)
    torch.testing.assert_close(draft.grad[:, :5], plain.grad, rtol=1e-12, atol=1e-15)
    assert (draft.grad[:, 5:] == 0).all()


def test_ruled_out_tokens_against_closed_form():
    """Logits of -inf: an infinite loss says so, its gradient is no NaN, and others stay what they are."""
    low = -torch.inf
    draft = torch.tensor([[[[0.0, low, 0.0]]]], dtype=torch.float64)  # q = (.5, 0, .5)
    target = torch.tensor([[[0.0, 0.0, low]]], dtype=torch.float64)  # p = (.5, .5, 0)
    expected = {
        "cross-entropy": torch.inf, "dflash-decay": torch.inf, "d-pace": torch.inf, "auf": torch.inf, "chain": 0.0,
        "e2e-tv": 0.5, "tv": 0.5, "lk-alpha": 0.693147180559945, "lk-lambda": torch.inf, "forward-kl": torch.inf,
        "reverse-kl": torch.inf, "jsd": 0.346573590279973, "edr": 1.0, "top-m-kl": torch.inf,
    }  # fmt: skip
    for name, entry in OBJECTIVES.items():
        leaf = draft.clone().requires_grad_()
        result = entry.function(
            leaf, target, torch.tensor([[1]]), torch.tensor([1]), **({"m": 2} if name in OWN else {})
        )
        assert result.loss.item() == pytest.approx(expected[name], rel=1e-12), name
        result.loss.backward()
        assert torch.isfinite(leaf.grad).all(), name
        assert (leaf.grad == 0).all() or name not in ("forward-kl", "reverse-kl", "top-m-kl"), name
    no_overlap = torch.tensor([[[low, 0.0, low]]], dtype=torch.float64)
    leaf = draft.clone().requires_grad_()
    result = objectives.lk_alpha(leaf, no_overlap, torch.tensor([[1]]), torch.tensor([1]))
    result.loss.backward()
    assert result.loss.item() == torch.inf and (leaf.grad == 0).all()


def test_likeliest_is_the_first_of_equals_against_closed_form():
    """Depth 2 of the block counts only if depth 1 is right, where two logits are equal."""
    draft = torch.zeros(1, 1, 2, 3)
    target = None
    for first, cells in ((0, 2), (1, 1)):
        result = objectives.auf(
            draft, target, torch.tensor([[first, 0]]), torch.tensor([2]), starts=torch.tensor([[0]]), reduction="sum"
        )
        assert result.loss.item() == pytest.approx(cells * 1.0986123)


def test_only_logits_are_kept_invariant():
    """What autograd keeps from the forward pass is the logits themselves, and numbers by cell."""
    given = oracle.batch(0, rows=2, size=6, depth=4, vocabulary=500, lengths=[6, 5])
    for name, entry in OBJECTIVES.items():
        draft = given.draft.clone().requires_grad_()
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one, kept=kept: kept.append(one) or one, lambda one: one):
            entry.function(draft, given.target, given.tokens, given.lengths, **OWN.get(name, {}))
        inputs = {one.untyped_storage().data_ptr() for one in (draft, given.target)}
        beside = {
            one.untyped_storage().data_ptr(): one.numel()
            for one in kept
            if one.untyped_storage().data_ptr() not in inputs
        }
        assert sum(beside.values()) <= 30 * draft[..., 0].numel(), name


def test_tiles_invariant(monkeypatch):
    """Any size of tile gives the same, to the last bit of each row."""
    given = oracle.batch(5, rows=2, size=7, depth=3, vocabulary=11, lengths=[7, 4])
    for name, entry in OBJECTIVES.items():
        found = []
        for size in (1, 3 * 11, 2 * 3 * 11, 1 << 21):
            monkeypatch.setattr("markov_spec.objectives._tiles.TILE_ON_CPU", size)
            draft = given.draft.clone().requires_grad_()
            result = entry.function(draft, given.target, given.tokens, given.lengths, **OWN.get(name, {}))
            result.loss.backward()
            found.append((result.loss.item(), draft.grad))
        for loss, grad in found[1:]:
            assert loss == pytest.approx(found[0][0], rel=1e-14)
            torch.testing.assert_close(grad, found[0][1], rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft_logits": torch.zeros(3, 5, 6)}, r"draft_logits: found \(3, 5, 6\); allowed: a tensor \(B, M, K, V\)"),
        ({"draft_logits": torch.zeros(3, 5, 3, 6, dtype=torch.int64)}, "draft_logits: found dtype torch.int64"),
        ({"target_logits": torch.zeros(3, 5, 7)}, r"target_logits: found shape \(3, 5, 7\); allowed: \(3, 5, 6\)"),
        ({"tokens": torch.full((3, 5), 6)}, "tokens: rollout 0, position 0: found 6; allowed: token ids 0 to 5"),
        ({"tokens": torch.zeros(3, 5)}, "tokens: found dtype torch.float32; allowed: integers"),
        ({"tokens": torch.zeros(2, 5, dtype=torch.int64)}, r"tokens: found \(2, 5\); .* with B = 3"),
        ({"lengths": torch.tensor([5, 6, 0])}, "lengths: rollout 1: found 6; allowed: 0 to T = 5"),
        ({"starts": torch.tensor([[0, 1]] * 3)}, r"starts: found shape \(3, 2\); allowed: \(3, 5\)"),
        (
            {"starts": torch.tensor([[0, 1, 2, 3, 5]] * 3)},
            "starts: rollout 0, position 4: found 5; allowed: below T = 5",
        ),
        ({"draft_logits": torch.zeros(3, 4, 3, 6)}, "found 4 blocks for 5 tokens without starts; allowed: M = T"),
        ({"temperature": 0}, "temperature: found 0; allowed: a number above 0"),
        ({"reduction": "mean"}, "reduction: found 'mean'; allowed: paper, token-mean"),
        ({"mask": torch.ones(3, 5)}, "mask_frame: found None with a mask; allowed: label, input"),
        ({"mask": torch.ones(3, 4), "mask_frame": "label"}, r"mask: found shape \(3, 4\); allowed: \(3, 5\)"),
    ],
)
def test_refusals_invariant(change, message):
    given = oracle.batch(0)
    arguments = {
        "draft_logits": given.draft, "target_logits": given.target, "tokens": given.tokens, "lengths": given.lengths,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        objectives.tv(**(arguments | change))


def test_options_refused_invariant():
    given = oracle.batch(0)
    arrays = given.draft, given.target, given.tokens, given.lengths
    for function, option, message in (
        (objectives.dflash_decay, {"gamma": 0}, "gamma: found 0; allowed: above 0"),
        (objectives.d_pace, {"alpha": 2}, "alpha: found 2; allowed: 0 to 1"),
        (objectives.lk_lambda, {"eta": -1}, "eta: found -1; allowed: 0 or more"),
        (objectives.top_m_kl, {"m": 7}, "m: found 7; allowed: 1 to V = 6"),
    ):
        with pytest.raises(ValueError, match=message):
            function(*arrays, **option)
