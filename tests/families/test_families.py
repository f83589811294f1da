"""Every family against transformers, both ways: states, logits, gradients, rounding, folders."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")
import transformers

from bothways import batch as numpy_batch
from bothways import families
from bothways.api.model import load
from bothways.config.fields import field_types
from bothways.errors import ConfigError, ModelError
from bothways.families import FAMILIES, HeadForm, ModelConfig, config_of, family_of, new_shape
from bothways.families.family import ACTIVATIONS, write_config
from bothways.families.heads import (
    HEADS,
    POOLER_KEY,
    Head,
    forms_of,
    has_pooler,
    missing_head,
    parameter_count,
    parameters,
)
from bothways.families.options import SizeOptions
from bothways.model.batch import (
    Inputs,
    PretrainingBatch,
    SelectedPositions,
    collate,
    masked_targets,
)
from bothways.model.device import describe_kernels
from bothways.model.engine import network_of
from bothways.model.folder import save_model, to_theirs
from bothways.model.kernels.compiled import why_not_covered
from bothways.model.model import EncoderModel
from bothways.runtime.engine import EngineOptions, layer_name
from bothways.runtime.folder import load_model
from bothways.runtime.weights import account_for, stored_weights
from bothways.training.options import OptimizerOptions
from bothways.training.trainer import Trainer
from family_examples import (
    EXAMPLES,
    LENGTHS,
    POSITIONS,
    as_choices,
    batch_of,
    flat,
    loaded,
    our_logits,
    perturb,
    their_logits,
)
from family_examples import (
    NETWORKS as BARE_NETWORKS,
)
from model_examples import from_theirs, small_tokenizer, stored
from plain_forward import PlainForward
from pretraining_examples import bert_loss

pytestmark = pytest.mark.usefixtures("several_tiles")

TOLERANCE = 1e-5  # of the value's scale
ROUNDING = 1.5  # our error in bf16, at most so many times theirs
LABELS = {"classifier": 3, "tagger": 5}


NETWORKS = {**EXAMPLES, **BARE_NETWORKS}


def _cases() -> list[Any]:
    """Every class of every example with its heads; regression, too."""
    cases = []
    for name, example in NETWORKS.items():
        family = families.NETWORKS[str(example.config().model_type)]
        for kind, heads in family.classes.items():
            if heads:
                suffix = kind.removeprefix(example.stem)
                cases.append(pytest.param(name, suffix, heads, {}, id=f"{name}-{suffix}"))
        one = "ForSequenceClassification"
        labels = {"num_labels": 1}
        if "classifier" in family.heads:
            cases.append(pytest.param(name, one, ("classifier",), labels, id=f"{name}-regression"))
    return cases


CASES = _cases()
# The compiled layers cover none of these; which reason is said first.
NOT_COVERED = {"modernbert": "norms before the branches", "roformer": "rotary positions"}
COVERED = [name for name in EXAMPLES if not name.startswith(tuple(NOT_COVERED))]


def _their_model(name: str, suffix: str, heads: tuple[str, ...], more: dict[str, Any]) -> Any:
    outputs = [LABELS[head] for head in heads if head in LABELS]
    return NETWORKS[name].model(suffix, **{"num_labels": outputs[0] if outputs else 2, **more})


def _close(ours: Tensor, theirs: Tensor, what: str = "", floor: float = 0.0) -> None:
    scale = max(float(theirs.abs().max()), floor)
    apart = float((ours - theirs).abs().max())
    assert apart <= TOLERANCE * scale, f"{what}: {apart:.2g} apart at scale {scale:.2g}"


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_hidden_states_of_every_layer(name: str, tmp_path: Path) -> None:
    example = NETWORKS[name]
    theirs = example.model("Model")
    found = loaded(theirs, tmp_path)
    assert (found.unused, found.fresh) == ([], [])
    # The tokenizer of these tests is one for all, whose padding is not every family's.
    assert all("the padding piece has the id" in note for note in found.notes)
    assert bool(found.notes) == (found.tokenizer.pad_id != theirs.config.pad_token_id)
    inputs, batch = batch_of(example)
    out = theirs(**batch, output_hidden_states=True)
    states = network_of(found).encoder.hidden_states(inputs)
    assert len(states) == len(out.hidden_states)
    total = int(inputs.bounds[-1])
    for number, (ours, expected) in enumerate(zip(states, out.hidden_states, strict=True)):
        _close(ours[:total], flat(expected, batch), f"state {number}")
    _close(states[-1][:total], flat(out.last_hidden_state, batch))
    if network_of(found).encoder.pooler is not None:
        _close(network_of(found).encoder.pool(states[-1][inputs.starts]), out.pooler_output)


@pytest.mark.parametrize("engine", ["torch", "onnxruntime", "plain"])
@pytest.mark.parametrize("name", [name for name in EXAMPLES if EXAMPLES[name].pad == 1])
@torch.no_grad()
def test_the_padding_piece_in_a_text_takes_no_position(
    name: str, engine: str, tmp_path: Path
) -> None:
    """As in transformers, whose positions do not count it wherever it stands."""
    theirs, pad = EXAMPLES[name].model("Model"), EXAMPLES[name].pad
    found = loaded(theirs, tmp_path)
    rows = [[7, 8, pad, 9, 10], [pad, 11], [12, pad, pad, 13, 14, pad]]
    segments = [[0] * len(row) for row in rows]
    wanted = [theirs(torch.tensor([row])).last_hidden_state[0] for row in rows]
    batch, last = numpy_batch.collate(rows, segments, max_positions=9), found.config.layers
    assert found.weights is not None
    found.options = EngineOptions(name=engine if engine != "plain" else "torch")
    plain = PlainForward(found.config, found.weights)
    computing = plain if engine == "plain" else found.engine
    states = torch.from_numpy(computing.compute(batch, layers=[last])[layer_name(last)])
    _close(states[: sum(map(len, rows))], torch.cat(wanted))


@pytest.mark.parametrize(("name", "suffix", "heads", "more"), CASES)
@torch.no_grad()
def test_logits_and_folders_both_ways(
    name: str, suffix: str, heads: tuple[str, ...], more: dict[str, Any], tmp_path: Path
) -> None:
    """Their folder here, and ours there: the same numbers, and the same bits of every weight."""
    example = NETWORKS[name]
    theirs = _their_model(name, suffix, heads, more)
    found = loaded(theirs, tmp_path / "theirs")
    keeps = family_of(found.config).keeps_pooler
    assert found.unused == []
    assert all(keeps and weight.startswith("encoder.pooler.") for weight in found.fresh)
    assert set(network_of(found).heads) == set(heads)
    inputs, batch = batch_of(example)
    for head in heads:
        out = theirs(**as_choices(batch, head))
        _close(our_logits(network_of(found), head, inputs), their_logits(out, head, batch), head)

    save_model(tmp_path / "ours", network_of(found), found.tokenizer, found.about)
    kind = getattr(transformers, example.stem + suffix)
    again, info = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert again.config.architectures == [example.stem + suffix]
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert all(keeps and "pooler" in key for key in info["unexpected_keys"])
    state = again.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in theirs.state_dict().items())
    for head in heads:
        out = again.eval()(**as_choices(batch, head))
        _close(our_logits(network_of(found), head, inputs), their_logits(out, head, batch), head)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", EXAMPLES)
def test_half_precision_folders_keep_their_bits(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    theirs = EXAMPLES[name].model("ForMaskedLM").to(dtype)
    found = loaded(theirs, tmp_path / "theirs")
    assert getattr(torch, found.dtype) == dtype
    assert {p.dtype for p in network_of(found).parameters()} == {torch.float32}
    save_model(tmp_path / "ours", network_of(found), found.tokenizer, dtype=found.dtype)
    again = type(theirs).from_pretrained(tmp_path / "ours", dtype="auto")
    state = again.state_dict()
    for key, value in theirs.state_dict().items():
        assert state[key].dtype == dtype
        assert torch.equal(value, state[key]), key


def _projected(logits: Tensor) -> Tensor:
    """A scalar: the product with fixed random numbers."""
    generator = torch.Generator().manual_seed(5)
    weights = torch.randn(logits.shape, generator=generator)
    return (logits.float() * weights).sum()


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(("name", "suffix", "heads", "more"), CASES)
def test_gradients_of_all_weights(
    name: str,
    suffix: str,
    heads: tuple[str, ...],
    more: dict[str, Any],
    fast: bool,
    tmp_path: Path,
) -> None:
    """Through compiled layers, where the family has them, and through plain ones; theirs in fp64
    where it can be, so that only our rounding counts."""
    example = NETWORKS[name]
    theirs = _their_model(name, suffix, heads, more)
    ours = network_of(loaded(theirs, tmp_path))
    if not name.startswith("modernbert"):  # of its padding transformers makes NaNs in fp64
        theirs.double()
    ours.shared.fast = fast
    inputs, batch = batch_of(example)
    for head in heads:
        _projected(their_logits(theirs(**as_choices(batch, head)), head, batch)).backward()
        _projected(our_logits(ours, head, inputs)).backward()
    grads = {n: p.grad for n, p in ours.named_parameters() if p.grad is not None}
    found = to_theirs(grads, ours.config)
    named = theirs.named_parameters(remove_duplicate=False)
    expected = {n: p.grad for n, p in named if p.grad is not None}
    family = family_of(ours.config)
    assert expected.keys() - found.keys() <= {family.tied, family.twin_bias}
    assert found.keys() <= expected.keys()
    largest = max(float(value.abs().max()) for value in expected.values())
    for key in found:
        # Biases of keys have none in theory: what there is is rounding of the whole.
        _close(found[key], expected[key], key, floor=0.01 * largest)


@pytest.mark.parametrize(("name", "suffix", "heads", "more"), CASES)
@torch.no_grad()
def test_rounding_in_bf16_is_not_much_worse_than_theirs(
    name: str, suffix: str, heads: tuple[str, ...], more: dict[str, Any], tmp_path: Path
) -> None:
    """Both against their network in float64, on enough outputs for a mean to mean something."""
    example = NETWORKS[name]
    for head in heads:
        their_error = our_error = 0.0
        many = HEADS[head].reads == "sequence"  # few outputs each
        for seed in range(5 if many else 1):
            theirs = _their_model(name, suffix, heads, more)
            perturb(theirs, seed)
            ours = network_of(loaded(theirs, tmp_path / f"{head}-{seed}"))
            inputs, batch = batch_of(example, seed, LENGTHS * (4 if many else 1))
            exact = _exact(copy.deepcopy(theirs).double(), head, batch)
            given = as_choices(batch, head)
            rounded = their_logits(theirs.bfloat16()(**given), head, batch).double()
            own = our_logits(ours, head, inputs, torch.bfloat16).double()
            their_error += float((rounded - exact).pow(2).mean())
            our_error += float((own - exact).pow(2).mean())
        ratio = math.sqrt(our_error / their_error)
        assert ratio <= ROUNDING, f"{head}: {ratio:.2f} times their error"


def _exact(model: Any, head: str, batch: dict[str, Tensor]) -> Tensor:
    """Their outputs, a sequence at a time: in float64 their masks of padding overflow."""
    found = []
    for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        own = {key: value[row : row + 1, :length] for key, value in batch.items()}
        found.append(their_logits(model(**as_choices(own, head)), head, own))
    return torch.cat(found)


# ------------------------------------------------------------------------------------------- shape


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_number_of_weights(name: str, tmp_path: Path) -> None:
    example = EXAMPLES[name]
    theirs = getattr(transformers, f"{example.stem}Model")(example.config())
    config, notes = config_of(theirs.config.to_dict(), where="config.json")
    assert notes == []
    assert parameter_count(config) == theirs.num_parameters(only_trainable=True)
    masked = getattr(transformers, f"{example.stem}ForMaskedLM")(example.config())
    found = network_of(loaded(masked, tmp_path))
    own = sum(p.numel() for p in found.parameters())
    padding = (config.padded_vocab - config.vocab_size) * config.embedding_width
    pooler = parameter_count(config) - parameter_count(config, pooler=False)
    has = found.encoder.pooler is not None
    with_head = parameter_count(config, {"masked_lm": 1}, pooler=False)
    assert with_head == masked.num_parameters(only_trainable=True)
    assert own - padding - pooler * has == with_head


@pytest.mark.parametrize("name", NETWORKS)
def test_configs_come_back_the_same(name: str) -> None:
    theirs = NETWORKS[name].config()
    config, _ = config_of(theirs.to_dict(), where="file")
    family = family_of(config)
    values = write_config(family, config, f"{NETWORKS[name].stem}Model", pad_id=0, dtype="float32")
    assert values["model_type"] == family.model_type
    assert config_of(values, where="file") == (config, [])
    again = type(theirs)(**values)
    for key in {*family.keys, "max_position_embeddings", "pad_token_id"} - {""}:
        if key != "position_embedding_type":
            both = [getattr(made, key) for made in (again, theirs)]
            ours = [ACTIVATIONS.get(v, v) if isinstance(v, str) else v for v in both]
            assert ours[0] == ours[1], key


@pytest.mark.parametrize("family", FAMILIES)
def test_new_shapes_have_the_usual_axes(family: str) -> None:
    sizes = {"vocab_size": 97, "layers": 4, "hidden": 32, "heads": 4, "intermediate": 64}
    shape = new_shape(family, **sizes, positions=POSITIONS)
    theirs = dict(EXAMPLES[family].config().to_dict())
    theirs |= {"num_hidden_layers": 4, "n_layers": 4, "intermediate_size": 64, "hidden_dim": 64}
    usual, _ = config_of(theirs, where="file")
    changed = ("positions", "segments", "embedding", "norm_eps", "window")
    assert replace(shape, **{name: getattr(usual, name) for name in changed}) == usual
    with pytest.raises(ConfigError, match=r"needs hidden, heads"):
        new_shape(family, vocab_size=97, layers=4, intermediate=64)
    assert new_shape("bert", **sizes) == ModelConfig(**sizes)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_compiled_layers_cover(name: str) -> None:
    config, _ = config_of(EXAMPLES[name].config().to_dict(), where="file")
    assert (why_not_covered(config) is None) == (name in COVERED)
    if name not in COVERED:
        said = describe_kernels(config, torch.device("cpu"), torch.float32)
        assert f"there are no compiled layers with {NOT_COVERED[config.family]}" in said


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_fast_form_computes_what_the_plain_one_does(name: str, dropout: float) -> None:
    """In training, with the same dropout masks; and at selected positions."""
    config, _ = config_of(NETWORKS[name].config().to_dict(), where="file")
    config = replace(config, dropout=dropout, attention_dropout=dropout)
    model = EncoderModel(config, masked_lm=True).double().train()
    perturb(model)
    inputs, _ = batch_of(NETWORKS[name])
    total = int(inputs.bounds[-1])
    at = SelectedPositions.of(inputs, torch.tensor([0, 3, 50, 8]))
    outs, grads, picked = [], [], []
    for fast in (False, True):
        model.shared.fast = fast
        model.shared.dropout.reseed(3)
        model.zero_grad()
        out = model.encoder(inputs, dtype=torch.float64)[:total]
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
        outs.append(out.detach())
        grads.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        model.eval()
        picked.append(model.encoder.hidden_at(inputs, at, dtype=torch.float64)[0].detach())
        model.train()
    torch.testing.assert_close(outs[1], outs[0])
    torch.testing.assert_close(picked[1], picked[0])
    assert grads[0].keys() == grads[1].keys()
    for key, gradient in grads[0].items():
        torch.testing.assert_close(grads[1][key], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", NETWORKS)
def test_how_sequences_are_tiled_changes_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of padding far from any token, which see nothing in a window, do no harm."""
    config, _ = config_of(NETWORKS[name].config().to_dict(), where="file")
    config = replace(config, dropout=0.0, attention_dropout=0.0)
    model = EncoderModel(config).double().train()
    perturb(model)
    inputs, _ = batch_of(NETWORKS[name])
    found = []
    for fast in (False, True):
        for cost in (1, 10**9):
            monkeypatch.setattr("bothways.model.tiles.TILE_COST", cost)
            model.shared.fast = fast
            model.zero_grad()
            out = model.encoder(inputs, dtype=torch.float64)[: int(inputs.bounds[-1])]
            out.square().sum().backward()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            found.append([out.detach(), *grads])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["albert", "albert-groups", "modernbert"])
