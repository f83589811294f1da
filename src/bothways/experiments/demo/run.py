"""`make demo`: from raw text to a fine-tuned BERT on this machine, without any download.

The text is the documentation inside the installed Python packages. The demonstration learns a
vocabulary from it and pre-trains a tiny BERT on it. It then fine-tunes that BERT, one of the same
size with random weights, and the model that comes with the package on the same labelled examples,
with several seeds each. The report shows how much pre-training improved the accuracy.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bothways.api.model import load
from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.errors import RunError
from bothways.experiments.demo.harvest import harvest, write_corpus
from bothways.experiments.demo.labelled import follows_task, package_task, split_documents
from bothways.experiments.demo.options import DemoConfig
from bothways.families.options import SizeOptions
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.results import FinetuneResult
from bothways.io.files import write_json, write_text
from bothways.model.device import borrowed_process
from bothways.pretraining.options import EvaluateOptions, PretrainConfig
from bothways.pretraining.pretrain import PretrainResult, pretrain
from bothways.shipped import DEFAULT, DEFAULT_MASK
from bothways.tasks.options import TaskOptions
from bothways.tokenization.learning import learn_vocabulary
from bothways.training.options import ClockOptions, OptimizerOptions, Phase

VOCABULARY = 8192
STARTS = ("pretrained", "random", "shipped")
FILL_MASK = (
    f"Return the {DEFAULT_MASK} of the array.",
    f"If the file does not {DEFAULT_MASK}, an error is raised.",
    f"The default {DEFAULT_MASK} is None.",
)
FILL_MASK_SHIPPED = (
    f"She opened the {DEFAULT_MASK} and looked out.",
    f"The doctor came to see the {DEFAULT_MASK} man.",
)
# Share of the time left after preparing the text that is reserved for fine-tuning.
_FINETUNING_SHARE = 0.4
_MIN_MINUTES = 0.25


@dataclass(frozen=True)
class Gain:
    """The accuracies of one task, from each start.

    Attributes:
        task: its name.
        pretrained, random: accuracies, one per seed, of the model pre-trained here and of the same
            architecture with random weights.
        shipped: the same for the model that comes with the package: larger, trained for longer.
        baseline: accuracy of predicting the majority class.
    """

    task: str
    pretrained: tuple[float, ...]
    random: tuple[float, ...]
    shipped: tuple[float, ...]
    baseline: float

    @property
    def gain(self) -> float:
        """Mean accuracy of ``pretrained`` minus that of ``random``."""
        return statistics.fmean(self.pretrained) - statistics.fmean(self.random)


@borrowed_process()
def demo(config: DemoConfig) -> str:
    """Run the demonstration; continues where an interrupted one stopped.

    Args:
        config: folder, total minutes, seeds.

    Returns:
        The report, also written to ``report.txt`` and ``report.json`` in the folder.
    """
    start = time.monotonic()
    out = Path(config.out)
    _check_settings(config, out)
    _prepare(config, out)
    left = config.minutes - (time.monotonic() - start) / 60
    minutes = round(max(left * (1 - _FINETUNING_SHARE), _MIN_MINUTES), 2)
    folder = next(iter(sorted(out.glob("pretrain-*min"))), out / f"pretrain-{minutes}min")
    # An existing run continues with the minutes it was started with.
    minutes = float(folder.name.removeprefix("pretrain-").removesuffix("min"))
    _say(f"3/4 pre-training for about {minutes:.1f} minutes")
    run = _pretrain(config, out, folder, minutes)
    _say(f"4/4 fine-tuning from these weights, from random weights and from {DEFAULT}")
    gains = [_compare(config, out, run, name) for name in ("follows", "package")]
    text = _report(out, run, gains)
    write_text(out / "report.txt", text + "\n")
    write_json(out / "report.json", [vars(gain) | {"gain": gain.gain} for gain in gains])
    return text + f"\n\n{(time.monotonic() - start) / 60:.1f} minutes in total"


def _check_settings(config: DemoConfig, out: Path) -> None:
    """Refuse to continue a demonstration with settings other than those it was started with."""
    settings = {"minutes": config.minutes, "seed": config.seed}
    path = out / "demo.json"
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if before != settings:
            options = " ".join(f"--{name} {value:g}" for name, value in before.items())
            raise RunError(
                f"{out} holds a demonstration made with {options}; give the same options to "
                "continue it, or another folder with --out."
            )
    else:
        write_json(path, settings)


def _prepare(config: DemoConfig, out: Path) -> None:
    """Prepare text, labelled data, vocabulary and corpus, unless they exist already."""
    if (out / "corpus" / "corpus.json").exists():
        _say(f"1/4 and 2/4 text, vocabulary and corpus: kept, they exist in {out}")
        return
    _say("1/4 reading the documentation of the installed Python packages")
    documents = harvest(workers=2)
    for_pretraining, for_tasks = split_documents(documents, seed=config.seed)
    text = out / "text.txt"
    write_corpus(for_pretraining, text)
    package_task(for_tasks, out / "package", seed=config.seed)
    follows_task(for_tasks, out / "follows", seed=config.seed)
    megabytes = text.stat().st_size / 1e6
    _say(f"    {len(for_pretraining):,} docstrings, {megabytes:.1f} MB of English prose: {text}")
    _say(f"2/4 learning a vocabulary of {VOCABULARY:,} pieces; building the corpus")
    lines = text.read_text(encoding="utf-8").splitlines()
    learn_vocabulary(lines, size=VOCABULARY).save(out / "vocabulary")
    report = build_corpus(
        CorpusConfig(
            files=(str(text),),
            tokenizer=str(out / "vocabulary"),
            out=str(out / "corpus"),
            sentences="line",
            single_sentence="drop",
            heldout=0.02,
        )
    )
    train = report["train"]
    _say(f"    {train['sentences']:,} sentences, {train['tokens']:,} tokens: {out / 'corpus'}")


def _pretrain(config: DemoConfig, out: Path, folder: Path, minutes: float) -> PretrainResult:
    return pretrain(
        PretrainConfig(
            corpus=str(out / "corpus"),
            run=str(folder),
            model=SizeOptions(size="tiny", positions=128),
            clock=ClockOptions(minutes=minutes),
            phases=(
                Phase(length=64, share=0.9, batch=32, micro_batch=32),
                Phase(length=128, share=0.1, batch=16, micro_batch=16),
            ),
            optimizer=OptimizerOptions(lr=1e-3, warmup=0.1, bias_correction=True),
            seed=config.seed,
            evaluate=EvaluateOptions(sequences=256),
        )
    )


def _compare(config: DemoConfig, out: Path, run: PretrainResult, name: str) -> Gain:
    """Fine-tune from each start; the first two differ only in their initial weights."""
    results = {start: _finetune(config, out, run, name, start) for start in STARTS}
    scores = {start: tuple(result.scores["accuracy"]) for start, result in results.items()}
    return Gain(name, **scores, baseline=results["pretrained"].baseline["accuracy"])


def _finetune(
    config: DemoConfig, out: Path, run: PretrainResult, name: str, start: str
) -> FinetuneResult:
    pair = name == "follows"
    return finetune(
        FinetuneConfig(
            task=TaskOptions(
                name=name,
                train=str(out / name / "train.tsv"),
                dev=str(out / name / "dev.tsv"),
                text_a="first" if pair else "sentence",
                text_b="second" if pair else None,
            ),
            model=DEFAULT if start == "shipped" else str(run.model),
            run=str(run.run.with_name(f"{run.run.name}-{name}-{start}")),
            from_scratch=start == "random",
            epochs=6,
            length=96,
            optimizer=OptimizerOptions(
                lr=3e-4 if start == "shipped" else 5e-4, warmup=0.1, bias_correction=True
            ),
            seeds=tuple(range(config.seeds)),
        )
    )


def _report(out: Path, run: PretrainResult, gains: Sequence[Gain]) -> str:
    lines = ["", "Predictions of the model pre-trained here:"]
    lines += _fillings(run.model, FILL_MASK)
    lines += ["", f"Predictions of {DEFAULT}, the model that comes with bothways:"]
    lines += _fillings(DEFAULT, FILL_MASK_SHIPPED)
    lines += ["", f"{'accuracy on held-out functions':<32}{'pre-trained':>16}{'random start':>16}"]
    lines[-1] += f"{'gain':>8}{DEFAULT:>16}{'majority':>13}"
    titles = {"package": "which package is described?", "follows": "does B follow A?"}
    for gain in gains:
        lines.append(
            f"  {titles[gain.task]:<30}{_spread(gain.pretrained):>16}{_spread(gain.random):>16}"
            f"{gain.gain:>+8.3f}{_spread(gain.shipped):>16}{gain.baseline:>13.3f}"
        )
    lines.append(f"  (mean ± standard deviation over {len(gains[0].pretrained)} seeds)")
    lines += [
        "",
        f"curves:   {run.run / 'curves.png'}",
        f"model:    {run.model}  (loads in transformers, too)",
        f"folder:   {out}",
        "",
        "What to run next:",
        f"  {_program()} fill-mask 'He went to the {DEFAULT_MASK} and sat down.'",
        f"  {_program()} fill-mask {run.model} 'A list of {DEFAULT_MASK}.'",
        f"  {_program()} next-sentence {run.model} 'The file is opened.' 'It is then closed.'",
        f"  {_program()} vocab --files 'your/*.txt' --out vocabulary",
    ]
    return "\n".join(lines)


def _fillings(model: str | Path, texts: Sequence[str]) -> list[str]:
    """One line per text, with the most probable pieces for its mask."""
    lines = []
    for text, (fillings,) in zip(texts, map(load(model).fill_mask, texts), strict=True):
        shown = ", ".join(f"{f.piece} {f.probability:.0%}" for f in fillings[:4])
        lines.append(f"  {text:<52} {shown}")
    return lines


def _program() -> str:
    """How this program was started, so that printed commands can be copied."""
    return sys.argv[0] if Path(sys.argv[0]).name == "bothways" else "bothways"


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{deviation}"


def _say(text: str) -> None:
    print(text, flush=True)
