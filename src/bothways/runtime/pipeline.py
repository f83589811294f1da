"""Predictions of a model folder's task head.

N texts, R rows of outputs (one per token that the head reads), C outputs of the head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.config.fields import changed
from bothways.errors import ConfigError, InputError, LengthError, ModelError, NonFiniteError
from bothways.io import html
from bothways.io.annotations.squad import Questions
from bothways.io.terminal import ShowProgress, table_text
from bothways.runtime.batching import Computed, ahead, computed, share_of, text_parts
from bothways.runtime.engine import Engine
from bothways.runtime.ensemble import Ensemble, combine
from bothways.runtime.folder import LoadedModel
from bothways.runtime.sentence_modules import ACTIVATIONS, GIVES_SCORES
from bothways.tasks.choice import ChoiceTask, Probabilities, choice_probabilities, encode_choices
from bothways.tasks.examples import Examples
from bothways.tasks.kinds import other_kind
from bothways.tasks.labels import match_labels
from bothways.tasks.metrics import Measurement
from bothways.tasks.options import TaskOptions
from bothways.tasks.spans import Answer, SpanTask
from bothways.tasks.task import EncodedFile, Outputs, Task
from bothways.tasks.texts import TextTask
from bothways.tasks.windows import Reading
from bothways.tokenization.normalization import check_texts, decomposed_notes
from bothways.tokenization.tokenizer import Tokenizer

# A larger share of [UNK] means that the vocabulary is for another language or script.
_MANY_UNKNOWN = 0.05


@dataclass(frozen=True, repr=False)
class Prediction:
    """Predictions for texts or pairs of texts. ``len`` is the number of texts, ``prediction[i]``
    what is predicted for one.

    Attributes:
        labels: the most probable label of each text, or a list of its labels where it may have
            several; empty for scores.
        values: float64 [N, C]; probabilities in the order of ``names``, or scores.
        names: of the columns of ``values``: the labels, or of the scores ("score" if there is one).
        cut: how many texts lost tokens to the length limit.
        several: how many texts were read in more than one window.
        length: the length limit, in tokens.
        logits: float64 [N, C]; the head's outputs, of which the values are made.
        texts: the (first) texts.
        index: the index of the column of pandas that the texts came as, if they did.
    """

    labels: list[Any]
    values: NDArray[np.float64]
    names: tuple[str, ...]
    cut: int
    several: int
    length: int
    logits: NDArray[np.float64]
    texts: Sequence[str] = field(default=(), compare=False)
    index: Any = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """What is predicted for a text: ``label`` if there are labels, and the values by name."""
        label = {"label": self.labels[number]} if self.labels else {}
        return {**label, **dict(zip(self.names, self.values[number].tolist(), strict=True))}

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The predictions as columns: the texts, the labels if there are any, and the values by
        name."""
        columns: dict[str, list[Any]] = {"text": [*self.texts]} if self.texts else {}
        if self.labels:
            columns["label"] = list(self.labels)
            names = [f"p({name})" for name in self.names]
        else:
            names = list(self.names)
        return {**columns, **dict(zip(names, self.values.T.tolist(), strict=True))}

    def to_frame(self) -> Any:
        """The columns as a data frame of pandas, with the index of the texts if they were a column
        of one; or of polars if only that is installed.

        Raises:
            ConfigError: neither is installed.
        """
        for library in ("pandas", "polars"):
            with contextlib.suppress(ModuleNotFoundError):
                indexed = {} if library == "polars" else {"index": self.index}
                return import_module(library).DataFrame(self.columns, **indexed)
        raise ConfigError(
            "to_frame needs pandas or polars: pip install pandas. Without, `columns` has the same."
        )

    def _cells(self, most: int) -> list[list[str]]:
        columns = self.columns
        rows = zip(*(values[:most] for values in columns.values()), strict=True)
        return [[*columns], *([_shown(value) for value in row] for row in rows)]

    def __repr__(self) -> str:
        header, *rows = self._cells(_ROWS_SHOWN)
        title = f"{len(self):,} predictions"
        more = len(self) - len(rows)
        text = table_text([header, *rows], title, left_columns=1 + bool(self.texts))
        return f"{text}\n... and {more:,} more" if more else text

    def _repr_html_(self) -> str:
        header, *rows = self._cells(_ROWS_SHOWN)
        more = len(self) - len(rows)
        below = [html.paragraph(f"... and {more:,} more")] if more else []
        return html.fragment(f"{len(self):,} predictions", html.table(header, rows), *below)


