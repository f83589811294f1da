"""The choice of a device, and steps that nobody waits for.

No GPU is needed: what a GPU does is done on the CPU, or on the meta device, where tensors have no
values, so that reading one on the host is an error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from bothways.api.model import load
from bothways.errors import ConfigError, RunError
from bothways.model import device as devices
from bothways.model import encoder
from bothways.model.batch import PretrainingBatch, TaskInputs
from bothways.model.device import (
    CPU,
    Peak,
    choose_device,
    choose_precision,
    describe_kernels,
    find_peak,
    matrix_rate,
    peak_memory_note,
)
from bothways.model.flops import training_cost
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.objectives.labelled import LabelledExamples
from bothways.objectives.masked import MaskedLM
from bothways.pretraining.batches import prefetch
from bothways.pretraining.evaluation import measure
from bothways.pretraining.record import Utilization
from bothways.tasks.examples import Examples
from bothways.training import trainer as trainer_module
from bothways.training.fit import run_ahead
from bothways.training.optimizer import Optimizer
from bothways.training.options import OptimizerOptions
from bothways.training.trainer import Trainer, step_loss
from model_examples import small_bert, small_tokenizer
from pretraining_examples import (
    bert_loss,
    memory_store,
    pair_batches,
    random_documents,
    small_model,
)

BATCHES = pair_batches(
    memory_store(random_documents(np.random.default_rng(4), 30)), batch=8, micro_batch=4
)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """A machine with two cards; the devices that were made the current one."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return current


def test_without_a_gpu() -> None:
    found = choose_device("auto")
    assert (found.torch, found.name) == (CPU, "cpu")
    assert found.reason.startswith("cpu: torch sees no GPU (")
    assert choose_device("cpu").reason == "cpu: requested"
    with pytest.raises(ConfigError, match=r"device is cuda, but torch sees no GPU: .*--device cpu"):
        choose_device("cuda")


@pytest.mark.parametrize(("wanted", "why"), [("auto", "torch sees it"), ("cuda", "requested")])
def test_with_a_gpu(card: list[torch.device], wanted: Any, why: str) -> None:
    found = choose_device(wanted)
    assert found.torch == torch.device("cuda", 0)
    assert found.name == "NVIDIA H100 80GB HBM3"
    assert found.reason == f"NVIDIA H100 80GB HBM3: {why}"
    assert card == [found.torch]
    assert choose_device("cpu").torch == CPU


def test_each_process_takes_its_own_card(
    card: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("auto").torch == torch.device("cuda", 1)
    assert card == [torch.device("cuda", 1)]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ConfigError, match=r"process 2 .* sees 2.*nproc_per_node"):
        choose_device("auto")


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", 181e12),
    ],
)
def test_peak_of_a_card_that_is_known(
    name: str, flops: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    found = find_peak(torch.device("cuda", 0), torch.bfloat16)
    assert found.flops == flops
    assert found.source.startswith("data sheet")


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A10G",
        "NVIDIA RTX A3000",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
    ],
)
def test_peak_is_measured_elsewhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(devices, "matrix_rate", lambda *_: 1e12)
    for dtype in (torch.bfloat16, torch.float32):
        assert find_peak(torch.device("cuda", 0), dtype).flops == 1e12
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 PCIe")
    assert find_peak(torch.device("cuda", 0), torch.float32).flops == 1e12


def test_the_rate_of_matrix_products() -> None:
    assert matrix_rate(torch.float32) > 1e8


