"""Using a model folder: fill masks, judge next sentences, predict, embed, convert, measure.

:func:`load` gives a :class:`Model` for Python; the functions below it serve the command line.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.config import PretrainConfig
from bothways.corpus.documents import read_lines
from bothways.corpus.store import MANIFEST, TokenStore
from bothways.errors import InputError, ModelError, StoreError
from bothways.files import PARTIAL, write_bytes, write_text
from bothways.model.batch import Inputs, collate
from bothways.model.folder import Loaded, load_model, save_model
from bothways.model.heads import Bert
from bothways.pretraining.objective import measure
from bothways.pretraining.run import evaluation_batches
from bothways.tasks.examples import PREDICT_TOKENS, length_batches
from bothways.tasks.predict import Prediction, evaluate_file, predict_texts, stored_options
from bothways.tasks.readers import read_rows
from bothways.tokenization.tokenizer import Encoding, Tokenizer
from bothways.training.precision import set_threads
from bothways.use_options import (
    ConvertOptions,
    EmbedOptions,
    EvaluateModelOptions,
    FillMaskOptions,
    NextSentenceOptions,
    PredictOptions,
)

_EVALUATION_PAIRS = 10_000


@dataclass(frozen=True)
class Filling:
    """A piece for one [MASK].

    Attributes:
        piece: as in the vocabulary.
        probability: of the piece at that place.
        text: the whole text with the piece filled in (other masks stay).
    """

    piece: str
    probability: float
    text: str


def load(folder: str | Path) -> Model:
    """A model folder, ours or transformers', ready for use on the CPU.

    Raises:
        ModelError: the folder is damaged, incomplete or holds another architecture.
    """
    return Model(load_model(folder))


class Model:
    """An encoder with its tokenizer and whatever heads its folder holds.

    Args:
        loaded: what the folder held.
    """

    def __init__(self, loaded: Loaded):
        self.loaded = loaded

    @property
    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer."""
        return self.loaded.tokenizer

    @property
    def bert(self) -> Bert:
        """The network, in evaluation mode."""
        return self.loaded.model

    @torch.no_grad()
    def fill_mask(self, text: str, *, top: int = 5) -> list[list[Filling]]:
        """The likeliest pieces for each [MASK] of a text.

        Returns:
            For each [MASK], in order, ``top`` fillings, likeliest first; never a special token.

        Raises:
            ModelError: the model has no masked-LM head.
            InputError: the text holds no [MASK], or lost it to truncation.
        """
        if self.bert.masked_lm is None:
            raise ModelError(
                "this model has no masked-LM head; use a folder that `bothways pretrain` wrote."
            )
        encoding = self._encode([text])[0]
        ids = np.array(encoding.tokens)
        places = np.flatnonzero(ids == self.tokenizer.mask_id)
        if not len(places):
            why = " within the model's length" if encoding.cut else ""
            raise InputError(
                f"{text[:60]!r} holds no [MASK]{why}; write [MASK] where a piece goes."
            )
        hidden = self.bert.encoder(self._collate([encoding]))
        logits = self.bert.masked_lm_logits(hidden, torch.from_numpy(places))
        logits[:, torch.from_numpy(self.tokenizer.special_ids)] = -torch.inf
        best = logits.softmax(-1).topk(min(top, self.tokenizer.vocab_size - 5), dim=-1)
        return [
            [
                Filling(self.tokenizer.piece(i), p, self._filled(ids, int(place), i))
                for p, i in zip(values.tolist(), indices.tolist(), strict=True)
            ]
            for place, values, indices in zip(places, best.values, best.indices, strict=True)
        ]

    def _filled(self, ids: NDArray[np.int64], place: int, piece: int) -> str:
        filled = ids[1:-1].copy()
        filled[place - 1] = piece
        masks = filled == self.tokenizer.mask_id
        keep = masks | ~np.isin(filled, self.tokenizer.special_ids)
        return self.tokenizer.decode(filled[keep].tolist(), skip_special=False)

    @torch.no_grad()
    def next_sentence(self, a: str, b: str) -> float:
        """Probability that text ``b`` follows text ``a``.

        Raises:
            ModelError: the model has no next-sentence head.
        """
        if self.bert.next_sentence is None:
            raise ModelError(
                "this model has no next-sentence head; use a folder that `bothways pretrain` wrote."
            )
        encodings = self.tokenizer.encode_batch([a], [b], max_length=self.bert.config.positions)
        inputs = self._collate(encodings)
        logits = self.bert.next_sentence_logits(self.bert.encoder(inputs), inputs)
        return float(logits.softmax(-1)[0, 0])

    def predict(self, a: Sequence[str], b: Sequence[str] | None = None) -> Prediction:
        """Labels with probabilities, or scores, from the folder's task head.

        Raises:
            ModelError: the model has no task head.
        """
        return predict_texts(self.loaded, a, b)

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: Literal["mean", "cls"] = "mean",
        normalize: bool = False,
    ) -> NDArray[np.float32]:
        """A vector for each text, from the last layer.

        Args:
            texts: longer ones are cut to the encoder's length.
            pooling: mean over all the text's tokens, specials included, as sentence-transformers
                has it; or the [CLS] token's.
            normalize: to length 1.

        Returns:
            float32 [texts, H].
        """
        return self._embed(self._encode(texts), pooling, normalize)

    @torch.no_grad()
    def _embed(
        self, encodings: Sequence[Encoding], pooling: Literal["mean", "cls"], normalize: bool
    ) -> NDArray[np.float32]:
        out = np.zeros((len(encodings), self.bert.config.hidden), dtype=np.float32)
        lengths = np.array([len(e.tokens) for e in encodings], dtype=np.int64)
        for rows in length_batches(lengths, PREDICT_TOKENS):
            inputs = self._collate([encodings[i] for i in rows])
            hidden = self.bert.encoder(inputs)
            if pooling == "cls":
                pooled = hidden.index_select(0, inputs.starts)
            else:
                parts = hidden[: inputs.bounds[-1]].split(inputs.lengths.tolist())
                pooled = torch.stack([part.mean(0) for part in parts])
            if normalize:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
            out[rows] = pooled.numpy()
        return out

    def _encode(self, texts: Sequence[str]) -> list[Encoding]:
        return self.tokenizer.encode_batch(texts, max_length=self.bert.config.positions)

    def _collate(self, encodings: Sequence[Encoding]) -> Inputs:
        return collate(
            [e.tokens for e in encodings],
            [e.segments for e in encodings],
            max_positions=self.bert.config.positions,
        )


