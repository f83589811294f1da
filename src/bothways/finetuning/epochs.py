"""Trains one model of a fine-tuning run, epoch by epoch, and measures dev after each epoch."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np

from bothways.config import FinetuneConfig, RunSeeds
from bothways.errors import DivergenceError, NonFiniteError
from bothways.finetuning.checkpoint import Checkpoint, Progress
from bothways.finetuning.run_setup import OpenedRun
from bothways.finetuning.task_files import FinetuningData
from bothways.model.bert import Bert
from bothways.prediction.predict import measured_outputs
from bothways.tasks.examples import TRAIN_TOKENS, TaskBatch, cut_by_tokens, step_batches
from bothways.tasks.task import task_loss
from bothways.training.monitor import Monitor
from bothways.training.prefetch import run_ahead
from bothways.training.pruned_embedding import PrunedEmbedding
from bothways.training.trainer import Stats, Trainer

# Approximate number of records in metrics.jsonl per run.
_RECORDS = 200


@contextlib.contextmanager
def _naming_run(run_seeds: RunSeeds) -> Iterator[None]:
    """Report divergence, whether the gradients or the outputs show it, with the name of the run."""
    try:
        yield
    except (DivergenceError, NonFiniteError) as error:
        raise DivergenceError(f"{run_seeds.name}: {error}") from None


class SeedTraining:
    """The training of one seed, from the beginning or from its checkpoint.

    While training, the embedding table may be pruned to the rows that occur in the training file
    (:class:`PrunedEmbedding`). It must be whole when dev is measured and at the end, and pruned
    when a checkpoint is saved or restored.

    Args:
        config: the setting.
        model: trained in place.
        data: the files of the task, encoded.
        run: the run folder.
        run_seeds: the seeds of this run.
        checkpoint: restored if there is one, and saved now and then.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        model: Bert,
        data: FinetuningData,
        run: OpenedRun,
        run_seeds: RunSeeds,
        checkpoint: Checkpoint,
    ):
        self.config, self.model, self.data, self.run = config, model, data, run
        self.run_seeds, self.checkpoint = run_seeds, checkpoint
        self.steps_per_epoch = -(-len(data.train.examples.trainable) // config.batch)
        self.total = self.steps_per_epoch * config.epochs
        self.pruned: PrunedEmbedding | None = None
        if config.kernels == "fast" and config.optimizer.name == "adam":
            table, ids = model.encoder.embeddings.tokens, data.train.examples.tokens
            self.pruned = PrunedEmbedding(table, ids, config.optimizer, self.total)
        self.trainer: Trainer[TaskBatch] = Trainer(
            model,
            config.optimizer,
            total_steps=self.total,
            seed=run_seeds.seed,
            dtype=run.precision.dtype,
        )
        self.progress = checkpoint.restore(self.trainer, self.pruned) or Progress()

    def train(self) -> tuple[Progress, Any]:
        """Train the epochs that are not done.

        Returns:
            The dev scores after each epoch, and the predictions for dev after the last.

        Raises:
            DivergenceError: training diverged; the message names the run.
            DiskError: records or a checkpoint could not be written.
        """
        progress, done = self.progress, self.progress.step
        predictions: Any = None
        title = f"{self.data.task.name} {self.run_seeds.name}"
        folder, bar = self.run.folder / self.run_seeds.folder, self.run.alone
        with (
            _naming_run(self.run_seeds),
            Monitor(folder, self.total, title, done=progress.recorded, bar=bar) as monitor,
        ):
            if done:
                monitor.say(
                    f"{self.run_seeds.name}: continuing after step {done:,} of {self.total:,}"
                )
            if done < self.total:
                self._try_saving(monitor)
            for epoch in range(len(progress.measured), self.config.epochs):
                end = (epoch + 1) * self.steps_per_epoch
                self._train_epoch(epoch, monitor)
                with self.pruned.full_table(end) if self.pruned else contextlib.nullcontext():
                    predictions = self._measure(epoch, monitor)
                if epoch + 1 < self.config.epochs and self.checkpoint.due():
                    self._save()
            if self.pruned:
                self.pruned.restore(self.total)
        return progress, predictions

    def _train_epoch(self, epoch: int, monitor: Monitor) -> None:
        """Train what is left of one pass over the data, without the record of its last step."""
        examples, trainer = self.data.train.examples, self.trainer
        items, batch = examples.trainable, self.config.batch
        order = step_batches(len(items), batch, seed=self.run_seeds.order_seed, epoch=epoch)
        steps = [items[chosen] for chosen in order]
        record_every = max(1, self.total // _RECORDS)
        positions, device = self.model.config.positions, self.model.device
        progress = self.progress

        def make_micro_batches(i: int) -> list[TaskBatch]:
            parts = cut_by_tokens(steps[i], examples.lengths, TRAIN_TOKENS)
            batches = [examples.batch(part, max_positions=positions) for part in parts]
            return batches if device.type == "cpu" else [batch.to(device) for batch in batches]

        remaining = range(progress.step - epoch * len(steps), len(steps))
        ahead = 0 if device.type == "cpu" else 2  # on a CPU, training itself uses all cores
        prepared = run_ahead(make_micro_batches, remaining, ahead=ahead, device=device)
        for i, micro_batches in zip(remaining, prepared, strict=True):
            step = epoch * len(steps) + i
            loss = task_loss(self.data.task.loss, examples.count_targets(steps[i]))
            progress.recent.append(trainer.step(step, micro_batches, loss))
            progress.step = step + 1
            if progress.step % record_every == 0 and i + 1 < len(steps):
                trainer.check()
                monitor.log(progress.step, _means(progress.recent))
                progress.recent.clear()
            # Predicting the other files may take long, so the last step is saved in any long run.
            last = progress.step == self.total
            if self.checkpoint.due() or (last and self.checkpoint.exists()):
                self._save()
        trainer.check()

    def _measure(self, epoch: int, monitor: Monitor) -> Any:
        """Measure dev, and record the scores with the last statistics of training; the
        predictions."""
        dev = self.data.dev
        outputs = measured_outputs(self.model, dev.examples)
        predictions = self.data.task.decode(dev, outputs)
        measurement = self.data.task.tuned(dev, predictions).measure(dev, predictions)
        self.progress.measured.append(measurement)
        scores = {f"dev_{k}": v for k, v in measurement.scores.items()}
        stats = _means(self.progress.recent)
        self.progress.recent.clear()
        monitor.log(self.progress.step, {"epoch": epoch + 1, **stats, **scores})
        shown = ", ".join(f"{k} {v:.4f}" for k, v in measurement.scores.items())
        notes = "".join(f" ({note})" for note in measurement.notes)
        monitor.say(f"{self.run_seeds.name} epoch {epoch + 1}: dev {shown}{notes}")
        return predictions

    def _try_saving(self, monitor: Monitor) -> None:
        """See that checkpoints can be written, before a step is trained."""
        size = self.checkpoint.try_save(self.trainer, self.pruned, self.progress)
        folder = self.run.folder / self.run_seeds.folder
        free = shutil.disk_usage(folder).free
        if free < size:
            monitor.say(
                f"{folder}: a checkpoint, written every {self.config.checkpoint_minutes:g} minutes "
                f"(--checkpoint_minutes), needs {size / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB "
                "are free; free some space if training takes longer"
            )

    def _save(self) -> None:
        """Save a checkpoint, unless training has diverged."""
        self.trainer.check()
        self.checkpoint.save(self.trainer, self.pruned, self.progress)


def _means(records: list[Stats]) -> dict[str, float]:
    return {name: float(np.mean([float(r[name]) for r in records])) for name in records[0]}
