"""The bodies of requests and answers, in three dialects: Hugging Face's inference API,
text-embeddings-inference's, OpenAI's embeddings. Fields that are not listed are refused by name."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

T = TypeVar("T")
Items = list[tuple[str, ...]]
"""Of each input, the texts that are read together."""
Count = Annotated[int, msgspec.Meta(ge=1)]
Right = Literal["right", "Right"]
"""The side at which long texts are cut; the only one."""


class Form(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request."""

    def items(self) -> Items:
        """The inputs.

        Raises:
            msgspec.ValidationError: their types do not fit together.
        """
        raise NotImplementedError


def _singles(texts: str | list[str]) -> Items:
    return [(texts,)] if isinstance(texts, str) else [(text,) for text in texts]


def _rows(given: list[T | list[T]], name: str) -> list[list[T]]:
    """A list of lists; a list of single values is its only row."""
    rows = [one for one in given if isinstance(one, list)]
    singles = [one for one in given if not isinstance(one, list)]
    if rows and singles:
        raise msgspec.ValidationError(f"Expected lists alone, or none - at `$.{name}`")
    return rows or [singles] * bool(singles)


class Texts(Form):
    """One text, or several."""

    inputs: str | list[str]

    def items(self) -> Items:
        """The texts."""
        return _singles(self.inputs)


class TextOrPair(Form):
    """A text, or two that are read together."""

    text: str
    text_pair: str | None = None

    def items(self) -> Items:
        """The text or pair."""
        return [(self.text,) if self.text_pair is None else (self.text, self.text_pair)]


# ------------------------------------------------------------------------------------ Hugging Face

Options = dict[str, bool | str] | None
"""Of a hosted API, such as ``wait_for_model``; without effect."""


class Parameters(msgspec.Struct, forbid_unknown_fields=True):
    """How to answer: nothing to choose."""


class TopParameters(Parameters):
    """How many rows of an answer are given."""

    top_k: Count | None = None


class ClassParameters(TopParameters):
    """How labels are given."""

    function_to_apply: Literal["sigmoid", "softmax", "none"] | None = None


class TagParameters(Parameters):
    """How tokens are joined to entities."""

    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | None = None
    ignore_labels: list[str] | None = None


class AnswerParameters(TopParameters):
    """Which answers are given."""

    max_answer_len: Count | None = None
    handle_impossible_answer: bool | None = None


class FillParameters(TopParameters):
    """Which pieces are given for a mask."""

    targets: list[str] | None = None


class VectorParameters(Parameters):
    """How vectors are made."""

    normalize: bool | None = None
    truncate: bool | None = None


class Classify(Form):
    """Texts or pairs to label."""

    inputs: str | TextOrPair | list[str | TextOrPair]
    parameters: ClassParameters = msgspec.field(default_factory=ClassParameters)
    options: Options = None

    def items(self) -> Items:
        """The texts and pairs."""
        given = self.inputs if isinstance(self.inputs, list) else [self.inputs]
        return [(one,) if isinstance(one, str) else one.items()[0] for one in given]


class TagTexts(Texts):
    """Texts whose entities are asked for."""

    parameters: TagParameters = msgspec.field(default_factory=TagParameters)
    options: Options = None


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """A question, and the text that answers it."""

    question: str
    context: str


class AskQuestion(Form):
    """A question about a text."""

    inputs: Question
    parameters: AnswerParameters = msgspec.field(default_factory=AnswerParameters)
    options: Options = None

    def items(self) -> Items:
        """The question with its context."""
        return [(self.inputs.question, self.inputs.context)]


class FillMask(Texts):
    """Texts with masks."""

    parameters: FillParameters = msgspec.field(default_factory=FillParameters)
    options: Options = None


class Sentences(msgspec.Struct, forbid_unknown_fields=True):
    """A sentence, and others to compare with it."""

    source_sentence: str
    sentences: list[str]


class Similarity(Form):
    """A sentence, and others that it is compared with."""

    inputs: Sentences
    parameters: Parameters = msgspec.field(default_factory=Parameters)
    options: Options = None

    def items(self) -> Items:
        """The sentences."""
        return _singles(self.inputs.sentences)


class Label(msgspec.Struct):
    """A label of a text, or the name of a score."""

    label: str
    score: float


class TaggedEntity(msgspec.Struct):
    """An entity of a text; its score is that of its least probable tag, or with an
    ``aggregation_strategy`` the mean of its words or tokens."""

    entity_group: str
    score: float
    word: str
    start: int
    end: int


class TaggedWord(msgspec.Struct):
    """A token with its tag, for ``aggregation_strategy`` none."""

    entity: str
    score: float
    index: int
    word: str
    start: int
    end: int


class AnswerFound(msgspec.Struct):
    """An answer; empty for "no answer"."""

    answer: str
    score: float
    start: int
    end: int


class Filled(msgspec.Struct):
    """A piece for a mask."""

    score: float
    token: int
    token_str: str
    sequence: str


# ----------------------------------------------------------------------- text-embeddings-inference


class Embed(Texts):
    """Texts to embed. Longer ones are read in windows; ``truncate`` cuts them instead."""

    normalize: bool | None = True
    truncate: bool | None = None
    truncation_direction: Right | None = None
    prompt_name: str | None = None
    dimensions: int | None = None


class Features(Embed):
    """Texts to embed, in Hugging Face's API; by default vectors are scaled as the folder says."""

    normalize: bool | None = None
    encoding_format: Literal["float"] | None = None
    parameters: VectorParameters = msgspec.field(default_factory=VectorParameters)
    options: Options = None


