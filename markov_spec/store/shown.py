"""How a store reads: in a line, and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markov_spec.store.reader import Store

TOLD = ("target", "tokenizer", "sampling", "max_new_tokens", "parts")  # of the target's facts


def store_line(store: Store) -> str:
    """Give a store's path, sizes and drafters in a line."""
    facts, (first, _) = store._target.manifest, store._rows
    some = "" if store._span is None else f"{len(store)} from number {first} on of "
    return (
        f"Store({str(store.path)!r}, {some}{facts['rollouts']} rollouts, {facts['positions']} tokens, "
        f"drafters: {', '.join(store.drafters) or 'none'})"
    )


def store_html(store: Store) -> str:
    """Give what a store holds as HTML: the line, what is known of the target, and a row for each drafter."""
    facts = store.facts()
    target = (f"{name.replace('_', ' ')}: {_told(facts['target'][name])}" for name in TOLD if name in facts["target"])
    heads = ("drafter", "kind", "rule", "depth", "source", "parts")
    rows = ([name, *(own.get(key) for key in heads[1:])] for name, own in facts["drafters"].items())
    table = "".join(f"<tr>{''.join(f'<td>{escape(_told(cell))}</td>' for cell in row)}</tr>" for row in rows)
    head = "".join(f"<th>{name}</th>" for name in heads)
    return (
        f"<p>{escape(store_line(store))}</p><p>{escape('; '.join(target))}</p>"
        f'<table class="dataframe"><thead><tr>{head}</tr></thead><tbody>{table}</tbody></table>'
    )


def _told(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_told(entry)}" for key, entry in value.items())
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
