"""The commands that ``kill_test.py`` kills, and what they read."""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

from bothways.config import CorpusConfig, ModelConfig, VocabularyConfig
from bothways.corpus.build import build_corpus
from bothways.model.bert import Bert
from bothways.model.folder import save_model
from bothways.tokenization import Tokenizer
from bothways.tokenization.build import build_vocabulary
from bothways.training.monitor import METRICS

OUT = "out"
"""What a command writes, in the folder that it runs in."""
RECIPE = """\
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
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--")
LONGER = 60
"""Characters above which the task to fine-tune on calls a sentence long."""
VERBS = ("pretrain", "ranks", "finetune", "vocab", "corpus")


@dataclass(frozen=True)
class Verb:
    """A command that is the same in every run.

    Attributes:
        name: of :data:`VERBS`.
        command: the words, to be run in a folder of its own.
        steps: number of the last checkpoint, if it keeps them.
        ranks: number of processes that torchrun starts; 0 without torchrun.
        records: names of files that grow with every step; empty if there are no steps.
    """

    name: str
    command: tuple[str, ...]
    steps: int = 0
    ranks: int = 0
    records: str = ""


def make_verbs(folder: Path, steps: int, precision: str, threads: int) -> dict[str, Verb]:
    """The verbs, after :func:`prepare` in the same folder."""
    python = (sys.executable, "-m")
    recipe, vocabulary, text = folder / "recipe.yaml", folder / "vocabulary", folder / "long.txt"
    computed = ("--precision", precision, "--threads", str(threads), "--device", "cpu")
    pretrain = ("pretrain", recipe, "--corpus", folder / "corpus", "--run", OUT, *computed)
    data = [f"--task.{part}={folder / part}.tsv" for part in ("train", "dev", "test")]
    finetune = ("finetune", *data, "--model", folder / "model", "--run", OUT, "--length", "32")
    finetune += ("--epochs", max(1, steps // 50), "--batch", "16", "--seeds", "0", "1", *computed)
    vocab = ("vocab", "--files", text, "--size", "8000", "--out", OUT)
    corpus = ("corpus", "--files", text, "--tokenizer", vocabulary, "--out", OUT, "--workers", "2")
    words = {
        "pretrain": (*python, "bothways", *pretrain),
        "ranks": (*python, *TORCHRUN, "bothways", *pretrain),
        "finetune": (*python, "bothways", *finetune, "--checkpoint_minutes", "0.003"),
        "vocab": (*python, "bothways", *vocab),
        "corpus": (*python, "bothways", *corpus, "--shard_tokens", "150000"),
    }
    commands = {name: tuple(map(str, command)) for name, command in words.items()}
    return {
        "pretrain": Verb("pretrain", commands["pretrain"], steps, records=METRICS),
        "ranks": Verb("ranks", commands["ranks"], steps, 2, METRICS),
        "finetune": Verb("finetune", commands["finetune"], records=f"seed-*/{METRICS}"),
        "vocab": Verb("vocab", commands["vocab"]),
        "corpus": Verb("corpus", commands["corpus"]),
    }


def prepare(folder: Path, steps: int) -> None:
    """Make the texts, vocabulary, corpus, recipe, labelled files and model that the verbs read."""
    text, vocabulary = folder / "text.txt", str(folder / "vocabulary")
    documents = docstrings()
    text.write_text("\n\n".join(documents[:60]) + "\n", encoding="utf-8")
    # Long enough to be killed on the way; repeated text is counted and encoded like any other.
    (folder / "long.txt").write_text("\n\n".join(documents * 4) + "\n", encoding="utf-8")
    build_vocabulary(VocabularyConfig(files=(str(text),), out=vocabulary, size=1000))
    corpus = str(folder / "corpus")
    build_corpus(CorpusConfig(files=(str(text),), tokenizer=vocabulary, out=corpus, heldout=0.1))
    (folder / "recipe.yaml").write_text(RECIPE % (steps, steps // 3, steps // 2), encoding="utf-8")
    _write_task(folder, documents)
    tokenizer = Tokenizer.load(vocabulary)
    torch.manual_seed(0)
    shape = ModelConfig(vocab_size=len(tokenizer), layers=2, hidden=64, heads=2, positions=48)
    save_model(folder / "model", Bert(shape), tokenizer)


def docstrings() -> list[str]:
    """The docstrings of standard library modules, a document per module, a line for each."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = []
    for file in sorted(library.glob("*.py")) + sorted(library.glob("*/*.py")):
        if "test" in str(file.relative_to(library)):
            continue
        found = [
            " ".join(text.split())
            for node in ast.walk(ast.parse(file.read_bytes()))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and (text := ast.get_docstring(node))
        ]
        if len(found) > 2:
            texts.append("\n".join(found))
    return texts


def _write_task(folder: Path, documents: list[str]) -> None:
    """Is a sentence long or short? The test file is the dev file."""
    sentences = [s for text in documents for line in text.split("\n") for s in line.split(". ")]
    plain = [s for s in sentences if re.fullmatch(r"[\w ,()'-]{20,120}", s)]
    rows = [f"{'long' if len(s) > LONGER else 'short'}\t{s}" for s in plain[:460]]
    for name, part in (("train", rows[:400]), ("dev", rows[400:]), ("test", rows[400:])):
        lines = "\n".join(["label\tsentence", *part]) + "\n"
        (folder / f"{name}.tsv").write_text(lines, encoding="utf-8")
