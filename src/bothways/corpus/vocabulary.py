"""A vocabulary from text files, and how well it covers them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bothways.config import VocabularyConfig
from bothways.corpus.documents import list_files, read_lines
from bothways.errors import ConfigError, InputError
from bothways.files import new_folder
from bothways.tokenization.learning import learn_vocabulary
from bothways.tokenization.tokenizer import (
    CONTINUES,
    SETTINGS_FILE,
    TOKENIZER_FILE,
    UNK,
    VOCABULARY_FILE,
    Tokenizer,
)

_SAMPLE_CHARACTERS = 2_000_000


@dataclass(frozen=True)
class Coverage:
    """How a tokenizer cuts a sample of text."""

    words: int
    """Words of the sample."""
    pieces: int
    """Pieces they became."""
    unknown: int
    """Words that became [UNK]."""


def learn_from_files(config: VocabularyConfig) -> Tokenizer:
    """Learn a vocabulary from ``config.files`` and save it to ``config.out``.

    Raises:
        InputError: files that are missing, empty or not text.
        ConfigError: a size with no room for the alphabet; ``config.out`` holds something else than
            a vocabulary.
        DiskError: the folder cannot be written; the vocabulary that was there is intact.
    """
    out = Path(config.out)
    _refuse_foreign_folder(out)
    files = _text_files(config)
    if not any(line.strip() for file in files for _, line in read_lines(file)):
        raise InputError(f"no text in {', '.join(config.files)}: every file is empty or blank.")
    tokenizer = learn_vocabulary(
        (line for file in files for _, line in read_lines(file)),
        size=config.size,
        lowercase=config.lowercase,
        min_count=config.min_count,
        alphabet=config.alphabet,
    )
    with new_folder(out) as folder:
        tokenizer.save(folder)
    return tokenizer


def measure_coverage(tokenizer: Tokenizer, files: list[Path]) -> Coverage:
    """Cut a sample of the files, the start of each, about two million characters in all."""
    continuing = {
        i for i in range(tokenizer.vocab_size) if tokenizer.piece(i).startswith(CONTINUES)
    }
    unknown_id = tokenizer.id(UNK)
    words = pieces = unknown = 0
    for file in files:
        for ids in tokenizer.encode_plain(list(_start(file, _SAMPLE_CHARACTERS // len(files)))):
            pieces += len(ids)
            words += sum(id not in continuing for id in ids)
            unknown += ids.count(unknown_id)
    return Coverage(words, pieces, unknown)


def describe(tokenizer: Tokenizer, config: VocabularyConfig) -> str:
    """Size and coverage in a few lines, for a person."""
    lines = [f"{config.out}: {tokenizer.vocab_size:,} pieces"]
    if tokenizer.vocab_size < config.size:
        lines[0] += f" ({config.size:,} asked for; the text has no more that are frequent enough)"
    found = measure_coverage(tokenizer, _text_files(config))
    lines.append(
        f"sample of {found.words:,} words: {found.pieces / max(found.words, 1):.2f} pieces a word, "
        f"{found.unknown / max(found.words, 1):.3%} of the words [UNK]"
    )
    return "\n".join(lines)


def _refuse_foreign_folder(out: Path) -> None:
    """The folder is replaced whole, and a model keeps the vocabulary it was trained with."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: a file of this name exists; choose another folder.")
    own = {VOCABULARY_FILE, TOKENIZER_FILE, SETTINGS_FILE}
    foreign = sorted({path.name for path in out.iterdir()} - own) if out.exists() else []
    if foreign:
        raise ConfigError(
            f"{out}: the folder exists and holds {', '.join(foreign[:3])}, which is no part of a "
            "vocabulary; choose another folder."
        )


def _text_files(config: VocabularyConfig) -> list[Path]:
    # A vocab.txt that was written among the texts before is not one of them.
    out = Path(config.out).resolve()
    return [file for file in list_files(config.files) if out not in file.resolve().parents]


def _start(file: Path, characters: int) -> Iterator[str]:
    for _, line in read_lines(file):
        yield line
        characters -= len(line)
        if characters <= 0:
            return
