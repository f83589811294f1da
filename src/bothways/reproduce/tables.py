"""The tables, declared: rows are changes to a scale's recipes, columns are scores.

Nothing is computed here. A row declares, by dotted name, how its run differs from the scale's
pre-training and fine-tuning recipes; a column declares which score of which task. A row's published
figures are in the order of the columns. :mod:`bothways.reproduce.scales` declares which tasks stand
in for those that a scale lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bothways.config import LAYER_CHOICES, LayerChoice
from bothways.errors import ConfigError, nearest
from bothways.features.train import PAPER

HELDOUT = "heldout"
"""Instead of a task: the language model on held-out text."""

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A score.

    Attributes:
        of: the paper's task, or :data:`HELDOUT`.
        title: as in the paper's table.
        metric: of the task; for held-out text a field of its scores.
        part: the file of the task that is measured.
        layers: use features of these layers instead of fine-tuning.
    """

    of: str
    title: str
    metric: str
    part: Literal["dev", "test"] = "dev"
    layers: LayerChoice | None = None

    @property
    def percent(self) -> bool:
        """Whether the score is a share, shown in percent."""
        return self.metric not in ("perplexity", "bits_per_character")


@dataclass(frozen=True)
class Row:
    """A run, or several that differ only in their seeds.

    Attributes:
        label: a cell for each of the table's headings.
        published: a figure for each column; None where none was published.
        pretrain, finetune, vocabulary: changes to the scale's recipes; all that the label claims,
            the recipe's own values too, because --recipe may have others.
        layers: use features of these layers instead of fine-tuning.
        size: index into the scale's six sizes, which are in the order of the paper's Table 6.
        snapshots: measure snapshots of the run, a row for each, instead of its finished model.
        static: pairs and masks are drawn for as many epochs as the scale sets, then repeated.
        lstm: fine-tune with a BiLSTM on top, as wide in each direction as the encoder.
    """

    label: tuple[str, ...]
    published: tuple[float | None, ...] = ()
    pretrain: Changes = field(default_factory=dict)
    finetune: Changes = field(default_factory=dict)
    vocabulary: Changes = field(default_factory=dict)
    layers: LayerChoice | None = None
    size: int | None = None
    snapshots: bool = False
    static: bool = False
    lstm: bool = False


@dataclass(frozen=True)
class Table:
    """A table of the paper, or a comparison of our own.

    Attributes:
        name: on the command line.
        title: as printed.
        source: where the published figures are from; empty if there are none.
        headings: of the cells that name a row.
        columns: in the paper's order.
        rows: from top to bottom.
        base: index of the row that the others are compared with.
        notes: for the reader, printed below the table.
        learns_vocabulary: its rows start from text, not from a corpus.
        many_seeds: fine-tune with the scale's many seeds, because failed runs are counted.
        curve: drawn as scores against steps.
    """

    name: str
    title: str
    source: str
    headings: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    base: int = 0
    notes: tuple[str, ...] = ()
    learns_vocabulary: bool = False
    many_seeds: bool = False
    curve: bool = False

    @property
    def sizes(self) -> bool:
        """Whether its rows differ in the size of the model."""
        return any(row.size is not None for row in self.rows)


MNLI = Column("mnli", "MNLI-m", "accuracy")
QNLI = Column("qnli", "QNLI", "accuracy")
MRPC = Column("mrpc", "MRPC", "accuracy")
SST2 = Column("sst2", "SST-2", "accuracy")
RTE = Column("rte", "RTE", "accuracy")
SQUAD = Column("squad", "SQuAD", "f1")
NER = Column("conll2003", "NER", "f1")
PERPLEXITY = Column(HELDOUT, "LM perplexity", "perplexity")
LM_ACCURACY = Column(HELDOUT, "LM accuracy", "accuracy")
BITS = Column(HELDOUT, "bits per character", "bits_per_character")

NSP = {"pairs.kind": "next"}
NO_NSP = {"pairs.kind": "full"}
LEFT_TO_RIGHT = {**NO_NSP, "masking.kind": "left_to_right"}
_NO_PAIRS = (
    "Without next-sentence prediction, whole sentences are packed into a sequence across document "
    "borders: steps have slightly more tokens, and the embedding of the second segment is trained "
    "only in fine-tuning."
)
_LEFT = (
    "The left-to-right model stays left to right in fine-tuning, as in the paper. It classifies "
    "a text from the last token, the only one that sees all the others."
)


