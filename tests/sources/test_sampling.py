import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from markov_spec.sources.sampling import Sampling, argmax, draw, log_probs, rank, top_list

rows = st.lists(st.sampled_from([-torch.inf, -2.0, 0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=9)


def by_hand(logits, settings):
    """Distribution over plain Python numbers, transform after transform."""
    ids = range(len(logits))
    if settings.temperature == 0:
        best = max(ids, key=lambda i: (logits[i], -i))
        return [float(i == best) for i in ids]
    logits, kept = dict(enumerate(logits)), set(ids)
    for step in settings.order:
        weights = {i: float(np.exp(logits[i])) for i in kept}
        total, largest = sum(weights.values()), max(weights.values())
        down = sorted(kept, key=lambda i: (-logits[i], i))
        if step == "temperature":
            logits = {i: value / settings.temperature for i, value in logits.items()}
        if step in ("top_k", "joint"):
            kept = kept & set(down[: settings.top_k or None])
        if step in ("top_p", "joint"):
            before = np.cumsum([0] + [weights[i] / total for i in down])
            reached = [i for i, mass in zip(down, before, strict=False) if mass >= settings.top_p - 1e-12]
            kept = kept - set(reached) | {down[0]}
        if step in ("min_p", "joint"):
            kept = kept & {i for i in weights if weights[i] >= settings.min_p * largest - 1e-12}
    weights = {i: float(np.exp(logits[i])) for i in kept}
    return [weights.get(i, 0.0) / sum(weights.values()) for i in ids]


ORDERS = [
    ("temperature", "top_k", "top_p", "min_p"),
    ("min_p", "top_p", "top_k", "temperature"),
    ("top_p", "temperature", "min_p", "top_k"),
    ("temperature", "joint"),
    ("joint", "temperature"),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_log_probs_against_reference(order, temperature):
    logits, seen = [1.0, -0.4, 1.0, 0.7, -3.0], set()
    for top_k, top_p, min_p in itertools.product([0, 1, 2, 4, 9], [0.3, 0.55, 0.83, 0.93, 1.0], [0, 0.07, 0.3, 0.8, 1]):
        settings = Sampling(temperature, top_k, top_p, min_p, order)
        found = log_probs(torch.tensor([logits]), settings).double().exp()[0]
        np.testing.assert_allclose(found, by_hand(logits, settings), atol=1e-6)
        seen.add(tuple(found.tolist()))
    assert len(seen) > 4 or temperature == 0


def test_order_matters_for_some_settings_against_closed_form():
    """p = .4, .3, .2, .1: the three best hold .9 of it, so top-p .7 of all keeps two and of these three keeps three."""
    p = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    settings = {"top_k": 3, "top_p": 0.75}
    joint = log_probs(p, Sampling(**settings, order=("temperature", "joint"))).exp()
    sequential = log_probs(p, Sampling(**settings)).exp()
    last = log_probs(p, Sampling(**settings, order=("top_p", "top_k"))).exp()
    np.testing.assert_allclose(joint, [4 / 9, 3 / 9, 2 / 9, 0], atol=1e-6)
    np.testing.assert_allclose(last, joint)
    np.testing.assert_allclose(sequential, [4 / 7, 3 / 7, 0, 0], atol=1e-6)


def test_case_35_temperature_last_against_closed_form():
    logits = torch.tensor([3.0, 2.0, 1.0])
    last = ("top_k", "top_p", "min_p", "temperature")
    np.testing.assert_allclose(
        log_probs(logits, Sampling(0.5, top_p=0.8, order=last)).exp(), [0.8808, 0.1192, 0], atol=5e-5
    )
    assert log_probs(logits, Sampling(0.5, top_p=0.8)).exp().tolist() == [1, 0, 0]
    filters = {"top_k": 2, "top_p": 0.8, "min_p": 0.1}
    assert torch.equal(log_probs(logits, Sampling(1, **filters, order=last)), log_probs(logits, Sampling(1, **filters)))


def test_default_order_against_peer():
    """The warpers of transformers, which keep all of equal values: there are none."""
    torch.manual_seed(4)
    logits = 2 * torch.randn(20, 60)
    for temperature, top_k, top_p, min_p in [(0.7, 20, 0.9, 0.05), (1.4, 9, 0.6, 0.01), (1.2, 0, 0.95, 0.2)]:
        scores = logits
        for warper in [
            TemperatureLogitsWarper(temperature), *([TopKLogitsWarper(top_k)] if top_k else []),
            TopPLogitsWarper(top_p), MinPLogitsWarper(min_p),
        ]:  # fmt: skip
            scores = warper(None, scores)
        found = log_probs(logits, Sampling(temperature, top_k, top_p, min_p))
        np.testing.assert_allclose(found, torch.log_softmax(scores, -1), atol=1e-5)


def test_order_is_kept_in_metadata_invariant():
    settings = Sampling(0.5, top_p=0.8, order=["top_p", "temperature"])
    assert Sampling.from_metadata(json.loads(json.dumps(settings.to_metadata()))) == settings
    old = {"temperature": 0.7, "top_k": 3, "top_p": 0.9, "order": ["temperature", "top_k", "top_p"], "min_p": None}
    assert Sampling.from_metadata(old).order == ("temperature", "top_k", "top_p")
    assert Sampling.from_metadata({}) == Sampling()
    with pytest.raises(
        ValueError, match=r"sampling: found typical_p .*; allowed: temperature, top_k, top_p, min_p, order"
    ):
        Sampling.from_metadata({"temperature": 1, "typical_p": 0.9})
    assert Sampling(order=("joint", "temperature")).plain and not Sampling(min_p=0.1).plain


@pytest.mark.parametrize(
    ("dtype", "given", "kept"),
    [
        (torch.bfloat16, [1.0, 1.0078125, -torch.inf], [1.0, 1.0078125, -torch.inf]),
        (torch.float16, [1.0, 1.0009765625, -torch.inf], [1.0, 1.0009765625, -torch.inf]),
        (torch.float8_e4m3fn, [1.0, 1.125, -448.0], [1.0, 1.125, -448.0]),
    ],
)
def test_case_104_half_precision_is_upcast_exactly_against_closed_form(dtype, given, kept):
    rows = torch.tensor([given]).to(dtype)
    wanted = np.array(kept) - np.log(np.exp(kept).sum())
    np.testing.assert_allclose(log_probs(rows, Sampling())[0], wanted, atol=2e-7)
    wide = torch.zeros(1, 4096, dtype=torch.bfloat16)  # summed in bfloat16 it would stick at 256
    np.testing.assert_allclose(log_probs(wide, Sampling()), -np.log(4096), rtol=1e-6)


def test_case_51_greedy_against_closed_form():
    target, draft = torch.tensor([0.3, 0.5, 0.2]).log(), torch.tensor([0.45, 0.35, 0.2]).log()
    greedy = Sampling(temperature=0)
    assert log_probs(target, greedy).exp().tolist() == [0.0, 1.0, 0.0]
    assert log_probs(draft, greedy).exp().tolist() == [1.0, 0.0, 0.0]


def test_case_66_argmax_takes_the_first_of_equals_against_closed_form():
    assert int(argmax(torch.tensor([1.0, 3.0, 3.0, 2.0]))) == 1
    with pytest.raises(ValueError, match="NaN"):
        argmax(torch.tensor([torch.nan, 3.0, 3.0]))


def test_case_67_top_list_orders_by_value_then_id_against_closed_form():
    values = torch.tensor([[3.0, 2.0, 3.0, 2.0, 1.0, 1.0]])
    assert top_list(values, 2)[0].tolist() == [[0, 2]]
    assert top_list(values, 3)[0].tolist() == [[0, 2, 1]]


@given(rows, st.data())
def test_rank_and_top_list_agree_with_sorting_against_reference(row, data):
    values = torch.tensor([row])
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    token = data.draw(st.integers(0, len(row) - 1))
    assert int(rank(values, torch.tensor([token]))) == order.index(token) + 1
    count = data.draw(st.integers(1, len(row)))
    assert top_list(values, count)[0][0].tolist() == order[:count]


def test_draw_inverts_the_cumulative_distribution_against_closed_form():
    log_p = torch.tensor([[0.2, 0.0, 0.5, 0.3, 0.0]]).log().expand(5, 5)
    uniforms = torch.tensor([0.0, 0.19999, 0.2001, 0.7001, 1 - 2**-53], dtype=torch.float64)
    assert draw(log_p, uniforms).tolist() == [0, 0, 2, 3, 3]


def test_case_63_row_offsets_beyond_32_bits_against_closed_form():
    values = torch.zeros(1, 152064)
    values[0, 152063] = 2.0
    many = values.expand(14124, 152064)
    assert int(rank(many[14123:], torch.tensor([152063]))) == 1
    assert float(many.gather(-1, torch.full((14124, 1), 152063))[14123]) == 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature: found -1"),
        ({"top_k": -2}, "top_k: found -2"),
        ({"top_p": 0.0}, "top_p: found 0.0"),
        ({"min_p": 1.5}, "min_p: found 1.5; allowed: 0"),
        ({"order": ["top_k", "top_k"]}, "order: found top_k, top_k; allowed: temperature, top_k, top_p, min_p"),
        ({"order": ["joint", "top_p"]}, "order: found joint, top_p"),
        ({"order": ["magic"]}, "order: found magic"),
        ({"min_p": 0.1, "order": ["temperature"]}, "allowed: with min_p, which is set"),
    ],
)
def test_bad_settings_are_refused_invariant(settings, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)
