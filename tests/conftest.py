"""Makes the modules of `tests/support` importable, and Ctrl-C tested also where tests run in the background.

A shell starts `command &` with SIGINT ignored, every process below inherits that, and a Python that
inherits it never sees a KeyboardInterrupt.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
