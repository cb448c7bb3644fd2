"""Masks in declared frames, reductions, and blocks that must not see each other: cases from the field."""

import math

import pytest
import torch

from markov_spec import objectives
from tests.objectives import oracle


def entropies(logits, tokens, mask, frame, **options):
    """Cross-entropy of drafts of one token from every start."""
    return objectives.cross_entropy(
        logits, None, tokens, torch.tensor([tokens.shape[1]] * tokens.shape[0]), mask=mask, mask_frame=frame, **options
    )


def test_case_73_mask_not_shifted_with_the_labels_against_closed_form():
    """Labels 3, 4, 5 are learned at rows 2, 3, 4: row 2 has a gradient, row 5 none."""
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 0]])
    by_row = torch.tensor([[0, 0, 1, 1, 1, 0, 0]])
    assert objectives.label_mask(by_row, "input", (1, 7)).int().tolist() == mask.tolist()
    tokens = torch.arange(7)[None]
    for given, frame in ((mask, "label"), (by_row, "input")):
        logits = torch.zeros(1, 7, 1, 7, requires_grad=True)  # block s drafts token s, its row is s - 1
        result = entropies(logits, tokens, given, frame)
        result.loss.backward()
        weighed = logits.grad.abs().sum((0, 2, 3)) > 0
        assert (weighed.nonzero()[:, 0] - 1).tolist() == [2, 3, 4]
        assert result.count.tolist() == [3]


def test_case_74_padding_label_at_the_end_against_closed_form():
    """Five rows, four labels: the last row has none, and a perfect drafter is right at all of them."""
    tokens = torch.tensor([[201, 202, 203, 204, 205]])
    mask = torch.ones(1, 5)
    logits = torch.zeros(1, 5, 1, 300)
    logits[0, torch.arange(5), 0, tokens[0]] = 50.0
    result = entropies(logits, tokens, mask, "input")
    assert result.count.tolist() == [4] and result.loss.item() == pytest.approx(0, abs=1e-6)
    wrong = entropies(torch.zeros(1, 5, 1, 300), tokens, mask, "input")
    assert wrong.loss.item() == pytest.approx(math.log(300)) and wrong.per_rollout.item() == pytest.approx(
        4 * math.log(300)
    )


def test_case_75_frames_are_declared_against_closed_form():
    """One mask said by label and by input gives one loss; said by neither, none."""
    given = oracle.batch(0, rows=1, depth=2)
    labels, inputs = torch.tensor([[0, 0, 1, 1, 1]]), torch.tensor([[0, 1, 1, 1, 0]])
    for name, entry in objectives.OBJECTIVES.items():
        if name == "edr":
            continue
        options = {"m": 3} if name == "top-m-kl" else {}
        by_label, by_input = (
            entry.function(given.draft, given.target, given.tokens, given.lengths, mask=m, mask_frame=f, **options)
            for m, f in ((labels, "label"), (inputs, "input"))
        )
        assert by_label.loss == by_input.loss and by_label.count.tolist() == [6]
        with pytest.raises(ValueError, match="mask_frame: found None with a mask; allowed: label, input"):
            entry.function(given.draft, given.target, given.tokens, given.lengths, mask=labels, **options)


def test_case_78_blocks_do_not_see_each_other_against_closed_form():
    """Blocks at 5 and 7 of four slots: the second sees tokens below 7 and itself, nothing of the first."""
    seen = objectives.block_visibility(torch.tensor([5, 7]), 4, 10)
    assert seen.shape == (8, 18)
    for block, start in ((0, 5), (1, 7)):
        for slot in range(4):
            row = seen[4 * block + slot]
            assert row[:10].nonzero()[:, 0].tolist() == list(range(start))
            assert row[10:].nonzero()[:, 0].tolist() == [4 * block + i for i in range(4)]
    # For statistics all blocks of a rollout are one observation, of which there is no spread.
    given = oracle.batch(0, rows=1, size=8, depth=4, lengths=[8])
    meter = objectives.AcceptanceMeter(4)
    meter.update(objectives.score_cells(given.draft, given.target, given.tokens, given.lengths))
    figures = meter.compute()
    assert figures.rollouts == 1 and figures.standard_error is None and figures.accepted_length > 1


