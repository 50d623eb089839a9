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
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "tests/nodes needs:$missing (to install them: root and apt-get)" >&2
  exit 1
fi
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
