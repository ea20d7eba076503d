#!/bin/bash
# Which residues of two protein chains touch? Reads every PDB file of the bundle.
set -euo pipefail
shopt -s nullglob globstar
export PYTHONDONTWRITEBYTECODE=1 # or its cache would be part of the result

files=(**/*.pdb **/*.ent)
if [ ${#files[@]} = 0 ]; then
    echo "run.sh: no PDB file here: upload one (*.pdb, *.ent) with two chains, or two with one each" >&2
    exit 2
fi
python3 contacts.py "${files[@]}"
