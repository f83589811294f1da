"""The parameters of an encoder as a table, from which all that depends on them follows: shapes and
counts, initial values, operations, how files divide them, the rows of new pieces, LAMB's ratios.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bothways.families.config import ModelConfig


@dataclass(frozen=True)
class Parameter:
    """A parameter in memory.

    Attributes:
        shape: of the whole.
        initial: normal: drawn with the deviation ``ModelConfig.init_std``; uniform: drawn by its
            module.
        matrices: rows of each of the matrices stacked in it, which files may hold apart.
        pieces: its first rows belong to so many pieces of the vocabulary; files hold no others,
            which are 0. None: rows are not pieces'.
    """

    shape: tuple[int, ...]
    initial: Literal["normal", "one", "zero", "uniform"]
    matrices: tuple[int, ...]
    pieces: int | None = None

    def stored(self, parts: int) -> list[tuple[int, ...]]:
        """The shapes of as many parts in a file."""
        rows = self.matrices if parts > 1 else (self.pieces or self.shape[0],)
        return [(count, *self.shape[1:]) for count in rows]


Table = dict[str, Parameter]
"""The parameters of a module by name, in no order that matters."""


def encoder_parameters(config: ModelConfig, *, pooler: bool = True) -> Table:
    """The parameters of an encoder, with its pooler if the shape has one."""
    H, E, I = config.hidden, config.embedding_width, config.intermediate  # noqa: E741
    table = {"embeddings.tokens.weight": piece_rows(config, config.padded_vocab, E)}
    for name, rows in (("positions", config.place_rows), ("segments", config.segments)):
        if rows:
            table |= linear(f"embeddings.{name}", E, rows, bias=False)
    if config.embedding_norm:
        table |= norm("embeddings.norm", E, config)
    if config.projects:
        table |= linear("embeddings.project", E, H)
    for number in range(config.distinct_layers):
        layer = f"layers.{number}"
        table |= linear(f"{layer}.attention.qkv", H, *config.qkv_rows, bias=config.biases)
        table |= linear(f"{layer}.attention.output", H, H, bias=config.biases)
        if number or config.norm_at == "post" or config.first_norm:
            table |= norm(f"{layer}.attention_norm", H, config)
        table |= linear(f"{layer}.expand", H, *config.expand_rows, bias=config.biases)
        table |= linear(f"{layer}.contract", I, H, bias=config.biases)
        table |= norm(f"{layer}.norm", H, config)
    if config.place == "disentangled":
        table |= linear("places.table", H, 2 * config.buckets, bias=False)
        table |= norm("places.norm", H, config)
    if config.final_norm:
        table |= norm("final_norm", H, config)
    return table | (linear("pooler", H, H) if pooler and config.pooler else {})


def linear(name: str, inputs: int, *rows: int, bias: bool = True) -> Table:
    """A linear map, or several stacked in one."""
    table = {f"{name}.weight": Parameter((sum(rows), inputs), "normal", rows)}
    return table | ({f"{name}.bias": Parameter((sum(rows),), "zero", rows)} if bias else {})


def norm(name: str, width: int, config: ModelConfig) -> Table:
    """A norm."""
    table = {f"{name}.weight": Parameter((width,), "one", (width,))}
    return table | (
        {f"{name}.bias": Parameter((width,), "zero", (width,))} if config.norm_biases else {}
    )


def piece_rows(config: ModelConfig, *shape: int) -> Parameter:
    """A parameter with a row for each piece: a table, or without a width a bias."""
    initial: Literal["normal", "zero"] = "normal" if len(shape) > 1 else "zero"
    return Parameter(shape, initial, shape[:1], config.vocab_size)


def under(table: Mapping[str, Parameter], name: str) -> Table:
    """The parameters of a part of a module, by their names there."""
    start = f"{name}."
    return {n.removeprefix(start): p for n, p in table.items() if n.startswith(start)}
