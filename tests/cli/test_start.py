"""From a folder of text to a model without a recipe or a run folder: what is chosen and said, what
a folder is, and the command that comes next."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import bothways as bw
from bothways import cli
from bothways.api.calls import recipe_for
from bothways.config.fields import recipe_fields
from bothways.errors import BothwaysError, InputError, ModelError, is_out_of_memory
from small_world import World

QUICK = ["--phases", "[{length: 16, batch: 4, micro_batch: 4}]", "--evaluate-every", "3"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("world"))
    world.build()
    return world


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def next_commands(told: str) -> list[list[str]]:
    lines = told.partition("next:\n")[2].splitlines()
    return [shlex.split(line) for line in lines if line.startswith("  bothways ")]


# ----------------------------------------------------------------------------- recipes, run folders


def test_a_recipe_for_corpus_and_minutes(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads((world.corpus / "corpus.json").read_text())["report"]
    assert recipe_for(str(world.corpus), 5) == "tiny"
    assert "recipe: tiny, for 5 minutes; there are base" in capsys.readouterr().out
    assert recipe_for(str(world.corpus), 60) == "tiny"
    tokens = report["train"]["tokens"]
    assert f"recipe: tiny, for {tokens:,} tokens of text" in capsys.readouterr().out
    assert recipe_for(str(tmp_path / "none"), 60) is None, "training says what is wrong"


@pytest.mark.parametrize(
    ("scripts", "name"), [({"Latin": 1.0}, "mini"), ({"Hangul": 0.9, "Latin": 0.1}, "mini-ko")]
)
def test_a_recipe_for_the_language(
    scripts: dict[str, float], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = {"train": {"tokens": 10**7}, "scripts": scripts}
    monkeypatch.setattr("bothways.api.calls.Manifest.read", lambda _: Named(report))
    assert recipe_for("corpus", 30) == name


class Named:
    def __init__(self, report: dict[str, Any]):
        self.report = report


def test_minutes_alone_choose_a_recipe_and_other_options_none(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = ["--corpus", str(world.corpus)]

    def printed(*words: str) -> str:
        assert cli.main(["pretrain", *corpus, *words, "--print-config"]) == 0
        return capsys.readouterr().out

    assert "lr: 0.001" in printed("--minutes", "5")
    assert "lr: 0.001" in printed("--minutes", "5", "--seed", "3", "--threads", "1")
    for words in (["--size", "tiny"], ["--lr", "1e-4"], QUICK[:2]):
        shown = printed("--minutes", "5", *words)
        assert "lr: 0.0001" in shown
        assert "recipe: " not in shown
    assert "lr: 0.0001" in printed("--steps", "5")
    assert "minutes: 5.0" in printed("mini-ko", "--minutes", "5")
    assert "steps: null" in printed("mini-ko", "--minutes", "5")


@pytest.mark.parametrize("name", [None, "mini", "tiny"])
def test_a_run_goes_on_with_what_it_was_begun_with(
    name: str | None, world: World, tmp_path: Path
) -> None:
    """Also one that an earlier version began with the default options, for some minutes."""
    recipe = bw.PretrainConfig() if name is None else bw.load_recipe(bw.PretrainConfig, name)
    fields = recipe_fields(recipe) | {"minutes": 3.0, "steps": None, "seed": 1}
    (tmp_path / "run.json").write_text(json.dumps({"recipe": fields | {"input.corpus": "x"}}))
    assert recipe_for(str(world.corpus), 3, tmp_path) == name
    (tmp_path / "run.json").write_text("{")
    assert recipe_for(str(world.corpus), 3, tmp_path) == "tiny", "training says: it is damaged"


def test_from_a_corpus_to_fillings_and_the_next_command(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run folder is chosen; the same command continues it."""
    words = ["pretrain", "tiny", "--corpus", str(world.corpus), "--steps", "3", *QUICK]
    words += ["--precision", "fp32"]
    assert cli.main(words) == 0
    shown, told = capsys.readouterr()
    (run,) = Path("runs").iterdir()
    assert run.name.startswith("pretrain-")
    assert "words that the model puts in for hidden ones:\n" in shown
    assert shown.count(" (it was: ") >= 1
    fill, tune = next_commands(told)
    assert fill[:3] == ["bothways", "fill-mask", f"{run}/model"]
    assert tune[1] == "finetune"
    assert tune[-2:] == ["--model", f"{run}/model"]
    assert cli.main(fill[1:]) == 0
    capsys.readouterr()
    assert cli.main(words) == 0
    assert "continued or read again" in capsys.readouterr().out
    assert [*Path("runs").iterdir()] == [run]


