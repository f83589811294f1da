"""Where a model is that is given by a path or by a name: a folder here, a bundled model, a model in
the local cache of the Hugging Face Hub, or one that is downloaded into it.

The cache is read without any library. Nothing is asked of the network unless ``huggingface_hub``
is installed, the name has an owner (``klue/bert-base``) and the model is not in the cache; then the
files that a model folder has are fetched, weights as safetensors only. ``owner/name@revision``
names a branch, a tag or a commit; a commit is the same model for ever.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bothways import shipped
from bothways.errors import ModelError, nearest
from bothways.io.files import expanded, write_text
from bothways.io.folder_files import is_there
from bothways.io.run_folders import model_of_run
from bothways.io.terminal import print_note

_NAME = re.compile(
    r"(?P<id>(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w][\w./-]*))?"
)
_ADDRESS = re.compile(
    r"(?:https?://(?:www\.)?(?:huggingface\.co|hf\.co)|hf:/)/(?P<id>[\w.-]+/[\w.-]+)", re.IGNORECASE
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORT = re.compile(r"[0-9a-f]{7,39}")  # a commit's beginning
# Bytes of a name in any file system, and of a path on Linux, with room for endings and files.
_LONGEST, _LONGEST_PATH = 240, 4000
_MAIN = "main"
_FILES = (".txt", ".json", ".model", ".safetensors", ".bin", ".yaml", ".onnx")  # ends of paths
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
_OLD_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_SETTINGS = ("config.json", "adapter_config.json", "modules.json")
_FETCHED = (
    *(*_SETTINGS, *_WEIGHTS, "model-*-of-*.safetensors", "bothways.json", "checksums.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("sentence_*_config.json", "config_sentence_transformers.json"),
    # What sentence-transformers keeps of each of its modules.
    *("[0-9]_*/*.json", "[0-9]_*/*.safetensors", "[0-9]_*/vocab.txt"),
)
_ON = ("1", "on", "yes", "true")


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
        return _snapshot(folder, None) or folder
    named = _NAME.fullmatch(str(name))
    if isinstance(name, Path) or named is None or is_there(folder) or name.endswith(_FILES):
        return folder
    id, revision = named["id"], named["revision"]
    owner, _, _ = id.rpartition("/")
    if owner and Path(owner).is_dir():  # a path, misspelt
        return folder
    place = cache() / f"models--{id.replace('/', '--')}"
    if len(place.name) > _LONGEST:
        return folder
    cached = _snapshot(place, revision)
    if cached is not None and (not owner or _is_whole(cached)):
        return cached
    if not owner:
        return folder
    if (reason := _why_not_online()) and cached is not None:
        return cached  # which file is missing is said where it is needed
    if reason:
        which = f" at revision {revision}" if revision else ""
        raise ModelError(
            f"{name}: there is no such folder here, and no model {id}{which} in the local cache of "
            f"the Hugging Face Hub ({place}); {reason}. {_instead(place, id)}Models that come with "
            f"bothways: {', '.join(shipped.SHIPPED)}."
        )
    return _download(id, revision, place)


def _refuse_no_name(name: str | Path) -> None:
    """Refuse what is the name of no folder and no model.

    Raises:
        ModelError: it is empty, longer than any, has a NUL, or is an address.
    """
    if isinstance(name, str) and not name.strip():
        raise ModelError(
            "the name of the model is empty, such as of a variable of the shell that is not set; "
            "name a folder or a model."
        )
    if "\0" in str(name):
        raise ModelError(f"{str(name)!r} holds a NUL, which no path has; name a folder or a model.")
    encoded = str(name).encode(errors="replace")
    if max(map(len, encoded.split(b"/"))) > _LONGEST or len(encoded) > _LONGEST_PATH:
        raise ModelError(
            f"{str(name)[:40]}...: no model or folder has a name of {len(str(name)):,} characters; "
            "where a verb takes a model and texts, the model is first."
        )
    if found := _ADDRESS.match(str(name)):
        raise ModelError(f"{name} is an address; name the model as {found['id']}.")


def _instead(place: Path, id: str) -> str:
    """What the cache has in place of a model that it lacks, as a sentence; or nothing."""
    if commits := _commits(place):
        refs = place / "refs"
        names = [str(p.relative_to(refs)) for p in sorted(refs.rglob("*")) if p.is_file()]
        names = [name for name in names if _snapshot(place, name) is not None]
        return f"It has its revisions {', '.join([*names, *commits])}. "
    there = [p.name.removeprefix("models--").replace("--", "/") for p in cache().glob("models--*")]
    close = nearest(id, sorted(there))
    return f"Did you mean {close}? " if close else ""


def _commits(place: Path) -> list[str]:
    if not (place / "snapshots").is_dir():
        return []
    return [path.name for path in sorted((place / "snapshots").iterdir()) if path.is_dir()]


def cache() -> Path:
    """The local cache of the Hugging Face Hub, which its library's variables move."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if value := os.environ.get(name):
            return expanded(value)
    home = os.environ.get("HF_HOME")
    if not home:
        home = str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return expanded(home) / "hub"


