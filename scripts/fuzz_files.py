"""Damage every file that bothways reads, bit by bit and by cutting it off, and see what is said.

    python scripts/fuzz_files.py --count 200 --seed 0

Makes a small corpus, run, fine-tuned model, foreign model folders and predictions in a temporary
folder, and for each kind of file COUNT copies with one bit flipped and COUNT that are cut off. Each
is used as its verb uses it, in this process, and then checked by `doctor` where it has a verdict:

* **named**: refused by a message that names the file or its folder.
* **unnamed**: refused, but the message names neither.
* **note**: used, and a note names the file.
* **same**: used, with the result of the undamaged file (or bytes that nothing reads).
* **other**: used with another result and nothing said; `doctor` may still find it.
* **traceback**, **hang** (60 s), **partial** (output left behind after an error), **killed** (by a
  signal): faults.

Exits with 1 on any fault, or if a file with a checksum of ours was changed and `doctor` is silent.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from bothways import cli
from bothways.api.doctor import diagnose
from bothways.api.model import load
from bothways.corpus.store import refuse_damaged
from bothways.errors import BothwaysError, is_out_of_memory
from bothways.families import ModelConfig
from bothways.model.engine import network_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.checksums import CHECKSUMS
from bothways.runtime.folder import GRAPH, load_model
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.checkpoint import verify_checkpoint

SECONDS, GIB = 60, 4
OUTCOMES = ("named", "unnamed", "note", "same", "other", "traceback", "hang", "partial", "killed")
FAULTS = ("traceback", "hang", "partial", "killed")
TEXT = "The old judge sold a small boat in the morning. My aunt found two letters yesterday."

Use = Callable[[Path], tuple[Any, list[str]]]
"""Uses a folder; gives a result to compare, and notes."""


@dataclass
class Kind:
    """A kind of file.

    Attributes:
        name: in the table.
        folder: with the file, of which each damage gets a copy.
        file: in it.
        use: what reads it.
        ours: it has a checksum of ours, so that `doctor` must tell.
        checked: `doctor` has a verdict on the folder.
        forked: it is used in a process of its own, which a library may end by a signal.
    """

    name: str
    folder: Path
    file: str
    use: Use
    ours: bool = False
    checked: bool = True
    forked: bool = False
    counts: dict[str, Counter[str]] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------- world


def make_world(root: Path) -> list[Kind]:
    """The folders, and which of their files are damaged."""
    (root / "texts").mkdir()
    lines = "\n".join(f"{TEXT} Story {n} begins.\n" for n in range(60))
    (root / "texts/a.txt").write_text(lines, encoding="utf-8")
    pieces = sorted({w.strip(".").lower() for w in lines.split()})
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    vocabulary = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), *".,", *letters]
    vocabulary += [*("##" + letter for letter in letters)]
    vocabulary += [piece for piece in pieces if piece not in vocabulary]
    tokenizer = Tokenizer.from_pieces(vocabulary, lowercase=True)
    tokenizer.save(root / "tokenizer")
    rows = [f"{n} {TEXT}\t{'good' if n % 2 else 'bad'}" for n in range(8)]
    (root / "data").mkdir()
    (root / "data/rows.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    (root / "data/gold.json").write_text(SQUAD)
    (root / "predictions").mkdir()
    (root / "predictions/p.json").write_text('{"q1": "a small boat", "q2": "two letters"}\n')
    shutil.copy(root / "data/gold.json", root / "predictions/gold.json")
    (root / "recipe").mkdir()
    (root / "recipe/mine.yaml").write_text(RECIPE)
    run(["corpus", "--files", "texts", "--tokenizer", "tokenizer", "--out", "corpus", *SMALL])
    run(["pretrain", "recipe/mine.yaml", "--corpus", "corpus", "--run", "run"])
    shape = ModelConfig(
        len(vocabulary), layers=1, hidden=16, heads=2, intermediate=32, positions=64
    )
    about = {"kind": "classification", "labels": ["bad", "good"], "pair": False, "length": 48}
    save_model(root / "ours", EncoderModel(shape, masked_lm=True, classes=2), tokenizer, about)
    shutil.copytree(root / "ours", root / "theirs")
    for name in ("bothways.json", CHECKSUMS):
        (root / "theirs" / name).unlink()
    shutil.copytree(root / "theirs", root / "bin")
    (root / "bin/model.safetensors").unlink()
    state = {f"bert.{n}": v for n, v in bert_names(root / "theirs").items()}
    torch.save(state, root / "bin/pytorch_model.bin")
    shutil.copytree(root / "theirs", root / "text")
    (root / "text/tokenizer.json").unlink()
    run(["export", "ours", "exported"])
    shutil.copytree(root / "exported", root / "graph")
    for name in ("bothways.json", CHECKSUMS):
        (root / "graph" / name).unlink()
    checkpoint = max((root / "run/checkpoints").iterdir(), key=lambda p: p.stat().st_mtime)
    kinds = [  # of corpus.json the report is under no checksum
        Kind(f"corpus: {name}", root / "corpus", name, use_corpus, ours=name.endswith(".arrow"))
        for name in ("train-00000.arrow", "heldout-00000.arrow", "corpus.json", "tokenizer.json")
    ]
    kinds += [
        Kind(f"checkpoint: {name}", checkpoint, name, use_checkpoint, ours=True)
        for name in ("model.safetensors", "training.safetensors", "training.json", "config.json")
    ]
    for folder, ours in (("ours", True), ("theirs", False)):
        names = ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]
        names += ["vocab.txt", "bothways.json", CHECKSUMS] if ours else []
        kinds += [Kind(f"{folder}: {name}", root / folder, name, use_model, ours) for name in names]
    kinds += [
        Kind("ours: onnx/model.onnx", root / "exported", GRAPH, use_graph, ours=True, forked=True),
        Kind("theirs: onnx/model.onnx", root / "graph", GRAPH, use_graph, forked=True),
        Kind("theirs: pytorch_model.bin", root / "bin", "pytorch_model.bin", use_model),
        Kind("theirs: vocab.txt alone", root / "text", "vocab.txt", use_model),
        Kind("rows.tsv", root / "data", "rows.tsv", use_rows, checked=False),
        Kind("predictions", root / "predictions", "p.json", use_predictions, checked=False),
        Kind("gold.json", root / "predictions", "gold.json", use_predictions, checked=False),
        Kind("recipe", root / "recipe", "mine.yaml", use_recipe, checked=False),
    ]
    return kinds


SMALL = ["--heldout", "0.2", "--workers", "1"]
RECIPE = """\
# A recipe of two steps.
model: {layers: 1, hidden: 16, heads: 2, positions: 32}
phases: [{length: 32, batch: 4, micro_batch: 4}]
clock: {steps: 2}
evaluate: {sequences: 4, every: 2}
checkpoint: {minutes: 0}
precision: fp32
threads: 1
"""
SQUAD = """\
{"version": "1.1", "data": [{"title": "t", "paragraphs": [{
 "context": "The judge sold a small boat. My aunt found two letters.", "qas": [
 {"id": "q1", "question": "What was sold?", "answers": [{"text": "a small boat", "answer_start": 15}]},
 {"id": "q2", "question": "What was found?", "answers": [{"text": "two letters", "answer_start": 43}]}
]}]}]}
"""  # noqa: E501


def bert_names(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    return {
        name.removeprefix("bert."): v for name, v in weights.items() if name.startswith("bert.")
    }


def run(argv: list[str]) -> str:
    """A command's output; its error as a BothwaysError."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(argv)
    if status:
        raise BothwaysError(err.getvalue().strip() or out.getvalue().strip())
    return out.getvalue()


