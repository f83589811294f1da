"""A tag for each word: named entities, parts of speech (Devlin et al. 2019, 5.3).

Each word is read at its first piece, with the document around its sentence as context; there is no
CRF on top. Entities are learned in one scheme whatever the file's is, scored as by conlleval, and
written in the file's scheme.

W words of a sentence, K of them read, C outputs of the head.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import bounds
from bothways.errors import ConfigError, InputError, Place
from bothways.families.heads import TAGGER
from bothways.io.annotations.conll import COLUMNS, DOCUMENT, TABLE
from bothways.io.annotations.tagged import BRAT, WORDS
from bothways.io.annotations.written_spans import WRITERS, WrittenText, spans_text, write_brat
from bothways.io.files import write_json, write_text
from bothways.io.lines import listed
from bothways.io.rows import JSON
from bothways.io.written import write_rows
from bothways.tasks.examples import CHUNK, Examples, SequenceBuilder, check_room
from bothways.tasks.metrics import Measurement, check_metrics
from bothways.tasks.options import Scheme, TaggingOptions, TaskOptions
from bothways.tasks.report_panels import (
    ExampleScores,
    MarkedSpan,
    Mistake,
    Panel,
    confusion_panel,
    marked_text,
)
from bothways.tasks.schemes import (
    OUTSIDE,
    EntityScores,
    EntitySpan,
    entity_spans,
    parse_tag,
    scheme_tags,
    score_entities,
    standard_tag,
    write_tags,
)
from bothways.tasks.sentences import Sentences, read_sentences
from bothways.tasks.task import EncodedFile, Outputs, Task
from bothways.tasks.windows import best_window, cut_windows
from bothways.tasks.words import Indices, RunningText, WordPieces, locate_words
from bothways.tokenization.tokenizer import Tokenizer

# --------------------------------------------------------------------------------
# Sentences cut into words, encoded for a tagger: pieces, windows and surrounding context.
#
# A word is read at its first piece (Devlin et al. 2019, 5.3). A window holds a sentence in its
# middle and fills both sides with the sentence's document as far as it reaches. A sentence longer
# than the window is read in several, each word in the one with the most context around it.
#
# S sentences.


@dataclass(frozen=True)
class EncodedSentences:
    """Sentences as the model reads them.

    Attributes:
        sentences: their pieces.
        examples: one item per window; one row per word that is read, in order.
        unreadable: words of which normalisation leaves nothing; they are read as [UNK].
        skipped: words that begin inside a piece of another word and are not read.
        long: sentences that are read in several windows.
    """

    sentences: list[WordPieces]
    examples: Examples
    unreadable: int
    skipped: int
    long: int

    @cached_property
    def output_bounds(self) -> Indices:
        """int64 [S + 1]; a model's outputs for sentence s are its rows ``output_bounds[s]`` to
        ``output_bounds[s + 1]``."""
        return bounds([len(s.first_piece) for s in self.sentences])


@dataclass(frozen=True)
class _Window:
    """A stretch of a document.

    Attributes:
        first, end: its first piece in the document, and the one after its last.
        read: int64; the pieces of the document at which words are read in this window.
    """

    first: int
    end: int
    read: Indices


def encode_sentences(
    tokenizer: Tokenizer,
    sentences: Sequence[RunningText],
    documents: Sequence[int] | None,
    *,
    length: int,
    spaces: bool = True,
) -> EncodedSentences:
    """Encode sentences as running text, and find the pieces of their words.

    Args:
        tokenizer: the model's.
        sentences: the text of each, and where its words are in it, at least one.
        documents: the number of each sentence's document, which fills both sides of its window;
            None if sentences are read without their documents.
        length: of a window in tokens, special tokens included.
        spaces: words are separated by spaces, and a word of which normalisation leaves nothing is
            read as [UNK]. If not, words are often characters, and such a word is not read.

    Raises:
        LengthError: no room for a piece.
        InputError: something that is not a text.
    """
    check_room(tokenizer, length, pair=False)
    encoded: list[WordPieces] = []
    unreadable = 0
    for start in range(0, len(sentences), CHUNK):
        found, missing = locate_words(tokenizer, sentences[start : start + CHUNK], spaces=spaces)
        encoded += found
        unreadable += missing
    document_of = range(len(sentences)) if documents is None else documents
    sequences = SequenceBuilder(tokenizer)
    room = tokenizer.template.room(length)
    read_positions: list[Indices] = []
    owners: list[int] = []
    long = 0
    for _, group in groupby(range(len(sentences)), key=document_of.__getitem__):
        numbers = [*group]
        document = np.concatenate([encoded[s].ids for s in numbers])
        starts = accumulate((len(encoded[s].ids) for s in numbers), initial=0)
        for s, start in zip(numbers, starts, strict=False):
            windows = [*_windows(encoded[s], start, len(document), room)]
            for window in windows:
                (text,) = sequences.add(document[window.first : window.end])
                read_positions.append(text + window.read - window.first)
                owners.append(s)
            long += len(windows) > 1
    return EncodedSentences(
        encoded,
        sequences.examples(
            read_positions=np.concatenate(read_positions), owners=np.array(owners, dtype=np.int64)
        ),
        unreadable=unreadable,
        skipped=sum(len(words) for _, words in sentences) - sum(len(s.word) for s in encoded),
        long=long,
    )


def _windows(sentence: WordPieces, start: int, document_size: int, room: int) -> Iterator[_Window]:
    """The windows in which a sentence is read; only those in which some word is.

    Args:
        sentence: its pieces.
        start: its first piece in the document.
        document_size: pieces of the document.
        room: pieces that a window holds.
    """
    size = len(sentence.ids)
    if size <= room:
        # In the middle of the window, or off it where the document ends on one side.
        spare = room - size
        available_right = document_size - start - size
        centered = spare // 2
        min_left_to_fill = spare - available_right
        left = min(start, max(centered, min_left_to_fill))
        first = start - left
        yield _Window(first, min(first + room, document_size), start + sentence.first_piece)
        return
    cuts = cut_windows(size, room, max(1, room // 2))
    window_of = best_window(cuts, size)[sentence.first_piece]
    assert (np.diff(window_of) >= 0).all(), "rows are in the order of words"
    for number, (first, end) in enumerate(cuts):
        read = sentence.first_piece[window_of == number]
        if len(read):
            yield _Window(start + first, start + end, start + read)


Tags = list[list[str]]
_ENTITY_METRICS = ("f1", "precision", "recall", "accuracy")
_MACRO = "f1_macro"


@dataclass(frozen=True)
class TaggedFile(EncodedFile[Sentences]):
    """A file of sentences, encoded.

    Attributes:
        encoded: which words its rows are.
    """

    encoded: EncodedSentences = field(kw_only=True)


class TaggingTask(Task[Sentences, Tags]):
    """One tag for each word. Its labels are tags in the scheme that it was trained on."""

    loss = "class"
    head = TAGGER

    def strata(self, rows: Sentences) -> list[tuple[str, ...]]:
        """The types of the entities in each sentence, or its tags."""
        sentences = rows.tags or []
        marked = [{parse_tag(tag)[1] or tag for tag in tags} - {OUTSIDE} for tags in sentences]
        return [tuple(types or {OUTSIDE}) for types in marked]

    def groups(self, rows: Sentences) -> list[Hashable]:
        """By document, if the file has some; equal sentences stay together otherwise."""
        return [*rows.documents] if rows.has_documents else self.contents(rows)

    def contents(self, rows: Sentences) -> list[Hashable]:
        """The words."""
        return [tuple(words) for words in rows.words]

    def places(self, rows: Sentences) -> list[str]:
        """The lines of the first words."""
        return [str(lines[0]) for lines in rows.lines]

    @property
    def learned_scheme(self) -> Scheme:
        """The scheme of :attr:`labels`; ``none`` if they mark no entities."""
        types: dict[str, set[str]] = {}
        for prefix, entity_type in map(parse_tag, self.labels):
            types.setdefault(prefix, set()).add(entity_type)
        if self.options.tagging.scheme == "none" or types.keys() == {OUTSIDE}:
            return "none"
        if types.keys() & {"E", "S"}:
            return "bioes"
        # Where a type has no B-, as in heads trained on CoNLL-2003 as distributed, I- begins it.
        return "iob2" if types.get("I", set()) <= types.get("B", set()) else "iob1"

    @classmethod
    def read(cls, path: Path, options: TaskOptions, *, labelled: bool) -> Sentences:
        """CoNLL columns, CoNLL-U, a table of words, or an annotator's JSON."""
        tagging, labels = options.tagging, options.labels
        return read_sentences(path, tagging, labelled=labelled, labels=labels, form=options.form)

    @classmethod
    def define(cls, options: TaskOptions, train: Sentences) -> Self:
        """The entity types are found in the training file unless labels are given."""
        tagging = options.tagging
        if train.tags is not None and tagging.write == "train":
            assert train.scheme is not None
            tagging = replace(tagging, write=train.scheme)
        labels = options.labels
        if train.scheme == "none" and not any(entity for _, entity in map(parse_tag, labels)):
            # Tags may look like a scheme's without being one: B, M, E, S of segmentation.
            tagging = replace(tagging, scheme="none")
        if not labels:
            assert train.tags is not None, "labels are found in a file that has them"
            labels = _find_labels(train, "none" if train.scheme == "none" else tagging.learn)
        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise ConfigError(
                f"labels is {listed(labels)}; tagging needs at least two tags, each once."
            )
        task = cls(replace(options, labels=labels, tagging=tagging))
        return cls(replace(task.options, metrics=_choose_metrics(task, train)))

    def encode(self, tokenizer: Tokenizer, rows: Sentences, *, length: int) -> TaggedFile:
        """In windows that show the document around each sentence; nothing is cut."""
        options = self.options.tagging
        with_document = options.context == "document" and rows.has_documents
        encoded = encode_sentences(
            tokenizer,
            rows.running_texts(spaces=options.spaces),
            rows.documents if with_document else None,
            length=length,
            spaces=options.spaces,
        )
        examples = encoded.examples
        if rows.tags is not None:
            examples = examples.with_targets(self._targets(rows, encoded))
        notes = self._notes(tokenizer, rows, encoded, length)
        return TaggedFile(rows, examples, notes, encoded=encoded)

    def _targets(self, rows: Sentences, encoded: EncodedSentences) -> NDArray[np.int64]:
        """The gold label of each word that is read, int64 [rows], as a place in :attr:`labels`."""
        assert rows.tags is not None
        if self.learned_scheme != "none" and rows.scheme == "none":
            self._refuse_without_scheme(rows)
        entity_tags = self.learned_scheme != "none"
        class_of = {
            standard_tag(label) if entity_tags else label: i for i, label in enumerate(self.labels)
        }
        targets: list[int] = []
        for s, sentence in enumerate(encoded.sentences):
            tags = rows.tags[s]
            row_tags = [tags[w] for w in sentence.word]
            if entity_tags:
                entities = _entities_over_rows(entity_spans(tags), sentence)
                row_tags = write_tags(entities, len(sentence.word), self.learned_scheme)
            for word, tag in zip(sentence.word.tolist(), row_tags, strict=True):
                if tag not in class_of:
                    needed = "" if tag == tags[word] else f", here {tag!r}"
                    raise InputError(
                        f"unknown tag {tags[word]!r}{needed}; the model learns "
                        f"{listed(self.labels)} (labels, or what the training file has).",
                        place=Place(rows.path, rows.lines[s][word]),
                    )
                targets.append(class_of[tag])
        return np.array(targets, dtype=np.int64)

    def _refuse_without_scheme(self, rows: Sentences) -> None:
        """Refuse tags without a scheme, all of which would count as outside of entities."""
        assert rows.tags is not None
        for tags, lines in zip(rows.tags, rows.lines, strict=True):
            for tag, line in zip(tags, lines, strict=True):
                if tag != OUTSIDE:
                    raise InputError(
                        f"the tags of this file, such as {tag!r}, mark no entities, but those of "
                        f"the training file do ({self.learned_scheme.upper()}). Write entity tags, "
                        "or name the column that has them with tagging_tag.",
                        place=Place(rows.path, line),
                    )

    def _notes(
        self, tokenizer: Tokenizer, rows: Sentences, encoded: EncodedSentences, length: int
    ) -> tuple[str, ...]:
        name, words = rows.path.name, sum(map(len, rows.words))
        notes = [*rows.notes]
        if rows.scheme is not None and self.options.tagging.scheme == "auto":
            scheme = "no entity scheme" if rows.scheme == "none" else rows.scheme.upper()
            notes.append(f"{name}: its tags use {scheme}")
        if all(word.isdecimal() for sentence in rows.words for word in sentence):
            notes.append(
                f"{name}: every word is a number; tagging_word and tagging_tag name the "
                "columns, from 0"
            )
        if rows.broken:
            notes.append(
                f"{name}: {rows.broken:,} tags break the scheme; they are read as by conlleval"
            )
        in_columns = rows.format == "conll"
        if self.options.tagging.context == "document" and not rows.has_documents and in_columns:
            notes.append(
                f"{name}: no {DOCUMENT} lines, so each sentence is read without its document"
            )
        if encoded.long:
            notes.append(
                f"{name}: {encoded.long:,} of {len(rows):,} sentences are longer than {length} "
                "tokens and are read in several windows"
            )
        if encoded.unreadable:
            notes.append(
                f"{name}: normalisation leaves nothing of {encoded.unreadable:,} of {words:,} "
                f"words; they are read as {tokenizer.piece(tokenizer.blank_id)}"
            )
        if encoded.skipped:
            notes.append(
                f"{name}: {encoded.skipped:,} of {words:,} words are spaces or begin inside a "
                "piece of another word, and take over the tag around them"
            )
        return tuple(notes)

    def decode(self, file: EncodedFile[Sentences], outputs: Outputs) -> Tags:
        """The tags of every sentence's words, in the scheme of the file, or of the training file
        if the file has no tags."""
        encoded, best = encoded_sentences(file), outputs.argmax(-1)
        scheme = self.written_scheme if file.rows.scheme in (None, "none") else file.rows.scheme
        predictions = []
        for s, (sentence, words) in enumerate(zip(encoded.sentences, file.rows.words, strict=True)):
            rows = slice(*encoded.output_bounds[s : s + 2])
            row_tags = [self.labels[i] for i in best[rows]]
            predictions.append(
                _tags_of_words(row_tags, sentence, len(words), scheme, self.learned_scheme)
            )
        return predictions

    @property
    def written_scheme(self) -> Scheme:
        """The scheme of predictions for a file without tags."""
        write = self.options.tagging.write
        return self.learned_scheme if write == "train" else write

    def measure(self, file: EncodedFile[Sentences], predictions: Tags) -> Measurement:
        """Entity scores and the accuracy of single tags, both as conlleval computes them."""
        gold = file.rows.tags
        assert gold is not None, "the file was read without tags"
        pairs = Counter(
            (predicted_tag, gold_tag)
            for sentence in zip(predictions, gold, strict=True)
            for predicted_tag, gold_tag in zip(*sentence, strict=True)
        )
        right = sum(
            count for (predicted_tag, gold_tag), count in pairs.items() if predicted_tag == gold_tag
        )
        scores = {"accuracy": right / pairs.total()}
        notes = []
        if self.learned_scheme != "none":
            total, by_type = score_entities(predictions, gold)
            scores |= {"f1": total.f1, "precision": total.precision, "recall": total.recall}
            scores[_MACRO] = float(np.mean([s.f1 for s in by_type.values()])) if by_type else 0.0
            notes.append(_type_note(by_type))
        predicted_tags = {predicted_tag for predicted_tag, _ in pairs}
        if collapsed := pairs.total() > 1 and len(predicted_tags) == 1:
            notes.insert(0, f"collapsed: {predicted_tags.pop()!r} for all {pairs.total():,} words")
        return Measurement({m: scores[m] for m in self.metrics}, tuple(notes), collapsed)

    def baseline(self, train: EncodedFile[Sentences], dev: EncodedFile[Sentences]) -> Measurement:
        """The most common tag of the training file for every word."""
        assert train.rows.tags is not None
        counts = Counter(tag for tags in train.rows.tags for tag in tags)
        most_common = min(counts, key=lambda tag: (-counts[tag], tag))
        constant = [[most_common] * len(words) for words in dev.rows.words]
        return Measurement(self.measure(dev, constant).scores)

    def panels(self, file: EncodedFile[Sentences], predictions: Tags) -> list[Panel]:
        """Scores of each entity type, or of each tag if tags mark no entities, and how the words of
        one are taken for another."""
        gold = file.rows.tags
        assert gold is not None, "the file was read without tags"
        if self.learned_scheme == "none":
            by_type = _scores_by_tag(predictions, gold)
        else:
            _, by_type = score_entities(predictions, gold)
        rows = tuple(
            (name, s.precision, s.recall, s.f1, s.predicted, s.gold) for name, s in by_type.items()
        )
        header = ("type", "precision", "recall", "f1", "predicted", "in the data")
        return [Panel("Scores by type", header, rows), self._confusions(predictions, gold)]

    def _confusions(self, predictions: Tags, gold: Tags) -> Panel:
        """The types of words, whatever their place in an entity."""
        types = {tag: tag for tag in _tags(predictions, gold)}
        if self.learned_scheme != "none":
            for tag in types:
                prefix, entity_type = parse_tag(tag)
                types[tag] = OUTSIDE if prefix == OUTSIDE else entity_type or "entity"
        names = sorted({*types.values()} - {OUTSIDE}) + [OUTSIDE] * (OUTSIDE in types.values())
        number = {tag: names.index(name) for tag, name in types.items()}
        found, wanted = (
            np.array([number[tag] for tags in sentences for tag in tags], dtype=np.int64)
            for sentences in (predictions, gold)
        )
        return confusion_panel(found, wanted, names, of="words")

    def errors(self, file: EncodedFile[Sentences], predictions: Tags) -> list[Mistake]:
        """Sentences with a wrong tag; those with the most wrong entities (or tags) first."""
        gold = file.rows.tags
        assert gold is not None, "the file was read without tags"
        space = " " if self.options.tagging.spaces else ""
        mistakes = []
        for s, (words, predicted_tags, gold_tags) in enumerate(
            zip(file.rows.words, predictions, gold, strict=True)
        ):
            if predicted_tags == gold_tags:
                continue
            expected = self._describe_tags(words, gold_tags, space)
            predicted = self._describe_tags(words, predicted_tags, space)
            if differing := len(set(expected) ^ set(predicted)):
                texts = (("sentence", space.join(words)),)
                missed = "; ".join(e for e in expected if e not in predicted) or "nothing"
                spurious = "; ".join(e for e in predicted if e not in expected) or "nothing"
                note = f"{differing} differ"
                marked = marked_text(
                    texts[0][1],
                    self._places(words, gold_tags, len(space)),
                    self._places(words, predicted_tags, len(space)),
                )
                mistakes.append(Mistake(s, texts, missed, spurious, differing, note, marked))
        return mistakes

    def _places(self, words: list[str], tags: list[str], space: int) -> list[MarkedSpan]:
        """Where the entities are in the sentence; where tags mark none, the words with a tag."""
        starts = list(accumulate((len(word) + space for word in words), initial=0))
        if self.learned_scheme == "none":
            spans = [(tag, i, i + 1) for i, tag in enumerate(tags) if tag != OUTSIDE]
        else:
            spans = [(name, first, end) for name, first, end in entity_spans(tags)]
        return [(starts[first], starts[end] - space, name) for name, first, end in spans]

    def _describe_tags(self, words: list[str], tags: list[str], space: str) -> list[str]:
        """A line per entity, or per word if tags mark no entities."""
        if self.learned_scheme == "none":
            return [f"{i + 1} {word}: {tags[i]}" for i, word in enumerate(words)]
        return [
            f"{start + 1} {space.join(words[start:end])}: {t}"
            for t, start, end in entity_spans(tags)
        ]

    def for_own_file(self) -> Self:
        """In the scheme of that file's tags, which need not be that of the training file."""
        layout = replace(self.options.tagging, scheme="auto")
        return type(self)(replace(self.options, tagging=self._learned_tagging(layout)))

    def _with_learned(self, options: TaskOptions) -> tuple[TaskOptions, tuple[str, ...]]:
        return replace(options, tagging=self._learned_tagging(options.tagging)), ()

    def _learned_tagging(self, layout: TaggingOptions) -> TaggingOptions:
        """How a file's tags are laid out, with what the model learned about tags."""
        own = self.options.tagging
        # The scheme is the file's own, unless the model learned tags that mark no entities.
        scheme = "none" if own.scheme == "none" else layout.scheme
        write = own.write if layout.write == "train" else layout.write
        return replace(layout, learn=own.learn, write=write, context=own.context, scheme=scheme)

    def hints(self, tokenizer: Tokenizer, train: Sentences) -> list[str]:
        """If words are spaces; and if the words of entities mostly begin with capitals, and the
        vocabulary has none."""
        if self.options.tagging.spaces and train.has_spaces:
            return [
                "there are words that are spaces, as in files of one character per line; "
                "tagging_spaces false reads such files as running text"
            ]
        if not tokenizer.lowercase or train.tags is None or train.scheme in (None, "none"):
            return []
        sentences = list(zip(train.words, train.tags, strict=True))[:1000]
        inside = [
            word
            for words, tags in sentences
            for word, tag in zip(words, tags, strict=True)
            if tag != OUTSIDE
        ]
        if 2 * sum(word[:1].isupper() for word in inside) <= len(inside):
            return []
        return [
            "the vocabulary is lower-cased; without capitals, names are harder to recognise (the "
            "paper's tagger is cased)"
        ]

    def example_lengths(self, file: EncodedFile[Sentences]) -> NDArray[np.int64]:
        """The pieces of each sentence, without those of its document around it."""
        sentences = encoded_sentences(file).sentences
        return np.array([len(sentence.ids) for sentence in sentences], dtype=np.int64)

    def example_scores(
        self, file: EncodedFile[Sentences], predictions: Tags
    ) -> ExampleScores | None:
        """The share of right tags in each sentence."""
        assert file.rows.tags is not None, "the file was read without tags"
        sentences = zip(predictions, file.rows.tags, strict=True)
        right = [np.mean([p == g for p, g in zip(*tags, strict=True)]) for tags in sentences]
        return ExampleScores("accuracy of tags", np.array(right, dtype=np.float64))

    def write(
        self, path: Path, file: EncodedFile[Sentences], predictions: Tags, form: str | None = None
    ) -> None:
        """CoNLL's columns; or in the format that the suffix asks for: .csv, .json and .jsonl as an
        annotator reads them, .ann with its text beside.

        Args:
            path, file, predictions: as for every task.
            form: the format, one of :data:`bothways.io.annotations.tagged.NAMES`.
        """
        form = form or written_format(path, file.rows.format)
        if form == COLUMNS:
            lines = ["\t".join(row) for row in self.table(file, predictions)]
            write_text(path, "\n".join(lines) + "\n")
        else:
            write_tagged(path, file.rows, predictions, form, spaces=self.options.tagging.spaces)

    def output_files(self, path: Path) -> tuple[Path, ...]:
        """With the text beside an .ann file."""
        return (path, path.with_suffix(".txt")) if path.suffix.lower() == ".ann" else (path,)

    def table(self, file: EncodedFile[Sentences], predictions: Tags) -> list[list[str]]:
        """A CoNLL file: word, tag in the file if it has one, predicted tag; with the file's
        separator, blank lines and -DOCSTART- lines, without its other columns."""
        rows, lines = file.rows, []
        file_tags, document = rows.tags or rows.unchecked_tags, 0
        for s, words in enumerate(rows.words):
            if rows.documents[s] != document:
                document = rows.documents[s]
                fill = [OUTSIDE] * (2 if file_tags else 1)
                lines += [[rows.separator.join([DOCUMENT, *fill])], [""]]
            columns = [words, *([file_tags[s]] if file_tags else []), predictions[s]]
            lines += [[rows.separator.join(row)] for row in zip(*columns, strict=True)]
            lines.append([""])
        return lines[:-1]


