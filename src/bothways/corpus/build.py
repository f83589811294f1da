"""Building a token store from text.

One process reads units of about a megabyte; any number of others encode them, on this machine or on
a cluster. Results come back in the order of the text and go to a log on disk (:mod:`.build_log`).
Documents are then assembled in passes over that log (:mod:`.assemble`) and written to shards.
The result therefore does not depend on how the work was distributed, an interrupted build continues
after the last unit in the log, and memory holds a few units and one shard, however long the text.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.arrays import bounds
from bothways.config.fields import digest, recipe_fields
from bothways.corpus.assemble import (
    DocumentPlan,
    RepeatIndex,
    find_repeats,
    place_documents,
    plan_documents,
    remove_repeats,
)
from bothways.corpus.build_log import BuildLog
from bothways.corpus.cached_encoder import pack
from bothways.corpus.duplicates import Repeats
from bothways.corpus.encode import UNIT_FORMAT, UNIT_OPTIONS, Counts, EncodedUnit, encode_unit
from bothways.corpus.options import CorpusConfig
from bothways.corpus.report import (
    Lengths,
    heldout_note,
    layout_notes,
    script_shares,
    single_sentence_note,
    summarise_split,
)
from bothways.corpus.sentences import AUTO, check_language
from bothways.corpus.sources import UNIT_BYTES, Input, Unit, list_inputs, read_units
from bothways.corpus.store import (
    FORMAT,
    MANIFEST,
    SPLITS,
    Ids,
    Manifest,
    Shard,
    Split,
    id_type,
    options_fingerprint,
    write_shard,
)
from bothways.errors import (
    ConfigError,
    InputError,
    StoreError,
    check_installed,
)
from bothways.io.files import explain_disk_errors, new_folder
from bothways.io.parallel import in_processes
from bothways.io.terminal import counted
from bothways.io.text import stray_notes
from bothways.tokenization import languages
from bothways.tokenization.build import TOKENIZER_FILES, refuse_foreign_folder
from bothways.tokenization.tokenizer import Tokenizer

_OWN_FILES = re.compile(
    "|".join(map(re.escape, (MANIFEST, "report.html", *TOKENIZER_FILES)))
    + r"|(train|heldout)-\d{5,}\.arrow"
)
_WORTH_PROCESSES = 8 * UNIT_BYTES  # starting them takes as long as encoding this much


def build_corpus(
    config: CorpusConfig,
    *,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Build the corpus folder ``config.out``; an older corpus there is replaced at the very end.

    The same call continues a build that was interrupted for any reason. A build from standard input
    starts over, because that cannot be read a second time.

    Args:
        config: the options.
        progress: called with the bytes of input files processed so far, and their total.
        say: called with a message if there was an interrupted build, or files were left out.

    Returns:
        The report, which is also in corpus.json: sizes and length quantiles of ``train`` and
        ``heldout``; ``unknown_rate``, the share of ids that are [UNK]; ``special_tokens``, how
        often the text itself has [CLS], [SEP], [MASK] or [PAD]; what became of documents of one
        sentence; repeats, broken lines, scripts, ``histograms``; ``layout``, what was noticed of
        the layout of text files, if anything; ``heldout_note`` if the
        held-out split cannot be used for evaluation; ``seconds`` and ``mb_per_second`` of this call
        (MB of text, 10**6 bytes).

    Raises:
        ConfigError: an option is out of range, ``config.out`` holds anything but a corpus, or
            ``config.cluster`` is given without Dask.
        InputError: text that cannot be read, no text at all, or fewer than two documents.
        ModelError: the tokenizer cannot be read.
        StoreError: a worker process was lost.
        DiskError: a file could not be written, or another process is building the corpus; the
            previous content is intact.
    """
    check_installed("a corpus", "pyarrow")
    if config.language != AUTO:
        check_language(config.language)
    if not config.out:
        raise ConfigError("out is empty; name the folder to write the corpus to.")
    tokenizer = Tokenizer.from_folder(config.tokenizer)
    out = Path(config.out)
    stray: list[Path] = []
    inputs = list_inputs(config.files, besides=config.out, stray=stray)
    if say:
        for note in stray_notes(stray):
            say(note)
    config, language_note = _with_language(config, inputs)
    refuse_foreign_folder(out, _OWN_FILES, what="corpus", needs=r".*\.arrow|corpus\.json")
    with explain_disk_errors(out):
        # No other process writes the folder, so none uses its log.
        with new_folder(out) as folder:
            log = BuildLog(out, _identity(config, inputs, tokenizer))
            if log.note and say:
                say(log.note)
            try:
                tokenizer.save(folder)
                _encode_inputs(config, inputs, pack(tokenizer), log, progress)
                with tempfile.TemporaryDirectory(dir=log.folder) as scratch:
                    report = _assemble(config, inputs, log, folder, tokenizer, Path(scratch))
            except InputError:  # after any other error, the build can go on later
                log.remove()
                raise
        log.remove()
    if language_note and say:
        say(language_note)
    return {"continued_units": log.recovered, **report} if log.recovered else report


