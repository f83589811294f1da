"""Family by family, what each verb does: docs/families.md is the table, and every cell is tried.

The models are transformers', tiny and random; only that verbs work, or say why not, is looked at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest

pytest.importorskip("transformers")

import bothways as bw
from bothways.api.model import Model
from bothways.errors import ModelError
from bothways.families import FAMILIES
from bothways.families.heads import HEADS
from bothways.pretraining.options import EvaluateOptions, PretrainConfig
from bothways.tasks.options import TaskOptions
from bothways.training.options import ClockOptions, OptimizerOptions, Phase
from family_examples import EXAMPLES, VOCABULARY, save_theirs
from finetuning_examples import MAGIC, pair_scores, word_task, words
from pretraining_examples import SPECIALS
from question_examples import question, squad_file
from several_examples import label_files, score_files

WORKS, REFUSED = "yes", "-"
PAGE = Path(__file__).parents[2] / "docs" / "families.md"
GENERATOR, DISCRIMINATOR = "electra generator", "electra"
COLUMNS = (*FAMILIES, GENERATOR)


def their_folder(column: str, folder: Path, kind: str) -> Path:
    """A folder of transformers: the class that pre-training leaves, or the encoder alone."""
    example = EXAMPLES[column.split()[0]]
    classes = {
        "pretrained": "ForMaskedLM",
        **({"pretrained": "ForPreTraining"} if column in ("bert", "albert", "electra") else {}),
    }
    # Rounded up, as the examples' vocabulary is no multiple of anything.
    more = {"max_position_embeddings": 64 + 2 * (example.pad == 1)}
    model = example.model(classes.get(kind, "Model"), **more)
    save_theirs(model, folder)
    return folder


Verb = Callable[[Path, Path], object]


def fill_mask(folder: Path, _: Path) -> object:
    return bw.load(folder).fill_mask(f"w9 w10 [MASK] {MAGIC}")


def next_sentence(folder: Path, _: Path) -> object:
    return bw.load(folder).next_sentence("w9 w10", "w11 w12 w13")


def embed(folder: Path, _: Path) -> object:
    vectors = bw.load(folder).embed(["w9 w10", "w11"])
    assert vectors.shape == (2, 32)
    assert np.isfinite(vectors).all()
    return vectors


def tuned(folder: Path, work: Path, *, freeze: bool = False, **task: Any) -> Model:
    """A model that was fine-tuned for a few steps, loaded again from its folder."""
    config = bw.FinetuneConfig(
        task=TaskOptions(**task),
        model=str(folder),
        run=str(work / "run"),
        epochs=1,
        batch_size=8,
        max_length=32,
        optimizer=OptimizerOptions(lr=1e-3, warmup=0.1, bias_correction=True),
        precision="fp32",
        threads=1,
        freeze=freeze,
    )
    result = bw.finetune(config)
    assert result.scores
    return bw.load(result.seeds[0].model)


def labels(folder: Path, work: Path) -> object:
    files = {name: str(word_task(work, 16, 0, f"{name}.tsv")) for name in ("train", "dev")}
    found = tuned(folder, work, **files).predict(["w9 w10", "w7"])
    assert set(found.names) == {"with", "without"}
    return found


def several_labels(folder: Path, work: Path) -> object:
    label_files(work, (16, 16, 4))
    files = {name: str(work / f"{name}.jsonl") for name in ("train", "dev")}
    found = tuned(folder, work, kind="multilabel", **files).predict(["w9 w10", "w7"])
    assert found.names == ("blue", "green", "red")
    assert [set(labels) - set(found.names) for labels in found.labels] == [set(), set()]
    return found


def several_scores(folder: Path, work: Path) -> object:
    score_files(work, (16, 16))
    files = {name: str(work / f"{name}.tsv") for name in ("train", "dev")}
    columns = ("colour", "warmth")
    model = tuned(folder, work, kind="multiregression", label_columns=columns, **files)
    assert model.predict(["w9 w10"]).values.shape == (1, 2)
    return model


def scores_of_pairs(folder: Path, work: Path) -> object:
    files = {name: str(pair_scores(work, 16, 0, f"{name}.jsonl")) for name in ("train", "dev")}
    columns = {"text": "one", "text_b": "two", "label": "score"}
    return tuned(folder, work, kind="regression", **files, **columns).predict(["w9"], ["w10 w11"])


def choices(folder: Path, work: Path) -> object:
    rng, lines = np.random.default_rng(0), []
    for number in range(16):
        ends = [" ".join(words(rng, 3)) for _ in range(3)]
        record = {"context": " ".join(words(rng, 4)), "ends": ends, "label": number % 3}
        lines.append(json.dumps(record))
    (work / "c.jsonl").write_text("\n".join(lines))
    files = dict.fromkeys(("train", "dev"), str(work / "c.jsonl"))
    model = tuned(folder, work, kind="choice", text="context", choices=("ends",), **files)
    return model.choose("w9 w10", ["w11", "w12 w13"])


def tags(folder: Path, work: Path) -> object:
    rng = np.random.default_rng(0)
    sentences = [
        "\n".join(f"{word} {'B-X' if word == MAGIC else 'O'}" for word in [*words(rng, 5), MAGIC])
        for _ in range(16)
    ]
    (work / "t.conll").write_text("\n\n".join(sentences) + "\n")
    files = dict.fromkeys(("train", "dev"), str(work / "t.conll"))
    return tuned(folder, work, kind="tagging", **files).tag("w9 w7 w10")


def answers(folder: Path, work: Path) -> object:
    text = "w9 w10 w11 w12 w13"
    paragraphs = [
        {
            "context": text,
            "qas": [question(f"q{i}", "w20 w21", (f"w{9 + i % 5}", text.index(f"w{9 + i % 5}")))],
        }
        for i in range(16)
    ]
    squad_file(work / "q.json", paragraphs)
    files = dict.fromkeys(("train", "dev"), str(work / "q.json"))
    return tuned(folder, work, kind="spans", **files).answer("w20 w21", text)


def pretrain(folder: Path, work: Path, **changes: Any) -> object:
    texts = work / "texts.txt"
    rng = np.random.default_rng(0)
    lines = [" ".join(words(rng, 6)) + ("\n" if i % 4 == 3 else "") for i in range(120)]
    texts.write_text("\n".join(lines))
    corpus = bw.CorpusConfig(files=(str(texts),), tokenizer=str(folder), out=str(work / "corpus"))
    bw.build_corpus(corpus)
    config = PretrainConfig(
        corpus=corpus.out,
        run=str(work / "run"),
        start=str(folder),
        clock=ClockOptions(steps=2),
        phases=(Phase(length=24, batch=4, micro_batch=4),),
        precision="fp32",
        threads=1,
        evaluate=EvaluateOptions(sequences=8),
    )
    return bw.pretrain(replace(config, **changes))


def masked_lm(folder: Path, work: Path) -> object:
    return pretrain(folder, work, pairs=bw_pairs("full"))


def next_sentences(folder: Path, work: Path) -> object:
    return pretrain(folder, work, pairs=bw_pairs("next"))


def replaced_tokens(folder: Path, work: Path) -> object:
    return pretrain(folder, work, pairs=bw_pairs("full"), objective="replaced")


def bw_pairs(kind: Any) -> Any:
    from bothways.pretraining.options import PairOptions

    return PairOptions(kind=kind)


# By the row of the table: what is tried, the folder that it is tried on, the head that it needs.
ROWS: dict[str, tuple[Verb, str, str]] = {
    "`fill-mask`": (fill_mask, "pretrained", "masked_lm"),
    "`next-sentence`": (next_sentence, "pretrained", "next_sentence"),
    "`embed`": (embed, "encoder", ""),
    "`finetune`, `predict`: labels": (labels, "encoder", "classifier"),
    "`finetune`, `predict`: several labels": (several_labels, "encoder", "classifier"),
    "`finetune`, `predict`: several scores": (several_scores, "encoder", "classifier"),
    "`finetune`, `predict`: scores of pairs": (scores_of_pairs, "encoder", "classifier"),
    "`finetune`, `predict`: choices": (choices, "encoder", "choice"),
    "`finetune`, `predict`: tags": (tags, "encoder", "tagger"),
    "`finetune`, `predict`: answers": (answers, "encoder", "span"),
    "`pretrain`: masked LM": (masked_lm, "encoder", "masked_lm"),
    "`pretrain`: pairs of sentences": (next_sentences, "encoder", "next_sentence"),
    "`pretrain`: replaced tokens": (replaced_tokens, "encoder", "replaced"),
}


def table() -> dict[tuple[str, str], str]:
    """The cells of docs/families.md."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert tuple(header[1:]) == COLUMNS
    return {
        (row[0], column): cell
        for row in rows
        for column, cell in zip(COLUMNS, row[1:], strict=True)
    }


