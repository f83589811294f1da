"""A model folder in the hands of others: every class of transformers and sentence-transformers
gives the ids and vectors that we give, without a warning; and the folder says what it is."""

from __future__ import annotations

import json
import logging
import os
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch

import bothways as bw
from bothways.api.doctor import diagnose
from bothways.errors import ModelError
from bothways.families.config import ModelConfig
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.runtime.model_card import CARD, write_scores
from bothways.runtime.saving import save_loaded
from bothways.tokenization.learning import learn_vocabulary
from golden_texts import english, korean

transformers = pytest.importorskip("transformers")

KOREAN = [
    "할머니가 시장에서 빵을 샀다.",
    "서울에서 부산까지 기차로 세 시간이 걸린다!",
    "뷁, 없는 글자와 boat 그리고 2024년",
    "특별市 東京 가격은 5,000원",
]
ENGLISH = ["The baker sold a small boat, didn't she?", "Story 3 begins.", "UPPER and lower"]
ACCENTS = ["Café Ångström", "naïve façade"]
VOCABULARIES: dict[str, dict[str, Any]] = {
    "composed": {"normalization": "composed"},
    "composed, cased": {"normalization": "composed", "lowercase": False},
    "bert": {"normalization": "bert"},
    "bert, cased": {"normalization": "bert", "lowercase": False},
}
HEADS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "encoder": ({}, {}, "AutoModel"),
    "pretrained": ({"masked_lm": True, "next_sentence": True}, {}, "AutoModelForPreTraining"),
    "classes": (
        {"classes": 2},
        {"kind": "classification", "labels": ["좋음", "나쁨"], "task": "reviews", "length": 32},
        "AutoModelForSequenceClassification",
    ),
    "tags": (
        {"tags": 3},
        {"kind": "tagging", "labels": ["O", "B-장소", "I-장소"], "task": "places", "length": 32},
        "AutoModelForTokenClassification",
    ),
    "answers": (
        {"spans": True},
        {"kind": "spans", "task": "questions", "length": 32},
        "AutoModelForQuestionAnswering",
    ),
}


