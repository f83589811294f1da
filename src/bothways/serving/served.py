"""A model that is served: what it can do, which requests it accepts, and their threads."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from bothways.api.model import Model, load
from bothways.batch import Batch, collate
from bothways.errors import BothwaysError, ConfigError, ModelError
from bothways.families.heads import (
    CHOICE,
    CLASSIFIER,
    MASKED_LM,
    NEXT_SENTENCE,
    SPAN,
    TAGGER,
)
from bothways.io.processes import usable_cores
from bothways.runtime.engine import EngineOptions
from bothways.runtime.ensemble import Ensemble
from bothways.runtime.weights import has_weights
from bothways.serving.batching import TICKET, Batcher, Gate, Ticket, past_deadline
from bothways.serving.metrics import Metrics
from bothways.serving.options import Limits, ServeConfig
from bothways.serving.refusals import RefusedError
from bothways.tasks.options import KIND_NAMES, TEXT_KINDS
from bothways.tasks.texts import TextTask

T = TypeVar("T")
log = logging.getLogger("bothways.serving")

CLASSES, TAGS, ANSWERS = "text-classification", "token-classification", "question-answering"
FILL, VECTORS, SIMILARITY = "fill-mask", "feature-extraction", "sentence-similarity"
RANK, CHOOSE, NEXT = "text-ranking", "multiple-choice", "next-sentence"
ATTENTION, ATTRIBUTION = "attention", "attribution"
PLAIN = ""
"""What every tokenizer does, without an engine: to tokenize and decode."""
TASKS = (
    *(CLASSES, TAGS, ANSWERS, FILL, VECTORS, SIMILARITY, RANK, CHOOSE, NEXT),
    *(ATTENTION, ATTRIBUTION),
)
"""What models do, by Hugging Face's names where it has one."""
_OF_KINDS = {
    **dict.fromkeys(TEXT_KINDS, CLASSES),
    **{"tagging": TAGS, "spans": ANSWERS, "choice": CHOOSE},
}
_TASK_NAMES = {
    "sentiment-analysis": CLASSES,
    **dict.fromkeys(("embed", "embeddings", "sentence-embeddings"), VECTORS),
    **dict.fromkeys(("masked-lm", "masked-language-modeling"), FILL),
    **{"rerank": RANK, "reranking": RANK},
}
"""What they are called elsewhere, besides the names of the kinds of tasks."""
_OF_HEADS = {
    **{CLASSIFIER: CLASSES, TAGGER: TAGS, SPAN: ANSWERS, CHOICE: CHOOSE},
    MASKED_LM: FILL,
}
MAIN = {SIMILARITY: VECTORS}
"""Of a task that is never a model's main one, the main task of the models for it."""
THREADS = 32
"""Requests at work at a time; of those, as many as there are cores are not waiting."""
_MEASURED = 1024
"""Tokens by which a model's rate is measured at the start."""
_PER_CHARACTER, _LEAST, _MOST = 0.3, 0.1, 4.0
"""Tokens, before any request; and the bounds of what is learned from requests."""
_MANY = 2000
"""Characters of a request from which it counts in full."""
_PROBE_EVERY, _FRESH = 5.0, 10.0
_REST = 3.0
"""Times the seconds of a plain request in which the next one waits for others."""
_SHARE = 0.8
"""Of the deadline that a request may be expected to wait."""


def task_named(name: str) -> str:
    """A task by its name, or by one that people use for it, such as ``ner`` or ``qa``.

    Raises:
        RefusedError: there is none of that name.
    """
    plain = name.lower().replace("_", "-")
    plain = _TASK_NAMES.get(plain, plain)
    task = _OF_KINDS.get(KIND_NAMES.get(plain, plain), plain)
    if task not in TASKS:
        raise RefusedError("not_found", f"no such task; there are: {', '.join(TASKS)}.")
    return task


