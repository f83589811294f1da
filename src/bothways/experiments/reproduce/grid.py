"""A table at a scale, as steps: which cell comes from which run.

The rows of a table share data, seeds and steps. Work that two rows (or two tables) have in common
is one step, because the name of a step holds a digest of all that it depends on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bothways.config.fields import changed, recipe_fields
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import Manifest, TokenStore
from bothways.errors import ConfigError, StoreError
from bothways.experiments.reproduce.data import TaskData, check_data, features_config, read_task
from bothways.experiments.reproduce.heldout import HeldOutOptions
from bothways.experiments.reproduce.options import ReproduceConfig
from bothways.experiments.reproduce.recipes import base_recipe, difference, model_size
from bothways.experiments.reproduce.steps import TEXT, Step, TextOptions, first_alike
from bothways.experiments.reproduce.tables import (
    FIGURE5,
    HELDOUT,
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
from bothways.finetuning.options import LayerChoice
from bothways.io.files import sha256
from bothways.io.records import INPUT_SUFFIXES
from bothways.io.text import list_files
from bothways.pretraining.instances import store_problem
from bothways.pretraining.options import MaskOptions, PretrainConfig
from bothways.pretraining.pretrain import MODEL
from bothways.pretraining.snapshots import snapshot_folder
from bothways.tokenization.options import LearningOptions, VocabularyConfig
from bothways.training.runfolder import versions

# --------------------------------------------------------------------------------
# Notes for the reader of a table that follow from its rows, its scale and its recipe.


def recipe_notes(table: Table, scale: Scale, base: PretrainConfig) -> tuple[str, ...]:
    """What is true of the table's runs.

    Args:
        table: its rows.
        scale: its notes.
        base: the recipe that the rows change.
    """
    notes = [*scale.notes, *_start(base)]
    if _budget(base) == _budget(scale.pretrain):
        notes.append(scale.budget_note)
    if table.sizes:
        notes.append(scale.sizes_note)
    return (*filter(None, notes), *_equal_features(table, base))


def _start(base: PretrainConfig) -> list[str]:
    """How models start and train where that is not the paper's way."""
    model, notes = base.model, []
    if model.init == "primed":
        notes.append(
            "All models start from primed weights (model.init; EXPERIMENTS.md, section 8)."
        )
    if model.dropout == model.attention_dropout == 0:
        notes.append("All models are pre-trained without dropout.")
    return notes


def _budget(recipe: PretrainConfig) -> tuple[object, ...]:
    """What decides how much a run computes."""
    return model_size(recipe), recipe.clock, recipe.phases


def training_tokens(run: Step) -> int | None:
    """Tokens of the text that a pre-training run reads; None if its corpus is not built yet."""
    try:
        report = Manifest.read(Path(run.config.corpus)).report
    except StoreError:
        return None
    return int(report["train"]["tokens"])


def unrepeated_masks(table: Table, steps: Iterable[Step]) -> list[str]:
    """Whether static masks are never repeated, because the runs read too little text for that."""
    if not any(row.static for row in table.rows):
        return []
    notes = []
    for step in steps:
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


def _equal_features(table: Table, base: PretrainConfig) -> list[str]:
    """The rows that give the tagger the same features."""
    label = {row.layers: " / ".join(row.label) for row in table.rows if row.layers is not None}
    layers = model_size(base)[0]
    return [
        f"With {layers} layers, the rows {label[first]!r} and {label[choice]!r} are the same, and "
        "are computed once."
        for choice, first in first_alike(list(label), layers).items()
        if choice != first
    ]


RUNS = "runs"


@dataclass(frozen=True)
class ScoreSource:
    """Where the scores of a cell come from.

    Attributes:
        step: name of the step that computes them.
        pretrain_seed: of the model.
        parts: the step's parts, in the order of the seeds; empty for held-out text.
        seeds: of fine-tuning, one for each part.
    """

    step: str
    pretrain_seed: int
    parts: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()


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
    _refuse_equal(rows, table, config)
    sizes = [row.label for row in table.rows if row.size is not None]
    if sizes and sizes != [row.label for row in rows]:
        shown = ", ".join("/".join(label) for label in sizes)
        notes = (
            *notes,
            f"The published figures are for layers/hidden/heads {shown}, in this order.",
        )
    notes = (*notes, *recipe_notes(table, scale, builder.base))
    return Grid(table, scale, columns, rows, builder.steps, notes, builder.base)


