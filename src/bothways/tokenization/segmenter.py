"""Text divided into words by another program first, such as a Korean text into morphemes.

A segmenter is a Python function of the user's, ``MODULE:FUNCTION``, that takes a text and gives its
words. It may only divide: the words are those characters of the text, in order, and what lies
between them is white space. So the tokens of a divided text still have their places in the text as
it was given, and answers and entities are found in it.

Its name is kept with the vocabulary, as ids of texts that are not divided would be others. A folder
alone never makes us import a module: whoever uses one that names a segmenter allows it by name, in
the environment variable :data:`VARIABLE`.
"""

from __future__ import annotations

import os
import pkgutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bothways.errors import ConfigError, InputError, ModelError

VARIABLE = "BOTHWAYS_SEGMENTER"
SETTING = "segmenter"
"""The name's key in tokenizer_config.json."""


@dataclass(frozen=True)
class Divided:
    """A text with spaces between its words.

    Attributes:
        text: the words.
        added: where in it spaces are that the original has not, sorted.
    """

    text: str
    added: tuple[int, ...] = ()

    def original(self, place: tuple[int, int]) -> tuple[int, int]:
        """The start and end of a part in the text as it was given."""
        start, end = place
        return start - bisect_left(self.added, start), end - bisect_left(self.added, end)


class Segmenter:
    """Divides texts by a function; the same in every process, as it is sent by its name.

    Args:
        name: ``MODULE:FUNCTION``.

    Raises:
        ConfigError: there is no such module or function.
    """

    def __init__(self, name: str):
        self.name = name
        try:
            self._words: Callable[[str], Iterable[str]] = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"segmenter: {name!r} cannot be imported: {error}.") from None
        if not callable(self._words):
            raise ConfigError(f"segmenter is {name!r}; it must be MODULE:FUNCTION.")

    def __reduce__(self) -> tuple[type[Segmenter], tuple[str]]:
        return Segmenter, (self.name,)

    def divide(self, text: str) -> Divided:
        """Put spaces between the words of a text.

        Raises:
            InputError: the function gives words that are not those of the text.
        """
        added: list[int] = []
        parts: list[str] = []
        end = length = 0
        for word in self._words(text):
            start = text.find(word, end) if isinstance(word, str) else -1
            if start < 0 or text[end:start].strip():
                raise self._changed(text, end, word)
            if not word:
                continue
            gap = text[end:start]
            if start and not gap and not text[start - 1].isspace():
                added.append(length)
                gap = " "
            parts += [gap, word]
            length += len(gap) + len(word)
            end = start + len(word)
        if text[end:].strip():
            raise self._changed(text, end, None)
        return Divided("".join([*parts, text[end:]]), tuple(added))

    def divide_around(self, text: str, whole: str | None) -> Divided:
        """As :meth:`divide`, of what stands around a piece that must not be taken apart, such as
        a mask, which is no word of any language."""
        if not whole or whole not in text:
            return self.divide(text)
        parts: list[str] = []
        added: list[int] = []
        length = 0
        for part in text.split(whole):
            divided = self.divide(part) if part else Divided(part)
            added += [length + place for place in divided.added]
            parts.append(divided.text)
            length += len(divided.text) + len(whole)
        return Divided(whole.join(parts), tuple(added))

    def divide_all(self, texts: Sequence[str], whole: str | None) -> list[Divided]:
        """Each text as :meth:`divide_around`."""
        return [self.divide_around(text, whole) for text in texts]

    def divided(self, lines: Iterable[str]) -> Iterable[str]:
        """Texts with spaces between their words, one at a time."""
        return (self.divide(line).text for line in lines)

    def _changed(self, text: str, end: int, word: object) -> InputError:
        found = "ends" if word is None else f"gives {word!r}"
        return InputError(
            f"the segmenter {self.name} {found} where the text goes on with {text[end:][:40]!r}; "
            "it may divide a text but must not change or leave out characters."
        )


def allowed_segmenter(name: str, source: object) -> Segmenter:
    """The segmenter that a vocabulary's folder names.

    Raises:
        ModelError: it was not allowed, or is missing.
    """
    if name not in os.environ.get(VARIABLE, "").split(","):
        raise ModelError(
            f"{source}: the vocabulary needs the segmenter {name}, a Python function. If you trust "
            f"it, set {VARIABLE}={name}, with its module on PYTHONPATH."
        )
    try:
        return Segmenter(name)
    except ConfigError as error:
        raise ModelError(f"{source}: {error}") from None