def test_case_84_mean_over_the_mask_against_closed_form():
    """Losses 2, 2 of two tokens and 1, 1, 1, 1 of four: 8/6 by default, 1.5 and 1.0 by name."""
    q = torch.tensor([[math.exp(-2), math.exp(-2), 0.5, 0.5], [math.exp(-1)] * 4], dtype=torch.float64)
    logits = torch.stack([q, 1 - q], -1).log()[:, :, None]
    tokens, mask = torch.zeros(2, 4, dtype=torch.int64), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    for reduction, expected in (
        ("paper", 8 / 6), ("token-mean", 8 / 6), ("row-mean", 1.5), ("padded-mean", 1.0), ("batch-mean", 4.0),
        ("sum", 8.0),
    ):  # fmt: skip
        result = entropies(logits, tokens, mask, "label", reduction=reduction)
        assert result.loss.item() == pytest.approx(expected, rel=1e-12), reduction
        assert result.per_rollout.tolist() == pytest.approx([4, 4])
    assert entropies(logits, tokens, mask, "label").reduction == "token-mean"


def test_case_86_anchors_are_one_before_their_first_label_against_closed_form():
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    starts = objectives.supervised_starts(mask, "label")[0].nonzero()[:, 0]
    assert (starts - 1).tolist() == [1, 2, 3]
    by_input = torch.tensor([[0, 1, 1, 1, 0]])
    assert (
        objectives.supervised_starts(by_input, "input").tolist() == objectives.supervised_starts(mask, "label").tolist()
    )
    # A rollout's first token is drafted too, by the block that begins before any token.
    given = oracle.batch(0, rows=1, size=3, lengths=[3])
    draft = given.draft.clone().requires_grad_()
    objectives.edr(draft, given.target, given.tokens, given.lengths).loss.backward()
    assert draft.grad[0, 0, 0].abs().sum() > 0


def test_holes_are_no_op_in_products_against_closed_form():
    """A masked depth is a factor 1 in the products of the depths after it, and has no loss of its own."""
    q = torch.tensor([0.5, 0.1, 0.25], dtype=torch.float64)
    logits = torch.stack([q, 1 - q], -1).log().view(1, 1, 3, 2)
    arrays = logits, None, torch.zeros(1, 3, dtype=torch.int64), torch.tensor([3])
    options = {"starts": torch.tensor([[0]]), "mask": torch.tensor([[1, 0, 1]]), "mask_frame": "label"}
    assert objectives.chain(*arrays, **options).loss.item() == pytest.approx(-(0.5 + 0.125) / 2)
    lifted = 0.75, 0.75 * 0.625
    expected = -math.log(0.5) * sum(lifted) - math.log(0.25) * lifted[1]
    assert objectives.d_pace(*arrays, **options).loss.item() == pytest.approx(expected)


def test_visibility_of_several_rollouts_against_reference():
    """Row by row what one rollout has; a block of no start sees itself alone."""
    starts = torch.tensor([[5, 7], [0, -1]])
    seen = objectives.block_visibility(starts, 4, 10)
    assert seen.shape == (2, 8, 18)
    for row, own in zip(seen, starts, strict=True):
        assert torch.equal(row, objectives.block_visibility(own, 4, 10))
    assert seen[1, 4:].sum(1).tolist() == [4] * 4
    for wrong, found in (
        (torch.zeros(1, 1, 2).long(), r"\(1, 1, 2\) of torch.int64"), (torch.zeros(2), r"\(2,\) of torch.float32"),
        (torch.tensor(3), r"\(\) of"), ([1, 2], "list"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"starts: found {found}.*; allowed: a tensor of integers, \(M,\) or"):
            objectives.block_visibility(wrong, 4, 10)
