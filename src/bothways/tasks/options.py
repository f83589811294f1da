"""How labelled data is read, and what the kinds of tasks need to know beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bothways.config.fields import (
    Options,
    default_of,
    free,
    mapping,
    require,
    require_choice,
)
from bothways.errors import ConfigError
from bothways.io.options import Format

# --------------------------------------------------------------------------------
# Options of extractive question answering (kind spans).


@dataclass(frozen=True)
class SpanOptions(Options):
    """Extractive question answering: the answer is a span of the passage (SQuAD 1.1 and 2.0)."""

    stride: int = 128
    """Passages longer than the maximum length are read in windows, each of which begins so many
    tokens after the one before."""
    query_length: int = 64
    """Maximum question length in tokens, at most half of the sequence; longer questions are
    truncated, and their number is reported."""
    answer_length: int = 30
    """Maximum answer length in tokens."""
    n_best: int = 20
    """Candidate answers kept per question, with probabilities."""
    no_answer: bool | None = None
    """Whether questions may be unanswerable (SQuAD 2.0). Default: whether the training file has
    such questions."""
    tune: bool = True
    """Tune the no-answer threshold on dev for the highest F1."""
    threshold: float = 0.0
    """Predict no answer if its score exceeds the best answer's by more than this. Replaced by the
    tuned value with spans_tune."""
    misaligned: Literal["skip", "search", "error"] = "skip"
    """Training answers that are not at their answer_start: skip them, search for the nearest
    occurrence, or stop with an error. The number skipped or moved is reported."""
    convention: Literal["squad", "korean"] = "squad"
    """How answers are compared. squad: by word, ignoring English articles. korean: by character, as
    KorQuAD does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("stride", "query_length", "answer_length", "n_best"):
            require(f"spans_{name}", getattr(self, name), 1)


# --------------------------------------------------------------------------------
# Options of several labels per text (kind multilabel).


@dataclass(frozen=True)
class MultiLabelOptions(Options):
    """Several labels per text: from which probability on a label is given."""

    tune: Literal["each", "one", "none"] = "each"
    """Tune thresholds on dev: each label's for its highest F1, one for all labels for the highest
    micro F1, or none."""
    threshold: float = 0.5
    """Give a label if its probability is this or more, where no threshold is tuned: with
    multilabel_tune none, and for labels that no example of dev has."""
    thresholds: tuple[float, ...] = ()
    """The thresholds of the labels, in their order. Replaced by those that are tuned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for value in (self.threshold, *self.thresholds):
            if not 0 <= value <= 1:
                raise ConfigError(
                    f"multilabel_threshold: one is {value:g}; it must be between 0 and 1."
                )


# --------------------------------------------------------------------------------
# Options of tagging (kind tagging): the format of CoNLL files, and tag schemes.

Scheme = Literal["iob1", "iob2", "bioes", "none"]


@dataclass(frozen=True)
class TaggingOptions(Options):
    """CoNLL files: one word per line, a blank line after each sentence."""

    word: int = 0
    """Column of the words, counted from 0; negative: from the last column."""
    tag: int = -1
    """Column of the tags, counted as for word."""
    scheme: Literal["auto", "iob1", "iob2", "bioes", "none"] = "auto"
    """Tag scheme of the files; auto: detected per file and reported. none: tags are independent
    labels, as for part-of-speech tagging."""
    learn: Literal["iob2", "bioes"] = "iob2"
    """Tag scheme the model is trained on."""
    write: Literal["iob1", "iob2", "bioes", "none", "train"] = "train"
    """Tag scheme of predictions for files without tags; train: that of the training file."""
    broken: Literal["refuse", "repair"] = "refuse"
    """Tags that violate the scheme: refuse with an error that names the line, or repair them as
    conlleval does and report how many."""
    context: Literal["document", "sentence"] = "document"
    """Context of a sentence: as much of its document (between -DOCSTART- lines) on both sides as
    fits into the length, or the sentence alone."""
    spaces: bool = True
    """Whether words are separated by spaces in running text; false for files with one character per
    line."""
    comment: str = ""
    """Prefix of comment lines, which are skipped. Default: no comments."""


# --------------------------------------------------------------------------------
# The task: files, columns, kind and metrics.


@dataclass(frozen=True)
class Reference:
    """A published result on a task, shown in tables for comparison."""

    model: str = ""
    """Name of the model, such as BERT-base."""
    metric: str = ""
    """Name of the metric, as in metrics."""
    score: float = 0.0
    """The score as published, in percent (0 to 100)."""
    split: str = "test"
    """Split it was measured on: name of a file of the task, without its ending."""
    source: str = ""
    """Publication and table."""


@dataclass(frozen=True)
class WindowOptions(Options):
    """Windows over long texts (classes, labels and scores of texts with long windows)."""

    stride: int | None = None
    """Each window begins so many tokens after the one before. Default: half of the text tokens that
    fit into a window."""
    pooling: Literal["mean", "max", "first"] = "mean"
    """How window outputs (logits or scores) are pooled: their mean, their elementwise maximum, or
    the first window's alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None:
            require("windows_stride", self.stride, 1)


