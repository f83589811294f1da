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
import numpy as np
import pytest

from bothways.cli import main
from bothways.errors import ConfigError
from bothways.serving.batching import Ticket
from bothways.serving.options import KEY, Limits, ServeConfig
from bothways.serving.protocol import LimitedProtocol
from bothways.serving.refusals import RefusedError, is_deeper
from bothways.serving.served import VECTORS
from bothways.serving.server import serve
from bothways.tokenization.tokenizer import Encoding, Tokenizer
from serving_examples import Running, make_folders, offline, running

GOOD = {"inputs": "w1 w2 w3"}
QUESTION = {"question": "w1", "context": "w77 w2"}
SECRET = "w77"  # of no other text here
DEEP = b"[" * 40 + b"]" * 40


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


LONG = SECRET * 9000
ROUTE = "/models/classes"
BAD: dict[str, tuple[str, Any, int, str, float | None]] = {
    "body": (ROUTE, {"inputs": LONG}, 413, "more than 20000 bytes", 20_000),
    "inputs": (ROUTE, {"inputs": [SECRET] * 9}, 413, "9 inputs in one request", 8),
    "texts": ("/rerank", {"query": SECRET, "texts": [SECRET] * 9}, 413, "9 texts", 8),
    "depth": (ROUTE, b'{"inputs":' + DEEP + b"}", 413, "more than 16 deep", 16),
    "elsewhere": (ROUTE, b'{"options":{"a":' + DEEP + b"}}", 413, "more than 16 deep", 16),
    "very deep": (ROUTE, b"[" * 9_000 + b"]" * 9_000, 413, "more than 16 deep", 16),
    "open": (ROUTE, b"[" * 19_000, 413, "more than 16 deep", 16),
    "broken": (ROUTE, b"{", 400, "not JSON that can be read", None),
    "nul": (ROUTE, {"inputs": [SECRET, f"{SECRET}\0"]}, 422, "input 2 has a NUL character", None),
    "surrogate": (ROUTE, b'{"inputs":"w77 \\ud800"}', 400, "a surrogate without its other", None),
    "latin": (ROUTE, b'{"inputs":"w77 \xe9"}', 400, "not UTF-8", None),
    "empty": (ROUTE, {"inputs": []}, 422, "inputs is empty; give one or more", 8),
    "nothing": (ROUTE, b"", 400, "not JSON that can be read", None),
    "no inputs": (ROUTE, {}, 422, "missing required field `inputs`", None),
    "a number": (ROUTE, {"inputs": 3}, 422, "got `int` - at `$.inputs`", None),
    "ids": ("/v1/embeddings", {"model": "vectors", "input": [[1, 2]]}, 422, "token ids", None),
    **{
        f"{what} for {path}": (path, {**more, name: content}, 422, f"{name} has {message}", None)
        for path, name, more in (
            (ROUTE, "inputs", {}),
            ("/models/vectors/pipeline/feature-extraction", "inputs", {}),
            ("/models/vectors/embed", "inputs", {}),
            ("/models/vectors/tokenize", "inputs", {}),
            ("/v1/embeddings", "input", {"model": "vectors"}),
            ("/models/reranker/rerank", "texts", {"query": SECRET}),
            ("/models/choice/choose", "choices", {"context": SECRET}),
        )
        for what, content, message in (
            ("a list of ids", [77, 2], "numbers or lists where texts are meant; send one list"),
            ("lists of ids", [[77, 2], [3]], "numbers or lists where texts are meant"),
            ("lists of texts", [[SECRET], ["a", "b"]], "numbers or lists where texts are meant"),
            ("texts and lists", [SECRET, [SECRET]], "numbers or lists where texts are meant"),
        )
    },
    "null in a list": ("/embed", {"inputs": ["a", None]}, 422, "got `null`", None),
    "ids for labels": ("/predict", {"inputs": [[77, 2]]}, 422, "has numbers or lists", None),
    "sentences of ids": (
        *("/similarity", {"inputs": {"source_sentence": SECRET, "sentences": [[77]]}}),
        *(422, "sentences has numbers or lists where texts", None),
    ),
    "unknown": ("/models/other", GOOD, 404, "no such model; there are: classes, vectors", None),
    "unknown below": ("/models/w77/embed", GOOD, 404, "no such model", None),
    "no route": ("/models/classes/nothing", GOOD, 404, "no such route", None),
    "head": ("/models/classes/rerank", {"query": "a", "texts": ["b"]}, 422, "not do text-r", None),
    "task": ("/models/vectors/pipeline/fill-mask", GOOD, 422, "does not do fill-mask", None),
    "task of another": (
        *("/models/vectors/pipeline/fill-mask", GOOD),
        *(422, "sentence-similarity, attention. For it name another: pretrained.", None),
    ),
    "no mask": ("/models/pretrained", {"inputs": SECRET}, 422, "has no [MASK]", None),
    "target": (
        *("/models/pretrained", {"inputs": "[MASK]", "parameters": {"targets": ["w777"]}}),
        *(422, "target 1 of 1 is no piece", None),
    ),
    "parameter": (ROUTE, {**GOOD, "parameters": {"threshold": 1}}, 422, "threshold", None),
    "function": (
        *(ROUTE, {**GOOD, "parameters": {"function_to_apply": "sigmoid"}}),
        *(422, "function_to_apply must be softmax", None),
    ),
    "choice": (ROUTE, {**GOOD, "parameters": {"function_to_apply": SECRET}}, 422, "choices", None),
    "one choice": ("/models/choice/choose", {"context": SECRET, "choices": ["w1"]}, 422, "", None),
    "prompt": ("/models/vectors/embed", {**GOOD, "prompt_name": "q"}, 422, "prompt_name", None),
    "dimensions": ("/models/vectors/embed", {**GOOD, "dimensions": 8}, 422, "must be 16", None),
    "triple": ("/predict", {"inputs": ["w1", "w2", "w3"]}, 422, "Expected a text", None),
    "pairs": ("/models/reranker", {"inputs": "w1"}, 422, "pairs of texts", None),
    "ids out of range": ("/models/vectors/decode", {"ids": [97_000]}, 422, "97000", None),
    "an id below 0": ("/models/vectors/decode", {"ids": [-1]}, 422, "-1", None),
    "a huge id": ("/models/vectors/decode", b'{"ids":[1' + b"0" * 30 + b"]}", 422, "", None),
    "a longer id": ("/models/vectors/decode", b'{"ids":[1' + b"0" * 9_000 + b"]}", 422, "", None),
    "ids deep": ("/models/vectors/decode", b'{"ids":' + DEEP + b"}", 413, "more than 16", 16),
    "targets deep": (
        *("/models/pretrained", b'{"inputs":"[MASK]","parameters":{"targets":' + DEEP + b"}}"),
        *(413, "more than 16 deep", 16),
    ),
    "deep in an object": (
        *(ROUTE, b'{"inputs":{"text":' + b'{"a":' * 40 + b"1" + b"}" * 42),
        *(413, "more than 16 deep", 16),
    ),
    "a huge number": (
        *(ROUTE, b'{"inputs":"w77","parameters":{"top_k":1e999}}'),
        *(422, "$.parameters.top_k", None),
    ),
    "top_k 0": (ROUTE, {**GOOD, "parameters": {"top_k": 0}}, 422, "top_k must be at least 1", None),
    "nan": (ROUTE, b'{"inputs":NaN}', 400, "not JSON that can be read", None),
    "two documents": (ROUTE, b'{"inputs":"w77"}{"inputs":"w77"}', 400, "not JSON", None),
    "utf-16": (ROUTE, json.dumps(GOOD).encode("utf-16"), 400, "", None),
    "a cut character": (ROUTE, b'{"inputs":"w77 \xe2\x82"}', 400, "not UTF-8", None),
    "an overlong character": (ROUTE, b'{"inputs":"w77 \xc0\x80"}', 400, "not UTF-8", None),
    "a surrogate in UTF-8": (ROUTE, b'{"inputs":"w77 \xed\xa0\x80"}', 400, "not UTF-8", None),
    "a surrogate's name": (ROUTE, b'{"\\udc00":1}', 400, "a surrogate without its other", None),
    "nul in a query": ("/rerank", {"query": "\0w77", "texts": ["w1"]}, 422, "NUL character", None),
    "nul in a target": (
        *("/models/pretrained", {"inputs": "[MASK]", "parameters": {"targets": ["w77\0"]}}),
        *(422, "target 1 of 1", None),
    ),
    "a text as a name": (ROUTE, {"inputs": {"Dear w77 ` - at `$": 1}}, 422, "of another", None),
    "no texts": ("/rerank", {"query": SECRET, "texts": []}, 422, "texts is empty", 8),
    "no choices": ("/models/choice/choose", {"context": "w77", "choices": []}, 422, "empty", 8),
    "no sentences": (
        *("/models/vectors/similarity", {"inputs": {"source_sentence": "w77", "sentences": []}}),
        *(422, "sentences is empty", 8),
    ),
    "no ids": ("/models/vectors/decode", {"ids": []}, 422, "ids is empty", 8),
    "no parts": (ROUTE, {"inputs": {}}, 422, "inputs must have text", None),
    "a question alone": (ROUTE, {"inputs": {"question": "w77"}}, 422, "does not do quest", None),
    "no such model": ("/v1/embeddings", {"model": "w77", "input": "w1"}, 404, "there are", None),
    "nul in a path": ("/models/%00/embed", GOOD, 404, "no such model", None),
    "up a path": ("/models/..%2f..%2fetc/embed", GOOD, 404, "no such model", None),
    "no such task": ("/pipeline/w77", GOOD, 404, "no such task; there are: text-class", None),
    "no such task of a model": ("/models/classes/pipeline/w77", GOOD, 404, "no such task", None),
    "no such task before a model": ("/pipeline/w77/classes", GOOD, 404, "no such task", None),
    "a task with a route of its own": (
        *("/pipeline/text-ranking/reranker", GOOD),
        *(422, "a route of its own; see /openapi.json", None),
    ),
    "a form": (ROUTE, b"inputs=w77", 400, "not JSON that can be read", None),
    "too many sentences": (
        *("/models/vectors", {"inputs": {"source_sentence": "a", "sentences": [SECRET] * 9}}),
        *(413, "9 inputs in one request", 8),
    ),
    "ids beyond 64 bits": (
        "/models/vectors/decode",
        {"ids": [2**70]},
        422,
        "ids are 0 to 96",
        None,
    ),
    "nul in a context": (
        *("/models/answers", {"inputs": {"question": SECRET, "context": "w77\0"}}),
        *(422, "NUL character", None),
    ),
    "nul in the model": ("/v1/embeddings", {"model": "w77\0", "input": "a"}, 404, "no such", None),
    "half a pair": (ROUTE, b'{"inputs":["w77","\\udc00\\ud83d"]}', 400, "a surrogate", None),
    "surrogate in bytes": (ROUTE, b'{"inputs":"w77\xed\xa0\x80"}', 400, "not UTF-8", None),
    "surrogate in a name": (ROUTE, b'{"inputs":"w77","\\ud800":1}', 400, "a surrogate", None),
    "UTF-16": (ROUTE, '{"inputs":"w77"}'.encode("utf-16"), 400, "not JSON that can be", None),
    "NaN": (ROUTE, b'{"inputs":"w77","parameters":{"top_k":NaN}}', 400, "not JSON", None),
    "infinite": (ROUTE, b'{"inputs":"","parameters":{"top_k":1e400}}', 422, "out of range", None),
    "null": (ROUTE, b"null", 422, "got `null`", None),
    "nothing in it": (ROUTE, {"inputs": {}}, 422, "must have text", None),
    "choices": ("/models/choice/choose", {"context": "", "choices": ["a"] * 9}, 413, "9 ch", 8),
    "ids in a query": ("/rerank", {"query": [1], "texts": ["a"]}, 422, "got `array`", None),
    "ids to rank": ("/rerank", {"query": SECRET, "texts": [[1]]}, 422, "token ids", None),
    "ids for TEI": ("/models/vectors/embed", {"inputs": [[1, 2]]}, 422, "token ids", None),
    "masks": (*("/models/pretrained", {"inputs": "[MASK] " * 9}), *(413, "9 times [MASK]", 8)),
    "a far mask": (
        *("/models/pretrained", {"inputs": "w77 " * 60 + "[MASK]"}),
        *(422, "text 1: [MASK] number 1 of 1 is beyond", None),
    ),
    "all fillings": (
        *(
            "/models/pretrained",
            {"inputs": "[MASK]" + " " * 19_000, "parameters": {"top_k": 2**62}},
        ),
        *(413, "the answer would have", 1_000_000),
    ),
    "vectors of all tokens": (
        *("/models/vectors/embed_all", {"inputs": "w77 " * 4_500}),
        *(413, "the answer would have", 1_000_000),
    ),
    "a side beside the inputs": (
        ROUTE,
        {**GOOD, "truncation_direction": "left"},
        422,
        "has no",
        None,
    ),
    "dimensions beside": ("/models/pretrained", {**GOOD, "dimensions": 3}, 422, "has no eff", None),
    "a parameter of similarity": (
        "/models/vectors/similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"top_k": 1}},
        *(422, "parameters.top_k is not taken for sentence-similarity", None),
    ),
    "a window of one's own": (
        *("/models/answers", {"inputs": QUESTION, "parameters": {"doc_stride": 8}}),
        *(422, "parameters.doc_stride is not taken for question-answering", None),
    ),
    "labels of one's own": (
        *(ROUTE, {**GOOD, "parameters": {"candidate_labels": [SECRET]}}),
        *(422, "parameters.candidate_labels is not taken for text-classification", None),
    ),
    "no answer where there is always one": (
        *(
            "/models/answers",
            {"inputs": QUESTION, "parameters": {"handle_impossible_answer": True}},
        ),
        *(422, "was not fine-tuned on questions without an answer", None),
    ),
    "an answer of no token": (
        *("/models/answers", {"inputs": QUESTION, "parameters": {"max_answer_len": 0}}),
        *(422, "parameters.max_answer_len must be at least 1", None),
    ),
    "texts to rank uncut": (
        "/models/reranker/rerank",
        {"query": "w1", "texts": [f"{SECRET} " * 90], "truncate": False},
        *(413, "more than 40 tokens", 40),
    ),
    "another model than the path's": (
        "/models/vectors/v1/embeddings",
        {"model": "classes", "input": "w1"},
        *(422, "model must be vectors", None),
    ),
    "no such route of OpenAI's": ("/v1/chat/completions", {"model": "w77"}, 404, "no such r", None),
    "a label that is none": (
        *("/models/classes/attribute", {"text": "w1", "target": SECRET}),
        *(422, "target is none of this model's: a, b, c", None),
    ),
    "no targets": (
        *("/models/pretrained", {"inputs": "[MASK]", "parameters": {"targets": []}}),
        *(422, "targets is empty", None),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_has_one_clear_answer_and_the_next_is_served(
    server: Running, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, content, status, message, limit = BAD[name]
    with caplog.at_level(logging.DEBUG, logger="bothways.serving"):
        answer = server.post(path, content)
    found = answer.json()
    assert answer.status_code == status, found
    error = found["error"]["message"] if "/v1/" in path else found["error"]
    assert message in error
    assert found.get("limit") == limit
    assert found["error_type"]
    assert SECRET not in answer.text
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
        ("GET", "/models/w77/nothing"),
    ],
)
def test_a_model_that_there_is_not(server: Running, method: str, path: str) -> None:
    answer = server.client.request(method, path, json=GOOD if method == "POST" else None)
    error = answer.json()["error"]
    assert answer.status_code == 404, error
    message = error["message"] if "/v1/" in path else error
    assert message == (
        "no such model; there are: classes, vectors, pretrained, choice, reranker, answers."
    )


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


@pytest.mark.parametrize(
    ("text", "depth"),
    [(b"[]", 1), (b'{"a":[[],[]]}', 3), (b'["[[[[[[[[[[","\\"[["]', 1), (b'[{"a":[{}]}]', 4)],
)
def test_depth(text: bytes, depth: int) -> None:
    assert is_deeper(text, depth - 1) == (depth > 0 and b"[" in text)
    assert not is_deeper(text, depth)


# ---------------------------------------------------------------------- HTTP that few clients send


HEADERS = b"POST /models/classes HTTP/1.1\r\nHost: x\r\n"
CLOSE = b"Connection: close\r\n"
BODY = b'{"inputs":"w1 w2 w3"}'
SIZE = b"Content-Length: 21\r\n\r\n"
FLOOD = b"".join(b"X-%d: w77\r\n" % n for n in range(30_000))
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
GOOD_STATUS = b"HTTP/1.1 200 "
HTTP: dict[str, tuple[bytes, bytes, bytes]] = {
    "expects too much": (
        HEADERS + b"Expect: 100-continue\r\nContent-Length: 20001\r\n\r\n",
        *(b"HTTP/1.1 413 ", b'"limit":20000'),
    ),
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
            [400],
        )
        for path in (ROUTE, "/nothing")
    },
    "another coding": (HEADERS + b"Transfer-Encoding: gzip, chunked\r\n\r\n", [400]),
    "chunked": (
        HEADERS + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"%x\r\n%s\r\n0\r\n\r\n" % (LENGTH, json.dumps(GOOD).encode()),
        [200],
    ),
    "no Host": (b"POST / HTTP/1.1\r\n\r\n", [400]),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [404, 400]),
    "a body where none belongs": (
        b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n" + b"w77w77w77" + CLOSING,
        [200, 200],
    ),
    "no route, with a body": (WHOLE.replace(b"/models", b"/w77") + CLOSING, [404, 200]),
    "an upgrade": (
        WHOLE.replace(b"Host: x", b"Host: x\r\nConnection: upgrade\r\nUpgrade: h2c") + CLOSING,
        [200, 200],
    ),
    "gzip": (WHOLE.replace(b"Host: x", b"Host: x\r\nContent-Encoding: gzip"), [415]),
    "not compressed": (
        WHOLE.replace(b"Host: x", b"Host: x\r\nContent-Encoding: identity") + CLOSING,
        [200, 200],
    ),
    "in absolute form": (
        WHOLE.replace(b"POST /", b"POST http://w77:80/")
        + CLOSING.replace(b"GET /", b"GET HTTPS://w77/").replace(b"Connection: close\r\n", b"")
        + CLOSING.replace(b"GET /health", b"GET http://w77/v1/models/%63lasses?w77"),
        [200, 200, 200],
    ),
    "another scheme": (CLOSING.replace(b"GET /", b"GET ftp://w77/"), [404]),
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
    assert SECRET.encode() not in answers
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


