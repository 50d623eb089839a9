#!/bin/sh
# Install what tests/pictures needs and this host lacks (Debian or Ubuntu, as root), and two modules of npm.
set -eu
cd "$(dirname "$0")"
missing=""
command -v chromium >/dev/null || missing="$missing chromium fonts-dejavu-core"
command -v node >/dev/null || missing="$missing nodejs"
command -v npm >/dev/null || missing="$missing npm"
# shellcheck disable=SC2086 # a list of words
../install_packages.sh tests/pictures $missing
test -d node_modules/axe-core || npm ci --no-audit --no-fund --silent