def _with_language(config: CorpusConfig, inputs: list[Input]) -> tuple[CorpusConfig, str]:
    """The options with a language, and what to say of it if it was recognised. Text that is not
    split, or that cannot be read twice, has the default."""
    if config.language != AUTO:
        return config, ""
    paths = [item.path for item in inputs if item.path is not None]
    if config.sentences == "line" or not paths:
        return replace(config, language=languages.DEFAULT), ""
    text = languages.sample(paths, config.text_field, config.encoding)
    language, why = languages.recognise(text)
    note = f"language {language}: {why} (set language to change it)"
    return replace(config, language=language), note


def _identity(config: CorpusConfig, inputs: list[Input], tokenizer: Tokenizer) -> dict[str, Any]:
    """What determines the content of units. Standard input counts as new.

    Other options decide only what becomes of finished units, so a build goes on when they change.
    """
    stdin = [time.time_ns()] if any(item.path is None for item in inputs) else []
    files = [[item.name, item.size, item.modified] for item in inputs]
    return {
        "format": [FORMAT, UNIT_FORMAT, *EncodedUnit.__dataclass_fields__],
        "options": digest({name: getattr(config, name) for name in UNIT_OPTIONS}),
        "vocabulary": tokenizer.fingerprint,
        "libraries": [version(name) for name in ("sentencex", "tokenizers")],
        "inputs": digest([files, stdin]),
    }


# ------------------------------------------------------------------------------------------- checks


def _refuse_one_document(config: CorpusConfig, plan: DocumentPlan, log: BuildLog) -> None:
    documents, counts = plan.starts.size, plan.counts
    if not counts.read:
        raise InputError(f"no text in {', '.join(config.files)}: every file is empty or blank.")
    if documents < 2:
        raise InputError(
            f"the corpus has {counted(documents, 'document')} ({counts.read} "
            f"read; of one sentence: {counts.joined} joined to another, {counts.dropped} dropped; "
            f"too short: {counts.short}), and needs 2. Put a blank line between documents, or give "
            "--single-sentence keep for unrelated texts of one sentence each."
            + "".join(f" Noticed: {note}." for note in layout_notes(log.counts.layout).values())
        )


# ----------------------------------------------------------------------------------------- encoding


