"""Options of `bothways reproduce`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bothways.config.fields import require
from bothways.errors import ConfigError
from bothways.training.options import DeviceOptions, Precision


@dataclass(frozen=True)
class ReproduceConfig(DeviceOptions):
    """Reproduce one of the paper's ablations (Devlin et al. 2019, section 5 and appendix C) or a
    further comparison: table5, table6, table7, table8, figure5, vocabulary, masks, whole-words,
    masking-rate, bias-correction. Writes a table of the paper's figures and ours as Markdown, JSON
    and a plot. Running the same command again resumes it; tables with the same --out share the
    steps they have in common."""

    name: str
    """Name of the table or comparison."""
    scale: Literal["smoke", "cpu", "gpu", "paper"] = "smoke"
    """Model size and budget. smoke: minutes, on bundled text and tasks, to check that everything
    works. cpu: hours on two cores. gpu: about an hour of one GPU for each pre-training run. paper:
    the paper's own."""
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
    conll2003; at smoke scale follows, package, capitals. Default: the scale's."""
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
    """Only show which steps there are, which are done, and roughly how long the rest takes."""
    jobs: int = 1
    """Number of independent steps run in parallel, each in a process with its share of the
    threads. A GPU computes one step at a time."""
    threads: int = 0
    """Total CPU threads of all jobs; 0: one per core."""
    precision: Precision = "auto"
    """Compute precision; auto uses bf16 if the GPU supports it or a short benchmark on the CPU
    finds it faster."""
    keep_models: bool = False
    """Keep the fine-tuned models and the features; pre-trained models are always kept."""
    step: str | None = None
    """Run a single step of the plan, by name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require("jobs", self.jobs, 1)
        require("threads", self.threads, 0)
        if self.steps is not None:
            require("steps", self.steps, 1)
        for name in ("tasks", "seeds", "pretrain_seeds"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} is {list(values)}; give each once.")
