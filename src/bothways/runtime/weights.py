"""The weights of a model folder: which there are, whose they are, and their values when asked.

Each weight of a file is accounted for: used under our name, known to be redundant, or named as
unused. Names and shapes come from the files' headers; values are read when an engine wants them.
In memory the three attention projections are one matrix and the vocabulary is padded to a multiple
of 64; on disk neither is the case.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, TensorSpec, serialize_file

from bothways.errors import InputError, ModelError, NonFiniteError
from bothways.families import NETWORKS, Family, HeadForm, ModelConfig, family_of
from bothways.families.family import (
    Part,
    encoder_names,
    head_names,
    heads_of,
    layer_number,
    modern_name,
)
from bothways.families.heads import (
    CHOICE,
    CLASSIFIER,
    HEADS,
    LSTM,
    LSTM_WEIGHTS,
    MASKED_LM,
    ON_LSTM,
    TAGGER,
    form_of,
    forms_of,
    has_pooler,
    parameters,
)
from bothways.families.parameters import Parameter, Table
from bothways.io.folder_files import checked, is_there
from bothways.io.json_files import read_json_file
from bothways.runtime import diagnosis
from bothways.runtime.stored import (
    OLD_WEIGHTS,
    WEIGHTS,
    Floats,
    Stored,
    damaged,
    read_tensors,
)

_INDEX = ".index.json"  # WEIGHTS + _INDEX says which part holds which weight
_NAMES = (WEIGHTS, WEIGHTS + _INDEX, OLD_WEIGHTS, OLD_WEIGHTS + _INDEX)
# Constants in files made elsewhere.
_REDUNDANT = re.compile(
    r"(^|\.)(position_ids|token_type_ids|(\w+_)?inv_freq|attn\.(masked_)?bias)$"
)
# What wrappers of single modules leave inside names: of compiling, FSDP, recomputing, XLA.
_INSIDE = re.compile(
    r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_fpw_module|_checkpoint_wrapped_module|_orig_module)\."
)
TABLE = "encoder.embeddings.tokens.weight"
"""The name of the token table in memory."""


# ---------------------------------------------------------------------------------- names and heads


def name_table(
    config: ModelConfig, heads: Iterable[str], *, lstm: bool = False
) -> dict[str, tuple[Part, ...]]:
    """The name of every weight in memory -> its part or parts on disk.

    Args:
        config: the shape.
        heads: of the model.
        lstm: whether there is a BiLSTM under the task head.
    """
    table = encoder_names(family_of(config), config)
    forms = _forms(config, lstm=lstm)
    for name in heads:
        table |= head_names(forms[name], name)
    if lstm:
        table |= {name: (Part(name),) for name in LSTM_WEIGHTS}
    return table


def _forms(config: ModelConfig, *, lstm: bool) -> dict[str, HeadForm]:
    """The forms of all heads, by the names that they have in files.

    transformers has no class for a BiLSTM under the task head. It and its head have names of our
    own, so that no class of transformers loads them by mistake.
    """
    forms = dict(forms_of(config))
    for name in [name for name, head in HEADS.items() if lstm and head.task]:
        own = CLASSIFIER if name == CHOICE else name  # in 0.1 a head on choices was one on texts
        forms[name] = HeadForm({part: f"{LSTM}.{own}.{part}" for part in ON_LSTM.names})
    return forms


def constants(config: ModelConfig) -> dict[str, Floats]:
    """What files of a family hold beside weights, by the names there: the table of rotary
    positions, sines before cosines, which transformers misses if it is not there."""
    family = family_of(config)
    if not family.sinusoids or config.place != "rotary":
        return {}
    pairs = np.arange(0, config.head_size, 2) / config.head_size
    angles = (
        np.arange(config.positions)[:, None] / config.rotary_global**pairs
    )  # in fp64, as theirs
    table = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)
    return {f"{family.prefix}.{family.sinusoids}": table}


def heads_in(state: Iterable[str]) -> list[str]:
    """The heads that weights under our names are of."""
    present = {name.partition(".")[0] for name in state}
    return [name for name in HEADS if name in present]


def has_lstm(names: Iterable[str]) -> bool:
    """Whether these names of weights, in memory or on disk, include a BiLSTM's."""
    return any(name in LSTM_WEIGHTS for name in names)


