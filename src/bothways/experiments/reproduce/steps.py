"""The steps that tables are made of, how each is computed, and its record.

A step is one call of a verb's function in a folder of its own below ``runs/``, and resumes as that
verb does. Its name holds a digest of the recipe and of what it reads, so equal steps of several
tables share a folder. ``steps/NAME.json`` records the result; a recorded step is never computed
again.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bothways.config.fields import digest, free, recipe_fields
from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import MANIFEST, TokenStore
from bothways.errors import DivergenceError
from bothways.experiments.documentation import TextOptions, make_text
from bothways.finetuning.features import tag_by_features
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig, LayerChoice
from bothways.io.files import write_json
from bothways.model.device import borrowed_process, choose_device, set_threads
from bothways.model.engine import load_network
from bothways.pretraining.evaluation import measure_store
from bothways.pretraining.options import OBJECTIVE, PairOptions, PretrainConfig
from bothways.pretraining.pretrain import MODEL, pretrain
from bothways.pretraining.snapshots import SNAPSHOTS, snapshot_folder
from bothways.tokenization.build import build_vocabulary
from bothways.tokenization.options import VocabularyConfig
from bothways.training.checkpoint import CHECKPOINTS, checkpoints
from bothways.training.runfolder import versions

RUNS, STEPS = "runs", "steps"
Kind = Literal["text", "vocabulary", "corpus", "pretrain", "heldout", "finetune", "features"]
Result = dict[str, Any]
# Options that hold paths although they are recipe fields of their configs.
_PATHS = ("files", "tokenizer", "out", "file")
_READ = {"corpus": MANIFEST, "pretrain": MODEL}
"""What other steps read in the folder of a step, if not all of it."""


@dataclass(frozen=True)
class Part:
    """One training of a step: a seed of fine-tuning, or layers of features with a seed."""

    seed: int
    layers: LayerChoice | None = None

    @property
    def name(self) -> str:
        """Its key in the step's result."""
        return f"{self.layers}:{self.seed}" if self.layers else f"{self.seed}"


@dataclass(frozen=True)
class Step:
    """One thing to compute.

    Attributes:
        kind: which function computes it.
        label: describes it in its name.
        config: the function's options, without the folder to write to.
        inputs: digests of what it reads: files, or the keys of other steps.
        needs: names of the steps that must be computed before it.
        parts: its trainings; tables may add some to a step.
        snapshot: the step of the pre-training run whose snapshot it reads; None for the finished
            model.
    """

    kind: Kind
    label: str
    config: Any
    inputs: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    snapshot: int | None = None

    @cached_property
    def key(self) -> str:
        """Digest of the recipe and of what is read; not of paths, threads or parts."""
        return digest([self.kind, self.settings(), *self.inputs])[:10]

    @cached_property
    def name(self) -> str:
        """The step's name, and that of its folder below ``runs/``."""
        return "-".join(filter(None, (self.kind, self.label, self.key)))

    def settings(self) -> dict[str, Any]:
        """The options that decide the result, by dotted name; without paths."""
        return {k: v for k, v in recipe_fields(self.config).items() if k not in _PATHS}

    def reads(self, needed: Step) -> str:
        """The file or folder, in the folder of a step that it needs, that this step reads."""
        if needed.kind == "pretrain" and self.snapshot is not None:
            return f"{SNAPSHOTS}/{self.snapshot}"
        return _READ.get(needed.kind, "")


