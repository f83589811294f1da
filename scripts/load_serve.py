"""Load a server, and compare each answer with the offline one.

    python scripts/load_serve.py PART FOLDER [FOLDER ...] [--precision int8] [--requests 10000]

It starts `bothways serve` on the folders, which may have any heads. The parts:

    compare   all that the models do, mixed, over 64 connections: answers that differ, are lost or
              hang, and how much the server's memory grows after the first fifth
    alone     one connection that asks again and again: how much longer an answer takes than the
              same call in Python
    overload  more than the queue takes: how fast 429 comes, counted from the last byte read, and
              whether what is accepted keeps its deadline
    trickle   all that the models do, alone and beside 500 connections that send a byte a second:
              answers that differ, and how much longer the p99 is
    tokenize  the same beside ten connections that send 200 kB to /tokenize, again and again
    ended     SIGTERM under that load, 20 times, with one process and with two: seconds to the end
    killed    of two workers one is killed: when it is replaced, what fails

Scores must have the same bits as offline on onnxruntime, and be within 1e-3 of them on other
engines. The status is 1 if something is not as it must be.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bothways
from bothways.api.model import Model, load
from bothways.serving.served import (
    ANSWERS,
    CHOOSE,
    CLASSES,
    FILL,
    NEXT,
    RANK,
    SIMILARITY,
    TAGS,
    VECTORS,
)

PARTS = ("compare", "alone", "overload", "trickle", "tokenize", "ended", "killed")
TIMEOUT = 60.0
DEADLINE = 3.0
"""Of the server's requests, in the part ended."""
ADDED = 0.01
"""Seconds that HTTP may add to half of the answers: a quarter of what one waits for that is sent in
parts and not acknowledged."""
HEAD = "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
NEAR = 1e-3
"""How far scores may be from those offline, where bits depend on the batch."""
Offline = Callable[[], Any]


# ------------------------------------------------------------------------------- what may be asked


