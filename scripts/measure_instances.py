"""What the tables of instances of an epoch take, by the number of documents.

    python scripts/measure_instances.py --documents 1000000 10000000 100000000

Documents have 1 to 15 sentences of 5 to 35 tokens, drawn at random; there are no tokens, because a
table is made from lengths alone. Each count runs in a process of its own. Told are its largest
memory that no file stands behind (RssAnon of Linux, looked at twenty times a second), that of the
lengths included, and the bytes of the arrays: those above 256 MiB lie in files without a name, in
the folder of TMPDIR or in /var/tmp.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

LENGTH = 128
DRAWN = 1 << 18  # lengths at once


@contextmanager
def largest_memory() -> Iterator[list[float]]:
    """MiB of this process that no file stands behind, at most; of Linux."""
    largest, ended = [0.0], threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            state = Path("/proc/self/status").read_text(encoding="ascii")
            found = re.search(r"RssAnon:\s+(\d+)", state)
            assert found
            largest[0] = max(largest[0], int(found[1]) / 1024)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield largest
    finally:
        ended.set()
        looking.join()


def drawn_bounds(rng: np.random.Generator, least: int, below: int, count: int) -> Any:
    """Bounds of rows with lengths drawn at random."""
    from bothways.arrays import Growing

    growing, last = Growing("lengths"), 0
    growing.append(np.zeros(1, np.int64))
    for start in range(0, count, DRAWN):
        own = last + np.cumsum(rng.integers(least, below, min(DRAWN, count - start)))
        growing.append(own)
        last = int(own[-1])
    return growing.array()


def measure(documents: int) -> None:
    """Make the tables of one epoch, and print a row."""
    from bothways.pretraining.instances import create_instances, training_order
    from bothways.pretraining.options import PairOptions

    rng = np.random.default_rng(0)
    with largest_memory() as lengths_only:
        document_bounds = drawn_bounds(rng, 1, 16, documents)
        sentences = int(document_bounds[-1])
        sentence_bounds = drawn_bounds(rng, 5, 36, sentences)
    template = SimpleNamespace(room=lambda length, _texts: length - 3, border_cost=1)
    store = SimpleNamespace(
        document_bounds=document_bounds, sentence_bounds=sentence_bounds, documents=documents,
        sentences=sentences, tokenizer=SimpleNamespace(template=template), split="train",
        folder="no folder",
    )  # fmt: skip
    start, begun = time.process_time(), time.monotonic()
    with largest_memory() as table:
        instances = create_instances(
            cast(Any, store), length=LENGTH, options=PairOptions(), seed=0, epoch=0
        )
        made, waited = time.process_time(), time.monotonic()
    with largest_memory() as ordered:
        order = training_order(len(instances), seed=0, epoch=0)
        end, ended = time.process_time(), time.monotonic()
    assert instances.b is not None
    assert instances.label is not None
    held = (document_bounds, sentence_bounds, order)
    size = sum(array.nbytes for array in (*held, instances.a, instances.b, instances.label))
    print(
        f"| {documents:,} | {sentences:,} | {sentence_bounds[-1]:,} | {len(instances):,} | "
        f"{size / 1e6:,.0f} | {lengths_only[0]:,.0f} | {table[0]:,.0f} | {ordered[0]:,.0f} | "
        f"{made - start:.1f} ({waited - begun:.1f}) | {end - made:.1f} ({ended - waited:.1f}) |",
        flush=True,
    )


def main() -> None:
    """Print a row for each count."""
    if sys.argv[1:2] == ["--one"]:
        measure(int(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, nargs="+", default=[100_000, 1_000_000])
    options = parser.parse_args()
    print("| documents | sentences | tokens | instances | MB of arrays |", end="")
    print(" MiB at most: lengths | table | order |", end="")
    print(" processor seconds (and waited): table | order |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for count in options.documents:
        subprocess.run([sys.executable, __file__, "--one", str(count)], check=True)


if __name__ == "__main__":
    main()
