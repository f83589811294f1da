"""Self-contained HTML pages for reports, without scripts or external resources.

Each function returns one element of a page, with all text escaped; :func:`page` assembles them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

# Readable on a wide and a narrow screen, in light and in dark.
_STYLE = (
    ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:62em;"
    "margin:1.5em auto;padding:0 1em;overflow-wrap:break-word}h2{margin-top:1.8em}"
    ".wide{overflow-x:auto;margin:.6em 0}table{border-collapse:collapse}"
    "td,th{padding:2px 9px;vertical-align:top;text-align:left;border-bottom:1px solid #8886}"
    ".n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".bars{width:100%}.bar{background:#4a7ebb;height:.8em}img{max-width:100%;height:auto}"
    ".side{display:flex;flex-wrap:wrap}.side p{flex:1 1 18em;max-width:32em}"
    "pre{overflow-x:auto;white-space:pre-wrap;border:1px solid #8886;padding:.5em}"
    ".part{display:inline-block;margin-right:.3em}.text{white-space:pre-wrap}.note{opacity:.7}"
    "mark{background:none;color:inherit}.right{border-bottom:2px solid #2a7}"
    ".wrong{border-bottom:3px double #d44}.missed{border-bottom:2px dashed #b80}"
)
# The class twice: JupyterLab aligns cells to the right by a rule with two classes.
_FRAGMENT_STYLE = (
    ".bothways table{border-collapse:collapse;margin:.2em 0}"
    "div.bothways.bothways :is(td,th){padding:1px 8px;text-align:left;vertical-align:top}"
    "div.bothways.bothways .n.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".bothways img{max-width:100%}.bothways .text{white-space:pre-wrap}"
)
# Transparent, so that text is legible on them in a light and in a dark notebook.
_WORD_COLOURS = (
    *("rgba(74,126,187,.30)", "rgba(230,159,0,.30)", "rgba(0,158,115,.30)"),
    *("rgba(204,121,167,.30)", "rgba(128,128,128,.30)"),
)
DARKEST = 0.55
"""Opacity of the darkest shade, on which text is legible on a light and on a dark page (with a
contrast of 4.5 at least)."""
_NUMBER = ' class="n"'
_SIGNS = {"right": "✓", "wrong": "✗", "missed": "○"}
_PAGE = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    "<style>{style}</style></head>\n<body>\n<main>\n{body}\n</main>\n</body></html>\n"
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
        rows: texts of the cells; a column of numbers is right-aligned, with its header.
        links: the link target of each row's first cell, relative to the page.
        shades: for each row, the shade of all cells but the first, in [0, 1]; 1 is darkest.
    """
    numbers = [
        any(_is_number(row[i]) for row in rows)
        and all(_is_number(row[i]) or row[i] in ("", "-") for row in rows)
        for i in range(len(header))
    ]
    head = "".join(map(_head, header, numbers))
    lines = []
    for number, row in enumerate(rows):
        shade = [0.0, *shades[number]] if shades else [0.0] * len(row)
        cells = list(map(_cell, row, numbers, shade))
        if links:
            target = escape(links[number], quote=True)
            cells[0] = f'<td><a href="{target}">{escape(row[0])}</a></td>'
        lines.append(f"<tr>{''.join(cells)}</tr>")
    rows_shown = "".join(lines)
    return f'<div class="wide" tabindex="0"><table><tr>{head}</tr>{rows_shown}</table></div>'


class Png(bytes):
    """A picture's bytes, which a notebook shows as the picture."""

    def __repr__(self) -> str:
        return f"<PNG, {len(self):,} bytes>"

    def _repr_png_(self) -> bytes | None:
        return bytes(self) or None


def picture(png: bytes, text: str) -> str:
    """A PNG embedded in the page, with an alternative text."""
    data = base64.b64encode(png).decode()
    return f'<p><img alt="{escape(text, quote=True)}" src="data:image/png;base64,{data}"></p>'


def pictures(pngs: Sequence[tuple[bytes, str]]) -> str:
    """PNGs side by side where there is room, each with its alternative text."""
    return f'<div class="side">{"".join(picture(png, text) for png, text in pngs)}</div>'


def long_text(text: str) -> str:
    """A text whose line breaks are preserved."""
    return f'<span class="text">{escape(text)}</span>'


def marked(pieces: Iterable[Sequence[str]]) -> str:
    """A text in which places are marked, by a line below and a sign with a note behind, so that
    they are told apart without colours, too.

    Args:
        pieces: text, mark and note of each piece; the mark is ``right``, ``wrong``, ``missed`` or
            empty. A piece whose note is empty is underlined only.
    """
    shown = []
    for text, mark, note in pieces:
        if mark not in _SIGNS:
            shown.append(escape(text))
            continue
        sign = f"<small> {_SIGNS[mark]} {escape(note)}</small>" if note else ""
        shown.append(f'<mark class="{mark}">{escape(text)}{sign}</mark>')
    return f'<span class="text">{"".join(shown)}</span>'


def folded(title: str, *elements: str) -> str:
    """Elements that are shown when their title is clicked on."""
    return f"<details><summary>{escape(title)}</summary>{''.join(elements)}</details>"


def note(text: str) -> str:
    """A paragraph in softer colour, below what it is about."""
    return f'<p class="note">{escape(text)}</p>'


def styled(text: str, style: str) -> str:
    """A text with a style, or as it is without one."""
    shown = escape(text)
    return f'<span style="{style}">{shown}</span>' if style else shown


def preformatted(text: str) -> str:
    """Text with a fixed width of its letters, such as a table."""
    return f'<pre tabindex="0" style="overflow-x:auto">{escape(text)}</pre>'


def command(parts: Sequence[str]) -> str:
    """A command to copy. Lines are broken between its parts, and within one only where it alone is
    wider than the page."""
    shown = " ".join(f'<span class="part">{escape(part)}</span>' for part in parts)
    return f'<pre class="command">{shown}</pre>'


def shorten(text: str, limit: int) -> str:
    """The text, or only its start and end if it has more characters than ``limit``."""
    if len(text) <= limit:
        return text
    left = f"{len(text) - limit:,} characters left out"
    return f"{text[: limit * 2 // 3]} […{left}…] {text[-(limit - limit * 2 // 3) :]}"


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").lstrip("-+").rstrip("%").isdigit()


def _head(text: str, number: bool) -> str:
    if not text:
        return "<td></td>"  # a header without text is none
    return f'<th scope="col"{_NUMBER * number}>{escape(text)}</th>'


def _cell(text: str, number: bool, shade: float) -> str:
    style = f' style="background:rgba(74,126,187,{shade * DARKEST:.2f})"' if shade else ""
    return f"<td{_NUMBER * number}{style}>{escape(text)}</td>"
