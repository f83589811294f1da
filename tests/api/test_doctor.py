"""The doctor: sound folders are called sound, and each damage is found and named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bothways import cli
from bothways.api.doctor import diagnose
from bothways.families.options import SizeOptions
from bothways.model.folder import save_model
from bothways.pretraining.options import CheckpointOptions, EvaluateOptions, PretrainConfig
from bothways.pretraining.pretrain import pretrain
from bothways.training.options import ClockOptions, Phase
from model_examples import small_bert, small_config, small_tokenizer


@pytest.fixture(scope="session")
def sound(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps with two checkpoints. Read only."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    pretrain(
        PretrainConfig(
            corpus=str(tiny_corpus),
            run=str(folder),
            model=SizeOptions(layers=1, hidden=16, heads=2, positions=32),
            clock=ClockOptions(steps=2),
            phases=(Phase(length=32, batch=4, micro_batch=4),),
            evaluate=EvaluateOptions(sequences=4, every=2),
            checkpoint=CheckpointOptions(minutes=0),
            precision="fp32",
            threads=1,
        )
    )
    return folder


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "run"))


@pytest.fixture
def corpus(tiny_corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_corpus, tmp_path / "corpus"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model folder without pre-training or checksums behind it."""
    save_model(tmp_path / "model", small_bert(small_config(), classes=2), small_tokenizer(97))
    return tmp_path / "model"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


# ------------------------------------------------------------------------------------ sound folders


def test_sound_folders(
    run: Path, corpus: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [run / "checkpoints" / "step-1", run / "checkpoints" / "step-2"]
    for folder in (run, corpus, model, run / "model", *steps):
        assert diagnose(folder) == []
        assert cli.main(["info", str(folder), "--check"]) == 0
        assert capsys.readouterr().out == f"{folder}: sound\n"


# ------------------------------------------------------------------------------------ other folders


def test_folders_that_are_none(tmp_path: Path) -> None:
    assert diagnose(tmp_path / "x") == [
        f"{tmp_path / 'x'} is not a folder; name a model, run or corpus folder"
    ]
    (problem,) = diagnose(tmp_path)
    assert "holds none of corpus.json (a corpus), run.json (a run) and config.json" in problem


# ------------------------------------------------------------------------------------------- models


def spoil_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["bert.encoder.layer.0.intermediate.dense.bias"][3] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def swap_two_pieces(folder: Path) -> None:
    pieces = (folder / "vocab.txt").read_text().splitlines()
    pieces[7], pieces[8] = pieces[8], pieces[7]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")


def drop_last_piece(folder: Path) -> None:
    pieces = (folder / "vocab.txt").read_text().splitlines()
    (folder / "vocab.txt").write_text("\n".join(pieces[:-1]) + "\n")


def break_about(folder: Path) -> None:
    (folder / "bothways.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda f: truncate(f / "model.safetensors"), "model.safetensors is damaged or truncated"),
        (lambda f: (f / "model.safetensors").unlink(), "holds neither model.safetensors nor"),
        (lambda f: (f / "config.json").unlink(), "config.json does not exist"),
        (lambda f: truncate(f / "config.json"), "is not JSON"),
        (lambda f: truncate(f / "tokenizer.json"), "tokenizer.json: cannot be read"),
        (lambda f: truncate(f / "tokenizer_config.json"), "tokenizer_config.json:8: is not JSON"),
        (break_about, "bothways.json cannot be read"),
        (spoil_weights, "not finite numbers: encoder.layers.0."),
        (swap_two_pieces, "vocab.txt: has other pieces than tokenizer.json"),
        (drop_last_piece, "vocab.txt: has other pieces than tokenizer.json"),
    ],
)
def test_a_damaged_model(
    damage: Callable[[Path], None], named: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(model)
    problems = diagnose(model)
    assert named in problems[0]
    assert all(str(model) in problem for problem in problems)
    assert cli.main(["info", str(model), "--check"]) == 1
    assert capsys.readouterr().out.splitlines() == problems


def test_every_problem_of_a_model_is_named(model: Path) -> None:
    swap_two_pieces(model)
    truncate(model / "model.safetensors")
    vocabulary, weights = diagnose(model)
    assert "vocab.txt: has other pieces" in vocabulary
    assert "model.safetensors is damaged" in weights


# --------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("training.safetensors", "training.safetensors does not match its checksum"),
        ("model.safetensors", "model.safetensors does not match its checksum"),
        ("training.json", "training.json"),
    ],
)
@pytest.mark.parametrize("damage", [truncate, flip_last_byte, Path.unlink])
def test_a_damaged_checkpoint(
    name: str, named: str, damage: Callable[[Path], None], run: Path
) -> None:
    checkpoint = run / "checkpoints" / "step-1"
    damage(checkpoint / name)
    (problem,) = diagnose(run)
    assert named in problem or f"{name} is missing" in problem
    assert "step-1" in problem
    assert diagnose(checkpoint) == [problem]


def test_a_checkpoint_of_another_run(run: Path, tmp_path: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    record["recipe"]["seed"] = 5
    (run / "run.json").write_text(json.dumps(record))
    problems = diagnose(run)
    assert [
        f"step-{n}: it is step {n} of another run; move it" in p for n, p in enumerate(problems, 1)
    ] == [True, True]
    moved = Path(shutil.copytree(run / "checkpoints" / "step-1", tmp_path / "step-1"))
    assert diagnose(moved) == [], "it is not known in which run it belongs"
    for path in (run / "checkpoints").iterdir():
        path.rename(path.with_name(f".foreign-{path.name}"))
    assert diagnose(run) == [], "passed over already"


def test_the_checkpoint_of_a_seed_of_fine_tuning(run: Path) -> None:
    kept = run / "seed-0" / "checkpoints" / "step-1"
    shutil.copytree(run / "checkpoints" / "step-1", kept)
    assert diagnose(run) == diagnose(kept) == []
    truncate(kept / "training.safetensors")
    (problem,) = diagnose(run)
    assert "seed-0/checkpoints/step-1/training.safetensors does not match its checksum" in problem


def test_every_damaged_part_of_a_run_is_named(run: Path) -> None:
    truncate(run / "run.json")
    truncate(run / "checkpoints" / "step-1" / "training.safetensors")
    truncate(run / "checkpoints" / "step-2" / "model.safetensors")
    (run / "model" / "config.json").unlink()
    problems = diagnose(run)
    assert len(problems) == 4
    for name in ("run.json", "step-1/training.s", "step-2/model.s", "model/config.json"):
        assert sum(name in problem for problem in problems) == 1


# ------------------------------------------------------------------------------------------ corpora


def test_a_damaged_corpus(corpus: Path) -> None:
    truncate(corpus / "train-00000.arrow")
    flip_last_byte(corpus / "heldout-00000.arrow")
    problems = diagnose(corpus)
    assert len(problems) == 2
    assert "train-00000.arrow: damaged: " in problems[0]
    assert "heldout-00000.arrow: " in problems[1]


def test_the_vocabulary_of_a_corpus(corpus: Path) -> None:
    swap_two_pieces(corpus)
    (problem,) = diagnose(corpus)
    assert "vocab.txt: has other pieces" in problem
    truncate(corpus / "tokenizer.json")
    assert "tokenizer.json: cannot be read" in diagnose(corpus)[0]
