"""The training of one run of fine-tuning, epoch by epoch, with the dev file measured after each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from bothways.config import FinetuneConfig, Restart
from bothways.errors import DivergenceError, ModelError
from bothways.model.heads import Bert
from bothways.tasks.checkpoint import Checkpoint, Progress
from bothways.tasks.data import Data, Opened
from bothways.tasks.examples import TRAIN_TOKENS, TaskBatch, cut_by_tokens, step_batches
from bothways.tasks.predict import predict_outputs
from bothways.tasks.task import Outputs, task_loss
from bothways.training.engine import Stats, Trainer
from bothways.training.monitor import Monitor
from bothways.training.prefetch import run_ahead
from bothways.training.pruned_embedding import PrunedEmbedding

# Records in metrics.jsonl over a run, about.
_RECORDS = 200


@contextlib.contextmanager
def _diverging(restart: Restart) -> Iterator[None]:
    """Name the run in which training diverged, whether gradients or outputs showed it."""
    try:
        yield
    except (DivergenceError, ModelError) as error:
        raise DivergenceError(f"{restart.name}: {error}") from None


class Epochs:
    """A run in progress, at its beginning or where its checkpoint was made.

    Args:
        config, model, data: what is trained, and on what.
        run, restart: whose run it is.
        checkpoint: gone on from if there is one, and written now and then.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        model: Bert,
        data: Data,
        run: Opened,
        restart: Restart,
        checkpoint: Checkpoint,
    ):
        self.config, self.model, self.data, self.run = config, model, data, run
        self.restart, self.checkpoint = restart, checkpoint
        self.per_epoch = -(-len(data.train.examples) // config.batch)
        self.total = self.per_epoch * config.epochs
        self.pruned: PrunedEmbedding | None = None
        if config.kernels == "fast" and config.optimizer.name == "adam":
            table, ids = model.encoder.embeddings.tokens, data.train.examples.tokens
            # The tail of a flat batch shows id 0.
            self.pruned = PrunedEmbedding(table, np.append(ids, 0), config.optimizer, self.total)
        self.trainer: Trainer[TaskBatch] = Trainer(
            model,
            config.optimizer,
            total_steps=self.total,
            seed=restart.seed,
            dtype=run.precision.dtype,
        )
        self.progress = checkpoint.restore(self.trainer, self.pruned) or Progress()

    def train(self) -> tuple[Progress, Outputs]:
        """Every epoch that is not done.

        Returns:
            The dev scores after each epoch, and the outputs on dev after the last.

        Raises:
            DivergenceError: the run is named in it.
            DiskError: records or a checkpoint could not be written.
        """
        done, per_epoch = self.progress.step, self.per_epoch
        outputs = np.zeros((0, self.data.task.outputs), np.float32)
        title = f"{self.data.task.name} {self.restart.name}"
        folder, bar = self.run.folder / self.restart.folder, self.run.alone
        with (
            _diverging(self.restart),
            Monitor(folder, self.total, title, done=done, bar=bar) as monitor,
        ):
            if done:
                monitor.say(
                    f"{self.restart.name}: continuing after step {done:,} of {self.total:,}"
                )
            for epoch in range(done // per_epoch, self.config.epochs):
                stats = self._train_epoch(epoch, max(done - epoch * per_epoch, 0), monitor)
                step = (epoch + 1) * per_epoch
                with self.pruned.full_table(step) if self.pruned else contextlib.nullcontext():
                    outputs = self._measure(epoch, stats, monitor)
                if epoch + 1 < self.config.epochs:
                    self._keep(step)
            if self.pruned:
                self.pruned.restore(self.total)
        return self.progress, outputs

    def _train_epoch(self, epoch: int, first: int, monitor: Monitor) -> dict[str, float]:
        """One pass over the data, from its step ``first`` on; the mean statistics since the last
        record."""
        examples, trainer = self.data.train.examples, self.trainer
        steps = step_batches(
            len(examples), self.config.batch, seed=self.restart.order_seed, epoch=epoch
        )
        every = max(1, self.total // _RECORDS)
        positions, device = self.model.config.positions, self.model.device
        recent: list[Stats] = []

        def make(i: int) -> list[TaskBatch]:
            parts = cut_by_tokens(steps[i], examples.lengths, TRAIN_TOKENS)
            made = [examples.batch(part, max_positions=positions) for part in parts]
            return made if device.type == "cpu" else [batch.to(device) for batch in made]

        own = range(first, len(steps))
        ahead = 0 if device.type == "cpu" else 2  # a CPU has enough to do
        for i, parts in zip(own, run_ahead(make, own, ahead=ahead, device=device), strict=True):
            step = epoch * len(steps) + i
            loss = task_loss(self.data.task.loss, examples.counted(steps[i]))
            recent.append(trainer.step(step, parts, loss))
            if (step + 1) % every == 0 and i + 1 < len(steps):
                trainer.check()
                monitor.log(step + 1, _means(recent))
                recent.clear()
                self._keep(step + 1)
        trainer.check()
        return _means(recent)

    def _measure(self, epoch: int, stats: dict[str, float], monitor: Monitor) -> Outputs:
        """Measure dev and record it with what training said last."""
        task, dev = self.data.task, self.data.dev
        outputs = predict_outputs(self.model, dev.examples, dtype=self.run.precision.dtype)
        found = task.measure(dev, task.decode(dev, outputs))
        self.progress.measured.append(found)
        scores = {f"dev_{k}": v for k, v in found.scores.items()}
        monitor.log((epoch + 1) * self.per_epoch, {"epoch": epoch + 1, **stats, **scores})
        shown = ", ".join(f"{k} {v:.4f}" for k, v in found.scores.items())
        notes = "".join(f" ({note})" for note in found.notes)
        monitor.say(f"{self.restart.name} epoch {epoch + 1}: dev {shown}{notes}")
        return outputs

    def _keep(self, step: int) -> None:
        """Where nothing is held back from the records, so that they go on as if unbroken."""
        self.progress.step = step
        if self.checkpoint.due():
            self.checkpoint.save(self.trainer, self.pruned, self.progress)


def _means(records: list[Stats]) -> dict[str, float]:
    return {name: float(np.mean([float(r[name]) for r in records])) for name in records[0]}
