"""Multiple choice: files in SWAG's and CODAH's form, sequences, training, and what is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from bothways import cli
from bothways.api.model import Model, load
from bothways.errors import InputError, ModelError
from bothways.finetuning.finetune import finetune
from bothways.finetuning.setup import measured_outputs
from bothways.model.engine import TorchEngine, as_loaded, network_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import LoadedModel, load_model
from bothways.runtime.pipeline import evaluate_file, predict_choices
from bothways.tasks.catalogue import task_recipe as declared
from bothways.tasks.choice import ChoiceTask, encode_choices
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import Texts
from bothways.tasks.task import EncodedFile
from bothways.training.options import OptimizerOptions
from model_examples import small_bert, small_config, small_tokenizer

pytestmark = pytest.mark.usefixtures("several_tiles")


VOCABULARY = 97


TOKENIZER = small_tokenizer(VOCABULARY)


SWAG = declared("swag").task


LISTS = TaskOptions(kind="choice", text="context", choices=("choices",))


# The columns of the official files; the first has no name, and the test file has no label.
HEADER = ["", *"video-id fold-ind startphrase sent1 sent2 gold-source".split()]


HEADER += ["ending0", "ending1", "ending2", "ending3", "label"]


def swag_file(path: Path, count: int, seed: int, *, labelled: bool = True) -> Path:
    """In SWAG's official form: the ending with ``w7`` is right. Commas, quotation marks, and a line
    break are in the texts."""
    rng = np.random.default_rng(seed)

    def words(n: int) -> str:
        return " ".join(f"w{i}" for i in rng.integers(8, 90, n))

    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER if labelled else HEADER[:-1])
        for i in range(count):
            sent1, sent2, right = f'{words(3)}, "{words(1)}"', words(1), int(rng.integers(4))
            endings = [words(2) + ("\nw7" if e == right else ", w8") for e in range(4)]
            row = [str(i), f"v{i}", "1", f"{sent1} {sent2}", sent1, sent2, "gold", *endings]
            writer.writerow([*row, str(right)] if labelled else row)
    return path


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("start") / "model"
    save_model(folder, EncoderModel(small_config((2, 32, 4, 64, VOCABULARY)), seed=11), TOKENIZER)
    return folder


@pytest.fixture(scope="module")
def run(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on files in SWAG's form."""
    folder = tmp_path_factory.mktemp("swag")
    swag_file(folder / "train.csv", 240, 0)
    swag_file(folder / "val.csv", 60, 1)
    swag_file(folder / "test.csv", 9, 2, labelled=False)
    config = declared("swag", data=str(folder), model=str(start), run=str(folder / "run"))
    fast = OptimizerOptions(lr=3e-3, warmup=0.1, bias_correction=True)
    finetune(replace(config, epochs=6, max_length=24, optimizer=fast, precision="fp32", threads=1))
    return folder


@pytest.fixture(scope="module")
def loaded(run: Path) -> LoadedModel:
    return load_model(run / "run/seed-0/model")


def read(path: Path, text: str, options: TaskOptions = LISTS, *, labelled: bool = True) -> Texts:
    path.write_text(text, encoding="utf-8")
    return ChoiceTask.read(path, options, labelled=labelled)


def encoded(rows: Texts, options: TaskOptions = LISTS, length: int = 24) -> EncodedFile[Texts]:
    return ChoiceTask.define(options, rows).encode(TOKENIZER, rows, length=length)


def test_a_file_in_swags_form_is_learned(run: Path, loaded: LoadedModel) -> None:
    report = json.loads((run / "run/report.json").read_text())
    assert report["mean"]["accuracy"] > 0.8 > 2 * report["baseline"]["accuracy"]
    assert evaluate_file(loaded, run / "val.csv").scores == report["mean"]


def test_predictions_of_an_unlabelled_file(run: Path, tmp_path: Path) -> None:
    written = (run / "run/seed-0/test_predictions.tsv").read_text().splitlines()
    assert written[0] == "index\tprediction\tp(0)\tp(1)\tp(2)\tp(3)"
    assert len(written) == 10
    for line in written[1:]:
        _, place, *p = line.split("\t")
        assert sum(map(float, p)) == pytest.approx(1, abs=1e-5)
        assert int(place) == int(np.argmax([float(v) for v in p]))
    out = tmp_path / "out.tsv"
    model = str(run / "run/seed-0/model")
    assert cli.main(["predict", model, "--file", str(run / "test.csv"), "--out", str(out)]) == 0
    assert [row.split("\t")[1] for row in out.read_text().splitlines()] == [
        row.split("\t")[1] for row in written
    ]


