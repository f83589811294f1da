"""Kill a pre-training run repeatedly; it must end with the bytes of an uninterrupted run.

    python scripts/kill_test.py --kills 20

Trains a tiny BERT on the docstrings of Python's standard library, once without interruption and
once with SIGKILL at random moments: while it starts up, trains, writes a checkpoint, and finishes.
After each kill the same command is run again. At the end the weights of the model and its
snapshots, the optimizer's state and the records must be identical, byte for byte. If a run reaches
its end before all kills are used, it is compared as well, and another run is started. Exits with 1
if anything differs.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bothways.config import CorpusConfig, VocabularyConfig
from bothways.corpus.build import build_corpus
from bothways.files import sha256
from bothways.tokenization.build import build_vocabulary
from bothways.training.monitor import METRICS, read_metrics
from bothways.training.precision import choose_precision

STARTING, TRAINING, SAVING, FINISHING = "starting up", "training", "saving", "finishing"
RECIPE = """\
model: {size: tiny, layers: 2, hidden: 64, heads: 2, positions: 48}
clock: {steps: %d}
phases:
  - {length: 32, share: 0.8, batch: 16, micro_batch: 8}
  - {length: 48, share: 0.2, batch: 8, micro_batch: 4}
optimizer: {lr: 1e-3, warmup: 0.1}
checkpoint: {minutes: 0.005, keep: 2}
evaluate: {every: 100, sequences: 64}
log_every: 1
snapshots: [%d, %d]
"""


def snapshot_steps(steps: int) -> tuple[int, int]:
    """The steps of a run after which snapshots are taken."""
    return steps // 3, steps // 2


# Waiting threads sleep, so that the runs do not need cores of their own.
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive"}


class FailedError(Exception):
    """A run that failed without being killed."""


@dataclass(frozen=True)
class Runs:
    """What all runs share: the command, and how long it takes to start."""

    folder: Path
    steps: int
    precision: str
    threads: int

    def start(self, run: Path) -> subprocess.Popen[bytes]:
        """Start a run, or continue it."""
        command = [sys.executable, "-m", "bothways.cli", "pretrain", self.folder / "recipe.yaml"]
        command += ["--corpus", self.folder / "corpus", "--run", run]
        command += ["--precision", self.precision, "--threads", str(self.threads)]
        with (self.folder / f"{run.name}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT)

    def finish(self, run: Path) -> None:
        """Run to the end without interruption."""
        self.check(run, self.start(run).wait())

    def check(self, run: Path, status: int) -> None:
        """Raise if a run failed without being killed."""
        if status:
            log = (self.folder / f"{run.name}.log").read_text(errors="replace")
            raise FailedError(f"the run ended with status {status}:\n{log[-3000:]}")


def write_text(path: Path, documents: int) -> None:
    """Write the docstrings of standard library modules, one document per module."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = []
    for file in sorted(library.glob("*.py")) + sorted(library.glob("*/*.py")):
        if "test" in str(file.relative_to(library)) or len(texts) == documents:
            continue
        docstrings = [
            " ".join(text.split())
            for node in ast.walk(ast.parse(file.read_bytes()))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and (text := ast.get_docstring(node))
        ]
        if len(docstrings) > 2:
            texts.append("\n".join(docstrings))
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def prepare(folder: Path, steps: int) -> None:
    """Make the text, vocabulary, corpus and recipe of the runs."""
    text, vocabulary = str(folder / "text.txt"), str(folder / "vocabulary")
    write_text(Path(text), documents=60)
    build_vocabulary(VocabularyConfig(files=(text,), out=vocabulary, size=1000))
    corpus = str(folder / "corpus")
    build_corpus(CorpusConfig(files=(text,), tokenizer=vocabulary, out=corpus, heldout=0.1))
    (folder / "recipe.yaml").write_text(RECIPE % (steps, *snapshot_steps(steps)), encoding="utf-8")


def unfinished(run: Path) -> set[tuple[int, int]]:
    """Checkpoints that are being written, or were when the run was killed."""
    found = set()
    try:
        for path in (run / "checkpoints").glob(".partial-*"):
            entry = path.stat()
            found.add((entry.st_ino, entry.st_mtime_ns))
    except FileNotFoundError:  # finished in between
        pass
    return found


def size(run: Path) -> int:
    """Size of the records in bytes, which grows with every step."""
    try:
        return (run / METRICS).stat().st_size
    except FileNotFoundError:
        return 0


def steps_done(run: Path) -> int:
    """The last step on record."""
    return max((record["step"] for record in read_metrics(run / METRICS)), default=0)


def wait_for(process: subprocess.Popen[bytes], moment: Callable[[], bool]) -> None:
    """Wait until the moment has come, or the process has ended."""
    while process.poll() is None and not moment():
        time.sleep(0.0005)


