"""Runs of several processes for ``test_ranks.py``, each a command line in every process.

    python tests/training/ranks_jobs.py FOLDER CORPUS

Run as a program of its own: it imports everything once and forks the processes of each job, which a
program that has computed gradients cannot. What each process printed, its exit status, and what
:func:`watch` noted go to FOLDER/jobs.json; the run folders are in FOLDER.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from numba.core.registry import cpu_target
from torch.distributed import TCPStore
from torch.distributed.fsdp import fully_shard

from bothways import cli
from bothways.config.parsing import load_recipe
from bothways.errors import RunError
from bothways.families.config import ModelConfig
from bothways.model.batch import PretrainingBatch
from bothways.model.kernels import loops
from bothways.model.model import EncoderModel
from bothways.pretraining import clock
from bothways.pretraining import pretrain as pretraining
from bothways.pretraining.options import PretrainConfig
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training import monitor
from bothways.training import ranks as rank_module
from bothways.training.options import OptimizerOptions
from bothways.training.ranks import SINGLE_PROCESS, Ranks, process_group
from bothways.training.trainer import Trainer
from model_examples import BOTH_HEADS
from pretraining_examples import bert_loss, memory_store, pair_batches

_LOADED = fully_shard, loops


"""What every process would import again."""


Hook = Callable[[int, int], None]


"""Called after a step with the rank and the number of steps done."""


STEPS, STOP = 8, 4


RECIPE = """\
size: tiny
layers: 2
hidden: 16
heads: 2
intermediate: 32
positions: 64
init: primed
steps: %d
phases:
  - {length: 24, share: 0.75, batch: 12, micro_batch: 4}
  - {length: 32, share: 0.25, batch: 8, micro_batch: 4}
lr: 5e-3
warmup: 0.1
precision: fp32
threads: 1
evaluate_every: 4
evaluate_sequences: 72
checkpoint_minutes: 1e9
log_every: 1
snapshots: [2, 6]
"""


@dataclass(frozen=True)
class Job:
    """Processes that run together: a verb's words after ``bothways``, or something else to do."""

    name: str
    size: int
    words: Callable[[int], list[str]] | None = None
    hook: Hook | None = None
    action: Callable[[Path], None] | None = None


def jobs(folder: Path, corpus: Path) -> Iterator[Job]:
    def pretrain(run: str, *more: str) -> Callable[[int], list[str]]:
        common = ["--corpus", str(corpus), "--run", str(folder / run)]
        return lambda _: ["pretrain", str(folder / "recipe.yaml"), *common, *more]

    def other_seed(rank: int) -> list[str]:
        return pretrain("other", "--seed", str(rank))(rank)

    def unsaved(rank: int) -> list[str]:
        """In the process that writes, as if the library could not save the vocabulary."""
        if rank == 0:
            Tokenizer.save = fall_over  # type: ignore[method-assign]
        return pretrain("unsaved", *fsdp)(rank)

    def other_weights(rank: int) -> list[str]:
        """In the process of rank 1, as if its processor drew other initial weights."""
        if rank == 1:
            draw = pretraining.starting_model
            pretraining.starting_model = lambda recipe, text: draw(replace(recipe, seed=9), text)
        return pretrain("other-weights")(rank)

    fsdp = "--parallel", "fsdp"
    yield Job("gradients", 2, action=gradients)
    yield Job("one", 1, pretrain("one"))
    yield Job("ddp", 2, pretrain("ddp"))
    yield Job("other weights", 2, other_weights)
    yield Job("fsdp", 2, pretrain("fsdp", *fsdp))
    half = "--precision", "bf16", "--recompute", "true"
    yield Job("half", 1, pretrain("half", *half))
    yield Job("half sharded", 2, pretrain("half-fsdp", *half, *fsdp))
    lamb = "--optimizer", "lamb", "--lr", "1e-2"
    yield Job("lamb", 1, pretrain("lamb", *lamb))
    yield Job("lamb sharded", 2, pretrain("lamb-fsdp", *lamb, *fsdp))
    yield Job("begun on 2", 2, pretrain("2-1"), at(1, stop_nicely))
    yield Job("ended on 1", 1, pretrain("2-1"))
    yield Job("begun sharded", 2, pretrain("fsdp-ddp", *fsdp), at(0, stop_nicely))
    yield Job("ended whole", 2, pretrain("fsdp-ddp"))
    yield Job("begun on 1", 1, pretrain("1-fsdp"), at(0, stop_nicely))
    yield Job("ended sharded", 2, pretrain("1-fsdp", *fsdp))
    yield Job("minutes", 2, pretrain("minutes", *fsdp, *MINUTES), at(1, stop_nicely, after=1))
    yield Job("killed", 2, pretrain("killed", "--checkpoint-minutes", "1e-9"), at(1, kill))
    yield Job("continued", 2, pretrain("killed", "--checkpoint-minutes", "1e-9"))
    yield Job("broken", 2, pretrain("broken"), at(1, fail))
    yield Job("unsaved", 2, unsaved)
    yield Job("other options", 2, other_seed)
    yield Job("too many", 3, pretrain("too-many"))


MINUTES = "--minutes", "1"


def at(rank: int, action: Callable[[], None], after: int = STOP) -> Hook:
    """Something that happens to one process after a step."""
    return lambda own, done: action() if (own, done) == (rank, after) else None


