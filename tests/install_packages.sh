#!/bin/sh
# Install packages of Debian or Ubuntu, as root: install_packages.sh WHO PACKAGE...; none: nothing to do.
set -eu
who=$1
shift
[ $# -gt 0 ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "$who needs: $* (to install them: root and apt-get)" >&2
  exit 1
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