def parts_in(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, int], int]:
    """The heads that weights under our names and with these shapes are of, with their numbers of
    outputs; and the units of each direction of a BiLSTM, 0 without one."""
    heads = {n: HEADS[n].outputs or shapes[f"{n}.output.weight"][0] for n in heads_in(shapes)}
    widths = [shapes[f"{name}.output.weight"][1] for name in heads if HEADS[name].task]
    return heads, max(widths, default=0) // 2 if has_lstm(shapes) else 0


# --------------------------------------------------------------------------------- a file's weights


def stored_weights(folder: Path, notes: list[str]) -> tuple[Path, dict[str, Stored]]:
    """A folder's weights by name, and the file to name in messages: that of the weights, or of
    parts their index.

    Args:
        folder: of a model.
        notes: takes what a user should know, as sentences.

    Raises:
        ModelError: a file is missing or damaged, or holds more than weights.
    """
    whole = _whole_or_index(folder)
    part_of = _listed(whole) if whole.suffix == ".json" else {}
    weights: dict[str, Stored] = {}
    for file in weight_files(folder):
        try:
            own = read_tensors(checked(file), notes)
        except InputError as error:
            raise ModelError(str(error)) from None
        # Of a weight in two parts, the one that the index means.
        weights |= {
            name: value
            for name, value in own.items()
            if name not in weights or part_of.get(name, file.name) == file.name
        }
    return whole, weights


def weight_files(folder: Path) -> list[Path]:
    """The files that :func:`stored_weights` reads.

    Raises:
        ModelError: there are none, the index is damaged, or a part is missing.
    """
    path = _whole_or_index(folder)
    if path.suffix != ".json":
        return [path]
    names = sorted(set(_listed(path).values()))
    for name in names:
        if not is_there(folder / name):
            raise ModelError(
                f"{path} lists {name}, which is not in the folder; copy all {len(names)} parts of "
                "the weights into it."
            )
    return [folder / name for name in names]


def has_weights(folder: Path) -> bool:
    """Whether a folder has weights, whole or in parts."""
    return any(is_there(folder / name) for name in _NAMES)


def _whole_or_index(folder: Path) -> Path:
    for name in _NAMES:
        if is_there(folder / name):
            return folder / name
    instead = diagnosis.instead_of_weights(folder)
    raise ModelError(
        f"{folder} holds neither {WEIGHTS} nor {OLD_WEIGHTS}{f' ({instead})' if instead else ''}."
    )


def _listed(index: Path) -> dict[str, str]:
    """The part that each weight is in."""
    kind = Path(index.name.removesuffix(_INDEX)).suffix
    try:
        part_of: dict[str, str] = read_json_file(checked(index))["weight_map"]
        names = sorted(set(part_of.values()))
        # The parts lie next to the index: a path that leads elsewhere is not followed.
        if wrong := [n for n in names if Path(n).name != n or Path(n).suffix != kind]:
            raise ValueError(f"{wrong[0]!r} is not the name of a {kind} file")
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(index, error) from None
    return part_of


# ---------------------------------------------------------------------------- each is accounted for


