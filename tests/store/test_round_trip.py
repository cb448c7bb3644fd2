from __future__ import annotations

import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import markov_spec as ms
from markov_spec.arrays import ABSENT
from tests.store.sample import IDS, K, N, arguments, build, past_end, same_bits, troubles

LOGS = st.one_of(st.sampled_from([0.0, -0.0, -1.0]), st.floats(-50, 0, width=32))
DRAFT_LOGS = st.one_of(LOGS, st.just(-np.inf))
TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)


def _array(draw: st.DrawFn, values: st.SearchStrategy, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    size = int(np.prod(shape))
    return np.array(draw(st.lists(values, min_size=size, max_size=size)), dtype=dtype).reshape(shape)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_ragged_round_trip_invariant(data: st.DataObject) -> None:
    draw = data.draw
    lengths = draw(st.lists(st.integers(0, 6), max_size=5))
    indptr = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    rows, count, depth = int(indptr[-1]), len(lengths), draw(st.integers(0, 8))
    ids = draw(st.lists(TEXT, min_size=count, max_size=count, unique=True))
    prompts = [_array(draw, st.integers(0, 2**31 - 1), (draw(st.integers(0, 3)),), np.int32) for _ in ids]
    tokens = _array(draw, st.integers(0, 2**31 - 1), (rows,), np.int32)
    log_p = _array(draw, LOGS, (rows,), np.float32)
    block = _array(draw, DRAFT_LOGS, (rows, depth), np.float32)
    auto = _array(draw, DRAFT_LOGS, (rows,), np.float32)
    rank = _array(draw, st.sampled_from([1, 7, ABSENT]), (rows, depth), np.int64)
    drafted = _array(draw, st.integers(0, depth), (rows,), np.int32)
    drafters = {
        "b": ms.Drafts("b", "block", "rejection", block, rank, drafted),
        "a": ms.Drafts("a", "autoregressive", "rejection", auto),
    }
    with tempfile.TemporaryDirectory() as folder:
        written = ms.write_store(
            Path(folder) / "s",
            rollout_ids=ids,
            prompt_ids=ids,
            tokens=tokens,
            indptr=indptr,
            log_p=log_p,
            prompt_tokens=prompts,
            drafters=drafters,
        )
        store = ms.open_store(written.path, verify=True)
        rollouts, b, a = store.rollouts(), store.drafter("b"), store.drafter("a")
        assert [f for f in troubles(written.path) if f.severity == "error"] == []
    assert rollouts.ids == tuple(ids) and len(store) == count
    assert same_bits(rollouts.indptr, indptr) and same_bits(rollouts.tokens, tokens)
    assert same_bits(rollouts.log_p, log_p)
    assert all(same_bits(x, y) for x, y in zip(rollouts.prompt_tokens, prompts, strict=True))
    outside = past_end(indptr, depth)
    assert same_bits(b.log_q[~outside], block[~outside]) and np.isnan(b.log_q[outside]).all()
    assert same_bits(b.rank, np.where(outside, ABSENT, rank).astype(np.int32)) and same_bits(b.drafted, drafted)
    assert same_bits(a.log_q, auto) and a.rank is None and a.drafted is None
    assert (b.kind, b.rule, b.depth, a.kind, a.rule) == ("block", "rejection", depth, "autoregressive", "rejection")
    assert b.ids == tuple(ids) and same_bits(b.indptr, indptr)


def test_every_part_round_trip_invariant(tmp_path: Path) -> None:
    given = arguments()
    build(tmp_path / "s")
    store = ms.open_store(tmp_path / "s")
    assert store.parts == ("divergence", "lists") and store.drafters == ("auto", "block")
    assert store.drafter_parts("auto") == ("law",)
    assert store.drafter_parts("block") == ("divergence", "law", "lists", "multi", "relaxed", "tree-rank")
    for name in store.parts:
        read = store.part(name)
        assert read.keys() == given["parts"][name].keys()
        for column, values in given["parts"][name].items():
            assert same_bits(read[column], values.astype(read[column].dtype))
    fills = {"ids": -1, "rank": ABSENT, "draft_rank": ABSENT}
    for name, columns in given["drafters"]["block"].parts.items():
        read = store.drafter_part("block", name)
        assert read.keys() == columns.keys()
        for column, values in columns.items():
            outside = past_end(given["indptr"], values.shape[1]) & (name != "lists")
            wanted = values.astype(read[column].dtype)
            wanted[outside] = fills.get(column, np.nan)
            assert same_bits(read[column], wanted), (name, column)
    rollouts = store.rollouts()
    assert rollouts.benchmarks == ("chat", "chat", "math", "math") and rollouts.turns == (0, 1, 0, 0)
    assert rollouts.finish_reasons == ("stop", "length", "stop", "stop") and rollouts.prompt_ids == ("p", "p", "q", "q")
    assert troubles(store.path) == []


def test_read_arrays_are_writable_and_typed_invariant(tmp_path: Path) -> None:
    store = build(tmp_path / "s")
    arrays = [store.rollouts().tokens, store.drafter("block").log_q, store.part("lists")["ids"]]
    assert [a.dtype for a in arrays] == [np.int32, np.float32, np.int32]
    assert all(a.flags.writeable and a.flags.c_contiguous for a in arrays)


def test_case_104_bfloat16_against_closed_form(tmp_path: Path) -> None:
    bits = np.array([0xBF80, 0x8000, 0xFF80], dtype=np.uint16)  # -1, -0, -inf
    values = [bits.view(ml_dtypes.bfloat16), torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)]
    for i, log_q in enumerate(values):
        store = ms.write_store(
            tmp_path / str(i),
            rollout_ids=["a"],
            prompt_ids=["p"],
            tokens=np.arange(3),
            indptr=[0, 3],
            log_p=torch.tensor([-1.0, -0.0, -1.0078125], dtype=torch.bfloat16),
            drafters={"d": ms.Drafts("d", "autoregressive", "rejection", log_q)},
        )
        read = store.drafter("d").log_q
        assert same_bits(read.astype(ml_dtypes.bfloat16).view(np.uint16), bits)
        assert same_bits(read, np.array([-1.0, -0.0, -np.inf], dtype=np.float32))
        assert store.rollouts().log_p.tolist() == [-1.0, 0.0, -1.0078125]
        assert store.metadata == store.drafter("d").metadata == {"dtype": "bfloat16"}


