"""Trying a save before the first step, so that what would fail at the first one loses nothing.

A trial runs the code of the save on the real tensors, in a folder of its own that is removed
again, but for the bulk of the writing: the tensors' data, their checksums, and flushing. Of BERT
base these are 1.3 GB for each run of pre-training and 1.7 GB for each seed of fine-tuning, of which
some train for seconds only. Without them it takes a tenth of a second, so every run has one. What
could fail in the data is tried in another way: safetensors looks at each tensor, and the space is
reserved on the disk.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from bothways.errors import BothwaysError, RunError, is_out_of_memory
from bothways.files import PARTIAL, explain_disk_errors, reserve_space


class SaveTrial:
    """Takes the place of :func:`bothways.model.weight_files.write_tensors` in a trial.

    Args:
        folder: empty, to write the other files in.

    Attributes:
        sizes: bytes of the data of each file of tensors.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.sizes: dict[Path, int] = {}

    @property
    def size(self) -> int:
        """Bytes of all files of tensors."""
        return sum(self.sizes.values())

    def write(
        self, tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None
    ) -> None:
        """Create an empty file, if safetensors would write these tensors."""
        by_storage: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in tensors.items():
            by_storage[tensor.untyped_storage().data_ptr()][name] = tensor
        for group in by_storage.values():
            if len(group) == 1:
                # Two rows stand for all: they are contiguous exactly if the tensor is.
                group = {
                    name: tensor[:2] if tensor.ndim else tensor for name, tensor in group.items()
                }
            save(group, metadata)
        path.touch()
        self.sizes[path] = sum(tensor.nbytes for tensor in tensors.values())

    def reserve(self) -> None:
        """Take the space of the tensors' data on the disk."""
        for path, size in self.sizes.items():
            reserve_space(path, size)


@contextlib.contextmanager
def try_save(path: Path) -> Iterator[SaveTrial]:
    """Try a save of the folder ``path`` in the block, in another folder next to it.

    Raises:
        DiskError: it cannot be written.
        RunError: it cannot be made, for whatever reason.
    """
    folder = path.with_name(f"{PARTIAL}trial-{path.name}")
    existed = path.parent.exists()
    try:
        with explain_disk_errors(path):
            shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
            folder.mkdir(parents=True)
            yield SaveTrial(folder)
    except BothwaysError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())
        raise RunError(
            f"{path} could not be saved ({type(error).__name__}: {reason}), so no step was "
            "trained. Please report it, with this message, as a defect of bothways."
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if not existed:
            with contextlib.suppress(OSError):
                path.parent.rmdir()
