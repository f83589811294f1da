"""Embeddings of texts or of their tokens, from any layers of an encoder.

N texts, P pieces of a text, T tokens of a batch, D size of an embedding.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bothways import arrays
from bothways.batch import Batch
from bothways.config.fields import require_choice
from bothways.errors import ConfigError, InputError, NonFiniteError
from bothways.io.files import new_file
from bothways.io.terminal import ShowProgress
from bothways.io.written import ARROW, write_tables
from bothways.runtime.engine import Engine, batches_for, layer_name
from bothways.runtime.folder import LoadedModel
from bothways.runtime.pipeline import ahead, check_length, share_of, text_parts
from bothways.tasks.examples import Examples, check_room
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
FORMATS = (".npz", ".npy", ".arrow", ".parquet", ".jsonl")
WHOLE = ".npz"
"""The format that is written at once, of arrays in memory; others are written text by text."""


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
        owners = self.examples.owners
        return np.concatenate([[True], owners[1:] != owners[:-1]])

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

    def sums(
        self, chosen: NDArray[np.int64], rows: Vector, bounds: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """For each of the chosen windows the sum of its rows, without the special tokens that open
        a later window of a text: [rows, D] -> [windows, D]."""
        if len(self.examples) > len(self.counts):
            skipped = np.where(self.is_first[chosen], 0, self.template.opening())
            rows = rows[arrays.ranges(bounds[:-1] + skipped, bounds[1:])]
            bounds = arrays.bounds(np.diff(bounds) - skipped)
        # Window by window: `np.add.reduceat` takes four times as long.
        sums = np.empty((len(chosen), rows.shape[1]))
        for own, part in zip(sums, arrays.split(rows, bounds), strict=True):
            part.sum(0, dtype=np.float64, out=own)
        return sums


def embed_texts(
    loaded: LoadedModel,
    texts: Sequence[str],
    *,
    layers: Sequence[int] = (-1,),
    combine: Combine = "mean",
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    length: int | None = None,
    long: Long | None = None,
    prompt: str | None = None,
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
        length: longest sequence in tokens; if not given, what a folder of sentence-transformers
            cuts texts to (``max_seq_length``), or else the encoder's limit.
        long: what to do with longer texts: cut them, or read them in windows that overlap by half
            and take each token from the window with the most context around it. ``cls`` is then the
            mean of all windows' [CLS]; ``mean`` includes only the first window's. By default they
            are cut where a folder of sentence-transformers cuts them, and else read in windows.
        prompt: a text to put before each text, or the name of a prompt that the folder has; by
            default as a folder of sentence-transformers says. Not with a vector per token, whose
            positions are those of the text alone.
        progress: called with the texts done and in all.

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
        ("long", long or "cut", Long),
    ):
        require_choice(name, value, get_args(choices))
    config = loaded.config
    if prompt and pooling == "tokens":
        raise ConfigError(
            "prompt changes texts, and the tokens of a text are its own; leave it out."
        )
    pooling = pooling or _own_pooling(loaded)
    if pooling != "tokens":
        texts = _with_prompt(loaded, texts, prompt)
    if pooling == "cls":
        _check_first_token(loaded)
    chosen = _layer_numbers(layers, config.layers)
    if length is None and (limit := own_length(loaded, tokens=pooling == "tokens")):
        length, long = limit, long or "cut"
    length, long = config.positions if length is None else length, long or "windows"
    check_length(loaded, length)
    check_room(loaded.tokenizer, length, pair=False)

    def encode(part: Sequence[str]) -> _Windows:
        return _encode_windows(loaded.tokenizer, part, length, long, keep=pooling == "tokens")

    found: list[Vector] = []
    encodings: list[Encoding] = []
    cut = several = start = 0
    for windows in ahead(text_parts(texts), encode):
        own = share_of(progress, start, len(windows.counts), len(texts))
        found.append(_embed_windows(loaded, windows, chosen, combine, pooling, own))
        _check_finite(found[-1], windows, pooling, start)
        encodings += windows.encodings
        cut, several = cut + windows.cut, several + int((windows.counts > 1).sum())
        start += len(windows.counts)
    vectors = np.concatenate(found)
    if normalize is None:  # a folder of sentence-transformers speaks of a text's vector
        normalize = bool(loaded.about.get("normalize")) and pooling != "tokens"
    if normalize:
        vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    if pooling != "tokens":
        return TextVectors(vectors, (), cut, several)
    return TextVectors(None, _split_by_text(loaded.tokenizer, encodings, vectors), cut, several)


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


def _with_prompt(loaded: LoadedModel, texts: Sequence[str], prompt: str | None) -> Sequence[str]:
    known = loaded.about.get("prompts")
    if prompt is None:
        prompt = str(loaded.about.get("prompt", ""))
    elif isinstance(known, dict):
        prompt = str(known.get(prompt, prompt))
    return [prompt + text for text in texts] if prompt else texts


def own_length(loaded: LoadedModel, *, tokens: bool) -> int | None:
    """At how many tokens the files of sentence-transformers in the folder cut a text.

    Args:
        loaded: the model.
        tokens: whether vectors of tokens are wanted, which that library does not give.

    Returns:
        None if no text is cut but at the encoder's limit.
    """
    found: int | None = None if tokens else loaded.about.get("cut_at")
    return found


def _own_pooling(loaded: LoadedModel) -> Pooling:
    own = str(loaded.about.get("pooling", "mean"))
    where = loaded.folder or "the model folder"
    if left_out := loaded.about.get("modules_left_out"):
        raise ConfigError(
            f"{where} has layers after pooling ({', '.join(left_out)}), which bothways "
            "does not compute; set pooling to mean or cls for vectors without them."
        )
    if settings := loaded.about.get("settings_left_out"):
        raise ConfigError(
            f"with sentence-transformers {' and '.join(settings)}, which bothways does not do; set "
            "pooling to mean or cls, and do that yourself if you want the same vectors."
        )
    if own in _POOLED:
        return _POOLED[own]
    raise ConfigError(
        f"{where}: its pooling is {own}, which bothways does not have; set pooling to mean or cls "
        "for other vectors."
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
    template = tokenizer.template
    room, opening, closing = template.room(length), template.opening(), template.closing()
    kept: list[Encoding] = []
    if keep:
        kept = tokenizer.encode_batch(texts, max_length=length if long == "cut" else None)
        pieces = [encoding.ids[encoding.parts[0]] for encoding in kept]
        cut = sum(encoding.cut > 0 for encoding in kept)
    else:
        pieces = tokenizer.encode_plain(texts)
        cut = 0
        if long == "cut":
            cut = sum(len(own) > room for own in pieces)
            pieces = [own[:room] for own in pieces]
    tokens: list[int] = []
    segments: list[int] = []
    bounds, owners, read = [0], [], []
    for n, own in enumerate(pieces):
        windows = cut_windows(len(own), room, max(1, room // 2)) if len(own) > room else [None]
        best = best_window(windows, len(own)) if len(windows) > 1 else None  # type: ignore[arg-type]
        for number, window in enumerate(windows):
            first, end = window or (0, len(own))
            ids, kinds = template.wrap_lists([own if window is None else own[first:end]])
            start = len(tokens)
            tokens += ids
            segments += kinds
            bounds.append(len(tokens))
            owners.append(n)
            if best is None:
                read.append(np.arange(start, len(tokens)))
                continue
            text = start + opening
            last = closing if number == len(windows) - 1 else 0
            chosen = np.flatnonzero(best[first:end] == number)
            after = np.arange(end - first, end - first + last)
            read.append(text + np.concatenate([np.arange(-opening, 0), chosen, after]))
    examples = Examples.of_sequences(
        np.array(tokens, dtype=np.int32),
        np.array(segments, dtype=np.int8),
        np.array(bounds, dtype=np.int64),
        read_positions=np.concatenate([np.zeros(0, np.int64), *read]),
        owners=np.array(owners, dtype=np.int64),
    )
    sizes = np.array([len(own) + template.cost() for own in pieces], dtype=np.int64)
    counts = np.bincount(examples.owners, minlength=len(texts))
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
    for indices in batches_for(loaded.engine, examples.lengths):
        batch = examples.batch(indices, max_positions=loaded.config.positions)
        states_TD = _layer_states(loaded.engine, batch.inputs, layers, combine)
        rows_RD = states_TD  # all of them, most often
        if len(batch.read_positions) < batch.inputs.bounds[-1]:
            rows_RD = states_TD[batch.read_positions]
        texts = examples.owners[indices]
        if pooling == "tokens":
            by_window = arrays.split(rows_RD, batch.bounds)
            for w, window_states in zip(indices.tolist(), by_window, strict=True):
                first, end = windows.piece_bounds[w : w + 2]
                vectors[first:end] = windows.pieces_of(w, window_states)
        elif pooling == "cls":
            np.add.at(vectors, texts, rows_RD[batch.bounds[:-1]] / windows.counts[texts, None])
        else:
            sums_WD = windows.sums(indices, rows_RD, batch.bounds)
            means_WD = (sums_WD / windows.sizes[texts, None]).astype(np.float32)
            if len(examples) == len(windows.counts):  # each text has one window
                vectors[texts] = means_WD
            else:
                np.add.at(vectors, texts, means_WD)
        done += len(indices)
        if progress is not None:
            progress(done, len(examples))
    return vectors


def _check_finite(vectors: Vector, windows: _Windows, pooling: Pooling, start: int) -> None:
    if not np.isfinite(vectors).all():
        text = int(np.flatnonzero(~np.isfinite(vectors).all(-1))[0])
        if pooling == "tokens":
            window = np.searchsorted(windows.piece_bounds, text, side="right") - 1
            text = int(windows.examples.owners[window])
        raise NonFiniteError(
            f"the vector of text {start + text + 1} is not finite; the model's weights are damaged."
        )


def _layer_states(engine: Engine, batch: Batch, layers: list[int], combine: Combine) -> Vector:
    """Hidden states of the chosen layers, combined: [T, D]."""
    states = engine.compute(batch, layers=layers)
    chosen = [states[layer_name(layer)] for layer in layers]
    if len(chosen) == 1:
        return chosen[0]
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
        pieces = encoding.ids[text]
        offsets = np.array(encoding.offsets[text], dtype=np.int64).reshape(-1, 2)
        own = vectors[start : start + len(pieces)]
        by_text.append(TokenVectors(tuple(map(tokenizer.piece, pieces)), offsets, own))
        start += len(pieces)
    return tuple(by_text)


# ----------------------------------------------------------------------------------------- files


def write_vectors(
    path: Path,
    texts: Sequence[str],
    vectors: TextVectors,
    kept: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write vectors in the format that the file's suffix names.

    Args:
        path: to write or replace.
        texts: their texts.
        vectors: as many.
        kept: further columns by name, such as ids: a value for each text.

    ``.npz``: ``embeddings`` [N, D]; or for tokens [all tokens, D] with ``bounds`` [N + 1],
    ``tokens`` and ``offsets`` [all tokens, 2]. ``.npy``: the array [N, D] alone. ``.arrow`` (an IPC
    file), ``.parquet`` and ``.jsonl`` have one row per text: ``text`` and ``embedding``, or
    ``text``, ``tokens``, ``offsets``, ``embeddings``.

    Raises:
        InputError: a suffix other than :data:`FORMATS`.
        DiskError: it could not be written.
    """
    kept = kept or {}
    check_format(path, kept, tokens=vectors.pooled is None)
    with new_file(path) as file:
        if path.suffix == WHOLE:
            _write_npz(file, vectors, {name: np.array(v, np.str_) for name, v in kept.items()})
        elif path.suffix in ARROW:
            write_tables(file, path.suffix, [vectors_content(path.suffix, texts, vectors, kept)])
        else:
            if vectors.pooled is not None:
                file.write(vectors_head(path.suffix, *vectors.pooled.shape))
            file.write(vectors_content(path.suffix, texts, vectors, kept))


