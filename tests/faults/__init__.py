"""Faults on real runs of the job: each world with faults is compared with one without.

world.py     a source, a state and a sink; what lands in the source; what must hold afterwards
driver.py    one driver in a process of its own, with a fault in it
workers.py   an engine whose tasks are processes that die, run twice or write late
mutants.py   broken jobs: each harness must object to one
order.py     which names and contents are durable when, from the calls that the kernel saw
cases.py     every case by name; run.py runs them all
"""
