"""Load a server that runs beside this script, and compare each answer with the offline one.

    python scripts/load_serve.py FOLDER [FOLDER ...] [--requests 10000] [--connections 64]

The folders may have any heads. It starts `bothways serve` on the onnxruntime engine, in fp32, and
prints: answers that differ (labels, or bits of scores), are lost or hang; the growth of the
server's memory after a fifth of the requests; how fast 429 comes, counted from the last byte sent,
and whether what is accepted keeps its deadline; the p99 of others beside 500 trickling connections.
It ends with status 1 if one of these is not as it must be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    _tasks,
)

TIMEOUT = 60.0
HEAD = "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
Compare = Callable[[Any], bool]


# ------------------------------------------------------------------------------- what may be asked


class Questions:
    """Requests of all that a model does, with what their answers must be."""

    def __init__(self, name: str, model: Model, words: list[str]):
        self.path, self.model, self.words = f"/models/{name}", model, words
        self.tasks = [task for task in _tasks(model)[1] if task != SIMILARITY]

    def text(self, draw: random.Random) -> str:
        """A text of 1 to 60 words, most of them short."""
        return " ".join(draw.choices(self.words, k=min(60, 1 + int(draw.expovariate(0.1)))))

    def draw(self, draw: random.Random) -> tuple[str, Any, Callable[[], Any]]:
        """A path, a body, and what computes the answer without the server."""
        task, model, path = draw.choice(self.tasks), self.model, self.path
        texts = [self.text(draw) for _ in range(draw.choice((1, 1, 1, 2, 5, 16)))]
        pairs = bool(model.loaded.about.get("pair"))
        if task == CLASSES:
            if pairs:
                others = [self.text(draw) for _ in texts]
                body = {"inputs": list(map(list, zip(texts, others, strict=True)))}
                return f"{path}/predict", body, lambda: labels(model, texts, others)
            return path, {"inputs": texts}, lambda: labels(model, texts, None)
        if task == RANK:
            ranked = {"query": texts[0], "texts": texts}
            return (
                f"{path}/rerank",
                ranked,
                lambda: [
                    {"index": one.index, "score": one.score} for one in model.rank(texts[0], texts)
                ],
            )
        if task == TAGS:
            return (
                path,
                {"inputs": texts[0]},
                lambda: [
                    {
                        "entity_group": e.type,
                        "score": e.probability,
                        "word": e.text,
                        "start": e.start,
                        "end": e.end,
                    }
                    for e in model.tag(texts[0]).entities
                ],
            )
        if task == ANSWERS:
            question, context = " ".join(texts[0].split()[:8]), " ".join(texts * 3)
            asked = {"question": question, "context": context}
            return (
                path,
                {"inputs": asked},
                lambda: next(
                    {"answer": a.text, "score": a.probability, "start": a.start, "end": a.end}
                    for a in model.answer(question, context)
                ),
            )
        if task == CHOOSE:
            choices = [*texts, self.text(draw)]
            body = {"context": texts[0], "choices": choices}
            return (
                f"{path}/choose",
                body,
                lambda: {"probabilities": model.choose(texts[0], choices)},
            )
        if task == NEXT:
            follows = {"text": texts[0], "text_pair": texts[-1]}
            return (
                f"{path}/next-sentence",
                follows,
                lambda: {"probability": model.next_sentence(texts[0], texts[-1])},
            )
        if task == FILL:
            mask = model.tokenizer.roles.mask
            masked = f"{draw.choice(self.words)} {mask} {self.text(draw)}"
            return (
                f"{path}/pipeline/fill-mask",
                {"inputs": masked},
                lambda: [
                    {
                        "score": f.probability,
                        "token": (id := model.tokenizer.id(f.piece)),
                        "token_str": model.tokenizer.text_of(id),
                        "sequence": f.text,
                    }
                    for f in model.fill_mask(masked)[0]
                ],
            )
        assert task == VECTORS
        vectors = {"inputs": texts, "normalize": False}
        return f"{path}/embed", vectors, lambda: model.embed(texts, normalize=False).tolist()


def labels(model: Model, a: list[str], b: list[str] | None) -> list[list[dict[str, Any]]]:
    """As the server answers, the most probable label of each text first."""
    found = model.predict(a, b)
    rows = [
        [{"label": n, "score": v} for n, v in zip(found.names, row, strict=True)]
        for row in found.values.tolist()
    ]
    return [sorted(row, key=lambda one: -one["score"]) for row in rows]


# ------------------------------------------------------------------------------------- the client


class Connection:
    """A connection that is kept open."""

    def __init__(self, port: int):
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.method = "POST"

    async def ask(self, path: str, body: bytes) -> tuple[int, bytes, float]:
        """The status, the body and the seconds since the last byte was sent."""
        if self.reader is None or self.writer is None:
            opened = await asyncio.open_connection("127.0.0.1", self.port)
            self.reader, self.writer = opened
        try:
            head = HEAD.format(method=self.method, path=path, length=len(body)).encode()
            self.writer.write(head + body)
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


@contextmanager
def serving(folders: list[str], *options: str) -> Iterator[tuple[int, int]]:
    """A server's port and process."""
    command = [sys.executable, "-m", "bothways", "serve", *folders, "--port", "0"]
    source = str(Path(bothways.__file__).parents[1])
    process = subprocess.Popen(
        [*command, "--engine", "onnxruntime", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)", process.stdout.readline())
        assert found, "the server did not start"
        yield int(found.group(1)), process.pid
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


# --------------------------------------------------------------------------------------- the trials


async def compare(
    port: int, pid: int, asked: list[tuple[str, bytes, Any]], connections: int
) -> bool:
    """All requests, each answer compared; memory."""
    found: Counter[str] = Counter()
    times: list[float] = []
    memory: dict[int, float] = {}
    left = iter(asked)

    async def one_client() -> None:
        connection = Connection(port)
        for path, body, expected in left:
            try:
                answer = await asyncio.wait_for(connection.ask(path, body), TIMEOUT)
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
            else:
                found["equal" if json.loads(content) == expected else "different"] += 1
            done = len(times)
            if done % (len(asked) // 5) == 0:
                memory[done] = resident(pid)
        connection.close()

    started = time.monotonic()
    await asyncio.gather(*(one_client() for _ in range(connections)))
    seconds = time.monotonic() - started
    first, last = memory.get(len(asked) // 5, 0.0), memory.get(len(asked), 0.0)
    growth = last / first - 1 if first else float("nan")
    print(f"{len(asked)} requests over {connections} connections: {dict(found)}")
    print(f"  {len(asked) / seconds:.0f} a second; p50 {p(times, 0.5):.1f} ms", end="")
    print(f", p99 {p(times, 0.99):.1f} ms")
    fifths = ", ".join(f"{memory[done]:.0f}" for done in sorted(memory))
    print(f"  memory {fifths} MiB after each fifth: {growth:+.1%} after the first")
    return found["equal"] == len(asked) and growth < 0.05


async def overload(port: int, path: str, body: bytes, deadline: float) -> bool:
    """Far more than the queue takes, all at once."""
    found: Counter[int] = Counter()
    refused: list[float] = []
    accepted: list[float] = []
    until = time.monotonic() + 8

    async def one_client() -> None:
        connection = Connection(port)
        while time.monotonic() < until:
            status, _, seconds = await asyncio.wait_for(connection.ask(path, body), TIMEOUT)
            found[status] += 1
            (refused if status == 429 else accepted).append(seconds)
            if status == 429:
                await asyncio.sleep(0.2)  # less than it was told to wait
        connection.close()

    await asyncio.gather(*(one_client() for _ in range(100)))
    print(f"overload by 100 connections: {dict(found)}")
    if not refused or not accepted:
        return False
    connection = Connection(port)
    connection.method = "GET"
    _, content, _ = await connection.ask("/metrics", b"")
    connection.close()
    rows = re.findall(r'refusal_seconds_bucket\{le="(\S+?)"\} (\S+)', content.decode())
    buckets = {float(edge): int(float(count)) for edge, count in rows}
    within, all_refused = buckets[0.1], buckets[float("inf")]
    share = [f"{1000 * edge:g} ms {count / all_refused:.2%}" for edge, count in buckets.items()]
    print(f"  the server refuses, after a request's last byte, within {', '.join(share[:7])}")
    print(f"  429 after p50 {p(refused, 0.5):.1f} ms, p99 {p(refused, 0.99):.1f} ms", end="")
    print(
        f", latest {1000 * max(refused):.1f} ms, as the client sees it; "
        f"accepted within {max(accepted):.1f} s"
    )
    return within == all_refused and max(accepted) < deadline and set(found) <= {200, 429}


async def trickle(port: int, asked: list[tuple[str, bytes, Any]], count: int) -> bool:
    """The p99 of eight clients, alone and beside connections that send a byte each second."""

    async def measure(seconds: float) -> list[float]:
        times: list[float] = []
        until = time.monotonic() + seconds

        async def one_client(number: int) -> None:
            connection = Connection(port)
            draw = random.Random(number)
            while time.monotonic() < until:
                path, body, _ = draw.choice(asked)
                status, _, passed = await asyncio.wait_for(connection.ask(path, body), TIMEOUT)
                assert status == 200, status
                times.append(passed)
            connection.close()

        await asyncio.gather(*(one_client(n) for n in range(8)))
        return times

    ended = asyncio.Event()

    async def slow_client(number: int) -> None:
        while not ended.is_set():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            whole = (
                HEAD.format(method="POST", path="/embed", length=1000)
                if number % 2
                else "POST /embed HT"
            )
            try:
                for character in whole + "x" * 100:
                    writer.write(character.encode())
                    await writer.drain()
                    await asyncio.sleep(1)
                    if ended.is_set() or reader.at_eof():
                        break
            except OSError:
                pass
            writer.close()

    alone, beside = [], []
    for _ in range(3):  # alternately, as the machine may be busy with other things
        alone += await measure(6)
        slow = [asyncio.create_task(slow_client(n)) for n in range(count)]
        await asyncio.sleep(3)
        beside += await measure(6)
        ended.set()
        await asyncio.gather(*slow)
        ended.clear()
    ratio = p(beside, 0.99) / p(alone, 0.99)
    print(f"{count} trickling connections: p99 of others {p(alone, 0.99):.1f} ms alone", end="")
    print(f" ({len(alone)}), {p(beside, 0.99):.1f} ms beside them ({len(beside)}): {ratio:.2f}")
    return ratio <= 1.5


def main() -> int:
    """All trials."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--trickling", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    sources = []
    for folder in given.folders:
        model = load(folder, engine="onnxruntime")
        special = set(model.tokenizer.special_ids.tolist())
        texts = [
            model.tokenizer.text_of(id)
            for id in range(model.tokenizer.vocab_size)
            if id not in special and model.tokenizer.starts_word[id]
        ]
        words = [word for word in texts if word.strip() and word.isprintable()]
        sources.append(Questions(Path(folder).name, model, words))
    drawn = [draw.choice(sources).draw(draw) for _ in range(given.requests)]
    started = time.monotonic()
    asked = [(path, json.dumps(body).encode(), expected()) for path, body, expected in drawn]
    # As JSON gives them back.
    asked = [(path, body, json.loads(json.dumps(value))) for path, body, value in asked]
    print(f"offline answers: {time.monotonic() - started:.0f} s", flush=True)
    good = []
    with serving(given.folders) as (port, pid):
        good.append(asyncio.run(compare(port, pid, asked, given.connections)))
        if given.trickling:
            good.append(asyncio.run(trickle(port, asked[:500], given.trickling)))
    many = json.dumps({"inputs": [sources[0].text(draw) for _ in range(64)]}).encode()
    path = f"{sources[0].path}/pipeline/feature-extraction"
    with serving(given.folders, "--limits.tokens", "12000") as (port, _):
        good.append(asyncio.run(overload(port, path, many, 30.0)))
    print("as it must be" if all(good) else "NOT as it must be")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