def test_a_client_that_closes_its_side(server: Running) -> None:
    """As ``nc -N`` does; to a request that was not sent whole there is no answer."""
    for sent, status in ((WHOLE, b"HTTP/1.1 200 "), (WHOLE[:-3], b"")):
        with connect(server) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert all_of(connection)[:13] == status
    check_good(server)


def test_a_client_that_leaves(server: Running) -> None:
    for sent in (WHOLE[:-3], WHOLE):
        for _ in range(3):
            with connect(server) as connection:
                connection.sendall(sent)
    check_good(server)
    until = time.monotonic() + 5
    while server.server._answering and time.monotonic() < until:
        time.sleep(0.01)
    assert server.server._answering == 0


def test_of_two_fields_of_one_name_the_last_counts(server: Running) -> None:
    twice = b'{"inputs":"w9","inputs":"w1 w2 w3"}'
    assert server.post(ROUTE, twice).json() == server.post(ROUTE, GOOD).json()


def test_depth_of_a_body_with_an_open_string_takes_no_time() -> None:
    # Where it took quadratic time these took minutes.
    assert is_deeper(b"[" * 20 + b'\\"' * 500_000, 16)
    assert is_deeper(b"[" * 20 + b'"\\' * 500_000, 16)


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
            served._per_character = learned
            served._reserve(-served.admit(many, VECTORS).reserved)
            with pytest.raises(RefusedError, match="send at most 150 at a time"):
                served.admit([["w5 " * 1667 + "ww"]], VECTORS)
        for characters, tokens, most in ((60, 240, 4.0), (2000, 0, 0.3)):
            served._per_character = 0.3
            for _ in range(20):
                served._learn(Ticket(0.0, tokens, tokens=tokens), characters)
            assert 0.1 <= served._per_character <= most
            assert characters > 100 or served._per_character < 0.5
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
            while server.server._answering < 3 and time.monotonic() < until:
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
                # The gate of /tokenize is full if they come at once.
                assert 504 in statuses <= ({429, 504} if path == "/tokenize" else {504})
                assert (served._reserved, server.server.threads.plain) == (0, 0)
                check_good(server)
                assert server.post("/tokenize", GOOD).status_code == 200
        hold.set()


