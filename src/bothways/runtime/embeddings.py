"""Embeddings of texts or of their tokens, from any layers of an encoder.

N texts, P pieces of a text, T tokens of a batch, D size of an embedding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bothways.batch import Batch
from bothways.config.fields import require_choice
from bothways.errors import ConfigError, InputError, NonFiniteError
from bothways.io import arrays
from bothways.io.files import new_file
from bothways.io.terminal import ShowProgress
from bothways.runtime.engine import Engine, layer_name
from bothways.runtime.folder import LoadedModel
from bothways.runtime.pipeline import check_length
from bothways.tasks.examples import (
    CHUNK,
    PREDICT_TOKENS,
    Examples,
    SequenceBuilder,
    check_room,
    length_batches,
)
from bothways.tasks.windows import best_window, cut_windows
from bothways.tokenization.normalization import check_texts
from bothways.tokenization.template import Template
from bothways.tokenization.tokenizer import Encoding, Tokenizer

if TYPE_CHECKING:
    import pyarrow as pa

Vector = NDArray[np.float32]
Pooling = Literal["mean", "cls", "tokens"]
Combine = Literal["mean", "sum", "concat"]
Long = Literal["cut", "windows"]
_POOLED: dict[str, Pooling] = {"mean": "mean", "cls": "cls"}
FORMATS = (".npz", ".arrow", ".jsonl")


@dataclass(frozen=True)
class TokenVectors:
    """The tokens of a text, without special tokens around them.

    Attributes:
        tokens: the pieces, as in the vocabulary.
        offsets: int64 [P, 2]; a piece's first character in the text, and the one after its last.
        vectors: float32 [P, D].
    """

    tokens: tuple[str, ...]
    offsets: NDArray[np.int64]
    vectors: Vector


@dataclass(frozen=True)
class TextVectors:
    """Embeddings of texts.

    Attributes:
        pooled: float32 [N, D]; None if each token has its own.
        tokens: of each text; empty if the embeddings are pooled.
        cut: how many texts lost tokens to the length limit.
        long: how many texts were read in several windows.
    """

    pooled: Vector | None
    tokens: tuple[TokenVectors, ...]
    cut: int
    long: int


@dataclass(frozen=True)
class _Windows:
    """The windows in which texts are read.

    Attributes:
        template: how windows are built; for BERT [CLS] window [SEP].
        examples: one item per window. Its rows are the special tokens that open it, the pieces that
            have their best context in this window, and the special tokens that close it if it is
            the text's last window.
        encodings: one per text, cut to the length limit if texts are not read in windows; empty
            unless each token has its own vector, because they take ten times the room of the ids.
        sizes: int64 [N]; tokens of each text, those that are cut not counted.
        cut: how many texts are cut.
        counts: int64 [N]; how many windows each text has.
    """

    template: Template
    examples: Examples
    encodings: list[Encoding]
    sizes: NDArray[np.int64]
    cut: int
    counts: NDArray[np.int64]

    @cached_property
    def is_first(self) -> NDArray[np.bool_]:
        """bool [windows]; the first window of its text."""
        return np.diff(self.examples.owners, prepend=-1) > 0

    @cached_property
    def is_last(self) -> NDArray[np.bool_]:
        """bool [windows]; the last window of its text."""
        return np.diff(self.examples.owners, append=len(self.counts)) > 0

    @cached_property
    def piece_bounds(self) -> NDArray[np.int64]:
        """int64 [windows + 1]; counting over all texts, window w embeds the pieces
        ``piece_bounds[w]`` to ``piece_bounds[w + 1] - 1``."""
        specials = self.template.opening() + self.template.closing() * self.is_last
        return np.cumsum([0, *(np.diff(self.examples.output_bounds) - specials)], dtype=np.int64)

    def pieces_of(self, w: int, states: Vector) -> Vector:
        """Without the special tokens: the rows of window ``w``, [rows, D] -> [pieces, D]."""
        first = self.template.opening()
        return states[first : first + int(np.diff(self.piece_bounds[w : w + 2])[0])]

    def without_opening(self, states: Vector) -> Vector:
        """The rows of a window after the special tokens that open it."""
        return states[self.template.opening() :]


def embed_texts(
    loaded: LoadedModel,
    texts: Sequence[str],
    *,
    layers: Sequence[int] = (-1,),
    combine: Combine = "mean",
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    length: int | None = None,
    long: Long = "windows",
    progress: ShowProgress | None = None,
) -> TextVectors:
    """Embed texts or their tokens.

    Args:
        loaded: a model folder.
        texts: any texts.
        layers: 0 is the embedding layer, 1 the first layer; negative numbers count from the last.
        combine: how several layers are combined: their mean, their sum, or concatenated.
        pooling: mean over all tokens including special ones; [CLS]; or a vector per token. By
            default as a folder of sentence-transformers says, otherwise the mean.
        normalize: scale vectors to length 1; by default as a folder of sentence-transformers says,
            otherwise not.
        length: longest sequence in tokens; the encoder's limit if not given.
        long: what to do with longer texts: cut them, or read them in windows that overlap by half
            and take each token from the window with the most context around it. ``cls`` is then the
            mean of all windows' [CLS]; ``mean`` includes only the first window's.
        progress: called with the windows done and in all.

    Raises:
        ConfigError: a value that is not among the choices, a layer that the encoder does not have,
            ``cls`` for a left-to-right model, or no ``pooling`` for a folder that pools, or goes on
            after pooling, in a way that is not known here.
        NonFiniteError: a vector is not finite.
        LengthError: ``length`` is beyond the encoder's positions, or leaves no room for text.
        InputError: something that is not a text, or a single text instead of a list.
    """
    check_texts(texts)
    for name, value, choices in (
        ("combine", combine, Combine),
        ("pooling", pooling or "mean", Pooling),
        ("long", long, Long),
    ):
        require_choice(name, value, get_args(choices))
    config = loaded.config
    pooling = pooling or _own_pooling(loaded)
    if pooling == "cls":
        _check_first_token(loaded)
    chosen = _layer_numbers(layers, config.layers)
    length = config.positions if length is None else length
    check_length(loaded, length)
    check_room(loaded.tokenizer, length, pair=False)
    windows = _encode_windows(loaded.tokenizer, texts, length, long, keep=pooling == "tokens")
    vectors = _embed_windows(loaded, windows, chosen, combine, pooling, progress)
    _check_finite(vectors, windows, pooling)
    if normalize is None:  # a folder of sentence-transformers speaks of a text's vector
        normalize = bool(loaded.about.get("normalize")) and pooling != "tokens"
    if normalize:
        vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    several = int((windows.counts > 1).sum())
    if pooling != "tokens":
        return TextVectors(vectors, (), windows.cut, several)
    by_text = _split_by_text(loaded.tokenizer, windows.encodings, vectors)
    return TextVectors(None, by_text, windows.cut, several)


def _check_first_token(loaded: LoadedModel) -> None:
    """Refuse ``cls`` where the first token knows nothing of its text, or is a part of it."""
    tokenizer = loaded.tokenizer
    if loaded.config.left_to_right:
        raise ConfigError(
            f"pooling is cls, but this model reads left to right: its {tokenizer.roles.cls} sees "
            "no other token and has the same vector in every text; set pooling to mean."
        )
    if not tokenizer.template.opens:
        raise ConfigError(
            "pooling is cls, but this tokenizer puts no special token before a text; set pooling "
            "to mean."
        )


def _own_pooling(loaded: LoadedModel) -> Pooling:
    own = str(loaded.about.get("pooling", "mean"))
    if left_out := loaded.about.get("modules_left_out"):
        raise ConfigError(
            f"the model folder has layers after pooling ({', '.join(left_out)}), which bothways "
            "does not compute; set pooling to mean or cls for vectors without them."
        )
    if settings := loaded.about.get("settings_left_out"):
        raise ConfigError(
            f"with sentence-transformers {' and '.join(settings)}, which bothways does not do; set "
            "pooling to mean or cls for vectors of the texts as they are, or give texts so changed."
        )
    if own in _POOLED:
        return _POOLED[own]
    raise ConfigError(
        f"the model folder's pooling is {own}, which bothways does not have; set pooling to mean "
        "or cls for other vectors."
    )


def _layer_numbers(layers: Sequence[int], count: int) -> list[int]:
    """Layers counted from 0, the embedding layer."""
    for layer in layers:
        if not -count - 1 <= layer <= count:
            raise ConfigError(
                f"layers: {layer}; this encoder has layers 1 to {count}, and 0, the embeddings "
                f"(or -1 to {-count - 1} from the last)."
            )
    if not layers:
        raise ConfigError("layers is empty; name at least one, such as -1.")
    return [layer % (count + 1) for layer in layers]


def _encode_windows(
    tokenizer: Tokenizer, texts: Sequence[str], length: int, long: Long, *, keep: bool
) -> _Windows:
    """Texts as token sequences; ``keep`` their encodings."""
    limit = length if long == "cut" else None
    chunks = (texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK))
    encodings = (e for chunk in chunks for e in tokenizer.encode_batch(chunk, max_length=limit))
    sequences = SequenceBuilder(tokenizer)
    read_positions = [np.zeros(0, np.int64)]
    sizes, counts = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
    template = tokenizer.template
    kept, cut, room = [], 0, template.room(length)
    for n, encoding in enumerate(encodings):
        if keep:
            kept.append(encoding)
        sizes[n] = len(encoding.tokens)
        cut += encoding.cut > 0
        pieces = encoding.tokens[encoding.parts[0]]
        windows = cut_windows(len(pieces), room, max(1, room // 2))
        best = best_window(windows, len(pieces))
        counts[n] = len(windows)
        for number, (first, end) in enumerate(windows):
            (text,) = sequences.add(pieces[first:end])
            read = [*range(-template.opening(), 0), *np.flatnonzero(best[first:end] == number)]
            if number == len(windows) - 1:
                read += range(end - first, end - first + template.closing())
            read_positions.append(text + np.array(read, dtype=np.int64))
    examples = sequences.examples(
        read_positions=np.concatenate(read_positions),
        owners=np.repeat(np.arange(len(texts)), counts),
    )
    return _Windows(template, examples, kept, sizes, cut, counts)


def _embed_windows(
    loaded: LoadedModel,
    windows: _Windows,
    layers: list[int],
    combine: Combine,
    pooling: Pooling,
    progress: ShowProgress | None,
) -> Vector:
    """float32 [N, D]; or for ``tokens`` one row per piece of all texts."""
    examples = windows.examples
    count = windows.piece_bounds[-1] if pooling == "tokens" else len(windows.counts)
    width = loaded.config.hidden * (len(layers) if combine == "concat" else 1)
    vectors = np.zeros((count, width), np.float32)
    done = 0
    for indices in length_batches(examples.lengths, PREDICT_TOKENS):
        batch = examples.batch(indices, max_positions=loaded.config.positions)
        states_TD = _layer_states(loaded.engine, batch.inputs, layers, combine)
        by_window = arrays.split(states_TD[batch.read_positions], batch.bounds)
        for w, window_states in zip(indices.tolist(), by_window, strict=True):
            text = examples.owners[w]
            if pooling == "tokens":
                first, end = windows.piece_bounds[w : w + 2]
                vectors[first:end] = windows.pieces_of(w, window_states)
            elif pooling == "cls":
                vectors[text] += window_states[0] / windows.counts[text]
            else:
                later = not windows.is_first[w]
                averaged = windows.without_opening(window_states) if later else window_states
                share = np.float32(len(averaged) / windows.sizes[text])
                vectors[text] += averaged.mean(0, dtype=np.float64) * share
        done += len(indices)
        if progress is not None:
            progress(done, len(examples))
    return vectors


def _check_finite(vectors: Vector, windows: _Windows, pooling: Pooling) -> None:
    rows = np.flatnonzero(~np.isfinite(vectors).all(-1))
    if len(rows):
        text = int(rows[0])
        if pooling == "tokens":
            window = np.searchsorted(windows.piece_bounds, text, side="right") - 1
            text = int(windows.examples.owners[window])
        raise NonFiniteError(
            f"the vector of text {text + 1} is not finite; the model's weights are damaged."
        )


def _layer_states(engine: Engine, batch: Batch, layers: list[int], combine: Combine) -> Vector:
    """Hidden states of the chosen layers, combined: [T, D]."""
    states = engine.compute(batch, layers=layers)
    chosen = [states[layer_name(layer)] for layer in layers]
    if combine == "concat":
        return np.concatenate(chosen, -1)
    summed: Vector = np.add.reduce(chosen)
    return summed if combine == "sum" else summed / np.float32(len(chosen))


def _split_by_text(
    tokenizer: Tokenizer, encodings: Sequence[Encoding], vectors: Vector
) -> tuple[TokenVectors, ...]:
    """The vectors of all texts' pieces, text by text."""
    by_text, start = [], 0
    for encoding in encodings:
        (text,) = encoding.parts
        pieces = encoding.tokens[text]
        offsets = np.array(encoding.offsets[text], dtype=np.int64).reshape(-1, 2)
        own = vectors[start : start + len(pieces)]
        by_text.append(TokenVectors(tuple(map(tokenizer.piece, pieces)), offsets, own))
        start += len(pieces)
    return tuple(by_text)