def decomposed(texts: list[str]) -> list[str]:
    return [unicodedata.normalize("NFD", text) for text in texts]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models by vocabulary and head."""
    root = tmp_path_factory.mktemp("folders")
    lines = [*korean().splitlines(), *english().splitlines(), *KOREAN]
    for name, options in VOCABULARIES.items():
        tokenizer = learn_vocabulary(lines, size=420, **options)
        shape = ModelConfig(
            vocab_size=tokenizer.vocab_size,
            positions=64,
            layers=2,
            hidden=32,
            heads=4,
            intermediate=48,
        )
        for kind, (heads, about, _) in HEADS.items():
            model = EncoderModel(shape, seed=3, **heads)
            save_model(root / name / kind, model, tokenizer, about)
    return root


@contextmanager
def silent() -> Iterator[None]:
    """Fails if anything is logged or warned of, by whatever library."""
    told: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(f"{record.name}: {record.getMessage()}")

    keep = Keep(logging.WARNING)
    loggers = [
        logging.getLogger(name) for name in ("", "transformers", "sentence_transformers", "torch")
    ]
    for logger in loggers:
        logger.addHandler(keep)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(keep)
    assert not told


# ---------------------------------------------------------------------------------------- tokenizer


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("name", ["AutoTokenizer", "BertTokenizer", "BertTokenizerFast"])
def test_every_class_gives_our_ids(vocabulary: str, name: str, folders: Path) -> None:
    folder = folders / vocabulary / "encoder"
    ours = bw.Tokenizer.from_folder(folder)
    texts = [*KOREAN, *ENGLISH]
    # `composed` composes what it reads, and uncased takes accents from Latin letters alone; of
    # BertTokenizer no setting does either, which the card says.
    if name == "AutoTokenizer" or vocabulary.startswith("bert"):
        texts += [*ACCENTS, *decomposed([*KOREAN, *ACCENTS])]
    else:
        assert "`BertTokenizer`" in (folder / CARD).read_text(encoding="utf-8")
    with silent():
        theirs = getattr(transformers, name).from_pretrained(folder)
        assert theirs(texts)["input_ids"] == [e.ids for e in ours.encode_batch(texts)]
        assert theirs(texts, texts[::-1])["input_ids"] == [
            e.ids for e in ours.encode_batch(texts, texts[::-1])
        ]
    syllables = [unicodedata.normalize("NFC", t) for t in ours.tokenize(KOREAN[0])]
    assert ("할머니가" in "".join(syllables).replace("##", "")) or vocabulary.startswith("bert")


def test_decomposed_korean_is_korean(folders: Path) -> None:
    ours = bw.Tokenizer.from_folder(folders / "composed" / "encoder")
    assert ours.encode_plain(KOREAN) == ours.encode_plain(decomposed(KOREAN))
    assert ours.unk_id not in ours.encode(KOREAN[0]).ids


# ------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("vocabulary", ["composed", "bert"])
@pytest.mark.parametrize("kind", HEADS)
def test_a_folder_opens_in_its_class_without_a_word(
    vocabulary: str, kind: str, folders: Path
) -> None:
    folder = bw.load(folders / vocabulary / kind).folder
    assert folder == folders / vocabulary / kind
    with silent():
        theirs = getattr(transformers, HEADS[kind][2]).from_pretrained(folder)
    assert theirs.dtype == torch.float32
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize("vocabulary", ["composed", "bert"])
def test_pipelines_give_our_labels_and_fillings(
    vocabulary: str, folders: Path, tmp_path: Path
) -> None:
    texts = KOREAN if vocabulary == "composed" else ENGLISH
    folder = folders / vocabulary / "classes"
    with silent():
        classify = transformers.pipeline("text-classification", model=str(folder))
        found = classify(texts)
    ours = bw.load(folder).predict(texts)
    assert [one["label"] for one in found] == ours.labels
    np.testing.assert_allclose([one["score"] for one in found], ours.values.max(1), atol=2e-6)

    out = tmp_path / "fills"
    bw.convert(folders / vocabulary / "pretrained", out, heads=("masked_lm",))
    masked = " ".join(texts[0].split()[:2]) + " [MASK]"
    with silent():
        fill = transformers.pipeline("fill-mask", model=str(out))
        theirs = [one["token_str"] for one in fill(masked)]
    (fillings,) = bw.load(out).fill_mask(masked)
    assert [one.piece.removeprefix("##") for one in fillings] == [
        t.removeprefix("##") for t in theirs
    ]


@pytest.mark.parametrize("vocabulary", ["composed", "bert"])
def test_tags_and_answers_are_ours(vocabulary: str, folders: Path) -> None:
    """The tag of a word is that of its first piece; an answer's ends are two outputs."""
    text = KOREAN[1] if vocabulary == "composed" else ENGLISH[0]
    folder = folders / vocabulary / "tags"
    ours = bw.load(folder).tag(text)
    with silent():
        tag = transformers.pipeline("token-classification", model=str(folder), ignore_labels=[])
        theirs = {one["start"]: one for one in tag(text)}
    for (start, _), label, probability in zip(
        ours.spans, ours.tags, ours.probabilities, strict=True
    ):
        if theirs[start]["entity"] == label:  # ours repairs I- without a B- before it
            assert theirs[start]["score"] == pytest.approx(probability, abs=2e-6)
        else:
            assert (theirs[start]["entity"][0], label[0]) == ("I", "B")

    question, context = text[:7], text
    folder = folders / vocabulary / "answers"
    model = bw.load(folder)
    batch = transformers.AutoTokenizer.from_pretrained(folder)(
        question, context, return_tensors="pt"
    )
    with silent():
        network = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    with torch.no_grad():
        found = network(**batch)
    encoding = model.tokenizer.encode(question, context)
    assert encoding.ids == batch["input_ids"][0].tolist()
    (best, *_) = model.answer(question, context)
    starts = {o[0]: i for i, o in enumerate(encoding.offsets) if encoding.segments[i] == 1}
    ends = {o[1]: i for i, o in enumerate(encoding.offsets) if encoding.segments[i] == 1}
    score = found.start_logits[0, starts[best.start]] + found.end_logits[0, ends[best.end]]
    highest = max(
        float(found.start_logits[0, i] + found.end_logits[0, j])
        for i in starts.values()
        for j in ends.values()
        if i <= j
    )
    assert float(score) == pytest.approx(highest, abs=1e-5)


