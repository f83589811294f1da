"""What the server refuses, with which limit, and that the next request is served."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from bothways.cli import main
from bothways.errors import ConfigError
from bothways.serving.options import KEY, Limits, ServeConfig
from bothways.serving.protocol import LimitedProtocol
from bothways.serving.refusals import RefusedError
from bothways.serving.served import VECTORS
from bothways.serving.server import serve
from bothways.tokenization.tokenizer import Tokenizer
from serving_examples import Running, make_folders, offline, running

GOOD = {"inputs": "w1 w2 w3"}
QUESTION = {"question": "w1", "context": "w77 w2"}
SECRET = "w77"  # of no other text here


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    names = ("classes", "vectors", "pretrained", "choice", "reranker", "answers")
    folders = make_folders(tmp_path_factory.mktemp("models"), *names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bothways.serving.answers._LONGEST", 1_000_000)
        yield from serve_limited(folders)


def serve_limited(folders: dict[str, str]) -> Iterator[Running]:
    with running(folders, body=20_000, inputs=8, receipt=0.6, deadline=5.0) as found:
        yield found


def check_good(server: Running) -> None:
    answer = server.post("/models/classes", GOOD)
    assert answer.status_code == 200
    (row,) = answer.json()
    assert {one["label"] for one in row} == {"a", "b", "c"}


ROUTE = "/models/classes"
VECTORS_OF, RANKS_OF = "/models/vectors", "/models/reranker/rerank"


def asked(**parameters: Any) -> dict[str, Any]:
    return {**GOOD, "parameters": parameters}


BAD: list[tuple[str, Any, int, str, float | None]] = [
    (ROUTE, {"inputs": SECRET * 9000}, 413, "more than 20000 bytes", 20_000),
    (ROUTE, {"inputs": [SECRET] * 9}, 413, "9 inputs in one request", 8),
    ("/rerank", {"query": SECRET, "texts": [SECRET] * 9}, 413, "9 texts", 8),
    ("/models/choice/choose", {"context": "", "choices": ["a"] * 9}, 413, "9 choices", 8),
    (
        *(VECTORS_OF, {"inputs": {"source_sentence": "a", "sentences": [SECRET] * 9}}),
        *(413, "9 sentences", 8),
    ),
    ("/models/pretrained", {"inputs": "[MASK]" * 65}, 413, "65 masks", 64),
    ("/models/pretrained", {"inputs": "w1 " * 60 + "[MASK]"}, 422, "is beyond", None),
    (
        *("/models/pretrained", {**asked(top_k=2**62), "inputs": "[MASK]" + " " * 19_000}),
        *(413, "the answer would have", 1_000_000),
    ),
    (f"{VECTORS_OF}/embed_all", {"inputs": "w1 " * 4_500}, 413, "the answer wou", 1_000_000),
    (RANKS_OF, {"query": "a", "texts": ["w1 " * 90], "truncate": False}, 413, "than 40", 40),
    *(
        (ROUTE, body, 400, "not JSON", None)
        for body in (
            *(
                b"{",
                b"",
                b'{"inputs":' + b"[" * 19_000,
                b"inputs=w1",
                b'{"inputs":"w1"}{}',
                b'{"inputs":NaN}',
            ),
            *(b'{"inputs":"\\ud800"}', b'{"inputs":"\xe9"}', b'{"inputs":"\xed\xa0\x80"}'),
            *(
                json.dumps(GOOD).encode("utf-16"),
                b'{"inputs":' + b"[" * 9_000 + b"]" * 9_000 + b"}",
            ),
        )
    ),
    (ROUTE, {"inputs": []}, 422, "inputs is empty; give one or more", None),
    (RANKS_OF, {"query": SECRET, "texts": []}, 422, "texts is empty", None),
    (
        *(f"{VECTORS_OF}/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}),
        *(422, "sentences is empty", None),
    ),
    (f"{VECTORS_OF}/decode", {"ids": []}, 422, "ids is empty", None),
    (ROUTE, {}, 422, "missing required field `inputs`", None),
    (ROUTE, b"null", 422, "got `null`", None),
    *(
        (path, {**more, name: content}, 422, f"at `$.{name}", None)
        for path, name, more in (
            *((ROUTE, "inputs", {}), (f"{VECTORS_OF}/embed", "inputs", {})),
            (f"{VECTORS_OF}/pipeline/feature-extraction", "inputs", {}),
            ("/v1/embeddings", "input", {"model": "vectors"}),
            (RANKS_OF, "texts", {"query": SECRET}),
        )
        for content in (3, [77, 2], [[77, 2], [3]], [[SECRET]], ["a", None])
    ),
    ("/predict", {"inputs": [[77, 2]]}, 422, "got `int`", None),
    ("/predict", {"inputs": ["w1", "w2", "w3"]}, 422, "[first, second]", None),
    ("/predict", {"inputs": [["w1", "w2", "w3"]]}, 422, "length <= 2", None),
    ("/predict", {"inputs": ["w1", ["w2"]]}, 422, "lists alone, or none", None),
    (f"{VECTORS_OF}/decode", {"ids": [97_000]}, 422, "97000", None),
    (f"{VECTORS_OF}/decode", {"ids": [-1]}, 422, "-1", None),
    (f"{VECTORS_OF}/decode", {"ids": [2**70]}, 422, "is not one of the 97 pieces", None),
    ("/models/other", GOOD, 404, "no such model; there are: classes, vectors", None),
    ("/v1/embeddings", {"model": "other", "input": "w1"}, 404, "no such model", None),
    (f"{VECTORS_OF}/v1/embeddings", {"model": "classes", "input": "a"}, 422, "model must", None),
    ("/models/..%2f..%2fetc/embed", GOOD, 404, "no such model", None),
    ("/nothing", GOOD, 404, "no such route", None),
    ("/v1/chat/completions", {"model": "vectors"}, 404, "no such route", None),
    ("/pipeline/w5", GOOD, 404, "no such task; there are: text-class", None),
    ("/pipeline/text-ranking/reranker", GOOD, 422, "a route of its own", None),
    ("/models/choice", GOOD, 422, "a route of its own", None),
    ("/models/classes/rerank", {"query": "a", "texts": ["b"]}, 422, "not do text-rank", None),
    (f"{VECTORS_OF}/pipeline/fill-mask", GOOD, 422, "does not do fill-mask; it does fea", None),
    (ROUTE, {"inputs": QUESTION}, 422, "does not do question-answering", None),
    ("/models/reranker", GOOD, 422, "pairs of texts", None),
    ("/models/pretrained", {"inputs": "w1"}, 422, "has no [MASK]", None),
    ("/models/pretrained", {**asked(targets=["w777"]), "inputs": "[MASK]"}, 422, "no pie", None),
    (ROUTE, asked(top_k=0), 422, "`int` >= 1 - at `$.parameters.top_k`", None),
    (ROUTE, asked(threshold=1), 422, "unknown field `threshold`", None),
    (ROUTE, asked(function_to_apply="sigmoid"), 422, "must be softmax", None),
    (ROUTE, {**GOOD, "normalize": True}, 422, "unknown field `normalize`", None),
    (ROUTE, {**GOOD, "truncation_direction": "left"}, 422, "unknown field", None),
    (f"{VECTORS_OF}/embed", {**GOOD, "truncation_direction": "left"}, 422, "'left'", None),
    (f"{VECTORS_OF}/embed", {**GOOD, "prompt_name": "q"}, 422, "prompt_name", None),
    (f"{VECTORS_OF}/embed", {**GOOD, "dimensions": 8}, 422, "must be 16", None),
    ("/models/answers", {**asked(doc_stride=8), "inputs": QUESTION}, 422, "doc_stride", None),
    (
        *("/models/answers", {**asked(handle_impossible_answer=True), "inputs": QUESTION}),
        *(422, "always gives an answer", None),
    ),
    ("/models/classes/attribute", {"text": "w1", "target": "d"}, 422, "a, b, c", None),
]


@pytest.mark.parametrize(("path", "content", "status", "message", "limit"), BAD)
def test_bad_input_has_one_clear_answer_and_the_next_is_served(
    path: str,
    content: Any,
    status: int,
    message: str,
    limit: float | None,
    server: Running,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, logger="bothways.serving"):
        answer = server.post(path, content)
    found = answer.json()
    assert answer.status_code == status, found
    error = found["error"]["message"] if "/v1/" in path else found["error"]
    assert message in error
    assert found.get("limit") == limit
    assert found["error_type"]
    assert "Traceback" not in caplog.text
    assert SECRET not in server.get("/metrics").text
    assert SECRET not in caplog.text
    check_good(server)


def test_other_methods_and_routes(server: Running) -> None:
    answer = server.get("/embed")
    assert (answer.status_code, answer.json()["error_type"]) == (405, "method")
    assert answer.headers["allow"] == "POST"
    for path in ("/w77", "/models/w77/health", "/models/w77/info"):
        assert server.get(path).json()["error_type"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", f"/models/w77{below}") for below in ("", "/embed", "/pipeline/ner", "/nothing")),
        *(("GET", f"/models/w77{below}") for below in ("/health", "/ready", "/info", "/v1/models")),
        *(("GET", f"/v1/models/{name}") for name in ("w77", "owner/w77")),
        *(("POST", f"/pipeline/ner/{name}") for name in ("w77", "owner/w77", "classes/w77")),
        *(("POST", f"/models/owner/w77{below}") for below in ("", "/embed", "/pipeline/ner")),
        ("POST", "/hf-inference/models/owner/w77/pipeline/ner"),
        ("POST", "/hf-inference/pipeline/ner/owner/w77"),
        ("POST", "/models/w77/v1/embeddings"),
    ],
)
def test_a_model_that_there_is_not(server: Running, method: str, path: str) -> None:
    answer = server.client.request(method, path, json=GOOD if method == "POST" else None)
    assert (answer.status_code, answer.json()["error_type"]) == (404, "not_found")


def test_a_slash_at_the_end_is_nothing(server: Running) -> None:
    """A client would follow a redirection with its key, to whatever host the request named."""
    for path in (ROUTE, "/models/pretrained/tokenize"):
        plain, with_slash = (server.post(one, GOOD) for one in (path, f"{path}/"))
        assert (with_slash.status_code, with_slash.content) == (200, plain.content)
    assert server.get("/health/").json() == {"status": "ok"}
    assert server.get("/nothing/").json()["error_type"] == "not_found"


def test_a_defect_is_not_told(server: Running, monkeypatch: Any, caplog: Any) -> None:
    served = server.server.models["classes"]

    def broken(*_: Any) -> Any:
        raise ValueError(SECRET)

    monkeypatch.setattr(served.model, "predict", broken)
    answer = server.post(ROUTE, GOOD)
    assert answer.json() == {
        "error": "an error of the server; see its log.",
        "error_type": "internal",
    }
    assert answer.status_code == 500
    assert "ValueError" in caplog.text
    assert SECRET not in caplog.text


# ---------------------------------------------------------------------- HTTP that few clients send


HEADERS = b"POST /models/classes HTTP/1.1\r\nHost: x\r\n"
CLOSE = b"Connection: close\r\n"
BODY = b'{"inputs":"w1 w2 w3"}'
SIZE = b"Content-Length: 21\r\n\r\n"
FLOOD = b"".join(b"X-%d: w77\r\n" % n for n in range(30_000))
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
GOOD_STATUS = b"HTTP/1.1 200 "
HTTP: dict[str, tuple[bytes, bytes, bytes]] = {
    "far too much": (
        HEADERS + b"Content-Length: 999999999999\r\n\r\n",
        *(b"HTTP/1.1 413 ", b'"limit":20000'),
    ),
    "0.9": (b"GET /health\r\n\r\n", b"HTTP/1.1 400 ", b"malformed"),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(60), b"HTTP/1.1 400 ", b"malformed"),
    "a header": (
        HEADERS + b"X: " + b"w77" * 120_000 + b"\r\n" + SIZE,
        b"HTTP/1.1 400 ",
        b"too long",
    ),
    "long length": (
        HEADERS + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",
        b"HTTP/1.1 400 ",
        b"malf",
    ),
    "a great chunk": (HEADERS + CHUNKED + b"ffffffffff\r\nw77", b"HTTP/1.1 408 ", b'"limit":0.6'),
    "after chunks": (
        HEADERS + CHUNKED + b"15\r\n" + BODY + b"\r\n0\r\n" + FLOOD + b"\r\n",
        *(b"HTTP/1.1 400 ", b"malformed"),
    ),
    "short body": (HEADERS + SIZE + BODY[:-1], b"HTTP/1.1 408 ", b"receipt_timeout"),
    "slow headers": (HEADERS + b"X: w77\r\n", b"HTTP/1.1 408 ", b"receipt_timeout"),
    "method": (HEADERS.replace(b"POST", b"DELETE") + CLOSE + b"\r\n", b"HTTP/1.1 405 ", b"method"),
}


@pytest.mark.parametrize("name", HTTP)
def test_http_that_few_clients_send(server: Running, name: str, caplog: Any) -> None:
    sent, status, part = HTTP[name]
    with connect(server) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(sent)
        answer = all_of(connection)
    assert answer.startswith(status)
    assert part in answer[len(status) :]
    assert SECRET.encode() not in answer
    assert SECRET not in caplog.text
    check_good(server)


# -------------------------------------------------------------------------------- slow connections


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def all_of(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionResetError):  # the rest of a request was not read
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("begins", [b"", b"POST /mod", HEADERS + b"Content-Length: 50\r\n\r\n{"])
def test_a_request_that_trickles_is_ended(server: Running, begins: bytes) -> None:
    started = time.monotonic()
    with connect(server) as connection:
        connection.sendall(begins)
        answer = all_of(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["limit"] == 0.6
    assert 0.5 < time.monotonic() - started < 5
    check_good(server)


def test_a_chunked_body_without_end_is_ended(server: Running) -> None:
    with connect(server) as connection:
        connection.sendall(HEADERS + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"fa0\r\n" + b"x" * 4000 + b"\r\n"
        answer = b""
        try:
            for _ in range(200):
                connection.sendall(chunk)
        except OSError:
            pass
        try:
            answer = all_of(connection)
        except ConnectionResetError:
            answer = b"HTTP/1.1 413 "  # it was closed while we sent
    assert answer.startswith(b"HTTP/1.1 413 ")
    check_good(server)


LENGTH = len(json.dumps(GOOD))
WHOLE = HEADERS + f"Content-Length: {LENGTH}\r\n\r\n".encode() + json.dumps(GOOD).encode()
CLOSING = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
MANY = b"".join(b"X-%d: y\r\n" % n for n in range(90_000))
RAW: dict[str, tuple[bytes, list[int]]] = {
    "HTTP/1.0": (WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"), [200]),
    "pipelined": (WHOLE * 3 + CLOSING, [200, 200, 200, 200]),
    "pipelined behind a bad one": (
        WHOLE.replace(b'"inputs"', b'"inputx"') + WHOLE + CLOSING,
        [422, 200, 200],
    ),
    "a long header": (HEADERS + b"X: " + b"w77" * 300_000 + b"\r\n\r\n", [400]),
    "many headers": (HEADERS + MANY + b"\r\n", [400]),
    "a long path": (b"POST /" + b"w77" * 300_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", [400]),
    "two lengths": (WHOLE.replace(b"Host: x", b"Host: x\r\nContent-Length: 3"), [400]),
    "a length below 0": (HEADERS + b"Content-Length: -1\r\n\r\n", [400]),
    "a length that is no number": (HEADERS + b"Content-Length: w77\r\n\r\n", [400]),
    "chunked, badly": (HEADERS + b"Transfer-Encoding: chunked\r\n\r\nw77\r\n", [400]),
    "chunked, badly later": (
        HEADERS + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nw77\r\n",
        [400],
    ),
    **{
        f"two framings, {path}": (
            WHOLE.replace(b"/models/classes", path.encode()).replace(
                b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            )
            + CLOSING,
            [status],
        )
        for path, status in ((ROUTE, 400), ("/nothing", 404))
    },
    "another coding": (HEADERS + b"Transfer-Encoding: gzip, chunked\r\n\r\n", [400]),
    "chunked": (
        HEADERS + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"%x\r\n%s\r\n0\r\n\r\n" % (LENGTH, json.dumps(GOOD).encode()),
        [200],
    ),
    "no Host": (b"POST / HTTP/1.1\r\n\r\n", [400]),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [404]),
    "a body where none belongs": (
        b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n" + b"w77w77w77" + CLOSING,
        [200, 200],
    ),
    "no route, with a body": (WHOLE.replace(b"/models", b"/w77") + CLOSING, [404]),
    "an upgrade": (
        WHOLE.replace(b"Host: x", b"Host: x\r\nConnection: upgrade\r\nUpgrade: h2c") + CLOSING,
        [200, 200],
    ),
    "gzip": (WHOLE.replace(b"Host: x", b"Host: x\r\nContent-Encoding: gzip"), [415]),
    "not compressed": (
        WHOLE.replace(b"Host: x", b"Host: x\r\nContent-Encoding: identity") + CLOSING,
        [200, 200],
    ),
    "another type": (
        WHOLE.replace(b"Host: x", b"Host: x\r\nContent-Type: text/plain") + CLOSING,
        [200, 200],
    ),
}


@pytest.mark.parametrize("name", RAW)
def test_odd_requests_are_answered_in_json_and_the_next_is_served(
    server: Running, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent, expected = RAW[name]
    with connect(server) as connection:
        connection.sendall(sent)
        answers = all_of(connection)
    assert [int(code) for code in re.findall(rb"HTTP/1\.1 (\d+) ", answers)] == expected
    for body in re.split(rb"HTTP/1\.1 \d+ .*?\r\n\r\n", answers, flags=re.DOTALL)[1:]:
        json.loads(body)
    assert SECRET not in caplog.text
    assert "Traceback" not in caplog.text
    check_good(server)


def test_an_answer_does_not_wait_for_an_acknowledgement(server: Running, monkeypatch: Any) -> None:
    """Of its first part, which clients send 40 ms later."""
    made, options = LimitedProtocol.connection_made, []

    def connection_made(self: LimitedProtocol, transport: Any) -> None:
        made(self, transport)
        own = transport.get_extra_info("socket")
        options.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(LimitedProtocol, "connection_made", connection_made)
    with connect(server) as connection:
        connection.sendall(CLOSING)
        assert all_of(connection).startswith(b"HTTP/1.1 200 ")
    assert options
    assert all(options)


def test_a_client_that_asks_before_it_sends(server: Running) -> None:
    head, _, body = WHOLE.partition(b"\r\n\r\n")
    with connect(server) as connection:
        connection.sendall(head + b"\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert all_of(connection).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_leaves(server: Running) -> None:
    for sent in (WHOLE[:-3], WHOLE):
        for _ in range(3):
            with connect(server) as connection:
                connection.sendall(sent)
    check_good(server)
    in_flight, until = server.server.metrics.in_flight._value, time.monotonic() + 5
    while in_flight.get() and time.monotonic() < until:
        time.sleep(0.01)
    assert in_flight.get() == 0


def test_of_two_fields_of_one_name_the_last_counts(server: Running) -> None:
    twice = b'{"inputs":"w9","inputs":"w1 w2 w3"}'
    assert server.post(ROUTE, twice).json() == server.post(ROUTE, GOOD).json()


def test_what_is_no_http(server: Running) -> None:
    with connect(server) as connection:
        connection.sendall(b"w77\r\n\r\n")
        answer = all_of(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"error_type":"malformed"' in answer
    assert SECRET.encode() not in answer


def test_the_slowest_connection_goes_if_there_are_too_many(tmp_path: Path) -> None:
    folders = make_folders(tmp_path, "classes")
    with running(folders, connections=4, receipt=20.0) as server:
        slow = [connect(server) for _ in range(4)]
        for connection in slow:
            connection.sendall(b"POST")
            time.sleep(0.02)
        check_good(server)
        assert all_of(slow[0]).startswith(b"HTTP/1.1 503 ")
        slow[1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            slow[1].recv(1)
        for connection in slow:
            connection.close()


# --------------------------------------------------------------------------------------- overload


def test_answers_that_are_not_read_are_dropped(server: Running, tmp_path: Path) -> None:
    """Not those that are read slowly."""
    page, pages = len(server.get("/").content), 600  # 20 MB, more than the system keeps
    with running(make_folders(tmp_path, "vectors"), deadline=1.0) as own:
        with connect(own) as stuck, connect(own) as slow:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for connection in (stuck, slow):
                connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * pages)
            size = 0
            for _ in range(30):
                size += len(slow.recv(200_000))
                time.sleep(0.1)
            refused = own.server.metrics.refused.labels("unread")
            assert refused._value.get() == 1
            slow.shutdown(socket.SHUT_WR)
            assert size + len(all_of(slow)) > page * pages
        assert own.get("/health").status_code == 200


def test_overload_is_refused_at_once_and_the_accepted_are_served(tmp_path: Path) -> None:
    """A slow engine, four requests' worth of queue, forty requests."""
    text = " ".join(["w5"] * 30)
    folders = make_folders(tmp_path, "classes")
    with running(folders, tokens=150, deadline=20.0) as server:
        served = server.server.models["classes"]
        compute, hold = served.batcher._engine.compute, threading.Event()

        def slow(*given: Any, **how: Any) -> Any:
            hold.wait(10)
            return compute(*given, **how)

        served.batcher._engine.compute = slow  # type: ignore[method-assign]

        def ask(_: int) -> tuple[int, float, httpx.Response]:
            started = time.monotonic()
            answer = server.post(ROUTE, {"inputs": text})
            return answer.status_code, time.monotonic() - started, answer

        with ThreadPoolExecutor(40) as pool:
            waiting = [pool.submit(ask, n) for n in range(40)]
            deadline = time.monotonic() + 10
            while sum(one.done() for one in waiting) < 30 and time.monotonic() < deadline:
                time.sleep(0.01)
            hold.set()
            found = [one.result() for one in waiting]
        refused = [answer for status, _, answer in found if status == 429]
        accepted = [answer for status, _, answer in found if status == 200]
        assert len(refused) + len(accepted) == 40
        assert len(refused) >= 30
        assert accepted
        for answer in refused:
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error_type"] == "overloaded"
            assert answer.json()["limit"] == 150
        expected = offline(folders["classes"]).predict([text]).values[0]
        for answer in accepted:
            assert sorted(one["score"] for one in answer.json()[0]) == sorted(expected.tolist())
        assert served._reserved == 0
        check_good(server)


