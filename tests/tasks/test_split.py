"""Parting a labelled file: nothing is lost, order does not matter, what belongs together stays."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bothways import cli
from bothways.errors import BothwaysError, ConfigError, InputError
from bothways.io.annotations.squad import read_questions
from bothways.tasks.options import SplitConfig, TaskOptions
from bothways.tasks.readers import read_rows
from bothways.tasks.split import split
from question_examples import question


def table(folder: Path, count: int = 400, name: str = "all.tsv", shuffle: int = 0) -> Path:
    lines = [f'{i}\tquestion "{i}?\tpassage {i // 4}\t{i % 2}' for i in range(count)]
    if shuffle:
        random.Random(shuffle).shuffle(lines)
    path = folder / name
    path.write_text("\n".join(["index\tquestion\tsentence\tlabel", *lines]) + "\n")
    return path


def parts(folder: Path, ending: str = "tsv") -> tuple[list[str], list[str]]:
    train, dev = (
        (folder / f"{name}.{ending}").read_text().split("\n") for name in ("train", "dev")
    )
    assert train.pop() == dev.pop() == "", "a line feed ends each file"
    return train, dev


def test_every_line_goes_to_one_side(tmp_path: Path) -> None:
    path = table(tmp_path)
    shown = split(SplitConfig(file=str(path), out=str(tmp_path / "out")))
    train, dev = parts(tmp_path / "out")
    head, *lines = path.read_text().splitlines()
    assert train[0] == dev[0] == head
    assert sorted(train[1:] + dev[1:]) == sorted(lines)
    assert 290 < len(train) < 350, "about the share asked for"
    assert shown[0] == f"{len(train) - 1} examples: {tmp_path / 'out' / 'train.tsv'}"
    assert shown[2].startswith("columns: '")
    assert shown[2].endswith("--header false)")


def test_neither_order_nor_other_lines_matter(tmp_path: Path) -> None:
    found = []
    for i, (count, shuffle) in enumerate(((400, 0), (400, 3), (150, 0))):
        path = table(tmp_path, count, f"{i}.tsv", shuffle)
        split(SplitConfig(file=str(path), out=str(tmp_path / str(i))))
        found.append(set(parts(tmp_path / str(i))[1]))
    assert found[0] == found[1]
    assert found[2] < found[0]


def test_examples_that_share_a_text_stay_together(tmp_path: Path) -> None:
    path = table(tmp_path)
    split(SplitConfig(file=str(path), out=str(tmp_path / "out"), by="sentence", share=0.5))
    train, dev = parts(tmp_path / "out")
    passages = [{line.split("\t")[2] for line in lines[1:]} for lines in (train, dev)]
    assert not passages[0] & passages[1]
    assert len(passages[0] | passages[1]) == 100
    # Without a header, columns have numbers, and the first line is an example.
    own = SplitConfig(file=str(path), out=str(tmp_path / "own"), by="2", header=False, share=0.5)
    split(own)
    assert sum(map(len, parts(tmp_path / "own"))) == 401


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_json(tmp_path: Path, ending: str) -> None:
    items = [{"text": f"글 {i}", "more": {"label": i}} for i in range(100)]
    lines = [json.dumps(item, ensure_ascii=False) for item in items]
    path = tmp_path / f"all.{ending}"
    path.write_text("\n".join(lines) if ending == "jsonl" else json.dumps(items, indent=1))
    split(SplitConfig(file=str(path), out=str(tmp_path / "out"), by="text"))
    train, dev = parts(tmp_path / "out", "jsonl")
    assert sorted(train + dev) == sorted(lines)
    assert len(dev) > 5


@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_by_a_key_inside_another(tmp_path: Path, ending: str) -> None:
    items = [{"text": f"t {i}", "labels": {"real-label": i // 10}} for i in range(100)]
    path = tmp_path / f"all.{ending}"
    lines = [json.dumps(item) for item in items]
    path.write_text("\n".join(lines) if ending == "jsonl" else json.dumps(items))
    name = "labels.real-label"
    split(SplitConfig(file=str(path), out=str(tmp_path / "o"), by=name, share=0.5))
    sides = [
        {json.loads(line)["labels"]["real-label"] for line in lines}
        for lines in parts(tmp_path / "o", "jsonl")
    ]
    assert not sides[0] & sides[1]
    assert sides[0] | sides[1] == set(range(10))
    path.write_text(path.read_text().replace("real-label", "real_label"))
    with pytest.raises(InputError, match=r"no column 'labels\.real-label'"):
        split(SplitConfig(file=str(path), out=str(tmp_path / "p"), by=name))


@pytest.mark.parametrize(("name", "content"), [("a.tsv", "text\tlabel\n"), ("a.json", "[]")])
def test_a_file_without_examples(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=rf"{name}: has no examples"):
        split(SplitConfig(file=str(tmp_path / name), out=str(tmp_path / "out")))


def test_records_of_csv_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    records = [f'{n};"text {n % 40}, and\nmore; ""so"""' for n in range(200)]
    path.write_text("\n".join(["id;sentence", *records]) + "\n")
    shown = split(SplitConfig(file=str(path), out=str(tmp_path / "out"), by="sentence", share=0.5))
    assert shown[2].startswith("columns: 'id', 'sentence' (if")
    task = TaskOptions(label="id")
    rows = [
        read_rows(tmp_path / f"out/{part}.csv", task, labelled=True) for part in ("train", "dev")
    ]
    assert sorted(int(label) for part in rows for (label,) in part.labels or ()) == [*range(200)]
    assert not {*rows[0].a} & {*rows[1].a}
    assert rows[0].a[0].endswith(', and\nmore; "so"')


