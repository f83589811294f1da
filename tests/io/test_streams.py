"""Output that is not UTF-8 and arguments of such a locale: nothing ends in a traceback."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from bothways import cli
from bothways.model.folder import save_model
from bothways.model.model import EncoderModel
from bothways.runtime.folder import load_model
from bothways.tokenization.learning import learn_vocabulary
from model_examples import BOTH_HEADS, small_config

TEXT = "IŞIK → Łódź 한국"
ASCII = "I\\u015eIK \\u2192 \\u0141\\xf3d\\u017a \\ud55c\\uad6d"
C_LOCALE = {"LC_ALL": "C", "LANG": "C"}  # in which Python reads and writes UTF-8
ENCODINGS = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
}
EACH = pytest.mark.parametrize("encoding", ENCODINGS)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, a task and models, one of them fine-tuned, named outside ASCII."""
    root = tmp_path_factory.mktemp("world")
    (root / "Łódź.txt").write_text(f"{TEXT} ± …\n" * 40, encoding="utf-8")
    rows = [f"{TEXT} {n}\t{'ya' if n % 2 else 'hayır'}" for n in range(24)]
    (root / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n", "utf-8")
    tokenizer = learn_vocabulary([*rows, "[MASK]"], size=120, normalization="composed")
    shape = small_config((1, 32, 4, 50, tokenizer.vocab_size))
    save_model(root / "model", EncoderModel(shape, **BOTH_HEADS, seed=0), tokenizer)
    about = {
        **{"kind": "classification", "labels": ["hayır", "ya"], "pair": False, "length": 24},
        "options": {"text": "sentence", "label": "label"},
    }
    save_model(root / "tuned", EncoderModel(shape, classes=2, seed=0), tokenizer, about)
    return root


def run(
    world: Path, environment: dict[str, str], *words: str
) -> subprocess.CompletedProcess[bytes]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG"))}
    done = subprocess.run(
        [sys.executable, "-m", "bothways", *words],
        cwd=world,
        env={**kept, **environment},
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode("latin-1")
    assert done.returncode == 0, done.stderr.decode("latin-1")
    return done


@EACH
def test_vocab_ends_with_its_table(encoding: str, world: Path, tmp_path: Path) -> None:
    words = ("vocab", "--files", "Łódź.txt", "--size", "100", "--out", str(tmp_path / "v"))
    composed = ("--normalization", "composed")
    shown = run(world, ENCODINGS[encoding], *words, *composed).stdout
    assert b"+--" in shown
    piece = (tmp_path / "v" / "vocab.txt").read_bytes().decode("utf-8")
    assert "한국" in piece


@pytest.mark.parametrize(
    ("encoding", "jobs"),
    [
        ("ascii", "1"),
        *(pytest.param(e, "1", marks=pytest.mark.slow) for e in ("latin-1", "cp1252")),
        pytest.param("ascii", "2", marks=pytest.mark.slow),
    ],
)
def test_finetune_ends_with_its_table(
    encoding: str, jobs: str, world: Path, tmp_path: Path
) -> None:
    data = ("--train", "train.tsv", "--dev", "train.tsv", "--set", "name=Łódź-한국")
    seeds = ("0", "1") if jobs == "2" else ("0",)
    options = ("--epochs", "1", "--max-length", "16", "--seeds", *seeds, "--jobs", jobs)
    out = ("--model", "model", "--run", str(tmp_path / "run"), "--threads", "1")
    shown = run(world, ENCODINGS[encoding], "finetune", *data, *options, *out).stdout
    assert (b"| mean" if len(seeds) > 1 else b"| seed 0") in shown
    assert b"+---" in shown
    assert b"\\u0141" in shown
    written = (tmp_path / "run" / "seed-0" / "dev_predictions.tsv").read_text("utf-8")
    assert "hayır" in written


@EACH
def test_predict_shows_what_the_encoding_lacks(encoding: str, world: Path) -> None:
    """Labels and header lie outside the encoding; the argument is decoded from UTF-8."""
    lines = run(world, ENCODINGS[encoding], "predict", "tuned", TEXT, "IŞIK").stdout.splitlines()
    assert len(lines) == 3
    assert b"p(hay\\u0131r)" in lines[0]


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_texts_are_shown_as_escapes(encoding: str, world: Path) -> None:
    shown = run(world, ENCODINGS[encoding], "fill-mask", "model", f"[MASK] {TEXT}", "--top", "1")
    expected = ASCII if encoding == "ascii" else ASCII.replace("\\xf3", "ó")
    assert shown.stdout.splitlines()[0].decode("latin-1") == f"[MASK] {expected}"


def test_what_utf_8_can_hold_is_as_it_was(world: Path) -> None:
    utf_8 = {"PYTHONIOENCODING": "utf-8"}
    shown = run(world, utf_8, "fill-mask", "model", f"[MASK] {TEXT}", "--top", "1").stdout
    assert shown.decode("utf-8").splitlines()[0] == f"[MASK] {TEXT}"
    assert "│" in run(world, utf_8, "tasks").stdout.decode("utf-8")
    chosen = {"PYTHONIOENCODING": "ascii:replace"}  # by the user
    shown = run(world, chosen, "fill-mask", "model", f"[MASK] {TEXT}", "--top", "1").stdout
    assert shown.splitlines()[0] == b"[MASK] I?IK ? ??d? ??"


def test_a_file_name_that_is_no_utf_8_is_still_found(world: Path) -> None:
    name = os.fsdecode(b"texts-\xff.txt")
    (world / name).write_text("한국\n", encoding="utf-8")
    for environment in ({"PYTHONIOENCODING": "utf-8"}, C_LOCALE):
        run(world, environment, "embed", "model", "--file", name, "--out", "vectors.npz")


def test_a_closed_pipe_ends_quietly(world: Path) -> None:
    command = f"{sys.executable} -m bothways tasks | head -c 1 > first; echo ${{PIPESTATUS[0]}}"
    for environment in (ENCODINGS["ascii"], C_LOCALE):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=world,
            env={**os.environ, **environment},
            capture_output=True,
            check=True,
        )
        assert done.stdout.strip() in (b"0", b"1")
        assert not done.stderr


@pytest.mark.parametrize(
    ("closed", "status", "said"),
    [
        (">&-", 1, b"standard output: it is closed"),
        ("2>&-", 0, b""),
        ("<&-", 0, b""),
        ("<&- >&- 2>&-", 1, b""),
    ],
)
def test_closed_streams(closed: str, status: int, said: bytes, world: Path) -> None:
    command = f"{sys.executable} -m bothways info tuned {closed}"
    done = subprocess.run(["bash", "-c", command], cwd=world, capture_output=True)
    assert done.returncode == status
    assert said in done.stderr
    assert b"Traceback" not in done.stderr


def test_closed_standard_input_is_empty(world: Path) -> None:
    command = f"{sys.executable} -m bothways predict tuned <&-"
    done = subprocess.run(["bash", "-c", command], cwd=world, capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"no text given: standard input is empty" in done.stderr


def test_library_calls_change_no_stream(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    load_model(world / "model")
    assert stream.errors == "strict"
    assert os.environ["PYTHONIOENCODING"] == "ascii"
    assert cli.main(["tasks"]) == 0
    assert stream.errors == "bothways-shown"


def test_streams_that_are_no_files_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert cli.main(["--version"]) == 0


GONE = """\
import sys
from bothways.io.terminal import line_printer, print_note
say = line_printer()
say("begun")
sys.stdin.readline()
for number in range(3):
    say(f"line {number}")
    print_note(f"note {number}")
open(sys.argv[1], "w").write("done")
"""


def test_work_goes_on_when_its_terminal_is_gone(tmp_path: Path) -> None:
    """Closed without a hang-up, as after ``disown``: what is written to it fails."""
    here, there = pty.openpty()
    words = [sys.executable, "-c", GONE, str(tmp_path / "out")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=there, stderr=there) as process:
        os.close(there)
        assert b"begun" in os.read(here, 100)
        os.close(here)
        process.communicate(b"\n", timeout=60)
    assert (tmp_path / "out").read_text() == "done"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_work_goes_on_when_its_log_is_full(tmp_path: Path) -> None:
    words = [sys.executable, "-c", GONE, str(tmp_path / "out")]
    with Path("/dev/full").open("w") as full:
        subprocess.run(words, input=b"\n", stdout=full, stderr=full, check=False, timeout=60)
    assert (tmp_path / "out").read_text() == "done"
