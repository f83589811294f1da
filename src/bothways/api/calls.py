"""The verbs as functions: plain keywords with the names of the options, and data from memory.

Each takes the verb's options by name (``epochs=3``), or the verb's config instead, as a recipe
gives it. Paths, objects of bothways, data frames, lists and data sets are taken wherever they make
sense; what is not is refused at once, with the name of the argument.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from bothways.api import rows
from bothways.api.corpus import Corpus, store_of
from bothways.api.model import Model, folder_of, load
from bothways.config.fields import alternatives, changed, digest, recipe_fields, to_dict
from bothways.config.parsing import load_recipe, options_from
from bothways.config.recipes import list_of_recipes, shipped_recipes
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import Manifest
from bothways.errors import (
    ConfigError,
    InputError,
    OtherRunError,
    StoreError,
    explain_missing,
    type_of,
)
from bothways.exporting.options import ExportConfig
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.results import FinetuneResult
from bothways.io.files import sha256
from bothways.io.hub import model_folder
from bothways.io.json_files import read_json_file
from bothways.io.processes import uninterrupted
from bothways.io.run_folders import RUN_FILE
from bothways.io.terminal import (
    line_printer,
    print_note,
    progress_of,
    progress_of_stages,
    shown,
)
from bothways.pretraining.options import PretrainConfig
from bothways.runtime.options import ConvertConfig
from bothways.shipped import DEFAULT
from bothways.tasks.answers import score_file
from bothways.tasks.catalogue import recipe_of
from bothways.tasks.options import share
from bothways.tokenization.options import ExtendConfig, LearningOptions, VocabularyConfig
from bothways.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bothways.exporting.export import ExportReport
    from bothways.pretraining.pretrain import PretrainResult

T = TypeVar("T")

RUNS, CORPORA = "runs", "corpora"
"""Folders, where the program was started, for runs and corpora that are given no folder."""
_DATA = "data"
"""Folder in a run folder for examples from memory."""
_MOST_TINY, _FEW_TOKENS = 10.0, 1_000_000
"""Minutes, and tokens of a corpus, up to which a pre-training without a recipe trains a tiny
encoder."""


@contextmanager
def _call(verbose: bool) -> Iterator[None]:
    """A call of a verb from Python, which shows lines if ``verbose``."""
    with shown(verbose), explain_missing("this call"):
        yield


def call_options(
    cls: type[T], config: Any, given: Mapping[str, Any], recipe: str | Path | None = None
) -> T:
    """The options of a call: a config as it is, or what is given by keyword.

    Args:
        cls: the verb's class.
        config: the first argument, if it may be a config.
        given: the keywords; those that are None are not given.
        recipe: one that they are added to.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    if isinstance(config, cls):
        if chosen:
            raise ConfigError(
                f"{', '.join(chosen)}: the options are in the {cls.__name__}; change them there "
                "(dataclasses.replace), or give all by keyword."
            )
        return config
    return options_from(cls, chosen, recipe)


# ------------------------------------------------------------------------ vocabularies and corpora