def test_from_labels_to_the_next_command(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["finetune", "--train", str(world.train), "--dev", str(world.dev), "--epochs", "1"]
    assert cli.main([*words, "--model", str(world.model), "--precision", "fp32"]) == 0
    predict, info = next_commands(capsys.readouterr().err)
    assert predict[:2] == ["bothways", "predict"]
    for command in (predict, info):
        assert cli.main(command[1:]) == 0
    assert "a finished run of `bothways finetune`" in capsys.readouterr().out


# --------------------------------------------------------------------------------- what a folder is


def test_what_folders_are(world: World, tmp_path: Path) -> None:
    encoder, tuned = bw.info(world.model), bw.info(world.task_model)
    assert encoder.kind == "a model"
    assert encoder.facts["family"] == "bert"
    assert encoder.verbs[:2] == ("fill-mask", "next-sentence")
    assert tuned.verbs[0] == "predict"
    assert tuned.facts["labels"] == "no, yes"
    assert tuned.facts["dev scores"].startswith("accuracy ")
    assert bw.info(world.run).kind == "a finished run of `bothways pretrain`"
    assert bw.info(world.tuned).facts["models"] == str(world.task_model)
    corpus = bw.info(world.corpus)
    assert corpus.kind == "a corpus"
    assert corpus.facts["letters"] == "Latin 100.0%"
    assert corpus.facts["language"] == "en"
    assert bw.info(world.vocabulary).kind == "a vocabulary"
    assert bw.info(world.train).verbs == ("finetune", "evaluate")
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        found = bw.info(world.model / name)
        assert found.verbs == ("info",)
        assert found.next == (f"bothways info {world.model}",)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("a")
    assert bw.info("texts").kind == "a folder of 1 text files"
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/run.json").write_text('{"verb": "pretrain", "config": {}}')
    assert bw.info("runs").facts == {"runs": "a"}
    assert "not finished" in bw.info("runs/a").facts["model"]
    assert bw.info("mini-en").facts["heads"] == "masked-LM head, next-sentence head"


def test_an_encoder_for_vectors_is_told_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bw.convert("mini-en", tmp_path / "ours", heads="none")
    skipped = shutil.ignore_patterns("bothways.json", "checksums.json")
    folder = shutil.copytree(tmp_path / "ours", tmp_path / "theirs", ignore=skipped)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 99}')
    found = bw.info(folder)
    assert found.facts["vectors"] == "mean; texts are cut to 99 tokens"
    assert "embed" in found.verbs
    assert "evaluate" not in found.verbs  # nothing in it can be measured
    with pytest.raises(ModelError, match=r"ranking needs .* compared by their cosines"):
        bw.load(folder).rank("a query", ["a text"])
    assert cli.main(["rank", str(folder), "a query", "a text"]) == 1
    assert "`bothways embed --normalize`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--train", "t.csv"], "dev is missing"),
        (["--train", "t.csv", "--dev", "d.csv"], "d.csv: there is no such file (dev"),
        (["--train", "no.csv", "--dev", "0.2"], "no.csv: there is no such file (train"),
    ],
)
def test_no_run_folder_is_named_for_what_is_missing(
    words: list[str], problem: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "t.csv").write_text("sentence,label\na b,x\nc d,y\n")
    assert cli.main(["finetune", *words]) == 1
    shown = capsys.readouterr()
    assert problem in shown.err
    assert shown.out == ""


def test_every_command_that_info_names_can_be_run(world: World) -> None:
    for folder in (world.model, world.task_model, world.run, world.tuned, world.vocabulary):
        for command in bw.info(folder).next:
            words = shlex.split(command)[1:]
            if words[0] not in ("finetune", "corpus"):  # these need a file of the reader's
                assert cli.main(words) == 0, command


