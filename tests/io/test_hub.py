"""Names of models: the local cache of the Hub, and downloads from a stub of it on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants

import bothways
from bothways import cli
from bothways.api.model import load
from bothways.errors import ModelError
from bothways.io import hub
from bothways.io.hub import model_folder
from bothways.model.folder import save_model
from model_examples import small_bert, small_tokenizer

COMMITS = {"main": "a" * 40, "v2": "b" * 40}
NEVER = ("pytorch_model.bin", "evil.py", "onnx/model.onnx", "tf_model.h5")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model for each revision."""
    root = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(COMMITS):
        save_model(root / name, small_bert(seed=seed), small_tokenizer(97))
        (root / name / "onnx").mkdir()
        for file in NEVER:
            (root / name / file).write_bytes(b"never fetched")
    return {name: root / name for name in COMMITS}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hf" / "hub"


def put(home: Path, name: str, source: Path, commit: str, ref: str = "main") -> Path:
    """A model in the cache, with links to blobs as the Hub's library makes them."""
    place = home / f"models--{name.replace('/', '--')}"
    snapshot = place / "snapshots" / commit
    (place / "blobs").mkdir(parents=True, exist_ok=True)
    snapshot.mkdir(parents=True)
    for file in source.rglob("*"):
        inside = file.relative_to(source)
        if file.is_file() and inside.as_posix() not in NEVER:
            blob = place / "blobs" / "-".join([commit[:4], *inside.parts])
            blob.write_bytes(file.read_bytes())
            (snapshot / inside).parent.mkdir(exist_ok=True)
            up = [".."] * (1 + len(inside.parts))
            (snapshot / inside).symlink_to(Path(*up, "blobs", blob.name))
    (place / "refs").mkdir(exist_ok=True)
    (place / "refs" / ref).write_text(commit)
    return snapshot


def test_a_model_in_the_cache(home: Path, models: dict[str, Path]) -> None:
    main = put(home, "klue/bert-base", models["main"], COMMITS["main"])
    other = put(home, "klue/bert-base", models["v2"], COMMITS["v2"], "v2")
    single = put(home, "bert-tiny", models["main"], "c" * 40)
    for name, found in {
        "klue/bert-base": main,
        f"klue/bert-base@{COMMITS['main']}": main,
        "klue/bert-base@v2": other,
        f"klue/bert-base@{COMMITS['v2']}": other,
        "bert-tiny": single,
    }.items():
        assert model_folder(name) == found
    expected = {name: load(folder).embed(["w1 w2"]) for name, folder in models.items()}
    np.testing.assert_array_equal(load("klue/bert-base").embed(["w1 w2"]), expected["main"])
    np.testing.assert_array_equal(load("klue/bert-base@v2").embed(["w1 w2"]), expected["v2"])
    assert model_folder(single.parents[1]) == single, "the Hub's own folder"


def test_a_model_loaded_by_name_knows_its_folder(home: Path, models: dict[str, Path]) -> None:
    folder = put(home, "some/one", models["main"], COMMITS["main"])
    model = load("some/one")
    assert model.folder == folder
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.embed(["w1 w2"]), model.embed(["w1 w2"]))


