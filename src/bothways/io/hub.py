"""Where a model is that is given by a path or by a name: a folder here, a bundled model, a model in
the local cache of the Hugging Face Hub, or one that is downloaded into it.

The cache and downloads are those of ``huggingface_hub``, with its variables. Nothing is asked of
the network unless the name has an owner (``klue/bert-base``) and the model is not in the cache;
then the files that a model folder has are fetched, weights as safetensors only.
``owner/name@revision`` names a branch, a tag or a commit; a commit is the same model for ever.
"""

from __future__ import annotations

import re
from pathlib import Path

from bothways import shipped
from bothways.errors import ModelError
from bothways.io.folder_files import is_there
from bothways.io.run_folders import model_of_run
from bothways.io.terminal import print_note

_NAME = re.compile(
    r"(?P<id>(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w][\w./-]*))?"
)
_ADDRESS = re.compile(
    r"(?:https?://(?:www\.)?(?:huggingface\.co|hf\.co)|hf:/)/(?P<id>[\w.-]+/[\w.-]+)", re.IGNORECASE
)
_FILES = (".txt", ".json", ".model", ".safetensors", ".bin", ".yaml", ".onnx")  # ends of paths
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_FETCHED = (
    *("config.json", "adapter_config.json", "modules.json", "bothways.json", "checksums.json"),
    *("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
    *("adapter_model.safetensors", "sentence_*_config.json", "config_sentence_transformers.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    # What sentence-transformers keeps of each of its modules.
    *("[0-9]_*/*.json", "[0-9]_*/*.safetensors", "[0-9]_*/vocab.txt"),
)


def model_folder(name: str | Path) -> Path:
    """The folder of a model, given by path or by name; of a run that has one model, that.

    Raises:
        ModelError: as :func:`named_folder`.
    """
    return model_of_run(named_folder(name))


def named_folder(name: str | Path) -> Path:
    """The folder of a model, run, corpus or vocabulary, given by path or by name.

    A local folder, or a bundled model, takes precedence over a model of the Hub. A ``Path`` or
    ``./NAME`` is always a path; the Hub's folder of a model in its cache stands for its snapshot.

    Raises:
        ModelError: ``owner/name`` is neither a folder nor in the cache, and cannot be downloaded;
            the name is empty, longer than any, or an address.
    """
    _refuse_no_name(name)
    folder = shipped.model_folder(name)
    if folder.name.startswith("models--") and (folder / "snapshots").is_dir():
        id = folder.name.removeprefix("models--").replace("--", "/")
        return _cached(id, None, folder.parent) or folder
    named = _NAME.fullmatch(str(name))
    if isinstance(name, Path) or named is None or is_there(folder) or name.endswith(_FILES):
        return folder
    id, revision = named["id"], named["revision"]
    owner, _, _ = id.rpartition("/")
    if owner and Path(owner).is_dir():  # a path, misspelt
        return folder
    from huggingface_hub import constants

    cached = _cached(id, revision, cache())
    if cached is not None and (not owner or constants.HF_HUB_OFFLINE or _is_whole(cached)):
        return cached
    return _download(id, revision) if owner else folder


def _refuse_no_name(name: str | Path) -> None:
    """Refuse what no folder and no model can be named.

    Raises:
        ModelError: it is empty, longer than any name, has a NUL, or is an address.
    """
    text = str(name)
    parts = text.encode(errors="replace").split(b"/")
    if not text.strip() or "\0" in text or max(map(len, parts)) > 240 or len(text) > 4000:
        raise ModelError(f"{text[:40]!r} is not the name of a model or folder.")
    if found := _ADDRESS.match(text):
        raise ModelError(f"{name} is an address; name the model as {found['id']}.")


def cache() -> Path:
    """The local cache of the Hugging Face Hub."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _cached(id: str, revision: str | None, where: Path) -> Path | None:
    """A model's folder in a cache; None if it has none of this revision."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        found = snapshot_download(
            id,
            revision=revision,
            cache_dir=where,
            local_files_only=True,
            allow_patterns=[*_FETCHED],
        )
    except (HFValidationError, LocalEntryNotFoundError):
        return None
    return Path(found)


def _is_whole(snapshot: Path) -> bool:
    """Whether a snapshot has weights; other programs download some files only."""
    names = (*_PICKLED, "*.safetensors", "model.safetensors.index.json", "[0-9]_*/*.safetensors")
    return any(path.exists() for name in names for path in snapshot.glob(name))


def _download(id: str, revision: str | None) -> Path:
    """Fetch a model's files into the cache.

    Raises:
        ModelError: there is none of this name, none of its files holds weights that are read, or
            the network fails.
    """
    from huggingface_hub import HfApi, constants, snapshot_download

    try:
        info = HfApi().model_info(id, revision=revision)
        names = [file.rfilename for file in info.siblings or ()]
        if not any(name.endswith(".safetensors") for name in names):
            raise ValueError("it has no weights as safetensors.")
        print_note(f"downloading {id}@{info.sha} into {cache()}")
        return Path(snapshot_download(id, revision=revision, allow_patterns=[*_FETCHED]))
    except Exception as error:  # of the library, and of whatever HTTP library it uses
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        at = f" at revision {revision}" if revision else ""
        raise ModelError(
            f"{id}: there is no such folder here, no model of this name{at} in the local cache of "
            f"the Hugging Face Hub ({cache()}), and it cannot be downloaded from "
            f"{constants.ENDPOINT}/{id}: {reason} Models that come with bothways: "
            f"{', '.join(shipped.SHIPPED)}."
        ) from None