@dataclass(frozen=True, eq=False)
class Weights(Mapping[str, Floats]):
    """The weights of a file under our names and in our shapes: contiguous, in fp32, with padding
    rows of zeros. Values are read whenever they are asked for.

    Attributes:
        config: the encoder's shape.
        rows: of the token table in the file; those beyond the shape's vocabulary are left out.
        parts: of each weight, what it is made of in the file.
        heads: that the file has, with their numbers of outputs.
        lstm: units of each direction of a BiLSTM under the task head; 0 without one.
        unused: names in the file that are not used here.
        dtype: of the file's weights, such as ``float32``, which it is if they differ.
        refused: heads that the file has and that are not computed -> why.
    """

    config: ModelConfig
    rows: int
    parts: Mapping[str, tuple[Stored, ...]]
    heads: Mapping[str, int]
    lstm: int
    unused: list[str]
    dtype: str
    refused: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def table(self) -> Table:
        """What a network as this one has."""
        return parameters(self.config, self.heads, lstm=self.lstm)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every weight, by our name."""
        shapes = _shapes(self.parts)
        for name, shape in shapes.items():
            if self._pieces(name) is not None and shape[:1] == (self.rows,):
                shapes[name] = (self.table[name].shape[0], *shape[1:])
        return shapes

    def _pieces(self, name: str) -> int | None:
        return self.table[name].pieces if name in self.table else None

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, name: str) -> Floats:
        values = [part.values() for part in self.parts[name]]
        value = values[0] if len(values) == 1 else np.concatenate(values)
        pieces = self._pieces(name)
        if pieces is None:
            return value
        extra = self.table[name].shape[0] - pieces
        return np.pad(value[:pieces], [(0, extra), *[(0, 0)] * (value.ndim - 1)])


def refuse_hidden(weights: Weights, where: str) -> None:
    """Refuse queries and keys that are not finite: fused attention gives numbers for them, where
    every other such weight is seen in the outputs.

    Raises:
        NonFiniteError: naming the weight.
    """
    for name in weights:
        if ".attention.qkv." in name and not all(
            np.isfinite(part.values()).all() for part in weights.parts[name]
        ):
            raise NonFiniteError(
                f"{where}: {name} is not finite; training diverged, or the file is damaged."
            )


def write_weights(path: Path, weights: Weights) -> None:
    """Write weights as their family's files have them: the bits that were read, in its names.

    Raises:
        ModelError: two heads that have the same names in a file.
        OSError: it could not be written.
    """
    found = weights_by_name(weights)
    for name, value in constants(weights.config).items():
        found[name] = _rounded(value, weights.dtype)
    specs = {  # found keeps what they point to
        name: TensorSpec(
            dtype=weights.dtype, shape=data.shape, data_ptr=data.ctypes.data, data_len=data.nbytes
        )
        for name, data in found.items()
    }
    try:
        serialize_file(specs, path, {"format": "pt"})
    except SafetensorError as error:  # raised for a failed write
        raise OSError(str(error)) from error


def weights_by_name(weights: Weights, *, floats: bool = False) -> dict[str, NDArray[Any]]:
    """Weights by the names in their family's files: the bits that were read, or in fp32.

    Raises:
        ModelError: two heads that have the same names in a file.
    """
    config = weights.config
    found: dict[str, NDArray[Any]] = {}
    table = name_table(config, weights.heads, lstm=bool(weights.lstm))
    for ours, parts in weights.parts.items():
        for place, part in zip(table[ours], parts, strict=True):
            if place.name in found:
                raise ModelError(same_names(weights.heads, config, place.name))
            same = part.dtype == weights.dtype and not floats
            data = part.whole() if same else part.values()
            rows = place.formed(data[: weights.table[ours].pieces])
            found[place.name] = np.ascontiguousarray(rows)
    return found


def _rounded(values: Floats, dtype: str) -> NDArray[Any]:
    """Finite values in another type; bfloat16, which NumPy lacks, as uint16."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # half to even, as torch


def same_names(heads: Iterable[str], config: ModelConfig, name: str) -> str:
    """That two heads cannot be in one file, as a message."""
    return (
        f"the heads {', '.join(heads)} have the same names in a file of {family_of(config).title}, "
        f"among them {name}; save them in folders of their own."
    )


