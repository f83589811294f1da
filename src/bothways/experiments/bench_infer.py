"""Vectors of texts, by our engines and by other libraries: :mod:`.bench`, `infer`.

Every contender is a whole product: texts in, one vector each out (the mean over the tokens), and
tokenizing is part of the time. All have the same number of threads, are warmed, and take turns;
batches are sorted by length, and those of graphs driven by hand have as many tokens as suits them.

N texts, B sequences and L tokens of the longest of a batch, T tokens of a batch, H hidden size.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.errors import ConfigError
from bothways.experiments.options import BenchInferConfig
from bothways.families.config import ModelConfig
from bothways.io.files import write_json
from bothways.io.terminal import counted
from bothways.model.batch import collate
from bothways.model.device import DTYPES, borrowed_process, matrix_rate, set_threads
from bothways.model.engine import load_network
from bothways.model.flops import forward_operations
from bothways.runtime.embeddings import embed_texts
from bothways.runtime.engine import EngineOptions
from bothways.runtime.folder import LoadedModel, load_model
from bothways.runtime.texts import file_texts
from bothways.shipped import model_folder
from bothways.tasks.examples import length_batches
from bothways.tokenization.tokenizer import Tokenizer
from bothways.training.runfolder import versions

Vectors = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Vectors]
"""Texts -> [N, H]."""
Say = Callable[[str], None]

_REFERENCE = 256
"""Texts whose vectors are compared with those of fp64."""
_SINGLES = 40
"""Calls with one text in a round."""
_SETTLED = 0.2
"""Seconds before a contender's turn: threads of the last one may still wait for work in a loop, as
onnxruntime's do for 70 ms unless they are told otherwise, and take a core from it."""
_BY_HAND = 512
"""Tokens of a batch of graphs driven by hand: both take least time from about so many."""
_ONE = "How far is it from here to the sea?"
_PEERS = ("sentence-transformers", "transformers", "onnxruntime", "openvino")


class NotHereError(Exception):
    """A contender cannot run here; the reason."""


@dataclass(frozen=True)
class InferResult:
    """One contender.

    Attributes:
        name: of the contender.
        seconds: for all texts, of each round.
        texts_per_second: median over the rounds.
        one_text_ms: median of calls with a single short text.
        share_of_rate: fraction of the rate of large matrix products in its precision; None where
            that rate is not known.
        cosine, lowest_cosine: with the vectors of fp64, mean and lowest.
    """

    name: str
    seconds: list[float]
    texts_per_second: float
    one_text_ms: float
    share_of_rate: float | None
    cosine: float
    lowest_cosine: float


@borrowed_process()
def bench_infer(options: BenchInferConfig, *, say: Say = print) -> list[InferResult]:
    """Time the contenders, print a table and, if requested, write JSON. Those that cannot run here
    are named with the reason.

    Raises:
        ConfigError: an unknown contender, or none that can run.
        ModelError, InputError: the folder or the texts cannot be read.
    """
    for name in options.contenders:
        if name not in CONTENDERS:
            raise ConfigError(f"unknown contender {name!r}; choose from {', '.join(CONTENDERS)}.")
    threads = set_threads(options.threads)
    # Read when the tokenizers' library first starts its threads.
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    loaded = load_model(options.model)
    texts = _texts(options, loaded)
    lengths = np.array([len(e) for e in _encoded(loaded.tokenizer, texts, loaded.config)])
    operations = forward_operations(loaded.config, lengths)
    say(
        f"{options.model}: {counted(loaded.config.layers, 'layer')}, hidden "
        f"{loaded.config.hidden}; "
        f"{len(texts):,} texts of {lengths.mean():.1f} tokens (longest {lengths.max()}); "
        f"{counted(threads, 'thread')}; load {os.getloadavg()[0]:.1f}"
    )
    rates: dict[str, float] = {name: matrix_rate(dtype) for name, dtype in DTYPES.items()}
    say(", ".join(f"{n} matrix products: {r / 1e9:,.0f} GFLOP/s" for n, r in rates.items()))
    setting = Setting(str(model_folder(options.model)), loaded.tokenizer, loaded.config, threads)
    embed: dict[str, Embed] = {}
    for name in options.contenders:
        try:
            with ExitStack() as quiet:  # bars and warnings of the others
                sink = quiet.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
                quiet.enter_context(redirect_stdout(sink))
                quiet.enter_context(redirect_stderr(sink))
                made = CONTENDERS[name](setting)
                made(texts), made([_ONE])
            embed[name] = made
        except (NotHereError, ImportError) as error:
            say(f"  {name}: left out: {error}")
        except Exception as error:
            if name.startswith("bothways"):
                raise
            say(f"  {name}: left out, it failed: {type(error).__name__}: {error}")
    if not embed:
        raise ConfigError("none of the contenders can run here.")
    expected = reference_vectors(options.model, texts[:_REFERENCE])
    seconds, singles, found = _time(embed, texts, options.rounds)
    results = []
    for name, own in seconds.items():
        rate, kind = len(texts) / statistics.median(own), _precision_of(name)
        share = rate / len(texts) * operations / rates[kind] if kind in rates else None
        cosines = _cosines(found[name][:_REFERENCE], expected)
        one = 1e3 * statistics.median(singles[name])
        results.append(
            InferResult(name, own, rate, one, share, float(cosines.mean()), float(cosines.min()))
        )
    say(_table(results))
    if options.out:
        record = {
            "options": asdict(options),
            "versions": {**versions(), **_versions(), "system": platform.platform()},
            "threads": threads,
            "load": os.getloadavg(),
            "tokens_per_text": float(lengths.mean()),
            "operations": operations,
            "matrix_flops_per_second": rates,
            "results": [asdict(result) for result in results],
        }
        write_json(Path(options.out), record)
    return results


