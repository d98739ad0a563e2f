"""What jobs remember between runs, and the protocol by which a run commits.

A state, in a local folder or an object store; docs/state-format.md says what each field means:

    state.json                               what it was created for; put once, with the first decision
    log/<n>.json                             decision n, put if absent: whoever puts it has decided version n
    body/<n>-<sha256>.json                   the decision itself where it is larger than 64 KB; the log names it
    done/<n>                                 "applied" or "abandoned", put once decision n is over; n may be built upon
    segments/<n>/<attempt>/<task>.state      snapshots and deltas of the shards that version n touched, one file a task
    segments/<n>/<attempt>/ledger-<x>.blocks which inputs version n read, and those of some versions before
    folded/<m>.json                          what is left of the versions up to m, whose log entries are removed
    hint                                     a version that is done: the newest one is looked for from there on

A run *prepares* (files that nothing refers to), *decides* (one put-if-absent), *applies* (an idempotent redo against
the sink that never reads the source) and *finishes* (`commit.py`). Whoever comes next first finishes what was decided.
Numbers are never reused, and rubbish is collected by number: what belongs to a version that is over and is not named.
"""

from fencepost.state.decision import Decision, Settings, Shard, Version
from fencepost.state.folding import Folded
from fencepost.state.stores import Store, open_store
from fencepost.state.versions import State, open

__all__ = ["Decision", "Folded", "Settings", "Shard", "State", "Store", "Version", "open", "open_store"]
