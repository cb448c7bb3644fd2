"""Bounds on stores, against the exact figure and against intervals made by hand."""

import json

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.acceptance.truncated import list_bounds
from markov_spec.chain import bound_rounds, bound_rounds_block
from markov_spec.cli import main
from markov_spec.evaluation.uncertainty import UNITS
from tests import stored_lists
from tests.stored_lists import INDPTR, D, N, write

DEMO = "data/demo"


@pytest.fixture
def store(tmp_path):
    return write(tmp_path / "run", stored_lists.recorded())


def cells(values, depth=D):
    return values[np.minimum(np.arange(N)[:, None] + np.arange(depth), N - 1)]


@pytest.mark.parametrize("source", ["lists:top={0}", "target-lists:top={0}", "lists:top={0}+target-lists:top={0}"])
@pytest.mark.parametrize(
    "contender", ["quant5:K=4", "block", "block:rule=block", "drop3:rule=independent", "quant5:rule=block"]
)
def test_shorter_lists_give_nested_bounds_around_the_exact_value_invariant(contender, source):
    exact = ms.evaluate(DEMO, contender)
    widths, outer = [], (0.0, np.inf)
    for top in (1, 5, 20):
        found = ms.evaluate_bounds(DEMO, contender, source.format(top))
        low, high = found.pooled_length
        assert (
            outer[0] - 1e-9 <= low <= exact.pooled_length + 1e-9
            and exact.pooled_length - 1e-9 <= high <= outer[1] + 1e-9
        )
        assert (found.low <= exact.rounds + 1e-4).all() and (exact.rounds <= found.high + 1e-4).all()
        assert np.allclose(found.exact, exact.rounds)
        outer, widths = (low, high), [*widths, high - low]
    print(contender, source.format("1, 5, 20"), "widths:", [round(width, 4) for width in widths])
    if "independent" in contender and source.startswith("target"):  # p is not read
        assert max(widths) < 1e-9
    else:
        assert widths[0] > widths[1] > widths[2]


@pytest.mark.parametrize("rule", ["rejection", "block", "independent"])
@pytest.mark.parametrize("top", [1, 3, 6])
def test_list_intervals_against_reference(store, rule, top):
    ids, log_q, tokens, law, _ = stored_lists.recorded()
    low, high = list_bounds(ids[..., :top], log_q[..., :top].astype(np.float32), cells(tokens), vocab_size=6)
    inside = ~np.isnan(law)
    q = np.exp(law)
    assert (low[inside] <= q[inside] + 1e-6).all() and (q[inside] <= high[inside] + 1e-6).all()
    if top == 6:
        assert np.allclose(low[inside], high[inside])
    found = ms.evaluate_bounds(store, f"block:rule={rule}", f"lists:top={top}", first_start=1)
    with np.errstate(divide="ignore"):
        ratios = np.log(low) + 1, np.log(high) + 1  # log p is -1 everywhere
    verb, ends = bound_rounds, (low, high)
    if rule == "rejection":
        ends = tuple(np.exp(np.minimum(ratio, 0)) for ratio in ratios)
    elif rule == "block":
        verb, ends = bound_rounds_block, ratios
    expected = verb(*ends, INDPTR, draft_length=D, first_start=1)
    assert np.allclose(found.low, expected.low, atol=1e-6) and np.allclose(found.high, expected.high, atol=1e-6)
    assert found.kind == expected.kind and found.source == f"q known in its top {top} alone"


def test_unlisted_probability_against_enumeration():
    rng = np.random.default_rng(0)
    for _ in range(200):
        q = -np.sort(-rng.dirichlet(np.full(5, 0.5)))
        low, high = list_bounds(np.arange(2)[None], np.log(q[None, :2]), np.array([4]), vocab_size=5)
        missing, last = 1 - q[:2].sum(), q[1]
        grid = [
            (x, y, missing - x - y)
            for x in np.linspace(0, min(last, missing), 41)
            for y in np.linspace(0, min(last, missing), 41)
            if -1e-12 <= missing - x - y <= last + 1e-12
        ]
        values = np.array(grid)[:, 0]
        assert low[0] <= values.min() + 1e-9 and values.max() <= high[0] + 1e-9
        assert abs(values.min() - low[0]) < 0.03 and abs(values.max() - high[0]) < 0.03
    assert list_bounds(np.array([[3, 4]]), np.log([[0.5, 0.25]]), np.array([4]), vocab_size=5) == (0.25, 0.25)