def build_vocabulary(
    files: Any = None,
    out: str | Path | None = None,
    *,
    progress: Callable[[str, int, int], None] | None = None,
    verbose: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Learn a vocabulary from files and write it to a folder, with a report.

    Args:
        files: files, folders or globs; or a :class:`VocabularyConfig`.
        out: the folder.
        progress: called with a stage, what is done of it, and all.
        verbose: whether progress is shown.
        **options: those of `bothways vocab learn`, by name.

    Returns:
        The report, which is also in ``vocabulary-report.json``.

    Raises:
        ConfigError, InputError, DiskError: see
            :func:`bothways.tokenization.build.build_vocabulary`.
    """
    from bothways.tokenization.build import build_vocabulary as build

    named = None if isinstance(files, VocabularyConfig) else files
    with _call(verbose):
        config = call_options(VocabularyConfig, files, {"files": named, "out": out, **options})
        if progress is not None:
            return build(config, progress=progress)
        with progress_of_stages() as bars:
            return build(config, progress=bars)


def learn_vocabulary(
    texts: Any,
    *,
    size: int,
    out: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    verbose: bool = True,
    **options: Any,
) -> Tokenizer:
    """Learn a vocabulary from files or from texts in memory.

    Args:
        texts: a file, folder or glob, or a list of such; or texts: a list, a column of a data
            frame, anything that gives strings.
        size: number of pieces, including the special ones. A small text may give fewer: see
            ``len`` of the result.
        out: folder to write it to; it can be written later (:meth:`Tokenizer.save`).
        progress: called from time to time with the number of pieces so far, and ``size``.
        verbose: whether progress is shown, of files.
        **options: those of `bothways vocab learn`, by name. Of texts, the default is one process
            (``workers=1``).

    Raises:
        InputError: the text has no words, or is not Unicode.
        ConfigError: ``size`` is too small for the special pieces and the alphabet, or options are
            out of range or incompatible.
    """
    files = _files(texts)
    if files is None:
        from bothways.tokenization.learning import learn

        given = {"size": size, "workers": 1, **options}
        if texts is None:
            raise ConfigError("texts is None; give a file, a folder or a list of texts.")
        lines = texts if isinstance(texts, Iterator) else rows.listed(texts, "texts")
        checked = rows.checked_lines(lines, "texts")
        tokenizer = learn(checked, options_from(LearningOptions, given), progress).tokenizer
        if out is not None:
            tokenizer.save(out)
        return tokenizer
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(out) if out is not None else Path(temporary) / "vocabulary"
        build_vocabulary(files, folder, size=size, verbose=verbose, **options)
        return Tokenizer.from_folder(folder)


def extend_vocabulary(
    source: Any, out: str | Path, *, words: Any = None, verbose: bool = True, **options: Any
) -> dict[str, Any]:
    """Add whole words to a WordPiece vocabulary, and embeddings for them to its model.

    Args:
        source: a tokenizer or model: its folder, the name of a bundled model, or :class:`Model`.
        out: folder to write.
        words: the words, as a list or a file with one on each line.
        verbose: whether lines are shown.
        **options: those of `bothways vocab extend`: ``files``, ``most``, ``min_count`` ...

    Returns:
        The report.

    Raises:
        ConfigError, InputError, ModelError, DiskError: see :func:`bothways.model.growth.extend`.
    """
    with _call(verbose), _words_in_file(words) as path:
        given = {"source": folder_of(source, "source"), "out": out, "words": path, **options}
        config = call_options(ExtendConfig, None, given)
        from bothways.model.growth import extend

        return extend(config)


def build_corpus(
    files: Any = None,
    tokenizer: Any = None,
    out: str | Path | None = None,
    *,
    verbose: bool = True,
    **options: Any,
) -> Corpus:
    """Tokenize texts into a corpus folder. The same call continues a build that was interrupted.

    Args:
        files: files, folders or globs; or documents in memory: a list of texts, a column of a data
            frame; or a :class:`CorpusConfig`.
        tokenizer: a :class:`Tokenizer`, or the folder of one or of a model.
        out: the folder. Default: one in ``corpora``, named after the texts and the options.
        verbose: whether progress and notes are shown.
        **options: those of `bothways corpus build`, by name.

    Returns:
        The corpus, with its ``report``.

    Raises:
        ConfigError, InputError, ModelError, StoreError, DiskError: see
            :func:`bothways.corpus.build.build_corpus`.
    """
    from bothways.corpus.build import build_corpus as build

    with _call(verbose), tempfile.TemporaryDirectory() as temporary:
        if isinstance(files, CorpusConfig):
            config = call_options(
                CorpusConfig, files, {"tokenizer": tokenizer, "out": out, **options}
            )
        else:
            if files is None or tokenizer is None:
                raise ConfigError(f"{'files' if files is None else 'tokenizer'} not given.")
            paths = _files(files)
            if paths is None:
                lines = [*rows.checked_lines(rows.listed(files, "files"), "files")]
                if not lines:
                    raise InputError("files is empty; give files, or one or more texts.")
                content = rows.as_parquet(rows.table_of({"text": lines}, "files"))
                paths = (rows.write_content(Path(temporary), "documents.parquet", content),)
                options = {"text_field": "text", **options}
            if isinstance(tokenizer, Tokenizer):
                folder = Path(temporary) / "tokenizer"
                tokenizer.save(folder)
            else:
                folder = model_folder(folder_of(tokenizer, "tokenizer"))
            given = {"files": paths, "tokenizer": folder, "out": out or "", **options}
            config = call_options(CorpusConfig, None, given)
            if out is None:
                config = replace(config, out=_chosen_corpus(config, paths))
        with progress_of("encoding") as progress:
            build(config, progress=progress, say=print_note)
        return Corpus(config.out)


def _chosen_corpus(config: CorpusConfig, paths: Sequence[str]) -> str:
    """A folder that is named after the texts and the options."""
    options = {n: v for n, v in to_dict(config).items() if n not in ("files", "tokenizer", "out")}
    name = digest([options, Tokenizer.from_folder(config.tokenizer).fingerprint, _contents(paths)])
    folder = Path(CORPORA) / name[:8]
    line_printer()(f"corpus folder: {folder}")
    return str(folder)


# -------------------------------------------------------------------------------------- trainings


def pretrain(
    corpus: Any = None,
    recipe: str | Path | None = None,
    *,
    run: str | Path | None = None,
    overwrite: bool = False,
    verbose: bool = True,
    **options: Any,
) -> PretrainResult:
    """Pre-train an encoder; continue if the run folder holds an unfinished run of these options.

    Args:
        corpus: a :class:`Corpus` or its folder; or a :class:`PretrainConfig`.
        recipe: a recipe that comes with bothways (``tiny``, ``mini`` ...), or a YAML file. Default:
            :func:`recipe_for` corpus and minutes; ``mini`` for a length in steps or tokens.
        run: the run folder. Default: one in ``runs``, named after corpus and options, so that the
            same call continues it and other options get another.
        overwrite: remove what the run folder holds first.
        verbose: whether lines and a bar are shown.
        **options: those of `bothways pretrain`, by name; how long it trains is ``minutes``,
            ``steps`` or ``tokens``.

    Raises:
        BothwaysError: see :func:`bothways.pretraining.pretrain.pretrain`.
    """
    with _call(verbose):
        given = dict(options)
        if not isinstance(corpus, PretrainConfig):
            if corpus is None:
                raise ConfigError(
                    "corpus not given: a corpus folder, or what bw.build_corpus gives."
                )
            given["corpus"] = store_of(corpus)
            clock = {"minutes", "steps", "tokens"} & {*given}
            if recipe is None and not clock:
                raise ConfigError(
                    "minutes not given: how long to train (or steps, tokens, or the name of a "
                    "recipe)."
                )
            minutes = given.get("minutes")
            if recipe is None and isinstance(minutes, int | float):
                recipe = recipe_for(given["corpus"], minutes, run)
            elif recipe is None:
                recipe = "mini"
            if given.get("start") is not None:
                given["start"] = folder_of(given["start"], "start")
        config = call_options(PretrainConfig, corpus, {"run": run, **given}, recipe)
        config = with_run_folder(config)
        with _prepared(config.run, overwrite):
            from bothways.pretraining.pretrain import pretrain as train

            return train(config)


@dataclass(frozen=True, repr=False)
class Finetuned(FinetuneResult):
    """The result of :func:`bothways.finetune`; in a notebook it shows scores and curves.

    Attributes: those of :class:`bothways.finetuning.results.FinetuneResult`.
    """

    @classmethod
    def of(cls, result: FinetuneResult) -> Finetuned:
        """The same result."""
        return cls(**{item.name: getattr(result, item.name) for item in fields(result)})

    @cached_property
    def model(self) -> Model:
        """The model of the seed that is best on dev."""
        return load(self.best.model)


def finetune(
    model: Any = DEFAULT,
    train: Any = None,
    dev: Any = None,
    test: Any = None,
    *,
    text: str | None = None,
    text_b: str | None = None,
    label: str | None = None,
    task: Any = None,
    seeds: int | Sequence[int] | None = None,
    run: str | Path | None = None,
    overwrite: bool = False,
    verbose: bool = True,
    **options: Any,
) -> Finetuned:
    """Fine-tune an encoder on labelled data: train and measure one model per seed.

    Args:
        model: a model folder, the name of a bundled model, a :class:`Model`, or the result of a
            pre-training or fine-tuning; or a :class:`FinetuneConfig` or declared task's recipe.
        train: labelled examples: a file, a data frame (pandas, polars), a list of dictionaries, a
            data set, a dictionary of lists, a tuple (texts, labels).
        dev: those to measure on, likewise, or the share of ``train`` to hold out for it, such as
            0.1. Data from memory are written to the run folder.
        test: further ones to predict, likewise.
        text: column of the texts. Default: ``sentence``, or one called ``text``, ``review`` ...
        text_b: column of the second texts, for pairs.
        label: column of the labels, or of the scores. Default: ``label``.
        task: a declared task by name, or a YAML file like theirs.
        seeds: how many runs, or the seed of each.
        run: the run folder. Default: one in ``runs``, named after data and options, so that the
            same call has its result at once and other options get another folder.
        overwrite: remove what the run folder holds first.
        verbose: whether lines and a bar are shown.
        **options: those of `bothways finetune`, by name: ``epochs``, ``lr``, ``batch_size``,
            ``max_length``, ``kind`` (classification, regression, multilabel, tagging, spans ...),
            ``metrics``, ``labels``, ``search_lr=[5e-5, 2e-5]`` ...

    Returns:
        The scores, and the ``model`` that is best on dev.

    Raises:
        BothwaysError: see :func:`bothways.finetuning.finetune.finetune`; data in memory that do not
            make examples are named by argument, row and column.
    """
    columns = {"text": text, "text_b": text_b, "label": label}
    with _call(verbose):
        if isinstance(model, FinetuneConfig):
            own = {
                "train": train,
                "dev": dev,
                "test": test,
                "task": task,
                "seeds": seeds,
                **columns,
            }
            config = call_options(FinetuneConfig, model, {**own, **options})
            config = config if run is None else replace(config, run=str(run))
            contents: list[Any] = []
        else:
            given = {"model": folder_of(model, "model"), "run": run, "seeds": _seeds(seeds)}
            recipe = None if task is None else recipe_of(task)
            config = call_options(FinetuneConfig, None, {**given, **_as_options(options)}, recipe)
            config = _with_columns(config, columns, train)
            data = {"train": train, "dev": dev, "test": test}
            config, contents = _with_data(config, data, text, label)
        config = with_run_folder(config, contents)
        with _prepared(config.run, overwrite):
            config = _written(config, contents)
            from bothways.finetuning.finetune import finetune as tune

            with rows.named_rows({str(getattr(config.task, name)): name for name, _ in contents}):
                return Finetuned.of(tune(config))


def _seeds(seeds: int | Sequence[int] | None) -> Any:
    """A number of seeds as the first of them."""
    if isinstance(seeds, bool) or not isinstance(seeds, int):
        return seeds
    if seeds < 1:
        raise ConfigError(f"seeds is {seeds}; give how many runs, or a list of seeds.")
    return tuple(range(seeds))


def _as_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords, with dictionaries of weights or names as the options have them."""
    if "minutes" in options:
        raise ConfigError(
            "minutes: a fine-tuning is as long as its epochs; give epochs "
            "(checkpoint_minutes is how often its state is saved)."
        )
    given = dict(options)
    weights = options.get("class_weights")
    if isinstance(weights, Mapping):
        given["class_weights"] = tuple(
            f"{label}={str(weight).removesuffix('.0')}" for label, weight in weights.items()
        )
    elif isinstance(weights, Sequence) and not all(isinstance(one, str) for one in weights):
        raise ConfigError(
            f"class_weights is {weights!r}; give 'balanced', or a dictionary with the weight of "
            "each label."
        )
    if isinstance(names := options.get("names"), Mapping):
        given["names"] = tuple(f"{label}={name}" for label, name in names.items())
    labels = options.get("labels")
    if labels is not None and not isinstance(labels, str):  # numbers are texts, as in a file
        given["labels"] = [
            str(one) if isinstance(one, Integral) and not isinstance(one, bool) else one
            for one in rows.listed(labels, "labels")
        ]
    return given


def _with_columns(
    config: FinetuneConfig, columns: Mapping[str, str | None], train: Any
) -> FinetuneConfig:
    """The options with the names of columns; those of words and tags are of data in memory only."""
    named = {name: value for name, value in columns.items() if value is not None}
    for name, value in named.items():
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {type_of(value)}; give the name of a column.")
    without = not (config.task.traits.has_columns or rows.is_path(train))
    return config if without else replace(config, task=changed(config.task, named))


_Content = tuple[str, bytes]
"""The option of a task that names a file, and the file's content."""


def _with_data(
    config: FinetuneConfig,
    data: Mapping[str, Any],
    text: str | None,
    label: str | None,
) -> tuple[FinetuneConfig, list[_Content]]:
    """The options with the files that are given by name; and the contents of those that are not."""
    task, contents = config.task, list[_Content]()
    for name, value in data.items():
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if rows.is_path(value) or (number and name != "train"):
            task = changed(task, {name: str(value)})  # a number is a share of train
            continue
        labelled = name != "test"
        task, content = rows.examples(task, value, name, text=text, label=label, labelled=labelled)
        contents.append((name, content))
    return replace(config, task=task), contents


def _written(config: FinetuneConfig, contents: Sequence[_Content]) -> FinetuneConfig:
    """The options with the data from memory as files in the run folder."""
    folder = Path(config.run) / _DATA
    files = {
        name: rows.write_content(folder, f"{name}.parquet", content) for name, content in contents
    }
    return replace(config, task=changed(config.task, files)) if files else config


# ------------------------------------------------------------------------------- folders of runs


def with_run_folder(config: T, contents: Sequence[Any] = ()) -> T:
    """A config of `bothways pretrain` or `finetune` with a run folder, if it has none: one that is
    named after the options and what they read, so that the same call continues it.

    Args:
        config: the options.
        contents: data from memory that stand for files.
    """
    inputs: list[Any]
    if isinstance(config, PretrainConfig) and not config.run:
        if config.corpus:  # refused before a folder is named for it
            Manifest.read(Path(config.corpus))
        inputs = [_contents([config.corpus]), _contents([config.start or ""])]
        return replace(config, run=_chosen_run("pretrain", config, inputs))
    if isinstance(config, FinetuneConfig) and not config.run:
        _check_given(config, contents)
        start = _contents([model_folder(config.model)])
        given = [[name, rows.digest(content)] for name, content in contents]
        inputs = [start, given or _task_files(config), config.task.dev]
        if share(config.task.test) is not None:  # what is held out is not trained on
            inputs.append(config.task.test)
        return replace(config, run=_chosen_run(config.task.name, config, inputs))
    return config


def _check_given(config: FinetuneConfig, contents: Sequence[_Content]) -> None:
    """Refuse a fine-tuning without data, or of files that are not there, before a folder is named
    for it."""
    from bothways.finetuning.setup import check_files, check_required

    in_memory = {name: name for name, _ in contents}
    task = changed(config.task, in_memory)
    check_required(replace(config, run=RUNS, task=task))
    if not contents:
        check_files(config.located().task)


def recipe_for(corpus: str, minutes: float, run: str | Path | None = None) -> str | None:
    """The recipe for a pre-training of which only corpus and minutes are given; it is said.

    Args:
        corpus: the folder.
        minutes: of training.
        run: the run folder, if there is one: a run that was begun goes on with its recipe.

    Returns:
        Its name; None if the run was begun with none.
    """
    if run is not None and (Path(run) / RUN_FILE).is_file():
        names = [None, *shipped_recipes()]
        begun = [name for name in names if _is_begun_with(Path(run), name)]
        if begun:
            return begun[0]
    try:
        report = Manifest.read(Path(corpus)).report
    except StoreError:  # training says what is wrong
        return None
    tokens, scripts = report["train"]["tokens"], report["scripts"]
    others = ", ".join(shipped_recipes())
    if minutes <= _MOST_TINY or tokens < _FEW_TOKENS:
        why = f"{minutes:g} minutes" if minutes <= _MOST_TINY else f"{tokens:,} tokens of text"
        name = "tiny"
    elif scripts.get("Hangul", 0) > 0.5:
        name, why = "mini-ko", f"{minutes:g} minutes of Korean"
    else:
        name, why = "mini", f"{minutes:g} minutes"
    line_printer()(f"recipe: {name}, for {why}; there are {others}")
    return name


def _is_begun_with(run: Path, recipe: str | None) -> bool:
    """Whether a run was begun with a recipe (None: the default options), whatever its length."""
    try:
        recorded = read_json_file(run / RUN_FILE)["recipe"]
    except (InputError, KeyError, TypeError):  # damaged: training says so
        return False
    config = PretrainConfig() if recipe is None else load_recipe(PretrainConfig, recipe)

    def compared(fields: Mapping[str, Any]) -> dict[str, Any]:
        others = (*alternatives(config.clock), "seed")
        return {n: v for n, v in fields.items() if n not in others and "." not in n}

    return compared(recipe_fields(config)) == compared(recorded)


def _chosen_run(name: str, config: Any, inputs: Sequence[Any]) -> str:
    """A run folder that is named after the options and what they read."""
    folder = Path(RUNS) / f"{name}-{digest([recipe_fields(config), *inputs])[:8]}"
    known = " (continued or read again: the same options and data)" if folder.exists() else ""
    line_printer()(f"run folder: {folder}{known}")
    return str(folder)


@contextmanager
def _prepared(run: str, overwrite: bool) -> Iterator[None]:
    """Within, a run folder is used: an earlier run is removed first, if that is asked for, else an
    error says that it can be; and no folder is left of a run that was refused before it began."""
    folder = Path(run)
    with uninterrupted():  # it brings torch
        from bothways.training.runfolder import locks_released, refuse_other_folder, use_alone

    if overwrite and folder.is_dir():
        if not (folder / RUN_FILE).is_file():
            raise ConfigError(
                f"overwrite: {folder} is no run folder (it has no {RUN_FILE}); remove it yourself."
            )
        with locks_released():
            use_alone(folder)
        shutil.rmtree(folder)
    refuse_other_folder(folder)  # before anything is written into it
    begun = folder.exists()
    try:
        yield
    except OtherRunError as error:
        raise OtherRunError(
            f"{error} In Python, overwrite=True removes it first, and without run= other options "
            "and data get a folder of their own."
        ) from None
    finally:
        # Of one that was refused before it began, there is nothing but the data from memory.
        if not begun and folder.is_dir() and {p.name for p in folder.iterdir()} == {_DATA}:
            shutil.rmtree(folder)


def _contents(paths: Iterable[str | Path]) -> list[Any]:
    """What tells whether the content of files or folders has changed."""
    found: list[Any] = []
    for path in map(Path, paths):
        if path.is_dir():
            ends = (".json", ".safetensors", ".txt", ".arrow", ".ann")
            marks = [own for own in path.iterdir() if own.suffix in ends]
            found += [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in sorted(marks)]
        elif path.is_file():
            found.append(sha256(path))
        else:
            found.append(str(path))
    return found


def _task_files(config: FinetuneConfig) -> list[Any]:
    task = config.located().task
    return _contents([name for name in (task.train, task.dev) if isinstance(name, str) and name])


# ---------------------------------------------------------------------------------- other verbs


def list_tasks(name: str | None = None) -> Listing:
    """The declared tasks as a table, or the declaration of one.

    Raises:
        ConfigError: no such task.
    """
    from bothways.tasks.catalogue import show_tasks

    return Listing(show_tasks(name))


def list_recipes() -> Listing:
    """The recipes of pre-training that come with bothways."""
    return Listing(list_of_recipes(shipped_recipes()))


class Listing(str):
    """Text that is shown as it is, line by line."""

    def __repr__(self) -> str:
        return str(self)


def score(
    predictions: str | Path,
    data: str | Path,
    *,
    odds: str | Path | None = None,
    convention: Literal["squad", "korean"] = "squad",
) -> dict[str, float]:
    """The scores of a prediction file against answers in SQuAD's format.

    Args:
        predictions, odds, convention: as for `bothways evaluate`.
        data: the file of answers.

    Raises:
        InputError: see :func:`bothways.tasks.answers.score_file`.
    """
    scores, notes = score_file(predictions, data, convention=convention, odds=odds)
    for note in notes:
        print_note(note)
    return scores


def convert(source: Any, out: str | Path, **options: Any) -> Model:
    """Convert a model, for example from transformers, to a model folder.

    Args:
        source: the folder.
        out: a new folder.
        **options: those of `bothways convert`: ``tokenizer``, ``to``.

    Raises:
        ModelError: see :func:`bothways.load`; or the new folder exists.
    """
    from bothways.api.verbs import convert as write

    write(
        call_options(
            ConvertConfig, None, {"source": folder_of(source, "source"), "out": out, **options}
        )
    )
    return load(out)


def export(model: Any, out: str | Path, *, verbose: bool = True, **options: Any) -> ExportReport:
    """Write a model as a folder with ONNX graphs for other programs, in 8 bits too if that holds
    its limits.

    Args:
        model: a model folder, the name of a bundled model, a model, or the result of a training.
        out: a new folder.
        verbose: whether progress is shown.
        **options: those of `bothways export`: ``int8``, ``gate`` (a file), ``text``, ``label``,
            ``task``, ``calibration``, and the limits.

    Returns:
        What was written and measured; ``report.int8.holds`` says whether there is a graph of 8
        bits.

    Raises:
        ModelError, ConfigError, InputError: see :func:`bothways.exporting.export.export_model`.
    """
    from bothways.exporting.export import export_model

    given = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in options.items()
    }
    with _call(verbose):
        given = {"model": folder_of(model, "model"), "out": out, **given}
        return export_model(call_options(ExportConfig, None, given))


