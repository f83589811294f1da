"""What a family of encoders is: names and config keys of its files both ways, heads and defaults.

Nothing here computes, so nothing imports torch: the same tables serve every engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from bothways.errors import ConfigError, ModelError
from bothways.families.config import ModelConfig, shortened

Array = TypeVar("Array", bound=Any)


@dataclass(frozen=True)
class Part:
    """A weight in a file, or a module's weights, and their form there.

    Attributes:
        name: in the file.
        turned: matrices are [inputs, outputs].
    """

    name: str
    turned: bool = False

    def formed(self, values: Array) -> Array:
        """Values of the file in our form, and the reverse."""
        turned: Array = values.T if self.turned and values.ndim == 2 else values
        return turned


Names = str | Part | tuple[str | Part, ...]
"""Of a weight or a module in a file; those of several are stacked in ours."""
REQUIRED = ...
"""In place of a default: the key has to be there."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""transformers' names of activations -> ours."""
_OUR_ACTIVATIONS = {"gelu_tanh": "gelu_new"}


@dataclass(frozen=True)
class HeadForm:
    """How a family computes a head, and what its files call its parts.

    Attributes:
        names: the parts of ours (``dense``, ``norm``, ``output``, ``bias``) -> the file's.
        pooled: it reads the output of the encoder's pooler.
        dense: it has a dense layer of its own before the output.
        activation: after that layer; empty: ``ModelConfig.activation``, ``own``:
            ``ModelConfig.head_activation``.
        norm: it normalises after the activation.
        dropout: before the output: ``head`` (``ModelConfig.head_dropout``), ``hidden``
            (``ModelConfig.dropout``) or none.
        first_dropout: the same before the dense layer.
    """

    names: Mapping[str, str]
    pooled: bool = False
    dense: bool = False
    activation: str = ""
    norm: bool = False
    dropout: Literal["head", "hidden", ""] = ""
    first_dropout: Literal["head", "hidden", ""] = ""


@dataclass(frozen=True)
class Family:
    """A family of encoders.

    Attributes:
        model_type: its name, in config.json and in ``ModelConfig.family``.
        title: its name in messages.
        prefix: of the encoder's weights in a file that has heads.
        keys: of config.json -> the field of :class:`ModelConfig` and the default of transformers;
            without a field, a constant that is written.
        axes: the fields that are the same for the whole family, where they are not BERT's.
        published: fields of the published models that are not transformers' defaults.
        fixed: keys that would change results -> the values that are computed, the usual one first.
        training: keys that matter in training alone -> the value that is trained with.
        harmless: further keys, which change nothing here.
        encoder: names of the encoder's weights, ours -> the file's without prefix; {} is the layer.
        heads: the heads that the family has.
        classes: transformers' classes -> the heads that each has, the most specific first.
        causal: the class of a left-to-right language model, if there is one.
        tied: the output embedding, which is the token table.
        twin_bias: a second name of the masked-LM bias, which transformers prefers.
        sinusoids: a table of rotary positions that its files hold, without prefix; never trained.
        keeps_pooler: files have a pooler whether or not a head reads it.
        tokenizer: transformers' class of the tokenizer.
        original: names of weights in files of the authors' TensorFlow code, where they are not as
            the others (``a.layer.0.dense.weight`` is ``a/layer_0/dense/kernel`` there, transposed);
            empty: such files are not read.
        read: completes the fields from config.json's content, for keys that are not one to one.
        write: completes config.json's content.
    """

    model_type: str
    title: str
    prefix: str
    keys: Mapping[str, tuple[str, Any]]
    encoder: Mapping[str, Names]
    heads: Mapping[str, HeadForm]
    classes: Mapping[str, tuple[str, ...]]
    tied: str
    axes: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    causal: str = ""
    twin_bias: str = ""
    sinusoids: str = ""
    keeps_pooler: bool = False
    tokenizer: str = ""
    original: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[Mapping[str, Any], dict[str, Any], str], None] | None = None
    write: Callable[[ModelConfig, dict[str, Any]], None] | None = None

    @property
    def tokens(self) -> str:
        """The token table's name in a file, without prefix."""
        name = self.encoder["embeddings.tokens.weight"]
        assert isinstance(name, str)
        return name

    def class_of(self, heads: Collection[str], *, causal: bool = False) -> str:
        """transformers' class for a model with these heads."""
        name, has = next((n, has) for n, has in self.classes.items() if set(has) <= set(heads))
        return self.causal if causal and "masked_lm" in has and self.causal else name


# ------------------------------------------------------------------------------------ config.json