# ----------------------------------------------------------------------------------------- files


def write_vectors(path: Path, texts: Sequence[str], vectors: TextVectors) -> None:
    """Write vectors in the format that the file's suffix names.

    ``.npz``: ``embeddings`` [N, D]; or for tokens [all tokens, D] with ``bounds`` [N + 1],
    ``tokens`` and ``offsets`` [all tokens, 2]. ``.arrow`` (an IPC file) and ``.jsonl`` have one row
    per text: ``text`` and ``embedding``, or ``text``, ``tokens``, ``offsets``, ``embeddings``.

    Raises:
        InputError: a suffix other than :data:`FORMATS`.
        DiskError: it could not be written.
    """
    check_format(path)
    with new_file(path) as file:
        if path.suffix == ".npz":
            _write_npz(file, vectors)
        elif path.suffix == ".arrow":
            import pyarrow as pa  # of the extra data

            table = _arrow_table(texts, vectors)
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        else:
            for record in _records(texts, vectors):
                file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def check_format(path: Path) -> None:
    """Refuse a file format that vectors cannot be written in.

    Raises:
        InputError: the suffix is not one of :data:`FORMATS`.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"vectors are written to {', '.join(FORMATS)} files.", path=path)


def _write_npz(file: BinaryIO, vectors: TextVectors) -> None:
    if vectors.pooled is not None:
        np.savez(file, embeddings=vectors.pooled)
    else:
        pieces = [piece for text in vectors.tokens for piece in text.tokens]
        np.savez(
            file,
            embeddings=np.concatenate([text.vectors for text in vectors.tokens]),
            bounds=np.cumsum([0, *(len(text.tokens) for text in vectors.tokens)]),
            tokens=np.array(pieces, dtype=np.str_),
            offsets=np.concatenate([text.offsets for text in vectors.tokens]),
        )


def _arrow_table(texts: Sequence[str], vectors: TextVectors) -> pa.Table:
    import pyarrow as pa

    columns = {"text": pa.array(texts, pa.string())}
    if vectors.pooled is not None:
        columns["embedding"] = _vector_column(vectors.pooled)
    else:
        bounds = np.cumsum([0, *(len(text.tokens) for text in vectors.tokens)]).astype(np.int32)
        pieces = pa.array([piece for text in vectors.tokens for piece in text.tokens], pa.string())
        offsets = np.concatenate([text.offsets for text in vectors.tokens])
        rows = np.concatenate([text.vectors for text in vectors.tokens])
        columns["tokens"] = pa.ListArray.from_arrays(bounds, pieces)
        columns["offsets"] = pa.ListArray.from_arrays(bounds, _vector_column(offsets))
        columns["embeddings"] = pa.ListArray.from_arrays(bounds, _vector_column(rows))
    return pa.table(columns)


def _vector_column(rows: NDArray[np.float32] | NDArray[np.int64]) -> pa.FixedSizeListArray:
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def _records(texts: Sequence[str], vectors: TextVectors) -> Iterator[dict[str, object]]:
    """Of each text, for JSON."""
    for number, text in enumerate(texts):
        record: dict[str, object] = {"text": text}
        if vectors.pooled is not None:
            record["embedding"] = _short(vectors.pooled[number])
        else:
            tokens = vectors.tokens[number]
            record["tokens"] = list(tokens.tokens)
            record["offsets"] = tokens.offsets.tolist()
            record["embeddings"] = [_short(row) for row in tokens.vectors]
        yield record


def _short(row: Vector) -> list[float]:
    """The shortest decimals that read back as the same float32 values."""
    return [float(str(value)) for value in row]
