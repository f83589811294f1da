"""The options of the verbs that use a model."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Literal

from bothways.config.fields import Options, default_of, free, require
from bothways.errors import ConfigError
from bothways.io.options import Format
from bothways.shipped import DEFAULT, DEFAULT_MASK
from bothways.training.options import DeviceOptions, PredictPrecision

# --------------------------------------------------------------------------------
# Options of `bothways convert`, `bothways info` and `bothways tokenize`.


@dataclass(frozen=True)
class ConvertConfig(Options):
    """Convert a model, for example one saved by transformers, to a bothways model folder."""

    source: str
    """Folder with config.json and weights (.safetensors or .bin), or the name of such a model on
    the Hugging Face Hub; or a checkpoint of TensorFlow 1 of the original BERT, with
    bert_config.json and vocab.txt: the folder, or FOLDER/bert_model.ckpt."""
    out: str
    """Model folder to write."""
    tokenizer: str | None = None
    """vocab.txt or tokenizer folder, if the source has none."""
    heads: tuple[str, ...] = ("all",)
    """Heads to keep: all; none, for a folder of the encoder alone, which makes vectors; or their
    names (masked_lm, next_sentence, classifier, tagger, span, choice). transformers lists heads
    that the class it opens does not have as UNEXPECTED."""


@dataclass(frozen=True)
class InfoConfig(Options):
    """Say what a folder is (a model, a run, a corpus, a vocabulary, a checkpoint of another
    program), what it holds, which verbs fit it, and what to run next."""

    folder: str
    """Folder, mini-en (bundled), or the name of a model on the Hugging Face Hub."""
    check: bool = False
    """Instead read everything that can be checked, name the damage, and exit with 1 if there is
    any."""


@dataclass(frozen=True)
class TokenizeConfig(Options):
    """Show the pieces that texts are split into, with their ids in the vocabulary and their places
    in the text."""

    model: str
    """Vocabulary: a tokenizer or model folder, a vocab.txt, mini-en (bundled), or the
    name of a model on the Hugging Face Hub."""
    texts: tuple[str, ...] = ()
    """Texts to split; '-' or none: lines of standard input."""


# --------------------------------------------------------------------------------
# Options of the verbs that use a finished model.


@dataclass(frozen=True, kw_only=True)
class EngineChoice(DeviceOptions):
    """What computes a model, and where."""

    engine: str = "auto"
    """Library that computes the model: torch, onnxruntime or openvino. auto takes the first
    that is installed and has the precision. For a few texts on the command line it takes the one
    that starts fastest, on the CPU unless --device is cuda."""
    precision: PredictPrecision = "fp32"
    """Compute precision: fp32, which repeats the scores of a training run; bf16 or int8, where the
    engine has it; or auto, which takes the fastest of fp32 and bf16 by a short benchmark, made once
    per machine."""


@dataclass(frozen=True, kw_only=True)
class FileOptions(Options):
    """How a file to read is written."""

    encoding: str = free("")
    """Encoding of a text file, such as cp949. Default: that of the byte order mark, else UTF-8."""
    delimiter: str = free("")
    """Delimiter of the columns of a TSV or CSV file, such as ; or |. Default: found by its first
    lines."""
    sheet: str = free("")
    """Sheet of a workbook, by name. Default: the only one with cells."""
    quoting: Literal["auto", "csv", "none"] = free("auto")
    """Quotation marks in TSV and CSV files. csv: they enclose fields. none: they are text. auto: as
    csv in CSV files, found out in TSV files."""

    @property
    def written(self) -> dict[str, str]:
        """Those of these options that are given."""
        given = {f.name: getattr(self, f.name) for f in fields(FileOptions)}
        return {name: value for name, value in given.items() if value not in ("", "auto")}

    @property
    def form(self) -> Format:
        """How the file is written."""
        return Format(self.encoding, self.delimiter, self.sheet, self.quoting)


@dataclass(frozen=True, kw_only=True)
class BulkOptions(EngineChoice):
    """How files of any size are read and computed."""

    broken: Literal["stop", "skip"] = "stop"
    """Rows of --file that cannot be read. stop: report the first as an error. skip: leave them out,
    and report how many there were and where; the column index still counts them."""
    workers: int = free(1)
    """Processes that compute a large --file, each with the whole model and its share of the cores;
    -1: one per core."""
    cluster: str | None = free(None)
    """Address of a Dask scheduler (tcp://host:8786) whose workers compute a large --file instead;
    the model's folder must have the same path there. Requires the extra `cluster`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers != -1:
            require("workers", self.workers, 1)


@dataclass(frozen=True, kw_only=True)
class LabellerOptions(EngineChoice, FileOptions):
    """How the verbs compute that read labelled files or files to label."""

    ensemble: tuple[str, ...] = ()
    """Further model or run folders of the same task, whose outputs are averaged with the model's.
    Give this option last."""
    task: str | None = None
    """Data set by name (`bothways tasks` lists them), or a .yaml file like theirs, that names the
    columns and labels of the file, for models that do not record them, such as those of
    transformers."""
    text: str | None = None
    """Column of the file with the texts, of pairs the first. Default: as in fine-tuning."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task is not None and self.text is not None:
            raise ConfigError("task and text both say which columns the file has; give one.")


@dataclass(frozen=True)
class FillMaskConfig(EngineChoice):
    """Predict the words or pieces of words that [MASK] hides."""

    model: str = DEFAULT
    """Model with a masked-LM head: a folder, the run folder of a pre-training, mini-en (bundled),
    or a name on the Hugging Face Hub. May be left out: a first word that contains [MASK] is a
    text."""
    texts: tuple[str, ...] = ()
    """Texts that contain [MASK]; '-' or none: lines of standard input."""
    top: int = 5
    """Predictions shown per [MASK], most likely first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("top", self.top, 1)
        if DEFAULT_MASK in self.model or self.model == "-":  # no model was named: this is a text
            object.__setattr__(self, "texts", (self.model, *self.texts))
            object.__setattr__(self, "model", DEFAULT)


@dataclass(frozen=True)
class NextSentenceConfig(EngineChoice):
    """Predict whether one text follows another."""

    model: str
    """Model with a next-sentence head: a folder, mini-en (bundled), or a name on the Hugging Face
    Hub."""
    text: str
    """The first text."""
    text_b: str
    """The text that may follow it."""


@dataclass(frozen=True)
class RankConfig(EngineChoice):
    """Order texts by how well they answer a query."""

    model: str
    """Model folder that gives a pair of texts one score: fine-tuned on scores of pairs (`bothways
    finetune --kind regression --text-b COLUMN`), or a CrossEncoder of sentence-transformers."""
    query: str
    """The query, such as a question."""
    texts: tuple[str, ...] = ()
    """Texts to order; '-' or none: lines of standard input."""
    top: int | None = None
    """Texts shown, best first. Default: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top is not None:
            require("top", self.top, 1)


@dataclass(frozen=True)
class PredictConfig(LabellerOptions, BulkOptions):
    """What a fine-tuned model says of texts: labels, scores, entities, answers to a question, or
    the likeliest of several choices."""

    listed = MappingProxyType(
        {
            "texts": (
                *("file", "text", "text_b", "question", "context", "choices", "encoding"),
                *("delimiter", "sheet"),
            ),
            "answers": ("top", "out", "keep", "format", "broken"),
            "model": ("task", "ensemble", "engine", "precision", "device", "workers"),
        }
    )

    model: str
    """Model folder, as written by `bothways finetune`; or its run folder, to average its models,
    one per seed (after a search: those of the chosen setting)."""
    texts: tuple[str, ...] = ()
    """Texts to label or tag; '-' or none, without --file: lines of standard input."""
    question: str | None = None
    """Question to answer with a part of --context, or of the text file --file of any length."""
    context: str | None = None
    """Text that answers --question, or that --choices continue."""
    choices: tuple[str, ...] = ()
    """Two or more texts, of which the likeliest to continue --context is predicted."""
    top: int = 3
    """Answers shown for --question, best first."""
    text_b: str | None = None
    """Second text of each pair, the same for all texts; with --file, the column of the second
    texts. Default there: as in fine-tuning."""
    file: str | None = None
    """File to label, with the columns of fine-tuning (.tsv, .txt, .csv, .jsonl, .json, .parquet,
    .xlsx), of any size if each row has a text; for tagging, CoNLL columns, CSV, or what an
    annotator exports; questions to answer (SQuAD's .json or a table of them)."""
    out: str | None = None
    """File to write the predictions to: .tsv, .csv, .jsonl, .json or .parquet; for tagging, CoNLL
    columns, .csv, or .jsonl, .json and .ann for annotators; SQuAD's .json for answers, with the
    n-best answers in X_nbest.json next to X.json (next to X.tsv, the answers are in
    X_predictions.json). Default: print them."""
    keep: tuple[str, ...] = ()
    """Columns of --file to carry over to the predictions as they are, such as an id or the text."""
    format: str | None = None
    """For tagging, the format of --out: conll, csv, doccano, prodigy, label-studio, spacy, words
    or brat. Default: that of --file if the name of --out allows it."""
    submission: bool = False
    """Write only index and prediction, the format of GLUE's evaluation server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("top", self.top, 1)
        if self.question is not None:
            if (self.context is None) == (self.file is None):
                raise ConfigError("give the text that answers the question: context or file.")
            _refuse_without_effect(self, "question", "question", "context", "file", "top")
        elif self.choices:
            if self.context is None:
                raise ConfigError("choices continue a text; give it as context.")
            _refuse_without_effect(self, "choices", "choices", "context")
        elif self.context is not None or self.top != type(self).top:
            raise ConfigError("context and top are for a question, context also for choices.")
        _refuse_texts_and_file(self.texts, self.file)
        if self.file is None and (self.task is not None or self.submission):
            raise ConfigError("task and submission need --file.")
        if self.file is None and self.text is not None:
            raise ConfigError(
                "text is a column of --file; texts stand by themselves after the model."
            )
        if (self.keep or self.format) and (self.file is None or self.out is None):
            raise ConfigError("keep and format need --file and --out.")
        if self.keep and self.submission:
            raise ConfigError("a submission has index and prediction alone; leave out keep.")
        if self.task is not None and self.text_b is not None:
            raise ConfigError("task and text_b both say which columns the file has; give one.")


@dataclass(frozen=True)
class EmbedConfig(BulkOptions, FileOptions):
    """Compute vectors of texts or of their tokens."""

    listed = MappingProxyType(
        {
            "options": (
                *("out", "file", "text", "keep", "pooling", "layers", "normalize", "prompt"),
                *("max_length", "long", "task", "encoding", "engine", "precision", "device"),
                *("workers", "broken"),
            )
        }
    )

    model: str
    """Model folder, a run folder that holds one model, mini-en (bundled), or a name on the Hugging
    Face Hub."""
    out: str
    """File to write: .npz (array `embeddings`, float32 [texts, hidden]), .npy (the array alone), or
    .parquet, .arrow or .jsonl (one row per text). All but .npz may be larger than memory."""
    texts: tuple[str, ...] = ()
    """Texts to embed; '-' or none, without --file: lines of standard input."""
    file: str | None = None
    """Text file with one text per line; a file with columns, of which one is embedded (.tsv, .csv,
    .jsonl, .json, .parquet, .xlsx, or .txt with tabs); or a file of tagged words or of questions,
    as `predict --file` takes."""
    keep: tuple[str, ...] = ()
    """Columns of --file to carry over to the rows of --out as they are, such as an id."""
    text: str | None = None
    """Column of the texts in --file. Default: that of --task, or that of the files the model was
    fine-tuned on, or else text, or sentence."""
    task: str | None = None
    """Data set by name (`bothways tasks` lists them), or a .yaml file like theirs, that says how
    --file is laid out and which column has the texts."""
    pooling: Literal["auto", "mean", "cls", "tokens"] = "auto"
    """Vector of a text: the mean over its tokens, or that of [CLS]. tokens: one vector per token
    instead, with the token and its position in the text. auto: as a folder of sentence-transformers
    says, otherwise the mean."""
    layers: tuple[int, ...] = (-1,)
    """Layers to read: 0 is the embeddings, 1 the first layer, -1 the last."""
    combine: Literal["mean", "sum", "concat"] = "mean"
    """How several layers are combined."""
    normalize: bool | None = None
    """Scale each vector to unit length. Default: as a folder of sentence-transformers says,
    otherwise false."""
    prompt: str | None = None
    """Text to put before each text, or the name of a prompt that the folder has. Default: as a
    folder of sentence-transformers says, otherwise none; '' for none."""
    max_length: int | None = None
    """Maximum sequence length in tokens. Default: that at which a folder of sentence-transformers
    cuts texts (max_seq_length of its sentence_bert_config.json), otherwise the encoder's limit."""
    precision: PredictPrecision = field(default="auto", kw_only=True)
    """Compute precision: fp32; bf16 or int8, where the engine has it; or auto, which takes the
    fastest of fp32 and bf16 by a short benchmark, made once per machine."""
    long: Literal["windows", "cut"] | None = None
    """Longer texts: read them in overlapping windows, taking each token from the window with the
    most context around it, or truncate them. Default: cut where a folder of sentence-transformers
    cuts them, otherwise windows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_texts_and_file(self.texts, self.file)
        if self.file is None and (self.text is not None or self.task is not None or self.keep):
            raise ConfigError("text, task and keep need --file.")


AttributionMethod = Literal["occlusion", "gradients"]


@dataclass(frozen=True)
class InspectConfig(EngineChoice):
    """Look inside a model: the tokens, hidden states and attention of a text, or what each token
    contributes to the prediction."""

    model: str
    """Model folder, mini-en (bundled), or a name on the Hugging Face Hub."""
    text: str
    """The text."""
    text_b: str | None = None
    """Second text, for a pair."""
    attribute: AttributionMethod | None = None
    """What each token contributes to the label or number that is predicted, instead of hidden
    states and attention. occlusion: by hiding each in turn. gradients: integrated gradients,
    with torch."""
    target: str | None = None
    """Label, or name of a number, that --attribute explains. Default: the one predicted."""
    out: str | None = None
    """File to write: .html (a page to look at) or .json (all numbers). Default: print a table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target is not None and self.attribute is None:
            raise ConfigError("target needs --attribute.")
        if self.out is not None and not self.out.endswith((".html", ".json")):
            raise ConfigError(f"out is {self.out!r}; end it in .html or .json.")


@dataclass(frozen=True)
class EvaluateConfig(LabellerOptions):
    """Evaluate a fine-tuned model on labelled data, or a pre-trained one on a corpus."""

    listed = MappingProxyType(
        {
            "options": (
                *("text", "text_b", "label", "labels", "predictions", "convention", "task"),
                *("ensemble", "encoding", "engine", "precision", "device"),
            )
        }
    )

    model: str
    """Model folder, as written by `bothways finetune` or `bothways pretrain`; or a run folder of
    finetune, to average its models, one per seed (after a search: those of the chosen
    setting)."""
    file: str = ""
    """Labelled file with the columns of fine-tuning (.tsv, .txt, .csv, .jsonl, .json, .parquet,
    .xlsx; CoNLL columns for tagging); questions with answers (SQuAD's .json); or a corpus folder,
    whose held-out split measures masked LM and next sentence prediction."""
    text_b: str | None = None
    """Column of the second texts of pairs. Default: as in fine-tuning."""
    label: str | None = None
    """Column of the labels. Default: as in fine-tuning."""
    labels: tuple[str, ...] = ()
    """The file's labels in the order of the model's outputs, if the folder has other names for
    them, such as LABEL_0. Give this option last."""
    predictions: str | None = None
    """Answers to measure in place of a model's, whose place is then left out: a JSON file that maps
    ids of questions to answers; an empty answer means no answer."""
    odds: str | None = None
    """JSON file that maps question ids to the odds or probability of no answer, such as
    answers_null_odds.json: adds the best scores over all thresholds on them and these thresholds
    (SQuAD 2.0's `--na-prob-file`). The other scores are those of the answers as they are given."""
    convention: Literal["squad", "korean"] = "squad"
    """How --predictions are compared. squad: by word, ignoring English articles. korean: by
    character, as KorQuAD does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.predictions is not None and not self.file:
            object.__setattr__(self, "file", self.model)
            object.__setattr__(self, "model", "")
        if not self.file or (self.predictions is None) != bool(self.model):
            raise ConfigError("give a model and a file, or predictions and a file.")
        of_answers = ("predictions", "odds", "convention")
        if self.predictions is not None:
            _refuse_without_effect(self, "predictions", "model", "file", *of_answers)
        elif self.odds is not None or self.convention != type(self).convention:
            raise ConfigError("odds and convention are for predictions; give these.")
        if self.task is not None and (self.text_b or self.label or self.labels):
            raise ConfigError(
                "task and text_b, label or labels both say how the file is laid out; give one."
            )


def _refuse_without_effect(config: Options, given: str, *used: str) -> None:
    """Refuse options that are not among those that are used, and not those of every model."""
    common = ("model", "ensemble", "device", "engine", "precision")
    for item in fields(config):
        is_used = item.name in (*used, *(() if given == "predictions" else common))
        if not is_used and getattr(config, item.name) != default_of(item):
            raise ConfigError(f"{item.name} has no effect with {given}; leave it out.")


def _refuse_texts_and_file(texts: tuple[str, ...], file: str | None) -> None:
    if texts and file is not None:
        raise ConfigError("give texts or --file, not both.")
