"""Load a server that runs beside this script, and compare each answer with the offline one.

    python scripts/load_serve.py FOLDER [FOLDER ...] [--parts mixed trickle overload kill]

The folders may have any heads. It starts `bothways serve` for each part and prints:

- mixed: answers that differ (labels, or bits of scores; with `--within`, scores by more), are lost
  or hang; the growth of the server's memory after a fifth of the requests, which counts if there
  are 10,000;
- trickle: the p99 of others beside connections that send a byte each second;
- overload: how fast 429 comes, counted from the last byte read, and whether what is accepted keeps
  its deadline;
- kill: when a killed worker is replaced and answers, whether requests in its hands fail at the
  client, and how many the server says were lost.

It ends with status 1 if one of these is not as it must be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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

ASKED = (CLASSES, RANK, TAGS, ANSWERS, CHOOSE, NEXT, FILL, VECTORS, SIMILARITY)
PARTS = ("mixed", "trickle", "overload", "kill")
KILLS = 3
WARM = 2000
"""Requests after which a server's memory must stay."""
TIMEOUT = 300.0
HEAD = "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
Compare = Callable[[Any], bool]


# ------------------------------------------------------------------------------- what may be asked


class Questions:
    """Requests of all that a model does, with what their answers must be."""

    def __init__(self, name: str, model: Model, tasks: list[str]):
        self.path, self.model = f"/models/{name}", model
        self.tasks = [task for task in tasks if task in ASKED]
        tokenizer = model.tokenizer
        special = set(tokenizer.special_ids.tolist())
        texts = [
            tokenizer.text_of(id)
            for id in range(tokenizer.vocab_size)
            if id not in special and tokenizer.starts_word[id]
        ]
        self.words = [word for word in texts if word.strip() and word.isprintable()]

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
        if task == SIMILARITY:
            inputs = {"source_sentence": texts[0], "sentences": texts}
            return (
                f"{path}/similarity",
                {"inputs": inputs},
                lambda: similarities(model, [texts[0], *texts]),
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


def similarities(model: Model, texts: list[str]) -> list[float]:
    """Cosines of the first text with each of the others."""
    source, *others = model.embed(texts, normalize=True).astype(np.float64)
    return [float(np.dot(source, other)) for other in others]


def alike(found: Any, expected: Any, within: float) -> bool:
    """Whether answers are the same, their numbers within a distance; names in any order of scores
    that are nearer than that."""
    if isinstance(expected, float) and isinstance(found, float | int):
        return found == expected or abs(found - expected) <= within
    if isinstance(expected, dict) and isinstance(found, dict):
        return found.keys() == expected.keys() and all(
            alike(found[name], value, within) for name, value in expected.items()
        )
    if isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            return False
        if within and expected and isinstance(expected[0], dict):
            own = next((n for n in ("label", "token", "index") if n in expected[0]), None)
            if own:
                found, expected = ordered(found, own), ordered(expected, own)
        return all(alike(one, other, within) for one, other in zip(found, expected, strict=True))
    return bool(found == expected)


def ordered(rows: list[Any], own: str) -> list[Any]:
    """Labelled scores by their labels."""
    return sorted(rows, key=lambda row: str(row[own]))


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
        [*command, *options],
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


async def read(port: int, path: str) -> bytes:
    """The content of a page of the server."""
    connection = Connection(port)
    connection.method = "GET"
    _, content, _ = await connection.ask(path, b"")
    connection.close()
    return content


def resident(pid: int) -> float:
    """MiB of memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


def p(times: list[float], share: float) -> float:
    """A percentile, in milliseconds."""
    return 1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))]


# --------------------------------------------------------------------------------------- the trials


async def compare(
    port: int, pid: int, asked: list[tuple[str, bytes, Any]], connections: int, within: float
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
                same = alike(json.loads(content), expected, within)
                found["equal" if same else "different"] += 1
                if not same and found["different"] <= 3:
                    print(f"  {path} {body[:300]!r}: {content[:300]!r}, not {expected!r:.300}")
            done = len(times)
            if done % max(1, len(asked) // 5) == 0:
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
    warm = len(asked) // 5 >= WARM  # before, threads and sessions are still new
    return found["equal"] == len(asked) and (growth < 0.05 or not warm)


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
    content = await read(port, "/metrics")
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


async def kill(port: int, parent: int, asked: list[tuple[str, bytes, Any]], within: float) -> bool:
    """A worker of two is killed under load, several times."""
    found: Counter[str] = Counter()
    seconds: list[float] = []
    working: list[float] = []
    ended = asyncio.Event()

    async def one_client(number: int) -> None:
        connection, draw = Connection(port), random.Random(number)
        while not ended.is_set():
            path, body, expected = draw.choice(asked)
            try:
                answer = await asyncio.wait_for(connection.ask(path, body), TIMEOUT)
            except TimeoutError:
                found["hung"] += 1
            except (OSError, asyncio.IncompleteReadError):
                found["failed"] += 1
                await asyncio.sleep(0.05)
            else:
                if draw.random() < 0.1:  # or all would stay with the worker that lives longest
                    connection.close()
                same = answer[0] == 200 and alike(json.loads(answer[1]), expected, within)
                found["equal" if same else f"different ({answer[0]})"] += 1

    while len(workers(parent)) < 2 or not listen(port, workers(parent)):
        await asyncio.sleep(0.1)
    clients = [asyncio.create_task(one_client(number)) for number in range(16)]
    await asyncio.sleep(2)
    for _ in range(KILLS):
        before = workers(parent)
        os.kill(before[0], signal.SIGKILL)
        started = time.monotonic()
        while True:  # a new process has the port when it listens
            await asyncio.sleep(0.01)
            now = workers(parent)
            if len(now) == len(before) and before[0] not in now and listen(port, now):
                break
            assert time.monotonic() - started < TIMEOUT, "the worker was not replaced"
        seconds.append(time.monotonic() - started)
        (new,) = set(now) - set(before)
        working.append(processor_seconds(new))
        await asyncio.sleep(2)
    ended.set()
    await asyncio.gather(*clients)
    content = (await read(port, "/metrics")).decode()
    counted = {
        name: int(float(re.findall(rf"(?m)^bothways_{name}_total (\S+)", content)[0]))
        for name in ("replaced_workers", "lost_requests")
    }
    print(
        f"{KILLS} workers of 2 killed beside 16 clients: {dict(found)}; the server counts {counted}"
    )
    print(f"  replaced after {', '.join(f'{one:.2f}' for one in seconds)} s", end="")
    print(f", of which they worked {', '.join(f'{one:.2f}' for one in working)} s")
    return (
        set(found) <= {"equal", "failed"}
        and max(seconds) <= 2
        and counted["replaced_workers"] == KILLS
        and 0 < counted["lost_requests"] <= found["failed"]
    )


def processor_seconds(pid: int) -> float:
    """Of a process, up to now."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def workers(parent: int) -> list[int]:
    """The processes that a server with several has started to answer."""
    pids = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()
    found = []
    for pid in map(int, pids):
        with suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def listen(port: int, pids: list[int]) -> bool:
    """Whether each of these processes listens on a port."""
    own = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()]
    inodes = {row[9] for row in own[1:] if row[3] == "0A" and row[1].endswith(f":{port:04X}")}
    for pid in pids:
        links = set()
        with suppress(OSError):
            links = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
        if not links & {f"socket:[{inode}]" for inode in inodes}:
            return False
    return True


