"""Training steps beside transformers: what is compared, and that it is the same on both sides."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bothways.batch import IGNORE
from bothways.corpus.store import TokenStore
from bothways.experiments import bench
from bothways.experiments.bench import (
    _arguments,
    bench_train,
    full_batches,
    padded,
    real_batches,
    real_tokens,
)
from bothways.experiments.options import BenchTrainConfig
from bothways.families.config import ModelConfig
from bothways.families.options import SizeOptions
from bothways.model.device import Peak
from bothways.model.flops import training_cost
from bothways.objectives.replaced import ReplacedTokens, generator_shape

SMALL: dict[str, Any] = {
    "size": "tiny", "batch": 2, "length": 16, "vocab_size": 128, "rounds": 2, "threads": 1,
}  # fmt: skip


def test_a_padded_batch_holds_the_flat_ones_tokens_and_targets(tiny_corpus: Path) -> None:
    store = TokenStore.open(tiny_corpus)
    for (part,) in (
        *full_batches(100, batch=3, length=12, count=1),
        *real_batches(store, batch=5, length=24, count=2),
    ):
        other = padded(part)
        real = other["attention_mask"].bool()
        total = int(part.inputs.bounds[-1])
        assert torch.equal(other["input_ids"][real], part.inputs.tokens[:total])
        assert torch.equal(other["token_type_ids"][real], part.inputs.segments[:total])
        assert real.sum(1).tolist() == part.inputs.lengths.tolist()
        labels = other["labels"][real]
        count = part.masked.count
        assert (labels != IGNORE).sum() == (other["labels"] != IGNORE).sum() == count
        assert torch.equal(labels[part.masked.positions[:count]], part.masked.ids[:count])


def test_full_batches_mask_as_many_as_pre_training_would() -> None:
    ((part,),) = full_batches(100, batch=4, length=128, count=1)
    assert part.masked.count == 4 * 20
    assert real_tokens([part]) == 4 * 128
    assert not set(part.masked.positions[:80].tolist()) & set(part.inputs.bounds.tolist())


@pytest.mark.slow
def test_bench_times_each_contender_and_writes_every_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bench.json"
    names = ("bothways", "bothways plain", "transformers bf16")
    bench_train(BenchTrainConfig(**SMALL, contenders=names, out=str(out), memory=True))
    record = json.loads(out.read_text())
    assert [r["name"] for r in record["results"]] == list(names)
    assert all(len(r["seconds"]) == 2 and r["peak_mib"] > 0 for r in record["results"])
    assert record["results"][0]["faster"] == 1
    assert "transformers" in record["versions"]
    assert (record["device"], record["threads"]) == ("cpu", 1)
    assert record["precision"] in ("bf16", "fp32")
    assert record["peak_from"].keys() == record["matrix_flops_per_second"].keys()
    assert record["real_tokens_a_step"] == 2 * 16
    assert record["real_token_share"] == 1
    assert "transformers bf16" in capsys.readouterr().out


def test_ratios_are_of_rounds_and_shares_of_a_contenders_own_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peaks = {torch.float32: 1e9, torch.bfloat16: 4e9}
    names = ("bothways", "transformers fp32")
    seconds = {names[0]: [1.0, 1.0], names[1]: [2.0, 4.0]}
    monkeypatch.setattr(bench, "_time", lambda *_: seconds)
    monkeypatch.setattr(bench, "find_peak", lambda _, dtype: Peak(peaks[dtype], "here"))
    ours, theirs = bench_train(BenchTrainConfig(**SMALL, precision="bf16", contenders=names))
    assert (ours.faster, theirs.faster) == (1, 3)
    assert ours.tokens_per_second == 2 * 16
    assert theirs.share_of_peak == pytest.approx(4 * 12 / 32 * ours.share_of_peak)


def test_the_peer_is_given_no_mask_that_hides_nothing(tiny_corpus: Path) -> None:
    ((full,),) = full_batches(100, batch=3, length=12, count=1)
    ((unequal,),) = real_batches(TokenStore.open(tiny_corpus), batch=5, length=24, count=1)
    for part, masked in ((full, False), (unequal, True)):
        given = _arguments(padded(part), torch.device("cpu"))
        assert ("attention_mask" in given) == masked
        assert set(padded(part)) - set(given) <= {"attention_mask"}


def test_bench_on_a_corpus_counts_real_tokens(
    tiny_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (result,) = bench_train(
        BenchTrainConfig(
            **{**SMALL, "length": 24}, corpus=str(tiny_corpus), contenders=("bothways",)
        )
    )
    assert result.tokens_per_second > 0
    assert "tokens per step" in capsys.readouterr().out


def test_padding_counts_neither_as_tokens_nor_as_their_share(
    tiny_corpus: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bench.json"
    words = {**SMALL, "length": 24, "batch": 5}
    bench_train(
        BenchTrainConfig(**words, corpus=str(tiny_corpus), contenders=("bothways",), out=str(out)),
        say=lambda _: None,
    )
    record = json.loads(out.read_text())
    store = TokenStore.open(tiny_corpus)
    steps = [part for step in real_batches(store, batch=5, length=24, count=4) for part in step]
    rows = [padded(part)["attention_mask"] for part in steps]
    real, size = sum(int(row.sum()) for row in rows), sum(row.numel() for row in rows)
    assert real < size
    assert record["real_tokens_a_step"] == real / len(steps)
    assert record["real_token_share"] == pytest.approx(real / size)


def test_contenders_take_turns_on_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a slower spell of the machine meets all of them, and no batch is timed as the first
    of its shape."""
    order: list[tuple[str, int]] = []

    def make_step(name: str, *_: Any) -> Any:
        return lambda number: order.append((name, number % bench.BATCHES))

    monkeypatch.setattr(bench, "make_step", make_step)
    names = ("bothways", "bothways plain")
    bench_train(BenchTrainConfig(**{**SMALL, "rounds": 5}, contenders=names), say=lambda _: None)
    warm_up = [(name, batch) for name in names for batch in range(4)]
    # Of each contender's two steps in a round the second is timed.
    rounds = [(name, batch) for i in range(5) for name in names for batch in ((i + 3) % 4, i % 4)]
    assert order == warm_up + rounds


