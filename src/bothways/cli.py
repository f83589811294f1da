"""The program ``bothways``: each verb reads its options and calls one function.

Nothing is decided here. What a verb needs is imported inside it, so that ``--help`` answers at
once: this module must never import torch, directly or not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bothways import options
from bothways.errors import BothwaysError, InputError, OtherProcessError
from bothways.options import UsageError
from bothways.shipped import DEFAULT

if TYPE_CHECKING:
    from rich.text import Text

T = TypeVar("T")

EXAMPLES = """\
examples:
  bothways demo                                     raw text to a fine-tuned BERT in minutes
  bothways vocab --files 'texts/*.txt' --size 16384 --out vocabulary
  bothways pretrain recipes/tiny.yaml --corpus corpus --run runs/tiny --optimizer.lr 1e-3"""


@dataclass(frozen=True)
class Verb:
    """A verb of the command line."""

    summary: str
    """One line for ``bothways --help``."""
    run: Callable[[Sequence[str]], int]
    """Takes the words after the verb; returns the exit status."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns:
        The exit status: 0, 1 after an error, 2 after a command line that makes no sense, 130 after
        an interruption.
    """
    try:
        try:
            with _processes():
                status = _dispatch(sys.argv[1:] if argv is None else argv)
        except SystemExit as stop:  # help has been printed
            status = int(stop.code or 0)
        sys.stdout.flush()
    except OtherProcessError:
        return 1
    except BothwaysError as error:
        print(f"bothways: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone. Python flushes once more on exit: give it a place to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # of a place that nothing more can be said of
        if error.filename is None:
            raise
        print(f"bothways: error: {error.filename}: {error.strerror}.", file=sys.stderr)
        return 1
    return status


def _dispatch(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"bothways {version('bothways')}")
        return 0
    verb = VERBS.get(argv[0])
    if verb is None:
        found = options.nearest(argv[0], list(VERBS))
        hint = f"did you mean '{found}'?" if found else "see 'bothways --help'."
        raise UsageError(f"unknown verb {argv[0]!r}; {hint}")
    if _several_processes() and argv[0] not in PARALLEL:
        raise UsageError(f"{argv[0]} runs in one process; start it without torchrun.")
    return verb.run(argv[1:])


def _several_processes() -> bool:
    """Whether ``torchrun`` has started this."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _processes() -> contextlib.AbstractContextManager[object]:
    """The other processes of a run, so that an error is shown by one of them."""
    if not _several_processes():
        return contextlib.nullcontext()
    from bothways.training.ranks import process_group

    return process_group()


def _help() -> str:
    lines = [
        "usage: bothways VERB ...",
        "",
        "BERT, end to end: raw text in, a fine-tuned model out.",
    ]
    lines += ["", "verbs:", *(f"  {name:<15} {verb.summary}" for name, verb in VERBS.items())]
    lines += ["", "  bothways VERB --help lists a verb's options; --version tells the version.", ""]
    return "\n".join([*lines, EXAMPLES])


# -------------------------------------------------------------------------------------------- verbs


def _demo(argv: Sequence[str]) -> int:
    from bothways.use_options import DemoConfig

    config = _options(DemoConfig, "demo", argv)
    from bothways.demo.run import demo

    return _show(demo(config))


def _vocab(argv: Sequence[str]) -> int:
    return _action("vocab", VOCAB_ACTIONS, argv)


def _vocab_learn(argv: Sequence[str]) -> int:
    from bothways.config import VocabularyConfig

    config = _options(VocabularyConfig, "vocab learn", argv)
    from bothways.corpus.vocabulary import learn_from_files

    with _stages() as progress:
        report = learn_from_files(config, progress=progress)
    return _show_table(report)


def _vocab_extend(argv: Sequence[str]) -> int:
    from bothways.config import ExtendConfig

    config = _options(ExtendConfig, "vocab extend", argv)
    from bothways.extend import extend

    return _show_table(extend(config))