@pytest.mark.parametrize("contender", ["auto:K=3", "block", "auto:rule=block,K=2"])
def test_no_tolerance_meets_the_exact_value_against_reference(store, contender):
    exact = ms.evaluate(store, contender)
    found = ms.evaluate_bounds(store, contender, "tolerance:nats=0")
    assert np.allclose(found.low, exact.rounds, atol=1e-12) and np.allclose(found.high, exact.rounds, atol=1e-12)
    assert found.uncertain == 0
    for source in ("tolerance:nats=0.05", "half:dtype=bfloat16", "half:dtype=float16"):
        wide = ms.evaluate_bounds(store, contender, source)
        assert (wide.low <= exact.rounds + 1e-12).all() and (exact.rounds <= wide.high + 1e-12).all()
        assert wide.low.sum() < wide.high.sum() and wide.uncertain > 0


SOURCES = (
    "tolerance:nats=0", "tolerance:nats=1e-6", "half", "half:dtype=float16", "lists", "lists:top=5", "target-lists",
    "lists+target-lists",
)  # fmt: skip


@pytest.mark.parametrize(
    ("contender", "sources"),
    [
        *((name, SOURCES) for name in ("quant5:K=4", "quant5:rule=block", "block", "block:rule=block", "lookup")),
        ("drop3:rule=independent,m=2", [source for source in SOURCES if "lists" in source]),
    ],
)
def test_recorded_figure_lies_between_the_bounds_against_reference(contender, sources):
    exact = ms.evaluate(DEMO, contender).rounds
    for source in sources:
        found = ms.evaluate_bounds(DEMO, contender, source)
        assert (found.low <= found.exact).all() and (found.exact <= found.high).all()
        assert found.exact == pytest.approx(exact, rel=1e-6)  # whose acceptances are float32
        if not found.uncertain:
            assert found.high == pytest.approx(found.exact, rel=1e-12) and found.kind == "exact"
            assert found.low == pytest.approx(found.exact, rel=1e-12)


def test_moved_log_probabilities_stay_inside_invariant(store):
    """Every record whose log-probabilities are off by no more than the tolerance has its figure between the bounds."""
    rng = np.random.default_rng(2)
    found = ms.evaluate_bounds(store, "auto:K=3", "tolerance:nats=0.1")
    log_q = store.drafter("auto").log_q.astype(float)
    for _ in range(200):
        p, q = -1 + rng.uniform(-0.1, 0.1, N), np.minimum(log_q + rng.uniform(-0.1, 0.1, N), 0)
        rounds = ms.solve(ms.round_law(p, q, INDPTR, rule="rejection", draft_length=3)).expected
        assert (found.low <= rounds + 1e-9).all() and (rounds <= found.high + 1e-9).all()


def test_rounded_log_probabilities_stay_inside_invariant(store):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    exact = ms.evaluate(store, "auto:K=3").rounds
    log_q = store.drafter("auto").log_q
    for name, kind in (("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)):
        rounded = log_q.astype(kind).astype(np.float32)
        assert (np.abs(rounded - log_q) <= np.maximum(np.abs(rounded) * UNITS[name][0], UNITS[name][1])).all()
        drafts = ms.Drafts("auto", "autoregressive", "rejection", rounded)
        half = ms.add_drafter(store.path, drafts, overwrite=True)
        found = ms.evaluate_bounds(half, "auto:K=3", f"half:dtype={name}")
        assert (found.low <= exact + 1e-6).all() and (exact <= found.high + 1e-6).all()
        store = half


def test_command_against_reference(capsys):
    words = ["evaluate", DEMO, "quant5:K=4", "block", "--bounds", "lists:top=5"]
    assert main([*words, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["bounds"]
    assert rows[0] == ms.evaluate_bounds(DEMO, "quant5:K=4", "lists:top=5").results()[0]
    assert main([*words, "--by", "benchmark"]) == 0
    assert f"{rows[0]['source']}" in capsys.readouterr().out
    assert main([*words, "--format", "csv"]) == 0
    assert "pooled_length_low" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("contender", "source", "message"),
    [
        ("quant5", "oracle", "bounds: found 'oracle'; allowed: lists, target-lists, tolerance"),
        ("quant5", "lists:depth=3", "allowed settings of lists: top"),
        ("quant5", "lists:top=1,top=2", "top more than once; allowed: each setting once"),
        ("quant5", "lists:top=21", "found top=21; allowed: 1 to 20"),
        ("quant5", "lists:top=0", "found top=0"),
        ("quant5", "tolerance:nats=-1", "found nats=-1"),
        ("quant5", "half:dtype=int8", "found dtype='int8'"),
        ("quant5", "transport:m=2", "needs transport_2_low"),
        ("quant5", "transport:m=3", "found m=3; allowed: 2, 4, 8"),
        ("quant5:rule=independent", "tolerance:nats=0.1", "found rule 'independent'; allowed: rejection, block, match"),
        ("block:tree=chain,budget=2", "lists", "found a tree; allowed: a chain"),
    ],
)
def test_what_cannot_be_bounded_is_refused_invariant(contender, source, message):
    with pytest.raises(ms.RequestError, match=message):
        ms.evaluate_bounds(DEMO, contender, source)
