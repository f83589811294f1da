"""Measure what building a corpus costs: time, processor time, memory of all processes.

    python scripts/measure_corpus.py --tokenizer vocabulary --workers 2 texts
    python scripts/measure_corpus.py --tokenizer vocabulary --workers 2 --kills 2 texts

Runs `bothways corpus build` on your files in a separate process and prints one line of JSON:
seconds, processor seconds and peak memory of the whole process tree (resident sets added up, so
shared pages count several times), megabytes per second, and a digest of the shards. With
``--kills N`` the build is killed with SIGKILL N times, each time after writing 2 MB more, and
continued by the same command; then the text is built once more without interruption, and the exit
status is 1 if the digests differ or the text was too short for N kills. Linux only (memory is read
from /proc).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory


def main() -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Help)
    parser.add_argument("files", nargs="+", help="text files, folders or globs")
    parser.add_argument("--tokenizer", required=True, help="folder with the vocabulary")
    parser.add_argument("--workers", default="1")
    parser.add_argument("--cluster", help="address of a Dask scheduler")
    parser.add_argument("--language", default="en")
    parser.add_argument("--kills", type=int, default=0, help="how many times to kill it")
    parser.add_argument("--out", help="keep the corpus here; a temporary folder otherwise")
    chosen = parser.parse_args()
    with TemporaryDirectory() as folder:
        out = Path(chosen.out or Path(folder, "corpus"))
        words = [sys.executable, "-m", "bothways", "corpus", "build"]
        words += ["--files", *chosen.files, "--tokenizer", chosen.tokenizer, "--out", str(out)]
        words += ["--workers", chosen.workers, "--language", chosen.language]
        words += ["--cluster", chosen.cluster] if chosen.cluster else []
        started = time.perf_counter()
        peak = 0
        kills = 0
        for kill in range(chosen.kills, -1, -1):
            used_memory, killed = _run(words, out, kill)
            peak, kills = max(peak, used_memory), kills + killed
            if not killed:
                break
        seconds = time.perf_counter() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = json.loads((out / "corpus.json").read_text(encoding="utf-8"))["report"]
        processor = used.ru_utime + used.ru_stime
        result = {
            "text_mb": round(report["text_mb"], 1),
            "seconds": round(seconds, 1),
            "mb_per_second": round(report["text_mb"] / seconds, 2),
            "processor_seconds": round(processor, 1),
            "mb_per_processor_second": round(report["text_mb"] / processor, 2),
            "peak_mib": round(peak / 2**20),
            "tokens": report["train"]["tokens"] + report["heldout"]["tokens"],
            "digest": digest(out),
        }
        if chosen.kills:
            whole = Path(folder, "uninterrupted")
            words[words.index(str(out))] = str(whole)
            _run(words, whole, 0)
            result |= {"kills": kills, "uninterrupted_digest": digest(whole)}
        print(json.dumps(result))
        if kills < chosen.kills or digest(out) != result.get("uninterrupted_digest", digest(out)):
            sys.exit(1)


def digest(corpus: Path) -> str:
    """A digest of the names and bytes of all shards."""
    found = hashlib.sha256()
    for path in sorted(corpus.glob("*.arrow")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _run(words: list[str], out: Path, kills_left: int) -> tuple[int, bool]:
    """Run the build: to its end, or with kills left, until more of it is done, and kill it.

    Returns:
        Peak memory of the process tree in bytes, and whether it was killed.
    """
    log = out.with_name(f".units-{out.name}") / "units.log"
    before = log.stat().st_size if log.exists() else 0
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _memory(process.pid))
        grown = (log.stat().st_size if log.exists() else 0) - before
        if kills_left and grown > 2_000_000:
            os.killpg(process.pid, signal.SIGKILL)  # the group: workers die with it
            process.wait()
            return peak, True
        time.sleep(0.05)
    if process.returncode:
        sys.exit(f"the build ended with status {process.returncode}")
    return peak, False


def _memory(root: int) -> int:
    """Memory of a process and all its descendants: their resident sets added up, in bytes."""
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # ended meanwhile
            parents[int(entry.name)] = int(fields[1])
            pages[int(entry.name)] = int(fields[21])
    tree, new = {root}, {root}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - tree
        tree |= new
    return sum(pages.get(pid, 0) for pid in tree) * os.sysconf("SC_PAGE_SIZE")


class _Help(argparse.RawDescriptionHelpFormatter):
    pass


if __name__ == "__main__":
    main()
