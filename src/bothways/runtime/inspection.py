"""Looking inside a model: the states and the attention of a text, and what each token contributes.

T tokens of a sequence, L layers, A attention heads, H hidden size, C outputs of the task head.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways import arrays
from bothways.batch import collate
from bothways.errors import ConfigError, InputError, LengthError, ModelError
from bothways.io.files import new_file
from bothways.io.terminal import counted
from bothways.runtime.engine import inspecting
from bothways.runtime.ensemble import Ensemble
from bothways.runtime.folder import LoadedModel
from bothways.runtime.options import AttributionMethod
from bothways.runtime.pipeline import check_pairs, check_segments, choose_length, outputs_of
from bothways.tasks.examples import Examples, check_room
from bothways.tasks.kinds import other_kind
from bothways.tasks.texts import TextTask
from bothways.tokenization.normalization import check_texts
from bothways.tokenization.tokenizer import Encoding, Tokenizer

Floats = NDArray[np.float32]
OCCLUSION: AttributionMethod = "occlusion"
GRADIENTS: AttributionMethod = "gradients"
LOG_ODDS, NUMBER = "log odds", "number"
_GIVEN = '<script type="application/json" id="given">'
MOST_SHOWN = 20_000_000
"""Probabilities that a page holds; a browser takes seconds for more."""


@dataclass(frozen=True, repr=False)
class TokenRow:
    """The tokens of a text or pair as the encoder reads them.

    Attributes:
        tokens: as in the vocabulary, special ones included.
        ids: int64 [T]; their numbers in the vocabulary.
        segments: int64 [T].
        parts: int64 [T]; 0 for a token of the first text, 1 of the second, -1 for a special one.
        offsets: int64 [T, 2]; a token's first character in its text, and the one after its last;
            zeros for a special one.
    """

    tokens: tuple[str, ...]
    ids: NDArray[np.int64]
    segments: NDArray[np.int64]
    parts: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.tokens)

    def as_json(self) -> dict[str, Any]:
        """Everything, as plain lists, numbers and texts."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _plain(value) for name, value in given.items()}

    def to_html(self, path: str | Path) -> Path:
        """Write a page that shows it: one file, which asks nothing of the network.

        Raises:
            ConfigError: it is too much for a page.
            DiskError: it could not be written.
        """
        with new_file(Path(path)) as file:
            file.write(self._page().encode())
        return Path(path)

    def _page(self) -> str:
        content = json.dumps(self._shown(), ensure_ascii=False, separators=(",", ":"))
        # Of a text, nothing may end the element that it stands in.
        return shown_page().replace(_GIVEN, _GIVEN + content.replace("<", "\\u003c"))

    def _repr_html_(self) -> str:
        return (
            f'<iframe title="{type(self).__name__}" sandbox="allow-scripts" '
            f'style="width:100%;height:32em;border:0" srcdoc="{escape(self._page())}"></iframe>'
        )

    def _shown(self) -> dict[str, Any]:
        return self.as_json()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


@dataclass(frozen=True, repr=False)
class Inspection(TokenRow):
    """What an encoder computes for a text, layer by layer.

    Attributes:
        hidden: float32 [L + 1, T, H]; the states of each token after the embeddings (0) and each
            layer, the last one after the final norm where there is one, as transformers'
            ``hidden_states``.
        attentions: float32 [L, A, T, T]; ``attentions[layer, head, i, j]`` is the share of token j
            in what token i reads. Rows add up to 1; of a local layer, what lies beyond its window
            is 0.
    """

    hidden: Floats
    attentions: Floats

    def __repr__(self) -> str:
        layers, heads, count, _ = self.attentions.shape
        return (
            f"Inspection of {counted(count, 'token')}: {' '.join(self.tokens)}\n"
            f"hidden {list(self.hidden.shape)}, attentions "
            f"{counted(layers, 'layer')} x {counted(heads, 'head')}"
        )

    def _shown(self) -> dict[str, Any]:
        if self.attentions.size > MOST_SHOWN:
            raise ConfigError(
                f"the attentions are {self.attentions.size:,} numbers, and a page holds "
                f"{MOST_SHOWN:,}; shorten the text, or take `attentions` as an array."
            )
        rounded = np.round(self.attentions.astype(np.float64), 4).tolist()
        return {**replace(self, hidden=self.hidden[:0]).as_json(), "attentions": rounded}


