"""The registry of heads: what a model weighs, which head is its task's, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bothways.errors import ModelError
from bothways.families import ModelConfig
from bothways.families.heads import (
    HEADS,
    LSTM_WEIGHTS,
    ON_LSTM,
    POOLER_KEY,
    form_of,
    forms_of,
    has_pooler,
    missing_head,
    no_such_head,
    no_task_of,
    parameters,
    task_head,
)

BERT = ModelConfig(100, layers=2, hidden=32, heads=2, intermediate=64, positions=16)


def test_heads_by_hand() -> None:
    expected = {
        "masked_lm": (0, "masked", 1, False),
        "next_sentence": (1, "sequence", 2, False),
        "classifier": (2, "sequence", None, True),
        "tagger": (3, "tokens", None, True),
        "span": (4, "tokens", 2, True),
        "choice": (2, "sequence", 1, True),
        "replaced": (6, "tokens", 1, False),
        "ordinal": (7, "sequence", None, True),
    }
    found = {n: (h.key, h.reads, h.outputs, h.task) for n, h in HEADS.items()}
    assert {n: (k, r, o or None, t) for n, (k, r, o, t) in found.items()} == expected
    assert POOLER_KEY == 5
    kinds = {name: head.kind for name, head in HEADS.items() if head.task and head.kind}
    assert {"classifier": "classification", "tagger": "tagging", "span": "spans"}.items() <= (
        kinds.items()
    )


def _shapes(
    config: ModelConfig, heads: dict[str, int], *, lstm: int = 0, pooler: bool
) -> dict[str, tuple[int, ...]]:
    table = parameters(config, heads, lstm=lstm, pooler=pooler)
    return {name: parameter.shape for name, parameter in table.items()}


def test_weights_of_bert_by_hand() -> None:
    shapes = _shapes(BERT, {"classifier": 3, "masked_lm": 0}, pooler=True)
    table = shapes.pop("encoder.embeddings.tokens.weight")
    assert table[1] == 32
    assert table[0] >= 100
    layer = {
        "attention.qkv.weight": (96, 32),
        "attention.qkv.bias": (96,),
        "attention.output.weight": (32, 32),
        "attention.output.bias": (32,),
        "attention_norm.weight": (32,),
        "attention_norm.bias": (32,),
        "expand.weight": (64, 32),
        "expand.bias": (64,),
        "contract.weight": (32, 64),
        "contract.bias": (32,),
        "norm.weight": (32,),
        "norm.bias": (32,),
    }
    assert shapes == {
        "encoder.embeddings.positions.weight": (16, 32),
        "encoder.embeddings.segments.weight": (2, 32),
        "encoder.embeddings.norm.weight": (32,),
        "encoder.embeddings.norm.bias": (32,),
        **{f"encoder.layers.{n}.{part}": shape for n in (0, 1) for part, shape in layer.items()},
        "encoder.pooler.weight": (32, 32),
        "encoder.pooler.bias": (32,),
        "classifier.output.weight": (3, 32),
        "classifier.output.bias": (3,),
        "masked_lm.bias": (100,),
        "masked_lm.dense.weight": (32, 32),
        "masked_lm.dense.bias": (32,),
        "masked_lm.norm.weight": (32,),
        "masked_lm.norm.bias": (32,),
    }


def test_a_bilstm_lies_under_the_tasks_head_alone() -> None:
    shapes = _shapes(BERT, {"tagger": 3, "masked_lm": 0}, lstm=5, pooler=False)
    assert shapes["tagger.output.weight"] == (3, 10)
    assert shapes["masked_lm.dense.weight"] == (32, 32)
    assert {name: shapes[name] for name in LSTM_WEIGHTS} == {
        f"lstm.layers.0.{kind}_{part}_l0{way}": shape
        for part, width in (("ih", 32), ("hh", 5))
        for way in ("", "_reverse")
        for kind, shape in (("weight", (20, width)), ("bias", (20,)))
    }
    assert not has_pooler(replace(BERT, pooler=False), ["classifier"])


def test_which_models_have_a_pooler() -> None:
    roberta = replace(BERT, family="roberta")
    assert has_pooler(BERT, ["masked_lm"])  # of a BERT without a task, always
    assert has_pooler(BERT, ["classifier"])
    assert not has_pooler(BERT, ["tagger"])  # no class of transformers for taggers has one
    assert has_pooler(roberta, [])
    assert not has_pooler(roberta, ["tagger"])
    assert not has_pooler(roberta, ["classifier"], lstm=True)


def test_the_tasks_head() -> None:
    assert task_head(["masked_lm", "tagger"]) == "tagger"
    assert task_head(["masked_lm", "next_sentence", "replaced"]) == ""
    assert task_head(["ordinal"]) == "ordinal"
    assert task_head([]) == ""


def test_what_is_refused_and_why() -> None:
    roberta = replace(BERT, family="roberta")
    with pytest.raises(ModelError, match=r"RoBERTa has no .*; of the families here .* ha(s|ve)"):
        form_of("next_sentence", roberta)
    assert "next_sentence" not in forms_of(roberta)
    assert form_of("ordinal", roberta).dense
    assert missing_head("roberta", "next_sentence") == no_such_head("roberta", "next_sentence")
    assert " has one. Use such a model." in no_such_head("bert", "replaced")
    assert " have one. Use such a model." in no_such_head("roberta", "next_sentence") or (
        " has one. Use such a model." in no_such_head("roberta", "next_sentence")
    )
    assert "it is a discriminator" in missing_head("electra", "masked_lm", ["replaced"])
    assert "it is a generator" in missing_head("electra", "replaced", ["masked_lm"])
    assert "it is a generator" not in missing_head("electra", "replaced")
    assert "left to right" in missing_head("bert", "next_sentence", causal=True)
    assert "left to right" not in missing_head("bert", "next_sentence")
    assert "left to right" not in missing_head("bert", "tagger", causal=True)
    assert missing_head("bert", "tagger").startswith("this model has no head for tags of words; ")
    assert "head for ordered classes of texts" in no_task_of("ordinal")


def test_names_of_parts_in_files_never_change() -> None:
    assert form_of("ordinal", BERT).names == {"dense": "ordinal.dense", "output": "ordinal.output"}
    assert (form_of("ordinal", BERT).dropout, form_of("ordinal", BERT).first_dropout) == (
        "head",
        "head",
    )
    assert ON_LSTM.names == {"output": "output"}
    assert ON_LSTM.dropout == "head"


def test_weights_of_narrow_embeddings_by_hand() -> None:
    narrow = replace(BERT, embedding=8)
    shapes = _shapes(narrow, {"masked_lm": 0}, pooler=False)
    assert shapes["encoder.embeddings.tokens.weight"][1] == 8
    assert shapes["encoder.embeddings.norm.weight"] == (8,)
    assert shapes["encoder.embeddings.project.weight"] == (32, 8)
    assert shapes["encoder.embeddings.project.bias"] == (32,)
    assert shapes["masked_lm.dense.weight"] == (8, 32)
    assert shapes["masked_lm.norm.weight"] == (8,)
    assert not any("project" in name for name in _shapes(BERT, {}, pooler=True))


def test_weights_where_norms_stand_before_the_layers() -> None:
    before = replace(BERT, norm_at="pre", first_norm=False, final_norm=True, norm_biases=False)
    shapes = _shapes(before, {}, pooler=False)
    norms = {name: shape for name, shape in shapes.items() if "norm" in name}
    assert norms == {
        "encoder.embeddings.norm.weight": (32,),
        "encoder.layers.0.norm.weight": (32,),
        "encoder.layers.1.attention_norm.weight": (32,),
        "encoder.layers.1.norm.weight": (32,),
        "encoder.final_norm.weight": (32,),
    }
    assert len(shapes) == len(norms) + 3 + 2 * 4 * 2, "embeddings, and linear maps with biases"


def test_norms_behind_the_layers_are_in_each() -> None:
    """Only of norms that stand before the layers may the first be absent."""
    post = _shapes(replace(BERT, first_norm=False), {}, pooler=False)
    assert post["encoder.layers.0.attention_norm.weight"] == (32,)


def test_what_a_shape_does_without_weighs_nothing() -> None:
    plain = replace(
        *(BERT,),
        place="rotary",
        segments=0,
        embedding_norm=False,
        gated=True,
        groups=1,
        biases=False,
        norm_biases=False,
        head_biases=False,
        output_bias=False,
    )
    shapes = _shapes(plain, {"masked_lm": 1, "classifier": 3}, pooler=False)
    assert shapes.pop("encoder.embeddings.tokens.weight")[1] == 32
    assert shapes == {
        "encoder.layers.0.attention.qkv.weight": (96, 32),
        "encoder.layers.0.attention.output.weight": (32, 32),
        "encoder.layers.0.attention_norm.weight": (32,),
        "encoder.layers.0.expand.weight": (128, 32),  # values, and their gates
        "encoder.layers.0.contract.weight": (32, 64),
        "encoder.layers.0.norm.weight": (32,),
        "masked_lm.dense.weight": (32, 32),
        "masked_lm.norm.weight": (32,),
        "classifier.output.weight": (3, 32),
        "classifier.output.bias": (3,),
    }


def test_a_pooler_that_the_family_lacks_weighs_nothing() -> None:
    without = replace(BERT, pooler=False)
    assert not any("pooler" in name for name in _shapes(without, {}, pooler=True))
    assert not has_pooler(without, [])


def test_a_head_with_a_norm_weighs_it() -> None:
    modern = replace(BERT, family="modernbert", pooler=False)
    assert form_of("classifier", modern).norm
    shapes = _shapes(modern, {"classifier": 3}, pooler=False)
    assert shapes["classifier.norm.weight"] == (32,)
    assert shapes["classifier.dense.weight"] == (32, 32)


def test_messages_are_sentences() -> None:
    assert missing_head("electra", "replaced", ["masked_lm"]) == (
        "this model has no head for replaced tokens: it is a generator, which predicts tokens; "
        "use the folder of a discriminator."
    )
    assert missing_head("bert", "choice").startswith("this model has no head for choices; ")
    assert missing_head("bert", "classifier").startswith(
        "this model has no head for labels or scores of texts; fine-tune it first"
    )
