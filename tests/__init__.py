"""The tests. No module of them imports another, apart from those in `tests.support`."""

import os

# Read when a library is first imported: no model hub is asked, and the workers of pytest-xdist, and
# the processes that tests start, share the cores.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