def test_transformers_gives_the_same_scores(run: Path, loaded: LoadedModel) -> None:
    """Its multiple-choice class loads the folder; texts as its users encode SWAG."""
    folder = run / "run/seed-0/model"
    theirs = transformers.BertForMultipleChoice.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    task = ChoiceTask(SWAG)
    part = task.encode(loaded.tokenizer, task.read(run / "val.csv", SWAG, labelled=True), length=24)
    ours = measured_outputs(TorchEngine(network_of(loaded)), part.examples).reshape(-1, 4)
    with (run / "val.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))[:10]
    first = [row["sent1"] for row in rows for _ in range(4)]
    second = [f"{row['sent2']} {row[f'ending{e}']}" for row in rows for e in range(4)]
    inputs = tokenizer(first, second, padding=True, return_tensors="pt")
    with torch.inference_mode():
        found = theirs(**{k: v.view(10, 4, -1) for k, v in inputs.items()}).logits
    np.testing.assert_allclose(ours[:10], found.numpy(), atol=2e-5)


def test_choose(loaded: LoadedModel, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choices = ["w10 w20 w21, w8", "w10 w30 w31 w7", "w10 w40 w41, w8"]
    found = Model(loaded).choose("w50 w51", choices)
    assert sum(found) == pytest.approx(1)
    assert np.argmax(found) == 1
    folder = str(run / "run/seed-0/model")
    assert cli.main(["predict", folder, "--context", "w50 w51", "--choices", *choices]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("%  ") == [f"{found[1]:6.1%}"[:-1], choices[1]]
    assert cli.main(["predict", folder, "--context", "w50 " * 40, "--choices", *choices]) == 0
    assert "was cut" in capsys.readouterr().err
    model = load(run / "run/seed-0/model")
    length = model.loaded.about["length"]
    assert length < model.network.config.positions
    tokens = len(TOKENIZER.encode("w50 " * 40, choices[0]).ids)
    assert model.tokens_cut("w50 " * 40, choices[0]) == tokens - length
    assert model.tokens_cut("w50", choices[0]) == 0


def test_an_example_is_as_long_as_its_longest_sequence() -> None:
    rows = Texts(Path("x"), a=["w1 w2", "w1"], choices=[["w3", "w4 w5"], ["w6", "w7"]])
    task = ChoiceTask(replace(SWAG, metrics=("accuracy",)))
    file = EncodedFile(rows, encode_choices(TOKENIZER, rows.a, rows.choices, length=20))
    assert task.example_lengths(file).tolist() == [2 + 2 + 3, 1 + 1 + 3]


def test_choose_refuses(loaded: LoadedModel) -> None:
    with pytest.raises(InputError, match="text 1 has fewer than two choices"):
        Model(loaded).choose("w1", ["w2"])
    with pytest.raises(InputError, match="'w2 w3' is a single text; give a list of texts"):
        Model(loaded).choose("w1", "w2 w3")
    with pytest.raises(
        ModelError, match=r"kind 'choice'.*`bothways predict MODEL --context.*a file of its format"
    ):
        Model(loaded).predict(["w1"], ["w2"])
    other = as_loaded(small_bert(classes=2), TOKENIZER, {"kind": "classification"})
    with pytest.raises(
        ModelError, match=r"'classification', .* needs a model fine-tuned on choices"
    ):
        Model(other).choose("w1", ["w2", "w3"])


def test_a_choice_is_a_sequence(tmp_path: Path) -> None:
    """[CLS] sent1 [SEP] sent2 ending [SEP], the second segment from sent2 on."""
    rows = ChoiceTask.read(swag_file(tmp_path / "x.csv", 3, 0), SWAG, labelled=True)
    examples = encoded(rows, SWAG, 64).examples
    assert rows.lines == [2, 4, 6]  # a line break in an ending makes two lines of an example
    assert examples.items.tolist() == [0, 4, 8, 12]
    assert examples.read_positions.tolist() == examples.bounds[:-1].tolist()
    with (tmp_path / "x.csv").open(newline="") as file:
        row = list(csv.DictReader(file))[1]
    own = TOKENIZER.encode(row["sent1"], f"{row['sent2']} {row['ending2']}")
    span = slice(*examples.bounds[6:8])
    assert examples.tokens[span].tolist() == own.ids
    assert examples.segments[span].tolist() == own.segments
    assert examples.gold.tolist() == [[int(label)] for (label,) in rows.labels or []]


SAME = [{"context": "w1, w2", "choices": ["w3", "w4 w5"], "label": 1}]


SAME += [{"context": "w6", "choices": ["w7", "w8", 'w"9'], "label": 0}]


def test_three_forms_of_the_same_lists(tmp_path: Path) -> None:
    """As many choices as an example has: JSONL, and a JSON list in a cell."""
    jsonl = read(tmp_path / "x.jsonl", "\n".join(map(json.dumps, SAME)))
    cells = [[str(r["context"]), json.dumps(r["choices"]), str(r["label"])] for r in SAME]
    header = "context\tchoices\tlabel\n"
    tsv = read(tmp_path / "x.tsv", header + "\n".join("\t".join(row) for row in cells))
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["context", "choices", "label"], *cells])
    table = ChoiceTask.read(tmp_path / "x.csv", LISTS, labelled=True)
    for rows in (jsonl, tsv, table):
        assert rows.a == ["w1, w2", "w6"]
        assert rows.choices == [["w3", "w4 w5"], ["w7", "w8", 'w"9']]
        assert rows.labels == [("1",), ("0",)]
    part = encoded(jsonl)
    assert part.examples.items.tolist() == [0, 2, 5]
    found = ChoiceTask(LISTS).decode(part, np.array([[1], [3], [0], [0], [9]], np.float32))
    assert [len(row) for row in found] == [2, 3]
    assert found[0].tolist() == pytest.approx(softmax([1, 3]))
    task = ChoiceTask.define(LISTS, jsonl)
    assert task.measure(part, found).scores == {"accuracy": 0.5}
    (mistake,) = task.errors(part, found)
    assert (mistake.example, mistake.gold, mistake.predicted) == (1, "w7", 'w"9')
    assert task.example_scores(part, found).values.tolist() == [1, 0]
    table_rows = task.table(part, found)
    assert table_rows[0] == ["index", "prediction", "gold", "p(0)", "p(1)", "p(2)"]
    assert table_rows[1][:3] == ["0", "1", "1"]
    assert table_rows[1][-1] == ""
    assert table_rows[2][:3] == ["1", "2", "0"]


def test_a_model_is_measured_on_files_that_spell_choices_otherwise(
    loaded: LoadedModel, tmp_path: Path
) -> None:
    items = [{"context": "w1", "choices": ["w2", "w3"], "label": name} for name in "ABA"]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, items)))
    scores = evaluate_file(loaded, path, options=replace(LISTS, labels=("A", "B"))).scores
    (probabilities,), _ = predict_choices(loaded, ["w1"], [["w2", "w3"]])
    assert scores["accuracy"] == (2 / 3, 1 / 3)[int(probabilities.argmax())]


