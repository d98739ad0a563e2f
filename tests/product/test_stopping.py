"""The event that a signal handler sets."""

from __future__ import annotations

import subprocess
import sys
import threading

from fencepost.stopping import StopEvent

PROGRAM = """
import os, signal, time
from fencepost.stopping import StopEvent
stops = []
signal.signal(signal.SIGUSR1, lambda *_: stops[-1].set() if stops else None)
parent, child = os.getpid(), os.fork()
if not child:
    end = time.monotonic() + 5
    while time.monotonic() < end and os.getppid() == parent:
        time.sleep(0.0005)
        os.kill(parent, signal.SIGUSR1)
    os._exit(0)
end = time.monotonic() + 2
while time.monotonic() < end:
    stops[:] = [StopEvent()]
    for _ in range(20):
        stops[-1].wait(0.00001)
print("ended", flush=True)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""


def test_a_signal_may_come_at_any_time() -> None:
    """With `threading.Event`, the handler waits for a lock that the interrupted `wait` has."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "ended\n", done.stderr


def test_all_waiting_threads_continue() -> None:
    stop = StopEvent()
    assert not stop.wait(0)
    assert not stop.wait(-1)
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(stop.wait())) for _ in range(5)]
    for thread in threads:
        thread.start()
    stop.set()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 5
    assert stop.is_set()
    assert stop.wait(0)
