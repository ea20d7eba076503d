#!/bin/bash
# How a job should fail: look at all the input first, say everything that is wrong and how to fix it,
# keep what was found so far, exit with a code of its own. Fix parameters.txt and it succeeds.
set -euo pipefail

problems=0
complain() { # complain WHERE WHAT HOW
    problems=$((problems + 1))
    printf '%s: %s\n    to fix it: %s\n' "$@" >&2
}

: >accepted.txt
steps='' temperature='' number=0
while IFS='= ' read -r key value || [ -n "$key" ]; do
    number=$((number + 1))
    where="parameters.txt:$number"
    case "$key" in
        '' | '#'*) continue ;;
        steps)
            if [[ ! $value =~ ^[1-9][0-9]{0,6}$ ]]; then
                complain "$where" "steps is '$value', not a whole number from 1 to 9999999" \
                    "write it without a unit or a thousands separator, for example: steps = 10000"
                continue
            fi
            steps=$value
            ;;
        temperature)
            if [[ ! $value =~ ^[0-9]{1,4}$ ]]; then
                complain "$where" "temperature is '$value', not a whole number of kelvin" \
                    "leave the unit away; 37 °C is: temperature = 310"
                continue
            fi
            temperature=$value
            ;;
        structure)
            if [ ! -f "$value" ]; then
                complain "$where" "structure is '$value', but the bundle has no such file" \
                    "upload $value together with run.sh, or name one of: $(printf '%s ' *)"
                continue
            fi
            ;;
        *)
            complain "$where" "there is no parameter '$key'" \
                "remove the line, or use one of: steps, temperature, structure"
            continue
            ;;
    esac
    echo "$key = $value" >>accepted.txt
done <parameters.txt

echo "::progress value=1,total=2::parameters read"
if [ $problems != 0 ]; then
    echo "$problems of the parameters cannot be used; the others are in accepted.txt" >&2
    echo "::error::$problems of the parameters cannot be used"
    exit 3
fi

echo "would simulate ${steps:-1000} steps at ${temperature:-300} K" | tee plan.txt
echo "::progress value=2,total=2::done"
