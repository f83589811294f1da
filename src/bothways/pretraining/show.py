"""Training instances printed for people: tokens, segments, targets, label, what was cut.

A target is written ``shown{original}``: ``[MASK]{river}`` is hidden, ``tree{river}`` is replaced by
a random word, ``river{river}`` is left unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.text import Text

from bothways.corpus.store import TokenStore
from bothways.model.batch import PretrainingBatch
from bothways.objectives.kinds import make_objective
from bothways.pretraining.batches import PhaseBatches, TextSpans
from bothways.pretraining.options import ShowConfig
from bothways.training.options import Phase

_LABELS = {
    "next": ("0, B follows A", "1, B is from another document"),
    "order": ("0, B follows A", "1, A and B have changed places"),
}
_SPECIAL, _TARGET, _LABEL = "dim", "bold yellow", "bold"


def show_instances(config: ShowConfig) -> Iterator[Text]:
    """Lines for `bothways corpus show`, styled for a terminal.

    Raises:
        StoreError: the corpus cannot be read, or cannot give such instances.
    """
    store = TokenStore.open(config.folder, config.split)
    objective = make_objective(config.objective, config.pairs.kind)
    batches = PhaseBatches(
        store,
        Phase(length=config.length, batch=1, micro_batch=1),
        pairs=config.pairs,
        masking=config.masking,
        objective=objective,
        seed=config.seed,
    )
    kind = config.pairs.kind
    for step in range(config.start, config.start + config.instances):
        (batch,) = batches.micro_batches(step)
        epoch, row = (int(values[0]) for values in batches.locate(step, 1))
        line = Text().append(f"instance {step:,}", style=_LABEL)
        line.append(f": row {row:,} of {len(batches.instances(epoch)):,} of epoch {epoch}, ")
        line.append(f"{int(batch.inputs.bounds[-1])} tokens, {batch.masked.count} targets")
        yield line
        if batch.random_next is not None:
            yield Text(f"  label {_LABELS[kind][int(batch.random_next[0])]}")
        spans = batches.text_spans(epoch, np.array([row]))
        yield from _segment_lines(store, _tokens(store, batch, marks=objective.marks), spans)
        yield Text()


def _segment_lines(store: TokenStore, tokens: list[Text], spans: TextSpans) -> Iterator[Text]:
    """One line per span: segment, document, what was cut, tokens."""
    lengths = (spans.stop - spans.start).tolist()
    places = store.tokenizer.template.span_places(lengths, pairs=spans.pairs)
    for number, start in enumerate(spans.start):
        name = "AB"[int(spans.part[number])]
        sentence = int(np.searchsorted(store.sentence_bounds, start, side="right")) - 1
        document = int(np.searchsorted(store.document_bounds, sentence, side="right")) - 1
        line = Text().append(f"  {name} ", style=_LABEL)
        line.append(f"(document {document:,}{_cut(spans, number)}) ", style=_SPECIAL)
        yield line + Text(" ").join(tokens[places[number]])


def _cut(spans: TextSpans, number: int) -> str:
    sides = (("first", spans.cut_front), ("last", spans.cut_end))
    cut = [f"{name} {int(counts[number])}" for name, counts in sides if counts[number]]
    return f"; {' and '.join(cut)} tokens cut" if cut else ""


def _tokens(store: TokenStore, batch: PretrainingBatch, *, marks: bool) -> list[Text]:
    """The tokens of a sequence, with its targets if they are marked."""
    tokenizer = store.tokenizer
    special = set(tokenizer.special_ids.tolist())
    shown = batch.inputs.tokens[: batch.inputs.bounds[-1]].tolist()
    tokens = [Text(tokenizer.piece(i), style=_SPECIAL if i in special else "") for i in shown]
    if marks:
        count, targets = batch.masked.count, batch.masked
        for at, original in zip(
            targets.positions.tolist()[:count], targets.ids.tolist(), strict=False
        ):
            tokens[at] = Text(f"{tokens[at].plain}{{{tokenizer.piece(original)}}}", style=_TARGET)
    return tokens
