"""Graphs in 8 bits: calibrated, and given away only if they hold their limits on a dev file.

N texts, H hidden size.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.batch import Batch
from bothways.errors import ConfigError, InputError, NonFiniteError, Place
from bothways.exporting.options import ExportConfig
from bothways.families.heads import HEADS
from bothways.io.terminal import ShowProgress, StageProgress
from bothways.runtime.batching import Computed, computed
from bothways.runtime.embeddings import embed_texts
from bothways.runtime.engine import Engine, batches_for
from bothways.runtime.folder import GRAPH_OF_8_BITS, LoadedModel, load_model
from bothways.runtime.onnx_engine import OnnxEngine
from bothways.runtime.onnx_graph import (
    HIDDEN,
    IDS,
    MASK,
    SEGMENTS,
    Int8,
    Outputs,
    build_graph,
    linear_maps,
    write_graph,
)
from bothways.runtime.pipeline import choose_length, encode_file, named_columns, predict_outputs
from bothways.runtime.texts import file_texts
from bothways.runtime.weights import Weights
from bothways.tasks.catalogue import task_recipe
from bothways.tasks.examples import Examples, encode_examples
from bothways.tasks.tagging import TaggingTask
from bothways.tasks.task import EncodedFile, Task

_CALIBRATION, _RANKING, _TIMED = 128, 24, 64  # sequences
_ROUNDS = 5
_EXACT = 4  # linear maps that go back to fp32, where 8 bits lose too much
# Every how many tokens one is hidden where a masked LM is measured.
_HIDDEN_TOKEN = 7


@dataclass(frozen=True)
class Attempt:
    """A graph in 8 bits, measured.

    Attributes:
        exact: its linear maps in fp32.
        agreement: with fp32, by what it is of.
        metric: of the task in 8 bits; None if the file has no labels for one.
        speedup: over fp32; None if it was not timed.
        fails: the limits that it does not hold, as sentences.
    """

    exact: tuple[str, ...]
    agreement: dict[str, float]
    metric: float | None
    speedup: float | None
    fails: tuple[str, ...]


@dataclass(frozen=True)
class GateReport:
    """What a graph in 8 bits was measured at.

    Attributes:
        holds: whether it was given away.
        measure: the task's metric; empty without one.
        fp32: the metric in fp32.
        attempts: all of them; the last is the one that holds, if any does.
        texts: how many were measured.
        calibration: on how many sequences ranges were taken.
    """

    holds: bool
    measure: str
    fp32: float | None
    attempts: tuple[Attempt, ...]
    texts: int
    calibration: int

    @property
    def best(self) -> Attempt:
        """The one that holds, or else the one that fails least."""
        return min(self.attempts, key=lambda one: (len(one.fails), -min(one.agreement.values())))

    def lines(self, path: Path) -> list[str]:
        """For a reader."""
        best = self.best
        parts = [f"{name} {value:.5f}" for name, value in best.agreement.items()]
        if best.metric is not None and self.fp32 is not None:
            parts.append(f"{self.measure} {best.metric:.4f}, in fp32 {self.fp32:.4f}")
        if best.speedup is not None:
            parts.append(f"{best.speedup:.2f} times as fast as fp32")
        if best.exact:
            parts.append(f"in fp32: {', '.join(best.exact)}")
        told = f"on {self.texts:,} texts: {'; '.join(parts)}"
        if self.holds:
            return [f"{path}: {told}"]
        return [f"{path} was not written: {'; '.join(best.fails)}", f"best attempt {told}"]


def quantize(
    out: Path,
    exported: LoadedModel,
    weights: Weights,
    asked: Outputs,
    config: ExportConfig,
    progress: StageProgress,
) -> GateReport:
    """Write a model's graph in 8 bits if it holds the limits.

    If it does not, the four linear maps that lose most go back to fp32.

    Args:
        out: the folder with the graph in fp32.
        exported: the model folder that was exported.
        weights: its weights.
        asked: the outputs of its graph.
        config: the files and the limits.
        progress: called with each stage, what is done of it, and all.

    Raises:
        InputError: a file cannot be read as requested, or has no texts.
    """
    fp32 = load_model(out)
    gate = _gate(replace(exported), fp32, config)
    calibration = gate.examples
    if config.calibration is not None:
        calibration = _gate(
            replace(exported), fp32, replace(config, gate=config.calibration), labelled=False
        ).examples
    own, chosen = _sequences(calibration, _CALIBRATION)
    positions = fp32.config.positions
    sequences = [own.inputs(np.array([n]), max_positions=positions) for n in chosen]
    largest = _ranges(fp32, weights, sequences, partial(progress, "calibrating"))
    expected = gate.run(fp32.engine, partial(progress, "in fp32"))
    _refuse_one_answer(expected, config)
    maps = linear_maps(weights.config)
    attempts: list[Attempt] = []
    file = out / GRAPH_OF_8_BITS
    for exact in (False, True):
        worst: list[str] = []
        if exact:
            some = sequences[:: _CALIBRATION // _RANKING]
            order = _worst_first(fp32, weights, largest, some, partial(progress, "ranking maps"))
            worst = sorted(order[:_EXACT], key=maps.index)
        int8 = Int8(largest, tuple(worst))
        write_graph(file, weights.config, weights, asked, fused=True, int8=int8)
        engine = OnnxEngine(load_model(out), precision="int8")
        told = partial(progress, f"in 8 bits, attempt {len(attempts) + 1}")
        attempts.append(_attempt(gate, engine, fp32.engine, expected, tuple(worst), config, told))
        if not attempts[-1].fails or attempts[-1].fails[-1].startswith(_SLOW):
            break  # with more of it in fp32 it would be slower still
    holds = not attempts[-1].fails
    if not holds:
        for part in file.parent.glob(file.name + "*"):
            part.unlink()
    return GateReport(
        holds, gate.measure, expected.metric, tuple(attempts), gate.texts, len(sequences)
    )


def _refuse_one_answer(expected: _Run, config: ExportConfig) -> None:
    """Refuse a file on which everything is the same in fp32: that it is in 8 bits says nothing."""
    first, *others = (np.asarray(value).tolist() for value in expected.values)
    if others and all(other == first for other in others):
        raise InputError(
            "in fp32 the model gives one answer to all of this file, which so cannot show whether "
            "8 bits change anything; give a file with several, or train the model further.",
            place=Place(Path(config.gate or "")),
        )


_SLOW = "it is only"


def _attempt(
    gate: _Gate,
    engine: Engine,
    fp32: Engine,
    expected: _Run,
    exact: tuple[str, ...],
    config: ExportConfig,
    progress: ShowProgress,
) -> Attempt:
    """Measure a graph, and compare it with the limits."""
    found = gate.run(engine, progress)
    agreement = gate.agreement(expected, found)
    fails = []
    for name, value in agreement.items():
        limit = config.lowest if name == _LOWEST else config.agreement
        limit = (0.99 if name == _SHARE else 0.999) if limit is None else limit
        if not value >= limit:
            fails.append(f"{name} is {value:.5f}, below {limit:g}")
    if found.metric is not None and expected.metric is not None:
        loss = 100 * (expected.metric - found.metric)
        if not loss <= config.metric_loss:
            fails.append(
                f"{gate.measure} loses {loss:.2f} points, more than {config.metric_loss:g}"
            )
    speedup = _speedup(gate, engine, fp32) if config.speedup else None
    if speedup is not None and speedup < config.speedup:
        fails.append(f"{_SLOW} {speedup:.2f} times as fast as fp32 here, below {config.speedup:g}")
    return Attempt(exact, agreement, found.metric, speedup, tuple(fails))


def _speedup(gate: _Gate, engine: Engine, fp32: Engine) -> float:
    """The medians' ratio of times that are taken by turns, rounded to hundredths."""
    own, chosen = _sequences(gate.examples, _TIMED)
    batches = [
        own.inputs(chosen[part], max_positions=gate.positions)
        for part in batches_for(engine, own.lengths[chosen])
    ]
    times: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(_ROUNDS + 1):
        for number, one in enumerate((fp32, engine)):
            start = time.perf_counter()
            for batch in batches:
                all_outputs(one, batch, gate.heads, gate.layers)
            times[number].append(time.perf_counter() - start)
    return round(median(times[0][1:]) / median(times[1][1:]), 2)


