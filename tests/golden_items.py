"""What a change of the code's form must not change, by name: token ids, files, batches, examples.

golden.json holds a digest of each item, and test_golden.py compares. Only what any processor
computes alike is here; ``scripts/compare_digests.py`` compares the rest between two source trees.

    python tests/golden_items.py --record          # after a change that is meant to change some
    python tests/golden_items.py --dump FOLDER     # the items themselves, to compare two revisions

The package's own modules are imported in one place, so that one that moves costs a line here.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

import bothways as bw
from bothways.cli import main as command_line
from bothways.corpus.store import TokenStore
from bothways.families.config import ModelConfig
from bothways.model.engine import network_of
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.objectives.masked import LeftToRight
from bothways.pretraining.batches import PhaseBatches
from bothways.pretraining.options import MaskOptions, PairOptions
from bothways.randomness import Purpose, below, bits, derived_seed, element_words, permutation
from bothways.tasks.kinds import KINDS
from bothways.tasks.options import SpanOptions, TaggingOptions, WindowOptions
from bothways.tasks.task import submission_rows
from bothways.training.options import Phase
from golden_texts import ODD, english, korean, write_labelled_files

GOLDEN = Path(__file__).with_name("golden.json")
Items = dict[str, Any]


# --------------------------------------------------------------------------- what items are made of


def run(*words: object) -> str:
    """What a command line prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = command_line([str(word) for word in words])
    assert status == 0, f"bothways {' '.join(map(str, words))}: exit status {status}"
    return out.getvalue()


def build_world(folder: Path) -> None:
    """Texts, vocabularies, corpora and labelled files that the items are made from."""
    with contextlib.chdir(folder):
        Path("en.txt").write_text(english(), encoding="utf-8")
        Path("ko.txt").write_text(korean(), encoding="utf-8")
        Path("both.txt").write_text(english() + "\n" + korean(), encoding="utf-8")
        write_labelled_files(Path("files"))
        for name, words in VOCABULARIES.items():
            run("vocab", *words, "--out", f"vocab/{name}", "--workers", 1)
        shards = "--heldout", 0.2, "--set", "shard_tokens=900"
        run("corpus", "--files", "en.txt", *_FROM_EN, *shards, "--out", "corpus/en", "--workers", 1)
        run("corpus", "--files", "en.txt", *_FROM_EN, *shards, "--out", "corpus/2", "--workers", 2)
        tokenizer = "--tokenizer", "vocab/composed", "--language", "ko"
        run("corpus", "--files", "ko.txt", *tokenizer, "--out", "corpus/ko", "--workers", 1)
        keep = "--single-sentence", "keep", "--sentences", "line", "--duplicates", "both"
        run("corpus", "--files", "both.txt", *_FROM_EN, *keep, "--out", "corpus/keep")


_FROM_EN = ("--tokenizer", "vocab/uncased")
_EN, _BOTH = ("--files", "en.txt"), ("--files", "both.txt")
VOCABULARIES: dict[str, tuple[object, ...]] = {
    "uncased": (*_EN, "--size", 160),
    "cased": (*_EN, "--size", 170, "--lowercase", "false", "--set", "unused=3"),
    "ratio": (*_EN, "--size", 160, "--set", "score=ratio", "--set", "min_pair_count=3"),
    "frequency": (*_EN, "--size", 160, "--set", "score=frequency", "--heldout", "ko.txt"),
    "composed": (*_BOTH, "--size", 260, "--normalization", "composed"),
    "bpe": (*_BOTH, "--size", 240, "--algorithm", "bpe", "--set", "alphabet=60"),
    "byte-bpe": (*_BOTH, "--size", 400, "--algorithm", "byte-bpe", "--lowercase", "false"),
}


# ---------------------------------------------------------------------------------------- the items


def randomness() -> Items:
    """Keyed draws, and seeds for generators."""
    counters = np.arange(50)
    return {
        "bits": [int(bits(3, purpose, 4, 5)) for purpose in Purpose],
        "below": below(counters + 1, 7, Purpose.SPLIT, 2, counters),
        "permutation": permutation(40, 1, Purpose.SHUFFLE, 2),
        "element words": element_words(40, 5, 6),
        "derived seeds": [derived_seed(n, Purpose.HEAD, n) for n in (0, 1, -1, 2**40)],
    }


