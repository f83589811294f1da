"""The declared tasks: each is a recipe that names columns its real files have."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import bothways
from bothways import cli
from bothways.config.fields import to_dict, values_of
from bothways.config.parsing import CommandLine
from bothways.errors import ConfigError
from bothways.finetuning.options import FinetuneConfig
from bothways.finetuning.setup import part_name
from bothways.tasks.catalogue import GLUE, declared, recipe_of, show_tasks, task_files, task_recipe
from bothways.tasks.kinds import KINDS

# Where the shared data has a task's files, and what its files are called there.
PLACES = {
    **dict.fromkeys(GLUE, "glue"),
    "sick-entailment": "nli/sick",
    "sick-relatedness": "nli/sick",
    "nsmc": "ko/nsmc",
    "korsts": "ko/korsts",
    "kornli": "ko/kornli",
    "klue-nli": "ko/klue",
    "klue-sts": "ko/klue",
}
# Examples of each real file, as the files' sources state them.
EXAMPLES = {
    "CoLA/train.tsv": 8551,
    "CoLA/dev.tsv": 1043,
    "CoLA/test.tsv": 1063,
    "SST-2/train.tsv": 67349,
    "SST-2/dev.tsv": 872,
    "MRPC/train.tsv": 3668,
    "MRPC/dev.tsv": 408,
    "MRPC/test.tsv": 1725,
    "STS-B/train.tsv": 5749,
    "STS-B/dev.tsv": 1500,
    "STS-B/test.tsv": 1379,
    "QNLI/dev.tsv": 5463,
    "QNLI/test.tsv": 5463,
    "RTE/train.tsv": 2490,
    "RTE/dev.tsv": 277,
    "RTE/test.tsv": 3000,
    "WNLI/train.tsv": 635,
    "WNLI/dev.tsv": 71,
    "WNLI/test.tsv": 146,
    "SICK_train.txt": 4500,
    "SICK_trial.txt": 500,
    "SICK_test_annotated.txt": 4927,
    "ratings_train.txt": 150_000,
    "ratings_test.txt": 50_000,
    "sts-train.tsv": 5749,
    "sts-dev.tsv": 1500,
    "sts-test.tsv": 1379,
    "xnli.dev.ko.tsv": 2490,
    "xnli.test.ko.tsv": 5010,
    "klue-nli-v1.1_dev.json": 3000,
    "klue-sts-v1.1_dev.json": 519,
}


@pytest.mark.parametrize("name", sorted(declared()))
def test_every_declaration_is_a_task(name: str) -> None:
    config = task_recipe(name)
    options = config.task
    assert options.train
    assert options.dev
    assert options.metrics, "a table needs to know the main metric"
    assert options.kind in KINDS
    for reference in options.reference:
        assert reference.metric in options.metrics
        assert 0 < reference.score < 100
        assert reference.model
        assert reference.source
        stems = {part_name(file) for file in task_files(options).values()}
        assert reference.split in stems, "no file has the name of what was measured on"
    assert len(options.submission) in (0, 1 + len(options.predict) + len(options.optional))
    text = recipe_of(name).read_text(encoding="utf-8")
    assert f"#     bothways finetune {name} --data " in text


def test_settings_that_scores_depend_on() -> None:
    """What would go unnoticed in a declaration: the tasks would still train and measure."""
    assert task_recipe("korquad").task.spans.convention == "korean"
    assert task_recipe("conll2003").task.tagging.context == "document"
    for name, no_answer in (("squad", False), ("squad2", True)):
        spans = task_recipe(name).task.spans
        given = (spans.stride, spans.query_length, spans.answer_length, spans.n_best)
        assert given == (128, 64, 30, 20)
        assert spans.no_answer is no_answer
    trained = {
        name: (config.epochs, config.batch_size, config.optimizer.lr, config.sequence_length)
        for name in ("squad", "squad2", "swag")
        for config in [task_recipe(name)]
    }
    assert trained == {
        "squad": (3, 32, 5e-5, 384),
        "squad2": (2, 48, 5e-5, 384),
        "swag": (3, 16, 2e-5, 128),
    }


def test_published_scores() -> None:
    """Devlin et al. 2019, tables 2, 3, 4 and 7 (table 1's are checked by their average)."""
    found = {
        (name, r.metric, r.split): r.score
        for name in ("squad", "squad2", "swag", "conll2003")
        for r in task_recipe(name).task.reference
        if r.model == "BERT-large"
    }
    assert found == {
        ("squad", "f1", "dev-v1.1"): 90.9,
        ("squad", "exact_match", "dev-v1.1"): 84.1,
        ("squad2", "f1", "dev-v2.0"): 81.9,
        ("squad2", "exact_match", "dev-v2.0"): 78.7,
        ("swag", "accuracy", "val"): 86.6,
        ("swag", "accuracy", "test"): 86.3,
        ("conll2003", "f1", "eng.testa"): 96.6,
        ("conll2003", "f1", "eng.testb"): 92.8,
    }


@pytest.mark.parametrize("name", ["cola", "mrpc", "qqp", "sst2", "wnli"])
def test_the_second_class_is_the_one_that_f1_is_about(name: str) -> None:
    assert task_recipe(name).task.labels == ("0", "1")


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("mnli", "sentence1", "sentence2"),
        ("mrpc", "#1 String", "#2 String"),
        ("qnli", "question", "sentence"),
        ("qqp", "question1", "question2"),
        ("rte", "sentence1", "sentence2"),
        ("swag", "sent1", "sent2"),
    ],
)
def test_which_text_comes_first(name: str, first: str, second: str) -> None:
    options = task_recipe(name).task
    assert (options.text, options.text_b) == (first, second)


