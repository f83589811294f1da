"""Using a model from Python: fill masks, judge next sentences, predict, tag, answer, embed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from bothways.batch import collate
from bothways.errors import InputError, ModelError, NonFiniteError, explain_missing
from bothways.families.heads import MASKED_LM, NEXT_SENTENCE, missing_head
from bothways.io.probabilities import softmax
from bothways.runtime.embeddings import Combine, Long, TokenVectors, embed_texts
from bothways.runtime.engine import AUTO, EngineOptions, check_engine
from bothways.runtime.ensemble import load_ensemble
from bothways.runtime.entities import Tagged, tag_text
from bothways.runtime.folder import LoadedModel
from bothways.runtime.options import EnginePrecision
from bothways.runtime.pipeline import (
    Prediction,
    answer_question,
    check_segments,
    choose_length,
    predict_choices,
    predict_texts,
)
from bothways.tasks.spans import Answer
from bothways.tokenization.tokenizer import Encoding, Tokenizer
from bothways.training.options import DeviceName

if TYPE_CHECKING:
    from bothways.model.model import EncoderModel

Pooling = Literal["mean", "cls"]


@dataclass(frozen=True)
class Filling:
    """A prediction for one [MASK].

    Attributes:
        piece: the predicted token, as in the vocabulary; in WordPiece a token with ## continues
            the preceding word.
        probability: its probability among all tokens except special ones.
        text: the text as given, with this [MASK] replaced (other masks stay).
    """

    piece: str
    probability: float
    text: str


def load(
    folder: str | Path,
    *others: str | Path,
    device: DeviceName = "auto",
    engine: str = AUTO,
    precision: EnginePrecision = "fp32",
) -> Model:
    """Load a model folder, ours or one of transformers, for inference.

    Its weights are read when something is first computed, or now if an engine or a GPU is named.

    Args:
        folder: a model folder, or the name of a bundled model; or a run folder of
            :func:`bothways.finetune`, for the ensemble of the seeds that its last call named
            (after a search: of the chosen setting).
        others: further models of an ensemble, whose task predictions are averaged
            (:mod:`bothways.runtime.ensemble`). For everything else the first model is used.
        device: ``auto`` uses a GPU if the engine finds one.
        engine: what computes it, by name; ``auto`` takes the first that is installed.
        precision: of the layers' arithmetic; ``auto`` takes bf16 where it is faster, ``int8`` the
            graph of 8 bits in a folder of :func:`bothways.export`.

    Raises:
        ModelError: the folder is damaged, incomplete or holds another architecture; or the models
            of an ensemble differ in vocabulary, task, labels or length.
        ConfigError: there is no such engine, or what it needs is not installed; or a GPU is
            requested but none is found.
    """
    check_engine(engine)
    loaded = load_ensemble([folder, *others], EngineOptions(engine, device, precision))
    if engine != AUTO or device == "cuda" or precision == "int8":
        _ = loaded.engine  # fails now if it cannot be had
    return Model(loaded)


def _check_finite(logits: NDArray[np.float32]) -> None:
    if not np.isfinite(logits).all():
        raise NonFiniteError("the model's output is not finite; its weights are damaged.")


class Model:
    """An encoder with its tokenizer and the heads of its folder.

    Args:
        loaded: the content of the folder.
    """

    def __init__(self, loaded: LoadedModel):
        self.loaded = loaded

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.loaded.tokenizer

    @property
    def network(self) -> EncoderModel:
        """The network that torch computes with, in evaluation mode.

        Raises:
            ConfigError: another engine computes this model, or torch is not installed.
        """
        with explain_missing("a model's network, which is torch's,"):
            from bothways.model.engine import network_of
        return network_of(self.loaded)

    def fill_mask(self, text: str, *, top: int = 5) -> list[list[Filling]]:
        """The most likely tokens for each [MASK] of a text.

        Returns:
            For each [MASK], in order, ``top`` predictions, most likely first; never special tokens.

        Raises:
            ModelError: the model has no masked-LM head, or is a left-to-right model; or its
                tokenizer has no mask piece.
            InputError: the text has no [MASK], or one beyond the maximum sequence length.
            NonFiniteError: the model's output is not finite.
        """
        heads, config = self.loaded.heads, self.loaded.config
        if MASKED_LM not in heads:
            raise ModelError(missing_head(config.family, MASKED_LM, heads))
        if config.left_to_right:
            where = self.tokenizer.roles.mask or "a mask"
            raise ModelError(
                f"this model reads left to right: at {where} it sees only the text before it and "
                "predicts the next token, not the hidden one; use a model that was pre-trained as "
                "a masked LM (masking.kind pieces or words)."
            )
        mask = self.tokenizer.piece(self.tokenizer.mask_id)
        encoding = self._encode(text)
        positions = self._mask_positions(text, encoding, mask)
        logits_MV = self._outputs(MASKED_LM, encoding, positions).astype(np.float64)
        logits_MV[:, self.tokenizer.special_ids] = -np.inf
        candidates = self.tokenizer.vocab_size - len(self.tokenizer.special_ids)
        probabilities_MV = softmax(logits_MV, axis=-1)
        fillings = []
        for position, row in zip(positions, probabilities_MV, strict=True):
            ids = np.argsort(-row, kind="stable")[: min(top, candidates)].tolist()
            probabilities = row[ids].tolist()
            at = text.index(mask, encoding.offsets[position][0])
            fillings.append(
                [
                    Filling(self.tokenizer.piece(id), probability, self._fill(text, at, mask, id))
                    for probability, id in zip(probabilities, ids, strict=True)
                ]
            )
        return fillings

    def _fill(self, text: str, at: int, mask: str, id: int) -> str:
        """The text with the mask at character ``at`` replaced by a token."""
        before, after = text[:at], text[at + len(mask) :]
        if not self.tokenizer.starts_word[id]:
            before = before.rstrip()
        return before + self.tokenizer.text_of(id) + after

    def _mask_positions(self, text: str, encoding: Encoding, mask: str) -> list[int]:
        """The positions of the mask among the tokens; an error if truncation has removed one."""
        mask_id = self.tokenizer.mask_id
        positions = [at for at, token in enumerate(encoding.tokens) if token == mask_id]
        total = self.tokenizer.encode(text).tokens.count(mask_id)
        if not total:
            raise InputError(
                f"{text[:60]!r} has no {mask}; write {mask} where a token is to be predicted."
            )
        if len(positions) < total:
            raise InputError(
                f"{text[:60]!r}: {mask} number {len(positions) + 1} of {total} is beyond the "
                f"{self.loaded.config.positions} tokens this encoder has positions for; shorten "
                "the text before it."
            )
        return positions

    def next_sentence(self, a: str, b: str) -> float:
        """Probability that text ``b`` follows text ``a``, rather than being random (or, in a model
        trained on sentence order, preceding it). The longer text is truncated to fit.

        Raises:
            ModelError: the model has no next-sentence head.
            NonFiniteError: the model's output is not finite.
        """
        if NEXT_SENTENCE not in self.loaded.heads:
            family, causal = self.loaded.config.family, self.loaded.config.left_to_right
            raise ModelError(missing_head(family, NEXT_SENTENCE, causal=causal))
        check_segments(self.loaded, pair=True)
        logits_BC = self._outputs(NEXT_SENTENCE, self._encode(a, b), [0])
        return float(softmax(logits_BC, axis=-1)[0, 0])

    def predict(self, a: Sequence[str], b: Sequence[str] | None = None) -> Prediction:
        """Labels with probabilities, or scores, from the folder's task head.

        Args:
            a: the (first) texts.
            b: the second texts, one for each of ``a``, for a model fine-tuned on pairs.

        Raises:
            ModelError: the model has no task head.
            InputError: pairs for a model of single texts, or vice versa; a single text instead of a
                list.
        """
        return predict_texts(self.loaded, a, b)

    def choose(self, context: str, choices: Sequence[str]) -> list[float]:
        """Probability of each choice to continue the context, read up to the length of fine-tuning
        (:meth:`tokens_cut` counts what that cuts).

        Args:
            context: the first text.
            choices: two or more texts, including the beginning that they share, if the task has
                one (``text_b``).

        Raises:
            ModelError: the model was not fine-tuned on choices.
            InputError: fewer than two choices, or a single text instead of a list.
        """
        (probabilities,), _ = predict_choices(self.loaded, [context], [choices])
        return [float(p) for p in probabilities]

    def tag(self, text: str | Sequence[str]) -> Tagged:
        """Tags and entities of a text, or of a sentence given as words.

        Raises:
            ModelError: the model was not fine-tuned on tagging.
            InputError: a text without words.
        """
        return tag_text(self.loaded, text)

    def answer(self, question: str, context: str, *, top: int = 1) -> list[Answer]:
        """Answers to a question: spans of a text of any length, with probabilities.

        Args:
            question: the question; 64 tokens of it are read (the task's ``spans.query_length``).
            context: the text; ``context[answer.start:answer.end] == answer.text``.
            top: maximum number of answers.

        Returns:
            The answers, best first. An empty text means that there is no answer; it is never given
            by a folder that does not say whether questions may have none, such as one of
            transformers.

        Raises:
            ModelError: the model was not fine-tuned on questions.
        """
        return answer_question(self.loaded, question, context)[:top]

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        length: int | None = None,
        layers: Sequence[int] = (-1,),
        combine: Combine = "mean",
        long: Long = "windows",
    ) -> NDArray[np.float32]:
        """A vector per text, by default from the last layer.

        Args:
            texts: any texts.
            pooling: mean over all tokens of the text, including special ones, as in
                sentence-transformers; or the vector of [CLS]. By default as a folder of
                sentence-transformers says, otherwise the mean.
            normalize: scale the vectors to unit length. By default as a folder of
                sentence-transformers says, otherwise not.
            length: maximum sequence length in tokens; by default the encoder's limit.
            layers: 0 is the embeddings, 1 the first layer, -1 the last.
            combine: how several layers are combined.
            long: read longer texts in overlapping windows, or truncate them (see
                :meth:`tokens_cut`).

        Returns:
            float32 [texts, H], or with ``concat`` [texts, layers * H].

        Raises:
            ConfigError: the encoder has no such layer; or no ``pooling`` for a folder of
                sentence-transformers that does more than bothways.
            LengthError: ``length`` exceeds the encoder's positions, or leaves no room for text.
            InputError: a single text instead of a list.
        """
        embeddings = embed_texts(
            self.loaded,
            texts,
            layers=layers,
            combine=combine,
            pooling=pooling,
            normalize=normalize,
            length=length,
            long=long,
        )
        assert embeddings.pooled is not None
        return embeddings.pooled

    def embed_tokens(
        self,
        texts: Sequence[str],
        *,
        normalize: bool | None = None,
        length: int | None = None,
        layers: Sequence[int] = (-1,),
        combine: Combine = "mean",
        long: Long = "windows",
    ) -> list[TokenVectors]:
        """A vector per token of each text, with the token and its position in the text.

        Arguments and errors as for :meth:`embed`.
        """
        embeddings = embed_texts(
            self.loaded,
            texts,
            layers=layers,
            combine=combine,
            pooling="tokens",
            normalize=normalize,
            length=length,
            long=long,
        )
        return list(embeddings.tokens)

    def tokens_cut(self, a: str, b: str | None = None) -> int:
        """The number of tokens of a text or pair that are truncated to fit: of a context and a
        choice, into the length of fine-tuning; else into the encoder's positions."""
        choices = self.loaded.about.get("kind") == "choice"
        length = choose_length(self.loaded, None) if choices else self.loaded.config.positions
        return self.tokenizer.encode(a, b, max_length=length).cut

    def _encode(self, a: str, b: str | None = None) -> Encoding:
        return self.tokenizer.encode(a, b, max_length=self.loaded.config.positions)

    def _outputs(
        self, head: str, encoding: Encoding, positions: Sequence[int]
    ) -> NDArray[np.float32]:
        """The outputs [R, C] of a head at positions of a sequence; an error if one is not
        finite."""
        batch = collate(
            [encoding.tokens], [encoding.segments], max_positions=self.loaded.config.positions
        )
        at = np.array(positions, dtype=np.int64)
        outputs = self.loaded.engine.compute(batch, {head: at})[head]
        _check_finite(outputs)
        return outputs
