#!/bin/sh
# The base install: predicts, embeds, exports, checks and serves, without torch.
#
#   container/install.sh SOURCE [ENVIRONMENT]
#
# SOURCE is a checkout, or a wheel. The steps of the Containerfile; `make container-steps` runs them in
# a fresh environment. PYTHON names the interpreter.
set -eu
source=$1
environment=${2:-/opt/bothways}
constraints=$(dirname "$0")/../constraints.txt

"${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --disable-pip-version-check --no-cache-dir --quiet \
    --constraint "$constraints" "bothways[serve] @ file://$(realpath "$source")"

# What a container is started for must work before it is shipped, away from the checkout.
environment=$(realpath "$environment")
cd /
"$environment/bin/bothways" --version
"$environment/bin/bothways" fill-mask 'She opened the [MASK] and looked out.' --top 1
"$environment/bin/bothways" serve --help > /dev/null
if "$environment/bin/python" -c 'import torch' 2> /dev/null; then
    echo "torch was installed, which the base install does not need" >&2
    exit 1
fi