def wait_to_kill(
    runs: Runs, run: Path, process: subprocess.Popen[bytes], aim: str, draw: random.Random
) -> None:
    """Wait for a random moment in the state that is aimed at.

    When a run starts it cuts its records back to the step it continues from, and then adds one with
    every step: if they grow, it is training.
    """
    last = 0

    def grows() -> bool:
        nonlocal last
        before, last = last, size(run)
        return 0 < before < last

    delay = draw.uniform(0, 3.0)
    if aim == TRAINING:
        wait_for(process, grows)
        delay = draw.uniform(0, 2.5)
    elif aim == SAVING:
        wait_for(process, grows)
        wait_for(process, lambda: bool(unfinished(run)))
        delay = draw.uniform(0, 0.03)
    elif aim == FINISHING:
        end = run / "checkpoints" / f"step-{runs.steps}"
        wait_for(process, end.exists)
        delay = draw.uniform(0, 0.3)
    until = time.monotonic() + delay
    wait_for(process, lambda: time.monotonic() >= until)


def state_after(
    runs: Runs, run: Path, recorded_before: int, unfinished_before: set[tuple[int, int]]
) -> str:
    """The state in which the process was killed, judging from its folder."""
    if unfinished(run) - unfinished_before:
        return SAVING
    if (run / "checkpoints" / f"step-{runs.steps}").exists():
        return FINISHING
    return TRAINING if steps_done(run) > recorded_before else STARTING


def differences(run: Path, uninterrupted: Path, steps: int) -> list[str]:
    """The files that differ between two finished runs."""
    last = f"checkpoints/step-{steps}"
    files = ["model/model.safetensors", f"{last}/model.safetensors", f"{last}/training.safetensors"]
    files += [f"snapshots/{step}/model.safetensors" for step in snapshot_steps(steps)]
    different = [name for name in files if sha256(run / name) != sha256(uninterrupted / name)]

    def records(folder: Path) -> list[str]:
        no_speed = {"tokens_per_second": 0, "loader_wait": 0}
        return [json.dumps({**record, **no_speed}) for record in read_metrics(folder / METRICS)]

    return different + ([METRICS] if records(run) != records(uninterrupted) else [])


def kill_repeatedly(runs: Runs, kills: int, draw: random.Random) -> tuple[Counter[str], list[Path]]:
    """Use up the kills, on as many runs as it takes, and run the last one to its end."""
    states: Counter[str] = Counter()
    ended = [runs.folder / "killed-1"]
    aims = [(STARTING, TRAINING, SAVING)[i % 3] for i in range(kills)]
    if kills > 3:
        aims[-1] = FINISHING
    while aims:
        run = ended[-1]
        before = steps_done(run), unfinished(run)
        process = runs.start(run)
        try:
            wait_to_kill(runs, run, process, aims[0], draw)
        finally:
            process.kill()
            status = process.wait()
        if status >= 0:  # it ended before the kill
            runs.check(run, status)
            ended.append(runs.folder / f"killed-{len(ended) + 1}")
            continue
        state = state_after(runs, run, *before)
        states[state] += 1
        print(f"kill {sum(states.values())}: {state}, step {steps_done(run)}", flush=True)
        aims.pop(0)
    runs.finish(ended[-1])
    return states, ended


def main() -> int:
    """Run the test; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="how often to kill (20)")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps of a run (400)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (2)")
    parser.add_argument("--precision", default="auto", help="auto, bf16 or fp32 (auto)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    parser.add_argument("--folder", help="where to work; a temporary folder if not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, options.steps)
        choice = choose_precision(options.precision)
        print(f"{options.steps} steps, {options.threads} threads, {choice.reason}", flush=True)
        # Both runs must use the same precision, so it is chosen once and not by each run.
        runs = Runs(folder, options.steps, choice.name, options.threads)
        start = time.monotonic()
        uninterrupted = folder / "uninterrupted"
        try:
            runs.finish(uninterrupted)
            print(f"uninterrupted run: {time.monotonic() - start:.1f} s", flush=True)
            states, ended = kill_repeatedly(runs, options.kills, random.Random(options.seed))
        except FailedError as error:
            print(error, file=sys.stderr)
            return 1
        different = [
            f"{run.name}/{name}"
            for run in ended
            for name in differences(run, uninterrupted, runs.steps)
        ]
    spread = ", ".join(
        f"{states[state]} {state}" for state in (STARTING, TRAINING, SAVING, FINISHING)
    )
    verdict = f"DIFFERENT: {', '.join(different)}" if different else "all bytes identical"
    print(
        f"kills {options.kills} ({spread}) | runs {len(ended)} | {choice.name} | "
        f"{options.threads} threads | {time.monotonic() - start:.0f} s | {verdict}"
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
