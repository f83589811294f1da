"""Model folders in Hugging Face's layout, written atomically, compatible with transformers.

``config.json``, ``model.safetensors``, ``vocab.txt``, ``tokenizer.json``, ``tokenizer_config.json``
are the files that transformers reads and writes; ``bothways.json`` adds what the model is for
(task, labels, origin). Folders saved by transformers can be loaded too, with or without heads.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bothways.errors import ModelError
from bothways.families import LSTM_SUFFIX, config_of, family_of
from bothways.families.config import ModelConfig
from bothways.families.family import own_type, write_config
from bothways.io.files import explain_disk_errors, new_folder, write_json
from bothways.model.encoder import init_weights
from bothways.model.heads import HEADS, POOLER_KEY, OutputHead
from bothways.model.model import EncoderModel
from bothways.model.sentence_modules import read_sentence_modules
from bothways.model.weight_files import WEIGHTS, read_weights, write_tensors
from bothways.model.weights import (
    from_theirs,
    has_lstm,
    heads_in,
    name_table,
    refuse_other_layers,
    to_theirs,
    trim_vocabulary,
)
from bothways.randomness import Purpose
from bothways.shipped import SHIPPED, model_folder
from bothways.tokenization.tokenizer import Tokenizer

CONFIG, ABOUT = "config.json", "bothways.json"
_MOST_PADDING = 128  # rows
PROBLEM_TYPES = {
    "multilabel": "multi_label_classification",
    "multiregression": "regression",
}
"""transformers' names for the kinds of tasks that give a text several labels or scores."""
_BILSTM = "BiLSTM"  # prefix of an architecture's name


@dataclass
class LoadedModel:
    """A loaded model folder.

    Attributes:
        model: in evaluation mode, on the CPU, fp32.
        tokenizer: with the same vocabulary.
        about: the content of bothways.json; for folders made elsewhere it is derived from
            config.json, with the labels under ``labels``, and from sentence-transformers' files.
        unused: names of weights in the file that bothways does not use.
        fresh: names of weights missing in the file and newly initialised (a pooler, for encoders
            saved without one).
        notes: what a user should know about how the folder was read, as sentences.
        dtype: of the file's weights.
    """

    model: EncoderModel
    tokenizer: Tokenizer
    about: dict[str, Any]
    unused: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dtype: torch.dtype = torch.float32

    @property
    def task_outputs(self) -> int:
        """Outputs of the task head; 0 without one."""
        return self.model.task_outputs

    def differences(self) -> list[str]:
        """What the model lacks of the file, and has beyond it, as sentences."""
        told = {
            "left out, not used here": self.unused,
            "missing from the source, newly initialised": self.fresh,
        }
        return [f"{what}: {', '.join(names)}" for what, names in told.items() if names]


def save_model(
    folder: str | Path,
    model: EncoderModel,
    tokenizer: Tokenizer,
    about: dict[str, Any] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a model folder that bothways and transformers can load, completely or not at all.

    Args:
        folder: where; an existing folder is replaced.
        model: any dtype or device.
        tokenizer: with the same vocabulary size.
        about: for bothways.json; ``labels`` (list of str) and ``kind`` describe the task head's
            outputs.
        dtype: of the weights on disk; in that of a loaded folder they are the same bits.

    Raises:
        ModelError: the vocabulary's size is not the model's, or the number of labels is not that
            of the outputs.
        DiskError: it could not be written; the old folder is intact.
    """
    with new_folder(Path(folder)) as partial:
        write_model_files(partial, model, tokenizer, about or {}, dtype=dtype)


def write_model_files(
    folder: Path,
    model: EncoderModel,
    tokenizer: Tokenizer,
    about: dict[str, Any],
    write: Callable[[dict[str, Tensor], Path, dict[str, str]], None] = write_tensors,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write the files of :func:`save_model` into an existing folder, the weights by ``write``."""
    _check_sizes(model.config, tokenizer, str(folder))
    weights = to_theirs(model.own_state(), model.config, dtype=dtype)
    with explain_disk_errors(folder / WEIGHTS):
        write(weights, folder / WEIGHTS, {"format": "pt"})
    family = family_of(model.config)
    architecture = family.class_of(model.heads, causal=model.config.left_to_right)
    precision = str(dtype).removeprefix("torch.")
    config = write_config(
        family, model.config, architecture, pad_id=tokenizer.pad_id, dtype=precision
    )
    if model.task_head is not None and not HEADS[model.task_name].outputs:
        tagging = not model.reads_sequences
        config.update(_label_config(about, model.task_outputs, tagging=tagging))
    if model.lstm is not None:
        own = own_type(family.model_type, LSTM_SUFFIX)
        config.update({"model_type": own, "architectures": [_BILSTM + architecture]})
    write_json(folder / CONFIG, config)
    # safetensors makes its files readable by the owner only; give them the other files' mode.
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)
    write_json(folder / ABOUT, {"format": 1, **about, **_differences_elsewhere(model)})
    tokenizer.save(folder, max_length=model.config.positions)


