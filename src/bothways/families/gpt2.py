"""GPT-2 (Radford et al. 2019): left to right, norms before the branches, matrices turned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bothways.families.config import ModelConfig
from bothways.families.family import REQUIRED, Family, HeadForm, Part

_LAYER = "h.{}"


def read(values: Mapping[str, Any], named: dict[str, Any], where: str) -> None:  # noqa: ARG001
    """The inner width, which is four times the hidden size where it is null."""
    named["intermediate"] = values.get("n_inner") or 4 * named["hidden"]


def write(config: ModelConfig, values: dict[str, Any]) -> None:
    """The reverse of :func:`read`."""
    values["n_inner"] = config.intermediate


GPT2 = Family(
    model_type="gpt2",
    title="GPT-2",
    prefix="transformer",
    keys={
        "vocab_size": ("vocab_size", REQUIRED),
        "n_layer": ("layers", REQUIRED),
        "n_embd": ("hidden", REQUIRED),
        "n_head": ("heads", REQUIRED),
        "n_positions": ("positions", 1024),
        "activation_function": ("activation", "gelu_new"),
        "resid_pdrop": ("dropout", 0.1),
        "attn_pdrop": ("attention_dropout", 0.1),
        "layer_norm_epsilon": ("norm_eps", 1e-5),
        "initializer_range": ("init_std", 0.02),
    },
    encoder={
        "embeddings.tokens.weight": "wte.weight",
        "embeddings.positions.weight": "wpe.weight",
        "layers.{}.attention.qkv": Part(f"{_LAYER}.attn.c_attn", turned=True),
        "layers.{}.attention.output": Part(f"{_LAYER}.attn.c_proj", turned=True),
        "layers.{}.attention_norm": f"{_LAYER}.ln_1",
        "layers.{}.expand": Part(f"{_LAYER}.mlp.c_fc", turned=True),
        "layers.{}.contract": Part(f"{_LAYER}.mlp.c_proj", turned=True),
        "layers.{}.norm": f"{_LAYER}.ln_2",
        "final_norm": "ln_f",
    },
    # The token table alone, without weights of its own.
    heads={"masked_lm": HeadForm({})},
    classes={"GPT2LMHeadModel": ("masked_lm",), "GPT2Model": ()},
    tied="lm_head.weight",
    axes={
        **{"segments": 0, "pooler": False, "embedding_norm": False, "left_to_right": True},
        **{"norm_at": "pre", "final_norm": True},
    },
    fixed={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False, True),
    },
    training={"embd_pdrop": 0.1},
    harmless=frozenset(
        """
        n_inner n_ctx summary_type summary_use_proj summary_activation summary_proj_to_labels
        summary_first_dropout
        """.split()
    ),
    read=read,
    write=write,
)
