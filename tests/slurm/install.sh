#!/bin/sh
# Install what tests/slurm needs and this host lacks (Debian or Ubuntu, as root).
set -eu
missing=""
command -v munged slurmctld >/dev/null || PATH="$PATH:/usr/sbin"
command -v munged >/dev/null || missing="$missing munge"
for program in slurmctld slurmd srun sbatch; do
  command -v "$program" >/dev/null || { missing="$missing slurm-wlm"; break; }
done
# shellcheck disable=SC2086 # a list of words
exec "$(dirname "$0")/../install_packages.sh" tests/slurm $missing
