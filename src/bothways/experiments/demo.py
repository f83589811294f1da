"""`make demo`: from raw text to a fine-tuned BERT on this machine, without any download.

The text is the documentation inside the installed Python packages. The demonstration learns a
vocabulary from it and pre-trains a tiny BERT on it. It then fine-tunes that BERT, one of the same
size with random weights, and the model that comes with the package on the same labelled examples,
with several seeds each. The report shows how much pre-training improved the accuracy. Before it
trains, it measures the machine and says what the minutes will give.
"""

from __future__ import annotations

import json
import math
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.api.model import load
from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.errors import RunError
from bothways.experiments.chance import is_clear
from bothways.experiments.documentation import (
    follows_task,
    harvest,
    package_task,
    split_documents,
    write_corpus,
)
from bothways.experiments.options import DemoConfig, PlanConfig
from bothways.experiments.plan import plan
from bothways.families.options import SizeOptions
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.results import FinetuneResult
from bothways.io import html
from bothways.io.files import write_json, write_text
from bothways.model.device import borrowed_process, choose_device
from bothways.pretraining.options import EvaluateOptions, PretrainConfig
from bothways.pretraining.pretrain import PretrainResult, pretrain
from bothways.pretraining.record import curves_of
from bothways.pretraining.start import objective_of
from bothways.shipped import DEFAULT, DEFAULT_MASK
from bothways.tasks.metrics import check_measuring
from bothways.tasks.options import TaskOptions
from bothways.tokenization.learning import learn_vocabulary
from bothways.training.monitor import curve_section
from bothways.training.options import ClockOptions, OptimizerOptions, Phase
from bothways.training.origin import PAGE, moment
from bothways.training.runfolder import read_run

VOCABULARY = 8192
FILL_MASK = (
    f"Return the {DEFAULT_MASK} of the array.",
    f"If the file does not {DEFAULT_MASK}, an error is raised.",
    f"The default {DEFAULT_MASK} is None.",
)
FILL_MASK_SHIPPED = (
    f"She opened the {DEFAULT_MASK} and looked out.",
    f"The doctor came to see the {DEFAULT_MASK} man.",
)
_TITLES = {"follows": "does B follow A?", "package": "which package is described?"}
_COLUMNS = {"follows": ("first", "second"), "package": ("sentence", None)}
# Share of the time left after preparing the text that is reserved for fine-tuning.
_FINETUNING_SHARE = 0.4
_MIN_MINUTES = 0.25
# Epochs of fine-tuning: in proportion to the minutes, the most from the default of 7 on.
_EPOCHS, _MIN_EPOCHS = 6, 2
_ENOUGH, _TOO_FEW = 3000, 1000
"""Steps of pre-training that made a clear gain, and that made none (EXPERIMENTS.md, section 1)."""


@dataclass(frozen=True)
class Gain:
    """The accuracies of one task, from each start.

    Attributes:
        task: its name.
        pretrained, random: accuracies, one per seed, of the model pre-trained here and of the same
            architecture with random weights.
        shipped: the same for the model that comes with the package: larger, trained for longer.
        baseline: accuracy of predicting the majority class.
        examples: how many were measured.
    """

    task: str
    pretrained: tuple[float, ...]
    random: tuple[float, ...]
    shipped: tuple[float, ...]
    baseline: float
    examples: int

    @property
    def gain(self) -> float:
        """Mean accuracy of ``pretrained`` minus that of ``random``."""
        return statistics.fmean(self.pretrained) - statistics.fmean(self.random)

    @property
    def clear(self) -> bool:
        """Whether the gain is above two standard errors, of seeds and of examples together."""
        return self.gain > 0 and is_clear(self.pretrained, self.random, self.examples)


@borrowed_process()
def demo(config: DemoConfig) -> str:
    """Run the demonstration; continues where an interrupted one stopped.

    Args:
        config: folder, total minutes, seeds.

    Returns:
        The report, also written to ``report.txt``, ``report.json`` and, as a page with curves,
        ``report.html`` in the folder.
    """
    start = time.monotonic()
    check_measuring()
    out = Path(config.out)
    _check_settings(config, out)
    _prepare(config, out)
    folder = next(iter(sorted(out.glob("pretrain-*min"))), None)
    if folder is None:
        _forecast(config, out, start)
        minutes = _minutes_left(config, start)
        folder = out / f"pretrain-{minutes}min"
    # An existing run continues with the minutes it was started with.
    minutes = float(folder.name.removeprefix("pretrain-").removesuffix("min"))
    _say(f"3/4 pre-training for about {minutes:.1f} minutes")
    run = pretrain(PretrainConfig(run=str(folder), **_pretraining(config, out, minutes)))
    _say(f"4/4 fine-tuning from these weights, from random weights and from {DEFAULT}")
    gains = [_compare(config, run, task) for task in _TITLES]
    text = _report(config, run, gains)
    write_text(out / "report.txt", text + "\n")
    write_text(out / PAGE, _page(config, run, gains))
    write_json(out / "report.json", [vars(gain) | {"gain": gain.gain} for gain in gains])
    return text + f"\n\n{(time.monotonic() - start) / 60:.1f} minutes in total"


