"""Vocabularies from files: the same bytes whatever the processes, and a report that is right."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bothways.errors import ConfigError, InputError, ModelError
from bothways.tokenization.build import build_vocabulary, count_file_words, measure
from bothways.tokenization.options import VocabularyConfig
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer

FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
PROGRAM = """
import sys
from bothways.tokenization.options import VocabularyConfig
from bothways.tokenization.build import build_vocabulary
from bothways.tokenization import counting
counting._BLOCK_CHARACTERS = 2000
files, out, workers, most = sys.argv[1:]
defaults = counting.count_chunks.__wrapped__.__kwdefaults__
assert "max_in_memory" in defaults
defaults["max_in_memory"] = int(most)
build_vocabulary(
    VocabularyConfig(files=(files,), out=out, size=300, workers=int(workers), alphabet=60)
)
"""


@pytest.fixture
def texts(tmp_path: Path, tiny_documents: list[list[str]]) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, document in enumerate(tiny_documents):
        (folder / f"{number % 7}.txt").open("a").write("\n".join(document) + "\n\n")
    return folder


def test_identical_bytes_whatever_processes_seeds_and_memory(tmp_path: Path, texts: Path) -> None:
    found = set()
    for number, (seed, workers, most) in enumerate([("0", 1, 10**6), ("1", 2, 10**6), ("2", 2, 9)]):
        out = tmp_path / f"vocabulary-{number}"
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(texts), str(out), str(workers), str(most)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
        )
        found.add(tuple((out / name).read_bytes() for name in FILES))
        for old in list(texts.iterdir()):  # other names: another order of reading
            old.rename(texts / f"{number}{old.name[::-1].removeprefix('txt.')}.txt")
    assert len(found) == 1


def test_records_give_the_vocabulary_of_their_texts(tmp_path: Path) -> None:
    texts = ["one house\nby the sea", "Käse, 한국어", "", "two houses by the sea"]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"id": 1, "body": text}) + "\n" for text in texts)
    pq.write_table(pa.table({"body": pa.array(texts)}), tmp_path / "a.parquet")
    found = set()
    for name in ("a.txt", "a.jsonl.gz", "a.parquet"):
        out = tmp_path / "out" / name
        files = (str(tmp_path / name),)
        report = build_vocabulary(
            VocabularyConfig(files=files, out=str(out), size=60, text_field="body", heldout=files)
        )
        learned = [(out / part).read_bytes() for part in FILES]
        found.add((*learned, json.dumps(report["heldout"])))
    assert len(found) == 1


def test_broken_input_is_refused_or_mended(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one house\ntwo\xff houses\nby\0 sea\n")
    lines = [
        {"text": "one house"},
        {"text": None},
        {"text": "two\ud800 houses"},
        {"text": "by\0 sea"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = pa.array([b"one house", None, b"two\xff houses", b"by\0 sea"], pa.binary())
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet")
    found = set()
    for name, broken in (("a.txt", 2), ("a.jsonl", 3), ("a.parquet", 3)):
        options = {
            "files": (str(tmp_path / name),),
            "out": str(tmp_path / "out" / name),
            "size": 60,
        }
        with pytest.raises(InputError, match=rf"{name}:2: "):
            build_vocabulary(VocabularyConfig(**options))  # type: ignore[arg-type]
        report = build_vocabulary(VocabularyConfig(**options, broken="replace"))  # type: ignore[arg-type]
        assert report["learned_from"].pop("broken_lines") == broken
        found.add(json.dumps(report["learned_from"]))
    assert len(found) == 1
    (tmp_path / "utf16.txt").write_text("one house\n", encoding="utf-16")
    config = VocabularyConfig(
        files=(str(tmp_path / "utf16.txt"),), out=str(tmp_path / "16"), size=60, broken="replace"
    )
    assert "broken_lines" not in build_vocabulary(config)["learned_from"]  # read by its mark
    (tmp_path / "a.txt").write_text("one house\ntwo houses\n" + "x " * 2000)
    config = VocabularyConfig(
        files=(str(tmp_path / "a.txt"),), out=str(tmp_path / "long"), size=60, max_line_mib=0.001
    )
    with pytest.raises(InputError, match=r"a\.txt:3: .*--set max_line_mib"):
        build_vocabulary(dataclasses.replace(config, broken="replace"))
    build_vocabulary(dataclasses.replace(config, max_line_mib=0.01, out=tmp_path / "path"))  # type: ignore[arg-type]


def test_report_counts_what_can_be_counted_by_hand(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("house house sea\n" * 5)
    (tmp_path / "b.txt").write_text("house 漢 sea eaeses 漢 House.\n")
    out = tmp_path / "v"
    config = VocabularyConfig(
        files=(str(tmp_path / "a.txt"),), heldout=(str(tmp_path / "b.txt"),), out=str(out), size=100
    )
    seen: list[tuple[str, int, int]] = []
    report = build_vocabulary(config, progress=lambda *told: seen.append(told))
    stages = ["reading", "counting letters", "counting words", "merging"]
    assert [*dict.fromkeys(stage for stage, _, _ in seen)] == stages
    # Chunks between spaces: "house", "sea", each once.
    assert [told for told in seen if told[0] == "counting words"] == [("counting words", 2, 2)]
    tokenizer = Tokenizer.from_folder(out)
    assert report["vocabulary"]["pieces"] == tokenizer.vocab_size < 100
    assert "100 requested" in report["vocabulary"]["fewer_because"]
    assert report["vocabulary"]["score"] == "likelihood"
    assert report["vocabulary"]["longest_pieces"][0] in tokenizer.pieces
    learned = report["learned_from"]
    assert (learned["words"], learned["pieces"]) == (15, 15)
    assert (learned["whole"], learned["unknown"], learned["distinct_words"]) == (1, 0, 2)
    heldout = report["heldout"]
    pieces = len(tokenizer.encode_plain(["house 漢 sea eaeses 漢 House."])[0])
    assert (heldout["words"], heldout["pieces"]) == (7, pieces)
    assert heldout["unknown"] == 3 / 7
    assert heldout["whole"] == 3 / 7
    assert heldout["unknown_words"] == {"漢": 2, ".": 1}
    assert json.loads((out / "vocabulary-report.json").read_text()) == report


def test_report_lists_the_characters_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("aaab aaab aab xy xx x z\n")
    out = str(tmp_path / "v")
    config = VocabularyConfig(files=(str(tmp_path / "a.txt"),), out=out, size=20, alphabet=2)
    alphabet = build_vocabulary(config)["alphabet"]
    assert (alphabet["kept"], alphabet["dropped"]) == (2, 3)
    assert alphabet["most_frequent_dropped"] == {"b": 3, "y": 1, "z": 1}
    assert alphabet["dropped_share"] == 5 / 17


def test_words_of_files_are_counted_by_the_tokenizers_rules(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(unicodedata.normalize("NFD", "Été été. 한국"))
    for normalization, korean in (("composed", "한국"), ("bert", None)):
        pieces = [*SPECIAL_PIECES, "e"]
        tokenizer = Tokenizer.from_pieces(pieces, normalization=normalization)  # type: ignore[arg-type]
        counts = count_file_words([path], tokenizer, workers=1)
        assert counts["ete"] == 2
        assert (korean in counts) == (korean is not None)
        assert measure(tokenizer, counts)["unknown"] == 1


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(InputError, match="the text has no words"):
        build_vocabulary(VocabularyConfig(files=(str(tmp_path),), out=str(tmp_path / "w")))
    assert not (tmp_path / "w").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").write_text("")
    with pytest.raises(ConfigError, match=r"model\.safetensors, which is not part"):
        build_vocabulary(VocabularyConfig(files=(str(tmp_path),), out=str(tmp_path / "other")))
    for name, content, message in (
        ("a.csv", "text\n", r"a\.csv: this holds records"),
        ("b.jsonl", '{"text": "a"}\n{"body": "b"}\n', r"b\.jsonl:2: no field 'text', only 'body'"),
        ("c.jsonl", '{"text": "a\\u0000"}\n', r"c\.jsonl:1: the text has a NUL"),
        ("d.parquet", "", r"d\.parquet.*Parquet"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=message):
            build_vocabulary(
                VocabularyConfig(files=(str(tmp_path / name),), out=str(tmp_path / "w"))
            )
        (tmp_path / name).unlink()
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"gone\.txt"):
        build_vocabulary(VocabularyConfig(files=(str(tmp_path),), out=str(tmp_path / "w")))
    for wrong in ({"workers": 0}, {"size": 0}, {"algorithm": "bpe", "score": "ratio"}):
        with pytest.raises(ConfigError, match=next(reversed(wrong))):
            VocabularyConfig(files=("a",), out="b", **wrong)  # type: ignore[arg-type]


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "2", ",", "##s"]


def numbered(form: str) -> str:
    return "".join(form.format(id=i, piece=p) for i, p in enumerate(PIECES))


@pytest.mark.parametrize(
    "text",
    [
        "\r\r\n".join(PIECES) + "\r\r\n",
        "\n\n".join(PIECES) + "\n\n",
        numbered("{id}\t{piece}\n"),
        numbered("{piece},{id}\n"),
        numbered('"{piece}"\n'),
        numbered("{piece} \n"),
        json.dumps(PIECES),
        "\u2028".join(PIECES) + "\u2028",
    ],
)
def test_lines_that_are_no_pieces_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(text.encode())
    with pytest.raises(ModelError, match=r"vocab\.txt: "):
        Tokenizer.from_folder(tmp_path)


def test_lines_that_are_not_text_alone_make_no_vocabulary_in_silence(tmp_path: Path) -> None:
    path, out = tmp_path / "a.txt", str(tmp_path / "v")
    config = VocabularyConfig(files=(str(path),), out=out, size=60)
    path.write_text("".join(f'{{"text": "the cat number {n} sat"}}\n' for n in range(40)))
    with pytest.raises(InputError, match="looks like JSON, not like text"):
        build_vocabulary(config)
