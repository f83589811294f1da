"""A model folder in use, from Python: fill masks, judge next sentences, predict, tag, embed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.errors import InputError, ModelError
from bothways.model.batch import Inputs, SelectedPositions, collate
from bothways.model.folder import Loaded
from bothways.model.heads import Bert
from bothways.tasks.ensemble import load_ensemble
from bothways.tasks.entities import Tagged, tag_text
from bothways.tasks.predict import (
    Prediction,
    answer_question,
    check_segments,
    predict_choices,
    predict_texts,
)
from bothways.tasks.spans import Answer
from bothways.tasks.vectors import (
    Combine,
    Long,
    TokenVectors,
    embed_texts,
)
from bothways.tokenization.tokenizer import MASK, Encoding, Tokenizer
from bothways.training.device import choose_device
from bothways.use_options import (
    DeviceName,
)

Pooling = Literal["mean", "cls"]


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


def load(folder: str | Path, *others: str | Path, device: DeviceName = "auto") -> Model:
    """A model folder, ours or transformers', ready for use, in fp32.

    Args:
        folder: a model folder, or the name of a model that comes with bothways; or a run folder of
            :func:`bothways.finetune`, which stands for the models of all its seeds.
        others: more of them: an ensemble, whose predictions are averaged
            (:mod:`bothways.tasks.ensemble`). What is no prediction of a task is the first's.
        device: what computes; ``auto`` takes a GPU where torch sees one.

    Raises:
        ModelError: the folder is damaged, incomplete or holds another architecture; or the models
            of an ensemble differ in vocabulary, task, labels or length.
        ConfigError: a GPU is asked for, and torch sees none.
    """
    choose_device(device)  # refused at once, not after loading
    return put(load_ensemble([folder, *others]), device)


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
        if self.bert.config.left_to_right:
            raise ModelError(
                f"this model reads left to right: at {MASK} it has seen the text before it alone, "
                "and says what comes next instead of what is hidden; use a folder that was "
                "pre-trained as a masked LM (masking.kind pieces or words)."
            )
        encoding = self._encode(text)
        places = self._mask_places(text, encoding)
        with torch.inference_mode():
            inputs = self._collate(encoding).to(self.bert.device)
            selected = SelectedPositions.of(inputs, torch.tensor(places))
            (x_MH,) = self.bert.encoder.hidden_at(inputs, selected)
            logits_MV = self.bert.masked_lm_logits(x_MH).cpu()
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
            why = "this model has no next-sentence head"
            if self.bert.config.left_to_right:
                why += ", for it reads left to right, where [CLS] sees neither text"
            raise ModelError(f"{why}; use a folder that `bothways pretrain` wrote with pairs.")
        check_segments(self.bert, pair=True)
        inputs = self._collate(self._encode(a, b))
        with torch.inference_mode():
            inputs = inputs.to(self.bert.device)
            first_tokens = SelectedPositions.of(inputs, inputs.starts)
            (x_BH,) = self.bert.encoder.hidden_at(inputs, first_tokens)
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

    def tag(self, text: str | Sequence[str]) -> Tagged:
        """Tags and entities of a text, or of a sentence cut into words, from a head for tags.

        Raises:
            ModelError: the model has another head or none.
            InputError: a text without words.
        """
        return tag_text(self.loaded, text)

    def answer(self, question: str, context: str, *, top: int = 1) -> list[Answer]:
        """Answers in the words of a text of any length, with probabilities and places.

        Args:
            question: what is asked.
            context: the text; ``context[answer.start:answer.end] == answer.text``.
            top: how many answers, at most.

        Returns:
            Best first. Where the model says that there is none, an empty text comes first.

        Raises:
            ModelError: the model was not fine-tuned on questions.
        """
        return answer_question(self.loaded, question, context)[:top]

    def embed(
        self,
        texts: Sequence[str],
        *,
        pooling: Pooling = "mean",
        normalize: bool = False,
        length: int | None = None,
        layers: Sequence[int] = (-1,),
        combine: Combine = "mean",
        long: Long = "cut",
    ) -> NDArray[np.float32]:
        """A vector for each text, by default from the last layer.

        Args:
            texts: any texts.
            pooling: mean over all the text's tokens, specials included, as sentence-transformers
                has it; or the [CLS] token's.
            normalize: to length 1.
            length: longest sequence in tokens; the encoder's limit if not given.
            layers: 0 is the embeddings, 1 the first layer; below 0: counted from the last.
            combine: several layers' mean, sum, or all one behind another.
            long: longer texts are cut (:meth:`tokens_cut` tells), or read in windows.

        Returns:
            float32 [texts, H], or with ``concat`` [texts, layers * H].

        Raises:
            ConfigError: a layer that the encoder has not.
            LengthError: ``length`` is beyond the encoder's positions, or leaves no room for text.
        """
        found = embed_texts(
            self.loaded,
            texts,
            layers=layers,
            combine=combine,
            pooling=pooling,
            normalize=normalize,
            length=length,
            long=long,
        )
        assert found.pooled is not None
        return found.pooled

    def embed_tokens(
        self,
        texts: Sequence[str],
        *,
        normalize: bool = False,
        length: int | None = None,
        layers: Sequence[int] = (-1,),
        combine: Combine = "mean",
        long: Long = "windows",
    ) -> list[TokenVectors]:
        """A vector for each token of each text, with the token and where it stands in the text;
        arguments and errors as for :meth:`embed`."""
        found = embed_texts(
            self.loaded,
            texts,
            layers=layers,
            combine=combine,
            pooling="tokens",
            normalize=normalize,
            length=length,
            long=long,
        )
        return list(found.tokens)

    def tokens_cut(self, a: str, b: str | None = None) -> int:
        """How many tokens of a text or pair are beyond the encoder's length, and so not read."""
        return self._encode(a, b).cut

    def _encode(self, a: str, b: str | None = None) -> Encoding:
        return self.tokenizer.encode(a, b, max_length=self.bert.config.positions)

    def _collate(self, encoding: Encoding) -> Inputs:
        return collate(
            [encoding.tokens], [encoding.segments], max_positions=self.bert.config.positions
        )


def put(loaded: Loaded, device: DeviceName) -> Model:
    """A loaded folder on a device.

    Raises:
        ConfigError: a GPU is asked for, and torch sees none.
    """
    loaded.model.to(choose_device(device).torch)
    return Model(loaded)
