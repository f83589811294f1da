"""Model folders in Hugging Face's layout: opened without any engine, their description written.

``config.json``, ``model.safetensors``, ``vocab.txt``, ``tokenizer.json``, ``tokenizer_config.json``
are the files that transformers reads and writes; ``bothways.json`` adds what the model is for
(task, labels, origin). Folders saved by transformers can be opened too, with or without heads.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any

from bothways.errors import InputError, ModelError
from bothways.families import LSTM_SUFFIX, config_of, family_of
from bothways.families.config import ModelConfig
from bothways.families.family import own_type, write_config
from bothways.families.heads import CLASSIFIER, HEADS, TAGGER, parameter_count, task_head
from bothways.io.base_folder import ADAPTER, adapter_settings, base_folder
from bothways.io.files import write_json
from bothways.io.folder_files import checked, is_there
from bothways.io.hub import model_folder
from bothways.io.json_files import read_json_file
from bothways.io.lines import listed
from bothways.runtime import adapters, diagnosis, original_files, sentence_modules
from bothways.runtime.checksums import changed_files, recorded_vocabulary
from bothways.runtime.engine import Engine, EngineOptions, open_engine
from bothways.runtime.label_names import are_tags, label_names
from bothways.runtime.speed import settled
from bothways.runtime.stored import Stored
from bothways.runtime.weights import (
    Weights,
    account_for,
    has_weights,
    missing_weights,
    reads_pooler,
    refuse_hidden,
    stored_weights,
    weight_files,
    whole_heads_names,
    words_head_names,
)
from bothways.tasks.kinds import task_of
from bothways.tasks.options import TRAITS, traits_of
from bothways.tasks.task import Task
from bothways.tokenization.doubts import cut_elsewhere, disagreements, doubts
from bothways.tokenization.reading import has_vocabulary
from bothways.tokenization.tokenizer import Tokenizer

CONFIG, ABOUT = "config.json", "bothways.json"
GRAPH, GRAPH_OF_8_BITS = "onnx/model.onnx", "onnx/model_quantized.onnx"
"""Where graphs lie in a folder, as other programs look for them."""
GRAPHS = (GRAPH, "model.onnx")
"""Where the graph of a folder without weights may be; optimum puts it beside config.json."""
FORMAT = 2
"""Of bothways.json. In 1, that of 0.1, what is said of the task stands beside the rest; from 2 on
under ``tasks``, by the head, as there may be several."""
OF_TASK = (
    *("task", "kind", "labels", "pair", "length", "options", "precision", "measured_in", "dev"),
    *("source", "seed", "setting", "epoch", "fingerprint"),
)
"""What bothways.json says of a task."""
"""Files that may hold settings or a vocabulary."""
STATE = "training.json"
"""The file that makes a folder a checkpoint."""
OTHER_VOCABULARY = (
    "{}: the vocabulary is not the one that the model was written with, so ids may mean other "
    "pieces"
)
_BILSTM = "BiLSTM"  # prefix of an architecture's name


@dataclass(eq=False)
class LoadedModel:
    """What a model folder holds, but for the network: an engine computes that.

    Attributes:
        config: the encoder's shape.
        tokenizer: with the same vocabulary.
        about: the content of bothways.json, with what it says of the task head beside the rest; for
            folders made elsewhere it is derived from config.json, with the labels under
            ``labels``, and from sentence-transformers' files.
        heads: by name, with their numbers of outputs.
        lstm: units of each direction of a BiLSTM under the task head; 0 for none.
        pooler: whether the encoder has one.
        weights: accounted for; None once the engine has them, and for a folder with a graph alone.
        fresh: names of weights missing in the file and newly initialised (a pooler, for encoders
            saved without one).
        notes: what a user should know about how the folder was read, as sentences.
        options: which engine computes it, where and how exactly.
        unused: names of weights in the file that bothways does not use.
        dtype: of the file's weights, such as ``float32``.
        refused: heads that are in the file and not computed -> why.
        folder: whose weights or graphs these are; None for those of no folder, such as with an
            adapter merged.
    """

    config: ModelConfig
    tokenizer: Tokenizer
    about: dict[str, Any]
    heads: dict[str, int]
    lstm: int = 0
    pooler: bool = False
    weights: Weights | None = None
    fresh: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    options: EngineOptions = field(default_factory=EngineOptions)
    unused: list[str] = field(default_factory=list)
    dtype: str = "float32"
    refused: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def __post_init__(self) -> None:
        self._lock = RLock()

    @property
    def engine(self) -> Engine:
        """What computes the model; opened when it is first asked for.

        Raises:
            ConfigError: no such engine, or what it needs is not installed, or no such device.
            ModelError: a network that it does not compute.
        """
        with self._lock:  # of two threads that ask first, one opens it
            return self._engine

    def use(self, engine: Engine) -> None:
        """Have this engine compute the model."""
        self._engine = engine

    @cached_property
    def _engine(self) -> Engine:
        self.options = settled(self.options, graph=self.weights is None)
        if self.weights is not None:
            refuse_hidden(self.weights, str(self.folder or "the model"))
        engine = open_engine(self)
        self.weights = None  # lets go of the file, which could not be replaced on Windows
        return engine

    @property
    def task_head(self) -> str:
        """Which head is the task's; empty without one."""
        return task_head(self.heads)

    @property
    def task_outputs(self) -> int:
        """Outputs of the task head; 0 without one."""
        return self.heads.get(self.task_head, 0)

    @property
    def parameters(self) -> int:
        """Number of weights, those of the heads included, without padding rows."""
        return parameter_count(self.config, self.heads, lstm=self.lstm, pooler=self.pooler)

    @cached_property
    def task(self) -> Task[Any, Any]:
        """The task that the folder was fine-tuned on; of what ``about`` says when it is first asked
        for.

        Raises:
            ModelError: as :func:`bothways.tasks.kinds.task_of`.
        """
        return task_of(self)

    def refuse_part_of_head(self) -> None:
        """Refuse to copy a model whose task head is in the file only in part.

        Raises:
            ModelError: naming what is left out.
        """
        if reason := self.refused.get(self.task_head):
            raise ModelError(reason)

    def differences(self) -> list[str]:
        """What the model lacks of the file, and has beyond it, as sentences."""
        told = {
            "left out, not used here": self.unused,
            "missing from the source, newly initialised": self.fresh,
        }
        return [f"{what}: {', '.join(names)}" for what, names in told.items() if names]


