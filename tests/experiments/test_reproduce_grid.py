"""Recomputed tables as grids of steps: what they declare, share and refuse."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bothways import cli
from bothways.config.fields import changed, recipe_fields
from bothways.errors import ConfigError, InputError
from bothways.experiments.options import ReproduceConfig
from bothways.experiments.reproduce import grid
from bothways.experiments.reproduce.grid import difference, make_grid
from bothways.experiments.reproduce.tables import SCALES, TABLES, TASKS, Row
from bothways.finetuning.features import PAPER_SCORES
from bothways.pretraining.options import MaskOptions, PretrainConfig
from reproduce_examples import grid_of, kinds, make_world

CHECK_CONTENT = grid.check_content


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options that give every kind of data."""
    return make_world(tmp_path, monkeypatch)


# ------------------------------------------------------------------------------------ declarations


@pytest.mark.parametrize("scale", list(SCALES))
@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_is_sound_at_every_scale(name: str, scale: str, world: dict[str, Any]) -> None:
    """Its changes name fields that exist, with values that they take; needs come first."""
    if scale == "class" and name in ("table7", "table8"):  # of the last four layers, and it has two
        with pytest.raises(ConfigError, match=r"needs 4 layers, .* has 2; choose another --scale"):
            grid_of(name, scale, **world)
        return
    found = grid_of(name, scale, **world)
    table = TABLES[name]
    assert len(found.rows) == len(table.rows) * (len(SCALES[scale].snapshots) if table.curve else 1)
    for row in table.rows:
        assert len(row.published) in (0, len(table.columns)), row.label
        assert len(row.label) == len(table.headings)
    before: set[str] = set()
    for step in found.steps.values():
        assert set(step.needs) <= before
        before.add(step.name)
        assert re.fullmatch(r"[\w.,()-]+", step.name), "no name for a folder"
    used = {source.step for row in found.rows for cell in row.cells for source in cell}
    assert used <= set(found.steps)


def test_published_figures_are_the_papers() -> None:
    assert [row.published for row in TABLES["table5"].rows] == [
        (84.4, 88.4, 86.7, 92.7, 88.5),
        (83.9, 84.9, 86.5, 92.6, 87.9),
        (82.1, 84.3, 77.5, 92.1, 77.8),
        (82.1, 84.1, 75.7, 91.6, 84.9),
    ]
    assert {row.label: row.published for row in TABLES["table6"].rows} == {
        ("3", "768", "12"): (5.84, 77.9, 79.8, 88.4),
        ("6", "768", "3"): (5.24, 80.6, 82.2, 90.7),
        ("6", "768", "12"): (4.68, 81.9, 84.8, 91.3),
        ("12", "768", "12"): (3.99, 84.4, 86.7, 92.9),
        ("12", "1024", "16"): (3.54, 85.7, 86.9, 93.3),
        ("24", "1024", "16"): (3.23, 86.6, 87.8, 93.7),
    }
    assert [row.published for row in TABLES["table7"].rows] == [
        (96.4, 92.4), *((dev, None) for dev in (91.0, 95.6, 94.9, 95.9, 96.1, 95.5))
    ]  # fmt: skip
    features = {row.layers: row.published[0] for row in TABLES["table7"].rows if row.layers}
    assert features == PAPER_SCORES
    assert {row.label: row.published for row in TABLES["table8"].rows} == {
        ("80%", "10%", "10%"): (84.2, 95.4, 94.9),
        ("100%", "0%", "0%"): (84.3, 94.9, 94.0),
        ("80%", "0%", "20%"): (84.1, 95.2, 94.6),
        ("80%", "20%", "0%"): (84.4, 95.2, 94.7),
        ("0%", "20%", "80%"): (83.7, 94.8, 94.6),
        ("0%", "0%", "100%"): (83.6, 94.9, 94.6),
    }
    mixes = {row.label: row.pretrain for row in TABLES["table8"].rows}
    assert mixes["0%", "20%", "80%"] == {"masking.mask": 0.0, "masking.random": 0.8}


