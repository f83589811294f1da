"""The post-processor of a tokenizer.json as a :class:`Template`, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import processors

from bothways.errors import ModelError
from bothways.tokenization.template import Gap, Layout, Roles, Special, Template

_MOST_SEGMENT = 127  # they are kept as int8; encoders have two
_TRIMS_OFFSETS = ("ByteLevel", "RobertaProcessing")


def read_template(
    step: Mapping[str, Any] | None, ids: Mapping[str, int], roles: Roles, source: str | Path
) -> Template | None:
    """The template that a post-processor puts special tokens by; None if it puts none.

    Args:
        step: the entry of the tokenizer.json.
        ids: of all pieces.
        roles: the border between documents is the piece that closes texts.
        source: named in messages.

    Raises:
        ModelError: it does something that a template cannot express.
    """
    if step is None or step["type"] == "ByteLevel":
        return None
    kind = step["type"]
    if kind == "Sequence":
        found = [read_template(part, ids, roles, source) for part in step["processors"]]
        templates = [template for template in found if template is not None]
        if len(templates) > 1:
            raise ModelError(
                f"{source}: its post-processor puts special tokens in {len(templates)} steps; "
                "write them as one TemplateProcessing."
            )
        return templates[0] if templates else None
    if kind in ("BertProcessing", "RobertaProcessing"):
        opening, closing = Special(*step["cls"]), Special(*step["sep"])
        form = Template.segmented if kind == "BertProcessing" else Template.doubled
        return _checked(form(opening, closing), ids, source)
    if kind != "TemplateProcessing":
        raise ModelError(
            f"{source}: its post-processor is a {kind}, which bothways does not have; it has "
            "TemplateProcessing, BertProcessing, RobertaProcessing and ByteLevel."
        )
    single = _layout(step, "single", "A", source)
    if not single.specials:
        return None
    pair = _layout(step, "pair", "AB", source) if step["pair"] else None
    border = tuple(s.at(0) for s in single.specials if s.piece == roles.sep)[:1]
    return _checked(Template(single, pair, border or single.gaps[-1][:1]), ids, source)


def _layout(step: Mapping[str, Any], name: str, texts: str, source: str | Path) -> Layout:
    """One form of a TemplateProcessing.

    Raises:
        ModelError: its texts are not each there once, in order.
    """
    gaps: list[Gap] = [()]
    segments: list[int] = []
    order = ""
    for item in step[name]:
        ((kind, value),) = item.items()
        if kind == "Sequence":
            order += value["id"]
            segments.append(_segment(value["type_id"], source))
            gaps.append(())
            continue
        token = step["special_tokens"].get(value["id"])
        if token is None:
            raise ModelError(
                f"{source}: the post-processor's form {name!r} names {value['id']!r}, which is not "
                "among its special tokens; the file is damaged. Complete the download."
            )
        if len(token["tokens"]) != len(token["ids"]):
            raise ModelError(
                f"{source}: the post-processor's special token {value['id']!r} has "
                f"{len(token['tokens'])} pieces and {len(token['ids'])} ids; the file is damaged. "
                "Complete the download."
            )
        gaps[-1] += tuple(
            Special(piece, id, _segment(value["type_id"], source))
            for piece, id in zip(token["tokens"], token["ids"], strict=True)
        )
    if order != texts:
        raise ModelError(
            f"{source}: the post-processor's form {name!r} has the texts {order or 'none'}, and "
            f"{texts} is needed: each text once, in this order."
        )
    return Layout(tuple(gaps), tuple(segments))


def _segment(number: int, source: str | Path) -> int:
    """A ``type_id``, which is a row of an encoder's small table of segments.

    Raises:
        ModelError: it is none that :attr:`Layout.runs` could hold.
    """
    if not 0 <= number <= _MOST_SEGMENT:
        raise ModelError(
            f"{source}: its post-processor has the type_id {number}; it must be a segment, from 0 "
            f"to {_MOST_SEGMENT}. The file is damaged; complete the download."
        )
    return number


def _checked(template: Template, ids: Mapping[str, int], source: str | Path) -> Template:
    layouts = [layout for layout in (template.single, template.pair) if layout is not None]
    for special in (special for layout in layouts for special in layout.specials):
        if ids.get(special.piece) != special.id:
            raise ModelError(
                f"{source}: the post-processor puts {special.piece!r} with id {special.id}, but "
                f"its id in the vocabulary is {ids.get(special.piece)}; the parts of the file do "
                "not belong together."
            )
    return template


def post_processor(template: Template) -> processors.PostProcessor:
    """A template as the library's post-processor."""
    layouts = [template.single, template.pair or Template.bare().layout(2)]
    names = dict.fromkeys((s.piece, s.id) for layout in layouts for s in layout.specials)
    return processors.TemplateProcessing(
        single=layouts[0].spelled, pair=layouts[1].spelled, special_tokens=[*names]
    )


def trims_offsets(step: Mapping[str, Any] | None) -> bool:
    """Whether a post-processor also takes spaces off the offsets of byte-level pieces."""
    if step is None:
        return False
    if step["type"] == "Sequence":
        return any(trims_offsets(part) for part in step["processors"])
    return step["type"] in _TRIMS_OFFSETS and bool(step["trim_offsets"])
