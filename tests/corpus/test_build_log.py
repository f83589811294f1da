"""corpus/build_log.py: an interrupted build continues to the bytes of an uninterrupted one."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bothways.corpus import build as module
from bothways.corpus import sources
from bothways.corpus.build import build_corpus
from bothways.corpus.build_log import BuildLog
from bothways.corpus.options import CorpusConfig
from bothways.corpus.store import verify_store
from bothways.errors import DiskError, InputError
from bothways.tokenization.tokenizer import Tokenizer


@pytest.fixture
def options(
    tmp_path: Path,
    tiny_text_file: Path,
    tiny_tokenizer_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> CorpusConfig:
    """A build in units of a few documents, which fills several shards."""
    monkeypatch.setattr(sources, "UNIT_BYTES", 600)
    return CorpusConfig(
        files=(str(tiny_text_file),),
        tokenizer=str(tiny_tokenizer_folder),
        out=str(tmp_path / "corpus"),
        heldout=0.2,
        shard_tokens=900,
    )


def contents(folder: str | Path) -> dict[str, bytes]:
    paths = sorted(Path(folder).iterdir())
    return {path.name: path.read_bytes() for path in paths if path.name != "corpus.json"}


def log_of(options: CorpusConfig) -> Path:
    return Path(options.out).with_name(".units-corpus")


def interrupt(options: CorpusConfig, after: int) -> None:
    """Build up to some unit, as Ctrl-C would stop it."""
    append = BuildLog.append

    def stop(log: BuildLog, *arguments: Any) -> None:
        if log._units == after:
            raise KeyboardInterrupt
        append(log, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BuildLog, "append", stop)
        with pytest.raises(KeyboardInterrupt):
            build_corpus(options)
    assert log_of(options).exists()
    assert not Path(options.out).exists()


def continued(options: CorpusConfig) -> tuple[int, str]:
    """Build; how many units were done already, and what was said."""
    said: list[str] = []
    report = build_corpus(options, say=said.append)
    assert not log_of(options).exists()
    return int(report.get("continued_units", 0)), " ".join(said)


def units_of(options: CorpusConfig) -> int:
    return len(list(sources.read_units(sources.list_inputs(options.files), options)))


@pytest.fixture
def whole(options: CorpusConfig, tmp_path: Path) -> dict[str, bytes]:
    """What an unbroken build gives."""
    build_corpus(replace(options, out=str(tmp_path / "whole")))
    return contents(tmp_path / "whole")


def test_interrupted_twice_and_continued(options: CorpusConfig, whole: dict[str, bytes]) -> None:
    assert units_of(options) > 8
    interrupt(options, 3)
    interrupt(options, 7)
    found, said = continued(options)
    assert found == 7
    assert "7 units are finished" in said
    assert contents(options.out) == whole
    assert verify_store(options.out) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "zeros", "missing"])
@pytest.mark.parametrize("unit", [2, 5])
def test_damaged_units_are_done_again(
    damage: str, unit: int, options: CorpusConfig, whole: dict[str, bytes]
) -> None:
    interrupt(options, 6)
    path = log_of(options) / f"unit-{unit:08}"
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[:-100])
    elif damage == "flipped":
        path.write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
    elif damage == "zeros":
        path.write_bytes(bytes(len(data)))
    interrupt(options, unit + 1)  # the units behind it are those of the same build
    found, _ = continued(options)
    assert found == 6
    assert contents(options.out) == whole


@pytest.mark.parametrize("change", ["option", "text", "vocabulary", "garbage"])
def test_another_build_starts_over(
    change: str,
    options: CorpusConfig,
    tiny_text_file: Path,
    tiny_tokenizer_folder: Path,
    tmp_path: Path,
) -> None:
    copy = tmp_path / "copy.txt"
    copy.write_bytes(tiny_text_file.read_bytes())
    options = replace(options, files=(str(copy),))
    interrupt(options, 5)
    if change == "option":
        options = replace(options, sentences="line")
    elif change == "text":
        os.utime(copy, ns=(1, 1))
    elif change == "vocabulary":
        from bothways.tokenization.tokenizer import Tokenizer

        pieces = Tokenizer.from_folder(tiny_tokenizer_folder).pieces
        Tokenizer.from_pieces(pieces, lowercase=False).save(tmp_path / "cased")
        options = replace(options, tokenizer=str(tmp_path / "cased"))
    else:
        (log_of(options) / "build.json").write_bytes(b"garbage" * 100)
    found, said = continued(options)
    assert found == 0
    assert "starting over" in said


def test_what_is_done_is_not_encoded_again(options: CorpusConfig) -> None:
    interrupt(options, 7)
    encoded: list[int] = []

    def count(*arguments: Any) -> Any:
        encoded.append(1)
        return encode(*arguments)

    encode = module._encode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_encode", count)
        build_corpus(options)
    assert len(encoded) == units_of(options) - 7


def test_options_for_finished_units_may_change(options: CorpusConfig, tmp_path: Path) -> None:
    other = replace(options, heldout=0.2, min_tokens=5, duplicates="both")
    build_corpus(replace(other, out=str(tmp_path / "at-once")))
    interrupt(options, 4)
    # A copy of the vocabulary is the same vocabulary.
    shutil.copytree(options.tokenizer, tmp_path / "vocabulary")
    other = replace(other, tokenizer=str(tmp_path / "vocabulary"))
    assert continued(other)[0] == 4
    shards = {k: v for k, v in contents(tmp_path / "at-once").items() if k.endswith(".arrow")}
    assert shards.items() <= contents(options.out).items()


def test_the_number_of_workers_may_change(options: CorpusConfig, whole: dict[str, bytes]) -> None:
    interrupt(options, 4)
    assert continued(replace(options, workers=2))[0] == 4
    assert contents(options.out) == whole


def test_text_that_is_refused_leaves_nothing(options: CorpusConfig, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"fine.\n\n\xff\n")
    with pytest.raises(InputError):
        build_corpus(replace(options, files=(*options.files, str(tmp_path / "bad.txt"))))
    assert not log_of(options).exists()


def test_two_builds_at_once_are_refused(options: CorpusConfig) -> None:
    interrupt(options, 2)
    partial = Path(options.out).with_name(".partial-corpus")
    partial.mkdir()
    descriptor = os.open(partial, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(DiskError, match="another process is writing"):
        build_corpus(options)
    os.close(descriptor)
    assert continued(options)[0] == 2


@pytest.mark.parametrize(
    "change",
    [
        {"documents": "file"},
        {"text_field": "body"},
        {"language": "de"},
        {"broken": "replace"},
        {"max_line_mib": 5.0},
        {"sentences": "line"},
    ],
)
def test_units_made_under_other_options_are_others(
    change: dict[str, Any], options: CorpusConfig
) -> None:
    inputs, tokenizer = sources.list_inputs(options.files), Tokenizer.from_folder(options.tokenizer)
    before = module._identity(options, inputs, tokenizer)
    assert module._identity(replace(options, **change), inputs, tokenizer) != before
    assert module._identity(replace(options, heldout=0.5), inputs, tokenizer) == before


def test_standard_input_starts_over(
    options: CorpusConfig, tiny_text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give() -> None:
        text = io.BytesIO(tiny_text_file.read_bytes())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(text, encoding="utf-8"))

    options = replace(options, files=("-",), workers=1)
    give()
    interrupt(options, 3)
    give()
    found, said = continued(options)
    assert found == 0
    assert "start" in str(said)


def test_a_finished_log_is_only_arranged(options: CorpusConfig, whole: dict[str, bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "find_repeats", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build_corpus(options)
    assert continued(options)[0] == units_of(options)
    assert contents(options.out) == whole


BUILD = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from bothways.corpus import sources
sources.UNIT_BYTES = 2000
from bothways.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("stop", "times"), [(signal.SIGKILL, 2), (signal.SIGINT, 1)])
def test_killed_and_run_again(
    stop: signal.Signals,
    times: int,
    tiny_documents: list[list[str]],
    options: CorpusConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "\n\n".join("\n".join(lines) for lines in tiny_documents)
    (tmp_path / "t.txt").write_text("\n\n".join([text] * 60))  # long enough to be interrupted
    words = [sys.executable, "-c", BUILD, "corpus", "build", "--files", str(tmp_path / "t.txt")]
    words += ["--tokenizer", options.tokenizer, "--out", options.out]
    log = log_of(options)
    done = 0
    for _ in range(times):
        process = subprocess.Popen(words, stderr=subprocess.PIPE)
        while process.poll() is None:
            if len(list(log.glob("unit-*"))) > done + 1:
                process.send_signal(stop)
                break
            time.sleep(0.001)
        _, shown = process.communicate()
        assert process.returncode == (-9 if stop == signal.SIGKILL else 130), shown
        assert b"Traceback" not in shown
        assert not Path(options.out).exists()
        done = len(list(log.glob("unit-*")))
    last = subprocess.run(words, check=True, capture_output=True, text=True)
    assert "continuing an interrupted build" in last.stderr
    assert not log.exists()
    found = contents(options.out)
    monkeypatch.setattr(sources, "UNIT_BYTES", 2000)
    build_corpus(
        CorpusConfig(files=(str(tmp_path / "t.txt"),), tokenizer=options.tokenizer, out=options.out)
    )
    assert contents(options.out) == found
