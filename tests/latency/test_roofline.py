"""Rooflines: where memory and arithmetic meet, and the same formula one number at a time."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from markov_spec.latency import Roofline
from tests.latency.test_rounds import HARDWARE


def test_memory_then_arithmetic_against_closed_form():
    # Memory takes 2, a token's arithmetic 1: two tokens are free, and arithmetic is the slower from the third on.
    even = Roofline(**HARDWARE, tile=1, launch=0.5)
    assert even.of(0, [0, 1, 2, 3, 9], 1000).tolist() == [2.5, 2.5, 3.5, 4.5, 10.5]
    tiled = Roofline(**HARDWARE, tile=4, launch=0.5)
    assert tiled.of(0, [0, 3, 4, 7, 8], 1000).tolist() == [4.5, 4.5, 8.5, 8.5, 12.5]
    captured = Roofline(**HARDWARE, tile=1, launch=0.5, captured=[1, 2, 6, 10])
    assert captured.of(0, [0, 1, 2, 5, 6, 9], 1000).tolist() == [2.5, 2.5, 6.5, 6.5, 10.5, 10.5]
    assert Roofline(**HARDWARE, tile=4, captured=[5]).of(0, 0, 0) == 8  # padded first, then tiled


def test_context_and_batch_against_closed_form():
    wide = Roofline(**HARDWARE, tile=1, kv_bytes=2.0)
    np.testing.assert_allclose(wide.of(0, 0, [0, 100, 1000]), [2.02, 4.02, 22.02], rtol=1e-15)
    # Three requests: keys and values of each, weights once, arithmetic of nine tokens where that is the slower.
    three = Roofline(**HARDWARE, tile=1, kv_bytes=2.0, batch=3)
    np.testing.assert_allclose(three.of(0, 2, [0, 100, 1000]), [9, 9, 62.18], rtol=1e-15)


@given(
    st.integers(1, 4), st.integers(1, 5), st.booleans(), st.integers(0, 30), st.integers(0, 50),
    st.lists(st.floats(0.1, 10), min_size=6, max_size=6),
)  # fmt: skip
def test_every_round_against_reference(batch, tile, capture, d, c, numbers):
    peak, bandwidth, flops, weights, kv, launch = numbers
    captured = [1, 7, 50, 200] if capture else None
    price = Roofline(
        peak=peak, bandwidth=bandwidth, flops_per_token=flops, weight_bytes=weights, kv_bytes=kv, launch=launch,
        tile=tile, captured=captured, batch=batch,
    )  # fmt: skip
    tokens = batch * (d + 1)
    padded = min(size for size in captured if size >= tokens) if capture else tokens
    arithmetic = math.ceil(padded / tile) * tile * flops / peak
    memory = (weights + sum(kv * (c + d + 1) for _ in range(batch))) / bandwidth
    np.testing.assert_allclose(price.of(d, d, c), max(arithmetic, memory) + launch, rtol=1e-12)
