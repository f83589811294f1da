"""The steps that tables are made of, and how each is computed.

A step is one call of a verb's function, with its own folder below ``runs/``. The folder's name
holds a digest of the step's recipe and of what it reads, so equal steps of several tables share a
folder.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bothways.config.fields import digest, free, recipe_fields
from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import MANIFEST, TokenStore
from bothways.errors import DivergenceError
from bothways.experiments.documentation import TextOptions, make_text
from bothways.families import config_of
from bothways.finetuning.features import chosen_layers, tag_by_features
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import LAYER_CHOICES, FeaturesConfig, FinetuneConfig, LayerChoice
from bothways.finetuning.seed import SCORES
from bothways.io.files import new_folder
from bothways.io.hub import model_folder
from bothways.model.device import borrowed_process, choose_device, set_threads
from bothways.model.engine import load_network
from bothways.pretraining.evaluation import measure_store
from bothways.pretraining.options import MaskOptions, PairOptions, PretrainConfig
from bothways.pretraining.pretrain import CHECKPOINTS, MODEL, pretrain
from bothways.pretraining.snapshots import SNAPSHOTS, snapshot_folder
from bothways.runtime.folder import CONFIG, read_json
from bothways.tasks.options import SplitConfig
from bothways.tasks.split import split
from bothways.tokenization.build import build_vocabulary
from bothways.tokenization.options import VocabularyConfig
from bothways.training.checkpoint import checkpoints

Kind = Literal[
    "text", "vocabulary", "corpus", "split", "pretrain", "heldout", "finetune", "features"
]
Result = dict[str, Any]
# Options that hold paths but count as recipe in their configs; they do not identify a step.
_PATHS = ("files", "tokenizer", "out", "file")
# Names in a step's folder that other steps read, besides snapshots.
_WHOLE = ("",)
_OUTPUTS: dict[str, tuple[str, ...]] = {
    "text": _WHOLE, "vocabulary": _WHOLE, "split": _WHOLE, "corpus": (MANIFEST,),
    "pretrain": (MODEL,),
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One thing to compute.

    Attributes:
        kind: which function computes it.
        label: describes it in its name.
        config: the function's options, without the folder to write to.
        inputs: digests of what it reads: files, or the keys of other steps.
        needs: names of the steps that must be computed before it.
        wanted: the parts to compute, for steps that can add parts later: seeds, or layers with
            seeds.
        snapshot: the step of the pre-training run whose snapshot it reads; None for the finished
            model.
    """

    kind: Kind
    label: str
    config: Any
    inputs: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    snapshot: int | None = None

    @cached_property
    def key(self) -> str:
        """Digest of the recipe and of what is read; not of paths, threads or wanted parts."""
        return digest([self.kind, self.settings(), *self.inputs])[:10]

    @cached_property
    def name(self) -> str:
        """The step's name, and that of its folder below ``runs/``."""
        return "-".join(filter(None, (self.kind, self.label, self.key)))

    def settings(self) -> dict[str, Any]:
        """The options that decide the result, by dotted name; without paths."""
        return {k: v for k, v in recipe_fields(self.config).items() if k not in _PATHS}

    def outputs(self) -> tuple[str, ...]:
        """Names in its folder that other steps read, besides snapshots; empty if no step needs this
        kind."""
        return _OUTPUTS.get(self.kind, ())

    def reads(self, needed: Step) -> tuple[str, ...]:
        """Names in the folder of a step that it needs which this step reads."""
        if needed.kind == "pretrain" and self.snapshot is not None:
            return (f"{SNAPSHOTS}/{self.snapshot}",)
        return needed.outputs()

    def compute(self, folder: Path, parts: Sequence[str], *, keep: bool) -> Result:
        """Compute the step in its folder, or continue there.

        Args:
            folder: created if it does not exist.
            parts: the parts to compute.
            keep: keep models and features after they were measured.

        Raises:
            DivergenceError: training diverged without any result.
            BothwaysError: as the function of this kind.
        """
        return _COMPUTE[self.kind](self.config, folder, parts, keep)


# --------------------------------------------------------------------------------
# Text to encoders.


def _text(config: TextOptions, folder: Path, *_: Any) -> Result:
    return dict(make_text(config, folder))


def _vocabulary(config: VocabularyConfig, folder: Path, *_: Any) -> Result:
    report = build_vocabulary(replace(config, out=str(folder)))
    vocabulary = {k: v for k, v in report["vocabulary"].items() if k != "folder"}
    return {"vocabulary": vocabulary, "learned_from": report["learned_from"]}


def _corpus(config: CorpusConfig, folder: Path, *_: Any) -> Result:
    report = build_corpus(replace(config, out=str(folder)))
    return {part: report[part] for part in ("train", "heldout")}


def _split(config: SplitConfig, folder: Path, *_: Any) -> Result:
    with new_folder(folder) as partial:
        lines = split(replace(config, out=str(partial / Path(config.out).name)))
    return {"examples": [line.partition(":")[0] for line in lines if " examples: " in line]}


