"""What keeps a flood from becoming memory or time of others: docs/ingestion.md says in one table what each is for."""
