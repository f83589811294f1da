"""What the tables of instances of an epoch take, by the number of documents.

    python scripts/measure_instances.py --documents 100000 300000 1000000

Documents have 1 to 15 sentences of 5 to 35 tokens, drawn at random; there are no tokens, because a
table is made from lengths alone. Each count runs in a process of its own, whose largest resident
memory is told (of Linux), with that before the table was made, which holds the lengths.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

LENGTH = 128


def resident(name: str) -> float:
    """MiB of this process: VmRSS now, VmHWM at most."""
    state = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{name}:\s+(\d+)", state)
    assert found
    return int(found[1]) / 1024


def measure(documents: int) -> None:
    """Make the tables of one epoch, and print a row."""
    from bothways.pretraining.instances import create_instances, training_order
    from bothways.pretraining.options import PairOptions

    rng = np.random.default_rng(0)
    document_bounds = np.concatenate([[0], np.cumsum(rng.integers(1, 16, documents))])
    sentences = int(document_bounds[-1])
    sentence_bounds = np.concatenate([[0], np.cumsum(rng.integers(5, 36, sentences))])
    template = SimpleNamespace(room=lambda length, texts: length - 3, border_cost=1)
    store = SimpleNamespace(
        document_bounds=document_bounds, sentence_bounds=sentence_bounds, documents=documents,
        sentences=sentences, tokenizer=SimpleNamespace(template=template), split="train",
        folder="no folder",
    )  # fmt: skip
    before, start = resident("VmRSS"), time.process_time()
    instances = create_instances(
        cast(Any, store), length=LENGTH, options=PairOptions(), seed=0, epoch=0
    )
    table, made = resident("VmHWM"), time.process_time()
    training_order(len(instances), seed=0, epoch=0)
    ordered, end = resident("VmHWM"), time.process_time()
    print(
        f"| {documents:,} | {sentences:,} | {sentence_bounds[-1]:,} | {len(instances):,} | "
        f"{before:,.0f} | {table:,.0f} | {ordered:,.0f} | {made - start:.1f} | {end - made:.1f} |",
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
    print(
        "| documents | sentences | tokens | instances | MiB before | with the table, at most |",
        end="",
    )
    print(" and the order | processor seconds: table | order |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    for count in options.documents:
        subprocess.run([sys.executable, __file__, "--one", str(count)], check=True)


if __name__ == "__main__":
    main()