class Predict(Form):
    """Texts to label: one, a pair [first, second], or a list of such, each in a list."""

    inputs: str | list[str | Annotated[list[str], msgspec.Meta(min_length=1, max_length=2)]]
    raw_scores: bool = False
    truncate: bool | None = None
    truncation_direction: Right | None = None

    @property
    def single(self) -> bool:
        """Whether it is one input, whose answer is not in a list."""
        return isinstance(self.inputs, str) or any(isinstance(one, str) for one in self.inputs)

    def items(self) -> Items:
        """The texts and pairs."""
        if isinstance(self.inputs, str):
            return [(self.inputs,)]
        rows = [tuple(row) for row in _rows(self.inputs, "inputs")]
        if any(len(row) > 2 for row in rows):
            raise msgspec.ValidationError("Expected a text, or [first, second] - at `$.inputs`")
        return rows


class Rerank(Form):
    """A query, and texts to order by how well they answer it."""

    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool | None = None
    truncation_direction: Right | None = None

    def items(self) -> Items:
        """The pairs of query and text."""
        return [(self.query, text) for text in self.texts]


class RankedText(msgspec.Struct, omit_defaults=True):
    """A text of the request, with its score."""

    index: int
    score: float
    text: str | None = None


class Tokenize(Texts):
    """Texts to tokenize."""

    add_special_tokens: bool = True


class Token(msgspec.Struct, gc=False):
    """A token; where it lies in the text, in characters, unless it is special."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Decode(Form):
    """Ids to write as text."""

    ids: list[int | list[int]]
    skip_special_tokens: bool = True

    def items(self) -> Items:
        """Nothing that the model reads."""
        return [()] * len(self.rows)

    @property
    def rows(self) -> list[list[int]]:
        """The ids of each text."""
        return _rows(self.ids, "ids")


# ----------------------------------------------------------------------------------------- our own


class Choices(Form):
    """A context, and texts that may continue it."""

    context: str
    choices: list[str]

    def items(self) -> Items:
        """The pairs of context and choice."""
        return [(self.context, choice) for choice in self.choices]


class Chosen(msgspec.Struct):
    """The probability of each choice, in the order of the request."""

    probabilities: list[float]


class Pair(Form):
    """Two texts, of which the second may follow the first."""

    text: str
    text_pair: str

    def items(self) -> Items:
        """The pair."""
        return [(self.text, self.text_pair)]


class Follows(msgspec.Struct):
    """The probability that the second text follows the first."""

    probability: float


# ------------------------------------------------------------------------ OpenAI, Cohere and Jina


class Embeddings(Form):
    """Texts to embed, for OpenAI's client; vectors are scaled to length 1."""

    input: str | list[str]
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None

    def items(self) -> Items:
        """The texts."""
        return _singles(self.input)


class Usage(msgspec.Struct):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """A text to rank."""

    text: str


class RankDocuments(Form):
    """A query, and documents to order by how well they answer it, for clients of Cohere and
    Jina."""

    query: str
    documents: list[str | Document]
    model: str | None = None
    top_n: Count | None = None
    return_documents: bool = False

    def items(self) -> Items:
        """The pairs of query and document."""
        return [(self.query, text) for text in self.texts]

    @property
    def texts(self) -> list[str]:
        """Of the documents."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


class RankedDocument(msgspec.Struct, omit_defaults=True):
    """A document of the request, with its score."""

    index: int
    relevance_score: float
    document: Document | None = None


class Ranking(msgspec.Struct, omit_defaults=True):
    """The documents of a request, the best first, by the model if the request named it."""

    results: list[RankedDocument]
    usage: Usage
    model: str | None = None


class Embedding(msgspec.Struct):
    """A vector: numbers, or base64 of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingList(msgspec.Struct):
    """The vectors of all texts."""

    data: list[Embedding]
    model: str
    usage: Usage
    object: Literal["list"] = "list"


class ModelCard(msgspec.Struct):
    """A model of this server."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "bothways"


class ModelList(msgspec.Struct):
    """The models of this server."""

    data: list[ModelCard]
    object: Literal["list"] = "list"


class Attend(TextOrPair):
    """A text or pair whose attention is asked for, of one layer; the last one by default."""

    layer: int | None = None


class Attribute(TextOrPair):
    """A text or pair of which is asked what each token contributes to a label or number; to the one
    that is predicted by default."""

    target: str | None = None


class ReadToken(Token):
    """A token of a text or pair: of which of the two, 0 or 1, unless it is special."""

    part: int | None


class Attention(msgspec.Struct):
    """The attention of a layer, from 1, of a model with so many layers: for each head, for each
    token, the share of every token in what it reads."""

    layer: int
    layers: int
    tokens: list[ReadToken]
    heads: list[list[list[float]]]


class Attributed(msgspec.Struct):
    """How much each token raises an output, whose ``unit`` is ``log odds`` of a label, or
    ``number``. The output is also given for the text with every token hidden; ``cut`` tokens are
    not read."""

    method: str
    target: str
    unit: str
    output: float
    blank: float
    hidden_by: str
    tokens: list[ReadToken]
    scores: list[float]
    cut: int


class Info(msgspec.Struct, omit_defaults=True):
    """What a model is and takes."""

    model_id: str
    model_pipeline_tag: str
    tasks: list[str]
    model_dtype: str
    engine: str
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int
    max_queued_tokens: int
    version: str
    labels: list[str] = []
    models: list[str] = []
    mask: str | None = None
    no_answer_threshold: float | None = None
    thresholds: list[float] = []
    pair: bool | None = None
    kind: str = ""


class Health(msgspec.Struct):
    """Whether the server is alive, or ready."""

    status: Literal["ok", "not ready"]