def test_the_longer_is_cut_first_and_reported(tmp_path: Path) -> None:
    long = {"context": "w1 " * 30, "choices": ["w2 w3", "w4"], "label": 0}
    rows = read(tmp_path / "x.jsonl", "\n".join(map(json.dumps, [*SAME, long])))
    part = encoded(rows, length=12)
    assert part.notes == (
        "x.jsonl: 1 of 3 examples were cut to 12 tokens (the longer of context and choice first)",
    )
    assert np.diff(part.examples.bounds).max() == 12
    last = part.examples.tokens[part.examples.bounds[5] : part.examples.bounds[6]]
    assert TOKENIZER.decode(last.tolist()).endswith("w2 w3")


def test_baseline_is_the_commonest_place(tmp_path: Path) -> None:
    train = encoded(read(tmp_path / "x.jsonl", "\n".join(map(json.dumps, [SAME[0]] * 2 + SAME))))
    dev = [{"context": "w", "choices": ["w1", "w2"], "label": label} for label in (1, 1, 1, 0)]
    part = encoded(read(tmp_path / "y.jsonl", "\n".join(map(json.dumps, dev))))
    task = ChoiceTask.define(LISTS, part.rows)
    assert task.baseline(train, part).scores == {"accuracy": 0.75}


def test_codah(shared_data: Callable[[str], Path]) -> None:
    options = declared("codah").task
    folder = shared_data("choice/codah")
    rows = ChoiceTask.read(folder / "fold_0/dev.tsv", options, labelled=True)
    assert len(rows) == 556
    assert rows.choices[0][3] == "asked the cashier to help him rob a bank."
    whole = ChoiceTask.read(folder / "full_data.tsv", options, labelled=True)
    assert len(whole) == 2776
    assert set(whole.labels or []) == {("0",), ("1",), ("2",), ("3",)}


