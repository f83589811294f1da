"""Kill runs at random moments; each must end with the bytes of an uninterrupted run.

    python scripts/kill_test.py --kills 20
    python scripts/kill_test.py --verbs pretrain ranks finetune vocab corpus --kills 100 --cold

Runs each verb on the docstrings of Python's standard library, once without interruption and then
with SIGKILL: half of the kills at any moment of the run, half while a checkpoint or another
unfinished file is being written. The process of the command is killed alone or with all that it has
started; of pre-training on two ranks also one rank. After each kill the same command is run again.
At the end all files must be identical, byte for byte, but for times. A run is killed up to four
times, then another is started. With ``--cold`` every second run begins with no compiled loops.

Exits with 1 if anything differs, if a run could not go on, or if processes or unfinished files are
left. Needs Linux (/proc).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bothways.experiments.documentation import harvest, write_corpus
from bothways.families.config import ModelConfig
from bothways.model.device import choose_precision
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.tokenization.tokenizer import Tokenizer

OUT = "out"  # every run writes a folder of this name, in a folder of its own
MOST = 4  # kills of a run
PATIENCE = 60.0  # seconds in which a command ends after a kill, and all of its processes
MARK = "BOTHWAYS_KILL_TEST"
RECIPE = """\
size: tiny
layers: 2
hidden: 64
heads: 2
positions: 48
steps: %d
phases:
  - {length: 32, share: 0.8, batch: 16, micro_batch: 8}
  - {length: 48, share: 0.2, batch: 8, micro_batch: 4}
