"""Prices of rounds: closed forms, literal decoding, and tables that others measured."""

import csv
import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.latency import PRICES, Affine, Table, round_prices
from tests import oracles
from tests.chain import test_enumeration as enumeration

FIELD = Path(os.environ.get("MARKOV_SPEC_FIELD_DATA", "absent"))
field_data = pytest.mark.skipif(not FIELD.is_dir(), reason="MARKOV_SPEC_FIELD_DATA names no folder of recorded runs")
STAIRS = [1.0, 2.0, 1.5, 4.0]
EXAMPLES = {
    "affine": Affine(5.0, per_depth=2.0, per_draft=0.5, per_context=0.01),
    "table": Table([1, 2, 3, 4], np.outer([1.0, 1.0, 3.0], STAIRS), contexts=[0, 10, 30]),
}


def test_affine_against_closed_form():
    price = EXAMPLES["affine"]
    assert price.of(0, 0, 0).tolist() == 5
    np.testing.assert_allclose(price.of([[1], [2]], [3, 4, 5], 100), [[9.5, 10, 10.5], [11.5, 12, 12.5]], rtol=1e-15)


def test_table_against_closed_form():
    table = EXAMPLES["table"]
    assert table.of(7, [0, 1, 2, 3], [0, 10, 10, 0]).tolist() == STAIRS  # nowhere even or convex
    assert table.of(7, [0, 1, 2, 3], 30).tolist() == [3, 6, 4.5, 12]
    np.testing.assert_allclose(table.of(0, 2, [[0, 5], [15, 25]]), [[1.5, 1.5], [2.25, 3.75]], rtol=1e-15)
    plain = Table([1, 5, 9], [1.0, 3.0, 2.0], interpolate=True)
    np.testing.assert_allclose(plain.of(0, np.arange(9), 10**6), [1, 1.5, 2, 2.5, 3, 2.75, 2.5, 2.25, 2], rtol=1e-15)
    both = Table([1, 5], [[1.0, 2.0], [3.0, 6.0]], contexts=[100, 200], interpolate=True)
    np.testing.assert_allclose(both.of(0, [0, 2, 4], [150, 150, 125]), [2, 3, 3], rtol=1e-15)
    assert Table([1], [7.0]).of(0, np.zeros((2, 0), dtype=int), 0).shape == (2, 0)


@pytest.mark.parametrize("name", PRICES)
def test_shapes_invariant(name):
    price = EXAMPLES[name]
    assert isinstance(price, PRICES[name])
    whole = price.of(np.arange(4)[:, None], np.arange(4)[:, None], np.arange(30))
    assert whole.shape == (4, 30) and whole.dtype == np.float64
    for k, c in ((0, 0), (3, 29), (2, 11)):
        one = price.of(k, k, c)
        assert isinstance(one, np.ndarray) and one.shape == () and one == whole[k, c]
    with pytest.raises(ValueError, match="depth: found -1; allowed: integers >= 0"):
        price.of([0, -1], 0, 0)
    with pytest.raises(ValueError, match="context: found float64; allowed: integers >= 0"):
        price.of(0, 0, 1.0)


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
    ("make", "message"),
    [
        (lambda: Affine(-1.0), "base: found -1.0; allowed: a finite number >= 0"),
        (lambda: Affine(1.0, per_context=np.nan), "per_context: found nan; allowed"),
        (lambda: Affine("1"), "base: found dtype <U1; allowed: finite numbers >= 0"),
        (lambda: Table([2, 2], [1.0, 1.0]), r"sizes: found \[2, 2\]; allowed: integers that rise, from 1 or more"),
        (lambda: Table([0, 2], [1.0, 1.0]), r"sizes: found \[0, 2\]; allowed"),
        (lambda: Table([1.0, 2.0], [1.0, 1.0]), r"sizes: found shape \(2,\), dtype float64; allowed: one integer or"),
        (lambda: Table([], []), r"sizes: found shape \(0,\)"),
        (lambda: Table([1, 2], [1.0]), r"prices: found shape \(1,\); allowed: \(2,\), one for each context and size"),
        (lambda: Table([1, 2], [[1.0, 1.0]]), r"prices: found shape \(1, 2\); allowed: \(2,\)"),
        (lambda: Table([1], [[1.0]], contexts=[5, 9]), r"prices: found shape \(1, 1\); allowed: \(2, 1\)"),
        (lambda: Table([1, 2], [1.0, np.inf]), "prices: found inf; allowed: a finite number >= 0"),
        (lambda: Table([1], [[1.0], [1.0]], contexts=[-1, 9]), r"contexts: found \[-1, 9\]; allowed: .* from 0"),
    ],
)
def test_refused_prices_invariant(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafted": 3}, r"drafted \+ 1: found 4; allowed: 3 or 9, which the table lists, or any between with interp"),
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


@field_data
def test_cast_probes_against_reference():
    probes = json.loads((FIELD / "cast" / "cost_probes.json").read_text())["probes"]
    assert len(probes) == 17
    falls, settings = 0, defaultdict(list)
    for probe in probes:
        table, sizes = Table(probe["n"], probe["ms"]), np.array(probe["n"])
        assert table.of(0, sizes - 1, probe["prefix"]).tolist() == probe["ms"]
        falls += (np.diff(probe["ms"]) < 0).any()
        with pytest.raises(ValueError, match=r"drafted \+ 1: found 2; allowed: 1 or 4"):
            table.of(1, 1, 0)
        if probe["table"] == 6:
            settings[probe["gpu"], probe["target"]].append(probe)
    assert falls == 17  # none rises throughout
    swept = [group for group in settings.values() if len(group) > 1]
    assert [[probe["prefix"] for probe in group] for group in swept] == [[1024, 4096, 8192, 16384]] * 2
    for group in swept:
        table = Table(group[0]["n"], [probe["ms"] for probe in group], contexts=[probe["prefix"] for probe in group])
        for probe in group:
            assert table.of(0, np.array(probe["n"]) - 1, probe["prefix"]).tolist() == probe["ms"]
        jumps = table.of(0, 3, 16384) / table.of(0, 0, 16384)
        assert 2.3 < jumps < 2.4
        middle = (table.of(0, 3, 8192) + table.of(0, 3, 16384)) / 2
        np.testing.assert_allclose(table.of(0, 3, 12288), middle, rtol=1e-14)


@field_data
def test_measured_cycles_against_reference():
    with (FIELD / "thc1006_cc0" / "phase_nmax_cost_table.csv").open() as file:
        arms = list(csv.DictReader(file))
    for method, wanted in (("draft-mtp", "mtp-n2"), ("draft-dflash", "dflash2-n2")):
        rows = [arm for arm in arms if arm["method"] == method]
        widths = [int(arm["verify_width"]) for arm in rows]
        table = Table([1, *widths], [1.0, *(float(arm["k_mean"]) for arm in rows)])  # in plain decoding steps
        for arm, width in zip(rows, widths, strict=True):
            tokens = float(arm["measured_speedup"]) * table.of(width - 1, width - 1, 0)
            drafts = float(arm["realised_draft_len"])
            assert 1 + drafts * float(arm["accept_lo"]) < tokens < 1 + drafts * float(arm["accept_hi"])
        assert max(rows, key=lambda arm: float(arm["measured_speedup"]))["arm"] == wanted
        if method == "draft-mtp":
            seven, eight = table.of([7, 8], [7, 8], 0)
            np.testing.assert_allclose([seven, eight], [2.9684, 2.3788])  # another kernel from 9 tokens on
