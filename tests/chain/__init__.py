"""The whole chain under faults: producers, a log, a stage that reads and writes, a consumer, a database.

    producers --wire--> log of inputs --> stage --wire--> log of results --> consumer --> PostgreSQL

A producer is a transactional id of the registry; its position in its source commits with its events. The stage's
results commit with the positions of the inputs that they come from. The consumer's claim, its rows and its position are
one database transaction.

Every box is a process that may be killed or stopped; the wire loses, delays, repeats and reorders. `run` tells who dies
when, from a seed, and compares the table at the end with what was acknowledged to the producers.
"""