@dataclass
class _Source:
    """What a model is read from.

    Attributes:
        folder: with config.json.
        values: of config.json.
        path: the file of the weights or the graph, for messages.
        tensors: by name; None of a graph.
        vocabulary: the folder or file of the tokenizer.
        modules: the folder whose modules.json says how vectors are made, if it has one.
        about: of bothways.json; None for a folder made elsewhere.
        whole: whether an engine may compute the folder's files as they are.
        head: of an adapter, the end of the names of the classes that it is for.
    """

    folder: Path
    values: dict[str, Any]
    path: Path
    tensors: dict[str, Stored] | None
    vocabulary: Path
    modules: Path
    about: dict[str, Any] | None = None
    whole: bool = False
    head: str = ""


def load_model(
    folder: str | Path,
    *,
    vocabulary: str | Path | None = None,
    options: EngineOptions | None = None,
) -> LoadedModel:
    """Open a model folder of bothways or transformers.

    The model has the heads whose weights are in the file. Values of weights are read when its
    engine is first asked for. Without weights, the folder may have an ONNX graph (:data:`GRAPHS`),
    whose outputs must be those that the class in config.json has in other programs.

    Args:
        folder: with config.json and weights; or a name (:mod:`bothways.io.hub`); or a folder with
            an adapter, or with the files of BERT's authors
            (:mod:`bothways.runtime.original_files`), or a checkpoint in it.
        vocabulary: vocab.txt or tokenizer folder to use if the model folder has none.
        options: what computes it; an engine chosen automatically, on the CPU in fp32, if not given.

    Raises:
        ModelError: a file is missing or damaged, the network is none that bothways can compute, a
            weight of the encoder or of a head is missing, or the vocabulary's size is not the
            model's.
    """
    notes: list[str] = []
    source = _source_of(model_folder(folder), notes)
    if vocabulary:
        source.vocabulary = model_folder(vocabulary)
    loaded = _load(source, notes, options or EngineOptions())
    _add_about(loaded, source)
    loaded.notes += _changes(source.folder, loaded.tokenizer)
    _check_direction(source.folder, loaded)
    return loaded


