"""Rounds that transformers took, run by run, against what ``evaluate`` says of the very tokens that it gave."""

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.evaluation import plan
from markov_spec.sources.drafters import Lookup
from markov_spec.sources.sampling import Sampling
from tests import assisted

GREEDY, PLAIN = Sampling(temperature=0), Sampling()
LENGTHS = range(1, 6)
RUNS = 300 // len(LENGTHS)
CAP = 24


@pytest.fixture(scope="module")
def models(target):
    """A target, and an assistant about half of whose drafts are accepted."""
    return assisted.tiny_pair(target, noise=0.1)


def prompts(count, seed):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, 40, 5).tolist() for _ in range(count)]


def decode_all(target, drafter, count, *, sampling, depth):
    return [
        assisted.decode(
            target, drafter, prompt, draft_length=depth, max_new_tokens=CAP, sampling=sampling, seed=1000 * depth + i
        )
        for i, prompt in enumerate(prompts(count, seed=depth))
    ]


def check_draft_lengths(runs, depth):
    """Constant, but for the cap and drafted end tokens: no heuristic schedule, no confidence threshold."""
    for run in runs:
        for start, count, last in zip(run.starts, run.drafted, run.last, strict=True):
            wanted = min(depth, CAP - start - 1)
            assert count == wanted or (0 < count < wanted and last == 2)
    assert {run.finish for run in runs} == {"stop", "length"}


def check_every_round(store, contender, runs):
    """The rounds of each run are those of ``evaluate``, and begin where its law says."""
    found = ms.evaluate(store, contender)
    assert (found.rule, found.exactness) == ("match", "exact")
    np.testing.assert_array_equal(found.rounds, [len(run.starts) for run in runs])
    assert (found.variance == 0).all()
    law = plan(store, contender).law(0, len(runs))
    for run, begun in zip(runs, np.split(ms.solve(law).occupancy, law.indptr[1:-1]), strict=True):
        assert np.flatnonzero(begun).tolist() == run.starts
    return found


@pytest.mark.parametrize("depth", LENGTHS)
def test_greedy_rounds_of_an_assistant_against_peer(models, tmp_path, depth):
    target, assistant = models
    runs = decode_all(target, assistant, 16, sampling=GREEDY, depth=depth)
    check_draft_lengths(runs, depth)
    store = assisted.record_runs(tmp_path / "run", target, {"assistant": assistant}, runs, sampling=GREEDY)
    found = check_every_round(store, f"assistant:K={depth}", runs)
    assert (found.accepted_histogram.sum(0) > 0).all()


@pytest.mark.parametrize(("sampling", "count"), [(GREEDY, 16), (PLAIN, RUNS)], ids=["greedy", "sampled"])
def test_rounds_of_prompt_lookup_against_peer(models, tmp_path, sampling, count):
    """Given the tokens nothing is left to chance at any temperature: every single run agrees."""
    target, _ = models
    deepest = 0
    for depth in LENGTHS:
        lookup = Lookup(3, depth)
        runs = decode_all(target, lookup, count, sampling=sampling, depth=depth)
        assert {run.finish for run in runs} == {"stop", "length"}
        store = assisted.record_runs(tmp_path / f"run{depth}", target, {"lookup": lookup}, runs, sampling=sampling)
        drafted, indptr = store.drafter("lookup").drafted, store.rollouts().indptr
        for run, begin in zip(runs, indptr, strict=False):
            assert run.drafted == [0 if s == CAP - 1 else drafted[begin + s] for s in run.starts]
        found = check_every_round(store, "lookup", runs)
        deepest = max(deepest, *np.flatnonzero(found.accepted_histogram.sum(0)))
    assert deepest > 2


def deviation(store, contender, runs):
    """Rounds of the runs less those expected, summed, and the variance expected of this sum."""
    found = ms.evaluate(store, contender)
    apart = np.array([len(run.starts) for run in runs]) - found.rounds
    return np.array([apart.sum(), found.variance.sum(), (apart**2).sum()])


def test_sampled_rounds_of_an_assistant_against_peer(models, tmp_path):
    target, assistant = models
    told = {}
    for depth in LENGTHS:
        runs = decode_all(target, assistant, RUNS, sampling=PLAIN, depth=depth)
        check_draft_lengths(runs, depth)
        store = assisted.record_runs(tmp_path / f"run{depth}", target, {"a": assistant}, runs, sampling=PLAIN)
        assert store.metadata["scored_apart"] < 1e-5
        for rule, more in [("rejection", 0), ("rejection", 1), ("rejection", -1), ("block", 0), ("independent", 0)]:
            contender = ms.Contender("a", draft_length=depth + more, rule=rule)
            told.setdefault((rule, more), []).append(deviation(store, contender, runs))
    right = np.array(told.pop(("rejection", 0)))
    assert (np.abs(right[:, 0]) <= 3 * np.sqrt(right[:, 1])).all()
    apart, variance, squares = right.sum(0)
    assert abs(apart) <= 3 * np.sqrt(variance)
    assert 0.75 < squares / variance < 1.25
    for wrong in told.values():  # another rule or length would be seen
        apart, variance, _ = np.sum(wrong, axis=0)
        assert abs(apart) > 5 * np.sqrt(variance)


