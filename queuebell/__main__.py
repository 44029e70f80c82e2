"""``python -m queuebell`` is the command ``queuebell``."""

from queuebell.command.main import main

raise SystemExit(main())