def test_every_verb_takes_a_name(
    home: Path, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(home, "some/one", models["main"], COMMITS["main"])
    for argv in (
        ["embed", "some/one", "w1", "--out", "v.npz"],
        ["info", "some/one", "--check"],
        ["convert", "some/one", "out"],
    ):
        assert cli.main(argv) == 0, capsys.readouterr().err
    about = json.loads((tmp_path / "out/bothways.json").read_text())
    assert about["converted_from"] == "some/one"


def test_a_folder_here_comes_first(home: Path, models: dict[str, Path], tmp_path: Path) -> None:
    put(home, "some/one", models["main"], COMMITS["main"])
    assert model_folder(Path("some/one")) == Path("some/one")
    assert model_folder("./some/one") == Path("some/one")
    (tmp_path / "some").mkdir()
    assert model_folder("some/one") == Path("some/one"), "of a folder that is here, a path"


def test_offline_the_message_says_where_it_was_looked_for(
    home: Path, models: dict[str, Path]
) -> None:
    with pytest.raises(ModelError, match=r"no such folder here.*cache of the.*offline"):
        load("some/one")
    put(home, "some/one", models["main"], COMMITS["main"])
    with pytest.raises(ModelError, match=r"at revision v3 in the local cache"):
        load("some/one@v3")


@pytest.mark.parametrize(
    "name",
    ["a/b/c", "../x", "/abs/x", "a//b", "a/b.txt", "voc/tokenizer.json", "a b/c", ".x/y"],
)
def test_names_that_are_paths(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_download", lambda *_: pytest.fail("asked the network"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert model_folder(name) == Path(name)
    assert not home.exists()


# -------------------------------------------------------------------------------- downloads, in a
# process of their own: the Hub's library reads its variables when it is imported.


class Stub(BaseHTTPRequestHandler):
    """What the Hub answers, of the requests that its library makes."""

    models: dict[str, Path]
    asked: list[str]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, body: bool) -> None:
        self.asked.append(self.path)
        parts = self.path.strip("/").split("/")
        if parts[:3] == ["api", "models", "some"] and parts[3] == "one":
            revision = parts[5] if len(parts) > 5 else "main"
            if revision in self.models:
                folder = self.models[revision]
                names = [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()]
                info = {"id": "some/one", "sha": COMMITS[revision]}
                info |= {"siblings": [{"rfilename": name} for name in names]}  # type: ignore[dict-item]
                self._send(json.dumps(info).encode(), body, {"Content-Type": "application/json"})
                return
            if len(parts) > 5 and parts[4] == "tree":
                folder = self.models[
                    {c: name for name, c in COMMITS.items()}[revision.split("?")[0]]
                ]
                files = [path for path in folder.rglob("*") if path.is_file()]
                tree = [
                    {"type": "file", "path": str(path.relative_to(folder)), "oid": "0" * 40}
                    | {"size": path.stat().st_size}
                    for path in files
                ]
                self._send(json.dumps(tree).encode(), body, {"Content-Type": "application/json"})
                return
        if parts[:3] == ["some", "one", "resolve"]:
            revision = {commit: name for name, commit in COMMITS.items()}.get(parts[3], parts[3])
            file = self.models[revision].joinpath(*parts[4:])
            content = file.read_bytes()
            etag = hashlib.sha1(content).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMITS[revision]}
            self._send(content, body, headers)
            return
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, content: bytes, body: bool, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def stub(models: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("Here", (Stub,), {"models": models, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def run(argv: list[str], home: Path, endpoint: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TRANSFORMERS_"))
    }
    source = str(Path(bothways.__file__).parents[1])
    environment |= {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(home), "PYTHONPATH": source}
    return subprocess.run(
        [sys.executable, "-m", "bothways", *argv],
        env={**environment, "NO_PROXY": "*", "OMP_NUM_THREADS": "1"},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_model_is_downloaded_once_and_pinned(
    home: Path, models: dict[str, Path], stub: tuple[str, list[str]], tmp_path: Path
) -> None:
    endpoint, asked = stub
    argv = ["embed", "some/one", "w1 w2", "--out", "v.npz", "--precision", "fp32"]
    done = run(argv, home, endpoint, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"downloading some/one@{COMMITS['main']}" in done.stderr
    expected = load(models["main"]).embed(["w1 w2"])
    # What is fastest, and so the order of sums, is measured by each process.
    near = {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(np.load(tmp_path / "v.npz")["embeddings"], expected, **near)
    fetched = {path.name for path in home.rglob("snapshots/*/*")}
    assert {"config.json", "model.safetensors", "vocab.txt", "checksums.json"} <= fetched
    assert not any(name.rpartition("/")[2] in path for path in asked for name in NEVER)
    before = len(asked)
    assert run(argv, home, endpoint, tmp_path).returncode == 0
    assert len(asked) == before, "what is in the cache asks nobody"
    argv = ["embed", "some/one@v2", "w1", "--out", "w.npz", "--precision", "fp32"]
    pinned = run(argv, home, endpoint, tmp_path)
    assert f"some/one@{COMMITS['v2']}" in pinned.stderr
    np.testing.assert_allclose(
        np.load(tmp_path / "w.npz")["embeddings"], load(models["v2"]).embed(["w1"]), **near
    )
    assert load(home / "models--some--one").loaded.config.layers == 1


def test_what_cannot_be_downloaded_is_said(
    home: Path, models: dict[str, Path], stub: tuple[str, list[str]], tmp_path: Path
) -> None:
    endpoint, _ = stub
    weights = models["v2"] / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    torch.save({"x": torch.ones(1)}, models["v2"] / "pytorch_model.bin")
    try:
        old = run(["info", "some/one@v2", "--check"], home, endpoint, tmp_path)
    finally:
        weights.write_bytes(content)
    assert "no weights as safetensors" in old.stdout + old.stderr
    nowhere = "http://127.0.0.1:9"
    for name, port in (("no/body", endpoint), ("some/one", nowhere)):
        gone = run(["embed", name, "w1", "--out", "v.npz"], home, port, tmp_path)
        assert gone.returncode == 1
        assert f"bothways: error: {name}: there is no such folder here" in gone.stderr
        assert f"cannot be downloaded from {port}/{name}" in gone.stderr
        assert "Traceback" not in gone.stderr


@pytest.mark.usefixtures("home")
def test_names_that_are_none() -> None:
    for name, told in (
        ("https://huggingface.co/me/small/tree/main", "name the model as me/small"),
        ("hf://me/small", "name the model as me/small"),
        ("", "is not the name of a model"),
        ("a long text " * 400, "is not the name of a model"),
    ):
        with pytest.raises(ModelError) as caught:
            load(name)
        assert told in str(caught.value)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_snapshot_whose_blobs_are_gone(name: str, home: Path, models: dict[str, Path]) -> None:
    snapshot = put(home, "me/small", models["main"], COMMITS["main"])
    (snapshot / name).resolve().unlink()
    with pytest.raises(ModelError, match="link that leads nowhere"):
        load("me/small")
    (snapshot / name).unlink()
    shutil.rmtree(snapshot / "onnx", ignore_errors=True)
    if name == "model.safetensors":
        with pytest.raises(ModelError, match="the download is incomplete; run it again"):
            load("me/small")