@pytest.mark.parametrize("vocabulary", ["composed", "bert"])
def test_vectors_are_ours(vocabulary: str, folders: Path, tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    texts = [*KOREAN, *ENGLISH]
    for number, normalize in enumerate((False, True)):
        folder = tmp_path / str(number)
        source = folders / vocabulary / "pretrained"
        bw.convert(source, folder, heads=("none",))
        if normalize:
            loaded = load_model(folder)
            loaded.about = {"normalize": True, "pooling": "cls"}
            save_loaded(tmp_path / "normalized", loaded)
            folder = source = tmp_path / "normalized"
        ours = bw.load(source).embed(texts)
        with silent():
            theirs = st.SentenceTransformer(str(folder), device="cpu").encode(texts)
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
        with silent():
            model = transformers.AutoModel.from_pretrained(folder).eval()
            batch = transformers.AutoTokenizer.from_pretrained(folder)(
                texts, padding=True, return_tensors="pt"
            )
        if not normalize:
            with torch.no_grad():
                states = model(**batch).last_hidden_state
            kept = batch["attention_mask"][..., None]
            mean = (states * kept).sum(1) / kept.sum(1)
            np.testing.assert_allclose(ours, mean.numpy(), atol=2e-6)
        assert diagnose(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("language", ["ko", "en"])
def test_thousands_of_real_texts(
    language: str, shared_data: Callable[[str], Path], tmp_path: Path
) -> None:
    """Ids of every class, and vectors, of texts as people write them."""
    st = pytest.importorskip("sentence_transformers")
    name, column = {"ko": ("ko/nsmc/ratings_test.txt", 1), "en": ("glue/SST-2/train.tsv", 0)}[
        language
    ]
    rows = shared_data(name).read_text(encoding="utf-8").splitlines()[1:5001]
    texts = [text for row in rows if (text := row.split("\t")[column])]
    folder = tmp_path / "encoder"
    if language == "ko":
        tokenizer = learn_vocabulary(texts, size=4000)
        assert tokenizer.normalization == "composed"
        shape = ModelConfig(
            vocab_size=tokenizer.vocab_size, layers=2, hidden=64, heads=2, intermediate=256
        )
        save_model(folder, EncoderModel(shape, seed=1), tokenizer)
    else:
        bw.convert("mini-en", folder, heads=("none",))
    model = bw.load(folder)
    ours = [e.ids for e in model.tokenizer.encode_batch(texts)]
    for kind in ("AutoTokenizer", "BertTokenizer", "BertTokenizerFast"):
        with silent():
            theirs = getattr(transformers, kind).from_pretrained(folder)(texts)["input_ids"]
        different = [t for t, mine, other in zip(texts, ours, theirs, strict=True) if mine != other]
        if kind == "AutoTokenizer" or language == "en":
            assert not different, different[:3]
        else:  # accents of Latin letters, and what is not composed, as the card says
            assert len(different) <= 5
            assert all(t != unicodedata.normalize("NFD", t) for t in different)
    some = texts[:128]
    vectors = model.embed(some)
    with silent():
        encoder = st.SentenceTransformer(str(folder), device="cpu")
        np.testing.assert_allclose(vectors, encoder.encode(some), atol=5e-6)
        transformers.AutoModel.from_pretrained(folder)


def test_heads_that_a_model_has_not_are_refused(folders: Path, tmp_path: Path) -> None:
    source = folders / "bert" / "pretrained"
    with pytest.raises(ModelError, match="no tagger; it has masked_lm, next_sentence"):
        bw.convert(source, tmp_path / "out", heads=("tagger",))
    assert not (tmp_path / "out").exists()
    bw.convert(source, tmp_path / "out", heads=("masked_lm",))
    assert [*bw.load(tmp_path / "out").loaded.heads] == ["masked_lm"]


def test_mini_en_opens_in_float32() -> None:
    folder = bw.load("mini-en").folder
    with silent():
        theirs = transformers.AutoModelForPreTraining.from_pretrained(folder)
    assert theirs.dtype == torch.float32


# --------------------------------------------------------------------------------------------- card


def test_the_card_says_what_the_model_is_and_its_code_runs(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in HEADS:
        folder = folders / "composed" / kind
        card = (folder / CARD).read_text(encoding="utf-8")
        assert card.startswith("---\n# license: fill in")
        for part in ("## Data", "## Scores", "## Limits", "## Use", "## Licence"):
            assert part in card
        blocks = card.split("```python\n")[1:]
        assert len(blocks) == (3 if kind in ("encoder", "pretrained") else 2)
        for block in blocks:
            code = block.partition("```")[0].replace("FOLDER", str(folder))
            assert len(code.strip().splitlines()) <= 5
            exec(compile(code, kind, "exec"), {})
    assert "좋음" in (folders / "composed" / "classes" / CARD).read_text(encoding="utf-8")
    assert capsys.readouterr().out


def test_scores_are_put_into_a_card_that_nobody_changed(folders: Path, tmp_path: Path) -> None:
    loaded = load_model(folders / "bert" / "classes")
    folder = tmp_path / "model"
    save_loaded(folder, loaded)
    first = (folder / CARD).read_bytes()
    rows = [["", "accuracy"], ["mean", "0.9000"], ["standard deviation", "0.0100"]]
    write_scores(folder, rows, ["of three seeds"])
    text = (folder / CARD).read_text(encoding="utf-8")
    assert "| standard deviation | 0.0100 |" in text
    assert "## Limits" in text
    write_scores(folder, rows, ["of three seeds"])
    assert (folder / CARD).read_text(encoding="utf-8") == text
    assert diagnose(folder) == []
    save_loaded(folder, load_model(folder))
    assert (folder / CARD).read_bytes() == first, "a folder that is written anew has a new card"

    filled = text.replace("# license: fill in", "license: apache-2.0 #")
    (folder / CARD).write_text(filled, encoding="utf-8")
    write_scores(folder, [["", "accuracy"], ["mean", "0.1"]], [])
    assert (folder / CARD).read_text(encoding="utf-8") == filled
    assert diagnose(folder) == []
    assert load_model(folder).notes == []
