"""Many runs. ``local`` uses the cores of this machine, one run to a process."""
