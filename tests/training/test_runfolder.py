"""A run is a folder: continued by the same recipe, refused to another with the difference."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from filelock import FileLock, Timeout

from bothways.errors import ConfigError, RunError
from bothways.pretraining.options import EvaluateOptions, PretrainConfig
from bothways.training.options import ClockOptions, OptimizerOptions, Phase
from bothways.training.runfolder import (
    LOCK,
    RUN_FILE,
    Run,
    changed_numerics,
    locks_released,
    note_changes,
    open_run,
    read_run,
    versions,
)

CONFIG = PretrainConfig(corpus="here", clock=ClockOptions(steps=10), seed=4)


RESOLVED = {"steps": 10, "precision": "fp32", "threads": 2}


def is_held(folder: Path) -> bool:
    """Whether a lock of its own would be refused, as another process's is."""
    lock = FileLock(folder / LOCK, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        return True
    lock.release()
    return False


def start(folder: Path, config: Any = CONFIG, **changes: Any) -> Run:
    options: dict[str, Any] = {"verb": "pretrain", "inputs": {"corpus": "abc"}, **changes}
    return open_run(folder, config, resolve=lambda: dict(RESOLVED), **options)


def test_a_new_run_is_written_down(tmp_path: Path) -> None:
    run = start(tmp_path / "deep" / "run")
    assert run.new
    record = json.loads((run.folder / RUN_FILE).read_text())
    assert record == run.record
    assert record["verb"] == "pretrain"
    assert record["config"]["corpus"] == "here"
    assert record["config"]["phases"][1]["length"] == 512
    assert record["recipe"]["input.corpus"] == "abc"
    assert record["resolved"] == RESOLVED
    assert record["versions"]["torch"]
    assert record["versions"]["machine"]


def test_a_run_of_another_format_is_refused_by_its_number(tmp_path: Path) -> None:
    path = start(tmp_path / "run").folder / RUN_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 1}))
    with pytest.raises(RunError, match=r"a run of format 1, and this version continues format 2"):
        start(tmp_path / "run")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """Another process is refused while one works there, and let in when it has ended by a kill."""
    folder = tmp_path / "run"
    code = (
        "import sys, time; from pathlib import Path\n"
        "from bothways.training.runfolder import locks_released\n"
        "from tests.training.test_runfolder import start\n"
        "with locks_released():\n"
        "    start(Path(sys.argv[1])); print('there', flush=True); time.sleep(60)"
    )
    command, root = [sys.executable, "-c", code, str(folder)], Path(__file__).parents[2]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root)
    assert other.stdout is not None
    assert other.stdout.readline() == b"there\n"
    with pytest.raises(RunError, match=r"another process .*is using .*run; two would overwrite"):
        start(folder)
    other.kill()
    other.wait()
    assert not start(folder).new


def in_thread(action: Callable[[], Any]) -> Any:
    """What an action returns or raises in a thread of its own, which has ended."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(action).result(timeout=60)


def test_another_thread_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever path it takes to the folder."""
    monkeypatch.chdir(tmp_path)
    with locks_released():
        start(tmp_path / "run")
        (tmp_path / "link").symlink_to(tmp_path / "run")
        paths = [tmp_path / "run", tmp_path / "link", Path("run"), tmp_path / "link/../run"]
        for path in paths:
            with pytest.raises(RunError, match=r"is using .*; two "):
                in_thread(lambda path=path: start(path))
        assert not start(tmp_path / "link").new, "the thread itself may open it again"
        with locks_released():
            start(tmp_path / "run")
        assert is_held(tmp_path / "run")
    assert not in_thread(lambda: start(tmp_path / "link")).new


def test_of_threads_that_open_a_folder_at_once_one_has_it(tmp_path: Path) -> None:
    threads, together = 8, Barrier(8)

    @locks_released()
    def use(_: int) -> str:
        together.wait()
        try:
            run = start(tmp_path / "run")
        except RunError as error:
            return str(error)
        finally:
            together.wait()  # nobody has let go of it before
        return "new" if run.new else "old"

    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(use, range(threads)))
    assert found.count("new") == 1
    assert sum("another process or thread" in text for text in found) == threads - 1


def test_options_without_effect_are_not_compared_or_recorded(tmp_path: Path) -> None:
    start(tmp_path / "run")
    other = replace(CONFIG, seed=5)
    with pytest.raises(RunError, match=r"seed: 4 in the folder, 5 requested"):
        start(tmp_path / "run", other)
    assert not start(tmp_path / "run", other, without=("seed",)).new
    assert "seed" not in start(tmp_path / "new", without=("seed",)).record["recipe"]


def test_the_same_recipe_continues_and_decides_nothing_again(tmp_path: Path) -> None:
    start(tmp_path / "run")
    elsewhere = replace(
        CONFIG,
        corpus="moved",
        threads=7,
        precision="fp32",
        log_every=3,
        evaluate=EvaluateOptions(every=2),
    )
    again = open_run(
        tmp_path / "run",
        elsewhere,
        verb="pretrain",
        inputs={"corpus": "abc"},
        resolve=lambda: pytest.fail("decided twice"),
    )
    assert not again.new
    assert again.resolved == RESOLVED