ALWAYS = ("roberta", "electra", "modernbert")
"""The families of which every cell is tried by `make test`, the others' by `make test-all`."""


def cells() -> Sequence[Any]:
    """Every cell; a generator differs from the discriminator in what its folder holds."""
    found = []
    for row, (_, kind, _) in ROWS.items():
        for column in COLUMNS:
            if column != GENERATOR or kind == "pretrained":
                quick = column in ALWAYS or row in ("`fill-mask`", "`next-sentence`", "`embed`")
                marks = () if quick else pytest.mark.slow
                found.append(pytest.param(row, column, marks=marks))
    return found


def test_the_table_has_every_cell() -> None:
    found = table()
    assert found.keys() == {(row, column) for row in ROWS for column in COLUMNS}
    assert set(found.values()) == {WORKS, REFUSED}
    for row, (_, kind, _) in ROWS.items():
        if kind == "encoder":
            assert found[row, GENERATOR] == found[row, DISCRIMINATOR]


@pytest.mark.parametrize(("row", "column"), cells())
def test_each_cell(row: str, column: str, tmp_path: Path) -> None:
    verb, kind, head = ROWS[row]
    folder = their_folder(column, tmp_path / "folder", kind)
    work = tmp_path / "work"
    work.mkdir()
    if table()[row, column] == WORKS:
        assert verb(folder, work) is not None
        return
    with pytest.raises(ModelError) as refused:
        verb(folder, work)
    assert f"no {HEADS[head].title}" in str(refused.value)
    assert "use " in str(refused.value).lower(), "it says what to do"


