"""The tokenizer: text to ids and back, built on the ``tokenizers`` library.

Ids, offsets and truncation are those of Hugging Face's BERT tokenizer. A tokenizer is immutable
(the library's truncation and padding are not used because they are settings of a shared object), so
one object can serve several threads, and it can be pickled.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from bothways.errors import ConfigError, LengthError, ModelError
from bothways.io.files import write_json, write_text
from bothways.shipped import model_folder
from bothways.tokenization.bert_settings import (
    bert_settings,
    model_kind,
    normalization_preset,
    takes_characters_apart,
    with_settings,
    word_starts,
)
from bothways.tokenization.normalization import (
    Normalization,
    Rules,
    check_texts,
    normalizer,
    not_text_error,
    word_splitter,
)
from bothways.tokenization.offsets import whole_characters
from bothways.tokenization.pieces import (
    CLS,
    CONTINUES,
    META_SPACE,
    SEP,
    SPECIAL_PIECES,
    UNK,
    check_special_pieces,
    ids_of,
    pieces_by_id,
)
from bothways.tokenization.tokenizer_files import (
    STRIPS_LATIN_AND_GREEK,
    read_added_tokens,
    read_library_file,
    read_settings,
    read_vocabulary,
    refuse_other_tokenizers,
    refuse_undeclared,
    with_added_tokens,
)
from bothways.tokenization.truncation import Truncation, truncated_lengths

LONGEST_WORD = 100
"""Characters; a longer word becomes [UNK], as in Hugging Face's BERT tokenizer."""

VOCABULARY_FILE = "vocab.txt"
TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"


@dataclass(frozen=True)
class Encoding:
    """[CLS] A [SEP], or [CLS] A [SEP] B [SEP]; all lists have one entry per token."""

    tokens: list[int]
    """Ids."""
    segments: list[int]
    """0 for [CLS] A [SEP], 1 for B [SEP]."""
    offsets: list[tuple[int, int]]
    """Start and end in characters of the token's segment as passed in; (0, 0) for [CLS], [SEP]."""
    words: list[int | None]
    """Number of the word within the segment, where words are split at white space and around every
    punctuation mark; None for [CLS], [SEP]."""
    cut: int
    """Tokens that truncation removed."""