def test_the_paper_scale_is_the_papers() -> None:
    recipe = SCALES["paper"].pretrain
    assert recipe.clock.steps == 1_000_000
    phases = [(phase.length, phase.share, phase.batch) for phase in recipe.phases]
    assert phases == [(128, 0.9, 256), (512, 0.1, 256)]
    assert not recipe.optimizer.bias_correction
    assert SCALES["paper"].sizes[3] == (12, 768, 12)
    labels = [tuple(map(int, row.label)) for row in TABLES["table6"].rows]
    assert list(SCALES["paper"].sizes) == labels


def test_all_rows_are_measured_alike_on_held_out_text(world: dict[str, Any]) -> None:
    """With the paper's masks, whatever a row is trained with."""
    for name in ("masking-rate", "masks", "table6"):
        found = grid_of(name, "cpu", **world)
        assert kinds(found, "heldout")
        for step in kinds(found, "heldout"):
            (run,) = (found.steps[need] for need in step.needs if need.startswith("pretrain"))
            assert (step.config.masking, step.config.pairs) == (MaskOptions(), run.config.pairs)
            assert (step.config.length, step.config.sequences) == (128, 4096)
            assert Path(step.config.model) == Path(world["out"]) / "runs" / run.name / "model"


@pytest.mark.parametrize("name", ["table7", "table8", "masks", "table6"])
def test_what_is_measured_depends_on_the_run_and_the_files(
    name: str, world: dict[str, Any]
) -> None:
    before = set(grid_of(name, "cpu", **world).steps)
    again = set(grid_of(name, "cpu", **world, steps=9).steps)
    assert not {step for step in before & again if not step.startswith("split")}
    (Path(world["ner"]) / "eng.testa").write_text("other\n")
    assert not {s for s in before & set(grid_of(name, "cpu", **world).steps) if "conll2003" in s}


