"""Tables of texts: for a terminal of any width, in Markdown and in LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

GAP = 2
FOLDED = 12  # width of a long name where there is little room
MARKDOWN = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_[]<>|~#&"})
LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)


def plain(text: str) -> str:
    """Show what a terminal would act on, line breaks among it, by its escape sequence."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class Sheet:
    """Titles and rows of texts.

    Parameters
    ----------
    titles : sequence of str
    align : str
        l or r for each column, + for one to the right that belongs to the one before it, or f for a text that may be
        folded. The leading l say what a row is about: where a terminal is too narrow for all columns, these begin each
        part of the table, folded if need be, and the other columns are continued below.
    rows : sequence of sequence of str
        Shown as `plain` shows them.
    """

    def __init__(self, titles: Sequence[str], align: str, rows: Sequence[Sequence[str]]) -> None:
        self.titles, *self.rows = ([plain(cell) for cell in row] for row in (titles, *rows))
        self.align = align
        self.widths = [max(map(cell_len, column)) for column in zip(self.titles, *self.rows, strict=True)]
        self.keys = max(len(align) - len(align.lstrip("l")), 1)
        self.groups: list[list[int]] = []
        for i in range(self.keys, len(titles)):
            if align[i] == "+":
                self.groups[-1].append(i)
            else:
                self.groups.append([i])

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Ask for folded names and the widest group of columns at least, for all columns at most."""
        least = self._width([min(width, FOLDED) for width in self.widths[: self.keys]])
        return Measurement(least + GAP + self._widest(), self._width(self.widths))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Lay the columns out, in as many parts as the width needs."""
        for number, columns in enumerate(self._parts(options.max_width)):
            table = Table(box=None, pad_edge=False, header_style="bold")
            for i in range(self.keys):
                table.add_column(Text(self.titles[i]), overflow="fold")
            for i in columns:
                side: Literal["left", "right"] = "left" if self.align[i] in "lf" else "right"
                table.add_column(Text(self.titles[i]), justify=side, no_wrap=self.align[i] != "f", overflow="fold")
            for row in self.rows:
                table.add_row(*(Text(row[i]) for i in (*range(self.keys), *columns)))
            if number:
                yield ""
            yield table

    def _parts(self, width: int) -> list[list[int]]:
        names = min(self._width(self.widths[: self.keys]), width - GAP - self._widest())
        room = width - GAP - names
        parts: list[list[int]] = [[]]
        for group in self.groups:
            if self._width([min(self.widths[i], room) for i in (*parts[-1], *group)]) > room:
                parts.append([])
            parts[-1] += group
        return parts

    def _widest(self) -> int:
        least = [
            min(width, FOLDED) if side == "f" else width for width, side in zip(self.widths, self.align, strict=True)
        ]
        return max((self._width([least[i] for i in group]) for group in self.groups), default=0)

    @staticmethod
    def _width(widths: Sequence[int]) -> int:
        return sum(widths) + GAP * (len(widths) - 1)

    def markdown(self) -> str:
        """Give a table of Markdown, as GitHub reads it."""
        line = "|".join("---" if side in "lf" else "---:" for side in self.align)
        rows = (" | ".join(cell.translate(MARKDOWN) for cell in row) for row in (self.titles, *self.rows))
        first, *others = (f"| {row} |\n" for row in rows)
        return f"{first}|{line}|\n{''.join(others)}"

    def latex(self) -> str:
        """Give a tabular of LaTeX with the rules of booktabs."""
        first, *others = (
            " & ".join(cell.translate(LATEX) for cell in row) + " \\\\\n" for row in (self.titles, *self.rows)
        )
        sides = self.align.replace("+", "r").replace("f", "l")
        body = f"\\toprule\n{first}\\midrule\n{''.join(others)}\\bottomrule\n"
        return f"\\begin{{tabular}}{{{sides}}}\n{body}\\end{{tabular}}\n"
