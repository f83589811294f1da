"""Whether an installation without torch gives the answers that torch gives.

    python scripts/without_torch.py record WORK [NAME=FOLDER=DEV ...]
    /the/other/environment/bin/python scripts/without_torch.py compare WORK

The first, where torch is installed, makes a small random model of each family for each use that the
family has (or of --uses alone), and has torch answer; with NAME=FOLDER=DEV, a model folder answers
a whole labelled dev file, too. The second answers the same with what its environment has, which may
not be torch: outputs must be within 1e-4 of those of torch, and labels, tags and answers equal but
where two scores are within 2e-4 of each other. The status is 1 if something is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import bothways
from bothways.api.model import Model, load
from bothways.batch import collate
from bothways.runtime.engine import EngineOptions, layer_name
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import encode_file, outputs_of

NEAR, TIE = 1e-4, 2e-4
POSITIONS = 44
Answers = list[tuple[Any, list[float]]]
"""What is said of each text, and the scores that decide it."""


@dataclass(frozen=True)
class Use:
    """What a model is used for.

    Attributes:
        head: of the model; empty for vectors.
        outputs: of the head, where a head has no number of its own.
        about: what its folder says of the task.
        answer: to texts.
    """

    head: str
    outputs: int
    about: dict[str, Any]
    answer: Callable[[Model, Sequence[str]], Answers]


def _labels(model: Model, texts: Sequence[str]) -> Answers:
    found = model.predict(texts)
    said = zip(found.labels, found.values.tolist(), strict=True)
    return [(label if isinstance(label, str) else sorted(label), row) for label, row in said]


def _numbers(model: Model, texts: Sequence[str]) -> Answers:
    return [(None, row) for row in model.predict(texts).values.reshape(len(texts), -1).tolist()]


def _tags(model: Model, texts: Sequence[str]) -> Answers:
    found = model.tag([text.split() for text in texts])
    assert isinstance(found, list)
    return [([str(tag) for tag in one.tags], []) for one in found]


def _answers(model: Model, texts: Sequence[str]) -> Answers:
    found = (model.answer("w3 w4", text)[0] for text in texts)
    return [([one.start, one.end], [one.probability]) for one in found]


def _choices(model: Model, texts: Sequence[str]) -> Answers:
    found = [model.choose("w5", [a, b]) for a, b in pairwise(texts)]
    return [(int(np.argmax(row)), row) for row in found]


def _next(model: Model, texts: Sequence[str]) -> Answers:
    found = [model.next_sentence(a, b) for a, b in pairwise(texts)]
    return [(one > 0.5, [one, 1 - one]) for one in found]


def _fillings(model: Model, texts: Sequence[str]) -> Answers:
    found = [model.fill_mask(f"w9 {model.tokenizer.roles.mask} {text}")[0] for text in texts]
    return [(one[0].piece, [f.probability for f in one]) for one in found]


def _vectors(model: Model, texts: Sequence[str]) -> Answers:
    return [(None, row) for row in model.embed(texts).tolist()]


def _ranked(model: Model, texts: Sequence[str]) -> Answers:
    found = sorted(model.rank("w3 w4", texts), key=lambda one: one.index)
    return [(None, [one.score]) for one in found]


_CLASSES = {"kind": "classification", "labels": ["a", "b", "c"]}
USES = {
    "label": Use("classifier", 3, _CLASSES, _labels),
    "several labels": Use("classifier", 3, {**_CLASSES, "kind": "multilabel"}, _labels),
    "number": Use("classifier", 1, {"kind": "regression"}, _numbers),
    "rank": Use("classifier", 1, {"kind": "regression", "pair": True}, _ranked),
    "tags": Use("tagger", 3, {"kind": "tagging", "labels": ["B-X", "I-X", "O"]}, _tags),
    "spans": Use("span", 2, {"kind": "spans"}, _answers),
    "choice": Use("choice", 1, {"kind": "choice"}, _choices),
    "next sentence": Use("next_sentence", 2, {}, _next),
    "fill-mask": Use("masked_lm", 0, {}, _fillings),
    "embed": Use("", 0, {}, _vectors),
}


def texts_of(count: int = 40) -> list[str]:
    """Texts of 1 to 30 words of the small vocabulary."""
    rng = np.random.default_rng(1)
    return [
        " ".join(f"w{n}" for n in rng.integers(1, 90, length))
        for length in rng.integers(1, 31, count)
    ]


def outputs(model: Model, head: str, ids: list[list[int]]) -> np.ndarray:
    """Of the model's head, or of its last layer."""
    batch = collate(ids, [[0] * len(row) for row in ids], max_positions=POSITIONS)
    engine, last = model.loaded.engine, model.loaded.config.layers
    if not head:
        found = engine.compute(batch, layers=(last,))[layer_name(last)]
        return found[: int(batch.bounds[-1])]
    from bothways.families.heads import HEADS

    every = np.arange(batch.bounds[-1])
    at = batch.bounds[:-1] if HEADS[head].reads == "sequence" else every
    return engine.compute(batch, {head: at})[head]


def on_file(folder: str, file: str, engine: str) -> tuple[np.ndarray, list[Any], int]:
    """Outputs for a labelled file, its table's labels, and how many rows or items nearly tie."""
    loaded = load_model(folder, options=EngineOptions(engine))
    task, encoded = encode_file(loaded, file, labelled=True)
    found = outputs_of(loaded, task, encoded.examples)
    rows = [list(row[:2]) for row in task.table(encoded, task.decode(encoded, found))]
    if task.loss == "score":
        return found, [], 0
    parts = [found]
    if task.loss == "place":  # the best place of each item
        bounds = encoded.examples.output_bounds
        parts = [found[a:b].T for a, b in pairwise(bounds) if b - a > 1]
    best = [np.sort(part, axis=-1)[:, -2:] for part in parts]
    return found, rows, sum(int((np.diff(own, axis=-1) < TIE).any(-1).sum()) for own in best)


