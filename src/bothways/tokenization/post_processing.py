"""The post-processor of a tokenizer.json as a :class:`Template`, and the other way round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, processors

from bothways.errors import ModelError
from bothways.tokenization.template import Gap, Layout, Special, Template

_ONE_TOKEN = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))


def read_template(
    step: processors.PostProcessor | None,
    ids: Mapping[str, int],
    closing: str | None,
    source: str | Path,
) -> Template | None:
    """The template by which a post-processor adds special tokens; None if it adds none.

    The library applies it to texts of one token, so that any kind of post-processor can be read.

    Args:
        step: the post-processor.
        ids: of all pieces.
        closing: the piece that closes texts, and so separates documents.
        source: named in messages.

    Raises:
        ModelError: a text is not there once and in order, or a special token has another id in the
            vocabulary.
    """
    if step is None:
        return None
    first, second = _ONE_TOKEN.encode("a"), _ONE_TOKEN.encode("a")
    layouts = [_layout(step.process(first), source), _layout(step.process(first, second), source)]
    single, pair = layouts
    if not single.specials:
        return None
    for special in (special for layout in layouts for special in layout.specials):
        if ids.get(special.piece) != special.id:
            raise ModelError(
                f"{source}: the post-processor adds {special.piece!r} with id {special.id}, but "
                f"its id in the vocabulary is {ids.get(special.piece)}."
            )
    if len(single.segments) != 1 or len(pair.segments) == 1:
        raise ModelError(f"{source}: the post-processor leaves out a text.")
    border = tuple(s.at(0) for s in single.specials if s.piece == closing) or single.gaps[-1]
    return Template(single, pair if pair.segments else None, border[:1])


def _layout(encoding: tokenizers.Encoding, source: str | Path) -> Layout:
    gaps: list[Gap] = [()]
    segments: list[int] = []
    columns = encoding.tokens, encoding.ids, encoding.type_ids, encoding.sequence_ids
    special = encoding.special_tokens_mask
    for piece, id, segment, text, is_special in zip(*columns, special, strict=True):
        if is_special:
            gaps[-1] += (Special(piece, id, segment),)
            continue
        if text != len(segments):
            raise ModelError(f"{source}: the post-processor repeats or exchanges texts.")
        segments.append(segment)
        gaps.append(())
    return Layout(tuple(gaps), tuple(segments))


def post_processor(template: Template) -> processors.PostProcessor:
    """A template as the library's post-processor."""
    layouts = [template.single, template.pair or Template.bare().layout(2)]
    names = dict.fromkeys((s.piece, s.id) for layout in layouts for s in layout.specials)
    return processors.TemplateProcessing(
        single=layouts[0].spelled, pair=layouts[1].spelled, special_tokens=[*names]
    )


def trims_offsets(step: Mapping[str, Any] | None) -> bool:
    """Whether a post-processor also takes spaces off the offsets of byte-level pieces."""
    return '"trim_offsets": true' in json.dumps(step)
