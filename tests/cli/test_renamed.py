"""The changelog's table of verbs and options: old commands that it rewrites are taken."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bothways import cli
from bothways.cli.verbs import Verb
from bothways.config.fields import option_types

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
OLD = """\
fill-mask 'She opened the [MASK] and looked out.' --top 3
finetune --run r --train train.tsv --dev dev.tsv --seeds 0 1 --batch 16 --length 64
finetune mrpc --data glue --optimizer.warmup 0.2 --task.long windows --text_a sentence
finetune mrpc --class_weights balanced --task.windows.stride 9 --task.long windows
finetune --train train.conll --task.tagging.scheme iob1 --kind ner --checkpoint.minutes 2
finetune --train t.csv --dev 0.1 --search.lr 1e-5 2e-5
predict m 'A fine story.' 'I fell asleep twice.'
predict m --file x.tsv --submission true
tag m 'Ada came.'
answer m --question 'Who came?' --context 'Ada came.' --top 2
choose m 'It was' 'cold.' 'run.'
score p.json d.json --convention korean
glue --data glue --run r --tasks mrpc --length 64
features conll2003 --data d --run r --hidden 32
embed m --file t.tsv --out v.npy --length 12 --text_a x --combine concat
inspect m 'a text' --pair another
vocab --files texts --size 16384 --out vocabulary --text_field body --unused 3
corpus --files texts --tokenizer vocabulary --out corpus --single_sentence keep
plan mini-en --corpus corpus --model.size tiny
pretrain mini-en --corpus corpus --run r --masking.rate 0.3 --masking.mask 0.7
pretrain mini-en --corpus corpus --optimizer.name lamb --model.layers 2
pretrain --corpus corpus --clock.steps 4 --optimizer.beta1 0.8 --pairs.kind full
serve mini-en --limits.tokens 9000 --port 80
"""


def table() -> list[tuple[str, str]]:
    """The rows of the table in code."""
    part = CHANGELOG.read_text(encoding="utf-8").partition("### Verbs and options")[2]
    rows = re.findall(r"^\| (.+) \| (.+) \|$", part.partition("### Removed")[0], re.MULTILINE)
    return [(old, new) for old, new in rows if old not in ("before", "---")]


def renamed(command: str) -> list[str]:
    """The words of an old command as the table rewrites them."""
    verb, *words = shlex.split(command)
    rows = dict(table())
    assert rows["`tag MODEL`, `answer MODEL`"] == "`predict MODEL`"
    if verb in ("tag", "answer"):
        verb = "predict"
    elif verb == "choose":
        verb, (model, text, *choices) = "predict", words
        words = [model, "--context", text, "--choices", *choices]
    elif verb == "score":
        verb, (predictions, file, *others) = "evaluate", words
        words = [file, "--predictions", predictions, *others]
    found = ["reproduce", verb] if verb in ("glue", "features") else [verb]
    of = cli.VERBS[found[0]]
    entry = (
        of if isinstance(of, Verb) else of.actions.get(found[-1], next(iter(of.actions.values())))
    )
    listed = {option.name for option in entry.words("x").listed()}
    waiting = ""
    for word in words:
        if not word.startswith("--"):
            found.append(f"{waiting}={word}" if waiting else word)
            waiting = ""
            continue
        name = word.removeprefix("--")
        name = {"text_a": "text", "pair": "text_b", "optimizer.name": "optimizer"}.get(name, name)
        if verb in ("finetune", "embed", "glue", "features"):
            name = {"batch": "batch_size", "length": "max_length"}.get(name, name)
        name = re.sub(r"^(task|optimizer|model|clock)\.", "", name).replace(".", "_")
        assert name in option_types(entry.config), name
        found.append("--set" if name not in listed else f"--{name.replace('_', '-')}")
        waiting = name if name not in listed else ""
    return found


@pytest.mark.parametrize("command", OLD.splitlines())
def test_an_old_command_is_taken_when_rewritten(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*renamed(command), "--print-config"]) == 0
    assert capsys.readouterr().out


def test_every_verb_that_went_is_in_the_table() -> None:
    told = " ".join(old for old, _ in table())
    for verb in ("tag", "answer", "choose", "score", "glue", "features"):
        assert f"`{verb}" in told
        assert verb not in cli.VERBS
