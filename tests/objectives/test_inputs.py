"""What is taken, and what is refused, and how a refusal reads."""

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import markov_spec as ms
from markov_spec import objectives
from markov_spec.objectives import OBJECTIVES
from tests.objectives import oracle

OWN = {"top-m-kl": {"m": 3}}


def arrays(given):
    return given.draft, given.target, given.tokens, given.lengths


def scored(given, **options):
    return objectives.score_cells(*arrays(given), **options)


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name != "top-m-kl"])
def test_forward_mode_and_second_derivatives_are_refused_invariant(name):
    given = oracle.batch(0)

    def loss(draft, target=given.target):
        return OBJECTIVES[name].function(draft, target, given.tokens, given.lengths).loss

    tangent = torch.ones_like(given.draft)
    refusal = "draft_logits: found a dual tensor of forward-mode differentiation; allowed: reverse mode"
    with pytest.raises(ValueError, match=refusal):
        torch.func.jvp(loss, (given.draft,), (tangent,))
    with forward_ad.dual_level(), pytest.raises(ValueError, match=refusal):
        loss(forward_ad.make_dual(given.draft, tangent))
    draft = given.draft.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(draft), draft, create_graph=True)
    with pytest.raises(RuntimeError, match=r"objective of .*: found a second derivative; allowed: first derivatives"):
        first.square().sum().backward()


def test_forward_mode_of_what_it_is_right_for_against_reference():
    given = oracle.batch(0)
    scores, way = scored(given), torch.ones(3, 5, 3, dtype=torch.float64).cumsum(2)

    def rounds(log_q):
        return objectives.edr(log_q, scores.log_p, None, given.lengths, form="rollout").loss

    def listed(draft):
        return objectives.top_m_kl(draft, *arrays(given)[1:], m=3).loss

    for function, at, along in ((rounds, scores.log_q, way), (listed, given.draft, given.draft.cos())):
        leaf = at.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(leaf), leaf)
        _, slope = torch.func.jvp(function, (at,), (along,))
        assert slope.item() == pytest.approx((gradient * along).sum().item(), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.uint16, torch.uint32, torch.int32, torch.uint64])
def test_narrow_integers_against_reference(dtype):
    """Lengths below the first start, in types that would wrap."""
    given = oracle.batch(1, lengths=[5, 1, 0])
    narrow = given.tokens.to(dtype), given.lengths.to(dtype)
    for form in ("cost", "rollout"):
        expected = objectives.edr(*arrays(given), form=form, first_start=2)
        found = objectives.edr(given.draft, given.target, *narrow, form=form, first_start=2)
        assert found.loss == expected.loss and found.count.tolist() == expected.count.tolist() == [3, 0, 0]
        assert found.accepted_length == expected.accepted_length
    assert objectives.tv(given.draft, given.target, *narrow).loss == objectives.tv(*arrays(given)).loss
    scores = scored(given)
    weights = ms.edr_weights(scores.log_p, scores.log_q, narrow[1], first_start=2)
    assert torch.equal(weights.log_q, ms.edr_weights(scores.log_p, scores.log_q, given.lengths, first_start=2).log_q)