_ROWS_SHOWN = 10


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return html.shorten(", ".join(value) if isinstance(value, list) else str(value), 80)


def predict_texts(
    loaded: LoadedModel,
    a: Sequence[str],
    b: Sequence[str] | None = None,
    *,
    length: int | None = None,
) -> Prediction:
    """Predict labels with probabilities, or scores, of texts or pairs of texts.

    Args:
        loaded: a model folder with a head for classes, labels or scores of texts.
        a: the (first) texts.
        b: the second texts, for a model fine-tuned on pairs.
        length: longest sequence in tokens. If not given, the length the model was fine-tuned with,
            so that its measured scores apply; the encoder's limit if that is not known.

    Raises:
        ModelError: the model has another head or none, or its output is not finite.
        InputError: something that is not a text, a single text instead of a list, different numbers
            of first and second texts, pairs for a model of single texts or the reverse.
        LengthError: ``length`` is beyond the encoder's positions.
    """
    task = loaded.task
    if not isinstance(task, TextTask):
        raise other_kind(task, "labels or scores of texts")
    check_pairs(loaded, pair=b is not None)
    length = choose_length(loaded, length)
    check_texts(a, b)
    index = getattr(a, "index", None)  # of a column; a list has a method of this name
    index = None if callable(index) else index
    a, b = [*a], None if b is None else [*b]  # slices of a column may go by its index

    def encode(part: slice) -> Examples:
        second = None if b is None else b[part]
        return task.examples(loaded.tokenizer, a[part], second, length=length)

    cut = several = 0
    logits = []
    for examples in ahead(text_parts(a), encode):
        logits.append(task.pooled(examples, outputs_of(loaded, task, examples)))
        cut, several = cut + examples.cut, several + examples.windowed
    logits_NC = np.concatenate(logits).astype(np.float64)
    labels, values, names = task.interpret(logits_NC)
    return Prediction(labels, values, names, cut, several, length, logits_NC, texts=a, index=index)


def predict_choices(
    loaded: LoadedModel,
    contexts: Sequence[str],
    choices: Sequence[Sequence[str]],
) -> tuple[Probabilities, int]:
    """Predict which of several texts continues a context.

    Args:
        loaded: a model folder fine-tuned on choices.
        contexts: the texts that are continued, N.
        choices: two or more for each context, in full, including any beginning that they share.

    Returns:
        The probabilities of each context's choices, and how many examples were cut.

    Raises:
        ModelError: the model has another head or none, or its output is not finite.
        InputError: something that is not a text, a single text instead of a list, or fewer than
            two choices.
    """
    task = loaded.task
    if not isinstance(task, ChoiceTask):
        raise other_kind(task, "a model fine-tuned on choices (--kind choice)")
    check_texts(contexts)
    for number, options in enumerate(choices, start=1):
        check_texts(options)
        if len(options) < 2:
            raise InputError(f"text {number} has fewer than two choices; give two or more.")
    check_segments(loaded, pair=True)
    length = choose_length(loaded, None)
    examples = encode_choices(loaded.tokenizer, contexts, choices, length=length)
    outputs = outputs_of(loaded, task, examples)
    return choice_probabilities(examples, outputs), examples.cut


@dataclass(frozen=True)
class Ranked:
    """A text that was ranked.

    Attributes:
        index: of the text among those given, from 0.
        score: higher is better.
        text: as given.
    """

    index: int
    score: float
    text: str


