"""What jobs remember between runs, and the protocol of a commit.

A state in a local folder or an object store. docs/state-format.md describes every field.

    state.json                               the settings; put once, with the first decision
    log/<n>.json                             decision n, put if absent: the writer that puts it has decided version n
    body/<n>-<sha256>.json                   the decision itself if it is larger than 64 KB; the log refers to it
    done/<n>                                 "applied" or "abandoned", put when version n is finished
    segments/<n>/<attempt>/<task>.state      snapshots and deltas of the shards that version n changed, a file per task
    segments/<n>/<attempt>/ledger-<x>.blocks the inputs of version n, and of some versions before
    folded/<m>.json                          totals of the versions up to m, whose log entries are removed
    hint                                     a finished version, from which the newest one is searched

A run *prepares* (writes files without references), *decides* (one put-if-absent), *applies* (an idempotent redo on the
sink that never reads the source) and *finishes* (`commit.py`). The next run first finishes what was decided. Numbers
are never reused. Garbage is collected by number: files of a finished version that it does not refer to.
"""

from fencepost.state.decision import Decision, Settings, Shard, Version
from fencepost.state.folding import Folded
from fencepost.state.stores import Store, open_store
from fencepost.state.versions import State, open

__all__ = ["Decision", "Folded", "Settings", "Shard", "State", "Store", "Version", "open", "open_store"]
