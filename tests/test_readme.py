"""The documents hold: their commands run, the files they name exist, their tables are right.

The commands and Python blocks of README.md, and those of the pages in docs/, are run as they are
written, in reading order, in a folder with small files under the names that they use and nothing of
a checkout; README's by the package that a wheel installs. Only :data:`CHEAP` is added to commands,
and :data:`CHEAP_PYTHON` replaced in Python, so that training takes seconds instead of minutes.
"""

from __future__ import annotations

import ast
import csv
import importlib
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bothways import cli
from bothways.cli.verbs import GROUPS
from bothways.config.parsing import load_recipe, read_recipe
from bothways.config.recipes import shipped_recipes
from bothways.corpus.options import CorpusConfig
from bothways.experiments import bench
from bothways.families.heads import MASKED_LM, NEXT_SENTENCE, parameter_count
from bothways.families.options import SIZES, SizeOptions
from bothways.finetuning.options import FinetuneConfig
from bothways.pretraining.options import PretrainConfig
from bothways.tokenization.learning import ALPHABET, WIDE_ALPHABET
from bothways.tokenization.options import VocabularyConfig
from bothways.tokenization.tokenizer import Tokenizer
from installed_package import run_steps
from model_examples import BOTH_HEADS, small_bert, small_tokenizer
from question_examples import question, squad_file
from tensorflow_files import write_original

ROOT = Path(__file__).parents[1]
GUIDE = (  # pages that continue one another, as their first page says
    "docs/vocabulary-and-corpus.md",
    "docs/pretraining.md",
    "docs/finetuning.md",
    "docs/using.md",
    "docs/reproduce.md",
)
DOCUMENTS = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "EXPERIMENTS.md",
    "docs/architecture.md",
    "docs/decisions.md",
    "docs/differences.md",
    "docs/install.md",
    "docs/ko.md",
    "docs/overview.md",
    "docs/labels.md",
    "docs/python.md",
    "docs/tasks.md",
    "docs/export.md",
    "docs/faults.md",
    "docs/scale.md",
    "docs/serve.md",
    *GUIDE,
    "benchmarks/README.md",
    "results/README.md",
    "src/bothways/shipped/mini-en/README.md",
]