def _source_of(named: Path, notes: list[str]) -> _Source:
    """The files of a model; what is read beside config.json and weights is looked for only where a
    file says so."""
    if is_there(named / ADAPTER):
        if adapters.is_adapter(named):
            return _adapted(named, notes)
        notes.append(
            f"{named} holds an adapter, too ({ADAPTER}), which is not merged into its weights"
        )
    folder = sentence_modules.encoder_folder(named)
    if not is_there(folder / CONFIG):
        return _original(named)
    values = read_json(folder / CONFIG, "get the folder again from where it came from")
    about = _read_about(folder) if is_there(folder / ABOUT) else None
    if not has_weights(folder) and (graph_in(folder) or (about or {}).get("export")):
        path, tensors = graph_in(folder) or folder / GRAPH, None
    else:
        path, tensors = stored_weights(folder, notes)
    return _Source(folder, values, path, tensors, folder, named, about, whole=True)


def _original(named: Path) -> _Source:
    """The files of BERT's authors."""
    found = original_files.named_checkpoint(named)
    if found is None:
        where = f"{named}:" if named.is_file() else f"{named / CONFIG} does not exist;"
        raise ModelError(f"{where} {diagnosis.diagnose(named)}.")
    folder, prefix = found
    path = folder / original_files.SETTINGS
    values = read_json(path, f"copy it beside {prefix.name}, with vocab.txt")
    values["model_type"] = original_files.original_family().model_type
    variables = original_files.read_original(prefix).items()
    tensors = {name: Stored(*variable) for name, variable in variables}
    index = original_files.checkpoint_files(prefix)[0]
    return _Source(folder, values, index, tensors, folder, named)


def _adapted(named: Path, notes: list[str]) -> _Source:
    """A base with the adapter in a folder merged into it."""
    settings = adapter_settings(named)
    source = _source_of(base_folder(named, settings), notes)
    if source.tensors is None:
        raise ModelError(no_weights(source.folder))
    adapters.merge(named, settings, source.tensors, notes)
    notes.insert(0, f"{named}: an adapter (LoRA), merged into its base {source.folder}")
    source.head = adapters.class_of_adapter(settings)
    classes = family_of(config_of(source.values, where=str(named))[0]).classes
    if fit := [name for name in classes if source.head and name.endswith(source.head)]:
        source.values = {**source.values, "architectures": fit}
    source.path, source.whole = adapters.adapter_file(named), False
    if has_vocabulary(named):
        source.vocabulary = named
    if sentence_modules.has_modules(named):
        source.modules = named
    return source


def _load(source: _Source, notes: list[str], options: EngineOptions) -> LoadedModel:
    """The model of a source: its shape, its tokenizer, and each weight accounted for."""
    config, odd = config_of(source.values, where=str(source.folder / CONFIG))
    notes += odd
    classes = _classes(source.values, config, notes)
    weights = (
        None
        if source.tensors is None
        else account_for(
            source.tensors,
            config,
            where=str(source.path),
            architectures=classes,
            tied=source.values.get("tie_word_embeddings") is not False,
        )
    )
    if not weights:
        heads, unused = _heads_of_graph(source, config, classes), []
    else:
        heads, unused = dict(weights.heads), original_files.summed_up(weights.unused)
    tokenizer = _with_segments(Tokenizer.from_folder(source.vocabulary), config)
    if tokenizer.vocab_size < config.vocab_size and source.about is None:
        # No text becomes an id without a piece, so these rows are of no effect.
        rows = f"{tokenizer.vocab_size:,} to {config.vocab_size - 1:,}"
        notes.append(
            f"{source.vocabulary}: rows {rows} of the embedding are of no piece of the vocabulary, "
            "and left out"
        )
        words = family_of(config).tokens
        unused.append(f"{words}[{tokenizer.vocab_size}:{config.vocab_size}], of no piece")
        config = dataclasses.replace(config, vocab_size=tokenizer.vocab_size)
        weights = weights and dataclasses.replace(weights, config=config)
    check_sizes(config, tokenizer, str(source.vocabulary))
    loaded = LoadedModel(
        *(config, tokenizer, {}, heads),
        weights=weights,
        notes=notes,
        options=options,
        unused=unused,
        folder=source.folder if source.whole else None,
    )
    if weights:
        loaded.lstm, loaded.dtype, loaded.pooler = (
            weights.lstm,
            weights.dtype,
            reads_pooler(weights),
        )
        loaded.fresh = missing_weights(weights, source.path, pooler=loaded.pooler)
        loaded.refused = dict(weights.refused)
    if source.head:  # the base's own heads were not trained on
        for head in [name for name in heads if not HEADS[name].task]:
            loaded.refused[head] = (
                f"{source.path}: the adapter has a head of its own, and the base's "
                f"{HEADS[head].title} was not trained with it; name the base for that."
            )
    return loaded