# ----------------------------------------------------------------------------------- calibration


def _ranges(
    loaded: LoadedModel, weights: Weights, sequences: Sequence[Batch], progress: ShowProgress
) -> dict[str, NDArray[np.float32]]:
    """The largest absolute inputs of each linear map on these sequences, one at a time: padding
    would count."""
    graph = build_graph(weights.config, weights, Outputs(ranges=True), fused=True)
    session = OnnxEngine(loaded).load(graph.SerializeToString())
    names = linear_maps(weights.config)
    largest: dict[str, NDArray[np.float32]] = {}
    for done, batch in enumerate(sequences, start=1):
        progress(done, len(sequences))
        values = session.run(_given(batch), [f"range.{name}" for name in names])
        for name, value in zip(names, values, strict=True):
            largest[name] = np.maximum(largest.get(name, np.float32(0)), value)
    return largest


def _worst_first(
    loaded: LoadedModel,
    weights: Weights,
    largest: dict[str, NDArray[np.float32]],
    sequences: Sequence[Batch],
    progress: ShowProgress,
) -> list[str]:
    """The linear maps by what each of them alone loses in 8 bits."""
    maps, engine = linear_maps(weights.config), OnnxEngine(loaded)
    given = [_given(batch) for batch in sequences]

    def states(int8: Int8 | None) -> NDArray[np.float32]:
        graph = build_graph(weights.config, weights, Outputs(hidden=True), fused=True, int8=int8)
        session = engine.load(graph.SerializeToString())
        return np.concatenate([session.run(one, [HIDDEN])[0][0] for one in given])

    expected, errors = states(None), {}
    for name in maps:
        found = states(Int8(largest, [other for other in maps if other != name]))
        errors[name] = float(np.linalg.norm(found - expected))
        progress(len(errors), len(maps))
    return sorted(maps, key=lambda name: -errors[name])


