"""What `corpus show` prints is what pre-training reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bothways import cli
from bothways.corpus.store import TokenStore
from bothways.pretraining.batches import PhaseBatches
from bothways.pretraining.options import MaskOptions, PairOptions, ShowConfig
from bothways.pretraining.show import show_instances
from bothways.training.options import Phase

Show = Callable[..., list[str]]


@pytest.fixture
def show(tiny_corpus: Path) -> Show:
    def lines(**changes: object) -> list[str]:
        config = replace(ShowConfig(str(tiny_corpus), length=24, instances=40), **changes)  # type: ignore[arg-type]
        return [line.plain for line in show_instances(config)]

    return lines


def test_pieces_targets_and_labels_are_those_of_the_batches(show: Show, tiny_corpus: Path) -> None:
    store = TokenStore.open(tiny_corpus)
    batches = PhaseBatches(
        store,
        Phase(length=24, batch=1, micro_batch=1),
        pairs=PairOptions(),
        masking=MaskOptions(),
        seed=0,
    )
    blocks = "\n".join(show(start=3, instances=30)).strip().split("\n\n")
    assert len(blocks) == 30
    kinds = set()
    for step, block in enumerate(blocks, 3):
        (batch,) = batches.micro_batches(step)
        shown = batch.inputs.tokens[: batch.inputs.bounds[-1]].tolist()
        targets = dict(zip(batch.masked.positions.tolist(), batch.masked.ids.tolist(), strict=True))
        words = [store.tokenizer.piece(i) for i in shown]
        for at in range(batch.masked.count):
            place = int(batch.masked.positions[at])
            words[place] += "{" + store.tokenizer.piece(targets[place]) + "}"
        head, label, a, b = block.splitlines()
        assert head.startswith(f"instance {step}: row ")
        assert f", {len(shown)} tokens, {batch.masked.count} targets" in head
        assert batch.random_next is not None
        assert label.startswith(f"  label {int(batch.random_next[0])}, B ")
        found = [re.fullmatch(r"  ([AB]) \(.*?\) (.*)", line) for line in (a, b)]
        assert [m[1] for m in found if m] == ["A", "B"]
        assert [m[2].split() for m in found if m] == [
            words[: words.index("[SEP]") + 1],
            words[words.index("[SEP]") + 1 :],
        ]
        kinds.add(label)
    assert len(kinds) == 2


def test_what_was_cut_adds_up(show: Show) -> None:
    cut = [line for line in show(length=10) if "cut" in line]
    assert cut
    for line in cut:
        assert re.search(r"\(document \d+; (first \d+)?( and )?(last \d+)? tokens cut\)", line)


def test_the_command(
    tiny_corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["corpus", "show", str(tiny_corpus), "--instances", "2", "--masking-kind", "words"]
    assert cli.main(argv) == 0
    plain = capsys.readouterr().out
    assert plain.count("instance ") == 2
    assert "\x1b" not in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert cli.main(argv) == 0
    coloured = capsys.readouterr().out
    assert "\x1b[" in coloured
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert bare.split() == plain.split()
