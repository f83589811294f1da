"""What a verb says when it has ended: a sample of what was made, and the command that comes next,
with the paths that were used."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.config.fields import option_types
from bothways.config.parsing import shown
from bothways.io.streams import visible

if TYPE_CHECKING:
    from bothways.corpus.options import CorpusConfig
    from bothways.finetuning.options import FinetuneConfig
    from bothways.finetuning.results import FinetuneResult
    from bothways.pretraining.pretrain import PretrainResult
    from bothways.tokenization.options import VocabularyConfig

_SAMPLES, _WIDTH = 3, 70
# What a command may lack: a file of the reader's own.
_LABELLED = ("--train", "train.csv", "--text", "text", "--label", "label", "--dev", "0.1")


def is_first_process() -> bool:
    """Whether this is the only process, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def say_next(*commands: Sequence[str | Path]) -> None:
    """Print commands that can be copied, to stderr as notes are."""
    lines = [shlex.join(["bothways", *map(str, words)]) for words in commands]
    sys.stdout.flush()
    print("\nnext:", *map(visible, lines), sep="\n  ", file=sys.stderr)


def after_vocabulary(config: VocabularyConfig) -> None:
    """The corpus comes next; and how texts are split now."""
    corpus = ["corpus", "--files", *config.files, "--tokenizer", config.out, "--out", "corpus"]
    say_next(["tokenize", config.out, "a sentence of yours"], corpus)


def after_corpus(config: CorpusConfig) -> None:
    """Pre-training comes next."""
    say_next(
        ["corpus", "show", config.out],
        ["plan", "--corpus", config.out, "--minutes", "10"],
        ["pretrain", "--corpus", config.out, "--minutes", "10"],
    )


def after_folder(config: Any) -> None:
    """What a folder that was written can do."""
    say_next(["info", config.out])


def after_plan(words: Sequence[str]) -> None:
    """The run that was planned: the same words."""
    from bothways.experiments.options import PlanConfig  # slow import
    from bothways.pretraining.options import PretrainConfig

    own = option_types(PlanConfig).keys() - option_types(PretrainConfig).keys()
    if any(word.startswith(tuple(map(shown, own))) for word in words):
        return  # a run has no such option
    if any(word == "--corpus" or word.startswith("--corpus=") for word in words):
        say_next(["pretrain", *words])


def after_pretraining(result: PretrainResult) -> None:
    """Fillings of hidden words, and fine-tuning; of several processes, the first says it."""
    if not is_first_process():
        return
    commands: list[list[str | Path]] = []
    samples = result.samples
    if samples.fillings:
        print("\nwords that the model puts in for hidden ones:")
    for sample in samples.fillings:
        print(visible(f"  {sample.text}\n      {sample.shown} (it was: {sample.word})"))
        commands = commands or [["fill-mask", result.model, sample.text]]
    if samples.why_none:
        print(f"\nno sample of fillings: {visible(samples.why_none)}")
    say_next(*commands, ["finetune", *_LABELLED, "--model", result.model])


def after_finetuning(config: FinetuneConfig, result: FinetuneResult) -> None:
    """The surest mistakes on dev, and how the model is used."""
    report = result.best.examples
    errors: list[Mapping[str, Any]] = report["errors"][:_SAMPLES]
    if errors:
        print(f"\nof the {report['errors_total']:,} mistakes of {result.best.name} on dev:")
    for error in errors:
        texts = " | ".join(_short(text) for _, text in error["texts"])
        print(
            visible(
                f"  {texts}\n      {_short(error['predicted'])}; right: {_short(error['gold'])}"
            )
        )
    usage, own = config.task.traits.usage, config.task.text_b and config.task.traits.of_texts
    arguments = usage.pair_arguments if own else usage.arguments
    print(f"\nreport: {result.run / 'report.html'}")
    say_next(["predict", result.best.model, *arguments], ["info", result.run])


def _short(text: Any) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"