VOCAB_ACTIONS = {
    "learn": Verb("learn a vocabulary from text files", _vocab_learn),
    "extend": Verb("add words to a vocabulary, and rows to its model", _vocab_extend),
}


def _corpus(argv: Sequence[str]) -> int:
    return _action("corpus", CORPUS_ACTIONS, argv)


def _corpus_build(argv: Sequence[str]) -> int:
    from bothways.config import CorpusConfig

    config = _options(CorpusConfig, "corpus build", argv)
    from bothways.corpus.build import build_corpus
    from bothways.corpus.report import short_report

    with _progress("encoding") as progress:
        report = build_corpus(config, progress=progress, say=_note)
    return _show_table(short_report(report))


def _corpus_show(argv: Sequence[str]) -> int:
    from bothways.config import ShowConfig

    config = _options(ShowConfig, "corpus show", argv, "folder")
    from bothways.pretraining.show import show_instances

    return _show_text(show_instances(config))


CORPUS_ACTIONS = {
    "build": Verb("turn text files into a token store", _corpus_build),
    "show": Verb("print instances as pre-training reads them", _corpus_show),
}


def _pretrain(argv: Sequence[str]) -> int:
    from bothways.config import PretrainConfig

    config = _options(PretrainConfig, "pretrain", argv)
    from bothways.pretraining.run import pretrain

    pretrain(config)
    return 0


def _plan(argv: Sequence[str]) -> int:
    from bothways.config import PlanConfig

    config = _options(PlanConfig, "plan", argv)
    from rich.console import Console

    from bothways.bench.forecast import plan
    from bothways.bench.forecast_tables import tables

    console = Console(highlight=False)
    for part in tables(plan(config)):
        console.print(part, markup=False, soft_wrap=isinstance(part, str))
    return 0


def _finetune(argv: Sequence[str]) -> int:
    from bothways.config import FinetuneConfig
    from bothways.tasks.catalogue import declared

    config = _options(FinetuneConfig, "finetune", argv, recipes=declared())
    from bothways.tasks.finetune import finetune

    return _show(finetune(config).table())


def _tasks(argv: Sequence[str]) -> int:
    from bothways.use_options import TasksOptions

    chosen = _options(TasksOptions, "tasks", argv, "name")
    from bothways.tasks.catalogue import show_tasks

    return _show(show_tasks(chosen.name))


def _glue(argv: Sequence[str]) -> int:
    from bothways.config import GlueConfig

    config = _options(GlueConfig, "glue", argv)
    from bothways.tasks.glue import glue

    return _show(glue(config).text())


def _split(argv: Sequence[str]) -> int:
    from bothways.use_options import SplitOptions

    chosen = _options(SplitOptions, "split", argv, "file")
    from bothways.tasks.split import split

    return _show(split(chosen))


def _features(argv: Sequence[str]) -> int:
    from bothways.config import FeaturesConfig

    config = _options(FeaturesConfig, "features", argv)
    from bothways.tasks.feature_based import tag_by_features

    return _show(tag_by_features(config).table())


def _reproduce(argv: Sequence[str]) -> int:
    from bothways.config import ReproduceConfig

    config = _options(ReproduceConfig, "reproduce", argv, "name")
    from bothways.reproduce.run import reproduce

    return _show(reproduce(config))


def _fill_mask(argv: Sequence[str]) -> int:
    from bothways.use_options import FillMaskOptions

    chosen = _options(FillMaskOptions, "fill-mask", argv, "model", "texts")
    if "[MASK]" in chosen.model or chosen.model == "-":  # no model was named: this is a text
        chosen = dataclasses.replace(chosen, model=DEFAULT, texts=(chosen.model, *chosen.texts))
    chosen = _with_texts(chosen)
    from bothways.verbs import fill_mask

    return _show(fill_mask(chosen))


