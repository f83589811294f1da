"""Answers to requests, from a model: each function runs in a thread and returns what is sent."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.api.model import Model
from bothways.runtime.embeddings import embed_texts
from bothways.runtime.entities import group_tokens, tag_texts
from bothways.runtime.inspection import TokenRow
from bothways.runtime.pipeline import Prediction, rank_texts
from bothways.serving import wire
from bothways.serving.batching import TICKET
from bothways.serving.refusals import RefusedError, invalid, too_large
from bothways.tasks.schemes import OUTSIDE

_SEVERAL = 5
"""Pieces for a mask, if the request does not say how many."""
_MASKS = 64
"""Masks in a request: each has the scores of the whole vocabulary."""
_LONGEST = 100_000_000
"""Characters of an answer."""
MOST_TOKENS = 256
"""Of a text whose attention is asked for: the answer has their square for each head."""
_FUNCTIONS = {"labels": "sigmoid", "class": "softmax"}
"""What makes values of a head's outputs, by the loss of the task."""


def _check_size(characters: int, what: str) -> None:
    """Refuse an answer that would take the server's memory."""
    if characters > _LONGEST:
        message = f"the answer would have about {characters} characters; ask for less ({what})."
        raise too_large(message, _LONGEST, characters)


# ------------------------------------------------------------------------------------ Hugging Face


def classify(model: Model, form: wire.Classify) -> list[list[wire.Label]]:
    """The labels of each input, the most probable first."""
    own = _FUNCTIONS.get(model.loaded.task.loss, "none")
    if form.parameters.function_to_apply not in (None, own):
        raise invalid(f"parameters.function_to_apply must be {own} for this model, or left out.")
    rows = _rows(_predict(model, form.items()))
    return [_labels(row, form.parameters.top_k) for row in rows]


def tag(model: Model, form: wire.TagTexts) -> Any:
    """The entities of each text as :meth:`Model.tag` reads them; with ``aggregation_strategy`` as
    transformers does."""
    texts, how = [text for (text,) in form.items()], form.parameters.aggregation_strategy
    ignored = form.parameters.ignore_labels
    ignored = [OUTSIDE] if ignored is None else ignored
    if how is None and OUTSIDE not in ignored:
        raise invalid(f"ignore_labels without {OUTSIDE} needs an aggregation_strategy.")
    found: list[Any] = (
        [tagged.entities for tagged in tag_texts(model.loaded, texts)]
        if how is None
        else group_tokens(model.loaded, texts, how)
    )
    rows = [
        [
            wire.TaggedWord(e.type, e.probability, e.words[0], e.text, e.start, e.end)
            if how == "none"
            else wire.TaggedEntity(e.type, e.probability, e.text, e.start, e.end)
            for e in entities
            if e.type not in ignored
        ]
        for entities in found
    ]
    return rows[0] if isinstance(form.inputs, str) else rows


def answer(model: Model, form: wire.AskQuestion) -> Any:
    """The best answers; without "no answer", if that is not wanted and there is another."""
    asked, top = form.parameters, form.parameters.top_k or 1
    if asked.handle_impossible_answer and not model.loaded.task.options.spans.no_answer:
        raise invalid("handle_impossible_answer: this model always gives an answer; leave it out.")
    found = model.answer(
        *(form.inputs.question, form.inputs.context),
        top=top + 1,
        answer_length=asked.max_answer_len,
    )
    if asked.handle_impossible_answer is False:
        found = [one for one in found if one.text] or found
    rows = [wire.AnswerFound(a.text, a.probability, a.start, a.end) for a in found[:top]]
    return rows if top > 1 else rows[0]


def fill(model: Model, form: wire.FillMask) -> Any:
    """The most probable pieces for each mask of each text."""
    tokenizer, top = model.tokenizer, form.parameters.top_k or _SEVERAL
    mask, texts = tokenizer.roles.mask or "", [text for (text,) in form.items()]
    counts = [text.count(mask) for text in texts]
    if not all(counts):
        raise invalid(f"an input has no {mask}; write {mask} where a token is to be predicted.")
    if sum(counts) > _MASKS:
        raise too_large(f"{sum(counts)} masks; send at most {_MASKS}.", _MASKS, sum(counts))
    rows = min(top, tokenizer.vocab_size)  # each has the text in it
    sizes = [count * rows * (len(t) + 80) for count, t in zip(counts, texts, strict=True)]
    _check_size(sum(sizes), "parameters.top_k")

    def filled(text: str) -> Any:
        masks = [
            [
                wire.Filled(f.probability, i := tokenizer.id(f.piece), tokenizer.text_of(i), f.text)
                for f in fillings
            ]
            for fillings in model.fill_mask(text, top=top, targets=form.parameters.targets)
        ]
        return masks[0] if len(masks) == 1 else masks

    found = [filled(text) for text in texts]
    return found[0] if isinstance(form.inputs, str) else found