def _given(batch: Batch) -> dict[str, NDArray[np.int64]]:
    """A sequence as the inputs of a graph."""
    size = int(batch.bounds[-1])
    return {
        IDS: batch.tokens[None, :size],
        MASK: np.ones((1, size), np.int64),
        SEGMENTS: batch.segments[None, :size],
    }


def _sequences(examples: Examples, count: int) -> tuple[Examples, NDArray[np.int64]]:
    """Every sequence as an item of its own, such as each of an example's choices; and the numbers
    of so many from all over the file."""
    own = Examples.of_sequences(examples.tokens, examples.segments, examples.bounds)
    total = len(own.bounds) - 1
    return own, np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64))


def all_outputs(
    engine: Engine,
    batch: Batch,
    heads: Sequence[str],
    layers: Sequence[int],
    every: int = _HIDDEN_TOKEN,
) -> dict[str, NDArray[np.float32]]:
    """The outputs of heads at all sequences, all tokens, or one of so many, which a masked LM is
    asked for."""
    tokens = np.arange(int(batch.bounds[-1]))
    places = {"sequence": batch.bounds[:-1], "tokens": tokens, "masked": tokens[::every]}
    return engine.compute(batch, {name: places[HEADS[name].reads] for name in heads}, layers)


# ------------------------------------------------------------------------------ what is measured

_COSINE, _LOWEST, _SHARE, _CORRELATION = (
    *("mean cosine with fp32", "lowest cosine with fp32", "share equal to fp32"),
    "correlation with fp32",
)


@dataclass(frozen=True)
class _Run:
    """What an engine gave for a file.

    Attributes:
        values: float [N, H] for vectors, [N, C] for scores; labels, tags or answers otherwise.
        metric: the task's main one, if the file has labels for it.
    """

    values: Any
    metric: float | None = None


class _Gate(ABC):
    """A file that a model is measured on.

    Attributes:
        examples: its texts as sequences.
        texts: how many it has.
        heads: what is timed.
        layers: the same.
        measure: the name of the metric; empty without one.
        positions: of the encoder.
    """

    examples: Examples
    texts: int
    heads: Sequence[str] = ()
    layers: Sequence[int] = ()
    measure: str = ""
    positions: int

    @abstractmethod
    def run(self, engine: Engine, progress: ShowProgress | None = None) -> _Run:
        """What an engine gives for it."""

    def agreement(self, one: _Run, two: _Run) -> dict[str, float]:
        """How alike two engines' results are: of labels, unless a file is of something else."""
        pairs = zip(one.values, two.values, strict=True)
        return {_SHARE: float(np.mean([a == b for a, b in pairs]))}


def _gate(
    source: LoadedModel, fp32: LoadedModel, config: ExportConfig, *, labelled: bool = True
) -> _Gate:
    """The file of a gate or of calibration, for a model."""
    if source.task_head:
        return _TaskGate(source, fp32, config, labelled=labelled)
    return _HeadGate(fp32, config) if fp32.heads else _VectorGate(fp32, config)