def written_format(path: Path, own: str) -> str:
    """The format in which predictions are written, by the suffix of their file.

    Args:
        path: the file to write.
        own: the format of the file that was predicted, which is kept where the suffix allows it.
    """
    suffix = path.suffix.lower()
    if suffix == ".ann":
        return BRAT
    if suffix == ".csv":
        return TABLE
    if suffix not in JSON:
        return COLUMNS
    listed_in = ".json" if suffix == ".json" else ".jsonl"
    fits = own == WORDS or (own in WRITERS and WRITERS[own][1] == listed_in)
    return own if fits else ("spacy" if suffix == ".json" else "doccano")


def write_tagged(
    path: Path, rows: Sentences, predictions: Tags, form: str, *, spaces: bool
) -> None:
    """Write predicted tags in a format other than CoNLL's columns.

    Args:
        path: to write or replace.
        rows: the sentences.
        predictions: their tags.
        form: one of :data:`bothways.io.annotations.tagged.NAMES`.
        spaces: words are joined by spaces, where the file has no text.

    Raises:
        DiskError: the file could not be written.
    """
    if form == TABLE:
        known = rows.tags or rows.unchecked_tags
        table = [["sentence_id", "word", *(["tag"] if known else []), "prediction"]]
        for s, words in enumerate(rows.words):
            columns = [words, *([known[s]] if known else []), predictions[s]]
            table += [[str(s + 1), *row] for row in zip(*columns, strict=True)]
        write_rows(path, table)
        return
    if form == WORDS:
        pairs = zip(rows.words, predictions, strict=True)
        items = [{"tokens": words, "ner_tags": tags} for words, tags in pairs]
        if path.suffix.lower() == ".json":
            write_json(path, items)
        else:
            lines = [json.dumps(item, ensure_ascii=False) + "\n" for item in items]
            write_text(path, "".join(lines))
        return
    texts = []
    for s, (text, places) in enumerate(rows.running_texts(spaces=spaces)):
        id = None if rows.texts is None else rows.texts[s].id
        spans = [
            (places[first][0], places[last - 1][1], label or "entity")
            for label, first, last in entity_spans(predictions[s])
        ]
        texts.append(WrittenText(text, spans, id))
    if form == BRAT:
        write_brat(path, texts)
    else:
        write_text(path, spans_text(form, texts))


