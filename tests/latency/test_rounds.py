"""Every kind of price, and what the rounds of rollouts cost: closed forms and literal decoding."""

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.latency import PRICES, Affine, Roofline, Table, round_prices
from tests import oracles
from tests.chain import test_enumeration as enumeration

STAIRS = [1.0, 2.0, 1.5, 4.0]
HARDWARE = {"peak": 10.0, "bandwidth": 100.0, "flops_per_token": 10.0, "weight_bytes": 200.0}
EXAMPLES = {
    "affine": Affine(5.0, per_depth=2.0, per_draft=0.5, per_context=0.01, per_call=0.75),
    "table": Table(
        [1, 2, 3, 4], np.outer([1.0, 1.0, 3.0], STAIRS), contexts=[0, 10, 30], per_call=[[0.5], [2], [3]], per_depth=0.1
    ),
    "roofline": Roofline(**HARDWARE, kv_bytes=1.0, launch=0.3, tile=2, captured=[1, 3, 4], per_call=0.25, per_depth=2),
}


def test_affine_against_closed_form():
    price = EXAMPLES["affine"]
    assert price.of(0, 0, 0).tolist() == 5
    grid = price.of([[1], [2]], [3, 4, 5], 100)
    np.testing.assert_allclose(grid, [[10.25, 10.75, 11.25], [12.25, 12.75, 13.25]], rtol=1e-15)
    # A fit of a served Llama-3.1-8B on an H100 (SpecDecode-Bench): 8 requests of 1000 tokens, each verifying 5.
    step = Affine(5.886e-3 + 8 * 2.101e-5, per_draft=8 * 2.101e-5, per_context=8 * 3.926e-8)
    np.testing.assert_allclose(step.of(4, 4, 1000), 8000 * 3.926e-8 + 40 * 2.101e-5 + 5.886e-3, rtol=1e-14)


@pytest.mark.parametrize("name", PRICES)
def test_drafting_is_paid_by_rounds_that_draft_against_closed_form(name):
    options = {
        "affine": {"base": 1.0},
        "table": {"sizes": [1, 2, 3], "prices": [1.0, 1.0, 1.0]},
        "roofline": {"peak": 1.0, "bandwidth": 1.0, "flops_per_token": 0.0, "weight_bytes": 1.0},
    }[name]
    make = PRICES[name]
    both = make(**options, per_call=10.0, per_depth=0.5)
    assert both.of([0, 1, 1, 2], [0, 1, 2, 2], 7).tolist() == [1, 11.5, 11.5, 12]
    assert make(**options, per_call=10.0).of(5, [0, 1], 7).tolist() == [1, 11]
    assert make(**options, per_depth=0.5).of([[0], [4]], [0, 1], 7).tolist() == [[1, 1], [3, 3]]


@pytest.mark.parametrize("name", PRICES)
def test_shapes_invariant(name):
    price = EXAMPLES[name]
    assert isinstance(price, PRICES[name])
    whole = price.of(np.arange(4)[:, None], np.arange(4)[:, None], np.arange(30))
    assert whole.shape == (4, 30) and whole.dtype == np.float64 and whole.flags.writeable
    for k, c in ((0, 0), (3, 29), (2, 11)):
        one = price.of(k, k, c)
        assert isinstance(one, np.ndarray) and one.shape == () and one == whole[k, c]
    assert price.of(np.zeros((5, 1, 1), dtype=int), 0, np.zeros((2, 3), dtype=np.uint8)).shape == (5, 2, 3)
    assert price.of(0, np.zeros((2, 0), dtype=int), 0).shape == (2, 0)
    plain = Table([1, 2], [1.0, 2.0]).of(np.zeros((5, 1, 1), dtype=int), [0, 1], np.zeros((2, 1), dtype=int))
    assert plain.flags.writeable and plain.tolist() == [[[1, 2]] * 2] * 5  # though neither depth nor context matters
    with pytest.raises(ValueError, match="depth: found -1; allowed: integers >= 0"):
        price.of([0, -1], 0, 0)
    with pytest.raises(ValueError, match="context: found float64; allowed: integers >= 0"):
        price.of(0, 0, 1.0)


@pytest.mark.parametrize("name", PRICES)
def test_prices_are_of_each_round_alone_invariant(name):
    price, rng = EXAMPLES[name], np.random.default_rng(5)
    k, d, c = (rng.integers(0, high, (20, 20)) for high in (9, 4, 31))
    one_by_one = [float(price.of(int(k[i]), int(d[i]), int(c[i]))) for i in np.ndindex(20, 20)]
    np.testing.assert_array_equal(price.of(k, d, c).ravel(), one_by_one)


