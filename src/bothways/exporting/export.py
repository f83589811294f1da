"""Model folders for other programs: written, and compared before they are given away."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bothways.batch import Batch, collate
from bothways.errors import ConfigError, ModelError
from bothways.exporting.int8 import GateReport, all_outputs, quantize
from bothways.exporting.options import ExportConfig
from bothways.families.config import ModelConfig
from bothways.io.files import new_folder, real_path, write_json
from bothways.io.hub import model_folder
from bothways.io.json_files import read_json_file
from bothways.io.terminal import print_note, progress_of_stages
from bothways.runtime.engine import EngineOptions, engines
from bothways.runtime.folder import (
    GRAPH,
    GRAPH_OF_8_BITS,
    LoadedModel,
    load_model,
    no_weights,
    write_description,
)
from bothways.runtime.onnx_engine import OnnxEngine
from bothways.runtime.onnx_graph import OPSET, Outputs, write_graph
from bothways.runtime.saving import complete_folder
from bothways.runtime.sentence_modules import GIVES_SCORES, encoder_folder
from bothways.runtime.weights import Weights

CLOSE = 1e-4
"""The largest difference of a graph's outputs from those that it is compared with."""
_TEXTS, _LONGEST = 32, 128
_EVERY = 16  # of the tokens whose prediction is compared: a row of it is as long as the vocabulary
_MODULES = "modules.json"
_SENTENCE_FILES = ("config_sentence_transformers.json", "sentence_bert_config.json")


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how it compares.

    Attributes:
        out: the folder.
        compared_with: whose outputs those of the graph in fp32 equal; empty without torch.
        difference: the largest.
        int8: what the graph in 8 bits was measured at; None if none was asked for.
    """

    out: Path
    compared_with: str
    difference: float | None
    int8: GateReport | None = None

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """For a reader."""
        told = "not compared, as torch is not installed"
        if self.difference is not None:
            told = f"differs from {self.compared_with} by at most {self.difference:.1e}"
        int8 = self.int8.lines(self.out / GRAPH_OF_8_BITS) if self.int8 else []
        return [f"{self.out / GRAPH}: {told}", *int8]


def export_model(config: ExportConfig) -> ExportReport:
    """Write a model as a folder with ONNX graphs.

    The folder has ``onnx/model.onnx`` in fp32, with the inputs and outputs that optimum,
    transformers.js and sentence-transformers expect, the files of config and tokenizer, the modules
    of sentence-transformers where the model has them, and ``bothways.json``, which says what was
    measured. The same model gives the same graphs to the byte.

    Args:
        config: what to export, and the limits of the graph in 8 bits.

    Raises:
        ModelError: a model that other programs cannot compute, or outputs of the graph that differ
            from those of torch, if it is installed.
        ConfigError: the folder exists.
    """
    folder, out = model_folder(config.model), Path(config.out)
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise ConfigError(f"{out} exists already; choose a new folder.")
    loaded = load_model(folder)
    for note in loaded.notes:
        print_note(note)
    weights = _refuse(loaded, folder)
    asked = Outputs(tuple(loaded.heads), hidden=not loaded.heads, others=True)
    loaded.about = {
        **{name: value for name, value in loaded.about.items() if name not in ("format", "export")},
        "export": {"opset": OPSET, "heads": loaded.heads},
    }
    with progress_of_stages() as progress, new_folder(out) as partial:
        # A graph of heads gives their outputs alone: no vector is made of them, or a score.
        steps = not loaded.heads or GIVES_SCORES in loaded.about.get("modules_left_out", ())
        _copy_sentence_files(folder, encoder_folder(folder), partial, steps=steps)
        write_description(partial, loaded, dtype="float32")
        write_graph(partial / GRAPH, loaded.config, weights, asked)
        name, difference = _compare(folder, partial)
        gate = None
        if config.int8:
            gate = quantize(partial, loaded, weights, asked, config, progress)
        export = {
            **loaded.about["export"],
            **({"compared_with": name, "difference_below": CLOSE} if name else {}),
            **({"int8": asdict(gate)} if gate else {}),
        }
        loaded.about = {**loaded.about, "export": export}
        write_description(partial, loaded, dtype="float32")
        complete_folder(partial, loaded)
    return ExportReport(out, name, difference, gate)


def _refuse(loaded: LoadedModel, folder: Path) -> Weights:
    """The weights of a model that can be exported.

    Raises:
        ModelError: it cannot.
    """
    if loaded.weights is None:
        raise ModelError(no_weights(folder))
    if loaded.lstm:
        raise ModelError(
            f"{folder} has a BiLSTM under its task head, for which no other program has a class; "
            "fine-tune without lstm to export it."
        )
    loaded.refuse_part_of_head()
    return loaded.weights


def _copy_sentence_files(folder: Path, encoder: Path, out: Path, *, steps: bool) -> None:
    """The files of sentence-transformers, and with ``steps`` the folders of its modules, if there
    are any; the encoder is in the folder itself afterwards."""
    for name in _SENTENCE_FILES:
        if found := [own / name for own in (folder, encoder) if (own / name).exists()]:
            shutil.copyfile(found[0], out / name)
    if steps and (folder / _MODULES).exists():
        modules = read_json_file(folder / _MODULES)  # as it was read when the model was opened
        for module in modules:
            path = module.get("path") or ""
            if path and real_path(folder / path) == real_path(encoder):
                module["path"] = ""
            elif path and (folder / path).is_dir():
                shutil.copytree(folder / path, out / path)
        write_json(out / _MODULES, modules)


def _compare(folder: Path, out: Path) -> tuple[str, float | None]:
    """Compare the graph that was written with outputs of torch, which trains and measures models.

    Returns:
        With whose, and the largest difference; neither where torch is not installed.

    Raises:
        ModelError: they differ.
    """
    try:
        reference = load_model(folder, options=EngineOptions(next(iter(engines())))).engine
    except ConfigError:
        return "", None
    exported = load_model(out)
    batch, largest = _sequences(exported.config), 0.0
    layers = () if exported.heads else (exported.config.layers,)
    found, expected = (
        all_outputs(one, batch, list(exported.heads), layers, _EVERY)
        for one in (OnnxEngine(exported), reference)
    )
    for name, value in found.items():
        rows = expected[name][: len(value)]
        difference = float(np.abs(value - rows).max()) / max(1.0, float(np.abs(rows).max()))
        if not difference <= CLOSE:
            raise ModelError(
                f"{folder}: the graph's outputs ({name}) differ by {difference:.1e} from those of "
                f"{reference.name}, and nothing was written; please report it."
            )
        largest = max(largest, difference)
    return f"{reference.name} ({reference.precision})", largest


def _sequences(config: ModelConfig) -> Batch:
    """Sequences of many lengths, of all pieces alike."""
    longest = min(_LONGEST, config.positions)
    lengths = [max(2, longest * (n + 1) // _TEXTS) for n in range(_TEXTS)]
    rows = [
        [(7919 * n + 104_729 * i) % config.vocab_size for i in range(size)]
        for n, size in enumerate(lengths)
    ]
    second = int(config.segments > 1)
    segments = [[second * (i > size // 2) for i in range(size)] for size in lengths]
    return collate(rows, segments, max_positions=config.positions)
