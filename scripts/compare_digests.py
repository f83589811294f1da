"""Compare what two source trees compute on this machine: weights, scores, predictions, vectors.

    git worktree add ../before REVISION
    python scripts/compare_digests.py ../before/src src
    python scripts/compare_digests.py ../before/src src --folders

tests/golden.json has what any processor computes alike; this compares the rest, of which the last
bits depend on the processor. Both trees run the same command lines on the same small files, each in
processes of their own, and the digests of what they write and print are compared: pre-training of
each kind in fp32 (fast and plain kernels) and bf16, fine-tuning of each kind, and the verbs that
use a model. Between versions: with --folders, the first tree makes model folders and runs that are
killed half-way, and the second uses and continues them, or refuses with a remedy.

Exits with 1 if any item differs. It took ten minutes on two cores that other programs kept busy,
and eight of CPU time; --only chooses cases by a part of their name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

SIDES = ("old", "new")
Items = dict[str, str]
Words = tuple[str, ...]

# ------------------------------------------------------------------------------- the command lines


@dataclass(frozen=True)
class Case:
    """A run, and commands that use its model.

    Attributes:
        name: of its items; also of its folder.
        train: the verb and its options, without the run folder.
        model: the model in the run folder.
        uses: commands; ``MODEL`` stands for the model, ``OUT`` for a path without suffix.
        taken_over: the second tree gets the first one's run.json, because it holds what a new run
            measures and would measure anew: in bf16 the layout of gradients, on which the last bits
            depend.
    """

    name: str
    train: Words
    model: str
    uses: tuple[Words, ...] = ()
    taken_over: bool = False


_TEXTS = ("The baker sold a small boat.", "My aunt lost the bread in the morning.", "서울 boats")
_EMBED: Words = ("embed", "MODEL", *_TEXTS, "--layers", "0", "-1", "--out", "OUT.npz")
_TOKENS: Words = ("embed", "MODEL", *_TEXTS, "--pooling", "tokens", "--out", "OUT.jsonl")
_FILL: Words = ("fill-mask", "MODEL", "The [MASK] sold a [MASK] boat.", "--top", "8")
_NEXT: Words = ("next-sentence", "MODEL", *_TEXTS[:2])
_CORPUS: Words = ("evaluate", "MODEL", "../inputs/corpus")

_PHASES = (
    "[{length: 24, share: 0.7, batch: 8, micro_batch: 4}, "
    "{length: 40, share: 0.3, batch: 8, micro_batch: 8}]"
)
_PRETRAIN: Words = (
    *("pretrain", "--layers", "2", "--hidden", "32", "--heads", "2"),
    *("--positions", "48", "--steps", "20", "--lr", "1e-3"),
    *("--phases", _PHASES, "--evaluate-every", "10", "--set", "evaluate_sequences=20"),
    *("--set", "log_every=1", "--checkpoint-minutes", "100", "--threads", "1", "--snapshots", "1"),
)
_IN: Mapping[str, Words] = {
    "next": ("--corpus", "../inputs/corpus"),
    "order": ("--corpus", "../inputs/corpus", "--pairs-kind", "order", "--recompute", "true"),
    "left to right": (
        *("--corpus", "../inputs/corpus", "--pairs-kind", "full"),
        *("--objective", "left_to_right"),
    ),
    "words": (
        *("--corpus", "../inputs/single", "--pairs-kind", "single", "--masking-kind", "words"),
        *("--init", "primed", "--optimizer", "lamb"),
    ),
}
_USED: Mapping[str, tuple[Words, ...]] = {
    "next": (_FILL, _NEXT, _EMBED, _TOKENS, _CORPUS),
    "order": (_NEXT,),
    "left to right": (_EMBED, _CORPUS),
    "words": (_FILL,),
}
_ARITHMETIC: Mapping[str, Words] = {
    "fp32 fast": ("--precision", "fp32"),
    "fp32 plain": ("--precision", "fp32", "--set", "kernels=plain"),
    "bf16 fast": ("--precision", "bf16"),
}


def pretraining() -> list[Case]:
    """Each kind of pre-training in each arithmetic; models are used after the first."""
    return [
        Case(
            f"pretrain {kind}, {arithmetic}",
            (*_PRETRAIN, *words, *options),
            "model",
            _USED[kind] if arithmetic == "fp32 fast" else (),
            taken_over=arithmetic.startswith("bf16"),
        )
        for arithmetic, options in _ARITHMETIC.items()
        for kind, words in _IN.items()
    ]


_FINETUNE: Words = (
    *("finetune", "--epochs", "2", "--batch-size", "8", "--lr", "1e-3", "--threads", "1"),
    *("--precision", "fp32"),
)
_TASKS: Mapping[str, tuple[str, Words]] = {
    "classification": ("tsv", ("--max-length", "24")),
    "classification in windows": ("tsv", ("--max-length", "14", "--long", "windows")),
    "BiLSTM": ("tsv", ("--max-length", "24", "--set", "lstm=8")),
    "left-to-right classification": ("tsv", ("--max-length", "24")),
    "regression": (
        "jsonl",
        (
            *("--kind", "regression", "--text", "one", "--text-b", "two"),
            *("--label", "score", "--max-length", "40"),
        ),
    ),
    "tagging": ("txt", ("--kind", "tagging", "--max-length", "32")),
    "spans": ("json", ("--kind", "spans", "--max-length", "40", "--set", "spans_stride=12")),
    "choice": (
        "csv",
        (
            *("--kind", "choice", "--text", "context", "--max-length", "40"),
            *("--choices", "first", "second", "third"),
        ),
    ),
}
_ASKED: Words = ("--question", "Who sold it?", "--context", " ".join(_TEXTS[:2] * 4), "--top", "5")
_USED_BY_TASK: Mapping[str, tuple[Words, ...]] = {
    "classification": (("evaluate", "MODEL", "../inputs/train.tsv"), _EMBED),
    "tagging": (("predict", "MODEL", *_TEXTS),),
    "spans": (("answer", "MODEL", *_ASKED),),
    "choice": (("choose", "MODEL", _TEXTS[0], *_TEXTS),),
}


def finetuning() -> list[Case]:
    """Each kind of task; classification in other arithmetic too."""
    cases = []
    for kind, (suffix, options) in _TASKS.items():
        train, dev = (f"../inputs/{part}.{suffix}" for part in ("train", "dev"))
        start = "causal" if kind.startswith("left-to-right") else "start"
        out = "OUT.json" if kind == "spans" else "OUT.tsv"
        uses = (
            ("predict", "MODEL", "--file", dev, "--out", out),
            *_USED_BY_TASK.get(kind, ()),
        )
        files = "--train", train, "--dev", dev, "--test", dev
        words = (*_FINETUNE, "--model", f"../inputs/{start}", *files, *options)
        first = Case(f"finetune {kind}", words, "seed-0/model", uses)
        cases.append(first)
        if kind == "classification":
            cases += [
                replace(
                    first,
                    name=f"{first.name}, {arithmetic}",
                    train=(*words, *_ARITHMETIC[arithmetic]),
                    uses=(),
                    taken_over=arithmetic.startswith("bf16"),
                )
                for arithmetic in ("fp32 plain", "bf16 fast")
            ]
    return cases


_WEIGHTS = "model.safetensors"
_CLOSE, _WITHIN = 1e-3, "within "
HALTED: Mapping[str, tuple[Words, str, str, str]] = {
    "pretrain": (
        (*_PRETRAIN, *_IN["next"], *_ARITHMETIC["fp32 fast"], "--steps", "200"),
        *("checkpoints/step-*", "metrics.jsonl", "model"),
    ),
    "finetune": (
        (
            *(*_FINETUNE, "--model", "../inputs/start", *_TASKS["classification"][1]),
            *("--train", "../inputs/train.tsv", "--dev", "../inputs/dev.tsv"),
            *("--seeds", "0", "1", "--epochs", "10"),
        ),
        *("seed-0/checkpoint*", "seed-0/metrics.jsonl", "seed-0/model"),
    ),
}
"""Runs that are killed: the command, a pattern of its first checkpoint, its records, and the model
at its end. Weights of another version may differ by rounding, as those of another processor."""
_MINUTES = "--checkpoint-minutes", "--checkpoint-minutes"
"""Minutes between checkpoints; 0.1 had another name in fine-tuning."""


# --------------------------------------------------------------------------- the files they read


def write_inputs(folder: Path) -> None:
    """Texts and labelled files."""
    folder.mkdir()

    def write(name: str, text: str) -> None:
        (folder / name).write_text(text, encoding="utf-8")

    documents = [[_sentence(31 * d + 7 * s, s) for s in range(2 + d % 7)] for d in range(50)]
    write("text.txt", "\n\n".join("\n".join(lines) for lines in documents) + "\n")
    for part, numbers in {"train": range(48), "dev": range(50, 66)}.items():
        texts = [" ".join(_sentence(n + k, k) for k in range(1 + n % 3)) for n in numbers]
        label = ["yes" if " the " in text else "no" for text in texts]
        rows = map("\t".join, zip(texts, label, strict=True))
        write(f"{part}.tsv", "\n".join(["sentence\tlabel", *rows]) + "\n")
        pairs = [{"one": t, "two": _sentence(n, 1)} for t, n in zip(texts, numbers, strict=True)]
        scored = [json.dumps({**p, "score": len(p["one"]) / 40}) for p in pairs]
        write(f"{part}.jsonl", "\n".join(scored) + "\n")
        tagged = (
            "\n".join(f"{w} {'B-X' if w[0] in 'bB' else 'O'}" for w in text.split())
            for text in texts
        )
        write(f"{part}.txt", "\n\n".join(tagged) + "\n")
        asked = []
        for n, text in zip(numbers, texts, strict=True):
            answers = [{"text": text.split()[1], "answer_start": text.index(text.split()[1])}]
            question = {"id": str(n), "question": "Who?", "is_impossible": n % 5 == 0}
            question["answers"] = [] if n % 5 == 0 else answers
            asked.append({"context": text, "qas": [question]})
        content = {"version": "v2.0", "data": [{"title": part, "paragraphs": asked}]}
        write(f"{part}.json", json.dumps(content))
        choices = [[texts[n], *(_sentence(n + k, k) for k in range(3))] for n in range(len(texts))]
        lines = [",".join([*row, str(n % 3)]) for n, row in enumerate(choices)]
        write(f"{part}.csv", "\n".join(["context,first,second,third,label", *lines]) + "\n")


def _sentence(n: int, s: int) -> str:
    who = ("The baker", "A sailor", "My aunt", "The old judge", "Our teacher")[n % 5]
    did = ("sold", "painted", "lost", "carried", "found", "repaired", "described")[(n // 5 + s) % 7]
    what = ("a small boat", "the bread", "two letters", "an apple", "the garden", "his hat")
    when = ("yesterday", "in the morning", "after the storm", "on Monday")[(n + s) % 4]
    return f"{who} {did} {what[(n // 3) % 6]} {when}."


def build_inputs(work: Work) -> None:
    """Vocabulary and corpora, by the first tree: the second is to train on the same."""
    write_inputs(work.folder / "inputs")
    text = "--files", "../inputs/text.txt"
    work.must("old", "vocab", *text, "--size", "200", "--out", "../inputs/vocabulary")
    corpus = "corpus", *text, "--tokenizer", "../inputs/vocabulary", "--heldout", "0.2"
    work.must("old", *corpus, "--out", "../inputs/corpus")
    work.must("old", *corpus, "--single-sentence", "keep", "--out", "../inputs/single")


# ------------------------------------------------------------------------------------ running them


@dataclass(frozen=True)
class Work:
    """Where both trees work, each in a folder of its own, from which paths are the same."""

    folder: Path
    sources: Mapping[str, Path]

    def start(self, side: str, *words: str) -> subprocess.Popen[str]:
        """A process of a command line."""
        (self.folder / side).mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        kept |= {"PYTHONPATH": str(self.sources[side]), "COLUMNS": "100", "PYTHONHASHSEED": "0"}
        return subprocess.Popen(
            [sys.executable, "-m", "bothways", *words],
            cwd=self.folder / side,
            env={**kept, "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, side: str, *words: str) -> tuple[int, str, str]:
        """The exit status, the output and the errors of a command line."""
        process = self.start(side, *words)
        out, errors = process.communicate()
        return process.returncode, out, errors

    def must(self, side: str, *words: str) -> None:
        """Run a command line that has to succeed."""
        status, _, errors = self.run(side, *words)
        if status:
            sys.exit(f"{side}: bothways {' '.join(words)}\n{errors}")

    def train(self, case: Case, side: str) -> Items:
        """The items of a run."""
        out = self.folder / side / case.name
        out.mkdir(parents=True)
        recorded = self.folder / "old" / case.name / "run" / "run.json"
        if side == "new" and case.taken_over and recorded.exists():
            (out / "run").mkdir()
            shutil.copy(recorded, out / "run")
        status, _, errors = self.run(side, *case.train, "--run", f"{case.name}/run")
        if status:
            return {f"{case.name}: run": _failure(status, errors)}
        return {f"{case.name}: {name}": d for name, d in _files(out / "run").items()}

    def use(self, case: Case, side: str, *, of: str) -> Items:
        """The items of the commands that use the model which the tree ``of`` has trained."""
        model = f"../{of}/{case.name}/run/{case.model}"
        items: Items = {}
        for number, words in enumerate(case.uses, 1):
            out = Path(case.name, "used", f"{number}-{words[0]}")
            (self.folder / side / out.parent).mkdir(parents=True, exist_ok=True)
            filled = [w.replace("OUT", str(out)) if "OUT" in w else w for w in words]
            filled = [model if word == "MODEL" else word for word in filled]
            status, printed, errors = self.run(side, *filled)
            name = f"{case.name}: {number} {words[0]}"
            said = printed.replace(f"../{of}/", "").encode()
            items[f"{name}, printed"] = _failure(status, errors) if status else _digest(said)
            for path in sorted((self.folder / side / out.parent).glob(f"{out.name}*")):
                items[f"{name}, {path.name}"] = _content(path)
        return items


def _failure(status: int, errors: str) -> str:
    """What went wrong, in one line; ``refused`` if it is a refusal."""
    lines = errors.strip().splitlines() or [""]
    at = [n for n, line in enumerate(lines) if line.startswith("bothways: error: ")]
    if status in (1, 2) and at and "Traceback" not in errors:
        return "refused: " + " ".join(lines[at[0] :]).removeprefix("bothways: error: ")
    return f"exit status {status}: {lines[-1]}"


# ---------------------------------------------------------------------------------------- digests

# What differs from run to run by itself, or is there to be looked at.
_SKIPPED = {"curves.png", "report.html", ".lock", "tensorboard"}
# Those of a corpus or a start model, which are copied; tests/golden.json has them.
_COPIED = {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
_TIMES = {"seconds", "tokens_per_second", "loader_wait", "elapsed", "examples_per_second"}


def _files(folder: Path) -> Items:
    """Digests of the files of a run folder."""
    found: Items = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not set(Path(name).parts) & (_SKIPPED | _COPIED):
            found[name] = _content(path)
    return found


def _content(path: Path) -> str:
    """The digest of a file, without the times in it."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            parts = [(name, str(arrays[name].dtype), arrays[name].tobytes()) for name in arrays]
        return _digest(repr(sorted(parts)).encode())
    content = path.read_bytes()
    if path.suffix not in (".json", ".jsonl"):
        return _digest(content)
    lines = [content] if path.suffix == ".json" else content.splitlines()
    values = [_without_times(json.loads(line)) for line in lines]
    if path.name == "run.json":  # not the versions, nor where the run is
        values = [{key: value[key] for key in ("verb", "recipe", "resolved")} for value in values]
    return _digest(json.dumps(values).encode())


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if k not in _TIMES}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