def test_case_64_temperature_of_the_assistant_against_peer(models, tmp_path):
    """The assistant's temperature is not the target's, T, but T squared.

    ``generate`` hands the target's warpers to that of the assistant, which merges them before it adds its own: both
    act, and release 5.24 draws drafts, and tests them, with each warper applied twice.
    """
    target, assistant = models
    sampling, depth = Sampling(0.7), 3
    runs = decode_all(target, assistant, 150, sampling=sampling, depth=depth)
    told = []
    for own in (0.7**2, 0.7):
        store = assisted.record_runs(
            tmp_path / f"run{own}", target, {"a": assistant}, runs, sampling=sampling, draft_temperature=own
        )
        assert store.metadata["scored_apart"] < 1e-5
        apart, variance, _ = deviation(store, f"a:K={depth}", runs)
        told.append(abs(apart) / np.sqrt(variance))
    assert told[0] <= 3 and told[1] > 5


@pytest.fixture(scope="module")
def perfect(models):
    """A target, a drafter that says the same, a prompt, and its greedy answer, whose first five tokens differ."""
    target, _ = models
    drafter = assisted.same(target)
    for prompt in prompts(50, seed=9):
        answer = assisted.decode(target, drafter, prompt, draft_length=4, max_new_tokens=12, sampling=GREEDY).tokens
        if len(answer) == 12 and len(set(answer[:5])) == 5:
            return target, drafter, prompt, answer
    raise LookupError("no prompt has such an answer")


def play(perfect, out, cap, stop=None):
    """Greedy rounds of four drafts that are all right, up to a cap or to the answer's token at ``stop``."""
    target, drafter, prompt, answer = perfect
    stop_ids = None if stop is None else [answer[stop]]
    run = assisted.decode(
        target, drafter, prompt, draft_length=4, max_new_tokens=cap, sampling=GREEDY, stop_ids=stop_ids
    )
    assert run.tokens == answer[: len(run.tokens)]
    store = assisted.record_runs(out, target, {"same": drafter}, [run], sampling=GREEDY)
    return run, ms.evaluate(store, "same:K=4")


@pytest.mark.parametrize("stop", range(5))
def test_case_03_end_token_in_any_slot_against_peer(perfect, tmp_path, stop):
    run, found = play(perfect, tmp_path / "run", 12, stop)
    assert (len(run.tokens), run.finish, len(run.starts)) == (stop + 1, "stop", 1)
    assert (found.committed[0], found.rounds[0]) == (stop + 1, 1)


def test_case_04_draft_of_an_end_token_against_peer(perfect, tmp_path):
    run, found = play(perfect, tmp_path / "run", 12, 0)
    assert (run.tokens, run.drafted) == (perfect[-1][:1], [1])
    assert (found.committed[0], found.rounds[0]) == (1, 1)
    assert found.accepted_histogram.tolist() == [[0, 1, 0, 0, 0]]


@pytest.mark.parametrize(("cap", "committed", "finish"), [(4, 2, "stop"), (1, 1, "length")])
def test_case_05_end_token_and_cap_in_one_round_against_peer(perfect, tmp_path, cap, committed, finish):
    run, found = play(perfect, tmp_path / "run", cap, 1)
    assert (len(run.tokens), run.finish, len(run.starts)) == (committed, finish, 1)
    assert (found.committed[0], found.rounds[0]) == (committed, 1)


@pytest.mark.parametrize("cap", range(1, 12))
def test_case_06_no_round_passes_the_cap_against_peer(perfect, tmp_path, cap):
    run, found = play(perfect, tmp_path / "run", cap)
    assert run.starts == list(range(0, cap, 5))
    assert (len(run.tokens), found.committed[0], found.rounds[0]) == (cap, cap, -(-cap // 5))


def test_case_68_where_streams_part_against_closed_form():
    stream, lead = list(range(40)), np.full(40, 2.0)
    other = [*stream[:30], 99, 98]
    for gap, kind in ((0.0, "tie"), (0.5, "divergence")):
        lead[30] = gap
        assert assisted.parting(stream, other, lead, tie=1e-3) == (30, kind)
    assert assisted.parting(stream, stream, lead, tie=1e-3) == (None, "same")
    assert assisted.parting(stream, stream[:20], lead, tie=1e-3) == (20, "divergence")
