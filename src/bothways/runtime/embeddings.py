"""Embeddings of texts or of their tokens, from any layers of an encoder.

N texts, P pieces of a text, T tokens of a batch, D size of an embedding.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from bothways import arrays
from bothways.batch import Batch, collate
from bothways.config.fields import require_choice
from bothways.errors import ConfigError, InputError, NonFiniteError, Place, check_installed
from bothways.io.files import new_file
from bothways.io.terminal import ShowProgress
from bothways.io.written import ARROW, cell_text, cells_column, write_tables
from bothways.runtime.batching import Computed, ahead, computed, share_of, text_parts
from bothways.runtime.engine import Engine, layer_name
from bothways.runtime.folder import LoadedModel
from bothways.runtime.pipeline import check_length
from bothways.tasks.examples import check_room
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
POOLING, COMBINE, LONG = get_args(Pooling), get_args(Combine), get_args(Long)
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


class _Window(NamedTuple):
    """A sequence of a text's tokens: all of them, or a window.

    Attributes:
        text: its number.
        ids, segments: of the sequence, special tokens included.
        start: how many pieces of the text come before.
        first, end: the tokens that have their best context here, ``first`` to ``end - 1``. The
            special tokens are among them that open a text's first window or close its last.
    """

    text: int
    ids: list[int]
    segments: list[int]
    start: int
    first: int
    end: int


@dataclass(frozen=True)
class _Encoded:
    """Texts as they are read.

    Attributes:
        windows: of all texts, in order.
        encodings: one per text, cut to the length limit if texts are not read in windows; empty
            unless each token has its own vector, because they take ten times the room of the ids.
        pieces: how many each text has, those that are cut not counted.
        counts: how many windows each text has.
        cut: how many texts are cut.
    """

    windows: list[_Window]
    encodings: list[Encoding]
    pieces: list[int]
    counts: list[int]
    cut: int


def embed_texts(
    loaded: LoadedModel,
    texts: Sequence[str],
    *,
    layers: Sequence[int] = (-1,),
    combine: Combine = "mean",
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_length: int | None = None,
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
        max_length: longest sequence in tokens; if not given, what a folder of sentence-transformers
            cuts texts to (``max_seq_length``), or else the encoder's limit.
        long: what to do with longer texts: cut them, or read them in windows that overlap by half
            and take each token from the window with the most context around it. ``cls`` is then the
            mean of all windows' [CLS]; ``mean`` includes only the first window's. By default they
            are cut where a folder of sentence-transformers cuts them, and else read in windows.
        prompt: a text to put before each text, or the name of a prompt that the folder has; by
            default as a folder of sentence-transformers says, which may leave the prompt's tokens
            out of pooling. Not with a vector per token, whose positions are those of the text
            alone.
        progress: called with the texts done and in all.

    Raises:
        ConfigError: a value that is not among the choices, a layer that the encoder does not have,
            ``cls`` for a left-to-right model, or no ``pooling`` for a folder that pools, or goes on
            after pooling, in a way that is not known here.
        NonFiniteError: a vector is not finite.
        LengthError: ``max_length`` is beyond the encoder's positions, or leaves no room for text.
        InputError: something that is not a text, or a single text instead of a list.
    """
    check_texts(texts)
    require_choice("combine", combine, COMBINE)
    require_choice("pooling", pooling or "mean", POOLING)
    require_choice("long", long or "cut", LONG)
    config = loaded.config
    if prompt and pooling == "tokens":
        raise ConfigError(
            "prompt changes texts, and the tokens of a text are its own; leave it out."
        )
    pooling = pooling or _own_pooling(loaded)
    prompt = "" if pooling == "tokens" else _prompt_of(loaded, prompt)
    texts = [prompt + text for text in texts]
    if pooling == "cls":
        _check_first_token(loaded)
    chosen = _layer_numbers(layers, config.layers)
    length = max_length
    if length is None and (limit := own_length(loaded, tokens=pooling == "tokens")):
        length, long = limit, long or "cut"
    length, long = config.positions if length is None else length, long or "windows"
    check_length(loaded, length)
    check_room(loaded.tokenizer, length, pair=False)
    skip = 0
    if prompt and loaded.about.get("include_prompt") is False:
        skip = _prompt_tokens(loaded.tokenizer, prompt, length if long == "cut" else None)

    def encode(part: slice) -> _Encoded:
        return _encode(loaded.tokenizer, texts[part], length, long, keep=pooling == "tokens")

    found: list[Vector] = []
    encodings: list[Encoding] = []
    cut = several = start = 0
    for part in ahead(text_parts(texts), encode):
        own = share_of(progress, start, len(part.counts), len(texts))
        found.append(_embed(loaded, part, chosen, combine, pooling, skip, own))
        if not np.isfinite(found[-1]).all():
            raise NonFiniteError("a vector is not finite; the model's weights are damaged.")
        encodings += part.encodings
        cut, several = cut + part.cut, several + sum(count > 1 for count in part.counts)
        start += len(part.counts)
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
    if loaded.config.left_to_right or not loaded.tokenizer.template.opens:
        why = (
            f"reads left to right, so its {loaded.tokenizer.roles.cls} has the same vector in every"
            if loaded.config.left_to_right
            else "puts no special token before a"
        )
        raise ConfigError(f"pooling is cls, but this model {why} text; set pooling to mean.")


