"""The routes: their paths, what they take, and what answers. The application and its description
are both made of these tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bothways.serving import answers, wire
from bothways.serving.served import (
    ATTENTION,
    ATTRIBUTION,
    CHOOSE,
    CLASSES,
    NEXT,
    PLAIN,
    RANK,
    SIMILARITY,
    VECTORS,
)


@dataclass(frozen=True)
class Ask:
    """A route that asks a model.

    Attributes:
        path: at the root, for a model that the request does not name.
        form: its body.
        answer: called with the model and the body, in a thread; for :func:`answers.infer` with the
            task, too.
        task: that the model must do; for :func:`answers.infer` none yet.
        found: what it answers, for the description.
        what: its inputs are called.
        also: other paths of it.
    """

    path: str
    form: type[wire.Form]
    answer: Callable[..., Any]
    task: str
    found: Any
    what: str = "inputs"
    also: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """At the root, below ``/models/NAME``, and the others."""
        return self.path, f"/models/{{model}}{self.path.rstrip('/')}", *self.also


_VECTOR = list[list[float]]
_INFERRED = Any
ASKS = (
    Ask("/", wire.Inference, answers.infer, PLAIN, _INFERRED),
    Ask(
        *("/pipeline/{task}", wire.Inference, answers.infer, PLAIN, _INFERRED),
        also=("/pipeline/{task}/{model}",),  # with the model's name at the end
    ),
    Ask("/embed", wire.Embed, answers.embed, VECTORS, _VECTOR),
    Ask("/embed_all", wire.Embed, answers.embed_all, VECTORS, list[_VECTOR]),
    Ask("/predict", wire.Predict, answers.predict, CLASSES, list[wire.Label | list[wire.Label]]),
    Ask("/rerank", wire.Rerank, answers.rerank, RANK, list[wire.RankedText], "texts"),
    Ask("/similarity", wire.Similarity, answers.similarity, SIMILARITY, list[float], "sentences"),
    Ask("/tokenize", wire.Tokenize, answers.tokenize, PLAIN, list[list[wire.Token]]),
    Ask("/decode", wire.Decode, answers.decode, PLAIN, list[str], "ids"),
    Ask("/choose", wire.Choices, answers.choose, CHOOSE, wire.Chosen, "choices"),
    Ask("/next-sentence", wire.Pair, answers.next_sentence, NEXT, wire.Follows),
    Ask("/attention", wire.Attend, answers.attention, ATTENTION, wire.Attention, "texts"),
    Ask("/attribute", wire.Attribute, answers.attribute, ATTRIBUTION, wire.Attributed, "texts"),
    Ask(
        "/v1/embeddings", wire.Embeddings, answers.embeddings, VECTORS, wire.EmbeddingList, "input"
    ),
    Ask(
        *("/v1/rerank", wire.RankDocuments, answers.rank_documents, RANK, wire.Ranking),
        what="documents",
        also=("/v2/rerank", "/models/{model}/v2/rerank"),
    ),
)


@dataclass(frozen=True)
class Look:
    """A route that tells of the server, to GET and HEAD.

    Attributes:
        name: of the function that answers, in :mod:`bothways.serving.app`.
        paths: of the route.
        summary: what it tells.
        found: what it answers, for the description.
        media: the type of the answer.
        free: whether it needs no key.
        or_unready: whether the same answer with 503 says that something is not ready.
    """

    name: str
    paths: tuple[str, ...]
    summary: str
    found: Any
    media: str = "application/json"
    free: bool = False
    or_unready: bool = False


def _both(path: str) -> tuple[str, ...]:
    return path, f"/models/{{model}}{path}"


LOOKS = (
    Look(
        *("start", ("/",), "A page with a form for each task of each model.", str, "text/html"),
        free=True,
    ),
    Look("health", _both("/health"), "Whether the server is alive.", wire.Health, free=True),
    Look(
        *("ready", _both("/ready"), "Whether the model computes; of all models at the root."),
        *(wire.Health,),
        free=True,
        or_unready=True,
    ),
    Look("info", _both("/info"), "What a model is and takes, the first at the root.", wire.Info),
    Look("all_info", ("/models",), "What all models are and take.", list[wire.Info]),
    Look("models", _both("/v1/models"), "The models, for OpenAI's client.", wire.ModelList),
    Look("model", ("/v1/models/{model}",), "A model, for OpenAI's client.", wire.ModelCard),
    Look("metrics", ("/metrics",), "What the server counts, for Prometheus.", str, "text/plain"),
    Look("openapi", ("/openapi.json",), "This description.", dict[str, Any]),
)
