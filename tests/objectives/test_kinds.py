"""An objective is one file: nothing else names one, and a user's does everything that ours do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import bothways
from bothways.objectives import kinds
from bothways.pretraining.options import PairOptions
from bothways.pretraining.pretrain import pretrain
from bothways.pretraining.start import new_model
from pretrain_runs import ALWAYS, after_step, records, short_recipe, stop, weights
from pretraining_examples import memory_store, pair_batches, small_shape

NAMES = (*kinds.OBJECTIVES, *(kind.__name__ for kind in kinds.OBJECTIVES.values()))
WORDS = ("generator", "masked_lm", "rtd", "mlm", "nsp", "sop", "objectives.masked")
WORDS += ("objectives.replaced", "objectives.masking")


def named(path: Path) -> Iterator[str]:
    """The identifiers and strings of a module, without its docstrings."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (str(node.module), *(alias.name for alias in node.names))


def test_nothing_else_names_an_objective() -> None:
    """What each is called, its class, its losses and its parts."""
    root = Path(bothways.__file__).parent
    files = [*(root / "pretraining").glob("*.py"), *(root / "training").glob("*.py")]
    files += [root / "model" / "flops.py", root / "experiments" / "plan.py"]
    found = {
        (path.name, word)
        for path in files
        for word in named(path)
        if word in NAMES or word.removeprefix("bothways.") in WORDS
    }
    found -= {("options.py", "masked")}  # the default
    # A field of a batch, its targets; and an axis of the network, the direction of attention.
    kept = {"masked", "left_to_right"}
    assert {(path, word) for path, word in found if word not in kept} == set()


def test_an_objective_of_a_users(tiny_corpus: Path, tmp_path: Path) -> None:
    """Its targets, part, losses and measure; a run goes on from any step."""
    make = short_recipe(tiny_corpus)
    given: dict[str, Any] = {
        "objective": ["spans_objective:Spans", "width=4"],
        "pairs": PairOptions(kind="full"),
    }
    whole = pretrain(make(tmp_path / "whole", **given))
    assert whole.heldout is not None
    assert "; span-boundary error " in whole.heldout.sentence()
    last = records(whole.run)[-1]
    assert {"heldout_mlm_baseline", "heldout_sbo_error"} <= set(last)
    assert "heldout_sbo_baseline" not in last
    config = make(tmp_path / "run", checkpoint=ALWAYS, **given)
    with after_step(7, stop), pytest.raises(Exception, match=r"^$"):
        pretrain(config)
    assert weights(pretrain(config).run) == weights(whole.run)
    assert records(tmp_path / "run") == records(whole.run)


def test_a_second_use_of_the_tied_table_is_added_in_fp32(tiny_corpus: Path, tmp_path: Path) -> None:
    config = short_recipe(tiny_corpus)(tmp_path, objective="spans_objective:Spans")
    model = new_model(config, small_shape())
    table = model.encoder.embeddings.tokens.weight
    assert any(p is table for p in model.reused_parameters())
    head = model.parts["boundaries"].head
    rng = torch.Generator().manual_seed(0)
    states = [torch.randn(8, 16, generator=rng, dtype=torch.float32) for _ in range(2)]
    ids = torch.arange(8)
    store = memory_store([[5, 6, 7]] * 8)
    (batch, *_) = pair_batches(store, pairs=PairOptions(kind="full")).micro_batches(0)

    def gradient(*chosen: int) -> torch.Tensor:
        model.zero_grad()
        model.encoder(batch.inputs, dtype=torch.bfloat16)  # looks rows up
        own = (None, head)
        losses = [model.piece_loss(states[i].bfloat16(), ids, own[i])[0] for i in chosen]
        sum(losses, torch.zeros(())).backward()  # type: ignore[no-untyped-call]
        assert table.grad is not None
        return table.grad.clone()

    torch.testing.assert_close(gradient(0, 1), gradient(0) + gradient(1), rtol=1e-6, atol=1e-6)
