"""The original BERT's files: read as TensorFlow wrote them, written as it reads them, refused."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bothways as bw
from bothways import cli
from bothways.api.doctor import diagnose
from bothways.api.info import info
from bothways.errors import ModelError
from bothways.io.crc32c import crc32c, masked
from bothways.io.tensor_bundle import read_bundle, write_bundle
from bothways.model.folder import save_model
from bothways.runtime.folder import load_model
from model_examples import BOTH_HEADS, small_bert, small_tokenizer

# Written by TensorFlow 2.21 (tf.compat.v1.train.Saver): 20 biases, and one of each type.
WRITTEN = {
    "m.ckpt.index": (
        "c-muNVB=tvV&Y(AP~%TZEh^DZ%}dTtNiEXPNvupQiZ{^DFD)r3EzwU&%_~mTPs&Uz=3o?J5n|$C*5EOH$r)fTEG%e<"
        "Taf|}P+4(wXQ7C&ARe<6B!J2kB`jx(;5SVLs7&+Zfu}%aMtGDN0F|}n`iKLS8RJoA15`FGLR=E4%mj}z51_Jhx{lv~"
        "%1rSn3jr!K-JUxEsLTwHvIL;AzB7;a1C^QMQI-Q#CdPPiA5fVE9%U6kWrk0eP7@Ipvc#jTg%PMu@Z-!XVPPSB0XG4p"
        "uI#RI1W+BmkedTimu^>^3{;0N=vIK#g&ktv%b+HNC3WEo&MhFVac^U%0j<Cno(Dkc-nj|I0M+3O&@&))k~%BXf$H#u"
        "=nas%Jl3tpgz*RI6R`Upd^*9%B2<)^na9BgmS9r&z^K7u`t;%K8w{*MsksFul|U_QLJUAT7KJa2rZ-+SEn;91O3O)1"
        "=iq{B`NF8dWE#KWTq6TFUwTe{QesYgaY<?c2d5B&!Z$_@4%0gie7G1`#4-|d(l~^LIDncM!5aU8?7ElC(aONaSDc)f"
        "lUM|lU{Gjc0t(0JKU~fL1nEo+3``)#?D#XOAes?G9Qd?w0|O&-3BxOPxLEydE0g!^9DmsP83=;#-woX=rS7)@5FZuc"
    ),
    "m.ckpt.data-00000-of-00001": (
        "c-muN0D%U3AmM<Z9e`NDk%7Sgh#ipV03<pAi7r5*8<6M@Bzgi8Jp+kefJCowMA+YeL@z+14<OMGkZ1-+1TEl*pcRm4"
        "1IGq?g#(NXKmS7jgAKz0pb7Q>ILI<9"
    ),
}
# Of a variable with a partitioner.
SLICED = (
    "c-muNVB=tvV&Y(A;1Omh&@W?PWMpb+YG~qM6ygwK;$Q+{4FS_5YWL(gSVWu9WE2E|a!ZdFr!p`r0X0LVSU^%%99&ES"
    "OdxE<#l^w_WitQ)BZ%1fMt}#-Iq+%W1_nl^LWXj<P|MXz-8CGYjC>4)LHO^6Zk1B^+W`CC8_N"
)
DATA = "bert_model.ckpt.data-00000-of-00001"


def of_tensorflow(folder: Path) -> Path:
    for name, text in WRITTEN.items():
        (folder / name).write_bytes(zlib.decompress(base64.b85decode(text)))
    return folder / "m.ckpt"


def test_checksums() -> None:
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert crc32c(bytes(range(32))) == 0x46DD794E
    # As one byte after the other.
    table = list(range(256))
    for _ in range(8):
        table = [(n >> 1) ^ (0x82F63B78 if n & 1 else 0) for n in table]
    data = np.random.default_rng(0).bytes(10_007)
    for size in (1, 3, 64, 65, 255, 4096, 10_007):
        value = 0xFFFFFFFF
        for byte in data[:size]:
            value = (value >> 8) ^ table[(value ^ byte) & 255]
        assert crc32c(data[:size]) == value ^ 0xFFFFFFFF


def test_what_tensorflow_wrote(tmp_path: Path) -> None:
    found = read_bundle(of_tensorflow(tmp_path))
    for n in range(20):
        values, kind = found[f"bert/encoder/layer_{n}/output/dense/bias"]
        assert kind == "float32"
        assert values.tolist() == [n, n + 1, n + 2]
    shown = {name: (kind, v.tolist()) for name, (v, kind) in found.items() if "bert" not in name}
    assert shown == {
        "scalar": ("float32", 1.5),
        "half": ("float16", [[1, -2]]),
        "brain": ("bfloat16", [0x3F80, 0xC020]),
        "empty": ("float32", []),
        "global_step": ("int64", -7),
        "flag": ("bool", [True, False]),
    }


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder, and in ``tf1`` the same as the original BERT's files."""
    root = tmp_path_factory.mktemp("original")
    save_model(root / "ours", small_bert(**BOTH_HEADS), small_tokenizer(97), {})
    assert cli.main(["convert", str(root / "ours"), str(root / "tf1"), "--to", "tf1"]) == 0
    return root