@dataclass(frozen=True, repr=False)
class Attribution(TokenRow):
    """What each token of a text contributes to an output of the task head.

    Attributes:
        scores: float64 [T]; how much each token raises the output; 0 for special ones.
        method: :data:`OCCLUSION` or :data:`GRADIENTS`.
        target: the label or number that is explained.
        unit: what the output, and so each score, is: :data:`LOG_ODDS` of a label, or a
            :data:`NUMBER` as it is predicted.
        output: of the text as it is.
        blank: the output with every token hidden.
        hidden_by: the piece that hides a token.
        delta: of gradients, their completeness error: the sum of the scores, less ``output -
            blank``, which it would be with steps without end; None for occlusion, of which no sum
            is known.
        cut: tokens of the text that the model does not read, because it is too long.
    """

    scores: NDArray[np.float64]
    method: AttributionMethod
    target: str
    unit: str
    output: float
    blank: float
    hidden_by: str
    delta: float | None
    cut: int

    @property
    def about(self) -> str:
        """The method and the outputs in a sentence."""
        if self.method == OCCLUSION:
            how = f"occlusion: each token in turn replaced by {self.hidden_by}"
        else:
            how = f"integrated gradients from {self.hidden_by}"
        error = "" if self.delta is None else f"; completeness error {self.delta:.2g}"
        cut = f"; {counted(self.cut, 'token')} beyond the length are not read" if self.cut else ""
        return (
            f"{self.target}: {self.unit} {self.output:.4g}, without any token {self.blank:.4g} "
            f"({how}{error}){cut}"
        )

    def __repr__(self) -> str:
        own = zip(self.scores.tolist(), self.tokens, self.parts.tolist(), strict=True)
        rows = [f"{score:+9.4f}  {token}" for score, token, part in own if part >= 0]
        return "\n".join([self.about, f"{self.unit} that each token adds:", *rows])


def shown_page() -> str:
    """The page, with nothing to show; a server gives it so."""
    return files("bothways.runtime").joinpath("page.html").read_text(encoding="utf-8")


def _row_of(encoding: Encoding) -> dict[str, Any]:
    """What a :class:`TokenRow` says of a sequence."""
    parts = np.full(len(encoding), -1)
    for number, place in enumerate(encoding.parts):
        parts[place] = number
    return {
        "tokens": tuple(encoding.tokens),
        "ids": np.array(encoding.ids, np.int64),
        "segments": np.array(encoding.segments, np.int64),
        "parts": parts,
        "offsets": np.array(encoding.offsets, np.int64).reshape(-1, 2),
    }


def inspect(loaded: LoadedModel, a: str, b: str | None = None) -> Inspection:
    """The states of every layer and the attention of every head for a text or pair.

    Args:
        loaded: a model folder; of an ensemble, the first model.
        a: the text.
        b: the second text of a pair.

    Raises:
        InputError: something that is not a text.
        LengthError: the text is longer than a sequence may be.
        ModelError: the encoder takes no pairs, or the folder has only a graph, which does not give
            them.
        ConfigError: the engine does not give them.
    """
    check_texts([a], None if b is None else [b])
    check_segments(loaded, pair=b is not None)
    compute, positions = inspecting(loaded.engine), loaded.config.positions
    encoding = loaded.tokenizer.encode(a, b)
    if len(encoding) > positions:
        raise LengthError(
            f"the text has {len(encoding)} tokens, and this encoder reads {positions} at a time; "
            "shorten it, or inspect its parts."
        )
    hidden, attentions = compute(
        collate([encoding.ids], [encoding.segments], max_positions=positions)
    )
    return Inspection(**_row_of(encoding), hidden=hidden, attentions=attentions)


# ------------------------------------------------------------------------------------- attribution