@pytest.mark.parametrize("name", sorted(PLACES))
def test_it_reads_the_real_files(name: str, shared_data: Callable[[str], Path]) -> None:
    config = task_recipe(name, data=str(shared_data(PLACES[name])))
    options = config.located().task
    kind = KINDS[options.kind]
    there = 0
    for part, file in task_files(options).items():
        if not Path(file).exists():
            continue
        labelled = part not in ("test", "predict")
        rows = kind.read(Path(file), options, labelled=labelled)
        known = [count for end, count in EXAMPLES.items() if file.endswith(end)]
        assert len(rows) in known, file
        if labelled:
            found = kind.define(options, rows)
            assert len(found.targets(rows)) == len(rows)  # type: ignore[attr-defined]
        there += 1
    if not there:
        pytest.skip(f"no file of {name} in the data folder")


def test_stsb_scores_are_from_0_to_5(shared_data: Callable[[str], Path]) -> None:
    options = task_recipe("stsb", data=str(shared_data("glue"))).located().task
    kind = KINDS["regression"]
    rows = kind.read(Path(options.train), options, labelled=True)
    scores = kind.define(options, rows).targets(rows)  # type: ignore[attr-defined]
    assert (scores.min(), scores.max()) == (0, 5)


def test_a_declaration_is_read_like_any_recipe(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(show_tasks("mnli"))
    assert to_dict(task_recipe(str(own))) == to_dict(task_recipe("mnli"))
    # ... and what all options print to is a recipe again, lists of references included.
    own.write_text(yaml.safe_dump(values_of(task_recipe("mnli")), allow_unicode=True))
    assert task_recipe(str(own)) == task_recipe("mnli")


def test_from_python() -> None:
    config = bothways.task_recipe("rte", data="glue", run="r", seeds=(1, 2), **{"lr": 1e-5})
    assert (config.task.name, config.data, config.seeds) == ("RTE", "glue", (1, 2))
    assert config.optimizer.lr == 1e-5
    assert config.optimizer.bias_correction, "what is not named keeps fine-tuning's default"
    located = config.located()
    assert located.task.dev == str(Path("glue/RTE/dev.tsv"))
    assert located.located() == located
    with pytest.raises(ConfigError, match=r"'epoch'; did you mean 'epochs'"):
        task_recipe("rte", epoch=1)


def test_absolute_names_do_not_move() -> None:
    config = task_recipe("rte", data="glue", **{"dev": "/elsewhere/dev.tsv", "test": None})
    assert config.located().task.dev == "/elsewhere/dev.tsv"
    assert config.located().task.test is None
    assert task_recipe("rte").located().task.train == "RTE/train.tsv"


def test_names_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cola", "--data", "glue", "--epochs", "2"]
    config = CommandLine(FinetuneConfig, "x", recipes=declared()).parse(words)
    assert config.task.columns == ("source", "label", "star", "sentence")
    assert (config.data, config.epochs) == ("glue", 2)
    assert cli.main(["finetune", "mrcp"]) == 2
    assert "there is no recipe 'mrcp'; did you mean 'mrpc'?" in (capsys.readouterr().err)
    assert cli.main(["finetune", "--help"]) == 0
    assert "[NAME | RECIPE.yaml]" in capsys.readouterr().out


def test_the_verb_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tasks"]) == 0
    shown = capsys.readouterr().out
    for name in declared():
        assert f" {name} " in shown
    assert "MNLI/dev_mismatched.tsv" in shown
    assert "BERT-large 89.3 (test)" in shown
    assert cli.main(["tasks", "mrpc"]) == 0
    assert capsys.readouterr().out == recipe_of("mrpc").read_text()
    assert cli.main(["tasks", "sst-2"]) == 1
    assert "there is no declared task 'sst-2'; did you mean 'sst2'?" in capsys.readouterr().err


def test_a_file_that_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_bytes(b"\xff\xfe")
    for name in ("nope.yaml", str(tmp_path / "broken.yaml")):
        with pytest.raises(ConfigError, match="cannot be read"):
            show_tasks(name)


def test_declarations_are_packaged() -> None:
    root = Path(__file__).parents[2]
    built = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = Path(bothways.__file__).parent
    packed = {p for pattern in built["package-data"]["bothways"] for p in package.glob(pattern)}
    assert set(declared().values()) <= packed
