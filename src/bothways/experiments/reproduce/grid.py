"""What is run: a table at a scale, as steps, and which cell comes from which of them.

The rows of a table share data, seeds and steps. Work that two rows (or two tables) have in common
is one step, because the name of a step holds a digest of all that it depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bothways.config.fields import changed, recipe_fields
from bothways.config.parsing import read_recipe
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import Manifest, TokenStore
from bothways.errors import ConfigError, InputError, StoreError
from bothways.experiments.documentation import TEXT
from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce.steps import HeldOutOptions, Step, first_alike
from bothways.experiments.reproduce.tables import (
    HELDOUT,
    TABLES,
    TASKS,
    BoundColumn,
    Changes,
    Row,
    Scale,
    Table,
    bind_columns,
)
from bothways.families.config import ModelConfig
from bothways.finetuning.features import chosen_layers
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.setup import file_digests
from bothways.io.files import sha256
from bothways.io.records import INPUT_SUFFIXES
from bothways.io.text import list_files
from bothways.pretraining.instances import store_problem
from bothways.pretraining.options import MaskOptions, PretrainConfig
from bothways.pretraining.pretrain import MODEL
from bothways.pretraining.snapshots import snapshot_folder
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.kinds import KINDS
from bothways.tasks.options import SplitConfig, TaskOptions
from bothways.tokenization.options import VocabularyConfig
from bothways.training.runfolder import versions

RUNS = "runs"
_DATA = {
    "glue": "GLUE's folder with MRPC, SST-2 ...",
    "squad": "SQuAD 1.1's train and dev files",
    "ner": "CoNLL-2003: eng.train, eng.testa, eng.testb",
    "sick": "SICK's three files",
    "corpus": "a corpus folder made by `bothways corpus`",
    "text": "text files",
}
_SQUAD = (("train-v1.1.json", "dev-v1.1.json"), ("train.json", "dev.json"))
_SIZE = ("model.layers", "model.hidden", "model.heads")


@dataclass(frozen=True)
class ScoreSource:
    """Where the scores of a cell come from.

    Attributes:
        step: name of the step that computes them.
        pretrain_seed: of the model.
        parts: the step's parts, which end in the seeds; empty for held-out text.
    """

    step: str
    pretrain_seed: int
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class GridRow:
    """A row at a scale.

    Attributes:
        label: its cells under the headings.
        published: the published figure for each column of the grid.
        cells: for each column, the sources of its scores, one for each pre-training seed.
        group, x: for curves: the curve, and the steps of this point.
    """

    label: tuple[str, ...]
    published: tuple[float | None, ...]
    cells: tuple[tuple[ScoreSource, ...], ...]
    group: str = ""
    x: float = 0.0

    @property
    def name(self) -> str:
        """Its label on one line."""
        return " / ".join(self.label)


@dataclass(frozen=True)
class Grid:
    """A table at a scale.

    Attributes:
        table, scale: what is recomputed.
        columns: the columns that have a task here.
        rows: with the sources of their scores.
        steps: by name, each after the steps it needs.
        notes: for the reader: which tasks stand in, what is left out.
        base: the pre-training recipe that the rows change.
    """

    table: Table
    scale: Scale
    columns: tuple[BoundColumn, ...]
    rows: tuple[GridRow, ...]
    steps: dict[str, Step]
    notes: tuple[str, ...]
    base: PretrainConfig


def make_grid(table: Table, scale: Scale, config: ReproduceConfig) -> Grid:
    """A table with the steps that compute it.

    Raises:
        ConfigError: data that the table needs were not given, or options that do not fit.
        InputError, StoreError: data that cannot be used.
    """
    columns, notes = bind_columns(table, scale, config)
    check_data(table, scale, columns, config)
    builder = _GridBuilder(table, scale, config, columns)
    rows = tuple(grid_row for row in table.rows for grid_row in builder.rows(row))
    seen: dict[tuple[tuple[ScoreSource, ...], ...], GridRow] = {}
    for row in rows:
        if (equal := seen.setdefault(row.cells, row)) is not row:
            raise ConfigError(
                f"{config.recipe or config.scale}: with this recipe the rows {equal.name!r} and "
                f"{row.name!r} of {table.name} are the same runs; leave out of the recipe what "
                "the rows vary."
            )
    sizes = [row.label for row in table.rows if row.size is not None]
    if sizes and sizes != [row.label for row in rows]:
        shown = ", ".join(map("/".join, sizes))
        notes += (f"The published figures are for layers/hidden/heads {shown}, in this order.",)
    notes += recipe_notes(table, scale, builder.base)
    return Grid(table, scale, columns, rows, builder.steps, notes, builder.base)


class _Task(NamedTuple):
    """A task with its files, which may not exist yet.

    Attributes:
        recipe: of fine-tuning, without model and run folder.
        inputs: digests of the files, or of the step that makes them.
        needs: names of the steps that make the files.
    """

    recipe: FinetuneConfig
    inputs: tuple[str, ...]
    needs: tuple[str, ...] = ()


class _GridBuilder:
    """Builds the rows of a grid, and collects the steps they need, equal ones once and each after
    the steps that it needs."""

    def __init__(
        self,
        table: Table,
        scale: Scale,
        config: ReproduceConfig,
        columns: tuple[BoundColumn, ...],
    ):
        self.table, self.scale, self.config, self.columns = table, scale, config, columns
        self.steps: dict[str, Step] = {}
        self.base = base_recipe(table, scale, config)
        self.total = self.base.clock.steps or 0
        count = scale.many_seeds if table.many_seeds else scale.seeds
        self.seeds = config.seeds or tuple(range(count))
        snapshots = (max(1, round(share * self.total)) for share in scale.snapshots)
        self.snapshots = tuple(dict.fromkeys(snapshots))
        self.tasks: dict[str, _Task] = {}

    def _add(self, step: Step) -> Step:
        """Add a step, or its parts to the equal step that was added before."""
        if (added := self.steps.get(step.name)) is not None:
            step = replace(added, wanted=tuple(dict.fromkeys([*added.wanted, *step.wanted])))
        self.steps[step.name] = step
        return step

    def _folder(self, step: Step) -> Path:
        return Path(self.config.out) / RUNS / step.name

    # ------------------------------------------------------------------------- rows and cells

    def rows(self, row: Row) -> list[GridRow]:
        """A row of the table; for a row of snapshots, one for each step at which they are taken."""
        label = row.label if row.size is None else tuple(map(str, self.scale.sizes[row.size]))
        figures = row.published or (None,) * len(self.table.columns)
        published = tuple(
            None if c.published is None else figures[c.published] for c in self.columns
        )
        if not row.snapshots:
            return [GridRow(label, published, self._cells(row, None))]
        return [
            GridRow(
                (*label[:-1], f"{step:,}"),
                published,
                self._cells(row, step if step < self.total else None),
                label[0],
                step,
            )
            for step in self.snapshots
        ]

    def _cells(self, row: Row, snapshot: int | None) -> tuple[tuple[ScoreSource, ...], ...]:
        """For each column, the sources of its scores, one for each pre-training seed; of a step's
        snapshot, or of the finished model."""
        runs = [(self._pretraining(row, seed), seed) for seed in self.config.pretrain_seeds or (0,)]
        return tuple(
            tuple(self._measurement(row, column, run, seed, snapshot) for run, seed in runs)
            for column in self.columns
        )

    def _measurement(
        self, row: Row, bound: BoundColumn, run: Step, seed: int, snapshot: int | None
    ) -> ScoreSource:
        """Add the step that computes an encoder's scores in a cell; where they will be found."""
        if bound.column.of == HELDOUT:
            return ScoreSource(self._heldout(run).name, seed)
        shape: ModelConfig = run.config.model.resolve(vocab_size=1)
        layers, task = row.layers or bound.column.layers, self._task(bound.task)
        recipe: Any
        if layers is not None:
            other = "choose another --scale, or a --recipe with more (model.layers)"
            chosen_layers(layers, shape.layers, other)  # refuses layers that the encoder lacks
            numerics = {name: getattr(self.config, name) for name in ("precision", "threads")}
            recipe = replace(self.scale.features, task=task.recipe.task, **numerics).located()
            own, parts = "", tuple(f"{layers}:{seed}" for seed in self.seeds)
        else:
            lstm = {"lstm": shape.hidden} if row.lstm else {}
            recipe = changed(task.recipe, {**row.finetune, **lstm})
            if (recipe.length or 0) > shape.positions:
                raise ConfigError(
                    f"{bound.title} is read in sequences of {recipe.length}, but the encoder of "
                    f"{run.label} has {shape.positions} positions (model.positions); choose among "
                    "--tasks."
                )
            own, parts = difference(task.recipe, recipe), tuple(map(str, self.seeds))
        model, at, inputs = self._folder(run) / MODEL, "", [*task.inputs, run.key]
        if snapshot is not None:
            model, at = snapshot_folder(self._folder(run), snapshot), f"at-{snapshot}"
            inputs.append(f"step {snapshot}")
        step = Step(
            "finetune" if layers is None else "features",
            "-".join(filter(None, (bound.task, run.label, at, own))),
            replace(recipe, model=str(model)),
            tuple(inputs),
            (*task.needs, run.name),
            parts,
            snapshot,
        )
        return ScoreSource(self._add(step).name, seed, parts)

    def _heldout(self, run: Step) -> Step:
        recipe: PretrainConfig = run.config
        options = HeldOutOptions(
            model=str(self._folder(run) / MODEL),
            corpus=recipe.corpus,
            sequences=self.scale.heldout,
            length=recipe.phases[0].length,
            pairs=recipe.pairs,
            # The paper's masks for all rows, however the model was trained.
            masking=recipe.masking if recipe.masking.left_to_right else MaskOptions(),
            device=self.config.device,
            threads=self.config.threads,
        )
        if not run.needs:  # the corpus was given: better missed now than after hours
            store = TokenStore.open(recipe.corpus, "heldout")
            if problem := store_problem(store, recipe.pairs.kind):
                raise ConfigError(
                    f"{recipe.corpus}: {self.table.name} measures held-out text, but there is "
                    f"{problem} `bothways corpus --heldout` sets some aside."
                )
        return self._add(Step("heldout", run.label, options, (run.key,), (run.name, *run.needs)))

    # -------------------------------------------------------------------------------- tasks

    def _task(self, name: str) -> _Task:
        """A task at this scale; adds the steps that make its files.

        Raises:
            InputError: a file is missing, or cannot be read as this task's.
        """
        if name not in self.tasks:
            task = self._found_task(name)
            scale, numerics = self.scale.finetune, ("device", "precision", "threads")
            changes = {**scale.get("", {}), **scale.get(name, {})}
            changes |= {option: getattr(self.config, option) for option in numerics}
            self.tasks[name] = task._replace(recipe=changed(task.recipe, changes))
        return self.tasks[name]

    def _found_task(self, name: str) -> _Task:
        source = TASKS[name]
        if source.data == "text":
            text = self._text()
            files = {"task.train": "train.tsv", "task.dev": "dev.tsv", "task.name": source.title}
            folder = {"data": str(self._folder(text) / name)}
            recipe = changed(FinetuneConfig(), {**files, **source.changes, **folder}).located()
            return _Task(recipe, (text.key, name), (text.name,))
        data = Path(getattr(self.config, source.data))
        if source.split:
            return self._split_task(name, data)
        if source.data == "squad":
            recipe = task_recipe(source.declared, **_squad_files(data))
        else:
            recipe = task_recipe(source.declared, data=str(data)).located()
        recipe = changed(recipe, source.changes)
        measure = tuple(file for file in recipe.task.measure if Path(file).exists())
        recipe = replace(recipe, task=_measured_only(recipe.task, measure=measure))
        for file in (recipe.task.train, recipe.task.dev):
            if not Path(file).exists():
                raise InputError(f"there is no such file (--{source.data}).", path=file)
        check_content(recipe.task, self.config)
        return _Task(recipe, tuple(file_digests(recipe.task).values()))

    def _split_task(self, name: str, data: Path) -> _Task:
        """A task whose only labelled file is split into train and dev by a step."""
        source = TASKS[name]
        file, column = source.split
        if not (data / file).exists():
            raise InputError("there is no such file (--glue).", path=data / file)
        folder = Path(file).parent
        options = SplitConfig(file=str(data / file), out=str(folder), by=column)
        digest = sha256(data / file)[:16]
        step = self._add(Step("split", folder.name, options, (digest,)))
        recipe = task_recipe(source.declared, data=str(self._folder(step))).located()
        task = _measured_only(recipe.task, name=source.title)
        check_content(replace(task, train=options.file, dev=options.file), self.config)
        return _Task(replace(recipe, task=task), (step.key,), (step.name,))

    # --------------------------------------------------------------------- text to encoders

    def _pretraining(self, row: Row, seed: int) -> Step:
        corpus, inputs, needs = self._corpus(row)
        changes = dict(row.pretrain)
        if row.static:
            changes["masking.duplicates"] = self.scale.duplicates
        if row.size is not None and self.scale.sizes[row.size] != model_size(self.base):
            changes |= dict(zip(_SIZE, self.scale.sizes[row.size], strict=True))
        # figure5 shares its runs with other tables, and snapshots cannot be taken afterwards. So
        # these runs take figure5's snapshots whichever table trains them.
        curves = [self._recipe(curve.pretrain) for curve in TABLES["figure5"].rows]
        if self._recipe(changes) in curves:
            changes["snapshots"] = tuple(step for step in self.snapshots if step < self.total)
        recipe = changed(self.base, {**changes, "seed": seed, "corpus": str(corpus)})
        label = filter(None, (difference(self.base, recipe), self._vocabulary_label(row)))
        return self._add(Step("pretrain", "-".join(label) or "base", recipe, inputs, needs))

    def _recipe(self, changes: Changes) -> dict[str, Any]:
        return recipe_fields(changed(self.base, changes))

    def _corpus(self, row: Row) -> tuple[Path, tuple[str, ...], tuple[str, ...]]:
        """The corpus that was given, or else the steps that make one: folder, digests, needs."""
        embedded, config = self.scale.embedded, self.config
        if not embedded and not self.table.learns_vocabulary:
            folder = Path(config.corpus or "")
            return folder, (Manifest.read(folder).fingerprint,), ()
        files: tuple[str, ...] = config.text
        needs: tuple[str, ...] = ()
        inputs: tuple[str, ...]
        if embedded:
            text = self._text()
            files, inputs, needs = (str(self._folder(text) / TEXT),), (text.key,), (text.name,)
        else:
            inputs = tuple(sha256(path)[:16] for path in list_files(files, INPUT_SUFFIXES))
        label, learned = self._vocabulary_label(row), changed(self.scale.vocabulary, row.vocabulary)
        options = VocabularyConfig(**vars(learned), files=files, out="")
        vocabulary = self._add(Step("vocabulary", label, options, inputs, needs))
        build = CorpusConfig(
            files=files,
            tokenizer=str(self._folder(vocabulary)),
            out="",
            heldout=0.02 if embedded else 0.01,
            sentences="line" if embedded else "split",
            single_sentence="drop" if embedded else "join",
            workers=config.threads or -1,
        )
        needs = (*needs, vocabulary.name)
        corpus = self._add(Step("corpus", label, build, (vocabulary.key,), needs))
        return self._folder(corpus), (corpus.key,), (corpus.name,)

    def _vocabulary_label(self, row: Row) -> str:
        return difference(self.scale.vocabulary, changed(self.scale.vocabulary, row.vocabulary))

    def _text(self) -> Step:
        installed = tuple(f"{name} {version}" for name, version in versions().items())
        return self._add(Step("text", "", self.scale.text, installed))


