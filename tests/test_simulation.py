"""Monte-Carlo rounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import markov_spec as ms
from markov_spec import simulation
from tests import strategies


def _law(form):
    # Rollouts of 0 to 40 tokens, with certain and impossible drafts among the cells.
    rng = np.random.default_rng(5)
    indptr = np.concatenate(([0], np.cumsum([0, 1, 2, 17, 40])))
    accept = rng.choice([0.0, 1.0, 0.3, 0.6, 0.9], (60, 6) if form == "cells" else 60)
    return ms.RoundLaw(accept.astype(np.float32), indptr, rng.integers(0, 7, 60))


@pytest.mark.parametrize("first_start", [0, 1])
@pytest.mark.parametrize("form", ["cells", "positions"])
def test_mean_and_distribution_against_the_engine_by_simulation(form, first_start):
    law, replicates = _law(form), 40_000
    found = ms.simulate(law, replicates=replicates, rng=np.random.default_rng(30), first_start=first_start)
    rounds, exact = ms.solve(law, first_start=first_start), ms.round_distribution(law, first_start=first_start)
    error = np.sqrt(rounds.variance / replicates)
    assert (np.abs(found.mean(axis=0) - rounds.expected) <= 4 * error + 1e-12).all()
    for i in range(5):
        wanted = replicates * exact.pmf(i)
        counts = np.bincount(found[:, i], minlength=wanted.size)
        assert counts.size == wanted.size and not counts[wanted == 0].any()
        common = wanted >= 5
        rest = [wanted[~common].sum()] if wanted[~common].sum() > 1e-6 else []
        expected = np.concatenate((wanted[common], rest))
        observed = np.concatenate((counts[common], [counts[~common].sum()] if rest else []))
        if expected.size > 1:
            assert stats.chisquare(observed, expected).pvalue > 1e-3


@given(strategies.laws(), st.integers(0, 3))
def test_certain_rounds_against_closed_form(law, first_start):
    sure = ms.RoundLaw(np.round(law.accept), law.indptr, law.draft_length)
    found = ms.simulate(sure, replicates=2, rng=np.random.default_rng(0), first_start=first_start)
    length, wanted = np.broadcast_to(sure.draft_length, sure.accept.shape[:1]), []
    for begin, end in zip(sure.indptr, sure.indptr[1:], strict=False):
        s, count = begin + first_start, 0
        while s < end:
            drafts = sure.accept[s] if sure.form == "cells" else sure.accept[s:]
            drafts = drafts[: min(length[s], end - s)]
            s += (int(np.argmin(drafts)) if not drafts.all() else drafts.size) + 1
            count += 1
        wanted.append(count)
    assert found.dtype == np.int64 and found.tolist() == [wanted, wanted]


def test_seed_and_chunks_invariant(monkeypatch):
    law = _law("cells")

    def rounds(seed):
        return ms.simulate(law, replicates=50, rng=np.random.default_rng(seed)).tolist()

    whole = rounds(1)
    assert rounds(1) == whole != rounds(2)
    for chunk in (1, 41, 130):
        monkeypatch.setattr(simulation, "CHUNK", chunk)
        assert rounds(1) == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicates": 0}, "replicates: found 0; allowed: an integer >= 1"),
        ({"replicates": 2.0}, "replicates: found 2.0; allowed"),
        ({"first_start": -1}, "first_start: found -1; allowed: an integer >= 0"),
        ({"rng": 7}, "rng: found int; allowed: numpy.random.Generator"),
    ],
)
def test_refused_options_invariant(options, message):
    options = {"replicates": 1, "rng": np.random.default_rng(0)} | options
    with pytest.raises(ValueError, match=message):
        ms.simulate(_law("cells"), **options)