def test_recomputing_changes_no_bit(name: str, recompute: bool) -> None:
    config, _ = config_of(EXAMPLES[name].config().to_dict(), where="file")
    config = replace(config, dropout=0.3, attention_dropout=0.3)
    inputs, _ = batch_of(EXAMPLES[name])
    grads = []
    for recomputes in (False, recompute):
        model = EncoderModel(config).train()
        model.shared.recompute = recomputes
        model.shared.dropout.reseed(3)
        model.encoder(inputs)[: int(inputs.bounds[-1])].square().sum().backward()
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=0)


def test_gradients_of_shared_layers_are_summed_in_fp32() -> None:
    """A step of one micro-batch leaves gradients in bf16, but not those of a weight that is used
    several times: the sum would be rounded after each addition."""
    shape: dict[str, Any] = {
        **{"vocab_size": 97, "layers": 12, "hidden": 32, "heads": 4, "intermediate": 64},
        **{"dropout": 0.0, "attention_dropout": 0.0},
    }
    inputs, _ = batch_of(EXAMPLES["albert"])

    def loss(
        model: EncoderModel, inputs: Inputs, dtype: torch.dtype
    ) -> tuple[Tensor, dict[str, Tensor]]:
        x_TH = model.encoder(inputs, dtype=dtype)[: int(inputs.bounds[-1])]
        value = (x_TH.float() * torch.linspace(-1, 1, x_TH.numel()).view_as(x_TH)).sum()
        return value, {"loss": value.detach()}

    for groups in (0, 1):
        model = EncoderModel(ModelConfig(**shape, groups=groups, family="albert", project=True))
        trainer = Trainer(model, OptimizerOptions(), total_steps=2, seed=0, dtype=torch.bfloat16)
        trainer._accumulate_gradients(0, [inputs], loss)
        kinds = {n: p.grad.dtype for n, p in model.named_parameters() if p.grad is not None}
        layers = {kind for n, kind in kinds.items() if n.startswith("encoder.layers.")}
        whole = {torch.float32} if groups else {torch.float32, torch.bfloat16}
        assert layers == whole
        assert {id(p) for p in model.reused_parameters()} == (
            {id(p) for p in model.encoder.layers.parameters()} if groups else set()
        )


