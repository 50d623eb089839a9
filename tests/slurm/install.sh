#!/bin/sh
# Install what tests/slurm needs and this host lacks (Debian or Ubuntu, as root).
set -eu
missing=""
command -v munged slurmctld >/dev/null || PATH="$PATH:/usr/sbin"
command -v munged >/dev/null || missing="$missing munge"
for program in slurmctld slurmd srun sbatch; do
  command -v "$program" >/dev/null || { missing="$missing slurm-wlm"; break; }
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "tests/slurm needs:$missing (to install them: root and apt-get)" >&2
  exit 1
fi
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
