"""Fixtures that several test files share."""

from __future__ import annotations

import base64
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import settings


def _keep_to_own_cores() -> None:
    """Of several test processes each has its share: threads of two that wait for one another on
    the same cores take several times as long. Before torch is imported, which counts them."""
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[number::count] or cores)


if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    _keep_to_own_cores()

from bothways.corpus.build import build_corpus  # noqa: E402
from bothways.corpus.options import CorpusConfig  # noqa: E402
from bothways.io.processes import usual_threads  # noqa: E402
from bothways.runtime import speed  # noqa: E402
from bothways.runtime.engine import engines  # noqa: E402
from bothways.tokenization.tokenizer import Tokenizer  # noqa: E402
from bothways.training import monitor  # noqa: E402
from bothways.training.options import DeviceName  # noqa: E402
from installed_package import install  # noqa: E402

# As under `nohup`, or in the background of a script. What the tests start would ignore them too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Property tests are part of a suite that must give the same answer twice.
settings.register_profile("bothways", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("bothways")


_DRAW = monitor.draw_panels
_NO_PICTURE = base64.b64decode(  # one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP6DwABBQECz6AuzQAAAABJRU5ErkJggg=="
)


# Files that take long. Processes take the files one after the other, so these go first: at the end
# the others would wait for them.
_LONG = (
    "test_readme.py",
    "test_ranks.py",
    "test_jobs.py",
    "test_demo.py",
    "test_end_to_end.py",
    "test_kill.py",
)


_LONGEST = 400  # seconds of a test; the longest takes a minute on a quiet machine


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """A test that hangs fails, with the stacks of its threads, and the others go on."""

    def stop(*_: object) -> None:
        faulthandler.dump_traceback(all_threads=True)
        pytest.fail(f"no end after {_LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _LONGEST, _LONGEST)  # once more for what ends the test
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long first."""
    items.sort(key=lambda item: item.path.name not in _LONG)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept in the user's cache folder is kept elsewhere; and by the speeds that it tells,
    what chooses by them computes with torch in fp32."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    seconds = {"torch fp32": 1.0, "torch bf16": 1.0, "onnxruntime fp32": 1.0}
    for device in get_args(DeviceName):
        what = f"products of engine auto on {device}"
        speed.measured_once(what, lambda: seconds, usual_threads(), engines())
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="session", autouse=True)
def _what_takes_long_is_left_out() -> Iterator[None]:
    """Curves are not drawn (see ``drawn``), and files are not flushed to the disk: both take most
    of the time of runs as small as the tests'."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(monitor, "draw_panels", lambda *_, **__: _NO_PICTURE)
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves are drawn in this test."""
    monkeypatch.setattr(monitor, "draw_panels", _DRAW)


_CARDS = os.environ.get("CUDA_VISIBLE_DEVICES")
_SEES: dict[str, Callable[[], bool]] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where there is a GPU, only tests marked ``cuda`` see it: the others compare a CPU's bits."""
    hidden = item.get_closest_marker("cuda") is None
    if hidden or _CARDS is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = "" if hidden else str(_CARDS)
    else:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if torch := sys.modules.get("torch"):  # it may have looked before
        own = _SEES.setdefault("own", torch.cuda.is_available)
        torch.cuda.is_available = (lambda: False) if hidden else own  # type: ignore[attr-defined]


SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WHO = "the baker|a sailor|my aunt|the old judge|our teacher|the red fox|a quiet boy|the king"
DID = "sold|painted|lost|carried|found|repaired|described|wanted"
WHAT = "a small boat|the bread|two letters|an apple|the garden|a long story|his hat|the clock"
WHEN = "yesterday|in the morning|after the storm|on monday|at night|before supper"


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Path of a real data file, such as ``text_en/news.txt.xz``; skips where there is none."""
    default = Path(__file__).parents[2] / "shared" / "data"
    root = Path(os.environ.get("BOTHWAYS_DATA", default)).resolve()

    def find(name: str) -> Path:
        path = root / name
        if not path.exists():
            pytest.skip(f"{name} is not in {root}; set BOTHWAYS_DATA to the data folder")
        return path

    return find


@pytest.fixture
def several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toy batches are divided into tiles as large batches are."""
    monkeypatch.setattr("bothways.model.tiles.TILE_COST", 100)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as a wheel of this checkout installs it. Read only."""
    return install(tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="session")
def tiny_documents() -> list[list[str]]:
    """60 documents of 2 to 9 short sentences, all different, in plain English words."""
    who, did, what, when = (words.split("|") for words in (WHO, DID, WHAT, WHEN))
    documents = []
    for d in range(60):
        sentences = []
        for s in range(2 + d * 5 % 8):
            n = 31 * d + 7 * s
            sentence = (
                f"{who[n % 8]} {did[(n // 8 + s) % 8]} {what[(n // 3) % 8]} {when[(d + s) % 6]}."
            )
            sentences.append(sentence.capitalize())
        documents.append([f"Story {d} begins.", *sentences[1:]])
    return documents


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Tokenizer:
    """All words of ``tiny_documents``, and single letters and digits for everything else."""
    words = set(f"{WHO}|{DID}|{WHAT}|{WHEN}|story begins".replace("|", " ").split())
    letters = list("abcdefghijklmnopqrstuvwxyz0123456789")
    pieces = [*SPECIALS, *".,!?'-:;", *letters, *("##" + letter for letter in letters)]
    return Tokenizer.from_pieces(pieces + sorted(words.difference(pieces)), lowercase=True)


@pytest.fixture(scope="session")
def tiny_tokenizer_folder(
    tiny_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """``tiny_tokenizer`` on disk."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer.save(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_text_file(
    tiny_documents: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """``tiny_documents`` in a text file: a sentence a line, blank lines between documents."""
    path = tmp_path_factory.mktemp("text") / "tiny.txt"
    path.write_text("\n\n".join("\n".join(lines) for lines in tiny_documents) + "\n")
    return path


@pytest.fixture(scope="session")
def tiny_corpus(
    tiny_text_file: Path, tiny_tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """``tiny_documents`` as a corpus folder, a fifth held out, in several shards. Read only."""
    out = tmp_path_factory.mktemp("corpus") / "tiny"
    build_corpus(
        CorpusConfig(
            files=(str(tiny_text_file),),
            tokenizer=str(tiny_tokenizer_folder),
            out=str(out),
            heldout=0.2,
            shard_tokens=900,
        )
    )
    return out
