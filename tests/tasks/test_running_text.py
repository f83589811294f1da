"""Words of a sentence are read in its text: with the spaces between them, as transformers does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

import bothways as bw
from bothways.tasks.tagging import TaggingTask, encode_sentences
from bothways.tasks.words import split_words
from bothways.tokenization.pieces import BYTE_SPACE, META_SPACE
from bothways.tokenization.tokenizer import Tokenizer
from family_examples import EXAMPLES
from tagging_examples import COMPOSED, LETTERS, TOKENIZER, joined, tagging
from tokenizer_examples import LINES, MAKERS, write_json

TEXTS = [
    "Mary Ostrander lived in Norwich, (near the mat).",
    '  He said: "Don\'t 東京タワー 9,99!"  \n 12,000\tcats\u00a0and 😀 dogs...")',
    *LINES[:4],
]
WORDS = ["Mary", "Ostrander", "didn't", "sit", "😀", "東京", ".", ")", "12,000"]
PREFIXED = "roberta, prefixed"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of a tokenizer each, and RoBERTa's with a space before every text."""
    top = tmp_path_factory.mktemp("tokenizers")
    made = {name: make(top / name) for name, make in MAKERS.items()}
    made[PREFIXED] = MAKERS["roberta"](top / PREFIXED)
    settings = json.loads((made[PREFIXED] / "tokenizer_config.json").read_text())
    write_json(made[PREFIXED] / "tokenizer_config.json", {**settings, "add_prefix_space": True})
    return made


NAMES = [*MAKERS, PREFIXED]


@pytest.mark.parametrize("name", NAMES)
def test_running_text_has_the_pieces_of_transformers(name: str, folders: dict[str, Path]) -> None:
    tokenizer = Tokenizer.from_folder(folders[name])
    theirs = transformers.AutoTokenizer.from_pretrained(folders[name])
    sentences = [(text, split_words(tokenizer, text)) for text in TEXTS]
    encoded = encode_sentences(tokenizer, sentences, None, length=512)
    examples = encoded.examples
    for n, text in enumerate(TEXTS):
        ids = examples.tokens[slice(*examples.bounds[n : n + 2])].tolist()
        expected = tokenizer.encode(text)
        assert ids == expected.ids
        if name not in ("albert", "xlm-roberta"):  # whose rules transformers converts otherwise
            assert ids == theirs(text)["input_ids"]
        # A word is read at the first piece with a character of it, or at the mark before it.
        sentence, places = encoded.sentences[n], sentences[n][1]
        offsets = expected.offsets[1:-1]
        for word, piece in zip(sentence.word, sentence.first_piece, strict=True):
            start, end = places[word]
            over = [i for i, (a, b) in enumerate(offsets) if a < end and start < b]
            mark = tokenizer.piece(int(sentence.ids[piece])) in (BYTE_SPACE, META_SPACE)
            assert piece in (over[:1] if not mark else [over[0], over[0] - 1])


