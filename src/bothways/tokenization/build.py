"""Learning a vocabulary from text files, and the report on it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from bothways.errors import ConfigError
from bothways.io.broken import corpus_line, of_corpus
from bothways.io.files import new_folder, refuse_working_folder, write_json
from bothways.io.records import INPUT_SUFFIXES, ParagraphReader, kind_of
from bothways.io.text import explain_read_errors, list_files, stray_notes
from bothways.tokenization.counting import by_rules, count_chunks, count_words, split_chunks
from bothways.tokenization.learning import LearnedVocabulary, learn, min_pair_count
from bothways.tokenization.options import VocabularyConfig
from bothways.tokenization.pieces import CONTINUES
from bothways.tokenization.reading import (
    ORIGINAL_FILES,
    SETTINGS_FILE,
    TOKENIZER_FILE,
    VOCABULARY_FILE,
)
from bothways.tokenization.tokenizer import Tokenizer
from bothways.tokenization.unigram import NORMALIZATION

REPORT_FILE = "vocabulary-report.json"
TOKENIZER_FILES = (VOCABULARY_FILE, TOKENIZER_FILE, SETTINGS_FILE, *ORIGINAL_FILES)
_OWN_FILES = re.compile("|".join(map(re.escape, (REPORT_FILE, *TOKENIZER_FILES))))

Progress = Callable[[str, int, int], None]
"""Called from time to time with the current step, the amount done, and the total."""

_BATCH = 2**14
_SHOWN = 10
_SOME = 0.02  # of the letters


def build_vocabulary(
    config: VocabularyConfig, *, progress: Progress | None = None
) -> dict[str, Any]:
    """Learn a vocabulary from ``config.files`` and save it to ``config.out``, with a report.

    Returns:
        The report, which is also in ``vocabulary-report.json``: ``vocabulary`` (pieces, how they
        were learned), ``alphabet`` (kept and dropped characters), ``learned_from`` and, if there
        are held-out files, ``heldout`` (see :func:`measure`).

    Raises:
        InputError: files that are missing, empty or not text.
        ConfigError: the size is too small for the alphabet; ``config.out`` holds anything but a
            vocabulary.
        DiskError: the folder cannot be written; the previous vocabulary is intact.
    """
    out = Path(config.out)
    refuse_foreign_folder(out)
    stray: list[Path] = []
    files = list_files(config.files, INPUT_SUFFIXES, besides=config.out, stray=stray)
    heldout = []
    if config.heldout:
        heldout = list_files(config.heldout, INPUT_SUFFIXES, besides=config.out)
    limit = corpus_line(config.max_line_mib)
    keep = config.lines == "keep"
    reader = ParagraphReader(
        config.text_field, of_corpus(config.broken), limit, keep, config.encoding
    )
    lines = read_all(files, reader, progress)
    on_merge = partial(progress, "merging") if progress else None
    learned = learn(lines, config, on_merge, progress)
    report = _report(learned, config)
    if stray:
        report["learned_from"]["files_left_out"] = "; ".join(stray_notes(stray))
    if reader.broken.lines:
        report["learned_from"]["broken_lines"] = reader.broken.lines
    if heldout:
        counts = count_file_words(heldout, learned.tokenizer, config.workers, reader)
        report["heldout"] = measure(learned.tokenizer, counts)
    with new_folder(out) as folder:
        learned.tokenizer.save(folder)
        write_json(folder / REPORT_FILE, report)
    return report


def about_text(report: dict[str, Any]) -> list[str]:
    """Notes on a normalization that takes many letters apart.

    Args:
        report: of :func:`build_vocabulary`.
    """
    letters = report["alphabet"]["hangul_and_kana"] + report["alphabet"]["with_vowel_marks"]
    if report["vocabulary"]["normalization"] != "bert" or letters <= _SOME:
        return []
    return [
        f"{letters:.0%} of the letters are Hangul, kana or have vowels as marks, which this "
        "normalization takes apart; --normalization composed keeps them whole"
    ]


def measure(tokenizer: Tokenizer, words: dict[str, int]) -> dict[str, Any]:
    """How a tokenizer segments words with counts.

    Returns:
        ``words``, ``pieces``, ``pieces_a_word`` (fertility), ``whole`` (share of words that are one
        piece other than [UNK]), ``unknown`` (share of words that contain [UNK]), and
        ``unknown_words``, the most frequent of these with their counts.
    """
    pieces = unknown = whole = 0
    unknown_words: Counter[str] = Counter()
    listed, tokenizer = iter(words.items()), tokenizer.with_segmenter(None)
    while batch := list(islice(listed, _BATCH)):
        encoded = tokenizer.encode_plain([word for word, _ in batch])
        for (word, count), ids in zip(batch, encoded, strict=True):
            pieces += count * len(ids)
            if tokenizer.unk_id in ids:
                unknown += count
                unknown_words[word] = count
            elif len(ids) == 1:
                whole += count
    total = sum(words.values())
    ordered = sorted(unknown_words.items(), key=lambda item: (-item[1], item[0]))
    return {
        "words": total,
        "pieces": pieces,
        "pieces_a_word": pieces / max(total, 1),
        "whole": whole / max(total, 1),
        "unknown": unknown / max(total, 1),
        "unknown_words": dict(ordered[:_SHOWN]),
    }


def count_file_words(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    workers: int,
    reader: ParagraphReader | None = None,
) -> dict[str, int]:
    """The words of files, split by the tokenizer's rules: sorted, with counts.

    Args:
        files: text, JSON lines or Parquet.
        tokenizer: gives the rules.
        workers: number of processes; -1 for one per core.
        reader: of the files; by default strict, with the texts of records under ``text``.

    Raises:
        ConfigError: the tokenizer's normalisation is neither preset.
    """
    split = partial(split_chunks, splitter=by_rules, rules=tokenizer.rules)
    lines: Iterable[str] = read_all(files, reader or ParagraphReader())
    if tokenizer.segmenter is not None:
        lines = tokenizer.segmenter.divided(lines)
    with count_chunks(lines, workers=workers) as chunks:
        return count_words(chunks, split, workers=workers)


def read_all(
    files: Sequence[Path], reader: ParagraphReader, progress: Progress | None = None
) -> Iterator[str]:
    """The lines or texts of all files; ``progress`` is called with the bytes read."""
    sizes = []
    for path in files:
        kind_of(path)  # refuses other records before anything is read
        with explain_read_errors(path):
            sizes.append(path.stat().st_size)
    total, finished = sum(sizes), 0

    def on_read(done: int) -> None:
        if progress:
            progress("reading", finished + done, total)

    for path, size in zip(files, sizes, strict=True):
        yield from reader.read(path, on_read)
        finished += size


def refuse_foreign_folder(
    out: Path, own: re.Pattern[str] = _OWN_FILES, *, what: str = "vocabulary", needs: str = ".*"
) -> None:
    """Refuse to replace a folder that holds anything but a vocabulary, such as a model.

    Args:
        out: the folder to write.
        own: matches the names of files that may be replaced.
        what: of which these are.
        needs: matches the name of a file that each such folder has.

    Raises:
        ConfigError: it holds something else, or is the current working folder.
    """
    refuse_working_folder(out)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: a file of this name exists; choose another folder.")
    names = sorted(path.name for path in out.iterdir()) if out.exists() else []
    foreign = [name for name in names if not own.fullmatch(name)]
    if not any(re.fullmatch(needs, name) for name in names):
        foreign = names
    if foreign:
        raise ConfigError(
            f"{out}: the folder exists and holds {', '.join(foreign[:3])}, which is not part of "
            f"a {what}; choose another folder."
        )


def _report(learned: LearnedVocabulary, config: VocabularyConfig) -> dict[str, Any]:
    tokenizer, letters = learned.tokenizer, learned.letters
    frequent = f"pairs seen {min_pair_count(config)} times"
    too_few = f"{config.size:,} requested: no further {frequent} or more, or none that helps"
    characters = sum(count * len(word) for word, count in learned.words.items())
    by_likelihood = config.algorithm in ("wordpiece", "unigram")
    longest = sorted(tokenizer.pieces, key=lambda piece: (-len(piece), piece))
    return {
        "vocabulary": {
            "folder": config.out,
            "pieces": tokenizer.vocab_size,
            "fewer_because": too_few if tokenizer.vocab_size < config.size else None,
            "algorithm": config.algorithm,
            "score": config.score or ("likelihood" if by_likelihood else "frequency"),
            "case": "uncased" if config.lowercase else "cased",
            "normalization": _normalization(learned.tokenizer, config),
            "normalization_asked_for": config.normalization,
            "start_a_word": int(tokenizer.starts_word.sum()),
            **_syllables(tokenizer),
            **({"segmenter": config.segmenter} if config.segmenter else {}),
            "longest_pieces": longest[:_SHOWN],
            "fingerprint": tokenizer.fingerprint,
        },
        "alphabet": {
            "letters": letters.letters,
            "hangul_and_kana": letters.hangul_and_kana / max(letters.letters, 1),
            "with_vowel_marks": letters.marked / max(letters.letters, 1),
            "ideographs": letters.ideographs / max(letters.letters, 1),
            "kept": len({character for word in learned.words for character in word})
            - len(learned.dropped),
            "dropped": len(learned.dropped),
            "dropped_share": sum(learned.dropped.values()) / max(characters, 1),
            "most_frequent_dropped": dict(islice(learned.dropped.items(), _SHOWN)),
        },
        "learned_from": {
            "distinct_words": len(learned.words),
            **measure(tokenizer, learned.words),
        },
    }


def _syllables(tokenizer: Tokenizer) -> dict[str, int]:
    """How many pieces are one Hangul syllable, at the start of a word or within it; nothing if none
    is. A vocabulary for Korean needs some thousands before there is room for words."""
    bodies = (piece.removeprefix(CONTINUES) for piece in tokenizer.pieces)
    found = sum(len(body) == 1 and "가" <= body <= "힣" for body in bodies)
    return {"single_syllables": found} if found else {}


def _normalization(tokenizer: Tokenizer, config: VocabularyConfig) -> str:
    if config.algorithm == "unigram":
        return f"{NORMALIZATION}, SentencePiece's NFKC"
    if config.algorithm == "gpt2-bpe":
        return "none" if config.normalization == "bert" else "composed"
    return tokenizer.normalization
