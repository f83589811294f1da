"""The verbs of the program: what each does, its options, examples, and the function that it calls.

That function's module is imported when the verb runs, and its options when they are parsed, so that
``--help`` answers at once: these modules must never import torch, directly or not.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.cli.after import (
    after_corpus,
    after_finetuning,
    after_folder,
    after_plan,
    after_pretraining,
    after_vocabulary,
    is_first_process,
)
from bothways.config.fields import options_of
from bothways.config.parsing import CommandLine, UsageError
from bothways.config.recipes import list_of_recipes, recipes_with, shipped_recipes
from bothways.errors import InputError, explain_missing
from bothways.io.streams import visible
from bothways.io.terminal import (
    print_note,
    print_report,
    progress_of,
    progress_of_stages,
    shown,
    text_console,
)

if TYPE_CHECKING:
    from rich.text import Text

    from bothways.corpus.options import CorpusConfig
    from bothways.finetuning.options import FinetuneConfig
    from bothways.pretraining.options import PretrainConfig
    from bothways.runtime.options import InfoConfig
    from bothways.tasks.options import TasksConfig
    from bothways.tokenization.options import VocabularyConfig


_WORDS: ContextVar[tuple[str, ...]] = ContextVar("words", default=())
"""The words after the verb that runs."""


@dataclass(frozen=True)
class Verb:
    """A verb of the command line."""

    summary: str
    """One line for ``bothways --help``."""
    place: str
    """The class of its options, as ``module:Class`` below ``bothways``."""
    handler: Callable[[Any], int | None]
    """Called with the options; returns the exit status, or nothing if all went well."""
    positional: tuple[str, ...] = ()
    """Options that are given by position."""
    _: dataclasses.KW_ONLY
    examples: tuple[str, ...]
    """Command lines, of which the first is shown where something is missing."""
    reads_texts: bool = False
    """Whether ``texts`` come from standard input if neither they nor a file are given."""
    recipes: Callable[[], Mapping[str, Path]] = dict
    """Recipes that can be named without their path."""
    recipe_part: str = ""
    """The group of options that is read of these, if they are recipes of another verb."""
    chosen_recipe: Callable[[Mapping[str, Any]], str | None] | None = None
    """Gives the recipe where none is named, by the options that are given."""
    epilog: Callable[[], str] = str
    """Lines below the options in its help."""
    after: Callable[[Any], None] | None = None
    """Called with the options when the verb has ended well: says what comes next."""

    @property
    def config(self) -> type[Any]:
        """The class of its options, imported."""
        module, _, name = self.place.partition(":")
        found: type[Any] = getattr(import_module(f"bothways.{module}"), name)
        return found

    def words(self, name: str) -> CommandLine:
        """How the words after the verb, called ``name``, are read."""
        return CommandLine(
            self.config,
            f"bothways {name}",
            self.positional,
            self.recipes(),
            self.recipe_part,
            self.chosen_recipe,
            self.examples,
            self.epilog,
        )

    def run(self, name: str, argv: Sequence[str]) -> int:
        """Parse the words after the verb, called ``name``, and run it."""
        config = self.words(name).parse(argv)
        _WORDS.set(tuple(argv))
        with explain_missing(f"bothways {name}"):
            status = self.handler(_with_texts(config) if self.reads_texts else config) or 0
        if self.after is not None and not status:
            self.after(config)
        return status


@dataclass(frozen=True)
class VerbGroup:
    """A verb with several actions; the first is the default."""

    summary: str
    actions: Mapping[str, Verb]

    def run(self, name: str, argv: Sequence[str]) -> int:
        """Run ``bothways VERB [ACTION] ...``."""
        if argv and argv[0] in self.actions:
            return self.actions[argv[0]].run(f"{name} {argv[0]}", argv[1:])
        default = next(iter(self.actions))
        if argv and argv[0] in ("-h", "--help") and len(argv) == 1:
            pages = [verb.words(f"{name} {action}").help() for action, verb in self.actions.items()]
            print("\n\n".join([*pages, f"without an action, {default} is meant"]))
            return 0
        return self.actions[default].run(f"{name} {default}", argv)


# ----------------------------------------------------------------------------------------- handlers


def _print_lines(result: str | Sequence[str]) -> None:
    text = result if isinstance(result, str) else "\n".join(result)
    print(visible(text) if sys.stdout.isatty() else text)  # to a program as it is


@dataclass(frozen=True)
class Call:
    """A handler that imports a function, calls it with the options and shows its result."""

    module: str
    """Its module, below ``bothways``."""
    function: str
    show: Callable[[Any], int | None] = _print_lines

    def load(self) -> Callable[[Any], Any]:
        """The function, imported."""
        function: Callable[[Any], Any] = getattr(
            import_module(f"bothways.{self.module}"), self.function
        )
        return function

    def __call__(self, config: Any) -> int | None:
        return self.show(self.load()(config))


def _learn_vocabulary(config: VocabularyConfig) -> None:
    from bothways.tokenization.build import about_text, build_vocabulary

    with progress_of_stages() as progress:
        report = build_vocabulary(config, progress=progress)
    print_report(report)
    for note in about_text(report):
        print_note(note)


def _build_corpus(config: CorpusConfig) -> None:
    from bothways.corpus.build import build_corpus
    from bothways.corpus.report import short_report

    with progress_of("encoding") as progress:
        report = build_corpus(config, progress=progress, say=print_note)
    print_report(short_report(report))


def _chosen_recipe(given: Mapping[str, Any]) -> str | None:
    """The recipe of a run in minutes for which nothing is said but where, how long and with which
    seed: the default options are the paper's, for days."""
    from bothways.api.calls import recipe_for  # slow import
    from bothways.pretraining.options import PretrainConfig

    if given.get("minutes") is None or not given.get("corpus"):
        return None
    options = options_of(PretrainConfig)
    plain = {"minutes", "seed"}
    if any(option.effect == "recipe" and option.name in {*given} - plain for option in options):
        return None
    with shown(is_first_process()):
        return recipe_for(given["corpus"], given["minutes"], given.get("run"))


