"""What would fail at the first save fails before the first step, and nothing is left of the try."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bothways.finetuning import finetune as run_seed
from bothways.pretraining import pretrain as pretraining
from bothways.runtime.stored import WEIGHTS
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.trainer import Trainer
from pretraining_examples import small_disk
from small_world import World, run


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("world"))
    made.build()
    return made


def unserialisable(*_: Any) -> dict[str, Any]:
    return {"made_by": object()}


def unsaved(*_: Any, **__: Any) -> None:
    raise RuntimeError("the library cannot save\nthis vocabulary")


@pytest.fixture
def no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "step", lambda *_: pytest.fail("a step was trained"))


def assert_one_error(
    capsys: pytest.CaptureFixture[str], argv: list[str | Path], *parts: str
) -> None:
    capsys.readouterr()
    assert run(*argv) == 1
    error = capsys.readouterr().err
    assert error.startswith("bothways: error: ")
    assert error.count("error:") == 1
    assert "Traceback" not in error
    for part in parts:
        assert part in " ".join(error.split())


FAULTS: dict[str, tuple[Any, str, Any, str]] = {
    "JSON": (pretraining, "_about", unserialisable, "object"),
    "tokenizer": (Tokenizer, "save", unsaved, "the library cannot save"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("no_step")
def test_pretraining_does_not_begin(
    fault: str,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, name, replacement, told = FAULTS[fault]
    monkeypatch.setattr(target, name, replacement)
    out = tmp_path / "run"
    with pytest.raises((TypeError, RuntimeError), match=told):
        run(*world.pretrain(out=out))
    assert not (out / "checkpoints").exists()


def test_what_failed_before_the_first_step_can_be_run_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = world.pretrain(out=tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "save", unsaved)
        with pytest.raises(RuntimeError):
            run(*argv)
    assert run(*argv) == 0
    model = tmp_path / "run" / "model" / WEIGHTS
    assert model.read_bytes() == (world.model / WEIGHTS).read_bytes()


@pytest.mark.usefixtures("no_step")
def test_pretraining_does_not_begin_on_a_full_disk(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file would fit, and so would the model alone."""
    argv = [*world.pretrain(out=tmp_path / "disk" / "run"), "--hidden", "32"]
    with small_disk(tmp_path / "disk", 250):
        assert_one_error(capsys, argv, "run: cannot be written: No space left on device for 0.")


@pytest.mark.parametrize("fault", ["JSON", "tokenizer", "labels"])
@pytest.mark.usefixtures("no_step")
def test_finetuning_does_not_begin(
    fault: str,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = tmp_path / "run" / "seed-0"
    about = run_seed._about
    if fault == "labels":
        same = {"labels": ["yes", "yes"]}
        monkeypatch.setattr(run_seed, "_about", lambda *args: {**about(*args), **same})
        told = "give each output a distinct label"
        assert_one_error(capsys, world.finetune(out=tmp_path / "run"), told)
    else:
        if fault == "JSON":
            monkeypatch.setattr(run_seed, "_about", unserialisable)
        else:
            monkeypatch.setattr(Tokenizer, "save", unsaved)
        with pytest.raises((TypeError, RuntimeError)):
            run(*world.finetune(out=tmp_path / "run"))
    assert not seed.exists()