def vocabularies() -> Items:
    """Learned vocabularies: the pieces by themselves, and all files."""
    found: Items = {}
    for name in VOCABULARIES:
        tokenizer = bw.Tokenizer.from_folder(f"vocab/{name}")
        found[f"{name}/pieces"] = tokenizer.pieces
        found[f"{name}/properties"] = [
            tokenizer.special_ids,
            tokenizer.starts_word,
            [tokenizer.text_of(i) for i in range(tokenizer.vocab_size)],
            [tokenizer.kind, tokenizer.normalization, tokenizer.lowercase, tokenizer.fingerprint],
        ]
        found |= _files(Path("vocab", name), name)
    Path("more.txt").write_text("boats\nbakery\n서울\n", encoding="utf-8")
    run("vocab", "extend", "--source", "vocab/cased", "--words", "more.txt", "--out", "extended")
    return found | _files(Path("extended"), "extended")


def tokens() -> Items:
    """Ids, offsets and words of odd texts, and back; pairs and truncation."""
    found: Items = {}
    for name in ("uncased", "cased", "composed", "bpe", "byte-bpe"):
        tokenizer = bw.Tokenizer.from_folder(f"vocab/{name}")
        for kind, text in ODD.items():
            encoding = tokenizer.encode(text)
            found[f"{name}/{kind}"] = [
                _encoding(encoding),
                tokenizer.encode_plain([text]),
                tokenizer.decode(encoding.ids),
                tokenizer.decode(encoding.ids, skip_special=False),
                tokenizer.normalize(text),
            ]
        texts = [*ODD.values()]
        pairs = tokenizer.encode_batch(texts, texts[::-1])
        found[f"{name}/pairs"] = [*map(_encoding, pairs)]
        for length in (3, 4, 5, 8, 15):
            cut = [
                *tokenizer.encode_batch(texts, max_length=length),
                *tokenizer.encode_batch(texts, texts[::-1], max_length=length),
                tokenizer.encode("a", texts[0], max_length=length + 2),
            ]
            found[f"{name}/cut to {length}"] = [*map(_encoding, cut)]
    return found


def corpora() -> Items:
    """The files of corpora, but for what says how long they took."""
    one, two = _files(Path("corpus/en"), "en"), _files(Path("corpus/2"), "en")
    other = {name: value for name, value in two.items() if name != "en/corpus.json"}
    assert other == {name: one[name] for name in other}, "two workers give another corpus than one"
    return one | _files(Path("corpus/ko"), "ko") | _files(Path("corpus/keep"), "keep")


def instances() -> Items:
    """The table of instances of an epoch and the order of training, for each kind of pairs."""
    found: Items = {}
    for pairs, corpus in _PAIRS.items():
        for number, length in enumerate((24, 64)):
            batches = _batches(corpus, pairs, "pieces", length=length, number=number)
            for epoch in (0, 1):
                table = batches.instances(epoch)
                name = f"{pairs}/length {length}/epoch {epoch}"
                found[f"{name}/table"] = [table.a, table.b, table.label]
                found[f"{name}/order"] = batches.order(epoch)
    return found


def batches() -> Items:
    """Flat micro-batches with their targets, for each kind of pairs and masks."""
    found: Items = {}
    for pairs, corpus in _PAIRS.items():
        for masks in ("pieces", "words", "left_to_right"):
            if masks == "left_to_right" and pairs in ("next", "order"):
                continue
            made = _batches(corpus, pairs, masks)
            for step in (0, 9):  # the second is of a later epoch
                parts = [_batch(batch) for batch in made.micro_batches(step)]
                found[f"{pairs}/{masks}/step {step}"] = parts
    special: dict[str, dict[str, Any]] = {
        "segmented": {"kind": "words", "segmented": True},
        "unspaced": {"kind": "words"},
        "rates": {"rate": 0.4, "mask": 0.5, "random": 0.4},
        "repeated": {"duplicates": 1},
    }
    for name, options in special.items():
        made = _batches("ko", "next", **options)
        found[f"masks/{name}"] = [_batch(batch) for batch in made.micro_batches(11)]
    found["first"] = [_batch(batch) for batch in _batches("en", "order", "words").first(9)]
    return found