def _pretrain(config: PretrainConfig) -> None:
    from bothways.api.calls import with_run_folder
    from bothways.pretraining.pretrain import pretrain

    with shown(is_first_process()):
        config = with_run_folder(config)
    after_pretraining(pretrain(config))


def _finetune(config: FinetuneConfig) -> None:
    from bothways.api.calls import with_run_folder
    from bothways.finetuning.finetune import finetune

    config = with_run_folder(config)
    result = finetune(config)
    _print_lines(result.table())
    after_finetuning(config, result)


def _show_tasks(config: TasksConfig) -> None:
    from bothways.tasks.catalogue import show_tasks

    _print_lines(show_tasks(config.name))


def _info(config: InfoConfig) -> int:
    if not config.check:
        from bothways.api.info import info

        _print_lines(info(config.folder).lines())
        return 0
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
        f"  bothways {verb} NAME --print-config   prints its options, to copy and change",
    ]
    return "\n".join(lines)


def _declared_tasks() -> Mapping[str, Path]:
    from bothways.tasks.catalogue import declared

    return declared()


def _declared_tagging_tasks() -> Mapping[str, Path]:
    from bothways.tasks.catalogue import declared

    return recipes_with("kind: tagging", declared())


def _print_texts(lines: Iterable[Text]) -> None:
    console = text_console(highlight=False)
    for line in lines:
        console.print(line, soft_wrap=not console.is_terminal)