def test_training_moves_every_weight_of_every_family() -> None:
    for name, example in EXAMPLES.items():
        config, _ = config_of(example.config().to_dict(), where="file")
        model = EncoderModel(config, masked_lm=True, pooler=False)
        before = {n: v.clone() for n, v in model.state_dict().items()}
        inputs, _ = batch_of(example)
        masked = masked_targets(np.arange(1, 60, 3), np.arange(20) + 5)
        batch = PretrainingBatch(inputs, masked, None)
        options = OptimizerOptions(lr=1e-3, warmup=0.0)
        trainer = Trainer(model, options, total_steps=30, seed=0, dtype=torch.bfloat16)
        losses = [
            float(trainer.step(s, [batch], bert_loss([batch]))["mlm_loss"]) for s in range(30)
        ]
        assert losses[-1] < losses[0] - 0.3, (name, losses)
        still = [n for n, v in model.state_dict().items() if torch.equal(v, before[n])]
        assert still == [], name


# ---------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("family", FAMILIES)
def test_every_head_of_a_family_can_be_made_and_others_are_refused(family: str) -> None:
    made = EXAMPLES[family].config().to_dict()
    config, _ = config_of(made, where="file")
    for head in HEADS:
        if head in FAMILIES[family].heads or HEADS[head].form is not None:
            assert set(EncoderModel(config, heads={head: HEADS[head].outputs or 3}).heads) == {head}
            continue
        with pytest.raises(ModelError, match=f"{FAMILIES[family].title} has no .*Use such a model"):
            EncoderModel(config, heads={head: HEADS[head].outputs or 3})