# --------------------------------------------------------------------------------- how each is used


def use_model(folder: Path) -> tuple[Any, list[str]]:
    model = load(folder)
    vector = model.embed([TEXT])
    labels = model.predict([TEXT]).values if model.loaded.task_head else None
    network_of(model.loaded)
    ids = tuple(model.tokenizer.encode(TEXT).tokens)
    values = [vector.tobytes(), labels if labels is None else np.asarray(labels).tobytes(), ids]
    return (*values, repr(model.loaded.about.get("labels"))), model.loaded.notes


def use_graph(folder: Path) -> tuple[Any, list[str]]:
    model = load(folder, engine="onnxruntime")
    probabilities = np.asarray(model.predict([TEXT, TEXT[:20]]).values)
    return probabilities.tobytes(), model.loaded.notes


def use_corpus(folder: Path) -> tuple[Any, list[str]]:
    refuse_damaged(folder)
    shown = run(["corpus", "show", str(folder), "--masking.kind", "words"])
    return hashlib.sha256(shown.encode()).hexdigest(), []


def use_checkpoint(folder: Path) -> tuple[Any, list[str]]:
    if problems := verify_checkpoint(folder):
        raise BothwaysError(problems[0])
    load_model(folder)
    return "whole", []


def use_rows(folder: Path) -> tuple[Any, list[str]]:
    out = folder / "out.npz"
    model = folder.parents[1] / "world/ours"
    argv = ["embed", str(model), "--file", str(folder / "rows.tsv"), "--text_a", "sentence"]
    try:
        run([*argv, "--out", str(out)])
    except BothwaysError:
        if list(folder.glob("*out*")):
            raise PartialError from None
        raise
    return out.read_bytes(), []


