"""Inputs of the kinds that public bug reports tell of, each with what is right.

``CASES`` lists the kinds and the tests that hold them. Most stand beside their reader; here are
those that belong to none, or need several parts at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bothways import cli
from bothways.api.model import load
from bothways.errors import BothwaysError, InputError
from bothways.finetuning.finetune import finetune
from bothways.finetuning.options import FinetuneConfig
from bothways.io.rows import Format
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.tasks.options import TaggingOptions, TaskOptions
from bothways.tasks.readers import read_rows
from bothways.tasks.sentences import read_sentences
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer
from finetuning_examples import start_model, word_config, word_files
from model_examples import BOTH_HEADS, small_bert, small_config, small_tokenizer
from question_examples import question, squad_file

FOLDERS, ANNOTATED = "runtime/test_folders.py::", "tasks/test_tagged_files.py::"
TABLES, SQUAD = "io/test_tables.py::", "io/test_squad.py::"
HERE = "test_cases.py::"
CASES: dict[str, list[str]] = {
    "01 CoNLL-U: ranges and empty nodes": [
        ANNOTATED + "test_conllu_ranges_and_empty_nodes_are_no_words"
    ],
    "02 a tagger's config without architectures": [
        FOLDERS + "test_tags_or_labels_where_no_class_says_it"
    ],
    "03 SQuAD: ids that are whole numbers": [
        SQUAD + "test_ids_are_any_scalar",
        HERE + "test_predictions_are_under_the_numbers_that_a_file_has",
    ],
    "04 SQuAD: spellings of unanswerable": [
        SQUAD + "test_spellings_of_unanswerable",
        SQUAD + "test_spellings_of_answers",
    ],
    "07 weights of wrapped models": [
        FOLDERS + "test_what_wrappers_put_before_all_names",
        FOLDERS + "test_checkpoints_of_trainers",
    ],
    "08 heads with more layers": [
        FOLDERS + "test_a_part_of_a_head_is_never_left_out_in_silence",
    ],
    "10 more embedding rows than pieces": [FOLDERS + "test_more_rows_than_pieces"],
    "12 the Hub's cache": [
        "io/test_hub.py::test_a_model_in_the_cache",
        "io/test_hub.py::test_offline_the_message_says_where_it_was_looked_for",
    ],
    "13 old folders of sentence-transformers": [FOLDERS + "test_the_layout_before_version_2"],
    "14 modules.json saved by a Windows editor": [HERE + "test_modules_of_windows_editors"],
    "15 config.json and others so saved": [HERE + "test_model_folders_of_windows_editors"],
    "17 CSV with a line sep=": [TABLES + "test_rows"],
    "18 blank lines between rows": [
        TABLES + "test_rows",
        TABLES + "test_rows",
        TABLES + "test_rows",
    ],
    "20 output that is not UTF-8": [
        "io/test_streams.py::test_finetune_ends_with_its_table",
        "io/test_streams.py::test_predict_shows_what_the_encoding_lacks",
        "io/test_streams.py::test_vocab_ends_with_its_table",
    ],
    "21 zero-width spaces between words": ["tokenization/test_spaced.py::test_they_separate_words"],
    "22 tags in other spellings": [
        ANNOTATED + "test_types_without_prefixes",
        ANNOTATED + "test_what_is_refused",
        "tasks/test_tagging.py::test_tags_that_mark_nothing",
    ],
    "24 a word a row in CSV": [
        ANNOTATED + "test_every_form_gives_the_same_words_and_tags",
        ANNOTATED + "test_sentences_of_tables",
        HERE + "test_a_word_a_row_in_latin_1",
    ],
    "25 tags in JSON lines": [
        ANNOTATED + "test_every_form_gives_the_same_words_and_tags",
        ANNOTATED + "test_numbers_of_tags_need_their_names",
    ],
    "27 offsets of odd letters": [
        HERE + "test_entities_of_odd_letters_are_the_characters_of_the_text",
        "tokenization/test_tokenizer.py::test_offsets_point_at_the_token_in_the_text_given",
    ],
    "30 data changed under the same run": [
        "finetuning/test_finetune_resume.py::test_another_recipe_is_refused_with_the_difference",
        HERE + "test_a_changed_text_is_never_answered_by_the_corpus_before",
    ],
    "33 tied weights and parts in safetensors": [
        FOLDERS + "test_the_decoder_is_stored_in_place_of_the_embedding",
        FOLDERS + "test_an_untied_output_is_refused_where_it_is_used",
        HERE + "test_forms_of_the_same_weights",
    ],
    "34 few and lopsided examples": [HERE + "test_few_and_lopsided_examples"],
    "36 a home that cannot be written to": [HERE + "test_a_home_that_cannot_be_written_to"],
    "38 quotation marks of pandas in TSV": [
        TABLES + "test_rows",
        TABLES + "test_rows",
        HERE + "test_quotation_marks_of_a_table_writer_in_tagged_words",
    ],
    "41 odd id2label": [FOLDERS + "test_names_of_labels"],
    "43 stray files in a corpus folder": [
        "corpus/test_layout_of_text.py::test_stray_files_are_left_out_and_said",
        HERE + "test_stray_files_are_no_text_of_a_vocabulary",
    ],
    "45 JSON of mixed types": [
        TABLES + "test_rows",
        TABLES + "test_refusals",
        HERE + "test_forms_of_json",
    ],
}


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_its_tests(case: str) -> None:
    for name in CASES[case]:
        file, test = name.split("::")
        assert f"def {test}(" in (Path(__file__).parent / file).read_text(), name


# --------------------------------------------------------------------------------------- folders


TEXTS = ["w1 w2 w3", "w4 w5"]
MARK = b"\xef\xbb\xbf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pre-trained encoder as another library would leave it."""
    save_model(tmp_path / "model", small_bert(**BOTH_HEADS, seed=3), small_tokenizer(97))
    for name in ("bothways.json", "checksums.json"):
        (tmp_path / "model" / name).unlink()
    return tmp_path / "model"


