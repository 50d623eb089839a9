#!/bin/sh
# Install the shells that tests/shells needs and this host lacks (Debian or Ubuntu, as root).
set -eu
missing=""
for shell in zsh fish; do
  command -v "$shell" >/dev/null || missing="$missing $shell"
done
# shellcheck disable=SC2086 # a list of words
exec "$(dirname "$0")/../install_packages.sh" tests/shells $missing