def use_predictions(folder: Path) -> tuple[Any, list[str]]:
    return run(["score", str(folder / "p.json"), str(folder / "gold.json")]), []


def use_recipe(folder: Path) -> tuple[Any, list[str]]:
    corpus = folder.parents[1] / "world/corpus"
    argv = [
        "pretrain",
        str(folder / "mine.yaml"),
        "--corpus",
        str(corpus),
        "--run",
        str(folder / "r"),
    ]
    return run([*argv, "--print_config"]), []


class PartialError(Exception):
    """A file was left behind by a verb that ended with an error."""


# ----------------------------------------------------------------------------------------- children


def in_child(work: Callable[[], tuple[str, Any]], seconds: float) -> tuple[str, Any]:
    """What work gives in a forked process, or how that ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.setsid()
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (limit + GIB * 2**30,) * 2)
        with os.fdopen(writing, "wb") as out:
            try:
                pickle.dump(work(), out)
            except BaseException as error:
                kind = "memory" if is_out_of_memory(error) else "traceback"
                pickle.dump((kind, traceback.format_exc(limit=-4)[:3000]), out)
        os._exit(0)
    os.close(writing)
    end, data = time.monotonic() + seconds, b""
    with os.fdopen(reading, "rb", buffering=0) as file:
        os.set_blocking(file.fileno(), False)
        while True:
            data += file.read() or b""
            done, _ = os.waitpid(child, os.WNOHANG)
            if done or time.monotonic() > end:
                break
            time.sleep(0.005)
        data += file.read() or b""
    if not done:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "hang", ""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it left running
    return pickle.loads(data) if data else ("killed", "")


# ------------------------------------------------------------------------------------------- damage


def flipped(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


DAMAGES = {"1 bit": flipped, "cut off": cut}


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(kind: Kind, folder: Path, expected: Any) -> str:
    try:
        with limited():
            result, notes = kind.use(folder)
    except BothwaysError as error:
        text = str(error)
        return "named" if kind.file in text or str(folder) in text else "unnamed"
    except TimeoutError:
        return "hang"
    except PartialError:
        return "partial"
    except Exception:
        traceback.print_exc()
        return "traceback"
    if any(kind.file in note or str(folder) in note for note in notes):
        return "note"
    return "same" if result == expected else "other"


def judged(kind: Kind, folder: Path, expected: Any) -> tuple[str, str]:
    """How the use of a damaged folder ends, and what `doctor` says."""
    return outcome(kind, folder, expected), verdict(kind, folder)


def verdict(kind: Kind, folder: Path) -> str:
    if not kind.checked:
        return ""
    try:
        with limited():
            return "doctor" if diagnose(folder) else "doctor silent"
    except Exception:
        traceback.print_exc()
        return "traceback"


def fuzz(kind: Kind, count: int, seed: int, root: Path, shown: bool) -> bool:
    """Damage a file in each way; False on a fault."""
    sound_folder = copy(kind.folder, root)
    if kind.forked:
        wrong, expected = in_child(lambda: ("", kind.use(sound_folder)[0]), SECONDS)
        if wrong:
            raise SystemExit(f"{kind.name} cannot be used as it is: {wrong} {expected}")
    else:
        expected, _ = kind.use(sound_folder)
    data, sound = (kind.folder / kind.file).read_bytes(), True
    for name, damage in DAMAGES.items():
        draw = random.Random(f"{seed} {kind.name} {name}")
        counts = kind.counts[name] = Counter()
        for number in range(count):
            folder = copy(kind.folder, root)
            changed = damage(data, draw)
            (folder / kind.file).write_bytes(changed)
            if kind.forked:
                what, seen = in_child(lambda: judged(kind, folder, expected), 3 * SECONDS)  # noqa: B023
            else:
                what, seen = judged(kind, folder, expected)
            counts[what] += 1
            counts[seen] += 1
            silent = kind.ours and seen == "doctor silent" and changed != data
            fault = what in FAULTS or seen == "traceback" or silent
            sound &= not fault
            if fault or (shown and what in ("other", "unnamed")):
                print(f"{kind.name}, {name} {number}: {what} {seen}", file=sys.stderr)
    return sound


def copy(folder: Path, root: Path) -> Path:
    """A copy under one name, so that messages compare."""
    place = root / "copy" / folder.name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    return place


def table(kinds: list[Kind]) -> str:
    head = ["file", "damage", "tries", *OUTCOMES, "doctor names", "doctor silent"]
    rows = [head, ["---"] * len(head)]
    for kind in kinds:
        for damage, counts in kind.counts.items():
            tries = sum(counts[name] for name in OUTCOMES)
            found = [counts["doctor"], counts["doctor silent"]] if kind.checked else ["", ""]
            rows.append([kind.name, damage, tries, *(counts[n] for n in OUTCOMES), *found])
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def parser(description: str, count: int, count_is: str) -> argparse.ArgumentParser:
    """The options of a campaign."""
    found = argparse.ArgumentParser(description=description.split("\n\n")[0])
    found.add_argument("--count", type=int, default=count, help=count_is)
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--only", default="", help="kinds whose names hold this")
    found.add_argument(
        "--show", action="store_true", help="name what was used and gave another result"
    )
    return found


def campaign(
    options: argparse.Namespace,
    make: Callable[[Path], Any],
    fuzz: Callable[[Any, int, int, Path, bool], bool],
    table: Callable[[list[Any]], str],
) -> int:
    """Make the files, damage every kind of them, and print the table; the exit status."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch).resolve()
        (root / "world").mkdir()
        os.chdir(root / "world")
        kinds = [kind for kind in make(root / "world") if options.only in kind.name]
        sound = [fuzz(kind, options.count, options.seed, root, options.show) for kind in kinds]
        os.chdir("/")
    print(table(kinds))
    print(f"\nseed {options.seed}, {time.monotonic() - started:,.0f} s")
    return 0 if all(sound) else 1


def made_in_child(make: Callable[[], Any]) -> Any:
    """What is made in a process of its own: this one starts no threads before it forks."""
    failed, made = in_child(lambda: ("", make()), 600)
    if failed:
        raise SystemExit(f"the files could not be made: {failed} {made}")
    return made


def main() -> int:
    assert __doc__
    options = parser(__doc__, 200, "damages of each kind").parse_args()
    return campaign(options, lambda world: made_in_child(lambda: make_world(world)), fuzz, table)


if __name__ == "__main__":
    sys.exit(main())