def test_case_104_types_of_16_bits_are_noted_invariant(tmp_path: Path) -> None:
    log_p = np.array([-1.0, -0.5, -0.25])
    halves = [(log_p.astype(np.float16), "float16"), (torch.tensor(log_p).half(), "float16")]
    for i, (own, dtype) in enumerate([*halves, (log_p, None), ([-1] * 3, None)]):
        rows = {"rollout_ids": ["a"], "prompt_ids": ["p"], "tokens": np.arange(3), "indptr": [0, 3], "log_p": own}
        drafts = ms.Drafts("d", "autoregressive", "rejection", own, metadata={"source": "x"})
        store = ms.write_store(tmp_path / str(i), **rows, drafters={"d": drafts})
        assert store.metadata.get("dtype") == store.drafter("d").metadata.get("dtype") == dtype
        assert store.drafter("d").metadata["source"] == "x"
        facts = {"dtype": "float32"}  # of weights: what the caller says stays
        drafts = ms.Drafts("d", "autoregressive", "rejection", own, metadata=facts)
        told = ms.write_store(tmp_path / f"{i}-told", **rows, drafters={"d": drafts}, metadata=facts)
        assert told.metadata == told.drafter("d").metadata == facts


def test_float64_is_rounded_to_float32_against_closed_form(tmp_path: Path) -> None:
    log_p = np.log(np.linspace(0.1, 0.9, N))
    auto = ms.Drafts("auto", "autoregressive", "rejection", np.where(np.arange(N) == 4, -1e39, log_p))
    store = build(tmp_path / "s", log_p=log_p, drafters={"auto": auto})
    assert same_bits(store.rollouts().log_p, log_p.astype(np.float32))
    assert store.drafter("auto").log_q[4] == -np.inf