def _add_about(loaded: LoadedModel, source: _Source) -> None:
    """Add what the model is for: as bothways.json says, or else config.json and the files of
    sentence-transformers."""
    folder, values, head = source.folder, source.values, loaded.task_head
    scores = (head, loaded.task_outputs) == (CLASSIFIER, 1)
    modules = sentence_modules.has_modules(source.modules)
    if source.about is not None:
        about = dict(source.about)
        tasks = about.pop("tasks", {})
        # Of another head if the model was trained again elsewhere, which is refused later.
        loaded.about = {**about, **tasks.get(head, next(iter(tasks.values()), {}))}
    else:
        # Vectors and the scores of pairs are cut where that library does it.
        limit = None if modules or scores else loaded.config.positions
        loaded.notes += doubts(loaded.tokenizer, str(folder), pad=values.get("pad_token_id"))
        loaded.notes += disagreements(source.vocabulary, loaded.tokenizer)
        loaded.notes += cut_elsewhere(source.vocabulary, limit)
    if modules and (source.about is None or source.modules != folder):
        kept = {n: v for n, v in loaded.about.items() if n not in sentence_modules.OF_VECTORS}
        loaded.about = kept | sentence_modules.read_sentence_modules(
            source.modules,
            lowercase=loaded.tokenizer.lowercase,
            positions=loaded.config.positions,
            hidden=loaded.config.hidden,
        )
    if source.about is None and scores:
        loaded.about["reranker"] = sentence_modules.read_reranker(folder, values)
    if not head or not HEADS[head].kind:
        _note_left_out(loaded, str(source.path))
        return
    theirs = _task_from_config(values, loaded)
    if "kind" in loaded.about:
        _refuse_other_task(folder, loaded.about, theirs)
    else:  # made elsewhere, perhaps from a pre-trained model of ours
        loaded.about = {**theirs, **loaded.about}
        _note_left_out(loaded, str(source.path))


def _with_segments(tokenizer: Tokenizer, config: ModelConfig) -> Tokenizer:
    """The tokenizer, in one segment for a family without pairs under that of one with pairs, such
    as KLUE's RoBERTa."""
    usual = family_of(config).published.get("segments", 2)
    beyond = tokenizer.template.segments > max(usual, config.segments)
    return tokenizer.in_one_segment() if beyond else tokenizer


def model_files(named: Path) -> list[Path]:
    """The files with the weights that :func:`load_model` reads of a folder.

    Raises:
        ModelError: one is missing.
    """
    if adapters.is_adapter(named):
        return adapters.adapter_files(named)
    folder = sentence_modules.encoder_folder(named)
    found = None if is_there(folder / CONFIG) else original_files.named_checkpoint(named)
    return original_files.checkpoint_files(found[1]) if found else weight_files(folder)


def _changes(folder: Path, tokenizer: Tokenizer) -> list[str]:
    """What of a folder of ours is not as it was written, as sentences."""
    changed = changed_files(folder, whole=False)
    if not changed:
        return []
    notes = [
        f"{folder}: {', '.join(changed)} changed since bothways wrote the folder, by another "
        "program or by damage (`bothways info --check` compares every file)"
    ]
    if (known := recorded_vocabulary(folder)) and known != tokenizer.fingerprint:
        notes.append(OTHER_VOCABULARY.format(folder))
    return notes


