"""Tags and entities of a text, with their character offsets.

W words of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import softmax
from bothways.errors import InputError
from bothways.io import html
from bothways.io.annotations.spans import SpanText
from bothways.runtime.folder import LoadedModel
from bothways.runtime.pipeline import choose_length, outputs_of
from bothways.tasks.examples import SequenceBuilder, check_room
from bothways.tasks.kinds import other_kind
from bothways.tasks.schemes import entity_spans
from bothways.tasks.sentences import Sentences
from bothways.tasks.tagging import TaggingTask, encoded_sentences
from bothways.tasks.windows import best_window, cut_windows
from bothways.tasks.words import RunningText, join_words, split_words
from bothways.tokenization.normalization import check_texts
from bothways.tokenization.tokenizer import Encoding, Tokenizer


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
    task = _tagging(loaded)
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


def _tagging(loaded: LoadedModel) -> TaggingTask:
    if not isinstance(loaded.task, TaggingTask):
        raise other_kind(loaded.task, "a model fine-tuned on tags of words (--kind ner)")
    return loaded.task


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


# --------------------------------------------------------------------------------
# Entities as transformers' TokenClassificationPipeline has them: every token of running text is
# read, and aggregation_strategy says how they are put together.
#
# P tokens of a text, C tags.

Aggregation = Literal["none", "simple", "first", "average", "max"]
_OF_WORD: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "first": lambda rows: rows[0],
    "average": lambda rows: rows.mean(0),
    "max": lambda rows: rows[rows.max(-1).argmax()],
}
"""The probabilities of a word's tags, [C], from those of its tokens."""


def group_tokens(
    loaded: LoadedModel, texts: Sequence[str], aggregation: Aggregation
) -> list[list[Entity]]:
    """What the tags of all tokens say, tokens outside of entities included.

    Unlike :func:`tag_texts`, this reads words as the tokenizer splits them, in sequences as long as
    the encoder takes, and follows B- and I- alone, as transformers does. Longer texts are read in
    windows.

    Args:
        loaded: a model folder with a head for tags.
        texts: running text.
        aggregation: "none" gives tokens. "simple" joins neighbours of one type up to a B-. The
            others give each word one tag first: its first token's, that of the mean of its tokens,
            or its surest token's.

    Returns:
        Of each text. ``words`` counts tokens, special ones included; ``probability`` is the mean
        over an entity's words, for "simple" over its tokens; for "none" ``type`` is the whole tag,
        and ``text`` the token as in the vocabulary, if it is there.

    Raises:
        ModelError: the model has another head or none.
    """
    task, tokenizer = _tagging(loaded), loaded.tokenizer
    length = loaded.config.positions
    check_room(tokenizer, length, pair=False)
    room = tokenizer.template.room(length)
    encodings = tokenizer.encode_batch(texts)
    sequences, read = SequenceBuilder(tokenizer), [np.zeros(0, np.int64)]
    owners: list[int] = []
    for number, encoding in enumerate(encodings):
        ids = np.array(encoding.ids[encoding.parts[0]], dtype=np.int32)
        windows = cut_windows(len(ids), room, max(1, room // 2)) if len(ids) else []
        best = best_window(windows, len(ids))
        for window, (start, end) in enumerate(windows):
            (at,) = sequences.add(ids[start:end])
            read.append(at - start + np.flatnonzero(best == window))
            owners.append(number)
    if not owners:
        return [[] for _ in texts]
    examples = sequences.examples(
        read_positions=np.concatenate(read), owners=np.array(owners, dtype=np.int64)
    )
    scores_PC = softmax(outputs_of(loaded, task, examples).astype(np.float64), axis=-1)
    found, start = [], 0
    for text, encoding in zip(texts, encodings, strict=True):
        own = encoding.parts[0]
        rows = scores_PC[start : (start := start + own.stop - own.start)]
        found.append(_groups(tokenizer, text, encoding, rows, task.labels, aggregation))
    return found


def _groups(
    tokenizer: Tokenizer,
    text: str,
    encoding: Encoding,
    scores_PC: NDArray[np.float64],
    labels: Sequence[str],
    aggregation: Aggregation,
) -> list[Entity]:
    """The groups of a text's tokens."""
    (own,) = encoding.parts
    ids, places = encoding.ids[own], encoding.offsets[own]
    by_word = aggregation in _OF_WORD
    starts = [
        n
        for n, (id, place) in enumerate(zip(ids, places, strict=True))
        if not (n and by_word and _continues_word(tokenizer, text, id, place))
    ]
    groups: list[list[Entity]] = []
    for first, end in zip(starts, [*starts[1:], len(ids)], strict=False):
        row = _OF_WORD.get(aggregation, _OF_WORD["first"])(scores_PC[first:end])
        best, (start, stop), id = int(row.argmax()), places[first], ids[first]
        piece = text[start:stop] if id == tokenizer.unk_id else tokenizer.pieces[id]
        numbers = own.start + first, own.start + end
        word = Entity(labels[best], start, places[end - 1][1], piece, numbers, float(row[best]))
        joined = aggregation != "none" and groups and not word.type.startswith("B-")
        if joined and _type(word) == _type(groups[-1][-1]):
            groups[-1].append(word)
        else:
            groups.append([word])
    if aggregation == "none":
        return [word for (word,) in groups]
    return [
        Entity(
            type=group[0].type.partition("-")[2] or group[0].type,
            start=group[0].start,
            end=group[-1].end,
            text=text[group[0].start : group[-1].end],
            words=(group[0].words[0], group[-1].words[1]),
            probability=float(np.mean([word.probability for word in group])),
        )
        for group in groups
    ]


def _type(word: Entity) -> str:
    return word.type[2:] if word.type.startswith(("B-", "I-")) else word.type


def _continues_word(tokenizer: Tokenizer, text: str, id: int, place: tuple[int, int]) -> bool:
    """Whether a token belongs to the word before it, as transformers tells: by its prefix, where
    the vocabulary has one, or else by the space before it."""
    start, end = place
    if id == tokenizer.unk_id:
        return False
    if tokenizer.continues:
        return len(tokenizer.pieces[id]) != end - start
    return start > 0 and " " not in text[start - 1 : start + 1]
