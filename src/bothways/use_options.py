"""Options of the verbs that use a model, check a folder, or run the demonstration.

Like those of :mod:`bothways.config`: the field docstrings are the command line's help. None of
them trains on a recipe, so none has fields that must match to continue a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bothways.errors import ConfigError
from bothways.shipped import DEFAULT

DeviceName = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class FillMaskOptions:
    """Predict the pieces at [MASK]."""

    model: str = DEFAULT
    """Model folder with a masked-LM head, or the name of a model that comes with bothways; left
    out, the first word is a text."""
    texts: tuple[str, ...] = ()
    """Texts holding [MASK]; '-' or none: lines of standard input."""
    top: int = 5
    """Pieces shown for each [MASK], likeliest first."""
    device: DeviceName = "auto"
    """What computes; auto takes a GPU where torch sees one."""

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ConfigError(f"top is {self.top}; it must be at least 1.")


@dataclass(frozen=True)
class NextSentenceOptions:
    """How likely a text is to follow another."""

    model: str
    """Model folder with a next-sentence head."""
    text_a: str
    """The first text."""
    text_b: str
    """The text that may follow it."""
    device: DeviceName = "auto"
    """What computes; auto takes a GPU where torch sees one."""


@dataclass(frozen=True)
class ChooseOptions:
    """Which of some texts continues another."""

    model: str
    """Model folder fine-tuned with --task.kind choice."""
    context: str
    """The text that is continued."""
    choices: tuple[str, ...]
    """Two or more texts to choose from."""
    device: DeviceName = "auto"
    """What computes; auto takes a GPU where torch sees one."""


@dataclass(frozen=True)
class PredictOptions:
    """Label texts with a fine-tuned model."""

    model: str
    """Model folder, as `bothways finetune` writes it; a run folder of it stands for the models of
    all its seeds, averaged."""
    texts: tuple[str, ...] = ()
    """Texts to label; '-' or none, without --file: lines of standard input."""
    text_b: str | None = None
    """Second text of the pair, the same for each text."""
    file: str | None = None
    """File to label (.tsv, .csv or .jsonl; CoNLL columns for tags) with the columns the model was
    fine-tuned on; or questions to answer (SQuAD's .json)."""
    out: str | None = None
    """File to write the predictions to (.tsv; CoNLL columns for tags; answers: .json in SQuAD's
    form, with the n-best answers beside it); printed if not given."""
    precision: Literal["auto", "bf16", "fp32"] = "fp32"
    """Arithmetic of the layers for a file; auto takes bf16 where a probe finds it fast."""
    device: DeviceName = "auto"
    """What computes; auto takes a GPU where torch sees one."""
    ensemble: tuple[str, ...] = ()
    """More model or run folders of the same task, named last; their outputs are averaged."""
    task: str | None = None
    """Declared task, or a file of the same form, that says which columns --file has; for folders
    that do not say, such as those of transformers."""
    submission: bool = False
    """Write number and prediction alone, as GLUE's evaluation server reads them."""

    def __post_init__(self) -> None:
        _one_source(self.texts, self.file)
        if self.file is None and (self.task is not None or self.submission):
            raise ConfigError("task and submission go with --file.")
        if self.file is not None and self.text_b is not None:
            raise ConfigError("text_b goes with texts; with --file the second text is a column.")


@dataclass(frozen=True)
class TasksOptions:
    """List the declared tasks, or print one's declaration to copy and change."""

    name: str | None = None
    """Declared task to print."""


@dataclass(frozen=True)
class SplitOptions:
    """Part a labelled file into one to train on and one to measure on.

    By a hash of the text: copies fall on the same side, and neither the order of the lines nor
    other lines change where one goes.
    """

    file: str
    """File to part (.tsv or .txt with columns, .jsonl, .json)."""
    out: str
    """Folder to write train and dev to, with the ending of the file (.jsonl for .json)."""
    share: float = 0.8
    """Share of the examples to train on, about."""
    by: str | None = None
    """Column (or key) whose text decides, so that examples that share it stay together; the whole
    line if not given. In a file without a line of column names: its number, from 0."""
    header: bool = True
    """TSV files start with a line of column names."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(f"share is {self.share:g}; it must be in (0, 1).")


@dataclass(frozen=True)
class AnswerOptions:
    """Answer a question in the words of a text."""

    model: str
    """Model folder that was fine-tuned on questions (task.kind spans)."""
    question: str
    """What is asked."""
    context: str | None = None
    """Text that holds the answer."""
    file: str | None = None
    """Text file that holds the answer, of any length."""
    top: int = 3
    """Answers shown, best first."""
    device: DeviceName = "auto"
    """What computes; auto takes a GPU where torch sees one."""

    def __post_init__(self) -> None:
        if (self.context is None) == (self.file is None):
            raise ConfigError("give the text that holds the answer by --context or by --file.")
        if self.top < 1:
            raise ConfigError(f"top is {self.top}; it must be at least 1.")


@dataclass(frozen=True)
class ScoreOptions:
    """Score a file of answers, of any system: exact match and F1 as SQuAD 1.1, SQuAD 2.0 and
    KorQuAD define them."""

    predictions: str
    """JSON file: an object of question id to answer; an empty answer is none."""
    data: str
    """The questions and their answers (SQuAD's .json)."""
    convention: Literal["squad", "korean"] = "squad"
    """How answers are compared: by words, without English articles, as SQuAD does; or by
    characters, as KorQuAD does."""


@dataclass(frozen=True)
class EmbedOptions:
    """Turn texts into vectors."""

    model: str
    """Model folder."""
    out: str
    """File to write to: .npz (array `embeddings`, float32 [texts, hidden]), .arrow or .jsonl (a row
    for each text)."""
    texts: tuple[str, ...] = ()
    """Texts to embed; '-' or none, without --file: lines of standard input."""
    file: str | None = None
    """Text file, a text a line."""
    pooling: Literal["mean", "cls", "tokens"] = "mean"
    """Vector of a text: the mean over its tokens, or that of [CLS]; or a vector for each token,
    with the token and its characters."""
    layers: tuple[int, ...] = (-1,)
    """Layers: 0 is the embeddings, 1 the first, -1 the last."""
    combine: Literal["mean", "sum", "concat"] = "mean"
    """Several layers: their mean, their sum, or one behind another."""
    normalize: bool = False
    """Scale each vector to length 1."""
    length: int | None = None
    """Longest sequence in tokens; the encoder's limit if not given. (sentence-transformers cuts at
    the max_seq_length of its sentence_bert_config.json.)"""
    long: Literal["windows", "cut"] = "windows"
    """Longer texts are read in windows that overlap, each token in the one that shows the most
    around it, or cut."""
    device: DeviceName = "auto"
    """What computes; auto takes a GPU where torch sees one."""

    def __post_init__(self) -> None:
        _one_source(self.texts, self.file)


@dataclass(frozen=True)
class EvaluateModelOptions:
    """Measure a fine-tuned model on labelled data, or a pre-trained one on a corpus."""

    model: str
    """Model folder, as `bothways finetune` or `bothways pretrain` writes it; a run folder of the
    first stands for the models of all its seeds, averaged."""
    file: str
    """Labelled file (.tsv, .csv or .jsonl, CoNLL for tags) with the columns of fine-tuning;
    questions with answers (SQuAD's .json); or a corpus folder, whose held-out part measures masked
    LM and next sentence."""
    precision: Literal["auto", "bf16", "fp32"] = "fp32"
    """Arithmetic of the layers for a labelled file; auto takes bf16 where a probe finds it fast."""
    device: DeviceName = "auto"
    """What computes; auto takes a GPU where torch sees one."""
    ensemble: tuple[str, ...] = ()
    """More model or run folders of the same task, named last; their outputs are averaged."""
    task: str | None = None
    """Declared task, or a file of the same form, that says which columns and labels the file has;
    for folders that do not say, such as those of transformers."""


@dataclass(frozen=True)
class ConvertOptions:
    """Rewrite a model that bothways can load as a model folder."""

    source: str
    """Folder with config.json and weights (.safetensors or .bin)."""
    out: str
    """Model folder to write."""
    vocab: str | None = None
    """vocab.txt or tokenizer folder, where the source has none."""


@dataclass(frozen=True)
class DoctorOptions:
    """Check a model, run or corpus folder."""

    folder: str
    """The folder."""


@dataclass(frozen=True)
class BenchTrainOptions:
    """Time our pre-training step beside transformers', in the same run.

    Both with the same dropout, exact GELU, AdamW and clipping, on the same batches.
    """

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "mini"
    """Preset of the network."""
    batch: int = 32
    """Sequences of a step."""
    length: int = 128
    """Tokens of a sequence (with --corpus: at most)."""
    vocab_size: int = 30522
    """Pieces of the vocabulary (with --corpus: the corpus's)."""
    attention_dropout: float = 0.1
    """Dropout of attention probabilities, on both sides; elsewhere it is 0.1."""
    corpus: str | None = None
    """Corpus folder: real pairs of unequal lengths, which transformers pads; full sequences of
    random words if not given."""
    contenders: tuple[str, ...] = ("bothways", "transformers fp32", "transformers bf16")
    """What is timed, the one to compare with first. Of: bothways, bothways fp32, bothways plain,
    transformers fp32, transformers bf16, transformers bf16 compile (minutes to compile)."""
    rounds: int = 7
    """Timed steps of each, in turn."""
    memory: bool = False
    """Measure peak memory too (on a GPU that of tensors), each contender in its own process."""
    profile: bool = False
    """Only print where the time of our step goes."""
    device: DeviceName = "auto"
    """What computes; auto takes a GPU where torch sees one."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Arithmetic of our layers; auto takes bf16 where a probe finds it fast."""
    threads: int = 0
    """CPU threads; 0: one per core."""
    out: str | None = None
    """JSON file to write every measured step to."""

    def __post_init__(self) -> None:
        for name in ("batch", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not 8 <= self.length <= 512:
            raise ConfigError(f"length is {self.length}; it must be in [8, 512].")
        if not 0 <= self.attention_dropout < 1:
            raise ConfigError(
                f"attention_dropout is {self.attention_dropout:g}; it must be in [0, 1)."
            )
        if self.vocab_size < 64:
            raise ConfigError(f"vocab_size is {self.vocab_size}; it must be at least 64.")
        if not self.contenders:
            raise ConfigError("contenders is empty; name at least one.")


@dataclass(frozen=True)
class DemoConfig:
    """Raw text to a fine-tuned BERT on this machine, without any download."""

    out: str = "demo-out"
    """Folder for everything the demonstration makes."""
    minutes: float = 7.0
    """Minutes for the whole demonstration; below 5, fine-tuning alone makes it longer than that."""
    seeds: int = 3
    """Fine-tuning runs for each start: pre-trained here, random, and the model that comes along."""
    seed: int = 0
    """Seed of everything drawn."""

    def __post_init__(self) -> None:
        if self.minutes <= 0:
            raise ConfigError(f"minutes is {self.minutes:g}; it must be above 0.")
        if self.seeds < 1:
            raise ConfigError(f"seeds is {self.seeds}; it must be at least 1.")


def _one_source(texts: tuple[str, ...], file: str | None) -> None:
    if texts and file is not None:
        raise ConfigError("give texts or --file, not both.")