def test_lines_of_tabs_are_not_lost(tmp_path: Path) -> None:
    path = table(tmp_path)
    path.write_text(path.read_text() + "\t\t\t\n\n")
    split(SplitConfig(file=str(path), out=str(tmp_path / "out")))
    assert sum(map(len, parts(tmp_path / "out"))) == 403


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"by": "sentense"}, InputError, "no column 'sentense'.*Did you mean 'sentence'"),
        ({"by": "9", "header": False}, InputError, "no column '9'"),
        ({"share": 0.000001}, InputError, "no example would go to train"),
        ({"file": "some.parquet"}, InputError, "can be split"),
        ({"file": "none.tsv"}, InputError, "No such file"),
    ],
)
def test_what_cannot_be_parted(
    tmp_path: Path, changes: dict[str, object], error: type[BothwaysError], message: str
) -> None:
    asked = {"file": str(table(tmp_path)), "out": str(tmp_path / "out"), **changes}
    with pytest.raises(error, match=message):
        split(SplitConfig(**asked))  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten_and_lines_are_checked(tmp_path: Path) -> None:
    path = table(tmp_path)
    options = SplitConfig(file=str(path), out=str(tmp_path / "out"))
    split(options)
    with pytest.raises(ConfigError, match="exists already"):
        split(options)
    path.write_text(path.read_text() + "1\ttwo\n")
    with pytest.raises(InputError, match=r"all\.tsv:402: expected 4 tab-separated fields"):
        split(SplitConfig(file=str(path), out=str(tmp_path / "other")))
    with pytest.raises(ConfigError, match=r"share is 1; it must be in \(0, 1\)"):
        SplitConfig(file="a", out="b", share=1)


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["split", str(table(tmp_path)), "--by", "sentence", "--out", str(tmp_path / "o")]
    assert cli.main(words) == 0
    assert "examples" in capsys.readouterr().out


def articles(folder: Path, numbers: list[int], *, titles: bool = True) -> Path:
    """Articles of two passages with two questions each."""
    data = []
    for n in numbers:
        passages = [f"Passage {n}.{p}: the cat sat." for p in range(2)]
        paragraphs = [
            {"context": text, "qas": [question(f"{n}.{p}.{q}", "Who?", ("cat", 18)) for q in "ab"]}
            for p, text in enumerate(passages)
        ]
        data.append({"paragraphs": paragraphs} | ({"title": f"No. {n}"} if titles else {}))
    path = folder / "all.json"
    path.write_text(json.dumps({"version": "own", "data": data}))
    return path


