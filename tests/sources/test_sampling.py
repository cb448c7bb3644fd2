import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from markov_spec.sources.sampling import Sampling, argmax, draw, log_probs, rank, top_list

rows = st.lists(st.sampled_from([-torch.inf, -2.0, 0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=9)


def by_hand(logits, temperature, top_k, top_p):
    """Distribution by sorting plain Python numbers."""
    if temperature == 0:
        best = max(range(len(logits)), key=lambda i: (logits[i], -i))
        return [float(i == best) for i in range(len(logits))]
    weights = [float(np.exp(v / temperature)) for v in logits]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    order = order[: top_k or None]
    total, reached, kept = sum(weights[i] for i in order), 0.0, []
    for i in order:
        if kept and reached >= top_p - 1e-12:
            break
        kept.append(i)
        reached += weights[i] / total
    mass = sum(weights[i] for i in kept)
    return [weights[i] / mass if i in kept else 0.0 for i in range(len(logits))]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 2, 4])
@pytest.mark.parametrize("top_p", [0.3, 0.55, 0.93, 1.0])
def test_log_probs_against_reference(temperature, top_k, top_p):
    logits = [1.0, -0.4, 1.0, 0.7, -3.0]
    found = log_probs(torch.tensor([logits]), Sampling(temperature, top_k, top_p)).double().exp()[0]
    np.testing.assert_allclose(found, by_hand(logits, temperature, top_k, top_p), atol=1e-6)


def test_case_51_greedy_against_closed_form():
    target, draft = torch.tensor([0.3, 0.5, 0.2]).log(), torch.tensor([0.45, 0.35, 0.2]).log()
    greedy = Sampling(temperature=0)
    assert log_probs(target, greedy).exp().tolist() == [0.0, 1.0, 0.0]
    assert log_probs(draft, greedy).exp().tolist() == [1.0, 0.0, 0.0]


def test_case_66_argmax_takes_the_first_of_equals_against_closed_form():
    assert int(argmax(torch.tensor([1.0, 3.0, 3.0, 2.0]))) == 1
    with pytest.raises(ValueError, match="NaN"):
        argmax(torch.tensor([torch.nan, 3.0, 3.0]))


def test_case_67_top_list_orders_by_value_then_id_against_closed_form():
    values = torch.tensor([[3.0, 2.0, 3.0, 2.0, 1.0, 1.0]])
    assert top_list(values, 2)[0].tolist() == [[0, 2]]
    assert top_list(values, 3)[0].tolist() == [[0, 2, 1]]


@given(rows, st.data())
def test_rank_and_top_list_agree_with_sorting_against_reference(row, data):
    values = torch.tensor([row])
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    token = data.draw(st.integers(0, len(row) - 1))
    assert int(rank(values, torch.tensor([token]))) == order.index(token) + 1
    count = data.draw(st.integers(1, len(row)))
    assert top_list(values, count)[0][0].tolist() == order[:count]


def test_draw_inverts_the_cumulative_distribution_against_closed_form():
    log_p = torch.tensor([[0.2, 0.0, 0.5, 0.3, 0.0]]).log().expand(5, 5)
    uniforms = torch.tensor([0.0, 0.19999, 0.2001, 0.7001, 1 - 2**-53], dtype=torch.float64)
    assert draw(log_p, uniforms).tolist() == [0, 0, 2, 3, 3]


def test_case_63_row_offsets_beyond_32_bits_against_closed_form():
    values = torch.zeros(1, 152064)
    values[0, 152063] = 2.0
    many = values.expand(14124, 152064)
    assert int(rank(many[14123:], torch.tensor([152063]))) == 1
    assert float(many.gather(-1, torch.full((14124, 1), 152063))[14123]) == 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"temperature": -1}, "temperature"), ({"top_k": -2}, "top_k"), ({"top_p": 0.0}, "top_p")],
)
def test_bad_settings_are_refused_invariant(settings, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)
