"""Counting the words of a text of any size: exactly, in bounded memory, on several processes.

Chunks (the strings between plain spaces) are counted as they are; each distinct chunk is then
cleaned and split into words once. Counts that outgrow memory go to sorted files, which are merged
at the end: memory is bounded by ``max_in_memory`` distinct strings (about 200 bytes each) and by
their characters, of which text without spaces has many in each; disk by the distinct strings of the
text, and no count is ever approximate. Sums do not depend on order, so neither the number of
processes nor the order of the text affects the result.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from tokenizers.normalizers import NFC, NFKC, Sequence
from tokenizers.pre_tokenizers import ByteLevel

from bothways.errors import RunError
from bothways.io.files import explain_disk_errors
from bothways.io.parallel import in_processes
from bothways.tokenization.normalization import Rules, normalizer, not_text_error, word_splitter
from bothways.tokenization.reading import cleaning

MAX_IN_MEMORY = 3_000_000
"""Distinct strings held in memory while counting."""
MAX_CHARACTERS = 2**28
"""Characters of these strings."""
MAX_WORDS = 5_000_000
"""How many distinct words a vocabulary is learned from: the most frequent ones."""

_BLOCK_CHARACTERS = 2**22
_BATCH = 2**16

Item = TypeVar("Item")
Progress = Callable[[int, int], None]
"""Called with what is done, and all."""


class StringCounts:
    """Counts of strings that spill to sorted files when there are too many to hold.

    Args:
        folder: for the files; must exist.
        max_in_memory: number of distinct strings held in memory.
    """

    def __init__(self, folder: Path, *, max_in_memory: int = MAX_IN_MEMORY):
        self._folder, self._max_in_memory = folder, max_in_memory
        self._counts: Counter[str] = Counter()
        self._characters = self._spilled = 0
        self._files: list[Path] = []

    def add(self, counts: Mapping[str, int]) -> None:
        """Add counts."""
        self._characters += sum(len(string) for string in counts if string not in self._counts)
        self._counts.update(counts)
        if len(self._counts) > self._max_in_memory or self._characters > MAX_CHARACTERS:
            self._spill()

    def batches(self, progress: Progress | None = None) -> Iterator[dict[str, int]]:
        """All strings in sorted order with their counts, thousands at a time.

        Args:
            progress: called after each batch with the strings so far, and how many there are.

        Raises:
            InputError: a string is not Unicode text.
        """
        if self._files and self._counts:
            self._spill()
        pairs: Iterator[tuple[str, int]]
        if self._files:
            pairs = _sum_equal(heapq.merge(*map(_read_counts, self._files)))
        else:
            pairs = iter(sorted(self._counts.items()))
        total, done = self._spilled + len(self._counts), 0
        for batch in _groups(pairs, _length):
            yield dict(batch)
            done += len(batch)
            if progress:
                progress(done, total)
        if progress and done < total:  # of several files, strings are in more than one
            progress(total, total)

    def _spill(self) -> None:
        ordered = sorted(self._counts.items())
        self._counts.clear()
        self._characters = 0
        self._spilled += len(ordered)
        path = self._folder / f"counts-{len(self._files)}.arrow"
        self._files.append(path)
        schema = pa.schema([("string", pa.large_string()), ("count", pa.int64())])
        with (
            explain_disk_errors(path, "free some space, or name another folder in TMPDIR"),
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, schema) as writer,
        ):
            for batch in _groups(ordered, _length):
                strings, counts = zip(*batch, strict=True)
                try:
                    writer.write_batch(pa.record_batch([strings, counts], schema=schema))
                except UnicodeEncodeError as error:
                    raise not_text_error(strings) from error


@contextlib.contextmanager
def count_chunks(
    lines: Iterable[str], *, workers: int = 1, max_in_memory: int = MAX_IN_MEMORY
) -> Iterator[StringCounts]:
    """Count the strings between plain spaces; temporary files exist as long as the context.

    Args:
        lines: the text, in parts that end at the end of a word.
        workers: number of processes; -1 for one per core.
        max_in_memory: number of distinct strings held in memory.
    """
    with _temporary_counts(max_in_memory) as counts:
        for part in _map_unordered(_count_block, _groups(lines, len), workers):
            counts.add(part)
        yield counts


def count_words(
    chunks: StringCounts,
    split: Callable[[dict[str, int]], Counter[str]],
    *,
    workers: int = 1,
    max_in_memory: int = MAX_IN_MEMORY,
    max_words: int = MAX_WORDS,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Count the words of counted chunks.

    Args:
        chunks: see :func:`count_chunks`.
        split: counts the words of some chunks with counts; it is sent to the processes.
        workers: number of processes; -1 for one per core.
        max_in_memory: number of distinct strings held in memory in addition to the result.
        max_words: number of words in the result: the most frequent ones, ties in sorted order.
        progress: called with the chunks that are split, and all.

    Returns:
        The words in sorted order, with counts.

    Raises:
        InputError: the text is not Unicode.
    """
    with _temporary_counts(max_in_memory) as counts:
        for part in _map_unordered(split, chunks.batches(progress), workers):
            counts.add(part)
        top: list[tuple[int, str]] = []
        for batch in counts.batches():
            top += ((-count, word) for word, count in batch.items())
            if len(top) > 2 * max_words:
                top = heapq.nsmallest(max_words, top)
    if len(top) > max_words:
        top = heapq.nsmallest(max_words, top)
    return {word: -negative for negative, word in sorted(top, key=lambda item: item[1])}