@dataclass(frozen=True)
class Question:
    """What an attribution is of: an output for a text, and what hides the text's tokens.

    Attributes:
        task: the model's.
        encoding: the text.
        piece: the id that a hidden token has.
        target: the label or number.
        column: its output of the head.
        others: the outputs of the other labels, where they are probabilities of one choice.
    """

    task: TextTask
    encoding: Encoding
    piece: int
    target: str
    column: int
    others: tuple[int, ...]

    @property
    def own(self) -> NDArray[np.int64]:
        """The places of the text's own tokens."""
        return np.concatenate([np.arange(len(self.encoding))[part] for part in self.encoding.parts])

    def hidden(self, places: NDArray[np.int64]) -> list[int]:
        """The ids with the tokens at some places hidden."""
        ids = np.array(self.encoding.ids, np.int64)
        ids[places] = self.piece
        return [int(id) for id in ids]

    def examples(self, rows: Sequence[Sequence[int]]) -> Examples:
        """Sequences like the text's, for its task."""
        size = len(self.encoding)
        tokens = np.array(rows, np.int32).ravel()
        read = np.arange(len(tokens)) if self.task.options.reads == "tokens" else None
        return Examples.of_sequences(
            tokens,
            np.tile(np.array(self.encoding.segments, np.int8), len(rows)),
            arrays.bounds([size] * len(rows)),
            read_positions=read,
        )

    def outputs(self, logits_NC: NDArray[np.float64]) -> NDArray[np.float64]:
        """The output that is explained, [N]: log odds, or a number."""
        own: NDArray[np.float64] = logits_NC[:, self.column]
        if not self.others:
            return own
        rest = logits_NC[:, self.others]
        most = rest.max(-1)
        odds: NDArray[np.float64] = own - most - np.log(np.exp(rest - most[:, None]).sum(-1))
        return odds

    def answer(
        self,
        scores: NDArray[np.float64],
        method: AttributionMethod,
        output: float,
        blank: float,
        tokenizer: Tokenizer,
        delta: float | None = None,
    ) -> Attribution:
        """The attribution, from scores of the text's own tokens."""
        every = np.zeros(len(self.encoding))
        every[self.own] = scores
        return Attribution(
            **_row_of(self.encoding),
            scores=every,
            method=method,
            target=self.target,
            unit=NUMBER if self.task.loss == "score" else LOG_ODDS,
            output=output,
            blank=blank,
            hidden_by=tokenizer.piece(self.piece),
            delta=delta,
            cut=self.encoding.cut,
        )


def ask(loaded: LoadedModel, a: str, b: str | None, target: str | None) -> Question:
    """What an attribution is to be of.

    Args:
        loaded: a model folder with a head for classes, labels or numbers of texts.
        a: the text.
        b: the second text of a pair.
        target: the label, or the name of a number. By default the label that is predicted, of
            several the most probable, of numbers the first.

    Raises:
        ModelError: the model has another head or none.
        InputError: something that is not a text, a pair for a model of single texts or the reverse,
            no such target, or a text of several windows.
    """
    task = loaded.task
    if not isinstance(task, TextTask):
        raise other_kind(task, "labels or scores of texts, of which a token can have a share")
    check_texts([a], None if b is None else [b])
    check_pairs(loaded, pair=b is not None)
    length = choose_length(loaded, None)
    check_room(loaded.tokenizer, length, pair=b is not None)
    encoding = loaded.tokenizer.encode(a, b, max_length=length)
    if encoding.cut and task.options.long == "windows":
        raise InputError(
            f"the text has more than the {length} tokens of a window, and this model reads it in "
            "several; shorten it, or ask for its parts."
        )
    roles = loaded.tokenizer.roles
    piece = loaded.tokenizer.blank_id if roles.mask is None else loaded.tokenizer.mask_id
    first = Question(task, encoding, piece, "", 0, ())
    logits_NC = _logits(loaded, first, [encoding.ids])
    labels, values, names = task.interpret(logits_NC)
    if target is None and task.loss == "class":
        column = names.index(labels[0])  # a threshold may prefer the less probable
    elif target is None:
        column = 0 if task.loss == "score" else int(values[0].argmax())
    elif target in names:
        column = names.index(target)
    else:
        raise InputError(f"target is none of this model's: {', '.join(names)}.")
    one_of = task.loss == "class"
    others = tuple(n for n in range(len(names)) if one_of and n != column)
    return Question(task, encoding, piece, names[column], column, others)


def _logits(
    loaded: LoadedModel, asked: Question, rows: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    examples = asked.examples(rows)
    outputs = outputs_of(loaded, asked.task, examples)
    return asked.task.pooled(examples, outputs).astype(np.float64)


def occlusion(
    loaded: LoadedModel, a: str, b: str | None = None, *, target: str | None = None
) -> Attribution:
    """How much an output falls when each token in turn is hidden: one batch of copies (Zeiler and
    Fergus 2014, section 4.2; Li et al. 2016).

    Arguments and errors as for :func:`ask`.
    """
    asked = ask(loaded, a, b, target)
    own = asked.own
    each = [asked.hidden(own[[n]]) for n in range(len(own))]
    copies = [asked.encoding.ids, asked.hidden(own), *each]
    whole, blank, *hidden = asked.outputs(_logits(loaded, asked, copies)).tolist()
    scores = whole - np.array(hidden)
    return asked.answer(scores, OCCLUSION, whole, blank, loaded.tokenizer)


def refuse_ensemble(loaded: LoadedModel) -> None:
    """Refuse gradients of several models.

    Raises:
        ModelError: it is an ensemble.
    """
    if isinstance(loaded, Ensemble):
        raise ModelError(
            f"{GRADIENTS} are of one model, and this is an ensemble; load the folder of one seed, "
            f"or use {OCCLUSION}."
        )
