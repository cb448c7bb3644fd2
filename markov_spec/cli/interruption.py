"""What an interrupted command says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupted(Exception):
    """Ctrl-C, and what became of the work; ``main`` prints it and ends with 130."""


@contextmanager
def interruptible(told: Callable[[], str]) -> Iterator[None]:
    """Say what became of the work where Ctrl-C ends it."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(told()) from None