# --------------------------------------------------------------------------------
# Data.


def check_data(
    table: Table, scale: Scale, columns: Sequence[BoundColumn], config: ReproduceConfig
) -> None:
    """Refuse to start without the data that the table needs.

    Raises:
        ConfigError: some data were not given, or data that the scale does not read; the message
            names all of them.
    """
    unread = [f"--{name}" for name in _DATA if getattr(config, name)]
    if scale.embedded and unread:
        raise ConfigError(
            f"scale {scale.name} makes its own text and tasks and does not read "
            f"{', '.join(unread)}; leave them out, or choose another --scale."
        )
    needed: dict[str, list[str]] = {}
    if not scale.embedded:
        needed["text" if table.learns_vocabulary else "corpus"] = ["pre-training"]
    for source in (TASKS[bound.task] for bound in columns if bound.task):
        if source.data != "text":
            needed.setdefault(source.data, []).append(source.title)
    lines = [
        f"  --{name} {'FILES' if name == 'text' else 'FOLDER'}  {_DATA[name]} "
        f"(for {', '.join(dict.fromkeys(uses))})"
        for name, uses in needed.items()
        if not getattr(config, name)
    ]
    if lines:
        raise ConfigError(
            f"{table.name} at scale {scale.name} needs data that were not given:\n"
            + "\n".join(lines)
            + "\nGive them, or choose among its tasks with --tasks."
        )


