"""Beams of autoregressive drafters against plain passes over every path."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.sources import record
from markov_spec.sources.beam import Candidates, _children, _Path, beams
from markov_spec.sources.drafters import parse_drafter
from markov_spec.sources.models import CausalLM
from markov_spec.sources.rows import Rows
from markov_spec.sources.vocabulary import DraftVocabulary
from tests.sources.test_draft_temperature import FIRST, constant
from tests.sources.test_recorder import Hydra, each_rollout, plain_log_probs

DEPTH, WIDTH = 3, 4
STOP = 2


def by_hand(model, context, depth, width):
    """Layers of (path, log q of its last token), by passes over the whole text of each path."""
    layers, held = [], [((), 0.0)]
    for _ in range(depth):
        found = []
        for path, value in held:
            if path and path[-1] == STOP:
                continue
            log_q = plain_log_probs(model, context + list(path)).double().numpy()
            found += [((*path, v), value + log_q[v], log_q[v]) for v in range(log_q.size)]
        found = sorted(found, key=lambda entry: -entry[1])[:width]
        layers.append([(path, own) for path, _, own in found])
        held = [(path, value) for path, value, _ in found]
    return layers


def paths(columns, start):
    """Layers of (path, log q) as the part holds them."""
    layers, held = [], []
    for k in range(columns["token"].shape[1]):
        entries = []
        for token, parent, log_q in zip(
            *(columns[name][start, k] for name in ("token", "parent", "log_q")), strict=True
        ):
            if token == -1:
                assert parent == -1 and log_q == -np.inf
                continue
            entries.append(((*(held[parent] if k else ()), int(token)), float(log_q)))
            assert (parent == -1) == (k == 0)
        held = [path for path, _ in entries]
        layers.append(entries)
    return layers


@pytest.mark.parametrize("every", [1, 4])
def test_beams_against_enumeration(target, prompts_path, tmp_path, every):
    drafters = {"round4": "round:4", "hydra": Hydra(target), "lookup": "ngram:2"}
    store = record(
        target, drafters, prompts_path, tmp_path / "run", max_new_tokens=7, seed=2, temperature=0.7,
        candidates=(DEPTH, WIDTH, every), progress=False,
    )  # fmt: skip
    assert store.drafter_parts("round4") == ("beam", "law")
    assert store.drafter_parts("hydra") == store.drafter_parts("lookup") == ("law",)
    assert not [f for f in ms.store.check_integrity(store.path) if f.severity == "error"]
    columns, model = store.drafter_part("round4", "beam"), parse_drafter("round:4", target).model
    stopped = 0
    for rows, prompt, _ in each_rollout(store):
        tokens = store.rollouts().tokens[rows].tolist()
        for s in range(len(tokens)):
            found = paths(columns, rows.start + s)
            if s % every:
                assert found == [[]] * DEPTH
                continue
            wanted = by_hand(model, prompt + tokens[:s], DEPTH, WIDTH)
            for k in range(DEPTH):
                assert [path for path, _ in found[k]] == [path for path, _ in wanted[k]]
                np.testing.assert_allclose([v for _, v in found[k]], [v for _, v in wanted[k]], atol=2e-5)
            stopped += any(path[-1] == STOP for layer in wanted[:-1] for path, _ in layer)
    assert stopped


def test_width_one_is_greedy_drafting_against_reference(target):
    model, context = target.model, [5, 6, 7]
    columns = beams(target, [*context, 8], 3, Candidates(4, 1), stop_ids=())
    told = []
    for _ in range(4):
        told.append(int(plain_log_probs(model, context + told).argmax()))
    assert columns["token"][0, :, 0].tolist() == told


def test_equal_products_go_by_ranks_against_closed_form(target):
    """q = .5, .25, .25 always: (0,1) and (1,0) have equal products, and the rank path decides, not the layer before."""
    model = constant(target, [np.log(2), 0, 0])
    a, b, c = range(FIRST, FIRST + 3)
    columns = beams(model, [7, 8], 1, Candidates(2, 7), stop_ids=())
    layers = paths(columns, 0)
    assert [path for path, log_q in layers[0] if log_q > -100] == [(a,), (b,), (c,)]  # all others are impossible
    assert [path for path, _ in layers[1]] == [(a, a), (a, b), (a, c), (b, a), (c, a), (b, b), (b, c)]
    np.testing.assert_allclose([v for _, v in layers[1]][:3], np.log([0.5, 0.25, 0.25]), atol=1e-6)


def test_equal_products_of_unequal_parents_go_by_ranks_against_closed_form():
    """(1,0) of 1/2 stands before (0,0) of 1/4; their children of 1/8 stand the other way round."""
    half = float(np.float32(np.log(2)))
    parents = [(_Path(half, (1, 0), 0, 5, 0.0), 0), (_Path(2 * half, (0, 0), 0, 6, 0.0), 1)]
    rows = Rows(torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log())
    found = _children(parents, rows, 4)
    assert [(path.parent, path.token, path.ranks) for path in found] == [
        (0, 0, (1, 0, 0)), (1, 0, (0, 0, 0)), (1, 1, (0, 0, 1)), (0, 1, (1, 0, 1))
    ]  # fmt: skip
    assert found[1].value == found[2].value == found[3].value


def test_beam_of_a_part_of_the_vocabulary_against_reference(target):
    used = [2, 3, 9, 12]
    model = copy.deepcopy(target.model)
    head = torch.nn.Linear(model.lm_head.in_features, len(used), bias=False, dtype=torch.float64)
    head.weight = torch.nn.Parameter(model.lm_head.weight[used].clone(), requires_grad=False)
    model.set_output_embeddings(head)
    drafter = CausalLM("cut", model, target.tokenizer, DraftVocabulary.from_map(used, "absolute", 40))
    columns = beams(drafter, [5, 6, 7], 2, Candidates(2, 6), stop_ids=(STOP,))
    whole = replace(target, model=copy.deepcopy(target.model))
    layers = paths(columns, 0)
    assert {path[0] for path, _ in layers[0]} == set(used) and len(layers[0]) == len(used)
    first = plain_log_probs(whole.model, [5, 6])[used].log_softmax(-1)
    assert [v for _, v in layers[0]] == pytest.approx(sorted(first.tolist(), reverse=True), abs=1e-5)
    assert len(layers[1]) == 6 and all(path[0] != STOP and path[1] in used for path, _ in layers[1])


@pytest.mark.parametrize("given", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1.5, 1, 1)])
def test_bad_candidates_are_refused_invariant(given, prompts_path, tmp_path):
    with pytest.raises(ms.RequestError, match=r"candidates: \w+: found .*; allowed: an integer, 1 or more"):
        record("hf:/nowhere", {}, prompts_path, tmp_path / "run", candidates=given)


def test_command_line_records_beams_invariant(target_path, prompts_path, tmp_path, capsys):
    words = ["record", "--target", f"hf:{target_path}", "--drafter", "d=round:4", "--prompts", str(prompts_path)]
    words += ["--out", str(tmp_path / "run"), "--max-new-tokens", "3"]
    assert main([*words, "--candidates", "2,3"]) == 2
    assert "DEPTH,WIDTH,EVERY" in capsys.readouterr().err
    assert main([*words, "--candidates", "2,3,2"]) == 0
    assert ms.open_store(tmp_path / "run").drafter_part("d", "beam")["token"].shape[1:] == (2, 3)
