"""What each objective takes by name, and what is said where it is given something else."""

import inspect

import pytest
import torch

from markov_spec import objectives
from markov_spec.objectives import OBJECTIVES
from tests.objectives import oracle

COMMON = ("starts", "mask", "mask_frame", "reduction", "temperature")


def arrays(given):
    return given.draft, given.target, given.tokens, given.lengths


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_options_are_what_is_taken_invariant(name):
    """Each option of the signature is taken at its default; any other is refused by the objective's name."""
    given, entry = oracle.batch(0, vocabulary=12), OBJECTIVES[name]
    parameters = inspect.signature(entry.function).parameters
    assert list(parameters)[:4] == ["draft_logits", "target_logits", "tokens", "lengths"]
    assert tuple(parameters)[4:] == entry.options and not any(
        one.kind == one.VAR_KEYWORD for one in parameters.values()
    )
    if name != "edr":
        assert entry.options[-5:] == COMMON == tuple(objectives.Common.__annotations__)
    plain = entry.function(*arrays(given)).loss
    same = entry.function(*arrays(given), **{option: parameters[option].default for option in entry.options}).loss
    assert same == plain
    every = {"stop_ids", "first_start", "form", "aux", "focal", *COMMON, *entry.options}
    for option in sorted(every - set(entry.options)):
        with pytest.raises(
            TypeError, match=rf"^{name}: {option}: unknown option.*; allowed: {', '.join(entry.options)}$"
        ):
            entry.function(*arrays(given), **{option: None})


def test_edr_says_why_it_has_no_mask_invariant():
    with pytest.raises(
        TypeError, match=r"edr: mask: unknown option \(a token that is not learned is decoded all the same"
    ):
        objectives.edr(*arrays(oracle.batch(0)), mask=torch.ones(3, 5), mask_frame="label")


def test_unknown_names_invariant():
    with pytest.raises(KeyError, match=r"objective: found 'cross_entropy'; allowed: edr, cross-entropy, dflash-decay"):
        OBJECTIVES["cross_entropy"]
    assert "cross_entropy" not in OBJECTIVES and OBJECTIVES.get("cross_entropy") is None


def test_logits_without_depths_invariant():
    given = oracle.batch(0)
    flat = given.draft[:, :, 0]
    axis = r"allowed: a tensor \(B, M, K, V\).*add the depth axis K = 1: draft_logits\[:, :, None\]"
    for name, entry in OBJECTIVES.items():
        for options in ({}, {"form": "rollout"}) if name == "edr" else ({},):
            with pytest.raises(ValueError, match=axis):
                entry.function(flat, *arrays(given)[1:], **options)
    with pytest.raises(ValueError, match=axis):
        objectives.score_cells(flat, *arrays(given)[1:])
    assert objectives.edr(flat[:, :, None], *arrays(given)[1:]).loss > 1


def test_masks_and_labels_invariant():
    """Labels are neither masks nor tokens; masks of any type say the same."""
    given = oracle.batch(0, rows=1, lengths=[5])
    kept = torch.tensor([[False, False, True, True, True]])
    labels = given.tokens.where(kept, -100)
    call = objectives.tv
    with pytest.raises(ValueError, match=r"mask: rollout 0, position 0: found -100; allowed: .*labels != -100"):
        call(*arrays(given), mask=labels, mask_frame="label")
    for wrong in (0.5, torch.nan, -1.0):
        with pytest.raises(
            ValueError, match=rf"mask: rollout 0, position 2: found {wrong}; allowed: booleans, or 0 and"
        ):
            objectives.supervised_starts(torch.tensor([[0, 1, wrong]]), "label")
    with pytest.raises(
        ValueError, match=r"tokens: .* found -100; allowed: token ids 0 to 5; true ids also where the mask"
    ):
        call(given.draft, given.target, labels, given.lengths, mask=kept, mask_frame="label")
    found = {
        call(*arrays(given), mask=kept.to(t), mask_frame="label").loss.item()
        for t in (torch.bool, torch.int64, torch.float32)
    }
    assert len(found) == 1


def test_stop_ids_are_a_sequence_invariant():
    given = oracle.batch(0)
    for stops, message in (
        (2, r"stop_ids: found 2; allowed: a sequence of token ids, \[2\] of one"),
        (torch.tensor([2]), r"stop_ids: found a tensor; allowed: a sequence of token ids, as its tolist\(\)"),
        ((6,), "stop_ids: found 6; allowed: token ids 0 to 5"),
    ):
        with pytest.raises(ValueError, match=message):
            objectives.edr(*arrays(given), stop_ids=stops)
        with pytest.raises(ValueError, match=message):
            objectives.score_cells(*arrays(given), stop_ids=stops)
