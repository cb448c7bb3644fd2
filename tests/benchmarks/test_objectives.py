"""Speed of the EDR objective as a ratio to cross-entropy on the same logits; V = 32 000, T = 512, K = 8, float32.

``pytest tests/benchmarks/test_objectives.py -s`` prints the figures.
"""

import pytest
import torch

from markov_spec import objectives
from tests.benchmarks.test_engine import ratio, tell

VOCABULARY, TOKENS, DEPTH = 32_000, 512, 8


@pytest.fixture(scope="module")
def data():
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    draft = torch.randn(1, TOKENS, DEPTH, VOCABULARY, generator=rng).mul_(3).requires_grad_()
    target = torch.randn(1, TOKENS, VOCABULARY, generator=rng).mul_(3)
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS), generator=rng)
    return draft, target, tokens, torch.tensor([TOKENS])


def entropy(draft, target, tokens, lengths):
    at = (torch.arange(TOKENS)[:, None] + torch.arange(DEPTH)).clamp(max=TOKENS - 1)
    return torch.nn.functional.cross_entropy(draft.view(-1, VOCABULARY), tokens[0, at].view(-1))


def step(loss, data):
    data[0].grad = None
    loss(*data).backward()


def test_edr_speed_against_reference(data):
    for form, stops in (("cost", ()), ("cost", (2,)), ("rollout", ())):
        found = ratio(
            lambda form=form, stops=stops: step(
                lambda *arrays: objectives.edr(*arrays, form=form, stop_ids=stops).loss, data
            ),
            lambda: step(entropy, data),
            rounds=3,
        )
        tell(f"edr, {form} form, {len(stops)} stop tokens / torch's cross-entropy (at most 1.35)", found)
        assert found <= 1.35


def test_baselines_speed_against_reference(data):
    for name, entry in objectives.OBJECTIVES.items():
        if name != "edr":
            tell(f"{name} / torch's cross-entropy", ratio(
                lambda entry=entry: step(lambda *arrays: entry.function(*arrays).loss, data),
                lambda: step(entropy, data), rounds=2,
            ))  # fmt: skip


def test_meter_speed_against_reference(data):
    """What watching costs beside a pass over the logits that a validation makes anyway."""

    def watch():
        meter = objectives.AcceptanceMeter(DEPTH)
        with torch.no_grad():
            meter.update(objectives.score_cells(*data))

    def plain():
        with torch.no_grad():
            entropy(*data)

    tell("scores and meter / cross-entropy without a gradient", ratio(watch, plain, rounds=2))
