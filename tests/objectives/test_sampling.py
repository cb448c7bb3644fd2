"""Sampled starts: their chances, and that what they estimate is right on average."""

import pytest
import torch
from hypothesis import given as draws
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec import objectives
from tests.objectives import oracle

FORMS = (("cost", "rejection"), ("rollout", "rejection"), ("rollout", "block"))


def scored(given, **options):
    return objectives.score_cells(given.draft, given.target, given.tokens, given.lengths, **options)


def at_starts(draft, starts):
    rows = torch.arange(starts.shape[0])[:, None]
    return draft[rows, starts.clamp(min=0)]


def test_inclusion_against_closed_form():
    mass = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.125, 0, 0.125, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    found = objectives.inclusion_probabilities(mass, 2)
    assert found.tolist() == [[1, 0.5, 0.25, 0.25], [1, 0, 1, 0], [0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5]]


@draws(st.lists(st.one_of(st.sampled_from([0.0, 1e-12, 0.5, 1.0]), st.floats(0, 1)), min_size=1, max_size=12),
       st.integers(1, 14))  # fmt: skip
def test_inclusion_invariant(masses, count):
    """``min(1, lam m)`` of the right sum: all that is not certain is in one proportion to its mass."""
    mass = torch.tensor([masses], dtype=torch.float64)
    found = objectives.inclusion_probabilities(mass, count)[0]
    some = int((mass > 0).sum())
    assert ((found >= 0) & (found <= 1)).all() and ((found > 0) == (mass[0] > 0)).all()
    assert found.sum().item() == pytest.approx(min(count, some), rel=1e-9)
    if some > count:
        open_ = (found < 1 - 1e-12) & (mass[0] > 0)
        lam = (found / mass[0])[open_]
        assert lam.numel() == 0 or (lam / lam.max() - 1).abs().max() < 1e-9
        assert (found[~open_ & (mass[0] > 0)] / mass[0][~open_ & (mass[0] > 0)] <= lam.max() * (1 + 1e-9)).all()


def test_draws_against_simulation():
    """As many starts as promised, each as often as promised, rising, and weighted by one over its chance."""
    given = oracle.batch(0, rows=1, size=9, depth=2, vocabulary=3, lengths=[8])
    scores, many = scored(given), 20_000
    rng = torch.Generator().manual_seed(1)
    starts, weights, _ = objectives.sample_starts(
        scores.log_p.expand(many, -1), scores.log_q.expand(many, -1, -1), given.lengths.expand(many), count=3, rng=rng
    )
    assert (starts[:, 1:] > starts[:, :-1]).all() and (starts >= 0).all()
    occupancy = ms.edr_weights(scores.log_p, scores.log_q, given.lengths).occupancy
    chance = objectives.inclusion_probabilities(occupancy, 3)[0]
    often = torch.bincount(starts.flatten(), minlength=9) / many
    assert ((often - chance).abs() <= 4 * (chance * (1 - chance) / many).sqrt() + 1e-12).all()
    torch.testing.assert_close(weights, 1 / chance[starts])


def test_few_starts_are_all_taken_invariant():
    """More places than starts of positive occupancy: all of them, weight 1, then none."""
    log_p = torch.zeros(2, 5, dtype=torch.float64)
    log_q = torch.zeros(2, 5, 2, dtype=torch.float64)  # all accepted: rounds start at 0 and 3
    starts, weights, _ = objectives.sample_starts(
        log_p, log_q, torch.tensor([5, 0]), count=4, rng=torch.Generator().manual_seed(0)
    )
    assert starts.tolist() == [[0, 3, -1, -1], [-1, -1, -1, -1]]
    assert weights.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize(("form", "rule"), FORMS)
def test_all_starts_sampled_against_reference(form, rule):
    """With a place for each start the sampled objective is the full one; blocks of no start are not looked at."""
    given = oracle.batch(2, rows=3, size=6, depth=3, lengths=[6, 4, 1])
    scores = scored(given, stop_ids=(1,))
    starts, weights, aux = objectives.sample_starts(
        scores.log_p, scores.log_q, given.lengths, count=8, rng=torch.Generator().manual_seed(0),
        cost=scores.cost if form == "cost" else None, rule=rule, stop_ids=(1,),
    )  # fmt: skip
    full = given.draft.clone().requires_grad_()
    expected = objectives.edr(full, given.target, given.tokens, given.lengths, form=form, rule=rule, stop_ids=(1,))
    expected.loss.backward()
    part = at_starts(given.draft, starts)
    part[starts < 0] = torch.nan
    part.requires_grad_()
    result = objectives.edr(
        part, given.target, given.tokens, given.lengths, starts=starts, weights=weights, aux=aux, form=form, rule=rule,
        stop_ids=(1,),
    )  # fmt: skip
    result.loss.backward()
    torch.testing.assert_close(result.per_rollout, expected.per_rollout, rtol=1e-14, atol=0)
    torch.testing.assert_close(result.rounds, expected.rounds, rtol=1e-14, atol=0)
    gradient = torch.zeros_like(given.draft)
    for b in range(3):
        for m in range(8):
            if starts[b, m] >= 0:
                gradient[b, starts[b, m]] = part.grad[b, m]
            else:
                assert (part.grad[b, m] == 0).all()
    torch.testing.assert_close(gradient, full.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("form", "rule"), FORMS)
