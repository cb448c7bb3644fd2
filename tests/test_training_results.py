"""The committed figures of ``data/train_demo.py``, and what it makes of a drafter of a part of the vocabulary."""

from itertools import product
from pathlib import Path

import polars as pl
import pytest
import torch

from markov_spec import objectives

DATA = Path(__file__).parents[1] / "data"
SIZE, HIDDEN, IDS, STOP = 12, 6, (1, 2, 4, 7, 11), 2


@pytest.fixture(scope="module")
def demo():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DATA))
        import train_demo

        return train_demo


@pytest.fixture
def shared(demo):
    """Two rollouts of 5 and 3 tokens after prompts of 4 and 2, of a target of 12 ids; the drafter knows 5."""
    torch.manual_seed(0)
    embeddings = torch.randn(SIZE, HIDDEN).bfloat16().float()
    tokens = torch.tensor([0, 5, 4, 3, 1, 9, 7, 2, *(6, 4, 8, 1)])
    states = torch.randn(len(tokens), HIDDEN).bfloat16().half()
    log_z = (states.float() @ embeddings.T).logsumexp(-1)
    text = demo.Text(states, tokens.int(), log_z, torch.tensor([2, 0]), torch.tensor([0, 8, 12]))
    place = torch.full((SIZE,), len(IDS))
    place[list(IDS)] = torch.arange(len(IDS))
    parts = {"train": text, "held-out": text}
    prompts = {"held-out": [{"id": name, "benchmark": "chat"} for name in "ab"]}
    return demo.Demo(embeddings, embeddings[list(IDS)], place, int(place[STOP]), parts, prompts)


@pytest.fixture
def heads(demo):
    torch.manual_seed(1)
    return demo.BlockHeads(HIDDEN, demo.DEPTH, 5, 3, 4)


def whole(shared, draft):
    """The same batch over all twelve ids, 0 where the drafter knows none."""
    text = shared.texts["train"]
    full = torch.full((*draft.shape[:-1], SIZE), -torch.inf)
    full[..., list(IDS)] = draft[..., :-1]
    target, tokens = torch.zeros(2, 5, SIZE), torch.zeros(2, 5, dtype=torch.int64)
    for row, (first, last) in enumerate(((3, 8), (9, 12))):
        target[row, : last - first] = text.states[first:last].float() @ shared.embeddings.T
        tokens[row, : last - first] = text.tokens[first:last]
    return full, target, tokens, torch.tensor([5, 3])


@pytest.mark.parametrize("name", ["edr", "e2e-tv", "tv"])
def test_one_column_for_all_other_ids_against_closed_form(demo, shared, heads, name):
    draft, *others = demo.batch(heads, shared, [0, 1])
    assert draft.exp().sum(-1).sub(1).abs().max() < 1e-5
    given = draft.detach().requires_grad_()
    full, *known = whole(shared, given)
    (result,) = [demo.objective(name, shared, (given, *others))]
    options = {"stop_ids": (STOP,)} if name == "edr" else {}
    expected = objectives.OBJECTIVES[name].function(full, *known, **options)
    assert float(result.loss.detach()) == pytest.approx(float(expected.loss.detach()), rel=2e-2)
    slopes = [torch.autograd.grad(one.loss, given)[0][..., :-1] for one in (result, expected)]
    torch.testing.assert_close(*slopes, rtol=0.1, atol=5e-3)


def test_divergence_has_the_gradient_of_the_known_part_against_closed_form(demo, shared, heads):
    given = demo.batch(heads, shared, [0, 1])
    kl = demo.objective("forward-kl", shared, given).loss
    draft, target, _, lengths = given
    at = torch.arange(5)[:, None] + torch.arange(demo.DEPTH)
    valid = at < lengths[:, None, None]
    p = target.softmax(-1)[:, at.clamp(max=4), :-1]
    known = -(p * draft[..., :-1]).sum(-1)[valid].mean()
    slopes = [torch.autograd.grad(one, list(heads.parameters()), retain_graph=True) for one in (kl, known)]
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-4)


def test_evaluation_against_reference(demo, shared, heads):
    """The engine on arrays against the rounds that the objective tells of the same drafts."""
    frame = demo.evaluate(heads, shared, "held-out")
    told = demo.objective("edr", shared, demo.batch(heads, shared, [0, 1]))
    assert frame["tokens"].to_list() == [5, 3]
    assert frame["rounds"].to_list() == pytest.approx(told.rounds.tolist(), rel=1e-2)


def test_committed_results_hold_every_run_invariant():
    frame = pl.read_parquet(DATA / "training.parquet")
    arms = {"dflash-decay", "d-pace", "auf", "lk-lambda", "e2e-tv", "edr"}
    runs = frame.filter(pl.col("arm") != "start", pl.col("split") == "held-out")
    steps = runs["step"].unique().to_list()
    counts = runs.group_by("arm", "seed", "step").agg(pl.col("prompt").n_unique(), pl.len().alias("rows"))
    assert set(counts.select("arm", "seed", "step").rows()) == set(product(arms, range(3), steps))
    assert counts.select("prompt", "rows").unique().rows() == [(200, 200)]
    assert runs.group_by("arm").agg(pl.col("rate").n_unique())["rate"].to_list() == [1] * 6
    assert runs.select("prompt", "tokens").unique().height == 200
    assert (runs["rounds"] <= runs["tokens"] + 1e-9).all()
    assert (runs["rounds"] >= (runs["tokens"] / 9).ceil() - 1e-9).all()
    times = pl.read_csv(DATA / "training_times.csv")
    assert set(times["objective"]) == arms | {"cross-entropy"}