def check_content(task: TaskOptions, config: ReproduceConfig) -> None:
    """Refuse files that cannot be read as the task's now, not after hours of pre-training."""
    if config.step is not None:  # one step, usually of a plan that was checked
        return
    kind = KINDS[task.kind]
    defined = kind.define(task, kind.read(Path(task.train), task, labelled=True))
    for file in {task.dev, *task.measure} - {task.train}:
        kind.read(Path(file), defined.options, labelled=True)


def _measured_only(task: TaskOptions, measure: tuple[str, ...] = (), **changes: Any) -> TaskOptions:
    """A task with nothing to predict, and these further files to measure."""
    return replace(task, test=None, predict=(), measure=measure, **changes)


def _squad_files(folder: Path) -> dict[str, str]:
    """The official files, or a train.json and a dev.json."""
    for train, dev in _SQUAD:
        if (folder / train).exists() and (folder / dev).exists():
            return {"task.train": str(folder / train), "task.dev": str(folder / dev)}
    pairs = " nor ".join(map(" with ".join, _SQUAD))
    raise InputError(f"there is neither {pairs}.", path=folder)


# --------------------------------------------------------------------------------
# The recipe that the rows of a table change, and the changes.


def difference(base: Any, config: Any) -> str:
    """How ``config`` differs from ``base``, for names of folders; empty if they are equal."""
    before, parts = recipe_fields(base), []
    for name, value in recipe_fields(config).items():
        if value != before[name]:
            short = name.removesuffix(".kind").rpartition(".")[2]
            parts += [short, f"{value:g}" if isinstance(value, float) else str(value)]
    return "-".join(parts)