def encoded_sentences(file: EncodedFile[Sentences]) -> EncodedSentences:
    """The encoded sentences of a file that a tagging task encoded."""
    assert isinstance(file, TaggedFile), "a tagging task encoded it"
    return file.encoded


def _find_labels(train: Sentences, learn: Scheme) -> tuple[str, ...]:
    assert train.tags is not None
    if learn == "none":
        labels = tuple(sorted({tag for tags in train.tags for tag in tags}))
        words = sum(map(len, train.tags))
        if len(labels) > 2 and words < 2 * len(labels):
            raise InputError(
                f"{len(labels):,} different tags for {words:,} words ({listed(labels, 4)}); set "
                "tagging_tag if this is the wrong column.",
                place=Place(train.path),
            )
    else:
        types = {span.type for tags in train.tags for span in entity_spans(tags)}
        labels = scheme_tags(types, learn)
    if len(labels) < 2:
        raise InputError(
            f"every word has the tag {labels[0]!r}; there is nothing to learn.",
            place=Place(train.path),
        )
    return labels


def _choose_metrics(task: TaggingTask, rows: Sentences) -> tuple[str, ...]:
    usual = ("accuracy",) if task.learned_scheme == "none" else _ENTITY_METRICS
    known = usual if task.learned_scheme == "none" else (*usual, _MACRO)
    if rows.tags is None:  # nothing will be measured
        return tuple(metric for metric in task.options.metrics if metric in known)
    return check_metrics(task.options.metrics or usual, known, "these tags")


