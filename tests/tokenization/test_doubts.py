"""A vocabulary that is not the model's, or not in its order, is noticed when it is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

import bothways as bw
from bothways.shipped import model_folder
from bothways.tokenization.doubts import doubts
from bothways.tokenization.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(200)]
HANGUL = [chr(0xAC00 + n) for n in range(200)]


def of(pieces: list[str], *, lowercase: bool = False) -> Tokenizer:
    return Tokenizer.from_pieces([*SPECIAL, *pieces], lowercase=lowercase)


def test_the_padding_piece_has_the_id_of_the_configuration() -> None:
    tokenizer = of(["Word", *WORDS])
    assert doubts(tokenizer, "m", pad=0) == doubts(tokenizer, "m") == []
    (found,) = doubts(tokenizer, "m", pad=3)
    assert found.startswith("m: config.json says that the padding piece has the id 3, in the vocab")
    assert "[PAD] has 0" in found


def test_a_template_that_puts_the_first_token_last(tmp_path: Path) -> None:
    of(["Word", *WORDS]).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    values = json.loads(path.read_text())
    cls, text, sep = values["post_processor"]["single"]
    values["post_processor"]["single"] = [text, sep, cls]
    path.write_text(json.dumps(values))
    (found,) = doubts(Tokenizer.from_folder(tmp_path), "m")
    assert "puts [CLS] behind other tokens ($A:0 [SEP]:0 [CLS]:0), and heads read" in found


def test_a_vocabulary_that_was_sorted() -> None:
    tokenizer = Tokenizer.from_pieces(sorted([*SPECIAL, "Word", *WORDS]), lowercase=False)
    (found,) = doubts(tokenizer, "m")
    assert "alphabetical order" in found


def test_bytes_in_their_order_are_no_sorted_vocabulary(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(BPE())  # as little as a byte-level vocabulary may be
    library.pre_tokenizer = ByteLevel()
    trainer = BpeTrainer(initial_alphabet=ByteLevel.alphabet(), special_tokens=SPECIAL)
    library.train_from_iterator(["ab"], trainer)
    library.save(str(tmp_path / "tokenizer.json"))
    found = doubts(Tokenizer.from_folder(tmp_path), "m")
    assert not any("alphabetical" in sentence for sentence in found)


@pytest.mark.parametrize(
    ("pieces", "lowercase", "doubtful"),
    [
        (WORDS, False, True),
        (WORDS, True, False),
        (["Word", *WORDS], False, False),
        ([*HANGUL[::-1], *WORDS[:100]], False, False),  # most have no case
        (WORDS[:50], False, False),  # too few to tell
    ],
    ids=["uncased", "lower-cased", "cased", "Hangul", "few"],
)
def test_text_that_is_read_cased_for_pieces_without_capitals(
    pieces: list[str], lowercase: bool, doubtful: bool
) -> None:
    found = doubts(of(pieces, lowercase=lowercase), "m")
    assert [("no piece has a capital" in one) for one in found] == [True] * doubtful


def test_loading_names_it_and_the_remedy_holds(tmp_path: Path) -> None:
    """The shipped model as another program might have left it: with settings of a cased one."""
    folder = tmp_path / "model"
    shutil.copytree(model_folder("mini-en"), folder)
    (folder / "bothways.json").unlink()
    settings = folder / "tokenizer_config.json"
    settings.write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": False}), encoding="utf-8"
    )
    model = bw.load(folder)
    (note,) = (one for one in model.loaded.notes if "capital" in one)
    assert '"tokenizer_class": "BertTokenizer" and "do_lower_case": true' in note
    assert model.tokenizer.encode("The").tokens[1:-1] == ["[UNK]"]
    settings.write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}), encoding="utf-8"
    )
    model = bw.load(folder)
    assert not [one for one in model.loaded.notes if "capital" in one]
    assert model.tokenizer.encode("The").tokens[1:-1] == ["the"]
