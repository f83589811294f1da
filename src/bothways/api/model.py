"""Using a model from Python: fill masks, judge next sentences, predict, tag, answer, embed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.errors import InputError, ModelError, NonFiniteError
from bothways.families.refusals import missing_head
from bothways.model.batch import Inputs, SelectedPositions, collate
from bothways.model.engine import evaluating
from bothways.model.folder import LoadedModel
from bothways.model.model import EncoderModel
from bothways.runtime.embeddings import Combine, Long, TokenVectors, embed_texts
from bothways.runtime.ensemble import load_ensemble
from bothways.runtime.entities import Tagged, tag_text
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
from bothways.training.device import borrowed_process, choose_device
from bothways.training.options import DeviceName

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


@borrowed_process()
def load(folder: str | Path, *others: str | Path, device: DeviceName = "auto") -> Model:
    """Load a model folder, ours or one of transformers, for inference in fp32.

    Args:
        folder: a model folder, or the name of a bundled model; or a run folder of
            :func:`bothways.finetune`, for the ensemble of the seeds that its last call named
            (after a search: of the chosen setting).
        others: further models of an ensemble, whose task predictions are averaged
            (:mod:`bothways.runtime.ensemble`). For everything else the first model is used.
        device: ``auto`` uses a GPU if torch finds one.

    Raises:
        ModelError: the folder is damaged, incomplete or holds another architecture; or the models
            of an ensemble differ in vocabulary, task, labels or length.
        ConfigError: a GPU is requested but torch finds none.
    """
    choose_device(device)  # fail before loading
    return to_device(load_ensemble([folder, *others]), device)


def _check_finite(logits: torch.Tensor) -> None:
    if not logits.isfinite().all():
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
        """The network, in evaluation mode."""
        return self.loaded.model

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
        if self.network.masked_lm is None:
            raise ModelError(
                missing_head(self.network.config.family, "masked_lm", self.network.heads)
            )
        if self.network.config.left_to_right:
            where = self.tokenizer.roles.mask or "a mask"
            raise ModelError(
                f"this model reads left to right: at {where} it sees only the text before it and "
                "predicts the next token, not the hidden one; use a model that was pre-trained as "
                "a masked LM (masking.kind pieces or words)."
            )
        mask = self.tokenizer.piece(self.tokenizer.mask_id)
        encoding = self._encode(text)
        positions = self._mask_positions(text, encoding, mask)
        with evaluating(self.network), torch.inference_mode():
            inputs = self._collate(encoding).to(self.network.device)
            selected = SelectedPositions.of(inputs, torch.tensor(positions))
            (x_MH,) = self.network.encoder.hidden_at(inputs, selected)
            logits_MV = self.network.masked_lm_logits(x_MH).cpu()
            _check_finite(logits_MV[:, : self.tokenizer.vocab_size])  # padded columns are -inf
            logits_MV[:, torch.from_numpy(self.tokenizer.special_ids)] = -torch.inf
            candidates = self.tokenizer.vocab_size - len(self.tokenizer.special_ids)
            best = logits_MV.softmax(-1).topk(min(top, candidates), dim=-1)
        fillings = []
        for position, probabilities, ids in zip(
            positions, best.values.tolist(), best.indices.tolist(), strict=True
        ):
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
                f"{self.network.config.positions} tokens this encoder has positions for; shorten "
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
        if self.network.next_sentence is None:
            family, causal = self.network.config.family, self.network.config.left_to_right
            raise ModelError(missing_head(family, "next_sentence", causal=causal))
        check_segments(self.loaded, pair=True)
        inputs = self._collate(self._encode(a, b))
        with evaluating(self.network), torch.inference_mode():
            inputs = inputs.to(self.network.device)
            first_tokens = SelectedPositions.of(inputs, inputs.starts)
            (x_BH,) = self.network.encoder.hidden_at(inputs, first_tokens)
            logits_BC = self.network.next_sentence_logits(x_BH)
            _check_finite(logits_BC)
        return float(logits_BC.softmax(-1)[0, 0])

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
        length = choose_length(self.loaded, None) if choices else self.network.config.positions
        return self.tokenizer.encode(a, b, max_length=length).cut

    def _encode(self, a: str, b: str | None = None) -> Encoding:
        return self.tokenizer.encode(a, b, max_length=self.network.config.positions)

    def _collate(self, encoding: Encoding) -> Inputs:
        return collate(
            [encoding.tokens], [encoding.segments], max_positions=self.network.config.positions
        )


@borrowed_process()
def to_device(loaded: LoadedModel, device: DeviceName) -> Model:
    """A loaded folder as a :class:`Model` on a device.

    Raises:
        ConfigError: a GPU is requested but torch finds none.
    """
    loaded.model.to(choose_device(device).torch)
    return Model(loaded)
