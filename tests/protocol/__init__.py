"""An executable model of the commit protocol: its steps, what must hold, and protocols that break one rule each."""