def model_size(recipe: PretrainConfig) -> tuple[int, ...]:
    """Layers, hidden size and heads of the encoder."""
    shape = recipe.model.resolve(vocab_size=1)
    return shape.layers, shape.hidden, shape.heads


def base_recipe(table: Table, scale: Scale, config: ReproduceConfig) -> PretrainConfig:
    """The scale's pre-training recipe with the changes of the command line.

    Raises:
        ConfigError: the recipe has a clock without steps, starts from a model, or sets what the
            rows or other options set.
    """
    base, path = scale.pretrain, config.recipe
    if path:
        values = read_recipe(PretrainConfig, path)
        if values.get("start") is not None:
            raise ConfigError(
                f"{path}: start is {values['start']}, but the rows of a table start from new "
                "weights; leave it out."
            )
        if "seed" in values:
            raise ConfigError(
                f"{path}: seed is {values['seed']}, but a table may have several; leave it out, "
                f"and give --pretrain_seeds {values['seed']}."
            )
        if "model.size" in values:  # not with the numbers of the scale's own size
            base = changed(base, dict.fromkeys(_SIZE))
        base = changed(base, values)
        own_size = model_size(base) != model_size(scale.pretrain) or base.model.intermediate
        if table.sizes and own_size:
            raise ConfigError(
                f"{path}: it sets the size of the model, but so do the rows of {table.name}; leave "
                "out model.size, layers, hidden, heads and intermediate."
            )
    if config.steps:
        base = changed(base, {"clock.steps": config.steps})
    if base.clock.steps is None:
        raise ConfigError(
            f"{path}: the rows of a table must train for the same number of steps; set clock.steps "
            "in the recipe, or --steps."
        )
    numerics = {name: getattr(config, name) for name in ("device", "precision", "threads")}
    return changed(base, {k: value for k, value in numerics.items() if value not in ("auto", 0)})


