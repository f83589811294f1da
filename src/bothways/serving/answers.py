"""Answers to requests, from a model: each function runs in a thread and returns what is sent."""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.api.model import Model
from bothways.runtime.embeddings import Long, embed_texts, own_length
from bothways.runtime.entities import group_tokens, tag_texts
from bothways.runtime.inspection import TokenRow
from bothways.runtime.pipeline import Prediction, rank_texts
from bothways.serving import wire
from bothways.serving.batching import TICKET
from bothways.serving.refusals import RefusedError
from bothways.serving.served import (
    ANSWERS,
    CHOOSE,
    CLASSES,
    FILL,
    SIMILARITY,
    TAGS,
    VECTORS,
)
from bothways.tasks.schemes import OUTSIDE

_SEVERAL = 5
"""Pieces for a mask, if the request does not say how many."""
_LONGEST = 100_000_000
"""Characters of an answer."""
_PARAMETERS = {
    CLASSES: ("top_k", "function_to_apply"),
    TAGS: ("aggregation_strategy", "ignore_labels"),
    ANSWERS: ("top_k", "max_answer_len", "handle_impossible_answer"),
    FILL: ("top_k", "targets"),
    VECTORS: ("normalize", "truncate"),
}
"""Those of Hugging Face's API that each task takes."""
_OF_VECTORS = (
    *("normalize", "truncate", "truncation_direction"),
    *("prompt_name", "dimensions", "encoding_format"),
)
"""What may stand beside the inputs where vectors are asked for."""


def invalid(message: str) -> RefusedError:
    """The answer to a request that asks for what is not done."""
    return RefusedError("invalid", message)


def _check_size(characters: int, what: str) -> None:
    """Refuse an answer that would take the server's memory."""
    if characters > _LONGEST:
        raise RefusedError(
            "too_large",
            f"the answer would have about {characters} characters; ask for less ({what}).",
            limit=_LONGEST,
            given=characters,
        )


# ------------------------------------------------------------------------------------ Hugging Face


def task_of_inputs(form: wire.Inference) -> str:
    """What a request of Hugging Face's API asks by the shape of its inputs; empty if any task."""
    parts = form.inputs
    if isinstance(parts, wire.Parts):
        if parts.source_sentence is not None:
            return SIMILARITY
        if parts.question is not None:
            return ANSWERS
        if parts.choices is not None:
            return CHOOSE
    return ""


def infer(model: Model, form: wire.Inference, task: str) -> Any:
    """The answer to a request of Hugging Face's API."""
    parts, asked = form.inputs, form.parameters
    _refuse_parameters(asked, task)
    for name in _OF_VECTORS if task != VECTORS else ():
        if getattr(form, name) is not None:
            raise invalid(f"{name} has no effect on {task}; leave it out.")
    for name in ("top_k", "max_answer_len"):
        if (number := getattr(asked, name)) is not None and number < 1:
            raise invalid(f"parameters.{name} must be at least 1.")
    if task == SIMILARITY:
        return similarity(model, wire.Similarity(_parts(parts, "source_sentence", "sentences")))
    if task == ANSWERS:
        return _answers(model, _parts(parts, "question", "context"), asked)
    if task == CHOOSE:
        given = _parts(parts, "context", "choices")
        return choose(model, wire.Choices(given.context or "", given.choices or []))
    single = not isinstance(parts, list)
    if task == CLASSES:
        _refuse_function(model, asked.function_to_apply)
        items = [_pair(one) for one in (parts if isinstance(parts, list) else [parts])]
        return [_labels(row, asked.top_k) for row in _rows(_predict(model, items))]
    texts = _texts(parts)
    if task == TAGS:
        found = _entities(model, texts, asked)
        return found[0] if single else found
    if task == FILL:
        mask, rows = model.tokenizer.roles.mask or "", asked.top_k or _SEVERAL
        rows = min(rows, model.tokenizer.vocab_size)  # each has the text in it
        _check_size(sum(t.count(mask) * rows * (len(t) + 80) for t in texts), "parameters.top_k")
        filled = [_filled(model, text, asked.top_k or _SEVERAL, asked.targets) for text in texts]
        return filled[0] if single else filled
    if task != VECTORS:
        raise invalid(
            f"this route does not do {task}; it has a route of its own; see /openapi.json."
        )
    return embed(
        model,
        wire.Embed(
            texts,
            normalize=bool(_given(form.normalize, asked.normalize)),
            truncate=_given(form.truncate, asked.truncate),
            truncation_direction=form.truncation_direction,
            prompt_name=form.prompt_name,
            dimensions=form.dimensions,
        ),
        own=_given(form.normalize, asked.normalize) is None,
    )


