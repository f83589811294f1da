"""Count the bytes that 2 processes of a training step send, beside what `bothways plan` computes.

Counted are the bytes of the loopback device of a network that holds these processes alone (of Linux,
with TCP's headers, some thousandths):

    unshare -rn sh -c 'ip link set lo up; python scripts/measure_traffic.py'
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Literal

import torch

from bothways.experiments.bench import full_batches
from bothways.experiments.devices import ddp_sent, fsdp_sent
from bothways.families.config import ModelConfig
from bothways.model.model import EncoderModel
from bothways.objectives.masked import MaskedLM
from bothways.pretraining.options import MaskOptions
from bothways.training.options import OptimizerOptions
from bothways.training.ranks import process_group
from bothways.training.trainer import Trainer, step_loss

RANKS, STEPS = 2, 4
SHAPE = ModelConfig(8192, 4, 256, 4, 1024, positions=64)


def sent() -> int:
    """Bytes that the loopback device has sent."""
    found = re.search(r"lo:((?:\s+\d+)+)", Path("/proc/net/dev").read_text(encoding="ascii"))
    assert found
    return int(found[1].split()[8])


def measure(parallel: Literal["ddp", "fsdp"], micro_batches: int) -> None:
    """One process of a training; the first prints bytes for each rank and step."""
    with process_group() as ranks:
        model = EncoderModel(SHAPE, masked_lm=True, next_sentence=True, seed=0)
        layer = 4 * sum(p.numel() for p in model.encoder.layers[0].parameters())
        weights = 4 * sum(p.numel() for p in model.parameters())
        trainer = Trainer(
            model, OptimizerOptions(), total_steps=9, seed=0, dtype=torch.float32, ranks=ranks,
            parallel=parallel,
        )  # fmt: skip
        steps = full_batches(
            SHAPE.vocab_size, batch=2, length=16, count=micro_batches, pairs="next",
            masking=MaskOptions(),
        )  # fmt: skip
        batches = [batch for step in steps for batch in step]
        loss = step_loss(batches, MaskedLM("next"), ranks)
        trainer.step(0, batches, loss)
        ranks.barrier()
        before = sent()
        for step in range(1, 1 + STEPS):
            trainer.step(step, batches, loss)
        ranks.barrier()
        counted = (sent() - before) / STEPS / RANKS
        if ranks.is_rank0:
            expected = ddp_sent(weights, ranks=RANKS)
            if parallel == "fsdp":
                sizes = {"layers": SHAPE.layers, "ranks": RANKS, "rounds": micro_batches}
                expected = fsdp_sent(weights, layer, **sizes)
                # gloo scatters sums by making all of them everywhere: twice the bytes.
                whole = expected + micro_batches * (RANKS - 1) / RANKS * weights
                print(f"(as gloo scatters: {counted / whole:.3f}) ", end="")
            print(
                f"{parallel}, {micro_batches} micro-batches a rank: {counted:,.0f} bytes sent, "
                f"{expected:,.0f} computed: {counted / expected:.3f}"
            )


def main() -> None:
    """Both ways of sharing, with one and with three micro-batches."""
    if len(sys.argv) == 3:
        measure("ddp" if sys.argv[1] == "ddp" else "fsdp", int(sys.argv[2]))
        return
    for words in (["ddp", "1"], ["ddp", "3"], ["fsdp", "1"], ["fsdp", "3"]):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS)}
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, *words],
                env={**os.environ, **address, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(RANKS)
        ]
        if any(process.wait() for process in processes):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