class Threads:
    """The threads in which requests are tokenized and their outputs made into answers.

    They are daemons, made when none is idle: one that works beyond its request's deadline holds
    neither another request nor the end of the process, as a thread of an executor would.

    Plain requests, which no engine computes, are answered one at a time. While others are in hand
    the next one waits :data:`_REST` times as long as the last one took, or long texts to tokenize
    would take half of two cores from those who wait for the engine.
    """

    def __init__(self) -> None:
        self.gate = Gate(usable_cores())
        self.plain = 0
        """Plain requests, waiting or at work."""
        self._work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._places, self._turn = asyncio.Semaphore(THREADS), asyncio.Semaphore(1)
        self._computing = 0

    async def run(self, ticket: Ticket, function: Callable[[], T]) -> T:
        """Work for a request, in a thread.

        Raises:
            RefusedError: the deadline passed. The thread ends when it next asks for the engine.
        """
        self.plain += ticket.plain
        self._computing += not ticket.plain
        try:
            async with asyncio.timeout(ticket.deadline - time.monotonic()):
                if ticket.plain:
                    return await self._in_turn(ticket, function)
                async with self._places:
                    return await self._start(ticket, function)
        except TimeoutError:
            raise past_deadline() from None
        finally:
            self.gate.leave(ticket)
            self.plain -= ticket.plain
            self._computing -= not ticket.plain

    async def _in_turn(self, ticket: Ticket, function: Callable[[], T]) -> T:
        await self._turn.acquire()
        try:
            return await self._start(ticket, function)
        finally:
            rest = _REST * ticket.seconds if self._computing else 0.0
            asyncio.get_running_loop().call_later(rest, self._turn.release)

    def _start(self, ticket: Ticket, function: Callable[[], T]) -> asyncio.Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            TICKET.set(ticket)
            try:
                self.gate.enter(ticket)
                started = time.thread_time()
                found = function()
                ticket.seconds = time.thread_time() - started
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(found)
            finally:
                self.gate.leave(ticket)

        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._serve, name="request", daemon=True).start()
        self._work.put(work)
        return asyncio.wrap_future(future)

    def _serve(self) -> None:
        while True:
            self._work.get()()
            self._idle.release()