def _refuse_parameters(asked: wire.Parameters, task: str) -> None:
    """Refuse a parameter that a task does not take."""
    for name in asked.__struct_fields__:
        if getattr(asked, name) is not None and name not in _PARAMETERS.get(task, ()):
            raise invalid(f"parameters.{name} is not taken for {task} here; leave it out.")


def _given(*values: bool | None) -> bool | None:
    return next((value for value in values if value is not None), None)


def _parts(given: Any, *names: str) -> wire.Parts:
    """Inputs of several texts, of which these are needed and no others taken."""
    wanted = " and ".join(names)
    if not isinstance(given, wire.Parts):
        raise invalid(f"inputs must be an object with {wanted}.")
    there = {name for name in given.__struct_fields__ if getattr(given, name) is not None}
    if there != set(names):
        raise invalid(f"inputs must have {wanted}, and nothing else.")
    return given


def _texts(given: Any) -> list[str]:
    texts = given if isinstance(given, list) else [given]
    if not all(isinstance(text, str) for text in texts):
        raise invalid("inputs must be a text or a list of texts for this task.")
    return texts


def _pair(given: str | wire.Parts) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    names = ("text", "text_pair") if given.text_pair is not None else ("text",)
    parts = _parts(given, *names)
    return tuple(str(getattr(parts, name)) for name in names)


def _refuse_function(model: Model, function: str | None) -> None:
    """Refuse another function of the outputs than the task's own."""
    own = {"multilabel": "sigmoid", "classification": "softmax"}
    kind = str(model.loaded.about.get("kind", "classification"))
    if function is not None and function != own.get(kind, "none"):
        raise invalid(
            f"parameters.function_to_apply must be {own.get(kind, 'none')} for this model, or be "
            "left out; /predict with raw_scores gives its outputs as they are."
        )


def _predict(model: Model, items: wire.Items) -> Prediction:
    sizes = {len(item) for item in items}
    if len(sizes) > 1:
        raise invalid("inputs has single texts and pairs; send either in one request.")
    a = [item[0] for item in items]
    return model.predict(a, [item[1] for item in items] if sizes == {2} else None)


def _rows(found: Prediction, *, raw: bool = False) -> list[list[wire.Label]]:
    """Of each text, its labels or scores in the order of the outputs."""
    values = found.logits if raw else found.values
    return [
        [wire.Label(name, value) for name, value in zip(found.names, row, strict=True)]
        for row in values.tolist()
    ]


def _labels(row: list[wire.Label], top: int | None) -> list[wire.Label]:
    return sorted(row, key=lambda one: -one.score)[:top]


def _entities(
    model: Model, texts: list[str], asked: wire.Parameters
) -> Sequence[list[wire.TaggedEntity | wire.TaggedWord]]:
    """Of each text, its entities as :meth:`Model.tag` reads them; with ``aggregation_strategy`` as
    transformers does."""
    ignored = [OUTSIDE] if asked.ignore_labels is None else asked.ignore_labels
    how = asked.aggregation_strategy
    if how is None:
        if OUTSIDE not in ignored:
            raise invalid(
                f"parameters.ignore_labels lacks {OUTSIDE}, but what is outside of entities is "
                "given with an aggregation_strategy alone, such as simple."
            )
        return [
            [
                wire.TaggedEntity(e.type, e.probability, e.text, e.start, e.end)
                for e in tagged.entities
                if e.type not in ignored
            ]
            for tagged in tag_texts(model.loaded, texts)
        ]
    return [
        [
            wire.TaggedWord(e.type, e.probability, e.words[0], e.text, e.start, e.end)
            if how == "none"
            else wire.TaggedEntity(e.type, e.probability, e.text, e.start, e.end)
            for e in found
            if e.type not in ignored
        ]
        for found in group_tokens(model.loaded, texts, how)
    ]


def _answers(model: Model, parts: wire.Parts, asked: wire.Parameters) -> Any:
    """The best answers; without "no answer", if that is not wanted and there is another."""
    top = asked.top_k or 1
    spans = model.loaded.task.options.spans
    if asked.handle_impossible_answer and not spans.no_answer:
        raise invalid(
            "parameters.handle_impossible_answer must be false or left out: this model was not "
            "fine-tuned on questions without an answer."
        )
    found = model.answer(
        *(parts.question or "", parts.context or ""),
        top=top + 1,
        answer_length=asked.max_answer_len,
    )
    if asked.handle_impossible_answer is False:
        found = [answer for answer in found if answer.text] or found
    rows = [wire.AnswerFound(a.text, a.probability, a.start, a.end) for a in found[:top]]
    return rows if top > 1 else rows[0]