def test_refusals_name_what_is_missing() -> None:
    assert "RoBERTa has no next-sentence head" in missing_head("roberta", "next_sentence")
    assert "discriminator" in missing_head("electra", "masked_lm", ["replaced"])
    assert "is a generator" in missing_head("electra", "replaced", ["masked_lm"])
    assert "`bothways pretrain`" in missing_head("bert", "masked_lm")
    assert "this model has no head for ordered classes" in missing_head("bert", "ordinal")


def test_verbs_refuse_by_family_and_head(tmp_path: Path) -> None:
    save_model(tmp_path / "d", EncoderModel(_config("electra"), replaced=True), small_tokenizer(97))
    with pytest.raises(ModelError, match="it is a discriminator, which tells replaced tokens"):
        load(tmp_path / "d").fill_mask("w1 [MASK]")
    save_model(
        tmp_path / "r", EncoderModel(_config("roberta"), masked_lm=True), small_tokenizer(97)
    )
    roberta = load(tmp_path / "r")
    with pytest.raises(ModelError, match=r"RoBERTa has no next-sentence head; .*BERT, ALBERT have"):
        roberta.next_sentence("w1", "w2")
    assert len(roberta.fill_mask("w1 [MASK] w2")[0]) == 5
    assert roberta.embed(["w1 w2", "w3"]).shape == (2, 32)


