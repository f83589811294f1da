"""Using a model from Python: fill masks, judge next sentences, predict, tag, answer, embed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, overload

import numpy as np
from numpy.typing import NDArray

from bothways.api.evaluation import Evaluation, corpus_folder, data_file
from bothways.arrays import softmax
from bothways.config.fields import as_field, field_types, require_choice, require_count
from bothways.errors import (
    ConfigError,
    InputError,
    ModelError,
    explain_missing,
    type_of,
)
from bothways.families.heads import CHOICE, MASKED_LM, NEXT_SENTENCE, missing_head, use_of
from bothways.finetuning.results import FinetuneResult
from bothways.io import html
from bothways.io.files import real_path
from bothways.io.hub import model_folder
from bothways.io.terminal import counted, print_note
from bothways.runtime.embeddings import Combine, Long, TokenVectors, embed_texts
from bothways.runtime.engine import AUTO, EngineOptions, check_engine
from bothways.runtime.ensemble import load_ensemble
from bothways.runtime.entities import Tagged, tag_texts
from bothways.runtime.folder import LoadedModel
from bothways.runtime.inspection import OCCLUSION, Attribution, Inspection, inspect, occlusion
from bothways.runtime.masks import mask_probabilities, outputs_at
from bothways.runtime.options import AttributionMethod as Method
from bothways.runtime.options import EmbedConfig
from bothways.runtime.pipeline import (
    Prediction,
    Ranked,
    answer_questions,
    check_segments,
    choose_length,
    evaluate_file,
    predict_choices,
    predict_texts,
    rank_texts,
)
from bothways.shipped import SHIPPED
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.spans import Answer
from bothways.tokenization.normalization import check_listed, check_texts
from bothways.tokenization.tokenizer import Encoding, Tokenizer
from bothways.training.options import DeviceName, PredictPrecision

if TYPE_CHECKING:
    from bothways.model.model import EncoderModel

Pooling = Literal["mean", "cls"]


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        return f"Filling({self.piece!r}, {self.probability:.4f}, {self.text!r})"


def load(
    folder: Any,
    *others: Any,
    device: DeviceName = "auto",
    engine: str = AUTO,
    precision: PredictPrecision = "fp32",
) -> Model:
    """Load a model folder, ours or one of transformers, for inference.

    Its weights are read when something is first computed, or now if an engine or a GPU is named.
    What was guessed or left out is said on stderr; ``loaded.notes`` holds it.

    Args:
        folder: a model folder, or the name of a bundled model; or a run folder of
            :func:`bothways.finetune`, for the ensemble of the seeds that its last call named
            (after a search: of the chosen setting); or the result of a training, for its model.
        others: further models of an ensemble, whose task predictions are averaged
            (:mod:`bothways.runtime.ensemble`). For everything else the first model is used.
        device: ``auto`` uses a GPU if the engine finds one.
        engine: what computes it, by name; ``auto`` takes the first that is installed and computes
            the folder in the precision.
        precision: of the layers' arithmetic; ``auto`` takes the fastest of fp32 and bf16, by a
            benchmark of a second that is made once per machine; ``int8`` is the graph of 8 bits in
            a folder of :func:`bothways.export`.

    Raises:
        ModelError: the folder is damaged, incomplete or holds another architecture; or the models
            of an ensemble differ in vocabulary, task, labels or length.
        ConfigError: there is no such engine, or what it needs is not installed; or a GPU is
            requested but none is found. A precision that it does not have is refused when something
            is first computed, or now if the engine is named.
    """
    check_engine(engine)
    require_choice("device", device, get_args(DeviceName))
    require_choice("precision", precision, get_args(PredictPrecision))
    folders = [folder_of(item, "folder") for item in (folder, *others)]
    loaded = load_ensemble(folders, EngineOptions(engine, device, precision))
    for note in loaded.notes:
        print_note(note)
    if engine != AUTO or device == "cuda" or precision == "int8":
        _ = loaded.engine  # fails now if it cannot be had
    return Model(loaded, model_folder(folders[0]))


def folder_of(model: Any, name: str) -> str:
    """The folder of a model that is given by path, by name or as an object.

    Raises:
        ConfigError: it is none of these, or a model that has no folder.
    """
    if isinstance(model, str | os.PathLike):
        path = os.fspath(model)
        bundled = not isinstance(model, str) and path in SHIPPED  # a path is no name
        return os.path.join(".", path) if bundled else path  # noqa: PTH118  a Path drops the dot
    if isinstance(model, Model):
        if model.folder is None:
            raise ConfigError(f"{name}: this model is in no folder; save it first (model.save).")
        return str(model.folder)
    if isinstance(model, FinetuneResult):
        return str(model.best.model)
    if isinstance(path := getattr(model, "model", None), Path):  # of a pre-training
        return str(path)
    raise ConfigError(
        f"{name} is {type_of(model)}; give a model folder, the name of a bundled model, a "
        "model that bw.load gives, or the result of a training."
    )


def check_ranks(loaded: LoadedModel) -> None:
    """Refuse to rank by an encoder without a head, whose vectors are compared in another way.

    Raises:
        ModelError: it is one.
    """
    if not loaded.task_head:
        raise ModelError(
            "ranking needs a model that gives a pair of texts one score, such as a CrossEncoder of "
            "sentence-transformers, and this one has no head for it. The vectors of an encoder are "
            "compared by their cosines: `bothways embed --normalize`, or in Python "
            "model.embed(texts, normalize=True)."
        )


def _embedding(**given: Any) -> dict[str, Any]:
    """Options of `bothways embed`, of their types.

    Raises:
        ConfigError: one is of another; the message names it.
    """
    if isinstance(given["layers"], Integral):
        given["layers"] = [given["layers"]]
    types = field_types(EmbedConfig)
    return {name: as_field(name, value, types[name]) for name, value in given.items()}


def _are_several(texts: Sequence[str] | Sequence[Sequence[str]]) -> bool:
    """Whether these are texts or sentences, and not the words of one."""
    return not len(texts) or any(not isinstance(t, str) or len(t.split()) > 1 for t in texts)


class Model:
    """An encoder with its tokenizer and the heads of its folder.

    Args:
        loaded: the content of the folder.
        folder: where it was read.
    """

    def __init__(self, loaded: LoadedModel, folder: Path | None = None):
        self.loaded = loaded
        self.folder = folder

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        """The same model: nothing of it changes in use."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as the path of its folder."""
        if self.folder is None:
            raise ModelError("this model is in no folder; save it first (model.save).")
        return load, (real_path(self.folder),)

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self._description())

    def _repr_html_(self) -> str:
        return html.fragment("Model", html.table(["", ""], self._description()))

    def _description(self) -> list[list[str]]:
        loaded, config = self.loaded, self.loaded.config
        shape = (
            f"{counted(config.layers, 'layer')}, hidden {config.hidden}, "
            f"{counted(config.heads, 'head')}, feed-forward {config.intermediate}, "
            f"{config.positions} positions"
        )
        kind = str(loaded.about.get("kind", ""))
        rows = [
            ["folder", "none" if self.folder is None else str(self.folder)],
            ["family", config.family],
            ["encoder", shape],
            ["weights", f"{loaded.parameters / 1e6:.1f} M"],
            ["vocabulary", f"{config.vocab_size:,} pieces, {self.tokenizer.kind}"],
            ["heads", ", ".join(use_of(name, kind) for name in loaded.heads) or "none"],
        ]
        if labels := loaded.about.get("labels"):
            shown = ", ".join(map(str, labels[:12])) + (" ..." if len(labels) > 12 else "")
            rows.append(["labels", shown])
        return rows

    def save(self, folder: str | Path) -> Path:
        """Write the model as a folder, which :func:`bothways.load` and transformers open.

        Args:
            folder: a new one, or an empty one.

        Raises:
            ModelError: the folder exists already.
            ConfigError: it is no path.
            DiskError: it could not be written.
        """
        if not isinstance(folder, str | os.PathLike):
            raise ConfigError(f"folder is {type_of(folder)}; give the path of a new folder.")
        out = Path(folder)
        if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
            raise ModelError(f"{out} exists already; choose a new folder.")
        from bothways.model.folder import save_model  # weights are written with torch

        about = {name: value for name, value in self.loaded.about.items() if name != "format"}
        save_model(out, self.network, self.tokenizer, about, dtype=self.loaded.dtype)
        return out

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

    @overload
    def fill_mask(  # type: ignore[overload-overlap]
        self, text: str, *, top: int = 5, targets: Sequence[str] | None = None
    ) -> list[list[Filling]]: ...

    @overload
    def fill_mask(
        self, text: Sequence[str], *, top: int = 5, targets: Sequence[str] | None = None
    ) -> list[list[list[Filling]]]: ...

    def fill_mask(
        self, text: str | Sequence[str], *, top: int = 5, targets: Sequence[str] | None = None
    ) -> list[list[Filling]] | list[list[list[Filling]]]:
        """The most likely tokens for each [MASK] of a text.

        Args:
            text: with one or more; or a list of such texts.
            top: predictions for each.
            targets: the pieces to predict among, or one, as in the vocabulary; all if not given.

        Returns:
            For each [MASK], in order, ``top`` predictions, most likely first; special tokens, such
            as [UNK], only as targets. Probabilities are among all pieces. Of several texts a list
            of that, in their order.

        Raises:
            ModelError: the model has no masked-LM head, or is a left-to-right model; or its
                tokenizer has no mask piece.
            InputError: the text has no [MASK], or one beyond the maximum sequence length; or the
                vocabulary lacks a target.
            NonFiniteError: the model's output is not finite.
            ConfigError: ``top`` is no whole number of at least 1.
        """
        require_count("top", top)
        targets = [targets] if isinstance(targets, str) else targets
        heads, config = self.loaded.heads, self.loaded.config
        if MASKED_LM in self.loaded.refused:
            raise ModelError(self.loaded.refused[MASKED_LM])
        if MASKED_LM not in heads:
            raise ModelError(missing_head(config.family, MASKED_LM, heads))
        if config.left_to_right:
            where = self.tokenizer.roles.mask or "a mask"
            raise ModelError(
                f"this model reads left to right: at {where} it sees only the text before it and "
                "predicts the next token, not the hidden one; use a model that was pre-trained as "
                "a masked LM (masking_kind pieces or words)."
            )
        allowed = None if targets is None else self._target_ids(targets)
        if not isinstance(text, str):
            check_texts(text)
            return [self._fill_mask(one, top, allowed) for one in text]
        return self._fill_mask(text, top, allowed)

    def _fill_mask(self, text: str, top: int, allowed: list[int] | None) -> list[list[Filling]]:
        """As :meth:`fill_mask` for one text; among these ids, if they are given."""
        mask = self.tokenizer.piece(self.tokenizer.mask_id)
        encoding = self._encode(text)
        positions = self._mask_positions(text, encoding, mask)
        special = self.tokenizer.special_ids
        probabilities_MV = mask_probabilities(self.loaded, encoding, positions)
        fillings = []
        for position, row in zip(positions, probabilities_MV, strict=True):
            order = np.argsort(-row, kind="stable")
            shown = ~np.isin(order, special) if allowed is None else np.isin(order, allowed)
            ids = order[shown][:top].tolist()
            probabilities = row[ids].tolist()
            at = text.index(mask, encoding.offsets[position][0])
            fillings.append(
                [
                    Filling(self.tokenizer.piece(id), probability, self._fill(text, at, mask, id))
                    for probability, id in zip(probabilities, ids, strict=True)
                ]
            )
        return fillings

    def _target_ids(self, targets: Sequence[str]) -> list[int]:
        """The ids of pieces; an error if one is none of the vocabulary."""
        vocabulary = {self.tokenizer.piece(id): id for id in range(self.tokenizer.vocab_size)}
        if not targets:
            raise InputError("targets is empty; give one or more pieces, or leave it out.")
        if unknown := [n for n, piece in enumerate(targets, start=1) if piece not in vocabulary]:
            raise InputError(
                f"target {unknown[0]} of {len(targets)} is no piece of the vocabulary; give whole "
                "pieces as they stand there."
            )
        return [vocabulary[piece] for piece in targets]

    def _fill(self, text: str, at: int, mask: str, id: int) -> str:
        """The text with the mask at character ``at`` replaced by a token."""
        before, after = text[:at], text[at + len(mask) :]
        if not self.tokenizer.starts_word[id]:
            before = before.rstrip()
        return before + self.tokenizer.text_of(id) + after

    def _mask_positions(self, text: str, encoding: Encoding, mask: str) -> list[int]:
        """The positions of the mask among the tokens; an error if truncation has removed one."""
        mask_id = self.tokenizer.mask_id
        positions = [at for at, token in enumerate(encoding.ids) if token == mask_id]
        total = self.tokenizer.encode(text).ids.count(mask_id)
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
        if NEXT_SENTENCE in self.loaded.refused:
            raise ModelError(self.loaded.refused[NEXT_SENTENCE])
        if NEXT_SENTENCE not in self.loaded.heads:
            family, causal = self.loaded.config.family, self.loaded.config.left_to_right
            raise ModelError(missing_head(family, NEXT_SENTENCE, causal=causal))
        check_texts([a], [b])
        check_segments(self.loaded, pair=True)
        logits_BC = outputs_at(self.loaded, NEXT_SENTENCE, self._encode(a, b), [0])
        return float(softmax(logits_BC, axis=-1)[0, 0])

    def predict(self, a: str | Sequence[str], b: str | Sequence[str] | None = None) -> Prediction:
        """Labels with probabilities, or scores, from the folder's task head.

        Args:
            a: the (first) texts, or one, whose prediction has one row.
            b: the second texts, one for each of ``a``, for a model fine-tuned on pairs.

        Raises:
            ModelError: the model has no task head.
            InputError: pairs for a model of single texts, or vice versa; one text beside a list.
        """
        if isinstance(a, str) and isinstance(b, str | None):
            a, b = [a], None if b is None else [b]
        return predict_texts(self.loaded, a, b)

    def predict_proba(
        self, a: str | Sequence[str], b: str | Sequence[str] | None = None
    ) -> NDArray[np.float64]:
        """The probability of each label, float64 [texts, labels], in the order of
        :attr:`classes_`.

        Raises:
            ModelError: the model has no task head, or predicts scores.
            InputError: as :meth:`predict`.
        """
        prediction = self.predict(a, b)
        if not prediction.labels and len(prediction):
            raise ModelError(
                "this model predicts scores, which have no probabilities; use predict."
            )
        return prediction.values

    @property
    def classes_(self) -> list[str]:
        """The labels that the model was fine-tuned on; empty if it has none."""
        return [str(label) for label in self.loaded.about.get("labels", ())]

    def evaluate(
        self,
        data: Any,
        *,
        text: str | None = None,
        label: str | None = None,
        task: str | None = None,
    ) -> Evaluation | str:
        """Measure the model on labelled examples; or, if it was only pre-trained, on a corpus.

        Args:
            data: a labelled file in the task's format; a data frame, list of dictionaries, tuple
                (texts, labels) ... with the columns of fine-tuning; a corpus folder.
            text, label: the columns, if they are others than in fine-tuning.
            task: a declared task, or a file of one's own, that says how a file is laid out.

        Returns:
            The scores by name; of a corpus, a sentence.

        Raises:
            ModelError: the model has no task head.
            InputError: data that cannot be read as requested.
        """
        if (folder := corpus_folder(data)) is not None:
            from bothways.pretraining.evaluation import evaluate_pretraining  # needs torch

            return evaluate_pretraining(self.loaded, folder)
        options = None if task is None else task_recipe(task).task
        with (
            self.loaded.engine.working(),
            data_file(self.loaded, data, text, label) as (path, columns),
        ):
            found = evaluate_file(self.loaded, path, options=options or columns)
        return Evaluation(found.scores, found.notes, found.collapsed, found.parts)

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

    def rank(
        self, query: str, texts: Sequence[str], *, top: int | None = None, raw: bool = False
    ) -> list[Ranked]:
        """Texts ordered by how well they answer a query, best first, with their scores: those of
        sentence-transformers' CrossEncoder, for a folder of its kind.

        Args:
            query: such as a question.
            texts: the candidates.
            top: maximum number of texts; all if not given.
            raw: give the head's outputs as they are, before the function that the folder names.

        Raises:
            ModelError: the model has no head that gives a pair of texts one score.
            InputError: the model was fine-tuned on single texts, or a single text instead of a
                list.
            ConfigError: ``top`` is no whole number of at least 1.
        """
        if top is not None:
            require_count("top", top)
        check_ranks(self.loaded)
        ranked, _ = rank_texts(self.loaded, query, texts, raw=raw)
        return ranked[:top]

    @overload
    def tag(self, text: str) -> Tagged: ...

    @overload
    def tag(self, text: Sequence[str] | Sequence[Sequence[str]]) -> Tagged | list[Tagged]: ...

    def tag(self, text: str | Sequence[str] | Sequence[Sequence[str]]) -> Tagged | list[Tagged]:
        """Tags and entities of a text, of a sentence given as words, or of several.

        Args:
            text: a text; or several, of which at least one has white space in it; or a sentence's
                words, which have none; or several sentences as lists of words.

        Returns:
            Of several texts or sentences a list, in their order. A text without words has no tags.

        Raises:
            ModelError: the model was not fine-tuned on tagging.
            InputError: what is neither a text nor words.
        """
        if not isinstance(text, str):
            check_listed(text)
            if _are_several(text):
                return tag_texts(self.loaded, text)
        return tag_texts(self.loaded, [cast("str | Sequence[str]", text)])[0]

    @overload
    def answer(  # type: ignore[overload-overlap]
        self, question: str, context: str, *, top: int = 1, answer_length: int | None = None
    ) -> list[Answer]: ...

    @overload
    def answer(
        self,
        question: Sequence[str],
        context: str | Sequence[str],
        *,
        top: int = 1,
        answer_length: int | None = None,
    ) -> list[list[Answer]]: ...

    def answer(
        self,
        question: str | Sequence[str],
        context: str | Sequence[str],
        *,
        top: int = 1,
        answer_length: int | None = None,
    ) -> list[Answer] | list[list[Answer]]:
        """Answers to a question, or to several: spans of a text of any length, with probabilities.

        Args:
            question: the question; 64 tokens of it are read (the task's ``spans_query_length``),
                at most half of a sequence. Or a list of questions.
            context: the text; ``context[answer.start:answer.end] == answer.text``. For several
                questions one text, or one for each.
            top: maximum number of answers.
            answer_length: most tokens of an answer; the task's (``spans_answer_length``) if not
                given.

        Returns:
            The answers, best first; of several questions a list of them for each. An empty text
            means that there is no answer; it is never given by a folder that does not say whether
            questions may have none, such as one of transformers.

        Raises:
            ModelError: the model was not fine-tuned on questions.
            InputError: not one text for each question.
            ConfigError: ``top`` or ``answer_length`` is no whole number of at least 1.
        """
        require_count("top", top)
        if answer_length is not None:
            require_count("answer_length", answer_length)
        if isinstance(question, str):
            if not isinstance(context, str):
                check_listed(context)
                raise InputError(
                    "one question and a list of texts; give a list of questions, one for each."
                )
            return self.answer([question], [context], top=top, answer_length=answer_length)[0]
        check_texts(question)
        contexts = [context] * len(question) if isinstance(context, str) else context
        found = answer_questions(self.loaded, question, contexts, answer_length=answer_length)
        return [answers[:top] for answers in found]

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        prompt: str | None = None,
        max_length: int | None = None,
        layers: int | Sequence[int] = (-1,),
        combine: Combine = "mean",
        long: Long | None = None,
    ) -> NDArray[np.float32]:
        """A vector per text, by default from the last layer.

        Args:
            texts: any texts, or one, which gives one row.
            pooling: mean over all tokens of the text, including special ones, as in
                sentence-transformers; or the vector of [CLS]. By default as a folder of
                sentence-transformers says, otherwise the mean.
            normalize: scale the vectors to unit length. By default as a folder of
                sentence-transformers says, otherwise not.
            prompt: a text to put before each text, or the name of a prompt that the folder has. By
                default as a folder of sentence-transformers says, otherwise none.
            max_length: maximum sequence length in tokens; by default what a folder of
                sentence-transformers cuts texts to, or else the encoder's limit.
            layers: one or several: 0 is the embeddings, 1 the first layer, -1 the last.
            combine: how several layers are combined.
            long: read longer texts in overlapping windows, or truncate them (see
                :meth:`tokens_cut`). By default they are truncated where a folder of
                sentence-transformers truncates them, and else read in windows.

        Returns:
            float32 [texts, H], or with ``concat`` [texts, layers * H].

        Raises:
            ConfigError: the encoder has no such layer; or no ``pooling`` for a folder of
                sentence-transformers that does more than bothways.
            LengthError: ``max_length`` exceeds the encoder's positions, or leaves no room for text.
            InputError: something that is not a text.
        """
        require_choice("pooling", pooling or "mean", get_args(Pooling))
        embeddings = embed_texts(
            self.loaded,
            [texts] if isinstance(texts, str) else texts,
            combine=combine,
            pooling=pooling,
            long=long,
            **_embedding(layers=layers, normalize=normalize, prompt=prompt, max_length=max_length),
        )
        assert embeddings.pooled is not None
        return embeddings.pooled

    def embed_tokens(
        self,
        texts: str | Sequence[str],
        *,
        normalize: bool | None = None,
        max_length: int | None = None,
        layers: int | Sequence[int] = (-1,),
        combine: Combine = "mean",
        long: Long | None = None,
    ) -> list[TokenVectors]:
        """A vector per token of each text, with the token and its position in the text.

        Arguments and errors as for :meth:`embed`.
        """
        embeddings = embed_texts(
            self.loaded,
            [texts] if isinstance(texts, str) else texts,
            combine=combine,
            pooling="tokens",
            long=long,
            **_embedding(layers=layers, normalize=normalize, max_length=max_length),
        )
        return list(embeddings.tokens)

    def inspect(self, a: str, b: str | None = None) -> Inspection:
        """The tokens of a text or pair, the states of every layer and the attention of every head.

        Raises:
            LengthError: the text is longer than a sequence may be.
            ModelError: the encoder takes no pairs; or the folder has only a graph.
            ConfigError: the engine does not give them.
            InputError: something that is not a text.
        """
        return inspect(self.loaded, a, b)

    def attribute(
        self,
        a: str,
        b: str | None = None,
        *,
        target: str | None = None,
        method: Method = OCCLUSION,
        steps: int = 50,
    ) -> Attribution:
        """What each token of a text or pair contributes to a label or number that is predicted for
        it.

        Args:
            a: the text.
            b: the second text of a pair.
            target: the label, or the name of a number. By default the label that is predicted, of
                several the most probable, of numbers the first.
            method: ``occlusion``: how much the output falls when the token is hidden, by any
                engine; ``gradients``: integrated gradients (Sundararajan et al. 2017) along the way
                from hidden tokens to the text's, by torch.
            steps: of integrated gradients; more make their completeness error smaller.

        Raises:
            ModelError: the model has no head for labels or numbers of texts; or ``gradients`` of an
                ensemble.
            ConfigError: ``gradients`` with another engine than torch's, or no such method.
            InputError: no such target, a pair for a model of single texts or the reverse, or a text
                that the model reads in several windows.
        """
        if method not in get_args(Method):
            raise ConfigError(f"method is {method!r}; choose {' or '.join(get_args(Method))}.")
        if method == OCCLUSION:
            return occlusion(self.loaded, a, b, target=target)
        with explain_missing("gradients, which are torch's,"):
            from bothways.model.gradients import integrated_gradients
        return integrated_gradients(self.loaded, a, b, target=target, steps=steps)

    def tokens_cut(self, a: str, b: str | None = None) -> int:
        """The number of tokens of a text or pair that are truncated to fit: of a context and a
        choice, into the length of fine-tuning; else into the encoder's positions."""
        choices = CHOICE in self.loaded.heads
        length = choose_length(self.loaded, None) if choices else self.loaded.config.positions
        return self.tokenizer.encode(a, b, max_length=length).cut

    def _encode(self, a: str, b: str | None = None) -> Encoding:
        return self.tokenizer.encode(a, b, max_length=self.loaded.config.positions)
