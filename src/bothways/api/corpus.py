"""A corpus in Python: its documents, what pre-training will see of it, its report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import Any, overload

from bothways.config.parsing import options_from
from bothways.corpus.store import Manifest, Split, TokenStore
from bothways.errors import ConfigError, type_of
from bothways.io import html
from bothways.pretraining.options import ShowConfig
from bothways.tokenization.tokenizer import Tokenizer

_SHOWN = 3
"""Documents in a notebook's cell."""


@dataclass(frozen=True, repr=False)
class Document:
    """A document of a corpus, as sentences of tokens.

    Attributes:
        number: its place in the split, from 0.
        ids: of the tokens of each sentence.
        tokenizer: the corpus's.
    """

    number: int
    ids: list[list[int]]
    tokenizer: Tokenizer

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> list[list[str]]:
        """The tokens of each sentence."""
        return [[self.tokenizer.pieces[id] for id in ids] for ids in self.ids]

    @property
    def sentences(self) -> list[str]:
        """Its sentences as text; spaces and case as far as the tokenizer keeps them."""
        return [self.tokenizer.decode(ids, skip_special=False) for ids in self.ids]

    @property
    def text(self) -> str:
        """Its sentences as one text."""
        return " ".join(self.sentences)

    def __repr__(self) -> str:
        return f"document {self.number:,}, {len(self)} sentences: {html.shorten(self.text, 300)}"

    def _repr_html_(self) -> str:
        rows = [[str(n), sentence] for n, sentence in enumerate(self.sentences)]
        return html.fragment(f"document {self.number:,}", html.table(["", "sentence"], rows))


class Corpus:
    """A corpus folder: ``len``, ``corpus[i]`` and iteration give its documents.

    Args:
        folder: as `bothways corpus` and :func:`bothways.build_corpus` write it.
        split: ``train``, or ``heldout`` for the documents that are kept from training.

    Attributes:
        store: its ids, memory-mapped.

    Raises:
        StoreError: it is no corpus folder, or is damaged.
    """

    def __init__(self, folder: str | Path, split: Split = "train"):
        self.store = TokenStore.open(folder, split)

    @property
    def folder(self) -> Path:
        """The corpus folder."""
        return self.store.folder

    @property
    def split(self) -> Split:
        """The split that it shows."""
        return self.store.split

    @property
    def heldout(self) -> Corpus:
        """The documents that are kept from training."""
        return Corpus(self.folder, "heldout")

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids."""
        return self.store.tokenizer

    @property
    def tokens(self) -> int:
        """How many tokens the split has."""
        return self.store.tokens

    @property
    def sentences(self) -> int:
        """How many sentences the split has."""
        return self.store.sentences

    @property
    def report(self) -> dict[str, Any]:
        """What the build found: sizes, lengths, repeats, scripts."""
        return Manifest.read(self.folder).report

    def __len__(self) -> int:
        return self.store.documents

    @overload
    def __getitem__(self, number: int) -> Document: ...
    @overload
    def __getitem__(self, number: slice) -> list[Document]: ...
    def __getitem__(self, number: int | slice) -> Document | list[Document]:
        """A document by its number, or several."""
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        if not isinstance(number, Integral):
            raise TypeError(f"documents are numbered: corpus[0] is the first, not {number!r}")
        if not -len(self) <= number < len(self):
            raise IndexError(f"document {number} of {len(self):,}")
        number = int(number) % len(self)
        first, end = self.store.document_bounds[number : number + 2].tolist()
        bounds = self.store.sentence_bounds[first : end + 1].tolist()
        ids = [self.store.tokens_between(start, stop).tolist() for start, stop in pairwise(bounds)]
        return Document(number, ids, self.tokenizer)

    def __iter__(self) -> Iterator[Document]:
        return map(self.__getitem__, range(len(self)))

    @property
    def documents(self) -> Corpus:
        """The documents, which can be counted, indexed and gone through."""
        return self

    def show(self, instances: int = 3, **options: Any) -> Instances:
        """Training instances as pre-training will see them: tokens, targets, pairs.

        Args:
            instances: how many.
            **options: those of `bothways corpus show`, by name: ``start``, ``length``, ``seed``,
                ``masking_kind="words"``, ``pairs_kind="full"``, ``masking_rate=0.3`` ...

        Raises:
            ConfigError: an option that there is not.
            StoreError: the corpus cannot give such instances.
        """
        given = {"folder": self.folder, "split": self.split, "instances": instances, **options}
        config = options_from(ShowConfig, given)
        from bothways.pretraining.show import show_instances  # needs torch

        return Instances([*show_instances(config)])

    def __repr__(self) -> str:
        return (
            f"Corpus {self.folder}, {self.split}: {len(self):,} documents, {self.sentences:,} "
            f"sentences, {self.tokens:,} tokens of {self.tokenizer.vocab_size:,} pieces"
        )

    def _repr_html_(self) -> str:
        rows = [
            [f"{document.number:,}", f"{len(document):,}", html.shorten(document.text, 160)]
            for document in self[:_SHOWN]
        ]
        table = html.table(["document", "sentences", "text"], rows)
        more = f"... and {len(self) - _SHOWN:,} more" if len(self) > _SHOWN else ""
        return html.fragment(repr(self), table, html.paragraph(more))


class Instances:
    """Training instances to look at: printed they are lines, in a notebook coloured ones.

    Args:
        lines: rich's texts.
    """

    def __init__(self, lines: list[Any]):
        self._lines = lines

    def __repr__(self) -> str:
        return "\n".join(line.plain for line in self._lines)

    def _repr_html_(self) -> str:
        shown = "\n".join(_html_line(line) for line in self._lines)
        return html.fragment("", f'<pre style="white-space:pre-wrap;line-height:1.5">{shown}</pre>')


_STYLES: dict[str, str] = {
    "dim": "opacity:.75",
    "bold yellow": "font-weight:600;background:rgba(230,159,0,.35)",
    "bold": "font-weight:600",
}


def _html_line(line: Any) -> str:
    """A line of rich's as HTML."""
    styles = [str(line.style)] * len(line.plain)
    for span in line.spans:
        styles[span.start : span.end] = [str(span.style)] * (span.end - span.start)
    parts, start = [], 0
    for at in range(1, len(styles) + 1):
        if at == len(styles) or styles[at] != styles[start]:
            parts.append(html.styled(line.plain[start:at], _STYLES.get(styles[start], "")))
            start = at
    return "".join(parts)


def store_of(corpus: Any) -> str:
    """The folder of a corpus that is given by path or as an object.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(corpus, Corpus | TokenStore):
        return str(corpus.folder)
    if isinstance(corpus, str | Path):
        return str(corpus)
    raise ConfigError(
        f"corpus is {type_of(corpus)}; give a corpus folder, or what bw.build_corpus gives."
    )
