"""The heads on an encoder: one entry each, what a model with some of them weighs, and what a family
or a folder cannot do.

Nothing here computes, so nothing imports torch: folders, tasks and every engine read this registry.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from bothways.errors import ModelError
from bothways.families import FAMILIES, NETWORKS, HeadForm, ModelConfig, family_of
from bothways.families.parameters import (
    Parameter,
    Table,
    encoder_parameters,
    linear,
    norm,
    piece_rows,
)

MASKED_LM, NEXT_SENTENCE, REPLACED = "masked_lm", "next_sentence", "replaced"
CLASSIFIER, TAGGER, SPAN, CHOICE = "classifier", "tagger", "span", "choice"
ORDINAL = "ordinal"

_PRETRAIN = "use a folder that `bothways pretrain` wrote"
_FINETUNE = "fine-tune it first (`bothways finetune`), then use the model folder that it writes"


@dataclass(frozen=True)
class Head:
    """What all families' forms of a head have in common.

    Attributes:
        key: keys its new weights, with the seed; never changes, and is no other head's. (A head on
            choices was one on texts in 0.1, and has its key.)
        reads: one vector per sequence, single tokens, or masked tokens.
        title: its name in messages.
        outputs: how many; 0: as many as its task has.
        task: it is a task's: a model has at most one of these.
        kind: of the task, where the folder does not say; empty: no task has this head.
        form: of families that have no form of their own; None: these have no such head.
        remedy: what to do where a model lacks it.
    """

    key: int
    reads: Literal["sequence", "tokens", "masked"]
    title: str
    outputs: int = 0
    task: bool = False
    kind: str = ""
    form: HeadForm | None = None
    remedy: str = _FINETUNE


HEADS: dict[str, Head] = {
    MASKED_LM: Head(0, "masked", "masked-LM head", outputs=1, remedy=_PRETRAIN),
    NEXT_SENTENCE: Head(
        *(1, "sequence", "next-sentence head"),
        outputs=2,
        remedy=f"{_PRETRAIN} with pairs_kind next or order",
    ),
    CLASSIFIER: Head(
        *(2, "sequence", "head for labels or scores of texts"),
        task=True,
        kind="classification",
    ),
    TAGGER: Head(3, "tokens", "head for tags of words", task=True, kind="tagging"),
    SPAN: Head(4, "tokens", "head for answers in texts", outputs=2, task=True, kind="spans"),
    CHOICE: Head(2, "sequence", "head for choices", outputs=1, task=True, kind="choice"),
    REPLACED: Head(
        *(6, "tokens", "head for replaced tokens"),
        outputs=1,
        remedy="use the folder of a discriminator",
    ),
    # Of K classes in order, K - 1 outputs, the sigmoids of which are P(class > k).
    ORDINAL: Head(
        *(7, "sequence", "head for ordered classes of texts"),
        task=True,
        form=HeadForm(
            {"dense": "ordinal.dense", "output": "ordinal.output"},
            dense=True,
            activation="tanh",
            dropout="head",
            first_dropout="head",
        ),
    ),
}
"""The heads by name, which is the model's attribute and the beginning of its weights' names."""
POOLER_KEY = 5
"""Keys the weights of a pooler that a file lacks."""
ON_LSTM = HeadForm({"output": "output"}, dropout="head")
"""Of every head of a task on a BiLSTM."""
LSTM = "lstm"
"""Begins the names of the weights of a BiLSTM under a task's head."""
LSTM_WEIGHTS = tuple(
    f"{LSTM}.layers.0.{kind}_{part}_l0{way}"
    for kind in ("weight", "bias")
    for part in ("ih", "hh")
    for way in ("", "_reverse")
)


def use_of(name: str, kind: str) -> str:
    """The head as which a model's head is used: of a frozen encoder, the head of tokens is one for
    texts, whose outputs are its mean over the tokens.

    Args:
        kind: of the folder's task; empty if it says none.
    """
    averaged = name == TAGGER and kind not in ("", HEADS[TAGGER].kind)
    return CLASSIFIER if averaged else name


def form_of(name: str, config: ModelConfig) -> HeadForm:
    """How a family computes a head.

    Raises:
        ModelError: it has no such head.
    """
    form = family_of(config).heads.get(name, HEADS[name].form)
    if form is None:
        raise ModelError(no_such_head(config.family, name))
    return form


def activation_of(form: HeadForm, config: ModelConfig) -> str:
    """The activation after a head's first layer, in a model of this shape."""
    if form.activation == "own":
        return config.head_activation
    return form.activation or config.activation


def forms_of(config: ModelConfig) -> Mapping[str, HeadForm]:
    """All heads that a family has, in the order in which a file's weights are given to them."""
    family = family_of(config)
    found = {name: family.heads.get(name, head.form) for name, head in HEADS.items()}
    forms = {name: form for name, form in found.items() if form is not None}
    if MASKED_LM in forms and not config.tied:
        names = {**forms[MASKED_LM].names, "decoder": family.tied.removesuffix(".weight")}
        forms[MASKED_LM] = replace(forms[MASKED_LM], names=names)
    return forms