def test_sampled_gradient_is_unbiased_against_simulation(form, rule):
    """The mean of 20 000 sampled gradients is the full one, within four of its standard errors."""
    given = oracle.batch(3, rows=1, size=8, depth=2, vocabulary=3, lengths=[8])
    scores, many = scored(given), 20_000
    full = given.draft.clone().requires_grad_()
    expected = objectives.edr(full, given.target, given.tokens, given.lengths, form=form, rule=rule)
    expected.loss.backward()
    starts, weights, aux = objectives.sample_starts(
        scores.log_p.expand(many, -1), scores.log_q.expand(many, -1, -1), given.lengths.expand(many), count=3,
        rng=torch.Generator().manual_seed(4), cost=scores.cost.expand(many, -1, -1) if form == "cost" else None,
        rule=rule,
    )  # fmt: skip
    part = given.draft[0, starts].requires_grad_()
    result = objectives.edr(
        part, given.target.expand(many, -1, -1), given.tokens.expand(many, -1), given.lengths.expand(many),
        starts=starts, weights=weights, aux=aux, form=form, rule=rule, reduction="sum",
    )  # fmt: skip
    assert (result.per_rollout - expected.per_rollout).abs().max() < 1e-12
    result.loss.backward()
    sampled = torch.zeros(many, *given.draft.shape[1:], dtype=torch.float64)
    sampled.scatter_(1, starts[:, :, None, None].expand_as(part), part.grad)
    mean, error = sampled.mean(0), sampled.std(0) / many**0.5
    assert ((mean - full.grad[0]).abs() <= 4 * error + 1e-12).all()
    assert (error > 0).any()


def test_replay_against_closed_form():
    """Where rounds begin, and where drafts are rejected: o[s] and sum o[s] (S[s,k-1] - S[s,k]) by token."""
    accept = torch.tensor([[[0.5, 0.2], [0.8, 0.0], [1.0, 0.0]]], dtype=torch.float64)
    occupancy = [1.0, 0.5, 0.5 * 0.8 + 0.5 * 0.2]
    rejected = [0.5, 0.5 * 0.8 + 0.5 * 0.2, 0.5 * 0.8 * 1.0]
    many = 20_000
    for by, mass in (("occupancy", occupancy), ("rejection", rejected)):
        starts, weights = ms.replay_starts(
            torch.zeros(many, 3, dtype=torch.float64), accept.log().expand(many, -1, -1),
            torch.tensor([3]).expand(many), count=1, rng=torch.Generator().manual_seed(0), by=by,
        )  # fmt: skip
        chance = torch.tensor(mass, dtype=torch.float64) / sum(mass)
        often = torch.bincount(starts[:, 0], minlength=3) / many
        assert ((often - chance).abs() <= 4 * (chance * (1 - chance) / many).sqrt()).all()
        torch.testing.assert_close(weights[:, 0], 1 / chance[starts[:, 0]])


def test_replay_of_block_verification_against_reference():
    """Tokens are replayed whose drafts may be rejected: survivals written out by start and depth."""
    given = oracle.batch(5, rows=1, size=7, depth=2, lengths=[7])
    scores = scored(given)
    found = ms.edr_weights(scores.log_p, scores.log_q, given.lengths, rule="block")
    starts, weights = ms.replay_starts(
        scores.log_p, scores.log_q, given.lengths, count=9, rng=torch.Generator().manual_seed(0), rule="block"
    )
    assert (weights[starts >= 0] == 1).all()
    _, r, _ = oracle.acceptances(given, given.draft, 0)
    for t in range(7):
        mass = 0.0
        for s in range(7):
            ratios = [1.0]
            for k in range(1, min(2, 7 - s) + 1):
                ratios.append(ratios[-1] * float(r[s, k]))
                if s + k - 1 == t:
                    mass += float(found.occupancy[0, s]) * (min(ratios[:-1]) - min(ratios))
        assert (mass > 1e-14) == (t in starts[0].tolist())


def test_other_uses_are_refused_invariant():
    given = oracle.batch(2, rows=2, lengths=[5, 3])
    scores = scored(given)
    rng = torch.Generator().manual_seed(0)
    arrays = scores.log_p, scores.log_q, given.lengths
    starts, weights, aux = objectives.sample_starts(*arrays, count=2, rng=rng)
    with pytest.raises(
        ValueError, match="aux: found one for form 'rollout', rule 'rejection' and first_start 0; allowed"
    ):
        objectives.edr(
            at_starts(given.draft, starts), given.target, given.tokens, given.lengths, starts=starts, weights=weights,
            aux=aux,
        )  # fmt: skip
    for change, message in (
        ({"count": 0}, "count: found 0; allowed: an integer >= 1"),
        ({"cost": scores.cost[:, :2]}, r"cost: found shape \(2, 2, 3\); allowed: \(2, 5, 3\)"),
        ({"rule": "block", "cost": scores.cost}, "form: found 'cost' for rule 'block'"),
        ({"rule": "none"}, "rule: found 'none'; allowed: rejection, block"),
    ):
        with pytest.raises(ValueError, match=message):
            objectives.sample_starts(*arrays, **({"count": 2, "rng": rng} | change))
    with pytest.raises(ValueError, match="by: found 'loss'; allowed: occupancy, rejection"):
        ms.replay_starts(*arrays, count=1, rng=rng, by="loss")
    with pytest.raises(ValueError, match=r"log_q: found shape \(2, 4, 3\); allowed: \(2, 5\) and K"):
        ms.edr_weights(scores.log_p, scores.log_q[:, :4], given.lengths)