def write_description(folder: Path, loaded: LoadedModel, *, dtype: str) -> None:
    """Write all files of a model folder but the weights: config.json, bothways.json, tokenizer.

    Args:
        folder: exists; old files are replaced.
        loaded: what they describe; of its ``about``, ``labels`` (list of str) and ``kind`` describe
            the task head's outputs.
        dtype: in which transformers opens it, whatever that of the weights on disk.

    Raises:
        ModelError: the number of labels is not that of the outputs.
    """
    write_json(folder / CONFIG, config_values(loaded, dtype=dtype))
    write_about(folder, loaded)
    loaded.tokenizer.save(folder, max_length=loaded.config.positions)


def config_values(loaded: LoadedModel, *, dtype: str) -> dict[str, Any]:
    """What config.json says of a model.

    Args:
        loaded: as for :func:`write_description`.
        dtype: in which transformers opens it.

    Raises:
        ModelError: the number of labels is not that of the outputs.
    """
    family, config = family_of(loaded.config), loaded.config
    architecture = family.class_of(loaded.heads, causal=config.left_to_right)
    values = write_config(family, config, architecture, pad_id=loaded.tokenizer.pad_id, dtype=dtype)
    values.update(_label_config(loaded))
    if loaded.lstm:
        own = own_type(family.model_type, LSTM_SUFFIX)
        values.update({"model_type": own, "architectures": [_BILSTM + architecture]})
    return values


def write_about(folder: Path, loaded: LoadedModel) -> None:
    """Write bothways.json, what it says of the task under the task's head."""
    head = loaded.task_head
    about = {**loaded.about, "format": FORMAT, **differences_elsewhere(loaded)}
    of_task = {name: about.pop(name) for name in OF_TASK if name in about and head}
    tasks = {"tasks": {head: of_task}} if of_task else {}
    write_json(folder / ABOUT, {"format": FORMAT, **about, **tasks})


def _read_about(folder: Path) -> dict[str, Any]:
    """The content of bothways.json.

    Raises:
        ModelError: it is damaged, or of a later version.
    """
    about = read_json(folder / ABOUT, "without it, the folder loads as one made elsewhere")
    version = about.get("format", 1)
    if not isinstance(version, int) or version > FORMAT:
        raise ModelError(
            f"{folder / ABOUT} has the format {version!r}; this version of bothways reads up to "
            f"{FORMAT}. Use the version that wrote it, or a later one."
        )
    return about


def graph_in(folder: Path) -> Path | None:
    """The graph of a folder; None without one."""
    return next((folder / name for name in GRAPHS if is_there(folder / name)), None)


def has_graph_alone(folder: Path) -> bool:
    """Whether a folder has no weights but a graph."""
    return graph_in(folder) is not None and not has_weights(folder)


def no_weights(folder: Path) -> str:
    """That a folder with a graph alone does not do for what needs weights, and what to do."""
    return (
        f"{folder} has no weights, only a graph, as folders that were exported have; name the one "
        "that it was exported from, which has them."
    )


def _heads_of_graph(source: _Source, config: ModelConfig, classes: list[str]) -> dict[str, int]:
    """The heads of a folder's graph, with their numbers of outputs.

    Raises:
        ModelError: the file is no graph, or has other outputs than its class has elsewhere.
    """
    import onnx

    from bothways.runtime.onnx_graph import output_names

    path, values = source.path, source.values
    try:
        found = onnx.load_model(checked(path), load_external_data=False).graph.output
    except Exception as error:  # of the protobuf library's own types, too
        raise ModelError(
            f"{path} is missing, damaged or truncated ({error}); copy it again, or export it again."
        ) from None
    size_of = {
        one.name: next((d.dim_value for d in reversed(one.type.tensor_type.shape.dim)), 0)
        for one in found
    }
    family = family_of(config)
    exported = (source.about or {}).get("export") or {}
    heads = list(exported.get("heads") or ()) or [
        head for name in classes for head in family.classes.get(name, ())
    ]
    wanted = output_names(heads)
    if missing := [name for own in wanted.values() for name in own if name not in size_of]:
        raise ModelError(
            f"{path} has the outputs {', '.join(size_of)}, and no {missing[0]}, which a model of "
            f"the class {', '.join(classes) or 'in config.json'} has; export it for its task."
        )
    sizes = {head: size_of[own[0]] for head, own in wanted.items()}
    if not heads and {*sizes.values()} - {0, config.hidden}:
        raise ModelError(
            f"{path} gives states of another size than the hidden size of config.json, "
            f"{config.hidden}; they do not belong together."
        )
    labels = _labels_named(values) or values.get("num_labels") or 2
    return {head: HEADS[head].outputs or sizes[head] or labels for head in heads}


