"""Which files and functions of bothways a Python call passes through, by tracing it.

    python scripts/trace_files.py finetune
    python scripts/trace_files.py pretrain --list
    python scripts/trace_files.py "import bothways as bw" "bw.load('bert-tiny').embed(['a text'])"

A word names a path of the package on a small example that is made first: `finetune`, from labelled
rows to a score; `pretrain`, two steps. Otherwise the last argument is the expression that is
traced, and those before it are statements that prepare it. What runs while a module is imported
does not count, nor do functions that the library calls in other processes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import bothways

ROOT = Path(bothways.__file__).parent
_UNNAMED = ("<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")

EXAMPLES = {
    "finetune": (
        "import bothways as bw",
        "rows = 'text\\tlabel\\n' + 'a good day\\tyes\\na bad day\\tno\\n' * 4",
        "[open(name, 'w').write(rows) for name in ('train.tsv', 'dev.tsv')]",
        "from bothways.families.config import ModelConfig",
        "from bothways.model.folder import save_model",
        "from bothways.model.model import EncoderModel",
        "from bothways.tokenization.tokenizer import Tokenizer",
        "pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', 'good', 'bad', 'day']",
        "sizes = {'layers': 1, 'hidden': 16, 'heads': 2, 'intermediate': 32, 'positions': 32}",
        "shape = ModelConfig(len(pieces), **sizes)",
        "save_model('start', EncoderModel(shape), Tokenizer.from_pieces(pieces))",
        "from bothways.finetuning.options import FinetuneConfig",
        "from bothways.tasks.options import TaskOptions",
        "task = TaskOptions(train='train.tsv', dev='dev.tsv', text='text', label='label')",
        "config = FinetuneConfig(task=task, model='start', run='run', length=16, epochs=1, "
        "batch=8, precision='fp32', threads=1)",
        "bw.finetune(config).mean()",
    ),
    "pretrain": (
        "import bothways as bw",
        "open('text.txt', 'w').write('A good day.\\nA bad day.\\n\\n' * 40)",
        "from bothways.cli import main",
        "main(['vocab', '--files', 'text.txt', '--size', '60', '--out', 'vocabulary'])",
        "main(['corpus', '--files', 'text.txt', '--tokenizer', 'vocabulary', '--out', 'corpus'])",
        "from bothways.families.options import SizeOptions",
        "from bothways.pretraining.options import PretrainConfig",
        "from bothways.training.options import ClockOptions, Phase",
        "size = SizeOptions(layers=1, hidden=16, heads=2, intermediate=32, positions=32)",
        "phases = (Phase(length=16, batch=4, micro_batch=4),)",
        "config = PretrainConfig(corpus='corpus', run='run', model=size, phases=phases, "
        "clock=ClockOptions(steps=2), precision='fp32', threads=1)",
        "bw.pretrain(config)",
    ),
}


def trace(call: Callable[[], Any]) -> Counter[tuple[str, str]]:
    """Call it; the functions of the package that are entered, by file and name, with how often."""
    entered: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)):
            names = code.co_qualname.split(".")
            if not _importing(frame) and names[-1] not in _UNNAMED:
                entered[str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return entered


def _importing(frame: FrameType | None) -> bool:
    """Whether a module of the package is being executed below a frame."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(str(ROOT)):
            return True
        frame = frame.f_back
    return False


def main() -> None:
    """Trace a call, and print what it passes through."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("code", nargs="+", help="statements, then the expression; or an example")
    parser.add_argument("--list", action="store_true", help="name the files, with their functions")
    options = parser.parse_args()
    *statements, expression = EXAMPLES.get(options.code[0], options.code)
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        with contextlib.redirect_stdout(io.StringIO()):
            for statement in statements:
                exec(statement, names)
            entered = trace(lambda: eval(expression, names))
        os.chdir("/")
    by_file: dict[str, list[str]] = {}
    for file, name in sorted(entered):
        by_file.setdefault(file, []).append(name)
    if options.list:
        for file, functions in by_file.items():
            print(f"{file} ({len(functions)}): {', '.join(functions)}")
    print(f"{len(by_file)} files, {len(entered)} functions, {sum(entered.values()):,} calls")


if __name__ == "__main__":
    main()