def _prompt_of(loaded: LoadedModel, prompt: str | None) -> str:
    """The text that is put before each text; empty for none."""
    known = loaded.about.get("prompts")
    if prompt is None:
        return str(loaded.about.get("prompt", ""))
    return str(known.get(prompt, prompt)) if isinstance(known, dict) else prompt


def _prompt_tokens(tokenizer: Tokenizer, prompt: str, length: int | None) -> int:
    """Tokens of a sequence that are the prompt's, counted as in sentence-transformers: those of the
    prompt alone, without a special token at its end."""
    ids = tokenizer.encode(prompt, max_length=length).ids
    return len(ids) - sum(id in tokenizer.special_ids for id in ids[-1:])


def own_length(loaded: LoadedModel, *, tokens: bool) -> int | None:
    """At how many tokens the files of sentence-transformers cut a text; None if they do not, or for
    vectors of tokens, which that library does not give."""
    return None if tokens else loaded.about.get("cut_at")


def pools(loaded: LoadedModel) -> bool:
    """Whether vectors are made as the model's folder says, so that no pooling has to be named."""
    try:
        _own_pooling(loaded)
    except ConfigError:
        return False
    return True


def _own_pooling(loaded: LoadedModel) -> Pooling:
    about, own = loaded.about, str(loaded.about.get("pooling", "mean"))
    layers = [f"a layer after pooling, {name}" for name in about.get("modules_left_out") or ()]
    more = [*layers, *(about.get("settings_left_out") or ())]
    more += [f"its pooling is {own}"] * (own not in _POOLED)
    if more:
        raise ConfigError(
            f"{loaded.folder or 'the model folder'}: sentence-transformers makes its vectors in a "
            f"way that bothways does not have: {'; '.join(more)}. Set pooling to mean or cls for "
            "other vectors."
        )
    return _POOLED[own]


def _layer_numbers(layers: Sequence[int], count: int) -> list[int]:
    """Layers counted from 0, the embedding layer."""
    if not layers or not all(-count - 1 <= layer <= count for layer in layers):
        raise ConfigError(
            f"layers: {', '.join(map(str, layers)) or 'none'}; this encoder has layers 1 to "
            f"{count}, and 0, the embeddings (or -1 to {-count - 1} from the last)."
        )
    return [layer % (count + 1) for layer in layers]


def _encode(
    tokenizer: Tokenizer, texts: Sequence[str], length: int, long: Long, *, keep: bool
) -> _Encoded:
    """Texts as token sequences; ``keep`` their encodings."""
    template = tokenizer.template
    room, cut = template.room(length), 0
    kept: list[Encoding] = []
    if keep:
        kept = tokenizer.encode_batch(texts, max_length=length if long == "cut" else None)
        pieces = [encoding.ids[encoding.parts[0]] for encoding in kept]
        cut = sum(encoding.cut > 0 for encoding in kept)
    else:
        pieces = tokenizer.encode_plain(texts)
        if long == "cut":
            cut = sum(len(own) > room for own in pieces)
            pieces = [own[:room] for own in pieces]
    windows: list[_Window] = []
    counts = []
    for text, own in enumerate(pieces):
        before = len(windows)
        if len(own) > room:
            windows += _windows(template, text, own, room)
        else:
            ids, segments = template.wrap_lists([own])
            windows.append(_Window(text, ids, segments, 0, 0, len(ids)))
        counts.append(len(windows) - before)
    return _Encoded(windows, kept, [len(own) for own in pieces], counts, cut)