@dataclass(frozen=True)
class Ledger:
    """The records of the steps computed in a folder."""

    out: Path

    def record(self, step: Step) -> dict[str, Any]:
        """The record of a step; empty if there is none."""
        try:
            record: dict[str, Any] = json.loads(self._path(step).read_text(encoding="utf-8"))
            return record if record["key"] == step.key else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def result(self, step: Step) -> Result:
        """The result of a step; empty if it has none. A step whose training diverged, as it would
        again, has ``diverged_at``."""
        return dict(self.record(step).get("result", {}))

    def done(self, step: Step) -> bool:
        """Whether the step, with all of its parts, needs no computing."""
        result = self.result(step)
        parts = {**result.get("runs", {}), **result.get("diverged", {})}
        return bool(result) and (
            "diverged_at" in result or {p.name for p in step.parts} <= {*parts}
        )

    def blocked(self, step: Step, steps: Mapping[str, Step]) -> str:
        """The step that this one needs, directly or not, and that diverged; empty if none did."""
        for needed in (steps[name] for name in step.needs):
            if "diverged_at" in self.result(needed):
                return needed.name
            if found := self.blocked(needed, steps):
                return found
        return ""

    def to_compute(self, steps: Mapping[str, Step]) -> set[str]:
        """Names of the steps that are not done, and of the done ones whose files these need and
        that are gone: records are small, and may be kept without models and corpora."""
        pending: set[str] = set()

        def add(step: Step) -> None:
            pending.add(step.name)
            for needed in (steps[name] for name in step.needs):
                there = (self.out / RUNS / needed.name / step.reads(needed)).exists()
                if needed.name not in pending and not (self.done(needed) and there):
                    add(needed)

        for step in steps.values():
            if not self.done(step) and not self.blocked(step, steps):
                add(step)
        return pending

    def compute(self, step: Step) -> None:
        """Compute a step, or continue it, and record the result."""
        started = time.monotonic()
        try:
            result = _COMPUTE[step.kind](step, self.out / RUNS / step.name)
        except DivergenceError as error:
            result = {"diverged_at": str(error)}
        before = self.result(step)
        for runs in {"runs", "diverged"} & {*result}:
            result[runs] = {**before.get(runs, {}), **result[runs]}
        record = {
            **{name: getattr(step, name) for name in ("name", "kind", "key", "inputs", "needs")},
            "settings": step.settings(),
            "result": result,
            "seconds": round(time.monotonic() - started, 2),
            "machine": versions(),
        }
        write_json(self._path(step), record)

    def _path(self, step: Step) -> Path:
        return self.out / STEPS / f"{step.name}.json"


# --------------------------------------------------------------------------------
# Text to encoders.


def _text(step: Step, folder: Path) -> Result:
    config: TextOptions = step.config
    return dict(make_text(config, folder))


def _vocabulary(step: Step, folder: Path) -> Result:
    config: VocabularyConfig = step.config
    return {"learned_from": build_vocabulary(replace(config, out=str(folder)))["learned_from"]}


def _corpus(step: Step, folder: Path) -> Result:
    config: CorpusConfig = step.config
    report = build_corpus(replace(config, out=str(folder)))
    return {part: report[part] for part in ("train", "heldout")}


def _pretrain(step: Step, folder: Path) -> Result:
    """Continues a run, unless snapshots of it are gone: later checkpoints cannot give them."""
    config: PretrainConfig = step.config
    saved = [int(path.name.removeprefix("step-")) for path in checkpoints(folder / CHECKPOINTS)]
    passed = [at for at in config.snapshots if at < max(saved, default=0)]
    whole = saved and all(snapshot_folder(folder, at).exists() for at in passed)
    if folder.exists() and not whole:
        shutil.rmtree(folder)
    result = pretrain(replace(config, run=str(folder)))
    return {"steps": result.steps, "heldout": result.heldout and result.heldout.record()}


# --------------------------------------------------------------------------------
# Measurements of an encoder.


@dataclass(frozen=True)
class HeldOutOptions:
    """What is measured on held-out text: the same sequences and masks for every row of a table.

    Attributes:
        model: a pre-trained model.
        corpus: a corpus folder; its held-out part is read.
        sequences: at most this many.
        length: of a sequence, in tokens.
        pairs: what a sequence is made of.
        objective: what is predicted.
    """

    model: str = free("")
    corpus: str = free("")
    sequences: int = 4096
    length: int = 128
    pairs: PairOptions = field(default_factory=PairOptions)
    objective: tuple[str, ...] = OBJECTIVE
    device: Literal["auto", "cpu", "cuda"] = free("auto")
    threads: int = free(0)


