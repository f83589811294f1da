"""The program: verbs, exit statuses, messages, and that help is cheap."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import types
import typing
from pathlib import Path
from typing import Any

import pytest
import torch

from bothways import cli
from bothways.cli.verbs import GROUPS
from bothways.config.fields import option_types
from bothways.corpus.options import CorpusConfig
from bothways.errors import StoreError
from bothways.io.processes import INTERRUPTED

PRETRAIN = ["pretrain", "--corpus", "c", "--run", "r"]
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


def verbs() -> dict[str, cli.Verb]:
    """All verbs, those of groups with their action."""
    found: dict[str, cli.Verb] = {}
    for name, verb in cli.VERBS.items():
        actions = {"": verb} if isinstance(verb, cli.Verb) else verb.actions
        found |= {f"{name} {action}".strip(): inner for action, inner in actions.items()}
    return found


EXAMPLES = [(name, line) for name, verb in verbs().items() for line in verb.examples]


def test_help_lists_every_verb_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(shown.count(f"\n  {verb} ") == 1 for verb in cli.VERBS)
    assert [line[:-1] for line in shown.splitlines() if line.endswith(":")] == [
        *GROUPS,
        "examples",
    ]
    assert sum(map(len, GROUPS.values())) == len(cli.VERBS), "a verb is in two groups"
    assert shown.count("\n  bothways ") >= 3
    assert cli.main(["help"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_the_examples_can_be_parsed(
    name: str,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They are run by tests/test_readme.py."""
    monkeypatch.chdir(tmp_path)
    program, *words = shlex.split(line)
    assert program == "bothways"
    short = name.partition(" ")[0]  # the first action of a group goes without saying
    assert " ".join(words).startswith(f"{name} ") or words[0] == short
    assert cli.main([*words, "--print-config"]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", verbs())
def test_help_is_of_the_verb_that_it_is_of(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What options of a group are elsewhere is not said here."""
    verb = verbs()[name]
    types, words = option_types(verb.config), name.split()
    assert set(verb.config.own_texts) <= set(types)
    assert len(verb.examples) >= 2
    assert max(map(len, verb.examples)) <= 98
    assert cli.main([*words[:1], "--help"]) == 0
    page = capsys.readouterr().out
    assert f"usage: bothways {name} " in page
    assert all(f"\n  {line}\n" in page for line in verb.examples)
    assert cli.main(["help", *words[:1]]) == 0
    assert capsys.readouterr().out == page
    shown = " ".join(verb.words(name).help().split())
    rate = re.search(r"--lr FLOAT (.*?) --", shown)
    told = "Peak learning rate" if name != "finetune" else "Peak learning rate. Default (also if 0"
    assert rate is None or rate[1].startswith(told)
    assert "(default: 0.0)" not in (rate[1] if rate else "")
    for other in re.findall(r"(?<![\w`-])--([a-z-]+\w)", re.sub(r"`.*?`", "", shown)):
        assert other.replace("-", "_") in {*types, "help", "set", "print_config", "min"}, other


RUN_BARE = ("demo", "plan", "tasks")
"""They need nothing."""


@pytest.mark.parametrize("name", [name for name in verbs() if name not in RUN_BARE])
def test_a_bare_verb_says_what_it_needs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give_stdin(monkeypatch, b"", terminal=True)
    assert cli.main(name.split()) == 2
    shown = capsys.readouterr()
    if name == "fill-mask":  # has a model of its own
        assert "no text given" in shown.err
        return
    assert shown.err.startswith(f"bothways: error: bothways {name} needs ")
    assert shown.err.splitlines()[1:] == [
        f"  {verbs()[name].examples[0]}",
        f"See 'bothways {name} --help'.",
    ]
    assert shown.out == ""


def handlers() -> list[tuple[type[Any], cli.Call]]:
    found = [(verb.config, verb.handler) for verb in verbs().values()]
    return [(config, handler) for config, handler in found if isinstance(handler, cli.Call)]


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


_EXTRAS = ("torch", "pyarrow", "sklearn", "scipy", "joblib", "sentencex", "msgspec", "openvino")
_BASE: list[list[str]] = [
    *([verb, "mini-en"] for verb in ("info",)),
    ["tokenize", "mini-en", "a text"],
    ["fill-mask", "a [MASK]."],
    ["embed", "mini-en", "a text", "--precision", "fp32", "--out", "v.npy"],
    ["inspect", "mini-en", "a text"],
    ["convert", "mini-en", "c"],
    ["export", "mini-en", "exported"],
    *(["info", folder] for folder in ("c", "exported")),
]


def test_the_base_needs_no_extra(tmp_path: Path) -> None:
    """What an installation without extras is said to do, and what these verbs say to run next."""
    script = (
        "import sys\n"
        f"for name in {_EXTRAS}:\n    sys.modules[name] = None\n"
        "from bothways import cli\n"
        f"for argv in {_BASE}:\n"
        "    assert cli.main(argv) == 0, argv\n"
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
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
    ("line", "message"),
    [
        ("predict m x --context c", "context and top are for a question"),
        ("predict m x --top 5", "context and top are for a question"),
        ("predict m --question q --context c --out o", "out has no effect with question"),
        ("predict m --choices a b", "choices continue a text; give it as context"),
        ("predict m --choices a b --context c --text-b x", "text_b has no effect with choices"),
        ("evaluate d.json --predictions p --label l", "label has no effect with predictions"),
        ("evaluate m d --convention korean", "odds and convention are for predictions"),
    ],
)
def test_no_option_is_without_effect(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(line.split()) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["pretain"], "unknown verb 'pretain'; did you mean 'pretrain'?"),
        (["fillmask"], "unknown verb 'fillmask'; did you mean 'fill-mask'?"),
        (["zzz"], "unknown verb 'zzz'; see 'bothways --help'."),
        (["--verson"], "unknown verb '--verson'; did you mean 'version'?"),
        (
            ["pretrain", "--optimzer", "1"],
            "unknown option '--optimzer'; did you mean '--optimizer'?",
        ),
        (["pretrain", "--beta1", "1"], "--beta1: write --set beta1=VALUE."),
        (["finetune", "--epoch", "1"], "unknown option '--epoch'; did you mean '--epochs'?"),
        (["finetune", "--zzzz", "o"], "unknown option '--zzzz'; see 'bothways finetune --help'."),
        (["fill-mask", "--text", "a"], "unknown option '--text'; see 'bothways fill-mask --help'."),
        (["convert", "a", "b", "--text", "c"], "unknown option '--text'"),
        (["--model", "a"], "unknown verb '--model'; write the verb before its options"),
        (
            ["fill-mask", "no mask"],
            "'no mask' is read as the model, and there is no such folder; w",
        ),
        (["info"], "bothways info needs FOLDER"),
        (["convert", "a"], "bothways convert needs OUT"),
        (["help", "zzz"], "unknown verb 'zzz'; see 'bothways --help'."),
        (["completion", "ksh"], "bothways completion needs one shell: bash, zsh, fish."),
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
    assert "use a model:" in capsys.readouterr().out


def test_errors_exit_1_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(_: Any) -> None:
        raise StoreError("corpus/shard-3.arrow: 10 bytes short; build the corpus again.")

    stand_in(monkeypatch, "bothways.pretraining.pretrain", "pretrain", damaged)
    assert cli.main(PRETRAIN) == 1
    shown = capsys.readouterr()
    assert shown.err == (
        "bothways: error: corpus/shard-3.arrow: 10 bytes short; build the corpus again.\n"
    )
    recipe = tmp_path / "r.yaml"
    recipe.write_text("famly: bert\n")
    assert cli.main(["pretrain", str(recipe)]) == 1
    assert "r.yaml:1: unknown key 'famly'; did you mean 'family'?" in capsys.readouterr().err


def test_an_interruption_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    stand_in(monkeypatch, "bothways.pretraining.pretrain", "pretrain", interrupted)
    assert cli.main(PRETRAIN) == 130
    assert (
        capsys.readouterr().err
        == "interrupted; what was saved, if anything, is kept: run the same command again\n"
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
    assert cli.main(PRETRAIN) == 1
    assert "out of memory. What was saved before is kept" in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")  # noqa: PTH110
@pytest.mark.parametrize(
    ("after", "status", "message"),
    [
        ("return 0", 1, "bothways: error: standard output: No space left on device.\n"),
        ("raise InputError('a row')", 1, "bothways: error: a row\n"),
        ("raise KeyboardInterrupt", 130, f"{INTERRUPTED}\n"),
    ],
)
def test_a_full_disk_behind_standard_output(after: str, status: int, message: str) -> None:
    code = (
        "import sys\nfrom bothways import cli\nfrom bothways.errors import InputError\n"
        f"def verb(_):\n    print('text')\n    {after}\n"
        "cli._dispatch = verb\nsys.exit(cli.main([]))"
    )
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # so that nothing is written before the end
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (status, message)


def test_a_list_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["vocab", "--files", "a", "--files", "b", "--out", "v"]) == 2
    assert "--files is given twice; write all its values after one" in capsys.readouterr().err


def test_a_defect_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> None:
        raise ZeroDivisionError

    stand_in(monkeypatch, "bothways.pretraining.pretrain", "pretrain", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(PRETRAIN)


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
        ("next-sentence m a b", {"text": "a", "text_b": "b"}),
        ("evaluate m dev.tsv", {"model": "m", "file": "dev.tsv"}),
        ("predict m a --text-b b --out o.tsv", {"texts": ("a",), "text_b": "b", "out": "o.tsv"}),
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
    assert "standard input is empty. ('m' is read as the model.)" in capsys.readouterr().err
    assert cli.main(["predict", "A fine story."]) == 2
    assert "'A fine story.' is read as the model, and" in capsys.readouterr().err
    give_stdin(monkeypatch, b"good\nbad \xff\n")
    assert cli.main(["embed", "m", "--out", "e.npz"]) == 1
    assert "standard input:2: byte 0xff is not UTF-8" in capsys.readouterr().err
    assert cli.main(["embed", "m", "a", "--file", "f", "--out", "e.npz"]) == 1
    assert "not both" in capsys.readouterr().err
    assert handed == []


def test_a_text_that_is_the_name_of_a_file(
    tmp_path: Path, handed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sentence\n")
    assert cli.main(["predict", "m", str(path), "a text"]) == 0
    assert handed[0].texts == (str(path), "a text")
    assert f"'{path}' is read as a text; --file {path} reads it" in capsys.readouterr().err


def test_data_in_the_place_of_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sentence,label\n")
    assert cli.main(["finetune", str(path)]) == 2
    assert "the one word without a name is the recipe" in capsys.readouterr().err
    assert cli.main(["vocab", str(tmp_path), "--out", "v"]) == 2
    assert f"unexpected '{tmp_path}'" in capsys.readouterr().err


def test_a_file_is_not_waited_for_on_standard_input(
    monkeypatch: pytest.MonkeyPatch, handed: list[Any]
) -> None:
    give_stdin(monkeypatch, b"must not be read\n")
    assert cli.main(["predict", "m", "--file", "f.tsv"]) == 0
    assert handed[0].texts == ()


def test_a_check_exits_1_when_there_are_problems(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = {"good": [], "bad": ["config.json: missing", "vocab.txt: missing"]}
    stand_in(monkeypatch, "bothways.api.doctor", "diagnose", lambda folder: problems[folder])
    assert cli.main(["info", "good", "--check"]) == 0
    assert capsys.readouterr().out == "good: sound\n"
    assert cli.main(["info", "bad", "--check"]) == 1
    assert capsys.readouterr().out == "config.json: missing\nvocab.txt: missing\n"


def test_corpus_report_and_finetune_table_are_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = {
        "train": {"documents": 1234, "sentence_tokens": {"min": 2, "max": 5000}},
        "unknown_rate": 0.00123,
        "folder": "a [b] c",
        "cased": True,
        "heldout_note": None,
        "scripts": {"Latin": 1.0},
        "duplicates": {
            what: {"removed": 0, "repeated": 0, "read": 9} for what in ("documents", "paragraphs")
        },
        "broken": {"lines": 0},
    }

    def build(config: CorpusConfig, *, progress: Any, say: Any) -> dict[str, Any]:
        assert config.tokenizer == "t"
        progress(1, 2)
        say("continuing")
        return report

    stand_in(monkeypatch, "bothways.corpus.build", "build_corpus", build)
    assert cli.main(["corpus", "--files", "a", "--tokenizer", "t", "--out", "o"]) == 0
    shown, told = capsys.readouterr()
    assert "note" not in shown
    for text in ("train documents", "1,234", "min 2, max 5,000", "0.00123", "a [b] c", "True"):
        assert text in shown
    assert told.endswith(
        "next:\n"
        "  bothways corpus show o\n"
        "  bothways plan --corpus o --minutes 10\n"
        "  bothways pretrain --corpus o --minutes 10\n"
    )
    errors = [{"texts": [["text", "a  long\ntext"]], "gold": "no", "predicted": "yes"}]
    examples = {"panels": [], "errors": errors, "errors_total": 7}
    best = types.SimpleNamespace(name="seed 0", examples=examples, model=tmp_path / "my model")
    result = types.SimpleNamespace(table=lambda: "accuracy 0.9", best=best, run=Path("r"))
    stand_in(monkeypatch, "bothways.finetuning.finetune", "finetune", lambda _: result)
    assert cli.main(["finetune", "--train", "t.tsv", "--run", "r", "--text-b", "b"]) == 0
    shown, told = capsys.readouterr()
    assert shown == (
        "accuracy 0.9\n"
        "\n"
        "of the 7 mistakes of seed 0 on dev:\n"
        "  a long text\n"
        "      yes; right: no\n"
        "\n"
        "report: r/report.html\n"
    )
    assert told == (
        "\nnext:\n"
        f"  bothways predict '{tmp_path}/my model' 'a text' --text-b 'its second text'\n"
        "  bothways info r\n"
    )


# ------------------------------------------------------------------------------------------- vocab


def test_vocab_learns_saves_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bothways.tokenization.tokenizer import Tokenizer

    (tmp_path / "a.txt").write_text(SENTENCES * 3)
    out = tmp_path / "v"
    argv = ["vocab", "--files", str(tmp_path), "--size", "60", "--out", str(out)]
    argv += ["--heldout", str(tmp_path / "a.txt"), "--set", "score=frequency", "--set", "unused=3"]
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


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_before_anything_is_done_says_nothing() -> None:
    """While the program is imported; what was set for the signal before is kept."""
    program = """
import os, signal, sys
from bothways.__main__ import run
mode = sys.argv.pop()
class Interrupts:
    def find_spec(self, name, *rest):
        if name == "bothways.cli.verbs" and mode != "never":
            os.kill(os.getpid(), signal.SIGINT)
if mode == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.meta_path.insert(0, Interrupts())
before = signal.getsignal(signal.SIGINT)
sys.argv.append("--version")
run()
assert signal.getsignal(signal.SIGINT) is before
"""
    for mode, code in (("now", -signal.SIGINT), ("ignored", 0), ("never", 0)):
        found = subprocess.run(
            [sys.executable, "-c", program, mode], capture_output=True, text=True, check=False
        )
        assert (found.returncode, found.stderr) == (code, "")


def test_the_backend_of_a_notebook_is_not_loaded(tmp_path: Path) -> None:
    """A command line in a cell inherits it, and it need not be installed."""
    code = (
        "import sys; from bothways import cli; cli.main(['--version']); "
        "from bothways.training.monitor import draw_scatter; "
        "open(sys.argv[1], 'wb').write(draw_scatter([0, 1], [0, 1], x_label='', y_label=''))"
    )
    environment = {**os.environ, "MPLBACKEND": "module://not_installed.backend_inline"}
    words = [sys.executable, "-c", code, str(tmp_path / "out.png")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