@dataclass(frozen=True)
class GridOptions(Options):
    """The settings worth trying on a task (searched with search_default)."""

    lr: tuple[float, ...] = ()
    """Peak learning rates. Default: not varied."""
    batch_size: tuple[int, ...] = ()
    """Batch sizes. Default: not varied."""
    epochs: tuple[int, ...] = ()
    """Numbers of epochs. Default: not varied."""


@dataclass(frozen=True)
class PublishedOptions(Options):
    """How the published results of a task were obtained, in words; shown in tables beside one's own
    settings."""

    scores: str = ""
    """The files they were measured on."""
    epochs: str = ""
    """Passes over the training data."""
    batch: str = ""
    """Batch size."""
    lr: str = ""
    """Peak learning rate."""
    length: str = ""
    """Maximum sequence length in tokens."""


# --------------------------------------------------------------------------------
# The kinds of tasks.


@dataclass(frozen=True)
class Usage:
    """How a single example is predicted with a model of a kind.

    Attributes:
        arguments: of `bothways predict`, behind the model.
        call: in Python, of a ``model``.
        pair_arguments, pair_call: the same for pairs of texts.
    """

    arguments: tuple[str, ...]
    call: str
    pair_arguments: tuple[str, ...] = ()
    pair_call: str = ""


@dataclass(frozen=True)
class KindTraits:
    """What the rest of the program knows of a kind of task.

    Attributes:
        task: ``module:class`` of its :class:`~bothways.tasks.task.Task`.
        usage: how a single example is predicted.
        pipeline: its name in transformers' pipelines and on the Hugging Face Hub.
        auto_class: the end of the name of transformers' automatic class for its models.
        also: what else it is called elsewhere.
        own: the option of a task that only this kind has; empty without one.
        has_columns: its files are tables whose columns the options name.
        of_texts: its head reads whole texts, which may be read in windows.
        has_labels: they have labels, not scores.
        several: an example may have several labels or scores.
        per_word: it predicts something for each word.
        length: usual maximum sequence length in tokens.
    """

    task: str
    usage: Usage
    pipeline: str = "text-classification"
    auto_class: str = "SequenceClassification"
    also: tuple[str, ...] = ()
    own: str = ""
    has_columns: bool = True
    of_texts: bool = False
    has_labels: bool = False
    several: bool = False
    per_word: bool = False
    length: int = 128

    @property
    def problem_type(self) -> str:
        """What transformers calls it in config.json, of a head on whole texts."""
        labels = "multi_label" if self.several else "single_label"
        return f"{labels}_classification" if self.has_labels else "regression"

    @property
    def one_score(self) -> bool:
        """Whether a text has one score."""
        return self.of_texts and not (self.has_labels or self.several)


def _of_texts(result: str) -> Usage:
    return Usage(
        ("a text",),
        f'model.predict(["a text", "another"]).{result}',
        pair_arguments=("a text", "--text-b", "its second text"),
        pair_call=f'model.predict(["a text"], ["its partner"]).{result}',
    )