def account_for(
    theirs: Mapping[str, Stored],
    config: ModelConfig,
    *,
    where: str,
    architectures: Sequence[str] = (),
    tied: bool = True,
) -> Weights:
    """Which of a file's weights are used, and as what.

    Args:
        theirs: weights, with or without the family's prefix, possibly with old LayerNorm names,
            and with what wrappers put before all names.
        config: the shape they should have.
        where: the file, for error messages.
        architectures: the classes that config.json names, which decide between heads of one name.
        tied: whether the output embedding is the token table where the file has it once.

    Returns:
        What is used, and the names of what is not. Of two output biases of the masked LM the
        decoder's is used, as in transformers, and the other is among those names if it differs.
        A masked-LM head whose output embedding is not the token table is refused, not used.

    Raises:
        ModelError: another table of positions than is computed here, a vocabulary of another size,
            projections that cannot be stacked, weights of whole numbers, weights of more layers
            than the shape has, a task head without outputs, or a BiLSTM without a head.
    """
    family = family_of(config)
    bare = {n.removeprefix(f"{family.prefix}.") for n in _flat(encoder_names(family, config))}
    bare |= {family.sinusoids} - {""}
    remaining: dict[str, Stored] = {}
    wrapper = _wrapper(theirs, family, where, architectures)
    for name, value in theirs.items():
        modern = modern_name(family, _INSIDE.sub("", name).removeprefix(wrapper), bare)
        if modern in remaining and not _equal(remaining[modern], value):
            raise ModelError(
                f"{where} holds {modern} twice, with other values under {name}; save only the "
                "model's state_dict()."
            )
        remaining[modern] = value
    floating = {value.dtype for value in remaining.values() if "float" in value.dtype}
    table = f"{family.prefix}.{family.tokens}"
    if tied and table not in remaining and family.tied in remaining:
        remaining[table] = remaining[family.tied]  # stored once, under its other name
    untied = config.tied and _is_untied(remaining, family, tied=tied)
    if config.tied:
        remaining.pop(family.tied, None)
    remaining = {n: v for n, v in remaining.items() if not _REDUNDANT.search(n)}
    _refuse_other_constants(remaining, config, where)
    left_out = _choose_bias(remaining, family)
    refused = {}
    if untied:
        others = words_head_names(config) - {family.tied}
        left_out += [family.tied, *(n for n in others if remaining.pop(n, None) is not None)]
        refused[MASKED_LM] = (
            f"{where}: the masked-LM output embedding ({family.tied}) differs from the input "
            "embedding; bothways computes them tied, so the logits would change. Everything but "
            "this head can be used."
        )
    lstm = has_lstm(remaining)
    classes = [family.classes.get(name, ()) for name in architectures]
    found = heads_of(_forms(config, lstm=lstm), classes, remaining)
    found = _of_one_task(found, classes, where)
    names_of = name_table(config, found, lstm=lstm)
    entries = parameters(config, {})
    parts: dict[str, tuple[Stored, ...]] = {}
    for ours, places in names_of.items():
        if all(place.name in remaining for place in places):
            own = {place.name: remaining.pop(place.name) for place in places}
            _refuse_whole_numbers(own, where)
            _check_parts(ours, own, entries.get(ours), config, where)
            parts[ours] = tuple(own[place.name].formed(place) for place in places)
    unused = sorted([*remaining, *left_out])
    known = set(_flat(names_of))  # without others, missing ones
    _refuse_other_layers([name for name in unused if name not in known], config, where)
    shapes = _shapes(parts)
    _refuse_odd_heads(shapes, where)
    heads, units = parts_in(shapes)
    without = [name for name in found if not any(n.startswith(f"{name}.") for n in names_of)]
    heads = {name: HEADS[name].outputs for name in without} | heads
    if lstm and not any(HEADS[head].task for head in heads):
        raise ModelError(f"{where}: holds a BiLSTM but no head on top of it; it is incomplete.")
    dtype = floating.pop() if len(floating) == 1 else "float32"
    return Weights(config, config.vocab_size, parts, heads, units, unused, dtype, refused)


def _of_one_task(found: Sequence[str], classes: Sequence[tuple[str, ...]], where: str) -> list[str]:
    """Of the heads in a file at most one task's: that which config.json names.

    Raises:
        ModelError: there are several, and it names none.
    """
    tasks = [name for name in found if HEADS[name].task]
    named = [name for own in classes for name in own if name in tasks]
    if len(tasks) > 1 and not named:
        raise ModelError(
            f"{where} holds several heads of tasks ({', '.join(tasks)}), and config.json does not "
            "say which is meant: write its class to architectures."
        )
    others = [name for name in tasks if named and name != named[0]]
    return [name for name in found if name not in others]


def _flat(table: Mapping[str, tuple[Part, ...]]) -> Iterable[str]:
    return (part.name for part in chain.from_iterable(table.values()))


