"""A vocabulary that is not the model's, or not in its order, is noticed when it is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

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
    assert '"do_lower_case": true' in note
    assert model.tokenizer.encode("The").tokens[1:-1] == ["[UNK]"]
    settings.write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}), encoding="utf-8"
    )
    model = bw.load(folder)
    assert not [one for one in model.loaded.notes if "capital" in one]
    assert model.tokenizer.encode("The").tokens[1:-1] == ["the"]
