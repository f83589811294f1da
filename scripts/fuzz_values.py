"""Put hostile values under every key of the settings that bothways reads, and see what is said.

    python scripts/fuzz_values.py --seed 0 --count 60      (of each file, drawn by the seed)
    python scripts/fuzz_values.py --seed 0                 (all of them: hours)

Makes the folders of `fuzz_files.py` and one model of each family, and sets keys of config.json,
bothways.json, tokenizer_config.json, tokenizer.json, modules.json, checksums.json, corpus.json and
of recipes, at any depth, and keys that other programs write, to each of VALUES: numbers beyond all
sense, NaN, nothing, text, lists, deep objects. (Of long lists and vocabularies three entries, drawn
by the seed.) Each is used as its verb uses it, in a process forked for it that may take 4 GiB more:

* **named**: refused by one message that names the file, its folder or the key.
* **unnamed**: refused, but the message names none of these.
* **same**: used, with the result of the sound file. **note**: used, and a note says of what.
* **other**: used with another result and nothing said; `--show` lists them: each must be the
  value's plain meaning, such as another threshold.
* **runs**: a training that goes on as long as it was told to.
* **traceback**, **hang** (60 s), **memory** (4 GiB), **killed** (by a signal): faults.

Exits with 1 on any fault.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

import fuzz_files
from bothways.api.doctor import diagnose
from bothways.config.fields import option_types
from bothways.errors import BothwaysError
from bothways.families import FAMILIES, new_shape
from bothways.finetuning.options import FinetuneConfig
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.pretraining.options import PretrainConfig
from bothways.runtime.checksums import CHECKSUMS
from bothways.tokenization.tokenizer import Tokenizer

SECONDS = 60
TRAINING_SECONDS = 40
ENTRIES = 3
"""Of a list, or of an object with more than MANY keys."""
MANY = 40
OUTCOMES = "named unnamed note same other runs traceback hang memory killed".split()
FAULTS = ("traceback", "hang", "memory", "killed")


def deep() -> Any:
    value: Any = {}
    for _ in range(200):
        value = {"a": value}
    return value


VALUES: dict[str, Any] = {
    "10^9": 10**9,
    "-1": -1,
    "0": 0,
    "1e308": 1e308,
    "NaN": float("nan"),
    "empty text": "",
    "text": "a string",
    "null": None,
    "list": [],
    "deep object": deep(),
    "true": True,
    "huge text": "x" * 10**6,
}
OF_OTHERS = (  # keys of config.json that other programs write
    *("id2label", "label2id", "num_labels", "problem_type", "architectures", "model_type"),
    *("hidden_act", "position_embedding_type", "tie_word_embeddings", "quantization_config"),
    *("torch_dtype", "dtype", "classifier_dropout", "pad_token_id", "is_decoder", "rope_scaling"),
    *("pruned_heads", "add_cross_attention", "chunk_size_feed_forward", "summary_type"),
)


@dataclass
class Kind:
    """A file of settings.

    Attributes:
        name: in the table.
        folder, file: where it is.
        use: what reads it; gives a result to compare, and notes.
        further: keys that it does not have.
        training: using it trains, which may go on.
    """

    name: str
    folder: Path
    file: str
    use: fuzz_files.Use
    further: tuple[str, ...] = ()
    training: bool = False
    counts: Counter[str] = field(default_factory=Counter)


Path_ = tuple[str | int, ...]


def places(value: Any, draw: random.Random, at: Path_ = ()) -> Iterator[Path_]:
    """Where a value may be put: every key, and some entries of lists and long objects."""
    if isinstance(value, dict):
        keys: list[str | int] = list(value)
        if len(keys) > MANY:
            keys = draw.sample(keys, ENTRIES)
    elif isinstance(value, list):
        keys = list(range(len(value)))
        if len(keys) > ENTRIES:
            keys = draw.sample(keys, ENTRIES)
    else:
        return
    for key in keys:
        yield (*at, key)
        yield from places(value[key], draw, (*at, key))


def changed(content: Any, place: Path_, value: Any) -> Any:
    new = copy.deepcopy(content)
    inner = new
    for key in place[:-1]:
        inner = inner.setdefault(key, {}) if isinstance(inner, dict) else inner[key]
    inner[place[-1]] = value
    return new


# ------------------------------------------------------------------------------------------- world


def make_files(root: Path) -> None:
    """All folders; in a process of its own, as one that has trained cannot be forked."""
    fuzz_files.make_world(root)
    tokenizer = Tokenizer.from_folder(root / "tokenizer")
    for name in FAMILIES:
        folder = root / f"family-{name}"
        sizes = {"layers": 1, "hidden": 16, "heads": 2, "intermediate": 32, "positions": 64}
        shape = new_shape(name, vocab_size=tokenizer.vocab_size, **sizes)
        save_model(folder, EncoderModel(shape, masked_lm=True), tokenizer)
        for file in ("bothways.json", CHECKSUMS):
            (folder / file).unlink()
    modules = root / "modules"
    shutil.copytree(root / "family-bert", modules)
    (modules / "modules.json").write_text(json.dumps(MODULES))
    (modules / "1_Pooling").mkdir(exist_ok=True)
    (modules / "1_Pooling/config.json").write_text(json.dumps(POOLING))
    (root / "recipes").mkdir()
    (root / "recipes/pretrain.yaml").write_text(fuzz_files.RECIPE)
    (root / "recipes/finetune.yaml").write_text(FINETUNE)


def kinds_of(root: Path) -> list[Kind]:
    """The files of :func:`make_files` whose values are changed."""
    use, model = fuzz_files.use_model, "config.json"
    kinds = [Kind("ours: config.json", root / "ours", model, use, OF_OTHERS)]
    of_tokenizer = ("tokenizer_config.json", "tokenizer.json")
    kinds += [
        Kind(f"ours: {name}", root / "ours", name, use)
        for name in ("bothways.json", *of_tokenizer, CHECKSUMS)
    ]
    kinds += [Kind(f"{n}: config.json", root / f"family-{n}", model, use) for n in FAMILIES]
    kinds += [Kind(f"theirs: {n}", root / "family-bert", n, use) for n in of_tokenizer]
    kinds += [
        Kind(f"theirs: {name}", root / "modules", name, use)
        for name in ("modules.json", "1_Pooling/config.json")
    ]
    kinds.append(Kind("corpus.json", root / "corpus", "corpus.json", fuzz_files.use_corpus))
    for name, run, config in (
        ("pretrain", use_pretrain, PretrainConfig),
        ("finetune", use_finetune, FinetuneConfig),
    ):
        file, further = f"{name}.yaml", tuple(option_types(config))
        kinds.append(Kind(f"recipe: {name}", root / "recipes", file, run, further, training=True))
    return kinds


MODULES = [
    {"idx": n, "name": f"{n}", "path": path, "type": f"sentence_transformers.models.{kind}"}
    for n, (path, kind) in enumerate(
        [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    )
]
POOLING = {
    "word_embedding_dimension": 16,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
    "pooling_mode_mean_sqrt_len_tokens": False,
    "include_prompt": True,
}
FINETUNE = """\
task: {kind: classification, train: ../data/rows.tsv, dev: ../data/rows.tsv}
epochs: 1
batch: 8
seeds: [0]
length: 32
precision: fp32
threads: 1
"""


def use_pretrain(folder: Path) -> tuple[Any, list[str]]:
    corpus = Path.cwd() / "corpus"
    argv = ["pretrain", str(folder / "pretrain.yaml"), "--corpus", str(corpus)]
    fuzz_files.run([*argv, "--run", str(folder / "run")])
    return "ended", []


def use_finetune(folder: Path) -> tuple[Any, list[str]]:
    argv = ["finetune", str(folder / "finetune.yaml"), "--model", str(Path.cwd() / "theirs")]
    fuzz_files.run([*argv, "--run", str(folder / "run")])
    return "ended", []


# ----------------------------------------------------------------------------------------- children


def outcome(kind: Kind, folder: Path, key: str) -> tuple[str, Any]:
    """In the child: how the use ends."""
    text = ""
    try:
        result, notes = kind.use(folder)
    except BothwaysError as error:
        text = str(error)
        if "out of memory" in text:
            return "memory", text
        named = [kind.file, str(folder), *key.split(".")]
        return ("named" if any(name in text for name in named) else "unnamed"), text
    if kind.training:
        return "same", ""
    return "used", (result, notes)


def fuzz(kind: Kind, count: int, seed: int, root: Path, shown: bool) -> bool:
    draw = random.Random(f"{seed} {kind.name}")
    source = kind.folder / kind.file
    is_yaml = source.suffix == ".yaml"
    content = yaml.safe_load(source.read_text()) if is_yaml else json.loads(source.read_text())
    own = dict.fromkeys(places(content, draw))
    own |= dict.fromkeys(tuple(k.split(".")) if is_yaml else (k,) for k in kind.further)
    tries = list(itertools.product(own, VALUES.items()))
    if count:
        draw.shuffle(tries)
        tries = tries[:count]
    sound = True
    fresh = copied(kind, root)
    _, expected = fuzz_files.in_child(lambda: outcome(kind, fresh, "-"), SECONDS)
    for place, (name, value) in tries:
        folder = copied(kind, root)
        try:
            new = changed(content, place, value)
        except TypeError:  # a key of what is no object
            continue
        text = yaml.safe_dump(new) if is_yaml else json.dumps(new)
        (folder / kind.file).write_text(text, encoding="utf-8")
        key = ".".join(map(str, place))
        limit = TRAINING_SECONDS if kind.training else SECONDS
        what, told = fuzz_files.in_child(lambda: outcome(kind, folder, key), limit)  # noqa: B023
        if what == "used":
            result, notes = told
            same = result == expected[0]
            what = "same" if same else "note" if notes else "other"
            if same and notes != expected[1]:
                what = "note"
        if what == "hang" and kind.training and trains(folder):
            what = "runs"
        if not kind.training and what in ("named", "same", "note", "other"):
            seen, why = fuzz_files.in_child(lambda: ("", diagnose(folder) and None), SECONDS)  # noqa: B023
            if seen:
                what, told = seen, f"doctor: {why}"
        kind.counts[what] += 1
        sound &= what not in FAULTS
        if what in FAULTS or (shown and what in ("other", "unnamed")):
            where = ".".join(map(str, place))
            print(f"{kind.name} {where} = {name}: {what} {told}"[:2500], file=sys.stderr)
    return sound


def trains(folder: Path) -> bool:
    """Whether a run has begun to train, or to read what it trains on."""
    return any((folder / "run").rglob("metrics.jsonl"))


def copied(kind: Kind, root: Path) -> Path:
    """A copy under one name, so that messages compare."""
    place = root / "copy" / kind.folder.name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(kind.folder, place)
    return place


def table(kinds: list[Kind]) -> str:
    rows = [["file", "tries", *OUTCOMES], ["---"] * (2 + len(OUTCOMES))]
    for kind in kinds:
        counts = [kind.counts[name] for name in OUTCOMES]
        rows.append([kind.name, str(sum(counts)), *map(str, counts)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> int:
    assert __doc__
    options = fuzz_files.parser(__doc__, 0, "tries of each file; 0 is all").parse_args()
    torch.set_num_threads(1)

    def make(world: Path) -> list[Kind]:
        fuzz_files.made_in_child(lambda: make_files(world))
        return kinds_of(world)

    return fuzz_files.campaign(options, make, fuzz, table)


if __name__ == "__main__":
    sys.exit(main())
