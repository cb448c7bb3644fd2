"""The meter against the engine, the peers' formulas and the cases it is for."""

import warnings

import numpy as np
import pytest
import torch

import markov_spec as ms
from markov_spec import metrics, objectives
from tests.objectives import oracle


def scored(given):
    return objectives.score_cells(given.draft, given.target, given.tokens, given.lengths)


def flat(given, values):
    """Rows of rollouts one after the other, as the engine has them."""
    return np.concatenate([values[b, : int(n)].numpy() for b, n in enumerate(given.lengths)])


def past_the_end(given, values):
    out = flat(given, values.double()).copy()
    at = np.concatenate([np.arange(int(n)) for n in given.lengths])
    ends = np.repeat(given.lengths.numpy(), given.lengths.numpy())
    out[at[:, None] + np.arange(1, out.shape[1] + 1) > ends[:, None]] = np.nan
    return out


@pytest.mark.filterwarnings("ignore:accuracies by depth")
@pytest.mark.parametrize("rule", ["rejection", "block", "match"])
@pytest.mark.parametrize("first_start", [0, 1])
def test_figures_against_reference(rule, first_start):
    """Batches of several shapes, against `solve` and the metrics of the concatenated rollouts."""
    meter = objectives.AcceptanceMeter(3, rule=rule, first_start=first_start)
    laws, tokens, rounds, hits, overlaps, accepts = [], [], [], [], [], []
    for seed, lengths in ((0, [5, 3, 0]), (1, [7, 1, 6])):
        given = oracle.batch(seed, size=max(lengths), lengths=lengths)
        scores = scored(given)
        meter.update(scores)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        law = ms.round_law(
            flat(given, scores.log_p), flat(given, scores.log_q), indptr, rule=rule,
            hit=flat(given, scores.hit) if rule == "match" else None,
        )  # fmt: skip
        laws.append(law)
        solved = ms.solve(law, first_start=first_start)
        tokens.extend(np.maximum(np.array(lengths) - first_start, 0))
        rounds.extend(solved.expected)
        hits.append(past_the_end(given, scores.hit))
        overlaps.append(past_the_end(given, scores.overlap))
        accepts.append(np.where(np.isnan(overlaps[-1]), np.nan, law.conditional()))
    figures = meter.compute()
    tokens, rounds = np.array(tokens, dtype=float), np.array(rounds)
    assert figures.accepted_length == pytest.approx(tokens.sum() / rounds.sum(), rel=1e-6)
    assert (figures.tokens, figures.rollouts) == (tokens.sum(), (tokens > 0).sum())
    hit, overlap, accept = (np.concatenate(one) for one in (hits, overlaps, accepts))
    seen = (~np.isnan(hit)).sum(0)
    assert figures.eal == figures.simulated_acc_len == pytest.approx(metrics.eal(np.nansum(hit, 0), seen))
    assert figures.slot_accuracy == pytest.approx(tuple(np.nansum(hit, 0) / seen))
    assert figures.tau == pytest.approx(metrics.tau(overlap), rel=1e-12)
    assert figures.uniform_start_length == pytest.approx(metrics.uniform_start_length(accept), rel=1e-6)
    solved = [ms.solve(law, first_start=first_start) for law in laws]
    tested = sum(one.tested.sum(0) for one in solved)
    passed = [sum(one.accepted_histogram[:, k:].sum() for one in solved) for k in range(1, 4)]
    for found, above, below in zip(figures.conditional, passed, tested, strict=True):
        assert (found is None) == (below == 0) and (found is None or found == pytest.approx(above / below, rel=1e-6))
    assert figures.error["tau"] == pytest.approx(figures.tau / figures.accepted_length - 1)
    assert figures.error["eal"] == pytest.approx(figures.eal / (figures.accepted_length - 1) - 1)


def test_standard_error_against_simulation():
    """Its square is the variance of the pooled length over samples of rollouts; blocks of one are one observation."""
    rng = np.random.default_rng(0)
    found, errors = [], []
    for seed in range(300):
        lengths = rng.integers(3, 12, 40).tolist()
        given = oracle.batch(seed, rows=40, size=11, depth=2, vocabulary=3, lengths=lengths)
        meter = objectives.AcceptanceMeter(2)
        meter.update(scored(given))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            figures = meter.compute()
        found.append(figures.accepted_length)
        errors.append(figures.standard_error)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(found, ddof=1), rel=0.12)


