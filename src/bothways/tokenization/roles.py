"""Which piece has which role in a tokenizer, and the template that follows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import processors

from bothways.errors import ModelError
from bothways.tokenization.pieces import BERT_ROLES, check_special_pieces
from bothways.tokenization.post_processing import read_template
from bothways.tokenization.template import Gap, Roles, Special, Template
from bothways.tokenization.tokenizer_classes import WORDPIECE, TokenizerClass

Declared = Mapping[str, str | None]
"""The piece of each role that a folder names; None: it says that there is none."""

# Spellings that say by themselves what a piece is for.
_USUAL = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


def declared_roles(*sources: Mapping[str, Any]) -> dict[str, str | None]:
    """The roles that settings name, such as ``mask_token``; the first that names one decides."""
    return {
        role: token_text(settings[f"{role}_token"])
        for settings in reversed(sources)
        for role in _USUAL
        if f"{role}_token" in settings
    }


def token_text(value: Any) -> str | None:
    """The text of a token in settings, which may be an object that says more about it."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if value is None else str(value)


def find_roles(
    library: Mapping[str, Any],
    step: processors.PostProcessor | None,
    ids: Mapping[str, int],
    declared: Declared,
    usual: TokenizerClass | None,
    source: str | Path,
    *,
    as_it_is: bool = False,
) -> tuple[Roles, Template]:
    """The roles and the template of a tokenizer.

    What the folder declares decides; then the post-processor and model; then what its class
    usually has, and usual spellings.

    Args:
        library: the tokenizer.json.
        step: its post-processor.
        ids: of all pieces.
        declared: see :func:`declared_roles`.
        usual: the class of the tokenizer, if it is known.
        source: named in messages.
        as_it_is: a post-processor that adds no special tokens is no oversight.

    Raises:
        ModelError: a declared piece is not in the vocabulary; it is not known how sequences begin
            and end; or the post-processor does what no template expresses.
    """
    for role, piece in declared.items():
        if piece is not None and piece not in ids:
            raise ModelError(
                f"{source}: {role}_token is {piece!r} in the settings next to it, which is not a "
                "piece of the vocabulary. added_tokens.json may be missing."
            )
    template = read_template(step, ids, declared.get("sep"), source)
    found: dict[str, str | None] = {}
    for role, spellings in _USUAL.items():
        known = [usual.roles.items()[role]] if usual is not None else []
        if role == "unk":
            known.append(_unknown_piece(library["model"]))
        found[role] = next((piece for piece in (*known, *spellings) if piece in ids), None)
    if template is not None:
        for role, gap in _ends_of(template).items():
            found[role] = gap[0].piece if gap else None
    roles = Roles(**{**found, **declared})
    if template is not None and usual is WORDPIECE and _adds_others(template, declared):
        return roles, usual.form(*_ends(roles, ids))  # as its class in transformers does
    if template is not None:
        return roles, template
    if usual is None and not as_it_is and all(piece in ids for piece in BERT_ROLES.pieces):
        return roles, Template.segmented(*_ends(roles, ids))
    if usual is not None and roles.cls is not None and roles.sep is not None:
        return roles, usual.form(*_ends(roles, ids))
    if (as_it_is and usual is None) or (step is not None and roles.cls is roles.sep is None):
        return roles, Template.bare()
    check_special_pieces(ids, source)
    raise ModelError(
        f"{source}: without a post-processor, it is not known which pieces open and close a "
        "sequence; name the tokenizer_class in tokenizer_config.json."
    )


def _adds_others(template: Template, declared: Declared) -> bool:
    """Whether a template opens or closes a text by other pieces than the settings name."""
    return any(
        (piece := declared.get(role)) is not None and piece not in [one.piece for one in gap]
        for role, gap in _ends_of(template).items()
    )


def _ends_of(template: Template) -> dict[str, Gap]:
    return {"cls": template.single.gaps[0], "sep": template.single.gaps[-1]}


def _ends(roles: Roles, ids: Mapping[str, int]) -> tuple[Special, Special]:
    assert roles.cls is not None
    assert roles.sep is not None
    return Special(roles.cls, ids[roles.cls]), Special(roles.sep, ids[roles.sep])


def _unknown_piece(model: Mapping[str, Any]) -> str | None:
    """What the model of a tokenizer.json gives for what it cannot spell."""
    if (number := model.get("unk_id")) is not None:
        return str(model["vocab"][number][0])
    return model.get("unk_token")