def _mix(mask: int, same: int, random: int) -> dict[str, Any]:
    return {
        "label": (f"{mask}%", f"{same}%", f"{random}%"),
        "pretrain": {"masking.mask": mask / 100, "masking.random": random / 100},
    }


TABLE5 = Table(
    name="table5",
    title="Pre-training tasks: next-sentence prediction and bidirectionality",
    source="Devlin et al. 2019, Table 5 (BERT-base, dev)",
    headings=("pre-training",),
    columns=(MNLI, QNLI, MRPC, SST2, SQUAD),
    rows=(
        Row(("BERT",), (84.4, 88.4, 86.7, 92.7, 88.5), pretrain=NSP),
        Row(("no NSP",), (83.9, 84.9, 86.5, 92.6, 87.9), pretrain=NO_NSP),
        Row(("LTR & no NSP",), (82.1, 84.3, 77.5, 92.1, 77.8), pretrain=LEFT_TO_RIGHT),
        Row(
            ("LTR & no NSP + BiLSTM",),
            (82.1, 84.1, 75.7, 91.6, 84.9),
            pretrain=LEFT_TO_RIGHT,
            lstm=True,
        ),
    ),
    notes=(_NO_PAIRS, _LEFT),
)

TABLE6 = Table(
    name="table6",
    title="Model size",
    source="Devlin et al. 2019, Table 6 (dev)",
    headings=("layers", "hidden", "heads"),
    columns=(PERPLEXITY, MNLI, MRPC, SST2),
    rows=(
        Row(("3", "768", "12"), (5.84, 77.9, 79.8, 88.4), size=0),
        Row(("6", "768", "3"), (5.24, 80.6, 82.2, 90.7), size=1),
        Row(("6", "768", "12"), (4.68, 81.9, 84.8, 91.3), size=2),
        Row(("12", "768", "12"), (3.99, 84.4, 86.7, 92.9), size=3),
        Row(("12", "1024", "16"), (3.54, 85.7, 86.9, 93.3), size=4),
        Row(("24", "1024", "16"), (3.23, 86.6, 87.8, 93.7), size=5),
    ),
    base=3,
    notes=(
        "Perplexities are comparable only within one vocabulary: compare ours with each other, not "
        "with the published ones.",
    ),
)

_LAYER_LABELS: dict[LayerChoice, str] = {
    "embeddings": "embeddings",
    "second-to-last": "second-to-last hidden",
    "last": "last hidden",
    "sum-last-four": "weighted sum of last four",
    "concat-last-four": "last four concatenated",
    "sum-all": "weighted sum of all layers",
}
TABLE7 = Table(
    name="table7",
    title="Named entities: fine-tuning, or a BiLSTM on features of a frozen encoder",
    source="Devlin et al. 2019, Table 7 (BERT-base, cased, CoNLL-2003)",
    headings=("approach",),
    columns=(
        Column("conll2003", "dev F1", "f1"),
        Column("conll2003", "test F1", "f1", part="test"),
    ),
    rows=(
        Row(("fine-tuned",), (96.4, 92.4)),
        *(
            Row((f"features: {_LAYER_LABELS[name]}",), (PAPER[name], None), layers=name)
            for name in LAYER_CHOICES
        ),
    ),
    notes=(
        "The paper's encoder is cased, and case marks names; an uncased encoder cannot see it.",
    ),
)

TABLE8 = Table(
    name="table8",
    title="Masking: what replaces the tokens to predict",
    source="Devlin et al. 2019, Table 8 (BERT-base, dev)",
    headings=("[MASK]", "same", "random"),
    columns=(
        Column("mnli", "MNLI-m, fine-tuned", "accuracy"),
        Column("conll2003", "NER, fine-tuned", "f1"),
        Column("conll2003", "NER, features", "f1", layers="concat-last-four"),
    ),
    rows=(
        Row(**_mix(80, 10, 10), published=(84.2, 95.4, 94.9)),
        Row(**_mix(100, 0, 0), published=(84.3, 94.9, 94.0)),
        Row(**_mix(80, 0, 20), published=(84.1, 95.2, 94.6)),
        Row(**_mix(80, 20, 0), published=(84.4, 95.2, 94.7)),
        Row(**_mix(0, 20, 80), published=(83.7, 94.8, 94.6)),
        Row(**_mix(0, 0, 100), published=(83.6, 94.9, 94.6)),
    ),
    notes=("Features are the last four layers, concatenated, as in the paper.",),
)