def rank_texts(
    loaded: LoadedModel,
    query: str,
    texts: Sequence[str],
    *,
    raw: bool = False,
) -> tuple[list[Ranked], Prediction]:
    """Order texts by how well they answer a query, best first, equal ones as they were given.

    Scores of a folder made elsewhere are those of sentence-transformers' CrossEncoder: the output
    after the function that the folder names, or else its sigmoid, for the query after the folder's
    prompt. One that was fine-tuned here on pairs with scores gives the scores that it learned.

    Args:
        loaded: a model folder with a head for texts that has one output.
        query: the first text of each pair.
        texts: the second ones.
        raw: give the head's outputs as they are.

    Returns:
        The texts in order, and what they are made of, which says how many were cut.

    Raises:
        ModelError: the model has another head or none, its output is not finite, or its folder
            does more with texts or outputs than bothways.
        InputError: something that is not a text, or a single text instead of a list.
    """
    check_texts([query])
    check_texts(texts)
    task = loaded.task
    if not isinstance(task, TextTask) or task.outputs != 1:
        outputs = f"{task.options.kind!r} with {loaded.task_outputs} outputs"
        raise ModelError(
            f"ranking needs a model with one score for a pair of texts, such as a CrossEncoder of "
            f"sentence-transformers; this one's task is {outputs}."
        )
    about = loaded.about
    reranker = about.get("reranker", {"activation": "identity"})
    left_out = [m for m in about.get("modules_left_out", []) if m != GIVES_SCORES]
    left_out += about.get("settings_left_out", [])
    if reranker["activation"] not in ACTIVATIONS:
        left_out.append(f"the activation {reranker['activation']}")
    if left_out:
        raise ModelError(
            f"with sentence-transformers this folder also has {' and '.join(left_out)}, which "
            "bothways does not compute: its scores would be others."
        )
    length = None
    if "length" in reranker:
        length = min(reranker["length"], loaded.config.positions)
    queries = [reranker.get("prompt", "") + query] * len(texts)
    found = predict_texts(loaded, queries, texts, length=length)
    scores = found.logits[:, 0]
    if not raw:
        scores = ACTIVATIONS[reranker["activation"]](scores)
    ranked = [Ranked(n, float(score), texts[n]) for n, score in enumerate(scores)]
    return sorted(ranked, key=lambda one: -one.score), found


def answer_questions(
    loaded: LoadedModel,
    questions: Sequence[str],
    passages: Sequence[str],
    *,
    answer_length: int | None = None,
) -> list[list[Answer]]:
    """Find answers to questions in passages of any length, best first, with probabilities.

    If the model was fine-tuned on questions that may have no answer, "no answer" (an empty text) is
    among them; it comes first if and only if it passes the folder's threshold.

    Args:
        loaded: a model folder with a span head.
        questions: the questions.
        passages: the text to search for each; read in windows if it is long.
        answer_length: most tokens of an answer; the task's if not given.

    Raises:
        ModelError: the model has another head or none, or its output is not finite.
        InputError: something that is not a text, or another number of passages.
    """
    task = loaded.task
    if not isinstance(task, SpanTask):
        raise other_kind(task, "a model fine-tuned on questions (--kind qa)")
    check_segments(loaded, pair=True)
    check_texts(questions)
    check_texts(passages)
    if len(passages) != len(questions):
        raise InputError(
            f"{len(questions)} questions and {len(passages)} texts; give one text for each "
            "question, or a single one for all."
        )
    if not questions:
        return []
    if answer_length is not None:
        spans = replace(task.options.spans, answer_length=answer_length)
        task = type(task)(replace(task.options, spans=spans))
    places = {text: n for n, text in enumerate(dict.fromkeys(passages))}
    ids = [str(n + 1) for n in range(len(questions))]
    passage_of = [places[text] for text in passages]
    rows = Questions(Path("question"), [*places], ids, [*questions], passage_of)
    file = task.encode(loaded.tokenizer, rows, length=choose_length(loaded, None))
    predictions = task.decode(file, outputs_of(loaded, task, file.examples))
    return [
        sorted(found.answers, key=lambda answer, final=final: answer.text != final)  # type: ignore[misc]
        for found, final in zip(predictions, task.final_answers(predictions), strict=True)
    ]


def outputs_of(
    loaded: LoadedModel,
    task: Task[Any, Any],
    examples: Examples,
    *,
    progress: ShowProgress | None = None,
) -> Outputs:
    """Outputs of a model folder's task head, or those of an ensemble, averaged.

    Args:
        loaded: by :func:`bothways.runtime.folder.load_model` or
            :func:`bothways.runtime.ensemble.load_ensemble`.
        task: of the folder, or of :func:`task_for_file`; its loss decides what is averaged.
        examples: encoded for that task.
        progress: called with the sequences done and in all, for an ensemble those of all models.

    Returns:
        float32 [R, C], as :func:`predict_outputs`, but columns in the order of the task's labels.

    Raises:
        ModelError: an output is not finite, or a folder of the ensemble cannot be loaded.
    """
    size = 1 + len(loaded.others) if isinstance(loaded, Ensemble) else 1
    members = loaded.models() if isinstance(loaded, Ensemble) else [loaded]
    items = len(examples)
    of_models = [
        predict_outputs(
            model.engine,
            examples,
            head=model.task_head,
            outputs=model.task_outputs,
            positions=model.config.positions,
            progress=share_of(progress, n * items, items, size * items),
        )
        for n, model in enumerate(members)
    ]
    if size > 1:
        of_models = [task.averaged(examples, outputs) for outputs in of_models]
    outputs = of_models[0] if size == 1 else combine(task.loss, of_models, examples)
    labels, own = task.options.labels, loaded.task.options.labels
    if task.loss == "place" or not labels or labels == own:
        return outputs
    by_output, _ = match_labels(own, labels)
    return outputs if by_output == labels else outputs[:, [by_output.index(n) for n in labels]]


