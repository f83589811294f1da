#!/usr/bin/env bash
# Build the sdist, from it the wheel, install that into an environment of its own, and run the tests
# against it, from a copy of tests/ outside the checkout.
#
#   scripts/test_wheel.sh [words for pytest]
#
# PYTHON names an interpreter that has the dependencies and the development tools; the new environment
# sees its packages, but for this one.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
root=$(cd "$(dirname "$0")/.." && pwd)
case $python in */*) python=$(realpath -s "$python") ;; esac
work=$(mktemp -d "${TMPDIR:-/tmp}/bothways-wheel-XXXXXX")
trap 'rm -rf "$work"' EXIT

cd "$root"
"$python" - "$work" << 'EOF'
import shutil, sys
from pathlib import Path

work = Path(sys.argv[1])
left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
shutil.copytree("src", work / "checkout/src", ignore=left_out)
for name in ("pyproject.toml", "README.md", "LICENSE"):
    shutil.copy(name, work / "checkout")
EOF
(cd "$work/checkout" && "$python" -c "
from setuptools import build_meta
build_meta.build_sdist('../dist')")
tar -xzf "$work"/dist/*.tar.gz -C "$work"
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --wheel-dir "$work/dist" "$work"/bothways-*/
"$python" -m venv --without-pip "$work/env"
site=$("$work/env/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index \
    --target "$site" "$work"/dist/*.whl
# Other packages come from the given environment; the wheel's folder is before them on the path.
"$python" -c "import sysconfig; print(sysconfig.get_path('purelib'))" > "$site/others.pth"
mkdir -p "$work/away"
for name in tests docs notebooks benchmarks results scripts pyproject.toml README.md CHANGELOG.md \
    CONTRIBUTING.md EXPERIMENTS.md LICENSE Makefile constraints.txt .ci container; do
    cp -r "$root/$name" "$work/away/"
done
mkdir -p "$work/away/src"
ln -s "$site/bothways" "$work/away/src/bothways"  # for tests that look at the sources
cd "$work/away"
unset PYTHONPATH
PATH="$work/env/bin:$PATH" "$work/env/bin/python" -c "
import bothways, pathlib
found = pathlib.Path(bothways.__file__).resolve()
assert str(found).startswith('$work/env'), found
print('testing', found.parent)"
exec_tests=("$work/env/bin/python" -m pytest -p no:cacheprovider "$@")
"${exec_tests[@]}"