# Added to the commands of a verb, behind what README gives. (With --start, sizes are not read.)
CHEAP = {
    "pretrain": [
        *("--minutes", "null", "--steps", "4"),
        *("--evaluate-every", "4", "--set", "evaluate_sequences=64"),
        *("--layers", "1", "--hidden", "32", "--heads", "2"),
        *("--phases", "[{length: 48, share: 1.0, batch: 4, micro_batch: 2}]"),
    ],
    "plan": [
        *("--set", "layers=1", "hidden=32", "heads=2"),
        "phases=[{length: 48, share: 1.0, batch: 4, micro_batch: 4}]",
    ],
    "finetune": ["--epochs", "1"],
    "reproduce glue": ["--epochs", "1"],
    "reproduce": ["--plan"],
    "bench": ["--rounds", "1"],
    "bench train": [
        *("--size", "tiny", "--batch", "2", "--length", "16", "--rounds", "1"),
    ],
    "reproduce features": ["--epochs", "1", "--hidden", "8", "--layers", "embeddings", "last"],
}
CHEAP_PYTHON = ("minutes=2", "steps=4, evaluate_every=4, evaluate_sequences=64")
# Lines of indented blocks of the first pages that are not run here.
SETUP = {
    "make demo": "needs a clone and minutes; .ci/run makes the demonstration",
    "source .venv/bin/activate": "a shell's own command",
    "python3 -m venv .venv && source .venv/bin/activate": "container/install.sh does the same",
    "pip install torch --index-url https://download.pytorch.org/whl/cpu": "asks PyTorch's index",
    "pip install '.[train]'": "asks a registry for packages; the Makefile does the same",
    "pip install -c constraints.txt -e '.[train]'": "the same",
    "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo": "asks PyTorch's index",
    "docker build -f container/Containerfile -t bothways .": "the image is marked untested",
    "docker run -p 8000:8000 -e BOTHWAYS_KEY=secret "
    '-v "$PWD/model:/model:ro" bothways serve /model --host 0.0.0.0': (
        "the image is marked untested"
    ),
}
FIRST_PAGES = ("README.md", "docs/overview.md")
MOST_WORDS = 900
"""On the first page: it is read before anything is tried."""
# What the commands and the Python blocks leave behind.
README_OUTPUTS = [
    "runs/reviews/seed-2/model/model.safetensors",
    "runs/mrpc-mini-en/seed-0/model/model.safetensors",
    "runs/glue-mini-en/table.md",
    "runs/own/model/model.safetensors",
    "runs/python-mrpc/report.json",
    "theirs/model.safetensors",
]
GUIDE_OUTPUTS = [
    "vocabulary/vocab.txt",
    "vocabulary/tokenizer.json",
    "corpus/corpus.json",
    "runs/mini/model/model.safetensors",
    "runs/mini/metrics.jsonl",
    "runs/mini/curves.png",
    "runs/mini/tensorboard",
    "runs/two/model/model.safetensors",
    "runs/tiny/run.json",
    "runs/tiny/checkpoints/step-4/training.safetensors",
    "runs/more/model/config.json",
    "runs/reviews/report.json",
    "runs/reviews/report.html",
    "runs/reviews-search/lr-2e-05-batch-32-epochs-1/seed-1/model/model.safetensors",
    "runs/reviews-search/report.html",
    "runs/reviews/seed-2/model/bothways.json",
    "runs/reviews/seed-2/test_predictions.tsv",
    "runs/similar/seed-0/metrics.json",
    "runs/topics/seed-0/dev_predictions.tsv",
    "runs/moods/seed-0/metrics.json",
    "runs/mrpc/seed-4/dev_predictions.tsv",
    "runs/glue/table.md",
    "runs/glue/submission/RTE.tsv",
    "RTE.tsv",
    "runs/rte-part/parts.tsv",
    "runs/ner/seed-0/model/model.safetensors",
    "tagged.conll",
    "runs/layers/features/train/layers.npy",
    "runs/layers/report.json",
    "runs/swag/seed-0/test_predictions.tsv",
    "runs/long/seed-0/model/config.json",
    "runs/squad/seed-0/dev_predictions.json",
    "runs/squad/seed-0/dev_predictions_nbest.json",
    "predictions.tsv",
    "answers.json",
    "answers_nbest.json",
    "vectors.npz",
    "tokens.arrow",
    "minilm/bothways.json",
    "runs/python/model/model.safetensors",
    "runs/python-reviews/seed-0/model/model.safetensors",
    "runs/python-search/lr-5e-05-batch-32-epochs-1/report.json",
    "runs/python-search/report.json",
]


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str) -> list[tuple[str, str]]:
    """The fenced blocks of a document: language, text."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text_of(document), re.MULTILINE | re.DOTALL)
    assert {language for language, _ in fenced} <= {"console", "python", "text"}
    return fenced


def commands(console: str) -> list[list[str]]:
    """The words of each command of a console block."""
    shown = [shlex.split(line[2:]) for line in console.splitlines() if line.startswith("$ ")]
    assert {words[0] for words in shown} <= {"bothways", "torchrun", "python"}, "cannot be run here"
    return shown


def cheap(words: Sequence[str]) -> list[str]:
    """What is added to a command, by its verb, or by that and its action."""
    action = words[3:4] if words[0] == "python" else words[2:3]
    found = CHEAP.get(" ".join([verb(words), *action]))
    return CHEAP.get(verb(words), []) if found is None else found


def verb(words: list[str]) -> str:
    """The word after the program, which torchrun starts by name; or a module's last name."""
    if words[0] == "python":
        return words[2].rpartition(".")[2]
    return words[words.index("bothways") + 1]


