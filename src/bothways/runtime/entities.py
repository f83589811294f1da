"""Tags and entities of a text, with their character offsets.

W words of a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import softmax
from bothways.errors import InputError
from bothways.io import html
from bothways.io.annotations.spans import SpanText
from bothways.runtime.folder import LoadedModel
from bothways.runtime.pipeline import choose_length, outputs_of
from bothways.tasks.kinds import other_kind
from bothways.tasks.schemes import entity_spans
from bothways.tasks.sentences import Sentences
from bothways.tasks.tagging import TaggingTask, encoded_sentences
from bothways.tasks.words import RunningText, join_words, split_words
from bothways.tokenization.normalization import check_texts
from bothways.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Entity:
    """A named entity.

    Attributes:
        type: such as PER.
        start, end: its first character in the text, and the one after its last.
        text: these characters.
        words: its first word, and the one after its last.
        probability: of its least probable tag.
    """

    type: str
    start: int
    end: int
    text: str
    words: tuple[int, int]
    probability: float


@dataclass(frozen=True)
class Tagged:
    """A text with its tags.

    Attributes:
        text: as given, or the given words joined by spaces.
        words: as given, or as :func:`bothways.tasks.words.split_words` cuts the text: at white
            space, and punctuation off both ends of a word.
        spans: first character of each word in the text, and the one after its last.
        tags: of each word, in the scheme of the file that the model was trained on.
        probabilities: of each word's tag; a word that begins inside a piece of another word has
            that word's.
        entities: what the tags mark; empty for tags that mark none, such as parts of speech.
        windows: in how many windows it was read; more than one if it is too long for one.
    """

    text: str
    words: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    entities: tuple[Entity, ...]
    windows: int = 1

    def _repr_html_(self) -> str:
        """The words side by side: those of entities coloured, with the type below; or the tags, of
        tags that mark none."""
        below = [""] * len(self.words)
        number: list[int | None] = [None] * len(self.words)
        kinds = list(dict.fromkeys(entity.type for entity in self.entities))
        for entity in self.entities:
            below[entity.words[0]] = f"{entity.type} {entity.probability:.2f}"
            for word in range(*entity.words):
                number[word] = kinds.index(entity.type)
        if not self.entities and any(tag != "O" for tag in self.tags):
            below = list(self.tags)
        notes = [f"{t} {p:.2f}" for t, p in zip(self.tags, self.probabilities, strict=True)]
        return html.tokens(zip(self.words, below, notes, number, strict=True))


def tag_texts(loaded: LoadedModel, texts: Sequence[str | Sequence[str]]) -> list[Tagged]:
    """Tag texts, or sentences that are already split into words, each by itself.

    Text longer than the sequences of fine-tuning, or than the encoder takes, is read in several
    windows.

    Args:
        loaded: a model folder with a head for tags.
        texts: running text, or words.

    Returns:
        Of each; without tags where a text has no words, as one of white space and invisible
        characters.

    Raises:
        ModelError: the model has another head or none.
        InputError: something that is not a text.
    """
    task = loaded.task
    if not isinstance(task, TaggingTask):
        raise other_kind(task, "a model fine-tuned on tags of words (--kind ner)")
    if isinstance(texts, str):
        raise InputError("tag_texts takes a list of texts; give a single one in a list.")
    split = [_split(loaded.tokenizer, t, spaces=task.options.tagging.spaces) for t in texts]
    words = [[whole[start:end] for start, end in spans] for whole, spans in split]
    found = [Tagged(whole, (), (), (), (), ()) for whole, _ in split]
    if not (numbers := [n for n, own in enumerate(words) if own]):
        return found
    sentences = Sentences(
        Path("text"),
        [words[n] for n in numbers],
        [[0] * len(words[n]) for n in numbers],
        documents=numbers,
        texts=[SpanText(split[n][0], None, line=1) for n in numbers],
        places=[split[n][1] for n in numbers],
    )
    file = task.encode(loaded.tokenizer, sentences, length=choose_length(loaded, None))
    outputs = outputs_of(loaded, task, file.examples)
    row_probabilities = softmax(outputs.astype(np.float64), axis=-1).max(-1)
    encoded, marks_entities = encoded_sentences(file), task.learned_scheme != "none"
    windows = np.bincount(file.examples.owners)
    for s, (n, tags) in enumerate(zip(numbers, task.decode(file, outputs), strict=True)):
        rows = encoded.output_bounds[s] + encoded.sentences[s].row_of_words(len(words[n]))
        tagged = _tagged(*split[n], words[n], tags, row_probabilities[rows], marks_entities)
        found[n] = replace(tagged, windows=int(windows[s]))
    return found


def _tagged(
    whole: str,
    spans: Sequence[tuple[int, int]],
    words: Sequence[str],
    tags: Sequence[str],
    probabilities: NDArray[np.float64],
    marks_entities: bool,
) -> Tagged:
    """A text with its tags, and the entities if they mark some."""
    entities = []
    for entity_type, first, last in entity_spans(tags) if marks_entities else []:
        start, end = spans[first][0], spans[last - 1][1]
        probability = float(probabilities[first:last].min())
        entities.append(
            Entity(entity_type, start, end, whole[start:end], (first, last), probability)
        )
    return Tagged(
        whole,
        tuple(words),
        tuple(spans),
        tuple(tags),
        tuple(probabilities.tolist()),
        tuple(entities),
    )


def _split(tokenizer: Tokenizer, text: str | Sequence[str], *, spaces: bool) -> RunningText:
    """The whole text, and the first and last (exclusive) character of each of its words."""
    if not isinstance(text, str):
        check_texts(text)
        return join_words(text, " " * spaces)
    if not tokenizer.normalize(text).strip():
        return text, []
    if not spaces:
        return text, [(i, i + 1) for i in range(len(text))]
    return text, split_words(tokenizer, text)