def stop_nicely() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise RunError("the disk of this process is full; empty it.")


def fall_over(*_: object, **__: object) -> None:
    raise ZeroDivisionError("a defect")


def gradients(notes: Path) -> None:
    """Note how far the gradients of two processes are from those of one."""
    rank_module._BUCKET_BYTES = 1000  # so that even this small model has several buckets
    rng = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 12, (30, 5), generator=rng).tolist()
    source = pair_batches(memory_store(lengths), batch=10, micro_batch=2)  # 5 parts
    shape = ModelConfig(38, 2, 16, 2, 32, positions=64)  # with dropout; a vocabulary padded to 64

    def trained(ranks: Ranks, parallel: Any) -> Trainer[PretrainingBatch]:
        trainer: Trainer[PretrainingBatch] = Trainer(
            EncoderModel(shape, **BOTH_HEADS, seed=3),
            OptimizerOptions(),
            total_steps=10,
            seed=5,
            dtype=torch.float32,
            ranks=ranks,
            parallel=parallel,
        )
        parts = source.micro_batches(0, ranks.micro_batch_slice)
        trainer._accumulate_gradients(0, parts, bert_loss(parts, "next", ranks))
        return trainer

    alone = dict(trained(SINGLE_PROCESS, "ddp").model.named_parameters())
    found = {}
    with process_group() as ranks:
        for form in ("ddp", "fsdp"):
            differences = []
            for name, parameter in trained(ranks, form).model.named_parameters():
                exact, grad = alone[name].grad, parameter.grad
                assert exact is not None
                assert grad is not None
                grad = grad.full_tensor() if form == "fsdp" else grad  # type: ignore[attr-defined]
                differences.append(float((grad - exact).norm() / exact.norm()))
            found[form] = float(torch.tensor(differences).max())  # NaN if one is
        assert ranks.sum_counts(ranks.rank + 1, 10) == [3, 20]
        assert ranks.any(False, ranks.rank == 1) == [False, True]
        assert ranks.broadcast(ranks.rank) == 0
        assert ranks.max_over_ranks(ranks.rank) == 1
    notes.write_text(json.dumps(found))


def watch(rank: int, hook: Hook | None, notes: Path) -> None:
    """Note the micro-batches of every step, and call the hook after it."""
    step, probe, of_run = Trainer.step, clock._probe, True

    def probed(*args: Any) -> float:  # it trains a copy of the model
        nonlocal of_run
        of_run = False
        seconds = probe(*args)
        of_run = True
        return seconds

    def watched(self: Any, number: int, parts: Any, loss: Any) -> dict[str, float]:
        stats = step(self, number, parts, loss)
        if of_run:
            with notes.open("a") as file:
                for i, part in enumerate(parts):
                    content = hashlib.sha256()
                    for tensor in (part.inputs.tokens, part.masked.positions, part.masked.ids):
                        content.update(tensor.numpy())
                    place = rank + i * self.ranks.size
                    print(json.dumps([number, place, content.hexdigest()]), file=file)
            if hook is not None:
                hook(rank, number + 1)
        return stats

    Trainer.step = watched  # type: ignore[method-assign]
    clock._probe = probed
    monitor.draw_panels = lambda *_, **__: b""  # pictures and flushes take longer than these runs
    os.fsync = lambda _: None


def process(job: Job, rank: int, store: int, files: list[Path]) -> int:
    """What one process of a job does; its exit status."""
    out, errors, notes = files
    for number, file in ((1, out), (2, errors)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(job.size),
        LOCAL_WORLD_SIZE=str(job.size),
        MASTER_ADDR="localhost",
        MASTER_PORT=str(store),
        TORCHELASTIC_RUN_ID="tests",
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
    )
    try:
        if job.action is not None:
            job.action(notes)
            return 0
        watch(rank, job.hook, notes)
        assert job.words is not None
        return cli.main(job.words(rank))
    except BaseException:
        traceback.print_exc()
        return 99


def run(job: Job, folder: Path) -> list[dict[str, Any]]:
    """Fork the processes and wait: status, output, errors and notes of each."""
    # As under torchrun, the store in which processes meet outlives them.
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    children, kinds = {}, ("out", "err", "notes")
    for rank in range(job.size):
        files = [folder / f"{job.name}-{rank}.{kind}" for kind in kinds]
        child = os.fork()
        if child == 0:
            status = process(job, rank, store.port, files)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        children[child] = files
    outcomes = []
    for child, files in children.items():
        _, status = os.waitpid(child, 0)
        texts = [f.read_text() if f.exists() else "" for f in files]
        code = os.waitstatus_to_exitcode(status)
        outcomes.append({"status": code, **dict(zip(kinds, texts, strict=True))})
    return outcomes


def main() -> None:
    folder, corpus = Path(sys.argv[1]), Path(sys.argv[2])
    (folder / "recipe.yaml").write_text(RECIPE % STEPS)
    # What every process would load again.
    load_recipe(PretrainConfig, folder / "recipe.yaml")
    cpu_target.target_context.refresh()
    torch.optim.AdamW([torch.zeros(1)], fused=True)
    found = {job.name: run(job, folder) for job in jobs(folder, corpus)}
    (folder / "jobs.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
