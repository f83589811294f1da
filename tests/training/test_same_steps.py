"""Fine-tuning takes the steps that transformers' model takes under torch's own AdamW."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.tasks.examples import step_batches
from bothways.training.optimizer import learning_rate
from bothways.training.options import OptimizerOptions
from finetuning_examples import start_model, word_config, word_files
from pretrain_runs import watching

pytestmark = pytest.mark.usefixtures("several_tiles")

# A rate, a decay and a limit on gradients that all show in 36 steps.
OPTIMIZER = OptimizerOptions(lr=3e-3, warmup=0.1, bias_correction=True, weight_decay=0.1, clip=0.1)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    """From a model with a head, so that both begin with the same one, and without dropout."""
    folder = word_files(tmp_path_factory.mktemp("same"))
    first = word_config(start_model(folder), folder, folder / "first")
    (seed,) = finetune(replace(first, seeds=(0,))).seeds
    return replace(
        first,
        model=str(seed.model),
        run=str(folder / "run"),
        head="keep",
        dropout=0.0,
        epochs=3,
        batch_size=16,
        optimizer=OPTIMIZER,
        seeds=(5,),
    )


def states(folder: str | Path) -> dict[str, Tensor]:
    return dict(AutoModelForSequenceClassification.from_pretrained(folder).state_dict())


def theirs(config: FinetuneConfig) -> dict[str, Tensor]:
    """Weights after the same batches, the usual loop around transformers' model."""
    tokenizer = AutoTokenizer.from_pretrained(config.model)
    model = AutoModelForSequenceClassification.from_pretrained(
        config.model, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ).train()
    with Path(config.task.train).open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    labels = torch.tensor([model.config.label2id[row["label"]] for row in rows])
    steps = [
        at
        for epoch in range(config.epochs)
        for at in step_batches(len(rows), config.batch_size, seed=config.seeds[0], epoch=epoch)
    ]
    weights = list(model.parameters())
    decayed = [w for w in weights if w.ndim > 1]
    groups = [
        {"params": decayed, "weight_decay": OPTIMIZER.weight_decay},
        {"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, eps=OPTIMIZER.eps)
    clipped = 0
    for step, at in enumerate(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, len(steps), OPTIMIZER)
        texts = [rows[i]["sentence"] for i in at]
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        model(**batch, labels=labels[torch.from_numpy(at)]).loss.backward()
        clipped += bool(torch.nn.utils.clip_grad_norm_(weights, OPTIMIZER.clip) > OPTIMIZER.clip)
        optimizer.step()
        optimizer.zero_grad()
    assert 5 < clipped < len(steps), "the limit should matter, and not at every step"
    return dict(model.state_dict())


@pytest.mark.parametrize("kernels", ["fast", "plain"])
def test_the_same_steps(config: FinetuneConfig, kernels: str) -> None:
    asked = replace(config, run=f"{config.run}-{kernels}", kernels=kernels)  # type: ignore[arg-type]
    fast = set()
    with watching(lambda trainer, *_: fast.add(trainer.model.shared.fast)):
        (seed,) = finetune(asked).seeds
    assert fast == {kernels == "fast"}
    before, ours, expected = states(config.model), states(seed.model), theirs(config)
    for name, value in expected.items():
        if name.endswith("self.key.bias"):  # shifts all scores of a query alike: no gradient
            continue
        moved = (value - before[name]).norm()
        apart = (value - ours[name]).norm()
        assert apart <= 0.01 * moved, f"{name}: moved by {moved:.2g}, apart by {apart:.2g}"