HARMLESS = frozenset(
    """
    architectures model_type _name_or_path name_or_path transformers_version torch_dtype dtype
    _attn_implementation attn_implementation _commit_hash torchscript use_cache auto_map axes
    gradient_checkpointing use_bfloat16 eos_token_ids id2label label2id num_labels finetuning_task
    task_specific_params pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id
    mask_token_id unk_token_id decoder_start_token_id return_dict output_attentions
    output_hidden_states output_past chunk_size_feed_forward tokenizer_class language
    tie_encoder_decoder is_composition cross_attention_hidden_size
    prefix max_length min_length do_sample early_stopping num_beams num_beam_groups temperature
    top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size diversity_penalty
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores
    return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    sentence_transformers sbert_ce_default_activation_function __version__ model_max_length
    torch_version _attn_implementation_autoset xla_device
    """.split()
)
"""Keys of any config.json that change nothing here."""
FIXED: Mapping[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", None),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "tie_word_embeddings": (True, False),  # the masked-LM head is refused if it is not tied
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "problem_type": (
        "single_label_classification",
        "multi_label_classification",
        "regression",
        None,
    ),
}
"""Keys of any config.json with the values for which transformers computes what we do."""


def read_config(
    family: Family, values: Mapping[str, Any], *, where: str
) -> tuple[ModelConfig, list[str]]:
    """The shape that a config.json describes, and what a user should know, as sentences.

    Raises:
        ModelError: a key is missing, or has a value that bothways does not compute.
    """
    for key, allowed in {**FIXED, **family.fixed}.items():
        if key in values and values[key] not in allowed:
            known = " or ".join(repr(a) for a in allowed if a is not None or len(allowed) == 1)
            raise ModelError(
                f"{where}: {key} is {shortened(values[key])}; bothways computes {family.title} "
                f"with {key} {known} only, and loading it anyway would give other results."
            )
    named: dict[str, Any] = dict(family.axes)
    for key, (name, default) in family.keys.items():
        if not name:
            continue
        if key not in values and default is REQUIRED:
            raise ModelError(f"{where}: the key {key!r} of a {family.title} config is missing.")
        named[name] = _checked(key, name, values.get(key, default), where)
    try:
        if family.read is not None:
            family.read(values, named, where)
        if values.get("model_type") == own_type(family.model_type):
            named |= values.get("axes", {})
        config = ModelConfig(**named, family=family.model_type)
    except (ConfigError, TypeError, ValueError, AttributeError) as error:
        problem = str(error)
        for key, (name, _) in family.keys.items():  # as the file calls it
            problem = re.sub(rf"\b{name}\b", key, problem) if name else problem
        raise ModelError(f"{where} does not describe a {family.title}: {problem}") from None
    return config, _notes(family, values, where)


def _checked(key: str, name: str, value: Any, where: str) -> Any:
    """A value of the field's type."""
    kind = str(ModelConfig.__annotations__[name])
    if kind == "Activation":
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ModelError(
                f"{where}: {key} is {shortened(value)}; bothways computes "
                f"{', '.join(ACTIVATIONS)}, and loading it anyway would give other results."
            )
        return ACTIVATIONS[value]
    if value is None and "None" in kind:
        return None
    kinds: dict[str, tuple[Any, str]] = {
        "int": (int, "a whole number"),
        "float": ((int, float), "a number"),
        "bool": (bool, "true or false"),
    }
    wanted, words = kinds.get(kind.partition(" ")[0], (str, "a name"))
    if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
        raise ModelError(f"{where}: {key} is {shortened(value)}; it must be {words}.")
    return value


def _notes(family: Family, values: Mapping[str, Any], where: str) -> list[str]:
    notes = [
        f"{where}: {key} is {values[key]!r}; bothways trains with {trained!r}"
        for key, trained in family.training.items()
        if values.get(key, trained) != trained
    ]
    if values.get("auto_map"):
        notes.append(
            f"{where}: auto_map names code of the model's own, which is not run; the model is "
            f"computed as {family.title}"
        )
    known = {*HARMLESS, *FIXED, *family.keys, *family.fixed, *family.training, *family.harmless}
    if unknown := sorted(values.keys() - known):
        notes.append(
            f"{where} has keys that bothways does not know and ignores: {', '.join(unknown)}"
        )
    return notes


