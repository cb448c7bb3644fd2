"""Laws of tensors and their rounds, against those of arrays."""

from dataclasses import fields

import numpy as np
import pytest
import torch

import markov_spec as ms
from markov_spec.acceptance import RULES
from markov_spec.arrays import TensorLaw
from markov_spec.chain import _torch_solve
from tests.chain.padded import Unread

SIZES, DEPTH = [5, 0, 1, 8, 3], 4
INDPTR = np.concatenate(([0], np.cumsum(SIZES)))
ROWS, LONGEST = int(INDPTR[-1]), max(SIZES)
OWN = np.arange(LONGEST) < np.array(SIZES)[:, None]
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def _options(rule, cells, dtype, rng):
    """Arguments of ``round_law`` in ragged arrays that tensors of the type hold exactly."""
    shape = (ROWS, DEPTH) if cells else (ROWS,)

    def logs(shape, zeros=0.0):
        values = torch.tensor(np.log(rng.uniform(0.05, 1, shape))).to(dtype).double().numpy()
        return np.where(rng.random(shape) < zeros, -np.inf, values)

    given = {"log_p": logs(ROWS), "log_q": logs(shape, 0.1)}
    if rule == "recorded":
        given["log_accept"] = given.pop("log_q")
    if rule in ("match", "typical"):
        given["hit"] = rng.random(shape) < 0.7
    if rule.startswith("node"):
        given["scale"] = torch.tensor(1 + rng.random(shape)).to(dtype).double().numpy()
        given["scale"][0] = 0 if rule == "node-k-seq" else 1
    return given


