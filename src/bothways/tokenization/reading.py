"""A folder's tokenizer files as a tokenizer of the library, whatever kind they are.

A tokenizer.json is used as it is. Where there is none, the class that the folder names, or else
the files that are there, say how the vocabulary is read. What comes out is what transformers makes
of the same files; what it would make of them only by accident (a class that it rebuilds without
the settings of the file) is not repeated.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from bothways.errors import InputError, ModelError
from bothways.io.base_folder import ADAPTER, adapter_settings, base_folder
from bothways.io.folder_files import checked, is_there
from bothways.io.hub import model_folder
from bothways.io.json_files import read_json_file
from bothways.io.run_folders import RUN_FILE, models_of_run
from bothways.io.text import read_whole
from bothways.tokenization.bert_settings import lowercases, with_settings
from bothways.tokenization.normalization import Normalization, normalizer, word_splitter
from bothways.tokenization.pieces import BERT_ROLES, CONTINUES, META_SPACE, ids_of, pieces_by_id
from bothways.tokenization.roles import Declared, declared_roles, token_text
from bothways.tokenization.segmenter import SETTING, Segmenter, allowed_segmenter
from bothways.tokenization.sentencepiece_model import (
    PieceType,
    SentencePieceModel,
    read_sentencepiece,
)
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
    usual_class,
    usual_name,
)
from bothways.tokenization.tokenizer_files import (
    REPAIR,
    SPECIAL_FILE,
    STRIPS_LATIN_AND_GREEK,
    added_tokens,
    is_cased,
    read_added_tokens,
    read_library_file,
    read_object,
    read_settings,
    read_vocabulary,
    refuse_larger,
    refuse_other_tokenizers,
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
        lowercases: whether a tokenizer.json does so without its settings; None for other files.
        one_segment: whether a model is not told which text of a pair a token is of.
        as_it_is: whether the folder says that a tokenizer.json is all there is, so that without a
            post-processor texts get no special tokens.
        cuts: the side on which a tokenizer.json says that long texts are cut.
    """

    library: tokenizers.Tokenizer
    source: Path
    declared: Declared
    usual: TokenizerClass | None
    originals: Mapping[str, bytes] = field(default_factory=dict)
    segmenter: Segmenter | None = None
    lowercases: bool | None = None
    one_segment: bool = False
    as_it_is: bool = False
    cuts: str = ""


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
    rows = int(said["vocab_size"]) if said["vocab_size"].isdecimal() else None
    if rows is not None:
        refuse_larger(path, rows)
    _refuse_unreadable(path, said)
    settings = read_settings(path.with_name(SETTINGS_FILE))
    # As in transformers, where the settings of earlier releases came second.
    sources = settings, _special_tokens(path)
    declared = declared_roles(*(sources if "added_tokens_decoder" in settings else sources[::-1]))
    named = _named_class(said)
    one_segment = _one_segment(said, settings)
    segmenter = None
    if name := settings.get(SETTING):
        segmenter = allowed_segmenter(str(name), path.with_name(SETTINGS_FILE))
    if path.suffix == ".json" and path.name not in ORIGINAL_FILES:
        alone = read_library_file(path)
        if "ByteLevel" in str(alone.pre_tokenizer):
            _refuse_decomposed(alone.get_vocab(with_added_tokens=False), path)
        lowers, library = lowercases(alone), with_settings(alone, settings)
        library = _with_spaces(library, settings)
        added = read_added_tokens(path, settings)  # as transformers adds those that it lacks
        known = added_tokens(library)
        lacking = {id: token for id, token in added.items() if token.content not in known}
        library = with_added_tokens(library, lacking, path)
        library = with_named_tokens(library, settings, path, rows)
        return ReadTokenizer(
            *(library, path, declared, named),
            segmenter=segmenter,
            lowercases=lowers,
            one_segment=one_segment,
            as_it_is=plain_name(said["tokenizer_class"]) in ANY_CLASS,
            cuts=str((alone.truncation or {}).get("direction", "")),
        )
    usual = _class_of_file(path, named, said)
    library = _READERS[usual.reader](path, settings, usual, declared)
    library = with_added_tokens(library, read_added_tokens(path, settings), path)
    library = with_named_tokens(library, settings, path, rows)
    _add_mask(library, settings, declared, usual, path)
    originals = {}
    if usual is not WORDPIECE:
        files = [path.with_name(name) for name in usual.files]
        originals = {file.name: file.read_bytes() for file in files}
    return ReadTokenizer(
        *(library, path, declared, usual, originals, segmenter), one_segment=one_segment
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
        remedy = (  # a vocabulary that is learnt anew has other ids than the weights
            "Copy the tokenizer's files from the model that this one was trained from."
            if is_there(folder / _MODEL_CONFIG)
            else "Name a folder that has one of them, or learn a vocabulary with `bothways vocab`."
        )
        raise ModelError(
            f"{folder}: neither {TOKENIZER_FILE} nor {VOCABULARY_FILE} is in this folder, nor "
            "vocab.json with merges.txt, spiece.model or sentencepiece.bpe.model. "
            f"{_under_another_name(folder)}{remedy}"
        )
    return folder / there[0].files[0]


def _under_another_name(folder: Path) -> str:
    """What seems to be a folder's vocabulary, in part or under another name, as a sentence; or
    nothing."""
    for kind in BY_FILES:
        missing = [name for name in kind.files if not is_there(folder / name)]
        if len(missing) < len(kind.files):
            return f"{missing[0]} is missing, which belongs to what is there. "
    found = sorted(p.name for p in folder.glob("*") if "vocab" in p.name.lower() and p.is_file())
    texts = [name for name in found if name.lower().endswith((".txt", ".txt.gz"))]
    if len(texts) != 1:
        return ""
    what = "decompress it and name it" if texts[0].endswith(".gz") else "name it"
    return f"If {texts[0]} is its vocabulary, {what} {VOCABULARY_FILE}. "


def _said_beside(path: Path) -> dict[str, str]:
    """What tokenizer_config.json, or else config.json, next to a file says of its tokenizer, as
    texts; empty where neither says it."""
    said = dict.fromkeys(("vocab_size", "tokenizer_class", "model_type"), "")
    for name in (SETTINGS_FILE, _MODEL_CONFIG):
        try:
            settings = read_json_file(checked(path.with_name(name)))
        except InputError:  # reported where the file is needed
            continue
        if isinstance(settings, dict):
            said = {key: own or str(settings.get(key) or "") for key, own in said.items()}
    return said


def _named_class(said: Mapping[str, str]) -> TokenizerClass | None:
    """The class that the files next to a vocabulary name, by itself or by the type of the model."""
    name = plain_name(said["tokenizer_class"])
    if name and name not in ANY_CLASS:
        return CLASSES.get(name)
    return None if name else usual_class(said["model_type"])


def _refuse_unreadable(path: Path, said: Mapping[str, str]) -> None:
    """Refuse the files of a class that splits text by what is in none of them.

    Raises:
        ModelError: naming the class.
    """
    name = plain_name(said["tokenizer_class"])
    name = name or usual_name(said["model_type"])
    if name in NOT_READ:
        raise ModelError(
            f"{path}: the tokenizer is a {name}, which {NOT_READ[name]}; the ids of most texts "
            "would be wrong ones. If text is split by BERT's rules after all, write "
            f'{{"tokenizer_class": "BertTokenizer"}} to {path.with_name(SETTINGS_FILE)}.'
        )


def _class_of_file(
    path: Path, named: TokenizerClass | None, said: Mapping[str, str]
) -> TokenizerClass:
    """How a file that is no tokenizer.json is read.

    Raises:
        ModelError: the class or the model's type is another one than the file is of; or a file that
            belongs to it is missing.
    """
    usual = next((kind for kind in BY_FILES if path.name in kind.files), WORDPIECE)
    if usual is WORDPIECE:  # refused by what the vocabulary and its settings say
        return usual
    name = plain_name(said["tokenizer_class"])
    kind = said["model_type"]
    if named is not usual and (name not in ("", *ANY_CLASS) or (not name and kind)):
        what = f"tokenizer_class is {name}" if name else f"model_type is {kind}"
        raise ModelError(
            f"{path}: {what}, which is not a tokenizer that bothways reads from "
            f"{' and '.join(usual.files)}. Save the tokenizer as a tokenizer.json. The classes it "
            f"reads: {', '.join(CLASSES)}."
        )
    for other in usual.files:
        if not path.with_name(other).is_file():
            raise ModelError(
                f"{path.with_name(other)}: no such file; {' and '.join(usual.files)} are one "
                "vocabulary. Complete the download."
            )
    return usual


def _one_segment(said: Mapping[str, str], settings: Mapping[str, Any]) -> bool:
    """Whether transformers does not tell a model which text of a pair a token is of: by the names
    of inputs, or by the class."""
    names = settings.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" not in names
    return plain_name(said["tokenizer_class"]) in ONE_SEGMENT


def _special_tokens(path: Path) -> dict[str, Any]:
    """The special_tokens_map.json next to a file.

    Raises:
        ModelError: it is damaged.
    """
    try:
        return read_object(path.with_name(SPECIAL_FILE))
    except (InputError, TypeError, ValueError) as error:
        raise ModelError(
            f"{path.with_name(SPECIAL_FILE)}: not an object of settings ({error}). {REPAIR}"
        ) from error


def _with_spaces(
    library: tokenizers.Tokenizer, settings: Mapping[str, Any]
) -> tokenizers.Tokenizer:
    """Apply a tokenizer_config.json's ``add_prefix_space`` to a tokenizer.json of its class."""
    given = settings.get("add_prefix_space")
    kind = CLASSES.get(plain_name(str(settings.get("tokenizer_class") or "")))
    step = library.pre_tokenizer
    if given is not None and kind is BYTE_PAIRS and isinstance(step, pre_tokenizers.ByteLevel):
        step.add_prefix_space = bool(given)
        library.pre_tokenizer = step
    return library


def _add_mask(
    library: tokenizers.Tokenizer,
    settings: Mapping[str, Any],
    declared: Declared,
    usual: TokenizerClass,
    path: Path,
) -> None:
    """Make the mask piece special, as the settings say or else as is usual for the class."""
    piece = declared.get("mask", usual.roles.mask)
    if piece is None or piece in added_tokens(library) or library.token_to_id(piece) is None:
        return
    for value in (settings.get("mask_token"), _special_tokens(path).get("mask_token")):
        if isinstance(value, Mapping) and token_text(value) == piece:
            flags = {key: bool(value.get(key)) for key in _FLAGS}
            library.add_special_tokens([AddedToken(piece, **flags)])
            return
    library.add_special_tokens([AddedToken(piece, lstrip=usual.mask_takes_space, normalized=False)])


_FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


# --------------------------------------------------------------------------------------- WordPiece


def word_pieces(
    ids: dict[str, int],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_cjk: bool = True,
    normalization: Normalization = "bert",
    unknown: str | None = BERT_ROLES.unk,
) -> tokenizers.Tokenizer:
    """A WordPiece tokenizer, with BERT's words."""
    model = models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=LONGEST_WORD)
    library = tokenizers.Tokenizer(model)
    library.normalizer = normalizer(
        lowercase=lowercase,
        strip_accents=strip_accents,
        split_cjk=split_cjk,
        normalization=normalization,
    )
    library.pre_tokenizer = word_splitter()
    library.decoder = decoders.WordPiece(prefix=CONTINUES)
    return library


