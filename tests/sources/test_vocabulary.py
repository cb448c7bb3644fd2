"""Drafters whose vocabulary is not the target's: mapped, padded, or refused."""

import copy
import json
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

import markov_spec as ms
from markov_spec.arrays import ABSENT
from markov_spec.sources import DraftVocabulary, record
from markov_spec.sources.drafters import parse_drafter
from markov_spec.sources.models import CausalLM, load_hf
from markov_spec.sources.reduce import Kept, drafter_columns
from markov_spec.sources.rows import Rows
from markov_spec.sources.sampling import Sampling
from markov_spec.sources.score import Scored
from markov_spec.sources.vocabulary import read_tensors
from tests.sources.test_recorded_scalars import check, expected, pair
from tests.sources.test_recorder import Hydra, each_rollout, plain_log_probs
from tests.tiny_model import WORDS

USED = [1, 2, 3, 4, 5, 9, 12, 20, 33]


def test_case_43_offsets_and_absolute_ids_against_closed_form():
    used = [1, 4, 5, 9]
    bits = np.isin(np.arange(10), used)
    assert DraftVocabulary.from_map([1, 3, 3, 6], "offsets", 10, t2d=bits).ids.tolist() == used
    assert DraftVocabulary.from_map(used, "absolute", 10, t2d=bits).ids.tolist() == used
    with pytest.warns(UserWarning, match="offsets 0, 1, ... give the ids 0, 2, ...; each is larger"):
        assert DraftVocabulary.from_map([0, 1, 2, 3], "offsets", 10).ids.tolist() == [0, 2, 4, 6]
    with pytest.raises(ValueError, match="column 3: found 9, as offsets the id 12; allowed: the target's ids, 0 to 9"):
        DraftVocabulary.from_map(used, "offsets", 10)
    with pytest.raises(ValueError, match="column 2: found absolute that give id 3 again"):
        DraftVocabulary.from_map([1, 3, 3, 6], "absolute", 10)
    for wrong, told in (
        (np.isin(np.arange(10), [1, 4, 5]), "id 9 is not set and in"),
        (bits | (np.arange(10) == 7), "id 7 is set and not in"),
    ):
        with pytest.raises(ValueError, match=f"t2d: {told} d2t; allowed: exactly the 4 ids"):
            DraftVocabulary.from_map(used, "absolute", 10, t2d=wrong)
    assert DraftVocabulary.from_map([0, 0, 0, 0], "offsets", 4).ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([1.0], "offsets", 10), r"allowed: \(D,\) integers"),
        (([], "offsets", 10), r"allowed: \(D,\) integers"),
        (([-1], "absolute", 10), "column 0: found -1"),
        (([1], "guess", 10), "form 'guess'; allowed: offsets, absolute"),
    ],
)
def test_bad_maps_are_refused_invariant(given, message):
    with pytest.raises(ValueError, match=message):
        DraftVocabulary.from_map(*given)


def cut(target_path, folder, form, *, order=None):
    """The target with the rows of its head for the used ids only, as a checkpoint with its map."""
    load_hf(str(target_path)).model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    ids = torch.tensor(USED if order is None else [USED[i] for i in order])
    tensors["lm_head.weight"] = tensors["lm_head.weight"][ids].contiguous()
    tensors["d2t"] = ids - torch.arange(len(ids)) if form == "offsets" else ids
    tensors["t2d"] = torch.isin(torch.arange(WORDS), ids)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def cut_path(target_path, tmp_path_factory):
    return cut(target_path, tmp_path_factory.mktemp("cut"), "offsets")


def by_hand(target, drafter_logits, prompt, tokens):
    """Target's and a drafter's distributions of the next token over all ids, float64."""
    sequence = torch.tensor([[*prompt, *tokens]])
    with torch.inference_mode():
        logits = target.model(sequence).logits[0, len(prompt) - 1 : -1].double()
    return torch.softmax(logits, -1).numpy(), torch.softmax(drafter_logits(logits), -1).numpy()


