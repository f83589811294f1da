"""Self-contained HTML pages for reports, without scripts or external resources.

Each function returns one element of a page, with all text escaped; :func:`page` assembles them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

_STYLE = (
    "body{font:15px/1.4 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:1px 6px;vertical-align:top}"
    "th{text-align:left}.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".bars{width:100%}.bars td:nth-child(1){width:40%}"
    ".bars td:nth-child(2){text-align:right;width:8em}"
    ".bar{background:#4a7ebb;height:.8em}img{max-width:100%}"
    ".text{white-space:pre-wrap;overflow-wrap:anywhere}"
)
_FRAGMENT_STYLE = (
    ".bothways table{border-collapse:collapse;margin:.2em 0}"
    ".bothways td,.bothways th{padding:1px 8px;text-align:left;vertical-align:top}"
    ".bothways .n{text-align:right;font-variant-numeric:tabular-nums}"
    ".bothways img{max-width:100%}.bothways .text{white-space:pre-wrap}"
)
# Transparent, so that text is legible on them in a light and in a dark notebook.
_WORD_COLOURS = (
    *("rgba(74,126,187,.30)", "rgba(230,159,0,.30)", "rgba(0,158,115,.30)"),
    *("rgba(204,121,167,.30)", "rgba(128,128,128,.30)"),
)
_PAGE = (
    '<!doctype html>\n<html><head><meta charset="utf-8"><title>{title}</title>'
    "<style>{style}</style></head>\n<body>\n{body}\n</body></html>\n"
)


def page(title: str, elements: Iterable[str]) -> str:
    """A complete page of elements made by the functions below."""
    return _PAGE.format(title=escape(title), style=_STYLE, body="\n".join(elements))


def fragment(title: str, *elements: str) -> str:
    """Elements for a cell of a notebook, under a title; it keeps the page's own fonts and colours,
    dark or light.

    Args:
        title: a line above, or empty for none.
        elements: made by the functions below.
    """
    top = f'<div style="font-weight:600;margin-bottom:.3em">{escape(title)}</div>' if title else ""
    return f'<div class="bothways"><style>{_FRAGMENT_STYLE}</style>{top}{"".join(elements)}</div>'


def tokens(shown: Iterable[tuple[str, str, str, int | None]]) -> str:
    """Tokens side by side: each with a line below, a note on it, and the number of its word, which
    decides its colour (None: no colour)."""
    boxes = []
    for token, below, note, word in shown:
        colour = "" if word is None else f";background:{_WORD_COLOURS[word % len(_WORD_COLOURS)]}"
        boxes.append(
            f'<span title="{escape(note, quote=True)}" style="display:inline-block;text-align:'
            f'center;margin:2px;padding:1px 4px;border-radius:3px;white-space:pre{colour}">'
            f"{escape(token)}"
            f'<br><span style="font-size:75%;opacity:.75">{escape(below)}</span></span>'
        )
    return fragment("", f'<div style="line-height:1.3">{"".join(boxes)}</div>')


def heading(text: str, level: int = 2) -> str:
    """A heading of level 1 to 6."""
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str) -> str:
    """A paragraph of text."""
    return f"<p>{escape(text)}</p>"


def listing(texts: Iterable[str]) -> str:
    """A bulleted list."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """A bar chart with a row per (label, size, size as shown)."""
    longest = max((size for _, size, _ in rows), default=0) or 1
    lines = [
        f"<tr><td>{escape(label)}</td><td>{escape(shown)}</td>"
        f'<td><div class="bar" style="width:{size / longest:.1%}"></div></td></tr>'
        for label, size, shown in rows
    ]
    body = "".join(lines) or "<tr><td>none</td></tr>"
    return f'{heading(title)}<table class="bars">{body}</table>'


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    links: Sequence[str] = (),
    shades: Sequence[Sequence[float]] = (),
) -> str:
    """A table with a header row.

    Args:
        header: names of the columns.
        rows: texts of the cells; numbers are right-aligned.
        links: the link target of each row's first cell, relative to the page.
        shades: for each row, the shade of all cells but the first, in [0, 1]; 1 is darkest.
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = []
    for number, row in enumerate(rows):
        cells = [_cell(text) for text in row]
        if links:
            target = escape(links[number], quote=True)
            cells[0] = f'<td><a href="{target}">{escape(row[0])}</a></td>'
        if shades:
            shaded = zip(row[1:], shades[number], strict=True)
            cells[1:] = [_cell(text, shade) for text, shade in shaded]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def picture(png: bytes, text: str) -> str:
    """A PNG embedded in the page, with an alternative text."""
    data = base64.b64encode(png).decode()
    return f'<p><img alt="{escape(text, quote=True)}" src="data:image/png;base64,{data}"></p>'


def long_text(text: str) -> str:
    """A text whose line breaks are preserved."""
    return f'<span class="text">{escape(text)}</span>'


def styled(text: str, style: str) -> str:
    """A text with a style, or as it is without one."""
    shown = escape(text)
    return f'<span style="{style}">{shown}</span>' if style else shown


def preformatted(text: str) -> str:
    """Text with a fixed width of its letters, such as a table."""
    return f'<pre style="overflow-x:auto">{escape(text)}</pre>'


def shorten(text: str, limit: int) -> str:
    """The text, or only its start and end if it has more characters than ``limit``."""
    if len(text) <= limit:
        return text
    left = f"{len(text) - limit:,} characters left out"
    return f"{text[: limit * 2 // 3]} […{left}…] {text[-(limit - limit * 2 // 3) :]}"


def _cell(text: str, shade: float = 0.0) -> str:
    number = text.replace(",", "").replace(".", "").lstrip("-+").rstrip("%").isdigit()
    style = f' style="background:rgba(74,126,187,{shade:.2f})"' if shade else ""
    kind = ' class="n"' if number else ""
    return f"<td{kind}{style}>{escape(text)}</td>"