# ------------------------------------------------------------------------------------- comparisons


def compare_trees(work: Work, chosen: Callable[[Case], bool]) -> dict[str, Items]:
    """Each tree trains and uses its own models."""

    def both(case: Case) -> dict[str, Items]:
        return {side: work.train(case, side) | work.use(case, side, of=side) for side in SIDES}

    found = _in_turns(both, filter(chosen, pretraining()))
    _copy_starts(work)
    return _merged([found, _in_turns(both, filter(chosen, finetuning()))])


def compare_folders(work: Work, chosen: Callable[[Case], bool]) -> dict[str, Items]:
    """The first tree trains; both use its models and continue its runs that were killed."""
    work.must("new", "--version")

    def both(case: Case) -> dict[str, Items]:
        work.train(case, "old")
        return {side: work.use(case, side, of="old") for side in SIDES}

    used = _in_turns(both, [case for case in pretraining() if case.uses and chosen(case)])
    _copy_starts(work)
    more = _in_turns(both, [case for case in finetuning() if case.uses and chosen(case)])
    return _merged([used, more, _in_turns(lambda verb: _continue(work, verb), HALTED)])


def _copy_starts(work: Work) -> None:
    """The models that fine-tuning starts from, as the first tree trained them."""
    for name, kind in (("start", "next"), ("causal", "left to right")):
        case = next(case for case in pretraining() if case.name == f"pretrain {kind}, fp32 fast")
        if not (work.folder / "old" / case.name).exists():
            work.train(case, "old")
        model = work.folder / "old" / case.name / "run" / case.model
        shutil.copytree(model, work.folder / "inputs" / name)


