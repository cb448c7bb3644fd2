"""The EDR objective: values, gradients, expectations, and what it ranks."""

import pytest
import torch

import markov_spec as ms
from markov_spec import objectives
from tests import oracles
from tests.objectives import oracle, worlds

FORMS = (("cost", "rejection"), ("rollout", "rejection"), ("rollout", "block"))


def call(given, draft, **options):
    return objectives.edr(
        draft, given.target, given.tokens, given.lengths, temperature=given.temperature, **options
    )  # fmt: skip


def from_acceptance(accept, cost, lengths, **options):
    """The recursions behind ``edr`` on given acceptances: two tokens, p of the realised one 1, q of it ``accept``."""
    log_p = torch.zeros(accept.shape[:2], dtype=torch.float64)
    return ms.edr_weights(log_p, accept.log(), torch.tensor(lengths), cost=cost, **options)


@pytest.mark.parametrize(("form", "rule"), FORMS)
@pytest.mark.parametrize("first_start", [0, 1])
def test_value_and_gradient_against_reference(form, rule, first_start):
    for seed, depth, temperature in ((0, 3, 1.0), (1, 9, 0.6), (2, 1, 2.0)):
        given = oracle.batch(seed, rows=4, depth=depth, temperature=temperature)
        for stops in ((), (1, 4)):
            draft = given.draft.clone().requires_grad_()
            result = call(given, draft, form=form, rule=rule, first_start=first_start, stop_ids=stops)
            expected = oracle.edr(given, draft, form=form, rule=rule, stops=stops, first_start=first_start)
            torch.testing.assert_close(result.per_rollout, torch.stack(expected), rtol=1e-12, atol=0)
            some = sum(int(n) > first_start for n in given.lengths)
            torch.testing.assert_close(result.loss, sum(expected) / some, rtol=1e-12, atol=0)
            found, wanted = (torch.autograd.grad(loss, draft)[0] for loss in (result.loss, sum(expected) / some))
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-13)
            exact = [one.item() for one in oracle.edr(given, draft, form="rollout", rule=rule, first_start=first_start)]
            assert result.rounds.tolist() == pytest.approx(exact, rel=1e-12)
            tokens = sum(max(int(n) - first_start, 0) for n in given.lengths)
            assert result.accepted_length.item() == pytest.approx(tokens / sum(exact), rel=1e-12)


@pytest.mark.parametrize(("form", "rule"), FORMS)
def test_gradient_of_differences_against_reference(form, rule):
    given = oracle.batch(6, rows=4, depth=4)
    draft = given.draft.clone().requires_grad_()
    found = torch.autograd.grad(call(given, draft, form=form, rule=rule, stop_ids=(2,)).loss, draft)[0]
    for seed in range(5):
        way = torch.randn(draft.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        step = 1e-5
        up, down = (
            call(given, given.draft + sign * step * way, form=form, rule=rule, stop_ids=(2,)).loss.item()
            for sign in (1, -1)
        )
        assert (found * way).sum().item() == pytest.approx((up - down) / (2 * step), rel=1e-6)


@pytest.mark.parametrize("kind", oracles.KINDS)
@pytest.mark.parametrize("stop", [None, 1])
@pytest.mark.parametrize("first_start", [0, 1])
def test_forms_against_enumeration(kind, stop, first_start):
    """Over all rollouts: cost form = rollout form = rounds of literal decoding; worlds with zeros and ties."""
    for seed in range(3):
        world, cap, depth = oracles.World(seed, 3, kind), 4, 2
        for rule in ("rejection", "block"):
            outcomes = oracles.decode(world, rule, (depth,) * cap, cap, first_start=first_start, stop=stop)
            outputs = list(outcomes)
            mass = torch.tensor([oracles.target_probability(world, output) for output in outputs], dtype=torch.float64)
            draft, target, tokens, lengths = worlds.as_batch(world, outputs, depth)
            for form in ("rollout", "cost") if rule == "rejection" else ("rollout",):
                result = objectives.edr(
                    draft, target, tokens, lengths, form=form, rule=rule, first_start=first_start,
                    stop_ids=() if stop is None else (stop,),
                )  # fmt: skip
                found = (mass * result.per_rollout).sum().item()
                assert found == pytest.approx(worlds.expected_rounds(outcomes), rel=1e-12), form


@pytest.mark.parametrize("stop", [None, 0])
@pytest.mark.parametrize(("form", "rule"), FORMS)
def test_expected_gradient_against_enumeration(form, rule, stop):
    """The mean gradient over rollouts is the slope of the rounds of literal decoding."""
    world = worlds.TensorWorld(3, 3, 4, 2)
    outcomes = world.enumerated(rule, 0, stop)
    outputs = list(outcomes)
    mass = torch.tensor([oracles.target_probability(world, output) for output in outputs], dtype=torch.float64)
    draft, target, tokens, lengths = worlds.as_batch(world, outputs, 2)
    draft.requires_grad_()
    result = objectives.edr(
        draft, target, tokens, lengths, form=form, rule=rule, stop_ids=() if stop is None else (stop,)
    )  # fmt: skip
    (mass * result.per_rollout).sum().backward()
    along = 0.0
    for b, output in enumerate(outputs):
        for s in range(len(output)):
            for k in range(1, min(2, len(output) - s) + 1):
                along += (draft.grad[b, s, k - 1] * world.rows["way", output[:s], k - 1]).sum().item()
    step, ends = 1e-5, []
    for sign in (1, -1):
        world.shift = sign * step
        ends.append(worlds.expected_rounds(world.enumerated(rule, 0, stop)))
    assert along == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)
    assert abs(along) > 1e-3


