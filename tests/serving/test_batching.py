"""The queue before an engine: which sequences go together, and that nobody's answer depends on
it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.batch import Batch, collate
from bothways.errors import LengthError
from bothways.runtime.engine import Engine, layer_name
from bothways.serving.batching import TICKET, Batcher, Entry, Gate, Ticket, choose
from bothways.serving.refusals import RefusedError
from serving_examples import make_folders, offline, running

SEQUENCES = st.lists(st.tuples(st.integers(1, 40), st.sampled_from("ab")), min_size=1, max_size=30)


def entries(sequences: Sequence[tuple[int, str]]) -> list[Entry]:
    return [Entry(None, 0, length, kind) for length, kind in sequences]  # type: ignore[arg-type]


@given(SEQUENCES, st.integers(1, 120))
def test_a_batch_is_of_one_kind_and_within_its_budget(
    first: list[tuple[int, str]], budget: int
) -> None:
    waiting = entries(first)
    while waiting:
        chosen = choose(waiting, budget)
        assert chosen[0] is waiting[0], "so none waits for more batches than stand before it"
        assert {entry.kind for entry in chosen} == {waiting[0].kind}
        assert len(chosen) == 1 or max(one.length for one in chosen) * len(chosen) <= budget
        waiting = [entry for entry in waiting if entry not in chosen]


def test_the_oldest_goes_first_with_those_of_its_length() -> None:
    waiting = entries([(10, "a"), (40, "a"), (10, "a"), (11, "b"), (12, "a")])
    chosen = choose(waiting, 36)
    assert [entry.length for entry in chosen] == [10, 10, 12]


class Recording:
    """An engine that waits until it may, and remembers its batches."""

    name, precision = "recording", "fp32"

    def __init__(self, engine: Engine):
        self.engine, self.go, self.batches = engine, threading.Event(), list[int]()

    def working(self) -> Any:
        return self.engine.working()

    def compute(
        self, batch: Batch, heads: Mapping[str, Any] | None = None, layers: Sequence[int] = ()
    ) -> dict[str, Any]:
        self.go.wait(10)
        self.batches.append(batch.sequences)
        return self.engine.compute(batch, heads or {}, layers)


def batcher_of(engine: Recording, budget: int = 4096) -> Batcher:
    gate = Gate(2)
    return Batcher(engine, gate=gate, observe=lambda *_: None, budget=budget)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["classes", "several", "tags", "answers", "choice", "pretrained"])
def test_calls_that_share_batches_get_their_own_answers(tmp_path: Path, name: str) -> None:
    model = offline(make_folders(tmp_path, name)[name])
    plain = offline(str(tmp_path / name))
    engine = Recording(model.loaded.engine)
    batcher = batcher_of(engine)
    model.loaded.use(batcher)
    texts = [" ".join(f"w{(n * 7 + i) % 80 + 1}" for i in range(1 + n % 9)) for n in range(20)]

    def ask(model: Any, text: str) -> Any:
        if name in ("classes", "several"):
            return model.predict([text, "w1"]).values.tolist()
        if name == "tags":
            return model.tag(text)
        if name == "answers":
            return model.answer("w3 w4", f"{text} {text} " * 4, top=3)
        if name == "choice":
            return model.choose(text, ["w1", "w2 w3", text])
        return model.fill_mask(f"{text} [MASK]"), model.embed([text, "w7"]).tolist()

    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(ask, model, text) for text in texts]
        time.sleep(0.2)
        engine.go.set()
        found = [one.result(10) for one in asked]
    assert max(engine.batches) > 10
    assert found == [ask(plain, text) for text in texts]
    assert batcher.stop(5)


def test_one_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    model = offline(make_folders(tmp_path, "vectors")["vectors"])
    engine = Recording(model.loaded.engine)
    batcher = batcher_of(engine)
    layers = (model.loaded.config.layers,)
    rows = [[2, 5, 3], [2, 96, 3], [2, 5_000, 3]]  # the last has an id that there is not
    batches = [collate([row], [[0] * 3], max_positions=40) for row in rows]
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(batcher.compute, batch, {}, layers) for batch in batches]
        time.sleep(0.1)
        engine.go.set()
        for n in range(2):
            alone = model.loaded.engine.compute(batches[n], {}, layers)[layer_name(layers[0])]
            found = asked[n].result(10)[layer_name(layers[0])]
            np.testing.assert_array_equal(found[:3], alone[:3])
        with pytest.raises(Exception, match="5000"):
            asked[2].result(10)
    assert batcher.stop(5)


def test_a_batch_has_no_more_tokens_than_the_engine_is_fast_with(tmp_path: Path) -> None:
    engine = offline(make_folders(tmp_path, "vectors")["vectors"]).loaded.engine
    for budget, expected in ((4096, 512), (100, 100)):
        gate = Gate(2)
        batcher = Batcher(engine, gate=gate, observe=lambda *_: None, budget=budget)
        assert batcher.budget == expected
        assert batcher.stop(5)


@pytest.mark.parametrize("name", ["classes", "pretrained", "vectors"])
def test_how_fast_a_model_is_is_known_before_the_first_request(tmp_path: Path, name: str) -> None:
    folders = make_folders(tmp_path, name)
    with running(folders) as server:
        assert server.server.models[name].batcher.rate > 0


def test_tokens_are_counted_and_a_deadline_is_kept(tmp_path: Path) -> None:
    model = offline(make_folders(tmp_path, "vectors")["vectors"])
    engine = Recording(model.loaded.engine)
    batcher = batcher_of(engine, budget=12)
    batch = collate([[2, 5, 3]], [[0] * 3], max_positions=40)

    def ask(deadline: float) -> int:
        ticket = Ticket(time.monotonic() + deadline, 1)
        TICKET.set(ticket)
        batcher._gate.enter(ticket)
        batcher.compute(batch, layers=(1,))
        return ticket.tokens

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, 10)
        time.sleep(0.1)
        late = pool.submit(ask, 0.05)
        time.sleep(0.2)
        engine.go.set()
        assert first.result(5) == 3
        with pytest.raises(RefusedError, match="deadline passed"):
            late.result(5)
    assert engine.batches == [1]
    assert batcher.rate > 0
    assert batcher.stop(5)


def test_a_batcher_refuses_what_the_engine_refuses(tmp_path: Path) -> None:
    model = offline(make_folders(tmp_path, "vectors")["vectors"])
    engine = Recording(model.loaded.engine)
    engine.go.set()
    batcher = batcher_of(engine)
    with pytest.raises(LengthError):
        batcher.compute(collate([[5] * 50], [[0] * 50], max_positions=60), layers=(1,))
    assert batcher.stop(5)