def _refuse_equal(rows: Sequence[GridRow], table: Table, config: ReproduceConfig) -> None:
    """Refuse rows that --recipe makes the same: they would be compared with themselves."""
    seen: dict[tuple[tuple[ScoreSource, ...], ...], GridRow] = {}
    for row in rows:
        if (equal := seen.setdefault(row.cells, row)) is not row:
            raise ConfigError(
                f"{config.recipe or config.scale}: with this recipe the rows "
                f"{' / '.join(equal.label)!r} and {' / '.join(row.label)!r} of {table.name} are "
                "the same runs; leave out of the recipe what the rows vary."
            )


@dataclass(frozen=True)
class _CorpusSource:
    """A corpus to pre-train on.

    Attributes:
        folder: the corpus folder.
        inputs: digests that identify it.
        needs: names of the steps that make it; empty if it was given.
    """

    folder: Path
    inputs: tuple[str, ...]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Encoder:
    """A pre-trained encoder to measure: that of a finished run, or a snapshot.

    Attributes:
        run: the step that trains it.
        folder: the model folder.
        inputs: digests that identify it.
        label: for the names of the steps that measure it.
        seed: of pre-training.
        snapshot: the step of the snapshot; None for the finished run.
    """

    run: Step
    folder: Path
    inputs: tuple[str, ...]
    label: str
    seed: int
    snapshot: int | None = None

    @property
    def shape(self) -> ModelConfig:
        """Its layers, widths and positions."""
        return _shape(self.run.config)