def load_model(folder: str | Path, *, vocabulary: str | Path | None = None) -> LoadedModel:
    """Load a model folder of bothways or transformers.

    The model has the heads whose weights are in the file.

    Args:
        folder: with config.json and weights; or the name of a shipped model.
        vocabulary: vocab.txt or tokenizer folder to use if the model folder has none.

    Raises:
        ModelError: a file is missing or damaged, the network is none that bothways can compute, a
            weight of the encoder or of a head is missing, or the vocabulary's size is not the
            model's.
    """
    folder = model_folder(folder)
    if not (folder / CONFIG).exists():
        raise ModelError(f"{folder / CONFIG} does not exist; {_what_it_is(folder)}.")
    values = read_json(folder / CONFIG, "get the folder again from where it came from")
    config, notes = config_of(values, where=str(folder / CONFIG))
    path, theirs = read_weights(folder)
    converted = from_theirs(theirs, config, where=str(path), architectures=_architectures(values))
    state, unused = converted.state, converted.unused
    refuse_other_layers(unused, config, str(path))
    tokenizer = Tokenizer.from_folder(vocabulary or folder)
    if tokenizer.template.pair_segments > family_of(config).published.get("segments", 2):
        # A family without pairs under the tokenizer of one with pairs, such as KLUE's RoBERTa.
        tokenizer = tokenizer.in_one_segment()
    if _is_padded(config, tokenizer, folder):
        rows = f"{tokenizer.vocab_size:,} to {config.vocab_size - 1:,}"
        notes.append(f"rows {rows} of the embedding are of no piece, and left out")
        words = family_of(config).tokens
        unused.append(f"{words}[{tokenizer.vocab_size}:{config.vocab_size}], of no piece")
        config = dataclasses.replace(config, vocab_size=tokenizer.vocab_size)
        trim_vocabulary(state, config)
    _check_sizes(config, tokenizer, str(vocabulary or folder))
    _refuse_odd_heads(state, path)
    model = empty_model(config, state)
    fresh = _fill(model, state, path)
    if (folder / ABOUT).exists():
        about = read_json(folder / ABOUT, "without it, the folder loads as one made elsewhere")
    else:
        about = read_sentence_modules(folder, lowercase=tokenizer.lowercase)
    if model.task_outputs:
        theirs_about = _task_from_config(values, model)
        if "kind" in about:
            _refuse_other_task(folder, about, theirs_about)
        else:  # made elsewhere, perhaps from a pre-trained model of ours
            about = {**theirs_about, **about}
    _check_direction(folder, model, about)
    loaded = (model.eval(), tokenizer, about, unused, fresh, notes)
    return LoadedModel(*loaded, dtype=converted.dtype)


def _architectures(values: dict[str, Any]) -> list[str]:
    """The classes that config.json names, those of ours without what marks them."""
    named = values.get("architectures") or []
    named = named if isinstance(named, list) else []
    return [name.removeprefix(_BILSTM) for name in named if isinstance(name, str)]


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object of a model folder.

    Args:
        path: the file.
        remedy: ends the error message.

    Raises:
        ModelError: it is missing or damaged.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; {remedy}.") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}); {remedy}.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object; {remedy}.")
    return value