WINDOWS = {
    "mark": lambda data: MARK + data,
    "mark, CRLF": lambda data: MARK + data.replace(b"\n", b"\r\n"),
    "UTF-16": lambda data: data.decode().encode("utf-16"),
}


@pytest.mark.parametrize("saved", WINDOWS)
@pytest.mark.parametrize("name", ["modules.json", "1_Pooling/config.json", "prompts"])
def test_modules_of_windows_editors(name: str, saved: str, folder: Path) -> None:
    """Pooled and normalised as the folder says, or refused: never the mean in its place."""
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(kinds.items())
    ]
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    prompts = {"prompts": {"query": "w7 "}, "default_prompt_name": "query"}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    expected = load(folder).embed(TEXTS)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-5)
    bare = load(folder).embed([f"w7 {text}" for text in TEXTS], pooling="cls", prompt="")
    np.testing.assert_allclose(
        expected, bare / np.linalg.norm(bare, axis=1, keepdims=True), atol=1e-5
    )
    path = folder / ("config_sentence_transformers.json" if name == "prompts" else name)
    whole = path.read_bytes()
    path.write_bytes(WINDOWS[saved](whole))
    np.testing.assert_array_equal(load(folder).embed(TEXTS), expected)
    path.write_bytes(whole[:-9])
    with pytest.raises(BothwaysError, match=path.name.replace(".", r"\.")):
        load(folder).embed(TEXTS)


@pytest.mark.parametrize("saved", WINDOWS)
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "tokenizer.json", "vocab.txt"]
)
def test_model_folders_of_windows_editors(name: str, saved: str, folder: Path) -> None:
    expected = load(folder).embed(TEXTS)
    if name == "vocab.txt":
        (folder / "tokenizer.json").unlink()
    path = folder / name
    path.write_bytes(WINDOWS[saved](path.read_bytes()))
    np.testing.assert_array_equal(load(folder).embed(TEXTS), expected)


