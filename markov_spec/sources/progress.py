"""Progress bars on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@contextmanager
def progress_bars(shown: bool, *columns: ProgressColumn) -> Iterator[Progress]:
    """Show bars of tasks, or none; by default with counts and times. An error takes unfinished bars away."""
    counts = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*(columns or counts + times), console=Console(stderr=True), disable=not shown) as bars:
        try:
            yield bars
        except BaseException:
            bars.live.transient = True
            raise
