"""Other encodings than UTF-8: named, with a remedy that works; what editors leave is no text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bothways.errors import InputError
from bothways.io.broken import Action, Broken
from bothways.io.json_files import read_json_file
from bothways.io.text import read_lines, read_texts, read_whole
from bothways.tasks.options import TaskOptions
from bothways.tasks.readers import read_rows

TEXTS = {
    "cp949": "나는 어제 시장에서 사과를 샀다. 정말 맛있었다!",
    "cp932": "昨日、市場でりんごを買いました。とても美味しかった。",
    "euc_jp": "昨日、市場でりんごを買いました。",
    "gb18030": "我昨天在市场上买了一个苹果，这是他们说的。",
    "big5": "我昨天在市場上買了一個蘋果，這是他們說的。",
    "cp1252": "Le café était fermé, le garçon a mangé",
    "cp1250": "Wczoraj kupiłem jabłko na rynku, było świeże",
    "cp1254": "Dün çarşıdan elma aldım, çok güzeldi ve ışık",
    "cp1257": "Vakar pirkau obuolį turguje, buvo skanūs, šviežias",
    "cp1251": "Вчера я купил яблоко на рынке",
    "koi8_r": "Вчера я купил яблоко на рынке",
    "cp866": "Вчера я купил яблоко на рынке",
    "cp1253": "Χθες αγόρασα ένα μήλο από την αγορά",
    "cp1255": "אתמול קניתי תפוח בשוק",
    "cp1256": "اشتريت تفاحة من السوق أمس",
    "cp874": "เมื่อวานฉันซื้อแอปเปิ้ลที่ตลาด",
}
WIDE = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


def write(folder: Path, data: bytes, name: str = "t.tsv") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("encoding", [*TEXTS, *WIDE])
def test_the_remedy_for_another_encoding_gives_the_text(encoding: str, tmp_path: Path) -> None:
    if shutil.which("iconv") is None:
        pytest.skip("needs iconv")
    texts = [TEXTS[encoding]] if encoding in TEXTS else ["A boat.", TEXTS["cp949"], TEXTS["cp1251"]]
    for text in texts:
        content = f"sentence\tlabel\n{text}\tgood\n{text}\tbad\n"
        path = write(tmp_path, content.encode(encoding))
        with pytest.raises(InputError) as caught:
            read_rows(path, TaskOptions(), labelled=True)
        found = re.search(r"(iconv -f \S+ -t UTF-8) OLD > NEW", str(caught.value))
        assert found, str(caught.value)
        converted = subprocess.run([*found[1].split(), path], capture_output=True, check=True)
        rows = read_rows(write(tmp_path, converted.stdout), TaskOptions(), labelled=True)
        assert (rows.a, rows.labels) == ([text, text], ["good", "bad"])


def test_a_damaged_line_of_a_utf8_file_is_not_to_be_converted(tmp_path: Path) -> None:
    path = write(tmp_path, "naïve\nplain\n".encode() + b"caf\xe9\n")
    with pytest.raises(InputError, match=r":3: not UTF-8: .* Other lines are UTF-8") as caught:
        list(read_lines(path))
    assert "iconv" not in str(caught.value)


@pytest.mark.parametrize("action", ["skip", "replace", "stop"])
def test_a_file_in_another_encoding_is_neither_skipped_nor_repaired(
    action: Action, tmp_path: Path
) -> None:
    korean = "\n".join(f"{n} {TEXTS['cp949']}" for n in range(12)).encode("cp949")
    path = write(tmp_path, korean + b"\nplain\n")
    broken = Broken(action, "(--broken replace puts U+FFFD.)")
    with pytest.raises(InputError, match="CP949") as caught:
        list(read_texts(path, broken))
    assert "--broken" not in str(caught.value)
    few = write(tmp_path, b"plain\n" * 12 + korean)
    if action == "stop":
        with pytest.raises(InputError, match=r":13: not UTF-8.*--broken"):
            list(read_texts(few, broken))
    else:
        found = list(read_texts(few, broken))
        assert len(found) == (12 if action == "skip" else 24)
        assert broken.lines == 12


def test_marks_of_joined_files_are_no_text(tmp_path: Path) -> None:
    joined = "\ufeffsentence\tlabel\na\tgood\n\ufeffb\tbad\r\n\ufeff\ufeffc\tgood\n\x1a"
    rows = read_rows(write(tmp_path, joined.encode()), TaskOptions(), labelled=True)
    assert (rows.a, rows.labels, rows.lines) == (
        ["a", "b", "c"],
        ["good", "bad", "good"],
        [2, 3, 4],
    )
    lines = '\ufeff{"sentence": "a", "label": 1}\n\ufeff{"sentence": "b", "label": 2}\n\x1a'
    rows = read_rows(write(tmp_path, lines.encode(), "t.jsonl"), TaskOptions(), labelled=True)
    assert rows.a == ["a", "b"]
    # Within a line it is a character, and so is 0x1A.
    assert list(read_lines(write(tmp_path, "a\ufeffb\x1ac\n".encode()))) == [(1, "a\ufeffb\x1ac")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\r\n", "\r"])
@pytest.mark.parametrize("suffix", ["tsv", "csv"])
def test_line_ends(end: str, suffix: str, tmp_path: Path) -> None:
    mark = {"tsv": "\t", "csv": ","}[suffix]
    lines = ["sentence" + mark + "label", f"one{mark}good", f"two{mark}bad"]
    path = write(tmp_path, "".join(line + end for line in lines).encode(), f"t.{suffix}")
    rows = read_rows(path, TaskOptions(), labelled=True)
    assert (rows.a, rows.labels, rows.lines) == (["one", "two"], ["good", "bad"], [2, 3])


def test_a_carriage_return_inside_lines_ends_none(tmp_path: Path) -> None:
    assert [line for _, line in read_lines(write(tmp_path, b"a\rb\nc\r"))] == ["a\rb", "c"]


def test_json_with_a_mark_or_in_another_encoding(tmp_path: Path) -> None:
    value = {"name": "café", "list": [1, 2]}
    text = json.dumps(value, indent=1, ensure_ascii=False).replace("\n", "\r\n")
    assert read_json_file(write(tmp_path, b"\xef\xbb\xbf" + text.encode())) == value
    for encoding in WIDE:
        with pytest.raises(InputError, match=r":1: the file is UTF-(16|32)"):
            read_json_file(write(tmp_path, text.encode(encoding)))
    with pytest.raises(InputError, match=r"t\.tsv:2: not UTF-8: byte 0xe9 at byte 13"):
        read_json_file(write(tmp_path, text.encode("latin-1")))


def test_a_whole_text_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffa\n\ufeff\nb\r\n".encode())
    assert read_whole(path, as_it_is=True) == "a\n\ufeff\nb\r\n"
    assert read_whole(path) == "a\n\nb\n"