def predict_outputs(
    engine: Engine,
    examples: Examples,
    *,
    head: str,
    outputs: int,
    positions: int,
    progress: ShowProgress | None = None,
) -> Outputs:
    """Outputs of a head, dropout off, in the order of the examples.

    Args:
        engine: computes them.
        examples: encoded for it.
        head: which.
        outputs: C, those of the head.
        positions: the longest sequence that the encoder takes, in tokens.
        progress: called with the items done and in all.

    Returns:
        float32 [R, C], before any softmax.

    Raises:
        NonFiniteError: an output is not finite.
    """
    found = np.zeros((len(examples.read_positions), outputs), dtype=np.float32)

    def compute(indices: NDArray[np.int64]) -> Computed[np.float32]:
        batch = examples.batch(indices, max_positions=positions)
        return engine.compute(batch.inputs, {head: batch.read_positions})[head], batch.bounds

    for n, rows in computed(engine, examples.lengths, compute, progress):
        found[examples.output_bounds[n] : examples.output_bounds[n + 1]] = rows
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found).all(-1))[0])
        n = int(examples.owners[np.searchsorted(examples.output_bounds, row, side="right") - 1])
        raise NonFiniteError(
            f"the model's output for example {n + 1} is not finite; its weights are damaged, or "
            "training diverged (lower lr)."
        )
    return found


def encode_file(
    loaded: LoadedModel,
    path: str | Path,
    *,
    labelled: bool,
    options: TaskOptions | None = None,
    length: int | None = None,
) -> tuple[Task[Any, Any], EncodedFile[Any]]:
    """Read and encode a file for a model folder's task.

    Args:
        loaded: a model folder with a task head.
        path: in the task's format.
        labelled: read the labels too.
        options: columns and metrics; those the model was fine-tuned with, if not given.
        length: as for :func:`predict_texts`.

    Raises:
        ModelError: no task head, or the folder does not say which columns it was trained on.
        InputError: the file or a line of it cannot be read as requested.
    """
    task, notes = task_for_file(loaded, options)
    check_pairs(loaded, pair=task.pair)
    rows = task.read(Path(path), task.options, labelled=labelled)
    # A folder may leave things open, such as metrics; they are decided here, as in training.
    task = type(task).define(task.options, rows)
    reading = task.for_measuring()
    file = reading.encode(loaded.tokenizer, rows, length=choose_length(loaded, length))
    read = Reading.of(loaded.tokenizer, file.examples, contents=task.contents(rows))
    unknown = unknown_notes(loaded.tokenizer, read, rows.path)
    return task, replace(file, notes=(*notes, *file.notes, *unknown))


def unknown_notes(tokenizer: Tokenizer, reading: Reading, path: Path) -> tuple[str, ...]:
    """Notes if texts of a file are decomposed and the tokenizer does not compose them, and if much
    of it is [UNK]."""
    notes = decomposed_notes(reading.decomposed, reading.texts, "examples")
    unknown = reading.unknown / max(1, reading.tokens)
    if unknown > _MANY_UNKNOWN:
        notes.append(
            f"{unknown:.0%} of the tokens are {tokenizer.roles.unk}: the model's vocabulary does "
            "not suit this text"
        )
    return tuple(f"{path.name}: {note}" for note in notes)


