"""A tag for each word: named entities, parts of speech (Devlin et al. 2019, 5.3).

Each word is read at its first piece, and its document stands around the sentence; there is no CRF
on top. Entities are learned in one scheme, whatever the file's, scored as conlleval does, and
written in the file's.

W words of a sentence, K of them read, C outputs of the head.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bothways.config import Scheme, TaskOptions
from bothways.errors import ConfigError, InputError
from bothways.tasks.conll import DOCUMENT, Sentences, read_sentences
from bothways.tasks.metrics import Measurement, check_metrics
from bothways.tasks.readers import listed, nearest
from bothways.tasks.report_panels import ExampleScores, Mistake, Panel
from bothways.tasks.schemes import (
    OUTSIDE,
    EntityScores,
    Phrase,
    parse,
    phrases,
    scheme_tags,
    score_entities,
    write_tags,
)
from bothways.tasks.task import Outputs, Part, Task
from bothways.tasks.words import Pieces, Reading, read_words
from bothways.tokenization.tokenizer import Tokenizer

Tags = list[list[str]]
_ENTITIES = ("f1", "precision", "recall", "accuracy")


@dataclass(frozen=True)
class TaggedPart(Part[Sentences]):
    """A file of sentences, encoded.

    Attributes:
        reading: which words its rows are.
    """

    reading: Reading = field(kw_only=True)


class TaggingTask(Task[Sentences, Tags]):
    """One of some tags for each word."""

    loss = "class"
    head = "tags"

    @property
    def labels(self) -> tuple[str, ...]:
        """The tags in the order of the head's outputs, in the scheme that it learned."""
        return self.options.labels

    @property
    def outputs(self) -> int:
        """One for each tag."""
        return len(self.labels)

    @property
    def learned(self) -> Scheme:
        """The scheme of :attr:`labels`; ``none`` if they mark no entities."""
        prefixes = {parse(tag)[0] for tag in self.labels}
        if self.options.tagging.scheme == "none" or prefixes == {OUTSIDE}:
            return "none"
        return "bioes" if prefixes & {"E", "S"} else "iob2"

    @classmethod
    def read(cls, path: Path, options: TaskOptions, *, labelled: bool) -> Sentences:
        """A CoNLL file."""
        return read_sentences(path, options.tagging, labelled=labelled)

    @classmethod
    def define(cls, options: TaskOptions, train: Sentences) -> Self:
        """The types of entities are found in the training file, unless labels are given."""
        tagging = options.tagging
        if train.tags is not None and tagging.write == "train":
            assert train.scheme is not None
            tagging = replace(tagging, write=train.scheme)
        labels = options.labels
        if not labels:
            assert train.tags is not None, "labels are found in a file that has them"
            if train.scheme == "none":
                # Its tags may look like those of a scheme, as B, M, E and S of segmentation do.
                tagging = replace(tagging, scheme="none")
            labels = _find_labels(train, "none" if train.scheme == "none" else tagging.learn)
        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise ConfigError(
                f"task.labels is {listed(labels)}; tagging needs at least two tags, each once."
            )
        task = cls(replace(options, labels=labels, tagging=tagging))
        return cls(replace(task.options, metrics=_choose_metrics(task)))

    def encode(self, tokenizer: Tokenizer, rows: Sentences, *, length: int) -> TaggedPart:
        """Windows with the document around each sentence; nothing is cut."""
        options = self.options.tagging
        around = options.context == "document" and rows.has_documents
        reading = read_words(
            tokenizer,
            rows.words,
            rows.documents if around else None,
            length=length,
            spaces=options.spaces,
        )
        examples = reading.examples
        if rows.tags is not None:
            examples = examples.with_targets(self._targets(rows, reading))
        notes = self._notes(rows, reading, length)
        return TaggedPart(rows, examples, notes, reading=reading)

    def _targets(self, rows: Sentences, reading: Reading) -> NDArray[np.int64]:
        """The place in :attr:`labels` of each tag that should be, int64 [rows]."""
        assert rows.tags is not None
        if self.learned != "none" and rows.scheme == "none":
            self._refuse_without_scheme(rows)
        places = {label: i for i, label in enumerate(self.labels)}
        targets: list[int] = []
        for s, own in enumerate(reading.sentences):
            tags = rows.tags[s]
            learned = [tags[w] for w in own.words]
            if self.learned != "none":
                seen = _over_rows(phrases(tags), own)
                learned = write_tags(seen, len(own.words), self.learned)
            for word, tag in zip(own.words.tolist(), learned, strict=True):
                if tag not in places:
                    raise InputError(
                        f"unknown tag {tags[word]!r}; the model learns {listed(self.labels)} "
                        f"(task.labels, or what the training file has).{nearest(tag, self.labels)}",
                        path=rows.path,
                        line=rows.lines[s][word],
                    )
                targets.append(places[tag])
        return np.array(targets, dtype=np.int64)

    def _refuse_without_scheme(self, rows: Sentences) -> None:
        """Tags that mark nothing would all be taken for words outside of entities."""
        assert rows.tags is not None
        for tags, lines in zip(rows.tags, rows.lines, strict=True):
            for tag, line in zip(tags, lines, strict=True):
                if tag != OUTSIDE:
                    raise InputError(
                        f"the tags of this file, such as {tag!r}, mark no entities, where those of "
                        f"the training file do ({self.learned.upper()}). Write them so, or name "
                        "the column that has them with task.tagging.tag.",
                        path=rows.path,
                        line=line,
                    )

    def _notes(self, rows: Sentences, reading: Reading, length: int) -> tuple[str, ...]:
        name, words = rows.path.name, sum(map(len, rows.words))
        notes = []
        if rows.scheme is not None and self.options.tagging.scheme == "auto":
            found = "no scheme of entities" if rows.scheme == "none" else rows.scheme.upper()
            notes.append(f"{name}: its tags are of {found}")
        if rows.broken:
            notes.append(f"{name}: {rows.broken:,} tags break the scheme, read as conlleval does")
        if self.options.tagging.context == "document" and not rows.has_documents:
            notes.append(
                f"{name}: no {DOCUMENT} lines, so each sentence stands without its document"
            )
        if reading.long:
            notes.append(
                f"{name}: {reading.long:,} of {len(rows):,} sentences are longer than {length} "
                "tokens and read in several windows"
            )
        if reading.unreadable:
            notes.append(
                f"{name}: nothing is left of {reading.unreadable:,} of {words:,} words after "
                "normalisation; they are read as [UNK]"
            )
        if reading.joined:
            notes.append(
                f"{name}: {reading.joined:,} of {words:,} words begin within a piece or are spaces "
                "and have the tag of what is around them"
            )
        return tuple(notes)

    def decode(self, part: Part[Sentences], outputs: Outputs) -> Tags:
        """The tags of every sentence's words, in the scheme of the file, or of the training file
        where it has no tags."""
        reading, best = reading_of(part), outputs.argmax(-1)
        scheme = self.written if part.rows.scheme in (None, "none") else part.rows.scheme
        found = []
        for s, (own, words) in enumerate(zip(reading.sentences, part.rows.words, strict=True)):
            rows = slice(*reading.rows[s : s + 2])
            tags = [self.labels[i] for i in best[rows]]
            found.append(_over_words(tags, own, len(words), scheme, self.learned))
        return found

    @property
    def written(self) -> Scheme:
        """The scheme of predictions for a file without tags."""
        write = self.options.tagging.write
        return self.learned if write == "train" else write

    def measure(self, part: Part[Sentences], predictions: Tags) -> Measurement:
        """Of entities as conlleval does; accuracy is that of single tags, also as it does."""
        gold = part.rows.tags
        assert gold is not None, "the file was read without tags"
        pairs = Counter(
            (ours, theirs)
            for row in zip(predictions, gold, strict=True)
            for ours, theirs in zip(*row, strict=True)
        )
        right = sum(count for (ours, theirs), count in pairs.items() if ours == theirs)
        scores = {"accuracy": right / pairs.total()}
        notes = []
        if self.learned != "none":
            total, by_type = score_entities(predictions, gold)
            scores |= {"f1": total.f1, "precision": total.precision, "recall": total.recall}
            notes.append(_type_note(by_type))
        one = {ours for ours, _ in pairs}
        if collapsed := pairs.total() > 1 and len(one) == 1:
            notes.insert(0, f"collapsed: {one.pop()!r} for all {pairs.total():,} words")
        return Measurement({m: scores[m] for m in self.metrics}, tuple(notes), collapsed)

    def baseline(self, train: Part[Sentences], dev: Part[Sentences]) -> Measurement:
        """Always the commonest tag of the training file."""
        assert train.rows.tags is not None
        counts = Counter(tag for tags in train.rows.tags for tag in tags)
        commonest = min(counts, key=lambda tag: (-counts[tag], tag))
        found = self.measure(dev, [[commonest] * len(words) for words in dev.rows.words])
        return Measurement(found.scores)

    def panels(self, part: Part[Sentences], predictions: Tags) -> list[Panel]:
        """Scores of each type of entity, or of each tag where tags mark nothing."""
        gold = part.rows.tags
        assert gold is not None, "the file was read without tags"
        if self.learned == "none":
            counts: dict[str, Counter[str]] = {n: Counter() for n in ("right", "found", "gold")}
            for ours, theirs in zip(predictions, gold, strict=True):
                counts["found"].update(ours)
                counts["gold"].update(theirs)
                counts["right"].update(o for o, t in zip(ours, theirs, strict=True) if o == t)
            by_type = {
                tag: EntityScores(*(counts[n][tag] for n in ("right", "found", "gold")))
                for tag in sorted({*counts["found"], *counts["gold"]})
            }
        else:
            _, by_type = score_entities(predictions, gold)
        rows = tuple(
            (name, s.precision, s.recall, s.f1, s.predicted, s.gold) for name, s in by_type.items()
        )
        header = ("type", "precision", "recall", "f1", "predicted", "in the data")
        return [Panel("Scores by type", header, rows)]

    def errors(self, part: Part[Sentences], predictions: Tags) -> list[Mistake]:
        """Sentences with a wrong tag; those with the most wrong entities (or tags) first."""
        gold = part.rows.tags
        assert gold is not None, "the file was read without tags"
        space = " " if self.options.tagging.spaces else ""
        found = []
        for s, (words, ours, theirs) in enumerate(
            zip(part.rows.words, predictions, gold, strict=True)
        ):
            shown = [self._shown(words, tags, space) for tags in (theirs, ours)]
            if wrong := len(set(shown[0]) ^ set(shown[1])):
                texts = (("sentence", space.join(words)),)
                gold_text, our_text = (
                    "; ".join(e for e in own if e not in other) or "nothing"
                    for own, other in (shown, shown[::-1])
                )
                found.append(Mistake(s, texts, gold_text, our_text, wrong, f"{wrong} differ"))
        return found

    def _shown(self, words: list[str], tags: list[str], space: str) -> list[str]:
        """Entities, or tags that mark nothing, in words."""
        if self.learned == "none":
            return [f"{i + 1} {word}: {tags[i]}" for i, word in enumerate(words)]
        return [
            f"{start + 1} {space.join(words[start:end])}: {t}" for t, start, end in phrases(tags)
        ]

    def example_scores(self, part: Part[Sentences], predictions: Tags) -> ExampleScores | None:
        """The share of right tags in each sentence."""
        assert part.rows.tags is not None, "the file was read without tags"
        pairs = zip(predictions, part.rows.tags, strict=True)
        right = [np.mean([o == t for o, t in zip(*row, strict=True)]) for row in pairs]
        return ExampleScores("accuracy of tags", np.array(right, dtype=np.float64))

    def table(self, part: Part[Sentences], predictions: Tags) -> list[list[str]]:
        """A CoNLL file: word, tag in the file if it has one, predicted tag; with the file's
        separator, blank lines and -DOCSTART- lines, without its other columns."""
        rows, lines = part.rows, []
        known, document = rows.tags or rows.shown, 0
        for s, words in enumerate(rows.words):
            if rows.documents[s] != document:
                document = rows.documents[s]
                fill = [OUTSIDE] * (2 if known else 1)
                lines += [[rows.separator.join([DOCUMENT, *fill])], [""]]
            columns = [words, *([known[s]] if known else []), predictions[s]]
            lines += [[rows.separator.join(row)] for row in zip(*columns, strict=True)]
            lines.append([""])
        return lines[:-1]


