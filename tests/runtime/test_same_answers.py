"""Real dev sets: a run's scores are those of its folder, and engines give the same labels, scores,
tags, choices and answers, but where two scores nearly tie."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.runtime.engine import EngineOptions, openers
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import encode_file, evaluate_file, outputs_of
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.options import TaskOptions
from bothways.training.options import OptimizerOptions

TIE = 2e-4
"""Scores that are closer may change places from engine to engine."""
DATA = {
    "sst2": ("glue/SST-2/train.tsv", "glue/SST-2/dev.tsv"),
    "mrpc": ("glue/MRPC/train.tsv", "glue/MRPC/dev.tsv"),
    "stsb": ("glue/STS-B/train.tsv", "glue/STS-B/dev.tsv"),
    "codah": ("choice/codah/fold_0/train.tsv", "choice/codah/fold_0/dev.tsv"),
    "conll2003": ("ner/conll2003/eng.train", "ner/conll2003/eng.testa"),
    "squad": ("squad/v1.1-by-article/train.json", "squad/v1.1-by-article/dev.json"),
}


def ties(outputs: Any, loss: str, bounds: Any) -> int:
    """How many rows, or for choices and answers items, have two highest scores that nearly tie."""
    if loss == "place":
        items = [outputs[start:end] for start, end in pairwise(bounds)]
        best = [np.sort(item, axis=0)[-2:] for item in items if len(item) > 1]
        return sum(bool((np.diff(own, axis=0) < TIE).any()) for own in best)
    if loss == "score":
        return 0
    best = np.sort(outputs, axis=-1)
    return int((best[:, -1] - best[:, -2] < TIE).sum())


def beginning(path: Path, folder: Path, count: int) -> str:
    """A copy of the first rows, sentences or articles of a file."""
    text, out = path.read_text(encoding="utf-8"), folder / path.name
    if path.suffix == ".json":
        content = json.loads(text)
        content["data"] = content["data"][: max(1, count // 500)]
        text = json.dumps(content)
    else:
        end = "\n" if path.suffix == ".tsv" else "\n\n"
        text = end.join(text.split(end)[: count + 1]) + end
    out.write_text(text, encoding="utf-8")
    return str(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA)
def test_engines_give_the_same_answers(
    name: str, shared_data: Callable[[str], Path], tmp_path: Path
) -> None:
    training, dev = map(shared_data, DATA[name])
    train = beginning(training, tmp_path, 2000)
    if name == "squad":
        dev = Path(beginning(dev, tmp_path, 1000))
    options = task_recipe(name).task
    small = TaskOptions(
        **{**vars(options), "train": train, "dev": str(dev), "test": None, "measure": ()}
    )
    result = finetune(
        FinetuneConfig(
            task=small, model="mini-en", run=str(tmp_path / "run"), epochs=1, batch_size=32,
            max_length=128, optimizer=OptimizerOptions(lr=1e-4), seeds=(0,),
        )
    )  # fmt: skip
    found, scores, near, tables = {}, {}, {}, {}
    for engine, _ in openers("auto", []):
        loaded = load_model(tmp_path / "run" / "seed-0" / "model", options=EngineOptions(engine))
        task, file = encode_file(loaded, dev, labelled=True)
        found[engine] = outputs_of(loaded, task, file.examples)
        tables[engine] = task.table(file, task.decode(file, found[engine]))
        near[engine] = ties(found[engine], task.loss, file.examples.output_bounds)
        scores[engine] = evaluate_file(loaded, dev).scores
    first, *others = found
    assert scores[first] == result.seeds[0].measurement.scores, "to the last digit"
    labels = {engine: [row[:2] for row in table] for engine, table in tables.items()}
    for other in others:
        largest = float(np.abs(found[first] - found[other]).max())
        assert largest < TIE
        if task.loss == "score":
            print(f"{name}: {len(found[first]):,} scores, at most {largest:.1e} apart")
            continue
        differ = sum(a != b for a, b in zip(labels[first], labels[other], strict=True))
        print(f"{name}: {len(labels[first]):,} rows, {differ} differ, {near[first]} near ties")
        assert differ <= near[first]
        if not differ:
            for measure, value in scores[first].items():
                assert scores[other][measure] == pytest.approx(value, abs=1e-4)