def shown() -> Items:
    """What `corpus show` prints: tokens, targets, labels and cuts."""
    found: Items = {}
    for pairs, corpus in _PAIRS.items():
        for masks in ("pieces", "words", "left_to_right"):
            if masks == "left_to_right" and pairs in ("next", "order"):
                continue
            chosen = "--objective" if masks == "left_to_right" else "--masking-kind"
            words = "--pairs-kind", pairs, chosen, masks, "--length", 32
            split = ("--split", "heldout") if pairs == "order" else ()
            found[f"{pairs}/{masks}"] = run("corpus", "show", f"corpus/{corpus}", *words, *split)
    return found


_SHAPE: dict[str, Any] = {"layers": 2, "hidden": 32, "heads": 4, "intermediate": 48}
_LABELS = ["no", "yes", "neither"]
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pre-training": ({"masked_lm": True, "next_sentence": True}, {"made_by": "hand"}),
    "masked LM": ({"masked_lm": True}, {}),
    "next sentence": ({"next_sentence": True}, {}),
    "encoder": ({}, {}),
    "left to right": ({"masked_lm": True, "left_to_right": True}, {"masking": "left_to_right"}),
    "classification": ({"classes": 3}, {"kind": "classification", "labels": _LABELS}),
    "left-to-right classification": (
        {"classes": 3, "left_to_right": True},
        {"kind": "classification", "labels": _LABELS},
    ),
    "regression": ({"classes": 1}, {"kind": "regression", "labels": []}),
    "choice": ({"choices": True}, {"kind": "choice", "labels": []}),
    "tagging": ({"tags": 3}, {"kind": "tagging", "labels": ["O", "B-X", "I-X"]}),
    "spans": ({"spans": True}, {"kind": "spans", "labels": []}),
    "BiLSTM": ({"classes": 3, "lstm": 8}, {"kind": "classification", "labels": _LABELS}),
    "BiLSTM tagging": (
        {"tags": 3, "lstm": 8},
        {"kind": "tagging", "labels": ["O", "B-X", "I-X"]},
    ),
}


def models() -> Items:
    """Model folders: all files but the weights; names and shapes of these; and new weights, to a
    hundredth, because their last bits depend on the processor."""
    tokenizer = bw.Tokenizer.from_folder("vocab/uncased")
    found: Items = {}
    for number, (name, (parts, about)) in enumerate(MODELS.items()):
        heads = dict(parts)
        direction = heads.pop("left_to_right", False)
        size = tokenizer.vocab_size
        shape = ModelConfig(vocab_size=size, positions=40, left_to_right=direction, **_SHAPE)
        folder = Path("models", name)
        save_model(folder, EncoderModel(shape, seed=number, **heads), tokenizer, about)
        files = _files(folder, name)
        weights = files.pop(f"{name}/model.safetensors")
        start = 8 + int.from_bytes(weights[:8], "little")
        values = load_file(folder / "model.safetensors")
        rounded = {key: np.rint(values[key] * 100).astype(np.int64) for key in sorted(values)}
        loaded = bw.load(folder).loaded
        save_model(Path("models", "again"), network_of(loaded), loaded.tokenizer, loaded.about)
        again = _files(Path("models", "again"), name)
        assert again == files | {f"{name}/model.safetensors": weights}, f"{name} was not read back"
        found |= files
        found |= {f"{name}/weights' names": weights[8:start], f"{name}/weights, rounded": rounded}
    return found


_WINDOWS = WindowOptions(stride=8, pooling="mean")
_PAIR_COLUMNS: dict[str, Any] = {"text": "#1 String", "text_b": "#2 String", "label": "Quality"}
_SCORES: dict[str, Any] = {"kind": "regression", "text": "one"}
_CHOICES: dict[str, Any] = {"kind": "choice", "text": "sent1", "text_b": "sent2"}
TASKS: dict[str, tuple[str, int, bw.TaskOptions]] = {
    "classification": ("single.tsv", 24, bw.TaskOptions()),
    "classification in windows": (
        "single.tsv",
        16,
        bw.TaskOptions(long="windows", windows=_WINDOWS, labels=("good", "bad", "neither")),
    ),
    "pairs": ("pairs.csv", 24, bw.TaskOptions(**_PAIR_COLUMNS)),
    "pairs in windows": (
        "pairs.csv",
        40,
        bw.TaskOptions(**_PAIR_COLUMNS, long="windows", windows=_WINDOWS),
    ),
    "regression": ("scores.jsonl", 32, bw.TaskOptions(**_SCORES, label="score")),
    "regression on pairs": (
        "scores.json",
        32,
        bw.TaskOptions(**_SCORES, text_b="two", label="more.score"),
    ),
    "tagging": ("tags.txt", 32, bw.TaskOptions(kind="tagging")),
    "tagging by sentence": (
        "tags.txt",
        16,
        bw.TaskOptions(
            kind="tagging", tagging=TaggingOptions(context="sentence", learn="bioes", write="iob1")
        ),
    ),
    "questions": (
        "questions.json",
        48,
        bw.TaskOptions(kind="spans", spans=SpanOptions(stride=16, query_length=14)),
    ),
    "questions, answers searched": (
        "questions.json",
        384,
        bw.TaskOptions(kind="spans", spans=SpanOptions(misaligned="search", n_best=3)),
    ),
    "choices": (
        "choices.tsv",
        40,
        bw.TaskOptions(**_CHOICES, choices=("first", "second", "third")),
    ),
    "choices in a list": (
        "choices.jsonl",
        24,
        bw.TaskOptions(
            kind="choice",
            text="context",
            choices=("endings",),
            label="answer",
            labels=("A", "B", "C", "D"),
        ),
    ),
}


