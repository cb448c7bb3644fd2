"""Target models: load, thin or round them, tokenise prompts, and read logits and hidden states teacher-forced."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from markov_spec.arrays import RequestError

SAMPLE = 65_536


@dataclass(frozen=True, eq=False)
class CausalLM:
    """A causal language model with its tokenizer.

    Parameters
    ----------
    name : str
        The spec that it came from.
    model : transformers.PreTrainedModel
    tokenizer : transformers.PreTrainedTokenizerBase
    """

    name: str
    model: Any
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        """Where the model's input embeddings lie."""
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    @property
    def vocab_size(self) -> int:
        """Width of the logits, padding of the vocabulary included."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The token ids that end a rollout, from the generation settings and the tokenizer."""
        found: set[int] = set()
        for value in (self.model.generation_config.eos_token_id, self.tokenizer.eos_token_id):
            if value is not None:
                found.update(value if isinstance(value, list | tuple) else [value])
        return tuple(sorted(int(v) for v in found))

    def fingerprint(self) -> str:
        """SHA-256 over names, shapes, types and up to 65 536 evenly spaced values of every weight."""
        digest = hashlib.sha256()
        for name, weight in sorted(self.model.state_dict().items()):
            flat = weight.detach().reshape(-1)
            picked = flat[:: max(1, -(-flat.numel() // SAMPLE))].contiguous().cpu()
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
            digest.update(picked.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def tokenizer_fingerprint(self) -> str:
        """SHA-256 over the vocabulary and the chat template."""
        content = [sorted(self.tokenizer.get_vocab().items()), self.tokenizer.chat_template]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @torch.inference_mode()
    def scores(self, sequence: Sequence[int], first: int, *, hidden: bool) -> tuple[Tensor, Sequence[Tensor]]:
        """Read logits, and hidden states on request, of one sequence in one teacher-forced pass.

        Parameters
        ----------
        sequence : sequence of int, (L,)
        first : int
            Logits are given for the tokens at ``first..L-1``, hence read at ``first-1..L-2``.
        hidden : bool
            Whether to give the hidden states.

        Returns
        -------
        logits : Tensor, (L - first, V)
        hidden : sequence of Tensor, (L, H)
            The embeddings and each layer's output, the last after the final norm; row ``t`` is the state after reading
            ``sequence[: t+1]``. Empty unless asked for.
        """
        ids = torch.tensor([list(sequence)], device=self.device)
        keep = torch.arange(first - 1, len(sequence) - 1, device=self.device)
        out = self.model(input_ids=ids, use_cache=False, output_hidden_states=hidden, logits_to_keep=keep)
        return out.logits[0], [layer[0] for layer in out.hidden_states] if hidden else []


def load_hf(path: str) -> CausalLM:
    """Load a model folder in the layout of ``transformers``, or one GGUF file.

    Parameters
    ----------
    path : str

    Returns
    -------
    CausalLM
        In its own number type, on the first CUDA device if there is one.

    Raises
    ------
    RequestError
        If nothing is there.
    """
    where = Path(path)
    if not where.exists():
        raise RequestError(f"hf:{path}: no such folder or GGUF file; models are read from disk, nothing is downloaded")
    gguf = {"gguf_file": where.name} if where.suffix == ".gguf" else {}
    folder = where.parent if gguf else where
    tokenizer = AutoTokenizer.from_pretrained(folder, **gguf)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32" if gguf else "auto", **gguf)
    model.eval().requires_grad_(False).to("cuda" if torch.cuda.is_available() else "cpu")
    return CausalLM(f"hf:{path}", model, tokenizer)


def _share(target: CausalLM, name: str) -> CausalLM:
    shared: dict[int, Any] = {id(p): p for p in target.model.parameters()}
    return CausalLM(name, copy.deepcopy(target.model, shared), target.tokenizer)


def skip_layers(target: CausalLM, layers: Sequence[int]) -> CausalLM:
    """Give the target without some of its decoder layers; the weights are shared.

    Parameters
    ----------
    target : CausalLM
    layers : sequence of int
        Layers to leave out, counted from 0.

    Returns
    -------
    CausalLM

    Raises
    ------
    RequestError
        If a layer does not exist.
    """
    drafter = _share(target, "skip:" + ",".join(map(str, layers)))
    stack = drafter.model.base_model.layers
    for layer in layers:
        if not 0 <= layer < len(stack):
            raise RequestError(f"{drafter.name}: found layer {layer}; allowed: 0 to {len(stack) - 1}")
    kept = [block for i, block in enumerate(stack) if i not in set(layers)]
    for i, block in enumerate(kept):
        block.self_attn.layer_idx = i
    drafter.model.base_model.layers = nn.ModuleList(kept)
    drafter.model.config.num_hidden_layers = len(kept)
    return drafter


def round_weights(target: CausalLM, bits: int) -> CausalLM:
    """Give the target with the weights of its linear layers, the output head left out, rounded to ``bits`` bits.

    Parameters
    ----------
    target : CausalLM
    bits : int
        1 to 16. Each row keeps ``2**bits`` evenly spaced values from its smallest weight to its largest.

    Returns
    -------
    CausalLM

    Raises
    ------
    RequestError
        If ``bits`` is out of range.
    """
    if not 1 <= bits <= 16:
        raise RequestError(f"round:{bits}: found {bits} bits; allowed: 1 to 16")
    drafter = _share(target, f"round:{bits}")
    head = drafter.model.get_output_embeddings()
    for module in drafter.model.modules():
        if isinstance(module, nn.Linear) and module is not head:
            weight = module.weight.detach().float()
            low, high = weight.aminmax(dim=1, keepdim=True)
            step = ((high - low) / (2**bits - 1)).clamp_min(torch.finfo(torch.float32).tiny)
            rounded = ((weight - low) / step).round() * step + low
            module.weight = nn.Parameter(rounded.to(module.weight.dtype), requires_grad=False)
    return drafter


@dataclass(frozen=True)
class Prompt:
    """A prompt: its id, benchmark and token ids."""

    id: str
    benchmark: str
    tokens: tuple[int, ...]


def read_prompts(path: str | Path, tokenizer: Any) -> list[Prompt]:
    """Read prompts from JSON lines and tokenise them.

    Parameters
    ----------
    path : path
        One object a line with one of ``messages`` (a chat, rendered by the tokenizer's template), ``prompt`` (text) or
        ``prompt_tokens`` (ids); optional ``id`` (the line number by default) and ``benchmark`` (``"all"``).
    tokenizer : transformers.PreTrainedTokenizerBase

    Returns
    -------
    list of Prompt

    Raises
    ------
    ValueError
        Naming the file and line.
    """
    prompts: list[Prompt] = []
    lines: dict[str, int] = {}
    for number, row in _json_lines(Path(path)):
        where = f"{path}, line {number}"
        name, benchmark = str(row.get("id", number)), str(row.get("benchmark", "all"))
        for key, value in (("id", name), ("benchmark", benchmark)):
            if not value or not value.isprintable():
                raise ValueError(f"{where}: {key}: found {value!r}; allowed: a text of printable characters")
        prompt = Prompt(name, benchmark, _tokenise(row, tokenizer, where))
        if prompt.id in lines:
            raise ValueError(f"{where}: id {prompt.id!r} already stands at line {lines[prompt.id]}; ids are unique")
        lines[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise ValueError(f"{path}: found no prompt; allowed: one JSON object a line")
    return prompts


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: found {type(row).__name__}; allowed: a JSON object")
            yield number, row


def _tokenise(row: dict[str, Any], tokenizer: Any, where: str) -> tuple[int, ...]:
    given = [key for key in ("messages", "prompt", "prompt_tokens") if key in row]
    if len(given) != 1:
        raise ValueError(f"{where}: found {given or 'none'} of messages, prompt, prompt_tokens; allowed: exactly one")
    value = row[given[0]]
    if given == ["messages"]:
        if tokenizer.chat_template is None:
            raise ValueError(f"{where}: messages need a chat template and the tokenizer has none; give prompt instead")
        if not isinstance(value, list) or not all(
            isinstance(m, dict) and {"role", "content"} <= m.keys() for m in value
        ):
            raise ValueError(f"{where}: messages: found {value!r}; allowed: a list of objects with role and content")
        text = tokenizer.apply_chat_template(value, tokenize=False, add_generation_prompt=True)
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    elif given == ["prompt"]:
        if not isinstance(value, str):
            raise ValueError(f"{where}: prompt: found {value!r}; allowed: a text")
        tokens = tokenizer(value)["input_ids"]
    else:
        tokens = value
    if not isinstance(tokens, list) or not tokens or not all(_is_id(t, len(tokenizer)) for t in tokens):
        raise ValueError(f"{where}: a prompt is one or more token ids from 0 to {len(tokenizer) - 1}")
    return tuple(tokens)


def _is_id(value: Any, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count