def features(model: Model, form: wire.Features) -> list[list[float]]:
    """A vector per text."""
    if form.normalize is None:
        form.normalize = form.parameters.normalize
    if form.truncate is None:
        form.truncate = form.parameters.truncate
    return embed(model, form)


def similarity(model: Model, form: wire.Similarity) -> list[float]:
    """The cosine of a sentence with each of the others."""
    texts = [form.inputs.source_sentence, *form.inputs.sentences]
    source, *others = model.embed(texts, normalize=True).astype(np.float64)
    return [float(np.dot(source, other)) for other in others]


# ----------------------------------------------------------------------- text-embeddings-inference


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


def embed(model: Model, form: wire.Embed) -> list[list[float]]:
    """A vector per text."""
    rows: list[list[float]] = _vectors(model, form).tolist()
    return rows


def _vectors(model: Model, form: wire.Embed) -> NDArray[np.float32]:
    loaded, prompts = model.loaded, model.loaded.about.get("prompts", {})
    if form.prompt_name not in (None, *prompts):  # another text would be put before the inputs
        raise invalid(f"prompt_name must be left out, or one of: {', '.join(prompts) or 'none'}.")
    if form.dimensions not in (None, loaded.config.hidden):
        raise invalid(f"dimensions must be {loaded.config.hidden} for this model, or left out.")
    found = embed_texts(
        *(loaded, [text for (text,) in form.items()]),
        normalize=form.normalize,
        long="cut" if form.truncate else None,
        prompt=form.prompt_name,
    )
    assert found.pooled is not None
    if form.truncate is False and found.cut:
        raise _cut_against(loaded.about.get("cut_at") or loaded.config.positions)
    return found.pooled


def embed_all(model: Model, form: wire.Embed) -> list[list[list[float]]]:
    """A vector per token of each text, without special tokens."""
    if (form.prompt_name, form.dimensions) != (None, None):
        raise invalid("prompt_name and dimensions are not for vectors of tokens; leave them out.")
    if ticket := TICKET.get():
        _check_size(ticket.reserved * model.loaded.config.hidden * 20, "inputs")
    found = model.embed_tokens(
        [text for (text,) in form.items()],
        normalize=bool(form.normalize),
        long="cut" if form.truncate else None,
    )
    return [one.vectors.tolist() for one in found]


def predict(model: Model, form: wire.Predict) -> Any:
    """The labels of one input, or of each; the most probable first."""
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
    return too_large(f"an input has more than {limit} tokens; send truncate: true.", limit)


def rerank(model: Model, form: wire.Rerank) -> list[wire.RankedText]:
    """The texts, best first."""
    ranked, found = rank_texts(model.loaded, form.query, form.texts, raw=form.raw_scores)
    _check_truncated(form.truncate, found)
    return [wire.RankedText(r.index, r.score, r.text if form.return_text else None) for r in ranked]


def tokenize(model: Model, form: wire.Tokenize) -> list[list[wire.Token]]:
    """The tokens of each text."""
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


def attention(model: Model, form: wire.Attend) -> wire.Attention:
    """The attention of a layer's heads."""
    layers = model.loaded.config.layers
    layer = layers if form.layer is None else form.layer
    if not 1 <= layer <= layers:
        raise invalid(f"layer must be from 1 to {layers}.")
    count = len(model.tokenizer.encode(form.text, form.text_pair))
    if count > MOST_TOKENS:
        message = f"attention is shown for at most {MOST_TOKENS} tokens; the text has {count}."
        raise too_large(message, MOST_TOKENS, count)
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
    vectors = _vectors(model, wire.Embed(form.input, dimensions=form.dimensions))
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
