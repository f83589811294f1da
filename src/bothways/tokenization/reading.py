"""A folder's tokenizer files as a tokenizer of the library, whatever kind they are.

A tokenizer.json is used as it is. Where there is none, the class that the folder names, or else
the files that are there, say how the vocabulary is read. What comes out is what transformers makes
of the same files; what it would make of them only by accident (a class that it rebuilds without
the settings of the file) is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from bothways.errors import InputError, ModelError, explain_missing
from bothways.io.base_folder import ADAPTER, adapter_settings, base_folder
from bothways.io.folder_files import checked, is_there
from bothways.io.hub import model_folder
from bothways.io.run_folders import RUN_FILE, models_of_run
from bothways.tokenization.bert_settings import with_settings
from bothways.tokenization.normalization import normalizer, word_splitter
from bothways.tokenization.pieces import BERT_ROLES, CONTINUES, META_SPACE, ids_of
from bothways.tokenization.roles import Declared, declared_roles, token_text
from bothways.tokenization.segmenter import SETTING, Segmenter, allowed_segmenter
from bothways.tokenization.template import Roles
from bothways.tokenization.tokenizer_classes import (
    ANY_CLASS,
    BY_FILES,
    BYTE_PAIRS,
    CLASSES,
    NOT_READ,
    ONE_SEGMENT,
    WORDPIECE,
    Reader,
    TokenizerClass,
    plain_name,
    usual_name,
)
from bothways.tokenization.tokenizer_files import (
    SPECIAL_FILE,
    STRIPS_LATIN_AND_GREEK,
    added_tokens,
    is_cased,
    read_added_tokens,
    read_library_file,
    read_object,
    read_settings,
    read_vocabulary,
    with_added_tokens,
    with_named_tokens,
)

LONGEST_WORD = 100
"""Characters; a longer word becomes [UNK], as in Hugging Face's BERT tokenizer."""

VOCABULARY_FILE = "vocab.txt"
TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
ORIGINAL_FILES = ("vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model")
"""Vocabularies of other kinds than WordPiece, which are kept beside a tokenizer.json."""

_MODEL_CONFIG, _MODULES = "config.json", "modules.json"
_FAIRSEQ_FIRST = ("<unk>", "<s>", "</s>")  # in the .model; fairseq has four other pieces instead
_ANY_SPACES = (
    r"[\s\x1c-\x1f]+"  # what ALBERT's tokenizer makes one space, unless remove_space is false
)
# Of a piece such as "9,": so low that the number and the comma are always two pieces.
_NEVER = -100.0


@dataclass(frozen=True)
class ReadTokenizer:
    """What the files of a tokenizer say.

    Attributes:
        library: the tokenizer.
        source: the file that it was read from.
        declared: the roles that the files name.
        usual: the class of the tokenizer, if it is known.
        originals: the vocabulary's files by name, if it is not a WordPiece vocabulary.
        segmenter: divides texts before; None for most.
        one_segment: whether a model is not told which text of a pair a token is of.
        as_it_is: whether the folder says that a tokenizer.json is all there is, so that without a
            post-processor texts get no special tokens.
    """

    library: tokenizers.Tokenizer
    source: Path
    declared: Declared
    usual: TokenizerClass | None
    originals: Mapping[str, bytes]
    segmenter: Segmenter | None
    one_segment: bool
    as_it_is: bool