def test_the_examples_have_these_pieces() -> None:
    assert VOCABULARY > 90
    assert "[MASK]" in SPECIALS


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_on_a_frozen_encoder(family: str, tmp_path: Path) -> None:
    """The folder repeats the run's predictions, whichever engine computes it."""
    folder = their_folder(family, tmp_path / "start", "encoder")
    files = {name: str(word_task(tmp_path, 24, 0, f"{name}.tsv")) for name in ("train", "dev")}
    model = tuned(folder, tmp_path, freeze=True, **files)
    path = tmp_path / "run/seed-0/dev_predictions.tsv"
    rows = [line.split("\t") for line in path.read_text().splitlines()[1:]]
    texts = [line.split("\t")[0] for line in Path(files["dev"]).read_text().splitlines()[1:]]
    wanted = np.array([row[3:] for row in rows], dtype=np.float64)
    other = bw.load(tmp_path / "run/seed-0/model", engine="onnxruntime")
    for one in (model.predict(texts), other.predict(texts)):
        assert one.values == pytest.approx(wanted, abs=1e-4)
    # Some examples have another padding id in config.json than BERT's pieces, which they share.
    found = bw.diagnose(tmp_path / "run/seed-0/model")
    assert len(found) == (EXAMPLES[family].pad != 0)
    assert all("the padding piece has the id" in problem for problem in found)
