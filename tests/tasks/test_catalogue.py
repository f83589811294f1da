"""The declared tasks: each is a recipe that names columns its real files have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import bothways
from bothways.config.fields import to_dict, values_of
from bothways.errors import ConfigError
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