def examples() -> Items:
    """Labelled files of each kind of task, encoded; and what given outputs of a head mean."""
    tokenizer = bw.Tokenizer.from_folder("vocab/uncased")
    found: Items = {}
    for name, (file, length, options) in TASKS.items():
        kind = KINDS[options.kind]
        rows = kind.read(Path("files", file), options, labelled=True)
        task = kind.define(options, rows)
        encoded = task.encode(tokenizer, rows, length=length)
        made = encoded.examples
        found[f"{name}/task"] = [
            [task.options.labels, task.options.metrics, task.outputs, task.pair],
            [made.cut, encoded.notes, task.example_lengths(encoded)],
            task.hints(tokenizer, rows),
        ]
        found[f"{name}/tokens"] = [made.tokens, made.segments, made.bounds]
        found[f"{name}/items"] = [made.items, made.owners, made.whole]
        found[f"{name}/read positions"] = made.read_positions
        found[f"{name}/targets"] = [made.gold, made.trainable]
        chosen = np.arange(len(made))[::-2].copy()
        batch = made.batch(chosen, max_positions=length)
        flat = [*_inputs(batch.inputs), batch.read_positions, batch.bounds, batch.targets]
        found[f"{name}/batch"] = [*flat, made.count_targets(chosen)]
        outputs = _outputs(len(made.read_positions), task.outputs)
        predictions = task.decode(encoded, outputs)
        table = task.table(encoded, predictions)
        found[f"{name}/predictions"] = table
        found[f"{name}/measured"] = _rounded(task.measure(encoded, predictions).scores)
        found[f"{name}/baseline"] = _rounded(task.baseline(encoded, encoded).scores)
        path = Path("written", f"{name}.tsv")
        path.parent.mkdir(exist_ok=True)
        task.write(path, encoded, predictions)
        found[f"{name}/written"] = path.read_bytes()
        if options.kind != "tagging":
            found[f"{name}/submission"] = submission_rows(table)
    return found


def options() -> Items:
    """Every option and its default, of the verbs and the recipes that come with the package."""
    found: Items = {}
    for words in (
        *(("vocab",), ("vocab", "extend"), ("corpus",), ("corpus", "show"), ("pretrain",)),
        *(("finetune",), ("reproduce", "glue"), ("predict",), ("evaluate",), ("embed",)),
        *(("plan", "tiny"), ("pretrain", "tiny"), ("pretrain", "mini-ko")),
        *(("finetune", "mrpc"), ("finetune", "squad2"), ("finetune", "conll2003")),
        ("finetune", "swag"),
    ):
        needed = _REQUIRED.get(" ".join(words), ())
        found[" ".join(words)] = run(*words, *needed, "--print-config")
    return found


_REQUIRED: dict[str, tuple[str, ...]] = {
    "vocab": ("--files", "a", "--out", "b"),
    "vocab extend": ("--source", "a", "--out", "b", "--words", "c"),
    "corpus": ("--files", "a", "--tokenizer", "b", "--out", "c"),
    "corpus show": ("a",),
    "reproduce glue": ("--data", "a", "--run", "b"),
    "predict": ("a",),
    "evaluate": ("a", "b"),
    "embed": ("a", "--out", "b"),
}