def _continue(work: Work, verb: str) -> dict[str, Items]:
    """Kill a run of the first tree after a checkpoint and continue it with both.

    A mark in the first record shows that a run went on: one that starts again writes it anew.
    """
    words, checkpoint, records, last = HALTED[verb]
    name = f"halted {verb}"
    words = (*words, "--run", f"{name}/run")
    run = work.folder / "old" / name / "run"
    _, known, _ = work.run("old", verb, "--help")
    minutes = next(name for name in _MINUTES if name in known)
    process = work.start("old", *words, minutes, "0")
    while process.poll() is None and not (any(run.glob(checkpoint)) and _lines(run / records) > 3):
        time.sleep(0.001)
    process.kill()
    process.communicate()
    if (run / last).exists() or not any(run.glob(checkpoint)):
        sys.exit(f"{name}: was not killed half-way")
    marked = (run / records).read_text(encoding="utf-8").replace("{", '{"marked": true, ', 1)
    (run / records).write_text(marked, encoding="utf-8")
    shutil.copytree(work.folder / "old" / name, work.folder / "new" / name)
    items: dict[str, Items] = {}
    weights = {side: work.folder / side / name / "run" / last / _WEIGHTS for side in SIDES}
    for side in SIDES:
        status, _, errors = work.run(side, *words)
        if status:
            items[side] = {f"{name}: run": _failure(status, errors)}
            continue
        left = (work.folder / side / name / "run" / records).read_text(encoding="utf-8")
        went_on = left.startswith(marked.partition("}")[0])
        items[side] = {
            f"{name}: from its checkpoint": "yes" if went_on else "no, from the start",
            f"{name}: {last}/{_WEIGHTS}": _content(weights[side]),
        }
    if all(path.exists() for path in weights.values()) and _content(weights["old"]) != _content(
        weights["new"]
    ):
        distance = _distance(*weights.values())
        if distance < _CLOSE:
            items["new"][f"{name}: {last}/{_WEIGHTS}"] = f"{_WITHIN}{distance:.0e}"
    return items


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _distance(one: Path, two: Path) -> float:
    """The largest difference between two files of weights of the same names."""
    first, second = load_file(one), load_file(two)
    if first.keys() != second.keys():
        return float("inf")
    return max(float(np.abs(first[name] - second[name]).max()) for name in first)


