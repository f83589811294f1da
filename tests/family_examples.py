"""Tiny random models of transformers, a family each, with every weight perturbed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from bothways import families
from bothways.families.family import REQUIRED, Family, HeadForm
from bothways.model.batch import Inputs, collate
from bothways.model.model import EncoderModel
from bothways.runtime.folder import LoadedModel, load_model
from model_examples import randomise as perturb
from model_examples import small_tokenizer

VOCABULARY, POSITIONS = 97, 44
LENGTHS = (9, 40, 1, 23, 2, 17)
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 50,
    "max_position_embeddings": POSITIONS,
}
EPS = {"layer_norm_eps": 1e-5}
PADDED = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


@dataclass(frozen=True)
class Example:
    """How to make a model of a family.

    Attributes:
        stem: of transformers' classes.
        settings: of its config.
        segments: that it distinguishes.
        pad: the id of padding.
    """

    stem: str
    settings: dict[str, Any]
    segments: int = 2
    pad: int = 0

    def config(self, **more: Any) -> Any:
        """A config of transformers."""
        made = getattr(transformers, f"{self.stem}Config")(**{**self.settings, **more})
        made._attn_implementation = "eager"
        return made

    def model(self, name: str, **more: Any) -> Any:
        """A model of transformers in evaluation mode, with every weight of order one."""
        kind = getattr(transformers, f"{self.stem}{name}")
        model = kind._from_config(self.config(**more), attn_implementation="eager").eval()
        perturb(model)
        return model


EXAMPLES: dict[str, Example] = {
    "bert": Example("Bert", SIZES),
    "roberta": Example("Roberta", {**SIZES, **EPS, **PADDED, "type_vocab_size": 1}, 1, 1),
    "xlm-roberta": Example("XLMRoberta", {**SIZES, **EPS, **PADDED}, 2, 1),
    "albert": Example("Albert", {**SIZES, "embedding_size": 24}),
    "albert-groups": Example(
        "Albert",
        {
            **SIZES,
            **{"embedding_size": 32, "num_hidden_layers": 5, "num_hidden_groups": 2},
            **{"hidden_act": "gelu"},
        },
    ),
    "electra": Example("Electra", {**SIZES, "embedding_size": 24}),
    "electra-as-wide": Example("Electra", {**SIZES, "embedding_size": 32}),
    "distilbert": Example(
        "DistilBert",
        {
            **{"vocab_size": VOCABULARY, "dim": 32, "n_layers": 3, "n_heads": 4},
            **{"hidden_dim": 50, "max_position_embeddings": POSITIONS},
        },
        0,
    ),
    "modernbert": Example(
        "ModernBert",
        {
            **SIZES,
            **{"local_attention": 8, "num_hidden_layers": 4, "pad_token_id": 0},
            **{"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
        },
        0,
    ),
    "modernbert-biased": Example(
        "ModernBert",
        {
            **SIZES,
            **{"local_attention": 12, "num_hidden_layers": 5, "pad_token_id": 0},
            **{"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
            **{"attention_bias": True, "mlp_bias": True, "norm_bias": True},
            **{"classifier_bias": True, "decoder_bias": False, "classifier_pooling": "mean"},
            **{"classifier_activation": "silu", "hidden_activation": "gelu_pytorch_tanh"},
            "layer_types": [
                "full_attention" if i % 2 == 0 else "sliding_attention" for i in range(5)
            ],
        },
        0,
    ),
    "roformer": Example("RoFormer", {**SIZES, "summary_type": "first"}),
    "roformer-narrow": Example(
        "RoFormer",
        {**SIZES, **EPS, **{"embedding_size": 24, "hidden_act": "relu", "summary_type": "first"}},
    ),
}


_LAYER = "layers.{}"
# A family of another package's: shared keys, root mean squares, gates apart, an output of its own.
families.NETWORKS["eurobert"] = Family(
    model_type="eurobert",
    title="EuroBERT",
    prefix="model",
    keys={
        "vocab_size": ("vocab_size", REQUIRED),
        "num_hidden_layers": ("layers", REQUIRED),
        "hidden_size": ("hidden", REQUIRED),
        "num_attention_heads": ("heads", REQUIRED),
        "num_key_value_heads": ("kv_heads", 0),
        "intermediate_size": ("intermediate", REQUIRED),
        "max_position_embeddings": ("positions", 8192),
        "hidden_act": ("activation", "silu"),
        "attention_dropout": ("attention_dropout", 0.0),
        "rms_norm_eps": ("norm_eps", 1e-5),
        "initializer_range": ("init_std", 0.02),
        "tie_word_embeddings": ("tied", False),
    },
    encoder={
        "embeddings.tokens.weight": "embed_tokens.weight",
        "layers.{}.attention.qkv": tuple(f"{_LAYER}.self_attn.{part}_proj" for part in "qkv"),
        "layers.{}.attention.output": f"{_LAYER}.self_attn.o_proj",
        "layers.{}.attention_norm": f"{_LAYER}.input_layernorm",
        "layers.{}.expand": (f"{_LAYER}.mlp.gate_proj", f"{_LAYER}.mlp.up_proj"),
        "layers.{}.contract": f"{_LAYER}.mlp.down_proj",
        "layers.{}.norm": f"{_LAYER}.post_attention_layernorm",
        "final_norm": "norm",
    },
    heads={"masked_lm": HeadForm({}), "tagger": HeadForm({"output": "classifier"})},
    classes={
        "EuroBertForTokenClassification": ("tagger",),
        "EuroBertForMaskedLM": ("masked_lm",),
        "EuroBertModel": (),
    },
    tied="lm_head.weight",
    axes={
        **{"segments": 0, "pooler": False, "place": "rotary", "norm_at": "pre", "norm": "rms"},
        **{"final_norm": True, "gated": True, "biases": False, "embedding_norm": False},
        **{"dropout": 0.0},
    },
    harmless=frozenset(
        "rope_parameters mlp_bias attention_bias classifier_pooling pretraining_tp head_dim".split()
    ),
)
NETWORKS: dict[str, Example] = {
    "deberta-v2": Example(
        "DebertaV2",
        {
            **SIZES,
            **{"type_vocab_size": 0, "relative_attention": True, "position_buckets": 8},
            **{"norm_rel_ebd": "layer_norm", "share_att_key": True, "pad_token_id": 0},
            **{"pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
        },
        0,
    ),
    "eurobert": Example(
        "EuroBert",
        {
            **SIZES,
            **{"num_key_value_heads": 2, "pad_token_id": 0, "mask_token_id": 4},
            **{"bos_token_id": 1, "eos_token_id": 1, "tie_word_embeddings": False},
        },
        0,
    ),
    "gpt2": Example(
        "GPT2",
        {
            **{"vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": 32, "n_layer": 3},
            **{"n_head": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1},
        },
        0,
    ),
}
"""Of families that are networks alone."""


def rows(
    example: Example, lengths: Sequence[int] = LENGTHS, seed: int = 0
) -> tuple[list[list[int]], list[list[int]]]:
    """Ids, none of them padding's, and segments, one list a sequence."""
    rng = np.random.default_rng(seed)
    tokens = [rng.integers(5, VOCABULARY, n).tolist() for n in lengths]
    most = max(1, example.segments)
    segments = [np.sort(rng.integers(0, most, n)).tolist() for n in lengths]
    return tokens, segments