# --------------------------------------------------------------------------- what arguments may be


def _files(texts: Any) -> tuple[str, ...] | None:
    """Files, folders or globs; None if texts are given themselves."""
    if isinstance(texts, str | os.PathLike):
        return (os.fspath(texts),)
    if isinstance(texts, list | tuple) and texts:
        if all(isinstance(item, os.PathLike) for item in texts):
            return tuple(map(os.fspath, texts))
        if all(isinstance(item, str) and len(item) < 256 and _exists(item) for item in texts):
            return tuple(texts)
    return None


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


@contextmanager
def _words_in_file(words: Any) -> Iterator[str | None]:
    """The file of some words: the one that is given, or one that is written for them."""
    if words is None or isinstance(words, str | os.PathLike):
        if words is not None and not Path(words).exists():
            raise InputError(
                f"words is {os.fspath(words)!r}, and there is no such file; give a list, or a "
                "file with one on each line."
            )
        yield None if words is None else os.fspath(words)
        return
    lines = rows.listed(words, "words")
    for number, line in enumerate(lines):
        if not isinstance(line, str) or len(line.splitlines()) != 1:
            raise InputError(f"words[{number}] is {line!r}; give one word.")
    with tempfile.TemporaryDirectory() as folder:
        content = "".join(f"{line}\n" for line in lines).encode()
        yield rows.write_content(Path(folder), "words.txt", content)