def write_config(
    family: Family, config: ModelConfig, architecture: str, *, pad_id: int, dtype: str
) -> dict[str, Any]:
    """config.json's content for a class of transformers.

    A shape that is not of the family, as studies of single axes make them, gets a model type of its
    own, so that no class of transformers computes something else with it.
    """
    values: dict[str, Any] = {"architectures": [architecture], "model_type": family.model_type}
    for key, (name, default) in family.keys.items():
        value = getattr(config, name) if name else default
        if name == "embedding":
            value = config.embedding_width
        elif name == "groups":
            value = config.distinct_layers
        elif name in ("activation", "head_activation"):
            value = _OUR_ACTIVATIONS.get(value, value)
        if value is not None:
            values[key] = value
    values |= {"pad_token_id": pad_id, "dtype": dtype}
    if family.write is not None:
        family.write(config, values)
    found, _ = read_config(family, values, where="")
    if found != config:
        theirs, ours = found.recorded(), config.recorded()
        axes = {name: value for name, value in ours.items() if theirs.get(name) != value}
        back = {name: getattr(config, name) for name in theirs.keys() - ours.keys()}
        values |= {"model_type": own_type(family.model_type), "axes": {**axes, **back}}
    return values


def own_type(family: str, suffix: str = "") -> str:
    """The model type of a network that transformers has no class for."""
    return f"bothways-{family}{suffix}"


# ------------------------------------------------------------------------------- names of weights


def with_kinds(ours: str, theirs: Names) -> dict[str, tuple[Part, ...]]:
    """The weight and the bias of a module; of a weight's name, itself."""
    parts = _parts(theirs)
    if ours.endswith((".weight", ".bias")):
        return {ours: parts}
    return {
        f"{ours}.{k}": tuple(replace(p, name=f"{p.name}.{k}") for p in parts)
        for k in ("weight", "bias")
    }


def _parts(names: Names) -> tuple[Part, ...]:
    every = names if isinstance(names, tuple) else (names,)
    return tuple(Part(name) if isinstance(name, str) else name for name in every)


def encoder_names(family: Family, config: ModelConfig) -> dict[str, tuple[Part, ...]]:
    """The encoder's weights, ours -> those of a file.

    What the family's files never have, as studies of single axes need it, has our name.
    """
    table: dict[str, tuple[Part, ...]] = {}
    own = ("embeddings.project", "embeddings.norm", "final_norm", "pooler")
    rules: dict[str, Names] = {name: f"bothways.{name}" for name in own}
    rules |= family.encoder
    for ours, theirs in rules.items():
        for i in range(config.distinct_layers) if "{}" in ours else (0,):
            full = (
                replace(part, name=f"{family.prefix}.{part.name.format(i)}")
                for part in _parts(theirs)
            )
            table |= with_kinds(f"encoder.{ours.format(i)}", tuple(full))
    return table


def head_names(form: HeadForm, name: str) -> dict[str, tuple[Part, ...]]:
    """A head's weights, ours -> those of a file."""
    table: dict[str, tuple[Part, ...]] = {}
    for part, theirs in form.names.items():
        ours = f"{name}.{part}"
        table |= {ours: (Part(theirs),)} if part == "bias" else with_kinds(ours, theirs)
    return table


def layer_number(family: Family, name: str) -> int | None:
    """Which layer a weight of a file is of; None: of none."""
    places = {
        part.name.partition("{}")[0]
        for names in family.encoder.values()
        for part in _parts(names)
        if "{}" in part.name
    }
    for place in places:
        found = re.search(rf"(?:^|\.){re.escape(place)}(\d+)\.", name)
        if found:
            return int(found[1])
    return None


def modern_name(family: Family, name: str, bare: Collection[str]) -> str:
    """A weight's name as it is written today, with the prefix.

    Args:
        family: of the model.
        name: in a file.
        bare: the encoder's names without prefix.
    """
    name = re.sub(r"(norm|Norm)\.gamma$", r"\1.weight", name)
    name = re.sub(r"(norm|Norm)\.beta$", r"\1.bias", name)
    return f"{family.prefix}.{name}" if name in bare else name


def heads_of(
    forms: Mapping[str, HeadForm], classes: Iterable[tuple[str, ...]], names: Collection[str]
) -> list[str]:
    """The heads that a file has.

    Several heads may have the same names, or a head no weights; the classes that config.json names
    decide. What these do not explain belongs to the first head that has all of its weights, or else
    some.

    Args:
        forms: the heads that there may be.
        classes: the heads of each class.
        names: of the file's weights.
    """
    tables = {
        head: {part.name for parts in head_names(form, head).values() for part in parts}
        for head, form in forms.items()
    }
    left, found = set(names), []

    def claim(head: str) -> None:
        if head in tables and (tables[head] & left or not tables[head]):
            found.append(head)
            left.difference_update(tables.pop(head))

    for heads in classes:
        for head in heads:
            claim(head)
    while rest := [h for h in tables if tables[h] & left and not _shares(tables[h], left, names)]:
        claim(max(rest, key=lambda head: len(tables[head] & left)))
    return sorted(found, key=list(forms).index)


def _shares(own: set[str], left: set[str], names: Collection[str]) -> bool:
    """Whether a head has weights that another one has claimed."""
    return bool(own & (set(names) - left))