class _GridBuilder:
    """Builds the rows of a grid, and collects the steps they need, equal ones once.

    Methods named ``_add_...`` add a step, after the steps that it needs.
    """

    def __init__(
        self,
        table: Table,
        scale: Scale,
        config: ReproduceConfig,
        columns: tuple[BoundColumn, ...],
    ):
        self.table, self.scale, self.config, self.columns = table, scale, config, columns
        self.out = Path(config.out)
        self.steps: dict[str, Step] = {}
        self.base = base_recipe(table, scale, config)
        self.steps_of_run = self.base.clock.steps or 0
        self.seeds = config.seeds or (scale.many_seeds if table.many_seeds else scale.seeds)
        self.tasks: dict[str, TaskData] = {}

    # -------------------------------------------------------------------------------------- rows

    def rows(self, row: Row) -> list[GridRow]:
        """A row of the table; for a row of snapshots, one for each step at which they are taken."""
        label = row.label
        if row.size is not None:
            label = tuple(map(str, self.scale.sizes[row.size]))
        if not row.snapshots:
            return [GridRow(label, self._published(row), self._cells(row, None))]
        rows = []
        for step in snapshot_steps(self.scale, self.steps_of_run):
            cells = self._cells(row, step if step < self.steps_of_run else None)
            step_label = (*label[:-1], f"{step:,}")
            rows.append(GridRow(step_label, self._published(row), cells, label[0], step))
        return rows

    def _published(self, row: Row) -> tuple[float | None, ...]:
        figures = row.published or (None,) * len(self.table.columns)
        return tuple(None if c.published is None else figures[c.published] for c in self.columns)

    def _cells(self, row: Row, snapshot: int | None) -> tuple[tuple[ScoreSource, ...], ...]:
        """For each column, the sources of its scores, one for each pre-training seed.

        Args:
            row: of the table.
            snapshot: the step whose snapshot is measured; None for the finished model.
        """
        seeds = self.config.pretrain_seeds or self.scale.pretrain_seeds
        encoders = [
            self._encoder(self._add_pretraining(row, seed), seed, snapshot) for seed in seeds
        ]
        return tuple(
            tuple(self._add_measurement(row, column, encoder) for encoder in encoders)
            for column in self.columns
        )

    def _encoder(self, run: Step, seed: int, snapshot: int | None) -> _Encoder:
        folder = self.folder(run)
        if snapshot is None:
            return _Encoder(run, folder / MODEL, (run.key,), run.label, seed)
        label = "-".join(part for part in (run.label, f"at-{snapshot}") if part)
        inputs = (run.key, f"step {snapshot}")
        return _Encoder(run, snapshot_folder(folder, snapshot), inputs, label, seed, snapshot)

    # -------------------------------------------------------------------- steps: measurements

    def _add_measurement(self, row: Row, bound: BoundColumn, encoder: _Encoder) -> ScoreSource:
        """Add the step that computes an encoder's scores in a cell; where they will be found."""
        layers = row.layers or bound.column.layers
        if bound.column.of == HELDOUT:
            return ScoreSource(self._add_heldout(encoder.run), encoder.seed)
        if layers is not None:
            return self._add_features(bound.task, layers, encoder)
        return self._add_finetuning(row, bound, encoder)

    def _add_finetuning(self, row: Row, bound: BoundColumn, encoder: _Encoder) -> ScoreSource:
        task = self._task(bound.task)
        recipe = changed(task.recipe, dict(row.finetune))
        if row.lstm:
            recipe = changed(recipe, {"lstm": encoder.shape.hidden})
        length, positions = recipe.sequence_length, encoder.shape.positions
        if length > positions:
            raise ConfigError(
                f"{bound.title} is read in sequences of {length}, but the encoder of "
                f"{encoder.run.label} has {positions} positions (model.positions); choose among "
                "--tasks."
            )
        label = (bound.task, encoder.label, difference(task.recipe, recipe))
        parts = tuple(map(str, self.seeds))
        step = Step(
            "finetune",
            "-".join(part for part in label if part),
            dataclasses.replace(recipe, model=str(encoder.folder)),
            (*task.inputs, *encoder.inputs),
            (*task.needs, encoder.run.name),
            parts,
            encoder.snapshot,
        )
        return ScoreSource(self._add(step), encoder.seed, parts, self.seeds)

    def _add_features(self, name: str, layers: LayerChoice, encoder: _Encoder) -> ScoreSource:
        chosen_layers(layers, encoder.shape.layers)  # refuses layers that the encoder lacks
        task = self._task(name)
        recipe = features_config(self.scale, task, self.config)
        parts = tuple(f"{layers}:{seed}" for seed in self.seeds)
        step = Step(
            "features",
            "-".join(part for part in (name, encoder.label) if part),
            dataclasses.replace(recipe, model=str(encoder.folder)),
            (*task.inputs, *encoder.inputs),
            (*task.needs, encoder.run.name),
            parts,
            encoder.snapshot,
        )
        return ScoreSource(self._add(step), encoder.seed, parts, self.seeds)

    def _add_heldout(self, run: Step) -> str:
        recipe: PretrainConfig = run.config
        causal = recipe.masking.kind == "left_to_right"
        options = HeldOutOptions(
            model=str(self.folder(run) / MODEL),
            corpus=recipe.corpus,
            sequences=self.scale.heldout,
            length=recipe.phases[0].length,
            pairs=recipe.pairs,
            # The paper's masks for all rows, however the model was trained.
            masking=recipe.masking if causal else MaskOptions(),
            device=self.config.device,
            threads=self.config.threads,
        )
        if not run.needs:  # the corpus was given
            self._check_heldout(recipe)
        return self._add(Step("heldout", run.label, options, (run.key,), (run.name, *run.needs)))

    def _check_heldout(self, recipe: PretrainConfig) -> None:
        """Refuse a corpus without held-out text now, not after hours of pre-training."""
        store = TokenStore.open(recipe.corpus, "heldout")
        if problem := store_problem(store, recipe.pairs.kind):
            raise ConfigError(
                f"{recipe.corpus}: {self.table.name} measures held-out text, but there is "
                f"{problem} `bothways corpus --heldout` sets some aside."
            )

    def _task(self, name: str) -> TaskData:
        """A task at this scale; adds the steps that make its files."""
        if name not in self.tasks:
            text = self._add_text() if TASKS[name].data == "text" else None
            folder = None if text is None else self.folder(text)
            task = read_task(name, self.scale, self.config, text, folder, self.out / RUNS)
            for step in task.steps:
                self._add(step)
            self.tasks[name] = task
        return self.tasks[name]

    # -------------------------------------------------------------- steps: text to encoders

    def _add_pretraining(self, row: Row, seed: int) -> Step:
        corpus = self._add_corpus(row)
        changes = dict(row.pretrain)
        if row.static:
            changes["masking.duplicates"] = self.scale.duplicates
        if row.size is not None and self.scale.sizes[row.size] != model_size(self.base):
            names = ("model.layers", "model.hidden", "model.heads")
            changes |= dict(zip(names, self.scale.sizes[row.size], strict=True))
        if self._is_figure5_run(changes):
            steps = snapshot_steps(self.scale, self.steps_of_run)
            changes["snapshots"] = tuple(step for step in steps if step < self.steps_of_run)
        recipe = changed(self.base, {**changes, "seed": seed, "corpus": str(corpus.folder)})
        label = (difference(self.base, recipe), self._vocabulary_label(row))
        step = Step(
            "pretrain",
            "-".join(part for part in label if part) or "base",
            recipe,
            corpus.inputs,
            corpus.needs,
        )
        self._add(step)
        return step

    def _is_figure5_run(self, changes: Changes) -> bool:
        """Whether a run is one of figure5's curves.

        figure5 shares its runs with other tables, and snapshots cannot be taken afterwards. So
        these runs take figure5's snapshots whichever table trains them.
        """
        recipe = recipe_fields(changed(self.base, changes))
        return any(
            recipe == recipe_fields(changed(self.base, curve.pretrain)) for curve in FIGURE5.rows
        )

    def _add_corpus(self, row: Row) -> _CorpusSource:
        """The corpus that was given, or else the steps that make one."""
        if not self.scale.embedded and not self.table.learns_vocabulary:
            folder = Path(self.config.corpus or "")
            return _CorpusSource(folder, (Manifest.read(folder).fingerprint,))
        files: tuple[str, ...] = self.config.text
        inputs: tuple[str, ...] = ()
        needs: tuple[str, ...] = ()
        if self.scale.embedded:
            text = self._add_text()
            files, inputs = (str(self.folder(text) / TEXT),), (text.key,)
            needs = (text.name,)
        else:
            inputs = tuple(sha256(path)[:16] for path in list_files(files, INPUT_SUFFIXES))
        learned = self._learning_options(row)
        values = {f.name: getattr(learned, f.name) for f in dataclasses.fields(learned)}
        options = VocabularyConfig(**values, files=files, out="")
        label = self._vocabulary_label(row)
        vocabulary = Step("vocabulary", label, options, inputs, needs)
        self._add(vocabulary)
        build = CorpusConfig(
            files=files,
            tokenizer=str(self.folder(vocabulary)),
            out="",
            heldout=0.02 if self.scale.embedded else 0.01,
            sentences="line" if self.scale.embedded else "split",
            single_sentence="drop" if self.scale.embedded else "join",
            workers=self.config.threads or -1,
        )
        corpus = Step("corpus", label, build, (vocabulary.key,), (*needs, vocabulary.name))
        self._add(corpus)
        return _CorpusSource(self.folder(corpus), (corpus.key,), (corpus.name,))

    def _learning_options(self, row: Row) -> LearningOptions:
        return changed(self.scale.vocabulary, dict(row.vocabulary))

    def _vocabulary_label(self, row: Row) -> str:
        return difference(self.scale.vocabulary, self._learning_options(row))

    def _add_text(self) -> Step:
        installed = [f"{name} {version}" for name, version in versions().items()]
        step = Step("text", "", TextOptions(), tuple(installed))
        self._add(step)
        return step

    def _add(self, step: Step) -> str:
        """Add a step, or its parts to the equal step that was added before; its name."""
        if (added := self.steps.get(step.name)) is not None:
            wanted = tuple(dict.fromkeys([*added.wanted, *step.wanted]))
            step = dataclasses.replace(added, wanted=wanted)
        self.steps[step.name] = step
        return step.name

    def folder(self, step: Step) -> Path:
        """Where a step is computed."""
        return self.out / RUNS / step.name


def snapshot_steps(scale: Scale, steps: int) -> tuple[int, ...]:
    """The steps after which the model of a run is kept."""
    return tuple(dict.fromkeys(max(1, round(share * steps)) for share in scale.snapshots))


def _shape(recipe: PretrainConfig) -> ModelConfig:
    return recipe.model.resolve(vocab_size=1)
