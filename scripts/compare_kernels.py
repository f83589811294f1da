"""Do the fast kernels learn what the plain ones learn? Compares their losses, step by step.

Both start from the same weights, with the same batches and schedule. With dropout, the fast kernels
draw fewer masks in the last layer, so the curves differ by the noise of dropout; runs of the plain
kernels with other dropout keys show how large that noise is. Without dropout, only rounding
differs. Finished runs are kept in OUT and not repeated; under other options they are refused.

    python scripts/compare_kernels.py CORPUS --out runs/kernels --plot curve.png
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.corpus.store import TokenStore
from bothways.families.options import SizeOptions
from bothways.model.device import DTYPES, set_threads
from bothways.model.model import EncoderModel
from bothways.objectives.masked import MaskedLM
from bothways.pretraining.batches import PhaseBatches, prefetch
from bothways.pretraining.evaluation import measure
from bothways.pretraining.options import MaskOptions, PairOptions
from bothways.training.monitor import plot_panels
from bothways.training.options import OptimizerOptions, Phase
from bothways.training.trainer import Trainer, step_loss

# By name: kernels, dropout, key of the dropout masks. Runs are made in this order.
RUNS = {
    "fast": ("fast", 0.1, 0),
    "plain": ("plain", 0.1, 0),
    "plain, key 1": ("plain", 0.1, 1),
    "fast, no dropout": ("fast", 0.0, 0),
    "plain, no dropout": ("plain", 0.0, 0),
    "fast, key 1": ("fast", 0.1, 1),
    "plain, key 2": ("plain", 0.1, 2),
}
OPTIMIZER = OptimizerOptions(lr=5e-4, warmup=0.1, bias_correction=True)  # mini, at half the rate
HELD_OUT = 512  # sequences
SETTINGS = ("corpus", "size", "steps", "length", "batch", "precision", "threads")
Curve = NDArray[np.float64]


def main() -> None:
    """Make the runs that are missing, then print and plot."""
    options = _arguments()
    set_threads(options.threads)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for name in options.runs:
        path = folder / f"{name.replace(', ', '-').replace(' ', '-')}.json"
        if not path.exists():
            path.write_text(json.dumps(_train(options, *RUNS[name])) + "\n", encoding="utf-8")
        found[name] = json.loads(path.read_text(encoding="utf-8"))
        _check_settings(path, found[name]["settings"], options)
        print(
            f"{name:<18} loss of the last {options.smooth} steps "
            f"{np.mean(found[name]['loss'][-options.smooth :]):.4f}, held out "
            f"{found[name]['heldout_loss']:.4f}, {found[name]['cpu_seconds']:.0f} CPU seconds",
            flush=True,
        )
    curves = {name: _smoothed(run["loss"], options.smooth) for name, run in found.items()}
    print(_differences(curves, {name: run["heldout_loss"] for name, run in found.items()}))
    if options.plot:
        _draw(Path(options.plot), curves, options.smooth)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", help="corpus folder with a held-out part")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", choices=list(DTYPES), default="bf16")
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--smooth", type=int, default=20, help="steps of the moving average")
    parser.add_argument("--out", default="runs/kernels", help="folder for one JSON file per run")
    parser.add_argument("--plot", help="PNG file to draw")
    return parser.parse_args()


def _check_settings(path: Path, settings: dict[str, Any], options: argparse.Namespace) -> None:
    """Refuse a run that was made with other settings than those of the command line."""
    differing = [n for n in SETTINGS if settings[n] != getattr(options, n)]
    if differing:
        words = ", ".join(f"{n} {settings[n]}, not {getattr(options, n)}" for n in differing)
        raise SystemExit(f"{path} was made with {words}; move it away, or choose another --out")


def _train(options: argparse.Namespace, kernels: str, dropout: float, key: int) -> dict[str, Any]:
    """One run: its loss at every step, and on held-out text at the end."""
    store = TokenStore.open(options.corpus)
    size = SizeOptions(size=options.size, dropout=dropout, attention_dropout=dropout)
    model = EncoderModel(
        size.resolve(store.tokenizer.vocab_size), masked_lm=True, next_sentence=True, seed=0
    )
    model.shared.fast = kernels == "fast"
    dtype = DTYPES[options.precision]
    # The trainer's seed keys the dropout masks and nothing else.
    trainer = Trainer(model, OPTIMIZER, total_steps=options.steps, seed=key, dtype=dtype)
    phase = Phase(length=options.length, batch=options.batch, micro_batch=options.batch)

    def batches(store: TokenStore) -> PhaseBatches:
        return PhaseBatches(store, phase, pairs=PairOptions(), masking=MaskOptions(), seed=0)

    losses = []
    cpu = time.process_time()
    steps = range(options.steps)
    for step, parts in zip(steps, prefetch(batches(store), steps), strict=True):
        stats = trainer.step(step, parts, step_loss(parts, MaskedLM()))
        losses.append(stats["mlm_loss"] + stats["nsp_loss"])
    cpu = time.process_time() - cpu
    heldout = batches(TokenStore.open(options.corpus, "heldout")).first(HELD_OUT)
    loss = measure(model, heldout, dtype, MaskedLM()).words.loss
    return {"loss": losses, "heldout_loss": loss, "cpu_seconds": cpu, "settings": vars(options)}


def _smoothed(loss: list[float], width: int) -> Curve:
    return np.convolve(loss, np.full(width, 1 / width), mode="valid")


def _differences(curves: dict[str, Curve], heldout: dict[str, float]) -> str:
    """A Markdown table of the differences between the curves of each pair of runs."""
    fast, plain = (
        [name for name in curves if RUNS[name][:2] == (kernels, 0.1)]
        for kernels in ("fast", "plain")
    )
    exact = [name for name in curves if not RUNS[name][1]]
    pairs = [
        *(("fast, plain", a, b) for a, b in product(fast, plain)),
        *(("plain, plain", a, b) for a, b in combinations(plain, 2)),
        *(("fast, fast", a, b) for a, b in combinations(fast, 2)),
        *(("fast, plain, no dropout", a, b) for a, b in combinations(exact, 2)),
    ]
    lines = [
        "",
        "| pair | | mean absolute difference | largest | mean difference | held out |",
        "|---|---|---|---|---|---|",
    ]
    for kind, a, b in pairs:
        difference = curves[a] - curves[b]
        lines.append(
            f"| {kind} | {a} - {b} | {abs(difference).mean():.4f} | {abs(difference).max():.4f} "
            f"| {difference.mean():+.4f} | {heldout[a] - heldout[b]:+.4f} |"
        )
    return "\n".join(lines)


def _draw(path: Path, curves: dict[str, Curve], width: int) -> None:
    """Plot the curves, and their differences from the plain kernels', with and without dropout."""
    x = np.arange(width, width + len(next(iter(curves.values()))))

    def minus(reference: str, *, dropout: bool) -> dict[str, tuple[Any, Any]]:
        names = [n for n in curves if bool(RUNS[n][1]) == dropout and n != reference]
        return {n: (x, curves[n] - curves[reference]) for n in names if reference in curves}

    panels = {
        f"loss, mean of {width} steps": {n: (x, y) for n, y in curves.items() if "key" not in n},
        "minus plain, dropout 0.1": minus("plain", dropout=True),
        "minus plain, no dropout": minus("plain, no dropout", dropout=False),
    }
    plot_panels(path, {title: panel for title, panel in panels.items() if panel})


if __name__ == "__main__":
    main()