def _shapes(parts: Mapping[str, tuple[Stored, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of weights whose parts are stacked."""
    return {
        name: own[0].shape
        if len(own) == 1
        else (sum(part.shape[0] for part in own if part.shape), *own[0].shape[1:])
        for name, own in parts.items()
    }


def _choose_bias(weights: dict[str, Stored], family: Family) -> list[str]:
    """Keep one output bias of the masked LM; the name of the other if it differs."""
    used = weights.pop(family.twin_bias, None)
    if used is None:
        return []
    name = family.heads[MASKED_LM].names["bias"]
    other, weights[name] = weights.get(name), used
    return [] if other is None or _equal(other, used) else [name]


def _is_untied(weights: Mapping[str, Stored], family: Family, *, tied: bool) -> bool:
    """Whether the file has a masked-LM head with another output embedding than the token table."""
    output, table = weights.get(family.tied), weights.get(f"{family.prefix}.{family.tokens}")
    if table is None or MASKED_LM not in family.heads:
        return False
    if output is None:
        head = _flat(head_names(family.heads[MASKED_LM], MASKED_LM))
        return not tied and any(name in weights for name in head)
    return not _equal(output, table)


def whole_heads_names(config: ModelConfig, names: Iterable[str]) -> set[str]:
    """Which of these names in a file are of heads that are whole among them."""
    own = set(names)
    tables = (set(_flat(head_names(form, name))) for name, form in forms_of(config).items())
    return set().union(*(table for table in tables if table <= own))


def words_head_names(config: ModelConfig) -> set[str]:
    """The names in files of the masked-LM head's weights, under any of which it may be stored."""
    family = family_of(config)
    if MASKED_LM not in family.heads:
        return set()
    names = set(_flat(head_names(family.heads[MASKED_LM], MASKED_LM)))
    return names | {family.tied, family.twin_bias} - {""}


def _wrapper(
    theirs: Iterable[str], family: Family, where: str, architectures: Sequence[str]
) -> str:
    """What a wrapper put before all names: ``module.`` of data parallelism, ``_orig_mod.`` of
    compiling, ``model.``, ``0.auto_model.`` and the like, however stacked.

    It stands before the name of the token table (or of the output embedding, where the file has
    only that).

    Raises:
        ModelError: two encoders, or one of another family.
    """
    names = [_INSIDE.sub("", name) for name in theirs]
    for anchor in (family.tokens, family.tied):
        ends = {n[: -len(anchor)] for n in names if n == anchor or n.endswith("." + anchor)}
        if ends:
            break
    if len(ends) > 1:
        raise ModelError(
            f"{where} holds several encoders ({', '.join(sorted(e + anchor for e in ends))}); save "
            "the one that is meant by itself."
        )
    prefix = next(iter(ends), "")
    wrapper = re.sub(rf"(^|(?<=\.)){re.escape(family.prefix)}\.$", "", prefix)
    for other in NETWORKS.values():  # whose sizes may fit, with positions of another meaning
        named = [name for name in architectures if name in other.classes]
        if named and other.prefix != family.prefix and wrapper.endswith(f"{other.prefix}."):
            raise ModelError(
                f"{where}: the weights are named as those of {other.title}, and config.json names "
                f"{named[0]}, but its model_type is {family.model_type!r}; it should be "
                f"{other.model_type!r}."
            )
    return wrapper


def _refuse_whole_numbers(weights: Mapping[str, Stored], where: str) -> None:
    for name, value in weights.items():
        if "float" not in value.dtype:
            raise ModelError(
                f"{where}: {name} holds numbers of the type {value.dtype}, which are no weights; a "
                "quantised model is not read here."
            )


def _refuse_other_constants(weights: dict[str, Stored], config: ModelConfig, where: str) -> None:
    """Take out what is computed here, and refuse other values than those, but for rounding."""
    for name, value in constants(config).items():
        found = weights.pop(name, None)
        if found is not None and not (
            found.shape == value.shape and np.allclose(found.values(), value, rtol=0, atol=0.01)
        ):
            raise ModelError(
                f"{where}: {name} is not the table of positions that config.json calls for, which "
                "bothways computes."
            )


def _equal(one: Stored, other: Stored) -> bool:
    """Whether two weights have the same values. But for tables of positions, the only case in which
    values are read here."""
    return one.shape == other.shape and np.array_equal(one.values(), other.values())


def _check_parts(
    ours: str,
    parts: Mapping[str, Stored],
    entry: Parameter | None,
    config: ModelConfig,
    where: str,
) -> None:
    shapes = {name: part.shape for name, part in parts.items()}
    if len(parts) > 1 and entry and list(shapes.values()) != (wanted := entry.stored(len(parts))):
        differing = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ModelError(
            f"{where}: {differing}; config.json calls for {', '.join(map(str, wanted))}; the "
            "folder's files do not belong together."
        )
    if ours == TABLE:
        (shape,) = shapes.values()
        if len(shape) != 2 or shape[0] != config.vocab_size:
            raise ModelError(
                f"{where}: the token embedding has shape {shape} but config.json says "
                f"vocab_size {config.vocab_size}; the folder's files do not belong together."
            )


def _refuse_other_layers(unused: Iterable[str], config: ModelConfig, where: str) -> None:
    """Refuse weights of more layers than config.json has, and those of layers that have more parts
    (adapters): without these the network would compute something else, without an error."""
    family, count = family_of(config), config.distinct_layers
    numbers = {name: layer_number(family, name) for name in unused}
    extra = [name for name, number in numbers.items() if number is not None and number >= count]
    if extra:
        raise ModelError(
            f"{where} holds weights of layers beyond the {count} that config.json calls for, "
            f"such as {extra[0]}; the folder's files do not belong together."
        )
    inside = [name for name, number in numbers.items() if number is not None]
    if inside:
        raise ModelError(
            f"{where} holds {len(inside)} weights of the encoder's layers that bothways does not "
            f"compute, such as {inside[0]}: without these its outputs would be others."
        )


def _refuse_odd_heads(shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Refuse a head whose weight does not tell its outputs and the size of its inputs."""
    for head in heads_in(shapes):
        shape = shapes.get(f"{head}.output.weight", ())
        if HEADS[head].reads != "masked" and (len(shape) != 2 or not math.prod(shape)):
            raise ModelError(
                f"{where}: the weight of the head {head} is missing or has another shape than "
                f"(outputs, hidden size): {shape}; the file is damaged or incomplete."
            )


def reads_pooler(weights: Weights) -> bool:
    """Whether the network has a pooler: the file does, or by its heads and family."""
    if any(name.startswith("encoder.pooler.") for name in weights):
        return True
    if not weights.heads and not family_of(weights.config).keeps_pooler:
        return False
    return has_pooler(weights.config, weights.heads, lstm=bool(weights.lstm))


def missing_weights(weights: Weights, path: Path, *, pooler: bool) -> list[str]:
    """The weights of a pooler that the file lacks, and which are newly initialised.

    Raises:
        ModelError: others are missing, a head reads the pooler, or a weight has another shape.
    """
    config, lstm = weights.config, weights.lstm
    expected = parameters(config, weights.heads, lstm=lstm, pooler=pooler)
    names, found = name_table(config, weights.heads, lstm=bool(lstm)), weights.shapes
    missing = [name for name in expected if name not in found]
    fatal = [name for name in missing if not name.startswith("encoder.pooler.")]
    on_encoder = [name for name in weights.heads if not (lstm and HEADS[name].task)]
    if missing and not fatal and any(form_of(name, config).pooled for name in on_encoder):
        raise ModelError(
            f"{path} has a head for whole texts, which reads the pooler's output, but no weights "
            f"of the pooler: the file is incomplete, or architectures in config.json should be "
            f"{family_of(config).class_of([TAGGER])}."
        )
    if fatal:
        raise ModelError(
            f"{path} lacks {len(fatal)} of the weights that config.json calls for, among them "
            f"{', '.join(names[name][0].name for name in fatal[:3])}; the file is incomplete or "
            "has another architecture."
        )
    if other := [name for name in found if name not in expected]:
        raise ModelError(
            f"{path} holds {names[other[0]][0].name}, which a network as config.json describes it "
            "does not have; the folder's files do not belong together."
        )
    for name, shape in found.items():
        if shape != expected[name].shape:
            called = " + ".join(part.name for part in names[name])
            raise ModelError(
                f"{path}: {called} has shape {shape}, config.json calls for "
                f"{expected[name].shape}; the folder's files do not belong together."
            )
    return missing
