"""The steps that tables are made of, and how each is computed.

A step is one call of a verb's function, with its own folder below ``runs/``. The folder's name
holds a digest of the step's recipe and of what it reads, so equal steps of several tables share a
folder.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

from bothways.config.fields import digest, recipe_fields
from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import MANIFEST
from bothways.errors import DivergenceError
from bothways.experiments.demo.harvest import STDLIB, Document, harvest, name_draw, write_corpus
from bothways.experiments.demo.labelled import follows_task, package_task, split_documents
from bothways.experiments.reproduce.heldout import HeldOutOptions, measure_heldout
from bothways.families import config_of
from bothways.finetuning.features import chosen_layers, tag_by_features
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import LAYER_CHOICES, FeaturesConfig, FinetuneConfig, LayerChoice
from bothways.finetuning.seed import SCORES
from bothways.io.files import new_folder, write_text
from bothways.pretraining.options import PretrainConfig
from bothways.pretraining.pretrain import CHECKPOINTS, MODEL, pretrain
from bothways.pretraining.snapshots import SNAPSHOTS, snapshot_folder
from bothways.runtime.folder import CONFIG, read_json
from bothways.shipped import model_folder
from bothways.tasks.options import SplitConfig
from bothways.tasks.split import split
from bothways.tokenization.build import build_vocabulary
from bothways.tokenization.options import VocabularyConfig
from bothways.training.checkpoint import checkpoints

# --------------------------------------------------------------------------------
# The smoke scale's text and tasks, made from the documentation of installed packages.
#
# In addition to the demonstration's two tasks there is a tagging task: the words of a sentence are
# lower-cased, and the tags mark those that had a capital letter, as names have.

TEXT = "text.txt"
_WORD = re.compile(r"\w+|[^\w\s]")
_DEV_SHARE = 1 / 3


@dataclass(frozen=True)
class TextOptions:
    """The packages to read, and how much to make."""

    packages: tuple[str, ...] = (STDLIB, "numpy")
    max_mb: float = 1.0
    examples: int = 200
    seed: int = 0


def make_text(options: TextOptions, folder: Path) -> dict[str, int]:
    """Write ``text.txt`` and a folder for each task; all or nothing.

    Returns:
        The number of documents to pre-train on, and of those set aside for the tasks.

    Raises:
        InputError: the packages hold too little prose.
        DiskError: a file could not be written.
    """
    documents = harvest(packages=options.packages, max_mb=options.max_mb)
    for_pretraining, for_tasks = split_documents(documents, seed=options.seed)
    with new_folder(folder) as partial:
        write_corpus(for_pretraining, partial / TEXT)
        seed, count = options.seed, options.examples
        follows_task(for_tasks, partial / "follows", seed=seed, train=count, dev=count)
        package_task(
            for_tasks,
            partial / "package",
            seed=seed,
            train=count,
            dev=count,
            packages=options.packages,
        )
        _capitals_task(for_tasks, partial / "capitals", options)
    return {"documents": len(for_pretraining), "set_aside": len(for_tasks)}


def _capitals_task(documents: Sequence[Document], folder: Path, options: TextOptions) -> None:
    """``train.conll``, ``dev.conll`` and ``test.conll``; no definition is in two of them."""
    splits: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for document in documents:
        draw = name_draw(options.seed, document.definition, 0)
        split = "train" if draw >= 2 * _DEV_SHARE else "dev" if draw >= _DEV_SHARE else "test"
        tagged = map(_tagged, document.sentences)
        splits[split] += [sentence for sentence in tagged if "\tB-" in sentence]
    for split, sentences in splits.items():
        write_text(folder / f"{split}.conll", "\n\n".join(sentences[: options.examples]) + "\n")


def _tagged(sentence: str) -> str:
    """One line per word, with its tag; the first word's capital is not informative, so ignored."""
    lines, inside = [], False
    for number, word in enumerate(_WORD.findall(sentence)):
        capital = number > 0 and word != word.lower()
        lines.append(f"{word.lower()}\t{('I-CAP' if inside else 'B-CAP') if capital else 'O'}")
        inside = capital
    return "\n".join(lines)


Kind = Literal[
    "text", "vocabulary", "corpus", "split", "pretrain", "heldout", "finetune", "features"
]
# Options that hold paths but count as recipe in their configs; they do not identify a step.
_PATHS = ("files", "tokenizer", "out", "file")


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
        return "-".join(part for part in (self.kind, self.label, self.key) if part)

    def settings(self) -> dict[str, Any]:
        """The options that decide the result, by dotted name; without paths."""
        return {k: v for k, v in recipe_fields(self.config).items() if k not in _PATHS}

    def outputs(self) -> tuple[str, ...]:
        """Names in its folder that other steps read, besides snapshots; empty if no step needs this
        kind."""
        names: dict[Kind, tuple[str, ...]] = {"pretrain": (MODEL,), "corpus": (MANIFEST,)}
        names |= dict.fromkeys(("vocabulary", "text", "split"), ("",))
        return names.get(self.kind, ())

    def reads(self, needed: Step) -> tuple[str, ...]:
        """Names in the folder of a step that it needs which this step reads."""
        if needed.kind == "pretrain" and self.snapshot is not None:
            return (f"{SNAPSHOTS}/{self.snapshot}",)
        return needed.outputs()

    def compute(self, folder: Path, parts: Sequence[str], *, keep: bool) -> dict[str, Any]:
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