def test_a_corpus_made_anew_is_another(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {step.name for step in kinds(grid_of("table5", "cpu", **world), "pretrain")}
    other = SimpleNamespace(read=lambda _: SimpleNamespace(fingerprint="abd"))
    monkeypatch.setattr(grid, "Manifest", other)
    assert not before & {step.name for step in kinds(grid_of("table5", "cpu", **world), "pretrain")}


def test_a_row_of_a_size_has_a_run_of_that_size(world: dict[str, Any]) -> None:
    found = grid_of("table6", "cpu", **world)
    for row in found.rows:
        step = found.steps[row.cells[0][0].step]
        (run,) = (found.steps[need] for need in step.needs if need.startswith("pretrain"))
        size = run.config.model.resolve(100)
        assert (size.layers, size.hidden, size.heads) == tuple(map(int, row.label))


def test_tasks_have_settings_of_their_own(world: dict[str, Any]) -> None:
    tunings = kinds(grid_of("table5", "cpu", **world), "finetune")
    epochs = {step.label.partition("-")[0]: step.config.epochs for step in tunings}
    scale = SCALES["cpu"].finetune
    own = {name: scale.get(name, {}).get("epochs", scale[""]["epochs"]) for name in epochs}
    assert epochs == own
    assert len(set(epochs.values())) > 1


def test_collapses_are_counted_over_many_seeds(world: dict[str, Any]) -> None:
    tunings = kinds(grid_of("bias-correction", "cpu", **world), "finetune")
    assert {len(step.wanted) for step in tunings} == {SCALES["cpu"].many_seeds}
    assert SCALES["cpu"].many_seeds > SCALES["cpu"].seeds


def test_changes_and_their_names() -> None:
    base = PretrainConfig()
    other = changed(base, {"masking.mask": 0.0, "masking.random": 1.0, "pairs.kind": "full"})
    assert (other.masking.random, other.pairs.kind) == (1.0, "full")
    assert difference(base, other) == "pairs-full-mask-0-random-1"
    assert difference(base, base) == ""
    with pytest.raises(TypeError):
        changed(base, {"masking.musk": 0.0})


# ----------------------------------------------------------------------------------------- sharing


def test_tables_share_what_they_have_in_common(world: dict[str, Any]) -> None:
    found = {name: grid_of(name, "cpu", **world) for name in TABLES}
    base = kinds(found["table5"], "pretrain")[0].name
    for name in ("table5", "table6", "table7", "table8", "figure5", "masks", "masking-rate"):
        assert base in found[name].steps, name
        # Whichever comes first keeps what figure5 needs of it.
        assert found[name].steps[base].config.snapshots == (400, 1000, 2000, 3000), name
    left = kinds(found["figure5"], "pretrain")[1].name
    assert left in found["table5"].steps
    last = found["figure5"].rows[-1].cells[0][0].step
    assert last == found["table5"].rows[2].cells[0][0].step, "the last snapshot is the model"
    features = {name: {s.name for s in kinds(found[name], "features")} for name in found}
    assert features["table7"] <= features["table8"]
    corrected = found["bias-correction"].rows[0].cells[1][0].step
    assert corrected in found["table5"].steps
    # Two rows of a table that differ in fine-tuning alone have one pre-training.
    assert len(kinds(found["table5"], "pretrain")) == 3


def test_rows_differ_in_what_is_declared_alone(world: dict[str, Any]) -> None:
    steps = kinds(grid_of("table8", "cpu", **world), "pretrain")
    recipes = [dataclasses.replace(s.config, snapshots=()) for s in steps]
    plain = {dataclasses.replace(r, masking=recipes[0].masking) for r in recipes}
    assert len(plain) == 1
    assert len({r.masking for r in recipes}) == 6
    finetuned = kinds(grid_of("table5", "cpu", **world), "finetune")
    assert {step.wanted for step in finetuned} == {("0", "1", "2")}


def test_a_steps_name_is_what_it_depends_on(world: dict[str, Any], tmp_path: Path) -> None:
    def names(**changes: Any) -> set[str]:
        return set(grid_of("table5", "cpu", **{**world, **changes}).steps)

    before = names()
    assert before == names(out=str(tmp_path / "elsewhere"))
    assert before == names(threads=7, jobs=2, device="cpu", precision="fp32", seeds=(5, 6))
    assert not {n for n in before & names(steps=9) if not n.startswith("split")}
    seeded = names(pretrain_seeds=(0, 1))
    assert before < seeded, "another seed of pre-training is more runs, not others"
    (tmp_path / "glue/MRPC/dev.tsv").write_text("other\n")
    after = names()
    assert {n.rpartition("-")[0] for n in before - after} == {
        f"finetune-mrpc-{name}"
        for name in ("base", "pairs-full", "pairs-full-masking-left_to_right",
                    "pairs-full-masking-left_to_right-lstm-256")
    }  # fmt: skip


def test_the_text_decides_what_is_learned_from_it(world: dict[str, Any]) -> None:
    found = grid_of("vocabulary", "cpu", **world)
    assert len(kinds(found, "vocabulary")) == len(kinds(found, "corpus")) == 2
    runs = kinds(found, "pretrain")
    assert len({step.key for step in runs}) == 2
    assert {Path(step.config.corpus).name for step in runs} == {
        step.name for step in kinds(found, "corpus")
    }
    Path(world["text"][0]).write_text("other text\n")
    other = grid_of("vocabulary", "cpu", **world)
    assert not {s.key for s in runs} & {s.key for s in kinds(other, "pretrain")}


def test_snapshots_are_kept_where_the_figure_needs_them(world: dict[str, Any]) -> None:
    kept = {s.label: s.config.snapshots for s in kinds(grid_of("table5", **world), "pretrain")}
    assert kept["base"] == kept["pairs-full-masking-left_to_right"] == (20, 40, 60, 80)
    assert kept["pairs-full"] == ()
    models = [Path(s.config.model) for s in kinds(grid_of("figure5", **world), "finetune")]
    assert [m.name for m in models[:5]] == ["20", "40", "60", "80", "model"]


# ------------------------------------------------------------------------------------------ columns


def test_tasks_stand_in_and_are_named(world: dict[str, Any]) -> None:
    found = grid_of("table5", "cpu", **world)
    assert found.columns[0].title == "MNLI-m (SICK-E)"
    assert any(note.startswith("SICK-E stands in for MNLI-m") for note in found.notes)
    assert found.rows[0].published == (84.4, 88.4, 86.7, 92.7, 88.5)
    own = grid_of("table5", "cpu", **world, tasks=("mrpc", "rte"))
    assert [c.title for c in own.columns] == ["MRPC", "RTE"]
    assert own.rows[0].published == (86.7, None)
    both = grid_of("table5", "cpu", **world, tasks=("mnli", "sick"))
    assert [c.title for c in both.columns] == ["MNLI-m", "SICK-E"]
    smoke = grid_of("table5")
    assert any("Nothing here stands in for QNLI, MRPC, SQuAD" in note for note in smoke.notes)
    sizes = grid_of("table6", "cpu", **world)
    assert sizes.rows[3].label == ("4", "256", "4")
    assert any("layers/hidden/heads 3/768/12, 6/768/3" in note for note in sizes.notes)
    assert not any("layers/hidden" in n for n in grid_of("table6", "paper", **world).notes)
    assert {task.stands_for for task in TASKS.values()} - {""} <= set(TASKS)


@pytest.mark.parametrize(("scale", "alike"), [("cpu", True), ("smoke", True), ("paper", False)])
def test_rows_of_the_same_layers_are_named(scale: str, alike: bool, world: dict[str, Any]) -> None:
    notes = " ".join(grid_of("table7", scale, **world).notes)
    assert ("last four' and 'features: weighted sum of all layers' are the same" in notes) == alike


def test_notes_are_true_of_the_recipe(world: dict[str, Any], tmp_path: Path) -> None:
    def notes(name: str, **asked: Any) -> str:
        return " ".join(grid_of(name, "cpu", **world, **asked).notes)

    path = tmp_path / "own.yaml"
    path.write_text("model: {init: normal, dropout: 0.1}\n")
    own = notes("table5", recipe=str(path))
    for said in ("start from primed weights", "without dropout", "ends on the plateau"):
        assert said in notes("table5")
        assert (said in own) == (said == "ends on the plateau")
    assert "plateau" not in notes("table5", steps=5)
    assert "The sizes have a third" in notes("table6")
    assert "The sizes" not in notes("table5")


# ------------------------------------------------------------------------------------------ errors


def test_missing_data_are_named_all_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert cli.main(["reproduce", "table8", "--scale", "cpu", "--out", out]) == 1
    shown = capsys.readouterr().err
    assert "table8 at scale cpu needs data that were not given" in shown
    for option in ("--corpus FOLDER", "--sick FOLDER", "--ner FOLDER"):
        assert option in shown
    assert "--squad" not in shown
    assert cli.main(["reproduce", "tabel8"]) == 1
    assert "did you mean 'table8'?" in capsys.readouterr().err
    assert cli.main(["reproduce"]) == 2
    assert not Path(out).exists()


def test_options_that_do_not_fit_are_refused(world: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'sst2'"):
        grid_of("table5", "cpu", **world, tasks=("sst3",))
    with pytest.raises(ConfigError, match="follows is a task of the scales that make"):
        grid_of("table5", "cpu", **world, tasks=("follows",))
    with pytest.raises(ConfigError, match=r"mrpc is not a task of .* \(smoke, class\)"):
        grid_of("table5", tasks=("mrpc",))
    with pytest.raises(ConfigError, match=r"--tasks: table7 .* mrpc has no tags\. .* conll2003"):
        grid_of("table7", "cpu", **world, tasks=("mrpc",))
    with pytest.raises(ConfigError, match=r"--tasks: table7 .* package has .* smoke .* capitals"):
        grid_of("table7", tasks=("capitals", "package"))
    assert grid_of("table8", tasks=("capitals", "package"))
    with pytest.raises(InputError, match="neither train-v1"):
        grid_of("table5", "cpu", **{**world, "squad": str(tmp_path)})
    (tmp_path / "glue/QNLI/dev.tsv").unlink()
    with pytest.raises(InputError, match=r"QNLI/dev\.tsv: there is no such file"):
        grid_of("table5", "cpu", **world)
    with pytest.raises(ConfigError, match="steps is 0"):
        ReproduceConfig("table5", steps=0)
    with pytest.raises(ConfigError, match="give each once"):
        ReproduceConfig("table5", seeds=(1, 1))


def test_an_encoder_too_small_for_the_table_is_refused(
    world: dict[str, Any], tmp_path: Path
) -> None:
    """Before any is pre-trained."""
    path = tmp_path / "own.yaml"
    path.write_text("model: {layers: 2, hidden: 64, heads: 2}\n")
    with pytest.raises(ConfigError, match="'sum-last-four' needs 4 layers, but this encoder has 2"):
        grid_of("table7", "cpu", **world, recipe=str(path))
    path.write_text("model: {positions: 32}\nphases: [{length: 32, share: 1.0}]\n")
    with pytest.raises(ConfigError, match=r"is read in sequences of 64, but .* 32 positions"):
        grid_of("table5", "smoke", **world, recipe=str(path))
    assert grid_of("table5", "cpu", **world, recipe=str(path)).steps  # read in sequences of 32


def test_a_recipe_takes_the_place_of_the_scales(world: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("clock: {steps: 12}\noptimizer: {lr: 7e-4}\nmasking: {rate: 0.2}\n")
    recipes = [
        s.config for s in kinds(grid_of("table8", "cpu", **world, recipe=str(path)), "pretrain")
    ]
    assert {(r.clock.steps, r.optimizer.lr, r.masking.rate) for r in recipes} == {(12, 7e-4, 0.2)}
    assert len({r.masking.mask for r in recipes}) == 3, "rows are changes on top of it"
    path.write_text("clock: {minutes: 3}\n")
    with pytest.raises(ConfigError, match=r"own\.yaml: the rows .* the same number of steps"):
        grid_of("table8", "cpu", **world, recipe=str(path))
    found = grid_of("table8", "cpu", **world, recipe=str(path), steps=5)
    assert kinds(found, "pretrain")[0].config.clock.steps == 5


@pytest.mark.parametrize(
    ("name", "recipe", "option", "found"),
    [
        ("masking-rate", "masking: {rate: 0.25}", "masking.rate", [0.15, 0.3]),
        ("masking-rate", "masking: {rate: 0.3}", "masking.rate", [0.15, 0.3]),
        ("whole-words", "masking: {kind: words}", "masking.kind", ["pieces", "words"]),
        ("masks", "masking: {duplicates: 1}", "masking.duplicates", [0, 1]),
        ("table5", "pairs: {kind: full}", "pairs.kind", ["next", "full", "full"]),
        ("figure5", "pairs: {kind: full}", "pairs.kind", ["next", "full"]),
    ],
)
def test_rows_are_what_their_labels_say_whatever_the_recipe_says(
    name: str, recipe: str, option: str, found: list[Any], world: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(recipe + "\n")
    runs = kinds(grid_of(name, "cpu", **world, recipe=str(path)), "pretrain")
    assert [recipe_fields(step.config)[option] for step in runs] == found


def test_rows_that_a_recipe_makes_the_same_are_refused(
    world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (Row(("as the recipe",)), Row(("30%",), pretrain={"masking.rate": 0.3}))
    table = dataclasses.replace(TABLES["masking-rate"], rows=rows)
    monkeypatch.setitem(TABLES, "masking-rate", table)
    path = tmp_path / "own.yaml"
    path.write_text("masking: {rate: 0.3}\n")
    with pytest.raises(ConfigError, match=r"own\.yaml: .* 'as the recipe' and '30%' of masking-r"):
        grid_of("masking-rate", "cpu", **world, recipe=str(path))
    assert grid_of("masking-rate", "cpu", **world)


def test_a_recipe_may_say_how_to_compute_but_not_where_to_start(
    world: dict[str, Any], tmp_path: Path
) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("precision: bf16\nthreads: 3\n")
    asked = {**world, "recipe": str(recipe)}
    base = grid_of("table8", "cpu", **asked).base
    assert (base.precision, base.threads, base.device) == ("bf16", 3, "auto")
    base = grid_of("table8", "cpu", **asked, precision="fp32", threads=2).base
    assert (base.precision, base.threads) == ("fp32", 2)
    recipe.write_text("start: models/bert\n")
    with pytest.raises(ConfigError, match=r"own\.yaml: start is models/bert"):
        grid_of("table8", "cpu", **asked)
    recipe.write_text("seed: 3\n")
    with pytest.raises(ConfigError, match=r"own\.yaml: seed is 3, .* --pretrain_seeds 3"):
        grid_of("table8", "cpu", **asked)


def test_a_size_replaces_the_numbers_of_the_scale(world: dict[str, Any], tmp_path: Path) -> None:
    """The smoke scale gives its own size in layers and hidden units."""
    recipe = tmp_path / "own.yaml"
    recipe.write_text("model: {size: mini}\n")
    (run, *_) = kinds(grid_of("table5", "smoke", **world, recipe=str(recipe)), "pretrain")
    assert (run.config.model.size, run.config.model.layers, run.config.model.hidden) == (
        "mini", None, None,
    )  # fmt: skip


def test_files_are_read_before_anything_is_computed(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "check_content", CHECK_CONTENT)
    folder = Path(world["ner"])
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (folder / name).write_text("EU B-ORG\nSingapore I-ORG\nsaid O\n\n")
    (step, *_) = kinds(grid_of("table7", "cpu", **world), "finetune")
    assert step.config.task.tagging.scheme == "auto", "copies in IOB2 are read as well"
    (folder / "eng.testb").write_text("EU B-ORG\nGermany\n")
    with pytest.raises(InputError, match=r"eng\.testb:2: "):
        grid_of("table7", "cpu", **world)
    (folder / "eng.testa").unlink()
    with pytest.raises(InputError, match=r"eng\.testa: there is no such file \(--ner\)"):
        grid_of("table7", "cpu", **world)
    qnli = {**world, "tasks": ("qnli-part",)}
    with pytest.raises(InputError, match=r"QNLI/dev\.tsv"):
        grid_of("table5", "cpu", **qnli)


def test_data_that_a_scale_does_not_read_are_refused(world: dict[str, Any]) -> None:
    config = ReproduceConfig("table5", glue=world["glue"], ner=world["ner"])
    with pytest.raises(ConfigError, match=r"scale smoke makes its own .* --glue, --ner; leave"):
        make_grid(TABLES["table5"], SCALES["smoke"], config)


@pytest.mark.parametrize("size", ["size: small", "layers: 2", "heads: 2", "intermediate: 1024"])
def test_sizes_come_from_the_rows_alone_where_rows_have_them(
    size: str, world: dict[str, Any], tmp_path: Path
) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text(f"model: {{{size}}}\n")
    with pytest.raises(ConfigError, match=r"own\.yaml: .* so do the rows of table6; leave out"):
        grid_of("table6", "cpu", **world, recipe=str(recipe))
    assert grid_of("table5", "cpu", **world, recipe=str(recipe))
    recipe.write_text("model: {size: mini, dropout: 0.1}\n")
    assert grid_of("table6", "cpu", **world, recipe=str(recipe)), "the scale's own size"


@pytest.mark.parametrize("name", ["table6", "masks", "masking-rate"])
def test_held_out_text_that_is_not_there_is_missed_at_once(
    name: str, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = SimpleNamespace(documents=0, sentences=0, split="heldout", document_bounds=np.zeros(1))
    monkeypatch.setattr(grid, "TokenStore", SimpleNamespace(open=lambda *_: empty))
    with pytest.raises(ConfigError, match=f"{name} measures held-out text, but there is no doc"):
        grid_of(name, "cpu", **world)
    assert grid_of("table5", "cpu", **world), "which measures none"