def read_tokenizer(folder: str | Path) -> ReadTokenizer:
    """Read a folder's tokenizer, or one named by its file.

    Args:
        folder: a folder; the path of a tokenizer.json, vocab.json, merges.txt, .model file or, of
            any other name, vocab.txt; or the name of a shipped model.

    Raises:
        ModelError: no file that is a vocabulary, or one that cannot be read as such.
    """
    path = model_folder(folder)
    if path.is_dir():
        path = _vocabulary_in(_with_vocabulary(path))
    if not is_there(path):
        raise ModelError(f"{path}: no such file or folder, so there is no vocabulary to read.")
    try:
        checked(path)
    except InputError as error:
        raise ModelError(str(error)) from None
    said = _said_beside(path)
    kind = said["tokenizer_class"] or usual_name(said["model_type"])
    if kind in NOT_READ:
        raise ModelError(f"{path}: the tokenizer is a {kind}, which {NOT_READ[kind]}.")
    settings = read_settings(path.with_name(SETTINGS_FILE))
    # As in transformers, where the settings of earlier releases came second.
    sources = settings, read_object(path.with_name(SPECIAL_FILE))
    declared = declared_roles(*(sources if "added_tokens_decoder" in settings else sources[::-1]))
    usual = _named_class(said)
    segmenter = None
    if name := settings.get(SETTING):
        segmenter = allowed_segmenter(str(name), path.with_name(SETTINGS_FILE))
    originals: dict[str, bytes] = {}
    added = read_added_tokens(path, settings)
    whole = path.suffix == ".json" and path.name not in ORIGINAL_FILES
    if whole:
        library = with_settings(read_library_file(path), settings)
        known = added_tokens(library)  # transformers adds those that it lacks
        added = {id: token for id, token in added.items() if token.content not in known}
    else:
        usual = _class_of_file(path, usual, said, settings)
        library = _READERS[usual.reader](path, settings, usual, declared)
        if usual is not WORDPIECE:
            originals = {name: path.with_name(name).read_bytes() for name in usual.files}
    library = with_added_tokens(library, added, path)
    rows = int(said["vocab_size"]) if said["vocab_size"].isdecimal() else None
    library = with_named_tokens(library, settings, path, rows)
    if usual is not None and not whole:
        _add_mask(library, sources, declared, usual)
    names = settings.get("model_input_names")
    one_segment = said["tokenizer_class"] in ONE_SEGMENT
    if isinstance(names, list):
        one_segment = "token_type_ids" not in names
    as_it_is = whole and said["tokenizer_class"] in ANY_CLASS
    return ReadTokenizer(
        library, path, declared, usual, originals, segmenter, one_segment, as_it_is
    )


# ------------------------------------------------------------------------------ which file, and how


def has_vocabulary(folder: Path) -> bool:
    """Whether a folder has a vocabulary of its own, whole or in part."""
    names = [TOKENIZER_FILE, *(name for kind in BY_FILES for name in kind.files)]
    return any(is_there(folder / name) for name in names)


def _with_vocabulary(folder: Path) -> Path:
    """The folder of a model that has its vocabulary: the base of an adapter without one, or of
    sentence-transformers' early folders that of the encoder.

    Raises:
        ModelError: the base is not at hand.
    """
    if has_vocabulary(folder):
        return folder
    if is_there(folder / ADAPTER):
        return base_folder(folder, adapter_settings(folder))
    if is_there(folder / _MODULES):
        below = sorted(path for path in folder.glob("0_*") if path.is_dir())
        return next(filter(has_vocabulary, below), folder)
    return folder


def _vocabulary_in(folder: Path) -> Path:
    """The file that a folder's tokenizer is read from.

    Raises:
        ModelError: there is none; or those that its class needs are not there.
    """
    if (folder / RUN_FILE).is_file() and (models := models_of_run(folder)):
        folder = models[0]  # those of a run have the same vocabulary
    if is_there(folder / TOKENIZER_FILE):
        return folder / TOKENIZER_FILE
    known = _named_class(_said_beside(folder / TOKENIZER_FILE))
    there = [kind for kind in BY_FILES if all(is_there(folder / name) for name in kind.files)]
    if known is not None and known in there:
        return folder / known.files[0]
    if not there:
        raise ModelError(
            f"{folder}: neither {TOKENIZER_FILE} nor {VOCABULARY_FILE} is here, nor "
            "vocab.json with merges.txt, spiece.model or sentencepiece.bpe.model. Copy the "
            "tokenizer's files from the model that this one was trained from."
        )
    return folder / there[0].files[0]


def _said_beside(path: Path) -> dict[str, str]:
    """What tokenizer_config.json, or else config.json, next to a file says of its tokenizer, as
    texts; empty where neither says it."""
    sources = [read_object(path.with_name(name)) for name in (SETTINGS_FILE, _MODEL_CONFIG)]
    keys = ("vocab_size", "tokenizer_class", "model_type")
    said = {key: str(next((s[key] for s in sources if s.get(key)), "")) for key in keys}
    return {**said, "tokenizer_class": plain_name(said["tokenizer_class"])}