def test_help_and_completion_name_the_families_that_there_are() -> None:
    assert field_types(SizeOptions)["family"].choices == tuple(FAMILIES)


@pytest.mark.parametrize("key", ["is_decoder", "add_cross_attention", "quantization_config"])
@pytest.mark.parametrize("family", ["roberta", "albert", "distilbert", "modernbert"])
def test_keys_that_change_results_are_refused(family: str, key: str) -> None:
    values = {**EXAMPLES[family].config().to_dict(), key: True}
    with pytest.raises(ModelError, match=f"some/config.json: {key} is True; bothways computes"):
        config_of(values, where="some/config.json")


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("albert", {"inner_group_num": 2}, "inner_group_num is 2"),
        ("electra", {"summary_type": "mean"}, "summary_type is 'mean'"),
        ("roberta", {"hidden_act": "quick_gelu"}, "hidden_act is 'quick_gelu'"),
        ("roberta", {"pad_token_id": "x"}, "pad_token_id is 'x'"),
        ("modernbert", {"mlp_bias": True}, "attention_bias and mlp_bias differ"),
        ("modernbert", {"layer_types": ["sliding_attention"] * 4}, "layer_types is"),
        ("modernbert", {"local_attention": "x"}, "does not describe a ModernBERT"),
        ("modernbert", {"local_attention": 1}, "windows of 2 and more"),
        ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling is 'max'"),
        (
            "modernbert",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_type is 'yarn'",
        ),
        ("roformer", {"rotary_value": True}, "rotary_value is True"),
        (
            "roformer",
            {"architectures": ["RoFormerForMultipleChoice"], "summary_type": "last"},
            "'last' reads the last place of a padded row",
        ),
        ("bert", {"model_type": "xlnet"}, "model_type is 'xlnet'; bothways computes bert, roberta"),
        ("bert", {"model_type": ["bert"]}, "model_type is"),
    ],
)
def test_values_that_are_not_computed_are_named(
    family: str, changes: dict[str, Any], message: str
) -> None:
    values = {**EXAMPLES[family].config().to_dict(), **changes}
    with pytest.raises(ModelError, match=message):
        config_of(values, where="file")