def _filled(model: Model, text: str, top: int, targets: list[str] | None) -> Any:
    mask, tokenizer = model.tokenizer.roles.mask or "", model.tokenizer
    if mask not in text:
        raise invalid(
            f"an input has no {mask}; write {mask} where a token is to be predicted, or ask the "
            "route /pipeline/feature-extraction for vectors."
        )
    found = [
        [
            wire.Filled(f.probability, id := tokenizer.id(f.piece), tokenizer.text_of(id), f.text)
            for f in fillings
        ]
        for fillings in model.fill_mask(text, top=top, targets=targets)
    ]
    return found[0] if len(found) == 1 else found


# ----------------------------------------------------------------------- text-embeddings-inference


def _refuse_extras(form: Any, prompts: Collection[str] = ()) -> None:
    """Refuse what would change vectors or scores and is not done here; ``prompts`` may be named."""
    direction = getattr(form, "truncation_direction", None)
    if direction is not None and direction.lower() != "right":
        raise invalid("truncation_direction must be right, or be left out.")
    if (name := getattr(form, "prompt_name", None)) is not None and name not in prompts:
        named = f"one of {', '.join(prompts)}, or be left out" if prompts else "left out"
        raise invalid(f"prompt_name must be {named}.")


def embed(model: Model, form: wire.Embed, *, own: bool = False) -> list[list[float]]:
    """A vector per text; ``own``: scaled as the model's folder says."""
    rows: list[list[float]] = _vectors(model, form, None if own else form.normalize).tolist()
    return rows


def _vectors(model: Model, form: wire.Embed, normalize: bool | None) -> NDArray[np.float32]:
    _refuse_extras(form, model.loaded.about.get("prompts", ()))
    texts = [form.inputs] if isinstance(form.inputs, str) else form.inputs
    hidden = model.loaded.config.hidden
    if form.dimensions not in (None, hidden):
        raise invalid(f"dimensions must be {hidden} for this model, or be left out.")
    long: Long | None = "cut" if form.truncate else None
    found = embed_texts(
        model.loaded, texts, normalize=normalize, long=long, prompt=form.prompt_name
    )
    assert found.pooled is not None
    if form.truncate is False and found.cut:
        limit = own_length(model.loaded, tokens=False) or model.loaded.config.positions
        raise _cut_against(limit)
    return found.pooled


def embed_all(model: Model, form: wire.Embed) -> list[list[list[float]]]:
    """A vector per token of each text, without special tokens."""
    _refuse_extras(form)
    texts = [form.inputs] if isinstance(form.inputs, str) else form.inputs
    if ticket := TICKET.get():
        _check_size(ticket.reserved * model.loaded.config.hidden * 20, "inputs")
    how: Long | None = "cut" if form.truncate else None
    found = model.embed_tokens(texts, normalize=form.normalize, long=how)
    return [one.vectors.tolist() for one in found]


def predict(model: Model, form: wire.Predict) -> Any:
    """The labels of one input, or of each; the most probable first."""
    _refuse_extras(form)
    found = _predict(model, form.items())
    _check_truncated(form.truncate, found)
    rows = [_labels(row, None) for row in _rows(found, raw=form.raw_scores)]
    return rows[0] if form.single else rows


def _check_truncated(truncate: bool | None, found: Prediction) -> None:
    """Refuse what was cut against the request, or read whole where it should have been cut."""
    if truncate is False and found.cut:
        raise _cut_against(found.length)
    if truncate and found.several:
        raise invalid(
            f"an input has more than {found.length} tokens, and this model reads such in windows; "
            "leave truncate out, or send less."
        )


def _cut_against(limit: int) -> RefusedError:
    return RefusedError(
        "too_large",
        f"an input has more than {limit} tokens; send truncate: true to have it cut.",
        limit=limit,
    )


def rerank(model: Model, form: wire.Rerank) -> list[wire.RankedText]:
    """The texts, best first."""
    _refuse_extras(form)
    ranked, found = rank_texts(model.loaded, form.query, form.texts, raw=form.raw_scores)
    _check_truncated(form.truncate, found)
    return [wire.RankedText(r.index, r.score, r.text if form.return_text else None) for r in ranked]


def similarity(model: Model, form: wire.Similarity) -> list[float]:
    """The cosine of a sentence with each of the others."""
    _refuse_parameters(form.parameters, SIMILARITY)
    parts = _parts(form.inputs, "source_sentence", "sentences")
    texts = [parts.source_sentence or "", *(parts.sentences or [])]
    source, *others = model.embed(texts, normalize=True).astype(np.float64)
    return [float(np.dot(source, other)) for other in others]


