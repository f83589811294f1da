"""Fine-tune one encoder with bothways and with transformers' Trainer at the same settings.

A task of GLUE with its declared columns, labels and metrics. Same data, length, batch, epochs,
learning rate, schedule, decay, clipping, dropout and precision; the same seed means different
random numbers. Prints a line per run and writes a JSON file. The Trainer's predictions are scored
by scikit-learn and scipy.

    python scripts/compare_finetuning.py GLUE_FOLDER MODEL_FOLDER --task mrpc --ours 5 --theirs 2
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.options import TaskOptions
from bothways.training.optimizer import learning_rate
from bothways.training.options import OptimizerOptions

TASKS = ("cola", "sst2", "mrpc", "stsb", "rte", "wnli")
METRICS = {
    "accuracy": accuracy_score,
    "f1": f1_score,
    "matthews": matthews_corrcoef,
    "pearson": lambda gold, predicted: pearsonr(gold, predicted)[0],
    "spearman": lambda gold, predicted: spearmanr(gold, predicted)[0],
}


def main() -> None:
    """Make the runs and write their scores."""
    options = _arguments()
    torch.set_num_threads(options.threads)
    recipe = _recipe(options)
    runs = []
    for i in range(max(options.ours, options.theirs)):
        if i < options.theirs:
            runs.append(_theirs(options, recipe, seed=options.first + i))
            print(json.dumps(runs[-1]), flush=True)
        if i < options.ours:
            runs.append(_ours(options, recipe, seed=options.first + i))
            print(json.dumps(runs[-1]), flush=True)
    _summarise(runs, recipe)
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
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-5, help="peak learning rate")
    parser.add_argument("--batch", type=int, default=16, help="examples per step")
    parser.add_argument("--length", type=int, default=128, help="longest sequence in tokens")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", default="runs/compare", help="folder for run folders")
    parser.add_argument("--out", default="compare.json")
    return parser.parse_args()


def _recipe(options: argparse.Namespace) -> FinetuneConfig:
    """The declared task with these settings, measured on dev only."""
    return task_recipe(
        options.task,
        data=options.glue,
        model=options.model,
        epochs=options.epochs,
        batch_size=options.batch,
        max_length=options.length,
        precision=options.precision,
        threads=options.threads,
        **{
            "test": None,
            "lr": options.lr,
            "warmup": 0.1,
            "bias_correction": True,
            "eps": 1e-6,
        },
    )


def _ours(options: argparse.Namespace, recipe: FinetuneConfig, *, seed: int) -> Any:
    start = time.perf_counter()
    run = f"{options.runs}/{options.task}-ours-{seed}"
    result = finetune(dataclasses.replace(recipe, run=run, seeds=(seed,)))
    seconds = time.perf_counter() - start
    scores = {name: values[0] for name, values in result.scores.items()}
    return {"who": "bothways", "seed": seed, **scores, "seconds": round(seconds, 1)}


def _theirs(options: argparse.Namespace, recipe: FinetuneConfig, *, seed: int) -> Any:
    start = time.perf_counter()
    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    classes = recipe.task.kind == "classification"
    model = AutoModelForSequenceClassification.from_pretrained(
        options.model, num_labels=2 if classes else 1
    )
    located = recipe.located().task
    train, dev = (_encoded(tokenizer, f, recipe) for f in (located.train, located.dev))
    arguments = TrainingArguments(
        output_dir=f"{options.runs}/{options.task}-theirs-{seed}",
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=recipe.batch,
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
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=train,
        data_collator=DataCollatorWithPadding(tokenizer),
        optimizers=_same_optimizer(
            model, recipe.optimizer, -(-len(train) // recipe.batch) * recipe.epochs
        ),
    )
    trainer.train()
    out = trainer.predict(dev)
    predicted = np.argmax(out.predictions, -1) if classes else out.predictions.squeeze(-1)
    scores = {name: float(METRICS[name](out.label_ids, predicted)) for name in recipe.task.metrics}
    seconds = round(time.perf_counter() - start, 1)
    return {"who": "transformers", "seed": seed, **scores, "seconds": seconds}


def _same_optimizer(model: Any, ours: OptimizerOptions, steps: int) -> tuple[Any, Any]:
    """AdamW with our decay groups, under our schedule."""
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


def _encoded(tokenizer: Any, path: str, recipe: FinetuneConfig) -> list[dict[str, Any]]:
    task = recipe.task
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        rows = list(
            csv.DictReader(file, task.columns or None, delimiter="\t", quoting=csv.QUOTE_NONE)
        )
    second = [[row[task.text_b] for row in rows]] if task.text_b else []
    encoded = tokenizer(
        [row[task.text] for row in rows], *second, truncation=True, max_length=recipe.length
    )
    return [
        {key: encoded[key][i] for key in encoded} | {"labels": _label(row, task)}
        for i, row in enumerate(rows)
    ]


def _label(row: dict[str, str], task: TaskOptions) -> int | float:
    if task.kind == "regression":
        return float(row[task.label])
    return [str(label) for label in task.labels].index(row[task.label])


def _summarise(runs: list[Any], recipe: FinetuneConfig) -> None:
    for who in ("bothways", "transformers"):
        selected = [run for run in runs if run["who"] == who]
        for metric in (*recipe.task.metrics, "seconds"):
            values = [run[metric] for run in selected]
            if values:
                mean = statistics.fmean(values)
                spread = statistics.stdev(values) if len(values) > 1 else float("nan")
                print(f"{who:<13} {metric:<9} {mean:8.4f} ± {spread:.4f} over {len(values)}")


if __name__ == "__main__":
    main()
