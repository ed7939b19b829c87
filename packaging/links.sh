#!/bin/sh
# Finds links of a folder of HTML files that lead to no file in it.
set -eu
cd "$1"
links=$(grep -roE --include='*.html' 'href="[^"#:]+["#]' . | sed 's/:href="/ /; s/.$//' | sort -u)
broken=$(echo "$links" | while read -r page target; do
    [ -e "${page%/*}/$target" ] || echo "$page: $target"
done)
[ -z "$broken" ] || { echo "links that lead nowhere:" "$broken" >&2; exit 1; }
