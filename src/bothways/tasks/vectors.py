"""Vectors of texts or of their tokens, from any layers of an encoder.

N texts, P pieces of one, R tokens that are read, D numbers of a vector, H hidden size.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import ConfigError, InputError, LengthError
from bothways.files import write_bytes, write_text
from bothways.model.batch import Inputs
from bothways.model.folder import Loaded
from bothways.model.heads import Bert
from bothways.tasks.examples import PREDICT_TOKENS, Examples, length_batches
from bothways.tasks.predict import check_length
from bothways.tasks.windows import best_window, cut_windows
from bothways.tokenization.tokenizer import Encoding, Tokenizer

Vector = NDArray[np.float32]
Pooling = Literal["mean", "cls", "tokens"]
Combine = Literal["mean", "sum", "concat"]
Long = Literal["cut", "windows"]
FORMATS = (".npz", ".arrow", ".jsonl")
_CHUNK = 2048


@dataclass(frozen=True)
class TokenVectors:
    """The tokens of a text, [CLS] and [SEP] left out.

    Attributes:
        tokens: the pieces, as in the vocabulary.
        offsets: int64 [P, 2]; first character of each in the text, and the one after its last.
        vectors: float32 [P, D].
    """

    tokens: tuple[str, ...]
    offsets: NDArray[np.int64]
    vectors: Vector


@dataclass(frozen=True)
class TextVectors:
    """Vectors of texts.

    Attributes:
        pooled: float32 [N, D]; None where each token has its own.
        tokens: of each text; empty where the vectors are pooled.
        cut: texts that lost tokens to the length limit.
        long: texts that were read in several windows.
    """

    pooled: Vector | None
    tokens: tuple[TokenVectors, ...]
    cut: int
    long: int


@dataclass(frozen=True)
class _Windows:
    """Texts as the encoder reads them.

    Attributes:
        examples: an item for each window. Its rows are [CLS], the pieces that no other window
            shows with more around them, and in a text's last window [SEP].
        encodings: of the whole texts, or of what was kept.
        counts: windows of each text.
    """

    examples: Examples
    encodings: list[Encoding]
    counts: list[int]


def embed_texts(
    loaded: Loaded,
    texts: Sequence[str],
    *,
    layers: Sequence[int] = (-1,),
    combine: Combine = "mean",
    pooling: Pooling = "mean",
    normalize: bool = False,
    length: int | None = None,
    long: Long = "cut",
) -> TextVectors:
    """Vectors of texts or of their tokens.

    Args:
        loaded: a model folder.
        texts: any texts.
        layers: 0 is the embeddings, 1 the first layer; below 0: counted from the last.
        combine: what becomes of several layers: their mean, their sum, or one behind another.
        pooling: mean over all tokens, specials included; [CLS]; or a vector for each token.
        normalize: vectors to length 1.
        length: longest sequence in tokens; the encoder's limit if not given.
        long: what becomes of a longer text: cut; or read in windows that overlap by half, each
            token in the one that shows the most around it. Their [CLS] are averaged for ``cls``;
            the mean has the first one's.

    Raises:
        ConfigError: a layer that the encoder has not, or ``cls`` of a model that reads left to
            right.
        LengthError: ``length`` is beyond the encoder's positions, or leaves no room for text.
        InputError: something that is no text.
    """
    model = loaded.model
    if pooling == "cls" and model.config.left_to_right:
        raise ConfigError(
            "pooling is cls, but this model reads left to right: its [CLS] sees no other token and "
            "has the same vector in every text; set pooling to mean."
        )
    chosen = _layer_numbers(layers, model.config.layers)
    length = model.config.positions if length is None else length
    check_length(model, length)
    if length < 3:
        raise LengthError(
            f"a length of {length} tokens leaves no room for text beside [CLS] and [SEP]; it must "
            "be at least 3."
        )
    windows = _read_windows(loaded.tokenizer, texts, length, long)
    width = model.config.hidden * (len(chosen) if combine == "concat" else 1)
    out = np.zeros((len(texts) if pooling != "tokens" else _pieces(windows), width), np.float32)
    _compute(model, windows, chosen, combine, pooling, out)
    if normalize:
        out /= np.maximum(np.linalg.norm(out, axis=-1, keepdims=True), 1e-12)
    cut, many = sum(e.cut > 0 for e in windows.encodings), sum(n > 1 for n in windows.counts)
    if pooling != "tokens":
        return TextVectors(out, (), cut, many)
    return TextVectors(None, _by_text(loaded.tokenizer, windows, out), cut, many)


def _layer_numbers(layers: Sequence[int], count: int) -> list[int]:
    for layer in layers:
        if not -count - 1 <= layer <= count:
            raise ConfigError(
                f"layers: {layer}; this encoder has layers 1 to {count}, and 0, the embeddings "
                f"(or -1 to {-count - 1} from the last)."
            )
    if not layers:
        raise ConfigError("layers is empty; name at least one, such as -1.")
    return [layer % (count + 1) for layer in layers]


def _read_windows(tokenizer: Tokenizer, texts: Sequence[str], length: int, long: Long) -> _Windows:
    tokens: list[list[int]] = []
    places: list[NDArray[np.int64]] = []
    counts: list[int] = []
    encodings: list[Encoding] = []
    limit = length if long == "cut" else None
    for chunk in range(0, len(texts), _CHUNK):
        encodings += tokenizer.encode_batch(texts[chunk : chunk + _CHUNK], max_length=limit)
    start, room = 0, length - 2
    for encoding in encodings:
        pieces = encoding.tokens[1:-1]
        windows = cut_windows(len(pieces), room, max(1, room // 2))
        best = best_window(windows, len(pieces))
        counts.append(len(windows))
        for number, (first, end) in enumerate(windows):
            tokens.append([tokenizer.cls_id, *pieces[first:end], tokenizer.sep_id])
            read = np.flatnonzero(best[first:end] == number) + 1
            last = [end - first + 1] * (number + 1 == len(windows))
            places.append(start + np.array([0, *read, *last], dtype=np.int64))
            start += end - first + 2
    flat = np.fromiter((i for own in tokens for i in own), np.int32)
    examples = Examples.of_sequences(
        flat,
        np.zeros(len(flat), np.int8),
        np.cumsum([0, *map(len, tokens)], dtype=np.int64),
        places=np.concatenate([np.zeros(0, np.int64), *places]),
        owners=np.repeat(np.arange(len(texts)), counts),
    )
    return _Windows(examples, encodings, counts)


def _pieces(windows: _Windows) -> int:
    return sum(len(encoding.tokens) - 2 for encoding in windows.encodings)


@torch.inference_mode()
def _compute(
    model: Bert,
    windows: _Windows,
    layers: list[int],
    combine: Combine,
    pooling: Pooling,
    out: Vector,
) -> None:
    """Fill ``out``, [N, D] or one row for each piece of all texts."""
    examples, counts = windows.examples, np.array(windows.counts, dtype=np.int64)
    firsts = np.isin(np.arange(len(examples)), examples.firsts)
    lasts = np.concatenate([np.diff(examples.owners) > 0, [True]])[: len(examples)]
    sizes = np.diff(examples.rows)
    # Rows of out that a window's pieces begin at, where every token has its own.
    starts = np.cumsum([0, *(sizes - 1 - lasts)])
    for indices in length_batches(examples.lengths, PREDICT_TOKENS):
        batch = examples.batch(indices, max_positions=model.config.positions)
        batch = batch.to(model.device)
        x_RD = _vectors(model, batch.inputs, layers, combine)[batch.at].cpu()
        parts = torch.split(x_RD, np.diff(batch.bounds).tolist())
        for n, part in zip(indices.tolist(), parts, strict=True):
            owner = examples.owners[n]
            if pooling == "tokens":
                own = part[1:-1] if lasts[n] else part[1:]
                out[starts[n] : starts[n + 1]] = own.numpy()
            elif pooling == "cls":
                out[owner] += part[0].numpy() / counts[owner]
            else:
                rows = part if firsts[n] else part[1:]
                whole = len(windows.encodings[owner].tokens)
                out[owner] += rows.mean(0).numpy() * np.float32(len(rows) / whole)


def _vectors(model: Bert, inputs: Inputs, layers: list[int], combine: Combine) -> Tensor:
    """[T, D]."""
    if layers == [model.config.layers]:
        last: Tensor = model.encoder(inputs)
        return last
    states = model.encoder.hidden_states(inputs)
    chosen = [states[layer] for layer in layers]
    if combine == "concat":
        return torch.cat(chosen, -1)
    total = torch.stack(chosen)
    return total.sum(0) if combine == "sum" else total.mean(0)


def _by_text(tokenizer: Tokenizer, windows: _Windows, out: Vector) -> tuple[TokenVectors, ...]:
    found, start = [], 0
    for encoding in windows.encodings:
        pieces = encoding.tokens[1:-1]
        offsets = np.array(encoding.offsets[1:-1], dtype=np.int64).reshape(-1, 2)
        vectors = out[start : start + len(pieces)]
        found.append(TokenVectors(tuple(map(tokenizer.piece, pieces)), offsets, vectors))
        start += len(pieces)
    return tuple(found)


# ----------------------------------------------------------------------------------------- files


def write_vectors(path: Path, texts: Sequence[str], found: TextVectors) -> None:
    """Write vectors as the file's name says.

    ``.npz``: ``embeddings`` [N, D]; or for tokens [all tokens, D] with ``bounds`` [N + 1],
    ``tokens`` and ``offsets`` [all tokens, 2]. ``.arrow`` (an IPC file) and ``.jsonl`` have a row
    for each text: ``text`` and ``embedding``, or ``text``, ``tokens``, ``offsets``, ``embeddings``.

    Raises:
        InputError: another kind of file.
        DiskError: it could not be written.
    """
    check_format(path)
    if path.suffix == ".npz":
        write_bytes(path, _npz(found))
    elif path.suffix == ".arrow":
        write_bytes(path, _arrow(texts, found))
    else:
        write_text(path, _jsonl(texts, found))


def check_format(path: Path) -> None:
    """Refuse a kind of file that vectors are not written to.

    Raises:
        InputError: that is so.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"vectors are written to {', '.join(FORMATS)} files.", path=path)