@pytest.mark.parametrize(
    ("config", "inputs", "line"),
    [
        (replace(CONFIG, seed=5), "abc", "seed: 4 in the folder, 5 requested"),
        (
            replace(CONFIG, optimizer=OptimizerOptions(lr=0.5)),
            "abc",
            "lr: 0.0001 in the folder, 0.5 requested",
        ),
        (
            replace(CONFIG, phases=(Phase(length=64),)),
            "abc",
            "[{'length': 64, 'share': 1.0, 'batch': 256, 'micro_batch': 64}] requested",
        ),
        (
            replace(CONFIG, seed=5),
            "xyz",
            "input.corpus: abc in the folder, xyz requested\n  seed: 4 in the folder, 5 requested",
        ),
    ],
)
def test_another_recipe_is_refused_with_the_difference(
    tmp_path: Path, config: PretrainConfig, inputs: str, line: str
) -> None:
    start(tmp_path / "run")
    before = (tmp_path / "run" / RUN_FILE).read_bytes()
    with pytest.raises(RunError) as caught:
        start(tmp_path / "run", config, inputs={"corpus": inputs})
    assert line in str(caught.value)
    expected = 1 if inputs == "abc" else 2
    assert str(caught.value).count(" requested") == expected, "what is equal is not listed"
    assert (tmp_path / "run" / RUN_FILE).read_bytes() == before


def test_a_run_that_began_while_this_one_made_its_choices(tmp_path: Path) -> None:
    def resolve() -> dict[str, Any]:
        start(tmp_path / "run", replace(CONFIG, seed=5))
        return RESOLVED

    with pytest.raises(RunError, match="seed: 5 in the folder, 4 requested"):
        open_run(
            tmp_path / "run", CONFIG, verb="pretrain", inputs={"corpus": "abc"}, resolve=resolve
        )
    record = json.loads((tmp_path / "run" / RUN_FILE).read_text())
    assert record["recipe"]["seed"] == 5


def test_another_verb_and_other_files_are_refused(tmp_path: Path) -> None:
    start(tmp_path / "run")
    with pytest.raises(RunError, match="holds a run of `pretrain`"):
        start(tmp_path / "run", verb="finetune")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(RunError, match="holds other files"):
        start(tmp_path / "full")
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / ".partial-run.json").write_text("{")
    assert start(tmp_path / "killed").new
    with pytest.raises(ConfigError, match="--run FOLDER"):
        start("")  # type: ignore[arg-type]


def test_nothing_is_written_if_nothing_can_be_decided(tmp_path: Path) -> None:
    def refuse() -> dict[str, Any]:
        raise ConfigError("too short")

    with pytest.raises(ConfigError):
        open_run(tmp_path / "run", CONFIG, verb="pretrain", inputs={}, resolve=refuse)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"verb": "x", "recipe": null, "resolved": {}, "versions": {}}', b"\xff"],
)
def test_a_damaged_record(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / RUN_FILE
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RunError, match=r"run\.json is damaged.*--start"):
        read_run(tmp_path)


def test_changes_that_may_change_bits(tmp_path: Path) -> None:
    run = start(tmp_path / "run")
    assert changed_numerics(run, {"threads": 2, "precision": "fp32"}) == []
    run.record["versions"]["torch"] = "1.0"
    found = changed_numerics(run, {"threads": 3, "precision": "bf16"})
    assert sorted(found) == [
        "precision: fp32 -> bf16",
        "threads: 2 -> 3",
        f"torch: 1.0 -> {versions()['torch']}",
    ]


def test_changes_of_steps_that_are_done_again_are_dropped(tmp_path: Path) -> None:
    """As when a damaged checkpoint was passed over."""

    def noted(threads: int, done: int) -> list[str]:
        said: list[str] = []
        numerics = {**RESOLVED, "threads": threads}
        note_changes(start(tmp_path / "run"), numerics, said.append, done=done)
        return said

    start(tmp_path / "run")
    assert "differ from step 6: threads: 2 -> 1" in noted(1, 5)[0]
    noted(3, 10)
    noted(3, 8)
    assert "differ from step 9: threads: 2 -> 3" in noted(3, 14)[0]
    one, three = ["threads: 2 -> 1"], ["threads: 2 -> 3"]
    expected = [{"from_step": 6, "changes": one}, {"from_step": 9, "changes": three}]
    run = start(tmp_path / "run")
    assert run.record["changes"] == expected
    assert run.resolved == RESOLVED
    assert noted(2, 20) == ["as when the run started again, from step 21"]
    assert noted(2, 3) == []
    assert start(tmp_path / "run").record["changes"] == []