# ---------------------------------------------------------------------------------- the two halves


def record(work: Path, files: Sequence[str], uses: Sequence[str]) -> int:
    """Make the models, and have torch answer."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from bothways.families import FAMILIES, config_of
    from bothways.families.heads import HEADS
    from bothways.model.folder import save_model
    from bothways.model.model import EncoderModel
    from family_examples import EXAMPLES, perturb  # type: ignore[import-not-found]
    from model_examples import small_tokenizer  # type: ignore[import-not-found]

    tokenizer, texts = small_tokenizer(97), texts_of()
    rng = np.random.default_rng(0)
    ids = [rng.integers(5, 97, n).tolist() for n in (9, 40, 1, 23, 2, 17)]
    arrays: dict[str, Any] = {}
    cases, own_files = list[dict[str, Any]](), list[dict[str, Any]]()
    for name, example in EXAMPLES.items():
        config, _ = config_of(example.config().to_dict(), where=name)
        for use in uses:
            what = USES[use]
            head = what.head
            if head and head not in FAMILIES[config.family].heads and HEADS[head].form is None:
                continue
            heads = {head: HEADS[head].outputs or what.outputs} if head else {}
            network = EncoderModel(config, heads=heads, seed=1).eval()
            perturb(network)
            folder = work / "models" / name / use.replace(" ", "-")
            save_model(folder, network, tokenizer, what.about)
            model = load(folder, engine="torch")
            case = f"{name}: {use}"
            arrays[case] = outputs(model, head, ids)
            answers = what.answer(model, texts)
            cases.append({"case": case, "use": use, "folder": str(folder), "answers": answers})
    for given in files:
        name, folder, file = given.split("=")
        arrays[name], rows, ties = on_file(folder, file, "torch")
        own_files.append({"name": name, "folder": folder, "file": file, "rows": rows, "ties": ties})
    content = {"texts": texts, "ids": ids, "cases": cases, "files": own_files}
    (work / "torch.json").write_text(json.dumps(content), encoding="utf-8")
    np.savez(work / "torch.npz", **arrays)
    print(
        f"{len(cases)} models of {len(EXAMPLES)} examples of families, {len(own_files)} dev files"
    )
    return 0


def compare(work: Path) -> int:
    """Answer the same, without torch."""
    content = json.loads((work / "torch.json").read_text(encoding="utf-8"))
    wrong, engines = 0, set[str]()
    with np.load(work / "torch.npz") as arrays:
        by_use: dict[str, list[tuple[float, int, int, int]]] = {}
        for case in content["cases"]:
            use = USES[case["use"]]
            model = load(case["folder"])
            engines.add(model.loaded.engine.name)
            apart = _apart(outputs(model, use.head, content["ids"]), arrays[case["case"]])
            found = json.loads(json.dumps(use.answer(model, content["texts"])))
            pairs = list(zip(found, case["answers"], strict=True))
            differ = [(a, b) for a, b in pairs if a[0] != b[0]]
            excused = sum(_nearly_tie(b[1]) for _, b in differ)
            scores = max((_apart(np.array(a[1]), np.array(b[1])) for a, b in pairs), default=0.0)
            far = max(apart, scores)
            if far > NEAR or len(differ) > excused:
                print(
                    f"DIFFERENT {case['case']}: outputs {apart:.1e}, scores {scores:.1e}; {differ}"
                )
                wrong += 1
            by_use.setdefault(case["use"], []).append((far, len(pairs), len(differ), excused))
        for name, of_use in by_use.items():
            furthest, counts, others, ties = zip(*of_use, strict=True)
            print(
                f"{name}: {len(of_use)} models, outputs and scores at most {max(furthest):.1e} "
                f"apart; of {sum(counts)} answers {sum(others)} differ ({sum(ties)} near ties)"
            )
        for file in content["files"]:
            found, rows, _ = on_file(file["folder"], file["file"], "auto")
            apart = _apart(found, arrays[file["name"]])
            differ = sum(
                a != b for a, b in zip(json.loads(json.dumps(rows)), file["rows"], strict=True)
            )
            print(
                f"{file['name']}: {len(found):,} outputs at most {apart:.1e} apart; of "
                f"{len(rows):,} rows {differ} differ, {file['ties']} near ties"
            )
            wrong += apart > NEAR or differ > file["ties"]
    torch = sorted(name for name in sys.modules if name.split(".")[0] == "torch")
    size = sum(p.lstat().st_size for p in Path(sys.prefix).rglob("*") if p.is_file())
    print(f"bothways from {Path(bothways.__file__).parent}; engines {', '.join(sorted(engines))}")
    print(f"modules of torch: {len(torch)}; the environment has {size / 1e6:.0f} MB")
    print(f"NOT as it must be: {wrong}" if wrong or torch else "as it must be")
    return 1 if wrong or torch else 0


def _apart(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float(np.abs(found - expected).max()) if found.size else 0.0


def _nearly_tie(scores: list[float]) -> bool:
    return len(scores) > 1 and sorted(scores)[-1] - sorted(scores)[-2] < TIE


def main() -> int:
    """One half."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("half", choices=("record", "compare"))
    parser.add_argument("work", type=Path)
    parser.add_argument("files", nargs="*", metavar="NAME=FOLDER=DEV")
    parser.add_argument("--uses", nargs="*", choices=USES, default=list(USES), metavar="USE")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.half == "record":
        return record(given.work, given.files, given.uses)
    return compare(given.work)


if __name__ == "__main__":
    sys.exit(main())
