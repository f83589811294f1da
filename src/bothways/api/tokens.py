"""The pieces of texts, for `bothways tokenize`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from bothways.io.hub import model_folder
from bothways.io.streams import visible
from bothways.runtime.options import TokenizeConfig
from bothways.tokenization.tokenizer import Encoding, Tokenizer

# By turns, so that neighbouring words differ; special tokens are dim.
_WORDS = ("black on bright_cyan", "black on bright_yellow")


def tokenize(config: TokenizeConfig) -> Iterator[Text]:
    """For each text a line of its pieces, in colours where there are colours, and a line for each
    piece: its number in the vocabulary, its place in the text, and the text there.

    Raises:
        ModelError, InputError: the vocabulary cannot be read, or a text is not Unicode.
    """
    tokenizer = Tokenizer.from_folder(model_folder(config.model))
    for number, text in enumerate(config.texts):
        if number:
            yield Text()
        yield from _lines(text, tokenizer.encode(text), tokenizer)


def _lines(text: str, encoding: Encoding, tokenizer: Tokenizer) -> Iterator[Text]:
    pieces = [visible(piece) for piece in encoding.tokens]
    line = Text()
    for piece, word in zip(pieces, encoding.words, strict=True):
        line.append(piece, "dim" if word is None else _WORDS[word % 2]).append(" ")
    yield line
    width = max(map(len, pieces), default=0)
    yield Text(f"{'piece':<{width}}  {'id':>7}  {'from':>5}  {'to':>5}  text", "bold")
    unknown = 0
    for piece, id, (start, end), word in zip(
        pieces, encoding.ids, encoding.offsets, encoding.words, strict=True
    ):
        place = f"{'':>5}  {'':>5}" if word is None else f"{start:>5}  {end:>5}"
        row = f"{piece:<{width}}  {id:>7}  {place}  {visible(text[start:end])}"
        yield Text(row.rstrip(), "dim" if word is None else "")
        unknown += word is not None and id == tokenizer.unk_id
    if unknown:
        yield Text(f"{unknown} of {len(pieces)} pieces are unknown: {tokenizer.roles.unk}", "bold")