def _next_sentence(argv: Sequence[str]) -> int:
    from bothways.use_options import NextSentenceOptions

    chosen = _options(NextSentenceOptions, "next-sentence", argv, "model", "text_a", "text_b")
    from bothways.verbs import next_sentence

    return _show(next_sentence(chosen))


def _evaluate(argv: Sequence[str]) -> int:
    from bothways.use_options import EvaluateModelOptions

    chosen = _options(EvaluateModelOptions, "evaluate", argv, "model", "file")
    from bothways.verbs import evaluate

    return _show(evaluate(chosen))


def _predict(argv: Sequence[str]) -> int:
    from bothways.use_options import PredictOptions

    chosen = _options(PredictOptions, "predict", argv, "model", "texts")
    chosen = chosen if chosen.file else _with_texts(chosen)
    from bothways.verbs import predict

    return _show(predict(chosen))


def _answer(argv: Sequence[str]) -> int:
    from bothways.use_options import AnswerOptions

    chosen = _options(AnswerOptions, "answer", argv, "model")
    from bothways.verbs import answer

    return _show(answer(chosen))


def _score(argv: Sequence[str]) -> int:
    from bothways.use_options import ScoreOptions

    chosen = _options(ScoreOptions, "score", argv, "predictions", "data")
    from bothways.verbs import score

    return _show(score(chosen))


def _choose(argv: Sequence[str]) -> int:
    from bothways.use_options import ChooseOptions

    chosen = _options(ChooseOptions, "choose", argv, "model", "context", "choices")
    from bothways.verbs import choose

    return _show(choose(chosen))


def _embed(argv: Sequence[str]) -> int:
    from bothways.use_options import EmbedOptions

    chosen = _options(EmbedOptions, "embed", argv, "model", "texts")
    chosen = chosen if chosen.file else _with_texts(chosen)
    from bothways.verbs import embed

    return _show(embed(chosen))


def _convert(argv: Sequence[str]) -> int:
    from bothways.use_options import ConvertOptions

    chosen = _options(ConvertOptions, "convert", argv, "source", "out")
    from bothways.verbs import convert

    return _show(convert(chosen))


def _doctor(argv: Sequence[str]) -> int:
    from bothways.use_options import DoctorOptions

    folder = _options(DoctorOptions, "doctor", argv, "folder").folder
    from bothways.doctor import diagnose

    problems = diagnose(folder)
    _show(problems or f"{folder}: sound")
    return 1 if problems else 0


def _bench(argv: Sequence[str]) -> int:
    return _action("bench", BENCH_ACTIONS, argv)


def _bench_train(argv: Sequence[str]) -> int:
    from bothways.use_options import BenchTrainOptions

    chosen = _options(BenchTrainOptions, "bench train", argv)
    from bothways.bench.train import bench_train

    bench_train(chosen)
    return 0


BENCH_ACTIONS = {"train": Verb("our pre-training step beside transformers'", _bench_train)}

VERBS: dict[str, Verb] = {
    "demo": Verb("raw text to a fine-tuned BERT on this machine, in minutes", _demo),
    "vocab": Verb("learn a vocabulary from text files, or extend one", _vocab),
    "corpus": Verb("turn text files into a token store", _corpus),
    "pretrain": Verb("train an encoder with masked LM and next sentence", _pretrain),
    "plan": Verb("what a pre-training run needs: memory, disk, hours on this machine", _plan),
    "fill-mask": Verb("predict the pieces at [MASK]", _fill_mask),
    "next-sentence": Verb("tell whether a text follows another", _next_sentence),
    "finetune": Verb("train an encoder on a labelled task", _finetune),
    "tasks": Verb("list the declared tasks, or print one to copy", _tasks),
    "glue": Verb("fine-tune on several declared tasks, with a table over them", _glue),
    "split": Verb("part a labelled file in two, by a hash of its text", _split),
    "features": Verb("tag words by a frozen encoder's layers and a BiLSTM", _features),
    "reproduce": Verb("recompute a table of the BERT paper, with its figures beside", _reproduce),
    "evaluate": Verb("measure a model on labelled data or on a corpus", _evaluate),
    "predict": Verb("label texts with a fine-tuned model", _predict),
    "choose": Verb("tell which of some texts continues another", _choose),
    "answer": Verb("answer a question in the words of a text", _answer),
    "score": Verb("score a file of answers, of any system", _score),
    "embed": Verb("turn texts into vectors", _embed),
    "convert": Verb("rewrite a model that can be loaded as a model folder", _convert),
    "bench": Verb("measure speed and memory beside the usual tools", _bench),
    "doctor": Verb("check a model, run or corpus folder", _doctor),
}