def sample(count=2, **options):
    given = oracle.batch(2, rows=2, lengths=[5, 4])
    scores = scored(given)
    starts, weights, aux = objectives.sample_starts(
        scores.log_p, scores.log_q, given.lengths, count=count, rng=torch.Generator().manual_seed(3), **options
    )
    draft = given.draft[torch.arange(2)[:, None], starts.clamp(min=0)]
    return given, draft, {"starts": starts, "weights": weights, "aux": aux, "form": "rollout"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": torch.ones(2).double()}, r"weights: found \(2,\) of torch.float64; allowed: a tensor \(2, 2\)"),
        ({"weights": torch.ones(2, 1).double()}, r"weights: found \(2, 1\) of torch.float64; allowed"),
        ({"weights": torch.tensor(1.0).double()}, r"weights: found \(\) of torch.float64; allowed"),
        ({"weights": torch.ones(2, 2).long()}, r"weights: found \(2, 2\) of torch.int64; allowed"),
        ({"weights": [[1, 1], [1, 1]]}, "weights: found list; allowed"),
        ({"weights": torch.full((2, 2), 0.5).double()}, "weights: rollout 0, position 0: found 0.5; allowed: what"),
        ({"starts": torch.tensor([[4, 0], [1, 0]])}, "starts: rollout 0, position 0: found 4; allowed: what"),
        ({"starts": torch.tensor([0, 1])}, r"starts: found \(2,\); allowed"),
        ({"starts": [[0, 1], [0, 1]]}, "starts: found list; allowed"),
        ({"aux": sample(3)[2]["aux"]}, r"aux: found one for \(B, M, K\) = \(2, 3, 3\); allowed: \(2, 2, 3\)"),
        ({"aux": "all"}, "aux: found str; allowed: what sample_starts gave"),
        ({"aux": sample(first_start=1)[2]["aux"]}, "aux: found one for .* first_start 1; allowed"),
    ],
)
def test_foreign_samples_are_refused_invariant(change, message):
    given, draft, chosen = sample()
    objectives.edr(draft, *arrays(given)[1:], **chosen)
    with pytest.raises(ValueError, match=message):
        objectives.edr(draft, *arrays(given)[1:], **(chosen | change))


def test_meter_takes_every_start_in_order_invariant():
    given = oracle.batch(0)
    every = torch.arange(5).expand(3, 5)
    plain, same = objectives.AcceptanceMeter(3), objectives.AcceptanceMeter(3)
    plain.update(scored(given))
    same.update(scored(given, starts=every))
    assert torch.equal(plain.sums, same.sums)
    twice = every.clone()
    twice[1] = torch.tensor([0, 1, 1, 3, 4])
    for starts, row in ((every.flip(1), 0), (twice, 1)):
        found = scored(given, starts=starts)
        assert torch.equal(found.starts, starts)
        with pytest.raises(ValueError, match=rf"scores: rollout {row}: found starts \[.*\]; allowed: 0 to 4, in order"):
            plain.update(found)


def test_log_probabilities_are_checked_invariant():
    given = oracle.batch(0)
    scores, rng = scored(given), torch.Generator()
    for value in (0.5, torch.nan):
        bad = scores.log_q.clone()
        bad[1, 0, 1] = value
        message = rf"rollout 1, position 0, 1: found {value}; allowed: log-probabilities, at most 0"
        with pytest.raises(ValueError, match="log_q: " + message):
            ms.edr_weights(scores.log_p, bad, given.lengths)
        with pytest.raises(ValueError, match="log_q: " + message):
            objectives.sample_starts(scores.log_p, bad, given.lengths, count=1, rng=rng)
        with pytest.raises(ValueError, match="draft_logits: " + message):
            objectives.edr(bad, scores.log_p, None, given.lengths, form="rollout")
        cost = scores.cost.clone()
        cost[1, 0, 1] = -value
        with pytest.raises(ValueError, match=rf"cost: rollout 1, position 0, 1: found {-value}; allowed: a probab"):
            ms.edr_weights(scores.log_p, scores.log_q, given.lengths, cost=cost)
    past = scores.log_q.clone()
    past[1, 2, 1:] = torch.nan  # past the end
    ms.edr_weights(scores.log_p, past, given.lengths)
    ms.edr_weights(scores.log_p, scores.log_q.fill_(-torch.inf), given.lengths)


def test_options_without_a_meaning_are_refused_invariant():
    given = oracle.batch(0)
    scores = scored(given)
    for option, message in (
        ({"temperature": 0.5}, "temperature: found 0.5 with log-probabilities; allowed: with logits"),
        ({"stop_ids": (1,)}, r"stop_ids: found \(1,\) with log-probabilities; allowed: with logits"),
    ):
        with pytest.raises(ValueError, match=message):
            objectives.edr(scores.log_q, scores.log_p, None, given.lengths, form="rollout", **option)
    with pytest.raises(ValueError, match="mask_frame: found 'label' without a mask; allowed: with one"):
        objectives.tv(*arrays(given), mask_frame="label")


