"""Weights between our names and shapes and those of a family's files; each one is accounted for.

In memory the three attention projections are one matrix and the vocabulary is padded to a multiple
of 64; on disk neither is the case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bothways.errors import ModelError
from bothways.families import Family, HeadForm, family_of
from bothways.families.config import ModelConfig
from bothways.families.family import encoder_names, head_names, heads_of, layer_number, modern_name
from bothways.model.heads import HEADS, ON_LSTM, forms_of

# transformers has no class for a BiLSTM under the task head. It and its head have names of our own,
# so that no class of transformers loads them by mistake.
_LSTM_PREFIX = "lstm."
_LSTM_WEIGHTS = tuple(
    f"lstm.layers.0.{kind}_{part}_l0{way}"
    for kind in ("weight", "bias")
    for part in ("ih", "hh")
    for way in ("", "_reverse")
)
# Constants in files made elsewhere.
_REDUNDANT = re.compile(r"(^|\.)(position_ids|token_type_ids|(\w+_)?inv_freq)$")
_TABLE, _BIAS = "encoder.embeddings.tokens.weight", "masked_lm.bias"


@dataclass(frozen=True)
class Converted:
    """The weights of a file under our names and in our shapes.

    Attributes:
        state: contiguous, fp32.
        unused: names in the file that are not used here.
        dtype: of the file's weights; fp32 if they differ.
    """

    state: dict[str, Tensor]
    unused: list[str]
    dtype: torch.dtype


def has_lstm(names: Iterable[str]) -> bool:
    """Whether these names of weights, in memory or on disk, include a BiLSTM's."""
    return any(name in _LSTM_WEIGHTS for name in names)


def name_table(
    config: ModelConfig, heads: Iterable[str], *, lstm: bool = False
) -> dict[str, tuple[str, ...]]:
    """The name of every weight in memory -> its name or names on disk.

    Args:
        config: the shape.
        heads: of the model.
        lstm: whether there is a BiLSTM under the task head.
    """
    table = encoder_names(family_of(config), config)
    forms = _forms(config, lstm=lstm)
    for name in heads:
        table |= head_names(forms[name], name)
    if lstm:
        table |= {name: (name,) for name in _LSTM_WEIGHTS}
    return table


def _forms(config: ModelConfig, *, lstm: bool) -> dict[str, HeadForm]:
    """The forms of all heads, by the names that they have in files."""
    forms = dict(forms_of(config))
    for name in [name for name, head in HEADS.items() if lstm and head.task]:
        # In 0.1 a head on choices was one on texts.
        own = "classifier" if name == "choice" else name
        forms[name] = HeadForm({part: f"{_LSTM_PREFIX}{own}.{part}" for part in ON_LSTM.names})
    return forms


def heads_in(state: Iterable[str]) -> list[str]:
    """The heads that weights under our names are of."""
    present = {name.partition(".")[0] for name in state}
    return [name for name in HEADS if name in present]


