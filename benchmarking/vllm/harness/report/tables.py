"""One table, three ways to show it: aligned text for a terminal, Markdown, and HTML. Cells are escaped here."""

import html
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

UNKNOWN = "-"


@dataclass(frozen=True)
class Table:
    """Rows of text under a title; columns that hold figures are aligned right."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def without_empty_columns(self) -> "Table":
        """The same table, less the columns in which nothing is known; the note names them."""
        empty = [i for i in range(len(self.header)) if all(row[i] == UNKNOWN for row in self.rows)]
        kept = [i for i in range(len(self.header)) if i not in empty]
        rows = [[row[i] for i in kept] for row in self.rows]
        named = f"Not recorded: {', '.join(self.header[i] for i in empty)}." if empty else ""
        return Table(self.title, [self.header[i] for i in kept], rows, f"{self.note} {named}".strip())

    def text(self) -> str:
        """A heading takes as many lines as keep its column as narrow as its words and cells allow."""
        columns = range(len(self.header))
        names = [name.replace(" %", "\N{NO-BREAK SPACE}%") for name in self.header]
        words = [max(map(len, name.split(" "))) for name in names]
        widths = [max([words[i], *(len(row[i]) for row in self.rows)]) for i in columns]
        heads = [textwrap.wrap(name, width) for name, width in zip(names, widths, strict=True)]
        height = max(map(len, heads))
        top = [[*[""] * (height - len(lines)), *lines] for lines in heads]
        head = [self._line([top[i][line] for i in columns], widths) for line in range(height)]
        rule = "  ".join("-" * width for width in widths)
        lines = [self._line(row, widths) for row in self.rows]
        return "\n".join([self.title, "", *head, rule, *lines, *([self.note] if self.note else [])])

    def markdown(self) -> str:
        rule = ["---:" if self._is_right(i) else "---" for i in range(len(self.header))]
        rows = [[markdown_text(cell) for cell in row] for row in (self.header, *self.rows)]
        lines = ["| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])]
        return "\n".join(
            [f"**{markdown_text(self.title)}**", "", *lines, *(["", markdown_text(self.note)] if self.note else [])]
        )

    def html(self) -> str:
        head = "".join(f"<th{self._class(i)}>{_breakable(name)}</th>" for i, name in enumerate(self.header))
        rows = "".join(f"<tr>{''.join(self._cell(i, cell) for i, cell in enumerate(row))}</tr>" for row in self.rows)
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        caption = f"<caption>{html.escape(self.title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{note}"

    def _cell(self, column: int, text: str) -> str:
        return f"<td{self._class(column)}>{html.escape(text)}</td>"

    def _class(self, column: int) -> str:
        return ' class="figure"' if self._is_right(column) else ""

    def _is_right(self, column: int) -> bool:
        cells = [row[column] for row in self.rows if row[column] not in ("", UNKNOWN)]
        return bool(cells) and all(re.match(r"[-+$]?[\d,.]+\*?( |$)", cell) for cell in cells)

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        cells = [
            cell.rjust(width) if self._is_right(i) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()


def _breakable(name: str) -> str:
    """A knob's name breaks between its words, not its letters."""
    return html.escape(name).replace("_", "_<wbr>")


def markdown_text(text: str) -> str:
    """Escapes what Markdown or HTML would take for markup; a cell is one line."""
    return re.sub(r"([\\`*_|\[\]#~])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def figure(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant ones, thousands separated; a dash where it is unknown."""
    if value is None:
        return UNKNOWN
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{decimals}f}"


def per_cent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.1f} %"