def vectors_head(suffix: str, count: int, size: int) -> bytes:
    """What stands before the vectors of all texts."""
    if suffix != ".npy":
        return b""
    head = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": (count, size)}
    np.lib.format.write_array_header_1_0(head, about)
    return head.getvalue()


def vectors_content(
    suffix: str, texts: Sequence[str], vectors: TextVectors, kept: Mapping[str, Sequence[str]]
) -> bytes | pa.Table:
    """The vectors of some of the texts in a format other than :data:`WHOLE`."""
    if suffix == ".npy":
        assert vectors.pooled is not None, "checked by the caller"
        return np.ascontiguousarray(vectors.pooled, "<f4").tobytes()
    if suffix in ARROW:
        import pyarrow as pa  # of the extra data

        table = _arrow_table(texts, vectors)
        for place, (name, values) in enumerate(kept.items()):
            table = table.add_column(place, name, pa.array(values, pa.string()))
        return table
    lines = []
    for number, record in enumerate(_records(texts, vectors)):
        own = {name: values[number] for name, values in kept.items()}
        lines.append(json.dumps({**own, **record}, ensure_ascii=False).encode() + b"\n")
    return b"".join(lines)


_COLUMNS = {"text", "embedding", "embeddings", "tokens", "offsets", "bounds"}