def _what_it_is(folder: Path) -> str:
    """What a folder without config.json is instead of a model folder, and the remedy."""
    if (folder / "run.json").exists():
        # Of pre-training, of fine-tuning, of a search.
        patterns = (f"model/{CONFIG}", f"seed-*/model/{CONFIG}", f"*/seed-*/model/{CONFIG}")
        models = [path.parent for name in patterns for path in sorted(folder.glob(name))]
        if models:
            return f"this is a run folder; a model in it is {models[0]}"
        return "this is a run folder, and there is no model in it"
    if (folder / "bert_config.json").exists() or any(folder.glob("*.ckpt*")):
        return (
            "the folder seems to hold a checkpoint of TensorFlow, which bothways does not read; "
            "take a folder of transformers with the same weights"
        )
    return (
        "a model folder holds config.json and model.safetensors; models available by name: "
        f"{', '.join(SHIPPED)}"
    )


def empty_model(config: ModelConfig, state: dict[str, Tensor]) -> EncoderModel:
    """A model with the heads that a state has weights for, with its weights on the meta device."""
    names = heads_in(state)
    outputs = {name: HEADS[name].outputs or _shape(state, name)[0] for name in names}
    width = max((_shape(state, name)[1] for name in names if HEADS[name].task), default=0)
    lstm = has_lstm(state)
    in_file = any(name.startswith("encoder.pooler.") for name in state)
    with torch.device("meta"):  # only shapes: the weights come from the file
        return EncoderModel(
            config,
            heads=outputs,
            lstm=width // 2 if lstm else 0,
            pooler=True if in_file else None if names or family_of(config).keeps_pooler else False,
        )


def _shape(state: dict[str, Tensor], head: str) -> tuple[int, ...]:
    return tuple(state[f"{head}.output.weight"].shape)


def _fill(model: EncoderModel, state: dict[str, Tensor], path: Path) -> list[str]:
    expected = model.state_dict()
    names = name_table(model.config, model.heads, lstm=model.lstm is not None)
    missing = [name for name in expected if name not in state]
    fatal = [name for name in missing if not name.startswith("encoder.pooler.")]
    pooled = any(head.form.pooled for head in model.heads.values() if isinstance(head, OutputHead))
    if missing and pooled and not fatal:
        tagging = family_of(model.config).class_of(["tagger"])
        raise ModelError(
            f"{path} has a head for whole texts, which reads the pooler's output, but no weights "
            f"of the pooler; the file is incomplete"
            + (
                f'. Or the head is one for tokens, and {CONFIG} must say so: "architectures": '
                f'["{tagging}"].'
                if model.task_head is not None
                else "."
            )
        )
    if fatal:
        raise ModelError(
            f"{path} lacks {len(fatal)} of the weights that config.json calls for, among them "
            f"{', '.join(names[name][0] for name in fatal[:3])}; the file is incomplete or has "
            "another architecture."
        )
    for name, value in state.items():
        if expected[name].shape != value.shape:
            raise ModelError(
                f"{path}: {' + '.join(names[name])} has shape {tuple(value.shape)}, config.json "
                f"calls for {tuple(expected[name].shape)}; the folder's files do not belong "
                "together."
            )
    model.load_state_dict(state, strict=False, assign=True)
    if missing:
        assert model.encoder.pooler is not None
        pooler = model.encoder.pooler.to_empty(device="cpu")
        init_weights(pooler, model.config, seed=0, purpose=Purpose.HEAD, index=POOLER_KEY)
    return missing


def _refuse_odd_heads(state: dict[str, Tensor], path: Path) -> None:
    """Refuse a task head whose weight does not tell its outputs and the size of its inputs."""
    for head in heads_in(state):
        if HEADS[head].reads == "masked":
            continue
        weight = state.get(f"{head}.output.weight")
        if weight is None or weight.ndim != 2 or not weight.numel():
            word = "task head" if HEADS[head].task else "head"
            found = "is missing" if weight is None else f"has shape {tuple(weight.shape)}"
            raise ModelError(
                f"{path}: the weight of the {word} ({head}) {found}; its shape should "
                "be (outputs, hidden size). The file is damaged or incomplete."
            )


def _is_padded(config: ModelConfig, tokenizer: Tokenizer, folder: Path) -> bool:
    """Whether the embedding was made larger than the vocabulary, up to a round number of rows; we
    never do that."""
    extra = config.vocab_size - tokenizer.vocab_size
    if (folder / ABOUT).exists():
        return False
    return 0 < extra < _MOST_PADDING and config.vocab_size % 8 == 0


