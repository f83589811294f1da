"""Which piece has which role in a tokenizer, and the template that follows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bothways.errors import ModelError
from bothways.tokenization.pieces import BERT_ROLES, check_special_pieces
from bothways.tokenization.post_processing import read_template
from bothways.tokenization.template import Roles, Special, Template
from bothways.tokenization.tokenizer_classes import WORDPIECE, TokenizerClass

_SAY_UNKNOWN = ("WordPiece", "WordLevel")
"""Models that raise an error at the first word that they cannot spell, without a piece for it."""

Declared = Mapping[str, str | None]
"""The piece of each role that a folder speaks of; None: it says that there is none."""

# Spellings that say by themselves what a piece is for.
_USUAL = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
WHAT = {
    "pad": "a padding piece",
    "unk": "a piece for what it cannot spell",
    "cls": "a piece that opens sequences",
    "sep": "a piece that closes texts",
    "mask": "a mask piece",
}


def declared_roles(*sources: Mapping[str, Any]) -> dict[str, str | None]:
    """The roles that settings name, such as ``mask_token``; the first that names one decides."""
    declared: dict[str, str | None] = {}
    for settings in sources:
        for role in WHAT:
            key = f"{role}_token"
            if role not in declared and key in settings:
                declared[role] = token_text(settings[key])
    return declared


def token_text(value: Any) -> str | None:
    """The text of a token in settings, which may be an object that says more about it."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if value is None else str(value)


def find_roles(
    library: Mapping[str, Any],
    ids: Mapping[str, int],
    declared: Declared,
    usual: TokenizerClass | None,
    source: str | Path,
    *,
    as_it_is: bool = False,
) -> tuple[Roles, Template]:
    """The roles and the template of a tokenizer.

    What the folder declares decides; then what its post-processor and model show; then what its
    class usually has, and usual spellings.

    Args:
        library: the tokenizer.json.
        ids: of all pieces.
        declared: see :func:`declared_roles`.
        usual: the class of the tokenizer, if it is known.
        source: named in messages.
        as_it_is: what puts no special tokens is no oversight.

    Raises:
        ModelError: a declared piece is not in the vocabulary; it is not known how sequences begin
            and end; or the post-processor does what no template expresses.
    """
    for role, piece in declared.items():
        if piece is not None and piece not in ids:
            raise ModelError(
                f"{source}: {role}_token is {piece!r} in the settings next to it, but no piece is "
                "spelled so. Complete the download (added_tokens.json may be missing), or write "
                f"the right one, or null if it has none."
            )
    unknown = library["model"].get("unk_token")
    if library["model"].get("type") in _SAY_UNKNOWN and unknown is not None and unknown not in ids:
        raise ModelError(
            f"{source}: its model has {unknown!r} for what it cannot spell, which is none of its "
            "pieces; write the right one to unk_token of its model."
        )
    step = library.get("post_processor")
    template = read_template(step, ids, Roles(**_given(declared)), source)
    roles = Roles(
        **{role: _piece_of(role, library, ids, declared, usual, template) for role in WHAT}
    )
    if template is not None and usual is WORDPIECE and _puts_others(template, declared):
        template = usual.form(*_ends(roles, ids))  # as its class in transformers does
    if template is not None:
        return roles, template
    if as_it_is and usual is None:
        return roles, Template.bare()
    if usual is None and all(piece in ids for piece in BERT_ROLES.pieces):
        return roles, Template.segmented(*_ends(roles, ids))
    if usual is not None and roles.cls is not None and roles.sep is not None:
        return roles, usual.form(*_ends(roles, ids))
    if step is not None and roles.cls is None and roles.sep is None:
        return roles, Template.bare()
    check_special_pieces(ids, source)
    raise ModelError(
        f"{source}: it has no post-processor, and nothing else says which pieces open and close a "
        'sequence. Write its class to tokenizer_config.json, such as "tokenizer_class": '
        '"BertTokenizer".'
    )


def _puts_others(template: Template, declared: Declared) -> bool:
    """Whether a template opens or closes a text by other pieces than the settings name."""
    ends = {"cls": template.single.gaps[0], "sep": template.single.gaps[-1]}
    return any(
        (piece := declared.get(role)) is not None and piece not in [one.piece for one in gap]
        for role, gap in ends.items()
    )


def _given(declared: Declared) -> dict[str, str]:
    return {role: piece for role, piece in declared.items() if piece is not None}


def _ends(roles: Roles, ids: Mapping[str, int]) -> tuple[Special, Special]:
    assert roles.cls is not None
    assert roles.sep is not None
    return Special(roles.cls, ids[roles.cls]), Special(roles.sep, ids[roles.sep])


def _piece_of(
    role: str,
    library: Mapping[str, Any],
    ids: Mapping[str, int],
    declared: Declared,
    usual: TokenizerClass | None,
    template: Template | None,
) -> str | None:
    if role in declared:
        return declared[role]
    if template is not None and role in ("cls", "sep"):
        gap = template.single.gaps[0 if role == "cls" else -1]
        return gap[0].piece if gap else None
    known = [usual.roles.items()[role]] if usual is not None else []
    if role == "unk":
        known.append(_unknown_piece(library["model"]))
    candidates = (*known, *_USUAL[role])
    return next((piece for piece in candidates if piece is not None and piece in ids), None)


def _unknown_piece(model: Mapping[str, Any]) -> str | None:
    """What the model of a tokenizer.json says in place of what it cannot spell."""
    if (number := model.get("unk_id")) is not None:
        return str(model["vocab"][number][0])
    return model.get("unk_token")