def test_texts_to_tokenize_do_not_queue_with_what_is_computed(
    tmp_path: Path, monkeypatch: Any
) -> None:
    def count(encoding: Encoding) -> list[str]:
        read.append(len(encoding))
        return [encoding.pieces[id] for id in encoding.ids]

    read = list[int]()
    monkeypatch.setattr(Encoding, "tokens", property(count))
    with running(make_folders(tmp_path, "classes"), tokens=150) as server:
        served = server.server.models["classes"]
        served._reserve(150)
        assert server.post(ROUTE, GOOD).status_code == 429
        (tokens,) = server.post("/tokenize", {"inputs": "w5 " * 100}).json()
        assert len(tokens) == 102
        assert read == [102], "once for a text, not for each token"
        assert served._per_character == 0.3
        served._reserve(-150)


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
        for path in ("/models/w77/health", "/models/w77/nothing", "/models/owner/w77/embed"):
            answer = server.post(path, GOOD) if "embed" in path else server.get(path)
            assert answer.status_code == 401, "it does not tell which models there are"
            assert answer.headers["www-authenticate"] == "Bearer"


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


@pytest.mark.parametrize("key", [" ", "\n", "a\nb"])
def test_a_key_that_nobody_can_send(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(KEY, key)
    with pytest.raises(ConfigError, match="BOTHWAYS_KEY has nothing but white space, or a control"):
        serve(ServeConfig(models=("nothing",), host="0.0.0.0"))


def test_everyone_may_not_use_it_unless_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    assert main(["serve", str(tmp_path), "--host", "0.0.0.0"]) == 1
    assert "there is no BOTHWAYS_KEY" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (("a", "b/a"), "two are called 'a'"),
        (("x y=a",), "must be of letters"),
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


# ---------------------------------------------------------------------------------------- watchdog


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


@pytest.mark.parametrize(
    "origin",
    [
        *("localhost:3000", "http://localhost/", "http://a/b", "ftp://a", "", "http://a b"),
        *("http://LocalHost", "https://a.org:443", "http://a:80", "http://*.a.org", "http://a:b"),
    ],
)
def test_what_is_no_origin(origin: str) -> None:
    with pytest.raises(ConfigError, match="is none that a browser sends"):
        ServeConfig(("mini-en",), origins=(origin,))


def test_a_model_is_ready_beside_one_that_is_not(tmp_path: Path) -> None:
    with running(make_folders(tmp_path, "classes", "vectors")) as server:
        served = server.server.models["vectors"]
        served.probe = lambda: None  # type: ignore[method-assign]
        served._known_good = False
        ready = {path: server.get(f"{path}/ready").status_code for path in ("", "/models/classes")}
        assert ready == {"": 503, "/models/classes": 200}
        assert server.get("/models/vectors/ready").status_code == 503
        assert server.get("/models/w77/ready").status_code == 404


def test_ready_while_its_known_answer_stays(tmp_path: Path) -> None:
    with running(make_folders(tmp_path, "classes")) as server:
        served = server.server.models["classes"]
        assert server.get("/ready").status_code == 200
        assert served._known is not None
        served._known = {name: value + 1 for name, value in served._known.items()}
        served.batcher.last -= 6
        served.probe()
        assert server.get("/ready").json() == {"status": "not ready"}
        assert server.get("/health").status_code == 200
        served._known = {name: value - 1 for name, value in served._known.items()}
        served.batcher.last -= 6
        served.probe()
        assert server.get("/models/classes/ready").status_code == 200
        assert np.isfinite(served.batcher.rate)