def to_theirs(
    state: Mapping[str, Tensor], config: ModelConfig, *, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """A model's state in the names and shapes of its family: contiguous, on the CPU.

    Tensors are parts of those of ``state`` where they can be, so that saving takes no copy of it.

    Raises:
        ModelError: two heads that have the same names in a file.
    """
    heads = heads_in(state)
    table = name_table(config, heads, lstm=has_lstm(state))
    out: dict[str, Tensor] = {}
    for ours, value in state.items():
        if ours == _TABLE:
            value = value[: config.vocab_size]
        for name, chunk in zip(table[ours], value.chunk(len(table[ours])), strict=True):
            if name in out:
                raise ModelError(
                    f"the heads {', '.join(heads)} have the same names in a file of "
                    f"{family_of(config).title}, among them {name}; save them in folders of their "
                    "own."
                )
            out[name] = chunk.detach().cpu().to(dtype).contiguous()
    return out


def from_theirs(
    theirs: Mapping[str, Tensor],
    config: ModelConfig,
    *,
    where: str,
    architectures: Sequence[str] = (),
) -> Converted:
    """A file's weights under our names and in our shapes.

    Args:
        theirs: weights, with or without the family's prefix, possibly with old LayerNorm names.
        config: the shape they should have.
        where: the file, for error messages.
        architectures: the classes that config.json names, which decide between heads of one name.

    Returns:
        What is used, and the names of what is not. Of two output biases of the masked LM the
        decoder's is used, as in transformers, and the other is among those names if it differs.

    Raises:
        ModelError: an output embedding that is not tied, a vocabulary of another size, projections
            that cannot be stacked, or a BiLSTM without a head.
    """
    family = family_of(config)
    bare = {n.removeprefix(f"{family.prefix}.") for n in _flat(encoder_names(family, config))}
    remaining = {modern_name(family, name, bare): value for name, value in theirs.items()}
    dtypes = {value.dtype for value in remaining.values() if value.is_floating_point()}
    _refuse_untied(remaining, family, where)
    remaining = {
        n: v for n, v in remaining.items() if n != family.tied and not _REDUNDANT.search(n)
    }
    left_out = _choose_bias(remaining, family)
    lstm = has_lstm(remaining)
    found = [family.classes.get(name, ()) for name in architectures]
    heads = heads_of(_forms(config, lstm=lstm), found, remaining)
    out: dict[str, Tensor] = {}
    for ours, names in name_table(config, heads, lstm=lstm).items():
        if not all(name in remaining for name in names):
            continue
        value = _stack([remaining.pop(name) for name in names], names, where)
        out[ours] = _pad_vocabulary(value, config, where) if ours == _TABLE else value
    if lstm and not any(HEADS[head].task for head in heads):
        raise ModelError(
            f"{where}: holds a BiLSTM but no head on top of it; it is incomplete. Copy the model "
            "folder again from where it was made."
        )
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    return Converted(out, sorted([*remaining, *left_out]), dtype)


def _flat(table: Mapping[str, tuple[str, ...]]) -> Iterable[str]:
    return (name for names in table.values() for name in names)


def _choose_bias(weights: dict[str, Tensor], family: Family) -> list[str]:
    """Keep one output bias of the masked LM; the name of the other if it differs."""
    used = weights.pop(family.twin_bias, None)
    if used is None:
        return []
    name = family.heads["masked_lm"].names["bias"]
    other, weights[name] = weights.get(name), used
    return [] if other is None or torch.equal(other.float(), used.float()) else [name]


def _stack(parts: list[Tensor], names: tuple[str, ...], where: str) -> Tensor:
    if len(parts) == 1:
        # Not a view of the memory-mapped file, and contiguous: pickled weights that were converted
        # from TensorFlow are transposed, as no checkpoint can be written of them.
        layout = torch.contiguous_format
        return parts[0].to(torch.float32, copy=True, memory_format=layout)
    shapes = [tuple(part.shape) for part in parts]
    if len(set(shapes)) > 1 or not shapes[0]:
        differing = ", ".join(f"{n} {s}" for n, s in zip(names, shapes, strict=True))
        raise ModelError(f"{where}: weights that should have the same shape do not: {differing}.")
    return torch.cat(parts).float().contiguous()


def _refuse_untied(weights: Mapping[str, Tensor], family: Family, where: str) -> None:
    output, table = weights.get(family.tied), weights.get(f"{family.prefix}.{family.tokens}")
    if output is None or table is None:
        return
    if output.shape != table.shape or not torch.equal(output.float(), table.float()):
        raise ModelError(
            f"{where}: the masked-LM output embedding ({family.tied}) differs from the input "
            "embedding; bothways computes them tied, so the logits would change. Tie them before "
            "converting."
        )


def _pad_vocabulary(value: Tensor, config: ModelConfig, where: str) -> Tensor:
    if value.ndim != 2 or len(value) != config.vocab_size:
        raise ModelError(
            f"{where}: the token embedding has shape {tuple(value.shape)} but config.json says "
            f"vocab_size {config.vocab_size}; the folder's files do not belong together."
        )
    padding = value.new_zeros(config.padded_vocab - config.vocab_size, value.shape[1])
    return torch.cat([value, padding])


def trim_vocabulary(state: dict[str, Tensor], config: ModelConfig) -> None:
    """Take from a state the rows of pieces beyond the vocabulary of ``config``."""
    rows = state[_TABLE][: config.vocab_size]
    padding = rows.new_zeros(config.padded_vocab - config.vocab_size, rows.shape[1])
    state[_TABLE] = torch.cat([rows, padding])
    if _BIAS in state:
        state[_BIAS] = state[_BIAS][: config.vocab_size].clone()


def refuse_other_layers(unused: Iterable[str], config: ModelConfig, where: str) -> None:
    """Refuse weights of more layers than config.json has: without the last ones the network would
    compute something else, without an error.

    Raises:
        ModelError: naming one of them.
    """
    family, count = family_of(config), config.distinct_layers
    numbers = {name: layer_number(family, name) for name in unused}
    extra = [name for name, number in numbers.items() if number is not None and number >= count]
    if extra:
        raise ModelError(
            f"{where} holds weights of layers beyond the {count} that config.json calls for, "
            f"such as {extra[0]}; the folder's files do not belong together."
        )
