"""Finds, with a few real steps on this machine, what would stop or spoil a training in several processes."""