def used_only(logits):
    kept = torch.full_like(logits, -torch.inf)
    kept[:, USED] = logits[:, USED]
    return kept


def check_against(store, name, target, drafter_logits, lists=None):
    rollouts, drafts = store.rollouts(), store.drafter(name)
    spread = store.drafter_part(name, "divergence")
    for i, prompt in enumerate(rollouts.prompt_tokens):
        rows = slice(*rollouts.indptr[i : i + 2])
        tokens = rollouts.tokens[rows]
        p, q = by_hand(target, drafter_logits, prompt.tolist(), tokens.tolist())
        for t, token in enumerate(tokens):
            row = rows.start + t
            order = np.argsort(-q[t], kind="stable")
            with np.errstate(divide="ignore", invalid="ignore"):
                np.testing.assert_allclose(drafts.log_q[row], np.log(q[t, token]), atol=2e-5)
                wanted = order.tolist().index(token) + 1 if q[t, token] else ABSENT
                kl_pq, kl_qp = (np.where(a > 0, a * np.log(a / b), 0).sum() for a, b in ((p[t], q[t]), (q[t], p[t])))
                entropy = -np.where(q[t] > 0, q[t] * np.log(q[t]), 0).sum()
            assert drafts.rank[row] == wanted
            np.testing.assert_allclose(spread["overlap"][row], np.minimum(p[t], q[t]).sum(), atol=1e-6)
            np.testing.assert_allclose(spread["raw_kl_pq"][row], kl_pq, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(spread["raw_kl_qp"][row], kl_qp, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(spread["raw_entropy"][row], entropy, rtol=1e-5, atol=1e-6)
            if lists:
                found = store.drafter_part(name, "lists")["ids"][row].tolist()
                possible = [int(v) if q[t, v] else -1 for v in order[:lists]]
                assert found == possible + [-1] * (lists - len(possible))


@pytest.mark.parametrize(("form", "order"), [("offsets", None), ("absolute", [3, 0, 8, 1, 2, 5, 4, 7, 6])])
def test_mapped_head_against_reference(target, target_path, prompts_path, tmp_path, form, order):
    path = cut(target_path, tmp_path / "drafter", form, order=order)
    store = record(
        target, {"cut": f"hf:{path}?d2t={form}"}, prompts_path, tmp_path / "run", max_new_tokens=12, drafter_top=9,
        rollouts_per_prompt=3, scalars=True, progress=False,
    )  # fmt: skip
    check_against(store, "cut", target, used_only, lists=9)
    assert np.isinf(store.drafter("cut").log_q).any() and np.isfinite(store.drafter("cut").log_q).any()
    assert np.isinf(store.drafter_part("cut", "divergence")["raw_kl_pq"]).all()
    assert store.facts()["drafters"]["cut"]["vocabulary"] == {"map": form, "size": len(USED)}


def test_scalars_of_a_mapped_head_are_those_of_whole_rows_against_reference(target, cut_path, prompts_path, tmp_path):
    settings = {"temperature": 0.8, "top_k": 7}
    store = record(
        target, {"cut": f"hf:{cut_path}?d2t=offsets"}, prompts_path, tmp_path / "run", **settings, max_new_tokens=8,
        scalars=True, progress=False,
    )  # fmt: skip
    for rows, prompt, _ in each_rollout(store):
        tokens = store.rollouts().tokens[rows].tolist()
        for t, x in enumerate(tokens):
            row = plain_log_probs(target.model, prompt + tokens[:t])
            log_p, log_q = row.numpy(), torch.log_softmax(used_only(row[None]), -1)[0].numpy()
            p, q = pair(settings, log_p, log_q)
            with np.errstate(divide="ignore", invalid="ignore"):
                check(store, "cut", rows.start + t, expected(p, q, log_p, log_q, x))


def test_tokens_beyond_the_reach_of_float64_count_against_closed_form():
    """A token of log-probability -800 has p = 0 in float64, and is possible: a drafter without it has KL infinite."""
    all_of_it, without = (Rows(torch.tensor([[0.0, v]])) for v in (-800.0, -torch.inf))
    for p, q, infinite in ((all_of_it, without, "raw_kl_pq"), (without, all_of_it, "raw_kl_qp")):
        scored = Scored([7, 0], 1, p, p, [], [], 2)
        found = drafter_columns(Same(q.logits), scored, Kept(divergence=True), Sampling())["divergence"]
        assert {name: values.ravel().tolist() for name, values in found.items()} == {
            "raw_kl_pq": [0.0], "raw_kl_qp": [0.0], "raw_entropy": [0.0], "overlap": [1.0]
        } | {infinite: [np.inf]}  # fmt: skip


class Same:
    """A block drafter of one depth that says the same after every text."""

    depth, hidden_layers = 1, ()

    def __init__(self, row):
        self.row = row

    def log_probs(self, tokens, hidden, starts):
        return self.row.expand(*starts.shape, 1, self.row.shape[-1])


class Few:
    """A block drafter that speaks of few of the target's ids: through a map, or with -inf for all others."""

    depth, hidden_layers = 2, (-1,)

    def __init__(self, target, *, mapped, possible=9):
        self.whole, self.mapped, self.possible = Hydra(target), mapped, possible
        self.hidden_layers = self.whole.hidden_layers
        if mapped:
            self.vocabulary = DraftVocabulary.from_map(USED, "absolute", WORDS)

    def log_probs(self, tokens, hidden, starts):
        blocks = self.whole.log_probs(tokens, hidden, starts)[:, :, :2]
        some = blocks[..., USED].masked_fill(torch.arange(len(USED)) >= self.possible, -torch.inf).log_softmax(-1)
        if self.mapped:
            return some
        return torch.full_like(blocks, -torch.inf).index_copy(-1, torch.tensor(USED), some)


@pytest.mark.parametrize("possible", [len(USED), 4])
def test_mapped_block_drafter_is_that_of_all_ids_against_reference(target, prompts_path, tmp_path, possible):
    drafters = {name: Few(target, mapped=name == "mapped", possible=possible) for name in ("mapped", "whole")}
    store = record(
        target, drafters, prompts_path, tmp_path / "run", temperature=1.2, max_new_tokens=8, drafter_top=9,
        scalars=True, progress=False,
    )  # fmt: skip
    assert np.isfinite(store.drafter("mapped").log_q).any()
    for part in store.drafter_parts("mapped"):
        for column, values in store.drafter_part("mapped", part).items():
            np.testing.assert_array_equal(values, store.drafter_part("whole", part)[column], err_msg=f"{part} {column}")
    ids = store.drafter_part("mapped", "lists")["ids"]
    assert set(ids.ravel().tolist()) == {*USED[:possible], *[-1] * (possible < len(USED))}


def test_maps_in_side_files_and_behind_prefixes_against_closed_form(tmp_path):
    wanted = [1, 4, 5, 9]
    for number, write in enumerate(
        [
            lambda folder: torch.save({"d2t": torch.tensor([1, 3, 3, 6])}, folder / "vocab_mapping.pt"),
            lambda folder: save_file({"model.d2t": torch.tensor([1, 3, 3, 6])}, folder / "a.safetensors"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder)
        assert DraftVocabulary.from_checkpoint(folder, "offsets", 10).ids.tolist() == wanted
    with pytest.raises(ms.RequestError, match="found no tensor d2t"):
        DraftVocabulary.from_checkpoint(tmp_path, "offsets", 10)
    assert read_tensors(tmp_path, ("d2t",)) == {}


def resized(target, path, width, *, extra=0.0):
    """The target with a narrower or wider vocabulary; ``extra`` is the logit of columns that the target has not."""
    model = copy.deepcopy(target.model)
    model.resize_token_embeddings(width, mean_resizing=False)
    with torch.no_grad():
        model.lm_head.weight[WORDS:] = extra * model.lm_head.weight[3]
    model.eval().save_pretrained(path)
    target.tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def padded_target(target):
    """The target with 8 columns of padding behind the tokenizer's 40 ids, which it gives next to no chance."""
    model = copy.deepcopy(target.model)
    model.resize_token_embeddings(WORDS + 8, mean_resizing=False)
    with torch.no_grad():
        model.lm_head.weight[WORDS:] = 0
    return CausalLM("padded", model.eval(), target.tokenizer)


def test_case_47_narrower_drafter_is_that_padded_by_hand_against_reference(
    target_path, padded_target, prompts_path, tmp_path
):
    logits = {"narrow": f"hf:{target_path}?pad=8"}
    store = record(
        padded_target,
        logits,
        prompts_path,
        tmp_path / "run",
        max_new_tokens=8,
        scalars=True,
        drafter_top=4,
        progress=False,
    )

    def by_padding(rows):
        rows = rows.clone()
        rows[:, WORDS:] = -torch.inf
        return rows

    check_against(store, "narrow", padded_target, by_padding, lists=4)
    assert store.facts()["drafters"]["narrow"]["vocabulary"] == {"map": "identity", "size": WORDS}


def test_case_47_mass_beyond_the_tokenizer_is_only_rejected_against_reference(target, prompts_path, tmp_path):
    path = resized(target, tmp_path / "wide", WORDS + 6)
    with pytest.warns(UserWarning, match=r"drafter 'wide': up to 0\.\d+ of its probability lies on ids from 40 on"):
        store = record(
            target, {"wide": f"hf:{path}?pad=6"}, prompts_path, tmp_path / "run", max_new_tokens=10, scalars=True,
            rollouts_per_prompt=2, progress=False,
        )  # fmt: skip
    wide = load_hf(str(path))
    rollouts, spread, multi = (
        store.rollouts(),
        store.drafter_part("wide", "divergence"),
        store.drafter_part("wide", "multi"),
    )
    most = 0.0
    for i, prompt in enumerate(rollouts.prompt_tokens):
        rows = slice(*rollouts.indptr[i : i + 2])
        tokens = rollouts.tokens[rows]
        sequence = torch.tensor([[*prompt.tolist(), *tokens.tolist()]])
        with torch.inference_mode():
            p, q = (
                torch.softmax(m.model(sequence).logits[0, len(prompt) - 1 : -1].double(), -1) for m in (target, wide)
            )
        p = torch.nn.functional.pad(p, (0, 6)).numpy()
        most = max(most, float(q[:, WORDS:].sum(-1).max()))
        np.testing.assert_allclose(np.exp(store.drafter("wide").log_q[rows]), q[range(len(tokens)), tokens], rtol=1e-5)
        np.testing.assert_allclose(spread["overlap"][rows], np.minimum(p, q).sum(-1), atol=1e-6)
        assert np.isinf(spread["raw_kl_qp"][rows]).all()
        wanted = [ms.acceptance.scalars.recursive_scale(p[t], q[t].numpy(), 2) for t in range(len(tokens))]
        np.testing.assert_allclose(multi["c_2"][rows], wanted, rtol=1e-5)
    assert most > 0.01
    assert store.facts()["drafters"]["wide"]["mass_beyond_tokenizer"] == pytest.approx(most, rel=1e-4)


def test_case_44_sizes_that_differ_without_a_map_are_refused_invariant(target, prompts_path, tmp_path):
    path = resized(target, tmp_path / "small", 20)
    for spec in (f"hf:{path}", f"hf:{path}?pad=20"):
        with pytest.raises(
            ValueError, match=r"drafter 'd': found 20 token ids, 40 of the target, 40 of the tokenizer, no map"
        ):
            record(target, {"d": spec}, prompts_path, tmp_path / "run", progress=False)
    path = resized(target, tmp_path / "large", WORDS + 6)
    with pytest.raises(
        ValueError, match=r"found 46 token ids, 40 of the target.*declared padding of 5; allowed: equal sizes"
    ):
        record(target, {"d": f"hf:{path}?pad=5"}, prompts_path, tmp_path / "run", progress=False)
    few = Few(target, mapped=True)
    few.vocabulary = DraftVocabulary.from_map([WORDS + 5], "absolute", 99)
    with pytest.raises(ValueError, match="drafter 'd': found 1 columns, and a map of 1 to ids up to 45; allowed"):
        record(target, {"d": few}, prompts_path, tmp_path / "run", progress=False)


def test_case_44_drafter_that_cannot_read_the_target_is_refused_invariant(target, prompts_path, tmp_path):
    small = load_hf(str(resized(target, tmp_path / "small", 20)))
    own = CausalLM("small", small.model, target.tokenizer, DraftVocabulary.from_map(list(range(20)), "absolute", WORDS))
    with pytest.raises(ValueError, match="drafter 'd': found 20 ids that it can read; allowed: the tokenizer's 40"):
        record(target, {"d": own}, prompts_path, tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match="token ids: found 33; allowed: 0 to 19, which the model can read"):
        small.scores([3, 33, 4], 1, hidden=False)


def test_case_44_equal_sizes_are_the_identity_and_noted_invariant(target, target_path, prompts_path, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = record(
            target, {"d": f"hf:{target_path}", "h": Hydra(target)}, prompts_path, tmp_path / "run", max_new_tokens=3,
            progress=False,
        )  # fmt: skip
    facts = store.facts()["drafters"]
    assert facts["d"]["vocabulary"] == facts["h"]["vocabulary"] == {"map": "identity"}
    assert facts["d"]["dtype"] == store.metadata["dtype"] == "float64"
    assert facts["d"]["mass_beyond_tokenizer"] == 0


def test_ids_that_stand_for_other_texts_are_warned_of_invariant(target, target_path, prompts_path, tmp_path):
    content = json.loads((target_path / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    words["w7"], words["w8"] = words["w8"], words["w7"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    other = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    drafter = CausalLM("other", target.model, other)
    told = "drafter 'd': 2 of its 40 token ids stand for other texts than the target's, the first id 7: 'w8', .* 'w7'"
    with pytest.warns(UserWarning, match=told):
        record(target, {"d": drafter}, prompts_path, tmp_path / "run", max_new_tokens=2, progress=False)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hf:PATH?d2t=guess", "allowed: hf:PATH, hf:PATH\\?d2t=offsets|absolute, hf:PATH\\?pad=N"),
        ("hf:PATH?pad=-1", "allowed: hf:PATH, hf:PATH\\?d2t"),
        ("hf:PATH?speed=fast", "allowed: hf:PATH, hf:PATH\\?d2t"),
        ("hf:PATH", "found a map d2t; allowed: telling how it reads, \\?d2t=offsets or \\?d2t=absolute"),
        ("hf:WHOLE?d2t=offsets", "found none; allowed: lm_head.weight alone"),
        ("hf:SHORT", "weights of other sizes than the settings say: found lm_head.weight; allowed: none"),
        ("hf:BROKEN?d2t=offsets", "lacks 1 weights, among them model.layers.0.mlp.up_proj.weight"),
    ],
)
def test_bad_map_options_are_refused_invariant(target, target_path, cut_path, tmp_path, spec, message):
    tensors = load_file(cut_path / "model.safetensors")
    tensors.pop("model.layers.0.mlp.up_proj.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    short = tmp_path / "short"
    short.mkdir()
    save_file(
        {name: t for name, t in load_file(cut_path / "model.safetensors").items() if name not in ("d2t", "t2d")},
        short / "model.safetensors", metadata={"format": "pt"},
    )  # fmt: skip
    for folder in (tmp_path, short):
        (folder / "config.json").write_text((cut_path / "config.json").read_text())
    for word, path in (("PATH", cut_path), ("WHOLE", target_path), ("BROKEN", tmp_path), ("SHORT", short)):
        spec = spec.replace(word, str(path))
    with pytest.raises(ms.RequestError, match=message.replace("PATH", ".*")):
        parse_drafter(spec, target)