# ------------------------------------------------------------------------------------- the verbs


def fill_mask(options: FillMaskOptions) -> list[str]:
    """Lines for `bothways fill-mask`."""
    model = _open(options.model)
    lines = []
    for text in options.texts:
        lines.append(text)
        for place in model.fill_mask(text, top=options.top):
            lines += [f"  {f.probability:6.1%}  {f.piece:<16} {f.text}" for f in place] + [""]
    return lines


def next_sentence(options: NextSentenceOptions) -> str:
    """The line for `bothways next-sentence`."""
    probability = _open(options.model).next_sentence(options.text_a, options.text_b)
    return f"follows: {probability:.1%}   random: {1 - probability:.1%}"


def predict(options: PredictOptions) -> list[str]:
    """Lines for `bothways predict`; a file is written if one is asked for."""
    model = _open(options.model)
    a: Sequence[str] = options.texts
    b: Sequence[str] | None = None if options.text_b is None else [options.text_b] * len(a)
    if options.file is not None:
        rows = read_rows(options.file, stored_options(model.loaded), labelled=False)
        a, b = rows.a, rows.b
    prediction = model.predict(a, b)
    lines = _prediction_lines(prediction)
    notes = [f"note: {prediction.cut} of {len(a)} texts were cut to fit"] if prediction.cut else []
    if options.out is None:
        return [*lines, *notes]
    write_text(Path(options.out), "\n".join(lines) + "\n")
    return [f"{len(a)} predictions: {options.out}", *notes]


