"""Small stores, batches and disks for the tests of training and pre-training."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bothways.corpus.store import TokenStore
from bothways.families.config import ModelConfig
from bothways.model.batch import PretrainingBatch
from bothways.model.model import EncoderModel
from bothways.objectives.masked import MaskedLM
from bothways.objectives.objective import PretrainingObjective
from bothways.pretraining.batches import PhaseBatches
from bothways.pretraining.options import MaskOptions, PairOptions
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.options import PairKind, Phase
from bothways.training.ranks import SINGLE_PROCESS, Ranks
from bothways.training.trainer import Loss, step_loss
from model_examples import BOTH_HEADS

Documents = Sequence[Sequence[int]]  # tokens of each sentence of each document

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Special ids in the middle, so that a test sees who takes them for the first ones.
TOKENIZER = Tokenizer.from_pieces([f"w{i}" for i in range(30)] + SPECIALS + ["x", "y", "z"])
ORDINARY = np.setdiff1d(np.arange(TOKENIZER.vocab_size), TOKENIZER.special_ids)


def memory_store(documents: Documents, *, seed: int = 0) -> TokenStore:
    """A store in memory with random ordinary ids."""
    lengths = np.array([n for document in documents for n in document], dtype=np.int64)
    ids = np.random.default_rng(seed).choice(ORDINARY, int(lengths.sum())).astype(np.uint16)
    sentences = np.array([len(document) for document in documents], dtype=np.int64)
    return TokenStore.from_arrays(ids, lengths, sentences, TOKENIZER)


def random_documents(rng: np.random.Generator, count: int, longest: int = 12) -> Documents:
    """Documents of 1 to 8 sentences of 1 to ``longest`` tokens."""
    return [rng.integers(1, longest + 1, rng.integers(1, 9)).tolist() for _ in range(count)]


def pair_batches(
    store: TokenStore,
    *,
    length: int = 24,
    batch: int = 6,
    micro_batch: int = 3,
    seed: int = 1,
    number: int = 0,
    epoch_sizes: list[int] | None = None,
    pairs: PairOptions | None = None,
    masking: MaskOptions | None = None,
    objective: PretrainingObjective | None = None,
) -> PhaseBatches:
    """The batches of one phase, with the paper's options if no others are given."""
    return PhaseBatches(
        store,
        Phase(length=length, batch=batch, micro_batch=micro_batch),
        pairs=pairs or PairOptions(),
        masking=masking or MaskOptions(),
        objective=objective,
        seed=seed,
        number=number,
        epoch_sizes=epoch_sizes,
    )


def whole_tokens(batch: PretrainingBatch) -> NDArray[np.int64]:
    """The real tokens of a batch before masking."""
    tokens = batch.inputs.tokens.numpy().copy()
    count = batch.masked.count
    tokens[batch.masked.positions.numpy()[:count]] = batch.masked.ids.numpy()[:count]
    return tokens[: batch.inputs.bounds[-1]]


def small_shape(*, dropout: float = 0.0, vocab_size: int = 38) -> ModelConfig:
    """One layer of 16."""
    return ModelConfig(
        vocab_size=vocab_size,
        layers=1,
        hidden=16,
        heads=2,
        intermediate=32,
        positions=64,
        dropout=dropout,
        attention_dropout=dropout,
    )


def small_model(*, dropout: float = 0.0, seed: int = 3) -> EncoderModel:
    """One layer of 16 with both pre-training heads."""
    return EncoderModel(small_shape(dropout=dropout), **BOTH_HEADS, seed=seed)


@contextlib.contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[Path]:
    """A file system of this size; skips the test where one may not be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        problem = done.stderr.strip() if done.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        pytest.skip(f"no small disk could be mounted: {problem}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def bert_loss(
    micro_batches: Sequence[PretrainingBatch],
    pairs: PairKind = "next",
    ranks: Ranks = SINGLE_PROCESS,
) -> Loss[PretrainingBatch]:
    """The loss of BERT's pre-training on sequences of a kind."""
    return step_loss(micro_batches, MaskedLM(pairs), ranks)