def _named_class(said: Mapping[str, str]) -> TokenizerClass | None:
    """The class that the files next to a vocabulary name, by itself or by the type of the model."""
    name = said["tokenizer_class"]
    if name and name not in ANY_CLASS:
        return CLASSES.get(name)
    return None if name else CLASSES.get(usual_name(said["model_type"]))


def _class_of_file(
    path: Path, named: TokenizerClass | None, said: Mapping[str, str], settings: Mapping[str, Any]
) -> TokenizerClass:
    """How a file that is no tokenizer.json is read.

    Raises:
        ModelError: the class, the model's type or the settings are of another tokenizer (such as
            MeCab's), so that ids would be wrong; or a file that belongs to it is missing.
    """
    usual = next((kind for kind in BY_FILES if path.name in kind.files), WORDPIECE)
    name = said["tokenizer_class"]
    other = "" if name in ("", *ANY_CLASS) or named is usual else f"tokenizer_class is {name}"
    if not name and named is not usual is not WORDPIECE and said["model_type"]:
        other = f"model_type is {said['model_type']}"
    for key, known in (("word_tokenizer_type", "basic"), ("subword_tokenizer_type", "wordpiece")):
        if settings.get(key, known) not in (known, None):
            other = f"{key} is {settings[key]}"
    if other:
        raise ModelError(
            f"{path}: {other}, which is not a tokenizer that bothways reads from "
            f"{' and '.join(usual.files)}. Save the tokenizer as a tokenizer.json."
        )
    for file in usual.files if usual is not WORDPIECE else ():
        if not path.with_name(file).is_file():
            raise ModelError(f"{path.with_name(file)}: no such file; it belongs to {path.name}.")
    return usual


def _add_mask(
    library: tokenizers.Tokenizer,
    sources: Sequence[Mapping[str, Any]],
    declared: Declared,
    usual: TokenizerClass,
) -> None:
    """Make the mask piece special, as the settings say or else as is usual for the class."""
    piece = declared.get("mask", usual.roles.mask)
    if piece is None or piece in added_tokens(library) or library.token_to_id(piece) is None:
        return
    flags = {"lstrip": usual.mask_takes_space, "normalized": False}
    for value in (source.get("mask_token") for source in reversed(sources)):
        if isinstance(value, Mapping) and token_text(value) == piece:
            flags = {key: bool(value.get(key)) for key in _FLAGS}
    library.add_special_tokens([AddedToken(piece, **flags)])


_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


# --------------------------------------------------------------------------------------- WordPiece


def with_berts_words(model: models.Model, **rules: Any) -> tokenizers.Tokenizer:
    """A tokenizer that splits text into BERT's words, after
    :func:`bothways.tokenization.normalization.normalizer` with these rules."""
    library = tokenizers.Tokenizer(model)
    library.normalizer = normalizer(**rules)
    library.pre_tokenizer = word_splitter()
    library.decoder = decoders.WordPiece(prefix=CONTINUES)
    return library


def word_pieces(ids: dict[str, int], unknown: str | None = BERT_ROLES.unk) -> models.Model:
    """The model of a WordPiece tokenizer."""
    return models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=LONGEST_WORD)


def _read_word_pieces(
    path: Path, settings: dict[str, Any], usual: TokenizerClass, declared: Declared
) -> tokenizers.Tokenizer:
    pieces = read_vocabulary(path)
    marked = sum(piece.startswith(META_SPACE) for piece in pieces)
    if marked > 1 and not any(piece.startswith(CONTINUES) for piece in pieces):
        raise ModelError(
            f"{path}: the pieces are SentencePiece's ({META_SPACE}), not WordPiece's (##). Save "
            "the tokenizer as a tokenizer.json."
        )
    if not {"do_lower_case", "normalization"} & settings.keys():
        settings = {**settings, "do_lower_case": not is_cased(path, pieces, settings)}
    roles = Roles(**{**usual.roles.items(), **declared})
    return with_berts_words(
        word_pieces(ids_of(pieces, path, roles), roles.unk or usual.roles.unk),
        lowercase=settings.get("do_lower_case", True),
        # Folders of 0.1 have one setting for both; it is null if nothing is said.
        strip_accents=settings.get(STRIPS_LATIN_AND_GREEK, settings.get("strip_accents")),
        split_cjk=settings.get("tokenize_chinese_chars", True),
        normalization=settings.get("normalization", "bert"),
    )


