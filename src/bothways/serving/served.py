"""A model that is served: what it can do, which requests it accepts, and their threads."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from bothways.api.model import Model, load
from bothways.batch import collate
from bothways.errors import ConfigError, ModelError
from bothways.families.heads import MASKED_LM, NEXT_SENTENCE
from bothways.io.processes import usable_cores
from bothways.runtime.engine import EngineOptions
from bothways.runtime.ensemble import Ensemble
from bothways.runtime.weights import has_weights
from bothways.serving.batching import TICKET, Batcher, Gate, Ticket, past_deadline
from bothways.serving.metrics import Metrics
from bothways.serving.options import Limits, ServeConfig
from bothways.serving.refusals import RefusedError, too_large
from bothways.tasks.options import KIND_NAMES, TRAITS
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
MAIN = {SIMILARITY: VECTORS}
"""Of a task that is never a model's main one, the main task of the models for it."""
THREADS = 32
"""Requests at work at a time; of those, as many as there are cores are not waiting."""
_MEASURED = 1024
"""Tokens by which a model's rate is measured at the start."""
_PER_CHARACTER, _PRIOR = 0.3, 2000
"""Tokens of a character, before any request, and the characters for which that counts."""
_FRESH = 10.0
"""Seconds that a batch may take, or three times as many as one took before: then something holds
the engine, and the model is not ready."""
_SHARE = 0.8
"""Of the deadline that a request may be expected to wait."""


def task_named(name: str) -> str:
    """A task by its name, or by one that people use for it, such as ``ner`` or ``qa``.

    Raises:
        RefusedError: there is none of that name.
    """
    plain = name.lower().replace("_", "-")
    plain = CLASSES if plain == "sentiment-analysis" else plain
    plain = KIND_NAMES.get(plain, plain)
    task = TRAITS[plain].pipeline if plain in TRAITS else plain
    if task not in TASKS:
        raise RefusedError("not_found", f"no such task; there are: {', '.join(TASKS)}.")
    return task


class Threads:
    """The threads in which requests are tokenized and their outputs made into answers.

    They are daemons, made when none is idle: one that works beyond its request's deadline holds
    neither another request nor the end of the process, as a thread of an executor would.
    """

    def __init__(self) -> None:
        self.gate = Gate(usable_cores())
        self._work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._places = asyncio.Semaphore(THREADS)

    async def run(self, ticket: Ticket, function: Callable[[], T]) -> T:
        """Work for a request, in a thread.

        Raises:
            RefusedError: the deadline passed. The thread ends when it next asks for the engine.
        """
        try:
            async with asyncio.timeout(ticket.deadline - time.monotonic()), self._places:
                return await self._start(ticket, function)
        except TimeoutError:
            raise past_deadline() from None
        finally:
            self.gate.leave(ticket)

    def _start(self, ticket: Ticket, function: Callable[[], T]) -> asyncio.Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            TICKET.set(ticket)
            try:
                self.gate.enter(ticket)
                found = function()
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
        self._reserved = 0
        self._seen_characters, self._seen_tokens = _PRIOR, _PER_CHARACTER * _PRIOR

    def admit(self, items: Sequence[Sequence[str]], task: str) -> Ticket:
        """Accept a request, or refuse it at once.

        Args:
            items: the texts that are read together, of each input.
            task: what is asked.

        Raises:
            RefusedError: the queue is full, or would keep the request beyond its deadline; or the
                request alone is more than the queue takes.
        """
        limit, positions = self.limits.tokens, self.model.loaded.config.positions

        def about(per_character: float) -> int:
            sizes = [2 + math.ceil(per_character * sum(map(len, item))) for item in items]
            if self._is_cut(task):
                sizes = [min(size, positions) for size in sizes]
            # For an attribution, a copy for each token.
            return sum(size * size if task == ATTRIBUTION else size for size in sizes)

        # Refused for good by its characters alone, whatever others sent before.
        if (size := about(_PER_CHARACTER)) > limit:
            message = f"the request has about {size} tokens; send at most {limit} at a time."
            raise too_large(message, limit, size)
        size = min(about(self._seen_tokens / self._seen_characters), limit)
        waiting, rate = self._reserved, self.batcher.rate
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
        self._reserve(size)
        characters = sum(len(text) for item in items for text in item)
        return Ticket(time.monotonic() + self.limits.deadline, size, characters)

    def _reserve(self, tokens: int) -> None:
        # Of the event loop's thread alone, so no lock.
        self._reserved += tokens
        self._queued.set(self._reserved)

    def _is_cut(self, task: str) -> bool:
        """Whether longer texts are cut for a task, so that no sequence is longer than a window."""
        if task in (CLASSES, RANK, ATTRIBUTION):
            return self.model.loaded.task.options.long != "windows"
        return task in (FILL, CHOOSE, NEXT)

    async def run(self, ticket: Ticket, function: Callable[[Model], T]) -> T:
        """Answer an accepted request, in a thread.

        Args:
            ticket: of :meth:`admit`.
            function: makes the answer.

        Raises:
            RefusedError: the deadline passed. The request then holds no room in the queue any more.
            BothwaysError: what the model refuses.
        """
        try:
            found = await self._threads.run(ticket, lambda: function(self.model))
            if ticket.tokens:
                self._seen_tokens += ticket.tokens
                self._seen_characters += ticket.characters
            return found
        finally:
            self._reserve(-ticket.reserved)

    def measure(self) -> None:
        """Compute a batch large enough to tell how fast a queue is worked off: before the first,
        more would be accepted than can be answered in time.

        Raises:
            BothwaysError: it cannot be computed.
        """
        tokens = min(self.batcher.budget, _MEASURED)
        length = max(1, min(tokens, self.model.loaded.config.positions // 2, 32))
        rows = [[0] * length] * (tokens // length)
        batch, loaded = collate(rows, rows, max_positions=length), self.model.loaded
        vectors = self.task in (VECTORS, SIMILARITY)
        head = MASKED_LM if self.task == FILL else "" if vectors else loaded.task_head
        if head:
            self.batcher.compute(batch, {head: batch.bounds[:-1]})
        else:
            self.batcher.compute(batch, layers=(loaded.config.layers,))

    @property
    def ready(self) -> bool:
        """Whether nothing holds the engine."""
        return self.batcher.busy < max(_FRESH, 3 * self.batcher.longest)


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
        served.measure()
    return found


def _tasks(model: Model) -> tuple[str, tuple[str, ...]]:
    """What a model does if nothing is said, and all that it can do."""
    loaded = model.loaded
    found, explained = [], False
    if loaded.task_head:
        task = loaded.task
        explained = isinstance(task, TextTask)
        found.append(task.traits.pipeline)
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
