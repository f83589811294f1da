"""Kill runs repeatedly; each must end with the bytes of an uninterrupted run.

    python scripts/kill_test.py --kills 20
    python scripts/kill_test.py --verbs pretrain ranks finetune vocab corpus --kills 100 --cold

Runs each verb on the docstrings of Python's standard library, once without interruption and then
with SIGKILL at random moments: training is killed while it starts up, trains, writes a checkpoint,
and finishes, `vocab` and `corpus` anywhere. The process of the command is killed alone or with all
that it has started; of pre-training on two ranks also one rank. After each kill the same command is
run again. At the end all files must be identical, byte for byte, but for times (see
``compare_folders.py``). A run
is killed up to four times, then another is started.

With ``--cold`` the uninterrupted run and every other run that is killed begin with an empty cache
of compiled loops of their own; the rest find what the uninterrupted run has compiled.

Exits with 1 if anything differs, if a run could not go on, or if processes or unfinished files are
left. Elsewhere than on Linux no processes are found, and no single rank is killed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bothways.model.device import choose_precision
from compare_folders import differences
from kill_cases import CASES, OUT, Case, Options
from kill_moments import Pace
from killed_sessions import StuckError, log_of, start

MOST = 4
"""Kills of a run."""


@dataclass
class Tally:
    """What has happened to one verb."""

    verb: str
    runs: int = 0
    kills: int = 0
    cold: int = 0
    identical: int = 0
    different: list[str] = field(default_factory=list)
    stuck: int = 0
    leftovers: int = 0
    processes: int = 0

    HEADER = (
        "| verb | runs | kills | cold starts | identical | different | could not go on "
        "| leftovers | processes left |\n|---|---|---|---|---|---|---|---|---|"
    )

    def __str__(self) -> str:
        counts = (self.runs, self.kills, self.cold, self.identical, len(self.different))
        cells = (self.verb, *counts, self.stuck, self.leftovers, self.processes)
        return "| " + " | ".join(map(str, cells)) + " |"

    @property
    def good(self) -> bool:
        """Whether all went as it should."""
        return not (self.different or self.stuck or self.leftovers or self.processes)


class Killer:
    """Kills the runs of one verb.

    Args:
        verb: name of the case.
        case: its command.
        folder: where its runs go.
        cold: whether runs begin with an empty cache of compiled loops.
        draw: of the moments and of what is killed.
    """

    def __init__(self, verb: str, case: Case, folder: Path, *, cold: bool, draw: random.Random):
        self.tally = Tally(verb)
        self._case, self._folder, self._cold, self._draw = case, folder, cold, draw
        self._reference = folder / "uninterrupted"

    def use_up(self, kills: int) -> None:
        """Run without interruption, then kill runs until the kills are used up.

        Raises:
            StuckError: the uninterrupted run failed.
        """
        pace = self._uninterrupted()
        tally = self.tally
        while tally.kills < kills and not tally.stuck:
            tally.runs += 1
            cold = self._cold and tally.runs % 2 == 1
            tally.cold += cold
            place = self._folder / f"killed-{tally.runs}"
            place.mkdir(parents=True)
            name = f"run {tally.runs}{' (cold)' if cold else ''}"
            try:
                self._run(place, name, pace, cold=cold, most=kills - tally.kills)
            except StuckError as error:
                tally.stuck += 1
                print(f"{tally.verb}, {name}: {error}\n{log_of(place)}", flush=True)
                continue
            tally.leftovers += sum(1 for _ in _leftovers(place))
            if different := differences(place / OUT, self._reference / OUT):
                tally.different.append(name)
                print(f"{tally.verb}, {name}: DIFFERENT: {', '.join(different)}", flush=True)
            else:
                tally.identical += 1

    def _uninterrupted(self) -> Pace:
        self._reference.mkdir(parents=True)
        environment = self._environment(self._reference if self._cold else None)
        session = start(self._case.words, self._reference, environment)
        pace = self._case.moments.pace(session, self._reference / OUT)
        if session.process.returncode:
            raise StuckError(f"the uninterrupted run failed:\n{log_of(self._reference)}")
        print(
            f"{self.tally.verb}: {pace.before + pace.rest:.1f} s without interruption", flush=True
        )
        return pace

    def _run(self, place: Path, name: str, pace: Pace, *, cold: bool, most: int) -> None:
        """A run with some kills, at least half of :data:`MOST` unless it ends before."""
        environment = self._environment(
            (place if cold else self._reference) if self._cold else None
        )
        kills = min(self._draw.randint(MOST // 2, MOST), most)
        out, tally = place / OUT, self.tally
        while True:
            session = start(self._case.words, place, environment)
            killed = False
            if kills:
                state = self._case.moments.wait(
                    session,
                    out,
                    pace,
                    number=tally.kills,
                    compiles=cold and not any((place / "numba").iterdir()),
                    draw=self._draw,
                )
                seconds = time.monotonic() - session.started
                way = self._draw.choice(self._case.ways)
                killed = session.kill(way, self._draw)
            if not killed:
                if status := session.process.wait():
                    raise StuckError(f"ended with status {status}, not killed")
                return
            tally.processes += session.end_what_is_left()
            tally.kills, kills = tally.kills + 1, kills - 1
            where = f"{way}, {state()}, after {seconds:.1f} s"
            print(f"kill {tally.kills}: {tally.verb}, {name}: {where}", flush=True)

    def _environment(self, place: Path | None) -> dict[str, str]:
        # Waiting threads sleep, so that runs do not need cores of their own.
        # Runs that are compared say when they started.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "SOURCE_DATE_EPOCH": "0"}
        if place:
            cache = place / "numba"
            cache.mkdir(exist_ok=True)
            environment["NUMBA_CACHE_DIR"] = str(cache)
        return environment


def _leftovers(place: Path) -> Iterator[Path]:
    """What unfinished work should not leave behind: beside the cache of loops, and below."""
    for pattern in (".partial*", f"{OUT}/**/.partial*", ".units-*"):
        yield from place.glob(pattern)


def main() -> int:
    """Run the test; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verbs", nargs="+", choices=CASES, default=["pretrain"])
    parser.add_argument("--kills", type=int, default=20, help="how often to kill, in all (20)")
    parser.add_argument("--cold", action="store_true", help="begin with no loops compiled")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps of a run (400)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (2)")
    parser.add_argument("--precision", default="auto", help="auto, bf16 or fp32 (auto)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    parser.add_argument("--folder", help="where to work; a temporary folder if not given")
    words = parser.parse_args()
    begun = time.monotonic()
    tallies = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(words.folder or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        # All runs must use the same precision, so it is chosen once and not by each run.
        choice = choose_precision(words.precision)
        print(f"{words.steps} steps, {words.threads} threads, {choice.reason}", flush=True)
        options = Options(folder, words.steps, words.threads, choice.name)
        for i, verb in enumerate(words.verbs):
            draw = random.Random(f"{words.seed} {verb}")
            place = folder / "runs" / verb
            killer = Killer(verb, CASES[verb](options), place, cold=words.cold, draw=draw)
            tallies.append(killer.tally)
            share = len(words.verbs)
            try:
                killer.use_up(words.kills // share + (i < words.kills % share))
            except StuckError as error:
                killer.tally.stuck += 1
                print(f"{verb}: {error}", flush=True)
    print(Tally.HEADER, *tallies, sep="\n")
    good = all(tally.good for tally in tallies)
    print(
        f"{choice.name} | {words.threads} threads | {time.monotonic() - begun:.0f} s | "
        f"{'all bytes identical' if good else 'NOT AS IT SHOULD BE'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
