"""The program ``bothways``: each verb parses its options and calls one function.

That function's module is imported when the verb runs, so that ``--help`` answers at once: this
module must never import torch, directly or not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.config import parsing as options
from bothways.config.parsing import UsageError
from bothways.config.recipes import list_of_recipes, shipped_recipes
from bothways.corpus.options import CorpusConfig
from bothways.errors import (
    BothwaysError,
    InputError,
    OtherProcessError,
    explain_missing,
    is_out_of_memory,
    nearest,
)
from bothways.experiments.options import (
    BenchInferConfig,
    BenchTrainConfig,
    DemoConfig,
    PlanConfig,
    ReproduceConfig,
)
from bothways.exporting.options import ExportConfig
from bothways.finetuning.options import FeaturesConfig, FinetuneConfig, GlueConfig
from bothways.io.processes import interrupted_by_signals
from bothways.io.terminal import (
    print_note,
    print_report,
    progress_of,
    progress_of_stages,
    show_every_character,
    text_console,
    visible,
    with_decoded_texts,
)
from bothways.pretraining.options import PretrainConfig, ShowConfig
from bothways.runtime.options import (
    AnswerConfig,
    ChooseConfig,
    ConvertConfig,
    DoctorConfig,
    EmbedConfig,
    EvaluateConfig,
    FillMaskConfig,
    InspectConfig,
    NextSentenceConfig,
    PredictConfig,
    RankConfig,
    ScoreConfig,
)
from bothways.serving.options import ServeConfig
from bothways.tasks.options import SplitConfig, TasksConfig
from bothways.tokenization.options import ExtendConfig, VocabularyConfig

if TYPE_CHECKING:
    from rich.text import Text

_OUT_OF_MEMORY = (
    "out of memory. What was saved before is kept. `pretrain` and `finetune` need less with "
    "--recompute, also to continue a run; a new one may have a smaller phases.micro_batch "
    "(pretrain) or --length. Elsewhere, fewer --workers or --jobs need less."
)

EXAMPLES = """\
examples:
  bothways demo                                     raw text to a fine-tuned BERT in minutes
  bothways vocab --files 'texts/*.txt' --size 16384 --out vocabulary
  bothways corpus --files 'texts/*.txt' --tokenizer vocabulary --out corpus
  bothways pretrain tiny --corpus corpus --run runs/tiny --optimizer.lr 1e-3"""


@dataclass(frozen=True)
class Verb:
    """A verb of the command line."""

    summary: str
    """One line for ``bothways --help``."""
    config: type[Any]
    """Its options."""
    handler: Callable[[Any], int]
    """Called with the options; returns the exit status."""
    positional: tuple[str, ...] = ()
    """Options that are given by position."""
    reads_texts: bool = False
    """Whether ``texts`` come from standard input if neither they nor a file are given."""
    recipes: Callable[[], Mapping[str, Path]] = dict
    """Recipes that can be named without their path."""
    recipe_part: str = ""
    """The group of options that is read of these, if they are recipes of another verb."""
    epilog: Callable[[], str] = str
    """Lines below the options in its help."""

    def run(self, name: str, argv: Sequence[str]) -> int:
        """Parse the words after the verb, called ``name``, and run it."""
        config = options.parse(
            self.config,
            argv,
            prog=f"bothways {name}",
            description=(self.config.__doc__ or "").strip(),
            positional=self.positional,
            recipes=self.recipes(),
            recipe_part=self.recipe_part,
            epilog=self.epilog,
        )
        config = with_decoded_texts(config)
        with explain_missing(f"bothways {name}"):
            return self.handler(_with_texts(config) if self.reads_texts else config)


@dataclass(frozen=True)
class VerbGroup:
    """A verb with several actions; the first is the default."""

    summary: str
    actions: Mapping[str, Verb]

    def run(self, name: str, argv: Sequence[str]) -> int:
        """Run ``bothways VERB [ACTION] ...``."""
        if argv and argv[0] in self.actions:
            return self.actions[argv[0]].run(f"{name} {argv[0]}", argv[1:])
        if argv and argv[0] in ("-h", "--help") and len(self.actions) > 1:
            return _print_lines(self._help(name))
        default = next(iter(self.actions))
        return self.actions[default].run(f"{name} {default}", argv)

    def _help(self, name: str) -> list[str]:
        default = next(iter(self.actions))
        return [
            f"usage: bothways {name} [ACTION] ...",
            "",
            f"actions (default: {default}):",
            *(f"  {action:<9} {verb.summary}" for action, verb in self.actions.items()),
            "",
            f"  bothways {name} ACTION --help lists an action's options",
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns:
        The exit status: 0, 1 after an error, 2 after an invalid command line, 130 after an
        interruption.
    """
    _limit_spinning()
    # Where fonts are kept, and what Ctrl-C cancels, is no news of ours.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="joblib.parallel")
    show_every_character()
    words = sys.argv[1:] if argv is None else argv
    try:
        try:
            with interrupted_by_signals(), _processes(words):
                status = _dispatch(words)
        except SystemExit as stop:  # help has been printed
            status = int(stop.code or 0)
        sys.stdout.flush()
    except OtherProcessError:
        return 1
    except BothwaysError as error:
        print(f"bothways: error: {visible(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        with contextlib.suppress(BrokenPipeError):  # Ctrl-C may have ended the reader, too
            print(
                "interrupted; what was saved is kept: run the same command again",
                file=sys.stderr,
            )
        return 130
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print(f"bothways: error: {_OUT_OF_MEMORY}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (head, less) has gone. Python flushes stdout once more on exit: redirect it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # not wrapped in a BothwaysError: name the file and the reason
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
            print(f"bothways: error: standard output: {error.strerror}.", file=sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if error.filename is None:
            raise
        name = visible(str(error.filename))
        print(f"bothways: error: {name}: {error.strerror}.", file=sys.stderr)
        return 1
    return status


def _limit_spinning() -> None:
    """Let OpenMP's threads sleep soon when they wait for one another, unless the environment says
    how they wait.

    By default they spin for milliseconds. Where other programs keep the cores busy, that takes the
    time from the very thread that is waited for: steps in two threads were over ten times slower
    (benchmarks/2026-11-22-spinning.md). The variable is read when torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _dispatch(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"bothways {version('bothways')}")
        return 0
    name = argv[0]
    later = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"
    if _several_processes() and name not in PARALLEL and later:
        raise OtherProcessError("the first process says what is wrong")
    if name not in VERBS:
        close = nearest(name, list(VERBS))
        hint = f"did you mean '{close}'?" if close else "see 'bothways --help'."
        raise UsageError(f"unknown verb {name!r}; {hint}")
    if _several_processes() and name not in PARALLEL:
        raise UsageError(f"{name} runs in one process; start it without torchrun.")
    return VERBS[name].run(name, argv[1:])


def _several_processes() -> bool:
    """Whether ``torchrun`` has started several processes."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def _processes(argv: Sequence[str]) -> contextlib.AbstractContextManager[object]:
    """Joins the processes of a ``torchrun`` for the verbs that run in several, so that only one of
    them prints an error."""
    if not _several_processes() or not set(argv[:1]) & set(PARALLEL):
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
    lines += [
        "",
        "  bothways VERB --help lists a verb's options; bothways --version prints the version.",
    ]
    return "\n".join([*lines, "", EXAMPLES])


# ----------------------------------------------------------------------------------------- handlers


def _print_lines(result: str | Sequence[str]) -> int:
    text = result if isinstance(result, str) else "\n".join(result)
    print(visible(text) if sys.stdout.isatty() else text)  # to a program as it is
    return 0


@dataclass(frozen=True)
class Call:
    """A handler that imports a function, calls it with the options and shows its result."""

    module: str
    """Its module, below ``bothways``."""
    function: str
    show: Callable[[Any], int] = _print_lines

    def load(self) -> Callable[[Any], Any]:
        """The function, imported."""
        function: Callable[[Any], Any] = getattr(
            import_module(f"bothways.{self.module}"), self.function
        )
        return function

    def __call__(self, config: Any) -> int:
        return self.show(self.load()(config))


def _print_nothing(_: object) -> int:
    return 0


def _learn_vocabulary(config: VocabularyConfig) -> int:
    from bothways.tokenization.build import build_vocabulary

    with progress_of_stages() as progress:
        report = build_vocabulary(config, progress=progress)
    return _print_report(report)


def _build_corpus(config: CorpusConfig) -> int:
    from bothways.corpus.build import build_corpus
    from bothways.corpus.report import short_report

    with progress_of("encoding", in_bytes=True) as progress:
        report = build_corpus(config, progress=progress, say=print_note)
    return _print_report(short_report(report))


def _show_tasks(config: TasksConfig) -> int:
    from bothways.tasks.catalogue import show_tasks

    return _print_lines(show_tasks(config.name))


def _diagnose(config: DoctorConfig) -> int:
    from bothways.api.doctor import diagnose

    problems = diagnose(config.folder)
    _print_lines(visible("\n".join(problems)) or f"{config.folder}: sound")
    return 1 if problems else 0


def _print_export(report: Any) -> int:
    _print_lines(report.lines())
    return 1 if report.int8 and not report.int8.holds else 0


def _recipes(example: str) -> str:
    verb = example.split()[0]
    lines = [
        "recipes that come with bothways:",
        list_of_recipes(shipped_recipes()),
        "",
        f"  bothways {example}   uses one of them",
        f"  bothways {verb} NAME --print_config   prints its options, to copy and change",
    ]
    return "\n".join(lines)


def _declared_tasks() -> Mapping[str, Path]:
    from bothways.tasks.catalogue import declared

    return declared()


def _declared_tagging_tasks() -> Mapping[str, Path]:
    from bothways.tasks.catalogue import declared, task_recipe

    return {n: path for n, path in declared().items() if task_recipe(n).task.kind == "tagging"}


def _print_forecast(forecast: Any) -> int:
    from bothways.experiments.plan import tables

    console = text_console(highlight=False)
    for table in tables(forecast):
        console.print(table, markup=False, soft_wrap=isinstance(table, str))
    return 0


def _print_texts(lines: Iterable[Text]) -> int:
    console = text_console(highlight=False)
    for line in lines:
        console.print(line, soft_wrap=not console.is_terminal)
    return 0


def _print_report(report: Mapping[str, Any]) -> int:
    print_report(report)
    return 0


def _with_texts(config: Any) -> Any:
    """The options with texts from standard input, if '-' or nothing is given for them."""
    if config.texts not in ((), ("-",)) or getattr(config, "file", None):
        return config
    if not config.texts and sys.stdin.isatty():
        raise UsageError("no text given; write texts after the model, or '-' to read lines.")
    from bothways.io.text import decode_texts

    stdin = decode_texts(sys.stdin.buffer, "standard input")
    lines = [line for _, line in stdin]
    if not lines:
        raise InputError("no text given: standard input is empty.")
    return dataclasses.replace(config, texts=tuple(lines))


# -------------------------------------------------------------------------------------------- verbs

VERBS: dict[str, Verb | VerbGroup] = {
    "demo": Verb(
        "go from raw text to a fine-tuned BERT on this machine, in minutes",
        DemoConfig,
        Call("experiments.demo", "demo"),
    ),
    "vocab": VerbGroup(
        "learn a vocabulary from text files, or extend one",
        {
            "learn": Verb(
                "learn a vocabulary from text files",
                VocabularyConfig,
                _learn_vocabulary,
            ),
            "extend": Verb(
                "add words to a vocabulary, and embeddings to its model",
                ExtendConfig,
                Call("model.growth", "extend", _print_report),
            ),
        },
    ),
    "corpus": VerbGroup(
        "tokenize text files into a corpus, or show its training instances",
        {
            "build": Verb("tokenize text files into a corpus", CorpusConfig, _build_corpus),
            "show": Verb(
                "print training instances as pre-training would see them",
                ShowConfig,
                Call("pretraining.show", "show_instances", _print_texts),
                ("folder",),
            ),
        },
    ),
    "pretrain": Verb(
        "train an encoder with masked LM and next sentence prediction",
        PretrainConfig,
        Call("pretraining.pretrain", "pretrain", _print_nothing),
        recipes=shipped_recipes,
        epilog=lambda: _recipes("pretrain NAME --corpus CORPUS --run RUN"),
    ),
    "plan": Verb(
        "estimate the memory, disk and hours that a pre-training run needs",
        PlanConfig,
        Call("experiments.plan", "plan", _print_forecast),
        recipes=shipped_recipes,
        epilog=lambda: _recipes("plan NAME --corpus CORPUS"),
    ),
    "fill-mask": Verb(
        "predict the tokens hidden by [MASK]",
        FillMaskConfig,
        Call("api.verbs", "fill_mask"),
        ("model", "texts"),
        reads_texts=True,
    ),
    "next-sentence": Verb(
        "predict whether one text follows another",
        NextSentenceConfig,
        Call("api.verbs", "next_sentence"),
        ("model", "text_a", "text_b"),
    ),
    "finetune": Verb(
        "fine-tune an encoder on a labelled task",
        FinetuneConfig,
        Call("finetuning.finetune", "finetune", lambda result: _print_lines(result.table())),
        recipes=_declared_tasks,
    ),
    "tasks": Verb(
        "list the declared tasks, or print one as a starting point for your own",
        TasksConfig,
        _show_tasks,
        ("name",),
    ),
    "glue": Verb(
        "fine-tune on several declared tasks, with a table of all results",
        GlueConfig,
        Call("finetuning.glue", "glue", lambda result: _print_lines(result.text())),
    ),
    "split": Verb(
        "split a labelled file into training and development, by a hash of its text",
        SplitConfig,
        Call("tasks.split", "split"),
        ("file",),
    ),
    "features": Verb(
        "train a BiLSTM tagger on features from a frozen encoder",
        FeaturesConfig,
        Call(
            "finetuning.features",
            "tag_by_features",
            lambda result: _print_lines(result.table()),
        ),
        recipes=_declared_tagging_tasks,
        recipe_part="task",
    ),
    "reproduce": Verb(
        "reproduce a table of the BERT paper, next to the published figures",
        ReproduceConfig,
        Call("experiments.reproduce.run", "reproduce"),
        ("name",),
    ),
    "evaluate": Verb(
        "evaluate a model on labelled data or on a corpus",
        EvaluateConfig,
        Call("api.verbs", "evaluate"),
        ("model", "file"),
    ),
    "predict": Verb(
        "label texts with a fine-tuned model",
        PredictConfig,
        Call("api.verbs", "predict"),
        ("model", "texts"),
        reads_texts=True,
    ),
    "tag": Verb(
        "find entities, or tag words, with a fine-tuned model",
        PredictConfig,
        Call("api.verbs", "tag"),
        ("model", "texts"),
        reads_texts=True,
    ),
    "choose": Verb(
        "predict which of several texts continues another",
        ChooseConfig,
        Call("api.verbs", "choose"),
        ("model", "context", "choices"),
    ),
    "rank": Verb(
        "order texts by how well they answer a query",
        RankConfig,
        Call("api.verbs", "rank"),
        ("model", "query", "texts"),
        reads_texts=True,
    ),
    "answer": Verb(
        "answer a question with a span of a text",
        AnswerConfig,
        Call("api.verbs", "answer"),
        ("model",),
    ),
    "score": Verb(
        "score a prediction file against SQuAD-style answers",
        ScoreConfig,
        Call("api.verbs", "score"),
        ("predictions", "data"),
    ),
    "embed": Verb(
        "compute vectors of texts",
        EmbedConfig,
        Call("api.verbs", "embed"),
        ("model", "texts"),
        reads_texts=True,
    ),
    "inspect": Verb(
        "show what a model does with a text: tokens, attention, each token's share",
        InspectConfig,
        Call("api.verbs", "inspect"),
        ("model", "text"),
    ),
    "serve": Verb(
        "serve models over HTTP",
        ServeConfig,
        Call("serving.server", "serve", int),
        ("models",),
    ),
    "convert": Verb(
        "convert a model, for example from transformers, to a model folder",
        ConvertConfig,
        Call("api.verbs", "convert"),
        ("source", "out"),
    ),
    "export": Verb(
        "write a model as ONNX graphs, for other programs, in 8 bits too",
        ExportConfig,
        Call("exporting.export", "export_model", _print_export),
        ("model", "out"),
    ),
    "bench": VerbGroup(
        "measure the speed of training and of inference against others",
        {
            "train": Verb(
                "time a pre-training step against transformers",
                BenchTrainConfig,
                Call("experiments.bench", "bench_train", _print_nothing),
            ),
            "infer": Verb(
                "time vectors of texts against sentence-transformers and others",
                BenchInferConfig,
                Call("experiments.bench_infer", "bench_infer", _print_nothing),
                ("model",),
            ),
        },
    ),
    "doctor": Verb(
        "check a model, run or corpus folder for damage",
        DoctorConfig,
        _diagnose,
        ("folder",),
    ),
}

PARALLEL = ("pretrain",)
"""The verbs that divide their work among the processes of ``torchrun``."""


if __name__ == "__main__":
    sys.exit(main())
