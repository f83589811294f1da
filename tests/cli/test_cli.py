"""The program: verbs, exit statuses, messages, and that help is cheap."""

from __future__ import annotations

import inspect
import io
import json
import os
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any

import pytest
import torch

from bothways import cli
from bothways.corpus.options import CorpusConfig
from bothways.errors import StoreError

SENTENCES = "The house is old.\nA house by the sea is a good house.\nThe sea is old.\n"


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, name: str, function: Any) -> None:
    """Replace one function of a module that a verb imports, without importing the real one."""
    replaced = types.ModuleType(module)
    setattr(replaced, name, function)
    monkeypatch.setitem(sys.modules, module, replaced)


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes, *, terminal: bool = False) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
    monkeypatch.setattr(stdin, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", stdin)


# -------------------------------------------------------------------------------------------- help


def test_help_lists_every_verb_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    verbs = "demo vocab corpus pretrain fill-mask next-sentence finetune evaluate predict embed"
    for verb in [*verbs.split(), "convert", "doctor"]:
        assert f"\n  {verb} " in shown
    assert shown.count("\n  bothways ") >= 3


def test_the_examples_in_the_help_can_be_parsed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import shlex

    monkeypatch.chdir(tmp_path)
    seen: list[Any] = []

    def note(config: Any) -> str:
        seen.append(config)
        return ""

    stand_in(monkeypatch, "bothways.pretraining.pretrain", "pretrain", note)
    stand_in(monkeypatch, "bothways.experiments.demo", "demo", note)
    examples = [line for line in cli.EXAMPLES.splitlines() if line.startswith("  bothways ")]
    assert len(examples) == 4
    for line in examples:
        words = shlex.split(line.partition("   ")[0] if "demo" in line else line)
        if words[1] in ("vocab", "corpus"):
            words.append("--print_config")  # their files do not exist
        assert cli.main(words[1:]) == 0
    assert seen[-1].optimizer.lr == 1e-3
    assert seen[-1].model.size == "tiny"


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: bothways {verb} ")
    # A verb with several actions lists them; their options are under the action's own help.
    assert any(word in shown for word in ("options:", "actions"))


def handlers() -> list[tuple[type[Any], cli.Call]]:
    groups = [
        verb.actions if isinstance(verb, cli.VerbGroup) else {"": verb}
        for verb in cli.VERBS.values()
    ]
    verbs = [verb for group in groups for verb in group.values()]
    return [(verb.config, verb.handler) for verb in verbs if isinstance(verb.handler, cli.Call)]


@pytest.mark.parametrize(
    ("config", "handler"), handlers(), ids=lambda part: getattr(part, "function", "")
)
def test_handlers_are_functions_of_their_options(config: type[Any], handler: cli.Call) -> None:
    function = handler.load()
    first = next(iter(inspect.signature(function).parameters))
    assert typing.get_type_hints(function)[first] is config


def test_help_imports_no_torch() -> None:
    script = (
        "import sys\nfrom bothways import cli\n"
        "for argv in [['--help'], *([verb, '--help'] for verb in cli.VERBS)]:\n"
        "    assert cli.main(argv) == 0\n"
        "heavy = {'torch', 'tokenizers', 'pyarrow', 'sklearn', 'matplotlib', 'scipy', 'rich'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_threads_that_wait_sleep_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set before torch is imported, and only where the user has not decided."""
    for given in ({}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
            monkeypatch.setenv(name, "")  # restored afterwards, whatever is set below
            monkeypatch.delenv(name)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        assert cli.main(["--version"]) == 0
        now = {n: os.environ[n] for n in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY") if n in os.environ}
        assert now == (given or {"GOMP_SPINCOUNT": "1000"})


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"bothways {version('bothways')}\n"


# ------------------------------------------------------------------------- exit statuses, messages


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["pretain"], "unknown verb 'pretain'; did you mean 'pretrain'?"),
        (["fillmask"], "unknown verb 'fillmask'; did you mean 'fill-mask'?"),
        (["zzz"], "unknown verb 'zzz'; see 'bothways --help'."),
        (["--verson"], "unknown verb '--verson'; see 'bothways --help'."),
        (["pretrain", "--optimzer.lr", "1"], "unknown option '--optimzer.lr'; did you mean"),
        (["doctor"], "bothways doctor needs FOLDER"),
        (["convert", "a"], "bothways convert needs OUT"),
        (["embed", "m", "text"], "bothways embed needs --out"),
    ],
)
def test_usage_errors_exit_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"bothways: error: {message}")
    assert shown.out == ""


