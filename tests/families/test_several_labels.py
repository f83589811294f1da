"""Several labels and several scores, against transformers: both ways, with loss and gradients."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

import transformers

import bothways as bw
from bothways.families import FAMILIES
from bothways.model.batch import TaskInputs
from bothways.model.engine import network_of
from bothways.model.folder import save_model
from bothways.objectives.labelled import LabelledExamples
from bothways.runtime.folder import load_model
from bothways.tasks.task import LossKind
from bothways.training.trainer import step_loss
from family_examples import EXAMPLES, batch_of, loaded, save_theirs

KINDS: dict[str, tuple[str, LossKind]] = {
    "multilabel": ("multi_label_classification", "labels"),
    "multiregression": ("regression", "score"),
}
CONFIG = {"num_labels": 3, "id2label": {0: "red", 1: "green", 2: "blue"}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_loss_and_gradients(family: str, kind: str, tmp_path: Path) -> None:
    example, (problem, loss_kind) = EXAMPLES[family], KINDS[kind]
    theirs = example.model("ForSequenceClassification", problem_type=problem, **CONFIG)
    ours = loaded(theirs, tmp_path / "theirs")
    assert ours.about["kind"] == kind
    assert ours.about["labels"] == ["red", "green", "blue"]
    network = network_of(ours)
    inputs, batch = batch_of(example)
    count = inputs.sequences
    rng = np.random.default_rng(0)
    gold = rng.random((count, 3)) < 0.5 if kind == "multilabel" else rng.normal(size=(count, 3))
    targets = torch.from_numpy(gold.astype(np.float32))
    expected = theirs(**batch, labels=targets)
    expected.loss.backward()
    rows = TaskInputs(inputs, inputs.starts, np.arange(count + 1), targets)
    loss_of = step_loss([rows], LabelledExamples(loss_kind))
    loss, _ = loss_of(network, rows, torch.float32)
    loss.backward()
    assert loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    gradients = (
        (network.task_head.output.weight.grad, _output_gradient(theirs)),  # type: ignore[union-attr]
        (network.embedding_VH.grad, theirs.get_input_embeddings().weight.grad),
    )
    for mine, their in gradients:
        assert mine is not None
        torch.testing.assert_close(mine[: len(their)], their, atol=2e-5, rtol=1e-3)
    # Our folder, read by transformers, is the same model with the same problem.
    save_model(tmp_path / "ours", network, ours.tokenizer, ours.about)
    automatic = transformers.AutoModelForSequenceClassification
    again = automatic.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    assert again.config.problem_type == problem
    assert again.config.id2label == CONFIG["id2label"]
    with torch.no_grad():
        back = again(**batch, labels=targets)
    torch.testing.assert_close(back.logits, expected.logits.detach())
    assert back.loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)


def _output_gradient(model: torch.nn.Module) -> torch.Tensor:
    (found,) = [p.grad for p in model.parameters() if p.shape == (3, 32)]
    assert found is not None
    return found


def test_probabilities_are_those_of_the_pipeline(tmp_path: Path) -> None:
    example, texts = EXAMPLES["bert"], ["w9 w10 w11", "w12", "w7 w6 w5 w30"]
    config = {"problem_type": "multi_label_classification", **CONFIG}
    save_theirs(example.model("ForSequenceClassification", **config), tmp_path)
    pipe = transformers.pipeline("text-classification", str(tmp_path), top_k=None)
    expected = pipe(texts, function_to_apply="sigmoid")
    found = bw.load(tmp_path).predict(texts)
    assert found.names == ("red", "green", "blue")
    for row, values, labels in zip(expected, found.values, found.labels, strict=True):
        theirs = {item["label"]: item["score"] for item in row}
        assert [theirs[name] for name in found.names] == pytest.approx(values.tolist(), abs=1e-5)
        assert set(labels) == {name for name, p in theirs.items() if p >= 0.5}
    assert load_model(tmp_path).about["kind"] == "multilabel"
