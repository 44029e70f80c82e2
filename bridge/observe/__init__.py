"""What happened, told once: facts, and who counts or writes them down."""