def test_no_verb_prints_help_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "verbs:" in capsys.readouterr().out


def test_errors_exit_1_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(_: Any) -> None:
        raise StoreError("corpus/shard-3.arrow: 10 bytes short; build the corpus again.")

    stand_in(monkeypatch, "bothways.pretraining.pretrain", "pretrain", damaged)
    assert cli.main(["pretrain"]) == 1
    shown = capsys.readouterr()
    assert shown.err == (
        "bothways: error: corpus/shard-3.arrow: 10 bytes short; build the corpus again.\n"
    )
    recipe = tmp_path / "r.yaml"
    recipe.write_text("modle: {size: tiny}\n")
    assert cli.main(["pretrain", str(recipe)]) == 1
    assert "r.yaml:1: unknown key 'modle'; did you mean 'model'?" in capsys.readouterr().err


def test_an_interruption_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    stand_in(monkeypatch, "bothways.pretraining.pretrain", "pretrain", interrupted)
    assert cli.main(["pretrain"]) == 130
    assert (
        capsys.readouterr().err
        == "interrupted; what was saved is kept: run the same command again\n"
    )


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"
        ),
        MemoryError(),
    ],
)
def test_out_of_memory_says_what_to_do(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def large(_: Any) -> None:
        raise error

    stand_in(monkeypatch, "bothways.pretraining.pretrain", "pretrain", large)
    assert cli.main(["pretrain"]) == 1
    assert "out of memory. What was saved before is kept" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")  # noqa: PTH110
def test_a_full_disk_behind_standard_output() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "bothways", "tasks"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "bothways: error: standard output: No space left on device.\n"


def test_a_list_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["vocab", "--files", "a", "--files", "b", "--out", "v"]) == 2
    assert "--files is given twice; write all its values after one" in capsys.readouterr().err


def test_a_defect_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> None:
        raise ZeroDivisionError

    stand_in(monkeypatch, "bothways.pretraining.pretrain", "pretrain", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["pretrain"])


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "bothways", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