def _texts(options: BenchInferConfig, loaded: LoadedModel) -> list[str]:
    """The first of a file, or made up of the vocabulary's words."""
    if options.texts is not None:
        found = file_texts(Path(options.texts), loaded, text=options.text).texts
        return list(found[: options.count])
    rng = np.random.default_rng(0)
    pieces = map(loaded.tokenizer.piece, range(loaded.tokenizer.vocab_size))
    words = [piece for piece in pieces if piece.isalpha() and piece.isascii()]
    sizes = np.clip(rng.lognormal(3.4, 0.5, options.count), 4, 200).astype(int)
    return [" ".join(rng.choice(words, size)) for size in sizes]


def _encoded(tokenizer: Tokenizer, texts: Sequence[str], config: ModelConfig) -> Any:
    return tokenizer.encode_batch(texts, max_length=config.positions)


def _time(
    embed: dict[str, Embed], texts: Sequence[str], rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, Vectors]]:
    """Seconds of each contender for all texts, round by round, and for one; and its vectors."""
    seconds: dict[str, list[float]] = {name: [] for name in embed}
    singles: dict[str, list[float]] = {name: [] for name in embed}
    found: dict[str, Vectors] = {}
    for _ in range(rounds):
        for name, own in embed.items():
            time.sleep(_SETTLED)
            own([_ONE])  # not counted: the others have taken its caches
            start = time.perf_counter()
            found[name] = own(texts)
            seconds[name].append(time.perf_counter() - start)
    for _ in range(rounds):
        for name, own in embed.items():
            time.sleep(_SETTLED)
            for number in range(_SINGLES + 3):
                start = time.perf_counter()
                own([_ONE])
                if number >= 3:
                    singles[name].append(time.perf_counter() - start)
    return seconds, singles, found


def reference_vectors(folder: str | Path, texts: Sequence[str]) -> NDArray[np.float64]:
    """The means over the tokens in fp64, by the plain form of the network, [N, H]."""
    loaded, network = load_model(folder), copy.deepcopy(load_network(folder)).double()
    network.shared.fast = False
    vectors = []
    for encoding in _encoded(loaded.tokenizer, texts, loaded.config):
        inputs = collate([encoding.ids], [encoding.segments], max_positions=loaded.config.positions)
        with torch.no_grad():
            states = network.encoder(inputs, dtype=torch.float64)[: len(encoding)]
        vectors.append(states.mean(0).numpy())
    return np.stack(vectors)