def batch_of(
    example: Example, seed: int = 0, lengths: Sequence[int] = LENGTHS
) -> tuple[Inputs, dict[str, Tensor]]:
    """The same sequences flat, and padded in transformers' form."""
    tokens, segments = rows(example, lengths, seed)
    longest = max(map(len, tokens))

    def fill(values: list[list[int]], with_: int) -> Tensor:
        return torch.tensor([[*row, *[with_] * (longest - len(row))] for row in values])

    batch = {
        "input_ids": fill(tokens, example.pad),
        "attention_mask": fill([[1] * len(row) for row in tokens], 0),
    }
    if example.segments:
        batch["token_type_ids"] = fill(segments, 0)
    return collate(tokens, segments, max_positions=longest), batch


def save_theirs(model: Any, folder: Path) -> None:
    """A folder of transformers, with a vocabulary beside."""
    model.save_pretrained(folder)
    small_tokenizer(VOCABULARY).save(folder)


def loaded(model: Any, folder: Path) -> LoadedModel:
    """Their model, by way of its folder."""
    save_theirs(model, folder)
    return load_model(folder)


def flat(rows_BL: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """The tokens of a padded array, end to end."""
    return rows_BL[batch["attention_mask"].bool()]


def our_logits(
    model: EncoderModel, head: str, inputs: Inputs, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A head's outputs for every token, or every sequence."""
    total = int(inputs.bounds[-1])
    if head == "masked_lm":
        x_TH = model.encoder(inputs, dtype=dtype)[:total]
        return model.masked_lm_logits(x_TH)[:, : model.config.vocab_size]
    if head in ("next_sentence", "classifier", "choice"):
        return model.logits(head, model.sequence_vectors(inputs, dtype=dtype))
    return model.logits(head, model.encoder(inputs, dtype=dtype)[:total])


def their_logits(out: Any, head: str, batch: dict[str, Tensor]) -> Tensor:
    """The same of transformers' outputs."""
    if head == "span":
        return torch.stack([flat(out.start_logits, batch), flat(out.end_logits, batch)], -1)
    if head == "next_sentence":
        for name in ("seq_relationship_logits", "sop_logits", "logits"):
            if getattr(out, name, None) is not None:
                found: Tensor = getattr(out, name)
                return found
    if head == "masked_lm":
        logits = out.logits if "logits" in out else out.prediction_logits
        return flat(logits, batch)
    if head == "replaced":
        return flat(out.logits, batch)[:, None]
    logits = out.logits
    return (
        logits.view(-1, 1)
        if head == "choice"
        else logits
        if head == "classifier"
        else flat(logits, batch)
    )


def as_choices(batch: dict[str, Tensor], head: str) -> dict[str, Tensor]:
    """Every sequence as the only choice of its question, for the class that has choices."""
    return {key: value[:, None] for key, value in batch.items()} if head == "choice" else batch
