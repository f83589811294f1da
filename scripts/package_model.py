"""Package a pre-trained model folder for distribution: bf16 weights, and dropout.

Weights rounded to bf16 take half the space; bothways reads them as fp32. A model that was
pre-trained without dropout gets the paper's 0.1 in its config.json, for fine-tuning. An existing
README.md is kept.

    python scripts/package_model.py runs/mini-en/model src/bothways/shipped/mini-en
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bothways.model.engine import network_of
from bothways.model.folder import save_model
from bothways.runtime.checksums import CHECKSUMS
from bothways.runtime.folder import load_model
from bothways.runtime.stored import WEIGHTS

CARD = "README.md"
NOT_OURS = (CARD, CHECKSUMS, "modules.json")
"""What a saved folder has and a package has not: its card is written by hand, its weights are
rounded after the sums are taken, and the mean over all tokens needs no module to say so."""


def main() -> None:
    """Write the package to a temporary folder, and copy it into place."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="model folder of a pre-training run")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--dropout", type=float, help="default: the model's own, or 0.1 for 0")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "model"
        _package(options.model, folder, options.dropout)
        options.out.mkdir(parents=True, exist_ok=True)
        for file in sorted(path for path in folder.iterdir() if path.is_file()):
            if file.name in NOT_OURS:
                continue
            shutil.copyfile(file, options.out / file.name)
    card = "with its card" if (options.out / CARD).exists() else f"without a card ({CARD}) yet"
    print(f"{options.out}, {card}: {(options.out / WEIGHTS).stat().st_size / 1e6:.1f} MB")


def _package(source: Path, folder: Path, dropout: float | None) -> None:
    loaded = load_model(source)
    model = network_of(loaded)
    own = model.config
    model.config = dataclasses.replace(
        own,
        dropout=own.dropout or 0.1 if dropout is None else dropout,
        attention_dropout=own.attention_dropout or 0.1 if dropout is None else dropout,
    )
    about = {name: value for name, value in loaded.about.items() if name != "format"}
    save_model(folder, model, loaded.tokenizer, about)
    weights = {
        name: value.to(torch.bfloat16) for name, value in load_file(folder / WEIGHTS).items()
    }
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