def test_unknown_keys_and_those_of_training_are_noted_once(tmp_path: Path) -> None:
    save_model(tmp_path / "m", EncoderModel(_config("distilbert")), small_tokenizer(97))
    path = tmp_path / "m" / "config.json"
    values = {**json.loads(path.read_text()), "new_key": 1, "other_key": 2, "qa_dropout": 0.5}
    path.write_text(json.dumps(values))
    first, second, changed = load_model(tmp_path / "m").notes
    assert "config.json changed since bothways wrote the folder" in changed
    assert first.endswith("qa_dropout is 0.5; bothways trains with 0.1")
    assert second.endswith("does not know and ignores: new_key, other_key")


def _config(name: str) -> ModelConfig:
    return config_of(EXAMPLES[name].config().to_dict(), where="file")[0]


def test_an_untied_output_and_weights_of_no_use() -> None:
    for name in EXAMPLES:
        config = _config(name)
        family, state = family_of(config), EncoderModel(config, masked_lm=True).state_dict()
        theirs = to_theirs(state, config)
        table = theirs[f"{family.prefix}.{family.tokens}"]
        given = {**theirs, family.tied: table.clone(), "embeddings.position_ids": torch.arange(3)}
        given["crf.transitions"] = torch.zeros(2)
        assert from_theirs(given, config, "file")[1] == ["crf.transitions"]
        given[family.tied] = table + 1
        weights = account_for(stored(given), config, where="file")
        assert re.search(f"file: .*{family.tied}.* differs", weights.refused["masked_lm"])
        assert "masked_lm" not in weights.heads
        del given[f"{family.prefix}.{family.tokens}"]
        found, unused = from_theirs(given, config, "file")  # stored once, under its other name
        assert unused == ["crf.transitions"]
        assert torch.equal(found["encoder.embeddings.tokens.weight"][: len(table)], table + 1)