def _prediction_lines(prediction: Prediction) -> list[str]:
    """Tab-separated, with a header: label and a probability for each label, or the score."""
    if not prediction.labels:
        return ["score", *(f"{value:.6g}" for (value,) in prediction.values.tolist())]
    header = "\t".join(["label", *(f"p({name})" for name in prediction.names)])
    rows = zip(prediction.labels, prediction.values.tolist(), strict=True)
    return [header, *("\t".join([label, *(f"{p:.6f}" for p in row)]) for label, row in rows)]


def embed(options: EmbedOptions) -> str:
    """Write the vectors for `bothways embed`."""
    model = _open(options.model)
    texts = options.texts
    if options.file is not None:
        texts = tuple(text for _, text in read_lines(Path(options.file)))
    if not texts:
        raise InputError("no text to embed.", path=options.file)
    encodings = model._encode(texts)
    vectors = model._embed(encodings, options.pooling, options.normalize)
    data = io.BytesIO()
    np.savez(data, embeddings=vectors)
    write_bytes(Path(options.out), data.getvalue())
    cut = sum(e.cut > 0 for e in encodings)
    note = f"; {cut} texts were cut to {model.bert.config.positions} tokens" if cut else ""
    return f"{len(vectors)} vectors of {vectors.shape[1]}: {options.out}{note}"


def evaluate(options: EvaluateModelOptions) -> list[str]:
    """Lines for `bothways evaluate`: a task head on a file, or pre-training on a corpus."""
    model = _open(options.model)
    if (Path(options.file) / MANIFEST).exists():
        return [evaluate_pretraining(model.loaded, options.file)]
    found = evaluate_file(model.loaded, options.file)
    return [*(f"{name}: {value:.4f}" for name, value in found.scores.items()), *found.notes]


def evaluate_pretraining(
    loaded: Loaded, corpus: str | Path, *, pairs: int = _EVALUATION_PAIRS, length: int = 128
) -> str:
    """Masked-LM and next-sentence measurements on a corpus's held-out part, or on all of it if it
    has none.

    Args:
        loaded: a model with the pre-training heads.
        corpus: a corpus folder of the same vocabulary.
        pairs: how many segment pairs to draw.
        length: tokens of a pair.
    """
    if loaded.model.masked_lm is None or loaded.model.next_sentence is None:
        raise ModelError("this model lacks the pre-training heads that a corpus is measured with.")
    store = TokenStore.open(corpus, "heldout")
    part = "held-out part"
    if store.documents < 2:
        store, part = TokenStore.open(corpus), "all documents"
    if store.tokenizer.fingerprint != loaded.tokenizer.fingerprint:
        raise StoreError(f"{corpus} was built with another vocabulary than the model has.")
    batches = evaluation_batches(store, length, pairs, PretrainConfig())
    result = measure(loaded.model, batches, torch.float32)
    error = (result.nsp_accuracy * (1 - result.nsp_accuracy) / result.pairs) ** 0.5
    return (
        f"{corpus} ({part}), {result.pairs:,} pairs, {result.targets:,} masked tokens: "
        f"{result.sentence()} (standard error {error:.2%})"
    )


def convert(options: ConvertOptions) -> str:
    """Rewrite what can be loaded as a model folder of ours, for `bothways convert`."""
    source, out = Path(options.source), Path(options.out)
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise ModelError(f"{out} exists already; choose a new folder.")
    if options.vocab is None:
        loaded = load_model(source)
    else:
        with tempfile.TemporaryDirectory(prefix=PARTIAL) as folder:
            for file in source.iterdir():
                if file.is_file() and not file.name.startswith(("tokenizer", "vocab")):
                    (Path(folder) / file.name).symlink_to(file.resolve())
            Tokenizer.from_folder(options.vocab).save(folder)
            loaded = load_model(folder)
    about = {k: v for k, v in loaded.about.items() if k != "format"}
    save_model(out, loaded.model, loaded.tokenizer, {**about, "converted_from": source.name})
    notes = ""
    if loaded.unused:
        notes += f"\nleft out, not used here: {', '.join(loaded.unused)}"
    if loaded.fresh:
        notes += f"\nnot in the source, newly drawn: {', '.join(loaded.fresh)}"
    return f"model: {out}{notes}"


def _open(folder: str) -> Model:
    set_threads(0)
    return load(folder)