PARALLEL = ("pretrain",)
"""The verbs that divide their work among the processes of ``torchrun``."""


# ----------------------------------------------------------------------------- options and printing


def _action(verb: str, actions: Mapping[str, Verb], argv: Sequence[str]) -> int:
    """Run ``bothways VERB ACTION ...``; without an action's name the first one is meant."""
    if argv and argv[0] in actions:
        return actions[argv[0]].run(argv[1:])
    if argv and argv[0] in ("-h", "--help") and len(actions) > 1:
        lines = [f"usage: bothways {verb} ACTION ...", "", f"actions ({verb} alone: the first):"]
        lines += [f"  {name:<9} {action.summary}" for name, action in actions.items()]
        return _show([*lines, "", f"  bothways {verb} ACTION --help lists an action's options"])
    return next(iter(actions.values())).run(argv)


def _options(
    cls: type[T],
    verb: str,
    argv: Sequence[str],
    *positional: str,
    recipes: Mapping[str, Path] | None = None,
) -> T:
    return options.parse(
        cls,
        argv,
        prog=f"bothways {verb}",
        description=(cls.__doc__ or "").strip(),
        positional=positional,
        recipes=recipes,
    )


def _with_texts(chosen: Any) -> Any:
    """The options with texts from standard input, if '-' or nothing is given for them."""
    if chosen.texts not in ((), ("-",)):
        return chosen
    if not chosen.texts and sys.stdin.isatty():
        raise UsageError("no text given; write texts after the model, or '-' to read lines.")
    from bothways.corpus.documents import LONGEST_TEXT_MIB, lines_of

    stdin = lines_of(sys.stdin.buffer, "standard input", max_line_mib=LONGEST_TEXT_MIB)
    lines = [line for _, line in stdin]
    if not lines:
        raise InputError("no text given: standard input is empty.")
    return dataclasses.replace(chosen, texts=tuple(lines))


def _show(result: str | Sequence[str]) -> int:
    print(result if isinstance(result, str) else "\n".join(result))
    return 0


def _show_text(lines: Iterable[Text]) -> int:
    from rich.console import Console

    console = Console(highlight=False)
    for line in lines:
        console.print(line, soft_wrap=not console.is_terminal)
    return 0


def _note(text: str) -> None:
    print(f"bothways: {text}", file=sys.stderr)


def _show_table(report: Mapping[str, Any]) -> int:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    for name, value in _rows(report):
        table.add_row(Text(name), Text(value))
    Console().print(table)
    return 0


def _rows(report: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, str]]:
    """Name and value of each row; a mapping of plain numbers inside a group is one row."""
    for name, value in report.items():
        label = f"{group}{name}".replace("_", " ")
        if isinstance(value, Mapping) and not group:
            yield from _rows(value, f"{name} ")
        elif isinstance(value, Mapping) and value:
            yield label, ", ".join(f"{key} {_figure(item)}" for key, item in value.items())
        elif value is not None and value != {}:
            yield label, _figure(value)


def _figure(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, if that is a terminal; moved by calls with bytes done and in all."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def _stages() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each part of the work, moved by calls with its name, what is done, and all."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    tasks: dict[str, Any] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage)
            bar.update(tasks[stage], completed=done, total=total)

        yield update


if __name__ == "__main__":
    sys.exit(main())
