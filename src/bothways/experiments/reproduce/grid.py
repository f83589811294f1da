"""What is run: a table at a scale, as steps, and which cell comes from which of them.

The rows of a table share data, seeds and steps. Work that two rows (or two tables) have in common
is one step, because the name of a step holds a digest of all that it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bothways.config.fields import changed, recipe_fields
from bothways.config.parsing import read_recipe
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import Manifest
from bothways.errors import ConfigError, InputError, Place
from bothways.experiments.documentation import TEXT
from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce.steps import RUNS, HeldOutOptions, Part, Step
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
from bothways.finetuning.features import chosen_layers
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.setup import file_digests
from bothways.io.files import sha256
from bothways.io.records import INPUT_SUFFIXES
from bothways.io.text import list_files
from bothways.pretraining.options import PretrainConfig
from bothways.pretraining.pretrain import MODEL
from bothways.pretraining.snapshots import snapshot_folder
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.options import share
from bothways.tokenization.options import VocabularyConfig
from bothways.training.runfolder import versions

DATA = ("corpus", "text", "glue", "squad", "ner", "sick")
"""The options that give data."""
_SQUAD = (("train-v1.1.json", "dev-v1.1.json"), ("train.json", "dev.json"))
_DEV_SHARE = "0.2"  # of a dev file that is divided
_SIZE = ("layers", "hidden", "heads")


class Source(NamedTuple):
    """Where scores of a cell come from: a step with some of its parts, and the model's seed."""

    step: str
    pretrain_seed: int
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class GridRow:
    """A row at a scale.

    Attributes:
        label: its cells under the headings.
        published: the published figure for each column of the grid.
        cells: for each column, the sources of its scores, one for each pre-training seed.
        curve, x: in a figure: the name of the curve, and the steps of this point.
    """

    label: tuple[str, ...]
    published: tuple[float | None, ...]
    cells: tuple[tuple[Source, ...], ...]
    curve: str = ""
    x: int = 0

    @property
    def name(self) -> str:
        """Its label on one line."""
        return " / ".join(self.label)


@dataclass(frozen=True)
class Grid:
    """A table at a scale: its columns that have a task here, its rows with the sources of their
    scores, the steps by name, each after those that it needs, notes for the reader, and the
    pre-training recipe that the rows change."""

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
    _check_data(table, scale, columns, config)
    builder = _GridBuilder(table, scale, config, columns)
    rows = tuple(grid_row for row in table.rows for grid_row in builder.rows(row))
    seen: dict[Any, GridRow] = {}
    for row in rows:
        if (equal := seen.setdefault(row.cells, row)) is not row:
            raise ConfigError(
                f"with this recipe the rows {equal.name!r} and {row.name!r} of {table.name} are "
                "the same runs; leave out of the recipe what the rows vary."
            )
    sizes = (scale.sizes_note,) * table.sizes
    notes = (*table.notes, *notes, *filter(None, (*scale.notes, scale.budget_note, *sizes)))
    return Grid(table, scale, columns, rows, builder.steps, notes, builder.base)


def _check_data(
    table: Table, scale: Scale, columns: Sequence[BoundColumn], config: ReproduceConfig
) -> None:
    """Refuse to start without the data that the table needs, naming all of them."""
    needed = {TASKS[bound.task].data for bound in columns if bound.task} - {"text"}
    needed |= set() if scale.embedded else {"text" if table.learns_vocabulary else "corpus"}
    missing = [f"--{name}" for name in DATA if name in needed and not getattr(config, name)]
    if missing:
        raise ConfigError(
            f"{table.name} at scale {scale.name} needs {', '.join(missing)}; give them, or choose "
            "among its tasks with --tasks."
        )
    if scale.embedded and any(getattr(config, name) for name in DATA):
        raise ConfigError(f"scale {scale.name} makes its own text and tasks; choose another.")


