"""A server with a small random model of every head, on this machine's loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bothways.api.model import Model, load
from bothways.model.folder import save_model
from bothways.serving.app import Server
from bothways.serving.options import Limits, ServeConfig
from bothways.serving.server import choose_engines, make_listener, make_server
from bothways.training.options import PredictPrecision
from model_examples import BOTH_HEADS, small_bert, small_tokenizer

CLASSES = {"kind": "classification", "labels": ["a", "b", "c"]}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "classes": ({"classes": 3}, {**CLASSES, "options": {**CLASSES, "metrics": ["accuracy"]}}),
    "several": ({"classes": 3}, {"kind": "multilabel", "labels": ["a", "b", "c"]}),
    "tokens": (
        {"tags": 2},
        {"kind": "classification", "labels": ["a", "b"], "options": {"reads": "tokens"}},
    ),
    "score": ({"classes": 1}, {"kind": "regression", "pair": False}),
    # Of this seed it finds entities in the texts of the tests.
    "tags": ({"tags": 3, "seed": 3}, {"kind": "tagging", "labels": ["B-X", "I-X", "O"]}),
    "answers": ({"spans": True}, {"kind": "spans"}),
    "choice": ({"choices": True}, {"kind": "choice"}),
    "pretrained": (BOTH_HEADS, {}),
    "vectors": ({}, {}),
    "reranker": ({"classes": 1}, {"kind": "regression", "pair": True}),
}


def make_folders(folder: Path, *names: str) -> dict[str, str]:
    """Model folders by name, of all kinds if none is named."""
    tokenizer = small_tokenizer(97)
    for name in names or KINDS:
        heads, about = KINDS[name]
        save_model(folder / name, small_bert(**heads), tokenizer, about)
    return {name: str(folder / name) for name in names or KINDS}


def offline(path: str, precision: PredictPrecision = "fp32") -> Model:
    """The same model without a server."""
    return load(path, engine="onnxruntime", precision=precision)


@dataclass
class Running:
    """A server that listens."""

    url: str
    port: int
    server: Server
    folders: dict[str, str]
    client: httpx.Client

    def post(self, path: str, content: Any, **how: Any) -> httpx.Response:
        key = "content" if isinstance(content, bytes) else "json"
        return self.client.post(path, **{key: content}, **how)

    def get(self, path: str, **how: Any) -> httpx.Response:
        return self.client.get(path, **how)


@contextmanager
def running(
    folders: dict[str, str],
    *,
    engine: str = "onnxruntime",
    precision: PredictPrecision = "fp32",
    origins: tuple[str, ...] = (),
    **limits: Any,
) -> Iterator[Running]:
    """Serve until the block ends."""
    models = tuple(f"{name}={path}" for name, path in folders.items())
    config = ServeConfig(
        *(models,), engine=engine, precision=precision, origins=origins, limits=Limits(**limits)
    )
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        port = listening.getsockname()[1]
        server = make_server(config, choose_engines(config))
        listener = make_listener(server)
        run = {"target": listener.run, "kwargs": {"sockets": [listening]}}
        thread = threading.Thread(**run, daemon=True)
        thread.start()
        try:
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, timeout=30, verify=False) as client:
                yield Running(url, port, server, folders, client)
        finally:
            listener.should_exit = listener.force_exit = True
            thread.join(60)
            assert not thread.is_alive(), "the server does not end"
            assert all(served.batcher.stop(10) for served in server.models.values())
