"""How long a line takes, and whether memory stays flat, in files of 10^5 to 10^7 lines.

    python scripts/measure_bulk.py --lines 100000 1000000 10000000
    python scripts/measure_bulk.py --lines 100000 --engine auto --model MODEL

Without a model, a tiny one is made, and by default an engine that returns zeros computes it: what
is left is reading, tokenizing and writing. Each count runs in a process of its own, whose largest
resident memory is told (of Linux).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WORDS = "the a of and in to it was he that on with as at by for his had not but from they".split()


class Zeros:
    """An engine that returns zeros."""

    name, precision = "zeros", "fp32"

    def __init__(self, loaded: Any):
        self._sizes, self._hidden = dict(loaded.heads), loaded.config.hidden

    def working(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to set up."""
        return contextlib.nullcontext()

    def compute(
        self, batch: Any, heads: Mapping[str, Any] | None = None, layers: Sequence[int] = ()
    ) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """Zeros of the right shapes."""
        found = {n: np.zeros((len(at), self._sizes[n]), "f4") for n, at in (heads or {}).items()}
        for layer in layers:
            found[f"layer {layer}"] = np.zeros((len(batch.tokens), self._hidden), "f4")
        return found


def tiny_model(folder: Path) -> Path:
    """A folder with a classifier of 16 dimensions on the words of the lines."""
    from bothways.families.config import ModelConfig
    from bothways.model.folder import save_model
    from bothways.model.model import EncoderModel
    from bothways.tokenization.pieces import SPECIAL_PIECES
    from bothways.tokenization.tokenizer import Tokenizer

    pieces = [*SPECIAL_PIECES, *WORDS, *map(str, range(10)), *(f"##{n}" for n in range(10))]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    tokenizer = Tokenizer.from_folder(folder / "vocab.txt")
    config = ModelConfig(
        vocab_size=len(pieces), layers=1, hidden=16, heads=1, intermediate=16, positions=64
    )
    options = {"text": "text", "label": "label"}
    about = {"kind": "classification", "labels": ["a", "b"], "options": options, "length": 64}
    save_model(folder / "model", EncoderModel(config, classes=2), tokenizer, about)
    return folder / "model"


def lines(count: int) -> Iterator[str]:
    """Short texts as JSON lines."""
    for n in range(count):
        words = (WORDS[(n * 7 + k * k) % len(WORDS)] for k in range(4 + n % 9))
        yield json.dumps({"id": n, "text": " ".join([*words, str(n)])}) + "\n"


def run(words: Sequence[str]) -> None:
    """One verb in this process, with an engine of zeros among the engines."""
    from importlib.metadata import EntryPoint

    from bothways import cli
    from bothways.runtime import engine

    zeros = EntryPoint("zeros", "measure_bulk:Zeros", engine.GROUP)
    others = engine.engines
    engine.engines = lambda: {**others(), "zeros": zeros}
    sys.path.insert(0, str(Path(__file__).parent))
    status = cli.main(words)
    # That of getrusage counts the process that started this one, too.
    state = Path("/proc/self/status").read_text(encoding="ascii")
    print(status, re.findall(r"VmHWM:\s+(\d+)", state)[0])


def main() -> None:
    """Run all counts of lines, and print a table."""
    if sys.argv[1:2] == ["--one"]:
        run(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--engine", default="zeros")
    parser.add_argument("--model", help="model folder; default: a tiny one")
    parser.add_argument("--verbs", nargs="+", default=["embed", "predict"])
    options = parser.parse_args()
    print("| verb | lines | seconds | microseconds a line | largest memory, MiB |")
    print("|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="bothways-bulk-") as name:
        folder = Path(name)
        model = options.model or str(tiny_model(folder))
        for count in options.lines:
            file = folder / "in.jsonl"
            with file.open("w") as opened:
                opened.writelines(lines(count))
            for verb in options.verbs:
                out = folder / ("out.npy" if verb == "embed" else "out.jsonl")
                words = [verb, model, "--file", str(file), "--out", str(out)]
                words += ["--engine", options.engine]
                words += ["--text", "text"] if verb == "embed" else []
                start = time.monotonic()
                done = subprocess.run(
                    [sys.executable, __file__, "--one", *words], capture_output=True, text=True
                )
                seconds = time.monotonic() - start
                status, peak = done.stdout.split()[-2:] if done.stdout else ("1", "0")
                if status != "0":
                    sys.exit(done.stderr)
                each = f"{1e6 * seconds / count:.1f}"
                mib = int(peak) // 1024
                print(f"| {verb} | {count:,} | {seconds:.1f} | {each} | {mib} |", flush=True)
                out.unlink()


if __name__ == "__main__":
    main()