TRAITS: dict[str, KindTraits] = {
    "classification": KindTraits(
        *("bothways.tasks.texts:LabelTask", _of_texts("labels")),
        of_texts=True,
        has_labels=True,
    ),
    "regression": KindTraits("bothways.tasks.texts:ScoreTask", _of_texts("values"), of_texts=True),
    "multilabel": KindTraits(
        *("bothways.tasks.texts:LabelTask", _of_texts("labels")),
        also=("multi-label",),
        own="multilabel",
        of_texts=True,
        has_labels=True,
        several=True,
    ),
    "multiregression": KindTraits(
        *("bothways.tasks.texts:ScoreTask", _of_texts("values")), of_texts=True, several=True
    ),
    "choice": KindTraits(
        "bothways.tasks.choice:ChoiceTask",
        Usage(
            ("--context", "a text", "--choices", "one end", "another end"),
            'model.choose("a beginning", ["one end", "another"])',
        ),
        *("multiple-choice", "MultipleChoice"),
        own="choices",
    ),
    "tagging": KindTraits(
        "bothways.tasks.tagging:TaggingTask",
        Usage(("a text",), 'model.tag("a text").entities'),
        *("token-classification", "TokenClassification", ("ner", "pos"), "tagging"),
        has_columns=False,
        per_word=True,
    ),
    "spans": KindTraits(
        "bothways.tasks.spans:SpanTask",
        Usage(
            ("--question", "a question?", "--context", "a text"),
            'model.answer("a question?", "a text that answers it")',
        ),
        *("question-answering", "QuestionAnswering", ("qa",), "spans"),
        has_columns=False,
        length=384,
    ),
}
"""The kinds of tasks by name. To add one: a file with its class, and an entry here."""
KIND_NAMES = {
    other: name
    for name, traits in reversed(TRAITS.items())  # of several, the first has the pipeline's name
    for other in (traits.pipeline, *traits.also)
}
"""What the kinds are called elsewhere."""
TEXT_KINDS = tuple(name for name, traits in TRAITS.items() if traits.of_texts)
"""The kinds whose head reads whole texts, which may be read in windows."""
OPTIONS_OF_KINDS = {name: traits.own for name, traits in TRAITS.items() if traits.own}
"""The option of a task that only one kind has."""
COLUMN_OPTIONS = (
    *("text", "label", "header", "columns", "broken"),
    *("delimiter", "sheet", "quoting"),
)
"""The options of a task whose files have no columns."""
SEVERAL_OPTIONS = ("label_columns", "label_separator")
"""The options of a task with several labels or scores per text."""
ONLY_OF = ("group", "names", "tune", "threshold", "reads")
"""Options that only some kinds have, and that were not in version 0.1."""


def traits_of(kind: object) -> KindTraits:
    """What is known of a kind by its name, such as that of a folder; of none, as of classes."""
    return TRAITS.get(str(kind), TRAITS["classification"])


def share(value: str | None) -> float | None:
    """The share of the training examples that the name of a file stands for; None if it names a
    file."""
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 < number < 1 and not Path(value or "").exists() else None