# --------------------------------------------------------------------------------
# Notes for the reader of a table that follow from its rows, its scale and its recipe.


def recipe_notes(table: Table, scale: Scale, base: PretrainConfig) -> tuple[str, ...]:
    """What is true of the runs of a table, whose rows change the recipe ``base``."""
    model, notes = base.model, [*scale.notes]
    if model.init == "primed":
        notes.append(
            "All models start from primed weights (model.init; EXPERIMENTS.md, section 8)."
        )
    if model.dropout == model.attention_dropout == 0:
        notes.append("All models are pre-trained without dropout.")
    budgets = [
        (model_size(recipe), recipe.clock, recipe.phases) for recipe in (base, scale.pretrain)
    ]
    notes += [scale.budget_note] * (budgets[0] == budgets[1]) + [scale.sizes_note] * table.sizes
    label = {row.layers: " / ".join(row.label) for row in table.rows if row.layers is not None}
    layers = model_size(base)[0]
    return (
        *filter(None, notes),
        *(
            f"With {layers} layers, the rows {label[first]!r} and {label[choice]!r} are the same, "
            "and are computed once."
            for choice, first in first_alike(list(label), layers).items()
            if choice != first
        ),
    )


def training_tokens(run: Step) -> int | None:
    """Tokens of the text that a pre-training run reads; None if its corpus is not built yet."""
    try:
        return int(Manifest.read(Path(run.config.corpus)).report["train"]["tokens"])
    except StoreError:
        return None


def unrepeated_masks(table: Table, steps: Iterable[Step]) -> list[str]:
    """Whether static masks are never repeated, because the runs read too little text for that."""
    notes = []
    for step in steps if any(row.static for row in table.rows) else ():
        duplicates = step.config.masking.duplicates if step.kind == "pretrain" else 0
        tokens = training_tokens(step) if duplicates else None
        if tokens is None:
            continue
        # Every phase draws its own masks and counts its own passes.
        read = max(p.share * p.batch * p.length for p in step.config.phases)
        passes = read * step.config.clock.steps / tokens
        if passes <= duplicates:
            notes.append(
                f"Static masks are repeated after pass {duplicates} over the corpus, but no phase "
                f"reads it more than about {passes:.2g} times: both rows are the same computation. "
                "Only more --steps or a smaller corpus can tell them apart."
            )
    return list(dict.fromkeys(notes))