GROUPS: Mapping[str, Callable[[], Items]] = {
    group.__name__: group
    for group in (
        *(randomness, vocabularies, tokens, corpora, instances, batches, shown, models),
        *(examples, options),
    )
}
"""Functions that compute items in the folder of :func:`build_world`, by name."""


# ----------------------------------------------------------------------------------- parts of items

_PAIRS = {"next": "en", "order": "en", "full": "en", "single": "keep"}
"""The kinds of pairs, with the corpus they are made from."""


def _batches(
    corpus: str,
    pairs: Any,
    kind: Any = "pieces",  # of masks, or left_to_right
    *,
    length: int = 40,
    number: int = 0,
    **masks: Any,
) -> PhaseBatches:
    return PhaseBatches(
        TokenStore.open(f"corpus/{corpus}", "train"),
        Phase(length=length, batch=12, micro_batch=5),
        pairs=PairOptions(kind=pairs, short=0.3),
        masking=MaskOptions() if kind == "left_to_right" else MaskOptions(kind=kind, **masks),
        objective=LeftToRight() if kind == "left_to_right" else None,
        seed=17,
        number=number,
    )


def _batch(batch: Any) -> list[Any]:
    masked = batch.masked
    return [*_inputs(batch.inputs), masked.positions, masked.ids, masked.count, batch.random_next]


def _inputs(inputs: Any) -> list[Any]:
    return [inputs.tokens, inputs.segments, inputs.positions, inputs.bounds]


def _encoding(encoding: Any) -> list[Any]:
    return [encoding.ids, encoding.segments, encoding.offsets, encoding.words, encoding.cut]


def _outputs(rows: int, columns: int) -> NDArray[np.float32]:
    """Outputs of a head: multiples of a half, which any processor computes with alike."""
    number = np.arange(rows)[:, None] * 7 + np.arange(columns) * 13
    outputs: NDArray[np.float32] = (((number * number + number) % 23 - 11) / 2).astype(np.float32)
    return outputs


def _rounded(scores: Mapping[str, float]) -> dict[str, str]:
    return {name: f"{score:.6f}" for name, score in scores.items()}


def _files(folder: Path, name: str) -> Items:
    """The files of a folder, without times and what is written for people."""
    found: Items = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".html" and path.name != "README.md":
            content: Any = path.read_bytes()
            if path.name == "corpus.json":
                content = json.loads(content)
                del content["report"]["seconds"], content["report"]["mb_per_second"]
            found[f"{name}/{path.relative_to(folder)}"] = content
    return found


# ------------------------------------------------------------------------------------------ digests


def as_text(value: Any) -> str:
    """An item as JSON, arrays with their types."""
    return json.dumps(_plain(value), ensure_ascii=False, indent=0)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return {f"{value.dtype}{list(value.shape)}": " ".join(map(str, value.ravel().tolist()))}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex(" ", 32)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def digest(value: Any) -> str:
    """A short checksum of an item."""
    return hashlib.sha256(as_text(value).encode()).hexdigest()[:16]


def compute(group: str, world: Path) -> Items:
    """The items of a group by their full names, computed in the folder of :func:`build_world`."""
    with contextlib.chdir(world):
        return {f"{group}: {name}": value for name, value in GROUPS[group]().items()}


def recorded() -> dict[str, str]:
    """The digests of golden.json."""
    found: dict[str, str] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The items that changed, as lines."""
    return [
        f"{name}: {before.get(name, 'not recorded')} -> {now.get(name, 'gone')}"
        for name in [*before, *(name for name in now if name not in before)]
        if before.get(name) != now.get(name)
    ]


def main() -> None:
    """Compare, record or dump the items."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="write golden.json anew")
    parser.add_argument("--dump", type=Path, help="folder to write the items themselves to")
    chosen = parser.parse_args()
    now: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        build_world(Path(folder))
        for group in GROUPS:
            for name, value in compute(group, Path(folder)).items():
                now[name] = digest(value)
                if chosen.dump:
                    path = chosen.dump / name.replace(": ", "/").replace(" ", "_")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.with_name(path.name + ".txt").write_text(as_text(value), encoding="utf-8")
    changed = differences(recorded() if GOLDEN.exists() else {}, now)
    print("\n".join([*changed, f"{len(changed)} of {len(now)} items changed"]))
    if chosen.record:
        GOLDEN.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.exit(bool(changed) and not chosen.record)


if __name__ == "__main__":
    main()