def run(words: list[str]) -> int:
    """A command's exit status, with what makes it cheap."""
    words = [*words, *cheap(words)]
    if words[0] == "bothways":
        return cli.main(words[1:])
    if words[0] == "python":
        assert words[1:3] == ["-m", "bothways.experiments.bench"]
        bench.main(words[3:])
        return 0
    launched = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
    return subprocess.run(launched, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


@pytest.fixture
def sandbox(tmp_path: Path, tiny_text_file: Path) -> Iterator[Path]:
    """The working folder of the documents, with a user's files."""
    folder = tmp_path
    for name in ("texts", "reviews", "similar", "topics", "moods", "ner", "squad"):
        (folder / name).mkdir()
    text = tiny_text_file.read_text()
    (folder / "texts" / "stories.txt").write_text(text)
    sentences = [line for line in text.splitlines() if line]
    (folder / "sentences.txt").write_text("\n".join(sentences[:5]) + "\n")
    _write_tables(folder, sentences)
    _write_glue(folder / "glue", sentences)
    _write_swag(folder / "swag", sentences)
    _write_their_model(folder / "sentence-transformers" / "all-MiniLM-L6-v2", sentences)
    original = folder / "original"
    original.mkdir()
    write_original(original, small_bert(**BOTH_HEADS), small_tokenizer(97))
    (original / "tf1").rename(folder / "uncased_L-2_H-128_A-2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def _write_tables(folder: Path, sentences: list[str]) -> None:
    labels = ["good" if "sold" in s or "painted" in s else "bad" for s in sentences]
    pairs = list(pairwise(sentences))
    for name, chosen in (("train", slice(0, 48)), ("dev", slice(48, 72))):
        rows = [f"{s}\t{label}" for s, label in zip(sentences, labels, strict=True)][chosen]
        (folder / f"reviews/{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
        scored = [
            f'{{"first": "{a}", "second": "{b}", "score": {len(b) / 10}}}' for a, b in pairs[chosen]
        ]
        (folder / f"similar/{name}.jsonl").write_text("\n".join(scored) + "\n")
        topics = [[t for t in ("sold", "the", "was") if t in s.split()] for s in sentences[chosen]]
        listed = zip(sentences[chosen], topics, strict=True)
        items = [json.dumps({"sentence": s, "topics": found}) for s, found in listed]
        (folder / f"topics/{name}.jsonl").write_text("\n".join(items) + "\n")
        moods = [f"{s}\t{len(s) / 9}\t{s.count('a')}" for s in sentences[chosen]]
        (folder / f"moods/{name}.tsv").write_text("\n".join(["sentence\tjoy\tfear", *moods]) + "\n")
        paragraphs = [
            {"context": s, "qas": [question(str(i), "Who was it?", (s[:5], 0))]}
            for i, s in enumerate(sentences[chosen])
        ]
        squad_file(folder / f"squad/{name}.json", paragraphs)
    for name, part in (("train", sentences[:40]), ("dev", sentences[40:60])):
        tags = [[f"{w} {'I-WHO' if w[0].isupper() else 'O'}" for w in s.split()] for s in part]
        (folder / f"ner/{name}.conll").write_text("\n\n".join(map("\n".join, tags)) + "\n")
    (folder / "reviews/test.tsv").write_text("\n".join(["sentence", *sentences[72:80]]) + "\n")


def _write_glue(folder: Path, sentences: list[str]) -> None:
    """Four tasks in GLUE's layouts: a byte order mark, and lone quotation marks."""
    pairs = list(pairwise(sentences))
    for name, chosen in (("train", slice(0, 48)), ("dev", slice(48, 72)), ("test", slice(72, 80))):
        labelled = name != "test"
        mrpc = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        rte = ["index\tsentence1\tsentence2" + "\tlabel" * labelled]
        wnli, cola = rte.copy(), [] if labelled else ["index\tsentence"]
        for i, (a, b) in enumerate(pairs[chosen]):
            yes = len(b) % 2
            mrpc.append(f"{yes}\t{i}\t{i + 1}\t{a}\t{b}")
            rte.append(f"{i}\t{a}\t{b}" + f"\t{'not_' * yes}entailment" * labelled)
            wnli.append(f"{i}\t{a}\t{b}" + f"\t{yes}" * labelled)
            cola.append(f"gj\t{yes}\t\t{a}" if labelled else f"{i}\t{a}")
        for task, lines in (("MRPC", mrpc), ("RTE", rte), ("WNLI", wnli), ("CoLA", cola)):
            (folder / task).mkdir(parents=True, exist_ok=True)
            text = "\n".join(lines).replace("Story", '"Story') + "\n"
            (folder / task / f"{name}.tsv").write_text(text, encoding="utf-8-sig")


def _write_swag(folder: Path, sentences: list[str]) -> None:
    """In the official form; the test file has no label."""
    folder.mkdir()
    columns = "video-id fold-ind startphrase sent1 sent2 gold-source".split()
    head = ["", *columns, *(f"ending{e}" for e in range(4)), "label"]
    for name, chosen in (("train", slice(0, 24)), ("val", slice(24, 36)), ("test", slice(36, 40))):
        width = len(head) - (name == "test")
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(head[:width])
            for i, text in enumerate(sentences[chosen]):
                endings = [f'and "{word}", so it was.' for word in ("sold", "lost", "found", "hid")]
                row = [i, f"v{i}", i, text, text, "He", "gold", *endings, i % 4]
                writer.writerow(row[:width])


def _write_their_model(folder: Path, sentences: list[str]) -> None:
    """Folders as transformers writes them: an encoder with its pooler, and beside it a classifier
    with two outputs."""
    transformers = pytest.importorskip("transformers")
    letters = list('abcdefghijklmnopqrstuvwxyz0123456789."')
    words = sorted({word.strip(".").lower() for s in sentences for word in s.split()} - {*letters})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *words]
    shape = transformers.BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
    )
    transformers.BertModel(shape).save_pretrained(folder)
    classifier = folder.parents[1] / "their-classifier"
    transformers.BertForSequenceClassification(shape).save_pretrained(classifier)
    for place in (folder, classifier):
        (place / "vocab.txt").write_text("\n".join(pieces) + "\n")


def run_documents(documents: Sequence[str], capfd: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Run the blocks of documents one after the other.

    Returns:
        The commands that were run.
    """
    done: list[list[str]] = []
    for document in documents:
        for language, block in blocks(document):
            if language == "python":
                exec(compile(_cheap(block), document, "exec"), {})
            for words in commands(block) if language == "console" else ():
                status = run(words)
                shown = capfd.readouterr()
                assert status == 0, f"{shlex.join(words)}\n{shown.out}\n{shown.err}"
                assert ("continuing after step 4" in shown.out) == (words in done)
                done.append(words)
    return done


def _cheap(block: str) -> str:
    minutes, steps = CHEAP_PYTHON
    assert "bw.pretrain(" not in block or minutes in block, f"pre-training without {minutes}"
    return block.replace(minutes, steps).replace("epochs=3, seeds=3", "epochs=1, seeds=2")


@pytest.mark.long
def test_readme_runs_as_written_where_a_wheel_is_installed(sandbox: Path, installed: Path) -> None:
    steps: list[tuple[str, Any]] = []
    for language, block in (block for page in FIRST_PAGES for block in blocks(page)):
        if language == "python":
            steps.append(("a page", _cheap(block)))
        for words in commands(block) if language == "console" else ():
            assert words[0] == "bothways"
            step = ("bothways", [*words[1:], *cheap(words)])
            if step not in steps:
                steps.append(step)
    done = run_steps(installed, steps, sandbox)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("=== ") >= len(steps) > 10
    assert not [name for name in README_OUTPUTS if not (sandbox / name).exists()]


@pytest.mark.long
def test_the_python_page_runs_as_written(sandbox: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_documents(["docs/python.md"], capfd)
    assert (sandbox / "classifier/model.safetensors").exists()
    assert len([*(sandbox / "runs").glob("*/run.json")]) == 2
    assert len([*(sandbox / "corpora").glob("*/corpus.json")]) == 2


def test_what_readme_shows_and_is_not_run_has_a_reason() -> None:
    programs = r"(?:make|python3?|pip|source|torchrun|bothways|docker|\.venv)\b|\w+="
    text = "".join(map(text_of, (*FIRST_PAGES, "docs/install.md")))
    lines = re.findall(rf"^    ((?:{programs}).*)$", text, re.MULTILINE)
    assert {line.partition("  ")[0] for line in lines} == set(SETUP)


def test_the_first_page_is_short() -> None:
    assert len(text_of("README.md").split()) <= MOST_WORDS


def test_the_picture_shows_the_figures_of_its_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    picture = importlib.import_module("draw_speed_and_score")
    picture.draw(tmp_path / "drawn.svg")
    numbers = [
        re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))
        for path in (tmp_path / "drawn.svg", picture.PICTURE)
    ]
    assert numbers[0] == numbers[1]
    assert {"260", "88.8"} <= set(numbers[0])


@pytest.mark.long
def test_guide_runs_as_written(sandbox: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = run_documents(GUIDE, capfd)
    assert len({tuple(words) for words in done}) < len(done), "no resumed run is shown"
    verbs = {verb(words) for words in done if words[0] != "python"}
    # demo is run by make; the others have pages of their own, with tests beside those verbs.
    assert verbs == set(cli.VERBS) - {"demo", "export", "inspect", "rank", "serve"}
    assert not [name for name in GUIDE_OUTPUTS if not (sandbox / name).exists()]
    assert np.load("vectors.npz")["embeddings"].shape == (5, 32)
    assert len(Path("predictions.tsv").read_text().splitlines()) == 9
    # All this would pass on an empty vocabulary too; this one must know its words.
    tokenizer = Tokenizer.from_folder(sandbox / "vocabulary")
    assert tokenizer.unk_id not in tokenizer.encode("The baker painted a small boat.").ids


# What no small file can stand for, or what takes minutes: parsed by tests/cli/test_cli.py.
PARSED = {
    "demo": "minutes",
    "serve": "listens until it is stopped",
    "export runs/reviews/seed-0/model small": "timed, and refused if it is no faster",
    "features conll2003": "needs CoNLL-2003",
    "score answers.json": "needs KorQuAD",
}
# The models that examples name and none makes.
OF_EXAMPLES = [
    "finetune --train squad/train.json --dev squad/dev.json --kind qa --run runs/squad",
    "finetune swag --data swag --run runs/swag",
    "finetune --train similar/train.jsonl --dev similar/dev.jsonl --kind regression "
    "--text first --text-b second --label score --run runs/similar",
]
LAST = ("use a model", "study")


@pytest.mark.slow
def test_the_examples_of_the_help_run(sandbox: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (sandbox / "words.txt").write_text("zyxwvut\n")
    with (sandbox / "texts" / "stories.txt").open("a") as file:  # a word to extend by
        file.write("\nThe qwxzyvk was sold.\nThe qwxzyvk was lost.\n" * 10)
    (sandbox / "their-encoder").symlink_to("sentence-transformers/all-MiniLM-L6-v2")
    order = ("vocab", "corpus", "plan", "pretrain", "finetune", "tasks")
    verbs = {name: cli.VERBS[name] for name in order}
    verbs |= {name: verb for title in LAST for name, verb in GROUPS[title].items()}
    assert verbs.keys() | {"demo"} == cli.VERBS.keys()
    lines = [
        line.removeprefix("bothways ")
        for verb in verbs.values()
        for one in ([verb] if isinstance(verb, cli.Verb) else verb.actions.values())
        for line in one.examples
    ]
    place = lines.index(next(line for line in lines if line.startswith("tasks")))
    for line in [*lines[:place], *OF_EXAMPLES, *lines[place:]]:
        if not line.startswith(tuple(PARSED)):
            status = run(["bothways", *shlex.split(line)])
            shown = capfd.readouterr()
            assert status == 0, f"{line}\n{shown.out}\n{shown.err}"
    assert (sandbox / "labels.csv").exists()


# ------------------------------------------------------------------------------- files and recipes

_FOLDERS = "recipes|docs|scripts|benchmarks|tests|src|results"
_ROOT_FILES = r"Makefile|LICENSE|constraints\.txt|pyproject\.toml|[A-Z]{6,}\.md|\.ci/run"


def named_files(document: str) -> set[str]:
    """Files of this repository that a document names, in links and in code."""
    text = (ROOT / document).read_text(encoding="utf-8")
    paths = rf"(?<![\w/.-])((?:{_FOLDERS})/[\w./-]*\w|{_ROOT_FILES})(?![\w*/<-])"
    links = {
        (Path(document).parent / link.partition("#")[0]).as_posix()
        for link in re.findall(r"\]\(([^)\s]+)\)", text)
        if "://" not in link
    }
    return set(re.findall(paths, text)) | {str(Path(link)) for link in links}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_files_exist(document: str) -> None:
    named = named_files(document)
    unnamed = ("benchmarks/README.md", "CHANGELOG.md")
    assert document in unnamed or named, "nothing found; is the pattern broken?"
    # EXPERIMENTS.md records what was typed when recipes were in a folder of the checkout.
    now = {re.sub("^recipes/", "src/bothways/recipes/", name) for name in named}
    missing = sorted(name for name in now if not (ROOT / name).resolve().exists())
    assert not missing, f"{document} names files that are not there"


def test_the_site_has_a_place_for_every_page() -> None:
    """`make site` refuses a page outside its navigation; this tells at once."""
    code = ast.parse((ROOT / "docs/site/conf.py").read_text(encoding="utf-8"))
    (navigation,) = (
        ast.literal_eval(node.value)
        for node in code.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NAVIGATION"
    )
    named = {page for pages in navigation.values() for page in pages}
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("[A-Z]*.md")]
    found = {path.relative_to(ROOT).with_suffix("").as_posix() for path in pages}
    assert found - named == {"README"}, "the first page holds the navigation"


def test_what_the_reference_names_is_there() -> None:
    """`make site` refuses a name that it cannot import; this tells at once."""
    pages = [*(ROOT / "docs/api").glob("*.rst")]
    named = re.findall(
        r"(?m)^\.\. auto(?!module)\w+:: (\S+)", "".join(page.read_text() for page in pages)
    )
    assert len(named) > 30
    missing = []
    for name in named:
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            missing.append(name)
    assert not missing


def test_recipes_parse() -> None:
    """Each recipe against the options of its verb, which its own comment names."""
    options = {
        "vocab": VocabularyConfig,
        "corpus": CorpusConfig,
        "pretrain": PretrainConfig,
        "finetune": FinetuneConfig,
    }
    recipes = shipped_recipes()
    assert recipes
    for name, path in recipes.items():
        command = rf"^#\s+(?:torchrun .* )?bothways (\w+) {name} "
        verb = re.search(command, path.read_text(), flags=re.MULTILINE)
        assert verb, f"{path.name}: a comment should show the command that uses it"
        assert read_recipe(options[verb[1]], path)
        load_recipe(options[verb[1]], path)


# ------------------------------------------------------------------------------------------- facts


def test_table_of_sizes() -> None:
    text = text_of("docs/differences.md")
    rows = re.findall(r"^\| (\w+) \| ([\d ,|]+) \|$", text, flags=re.MULTILINE)
    table = {name: [int(v.replace(",", "")) for v in cells.split("|")] for name, cells in rows}
    expected = {}
    for name, shape in SIZES.items():
        model = SizeOptions(size=name).resolve(30_522)  # type: ignore[arg-type]
        counts = [parameter_count(model, heads) for heads in ({}, {MASKED_LM: 1, NEXT_SENTENCE: 2})]
        expected[name] = [*shape, *counts]
    assert table == expected


def test_defaults_that_the_documents_state() -> None:
    stated = {
        "One percent of the documents": CorpusConfig((), "", "").heldout == 0.01,
        "`alphabet` (1,000 characters; 4,000 for East Asian text)": (
            (ALPHABET, WIDE_ALPHABET) == (1000, 4000)
        ),
        "`--checkpoint-minutes` (5)": PretrainConfig().checkpoint.minutes == 5,
        "column `text` (or `sentence`) and the label in `label`": (
            FinetuneConfig().task.text == "text" and FinetuneConfig().task.label == "label"
        ),
        "pre-training does not, but the recipe [`mini`](../src/bothways/recipes/mini.yaml) does": (
            FinetuneConfig().optimizer.bias_correction
            and not PretrainConfig().optimizer.bias_correction
            and load_recipe(PretrainConfig, "mini").optimizer.bias_correction
        ),
    }
    everything = " ".join(word for document in DOCUMENTS for word in text_of(document).split())
    for sentence, holds in stated.items():
        assert sentence in everything, f"no document says any more: {sentence}"
        assert holds, f"no longer true: {sentence}"
