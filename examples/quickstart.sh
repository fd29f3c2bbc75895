#!/usr/bin/env bash
# Compare FedCorr with FedAvg on real images with heavy label noise: 20 clients, of which 60 % have 50 to 100 % of their
# labels replaced by random labels. The six trainings run in one process; a second call continues.
# Usage: examples/quickstart.sh [FOLDER]
set -euo pipefail
folder=${1:-runs/quickstart}
fnlkit reproduce quickstart --jobs 1 -o "$folder" > /dev/null
fnlkit evaluate "$folder"/*-fedavg-?.pt "$folder"/*-fedcorr-?.pt