def main() -> int:
    """The parts that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument(
        "--distinct", type=int, help="different requests among them; all, if it is not given"
    )
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--trickling", type=int, default=500)
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--within", type=float, default=0.0, help="by which scores may differ")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    how = ("--engine", given.engine, "--precision", given.precision)
    with serving(given.folders, *how) as (port, _):
        tasks = {
            name: json.loads(asyncio.run(read(port, f"/models/{name}/info")))["tasks"]
            for name in (Path(folder).name for folder in given.folders)
        }
    sources = [
        Questions(
            (name := Path(folder).name),
            load(folder, engine=given.engine, precision=given.precision),
            tasks[name],
        )
        for folder in given.folders
    ]
    distinct = min(given.requests if "mixed" in given.parts else 500, given.distinct or 10**9)
    started = time.monotonic()
    asked = []
    for _ in range(distinct):
        path, body, expected = draw.choice(sources).draw(draw)
        # As JSON gives it back.
        asked.append((path, json.dumps(body).encode(), json.loads(json.dumps(expected()))))
    print(f"{distinct} offline answers: {time.monotonic() - started:.0f} s", flush=True)
    good = []
    for part in given.parts:
        if part == "overload":
            many = json.dumps({"inputs": [sources[0].text(draw) for _ in range(64)]}).encode()
            path = f"{sources[0].path}/pipeline/feature-extraction"
            with serving(given.folders, *how, "--limits.tokens", "12000") as (port, _):
                good.append(asyncio.run(overload(port, path, many, 30.0)))
        elif part == "kill":
            with serving(given.folders, *how, "--workers", "2") as (port, pid):
                good.append(asyncio.run(kill(port, pid, asked[:500], given.within)))
        else:
            # On a slow machine, so many connections would be refused: that is what overload is for.
            large = ("--limits.deadline", "600", "--limits.tokens", "1000000")
            with serving(given.folders, *how, *large) as (port, pid):
                if part == "mixed":
                    rest = draw.choices(asked, k=given.requests - distinct)
                    run = compare(port, pid, [*asked, *rest], given.connections, given.within)
                else:
                    run = trickle(port, asked[:500], given.trickling)
                good.append(asyncio.run(run))
        sys.stdout.flush()
    print("as it must be" if all(good) else "NOT as it must be")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