def _read_word_pieces(
    path: Path, settings: dict[str, Any], usual: TokenizerClass, declared: Declared
) -> tokenizers.Tokenizer:
    pieces = read_vocabulary(path)
    refuse_other_tokenizers(path, pieces)
    if not {"do_lower_case", "normalization"} & settings.keys():
        settings = {**settings, "do_lower_case": not is_cased(path, pieces, settings)}
    roles = Roles(**{**usual.roles.items(), **declared})
    return word_pieces(
        ids_of(pieces, path, roles),
        lowercase=settings.get("do_lower_case", True),
        # Folders of 0.1 have one setting for both; it is null if nothing is said.
        strip_accents=settings.get(STRIPS_LATIN_AND_GREEK, settings.get("strip_accents")),
        split_cjk=settings.get("tokenize_chinese_chars", True),
        normalization=settings.get("normalization", "bert"),
        unknown=roles.unk or usual.roles.unk,
    )


# --------------------------------------------------------------------------------- byte-level pairs


def _read_byte_pairs(
    path: Path, settings: dict[str, Any], usual: TokenizerClass, declared: Declared
) -> tokenizers.Tokenizer:
    vocabulary, merges = (path.with_name(name) for name in BYTE_PAIRS.files)
    ids, pairs = _read_ids(vocabulary), _read_merges(merges)
    _refuse_decomposed(ids, vocabulary)
    _refuse_missing_pairs(ids, pairs, merges)
    try:
        model = models.BPE(
            ids,
            pairs,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
        )
    except Exception as error:  # the library raises bare Exception for a piece that is missing
        raise ModelError(
            f"{merges}: does not belong to {vocabulary.name}: {error}. Complete the download."
        ) from error
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


