"""A table at a scale, as steps: which cell comes from which run.

Rows of a table share data, steps, and seeds. What two rows (or two tables) have in common is one
step, because a step's name is what it is and a digest of all it depends on.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from bothways.config import (
    ClockOptions,
    CorpusConfig,
    LayerChoice,
    MaskOptions,
    ModelConfig,
    PretrainConfig,
    ReproduceConfig,
    VocabularyConfig,
    recipe_fields,
)
from bothways.corpus.store import Manifest, TokenStore
from bothways.errors import ConfigError
from bothways.files import sha256
from bothways.options import read_recipe
from bothways.pretraining.plan import unfit
from bothways.pretraining.run import MODEL
from bothways.pretraining.snapshots import snapshot_folder
from bothways.reproduce.changes import changed, difference
from bothways.reproduce.columns import Bound, bind
from bothways.reproduce.data import TaskData, check_data, features_of, read_task
from bothways.reproduce.embedded import TEXT, TextOptions
from bothways.reproduce.heldout import HeldOutOptions
from bothways.reproduce.scales import TASKS, Scale
from bothways.reproduce.steps import Step
from bothways.reproduce.tables import FIGURE5, HELDOUT, Row, Table
from bothways.tasks.features import chosen_layers
from bothways.text_files import list_files
from bothways.training.runfolder import versions

RUNS = "runs"


@dataclass(frozen=True)
class Source:
    """Where scores of a cell are.

    Attributes:
        step: its name.
        pretrain_seed: of the model.
        parts: of the step, in the order of the seeds; empty for held-out text.
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
        published: a figure for each column of the grid.
        cells: for each column, the sources of its scores, one for each seed of pre-training.
        group, x: for curves: which one, and the steps of the point.
    """

    label: tuple[str, ...]
    published: tuple[float | None, ...]
    cells: tuple[tuple[Source, ...], ...]
    group: str = ""
    x: float = 0.0


@dataclass(frozen=True)
class Grid:
    """A table at a scale.

    Attributes:
        table, scale: what was asked for.
        columns: those that can be filled.
        rows: with where their scores come from.
        steps: by name, each after those it needs.
        notes: what one must know: stand-ins, what is left out.
        base: the pre-training recipe that the rows change.
    """

    table: Table
    scale: Scale
    columns: tuple[Bound, ...]
    rows: tuple[GridRow, ...]
    steps: dict[str, Step]
    notes: tuple[str, ...]
    base: PretrainConfig


def make_grid(table: Table, scale: Scale, config: ReproduceConfig) -> Grid:
    """The steps of a table.

    Raises:
        ConfigError: data that the table needs and that were not given; options that do not fit.
        InputError, StoreError: data that are not as they should be.
    """
    columns, notes = bind(table, scale, config)
    check_data(table, scale, columns, config)
    builder = _Builder(table, scale, config, columns)
    rows = tuple(made for row in table.rows for made in builder.rows(row))
    sizes = [row.label for row in table.rows if row.size is not None]
    if sizes and sizes != [row.label for row in rows]:
        shown = ", ".join("/".join(label) for label in sizes)
        notes = (*notes, f"The published rows are of layers/hidden/heads {shown}, in this order.")
    return Grid(table, scale, columns, rows, builder.steps, (*notes, *scale.notes), builder.base)


class _Builder:
    """Makes steps, each once."""

    def __init__(
        self, table: Table, scale: Scale, config: ReproduceConfig, columns: tuple[Bound, ...]
    ):
        self.table, self.scale, self.config, self.columns = table, scale, config, columns
        self.out = Path(config.out)
        self.steps: dict[str, Step] = {}
        self.base = _base_recipe(scale, config)
        self.steps_of_run = self.base.clock.steps or 0
        given = config.seeds or (scale.many_seeds if table.many_seeds else scale.seeds)
        self.seeds = given
        self.tasks: dict[str, TaskData] = {}

    # -------------------------------------------------------------------------------------- rows

    def rows(self, row: Row) -> list[GridRow]:
        """A row of the table, or one for each step at which its model was kept."""
        label = row.label
        if row.size is not None:
            label = tuple(map(str, self.scale.sizes[row.size]))
        if not row.snapshots:
            return [GridRow(label, self._published(row), self._cells(row, None))]
        rows = []
        for at in snapshot_steps(self.scale, self.steps_of_run):
            found = self._cells(row, at if at < self.steps_of_run else None)
            named = (*label[:-1], f"{at:,}")
            rows.append(GridRow(named, self._published(row), found, label[0], at))
        return rows

    def _published(self, row: Row) -> tuple[float | None, ...]:
        found = row.published or (None,) * len(self.table.columns)
        return tuple(None if c.published is None else found[c.published] for c in self.columns)

    def _cells(self, row: Row, at: int | None) -> tuple[tuple[Source, ...], ...]:
        seeds = self.config.pretrain_seeds or self.scale.pretrain_seeds
        models = {seed: self._pretrained(row, seed) for seed in seeds}
        return tuple(
            tuple(self._source(row, column, models[seed], seed, at) for seed in seeds)
            for column in self.columns
        )

    def _source(
        self, row: Row, bound: Bound, run: Step, pretrain_seed: int, at: int | None
    ) -> Source:
        if bound.column.of == HELDOUT:
            return Source(self._heldout(run).name, pretrain_seed)
        model, inputs = self._model(run, at)
        layers = row.layers or bound.column.layers
        label = "-".join(part for part in (run.label, f"at-{at}" if at else "") if part)
        if layers is not None:
            return self._features(bound.task, layers, run, model, inputs, label, pretrain_seed)
        task = self._task(bound.task)
        recipe = changed(task.recipe, dict(row.finetune))
        if row.lstm:
            recipe = changed(recipe, {"lstm": _shape(run.config).hidden})
        if recipe.length > (positions := _shape(run.config).positions):
            raise ConfigError(
                f"{bound.title} is read in sequences of {recipe.length}, but the encoder of "
                f"{run.label} has {positions} positions (model.positions); choose among --tasks."
            )
        label = "-".join(
            part for part in (bound.task, label, difference(task.recipe, recipe)) if part
        )
        step = Step(
            "finetune",
            label,
            dataclasses.replace(recipe, model=str(model)),
            (*task.inputs, *inputs),
            (*task.needs, run.name),
            tuple(map(str, self.seeds)),
        )
        return Source(self._add(step), pretrain_seed, tuple(map(str, self.seeds)), self.seeds)

    def _features(
        self,
        name: str,
        layers: LayerChoice,
        run: Step,
        model: Path,
        inputs: tuple[str, ...],
        label: str,
        pretrain_seed: int,
    ) -> Source:
        chosen_layers(layers, _shape(run.config).layers)  # refuses what it has not
        task = self._task(name)
        parts = tuple(f"{layers}:{seed}" for seed in self.seeds)
        recipe = features_of(self.scale, task, self.config)
        step = Step(
            "features",
            "-".join(part for part in (name, label) if part),
            dataclasses.replace(recipe, model=str(model)),
            (*task.inputs, *inputs),
            (*task.needs, run.name),
            parts,
        )
        return Source(self._add(step), pretrain_seed, parts, self.seeds)

    # ------------------------------------------------------------------------------------- steps

    def _add(self, step: Step) -> str:
        """Take in a step, or what it wants besides into the one that is there."""
        there = self.steps.get(step.name)
        if there is not None:
            wanted = tuple(dict.fromkeys([*there.wanted, *step.wanted]))
            step = dataclasses.replace(there, wanted=wanted)
        self.steps[step.name] = step
        return step.name

    def folder(self, step: Step) -> Path:
        """Where it is computed."""
        return self.out / RUNS / step.name

    def _text(self) -> Step:
        installed = [f"{name} {version}" for name, version in versions().items()]
        found = Step("text", "", TextOptions(), tuple(installed))
        self._add(found)
        return found

    def _corpus(self, row: Row) -> tuple[Path, tuple[str, ...], tuple[str, ...]]:
        """Folder, digest, and the step that makes it if one does."""
        if not self.scale.embedded and not self.table.learns_vocabulary:
            folder = Path(self.config.corpus or "")
            return folder, (Manifest.read(folder).fingerprint,), ()
        files: tuple[str, ...] = self.config.text
        inputs: tuple[str, ...] = ()
        needs: tuple[str, ...] = ()
        if self.scale.embedded:
            text = self._text()
            files, inputs = (str(self.folder(text) / TEXT),), (text.key,)
            needs = (text.name,)
        else:
            inputs = tuple(sha256(path)[:16] for path in list_files(files))
        learned = changed(self.scale.vocabulary, dict(row.vocabulary))
        values = {f.name: getattr(learned, f.name) for f in dataclasses.fields(learned)}
        options = VocabularyConfig(**values, files=files, out="")
        label = difference(self.scale.vocabulary, learned)
        vocabulary = Step("vocabulary", label, options, inputs, needs)
        self._add(vocabulary)
        build = CorpusConfig(
            files=files,
            tokenizer=str(self.folder(vocabulary)),
            out="",
            heldout=0.02 if self.scale.embedded else 0.01,
            sentences="line" if self.scale.embedded else "split",
            single_sentence="drop" if self.scale.embedded else "join",
        )
        corpus = Step("corpus", label, build, (vocabulary.key,), (*needs, vocabulary.name))
        self._add(corpus)
        return self.folder(corpus), (corpus.key,), (corpus.name,)

    def _pretrained(self, row: Row, seed: int) -> Step:
        corpus, inputs, needs = self._corpus(row)
        changes = dict(row.pretrain)
        if row.static:
            changes["masking.duplicates"] = self.scale.duplicates
        if row.size is not None and self.scale.sizes[row.size] != _sizes(self.base):
            names = ("model.layers", "model.hidden", "model.heads")
            changes |= dict(zip(names, self.scale.sizes[row.size], strict=True))
        own = recipe_fields(changed(self.base, changes))
        if own in [recipe_fields(changed(self.base, row.pretrain)) for row in FIGURE5.rows]:
            # They cannot be had afterwards, and figure5 shares its runs with other tables.
            kept = snapshot_steps(self.scale, self.steps_of_run)
            changes["snapshots"] = tuple(n for n in kept if n < self.steps_of_run)
        recipe = changed(self.base, {**changes, "seed": seed, "corpus": str(corpus)})
        label = "-".join(
            part for part in (difference(self.base, recipe), self._text_label(row)) if part
        )
        step = Step("pretrain", label or "base", recipe, inputs, needs)
        self._add(step)
        return step

    def _text_label(self, row: Row) -> str:
        learned = changed(self.scale.vocabulary, dict(row.vocabulary))
        return difference(self.scale.vocabulary, learned)

    def _model(self, run: Step, at: int | None) -> tuple[Path, tuple[str, ...]]:
        """The model folder of a run (at a step), and the digest of what it is."""
        folder = self.folder(run)
        if at is None:
            return folder / MODEL, (run.key,)
        return snapshot_folder(folder, at), (run.key, f"step {at}")

    def _heldout(self, run: Step) -> Step:
        recipe: PretrainConfig = run.config
        causal = recipe.masking.kind == "left_to_right"
        options = HeldOutOptions(
            model=str(self.folder(run) / MODEL),
            corpus=recipe.corpus,
            sequences=self.scale.heldout,
            length=recipe.phases[0].length,
            pairs=recipe.pairs,
            # The paper's masks for all, however the model was trained.
            masking=recipe.masking if causal else MaskOptions(),
            device=self.config.device,
            threads=self.config.threads,
        )
        if not run.needs:  # no step makes the corpus
            self._check_heldout(recipe)
        step = Step("heldout", run.label, options, (run.key,), (run.name, *run.needs))
        self._add(step)
        return step

    def _check_heldout(self, recipe: PretrainConfig) -> None:
        """Before hours of pre-training, and not after."""
        store = TokenStore.open(recipe.corpus, "heldout")
        if problem := unfit(store, recipe.pairs.kind):
            raise ConfigError(
                f"{recipe.corpus}: {self.table.name} measures held-out text, but there is "
                f"{problem} `bothways corpus --heldout` sets some aside."
            )

    def _task(self, name: str) -> TaskData:
        if name not in self.tasks:
            text = self._text() if TASKS[name].data == "text" else None
            folder = None if text is None else self.folder(text)
            found = read_task(name, self.scale, self.config, text, folder, self.out / RUNS)
            for step in found.steps:
                self._add(step)
            self.tasks[name] = found
        return self.tasks[name]


def snapshot_steps(scale: Scale, steps: int) -> tuple[int, ...]:
    """Steps at which a model is kept."""
    return tuple(dict.fromkeys(max(1, round(share * steps)) for share in scale.snapshots))


def _base_recipe(scale: Scale, config: ReproduceConfig) -> PretrainConfig:
    """The scale's recipe with what the command line says.

    Raises:
        ConfigError: the recipe has a clock without steps, or starts from a model.
    """
    base = scale.pretrain
    if config.recipe:
        values = read_recipe(PretrainConfig, config.recipe)
        if values.get("start") is not None:
            raise ConfigError(
                f"{config.recipe}: start is {values['start']}, but the rows of a table begin at "
                "new weights; leave it out."
            )
        clock = {n.removeprefix("clock."): v for n, v in values.items() if n.startswith("clock.")}
        rest = {n: v for n, v in values.items() if not n.startswith("clock.")}
        base = changed(base, rest)
        if clock:
            base = dataclasses.replace(base, clock=ClockOptions(**clock))
    if config.steps:
        base = dataclasses.replace(base, clock=ClockOptions(steps=config.steps))
    if base.clock.steps is None:
        raise ConfigError(
            f"{config.recipe}: rows of a table must have the same steps; give clock.steps in the "
            "recipe, or --steps."
        )
    given = {
        "device": None if config.device == "auto" else config.device,
        "precision": None if config.precision == "auto" else config.precision,
        "threads": config.threads or None,
    }
    return changed(base, {name: value for name, value in given.items() if value is not None})


def _shape(recipe: PretrainConfig) -> ModelConfig:
    return recipe.model.resolve(vocab_size=1)


def _sizes(recipe: PretrainConfig) -> tuple[int, int, int]:
    shape = _shape(recipe)
    return shape.layers, shape.hidden, shape.heads