def test_folders_of_others_and_those_that_are_none(tmp_path: Path) -> None:
    other = tmp_path / "theirs"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "llama"}')
    save_file(
        {"model.embed_tokens.weight": np.zeros((2, 2), np.float32)}, other / "model.safetensors"
    )
    found = bw.info(other)
    assert found.kind == "a model that another program wrote, which cannot be used"
    assert "llama" in found.facts["problem"]
    with pytest.raises(InputError, match="no such file or folder"):
        bw.info("nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no model, run, corpus, vocabulary or text"):
        bw.info("empty")
    (tmp_path / "corpus.json").write_text("{")
    with pytest.raises(BothwaysError):
        bw.info(tmp_path)


# ------------------------------------------------------------------------------------------- pieces


def test_pieces_ids_and_places(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tokenize", str(world.vocabulary), "The dog 7 qq."]) == 0
    shown = capsys.readouterr().out
    encoding = bw.Tokenizer.from_folder(world.vocabulary).encode("The dog 7 qq.")
    first, head, *rows = shown.splitlines()
    assert first.split() == encoding.tokens
    assert head.split() == ["piece", "id", "from", "to", "text"]
    assert rows[1].split() == ["the", str(encoding.ids[1]), "0", "3", "The"]
    assert any("unknown: [UNK]" in row for row in rows) == ("[UNK]" in encoding.tokens)
    assert "\x1b" not in shown
    assert cli.main(["tokenize", str(world.vocabulary), "a b", "c"]) == 0
    assert capsys.readouterr().out.count("piece ") == 2


@pytest.mark.parametrize(("variable", "coloured"), [("X", True), ("NO_COLOR", False)])
def test_colours_on_a_terminal_alone(world: World, variable: str, coloured: bool) -> None:
    pytest.importorskip("pty")
    script = (
        "import pty, sys; sys.exit(pty.spawn([sys.executable, '-m', 'bothways', *sys.argv[1:]]))"
    )
    words = [sys.executable, "-c", script, "tokenize", str(world.vocabulary), "The dog."]
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env |= {"TERM": "xterm-256color", variable: "1"}
    done = subprocess.run(words, capture_output=True, env=env, check=True)
    assert b"dog" in done.stdout
    assert (b"\x1b[30;106m" in done.stdout) == coloured


# ---------------------------------------------------------------------------------------- languages


def test_the_language_is_said_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "그는 집에 갔다. 그리고 책을 읽었다. 밖에는 비가 왔다.\n\n"
    (tmp_path / "ko.txt").write_text(line * 30)
    assert cli.main(["vocab", "--files", "ko.txt", "--size", "90", "--out", "v"]) == 0
    told = capsys.readouterr().err
    assert next_commands(told)[1] == shlex.split(
        "bothways corpus --files ko.txt --tokenizer v --out corpus"
    )
    words = ["corpus", "--files", "ko.txt", "--tokenizer", "v", "--out"]
    assert cli.main([*words, "auto"]) == 0
    assert "note: language ko: 100% of the letters are Hangul" in capsys.readouterr().err
    assert cli.main([*words, "given", "--language", "ko"]) == 0
    assert "language" not in capsys.readouterr().err

    def fingerprint(name: str) -> str:
        found: str = json.loads((tmp_path / name / "corpus.json").read_text())["fingerprint"]
        return found

    assert fingerprint("auto") == fingerprint("given")
    assert cli.main(["vocab", "--files", "ko.txt", "--normalization", "bert", "--out", "b"]) == 0
    assert "--normalization composed keeps them whole" in capsys.readouterr().err


def test_in_a_folder_that_was_removed(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.main(["embed", str(world.model), "a text", "--out", str(tmp_path / "v.npy")]) == 2
    assert "the folder you are in was removed; go to another one" in capsys.readouterr().err
    assert cli.main(["help", "embed"]) == 0
    monkeypatch.chdir(tmp_path)


def test_memory_that_ends_while_a_library_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError("Could not find/load shared object file 'libllvmlite.so'")
    assert not is_out_of_memory(error)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (700 * 2**20, resource.RLIM_INFINITY))
    assert is_out_of_memory(error)


def test_a_text_that_is_not_utf_8(world: World, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "bothways", "embed", str(world.model), b"caf\xe9"]
    done = subprocess.run(
        [*words, "--out", str(tmp_path / "v.npy")], capture_output=True, text=True, check=False
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "text 1 of 1 has half a character at 3" in done.stderr
