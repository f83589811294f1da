"""Fine-tune one encoder with bothways and with transformers' Trainer at the same settings.

Same data, length, batch, epochs, learning rate, schedule, decay, clipping, dropout and precision;
seeds differ in what they key. Prints a line a run and writes a JSON file.

    python scripts/compare_finetuning.py GLUE_FOLDER MODEL_FOLDER --task mrpc --ours 5 --theirs 2
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import f1_score
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from bothways.config import FinetuneConfig, OptimizerOptions, TaskOptions
from bothways.tasks.finetune import finetune
from bothways.training.schedules import learning_rate

TASKS: dict[str, dict[str, Any]] = {
    "mrpc": {
        "folder": "MRPC",
        "a": "#1 String",
        "b": "#2 String",
        "label": "Quality",
        "epochs": 3,
    },
    "sst2": {"folder": "SST-2", "a": "sentence", "b": None, "label": "label", "epochs": 1},
}


def main() -> None:
    """Run what was asked for and write the figures."""
    options = _arguments()
    torch.set_num_threads(options.threads)
    task = TASKS[options.task]
    data = Path(options.glue) / task["folder"]
    runs = []
    for i in range(max(options.ours, options.theirs)):
        if i < options.theirs:
            runs.append(_theirs(options, task, data, seed=options.first + i))
            print(json.dumps(runs[-1]), flush=True)
        if i < options.ours:
            runs.append(_ours(options, task, data, seed=options.first + i))
            print(json.dumps(runs[-1]), flush=True)
    _summarise(runs)
    result = {"settings": vars(options), "task": options.task, "runs": runs}
    Path(options.out).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("glue", help="folder with MRPC/, SST-2/ in GLUE's layout")
    parser.add_argument("model", help="model folder")
    parser.add_argument("--task", choices=TASKS, default="mrpc")
    parser.add_argument("--ours", type=int, default=5, help="seeds with bothways")
    parser.add_argument("--theirs", type=int, default=2, help="seeds with transformers")
    parser.add_argument("--first", type=int, default=0, help="the first seed; others follow it")
    parser.add_argument("--lr", type=float, default=5e-5, help="peak learning rate")
    parser.add_argument("--batch", type=int, default=16, help="examples of a step")
    parser.add_argument("--length", type=int, default=128, help="longest sequence in tokens")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", default="runs/compare", help="folder for run folders")
    parser.add_argument("--out", default="compare.json")
    return parser.parse_args()


def _ours(options: argparse.Namespace, task: dict[str, Any], data: Path, *, seed: int) -> Any:
    start = time.perf_counter()
    result = finetune(
        FinetuneConfig(
            task=TaskOptions(
                name=options.task,
                train=str(data / "train.tsv"),
                dev=str(data / "dev.tsv"),
                text_a=task["a"],
                text_b=task["b"],
                label=task["label"],
                metrics=("accuracy", "f1"),
            ),
            model=options.model,
            run=f"{options.runs}/{options.task}-ours-{seed}",
            epochs=task["epochs"],
            batch=options.batch,
            length=options.length,
            optimizer=_optimizer(options),
            seeds=(seed,),
            precision=options.precision,
            threads=options.threads,
        )
    )
    seconds = time.perf_counter() - start
    scores = {name: values[0] for name, values in result.scores.items()}
    return {"who": "bothways", "seed": seed, **scores, "seconds": round(seconds, 1)}


def _optimizer(options: argparse.Namespace) -> OptimizerOptions:
    return OptimizerOptions(lr=options.lr, warmup=0.1, bias_correction=True, eps=1e-6)


def _theirs(options: argparse.Namespace, task: dict[str, Any], data: Path, *, seed: int) -> Any:
    start = time.perf_counter()
    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
    train, dev = (
        _encoded(tokenizer, data / name, task, options) for name in ("train.tsv", "dev.tsv")
    )
    arguments = TrainingArguments(
        output_dir=f"{options.runs}/{options.task}-theirs-{seed}",
        num_train_epochs=task["epochs"],
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=64,
        max_grad_norm=1.0,
        bf16=options.precision == "bf16",
        use_cpu=True,
        seed=seed,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    steps = -(-len(train) // options.batch) * task["epochs"]
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=train,
        data_collator=DataCollatorWithPadding(tokenizer),
        optimizers=_same_optimizer(model, options, steps),
    )
    trainer.train()
    predicted = trainer.predict(dev)
    classes, gold = np.argmax(predicted.predictions, -1), predicted.label_ids
    return {
        "who": "transformers",
        "seed": seed,
        "accuracy": float((classes == gold).mean()),
        "f1": float(f1_score(gold, classes)),
        "seconds": round(time.perf_counter() - start, 1),
    }


def _same_optimizer(model: Any, options: argparse.Namespace, steps: int) -> tuple[Any, Any]:
    """AdamW with our decay groups, under our schedule."""
    ours = _optimizer(options)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": ours.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=1.0, betas=(ours.beta1, ours.beta2), eps=ours.eps, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(min(step, steps - 1), steps, ours)
    )
    return optimizer, schedule


def _encoded(
    tokenizer: Any, path: Path, task: dict[str, Any], options: argparse.Namespace
) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    second = [[row[task["b"]] for row in rows]] if task["b"] else []
    encoded = tokenizer(
        [row[task["a"]] for row in rows], *second, truncation=True, max_length=options.length
    )
    return [
        {key: encoded[key][i] for key in encoded} | {"labels": int(row[task["label"]])}
        for i, row in enumerate(rows)
    ]


def _summarise(runs: list[Any]) -> None:
    for who in ("bothways", "transformers"):
        own = [run for run in runs if run["who"] == who]
        for metric in ("accuracy", "f1", "seconds"):
            values = [run[metric] for run in own]
            if values:
                spread = statistics.stdev(values) if len(values) > 1 else float("nan")
                mean = statistics.fmean(values)
                print(f"{who:<13} {metric:<9} {mean:8.4f} ± {spread:.4f} over {len(values)}")


if __name__ == "__main__":
    main()
