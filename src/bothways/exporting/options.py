"""The options of `bothways export`."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from bothways.config.fields import Options, require
from bothways.errors import ConfigError


@dataclass(frozen=True)
class ExportConfig(Options):
    """Write a model as a folder with ONNX graphs, for onnxruntime, OpenVINO, transformers.js,
    sentence-transformers and optimum."""

    listed = MappingProxyType(
        {
            "options": (
                *("int8", "gate", "text", "text_b", "label", "calibration", "metric_loss"),
                "speedup",
            )
        }
    )

    model: str
    """Model folder, mini-en (bundled), or a name on the Hugging Face Hub."""
    out: str
    """Folder to write: onnx/model.onnx, config.json, the tokenizer's files, bothways.json."""
    int8: bool = False
    """Also write onnx/model_quantized.onnx, in 8 bits, if it keeps within the limits below,
    measured on the file of --gate."""
    gate: str | None = None
    """Dev file for --int8: labelled as in fine-tuning; for a model without a task head, a text file
    with a text per line, or a file with columns."""
    task: str | None = None
    """Data set by name (`bothways tasks` lists them), or a .yaml file like theirs, that says how
    --gate and --calibration are laid out, for models that do not record it."""
    text: str | None = None
    """Column of --gate and --calibration with the texts, of pairs the first. Default: as in
    fine-tuning; for a model without a task head sentence, or text."""
    text_b: str | None = None
    """Column of the second texts of pairs. Default: as in fine-tuning."""
    label: str | None = None
    """Column of the labels. Default: as in fine-tuning."""
    calibration: str | None = None
    """File of texts like those the model will read, laid out as --gate, from which ranges of
    activations are taken; labels are not read. Default: the first texts of --gate."""
    metric_loss: float = 0.5
    """Limit: points (of 100) that the task's main metric may lose."""
    agreement: float | None = None
    """Limit: share of labels, tags or answers that equal those of fp32 (default 0.99); of vectors
    the mean cosine with those of fp32, of scores the correlation (default 0.999)."""
    lowest: float = 0.997
    """Limit: lowest cosine of a vector with that of fp32."""
    speedup: float = 1.2
    """Limit: how many times faster than fp32 it has to be on this machine; 0: it is not timed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.int8 and self.gate is None:
            raise ConfigError(
                "int8 needs a dev file on which it is calibrated and measured: give gate. A "
                "graph of 8 bits that nothing has measured may be wrong in silence."
            )
        columns = {"text": self.text, "text_b": self.text_b, "label": self.label}
        named = [name for name, value in columns.items() if value is not None]
        if not self.int8 and (self.gate or self.calibration or self.task or named):
            raise ConfigError(
                "gate, calibration, task, text, text_b and label are for --int8; leave them out, "
                "or give it."
            )
        if self.task is not None and named:
            raise ConfigError(f"task and {named[0]} both say which columns the file has; give one.")
        require("metric_loss", self.metric_loss, 0)
        require("speedup", self.speedup, 0)
        for name in ("agreement", "lowest"):
            if getattr(self, name) is not None:
                require(name, getattr(self, name), 0, 1)