def _tensors(options, padded, dtype):
    """The same in tensors, with what is not allowed in the padding."""
    found = {}
    for name, values in options.items():
        tensor = torch.tensor(values)
        if padded:
            shape = (*OWN.shape, *tensor.shape[1:])
            whole = torch.full(shape, np.nan if tensor.is_floating_point() else 99, dtype=tensor.dtype)
            whole[torch.tensor(OWN)] = tensor
            tensor = whole
        found[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    if padded:
        return found | {"lengths": torch.tensor(SIZES)}
    return found | {"indptr": torch.tensor(INDPTR)}


def _call(options, **more):
    given = {"log_p": None, "log_q": None, "indptr": None} | options
    return ms.round_law(given.pop("log_p"), given.pop("log_q"), given.pop("indptr"), **given, **more)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("cells", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES)
def test_tensor_law_of_every_rule_against_reference(rule, dtype, cells, padded):
    rng = np.random.default_rng(1)
    options = _options(rule, cells, dtype, rng)
    hits = {name: value for name, value in options.items() if name != "log_q"}
    options = hits if RULES[rule].needs == ("hit",) else options
    if RULES[rule].exactness == "teacher-forced":
        options.setdefault("hit", rng.random((ROWS, DEPTH) if cells else ROWS) < 0.7)
    for length in (3, rng.integers(0, DEPTH + 1, ROWS)):
        per_start = not isinstance(length, int)
        more = {"rule": rule} | ({"drafts": 2} if rule == "independent" else {})
        wanted = _call(options | {"indptr": INDPTR, "draft_length": length}, **more)
        tensors = _tensors(options, padded, dtype)
        tensors["draft_length"] = _tensors({"length": length}, padded, dtype)["length"] if per_start else length
        law = _call(tensors, **more)
        assert isinstance(law, TensorLaw) and law.exactness == wanted.exactness and law.depth == wanted.depth
        exact = dtype == torch.float64 and "hit" not in options and rule != "none"
        assert law.accept.dtype == (torch.float64 if exact else torch.float32)
        near = {"rtol": 1e-12, "atol": 1e-14} if exact else {"rtol": 1e-6, "atol": 1e-7}
        np.testing.assert_allclose(law.numpy().survival(), wanted.survival(), **near)
        survival = law.survival()
        assert torch.isfinite(survival).all()
        own = survival[torch.tensor(OWN)] if padded else survival
        np.testing.assert_allclose(own.numpy(), wanted.survival(), **near)


def law_of(dtype, padded, per_start, seed=0):
    rng = np.random.default_rng(seed)
    accept = np.where(rng.random((ROWS, DEPTH)) < 0.2, 1.0, rng.random((ROWS, DEPTH)))
    length = rng.integers(0, DEPTH + 1, ROWS) if per_start else DEPTH
    arrays = ms.RoundLaw(torch.tensor(accept, dtype=dtype).numpy(), INDPTR, length)
    if not padded:
        length = torch.tensor(length) if per_start else length
        return arrays, TensorLaw(torch.tensor(arrays.accept), indptr=torch.tensor(INDPTR), draft_length=length)
    whole = torch.full((*OWN.shape, DEPTH), np.nan, dtype=dtype)
    whole[torch.tensor(OWN)] = torch.tensor(arrays.accept)
    if per_start:
        length = torch.zeros(OWN.shape, dtype=torch.int64).masked_scatter(torch.tensor(OWN), torch.tensor(length))
    return arrays, TensorLaw(whole, lengths=torch.tensor(SIZES), draft_length=length)


def check_same(found, wanted, padded, near):
    for field in fields(wanted):
        array, tensor = getattr(wanted, field.name), getattr(found, field.name)
        if array is None:
            assert tensor is None, field.name
            continue
        assert tensor.dtype == torch.float64 and not tensor.requires_grad
        if padded and field.name in ("value", "occupancy"):
            assert not tensor[~torch.tensor(OWN)].any()
            tensor = tensor[torch.tensor(OWN)]
        np.testing.assert_allclose(tensor.numpy(), array, **near, err_msg=field.name)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("per_start", [True, False])
@pytest.mark.parametrize("first_start", [0, 1, 6])
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_rounds_of_tensors_against_reference(dtype, first_start, per_start, padded):
    arrays, law = law_of(dtype, padded, per_start)
    price = np.random.default_rng(2).normal(size=(ROWS, DEPTH + 1))
    for cost in (None, 1.5, price[:, 0], price):
        wanted = ms.solve(arrays, first_start=first_start, price=cost, inverse=True)
        given = (
            cost if cost is None or np.ndim(cost) == 0 else _tensors({"price": cost}, padded, torch.float64)["price"]
        )
        found = ms.solve(law, first_start=first_start, price=given, inverse=True)
        check_same(found, wanted, padded, {"rtol": 0, "atol": 0})
        prices = None if given is None else _torch_solve._prices(given, law)
        wanted = ms.solve(arrays, first_start=first_start, price=cost)
        check_same(_torch_solve.moments(law, first_start, prices), wanted, padded, {"rtol": 1e-12, "atol": 1e-12})


def test_gradient_of_the_law_against_closed_form():
    log_p, log_q = torch.tensor([-1.0, -0.5, -0.25]).double(), torch.tensor([-2.0, -0.25, -torch.inf]).double()
    log_p.requires_grad_(), log_q.requires_grad_()
    law = ms.round_law(log_p, log_q, [0, 3], rule="rejection", draft_length=2)
    law.accept[0, 0].backward()
    torch.testing.assert_close(log_q.grad, torch.tensor([np.exp(-1.0), 0, 0]))  # a = q/p
    torch.testing.assert_close(log_p.grad, -log_q.grad)
    log_q.grad = None
    block = ms.round_law(log_p, log_q, [0, 3], rule="block", draft_length=3)
    block.survival()[0, 1].backward()  # S = q0 q1 / (p0 p1) = exp(-.75) where that is below q0 / p0 = exp(-1): no
    torch.testing.assert_close(log_q.grad, torch.tensor([np.exp(-1.0), 0, 0]))


@pytest.mark.parametrize("drafts", [2, 5])
def test_gradient_of_sure_drafts_against_closed_form(drafts):
    """``1 - (1 - q)^m`` has the slope ``m q (1 - q)^(m-1)`` in ``log q``: 0 at q = 1."""
    q = torch.tensor([1.0, 0.5, 1e-20, 0.0]).double()
    log_q = q.log().requires_grad_()
    law = ms.round_law(None, log_q, [0, 4], rule="independent", drafts=drafts, draft_length=1)
    law.accept.sum().backward()
    torch.testing.assert_close(
        law.accept[:, 0].detach(), torch.tensor([1, 1 - 0.5**drafts, drafts * 1e-20, 0]).double()
    )
    torch.testing.assert_close(log_q.grad, drafts * q * (1 - q) ** (drafts - 1), rtol=1e-12, atol=0)


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a:UserWarning")
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_compiled_law_against_reference(rule, padded, fresh_dynamo):
    """Law, survival and rounds in one graph, without a break."""
    rng = torch.Generator().manual_seed(0)
    shape = (3, 5, 2) if padded else (5, 2)
    log_p, log_q = -torch.rand(shape[:-1], generator=rng), -torch.rand(shape, generator=rng)
    options = {"hit": log_q > -0.5} if RULES[rule].needs == ("hit",) or rule == "match" else {}
    options |= {"scale": 1.5} if rule.startswith("node") else {}
    bounds = torch.tensor([5, 3, 1] if padded else [0, 2, 5])

    def law_and_rounds(log_p, log_q, bounds):
        more = options | ({"lengths": bounds} if padded else {"indptr": bounds})
        drafts = {"log_q": None, "log_accept": log_q} if rule == "recorded" else {"log_q": log_q}
        law = ms.round_law(log_p, rule=rule, **drafts, **more)
        rounds = ms.solve(law, price=2.0, first_start=1)
        found = [getattr(rounds, field.name) for field in fields(rounds)]
        return [law.accept, law.survival(), *(one for one in found if one is not None)]

    compiled = torch.compile(law_and_rounds, fullgraph=True, backend="aot_eager")
    found, expected = compiled(log_p, log_q, bounds), law_and_rounds(log_p, log_q, bounds)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a:UserWarning")
@pytest.mark.parametrize("padded", [True, False])
def test_compiled_rounds_against_reference(padded, fresh_dynamo):
    """By the default compiler: all figures, a length and a price for each start; batches of several shapes."""

    def figures(accept, bounds, length, price):
        law = TensorLaw(accept, **{"lengths" if padded else "indptr": bounds}, draft_length=length)
        rounds = ms.solve(law, price=price, inverse=True)
        return [getattr(rounds, field.name) for field in fields(rounds)]

    compiled = torch.compile(figures, fullgraph=True)
    for seed, (rows, tokens, depth) in enumerate(((3, 5, 2), (4, 7, 3), (2, 6, 3))):
        rng = torch.Generator().manual_seed(seed)
        shape = (rows, tokens) if padded else (rows * tokens,)
        given = (
            torch.rand(*shape, depth, generator=rng),
            torch.arange(1, rows + 1) if padded else torch.arange(rows + 1) * tokens,
            torch.randint(0, depth + 1, shape, generator=rng),
            torch.rand(*shape, depth + 1, generator=rng),
        )
        for one, other in zip(compiled(*given), figures(*given), strict=True):
            assert torch.equal(one, other)


def test_operator_invariant():
    """Torch's own checks: schema, fake implementation, aliasing."""
    accept, lengths, indptr = torch.rand(3, 5, 2), torch.tensor([5, 3, 1]), torch.tensor([0, 2, 5])
    moments = torch.ops.markov_spec.moments.default
    torch.library.opcheck(moments, (accept, lengths, None, None, 2, 0, None, True, None))
    each, price = torch.tensor([2, 0, 1, 2, 2]), torch.rand(5, 3).double()
    torch.library.opcheck(moments, (accept[0], None, indptr, each, 2, 1, price, False, 1))


def test_autocast_changes_nothing_invariant():
    def everything(law):
        yield law.accept
        yield law.survival()
        for rounds in (ms.solve(law, price=1.5), _torch_solve.moments(law, 1, torch.rand(40, 5).double() * 0 + 0.3)):
            yield from (one for one in (getattr(rounds, field.name) for field in fields(rounds)) if one is not None)

    for rule in ("rejection", "block", "independent", "node-recursive"):
        options = _tensors(_options(rule, True, torch.float32, np.random.default_rng(0)), True, torch.float32)
        more = {"rule": rule} | ({"drafts": 2} if rule == "independent" else {})
        expected = list(everything(_call(options, **more)))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for found, wanted in zip(everything(_call(options, **more)), expected, strict=True):
                assert found.dtype == wanted.dtype and torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": torch.tensor([2, 4])}, "lengths: rollout 1: found 4; allowed: 0 to 3"),
        ({"lengths": torch.tensor([2, -1])}, "lengths: rollout 1: found -1; allowed: 0 to 3"),
        ({"lengths": torch.tensor([2.0, 1.0])}, "lengths: found shape .* torch.float32; allowed: .* int64"),
        ({"lengths": torch.tensor([2])}, r"lengths: found shape \(1,\)"),
        ({"indptr": [0, 2]}, "lengths, indptr: found both or neither"),
        ({"lengths": None}, "lengths, indptr: found both or neither"),
        ({"log_p": torch.full((2, 3), -torch.inf)}, "log_p: rollout 0, position 0: found -inf; allowed"),
        ({"log_p": torch.zeros(2, 4)}, r"log_p: found shape \(2, 4\); allowed: \(2, 3\)"),
        ({"log_p": torch.zeros(2, 3).to(torch.float8_e5m2)}, "log_p: found dtype float8_e5m2"),
        ({"log_p": None}, "log_p: absent; rule 'rejection' needs it"),
        ({"log_q": torch.full((2, 3, 2), torch.nan)}, "log_q: rollout 0, position 0, depth 1: found nan"),
        ({"log_q": torch.ones(2, 3, 2)}, "log_q: rollout 0, position 0, depth 1: found 1"),
        ({"log_q": torch.zeros(6)}, r"drafts: found shape \(6,\) beside lengths"),
        ({"draft_length": 3}, "draft_length: found 3; allowed: 0 to the recorded 2"),
        ({"draft_length": torch.full((2, 3), 3)}, "draft_length: rollout 0, position 0: found 3"),
        ({"draft_length": torch.ones(2, 3)}, "draft_length: found shape .* torch.float32"),
        ({"log_q": torch.zeros(2, 3)}, "draft_length: absent"),
        ({"rule": "node-recursive"}, "scale: absent"),
        ({"rule": "node-recursive", "scale": 0.5}, "scale: rollout 0, position 0, depth 1: found 0.5; allowed"),
        ({"rule": "independent", "drafts": 0}, "drafts: found 0; allowed"),
        ({"rule": "match", "log_q": torch.full((2, 3, 2), -1.0)}, "log_q: rollout 0, position 0, depth 1: found -1"),
        ({"rule": "match", "hit": torch.ones(2, 3, 2)}, "hit: found dtype float32; allowed: bool"),
    ],
)
def test_refusals_invariant(change, message):
    given = {"log_p": torch.zeros(2, 3), "log_q": torch.zeros(2, 3, 2), "lengths": torch.tensor([3, 1])}
    with pytest.raises(ValueError, match=message):
        _call({"rule": "rejection"} | given | change)