FIGURE5 = Table(
    name="figure5",
    title="Task score against pre-training steps",
    source="Devlin et al. 2019, Figure 5 (C.1), a plot without printed figures",
    headings=("pre-training", "steps"),
    columns=(MNLI,),
    rows=(
        Row(("masked LM", ""), pretrain=NSP, snapshots=True),
        Row(("left to right", ""), pretrain=LEFT_TO_RIGHT, snapshots=True),
    ),
    curve=True,
    notes=(
        "In the paper, the masked LM overtakes the left-to-right model almost at once, and gains "
        "almost 1.0 point on MNLI from 500,000 to 1,000,000 steps.",
        "Each curve comes from snapshots of one run, so the learning rate is still high at the "
        "early ones.",
        "The masked LM is trained with next-sentence prediction and the left-to-right model "
        "without: they are rows 1 and 3 of table5.",
        _LEFT,
    ),
)

VOCABULARY = Table(
    name="vocabulary",
    title="WordPiece learned by likelihood or by frequency",
    source="",
    headings=("merges by",),
    columns=(BITS, MNLI, MRPC, SST2),
    rows=(
        Row(("likelihood",)),  # the default, which --recipe cannot change
        Row(("frequency",), vocabulary={"score": "frequency"}),
    ),
    learns_vocabulary=True,
    notes=(
        "Task scores are comparable between vocabularies; perplexities are not. Bits per character "
        "are the mean loss per masked piece times the held-out text's pieces per character. They "
        "are only roughly comparable: with more pieces per word, a mask hides less text.",
    ),
)

MASKS = Table(
    name="masks",
    title="Dynamic masks, drawn again in every epoch, or static masks, repeated",
    source="Liu et al. 2019 (RoBERTa), Table 1 (BERT-base, dev, median of five)",
    headings=("masks",),
    columns=(LM_ACCURACY, MNLI, SST2),
    rows=(
        Row(("dynamic",), (None, 84.0, 92.9), pretrain={"masking.duplicates": 0}),
        Row(("static",), (None, 84.3, 92.5), static=True),
    ),
    notes=(
        "Published: ten static variants, each seen four times. The rows can differ only if there "
        "are more epochs than variants.",
    ),
)

WHOLE_WORDS = Table(
    name="whole-words",
    title="Masking single pieces or whole words",
    source="README of google-research/bert (BERT-large, uncased)",
    headings=("masked",),
    columns=(MNLI, SQUAD, MRPC, SST2),
    rows=(
        Row(("pieces",), (86.05, 91.0, None, None), pretrain={"masking.kind": "pieces"}),
        Row(("whole words",), (87.07, 92.8, None, None), pretrain={"masking.kind": "words"}),
    ),
)

MASKING_RATE = Table(
    name="masking-rate",
    title="Masking 15 % or 30 % of the tokens",
    source="",
    headings=("masked",),
    columns=(LM_ACCURACY, MNLI, MRPC, SST2),
    rows=(
        Row(("15%",), pretrain={"masking.rate": 0.15}),
        Row(("30%",), pretrain={"masking.rate": 0.30}),
    ),
    notes=("Both rows are measured on held-out text with 15 % masked.",),
)

BIAS_CORRECTION = Table(
    name="bias-correction",
    title="Adam's bias correction in fine-tuning: on or off",
    source="",
    headings=("bias correction",),
    columns=(RTE, MRPC, MNLI),
    rows=(
        Row(("on",), finetune={"optimizer.bias_correction": True}),
        Row(("off, as the original",), finetune={"optimizer.bias_correction": False}),
    ),
    many_seeds=True,
    notes=(
        "The question is how many runs collapse (one answer for everything) or diverge; they are "
        "counted and named. Collapsed runs count in the means.",
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        TABLE5,
        TABLE6,
        TABLE7,
        TABLE8,
        FIGURE5,
        VOCABULARY,
        MASKS,
        WHOLE_WORDS,
        MASKING_RATE,
        BIAS_CORRECTION,
    )
}


def table_of(name: str) -> Table:
    """A table by its name.

    Raises:
        ConfigError: there is no such table; the message suggests the nearest name.
    """
    if name not in TABLES:
        suggestion = nearest(name, list(TABLES))
        hint = f"did you mean {suggestion!r}?" if suggestion else f"there are {', '.join(TABLES)}."
        raise ConfigError(f"there is nothing called {name!r} to reproduce; {hint}")
    return TABLES[name]
