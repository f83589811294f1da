"""What the tokenizer classes of transformers mean: their files, special pieces and template.

Data only. A folder names its class in tokenizer_config.json or config.json; where it does not, the
files that are there decide, and the model type says whether they can be what they look like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bothways.families import FAMILIES
from bothways.tokenization.pieces import BERT_ROLES
from bothways.tokenization.template import Roles, Special, Template

Reader = Literal["wordpiece", "byte pairs", "unigram", "fairseq"]

_ANGLED = Roles(pad="<pad>", unk="<unk>", cls="<s>", sep="</s>", mask="<mask>")


@dataclass(frozen=True)
class TokenizerClass:
    """A kind of tokenizer.

    Attributes:
        reader: how its files are read.
        files: the vocabulary, if there is no tokenizer.json.
        roles: its special pieces, where a folder does not name them.
        form: its template, from the opening and the closing token.
        mask_takes_space: whether the hidden token includes the space before it.
    """

    reader: Reader
    files: tuple[str, ...]
    roles: Roles
    form: Callable[[Special, Special], Template]
    mask_takes_space: bool = True


WORDPIECE = TokenizerClass(
    "wordpiece", ("vocab.txt",), BERT_ROLES, Template.segmented, mask_takes_space=False
)
BYTE_PAIRS = TokenizerClass("byte pairs", ("vocab.json", "merges.txt"), _ANGLED, Template.doubled)
ALBERT = TokenizerClass(
    "unigram",
    ("spiece.model",),
    Roles(pad="<pad>", unk="<unk>", cls="[CLS]", sep="[SEP]", mask="[MASK]"),
    Template.segmented,
)
FAIRSEQ = TokenizerClass("fairseq", ("sentencepiece.bpe.model",), _ANGLED, Template.doubled)

CLASSES = {
    # Those that split text into words as BERT does, and words into WordPieces.
    "BertTokenizer": WORDPIECE,
    "ConvBertTokenizer": WORDPIECE,
    "DistilBertTokenizer": WORDPIECE,
    "ElectraTokenizer": WORDPIECE,
    "MobileBertTokenizer": WORDPIECE,
    "SqueezeBertTokenizer": WORDPIECE,
    "RobertaTokenizer": BYTE_PAIRS,
    "AlbertTokenizer": ALBERT,
    "XLMRobertaTokenizer": FAIRSEQ,
}
"""By name, without ``Fast``."""

NOT_READ = {
    "RoFormerTokenizer": "splits text into words by jieba, which its files do not hold (a "
    "tokenizer.json of it has BERT's words in their place)"
}
"""Classes (without ``Fast``) of which not even a tokenizer.json says how text is split, and why."""

ONE_SEGMENT = ("DistilBertTokenizer",)
"""Classes (without ``Fast``) that do not tell a model which text of a pair a token is of, unless
the settings name that input."""

ANY_CLASS = ("PreTrainedTokenizer", "Tokenizers")
"""Names (without ``Fast`` and ``Backend``) that leave it to the files."""


def usual_name(model_type: str) -> str:
    """The name of the tokenizer class of a family that is computed here, or else empty."""
    family = FAMILIES.get(model_type)
    return "" if family is None else plain_name(family.tokenizer)


BY_FILES = (ALBERT, FAIRSEQ, BYTE_PAIRS, WORDPIECE)
"""In the order in which files are looked for."""


def plain_name(name: str) -> str:
    """The name of a class without the endings that say how it is implemented."""
    return name.removesuffix("Fast").removesuffix("Backend")
