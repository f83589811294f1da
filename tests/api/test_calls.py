"""The verbs as functions: keywords, data from memory, run folders that are chosen, objects."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import bothways as bw
from bothways import cli
from bothways.api.rows import examples, table_of
from bothways.errors import (
    ConfigError,
    InputError,
    ModelError,
    RunError,
)
from bothways.io.annotations.squad import read_questions
from bothways.io.tables import read_table
from bothways.tasks.options import TaggingOptions, TaskOptions
from bothways.tasks.sentences import read_sentences
from bothways.training.runfolder import RUN_FILE
from finetuning_examples import MAGIC, start_model, words

QUICK: dict[str, Any] = {
    **{"epochs": 1, "lr": 3e-3, "max_length": 16, "batch_size": 8},
    **{"precision": "fp32", "threads": 1},
}


SMALL: dict[str, Any] = {
    "layers": 1,
    "hidden": 16,
    "heads": 2,
    "phases": [{"length": 32, "batch": 4, "micro_batch": 4}],
    **{"precision": "fp32", "threads": 1},
}


# The function of every verb; the methods are those of a model, a corpus.
OF_VERBS = {
    "convert": bw.convert,
    "export": bw.export,
    "corpus build": bw.build_corpus,
    "corpus show": bw.Corpus.show,
    "demo": bw.demo,
    "embed": bw.Model.embed,
    "evaluate": bw.Model.evaluate,
    "fill-mask": bw.Model.fill_mask,
    "finetune": bw.finetune,
    "info": bw.info,
    "inspect": bw.Model.inspect,
    "next-sentence": bw.Model.next_sentence,
    "plan": bw.plan,
    "predict": bw.Model.predict,
    "pretrain": bw.pretrain,
    "rank": bw.Model.rank,
    "reproduce table": bw.reproduce,
    "reproduce glue": bw.reproduce,
    "reproduce features": bw.reproduce,
    "serve": bw.serve,
    "tasks": bw.list_tasks,
    "tokenize": bw.Tokenizer.encode,
    "vocab extend": bw.extend_vocabulary,
    "vocab learn": bw.build_vocabulary,
}


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    texts = [words(rng, 5) for _ in range(count)]
    for text in texts[1::2]:
        text[2] = MAGIC
    return [
        {"id": n, "review": " ".join(text), "stars": ("bad", "good")[n % 2]}
        for n, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tune(start: Path) -> Callable[..., Any]:
    def call(**options: Any) -> Any:
        columns = {"text": "review", "label": "stars"}
        return bw.finetune(start, verbose=False, **{**columns, **QUICK, **options})

    return call


def columns_of(data: Any, name: str = "train") -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = table_of(data, name).to_pydict()
    return found


def test_every_verb_has_a_function() -> None:
    verbs = set()
    for name, verb in cli.VERBS.items():
        if isinstance(verb, cli.VerbGroup):
            verbs |= {f"{name} {action}" for action in verb.actions}
        else:
            verbs.add(name)
    assert verbs <= OF_VERBS.keys()
    assert all(callable(function) for function in OF_VERBS.values())


def test_data_come_in_many_forms() -> None:
    listed = rows(4)
    frame = pd.DataFrame(listed)
    columns = {name: frame[name].tolist() for name in frame}
    forms = {
        "pandas": frame,
        "polars": pl.DataFrame(listed),
        "pyarrow": pa.Table.from_pylist(listed),
        "rows": listed,
        "columns": columns,
        "arrays": {name: np.array(values) for name, values in columns.items()},
        "generator": iter(listed),
    }
    for form, data in forms.items():
        assert columns_of(data, "train") == columns, form
    assert columns_of((["a"], [1]), "train") == {"text": ["a"], "label": [1]}
    missing = pd.DataFrame({"a": ["x", None], "b": [1.0, float("nan")]})
    assert columns_of(missing, "train") == {"a": ["x", None], "b": [1.0, None]}


def test_a_data_set_of_hugging_face(tmp_path: Path) -> None:
    """Its features name the classes that it gives by number."""
    names = types.SimpleNamespace(names=["bad", "good"])
    data = {"text": ["a", "b"], "label": [1, 0], "tags": [[1, 0], [-1]]}

    class Dataset:
        def __init__(self) -> None:
            self.column_names: Any = [*data]
            self.features = {"label": names, "tags": types.SimpleNamespace(feature=names)}

        def __getitem__(self, name: str) -> Any:
            return data[name]

    for kind in ("classification", "tagging"):
        task = TaskOptions(kind=kind)
        words = {} if kind == "classification" else {"text": "text", "label": "tags"}
        _, content = examples(task, Dataset(), "train", **words)
        (tmp_path / "data.parquet").write_bytes(content)
        found = [row.values for row in read_table(tmp_path / "data.parquet")]
        if kind == "classification":
            assert [row["label"] for row in found] == ["good", "bad"]
        else:
            assert [row["tags"] for row in found] == [["good", "bad"], [None]]
    splits = Dataset()
    splits.column_names = {"train": []}
    with pytest.raises(ConfigError, match=r"splits train; give one of them, such as data\['train'"):
        columns_of(splits, "train")


@pytest.mark.usefixtures("drawn")
def test_a_frame_is_tuned_on_like_a_file(tune: Callable[..., Any]) -> None:
    train, dev = pd.DataFrame(rows(32)), pd.DataFrame(rows(16, seed=1))
    train.to_csv("train.csv", index=False)
    dev.to_csv("dev.csv", index=False)
    memory = tune(train=train, dev=pl.from_pandas(dev), seeds=2)
    files = tune(train="train.csv", dev=Path("dev.csv"), seeds=[0, 1], run="runs/files")
    assert memory.run.parent == Path("runs")
    assert [s.seed for s in memory.seeds] == [0, 1]
    assert memory.scores == files.scores
    texts = dev["review"].tolist()
    assert (memory.model.predict_proba(texts) == files.model.predict_proba(texts)).all()
    assert memory.model.classes_ == ["bad", "good"]
    prediction = memory.model.predict(texts)
    assert prediction.to_frame().columns.tolist() == ["text", "label", "p(bad)", "p(good)"]
    assert prediction[3]["label"] == prediction.labels[3]
    some = dev["review"].iloc[[5, 2]]  # a column keeps its index, so that it can be joined
    frame = memory.model.predict(some).to_frame()
    assert frame.index.tolist() == [5, 2]
    assert frame["text"].equals(some.rename("text"))
    assert prediction.to_frame().index.tolist() == list(range(16))
    measured = memory.model.evaluate(dev)
    assert measured["accuracy"] == memory.best.measurement.scores["accuracy"]
    assert dict(memory.model.evaluate("dev.csv")) == dict(measured)
    assert dict(memory.model.evaluate((texts, dev["stars"]))) == dict(measured)
    assert memory.page.exists()
    assert {record["run"] for record in memory.history} == {"seed 0", "seed 1"}
    again = bw.finetune(memory, train, dev, text="review", label="stars", verbose=False, **QUICK)
    assert again.run != memory.run


def test_an_extra_that_is_missing_is_named(start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("bothways.api.sklearn", "bothways.sklearn"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(vars(bw), "sklearn", raising=False)  # if it was imported by that name
    with pytest.raises(ConfigError, match=r"sklearn, .*pip install 'bothways\[metrics\]'"):
        bw.finetune(
            start, rows(32), rows(8), text="review", label="stars", max_length=16, freeze=True
        )
    with pytest.raises(ConfigError, match=r"bothways.sklearn needs sklearn, .*pip install"):
        _ = bw.sklearn
    with pytest.raises(ConfigError, match=r"bothways.sklearn needs sklearn, .*pip install"):
        importlib.import_module("bothways.sklearn")


def test_whole_numbers_beside_missing_values_are_whole_numbers() -> None:
    frame = pd.DataFrame({"label": [1, None, 0], "score": [0.5, None, 1.0]})
    columns = columns_of(frame, "train")
    assert list(map(str, columns["label"])) == ["1", "None", "0"]
    assert columns["score"] == [0.5, None, 1.0]


def test_an_error_in_a_frame_names_its_row(tune: Callable[..., Any]) -> None:
    train = pd.DataFrame(rows(8))
    bad = train.assign(stars=["good", "bad", "fine", "bad"] * 2)
    model = tune(train=train, dev=train).model
    data: Any
    for data in (bad, bad.to_dict("records"), (bad["review"], bad["stars"])):
        with pytest.raises(InputError, match=r"^data: row 2: unknown label 'fine'"):
            model.evaluate(data)
    with pytest.raises(InputError, match=r"^dev: row 2: unknown label 'fine'"):
        tune(train=train, dev=bad)
    mixed = train.assign(stars=[True, "True", False, False] * 2)
    with pytest.raises(
        InputError, match=r"^train: row 1: the labels 'True' here and 'true' are one label"
    ):
        tune(train=mixed, dev=mixed)
    tags = pd.DataFrame({"tokens": [["w1", "w2"]] * 3, "tags": [["B-A", "O"]] * 2 + [["B-C", "O"]]})
    tagger = bw.finetune(
        tune(train=train, dev=train), tags[:2], tags[:2], kind="tagging", verbose=False, **QUICK
    )
    with pytest.raises(InputError, match=r"^data: row 2: unknown tag 'B-C'"):
        tagger.model.evaluate(tags)


def test_frames_that_are_none(tune: Callable[..., Any]) -> None:
    train = pd.DataFrame(rows(4))
    lazy = pl.from_pandas(train).lazy()
    twice = pd.concat([train, train["stars"]], axis=1)
    for data, message in (
        (lazy, r"train is not computed yet; give train\.collect"),
        (twice, "train has the column 'stars' twice"),
        (pa.Table.from_pandas(train).append_column("stars", [[1] * 4]), "the column 'stars' twice"),
        (train.set_axis([0, 1, 2], axis=1), "train is a DataFrame"),
    ):
        with pytest.raises((ConfigError, InputError), match=message):
            tune(train=data, dev=train)


ANSWERS: dict[str, Any] = {
    "lists": [{"text": ["w2"], "answer_start": [3]}, {"text": [], "answer_start": []}],
    "arrays": [{"text": np.array(["w2"]), "answer_start": np.array([3])}, None],
    "objects": [[{"text": "w2", "answer_start": 3}], []],
    "printed": ["{'text': ['w2'], 'answer_start': [3]}", "{'text': [], 'answer_start': []}"],
    "texts": ["w2", None],
}


@pytest.mark.parametrize("form", ANSWERS)
def test_questions_in_a_frame(form: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"question": ["w7", "w8"], "context": ["w1 w2 w3", "w4 w5"]})
    path = tmp_path / "data.parquet"
    _, content = examples(TaskOptions(kind="spans"), frame.assign(answers=ANSWERS[form]), "train")
    path.write_bytes(content)
    found = read_questions(path, labelled=True)
    assert found.ids == ["0", "1"]
    assert found.answers is not None
    assert [[(a.text, a.start) for a in one] for one in found.answers] == [[("w2", 3)], []]


def test_names_and_weights_of_labels_are_dictionaries(tune: Callable[..., Any]) -> None:
    number = {"bad": 0, "good": 1}
    data = {
        name: [{**row, "stars": number[str(row["stars"])]} for row in rows(n, seed=seed)]
        for name, n, seed in (("train", 24, 0), ("dev", 8, 1))
    }
    result = tune(**data, names={0: "poor", "1": "fine"}, class_weights={0: 2, "1": 0.5})
    assert result.model.classes_ == ["poor", "fine"]
    assert set(result.model.predict(["w1 w2", "w3"]).labels) <= {"poor", "fine"}
    written = tune(**data, names=["0=poor", "1=fine"], class_weights=["0=2", "1=0.5"])
    assert written.run == result.run
    with pytest.raises(ConfigError, match="2=what"):
        tune(**data, names={0: "poor", 1: "fine", 2: "what"})


def test_a_changed_number_gets_a_run_of_its_own(tune: Callable[..., Any]) -> None:
    data = {"train": rows(16), "dev": rows(8)}
    one = tune(**data)
    stamp = (one.run / RUN_FILE).stat().st_mtime_ns
    assert tune(**data).run == one.run
    assert (one.run / RUN_FILE).stat().st_mtime_ns == stamp
    two = tune(**data, epochs=2)
    other = tune(train=rows(16, seed=3), dev=rows(8))
    assert len({one.run, two.run, other.run}) == 3
    with pytest.raises(RunError, match=r"epochs: 1 in the folder, 2 requested[^$]*overwrite=True"):
        tune(**data, epochs=2, run=one.run)
    replaced = tune(**data, epochs=2, run=one.run, overwrite=True)
    assert replaced.run == one.run
    assert replaced.scores == two.scores
    Path("precious").mkdir()
    with pytest.raises(ConfigError, match="precious is no run folder"):
        tune(**data, run="precious", overwrite=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": 3}, "train is an int; give the path of a file, a data frame"),
        ({"train": ["a text"]}, "train is a list of str; give"),
        ({"train": []}, "train has no rows"),
        (
            {"text": "revue"},
            "text is 'revue', but train has no such column; it has 'id', 'review', 'stars'. text=",
        ),
        (
            {"train": [("a", "x"), ("b", "y")]},
            "train is a list of tuple; give",
        ),
        ({"label": "labels"}, "label is 'labels', but train has no such column"),
        (
            {"text": None, "train": [{"a": "w1", "stars": "good"}]},
            "text: name the column of the texts; train has 'a', 'stars', and no 'text'",
        ),
        (
            {"train": [{"review": 7, "stars": "a"}]},
            "train: row 0: column 'review' holds 7, not a text",
        ),
        (
            {"dev": pd.DataFrame({"review": ["a", "b"], "stars": ["x", None]})},
            "dev: row 1: column 'stars' has no label",
        ),
        ({"train": {"review": ["a"], "stars": []}}, "not equally long: review 1, stars 0"),
        ({"epoch": 3}, "there is no option 'epoch'; did you mean 'epochs'"),
        ({"epochs": 2.5}, "epochs is 2.5; it must be a whole number"),
        ({"lr": "fast"}, "lr is 'fast'; it must be a number"),
        ({"optimizer": {"lr": 1}}, "optimizer is {'lr': 1}; choose from adam"),
        ({"minutes": 5}, "a fine-tuning is as long as its epochs"),
        ({"seeds": 0}, "seeds is 0; give how many runs"),
        ({"kind": "words"}, "kind is 'words'; choose from"),
        ({"task": "mrcp"}, "did you mean 'mrpc'"),
    ],
)
def test_what_makes_no_sense_is_refused_at_the_call(
    tune: Callable[..., Any], here: Path, change: dict[str, Any], message: str
) -> None:
    data = {"train": rows(8), "dev": rows(8)}
    with pytest.raises((ConfigError, InputError), match=message):
        tune(**{**data, **change})
    assert not [*here.rglob(RUN_FILE)]


def test_masks_of_several_texts() -> None:
    model = bw.load("mini-en")
    texts = ["The [MASK] was old.", "A [MASK] and a [MASK]."]
    assert model.fill_mask(texts, top=2) == [model.fill_mask(text, top=2) for text in texts]
    assert model.fill_mask([]) == []
    with pytest.raises(InputError, match="text 2 of 2 is 3"):
        model.fill_mask(["The [MASK].", 3])  # type: ignore[list-item]


def test_models_are_named_by_objects(start: Path) -> None:
    with pytest.raises(ConfigError, match="model is an int; give a model folder"):
        bw.finetune(3, rows(4), rows(4))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="model is a DataFrame; give"):
        bw.finetune(pd.DataFrame(rows(4)), dev=0.5)  # type: ignore[arg-type]
    model = bw.load(start)
    assert model.folder == start
    found = bw.finetune(
        model, rows(8), rows(8), text="review", label="stars", verbose=False, **QUICK
    )
    saved = found.model.save("saved")
    texts = [row["review"] for row in rows(4)]
    assert bw.load(saved).predict(texts).labels == found.model.predict(texts).labels
    with pytest.raises(ModelError, match="saved exists already"):
        found.model.save("saved")
    with pytest.raises(ModelError, match="no task head"):
        model.evaluate(rows(4))
    assert bw.load(found).predict(texts).labels == found.model.predict(texts).labels
    with pytest.raises(ConfigError, match="folder is an int; give a model folder"):
        bw.load(3)


def test_tags_and_questions_from_memory(start: Path) -> None:
    sentences = [row["review"].split() for row in rows(16)]
    tagged = [
        {"tokens": s, "tags": ["B-X" if word == MAGIC else "O" for word in s]} for s in sentences
    ]
    result = bw.finetune(start, tagged, tagged[:4], kind="tagging", verbose=False, **QUICK)
    assert set(result.scores) >= {"f1"}
    assert result.model.evaluate(tagged[:4]).keys() >= {"f1"}
    squad = [
        {
            "id": str(n),
            "question": "w1 w2",
            "context": row["review"],
            "answers": {"text": [row["review"][:2]], "answer_start": [0]},
        }
        for n, row in enumerate(rows(8))
    ]
    options = {**QUICK, "max_length": 24}
    answered = bw.finetune(start, squad, squad[:4], kind="spans", verbose=False, **options)
    assert answered.metrics[0] == "f1"
    with pytest.raises(InputError, match=r"^train: row 0: has 2 words and 1 tags"):
        bw.finetune(start, [{"tokens": ["a", "b"], "tags": ["O"]}], tagged, kind="tagging")


def test_any_words_from_memory(tmp_path: Path) -> None:
    """Words are those that were given, whatever they are where words stand in files."""
    sentences = [
        ["1", "2"],
        ["-DOCSTART-"],
        ["word", "EOS"],
        ['""x""', "# a", "a\tb"],
        ["\ufeffa b"],
    ]
    tags = [["O"] * len(own) for own in sentences[:-2]] + [["O", "O", "B-X"], ["tag"]]
    columns = {"tokens": sentences, "tags": tags}
    for labelled in (True, False):
        given = columns if labelled else {"tokens": sentences}
        task = TaskOptions(kind="tagging")
        path = tmp_path / "a.parquet"
        path.write_bytes(examples(task, given, "train", labelled=labelled)[1])
        found = read_sentences(path, TaggingOptions(scheme="none"), labelled=labelled)
        assert found.words == sentences
        assert found.tags == (tags if labelled else None)


def test_several_labels_and_pairs_from_memory(tune: Callable[..., Any]) -> None:
    data = [{**row, "topics": ["a"] if row["id"] % 2 else ["a", "b"]} for row in rows(16)]
    several = tune(train=data, dev=data, label="topics", kind="multilabel")
    assert set(several.model.classes_) == {"a", "b"}
    pairs = [{**row, "other": "w3 w4"} for row in rows(16)]
    model = tune(train=pairs, dev=pairs, text_b="other").model
    assert len(model.predict(["w1"], ["w2"])) == 1


def test_vocabulary_and_corpus_from_memory(here: Path) -> None:
    texts = [f"The dog {n} lives. A cat {n} walks.\nIt sleeps at {n}." for n in range(40)]
    tokenizer = bw.learn_vocabulary(texts, size=100)
    Path("texts").mkdir()
    (here / "texts/a.txt").write_text("\n\n".join(texts))
    from_files = bw.learn_vocabulary("texts", size=100, verbose=False)
    assert from_files.pieces == tokenizer.pieces
    assert bw.learn_vocabulary(pd.Series(texts), size=100).pieces == tokenizer.pieces
    assert len(tokenizer) == tokenizer.vocab_size
    assert tokenizer("the dog").ids == tokenizer.encode("the dog").ids
    corpus = bw.build_corpus(texts, tokenizer, heldout=0.1, verbose=False)
    assert corpus.folder.parent == Path("corpora")
    assert len(corpus) + len(corpus.heldout) == 40
    assert len(corpus.documents) == len([*corpus]) == corpus.report["train"]["documents"]
    assert corpus[0].sentences == ["the dog 0 lives.", "a cat 0 walks.", "it sleeps at 0."]
    assert corpus[0].tokens[0] == ["the", "dog", "0", "lives", "."]
    assert corpus[-1].number == len(corpus) - 1
    assert [d.number for d in corpus[2:4]] == [2, 3]
    with pytest.raises(IndexError):
        corpus[len(corpus)]
    same = bw.build_corpus("texts", tokenizer, "corpus", heldout=0.1, verbose=False)
    assert [d.text for d in same] == [d.text for d in corpus]
    assert "{" in repr(corpus.show(2, length=32, masking_rate=0.3))
    with pytest.raises(ConfigError, match="no option 'lenght'; did you mean 'length'"):
        corpus.show(lenght=32)
    with pytest.raises(ConfigError, match="tokenizer not given"):
        bw.build_corpus(texts)
    Path("words.txt").write_text("zebra\n")
    tokenizer.save("vocabulary")
    report = bw.extend_vocabulary("vocabulary", "more", words=["zebra"], verbose=False)
    assert report["vocabulary"]
    assert bw.Tokenizer.from_folder("more").id("zebra") == 100


@pytest.fixture
def corpus(tiny_corpus: Path) -> bw.Corpus:
    return bw.Corpus(tiny_corpus)


def test_pretraining_by_keywords(corpus: bw.Corpus, capsys: pytest.CaptureFixture[str]) -> None:
    given: dict[str, Any] = {**SMALL, "evaluate_sequences": 8}
    run = bw.pretrain(corpus, "tiny", steps=2, verbose=False, **given)
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""
    assert run.run.parent == Path("runs")
    assert run.steps == 2
    assert bw.pretrain(corpus, "tiny", steps=2, verbose=False, **given).run == run.run
    assert {"mlm_loss"} <= {name for record in run.history for name in record}
    assert run.plot().startswith(b"\x89PNG")
    assert run.plot()._repr_png_() == run.plot()  # what a notebook shows
    assert repr(run.plot()).startswith("<PNG, ")
    assert isinstance(bw.load(run.model).evaluate(corpus), str)
    more = bw.pretrain(corpus, steps=3, minutes=None, start=run, verbose=False, **SMALL)
    assert more.steps == 3
    for options, message in (
        ({}, "minutes not given"),
        ({"minuts": 1}, "minutes not given"),
        ({"steps": 2, "minutes": 1}, "give one of"),
        ({"steps": 2, "phases": [{"lenght": 3}]}, r"no option 'lenght'; did you mean 'length'"),
    ):
        with pytest.raises(ConfigError, match=message):
            bw.pretrain(corpus, **options)
    with pytest.raises(ConfigError, match="corpus is an int; give a corpus folder"):
        bw.pretrain(3, minutes=1)


def test_a_step_is_that_of_training(corpus: bw.Corpus) -> None:
    """The gradient is that of the loss: a small step against it lowers it by as much."""
    model = bw.new_model(corpus, layers=1, hidden=16, heads=2, seed=1)
    network = model.network
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    step = bw.pretraining_step(model, corpus, batch=4, length=32)
    assert all((before[name] == p).all() for name, p in network.named_parameters())
    assert not network.training
    assert step.loss == pytest.approx(step.losses["mlm_loss"] + step.losses["nsp_loss"], rel=1e-6)
    assert len(step.tokens) == len(step.follows or []) == 4
    for target in step.targets:
        assert step.tokens[target.sequence][target.position] == target.shown
    assert {name: g.shape for name, g in step.gradients.items()} == {
        name: tuple(p.shape) for name, p in network.named_parameters() if name in step.gradients
    }
    rate = 1e-3 / step.gradient_norm**2
    step.descend(rate)
    after = bw.pretraining_step(model, corpus, batch=4, length=32)
    assert after.tokens == step.tokens
    assert step.loss - after.loss == pytest.approx(1e-3, rel=0.05)
    again = bw.pretraining_step(model, corpus, batch=4, length=32, step=1)
    assert again.tokens != step.tokens
    with pytest.raises(ConfigError, match="different tokenizers"):
        bw.pretraining_step(bw.load("mini-en"), corpus)


def test_a_step_is_of_the_direction_of_the_model(corpus: bw.Corpus, tmp_path: Path) -> None:
    causal: dict[str, Any] = {"objective": "left_to_right", "pairs_kind": "full"}
    size: dict[str, Any] = {"layers": 1, "hidden": 16, "heads": 2}
    both, left = (bw.new_model(corpus, **size, **options) for options in ({}, causal))
    for model, options in ((both, causal), (left, {"pairs_kind": "full"})):
        with pytest.raises(ConfigError, match=r"reads .*; weights .* Give bw\.new_model the same"):
            bw.pretraining_step(model, corpus, batch=2, length=32, **options)
    short = bw.new_model(corpus, **size, positions=32, **causal)
    assert bw.pretraining_step(short, corpus, batch=2, **causal).targets  # the default is shorter
    step = bw.pretraining_step(left, corpus, batch=2, length=32, **causal)
    assert step.targets
    for target in step.targets:  # the next token
        assert step.tokens[target.sequence][target.position + 1] == target.original
    left.save(tmp_path / "left")
    assert bw.load(tmp_path / "left").loaded.config.left_to_right


def test_a_model_that_has_answered_still_gives_steps(tmp_path: Path) -> None:
    model = bw.load("mini-en", engine="torch", precision="fp32")
    texts = ["The dog slept. It was warm.", "Prices rose. Nobody knew why."]
    corpus = bw.build_corpus(texts, model.tokenizer, out=tmp_path / "corpus", verbose=False)
    fresh = bw.pretraining_step(model, corpus, batch=2, length=32)
    other = bw.load("mini-en", engine="torch", precision="fp32")
    other.fill_mask("She opened the [MASK].")
    step = bw.pretraining_step(other, corpus, batch=2, length=32)
    assert step.losses == fresh.losses
    assert step.gradient_norm == pytest.approx(fresh.gradient_norm, rel=1e-6)
    before = other.fill_mask("She opened the [MASK].")[0][0]
    step.descend(0.1)
    assert other.fill_mask("She opened the [MASK].")[0][0] != before


class Cell:
    """What IPython would show."""

    def __init__(self, shown: list[str]):
        self.shown = shown

    def update(self, item: str) -> None:
        self.shown.append(item)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As if this ran in a notebook's cell; the HTML that is shown in it."""
    shown: list[str] = []
    shell = type("ZMQInteractiveShell", (), {})()
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display = types.ModuleType("IPython.display")
    display.HTML = str  # type: ignore[attr-defined]

    def show(item: str, *, display_id: bool) -> Cell:
        assert display_id
        shown.append(item)
        return Cell(shown)

    display.display = show  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_lists_and_scores() -> None:
    assert "mrpc" in repr(bw.list_tasks())
    assert repr(bw.list_tasks("mrpc")).startswith("#")
    assert "tiny" in bw.list_recipes()
    forecast = bw.plan("tiny", steps=2, verbose=False, **SMALL)
    assert "memory" in repr(forecast)


def test_importing_needs_no_frames() -> None:
    script = (
        "import sys\nsys.modules['pandas'] = sys.modules['polars'] = None\nimport bothways as bw\n"
        "model = bw.load('mini-en')\nbw.sklearn.TextEmbedder().fit_transform(['a'])\n"
        "from bothways.runtime.pipeline import Prediction\nimport numpy as np\n"
        "one = np.ones((1, 1))\np = Prediction(['a'], one, ('a',), 0, 0, 8, one)\n"
        "try:\n    p.to_frame()\nexcept bw.BothwaysError as error:\n"
        "    assert 'pip install pandas' in str(error)\nelse:\n    raise AssertionError\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