@pytest.mark.parametrize("form", ["float64", "parts", "no metadata", "bias of the decoder"])
def test_forms_of_the_same_weights(form: str, folder: Path) -> None:
    model = load(folder)
    expected, fillings = model.embed(TEXTS), model.fill_mask("w1 [MASK]")
    path = folder / "model.safetensors"
    weights = load_file(path)
    if form == "float64":
        weights = {name: value.double() for name, value in weights.items()}
    elif form == "bias of the decoder":
        weights["cls.predictions.decoder.bias"] = weights.pop("cls.predictions.bias")
    if form == "parts":
        names = sorted(weights)
        parts = {"model-00001-of-00002.safetensors": names[::2]}
        parts["model-00002-of-00002.safetensors"] = names[1::2]
        for file, of in parts.items():
            save_file({name: weights[name] for name in of}, folder / file)
        places = {name: file for file, of in parts.items() for name in of}
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        path.unlink()
    else:
        save_file(weights, path, metadata=None if form == "no metadata" else {"format": "pt"})
    model = load(folder)
    np.testing.assert_array_equal(model.embed(TEXTS), expected)
    assert model.fill_mask("w1 [MASK]") == fillings


# ------------------------------------------------------------------------------------------ texts


ODD = [
    "İZMİR'de Ğ ışık",
    "GROẞ groß ﬁn ﬂat oﬃce",
    "ΛΟΓΟΣ Σίσυφος",
    "סֵפֶר טוֹב",
    "كِتَابٌ جَدِيد ـــ",
    unicodedata.normalize("NFD", "서울 밖 Phở Đường"),
    "Kraft\u00adwerk hy\u00adphen",
    "😀 👩‍👩‍👦 🇰🇷🇩🇪 2️⃣ ❤️ 👋🏾!",
    "ze\u200bro wi\u200cdth\u200djoin \ufeffmark",
    "\ue010\ue011 own \U000f0010x",
    "b\x07c d\x1fe \x85f",
    "\u202bספר\u202c abc \u2067def\u2069",
    "ｗｉｄｅ　ｔｅｘｔ ③④ ㎏",
    "a\u0300\u0301\u0302 z\u0336w\u0336",
    "ภาษาไทย เชียงใหม่",
    "ǅ ǈ ŉ ǰ",
]


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To which every word is an entity, and of whose pieces letters are."""
    letters = sorted({c for text in ODD for c in unicodedata.normalize("NFKD", text).lower()})
    letters = [c for c in letters if c.strip() and unicodedata.category(c)[0] in "LNPS"]
    pieces = [*SPECIAL_PIECES, *letters, *("##" + c for c in letters)]
    tokenizer = Tokenizer.from_pieces(pieces, lowercase=True)
    model = EncoderModel(small_config((1, 16, 2, 64, tokenizer.vocab_size)), tags=2, seed=0)
    folder = tmp_path_factory.mktemp("odd") / "tagger"
    save_model(folder, model, tokenizer)
    for name in ("bothways.json", "checksums.json"):
        (folder / name).unlink()
    weights = load_file(folder / "model.safetensors")
    weights["classifier.weight"] = torch.zeros_like(weights["classifier.weight"])
    weights["classifier.bias"] = torch.tensor([5.0, 0.0])
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {"0": "B-X", "1": "O"}, "label2id": {"B-X": 0, "O": 1}}
    config["architectures"] = ["BertForTokenClassification"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_entities_of_odd_letters_are_the_characters_of_the_text(tagger: Path) -> None:
    model = load(tagger)
    for text in ODD:
        last = 0
        found = model.tag(text).entities
        assert found, text
        for entity in found:
            assert text[entity.start : entity.end] == entity.text
            assert last <= entity.start < entity.end <= len(text)
            after = text[entity.end : entity.end + 1]
            assert not after or unicodedata.category(after)[0] != "M", (text, entity)
            last = entity.end
        encoding, last = model.tokenizer.encode(text), 0
        for token, (start, end) in zip(encoding.ids[1:-1], encoding.offsets[1:-1], strict=True):
            piece = model.tokenizer.piece(token)
            assert 0 <= start < end <= len(text)
            assert start >= last or piece.startswith("##")
            last = start


def test_stray_files_are_no_text_of_a_vocabulary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "t"
    for name in ("__MACOSX/._a.txt", "._a.txt", ".DS_Store"):
        (texts / name).parent.mkdir(parents=True, exist_ok=True)
        (texts / name).write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X        \0\2")
    (texts / "empty.txt").touch()
    (texts / "a.txt").write_text("It rained. No one went out.\n\nThe shop was shut.\n" * 9)
    words = ["vocab", "--files", str(texts), "--size", "80", "--out", str(tmp_path / "v")]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    assert "files are left out" in out + err
    assert not any("\0" in p or "Mac" in p for p in Tokenizer.from_folder(tmp_path / "v").pieces)


# ------------------------------------------------------------------------------------------- files


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_word_a_row_in_latin_1(tmp_path: Path) -> None:
    rows = [
        (f"S{n}" * (k == 0), word, "O") for n in range(3) for k, word in enumerate("dé çà".split())
    ]
    text = "Sentence #,Word,Tag\n" + "".join(",".join(row) + "\n" for row in rows)
    path = write(tmp_path, "a.csv", text.encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.csv:2: .*windows-1252.*encoding"):
        read_sentences(path, TaggingOptions(), labelled=True)
    found = read_sentences(path, TaggingOptions(), labelled=True, form=Format("latin-1"))
    assert found.words == [["dé", "çà"]] * 3


def test_quotation_marks_of_a_table_writer_in_tagged_words(tmp_path: Path) -> None:
    """The word " is written as four of them."""
    sentence = '""""\tO\nMary\tB-PER\n""""\tO\nleft\tO\n\n'
    found = read_sentences(
        write(tmp_path, "a.conll", sentence * 3), TaggingOptions(), labelled=True
    )
    assert found.words == [['"', "Mary", '"', "left"]] * 3
    plain = write(tmp_path, "b.conll", sentence.replace('""""', '"'))
    assert read_sentences(plain, TaggingOptions(), labelled=True).words == found.words[:1]