def _check_sizes(config: ModelConfig, tokenizer: Tokenizer, where: str) -> None:
    if tokenizer.vocab_size != config.vocab_size:
        raise ModelError(
            f"{where}: the vocabulary has {tokenizer.vocab_size} pieces but the model has "
            f"{config.vocab_size}; they do not belong together. Put the vocab.txt and "
            "tokenizer.json the model was trained with into its folder."
        )


def _differences_elsewhere(model: EncoderModel) -> dict[str, Any]:
    """Entries of bothways.json for a model that transformers would compute differently."""
    if model.lstm is not None:
        return {
            "lstm": model.lstm_units,
            "transformers": "has no class for a BiLSTM on top of "
            f"{family_of(model.config).title}: its automatic classes refuse this folder, those "
            "that are named take the encoder alone",
        }
    if model.reads_sequences and model.config.left_to_right:
        return {
            "pooled": "last",
            "transformers": "its classes read the first token, which left to right sees no other, "
            "where this classifier was trained on the last: they give other outputs",
        }
    return {}


def _check_direction(folder: Path, model: EncoderModel, about: dict[str, Any]) -> None:
    """Refuse a model that would be computed differently from how it was trained."""
    causal = model.config.left_to_right
    sequences = model.reads_sequences and model.lstm is None
    if causal and sequences and about.get("pooled") != "last":
        raise ModelError(
            f"{folder}: {CONFIG} has is_decoder, and {ABOUT} does not say that the classifier was "
            "trained on the last token, which bothways uses. transformers uses the first token, "
            "which sees no other left to right. Save the encoder alone "
            f"({family_of(model.config).class_of([])}) and fine-tune that."
        )
    if about.get("masking") == "left_to_right" and not causal:
        raise ModelError(
            f"{folder}: {ABOUT} says that the model was trained left to right, but {CONFIG} says "
            "that it is bidirectional. If an early version of bothways wrote it, add "
            f'"is_decoder": true to {CONFIG}.'
        )


def _label_config(about: dict[str, Any], classes: int, *, tagging: bool) -> dict[str, Any]:
    """The labels as in transformers' config.json, which determines the classes from them."""
    kind = about.get("kind")
    if classes == 1 and not tagging and kind not in PROBLEM_TYPES:
        return {"id2label": {"0": "score"}, "label2id": {"score": 0}, "problem_type": "regression"}
    labels = about.get("labels") or [f"LABEL_{i}" for i in range(classes)]
    if len(labels) != classes or len(set(labels)) != classes:
        raise ModelError(
            f"the task head has {classes} outputs but the labels are {labels}; give each output "
            "a distinct label."
        )
    config: dict[str, Any] = {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    if not tagging:
        config["problem_type"] = PROBLEM_TYPES.get(str(kind), "single_label_classification")
    return config


def _refuse_other_task(folder: Path, about: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Refuse a folder of ours whose model was since trained on something else, elsewhere."""
    labels, expected = about.get("labels") or [], theirs["labels"]
    if about["kind"] != theirs["kind"] or (labels and expected and list(labels) != expected):
        raise ModelError(
            f"{folder}: by {ABOUT} the model is for {about['kind']} with the labels {labels}, by "
            f"{CONFIG} and the weights for {theirs['kind']} with {expected}. If it was trained "
            f"again with another library, remove {ABOUT}, which is older."
        )


def _task_from_config(values: dict[str, Any], model: EncoderModel) -> dict[str, Any]:
    """The equivalent of bothways.json for a task head that transformers saved."""
    names, outputs = values.get("id2label") or {}, model.task_outputs
    labels = [str(names.get(str(i), f"LABEL_{i}")) for i in range(outputs)]
    if model.span is not None:
        return {"kind": "spans", "labels": []}
    if model.tagger is not None:
        return {"kind": "tagging", "labels": labels}
    if model.choice is not None:
        return {"kind": "choice", "labels": []}
    problem = values.get("problem_type")
    if problem == PROBLEM_TYPES["multilabel"]:
        return {"kind": "multilabel", "labels": labels}
    if outputs > 1 and problem == PROBLEM_TYPES["multiregression"]:
        return {"kind": "multiregression", "labels": labels}
    if outputs == 1:
        return {"kind": "regression", "labels": []}
    return {"kind": "classification", "labels": labels}
