"""Checking a model, run or corpus folder for damage."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bothways.batch import collate
from bothways.corpus.store import MANIFEST, verify_store
from bothways.errors import BothwaysError, InputError, RunError
from bothways.io.files import PARTIAL, real_path
from bothways.io.folder_files import checked, is_there
from bothways.io.hub import named_folder
from bothways.io.run_folders import RUN_FILE, model_of_seed
from bothways.runtime.adapters import is_adapter
from bothways.runtime.checksums import (
    NOT_LISTED,
    NOT_LISTED_REMEDY,
    changed_files,
    recorded_vocabulary,
)
from bothways.runtime.diagnosis import runs_in
from bothways.runtime.folder import (
    ABOUT,
    CONFIG,
    GRAPH_OF_8_BITS,
    GRAPHS,
    OTHER_VOCABULARY,
    STATE,
    LoadedModel,
    graph_in,
    load_model,
    model_files,
    read_json,
)
from bothways.runtime.original_files import is_original
from bothways.runtime.sentence_modules import encoder_folder, has_modules
from bothways.runtime.weights import Weights, has_weights
from bothways.runtime.whose_graph import of_another_model
from bothways.tokenization.doubts import disagreements, doubts
from bothways.tokenization.reading import TOKENIZER_FILE
from bothways.tokenization.tokenizer import Tokenizer

_LARGEST = 1000.0
"""Of a weight; in trained encoders the largest are some tens."""


def diagnose(folder: str | Path) -> list[str]:
    """Describe the problems of a folder, each with its file; empty if the folder is intact.

    A folder of runs is as sound as they are. The shards of a corpus, the checkpoints of a run and
    the files of a model of ours are compared with their checksums. A model is loaded, its weights
    and the order of its vocabulary are checked, and its two vocabulary files are compared.
    """
    folder = model_of_seed(named_folder(folder))
    if (folder / MANIFEST).exists():
        return _diagnose_corpus(folder)
    if (folder / RUN_FILE).exists():
        return _diagnose_run(folder)
    if _is_checkpoint(folder):
        return _diagnose_checkpoint(folder)
    known = (folder / CONFIG, folder / ABOUT)
    if (
        any(map(is_there, known))
        or has_modules(folder)
        or is_original(folder)
        or is_adapter(folder)
    ):
        return _diagnose_model(folder)
    if not folder.is_dir():
        return [f"{folder} is not a folder; name a model, run or corpus folder"]
    if runs := runs_in(folder):
        return [problem for run in runs for problem in _diagnose_run(run)]
    return [
        f"{folder} holds none of {MANIFEST} (a corpus), {RUN_FILE} (a run) and {CONFIG} (a model)"
    ]


def _diagnose_corpus(folder: Path) -> list[str]:
    problems = verify_store(folder)
    return problems + [p for p in _diagnose_vocabulary(folder) if p not in problems]


def _diagnose_model(folder: Path) -> list[str]:
    problems = _diagnose_vocabulary(folder)
    try:
        loaded = load_model(folder)
    except BothwaysError as error:
        problems += [str(error)] if str(error) not in problems else []
    else:
        if loaded.weights is None:
            problems += _diagnose_graph(loaded)
        else:
            path = folder if is_original(folder) else model_files(folder)[0]
            problems += _diagnose_weights(loaded, path)
        problems += _diagnose_graphs_beside(loaded.weights, folder)
        problems += _diagnose_order(loaded, folder)
        problems += list(loaded.refused.values())
        known = recorded_vocabulary(folder)
        if known and known != loaded.tokenizer.fingerprint:
            problems.append(OTHER_VOCABULARY.format(folder))
    return problems + [
        f"{folder / name} {what}; {_remedy(folder, what)}"
        for name, what in changed_files(folder, whole=True, computed=_computed(folder)).items()
        if not any(name in problem for problem in problems)
    ]


def _computed(folder: Path) -> list[str]:
    """The graphs that a folder of a model is computed from."""
    graph = None if has_weights(folder) else graph_in(folder)
    found = [graph, folder / GRAPH_OF_8_BITS]
    return [path.relative_to(folder).as_posix() for path in found if path and path.exists()]


def _remedy(folder: Path, what: str) -> str:
    """What to do about a file that is not as it was written."""
    if what == NOT_LISTED:
        return NOT_LISTED_REMEDY.rstrip(".")
    remedy = "since bothways wrote it, another program changed it or it was damaged. Copy it again"
    if has_weights(folder):
        remedy += ", or if the change is meant, save the model anew (`bothways convert`)"
    elif graph_in(folder) is not None:  # which is not converted
        remedy += ", or export the model again (`bothways export`)"
    return remedy


def _diagnose_graph(loaded: LoadedModel) -> list[str]:
    """A graph without weights that cannot be computed."""
    layers = () if loaded.heads else (loaded.config.layers,)
    at = {name: np.zeros(1, np.int64) for name in loaded.heads}
    try:
        loaded.engine.compute(collate([[0]], [[0]], max_positions=1), at, layers)
    except BothwaysError as error:
        return [str(error)]
    return []


def _diagnose_graphs_beside(weights: Weights | None, folder: Path) -> list[str]:
    """Graphs that were made from other weights than those beside them, or where there are none,
    are of another model than the graph beside them; or that are none."""
    beside = graph_in(folder) if weights is None else weights
    problems = []
    for path in [folder / name for name in (*GRAPHS, GRAPH_OF_8_BITS) if is_there(folder / name)]:
        if beside is None or path == beside:
            continue
        try:
            if other := of_another_model(checked(path), beside):
                problems.append(other)
        except InputError as error:
            problems.append(str(error))
        except Exception as error:  # of the protobuf library's own types
            problems.append(f"{path} is damaged ({error}); export the model again")
    return problems


def _diagnose_weights(loaded: LoadedModel, path: Path) -> list[str]:
    """Weights that no training gives."""
    broken, absurd, zero = [], [], []
    assert loaded.weights is not None
    for name, values in loaded.weights.items():
        if not np.isfinite(values).all():
            broken.append(name)
        elif values.size and max(abs(float(values.max())), abs(float(values.min()))) > _LARGEST:
            absurd.append(name)
        elif name.endswith(".weight") and ".segments." not in name and not values.any():
            zero.append(name)
    found = {
        "that are not finite numbers": broken,
        f"beyond {_LARGEST:,.0f}, which no trained encoder has": absurd,
        "that are all zero": zero,
    }
    return [
        f"{path}: weights {what}: {', '.join(names)}; training diverged or the file is damaged"
        for what, names in found.items()
        if names
    ]


def _diagnose_order(loaded: LoadedModel, folder: Path) -> list[str]:
    """A vocabulary whose order or case is not that which the model was trained with."""
    settings = encoder_folder(folder) / CONFIG
    values = read_json(settings, "") if settings.exists() else {}  # those of others lack it
    return doubts(loaded.tokenizer, str(folder), pad=values.get("pad_token_id"))


def _diagnose_vocabulary(folder: Path) -> list[str]:
    """Check that vocab.txt and tokenizer.json, each a complete vocabulary, agree, and the settings
    beside them."""
    if not (folder / TOKENIZER_FILE).exists():
        return []
    try:
        return disagreements(folder, Tokenizer.from_folder(folder / TOKENIZER_FILE))
    except BothwaysError as error:
        return [str(error)]


# Runs and checkpoints are those of training, which needs torch.


def _is_checkpoint(folder: Path) -> bool:
    if not (folder / STATE).exists() and not real_path(folder).name.startswith("step-"):
        return False
    from bothways.training.checkpoint import checkpoints

    return (folder / STATE).exists() or real_path(folder) in checkpoints(real_path(folder).parent)


def _diagnose_run(folder: Path) -> list[str]:
    from bothways.pretraining.snapshots import SNAPSHOTS
    from bothways.training.checkpoint import DAMAGED, FOREIGN, checkpoints
    from bothways.training.runfolder import read_run

    problems = []
    try:
        read_run(folder)
    except BothwaysError as error:
        problems.append(str(error))
    # Those of pre-training, damaged or not, and those of the seeds of fine-tuning.
    found = {*checkpoints(folder / "checkpoints"), *(p.parent for p in folder.glob(f"**/{STATE}"))}
    skipped = (PARTIAL, DAMAGED, FOREIGN)
    for checkpoint in sorted(p for p in found if not p.name.startswith(skipped)):
        problems += _diagnose_checkpoint(checkpoint)
    # A model that is being written has another name until it is complete.
    for model in sorted([*folder.glob("**/model/"), *folder.glob(f"{SNAPSHOTS}/[0-9]*/")]):
        problems += _diagnose_model(model)
    return problems


def _diagnose_checkpoint(folder: Path) -> list[str]:
    from bothways.training.checkpoint import check_checkpoint

    try:
        check_checkpoint(folder, _run_of(folder))
    except BothwaysError as error:
        return [str(error) if str(folder) in str(error) else f"{folder}: {error}"]
    return _diagnose_model(folder) if (folder / CONFIG).exists() else []


def _run_of(checkpoint: Path) -> str | None:
    """Identity of the run whose folder a checkpoint lies in; None if it lies elsewhere or run.json
    is damaged."""
    from bothways.training.runfolder import read_run, run_identity

    for folder in real_path(checkpoint).parents[1:4]:  # of pre-training, a seed, a tagger
        if (folder / RUN_FILE).exists():
            try:
                return run_identity(read_run(folder))
            except RunError:
                return None
    return None
