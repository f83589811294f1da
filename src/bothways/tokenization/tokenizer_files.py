"""Reading the files of a tokenizer; ``pieces`` checks the vocabulary that results."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from bothways.errors import InputError, ModelError
from bothways.io.folder_files import checked, is_there
from bothways.io.json_files import read_json_file
from bothways.io.text import read_whole
from bothways.tokenization.normalization import normalizer
from bothways.tokenization.pieces import CONTINUES

STRIPS_LATIN_AND_GREEK = "strip_latin_and_greek"
"""The setting in a tokenizer_config.json for the accents that ``composed`` strips. Its
``strip_accents`` is read by transformers, which would take Hangul apart too."""
SPECIAL_FILE = "special_tokens_map.json"
_SETTINGS_FILE, _ADDED, _OF_AUTHORS = (
    "tokenizer_config.json",
    "added_tokens.json",
    "bert_config.json",
)
_SWITCHES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", STRIPS_LATIN_AND_GREEK)
_LOST = 0.02  # of the words of a vocabulary, from which on it is of other rules


def read_library_file(path: Path) -> tokenizers.Tokenizer:
    """Read a tokenizer.json.

    Raises:
        ModelError: the file is damaged, or its ids are random.
    """
    try:
        library = tokenizers.Tokenizer.from_str(read_whole(checked(path)))
    except InputError as error:
        raise ModelError(str(error)) from None
    except Exception as error:  # the library raises bare Exception for every kind of damage
        raise ModelError(
            f"{path}: cannot be read by the package tokenizers {tokenizers.__version__}: {error}."
        ) from error
    if getattr(library.model, "dropout", None):
        raise ModelError(f'{path}: its model has a dropout; set "dropout" to null.')
    return library


def read_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty if there is none.

    Raises:
        ModelError: the file is damaged, or holds no object.
    """
    if not is_there(path):
        return {}
    try:
        values = read_json_file(checked(path))
    except InputError as error:
        raise ModelError(str(error)) from error
    if not isinstance(values, dict):
        raise ModelError(f"{path}: a JSON object is expected.")
    return values


def read_settings(path: Path) -> dict[str, Any]:
    """Read a tokenizer_config.json; empty if there is none.

    Raises:
        ModelError: the file is damaged, or a setting has the wrong type.
    """
    settings = read_object(path)
    for name in _SWITCHES:
        if settings.get(name) is None:
            settings.pop(name, None)  # null means the default, as if it were absent
        elif not isinstance(settings[name], bool):
            raise ModelError(f"{path}: {name} is {settings[name]!r}; it must be true or false.")
    return settings


def read_vocabulary(path: Path) -> list[str]:
    """Read the pieces of a vocab.txt.

    Raises:
        ModelError: the file is not UTF-8.
    """
    try:
        text = read_whole(checked(path), as_it_is=True)
    except InputError as error:
        raise ModelError(f"{error} A vocab.txt is UTF-8, one piece per line.") from error
    # Only \n, \r\n and \r end a line here: pieces may contain other separators.
    pieces = [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]
    while pieces and not pieces[-1]:
        pieces.pop()
    return pieces


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
    source = path.with_name(_ADDED if listed is None else _SETTINGS_FILE)
    try:
        if listed is not None:
            return {int(id): AddedToken(**token) for id, token in listed.items()}
        special = {*named_tokens(settings, path, of_roles=True)}
        return {
            int(id): AddedToken(text, normalized=text not in special, special=text in special)
            for text, id in read_object(source).items()
        }
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ModelError(f"{source}: its added tokens cannot be read ({error}).") from error


def with_added_tokens(
    library: tokenizers.Tokenizer, tokens: Mapping[int, AddedToken], source: Path
) -> tokenizers.Tokenizer:
    """Add tokens under the ids that they had in a tokenizer_config.json or added_tokens.json.

    Raises:
        ModelError: an id belongs to another piece, or the ids do not continue the vocabulary's.
    """
    for id, token in sorted(tokens.items()):
        known, free = library.token_to_id(token.content), library.get_vocab_size()
        if id != (expected := free if known is None else known):
            raise ModelError(
                f"{source}: the added token {token.content!r} has id {id}, and in the vocabulary "
                f"{expected}; the folder's files do not belong together."
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
    for text in dict.fromkeys(named_tokens(settings, path)):
        room = rows is None or library.get_vocab_size() < rows
        if text not in known and (room or library.token_to_id(text) is not None):
            library.add_special_tokens([AddedToken(text, normalized=False)])
    return library


def named_tokens(settings: Mapping[str, Any], path: Path, *, of_roles: bool = False) -> list[str]:
    """The special tokens that files name, besides those of roles or with them.

    Args:
        settings: those of the tokenizer_config.json.
        path: of a file beside them.
        of_roles: include ``mask_token`` and the like.
    """
    named = {**read_object(path.with_name(SPECIAL_FILE)), **settings}
    keys = (
        [key for key in named if key.endswith("_token")] if of_roles else ["bos_token", "eos_token"]
    )
    items: list[Any] = [named.get(key) for key in keys]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        value = named.get(key) or []
        items += value.values() if isinstance(value, Mapping) else value
    texts = [item.get("content") if isinstance(item, Mapping) else item for item in items]
    return [text for text in texts if isinstance(text, str) and text]


def added_tokens(library: tokenizers.Tokenizer) -> set[str]:
    """The tokens that are found in text before it is split."""
    return {token.content for token in library.get_added_tokens_decoder().values()}


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
    if len(lost) <= _LOST * len(words):
        return False
    capitals = any(word != word.lower() for word in lost)
    if capitals and is_there(path.with_name(_OF_AUTHORS)):
        return True
    setting = '"do_lower_case": false' if capitals else '"normalization": "composed"'
    raise ModelError(
        f"{path}: uncased text never becomes {len(lost):,} of its pieces ({lost[0]!r}), and "
        f"nothing says that it is cased or normalized otherwise. Write {{{setting}}} to "
        f"{path.with_name(_SETTINGS_FILE)}."
    )