def test_what_others_sent_refuses_nothing_for_good(tmp_path: Path) -> None:
    """Tokens are estimated by characters, and what is learned of them is for the queue alone."""
    many = [["w5 " * 100]]
    with running(make_folders(tmp_path, "vectors"), tokens=150) as server:
        served = server.server.models["vectors"]
        for learned in (0.1, 4.0):
            served._seen_characters, served._seen_tokens = 1000, 1000 * learned
            served._reserve(-served.admit(many, VECTORS).reserved)
            with pytest.raises(RefusedError, match="send at most 150 at a time"):
                served.admit([["w5 " * 1667 + "ww"]], VECTORS)
        assert served._reserved == 0


def test_past_its_deadline_nothing_is_computed(tmp_path: Path) -> None:
    with running(make_folders(tmp_path, "classes"), deadline=0.4) as server:
        engine = server.server.models["classes"].batcher._engine
        compute, hold, computed = engine.compute, threading.Event(), []

        def slow(batch: Any, *given: Any, **how: Any) -> Any:
            computed.append(batch.sequences)
            hold.wait(10)
            return compute(batch, *given, **how)

        engine.compute = slow  # type: ignore[method-assign]
        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(server.post, ROUTE, GOOD)]
            until = time.monotonic() + 20
            while not computed and time.monotonic() < until:
                time.sleep(0.01)
            asked += [pool.submit(server.post, ROUTE, GOOD) for _ in range(2)]
            while server.server.metrics.in_flight._value.get() < 3 and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.5)
            hold.set()
            found = [one.result() for one in asked]
        for answer in found[1:]:
            assert (answer.status_code, answer.json()["error_type"]) == (504, "deadline")
        assert sum(computed) == 1