def test_a_base_model_saved_alone_and_layers_beyond_the_config() -> None:
    for name in EXAMPLES:
        config = _config(name)
        family, state = family_of(config), EncoderModel(config).state_dict()
        bare = {n.removeprefix(f"{family.prefix}."): v for n, v in to_theirs(state, config).items()}
        converted, unused = from_theirs(bare, config, "file")
        assert unused == []
        assert converted.keys() == state.keys()
        if config.distinct_layers > 1:
            fewer = replace(config, layers=config.distinct_layers - 1, groups=0)
            with pytest.raises(ModelError, match=f"layers beyond the {fewer.layers} "):
                from_theirs(bare, fewer, "file")


def test_shapes_of_no_family_come_back_and_are_not_taken_for_one(tmp_path: Path) -> None:
    config = replace(
        _config("bert"), norm_at="pre", final_norm=True, embedding=24, window=3, global_every=2
    )
    model = EncoderModel(config, masked_lm=True)
    perturb(model)
    with torch.no_grad():
        model.embedding_VH[config.vocab_size :] = 0
    save_model(tmp_path / "m", model.eval(), small_tokenizer(97))
    found = load_model(tmp_path / "m")
    assert (found.config, found.unused, found.notes) == (config, [], [])
    state = network_of(found).state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    with pytest.raises(ValueError, match="bothways-bert"):
        transformers.AutoModel.from_pretrained(tmp_path / "m")


def test_two_heads_of_one_name_are_not_saved_together() -> None:
    config = _config("modernbert")
    state = EncoderModel(config, masked_lm=True, classes=3).state_dict()
    with pytest.raises(ModelError, match=r"masked_lm, classifier have the same names.*head\.dense"):
        to_theirs(state, config)


@torch.no_grad()
def test_rotary_positions_far_from_the_start(tmp_path: Path) -> None:
    """Their table is of fp64, our angles are of fp32; what we write is their table to the bit."""
    theirs = EXAMPLES["roformer"].model("Model", max_position_embeddings=1536)
    found = loaded(theirs, tmp_path / "theirs")
    inputs, batch = batch_of(EXAMPLES["roformer"], lengths=(1536, 700))
    states = network_of(found).encoder(inputs)[: int(inputs.bounds[-1])]
    _close(states, flat(theirs(**batch).last_hidden_state, batch))
    save_model(tmp_path / "ours", network_of(found), found.tokenizer)
    again = transformers.AutoModel.from_pretrained(tmp_path / "ours")
    assert torch.equal(again.encoder.embed_positions.weight, theirs.encoder.embed_positions.weight)