def test_case_79_accuracy_in_training_against_closed_form():
    """Accuracies of .98 on 15 slots promise 12.81 drafts; where all errors stand at round starts, few are accepted."""
    assert metrics.eal([98] * 15, [100] * 15) == pytest.approx(12.81, abs=0.005)
    size, depth = 60, 15
    hit = torch.ones(1, size, depth, dtype=torch.bool)
    hit[0, torch.arange(0, size, 3), 0] = False  # every third start fails at once, and rounds are led to these
    hit[0, torch.arange(1, size, 3), 1] = False
    hit[0, torch.arange(2, size, 3), 0] = False
    scores = objectives.CellScores(
        torch.zeros(1, size), torch.zeros(1, size, depth), torch.zeros(1, size, depth), torch.ones(1, size, depth), hit,
        torch.tensor([size]),
    )  # fmt: skip
    meter = objectives.AcceptanceMeter(depth, rule="match")
    meter.update(scores)
    with pytest.warns(UserWarning, match=r"promise 3\.418 accepted drafts a round, decoding accepts 0\.5 on the same"):
        figures = meter.compute()
    assert figures.accepted_length == pytest.approx(1.5, abs=0.01)
    assert figures.slot_accuracy[2:] == (1.0,) * 13
    assert figures.error["eal"] > 1
    fine = objectives.AcceptanceMeter(depth, rule="match")
    fine.update(objectives.CellScores(*(getattr(scores, n) for n in ("log_p", "log_q", "cost", "overlap")),
                                      torch.ones_like(hit), scores.lengths))  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fine.compute().accepted_length == pytest.approx(60 / 4)


def test_nothing_seen_invariant():
    meter = objectives.AcceptanceMeter(2)
    figures = meter.compute()
    assert figures.accepted_length is None and figures.eal is None and figures.standard_error is None
    assert figures.conditional == (None, None) and figures.error == dict.fromkeys(figures.error)
    given = oracle.batch(0, rows=2, size=1, depth=2, lengths=[1, 0])
    meter.update(scored(given))
    figures = meter.compute()
    assert figures.accepted_length == 1 and figures.rollouts == 1
    assert figures.eal is None and figures.conditional[1] is None  # depth 2 was never there


def test_reduced_on_a_device_that_the_group_has_invariant(monkeypatch):
    """A process that saw no batch takes part where the others do: on the CPU wherever the group can."""
    seen = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda sums, group: seen.append(sums.device.type))
    for config, kind in (("cpu:gloo,cuda:nccl", "cpu"), ("meta:nccl", "meta")):
        monkeypatch.setattr(torch.distributed, "get_backend_config", lambda group, config=config: config)
        objectives.AcceptanceMeter(2).reduce()
        assert seen[-1] == kind


def test_refusals_invariant():
    with pytest.raises(ValueError, match="rule: found 'typical'; allowed: rejection, block, match"):
        objectives.AcceptanceMeter(2, rule="typical")
    with pytest.raises(ValueError, match="depth: found 0"):
        objectives.AcceptanceMeter(0)
    given = oracle.batch(0)
    with pytest.raises(ValueError, match=r"scores: found \(B, M, K\) = \(3, 5, 3\); allowed: \(3, 5, 2\)"):
        objectives.AcceptanceMeter(2).update(scored(given))


@pytest.mark.filterwarnings("ignore:accuracies by depth")
def test_figures_for_loggers_invariant():
    """Floats alone, each where the figures have it; and a reset meter has seen nothing."""
    meter, given = objectives.AcceptanceMeter(3), oracle.batch(0)
    meter.update(scored(given))
    figures = meter.compute()
    flat = figures.to_dict()
    assert all(type(value) is float for value in flat.values())
    assert (flat["accepted_length"], flat["rollouts"]) == (figures.accepted_length, 2)
    assert [flat[f"conditional_{k}"] for k in (1, 2, 3)] == list(figures.conditional)
    assert [flat[f"slot_accuracy_{k}"] for k in (1, 2, 3)] == list(figures.slot_accuracy)
    assert {name: flat[f"error_{name}"] for name in figures.error} == figures.error
    assert len(flat) == 9 + 6 + 4
    assert repr(figures).startswith(f"AcceptanceFigures(accepted length {figures.accepted_length:.4g} +- ")
    assert len(repr(figures)) < 100
    meter.reset()
    assert meter.compute() == objectives.AcceptanceMeter(3).compute()
    assert repr(meter.compute()) == "AcceptanceFigures(0 rollouts, 0 tokens)"
    meter.update(scored(given))
    assert meter.compute() == figures
