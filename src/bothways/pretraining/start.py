"""The start of a pre-training run: its corpus, and new weights or those of a model folder."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from bothways.config.fields import digest
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError, ModelError, StoreError
from bothways.families.config import ModelConfig
from bothways.families.heads import HEADS, form_of
from bothways.families.options import SizeOptions
from bothways.io.files import sha256
from bothways.io.hub import model_folder
from bothways.io.terminal import print_note
from bothways.model.engine import network_of
from bothways.model.folder import model_like
from bothways.model.model import EncoderModel
from bothways.model.priming import prime_first_layer
from bothways.objectives.kinds import make_objective
from bothways.objectives.objective import PretrainingObjective
from bothways.pretraining.instances import texts_of
from bothways.pretraining.options import PretrainConfig
from bothways.runtime.folder import load_model, model_files
from bothways.tokenization.tokenizer import Tokenizer

_DROPOUTS = ("dropout", "attention_dropout")
SHAPE_OPTIONS = tuple(f.name for f in fields(SizeOptions) if f.name not in _DROPOUTS)
"""Options of a new encoder that --start leaves without effect."""


def open_corpus(folder: str) -> TokenStore:
    """The corpus to train on.

    Raises:
        ConfigError: no corpus was given.
        StoreError: the corpus is damaged.
    """
    if not folder:
        raise ConfigError("no corpus was given; build one with `bothways corpus`, then --corpus.")
    return TokenStore.open(folder)


def objective_of(config: PretrainConfig) -> PretrainingObjective:
    """What a recipe trains weights for.

    Raises:
        ConfigError: there is no such objective, or it does not go with the pairs.
    """
    return make_objective(config.objective, config.pairs.kind)


def starting_model(config: PretrainConfig, store: TokenStore) -> EncoderModel:
    """A model with new weights, or that of --start with new pre-training heads if it lacks them.

    Raises:
        ConfigError, StoreError, ModelError: --start does not fit the phases or the corpus, or
            cannot be loaded.
    """
    if not config.start:
        new = new_model(config, fitted_shape(config, store.tokenizer))
        if config.model.init == "primed":
            prime_first_layer(new.encoder)
        return new
    model = load_start(config, store)
    model.drop_task_heads()
    objective = objective_of(config)
    for name in model.heads.keys() - set(objective.heads):
        setattr(model, name, None)  # its answers would no longer fit the encoder
    for name in objective.heads:
        if name not in model.heads:
            model.add_head(name, config.seed)
    _add_parts(config, objective, model)
    return model


def fitted_shape(config: PretrainConfig, tokenizer: Tokenizer) -> ModelConfig:
    """The shape of a new model for a tokenizer: of its size, and where the family counts places
    from behind the padding's id, from behind this one's."""
    shape = config.shape(tokenizer.vocab_size, left_to_right=objective_of(config).causal)
    return replace(shape, place_offset=tokenizer.pad_id + 1) if shape.place_offset else shape


def new_model(config: PretrainConfig, shape: ModelConfig) -> EncoderModel:
    """New weights, with the heads and parts that the objective trains."""
    objective = objective_of(config)
    heads = {name: HEADS[name].outputs for name in objective.heads}
    model = EncoderModel(shape, heads=heads, seed=config.seed)
    _add_parts(config, objective, model)
    return model


def _add_parts(
    config: PretrainConfig, objective: PretrainingObjective, model: EncoderModel
) -> None:
    for name, part in objective.parts(model, config.seed).items():
        model.parts[name] = part
    if len(model.parts) and config.parallel == "fsdp":
        raise ConfigError(
            f"objective {config.objective[0]} with parallel fsdp: the modules that it brings are "
            "not sharded; choose parallel ddp."
        )


def load_start(config: PretrainConfig, store: TokenStore | None) -> EncoderModel:
    """The model of --start, with the dropout probabilities of ``config.model`` where it has any.

    Raises:
        ConfigError, StoreError, ModelError: see :func:`starting_model`.
    """
    assert config.start
    loaded = load_model(config.start)
    for note in loaded.notes:
        print_note(note)
    objective = objective_of(config)
    for head in objective.heads:
        if head in loaded.refused:
            raise ModelError(loaded.refused[head])
    if store is not None and loaded.tokenizer.fingerprint != store.tokenizer.fingerprint:
        raise StoreError(
            f"{config.corpus} was built with another vocabulary than {config.start} has; build it "
            f"again with --tokenizer {config.start}."
        )
    shape = loaded.config
    check_direction(config, shape, config.start, "Leave start out")
    longest = max(phase.length for phase in config.phases)
    if longest > shape.positions:
        raise ConfigError(
            f"phases: length {longest} is over the {shape.positions} positions of "
            f"{config.start}; shorten the phase."
        )
    for head in objective.heads:
        form_of(head, shape)  # refuses a family without it
    if texts_of(config.pairs.kind) == 2:
        needed = loaded.tokenizer.template.pair_segments
        if 0 < shape.segments < needed:
            raise ConfigError(
                f"{config.start} distinguishes no segments (type_vocab_size 1), and pairs_kind "
                f"{config.pairs.kind} makes sequences of two; choose --pairs-kind full or single."
            )
    asked: dict[str, Any] = {name: getattr(config.model, name) for name in _DROPOUTS}
    given = {name: value for name, value in asked.items() if value is not None}
    shape = replace(shape, **given)
    shape.refuse_to_train()
    network = network_of(loaded)
    # Another model around the same weights: layers take their dropout when they are made.
    return model_like(network, network.state_dict(), shape)


def check_direction(config: PretrainConfig, shape: ModelConfig, model: str, remedy: str) -> None:
    """Refuse a model whose attention does not fit the targets.

    A bidirectional encoder sees the next tokens that a left-to-right model has to predict, and a
    left-to-right encoder does not see the context after a mask.

    Args:
        config: the recipe.
        shape: the model's.
        model: named in the message.
        remedy: how to get another model.

    Raises:
        ConfigError: the directions differ.
    """
    if shape.left_to_right == objective_of(config).causal:
        return
    theirs, wanted = "both ways", "left to right"
    if shape.left_to_right:
        theirs, wanted = wanted, theirs
    raise ConfigError(
        f"{model} reads {theirs}, and objective {config.objective[0]} trains a model that reads "
        f"{wanted}; weights learned for one direction do not work for the other. {remedy}, or "
        "choose another objective."
    )


def weights_digest(model: str) -> str:
    """A digest of the weights file, or of the parts, that :func:`load_model` reads."""
    digests = [sha256(file) for file in model_files(model_folder(model))]
    return digests[0][:16] if len(digests) == 1 else digest(digests)