# ------------------------------------------------------------------------ what the verbs hand over


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the functions of bothways.api.verbs are called with."""
    seen: list[Any] = []

    def note(options: Any) -> str:
        seen.append(options)
        return "done"

    module = types.ModuleType("bothways.api.verbs")
    for name in ("fill_mask", "next_sentence", "evaluate", "predict", "embed", "convert"):
        setattr(module, name, note)
    monkeypatch.setitem(sys.modules, "bothways.api.verbs", module)
    return seen


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("fill-mask m a --top 3 b", {"model": "m", "texts": ("a", "b"), "top": 3}),
        ("next-sentence m a b", {"text_a": "a", "text_b": "b"}),
        ("evaluate m dev.tsv", {"model": "m", "file": "dev.tsv"}),
        ("predict m a --text_b b --out o.tsv", {"texts": ("a",), "text_b": "b", "out": "o.tsv"}),
        ("predict m --file f.tsv", {"texts": (), "file": "f.tsv"}),
        ("embed m a --out e.npz --normalize", {"normalize": True, "pooling": "auto"}),
        ("embed m --file f.txt --out e.npz --pooling cls", {"file": "f.txt", "pooling": "cls"}),
        ("convert a b --tokenizer v", {"source": "a", "out": "b", "tokenizer": "v"}),
    ],
)
def test_verbs_hand_over_their_options(
    argv: str, expected: dict[str, Any], handed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv.split()) == 0
    assert {name: getattr(handed[0], name) for name in expected} == expected
    assert capsys.readouterr().out == "done\n"


@pytest.mark.parametrize("argv", ["fill-mask m", "fill-mask m -", "predict m", "predict m -"])
def test_texts_from_standard_input(
    argv: str, monkeypatch: pytest.MonkeyPatch, handed: list[Any]
) -> None:
    give_stdin(monkeypatch, "erste Zeile\r\n\nzweite, ohne Ende é".encode())
    assert cli.main(argv.split()) == 0
    assert handed[0].texts == ("erste Zeile", "", "zweite, ohne Ende é")


def test_standard_input_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, handed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    give_stdin(monkeypatch, b"", terminal=True)
    assert cli.main(["fill-mask", "m"]) == 2
    assert "no text given; write texts after the model" in capsys.readouterr().err
    give_stdin(monkeypatch, b"")
    assert cli.main(["fill-mask", "m"]) == 1
    assert "standard input is empty" in capsys.readouterr().err
    give_stdin(monkeypatch, b"good\nbad \xff\n")
    assert cli.main(["embed", "m", "--out", "e.npz"]) == 1
    assert "standard input:2: not UTF-8: byte 0xff at byte 4" in capsys.readouterr().err
    assert cli.main(["embed", "m", "a", "--file", "f", "--out", "e.npz"]) == 1
    assert "not both" in capsys.readouterr().err
    assert handed == []


def test_a_file_is_not_waited_for_on_standard_input(
    monkeypatch: pytest.MonkeyPatch, handed: list[Any]
) -> None:
    give_stdin(monkeypatch, b"must not be read\n")
    assert cli.main(["predict", "m", "--file", "f.tsv"]) == 0
    assert handed[0].texts == ()


def test_doctor_exits_1_when_there_are_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = {"good": [], "bad": ["config.json: missing", "vocab.txt: missing"]}
    stand_in(monkeypatch, "bothways.api.doctor", "diagnose", lambda folder: problems[folder])
    assert cli.main(["doctor", "good"]) == 0
    assert capsys.readouterr().out == "good: sound\n"
    assert cli.main(["doctor", "bad"]) == 1
    assert capsys.readouterr().out == "config.json: missing\nvocab.txt: missing\n"


def test_corpus_report_and_finetune_table_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = {
        "train": {"documents": 1234, "sentence_tokens": {"min": 2, "max": 5000}},
        "unknown_rate": 0.00123,
        "folder": "a [b] c",
        "cased": True,
        "heldout_note": None,
    }

    def build(config: CorpusConfig, *, progress: Any, say: Any) -> dict[str, Any]:
        assert config.tokenizer == "t"
        progress(1, 2)
        say("continuing")
        return report

    stand_in(monkeypatch, "bothways.corpus.build", "build_corpus", build)
    assert cli.main(["corpus", "--files", "a", "--tokenizer", "t", "--out", "o"]) == 0
    shown = capsys.readouterr().out
    assert "note" not in shown
    for text in ("train documents", "1,234", "min 2, max 5,000", "0.00123", "a [b] c", "True"):
        assert text in shown
    result = types.SimpleNamespace(table=lambda: "accuracy 0.9")
    stand_in(monkeypatch, "bothways.finetuning.finetune", "finetune", lambda _: result)
    assert cli.main(["finetune"]) == 0
    assert capsys.readouterr().out == "accuracy 0.9\n"


# ------------------------------------------------------------------------------------------- vocab


def test_vocab_learns_saves_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bothways.tokenization.tokenizer import Tokenizer

    (tmp_path / "a.txt").write_text(SENTENCES * 3)
    out = tmp_path / "v"
    argv = ["vocab", "--files", str(tmp_path), "--size", "60", "--out", str(out)]
    argv += ["--heldout", str(tmp_path / "a.txt"), "--score", "frequency", "--unused", "3"]
    assert cli.main(argv) == 0
    shown = capsys.readouterr().out
    tokenizer = Tokenizer.from_folder(out)
    for row in (f"vocabulary pieces │ {tokenizer.vocab_size} ", "frequency ", "normalization"):
        assert row in " ".join(shown.split()) + " "
    assert "[unused2]" in tokenizer.pieces
    report = json.loads((out / "vocabulary-report.json").read_text())
    assert report["heldout"]["unknown"] == 0
    assert report["heldout"]["pieces"] == report["learned_from"]["pieces"]
    assert cli.main(argv) == 0  # its own folder may be replaced