def has_pooler(config: ModelConfig, heads: Collection[str], *, lstm: bool = False) -> bool:
    """Whether a model with these heads has a pooler, as files of its family do.

    Of a task's head that does not read it, such as a tagger's, transformers' class has none, and
    would call it unexpected.
    """
    if not config.pooler:
        return False
    own = [name for name in heads if not (lstm and HEADS[name].task)]
    pooled = any(form_of(name, config).pooled for name in own)
    if task_head(heads):
        return pooled
    return family_of(config).keeps_pooler or not heads or pooled


def task_head(heads: Collection[str]) -> str:
    """Which of a model's heads is its task's; empty if none is."""
    return next((name for name in HEADS if name in heads and HEADS[name].task), "")


# -------------------------------------------------------------------------------------- parameters


def parameters(
    config: ModelConfig, heads: Mapping[str, int], *, lstm: int = 0, pooler: bool = True
) -> Table:
    """The parameters of a model, by name.

    Args:
        config: the encoder's shape.
        heads: with their numbers of outputs.
        lstm: units of each direction of a BiLSTM under the task head; 0 for none.
        pooler: whether the encoder has one.
    """
    encoder = encoder_parameters(config, pooler=pooler)
    table = {f"encoder.{name}": parameter for name, parameter in encoder.items()}
    for name, outputs in heads.items():
        table |= _head(config, name, outputs, lstm)
    if lstm:
        for name in LSTM_WEIGHTS:
            width = config.hidden if "_ih_" in name else lstm
            shape = (4 * lstm, width) if ".weight_" in name else (4 * lstm,)
            table[name] = Parameter(shape, "uniform", shape[:1])
    return table


def parameter_count(
    config: ModelConfig,
    heads: Mapping[str, int] | None = None,
    *,
    lstm: int = 0,
    pooler: bool = True,
) -> int:
    """Number of weights of a model, without padding rows.

    Args:
        config, heads, lstm, pooler: as for :func:`parameters`.
    """
    table = parameters(config, heads or {}, lstm=lstm, pooler=pooler)
    return sum(math.prod(shape) for p in table.values() for shape in p.stored(1))


def _head(config: ModelConfig, name: str, outputs: int, lstm: int) -> Table:
    H, biases = config.hidden, config.head_biases
    if HEADS[name].reads == "masked":
        form, E = form_of(name, config), config.embedding_width
        table = linear(f"{name}.dense", H, E, bias=biases) if form.dense else {}
        if form.norm:
            table |= norm(f"{name}.norm", E, config)
        if not config.tied:
            table[f"{name}.decoder.weight"] = piece_rows(config, config.padded_vocab, E)
        if config.output_bias and "bias" in form.names:
            table[f"{name}.bias"] = piece_rows(config, config.vocab_size)
        return table
    on_lstm = bool(lstm) and HEADS[name].task
    form, width = (ON_LSTM, 2 * lstm) if on_lstm else (form_of(name, config), H)
    table = linear(f"{name}.output", width, outputs)
    if form.dense:
        table |= linear(f"{name}.dense", width, width, bias=biases)
    return table | (norm(f"{name}.norm", width, config) if form.norm else {})


# -------------------------------------------------------------- what a family or a folder cannot do
# Verbs ask here, so that a table of family, head and message can be made from one place.


def no_task_of(head: str) -> str:
    """That no task has a model's head, so that there is nothing to say what its outputs mean."""
    return (
        f"this model has a {HEADS[head].title}, which no task here has: an engine computes its "
        f"outputs, but nothing says what they mean. For a task, {_FINETUNE}."
    )


def no_such_head(family: str, head: str) -> str:
    """That a family has no such head at all."""
    others = [f.title for f in FAMILIES.values() if head in f.heads]
    return (
        f"{NETWORKS[family].title} has no {HEADS[head].title}; of the families here "
        f"{', '.join(others) or 'none'} {'has' if len(others) == 1 else 'have'} one. Use such a "
        "model."
    )


def missing_head(
    family: str, head: str, present: Collection[str] = (), *, causal: bool = False
) -> str:
    """That a model has no such head, and what to do: the family's fault, or the folder's.

    Args:
        family: of the model.
        head: the one that is wanted.
        present: the heads that it has.
        causal: it reads left to right.
    """
    if head not in NETWORKS[family].heads and HEADS[head].form is None:
        return no_such_head(family, head)
    why = f"this model has no {HEADS[head].title}"
    if head == MASKED_LM and REPLACED in present:
        return (
            f"{why}: it is a discriminator, which tells replaced tokens from original ones and "
            "predicts none; use the folder of its generator."
        )
    if head == NEXT_SENTENCE and causal:
        why += ", because it reads left to right, where the first token sees neither text"
    if head == REPLACED and MASKED_LM in present:
        why += ": it is a generator, which predicts tokens"
    return f"{why}; {HEADS[head].remedy}."