def _cosines(found: NDArray[Any], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    a = found.astype(np.float64)
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(expected, axis=-1)
    cosines: NDArray[np.float64] = (a * expected).sum(-1) / norms
    return cosines


def _precision_of(name: str) -> str:
    return next((kind for kind in ("bf16", "int8") if kind in name), "fp32")


def _table(results: Sequence[InferResult]) -> str:
    lines = [
        f"{'':<28}  texts/s   (rounds)          one text   share of   cosine with fp64",
        f"{'':<28}                                  ms  products       mean    lowest",
    ]
    for result in results:
        rates = [
            result.texts_per_second * statistics.median(result.seconds) / s for s in result.seconds
        ]
        share = "-" if result.share_of_rate is None else f"{result.share_of_rate:.0%}"
        lines.append(
            f"{result.name:<28} {result.texts_per_second:8,.0f}   "
            f"{f'{min(rates):,.0f} to {max(rates):,.0f}':<14} {result.one_text_ms:9.2f} "
            f"{share:>9} {result.cosine:12.6f} {result.lowest_cosine:9.6f}"
        )
    return "\n".join(lines)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


# --------------------------------------------------------------------------------
# The contenders.


@dataclass(frozen=True)
class Setting:
    """What contenders compute with.

    Attributes:
        folder: of the model.
        tokenizer: of the model.
        config: its shape.
        threads: of each computation.
    """

    folder: str
    tokenizer: Tokenizer
    config: ModelConfig
    threads: int


def _ours(engine: str, precision: str) -> Callable[[Setting], Embed]:
    def make(setting: Setting) -> Embed:
        options = EngineOptions(engine, "cpu", precision)  # type: ignore[arg-type]
        loaded = load_model(setting.folder, options=options)
        try:
            # An engine without torch takes the usual number of threads when it is opened.
            with patch.dict(os.environ, OMP_NUM_THREADS=str(setting.threads)):
                _ = loaded.engine
        except ConfigError as error:
            raise NotHereError(str(error).partition(";")[0].rstrip(".")) from None

        def embed(texts: Sequence[str]) -> Vectors:
            found = embed_texts(loaded, texts, pooling="mean", normalize=False).pooled
            assert found is not None
            return found

        return embed

    return make


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise NotHereError(f"{package} is not installed")


def _sentence_transformers(dtype: str) -> Callable[[Setting], Embed]:
    def make(setting: Setting) -> Embed:
        _need("sentence_transformers")
        from sentence_transformers import SentenceTransformer

        kwargs = {"dtype": DTYPES[dtype]}
        model = SentenceTransformer(setting.folder, device="cpu", model_kwargs=kwargs)
        model.max_seq_length = setting.config.positions

        def embed(texts: Sequence[str]) -> Vectors:
            found = model.encode(list(texts), batch_size=32, show_progress_bar=False)
            return np.asarray(found, np.float32)

        return embed

    return make


def _by_hand(setting: Setting, compute: Callable[[dict[str, Any]], NDArray[Any]]) -> Embed:
    """Padded batches, sorted by length within a budget of tokens, for a graph's session."""
    import tokenizers

    path = Path(setting.folder) / "tokenizer.json"
    if not path.exists():
        raise NotHereError("the folder has no tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(setting.config.positions)
    segments = setting.config.segments > 1

    def embed(texts: Sequence[str]) -> Vectors:
        ids = [e.ids for e in tokenizer.encode_batch_fast(list(texts))]
        lengths = np.array([len(row) for row in ids])
        found = np.zeros((len(ids), setting.config.hidden), np.float32)
        for chosen in length_batches(lengths, _BY_HAND):
            tokens = np.zeros((len(chosen), int(lengths[chosen].max())), np.int64)
            for row, n in enumerate(chosen):
                tokens[row, : lengths[n]] = ids[n]
            mask = (np.arange(tokens.shape[1]) < lengths[chosen, None]).astype(np.int64)
            given = {"input_ids": tokens, "attention_mask": mask}
            if segments:
                given["token_type_ids"] = np.zeros_like(tokens)
            states = compute(given)
            sums = np.einsum("bsh,bs->bh", states, mask.astype(np.float32))
            found[chosen] = sums / lengths[chosen, None]
        return found

    return embed


def _graph(setting: Setting, *, fused: bool) -> bytes:
    from bothways.runtime.onnx_graph import Outputs, build_graph

    weights = load_model(setting.folder).weights
    assert weights is not None
    outputs = Outputs(hidden=True)
    content: bytes = build_graph(setting.config, weights, outputs, fused=fused).SerializeToString()
    return content


def _onnxruntime(setting: Setting) -> Embed:
    _need("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = setting.threads, 3
    graph, providers = _graph(setting, fused=True), ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(graph, options, providers=providers)
    return _by_hand(setting, lambda given: session.run(None, given)[0])


def _openvino(precision: str) -> Callable[[Setting], Embed]:
    def make(setting: Setting) -> Embed:
        _need("openvino")
        from bothways.runtime.openvino_engine import CORE

        settings = {
            "INFERENCE_NUM_THREADS": setting.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
        }
        model = CORE.read_model(model=_graph(setting, fused=False), weights=b"")
        request = CORE.compile_model(model, "CPU", settings).create_infer_request()

        def compute(given: dict[str, Any]) -> NDArray[Any]:
            (found,) = request.infer(given).values()
            return np.asarray(found, np.float32)

        return _by_hand(setting, compute)

    return make


CONTENDERS: dict[str, Callable[[Setting], Embed]] = {
    "bothways torch fp32": _ours("torch", "fp32"),
    "bothways torch bf16": _ours("torch", "bf16"),
    "bothways onnxruntime fp32": _ours("onnxruntime", "fp32"),
    "bothways onnxruntime int8": _ours("onnxruntime", "int8"),
    "bothways openvino fp32": _ours("openvino", "fp32"),
    "bothways openvino bf16": _ours("openvino", "bf16"),
    "sentence-transformers fp32": _sentence_transformers("fp32"),
    "sentence-transformers bf16": _sentence_transformers("bf16"),
    "onnxruntime by hand fp32": _onnxruntime,
    "openvino by hand fp32": _openvino("f32"),
    "openvino by hand bf16": _openvino("bf16"),
}
"""What makes each contender, by name."""
