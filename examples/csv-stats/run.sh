#!/bin/bash
# Statistics of every column of every CSV file of the bundle: x.csv gives x.stats.csv.
set -euo pipefail
shopt -s nullglob
export LC_ALL=C # a decimal point is a point

files=(*.csv)
if [ ${#files[@]} = 0 ]; then
    echo "run.sh: no CSV file here: upload at least one, with a line of column names" >&2
    exit 2
fi
for i in "${!files[@]}"; do
    awk -f stats.awk "${files[$i]}" >"${files[$i]%.csv}.stats.csv"
    echo "::progress value=$((i + 1)),total=${#files[@]}::${files[$i]}"
done
