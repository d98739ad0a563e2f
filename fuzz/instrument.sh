#!/bin/sh
# The compiler for crates of this workspace: libFuzzer sees which branches they take. Other crates are not looked at:
# they have ten times the branches, and each input would take ten times as long.
exec "$@" $COVERAGE
