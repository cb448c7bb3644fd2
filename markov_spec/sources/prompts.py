"""Prompts: read from JSON lines, and tokenised once, by the target's tokenizer: drafters read the same ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
        ``prompt_tokens`` (ids); optional ``id`` (the line number by default) and ``benchmark`` (``"all"``). UTF-8; a
        byte order mark is skipped.
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
    known = known_ids(tokenizer)
    lines: dict[str, int] = {}
    for number, row in _json_lines(Path(path)):
        where = f"{path}, line {number}"
        name, benchmark = str(row.get("id", number)), str(row.get("benchmark", "all"))
        for key, value in (("id", name), ("benchmark", benchmark)):
            if not value or not value.isprintable():
                raise ValueError(f"{where}: {key}: found {value!r}; allowed: a text of printable characters")
        prompt = Prompt(name, benchmark, _tokenise(row, tokenizer, known, where))
        if prompt.id in lines:
            raise ValueError(f"{where}: id {prompt.id!r} already stands at line {lines[prompt.id]}; ids are unique")
        lines[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise ValueError(f"{path}: found no prompt; allowed: one JSON object a line")
    return prompts


def known_ids(tokenizer: Any) -> int:
    """One more than the highest id of a tokenizer; its length is less where ids are left out."""
    return 1 + max(int(token) for token in tokenizer.get_vocab().values())


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig") as lines:
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


def _tokenise(row: dict[str, Any], tokenizer: Any, known: int, where: str) -> tuple[int, ...]:
    given = [key for key in ("messages", "prompt", "prompt_tokens") if key in row]
    if len(given) != 1:
        raise ValueError(
            f"{where}: found {', '.join(given or row) or 'no field'}; allowed: exactly one of messages, prompt, "
            "prompt_tokens"
        )
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
    if not isinstance(tokens, list) or not tokens or not all(_is_id(t, known) for t in tokens):
        raise ValueError(f"{where}: a prompt is one or more token ids from 0 to {known - 1}")
    begin = tokenizer.bos_token_id
    if begin is not None and tokens[:2] == [begin, begin]:
        raise ValueError(
            f"{where}: {given[0]}: found the BOS id {begin} twice at the beginning; allowed: once at most: where the "
            "tokenizer or the chat template adds it, the text has none"
        )
    return tuple(tokens)


def _is_id(value: Any, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count
