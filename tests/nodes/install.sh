#!/bin/sh
# Install what tests/nodes needs and this host lacks (Debian or Ubuntu, as root).
set -eu
PATH="$PATH:/usr/sbin:/sbin"
missing=""
command -v sshd >/dev/null || missing="$missing openssh-server"
command -v ssh >/dev/null || missing="$missing openssh-client"
command -v pdsh >/dev/null || missing="$missing pdsh"
command -v ip >/dev/null || missing="$missing iproute2"
command -v numactl >/dev/null || missing="$missing numactl"
# shellcheck disable=SC2086 # a list of words
exec "$(dirname "$0")/../install_packages.sh" tests/nodes $missing
