"""Every draft length at once, against an evaluation for each."""

import numpy as np
import polars as pl
import pytest

import markov_spec as ms
from markov_spec.comparison import ratio_interval
from markov_spec.evaluation import laws
from markov_spec.latency import Affine
from tests import stored_lists
from tests.stored_lists import write

PRICE = Affine(4.0, per_depth=0.3, per_draft=0.1, per_context=0.01)


@pytest.fixture
def store(tmp_path):
    return write(tmp_path / "run", stored_lists.recorded())


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize("name", ["auto", "block", "auto:rule=block", "block:rule=match", "auto:rule=independent"])
def test_curve_against_reference(store, monkeypatch, name, first_start):
    curve = ms.length_curve(store, name, longest=4, price=PRICE, first_start=first_start)
    none = ms.evaluate(store, f"{name.split(':')[0]}:rule=none", price=PRICE, first_start=first_start)
    for row in curve.to_dicts()[1:]:
        k = row["draft_length"]
        one = f"{name}{',' if ':' in name else ':'}K={k}"
        found = ms.evaluate(store, one, price=PRICE, first_start=first_start)
        (told,) = found.results()
        assert row["rounds"] == pytest.approx(told["expected_rounds"], abs=1e-9)
        assert row["pooled_length"] == pytest.approx(told["pooled_length"], abs=1e-9)
        assert row["drafted"] == pytest.approx(told["proposed_drafts"], abs=1e-9)
        accepted = np.dot(told["accepted_histogram"], np.arange(k + 1))
        assert row["wasted"] == pytest.approx(told["proposed_drafts"] - accepted, abs=1e-9)
        assert row["expected_price"] == pytest.approx(told["expected_price"], abs=1e-9)
        speed = ratio_interval(none.price, found.price, found.prompt_ids)
        assert [row[end] for end in ("speedup", "speedup_low", "speedup_high")] == pytest.approx(list(speed))
    first = curve.to_dicts()[0]
    assert (first["draft_length"], first["speedup"], first["wasted"]) == (0, 1, 0)
    assert first["expected_price"] == pytest.approx(none.price.sum())
    monkeypatch.setattr(laws, "CHUNK_BYTES", 1)
    again = ms.length_curve(store, name, longest=4, price=PRICE, first_start=first_start)
    assert again.select(pl.exclude("exactness")).to_numpy() == pytest.approx(
        curve.select(pl.exclude("exactness")).to_numpy(), rel=1e-12
    )
    bare = ms.length_curve(store, name, longest=4, first_start=first_start)
    assert bare.schema == curve.schema and bare["speedup"].null_count() == 5


def test_default_lengths_and_refusals_invariant(store):
    assert ms.length_curve(store, "block")["draft_length"].max() == stored_lists.D
    assert ms.length_curve(store, "auto")["draft_length"].max() == 8
    for name in ("block:K=2", "block:tree=chain,budget=2"):
        with pytest.raises(ms.RequestError, match="allowed: neither"):
            ms.length_curve(store, name)
    with pytest.raises(ms.RequestError, match="at most the recorded 4"):
        ms.length_curve(store, "block", longest=5)
    with pytest.raises(ms.RequestError, match="allowed: auto, bare, block"):
        ms.length_curve(store, "nobody")
    with pytest.raises(ValueError, match="longest: found -1"):
        ms.length_curve(store, "block", longest=-1)
