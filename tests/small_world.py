"""A folder with one of everything that the command line makes, for tests of what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bothways import cli
from bothways.io.files import sha256

Words = str | Path


def run(*words: Words) -> int:
    """The exit status of a command line."""
    return cli.main([str(word) for word in words])


def contents(folder: Path) -> dict[str, str]:
    """Checksums of all files."""
    return {str(p.relative_to(folder)): sha256(p) for p in folder.rglob("*") if p.is_file()}


class World:
    """A folder with one of everything: text, vocabulary, corpus, run, task, fine-tuned model."""

    def __init__(self, root: Path):
        self.root = root
        self.text, self.vocabulary = root / "text.txt", root / "vocabulary"
        self.corpus, self.run, self.tuned = root / "corpus", root / "run", root / "tuned"
        self.model, self.task_model = self.run / "model", self.tuned / "seed-0" / "model"
        self.train, self.dev = root / "train.tsv", root / "dev.tsv"
        self.out = root / "vectors.npz"

    def build(self) -> None:
        stories = [f"The dog {n} lives.\nA cat {n} walks.\nIt sleeps at {n}.\n" for n in range(40)]
        self.text.write_text("\n".join(stories))
        rows = [f"the {('dog', 'cat')[n % 2]} {n}\t{('yes', 'no')[n % 2]}" for n in range(12)]
        for path in (self.train, self.dev):
            path.write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
        self.out.write_bytes(b"precious")
        assert run(*self.vocab()) == 0
        assert run(*self.build_corpus()) == 0
        assert run(*self.pretrain()) == 0
        assert run(*self.finetune()) == 0

    def vocab(self, text: Path | None = None) -> list[Words]:
        return ["vocab", "--files", text or self.text, "--size", "100", "--out", self.vocabulary]

    def build_corpus(self, text: Path | None = None) -> list[Words]:
        where: list[Words] = ["--tokenizer", self.vocabulary, "--out", self.corpus]
        return ["corpus", "--files", text or self.text, *where, "--heldout", "0.1"]

    def pretrain(self, corpus: Path | None = None, out: Path | None = None) -> list[Words]:
        where: list[Words] = ["--corpus", corpus or self.corpus, "--run", out or self.run]
        shape = ["--layers", "1", "--hidden", "16", "--heads", "2"]
        phases = "[{length: 16, batch: 4, micro_batch: 4}]"
        clock = ["--steps", "3", "--phases", phases, "--evaluate-every", "3"]
        numerics = ["--precision", "fp32", "--threads", "1", "--checkpoint-minutes", "0"]
        return ["pretrain", *where, *shape, *clock, *numerics]

    def finetune(self, *, dev: Path | None = None, out: Path | None = None) -> list[Words]:
        where: list[Words] = ["--model", self.model, "--run", out or self.tuned]
        files: list[Words] = ["--train", self.train, "--dev", dev or self.dev]
        options = ["--epochs", "1", "--batch-size", "8", "--precision", "fp32", "--threads", "1"]
        return ["finetune", *where, *files, *options]


Refused = Callable[..., str]


def refusal_check(world: World, capsys: pytest.CaptureFixture[str]) -> Refused:
    """A function that runs a command line which must be refused without touching the world."""

    def check(words: list[Words], *fragments: str, status: int = 1) -> str:
        before = contents(world.root)
        capsys.readouterr()
        found = run(*words)
        assert found == status, f"{words} gave {found}"
        error = capsys.readouterr().err
        assert error.startswith("bothways: error: ")
        assert error.count("error:") == 1
        assert "Traceback" not in error
        for fragment in fragments:
            assert fragment in error, f"{fragment!r} is not in {error}"
        assert contents(world.root) == before
        return error

    return check