@pytest.mark.parametrize("titles", [True, False])
def test_questions_are_split_by_article(tmp_path: Path, titles: bool) -> None:
    sides = []
    for name, numbers in (("one", list(range(60))), ("two", [7000, *reversed(range(30))])):
        out = tmp_path / name
        out.mkdir()
        path = articles(out, numbers, titles=titles)
        shown = split(SplitConfig(file=str(path), out=str(out / "parts"), share=0.7))
        files = [out / "parts" / f"{side}.json" for side in ("train", "dev")]
        train, dev = (read_questions(file, labelled=True) for file in files)
        whole = read_questions(path, labelled=True)
        assert sorted(train.ids + dev.ids) == sorted(whole.ids)
        assert not set(train.passages) & set(dev.passages)
        assert sorted(train.gold + dev.gold) == sorted(whole.gold)
        assert shown[0].startswith(f"{len(train)} questions of {len(train) // 4} articles: ")
        sides.append({id.partition(".")[0] for id in dev.ids})
        assert json.loads(files[1].read_text())["version"] == "own"
    assert sides[1] - {"7000"} == {n for n in sides[0] if int(n) < 30}
    assert 8 < len(sides[0]) < 30


def test_questions_that_cannot_be_split_say_why(tmp_path: Path) -> None:
    path, out = articles(tmp_path, [1]), str(tmp_path / "parts")
    with pytest.raises(ConfigError, match="split by article; leave out --by"):
        split(SplitConfig(file=str(path), out=out, by="title"))
    with pytest.raises(InputError, match=r"no question would go to .*; change --share"):
        split(SplitConfig(file=str(path), out=out))
    path.write_text('{"data": [{"title": "A", "paragraphs": [{"context": "a"}]}]}')
    with pytest.raises(InputError, match="expected a text under 'question'"):
        split(SplitConfig(file=str(path), out=out))
    path.write_text('{"data": [{"title": "A",\n "paragraphs": [}]}')
    with pytest.raises(InputError, match=r"all\.json:2: is not JSON"):
        split(SplitConfig(file=str(path), out=out))
    path.write_text('[{"a": 1} {"a": 2}]')
    with pytest.raises(InputError, match="is not JSON"):
        split(SplitConfig(file=str(path), out=out))
    with pytest.raises(InputError, match="No such file"):
        split(SplitConfig(file=str(tmp_path / "none.json"), out=out))
    assert not Path(out).exists()


def test_questions_on_one_passage_stay_together(tmp_path: Path) -> None:
    """However files are exported: an article per question, one article for all, equal titles."""

    def paragraph(n: int) -> dict[str, object]:
        return {
            "context": f"Passage {n % 10}: the cat sat.",
            "qas": [question(f"q{n}", "Who?", ("cat", 15))],
        }

    single = [{"paragraphs": [paragraph(n)]} for n in range(60)]
    exports = {
        "untitled": single,
        "own titles": [article | {"title": f"{n}"} for n, article in enumerate(single)],
        "one title": [article | {"title": "BioASQ"} for article in single],
        "one article": [{"title": "BioASQ", "paragraphs": [paragraph(n) for n in range(60)]}],
    }
    for name, data in exports.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"data": data}))
        split(SplitConfig(file=str(path), out=str(tmp_path / name), share=0.6))
        train, dev = (
            read_questions(tmp_path / name / f"{side}.json", labelled=True)
            for side in ("train", "dev")
        )
        assert not set(train.passages) & set(dev.passages), name
        assert len(train) + len(dev) == 60


def test_json_lines_named_json(tmp_path: Path) -> None:
    path = tmp_path / "lines.json"
    lines = [json.dumps({"a": n}) for n in range(40)]
    path.write_text("\n".join(lines))
    split(SplitConfig(file=str(path), out=str(tmp_path / "json")))
    path.rename(tmp_path / "lines.jsonl")
    split(SplitConfig(file=str(tmp_path / "lines.jsonl"), out=str(tmp_path / "jsonl")))
    assert parts(tmp_path / "json", "jsonl") == parts(tmp_path / "jsonl", "jsonl")