def _in_turns(action: Callable[[Any], dict[str, Items]], things: Iterable[Any]) -> dict[str, Items]:
    """Two cases at a time, on one core each."""
    with ThreadPoolExecutor(2) as pool:
        return _merged(list(pool.map(action, things)))


def _merged(parts: Sequence[dict[str, Items]]) -> dict[str, Items]:
    return {side: {k: v for part in parts for k, v in part[side].items()} for side in SIDES}


def table(found: Mapping[str, Items]) -> tuple[list[str], int]:
    """A line per item, and how many differ. A refusal of what an older version left is none of
    these: the second tree may refuse what the first one can still do."""
    old, new = found["old"], found["new"]
    names = [*old, *(name for name in new if name not in old)]
    refused = {n.partition(":")[0]: s for n, s in new.items() if s.startswith("refused: ")}
    width = max(map(len, names))
    lines, differing = [], 0
    for name in names:
        before, now = old.get(name, "-"), new.get(name, "-")
        told = new.get(name) if name in new else refused.get(name.partition(":")[0], "")
        if before == now:
            verdict = "same" if now.isalnum() else "FAILS IN BOTH"
        elif now.startswith(_WITHIN):
            verdict = "close"
        else:
            verdict = "refused" if str(told).startswith("refused: ") else "DIFFERENT"
        differing += verdict not in ("same", "close", "refused")
        lines.append(f"{name:<{width}}  {before:<12}  {now:<12}  {verdict}")
    return lines, differing


def main() -> None:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", type=Path, help="source folder (src) of the first revision")
    parser.add_argument("new", type=Path, help="source folder (src) of the second revision")
    parser.add_argument(
        "--folders", action="store_true", help="the second reads and continues the first's folders"
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--work", type=Path, help="new folder to work in, and to keep")
    options = parser.parse_args()
    started = time.monotonic()
    sources = {"old": options.old.resolve(), "new": options.new.resolve()}
    for source in sources.values():
        if not (source / "bothways").is_dir():
            sys.exit(f"{source} has no package bothways; name the folder src of a revision")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        work = Work(folder.resolve(), sources)
        build_inputs(work)
        compare = compare_folders if options.folders else compare_trees
        lines, differing = table(compare(work, lambda case: options.only in case.name))
    print("\n".join(lines))
    seconds = time.monotonic() - started
    print(f"{len(lines)} items, {differing} DIFFERENT; {seconds:.0f} seconds")
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
