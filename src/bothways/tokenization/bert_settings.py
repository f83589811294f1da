"""What the settings of a ``tokenizers`` object say in BERT's terms: case, preset, kind of model."""

from __future__ import annotations

import json
import unicodedata
from typing import Any, Literal

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import normalizers
from tokenizers.pre_tokenizers import ByteLevel

from bothways.tokenization.normalization import ACCENTS, PRESETS, normalizer
from bothways.tokenization.pieces import BYTE_SPACE, META_SPACE
from bothways.tokenization.tokenizer_classes import BYTE_PAIRS, CLASSES, WORDPIECE, plain_name

Kind = Literal["wordpiece", "bpe", "byte-bpe", "unigram", "other"]

_COMPOSED = "한é"


def bert_settings(normalization: dict[str, Any] | None) -> dict[str, Any]:
    """The tokenizer_config.json settings of BERT that correspond to a tokenizer.json normaliser."""
    rules = normalization or {}
    steps: list[dict[str, Any]] = rules.get("normalizers", [rules])
    bert = next((step for step in steps if step.get("type") == "BertNormalizer"), {})
    lowercase = bool(bert.get("lowercase")) or any(s.get("type") == "Lowercase" for s in steps)
    strips = any(
        step.get("type") == "StripAccents" or step.get("pattern") == {"Regex": ACCENTS}
        for step in steps
    )
    given = bert.get("strip_accents")
    return {
        "do_lower_case": lowercase,
        "strip_accents": strips or bool(bert.get("lowercase") if given is None else given),
        "tokenize_chinese_chars": bool(bert.get("handle_chinese_chars")),
    }


def takes_characters_apart(rules: normalizers.Normalizer | None) -> bool:
    """Whether rules do what ``strip_accents`` means to the classes of transformers for BERT.

    These decompose all characters, Hangul too, and leave them so. Rules that strip Latin letters
    and compose the others again are better described by false: with true, every Korean word would
    be [UNK] there, with false a Latin letter keeps its accent.
    """
    if rules is None:
        return False
    return bool(rules.normalize_str(_COMPOSED) == unicodedata.normalize("NFD", _COMPOSED[0]) + "e")


def with_settings(library: tokenizers.Tokenizer, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    """Apply the settings of a tokenizer_config.json to a tokenizer.json."""
    rules = json.loads(library.to_str())["normalizer"] or {}
    # The classes for WordPiece rebuild it so; where none is named, transformers takes BERT's.
    named = settings.get("tokenizer_class")
    kind = WORDPIECE if named is None else CLASSES.get(plain_name(str(named)))
    if kind is WORDPIECE and rules.get("type") == "BertNormalizer":
        library.normalizer = normalizers.BertNormalizer(
            clean_text=rules["clean_text"],
            lowercase=settings.get("do_lower_case", rules["lowercase"]),
            strip_accents=settings.get("strip_accents", rules["strip_accents"]),
            handle_chinese_chars=settings.get(
                "tokenize_chinese_chars", rules["handle_chinese_chars"]
            ),
        )
    step, space = library.pre_tokenizer, settings.get("add_prefix_space")
    if kind is BYTE_PAIRS and space is not None and isinstance(step, ByteLevel):
        step.add_prefix_space = bool(space)
        library.pre_tokenizer = step
    return library


def normalization_preset(
    rules: normalizers.Normalizer | None, bert: dict[str, Any]
) -> Literal["bert", "composed", "spaced", "other"]:
    """The preset that a normaliser is equal to; ``bert`` are its settings in BERT's terms."""
    for normalization in PRESETS:
        preset = normalizer(
            lowercase=bert["do_lower_case"],
            strip_accents=bert["strip_accents"],
            split_cjk=bert["tokenize_chinese_chars"],
            normalization=normalization,
        )
        if _resolved(rules) == _resolved(preset):
            return normalization
    return "other"


def _resolved(rules: normalizers.Normalizer | None) -> Any:
    """Settings of a normaliser for comparison: a null strip_accents is replaced by its meaning."""
    settings = json.loads(rules.__getstate__()) if rules is not None else None
    if settings and settings["type"] == "BertNormalizer" and settings["strip_accents"] is None:
        settings["strip_accents"] = settings["lowercase"]
    return settings


def model_kind(settings: dict[str, Any]) -> Kind:
    """The kind of model, from the settings in a tokenizer.json."""
    model = settings["model"].get("type")
    if model == "BPE":
        return "byte-bpe" if "ByteLevel" in json.dumps(settings["pre_tokenizer"]) else "bpe"
    kinds: dict[str, Kind] = {"WordPiece": "wordpiece", "Unigram": "unigram"}
    return kinds.get(str(model), "other")


def word_starts(pieces: list[str], settings: dict[str, Any]) -> NDArray[np.bool_]:
    """bool [V]: True for pieces that start a word.

    Told by the model's prefix for pieces that continue a word, or (byte-level, SentencePiece) that
    start one.
    """
    added = {token["content"] for token in settings["added_tokens"]}
    if model_kind(settings) == "byte-bpe":
        added |= {p for p in pieces if p.startswith("[unused") and p.endswith("]")}
        starts = [p.startswith(BYTE_SPACE) or p in added for p in pieces]
    elif "Metaspace" in json.dumps(settings["pre_tokenizer"]) or model_kind(settings) == "unigram":
        starts = [p.startswith(META_SPACE) or p in added for p in pieces]
    else:
        mark = settings["model"].get("continuing_subword_prefix") or ""
        starts = [not mark or p == mark or not p.startswith(mark) for p in pieces]
    return np.array(starts, dtype=np.bool_)