def _windows(template: Template, text: int, pieces: list[int], room: int) -> Iterator[_Window]:
    """The windows of a long text, which overlap by half."""
    windows = cut_windows(len(pieces), room, max(1, room // 2))
    best = best_window(windows, len(pieces))
    for number, (start, stop) in enumerate(windows):
        ids, segments = template.wrap_lists([pieces[start:stop]])
        at = np.flatnonzero(best == number) - start + template.opening()  # consecutive
        first = 0 if number == 0 else int(at[0])
        end = len(ids) if number == len(windows) - 1 else int(at[-1]) + 1
        yield _Window(text, ids, segments, start, first, end)


def _embed(
    loaded: LoadedModel,
    encoded: _Encoded,
    layers: list[int],
    combine: Combine,
    pooling: Pooling,
    skip: int,
    progress: ShowProgress | None,
) -> Vector:
    """float32 [N, D]; or for ``tokens`` one row per piece of all texts. ``skip`` tokens of each
    text, those of its prompt, are not pooled."""
    windows, engine, template = encoded.windows, loaded.engine, loaded.tokenizer.template
    opening, closing = template.opening(), template.closing()
    pieces, counts = encoded.pieces, encoded.counts
    rows = arrays.bounds(pieces).tolist() if pooling == "tokens" else range(len(counts) + 1)
    width = loaded.config.hidden * (len(layers) if combine == "concat" else 1)
    sums = np.zeros((rows[-1], width), np.float32 if pooling == "tokens" else np.float64)

    def compute(indices: NDArray[np.int64]) -> Computed[np.float32]:
        chosen = [windows[w] for w in indices.tolist()]
        ids, segments = [own.ids for own in chosen], [own.segments for own in chosen]
        batch = collate(ids, segments, max_positions=loaded.config.positions)
        return _layer_states(engine, batch, layers, combine), batch.bounds

    lengths = np.array([len(window.ids) for window in windows])
    for w, states_LD in computed(engine, lengths, compute, progress):
        own = windows[w]
        row, text_from = rows[own.text], max(0, skip - own.start)
        if pooling == "tokens":
            first, end = max(own.first, opening), min(own.end, len(own.ids) - closing)
            row += own.start - opening
            sums[row + first : row + end] = states_LD[first:end]
        elif pooling == "cls":
            sums[row] += states_LD[text_from if text_from < len(states_LD) else 0]
        else:
            first = max(own.first, text_from)
            sums[row] += states_LD[first : own.end].sum(0, dtype=np.float64)
    if pooling == "tokens":
        return sums
    cost = template.cost() - skip
    sizes = counts if pooling == "cls" else [max(1, own + cost) for own in pieces]
    means: Vector = (sums / np.array(sizes)[:, None]).astype(np.float32)
    return means


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
    kept: Mapping[str, Sequence[Any]] | None = None,
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
            _write_npz(file, vectors, {name: _array(values) for name, values in kept.items()})
        elif path.suffix in ARROW:
            table = vectors_content(path.suffix, texts, vectors, kept)
            write_tables(file, path.suffix, lambda: [table])
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
    suffix: str, texts: Sequence[str], vectors: TextVectors, kept: Mapping[str, Sequence[Any]]
) -> bytes | pa.Table:
    """The vectors of some of the texts in a format other than :data:`WHOLE`."""
    if suffix == ".npy":
        assert vectors.pooled is not None, "checked by the caller"
        return np.ascontiguousarray(vectors.pooled, "<f4").tobytes()
    if suffix in ARROW:
        table = _arrow_table(texts, vectors)
        for place, (name, values) in enumerate(kept.items()):
            table = table.add_column(place, *cells_column(name, values))
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
            name itself; or what writes it is not installed.
    """
    if path.suffix not in FORMATS:
        raise InputError(f"vectors are written to {', '.join(FORMATS)} files.", place=Place(path))
    if path.suffix in ARROW:
        check_installed(f"writing {path.suffix}", "pyarrow")
    if path.suffix == ".npy" and (kept or tokens):
        what = "keep" if kept else "pooling tokens"
        raise ConfigError(f"{what}: a .npy file holds one array; write another format, or .npz.")
    own = _COLUMNS - {"text"} if path.suffix == WHOLE else _COLUMNS
    if taken := sorted(own.intersection(kept)):
        raise ConfigError(f"keep: {', '.join(taken)} is a column of the output; rename yours.")


def _array(values: Sequence[Any]) -> NDArray[Any]:
    """Cells as an array: numbers if all are, or else texts."""
    kinds = {*map(type, values)}
    if kinds in ({bool}, {int}, {float}, {int, float}):
        with suppress(OverflowError):
            found: NDArray[Any] = np.array(values, float if float in kinds else kinds.pop())
            if found.tolist() == [*values]:  # no digit is lost
                return found
    return np.array([cell_text(value) for value in values], np.str_)


def _joined(texts: Sequence[TokenVectors]) -> tuple[list[str], NDArray[np.int64], Vector, Any]:
    """Tokens, offsets and vectors of all texts end to end, and where each text begins and ends."""
    tokens = [piece for text in texts for piece in text.tokens]
    offsets = np.concatenate([text.offsets for text in texts])
    vectors = np.concatenate([text.vectors for text in texts])
    return tokens, offsets, vectors, arrays.bounds([len(text.tokens) for text in texts])


def _write_npz(file: BinaryIO, vectors: TextVectors, kept: dict[str, Any]) -> None:
    if vectors.pooled is not None:
        np.savez(file, embeddings=vectors.pooled, **kept)
    else:
        tokens, offsets, rows, bounds = _joined(vectors.tokens)
        own = {"tokens": np.array(tokens, np.str_), "offsets": offsets, "bounds": bounds}
        np.savez(file, embeddings=rows, **own, **kept)


def _arrow_table(texts: Sequence[str], vectors: TextVectors) -> pa.Table:
    import pyarrow as pa

    columns = {"text": pa.array(texts, pa.string())}
    if vectors.pooled is not None:
        columns["embedding"] = _vector_column(vectors.pooled)
    else:
        tokens, offsets, rows, bounds = _joined(vectors.tokens)
        lists = {"tokens": pa.array(tokens, pa.string()), "offsets": _vector_column(offsets)}
        for name, values in {**lists, "embeddings": _vector_column(rows)}.items():
            columns[name] = pa.ListArray.from_arrays(bounds.astype(np.int32), values)
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