def _minutes_left(config: DemoConfig, start: float) -> float:
    """Minutes of pre-training, of a demonstration that began at ``start``."""
    left = config.minutes - (time.monotonic() - start) / 60
    return round(max(left * (1 - _FINETUNING_SHARE), _MIN_MINUTES), 2)


def _pretraining(config: DemoConfig, out: Path, minutes: float) -> dict[str, Any]:
    """The options of pre-training, but for the run folder."""
    return {
        "corpus": str(out / "corpus"),
        "model": SizeOptions(size="tiny", positions=128),
        "clock": ClockOptions(minutes=minutes),
        "phases": (
            Phase(length=64, share=0.9, batch=32, micro_batch=32),
            Phase(length=128, share=0.1, batch=16, micro_batch=16),
        ),
        "optimizer": OptimizerOptions(lr=1e-3, warmup=0.1, bias_correction=True),
        "seed": config.seed,
        "evaluate": EvaluateOptions(sequences=256),
    }


def _forecast(config: DemoConfig, out: Path, start: float) -> None:
    """Measure this machine, and say what the minutes will give on it."""
    if choose_device("auto").torch.type != "cpu":
        return  # `plan` times processors
    steps = plan(PlanConfig(**_pretraining(config, out, _minutes_left(config, start)))).steps or 0
    minutes = _minutes_left(config, start)
    _say(
        f"    measured: about {steps:,} steps of training in {minutes:.1f} minutes on this machine"
    )
    if steps >= _ENOUGH:
        _say(f"    in trials, {_ENOUGH:,} steps or more made pre-training a clear gain")
        return
    spent = (time.monotonic() - start) / 60
    needed = math.ceil(spent + minutes * _ENOUGH / max(steps, 1) / (1 - _FINETUNING_SHARE))
    _say(
        f"    in trials, a clear gain took {_ENOUGH:,} steps, and {_TOO_FEW:,} gave none: expect "
        f"little or none. For a clear one: --minutes {needed}, with another --out"
    )


def _check_settings(config: DemoConfig, out: Path) -> None:
    """Refuse to continue a demonstration with settings other than those it was started with."""
    settings, path = {"minutes": config.minutes, "seed": config.seed}, out / "demo.json"
    if not path.exists():
        write_json(path, settings)
    elif (before := json.loads(path.read_text(encoding="utf-8"))) != settings:
        options = " ".join(f"--{name} {value:g}" for name, value in before.items())
        raise RunError(
            f"{out} holds a demonstration made with {options}; give the same options to "
            "continue it, or another folder with --out."
        )


def _prepare(config: DemoConfig, out: Path) -> None:
    """Prepare text, labelled data, vocabulary and corpus, unless they exist already."""
    if (out / "corpus" / "corpus.json").exists():
        _say(f"1/4 and 2/4 text, vocabulary and corpus: kept, they exist in {out}")
        return
    _say("1/4 reading the documentation of the installed Python packages")
    for_pretraining, for_tasks = split_documents(harvest(workers=2), seed=config.seed)
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


def _compare(config: DemoConfig, run: PretrainResult, task: str) -> Gain:
    """Fine-tune from each start; the first two differ only in their initial weights."""
    results = {
        start: _finetune(config, run, task, start) for start in ("pretrained", "random", "shipped")
    }
    scores = {start: tuple(result.scores["accuracy"]) for start, result in results.items()}
    first = results["pretrained"]
    return Gain(task, **scores, baseline=first.baseline["accuracy"], examples=first.dev_examples)


def _finetune(config: DemoConfig, run: PretrainResult, task: str, start: str) -> FinetuneResult:
    text, text_b = _COLUMNS[task]
    folder, usual = Path(config.out) / task, DemoConfig().minutes
    return finetune(
        FinetuneConfig(
            task=TaskOptions(
                name=task,
                train=str(folder / "train.tsv"),
                dev=str(folder / "dev.tsv"),
                text=text,
                text_b=text_b,
            ),
            model=DEFAULT if start == "shipped" else str(run.model),
            run=str(run.run.with_name(f"{run.run.name}-{task}-{start}")),
            from_scratch=start == "random",
            epochs=max(_MIN_EPOCHS, round(_EPOCHS * min(1.0, config.minutes / usual))),
            max_length=96,
            optimizer=OptimizerOptions(
                lr=3e-4 if start == "shipped" else 5e-4, warmup=0.1, bias_correction=True
            ),
            seeds=tuple(range(config.seeds)),
        )
    )