# --------------------------------------------------------------------------------- byte-level pairs


def _read_byte_pairs(
    path: Path, settings: dict[str, Any], usual: TokenizerClass, declared: Declared
) -> tokenizers.Tokenizer:
    vocabulary, merges = (str(path.with_name(name)) for name in BYTE_PAIRS.files)
    try:
        ids, pairs = models.BPE.read_file(vocabulary, merges)
        model = models.BPE(
            ids, pairs, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False
        )
    except Exception as error:  # the library raises bare Exception for every kind of damage
        raise ModelError(f"{vocabulary} with {merges}: cannot be read: {error}.") from error
    library = tokenizers.Tokenizer(model)
    if _composes(settings):
        library.normalizer = normalizers.NFC()
    space = bool(settings.get("add_prefix_space", False))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    library.decoder = decoders.ByteLevel()
    roles = {**usual.roles.items(), **declared}
    sep, cls = roles["sep"] or "", roles["cls"] or ""
    if sep in ids and cls in ids:  # this one also takes spaces off the offsets
        trim = bool(settings.get("trim_offsets", True))
        library.post_processor = processors.RobertaProcessing(
            (sep, ids[sep]), (cls, ids[cls]), trim, space
        )
    return library


# ----------------------------------------------------------------------------------- SentencePiece


def _read_unigram(
    path: Path,
    settings: dict[str, Any],
    usual: TokenizerClass,
    declared: Declared,  # noqa: ARG001
) -> tokenizers.Tokenizer:
    """ALBERT's: text is cleaned before SentencePiece sees it, and "9," is two pieces."""
    model = _read_model(path)
    pieces = [
        # In 32 bits, like all scores: digits beyond that are not kept by a tokenizer.json.
        (p.piece, float(np.float32(p.score + _NEVER)) if _ends_in_number(p.piece) else p.score)
        for p in model.pieces
    ]
    keeps = settings.get("keep_accents", False)
    before = cleaning(
        keep_accents=keeps,
        lowercase=settings.get("do_lower_case", True),
        # SentencePiece's map composes Hangul again, the library's copy of it does not.
        composes=_composes(settings) if keeps else bool(model.normalizer_spec.precompiled_charsmap),
    )
    spaces = _ANY_SPACES if settings.get("remove_space", True) else None
    library = _unigram(model, pieces, model.trainer_spec.unk_id, before, spaces)
    library.add_tokens(
        [
            AddedToken(p.piece, normalized=False, special=p.type == p.CONTROL)
            for p in model.pieces
            if p.type in (p.CONTROL, p.USER_DEFINED) and p.piece != usual.roles.mask
        ]
    )
    return library


def cleaning(
    *, keep_accents: bool, lowercase: bool, composes: bool = True
) -> list[normalizers.Normalizer]:
    """What ALBERT's tokenizer does with a text before SentencePiece sees it."""
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not keep_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if composes:
        steps.append(normalizers.NFC())
    if lowercase:
        steps.append(normalizers.Lowercase())
    return steps


def _composes(settings: Mapping[str, Any]) -> bool:
    """Whether a vocabulary that was learned here composes text, as no class of transformers does
    by itself."""
    return settings.get("normalization") == "composed"