@given(st.lists(st.integers(2, 6), min_size=1, max_size=8), st.integers(0, 5))
def test_an_example_does_not_see_the_others(counts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    choices = [[f"w{i} w{i // 2}" for i in rng.integers(0, 90, n)] for n in counts]
    contexts = [" ".join(f"w{i}" for i in rng.integers(0, 90, n)) for n in counts]
    together, cut = predict_choices(SCORER, contexts, choices)
    assert cut == 0
    for context, own, found in zip(contexts, choices, together, strict=True):
        (alone,), _ = predict_choices(SCORER, [context], [own])
        np.testing.assert_allclose(found, alone, atol=1e-5)


SCORER = as_loaded(
    small_bert(small_config((1, 16, 2, 32, VOCABULARY)), classes=1), TOKENIZER, {"kind": "choice"}
)


COLUMNS = TaskOptions(kind="choice", text="context", choices=("one", "two"))


HEAD = "context\tone\ttwo\tlabel\n"


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("x.tsv", HEAD + "w1\tw2\tw3\t0\nw1\tw2\t0\n", COLUMNS, r"x\.tsv:3: expected 4 tab-sep"),
        (
            "x.tsv",
            HEAD + "w1\tw2\tw3\t2\n",
            COLUMNS,
            r":2: the label '2' .* are '0', '1'",
        ),
        ("x.tsv", HEAD + "w1\tw2\tw3\t-1\n", COLUMNS, "labels are not given: each is -1"),
        ("x.tsv", HEAD + "w1\tw2\tw3\t1.0\n", COLUMNS, r"'1\.0' names none"),
        ("x.tsv", HEAD + "\tw2\tw3\t0\n \tw2\tw3\t0\n", COLUMNS, "every text in column 'context'"),
        ("x.tsv", HEAD, COLUMNS, "has no examples"),
        ("x.tsv", HEAD + "w1\tw2\t\t0\n", COLUMNS, r"x\.tsv:2: choice 1 is empty"),
        (
            "x.tsv",
            "context\tone\tlabel\nw1\tw2\t0\n",
            COLUMNS,
            r"no column 'two'",
        ),
        (
            "x.jsonl",
            '{"context": "w", "choices": ["w1"], "label": 0}',
            LISTS,
            ":1: has fewer than two choices",
        ),
        (
            "x.jsonl",
            '{"context": "w", "choices": ["a", ""], "label": 0}',
            LISTS,
            "choice 1 is empty",
        ),
        (
            "x.jsonl",
            '{"context": "w", "choices": ["a", 3], "label": 0}',
            LISTS,
            "not a JSON list",
        ),
        ("x.jsonl", '{"context": "w", "label": 0}', LISTS, "no column 'choices'"),
    ],
)
def test_malformed_files(
    tmp_path: Path, name: str, text: str, options: TaskOptions, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        encoded(read(tmp_path / name, text, options), options)


def test_broken_lines_can_be_left_out(tmp_path: Path) -> None:
    text = HEAD + "w1\tw2\tw3\t0\nw1\tw2\t0\nw1\t\tw3\t1\nw4\tw5\tw6\t1\nw4\tw5\tw6\t\n"
    options = replace(COLUMNS, broken="skip")
    part = encoded(read(tmp_path / "x.tsv", text, options), options)
    assert part.rows.lines == [2, 5]
    (note,) = part.notes
    assert note.startswith(
        "x.tsv: 3 broken lines were left out: 3, 4, 6. Line 3: expected 4 tab-separated"
    )
    with pytest.raises(InputError, match=r"x\.tsv:3"):  # every example needs its answer
        read(tmp_path / "x.tsv", text, options, labelled=False)
