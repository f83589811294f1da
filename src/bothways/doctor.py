"""What is wrong with a folder: a model, a run, or a corpus."""

from __future__ import annotations

from pathlib import Path

from bothways.corpus.store import MANIFEST, verify_store
from bothways.errors import BothwaysError
from bothways.model.folder import ABOUT, CONFIG, load_model
from bothways.pretraining.snapshots import SNAPSHOTS
from bothways.shipped import model_folder
from bothways.tokenization.tokenizer import TOKENIZER_FILE, VOCABULARY_FILE, Tokenizer
from bothways.training.runfolder import RUN_FILE, read_run
from bothways.training.state import checkpoints, verify_checkpoint


def diagnose(folder: str | Path) -> list[str]:
    """Problems in words, each naming its file; empty when the folder is sound.

    A corpus's shards and a run's checkpoints are compared with their checksums; a model is loaded,
    its weights are looked at, and its two vocabulary files are compared.
    """
    folder = model_folder(folder)
    if (folder / MANIFEST).exists():
        return _diagnose_corpus(folder)
    if (folder / RUN_FILE).exists():
        return _diagnose_run(folder)
    if folder in checkpoints(folder.parent):
        return _diagnose_checkpoint(folder)
    if (folder / CONFIG).exists() or (folder / ABOUT).exists():
        return _diagnose_model(folder)
    if not folder.is_dir():
        return [f"{folder} is no folder; name a model, run or corpus folder"]
    return [
        f"{folder} holds none of {MANIFEST} (a corpus), {RUN_FILE} (a run) and {CONFIG} (a model)"
    ]


def _diagnose_corpus(folder: Path) -> list[str]:
    problems = verify_store(folder)
    return problems + [p for p in _diagnose_vocabulary(folder) if p not in problems]


def _diagnose_model(folder: Path) -> list[str]:
    problems = _diagnose_vocabulary(folder)
    try:
        model = load_model(folder).model
    except BothwaysError as error:
        return [*problems, str(error)] if str(error) not in problems else problems
    broken = [name for name, p in model.named_parameters() if not bool(p.isfinite().all())]
    if broken:
        problems.append(
            f"{folder}: weights that are not finite numbers: {', '.join(broken)}; training "
            "diverged or the file is damaged"
        )
    return problems


def _diagnose_vocabulary(folder: Path) -> list[str]:
    """Whether vocab.txt and tokenizer.json, each enough to read the other's ids by, agree."""
    listed, whole = folder / VOCABULARY_FILE, folder / TOKENIZER_FILE
    if not (listed.exists() and whole.exists()):
        return []
    try:
        theirs, ours = Tokenizer.from_folder(listed), Tokenizer.from_folder(whole)
    except BothwaysError as error:
        return [str(error)]
    remedy = f"{TOKENIZER_FILE} is the one used; remove {VOCABULARY_FILE} or restore it"
    for i, (piece, other) in enumerate(zip(theirs.pieces, ours.pieces, strict=False)):
        if piece != other:
            return [f"{listed}: id {i} is {piece!r}, but {other!r} in {TOKENIZER_FILE}; {remedy}"]
    if theirs.vocab_size != ours.vocab_size:
        return [
            f"{listed} has {theirs.vocab_size} pieces, {TOKENIZER_FILE} {ours.vocab_size}; {remedy}"
        ]
    return []


def _diagnose_run(folder: Path) -> list[str]:
    problems = []
    try:
        read_run(folder)
    except BothwaysError as error:
        problems.append(str(error))
    for checkpoint in checkpoints(folder / "checkpoints"):
        problems += _diagnose_checkpoint(checkpoint)
    # A model being written has a name of its own until it is whole.
    for model in sorted([*folder.glob("**/model/"), *folder.glob(f"{SNAPSHOTS}/[0-9]*/")]):
        problems += _diagnose_model(model)
    return problems


def _diagnose_checkpoint(folder: Path) -> list[str]:
    return verify_checkpoint(folder) or _diagnose_model(folder)