class Questions:
    """Requests of all that a model does, with what their answers must be.

    Args:
        name: the model's, on the server.
        model: the same, offline.
        tasks: as the server names them.
    """

    def __init__(self, name: str, model: Model, tasks: Sequence[str]):
        self.name, self.model, self.tasks = name, model, list(tasks)
        tokenizer = model.tokenizer
        special = set(tokenizer.special_ids.tolist())
        starting = [
            tokenizer.text_of(id)
            for id in range(tokenizer.vocab_size)
            if id not in special and tokenizer.starts_word[id]
        ]
        self.words = [word for word in starting if word.strip() and word.isprintable()]

    def text(self, draw: random.Random) -> str:
        """A text of 1 to 60 words, most of them short."""
        return " ".join(draw.choices(self.words, k=min(60, 1 + int(draw.expovariate(0.1)))))

    def draw(self, draw: random.Random) -> tuple[str, Any, Offline]:
        """A path, a body, and what computes the answer without the server."""
        task = draw.choice(self.tasks)
        texts = [self.text(draw) for _ in range(draw.choice((1, 1, 1, 2, 5, 16)))]
        path, body, offline = getattr(self, f"_{task.replace('-', '_')}")(draw, texts)
        below = "" if path.startswith("/v1/") else f"/models/{self.name}"
        return below + path, body, offline

    def _text_classification(self, draw: random.Random, texts: list[str]) -> Any:
        others = None
        if self.model.loaded.about.get("pair"):
            others = [self.text(draw) for _ in texts]
            body: list[Any] = list(map(list, zip(texts, others, strict=True)))
            return "/predict", {"inputs": body}, lambda: self._labels(texts, others)
        return "", {"inputs": texts}, lambda: self._labels(texts, None)

    def _labels(self, a: list[str], b: list[str] | None) -> list[list[dict[str, Any]]]:
        found = self.model.predict(a, b)
        rows = [
            [{"label": n, "score": v} for n, v in zip(found.names, row, strict=True)]
            for row in found.values.tolist()
        ]
        return [sorted(row, key=lambda one: -one["score"]) for row in rows]

    def _text_ranking(self, draw: random.Random, texts: list[str]) -> Any:
        query = self.text(draw)

        def offline() -> Any:
            ranked = self.model.rank(query, texts)
            return [{"index": one.index, "score": one.score} for one in ranked]

        return "/rerank", {"query": query, "texts": texts}, offline

    def _token_classification(self, _: random.Random, texts: list[str]) -> Any:
        def offline() -> Any:
            return [
                {
                    "entity_group": e.type,
                    "score": e.probability,
                    "word": e.text,
                    "start": e.start,
                    "end": e.end,
                }
                for e in self.model.tag(texts[0]).entities
            ]

        return "", {"inputs": texts[0]}, offline

    def _question_answering(self, _: random.Random, texts: list[str]) -> Any:
        question, context = " ".join(texts[0].split()[:8]), " ".join(texts * 3)

        def offline() -> Any:
            (a, *_) = self.model.answer(question, context)
            return {"answer": a.text, "score": a.probability, "start": a.start, "end": a.end}

        return "", {"inputs": {"question": question, "context": context}}, offline

    def _multiple_choice(self, draw: random.Random, texts: list[str]) -> Any:
        context, choices = self.text(draw), [*texts, self.text(draw)]
        body = {"context": context, "choices": choices}
        return "/choose", body, lambda: {"probabilities": self.model.choose(context, choices)}

    def _next_sentence(self, _: random.Random, texts: list[str]) -> Any:
        a, b = texts[0], texts[-1]
        body = {"text": a, "text_pair": b}
        return "/next-sentence", body, lambda: {"probability": self.model.next_sentence(a, b)}

    def _fill_mask(self, draw: random.Random, texts: list[str]) -> Any:
        tokenizer = self.model.tokenizer
        masked = f"{draw.choice(self.words)} {tokenizer.roles.mask} {texts[0]}"

        def offline() -> Any:
            return [
                {
                    "score": f.probability,
                    "token": (id := tokenizer.id(f.piece)),
                    "token_str": tokenizer.text_of(id),
                    "sequence": f.text,
                }
                for f in self.model.fill_mask(masked)[0]
            ]

        return "/pipeline/fill-mask", {"inputs": masked}, offline

    def _feature_extraction(self, draw: random.Random, texts: list[str]) -> Any:
        if draw.random() < 0.5:
            body = {"inputs": texts, "normalize": False}
            return "/embed", body, lambda: self.model.embed(texts, normalize=False).tolist()
        coded = {"model": self.name, "input": texts, "encoding_format": "base64"}
        return "/v1/embeddings", coded, lambda: self.model.embed(texts, normalize=True).tolist()

    def _sentence_similarity(self, draw: random.Random, texts: list[str]) -> Any:
        source = self.text(draw)

        def offline() -> Any:
            vectors = self.model.embed([source, *texts], normalize=True).astype(np.float64)
            return [float(np.dot(vectors[0], other)) for other in vectors[1:]]

        inputs = {"source_sentence": source, "sentences": texts}
        return "/similarity", {"inputs": inputs}, offline


_KNOWN = {CLASSES, RANK, TAGS, ANSWERS, CHOOSE, NEXT, FILL, VECTORS, SIMILARITY}


def answer_of(content: bytes) -> Any:
    """What a body says; of OpenAI's, the vectors."""
    found = json.loads(content)
    if isinstance(found, dict) and found.get("object") == "list":
        raw = [base64.b64decode(row["embedding"]) for row in found["data"]]
        return [np.frombuffer(row, "<f4").tolist() for row in raw]
    return found


def same(found: Any, expected: Any, near: float) -> bool:
    """Whether two answers are equal, but for scores that may be this far apart."""
    if isinstance(expected, float):
        return isinstance(found, int | float) and abs(found - expected) <= near
    if isinstance(expected, list):
        if near and expected and isinstance(expected[0], dict):  # two may be close to each other
            found, expected = (_by_name(rows) for rows in (found, expected))
        alike = isinstance(found, list) and len(found) == len(expected)
        return alike and all(same(a, b, near) for a, b in zip(found, expected, strict=True))
    if isinstance(expected, dict):
        alike = isinstance(found, dict) and found.keys() == expected.keys()
        return alike and all(same(found[key], expected[key], near) for key in expected)
    return bool(found == expected)