def _with_texts(config: Any) -> Any:
    """The options with texts from standard input, if '-' or nothing is given for them."""
    others = [getattr(config, name, None) for name in ("file", "question", "choices")]
    if config.texts not in ((), ("-",)) or any(others):
        if hasattr(config, "file"):
            for text in config.texts:
                if len(text.encode(errors="replace")) < 256 and Path(text).is_file():
                    print_note(f"{text!r} is read as a text; --file {text} reads it")
        return config
    model = str(getattr(config, "model", ""))
    if not config.texts and " " in model and not Path(model).exists():
        alone = type(config).__dataclass_fields__["model"].default is not dataclasses.MISSING
        raise UsageError(
            f"{model[:40]!r} is read as the model, and there is no such folder; write the model "
            f"before the texts{', or a text with [MASK] in it alone' if alone else ''}."
        )
    if not config.texts and sys.stdin.isatty():
        raise UsageError("no text given; write texts after the model, or '-' to read lines.")
    from bothways.io.diagnostics import format_of_lines
    from bothways.io.text import decode_texts

    stdin = decode_texts(sys.stdin.buffer, "standard input")
    lines = [line for _, line in stdin]
    if not lines:
        read = f" ({model!r} is read as the model.)" if model and not config.texts else ""
        raise InputError(f"no text given: standard input is empty.{read}")
    if (found := format_of_lines(lines)) is not None:
        if found == "a table" and hasattr(config, "file"):
            raise InputError("standard input is a table; save it as a file and give --file NAME.")
        print_note(f"standard input looks like {found}, and each line is read as a text")
    return dataclasses.replace(config, texts=tuple(lines))


# -------------------------------------------------------------------------------------------- verbs