def test_values_are_checked_on_request_invariant():
    bad = {"log_p": torch.zeros(2, 3), "log_q": torch.full((2, 3, 2), torch.nan), "lengths": torch.tensor([3, 1])}
    law = _call(bad, rule="rejection", check_values=False)
    assert law.accept[0, 0].isnan().all()
    with pytest.raises(ValueError, match="check_values: given with arrays; allowed: with torch tensors"):
        ms.round_law(np.zeros(2), np.zeros(2), [0, 2], rule="rejection", draft_length=1, check_values=True)
    with pytest.raises(ValueError, match="lengths: given with arrays"):
        ms.round_law(np.zeros(2), np.zeros(2), [0, 2], rule="rejection", draft_length=1, lengths=[2])


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("cells", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_nothing_on_a_device_is_waited_for_invariant(rule, cells, padded, monkeypatch):
    """On the meta device there are shapes and types only, so whatever reads a value fails."""
    monkeypatch.setattr(_torch_solve, "kernels", lambda device: Unread)
    options = _options(rule, cells, torch.float32, np.random.default_rng(0))
    if RULES[rule].exactness == "teacher-forced":
        options["hit"] = np.ones((ROWS, DEPTH) if cells else ROWS, dtype=bool)
    tensors = {name: value.to("meta") for name, value in _tensors(options, padded, torch.float32).items()}
    law = _call(tensors, rule=rule, draft_length=3)
    shape = (*law.rows, law.depth)
    assert law.survival().shape == shape and law.accept.device.type == "meta"
    rounds = ms.solve(law, first_start=1, price=2)
    assert rounds.value.shape == law.rows and rounds.price.shape == rounds.tested.shape[:1] == (len(SIZES),)
    assert repr(law) == f"TensorLaw({law.form}, K={law.depth}, 5 rollouts, {law.exactness}, meta)"
    with pytest.raises(ValueError, match=r"inverse: asked for on meta; allowed: for ms\.solve"):
        ms.solve(law, inverse=True)