@dataclass(frozen=True)
class TaskOptions(Options):
    """A task: its data files, their columns, and what to predict."""

    name: str = "task"
    """Name of the task in reports."""
    train: str = free("")
    """Training file: a table (.tsv, .csv, .jsonl, .json, .parquet, .xlsx); for kind tagging (ner)
    CoNLL columns, or what an annotator exports; for kind spans (qa) SQuAD's .json."""
    dev: str = free("")
    """Development file, to measure on and choose settings by, or a share of the training examples
    to hold out for that, such as 0.1. A share has the same mix of labels; equal texts stay
    together."""
    test: str | None = free(None)
    """Test file to predict, which needs no labels, or a share of the training examples, which is
    held out and measured at the end."""
    group: str | None = None
    """Column of the training file whose equal values stay together where examples are held out,
    such as a customer's number. Default: equal texts do."""
    measure: tuple[str, ...] = free(())
    """Further labelled files to evaluate on at the end, such as MNLI mismatched or a labelled test
    file; never used for selection."""
    predict: tuple[str, ...] = free(())
    """Further files to predict at the end, which need no labels."""
    optional: tuple[str, ...] = free(())
    """Files to predict if they exist, such as GLUE's diagnostic set."""
    text: str = "text"
    """Column of the (first) text. In a file without a header: the column's number, from 0. If a
    file has no column text: sentence."""
    text_b: str | None = None
    """Column of the second text of pairs; for kind choice, a text that every choice begins with."""
    label: str = "label"
    """Column of the label; of the score for regression; of the correct choice for kind choice."""
    label_columns: tuple[str, ...] = ()
    """A column for each label (1, true or yes, or 0, false or no) or score, for kinds multilabel
    and multiregression, instead of one column (--label) with all of them."""
    label_separator: str = ""
    """What separates several labels or scores in one column, such as | or a comma. Default: they
    are JSON lists."""
    choices: tuple[str, ...] = ()
    """Columns of the choices (kind choice), or one column with a JSON list of them."""
    kind: str = "classification"
    """What to predict. classification: one label for a text or a pair of texts. regression: a
    score. multilabel: any number of labels. multiregression: several scores. choice: which of
    several texts continues the first. tagging (ner, pos): a label for each word. spans (qa): the
    part of a passage that answers a question."""
    labels: tuple[str, ...] = ()
    """The labels, in order. Default: those of the training file, sorted. With --label-columns:
    names for these columns, in their order. For kind choice: how the label column names the
    choices, if not 0, 1, 2 ..."""
    names: tuple[str, ...] = ()
    """Names for labels, as LABEL=NAME: 0=fine 1=complaint. They replace the labels that are read,
    and give their order unless --labels does."""
    metrics: tuple[str, ...] = ()
    """Metrics, the first being the main one: accuracy, f1, precision, recall (of two classes those
    of the second, of more the mean over all), f1_macro, f1_micro, f1_weighted, balanced_accuracy,
    matthews, roc_auc, average_precision; for scores pearson, spearman, r2, mse, mae (of several the
    means); for several labels f1_micro, f1_macro, f1_weighted, precision_micro, recall_micro,
    ap_micro and ap_macro (average precision), roc_auc, subset_accuracy, hamming_loss; for tagging
    accuracy, precision, recall, f1, f1_macro (the mean over entity types); for spans f1,
    exact_match, no_answer_precision, no_answer_recall. Default: depends on the kind."""
    threshold: float | None = None
    """Of two classes: predict the second if its probability is this or more. Default: if it is the
    more probable one."""
    tune: bool = False
    """Of two classes: tune the threshold on dev for the highest main metric (F1 if no
    threshold changes that, as with roc_auc). Kinds multilabel and spans have their own:
    multilabel_tune, spans_tune."""
    reads: Literal["first", "tokens"] = "first"
    """Which tokens the head of a class, labels or scores reads. first: [CLS], or what stands for
    the text in the encoder's family. tokens: all, whose outputs are averaged, as with --freeze."""
    long: Literal["cut", "windows"] = "cut"
    """Texts longer than the maximum length: truncate them, or read them in windows, each a training
    example of its own (not for tags and answers). The number of long texts is reported."""
    windows: WindowOptions = field(default_factory=WindowOptions)
    """Windows over long texts."""
    header: bool = True
    """Whether TSV and CSV files start with a line of column names."""
    columns: tuple[str, ...] = ()
    """Column names of TSV files without a header. A file whose first line holds the names that are
    needed is still read as having one (such as CoLA's test file)."""
    broken: Literal["error", "skip"] = "error"
    """Labelled lines that cannot be read (too few columns, no label): stop with an error, or skip
    and count them."""
    encoding: str = free("")
    """Encoding of text files, such as cp949. Default: that of the byte order mark, else UTF-8."""
    delimiter: str = free("")
    """Delimiter of the columns of TSV and CSV files, such as ; or |. Default: found by their first
    lines."""
    sheet: str = free("")
    """Sheet of workbooks, by name. Default: the only one with cells."""
    quoting: Literal["auto", "csv", "none"] = free("auto")
    """Quotation marks in TSV and CSV files. csv: they enclose fields. none: they are text. auto: as
    csv in CSV files, found out in TSV files."""
    submission: tuple[str, ...] = free(())
    """File names that an evaluation server expects for the predictions of test, predict and
    optional, in this order; the first is test's and unused without one."""
    reference: tuple[Reference, ...] = free(())
    """Published results, shown in tables for comparison."""
    published: PublishedOptions = mapping(PublishedOptions)
    """The settings of the published results."""
    grid: GridOptions = mapping(GridOptions)
    """The default search space."""
    notes: str = free("")
    """Remarks on the task."""
    tagging: TaggingOptions = field(default_factory=TaggingOptions)
    """CoNLL files (kind tagging)."""
    multilabel: MultiLabelOptions = field(default_factory=MultiLabelOptions)
    """Several labels per text (kind multilabel)."""
    spans: SpanOptions = field(default_factory=SpanOptions)
    """Extractive question answering (kind spans)."""

    def __post_init__(self) -> None:
        for name in ("dev", "test"):
            if isinstance(value := getattr(self, name), float):
                object.__setattr__(self, name, f"{value:g}")
        super().__post_init__()
        object.__setattr__(self, "kind", KIND_NAMES.get(self.kind, self.kind))
        require_choice("kind", self.kind, (*TRAITS, *KIND_NAMES))
        self._refuse_options_of_another_kind()
        if self.submission and self.traits.per_word:
            raise ConfigError(
                f"submission needs one prediction per example; {self.kind} gives many."
            )
        if self.traits.several:
            self._check_several()
        if self.threshold is not None:
            require("threshold", self.threshold, 0, 1)
        _ = self.named  # refuses what is no name

    @property
    def traits(self) -> KindTraits:
        """What is known of the kind."""
        return TRAITS[self.kind]

    @property
    def form(self) -> Format:
        """How the files are written."""
        return Format(
            *(self.encoding, self.delimiter, self.sheet, self.quoting, self.header, self.columns)
        )

    @property
    def named(self) -> dict[str, str]:
        """The name of each label that has one."""
        named: dict[str, str] = {}
        for text in self.names:
            label, equals, name = text.partition("=")
            label, name = label.strip(), name.strip()
            if not (equals and label and name) or label in named:
                raise ConfigError(
                    f"names has {text!r}; write each label once, as LABEL=NAME, such as 0=fine."
                )
            named[label] = name
        return named

    def _check_several(self) -> None:
        columns, separator = self.label_columns, self.label_separator
        if columns and separator:
            raise ConfigError(
                "label_columns and label_separator are given: the labels are in columns "
                "of their own, or in one column. Leave one of them out."
            )
        if columns and self.labels and len(columns) != len(self.labels):
            raise ConfigError(
                f"labels has {len(self.labels)} names for the {len(columns)} columns of "
                "label_columns; name each column, or leave labels out."
            )
        if any(c in separator for c in '\t\r\n"'):
            raise ConfigError(
                f"label_separator is {separator!r}; tabs, line breaks and quotation marks are "
                "part of the files' syntax. Choose another, such as | or a comma."
            )
        counted, names = self.multilabel.thresholds, self.labels or columns
        if counted and names and len(counted) != len(names):
            raise ConfigError(
                f"multilabel_thresholds has {len(counted)} values for {len(names)} labels; "
                "give one for each, or leave it out."
            )

    def _refuse_options_of_another_kind(self) -> None:
        """Nothing that is given is silently ignored."""
        if self.long == "windows" and not self.traits.of_texts:
            raise ConfigError(f"long windows is for {', '.join(TEXT_KINDS)}, not {self.kind}.")
        others = {own: kind for kind, own in OPTIONS_OF_KINDS.items() if kind != self.kind}
        second = () if self.traits.has_columns else ("text_b",)
        for name in (*others, *self.without_effect, *second):
            if getattr(self, name) != default_of(type(self).__dataclass_fields__[name]):
                of = f"is for kind {others[name]} and " if name in others else ""
                windows = name == "windows" and self.traits.of_texts
                raise ConfigError(
                    f"{name} {of}has no effect for kind {self.kind}"
                    f"{windows * ' without long windows'}; leave it out."
                )

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Options that change nothing for this kind of task and its other options."""
        traits = self.traits
        used = {
            COLUMN_OPTIONS: traits.has_columns,
            SEVERAL_OPTIONS: traits.several,
            ("group", "reads"): traits.of_texts,
            ("names",): traits.has_labels,
            ("tune", "threshold"): traits.has_labels and not traits.several,
            ("windows",): self.long == "windows",
        }
        return tuple(name for names, is_used in used.items() if not is_used for name in names)


# --------------------------------------------------------------------------------
# Options of `bothways tasks`.


@dataclass(frozen=True)
class TasksConfig(Options):
    """List the data sets that `bothways finetune` knows by name, or print the declaration of one
    (its files, columns, metrics and settings), to write your own from."""

    name: str | None = None
    """Data set whose declaration to print. Default: list all."""