class _Task(NamedTuple):
    """A task with its files, which may not exist yet: the recipe without model and run folder,
    digests of the files or of the step that makes them, and the names of such steps."""

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
        self.base = base_recipe(scale, config)
        self.total = self.base.clock.steps or 0
        count = scale.many_seeds if table.many_seeds else scale.seeds
        self.seeds = config.seeds or tuple(range(count))
        snapshots = (max(1, round(share * self.total)) for share in scale.snapshots)
        self.snapshots = tuple(dict.fromkeys(snapshots))
        self.tasks: dict[str, _Task] = {}

    def _add(self, step: Step) -> Step:
        """Add a step, or its parts to the equal step that was added before."""
        if (added := self.steps.get(step.name)) is not None:
            step = replace(added, parts=tuple(dict.fromkeys([*added.parts, *step.parts])))
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
        found = []
        for step in self.snapshots:
            cells = self._cells(row, step if step < self.total else None)
            found.append(GridRow((label[0], f"{step:,}"), published, cells, label[0], step))
        return found

    def _cells(self, row: Row, snapshot: int | None) -> tuple[tuple[Source, ...], ...]:
        runs = [(self._pretraining(row, seed), seed) for seed in self.config.pretrain_seeds or (0,)]
        return tuple(
            tuple(self._source(row, column, run, seed, snapshot) for run, seed in runs)
            for column in self.columns
        )

    def _source(
        self, row: Row, bound: BoundColumn, run: Step, seed: int, snapshot: int | None
    ) -> Source:
        """Add the step that computes an encoder's scores in a cell; where they will be found."""
        if bound.column.of == HELDOUT:
            return Source(self._heldout(run).name, seed)
        shape = run.config.model.resolve(vocab_size=1)
        layers, task = row.layers or bound.column.layers, self._task(bound.task)
        own = ""
        recipe: Any = task.recipe
        if layers is not None:
            chosen_layers(layers, shape.layers)  # refuses layers that the encoder lacks
            numerics = {name: getattr(self.config, name) for name in ("precision", "threads")}
            recipe = replace(self.scale.features, task=task.recipe.task, **numerics).located()
        else:
            lstm = {"lstm": shape.hidden} if row.lstm else {}
            recipe = changed(task.recipe, {**row.finetune, **lstm})
            own = difference(task.recipe, recipe)
            if (recipe.max_length or 0) > shape.positions:
                raise ConfigError(
                    f"{bound.title} is read in sequences of {recipe.max_length}, and the "
                    f"encoder of {run.label} has {shape.positions} positions; choose --tasks."
                )
        model, at = self._folder(run) / MODEL, ""
        if snapshot is not None:
            model, at = snapshot_folder(self._folder(run), snapshot), f"at-{snapshot}"
        step = Step(
            "finetune" if layers is None else "features",
            "-".join(filter(None, (bound.task, run.label, at, own))),
            replace(recipe, model=str(model)),
            (*task.inputs, run.key, *filter(None, (at,))),
            (*task.needs, run.name),
            tuple(Part(seed, layers) for seed in self.seeds),
            snapshot,
        )
        self._add(step)
        return Source(step.name, seed, step.parts)

    def _heldout(self, run: Step) -> Step:
        recipe: PretrainConfig = run.config
        options = HeldOutOptions(
            model=str(self._folder(run) / MODEL),
            corpus=recipe.corpus,
            sequences=self.scale.heldout,
            length=recipe.phases[0].length,
            pairs=recipe.pairs,
            objective=recipe.objective,
            device=self.config.device,
            threads=self.config.threads,
        )
        return self._add(Step("heldout", run.label, options, (run.key,), (run.name, *run.needs)))

    # -------------------------------------------------------------------------------- tasks

    def _task(self, name: str) -> _Task:
        """A task at this scale; adds the steps that make its files."""
        if name not in self.tasks:
            task = self._found_task(name)
            changes = {**self.scale.finetune.get("", {}), **self.scale.finetune.get(name, {})}
            numerics = ("device", "precision", "threads")
            changes |= {option: getattr(self.config, option) for option in numerics}
            self.tasks[name] = task._replace(recipe=changed(task.recipe, changes))
        return self.tasks[name]

    def _found_task(self, name: str) -> _Task:
        """A task with its declared recipe and files.

        Raises:
            InputError: a file is missing.
        """
        source = TASKS[name]
        if source.data == "text":
            text = self._text()
            files = {"train": "train.tsv", "dev": "dev.tsv", "name": source.title}
            folder = {"data": str(self._folder(text) / name)}
            recipe = changed(FinetuneConfig(), {**files, **source.changes, **folder}).located()
            return _Task(recipe, (text.key, name), (text.name,))
        data = Path(getattr(self.config, source.data))
        if source.data == "squad":
            recipe = task_recipe(source.declared, **_squad_files(data))
        else:
            recipe = task_recipe(source.declared, data=str(data)).located()
        if source.group:  # its dev file, divided
            task = replace(recipe.task, name=source.title, train=recipe.task.dev, dev=_DEV_SHARE)
            recipe = replace(recipe, task=replace(task, group=source.group, measure=()))
        recipe = changed(recipe, source.changes)
        measure = tuple(file for file in recipe.task.measure if Path(file).exists())
        task = replace(recipe.task, test=None, predict=(), measure=measure)
        for file in (task.train, task.dev):
            if share(file) is None and not Path(file).exists():
                raise InputError("there is no such file", place=Place(file), option=source.data)
        return _Task(replace(recipe, task=task), (*file_digests(task).values(),))

    # --------------------------------------------------------------------- text to encoders

    def _pretraining(self, row: Row, seed: int) -> Step:
        corpus, inputs, needs = self._corpus(row)
        changes = dict(row.pretrain)
        if row.static:
            changes["masking_duplicates"] = self.scale.duplicates
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
        files, needs = config.text, tuple[str, ...]()
        if embedded:
            text = self._text()
            files, needs = (str(self._folder(text) / TEXT),), (text.name,)
            inputs: tuple[str, ...] = (text.key,)
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