def tokenize(model: Model, form: wire.Tokenize) -> list[list[wire.Token]]:
    """The tokens of each text."""
    _refuse_extras(form)
    tokenizer = model.tokenizer
    found = []
    for (text,) in form.items():
        encoding = tokenizer.encode(text)
        (place,) = encoding.parts
        tokens = encoding.tokens  # made anew each time
        own = range(len(tokens))[place]
        rows = []
        for n in range(len(tokens)) if form.add_special_tokens else own:
            start, stop = encoding.offsets[n] if n in own else (None, None)
            rows.append(wire.Token(encoding.ids[n], tokens[n], n not in own, start, stop))
        found.append(rows)
    return found


def decode(model: Model, form: wire.Decode) -> list[str]:
    """The text of each list of ids."""
    skip = form.skip_special_tokens
    return [model.tokenizer.decode(row, skip_special=skip) for row in form.rows]


# ------------------------------------------------------------------------------- our own, OpenAI's


MOST_TOKENS = 256
"""Of a text whose attention is asked for: the answer has their square for each head."""


def attention(model: Model, form: wire.Attend) -> wire.Attention:
    """The attention of a layer's heads."""
    layers = model.loaded.config.layers
    layer = layers if form.layer is None else form.layer
    if not 1 <= layer <= layers:
        raise invalid(f"layer must be from 1 to {layers}.")
    count = len(model.tokenizer.encode(form.text, form.text_pair))
    if count > MOST_TOKENS:
        raise RefusedError(
            "too_large",
            f"the text has {count} tokens; attention is shown for at most {MOST_TOKENS}.",
            limit=MOST_TOKENS,
            given=count,
        )
    found = model.inspect(form.text, form.text_pair)
    heads = np.round(found.attentions[layer - 1].astype(np.float64), 4).tolist()
    return wire.Attention(layer, layers, _read(found), heads)


def attribute(model: Model, form: wire.Attribute) -> wire.Attributed:
    """What each token contributes."""
    found = model.attribute(form.text, form.text_pair, target=form.target)
    same = ("method", "target", "unit", "output", "blank", "hidden_by", "cut")
    return wire.Attributed(
        **{name: getattr(found, name) for name in same},
        tokens=_read(found),
        scores=found.scores.tolist(),
    )


def _read(found: TokenRow) -> list[wire.ReadToken]:
    """The tokens of a text or pair."""
    ids, parts, places = found.ids.tolist(), found.parts.tolist(), found.offsets.tolist()
    rows = zip(ids, found.tokens, parts, places, strict=True)
    return [
        wire.ReadToken(id, token, special=True, start=None, stop=None, part=None)
        if part < 0
        else wire.ReadToken(id, token, special=False, start=place[0], stop=place[1], part=part)
        for id, token, part, place in rows
    ]


def choose(model: Model, form: wire.Choices) -> wire.Chosen:
    """The probability of each choice."""
    return wire.Chosen(model.choose(form.context, form.choices))


def next_sentence(model: Model, form: wire.Pair) -> wire.Follows:
    """The probability that a text follows another."""
    return wire.Follows(model.next_sentence(form.text, form.text_pair))


def embeddings(model: Model, form: wire.Embeddings) -> wire.EmbeddingList:
    """A vector of length 1 per text."""
    asked = wire.Embed(form.input, dimensions=form.dimensions)
    vectors = _vectors(model, asked, normalize=True)
    if form.encoding_format == "base64":
        rows: list[Any] = [
            base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors
        ]
    else:
        rows = vectors.tolist()
    found = [wire.Embedding(n, row) for n, row in enumerate(rows)]
    return wire.EmbeddingList(found, form.model, _usage())


def rank_documents(model: Model, form: wire.RankDocuments) -> wire.Ranking:
    """The documents, the best first."""
    for name in ("rank_fields", "max_chunks_per_doc", "max_tokens_per_doc"):
        if getattr(form, name) is not None:
            raise invalid(f"{name} is not taken here; leave it out.")
    if form.top_n is not None and form.top_n < 1:
        raise invalid("top_n must be at least 1.")
    ranked, _ = rank_texts(model.loaded, form.query, form.texts)
    found = [
        wire.RankedDocument(
            *(one.index, one.score), wire.Document(one.text) if form.return_documents else None
        )
        for one in ranked[: form.top_n]
    ]
    return wire.Ranking(found, _usage(), form.model)


def _usage() -> wire.Usage:
    ticket = TICKET.get()
    tokens = ticket.tokens if ticket else 0
    return wire.Usage(tokens, tokens)