def _by_name(rows: Any) -> Any:
    for key in ("label", "index", "token"):
        if all(isinstance(row, dict) and key in row for row in rows):
            return sorted(rows, key=lambda row: row[key])
    return rows


# ------------------------------------------------------------------------------------- the client


class Connection:
    """A connection that is kept open."""

    def __init__(self, port: int):
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, path: str, body: bytes = b"") -> tuple[int, bytes, float]:
        """The status, the body and the seconds since the last byte was sent."""
        if self.reader is None or self.writer is None:
            opened = await asyncio.open_connection("127.0.0.1", self.port)
            self.reader, self.writer = opened
        try:
            method = "POST" if body else "GET"
            self.writer.write(HEAD.format(method=method, path=path, length=len(body)).encode())
            self.writer.write(body)
            await self.writer.drain()
            sent = time.monotonic()
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            content = await self.reader.readexactly(int(fields["content-length"]))
            seconds = time.monotonic() - sent
            if fields.get("connection") == "close":
                self.close()
            return int(lines[0].split()[1]), content, seconds
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def once(port: int, path: str) -> str:
    """What a GET gives."""
    connection = Connection(port)
    _, content, _ = await connection.ask(path)
    connection.close()
    return content.decode()


@dataclass(frozen=True)
class Asked:
    """A request, with what its answer must be."""

    path: str
    body: bytes
    expected: Any = None


@dataclass
class Trial:
    """A server that runs, and what is asked of it."""

    port: int
    process: subprocess.Popen[str]
    sources: list[Questions]
    seed: int
    near: float

    def requests(self, count: int, *, offline: bool = True) -> list[Asked]:
        """Some of all that the models do."""
        draw, found = random.Random(self.seed), []
        started = time.monotonic()
        for _ in range(count):
            path, body, answer = draw.choice(self.sources).draw(draw)
            # As JSON gives it back.
            expected = json.loads(json.dumps(answer())) if offline else None
            found.append(Asked(path, json.dumps(body).encode(), expected))
        if offline:
            print(f"offline answers: {time.monotonic() - started:.0f} s", flush=True)
        return found