def _ends_in_number(piece: str) -> bool:
    """Whether a piece ends in a digit and a comma."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _read_fairseq(
    path: Path,
    settings: dict[str, Any],  # noqa: ARG001
    usual: TokenizerClass,
    declared: Declared,  # noqa: ARG001
) -> tokenizers.Tokenizer:
    """XLM-R's: the model's three special pieces give way to fairseq's four, and the hidden token
    comes last, so that the id of every other piece is one more than in the file."""
    model = _read_model(path)
    first = tuple(p.piece for p in model.pieces[: len(_FAIRSEQ_FIRST)])
    if first != _FAIRSEQ_FIRST:
        raise ModelError(
            f"{path}: begins with {', '.join(first)} and not with {', '.join(_FAIRSEQ_FIRST)}, so "
            "its ids would be wrong. Save the tokenizer as a tokenizer.json."
        )
    own = (usual.roles.cls, usual.roles.pad, usual.roles.sep, usual.roles.unk)
    special = [(str(piece), 0.0) for piece in own]
    others = [(p.piece, p.score) for p in model.pieces[len(first) :]]
    pieces = [*special, *others, (str(usual.roles.mask), 0.0)]
    library = _unigram(model, pieces, own.index(usual.roles.unk), [])
    users = [p.piece for p in model.pieces if p.type == p.USER_DEFINED]
    library.add_tokens([AddedToken(piece, normalized=False, special=False) for piece in users])
    return library


def _read_model(path: Path) -> Any:
    """The ModelProto of a SentencePiece .model file.

    Raises:
        ModelError: it is damaged, not a Unigram model, or its pieces do not begin with spaces.
    """
    with explain_missing(f"reading {path.name}"):
        from sentencepiece import sentencepiece_model_pb2 as formats
    model: Any = formats.ModelProto()  # type: ignore[attr-defined]
    try:
        model.ParseFromString(path.read_bytes())
    except Exception as error:  # protobuf's DecodeError
        raise ModelError(f"{path}: cannot be read as a SentencePiece model: {error}.") from error
    trainer = model.trainer_spec
    if (
        trainer.model_type != trainer.UNIGRAM
        or trainer.treat_whitespace_as_suffix
        or not model.normalizer_spec.escape_whitespaces
    ):
        raise ModelError(
            f"{path}: not a Unigram model whose pieces begin with spaces; save the tokenizer as a "
            "tokenizer.json."
        )
    return model


def _unigram(
    model: Any,
    pieces: list[tuple[str, float]],
    unk_id: int,
    before: list[normalizers.Normalizer],
    spaces: str | None = None,
) -> tokenizers.Tokenizer:
    """SentencePiece's way from text to pieces, after some rules of a family.

    Text is split at white space first, so that the offsets of pieces are without it. That gives
    SentencePiece's pieces unless these may hold several words, or spaces count, or a text's first
    word has no space before it, as its others do.

    Args:
        model: SentencePiece's ModelProto.
        pieces: with their scores.
        unk_id: of what cannot be spelled.
        before: rules that come first.
        spaces: what the family makes one space, whatever the model says; None for none.
    """
    library = tokenizers.Tokenizer(models.Unigram(pieces, unk_id, model.trainer_spec.byte_fallback))
    rules, given = [*before], model.normalizer_spec
    if given.precompiled_charsmap:
        rules.append(normalizers.Precompiled(given.precompiled_charsmap))
    scheme: Literal["always", "never"] = "always" if given.add_dummy_prefix else "never"
    mark = pre_tokenizers.Metaspace(META_SPACE, prepend_scheme=scheme)
    of_words = not any(META_SPACE in piece[1:] for piece, _ in pieces)
    single = " {2,}" if given.remove_extra_whitespaces else None
    if (spaces := spaces or single) and given.add_dummy_prefix and of_words:
        library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), mark])
    else:
        mark.split = False
        if spaces:
            rules.append(normalizers.Strip(left=not given.add_dummy_prefix, right=True))
            rules.append(normalizers.Replace(Regex(spaces), " "))
        elif given.add_dummy_prefix:  # beside those that are there, which Metaspace takes for it
            rules.append(normalizers.Prepend(" "))
            mark.prepend_scheme = "never"
        library.pre_tokenizer = mark
    library.normalizer = normalizers.Sequence(rules)
    library.decoder = decoders.Metaspace(META_SPACE, prepend_scheme=scheme)
    return library


_READERS: dict[
    Reader,
    Callable[[Path, dict[str, Any], TokenizerClass, Declared], tokenizers.Tokenizer],
] = {
    "wordpiece": _read_word_pieces,
    "byte pairs": _read_byte_pairs,
    "unigram": _read_unigram,
    "fairseq": _read_fairseq,
}
