"""The commands that `kill_test.py` kills.

`pretrain` in one process and on two ranks, `finetune`, `vocab` and `corpus`, on the docstrings of
Python's standard library.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.families.config import ModelConfig
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.tokenization.build import build_vocabulary
from bothways.tokenization.options import VocabularyConfig
from bothways.tokenization.tokenizer import Tokenizer
from kill_moments import Moments
from killed_sessions import GROUP, PROCESS, RANK

OUT = "out"
"""Every run writes a folder of this name, in a folder of its own."""

_RECIPE = """\
model: {size: tiny, layers: 2, hidden: 64, heads: 2, positions: 48}
clock: {steps: %d}
phases:
  - {length: 32, share: 0.8, batch: 16, micro_batch: 8}
  - {length: 48, share: 0.2, batch: 8, micro_batch: 4}
optimizer: {lr: 1e-3, warmup: 0.1}
checkpoint: {minutes: 0.005, keep: 2}
evaluate: {every: 100, sequences: 64}
log_every: 1
snapshots: [%d, %d]
"""
_PIECES = 1000
_COPIES = 40  # of the text, for what is fast


@dataclass(frozen=True)
class Options:
    """What all cases share."""

    folder: Path
    steps: int
    threads: int
    precision: str


@dataclass(frozen=True)
class Case:
    """A command to kill."""

    words: list[str]
    moments: Moments
    ways: tuple[str, ...] = (PROCESS, GROUP)


def _bothways(*words: object) -> list[str]:
    return [sys.executable, "-m", "bothways", *map(str, words)]


def _pretrain(options: Options) -> Case:
    return Case(
        _bothways(*_pretraining(options), "--threads", options.threads),
        Moments(trains=True, last=f"checkpoints/step-{options.steps}"),
    )


def _ranks(options: Options) -> Case:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc-per-node", "2", "-m", "--", "bothways"]
    return Case(
        [*launch, *_pretraining(options), "--threads", "1"],
        Moments(trains=True, last=f"checkpoints/step-{options.steps}"),
        (PROCESS, GROUP, RANK),
    )


def _pretraining(options: Options) -> list[str]:
    recipe = options.folder / "recipe.yaml"
    snapshots = options.steps // 3, options.steps // 2
    recipe.write_text(_RECIPE % (options.steps, *snapshots), encoding="utf-8")
    corpus = _corpus_of(options.folder)
    words = ["pretrain", recipe, "--corpus", corpus, "--run", OUT]
    return [*map(str, words), "--precision", options.precision]


def _finetune(options: Options) -> Case:
    """Is "the" among the words of a line? About as many steps as pre-training, over two seeds."""
    lines = _text(options.folder).read_text(encoding="utf-8").splitlines()
    lines = [line[:200] for line in lines if line and "\t" not in line and '"' not in line]
    words = _bothways("finetune", "--model", _model(options.folder), "--run", OUT)
    parts = {"train": lines[:512], "dev": lines[512:640], "test": lines[640:768]}
    for part, texts in parts.items():
        path = options.folder / f"{part}.tsv"
        rows = (f"{text}\t{'yes' if ' the ' in text else 'no'}" for text in texts)
        path.write_text("\n".join(["sentence\tlabel", *rows]) + "\n", encoding="utf-8")
        words += [f"--task.{part}", str(path)]
    epochs = max(1, options.steps // 2 // (len(parts["train"]) // 16))
    words += ["--seeds", "0", "1", "--epochs", str(epochs), "--batch", "16", "--length", "32"]
    words += ["--checkpoint.minutes", "0.002", "--precision", options.precision]
    return Case(
        [*words, "--threads", str(options.threads)], Moments(trains=True, last="seed-1/model")
    )


def _vocab(options: Options) -> Case:
    words = _bothways("vocab", "--files", _long_text(options.folder), "--out", OUT)
    return Case([*words, "--size", "4000", "--workers", "2"], Moments(trains=False))


def _corpus(options: Options) -> Case:
    words = _bothways("corpus", "--files", _long_text(options.folder), "--out", OUT)
    words += ["--tokenizer", str(_vocabulary(options.folder)), "--workers", "2"]
    return Case([*words, "--shard_tokens", "1000000"], Moments(trains=False))


CASES: Mapping[str, Callable[[Options], Case]] = {
    "pretrain": _pretrain,
    "ranks": _ranks,
    "finetune": _finetune,
    "vocab": _vocab,
    "corpus": _corpus,
}
"""The cases by name; making one prepares what it reads."""


# --------------------------------------------------------------------------------- what they read


def _text(folder: Path) -> Path:
    """The docstrings of 60 modules of the standard library, one document per module."""
    path = folder / "text.txt"
    if not path.exists():
        path.write_text("\n\n".join(_docstrings(60)) + "\n", encoding="utf-8")
    return path


def _long_text(folder: Path) -> Path:
    """The docstrings of the whole standard library, several times."""
    path = folder / "long.txt"
    if not path.exists():
        texts = _docstrings(sys.maxsize)
        # A word of its own in each document, so that no copy is the same as another.
        copies = [f"copy{copy}\n{text}" for copy in range(_COPIES) for text in texts]
        path.write_text("\n\n".join(copies) + "\n", encoding="utf-8")
    return path


def _docstrings(modules: int) -> list[str]:
    library = Path(sysconfig.get_path("stdlib"))
    texts: list[str] = []
    for file in sorted(library.glob("*.py")) + sorted(library.glob("*/*.py")):
        if "test" in str(file.relative_to(library)) or len(texts) == modules:
            continue
        docstrings = [
            " ".join(text.split())
            for node in ast.walk(ast.parse(file.read_bytes()))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and (text := ast.get_docstring(node))
        ]
        if len(docstrings) > 2:
            texts.append("\n".join(docstrings))
    return texts


def _vocabulary(folder: Path) -> Path:
    path = folder / "vocabulary"
    if not path.exists():
        text = str(_text(folder))
        build_vocabulary(VocabularyConfig(files=(text,), out=str(path), size=_PIECES))
    return path


def _corpus_of(folder: Path) -> Path:
    path = folder / "corpus"
    if not path.exists():
        text, vocabulary = str(_text(folder)), str(_vocabulary(folder))
        build_corpus(CorpusConfig(files=(text,), tokenizer=vocabulary, out=str(path), heldout=0.1))
    return path


def _model(folder: Path) -> Path:
    """A model with random weights: what it knows does not matter here."""
    path = folder / "model"
    if not path.exists():
        shape = {"layers": 2, "hidden": 64, "heads": 2, "intermediate": 256, "positions": 48}
        dropout = {"dropout": 0.1, "attention_dropout": 0.1, "left_to_right": False}
        config = ModelConfig(vocab_size=_PIECES, **shape, **dropout)
        model = EncoderModel(config, masked_lm=True, next_sentence=True, seed=1)
        save_model(path, model, Tokenizer.from_folder(_vocabulary(folder)))
    return path
