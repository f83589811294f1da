"""Reading the files of a tokenizer; ``pieces`` checks the vocabulary that results."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from bothways.errors import InputError, ModelError
from bothways.io.folder_files import (
    BESIDE_PIECES,
    BYTES_PER_PIECE,
    MOST_PIECES,
    VOCABULARIES,
    checked,
    count_lines,
    ends_a_line,
    is_there,
)
from bothways.io.json_files import parse_json, read_json_file
from bothways.io.text import read_whole
from bothways.tokenization.normalization import PRESETS, normalizer
from bothways.tokenization.pieces import CONTINUES, META_SPACE
from bothways.tokenization.tokenizer_classes import ANY_CLASS, CLASSES, WORDPIECE, plain_name

STRIPS_LATIN_AND_GREEK = "strip_latin_and_greek"
"""The setting in a tokenizer_config.json for the accents that ``composed`` strips. Its
``strip_accents`` is read by transformers, which would take Hangul apart too."""

REPAIR = (
    "Repair it, or get it again from where the folder is from: without it text may be read "
    "otherwise."
)
"""Ends messages about settings of a tokenizer."""

# Keys that no settings have -> the file that has them.
_OTHERS = {
    "hidden_size": "the config.json of a model",
    "pre_tokenizer": "a tokenizer.json",
    "weight_map": "the index of weights in parts",
}
_CONFIGS = ("tokenizer_config.json", "config.json")
_ADDED, SPECIAL_FILE = "added_tokens.json", "special_tokens_map.json"


def read_library_file(path: Path) -> tokenizers.Tokenizer:
    """Read a tokenizer.json.

    Raises:
        ModelError: the file is damaged.
    """
    try:
        library = tokenizers.Tokenizer.from_str(read_whole(checked(path)))
    except InputError as error:
        raise ModelError(str(error)) from None
    except Exception as error:  # the library raises bare Exception for every kind of damage
        if other := _no_tokenizer(path):
            raise ModelError(
                f"{path} is {other}, and no tokenizer.json. Get it again from where the folder is "
                "from; or, with an intact vocab.txt beside it, remove it."
            ) from None
        raise ModelError(
            f"{path}: cannot be read as a tokenizer: {error}. If it is whole, a later version of "
            f"the package tokenizers wrote it than the one here ({tokenizers.__version__}): pip "
            "install -U tokenizers; else copy it again, or, with an intact vocab.txt beside it, "
            "remove it."
        ) from error
    if getattr(library.model, "dropout", None):
        raise ModelError(
            f"{path}: its model leaves out pairs at random (dropout {library.model.dropout}), so "
            'that a text has other ids each time. Write "dropout": null to it.'
        )
    rules = library.normalizer and parse_json(library.normalizer.__getstate__().decode())
    if (growth := _growth(rules)) > _MOST_GROWTH:
        raise ModelError(
            f"{path}: its normalizer makes a text up to {growth:.3g} times as long; at most "
            f"{_MOST_GROWTH} times is read here. Take its replacements out."
        )
    if (longest := getattr(library.model, "max_input_chars_per_word", 0)) > _LONGEST_WORD:
        raise ModelError(  # WordPiece takes the square of a word's length
            f"{path}: max_input_chars_per_word of its model is {longest:,}; it must be at most "
            f"{_LONGEST_WORD:,}, and is usually 100."
        )
    return library


def refuse_panic(error: BaseException, where: object) -> None:
    """Explain a panic of the library's code in Rust, at rules of a file.

    Raises:
        ModelError: it was one.
    """
    if type(error).__name__ == "PanicException":  # which no module has
        raise ModelError(
            f"{where}: the tokenizer's rules cannot be applied ({str(error)[:200]}). Use the "
            "tokenizer.json that the model was trained with."
        ) from None


_MOST_GROWTH, _LONGEST_WORD = 64, 1000
# What in a regular expression may match nothing, so that text is put in without any taken out.
_MAYBE_EMPTY = re.compile(r"[*?|$]|\{[0,]|\(\)|(?<!\[)\^|\\[^\WdDsSwWpPhHnrtfvuxRNO]")


def _growth(rules: Any) -> float:
    """How many times as long, at most, a normalizer's replacements make a text of one letter."""
    if not isinstance(rules, dict):
        return 1.0
    if "normalizers" in rules:
        return math.prod(map(_growth, rules["normalizers"]))
    put_in = len(rules.get("content") or rules.get("prepend") or "")
    pattern = rules.get("pattern") or {}
    regex = pattern.get("Regex")
    taken_out = len(pattern.get("String", "")) if regex is None else not _MAYBE_EMPTY.search(regex)
    return max(1.0, put_in / taken_out) if taken_out else 1.0 + put_in


