#!/bin/sh
# Install what tests/pictures needs and this host lacks (Debian or Ubuntu, as root), and two modules of npm.
set -eu
cd "$(dirname "$0")"
missing=""
command -v chromium >/dev/null || missing="$missing chromium fonts-dejavu-core"
command -v node >/dev/null || missing="$missing nodejs"
command -v npm >/dev/null || missing="$missing npm"
if [ -n "$missing" ]; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "tests/pictures needs:$missing (to install them: root and apt-get)" >&2
    exit 1
  fi
  apt-get update -qq
  # shellcheck disable=SC2086 # a list of words
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
fi
test -d node_modules/axe-core || npm ci --no-audit --no-fund --silent