def _report(config: DemoConfig, run: PretrainResult, gains: Sequence[Gain]) -> str:
    too_few = f"   no clear gain: {_minutes(config, 'on this machine ')}"
    rows = [
        f"  {_TITLES[gain.task]:<30}{_spread(gain.pretrained):>16}{_spread(gain.random):>16}"
        f"{gain.gain:>+8.3f}{_spread(gain.shipped):>16}{gain.baseline:>13.3f}"
        f"{'' if gain.clear else too_few}"
        for gain in gains
    ]
    # How this program was started, so that printed commands can be copied.
    program = sys.argv[0] if Path(sys.argv[0]).name == "bothways" else "bothways"
    return "\n".join(
        [
            "",
            "Predictions of the model pre-trained here:",
            *_filling_lines(run.model, FILL_MASK),
            "",
            f"Predictions of {DEFAULT}, the model that comes with bothways:",
            *_filling_lines(DEFAULT, FILL_MASK_SHIPPED),
            "",
            f"{'accuracy on held-out functions':<32}{'pre-trained':>16}{'random start':>16}"
            f"{'gain':>8}{DEFAULT:>16}{'majority':>13}",
            *rows,
            f"  ({_of_seeds(gains)})",
            "",
            f"curves:   {run.run / 'curves.png'}",
            f"model:    {run.model}  (loads in transformers, too)",
            f"folder:   {Path(config.out)}",
            f"page:     {Path(config.out) / PAGE}",
            "",
            "What to run next:",
            f"  {program} fill-mask 'He went to the {DEFAULT_MASK} and sat down.'",
            f"  {program} fill-mask {run.model} 'A list of {DEFAULT_MASK}.'",
            f"  {program} next-sentence {run.model} 'The file is opened.' 'It is then closed.'",
            f"  {program} finetune --train train.csv --text text --label label --dev 0.1",
            f"  {program} pretrain --corpus {Path(config.out) / 'corpus'} --minutes 10",
            f"  {program} info {Path(config.out)}",
        ]
    )


def _page(config: DemoConfig, run: PretrainResult, gains: Sequence[Gain]) -> str:
    """The report as a page: the same bytes for the same runs."""
    titles = ("pre-trained here", "random start", DEFAULT)
    header = ["accuracy on held-out functions", *titles[:2], "gain", DEFAULT, "majority class", ""]
    rows = [
        [
            _TITLES[gain.task],
            *(_spread(gain.pretrained), _spread(gain.random), f"{gain.gain:+.3f}"),
            *(_spread(gain.shipped), f"{gain.baseline:.3f}"),
            "" if gain.clear else f"no clear gain: {_minutes(config)}",
        ]
        for gain in gains
    ]
    reports = [
        (f"{_TITLES[gain.task]} {title}", f"{run.run.name}-{gain.task}-{start}/{PAGE}")
        for gain in gains
        for start, title in zip(("pretrained", "random", "shipped"), titles, strict=True)
    ]
    record = read_run(run.run)
    versions = ", ".join(
        f"{name} {record['versions'][name]}"
        for name in ("bothways", "python", "torch", "numpy")
        if name in record["versions"]
    )
    begun = f"Begun {moment(record['started'])}; " if "started" in record else ""
    options = {"out": config.out, "minutes": f"{config.minutes:g}", "seeds": config.seeds}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    filled = ("sentence", "the likeliest")
    title = "From raw text to a fine-tuned BERT"
    return html.page(
        title,
        [
            html.heading(title, 1),
            html.paragraph(
                f"A tiny BERT was pre-trained here, {run.steps:,} steps on the documentation of "
                "the installed Python packages, and fine-tuned on labelled examples of the same; "
                f"so were one with random weights and {DEFAULT}, the larger model that comes "
                "with bothways."
            ),
            html.table(header, rows),
            html.note(f"{_of_seeds(gains).capitalize()}."),
            html.heading("Words put in for a hidden one"),
            html.heading("The model pre-trained here", 3),
            html.table(filled, _fillings(run.model, FILL_MASK)),
            html.heading(f"{DEFAULT}, the model that comes with bothways", 3),
            html.table(filled, _fillings(DEFAULT, FILL_MASK_SHIPPED)),
            *curve_section(curves_of(run.run, objective_of(PretrainConfig()).terms)),
            html.heading("Reports of fine-tuning"),
            html.table(["report"], [[name] for name, _ in reports], links=[p for _, p in reports]),
            html.heading("How this was made"),
            html.paragraph(f"{begun}{versions}"),
            html.preformatted(shlex.join(["bothways", "demo", *words])),
        ],
    )


def _filling_lines(model: str | Path, texts: Sequence[str]) -> list[str]:
    return [f"  {text:<52} {shown}" for text, shown in _fillings(model, texts)]


def _fillings(model: str | Path, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Each text with the most probable pieces for its mask."""
    rows = []
    for text, (fillings,) in zip(texts, map(load(model).fill_mask, texts), strict=True):
        rows.append((text, ", ".join(f"{f.piece} {f.probability:.0%}" for f in fillings[:4])))
    return rows


def _minutes(config: DemoConfig, where: str = "") -> str:
    if config.minutes == 1:
        return f"1 minute {where}was too short"
    return f"{config.minutes:g} minutes {where}were too few"


def _of_seeds(gains: Sequence[Gain]) -> str:
    seeds = len(gains[0].pretrained)
    return f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "of one seed"


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{deviation}"


def _say(text: str) -> None:
    print(text, flush=True)