def in_parts(given, *parts, **options):
    for chosen in parts:
        starts = torch.tensor([chosen] * given.draft.shape[0])
        yield objectives.score_cells(
            at_starts(given.draft, starts), given.target, given.tokens, given.lengths, starts=starts, **options
        )


def test_chunks_of_starts_invariant():
    """Scores of some starts at a time, joined, are those of all: for the meter and for sampling, too."""
    given = oracle.batch(4, rows=2, size=6, depth=3, lengths=[6, 4])
    whole = scored(given, stop_ids=(2,), temperature=0.7)
    parts = list(in_parts(given, [0, 1, 2, 3], [4, 5], stop_ids=(2,), temperature=0.7))
    joined = objectives.CellScores.join(parts)
    for name in ("log_p", "log_q", "cost", "overlap", "hit", "lengths"):
        torch.testing.assert_close(getattr(joined, name), getattr(whole, name), rtol=0, atol=0)
    assert (joined.temperature, joined.stop_ids) == (whole.temperature, whole.stop_ids) == (0.7, (2,))
    assert joined.starts.tolist() == [list(range(6))] * 2
    meters = objectives.AcceptanceMeter(3), objectives.AcceptanceMeter(3)
    for meter, one in zip(meters, (whole, joined), strict=True):
        meter.update(one)
    assert torch.equal(meters[0].sums, meters[1].sums)


def test_parts_that_do_not_belong_together_invariant():
    given, other = oracle.batch(4, rows=2, lengths=[5, 4]), oracle.batch(5, rows=2, lengths=[5, 4])
    (first,), join = in_parts(given, [0, 1]), objectives.CellScores.join
    for parts, message in (
        ([], "parts: found none; allowed: one or more"),
        ([first, scored(given)], "parts: part 1: found no starts; allowed: what score_cells gave with starts"),
        ([first, *in_parts(given, [2], temperature=0.5)], r"parts: part 1: found temperature 0.5, stop_ids \(\); allo"),
        ([first, *in_parts(given, [2], stop_ids=[1])], r"parts: part 1: found temperature 1.0, stop_ids \(1,\); allo"),
        ([first, *in_parts(other, [2])], "parts: part 1: found other rollouts; allowed: those of part 0"),
        (
            [first, *in_parts(oracle.batch(4, rows=2, depth=2), [2])],
            r"found \(B, T, K\) = \(2, 5, 2\); allowed: \(2, 5",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            join(parts)


def test_samples_of_other_settings_are_refused_invariant():
    """A temperature, stop tokens or a form other than those of the scores."""
    given = oracle.batch(2, rows=2, lengths=[5, 3])
    scores = scored(given, stop_ids=(1,), temperature=0.5)

    def call(noted, **options):
        rng = torch.Generator().manual_seed(0)
        starts, weights, aux = objectives.sample_starts(
            scores.log_p, scores.log_q, given.lengths, count=2, rng=rng, **noted
        )
        assert aux.temperature == noted.get("temperature", 1) and aux.stop_ids == tuple(noted.get("stop_ids", ()))
        return objectives.edr(
            at_starts(given.draft, starts), given.target, given.tokens, given.lengths, starts=starts, weights=weights,
            aux=aux, **options,
        )  # fmt: skip

    settings = {"temperature": scores.temperature, "stop_ids": scores.stop_ids}
    right = {"cost": scores.cost, **settings}
    assert call(right, **settings).loss > 1
    for noted, options, message in (
        (
            right,
            {"stop_ids": (1,)},
            "aux: found one for temperature 0.5; allowed: 1.0, of this call; give temperature=",
        ),
        (
            right,
            {"temperature": 0.5},
            r"aux: found one for stop_ids \(1,\); allowed: \(\), of this call; give stop_ids=",
        ),
        (settings, settings, "form 'rollout', .*; give cost=scores.cost to sample_starts, or form='rollout' here"),
        (
            right,
            settings | {"form": "rollout"},
            "form 'cost', .*; leave cost out of sample_starts, or give form='cost'",
        ),
        ({"temperature": 0}, {}, "temperature: found 0; allowed: a number above 0"),
        ({"stop_ids": (-1,)}, {}, "stop_ids: found -1; allowed: token ids"),
    ):
        with pytest.raises(ValueError, match=message):
            call(noted, **options)
    # Stop tokens are of no effect in the rollout form.
    assert (
        call({"temperature": 0.5}, form="rollout", **settings).loss == call(settings, form="rollout", **settings).loss
    )