def _read_ids(path: Path) -> dict[str, int]:
    """The ids of a vocab.json.

    Raises:
        ModelError: it is damaged, or the ids have gaps or duplicates.
    """
    try:
        ids = read_json_file(checked(path))
        if not isinstance(ids, dict) or not all(isinstance(id, int) for id in ids.values()):
            raise TypeError("pieces with their ids are expected")
    except InputError as error:
        raise ModelError(f"{error.place}: {error.problem} Complete the download.") from None
    except TypeError as error:
        raise ModelError(
            f"{path}: cannot be read as a vocabulary ({error}); complete the download."
        ) from error
    pieces_by_id(ids, path)
    return ids


def _read_merges(path: Path) -> list[tuple[str, str]]:
    """The pairs of a merges.txt, in order.

    Raises:
        ModelError: a line is not a pair.
    """
    merges = []
    try:
        text = read_whole(checked(path), as_it_is=True)
    except InputError as error:
        raise ModelError(str(error)) from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.startswith("#version") or not line.strip(" \t\r\x1a"):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2:
            raise ModelError(
                f"{path}: line {number} is {line[:40]!r}; a line has two pieces with one space "
                "between them. Complete the download."
            )
        merges.append((pair[0], pair[1]))
    return merges


_LOST = 0.01  # of the pieces, above what a vocabulary has of special ones without brackets