lr: 1e-3
warmup: 0.1
checkpoint_minutes: 0.005
checkpoint_keep: 2
evaluate_every: 100
evaluate_sequences: 64
log_every: 1
snapshots: [%d, %d]
"""
MEASURED = {"seconds", "mb_per_second", "tokens_per_second", "loader_wait", "transposed_gradients"}
"""Fields of JSON files that are times, or that are chosen by times."""
TIMES = re.compile(r'<td class="n">\d+</td>(?=\s*</tr>)|about [\d,]+ tokens a second')
"""Times in reports."""


def commands(folder: Path, steps: int, threads: int, precision: str) -> dict[str, list[str]]:
    """The commands to kill, by name; writes the files that they read."""
    program = [sys.executable, "-m", "bothways"]

    def prepare(*words: object) -> None:
        subprocess.run([*program, *map(str, words)], check=True, stderr=subprocess.DEVNULL)

    text, long = folder / "text.txt", folder / "long.txt"
    documents = harvest(packages=["python"], max_mb=0.5)
    write_corpus(documents, text)
    # A word of its own in each document, so that no copy is the same as another.
    lines = text.read_text(encoding="utf-8").split("\n\n")
    copies = (f"copy{n}\n{document}" for n in range(20) for document in lines)
    long.write_text("\n\n".join(copies), encoding="utf-8")
    prepare("vocab", "--files", text, "--size", 1000, "--out", folder / "vocabulary")
    build = ["corpus", "--files", text, "--tokenizer", folder / "vocabulary", "--heldout", 0.1]
    prepare(*build, "--out", folder / "corpus")
    (folder / "recipe.yaml").write_text(RECIPE % (steps, steps // 3, steps // 2), encoding="utf-8")
    shape = {"layers": 2, "hidden": 64, "heads": 2, "intermediate": 256, "positions": 48}
    config = ModelConfig(
        vocab_size=1000, **shape, dropout=0.1, attention_dropout=0.1, left_to_right=False
    )
    model = EncoderModel(config, masked_lm=True, next_sentence=True, seed=1)
    save_model(folder / "model", model, Tokenizer.from_folder(folder / "vocabulary"))
    labelled = ["finetune", "--model", folder / "model", "--run", OUT, "--seeds", 0, 1]
    rows = [
        f"{sentence[:200]}\t{'yes' if ' the ' in sentence else 'no'}"
        for document in documents
        for sentence in document.sentences
        if '"' not in sentence
    ]
    for part, start, end in (("train", 0, 512), ("dev", 512, 640), ("test", 640, 768)):
        path = folder / f"{part}.tsv"
        path.write_text("\n".join(["sentence\tlabel", *rows[start:end]]), encoding="utf-8")
        labelled += [f"--{part}", path]
    labelled += ["--epochs", max(1, steps // 64), "--batch-size", 16, "--max-length", 32]
    pretrain = ["pretrain", folder / "recipe.yaml", "--corpus", folder / "corpus", "--run", OUT]
    training = ["--precision", precision, "--threads"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc_per_node", "2", "-m", "--", "bothways"]
    long_build = ["corpus", "--files", long, "--tokenizer", folder / "vocabulary", "--workers", 2]
    found = {
        "pretrain": [*program, *pretrain, *training, threads],
        "ranks": [*launch, *pretrain, *training, 1],
        "finetune": [*program, *labelled, "--set", "checkpoint_minutes=0.002", *training, threads],
        "vocab": [*program, "vocab", "--files", long, "--size", 1000, "--out", OUT],
        "corpus": [*program, *long_build, "--out", OUT],
    }
    return {name: list(map(str, words)) for name, words in found.items()}


class Session:
    """A started command, its output in a log; all of its processes inherit a mark."""

    def __init__(self, words: list[str], place: Path, cache: Path):
        place.mkdir(parents=True, exist_ok=True)
        self.place, self.mark = place, f"{os.getpid()}-{time.monotonic_ns()}"
        environment = {
            **os.environ,
            **{"OMP_WAIT_POLICY": "passive", "SOURCE_DATE_EPOCH": "0"},
            **{"NUMBA_CACHE_DIR": str(cache), MARK: self.mark},
        }
        with (place / "session.log").open("ab") as log:
            self.process = subprocess.Popen(
                words, cwd=place, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def wait_for(self, moment: Callable[[], bool]) -> None:
        """Wait until the moment has come, or the process has ended."""
        while self.process.poll() is None and not moment():
            time.sleep(0.0005)

    def kill(self, draw: random.Random, *, ranks: bool) -> bool:
        """Kill the process, its group or one of its ranks; false if it had ended before."""
        if self.process.poll() is not None:
            return False
        way = draw.choice(["process", "group", *(["rank"] if ranks else [])])
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        started = sorted(map(int, children.read_text().split())) if way == "rank" else []
        if way == "group":
            os.killpg(self.process.pid, signal.SIGKILL)
        else:
            os.kill(draw.choice(started or [self.process.pid]), signal.SIGKILL)
        return self.process.wait(PATIENCE) != 0

    def left(self) -> list[int]:
        """Its processes that are alive after :data:`PATIENCE`; they are killed."""
        mark, until = f"{MARK}={self.mark}\0".encode(), time.monotonic() + PATIENCE
        while True:
            found = []
            for path in Path("/proc").glob("[0-9]*/environ"):
                try:
                    found += [int(path.parent.name)] if mark in path.read_bytes() else []
                except OSError:  # another user's, or ended meanwhile
                    continue
            if not found or time.monotonic() > until:
                break
            time.sleep(0.1)
        for process in found:
            os.kill(process, signal.SIGKILL)
        return found


def unfinished(place: Path) -> set[Path]:
    """What unfinished work should not leave behind: beside the cache of loops, and below."""
    patterns = (".partial*", f"{OUT}/**/.partial*", ".units-*")
    return {path for pattern in patterns for path in place.glob(pattern)}


def kill_run(
    words: list[str], place: Path, cache: Path, seconds: float, kills: int, draw: random.Random
) -> tuple[int, str]:
    """Run a command that is killed some times, to its end.

    Args:
        words: the command.
        place: an empty folder.
        cache: of compiled loops.
        seconds: that a run takes without interruption.
        kills: at most.
        draw: of the moments and of what is killed.

    Returns:
        How often it was killed, and what went wrong.
    """
    done = 0
    while True:
        session = Session(words, place, cache)
        if done == kills:
            status = session.process.wait()
            return done, f"ended with status {status}" if status else ""
        before, until = unfinished(place), time.monotonic() + draw.uniform(0, seconds)
        session.wait_for(lambda until=until: time.monotonic() >= until)
        if draw.random() < 0.5:
            session.wait_for(lambda before=before: bool(unfinished(place) - before))
        try:
            killed = session.kill(draw, ranks="torch.distributed.run" in words)
        except subprocess.TimeoutExpired:
            return done, "goes on after one of its processes was killed"
        if not killed:
            status = session.process.returncode
            return done, f"ended with status {status}" if status else ""
        done += 1
        if left := session.left():
            return done, f"{len(left)} processes are left"


def differences(folder: Path, reference: Path) -> list[str]:
    """Names of the files that differ, or that only one of two folders has. Not compared: locks,
    TensorBoard's records, and checkpoints but the last, which the clock decides."""

    def contents(folder: Path) -> Iterator[tuple[str, Any]]:
        steps = sorted(folder.glob("checkpoints/step-*"), key=lambda path: int(path.name[5:]))
        for path in folder.rglob("*"):
            left_out = path.suffix == ".lock" or path.parent.name == "tensorboard"
            left_out |= any(path.is_relative_to(step) for step in steps[:-1])
            if path.is_file() and not left_out:
                yield str(path.relative_to(folder)), without_times(path)

    found, expected = dict(contents(folder)), dict(contents(reference))
    return sorted(n for n in {*found, *expected} if found.get(n) != expected.get(n))