def test_vocab_keeps_only_ids_that_occur_against_closed_form(tmp_path: Path) -> None:
    text = {0: "a", 1: "\n", 2: "ü", 7: "list", 8: "draft", 9: "never"}
    listed = {"ids": np.array([[7, -1]]), "log_p": np.array([[-1.0, -np.inf]])}
    drafted = {"ids": np.array([[8, 1]]), "log_q": np.array([[-1.0, -1.0]])}
    store = ms.write_store(
        tmp_path / "s",
        rollout_ids=["a"],
        prompt_ids=["p"],
        tokens=np.array([1]),
        indptr=[0, 1],
        log_p=np.zeros(1),
        prompt_tokens=[np.array([2, 55])],
        parts={"lists": listed},
        drafters={"d": ms.Drafts("d", "autoregressive", "match", np.zeros(1), parts={"lists": drafted})},
        vocab=text,
    )
    assert store.vocab() == {1: "\n", 2: "ü", 7: "list", 8: "draft"}
    assert build(tmp_path / "t", vocab=None).vocab() == {}


def test_metadata_round_trip_invariant(tmp_path: Path) -> None:
    metadata = {
        "target": "m",
        "vocab_size": 20,
        "stop_ids": [2, 3],
        "sampling": {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "order": ("top_k", "temperature")},
        "logprob_space": "processed",
        "own": {"é": [1, None, 1.5, True]},
    }
    store = build(tmp_path / "s", metadata=metadata)
    wanted = {**metadata, "sampling": {**metadata["sampling"], "order": ["top_k", "temperature"]}}
    assert ms.open_store(store.path).metadata == wanted
    store.metadata["sampling"]["top_k"] = 5
    assert store.metadata == wanted


def test_defaults_and_repr_against_closed_form(tmp_path: Path) -> None:
    store = ms.write_store(
        tmp_path / "s", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5]), indptr=[0, 1], log_p=np.zeros(1)
    )
    rollouts = store.rollouts()
    assert rollouts.benchmarks == ("all",) and rollouts.prompt_tokens[0].size == 0 and store.drafters == ()
    assert repr(store) == f"Store({str(tmp_path / 's')!r}, 1 rollouts, 1 tokens, drafters: none)"


def test_fingerprint_depends_on_ids_tokens_and_log_p_invariant(tmp_path: Path) -> None:
    given = arguments()
    other_p, other_tokens = given["log_p"].copy(), given["tokens"].copy()
    other_p[3], other_tokens[3] = -0.25, 19 - other_tokens[3]
    changes = [
        {"rollout_ids": ["a", "b", "empty", "e"]},
        {"indptr": np.array([0, 3, 4, 5, 9])},
        {"log_p": other_p},
        {"tokens": other_tokens},
    ]
    first = build(tmp_path / "first", drafters={}).fingerprint
    others = {build(tmp_path / str(i), drafters={}, **c).fingerprint for i, c in enumerate(changes)}
    assert len(others | {first}) == 5
    assert build(tmp_path / "again", drafters={}, benchmarks=None, metadata={}).fingerprint == first


@pytest.mark.parametrize("name", ["nope", "rollouts", "vocab"])
def test_absent_part_is_named_invariant(tmp_path: Path, name: str) -> None:
    store = build(tmp_path / "s")
    with pytest.raises(ValueError, match=rf"the target has no part '{name}'; found: divergence, lists; record it by"):
        store.part(name)
    with pytest.raises(ValueError, match=rf"drafter 'auto' has no part '{name}'; found: law; record it by Drafts"):
        store.drafter_part("auto", name)
    with pytest.raises(ValueError, match="found no drafter 'quant'; allowed: auto, block"):
        store.drafter("quant")


def test_sample_has_cells_past_the_ends_invariant() -> None:
    assert past_end(arguments()["indptr"], K).sum() == 3 and len(IDS) == 4


def test_facts_of_a_drafter_are_not_its_metadata_invariant(tmp_path: Path) -> None:
    own = {"kind": "tree", "rule": "x", "depth": 99, "parts": [], "source": "m"}
    drafts = ms.Drafts("d", "block", "rejection", np.zeros((N, K)), metadata=own)
    facts = build(tmp_path / "s", drafters={"d": drafts}).facts()["drafters"]["d"]
    assert facts == {"kind": "block", "rule": "rejection", "depth": K, "parts": ["law"], "source": "m"}
