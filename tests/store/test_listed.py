"""What lists say of whole distributions, against the whole distributions."""

from __future__ import annotations

import numpy as np
import pytest

from markov_spec.store.listed import CUMULATIVE_TOLERANCE, Listed
from markov_spec.store.setting import Setting
from tests.store.drawn import VOCAB, decoded, log_softmax

ROWS, WIDTH = 40, 7
BETAS = (0.3, 0.9, 1.0, 1.4, 5.0, 90.0)


def _raw(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return log_softmax(rng.normal(size=(ROWS, VOCAB)) * rng.choice([0.3, 2.0, 6.0], (ROWS, 1)))


def _listed(raw: np.ndarray, tokens: np.ndarray, log_p: np.ndarray | None = None) -> Listed:
    ids = np.argsort(-raw, axis=1)[:, :WIDTH]
    logs = np.take_along_axis(raw, ids, axis=1)
    found = ids == tokens[:, None]
    place = np.where(found.any(axis=1), found.argmax(axis=1), WIDTH)
    given = np.zeros(len(raw)) if log_p is None else log_p
    return Listed(logs, 1 - np.exp(logs).sum(axis=1), place, given, np.zeros(len(raw), dtype=int), VOCAB)


@pytest.mark.parametrize("beta", BETAS)
def test_tail_is_between_its_bounds_against_enumeration(beta: float) -> None:
    raw = _raw()
    low, high = _listed(raw, np.zeros(ROWS, int)).tail_weights(beta)
    whole = np.sort(raw, axis=1)[:, ::-1]
    tail = np.exp(beta * (whole - whole[:, :1]))[:, WIDTH:].sum(axis=1)
    assert (low <= tail * (1 + 1e-9)).all() and (tail <= high * (1 + 1e-9)).all()
    assert beta != 1 or np.allclose(low, high)


@pytest.mark.parametrize("beta", BETAS)
def test_score_has_mean_0_and_its_variance_against_enumeration(beta: float) -> None:
    """Each listed token of one row in turn, weighted by its chance among the listed ones."""
    raw = _raw(1)[:1]
    ids = np.argsort(-raw[0])[:WIDTH]
    chances = np.exp(beta * (raw[0, ids] - raw[0, ids[0]]))
    chances /= chances.sum()
    scores = [_listed(raw, ids[i : i + 1]).score(beta, np.ones((1, WIDTH), bool)) for i in range(WIDTH)]
    surplus = np.array([score.surplus for score in scores])
    assert chances @ surplus == pytest.approx(0, abs=1e-12)
    assert scores[0].variance == pytest.approx(chances @ surplus**2)
    assert all(
        abs(s) <= score.largest + 1e-12 for s, c, score in zip(surplus, chances, scores, strict=True) if c > 1e-7
    )


@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.7])
def test_fit_is_the_largest_likelihood_against_reference(temperature: float) -> None:
    rng = np.random.default_rng(3)
    raw = log_softmax(rng.normal(size=(3000, VOCAB)) * 2)
    p = np.exp(decoded(raw, temperature))
    listed = _listed(raw, (p.cumsum(1) > rng.random((3000, 1))).argmax(axis=1))
    inside = listed.place < WIDTH
    logs, place = listed.logs[inside], listed.place[inside]
    grid = np.arange(0.2, 3, 0.001)
    likelihood = [log_softmax(logs / t)[np.arange(len(place)), place].sum() for t in grid]
    fit = listed.fit(np.ones((3000, WIDTH), dtype=bool))
    assert fit is not None and fit.temperature == pytest.approx(grid[int(np.argmax(likelihood))], abs=0.002)
    assert fit.low < temperature < fit.high


SETTINGS = [
    Setting(0.7),
    Setting(1.0, top_k=4),
    Setting(0.6, top_k=20),
    Setting(1.0, top_p=0.8),
    Setting(0.5, top_p=0.9),
    Setting(1.5, top_k=10, top_p=0.7),
    Setting(0.5, top_p=0.8, tempered_first=False),
    Setting(0.7, top_k=10, min_p=0.05),
    Setting(0.5, min_p=0.05),
    Setting(0.5, min_p=0.1, tempered_first=False, min_p_tempered=False),
    Setting(0.7, top_p=0.9, min_p=0.05),
    Setting(1.0, top_k=5, top_p=0.7, cut_first=False),
    Setting(0.6, top_k=4, top_p=0.8, min_p=0.1, cut_first=False, tempered_first=False, min_p_tempered=False),
]


def _scores(raw: np.ndarray, setting: Setting) -> np.ndarray:
    filters = setting.top_k, setting.top_p, not setting.tempered_first, setting.min_p
    return decoded(raw, setting.temperature, *filters, joint=not setting.cut_first)