ROWS = [{"sentence": f"text {n}", "label": ("good", "bad")[n % 2]} for n in range(4)]
FORMS: dict[str, tuple[str, Any, str]] = {
    "JSON lines under .json": ("a.json", "".join(json.dumps(row) + "\n" for row in ROWS), ""),
    "a list": ("a.json", ROWS, ""),
    "records of a data base": ("a.json", {"data": ROWS}, ""),
    "columns of a data frame": (
        "a.json",
        {key: {str(n): row[key] for n, row in enumerate(ROWS)} for key in ROWS[0]},
        "",
    ),
    "labels in lists": (
        "a.jsonl",
        "".join(json.dumps(row | {"label": [row["label"]]}) + "\n" for row in ROWS),
        "",
    ),
    "one label in four types": (
        "a.jsonl",
        "".join(
            json.dumps({"sentence": "a", "label": label}) + "\n" for label in (1, "1", 1.0, True)
        ),
        r"a\.jsonl:3: the labels '1\.0' here and '1' are one label",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_json(form: str, tmp_path: Path) -> None:
    name, content, message = FORMS[form]
    path = write(tmp_path, name, content if isinstance(content, str) else json.dumps(content))
    if message:
        with pytest.raises(InputError, match=message):
            read_rows(path, TaskOptions(), labelled=True)
    else:
        rows = read_rows(path, TaskOptions(), labelled=True)
        assert rows.a == [row["sentence"] for row in ROWS]
        assert rows.labels == [(row["label"],) for row in ROWS]


# ------------------------------------------------------------------------------------ fine-tuning


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    start_model(root)
    word_files(root)
    return root


@pytest.fixture
def config(world: Path, tmp_path: Path) -> FinetuneConfig:
    return word_config(world / "model", world, tmp_path / "run")


def tuned(config: FinetuneConfig, **task: Any) -> FinetuneConfig:
    return dataclasses.replace(config, task=TaskOptions(name="t", **task), batch=8)


def test_predictions_are_under_the_numbers_that_a_file_has(
    config: FinetuneConfig, tmp_path: Path
) -> None:
    ids = [7211011040021040000, -5, 0]
    rows = []
    for n in ids:
        asked = question("", "w3", ("w1 w2", 3))
        rows.append({"context": "w9 w1 w2 w8", "qas": [asked | {"id": n}]})
    path = squad_file(tmp_path / "q.json", rows)
    about = {"kind": "spans", "train": str(path), "dev": str(path)}
    finetune(tuned(config, **about))
    (found,) = (tmp_path / "run").rglob("dev_predictions.json")
    assert set(json.loads(found.read_text())) == {str(n) for n in ids}


def test_a_changed_text_is_never_answered_by_the_corpus_before(
    tmp_path: Path, tiny_tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("The king sold a boat. My aunt found the clock.\n\n" * 8)
    words = ["corpus", "--files", str(path), "--tokenizer", str(tiny_tokenizer_folder)]
    words += ["--out", str(tmp_path / "c"), "--workers", "1", "--heldout", "0"]
    assert cli.main(words) == 0
    before = (tmp_path / "c/corpus.json").read_bytes()
    path.write_text(path.read_text().replace("boat", "hat"))
    capsys.readouterr()
    status = cli.main(words)
    out, err = capsys.readouterr()
    if status:
        assert "a.txt" in err or str(tmp_path / "c") in err
    else:
        assert (tmp_path / "c/corpus.json").read_bytes() != before, out + err


MANY = [(f"w{n}", f"class{n}") for n in range(8, 16)]
FEW: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]], dict[str, Any], str, str]] = {
    "one class": (
        [("w1", "x"), ("w2", "x")],
        [("w1", "x")],
        {},
        "every example has the label 'x'",
        "",
    ),
    "three rows": (
        [("w1", "good"), ("w2", "bad"), ("w3", "good")],
        [("w4", "good"), ("w5", "good")],
        {},
        "",
        "",
    ),
    "a row of dev": ([("w1", "good"), ("w2", "bad")], [("w4", "good")], {}, "", ""),
    "ids as labels": (MANY, MANY, {}, "8 different labels for 8 examples", ""),
    "lopsided": (
        [(f"w{n}", "no") for n in range(8, 60)] + [("w7", "yes")],
        [(f"w{n}", "no") for n in range(8, 60)] + [("w7", "yes")],
        {},
        "",
        "collapsed",
    ),
    "one score": (
        [("w1", "3"), ("w2", "3"), ("w3", "3")],
        [("w1", "3"), ("w2", "3")],
        {"kind": "regression"},
        "",
        "undefined (all scores in the data are the same)",
    ),
}