def _no_tokenizer(path: Path) -> str:
    """What a file is that no release of the package tokenizers has written; empty for others."""
    if not path.stat().st_size:
        return "empty"
    try:
        values = read_json_file(path)
    except InputError:
        return ""
    if not isinstance(values, dict):
        return "a list or a single value"
    if values and all(isinstance(id, int) for id in values.values()):
        return "a map of pieces to ids, such as vocab.json or added_tokens.json"
    if "model" not in values:
        return "an object of other settings"
    return ""


def read_settings(path: Path) -> dict[str, Any]:
    """Read a tokenizer_config.json; empty if there is none.

    Raises:
        ModelError: the file is damaged, or a setting has the wrong type.
    """
    if not is_there(path):
        return {}
    try:
        settings = read_json_file(checked(path))
    except InputError as error:
        raise ModelError(f"{error.place}: {error.problem} {REPAIR}") from error
    if not isinstance(settings, dict):
        raise ModelError(f"{path}: expected an object of settings. {REPAIR}")
    for key, what in _OTHERS.items():
        if key in settings and "tokenizer_class" not in settings:
            raise ModelError(f"{path} holds {what}, not the settings of a tokenizer. {REPAIR}")
    names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", STRIPS_LATIN_AND_GREEK)
    for name in names:
        if settings.get(name) is None:
            settings.pop(name, None)  # null means the default, as if it were absent
        elif not isinstance(settings[name], bool):
            raise ModelError(f"{path}: {name} is {settings[name]!r}; it must be true or false.")
    if settings.get("normalization", "bert") not in PRESETS:
        raise ModelError(
            f"{path}: normalization is {settings['normalization']!r}; it must be one of "
            f"{', '.join(PRESETS)}."
        )
    return settings


def read_vocabulary(path: Path) -> list[str]:
    """Read the pieces of a vocab.txt.

    Raises:
        ModelError: the file is not UTF-8, has more lines than any vocabulary, or its lines are not
            one piece each.
    """
    try:
        checked(path)
        if (lines := count_lines(path)) > MOST_PIECES:
            raise ModelError(
                f"{path}: {lines:,} lines; a vocabulary has at most {MOST_PIECES:,} pieces. This "
                "is another file."
            )
        text = read_whole(path, as_it_is=True)
    except InputError as error:
        raise ModelError(f"{error} A vocab.txt is UTF-8, one piece per line.") from error
    # Only \n, \r\n and \r end a line here: pieces may contain other separators.
    pieces = [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]
    if pieces and pieces[-1] == "\x1a":  # which once ended files
        pieces.pop()
    while pieces and not pieces[-1]:
        pieces.pop()
    _refuse_other_lines(path, text, pieces)
    return pieces


