"""The start of a pre-training run: its corpus, and new weights or those of a model folder."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from bothways.config.fields import digest
from bothways.corpus.store import TokenStore
from bothways.errors import ConfigError, ModelError, StoreError
from bothways.families.config import ModelConfig
from bothways.families.heads import MASKED_LM, NEXT_SENTENCE, REPLACED, form_of
from bothways.families.options import SizeOptions
from bothways.io.files import sha256
from bothways.io.hub import model_folder
from bothways.io.terminal import print_note
from bothways.model.batch import PretrainingBatch
from bothways.model.engine import network_of
from bothways.model.folder import model_like
from bothways.model.model import EncoderModel
from bothways.model.priming import prime_first_layer
from bothways.objectives.masked import PAIRS, MaskedLM
from bothways.objectives.objective import Objective
from bothways.objectives.replaced import GENERATOR, ReplacedTokens, generator_shape, make_generator
from bothways.pretraining.options import PretrainConfig
from bothways.runtime.folder import load_model, model_files
from bothways.tokenization.tokenizer import Tokenizer

PRETRAINING_HEADS = (MASKED_LM, NEXT_SENTENCE, REPLACED)
_DROPOUTS = ("dropout", "attention_dropout")
SHAPE_OPTIONS = tuple(f"model.{f.name}" for f in fields(SizeOptions) if f.name not in _DROPOUTS)
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
    trained = _heads(config)
    for name in PRETRAINING_HEADS:
        if name not in trained:
            setattr(model, name, None)  # its answers would no longer fit the encoder
        elif getattr(model, name) is None:
            model.add_head(name, config.seed)
    _add_generator(config, model)
    return model


def fitted_shape(config: PretrainConfig, tokenizer: Tokenizer) -> ModelConfig:
    """The shape of a new model for a tokenizer: of its size, and where the family counts places
    from behind the padding's id, from behind this one's."""
    shape = config.shape(tokenizer.vocab_size)
    return replace(shape, place_offset=tokenizer.pad_id + 1) if shape.place_offset else shape


def new_model(config: PretrainConfig, shape: ModelConfig) -> EncoderModel:
    """New weights, with the heads that the recipe trains."""
    heads = _heads(config)
    model = EncoderModel(
        shape,
        masked_lm=MASKED_LM in heads,
        next_sentence=NEXT_SENTENCE in heads,
        replaced=REPLACED in heads,
        seed=config.seed,
    )
    _add_generator(config, model)
    return model


def objective_of(config: PretrainConfig) -> Objective[PretrainingBatch]:
    """What a recipe trains weights for."""
    weights = config.objectives
    if weights.replaced:
        return ReplacedTokens(replaced_weight=weights.replaced)
    return MaskedLM(config.pairs.kind, pairs_weight=weights.pairs)


def _heads(config: PretrainConfig) -> list[str]:
    """The heads of the model that a recipe trains; the generator's is its own."""
    if config.objectives.replaced:
        return [REPLACED]
    return [MASKED_LM, *([NEXT_SENTENCE] if config.pairs.kind in PAIRS else [])]


def generator_of(config: PretrainConfig, shape: ModelConfig) -> ModelConfig | None:
    """The shape of the generator that a recipe trains with a model of a shape, if it does."""
    if not config.objectives.replaced:
        return None
    return generator_shape(shape, size=config.generator.size)


def _add_generator(config: PretrainConfig, model: EncoderModel) -> None:
    if config.objectives.replaced:
        options = config.generator
        model.parts[GENERATOR] = make_generator(
            model, size=options.size, share=options.share, seed=config.seed
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
    if MASKED_LM in loaded.refused and MASKED_LM in _heads(config):
        raise ModelError(loaded.refused[MASKED_LM])
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
    if config.pairs.kind in PAIRS:
        form_of(NEXT_SENTENCE, shape)  # refuses a family without it
        needed = loaded.tokenizer.template.pair_segments
        if 0 < shape.segments < needed:
            raise ConfigError(
                f"{config.start} distinguishes no segments (type_vocab_size 1), and pairs.kind "
                f"{config.pairs.kind} makes sequences of two; choose --pairs.kind full or single."
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
    if shape.left_to_right == config.masking.left_to_right:
        return
    theirs, wanted = "reads both ways", "left to right"
    if shape.left_to_right:
        theirs, wanted = "reads left to right", "both ways"
    raise ConfigError(
        f"{model} {theirs}, and masking.kind {config.masking.kind} trains a model that "
        f"reads {wanted}; weights learned for one direction do not work for the other. {remedy}, "
        f"or {'set' if shape.left_to_right else 'do not set'} masking.kind to left_to_right."
    )


def weights_digest(model: str) -> str:
    """A digest of the weights file, or of the parts, that :func:`load_model` reads."""
    digests = [sha256(file) for file in model_files(model_folder(model))]
    return digests[0][:16] if len(digests) == 1 else digest(digests)
