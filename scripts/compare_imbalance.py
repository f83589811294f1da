"""Compare ways to find a rare class: scikit-learn's tools on our estimators, and others' recipes.

SST-2's sentences, of which a tenth are negative, as in a table with a rare label; the same folds
for all. For each seed another sample of sentences, other folds, and another seed of training.
Prints macro F1 with its spread and writes a JSON file.

* ``classifier``: ``cross_val_score`` of ``TextClassifier`` with balanced weights.
* ``unweighted``: the same without weights.
* ``embedder``: a ``Pipeline`` of ``TextEmbedder`` and balanced logistic regression.
* ``search``: ``GridSearchCV`` over that pipeline's strength, inside the cross-validation.
* ``trainer``: transformers' ``Trainer`` with balanced weights in its loss, at the same settings.
* ``setfit``: SetFit with its balanced head on the same pairs of texts that it draws, if installed.

    python scripts/compare_imbalance.py SST2/train.tsv MODEL_FOLDER --out imbalance.json
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline

import bothways as bw
from bothways.shipped import DEFAULT

Texts = NDArray[Any]
FOLDS = 3


def main() -> None:
    """Measure each contender on each seed's sample."""
    options = _arguments()
    torch.set_num_threads(options.threads)
    contenders: dict[str, Callable[[Texts, Texts, int], list[float]]] = {
        "embedder": lambda x, y, seed: _cross(_quick(options), x, y, seed),
        "search": lambda x, y, seed: _cross(_search(options), x, y, seed),
        "classifier": lambda x, y, seed: _cross(_tuned(options, seed, "balanced"), x, y, seed),
        "unweighted": lambda x, y, seed: _cross(_tuned(options, seed, None), x, y, seed),
        "trainer": lambda x, y, seed: _folds(x, y, seed, _trainer(options, seed)),
        "setfit": lambda x, y, seed: _folds(x, y, seed, _setfit(options, seed)),
    }
    chosen = {name: contenders[name] for name in options.contenders}
    found: dict[str, list[list[float]]] = {name: [] for name in chosen}
    seconds = dict.fromkeys(chosen, 0.0)
    for seed in range(options.first, options.first + options.seeds):
        texts, labels = sample(options.file, options.examples, options.share, seed)
        for name, measure in chosen.items():
            begun = time.monotonic()
            found[name].append(measure(texts, labels, seed))
            seconds[name] += time.monotonic() - begun
            scores = " ".join(f"{score:.3f}" for score in found[name][-1])
            print(f"seed {seed} {name}: {scores}", flush=True)
            _write(options, found, seconds)
    for name, runs in found.items():
        means = [statistics.fmean(run) for run in runs]
        spread = f" ± {statistics.stdev(means):.3f}" if len(means) > 1 else ""
        print(f"{name:<12} macro F1 {statistics.fmean(means):.3f}{spread}  {seconds[name]:.0f} s")


