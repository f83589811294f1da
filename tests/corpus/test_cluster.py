"""The same build on a Dask cluster: real workers, on this machine, and the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bothways.corpus import build, sources
from bothways.corpus.build import build_corpus
from bothways.corpus.options import CorpusConfig
from bothways.errors import ConfigError, InputError, StoreError

distributed = pytest.importorskip("distributed", reason="the extra `cluster` is not installed")


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """A scheduler with two worker processes, reachable from this machine only."""
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address=None,
        worker_dashboard_address=None,
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def options(tmp_path: Path, tiny_text_file: Path, tiny_tokenizer_folder: Path) -> CorpusConfig:
    return CorpusConfig(
        files=(str(tiny_text_file),),
        tokenizer=str(tiny_tokenizer_folder),
        out=str(tmp_path / "corpus"),
        heldout=0.2,
        shard_tokens=900,
    )


def contents(folder: Path) -> dict[str, bytes]:
    paths = sorted(folder.iterdir())
    return {path.name: path.read_bytes() for path in paths if path.name != "corpus.json"}


def test_a_cluster_gives_the_same_bytes(
    scheduler: str, options: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "UNIT_BYTES", 400)
    build_corpus(options)
    build_corpus(replace(options, out=str(tmp_path / "other"), cluster=scheduler))
    assert contents(tmp_path / "other") == contents(tmp_path / "corpus")


def test_bad_text_is_refused_from_there_too(
    scheduler: str, options: CorpusConfig, tmp_path: Path
) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"fine.\n\nbro\xffken\n")
    with pytest.raises(InputError, match="byte 0xff is not UTF-8") as caught:
        build_corpus(replace(options, files=(str(path),), cluster=scheduler))
    assert str(caught.value.place) == f"{path}:3"


def test_no_scheduler_there(options: CorpusConfig) -> None:
    import dask

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "200ms"}),
        pytest.raises(ConfigError, match=r"127\.0\.0\.1:9.*cannot be reached"),
    ):
        build_corpus(replace(options, cluster="tcp://127.0.0.1:9"))


def test_what_was_done_stays_when_there_is_no_scheduler(
    options: CorpusConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask

    monkeypatch.setattr(sources, "UNIT_BYTES", 400)
    log = Path(options.out).with_name(f".units-{Path(options.out).name}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bothways.corpus.build._encode", interrupted(2))
        with pytest.raises(KeyboardInterrupt):
            build_corpus(options)
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "200ms"}),
        pytest.raises(ConfigError, match="cannot be reached"),
    ):
        build_corpus(replace(options, cluster="tcp://127.0.0.1:9"))
    assert {path.name: path.read_bytes() for path in log.iterdir()} == before


def interrupted(after: int) -> Callable[..., object]:
    """Encoding that is interrupted after so many units."""
    done, encode = [], build._encode

    def some(*args: Any) -> object:
        if len(done) == after:
            raise KeyboardInterrupt
        done.append(args)
        return encode(*args)

    return some


def test_without_dask(options: CorpusConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(ConfigError, match=r"bothways\[cluster\]"):
        build_corpus(replace(options, cluster="tcp://127.0.0.1:9"))


def test_a_worker_that_is_lost_is_named(
    options: CorpusConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise distributed.comm.CommClosedError("gone")

    monkeypatch.setattr("bothways.corpus.build._encode", lost)
    with pytest.raises(StoreError, match="a worker process was lost"):
        build_corpus(options)
