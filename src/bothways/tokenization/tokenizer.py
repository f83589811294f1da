"""The tokenizer: text to ids and back, built on the ``tokenizers`` library.

Ids, offsets and truncation are those of Hugging Face's fast tokenizers. A tokenizer is immutable
(the library's truncation and padding are not used because they are settings of a shared object), so
one object can serve several threads, and it can be pickled.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from bothways.errors import ConfigError, LengthError, ModelError
from bothways.io import html
from bothways.io.files import write_bytes, write_json, write_text
from bothways.tokenization.bert_settings import (
    bert_settings,
    model_kind,
    normalization_preset,
    takes_characters_apart,
    word_starts,
)
from bothways.tokenization.normalization import (
    PRESETS,
    Normalization,
    Rules,
    check_texts,
    not_text_error,
    word_splitter,
)
from bothways.tokenization.offsets import whole_characters
from bothways.tokenization.pieces import (
    BERT_ROLES,
    CLS,
    CONTINUES,
    META_SPACE,
    SEP,
    UNK,
    ids_of,
    pieces_by_id,
)
from bothways.tokenization.post_processing import post_processor, trims_offsets
from bothways.tokenization.reading import (
    SETTINGS_FILE,
    TOKENIZER_FILE,
    VOCABULARY_FILE,
    read_tokenizer,
    with_berts_words,
    word_pieces,
)
from bothways.tokenization.roles import Declared, find_roles
from bothways.tokenization.segmenter import SETTING, Segmenter
from bothways.tokenization.template import Special, Template
from bothways.tokenization.tokenizer_classes import TokenizerClass
from bothways.tokenization.tokenizer_files import STRIPS_LATIN_AND_GREEK

_T = TypeVar("_T")


@dataclass(frozen=True)
class Encoding:
    """A text or pair as a sequence, such as [CLS] A [SEP] B [SEP]; all lists have one entry per
    token."""

    ids: list[int]
    """The numbers of the tokens in the vocabulary."""
    segments: list[int]
    """By the tokenizer's template: for BERT 0 for [CLS] A [SEP], 1 for B [SEP]."""
    offsets: list[tuple[int, int]]
    """Start and end in characters of the token's text as passed in; (0, 0) for the template's
    special tokens."""
    words: list[int | None]
    """Number of the word within its text, where words are split by the tokenizer's rules (BERT's:
    at white space and around every punctuation mark); None for the template's special tokens."""
    cut: int
    """Tokens that truncation removed."""
    parts: tuple[slice, ...]
    """Where A, and B if there is one, lie among the tokens."""
    pieces: Sequence[str] = field(default=(), repr=False, compare=False)
    """The vocabulary that the ids are of."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> list[str]:
        """The tokens as they stand in the vocabulary, special ones included."""
        return [self.pieces[id] for id in self.ids]

    def __repr__(self) -> str:
        cut = f", {self.cut} cut" if self.cut else ""
        return f"Encoding of {len(self)} tokens{cut}: {' '.join(self.tokens)}"

    def _repr_html_(self) -> str:
        """The tokens, a colour for each word and none for special ones, with ids and offsets."""
        shown = []
        for token, id, place, word in zip(
            self.tokens, self.ids, self.offsets, self.words, strict=True
        ):
            note = f"id {id}" if word is None else f"id {id}, characters {place[0]} to {place[1]}"
            shown.append((token, str(id), note, word))
        return html.tokens(shown)


class Tokenizer:
    """A tokenizer: how text becomes ids, what its special pieces are for, and how sequences are
    built from texts.

    Attributes:
        pieces: the vocabulary; the index of a piece is its id.
        vocab_size: number of pieces.
        roles: which piece opens a sequence, closes a text, hides a token ...
        template: how texts become sequences: all that concerns special tokens in them.
        lowercase: whether text is lower-cased.
        normalization: the preset applied to text (``bert`` ...); ``other`` for files
            with other rules.
        kind: ``wordpiece``, ``bpe``, ``byte-bpe`` or ``unigram``; ``other`` for files of another
            model.
        special_ids: int64; the ids that have a role or a place in the template, sorted.
        starts_word: bool [V]; True for pieces that start a word (special tokens are words of their
            own), False for pieces that continue one. Words are those of the normalised text, split
            at white space and, by BERT's rules, around every punctuation mark. (In BPE on
            characters, [UNK] may replace a part of a word; it counts as a start here.)
        segmenter: divides texts into words before anything else is done with them, if there is one.
        fingerprint: digest of the pieces and of all settings that change ids.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        *,
        source: str | Path = "vocabulary",
        declared: Declared | None = None,
        usual: TokenizerClass | None = None,
        originals: Mapping[str, bytes] | None = None,
        segmenter: Segmenter | None = None,
        as_it_is: bool = False,
    ):
        """Wrap a tokenizer of the library; use the ``from_`` constructors instead.

        Args:
            library: it belongs to this object from now on.
            source: named in messages.
            declared: the roles that are known, if the object alone does not tell.
            usual: its class, which decides what is not declared.
            originals: files of the vocabulary that are saved with it.
            segmenter: divides texts before anything else is done with them.
            as_it_is: without a post-processor, texts get no special tokens.

        Raises:
            ModelError: the ids have gaps; or it is not known which pieces open and close sequences.
        """
        self.pieces = pieces_by_id(library.get_vocab(with_added_tokens=True), source)
        self.vocab_size = len(self.pieces)
        self._ids = {piece: i for i, piece in enumerate(self.pieces)}
        self._originals = dict(originals or {})
        self.segmenter = segmenter
        self._library = library
        library.no_truncation()
        library.no_padding()
        self._settings: dict[str, Any] = json.loads(library.to_str())
        self.roles, self.template = find_roles(
            *(self._settings, library.post_processor, self._ids, declared or {}, usual, source),
            as_it_is=as_it_is,
        )
        known = {token["content"] for token in self._settings["added_tokens"]}
        if plain := [p for p in self.roles.pieces if p not in known]:
            library.add_special_tokens([AddedToken(p, normalized=False) for p in plain])
            self._settings = json.loads(library.to_str())
        if not trims_offsets(self._settings["post_processor"]):
            library.post_processor = post_processor(self.template)
        vocabulary = self._settings["model"].pop("vocab")
        self._bert_settings = bert_settings(self._settings["normalizer"])
        self.lowercase = self._bert_settings["do_lower_case"]
        self.normalization = normalization_preset(library.normalizer, self._bert_settings)
        self.kind = model_kind(self._settings)
        self._scores = [score for _, score in vocabulary] if self.kind == "unigram" else []
        ids = {self._ids[piece] for piece in self.roles.pieces} | self.template.ids
        self.special_ids: NDArray[np.int64] = np.sort(np.array([*ids], dtype=np.int64))
        self.starts_word: NDArray[np.bool_] = word_starts(self.pieces, self._settings)
        self.fingerprint = self._digest()

    def __len__(self) -> int:
        return self.vocab_size

    def __contains__(self, piece: object) -> bool:
        return piece in self._ids

    def __call__(self, a: str, b: str | None = None, *, max_length: int | None = None) -> Encoding:
        """:meth:`encode`."""
        return self.encode(a, b, max_length=max_length)

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text as strings, without special tokens around them."""
        return [self.pieces[id] for id in self.encode_plain([text])[0]]

    def __repr__(self) -> str:
        case = "lower-cased" if self.lowercase else "cased"
        return f"Tokenizer: {self.kind}, {self.vocab_size:,} pieces, {case}, {self.normalization}"

    # ------------------------------------------------------------------------------------- roles

    @property
    def added(self) -> frozenset[str]:
        """The pieces that are found in text before it is split, special ones among them."""
        return frozenset(token["content"] for token in self._settings["added_tokens"])

    @property
    def continues(self) -> str:
        """The prefix of pieces that continue a word; empty if they are not marked."""
        return self._settings["model"].get("continuing_subword_prefix") or ""

    @property
    def unk_id(self) -> int | None:
        """The id for what the vocabulary cannot spell; None if it can spell everything."""
        return None if self.roles.unk is None else self._ids[self.roles.unk]

    @property
    def pad_id(self) -> int:
        """The id that fills up rows of a batch."""
        return self._role_id("pad")

    @property
    def cls_id(self) -> int:
        """The id that opens a sequence."""
        return self._role_id("cls")

    @property
    def sep_id(self) -> int:
        """The id that closes a text."""
        return self._role_id("sep")

    @property
    def mask_id(self) -> int:
        """The id that hides a token.

        Raises:
            ModelError: there is none, so the tokenizer cannot be used for masked language models.
        """
        return self._role_id("mask")

    @property
    def blank_id(self) -> int:
        """The id for a word of which nothing is left: unknown, or what comes nearest to it."""
        roles = self.roles
        piece = roles.unk or roles.mask or roles.pad or roles.sep
        return 0 if piece is None else self._ids[piece]

    def _role_id(self, role: str) -> int:
        piece = self.roles.items()[role]
        if piece is None:
            raise ModelError(
                f"this tokenizer has no {role} token; name one of its pieces as {role}_token in "
                "tokenizer_config.json."
            )
        return self._ids[piece]

    def in_one_segment(self) -> Tokenizer:
        """The same tokenizer for an encoder that has a single segment embedding."""
        if self.template.segments == 1:
            return self
        other = copy.copy(self)
        other.template = self.template.in_one_segment()
        # With the same fingerprint, as the ids of texts are the same, and the same tokenizer.json,
        # so that it has this fingerprint when it is read: its settings name the inputs.
        return other

    def with_segmenter(self, segmenter: Segmenter | None) -> Tokenizer:
        """The same tokenizer after another segmenter, or after none."""
        other = copy.copy(self)
        other.segmenter = segmenter
        other.fingerprint = other._digest()
        return other

    # ------------------------------------------------------------------------------------- files

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read the tokenizer of a folder.

        That is its tokenizer.json; or a vocab.txt (WordPiece), a vocab.json with merges.txt
        (byte-level BPE as RoBERTa's), a spiece.model (ALBERT's) or a sentencepiece.bpe.model
        (XLM-R's), with the tokenizer_config.json, special_tokens_map.json and added_tokens.json
        next to it. ``folder`` may also be the path of one of these files (any other is read as a
        vocab.txt), or the name of a shipped model.

        A vocab.txt is uncased unless the tokenizer_config.json next to it says otherwise. If the
        tokenizer_config.json next to a tokenizer.json names the class BertTokenizer, its settings
        for case, accents and Chinese characters take precedence, as in transformers. Settings that
        it lacks come, unlike there, from the tokenizer.json.

        Raises:
            ModelError: there is no vocabulary, it is not known how sequences are built from its
                pieces, or it belongs to a tokenizer that splits text by other rules.
        """
        read = vars(read_tokenizer(folder)).copy()
        one_segment = read.pop("one_segment")
        tokenizer = cls(**read)
        return tokenizer.in_one_segment() if one_segment else tokenizer

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
        model = word_pieces(ids_of(pieces, "vocabulary"))
        return cls(with_berts_words(model, lowercase=lowercase, normalization=normalization))

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
        library = with_berts_words(model, lowercase=lowercase, normalization=normalization)
        if byte_level:
            bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)
            library.pre_tokenizer = pre_tokenizers.Sequence([word_splitter(), bytes_of_words])
            library.decoder = decoders.Sequence(
                [decoders.ByteLevel(), decoders.Strip(" ", 1, 0), decoders.WordPiece(prefix="")]
            )
        return cls(library)

    def save(self, folder: str | Path, *, max_length: int | None = None) -> None:
        """Write tokenizer.json, tokenizer_config.json and the vocabulary's own files (vocab.txt, or
        those it was read from), each atomically.

        ``max_length``, in tokens, is stored for Hugging Face's ``truncation=True``; it is not used
        here.

        Raises:
            DiskError: a file could not be written.
        """
        folder = Path(folder)
        settings = {
            # This class makes AutoTokenizer use tokenizer.json unchanged. Others would rebuild
            # parts of it from settings; BertTokenizer would lower-case by default.
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self._rules_settings(),
            **{f"{role}_token": piece for role, piece in self.roles.items().items()},
            "model_input_names": [
                "input_ids",
                *(["token_type_ids"] if self.template.segments > 1 else []),
                "attention_mask",
            ],
        }
        if max_length is not None:
            settings["model_max_length"] = max_length
        if self.segmenter is not None:
            settings[SETTING] = self.segmenter.name
        if self.kind == "wordpiece":
            write_text(folder / VOCABULARY_FILE, "".join(piece + "\n" for piece in self.pieces))
        for name, content in self._originals.items():
            write_bytes(folder / name, content)
        write_json(folder / SETTINGS_FILE, settings)
        write_text(folder / TOKENIZER_FILE, self.to_json() + "\n")

    def _rules_settings(self) -> dict[str, Any]:
        """How text is normalised, in the settings of the classes for BERT."""
        if not self._is_berts and self.kind != "wordpiece":
            return {}
        composed = {
            "normalization": self.normalization,
            STRIPS_LATIN_AND_GREEK: self._bert_settings["strip_accents"],
        }
        return {
            **self._bert_settings,
            "strip_accents": takes_characters_apart(self._library.normalizer),
            **(composed if self.normalization in PRESETS[1:] else {}),
        }

    @property
    def _is_berts(self) -> bool:
        """Whether special pieces and sequences are those of BERT."""
        if self.roles != BERT_ROLES:
            return False
        ends = [Special(piece, self._ids[piece]) for piece in (CLS, SEP)]
        return self.template == Template.segmented(*ends)

    # ---------------------------------------------------------------------------------- encoding

    def encode(self, a: str, b: str | None = None, *, max_length: int | None = None) -> Encoding:
        """:meth:`encode_batch` for one text or pair."""
        pairs = None if b is None else [b]
        return self.encode_batch([a], pairs, max_length=max_length)[0]

    def encode_batch(
        self,
        a: Sequence[str],
        b: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
    ) -> list[Encoding]:
        """Encode texts, or pairs of texts, in parallel.

        Args:
            a: the texts, or first segments.
            b: the second segments, one for each of ``a``.
            max_length: limit in tokens, special tokens included; None for no limit. In longer
                inputs the longer segment is shortened until both are equally long, then both.

        Raises:
            LengthError: the limit has no room for the special tokens.
            InputError: an input is not text, or a single text; or the numbers of A and B differ.
        """
        check_texts(a, b)
        given = texts = [*a] if b is None else [*a, *b]
        if self.segmenter is not None:
            divided = self.segmenter.divide_all(texts, self.roles.mask)
            texts = [one.text for one in divided]
        encode = self._library.encode_batch
        encoded = self._ask(lambda own: encode(own, add_special_tokens=False), texts)
        template, results = self.template, []
        for number in range(len(a)):
            parts = encoded[number :: len(a)]
            sizes = [len(part) for part in parts]
            try:
                keep = template.kept(sizes, max_length)
            except LengthError as error:
                where = "" if len(a) == 1 else f"text {number + 1} of {len(a)}: "
                raise LengthError(where + str(error)) from None
            cut = list(zip(parts, keep, strict=True))
            offsets = [part.offsets[:kept] for part, kept in cut]
            if self.segmenter is not None:
                own = zip(divided[number :: len(a)], offsets, strict=True)
                offsets = [[*map(text.original, places)] for text, places in own]
            if self._extends_offsets:
                whole = zip(offsets, given[number :: len(a)], strict=True)
                offsets = [whole_characters(places, text) for places, text in whole]
            tokens, segments = template.wrap_lists([part.ids[:kept] for part, kept in cut])
            results.append(
                Encoding(
                    ids=tokens,
                    segments=segments,
                    offsets=template.surround(offsets, (0, 0)),
                    words=template.surround([part.word_ids[:kept] for part, kept in cut], None),
                    cut=sum(sizes) - sum(keep),
                    parts=template.content(*keep),
                    pieces=self.pieces,
                )
            )
        return results

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids only, without special tokens around them, at the full speed of the library.

        Raises:
            InputError: an input is not text, or a single text is given instead of a list.
        """
        check_texts(texts)
        if self.segmenter is not None:
            texts = [one.text for one in self.segmenter.divide_all(texts, self.roles.mask)]
        encode = self._library.encode_batch_fast
        encodings = self._ask(lambda own: encode(own, add_special_tokens=False), texts)
        return [encoding.ids for encoding in encodings]

    def _ask(self, call: Callable[[Sequence[str]], _T], texts: Sequence[str]) -> _T:
        """What the library answers for texts.

        Raises:
            InputError: one is no text.
        """
        try:
            return call(texts)
        except (TypeError, UnicodeEncodeError) as error:
            raise not_text_error(texts) from error

    @property
    def _extends_offsets(self) -> bool:
        """Whether tokens are extended to whole characters: where words are BERT's and rules may
        compose characters. Byte-level and Unigram files made elsewhere keep the library's."""
        if self.normalization == "other":
            return self.kind not in ("byte-bpe", "unigram")
        return self.normalization in PRESETS[1:]

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
            ModelError: there is no such piece.
        """
        if piece not in self._ids:
            raise ModelError(f"{piece!r} is not one of the {self.vocab_size} pieces.")
        return self._ids[piece]

    def piece(self, id: int) -> str:
        """The piece of an id.

        Raises:
            ModelError: the id is outside the vocabulary.
        """
        if not 0 <= id < self.vocab_size:
            raise ModelError(f"id {id} is not one of the {self.vocab_size} pieces.")
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
        if self.kind == "unigram" or self.starts_word[id]:
            return piece.removeprefix(META_SPACE)
        return piece.removeprefix(CONTINUES)

    def normalize(self, text: str) -> str:
        """The normalised text, before it is split into words.

        Raises:
            InputError: the input is not text.
        """
        rules = self._library.normalizer
        return self._ask(lambda own: rules.normalize_str(*own), [text]) if rules else text

    @property
    def rules(self) -> Rules:
        """How text is normalised.

        Raises:
            ConfigError: the rules are of neither preset.
        """
        if self.normalization == "other":
            raise ConfigError(
                "the tokenizer's normalization is neither bert nor composed, so its words cannot "
                "be counted."
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
        described: list[Any] = [self.pieces, added, settings]
        if self._scores:
            # The library writes more digits than it reads back.
            described.append([float(score) for score in np.array(self._scores, np.float32)])
        if not self._is_berts:
            layouts = (self.template.single, self.template.pair)
            described += [layout.spelled if layout else None for layout in layouts]
            described += [self.roles.items(), self._settings["added_tokens"]]
        if self.segmenter is not None:
            described.append({SETTING: self.segmenter.name})
        text = json.dumps(described, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