def test_sure_drafts_against_closed_form():
    """Constants of the source: 17 tokens and 7 drafts, 4 tokens and 2 drafts, a cost of .3 on the last token."""
    ones = torch.ones(1, 17, 7, dtype=torch.float64)
    found = from_acceptance(ones, torch.zeros_like(ones), [17])
    assert found.value.tolist() == [3.0] and found.rounds.tolist() == [3.0]
    assert found.occupancy[0].nonzero()[:, 0].tolist() == [0, 8, 16]
    ones = torch.ones(1, 4, 2, dtype=torch.float64)
    assert from_acceptance(ones, torch.zeros_like(ones), [4]).value.tolist() == [2.0]
    ones = torch.ones(1, 3, 2, dtype=torch.float64)
    cost = torch.zeros_like(ones)
    cost[0, 0, 1] = 0.3
    assert from_acceptance(ones, cost, [3]).value.tolist() == [1.3]


def test_one_token_against_closed_form():
    """A rollout of one token takes one round, whatever is drafted; one that the prefill ends takes none."""
    given = oracle.batch(0, rows=2, size=1, depth=4, lengths=[1, 1])
    for form, rule in FORMS:
        draft = given.draft.clone().requires_grad_()
        result = call(given, draft, form=form, rule=rule)
        result.loss.backward()
        assert result.loss.item() == 1 and result.accepted_length.item() == 1 and (draft.grad == 0).all()
        none = call(given, given.draft, form=form, rule=rule, first_start=1)
        assert none.loss.item() == 0 and bool(none.empty) and none.rounds.tolist() == [0, 0]
        assert none.accepted_length.isnan()


def test_reductions_against_closed_form():
    given = oracle.batch(0, lengths=[5, 3, 0])
    rounds = call(given, given.draft, form="rollout").rounds
    for reduction, below in (("paper", 2), ("rollout-mean", 2), ("token-mean", 8), ("sum", 1)):
        result = call(given, given.draft, form="rollout", reduction=reduction)
        assert result.loss.item() == pytest.approx(rounds.sum().item() / below)
    assert 1 / call(given, given.draft, form="rollout", reduction="token-mean").loss.item() == pytest.approx(
        result.accepted_length.item()
    )


def test_equal_models_against_closed_form():
    """A drafter equal to its target accepts all: the fewest rounds, and nothing left to learn."""
    given = oracle.batch(7, rows=1, size=7, depth=2, lengths=[7])
    at = (torch.arange(7)[:, None] + torch.arange(2)).clamp(max=6)
    for form, rule in FORMS:
        draft = given.target[:, at].clone().requires_grad_()
        result = call(given, draft, form=form, rule=rule)
        result.loss.backward()
        assert result.rounds.tolist() == [3.0] and result.loss.item() == pytest.approx(3.0)
        assert draft.grad.abs().max() < 1e-12