def named_columns(loaded: LoadedModel, named: Mapping[str, Any]) -> TaskOptions | None:
    """How a file is laid out, of which a user names columns; None if none is named.

    Args:
        loaded: a model folder with a task head.
        named: columns and labels by the task's options; empty ones are not named.

    Raises:
        ConfigError: the task's files have no columns.
        ModelError: no task head.
    """
    given = {option: value for option, value in named.items() if value not in (None, ())}
    if not given:
        return None
    task = loaded.task
    if not isinstance(task, TextTask):
        raise ConfigError(
            f"{' and '.join(given)}: for files with a text in each row; those of kind "
            f"{task.options.kind} say by themselves where their texts are. Leave it out."
        )
    return changed(task.options, given)


def task_for_file(
    loaded: LoadedModel, override: TaskOptions | None
) -> tuple[Task[Any, Any], tuple[str, ...]]:
    """A model folder's task, for files that may be laid out differently from its training file.

    Args:
        loaded: a model folder with a task head.
        override: how the files are laid out, and other metrics; as in training if not given.

    Returns:
        The task, and notes on how labels were matched.

    Raises:
        ModelError: no task head, other labels, or no options in the folder or as ``override``.
    """
    task = loaded.task
    fine_tuned_here = bool(loaded.about.get("options"))
    if override is not None:
        return task.for_file(override, learned=fine_tuned_here)
    if task.traits.has_columns and not fine_tuned_here:
        raise ModelError(
            "the model folder does not say which columns its task has (options in bothways.json, "
            "which `bothways finetune` writes); name them (--text COLUMN, of pairs also --text-b "
            "COLUMN; `evaluate` and `export` take --label COLUMN, too), or the task (--task mrpc, "
            "or a .yaml file)."
        )
    return task.for_own_file(), ()


def evaluate_file(
    loaded: LoadedModel,
    path: str | Path,
    *,
    options: TaskOptions | None = None,
    progress: ShowProgress | None = None,
) -> Measurement:
    """Measure a fine-tuned model on a labelled file.

    Args:
        loaded: a model folder with a task head.
        path: in the task's format.
        options: columns and metrics; those the model was fine-tuned with, if not given.
        progress: as for :func:`outputs_of`.

    Raises:
        ModelError, InputError: see :func:`encode_file`.
    """
    task, file = encode_file(loaded, path, labelled=True, options=options)
    outputs = outputs_of(loaded, task, file.examples, progress=progress)
    measured = task.measure(file, task.decode(file, outputs))
    whose = measured.whose([*measured.scores])
    return replace(measured, notes=(*whose, *measured.notes, *file.notes))


def check_pairs(loaded: LoadedModel, *, pair: bool) -> None:
    """Refuse pairs for a model that was fine-tuned on single texts, and the reverse.

    Raises:
        InputError: the model folder says that it was fine-tuned on the other.
        ModelError: pairs for an encoder with only one segment.
    """
    trained = loaded.about.get("pair")
    if trained is not None and trained != pair:
        raise InputError(
            "this model was fine-tuned on pairs of texts; give the second text of each (text_b)."
            if trained
            else "this model was fine-tuned on single texts; leave the second text (text_b) out."
        )
    check_segments(loaded, pair=pair)


def check_segments(loaded: LoadedModel, *, pair: bool) -> None:
    """Refuse pairs that the tokenizer or the encoder has no form for.

    Raises:
        ModelError: pairs, but the encoder has fewer segments than the tokenizer's pairs.
    """
    needed = loaded.tokenizer.template.pair_segments if pair else 1
    has = loaded.config.segments
    if 0 < has < needed:  # without segment embeddings, nothing reads them
        raise ModelError(
            f"this encoder has {has} segment embedding (type_vocab_size in its "
            f"config.json); pairs of texts need {needed}. Use another encoder, or give single "
            "texts."
        )


def check_length(loaded: LoadedModel, length: int) -> None:
    """Refuse a length beyond the encoder's positions.

    Raises:
        LengthError: the encoder has fewer positions.
    """
    if length > loaded.config.positions:
        raise LengthError(
            f"a length of {length} tokens, but this encoder has positions for "
            f"{loaded.config.positions}. Choose length {loaded.config.positions} or less."
        )


def choose_length(loaded: LoadedModel, length: int | None) -> int:
    """The requested length, or the one of fine-tuning, or the encoder's limit.

    Raises:
        LengthError: beyond the encoder's positions.
    """
    positions = loaded.config.positions
    if length is None:
        return min(int(loaded.about.get("length") or positions), positions)
    check_length(loaded, length)
    return length
