"""How messages name options: as who gave them writes them."""

from __future__ import annotations

import pytest

from bothways.config.spelling import as_keyword, on_command_line, options_named, respelt
from bothways.errors import ConfigError, InputError, Place
from bothways.finetuning.options import FinetuneConfig
from bothways.pretraining.options import PretrainConfig

COMMAND, KEYWORD = on_command_line(FinetuneConfig), as_keyword(FinetuneConfig)


@pytest.mark.parametrize(
    ("text", "command", "keyword"),
    [
        ("task.dev is missing", "--dev is missing", "dev is missing"),
        ("set task.kind, task.header", "set --kind, --task.header", "set kind, header"),
        ("optimizer.lr: 0", "--lr: 0", "lr: 0"),
        ("(--task.labels a b.)", "(--labels a b.)", "(labels a b.)"),
        ("--text and --epochs", "--text and --epochs", "text and epochs"),
        # What is no option, a file, a command or part of a recipe is left as it is.
        ("epochs is 'two'", "epochs is 'two'", "epochs is 'two'"),
        ("--nonesuch, task.nonesuch", "--nonesuch, task.nonesuch", "--nonesuch, task.nonesuch"),
        ("/a/task.dev 'task.dev'", "/a/task.dev 'task.dev'", "/a/task.dev 'task.dev'"),
        ("`predict --text`", "`predict --text`", "`predict --text`"),
        ("own.yaml:3: task.dev", "own.yaml:3: task.dev", "own.yaml:3: task.dev"),
        ("differ:\n  task.dev: 1", "differ:\n  task.dev: 1", "differ:\n  task.dev: 1"),
    ],
)
def test_options_in_a_message(text: str, command: str, keyword: str) -> None:
    assert respelt(text, FinetuneConfig, COMMAND) == command
    assert respelt(text, FinetuneConfig, KEYWORD) == keyword


def test_a_last_part_of_several_options_is_no_keyword() -> None:
    keyword = as_keyword(PretrainConfig, {"kind": "masking.kind"})
    found = respelt("masking.kind, pairs.kind, masking.rate", PretrainConfig, keyword)
    assert found == "kind, pairs.kind, rate"


def test_errors_keep_their_type_file_and_line() -> None:
    with pytest.raises(ConfigError, match=r"^--dev$"), options_named(FinetuneConfig, COMMAND):
        raise ConfigError("task.dev")
    with pytest.raises(InputError) as caught, options_named(FinetuneConfig, COMMAND):
        raise InputError("no task.label.", place=Place("task.dev", 3))
    assert str(caught.value) == "task.dev:3: no --label."
