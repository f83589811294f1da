"""Parts that are made ahead, in a thread."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from bothways.api.model import load
from bothways.model.folder import save_model
from bothways.runtime.batching import ahead, text_parts
from bothways.runtime.onnx_engine import OnnxEngine
from model_examples import small_bert, small_tokenizer


def test_the_next_part_is_made_while_one_is_used() -> None:
    made = {part: threading.Event() for part in range(3)}
    threads = set()

    def make(part: int) -> int:
        threads.add(threading.current_thread())
        made[part].set()
        return part * part

    for part, result in enumerate(ahead(range(3), make)):
        assert result == part * part
        if part < 2:
            assert made[part + 1].wait(10), "nothing else lets the thread go on"
        if part == 0:
            assert not made[2].is_set(), "one part ahead, no more: memory is bounded"
    assert len(threads) == 1
    assert threading.current_thread() not in threads


def test_a_single_part_needs_no_thread() -> None:
    assert list(ahead(["w"], lambda _: threading.current_thread())) == [threading.current_thread()]


def test_what_cannot_be_made_is_an_error_of_the_caller() -> None:
    def make(part: int) -> int:
        return 1 // part

    found = ahead([1, 0, 1], make)
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_parts_are_all_texts() -> None:
    assert text_parts([]) == [slice(0, 0)]
    texts = [str(n) for n in range(2500)]
    assert [text for part in text_parts(texts) for text in texts[part]] == texts
    assert text_parts(texts[:512]) == [slice(0, 512)], "few are sorted together"
    assert [len(texts[:513][part]) for part in text_parts(texts[:513])] == [128, 256, 129]


@pytest.mark.parametrize("pair", [False, True])
def test_labels_of_many_texts(pair: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"kind": "classification", "labels": ["a", "b", "c"]}
    save_model(tmp_path, small_bert(classes=3), small_tokenizer(97), about)
    model = load(tmp_path)
    texts = [" ".join(f"w{n % 9}" for n in range(1 + at * 7 % 50)) for at in range(11)]
    second = texts[::-1] if pair else None
    whole = model.predict(texts, second)
    monkeypatch.setattr("bothways.runtime.batching._TOGETHER", 4)
    parts = model.predict(texts, second)
    assert parts.labels == whole.labels
    np.testing.assert_allclose(parts.values, whole.values, atol=1e-6)
    assert (parts.cut, parts.several) == (whole.cut, whole.several)
    assert parts.cut > 0


def test_batches_are_as_large_as_suits_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, small_bert(classes=3), small_tokenizer(97), {"kind": "classification"})
    model = load(tmp_path, engine="onnxruntime")
    texts = [" ".join(f"w{n % 9}" for n in range(1 + at * 7 % 20)) for at in range(11)]
    whole, vectors = model.predict(texts).values, model.embed(texts)
    seen: list[int] = []
    compute = OnnxEngine.compute
    monkeypatch.setattr(OnnxEngine, "batch_tokens", 30)
    monkeypatch.setattr(
        OnnxEngine, "compute", lambda engine, batch, *args, **kwargs: (
            seen.append(int(batch.bounds[-1])) or compute(engine, batch, *args, **kwargs)
        ),
    )  # fmt: skip
    np.testing.assert_allclose(model.predict(texts).values, whole, atol=1e-6)
    np.testing.assert_allclose(model.embed(texts), vectors, atol=1e-6)
    assert len(seen) > 6
    assert max(seen) <= 30
