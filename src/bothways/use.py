"""Using a model folder: fill masks, judge next sentences, predict, embed, convert, measure.

:func:`load` gives a :class:`Model` for Python; the functions below it serve the command line.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.config import MaskOptions, PairOptions, PretrainConfig
from bothways.corpus.documents import LONGEST_TEXT_MIB, read_lines
from bothways.corpus.store import TokenStore
from bothways.errors import InputError, ModelError, StoreError
from bothways.files import write_bytes, write_text
from bothways.model.batch import Inputs, collate
from bothways.model.folder import Loaded, load_model, save_model
from bothways.model.heads import Bert
from bothways.pretraining.objective import measure
from bothways.pretraining.plan import unfit
from bothways.pretraining.run import evaluation_batches
from bothways.tasks.catalogue import task as declared_task
from bothways.tasks.ensemble import load_ensemble
from bothways.tasks.examples import PREDICT_TOKENS, Examples, encode_examples, length_batches
from bothways.tasks.predict import (
    Prediction,
    check_length,
    check_segments,
    evaluate_file,
    outputs_of,
    predict_choices,
    predict_texts,
    read_part,
)
from bothways.tasks.submission import submission_rows
from bothways.tokenization.tokenizer import MASK, Encoding, Tokenizer
from bothways.training.precision import set_threads
from bothways.use_options import (
    ChooseOptions,
    ConvertOptions,
    EmbedOptions,
    EvaluateModelOptions,
    FillMaskOptions,
    NextSentenceOptions,
    PredictOptions,
)

Pooling = Literal["mean", "cls"]

_EVALUATION_SEQUENCES = 10_000
_EVALUATION_LENGTH = 128


@dataclass(frozen=True)
class Filling:
    """A piece for one [MASK].

    Attributes:
        piece: as in the vocabulary; in WordPiece, one with ## continues the word before it.
        probability: of the piece at that place, among all that are no special tokens.
        text: the whole text as given, with the piece filled in (other masks stay).
    """

    piece: str
    probability: float
    text: str


def load(folder: str | Path, *others: str | Path) -> Model:
    """A model folder, ours or transformers', ready for use on the CPU.

    Args:
        folder: a model folder; or a run folder of :func:`bothways.finetune`, which stands for the
            models of all its seeds.
        others: more of them: an ensemble, whose predictions are averaged
            (:mod:`bothways.tasks.ensemble`). What is no prediction of a task is the first's.

    Raises:
        ModelError: the folder is damaged, incomplete or holds another architecture; or the models
            of an ensemble differ in vocabulary, task, labels or length.
    """
    return Model(load_ensemble([folder, *others]))


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

    def fill_mask(self, text: str, *, top: int = 5) -> list[list[Filling]]:
        """The likeliest pieces for each [MASK] of a text.

        Returns:
            For each [MASK], in order, ``top`` fillings, likeliest first; never a special token.

        Raises:
            ModelError: the model has no masked-LM head.
            InputError: the text holds no [MASK], or one beyond the encoder's length.
        """
        if self.bert.masked_lm is None:
            raise ModelError(
                "this model has no masked-LM head; use a folder that `bothways pretrain` wrote."
            )
        encoding = self._encode(text)
        places = self._mask_places(text, encoding)
        with torch.inference_mode():
            (x_MH,) = self.bert.encoder.read(self._collate(encoding), torch.tensor(places))
            logits_MV = self.bert.masked_lm_logits(x_MH)
            logits_MV[:, torch.from_numpy(self.tokenizer.special_ids)] = -torch.inf
            candidates = self.tokenizer.vocab_size - len(self.tokenizer.special_ids)
            best = logits_MV.softmax(-1).topk(min(top, candidates), dim=-1)
        return [
            [
                Filling(
                    self.tokenizer.piece(id),
                    probability,
                    self._filled(text, encoding.offsets[place][0], id),
                )
                for probability, id in zip(row, ids, strict=True)
            ]
            for place, row, ids in zip(
                places, best.values.tolist(), best.indices.tolist(), strict=True
            )
        ]

    def _filled(self, text: str, start: int, id: int) -> str:
        """The text with the [MASK] at or after ``start`` replaced by a piece."""
        at = text.index(MASK, start)
        before, after = text[:at], text[at + len(MASK) :]
        if not self.tokenizer.starts_word[id]:
            before = before.rstrip()
        return before + self.tokenizer.text_of(id) + after

    def _mask_places(self, text: str, encoding: Encoding) -> list[int]:
        """Where the [MASK]s are among the tokens; refuses to lose one."""
        mask_id = self.tokenizer.mask_id
        places = [at for at, token in enumerate(encoding.tokens) if token == mask_id]
        given = self.tokenizer.encode(text).tokens.count(mask_id)
        if not given:
            raise InputError(f"{text[:60]!r} holds no {MASK}; write {MASK} where a piece goes.")
        if len(places) < given:
            raise InputError(
                f"{text[:60]!r}: {MASK} number {len(places) + 1} of {given} stands beyond the "
                f"{self.bert.config.positions} tokens this encoder has positions for; shorten the "
                "text before it."
            )
        return places

    def next_sentence(self, a: str, b: str) -> float:
        """Probability that text ``b`` follows text ``a``, and is not random (or, in a model trained
        on sentence order, does not come before it); the longer is cut to fit.

        Raises:
            ModelError: the model has no next-sentence head.
        """
        if self.bert.next_sentence is None:
            raise ModelError(
                "this model has no next-sentence head; use a folder that `bothways pretrain` wrote."
            )
        check_segments(self.bert, pair=True)
        inputs = self._collate(self._encode(a, b))
        with torch.inference_mode():
            (x_BH,) = self.bert.encoder.read(inputs, inputs.starts)
            logits_BC = self.bert.next_sentence_logits(x_BH)
        return float(logits_BC.softmax(-1)[0, 0])

    def predict(self, a: Sequence[str], b: Sequence[str] | None = None) -> Prediction:
        """Labels with probabilities, or scores, from the folder's task head.

        Args:
            a: the (first) texts.
            b: the second texts, as many, for a model fine-tuned on pairs.

        Raises:
            ModelError: the model has no task head.
            InputError: pairs for a model of single texts, or the reverse.
        """
        return predict_texts(self.loaded, a, b)

    def choose(self, context: str, choices: Sequence[str]) -> list[float]:
        """Probability of each choice to be what continues the context.

        Args:
            context: the first text.
            choices: two or more, whole: with the text that all begin with, if the task has one.

        Raises:
            ModelError: the model was not fine-tuned on choices.
            InputError: fewer than two choices.
        """
        (found,), _ = predict_choices(self.loaded, [context], [choices])
        return [float(p) for p in found]

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: Pooling = "mean",
        normalize: bool = False,
        length: int | None = None,
    ) -> NDArray[np.float32]:
        """A vector for each text, from the last layer.

        Args:
            texts: longer ones are cut; :meth:`tokens_cut` tells.
            pooling: mean over all the text's tokens, specials included, as sentence-transformers
                has it; or the [CLS] token's.
            normalize: to length 1.
            length: longest text in tokens; the encoder's limit if not given.

        Returns:
            float32 [texts, H].

        Raises:
            LengthError: ``length`` is beyond the encoder's positions, or leaves no room for text.
        """
        return self._pool(self._examples(texts, length), pooling, normalize)

    def tokens_cut(self, a: str, b: str | None = None) -> int:
        """How many tokens of a text or pair are beyond the encoder's length, and so not read."""
        return self._encode(a, b).cut

    def _examples(self, texts: Sequence[str], length: int | None) -> Examples:
        length = self.bert.config.positions if length is None else length
        check_length(self.bert, length)
        return encode_examples(self.tokenizer, texts, None, length=length)

    @torch.inference_mode()
    def _pool(self, examples: Examples, pooling: Pooling, normalize: bool) -> NDArray[np.float32]:
        vectors_NH = np.zeros((len(examples), self.bert.config.hidden), dtype=np.float32)
        for rows in length_batches(examples.lengths, PREDICT_TOKENS):
            inputs = examples.inputs(rows, max_positions=self.bert.config.positions)
            hidden_TH = self.bert.encoder(inputs)
            if pooling == "cls":
                pooled = hidden_TH.index_select(0, inputs.starts)
            else:
                parts = hidden_TH[: inputs.bounds[-1]].split(inputs.lengths.tolist())
                pooled = torch.stack([part.mean(0) for part in parts])
            if normalize:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
            vectors_NH[rows] = pooled.numpy()
        return vectors_NH

    def _encode(self, a: str, b: str | None = None) -> Encoding:
        return self.tokenizer.encode(a, b, max_length=self.bert.config.positions)

    def _collate(self, encoding: Encoding) -> Inputs:
        return collate(
            [encoding.tokens], [encoding.segments], max_positions=self.bert.config.positions
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
    cut = sum(model.tokens_cut(text) > 0 for text in options.texts)
    _note_cut(cut, len(options.texts), model.bert.config.positions)
    return lines


def next_sentence(options: NextSentenceOptions) -> str:
    """The line for `bothways next-sentence`."""
    model = _open(options.model)
    probability = model.next_sentence(options.text_a, options.text_b)
    cut = model.tokens_cut(options.text_a, options.text_b)
    if cut:
        _note(f"{cut} tokens of the pair were cut to fit into {model.bert.config.positions}")
    other = "swapped" if model.loaded.about.get("pairs") == "order" else "random"
    return f"follows: {probability:.1%}   {other}: {1 - probability:.1%}"


def choose(options: ChooseOptions) -> list[str]:
    """Lines for `bothways choose`: the choices, likeliest first."""
    model = _open(options.model)
    (found,), cut = predict_choices(model.loaded, [options.context], [options.choices])
    if cut:
        _note("the context or a choice was cut to the length the model was fine-tuned with")
    order = np.argsort(-found, kind="stable")
    return [f"{found[i]:6.1%}  {options.choices[i]}" for i in order]


def predict(options: PredictOptions) -> list[str]:
    """Lines for `bothways predict`; a file is written if one is asked for."""
    model = _open_task(options)
    if options.file is not None:
        lines = _predict_file(model.loaded, options)
    else:
        b = None if options.text_b is None else [options.text_b] * len(options.texts)
        prediction = model.predict(options.texts, b)
        _note_cut(prediction.cut, len(options.texts), prediction.length)
        _note_windows(prediction.several, len(options.texts), prediction.length)
        lines = _prediction_lines(prediction)
    if options.out is None:
        return lines
    write_text(Path(options.out), "\n".join(lines) + "\n")
    return [f"{len(lines) - 1} predictions: {options.out}"]


def _predict_file(loaded: Loaded, options: PredictOptions) -> list[str]:
    """A header, and a line for each example of a file in the task's format."""
    columns = None if options.task is None else declared_task(options.task).task
    task, part = read_part(loaded, options.file or "", labelled=False, options=columns)
    for note in part.notes:
        _note(note)
    outputs = outputs_of(loaded, task, part.examples, dtype=torch.float32)
    table = task.table(part, task.decode(part, outputs))
    return ["\t".join(row) for row in (submission_rows(table) if options.submission else table)]


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
        lines = read_lines(Path(options.file), max_line_mib=LONGEST_TEXT_MIB)
        texts = tuple(text for _, text in lines)
    if not texts:
        raise InputError("no text to embed; the file is empty.", path=options.file)
    examples = model._examples(texts, options.length)
    vectors = model._pool(examples, options.pooling, options.normalize)
    data = io.BytesIO()
    np.savez(data, embeddings=vectors)
    write_bytes(Path(options.out), data.getvalue())
    _note_cut(examples.cut, len(texts), options.length or model.bert.config.positions)
    return f"{len(vectors)} vectors of {vectors.shape[1]}: {options.out}"


def evaluate(options: EvaluateModelOptions) -> list[str]:
    """Lines for `bothways evaluate`: a task head on a file, or pre-training on a corpus."""
    model = _open_task(options)
    if Path(options.file).is_dir():
        if options.task is not None:
            raise InputError("is a folder; --task goes with a labelled file.", path=options.file)
        return [evaluate_pretraining(model.loaded, options.file)]
    columns = None if options.task is None else declared_task(options.task).task
    found = evaluate_file(model.loaded, options.file, options=columns)
    for note in found.notes:
        _note(note)
    return [f"{name}: {value:.4f}" for name, value in found.scores.items()]


def evaluate_pretraining(
    loaded: Loaded, corpus: str | Path, *, sequences: int = _EVALUATION_SEQUENCES
) -> str:
    """What the model was pre-trained for, masked LM and next sentence or their variants, measured
    on a corpus's held-out part, or on all of it if it has none.

    Args:
        loaded: a model with a masked-LM head.
        corpus: a corpus folder of the same vocabulary.
        sequences: how many to draw, at most one pass over the text, of 128 tokens (or what the
            encoder has positions for).

    Raises:
        ModelError: the model lacks a pre-training head.
        StoreError: the corpus is damaged, too small, or of another vocabulary.
    """
    if loaded.model.masked_lm is None:
        raise ModelError(
            "this model lacks the pre-training heads that a corpus is measured with; use a folder "
            "that `bothways pretrain` wrote, or name a labelled file (.tsv or .jsonl)."
        )
    recipe = _pretraining_recipe(loaded)
    kind = recipe.pairs.kind
    store = TokenStore.open(corpus, "heldout")
    part = "held-out part"
    if unfit(store, kind):
        store, part = TokenStore.open(corpus), "all documents, for it has no held-out part"
    if store.tokenizer.fingerprint != loaded.tokenizer.fingerprint:
        raise StoreError(
            f"{corpus} was built with another vocabulary than the model has; build it again with "
            "--tokenizer and the model folder."
        )
    length = min(_EVALUATION_LENGTH, loaded.model.config.positions)
    batches = evaluation_batches(store, length, sequences, recipe)
    result = measure(loaded.model, batches, torch.float32, kind)
    what = "sequences" if result.pairs is None else "pairs"
    line = (
        f"{corpus} ({part}), {result.sequences:,} {what}, {result.targets:,} "
        f"{'' if result.causal else 'masked '}tokens: {result.sentence()}"
    )
    if result.pairs is None:
        return line
    accuracy = result.pairs.accuracy
    error = (accuracy * (1 - accuracy) / result.sequences) ** 0.5
    return f"{line} (standard error {error:.2%})"


def _pretraining_recipe(loaded: Loaded) -> PretrainConfig:
    """The kinds of sequences and targets that a model was pre-trained on; the paper's, or without a
    next-sentence head single segments, where its folder does not say."""
    default = "single" if loaded.model.next_sentence is None else "next"
    pairs = PairOptions(kind=loaded.about.get("pairs", default))
    return PretrainConfig(
        pairs=pairs, masking=MaskOptions(kind=loaded.about.get("masking", "pieces"))
    )


def convert(options: ConvertOptions) -> str:
    """Rewrite what can be loaded as a model folder of ours, for `bothways convert`."""
    source, out = Path(options.source), Path(options.out)
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise ModelError(f"{out} exists already; choose a new folder.")
    loaded = load_model(source, vocabulary=options.vocab)
    about = {k: v for k, v in loaded.about.items() if k != "format"}
    about["converted_from"] = source.resolve().name
    save_model(out, loaded.model, loaded.tokenizer, about)
    if loaded.unused:
        _note(f"left out, not used here: {', '.join(loaded.unused)}")
    if loaded.fresh:
        _note(f"not in the source, newly drawn: {', '.join(loaded.fresh)}")
    return f"model: {out}"


def _open(folder: str) -> Model:
    set_threads(0)
    return Model(load_model(folder))


def _open_task(options: PredictOptions | EvaluateModelOptions) -> Model:
    """A model or an ensemble; a run folder is one too."""
    set_threads(0)
    return load(options.model, *options.ensemble)


def _note(text: str) -> None:
    """What a user must know beside the result; on standard error, as results are piped on."""
    print(f"note: {text}", file=sys.stderr)


def _note_windows(several: int, texts: int, length: int) -> None:
    if several:
        _note(f"{several:,} of {texts:,} texts are longer than {length} tokens: read in windows")


def _note_cut(cut: int, texts: int, limit: int) -> None:
    if cut:
        _note(f"{cut:,} of {texts:,} texts were cut to {limit} tokens; what is beyond is not read")