def _squad_files(folder: Path) -> dict[str, str]:
    """The official files, or a train.json and a dev.json."""
    for train, dev in _SQUAD:
        if (folder / train).exists() and (folder / dev).exists():
            return {"train": str(folder / train), "dev": str(folder / dev)}
    pairs = " nor ".join(map(" with ".join, _SQUAD))
    raise InputError(f"there is neither {pairs}", place=Place(folder), option="squad")


# --------------------------------------------------------------------------------
# The recipe that the rows of a table change, and the changes.


def difference(base: Any, config: Any) -> str:
    """How ``config`` differs from ``base``, for names of folders; empty if they are equal."""
    before, parts = recipe_fields(base), []
    for name, value in recipe_fields(config).items():
        if value != before[name]:
            values = value if isinstance(value, list) else [value]
            parts += [
                name.removesuffix("_kind"),
                *(f"{v:g}" if isinstance(v, float) else str(v) for v in values),
            ]
    return "-".join(parts)


def model_size(recipe: PretrainConfig) -> tuple[int, ...]:
    """Layers, hidden size and heads of the encoder."""
    shape = recipe.model.resolve(vocab_size=1)
    return shape.layers, shape.hidden, shape.heads


def base_recipe(scale: Scale, config: ReproduceConfig) -> PretrainConfig:
    """The scale's pre-training recipe with the changes of the command line.

    Raises:
        ConfigError: the recipe has a clock without steps, starts from a model or sets the seed.
    """
    base = scale.pretrain
    if config.recipe:
        values = read_recipe(PretrainConfig, config.recipe)
        if values.get("start") is not None or "seed" in values:
            raise ConfigError(
                f"{config.recipe}: the rows of a table start from new weights with seeds of their "
                "own (pretrain_seeds); leave out start and seed."
            )
        if "size" in values:  # not with the numbers of the scale's own size
            base = changed(base, dict.fromkeys(_SIZE))
        base = changed(base, values)
    if config.steps:
        base = changed(base, {"steps": config.steps})
    if base.clock.steps is None:
        raise ConfigError(
            f"{config.recipe}: the rows of a table must train for the same number of steps; set "
            "steps in the recipe, or --steps."
        )
    numerics = {name: getattr(config, name) for name in ("device", "precision", "threads")}
    return changed(base, {k: value for k, value in numerics.items() if value not in ("auto", 0)})