def test_case_92_no_speculation_is_cheapest_against_closed_form():
    table = Table([1, 3, 5, 7], [1.0, 2.377, 3.568, 4.228])  # in plain steps
    drafted, lengths = np.array([0, 2, 4, 6]), np.array([1, 2.22, 2.56, 2.55])
    speed = 89 * lengths / table.of(drafted, drafted, 0)
    np.testing.assert_allclose(speed, [89, 83, 64, 54], atol=0.5)
    assert drafted[np.argmax(speed)] == 0


def test_case_92_by_expected_prices_against_closed_form():
    # Drafts of which none is right: each K takes as many rounds, each dearer.
    table, hit = Table([1, 2, 3], [1.0, 1.2, 1.1]), np.zeros((6, 2), dtype=bool)
    totals = []
    for k in range(3):
        law = ms.round_law(None, None, [0, 2, 6], rule="match", hit=hit, draft_length=k)
        prices = round_prices(table, drafted=k, indptr=[0, 2, 6], prompt_lengths=[3, 4])
        totals.append((ms.solve(law).occupancy * prices).sum())
    # The last start drafts one token at most, the one before it two.
    np.testing.assert_allclose(totals, [6, 6 * 1.2, 4 * 1.1 + 2 * 1.2], rtol=1e-15)


@pytest.mark.parametrize("name", PRICES)
@pytest.mark.parametrize("first_start", [0, 1])
def test_expected_prices_against_enumeration(name, first_start):
    price, prompt = EXAMPLES[name], 17
    lengths, cap, stop = (2, 0, 3, 1, 2), 5, 1
    world = oracles.World(92, 2, "block")
    runs = oracles.decode(world, "rejection", lengths, cap, first_start=first_start, stop=stop)
    outputs = sorted(x for x in runs if oracles.target_probability(world, x) > 0)
    indptr = np.concatenate(([0], np.cumsum([len(x) for x in outputs])))
    log_p, recorded = enumeration._recorded(world, "rejection", 1, outputs, max(lengths))
    drafted = np.concatenate([lengths[: len(x)] for x in outputs])
    law = ms.round_law(log_p, recorded["log_q"], indptr, rule="rejection", draft_length=drafted)
    prompts = np.full(len(outputs), prompt)
    prices = round_prices(price, drafted=drafted, indptr=indptr, prompt_lengths=prompts)
    found = np.add.reduceat(ms.solve(law, first_start=first_start).occupancy * prices, indptr[:-1])
    for x, expected in zip(outputs, found, strict=True):
        total = 0.0
        for history, mass in runs[x].items():
            for start, _ in history:
                count = min(lengths[start], len(x) - start)
                total += mass * float(price.of(count, count, prompt + start))
        np.testing.assert_allclose(expected, total / sum(runs[x].values()), rtol=1e-12)


def test_round_prices_against_closed_form():
    by_start = Affine(0.0, per_depth=100.0, per_draft=10.0, per_context=1.0)
    options = {"indptr": [0, 3, 3, 5], "prompt_lengths": [20, 50, 70]}
    constant = [240, 241, 132, 290, 181]  # the last start of a rollout has one token to draft
    assert round_prices(by_start, drafted=2, **options).tolist() == constant
    assert round_prices(by_start, drafted=np.array([0, 9, 9, 1, 0]), **options).tolist() == [20, 241, 132, 180, 71]
    assert round_prices(by_start, drafted=2, indptr=[0], prompt_lengths=[]).tolist() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"drafted": 3},
            r'drafted \+ 1: found 4; allowed: 3 or 9, which the table lists, or any .* between="stair" or',
        ),
        ({"drafted": 9}, r"drafted \+ 1: found 10; allowed: 1 to 9, as the table lists"),
        ({"drafted": 2, "prompt_lengths": [0, 1]}, "context: found 0; allowed: 1 to 40, as the table lists"),
        ({"drafted": 2, "prompt_lengths": [1, 37]}, "context: found 41; allowed: 1 to 40"),
        ({"drafted": -1}, "depth: found -1; allowed: integers >= 0"),
        ({"drafted": [1, 2]}, r"drafted: found shape \(2,\); allowed: an integer or \(15,\)"),
        ({"prompt_lengths": [1]}, r"prompt_lengths: found shape \(1,\), dtype int64; allowed: integers, \(2,\)"),
        ({"prompt_lengths": [1.0, 2.0]}, r"prompt_lengths: found shape \(2,\), dtype float64"),
        (
            {"indptr": [0, 10, 5]},
            r"indptr: found array\(\[ 0, 10,  5\]\); allowed: R\+1 integers from 0 that never fall",
        ),
        ({"indptr": [1, 10, 15]}, "indptr: found"),
        ({"indptr": []}, "indptr: found"),
    ],
)
def test_refused_rounds_invariant(options, message):
    table = Table([1, 2, 3, 9], [[1.0] * 4, [2.0] * 4], contexts=[1, 40])
    options = {"drafted": 2, "indptr": [0, 10, 15], "prompt_lengths": [1, 30]} | options
    with pytest.raises(ValueError, match=message):
        round_prices(table, **options)
