"""What people with labels need: held-out shares, folds, weights, thresholds, the best epoch, frozen
encoders, names."""

from __future__ import annotations

import csv
import dataclasses
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

import bothways as bw
from bothways.errors import ConfigError, InputError, RunError
from bothways.finetuning.finetune import BestEpoch, finetune
from bothways.finetuning.frozen import fit_head, head_inputs
from bothways.finetuning.options import FinetuneConfig, SearchOptions
from bothways.finetuning.setup import label_weights, load_data, new_model
from bothways.model.batch import TaskInputs
from bothways.model.model import EncoderModel
from bothways.objectives.labelled import LabelledExamples
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import evaluate_file
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import TaskOptions
from bothways.training.options import SavingOptions
from bothways.training.trainer import step_loss
from finetuning_examples import FAST, MAGIC, assert_same, start_model, weights, words


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tickets.csv, of which an eighth are complaints."""
    path = tmp_path_factory.mktemp("data") / "tickets.csv"
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["ticket", "customer", "text", "label", "code"])
        for i in range(240):
            text = words(rng, int(rng.integers(4, 9)))
            rare = i % 8 == 0
            if rare:
                text[int(rng.integers(len(text)))] = MAGIC
            label = "complaint" if rare else "fine"
            rows.writerow([f"T{i:03}", f"C{i // 4}", " ".join(text), label, int(rare)])
    return path


@pytest.fixture
def config(start: Path, data: Path, tmp_path: Path) -> FinetuneConfig:
    task = TaskOptions(name="tickets", train=str(data), dev="0.2", text="text")
    return FinetuneConfig(
        task=task,
        model=str(start),
        run=str(tmp_path / "run"),
        epochs=2,
        batch_size=32,
        max_length=16,
        optimizer=FAST,
        precision="fp32",
        threads=1,
    )


def with_task(config: FinetuneConfig, **changes: Any) -> FinetuneConfig:
    return dataclasses.replace(config, task=dataclasses.replace(config.task, **changes))


def test_shares_are_held_out_recorded_and_repeated(
    config: FinetuneConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_task(config, test="0.1")
    result = finetune(config)
    shown = capsys.readouterr().out
    assert "train 168 (complaint 21, fine 147); dev 48 (complaint 6, fine 42); test 24" in shown
    assert "'complaint' is the label of 21 of 168 training examples: --class-weights" in shown
    assert "--labels fine complaint makes it that of 'complaint'" in shown
    assert "f1 is that of the class 'fine'" in str(result)
    assert result._repr_html_().count("f1 is that of the class") == 1
    assert (result.dev_examples, [*result.further]) == (48, ["test"])
    lines = (Path(config.run) / "parts.tsv").read_text().splitlines()[1:]
    parts = [line.split("\t") for line in lines]
    assert {part for part, _ in parts} == {"train", "dev", "test"}
    assert sorted(int(line) for _, line in parts) == list(range(2, 242))
    assert finetune(config) == result
    for other in (with_task(config, dev="0.25"), with_task(config, test=None)):
        with pytest.raises(RunError, match=r"(dev|train)"):
            finetune(other)
    with pytest.raises(RunError, match="split_seed: 0 in the folder, 1 requested"):
        finetune(dataclasses.replace(config, split_seed=1))


def test_rows_of_a_group_stay_together(config: FinetuneConfig) -> None:
    config = with_task(config, group="customer")
    loaded = load_model(config.model)
    data = load_data(config, loaded)
    lines = Path(config.task.train).read_text().splitlines()
    customers = {
        part: {lines[int(place) - 1].split(",")[1] for place in places}
        for part, places in data.parts.items()
    }
    assert not customers["train"] & customers["dev"]
    assert data.task.options.group is None  # other files need no such column


def test_what_cannot_be_held_out(config: FinetuneConfig) -> None:
    with pytest.raises(ConfigError, match=r"hold out 0\.5 and 0\.5 .* none is left"):
        finetune(with_task(config, dev="0.5", test="0.5"))
    with pytest.raises(ConfigError, match="or the share of train to hold out for it"):
        finetune(with_task(config, dev=""))
    assert with_task(config, dev=0.1).task.dev == "0.1"


def test_more_folds_than_examples_are_refused_before_training(config: FinetuneConfig) -> None:
    """They were trained up to the first without examples."""
    config = dataclasses.replace(with_task(config, dev=""), folds=241, freeze=True)
    with pytest.raises(InputError, match=r"tickets\.csv: 241 folds, but 240 examples that can"):
        load_data(config, load_model(config.model))
    by_customer = dataclasses.replace(with_task(config, group="customer"), folds=61)
    with pytest.raises(InputError, match="61 folds, but 60 examples"):
        load_data(by_customer, load_model(config.model))


def test_folds(config: FinetuneConfig, capsys: pytest.CaptureFixture[str]) -> None:
    config = dataclasses.replace(with_task(config, dev=""), folds=3, epochs=1)
    result = finetune(config)
    assert [seed.name for seed in result.seeds] == [f"seed 0 fold {n}" for n in (1, 2, 3)]
    table = result.table()
    assert "240 examples in 3 folds" in table
    assert "best (" not in table
    places = [(seed.folder / "dev_predictions.tsv").read_text() for seed in result.seeds]
    assert sum(len(text.splitlines()) - 1 for text in places) == 240
    assert result.baseline["accuracy"] == pytest.approx(210 / 240)
    capsys.readouterr()
    more = finetune(dataclasses.replace(config, repeats=2))
    assert "fold 3: finished before" in capsys.readouterr().out
    assert more.seeds[:3] == result.seeds
    assert more.spread()["division"]["values"] == 2
    assert "2 divisions into folds" in more.table()
    for wrong in ({"folds": 1}, {"repeats": 2, "folds": 0}):
        with pytest.raises(ConfigError, match=r"folds|repeats"):
            dataclasses.replace(config, **wrong)
    with pytest.raises(ConfigError, match="each fold is dev once"):
        dataclasses.replace(config, task=dataclasses.replace(config.task, dev="0.1"))


def test_a_learning_curve(config: FinetuneConfig) -> None:
    search = SearchOptions(examples=(40, 120))
    result = finetune(dataclasses.replace(config, epochs=1, search=search))
    assert result.search is not None
    names = {setting.name for setting in result.search.settings}
    assert names == {f"lr-0.003-batch-32-epochs-1-examples-{k}" for k in (40, 120)}
    assert set(result.search.options()["examples"]) == {"40", "120"}
    for setting in result.search.settings:
        steps = (setting.seeds[0].folder / "metrics.jsonl").read_text().splitlines()
        assert json.loads(steps[-1])["step"] == -(-setting.setting["examples"] // 32)


def test_weights_of_labels(config: FinetuneConfig) -> None:
    data = load_data(config, load_model(config.model))
    found = label_weights(["balanced"], data.task, data.train)
    assert found is not None
    gold = data.train.examples.gold
    counts = np.bincount(gold)
    assert found == pytest.approx(len(gold) / (2 * counts))
    given = label_weights(["complaint=7"], data.task, data.train)
    assert given is not None
    assert given[0] / given[1] == pytest.approx(7)
    assert given[gold].mean() == pytest.approx(1)
    for wrong in ("complaints=7", "complaint", "complaint=-1", "complaint=much"):
        with pytest.raises(ConfigError, match="class_weights has"):
            label_weights([wrong], data.task, data.train)
    with pytest.raises(ConfigError, match="class_weights is for labels"):
        FinetuneConfig(task=TaskOptions(kind="regression"), class_weights=("balanced",))


def test_weighted_losses_do_not_depend_on_micro_batches(config: FinetuneConfig) -> None:
    """They are sums over the counts of the whole step."""
    loaded = load_model(config.model)
    data = load_data(config, loaded)
    plain = dataclasses.replace(config, dropout=0.0, kernels="plain")
    model = new_model(loaded, plain, data.task, 0).double()
    objective = LabelledExamples("class", torch.tensor([3.0, 0.5], dtype=torch.float32))
    examples = data.train.examples

    def gradient(parts: Sequence[Sequence[int]]) -> torch.Tensor:
        batches = [
            TaskInputs.of(examples.batch(np.array(part), max_positions=16)) for part in parts
        ]
        loss = step_loss(batches, objective)
        model.zero_grad()
        for batch in batches:
            loss(model, batch, torch.float64)[0].backward()
        assert model.task_head is not None
        found: torch.Tensor = model.task_head.output.weight.grad
        return found.clone()

    whole, halves = gradient([range(12)]), gradient([range(5), range(5, 12)])
    assert torch.allclose(whole, halves, atol=1e-6)


def card(folder: str | Path) -> str:
    text = (Path(folder) / "README.md").read_text()
    return text[text.index("## Limits") : text.index("## Licence")]


def test_thresholds_of_two_classes(config: FinetuneConfig, data: Path) -> None:
    config = with_task(config, labels=("fine", "complaint"), tune=True)
    config = dataclasses.replace(config, metric="f1", class_weights=("balanced",), epochs=3)
    result = finetune(config)
    assert result.metrics == ("f1", "accuracy", "matthews")
    seed = result.best
    loaded = load_model(seed.model)
    threshold = loaded.about["options"]["threshold"]
    assert 0 < threshold < 1
    rows = [
        line.split("\t")
        for line in (seed.folder / "dev_predictions.tsv").read_text().splitlines()[1:]
    ]
    for _, predicted, _, _, p in rows:
        assert (predicted == "complaint") == (float(p) >= threshold)
    f1 = [
        2 * sum(r[2] == "complaint" and float(r[4]) >= t for r in rows)
        / (sum(float(r[4]) >= t for r in rows) + sum(r[2] == "complaint" for r in rows))
        for t in sorted(float(r[4]) for r in rows)
    ]  # fmt: skip
    assert seed.measurement.scores["f1"] == pytest.approx(max(f1))
    page = (Path(config.run) / "report.html").read_text()
    assert "tuned on dev" in page
    model = bw.load(seed.model)
    texts = [row["text"] for row in csv.DictReader(data.open())]
    prediction = model.predict(texts)
    said = f"labels are given from these probabilities: complaint {threshold:.4g}; tuned on dev"
    assert html.escape(said) in page
    assert said in result.table()
    assert said in model.evaluate(data).notes
    facts = dict(bw.info(seed.model).facts)
    assert facts["threshold"] == said
    assert f"* L{said[1:]}; other libraries give the more probable label." in card(seed.model)
    assert card(seed.model) == card(model.save(data.parent / "saved"))
    column = pd.Series(texts[:3], index=[7, 2, 2])
    assert model.predict(column).to_frame().index.tolist() == [7, 2, 2]
    assert model.predict(texts[:3]).to_frame().index.tolist() == [0, 1, 2]
    assert prediction.labels == [
        "complaint" if p >= threshold else "fine" for p in prediction.values[:, 1]
    ]
    # Labels in the other order: the threshold is of the same label.
    other = dataclasses.replace(config.task, labels=("complaint", "fine"), metrics=("accuracy",))
    same = dataclasses.replace(config.task, metrics=("accuracy",))
    scores = [evaluate_file(loaded, data, options=o).scores["accuracy"] for o in (other, same)]
    assert scores[0] == scores[1]
    with pytest.raises(ConfigError, match=r"tune has no effect"):
        TaskOptions(kind="multilabel", tune=True)


def test_the_best_epoch_is_kept_across_a_kill(
    config: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(config, keep="best", epochs=4, checkpoint=SavingOptions(0.0))
    offer, scores = BestEpoch.offer, {1: 0.2, 2: 0.9, 3: 0.9, 4: 0.1}

    def scored(self: BestEpoch, measured: list[Measurement], model: EncoderModel) -> None:
        """The second epoch is best, whatever it learned."""
        score = Measurement({"accuracy": scores[len(measured)]})
        offer(self, [*measured[:-1], score], model)

    monkeypatch.setattr(BestEpoch, "offer", scored)
    whole = finetune(config)
    assert whole.best.epoch == 2
    assert "kept for the best accuracy on dev, whose score is optimistic: seed 0 epoch 2" in (
        whole.table()
    )
    about = load_model(whole.best.model).about
    assert about["epoch"] == "2 of 4, chosen by accuracy on dev"

    calls: list[int] = []

    def killed(self: BestEpoch, measured: list[Measurement], model: EncoderModel) -> None:
        calls.append(len(measured))
        if len(calls) == 3:
            raise KeyboardInterrupt
        scored(self, measured, model)

    broken = dataclasses.replace(config, run=str(tmp_path / "broken"))
    monkeypatch.setattr(BestEpoch, "offer", killed)
    with pytest.raises(KeyboardInterrupt):
        finetune(broken)
    monkeypatch.setattr(BestEpoch, "offer", scored)
    again = finetune(broken)
    assert again.best.epoch == 2
    assert_same(weights(config.run), weights(broken.run))
    assert again.scores == whole.scores

    short = dataclasses.replace(config, run=str(tmp_path / "short"), patience=1)
    result = finetune(short)
    records = (result.best.folder / "metrics.jsonl").read_text().splitlines()
    assert json.loads(records[-1])["epoch"] == 3
    assert_same(weights(config.run), weights(short.run))


def test_the_best_epoch_has_its_own_scores(config: FinetuneConfig) -> None:
    """The saved model repeats the highest of the epochs' scores."""
    config = dataclasses.replace(config, keep="best", metric="f1_macro", epochs=4)
    result = finetune(with_task(config, labels=("fine", "complaint")))
    record = json.loads((result.best.folder / "metrics.json").read_text())
    epochs = [epoch["f1_macro"] for epoch in record["epochs"]]
    assert result.best.measurement.scores["f1_macro"] == max(epochs)
    assert result.best.epoch == epochs.index(max(epochs)) + 1


