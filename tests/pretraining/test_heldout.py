"""Held-out text in bits per character, which compare models of different vocabularies."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bothways.corpus.store import TokenStore
from bothways.experiments.reproduce import steps
from bothways.experiments.reproduce.steps import (
    HeldOutOptions,
    measure_heldout,
    pieces_per_character,
)
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.objectives.masked import WORDS
from bothways.pretraining.evaluation import Score
from bothways.pretraining.options import PairOptions, PretrainConfig
from bothways.tokenization.pieces import SPECIAL_PIECES
from bothways.tokenization.tokenizer import Tokenizer
from pretraining_examples import memory_store, random_documents, small_model

TOKENIZER = Tokenizer.from_pieces([*SPECIAL_PIECES, "ab", "##c", "d"])


def test_characters_are_those_of_the_text() -> None:
    ids = np.array([TOKENIZER.id(piece) for piece in ("ab", "##c", "d")], dtype=np.uint16)
    store = TokenStore.from_arrays(ids, np.array([2, 1]), np.array([2]), TOKENIZER)
    assert pieces_per_character(store) == 3 / len(" abc d")


def test_what_is_measured_and_how_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = memory_store(random_documents(np.random.default_rng(0), 30))
    save_model(tmp_path / "model", small_model(), store.tokenizer)
    monkeypatch.setattr(steps, "TokenStore", SimpleNamespace(open=lambda *_: store))
    seen = {}

    def measure(_: EncoderModel, own: TokenStore, recipe: PretrainConfig, **asked: int) -> Any:
        seen.update(asked, store=own, objective=recipe.objective, pairs=recipe.pairs)
        return SimpleNamespace(
            words=Score(WORDS, 1.0, 0.25, 0.05, 3), perplexity=2.0, sequences=4, second=None
        )

    monkeypatch.setattr(steps, "measure_store", measure)
    objective, pairs = ("left_to_right",), PairOptions(kind="full")
    options = HeldOutOptions(str(tmp_path / "model"), "corpus", 20, 24, pairs, objective)
    scores = measure_heldout(options)
    assert seen == {
        "length": 24, "sequences": 20, "store": store, "objective": objective, "pairs": pairs
    }  # fmt: skip
    assert (scores["accuracy"], scores["baseline"], scores["perplexity"]) == (0.25, 0.05, 2.0)
    assert "pair_accuracy" not in scores


def test_loss_in_bits_of_each_character(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = memory_store(random_documents(np.random.default_rng(0), 30))
    save_model(tmp_path / "model", small_model(), store.tokenizer)
    opened = []
    fake = SimpleNamespace(open=lambda *part: (opened.append(part), store)[1])
    monkeypatch.setattr(steps, "TokenStore", fake)
    scores = measure_heldout(HeldOutOptions(str(tmp_path / "model"), "corpus", 20, 24))
    assert opened == [("corpus", "heldout")]
    in_bits = scores["loss"] / math.log(2)
    assert scores["bits_per_character"] == pytest.approx(in_bits * pieces_per_character(store))
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