def _entities_over_rows(entities: Sequence[EntitySpan], sentence: WordPieces) -> list[EntitySpan]:
    """Entities over all words as entities over the words that are read; an entity none of whose
    words is read is lost."""
    over_rows = []
    for entity_type, start, end in entities:
        first, last = np.searchsorted(sentence.word, [start, end]).tolist()
        if first < last:
            over_rows.append(EntitySpan(entity_type, first, last))
    return over_rows


def _tags_of_words(
    row_tags: list[str], sentence: WordPieces, words: int, scheme: Scheme, learned_scheme: Scheme
) -> list[str]:
    """Tags of all words, from those of the words that are read.

    An entity reaches from its first word to the last one that its pieces reach into, and covers all
    words between them; a tag without a scheme holds until the next word that is read.
    """
    if learned_scheme == "none":
        return [row_tags[i] for i in sentence.row_of_words(words)]
    entities = [
        EntitySpan(span.type, int(sentence.word[span.start]), int(sentence.word_end[span.end - 1]))
        for span in entity_spans(row_tags)
    ]
    return write_tags(entities, words, scheme)


def _tags(*files: Tags) -> set[str]:
    return {tag for sentences in files for tags in sentences for tag in tags}


def _scores_by_tag(predictions: Tags, gold: Tags) -> dict[str, EntityScores]:
    """Scores of each tag, for tags that mark no entities."""
    right: Counter[str] = Counter()
    predicted = Counter(tag for tags in predictions for tag in tags)
    expected = Counter(tag for tags in gold for tag in tags)
    for sentence in zip(predictions, gold, strict=True):
        right.update(p for p, g in zip(*sentence, strict=True) if p == g)
    return {
        tag: EntityScores(right[tag], predicted[tag], expected[tag])
        for tag in sorted({*predicted, *expected})
    }


def _type_note(by_type: dict[str, EntityScores]) -> str:
    scores = [
        f"{name or 'entities'} {s.precision:.4f}/{s.recall:.4f}/{s.f1:.4f} of {s.gold:,}"
        for name, s in by_type.items()
    ]
    return f"precision/recall/f1 by type: {', '.join(scores)}" if scores else "no entities"