def _pretrain(config: PretrainConfig, folder: Path, *_: Any) -> Result:
    """Continues a run, unless snapshots of it are gone: later checkpoints cannot give them."""
    saved = [int(path.name.removeprefix("step-")) for path in checkpoints(folder / CHECKPOINTS)]
    if not saved and folder.exists():  # a finished model whose checkpoints were removed
        shutil.rmtree(folder)
    passed = [step for step in config.snapshots if step < max(saved, default=0)]
    if not all(snapshot_folder(folder, step).exists() for step in passed):
        print(f"{folder}: snapshots that the run passed are gone, so it starts again from step 1")
        shutil.rmtree(folder)
    result = pretrain(replace(config, run=str(folder)))
    heldout = None if result.heldout is None else result.heldout.record()
    return {"steps": result.steps, "heldout": heldout}


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
        masking: what is predicted.
    """

    model: str = free("")
    corpus: str = free("")
    sequences: int = 4096
    length: int = 128
    pairs: PairOptions = field(default_factory=PairOptions)
    masking: MaskOptions = field(default_factory=MaskOptions)
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
    recipe = PretrainConfig(pairs=options.pairs, masking=options.masking)
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


def _heldout(config: HeldOutOptions, *_: Any) -> Result:
    return {"scores": measure_heldout(config)}  # leaves no files


def _finetune(config: FinetuneConfig, folder: Path, parts: Sequence[str], keep: bool) -> Result:
    """Every seed; those that diverge are recorded, and the others continue."""
    diverged: dict[str, str] = {}
    while remaining := tuple(int(part) for part in parts if part not in diverged):
        try:
            result = finetune(replace(config, run=str(folder), seeds=remaining))
            break
        except DivergenceError as error:
            unfinished = [s for s in remaining if not (folder / f"seed-{s}" / SCORES).exists()]
            if not unfinished:
                raise
            diverged[str(unfinished[0])] = str(error)
    else:
        return {"runs": {}, "diverged": diverged}
    if not keep:
        for seed in remaining:
            shutil.rmtree(folder / f"seed-{seed}" / "model", ignore_errors=True)
    return {
        "runs": {str(run.seed): run.record() for run in result.seeds},
        "diverged": diverged,
        "metrics": list(result.metrics),
        "baseline": result.baseline,
        "dev_examples": result.dev_examples,
        "notes": list(result.notes),
    }


def _features(config: FeaturesConfig, folder: Path, parts: Sequence[str], keep: bool) -> Result:
    """Every choice of layers with every seed that any of them wants.

    Those that diverge are recorded, and the others continue.
    """
    wanted = [part.partition(":")[0] for part in parts]
    alike = first_alike([c for c in LAYER_CHOICES if c in wanted], _depth(config.model))
    layers = tuple(dict.fromkeys(alike.values()))
    seeds = tuple(dict.fromkeys(int(part.partition(":")[2]) for part in parts))
    trained: dict[tuple[str, int], dict[str, float]] = {}
    failed: dict[tuple[str, int], str] = {}

    def tag(layers: tuple[LayerChoice, ...], seeds: tuple[int, ...]) -> None:
        found = tag_by_features(replace(config, run=str(folder), layers=layers, seeds=seeds))
        for choice, (i, seed) in product(layers, enumerate(seeds)):
            tests = {"test": found.test[choice][i]} if found.test else {}
            trained[choice, seed] = {"dev": found.dev[choice][i], **tests}

    try:
        tag(layers, seeds)
    except DivergenceError:  # one by one, to see which; finished ones are not trained again
        for choice, seed in product(layers, seeds):
            try:
                tag((choice,), (seed,))
            except DivergenceError as error:
                failed[choice, seed] = str(error)
    if not keep:
        shutil.rmtree(folder / "features", ignore_errors=True)
    every = [(f"{choice}:{seed}", (alike[choice], seed)) for choice, seed in product(alike, seeds)]
    return {
        "runs": {part: trained[run] for part, run in every if run in trained},
        "diverged": {part: failed[run] for part, run in every if run in failed},
    }


def first_alike(choices: Sequence[LayerChoice], layers: int) -> dict[LayerChoice, LayerChoice]:
    """For each choice of layers the first that gives the same features and tagger.

    The weighted sums of the last four layers and of all layers are the same if there are four.

    Args:
        choices: of layers.
        layers: of the encoder.

    Raises:
        ConfigError: the encoder has too few layers for a choice.
    """
    firsts: dict[tuple[int, int, bool], LayerChoice] = {}
    alike = {}
    for choice in choices:
        chosen = chosen_layers(choice, layers)
        features = (chosen.start, chosen.stop, choice.startswith("sum"))
        alike[choice] = firsts.setdefault(features, choice)
    return alike


def _depth(model: str) -> int:
    """How many layers the encoder in a model folder has."""
    path = model_folder(model) / CONFIG
    return config_of(read_json(path, "a model folder holds it"), where=str(path))[0].layers


_COMPUTE: dict[Kind, Callable[..., Result]] = {
    "text": _text,
    "vocabulary": _vocabulary,
    "corpus": _corpus,
    "split": _split,
    "pretrain": _pretrain,
    "heldout": _heldout,
    "finetune": _finetune,
    "features": _features,
}
