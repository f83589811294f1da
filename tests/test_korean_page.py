"""docs/ko.md runs as it is written, with stand-ins for the two libraries that divide words."""

from __future__ import annotations

import random
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import bothways as bw
from bothways.tokenization.segmenter import VARIABLE, Segmenter
from test_readme import blocks, commands, run

PAGE = "docs/ko.md"
# As kiwipiepy and python-mecab-ko give them: places of morphemes, which may overlap, and strings.
_KIWI = """
import re
from collections import namedtuple

Token = namedtuple("Token", "form start len")

class Kiwi:
    def tokenize(self, text):
        found = []
        for word in re.finditer(r"[가-힣]+|\\w+|[^\\w\\s]", text):
            found.append(Token(word[0], word.start(), len(word[0])))
            if len(word[0]) > 2:
                found.append(Token(word[0][-1], word.end() - 1, 1))
        return found
"""
_MECAB = """
import re

class MeCab:
    def morphs(self, text):
        return re.findall(r"[가-힣]{1,2}|\\w+|[^\\w\\s]", text)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with Korean texts and reviews, and the page's module."""
    choose = random.Random(5)
    syllables = (
        "가나다라마바사아자차카타파하고노도로모보소오조초기니디리미비시이지치은는을를에서정말영화"
    )
    words = ["".join(choose.choices(syllables, k=choose.randint(1, 4))) for _ in range(400)]
    sentences = [" ".join(choose.choices(words, k=8)) + "." for _ in range(600)]
    (tmp_path / "texts").mkdir()
    documents = ["\n".join(sentences[n : n + 6]) for n in range(0, len(sentences), 6)]
    (tmp_path / "texts/ko.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    (tmp_path / "reviews").mkdir()
    for name, chosen in (("train", sentences[:32]), ("dev", sentences[32:48])):
        rows = [f"{text}\t{number % 2}" for number, text in enumerate(chosen)]
        table = "\n".join(["sentence\tlabel", *rows]) + "\n"
        (tmp_path / f"reviews/{name}.tsv").write_text(table, encoding="utf-8")
    ((_, module),) = [block for block in blocks(PAGE) if block[0] == "python"]
    for file, text in (("ko_words", module), ("kiwipiepy", _KIWI), ("mecab", _MECAB)):
        (tmp_path / f"{file}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setenv(VARIABLE, "ko_words:kiwi")
    for file in ("ko_words", "kiwipiepy", "mecab"):
        monkeypatch.delitem(sys.modules, file, raising=False)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_the_korean_page_runs_as_written(capfd: pytest.CaptureFixture[str]) -> None:
    shown = ""
    for language, block in blocks(PAGE):
        for words in commands(block) if language == "console" else ():
            status = run(words)
            told = capfd.readouterr()
            assert status == 0, f"{shlex.join(words)}\n{told.out}\n{told.err}"
            shown += told.out
    assert "single" in shown
    assert bw.Tokenizer.from_folder("vocabulary").normalization == "composed"
    assert bw.Tokenizer.from_folder("vocabulary-unigram").kind == "unigram"
    divided = bw.load("runs/kiwi/model").tokenizer
    assert divided.segmenter is not None
    assert divided.segmenter.divide("할머니가 샀다.").text == "할머니 가 샀다 ."
    assert np.load("vectors.npz")["embeddings"].shape == (1, 32)
    assert not bw.load("ko-encoder").loaded.heads
    for file in ("ko_words", "kiwipiepy", "mecab"):
        sys.modules.pop(file, None)


@pytest.mark.usefixtures("here")
def test_the_other_library_divides_too() -> None:
    assert Segmenter("ko_words:mecab").divide("할머니가 샀다.").text == "할머 니가 샀다 ."