def test_a_frozen_encoder(config: FinetuneConfig, data: Path) -> None:
    config = with_task(config, test="0.1", labels=("fine", "complaint"))
    frozen = dataclasses.replace(config, freeze=True, class_weights=("balanced",))
    result = finetune(frozen)
    assert finetune(frozen) == result
    before, after = (load_model(m) for m in (config.model, result.best.model))
    encoder = {
        name: value
        for name, value in bw.load(result.best.model).network.state_dict().items()
        if name.startswith("encoder.") and "pooler" not in name
    }
    start = bw.load(config.model).network.state_dict()
    assert all(torch.equal(value, start[name]) for name, value in encoder.items())
    assert (before.task_outputs, after.task_outputs) == (0, 2)
    assert not bw.diagnose(result.best.model)

    # The model folder alone repeats the scores, and predicts with the mean of a text's tokens.
    table = result.best.folder / "dev_predictions.tsv"
    wanted = [line.split("\t") for line in table.read_text().splitlines()[1:]]
    places = [
        int(line.split("\t")[1])
        for line in (Path(config.run) / "parts.tsv").read_text().splitlines()
        if line.startswith("dev")
    ]
    rows = list(csv.DictReader(data.open()))
    texts = [rows[place - 2]["text"] for place in places]
    prediction = bw.load(result.best.model).predict(texts)
    assert prediction.labels == [row[1] for row in wanted]
    model = bw.load(result.best.model)
    head = model.network.task_head
    assert head is not None
    vectors = model.embed(texts, pooling="mean", max_length=16)
    logits = vectors @ head.output.weight.detach().numpy().T + head.output.bias.detach().numpy()
    p = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    assert prediction.values[:, 1] == pytest.approx(p, abs=1e-5)
    other = bw.load(result.best.model, engine="onnxruntime").predict(texts)
    assert other.values == pytest.approx(prediction.values, abs=1e-5)
    assert other.labels == prediction.labels

    # It is a model of texts wherever it is described, although its head reads tokens.
    told = bw.info(result.best.model)
    assert {"predict", "tag"} & {*told.verbs} == {"predict"}
    assert told.next == (f"bothways predict {result.best.model} 'a text'",)
    assert told.facts["heads"] == "head for labels or scores of texts"
    assert "heads: classifier" in repr(model)

    # To transformers it tags tokens; their mean gives the same.
    assert (
        "library_name: bothways\npipeline_tag: text-classification"
        in (result.best.model / "README.md").read_text()
    )
    tokenizer = AutoTokenizer.from_pretrained(result.best.model)
    theirs = AutoModelForTokenClassification.from_pretrained(result.best.model)
    p_theirs = theirs(**tokenizer(texts[0], return_tensors="pt")).logits.mean(1).softmax(-1)[0, 1]
    assert p_theirs.item() == pytest.approx(prediction.values[0, 1], abs=1e-5)
    card = (result.best.model / "README.md").read_text()
    assert "a head for labels or scores of texts" in card
    assert "pipeline(" not in card

    for wrong in ({"keep": "best"}, {"lstm": 8}, {"search": SearchOptions(lr=(1e-3,))}):
        with pytest.raises(ConfigError, match="freeze trains no epochs"):
            dataclasses.replace(frozen, **wrong)
    with pytest.raises(ConfigError, match="not for kind spans"):
        FinetuneConfig(task=TaskOptions(kind="spans"), freeze=True)