def _classes(values: dict[str, Any], config: ModelConfig, notes: list[str]) -> list[str]:
    """The classes that config.json names, those of ours without what marks them.

    Where it names none that is known, its labels may tell a head for tags from one for texts; the
    weights of the two have the same names.
    """
    given = values.get("architectures") or []
    given = given if isinstance(given, list) else []
    named = [name.removeprefix(_BILSTM) for name in given if isinstance(name, str)]
    family = family_of(config)
    if not any(name in family.classes or name == family.causal for name in named) and are_tags(
        values
    ):
        notes.append(
            f"{CONFIG} does not say what the head is for; its labels are tags, so it is taken for "
            "one of words"
        )
        return [*named, family.class_of([TAGGER])]
    return named


_OF_TRAINING = re.compile(
    r"(^|\.)(\w*loss\w*|\w*criterion\w*|\w*metrics?\w*|\w*_fct|n_averaged|_extra_state)(\.|$)"
)
_LISTED = 6


def _note_left_out(loaded: LoadedModel, where: str) -> None:
    """Say which weights of a folder made elsewhere are left out, and refuse its task head if they
    may be of it: without a part of the head, its outputs would be others."""
    others = words_head_names(loaded.config)
    of_head = [
        name
        for name in loaded.unused
        if not (name in others or name.endswith("of no piece") or _OF_TRAINING.search(name))
    ]
    if not of_head:
        return
    listed = ", ".join(of_head[:_LISTED]) + (" ..." if len(of_head) > _LISTED else "")
    loaded.notes.append(f"{where}: weights that are left out, not used here: {listed}")
    if loaded.task_head and set(of_head) - whole_heads_names(loaded.config, of_head):
        loaded.refused[loaded.task_head] = (
            f"{where} holds {listed}, which bothways does not compute: without these the head's "
            "outputs would be others. Use the library that made the model; vectors of its encoder "
            "(`bothways embed`) and fine-tuning it again do not need them."
        )


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object of a model folder.

    Args:
        path: the file.
        remedy: ends the error message.

    Raises:
        ModelError: it is missing or damaged.
    """
    try:
        value = read_json_file(checked(path))
    except InputError as error:
        if not is_there(path):
            raise ModelError(f"{path} does not exist; {remedy}.") from None
        where = f"line {error.place.row} " if error.place and error.place.row else ""
        problem = error.problem.rstrip(".")
        raise ModelError(f"{path} cannot be read ({where}{problem}); {remedy}.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object; {remedy}.")
    return value


def check_sizes(config: ModelConfig, tokenizer: Tokenizer, where: str) -> None:
    """Refuse a vocabulary of another size than the model's.

    Raises:
        ModelError: naming both.
    """
    if tokenizer.vocab_size != config.vocab_size:
        beyond = listed(tokenizer.pieces[config.vocab_size :], 4)
        without = f" The model has no rows for {beyond}: perhaps they were added." * bool(beyond)
        raise ModelError(
            f"{where}: the vocabulary has {tokenizer.vocab_size} pieces but the model has "
            f"{config.vocab_size}; they do not belong together.{without} Put the vocab.txt and "
            "tokenizer.json the model was trained with into its folder."
        )


def differences_elsewhere(loaded: LoadedModel) -> dict[str, Any]:
    """Entries of bothways.json for a model that transformers would compute differently."""
    if loaded.lstm:
        return {
            "lstm": loaded.lstm,
            "transformers": "has no class for a BiLSTM on top of "
            f"{family_of(loaded.config).title}: its automatic classes refuse this folder, those "
            "that are named take the encoder alone",
        }
    if _reads_sequences(loaded) and loaded.config.left_to_right:
        return {
            "pooled": "last",
            "transformers": "its classes read the first token, which left to right sees no other, "
            "where this classifier was trained on the last: they give other outputs",
        }
    return {}


def _reads_sequences(loaded: LoadedModel) -> bool:
    """Whether the task head reads one vector per sequence."""
    return bool(loaded.task_head) and HEADS[loaded.task_head].reads == "sequence"


def _check_direction(folder: Path, loaded: LoadedModel) -> None:
    """Refuse a model that would be computed differently from how it was trained."""
    causal, about = loaded.config.left_to_right, loaded.about
    sequences = _reads_sequences(loaded) and not loaded.lstm
    if causal and sequences and about.get("pooled") != "last":
        raise ModelError(
            f"{folder}: {CONFIG} has is_decoder, and {ABOUT} does not say that the classifier was "
            "trained on the last token, which bothways uses. transformers uses the first token, "
            "which sees no other left to right. Save the encoder alone "
            f"({family_of(loaded.config).class_of([])}) and fine-tune that."
        )
    if about.get("masking") == "left_to_right" and not causal:
        raise ModelError(
            f"{folder}: {ABOUT} says that the model was trained left to right, but {CONFIG} says "
            "that it is bidirectional. If an early version of bothways wrote it, add "
            f'"is_decoder": true to {CONFIG}.'
        )


def _label_config(loaded: LoadedModel) -> dict[str, Any]:
    """The labels as in transformers' config.json, which determines the classes from them; nothing
    for a model without a head whose outputs have names."""
    head, about, classes = loaded.task_head, loaded.about, loaded.task_outputs
    if not head or not HEADS[head].kind or HEADS[head].outputs:
        return {}
    tagging, kind = HEADS[head].reads == "tokens", about.get("kind")
    traits = traits_of(kind)
    if classes == 1 and not tagging and not traits.several:
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
        config["problem_type"] = traits.problem_type
    return config


def _refuse_other_task(folder: Path, about: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Refuse a folder of ours whose model was since trained on something else, elsewhere."""
    labels, expected = about.get("labels") or [], theirs["labels"]
    traits = traits_of(about["kind"])
    scores = traits.several and not traits.has_labels
    if scores and traits_of(theirs["kind"]).one_score and len(labels) == 1:
        return  # config.json has one name for a score and for several of which there is one
    reads = (about.get("options") or {}).get("reads")
    if reads == "tokens" and traits_of(theirs["kind"]).per_word and traits.of_texts:
        return  # a head of tokens, whose outputs are averaged
    if about["kind"] != theirs["kind"] or (labels and expected and list(labels) != expected):
        raise ModelError(
            f"{folder}: by {ABOUT} the model is for {about['kind']} with the labels {labels}, by "
            f"{CONFIG} and the weights for {theirs['kind']} with {expected}. If it was trained "
            f"again with another library, remove {ABOUT}, which is older."
        )