def test_what_outlives_its_deadline_holds_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    """Neither room in the queue, nor a turn, a place at the gate or a thread."""
    hold = threading.Event()

    def stuck(encode: Any) -> Any:
        def encode_later(self: Tokenizer, texts: Any, *given: Any, **how: Any) -> Any:
            if SECRET in texts[0]:
                hold.wait(30)
            return encode(self, texts, *given, **how)

        return encode_later

    for name in ("encode_batch", "encode_plain"):
        monkeypatch.setattr(Tokenizer, name, stuck(getattr(Tokenizer, name)))
    body = {"inputs": SECRET}
    with running(make_folders(tmp_path, "classes"), deadline=0.3) as server:
        served = server.server.models["classes"]
        with ThreadPoolExecutor(80) as pool:
            for path in ("/tokenize", ROUTE):
                sent = [pool.submit(server.post, path, body) for _ in range(40)]
                statuses = {one.result().status_code for one in sent}
                assert statuses == {504}
                assert served._reserved == 0
                check_good(server)
                assert server.post("/tokenize", GOOD).status_code == 200
        hold.set()


def test_a_request_that_is_too_much_alone_is_not_told_to_come_back(tmp_path: Path) -> None:
    with running(make_folders(tmp_path, "vectors"), tokens=100) as server:
        answer = server.post("/embed", {"inputs": "w5 " * 900})
        assert (answer.status_code, answer.json()["limit"]) == (413, 100)