def _snapshot(place: Path, revision: str | None) -> Path | None:
    """A model's folder in the cache; None if it has none of this revision."""
    if revision is not None and (place / "snapshots" / revision).is_dir():
        return place / "snapshots" / revision
    if revision is not None and _SHORT.fullmatch(revision):
        begin = [commit for commit in _commits(place) if commit.startswith(revision)]
        if len(begin) == 1:
            return place / "snapshots" / begin[0]
    try:
        commit = (place / "refs" / (revision or _MAIN)).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = ""
    if commit and Path(commit).name == commit and (place / "snapshots" / commit).is_dir():
        return place / "snapshots" / commit
    if _COMMIT.fullmatch(commit):
        return None  # which the cache lacks: another one is not what is named
    if revision is None and (there := _commits(place)):
        if len(there) == 1:
            return place / "snapshots" / there[0]
        raise ModelError(
            f"{place} holds several snapshots and does not say which is meant; add one to the "
            f"name: @{', @'.join(there)}."
        )
    return None


def _is_whole(snapshot: Path) -> bool:
    """Whether a snapshot has settings and weights; downloads may have been of some files only."""
    encoders = [snapshot, *(p for p in snapshot.glob("[0-9]_*") if p.is_dir())]
    weights = (*_WEIGHTS, *_OLD_WEIGHTS)
    return any((snapshot / name).exists() for name in _SETTINGS) and any(
        (folder / name).exists() for folder in encoders for name in weights
    )


def _why_not_online() -> str:
    """Why nothing can be downloaded; empty if it can."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "").lower() in _ON:
            return f"{name} is set, so it is not downloaded"
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        return "huggingface_hub, which downloads it, is not installed: pip install 'bothways[hub]'"
    return ""


def _download(id: str, revision: str | None, place: Path) -> Path:
    """Fetch a model's files into the cache.

    Raises:
        ModelError: there is none of this name, none of its files holds weights that are read, or
            the network fails.
    """
    from huggingface_hub import HfApi, constants, hf_hub_download

    where = f"{constants.ENDPOINT}/{id}"
    try:
        info: Any = HfApi().model_info(id, revision=revision)
        commit, names = str(info.sha), [file.rfilename for file in info.siblings or ()]
    except Exception as error:  # of the library, and of whatever HTTP library it uses
        raise _failed(id, revision, place, where, error) from None
    if not _COMMIT.fullmatch(commit):
        raise ModelError(f"{where} answers with the revision {commit[:60]!r}, which is none.")
    wanted = [n for n in names if any(fnmatchcase(n, p) for p in _FETCHED) and _is_inside(n)]
    if not any(name.endswith(".safetensors") for name in wanted):
        old = [name for name in names if name in _OLD_WEIGHTS]
        what = f"only {old[0]}, which is pickled" if old else "none of those that are read here"
        raise ModelError(
            f"{where} has no weights as safetensors ({what}); nothing is downloaded. If you trust "
            "them, download the folder yourself, and name it."
        )
    print_note(f"downloading {id}@{commit} ({len(wanted)} files) into {place.parent}")
    try:
        for file in wanted:
            path = Path(hf_hub_download(id, file, revision=commit, cache_dir=place.parent))
    except Exception as error:
        raise _failed(id, revision, place, where, error) from None
    snapshot = place / "snapshots" / commit
    if not path.is_relative_to(snapshot):
        raise ModelError(f"{path} was downloaded, and should be in {snapshot}.")
    if not _COMMIT.fullmatch(revision or _MAIN):
        write_text(place / "refs" / (revision or _MAIN), commit)
    return snapshot


def _is_inside(name: str) -> bool:
    return not name.startswith("/") and ".." not in Path(name).parts


def _failed(id: str, revision: str | None, place: Path, where: str, error: Exception) -> ModelError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    answered = getattr(error, "response", None) is not None
    pinned = f" --revision {revision}" if revision else ""
    remedy = (
        f"Where there is a network, `hf download {id}{pinned} --local-dir DIR` makes a folder to "
        "name."
    )
    return ModelError(
        f"{id}: there is no such folder here, it is not in the local cache of the Hugging Face Hub "
        f"({place}), and it cannot be downloaded from {where}: {type(error).__name__}: {reason}"
        f"{'' if answered else f' {remedy}'}"
    )