@pytest.mark.parametrize(("form", "rule"), FORMS)
def test_descent_leads_to_the_target_against_enumeration(form, rule):
    """A table of logits for each prefix, taught on all rollouts, ends where every draft is accepted."""
    world = worlds.TensorWorld(5, 3, 3, 2)
    outputs = list(world.enumerated("none", 0, None))
    mass = torch.tensor([oracles.target_probability(world, output) for output in outputs], dtype=torch.float64)
    _, target, tokens, lengths = worlds.as_batch(world, outputs, 2)
    keys = [output[: s + k] for output in outputs for s in range(3) for k in range(2)]
    index = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    rows = torch.tensor([index[key] for key in keys]).view(len(outputs), 3, 2)
    table = torch.randn(len(index), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table.requires_grad_()
    optimiser = torch.optim.Adam([table], lr=0.05)
    for _ in range(250):
        optimiser.zero_grad()
        result = objectives.edr(table[rows], target, tokens, lengths, form=form, rule=rule)
        (mass * result.per_rollout).sum().backward()
        optimiser.step()
    expected = (mass * result.rounds).sum().item()
    assert expected == pytest.approx(1, abs=0.03)


def test_cost_form_is_of_all_rollouts_against_closed_form():
    """On one rollout alone it can be less than the fewest rounds: here a rejection is promised that costs little."""
    target = torch.tensor([0.1, 0.9], dtype=torch.float64).log().expand(1, 3, 2)
    draft = torch.tensor([1e-12, 1.0], dtype=torch.float64).log().expand(1, 3, 1, 2)
    result = objectives.edr(draft, target, torch.tensor([[0, 0, 0]]), torch.tensor([3]))
    assert result.rounds.item() == pytest.approx(3)
    assert result.loss.item() == pytest.approx(1.2)  # c = .1 at both ordinary tokens


def test_log_probabilities_are_enough_for_the_rollout_form_invariant():
    given = oracle.batch(9)
    scores = objectives.score_cells(given.draft, given.target, given.tokens, given.lengths)
    for rule in ("rejection", "block"):
        log_q = scores.log_q.clone().requires_grad_()
        result = objectives.edr(log_q, scores.log_p, None, given.lengths, form="rollout", rule=rule)
        logits = given.draft.clone().requires_grad_()
        expected = call(given, logits, form="rollout", rule=rule)
        expected.loss.backward()
        result.loss.backward()
        assert result.loss.item() == pytest.approx(expected.loss.item(), rel=1e-14)
        weights = ms.edr_weights(scores.log_p, scores.log_q, given.lengths, rule=rule)
        torch.testing.assert_close(log_q.grad, weights.log_q / 2)
        own = given.draft.clone().requires_grad_()  # a loop that owns its loss
        read = objectives.cross_entropy(own, None, given.tokens, given.lengths, reduction="sum")
        assert read.loss.requires_grad
        rows = torch.arange(5)[:, None] + torch.arange(3)
        labels = given.tokens[:, rows.clamp(max=4)]
        entropy = -torch.log_softmax(own, -1).gather(-1, labels[..., None])[..., 0]
        (-weights.log_q * entropy).sum().div(2).backward()
        torch.testing.assert_close(own.grad, logits.grad, rtol=1e-10, atol=1e-14)


def test_edr_and_eal_rank_against_enumeration():
    """Two drafters of three tokens: EAL prefers one, decoding needs fewer rounds with the other, and EDR knows."""

    def world(rows):
        made = worlds.TensorWorld(0, 3, 3, 2)
        target = torch.tensor([0.5, 0.4, 0.1], dtype=torch.float64).log()
        for prefix in ((), *((a,) for a in range(3)), *((a, b) for a in range(3) for b in range(3))):
            made.rows["p", prefix] = target
            for depth in range(2):
                made.rows["q", prefix, depth] = torch.tensor(rows, dtype=torch.float64).log()
                made.rows["way", prefix, depth] = torch.zeros(3, dtype=torch.float64)
        return made

    figures = {}
    for name, rows in (("flat", [0.39, 0.4, 0.21]), ("peaked", [0.98, 0.01, 0.01])):
        made = world(rows)
        outcomes = made.enumerated("rejection", 0, None)
        outputs = list(outcomes)
        mass = torch.tensor([oracles.target_probability(made, output) for output in outputs], dtype=torch.float64)
        scores = objectives.score_cells(*worlds.as_batch(made, outputs, 2))
        result = objectives.edr(*worlds.as_batch(made, outputs, 2))
        eal = 0.0
        rates = []
        for k in range(2):
            hits = (mass[:, None] * scores.hit[..., k])[:, : 3 - k].sum() / (3 - k)
            rates.append(hits.item())
        eal = rates[0] + rates[0] * rates[1]
        edr = (mass * result.per_rollout).sum().item()
        assert edr == pytest.approx(worlds.expected_rounds(outcomes), rel=1e-12)
        figures[name] = edr, eal
    assert figures["flat"][0] < figures["peaked"][0]  # fewer rounds
    assert figures["flat"][1] < figures["peaked"][1]  # and the lower EAL


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "both"}, "form: found 'both'; allowed: cost, rollout"),
        ({"rule": "match"}, "rule: found 'match'; allowed: rejection, block"),
        ({"rule": "block"}, "form: found 'cost' for rule 'block'; allowed: 'rollout'"),
        ({"stop_ids": (6,)}, "stop_ids: found 6; allowed: token ids 0 to 5"),
        ({"first_start": -1}, "first_start: found -1"),
        ({"reduction": "batch-mean"}, "reduction: found 'batch-mean'; allowed: paper, rollout-mean, token-mean, sum"),
        (
            {"starts": torch.zeros(3, 5, dtype=torch.int64)},
            "found starts only; allowed: all of starts, weights and aux",
        ),
        ({"temperature": float("nan")}, "temperature: found nan"),
    ],
)
def test_refusals_invariant(options, message):
    given = oracle.batch(0)
    with pytest.raises(ValueError, match=message):
        objectives.edr(given.draft, given.target, given.tokens, given.lengths, **options)