class ServedModel:
    """A model and its queue.

    Args:
        name: in URLs.
        model: computed by its own engine so far; from now on by a batcher before it.
        limits: of requests.
        threads: that work for requests.
        metrics: of the process.
    """

    def __init__(self, name: str, model: Model, limits: Limits, threads: Threads, metrics: Metrics):
        self.name, self.model, self.limits = name, model, limits
        self._threads = threads
        self._queued = metrics.queued.labels(name)
        batches, tokens = metrics.batch.labels(name), metrics.tokens.labels(name)
        computing = metrics.computing.labels(name)

        def observe(sequences: int, count: int, seconds: float) -> None:
            batches.observe(sequences)
            tokens.inc(count)
            computing.inc(seconds)

        loaded = model.loaded
        self.task, self.tasks = _tasks(model)
        self.batcher = Batcher(loaded.engine, gate=threads.gate, observe=observe)
        loaded.use(self.batcher)
        self._reserved, self._per_character = 0, _PER_CHARACTER
        self._known: dict[str, np.ndarray] | None = None
        self._known_good = False

    def refuse_other(self, task: str, models: Iterable[ServedModel]) -> None:
        """Refuse what this model cannot do.

        Raises:
            RefusedError: naming what it can, and which of ``models`` can do the task.
        """
        if task not in self.tasks:
            able = ", ".join(self.tasks)
            others = [model.name for model in models if task in model.tasks]
            hint = f" For it name another: {', '.join(others)}." if others else ""
            raise RefusedError(
                "invalid", f"the model {self.name} does not do {task}; it does {able}.{hint}"
            )

    def admit(self, items: Sequence[Sequence[str]], task: str) -> Ticket:
        """Accept a request, or refuse it at once.

        Args:
            items: the texts that are read together, of each input.
            task: what is asked; :data:`PLAIN` if no engine computes it.

        Raises:
            RefusedError: the queue is full, or would keep the request beyond its deadline; or the
                request alone is more than the queue takes. Requests that no engine computes do not
                queue with the others: so many of them may wait as there are threads.
        """
        limit, positions = self.limits.tokens, self.model.loaded.config.positions
        if task == FILL:
            self._check_masks(items)

        def about(per_character: float) -> int:
            sizes = [2 + math.ceil(per_character * sum(map(len, item))) for item in items]
            if self._is_cut(task):
                sizes = [min(size, positions) for size in sizes]
            # For an attribution, a copy for each token.
            return sum(size * size if task == ATTRIBUTION else size for size in sizes)

        # Refused for good by its characters alone, whatever others sent before.
        if (size := about(_PER_CHARACTER)) > limit:
            raise RefusedError(
                "too_large",
                f"the request has about {size} tokens; send at most {limit} at a time.",
                limit=limit,
                given=size,
            )
        plain = task == PLAIN
        size = 1 if plain else min(about(self._per_character), limit)
        waiting, rate = self._reserved, self.batcher.rate
        if plain:
            waiting, limit, rate = self._threads.plain, THREADS, 0.0
        wait = (waiting + size) / rate if rate and waiting else 0.0
        if waiting + size > limit or wait > _SHARE * self.limits.deadline:
            after = max(1, math.ceil(waiting / rate)) if rate else 1
            raise RefusedError(
                "overloaded",
                "too many requests are waiting; come back after the seconds of Retry-After.",
                limit=limit,
                given=waiting + size,
                headers={"Retry-After": str(min(after, 60))},
            )
        reserved = 0 if plain else size
        self._reserve(reserved)
        return Ticket(time.monotonic() + self.limits.deadline, reserved, plain)

    def _check_masks(self, items: Sequence[Sequence[str]]) -> None:
        """Refuse more masks than inputs: each has the scores of the whole vocabulary."""
        mask, most = self.model.tokenizer.roles.mask or "", self.limits.inputs
        if (count := sum(text.count(mask) for item in items for text in item)) > most:
            raise RefusedError(
                "too_large",
                f"{count} times {mask} in one request; send at most {most} at a time.",
                limit=most,
                given=count,
            )

    def _reserve(self, tokens: int) -> None:
        # Of the event loop's thread alone, so no lock.
        self._reserved += tokens
        self._queued.set(self._reserved)

    def _is_cut(self, task: str) -> bool:
        """Whether longer texts are cut for a task, so that no sequence is longer than a window."""
        if task in (CLASSES, RANK, ATTRIBUTION):
            return self.model.loaded.task.options.long != "windows"
        return task in (FILL, CHOOSE, NEXT)

    async def run(self, ticket: Ticket, function: Callable[[Model], T], characters: int) -> T:
        """Answer an accepted request, in a thread.

        Args:
            ticket: of :meth:`admit`.
            function: makes the answer.
            characters: of its texts.

        Raises:
            RefusedError: the deadline passed. The request then holds no room in the queue any more.
            BothwaysError: what the model refuses.
        """
        try:
            found = await self._threads.run(ticket, lambda: function(self.model))
            if not ticket.plain:
                self._learn(ticket, characters)
            return found
        finally:
            self._reserve(-ticket.reserved)

    def _learn(self, ticket: Ticket, characters: int) -> None:
        """How many tokens a character is, from an answered request."""
        if characters > 50:
            seen = ticket.tokens / characters
            weight = 0.05 * min(1.0, characters / _MANY)  # a short text says little of others
            self._per_character += weight * (min(max(seen, _LEAST), _MOST) - self._per_character)

    def measure(self) -> None:
        """Compute a batch large enough to tell how fast a queue is worked off: before the first,
        more would be accepted than can be answered in time.

        Raises:
            BothwaysError: it cannot be computed.
        """
        tokens = min(self.batcher.budget, _MEASURED)
        length = max(1, min(tokens, self.model.loaded.config.positions // 2, 32))
        rows = [[0] * length] * (tokens // length)
        self._compute(collate(rows, rows, max_positions=length))

    def _compute(self, batch: Batch) -> dict[str, np.ndarray]:
        """What the model does first, of sequences."""
        loaded = self.model.loaded
        vectors = self.task in (VECTORS, SIMILARITY)
        head = MASKED_LM if self.task == FILL else "" if vectors else loaded.task_head
        if head:
            return self.batcher.compute(batch, {head: batch.bounds[:-1]})
        return self.batcher.compute(batch, layers=(loaded.config.layers,))

    def probe(self) -> None:
        """Compute a known answer, unless the model has just computed something: whether
        :attr:`ready`.

        Raises:
            BothwaysError: the first one cannot be computed.
        """
        batcher = self.batcher
        if self._known is not None and time.monotonic() - batcher.last < _PROBE_EVERY:
            return
        loaded = self.model.loaded
        encoding = self.model.tokenizer.encode("")
        ids = encoding.ids or [0]
        batch = collate([ids], [encoding.segments or [0]], max_positions=loaded.config.positions)
        try:
            found = self._compute(batch)
        except BothwaysError as error:
            if self._known is None:
                raise
            self._known_good = False
            log.error("model %s: the known answer failed (%s)", self.name, type(error).__name__)
            return
        found = {name: value[: len(ids)] for name, value in found.items()}
        self._known = self._known or found
        same = all(np.allclose(self._known[n], found[n], atol=1e-3) for n in found)
        if not same:
            log.error("model %s: the known answer has changed", self.name)
        self._known_good = same

    @property
    def ready(self) -> bool:
        """Whether it computed something not long ago, and its known answer is the first one."""
        age = time.monotonic() - self.batcher.last
        return self._known_good and age < max(_FRESH, 3 * self.batcher.longest)


Engines = Mapping[str, EngineOptions]
"""How each model of a server is computed."""


def open_models(
    config: ServeConfig, engines: Engines, threads: Threads, metrics: Metrics
) -> dict[str, ServedModel]:
    """The models of a server, each with a first answer computed.

    Raises:
        BothwaysError: a folder cannot be loaded or computed.
    """
    found = {}
    for name, folder in config.folders.items():
        how = engines[name]
        try:
            model = load(folder, engine=how.name, device=how.device, precision=how.precision)
            _ = model.loaded.engine  # of several models, it is said which cannot be computed so
        except ConfigError as error:
            raise ConfigError(f"the model {name}: {error}") from error
        if isinstance(model.loaded, Ensemble):
            raise ModelError(
                f"{folder} is a run folder, of several models; name the model folder of one seed."
            )
        found[name] = served = ServedModel(name, model, config.limits, threads, metrics)
        served.probe()
        served.measure()
        if not served.ready:
            raise ModelError(f"{folder}: the model computes no answer; see the message above.")
    return found


def _tasks(model: Model) -> tuple[str, tuple[str, ...]]:
    """What a model does if nothing is said, and all that it can do."""
    loaded = model.loaded
    found, explained = [], False
    if (head := loaded.task_head) in _OF_HEADS:
        task = loaded.task
        explained = isinstance(task, TextTask)
        found.append(CLASSES if explained else _OF_HEADS[head])  # it may read every token
        if explained and task.outputs == 1 and loaded.about.get("pair") is not False:
            found.append(RANK)
    has_mask = model.tokenizer.roles.mask is not None
    if MASKED_LM in loaded.heads and not loaded.config.left_to_right and has_mask:
        found.append(FILL)
    # A graph in a file gives its outputs alone.
    alone = loaded.folder is not None and not has_weights(loaded.folder)
    of_file = alone or loaded.engine.precision == "int8"
    if not (of_file and loaded.heads):
        # A folder of sentence-transformers is for vectors first.
        found.insert(0 if "pooling" in loaded.about else len(found), VECTORS)
        found.append(SIMILARITY)
    if NEXT_SENTENCE in loaded.heads:
        found.append(NEXT)
    if explained:
        found.append(ATTRIBUTION)
    if not of_file and hasattr(loaded.engine, "inspect"):
        found.append(ATTENTION)
    return found[0], tuple(found)