_MOSTLY = 0.9
# What most lines of a file that is no vocab.txt hold, and what leaves the pieces.
_OTHER_LINES = (
    (
        re.compile(r"\S+[\t ]+\d+(\.\d+)?"),
        "a number after the piece ({}), such as a count",
        "cut -d' ' -f1 OLD > NEW, or with tabs cut -f1 OLD > NEW, leaves the pieces",
    ),
    (
        re.compile(r"\d+[\t ,;:]+\S+"),
        "a number before the piece ({}), such as its id",
        "sed -E 's/^[0-9]+[^0-9[:alpha:]]//' leaves the pieces if one sign divides them",
    ),
    (
        re.compile(r"\S+[,;]\d+(\.\d+)?"),
        "a number after the piece ({}), such as its id",
        "sed -E 's/.[0-9.]+\\r?$//' OLD > NEW leaves the pieces",
    ),
    (
        re.compile(r"([\"']).*\1,?"),
        "the piece in quotation marks ({})",
        "sed -E 's/^.(.*).$/\\1/' OLD > NEW takes them off if nothing else is there",
    ),
    (
        re.compile(r"\s+\S.*|.*\S\s+", re.DOTALL),
        "white space beside the piece ({})",
        "sed -E 's/^[[:space:]]+//; s/[[:space:]]+$//' OLD > NEW takes it off",
    ),
)


def _refuse_other_lines(path: Path, text: str, pieces: Sequence[str]) -> None:
    """Refuse a file whose lines are not one piece each.

    Raises:
        ModelError: naming what they are, and what makes a vocabulary of them.
    """
    problem, remedy = _other_lines(text, pieces)
    if problem:
        raise ModelError(
            f"{path}: {problem}. A vocab.txt has one piece per line and nothing else: {remedy}. "
            "Their order must be that of the ids."
        )


def _other_lines(text: str, pieces: Sequence[str]) -> tuple[str, str]:
    """What the lines hold instead, and the remedy; empty if they are pieces."""
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        return f"line {line} holds a NUL, which no piece has: the file is damaged", "copy it again"
    if len(pieces) > 3 and not any(pieces[1::2]) and all(pieces[::2]):
        twice = "\r\r\n" in text
        return (
            "every other line is empty, as if line ends had been converted twice",
            "tr -d '\\r' < OLD > NEW" if twice else "grep . OLD > NEW",
        )
    if text.lstrip().startswith(('{"', '["', "{\n", "[\n")) and text.rstrip().endswith(("}", "]")):
        return (
            "it is JSON",
            'python -c \'import json; v = json.load(open("OLD")); '
            'print(*(sorted(v, key=v.get) if isinstance(v, dict) else v), sep="\\n")\' > NEW',
        )
    for end in "\x85\u2028\u2029\x0b\x0c":
        if text.count(end) > len(pieces):
            return (
                f"its lines end in U+{ord(end):04X}, which ends no line here",
                f'python -c \'print(open("OLD", encoding="utf-8").read().replace('
                f'"\\u{ord(end):04x}", "\\n"), end="")\' > NEW',
            )
    for pattern, what, remedy in _OTHER_LINES:
        found = [piece for piece in pieces if pattern.fullmatch(piece)]
        if found and len(found) >= _MOSTLY * len(pieces):
            return f"its lines hold {what.format(repr(found[0][:40]))}", remedy
    return "", ""


def refuse_larger(source: Path, rows: int) -> None:
    """Refuse a vocabulary that is far larger than the model's before it is read into memory.

    Args:
        source: its folder or file.
        rows: of the model's embedding.

    Raises:
        ModelError: naming both numbers.
    """
    for path in [source / name for name in VOCABULARIES] if source.is_dir() else [source]:
        if not path.is_file() or path.suffix not in (".txt", ".json"):
            continue
        size = path.stat().st_size
        if size <= BESIDE_PIECES + rows * BYTES_PER_PIECE and path.suffix == ".json":
            continue
        found = f"{size / 2**20:,.0f} MiB"
        if path.suffix == ".txt":
            lines = count_lines(path) if size > BESIDE_PIECES else 0
            found = f"{lines:,} lines" if lines > rows else ""
        if found:
            raise ModelError(
                f"{path}: {found}, but the model has {rows:,} pieces; they do not belong together. "
                "Put the files that the model was trained with into its folder."
            )


def refuse_cut_off(source: Path) -> None:
    """Refuse a vocab.txt that ends within a line, where it has fewer pieces than the model.

    Raises:
        ModelError: it is cut off.
    """
    path = source / "vocab.txt" if source.is_dir() else source
    if path.name != "vocab.txt" or not path.is_file() or is_there(path.with_name("tokenizer.json")):
        return
    if not ends_a_line(path):
        raise ModelError(
            f"{path} ends without a line end and has fewer pieces than the model has rows: it "
            "seems to be cut off. Copy it again; or, if it is whole, end its last line."
        )


