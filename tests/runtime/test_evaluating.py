"""A model that predicts is as it was afterwards: after an error, and with several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

from bothways.api.model import Model
from bothways.errors import NonFiniteError
from bothways.finetuning import features, setup
from bothways.model import engine
from bothways.model.encoder import Encoder
from bothways.model.engine import TorchEngine, evaluating, fast_kernels, network_of
from bothways.model.model import EncoderModel
from bothways.objectives.masked import MaskedLM
from bothways.pretraining.evaluation import measure
from bothways.runtime.folder import load_model
from bothways.tasks.examples import encode_examples
from finetuning_examples import start_model
from model_examples import small_tokenizer
from pretraining_examples import memory_store, pair_batches, random_documents, small_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model(tmp_path_factory.mktemp("start"))


@pytest.mark.parametrize("held", [evaluating, fast_kernels])
def test_the_last_thread_to_leave_puts_the_model_back(held: Any) -> None:
    model = small_model().train()
    model.shared.fast = False
    steps = Barrier(2, timeout=30)

    def state() -> tuple[bool, bool, bool]:
        return model.training, model.encoder.training, model.shared.fast

    before, within = state(), []

    def first() -> None:
        with held(model):
            steps.wait()  # both are inside
            within.append(state())
        steps.wait()  # this one has left

    def second() -> None:
        with held(model):
            steps.wait()
            steps.wait()
            within.append(state())

    with ThreadPoolExecutor(2) as threads:
        for job in [threads.submit(first), threads.submit(second)]:
            job.result(timeout=60)
    changed = (False, False, False) if held is evaluating else (True, True, True)
    assert within == [changed, changed]
    assert state() == before
    assert model not in engine._HELD, "nothing is kept of a model that nobody uses"


def test_threads_that_predict_with_one_model(folder: Path) -> None:
    """A model in training: no prediction has dropout, and no thread ends that of another."""
    loaded = load_model(folder)
    model = Model(loaded)
    texts = [" ".join(f"w{i + j}" for j in range(6)) for i in range(8, 40)]
    expected = model.embed(texts)
    network_of(loaded).shared.dropout.reseed(1)
    network_of(loaded).train()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: model.embed(texts), range(16)))
    assert all(np.array_equal(vectors, expected) for vectors in found)
    assert all(module.training for module in network_of(loaded).modules())


def test_each_part_of_a_model_is_put_back_in_its_own_mode() -> None:
    model = small_model().train()
    model.encoder.eval()
    modes = [module.training for module in model.modules()]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == modes


def test_fillings_and_next_sentences_have_no_dropout(folder: Path) -> None:
    loaded = load_model(folder)
    model = Model(loaded)
    expected = model.fill_mask("w8 [MASK] w9"), model.next_sentence("w8 w9", "w10")
    network_of(loaded).train()
    assert (model.fill_mask("w8 [MASK] w9"), model.next_sentence("w8 w9", "w10")) == expected
    assert network_of(loaded).training


class BrokenError(Exception):
    pass


def broken(*_: Any, **__: Any) -> Any:
    raise BrokenError


def test_an_error_in_a_held_out_evaluation_puts_the_model_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = memory_store(random_documents(np.random.default_rng(0), 20))
    model = small_model().train()
    monkeypatch.setattr(EncoderModel, "compute", broken)
    with pytest.raises(BrokenError):
        measure(model, pair_batches(store).micro_batches(0), torch.float32, MaskedLM())
    assert model.training


def test_an_error_in_the_scores_of_a_training_puts_the_model_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_model().train()
    model.shared.fast = False
    monkeypatch.setattr(setup, "predict_outputs", broken)
    with pytest.raises(BrokenError):
        setup.measured_outputs(TorchEngine(model), None)  # type: ignore[arg-type]
    assert not model.shared.fast


def test_features_leave_the_encoder_in_its_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model().train()
    monkeypatch.setattr(Encoder, "hidden_states", broken)
    examples = encode_examples(small_tokenizer(97), ["w1 w2"], None, length=8)
    with pytest.raises(BrokenError):
        features._compute(np.zeros(0), model, examples, torch.float32)
    assert model.training


def test_damaged_weights_leave_the_mode(folder: Path) -> None:
    loaded = load_model(folder)
    with torch.no_grad():
        network_of(loaded).encoder.embeddings.tokens.weight.fill_(float("nan"))
    network_of(loaded).train()
    with pytest.raises(NonFiniteError):
        Model(loaded).embed(["w8"])
    assert network_of(loaded).training