def bits(folder: Path) -> dict[str, bytes]:
    weights = load_model(folder).weights
    assert weights is not None
    return {name: values.tobytes() for name, values in weights.items()}


def test_there_and_back(original: Path, tmp_path: Path) -> None:
    assert cli.main(["convert", str(original / "tf1"), str(tmp_path / "back")]) == 0
    assert bits(tmp_path / "back") == bits(original / "tf1") == bits(original / "ours")
    for name in ("config.json", "vocab.txt"):
        assert (tmp_path / "back" / name).read_text() == (original / "ours" / name).read_text()
    again = tmp_path / "again"
    assert cli.main(["convert", str(tmp_path / "back"), str(again), "--to", "tf1"]) == 0
    for file in (original / "tf1").iterdir():
        if file.name == "bothways.json":  # which says from where it was converted
            continue
        assert (again / file.name).read_bytes() == file.read_bytes()


def test_names_are_those_of_the_original(original: Path) -> None:
    found = read_bundle(original / "tf1" / "bert_model.ckpt")
    weights = load_model(original / "ours").weights
    assert weights is not None
    inner = found["bert/encoder/layer_0/intermediate/dense/kernel"][0]
    assert np.array_equal(inner.T, weights["encoder.layers.0.expand.weight"])
    assert found["bert/embeddings/LayerNorm/gamma"][0].shape == (16,)
    assert found["cls/predictions/output_bias"][0].shape == (97,)
    assert found["cls/seq_relationship/output_weights"][0].shape == (2, 16)
    settings = json.loads((original / "tf1" / "bert_config.json").read_text())
    assert settings["num_hidden_layers"] == 1
    assert "model_type" not in settings


