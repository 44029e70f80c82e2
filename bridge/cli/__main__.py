"""``python -m bridge.cli`` is the command ``queuebell``."""

from bridge.cli.main import main

raise SystemExit(main())