class _TaskGate(_Gate):
    """A labelled file of the model's task."""

    def __init__(
        self, source: LoadedModel, fp32: LoadedModel, config: ExportConfig, *, labelled: bool
    ):
        if config.task is None:
            named = {"text": config.text, "text_b": config.text_b, "label": config.label}
            options = named_columns(source, named)
        else:
            options = task_recipe(config.task).task
        self._task: Task[Any, Any]
        self._file: EncodedFile[Any]
        self._task, self._file = encode_file(
            source, config.gate or "", labelled=labelled, options=options
        )
        self.examples, self.texts = self._file.examples, len(self._file.rows)
        self.heads, self.measure = (source.task_head,), self._task.metrics[0] if labelled else ""
        self.positions = fp32.config.positions
        self._outputs = source.task_outputs

    def run(self, engine: Engine, progress: ShowProgress | None = None) -> _Run:
        """Labels, tags, answers or scores, and the task's main metric."""
        outputs = predict_outputs(
            engine,
            self.examples,
            head=self.heads[0],
            outputs=self._outputs,
            positions=self.positions,
            progress=progress,
        )
        predictions = self._task.decode(self._file, outputs)
        scores = self._task.measure(self._file, predictions).scores
        values = predictions
        if self._task.loss != "score":
            values = self._labels(predictions)
        return _Run(values, scores[self.measure])

    def _labels(self, predictions: Any) -> list[Any]:
        if isinstance(self._task, TaggingTask):  # not each task with the head for tokens
            return [tag for tags in predictions for tag in tags]
        table = self._task.table(self._file, predictions)
        column = table[0].index("prediction")
        return [row[column] for row in table[1:]]

    def agreement(self, one: _Run, two: _Run) -> dict[str, float]:
        """The share of equal labels; of scores the correlation, the lowest of several."""
        if self._task.loss != "score":
            return super().agreement(one, two)
        columns = zip(one.values.T, two.values.T, strict=True)
        return {_CORRELATION: min(_correlation(a, b) for a, b in columns)}


def _correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float(np.array_equal(a, b))
    return float(np.corrcoef(a.astype(np.float64), b.astype(np.float64))[0, 1])


class _TextGate(_Gate):
    """The texts of a file, for a model without a task."""

    def __init__(self, fp32: LoadedModel, config: ExportConfig):
        path = Path(config.gate or "")
        if config.text_b is not None or config.label is not None:
            raise ConfigError(
                "text_b and label are columns of a labelled file, on which a model without a task "
                "head is not measured; leave them out."
            )
        self._texts = list(file_texts(path, fp32, text=config.text, task=config.task).texts)
        if not self._texts:
            raise InputError("no text to measure on; the file is empty.", place=Place(path))
        self.texts, self.positions = len(self._texts), fp32.config.positions
        length = choose_length(fp32, None)
        self.examples = encode_examples(fp32.tokenizer, self._texts, None, length=length)


class _VectorGate(_TextGate):
    """Texts whose vectors are compared."""

    def __init__(self, fp32: LoadedModel, config: ExportConfig):
        super().__init__(fp32, config)
        self.layers = (fp32.config.layers,)
        self._model = fp32

    def run(self, engine: Engine, progress: ShowProgress | None = None) -> _Run:
        """Vectors, of length 1."""
        model = replace(self._model)
        model.use(engine)
        known = str(model.about.get("pooling", "mean"))
        pooling: Any = known if known in ("mean", "cls") else "mean"
        vectors = embed_texts(
            model, self._texts, pooling=pooling, normalize=True, progress=progress
        ).pooled
        assert vectors is not None, "pooled"
        return _Run(vectors)

    def agreement(self, one: _Run, two: _Run) -> dict[str, float]:
        """The cosines of each text's vectors: their mean and the lowest."""
        cosines = (one.values.astype(np.float64) * two.values).sum(-1)
        return {_COSINE: float(cosines.mean()), _LOWEST: float(cosines.min())}


class _HeadGate(_TextGate):
    """Texts on which the heads of a pre-trained model are compared."""

    def __init__(self, fp32: LoadedModel, config: ExportConfig):
        super().__init__(fp32, config)
        self.heads = tuple(fp32.heads)
        own, tokens = self.examples, np.arange(len(self.examples.tokens))
        places = {"sequence": own.bounds[:-1], "tokens": tokens, "masked": tokens[::_HIDDEN_TOKEN]}
        self._reading: dict[str, Examples] = {}
        for name in self.heads:
            reads = HEADS[name].reads
            ids = own.tokens.copy()
            if reads == "masked":
                ids[places[reads]] = fp32.tokenizer.mask_id
            self._reading[name] = Examples.of_sequences(
                ids, own.segments, own.bounds, read_positions=places[reads]
            )

    def run(self, engine: Engine, progress: ShowProgress | None = None) -> _Run:
        """The most likely output of each head, or of one output its sign."""

        def compute(indices: NDArray[np.int64]) -> Computed[np.int64]:
            batch = examples.batch(indices, max_positions=self.positions)
            rows = engine.compute(batch.inputs, {name: batch.read_positions})[name]
            if not np.isfinite(rows).all():
                raise NonFiniteError("the model's output is not finite; its weights are damaged.")
            likely = rows[:, 0] > 0 if rows.shape[1] == 1 else rows.argmax(-1)
            return likely.astype(np.int64), batch.bounds

        found: list[int] = []
        for name, examples in self._reading.items():  # noqa: B007  # which compute reads
            for _, likely in computed(engine, examples.lengths, compute, progress):
                found += likely.tolist()
        return _Run(found)