def read_added_tokens(path: Path, settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """The tokens that were added to a vocabulary in transformers, by id.

    Its later releases list them in the tokenizer_config.json, with how they are matched; earlier
    ones in an added_tokens.json, where those that the settings or the special_tokens_map.json name
    are special.

    Args:
        path: the vocabulary's file.
        settings: those of the tokenizer_config.json next to it.

    Raises:
        ModelError: a file is damaged.
    """
    listed = settings.get("added_tokens_decoder")
    source = path.with_name(_CONFIGS[0] if listed is not None else _ADDED)
    try:
        if listed is not None:
            return {int(id): AddedToken(**token) for id, token in listed.items()}
        if not (ids := read_object(source)):
            return {}
        special = _token_names({**read_object(path.with_name(SPECIAL_FILE)), **settings})
        return {
            int(id): AddedToken(text, normalized=text not in special, special=text in special)
            for text, id in ids.items()
        }
    except (
        AttributeError,
        InputError,
        LookupError,
        ArithmeticError,
        TypeError,
        ValueError,
    ) as error:
        raise ModelError(
            f"{source}: its added tokens cannot be read ({error}, here or in a file next to it). "
            "Complete the download."
        ) from error


def with_added_tokens(
    library: tokenizers.Tokenizer, tokens: Mapping[int, AddedToken], source: Path
) -> tokenizers.Tokenizer:
    """Add tokens under the ids that they had in a tokenizer_config.json or added_tokens.json.

    Raises:
        ModelError: an id belongs to another piece, or the ids do not continue the vocabulary's.
    """
    for id, token in sorted(tokens.items()):
        known, free = library.token_to_id(token.content), library.get_vocab_size()
        if id != (free if known is None else known):
            expected = f"the next id of the vocabulary is {free}"
            if known is not None:
                expected = f"its id in the vocabulary is {known}"
            raise ModelError(
                f"{source}: the added token {token.content!r} has id {id}, but {expected}; the "
                "folder's files do not belong together."
            )
        library.add_tokens([token])
    return library


def with_named_tokens(
    library: tokenizers.Tokenizer, settings: Mapping[str, Any], path: Path, rows: int | None
) -> tokenizers.Tokenizer:
    """Add further special tokens that files name without an id, as transformers does: under the
    next ids, in their order.

    Args:
        library: the tokenizer.
        settings: those of the tokenizer_config.json.
        path: the vocabulary's file, next to which a special_tokens_map.json may be.
        rows: of the model's embedding, if it is known; tokens without a row are no pieces.
    """
    known = added_tokens(library)
    for text in named_tokens(settings, path):
        if text in known:
            continue
        room = rows is None or library.get_vocab_size() < rows
        if room or library.token_to_id(text) is not None:
            library.add_special_tokens([AddedToken(text, normalized=False)])
            known.add(text)
    return library


def named_tokens(settings: Mapping[str, Any], path: Path) -> list[str]:
    """The further special tokens that files name, besides those of roles.

    Args:
        settings: those of the tokenizer_config.json.
        path: of a file beside them.
    """
    named = {**read_object(path.with_name(SPECIAL_FILE)), **settings}
    items: list[Any] = [named.get(key) for key in ("bos_token", "eos_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        value = named.get(key)
        listed = list(value.values()) if isinstance(value, Mapping) else value
        items += listed if isinstance(listed, list) else []
    texts = [item.get("content") if isinstance(item, Mapping) else item for item in items]
    return [text for text in texts if isinstance(text, str) and text]


def added_tokens(library: tokenizers.Tokenizer) -> set[str]:
    """The tokens that are found in text before it is split."""
    return {token.content for token in library.get_added_tokens_decoder().values()}


def read_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if there is none."""
    return dict(read_json_file(checked(path))) if is_there(path) else {}


def _token_names(settings: Mapping[str, Any]) -> set[str]:
    """The tokens that settings such as ``cls_token`` or ``extra_special_tokens`` name."""
    named: list[Any] = []
    for key, value in settings.items():
        if key.endswith("_token"):
            named.append(value)
        elif key.endswith("special_tokens") and isinstance(value, list):
            named += value
    return {item["content"] if isinstance(item, dict) else str(item) for item in named}


def is_cased(path: Path, pieces: Sequence[str], settings: Mapping[str, Any]) -> bool:
    """Whether a vocabulary of which nothing says so is cased: false, but beside a bert_config.json,
    as BERT's authors say it in the name of the folder only.

    Args:
        path: the vocab.txt.
        pieces: its content.
        settings: what tokenizer_config.json says of other things.

    Raises:
        ModelError: no uncased text becomes its pieces, as they have capitals, or Hangul or accents
            that the uncased rules take apart, and there is no such file.
    """
    rules = normalizer(lowercase=True, strip_accents=settings.get("strip_accents"), split_cjk=False)
    bodies = [p.removeprefix(CONTINUES) for p in pieces if not (p[:1] == "[" and p[-1:] == "]")]
    words = [body for body in bodies if any(map(str.isalpha, body))]
    lost = [word for word in words if rules.normalize_str(word).strip() != word]
    capitals = [word for word in lost if word != word.lower()]
    if len(lost) <= len(words) / 50:
        return False
    if capitals and is_there(path.with_name(_OF_AUTHORS)):
        return True
    what, setting = "needs other normalization", '"normalization": "composed"'
    if capitals:  # of which an uncased vocabulary has none
        what, setting = "is cased", '"do_lower_case": false'
    raise ModelError(
        f"{path}: uncased text never becomes {len(lost):,} of its pieces ({lost[0]!r}), so the "
        f"vocabulary {what}, and nothing says so. Write {{{setting}}} to "
        f"{path.with_name(_CONFIGS[0])}, or complete the download."
    )


_OF_AUTHORS = "bert_config.json"


def refuse_other_tokenizers(path: Path, pieces: Sequence[str]) -> None:
    """Refuse a vocab.txt whose text is not split as BERT does it, such as by MeCab or
    SentencePiece: almost every id would be a wrong one, without an error.

    Args:
        path: the vocab.txt; the config files next to it may name another tokenizer.
        pieces: its content.

    Raises:
        ModelError: the pieces or the config files are those of another tokenizer.
    """
    for config in (path.with_name(name) for name in _CONFIGS):
        if found := _other_tokenizer(config):
            raise ModelError(
                f"{config}: {found}, which is not a tokenizer that bothways has; with BERT's rules "
                f"the ids of {path.name} would be wrong ones. Save the tokenizer as a "
                "tokenizer.json, or remove the entry if text is split by BERT's rules after all."
            )
    spaces = sum(piece.startswith(META_SPACE) for piece in pieces)
    if spaces > 1 and not any(piece.startswith("##") for piece in pieces):
        raise ModelError(
            f"{path}: {spaces:,} pieces begin with {META_SPACE!r} and none with '##': "
            "this is the vocabulary of SentencePiece, not of WordPiece. Save the tokenizer as a "
            "tokenizer.json."
        )


def _other_tokenizer(config: Path) -> str:
    """The entry of a config file that names a tokenizer with other rules; empty if none does."""
    try:
        settings = read_json_file(checked(config))
    except InputError:  # reported where the file is needed
        return ""
    if not isinstance(settings, dict):
        return ""
    name = plain_name(str(settings.get("tokenizer_class") or ""))
    if name and name not in ANY_CLASS and CLASSES.get(name) is not WORDPIECE:
        return f"tokenizer_class is {settings['tokenizer_class']}"
    for key, usual in (("word_tokenizer_type", "basic"), ("subword_tokenizer_type", "wordpiece")):
        if settings.get(key, usual) not in (usual, None):
            return f"{key} is {settings[key]}"
    return ""