def without_times(path: Path) -> Any:
    """The content of a file without what is measured."""
    if path.suffix == ".html":
        return TIMES.sub("", path.read_text(encoding="utf-8"))
    if path.suffix not in (".json", ".jsonl"):
        return path.read_bytes()

    def kept(fields: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in fields if name not in MEASURED}

    text = path.read_text(encoding="utf-8")
    parts = text.splitlines() if path.suffix == ".jsonl" else [text]
    return [json.loads(part, object_pairs_hook=kept) for part in parts]


def main() -> int:
    """Run the test; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ("pretrain", "ranks", "finetune", "vocab", "corpus")
    parser.add_argument("--verbs", nargs="+", choices=names, default=["pretrain"])
    parser.add_argument("--kills", type=int, default=20, help="of each verb (20)")
    parser.add_argument("--cold", action="store_true", help="begin with no loops compiled")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps of a run (400)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (2)")
    parser.add_argument("--precision", default="auto", help="auto, bf16 or fp32 (auto)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    words, wrong = parser.parse_args(), 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        # All runs must use the same precision, so it is chosen once and not by each run.
        choice = choose_precision(words.precision)
        print(f"{words.steps} steps, {words.threads} threads, {choice.reason}", flush=True)
        found = commands(folder, words.steps, words.threads, choice.name)
        for verb in words.verbs:
            draw, cache = random.Random(f"{words.seed} {verb}"), folder / f"numba-{verb}"
            start, reference = time.monotonic(), folder / verb / "uninterrupted"
            if status := Session(found[verb], reference, cache).process.wait():
                sys.exit(f"{verb}: status {status}\n{(reference / 'session.log').read_text()}")
            seconds, done, runs = time.monotonic() - start, 0, 0
            while done < words.kills and runs < 2 * words.kills:
                runs += 1
                place = folder / verb / f"killed-{runs}"
                own = place / "numba" if words.cold and runs % 2 else cache
                kills = min(draw.randint(MOST // 2, MOST), words.kills - done)
                start = time.monotonic()
                killed, problem = kill_run(found[verb], place, own, seconds, kills, draw)
                if not killed:  # loops were compiled before
                    seconds = min(seconds, time.monotonic() - start)
                done += killed
                if not problem and (leftovers := unfinished(place)):
                    problem = f"left behind: {', '.join(map(str, leftovers))}"
                if not problem and (files := differences(place / OUT, reference / OUT)):
                    problem = f"DIFFERENT: {', '.join(files)}"
                wrong += bool(problem)
                print(f"{verb}, run {runs}: {killed} kills, {problem or 'identical'}", flush=True)
    print("all bytes identical" if not wrong else "NOT AS IT SHOULD BE")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