ORDERS = [
    (None, Setting(0.7, 5, 0.9, 0.1, told=True, other=True)),  # engines differ
    (["temperature", "top_k", "top_p", "min_p"], Setting(0.7, 5, 0.9, 0.1, told=True)),
    (["temperature", "min_p", "top_k", "top_p"], Setting(0.7, 5, 0.9, 0.1, told=True, other=True)),
    (["temperature", "joint"], Setting(0.7, 5, 0.9, 0.1, cut_first=False, told=True)),
    (["joint", "temperature"], Setting(0.7, 5, 0.9, 0.1, False, False, False, told=True)),
    (["top_p", "temperature", "min_p", "top_k"], Setting(0.7, 5, 0.9, 0.1, False, False, True, told=True)),
]


@pytest.mark.parametrize(("order", "wanted"), ORDERS)
def test_orders_of_filters_against_closed_form(order: list[str] | None, wanted: Setting) -> None:
    sampling = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "order": order}
    assert Setting.of({"sampling": sampling}) == wanted


@pytest.mark.parametrize("setting", SETTINGS)
def test_kept_entries_and_log_probs_against_enumeration(setting: Setting) -> None:
    raw = _raw(4)
    scores = _scores(raw, setting)
    order = np.argsort(-raw, axis=1)
    listed = _listed(raw, order[:, 0], scores[np.arange(ROWS), order[:, 0]])
    keep, more, known = listed.kept(setting)
    alive = np.take_along_axis(scores, order, axis=1) > -np.inf
    assert (keep[known] == alive[known, :WIDTH]).all() and known.mean() > 0.2
    assert (more[known] >= alive[known, WIDTH:].any(axis=1)).all()
    distances = listed.distances(setting)
    assert np.allclose(distances[known], 0, atol=1e-9) and np.isnan(distances[~known]).all()
    moved = _listed(raw, order[:, 0], scores[np.arange(ROWS), order[:, 0]] - 3.0)
    assert (moved.distances(setting)[known] > 0.5).mean() > 0.5


@pytest.mark.parametrize("setting", SETTINGS)
def test_bounds_hold_every_token_against_enumeration(setting: Setting) -> None:
    """Each token of the vocabulary in turn: its log-probability is inside, and is the bounds where it is listed."""
    raw = _raw(5)
    scores = _scores(raw, setting)
    tight = 0.0
    for token in range(VOCAB):
        own, listed = scores[:, token], _listed(raw, np.full(ROWS, token))
        low, high = listed.bounds(setting)
        known = ~np.isnan(high)
        assert (low[known] <= own[known] + 1e-9).all() and (own[known] <= high[known] + 1e-9).all()
        assert not (listed.excluded(setting) & (own > -np.inf)).any()
        tight += float(np.mean((own == -np.inf) & (high == -np.inf) & (low == -np.inf)))
        exact = known & (listed.place < WIDTH) & (low > -np.inf)
        assert not 0 < setting.top_k <= WIDTH or np.allclose(low[exact], high[exact])
    assert tight > 1 or not setting.filtered or setting.top_k > WIDTH


def test_tokens_at_the_edge_of_a_filter_are_not_left_out_invariant() -> None:
    logs = np.log([[0.4, 0.2, 0.2, 0.1]])
    for place, excluded in ((0, False), (1, False), (2, False), (3, True), (4, True)):
        listed = Listed(logs, np.array([0.1]), np.array([place]), np.zeros(1), np.zeros(1, int), VOCAB)
        assert listed.excluded(Setting(top_k=2))[0] == excluded
        low, high = listed.bounds(Setting(top_k=2))
        assert (low[0] > -np.inf) == (place == 0) and (high[0] > -np.inf) != excluded


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.top_k or s.min_p])
def test_lists_that_hold_more_than_filters_leave_against_enumeration(setting: Setting) -> None:
    raw = _raw(6)
    assert not _listed(raw, np.zeros(ROWS, int)).may_be_decoded(setting) or setting.top_k > WIDTH
    assert _listed(_scores(raw, setting), np.zeros(ROWS, int)).may_be_decoded(setting)


@pytest.mark.parametrize(("top_k", "top_p", "peak"), [(5, 1.0, 3), (0, 0.8, 3), (0, 0.8, 9)])
def test_filters_are_seen_by_what_they_left_out_against_simulation(top_k: int, top_p: float, peak: float) -> None:
    rng = np.random.default_rng(5)
    raw = log_softmax(rng.normal(size=(2000, VOCAB)) * peak)
    p = np.exp(decoded(raw, 1.0, top_k, top_p))
    cut = _listed(raw, (p.cumsum(1) > rng.random((2000, 1))).argmax(axis=1)).cut(1.0, Setting())
    assert cut.kind == ("top_k" if top_k else "top_p")
    assert cut.rank == 5 if top_k else top_p - 0.02 < cut.reached < top_p + CUMULATIVE_TOLERANCE
    p = np.exp(decoded(raw, 1.0))
    assert _listed(raw, (p.cumsum(1) > rng.random((2000, 1))).argmax(axis=1)).cut(1.0, Setting()).kind is None