class Tokenizer:
    """A BERT tokenizer: normalisation, WordPiece and the special tokens.

    Attributes:
        pieces: the vocabulary; the index of a piece is its id.
        vocab_size: number of pieces.
        lowercase: whether text is lower-cased.
        normalization: the preset applied to text, ``bert`` or ``composed``; ``other`` for files
            with other rules.
        kind: ``wordpiece``, ``bpe`` or ``byte-bpe``; ``other`` for files of another model.
        pad_id, unk_id, cls_id, sep_id, mask_id: the special tokens.
        special_ids: int64 [5], those five, sorted.
        starts_word: bool [V]; True for pieces that start a word (special tokens are words of their
            own), False for pieces that continue one. Words are those of the normalised text, split
            at white space and around every punctuation mark. (In BPE on characters, [UNK] may
            replace a part of a word; it counts as a start here.)
        fingerprint: digest of the pieces and of all settings that change ids.
    """

    def __init__(self, library: tokenizers.Tokenizer, *, source: str | Path = "vocabulary"):
        """Wrap a tokenizer of the library; use the ``from_`` constructors instead.

        Raises:
            ModelError: a special token is missing or the ids have gaps.
        """
        self.pieces = pieces_by_id(library.get_vocab(with_added_tokens=True), source)
        self.vocab_size = len(self.pieces)
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}
        check_special_pieces(self._ids, source)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self._ids[piece] for piece in SPECIAL_PIECES
        )
        self.special_ids: NDArray[np.int64] = np.sort(
            np.array([self._ids[piece] for piece in SPECIAL_PIECES], dtype=np.int64)
        )
        self._library = library
        library.no_truncation()
        library.no_padding()
        known = {token.content for token in library.get_added_tokens_decoder().values()}
        library.add_special_tokens(
            [AddedToken(p, normalized=False) for p in SPECIAL_PIECES if p not in known]
        )
        library.post_processor = TemplateProcessing(
            single=f"{CLS}:0 $A:0 {SEP}:0",
            pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
            special_tokens=[(CLS, self.cls_id), (SEP, self.sep_id)],
        )
        self._settings: dict[str, Any] = json.loads(library.to_str())
        del self._settings["model"]["vocab"]
        self._bert_settings = bert_settings(self._settings["normalizer"])
        self.lowercase = self._bert_settings["do_lower_case"]
        self.normalization = normalization_preset(library.normalizer, self._bert_settings)
        self.kind = model_kind(self._settings)
        self.starts_word: NDArray[np.bool_] = word_starts(self.pieces, self._settings)
        self.fingerprint = self._digest()

    # ------------------------------------------------------------------------------------- files

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read a folder's tokenizer.json, or its vocab.txt and tokenizer_config.json.

        ``folder`` may also be the path of a tokenizer.json, the path of any other file, which is
        read as a vocab.txt, or the name of a shipped model. A vocab.txt is uncased unless the
        tokenizer_config.json next to it says otherwise; tokens that were added to it in
        transformers, which stand in files next to it, are read too.

        If the tokenizer_config.json next to a tokenizer.json names the class BertTokenizer, its
        settings for case, accents and Chinese characters take precedence, as in transformers.
        Settings that it lacks come, unlike there, from the tokenizer.json.

        Raises:
            ModelError: there is no vocabulary, it is not usable for a BERT, or a vocab.txt belongs
                to a tokenizer that splits text by other rules.
        """
        path = model_folder(folder)
        if path.is_dir():
            candidates = [path / TOKENIZER_FILE, path / VOCABULARY_FILE]
            file = next((file for file in candidates if file.is_file()), None)
            if file is None:
                raise ModelError(
                    f"{path}: neither {TOKENIZER_FILE} nor {VOCABULARY_FILE} is in this folder. "
                    "Name a folder that has one of them, or learn a vocabulary with "
                    "`bothways vocab`."
                )
            path = file
        if not path.is_file():
            raise ModelError(f"{path}: no such file or folder, so there is no vocabulary to read.")
        if path.suffix == ".json":
            library = read_library_file(path)
            settings = read_settings(path.with_name(SETTINGS_FILE))
            return cls(with_settings(library, settings), source=path)
        settings = read_settings(path.with_name(SETTINGS_FILE))
        pieces = read_vocabulary(path)
        refuse_other_tokenizers(path, pieces)
        if not {"do_lower_case", "normalization"} & settings.keys():
            refuse_undeclared(path, pieces, settings)
        library = _word_pieces(
            ids_of(pieces, path),
            lowercase=settings.get("do_lower_case", True),
            # Folders of 0.1 have one setting for both; it is null if nothing is said.
            strip_accents=settings.get(STRIPS_LATIN_AND_GREEK, settings.get("strip_accents")),
            split_cjk=settings.get("tokenize_chinese_chars", True),
            normalization=settings.get("normalization", "bert"),
        )
        added = read_added_tokens(path, settings)
        return cls(with_added_tokens(library, added, path), source=path)

    @classmethod
    def from_pieces(
        cls,
        pieces: Sequence[str],
        *,
        lowercase: bool = True,
        normalization: Normalization = "bert",
    ) -> Tokenizer:
        """A WordPiece tokenizer whose ids are the indices in ``pieces``.

        Raises:
            ModelError: a piece is empty, has a line break or is a duplicate; a special piece is
                missing.
        """
        ids = ids_of(pieces, "vocabulary")
        return cls(_word_pieces(ids, lowercase=lowercase, normalization=normalization))

    @classmethod
    def from_merges(
        cls,
        pieces: Sequence[str],
        merges: Sequence[tuple[str, str]],
        *,
        byte_level: bool,
        lowercase: bool = True,
        normalization: Normalization = "bert",
    ) -> Tokenizer:
        """A BPE tokenizer: the same words as WordPiece, segmented by applying the merges in order.

        Args:
            pieces: the vocabulary; indices are ids.
            merges: pairs of pieces in the order of merging.
            byte_level: pieces consist of bytes, spelled in the usual visible characters, and a word
                starts with the one for a space. Otherwise they consist of characters, ``##`` marks
                those that continue a word, and a character without a piece becomes [UNK].
            lowercase: lower-case and strip accents.
            normalization: the preset.

        Raises:
            ModelError: a piece is a duplicate, or a special piece is missing.
        """
        ids = ids_of(pieces, "vocabulary")
        if byte_level:
            model = models.BPE(ids, [*merges])
        else:
            model = models.BPE(
                ids, [*merges], unk_token=UNK, continuing_subword_prefix=CONTINUES, fuse_unk=True
            )
        library = tokenizers.Tokenizer(model)
        library.normalizer = normalizer(lowercase=lowercase, normalization=normalization)
        library.pre_tokenizer = word_splitter()
        library.decoder = decoders.WordPiece(prefix=CONTINUES)
        if byte_level:
            bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
            library.pre_tokenizer = pre_tokenizers.Sequence([word_splitter(), bytes_of_words])
            library.decoder = decoders.Sequence(
                [decoders.ByteLevel(), decoders.Strip(" ", 1, 0), decoders.WordPiece(prefix="")]
            )
        return cls(library)

    def save(self, folder: str | Path, *, max_length: int | None = None) -> None:
        """Write vocab.txt, tokenizer_config.json and tokenizer.json, each atomically.

        ``max_length``, in tokens, is stored for Hugging Face's ``truncation=True``; it is not used
        here.

        Raises:
            DiskError: a file could not be written.
        """
        folder = Path(folder)
        composed = {
            "normalization": "composed",
            STRIPS_LATIN_AND_GREEK: self._bert_settings["strip_accents"],
        }
        settings = {
            # This class makes AutoTokenizer use tokenizer.json unchanged. BertTokenizer would
            # rebuild the normaliser from the three settings below, and lower-case by default.
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self._bert_settings,
            "strip_accents": takes_characters_apart(self._library.normalizer),
            **(composed if self.normalization == "composed" else {}),
            **{
                f"{name}_token": piece
                for name, piece in zip(
                    ("pad", "unk", "cls", "sep", "mask"), SPECIAL_PIECES, strict=True
                )
            },
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        }
        if max_length is not None:
            settings["model_max_length"] = max_length
        if self._settings["model"].get("type") == "WordPiece":
            write_text(folder / VOCABULARY_FILE, "".join(piece + "\n" for piece in self.pieces))
        write_json(folder / SETTINGS_FILE, settings)
        write_text(folder / TOKENIZER_FILE, self.to_json() + "\n")

    # ---------------------------------------------------------------------------------- encoding

    def encode(
        self,
        a: str,
        b: str | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
    ) -> Encoding:
        """:meth:`encode_batch` for one text or pair."""
        pairs = None if b is None else [b]
        return self.encode_batch([a], pairs, max_length=max_length, truncation=truncation)[0]

    def encode_batch(
        self,
        a: Sequence[str],
        b: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
    ) -> list[Encoding]:
        """Encode texts, or pairs of texts, in parallel.

        Args:
            a: the texts, or first segments.
            b: the second segments, one for each of ``a``.
            max_length: limit in tokens, [CLS] and [SEP] included; None for no limit.
            truncation: how longer inputs are handled. ``longest_first`` shortens the longer segment
                until both are equally long, then both; ``only_second`` shortens B; ``refuse``
                raises.

        Raises:
            LengthError: too long with ``refuse``, or even without B with ``only_second``.
            InputError: an input is not text, or a single text; or the numbers of A and B differ.
        """
        check_texts(a, b)
        encoded = self._run_library([*a] if b is None else [*a, *b])
        results = []
        for number in range(len(a)):
            parts = [encoded[number]] if b is None else [encoded[number], encoded[len(a) + number]]
            sizes = [len(part) for part in parts]
            try:
                keep = truncated_lengths(sizes, max_length, truncation)
            except LengthError as error:
                where = "" if len(a) == 1 else f"text {number + 1} of {len(a)}: "
                raise LengthError(where + str(error)) from None
            result = self._assemble(parts, keep, cut=sum(sizes) - sum(keep))
            if self.normalization != "bert":  # rules that may compose characters
                texts = [a[number]] if b is None else [a[number], b[number]]
                result = replace(
                    result, offsets=whole_characters(result.offsets, result.segments, texts)
                )
            results.append(result)
        return results

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids only, without [CLS] and [SEP], at the full speed of the library.

        Raises:
            InputError: an input is not text, or a single text is given instead of a list.
        """
        check_texts(texts)
        texts = [*texts]
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise not_text_error(texts) from error
        return [encoding.ids for encoding in encodings]

    def _run_library(self, texts: list[str]) -> list[tokenizers.Encoding]:
        try:
            return self._library.encode_batch(texts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise not_text_error(texts) from error

    def _assemble(self, parts: list[tokenizers.Encoding], keep: list[int], *, cut: int) -> Encoding:
        result = Encoding(
            tokens=[self.cls_id], segments=[0], offsets=[(0, 0)], words=[None], cut=cut
        )
        for segment, (part, kept) in enumerate(zip(parts, keep, strict=True)):
            result.tokens.extend(part.ids[:kept])
            result.offsets.extend(part.offsets[:kept])
            result.words.extend(part.word_ids[:kept])
            result.tokens.append(self.sep_id)
            result.offsets.append((0, 0))
            result.words.append(None)
            result.segments.extend([segment] * (kept + 1))
        return result

    # ---------------------------------------------------------------------------------- decoding

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text for ids; spaces and case are restored only as far as WordPiece keeps them.

        Raises:
            ModelError: an id is outside the vocabulary.
        """
        listed = [int(i) for i in ids]
        for i in listed:
            self.piece(i)
        return self._library.decode(listed, skip_special_tokens=skip_special)

    def id(self, piece: str) -> int:
        """The id of a piece.

        Raises:
            ModelError: there is no such piece; the message names the nearest ones.
        """
        if piece in self._ids:
            return self._ids[piece]
        near = difflib.get_close_matches(piece, self.pieces, n=3)
        hint = f" The nearest: {', '.join(near)}." if near else ""
        raise ModelError(f"{piece!r} is not one of the {self.vocab_size} pieces.{hint}")

    def piece(self, id: int) -> str:
        """The piece of an id.

        Raises:
            ModelError: the id is outside the vocabulary.
        """
        if not 0 <= id < self.vocab_size:
            raise ModelError(
                f"id {id} is not in the vocabulary, whose ids are 0 to {self.vocab_size - 1}. "
                "The ids were most likely made with another vocabulary."
            )
        return self.pieces[id]

    def text_of(self, id: int) -> str:
        """A piece as it appears in text: without the prefix that marks its position in the word.

        Raises:
            ModelError: the id is outside the vocabulary.
        """
        piece = self.piece(id)
        if id in self.special_ids:
            return piece
        if self.kind == "byte-bpe":
            return str(decoders.ByteLevel().decode([piece])).removeprefix(" ")
        return piece.removeprefix(META_SPACE if self.starts_word[id] else CONTINUES)

    def normalize(self, text: str) -> str:
        """The normalised text, before it is split into words.

        Raises:
            InputError: the input is not text.
        """
        rules = self._library.normalizer
        try:
            return rules.normalize_str(text) if rules else text
        except (TypeError, UnicodeEncodeError) as error:
            raise not_text_error([text]) from error

    @property
    def rules(self) -> Rules:
        """How text is normalised.

        Raises:
            ConfigError: the rules are of neither preset.
        """
        if self.normalization == "other":
            raise ConfigError(
                "the tokenizer's normalisation is neither bert nor composed, so its words cannot "
                "be counted; use a vocabulary with one of the two."
            )
        return {
            "lowercase": self.lowercase,
            "normalization": self.normalization,
            "strip_accents": self._bert_settings["strip_accents"],
            "split_cjk": self._bert_settings["tokenize_chinese_chars"],
        }

    def to_json(self) -> str:
        """The content of tokenizer.json."""
        return self._library.to_str(pretty=True)

    def _digest(self) -> str:
        settings = {key: self._settings[key] for key in ("normalizer", "pre_tokenizer", "model")}
        if (settings["normalizer"] or {}).get("type") == "BertNormalizer":
            # strip_accents may be null or the value that follows from it; both mean the same.
            strips = self._bert_settings["strip_accents"]
            settings["normalizer"] = {**settings["normalizer"], "strip_accents": strips}
        added = sorted(token["content"] for token in self._settings["added_tokens"])
        text = json.dumps([self.pieces, added, settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _word_pieces(
    ids: dict[str, int],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_cjk: bool = True,
    normalization: Normalization = "bert",
) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(
        models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=LONGEST_WORD)
    )
    library.normalizer = normalizer(
        lowercase=lowercase,
        strip_accents=strip_accents,
        split_cjk=split_cjk,
        normalization=normalization,
    )
    library.pre_tokenizer = word_splitter()
    library.decoder = decoders.WordPiece(prefix=CONTINUES)
    return library