@borrowed_process()
def measure_heldout(options: HeldOutOptions) -> dict[str, float]:
    """Scores of a model on the held-out part of a corpus, computed in fp32.

    Returns:
        ``loss`` (nats per predicted piece), ``perplexity``, ``accuracy``, ``baseline`` (that of
        always predicting the most frequent piece), ``targets``, ``sequences``,
        ``bits_per_character``, and for pairs ``pair_accuracy`` and ``pair_baseline``. Bits per
        character are the mean loss of a piece times the text's pieces per character.

    Raises:
        StoreError, ModelError: the folders cannot be read, or do not fit the options.
    """
    set_threads(options.threads)
    store = TokenStore.open(options.corpus, "heldout")
    model = load_network(options.model).to(choose_device(options.device).torch)
    recipe = PretrainConfig(pairs=options.pairs, objective=options.objective)
    found = measure_store(model, store, recipe, length=options.length, sequences=options.sequences)
    words, pairs = found.words, found.second
    return {
        "loss": words.loss,
        "perplexity": found.perplexity,
        "accuracy": words.accuracy,
        "baseline": words.baseline,
        "targets": words.targets,
        "sequences": found.sequences,
        "bits_per_character": words.loss / math.log(2) * pieces_per_character(store),
        **({"pair_accuracy": pairs.accuracy, "pair_baseline": pairs.baseline} if pairs else {}),
    }


def pieces_per_character(store: TokenStore) -> float:
    """Of the text as the vocabulary sees it: cleaned, with a space before each word and mark."""
    tokens, tokenizer = store.tokens_between(0, store.tokens), store.tokenizer
    counts = np.bincount(tokens, minlength=tokenizer.vocab_size)
    lengths = [len(tokenizer.text_of(i)) for i in range(tokenizer.vocab_size)]
    characters = int(counts @ (np.array(lengths) + tokenizer.starts_word))
    return len(tokens) / max(characters, 1)


def _heldout(step: Step, _: Path) -> Result:
    return {"scores": measure_heldout(step.config)}


def _finetune(step: Step, folder: Path) -> Result:
    """Every seed; those that diverge are recorded. A model is removed once it is measured."""
    config: FinetuneConfig = step.config
    found: Result = {"runs": {}, "diverged": {}}
    for part in step.parts:
        try:
            result = finetune(replace(config, run=str(folder), seeds=(part.seed,)))
        except DivergenceError as error:
            found["diverged"][part.name] = str(error)
            continue
        found["runs"][part.name] = result.seeds[0].record()
        found |= {"baseline": result.baseline, "dev_examples": result.dev_examples}
        shutil.rmtree(result.seeds[0].model, ignore_errors=True)
    return found


def _features(step: Step, folder: Path) -> Result:
    """Every choice of layers with its seeds, as :func:`_finetune`."""
    config: FeaturesConfig = step.config
    found: Result = {"runs": {}, "diverged": {}}
    for part in step.parts:
        choice = part.layers or config.layers[0]
        one = replace(config, run=str(folder), layers=(choice,), seeds=(part.seed,))
        try:
            result = tag_by_features(one)
        except DivergenceError as error:
            found["diverged"][part.name] = str(error)
            continue
        tests = {"test": result.test[choice][0]} if result.test else {}
        found["runs"][part.name] = {"dev": result.dev[choice][0], **tests}
    shutil.rmtree(folder / "features", ignore_errors=True)
    return found


_COMPUTE = {
    "text": _text,
    "vocabulary": _vocabulary,
    "corpus": _corpus,
    "pretrain": _pretrain,
    "heldout": _heldout,
    "finetune": _finetune,
    "features": _features,
}