def _refuse_missing_pairs(ids: Mapping[str, int], pairs: list[tuple[str, str]], path: Path) -> None:
    """Refuse a merges.txt that is cut off: the pieces after it would not be found, in silence.

    Raises:
        ModelError: pieces come from no pair.
    """
    made = {one + other for one, other in pairs}
    lost = [p for p in ids if len(p) > 1 and p not in made and (p[0], p[-1]) not in _BRACKETS]
    if len(lost) > _LOST * len(ids):
        raise ModelError(
            f"{path}: {len(lost):,} of the {len(ids):,} pieces come from none of its "
            f"{len(pairs):,} pairs, such as {lost[0]!r}; it is cut off, or another vocabulary's. "
            "Complete the download."
        )


_BRACKETS = (("<", ">"), ("[", "]"))


def _refuse_decomposed(pieces: Iterable[str], path: Path) -> None:
    """Refuse byte-level pieces whose characters were taken apart, such as by a program that
    normalises text: those that stand for bytes are single ones.

    Raises:
        ModelError: naming a piece and the command that puts them together.
    """
    apart = [p for p in pieces if not p.isascii() and unicodedata.normalize("NFC", p) != p]
    if apart:
        raise ModelError(
            f"{path}: {len(apart):,} pieces, such as {apart[0]!r}, hold characters that were taken "
            "apart (NFD), and bytes are written as whole ones. Copy the file again; or put them "
            "together, here and in the files beside it: python -c 'import sys, unicodedata as u; "
            'sys.stdout.write(u.normalize("NFC", sys.stdin.read()))\' < OLD > NEW.'
        )


