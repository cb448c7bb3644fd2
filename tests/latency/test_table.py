"""Tables: closed forms, and the same rule written out cell by cell."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from markov_spec.latency import BETWEEN, Affine, Roofline, Table
from tests.latency.test_rounds import EXAMPLES, HARDWARE, STAIRS


def test_contexts_against_closed_form():
    table = Table([1, 2, 3, 4], EXAMPLES["table"].prices, contexts=[0, 10, 30])
    assert table.of(7, [0, 1, 2, 3], [0, 10, 10, 0]).tolist() == STAIRS  # nowhere even or convex
    assert table.of(7, [0, 1, 2, 3], 30).tolist() == [3, 6, 4.5, 12]
    np.testing.assert_allclose(table.of(0, 2, [[0, 5], [15, 25]]), [[1.5, 1.5], [2.25, 3.75]], rtol=1e-15)
    both = Table([1, 5], [[1.0, 2.0], [3.0, 6.0]], contexts=[100, 200], between="linear")
    np.testing.assert_allclose(both.of(0, [0, 2, 4], [150, 150, 125]), [2, 3, 3], rtol=1e-15)


def test_between_sizes_against_closed_form():
    made = {between: Table([1, 5, 9], [1.0, 3.0, 2.0], between=between) for between in BETWEEN}
    assert made["stair"].of(0, np.arange(9), 10**6).tolist() == [1, 3, 3, 3, 3, 2, 2, 2, 2]
    linear = made["linear"].of(0, np.arange(9), 10**6)
    np.testing.assert_allclose(linear, [1, 1.5, 2, 2.5, 3, 2.75, 2.5, 2.25, 2], rtol=1e-15)
    for table in made.values():
        assert table.of(0, [0, 4, 8], 0).tolist() == [1, 3, 2]
        for outside in (9, 10**9):
            with pytest.raises(ValueError, match=rf"drafted \+ 1: found {outside + 1}; allowed: 1 to 9"):
                table.of(1, [1, outside], 0)
        # A pass of one token is not padded to one that drafts: that no speculation is dear must be measured.
        with pytest.raises(ValueError, match=r"drafted \+ 1: found 1; allowed: 2 to 5"):
            Table([2, 5], [1.0, 2.0], between=table.between).of(0, 0, 0)
    with pytest.raises(ValueError, match=r"drafted \+ 1: found 2; allowed: 1 or 5, which the table lists"):
        made["refuse"].of(1, [0, 1], 0)


def test_call_is_whole_from_the_first_draft_on_against_closed_form():
    # Not interpolated up from the round without drafts.
    linear = Table([1, 5], [1.0, 3.0], between="linear", per_call=10.0)
    assert linear.of(1, np.arange(5), 0).tolist() == [1, 11.5, 12, 12.5, 13]
    growing = Table([1, 5, 9], [1.0, 1.0, 1.0], between="linear", per_call=[2.0, 4.0, 8.0])
    assert growing.of(1, [0, 1, 4, 6, 8], 0).tolist() == [1, 3.5, 5, 7, 9]
    by_context = Table([1, 2], [[1.0, 2.0], [3.0, 4.0]], contexts=[0, 10], per_call=[[1.0], [5.0]])
    assert by_context.of(1, [0, 1, 1, 1], [0, 0, 5, 10]).tolist() == [1, 3, 6, 9]


def test_batches_against_closed_form():
    prices = np.arange(8.0).reshape(2, 2, 2)
    table = Table([1, 2], prices, batches=[1, 8], contexts=[0, 10], per_call=[[[0.0]], [[100.0]]], between="linear")
    assert table.batch == 1 and table.of(0, [0, 1], [[0], [10]]).tolist() == [[0, 1], [2, 3]]
    eight = table.at_batch(8)
    assert eight.of(0, [0, 1], [[0], [10]]).tolist() == [[4, 105], [6, 107]] and eight.at_batch(1).batch == 1
    # A quarter of the way from 1 to 9.
    wide = Table([1, 2], [[1.0, 2.0], [5.0, 10.0]], batches=[1, 9], between="linear", batch=3, per_call=1.0)
    np.testing.assert_allclose(wide.of(0, [0, 1], 0), [2, 5], rtol=1e-15)
    assert Table([1], [7.0]).at_batch(1).of(0, 0, 0) == 7


@st.composite
def _tables(draw):
    def axis(least, most):
        return draw(st.none() | st.lists(st.integers(least, 12), min_size=1, max_size=most, unique=True).map(sorted))

    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True).map(sorted))
    axes = {"batches": axis(1, 3), "contexts": axis(0, 3)}
    shape = tuple(len(axis) for axis in axes.values() if axis is not None)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kept = [n if draw(st.booleans()) else 1 for n in shape]
    call = rng.random((*kept, draw(st.sampled_from([1, len(sizes)]))))
    batch = draw(st.sampled_from(axes["batches"] or [1]))
    options = {
        **axes,
        "batch": batch,
        "between": draw(st.sampled_from(BETWEEN)),
        "per_depth": draw(st.sampled_from([0, 0.5])),
    }
    return Table(sizes, rng.random((*shape, len(sizes))), per_call=call, **options)


def _plainly(table, k, d, c):
    """Price a round by the rule as it reads; None where it has no price."""
    prices, call = (np.broadcast_to(values, table.prices.shape) for values in (table.prices, table.per_call))
    if table.batches is not None:
        i = list(table.batches).index(table.batch)
        prices, call = prices[i], call[i]
    rows = [(1.0, prices, call)]
    if table.contexts is not None:
        if not table.contexts[0] <= c <= table.contexts[-1]:
            return None
        rows = [
            (float(np.interp(c, table.contexts, one)), prices[i], call[i])
            for i, one in enumerate(np.eye(len(table.contexts)))
        ]
    total, sizes = table.per_depth * k, list(table.sizes)
    if not sizes[0] <= d + 1 <= sizes[-1]:
        return None
    for share, row, call_row in rows:
        paid = row + (call_row if d else 0)
        if table.between == "linear":
            total += share * np.interp(d + 1, sizes, paid)
        elif table.between == "refuse" and d + 1 not in sizes:
            return None
        else:
            total += share * next(price for size, price in zip(sizes, paid, strict=True) if size >= d + 1)
    return total


@given(_tables())
def test_every_round_against_reference(table):
    for k, d, c in np.ndindex(2, 13, 13):
        wanted = _plainly(table, k, d, c)
        if wanted is None:
            with pytest.raises(ValueError, match="allowed"):
                table.of(k, d, c)
        else:
            np.testing.assert_allclose(table.of(k, d, c), wanted, rtol=1e-13)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Affine(-1.0), "base: found -1.0; allowed: a finite number >= 0"),
        (lambda: Affine(1.0, per_context=np.nan), "per_context: found nan; allowed"),
        (lambda: Affine("1"), "base: found dtype <U1; allowed: finite numbers >= 0"),
        (lambda: Affine([1.0, 2.0]), r"base: found shape \(2,\); allowed: a finite number >= 0"),
        (lambda: Affine(1.0, per_call=np.inf), "per_call: found inf; allowed: a finite number >= 0"),
        (lambda: Table([2, 2], [1.0, 1.0]), r"sizes: found \[2, 2\]; allowed: integers that rise, from 1 or more"),
        (lambda: Table([0, 2], [1.0, 1.0]), r"sizes: found \[0, 2\]; allowed"),
        (lambda: Table([1.0, 2.0], [1.0, 1.0]), r"sizes: found shape \(2,\), dtype float64; allowed: one integer or"),
        (lambda: Table([], []), r"sizes: found shape \(0,\)"),
        (lambda: Table([1, 2], [1.0]), r"prices: found shape \(1,\); allowed: \(2,\), one for each batch, context and"),
        (lambda: Table([1, 2], [[1.0, 1.0]]), r"prices: found shape \(1, 2\); allowed: \(2,\)"),
        (lambda: Table([1], [[1.0]], contexts=[5, 9]), r"prices: found shape \(1, 1\); allowed: \(2, 1\)"),
        (lambda: Table([1, 2], [1.0, np.inf]), "prices: found inf; allowed: a finite number >= 0"),
        (lambda: Table([1], [[1.0], [1.0]], contexts=[-1, 9]), r"contexts: found \[-1, 9\]; allowed: .* from 0"),
        (lambda: Table([1], [[1.0], [1.0]], batches=[0, 9]), r"batches: found \[0, 9\]; allowed: .* from 1"),
        (lambda: Table([1], [[1.0]], batches=[8]), "batch: found 1; allowed: 8, which the table lists"),
        (lambda: Table([1], [[1.0], [2.0]], batches=[1, 8], batch=4), "batch: found 4; allowed: 1, 8"),
        (lambda: Table([1], [[1.0], [2.0]], batches=[1, 8], between="linear").at_batch(9), "batch: found 9; allowed"),
        (lambda: Table([1], [1.0]).at_batch(8), "batch: found 8; allowed: 1, as no batch is listed"),
        (lambda: Table([1], [1.0]).at_batch(True), "batch: found True; allowed: an integer >= 1"),
        (lambda: Table([1], [1.0], between="cubic"), "between: found 'cubic'; allowed: refuse, stair, linear"),
        (lambda: Table([1, 2], [1.0, 2.0], per_call=[1.0] * 3), r"per_call: found shape \(3,\); allowed: .* \(2,\)"),
        (lambda: Table([1], [1.0], per_call=[[1.0]]), r"per_call: found shape \(1, 1\); allowed: .* \(1,\)"),
        (lambda: Table([1], [1.0], per_depth=-1), "per_depth: found -1; allowed"),
        (lambda: Roofline(**HARDWARE | {"peak": 0.0}), "peak: found 0.0; allowed: a finite number > 0"),
        (lambda: Roofline(**HARDWARE | {"bandwidth": np.nan}), "bandwidth: found nan; allowed"),
        (lambda: Roofline(**HARDWARE, tile=0), "tile: found 0; allowed: an integer >= 1"),
        (lambda: Roofline(**HARDWARE, batch=1.0), "batch: found 1.0; allowed: an integer >= 1"),
        (lambda: Roofline(**HARDWARE, captured=[4, 2]), r"captured: found \[4, 2\]; allowed: integers that rise"),
        (
            lambda: Roofline(**HARDWARE, captured=[8]).of(0, [0, 8], 0),
            "drafted: found 9 tokens of a pass; allowed: up to 8",
        ),
    ],
)
def test_refused_prices_invariant(make, message):
    with pytest.raises(ValueError, match=message):
        make()
