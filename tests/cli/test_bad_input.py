"""Every bad input a user may bring, through the command line.

Each gives one message that says where, which limit and what to do, an exit status that is not 0,
and leaves whatever was there as it was: ``refusal_check`` compares every byte under the folder.
"""

from __future__ import annotations

import io
import json
import resource
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from bothways.api.doctor import diagnose
from bothways.errors import LengthError
from bothways.model.batch import collate
from bothways.model.engine import load_network
from bothways.tokenization.tokenizer import Tokenizer
from small_world import Refused, Words, World, refusal_check, run


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("built") / "world"
    root.mkdir()
    World(root).build()
    return root


@pytest.fixture
def world(built: Path, tmp_path: Path) -> World:
    """A copy of its own for each test, at the one path that run folders are allowed to know."""
    return World(Path(shutil.copytree(built, tmp_path / "world")))


@pytest.fixture
def refused(world: World, capsys: pytest.CaptureFixture[str]) -> Refused:
    return refusal_check(world, capsys)


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


# --------------------------------------------------------------------------- text that is not text

BROKEN = {
    "broken UTF-8": (b"bad \xff here", "byte 0xff is not UTF-8"),
    "NULs": (b"bad\0", "holds a NUL character"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_text_that_is_not_text(
    kind: str,
    world: World,
    refused: Refused,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line, message = BROKEN[kind]
    text, task = tmp_path / "broken.txt", tmp_path / "broken.tsv"
    text.write_bytes(b"A good line.\n\n" + line + b"\n")
    task.write_bytes(b"sentence\tlabel\ngood\tyes\n" + line + b"\tno\n")
    for argv in (
        world.vocab(text),
        world.build_corpus(text),
        ["embed", world.model, "--file", text, "--out", world.out],
    ):
        refused(argv, f"{text}:3: ", message)
    for argv in (
        world.finetune(dev=task, out=world.root / "new"),
        ["predict", world.task_model, "--file", task, "--out", world.out],
        ["evaluate", world.task_model, task],
    ):
        refused(argv, f"{task}:3: ", message)
    for verb in ("fill-mask", "predict"):
        give_stdin(monkeypatch, text.read_bytes())
        model = world.model if verb == "fill-mask" else world.task_model
        refused([verb, model, "-"], "standard input:3: ", message)


@pytest.mark.parametrize("name", ["list.json", "rows.CSV", "pages.json.gz"])
def test_records_where_text_is_read(
    name: str, world: World, refused: Refused, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text('[{"text": "A dog lives."}, {"text": "A cat walks."}]\n')
    for argv in (world.vocab(path), world.build_corpus(path)):
        refused(argv, f"{path}: this ", "would be read as text")
    argv = ["predict", world.model, "--question", "Who?", "--file", path]
    refused(argv, f"{path}: this holds records", "to a .txt file")


@pytest.mark.parametrize("text", ["", "\n  \n\n"])
def test_empty_text(text: str, world: World, refused: Refused, tmp_path: Path) -> None:
    path, task = tmp_path / "empty.txt", tmp_path / "empty.tsv"
    path.write_text(text)
    task.write_text(text)
    refused(world.vocab(path), "the text has no words")
    refused(world.build_corpus(path), "no text in ")
    refused(world.finetune(dev=task, out=world.root / "new"), f"{task}: is empty; it needs one")
    refused(["evaluate", world.task_model, task], f"{task}: is empty; it needs one")


def test_no_text_at_all_on_standard_input(
    world: World, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_stdin(monkeypatch, b"")
    refused(["embed", world.model, "--out", world.out], "standard input is empty")


def test_one_document(world: World, refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("The dog lives.\nThe cat walks.\nIt sleeps.\n")
    refused(
        world.build_corpus(path),
        "the corpus has 1 document ",
        "and needs 2",
        "Put a blank line between documents",
    )


@pytest.fixture(scope="module")
def enormous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task with one example of 50 MB; beside it, a text with a line of 50 MB."""
    path = tmp_path_factory.mktemp("enormous") / "big.tsv"
    path.write_bytes(b"sentence\tlabel\na dog\tyes\n" + b"dog " * 12_500_000 + b"\tno\n")
    path.with_suffix(".txt").write_bytes(b"a dog\na cat\n" + b"dog " * 12_500_000 + b"\n")
    return path


@pytest.mark.parametrize("verb", ["vocab", "corpus", "embed", "stdin", "predict", "finetune"])
def test_a_line_of_50_mb(
    verb: str, enormous: Path, world: World, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = enormous.with_suffix(".txt")
    argv: dict[str, list[Words]] = {
        "vocab": world.vocab(text),
        "corpus": world.build_corpus(text),
        "embed": ["embed", world.model, "--file", enormous, "--out", world.out],
        "stdin": ["predict", world.task_model],
        "predict": ["predict", world.task_model, "--file", enormous, "--out", world.out],
        "finetune": world.finetune(dev=enormous, out=world.root / "new"),
    }
    limit, remedy = 1, "the limit for a text that a model reads. Break it up"
    if verb in ("vocab", "corpus"):
        limit, remedy = (
            10,
            "break the line up (`bothways vocab` and `corpus` accept longer",
        )
    if verb in ("embed", "predict", "finetune"):
        limit, remedy = 16, "most likely no table"
    where = {"stdin": "standard input", "vocab": text, "corpus": text}.get(verb, enormous)
    with enormous.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused(argv[verb], f"{where}:3: the line is longer than {limit} MiB", remedy)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB
    assert grown < 100 * 1024, "the line was held and worked on"


# ------------------------------------------------------------------------------- labelled examples


def test_a_missing_column(world: World, refused: Refused, tmp_path: Path) -> None:
    task, lines = tmp_path / "task.tsv", tmp_path / "task.jsonl"
    task.write_text("sentense\tlabel\na dog\tyes\n")
    lines.write_text(
        '{"sentence": "a dog", "label": "yes"}\n{"sentense": "a cat", "label": "no"}\n'
    )
    problem = "the columns are 'sentense', 'label'"
    for path, place in ((task, ""), (lines, ":2")):
        for argv in (
            world.finetune(dev=path, out=world.root / "new"),
            ["evaluate", world.task_model, path],
            ["predict", world.task_model, "--file", path, "--out", world.out],
        ):
            refused(argv, f"{path}{place}: no column", problem)
    refused(["predict", "mini_en", "a"], "did you mean 'mini-en'?")
    argv = ["finetune", "--train", world.train, "--dev", "25", "--run", world.root / "new"]
    refused(argv, "25: there is no such file", "is a number between 0 and 1, such as 0.2")


def test_an_unknown_label(world: World, refused: Refused, tmp_path: Path) -> None:
    task = tmp_path / "task.tsv"
    task.write_text("sentence\tlabel\na dog\tyes\na cat\tyess\n")
    for argv in (
        world.finetune(dev=task, out=world.root / "new"),
        ["evaluate", world.task_model, task],
    ):
        problem = "unknown label 'yess'; the labels are 'no', 'yes'"
        assert "Did you mean" not in refused(argv, f"{task}:3: {problem}")


@pytest.mark.parametrize(
    ("package", "verb", "later"),
    [
        ("sklearn", "finetune", "tasks.texts.read_rows"),
        ("scipy", "evaluate", "tasks.texts.read_rows"),
        ("matplotlib", "finetune", "training.trainer.Trainer.step"),
        ("matplotlib", "pretrain", "training.trainer.Trainer.step"),
        ("pyarrow", "predict", "api.verbs._open"),
        ("pyarrow", "embed", "api.verbs._open"),
        ("pyarrow", "corpus", "corpus.build.list_inputs"),
        ("sentencepiece", "vocab", "tokenization.learning.learn_unigram"),
    ],
)
def test_a_package_is_missed_before_anything_is_computed(
    package: str,
    verb: str,
    later: str,
    world: World,
    refused: Refused,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compute(*_: object, **__: object) -> None:
        raise AssertionError("computed")

    monkeypatch.setattr(f"bothways.{later}", compute)
    monkeypatch.setitem(sys.modules, package, None)
    new = tmp_path / "new"
    argv = {
        "finetune": world.finetune(out=new),
        "evaluate": ["evaluate", world.task_model, world.dev],
        "pretrain": world.pretrain(out=new),
        "predict": ["predict", world.task_model, "a", "--out", new.with_suffix(".parquet")],
        "embed": ["embed", world.model, "a", "--out", new.with_suffix(".arrow")],
        "corpus": ["corpus", "--files", world.text, "--tokenizer", world.vocabulary, "--out", new],
        "vocab": ["vocab", "--files", world.text, "--algorithm", "unigram", "--out", new],
    }[verb]
    refused(argv, f"{package}, which is not installed: pip install 'bothways[")
    assert not [*tmp_path.glob("new*")]


# ------------------------------------------------------------------------ vocabularies and lengths


def spoil_ids(corpus: Path, value: int) -> None:
    """Write an id over every third of a shard, as a bad disk might; its lengths stay sound."""
    shard = json.loads((corpus / "corpus.json").read_text())["shards"]["train"][0]
    path = corpus / shard["file"]
    data = bytearray(path.read_bytes())
    for token in range(0, shard["tokens"], 3):
        at = shard["ids_at"] + 2 * token
        data[at : at + 2] = value.to_bytes(2, sys.byteorder)
    path.write_bytes(bytes(data))


def test_an_id_beyond_the_vocabulary(world: World, refused: Refused, tmp_path: Path) -> None:
    corpus = Path(shutil.copytree(world.corpus, tmp_path / "spoilt"))
    spoil_ids(corpus, 4321)
    (problem,) = diagnose(corpus)
    assert "train-00000.arrow: " in problem
    assert "Build the corpus again" in problem
    argv = world.pretrain(corpus, tmp_path / "new")
    refused(argv, str(corpus), "train-00000.arrow: damaged", "again with `bothways corpus`")


def test_vocabulary_and_model_of_different_size(
    world: World, refused: Refused, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(world.task_model, tmp_path / "model"))
    pieces = Tokenizer.from_folder(model).pieces
    Tokenizer.from_pieces([*pieces, "another"]).save(model)
    problem = f"{model}: the vocabulary has 101 pieces but the model has 100"
    for argv in (
        ["fill-mask", model, "[MASK]"],
        ["next-sentence", model, "a", "b"],
        ["embed", model, "a", "--out", world.out],
        ["predict", model, "a"],
        ["evaluate", model, world.dev],
        ["convert", model, world.root / "new"],
        [*world.finetune(out=world.root / "new"), "--model", model],
        [*world.pretrain(out=world.root / "new"), "--start", model],
    ):
        refused(argv, problem, "Put the vocab.txt and tokenizer.json")
    problem, *changed = diagnose(model)
    assert "the vocabulary has 101 pieces but the model has 100; they do not" in problem
    assert all("since bothways wrote it" in other for other in changed)


def test_a_corpus_of_another_vocabulary(world: World, refused: Refused, tmp_path: Path) -> None:
    other = tmp_path / "vocabulary"
    pieces = Tokenizer.from_folder(world.vocabulary).pieces
    Tokenizer.from_pieces(pieces[:-1]).save(other)
    corpus = tmp_path / "corpus"
    argv = [*world.build_corpus(), "--tokenizer", other, "--out", corpus]
    assert run(*argv) == 0
    argv = [*world.pretrain(corpus, world.root / "new"), "--start", world.model]
    refused(argv, f"{corpus} was built with another vocabulary", f"--tokenizer {world.model}")
    refused(["evaluate", world.model, corpus], f"{corpus} was built with a different vocabulary")


def test_lengths_over_the_512_positions(world: World, refused: Refused) -> None:
    for argv, message in (
        (
            ["embed", world.model, "a", "--out", world.out, "--max-length", "513"],
            "length 512 or less",
        ),
        ([*world.finetune(out=world.root / "new"), "--max-length", "513"], "length 512 or less"),
        (
            [*world.pretrain(out=world.root / "new"), "--phases", "[{length: 513}]"],
            "length 513 exceeds positions, 512; shorten the phase",
        ),
        (
            [
                *world.pretrain(out=world.root / "new"),
                *("--phases", "[{length: 513}]", "--start", world.model),
            ],
            f"length 513 is over the 512 positions of {world.model}; shorten the phase",
        ),
    ):
        refused(argv, message)
    encoder = load_network(world.model).encoder
    fits = collate([[2] * 512], [[0] * 512], max_positions=512)
    encoder(fits)
    longer = collate([[2] * 513], [[0] * 513], max_positions=1000)
    with pytest.raises(LengthError, match="513 tokens; this encoder has positions for 512"):
        encoder(longer)


def test_the_verbs_report_what_was_cut(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "dog " * 600
    task = tmp_path / "long.tsv"
    task.write_text(f"sentence\tlabel\na dog\tyes\n{long}\tno\n")
    out = tmp_path / "out.npz"
    cases: list[tuple[list[Words], str]] = [
        (["fill-mask", world.model, "[MASK] " + long], "1 of 1 texts were cut to 512 tokens"),
        (["next-sentence", world.model, "dog", long], "92 tokens of the pair were cut to fit"),
        (
            ["embed", world.model, "a", long, "--out", out],
            "1 of 2 texts are longer than 512 tokens",
        ),
        (["predict", world.task_model, long], "1 of 1 texts were cut to 128 tokens"),
        (["predict", world.task_model, "--file", task], "1 of 2 examples were cut to 128 tokens"),
        (["evaluate", world.task_model, task], "1 of 2 examples were cut to 128 tokens"),
    ]
    for argv, note in cases:
        assert run(*argv) == 0
        err = capsys.readouterr().err
        assert err.startswith("note: ")
        assert note in err
    assert run(*world.finetune(dev=task, out=tmp_path / "new"), "--max-length", "64") == 0
    assert "long.tsv: 1 of 2 examples were cut to 64 tokens" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("verb", "key", "nearest"),
    [
        ("pretrain", "seed: 1\nstpes: 3\n", ":2: unknown key 'stpes'; did you mean"),
        ("pretrain", "sede: 3\n", ":1: unknown key 'sede'; did you mean 'seed'?"),
        ("finetune", "epochs: 3\n\ntaks: {}\n", ":3: unknown key 'taks'."),
        ("corpus", "hedlout: 0.1\n", ":1: unknown key 'hedlout'; did you mean 'heldout'?"),
        ("vocab", "sise: 100\n", ":1: unknown key 'sise'; did you mean 'size'?"),
    ],
)
def test_a_misspelt_key_in_a_recipe(
    verb: str, key: str, nearest: str, world: World, refused: Refused, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(key)
    argv = {
        "pretrain": world.pretrain(),
        "finetune": world.finetune(),
        "corpus": world.build_corpus(),
        "vocab": world.vocab(),
    }[verb]
    refused([argv[0], recipe, *argv[1:]], f"{recipe}{nearest}")


def test_a_misspelt_option(world: World, refused: Refused) -> None:
    for argv, message in (
        ([*world.pretrain(), "--optimizr", "1"], "'--optimizr'; did you mean '--optimizer'?"),
        ([*world.finetune(), "--epoch", "1"], "'--epoch'; did you mean '--epochs'?"),
        ([*world.build_corpus(), "--documents", "fiel"], "documents is 'fiel'; it must be one of"),
        (["embed", world.model, "a", "--otu", world.out], "'--otu'; did you mean '--out'?"),
        ([*world.vocab(), "--size", "many"], "size is 'many'; it must be a whole number"),
    ):
        refused(argv, message, status=2)


# ------------------------------------------------------------------------ truncated and other runs


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("name", ["p.xlsx", "p.tsv.gz", "p.XLS"])
def test_predictions_in_a_format_that_is_not_written(
    name: str, world: World, refused: Refused
) -> None:
    """They had tabs under a name that a spreadsheet cannot open."""
    words = ["predict", world.tuned / "seed-0/model", "--file", world.dev, "--out", name]
    refused(words, f"{name}: tables are not written as {Path(name).suffix.lower()}; give .tsv,")


def test_help_and_errors_name_options_as_they_are_written(
    world: World, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(["finetune", "--train", world.train], "error: dev is missing: the file to measure")
    words = ["finetune", "--train", world.train, "--dev", "0.5", "--kind", "clas"]
    refused(words, "kind is 'clas'; ")
    assert run("help", "finetune") == 0
    assert "by which --keep best" in capsys.readouterr().out


def test_a_truncated_shard(world: World, refused: Refused) -> None:
    shard = world.corpus / "train-00000.arrow"
    truncate(shard)
    refused(
        world.pretrain(out=world.root / "new"),
        f"{shard}: damaged",
        "Build the corpus again with `bothways corpus`",
    )
    truncate(world.corpus / "heldout-00000.arrow")
    refused(["evaluate", world.model, world.corpus], "heldout-00000.arrow: damaged: ")
    assert len(diagnose(world.corpus)) == 2


@pytest.mark.parametrize("name", ["training.safetensors", "model.safetensors", "training.json"])
def test_a_truncated_checkpoint(
    name: str, world: World, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = load_file(world.model / "model.safetensors")
    newest = world.run / "checkpoints" / "step-3"
    truncate(newest / name)
    shutil.rmtree(world.model)
    assert run(*world.pretrain()) == 0
    said = capsys.readouterr().out
    assert "skipping checkpoint step-3, which is damaged: " in said
    assert f"{newest / name}" in said
    assert "continuing after step 2" in said
    again = load_file(world.model / "model.safetensors")
    assert all((again[weight] == value).all() for weight, value in finished.items())
    for checkpoint in (world.run / "checkpoints").iterdir():
        truncate(checkpoint / name)
    problem = f"{world.run / 'checkpoints'}: none of the 2 checkpoints is intact"
    refused(world.pretrain(), problem, "--start")
    if name == "model.safetensors":
        problem = f"{newest / name} is damaged or truncated"
        refused(["embed", newest, "a", "--out", world.out], problem, "use an earlier")


def test_a_run_folder_of_another_recipe(world: World, refused: Refused, tmp_path: Path) -> None:
    remedy = "or choose another run folder"
    refused(
        [*world.pretrain(), "--lr", "0.003", "--seed", "4"],
        f"{world.run} holds a run with a different recipe:\n",
        "  lr: 0.0001 in the folder, 0.003 requested\n",
        "  seed: 0 in the folder, 4 requested\n",
        remedy,
    )
    refused(
        [*world.finetune(), "--epochs", "2"],
        f"{world.tuned} holds a run with a different recipe:\n",
        "  epochs: 1 in the folder, 2 requested\n",
        remedy,
    )
    task = tmp_path / "dev.tsv"
    task.write_text(world.dev.read_text() + "a dog\tyes\n")
    refused(world.finetune(dev=task), f"on other content: dev ({task}) is not what", remedy)
    problem = f"{world.run} holds a run of `pretrain`; choose another run folder"
    refused(world.finetune(out=world.run), problem)
    refused(world.pretrain(out=world.corpus), "holds other files but no run.json")


def test_folders_of_something_else_are_not_written_to(world: World, refused: Refused) -> None:
    for argv in (
        [*world.vocab(), "--out", world.model],
        [*world.build_corpus(), "--out", world.run],
    ):
        refused(argv, "the folder exists and holds ", "choose another folder")
    refused(["convert", world.model, world.tuned], f"{world.tuned} exists already")