# ------------------------------------------------------------------------------------ who may ask


def test_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "s3cret")
    with running(make_folders(tmp_path, "classes")) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}):
            answer = server.post(ROUTE, GOOD, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        good = server.post(ROUTE, GOOD, headers={"Authorization": "Bearer s3cret"})
        assert good.status_code == 200
        assert server.get("/health").status_code == server.get("/ready").status_code == 200
        assert server.get("/metrics").status_code == 401


@pytest.mark.parametrize("key", ["s3cret\n", " s3cret", "schlüssel"])
def test_a_key_as_files_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """With a line break at its end no client could send it."""
    monkeypatch.setenv(KEY, key)
    with running(make_folders(tmp_path, "vectors")) as own:
        for sent, status in ((key.strip(), 200), ("other", 401), (f"{key.strip()}x", 401)):
            headers = {"Authorization": f"Bearer {sent}".encode()}
            assert own.get("/info", headers=headers).status_code == status
        heads = [own.client.head(path).status_code for path in ("/health", "/ready", "/info")]
        assert heads == [200, 200, 401]


def test_everyone_may_not_use_it_unless_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    assert main(["serve", str(tmp_path), "--host", "0.0.0.0"]) == 1
    assert "there is no BOTHWAYS_KEY" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (("a", "b/a"), "'b/a' needs a name of its own"),
        (("x y=a",), "needs a name of its own"),
        ((), "no model given"),
    ],
)
def test_names(models: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serve(ServeConfig(models=models))


def test_a_port_in_use_and_limits(tmp_path: Path, server: Running) -> None:
    with pytest.raises(ConfigError, match=f"port {server.port}: Address already in use"):
        serve(ServeConfig(models=(str(tmp_path),), port=server.port))
    with pytest.raises(ConfigError, match=r"port is 65536; it must be in \[0, 65535\]"):
        ServeConfig(models=(str(tmp_path),), port=65_536)
    with pytest.raises(ConfigError, match=r"limits_deadline is 0"):
        Limits(deadline=0)


# ------------------------------------------------------------------------------------------- ready


OTHER_PAGE = "http://localhost:3000"


@pytest.mark.parametrize("origins", [(), (OTHER_PAGE,), ("*",)])
def test_scripts_of_other_pages(
    origins: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "secret")
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }
    with running(make_folders(tmp_path, "classes"), origins=origins) as server:
        for origin in (OTHER_PAGE, "http://elsewhere.example"):
            expected = {OTHER_PAGE: origin, "*": "*"}.get(origins[0]) if origins else None
            if origins == (OTHER_PAGE,) and origin != OTHER_PAGE:
                expected = None
            before = server.client.options(ROUTE, headers={"Origin": origin, **asks})
            assert (before.status_code == 200) == (expected is not None)
            for key, status in (("secret", 200), ("other", 401)):
                headers = {"Origin": origin, "Authorization": f"Bearer {key}"}
                answer = server.post(ROUTE, GOOD, headers=headers)
                assert answer.status_code == status
                for found in (before, answer):
                    assert found.headers.get("Access-Control-Allow-Origin") == expected
            if expected:
                allowed = before.headers["Access-Control-Allow-Headers"].lower()
                assert {"authorization", "content-type"} <= {*re.split(", ?", allowed)}


def test_ready_while_nothing_holds_the_engine(tmp_path: Path) -> None:
    with running(make_folders(tmp_path, "classes", "vectors")) as server:
        batcher = server.server.models["vectors"].batcher
        assert server.get("/ready").json() == {"status": "ok"}
        batcher._started = time.monotonic() - 60
        ready = {path: server.get(f"{path}/ready").status_code for path in ("", ROUTE)}
        assert ready == {"": 503, ROUTE: 200}
        assert server.get(f"{VECTORS_OF}/ready").json() == {"status": "not ready"}
        assert server.get(f"{VECTORS_OF}/health").status_code == 200
        batcher._started = None
        assert batcher.stop(10)
        assert server.get(f"{VECTORS_OF}/ready").status_code == 503
        assert server.get("/models/w77/ready").status_code == 404
