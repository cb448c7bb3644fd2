"""A drafter of a part of the vocabulary: folded, against the same drafter with probability 0 of all other ids."""

import pytest
import torch

from markov_spec import objectives
from tests.objectives import oracle

IDS, SIZE, STOP = (1, 2, 4, 7, 11), 12, 4


def both(temperature=1.0):
    """The drafter's logits, a leaf; what is folded of them; and the same over all ids, -inf where there are none."""
    given = oracle.batch(0, rows=3, size=7, vocabulary=SIZE, lengths=[7, 4, 1])
    draft = given.draft[..., : len(IDS)].clone().requires_grad_()
    folded = objectives.fold_vocabulary(draft, given.target, given.tokens, torch.tensor(IDS), temperature=temperature)
    whole = torch.full((3, 7, 3, SIZE), -torch.inf, dtype=torch.float64)
    whole = whole.index_copy(-1, torch.tensor(IDS), draft)
    return draft, folded, (whole, given.target, given.tokens), given.lengths


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_against_closed_form(temperature):
    """Overlap, cost, probabilities and likeliest drafts are those over all ids; nothing changes at known tokens."""
    draft, folded, whole, lengths = both(temperature)
    found = objectives.score_cells(*folded, lengths, stop_ids=(IDS.index(STOP),))
    expected = objectives.score_cells(*whole, lengths, stop_ids=(STOP,), temperature=temperature)
    p, q = (torch.softmax(one / temperature, -1) for one in (whole[1], draft.detach()))
    for b, n in enumerate(lengths):
        for t in range(int(n)):
            overlap = torch.minimum(p[b, t, list(IDS)], q[b, t, 0]).sum()
            assert found.overlap[b, t, 0].item() == pytest.approx(overlap.item(), abs=1e-8)
    ordinary = torch.nn.functional.pad(1 - p[..., STOP], (0, 2)).unfold(1, 3, 1)  # what the cost divides by
    for name, scale in (("overlap", 1), ("cost", ordinary), ("hit", True)):
        torch.testing.assert_close(getattr(found, name) * scale, getattr(expected, name) * scale, rtol=0, atol=1e-8)
    known = torch.isin(whole[2], torch.tensor(IDS))
    torch.testing.assert_close(found.log_p[known], expected.log_p[known], rtol=1e-12, atol=1e-14)
    assert known.any() and not known.all()


@pytest.mark.parametrize("name", ["tv", "lk-alpha", "e2e-tv", "edr"])
def test_objectives_and_gradients_against_reference(name):
    draft, folded, whole, lengths = both()
    function = objectives.OBJECTIVES[name].function
    options = ({"stop_ids": (IDS.index(STOP),)}, {"stop_ids": (STOP,)}) if name == "edr" else ({}, {})
    results = [function(*one, lengths, **given) for one, given in zip((folded, whole), options, strict=True)]
    found, expected = results
    assert found.loss.item() == pytest.approx(expected.loss.item(), abs=1e-7)
    if name == "edr":
        torch.testing.assert_close(found.rounds, expected.rounds, rtol=0, atol=1e-6)
    slopes = [torch.autograd.grad(one.loss, draft, retain_graph=True)[0] for one in results]
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-6)


def test_divergence_against_closed_form():
    """Finite, and with the gradient of what the drafter knows."""
    draft, folded, whole, lengths = both()
    result = objectives.forward_kl(*folded, lengths)
    assert objectives.forward_kl(*whole, lengths).loss.isinf() and result.loss.isfinite()
    p, known = torch.softmax(whole[1], -1)[..., list(IDS)], torch.zeros((), dtype=torch.float64)
    for b, n in enumerate(lengths):
        for s in range(int(n)):
            for k in range(min(3, int(n) - s)):
                known = known - (p[b, s + k] * torch.log_softmax(draft[b, s, k], -1)).sum()
    found, expected = (torch.autograd.grad(one, draft)[0] for one in (result.loss, known / result.count.sum()))
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def test_columns_invariant():
    """Tokens as columns; all ids in another order leave nothing to the last one; half precision is widened."""
    given = oracle.batch(1, rows=1, size=4, lengths=[3])
    order = torch.tensor([5, 3, 0, 1, 2, 4])
    tokens = torch.tensor([[5, 0, 6, -100]])
    draft, target, columns = objectives.fold_vocabulary(given.draft.half(), given.target.half(), tokens, order)
    assert columns.tolist() == [[0, 2, -1, -1]] and draft.dtype == target.dtype == torch.float32
    assert (target[..., -1] == -torch.inf).all() and (draft[..., -1] == -20).all()
    _, _, columns = objectives.fold_vocabulary(given.draft[..., :2], given.target, tokens, order[:2])
    assert columns.tolist() == [[0, 2, -1, -1]]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([0, 0, 1]), "ids: found 0 twice; allowed: distinct ids; offsets are added first"),
        (torch.tensor([0, 6, 1]), "ids: found 6; allowed: token ids 0 to 5"),
        (torch.tensor([0, 1]), r"ids: found \(2,\); allowed: a tensor \(D,\) with D = 3"),
        ([0, 1, 2], "ids: found list; allowed"),
        (torch.tensor([0.0, 1, 2]), "ids: found dtype torch.float32; allowed: integers"),
    ],
)
def test_refusals_invariant(ids, message):
    given = oracle.batch(0)
    with pytest.raises(ValueError, match=message):
        objectives.fold_vocabulary(given.draft[..., :3], given.target, given.tokens, ids)
