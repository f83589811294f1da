"""Answers in passages, end to end: trained, saved, answered, chained."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bothways as bw
from bothways import cli
from bothways.errors import ConfigError, InputError, ModelError
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.setup import measured_outputs
from bothways.io.annotations.squad import GoldAnswer, Questions
from bothways.model.batch import collate
from bothways.model.engine import TorchEngine, network_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.runtime.pipeline import (
    answer_questions,
    encode_file,
    evaluate_file,
    task_for_file,
)
from bothways.tasks.answers import score_answers
from bothways.tasks.kinds import task_of
from bothways.tasks.options import SpanOptions, TaskOptions
from bothways.tasks.passages import PassageFile
from bothways.tasks.spans import Answer, RankedAnswers, SpanTask
from bothways.training.options import OptimizerOptions
from model_examples import BOTH_HEADS, padded, small_config, small_tokenizer
from question_examples import question, squad_file, word_questions

VOCABULARY = 97


SHAPE = (2, 32, 4, 64, VOCABULARY)


FAST = OptimizerOptions(lr=4e-3, warmup=0.1, bias_correction=True)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "model"
    model = EncoderModel(small_config(SHAPE), **BOTH_HEADS, seed=11)
    save_model(folder, model, small_tokenizer(VOCABULARY))
    return folder


def setting(start: Path, folder: Path, *, no_answer: bool = False, **changes: object) -> object:
    """Windows of 20 tokens, so that some passages have two."""
    task = TaskOptions(
        name="between",
        kind="spans",
        train=str(word_questions(folder / "train.json", 200, 0, no_answer=no_answer)),
        dev=str(word_questions(folder / "dev.json", 60, 1, no_answer=no_answer)),
        test=str(word_questions(folder / "test.json", 20, 2, no_answer=no_answer)),
        spans=SpanOptions(stride=7, n_best=5),
    )
    return dataclasses.replace(
        FinetuneConfig(
            task=task, model=str(start), run=str(folder / "run"), epochs=6, batch_size=16,
            max_length=20, dropout=0.0, optimizer=FAST, precision="fp32", threads=1,
        ),
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture(scope="module")
def tuned(start: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    """A finished run, read only."""
    config = setting(start, tmp_path_factory.mktemp("v1"))
    assert isinstance(config, FinetuneConfig)
    finetune(config)
    return config


@pytest.fixture(scope="module")
def tuned_v2(start: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    """A finished run on questions of which some have no answer, read only."""
    config = setting(start, tmp_path_factory.mktemp("v2"), no_answer=True)
    assert isinstance(config, FinetuneConfig)
    finetune(config)
    return config


def model_of(config: FinetuneConfig) -> Path:
    return Path(config.run) / "seed-0" / "model"


def test_it_learns_and_the_folder_answers(tuned: FinetuneConfig) -> None:
    folder = Path(tuned.run) / "seed-0"
    scores = json.loads((folder / "metrics.json").read_text())["scores"]
    assert scores["f1"] > 0.8
    loaded = load_model(folder / "model")
    assert loaded.about["kind"] == "spans"
    assert evaluate_file(loaded, tuned.task.dev).scores == scores

    given = json.loads((folder / "dev_predictions.json").read_text())
    best = json.loads((folder / "dev_predictions_nbest.json").read_text())
    assert {id: answers[0]["text"] for id, answers in best.items()} == given
    assert all(sum(a["probability"] for a in found) == pytest.approx(1) for found in best.values())
    assert not (folder / "dev_predictions_null_odds.json").exists()
    assert len(json.loads((folder / "test_predictions.json").read_text())) == 20
    lines = (folder / "dev_predictions.tsv").read_text().splitlines()
    assert lines[0] == "id\tprediction\tgold\tprobability"
    assert [line.split("\t")[:2] for line in lines[1:]] == [[*item] for item in given.items()]

    content = json.loads(Path(tuned.task.dev).read_text())["data"][0]["paragraphs"][5]
    passage, asked = content["context"], content["qas"][0]
    answers = bw.load(folder / "model").answer(asked["question"], passage, top=3)
    assert [a.text for a in answers] == [a["text"] for a in best[asked["id"]][:3]]
    assert all(passage[a.start : a.end] == a.text for a in answers)


def test_errors_show_question_and_passage_around_both_answers() -> None:
    passage = f"{'x ' * 400}Anna sold the boat to Ben. {'y ' * 400}"
    at = {name: passage.index(name) for name in ("Anna", "the boat", "Ben")}
    answers = [(GoldAnswer("Anna", at["Anna"]),), (GoldAnswer("the boat", at["the boat"]),), ()]
    asked = ["Who?", "", "Where?"]
    rows = Questions(Path("d.json"), [passage], ["a", "b", "c"], asked, [0] * 3, answers)
    task = SpanTask(TaskOptions(kind="spans", metrics=("f1",), spans=SpanOptions(no_answer=True)))
    said = ("Ben", "the  Boat.", "Ben")

    def answered(text: str) -> RankedAnswers:
        place = passage.find(text)
        return RankedAnswers((Answer(text, place, place + len(text), 1.0, 0.75),), text, -1.0)

    part: Any = SimpleNamespace(rows=rows)
    wrong = task.errors(part, [answered(text) for text in said])
    assert [(m.example, m.gold, m.predicted) for m in wrong] == [
        (0, "Anna", "Ben"), (2, "no answer", "Ben")
    ]  # fmt: skip
    assert [m.weight for m in wrong] == [0.75, 0.75]
    assert wrong[0].shown == "probability 0.750, F1 0.00"
    (_, text), (_, around) = wrong[0].texts
    assert text == "Who?"
    assert "Anna sold the boat to Ben." in around
    assert around.startswith("... ")
    assert around.endswith(" ...")
    assert len(around) < 320
    words, lengths, confusion = task.panels(part, [answered(text) for text in said])
    assert [row[0] for row in words.rows] == ["who", "", "where"]
    assert [row[:2] for row in lengths.rows] == [("none", 1), ("1", 1), ("2", 1)]
    assert confusion.rows == (("answer", 2, 0), ("no answer", 1, 0))


def test_transformers_gives_the_same_outputs(tuned: FinetuneConfig) -> None:
    transformers = pytest.importorskip("transformers")
    loaded = load_model(model_of(tuned))
    _, part = encode_file(loaded, tuned.task.dev, labelled=True)
    outputs = measured_outputs(TorchEngine(network_of(loaded)), part.examples)
    bounds = part.examples.bounds
    tokens, segments = (
        [row.tolist() for row in np.split(values, bounds[1:-1])][:9]
        for values in (part.examples.tokens, part.examples.segments)
    )
    theirs = transformers.BertForQuestionAnswering.from_pretrained(model_of(tuned)).eval()
    batch = padded(tokens, segments)
    with torch.no_grad():
        found = theirs(**batch)
    kept = batch["attention_mask"].bool()
    expected = torch.stack([found.start_logits[kept], found.end_logits[kept]], -1).numpy()
    np.testing.assert_allclose(outputs[: len(expected)], expected, atol=2e-5)


def test_no_answer_is_learned_and_its_threshold_kept(tuned_v2: FinetuneConfig) -> None:
    folder = Path(tuned_v2.run) / "seed-0"
    loaded = load_model(folder / "model")
    task = task_of(loaded)
    assert isinstance(task, SpanTask)
    threshold = task.options.spans.threshold
    assert task.no_answer
    found = evaluate_file(loaded, tuned_v2.task.dev)
    assert list(found.scores) == ["f1", "exact_match", "no_answer_precision", "no_answer_recall"]
    assert found.scores["f1"] > 0.7
    assert found.scores["no_answer_recall"] > 0.5

    given = json.loads((folder / "dev_predictions.json").read_text())
    odds = json.loads((folder / "dev_predictions_null_odds.json").read_text())
    assert {id for id, answer in given.items() if not answer} == {
        id for id, value in odds.items() if value > threshold
    }

    # The stored threshold is used, and none is better on dev.
    def at(value: float) -> float:
        spans = dataclasses.replace(task.options.spans, threshold=value)
        loaded.about["options"]["spans"]["threshold"] = value
        vars(loaded).pop("task", None)
        assert loaded.task.options.spans == spans
        return evaluate_file(loaded, tuned_v2.task.dev).scores["f1"]

    # A declaration says what a file looks like, not what the model has learned.
    declared = TaskOptions(kind="spans")
    again = load_model(folder / "model")
    assert evaluate_file(again, tuned_v2.task.dev, options=declared).scores == found.scores

    passage = "w50 w1 w33 w6 w51"
    for value, none in ((-1e6, True), (1e6, False)):
        assert at(value) < found.scores["f1"]
        ((best, *_),) = answer_questions(loaded, ["w3 w4"], [passage])
        assert (best.text == "") == none
    assert max(at(value + 1e-6) for value in list(odds.values())[::6]) <= found.scores["f1"]


def test_other_files_are_answered_by_the_threshold_that_was_tuned(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SpanTask, "_best_threshold", lambda *_: -1e6)  # always no answer
    config = setting(start, tmp_path, no_answer=True, epochs=1)
    assert isinstance(config, FinetuneConfig)
    finetune(config)
    given = json.loads((tmp_path / "run/seed-0/test_predictions.json").read_text())
    assert set(given.values()) == {""}


def test_tuning_finds_the_threshold() -> None:
    """Two questions with answers, of odds -1 and 3; one without, of odds 5."""
    passages = ["w1 w2", "w3 w4", "w5 w6"]
    golds = [(GoldAnswer("w1", 0),), (GoldAnswer("w3", 0),), ()]
    rows = Questions(Path("q.json"), passages, ["a", "b", "c"], ["w9"] * 3, [0, 1, 2], [*golds])
    task = SpanTask.define(TaskOptions(kind="spans"), rows)
    part = task.encode(small_tokenizer(VOCABULARY), rows, length=20)
    outputs = np.zeros((len(part.examples.read_positions), 2), np.float32)
    for n, null in enumerate((4.0, 8.0, 10.0)):
        outputs[part.examples.output_bounds[n]] = null / 2
        outputs[part.examples.output_bounds[n] + 3] = 2.5
    assert [answered.null_odds for answered in task.decode(part, outputs)] == [-1.0, 3.0, 5.0]
    tuned = task.tuned(part, task.decode(part, outputs))
    assert tuned.options.spans.threshold == 4.0
    found = tuned.measure(part, tuned.decode(part, outputs))
    assert found.scores["f1"] == 1.0
    assert "no-answer threshold 4.000; at 0: f1 0.6667" in found.notes[0]
    fixed = dataclasses.replace(task.options.spans, tune=False)
    same = SpanTask(dataclasses.replace(task.options, spans=fixed))
    assert same.tuned(part, same.decode(part, outputs)) is same
    assert task.baseline(part, part).scores["f1"] == pytest.approx(1 / 3)
    # A model that was never tuned, such as another library's, is said to be so.
    untuned = task.measure(part, task.decode(part, outputs))
    assert untuned.notes == (
        "no-answer threshold 0.000; at 4.000, the best for this file: f1 1.0000, exact_match "
        "1.0000, no_answer_precision 1.0000, no_answer_recall 1.0000",
    )


def test_questions_on_long_texts(tuned: FinetuneConfig) -> None:
    model = bw.load(model_of(tuned))
    words = ["w50"] * 300
    words[211:214] = ["w2", "w33", "w5"]
    (answer,) = model.answer("w3 w4", " ".join(words))
    assert answer.text == "w2 w33 w5"
    assert answer.start == len("w50 " * 211)


def test_the_longest_answer_is_asked_for(tuned: FinetuneConfig) -> None:
    model = bw.load(model_of(tuned))
    asked = ("w3 w4", "w50 w2 w33 w5 w51")
    assert model.answer(*asked)[0].text == "w2 w33 w5"
    for most in (1, 2, 3):
        answers = model.answer(*asked, top=20, answer_length=most)
        assert max(len(answer.text.split()) for answer in answers) == most
    assert model.answer(*asked)[0].text == "w2 w33 w5"  # the model is as before
    several = model.answer([asked[0]] * 2, asked[1], answer_length=1)
    assert [len(found[0].text.split()) for found in several] == [1, 1]
    for wrong in (0, -1, 1.5, "3"):
        with pytest.raises(ConfigError, match=r"answer_length is .*; it must be a whole"):
            model.answer(*asked, answer_length=wrong)  # type: ignore[call-overload]


def test_going_on_from_a_tuned_folder(
    tuned: FinetuneConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = dataclasses.replace(
        tuned,
        model=str(model_of(tuned)),
        run=str(tmp_path / "kept"),
        epochs=1,
        optimizer=dataclasses.replace(FAST, lr=1e-9),
    )
    before = json.loads((Path(tuned.run) / "seed-0" / "metrics.json").read_text())["scores"]
    assert finetune(again).seeds[0].measurement.scores == before
    assert "continues from the task head of the model folder" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="head_seeds draw new heads"):
        finetune(dataclasses.replace(again, head_seeds=(0, 1)))
    fresh = dataclasses.replace(again, run=str(tmp_path / "new"), head="new", seeds=(7,))
    assert finetune(fresh).mean() < before["f1"] / 2
    assert "continues from the task head" not in capsys.readouterr().out


def test_a_long_question_is_cut_and_counted(
    tuned: FinetuneConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, text = ("w3", 3), "w2 w3 w4"
    items = [question("short", "w9", answer), question("long", "w8 " * 99, answer)]
    path = squad_file(tmp_path / "q.json", [{"context": text, "qas": items}])
    own = dataclasses.replace(tuned, run=str(tmp_path / "run"), epochs=1)
    own = dataclasses.replace(own, task=dataclasses.replace(own.task, train=str(path)))
    finetune(own)
    model = str(model_of(tuned))
    for verb in (["predict", model, "--file", str(path)], ["evaluate", model, str(path)]):
        assert cli.main(verb) == 0
    shown = capsys.readouterr()
    note = "q.json: 1 of 2 questions were cut to 8 tokens"
    assert (shown.out.count(note), shown.err.count(note)) == (1, 2)
    found = load_model(model)
    assert answer_questions(found, ["w8 " * 99], [text]) == answer_questions(
        found, ["w8 " * 8], [text]
    )


def test_where_an_answer_stands_counts_in_training_alone(
    tuned: FinetuneConfig, tmp_path: Path
) -> None:
    loaded = load_model(model_of(tuned))
    loaded.about["options"]["spans"] = {"misaligned": "error", "no_answer": False}
    asked = question("q", "w1", ("w3", 999))
    path = squad_file(tmp_path / "astray.json", [{"context": "w2 w3", "qas": [asked]}])
    found = evaluate_file(loaded, path)
    answer = bw.load(model_of(tuned)).answer("w1", "w2 w3")[0].text
    (expected,) = score_answers([answer], [("w3",)], convention="squad", no_answer=False).f1
    assert found.scores["f1"] == pytest.approx(expected)
    _, file = encode_file(loaded, path, labelled=True)
    assert any("training leaves these questions out, scores do not" in n for n in file.notes)
    config = dataclasses.replace(
        tuned, run=str(tmp_path / "run"), task=dataclasses.replace(
            tuned.task, train=str(path), spans=SpanOptions(misaligned="error")
        )
    )  # fmt: skip
    with pytest.raises(InputError, match=r"astray\.json: question 'q': the answer 'w3' is not at"):
        finetune(config)


def test_a_question_whose_answer_is_astray_changes_nothing(start: Path, tmp_path: Path) -> None:
    """Neither the weights nor the number of steps."""
    file = word_questions(tmp_path / "nine.json", 9, 5)
    paragraphs = json.loads(file.read_text())["data"][0]["paragraphs"]
    astray = {"context": "w8 w9", "qas": [question("astray", "w3 w4", ("w77", 0))]}
    mixed = squad_file(tmp_path / "mixed.json", [*paragraphs[:4], astray, *paragraphs[4:]])
    found = []
    for train in (file, mixed):
        config = setting(start, tmp_path, epochs=2, batch_size=3, seeds=(0,))
        assert isinstance(config, FinetuneConfig)
        task = dataclasses.replace(config.task, train=str(train))
        config = dataclasses.replace(config, task=task, run=str(tmp_path / train.stem))
        found.append(load_file(finetune(config).best.model / "model.safetensors"))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    lost = squad_file(tmp_path / "lost.json", [astray])
    task = dataclasses.replace(config.task, train=str(lost))
    with pytest.raises(InputError, match=r"lost\.json: no answer is where answer_start says"):
        finetune(dataclasses.replace(config, task=task, run=str(tmp_path / "lost")))


def test_settings_of_fine_tuning_stay_and_others_are_told(tuned: FinetuneConfig) -> None:
    loaded = load_model(model_of(tuned))
    own = task_of(loaded).options.spans
    given = SpanOptions(n_best=2, threshold=-3.5)
    task, notes = task_for_file(loaded, TaskOptions(kind="spans", spans=given))
    assert task.options.spans == own
    assert any(f"n_best is {own.n_best} as in fine-tuning, not 2" in note for note in notes)
    assert any("as in fine-tuning, not -3.5" in note for note in notes)
    for no_answer, noted in ((own.no_answer, False), (not own.no_answer, True), (None, False)):
        asked = TaskOptions(kind="spans", spans=SpanOptions(no_answer=no_answer))
        notes = task_for_file(loaded, asked)[1]
        assert ("no_answer is false as in fine-tuning" in notes) == noted


def test_other_models_do_not_answer(start: Path, tuned: FinetuneConfig) -> None:
    with pytest.raises(ModelError, match="no task head"):
        bw.load(start).answer("w1", "w2")
    with pytest.raises(ModelError, match="'spans', and this needs labels or scores of texts"):
        bw.load(model_of(tuned)).predict(["w1"])


def test_folders_of_transformers_answer(tmp_path: Path) -> None:
    """They say nothing of columns, and spans need none."""
    model = EncoderModel(small_config(SHAPE), spans=True, seed=1)
    save_model(tmp_path / "m", model, small_tokenizer(VOCABULARY))
    (tmp_path / "m" / "bothways.json").unlink()
    tokens = small_tokenizer(VOCABULARY).encode("w1", "w2 w3").ids
    inputs = collate([tokens], [[0, 0, 0, 1, 1, 1]], max_positions=40)
    with torch.no_grad():
        (s2, e2), (s3, e3) = model.eval().task_logits(model.encoder(inputs))[3:5].tolist()
    scores = {"w2": s2 + e2, "w3": s3 + e3, "w2 w3": s2 + e3}
    found = bw.load(tmp_path / "m").answer("w1", "w2 w3")
    assert found[0].text == max(scores, key=lambda text: scores[text])
    path = squad_file(
        tmp_path / "q.json", [{"context": "w2", "qas": [{"id": "a", "question": "w1"}]}]
    )
    task, part = encode_file(load_model(tmp_path / "m"), path, labelled=False)
    assert isinstance(part, PassageFile)
    outputs = np.zeros((len(part.examples.read_positions), 2), np.float32)
    assert task.final_answers(task.decode(part, outputs)) == ["w2"]


def test_where_a_folder_does_not_say_the_file_decides_whether_answers_may_lack(
    tuned_v2: FinetuneConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured and predicted alike."""
    folder, file = tmp_path / "m", Path(tuned_v2.task.dev)
    shutil.copytree(model_of(tuned_v2), folder)
    (folder / "bothways.json").unlink()
    bare = [{"context": "w2 w3", "qas": [{"id": "a", "question": "w1"}]}]
    unlabelled = squad_file(tmp_path / "q.json", bare)
    out = tmp_path / "out.json"

    def predicted(file: Path, *more: str) -> tuple[dict[str, str], str]:
        argv = ["predict", str(folder), "--file", str(file), "--out", str(out), *more]
        assert cli.main(argv) == 0
        return json.loads(out.read_text()), capsys.readouterr().err

    found, err = predicted(file)
    assert "every question is answered" not in err
    assert cli.main(["evaluate", str(file), "--predictions", str(out)]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert "" in found.values()
    measured = evaluate_file(load_model(folder), file).scores
    assert {name: 100 * measured[name] for name in ("f1", "no_answer_recall")} == pytest.approx(
        {name: scores[name] for name in ("f1", "no_answer_recall")}
    )
    found, err = predicted(unlabelled)
    assert all(found.values())
    assert "q.json: neither the model folder nor the file says" in err
    _, err = predicted(unlabelled, "--task", "squad2")
    assert "every question is answered" not in err
    assert out.with_name("out_null_odds.json").exists()
    given_text = ["predict", str(folder), "--question", "w1", "--context", "w2 w3"]
    assert cli.main(given_text) == 0
    assert "does not say whether questions may have no answer" in capsys.readouterr().err