@pytest.mark.parametrize("case", FEW)
def test_few_and_lopsided_examples(
    case: str, config: FinetuneConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, dev, more, refused, said = FEW[case]
    for name, rows in (("train", train), ("dev", dev)):
        lines = [f"{text}\t{label}\n" for text, label in rows]
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    files = {name: str(tmp_path / f"{name}.tsv") for name in ("train", "dev")}
    asked = tuned(config, **files, **more)
    if refused:
        with pytest.raises(BothwaysError, match=refused):
            finetune(asked)
        return
    result = finetune(asked)
    shown = capsys.readouterr().out
    assert "nan" not in shown.lower()
    assert said in shown
    assert 0 <= result.mean() <= 1


@pytest.mark.slow
def test_a_home_that_cannot_be_written_to(config: FinetuneConfig, tmp_path: Path) -> None:
    """As in a container of another user: it runs, and no library complains."""
    (tmp_path / "file").touch()
    own = ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "XDG_CONFIG_HOME")
    kept = {key: value for key, value in os.environ.items() if key not in own}
    home = {"HOME": str(tmp_path / "file/home"), "OMP_NUM_THREADS": "1"}
    files = ["--task.train", config.task.train, "--task.dev", config.task.dev]
    short = ["--epochs", "1", "--seeds", "0", "--threads", "1", "--length", "16"]
    places = ["--model", config.model, "--run", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "bothways", "finetune", *files, *short, *places],
        env=kept | home,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    note = f"fp32: no measurement can be kept in {home['HOME']}/.cache/bothways/speed.jsonl"
    assert (done.stdout + done.stderr).count(note) == 1
    for noise in ("Traceback", "Matplotlib", "Warning", "file/home"):
        assert noise not in (done.stdout + done.stderr).replace(note, "")
    assert load_model(tmp_path / "run/seed-0/model").task_head == "classifier"
