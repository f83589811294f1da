"""The steps of which tables are made, and how each is computed.

A step is one call of a verb's function with its own folder below ``runs/``, named by what it is and
a digest of its recipe and of what it reads. Equal steps of several tables are therefore one folder.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

from bothways.config import (
    LAYER_CHOICES,
    CorpusConfig,
    FeaturesConfig,
    FinetuneConfig,
    LayerChoice,
    PretrainConfig,
    VocabularyConfig,
    digest,
    recipe_fields,
)
from bothways.corpus.build import build_corpus
from bothways.corpus.store import MANIFEST
from bothways.errors import DivergenceError
from bothways.files import new_folder
from bothways.pretraining.run import MODEL, pretrain
from bothways.pretraining.snapshots import SNAPSHOTS
from bothways.reproduce.embedded import TextOptions, make_text
from bothways.reproduce.heldout import HeldOutOptions, measure_heldout
from bothways.tasks.feature_based import tag_by_features
from bothways.tasks.finetune import finetune
from bothways.tasks.seeds import SCORES
from bothways.tasks.split import split
from bothways.tokenization.vocabulary import learn_from_files
from bothways.use_options import SplitOptions

Kind = Literal[
    "text", "vocabulary", "corpus", "split", "pretrain", "heldout", "finetune", "features"
]
# Options that say where things are, of the configs in which those count as recipe.
_PLACES = ("files", "tokenizer", "out", "file")


@dataclass(frozen=True)
class Step:
    """One thing to compute.

    Attributes:
        kind: which function.
        label: what it is, for its name.
        config: the function's options, without the folder to write to.
        inputs: digests of what it reads: files, or the keys of other steps.
        needs: names of the steps that come before it.
        wanted: parts that may be computed later than others: seeds, or layers with seeds.
    """

    kind: Kind
    label: str
    config: Any
    inputs: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()

    @cached_property
    def key(self) -> str:
        """Digest of the recipe and of what is read; not of places, threads, or what is wanted."""
        return digest([self.kind, self.settings(), *self.inputs])[:10]

    @cached_property
    def name(self) -> str:
        """Of its folder below ``runs/``."""
        return "-".join(part for part in (self.kind, self.label, self.key) if part)

    def settings(self) -> dict[str, Any]:
        """The options that decide the result, by dotted name; no places."""
        return {k: v for k, v in recipe_fields(self.config).items() if k not in _PLACES}

    def read_by_others(self) -> tuple[str, ...]:
        """What there must be in its folder for the steps that need it; nothing where none does."""
        if self.kind == "pretrain":
            return (MODEL, *(f"{SNAPSHOTS}/{number}" for number in self.config.snapshots))
        return {"corpus": (MANIFEST,), "vocabulary": ("",), "text": ("",), "split": ("",)}.get(
            self.kind, ()
        )

    def compute(self, folder: Path, parts: Sequence[str], *, keep: bool) -> dict[str, Any]:
        """Compute it in its folder, or go on there.

        Args:
            folder: made if need be.
            parts: those that are asked for.
            keep: keep what only takes room after it was measured.

        Raises:
            DivergenceError: training diverged, with nothing to show.
            BothwaysError: as the function of this kind.
        """
        return _COMPUTE[self.kind](self.config, folder, parts, keep)


def _text(config: TextOptions, folder: Path, *_: Any) -> dict[str, Any]:
    return dict(make_text(config, folder))


def _vocabulary(config: VocabularyConfig, folder: Path, *_: Any) -> dict[str, Any]:
    report = learn_from_files(dataclasses.replace(config, out=str(folder)))
    vocabulary = {k: v for k, v in report["vocabulary"].items() if k != "folder"}
    return {"vocabulary": vocabulary, "learned_from": report["learned_from"]}


def _corpus(config: CorpusConfig, folder: Path, *_: Any) -> dict[str, Any]:
    report = build_corpus(dataclasses.replace(config, out=str(folder)))
    return {part: report[part] for part in ("train", "heldout")}


def _split(config: SplitOptions, folder: Path, *_: Any) -> dict[str, Any]:
    with new_folder(folder) as partial:
        lines = split(dataclasses.replace(config, out=str(partial / Path(config.out).name)))
    return {"examples": [line.partition(":")[0] for line in lines]}


def _pretrain(config: PretrainConfig, folder: Path, *_: Any) -> dict[str, Any]:
    result = pretrain(dataclasses.replace(config, run=str(folder)))
    heldout = None if result.heldout is None else result.heldout.record()
    return {"steps": result.steps, "heldout": heldout}


def _heldout(config: HeldOutOptions, folder: Path, *_: Any) -> dict[str, Any]:
    del folder  # the result is all
    return {"scores": measure_heldout(config)}


def _finetune(
    config: FinetuneConfig, folder: Path, parts: Sequence[str], keep: bool
) -> dict[str, Any]:
    """Every seed; one that diverges is named, and the others go on."""
    seeds = [int(part) for part in parts]
    diverged: dict[str, str] = {}
    while sound := [seed for seed in seeds if str(seed) not in diverged]:
        try:
            result = finetune(dataclasses.replace(config, run=str(folder), seeds=tuple(sound)))
            break
        except DivergenceError as error:
            unfinished = [s for s in sound if not (folder / f"seed-{s}" / SCORES).exists()]
            if not unfinished:
                raise
            diverged[str(unfinished[0])] = str(error)
    else:
        return {"runs": {}, "diverged": diverged}
    if not keep:
        for seed in sound:
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
    """Every choice of layers with every seed that any of them wants; one that diverges is named,
    and the others go on."""
    asked = [part.partition(":")[0] for part in parts]
    layers = tuple(choice for choice in LAYER_CHOICES if choice in asked)
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
    except DivergenceError:  # one by one, to see which; what is finished is kept
        for choice, seed in product(layers, seeds):
            try:
                tag((choice,), (seed,))
            except DivergenceError as error:
                diverged[f"{choice}:{seed}"] = str(error)
    if not keep:
        shutil.rmtree(folder / "features", ignore_errors=True)
    return {"runs": runs, "diverged": diverged}


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
