#!/bin/sh
# Checks the scripts, the alerts and the book, with the tools that are installed. A line of its output that begins with "not checked: " says what
# it could not check.
set -eu
cd "$(dirname "$0")/.."

for script in packaging/*.sh; do sh -n "$script"; done

if command -v promtool >/dev/null; then
    (cd packaging/prometheus && promtool check rules alerts.yml && promtool test rules tests.yml) >&2
    # The dashboard's expressions, as rules: a string of JSON is one of YAML, too.
    mkdir -p target
    {
        printf 'groups:\n- name: dashboard\n  rules:\n'
        sed -n 's/\$__rate_interval/5m/g; s/^ *"expr": \(".*"\),\{0,1\}$/\1/p' packaging/grafana/distlock.json |
            awk '{ print "  - {record: panel" NR ", expr: " $0 "}" }'
    } >target/dashboard.yml
    promtool check rules target/dashboard.yml >&2
else
    echo "not checked: the alerts of Prometheus, because promtool is not installed (Debian: prometheus)"
fi

if command -v mdbook >/dev/null; then
    # The pages link to files beside docs/, so the book is made of a copy that has them.
    book=target/book
    rm -rf "$book"
    mkdir -p "$book/pages"
    tar -cf - --exclude=./target --exclude=./.git . | tar -xf - -C "$book/pages"
    sed 's#](\.\./#](#; t; s#](#](docs/#' docs/SUMMARY.md >"$book/pages/SUMMARY.md"
    MDBOOK_BOOK__SRC=$book/pages mdbook build --dest-dir "$PWD/$book/html" . >&2
    packaging/links.sh "$book/html"
else
    echo "not checked: the book, because mdbook is not installed (cargo install --locked mdbook)"
fi
