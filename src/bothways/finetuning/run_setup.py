"""Steps before training that fine-tuning and the feature-based approach share.

Required options are checked, the starting model is fingerprinted, and the run folder is opened with
its precision.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from bothways.config import FeaturesConfig, FinetuneConfig, TaskOptions
from bothways.errors import ConfigError
from bothways.model.folder import LoadedModel
from bothways.training.device import Device
from bothways.training.precision import ChosenPrecision
from bothways.training.runfolder import Run, RunLock, changed_numerics, open_run


@dataclass(frozen=True)
class OpenedRun:
    """A run folder of fine-tuning, ready for training.

    Attributes:
        folder: the run folder.
        fingerprint: of everything the results depend on.
        identity: of the run, for its checkpoints.
        precision: arithmetic of the layers.
        threads: CPU threads.
        device: the device to train on.
        inputs: digests of the model and of the files that training reads.
        alone: no other process shows its progress on the same terminal.
        lock: keeps other commands out of the folder.
    """

    folder: Path
    fingerprint: str
    identity: str
    precision: ChosenPrecision
    threads: int
    device: Device
    inputs: dict[str, str]
    alone: bool = True
    lock: RunLock | None = None


def check_required(config: FinetuneConfig | FeaturesConfig) -> None:
    """Check that the options which have no default are given.

    Raises:
        ConfigError: one is missing.
    """
    for name, value, meaning in (
        ("model", config.model, "the model folder to start from"),
        ("run", config.run, "the folder to write to"),
        ("task.train", config.task.train, "the training file"),
        ("task.dev", config.task.dev, "the file to measure on"),
    ):
        if not value:
            raise ConfigError(f"{name} is missing: {meaning}.")


def recorded_without_effect(task: TaskOptions) -> list[str]:
    """Options that earlier versions recorded although they change nothing, by dotted name."""
    names = [f"task.{name}" for name in task.without_effect if name != "windows"]
    if "windows" in task.without_effect:
        names += ["task.windows.stride", "task.windows.pooling"]
    return names


def model_digest(loaded: LoadedModel, *, weights: bool, head: bool = False) -> str:
    """A digest of a starting model: shape and vocabulary, and the weights that are used.

    Args:
        loaded: the model.
        weights: include the weights of the encoder.
        head: include the weights of the task head.
    """
    content = hashlib.sha256()
    shape = dataclasses.asdict(loaded.model.config)
    content.update(json.dumps([shape, loaded.tokenizer.fingerprint]).encode())
    model = loaded.model
    modules = ((model.encoder, weights), (model.lstm, head), (model.task_head, head))
    for module, included in modules:
        if module is None or not included:
            continue
        for name, value in module.state_dict().items():
            content.update(name.encode())
            content.update(value.contiguous().numpy())
    return content.hexdigest()[:16]


def open_run_with_precision(
    config: FinetuneConfig | FeaturesConfig,
    choose: Callable[[], ChosenPrecision],
    *,
    verb: str,
    inputs: Mapping[str, str],
    numerics: Mapping[str, Any],
    say: Callable[[str], None],
    without: Collection[str] = (),
) -> tuple[Run, ChosenPrecision]:
    """Create or continue a run folder.

    Args:
        config: names the folder.
        choose: chooses the precision, perhaps by a measurement; called for a new run, and if one is
            requested, which may differ from the recorded one.
        verb, inputs, without: as for :func:`bothways.training.runfolder.open_run`.
        numerics: what is recorded next to the precision, because it may change rounding.
        say: called with what changed since the run began.

    Returns:
        The run folder, and the precision requested or chosen now, or recorded when the run began.
    """
    choose_once = cache(choose)

    def resolve() -> dict[str, Any]:
        choice = choose_once()
        layout = {"transposed_gradients": choice.transposes}
        return {"precision": choice.name, **layout, **numerics}

    run = open_run(config.run, config, verb=verb, inputs=inputs, resolve=resolve, without=without)
    if run.new:
        return run, choose_once()
    if config.precision != "auto":
        choice = choose_once()
    else:
        recorded = run.resolved["precision"]
        choice = ChosenPrecision(recorded, f"{recorded}: as when this run began")
    choice = replace(choice, transposes=run.resolved.get("transposed_gradients", False))
    if changed := changed_numerics(run, {"precision": choice.name, **numerics}):
        say(
            "changed since this run began; finished seeds are kept, the others may differ in their "
            f"last bits: {'; '.join(changed)}"
        )
    return run, choice
