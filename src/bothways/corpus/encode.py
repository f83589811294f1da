"""The work of a worker: from a unit of text to its ids, lengths and hashes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import bounds
from bothways.corpus.cached_encoder import SentenceEncoder, unpack
from bothways.corpus.options import CorpusConfig
from bothways.corpus.paragraphs import Document, read_documents
from bothways.corpus.report import DECOMPOSED
from bothways.corpus.sentences import split_paragraphs
from bothways.corpus.sources import Unit
from bothways.corpus.store import Ids
from bothways.io.broken import Broken, of_corpus, shown_name
from bothways.io.diagnostics import DAMAGED, damaged_characters
from bothways.tokenization.languages import count_letters, count_scripts
from bothways.tokenization.normalization import count_decomposed

Hashes = NDArray[np.uint64]
"""[N, 2]: 128 bits each."""
_HASH_BYTES = 16
EXCERPT = 60
"""Characters of a paragraph that are kept for the report."""
UNIT_FORMAT = 2
"""To be raised when the same text and options give other units than before."""
UNIT_OPTIONS = (
    *("documents", "lines", "text_field", "sentences", "language", "broken"),
    "max_line_mib",
)
"""The options, besides the vocabulary, that decide what a unit holds."""


@dataclass(frozen=True)
class EncodedUnit:
    """A unit's T ids, S sentences, P paragraphs and D documents, in the order of the text.

    The unit may start or end in the middle of a document; such a part counts as a document here.
    Sentences without tokens are left out, and so are paragraphs that have no other sentence.

    Attributes:
        ids: [T].
        sentence_tokens: uint32 [S].
        paragraph_sentences, paragraph_characters: uint32 [P].
        paragraph_hashes: uint64 [P, 2], of the text.
        excerpts: uint8, UTF-8 of the first characters of each paragraph, end to end.
        excerpt_bytes: uint32 [P], bytes of each excerpt.
        document_paragraphs: uint32 [D], 0 for a document without ids.
        document_files: uint32 [D], number of the input each is from.
        document_hashes: uint64 [D, 2], of the hashes of its paragraphs.
        continues: bool [1], whether the first document continues the last of the previous unit.
    """

    ids: Ids
    sentence_tokens: NDArray[np.uint32]
    paragraph_sentences: NDArray[np.uint32]
    paragraph_characters: NDArray[np.uint32]
    paragraph_hashes: Hashes
    excerpts: NDArray[np.uint8]
    excerpt_bytes: NDArray[np.uint32]
    document_paragraphs: NDArray[np.uint32]
    document_files: NDArray[np.uint32]
    document_hashes: Hashes
    continues: NDArray[np.bool_]


@dataclass
class Counts:
    """Counts over the text, for the report.

    Attributes:
        text_bytes: UTF-8 bytes of the paragraphs and the line ends between them.
        empty_sentences: left out because they have no tokens.
        scripts: letters of each script.
        broken: lines that were repaired or left out.
        layout: what was noticed of the layout of files: how many files, the first one, and what is
            said of it, by what it is about.
    """

    text_bytes: int = 0
    empty_sentences: int = 0
    scripts: Counter[str] = field(default_factory=Counter)
    broken: Broken = field(default_factory=Broken)
    layout: dict[str, tuple[int, str, str]] = field(default_factory=dict)

    def add_layout(self, name: str, note: tuple[int, str, str]) -> None:
        """Count files of which something is said; the words are those of the first."""
        files, source, said = self.layout.get(name, (0, *note[1:]))
        self.layout[name] = (files + note[0], source, said)

    def add(self, other: Counts) -> None:
        """Add the counts of the text that follows."""
        self.text_bytes += other.text_bytes
        self.empty_sentences += other.empty_sentences
        self.scripts.update(other.scripts)
        self.broken.add(other.broken)
        for name, note in other.layout.items():
            self.add_layout(name, note)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able data."""
        return {**vars(self), "broken": self.broken.counts()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Counts:
        """The inverse of :meth:`to_dict`."""
        broken = Broken.from_counts(data["broken"])
        layout = {name: (files, *rest) for name, (files, *rest) in data["layout"].items()}
        scripts = Counter(data["scripts"])
        return cls(**{**data, "scripts": scripts, "broken": broken, "layout": layout})


def encode_unit(unit: Unit, config: CorpusConfig, tokenizer: bytes) -> tuple[EncodedUnit, Counts]:
    """Split a unit into documents and sentences, and encode these with a packed tokenizer.

    Raises:
        InputError: text that is not accepted, with file and line; or the error that ended reading.
    """
    if config.workers != 1 or config.cluster:
        # Several processes already use the cores; threads of the tokenizer would compete with them.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    counts = Counts(broken=of_corpus(config.broken))
    documents: list[Document] = []
    files: list[int] = []
    for block in unit.blocks:
        if block.first_line == 1:
            for name, said in block.layout.notes(
                config.lines, config.documents, records=block.kind != "text"
            ).items():
                counts.add_layout(name, (1, shown_name(block.source), said))
        for continues, paragraphs in read_documents(block, config, counts.broken):
            if continues and files and files[-1] == block.file:
                documents[-1][1].extend(paragraphs)  # a document that spans two blocks of one file
            else:
                documents.append((continues, paragraphs))
                files.append(block.file)
    if unit.failure is not None:
        raise unit.failure
    sources = {block.file: shown_name(block.source) for block in unit.blocks}
    encoder = unpack(tokenizer)
    for file, (_, paragraphs) in zip(files, documents, strict=True):
        noticed = damaged_characters(paragraphs)
        noticed[DECOMPOSED] = count_decomposed(paragraphs, encoder.tokenizer.normalize)
        for name, number in noticed.items():
            if number:
                said = DAMAGED[name][1] if name in DAMAGED else _DECOMPOSED_TEXT
                counts.add_layout(name, (number, sources[file], said))
    return _encode_documents(documents, files, config, encoder, counts), counts


_DECOMPOSED_TEXT = (
    "characters are decomposed (Unicode NFD), and the vocabulary has other pieces for them than "
    "for composed ones; convert the text to NFC, or learn a vocabulary with "
    "--normalization composed"
)


def _encode_documents(
    documents: Sequence[Document],
    files: Sequence[int],
    config: CorpusConfig,
    encoder: SentenceEncoder,
    counts: Counts,
) -> EncodedUnit:
    paragraphs = list(chain.from_iterable(lines for _, lines in documents))
    split = split_paragraphs(paragraphs, sentences=config.sentences, language=config.language)
    ids, lengths = encoder.encode(list(chain.from_iterable(split)))
    # The paragraph of each sentence and the document of each paragraph; empty ones do not count.
    paragraph_of = np.repeat(np.arange(len(split)), [len(sentences) for sentences in split])
    document_of = np.repeat(np.arange(len(documents)), [len(lines) for _, lines in documents])
    paragraph_sentences = np.bincount(paragraph_of[lengths > 0], minlength=len(split))
    has_text = paragraph_sentences > 0
    document_paragraphs = np.bincount(document_of[has_text], minlength=len(documents))
    texts = [text.encode() for text in paragraphs]
    hashes = hash_all(texts)[has_text]
    excerpts = [
        text[:EXCERPT].encode()
        for text, kept in zip(paragraphs, has_text.tolist(), strict=True)
        if kept
    ]
    counts.text_bytes = sum(map(len, texts)) + max(len(texts) - len(documents), 0)
    counts.empty_sentences = int((lengths == 0).sum())
    counts.scripts = count_scripts(count_letters("\n".join(paragraphs)))
    edges = bounds(document_paragraphs)
    return EncodedUnit(
        ids=ids,
        sentence_tokens=lengths[lengths > 0].astype(np.uint32),
        paragraph_sentences=paragraph_sentences[has_text].astype(np.uint32),
        paragraph_characters=np.array([len(text) for text in paragraphs], np.uint32)[has_text],
        paragraph_hashes=hashes,
        excerpts=np.frombuffer(b"".join(excerpts), dtype=np.uint8),
        excerpt_bytes=np.array([len(excerpt) for excerpt in excerpts], dtype=np.uint32),
        document_paragraphs=document_paragraphs.astype(np.uint32),
        document_files=np.array(files, dtype=np.uint32),
        document_hashes=hash_all([hashes[start:stop].tobytes() for start, stop in pairwise(edges)]),
        continues=np.array([bool(documents) and documents[0][0]]),
    )


def hash_all(texts: Sequence[bytes]) -> Hashes:
    """128-bit hashes, [N, 2]."""
    digests = b"".join([blake2b(text, digest_size=_HASH_BYTES).digest() for text in texts])
    return np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
