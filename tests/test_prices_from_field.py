"""Prices that others measured, read from their files as they are."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest

from markov_spec.latency import read_price

FIELD = Path(os.environ.get("MARKOV_SPEC_FIELD_DATA", "absent"))
PROBES = FIELD / "cast" / "cost_probes.json"
CYCLES = FIELD / "thc1006_cc0" / "phase_nmax_cost_table.csv"
OWN = {"tokens": "n", "context": "prefix"}
pytestmark = pytest.mark.skipif(not FIELD.is_dir(), reason="MARKOV_SPEC_FIELD_DATA names no folder of recorded runs")


def test_every_cast_probe_against_reference():
    probes = json.loads(PROBES.read_text())["probes"]
    assert len(probes) == 17
    for probe in probes:
        where = {name: probe[name] for name in ("gpu", "target", "prefix", "table")}
        price, sizes = read_price(PROBES, where=where, columns={"tokens": "n"}), np.array(probe["n"])
        wanted = np.array(probe["ms"]) / 1000 + np.where(sizes > 1, probe["draft_ms"] / 1000, 0)
        np.testing.assert_array_equal(price.of(0, sizes - 1, probe["prefix"]), wanted)
        assert (np.diff(wanted) < 0).any()  # none rises throughout
        # Between sizes: the next larger measured one, whether dearer or not.
        np.testing.assert_array_equal(price.of(0, np.arange(128), 0), wanted[np.searchsorted(sizes, np.arange(1, 129))])
        with pytest.raises(ValueError, match=r"drafted \+ 1: found 129; allowed: 1 to 128"):
            price.of(1, 128, 0)
        verifying = read_price(PROBES, where=where, columns={"tokens": "n"}, per_call=0.0)
        np.testing.assert_array_equal(verifying.of(0, sizes - 1, 0), np.array(probe["ms"]) / 1000)


@pytest.mark.parametrize("target", ["Qwen/Qwen3-8B", "Qwen/Qwen3-4B"])
def test_cast_contexts_against_reference(target):
    price = read_price(f"{PROBES}?gpu=H100 SXM&target={target}&table=6&tokens=n&context=prefix&between=linear")
    assert price.contexts.tolist() == [1024, 4096, 8192, 16384]
    for probe in json.loads(PROBES.read_text())["probes"]:
        if (probe["gpu"], probe["target"], probe["table"]) == ("H100 SXM", target, 6):
            found = price.of(0, np.array(probe["n"][1:]) - 1, probe["prefix"])
            np.testing.assert_allclose(found, (np.array(probe["ms"][1:]) + probe["draft_ms"]) / 1000, rtol=1e-14)
    middle = (price.of(0, 3, 8192) + price.of(0, 3, 16384)) / 2
    np.testing.assert_allclose(price.of(0, 3, 12288), middle, rtol=1e-14)
    bare = read_price(PROBES, where={"gpu": "H100 SXM", "target": target, "table": 6}, columns=OWN, per_call=0)
    assert 2.3 < bare.of(0, 3, 16384) / bare.of(0, 0, 16384) < 2.4
    with pytest.raises(ValueError, match="context: found 16385; allowed: 1024 to 16384"):
        price.of(0, 3, 16385)


def test_cast_settings_that_are_left_open_against_reference():
    for where, told in (
        ({}, "prices of 1 token at context 1024, .*gpu: Blackwell, A6000, A100, H100 NVL, H100 SXM"),
        (
            {"gpu": "H100 SXM", "target": "Qwen/Qwen3-8B"},
            r"2 prices of 1 token at context 1024, .*allowed: one, chosen by table: 5, 6$",
        ),
    ):
        with pytest.raises(ValueError, match=told):
            read_price(PROBES, where=where, columns=OWN)
    (coder,) = [probe for probe in json.loads(PROBES.read_text())["probes"] if probe["table"] is None]
    assert read_price(f"{PROBES}?table=&tokens=n").of(0, 0, 0) == coder["ms"][0] / 1000


@pytest.mark.parametrize(("method", "wanted"), [("draft-mtp", "mtp-n2"), ("draft-dflash", "dflash2-n2")])
def test_measured_cycles_against_reference(method, wanted):
    # The unit is a plain decoding step, which the file does not list.
    price = read_price(f"{CYCLES}?method={method}&tokens=verify_width&price=k_mean&plain=1")
    rows = [arm for arm in csv.DictReader(CYCLES.read_text().splitlines()) if arm["method"] == method]
    assert price.sizes.tolist() == [1, *(int(arm["verify_width"]) for arm in rows)]
    for arm in rows:
        drafts = int(arm["verify_width"]) - 1
        assert price.of(drafts, drafts, 0) == float(arm["k_mean"])
        tokens = float(arm["measured_speedup"]) * price.of(drafts, drafts, 0)
        realised = float(arm["realised_draft_len"])
        assert 1 + realised * float(arm["accept_lo"]) < tokens < 1 + realised * float(arm["accept_hi"])
    assert max(rows, key=lambda arm: float(arm["measured_speedup"]))["arm"] == wanted and price.of(0, 0, 0) == 1
    if method == "draft-mtp":
        assert price.of(7, [7, 8], 0).tolist() == [2.9684, 2.3788]  # another kernel from 9 tokens on
    else:
        assert price.of(1, [1, 3, 5, 7], 0).tolist() == [1.4614, 1.8949, 2.4537, 2.7323]  # even sizes are padded


def test_cycles_of_both_methods_against_reference():
    with pytest.raises(
        ValueError, match=r"found 2 prices of 3 tokens, such as line 3, k_mean and line 4.* method: draft-mtp, "
    ):
        read_price(CYCLES, columns={"tokens": "verify_width", "price": "k_mean"})
    with pytest.raises(ValueError, match="where: method: found no 'eagle'; allowed: draft-mtp, draft-dflash"):
        read_price(CYCLES, columns={"tokens": "verify_width", "price": "k_mean"}, where={"method": "eagle"})