def reading_of(part: Part[Sentences]) -> Reading:
    """Which words the rows of a part are."""
    assert isinstance(part, TaggedPart), "a tagging task encoded it"
    return part.reading


def _find_labels(train: Sentences, learn: Scheme) -> tuple[str, ...]:
    assert train.tags is not None
    if learn == "none":
        labels = tuple(sorted({tag for tags in train.tags for tag in tags}))
        words = sum(map(len, train.tags))
        if len(labels) > 2 and words < 2 * len(labels):
            raise InputError(
                f"{len(labels):,} different tags for {words:,} words ({listed(labels, 4)}); set "
                "task.tagging.tag if it is the wrong column.",
                path=train.path,
            )
    else:
        found = {phrase.type for tags in train.tags for phrase in phrases(tags)}
        labels = scheme_tags(found, learn)
    if len(labels) < 2:
        raise InputError(
            f"every word has the tag {labels[0]!r}; there is nothing to learn.", path=train.path
        )
    return labels


def _choose_metrics(task: TaggingTask) -> tuple[str, ...]:
    known = ("accuracy",) if task.learned == "none" else _ENTITIES
    return check_metrics(task.options.metrics or known, known, "these tags")


def _over_rows(found: Sequence[Phrase], own: Pieces) -> list[Phrase]:
    """Entities of words as entities of the words that are read; those without one are lost."""
    seen = []
    for kind, start, end in found:
        first, last = np.searchsorted(own.words, [start, end]).tolist()
        if first < last:
            seen.append(Phrase(kind, first, last))
    return seen


def _over_words(
    tags: list[str], own: Pieces, words: int, scheme: Scheme, learned: Scheme
) -> list[str]:
    """Tags of the words that are read as tags of all words.

    An entity goes from its first word to the end of its last one's pieces, over what lies between;
    a tag of no scheme holds until the next word that is read.
    """
    if learned == "none":
        at = np.searchsorted(own.words, np.arange(words), side="right") - 1
        return [tags[max(0, i)] for i in at]
    found = [
        Phrase(p.type, int(own.words[p.start]), int(own.ends[p.end - 1])) for p in phrases(tags)
    ]
    return write_tags(found, words, scheme)


def _type_note(by_type: dict[str, EntityScores]) -> str:
    shown = [
        f"{name or 'entities'} {s.precision:.4f}/{s.recall:.4f}/{s.f1:.4f} of {s.gold:,}"
        for name, s in by_type.items()
    ]
    return f"precision/recall/f1 by type: {', '.join(shown)}" if shown else "no entities"