def _text(config: TextOptions, folder: Path, *_: Any) -> dict[str, Any]:
    return dict(make_text(config, folder))


def _vocabulary(config: VocabularyConfig, folder: Path, *_: Any) -> dict[str, Any]:
    report = build_vocabulary(dataclasses.replace(config, out=str(folder)))
    vocabulary = {k: v for k, v in report["vocabulary"].items() if k != "folder"}
    return {"vocabulary": vocabulary, "learned_from": report["learned_from"]}


def _corpus(config: CorpusConfig, folder: Path, *_: Any) -> dict[str, Any]:
    report = build_corpus(dataclasses.replace(config, out=str(folder)))
    return {part: report[part] for part in ("train", "heldout")}


def _split(config: SplitConfig, folder: Path, *_: Any) -> dict[str, Any]:
    with new_folder(folder) as partial:
        lines = split(dataclasses.replace(config, out=str(partial / Path(config.out).name)))
    return {"examples": [line.partition(":")[0] for line in lines if " examples: " in line]}


def _pretrain(config: PretrainConfig, folder: Path, *_: Any) -> dict[str, Any]:
    """Continues a run, unless snapshots of it are gone: later checkpoints cannot give them."""
    saved = [int(path.name.removeprefix("step-")) for path in checkpoints(folder / CHECKPOINTS)]
    if not saved and folder.exists():  # a finished model whose checkpoints were removed
        shutil.rmtree(folder)
    passed = [step for step in config.snapshots if step < max(saved, default=0)]
    if not all(snapshot_folder(folder, step).exists() for step in passed):
        print(f"{folder}: snapshots that the run passed are gone, so it starts again from step 1")
        shutil.rmtree(folder)
    result = pretrain(dataclasses.replace(config, run=str(folder)))
    heldout = None if result.heldout is None else result.heldout.record()
    return {"steps": result.steps, "heldout": heldout}


def _heldout(config: HeldOutOptions, folder: Path, *_: Any) -> dict[str, Any]:
    del folder  # leaves no files
    return {"scores": measure_heldout(config)}


def _finetune(
    config: FinetuneConfig, folder: Path, parts: Sequence[str], keep: bool
) -> dict[str, Any]:
    """Every seed; those that diverge are recorded, and the others continue."""
    seeds = [int(part) for part in parts]
    diverged: dict[str, str] = {}
    while remaining := [seed for seed in seeds if str(seed) not in diverged]:
        try:
            result = finetune(dataclasses.replace(config, run=str(folder), seeds=tuple(remaining)))
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


def _features(
    config: FeaturesConfig, folder: Path, parts: Sequence[str], keep: bool
) -> dict[str, Any]:
    """Every choice of layers with every seed that any of them wants.

    Those that diverge are recorded, and the others continue.
    """
    wanted = [part.partition(":")[0] for part in parts]
    alike = first_alike([c for c in LAYER_CHOICES if c in wanted], _depth(config.model))
    layers = tuple(dict.fromkeys(alike.values()))
    seeds = tuple(dict.fromkeys(int(part.partition(":")[2]) for part in parts))
    runs: dict[str, dict[str, float]] = {}
    diverged: dict[str, str] = {}

    def tag(layers: tuple[LayerChoice, ...], seeds: tuple[int, ...]) -> None:
        result = tag_by_features(
            dataclasses.replace(config, run=str(folder), layers=layers, seeds=seeds)
        )
        for choice in layers:
            for i, seed in enumerate(seeds):
                tests = {"test": result.test[choice][i]} if result.test else {}
                runs[f"{choice}:{seed}"] = {"dev": result.dev[choice][i], **tests}

    try:
        tag(layers, seeds)
    except DivergenceError:  # one by one, to see which; finished ones are not trained again
        for choice, seed in product(layers, seeds):
            try:
                tag((choice,), (seed,))
            except DivergenceError as error:
                diverged[f"{choice}:{seed}"] = str(error)
    for (choice, first), seed in product(alike.items(), seeds):
        part, trained = f"{choice}:{seed}", f"{first}:{seed}"
        if trained in runs:
            runs[part] = runs[trained]
        if trained in diverged:
            diverged[part] = diverged[trained]
    if not keep:
        shutil.rmtree(folder / "features", ignore_errors=True)
    return {"runs": runs, "diverged": diverged}


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
    values = read_json(path, "a model folder holds it")
    return config_of(values, where=str(path))[0].layers


_COMPUTE: dict[Kind, Callable[..., dict[str, Any]]] = {
    "text": _text,
    "vocabulary": _vocabulary,
    "corpus": _corpus,
    "split": _split,
    "pretrain": _pretrain,
    "heldout": _heldout,
    "finetune": _finetune,
    "features": _features,
}