def sample(file: Path, count: int, share: float, seed: int) -> tuple[Texts, Texts]:
    """Sentences and their labels, of which ``share`` are ``negative``."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = [row for row in rows if len(row["sentence"].split()) >= 5]
    draws = np.random.default_rng(seed)
    rare = round(share * count)
    picked = []
    for label, wanted in (("0", rare), ("1", count - rare)):
        own = [row["sentence"] for row in rows if row["label"] == label]
        name = "negative" if label == "0" else "positive"
        picked += [(own[i], name) for i in draws.choice(len(own), wanted, replace=False)]
    order = draws.permutation(count)
    texts, labels = zip(*(picked[i] for i in order), strict=True)
    return np.array(texts, dtype=object), np.array(labels)


def _cross(estimator: Any, texts: Texts, labels: Texts, seed: int) -> list[float]:
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    return list(cross_val_score(estimator, texts, labels, cv=folds, scoring="f1_macro"))


def _quick(options: argparse.Namespace) -> Any:
    return make_pipeline(
        bw.sklearn.TextEmbedder(options.model),
        LogisticRegression(class_weight="balanced", max_iter=1000),
    )


def _search(options: argparse.Namespace) -> Any:
    strengths = {"logisticregression__C": [0.1, 1.0, 10.0]}
    return GridSearchCV(_quick(options), strengths, cv=2, scoring="f1_macro")


def _tuned(options: argparse.Namespace, seed: int, weights: str | None) -> Any:
    return bw.sklearn.TextClassifier(
        options.model,
        class_weight=weights,
        epochs=options.epochs,
        lr=options.lr,
        batch=options.batch,
        length=options.length,
        threads=options.threads,
        seed=seed,
    )


Fitted = Callable[[Texts, Texts, Texts], Texts]


def _folds(texts: Texts, labels: Texts, seed: int, predict: Fitted) -> list[float]:
    """As :func:`_cross`, of what is no estimator."""
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    return [
        float(f1_score(labels[b], predict(texts[a], labels[a], texts[b]), average="macro"))
        for a, b in folds.split(texts, labels)
    ]


def _trainer(options: argparse.Namespace, seed: int) -> Fitted:
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    class Weighted(Trainer):  # type: ignore[misc]
        weights: torch.Tensor

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any
        ) -> Any:
            gold = inputs.pop("labels")
            outputs = model(**inputs)
            loss = torch.nn.functional.cross_entropy(outputs.logits, gold, self.weights)
            return (loss, outputs) if return_outputs else loss

    tokenizer = AutoTokenizer.from_pretrained(options.model)

    def predict(texts: Texts, labels: Texts, other: Texts) -> Texts:
        set_seed(seed)
        names, gold = np.unique(labels, return_inverse=True)
        model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)

        def rows(texts: Texts, gold: Any = None) -> list[dict[str, Any]]:
            encoded = tokenizer(list(texts), truncation=True, max_length=options.length)
            found = [{"input_ids": ids} for ids in encoded["input_ids"]]
            for row, label in zip(found, () if gold is None else gold, strict=False):
                row["labels"] = int(label)
            return found

        with tempfile.TemporaryDirectory() as folder:
            settings = TrainingArguments(
                folder,
                num_train_epochs=options.epochs,
                learning_rate=options.lr,
                per_device_train_batch_size=options.batch,
                per_device_eval_batch_size=128,
                warmup_steps=0.1,
                weight_decay=0.01,
                seed=seed,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
                remove_unused_columns=False,
            )
            trainer = Weighted(
                model,
                settings,
                train_dataset=rows(texts, gold),
                data_collator=DataCollatorWithPadding(tokenizer),
            )
            counts = torch.bincount(torch.tensor(gold)).float()
            trainer.weights = counts.sum() / (len(counts) * counts)
            trainer.train()
            logits = trainer.predict(rows(other)).predictions
        found: Texts = names[logits.argmax(-1)]
        return found

    return predict


def _setfit(options: argparse.Namespace, seed: int) -> Fitted:
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    def predict(texts: Texts, labels: Texts, other: Texts) -> Texts:
        head = {"class_weight": "balanced", "max_iter": 1000}
        model = SetFitModel.from_pretrained(str(options.model), head_params=head)
        settings = TrainingArguments(
            batch_size=options.batch, num_epochs=1, max_steps=options.setfit_steps, seed=seed
        )
        rows = Dataset.from_dict({"text": list(texts), "label": list(labels)})
        Trainer(model, settings, train_dataset=rows).train()
        return np.asarray(model.predict(list(other)))

    return predict


def _write(
    options: argparse.Namespace, found: dict[str, list[list[float]]], seconds: dict[str, float]
) -> None:
    settings = {name: str(value) for name, value in vars(options).items()}
    record = {"settings": settings, "macro F1 by seed and fold": found, "seconds": seconds}
    options.out.write_text(json.dumps(record, indent=1), encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("file", type=Path, help="SST-2's train.tsv")
    parser.add_argument("model", nargs="?", default=DEFAULT, help="a model folder")
    parser.add_argument("--examples", type=int, default=600)
    parser.add_argument("--share", type=float, default=0.1, help="of the rare class")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--setfit-steps", type=int, default=60)
    parser.add_argument(
        "--contenders",
        nargs="+",
        default=["embedder", "search", "classifier", "unweighted", "trainer"],
    )
    parser.add_argument("--out", type=Path, default=Path("imbalance.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