def test_what_is_said_of_attention_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config, gpu = small_model().config, torch.device("cuda", 0)
    monkeypatch.setattr("bothways.model.kernels.varlen._capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    for first in (True, False):
        monkeypatch.setattr("bothways.model.device.is_first_use", lambda first=first: first)
        assert ("compiled" in describe_kernels(config, CPU, torch.bfloat16)) == first
    assert "flat batches" in describe_kernels(config, gpu, torch.bfloat16)
    assert "padded tiles" in describe_kernels(config, gpu, torch.float32)
    assert "plain kernels" in describe_kernels(config, gpu, torch.bfloat16, fast=False)
    assert peak_memory_note(CPU) == ""
    monkeypatch.setattr("bothways.model.device.why_not_compiled", lambda: "no Numba")
    assert "slower (no Numba)" in describe_kernels(config, CPU, torch.float32)
    assert describe_kernels(config, CPU, torch.float32, fast=False) == ""


@pytest.mark.parametrize(("native", "name"), [(True, "bf16"), (False, "fp32")])
def test_precision_on_a_gpu(native: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: native)
    choice = choose_precision("auto", torch.device("cuda", 0))
    assert choice.name == name
    assert choice.reason.startswith(f"{name}: this GPU ")


# ------------------------------------------------------------------------ steps nobody waits for


def trainer(model: EncoderModel, *, waits: bool) -> Trainer[PretrainingBatch]:
    made: Trainer[PretrainingBatch] = Trainer(
        model, OptimizerOptions(lr=1e-2), total_steps=20, seed=3, dtype=torch.float32
    )
    made._checks_every_step = waits
    return made


def test_not_waiting_gives_the_same_weights_and_numbers() -> None:
    models = [small_model(dropout=0.1) for _ in range(2)]
    waiting, other = (trainer(m, waits=w) for m, w in zip(models, (True, False), strict=True))
    for step in range(4):
        parts = BATCHES.micro_batches(step)
        now = waiting.step(step, parts, bert_loss(parts))
        later = other.step(step, parts, bert_loss(parts))
        assert isinstance(later["mlm_loss"], torch.Tensor)
        assert {name: float(value) for name, value in later.items()} == now
        other.check()
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


def test_an_update_that_is_not_finite_is_left_out_and_told_later() -> None:
    models = [small_model() for _ in range(2)]
    for model in models:
        model.shared.fast = False  # a GPU's optimizer is the library's
    one, other = (trainer(model, waits=False) for model in models)

    def broken(model: EncoderModel, part: PretrainingBatch, dtype: torch.dtype) -> Any:
        value, stats = bert_loss([part])(model, part, dtype)
        return value * float("nan"), stats

    for step, bad in enumerate((False, True, True, False)):
        parts = BATCHES.micro_batches(step)
        one.step(step, parts, broken if bad else bert_loss(parts))
        if not bad:
            other.step(step, parts, bert_loss(parts))
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))
    with pytest.raises(RunError, match=r"step 2: the gradient is not finite.*lr"):
        one.check()
    one.check()  # told once
    other.check()


