"""Vocabularies of ALBERT's and RoBERTa's kinds, learned here: bytes, ids, the whole path."""

from __future__ import annotations

import json
import lzma
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bothways import cli
from bothways.errors import BothwaysError, ConfigError
from bothways.tokenization import counting
from bothways.tokenization.learning import learn, learn_vocabulary
from bothways.tokenization.options import LearningOptions
from bothways.tokenization.template import Template
from bothways.tokenization.tokenizer import Tokenizer

NOUNS = "boat clock garden house candle letter window table river mountain picture bottle".split()
VERBS = "sold bought painted carried mended forgot admired described followed remembered".split()
LINES = [
    f"The old king number {n} of Köln {VERBS[n % 10]} {NOUNS[n % 12]}s and a {NOUNS[n % 7]} for "
    f"his aunt; she didn't like (any) of them: {VERBS[n % 9]}, {VERBS[n % 7]}, no {NOUNS[n % 5]}."
    for n in range(240)
]
SETTINGS = {
    "unigram": {"algorithm": "unigram", "size": 100},
    "gpt2-bpe": {"algorithm": "gpt2-bpe", "size": 400, "lowercase": False},
}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name != "vocabulary-report.json"  # it names the folder
    }


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_same_bytes_in_any_process(algorithm: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    settings = SETTINGS[algorithm] | {"lowercase": algorithm == "unigram"}
    options = [f"--{name}={str(value).lower()}" for name, value in settings.items()]
    found = []
    for threads, workers in (("1", "1"), ("3", "2"), ("1", "-1")):
        out = tmp_path / f"{len(found)}"
        command = [sys.executable, "-m", "bothways", "vocab", "--files", str(text), *options]
        subprocess.run(
            [*command, "--out", str(out), "--workers", workers],
            env={
                **os.environ,
                **dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), threads),
                "PYTHONHASHSEED": threads,
            },
            check=True,
            capture_output=True,
        )
        found.append(contents(out))
    assert found[0] == found[1] == found[2]
    assert {"tokenizer.json", "tokenizer_config.json"} < found[0].keys()


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_same_words_from_several_workers(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of some megabytes is counted in several parts, in other processes."""
    monkeypatch.setattr(counting, "_BLOCK_CHARACTERS", 2000)
    monkeypatch.setattr(counting, "_BATCH", 100)
    options = LearningOptions(**SETTINGS[algorithm])
    alone, shared = (learn(LINES, replace(options, workers=workers)) for workers in (1, 2))
    assert (shared.words, shared.letters) == (alone.words, alone.letters)
    assert shared.tokenizer.fingerprint == alone.tokenizer.fingerprint


@pytest.mark.parametrize("algorithm", SETTINGS)
@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_are_those_of_the_libraries(algorithm: str, lowercase: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sentencepiece = pytest.importorskip("sentencepiece")
    if algorithm == "gpt2-bpe" and lowercase:
        pytest.skip("keeps case")
    tokenizer = learn_vocabulary(LINES, **SETTINGS[algorithm] | {"lowercase": lowercase})
    tokenizer.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["The king sold (no) boats; she didn't.", "ﬁne old  clocks of Köln", "Ω unseen ½"]
    for text in texts:
        ids = tokenizer.encode(text, text).ids
        assert again.encode(text, text).ids == ids
        assert theirs(text, text)["input_ids"] == ids
        assert again.encode(text, text).offsets == tokenizer.encode(text, text).offsets
    assert again.fingerprint == tokenizer.fingerprint
    roles = tokenizer.roles
    if algorithm == "gpt2-bpe":
        assert (roles.cls, roles.sep, roles.mask) == ("<s>", "</s>", "<mask>")
        assert tokenizer.pad_id == 1
        assert tokenizer.template.segments == 1
        assert [tokenizer.pieces[id] for id in tokenizer.encode_plain(["a king"])[0]][-1] == "Ġking"
        plain = tmp_path / "plain"
        plain.mkdir()
        for name in ("vocab.json", "merges.txt"):
            (plain / name).write_bytes((tmp_path / name).read_bytes())
        own = transformers.RobertaTokenizerFast.from_pretrained(plain)
        assert own(texts[0])["input_ids"] == tokenizer.encode(texts[0]).ids
        return
    assert (roles.cls, roles.sep, roles.mask) == ("[CLS]", "[SEP]", "[MASK]")
    assert tokenizer.template.segments == 2
    assert isinstance(tokenizer.template, Template)
    model = sentencepiece.SentencePieceProcessor(str(tmp_path / "spiece.model"))
    sure = texts[0].lower() if lowercase else texts[0]
    assert model.encode(sure) == tokenizer.encode_plain([texts[0]])[0]
    own = transformers.AlbertTokenizerFast.from_pretrained(
        tmp_path, do_lower_case=lowercase, keep_accents=not lowercase
    )
    assert own(texts[0])["input_ids"] == tokenizer.encode(texts[0]).ids


def test_sizes_that_the_text_does_not_have() -> None:
    with pytest.raises(ConfigError, match=r"size 5,000 .* value <= (\d+)") as caught:
        learn_vocabulary(LINES, algorithm="unigram", size=5_000)
    best = int(re.findall(r"<= (\d+)", str(caught.value))[0])
    assert learn_vocabulary(LINES, algorithm="unigram", size=best).vocab_size == best
    with pytest.raises(ConfigError, match=r"size 12 .*required_chars"):
        learn_vocabulary(LINES, algorithm="unigram", size=12)


def test_coverage_and_bytes() -> None:
    lines = [*LINES, "one ☃ only"]
    few = learn_vocabulary(lines, algorithm="unigram", size=80, coverage=0.99)
    whole = learn_vocabulary(lines, algorithm="unigram", size=100, coverage=1.0)
    assert few.unk_id in few.encode_plain(["☃"])[0]
    assert whole.unk_id not in whole.encode_plain(["☃"])[0]
    with_bytes = learn_vocabulary(lines, algorithm="unigram", size=360, byte_fallback=True)
    assert with_bytes.unk_id not in with_bytes.encode_plain(["Ω"])[0]
    assert "<0xCE>" in with_bytes.pieces


def test_long_lines_are_learned_from() -> None:
    """By default the package leaves out those of more than 4,192 bytes, and says so to nobody."""
    line = " ".join(LINES)
    assert len(line) > 4_192
    one = learn_vocabulary([line], algorithm="unigram", size=100)
    assert one.vocab_size == 100
    assert one.unk_id not in one.encode_plain([line])[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "unigram", "alphabet": 50}, "alphabet is 50, which the algorithm unigram"),
        ({"algorithm": "unigram", "normalization": "bert"}, "normalization is bert, which"),
        ({"algorithm": "unigram", "score": "ratio"}, "score is ratio, which the algorithm unigram"),
        ({"algorithm": "gpt2-bpe"}, "keeps case; give --lowercase false"),
        ({"algorithm": "gpt2-bpe", "lowercase": False, "unused": 2}, "unused is 2, which"),
        ({"byte_fallback": True}, "byte_fallback is True, which the algorithm wordpiece"),
        ({"algorithm": "unigram", "coverage": 0.0}, "coverage is 0.0; it must be above 0"),
    ],
)
def test_options_of_other_algorithms_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LearningOptions(**options)


def test_no_text() -> None:
    for settings in SETTINGS.values():
        with pytest.raises(BothwaysError, match="no words"):
            learn_vocabulary(["  ", ""], **settings)


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_from_text_to_predictions(
    algorithm: str,
    shared_data: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Learn, encode, pre-train a few steps, fill in, fine-tune, in a family that takes them."""
    with lzma.open(shared_data("text_en/classics-00.txt.xz"), "rt", encoding="utf-8") as book:
        text = tmp_path / "text.txt"
        text.write_text("".join(line for line, _ in zip(book, range(600), strict=False)))
    vocabulary, corpus, folder = tmp_path / "vocabulary", tmp_path / "corpus", tmp_path / "run"
    family = {"unigram": "albert", "gpt2-bpe": "roberta"}[algorithm]
    settings = {**SETTINGS[algorithm], "size": 500}
    options = [f"--{name}={str(value).lower()}" for name, value in settings.items()]
    assert run("vocab", "--files", text, "--out", vocabulary, *options) == 0
    assert run("corpus", "--files", text, "--tokenizer", vocabulary, "--out", corpus) == 0
    shape = ["--layers", 1, "--hidden", 16, "--heads", 2]
    pairs = ["--pairs-kind", "full"] if family == "roberta" else []
    phases = "[{length: 32, batch: 4, micro_batch: 4}]"
    clock = ["--steps", 3, "--phases", phases, "--evaluate-every", 3, "--precision", "fp32"]
    where = ["--corpus", corpus, "--run", folder, "--family", family]
    assert run("pretrain", *where, *shape, *clock, *pairs) == 0
    config = json.loads((folder / "model" / "config.json").read_text())
    assert config["model_type"] == family
    capsys.readouterr()
    mask = Tokenizer.from_folder(folder / "model").roles.mask
    assert run("fill-mask", folder / "model", f"He went to the {mask}.") == 0
    assert capsys.readouterr().out.count("He went to the") == 6
    rows = [f"the {('dog', 'cat')[n % 2]} {n}\t{('yes', 'no')[n % 2]}" for n in range(12)]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    files = ["--train", tmp_path / "train.tsv", "--dev", tmp_path / "train.tsv"]
    tuned = ["--model", folder / "model", "--run", tmp_path / "tuned", "--seeds", 0, "--epochs", 1]
    assert run("finetune", *tuned, *files) == 0
    assert run("predict", tmp_path / "tuned" / "seed-0" / "model", "the dog") == 0
