"""Options of `bothways demo`, `bothways plan`, `bothways reproduce`, and of :mod:`.bench`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal

from bothways.config.fields import Options, free, numerics, require
from bothways.errors import ConfigError
from bothways.pretraining.options import PretrainConfig
from bothways.training.options import DeviceOptions, Phase, Precision

PlanDevice = Literal["auto", "cpu", "cuda", "a100", "h100", "h200", "l40s"]


@dataclass(frozen=True)
class DemoConfig(Options):
    """Go from raw text to a fine-tuned BERT on this machine, without downloading anything."""

    out: str = "demo-out"
    """Folder to write everything to."""
    minutes: float = 7.0
    """Target duration of the whole demonstration in minutes. Below 7, fine-tuning has fewer epochs,
    but two at least, so that the shortest take longer than asked for."""
    seeds: int = 3
    """Fine-tuning runs per starting point: pre-trained here, random weights, and the bundled
    model."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.minutes <= 0:
            raise ConfigError(f"minutes is {self.minutes:g}; it must be above 0.")
        require("seeds", self.seeds, 1)


@dataclass(frozen=True)
class PlanConfig(PretrainConfig):
    """Estimate what a pre-training run needs: weights, memory, FLOPs, disk, and hours on this
    machine.

    Takes the options of `bothways pretrain`. To measure the speed it trains a few steps of a
    network of the requested width with at most four layers. Without a corpus, all sequences are
    assumed to have full length. For a GPU of a known kind, time, memory and traffic are computed
    from its data sheet instead, for any number of them.
    """

    listed = MappingProxyType(
        {
            "options": (
                *("corpus", "minutes", "steps", "size", "family", "start", "vocab_size"),
                *("device", "ranks", "json"),
            )
        }
    )
    needed: ClassVar[tuple[str, ...]] = ()

    device: PlanDevice = numerics("auto")  # type: ignore[assignment]
    """Device; auto and cpu time this machine's processor. a100, h100, h200, l40s (of 80, 80, 141
    and 48 GB): computed, not run."""
    ranks: int = free(1)
    """Processes of a run on a100, h100, h200 or l40s, one on each GPU. The micro-batches of the
    default phases become so small that each process has one."""

    vocab_size: int = free(30_522)
    """Vocabulary size, if neither a corpus nor --start determines it."""
    json: str | None = free(None)
    """JSON file to write the estimate to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("vocab_size", self.vocab_size, 64)
        require("ranks", self.ranks, 1)
        if self.ranks > 1 and self.device in ("auto", "cpu", "cuda"):
            raise ConfigError(
                f"ranks is {self.ranks}, but what several processes of {self.device} take is not "
                "computed; choose a --device of known figures: a100, h100, h200 or l40s."
            )
        if self.phases == type(self).phases:
            object.__setattr__(self, "phases", tuple(map(self._shared, self.phases)))

    def _shared(self, phase: Phase) -> Phase:
        share = max(1, phase.batch // self.ranks)
        return replace(phase, micro_batch=min(phase.micro_batch, share))


@dataclass(frozen=True)
class BenchTrainConfig(DeviceOptions):
    """Time bothways' pre-training step against that of transformers, in the same run.

    Both use the same batches, dropout, exact GELU, AdamW and gradient clipping.
    """

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "mini"
    """Model size preset."""
    batch: int = 32
    """Batch size in sequences."""
    length: int = 128
    """Sequence length in tokens (with --corpus: the maximum)."""
    vocab_size: int = 30522
    """Vocabulary size (with --corpus: the corpus's)."""
    attention_dropout: float = 0.1
    """Dropout probability of attention weights, for all contenders; elsewhere it is 0.1."""
    corpus: str | None = None
    """Corpus folder: real pairs of varying length, which transformers pads. Default: full-length
    sequences of random tokens."""
    contenders: tuple[str, ...] = ("bothways", "transformers fp32", "transformers bf16")
    """What to time, the reference first: bothways, bothways fp32, bothways plain, transformers
    fp32, transformers bf16, transformers bf16 compile (takes minutes to compile)."""
    rounds: int = 7
    """Timed steps per contender; the contenders take turns."""
    memory: bool = False
    """Also measure peak memory (on a GPU, of tensors), with each contender in its own process."""
    precision: Precision = "auto"
    """Compute precision of bothways; auto uses bf16 if the GPU supports it or a short benchmark on
    the CPU finds it faster."""
    threads: int = 0
    """CPU threads; 0: one per core."""
    out: str | None = None
    """JSON file to write every measured step to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("batch", self.batch, 1)
        require("rounds", self.rounds, 1)
        require("length", self.length, 8, 512)
        require("vocab_size", self.vocab_size, 64)
        if not 0 <= self.attention_dropout < 1:
            raise ConfigError(
                f"attention_dropout is {self.attention_dropout:g}; it must be in [0, 1)."
            )
        if not self.contenders:
            raise ConfigError("contenders is empty; name at least one.")


@dataclass(frozen=True)
class BenchInferConfig(Options):
    """Time vectors of texts, by bothways' engines, by sentence-transformers, and by
    onnxruntime and OpenVINO as one drives them by hand: whole products, tokenizing included, with
    equal threads, in the same run. On a processor."""

    model: str
    """Model folder."""
    texts: str | None = None
    """File with the texts, as `bothways embed --file` takes it. Default: words of the vocabulary at
    random, in texts of 4 to 200."""
    text: str | None = None
    """Column of the texts in --texts."""
    count: int = 2000
    """Maximum number of texts."""
    contenders: tuple[str, ...] = (
        "bothways torch fp32",
        "bothways torch bf16",
        "bothways onnxruntime fp32",
        "bothways onnxruntime int8",
        "bothways openvino fp32",
        "bothways openvino bf16",
        "sentence-transformers fp32",
        "sentence-transformers bf16",
        "onnxruntime by hand fp32",
        "openvino by hand fp32",
        "openvino by hand bf16",
    )
    """What to time; the default is all. Those that cannot run here are named."""
    rounds: int = 5
    """Rounds; in each, all contenders take turns, first on all texts, then on a single one."""
    threads: int = 0
    """CPU threads; 0: one per core."""
    out: str | None = None
    """JSON file to write every measurement to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("count", self.count, 1)
        require("rounds", self.rounds, 1)
        if not self.contenders:
            raise ConfigError("contenders is empty; name at least one.")


@dataclass(frozen=True)
class ReproduceConfig(DeviceOptions):
    """Reproduce one of the paper's ablations (Devlin et al. 2019, section 5 and appendix C) or a
    further comparison: table5, table6, table7, table8, figure5, vocabulary, masks, whole-words,
    masking-rate, bias-correction. Writes a table of the paper's figures and ours as Markdown and
    JSON, of figure5 also as curves. Running the same command again resumes it; tables with the same
    --out share the steps they have in common."""

    listed = MappingProxyType(
        {
            "options": (
                *(
                    "scale",
                    "out",
                    "corpus",
                    "glue",
                    "squad",
                    "ner",
                    "recipe",
                    "tasks",
                    "seeds",
                    "plan",
                ),
                "device",
            )
        }
    )

    name: str
    """Name of the table or comparison."""
    scale: Literal["smoke", "class", "cpu", "gpu", "paper"] = "smoke"
    """Model size and budget. smoke: minutes, on bundled text and tasks, to check that everything
    works. class: a few minutes on the same text, with enough steps and examples that some scores
    tell more than chance, and the table says which. cpu: hours on two cores. gpu: about an hour of
    one GPU for each pre-training run. paper: the paper's own."""
    out: str = "reproduced"
    """Folder to write: all runs, and a folder NAME-SCALE with the table."""
    corpus: str | None = None
    """Corpus folder to pre-train on, as written by `bothways corpus`."""
    text: tuple[str, ...] = ()
    """Text files, folders or globs, for comparisons that learn vocabularies."""
    glue: str | None = None
    """Folder with the GLUE tasks (MRPC, SST-2 ...), as distributed."""
    squad: str | None = None
    """Folder with SQuAD 1.1: train-v1.1.json and dev-v1.1.json, or train.json and dev.json."""
    ner: str | None = None
    """Folder with CoNLL-2003: eng.train, eng.testa, eng.testb."""
    sick: str | None = None
    """Folder with SICK: SICK_train.txt, SICK_trial.txt, SICK_test_annotated.txt."""
    tasks: tuple[str, ...] = ()
    """Tasks to fine-tune on: mnli, qnli, qnli-part, mrpc, sst2, rte, cola, stsb, sick, squad,
    conll2003; at smoke and class scale the bundled follows, package, capitals. Default: the
    scale's."""
    seeds: tuple[int, ...] = ()
    """Fine-tuning seeds; more can be added later. Default: the scale's."""
    pretrain_seeds: tuple[int, ...] = ()
    """Pre-training seeds, one run per seed and row. Default: the scale's."""
    steps: int | None = None
    """Pre-training steps. Default: the scale's."""
    recipe: str | None = None
    """Pre-training recipe, by name or a .yaml file, that overrides the scale's; each row's changes
    are applied on top of it."""
    plan: bool = False
    """Only show which steps there are, and which are done."""
    threads: int = 0
    """CPU threads; 0: one per core."""
    precision: Precision = "auto"
    """Compute precision; auto uses bf16 if the GPU supports it or a short benchmark on the CPU
    finds it faster."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("threads", self.threads, 0)
        if self.steps is not None:
            require("steps", self.steps, 1)
        for name in ("tasks", "seeds", "pretrain_seeds"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} is {list(values)}; give each once.")