def check_format(path: Path, kept: Collection[str] = (), *, tokens: bool = False) -> None:
    """Refuse a file format that vectors cannot be written in.

    Args:
        path: to write.
        kept: names of further columns.
        tokens: each token has a vector.

    Raises:
        InputError: the suffix is not one of :data:`FORMATS`.
        ConfigError: the format has no room for further columns or tokens, or has a column of that
            name itself.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"vectors are written to {', '.join(FORMATS)} files.", path=path)
    if path.suffix == ".npy" and (kept or tokens):
        what = "keep" if kept else "pooling tokens"
        raise ConfigError(f"{what}: a .npy file holds one array; write another format, or .npz.")
    own = _COLUMNS - {"text"} if path.suffix == WHOLE else _COLUMNS
    if taken := sorted(own.intersection(kept)):
        raise ConfigError(f"keep: {', '.join(taken)} is a column of the output; rename yours.")


def _write_npz(file: BinaryIO, vectors: TextVectors, kept: dict[str, Any]) -> None:
    if vectors.pooled is not None:
        np.savez(file, embeddings=vectors.pooled, **kept)
    else:
        pieces = [piece for text in vectors.tokens for piece in text.tokens]
        np.savez(
            file,
            embeddings=np.concatenate([text.vectors for text in vectors.tokens]),
            bounds=np.cumsum([0, *(len(text.tokens) for text in vectors.tokens)]),
            tokens=np.array(pieces, dtype=np.str_),
            offsets=np.concatenate([text.offsets for text in vectors.tokens]),
            **kept,
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