def _labels_named(values: dict[str, Any]) -> int:
    """How many labels config.json names; 0 if it has no map or list of them."""
    given = values.get("id2label")
    return len(given) if isinstance(given, dict | list) else 0


def _task_from_config(values: dict[str, Any], loaded: LoadedModel) -> dict[str, Any]:
    """The equivalent of bothways.json for a task head that transformers saved."""
    outputs, head = loaded.task_outputs, HEADS[loaded.task_head]
    named = _labels_named(values)
    if outputs == 1 and loaded.task_head == CLASSIFIER and named > 1:
        loaded.notes.append(
            f"config.json names {named} labels, but the head has one output, which is read as "
            "a score; if it is the probability of one of them, it is 1 / (1 + exp(-score))"
        )
    if loaded.task_head != CLASSIFIER and head.outputs:
        return {"kind": head.kind, "labels": []}
    labels, notes = label_names(values, outputs)
    if outputs > 1 or head.reads == "tokens":  # a single score needs no name
        loaded.notes += notes
    if loaded.task_head != CLASSIFIER:
        return {"kind": head.kind, "labels": labels}
    if outputs == 1 and values.get("problem_type") != traits_of("multilabel").problem_type:
        return {"kind": "regression", "labels": []}
    problem = values.get("problem_type")
    several = [name for name, t in TRAITS.items() if t.several and t.problem_type == problem]
    if several:
        return {"kind": several[0], "labels": labels}
    return {"kind": head.kind, "labels": labels}