def test_every_way_to_name_them(original: Path, tmp_path: Path) -> None:
    expected = bw.load(original / "ours").embed(["w1 w2"])
    folder = tmp_path / "uncased_L-1"
    shutil.copytree(original / "tf1", folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()  # which those of the original lack
    archive = Path(shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path, folder.name))
    for name in (folder, folder / "bert_model.ckpt", folder / "bert_model.ckpt.index", archive):
        assert np.array_equal(bw.load(name).embed(["w1 w2"]), expected), name
        assert diagnose(name) == []
        assert info(name).facts["family"] == "bert"
        assert "fill-mask" in info(name).verbs
    shutil.copy(folder / "bert_model.ckpt.index", folder / "model.ckpt-7.index")
    (folder / "checkpoint").unlink()
    with pytest.raises(ModelError, match=r"several checkpoints.*bert_model.ckpt, model.ckpt-7"):
        bw.load(folder)
    assert bw.load(folder / "bert_model.ckpt").embed(["w1"]).shape == (1, 16)
    (folder / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/bert_model.ckpt"\n')
    assert bw.load(folder).embed(["w1"]).shape == (1, 16)
    assert diagnose(str(folder)) == []


def test_a_cased_vocabulary_is_told_by_its_capitals(original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cased_L-1"
    shutil.copytree(original / "tf1", folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("w", "W"))
    tokenizer = load_model(folder).tokenizer
    assert tokenizer.encode("W1").tokens[1] == "W1"
    assert not tokenizer.lowercase


@pytest.mark.parametrize("names", [("adam_m", "adam_v"), ("Adam", "Adam_1"), ("lamb_m", "lamb_v")])
def test_moments_are_named_as_not_used(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, ...]
) -> None:
    folder = tmp_path / "trained"
    shutil.copytree(original / "tf1", folder)
    found = {n: v for n, (v, _) in read_bundle(folder / "bert_model.ckpt").items()}
    moments = {f"{n}/{m}": np.zeros_like(v) for n, v in found.items() for m in names}
    write_bundle(folder / "bert_model.ckpt", {**found, **moments, "global_step": np.ones(())})
    assert cli.main(["convert", str(folder), str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "not used here: global_step, 60 moments of the optimizer" in said
    assert bits(tmp_path / "out") == bits(original / "ours")


def test_a_fine_tuned_one(tmp_path: Path) -> None:
    for heads, about, name in (
        ({"classes": 3}, {"kind": "classification", "labels": ["a", "b", "c"]}, "output_weights"),
        ({"spans": True}, {"kind": "spans"}, "cls/squad/output_weights"),
    ):
        folder = tmp_path / next(iter(heads))
        save_model(folder / "ours", small_bert(**heads), small_tokenizer(97), about)
        assert cli.main(["convert", str(folder / "ours"), str(folder / "o"), "--to", "tf1"]) == 0
        assert name in read_bundle(folder / "o" / "bert_model.ckpt")
        assert bits(folder / "o") == bits(folder / "ours")


def cut(path: Path, to: int) -> None:
    path.write_bytes(path.read_bytes()[:to])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("an empty index", lambda f: cut(f / "bert_model.ckpt.index", 0), "index.*no footer"),
    ("a cut index", lambda f: cut(f / "bert_model.ckpt.index", 300), "index.*no footer"),
    ("a bit of the index", lambda f: flip(f / "bert_model.ckpt.index", 20), "index.*checksum"),
    ("a bit of a weight", lambda f: flip(f / DATA, 999), "data-00000.*does not match its checksum"),
    ("cut weights", lambda f: cut(f / DATA, 5000), "data-00000.*ends within"),
    ("no weights", lambda f: (f / DATA).unlink(), "data-00000-of-00001 does not exist"),
    ("no index", lambda f: (f / "bert_model.ckpt.index").unlink(), "index is missing"),
    ("no settings", lambda f: (f / "bert_config.json").unlink(), "bert_config.json does not exist"),
    ("no vocabulary", lambda f: (f / "vocab.txt").unlink(), "vocab"),
    ("of ALBERT", lambda f: (f / "albert_config.json").write_text("{}"), "take a folder of trans"),
]


@pytest.mark.parametrize(("damage", "said"), [d[1:] for d in DAMAGE], ids=[d[0] for d in DAMAGE])
def test_damage_is_named(
    original: Path, tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(original / "tf1", folder)
    (folder / "tokenizer.json").unlink()
    damage(folder)
    with pytest.raises(ModelError, match=said):
        load_model(folder)


def test_what_is_refused_by_name(original: Path, tmp_path: Path) -> None:
    index = tmp_path / "part.ckpt.index"
    index.write_bytes(zlib.decompress(base64.b85decode(SLICED)))
    with pytest.raises(ModelError, match="p/v is divided into slices"):
        read_bundle(tmp_path / "part.ckpt")
    write_bundle(tmp_path / "other", {"electra/embeddings/word_embeddings": np.ones((2, 2))})
    shutil.copy(original / "tf1" / "bert_config.json", tmp_path)
    with pytest.raises(ModelError, match="does not hold BERT's variables, but electra/emb"):
        load_model(tmp_path / "other")
    write_bundle(tmp_path / "objects", {"_CHECKPOINTABLE_OBJECT_GRAPH": np.ones(2)})
    with pytest.raises(ModelError, match="objects of TensorFlow 2"):
        read_bundle(tmp_path / "objects")


def rewritten(path: Path, change: Callable[[bytearray], object]) -> None:
    """Change the first block of an index, of one block, and give it the right checksum."""
    data = bytearray(path.read_bytes())
    block = bytearray(data[: _first_block(data)])
    kind = bytearray(b"\0")
    change(block if change is not _compressed else kind)
    end = len(block)
    data[: end + 5] = block + kind + struct.pack("<I", masked(crc32c(bytes(block + kind))))
    path.write_bytes(data)


def _first_block(data: bytearray) -> int:
    """Its length: where a block of no entries (8 bytes) follows."""
    return data.index(struct.pack("<II", 0, 1) + b"\0", 40) - 5


def _compressed(kind: bytearray) -> None:
    kind[0] = 1


def test_types_and_compressed_blocks(tmp_path: Path) -> None:
    write_bundle(tmp_path / "m", {"weight": np.ones(3)})
    index = tmp_path / "m.index"
    whole = index.read_bytes()
    rewritten(index, lambda _: None)
    assert index.read_bytes() == whole

    def of_strings(block: bytearray) -> None:
        block[block.index(b"\x08\x01\x12") + 1] = 7

    rewritten(index, of_strings)
    with pytest.raises(ModelError, match="weight has the type string"):
        read_bundle(tmp_path / "m")
    index.write_bytes(whole)
    rewritten(index, _compressed)
    with pytest.raises(ModelError, match=r"compressed \(snappy\)"):
        read_bundle(tmp_path / "m")


def test_zips(original: Path, tmp_path: Path) -> None:
    archive = tmp_path / "m.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in (original / "tf1").iterdir():
            file.write(path, f"m/{path.name}")
    assert load_model(archive).folder is None
    data = archive.read_bytes()
    damaged = bytearray(data)
    damaged[len(data) // 3] ^= 255
    for content in (data[:-100], bytes(damaged), b"", b"PK"):
        archive.write_bytes(content)
        assert "m.zip" in diagnose(archive)[0]
        assert "m.zip" in info(archive).facts["problem"]
        with pytest.raises(ModelError, match=r"m\.zip.*(damaged|truncated)"):
            load_model(archive)
    with zipfile.ZipFile(archive, "w") as file:
        for folder in ("a", "b"):
            file.write(original / "tf1" / "bert_config.json", f"{folder}/bert_config.json")
    with pytest.raises(ModelError, match="one folder with a checkpoint, and holds a, b"):
        load_model(archive)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("m/bert_config.json", "{}")
    with pytest.raises(ModelError, match=r"m\.zip has bert_config.json, but no checkpoint"):
        load_model(archive)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("m/x.data-00000-of-00001", bytes(2**26))
    with pytest.raises(ModelError, match="no weights become from so little"):
        load_model(archive)


LABELS = {"kind": "classification", "labels": ["a", "b", "c"]}
FROZEN = LABELS | {"options": {"reads": "tokens"}}
ORDERED = LABELS | {"kind": "ordinal"}
TAGS = {"kind": "tagging", "labels": ["B-X", "I-X", "O"]}


@pytest.mark.parametrize(
    ("heads", "about", "said"),
    [
        ({"choices": True}, {"kind": "choice"}, "head for choices"),
        ({"tags": 3}, TAGS, "head for tags of words"),
        ({"tags": 3}, FROZEN, "head for labels or scores of texts that reads all tokens, as of"),
        ({"tags": 3, "lstm": 8}, TAGS, "head for tags of words on a BiLSTM"),
        (
            {"heads": {"ordinal": 2}},
            LABELS | {"kind": "ordinal"},
            "head for ordered classes of texts",
        ),
    ],
)
def test_heads_that_the_original_lacks(
    heads: dict[str, Any],
    about: dict[str, Any],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They are refused where they would be written, and the remedy holds."""
    save_model(tmp_path / "m", small_bert(**heads), small_tokenizer(97), about)
    words = ["convert", str(tmp_path / "m"), str(tmp_path / "out"), "--to", "tf1"]
    assert cli.main(words) == 1
    told = capsys.readouterr().err
    assert f"the code of BERT's authors has no {said}" in told
    assert not (tmp_path / "out").exists()
    remedy = re.search(r"--heads \w+", told)
    assert remedy is not None
    assert cli.main([*words, *remedy[0].split()]) == 0
    assert diagnose(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("heads", "about"),
    [
        ({"classes": 3}, LABELS),
        ({"classes": 3}, {"kind": "multilabel", "labels": ["a", "b", "c"]}),
        ({"classes": 2}, {"kind": "multiregression", "labels": ["a", "b"]}),
        ({"classes": 1}, {"kind": "regression"}),
        ({"spans": True}, {"kind": "spans"}),
        ({}, {"pooling": "cls", "normalize": True}),
    ],
)
def test_what_is_known_of_a_model_comes_back(
    heads: dict[str, Any], about: dict[str, Any], tmp_path: Path
) -> None:
    """Its labels, too, which the original keeps nowhere: from the folder, and from a zip of it."""
    save_model(tmp_path / "m", small_bert(**heads), small_tokenizer(97), about)
    words = ["convert", str(tmp_path / "m"), str(tmp_path / "tf1"), "--to", "tf1"]
    assert cli.main(words) == 0
    archive = shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path, "tf1")
    for source, name in ((tmp_path / "tf1", "one"), (Path(archive), "two")):
        assert cli.main(["convert", str(source), str(tmp_path / name)]) == 0
        back = load_model(tmp_path / name)
        assert back.notes == []
        assert about.items() <= back.about.items()
        assert back.about["converted_from"] == source.name
        config = (tmp_path / name / "config.json").read_text()
        assert config == (tmp_path / "m/config.json").read_text()
    assert diagnose(tmp_path / "tf1") == []


def test_what_was_trained_from_a_checkpoint_of_ours_is_not_called_as_it(tmp_path: Path) -> None:
    folder = tmp_path / "tf1"
    save_model(tmp_path / "m", small_bert(classes=3), small_tokenizer(97), LABELS)
    assert cli.main(["convert", str(tmp_path / "m"), str(folder), "--to", "tf1"]) == 0
    assert load_model(folder).about["labels"] == ["a", "b", "c"]
    for end in ("index", "data-00000-of-00001"):
        shutil.copy(folder / f"bert_model.ckpt.{end}", folder / f"model.ckpt-7.{end}")
    loaded = load_model(folder / "model.ckpt-7")
    assert loaded.about["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.mark.slow
def test_tensorflow_reads_what_is_written(original: Path, tmp_path: Path) -> None:
    """Where BOTHWAYS_TENSORFLOW is the Python of an environment with tensorflow."""
    python = os.environ.get("BOTHWAYS_TENSORFLOW")
    if not python:
        pytest.skip("BOTHWAYS_TENSORFLOW names no Python with tensorflow")
    script = (
        "import sys, numpy as np, tensorflow as tf\n"
        "tf1 = tf.compat.v1; tf1.disable_eager_execution()\n"
        "read = tf.train.load_checkpoint(sys.argv[1])\n"
        "for name in read.get_variable_to_shape_map():\n"
        "    tf1.get_variable(name, initializer=read.get_tensor(name))\n"
        "with tf1.Session() as session:\n"
        "    session.run(tf1.global_variables_initializer())\n"
        "    tf1.train.Saver().save(session, sys.argv[2])\n"
    )
    shutil.copytree(original / "tf1", tmp_path / "m")
    prefix = tmp_path / "m" / "bert_model.ckpt"
    again = tmp_path / "m" / "again.ckpt"
    done = subprocess.run([python, "-c", script, str(prefix), str(again)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    ours, theirs = read_bundle(prefix), read_bundle(again)
    assert {n: v.tobytes() for n, (v, _) in ours.items()} == {
        n: v.tobytes() for n, (v, _) in theirs.items()
    }
