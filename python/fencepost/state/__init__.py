"""What jobs remember between runs, and the protocol by which a run commits.

A state folder:

    state.json                                     what it was created for; put once, with the first decision
    log/<n>.json                                   decision n, put if absent: whoever puts it has decided version n
    body/<n>-<sha256>.json                         the decision itself where it is larger than 64 KB; the log names it
    done/<n>                                       put once decision n is applied to the sink: n may be built upon
    segments/<n>/<attempt>/shard-<k>-<id>.state    snapshots of the shards that version n touched
    segments/<n>/<attempt>/ledger.jsonl            which inputs version n read (and, now and then, all before it)
    scratch/<n>-<attempt>/                         what tasks of a running job hand to each other

A run *prepares* (files that nothing refers to), *decides* (one put-if-absent), *applies* (an idempotent redo against
the sink that never reads the source) and *finishes*. Whoever comes next first finishes what was decided. Numbers are
never reused, and rubbish is collected by number: what belongs to a version that is done and is not named by it.
"""

from fencepost.state.decision import Decision, Input, Output, Segment, Settings
from fencepost.state.store import State, open

__all__ = ["Decision", "Input", "Output", "Segment", "Settings", "State", "open"]