def _encode_inputs(
    config: CorpusConfig,
    inputs: list[Input],
    tokenizer: bytes,
    log: BuildLog,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Encode all units that are not yet in the log."""
    total = sum(item.size for item in inputs)
    if log.after.file >= len(inputs):
        return
    if config.workers == -1 and all(item.path for item in inputs) and total < _WORTH_PROCESSES:
        config = replace(config, workers=1)
    units = ((unit, config, tokenizer) for unit in read_units(inputs, config, log.after))
    with in_processes(
        _encode, units, workers=config.workers, cluster=config.cluster, lost=StoreError
    ) as results:
        for unit, encoded, counts in results:
            log.append(encoded, counts, unit.after)
            if progress:
                progress(unit.read, total)


def _encode(unit: Unit, config: CorpusConfig, tokenizer: bytes) -> tuple[Unit, EncodedUnit, Counts]:
    """Executed by a worker. The unit is returned without its text, for where it ended."""
    encoded, counts = encode_unit(unit, config, tokenizer)
    return Unit((), unit.after, unit.read), encoded, counts


# --------------------------------------------------------------------------- assembling and writing


def _assemble(
    config: CorpusConfig,
    inputs: list[Input],
    log: BuildLog,
    folder: Path,
    tokenizer: Tokenizer,
    scratch: Path,
) -> dict[str, Any]:
    """Write the shards and the manifest; returns the report."""
    repeats = find_repeats(log, scratch)
    plan = plan_documents(remove_repeats(log, repeats, config), repeats, config)
    _refuse_one_document(config, plan, log)
    counts = plan.counts
    options = recipe_fields(config)
    if config.encoding:
        options["encoding"] = config.encoding
    if options["lines"] == "auto":  # as corpora were built before there was a choice
        del options["lines"]
    writers = {
        split: _SplitWriter(folder, split, tokenizer, options, config.shard_tokens)
        for split in SPLITS
    }
    for placed in place_documents(remove_repeats(log, repeats, config), plan, config.heldout):
        writer = writers["heldout" if placed.heldout else "train"]
        writer.add(placed.document, placed.sentence_tokens, placed.ids)
    for writer in writers.values():
        writer.flush()
    tokens = sum(writer.documents.total for writer in writers.values())
    text_mb = log.counts.text_bytes / 1e6
    seconds = time.perf_counter() - log.opened_at
    report: dict[str, Any] = {
        "files": len(inputs),
        "text_mb": text_mb,
        **{split: summarise_split(w.sentences, w.documents) for split, w in writers.items()},
        "unknown_rate": sum(writer.unknown for writer in writers.values()) / tokens,
        "special_tokens": sum(writer.special for writer in writers.values()),
        "single_sentence_documents": {"joined": counts.joined, "dropped": counts.dropped},
        "single_sentence_note": single_sentence_note(counts.read, counts.joined),
        "short_documents_dropped": counts.short,
        "empty_sentences_dropped": log.counts.empty_sentences,
        "duplicates": _duplicates(config, repeats, log),
        "broken": log.counts.broken.counts(),
        "scripts": script_shares(log.counts.scripts),
        "histograms": {
            "sentences_by_tokens": writers["train"].sentences.histogram(),
            "documents_by_tokens": writers["train"].documents.histogram(),
            "paragraphs_by_times": repeats.paragraphs.histogram,
        },
        **({"layout": said} if (said := layout_notes(log.counts.layout)) else {}),
        "heldout_note": heldout_note(writers["heldout"].documents.number, config.heldout),
        "seconds": round(seconds, 2),
        "mb_per_second": round(text_mb / seconds, 6),
    }
    Manifest(
        options=options,
        vocabulary=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        shards={split: writers[split].shards for split in SPLITS},
        report=report,
    ).write(folder)
    return report


class _SplitWriter:
    """Collects the documents of one split and writes a shard whenever it is full.

    Attributes:
        shards: written so far.
        sentences, documents: their lengths in tokens.
        unknown: number of ids that are [UNK].
        special: number of ids that are another special token.
    """

    def __init__(
        self,
        folder: Path,
        split: Split,
        tokenizer: Tokenizer,
        options: dict[str, Any],
        shard_tokens: int,
    ):
        self.shards: list[Shard] = []
        self.sentences, self.documents = Lengths(), Lengths()
        self.unknown = self.special = 0
        self._folder, self._split, self._tokenizer = folder, split, tokenizer
        self._options = options_fingerprint(options)
        self._shard_tokens = shard_tokens
        self._tokens = 0  # of all documents so far
        self._shard_range = 0  # index of the token range that the current shard covers
        self._document = -1
        self._clear()

    def _clear(self) -> None:
        self._ids: list[Ids] = []
        self._sentence_tokens: list[NDArray[np.uint32]] = []
        self._document_sentences: list[int] = []
        self._document_tokens: list[int] = []

    def add(self, document: int, sentence_tokens: NDArray[np.uint32], ids: Ids) -> None:
        """Add sentences of a new document, or more sentences of the last one."""
        if document != self._document:
            # A document belongs to the shard that its first token falls into.
            if self._tokens // self._shard_tokens != self._shard_range:
                self.flush()
                self._shard_range = self._tokens // self._shard_tokens
            self._document = document
            self._document_sentences.append(0)
            self._document_tokens.append(0)
        self._document_sentences[-1] += sentence_tokens.size
        self._document_tokens[-1] += ids.size
        self._tokens += ids.size
        # Copies, because a view would keep the whole unit in memory.
        self._sentence_tokens.append(sentence_tokens.copy())
        self._ids.append(ids.copy())

    def flush(self) -> None:
        """Write what was added since the last shard as another one."""
        if not self._ids:
            return
        dtype = id_type(self._tokenizer.vocab_size)
        ids: Ids = np.concatenate(self._ids).astype(dtype, copy=False)
        sentence_tokens = np.concatenate(self._sentence_tokens)
        self.sentences.add(sentence_tokens)
        self.documents.add(np.array(self._document_tokens))
        unknown = int((ids == self._tokenizer.unk_id).sum())
        self.unknown += unknown
        self.special += int(np.isin(ids, self._tokenizer.special_ids).sum()) - unknown
        self.shards.append(
            write_shard(
                self._folder / f"{self._split}-{len(self.shards):05}.arrow",
                ids,
                sentence_tokens,
                np.array(self._document_sentences),
                self._tokenizer.fingerprint,
                self._options,
            )
        )
        self._clear()


def _duplicates(config: CorpusConfig, repeats: RepeatIndex, log: BuildLog) -> dict[str, Any]:
    """Figures on repeats, and excerpts of the most frequent paragraphs."""
    top = repeats.paragraphs.most_frequent
    excerpts: dict[int, str] = {}
    first = 0
    for unit in log:
        stop = first + unit.paragraph_sentences.size
        edges = bounds(unit.excerpt_bytes)
        for paragraph in (paragraph for _, paragraph in top if first <= paragraph < stop):
            start, end = edges[paragraph - first : paragraph - first + 2].tolist()
            excerpts[paragraph] = unit.excerpts[start:end].tobytes().decode()
        first = stop

    def figures(found: Repeats, what: str) -> dict[str, Any]:
        repeated = found.items - sum(found.histogram.values())
        removed = config.duplicates in (what, "both")
        return {"read": found.items, "repeated": repeated, "removed": removed}

    return {
        "documents": figures(repeats.documents, "documents"),
        "paragraphs": figures(repeats.paragraphs, "paragraphs"),
        "most_repeated": [{"times": times, "text": excerpts[number]} for times, number in top],
    }