def test_stops_are_of_no_effect_in_the_rollout_form_invariant():
    given = oracle.batch(0)
    found = [objectives.edr(*arrays(given), form="rollout", stop_ids=stops).loss for stops in ((), (1, 2))]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_logits": None}, r"target_logits: found NoneType; allowed: a tensor \(B, T, V\)"),
        ({"draft_logits": [[0.0]]}, r"draft_logits: found list; allowed: a tensor \(B, M, K, V\), or \(B, M, K\) of"),
        ({"tokens": [[0]]}, "tokens: found list; allowed"),
        ({"lengths": [1, 2, 3]}, "lengths: found list; allowed"),
        ({"stop_ids": 2}, "stop_ids: found 2; allowed: a sequence of token ids"),
        ({"stop_ids": (True,)}, "stop_ids: found True; allowed: token ids 0 to 5"),
        ({"draft_logits": torch.zeros(3, 5, 3, 0)}, r"draft_logits: found shape \(3, 5, 3, 0\); allowed: .* V >= 1"),
        ({"lengths": torch.zeros(3, dtype=torch.int64, device="meta")}, "lengths: found on meta; allowed: cpu"),
        ({"target_logits": torch.zeros(3, 5, 6, device="meta")}, "target_logits: found on meta; allowed: cpu"),
        ({"first_start": True}, "first_start: found True; allowed: an integer >= 0"),
    ],
)  # fmt: skip
def test_messages_invariant(change, message):
    given = oracle.batch(0)
    named = dict(zip(("draft_logits", "target_logits", "tokens", "lengths"), arrays(given), strict=True))
    with pytest.raises(ValueError, match=message):
        objectives.edr(**(named | change))


def test_messages_of_others_invariant():
    given = oracle.batch(0)
    with pytest.raises(TypeError, match="focal: unknown option; allowed: starts, mask, mask_frame, reduction, temp"):
        objectives.tv(*arrays(given), focal=2)
    with pytest.raises(ValueError, match=r"mask: found list; allowed: \(3, 5\)"):
        objectives.tv(*arrays(given), mask=[[1] * 5] * 3, mask_frame="label")
    with pytest.raises(ValueError, match=r"draft_logits: found list; allowed: a tensor \(B, M, K, V\)"):
        objectives.top_m_kl([0], *arrays(given)[1:])
    with pytest.raises(ValueError, match="target_logits: found NoneType"):
        objectives.score_cells(given.draft, None, given.tokens, given.lengths)
    for mass, message in (
        (torch.ones(4), r"mass: found \(4,\); allowed: a tensor \(B, T\)"),
        (torch.tensor([[1, -0.5]]), "mass: rollout 0, position 1: found -0.5; allowed: finite, at least 0"),
        (torch.tensor([[torch.nan, 1]]), "mass: rollout 0, position 0: found nan"),
    ):
        with pytest.raises(ValueError, match=message):
            objectives.inclusion_probabilities(mass, 1)
    scores = scored(given)
    for rng in (None, 0):
        with pytest.raises(ValueError, match=f"rng: found {rng}; allowed: a torch.Generator"):
            ms.replay_starts(scores.log_p, scores.log_q, given.lengths, count=1, rng=rng)
    with pytest.raises(ValueError, match=r"cost: found on meta; allowed: cpu, that of log_p"):
        ms.edr_weights(scores.log_p, scores.log_q, given.lengths, cost=scores.cost.to("meta"))


def test_numpy_integers_are_integers_invariant():
    given = oracle.batch(0)
    one = np.int64(1)
    assert objectives.edr(*arrays(given), first_start=one).loss == objectives.edr(*arrays(given), first_start=1).loss
    assert objectives.top_m_kl(*arrays(given), m=one).loss == 0
    assert sample(first_start=one)[2]["aux"].first_start == 1