# ----------------------------------------------------------------------------------- SentencePiece


def _read_unigram(
    path: Path,
    settings: dict[str, Any],
    usual: TokenizerClass,
    declared: Declared,  # noqa: ARG001
) -> tokenizers.Tokenizer:
    """ALBERT's: text is cleaned before SentencePiece sees it, and "9," is two pieces."""
    model = read_sentencepiece(path)
    pieces = [
        # In 32 bits, like all scores: digits beyond that are not kept by a tokenizer.json.
        (piece, float(np.float32(score + _NEVER)) if _ends_in_number(piece) else score)
        for piece, score in model.pieces
    ]
    keeps = settings.get("keep_accents", False)
    before = cleaning(
        keep_accents=keeps,
        lowercase=settings.get("do_lower_case", True),
        # SentencePiece's map composes Hangul again, the library's copy of it does not.
        composes=_composes(settings) if keeps else bool(model.character_map),
    )
    spaces = _ANY_SPACES if settings.get("remove_space", True) else None
    library = _unigram(model, pieces, model.unk_id, before, spaces)
    added = [
        AddedToken(piece, normalized=False, special=kind == PieceType.CONTROL)
        for (piece, _), kind in zip(model.pieces, model.types, strict=True)
        if kind in (PieceType.CONTROL, PieceType.USER_DEFINED) and piece != usual.roles.mask
    ]
    library.add_tokens(added)
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
    model = read_sentencepiece(path)
    first = tuple(piece for piece, _ in model.pieces[: len(_FAIRSEQ_FIRST)])
    if first != _FAIRSEQ_FIRST:
        raise ModelError(
            f"{path}: begins with {', '.join(first)}, and a vocabulary of this kind begins with "
            f"{', '.join(_FAIRSEQ_FIRST)}; its ids would be wrong. Save the tokenizer as a "
            "tokenizer.json."
        )
    own = (usual.roles.cls, usual.roles.pad, usual.roles.sep, usual.roles.unk)
    special = [(str(piece), 0.0) for piece in own]
    pieces = [*special, *model.pieces[len(first) :], (str(usual.roles.mask), 0.0)]
    library = _unigram(model, pieces, own.index(usual.roles.unk), [])
    user = [
        AddedToken(piece, normalized=False, special=False)
        for (piece, _), kind in zip(model.pieces, model.types, strict=True)
        if kind == PieceType.USER_DEFINED
    ]
    library.add_tokens(user)
    return library


def _unigram(
    model: SentencePieceModel,
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
        model: of SentencePiece.
        pieces: with their scores.
        unk_id: of what cannot be spelled.
        before: rules that come first.
        spaces: what the family makes one space, whatever the model says; None for none.
    """
    library = tokenizers.Tokenizer(models.Unigram(pieces, unk_id, model.byte_fallback))
    rules = [*before]
    if model.character_map:
        rules.append(normalizers.Precompiled(model.character_map))
    scheme: Literal["always", "never"] = "always" if model.space_before else "never"
    mark = pre_tokenizers.Metaspace(META_SPACE, prepend_scheme=scheme)
    of_words = not any(META_SPACE in piece[1:] for piece, _ in pieces)
    single = " {2,}" if model.single_spaces else None
    if (spaces := spaces or single) and model.space_before and of_words:
        library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), mark])
    else:
        mark.split = False
        if spaces:
            rules.append(normalizers.Strip(left=not model.space_before, right=True))
            rules.append(normalizers.Replace(Regex(spaces), " "))
        elif model.space_before:  # beside those that are there, which Metaspace takes for it
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