@pytest.fixture
def meta(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The meta device, with an optimizer that takes it and the kernels for flat batches."""
    make = trainer_module.make_optimizer

    def without_kernel(model: EncoderModel, options: OptimizerOptions, **others: Any) -> Optimizer:
        optimizer = make(model, options, **others)
        optimizer.step = lambda *_: None  # type: ignore[method-assign, assignment]
        return optimizer

    monkeypatch.setattr(trainer_module, "make_optimizer", without_kernel)
    return torch.device("meta")


@pytest.mark.parametrize("flat", [True, False])
def test_nothing_is_read_on_the_host_within_a_step(
    meta: torch.device, flat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if flat:
        monkeypatch.setattr(encoder, "why_not_varlen", lambda *_: None)
    model = small_model(dropout=0.1).to(meta)
    made: Trainer[PretrainingBatch] = Trainer(
        model, OptimizerOptions(), total_steps=20, seed=3, dtype=torch.bfloat16
    )
    assert not made._checks_every_step
    parts = [part.to(meta) for part in BATCHES.micro_batches(0)]
    stats = made.step(0, parts, bert_loss(parts))
    assert all(v.is_meta for k, v in stats.items() if isinstance(v, torch.Tensor)), stats
    with pytest.raises((RuntimeError, NotImplementedError)):
        made.check()  # which is where one waits


@pytest.mark.parametrize("kind", ["class", "score", "place"])
def test_nothing_is_read_on_the_host_while_fine_tuning(
    meta: torch.device, kind: Literal["class", "score", "place"]
) -> None:
    every = kind == "place"
    examples = Examples.of_sequences(
        np.arange(5, 35, dtype=np.int32),
        np.zeros(30, np.int8),
        np.array([0, 9, 17, 30]),
        read_positions=np.arange(30) if every else None,
    )
    targets = {
        "class": np.array([0, 1, 0]),
        "score": np.array([0.5, 1.0, 2.0], np.float32),
        "place": np.array([[1, 2], [0, 3], [4, 4]]),
    }
    examples = examples.with_targets(targets[kind])
    model = small_model(dropout=0.1)
    if every:
        model.add_head("span", 0)
    else:
        model.add_head("classifier", 0, outputs=1 if kind == "score" else 2)
    made: Trainer[TaskInputs] = Trainer(
        model.to(meta), OptimizerOptions(), total_steps=20, seed=3, dtype=torch.bfloat16
    )
    batch = TaskInputs.of(examples.batch(np.array([2, 0]), max_positions=64))
    assert batch.reads_all == every
    moved = [batch.to(meta)]
    made.step(0, moved, step_loss(moved, LabelledExamples(kind)))


def test_moved_batches_are_the_same() -> None:
    model = small_model()
    batches = BATCHES.first(6)
    moved = [batch.to("cpu") for batch in batches]
    one, two = (measure(model, own, torch.float32, MaskedLM()) for own in (batches, moved))
    assert one == two
    assert moved[0].precomputed is not None
    assert torch.equal(moved[0].precomputed.positions, batches[0].selected.positions)


def test_prefetching_moves_batches_in_the_thread() -> None:
    threads = []

    class Watched:
        def micro_batches(self, step: int, share: slice) -> list[PretrainingBatch]:
            threads.append(threading.current_thread())
            return BATCHES.micro_batches(step, share)

    (parts,) = prefetch(Watched(), range(1), device=torch.device("meta"))  # type: ignore[arg-type]
    assert threads[0] is not threading.main_thread()
    assert all(part.inputs.tokens.is_meta and part.precomputed is not None for part in parts)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_running_ahead_keeps_the_order(ahead: int) -> None:
    assert list(run_ahead(lambda n: n * n, range(7), ahead=ahead, device=CPU)) == [
        n * n for n in range(7)
    ]

    def fail(n: int) -> int:
        if n == 3:
            raise RunError("three")
        return n

    found: Iterator[int] = run_ahead(fail, range(7), ahead=ahead, device=CPU)
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RunError, match="three"):
        next(found)


def test_utilization_is_needed_operations_over_the_peak() -> None:
    model = small_model()
    meter = Utilization(model, MaskedLM(), torch.float32)
    parts = BATCHES.micro_batches(0)
    meter.add(parts)
    assert meter.close(1000.0) == {}, "nothing on a CPU"
    meter.peak = Peak(2e9, "given")
    meter.add(parts)
    meter.add(parts)
    sequences = sum(p.inputs.sequences for p in parts)
    cost = training_cost(
        model.config,
        length=round(sum(int(p.inputs.bounds[-1]) for p in parts) / sequences),
        targets=sum(p.masked.count for p in parts) / sequences,
    )
    assert meter.close(1000.0) == {"mfu": pytest.approx(1000 * cost.matrix / 2e9)}
    assert meter.close(1000.0) == {}, "a window without steps"


def test_a_model_is_loaded_where_it_is_asked_for(tmp_path: Path) -> None:
    save_model(tmp_path / "m", small_bert(), small_tokenizer(97))
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        load(tmp_path / "m", device="cuda")