def test_impossible_rollout_is_refused_invariant():
    given = oracle.batch(0)
    given.target[1, 2, given.tokens[1, 2]] = -torch.inf
    with pytest.raises(ValueError, match="target_logits: rollout 1, position 2: found -inf; allowed: finite"):
        call(given, given.draft)
    scores = objectives.score_cells(given.draft, given.target, given.tokens, given.lengths)
    with pytest.raises(
        ValueError, match=r"log_p: rollout 1, position 2: found -inf; .* as a filter \(top-k, top-p\) does"
    ):
        ms.edr_weights(scores.log_p, scores.log_q, given.lengths)
    with pytest.raises(ValueError, match="form: found 'cost' for log-probabilities"):
        objectives.edr(given.draft[..., 0], given.target[..., 0], None, given.lengths)


def test_epochs_over_fixed_rollouts_invariant():
    """The cost form learns a fixed batch to less than its exact rounds, the rollout form does not; both are shown."""
    given = oracle.batch(0, rows=4, size=8, vocabulary=4, lengths=[8, 8, 8, 6])
    gaps = {}
    for form in ("cost", "rollout"):
        draft = given.draft.clone().requires_grad_()
        optimizer = torch.optim.Adam([draft], lr=0.1)
        for _ in range(60):
            result = call(given, draft, form=form)
            optimizer.zero_grad()
            result.loss.backward()
            optimizer.step()
        gaps[form] = (result.rounds.mean() - result.loss).item()
        for reduction, below in (("rollout-mean", 4), ("token-mean", 30), ("sum", 1)):
            shown = repr(call(given, draft, form=form, reduction=reduction))
            loss, exact = shown.split(": ")[1].split(", accepted")[0].split(", exact rounds ")
            rounds = call(given, draft, form=form).rounds.sum().item()
            assert float(exact) == pytest.approx(rounds / below, rel=1e-5)
            assert float(loss) == pytest.approx(
                call(given, draft, form=form, reduction=reduction).loss.item(), rel=1e-5
            )
    assert gaps["rollout"] == pytest.approx(0, abs=1e-12) and gaps["cost"] > 0.2
