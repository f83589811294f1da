"""The README.md of a model folder: what the model is, how it scored, how other libraries load it.

Its writer may change it, and fill in what only people know, such as the licence. So it has no entry
in ``checksums.json``; and its last line says by a digest whether it is still as it was written,
without which nothing here replaces it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bothways.families import family_of
from bothways.families.heads import CHOICE, HEADS, MASKED_LM, NEXT_SENTENCE, use_of
from bothways.io.files import as_utf8, write_text
from bothways.io.terminal import counted
from bothways.runtime.folder import LoadedModel, differences_elsewhere
from bothways.runtime.weights import has_weights
from bothways.tasks.options import traits_of

CARD = "README.md"

_MARK = re.compile(
    r"<!-- written by bothways, ([0-9a-f]{16}); without this line, kept as it is -->"
)
_SCORES = "## Scores"
_SHOWN_LABELS = 40
_RECORDED = (
    *("made_by", "source", "converted_from", "start", "corpus", "steps", "pairs", "masking"),
    *("epoch", "seed", "setting", "length", "precision"),
)
"""Entries of bothways.json about the training."""


def write_card(folder: Path, loaded: LoadedModel) -> None:
    """Write the card of a model folder, unless it has one that is not as we wrote it.

    Args:
        folder: exists, with the weights or the graph in it.
        loaded: what it holds. The card says nothing of when or where it was written, so that the
            same model has the same.

    Raises:
        DiskError: it could not be written.
    """
    _replace(folder / CARD, _card(loaded, exported=not has_weights(folder)))


def write_scores(folder: Path, rows: Sequence[Sequence[str]], notes: Sequence[str]) -> None:
    """Replace the scores in the card of a model folder by those of all seeds.

    A card that is missing or was changed stays so.

    Args:
        folder: of the model.
        rows: a table of scores, its header first.
        notes: sentences below it.

    Raises:
        DiskError: it could not be written.
    """
    path = folder / CARD
    text = _own_text(path)
    if text is None or _SCORES not in text:
        return
    before, _, rest = text.partition(_SCORES)
    after = rest[rest.index("\n## ") + 1 :] if "\n## " in rest else ""
    _replace(path, f"{before}{_scores(rows, notes)}\n\n{after}")


def _replace(path: Path, text: str) -> None:
    if path.exists() and _own_text(path) is None:
        return
    marked = (
        f"{text}\n<!-- written by bothways, {_digest(text)}; without this line, kept as it is -->\n"
    )
    if not path.exists() or path.read_text(encoding="utf-8") != marked:
        write_text(path, marked)


def _own_text(path: Path) -> str | None:
    """The card without its last line; None if it is not as it was written."""
    try:
        text, _, last = path.read_text(encoding="utf-8").rstrip("\n").rpartition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    mark = _MARK.fullmatch(last)
    return text if mark and mark[1] == _digest(text) else None


def _digest(text: str) -> str:
    return hashlib.sha256(as_utf8(text)).hexdigest()[:16]


def _card(loaded: LoadedModel, *, exported: bool) -> str:
    about, family = loaded.about, family_of(loaded.config)
    kind = str(about.get("kind", "")) if loaded.task_head else ""
    filling = "fill-mask" if MASKED_LM in loaded.heads else "feature-extraction"
    pipeline = traits_of(kind).pipeline if kind else filling
    vectors = pipeline == "feature-extraction" and not (exported and loaded.heads)
    tags = ["bothways", family.model_type, *(["sentence-transformers"] if vectors else [])]
    title = about.get("task") or f"{family.title} encoder"
    library = "transformers" if _opens_elsewhere(loaded, kind) else "bothways"
    front = [
        "---",
        "# license: fill in, for example apache-2.0; without a licence nobody may use the model",
        "# language: fill in, for example ko",
        f"library_name: {'onnx' if exported else library}",
        f"pipeline_tag: {pipeline}",
        f"tags: [{', '.join(tags)}]",
        "---",
    ]
    known = [
        f"* {name.replace('_', ' ')}: {_value(about[name])}"
        for name in _RECORDED
        if about.get(name) not in (None, "")
    ]
    parts = [
        "\n".join(front),
        f"# {title}\n\n{_what(loaded, kind, exported=exported)}",
        "\n".join(["## Data\n", "* texts: fill in whose, from when, and how many", *known]),
        _scores(*_own_scores(about)),
        f"## Limits\n\n{_limits(loaded)}",
        "## Use\n\n" + "\n\n".join(_use(loaded, kind, pipeline, exported=exported)),
        "## Licence\n\nFill in the licence of the weights.",
    ]
    return "\n\n".join(parts) + "\n"


def _what(loaded: LoadedModel, kind: str, *, exported: bool) -> str:
    config, tokenizer, labels = loaded.config, loaded.tokenizer, loaded.about.get("labels") or ()
    heads = [f"a {HEADS[use_of(name, kind)].title}" for name in loaded.heads]
    case = "lower-cased" if tokenizer.lowercase else "cased"
    text = (
        f"A {family_of(config).title} encoder with {' and '.join(heads) or 'no head'}: "
        f"{counted(config.layers, 'layer')}, {counted(config.hidden, 'hidden unit')}, "
        f"{counted(config.heads, 'attention head')}, {loaded.parameters:,} weights, texts of up to "
        f"{_longest(loaded):,} tokens. Its vocabulary has {tokenizer.vocab_size:,} pieces "
        f"({tokenizer.kind}, {case})."
    )
    text += f" The task is of the kind `{kind}`." if kind else ""
    if labels:
        more = f" and {len(labels) - _SHOWN_LABELS:,} more" * (len(labels) > _SHOWN_LABELS)
        text += f"\n\nLabels: {', '.join(f'`{label}`' for label in labels[:_SHOWN_LABELS])}{more}."
    return text + "\n\nThis folder has it as an ONNX graph, without its weights." * exported


def _longest(loaded: LoadedModel) -> int:
    """The tokens of a text: what vectors are made of, or the encoder reads."""
    return int(loaded.about.get("cut_at") or loaded.config.positions)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(one)}" for name, one in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _own_scores(about: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    scores = about.get("dev") or {}
    if not scores:
        return [], []
    rows = [["", *scores], ["this model", *(f"{score:.4f}" for score in scores.values())]]
    return rows, ["on dev, of one seed"]


def _scores(rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    if not rows:
        return f"{_SCORES}\n\nNone are recorded (`bothways evaluate` measures)."
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join([_SCORES, "", *lines, "", *(f"* {note}" for note in notes)])


def _limits(loaded: LoadedModel) -> str:
    about, tokenizer = loaded.about, loaded.tokenizer
    length = about.get("length") or _longest(loaded)
    lines = [f"Texts longer than {length:,} tokens are cut or read in parts."]
    if tokenizer.lowercase:
        lines.append("Case is lost, which names of people and places show.")
    if tokenizer.segmenter is not None:
        lines.append(
            f"Texts are divided into words by `{tokenizer.segmenter.name}` first, a function in "
            "Python that does not come with the model. Give tokenizers of transformers texts that "
            "it divided."
        )
    if tokenizer.normalization in ("composed", "spaced"):
        accents = " and letters with accents" if tokenizer.lowercase else ""
        lines.append(
            f"Texts in decomposed form (NFD, as from macOS){accents} need `AutoTokenizer` (or "
            "bothways); `BertTokenizer` gives the same ids for composed text (NFC) alone."
        )
    if about.get("options") and (note := loaded.task.threshold_note):  # fine-tuned here
        theirs = "those from 0.5 on" if loaded.task.traits.several else "the more probable label"
        lines.append(f"{note[0].upper()}{note[1:]}; other libraries give {theirs}.")
    if told := (about | differences_elsewhere(loaded)).get("transformers"):
        lines.append(f"transformers {told}.")
    return "\n".join(f"* {line}" for line in lines)


def _use(loaded: LoadedModel, kind: str, pipeline: str, *, exported: bool) -> list[str]:
    """Code that computes with the folder, by each library that does."""
    blocks = ["`FOLDER` stands for the path of this folder."]
    if call := _our_call(loaded, kind, exported=exported):
        blocks.append(
            _block("import bothways as bw", 'model = bw.load("FOLDER")', f"print({call})")
        )
    if exported:
        texts, rows = '"a text"', "rows[i.name]"
        if CHOICE in loaded.heads:
            texts, rows = '["a text"] * 2, ["one", "two"], padding=True', "rows[i.name][None]"
        blocks.append(
            _block(
                "import onnxruntime, transformers",
                'session = onnxruntime.InferenceSession("FOLDER/onnx/model.onnx")',
                'tokenizer = transformers.AutoTokenizer.from_pretrained("FOLDER")',
                f'rows = tokenizer({texts}, return_tensors="np")',
                f"print(session.run(None, {{i.name: {rows} for i in session.get_inputs()}}))",
            )
        )
    elif _opens_elsewhere(loaded, kind):
        name = f"ModelFor{traits_of(kind).auto_class}" if kind else "Model"
        name = "ModelForMaskedLM" if pipeline == "fill-mask" else name
        blocks.append(
            _block(
                f"from transformers import Auto{name}, AutoTokenizer",
                'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
                f'model = Auto{name}.from_pretrained("FOLDER")',
            )
        )
    if not kind and not (exported and loaded.heads):
        backend = ', backend="onnx"' if exported else ""
        blocks.append(
            _block(
                "from sentence_transformers import SentenceTransformer",
                f'model = SentenceTransformer("FOLDER"{backend})',
                'print(model.encode(["a text", "another"]).shape)',
            )
        )
    return blocks


def _our_call(loaded: LoadedModel, kind: str, *, exported: bool) -> str:
    """How bothways is asked for the outputs; empty for a graph of which it asks nothing."""
    mask = loaded.tokenizer.roles.mask
    if kind:
        usage = traits_of(kind).usage
        return (usage.pair_call if loaded.about.get("pair") else "") or usage.call
    if MASKED_LM in loaded.heads and mask:
        return f'model.fill_mask("a {mask} text")'
    if exported and loaded.heads:
        both = 'model.next_sentence("a text", "another")'
        return both if NEXT_SENTENCE in loaded.heads else ""
    return 'model.embed(["a text", "another"]).shape'


def _opens_elsewhere(loaded: LoadedModel, kind: str) -> bool:
    """Whether transformers has a class that computes it: none has a BiLSTM, or averages the outputs
    for a text's tokens."""
    return not loaded.lstm and use_of(loaded.task_head, kind) == loaded.task_head


def _block(*lines: str) -> str:
    return "\n".join(["```python", *lines, "```"])
