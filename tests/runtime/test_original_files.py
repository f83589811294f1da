"""The original BERT's files: read as TensorFlow wrote them, or refused."""

from __future__ import annotations

import base64
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bothways import cli
from bothways.errors import ModelError
from bothways.io.tensor_bundle import read_bundle
from bothways.runtime.folder import load_model
from model_examples import BOTH_HEADS, small_bert, small_tokenizer
from tensorflow_files import write_bundle, write_original

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
    write_original(root, small_bert(**BOTH_HEADS), small_tokenizer(97))
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


def test_a_cased_vocabulary_is_told_by_its_capitals(original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cased_L-1"
    shutil.copytree(original / "tf1", folder)
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


@pytest.mark.parametrize("heads", [{"classes": 3}, {"spans": True}])
def test_a_fine_tuned_one(heads: dict[str, int], tmp_path: Path) -> None:
    write_original(tmp_path, small_bert(**heads), small_tokenizer(97))
    assert bits(tmp_path / "tf1") == bits(tmp_path / "ours")


def cut(path: Path, to: int) -> None:
    path.write_bytes(path.read_bytes()[:to])


DAMAGE: list[tuple[str, Callable[[Path], object], str]] = [
    ("an empty index", lambda f: cut(f / "bert_model.ckpt.index", 0), "index.*no footer"),
    ("a cut index", lambda f: cut(f / "bert_model.ckpt.index", 300), "index.*no footer"),
    ("cut weights", lambda f: cut(f / DATA, 5000), "bytes, not the shape"),
    ("no weights", lambda f: (f / DATA).unlink(), "data-00000-of-00001"),
    ("no index", lambda f: (f / "bert_model.ckpt.index").unlink(), "a vocabulary, and no model"),
    ("no settings", lambda f: (f / "bert_config.json").unlink(), "bert_config.json does not exist"),
    ("no vocabulary", lambda f: (f / "vocab.txt").unlink(), "vocab"),
]


@pytest.mark.parametrize(("damage", "said"), [d[1:] for d in DAMAGE], ids=[d[0] for d in DAMAGE])
def test_damage_is_named(
    original: Path, tmp_path: Path, damage: Callable[[Path], object], said: str
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(original / "tf1", folder)
    damage(folder)
    with pytest.raises(ModelError, match=said):
        load_model(folder)


def test_what_is_refused_by_name(original: Path, tmp_path: Path) -> None:
    index = tmp_path / "part.ckpt.index"
    index.write_bytes(zlib.decompress(base64.b85decode(SLICED)))
    (tmp_path / "part.ckpt.data-00000-of-00001").touch()
    with pytest.raises(ModelError, match="p/v is divided into slices"):
        read_bundle(tmp_path / "part.ckpt")
    write_bundle(tmp_path / "other", {"electra/embeddings/word_embeddings": np.ones((2, 2))})
    shutil.copy(original / "tf1" / "bert_config.json", tmp_path)
    with pytest.raises(ModelError, match="does not hold BERT's variables, but electra/emb"):
        load_model(tmp_path / "other")
    write_bundle(tmp_path / "objects", {"_CHECKPOINTABLE_OBJECT_GRAPH": np.ones(2)})
    with pytest.raises(ModelError, match="objects of TensorFlow 2"):
        read_bundle(tmp_path / "objects")


def test_types_and_compressed_blocks(tmp_path: Path) -> None:
    write_bundle(tmp_path / "m", {"weight": np.ones(3)})
    index = tmp_path / "m.index"
    whole = index.read_bytes()
    index.write_bytes(whole.replace(b"\x08\x01\x12", b"\x08\x07\x12"))
    with pytest.raises(ModelError, match="weight has the type 7"):
        read_bundle(tmp_path / "m")
    end = whole.index(struct.pack("<II", 0, 1) + bytes(5)) + 8
    index.write_bytes(whole[:end] + b"\1" + whole[end + 1 :])
    with pytest.raises(ModelError, match="compressed"):
        read_bundle(tmp_path / "m")