@contextmanager
def serving(
    folders: Sequence[str], engine: str, precision: str, seed: int, *options: str
) -> Iterator[Trial]:
    """A server, and the same models offline."""
    command = [sys.executable, "-m", "bothways", "serve", *folders, "--port", "0"]
    source = str(Path(bothways.__file__).parents[1])
    process = subprocess.Popen(
        [*command, "--engine", engine, "--precision", precision, *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"at http://\S+:(\d+)", line)
        assert found, f"the server did not start: {line}"
        port, sources = int(found.group(1)), []
        for folder in folders:
            name, separator, path = folder.partition("=")
            path, name = (path, name) if separator else (folder, Path(folder).name)
            tasks = json.loads(asyncio.run(once(port, f"/models/{name}/info")))["tasks"]
            model = load(path, engine=engine, precision=precision)  # type: ignore[arg-type]
            sources.append(Questions(name, model, [task for task in tasks if task in _KNOWN]))
        yield Trial(port, process, sources, seed, 0.0 if engine == "onnxruntime" else NEAR)
    finally:
        process.terminate()
        process.wait(60)


def resident(pid: int) -> float:
    """MiB of memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


def p(times: list[float], share: float) -> float:
    """A percentile, in milliseconds."""
    return 1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))]


# ---------------------------------------------------------------------------------------- the parts


@dataclass
class Compared:
    """What came of requests: how many of each outcome, the growth of memory, and the seconds of
    each answer."""

    found: Counter[str]
    growth: float
    times: list[float]


async def compare(trial: Trial, asked: Sequence[Asked], connections: int) -> Compared:
    """All requests, each answer compared; memory."""
    found: Counter[str] = Counter()
    times: list[float] = []
    memory: dict[int, float] = {}
    left = iter(asked)
    fifth = max(1, len(asked) // 5)

    async def one_client() -> None:
        connection = Connection(trial.port)
        for one in left:
            try:
                answer = await asyncio.wait_for(connection.ask(one.path, one.body), TIMEOUT)
            except TimeoutError:
                found["hung"] += 1
                continue
            except (OSError, asyncio.IncompleteReadError):
                found["lost"] += 1
                continue
            status, content, seconds = answer
            times.append(seconds)
            if status != 200:
                found[f"status {status}"] += 1
            elif same(answer_of(content), one.expected, trial.near):
                found["equal"] += 1
            else:
                found["different"] += 1
                if found["different"] <= 3:
                    print(f"different: {one.path} {one.body[:300]!r}\n  {content[:300]!r}")
                    print(f"  {json.dumps(one.expected)[:300]}")
            if len(times) % fifth == 0:
                memory[len(times)] = resident(trial.process.pid)
        connection.close()

    started = time.monotonic()
    await asyncio.gather(*(one_client() for _ in range(connections)))
    seconds = time.monotonic() - started
    after = [memory[done] for done in sorted(memory)]
    growth = after[-1] / after[0] - 1
    print(f"{len(asked)} requests over {connections} connections: {dict(found)}")
    print(f"  {len(asked) / seconds:.0f} a second; p50 {p(times, 0.5):.1f} ms", end="")
    print(f", p99 {p(times, 0.99):.1f} ms, latest {p(times, 1):.1f} ms")
    print(f"  memory {', '.join(f'{one:.0f}' for one in after)} MiB after each fifth", end="")
    print(f": {growth:+.1%} after the first")
    return Compared(found, growth, times)


async def alone(trial: Trial, count: int) -> float:
    """The median seconds that an answer takes longer over a connection than in Python."""
    draw, connection = random.Random(trial.seed), Connection(trial.port)
    times: tuple[list[float], list[float]] = [], []
    for number in range(count + count // 10):
        path, body, answer = draw.choice(trial.sources).draw(draw)
        started = time.monotonic()
        answer()
        offline = time.monotonic() - started
        status, content, passed = await connection.ask(path, json.dumps(body).encode())
        assert status == 200, content
        if number >= count // 10:  # warm
            times[0].append(offline)
            times[1].append(passed)
    connection.close()
    added = [passed - offline for offline, passed in zip(*times, strict=True)]
    print(f"{count} requests on one connection: p50 {p(times[1], 0.5):.1f} ms, in Python ", end="")
    print(f"{p(times[0], 0.5):.1f} ms; each takes {p(added, 0.5):+.1f} ms more in the middle")
    return sorted(added)[count // 2]


@dataclass
class Overloaded:
    """What came of an overload."""

    found: Counter[int]
    latest: float


async def overload(trial: Trial, connections: int, seconds: float) -> Overloaded:
    """Far more than the queue takes, all at once."""
    draw, first = random.Random(trial.seed), trial.sources[0]
    body = json.dumps({"inputs": [first.text(draw) for _ in range(64)]}).encode()
    path = f"/models/{first.name}/pipeline/{VECTORS}"
    found: Counter[int] = Counter()
    refused: list[float] = []
    accepted: list[float] = []
    until = time.monotonic() + seconds

    async def one_client() -> None:
        connection = Connection(trial.port)
        while time.monotonic() < until:
            status, _, passed = await asyncio.wait_for(connection.ask(path, body), TIMEOUT)
            found[status] += 1
            (refused if status == 429 else accepted).append(passed)
            if status == 429:
                await asyncio.sleep(0.2)  # less than it was told to wait
        connection.close()

    await asyncio.gather(*(one_client() for _ in range(connections)))
    print(f"overload by {connections} connections: {dict(found)}")
    if refused and accepted:
        print(f"  429 at the client after p50 {p(refused, 0.5):.1f} ms, p99 ", end="")
        print(f"{p(refused, 0.99):.1f} ms; the latest accepted after {max(accepted):.1f} s")
    return Overloaded(found, max(accepted, default=0.0))


Neighbours = Callable[[Trial, asyncio.Event], Coroutine[Any, Any, None]]


async def beside(
    trial: Trial, asked: Sequence[Asked], connections: int, neighbours: Neighbours, rounds: int
) -> float:
    """The p99 of requests beside what ``neighbours`` send, as a multiple of that without; infinite
    if an answer differs."""
    alone, others, good = list[float](), list[float](), True
    for number in range(rounds):  # alternately, as the machine may be busy with other things
        part = asked[number::rounds]
        calm = await compare(trial, part, connections)
        ended = asyncio.Event()
        sending = asyncio.create_task(neighbours(trial, ended))
        await asyncio.sleep(3)
        busy = await compare(trial, part, connections)
        ended.set()
        await sending
        alone, others = alone + calm.times, others + busy.times
        good &= calm.found["equal"] == busy.found["equal"] == len(part)
    ratio = p(others, 0.99) / p(alone, 0.99)
    print(f"p99 {p(alone, 0.99):.1f} ms alone, {p(others, 0.99):.1f} ms beside: {ratio:.2f}")
    return ratio if good else float("inf")


def trickling(count: int) -> Neighbours:
    """Connections that send a byte each second."""

    async def neighbours(trial: Trial, ended: asyncio.Event) -> None:
        ends = Counter[str]()

        async def one_client(number: int) -> None:
            while not ended.is_set():
                reader, writer = await asyncio.open_connection("127.0.0.1", trial.port)
                whole = HEAD.format(method="POST", path="/embed", length=1000)
                try:
                    for character in (whole if number % 2 else "POST /embed HT") + "x" * 100:
                        writer.write(character.encode())
                        await writer.drain()
                        await asyncio.sleep(1)
                        if ended.is_set() or reader.at_eof():
                            break
                    if reader.at_eof():
                        ends[(await reader.read()).partition(b"\r\n")[0].decode()] += 1
                except OSError:
                    pass
                writer.close()

        await asyncio.gather(*map(one_client, range(count)))
        print(f"{count} trickling connections: {dict(ends)}")

    return neighbours


async def tokenizing(trial: Trial, ended: asyncio.Event) -> None:
    """Ten connections that send 200 kB to /tokenize, again and again."""
    body, found = json.dumps({"inputs": "a " * 100_000}).encode(), Counter[int]()

    async def one_client() -> None:
        connection = Connection(trial.port)
        while not ended.is_set():
            found[(await connection.ask("/tokenize", body))[0]] += 1
        connection.close()

    await asyncio.gather(*(one_client() for _ in range(10)))
    print(f"ten connections that send 200 kB to /tokenize: {dict(found)}")


async def ended(trial: Trial, connections: int) -> float:
    """The seconds from SIGTERM to the end of a server under load."""
    asked = trial.requests(100) * 100
    load = [
        asyncio.create_task(compare(trial, asked, connections)),
        asyncio.create_task(tokenizing(trial, asyncio.Event())),
    ]
    await asyncio.sleep(2)
    started = time.monotonic()
    trial.process.terminate()
    await asyncio.to_thread(trial.process.wait, TIMEOUT)
    took = time.monotonic() - started
    for task in load:
        task.cancel()
    await asyncio.gather(*load, return_exceptions=True)
    print(f"SIGTERM under load: ended after {took:.2f} s, status {trial.process.poll()}")
    return took


@dataclass
class Killed:
    """What came of killing a worker: seconds until another takes connections; requests that failed
    at the client, answers that differed, and those that were equal before and after."""

    replaced: float
    failed: int
    different: int
    before: int
    after: int


def workers(parent: int) -> dict[int, bool]:
    """The worker processes, and whether each takes connections."""
    found = {}
    listening = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        if line.split()[3] == "0A"
    }
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        try:
            if b"spawn_main" not in Path(f"/proc/{child}/cmdline").read_bytes():
                continue
            links = [str(link.readlink()) for link in Path(f"/proc/{child}/fd").iterdir()]
        except OSError:  # it ends
            continue
        found[int(child)] = any(link[8:-1] in listening for link in links)
    return found


async def killed(trial: Trial, connections: int, seconds: float) -> Killed:
    """Kill a worker under load."""
    asked, draw, first = trial.requests(200), random.Random(trial.seed), trial.sources[0]
    many = json.dumps({"inputs": [first.text(draw) * 4 for _ in range(64)]}).encode()
    long = Asked(f"/models/{first.name}/tokenize", many)  # so that some are in hand at any time
    until = time.monotonic() + 60
    while sum(workers(trial.process.pid).values()) < 2 and time.monotonic() < until:
        await asyncio.sleep(0.02)
    found: Counter[str] = Counter()
    phase = "before"

    async def one_client(number: int) -> None:
        connection, draw = Connection(trial.port), random.Random(number)
        while phase != "end":
            one = long if number % 2 else draw.choice(asked)
            try:
                answer = await asyncio.wait_for(connection.ask(one.path, one.body), TIMEOUT)
            except (OSError, asyncio.IncompleteReadError):
                found["failed"] += 1
                continue
            good = answer[0] == 200
            if good and one is not long:
                good = same(answer_of(answer[1]), one.expected, trial.near)
            found[phase if good else "different"] += 1
        connection.close()

    clients = [asyncio.create_task(one_client(n)) for n in range(connections)]
    await asyncio.sleep(seconds)
    victim = next(pid for pid, listens in workers(trial.process.pid).items() if listens)
    phase = "after"
    os.kill(victim, signal.SIGKILL)
    started = time.monotonic()
    while time.monotonic() < started + 20:
        await asyncio.sleep(0.01)
        now = workers(trial.process.pid)
        if victim not in now and sum(now.values()) == 2:
            break
    replaced = time.monotonic() - started
    await asyncio.sleep(seconds)
    phase = "end"
    await asyncio.gather(*clients)
    result = Killed(
        *(replaced, found["failed"], found["different"]),
        *(found["before"], found["after"]),
    )
    print(f"a worker of two killed under {connections} connections: {asdict(result)}")
    return result


def run(part: str, given: argparse.Namespace) -> bool:
    """One part; whether all is as it must be."""
    start = (given.folders, given.engine, given.precision, given.seed)
    if part == "compare":
        with serving(*start) as trial:
            asked = trial.requests(given.requests)
            compared = asyncio.run(compare(trial, asked, given.connections))
        return compared.found["equal"] == len(asked) and compared.growth < 0.05
    if part == "alone":
        with serving(*start) as trial:
            return asyncio.run(alone(trial, 500)) < ADDED
    if part == "overload":
        with serving(*start, "--set", "limits_tokens=12000") as trial:
            over = asyncio.run(overload(trial, 100, 8.0))
        kinds = set(over.found) == {200, 429}
        return kinds and over.latest < 30.0
    if part in ("trickle", "tokenize"):
        others = trickling(given.trickling) if part == "trickle" else tokenizing
        with serving(*start) as trial:
            asked = trial.requests(given.requests)
            return asyncio.run(beside(trial, asked, given.connections, others, rounds=3)) <= 1.5
    if part == "ended":
        took = []
        for number in range(20):
            several = ("--workers", "2") if number % 2 else ()
            with serving(*start, "--set", f"limits_deadline={DEADLINE}", *several) as trial:
                took.append(asyncio.run(ended(trial, given.connections)))
        print(
            f"ended within {DEADLINE + 1} s: {sum(t <= DEADLINE + 1 for t in took)} of {len(took)}"
        )
        return max(took) <= DEADLINE + 1
    with serving(*start, "--workers", "2") as trial:
        dead = asyncio.run(killed(trial, 16, 3.0))
    failed = 1 <= dead.failed <= 32
    return dead.replaced <= 10 and failed and not dead.different and dead.after > 0


def main() -> int:
    """The parts that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=(*PARTS, "all"))
    parser.add_argument("folders", nargs="+", help="FOLDER or NAME=FOLDER")
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--trickling", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    wrong = [one for one in (PARTS if given.part == "all" else [given.part]) if not run(one, given)]
    print(f"NOT as it must be: {', '.join(wrong)}" if wrong else "as it must be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
