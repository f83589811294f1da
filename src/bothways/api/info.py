"""What a folder is: what it holds, which verbs fit it, and what to run next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.corpus.store import MANIFEST, Manifest
from bothways.errors import BothwaysError, InputError
from bothways.families.heads import (
    HEADS,
    MASKED_LM,
    NEXT_SENTENCE,
    parameter_count,
    use_of,
)
from bothways.io.hub import named_folder
from bothways.io.json_files import read_json_file
from bothways.io.records import INPUT_SUFFIXES
from bothways.io.run_folders import RUN_FILE, model_of_seed
from bothways.io.streams import visible
from bothways.io.terminal import counted
from bothways.runtime.adapters import is_adapter
from bothways.runtime.diagnosis import models_in, runs_in
from bothways.runtime.embeddings import pools
from bothways.runtime.folder import (
    ABOUT,
    LoadedModel,
    load_model,
)
from bothways.runtime.original_files import is_original
from bothways.runtime.sentence_modules import has_modules
from bothways.tasks.options import traits_of
from bothways.tokenization.reading import TOKENIZER_FILE, VOCABULARY_FILE
from bothways.tokenization.tokenizer import Tokenizer

_CONFIG, _REPORT, _DEMO = "config.json", "report.json", "demo.json"
_TABLES = (".tsv", ".csv", ".jsonl", ".json", ".conll")
_OF_MODELS = (".json", ".safetensors", ".bin", ".onnx", ".model", ".txt")
# The verb for a head without a task, with what it needs behind the model.
_VERBS: dict[str, tuple[str, ...]] = {
    MASKED_LM: ("fill-mask",),
    NEXT_SENTENCE: ("next-sentence", "a text", "another text"),
}


@dataclass(frozen=True)
class Info:
    """What a folder is.

    Attributes:
        folder: as it was found.
        kind: what it is, in words.
        facts: what it holds, by name.
        verbs: those that fit it.
        next: command lines to go on with.
    """

    folder: Path
    kind: str
    facts: Mapping[str, str]
    verbs: tuple[str, ...] = ()
    next: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """For the terminal."""
        width = max(map(len, self.facts), default=0)
        lines = [f"{self.folder}: {self.kind}"]
        lines += [f"  {name:<{width}}  {value}" for name, value in self.facts.items()]
        if self.verbs:
            lines += ["", f"verbs that fit: {', '.join(self.verbs)}"]
        if self.next:
            lines += ["", "next:", *(f"  {command}" for command in self.next)]
        return lines

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def info(folder: str | Path) -> Info:
    """What a folder, or a file, is and what can be done with it.

    Args:
        folder: of a model, a run, a corpus, a vocabulary, or one that another program wrote; or the
            name of a bundled model.

    Raises:
        InputError: there is no such folder, or nothing in it is known.
        BothwaysError: a corpus or a vocabulary that is damaged.
    """
    found = model_of_seed(named_folder(folder))
    if is_original(found):
        return _model(found, str(folder))
    if found.is_file():
        return _file(found)
    if not found.is_dir():
        raise InputError(f"{folder}: no such file or folder, and no model of this name.")
    if (found / MANIFEST).is_file():
        return _corpus(found)
    if (found / RUN_FILE).is_file():
        return _run(found)
    if (found / _DEMO).is_file():
        return _runs(found, "a demonstration (`bothways demo`)")
    known = (found / _CONFIG, found / ABOUT)
    if any(map(Path.is_file, known)) or has_modules(found) or is_adapter(found):
        return _model(found, str(folder))
    if (found / TOKENIZER_FILE).is_file() or (found / VOCABULARY_FILE).is_file():
        return _vocabulary(found)
    if runs_in(found):
        return _runs(found, "a folder of runs")
    texts = [path for path in sorted(found.iterdir()) if path.suffix in INPUT_SUFFIXES]
    if texts:
        command = _command("vocab", "--files", found, "--out", "vocabulary")
        return Info(found, f"a folder of {len(texts):,} text files", {}, ("vocab",), (command,))
    if inside := models_in(found):
        commands = tuple(_command("info", path) for path in inside[:3])
        facts = {"models": ", ".join(map(str, inside))}
        return Info(found, "a folder of models", facts, ("info",), commands)
    raise InputError(
        f"{folder}: holds no model, run, corpus, vocabulary or text that bothways knows."
    )


def _command(*words: str | Path) -> str:
    return visible(shlex.join(["bothways", *map(str, words)]))


def _file(path: Path) -> Info:
    if path.suffix.lower() in _OF_MODELS and (path.parent / _CONFIG).is_file():
        command = _command("info", path.parent)
        return Info(path, "a file of a model, which is its folder", {}, ("info",), (command,))
    if path.suffix.lower() in _TABLES:
        command = _command("finetune", "--train", path, "--dev", "0.1")
        return Info(path, "a file", {}, ("finetune", "evaluate"), (command,))
    command = _command("vocab", "--files", path, "--out", "vocabulary")
    return Info(path, "a file", {}, ("vocab", "corpus"), (command,))


def _corpus(folder: Path) -> Info:
    report, options = (manifest := Manifest.read(folder)).report, manifest.options
    scripts = ", ".join(
        f"{name} {share:.1%}" for name, share in list(report["scripts"].items())[:3]
    )
    facts = {
        "to train on": _amount(report["train"]),
        "held out": _amount(report["heldout"]),
        "letters": scripts,
        "language": str(options.get("language", "")),
        "vocabulary": f"{manifest.vocab_size:,} pieces",
        "unknown pieces": f"{report['unknown_rate']:.2%}",
    }
    commands = (
        _command("corpus", "show", folder),
        _command("pretrain", "--corpus", folder, "--minutes", "10"),
    )
    return Info(folder, "a corpus", facts, ("pretrain", "plan", "corpus show"), commands)


def _amount(split: Mapping[str, Any]) -> str:
    return f"{split['documents']:,} documents, {split['tokens']:,} tokens"


def _vocabulary(folder: Path) -> Info:
    facts = {"tokenizer": repr(Tokenizer.from_folder(folder)).removeprefix("Tokenizer: ")}
    commands = (
        _command("tokenize", folder, "a sentence of yours"),
        _command("corpus", "--files", "texts", "--tokenizer", folder, "--out", "corpus"),
    )
    verbs = ("tokenize", "corpus", "vocab extend")
    return Info(folder, "a vocabulary", facts, verbs, commands)


def _runs(folder: Path, kind: str) -> Info:
    runs = runs_in(folder)
    facts = {"runs": ", ".join(path.name for path in runs)} if runs else {}
    commands = tuple(_command("info", path) for path in runs[:3])
    return Info(folder, kind, facts, ("info",), commands)


def _run(folder: Path) -> Info:
    record = _json(folder / RUN_FILE)
    verb, config = str(record.get("verb")), record.get("config", {})
    report = _json(folder / _REPORT)
    models = [folder / name for name in report.get("models", ["model"])]
    models = [path for path in models if path.is_dir()]
    facts: dict[str, str] = {}
    for name in ("corpus", "start", "model"):
        if isinstance(config.get(name), str) and config[name]:
            facts[name] = config[name]
    if steps := record.get("resolved", {}).get("steps"):
        facts["steps"] = f"{steps:,}"
    if config.get("train"):
        facts |= {"task": f"{config['name']}, {config['kind']}", "train": str(config["train"])}
    if mean := report.get("mean"):
        shown = ", ".join(f"{metric} {value:.4f}" for metric, value in list(mean.items())[:3])
        facts["dev scores"] = f"{shown} ({len(report['seeds'])} trained)"
    if not models and isinstance(layers := report.get("dev"), dict):  # `features` keeps no model
        facts |= {
            f"dev {report.get('metric')}, {name}": ", ".join(f"{score:.4f}" for score in scores)
            for name, scores in layers.items()
        }
        return Info(folder, f"a finished run of `bothways {verb}`", facts, (verb,))
    if not models:
        facts["model"] = "none yet: not finished; the same command goes on where it stopped"
        return Info(folder, f"a run of `bothways {verb}`", facts, (verb,))
    best = folder / str(report.get("best", "")).replace(" ", "-") / "model"
    chosen = best if best in models else models[0]
    facts["models"] = ", ".join(str(path) for path in models[:5])
    inner = info(chosen)
    verbs = tuple(dict.fromkeys([*inner.verbs, verb]))
    return Info(folder, f"a finished run of `bothways {verb}`", facts, verbs, inner.next)


def _model(folder: Path, name: str) -> Info:
    ours = (folder / ABOUT).is_file()
    maker = "a model" if ours else "a model that another program wrote"
    try:
        loaded = load_model(name)
    except BothwaysError as error:
        facts = {"problem": str(error)}
        return Info(folder, f"{maker}, which cannot be used", facts)
    heads = {**dict.fromkeys(loaded.heads), **loaded.refused}
    return Info(
        folder,
        maker,
        dict(_facts(loaded)) | {f"unused: {h}": why for h, why in heads.items() if why},
        tuple(_verbs(loaded)),
        tuple(_next(loaded, name)),
    )


def _heads(loaded: LoadedModel) -> list[str]:
    """The heads, as what they are used."""
    return [use_of(name, str(loaded.about.get("kind", ""))) for name in loaded.heads]


def _usable(loaded: LoadedModel) -> list[str]:
    """The heads with a verb that are whole, as what they are used."""
    uses = zip(loaded.heads, _heads(loaded), strict=True)
    return [
        use
        for name, use in uses
        if (use in _VERBS or HEADS[use].task) and name not in loaded.refused
    ]


def _command_of(loaded: LoadedModel, head: str) -> tuple[str, ...]:
    """The verb for a head, and its arguments behind the model."""
    if not HEADS[head].task:
        return _VERBS[head]
    usage = traits_of(loaded.about.get("kind") or HEADS[head].kind).usage
    pair = loaded.about.get("pair") and usage.pair_arguments
    return ("predict", *(pair or usage.arguments))


def _verbs(loaded: LoadedModel) -> Iterator[str]:
    """The verbs that fit a model: a graph gives its own outputs alone, and nothing trains it."""
    usable, weights = _usable(loaded), loaded.weights is not None
    for head in usable:
        yield _command_of(loaded, head)[0]
    if weights or not loaded.heads:
        yield "embed"
    yield "tokenize"
    if weights:
        yield "inspect"
    if any(HEADS[head].task or (weights and head == MASKED_LM) for head in usable):
        yield "evaluate"
    yield "serve"
    if weights:
        if not loaded.lstm and loaded.task_head not in loaded.refused:
            yield "export"
        yield "finetune"


def _facts(loaded: LoadedModel) -> Iterator[tuple[str, str]]:
    config, about = loaded.config, loaded.about
    heads, million = [HEADS[name].title for name in _heads(loaded)], parameter_count(config) / 1e6
    yield "family", config.family
    yield (
        "encoder",
        f"{counted(config.layers, 'layer')}, hidden {config.hidden}, "
        f"{counted(config.heads, 'attention head')}, "
        f"{million:.1f} M weights, at most {config.positions:,} tokens",
    )
    yield "tokenizer", repr(loaded.tokenizer).removeprefix("Tokenizer: ")
    yield "heads", ", ".join(heads) or "none: an encoder alone"
    if "pooling" in about:  # of sentence-transformers
        unit = ", of length 1" if about.get("normalize") else ""
        cut = f"; texts are cut to {about['cut_at']} tokens" if "cut_at" in about else ""
        yield "vectors", f"{about['pooling']}{unit}{cut}"
    if prompts := about.get("prompts"):
        yield "prompts", ", ".join(map(str, prompts))
    if "kind" in about:
        yield "task", f"{about.get('task', '')}, {about['kind']}".removeprefix(", ")
    if labels := [str(label) for label in about.get("labels") or ()]:
        more = f" and {len(labels) - 20} more" if len(labels) > 20 else ""
        yield "labels", ", ".join(labels[:20]) + more
        if loaded.task is not None and (note := loaded.task.threshold_note):
            yield "threshold", note
    if scores := about.get("dev"):
        yield "dev scores", ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items())
    for key, title in (("made_by", "made by"), ("source", "from"), ("start", "from")):
        if about.get(key):
            yield title, str(about[key])
    for number, note in enumerate(loaded.notes, 1):
        yield f"note {number}", note


def _next(loaded: LoadedModel, name: str) -> Iterator[str]:
    for head in _usable(loaded):
        if head == MASKED_LM:
            mask = loaded.tokenizer.roles.mask
            if mask:
                yield _command("fill-mask", name, f"A text with a {mask}.")
        else:
            verb, *rest = _command_of(loaded, head)
            yield _command(verb, name, *rest)
    if any(HEADS[head].task for head in loaded.heads):
        return
    if "embed" in (verbs := [*_verbs(loaded)]):
        how = [] if pools(loaded) else ["--pooling", "mean"]
        yield _command("embed", name, "a text", *how, "--out", "vectors.npz")
    if "finetune" in verbs:
        yield _command("finetune", "--train", "train.csv", "--dev", "0.1", "--model", name)


def _json(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one if there is none, or none that can be read."""
    try:
        value = read_json_file(path)
    except (BothwaysError, OSError):
        return {}
    return value if isinstance(value, dict) else {}