_USE: dict[str, Verb | VerbGroup] = {
    "predict": Verb(
        "label or tag texts, answer questions, or choose, with a fine-tuned model",
        "runtime.options:PredictConfig",
        Call("api.verbs", "predict"),
        ("model", "texts"),
        reads_texts=True,
        examples=(
            "bothways predict runs/reviews/seed-0/model 'A fine story.' 'A dull one.'",
            "bothways predict runs/ner/seed-0/model --file ner/dev.conll --out tagged.conll",
            "bothways predict runs/squad/seed-0/model --question 'Who came?' --context 'Ada came.'",
            "bothways predict runs/swag/seed-0/model --context 'It was' --choices 'cold.' 'run.'",
        ),
    ),
    "rank": Verb(
        "order texts by how well they answer a query",
        "runtime.options:RankConfig",
        Call("api.verbs", "rank"),
        ("model", "query", "texts"),
        reads_texts=True,
        examples=(
            "bothways rank runs/similar/seed-0/model 'opening hours' 'Closed.' 'Open from nine.'",
            "bothways rank runs/similar/seed-0/model 'a boat' 'A ship.' 'A car.' --top 1",
        ),
    ),
    "fill-mask": Verb(
        "predict the words that [MASK] hides",
        "runtime.options:FillMaskConfig",
        Call("api.verbs", "fill_mask"),
        ("model", "texts"),
        reads_texts=True,
        examples=(
            "bothways fill-mask 'He went to the [MASK] and sat down.'",
            "bothways fill-mask runs/own/model 'The [MASK] was old.' --top 3",
        ),
    ),
    "next-sentence": Verb(
        "predict whether one text follows another",
        "runtime.options:NextSentenceConfig",
        Call("api.verbs", "next_sentence"),
        ("model", "text", "text_b"),
        examples=(
            "bothways next-sentence mini-en 'The door was open.' 'She went in.'",
            "bothways next-sentence runs/own/model 'The door was open.' 'Fish can swim.'",
        ),
    ),
    "embed": Verb(
        "compute vectors of texts",
        "runtime.options:EmbedConfig",
        Call("api.verbs", "embed"),
        ("model", "texts"),
        reads_texts=True,
        examples=(
            "bothways embed mini-en 'A text.' 'Another one.' --out vectors.npz",
            "bothways embed mini-en --file reviews/test.tsv --text sentence --out vectors.jsonl",
        ),
    ),
    "inspect": Verb(
        "show what a model does with a text: tokens, attention, each token's share",
        "runtime.options:InspectConfig",
        Call("api.verbs", "inspect"),
        ("model", "text"),
        examples=(
            "bothways inspect mini-en 'The door was open.' --text-b 'She went in.' --out page.html",
            "bothways inspect runs/reviews/seed-0/model 'A fine film.' --attribute occlusion",
        ),
    ),
    "tokenize": Verb(
        "show the pieces of a vocabulary that texts are split into",
        "runtime.options:TokenizeConfig",
        Call("api.tokens", "tokenize", _print_texts),
        ("model", "texts"),
        reads_texts=True,
        examples=(
            "bothways tokenize mini-en 'Tokenization splits words.'",
            "bothways tokenize vocabulary 'The baker sold bread.' 'It was good.'",
        ),
    ),
    "evaluate": Verb(
        "measure a model on labelled data, or on a corpus",
        "runtime.options:EvaluateConfig",
        Call("api.verbs", "evaluate"),
        ("model", "file"),
        examples=(
            "bothways evaluate runs/reviews/seed-0/model reviews/dev.tsv",
            "bothways evaluate runs/own/model corpus",
            "bothways evaluate squad/dev.json --predictions runs/squad/seed-0/dev_predictions.json",
        ),
    ),
    "serve": Verb(
        "serve models over HTTP",
        "serving.options:ServeConfig",
        Call("serving.server", "serve", int),
        ("models",),
        examples=(
            "bothways serve mini-en",
            "bothways serve reviews=runs/reviews/seed-0/model --port 8080",
        ),
    ),
    "export": Verb(
        "write a model as ONNX graphs, for other programs, in 8 bits too",
        "exporting.options:ExportConfig",
        Call("exporting.export", "export_model", _print_export),
        ("model", "out"),
        after=after_folder,
        examples=(
            "bothways export runs/reviews/seed-0/model exported",
            "bothways export runs/reviews/seed-0/model small --int8 --gate reviews/dev.tsv",
        ),
    ),
    "convert": Verb(
        "convert a model, for example from transformers, to a model folder",
        "runtime.options:ConvertConfig",
        Call("api.verbs", "convert"),
        ("source", "out"),
        after=after_folder,
        examples=(
            "bothways convert sentence-transformers/all-MiniLM-L6-v2 minilm",
            "bothways convert their-encoder encoder --tokenizer their-encoder/vocab.txt",
        ),
    ),
    "info": Verb(
        "say what a folder is, and what can be done with it",
        "runtime.options:InfoConfig",
        _info,
        ("folder",),
        examples=(
            "bothways info runs/reviews",
            "bothways info runs/own/model --check",
        ),
    ),
}
_TRAIN: dict[str, Verb | VerbGroup] = {
    "demo": Verb(
        "go from raw text to a fine-tuned BERT on this machine, in minutes",
        "experiments.options:DemoConfig",
        Call("experiments.demo", "demo"),
        examples=(
            "bothways demo",
            "bothways demo --minutes 15 --out demo-15",
        ),
    ),
    "finetune": Verb(
        "train an encoder on texts with labels",
        "finetuning.options:FinetuneConfig",
        _finetune,
        recipes=_declared_tasks,
        examples=(
            "bothways finetune --train reviews/train.tsv --dev reviews/dev.tsv --run runs/reviews",
            "bothways finetune --train ner/train.conll --dev 0.2 --kind ner --run runs/ner",
            "bothways finetune mrpc --data glue --model runs/own/model --run runs/mrpc",
        ),
    ),
    "tasks": Verb(
        "list data sets that `finetune` knows by name, or print one to start your own from",
        "tasks.options:TasksConfig",
        _show_tasks,
        ("name",),
        examples=(
            "bothways tasks",
            "bothways tasks mrpc",
        ),
    ),
    "vocab": VerbGroup(
        "learn a vocabulary from text files, or extend one",
        {
            "learn": Verb(
                "learn a vocabulary from text files",
                "tokenization.options:VocabularyConfig",
                _learn_vocabulary,
                after=after_vocabulary,
                examples=(
                    "bothways vocab --files texts --size 16384 --out vocabulary",
                    "bothways vocab --files 'texts/*.txt' --lowercase false --out vocabulary-cased",
                ),
            ),
            "extend": Verb(
                "add words to a vocabulary, and embeddings to its model",
                "tokenization.options:ExtendConfig",
                Call("model.growth", "extend", print_report),
                after=after_folder,
                examples=(
                    "bothways vocab extend --source mini-en --words words.txt --out mini-en-words",
                    "bothways vocab extend --source mini-en --files texts --out mini-en-texts",
                ),
            ),
        },
    ),
    "corpus": VerbGroup(
        "prepare text files for pre-training, or show what it will see",
        {
            "build": Verb(
                "tokenize text files into a corpus",
                "corpus.options:CorpusConfig",
                _build_corpus,
                after=after_corpus,
                examples=(
                    "bothways corpus --files texts --tokenizer vocabulary --out corpus",
                    "bothways corpus --files texts --tokenizer mini-en --language en --out en",
                ),
            ),
            "show": Verb(
                "print training examples as pre-training will see them",
                "pretraining.options:ShowConfig",
                Call("pretraining.show", "show_instances", _print_texts),
                ("folder",),
                examples=(
                    "bothways corpus show corpus",
                    "bothways corpus show corpus --instances 2 --masking-kind words",
                ),
            ),
        },
    ),
    "plan": Verb(
        "estimate the memory, disk and hours that a pre-training run needs",
        "experiments.options:PlanConfig",
        Call("experiments.plan", "plan", lambda forecast: print(repr(forecast))),
        recipes=shipped_recipes,
        after=lambda _: after_plan(_WORDS.get()),
        chosen_recipe=_chosen_recipe,
        epilog=lambda: _recipes("plan NAME --corpus CORPUS"),
        examples=(
            "bothways plan mini --corpus corpus",
            "bothways plan --size base --steps 100000",
        ),
    ),
    "pretrain": Verb(
        "train an encoder on a corpus of raw text",
        "pretraining.options:PretrainConfig",
        _pretrain,
        recipes=shipped_recipes,
        chosen_recipe=_chosen_recipe,
        epilog=lambda: _recipes("pretrain NAME --corpus CORPUS --run RUN"),
        examples=(
            "bothways pretrain --corpus corpus --minutes 10",
            "bothways pretrain mini --corpus corpus --steps 6000 --run runs/own",
        ),
    ),
}
_STUDY: dict[str, Verb | VerbGroup] = {
    "reproduce": VerbGroup(
        "reproduce a table of the BERT paper, next to the published figures",
        {
            "table": Verb(
                "an ablation of the paper, or a further comparison",
                "experiments.options:ReproduceConfig",
                Call("experiments.reproduce.run", "reproduce"),
                ("name",),
                examples=(
                    "bothways reproduce table5 --plan",
                    "bothways reproduce masking-rate --recipe tiny --set steps=2000 --plan",
                ),
            ),
            "glue": Verb(
                "fine-tune on several data sets, with a table of all results",
                "finetuning.options:GlueConfig",
                Call("finetuning.glue", "glue", lambda result: _print_lines(result.text())),
                examples=(
                    "bothways reproduce glue --data glue --run runs/glue",
                    "bothways reproduce glue --data glue --run runs/glue --tasks mrpc --seeds 0 1",
                ),
            ),
            "features": Verb(
                "train a tagger of words on the layers of an encoder that stays as it is",
                "finetuning.options:FeaturesConfig",
                Call(
                    "finetuning.features",
                    "tag_by_features",
                    lambda result: _print_lines(result.table()),
                ),
                recipes=_declared_tagging_tasks,
                recipe_part="task",
                examples=(
                    "bothways reproduce features --train ner/train.conll --dev ner/dev.conll",
                    "bothways reproduce features conll2003 --data conll2003 --run runs/conll",
                ),
            ),
        },
    ),
}
GROUPS = {"use a model": _USE, "train": _TRAIN, "study": _STUDY}
"""The verbs by what they are for, as the help lists them."""
VERBS = {name: verb for group in GROUPS.values() for name, verb in group.items()}
PARALLEL = ("pretrain",)
"""The verbs that divide their work among the processes of ``torchrun``."""
