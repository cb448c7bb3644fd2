"""A tiny target with random weights and a word tokenizer, saved in the layout of transformers."""

import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 40
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


@pytest.fixture(scope="session")
def target_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("target")
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=None, eos_token_id=2, pad_token_id=2,
        initializer_range=0.6,
    )  # fmt: skip
    LlamaForCausalLM(config).double().save_pretrained(path)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def target(target_path):
    from markov_spec.sources.models import load_hf

    return load_hf(str(target_path))


@pytest.fixture(scope="session")
def prompts_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [
        {"id": "a", "benchmark": "chat", "messages": [{"role": "user", "content": "w3 w4 w5 w3 w4 w5 w3"}]},
        {"id": "b", "benchmark": "code", "prompt": "w9 w8"},
        {"id": "c", "benchmark": "code", "prompt_tokens": [5, 6, 7, 5, 6]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path