def _npz(found: TextVectors) -> bytes:
    data = io.BytesIO()
    if found.pooled is not None:
        np.savez(data, embeddings=found.pooled)
    else:
        np.savez(
            data,
            embeddings=np.concatenate([own.vectors for own in found.tokens]),
            bounds=np.cumsum([0, *(len(own.tokens) for own in found.tokens)]),
            tokens=np.array([piece for own in found.tokens for piece in own.tokens], dtype=np.str_),
            offsets=np.concatenate([own.offsets for own in found.tokens]),
        )
    return data.getvalue()


def _arrow(texts: Sequence[str], found: TextVectors) -> bytes:
    columns = {"text": pa.array(texts, pa.string())}
    if found.pooled is not None:
        columns["embedding"] = _vector_column(found.pooled)
    else:
        bounds = np.cumsum([0, *(len(own.tokens) for own in found.tokens)]).astype(np.int32)
        pieces = pa.array([piece for own in found.tokens for piece in own.tokens], pa.string())
        offsets = np.concatenate([own.offsets for own in found.tokens])
        vectors = np.concatenate([own.vectors for own in found.tokens])
        columns["tokens"] = pa.ListArray.from_arrays(bounds, pieces)
        columns["offsets"] = pa.ListArray.from_arrays(bounds, _vector_column(offsets))
        columns["embeddings"] = pa.ListArray.from_arrays(bounds, _vector_column(vectors))
    table = pa.table(columns)
    data = io.BytesIO()
    with pa.ipc.new_file(data, table.schema) as writer:
        writer.write_table(table)
    return data.getvalue()


def _vector_column(rows: NDArray[np.float32] | NDArray[np.int64]) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def _jsonl(texts: Sequence[str], found: TextVectors) -> str:
    lines = []
    for number, text in enumerate(texts):
        record: dict[str, object] = {"text": text}
        if found.pooled is not None:
            record["embedding"] = _short(found.pooled[number])
        else:
            own = found.tokens[number]
            record["tokens"] = list(own.tokens)
            record["offsets"] = own.offsets.tolist()
            record["embeddings"] = [_short(row) for row in own.vectors]
        lines.append(json.dumps(record, ensure_ascii=False))
    return "\n".join(lines) + "\n"


def _short(row: Vector) -> list[float]:
    """The shortest digits that give the same 32 bits back."""
    return [float(str(value)) for value in row]
