# Count, mean, sample standard deviation, least and greatest of each column of a CSV file.
#
# The first line holds names. A cell that is empty, or says NA, NaN or null, is missing; one that is no
# number is text, and only counted. Quoted cells may hold commas and doubled quotes, not line ends.
# Mean and deviation are updated cell by cell (Welford), which does not cancel as sums of squares do.

function split_line(line, cells,    n, at, c, quoted, cell) {
    n = 0; cell = ""; quoted = 0
    for (at = 1; at <= length(line); at++) {
        c = substr(line, at, 1)
        if (quoted && c == "\"" && substr(line, at + 1, 1) == "\"") { cell = cell c; at++ }
        else if (c == "\"") quoted = !quoted
        else if (c == "," && !quoted) { cells[++n] = cell; cell = "" }
        else cell = cell c
    }
    cells[++n] = cell
    return n
}

function trim(text) { gsub(/^[ \t]+|[ \t]+$/, "", text); return text }

function quote(text) {
    if (text !~ /[",]/) return text
    gsub(/"/, "\"\"", text)
    return "\"" text "\""
}

{ sub(/\r$/, "") }

NR == 1 {
    sub(/^\357\273\277/, "") # byte order mark
    columns = split_line($0, name)
    next
}

/^[ \t]*$/ { next }

{
    n = split_line($0, cells)
    if (n != columns) {
        printf "%s:%d: %d cells, but %d column names\n", FILENAME, NR, n, columns > "/dev/stderr"
        failed = 1
        exit 2
    }
    for (i = 1; i <= columns; i++) {
        cell = trim(cells[i])
        if (cell == "" || tolower(cell) ~ /^(na|nan|null)$/) { missing[i]++; continue }
        if (cell !~ /^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$/) { text[i]++; continue }
        x = cell + 0
        if (!count[i]++ || x < least[i]) least[i] = x
        if (count[i] == 1 || x > greatest[i]) greatest[i] = x
        delta = x - mean[i]
        mean[i] += delta / count[i]
        squares[i] += delta * (x - mean[i])
    }
}

END {
    if (failed) exit 2
    print "column,count,missing,text,mean,sd,min,max"
    for (i = 1; i <= columns; i++) {
        printf "%s,%d,%d,%d,", quote(trim(name[i])), count[i], missing[i], text[i]
        if (!count[i]) { print ",,,"; continue }
        printf "%.10g,", mean[i]
        if (count[i] > 1) printf "%.10g", sqrt(squares[i] / (count[i] - 1))
        printf ",%.10g,%.10g\n", least[i], greatest[i]
    }
}