@pytest.mark.parametrize("name", NAMES)
def test_words_are_read_as_their_text_with_one_space_each(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_folder(folders[name])
    (tmp_path / "a.conll").write_text("".join(f"{word} B-X\n" for word in WORDS))
    rows = TaggingTask.read(tmp_path / "a.conll", tagging(), labelled=True)
    task = TaggingTask.define(tagging(), rows)
    examples = task.encode(tokenizer, rows, length=256).examples
    assert examples.tokens.tolist() == tokenizer.encode(" ".join(WORDS)).ids
    assert len(examples.read_positions) == len(WORDS)
    if name == PREFIXED:  # as run_ner.py of transformers arranges it
        theirs = transformers.AutoTokenizer.from_pretrained(folders[name], add_prefix_space=True)
        found = theirs(WORDS, is_split_into_words=True)
        assert examples.tokens.tolist() == found["input_ids"]
        first = [found.word_ids().index(n) for n in range(len(WORDS))]
        assert examples.read_positions.tolist() == first


def test_annotated_text_is_read_as_it_stands(folders: dict[str, Path], tmp_path: Path) -> None:
    """Also where words are characters, the spaces between which are no words."""
    text = 'He said:  "Mary!"'
    record = {"text": text, "spans": [{"start": 11, "end": 15, "label": "PER"}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    tokenizer = Tokenizer.from_folder(folders["roberta"])
    for spaces in (True, False):
        options = tagging(spaces=spaces)
        rows = TaggingTask.read(tmp_path / "a.jsonl", options, labelled=True)
        file = TaggingTask.define(options, rows).encode(tokenizer, rows, length=64)
        assert file.examples.tokens.tolist() == tokenizer.encode(text).ids


@pytest.mark.parametrize("name", ["roberta", PREFIXED, "modernbert"])
def test_tags_are_those_of_the_pipeline(
    name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[name])
    cls, sep, pad = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
    ids = {"pad_token_id": pad, "bos_token_id": cls, "eos_token_id": sep}
    if name == "modernbert":
        ids |= {"cls_token_id": cls, "sep_token_id": sep}
    labels = dict(enumerate(["NOUN", "VERB", "ADJ", "ADV", "X"]))
    model = EXAMPLES[name.split(",")[0]].model(
        "ForTokenClassification",
        **{"vocab_size": len(tokenizer), "max_position_embeddings": 256, "id2label": labels},
        **ids,
    )
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    pipe = transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, ignore_labels=[]
    )
    ours = bw.load(tmp_path / "model", engine="torch")
    for text in TEXTS:
        tokens = pipe(text)
        (found,) = ours.tag([text])
        for (start, _), tag, probability in zip(
            found.spans, found.tags, found.probabilities, strict=True
        ):
            first = next(t for t in tokens if t["end"] > start - (t["word"] == BYTE_SPACE))
            assert (tag, pytest.approx(probability, abs=1e-5)) == (first["entity"], first["score"])
    words, again = ours.tag([WORDS, " ".join(WORDS)])
    assert words.tags == tuple(
        again.tags[again.spans.index(span)] for span in words.spans if span in again.spans
    )


ODD = ["\u200b", "\u00a0", "\u3000", "a\u200bb", "e\u0301", "\u0301", "[MASK]", "[", "abc" * 40]


@pytest.mark.parametrize("tokenizer", [TOKENIZER, LETTERS, COMPOSED])
@given(sentence=st.lists(st.sampled_from(ODD) | st.text("ab서울東é.,'-\u00ad\u1112", min_size=1)))
def test_word_pieces_are_those_of_each_word_by_itself(
    tokenizer: Tokenizer, sentence: list[str]
) -> None:
    """Taggers with BERT's vocabulary do not see the spaces."""
    words = [word for word in sentence if word] or ["a"]
    encoded = encode_sentences(tokenizer, joined([words]), None, length=10_000)
    alone = [ids or [tokenizer.blank_id] for ids in tokenizer.encode_plain(words)]
    (found,) = encoded.sentences
    assert found.ids.tolist() == [id for ids in alone for id in ids]
    assert found.first_piece.tolist() == np.cumsum([0, *map(len, alone)])[:-1].tolist()
    assert encoded.unreadable == sum(not ids for ids in tokenizer.encode_plain(words))
    assert (encoded.skipped, found.word_end.tolist()) == (0, [*range(1, len(words) + 1)])


@pytest.mark.parametrize("name", ["roberta", "modernbert", "albert", "xlm-roberta"])
@pytest.mark.parametrize("spaces", [True, False])
@given(
    sentences=st.lists(
        st.lists(st.sampled_from([*ODD, *WORDS, " ", "  ", "\n"]), min_size=1, max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_every_sentence_is_read_in_order(
    name: str, spaces: bool, sentences: list[list[str]], folders: dict[str, Path]
) -> None:
    """Whatever its words are, invisible ones too; a word has one row at most."""
    tokenizer = Tokenizer.from_folder(folders[name])
    texts = joined(sentences, spaces=spaces)
    encoded = encode_sentences(tokenizer, texts, None, length=10_000, spaces=spaces)
    for (text, places), found in zip(texts, encoded.sentences, strict=True):
        assert len(found.word) > 0
        assert (np.diff(found.word) > 0).all()
        assert (np.diff(found.first_piece) > 0).all()
        assert (found.word < found.word_end).all()
        assert (found.word_end[:-1] <= found.word[1:]).all()
        assert found.word_end[-1] <= len(places)
        assert not spaces or len(found.word) == len(places) or any(c.isspace() for c in text)
        blank = found.ids == tokenizer.blank_id
        assert found.ids[~blank].tolist() == [
            i for i in tokenizer.encode_plain([text])[0] if i != tokenizer.blank_id
        ]