def test_a_head_of_tokens_is_trained_by_its_mean(config: FinetuneConfig) -> None:
    """What a frozen encoder's head does, with all weights trained."""
    config = with_task(config, reads="tokens", labels=("fine", "complaint"))
    result = finetune(dataclasses.replace(config, epochs=8))
    losses = [
        json.loads(line)["loss"]
        for line in (result.best.folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert losses[-1] < 0.8 * losses[0]
    again = evaluate_file(load_model(result.best.model), config.task.train)
    assert again.scores["accuracy"] > 0.85
    model = bw.load(result.best.model)
    one, two = (bw.load(result.best.model, engine=e) for e in ("torch", "onnxruntime"))
    texts = ["w7 w8 w9", "w10", "w11 w12 w7 w13"]
    assert one.predict(texts).values == pytest.approx(two.predict(texts).values, abs=1e-5)
    assert model.loaded.about["options"]["reads"] == "tokens"


def test_a_frozen_head_is_scikit_learns(config: FinetuneConfig) -> None:
    """The probabilities of the head are those of the logistic regression with the same strength."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    loaded = load_model(config.model)
    frozen = dataclasses.replace(config, freeze=True)
    data = load_data(frozen, loaded)
    model = new_model(loaded, frozen, data.task, 0)
    fit_head(model, data, ())
    x = head_inputs(model, data.train.examples, averaged=True)
    gold = data.train.examples.gold
    assert model.task_head is not None
    weight = model.task_head.output.weight.detach().numpy().astype(np.float64)
    bias = model.task_head.output.bias.detach().numpy()
    scores = x @ weight.T + bias
    scaled = StandardScaler().fit_transform(x)
    found = [
        np.abs(
            LogisticRegression(C=strength, max_iter=1000)
            .fit(scaled, gold)
            .decision_function(scaled)
            - (scores[:, 1] - scores[:, 0])
        ).max()
        for strength in (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    ]
    assert min(found) < 1e-3


def test_advice_where_runs_collapse(config: FinetuneConfig) -> None:
    slow = dataclasses.replace(config.optimizer, lr=1e-6)
    result = finetune(dataclasses.replace(config, optimizer=slow, epochs=1))
    assert result.collapsed
    lines = result.table().splitlines()
    told = [line for line in lines if "a run collapsed; try --class-weights balanced" in line]
    assert told == [
        "a run collapsed; try --class-weights balanced, --lr 5e-06, more --epochs or --freeze"
    ]
    assert max(map(len, lines[:-1])) <= 100