def test_a_rounds_rate_counts_the_tokens_of_its_own_batch(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "bench.json"
    monkeypatch.setattr(bench, "_time", lambda *_: {"bothways": [1.0, 2.0, 4.0]})
    words = {**SMALL, "length": 48, "batch": 7, "rounds": 3}
    (result,) = bench_train(
        BenchTrainConfig(**words, corpus=str(tiny_corpus), contenders=("bothways",), out=str(out)),
        say=lambda _: None,
    )
    steps = real_batches(TokenStore.open(tiny_corpus), batch=7, length=48, count=4)
    tokens = [real_tokens(step) for step in steps][:3]
    assert len(set(tokens)) == 3
    assert json.loads(out.read_text())["real_tokens_a_step_by_round"] == tokens
    assert result.tokens_per_second == statistics.median([tokens[0], tokens[1] / 2, tokens[2] / 4])


def test_operations_of_a_step_by_hand() -> None:
    config = ModelConfig(vocab_size=64, layers=1, hidden=8, heads=2, intermediate=32)
    cost = training_cost(config, length=10, targets=2)
    projections, feed_forward, attention = 2 * 4 * 8 * 8, 2 * 2 * 8 * 32, 2 * 2 * 10 * 8
    head, pooler = 2 * 8 * 8 + 2 * 8 * 64, 2 * 8 * 8
    whole = projections + feed_forward + attention + head + pooler / 10
    assert cost.whole == pytest.approx(3 * whole)
    read = 0.3  # two targets and [CLS] of ten
    most = 2 * 2 * 8 * 8 + read * (2 * 2 * 8 * 8 + feed_forward + attention)
    assert cost.matrix == pytest.approx(3 * (most + 0.2 * head + pooler / 10))


def test_replaced_tokens_cost_the_generator_and_all_tokens_of_the_model() -> None:
    shape = ModelConfig(vocab_size=64, layers=2, hidden=8, heads=2, intermediate=32, pooler=False)
    cost = ReplacedTokens(size=0.5).operations(shape, 10, 2)
    generator = training_cost(generator_shape(shape, size=0.5), length=10, targets=2)
    layer = 2 * 4 * 8 * 8 + 2 * 2 * 8 * 32 + 2 * 2 * 10 * 8
    judged = 3 * (2 * layer + 2 * 8 * 8 + 2 * 8)  # no piece of the vocabulary is scored
    assert cost.matrix == pytest.approx(generator.matrix + judged)
    assert cost.whole == pytest.approx(generator.whole + judged)


def test_left_to_right_a_token_costs_what_it_sees() -> None:
    shape = ModelConfig(vocab_size=64, layers=2, hidden=8, heads=2, intermediate=32)
    both = training_cost(shape, length=10, targets=9)
    causal = training_cost(replace(shape, left_to_right=True), length=10, targets=9)
    scores = sum(2 * 2 * (10 - seen) * 8 for seen in range(1, 11)) / 10  # the later ones' share
    assert both.matrix - causal.matrix == pytest.approx(3 * 2 * scores)
    assert both.whole == pytest.approx(causal.whole)


def test_base_needs_about_six_operations_a_weight() -> None:
    """The usual estimate (Kaplan et al. 2020) leaves attention and the unread tokens out."""
    config = SizeOptions(size="base").resolve(30522)
    cost = training_cost(config, length=128, targets=20)
    weights = 12 * 12 * 768**2
    assert 5.4 < cost.matrix / weights < 7.5
    assert cost.whole > cost.matrix
