"""Options of recomputing the paper's tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bothways.config.fields import require
from bothways.errors import ConfigError


@dataclass(frozen=True)
class ReproduceConfig:
    """Recompute one of the paper's ablations (Devlin et al. 2019, section 5 and appendix C), or a
    comparison beside them: table5, table6, table7, table8, figure5, vocabulary, masks, whole-words,
    masking-rate, bias-correction. Ends in a table with the paper's figures beside ours, as
    Markdown, JSON and a plot. The same command again continues; tables share what they have in
    common in one --out."""

    name: str
    """What to recompute."""
    scale: Literal["smoke", "cpu", "gpu", "paper"] = "smoke"
    """Model and budget. smoke: minutes, on text and tasks that every machine has, to see that all
    of it works; cpu: hours on two cores; gpu: an hour on one card; paper: the paper's own."""
    out: str = "reproduced"
    """Folder for all runs, and a folder NAME-SCALE with the table."""
    corpus: str | None = None
    """Corpus folder to pre-train on, as `bothways corpus` writes it."""
    text: tuple[str, ...] = ()
    """Text files, folders or globs, for comparisons that learn vocabularies."""
    glue: str | None = None
    """Folder with GLUE's tasks (MRPC, SST-2 ...), as it is distributed."""
    squad: str | None = None
    """Folder with SQuAD 1.1: train-v1.1.json and dev-v1.1.json, or train.json and dev.json."""
    ner: str | None = None
    """Folder with CoNLL-2003: eng.train, eng.testa, eng.testb."""
    sick: str | None = None
    """Folder with SICK: SICK_train.txt, SICK_trial.txt, SICK_test_annotated.txt."""
    tasks: tuple[str, ...] = ()
    """Tasks to fine-tune on instead of the scale's: mnli, qnli, qnli-part, mrpc, sst2, rte, cola,
    stsb, sick, squad, conll2003; at smoke scale follows, package, capitals."""
    seeds: tuple[int, ...] = ()
    """Seeds of fine-tuning; the scale's if not given. More may be added later."""
    pretrain_seeds: tuple[int, ...] = ()
    """Seeds of pre-training, each a run of its own for every row; the scale's if not given."""
    steps: int | None = None
    """Steps of pre-training; the scale's if not given."""
    recipe: str | None = None
    """A pre-training recipe (.yaml) over the scale's; a row's changes are made on top of it."""
    plan: bool = False
    """Only say what would be computed, what is there, and about how long the rest takes."""
    jobs: int = 1
    """Independent steps computed at once, each in a process with its part of the threads."""
    threads: int = 0
    """CPU threads of all jobs together; 0: one per core."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What computes; auto takes a GPU where torch sees one."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Arithmetic of the layers; auto takes bf16 where a probe finds it fast."""
    keep_models: bool = False
    """Keep the fine-tuned models and the features; pre-trained models are kept in any case."""
    step: str | None = None
    """Compute one step of the plan alone, by its name."""

    def __post_init__(self) -> None:
        require("jobs", self.jobs, 1)
        require("threads", self.threads, 0)
        if self.steps is not None:
            require("steps", self.steps, 1)
        for name in ("tasks", "seeds", "pretrain_seeds"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ConfigError(f"{name} is {list(values)}; give each once.")
