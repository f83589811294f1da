"""Trains in a process with a history, for ``test_history.py``.

    python tests/training/history_jobs.py FOLDER OUT PRECISION HISTORY

FOLDER holds a model, a corpus and a task. Weights go to OUT. The history is the names, joined by
commas, of functions here that begin with ``did_``: what the process does before it trains. Which
loops it has used is written to FOLDER.
"""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
from numba.core.dispatcher import Dispatcher

import bothways
from bothways.families.options import SizeOptions
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.model import tiles
from bothways.model.kernels import compiled
from bothways.pretraining.options import PretrainConfig
from bothways.pretraining.pretrain import pretrain
from bothways.training.options import Phase
from finetuning_examples import word_config
from pretrain_runs import short_recipe


class Process:
    """What a process trains, and what it may have done before."""

    def __init__(self, folder: Path, out: Path, precision: str):
        self.folder, self.out = folder, out
        self.precision: Any = precision

    def pretraining(self, run: str) -> PretrainConfig:
        config = short_recipe(self.folder / "corpus")(self.out / run, precision=self.precision)
        return replace(config, clock=replace(config.clock, steps=10))

    def finetuning(self, run: str) -> FinetuneConfig:
        config = word_config(self.folder / "model", self.folder, self.out / run)
        return replace(config, precision=self.precision)

    def train(self) -> None:
        pretrain(self.pretraining("pretrained"))
        finetune(self.finetuning("finetuned"))

    def did_without_cache(self) -> None:
        """Numba keeps nothing: every process compiles."""
        njit = numba.njit
        numba.njit = lambda *args, cache=None, **options: njit(*args, **options)  # noqa: ARG005

    def did_predict(self) -> None:
        """Another model, other lengths, no gradients."""
        model = bothways.load("mini-en")
        model.fill_mask("The [MASK] opened the door, and a cold wind came into the house.")
        model.embed(["One.", "A text that is longer than the one before it was."])

    def did_train_others(self) -> None:
        """Larger and smaller, with other batches and more threads."""
        other = self.pretraining("other")
        shape = SizeOptions(size="tiny", layers=3, hidden=48, heads=3, positions=64)
        phase = Phase(length=40, share=1.0, batch=20, micro_batch=20)
        pretrain(
            replace(other, model=shape, phases=(phase,), clock=replace(other.clock, steps=3)),
        )
        finetune(replace(self.finetuning("more"), batch=7, threads=2, dropout=0.0, length=9))

    def did_train_in_bf16(self) -> None:
        """The same, in another precision."""
        Process(self.folder, self.out / "bf16", "bf16").train()

    def did_train_in_fp32(self) -> None:
        """The same, in another precision."""
        Process(self.folder, self.out / "fp32", "fp32").train()

    def did_compile_backwards(self) -> None:
        """All loops in the forms that an earlier process used, from the last to the first."""
        forms = pickle.loads((self.folder / "forms.pickle").read_bytes())
        for name, signature in reversed(forms):
            getattr(compiled._loops(), name).compile(signature)

    def note_forms(self) -> None:
        """Write down which loops were compiled, and for which types."""
        dispatchers = {
            name: loop
            for name, loop in vars(compiled._loops()).items()
            if isinstance(loop, Dispatcher)
        }
        forms = [(name, form) for name, loop in dispatchers.items() for form in loop.signatures]
        assert forms
        (self.folder / "forms.pickle").write_bytes(pickle.dumps(forms))


def main() -> None:
    folder, out, precision, history = sys.argv[1:]
    process = Process(Path(folder), Path(out), precision)
    tiles.TILE_COST = 100  # toy batches are divided into tiles as large ones are
    for name in filter(None, history.split(",")):
        getattr(process, f"did_{name}")()
    process.train()
    process.note_forms()
    assert ("without_cache" in history) == (
        not any(Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.nbi"))
    )


if __name__ == "__main__":
    main()
