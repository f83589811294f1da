"""Growing a vocabulary: new pieces, and a model with rows for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bothways.errors import ConfigError, InputError, Place
from bothways.io.broken import corpus_line, of_corpus
from bothways.io.files import new_folder, real_path
from bothways.io.hub import model_folder
from bothways.io.records import INPUT_SUFFIXES, ParagraphReader
from bothways.io.terminal import print_note
from bothways.io.text import list_files, read_lines
from bothways.model.engine import network_of
from bothways.model.folder import model_like, save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.tokenization.build import count_file_words, measure, refuse_foreign_folder
from bothways.tokenization.extension import (
    MIN_PIECES,
    ExtendedVocabulary,
    choose_words,
    extend_vocabulary,
    single_word,
)
from bothways.tokenization.options import ExtendConfig
from bothways.tokenization.tokenizer import Tokenizer

# --------------------------------------------------------------------------------
# Extending a model to a larger vocabulary.


@torch.no_grad()
def grow_vocabulary(model: EncoderModel, parts: Sequence[Sequence[int]]) -> EncoderModel:
    """A copy of a model with more rows in its token embedding and masked-LM bias.

    All other weights are unchanged, and so are the hidden states of texts made of old pieces; the
    masked LM has more pieces to choose from.

    Args:
        model: with a vocabulary of V pieces.
        parts: for each new piece, the old ones; its row becomes their mean. Never empty.
    """
    config = replace(model.config, vocab_size=model.config.vocab_size + len(parts))
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    grown = model.table(config)
    for name, entry in model.table().items():
        if entry.pieces is not None:
            rows = _with_means(state[name][: entry.pieces], parts)
            padding = rows.new_zeros(grown[name].shape[0] - len(rows), *rows.shape[1:])
            state[name] = torch.cat([rows, padding])
    return model_like(model, state, config)


def _with_means(rows: Tensor, parts: Sequence[Sequence[int]]) -> Tensor:
    means = [rows[torch.tensor(part)].float().mean(0).to(rows.dtype) for part in parts]
    return torch.cat([rows, torch.stack(means)]) if means else rows


# --------------------------------------------------------------------------------
# Extending a vocabulary, and the model that uses it, with domain words for further pre-training.
#
# Torch is imported only if the source is a model.

_SHOWN = 10


def extend(config: ExtendConfig) -> dict[str, Any]:
    """Write the vocabulary or model ``config.source``, extended with words, to ``config.out``.

    Words chosen from files come first, most frequent first, then those of the list.

    Returns:
        ``vocabulary`` (pieces before and after, words added) and, with ``config.files``, how the
        old and the new vocabulary segment their words (``before``, ``after``).

    Raises:
        InputError: nothing to add, or an entry of the list is not exactly one word.
        ModelError: the vocabulary is not WordPiece, or the model is damaged.
        ConfigError: ``config.out`` is the source or holds something that would be lost.
        DiskError: the folder cannot be written; its previous content is intact.
    """
    source, out = model_folder(config.source), Path(config.out)
    if real_path(out) == real_path(source):
        raise ConfigError(f"{out}: out is the source itself; choose another folder.")
    is_model = (source / "config.json").is_file()
    if is_model and out.exists():
        raise ConfigError(f"{out} exists; choose another folder for the model.")
    if not is_model:
        refuse_foreign_folder(out)
    tokenizer = Tokenizer.from_folder(source)
    counts: dict[str, int] = {}
    words: list[str] = []
    reader = ParagraphReader()
    if config.files:
        files = list_files(config.files, INPUT_SUFFIXES)
        limit = corpus_line(config.max_line_mib)
        keep = config.lines == "keep"
        reader = ParagraphReader(
            config.text_field, of_corpus(config.broken), limit, keep, config.encoding
        )
        counts = count_file_words(files, tokenizer, config.workers, reader)
        words = choose_words(tokenizer, counts, most=config.most, min_count=config.min_count)
    if config.words is not None:
        words += _listed_words(Path(config.words), tokenizer)
    extended = extend_vocabulary(tokenizer, words)
    if not extended.words:
        raise InputError(
            "no word to add: those listed are pieces already, and the files have none that is "
            f"frequent enough (--min-count {config.min_count}) and has {MIN_PIECES} pieces or more."
        )
    if is_model:
        _extend_model(source, out, extended)
    else:
        with new_folder(out) as folder:
            extended.tokenizer.save(folder)
    report = _report(tokenizer, extended, counts, config)
    return {**report, "broken_lines": reader.broken.lines} if reader.broken.lines else report


def _listed_words(path: Path, tokenizer: Tokenizer) -> list[str]:
    words = []
    for number, line in read_lines(path):
        if line.strip():
            try:
                words.append(single_word(tokenizer, line.strip()))
            except InputError as error:
                raise InputError(error.problem, place=Place(path, number)) from error
    return words


def _extend_model(source: Path, out: Path, extended: ExtendedVocabulary) -> None:
    loaded = load_model(source)
    loaded.refuse_part_of_head()
    for note in loaded.differences():
        print_note(note)
    model = grow_vocabulary(network_of(loaded), extended.parts)
    about = {**loaded.about, "vocabulary_extended_by": len(extended.words)}
    save_model(out, model, extended.tokenizer, about)


def _report(
    tokenizer: Tokenizer, extended: ExtendedVocabulary, counts: dict[str, int], config: ExtendConfig
) -> dict[str, Any]:
    report: dict[str, Any] = {
        "vocabulary": {
            "folder": config.out,
            "pieces_before": tokenizer.vocab_size,
            "pieces": extended.tokenizer.vocab_size,
            "first_words_added": extended.words[:_SHOWN],
        }
    }
    if counts:
        report["before"] = measure(tokenizer, counts)
        report["after"] = measure(extended.tokenizer, counts)
    return report
