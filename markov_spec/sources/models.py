"""Models: load, thin or round them, and read logits and hidden states teacher-forced."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from markov_spec.arrays import RequestError
from markov_spec.sources.prompts import known_ids
from markov_spec.sources.vocabulary import FORMS, IDENTITY, DraftVocabulary, read_tensors

SAMPLE = 65_536
HEAD = "lm_head.weight"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


@dataclass(frozen=True, eq=False)
class CausalLM:
    """A causal language model with its tokenizer.

    Parameters
    ----------
    name : str
        The spec that it came from.
    model : transformers.PreTrainedModel
    tokenizer : transformers.PreTrainedTokenizerBase
    vocabulary : DraftVocabulary
        Of a drafter: which of the target's ids its logits are of.
    """

    name: str
    model: Any
    tokenizer: Any
    vocabulary: DraftVocabulary = IDENTITY

    @property
    def device(self) -> torch.device:
        """Where the model's input embeddings lie."""
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    @property
    def dtype(self) -> str:
        """Number type of its weights, by name."""
        return str(self.model.dtype).removeprefix("torch.")

    @property
    def vocab_size(self) -> int:
        """Width of the logits, padding of the vocabulary included."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    @cached_property
    def known(self) -> int:
        """Number of ids that the tokenizer has: one more than the highest."""
        return known_ids(self.tokenizer)

    @property
    def readable(self) -> int:
        """Number of token ids that it can read."""
        return int(self.model.get_input_embeddings().weight.shape[0])

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

        Raises
        ------
        ValueError
            On a token that it cannot read, and on logits that are no numbers, naming the position.
        """
        if (largest := max(sequence)) >= self.readable:
            raise ValueError(f"token ids: found {largest}; allowed: 0 to {self.readable - 1}, which the model can read")
        ids = torch.tensor([list(sequence)], device=self.device)
        keep = torch.arange(first - 1, len(sequence) - 1, device=self.device)
        out = self.model(input_ids=ids, use_cache=False, output_hidden_states=hidden, logits_to_keep=keep)
        if (wrong := fault(out.logits[0])) is not None:
            raise ValueError(f"position {wrong[0]}: {wrong[1]}")
        return out.logits[0], [layer[0] for layer in out.hidden_states] if hidden else []


def fault(logits: Tensor) -> tuple[int, str] | None:
    """Find the first row of logits ``(n, V)`` that give no distribution; its number, and what is wrong with it."""
    largest = logits.amax(-1)
    bad = (~torch.isfinite(largest)).nonzero()
    if not len(bad):
        return None
    row = int(bad[0])
    return row, f"logits: found {float(largest[row])} as the largest; allowed: a number, with -inf below it"


def load_hf(path: str, *, target: CausalLM | None = None, d2t: str | None = None, pad: int = 0) -> CausalLM:
    """Load a model folder in the layout of ``transformers``, or one GGUF file.

    Parameters
    ----------
    path : str
    target : CausalLM, optional
        For a drafter: lends its tokenizer to a folder that has none.
    d2t : {"offsets", "absolute"}, optional
        For a drafter whose head is of a part of the target's vocabulary: how its tensor ``d2t`` reads.
    pad : int
        For a drafter: by how many columns of padding its vocabulary may differ from the target's.

    Returns
    -------
    CausalLM
        In its own number type, on the first CUDA device if there is one.

    Raises
    ------
    RequestError
        If nothing is there, weights are missing, or the checkpoint holds a map and ``d2t`` does not say how it reads.
    """
    where = Path(path)
    if not where.exists():
        raise RequestError(f"hf:{path}: no such folder or GGUF file; models are read from disk, nothing is downloaded")
    gguf = {"gguf_file": where.name} if where.suffix == ".gguf" else {}
    folder = where.parent if gguf else where
    if target is not None and not gguf and not any((folder / name).exists() for name in TOKENIZER_FILES):
        tokenizer = target.tokenizer
    else:
        tokenizer = AutoTokenizer.from_pretrained(folder, **gguf)
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype="float32" if gguf else "auto", output_loading_info=True, ignore_mismatched_sizes=True, **gguf
    )
    _check_weights(path, report, d2t)
    vocabulary = DraftVocabulary(pad=pad)
    if d2t is not None:
        vocabulary = DraftVocabulary.from_checkpoint(folder, d2t, model.get_input_embeddings().weight.shape[0])
        _cut_head(model, folder)
    model.eval().requires_grad_(False).to("cuda" if torch.cuda.is_available() else "cpu")
    return CausalLM(f"hf:{path}", model, tokenizer, vocabulary)


def _check_weights(path: str, report: Mapping[str, Any], d2t: str | None) -> None:
    """Refuse checkpoints that do not fill the model: what they lack would be random."""
    other_sizes = [name for name, *_ in report["mismatched_keys"]]
    if report["missing_keys"]:
        lacking = ", ".join(sorted(report["missing_keys"])[:3])
        raise RequestError(
            f"hf:{path}: the checkpoint lacks {len(report['missing_keys'])} weights, among them {lacking}; allowed: a "
            "whole model; a head that reads hidden states is a BlockDrafter (py:module:object)"
        )
    if d2t is None and any(key.rpartition(".")[2] == "d2t" for key in report["unexpected_keys"]):
        raise RequestError(f"hf:{path}: found a map d2t; allowed: telling how it reads, ?d2t={' or ?d2t='.join(FORMS)}")
    if other_sizes != ([] if d2t is None else [HEAD]):
        allowed = "none" if d2t is None else f"{HEAD} alone, a row for each entry of d2t"
        raise RequestError(
            f"hf:{path}: weights of other sizes than the settings say: found {', '.join(other_sizes) or 'none'}; "
            f"allowed: {allowed}"
        )


def _cut_head(model: Any, folder: Path) -> None:
    """Give a model the head of its checkpoint, which has fewer rows than its vocabulary has tokens."""
    weight = read_tensors(folder, (HEAD,))[HEAD]
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    head.weight = nn.Parameter(weight.to(model.dtype), requires_grad=False)
    model.set_output_embeddings(head)


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
