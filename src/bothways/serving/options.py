"""The options of `bothways serve`."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field
from types import MappingProxyType

from bothways.config.fields import Options, require
from bothways.errors import ConfigError
from bothways.runtime.options import EngineChoice

KEY = "BOTHWAYS_KEY"
"""The environment variable with the key that clients must send; see :func:`server_key`."""
SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable, of prometheus-client, with the folder in which several processes count
together."""


def server_key() -> str:
    """The key that clients must send, or nothing: without the white space around it that a file's
    last line may leave, which no header can carry."""
    return os.environ.get(KEY, "").strip()


@dataclass(frozen=True)
class Limits(Options):
    """What one request, and all together, may ask of the server."""

    body: int = 2_000_000
    """Bytes of a request's body."""
    inputs: int = 64
    """Inputs of one request: texts to embed or label, texts to rank, choices."""
    tokens: int = 65_536
    """Tokens of accepted requests that are not answered yet, of each model; more are refused until
    there is room."""
    receipt: float = 10.0
    """Seconds in which a request must have arrived, headers and body."""
    deadline: float = 30.0
    """Seconds in which an accepted request must be answered; later it is not computed. A client
    that takes nothing of its answer for as long is dropped."""
    connections: int = 1024
    """Connections at a time. Beyond, the one is closed that has waited longest without a whole
    request."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("body", "inputs", "tokens", "connections"):
            require(f"limits_{name}", getattr(self, name), 1)
        for name in ("receipt", "deadline"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"limits_{name} is {getattr(self, name)}; give seconds above 0.")


@dataclass(frozen=True)
class ServeConfig(EngineChoice):
    """Serve models over HTTP: Hugging Face's inference API, text-embeddings-inference's and
    OpenAI's embeddings. If the environment variable BOTHWAYS_KEY is set, clients must send it
    (Authorization: Bearer KEY)."""

    listed = MappingProxyType(
        {
            "options": (
                *("host", "port", "workers", "open", "origins", "engine", "precision", "device"),
            )
        }
    )

    models: tuple[str, ...]
    """Model folders, mini-en (bundled), or names on the Hugging Face Hub, each as FOLDER or
    NAME=FOLDER; without a name, that of the folder. Where a request names none, the one whose main
    task it is answers."""
    host: str = "127.0.0.1"
    """Address to listen on; others than this machine's own need BOTHWAYS_KEY, or --open."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    workers: int = 1
    """Processes, each with its own copy of the models. One that ends is replaced."""
    open: bool = False
    """Listen on a --host that other machines can reach, without BOTHWAYS_KEY."""
    origins: tuple[str, ...] = ()
    """Origins of other web pages that may ask from a browser (CORS), such as
    http://localhost:3000; * for any. Its own page needs none."""
    limits: Limits = field(default_factory=Limits)
    """What one request, and all together, may ask of the server."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("workers", self.workers, 1)
        require("port", self.port, 0, 65_535)
        if not self.models:
            raise ConfigError("no model given; name a model folder, or several as NAME=FOLDER.")

    @property
    def folders(self) -> dict[str, str]:
        """The folders by the name of each model.

        Raises:
            ConfigError: two have the same name, or a name has other characters than URLs take.
        """
        found: dict[str, str] = {}
        for given in self.models:
            name, separator, folder = given.partition("=")
            if not separator:
                folder, name = given, re.split(r"[/\\]", given.rstrip("/\\"))[-1]
            if not re.fullmatch(r"[\w.-]+", name) or name in found:
                raise ConfigError(
                    f"models: {given!r} needs a name of its own, of letters, digits, '-', '_' and "
                    "'.'; give one: NAME=FOLDER."
                )
            found[name] = folder
        return found

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