def test_another_table_of_positions_is_refused(tmp_path: Path) -> None:
    theirs = EXAMPLES["roformer"].model("ForMaskedLM")
    with torch.no_grad():
        theirs.roformer.encoder.embed_positions.weight[3] += 0.1
    with pytest.raises(ModelError, match=r"embed_positions\.weight is not the table"):
        loaded(theirs, tmp_path)


# ------------------------------------------------------------------------------------ head registry


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("lstm", [0, 5])
def test_weights_and_shapes_are_known_without_the_network(name: str, lstm: int) -> None:
    config = _config(name)
    odd = replace(config, norm_at="pre", final_norm=True, embedding=24, window=3, global_every=2)
    for shape in (config, odd):
        for head in forms_of(shape):
            heads = {head: HEADS[head].outputs or 3}
            state = EncoderModel(shape, heads=heads, lstm=lstm).state_dict()
            expected = parameters(
                shape, heads, lstm=lstm, pooler=has_pooler(shape, heads, lstm=bool(lstm))
            )
            shapes = {name: parameter.shape for name, parameter in expected.items()}
            assert {name: tuple(value.shape) for name, value in state.items()} == shapes


def test_a_new_head_changes_no_other_heads_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    config = _config("bert")
    old: dict[str, Any] = {"masked_lm": True, "next_sentence": True, "classes": 3}
    before = EncoderModel(config, seed=5, **old).state_dict()
    form = HeadForm({"dense": "dummy.dense", "output": "dummy.output"}, dense=True)
    dummy = {"dummy": Head(99, "tokens", "dummy head", form=form)}
    monkeypatch.setattr("bothways.model.model.HEADS", {**dummy, **HEADS})
    monkeypatch.setattr("bothways.families.heads.HEADS", {**dummy, **HEADS})
    model = EncoderModel(config, seed=5, heads={"dummy": 7}, **old)
    after = model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert after["dummy.output.weight"].shape == (7, 32)
    assert model.logits("dummy", torch.zeros(4, 32)).shape == (4, 7)


def test_keys_of_heads_are_their_own() -> None:
    """But for choices, which were classes in 0.1."""
    keys = [head.key for name, head in HEADS.items() if name != "choice"]
    assert len(set(keys)) == len(keys)
    assert {name: head.key for name, head in HEADS.items()} == {
        **{"masked_lm": 0, "next_sentence": 1, "classifier": 2, "tagger": 3, "span": 4},
        **{"choice": 2, "replaced": 6, "ordinal": 7},
    }
    assert POOLER_KEY == 5


# ------------------------------------------------------------------------------- a real checkpoint


@pytest.mark.slow
@torch.no_grad()
def test_the_albert_of_rxnmapper() -> None:
    spec = importlib.util.find_spec("rxnmapper")
    if spec is None or spec.origin is None:
        pytest.skip("the package rxnmapper is not installed")
    folder = Path(spec.origin).parent / "models/transformers/albert_heads_8_uspto_all_1310k"
    compare_real(folder)


def compare_real(folder: Path) -> float:
    """The largest difference of hidden states from transformers', by their scale."""
    values = json.loads((folder / "config.json").read_text())
    config, _ = config_of(values, where="config.json")
    path, theirs = stored_weights(folder, [])
    weights = account_for(
        theirs, config, where=str(path), architectures=values.get("architectures") or []
    )
    model = EncoderModel(config, heads=weights.heads)
    model.load_state_dict({n: torch.from_numpy(v) for n, v in weights.items()}, strict=False)
    network = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, config.vocab_size, (4, 100), generator=generator)
    out = network(ids, output_hidden_states=True)
    inputs = collate(ids.tolist(), torch.zeros_like(ids).tolist(), max_positions=512)
    worst = 0.0
    for ours, expected in zip(
        model.eval().encoder.hidden_states(inputs), out.hidden_states, strict=True
    ):
        expected = expected.flatten(0, 1)
        apart = (ours[: len(expected)] - expected).abs().max() / expected.abs().max()
        worst = max(worst, float(apart))
    assert worst <= TOLERANCE
    return worst
