"""The routes: their paths, what they take, and what answers. The application and its description
are both made of these tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bothways.serving import answers, wire
from bothways.serving.served import (
    ANSWERS,
    ATTENTION,
    ATTRIBUTION,
    CHOOSE,
    CLASSES,
    FILL,
    NEXT,
    PLAIN,
    RANK,
    SIMILARITY,
    TAGS,
    VECTORS,
)


@dataclass(frozen=True)
class Ask:
    """What is asked of a model.

    Attributes:
        form: the body of the request.
        answer: called with the model and the body, in a thread.
        task: that the model must do.
        found: what it answers, for the description.
        what: its inputs are called.
    """

    form: type[wire.Form]
    answer: Callable[[Any, Any], Any]
    task: str
    found: Any
    what: str = "inputs"


_VECTOR = list[list[float]]
HOSTED = {
    CLASSES: Ask(wire.Classify, answers.classify, CLASSES, list[list[wire.Label]]),
    TAGS: Ask(wire.TagTexts, answers.tag, TAGS, list[Any]),
    ANSWERS: Ask(
        wire.AskQuestion, answers.answer, ANSWERS, wire.AnswerFound | list[wire.AnswerFound]
    ),
    FILL: Ask(wire.FillMask, answers.fill, FILL, list[Any]),
    VECTORS: Ask(wire.Features, answers.features, VECTORS, _VECTOR),
    SIMILARITY: Ask(wire.Similarity, answers.similarity, SIMILARITY, list[float], "sentences"),
}
"""What Hugging Face's API asks, by the task."""
OF_HOSTED = (
    *("/", "/models/{model}", "/pipeline/{task}", "/pipeline/{task}/{model}"),
    "/models/{model}/pipeline/{task}",
)
"""The paths of Hugging Face's API, whose task is the path's, that of the shape of the inputs, or
what the model does first."""
_RANKING = Ask(wire.RankDocuments, answers.rank_documents, RANK, wire.Ranking, "documents")
ASKS = {
    "/embed": Ask(wire.Embed, answers.embed, VECTORS, _VECTOR),
    "/embed_all": Ask(wire.Embed, answers.embed_all, VECTORS, list[_VECTOR]),
    "/predict": Ask(wire.Predict, answers.predict, CLASSES, list[wire.Label | list[wire.Label]]),
    "/rerank": Ask(wire.Rerank, answers.rerank, RANK, list[wire.RankedText], "texts"),
    "/similarity": HOSTED[SIMILARITY],
    "/tokenize": Ask(wire.Tokenize, answers.tokenize, PLAIN, list[list[wire.Token]]),
    "/decode": Ask(wire.Decode, answers.decode, PLAIN, list[str], "ids"),
    "/choose": Ask(wire.Choices, answers.choose, CHOOSE, wire.Chosen, "choices"),
    "/next-sentence": Ask(wire.Pair, answers.next_sentence, NEXT, wire.Follows),
    "/attention": Ask(wire.Attend, answers.attention, ATTENTION, wire.Attention, "texts"),
    "/attribute": Ask(wire.Attribute, answers.attribute, ATTRIBUTION, wire.Attributed, "texts"),
    "/v1/embeddings": Ask(
        wire.Embeddings, answers.embeddings, VECTORS, wire.EmbeddingList, "input"
    ),
    "/v1/rerank": _RANKING,
    "/v2/rerank": _RANKING,
}
"""The other routes, by their paths at the root."""


@dataclass(frozen=True)
class Look:
    """What is told of the server, to GET and HEAD.

    Attributes:
        summary: what it is.
        found: the same as a type, for the description.
        tell: gives it, for the model of a name, or for the server.
        media: the type of the answer; bytes are sent as they are.
        free: whether it needs no key.
        headers: of the answer.
    """

    summary: str
    found: Any
    tell: Callable[[str | None], Any]
    media: str = "application/json"
    free: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


_BELOW = ("/health", "/ready", "/info", "/v1/models", *ASKS)


def paths_of(path: str) -> tuple[str, ...]:
    """A path at the root, and below ``/models/NAME`` where there is one for each model."""
    return (path, f"/models/{{model}}{path}") if path in _BELOW else (path,)
