"""python -m gpukey."""

import sys

from gpukey.cli import main

sys.exit(main())