@contextlib.contextmanager
def _temporary_counts(max_in_memory: int) -> Iterator[StringCounts]:
    with tempfile.TemporaryDirectory(prefix="bothways-counts-") as folder:
        yield StringCounts(Path(folder), max_in_memory=max_in_memory)


def _map_unordered(
    function: Callable[[Item], Counter[str]], items: Iterable[Item], workers: int
) -> Iterator[Counter[str]]:
    """Apply a function in several processes, results in any order; a single item needs none."""
    items = iter(items)
    first = list(itertools.islice(items, 2))
    if workers == 1 or len(first) < 2:
        yield from map(function, itertools.chain(first, items))
        return
    every = ((item,) for item in itertools.chain(first, items))
    with in_processes(function, every, workers=workers, lost=RunError, ordered=False) as results:
        yield from results


def _groups(items: Iterable[Item], characters: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Consecutive items, so many that a group is worth a message to a process."""
    group: list[Item] = []
    total = 0
    for item in items:
        group.append(item)
        total += characters(item)
        if len(group) >= _BATCH or total >= _BLOCK_CHARACTERS:
            yield group
            group, total = [], 0
    if group:
        yield group


def _count_block(lines: list[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line.split(" "))
    del counts[""]
    return counts


def split_chunks(
    chunks: dict[str, int], splitter: Callable[..., Callable[[str], list[str]]], **options: Any
) -> Counter[str]:
    """The words of chunks with counts.

    Args:
        chunks: with counts.
        splitter: given the options, returns a function from a chunk to its words.
        **options: of the splitter.

    Raises:
        InputError: a chunk is not Unicode.
    """
    split = splitter(**options)
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        try:
            found = split(chunk)
        except (TypeError, UnicodeEncodeError) as error:
            raise not_text_error([chunk]) from error
        for word in found:
            words[word] += count
    return words


def by_rules(rules: Rules) -> Callable[[str], list[str]]:
    """Splits as the tokenizer's rules do."""
    clean, split = normalizer(**rules).normalize_str, word_splitter().pre_tokenize_str
    return lambda chunk: [word for word, _ in split(clean(chunk))]


def with_spaces(*, composes: bool) -> Callable[[str], list[str]]:
    """Splits as GPT-2 does, each word with the space before it; ``composes``: in composed form
    (NFC)."""
    split, compose = ByteLevel(add_prefix_space=False).pre_tokenize_str, NFC().normalize_str

    def words(chunk: str) -> list[str]:
        text = " " + (compose(chunk) if composes else chunk)
        return [text[start:end] for _, (start, end) in split(text)]

    return words


def at_white_space(*, lowercase: bool) -> Callable[[str], list[str]]:
    """Splits at white space, after ALBERT's normalisation and NFKC."""
    steps = [*cleaning(keep_accents=not lowercase, lowercase=lowercase), NFKC()]
    clean = Sequence(steps).normalize_str
    return lambda chunk: clean(chunk).split()


def _read_counts(path: Path) -> Iterator[tuple[str, int]]:
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _sum_equal(pairs: Iterable[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Sum the counts of equal strings, which are adjacent."""
    for string, equal in itertools.groupby(pairs, key=itemgetter(0)):
        yield string, sum(count for _, count in equal)


def _length(pair: tuple[str, int]) -> int:
    return len(pair[0])
